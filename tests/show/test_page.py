"""Parts of a page, compared with the HTML that they must be."""

from __future__ import annotations

from ctrbox.show import page


def test_a_column_of_numbers_has_the_class_of_numbers_above_it_and_other_classes_are_of_cells() -> None:
    shown = page.table([("rows", "n"), ("a <name>", "value"), ("", "")], [["1", "<b>x</b>", "y"], ["2", "z", ""]])
    assert shown == (
        '<div class="wide"><table><tr><th class="n">rows</th><th class="">a &lt;name&gt;</th><th class=""></th></tr>'
        '<tr><td class="n">1</td><td class="value"><b>x</b></td><td class="">y</td></tr>'
        '<tr><td class="n">2</td><td class="value">z</td><td class=""></td></tr></table></div>'
    )


def test_a_section_without_a_note_has_no_line_for_it() -> None:
    assert page.section("auc", "AUC & more", "", "<p>", "</p>") == (
        '<section id="auc"><h2>AUC &amp; more</h2><p></p></section>'
    )
    assert page.section("auc", "AUC", "as <b>said</b>") == (
        '<section id="auc"><h2>AUC</h2><p class="note">as <b>said</b></p></section>'
    )


def test_a_page_has_its_title_and_its_body_in_order() -> None:
    shown = page.page("a <title>", ["<p>one</p>", "<p>two</p>"])
    assert shown.startswith("<!doctype html>\n")
    assert "<title>a &lt;title&gt;</title>" in shown
    assert shown.endswith("<body><main>\n<p>one</p>\n<p>two</p>\n</main></body></html>\n")
