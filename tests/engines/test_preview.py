"""A view shows its columns and its first rows, and reads no more than it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.views import files_without_row_index

TABLE = pa.table(
    {
        "id": pa.array(range(1_000), pa.int32()),
        "word": pa.array([None if i == 1 else f"w{i}" for i in range(1_000)]),
        "tags": pa.array([[i] for i in range(1_000)], pa.list_(pa.int64())),
    }
)


def sources(folder: Path) -> dict[str, Any]:
    pq.write_table(TABLE, folder / "a.parquet", row_group_size=100)
    feather.write_feather(TABLE, folder / "a.arrow")
    (folder / "a.csv").write_text("id,word\n" + "".join(f"{i},w{i}\n" for i in range(1_000)))
    (folder / "a.jsonl").write_text("".join(f'{{"id": {i}, "word": "w{i}"}}\n' for i in range(1_000)))
    files = {name: folder / name for name in ("a.parquet", "a.arrow", "a.csv", "a.jsonl")}
    return {"memory": TABLE, **files}


@pytest.mark.parametrize("kind", ["memory", "a.parquet", "a.arrow", "a.csv", "a.jsonl"])
def test_every_source_shows_its_first_rows_and_its_schema(tmp_path: Path, kind: str) -> None:
    view = cb.View(sources(tmp_path)[kind])
    top = view.head(3)
    assert isinstance(top, pa.Table)
    assert top["id"].to_pylist() == [0, 1, 2]
    assert top.schema.names == view.schema.names
    assert [f.type for f in top.schema] == [f.type for f in view.schema]
    assert view.head().num_rows == 5
    assert view.head(0).num_rows == 0
    assert view.head(5_000).num_rows == 1_000


def test_the_schema_knows_types_and_nulls() -> None:
    schema = cb.View(TABLE).schema
    assert (schema.field("id").type, schema.field("id").nullable) == (pa.int32(), False)
    assert schema.field("word").nullable
    filled = cb.View(TABLE).fill(word="").with_columns(n=col("id") + 1, first=col("tags").get(0)).schema
    assert not filled.field("word").nullable
    assert (filled.field("id").type, filled.field("n").type) == (pa.int32(), pa.int64())
    assert filled.field("first").nullable


def test_steps_and_joins_are_shown() -> None:
    people = cb.View(pa.table({"id": [0, 2], "age": [30, None]}), key="id", name="people")
    view = (
        cb.View(TABLE, key="id")
        .with_columns(lower=col("word").lower())
        .filter((col("id") % 2) == 0)
        .join(people, on="id", prefix="p_")
        .select("id", "lower", "p_age")
    )
    assert view.head(2).to_pylist() == [{"id": 0, "lower": "w0", "p_age": 30}, {"id": 2, "lower": "w2", "p_age": None}]
    assert view.head(2).schema == view.schema
    assert view.schema.field("p_age").nullable
    assert cb.View(TABLE).filter(col("id") < 0).head().num_rows == 0


def test_a_column_that_cannot_be_read_is_in_the_schema_alone() -> None:
    maps = pa.array([[("k", 1)]], pa.map_(pa.utf8(), pa.int64()))
    view = cb.View(pa.table({"a": [1], "m": maps}))
    assert view.schema.names == ["a", "m"]
    assert view.head().to_pylist() == [{"a": 1}]
    assert view.fill(a=0).head().to_pylist() == [{"a": 1}]


def test_a_look_reads_the_first_block_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,word\n" + "".join(f"{i},{'w' * 100}\n" for i in range(200_000)))
    opened = files_without_row_index.open_stream
    read = 0

    class Counted:
        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def read(self, size: int) -> bytes:
            nonlocal read
            found = bytes(self.stream.read(size))
            read += len(found)
            return found

        def close(self) -> None:
            self.stream.close()

    view = cb.View(path)
    monkeypatch.setattr("ctrbox.views.text_in_blocks.open_stream", lambda file: Counted(opened(file)))
    assert view.head(3).num_rows == 3
    assert read < path.stat().st_size / 2
    before = read
    assert view.schema.names == ["id", "word"]
    assert read == before


def test_a_fitted_column_and_a_wrong_count_are_refused() -> None:
    with pytest.raises(cb.errors.PlanError, match="head cannot run operators that are fitted"):
        cb.View(TABLE).with_columns(z=(col("id") * 1.0).standardize()).head()
    for n in (-1, 1.5, True):
        with pytest.raises(cb.errors.PlanError, match="n must be a whole number"):
            cb.View(TABLE).head(n)  # type: ignore[arg-type]


def test_a_plan_says_what_it_reads_of_each_view() -> None:
    people = cb.View(pa.table({"id": [0], "age": [30], "name": ["x"]}), key="id", name="people").fill(age=0)
    log = cb.View(TABLE, key="id", name="log").join(people, on="id")
    plan = cb.compile(log, cb.FeatureSet(sparse={"id": col("id")}, dense={"age": col("age")}), device="cpu")
    assert plan.reads == {"log": ["id"], "people": ["id", "age"]}
    assert "read: age, id" in plan.explain()
    assert "read: id" in plan.explain()
