"""Parts of a training with several ranks, each by itself: places, errors of lost ranks, the launcher's clock, checkpoints."""

from __future__ import annotations

import hashlib
import json
import signal
import threading
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import ctrbox as cb
from ctrbox.errors import DeviceError, PlanError, TrainError
from ctrbox.ranks import group as connections
from ctrbox.ranks import same_code_data_settings
from ctrbox.ranks import start_and_watch_ranks as launch
from ctrbox.ranks.exchange_costs import step_costs
from ctrbox.ranks.group import Cost, Group, RankHangs, RankLost, first_line, named
from ctrbox.ranks.same_code_data_settings import check_same
from ctrbox.ranks.start_and_watch_ranks import LOST, Rank, culprit, environment_of, noting_signals, watch
from ctrbox.ranks.torchrun_environment import LAUNCHED, MOST_RANKS, World
from tests.ranks.threads import in_ranks

# ---- which rank this is


def environment(**more: str) -> dict[str, str]:
    return {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "29500", **more}


@pytest.mark.parametrize(
    ("name", "good", "bad", "words"),
    [
        ("RANK", ["0", "1"], ["2", "-1", "1.0", " 1"], "RANK must be a whole number from 0 to 1"),
        ("WORLD_SIZE", ["2", str(MOST_RANKS)], ["0", str(MOST_RANKS + 1)], "WORLD_SIZE must be a whole number from "
        "1 to 1,024"),
        ("MASTER_PORT", ["1", "65535"], ["0", "65536"], "MASTER_PORT must be a whole number from 1 to 65,535"),
        ("LOCAL_WORLD_SIZE", ["1", "2"], ["0", "3"], "LOCAL_WORLD_SIZE must be a whole number from 1 to 2"),
        ("TORCHELASTIC_RESTART_COUNT", ["0", str(2**31)], [str(2**31 + 1)], "RESTART_COUNT must be a whole number from 0"),
    ],
)  # fmt: skip
def test_numbers_of_the_environment_have_their_ranges(name: str, good: list[str], bad: list[str], words: str) -> None:
    for value in good:
        assert World.here(environment(**{name: value})) is not None
    for value in bad:
        with pytest.raises(DeviceError) as caught:
            World.here(environment(**{name: value}))
        assert words in str(caught.value)
        assert str(caught.value).endswith(f"got {value!r}; start the ranks with torchrun, or with ctrbox train --ranks")


def test_a_process_without_a_rank_or_without_others_trains_alone() -> None:
    for lacking in ("RANK", "WORLD_SIZE"):
        given = environment()
        del given[lacking]
        assert World.here(given) is None
    plain = World.here(environment())
    assert plain == World(0, 2, 1, "node0", 29500, False, 0, False)
    assert plain.leads
    second = World.here(environment(RANK="1", TORCHELASTIC_USE_AGENT_STORE="False", **{LAUNCHED: "1"}))
    assert second == World(1, 2, 1, "node0", 29500, False, 0, True)
    assert not second.leads


# ---- what differs between two ranks


def test_what_a_rank_has_otherwise_is_named() -> None:
    mine = {"torch": "2.0", "data": [["log", 1], ["ads", 2]], "run folder": "abc"}
    same_code_data_settings.check_same(mine, dict(mine), "rank 1")
    for theirs, message in (
        (
            {"torch": "2.1"},
            "rank 1 differs in torch: '2.1', expected '2.0'; give all processes the same code, data and settings",
        ),
        ({"torch": "2.0", "more": 1}, "rank 1 differs in more: 1, expected None"),
        ({"data": [["log", 1], ["ads", 3]]}, "rank 1 differs in data: ['ads', 3], expected ['ads', 2]"),
        ({"data": [["log", 1]]}, "rank 1 differs in data: [['log', 1]], expected [['log', 1], ['ads', 2]]"),
        ({"data": 5}, "rank 1 differs in data: 5, expected [["),
        (
            {"run folder": "abd"},
            "rank 1 cannot see the run folder of this training run; choose an out= on a file system",
        ),
    ):
        with pytest.raises(PlanError) as caught:
            same_code_data_settings.check_same(mine, theirs, "rank 1")
        assert str(caught.value).startswith(message)


def test_the_facts_of_a_rank_hold_the_code_and_what_it_sees_of_the_run_folder(tmp_path: Path) -> None:
    here = same_code_data_settings.facts_here()
    version, digest = here["ctrbox"].split()
    assert (version, len(digest), here["torch"]) == (cb.__version__, 16, torch.__version__)
    plan: Any = SimpleNamespace(fingerprint="f", data_fingerprints=lambda: ["d"])
    assert same_code_data_settings.facts_of(plan, tmp_path)["run folder"] == "not visible"
    (tmp_path / "config.json").write_bytes(b"{}")
    seen = same_code_data_settings.facts_of(plan, tmp_path)
    assert seen == {**here, "plan": "f", "data": ["d"], "run folder": hashlib.sha256(b"{}").hexdigest()[:16]}


# ---- a rank that is lost


def lonely(part: int = 0, of: int = 3, entered: int = 5) -> Any:
    """Return a group without connections, whose store is memory of this process."""
    made = Group.__new__(Group)
    made.part, made.of, made.entered, made.seconds, made.name = part, of, entered, 2.5, "steps"
    made.costs, made.others = defaultdict(Cost), []
    made.told_store, made.ended, made.orphaned = dist.HashStore(), threading.Event(), None
    made.told_store.set_timeout(timedelta(seconds=1))
    made.made = object()  # type: ignore[assignment]
    return made


def test_the_error_that_a_rank_left_is_the_cause_for_the_others() -> None:
    group = lonely()
    group.told_store.set("failed/0", "my own")
    lost = group._lost(RuntimeError("Connection closed\nby peer"))
    assert type(lost) is RankLost
    assert str(lost).startswith(
        "rank 0 lost the connection to another rank (Connection closed); the message of the rank"
    )
    group.told_store.set("failed/2", "no such column")
    for error in ("Connection closed", "Timed out"):
        lost = group._lost(RuntimeError(error))
        assert (type(lost), str(lost)) == (RankLost, "rank 2 failed: no such column")


@pytest.mark.parametrize(
    ("entered", "error", "hung"),
    [
        ({1: 4, 2: 5}, "Timed out waiting 3000ms", "rank 1"),
        ({1: 5, 2: 4}, "a TIMEOUT", "rank 2"),
        ({1: 4, 2: 4}, "timed out", "ranks 1, 2"),
        ({1: 4, 2: 3}, "timed out", "rank 2"),  # which rank 1 waits for, too
        ({2: 5}, "timed out", "rank 1"),  # that has published nothing
        ({1: 5, 2: 5}, "timed out", None),
        ({1: 6, 2: 5}, "timed out", None),
        ({1: 4, 2: 5}, "Connection closed", None),
    ],
)
def test_the_rank_that_entered_the_fewest_calls_hangs(entered: dict[int, int], error: str, hung: str | None) -> None:
    group = lonely()
    for rank, calls in entered.items():
        group.told_store.set(f"at/steps/{rank}", str(calls))
    lost = group._lost(RuntimeError(error))
    if hung is None:
        assert type(lost) is RankLost
        assert f"lost the connection to another rank ({error})" in str(lost)
    else:
        assert type(lost) is RankHangs
        assert str(lost).startswith(
            f"{hung} did not answer for 2.5 s while rank 0 waited; check what that process is doing"
        )


def test_a_failing_rank_leaves_the_beginning_of_its_message() -> None:
    group = lonely(part=1)
    for error, left in (
        (TrainError("x" * 3000), "x" * connections.MOST_REASON),
        (TrainError(), "TrainError"),
        (TrainError("é"), "é"),
    ):
        group.fail(error)
        assert group.told_store.get("failed/1").decode() == left
    group = lonely(part=1)
    group.made = None  # which has left already
    group.fail(TrainError("late"))
    assert not group.told_store.check(["failed/1"])


def test_errors_of_calls_become_lost_ranks_and_calls_are_counted() -> None:
    group = lonely(entered=0)
    with pytest.raises(RankLost, match="lost the connection"), group._call("sums", 8):
        raise RuntimeError("gone")
    with pytest.raises(ValueError, match="mine"), group._call("sums", 8):
        raise ValueError("mine")
    assert group.entered == 2
    assert not group.costs  # of calls that failed
    assert (named([4]), named([0, 2])) == ("rank 4", "ranks 0, 2")
    assert first_line(RuntimeError(" one \ntwo")) == "one "
    assert first_line(RuntimeError("")) == "RuntimeError"
    assert first_line(RuntimeError("y" * 500)) == "y" * 300


class BrokenStore:
    def set(self, key: str, value: str) -> None:
        raise RuntimeError("no store")


@pytest.mark.parametrize("left", [False, True])
def test_a_rank_whose_store_is_gone_is_told_so_unless_it_has_left(left: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PUBLISHED", 0.0)
    called = []
    group = lonely()
    group.orphaned = lambda: called.append(True)
    group.told_store = BrokenStore()
    if left:

        class Leaving(BrokenStore):
            def set(self, key: str, value: str) -> None:
                group.ended.set()
                super().set(key, value)

        group.told_store = Leaving()
    group._publish()
    assert called == ([] if left else [True])
    group.orphaned = None
    group._publish()


def test_the_number_of_calls_is_published_until_the_rank_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PUBLISHED", 0.0)
    group = lonely(part=2, entered=41)
    told = []

    class Store:
        def set(self, key: str, value: str) -> None:
            told.append((key, value))
            group.entered += 1
            if len(told) == 3:
                group.ended.set()

    group.told_store = Store()
    group._publish()
    assert told == [("at/steps/2", "41"), ("at/steps/2", "42"), ("at/steps/2", "43")]


def joined(size: int, work: Callable[[Group], Any]) -> list[Any]:
    def run(ranks: Any) -> Any:
        ranks.group = Group.join(ranks.world, 60.0)
        return work(ranks.group)

    return in_ranks(size, run)


def test_bytes_given_to_other_ranks_are_counted_and_long_news_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps("x" * 98)  # 100 bytes
    monkeypatch.setattr(connections, "MOST_TOLD", 100)

    def work(group: Group) -> Any:
        group.exchange(
            np.zeros((5, 2), np.float32), [1, 4] if group.part == 0 else [2, 3], [1, 2] if group.part == 0 else [4, 3]
        )
        exchanged = group.moved
        weight = torch.zeros(10)
        weight.grad = torch.ones(10) * (group.part + 1)
        group.add_up([weight], 0.5)
        added = group.moved - exchanged
        assert group.everyone(json.loads(text)) == ["x" * 98] * 2
        calls = group.entered
        with pytest.raises(
            TrainError,
            match=r"a rank sent a description of 101 bytes about its code, data and settings; expected at most 100",
        ):
            group.everyone("x" * 99)
        group.leave()
        assert group.ended.is_set()
        return exchanged, added, weight.grad.tolist(), calls, group.publisher.is_alive()

    # Rank 0 keeps one row of five and rank 1 three; of 10 gradients and a number that says that there is one,
    # each rank gives 6 to the other, with one for padding, and sends 6 sums.
    assert joined(2, work) == [(32, 48, [1.5] * 10, 4, False), (16, 48, [1.5] * 10, 4, False)]


# ---- the launcher


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < 100


class Fake:
    """A rank that ends at a time with a code, or by the signals that are named with the code for each."""

    def __init__(
        self, clock: Clock, number: int, ends: float = 1e9, code: int = 0, heeds: dict[int, int] | None = None
    ) -> None:
        self.clock, self.number, self.ends, self.gives = clock, number, ends, code
        self.heeds = {signal.SIGKILL: -9, **(heeds or {})}
        self.got: list[tuple[float, int]] = []
        self.process = self

    @property
    def code(self) -> int | None:
        return self.gives if self.clock.now >= self.ends else None

    returncode = code

    def wait(self, timeout: float | None = None) -> int:
        assert self.code is not None
        return self.code

    def send(self, number: int) -> None:
        if self.code is None:
            self.got.append((round(self.clock.now, 2), int(number)))
            if number in self.heeds:
                self.ends, self.gives = self.clock.now, self.heeds[number]

    def why(self) -> str:
        return f"rank {self.number} ended with {self.code}"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(launch, "time", made)
    return made


def watched(ranks: list[Any], noted: list[int] | None = None) -> tuple[int, list[str]]:
    told: list[str] = []
    return watch(ranks, noted if noted is not None else [], told.append), told


def test_ranks_that_end_well_at_any_time_are_a_success(clock: Clock) -> None:
    ranks = [Fake(clock, 0, 5), Fake(clock, 1, 30)]
    assert watched(ranks) == (0, [])
    assert [r.got for r in ranks] == [[], []]


def test_after_a_failure_the_others_are_asked_to_end_and_then_killed(clock: Clock) -> None:
    ranks = [Fake(clock, 0, heeds={signal.SIGTERM: 143}), Fake(clock, 1, 1, 3), Fake(clock, 2)]
    result, told = watched(ranks)
    assert (result, told[0].split(". ")[0]) == (1, "ctrbox: error: rank 1 ended with 3")
    ((asked, term),) = ranks[0].got
    assert (term, 4 <= asked <= 4.11) == (signal.SIGTERM, True)  # LATE after the failure at 1 s
    assert [number for _, number in ranks[2].got] == [signal.SIGTERM, signal.SIGKILL]
    assert 14 <= ranks[2].got[1][0] <= 14.21  # and GRACE later


def test_a_rank_that_ends_because_of_another_is_not_asked_to(clock: Clock) -> None:
    ranks = [Fake(clock, 0, 3, LOST), Fake(clock, 1, 2, -9)]
    assert watched(ranks)[1][0].startswith("ctrbox: error: rank 1 ended with -9. All ranks have ended")
    assert [r.got for r in ranks] == [[], []]


@pytest.mark.parametrize(("code", "tells"), [(1, False), (2, False), (-9, True), (LOST, True)])
def test_of_rank_0_only_an_end_without_words_is_told(code: int, tells: bool, clock: Clock) -> None:
    assert [bool(t) for t in watched([Fake(clock, 0, 1, code), Fake(clock, 1, 2)])] == [True, tells]


def test_the_first_signal_is_passed_on_and_the_second_kills(clock: Clock) -> None:
    noted = [int(signal.SIGTERM)]
    ranks = [Fake(clock, 0, heeds={}), Fake(clock, 1, heeds={signal.SIGTERM: 143})]
    asked = clock.sleep

    def sleep(seconds: float) -> None:
        asked(seconds)
        if clock.now > 20 and len(noted) == 1:
            noted.append(int(signal.SIGINT))

    clock.sleep = sleep  # type: ignore[method-assign]
    assert watched(ranks, noted) == (128 + 15, [])
    assert [number for _, number in ranks[0].got] == [15, 9]  # no rank is ended for its own failure meanwhile
    assert ranks[0].got[1][0] >= 20
    assert ranks[1].got == [(0.0, 15)]


def test_the_culprit_is_a_killed_rank_then_one_with_an_error_then_any(clock: Clock) -> None:
    def blamed(*codes: int) -> int:
        return culprit([Fake(clock, k, 0, code) for k, code in enumerate(codes)]).number  # type: ignore[misc]

    assert blamed(1, 0, -9) == 2
    assert blamed(1, 3, 0) == 0
    assert blamed(LOST, LOST, 4) == 2
    assert blamed(0, LOST, LOST) == 0  # it ended without a word, and the others lost it
    assert blamed(LOST, LOST) == 0
    assert blamed(LOST, -15, -9) == 1


def test_the_environment_of_a_rank_is_that_of_torchrun() -> None:
    made = environment_of(2, 5, 1234)
    assert World.here(made) == World(2, 5, 5, "127.0.0.1", 1234, True, 0, True, 2)
    assert World.here(environment_of(2, 5, 1234, gpus=3)) == World(2, 5, 5, "127.0.0.1", 1234, True, 0, True, 2, 3)
    assert made["LOCAL_RANK"] == "2"


def test_signals_are_noted_in_the_main_thread_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with noting_signals() as noted:
        assert signal.getsignal(signal.SIGTERM) is not before
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert noted == [signal.SIGTERM, signal.SIGINT]
    assert signal.getsignal(signal.SIGTERM) is before
    seen: list[Any] = []

    def elsewhere() -> None:
        with noting_signals() as noted:
            seen.append((noted, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [([], before)]


@pytest.mark.parametrize(
    ("code", "lines", "why"),
    [
        (-9, ["ctrbox: error: x"], "rank 3 was killed by SIGKILL; the kernel does that when memory runs out"),
        (-15, [], "rank 3 was killed by SIGTERM"),
        (1, ["ctrbox: error: first", "more", "ctrbox: error: last", "end"], "rank 3: last"),
        (7, [], "rank 3 ended with exit code 7"),
        (7, ["a", "b"], "rank 3 ended with exit code 7; it wrote last:\n  a\n  b"),
    ],
)
def test_why_a_rank_ended_is_told_in_words(code: int, lines: list[str], why: str) -> None:
    rank = Rank.__new__(Rank)
    rank.number, rank.lines, rank.listener = 3, lines, None  # type: ignore[assignment]
    rank.process = SimpleNamespace(wait=lambda timeout=None: code)  # type: ignore[assignment]
    assert rank.why() == why


# ---- what the exchanges of a step cost


def test_the_costs_of_a_step_are_averages_over_the_kinds_that_were_exchanged() -> None:
    group, ahead = (SimpleNamespace(costs=defaultdict(Cost)) for _ in range(2))
    group.costs |= {"rows": Cost(1000, 3.0), "dense": Cost(64, 0.5), "keys": Cost(20, 9.0), "evaluation": Cost(5, 5.0)}
    ahead.costs |= {"keys": Cost(80, 7.0), "log": Cost(400, 1.0), "rows": Cost(8, 1.0)}
    given: Any = (group, ahead, 1.0)
    assert step_costs(*given, 1303, 10) == {
        "bytes_sent_per_step": 157,
        "least_bytes_per_step": 130,
        "sent_per_step": {"keys": 10, "rows": 100, "dense": 6, "log": 40},
        "waited_per_step": {"keys": 0.1, "rows": 0.3, "dense": 0.05},
    }
    assert list(step_costs(*given, 0, 10)["sent_per_step"]) == ["keys", "rows", "dense", "log"]
    for steps in (0, 1):  # a training that made no step
        assert step_costs(*given, 1303, steps)["bytes_sent_per_step"] == 1572


def test_facts_that_differ_are_named_with_the_first_difference() -> None:
    mine = {"torch": "2.0", "data": [["a", 1], ["b", 2]], "run folder": "x"}
    check_same(mine, dict(mine), "rank 1")
    for theirs, told in (
        ({"torch": "2.1"}, "torch: '2.1', expected '2.0'"),
        ({"python": "3"}, "python: '3', expected None"),
        ({"data": [["a", 1], ["b", 3]]}, "data: ['b', 3], expected ['b', 2]"),
        ({"data": [["a", 1]]}, "data: [['a', 1]], expected [['a', 1], ['b', 2]]"),
        ({"data": "none"}, "data: 'none', expected [['a', 1], ['b', 2]]"),
    ):
        with pytest.raises(PlanError) as met:
            check_same(mine, theirs, "rank 1")
        assert str(met.value) == f"rank 1 differs in {told}; give all processes the same code, data and settings"
    with pytest.raises(
        PlanError, match=r"^rank 1 cannot see the run folder of this training run; choose an out= on a file"
    ):
        check_same(mine, {"run folder": "y"}, "rank 1")


# ---- ranks on GPUs


def test_nccl_is_used_once_it_has_moved_a_number_between_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nccl:
        Options = SimpleNamespace

        def __init__(self, store: Any, part: int, of: int, options: Any) -> None:
            if part < 0:
                raise RuntimeError("no such GPU\nand more")
            self.given = (store, part, of, options._timeout.total_seconds())

    def moved(tensor: torch.Tensor, *counts: Any) -> torch.Tensor:
        asked.append((tensor.tolist(), *counts))
        return torch.tensor(answer)

    asked: list[Any] = []
    answer = [1, 1, 1]
    fake = SimpleNamespace(ProcessGroupNCCL=Nccl, PrefixStore=lambda name, store: (name, store))
    monkeypatch.setattr(connections, "dist", fake)
    group: Any = Group.__new__(Group)
    vars(group).update(seconds=5.0, told_store="store", part=1, of=3, nccl=None, exchange_tensor=moved)
    assert not group.by_nccl
    group.connect_gpus(torch.device("cpu"))
    assert group.by_nccl
    assert group.nccl.given == (("nccl", "store"), 1, 3, 35.0)  # it waits longer than gloo, which names the rank
    assert asked == [([0, 1, 2], [1] * 3, [1] * 3, "told")]
    answer[0] = 0
    for part, why in ((1, "rank 1 got [0, 1, 1] from the other ranks"), (-1, "no such GPU")):
        group.part = part
        with pytest.raises(DeviceError) as met:
            group.connect_gpus(torch.device("cpu"))
        assert str(met.value) == (
            f"NCCL cannot connect cpu of rank {part} with the GPUs of the other ranks ({why}); use --exchange gloo, which moves "
            "tensors through main memory"
        )
