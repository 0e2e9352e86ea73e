"""Rows of several dims in one folder: one budget, one checkpoint, any split of dims restored."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import ctrbox as cb
from ctrbox.embed.embedder import Row
from ctrbox.embed.ssd.several_dims import named_in
from ctrbox.errors import CtrboxError, PlanError, SourceError

KEYS = np.arange(1, 500)


def tables(path: Path, dims: tuple[int, ...] = (4, 16), **options) -> cb.tables.SparseTables:
    return cb.tables.SparseTables(path, dims, ram="4MB", optimizer=cb.Adagrad(0.1), seed=2, **options)


def pushed(made: cb.tables.SparseTables, times: int = 1) -> None:
    for part in made:
        for _ in range(times):
            part.push(KEYS, np.ones((len(KEYS), part.dim), np.float32))


def rows(made: cb.tables.SparseTables) -> dict[int, np.ndarray]:
    return {part.dim: part.export()[1] for part in made}


def test_parts_are_tables_of_their_dim_and_the_folder_opens_again(tmp_path: Path) -> None:
    memory = {dim: cb.MemoryTable(dim, optimizer=cb.Adagrad(0.1), seed=2) for dim in (4, 16)}
    with tables(tmp_path / "t") as made:
        assert [part.dim for part in made] == [4, 16]
        assert made[4].ram + made[16].ram <= 4 << 20
        pushed(made)
        for dim, table in memory.items():
            table.push(KEYS, np.ones((len(KEYS), dim), np.float32))
        assert len(made) == 2 * len(KEYS)
        assert made.verify() == []
        assert set(made.stats()) == {4, 16}
        made.compact()
    with tables(tmp_path / "t") as again:
        for dim, table in memory.items():
            assert (again[dim].pull(KEYS) == table.pull(KEYS)).all()


def test_a_checkpoint_is_of_all_parts_or_of_none(tmp_path: Path) -> None:
    with tables(tmp_path / "t") as made:
        pushed(made)
        made.checkpoint()
        kept = rows(made)
        pushed(made)
        made[4].checkpoint()  # as if a checkpoint of all had ended after its first part
        (tmp_path / "t" / "checkpoint-9").mkdir()
        shutil.copytree(tmp_path / "t", tmp_path / "killed")
    with tables(tmp_path / "killed") as again:
        for dim, table in rows(again).items():
            assert (table == kept[dim]).all()
        assert not (tmp_path / "killed" / "checkpoint-9").exists()
        pushed(again)
        again.checkpoint()


def test_another_split_of_dims_is_restored(tmp_path: Path) -> None:
    with tables(tmp_path / "two") as two:
        pushed(two, 2)
        kept = rows(two)
        two.save(tmp_path / "saved")
        two.save(tmp_path / "saved")  # replaces what was saved
    with tables(tmp_path / "three", (4, 8, 16)) as three:
        three.restore(tmp_path / "saved")
        assert (three[16].export()[1] == kept[16]).all()
        assert len(three[8]) == 0
    with cb.SparseTable(tmp_path / "one", 4, ram="2MB", optimizer=cb.Adagrad(0.1), seed=2) as one:
        one.restore(tmp_path / "saved")
        assert (one.export()[1] == kept[4]).all()
        one.save(tmp_path / "alone")
    with tables(tmp_path / "again") as again:
        again.restore(tmp_path / "alone")
        assert (again[4].export()[1] == kept[4]).all()
        with tables(tmp_path / "eight", (8,)) as eight:
            eight.save(tmp_path / "eights")
        with pytest.raises(PlanError, match=r"holds rows of dim 8, but these tables have the dims 4, 16"):
            again.restore(tmp_path / "eights")


def test_rows_of_dims_that_were_not_saved_are_gone_after_a_restore(tmp_path: Path) -> None:
    with tables(tmp_path / "two") as two:
        pushed(two, 2)
        kept = rows(two)
        two.save(tmp_path / "saved")
        two[16].save(tmp_path / "alone")
    with tables(tmp_path / "three", (4, 8, 16)) as three:
        pushed(three)
        before = rows(three)
        (tmp_path / "saved" / "checkpoint-1" / "dim-16" / "MANIFEST").rename(tmp_path / "aside")
        with pytest.raises(CtrboxError):
            three.restore(tmp_path / "saved")
        assert all((table == before[dim]).all() for dim, table in rows(three).items())
        (tmp_path / "aside").rename(tmp_path / "saved" / "checkpoint-1" / "dim-16" / "MANIFEST")
        three.restore(tmp_path / "saved")
        assert len(three[8]) == 0
        assert all((three[dim].export()[1] == kept[dim]).all() for dim in (4, 16))
    with tables(tmp_path / "three", (4, 8, 16)) as again:
        assert [len(part) for part in again] == [len(kept[4]), 0, len(kept[16])]
        pushed(again)
        assert len(again[8]) > 0
        again.restore(tmp_path / "alone")
        assert [len(part) for part in again] == [0, 0, len(kept[16])]


def test_tables_without_an_optimizer_of_their_own_take_that_of_what_they_restore(tmp_path: Path) -> None:
    adam = cb.optim.Adam(lr=0.3)
    with cb.tables.SparseTables(tmp_path / "a", (4, 16), ram="4MB", optimizer=adam) as made:
        pushed(made)
        made.save(tmp_path / "saved")
        kept = rows(made)
    with cb.tables.SparseTables(tmp_path / "b", (4, 16), ram="4MB") as other:
        other[4].check_source(tmp_path / "saved")
        assert other[4].optimizer == cb.Adagrad(lr=0.02, initial=1)  # a check changes nothing
        other.restore(tmp_path / "saved")
        assert [part.optimizer for part in other] == [adam, adam]
        assert all((rows(other)[dim] == kept[dim]).all() for dim in kept)


def test_a_model_of_two_dims_trains_as_in_memory(tmp_path: Path) -> None:
    from tests.train.worlds import FAST, checkerboard, plan_of

    plan = plan_of(checkerboard())
    names = [f.name for f in plan.schema.sparse]
    dims = {names[0]: 4, **dict.fromkeys(names[1:], 8)}
    found = []
    made = tables(tmp_path / "t", (4, 8), init=0.01)
    each = {dim: cb.MemoryTable(dim, optimizer=cb.Adagrad(0.1), seed=2) for dim in (4, 8)}
    for embedder in (made, {name: each[dim] for name, dim in dims.items()}):
        torch.manual_seed(1)
        model = cb.models.EmbeddingMLP(plan.schema, dim=8, dims={names[0]: 4}, hidden=(8,))
        run = cb.Trainer(model, embedder).fit(plan, **FAST)
        found.append({name: w.numpy().copy() for name, w in run.model.state_dict().items()})
    for name, weight in found[0].items():
        assert (weight == found[1][name]).all()
    assert sorted(map(len, made)) == sorted(map(len, each.values()))
    made.close()


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    for dims in ((), (4, 4), (0,), 16, (5000,)):
        with pytest.raises(PlanError, match="dims="):
            tables(tmp_path / "t", dims)
    with pytest.raises(PlanError, match="shares="):
        tables(tmp_path / "t", shares={4: 1.0})
    assert not (tmp_path / "t").exists()
    with tables(tmp_path / "t", shares={4: 1, 16: 3}) as made:
        with pytest.raises(PlanError, match="have dims 4, 16, not 7"):
            made[7]
        with pytest.raises(PlanError, match="save them to another folder"):
            made.save(tmp_path / "t" / "inside")
        with pytest.raises(SourceError, match="already open"):
            tables(tmp_path / "t")
    with pytest.raises(
        SourceError, match=r"have the dims 4, 16, but dims=\(4,\) was given; open the folder with dims=\(4, 16\)"
    ):
        tables(tmp_path / "t", (4,))
    with pytest.raises(SourceError, match=r"several dims .*dim-4"):
        cb.SparseTable(tmp_path / "t", 4, ram="2MB")
    text = (tmp_path / "t" / "TABLES").read_text()
    for at in range(len(text)):
        (tmp_path / "t" / "TABLES").write_text(text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :])
        with pytest.raises(CtrboxError):
            named_in(tmp_path / "t")
    (tmp_path / "t" / "TABLES").write_text(text)
    with cb.SparseTable(tmp_path / "one", 4, ram="2MB") as one:
        one.open(Row(4, True))
        one.checkpoint()
    with pytest.raises(SourceError, match="holds a single table"):
        tables(tmp_path / "one")


def test_closed_tables_and_forked_ones_change_nothing(tmp_path: Path) -> None:
    made = tables(tmp_path / "t")
    pushed(made)
    kept = rows(made)
    made.checkpoint()
    if os.fork() == 0:
        with contextlib.suppress(BaseException):
            made.close()
        with contextlib.suppress(BaseException):
            made.checkpoint()
        os._exit(0)
    os.wait()
    made.close()
    made.close()
    for use in (made.checkpoint, made.verify, made.stats, made.compact, lambda: made[4], lambda: len(made)):
        with pytest.raises(PlanError, match="are closed"):
            use()
    for change in (made.save, made.restore):
        with pytest.raises(PlanError, match="are closed"):
            change(tmp_path / "saved")
    assert "closed" in repr(made)
    with tables(tmp_path / "t") as again:
        for dim, table in rows(again).items():
            assert (table == kept[dim]).all()


def test_tables_that_nobody_holds_any_more_let_their_folder_go(tmp_path: Path) -> None:
    made = tables(tmp_path / "t")
    pushed(made)
    made.checkpoint()
    kept = rows(made)
    pushed(made)
    del made
    gc.collect()
    with tables(tmp_path / "t") as again:  # as of the last checkpoint, as for a table that is closed without one
        assert all((rows(again)[dim] == kept[dim]).all() for dim in kept)


def test_a_folder_with_anything_else_in_it_is_left_alone(tmp_path: Path) -> None:
    for name in ("thesis.txt", "checkpoint-1/precious", "checkpoint-old/mine"):
        place = tmp_path / name.replace("/", "-")
        (place / name).parent.mkdir(parents=True)
        (place / name).write_text("x")
        with pytest.raises(SourceError, match=r"needs? a folder that is empty"):
            tables(place)
        assert (place / name).read_text() == "x"
    with tables(tmp_path / "t") as made, tables(tmp_path / "open") as other:
        with pytest.raises(SourceError, match="already open"):
            made.save(tmp_path / "open")
        other.checkpoint()
        made.save(tmp_path / "saved")
        (tmp_path / "saved" / "notes").write_text("x")
        with pytest.raises(SourceError, match="'notes' beside its tables"):
            made.save(tmp_path / "saved")


@pytest.mark.parametrize("stop", ["damaged", "interrupted"])
def test_a_restore_that_fails_leaves_all_parts_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    with tables(tmp_path / "other") as other:
        pushed(other, 3)
        other.save(tmp_path / "saved")
    with tables(tmp_path / "t") as made:
        pushed(made)
        made.checkpoint()
        kept = rows(made)
        if stop == "damaged":
            (tmp_path / "saved" / "checkpoint-1" / "dim-16" / "MANIFEST").unlink()
            with pytest.raises(CtrboxError):
                made.restore(tmp_path / "saved")
        else:
            restore, met = made[16].restore, []

            def full_once(path: Path) -> None:
                met.append(path)
                if len(met) == 1:
                    raise SourceError("the disk is full")
                restore(path)

            monkeypatch.setattr(made[16], "restore", full_once)
            with pytest.raises(SourceError, match="full"):
                made.restore(tmp_path / "saved")
            assert len(met) == 2  # dim 4 was another table's by then, and both went back
        for dim, table in rows(made).items():
            assert (table == kept[dim]).all()


def test_checkpoints_of_threads_take_turns(tmp_path: Path) -> None:
    with tables(tmp_path / "t") as made:
        pushed(made)
        wrong: list[BaseException] = []

        def go() -> None:
            try:
                for _ in range(4):
                    made.checkpoint()
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=go) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert made.version == 13


def test_the_options_are_told(tmp_path: Path) -> None:
    for options, words in (({"read_only": True}, "is not an option"), ({"polcy": "lfu"}, "policy")):
        with pytest.raises(PlanError, match=words):
            tables(tmp_path / "t", **options)


@pytest.mark.parametrize(
    ("ram", "shares", "parts"),
    [
        (6_000_000, None, {4: 1_800_000, 16: 4_200_000}),  # 18 and 42 floats a row
        (6_000_007, {4: 1, 16: 2}, {4: 2_000_002, 16: 4_000_004}),
    ],
)
def test_the_memory_is_divided_by_the_length_of_rows_or_as_asked(
    tmp_path: Path, ram: int, shares: dict[int, float] | None, parts: dict[int, int]
) -> None:
    with cb.tables.SparseTables(tmp_path / "t", [16, 4], ram=ram, shares=shares) as made:
        assert ({part.dim: part.ram for part in made}, made.ram, made.dims) == (parts, ram, (4, 16))
        assert made.of_dim(16) is made[16]
        assert made.nbytes == made[4].nbytes + made[16].nbytes
        assert repr(made) == f"SparseTables({str(tmp_path / 't')!r}, dims 4, 16, 0 keys, ram {ram:,})"
        assert made.version == 1
    assert repr(made) == f"SparseTables({str(tmp_path / 't')!r}, dims 4, 16, closed, ram {ram:,})"


def test_one_checkpoint_is_kept_and_the_number_goes_on(tmp_path: Path) -> None:
    def there() -> list[str]:
        return sorted(path.name for path in (tmp_path / "t").iterdir())

    with tables(tmp_path / "t") as made:
        assert (made.checkpoint(), made.version) == (2, 2)
        assert there() == ["LOCK", "TABLES", "checkpoint-2", "dim-16", "dim-4"]
        pushed(made)
        assert repr(made) == f"SparseTables({str(tmp_path / 't')!r}, dims 4, 16, 998 keys, ram 4,194,304)"
        made.close(checkpoint=False)
    assert there() == ["LOCK", "TABLES", "checkpoint-2", "dim-16", "dim-4"]
    with tables(tmp_path / "t") as made:
        assert (made.version, len(made)) == (2, 0)
    assert there() == ["LOCK", "TABLES", "checkpoint-3", "dim-16", "dim-4"]


def test_a_part_that_was_opened_for_another_model_goes_back(tmp_path: Path) -> None:
    with tables(tmp_path / "t") as made:
        made[4].open(Row(4, linear=True))
        made[4].push(KEYS, np.ones((len(KEYS), 5), np.float32))
        made[4].checkpoint()
        made.close(checkpoint=False)
    with tables(tmp_path / "t") as made:
        assert (made[4].row, len(made[4]), made[4].dim) == (Row(4), 0, 4)
        pushed(made)


def test_tables_are_saved_to_a_folder_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    with tables(tmp_path / "t") as made:
        for place in (tmp_path / "link", tmp_path / "t", tmp_path / "t" / "x" / "y"):
            with pytest.raises(
                PlanError, match="it is a symbolic link or belongs to the folder of these tables; save them to another"
            ):
                made.save(place)
        pushed(made)
        made.save(tmp_path / "empty")
        made.save(tmp_path / "empty")
        assert named_in(tmp_path / "empty") == (1, (4, 16))
        assert sorted(path.name for path in (tmp_path / "empty" / "checkpoint-1").iterdir()) == ["dim-16", "dim-4"]
    with tables(tmp_path / "empty") as again:
        assert len(again) == 998
