"""Tests what a training reads of an earlier run: its log, its parts, and whether its state can be continued."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import ctrbox as cb
from ctrbox.errors import PlanError, SourceError
from ctrbox.files.sealed_json import sealed
from ctrbox.predict.weights_folder import read_state
from ctrbox.train.seen_in_training import (
    known_share,
    log_fingerprint,
    log_marks,
    recorded_fingerprint,
    warn_of_learned_rows,
)
from ctrbox.train.settings import CALIBRATIONS, Settings
from ctrbox.train.table_setup import check_rows_told, clear_rows, set_rate, warn_of_rows
from ctrbox.train.training_progress import State, state_of
from ctrbox.train.warm_up import WarmUp, _check_continues, _file
from tests.train.test_small_fit import planned
from tests.train.worlds import checkerboard, plan_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> cb.Run:
    plan = planned(rows=40)
    return cb.Trainer(cb.models.LR(plan.schema), cb.MemoryTable(0), threads=1).fit(
        plan, valid=0.25, batch_size=20, explain=False, out=tmp_path_factory.mktemp("earlier") / "run"
    )


def told(work: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        work()
    return [str(one.message) for one in met]


# ---- the log of an earlier run


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"identity": {"data": [["log", "abc"], ["users", "def"]]}}, "abc"),
        ({"identity": {"data": [["log", 5]]}}, "5"),
        ({"identity": {"data": []}}, ""),
        ({"identity": {"data": "abc"}}, ""),
        ({"identity": {"data": ["ab", "cd"]}}, ""),
        ({"identity": {"data": [["log"]]}}, ""),
        ({"identity": {"data": [["log", "abc", "d"]]}}, ""),
        ({"identity": {}}, ""),
        ({"identity": ["data"]}, ""),
        ({}, ""),
    ],
)
def test_the_fingerprint_of_a_log_is_read_where_a_run_wrote_it(
    config: dict[str, Any], found: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(sealed(config), encoding="utf-8")
    assert recorded_fingerprint(tmp_path) == found


def test_known_files_are_counted_with_their_share_of_the_bytes(tmp_path: Path) -> None:
    for k, rows in enumerate((10, 200, 30)):
        pq.write_table(checkerboard(rows, seed=k), tmp_path / f"day{k}.parquet")
    plan = plan_of(str(tmp_path / "day*.parquet"))
    sizes = [(tmp_path / f"day{k}.parquet").stat().st_size for k in range(3)]
    marks = log_marks(plan)
    assert len({*marks}) == 3
    assert known_share([], plan) == (0, 3, 0.0)
    assert known_share(["other"], plan) == (0, 3, 0.0)
    assert known_share([marks[1], "other"], plan) == (1, 3, sizes[1] / sum(sizes))
    assert known_share([marks[2], marks[0]], plan) == (2, 3, (sizes[0] + sizes[2]) / sum(sizes))
    assert known_share(marks, plan) == (3, 3, 1.0)
    assert known_share(marks, plan_of(checkerboard(10))) == (0, 0, 0.0)

    share = f"{sizes[1] / sum(sizes):.0%}"
    (words,) = told(lambda: warn_of_learned_rows("another", plan, {"log_files": [marks[1]]}))
    assert words.startswith("1 of the 3 files of ")
    assert f"have the same content as files of the log that this run was trained on ({share} of the bytes): " in words
    one = plan_of(str(tmp_path / "day1.parquet"))
    (words,) = told(lambda: warn_of_learned_rows("", one, {"log_files": [marks[1]]}))
    assert re.match(r"\S+day1\.parquet has the same content as files of the log .* \(100% of the bytes\)", words)
    for summary in ({}, {"log_files": None}, {"log_files": ["other"]}):
        assert told(lambda summary=summary: warn_of_learned_rows("another", plan, summary)) == []


@pytest.mark.parametrize(
    ("held", "advice"),
    [
        (None, "Measure it on rows that it has not seen, for example on those of a later day"),
        ({"start": 1000, "stop": 2234}, "To measure it on the 1,234 rows that the run held back for validation, give no log"),
    ],
)  # fmt: skip
def test_the_log_of_the_training_is_warned_of_with_advice(held: Any, advice: str) -> None:
    plan = planned(rows=40)
    summary = {"held": held, "log_files": ["x"]}
    (words,) = told(lambda: warn_of_learned_rows(log_fingerprint(plan), plan, summary))
    assert words.startswith("memory is the log that this run was trained on: the model has learned from rows of it, so")
    assert f"better than on new rows. {advice}" in words


# ---- warm-ups


def test_a_warm_up_is_known_by_the_files_of_its_run(run: cb.Run, tmp_path: Path) -> None:
    assert run.folder is not None
    assert WarmUp().identity() == ["none"]
    memory = cb.Run(run.plan, run.learner, run.summary, None)
    assert WarmUp("full", memory).identity() == ["full", "a run in memory"]
    files = read_state(run.folder / "model")["files"]
    for given in (run, run.folder, str(run.folder)):
        found = WarmUp("partial", given).identity()
        assert found[0] == "partial"
        assert [line.split(" ")[0] for line in found[1:]] == sorted(files)
        assert all(str(files[line.split(" ")[0]].get("sha256", "")) in line for line in found[1:])
        assert all(len(line.split(" ")) == 2 for line in found[1:])
    with pytest.raises(SourceError, match="holds no finished run to warm up from: its model is missing"):
        WarmUp("full", tmp_path).identity()
    with pytest.raises(PlanError, match="the run that a training starts from can only be on a local disk"):
        WarmUp("full", "s3://bucket/run")


def test_only_a_partial_warm_up_refuses_tables_of_ids_that_hold_rows() -> None:
    def source(rows: int, objects: Any = None) -> Any:
        return SimpleNamespace(fields=("ad", "x"), embedder=range(rows), traits=SimpleNamespace(objects=objects))

    full: Any = SimpleNamespace(sources=[source(0), source(9, objects="server"), source(1234)])
    for kind in ("full", "continue"):
        WarmUp(kind, "runs/x").check(full)
    WarmUp().check(full)
    WarmUp("partial", "runs/x").check(SimpleNamespace(sources=full.sources[:2]))  # type: ignore[arg-type]
    with pytest.raises(
        PlanError, match="but the table of 'ad' holds 1,234 rows; use an empty table, or warm_up='full'"
    ):
        WarmUp("partial", "runs/x").check(full)


def test_the_table_of_the_same_fields_is_taken() -> None:
    source: Any = SimpleNamespace(fields=("user", "ad"))
    place = Path("runs/x/model")
    assert _file(place, [["tag"], ["ad", "user"]], source) == place / "table-1.ctrtable"
    for tables in (None, [], [["user"], ["ad"]], ["user", "ad"], [["user", "ad", "tag"]]):
        with pytest.raises(PlanError, match=r"runs/x has no embedder for 'user', 'ad' together; it has \["):
            _file(place, tables, source)


def continued(state: dict[str, Any], optimizer: Any) -> list[str]:
    learner: Any = SimpleNamespace(optimizer=optimizer, schema=SimpleNamespace(fingerprint="mine"))
    return told(lambda: _check_continues(Path("runs/x/model"), state, learner))


def test_a_training_is_continued_with_its_optimizer_and_its_plan() -> None:
    adam = torch.optim.Adam([torch.zeros(1)])
    files = {"optimizer.safetensors": {}}
    state = {"dense optimizer": "Adam", "files": files, "fingerprint": "mine"}
    assert continued(state, adam) == []
    assert continued({**state, "dense optimizer": None}, None) == []
    for old in ({"files": files}, {"dense optimizer": "Adam", "files": {}}, {"files": {}}):
        with pytest.raises(
            PlanError, match="runs/x was trained by a version of CTRBox that did not save the optimizer"
        ):
            continued(old, adam)
    for kept, mine, shown in (("SGD", adam, "Adam"), ("Adam", None, "None")):
        with pytest.raises(
            PlanError,
            match=f"was trained with the dense optimizer {kept}, but this training uses {shown}, which cannot",
        ):
            continued({**state, "dense optimizer": kept}, mine)
    (words,) = continued({**state, "fingerprint": "theirs"}, adam)
    assert words.startswith(
        "the plan of runs/x has another fingerprint than this one: features, cleaning or fitted values"
    )


# ---- tables that hold rows


def test_tables_with_rows_are_told_of_or_emptied(tmp_path: Path) -> None:
    memory, empty = cb.MemoryTable(2), cb.MemoryTable(2)
    with cb.SparseTable(tmp_path / "t", 2, ram="1MB") as disk:
        for table in (memory, empty, disk):
            table.open(cb.embed.embedder.Row(2))
        assert told(lambda: warn_of_rows([empty, disk])) == []
        check_rows_told([memory, empty, disk], None)
        memory.pull(np.arange(1, 4))
        disk.pull(np.arange(1, 6))
        places = [
            "the MemoryTable already holds 3 rows, and",
            f"the table in {tmp_path / 't'} already holds 5 rows, and",
        ]
        for words, place in zip(told(lambda: warn_of_rows([memory, empty, disk])), places, strict=True):
            assert words.startswith(place)
        for asked in ("keep", "empty"):
            check_rows_told([memory, disk], asked)
        with pytest.raises(
            PlanError, match=r"starts the run over, but the table in .*t still holds 5 rows from an earlier"
        ):
            check_rows_told([empty, disk, memory], None)
        clear_rows([memory, empty, disk])
        assert [len(table) for table in (memory, empty, disk)] == [0, 0, 0]
        set_rate([memory, disk], 0.25)
        assert [table.optimizer.lr for table in (memory, disk)] == [0.25, 0.25]  # type: ignore[union-attr]
    with pytest.raises(PlanError, match=r"but this model has none \(it reads nothing\); remove lr="):
        set_rate([], 0.25)
    with pytest.raises(PlanError, match=r"but this model has none \(it reads object\); remove lr="):
        set_rate([object(), object()], 0.25)  # type: ignore[list-item]


# ---- settings and states


@pytest.mark.parametrize(
    ("calibrate", "rows", "share", "held"),
    [
        (None, 1000, None, 0),
        ("intercept", 1000, None, 0),
        ("platt", 1000, None, 100),
        ("isotonic", 1000, 0.25, 250),
        ("platt", 14, None, 1),
        ("platt", 4, None, 0),
        ("platt", 10_000_000, None, 1_000_000),
        ("platt", 10_000_010, None, 1_000_000),
        ("platt", 9_999_990, None, 999_999),
    ],
)
def test_a_share_of_the_training_rows_is_held_back_for_a_map(
    calibrate: str | None, rows: int, share: float | None, held: int
) -> None:
    assert Settings(calibrate=calibrate, calibrate_share=share).calibration_rows(rows) == held


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"calibrate": "plat"}, "that is added to every logit, got 'plat'; nearest: 'platt'"),
        ({"calibrate": 50}, "a number above -50 and below 50 that is added to every logit, got 50.0"),
        ({"calibrate": -50.0}, "got -50.0"),
        ({"calibrate": True}, "got True"),
        ({"monitor": "acu"}, "logloss, auc, gauc, weighted_logloss, weighted_auc, weighted_gauc, got 'acu'"),
        ({"monitor": 3}, "got 3"),
        ({"average": 0}, "average must be a number above 0 and below 1, such as 0.999, got 0"),
        ({"average": 1.0}, "got 1.0"),
        ({"average": True}, "got True"),
        ({"calibrate_by": "ad"}, "calibrate_by= needs calibrate='platt' or calibrate='isotonic', got calibrate=None; change"),
        ({"calibrate_trend": True, "calibrate": 0.5}, "calibrate_trend= needs calibrate='platt' or calibrate='isotonic', got"),
        ({"calibrate_share": 0.5, "calibrate": "weights"}, "calibrate_share= needs calibrate='platt'"),
        ({"calibrate_by": 3, "calibrate": "platt"}, "calibrate_by must be the name of a sparse feature, got 3"),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_be_is_named(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=re.escape(says)):
        Settings(**asked)


def test_settings_at_their_bounds_are_taken() -> None:
    assert Settings(calibrate=-49.5).shift == -49.5
    assert Settings(calibrate=49).calibrate == 49.0
    for kind in CALIBRATIONS:
        assert Settings(calibrate=kind).shift == 0.0
    for monitor in ("loss", "click.auc", "weighted_gauc"):
        assert Settings(monitor=monitor).monitor == monitor
    assert Settings(average=0.5).average == 0.5
    assert Settings(calibrate="platt", calibrate_by="ad", calibrate_trend=True).fits_map


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"step": "3"}, "step of its state is '3'"),
        ({"finished": 1}, "finished of its state is 1"),
        ({"best": True}, "best of its state is True"),
        ({"losses": None}, "losses of its state is None"),
        ({"position": {"row": 0.5}}, "position of its state is {'row': 0.5}"),
        ({"more": 1}, "it does not hold the state of a training"),
    ],
)
def test_a_state_of_other_types_names_what_it_holds(change: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError, match=re.escape(says)):
        state_of({**vars(State()), **change})
    assert state_of({**vars(State()), "best": 3, "seconds": 2, "plateau_best": 0.5}).best == 3
