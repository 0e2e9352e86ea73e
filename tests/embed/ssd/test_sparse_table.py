"""The Sparse Table against the table in memory: the same bits, whatever lies where."""

from __future__ import annotations

import contextlib
import copy
import math
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import _native
from ctrbox.embed.embedder import Embedder, Row
from ctrbox.errors import BudgetError, CtrboxError, DataError, PlanError, SourceError

SMALL = 300_000  # bytes: some thousand rows of 4 floats
OPTIMIZERS = [cb.optim.SGD(), cb.Adagrad(), cb.optim.RowwiseAdagrad(), cb.optim.Adam(), cb.optim.FTRL(l1=0.01)]


def same(sparse: cb.SparseTable, memory: cb.MemoryTable) -> None:
    assert len(sparse) == len(memory)
    for ours, theirs in zip(sparse.export(), memory.export(), strict=True):
        assert ours.tobytes() == theirs.tobytes()


def keys_of(rng: np.random.Generator, n: int, space: int = 20_000) -> np.ndarray:
    keys = np.unique(rng.zipf(1.2, n) % space + 1).astype(np.int64) * 2654435761
    rng.shuffle(keys)
    return keys


def trained(tables: list[Any], steps: int, seed: int = 0, n: int = 600, prefetch: bool = False) -> None:
    rng = np.random.default_rng(seed)
    for step in range(steps):
        keys = keys_of(rng, n)
        if prefetch and step % 2:
            tables[0].prefetch(keys)
        rows = [t.pull(keys) for t in tables]
        assert all(r.tobytes() == rows[0].tobytes() for r in rows)
        gradients = rng.normal(size=rows[0].shape).astype(np.float32)
        for t in tables:
            t.push(keys, gradients)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
def test_rows_have_the_bits_of_the_table_in_memory(tmp_path: Path, optimizer: Any) -> None:
    with cb.SparseTable(tmp_path / "t", 4, ram=SMALL, optimizer=optimizer) as table:
        memory = cb.MemoryTable(4, optimizer=optimizer)
        trained([table, memory], 60, prefetch=True)
        stats = table.stats()
        assert stats["evicted"] > 0
        assert stats["misses"] > 0
        same(table, memory)
        assert table.verify() == []


@pytest.mark.parametrize("policy", ["default", "heat", "clock", "lfu"])
@pytest.mark.parametrize("threads", [1, 3])
def test_no_policy_and_no_number_of_threads_changes_a_bit(tmp_path: Path, policy: str, threads: int) -> None:
    with cb.SparseTable(tmp_path / "t", 4, ram=SMALL, policy=policy, threads=threads) as table:
        memory = cb.MemoryTable(4)
        trained([table, memory], 30, n=4000)
        same(table, memory)


@pytest.mark.parametrize("row", [Row(0, True), Row(1), Row(7, True), Row(1100)])
def test_rows_of_any_width(tmp_path: Path, row: Row) -> None:
    with cb.SparseTable(
        tmp_path / "t", row.dim, ram=max(SMALL, 3000 * row.width * 8), optimizer=cb.optim.Adam()
    ) as table:
        memory = cb.MemoryTable(row.dim, optimizer=cb.optim.Adam())
        for t in (table, memory):
            t.open(row)
        trained([table, memory], 12, n=900)
        table.flush()
        same(table, memory)


def test_what_was_flushed_compacted_and_reopened_is_the_same(tmp_path: Path) -> None:
    memory = cb.MemoryTable(4)
    with cb.SparseTable(tmp_path / "t", 4, ram=SMALL) as table:
        trained([table, memory], 20)
        table.flush()
        assert table.stats()["resident"] == 0
        same(table, memory)
        trained([table, memory], 20, seed=1)
        table.compact()
        assert table.stats()["runs"] <= 64
        same(table, memory)
    for ram in (SMALL, 10 * SMALL):
        with cb.SparseTable.load(tmp_path / "t", ram=ram) as table:
            same(table, memory)
            trained([table, memory], 5, seed=2)
            same(table, memory)


def test_a_table_that_was_not_closed_is_its_last_checkpoint(tmp_path: Path) -> None:
    memory = cb.MemoryTable(4)
    table = cb.SparseTable(tmp_path / "t", 4, ram=SMALL)
    trained([table, memory], 20)
    assert table.checkpoint() == 1
    trained([table], 20, seed=9)
    table.close(checkpoint=False)
    with cb.SparseTable(tmp_path / "t", 4, ram=SMALL) as again:
        assert again.version == 1
        same(again, memory)


def test_without_any_checkpoint_it_is_empty(tmp_path: Path) -> None:
    table = cb.SparseTable(tmp_path / "t", 4, ram=SMALL)
    trained([table], 20)
    table.close(checkpoint=False)
    with cb.SparseTable(tmp_path / "t", 4, ram=SMALL) as again:
        assert len(again) == 0
    assert [p.name for p in (tmp_path / "t" / "segments").iterdir()] == []


def test_a_saved_table_is_restored_elsewhere_and_does_not_change(tmp_path: Path) -> None:
    memory = cb.MemoryTable(4)
    with cb.SparseTable(tmp_path / "t", 4, ram=SMALL) as table:
        trained([table, memory], 20)
        table.save(tmp_path / "saved")
        trained([table], 20, seed=3)
        table.compact()
        with cb.SparseTable(tmp_path / "other", 4, ram=5 * SMALL) as other:
            trained([other], 3, seed=4)
            other.restore(tmp_path / "saved")
            same(other, memory)
            trained([other], 5, seed=5)
        table.restore(tmp_path / "saved")
        same(table, memory)
    with cb.SparseTable.load(tmp_path / "saved", ram=SMALL, read_only=True) as saved:
        same(saved, memory)
        with pytest.raises(PlanError, match="read_only=True"):
            saved.pull(np.array([1]))


def test_only_what_changed_since_a_version_is_exported(tmp_path: Path) -> None:
    with cb.SparseTable(tmp_path / "t", 2, ram=SMALL) as table:
        keys = np.arange(1, 3000)
        table.push(keys, np.ones((len(keys), 2), np.float32))
        first = table.checkpoint()
        changed = keys[::7]
        table.push(changed, np.ones((len(changed), 2), np.float32))
        for _ in range(3):
            assert table.export(since=first)[0].tolist() == changed.tolist()
            assert table.export(since=first)[1].tobytes() == table.pull(changed, create=False).tobytes()
            table.flush()
            table.compact()
        assert len(table.export(since=table.checkpoint())[0]) == 0
        assert len(table.export()[0]) == len(keys)


def test_a_look_creates_nothing_and_gives_initial_values(tmp_path: Path) -> None:
    memory = cb.MemoryTable(4)
    with cb.SparseTable(tmp_path / "t", 4, ram=SMALL) as table:
        trained([table, memory], 20)
        before = table.stats()["resident"]
        keys = np.array([0, 5, -7, *keys_of(np.random.default_rng(0), 600), 2**63 - 1, -(2**63)])
        assert table.pull(keys, create=False).tobytes() == memory.pull(keys, create=False).tobytes()
        assert table.stats()["resident"] == before
        same(table, memory)


few = st.integers(-3, 12)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(few, max_size=9), max_size=8), st.booleans())
def test_duplicate_zero_and_negative_keys(tmp_path_factory: Any, batches: list[list[int]], prefetch: bool) -> None:
    folder = tmp_path_factory.mktemp("t")
    with cb.SparseTable(folder, 2, ram=SMALL) as table:
        memory = cb.MemoryTable(2)
        for batch in batches:
            keys = np.array(batch, np.int64)
            if prefetch:
                table.prefetch(keys)
                memory.prefetch(keys)
            assert table.pull(keys).tobytes() == memory.pull(keys).tobytes()
            gradients = np.arange(2 * len(keys), dtype=np.float32).reshape(-1, 2)
            table.push(keys, gradients)
            memory.push(keys, gradients)
        same(table, memory)


def test_it_is_an_embedder(tmp_path: Path) -> None:
    with cb.SparseTable(tmp_path / "t") as table:
        assert isinstance(table, Embedder)


# ---- bad input


def test_a_gradient_that_is_not_finite_names_the_key_and_changes_nothing(tmp_path: Path) -> None:
    with cb.SparseTable(tmp_path / "t", 2, ram=SMALL) as table:
        keys = np.array([4, 9])
        before = table.pull(keys).copy()
        for value in (np.nan, np.inf):
            with pytest.raises(DataError, match=r"gradient of key 9 .* no weight was changed"):
                table.push(keys, np.array([[1, 1], [1, value]], np.float32))
        assert table.pull(keys).tobytes() == before.tobytes()


def test_a_budget_below_any_use_is_refused_with_the_least(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match=r"fewer than 1,024 rows .* expected at least"):
        cb.SparseTable(tmp_path / "t", 16, ram=1000)
    for ram in (0, -1, "1000000TB", "many"):
        with pytest.raises((PlanError, DataError)):
            cb.SparseTable(tmp_path / "t", 16, ram=ram)
    assert not any(tmp_path.iterdir())


def test_a_batch_larger_than_the_budget_is_refused_and_loses_nothing(tmp_path: Path) -> None:
    memory = cb.MemoryTable(4)
    with cb.SparseTable(tmp_path / "t", 4, ram=SMALL) as table:
        trained([table, memory], 10)
        with pytest.raises(BudgetError, match=r"no room for the 50,000 keys .* raise ram=") as refused:
            table.pull(np.arange(1, 50_001))
        table.prefetch(np.arange(1, 50_001))  # a wish, which cannot be
        assert table.stats()["pinned"] == 0
        keys = memory.export()[0]
        assert table.pull(keys[:500], create=False).tobytes() == memory.pull(keys[:500], create=False).tobytes()
    enough = str(refused.value).rsplit(" ", 1)[1]
    with cb.SparseTable(tmp_path / "enough", 4, ram=enough) as table:
        table.pull(np.arange(1, 50_001))
        for k in range(1, 5):
            table.prefetch(np.arange(1, 50_001) + 50_000 * k)
        assert table.stats()["pinned"] == 250_000


def test_the_memory_that_would_do_counts_a_sketch_once(tmp_path: Path) -> None:
    keys, gradients, shows = np.arange(1, 500_001), np.ones((500_000, 4), np.float32), np.full(500_000, 2, np.float32)
    with (
        cb.SparseTable(tmp_path / "t", 4, ram="12MB", admission=cb.tables.Admission(count=2, sketch="8MB")) as table,
        pytest.raises(BudgetError, match=r"no room for the 500,000 keys") as refused,
    ):
        table.push(keys, gradients, shows=shows, clicks=0 * shows)
    assert int(str(refused.value).rsplit(" ", 1)[1].removesuffix("MB")) < 500


def test_two_of_one_folder_are_refused(tmp_path: Path) -> None:
    with (
        cb.SparseTable(tmp_path / "t", 4, ram=SMALL),
        pytest.raises(SourceError, match="is already open in this process or another one;"),
    ):
        cb.SparseTable(tmp_path / "t", 4, ram=SMALL)


def test_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    with cb.SparseTable(tmp_path / "t", 4, ram=SMALL) as table:
        trained([table], 2)
    for options, said in (
        ({"dim": 8}, "saved with dim 4, but this table has 8"),
        ({"dim": 4, "optimizer": cb.optim.Adam()}, r"saved with .*optimizer Adagrad.* this table uses Adam"),
        ({"dim": 4, "seed": 3}, "saved with seed 0, but this table has 3"),
    ):
        with pytest.raises(DataError, match=said):
            cb.SparseTable(tmp_path / "t", ram=SMALL, **options)  # type: ignore[arg-type]


def test_wrong_keys_arguments_and_closed_tables(tmp_path: Path) -> None:
    table = cb.SparseTable(tmp_path / "t", 4, ram=SMALL)
    with pytest.raises(DataError, match=r"expected keys of shape \(n,\) int64"):
        table.pull(np.array([1.5]))
    with pytest.raises(DataError, match="expected gradients of shape"):
        table.push(np.array([1]), np.zeros((1, 3), np.float32))
    with pytest.raises(PlanError, match=r"policy= must be one of .*did you mean|policy= must be one of"):
        cb.SparseTable(tmp_path / "u", 4, policy="lfru")
    table.close()
    table.close()
    with pytest.raises(PlanError, match="is closed"):
        table.pull(np.array([1]))


def test_a_folder_without_a_table_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="holds no table, because the file MANIFEST is missing"):
        cb.SparseTable.load(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match="as the folder of a table"):
        cb.SparseTable(tmp_path / "file" / "t")


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "impressions.parquet").write_text("")
    with pytest.raises(
        SourceError, match=r"holds 'impressions.parquet', but no table; a new table needs a folder that is empty"
    ):
        cb.SparseTable(tmp_path, 4, ram=SMALL)
    assert [p.name for p in tmp_path.iterdir()] == ["impressions.parquet"]


# ---- what must not lose anything


def test_a_closed_table_is_not_opened_again_or_restored(tmp_path: Path) -> None:
    table = cb.SparseTable(tmp_path / "t", 4, ram=SMALL)
    trained([table], 3)
    table.save(tmp_path / "saved")
    table.close()
    for act in (lambda: table.open(Row(8)), lambda: table.restore(tmp_path / "saved"), table.checkpoint):
        with pytest.raises(PlanError, match="is closed"):
            act()
    with cb.SparseTable.load(tmp_path / "t", ram=SMALL) as again:
        assert len(again)


def test_a_table_is_not_saved_over_itself_or_over_what_is_no_table(tmp_path: Path) -> None:
    with cb.SparseTable(tmp_path / "t", 4, ram=SMALL) as table:
        trained([table], 3)
        for place in (tmp_path / "t", tmp_path / "t" / "segments", tmp_path / "t" / "x"):
            with pytest.raises(PlanError, match="another folder than its own"):
                table.save(place)
        (tmp_path / "precious").mkdir()
        (tmp_path / "precious" / "file").write_text("")
        with pytest.raises(PlanError, match="so it is not replaced"):
            table.save(tmp_path / "precious")
        with cb.SparseTable(tmp_path / "other", 4, ram=SMALL) as other:
            other.checkpoint()
            with pytest.raises(SourceError, match="is already open"):
                table.save(tmp_path / "other")
        table.save(tmp_path / "saved")
        table.save(tmp_path / "saved")
        assert table.verify() == []


def test_restoring_from_a_table_that_is_open_takes_nothing_from_it(tmp_path: Path) -> None:
    memory = cb.MemoryTable(4)
    with cb.SparseTable(tmp_path / "a", 4, ram=SMALL) as one, cb.SparseTable(tmp_path / "b", 4, ram=SMALL) as other:
        trained([one, memory], 10)
        one.checkpoint()
        trained([one, memory], 20, seed=4)
        other.restore(tmp_path / "a")
        same(one, memory)
    with cb.SparseTable.load(tmp_path / "a", ram=SMALL) as again:
        same(again, memory)


def test_foreign_names_stay_and_relative_paths_stay_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = cb.SparseTable("t", 4, ram=SMALL)
    trained([table], 3)
    table.checkpoint()
    (tmp_path / "t" / "segments-mine").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    trained([table], 20)
    table.close()
    with cb.SparseTable.load(tmp_path / "t", ram=SMALL) as again:
        assert again.verify() == []
    assert (tmp_path / "t" / "segments-mine").is_dir()


def test_a_forked_child_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    with cb.SparseTable(tmp_path / "t", 4, ram=SMALL) as table:
        memory = cb.MemoryTable(4)
        trained([table, memory], 20)
        child = os.fork()
        if child == 0:
            try:
                table.pull(np.array([1]))
            except PlanError as error:
                table.close()
                os._exit(0 if "before a fork" in str(error) else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        trained([table, memory], 10, seed=3)
        same(table, memory)
        assert table.verify() == []


def test_closing_waits_for_calls_and_copies_are_refused(tmp_path: Path) -> None:
    table = cb.SparseTable(tmp_path / "t", 4, ram=SMALL)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.copy(table)
    stopped = threading.Event()

    def pulls() -> None:
        rng = np.random.default_rng(1)
        with contextlib.suppress(PlanError):
            while True:
                table.pull(keys_of(rng, 600))
        stopped.set()

    thread = threading.Thread(target=pulls)
    thread.start()
    time.sleep(0.1)
    table.close()
    thread.join(30)
    assert stopped.is_set()
    with cb.SparseTable.load(tmp_path / "t", ram=SMALL) as again:
        assert again.verify() == []


def test_one_new_key_many_times_needs_one_row(tmp_path: Path) -> None:
    with cb.SparseTable(tmp_path / "t", 4, ram=SMALL) as table:
        keys = np.full(20_000, 99)
        assert table.pull(keys).tobytes() == cb.MemoryTable(4).pull(keys).tobytes()
        assert len(table) == 1


def test_a_failed_save_leaves_the_table_whole(tmp_path: Path) -> None:
    memory = cb.MemoryTable(4)
    table = cb.SparseTable(tmp_path / "t", 4, ram=SMALL)
    trained([table, memory], 20)
    (tmp_path / "file").write_text("")
    with pytest.raises(CtrboxError):
        table.save(tmp_path / "file" / "below")
    with pytest.raises(OSError, match="missing"):  # the table's own manifest is written by then
        table._reading.save(str(tmp_path / "missing"))
    table.close(checkpoint=False)
    with cb.SparseTable.load(tmp_path / "t", ram=SMALL) as again:
        same(again, memory)


def test_whole_rows_are_read_and_written_at_any_budget(tmp_path: Path) -> None:
    keys = np.arange(1, 20_001)
    memory = cb.MemoryTable(4, seed=3)
    with cb.SparseTable(tmp_path / "t", 4, ram="400KB", seed=3) as table:
        for part in np.array_split(keys, 20):
            rows = table.read(part)
            assert (rows[:, :4] == memory.pull(part)).all()
            rows[:, 0], rows[:, 4] = part, 5.0
            table.write(part, rows)
        assert len(table) == len(keys)
        table.checkpoint()
    with cb.SparseTable.load(tmp_path / "t", ram="400KB") as table:
        for part in np.array_split(keys, 20):
            rows = table.read(part)
            assert (rows[:, 0] == part).all()
            assert (rows[:, 4] == 5.0).all()
        with pytest.raises(DataError, match=r"rows with their optimizer states, of shape \(3, 8\)"):
            table.write(keys[:3], np.zeros((3, 4), np.float32))


@pytest.mark.parametrize("sketch", [None, 65_536])
def test_the_memory_that_five_batches_need_is_told_exactly(tmp_path: Path, sketch: int | None) -> None:
    admission = None if sketch is None else cb.tables.Admission(count=2, sketch=sketch)
    with cb.SparseTable(tmp_path / "t", 4, ram="400KB", admission=admission) as table:
        least, _ = _native.SparseTable.ram_bounds(table._shape(table.row), table.policy)
        room = 1.25 * (sketch or 0)
        # With the least memory, the sketch leaves room for 1,024 rows.
        needed = math.ceil((5 * 30_000 * (least - room) / 1024 + room) / 1e6)
        keys, shows = np.arange(1, 30_001), np.full(30_000, 2, np.float32)
        with pytest.raises(BudgetError, match=rf"no room for the 30,000 keys .* five like this one need {needed}MB$"):
            table.push(keys, np.ones((30_000, 4), np.float32), shows=shows if sketch else None)


def test_an_empty_table_leaves_no_checkpoint_unless_it_has_a_clock(tmp_path: Path) -> None:
    counted = {"counters": cb.tables.Counters()}
    for name, options, use, there in (
        ("a", {}, lambda table: None, False),
        ("b", {}, lambda table: table.pull(np.array([1])), True),
        ("c", {}, lambda table: table.checkpoint(), True),
        ("d", counted, lambda table: None, True),
    ):
        table = cb.SparseTable(tmp_path / name, 4, ram=SMALL, **options)
        use(table)
        table.close()
        assert (tmp_path / name / "MANIFEST").exists() == there
        assert table._lock == -1
    table = cb.SparseTable(tmp_path / "e", 4, ram=SMALL)
    table.pull(np.array([1]))
    table.close(checkpoint=False)
    assert not (tmp_path / "e" / "MANIFEST").exists()
    with cb.SparseTable.load(tmp_path / "b", ram=SMALL, read_only=True) as table:
        assert (len(table), table.version) == (1, 1)
    with cb.SparseTable.load(tmp_path / "b", ram=SMALL) as table:
        assert table.version == 1


def test_a_table_that_waits_for_its_model_holds_nothing(tmp_path: Path) -> None:
    table = cb.SparseTable(tmp_path / "t", 0, ram=SMALL)
    assert (len(table), table.nbytes, table.version, (tmp_path / "t" / "MANIFEST").exists()) == (0, 0, 0, False)
    assert repr(table) == (
        f"SparseTable({str(tmp_path / 't')!r}, {Row(0)}, {table.optimizer}, 0 keys, ram {table.ram:,})"
    )
    table.clear()
    table.set_optimizer(cb.optim.SGD(lr=0.5))
    table.open(Row(0, linear=True))
    table.push(np.array([3]), np.ones((1, 1), np.float32))
    assert table.pull(np.array([3]), create=False).tolist() == [[-0.5]]
    table.close()


def test_a_read_only_table_is_not_restored_and_saved_under_no_link(tmp_path: Path) -> None:
    with cb.SparseTable(tmp_path / "t", 4, ram=SMALL) as table:
        table.pull(np.array([1]))
        (tmp_path / "empty").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "empty")
        with pytest.raises(PlanError, match="a table must be saved to another folder than its own"):
            table.save(tmp_path / "link")
        table.save(tmp_path / "empty")
        (tmp_path / "file").write_text("")
    with cb.SparseTable.load(tmp_path / "t", ram=SMALL, read_only=True) as table:
        with pytest.raises(
            PlanError, match=r"was opened with read_only=True; the only operation that it allows is pull"
        ):
            table.restore(tmp_path / "empty")
        table.check_source(tmp_path / "empty")


def test_new_settings_of_an_optimizer_keep_the_rows_of_a_table(tmp_path: Path) -> None:
    keys = np.array([1, 2])
    with cb.SparseTable(tmp_path / "t", 2, ram=SMALL, init=0.0, optimizer=cb.optim.SGD(lr=1.0)) as table:
        table.set_optimizer(cb.optim.SGD(lr=0.5))
        assert table.version == 0  # nothing to keep
        table.push(keys, np.ones((2, 2), np.float32))
        table.set_optimizer(cb.optim.SGD(lr=0.25))
        assert table.version == 1
        table.push(keys, np.ones((2, 2), np.float32))
        assert table.pull(keys).tolist() == [[-0.75, -0.75]] * 2
    for since in (-1, 2**63 + 1):
        with cb.SparseTable.load(tmp_path / "t", ram=SMALL) as table, pytest.raises(PlanError, match="since= must be"):
            table.export(since)


def test_a_table_is_opened_with_the_rows_that_its_folder_has(tmp_path: Path) -> None:
    with cb.SparseTable(tmp_path / "t", 3, ram=SMALL) as table:
        table.open(Row(3, linear=True))
        table.push(np.array([7]), np.ones((1, 4), np.float32))
        rows = table.pull(np.array([7]))
    for dim in (0, 3):
        with cb.SparseTable(tmp_path / "t", dim, ram=SMALL) as table:
            assert table.row == Row(3, linear=True)
            assert np.array_equal(table.pull(np.array([7]), create=False), rows)


def test_a_table_that_an_earlier_call_could_not_open_is_created_again(tmp_path: Path) -> None:
    table = cb.SparseTable(tmp_path / "t", 3, ram=SMALL)
    table.pull(np.array([7]))
    table.checkpoint()
    table._native = None  # as after an error in the middle of a restore
    for row in (Row(3), Row(4)):
        with pytest.raises(SourceError, match="could not be opened by an earlier call; create the table object again"):
            table.open(row)
    table.close()
    with cb.SparseTable(tmp_path / "t", 3, ram=SMALL) as again:
        assert len(again) == 1


def test_a_damaged_copy_is_not_restored(tmp_path: Path) -> None:
    with cb.SparseTable(tmp_path / "t", 4, ram=SMALL) as table:
        table.push(np.arange(1, 500), np.ones((499, 4), np.float32))
        table.save(tmp_path / "saved")
        table.push(np.array([1]), np.ones((1, 4), np.float32))
        before = table.export()
        (segment,) = (tmp_path / "saved" / "segments").glob("*.seg")
        content = segment.read_bytes()
        segment.unlink()
        segment.write_bytes(content[:-1])
        for refused in (table.restore, table.check_source):
            with pytest.raises(
                SourceError, match=r"cannot restore from .*saved, which is damaged: .*t is unchanged; restore"
            ):
                refused(tmp_path / "saved")
        assert all(np.array_equal(mine, theirs) for mine, theirs in zip(table.export(), before, strict=True))
