"""A training of several ranks ends without gathering its tables: the run folder holds parts, which one process reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ctrbox as cb
from ctrbox.embed.embedder import Row
from ctrbox.embed.shards import is_on_disk, loaded, places_by_shard, shard_path
from ctrbox.embed.ssd.saved_parts import TableParts
from ctrbox.errors import DataError, PlanError
from ctrbox.ranks.finish_training import Caller
from ctrbox.ranks.group import Group
from tests.ranks.threads import fit, in_ranks, model
from tests.train.worlds import checkerboard, on_disk, table, weights


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> cb.Plan:
    return on_disk(tmp_path_factory.mktemp("log"), 4000).using(threads=1)


def test_the_model_is_saved_in_parts_and_rank_0_reads_them_when_it_predicts(plan: cb.Plan, tmp_path: Path) -> None:
    tables = [table() for _ in range(2)]
    options: dict[str, Any] = {"limit": 1200, "explain": True, "calibrate": "platt"}
    run = fit(plan, 2, tables=lambda rank: tables[rank], out=tmp_path / "run", **options)[0]
    alone = fit(plan, 1, out=tmp_path / "alone", **options)[0]
    saved = sorted(p.name for p in (tmp_path / "run" / "model" / "table-0.ctrtable").iterdir())
    assert saved == ["00000-of-00002.ctrtable", "00001-of-00002.ctrtable"]
    assert repr(run)
    assert run.report().is_file()
    assert [len(one) for one in tables] == [0, 0]  # whatever the end needed, it asked the ranks for
    for name, figure in alone.metrics.items():
        assert run.metrics[name] == pytest.approx(figure, abs=1e-4), name
    assert run.summary["table"]["keys"] == alone.summary["table"]["keys"] == len(alone.learner.embedders[0])
    assert [one["name"] for one in run.summary["features"]] == [one["name"] for one in alone.summary["features"]]
    found = cb.Run.load(tmp_path / "run", model=model(plan), plan=plan)
    ours, theirs = (np.concatenate(list(one.predictions(checkerboard(300)))) for one in (found, run))
    assert ours.tobytes() == theirs.tobytes()
    assert len(tables[0]) == run.summary["table"]["keys"]
    assert weights(found) == weights(run)
    again = fit(plan, 1, limit=1200, warm_up="continue", warm_from=tmp_path / "run")[0]
    assert again.metrics["logloss"] < run.metrics["logloss"] + 0.05


def learn(made: Any, keys: np.ndarray, places: np.ndarray) -> None:
    """Let a table learn those of the keys that are in these places."""
    gradients = np.sin(np.arange(3 * len(keys), dtype=np.float32)).reshape(-1, 3)
    made.open(Row(3))
    made.pull(keys[places])
    made.push(keys[places], np.ascontiguousarray(gradients[places]))


@pytest.mark.parametrize("of", [1, 3])
@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_saved_parts_are_read_as_the_whole_table(tmp_path: Path, kind: str, of: int) -> None:
    keys = np.unique(np.random.default_rng(1).integers(1, 2**62, 4000))
    whole = cb.MemoryTable(3)
    learn(whole, keys, np.arange(len(keys)))
    folder = tmp_path / "table-0.ctrtable"
    folder.mkdir()
    for shard, places in enumerate(places_by_shard(keys, of)):
        made: Any = cb.MemoryTable(3) if kind == "memory" else cb.SparseTable(tmp_path / f"t{shard}", 3)
        learn(made, keys, places)
        made.save(shard_path(folder, shard, of))
        if kind == "disk":
            made.close()
    assert is_on_disk(folder) is (kind == "disk")
    found: Any = loaded(folder, ram=96 << 20)
    assert len(found) == len(whole)
    for mine, expected in zip(found.export(), whole.export(), strict=True):
        assert mine.tobytes() == expected.tobytes()
    asked = np.concatenate([keys[::5], np.array([5, 6, 7])])  # some are not there
    assert found.pull(asked, create=False).tobytes() == whole.pull(asked, create=False).tobytes()
    if kind == "disk":
        assert isinstance(found, TableParts)
        assert sum(len(some) for some, _, _ in found.scan()) == len(keys)
        for refused in (lambda: found.pull(asked), lambda: found.prefetch(asked), lambda: found.save(tmp_path / "x")):
            with pytest.raises(PlanError, match="parts, which can only be read; to continue training"):
                refused()
        found.close()


def test_rank_0_calls_while_it_computes_so_that_the_others_do_not_give_up() -> None:
    def work(ranks: Any) -> Any:
        group = ranks.group = Group.join(ranks.world, 1.0)
        if not ranks.leads:
            heard = []
            while (told := group.everyone(None)[0])[0] != "end":
                heard.append(told[0])
            group.leave_together()
            return heard
        caller = Caller(group)
        torch.tensor(0)
        caller.ended.wait(1.5)  # longer than the timeout
        with caller.call("end"):
            caller.stop()
        group.leave_together()
        return None

    _, heard = in_ranks(2, work)
    assert heard
    assert set(heard) == {"wait"}


def test_a_run_that_cannot_read_its_tables_predicts_nothing(plan: cb.Plan, tmp_path: Path) -> None:
    """Neither after an error, when its tables are empty, nor with those of a later training in the same folder."""
    made: Any = [table(), table()]
    options: dict[str, Any] = {"limit": 400, "out": tmp_path / "run"}
    run = fit(plan, 2, tables=lambda rank: made[rank], **options)[0]
    folder = tmp_path / "run" / "model" / "table-0.ctrtable"
    parts = [shard_path(folder, shard, 2) for shard in range(2)]
    for swapped in ([parts[1], parts[0]], [parts[0], parts[0]]):
        whole = [part.read_bytes() for part in parts]
        for part, content in zip(parts, [whole[parts.index(other)] for other in swapped], strict=True):
            part.write_bytes(content)
        for _ in range(2):  # the second time as well
            with pytest.raises(DataError, match=r"damaged|is not the table that was saved"):
                next(run.predictions(checkerboard(50)))
        for part, content in zip(parts, whole, strict=True):
            part.write_bytes(content)
    other = fit(plan, 2, **{**options, "limit": 800}, overwrite=True)[0]
    with pytest.raises(
        DataError,
        match=r"now holds the model of another training run, but this run reads its tables from "
        r"there; load the new run with cb\.Run\.load, or choose",
    ):
        next(run.predictions(checkerboard(50)))
    assert np.isfinite(next(other.predictions(checkerboard(50)))).all()
