"""The tables of docs/views/text_files.md that say what a text field becomes, checked row by row."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path

import pytest

import ctrbox as cb
from ctrbox.views.fields_of_delimited_text import name_of_type

PAGE = Path(__file__).resolve().parents[2] / "docs" / "views" / "text_files.md"
CELL = re.compile(r"`([^`]*)`|\*(nothing)\*")
KINDS = {"list<item: int64>": "list of int"}


def table(title: str) -> list[tuple[list[str | None], str, list[str]]]:
    """Return fields, type and values of each row of the table under a line of the page; None for an absent field."""
    lines = PAGE.read_text(encoding="utf-8").partition(title)[2].partition("\n\n")[2].partition("\n\n")[0].splitlines()
    found = []
    for line in lines[2:]:
        fields, kind, values = line.strip("|").split(" | ")
        given = [None if nothing else field for field, nothing in CELL.findall(fields)]
        found.append((given, kind.strip(), [value for value, _ in CELL.findall(values)]))
    assert len(found) > 9
    return found


DELIMITED = table("What a text field becomes:")
LINES = table("What a field of JSON lines becomes:")


def check(path: Path, kind: str, values: list[str]) -> None:
    source = cb.View(path).source
    type = source.schema.field("v").type
    assert KINDS.get(str(type), name_of_type(type)) == kind.partition(" (")[0]
    found = [value for morsel in source.scan(["v"]) for value in morsel.rows.column(0).to_pylist()]
    for value, written in zip(found, values, strict=True):
        if isinstance(value, datetime):
            assert value.isoformat() == written
        else:
            assert repr(value) == repr(json.loads(written))


@pytest.mark.parametrize(("fields", "kind", "values"), DELIMITED, ids=[str(row[0]) for row in DELIMITED])
def test_a_delimited_field_becomes_what_the_page_says(
    tmp_path: Path, fields: list[str | None], kind: str, values: list[str]
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("v,name\n" + "".join(f"{field or ''},x\n" for field in fields), encoding="utf-8")
    check(path, kind, values)


@pytest.mark.parametrize(("fields", "kind", "values"), LINES, ids=[str(row[0]) for row in LINES])
def test_a_json_field_becomes_what_the_page_says(
    tmp_path: Path, fields: list[str | None], kind: str, values: list[str]
) -> None:
    path = tmp_path / "a.jsonl"
    lines = ['{"name": "x"}' if field is None else f'{{"name": "x", "v": {field}}}' for field in fields]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if kind == "refused":
        with pytest.raises(cb.errors.SourceError, match=r"a\.jsonl row \d"):
            cb.View(path)
    else:
        check(path, kind, values)
