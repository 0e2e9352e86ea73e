"""Write the tables of docs/operators/*.md again: python tools/make_operator_docs.py

The rest of each page is written by hand; between its two markers stands ``ctrbox.plan.language.catalogue.markdown(family)``.
"""

from __future__ import annotations

from pathlib import Path

from ctrbox.plan.language.catalogue import FAMILIES, markdown

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = {family: DOCS / f"operators/{family}.md" for family in FAMILIES}
BEGIN, END = "<!-- table: made by tools/make_operator_docs.py -->\n", "<!-- end of table -->\n"


def renewed(page: str, family: str) -> str:
    """The page of a family with a fresh table between its markers."""
    before, marker, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not marker or not end:
        raise SystemExit(f"{PAGES[family]} lacks a marker: expected {BEGIN.strip()!r} and {END.strip()!r}")
    return f"{before}{BEGIN}\n{markdown(family)}\n{END}{after}"


if __name__ == "__main__":
    for name, path in PAGES.items():
        path.write_text(renewed(path.read_text(encoding="utf-8"), name), encoding="utf-8")
