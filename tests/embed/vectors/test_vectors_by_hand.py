"""Vector files and published rows, by direct calls: chunks, boundaries, and the bytes of a file worked out by hand."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import ctrbox as cb
from ctrbox.embed.embedder import Row
from ctrbox.embed.vectors import write_vector_file as vector_write
from ctrbox.embed.vectors.published_table import PublishedTable, PublishedVectors
from ctrbox.embed.vectors.submodels import IMAGE, OTHER, TEXT, kind_of, kind_of_shapes, unfilled
from ctrbox.embed.vectors.vector_file import HEAD, index_at, shard_name, shard_of
from ctrbox.embed.vectors.write_vector_file import _Chunks, check_place
from ctrbox.errors import DataError, PlanError, SourceError, WriteError

F4 = np.dtype("<f4")


# ---- the file


@pytest.mark.parametrize(
    ("rows", "width", "at"), [(0, 1, 64), (1, 1, 72), (2, 1, 72), (3, 1, 80), (1, 3, 80), (2, 3, 88), (10, 3, 184)]
)
def test_the_index_begins_at_a_multiple_of_eight(rows: int, width: int, at: int) -> None:
    assert index_at(rows, width, F4) == at


def test_a_file_has_the_bytes_that_the_page_describes(tmp_path: Path) -> None:
    data = {"k": np.array([9, -4]), "v": np.array([[1.5], [2.5]], np.float32)}
    cb.tables.write_vectors(tmp_path / "v", data, key="k", vector="v")
    rows = [struct.pack("<f", 1.5), struct.pack("<f", 2.5)]
    index = struct.pack("<qqqqII", -4, 9, 1, 0, zlib.crc32(rows[0]), zlib.crc32(rows[1]))
    head = struct.pack("<8sIIIIIIQI", b"CTRVECT\n", 1, 1, 1, 0, 1, 0, 2, zlib.crc32(index))
    head += struct.pack("<I", zlib.crc32(head))
    assert (tmp_path / "v").read_bytes() == head.ljust(64, b"\0") + b"".join(rows) + index


def forged(path: Path, **changed: int) -> None:
    """Change fields of the head, with a checksum that fits."""
    names = ["magic", "version", "kind", "width", "shard", "of", "spare", "rows", "crc"]
    whole = path.read_bytes()
    head = dict(zip(names, HEAD.unpack_from(whole), strict=True)) | changed
    packed = HEAD.pack(*head.values())
    path.write_bytes(packed + struct.pack("<I", zlib.crc32(packed)) + whole[HEAD.size + 4 :])


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"version": 3}, "has format version 3, but this version of CTRBox reads 1 and 2"),
        ({"version": 2}, "is damaged: its header says version 2 and 0 bytes about the encoder"),
        ({"spare": 9}, "is damaged: its header says version 1 and 9 bytes about the encoder"),
        ({"version": 2, "spare": 1 << 17}, "is damaged: its header says version 2 and 131,072 bytes about the encoder"),
        ({"version": 2, "spare": 9}, "is damaged: .* bytes, expected"),
        ({"kind": 4}, "is damaged: its header says kind 4, width 3, shard 0 of 1"),
        ({"kind": 0}, "is damaged: its header says kind 0"),
        ({"width": 0}, "is damaged: its header says kind 1, width 0"),
        ({"width": (1 << 20) + 1}, r"is damaged: its header says kind 1, width 1048577"),
        ({"width": 1 << 20}, "is damaged: it has 384 bytes, expected"),
        ({"shard": 1}, "is damaged: its header says kind 1, width 3, shard 1 of 1"),
        ({"of": 0}, "shard 0 of 0"),
        ({"of": 4097}, "shard 0 of 4097"),
        ({"of": 4096}, "is shard 0 of 4096, with 3 numbers of float32 per row; expected shard 0 of 1"),
        ({"rows": 9}, "is damaged: it has 384 bytes, expected"),
        ({"rows": 11}, "is damaged: it has 384 bytes, expected"),
    ],
)
def test_a_head_that_cannot_be_is_refused(tmp_path: Path, changed: dict[str, int], says: str) -> None:
    path = tmp_path / "v"
    rows = np.arange(30, dtype=np.float32).reshape(10, 3)
    cb.tables.write_vectors(path, {"k": np.arange(1, 11), "v": rows}, key="k", vector="v")
    assert path.stat().st_size == 384
    forged(path, **changed)
    with pytest.raises(SourceError, match=says):
        cb.tables.VectorFile(path)


@pytest.mark.parametrize(
    ("keys", "rows", "good"),
    [
        ([-4, 9], [1, 0], True),
        ([-4, 9], [0, 0], True),
        ([-4, 9], [-1, 0], False),
        ([-4, 9], [0, 2], False),
        ([9, 9], [0, 1], False),
        ([9, -4], [0, 1], False),
    ],
)
def test_an_index_names_rows_that_are_there_by_rising_keys(
    tmp_path: Path, keys: list[int], rows: list[int], good: bool
) -> None:
    path = tmp_path / "v"
    cb.tables.write_vectors(path, {"k": np.array([9, -4]), "v": np.ones((2, 1), np.float32)}, key="k", vector="v")
    sums = path.read_bytes()[-8:]
    index = struct.pack("<4q", *keys, *rows) + sums
    path.write_bytes(path.read_bytes()[: -len(index)] + index)
    forged(path, crc=zlib.crc32(index))
    if good:
        assert cb.tables.VectorFile(path).keys.tolist() == keys
        return
    with pytest.raises(SourceError, match="its index refers to rows that do not exist, or its keys are not in order"):
        cb.tables.VectorFile(path)


def test_a_file_of_64_bytes_is_long_enough_to_be_judged_by_its_first(tmp_path: Path) -> None:
    (tmp_path / "v").write_bytes(b"x" * 63)
    with pytest.raises(SourceError, match="is not a vector file: it has 63 bytes"):
        cb.tables.VectorFile(tmp_path / "v")
    (tmp_path / "v").write_bytes(b"x" * 64)
    with pytest.raises(SourceError, match=r"is not a vector file: it begins with b'xxxxxxxx', expected b'CTRVECT"):
        cb.tables.VectorFile(tmp_path / "v")
    (tmp_path / "d").mkdir()
    with pytest.raises(SourceError, match=r"d holds no vector files; expected names that end in \.ctrvec"):
        cb.tables.VectorFile(tmp_path / "d")
    with pytest.raises(SourceError, match="is a single file, not a folder of shards; remove shard="):
        cb.tables.VectorFile(tmp_path / "v", shard=0)


def test_shards_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    data = {"k": np.arange(1, 41), "v": np.ones((40, 2), np.float32)}
    cb.tables.write_vectors(tmp_path / "two", data, key="k", vector="v", shards=2)
    whole = cb.tables.VectorFile(tmp_path / "two")
    assert (len(whole), whole.of, whole.shard) == (40, 2, None)
    assert repr(whole).endswith("40 x 2 float32, 2 of 2 shards)")
    parts = [cb.tables.VectorFile(tmp_path / "two", shard=shard) for shard in (0, 1)]
    assert len(parts[0]) + len(parts[1]) == 40
    assert repr(parts[1]).endswith(f"{len(parts[1])} x 2 float32, 1 of 2 shards)")
    assert sorted([*parts[0].keys.tolist(), *parts[1].keys.tolist()]) == list(range(1, 41))
    assert len({whole.fingerprint, parts[0].fingerprint, parts[1].fingerprint}) == 3
    for shard in (-1, 2):
        with pytest.raises(PlanError, match="shard"):
            cb.tables.VectorFile(tmp_path / "two", shard=shard)
    first, second = (tmp_path / "two" / shard_name(shard, 2) for shard in (0, 1))
    kept = second.read_bytes()
    second.unlink()
    with pytest.raises(SourceError, match=r"is shard 0 of 2, .*; expected shard 0 of 1"):
        cb.tables.VectorFile(tmp_path / "two")
    second.write_bytes(first.read_bytes())
    with pytest.raises(SourceError, match=r"is shard 0 of 2, .*; expected shard 1 of 2"):
        cb.tables.VectorFile(tmp_path / "two")
    with pytest.raises(SourceError, match=r"is shard 0 of 2, .*; expected shard 1 of 2"):
        cb.tables.VectorFile(tmp_path / "two", shard=1)
    cb.tables.write_vectors(
        tmp_path / "wide", {**data, "v": np.ones((40, 3), np.float32)}, key="k", vector="v", shards=2
    )
    second.write_bytes((tmp_path / "wide" / shard_name(1, 2)).read_bytes())
    with pytest.raises(
        SourceError, match=r"is shard 1 of 2, with 3 numbers of float32 per row; expected shard 1 of 2, 2 numbers"
    ):
        cb.tables.VectorFile(tmp_path / "two")
    second.write_bytes(kept)
    assert len(cb.tables.VectorFile(tmp_path / "two")) == 40


def test_the_shard_of_a_key_never_changes() -> None:
    """Files that exist were written with it: these are splitmix64's numbers."""

    def twin(key: int) -> int:
        key &= 2**64 - 1
        key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
        key = (key ^ (key >> 27)) * 0x94D049BB133111EB & (2**64 - 1)
        return key ^ (key >> 31)

    keys = [1, 2, 3, -1, 2**63 - 1, -(2**63), 123456789]
    for of in (1, 2, 7, 4096):
        assert shard_of(np.array(keys, np.int64), of).tolist() == [twin(key) % of for key in keys]


def test_the_fingerprint_of_many_shards_is_short(tmp_path: Path) -> None:
    data = {"k": np.arange(1, 200), "v": np.ones((199, 1), np.float32)}
    eight = cb.tables.write_vectors(tmp_path / "8", data, key="k", vector="v", shards=8).fingerprint
    nine = cb.tables.write_vectors(tmp_path / "9", data, key="k", vector="v", shards=9).fingerprint
    assert (eight.count("-"), len(eight)) == (7, 8 * 8 + 7 + len(":199x1"))
    assert (nine.count("-"), len(nine)) == (0, 32 + len(":199x1"))


# ---- the writer


@pytest.mark.parametrize(("width", "step"), [(None, 8), (1, 32), (2, 16), (32, 1), (33, 1), (1000, 1)])
def test_vectors_are_read_in_chunks_of_so_many_bytes(
    monkeypatch: pytest.MonkeyPatch, width: int | None, step: int
) -> None:
    monkeypatch.setattr(vector_write, "CHUNK", 128)
    table = pa.table({"k": list(range(1, 21)), "v": [[0.5] * 4] * 20, "n": [1.5] * 20})
    chunks = _Chunks(table, "k", "v")
    assert chunks._step(table, width) == step
    assert [len(keys) for keys, _ in chunks.each(width)] == [min(step, 20 - begin) for begin in range(0, 20, step)]
    assert _Chunks(table, "k", "n")._step(table, None) == 32  # a number is no list; it is refused later
    assert _Chunks(table, "k", "v")._step(table.slice(0, 0), None) == 32
    assert _Chunks(table, "k", "absent")._step(table, None) == 32


def test_a_later_chunk_names_its_rows_by_their_place_in_the_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(vector_write, "CHUNK", 8)  # one row
    for ids, vectors, says in (
        ([1, 2, None], [[1.0, 1.0]] * 3, "the key of row 2 is null"),
        ([1, 2, 0], [[1.0, 1.0]] * 3, "the key of row 2 is 0, which means 'no value'"),
        ([1, 2, 3], [[1.0, 1.0], [1.0, 1.0], None], "'v' of row 2 is null"),
        ([1, 2, 3], [[1.0, 1.0], [1.0, 1.0], [1.0, None]], "'v' of row 2 holds a null"),
        ([1, 2, 3], [[1.0, 1.0], [1.0, 1.0], [1.0]], r"'v' of row 2 \(key 3\) has 1 numbers; expected 2"),
        ([1, 2, 1], [[1.0, 1.0]] * 3, "key 1 has two vectors, in rows 0 and 2"),
    ):
        table = pa.table({"k": pa.array(ids, pa.int64()), "v": pa.array(vectors, pa.list_(pa.float32()))})
        with pytest.raises(DataError, match=says):
            cb.tables.write_vectors(tmp_path / "v", table, key="k", vector="v")
    matrix: Any = {"k": [1, 2, 3], "v": np.array([[1.0, 1.0], [1.0, 1.0], [1.0, np.inf]])}
    with pytest.raises(DataError, match=r"'v' of row 2 \(key 3\) is inf at position 1; expected finite numbers"):
        cb.tables.write_vectors(tmp_path / "v", matrix, key="k", vector="v")


def test_lists_keep_their_rows_where_the_array_is_a_slice(tmp_path: Path) -> None:
    table = pa.table({"k": [1, 2, 3, 4], "v": [[9.0], [1.0], [2.0], [9.0]]}).slice(1, 2)
    file = cb.tables.write_vectors(tmp_path / "v", table, key="k", vector="v")
    assert file.read(file.find(np.array([2, 3]))).tolist() == [[1.0], [2.0]]
    fixed = pa.table({"k": [1, 2, 3], "v": pa.array([[9.0], [1.0], [2.0]], pa.list_(pa.float64(), 1))}).slice(1)
    file = cb.tables.write_vectors(tmp_path / "w", fixed, key="k", vector="v")
    assert file.read(file.find(np.array([2, 3]))).tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize(("token", "fits"), [(1, True), (0, False), (-1, False), (2**31 - 1, True), (2**31, False)])
def test_tokens_are_whole_numbers_of_32_bits_above_0(tmp_path: Path, token: int, fits: bool) -> None:
    data = {"k": [5, 6], "t": [[1], [2, token]]}
    if fits:
        file = cb.tables.write_tokens(tmp_path / "t", data, key="k", tokens="t", width=3)
        assert file.read(file.find(np.array([6, 5]))).tolist() == [[2, token, 0], [1, 0, 0]]
    else:
        with pytest.raises(DataError, match=rf"row 1 \(key 6\) holds token {token}; expected 1 to 2,147,483,647"):
            cb.tables.write_tokens(tmp_path / "t", data, key="k", tokens="t", width=3)


@pytest.mark.parametrize(
    ("data", "options", "says"),
    [
        ({"k": [1], "t": [[1.0]]}, {}, "tokens 't' are float64; expected whole numbers above 0"),
        ({"k": [1], "t": [["a"]]}, {}, "column 't' is list<.*>; expected lists of numbers"),
        ({"k": [1], "t": [5]}, {}, "column 't' is int64; expected lists of numbers"),
        (5, {}, "vectors come from a Parquet file or folder, from Arrow or from a dict of columns, got int"),
        ({"k": [1], "t": [[1]]}, {"width": 0}, "width= must be a whole number from 1 to 1,048,576, got 0"),
        ({"k": [1], "t": [[1]]}, {"shards": 0}, "shards= must be a whole number from 1 to 4,096, got 0"),
        ({"k": [1], "t": [[1]]}, {"key": 5}, "key must name a column or be an expression"),
    ],
)
def test_what_is_no_list_of_tokens_is_refused(tmp_path: Path, data: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        cb.tables.write_tokens(tmp_path / "t", data, **{"key": "k", "tokens": "t", "width": 2, **options})


def test_nothing_but_vectors_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("data")
    with pytest.raises(WriteError, match="the data is read from there; choose another file name for the vectors"):
        check_place(tmp_path / "a.parquet", str(tmp_path / "a.parquet"))
    check_place(tmp_path / "a.parquet", str(tmp_path / "b.parquet"))
    check_place(tmp_path / "none", str(tmp_path / "a.parquet"))
    check_place(tmp_path / "a.parquet", {"k": [1]})
    folder = tmp_path / "vectors"
    folder.mkdir()
    (folder / "00000-of-00001.ctrvec").write_text("old")
    check_place(folder, None)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(WriteError, match=r"it holds notes\.txt, which is not a vector file; choose another folder"):
        check_place(folder, None)


# ---- published rows


def test_a_key_that_was_never_learned_has_its_initial_row() -> None:
    learned = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    table = PublishedTable(np.array([5, 7]), learned, Row(2), init=0.5, seed=3)
    rows, lost = table.pull_told(np.array([7, 6, 5]))
    assert rows[[0, 2]].tolist() == [[3.0, 4.0], [1.0, 2.0]]
    assert lost.tolist() == [1]
    assert rows[1].any()
    assert np.array_equal(table.pull(np.array([6])), rows[[1]])
    twin = cb.MemoryTable(2, init=0.5, seed=3)
    twin.open(Row(2))
    assert np.array_equal(twin.pull(np.array([6])), rows[[1]])
    rows, lost = table.pull_told(np.array([5]))
    assert (rows.tolist(), lost.tolist()) == ([[1.0, 2.0]], [])


@pytest.mark.parametrize(
    ("keys", "rows", "says"),
    [
        ([5, 5], np.ones((2, 2), np.float32), "the rows to publish contain key 5 twice; give each key one row"),
        ([5], np.ones((2, 2), np.float32), r"1 keys have shape \(2, 2\) and type float32; expected"),
        ([5], np.ones((1, 3), np.float32), r"1 keys have shape \(1, 3\) and type float32; expected"),
        ([5], np.ones((1, 2)), r"1 keys have shape \(1, 2\) and type float64; expected"),
    ],
)
def test_rows_that_do_not_fit_their_keys_are_refused(keys: list[int], rows: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        PublishedTable(np.array(keys), rows, Row(2))


class Doubled(torch.nn.Module):
    """Gives twice the first number of an object, and counts the objects it met."""

    met = 0

    def forward(self, objects: torch.Tensor) -> torch.Tensor:
        Doubled.met += len(objects)
        return objects[:, :1].float() * 2


def vectors(**options: Any) -> PublishedVectors:
    published = np.array([[0.5]], np.float32)
    return PublishedVectors(np.array([1]), published, Doubled(), **{"width": 2, **options})


def test_objects_that_were_not_published_are_embedded_once() -> None:
    table, keys = vectors(), np.array([1, 2, 0, 3])
    rows = np.array([[9, 9], [2, 0], [8, 8], [3, 0]], np.float32)
    found, ran = table.embed(keys, rows)
    assert ({key: vector.tolist() for key, vector in found.items()}, ran) == ({2: [4.0], 3: [6.0]}, 2)
    assert (table.changes, table.remembered) == (1, 2)
    again, ran = table.embed(keys, rows)
    assert (again[2].tolist(), ran, table.changes) == ([4.0], 0, 1)
    rows[1, 0] = 5  # other content: embedded anew
    found, ran = table.embed(keys, rows)
    assert (found[2].tolist(), found[3].tolist(), ran, table.changes) == ([10.0], [6.0], 1, 2)
    found_rows, without, unpublished = table.look_up(np.array([1, 2, 3, 4, 0]), {3: np.array([7.0], np.float32)})
    assert found_rows.ravel().tolist() == [0.5, 10.0, 7.0, 0.0, 0.0]
    assert (without.tolist(), unpublished.tolist()) == ([4], [2, 3, 4, 0])
    assert table.pull(np.array([3, 2])).ravel().tolist() == [6.0, 10.0]
    found_rows, without, unpublished = table.look_up(np.array([1]))
    assert (found_rows.tolist(), len(without), len(unpublished)) == ([[0.5]], 0, 0)


def test_the_objects_remembered_longest_ago_are_forgotten_first() -> None:
    table = vectors(kept=2)
    one = np.array([[1, 0]], np.float32)
    for key in (2, 3):
        table.embed(np.array([key]), one)
    assert table.remembered == 2
    table.look_up(np.array([2]))  # used again: 3 is the older now
    table.embed(np.array([4]), one)
    assert table.remembered == 2
    assert table.look_up(np.array([2, 3, 4]))[1].tolist() == [3]
    table.embed(np.array([2]), one)
    table.embed(np.array([5]), one)
    assert table.look_up(np.array([2, 4, 5]))[1].tolist() == [4]
    assert vectors(kept=0).kept == 1
    assert vectors(kept=10**9).kept == (64 << 20) // 196


@pytest.mark.parametrize(
    ("objects", "vocabulary", "says"),
    [
        ([[1.0, 2.0, 3.0]], 0, "an object has 3 numbers; expected 2"),
        ([1.0, 2.0], 0, r"an object has shape \(2,\) numbers; expected 2"),
        ([[1.0, np.inf]], 0, "an object holds a number that is not finite as float32"),
        ([[1.0, 1e39]], 0, "an object holds a number that is not finite as float32"),
        ([[1, -1]], 9, "an object must hold tokens, whole numbers from 0 to 9"),
        ([[1, 10]], 9, "an object must hold tokens, whole numbers from 0 to 9"),
        ([[1.0, 2.0]], 9, "an object must hold tokens, whole numbers from 0 to 9"),
    ],
)
def test_objects_that_the_sub_model_cannot_take_are_refused(objects: Any, vocabulary: int, says: str) -> None:
    with pytest.raises(DataError, match=says):
        vectors(vocabulary=vocabulary).checked(objects)


def test_objects_come_as_the_sub_model_takes_them() -> None:
    made = vectors().checked([[1, 2.5]])
    assert (made.dtype.name, made.tolist()) == ("float32", [[1.0, 2.5]])
    made = vectors(vocabulary=9).checked([[0, 9]])
    assert (made.dtype.name, made.tolist()) == ("int32", [[0, 9]])
    assert vectors(vocabulary=9).checked(np.empty((0, 2), np.int64)).shape == (0, 2)
    with pytest.raises(
        DataError, match="the sub-model of this version is a user-defined class, which the server cannot run"
    ):
        PublishedVectors(np.array([1]), np.ones((1, 1), np.float32), None, width=2).checked([[1, 2]])
    with pytest.raises(DataError, match="the sub-model's vector of an object is not finite"):
        vectors().embed(np.array([2]), np.array([[3e38, 0]], np.float32))


@pytest.mark.parametrize(("name", "kind"), [("0.weight", IMAGE), ("tokens.weight", TEXT), ("net.weight", OTHER)])
def test_a_submodel_is_known_by_the_names_of_its_weights(name: str, kind: str) -> None:
    assert kind_of_shapes({name: (3, 2)}) == kind


def test_a_submodel_of_ours_is_known_by_its_class_and_its_parts() -> None:
    image, text = cb.tables.ImageEmbedding(5, (4, 3), 2), cb.tables.TextEmbedding(7, 3, 2)
    assert [kind_of(one) for one in (image, text)] == [IMAGE, TEXT]
    for kind, one in ((IMAGE, image), (TEXT, text)):
        shapes = {name: tuple(weight.shape) for name, weight in one.state_dict().items()}
        assert str(unfilled(kind, shapes)) == str(one)
        other = TEXT if kind == IMAGE else IMAGE
        with pytest.raises(DataError, match=f"these are not the weights of a sub-model of kind {other!r}: "):
            unfilled(other, shapes)
        with pytest.raises(
            DataError, match=rf"weight 'more' of a sub-model of kind {kind!r} has shape \(1,\), expected None"
        ):
            unfilled(kind, {**shapes, "more": (1,)})
    assert kind_of(cb.tables.ImageEmbedding(5, (), 2)) == IMAGE
    assert kind_of(torch.nn.Sequential(*image)) == OTHER
    image[1] = torch.nn.PReLU(1)
    assert kind_of(image) == OTHER
    text.between = torch.nn.Tanh()
    assert kind_of(text) == OTHER
    linear = [part for part in cb.tables.ImageEmbedding(5, (4,), 2) if isinstance(part, torch.nn.Linear)]
    assert [part.bias.tolist() for part in linear] == [[0.0] * 4, [0.0] * 2]
    assert all(part.weight.abs().max() <= (6 / sum(part.weight.shape)) ** 0.5 for part in linear)
