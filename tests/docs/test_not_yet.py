"""docs/not_yet.md is found from the README and the index, and what it says is refused is refused with the advice it gives."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox.errors import SourceError

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "not_yet.md"


def rows() -> dict[str, str]:
    """Return what the page says today of each thing that people look for."""
    found = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: today for name, today in found if name != "you may look for"}


def test_the_page_is_linked_where_people_look_first() -> None:
    assert PAGE.read_text(encoding="utf-8").startswith("# What CTRBox does not do (yet)\n")
    assert "](docs/not_yet.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "](not_yet.md)" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


def test_every_row_says_how_it_is_today() -> None:
    table = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    wanted = [line for line in table if not line.startswith(("| you may", "|---"))]
    assert len(wanted) == len(rows()) > 15
    for line in wanted:
        assert re.fullmatch(r"\| [^|]+ \| [^|]+\. \| (?:[^|]+\.|–) \|", line), line


def test_a_table_of_hudi_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    (tmp_path / ".hoodie").mkdir()
    (page,) = (
        text for name, text in rows().items() if name.startswith("Hudi tables; Delta tables with deletion vectors")
    )
    assert page.startswith("Refused")
    with pytest.raises(SourceError, match="write a copy of the table as plain Parquet files"):
        cb.View(str(tmp_path))


@pytest.mark.parametrize("ending", ["pb"])
def test_files_of_other_formats_are_not_read(tmp_path: Path, ending: str) -> None:
    (tmp_path / f"log.{ending}").write_bytes(b"bytes")
    assert rows()["Protobuf files"] == "Not read."
    with pytest.raises(SourceError, match=rf"log\.{ending}"):
        cb.View(str(tmp_path / f"log.{ending}"))
