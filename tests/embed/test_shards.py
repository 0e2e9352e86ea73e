"""How a table is split over processes: what each shard is made of, and which rows it takes from what was saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ctrbox as cb
from ctrbox.embed import shards
from ctrbox.embed.embedder import Row
from ctrbox.embed.shards import Spec, added_up, is_on_disk, loaded, places_by_shard, restore_shard, shard_path
from ctrbox.embed.ssd.saved_parts import TableParts
from ctrbox.embed.vectors.published_table import PublishedTable
from ctrbox.embed.vectors.vector_file import shard_of
from ctrbox.errors import DataError, PlanError

MB = 1 << 20
KEYS = np.arange(1, 200, dtype=np.int64) * 7919


def test_each_server_has_its_share_of_the_budget_and_all_settings(tmp_path: Path) -> None:
    kept: dict[str, Any] = {
        "optimizer": cb.optim.SGD(lr=0.5),
        "linear": cb.Adagrad(lr=0.25),
        "init": 0.5,
        "seed": 7,
        "counters": cb.tables.Counters(decay=0.5),
        "admission": None,
        "nonfinite": "skip",
    }
    table = cb.MemoryTable(3, budget=10 * MB + 3, **kept)
    spec = Spec.of(table, 4)
    assert spec == Spec(cb.MemoryTable, Row(3), None, kept, (10 * MB + 3) // 4, takes_shows=True)
    assert Spec.of_rank(table, 4) == spec
    made = spec.make(1, 4)
    assert (made.budget, made.row, made.optimizer, made.seed) == ((10 * MB + 3) // 4, Row(3), kept["optimizer"], 7)
    assert Spec(cb.MemoryTable, Row(2, linear=True), None).make(0, 1).row == Row(2, linear=True)

    of_disk: dict[str, Any] = {"policy": "lfu", "segment_bytes": 1 << 17, "compaction_mb_per_s": 9}
    disk = cb.SparseTable(tmp_path / "t", 3, ram=8 * MB + 1, **(kept | of_disk | {"counters": None}))
    spec = Spec.of(disk, 2)
    assert spec == Spec(
        cb.SparseTable, Row(3), tmp_path / "t", kept | of_disk | {"counters": None}, 4 * MB, takes_shows=False
    )
    left = tmp_path / "t.shards" / "00001-of-00002"
    left.mkdir(parents=True)
    (left / "old").write_text("of an earlier training")
    with spec.make(1, 2) as shard:
        assert (shard.path, shard.ram, shard.policy) == (left, 4 * MB, "lfu")
        assert not (left / "old").exists()
    disk.close()


def test_a_model_server_reads_the_shard_of_its_file_where_the_file_is_split_alike(tmp_path: Path) -> None:
    data = {"k": np.arange(1, 41), "v": np.ones((40, 2), np.float32)}
    file = cb.tables.write_vectors(tmp_path / "two", data, key="k", vector="v", shards=2)
    torch.manual_seed(0)
    server = cb.tables.ModelServer(
        file, torch.nn.Linear(2, 3), budget=1001, block=9, missing="error", recompute=True, seed=4, nonfinite="skip"
    )
    server.misses.reads = "ids. "
    spec = Spec.of(server, 2)
    assert (spec.kind, spec.row, spec.path, spec.budget) == (cb.tables.ModelServer, Row(3), tmp_path / "two", 500)
    assert spec.options == {
        "submodel": server.submodel,
        "optimizer": server.optimizer,
        "missing": "error",
        "block": 9,
        "recompute": True,
        "seed": 4,
        "nonfinite": "skip",
    }
    for shard, of, mine in ((1, 2, 1), (0, 2, 0), (0, 1, None), (2, 3, None)):
        made = spec.make(shard, of)
        assert (made.data.shard, made.budget, made.misses.reads) == (mine, 500, "ids. ")
    assert len(spec.make(0, 2)) + len(spec.make(1, 2)) == 40 == len(spec.make(0, 3))


def test_what_cannot_be_split_is_refused() -> None:
    published = PublishedTable(np.array([1]), np.ones((1, 2), np.float32), Row(2))
    with pytest.raises(PlanError) as told:
        Spec.of(published, 2)
    assert str(told.value) == (
        "a PublishedTable cannot be split over servers; use cb.MemoryTable, cb.SparseTable or cb.tables.ModelServer"
    )
    with pytest.raises(PlanError, match="is a dense optimizer: every step changes all rows of the table"):
        Spec.of(cb.MemoryTable(2, optimizer=cb.optim.Adam(dense=True)), 2)


def test_places_of_keys_stand_by_shard_in_their_order() -> None:
    assert [places.tolist() for places in places_by_shard(KEYS, 1)] == [list(range(len(KEYS)))]
    for of in (2, 5):
        home = shard_of(KEYS, of)
        assert [p.tolist() for p in places_by_shard(KEYS, of)] == [
            np.flatnonzero(home == k).tolist() for k in range(of)
        ]
    assert [p.tolist() for p in places_by_shard(KEYS[:0], 2)] == [[], []]


def test_gradients_of_one_worker_stay_as_they_are_and_those_of_several_are_added_up() -> None:
    one, row = np.array([5, 3]), np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    keys, values = added_up([one], [row])
    assert keys is one
    assert values is row
    keys, values = added_up([one, np.array([4, 5])], [row, row * 10])
    assert (keys.tolist(), values.tolist()) == ([3, 4, 5], [[3, 4], [10, 20], [31, 42]])


def saved_in_shards(folder: Path, of: int) -> list[np.ndarray]:
    """Save a table on disk in shards; return what the whole table exports."""
    folder.mkdir()
    rows = np.sin(np.arange(2 * len(KEYS), dtype=np.float32)).reshape(-1, 2)
    whole = cb.MemoryTable(2)
    whole.push(KEYS, rows)
    for shard in range(of):
        mine = shard_of(KEYS, of) == shard
        with cb.SparseTable(folder.parent / f"{shard}", 2, ram="1MB") as made:
            made.push(KEYS[mine], rows[mine])
            made.save(shard_path(folder, shard, of))
    return list(whole.export())


@pytest.mark.parametrize("written", [7, 65_536])
def test_rows_of_other_shards_are_written_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    monkeypatch.setattr(shards, "WRITTEN", written)
    keys, rows, states = saved_in_shards(tmp_path / "saved", 2)
    with cb.SparseTable(tmp_path / "t", 2, ram="1MB") as table:
        restore_shard(table, tmp_path / "saved", 1, 3)
        mine = shard_of(keys, 3) == 1
        for found, expected in zip(table.export(), (keys, rows, states), strict=True):
            assert np.array_equal(found, expected[mine])


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("kind", ["memory", "sparse"])
def test_a_table_without_optimizers_of_its_own_takes_those_of_shards_too(tmp_path: Path, kind: str, held: bool) -> None:
    fast, slow, keys = cb.Adagrad(lr=0.5, initial=1), cb.Adagrad(lr=0.1), np.arange(1, 40)

    def made(name: str, **options: Any) -> Any:
        if kind == "memory":
            return cb.MemoryTable(2, **options)
        return cb.SparseTable(tmp_path / name, 2, ram="1MB", **options)

    for of in (1, 3):
        saved = tmp_path / f"saved-{of}"
        for shard, at in enumerate(places_by_shard(keys, of)):
            part = made(f"part-{of}-{shard}", optimizer=fast)
            part.pull(keys[at])
            saved.mkdir(exist_ok=True)
            part.save(shard_path(saved, shard, of))
        for name, options, expected in (("own", {"optimizer": slow}, slow), ("none", {}, fast)):
            table = made(f"{name}-{of}", **options)
            if held:
                table.pull(np.array([99]))
            restore_shard(table, saved)
            assert (table.optimizer, table.linear) == (expected, expected)
            assert len(table) == len(keys)
            # As a rank or a server makes its part of such a table.
            part = Spec.of(made(f"spec-{name}-{of}", **options), 2).make(0, 2)
            restore_shard(part, saved, 0, 2)
            assert part.optimizer == expected


def test_saved_tables_are_opened_with_enough_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = np.arange(1, 20_001)
    (tmp_path / "memory").mkdir()
    for shard in range(2):
        made = cb.MemoryTable(2)
        made.pull(keys[shard_of(keys, 2) == shard])
        made.save(shard_path(tmp_path / "memory", shard, 2))
    one = shard_path(tmp_path / "memory", 0, 2)
    size = sum(file.stat().st_size for file in (tmp_path / "memory").iterdir())
    for budget, whole, alone in ((8 << 30, 8 << 30, 8 << 30), (MB // 2, 4 * size, 4 * one.stat().st_size)):
        monkeypatch.setattr(shards, "BUDGET", budget)
        found: Any = loaded(tmp_path / "memory")
        assert (found.budget, found.export()[0].tolist()) == (whole, keys.tolist())
        again: Any = loaded(one)
        assert (again.budget, len(again)) == (alone, int((shard_of(keys, 2) == 0).sum()))
    assert not is_on_disk(tmp_path / "memory")

    saved_in_shards(tmp_path / "disk", 2)
    assert is_on_disk(tmp_path / "disk")
    for ram, each in ((None, 1 << 30), (9 * MB, 9 * MB // 2)):
        parts: Any = loaded(tmp_path / "disk", ram)
        assert isinstance(parts, TableParts)
        assert [part.ram for part in parts.parts] == [each] * 2
        assert (len(parts), parts.row, parts.path) == (len(KEYS), Row(2), tmp_path / "disk")
        assert parts.nbytes == sum(part.nbytes for part in parts.parts)
        parts.close()
    for ram, whole in ((None, 2 << 30), (3 * MB, 3 * MB)):
        table: Any = loaded(shard_path(tmp_path / "disk", 0, 2), ram)
        assert (table.ram, table.read_only) == (whole, True)
        table.close()


@pytest.mark.parametrize(
    ("there", "says"),
    [
        (["00000-of-00002", "00001-of-00003"], "it holds 2 of 2 shards, or its shards come from different saves"),
        (["00000-of-00002", "00001-of-00002", "00002-of-00002"], "it holds 3 of 2 shards"),
        (["00000-of-00000"], "it holds 1 of 0 shards"),
        (["00000-of-99999"], "it holds 1 of 99999 shards"),
    ],
)
def test_shards_of_different_saves_are_refused(tmp_path: Path, there: list[str], says: str) -> None:
    for name in there:
        (tmp_path / f"{name}.ctrtable").write_bytes(b"")
    with pytest.raises(DataError, match=says):
        shards.shards_in(tmp_path)


def test_an_embedder_of_another_kind_restores_itself(tmp_path: Path) -> None:
    class Own:
        restored: Any = None

        def restore(self, path: Path) -> None:
            self.restored = path

    own: Any = Own()
    restore_shard(own, tmp_path, 1, 3)
    assert own.restored == tmp_path
