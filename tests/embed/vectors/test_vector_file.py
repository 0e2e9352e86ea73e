"""Vector files against a plain dict, from every kind of source; what is refused, and what damage does."""

from __future__ import annotations

import os
import re
import struct
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import _native, col
from ctrbox.embed.vectors import write_vector_file as vector_write
from ctrbox.embed.vectors.vector_file import HEAD, ROWS_AT, _Shard, shard_of
from ctrbox.errors import DataError, PlanError, SourceError

KEYS = st.integers(-(2**63), 2**63 - 1).filter(bool)


@settings(max_examples=60, deadline=None)
@given(
    keys=st.lists(KEYS, min_size=1, max_size=40, unique=True),
    others=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=10),
    width=st.integers(1, 7),
    dtype=st.sampled_from(["float32", "float16"]),
    shards=st.sampled_from([None, 1, 3]),
    seed=st.integers(0, 99),
)
def test_a_file_is_a_dict(
    keys: list[int], others: list[int], width: int, dtype: str, shards: int | None, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((len(keys), width)).astype(dtype).astype(np.float32)
    twin = dict(zip(keys, rows, strict=True))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(vector_write, "CHUNK", 4 * width * 3)  # three rows
        path = Path(folder) / "v"
        cb.tables.write_vectors(path, {"k": np.array(keys), "v": rows}, key="k", vector="v", dtype=dtype, shards=shards)
        file = cb.tables.VectorFile(path)
        assert (len(file), file.width, file.verify()) == (len(keys), width, len(keys))
        asked = np.array([*others, *rng.permutation(np.array(keys)), *others], np.int64)
        places = file.find(asked)
        assert [p >= 0 for p in places] == [int(k) in twin for k in asked]
        there = places >= 0
        got = file.read(places[there])
        assert np.array_equal(got, np.array([twin[int(k)] for k in asked[there]], np.float32).reshape(-1, width))
        file.touch(places[there])
        assert set(file.keys.tolist()) == set(keys)
        if shards == 3:
            for number in range(3):
                one = cb.tables.VectorFile(path, shard=number)
                mine = shard_of(asked, 3) == number
                assert np.array_equal(one.find(asked) >= 0, there & mine)
                assert np.array_equal(one.read(one.find(asked[there & mine])), file.read(places[there & mine]))


def test_shards_are_even_for_keys_in_steps() -> None:
    for step in (1, 2, 1024, 2**40):
        counts = np.bincount(shard_of(np.arange(1, 8001) * step, 8), minlength=8)
        assert counts.min() > 850


@pytest.mark.parametrize("kind", ["fixed", "list", "large", "float64", "stream", "parquet", "folder"])
def test_every_source_gives_the_same_bytes(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(1)
    ids, rows = np.arange(50) * 3 + 1, rng.standard_normal((50, 6)).astype(np.float32)
    cb.tables.write_vectors(tmp_path / "numpy", {"id": ids, "v": rows}, key="id", vector="v")
    flat = pa.array(rows.reshape(-1).astype(np.float64 if kind == "float64" else np.float32))
    if kind == "fixed":
        column: Any = pa.FixedSizeListArray.from_arrays(flat, 6)
    else:
        column = pa.LargeListArray if kind == "large" else pa.ListArray
        column = column.from_arrays(pa.array(np.arange(51) * 6, pa.int64() if kind == "large" else pa.int32()), flat)
    data: Any = pa.table({"id": ids, "v": column})
    if kind == "stream":
        data = pa.RecordBatchReader.from_batches(data.schema, data.to_batches(7))
    elif kind == "parquet":
        pq.write_table(data, tmp_path / "v.parquet", row_group_size=9)
        data = tmp_path / "v.parquet"
    elif kind == "folder":
        for part in range(2):
            (tmp_path / "in").mkdir(exist_ok=True)
            pq.write_table(data.slice(25 * part, 25), tmp_path / "in" / f"{part}.parquet")
        data = str(tmp_path / "in")
    cb.tables.write_vectors(tmp_path / "other", data, key="id", vector="v")
    assert (tmp_path / "other").read_bytes() == (tmp_path / "numpy").read_bytes()


def test_an_expression_gives_the_keys_of_a_plan(tmp_path: Path) -> None:
    log = pa.table({"id": [1, 2, 3], "ad": ["a", "b", "c"], "clicked": [0, 1, 0]})
    key = col("ad").key(space="image")
    plan = cb.compile(cb.View(log, key="id"), cb.FeatureSet(label=col("clicked"), sparse={"image": key}))
    vectors = {"ad": np.array(["c", "a", "b"]), "v": np.array([[3.0], [1.0], [2.0]], np.float32)}
    file = cb.tables.write_vectors(tmp_path / "v", vectors, key=key, vector="v")
    (batch,) = plan.batches(3)
    assert file.read(file.find(batch.sparse["image"].values)).ravel().tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(PlanError, match=r"column 'ad', given as key=, has the type string; .*key=col\('ad'\)\.key"):
        cb.tables.write_vectors(tmp_path / "w", vectors, key="ad", vector="v")


@pytest.mark.parametrize("options", [{}, {"dtype": "float16"}, {"shards": 2}])
def test_a_key_without_a_row_has_no_vector_to_read(tmp_path: Path, options: dict[str, Any]) -> None:
    data = {"id": [1, 2, 3], "v": [[1.0], [2.0], [3.0]]}
    file = cb.tables.write_vectors(tmp_path / "f", data, key="id", vector="v", **options)
    with pytest.raises(DataError, match=r"has no row at place -1; expected places from 0 to 2\. find\(\) returns -1"):
        file.read(file.find(np.array([2, 9])))
    with pytest.raises(DataError, match="has no row at place 3"):
        file.read(np.array([0, 3]))
    assert file.read(file.find(np.array([3, 1]))).tolist() == [[3], [1]]
    assert file.read(np.empty(0, np.int64)).shape == (0, 1)


def test_tokens_end_with_zeros(tmp_path: Path) -> None:
    data = {"id": [1, 2, 3], "t": [[5, 6], [], [7, 8, 9, 10]]}
    with pytest.raises(
        DataError,
        match=r"'t' of row 2 \(key 3\) has 4 tokens; expected at most 3: raise width=, or pass cut=True to shorten such lists",
    ):
        cb.tables.write_tokens(tmp_path / "t", data, key="id", tokens="t", width=3)
    file = cb.tables.write_tokens(tmp_path / "t", data, key="id", tokens="t", width=3, cut=True)
    assert file.tokens
    assert file.read(file.find(np.array([3, 1, 2]))).tolist() == [[7, 8, 9], [5, 6, 0], [0, 0, 0]]
    with pytest.raises(DataError, match=r"row 1 \(key 2\) holds token 0"):
        cb.tables.write_tokens(tmp_path / "u", {"id": [1, 2], "t": [[1], [0]]}, key="id", tokens="t", width=3)


NAN, INF = float("nan"), float("inf")
LISTS = pa.list_(pa.float32())


@pytest.mark.parametrize(
    ("ids", "vectors", "options", "message"),
    [
        ([1, 2], [[1.0, 2.0], [1.0]], {}, r"'v' of row 1 \(key 2\) has 1 numbers; expected 2"),
        ([1, 2], [[1.0], [2.0]], {"width": 3}, r"'v' of row 0 \(key 1\) has 1 numbers; expected 3"),
        ([1, 7], [[1.0, 2.0], [1.0, NAN]], {}, r"'v' of row 1 \(key 7\) is nan at position 1; expected finite"),
        ([1, 7], [[1.0], [-INF]], {}, r"row 1 \(key 7\) is -inf at position 0"),
        ([1], [[70000.0]], {"dtype": "float16"}, r"row 0 \(key 1\) holds 70000\.0 at position 0, which float16 cannot"),
        ([5, 1, 5], [[1.0], [2.0], [3.0]], {}, "key 5 has two vectors, in rows 0 and 2"),
        ([1, 0], [[1.0], [2.0]], {}, "the key of row 1 is 0, which means 'no value'"),
        ([1, None], [[1.0], [2.0]], {}, "the key of row 1 is null"),
        ([1, 2], [[1.0], None], {}, "'v' of row 1 is null"),
        ([1, 2], [[1.0, 2.0], [2.0, None]], {}, "'v' of row 1 holds a null"),
        ([], [], {}, "has no rows"),
    ],
)
def test_bad_vectors_are_refused_by_row_and_key(
    tmp_path: Path, ids: list[Any], vectors: list[Any], options: dict[str, Any], message: str
) -> None:
    (tmp_path / "v").write_text("before")
    table = pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array(vectors, LISTS)})
    with pytest.raises(DataError, match=message):
        cb.tables.write_vectors(tmp_path / "v", table, key="id", vector="v", **options)
    assert [p.name for p in tmp_path.iterdir()] == ["v"]  # nothing half-written
    assert (tmp_path / "v").read_text() == "before"


def test_names_that_are_not_there_are_refused(tmp_path: Path) -> None:
    data = {"ad_id": [1], "image": [[1.0]]}
    with pytest.raises(PlanError, match="no column 'imge'; nearest: 'image'"):
        cb.tables.write_vectors(tmp_path / "v", data, key="ad_id", vector="imge")
    with pytest.raises(PlanError, match="no column 'adid'; nearest: 'ad_id'"):
        cb.tables.write_vectors(tmp_path / "v", data, key="adid", vector="image")
    with pytest.raises(PlanError, match="nearest: 'float16'"):
        cb.tables.write_vectors(tmp_path / "v", data, key="ad_id", vector="image", dtype="float6")
    with pytest.raises(DataError, match="2 keys were given for 3 vectors"):
        cb.tables.write_vectors(tmp_path / "v", {"a": [1, 2], "v": np.ones((3, 1))}, key="a", vector="v")
    with pytest.raises(SourceError, match="cannot read"):
        cb.tables.write_vectors(tmp_path / "v", tmp_path / "nothing.parquet", key="a", vector="v")


def small(path: Path, shards: int | None = None) -> cb.tables.VectorFile:
    rows = np.arange(30, dtype=np.float32).reshape(10, 3)
    return cb.tables.write_vectors(path, {"k": np.arange(1, 11), "v": rows}, key="k", vector="v", shards=shards)


@pytest.mark.parametrize(("place", "number"), [("row", -5), ("row", 10**9), ("key", 10**9)])
def test_an_index_that_is_forged_with_its_checksums(tmp_path: Path, place: str, number: int) -> None:
    path = tmp_path / "v"
    small(path)
    whole = bytearray(path.read_bytes())
    index = -(-(ROWS_AT + 10 * 12) // 8) * 8
    struct.pack_into("<q", whole, index + (80 if place == "row" else 0), number)
    struct.pack_into("<I", whole, HEAD.size - 4, zlib.crc32(whole[index:]))
    struct.pack_into("<I", whole, HEAD.size, zlib.crc32(whole[: HEAD.size]))
    path.write_bytes(whole)
    with pytest.raises(SourceError, match="rows that do not exist, or its keys are not in order"):
        cb.tables.VectorFile(path)


def test_no_damage_goes_unseen(tmp_path: Path) -> None:
    path = tmp_path / "v"
    size = small(path).nbytes
    whole = path.read_bytes()
    first_of_index = -(-(ROWS_AT + 10 * 12) // 8) * 8
    for at in range(size):
        if 48 <= at < ROWS_AT:
            continue  # behind the head: not used
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
        if ROWS_AT <= at < ROWS_AT + 120:
            row = (at - ROWS_AT) // 12
            file = cb.tables.VectorFile(path)
            file.read(file.find(np.array([(row + 1) % 10 + 1])))  # others can be read
            with pytest.raises(SourceError, match=rf"row {row} \(key {row + 1}\) does not match"):
                file.read(file.find(np.array([row + 1])))
            with pytest.raises(SourceError):
                file.verify()
        elif at >= first_of_index or at < ROWS_AT:
            with pytest.raises(SourceError, match=r"damaged|not a vector file|version"):
                cb.tables.VectorFile(path)
    for length in (0, 10, 63, 64, 100, size - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(SourceError):
            cb.tables.VectorFile(path)


def test_a_file_cut_off_while_it_is_open_is_an_error_and_no_signal(tmp_path: Path) -> None:
    rows = np.ones((3000, 64), np.float32)
    file = cb.tables.write_vectors(tmp_path / "v", {"k": np.arange(1, 3001), "v": rows}, key="k", vector="v")
    places = file.find(np.array([3000]))
    with (tmp_path / "v").open("rb+") as written:
        written.truncate(4096)
    for touch in (
        lambda: file.read(places),
        lambda: file.find(np.array([1])),
        file.verify,
        lambda: file.keys,
        lambda: cb.tables.VectorFile(tmp_path / "v"),
    ):
        with pytest.raises(
            SourceError, match=r"was truncated while it was open: it has 4,096 bytes|damaged: it has 4,096 bytes"
        ):
            touch()


def test_a_file_that_lost_its_last_byte_while_it_was_open_is_refused(tmp_path: Path) -> None:
    rows = np.ones((3, 2), np.float32)
    file = cb.tables.write_vectors(tmp_path / "v", {"k": np.arange(1, 4), "v": rows}, key="k", vector="v")
    size = (tmp_path / "v").stat().st_size
    os.truncate(tmp_path / "v", size - 1)  # the pages of all rows are still there
    with pytest.raises(SourceError) as met:
        file.find(np.array([1]))
    assert str(met.value) == (
        f"{tmp_path / 'v'} was truncated while it was open: it has {size - 1} bytes and had {size} when it was opened; "
        "replace it by renaming a complete file over it, and open it again"
    )


def read_while_it_is_cut(path: Path, what: str, rest: int, grown: bool) -> str:
    """Cut the file directly after the check before a read; return the error of the read."""
    file = cb.tables.VectorFile(path)
    places = file.find(np.array([3000]))
    if what == "read again":
        file.read(places)  # so that the checksum of the row is not computed again
    checked, shard = _Shard.check_unchanged, file._shards[0]
    whole = [True]

    def then_cut(self: _Shard) -> None:
        checked(self)
        if whole:
            whole.clear()
            os.truncate(path, rest)
            if grown:
                os.truncate(path, shard.size)

    _Shard.check_unchanged = then_cut  # type: ignore[method-assign]
    reads: dict[str, Any] = {"find": lambda: file.find(np.array([1])), "verify": file.verify, "keys": lambda: file.keys}
    try:
        reads.get(what, lambda: file.read(places))()
    except SourceError as error:
        return str(error)
    return "nobody noticed"


@pytest.mark.parametrize("what", ["find", "read", "read again", "verify", "keys"])
@pytest.mark.parametrize(("rest", "grown"), [(0, False), (100, False), (4196, True)])
def test_a_file_cut_in_the_moment_of_a_read_is_an_error_and_no_signal(
    tmp_path: Path, what: str, rest: int, grown: bool
) -> None:
    """In a process forked for it, which a SIGBUS would end."""
    rows = np.ones((3000, 64), np.float32)
    cb.tables.write_vectors(tmp_path / "v", {"k": np.arange(1, 3001), "v": rows}, key="k", vector="v")
    child = os.fork()
    if not child:
        try:
            (tmp_path / "told").write_text(read_while_it_is_cut(tmp_path / "v", what, rest, grown))
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    told = (tmp_path / "told").read_text()
    assert re.search(r"v was (truncated|modified) while it was open", told), told


def test_a_file_that_is_written_to_while_it_is_open_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "v"
    rows = np.ones((3, 8), np.float32)
    file = cb.tables.write_vectors(path, {"k": np.arange(1, 4), "v": rows}, key="k", vector="v")
    places = file.find(np.array([1, 2, 3]))
    assert file.read(places).sum() == 24  # every row was checked; none is checked again
    facts = path.stat()
    with path.open("rb+") as written:
        written.seek(ROWS_AT)
        written.write(np.full(8, 7, np.float32).tobytes())
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))  # whatever the resolution of the clock
    for touch in (lambda: file.read(places), lambda: file.find(np.array([1])), lambda: file.keys):
        with pytest.raises(SourceError, match="was modified while it was open"):
            touch()


def test_a_file_that_another_was_renamed_over_is_read_as_it_was(tmp_path: Path) -> None:
    data = {"k": np.arange(1, 4), "v": np.ones((3, 8), np.float32)}
    file = cb.tables.write_vectors(tmp_path / "v", data, key="k", vector="v")
    cb.tables.write_vectors(tmp_path / "v", {**data, "v": data["v"] * 2}, key="k", vector="v")
    assert file.read(file.find(np.array([1, 2, 3]))).sum() == 24


def test_fingerprint_covers_every_shard(tmp_path: Path) -> None:
    keys = np.arange(1, 1001)
    last = keys[shard_of(keys, 12) == 11][0]
    prints = []
    for change in (0.0, 1.0):
        rows = np.zeros((1000, 2), np.float32)
        rows[last - 1] = change
        file = cb.tables.write_vectors(tmp_path / f"v{change}", {"k": keys, "v": rows}, key="k", vector="v", shards=12)
        prints.append(file.fingerprint)
    assert prints[0] != prints[1]


def test_parquet_that_changes_while_vectors_are_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "images.parquet"
    rows = pa.table({"id": np.arange(1, 2001), "v": pa.array(list(np.ones((2000, 4), np.float32)))})
    pq.write_table(rows, path)
    monkeypatch.setattr(vector_write, "CHUNK", 1600)
    kept = vector_write._Chunks._keys

    def keys(self: Any, table: pa.Table, first: int) -> Any:
        if first:
            path.write_bytes(path.read_bytes())
        return kept(self, table, first)

    monkeypatch.setattr(vector_write._Chunks, "_keys", keys)
    with pytest.raises(SourceError, match=r"images\.parquet changed after it was opened"):
        cb.tables.write_vectors(tmp_path / "v", path, key="id", vector="v")
    assert not (tmp_path / "v").exists()


def test_vectors_of_a_table_of_delta_lake_are_refused(tmp_path: Path) -> None:
    (tmp_path / "images" / "_delta_log").mkdir(parents=True)
    pq.write_table(pa.table({"id": [1], "v": [[1.0]]}), tmp_path / "images" / "a.parquet")
    with pytest.raises(SourceError, match="images is a table of Delta Lake"):
        cb.tables.write_vectors(tmp_path / "v", tmp_path / "images", key="id", vector="v")


def test_only_vectors_are_written_over(tmp_path: Path) -> None:
    small(tmp_path / "a", shards=2)
    small(tmp_path / "a", shards=3)
    (tmp_path / "a" / "thesis.txt").write_text("years of work")
    with pytest.raises(cb.errors.WriteError, match=r"holds thesis\.txt, which is not a vector file; choose"):
        small(tmp_path / "a", shards=2)
    assert (tmp_path / "a" / "thesis.txt").read_text() == "years of work"
    pq.write_table(pa.table({"id": [1], "v": [[1.0]]}), tmp_path / "v.parquet")
    with pytest.raises(cb.errors.WriteError, match="the data is read from there; choose another file name for"):
        cb.tables.write_vectors(tmp_path / "v.parquet", tmp_path / "v.parquet", key="id", vector="v")
    assert pq.read_table(tmp_path / "v.parquet").num_rows == 1


def test_shards_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    small(tmp_path / "a", shards=3)
    small(tmp_path / "b", shards=2)
    with pytest.raises(PlanError, match="shard= must be a whole number from 0 to 2"):
        cb.tables.VectorFile(tmp_path / "a", shard=3)
    (tmp_path / "a" / "00001-of-00003.ctrvec").unlink()
    with pytest.raises(SourceError, match="is shard 0 of 3"):
        cb.tables.VectorFile(tmp_path / "a")
    (tmp_path / "b" / "00000-of-00002.ctrvec").replace(tmp_path / "a" / "00001-of-00003.ctrvec")
    with pytest.raises(SourceError, match=r"is shard 0 of 2.*expected shard 1 of 3"):
        cb.tables.VectorFile(tmp_path / "a")
    with pytest.raises(SourceError, match="is a single file, not a folder of shards"):
        cb.tables.VectorFile(small(tmp_path / "v").path, shard=0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="holds no vector files"):
        cb.tables.VectorFile(tmp_path / "empty")


@pytest.mark.parametrize("width", [0, 1, 7, 15, 16, 63, 64, 65, 1000])
def test_checksums_of_rows_are_those_of_zlib(width: int) -> None:
    records = np.random.default_rng(width).integers(0, 256, (5, width + 4), np.uint8)
    for rows in (records[:, :width], np.ascontiguousarray(records[:, :width]), records[:0, :width]):
        assert _native.row_checksums(rows).tolist() == [zlib.crc32(row.tobytes()) for row in rows]
    if width > 1:
        with pytest.raises(ValueError, match="must be contiguous in memory"):
            _native.row_checksums(records[:, :width][:, ::-1])
