"""How ranks share blocks of a log and rows of a table, and when the loop of a rank writes a checkpoint or asks for one."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import ctrbox as cb
from ctrbox import col
from ctrbox.embed.embedder import Row
from ctrbox.embed.shards import Spec
from ctrbox.errors import CompactionError, DataError, PlanError, TrainError, WriteError
from ctrbox.ranks import fit as fit_module
from ctrbox.ranks.finish_training import AllRanks
from ctrbox.ranks.fit import RankFit
from ctrbox.ranks.group import Group
from ctrbox.ranks.ranks import Ranks, check_supported
from ctrbox.ranks.table import RankTable
from ctrbox.ranks.torchrun_environment import World
from ctrbox.train.checkpoint import checkpoint_path
from tests.ranks.threads import in_ranks

# ---- the table


def spec() -> Spec:
    whole = cb.MemoryTable(3, optimizer=cb.optim.SGD(lr=0.5), init=0.1)
    whole.open(Row(3))
    return Spec.of(whole, 2)


class Alone:
    """A group of one rank, whose calls return what was given."""

    part, of = 0, 1

    def __init__(self, told: list[Any] | None = None) -> None:
        self.told = told

    def counts(self, mine: list[int], kind: str) -> list[int]:
        return mine

    def exchange(self, array: Any, mine: Any, theirs: Any, kind: str) -> Any:
        return array

    def everyone(self, mine: Any) -> list[Any]:
        return [mine] if self.told is None else self.told.pop(0)


def alone(told: list[Any] | None = None) -> RankTable:
    return RankTable(Alone(told), spec())  # type: ignore[arg-type]


def test_a_rank_table_tells_its_shape_and_refuses_another() -> None:
    table = alone()
    assert (table.dim, table.row, len(table)) == (3, Row(3), 0)
    table.open(Row(3))
    with pytest.raises(PlanError, match=r"the ranks hold rows of .*, but the model reads"):
        table.open(Row(4))
    table.pull(np.array([5, 6]))
    assert len(table) == 2
    assert table.nbytes == table.own.nbytes > 0
    table.close()  # which leaves rows in memory alone


def test_a_push_follows_the_pull_that_may_create() -> None:
    table, keys = alone(), np.array([5, 6, 7])
    for create, pushed in ((False, keys), (True, keys[:2]), (True, keys + 1)):
        table.pull(keys, create=create)
        with pytest.raises(TrainError, match="a push must follow the pull of the same keys"):
            table.push(pushed, np.ones((len(pushed), 3), np.float32))
    before = table.pull(keys)
    table.push(keys, np.ones((3, 3), np.float32))
    with pytest.raises(TrainError, match="a push must follow"):  # one pull, one push
        table.push(keys, np.ones((3, 3), np.float32))
    np.testing.assert_allclose(table.pull(keys), before - 0.5, rtol=1e-6)


def test_what_goes_wrong_while_one_rank_saves_is_raised_by_all(tmp_path: Path) -> None:
    for told, error, message in (
        ([None, ("write", "disk full")], WriteError, "rank 1: disk full"),
        ([("compaction", "slow"), None], CompactionError, "rank 0: slow"),
    ):
        table = alone([[str(tmp_path)], told])
        with pytest.raises(error, match=f"^{message}$"):
            table.save_part()
        assert [path.name for path in tmp_path.iterdir()]
    table = alone()
    table.save(tmp_path / "whole")
    assert any((tmp_path / "whole").iterdir())

    def broken(path: Path) -> None:
        raise OSError("no space")

    table.own.save = broken
    with pytest.raises(WriteError, match=r"^rank 0: no space$"):
        table.save(tmp_path / "other")


# ---- the loop of a rank


class Loop(RankFit):
    """The loop without a training: what it would write is noted."""

    def __init__(self, part: int = 0, steps: int | None = None) -> None:
        self.ranks = SimpleNamespace(part=part)  # type: ignore[assignment]
        self.together = SimpleNamespace(part=part)  # type: ignore[assignment]
        self.due, self.ending, self.steps, self.seconds, self.saved = False, False, steps, 10.0, 0.0
        self.state = SimpleNamespace(step=7)  # type: ignore[assignment]
        self.settings = SimpleNamespace(seed=3)  # type: ignore[assignment]
        self.tables = [SimpleNamespace(save_part=lambda: self.done.append("part"))]  # type: ignore[list-item]
        self.done: list[str] = []
        self.learner = SimpleNamespace(learn_part=self.learn_part, settle=lambda: self.done.append("settle"))  # type: ignore[assignment]
        self.heard: list[Any] = []
        self.answers = (64, 0.5, [9.0, 0.0, 0.0])

    @property
    def leads(self) -> bool:
        return self.ranks.part == 0

    def _next_factor(self) -> float:
        return 0.25

    def learn_part(self, *given: Any) -> Any:
        self.heard.append((*given, torch.initial_seed()))
        return self.answers


@pytest.mark.parametrize(
    ("due", "steps", "step", "written"),
    [(False, None, 7, False), (True, None, 7, True), (False, 7, 7, True), (False, 7, 14, True), (False, 7, 8, False)],
)
def test_a_checkpoint_is_due_by_the_clock_or_by_the_number_of_steps(
    due: bool, steps: int | None, step: int, written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(part=1, steps=steps)
    loop.due, loop.state.step = due, step
    loop._checkpoint_if_due(SimpleNamespace(by=None))  # type: ignore[arg-type]
    assert loop.done == (["settle", "part"] if written else [])
    assert not loop.due
    assert not loop.ending
    assert (loop.saved > 0) is written
    loop._checkpoint_if_due(SimpleNamespace(by="SIGINT"))  # type: ignore[arg-type]
    assert loop.ending


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize(("now", "asks"), [(10.0, False), (10.5, True)])
def test_rank_0_alone_asks_for_a_checkpoint_when_its_time_has_come(
    part: int, now: float, asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_module, "time", SimpleNamespace(perf_counter=lambda: now))
    loop = Loop(part)
    handed: Any = SimpleNamespace(clicks=4)
    assert loop._learn(handed, None) == (64, 0.5, 9, False)
    ((looked, factor, beside, seed),) = loop.heard
    assert (looked, factor, beside) == (None, 0.25, (4, 0.0, float(asks and part == 0)))
    assert seed == 3 * 0x9E3779B9 + 7 * 4096 + part  # every rank and step draws its own numbers
    assert not loop.due
    loop.ending, loop.answers = True, (64, 0.5, [9.0, 2.0, 1.0])
    assert loop._learn(handed, None) == (64, 0.5, 9, True)
    assert loop.heard[1][2][1] == 1.0
    assert loop.due


def test_a_rank_that_cannot_see_the_checkpoint_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^rank 1 cannot see the checkpoint .*checkpoints"):
        Loop(part=1).begin(tmp_path, [5])


def test_ranks_begin_with_the_newest_checkpoint_that_all_of_them_can_read(tmp_path: Path) -> None:
    for step in (9, 5):
        checkpoint_path(tmp_path / "checkpoints", step).mkdir(parents=True)
    loop, begun = Loop(), []
    loop._begin_at = lambda folder, step: begun.append(step)  # type: ignore[method-assign, assignment, misc, return-value]
    answers = [[None, "table-0 is damaged"], [None, None]]
    loop.ranks = SimpleNamespace(part=0, everyone=lambda mine: answers.pop(0))  # type: ignore[assignment]
    assert loop.begin(tmp_path, [9, 5]) == 5
    assert begun == [9, 5]
    answers[:] = [[None, "table-0 is damaged"], ["the disk is gone", None]]
    with pytest.raises(DataError, match=r"can be used: rank 1: table-0 is damaged. To start over, use overwrite=True$"):
        loop.begin(tmp_path, [9, 5])


# ---- what ranks cannot train


def fitted(l2: float = 0.0, **learner: Any) -> Any:
    given = {"device": torch.device("cpu"), "bf16": False, "common": (), "sources": [], "model": torch.nn.Linear(1, 1)}
    learner = {"embedders": [source.embedder for source in learner.get("sources", [])]} | learner
    return SimpleNamespace(
        learner=SimpleNamespace(**(given | learner)), settings=SimpleNamespace(adaptive_l2=0.0, average=None, l2=l2)
    )


def test_ranks_train_on_cpus_in_full_precision() -> None:
    check_supported(fitted())
    with pytest.raises(PlanError, match=r"^several ranks train in bfloat16 on GPUs only"):
        check_supported(fitted(bf16=True))
    gpu = {"device": torch.device("cuda")}
    check_supported(fitted(**gpu, bf16=True))
    with pytest.raises(
        PlanError, match=r"^l2= of fit is not available for several ranks on GPUs; use l2 of the optimizer"
    ):
        check_supported(fitted(**gpu, l2=0.1))
    norm = torch.nn.Sequential(torch.nn.LayerNorm(2))
    check_supported(fitted(model=norm))
    norm.append(torch.nn.BatchNorm1d(2))
    check_supported(fitted(model=norm))
    norm.append(torch.nn.BatchNorm1d(2, track_running_stats=False))
    with pytest.raises(PlanError, match=r"^BatchNorm1d \('2' of the model\) keeps no running statistics; use torch"):
        check_supported(fitted(model=norm))
    counted = cb.MemoryTable(2, counters=cb.tables.Counters(), admission=cb.tables.Admission(2))
    for table in (cb.MemoryTable(2), counted):
        check_supported(fitted(sources=[SimpleNamespace(embedder=table)]))


def test_model_servers_of_ranks_are_on_cpus_and_without_batch_normalization(tmp_path: Path) -> None:
    vectors = {"id": [1, 2], "v": [[1.0, 2.0], [3.0, 4.0]]}
    cb.tables.write_vectors(tmp_path / "v.ctrvec", pa.table(vectors), key="id", vector="v")

    def served(submodel: torch.nn.Module) -> Any:
        server = cb.tables.ModelServer(tmp_path / "v.ctrvec", submodel)
        return server, fitted(sources=[SimpleNamespace(embedder=server)])

    server, fine = served(torch.nn.Linear(2, 3))
    check_supported(fine)
    server.device = torch.device("meta")
    with pytest.raises(
        PlanError, match=r"^this ModelServer computes on meta, but several ranks train a ModelServer on CPUs only"
    ):
        check_supported(fine)
    with pytest.raises(PlanError, match=r"^BatchNorm1d"):
        check_supported(served(torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 3)))[1])


def test_a_model_server_of_ranks_makes_no_step_without_gradients(tmp_path: Path) -> None:
    vectors = {"id": [1, 2], "v": [[1.0, 2.0], [3.0, 4.0]]}
    cb.tables.write_vectors(tmp_path / "v.ctrvec", pa.table(vectors), key="id", vector="v")
    start = torch.nn.Linear(2, 3)

    def server() -> cb.tables.ModelServer:
        return cb.tables.ModelServer(tmp_path / "v.ctrvec", copy.deepcopy(start), optimizer=cb.optim.Adam(lr=0.5))

    def learned(table: Any, own: Any, keys: Any) -> list[Any]:
        found = []
        for asked in (
            keys,
            np.array([9]),
        ):  # no vector has the key 9, so the momentum of the first step must not matter
            table.pull(asked)
            table.push(asked, np.ones((len(asked), 3), np.float32))
            found.append(own.submodel.weight.detach().numpy().copy())
        return found

    def work(ranks: Ranks) -> list[Any]:
        group = ranks.group = Group.join(ranks.world, 60.0)
        table = RankTable(group, specs[group.part])
        table.open(Row(3))
        return learned(table, table.own, np.array([1 + group.part]))

    alone = server()
    first, second = learned(alone, alone, np.array([1, 2]))
    assert np.array_equal(first, second)
    specs = [Spec.of(server(), 2) for _ in range(2)]
    for found in in_ranks(2, work):
        np.testing.assert_allclose(found, [first, second], rtol=1e-6)
        assert np.array_equal(*found)


class FirstStepOnly(torch.nn.Module):
    """A model whose loss depends on the field ``ad`` in the first step of training alone."""

    def __init__(self, schema: Any) -> None:
        super().__init__()
        self.reads = cb.models.Reads(schema, dim=2)
        self.steps = 0

    def forward(self, x: Any) -> torch.Tensor:
        self.steps += self.training
        user, ad = x.field("user").sum(1), x.field("ad").sum(1)
        return user if self.training and self.steps > 1 else user + ad


def test_ranks_leave_a_table_alone_that_the_loss_of_a_step_does_not_depend_on() -> None:
    rows = 12
    data = pa.table({"id": range(rows), "user": [k % 3 for k in range(rows)], "ad": [k % 2 for k in range(rows)],
                     "clicked": [k % 2 for k in range(rows)]})  # fmt: skip
    features = cb.FeatureSet(label=col("clicked"), sparse={"user": col("user"), "ad": col("ad")})
    plan = cb.compile(cb.View(data, key="id"), features, threads=1)

    def work(ranks: Any) -> Any:
        tables = {name: cb.MemoryTable(2, optimizer=cb.optim.Adam(lr=0.1), init=0.1) for name in ("user", "ad")}
        return cb.Trainer(FirstStepOnly(plan.schema), tables, threads=1).fit(
            plan, batch_size=4, valid=0, explain=False, checkpoint_seconds=1e9, cluster=ranks
        )

    alone, (first, *_) = work(None), in_ranks(2, work)
    assert not isinstance(first, BaseException), first
    assert np.allclose(first.predict(data), alone.predict(data), rtol=1e-5)


def test_tables_that_ranks_cannot_share_are_named(tmp_path: Path) -> None:
    def of(table: Any, device: str = "cpu") -> Any:
        return fitted(sources=[SimpleNamespace(embedder=table)], device=torch.device(device))

    several = "a dict cannot be shared by several ranks; use cb.MemoryTable, cb.SparseTable, cb.tables.GpuTable, "
    counted = cb.MemoryTable(2, counters=cb.tables.Counters())
    admitted = cb.MemoryTable(2, admission=cb.tables.Admission(2), counters=cb.tables.Counters())
    on_cpus = (
        "several ranks train a MemoryTable with counters= or admission= on CPUs only; set device='cpu' for the plan and"
    )
    vectors = {"id": [1, 2], "v": [[1.0, 2.0], [3.0, 4.0]]}
    cb.tables.write_vectors(tmp_path / "v.ctrvec", pa.table(vectors), key="id", vector="v")
    server = cb.tables.ModelServer(tmp_path / "v.ctrvec", torch.nn.Linear(2, 3))
    for fit, told in (
        (of({}), several),
        (of({}, "cuda"), several),
        (of(counted, "cuda"), on_cpus),
        (of(admitted, "cuda"), on_cpus),
        (
            of(server, "cuda"),
            "several ranks train a cb.tables.ModelServer on CPUs only; set device='cpu' for the plan and the",
        ),
    ):
        with pytest.raises(PlanError) as met:
            check_supported(fit)
        assert str(met.value).startswith(told)
    check_supported(of(cb.MemoryTable(2), "cuda"))
    check_supported(of(counted))


def test_after_the_last_step_tables_are_only_read() -> None:
    calls: list[tuple[str, int, str]] = []

    @contextlib.contextmanager
    def call(what: str, table: int = 0, of: str = "") -> Iterator[None]:
        calls.append((what, table, of))
        yield
        calls.append(("end", table, of))

    own = alone()
    own.pull(np.array([5, 6]))
    every = AllRanks(SimpleNamespace(call=call), 3, own)  # type: ignore[arg-type]
    assert every.row == Row(3)
    with pytest.raises(PlanError, match=r"^the training has ended; its tables can no longer create rows$"):
        every.pull(np.array([5]))
    with pytest.raises(PlanError, match=r"^the training has ended; its tables can no longer take gradients$"):
        every.push(np.array([5]), np.ones((1, 3), np.float32))
    assert calls == []
    assert every.pull(np.array([6, 5]), create=False).tobytes() == own.pull(np.array([6, 5]), create=False).tobytes()
    every.prefetch(np.array([5]))
    assert calls == [("pull", 3, ""), ("end", 3, "")]
    assert (len(every), every.nbytes) == (2, own.nbytes)
    assert calls[2:] == [("sizes", 3, ""), ("end", 3, "")] * 2


def test_a_rank_leaves_once_and_tells_its_error_first() -> None:
    done: list[Any] = []
    ranks = Ranks(World(0, 2, 2, "here", 1, True, 0, False))
    ranks.leave(ValueError("before it joined"))
    for error in (None, ValueError("why")):
        ranks.group = SimpleNamespace(fail=done.append, leave=lambda: done.append("left"))  # type: ignore[assignment]
        ranks.leave(error)
        ranks.leave(error)
        assert ranks.group is None
    assert [str(one) for one in done] == ["left", "why", "left"]
    assert (ranks.leads, ranks.timeout) == (True, 600.0)
