"""Write the table of docs/operators.md anew: python tools/make_operator_docs.py

The head of the page is written by hand; between its two markers stands ``ctrbox.plan.language.catalogue.markdown()``.
"""

from __future__ import annotations

from pathlib import Path

from ctrbox.plan.language.catalogue import markdown

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operators.md"
BEGIN, END = "<!-- table: made by tools/make_operator_docs.py -->\n", "<!-- end of table -->\n"


def renewed(page: str) -> str:
    """The page with a fresh table between its markers."""
    before, marker, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not marker or not end:
        raise SystemExit(f"{PAGE} lacks a marker: expected {BEGIN.strip()!r} and {END.strip()!r}")
    return f"{before}{BEGIN}\n{markdown()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
