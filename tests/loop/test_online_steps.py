"""Decisions of the online loop, each alone, with a clock that the test moves: when to publish, keep and end, and "
"what to say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from ctrbox.errors import DataError, PlanError, SourceError, WriteError
from ctrbox.loop.intervals import Cadence, seconds
from ctrbox.loop.join import BEGIN
from ctrbox.loop.online_loop import AGAIN_S, STATUS_S, OnlineLoop
from ctrbox.views.morsel import Morsel, Origin


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("ctrbox.loop.online_loop.time", made)
    return made


class Steps(OnlineLoop):
    """A loop over nothing: what it would write is noted in ``did``."""

    def __init__(self, clock: Clock, **facts: Any) -> None:
        self.clock, self.did, self.said = clock, list[str](), list[str]()
        self.tell = self.said.append
        self.asked: Any = SimpleNamespace(by=None)
        self.engine: Any = SimpleNamespace(learned=10, waiting=0, fresh=False, kind="deep_ffm")
        self.version: Any = SimpleNamespace(number=3, time="2026-01-02T03:04:05Z", patch_bytes=7000)
        self.out, self.warm, self.every, self.failed = Path("model"), {"done": True}, Cadence(seconds=300.0), ""
        self.published_learned, self._published_s, self.began_with, self.events_read = 10, 900.0, 0, 0
        self._next_publish = self._next_checkpoint = self._next_status = 0.0
        self._number, self._changed, self._owed, self._before = 1, False, False, None
        self.publish_at_end, self.checkpoint_s, self.checkpoint_share, self.checkpoint_took_s = False, 30.0, 0.05, 0.0
        self.state_s, self._next_state = None, 0.0
        vars(self).update(facts)


class Noted(Steps):
    """The same without the steps themselves; ``fails``: those that cannot be done."""

    fails: tuple[str, ...] = ()

    def _checkpoint(self) -> bool:
        self.did.append("checkpoint")
        if "checkpoint" in self.fails:
            return False
        self._changed, self._number = False, self._number + 1
        return True

    def _publish(self) -> None:
        self.did.append("publish")
        if "publish" not in self.fails:
            self.published_learned = self.engine.learned

    def _publish_state(self, every: float) -> None:
        self.did.append(f"state every {every:g} s")

    def _write_status(self) -> None:
        self.did.append("status")


# ---- when


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"_published_s": 700.0}, False),  # nothing was learned since
        ({"published_learned": 9, "_published_s": 700.0}, True),
        ({"published_learned": 9, "_published_s": 700.5}, False),
        ({"published_learned": 9, "_published_s": 700.0, "_next_publish": 1000.0}, True),
        ({"published_learned": 9, "_published_s": 700.0, "_next_publish": 1000.5}, False),
        (
            {"published_learned": 9, "warm": {"done": True, "learned": 10}},
            True,
        ),  # what it warmed up with is due at once
        ({"published_learned": 9, "warm": {"done": True, "learned": 9}}, False),
        ({"published_learned": 9, "every": Cadence(examples=10)}, True),
        ({"published_learned": 9, "every": Cadence(examples=11)}, False),
    ],
)
def test_a_version_is_due(clock: Clock, facts: dict[str, Any], expected: bool) -> None:
    assert Steps(clock, **facts)._due() is expected


@pytest.mark.parametrize(
    ("facts", "publish", "expected"),
    [
        ({}, True, ["status"]),
        ({"_next_status": 1000.0}, True, ["status"]),
        ({"_next_status": 1000.5}, True, []),
        ({"_changed": True}, True, ["checkpoint", "status"]),
        ({"_changed": True, "_next_checkpoint": 1000.0}, True, ["checkpoint", "status"]),
        ({"_changed": True, "_next_checkpoint": 1000.5}, True, ["status"]),
        ({"_changed": True, "published_learned": 9, "_published_s": 0.0}, True, ["publish", "status"]),
        ({"_changed": True, "published_learned": 9, "_published_s": 0.0}, False, ["checkpoint", "status"]),
        ({"_changed": True, "state_s": 5.0}, True, ["checkpoint", "state every 5 s", "status"]),
        ({"state_s": 5.0, "_next_state": 1000.0}, True, ["state every 5 s", "status"]),
        ({"state_s": 5.0, "_next_state": 1000.5}, True, ["status"]),
    ],
)
def test_between_two_batches_what_is_due_is_done(
    clock: Clock, facts: dict[str, Any], publish: bool, expected: list[str]
) -> None:
    steps = Noted(clock, **facts)
    steps._between(publish)
    assert steps.did == expected


# ---- the end


@pytest.mark.parametrize(
    ("facts", "fails", "did", "error"),
    [
        ({}, (), ["status"], None),
        ({"_changed": True}, (), ["checkpoint", "status"], None),
        ({"_number": 0}, (), ["checkpoint", "status"], None),
        ({"publish_at_end": True}, (), ["status"], None),
        ({"publish_at_end": True, "published_learned": 9}, (), ["publish", "status"], None),
        ({"_owed": True, "published_learned": 9}, (), ["publish", "status"], None),
        ({"published_learned": 9}, (), ["status"], None),
        ({"_changed": True, "state_s": 5.0}, (), ["checkpoint", "state every 5 s", "status"], None),
        (
            {"_changed": True, "publish_at_end": True, "published_learned": 9},
            ("checkpoint",),
            ["checkpoint", "status"],
            "what was learned after checkpoint 1 could not be saved: no room",
        ),
        ({"_number": 0}, ("checkpoint",), ["checkpoint", "status"], "what was learned could not be saved: no room"),
        (
            {"publish_at_end": True, "published_learned": 9},
            ("publish",),
            ["publish", "status"],
            "checkpoint 1 holds everything that was learned, but publishing it failed and version 3 is still current: "
            "no room. "
            "Free some space and start the loop again",
        ),
    ],
)
def test_at_the_end_what_was_learned_is_kept_and_published_or_it_is_an_error(
    clock: Clock, facts: dict[str, Any], fails: tuple[str, ...], did: list[str], error: str | None
) -> None:
    steps = Noted(clock, fails=fails, failed="no room", **facts)
    if error is None:
        steps._end()
    else:
        with pytest.raises(WriteError) as told:
            steps._end()
        assert str(told.value).startswith(error)
    assert steps.did == did


# ---- checkpoints and versions


class Checkpoints:
    """Takes half a second for a checkpoint, or fails."""

    def __init__(self, clock: Clock, fails: bool) -> None:
        self.clock, self.fails, self.numbers = clock, fails, list[int]()

    def write(self, number: int, *_: Any) -> None:
        self.clock.now += 0.5
        if self.fails:
            raise WriteError("no room")
        self.numbers.append(number)


def keeping(clock: Clock, fails: bool, **facts: Any) -> tuple[Steps, Checkpoints, list[Any]]:
    kept: list[Any] = []
    checkpoints = Checkpoints(clock, fails)
    given: dict[str, Any] = {
        "checkpoints": checkpoints,
        "stream": SimpleNamespace(position=lambda: "here", kept=kept.append),
        "learner": SimpleNamespace(state=lambda: ({}, {})),
        "plan": SimpleNamespace(fingerprint="p"),
        "complaints": SimpleNamespace(lines=1, chunks=2),
        "window_us": 1,
        "lateness_us": 1,
        "layout": SimpleNamespace(id="i", time="t", event="e", clock_unit=None),
        "_changed": True,
        **facts,
    }
    return Steps(clock, **given), checkpoints, kept


@pytest.mark.parametrize(("every", "share", "wait"), [(30.0, 0.05, 30.0), (5.0, 0.05, 10.0), (10.0, 0.05, 10.0)])
def test_checkpoints_are_so_far_apart_that_they_take_their_share_of_the_time(
    clock: Clock, every: float, share: float, wait: float
) -> None:
    steps, checkpoints, kept = keeping(clock, False, checkpoint_s=every, checkpoint_share=share)
    assert steps._checkpoint()
    assert (checkpoints.numbers, steps._number, steps._changed, kept) == ([2], 2, False, [])
    assert steps.checkpoint_took_s == 0.5
    assert steps._next_checkpoint == pytest.approx(clock.now + wait)
    steps._changed = True
    assert steps._checkpoint()
    assert (checkpoints.numbers, kept) == ([2, 3], ["here"])  # the older of the two is kept
    assert steps.checkpoint_took_s == 1.0


@pytest.mark.parametrize(("every", "wait"), [(30.0, 30.0), (1.0, AGAIN_S)])
def test_a_checkpoint_that_failed_is_tried_again_soon(clock: Clock, every: float, wait: float) -> None:
    steps, _, kept = keeping(clock, True, checkpoint_s=every)
    assert not steps._checkpoint()
    assert (steps._number, steps._changed, steps.failed, kept) == (1, True, "no room", [])
    assert steps.said == ["the checkpoint could not be written, so the previous one is kept: no room"]
    assert steps._next_checkpoint == clock.now + wait


def publishing(clock: Clock, unwritable: bool, **facts: Any) -> Noted:
    def publish(engine: Any, note: str) -> Any:
        if unwritable:
            raise WriteError("no room")
        return SimpleNamespace(number=4, patch_bytes=1234, note=note)

    return Noted(clock, folder=SimpleNamespace(published=SimpleNamespace(publish=publish)), **facts)


def test_a_version_follows_its_checkpoint_and_is_told(clock: Clock) -> None:
    steps = publishing(clock, False, _changed=True, engine=SimpleNamespace(learned=12_345), _owed=True)
    OnlineLoop._publish(steps)
    assert steps.did == ["checkpoint", "status"]
    assert steps.said == ["version 4: 12,345 examples; the patch has 1,234 bytes"]
    assert (steps.published_learned, steps._published_s, steps._next_publish, steps._owed) == (12_345, 1000, 0, False)
    assert getattr(steps.version, "note", "") == "online, 12,345 examples"
    steps.did.clear()
    OnlineLoop._publish(steps)  # nothing changed since the checkpoint
    assert steps.did == ["status"]


def test_a_version_without_its_checkpoint_is_not_published(clock: Clock) -> None:
    steps = publishing(clock, False, _changed=True, fails=("checkpoint",))
    OnlineLoop._publish(steps)
    assert (steps.did, steps.said, steps.version.number) == (["checkpoint"], [], 3)
    assert steps._next_publish == 1000.0 + AGAIN_S


def test_a_version_that_cannot_be_written_is_owed_and_tried_again(clock: Clock) -> None:
    steps = publishing(clock, True, engine=SimpleNamespace(learned=11))
    OnlineLoop._publish(steps)
    assert (steps._owed, steps.failed, steps.published_learned) == (True, "no room", 10)
    assert steps.said == ["publishing failed, version 3 is still current: no room"]
    assert steps._next_publish == 1000.0 + AGAIN_S


def test_the_status_is_written_every_two_seconds_and_the_lag_is_that_of_the_newest_event(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctrbox.loop.online_loop.status", lambda progress, **beside: beside)
    written: list[Any] = []
    monkeypatch.setattr("ctrbox.loop.online_loop.write_status", lambda place, found, tell: written.append(found))
    engine = SimpleNamespace(learned=10, waiting=0, progress=None)
    for newest, lag in ((BEGIN, None), (int(990.25e6), 9.75)):
        join = SimpleNamespace(newest=newest, held=4, counts=SimpleNamespace(clicks=5))
        steps = Steps(
            clock,
            engine=engine,
            learner=SimpleNamespace(join=join, dropped=6),
            stream=SimpleNamespace(waited_s=1.23456),
            complaints=SimpleNamespace(lines=7, chunks=8),
            folder=SimpleNamespace(online=tmp_path / "online.json"),
            checkpoint_took_s=2.34567,
        )
        steps._write_status()
        assert steps._next_status == 1000.0 + STATUS_S
        assert written[-1] == {
            "published_at": "2026-01-02T03:04:05Z",
            "version": 3,
            "lag_s": lag,
            "held": 4,
            "learned": 10,
            "unlearned": 0,
            "waited_s": 1.235,
            "checkpoints": {"number": 1, "seconds": 2.346},
            "counts": {"clicks": 5, "dropped_by_filters": 6, "left_out": 7, "refused_chunks": 8},
        }


# ---- what is said


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"began_with": 9}, ""),
        ({"began_with": 10}, "nothing was learned: s has no events"),
        ({"began_with": 10, "_before": "here"}, "nothing was learned: s has no new events"),
        ({"engine": SimpleNamespace(learned=0), "_before": "here"}, "nothing was learned: s has no events"),
        (
            {"began_with": 10, "events_read": 1200, "held": 0},
            "nothing was learned from 1,200 events: no impression among them could be used, see the counts",
        ),
        (
            {"began_with": 10, "events_read": 1, "held": 2000},
            "nothing was learned from 1 events: 2,000 impressions still wait: an impression is learned from only when "
            "an event arrives that is more than 1,260 s later, the sum of window and lateness",
        ),
    ],
)
def test_a_start_that_learned_nothing_says_why(clock: Clock, facts: dict[str, Any], expected: str) -> None:
    join = SimpleNamespace(held=facts.pop("held", 0))
    stream, learner = SimpleNamespace(name="s"), SimpleNamespace(join=join)
    steps = Steps(clock, stream=stream, learner=learner, window_us=1_200_000_000, lateness_us=60_000_000, **facts)
    assert steps.nothing_learned == expected


class Following(Noted):
    def _take(self, piece: Any) -> None:
        self.did.append(f"take {piece}")
        if piece == self.stops_at:
            self.asked.by = 15

    stops_at = ""

    def _between(self, publish: bool = True) -> None:
        self.did.append("between")


@pytest.mark.parametrize(
    ("pieces", "facts", "drained", "failing", "did"),
    [
        (["a", None, "b"], {}, True, "", ["take a", "between", "between", "take b", "between"]),
        (["a", None, "b"], {"once": True}, True, "", ["take a", "between"]),
        (["a", None, "b"], {"once": True}, False, "", ["take a", "between", "between", "take b", "between"]),
        (["a", "b"], {"stops_at": "a"}, True, "", ["take a", "between"]),
        (["a", None, "b"], {}, False, "gone", ["take a", "between", "between", "take b", "between"]),
    ],
)
def test_a_stream_is_followed_until_its_end_or_a_signal(
    clock: Clock, pieces: list[Any], facts: dict[str, Any], drained: bool, failing: str, did: list[str]
) -> None:
    stream = SimpleNamespace(pieces=lambda: iter(pieces), drained=lambda: drained, failing=failing)
    steps = Following(clock, stream=stream, **{"once": False, **facts})
    steps._follow()
    assert steps.did == did


def test_a_stream_that_fails_is_an_error_of_a_loop_that_runs_once(clock: Clock) -> None:
    stream = SimpleNamespace(pieces=lambda: iter([None]), drained=lambda: False, failing="the broker is gone")
    with pytest.raises(SourceError, match="the broker is gone"):
        Following(clock, stream=stream, once=True)._follow()


# ---- what it starts from


def test_settings_that_decide_the_examples_must_be_those_of_the_checkpoint(clock: Clock) -> None:
    layout = SimpleNamespace(id="id", time="ts", event="event", clock_unit="ms")
    steps = Steps(
        clock,
        layout=layout,
        window_us=600_000_000,
        lateness_us=60_000_000,
        plan=SimpleNamespace(fingerprint="f" * 20),
    )
    mine = {"window": "600s", "lateness": "60s", "id": "id", "time": "ts", "event": "event", "time_unit": "ms"}
    assert steps._decisive == mine
    layout.clock_unit = None
    assert "time_unit" not in steps._decisive
    state: dict[str, Any] = {"plan": "f" * 20, "settings": dict(mine)}
    steps._check(state)
    steps._check({"plan": "f" * 20})
    state["settings"] = {**mine, "lateness": "70s"}
    with pytest.raises(PlanError, match="was trained with lateness 70s, but lateness 60s"):
        steps._check(state)
    with pytest.raises(PlanError, match=r"another plan \(fingerprint eeee"):
        steps._check({"plan": "e" * 20})


def test_a_folder_without_a_version_is_refused_and_the_time_of_the_last_one_is_known(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(clock, folder=SimpleNamespace(published=SimpleNamespace(current=None)))
    with pytest.raises(
        DataError,
        match="model contains no published version; restore the folder from a copy, or choose another output folder",
    ):
        steps._know_version()
    version = SimpleNamespace(number=5, time="1970-01-02T00:00:01Z")
    steps = Steps(clock, folder=SimpleNamespace(published=SimpleNamespace(current=version)))
    monkeypatch.setattr(Steps, "_learned", lambda *_: 77)
    steps._know_version()
    assert (steps.version.number, steps.published_learned, steps._published_s) == (5, 77, 86_401.0)


@pytest.mark.parametrize(
    ("learned", "kept", "refused"),
    [(10, [], False), (11, [], True), (11, ["checkpoint-1"], False)],
)
def test_an_engine_that_learned_less_than_the_folder_is_refused(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, learned: int, kept: list[str], refused: bool
) -> None:
    (tmp_path / "file").touch()
    folder = SimpleNamespace(kind="deep_ffm", fingerprint="f", published=SimpleNamespace(need_key=lambda: None))
    monkeypatch.setattr("ctrbox.loop.online_loop.ModelFolder", SimpleNamespace(open=lambda place, **how: folder))
    monkeypatch.setattr(Steps, "_learned", lambda *_: learned)
    checkpoints = SimpleNamespace(found=lambda: kept)
    steps = Steps(clock, out=tmp_path, plan=SimpleNamespace(fingerprint="f"), checkpoints=checkpoints)
    if refused:
        with pytest.raises(
            PlanError, match="a version that learned from 11 examples, but the engine of this job learned from 10"
        ):
            steps._open_folder()
    else:
        found: Any = steps._open_folder()
        assert found is folder
    folder.fingerprint = "g"
    with pytest.raises(PlanError, match="holds the model of another plan"):
        steps._open_folder()


@pytest.mark.parametrize(("number", "done"), [(0, True), (2, True), (2, False)])
def test_a_first_start_writes_a_checkpoint_and_a_later_one_says_where_it_goes_on(
    clock: Clock, number: int, done: bool
) -> None:
    class Began(Noted):
        def _between(self, publish: bool = True) -> None:
            self.did.append(f"between {publish}")

    learner = SimpleNamespace(join=SimpleNamespace(held=1234), waiting=False)
    steps = Began(clock, _number=number, learner=learner, warm={"done": done}, engine=SimpleNamespace(learned=4321))
    steps._went_on()
    assert steps.did == [*(["checkpoint"] if number == 0 else []), f"between {done}"]
    said = "continuing from checkpoint 2: 4,321 examples learned, 1,234 impressions waiting"
    assert steps.said == ([] if number == 0 else [said])


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01])
def test_a_share_of_the_time_is_above_0_and_at_most_1(share: float) -> None:
    with pytest.raises(PlanError, match=r"checkpoint_share= must be above 0 and at most 1"):
        OnlineLoop(None, None, "events", "model", checkpoint_share=share)  # type: ignore[arg-type]


def test_a_span_of_no_time_is_refused_where_it_means_nothing() -> None:
    assert (seconds(0), seconds("0s"), seconds(999_999_999)) == (0.0, 0.0, 999_999_999.0)
    with pytest.raises(PlanError, match="window must be above 0, such as 30s, 5m or 2h, got '0s'"):
        seconds("0s", "window", zero=False)
    with pytest.raises(PlanError, match="must be a span"):
        seconds(1e9)


# ---- pieces of the stream


class Learning:
    """Examples that wait; each call of `learn` takes one."""

    def __init__(self, waiting: int = 0) -> None:
        self.left, self.asked, self.added = waiting, list[Any](), list[Any]()

    @property
    def waiting(self) -> bool:
        return self.left > 0

    def learn(self, most: int | None) -> None:
        self.left -= 1
        self.asked.append(most)

    def add(self, events: Any, until: int) -> None:
        self.added.append((events, until))


@pytest.mark.parametrize(
    ("bad", "refused", "events", "told"),
    [
        ([], "", "abc", []),
        ([(3, "no number"), (5, "no time")], "", "ab", ["line c 3 no number", "line c 5 no time"]),
        ([], "cut off", None, ["chunk c cut off"]),
    ],
)
def test_a_piece_is_added_and_what_is_bad_in_it_is_told(
    clock: Clock, bad: list[Any], refused: str, events: Any, told: list[str]
) -> None:
    said: list[str] = []
    took: list[Any] = []
    complaints = SimpleNamespace(
        line=lambda chunk, row, why: said.append(f"line {chunk} {row} {why}"),
        chunk=lambda chunk, why: said.append(f"chunk {chunk} {why}"),
    )
    learner = Learning(2)
    steps = Following(
        clock,
        learner=learner,
        complaints=complaints,
        stream=SimpleNamespace(took=took.append),
        ahead_s=3600.0,
        layout=SimpleNamespace(time="ts", time_units={}),
    )
    piece: Any = SimpleNamespace(chunk="c", bad=bad, refused=refused, events=events)
    OnlineLoop._take(steps, piece)
    assert said == told
    assert learner.added == ([] if events is None else [(events, 4_600_000_000)])
    assert (steps.events_read, took, steps._changed) == (len(events or ""), [piece], True)
    assert (learner.asked, steps.did) == ([None, None], ["between", "between"])


def test_learning_stops_behind_any_part_of_the_examples_when_a_signal_came(clock: Clock) -> None:
    learner = Learning(5)

    class Stopped(Noted):
        def _between(self, publish: bool = True) -> None:
            self.asked.by = 15 if learner.left == 3 else None

    steps = Stopped(clock, learner=learner, every=Cadence(examples=7))
    steps._learn()
    assert (learner.left, learner.asked, steps._changed) == (3, [4, 4], True)


def test_past_rows_are_not_learned_from_again_and_not_from_a_file_that_changed(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    Steps(clock, warm={"done": True})._warm_up()
    monkeypatch.setattr("ctrbox.loop.online_loop.content_of", lambda path: "now")
    plan = SimpleNamespace(request_schema=lambda label: SimpleNamespace(names=["a"]))
    changed = Steps(clock, plan=plan, warm={"done": False, "file": "f", "rows": 1200, "checksum": "then"})
    with pytest.raises(DataError, match="f changed after 1,200 of its rows were learned from"):
        changed._warm_up()
    asked: list[Any] = []

    def ahead(past: Any, **how: Any) -> Any:
        asked.append(how["start"])
        raise KeyboardInterrupt

    monkeypatch.setattr("ctrbox.loop.online_loop.ahead", ahead)
    for warm in (
        {"done": False, "file": "f", "rows": 7, "checksum": "now"},
        {"done": False, "file": "f", "rows": 8},  # of an older version, without a checksum
        {"done": False, "file": "", "rows": 0, "checksum": "then"},
    ):
        with pytest.raises(KeyboardInterrupt):
            Steps(clock, plan=plan, warm=warm, past=(), in_flight=1)._warm_up()
    assert asked == [("f", 7), ("f", 8), ("", 0)]


class Past:
    """Rows of a log, a morsel after the other, as `ahead` gives them."""

    share_waited = 0.25

    def __init__(self, *morsels: Morsel) -> None:
        self.morsels, self.closed = morsels, False

    def __iter__(self) -> Iterator[Morsel]:
        return iter(self.morsels)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("interrupted", [False, True])
def test_past_rows_are_learned_in_parts_that_know_their_place_in_their_file(
    interrupted: bool, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def morsel(file: str, row: int, rows: int) -> Morsel:
        return Morsel(pa.record_batch({"a": list(range(rows))}), Origin(file, row), 0)

    past = Past(morsel("f", 10, 5), morsel("g", 0, 1))
    learned: list[tuple[int, str, int]] = []
    made = Noted(clock, past=(), in_flight=1, _between=lambda publish: None)
    made.plan = SimpleNamespace(request_schema=lambda label: SimpleNamespace(names=["a"]))  # type: ignore[assignment]
    made.warm, made.asked = {"done": False, "file": "", "rows": 0}, SimpleNamespace(by=15 if interrupted else None)

    def learn_past(rows: Any, file: str, first: int) -> None:
        learned.append((len(rows), file, first))
        made.engine.learned += len(rows)

    made.learner = SimpleNamespace(learn_past=learn_past)  # type: ignore[assignment]
    monkeypatch.setattr("ctrbox.loop.online_loop.content_of", lambda path: f"checksum of {path}")
    monkeypatch.setattr("ctrbox.loop.online_loop.ahead", lambda *given, **how: past)
    monkeypatch.setattr(
        "ctrbox.loop.online_loop.time", SimpleNamespace(monotonic=clock.monotonic, perf_counter=clock.monotonic)
    )
    monkeypatch.setattr("ctrbox.loop.online_loop.ROWS", 2)
    made._warm_up()
    assert past.closed == interrupted
    if interrupted:
        assert learned == [(2, "f", 10)]
        assert made.warm == {"file": "f", "rows": 12, "done": False, "checksum": "checksum of f"}
        assert made.did == []
        return
    assert learned == [(2, "f", 10), (2, "f", 12), (1, "f", 14), (1, "g", 0)]
    assert made.warm == {"file": "g", "rows": 1, "done": True, "checksum": "checksum of g", "learned": 16}
    assert made.said == ["warmed up with 6 examples in 0.0 s, 25.0% of it waiting for input"]
    assert made.did == ["publish"]
