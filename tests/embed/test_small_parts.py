"""Small parts of embedding tables by direct calls: what is looked up, shared, ranked and put together."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ctrbox as cb
from ctrbox.columns.batch import Ragged
from ctrbox.embed.common_features import _differs, _only, check_common
from ctrbox.embed.keys_looked_up import asked_of_lookup, asked_of_rows
from ctrbox.embed.ssd.folder import (
    described,
    joined,
    keep_beside,
    link,
    locked,
    own_place,
    resident_bytes,
    segments_of,
    warn_of_memory,
)
from ctrbox.embed.unique_keys import Lookup, from_zero
from ctrbox.embed.vectors import prerank
from ctrbox.errors import DataError, PlanError, SourceError


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


# ---- known and unknown keys


@pytest.mark.parametrize(
    ("fields", "keys", "lost", "found"),
    [
        (("a",), ints(5, 0, 7), ints(2), [("a", 2, 1)]),
        (("a",), ints(5, 0, 7), ints(1), [("a", 2, 0)]),
        (("a",), ints(5, 7), ints(), [("a", 2, 0)]),
        (("a", "b"), ints(5, 0, 7, 8), ints(1, 3), [("a", 1, 0), ("b", 2, 1)]),
        (("a", "b"), ints(5, 6, 7, 0), ints(0, 1), [("a", 2, 2), ("b", 1, 0)]),
        (("a", "b"), ints(5, 6, 7, 8), ints(), [("a", 2, 0), ("b", 2, 0)]),
    ],
)
def test_keys_that_were_never_learned_are_counted_by_field(fields: Any, keys: Any, lost: Any, found: Any) -> None:
    assert asked_of_rows(fields, keys, lost) == found


@pytest.mark.parametrize(
    ("lost", "found"),
    [
        (ints(), [("a", 2, 0), ("b", 2, 0)]),
        (ints(0), [("a", 2, 2), ("b", 2, 0)]),
        (ints(2), [("a", 2, 0), ("b", 2, 2)]),
        (ints(1), [("a", 2, 0), ("b", 2, 0)]),  # the null slot is not counted
    ],
)
def test_references_to_keys_that_were_never_learned_are_counted_by_field(lost: Any, found: Any) -> None:
    # Field "a" refers to 5, 0, 5 and field "b" to 0, 7, 7.
    lookup = Lookup(ints(5, 0, 7), np.array([0, 1, 0, 1, 2, 2], np.int32), 3, ("a", "b"), (0, 3, 6), (None, None))
    assert asked_of_lookup(lookup, lost) == found
    plain = Lookup(ints(5, 7), np.array([0, 1], np.int32), 1, ("a", "b"), (0, 1, 2), (None, None))
    assert asked_of_lookup(plain, ints()) == [("a", 1, 0), ("b", 1, 0)]


def test_shows_and_clicks_of_keys_are_those_of_their_rows() -> None:
    inverse = np.array([0, 1, 0, 1, 1, 2], np.int32)
    lookup = Lookup(ints(5, 6, 7), inverse, 2, ("a", "b"), (0, 2, 6), (None, ints(0, 3, 4)))
    shows, clicks = lookup.shown(np.array([1, 0], np.float32))
    assert (shows.tolist(), clicks.tolist()) == ([2.0, 3.0, 1.0], [2.0, 2.0, 0.0])
    assert len(lookup) == 3
    assert from_zero(ints(0, 2)).tolist() == [0, 2]
    assert from_zero(ints(3, 5)).tolist() == [0, 2]


# ---- common features


def test_rows_with_the_keys_of_their_leader_are_told_from_others() -> None:
    #        row     0      1      2    3       4     5
    field = Ragged(ints(9, 1, 2, 1, 2, 1, 1, 3, 5, 9), ints(1, 3, 5, 6, 8, 8, 9))
    first = ints(0, 0, 0, 0, 0, 5)
    assert _differs(field, first).tolist() == [False, False, True, True, True, False]
    kept = _only(field, np.array([True, False, True, False, False, True]))
    assert (kept.values.tolist(), kept.offsets.tolist()) == ([1, 2, 1, 5], [0, 2, 2, 3, 3, 3, 4])


@pytest.mark.parametrize(
    ("fields", "group", "says"),
    [
        ("tags", True, r"common must be a list of fields, such as \['behavior'\], got 'tags'"),
        ([5], True, "common must be a list of fields"),
        (["tag"], True, "common names 'tag', which the model does not read; nearest: 'tags'"),
        (["ad"], True, "common names 'ad', which has one key per row"),
        (
            ["tags"],
            False,
            "common= needs a group, because the rows of a group share these features; add one to the "
            "FeatureSet: cb.FeatureSet",
        ),
    ],
)
def test_only_fields_of_several_keys_are_shared(fields: Any, group: bool, says: str) -> None:
    known = {"tags": True, "ad": False}
    assert check_common(known, ["tags", "tags"], True) == ("tags",)
    assert check_common(known, [], False) == ()
    with pytest.raises(PlanError, match=says):
        check_common(known, fields, group)


# ---- ranking


@pytest.fixture
def ranked(tmp_path: Path) -> cb.tables.PreRank:
    data = {"k": [1, 2, 3, 4], "v": np.array([[1], [3], [3], [2]], np.float32)}
    return cb.tables.PreRank(cb.tables.write_vectors(tmp_path / "v", data, key="k", vector="v"))


@pytest.mark.parametrize(
    ("k", "positions"),
    [(1, [1]), (2, [1, 3]), (3, [1, 3, 4]), (4, [1, 3, 4, 0]), (5, [1, 3, 4, 0]), (400, [1, 3, 4, 0])],
)
def test_the_best_candidates_come_first_and_equal_ones_in_their_order(
    ranked: cb.tables.PreRank, k: int, positions: list[int]
) -> None:
    candidates = ints(1, 2, 9, 3, 4)
    found, scores = ranked.top([2.0], candidates, k)
    assert found.tolist() == positions
    assert scores.tolist() == [{0: 2.0, 1: 6.0, 3: 6.0, 4: 4.0}[place] for place in positions]
    assert (ranked.found, ranked.missing) == (4, 1)
    for user in ([1.0, 2.0], [np.nan]):
        with pytest.raises(DataError, match="expected a user vector of 1 finite floats, got"):
            ranked.top(user, candidates)
    with pytest.raises(PlanError, match="k= must be"):
        ranked.top([1.0], candidates, 0)


def test_candidates_that_are_never_found_are_warned_of_once(
    ranked: cb.tables.PreRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prerank, "FIRST", 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ranked.top([1.0], ints(8, 9))
    with pytest.warns(
        UserWarning, match="none of the first 3 candidates has a vector .* a candidate is 7, a key of the file is 1"
    ):
        ranked.top([1.0], ints(7))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ranked.top([1.0], ints(7))


# ---- folders of tables


def test_parts_are_put_into_one_order() -> None:
    parts = [ints(5, 1), ints(), ints(9, 3)]
    order = np.argsort(np.concatenate(parts))
    assert joined(parts, order).tolist() == [1, 3, 5, 9]
    assert parts == []
    rows = [np.array([[1.0, 2.0]], np.float32), np.array([[3.0, 4.0]], np.float32)]
    assert joined(rows, np.array([1, 0])).tolist() == [[3.0, 4.0], [1.0, 2.0]]


def test_what_a_folder_holds_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (segments_of(tmp_path, 0).name, segments_of(tmp_path, 3).name) == ("segments", "segments-3")
    with pytest.raises(SourceError, match="holds no table, because the file MANIFEST is missing"):
        described(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match="is a file; expected the folder of a Sparse Table"):
        described(tmp_path / "file")
    (tmp_path / "TABLES").write_text("")
    (tmp_path / "checkpoint-1" / "dim-8").mkdir(parents=True)
    with pytest.raises(SourceError, match=f"holds tables of several dims .* they are {tmp_path}/checkpoint-1/dim-8"):
        described(tmp_path)
    assert resident_bytes() > 1 << 20
    monkeypatch.setattr("ctrbox.embed.ssd.folder.os.sysconf", lambda name: 1000 if name == "SC_PHYS_PAGES" else 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_memory(10_000)
    with pytest.warns(UserWarning, match="ram=10,001 bytes is more than the 10,000 bytes of memory"):
        warn_of_memory(10_001)


def test_a_process_keeps_the_tables_of_a_job_beside_them_where_it_was_told_to(tmp_path: Path) -> None:
    place = tmp_path / "table"
    assert own_place(place) == place
    keep_beside("3")
    try:
        assert own_place(place) == tmp_path / "table.shards" / "job-3"
        with cb.SparseTable(place, 2, ram="1MB") as table:
            assert table.path == tmp_path / "table.shards" / "job-3"
            table.pull(ints(1))
        with cb.SparseTable.load(table.path, ram="1MB", read_only=True) as reader:
            assert (reader.path, len(reader)) == (table.path, 1)
    finally:
        keep_beside(None)
    assert own_place(place) == place
    assert not place.exists()


def test_a_folder_is_locked_by_one_that_writes_or_several_that_read(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b"
    writes = locked(place, False)
    assert place.is_dir()
    for shared in (True, False):
        with pytest.raises(
            SourceError, match=r"b is already open in this process or another one; close it there first"
        ):
            locked(place, shared)
    os.close(writes)
    readers = [locked(place, True) for _ in range(2)]
    with pytest.raises(SourceError, match="already open"):
        locked(place, False)
    for reader in readers:
        os.close(reader)
    os.close(locked(place, False))
    (place / "LOCK").unlink()
    assert locked(place, True) == -1  # nobody has opened it to write
    with pytest.raises(SourceError, match=r"cannot open the table in .*none: No such file or directory"):
        locked(tmp_path / "none", True)
    (place / "TABLES").write_text("")
    with pytest.raises(SourceError, match="holds tables of several dims"):
        locked(place, False)
    (place / "MANIFEST").write_text("")  # what a folder with a table holds else is not looked at
    (place / "strange").write_text("")
    os.close(locked(place, False))


def test_a_file_that_cannot_be_linked_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"1234")
    link(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").samefile(tmp_path / "a")

    def refuse(source: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("ctrbox.embed.ssd.folder.os.link", refuse)
    link(tmp_path / "a", tmp_path / "c")
    assert not (tmp_path / "c").samefile(tmp_path / "a")
    assert (tmp_path / "c").read_bytes() == b"1234"


def test_candidates_with_and_without_a_vector_are_counted_over_all_calls(tmp_path: Path) -> None:
    vectors = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]], np.float32)
    file = cb.tables.write_vectors(tmp_path / "v", {"k": [5, 6, 7], "v": vectors}, key="k", vector="v")
    rank = prerank.PreRank(file)
    assert (len(rank), rank.dim, rank.found, rank.missing) == (3, 2, 0, 0)
    for found, missing in ((2, 3), (4, 6)):
        places, scores = rank.top([1.0, 0.5], ints(5, 9, 7, 8, 9), 1)
        assert (places.tolist(), scores.tolist()) == ([2], [3.0])
        assert (rank.found, rank.missing) == (found, missing)
    rows, scores = rank.best([1.0, 0.5], 2, among=ints(0, 1))
    assert (rows.tolist(), scores.tolist()) == ([0, 1], [1.0, 1.0])
