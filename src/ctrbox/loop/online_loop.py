"""Runs the online loop: reads events, joins them, learns from them and publishes a patch every few minutes.

    OnlineLoop(plan, engine, "events/", "model/", every="5m", window="10m").run()
    OnlineLoop(model.plan, model, "events/", "model/").run()          # model = cb.loop.OnlineClickModel(plan, …)

One thread does everything in turn. It takes a piece of the stream and learns from the examples that are ready. Between two
batches of examples, it writes checkpoints, publishes versions and reports its status. Only the next events are fetched in another
thread. A checkpoint is written before every version. A process that dies and is started again has therefore learned from all
examples of the versions that it published. A version contains the number of examples that it learned from, so no version is
published twice. docs/online/recovery.md gives the order of these steps, and says what happens if one of them fails.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from ctrbox.arguments.sizes import bytes_within
from ctrbox.columns.times import checked_unit
from ctrbox.compiled_plan.plan import Plan
from ctrbox.engines.history.state_of_histories import Histories
from ctrbox.errors import DataError, PlanError, SourceError, WriteError
from ctrbox.ffm.engine import DeepFFM
from ctrbox.ffm.warm_up_sources import ahead, content_of
from ctrbox.files.urls import local_path
from ctrbox.loop.checkpoint import Checkpoint, Checkpoints
from ctrbox.loop.decode_events import Layout, Piece, unlikely_clock
from ctrbox.loop.history_columns import PastOfExamples, histories_of
from ctrbox.loop.intervals import Cadence, seconds
from ctrbox.loop.join import BEGIN, Join
from ctrbox.loop.learn_events import ROWS, Learner
from ctrbox.loop.online_model import OnlineModel, online_model
from ctrbox.loop.status import Complaints, status, write_status
from ctrbox.loop.stream import Position, Stream, open_stream
from ctrbox.publish.signing_keys import PrivateKey
from ctrbox.publish.versions import Version
from ctrbox.publish.weight_file import read_directory
from ctrbox.publish.weights_of_models import DEEP_FFM
from ctrbox.serve.model_folder import ModelFolder, create
from ctrbox.train.interrupt import Asked, asked_to_end

FOLLOWED = "histories.past"  # in the model folder: the state that servers follow
STATUS_S = 2.0
AGAIN_S = 5.0  # after a write that failed


class OnlineLoop:
    """The loop that learns from ``stream`` and publishes into the folder ``out``, which `ctrbox serve` opens.

    Spans of time are text such as "5m", or seconds.

    ``engine``      a `cb.DeepFFM`, or a click model of torch as a `cb.loop.OnlineClickModel`
    ``context``     columns of the log that are the same for all candidates of a request, for the server
    ``every``       how often a version is published: a span of time, or a number of examples ("100000ex"); default: "5m"
    ``window``      a click counts if it comes within this time after its impression; default: "10m"
    ``lateness``    how long the loop waits after the window for events that arrive out of order, in event time; default: "1m"
    ``checkpoint``  least time between two checkpoints; default: "30s". It becomes longer if checkpoints take more than
                    ``checkpoint_share`` of the time; default: 0.05
    ``held``        memory for events whose window has not passed; default: "2GB"
    ``ahead``       events that are further in the future than this, by the clock of this machine, are left out; default: "1h"
    ``warm_up``     past rows with labels, from which the loop learns first
    ``state``       file with the state of the plan's histories (``plan.histories``) to begin with; default: they begin empty
    ``state_every`` how often this state is written to ``out``/histories.past, for servers that follow it; default: never
    ``once``        end when there are no more events
    ``delete``      remove chunks from the folder when both checkpoints contain them
    ``strict``      end with an error at the first malformed row or unreadable chunk
    ``threads``     threads of a Deep FFM; default: 1. An OnlineClickModel has ``threads=`` of its own
    ``sign_with``   a private key, or its file, with which every version is signed
    """

    histories: Histories | None = None  # the state of the plan's histories, which the loop alone feeds
    key: PrivateKey | None = None  # with which versions are signed

    def __init__(
        self,
        plan: Plan,
        engine: DeepFFM | OnlineModel,
        stream: str | os.PathLike[str],
        out: str | os.PathLike[str],
        *,
        context: Sequence[str] = (),
        every: str | float = "5m",
        window: str | float = "10m",
        lateness: str | float = "1m",
        checkpoint: str | float = "30s",
        checkpoint_share: float = 0.05,
        held: str | int = "2GB",
        ahead: str | float = "1h",
        warm_up: Sequence[str] = (),
        in_flight: int = 4,
        id: str | None = None,
        time: str = "ts",
        time_unit: str | None = None,
        event: str = "event",
        state: str | os.PathLike[str] | None = None,
        state_every: str | float | None = None,
        once: bool = False,
        delete: bool = False,
        strict: bool = False,
        publish_at_end: bool | None = None,
        threads: int | None = None,
        sign_with: PrivateKey | str | os.PathLike[str] | None = None,
        tell: Callable[[str], object] = print,
    ) -> None:
        self.plan, self.out, self.tell = plan, local_path(out, "the model folder of an online loop"), tell
        self.context = tuple(context)
        self.key = sign_with if sign_with is None or isinstance(sign_with, PrivateKey) else PrivateKey.read(sign_with)
        self.where = os.fspath(stream)
        self.every = Cadence.of(every)
        self.window_us = round(1e6 * seconds(window, "window", zero=False))
        self.lateness_us = round(1e6 * seconds(lateness, "lateness"))
        self.held_bytes, self.ahead_s = bytes_within("held", held, 1, 1 << 50), seconds(ahead, "ahead")
        self.checkpoint_s = seconds(checkpoint, "checkpoint")
        if not 0 < checkpoint_share <= 1:
            raise PlanError(f"checkpoint_share= must be above 0 and at most 1, got {checkpoint_share!r}")
        self.checkpoint_share = checkpoint_share
        self.past, self.in_flight = tuple(warm_up), in_flight
        self.once, self.delete, self.strict = once, delete, strict
        self.publish_at_end = once if publish_at_end is None else publish_at_end
        self.engine = online_model(engine, threads)
        key = plan.log.key[0] if plan.log.key else "id"
        self.histories, self.state = histories_of(plan.fit()), state
        if state is not None and self.histories is None:
            raise PlanError("state= is the state of histories, but the plan has no histories; remove state=")
        self.state_s = None if state_every is None else seconds(state_every, "state_every", zero=False)
        if self.state_s is not None and self.histories is None:
            raise PlanError("state_every= publishes the state of histories, but the plan has no histories; remove it")
        columns, log = self._raw_columns(plan.request_schema()), plan.log.source.schema
        units = plan.time_units | ({} if time_unit is None else {time: checked_unit(time_unit)})
        self.layout = Layout.of(columns, log, id=id or key, time=time, event=event, time_units=units)
        self.checkpoints = Checkpoints(self.out / "online")
        self.warm: dict[str, Any] = {"file": "", "rows": 0, "done": not self.past}
        self.checkpoint_took_s = 0.0
        self.failed = ""  # why the last write failed
        self.began_with = 0  # examples that were learned from before this start
        self.events_read = 0  # since this start
        self.asked = Asked()
        self._number = 0  # of the last checkpoint
        self._before: Position | None = None  # the position in it
        self._changed = False  # since then
        self._owed = False  # a version was due and could not be written
        self._next_checkpoint = self._next_status = self._next_publish = self._next_state = 0.0
        self._state_changes = -1  # of the histories when their state was last written for servers
        self.complaints = Complaints(tell, self.out / "online" / "refused.jsonl", strict)
        self.learner = self._fresh()

    def _raw_columns(self, columns: pa.Schema, *, label: bool = False) -> pa.Schema:
        """Return the columns that rows must have: those of the features, and the inputs of histories instead of their results."""
        if self.histories is None:
            return columns
        past, log = PastOfExamples(self.plan, self.histories), self.plan.log.source.schema
        read = self.histories.columns if label else past.raw
        names = [name for name in dict.fromkeys([*columns.names, *read]) if name not in self.histories.made]
        return pa.schema([columns.field(name) if name in columns.names else log.field(name) for name in names])

    # ---- the whole

    def run(self) -> dict[str, Any]:
        """Learn until a signal arrives or, with ``once``, until there are no more events. Return numbers about what was
        learned.
        """
        with contextlib.ExitStack() as stack:
            # A stream that is not there is told before anything is written.
            first = None if self.checkpoints.found() else self._open_stream(None, stack)
            if first is not None:
                self.engine.begin()
            self.folder = self._open_folder()
            stack.enter_context(self.checkpoints.locked())
            self.asked = stack.enter_context(asked_to_end())
            last = self.checkpoints.last(self.tell, self.histories, check=self._check, read=self.engine.restored)
            position = self._restore(last)
            self.began_with = self.engine.learned
            self._know_version()
            self.stream = first if first is not None and position is None else self._open_stream(position, stack)
            self._went_on()
            self._warm_up()
            if not self.interrupted:  # else the past is not learned from whole, and what follows it waits
                self._follow()
            self._end()
        return self._status()

    def _open_stream(self, position: Position | None, stack: contextlib.ExitStack) -> Stream:
        stream = open_stream(self.where, self.layout, position, self.tell, delete=self.delete)
        stack.callback(stream.close)
        return stream

    @property
    def nothing_learned(self) -> str:
        """Return a message that says why nothing was learned since the start; "" if something was learned."""
        if self.engine.learned > self.began_with:
            return ""
        if not self.events_read:
            known = " new" if self._before is not None and self.began_with else ""
            return f"nothing was learned: {self.stream.name} has no{known} events"
        why = f"nothing was learned from {self.events_read:,} events"
        if self.engine.waiting:
            return f"{why}: {self.engine.waiting:,} examples wait until their batch is full"
        if not self.learner.join.held:
            return f"{why}: no impression among them could be used, see the counts"
        window = (self.window_us + self.lateness_us) / 1e6
        return (
            f"{why}: {self.learner.join.held:,} impressions still wait: an impression is learned from only when an "
            f"event arrives that is more than {window:,.0f} s later, the sum of window and lateness"
        )

    @property
    def interrupted(self) -> bool:
        return self.asked.by is not None

    def _follow(self) -> None:
        for piece in self.stream.pieces():
            if piece is not None:
                self._take(piece)
            elif self.once and self.stream.drained():
                return
            elif self.once and self.stream.failing:
                raise SourceError(self.stream.failing)
            self._between()
            if self.interrupted:
                return

    def _take(self, piece: Piece) -> None:
        for row, why in piece.bad:
            self.complaints.line(piece.chunk, row, why)
        if piece.refused:
            self.complaints.chunk(piece.chunk, piece.refused)
        if piece.events is not None:
            if not self.events_read and (told := unlikely_clock(piece.events, self.layout)):
                self.tell(told)
            self.events_read += len(piece.events)
            self.learner.add(piece.events, int(1e6 * (time.time() + self.ahead_s)))
        self.stream.took(piece)  # with what is ready, and not yet learned from
        self._changed = True
        self._learn()

    def _learn(self) -> None:
        while self.learner.waiting and not self.interrupted:
            self.learner.learn(self.every.left(self.engine.learned))
            self._changed = True
            self._between()

    def _warm_up(self) -> None:
        """Learn from past rows, which have labels. The next rows are fetched meanwhile."""
        if self.warm["done"]:
            return
        columns = self._raw_columns(self.plan.request_schema(label=True), label=True).names
        start = (self.warm["file"], self.warm["rows"])
        checksum = content_of(start[0]) if start[0] else ""
        if start[0] and self.warm.get("checksum", checksum) != checksum:
            raise DataError(
                f"{start[0]} changed after {start[1]:,} of its rows were learned from, so learning cannot continue at that "
                f"position. Restore the old file, or start over with another output folder than {self.out}"
            )
        rows = ahead(self.past, columns=columns, in_flight=self.in_flight, start=start)
        before, began = self.engine.learned, time.perf_counter()
        for morsel in rows:
            for at in range(0, morsel.rows.num_rows, ROWS):
                part = morsel.rows.slice(at, ROWS)
                self.learner.learn_past(part, morsel.origin.path, morsel.origin.row + at)
                if morsel.origin.path != self.warm["file"]:
                    checksum = content_of(morsel.origin.path)
                rows_done = morsel.origin.row + at + len(part)
                self.warm = {"file": morsel.origin.path, "rows": rows_done, "done": False, "checksum": checksum}
                self._changed = True
                self._between(publish=False)
                if self.interrupted:
                    rows.close()
                    return
        self.warm |= {"done": True, "learned": self.engine.learned}
        self._changed = True
        spent = time.perf_counter() - began
        self.tell(
            f"warmed up with {self.engine.learned - before:,} examples in {spent:.1f} s, "
            f"{rows.share_waited:.1%} of it waiting for input"
        )
        self._publish()

    def _between(self, publish: bool = True) -> None:
        """Do what is due between two batches of examples."""
        now = time.monotonic()
        if publish and self._due():
            self._publish()
        elif self._changed and now >= self._next_checkpoint:
            self._checkpoint()
        if self.state_s is not None and now >= self._next_state:
            self._publish_state(self.state_s)
        if now >= self._next_status:
            self._write_status()

    def _publish_state(self, every: float) -> None:
        """Write the state of the histories for servers that follow it, if it changed. The file is complete or not there at
        all.
        """
        histories = self.histories
        assert histories is not None
        self._next_state = time.monotonic() + every
        if histories.changes == self._state_changes:
            return
        began = time.monotonic()
        histories.position = f"{self.engine.learned} examples"
        try:
            histories.save(self.out / FOLLOWED)
        except WriteError as error:
            self.tell(f"the state of histories could not be written for servers, so the previous one is kept: {error}")
            self._next_state = time.monotonic() + max(AGAIN_S, every)
            return
        self._state_changes = histories.changes
        # A large state is written less often, as checkpoints are.
        self._next_state = max(self._next_state, began + (time.monotonic() - began) / self.checkpoint_share)

    def _end(self) -> None:
        """Save and publish what was learned. Raise a WriteError if that fails, because nothing tries again after the end."""
        if self._changed or not self._number:
            self._checkpoint()
        lost = self._changed or not self._number
        wanted = (self.publish_at_end or self._owed) and self.engine.learned > self.published_learned
        if wanted and not lost:
            self._publish()
        if self.state_s is not None:
            self._publish_state(self.state_s)
        self._write_status()
        if lost:
            behind = f"what was learned after checkpoint {self._number}" if self._number else "what was learned"
            raise WriteError(
                f"{behind} could not be saved: {self.failed}. Free some space and start the loop again; it "
                f"will learn this part once more"
            )
        if wanted and self.engine.learned > self.published_learned:
            raise WriteError(
                f"checkpoint {self._number} "
                f"holds everything that was learned, but publishing it failed and version "
                f"{self.version.number} is still current: {self.failed}. Free some space and start the loop again"
            )

    # ---- checkpoints

    def _checkpoint(self) -> bool:
        """Write a checkpoint. Return False if that failed: the checkpoint before stays, and the loop tries again soon."""
        began = time.monotonic()
        position = self.stream.position()
        numbers, tables = self.learner.state()
        state = {
            "plan": self.plan.fingerprint,
            "settings": self._decisive,
            "stream": position,
            "warm_up": self.warm,
            "learner": numbers,
            "complaints": [self.complaints.lines, self.complaints.chunks],
        }
        try:
            self.checkpoints.write(self._number + 1, state, tables, self.engine, self.histories)
        except WriteError as error:
            self.failed = str(error)
            self.tell(f"the checkpoint could not be written, so the previous one is kept: {error}")
            self._next_checkpoint = time.monotonic() + max(AGAIN_S, self.checkpoint_s)
            return False
        self._number += 1
        took = time.monotonic() - began
        self.checkpoint_took_s += took
        self._next_checkpoint = time.monotonic() + max(self.checkpoint_s, took / self.checkpoint_share)
        self._changed = False
        # The older of the two may be gone back to, where the newer is damaged; events before it are not needed again.
        if self._before is not None:
            self.stream.kept(self._before)
        self._before = position
        return True

    def _restore(self, found: Checkpoint | None) -> Position | None:
        if found is None:
            if self.state is not None and self.histories is not None:
                self.histories.load(self.state)
            return None
        if self.histories is not None and not found.has_histories:
            raise PlanError(
                f"{self.out} was started by a version of CTRBox that read the histories of the plan from the events; this "
                "version computes them itself, so choose another folder"
            )
        if self.state is not None:
            self.tell(f"{self.out} already has a state of histories; state= is ignored")
        self.engine, self._number = found.engine, found.number
        self.learner = self._fresh()
        try:
            self.learner.restore(found.state["learner"], found.tables)
            self.complaints.lines, self.complaints.chunks = found.state["complaints"]
            self.warm = found.state["warm_up"] if self.past else {**found.state["warm_up"], "done": True}
            self._before = found.state["stream"]
            if self.past and self.warm["done"] and "learned" not in self.warm:
                self.tell(f"{self.out} was started without a warm-up; the rows of warm_up are ignored now")
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"checkpoint {found.number} in {self.out} was written by another version of CTRBox: {error!r}"
            ) from error
        return self._before

    def _fresh(self) -> Learner:
        join = Join(self.layout, self.window_us, self.lateness_us, self.held_bytes)
        past = None if self.histories is None else PastOfExamples(self.plan, self.histories)
        return Learner(self.plan, self.engine, join, self.complaints.line, past)

    @property
    def _decisive(self) -> dict[str, Any]:
        """Return the settings that decide which examples there are and which labels they have. A folder keeps them forever."""
        return {
            "window": span(self.window_us),
            "lateness": span(self.lateness_us),
            "id": self.layout.id,
            "time": self.layout.time,
            "event": self.layout.event,
            # Where the log has timestamps, a unit says only how a number may be written.
            **({"time_unit": self.layout.clock_unit} if self.layout.clock_unit else {}),
        }

    def _check(self, state: Mapping[str, Any]) -> None:
        """Refuse the state of a checkpoint that another plan or other settings made."""
        if state.get("plan") != self.plan.fingerprint:
            raise PlanError(
                f"{self.out} was trained with another plan (fingerprint {str(state.get('plan'))[:16]}…, but the "
                f"plan of this job has "
                f"{self.plan.fingerprint[:16]}…); choose another folder"
            )
        settings = dict(state.get("settings", {}))  # older checkpoints have none
        for name, us in (("window", self.window_us), ("lateness", self.lateness_us)):
            if "e" in settings.get(name, "") and settings[name] == f"{us / 1e6:g}s":
                settings[name] = span(us)  # earlier versions rounded long spans: 2.592e+06s
        for name, mine in self._decisive.items():
            if settings.get(name, mine) != mine:
                raise PlanError(
                    f"{self.out} "
                    f"was trained with {name} {settings[name]}, but {name} {mine} was requested, which "
                    f"would change the meaning of the examples; continue with {name} {settings[name]}, or choose "
                    f"another folder"
                )

    def _went_on(self) -> None:
        if self._number == 0:
            self._checkpoint()  # from now on a start is a start from a checkpoint
        else:
            self.tell(
                f"continuing from checkpoint {self._number}: {self.engine.learned:,} examples learned, "
                f"{self.learner.join.held:,} impressions waiting"
            )
        self._between(publish=self.warm["done"])  # a version may be due from before
        self._learn()

    # ---- versions

    def _open_folder(self) -> ModelFolder:
        if not self.out.exists() or (self.out.is_dir() and not any(self.out.iterdir())):
            note = _note(self.engine.learned)
            return create(self.out, self.plan, self.engine, context=self.context, note=note, sign_with=self.key)
        folder = ModelFolder.open(self.out, sign_with=self.key)
        folder.published.need_key()
        if folder.kind != self.engine.kind:
            raise PlanError(
                f"{self.out} holds a model of kind {folder.kind!r}, but this job trains one of kind {self.engine.kind!r}; choose "
                "another folder"
            )
        if folder.fingerprint != self.plan.fingerprint:
            raise PlanError(f"{self.out} holds the model of another plan; choose another folder")
        if not self.checkpoints.found():
            self._check_version(self._learned(folder))
        return folder

    def _check_version(self, learned: int | None) -> None:
        """Refuse weights that learned from fewer examples than the current version, which learned from ``learned``."""
        if learned is None and self.engine.fresh:
            raise PlanError(
                f"{self.out} holds a version of a trained run, but this job starts with new weights: start from that run "
                "(start=, or on the command line --model RUN), or choose another folder"
            )
        if learned is not None and learned > self.engine.learned:
            remedy = "load that version in the job with cb.DeepFFM.load, or " if self.engine.kind == DEEP_FFM else ""
            raise PlanError(
                f"{self.out} holds a version that learned from {learned:,} examples, but the engine of this job learned from "
                f"{self.engine.learned:,}: {remedy}choose another folder"
            )

    def _learned(self, folder: ModelFolder) -> int | None:
        """Return how many examples the current version learned from; None if it does not say so, as the version of a trained
        run.
        """
        found = read_directory(folder.published.file()).about.get("learned")
        return int(found) if isinstance(found, int) else None

    def _know_version(self) -> None:
        found = self.folder.published.current
        if found is None:
            raise DataError(
                f"{self.out} contains no published version; restore the folder from a copy, or choose another output folder"
            )
        self.version: Version = found
        self.published_learned = self._learned(self.folder) or 0
        self._published_s = datetime.strptime(found.time, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()

    def _due(self) -> bool:
        learned = self.engine.learned
        if learned <= self.published_learned or time.monotonic() < self._next_publish:
            return False
        if self.published_learned < self.warm.get("learned", 0):
            return True
        return self.every.due(learned, self.published_learned, time.time() - self._published_s)

    def _publish(self) -> None:
        """Write a checkpoint, then the version. If one of them fails, servers keep the version before, and the loop tries
        again.
        """
        self._next_publish = time.monotonic() + AGAIN_S
        if self._changed and not self._checkpoint():
            return
        try:
            self.version = self.folder.published.publish(self.engine, note=_note(self.engine.learned))
        except WriteError as error:
            self.failed, self._owed = str(error), True
            self.tell(f"publishing failed, version {self.version.number} is still current: {error}")
            return
        self._next_publish, self._owed = 0.0, False
        self.published_learned, self._published_s = self.engine.learned, time.time()
        self.tell(
            f"version {self.version.number}: {self.engine.learned:,} examples; the patch has {self.version.patch_bytes:,} bytes"
        )
        self._write_status()

    # ---- saying how it goes

    def _status(self) -> dict[str, Any]:
        join, newest = self.learner.join, self.learner.join.newest
        return status(
            self.engine.progress,
            published_at=self.version.time,
            version=self.version.number,
            lag_s=None if newest == BEGIN else round(time.time() - newest / 1e6, 3),
            held=join.held,
            learned=self.engine.learned,
            unlearned=self.engine.waiting,
            waited_s=round(self.stream.waited_s, 3),
            checkpoints={"number": self._number, "seconds": round(self.checkpoint_took_s, 3)},
            counts={
                **vars(join.counts),
                "dropped_by_filters": self.learner.dropped,
                "left_out": self.complaints.lines,
                "refused_chunks": self.complaints.chunks,
            },
        )

    def _write_status(self) -> None:
        self._next_status = time.monotonic() + STATUS_S
        write_status(self.folder.online, self._status(), self.tell)


def span(microseconds: int) -> str:
    """Return a span of time as an option takes it, without rounding."""
    return f"{microseconds / 1e6:.6f}".rstrip("0").rstrip(".") + "s"


def _note(learned: int) -> str:
    return f"online, {learned:,} examples"
