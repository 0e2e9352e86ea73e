"""The supervisor, a worker that follows it and the reloader by themselves: waiting, reaping, news, faults and the end."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ctrbox.errors import DataError, PlanError, WriteError
from ctrbox.publish.weights_of_models import CLICK_MODEL
from ctrbox.serve import reload, workers
from ctrbox.serve.memory_shared_by_workers import HEARD, Board, Desk
from ctrbox.serve.metrics import Metrics
from ctrbox.serve.reload import FIRST_WAIT, LONGEST_WAIT, Reloader, SharedVersions, passing
from ctrbox.serve.worker_follows_supervisor import Follower
from ctrbox.serve.workers import MEMORY_SECONDS, Supervisor, tell

# ---- a supervisor without processes


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (workers, reload):
        monkeypatch.setattr(module, "time", made)
    return made


def supervisor(count: int = 2, reloader: Any = None, version: int = 3) -> Any:
    service = SimpleNamespace(served=SimpleNamespace(version=version), metrics=Metrics())
    settings = SimpleNamespace(reload_seconds=0.5)
    server = SimpleNamespace(workers=count, reloader=reloader, service=service, settings=settings, refresher=None)
    made = Supervisor(server)  # type: ignore[arg-type]
    made._woken = socket.socketpair()
    for end in made._woken:
        end.setblocking(False)
    return made


def says(made: Any, worker: int, message: dict[str, Any] | None) -> None:
    """Have a worker write its first message, or end without one."""
    made.workers[worker].says, end = os.pipe()
    made.workers[worker].process = 70 + worker
    if message is None:
        os.close(end)
    else:
        tell(end, message)


def test_a_worker_serves_when_it_says_so() -> None:
    made = supervisor()
    says(made, 0, {"serving": True})
    says(made, 1, None)
    made._woken[1].send(b"x" * 5000)
    made._wait(0.0)
    assert [(w.serving, w.says) for w in made.workers] == [(True, -1), (False, -1)]
    with pytest.raises(BlockingIOError):
        made._woken[0].recv(1)  # all of it was read
    made._wait(0.0)


def test_a_worker_that_cannot_begin_ends_the_start_of_the_server_and_is_logged_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = supervisor()
    says(made, 1, {"failed": "no such plan", "module": None})
    with pytest.raises(PlanError, match=r"^no such plan$"):
        made._wait(0.0)
    says(made, 1, {"failed": "grpc is missing", "module": "grpc"})
    with pytest.raises(ImportError, match=r"^grpc is missing$") as caught:
        made._wait(0.0)
    assert caught.value.name == "grpc"
    made._news = {"version": 3}
    says(made, 1, {"failed": "no memory", "module": None})
    with caplog.at_level(logging.ERROR, "ctrbox.serve"):
        made._wait(0.0)
    assert caplog.messages == ["worker 2 could not start: no memory"]
    assert not made.workers[1].serving


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (None, (0, {"serving": True})),
        (ImportError("grpc is missing", name="grpc"), (1, {"failed": "grpc is missing", "module": "grpc"})),
        (PlanError("no such plan"), (1, {"failed": "no such plan", "module": None})),
        (KeyError("id"), (1, {"failed": "a worker failed: KeyError: 'id'", "module": None})),
    ],
)
def test_a_worker_says_that_it_serves_or_why_it_cannot(error: Exception | None, expected: tuple[int, Any]) -> None:
    def work(seat: Any, ready: Callable[[], None]) -> None:
        if error is not None:
            raise error
        ready()

    made = supervisor()
    made.server.work, made.sockets, made._life = work, [], os.pipe()
    says, say = os.pipe()
    child = os.fork()
    if not child:
        made._child(made.workers[0], say)
    for end in (say, *made._life):
        os.close(end)
    with open(says, "rb") as told:
        message = json.loads(told.read())
    assert (os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), message) == expected


def test_a_worker_that_ends_is_replaced_and_before_the_server_serves_it_is_an_error(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = supervisor(3)
    says(made, 0, {"serving": True})
    says(made, 1, {"serving": True})
    made._wait(0.0)
    asked = []

    def waitpid(process: int, how: int) -> tuple[int, int]:
        asked.append(process)
        return (process, 3 << 8) if process == 71 else (0, 0)

    monkeypatch.setattr(workers.os, "waitpid", waitpid)
    with pytest.raises(PlanError, match=r"^worker 2 \(process 71\) ended with exit code 3 before it could serve$"):
        made._reap(first=True)
    assert asked == [70, 71]  # the third has no process
    made.workers[1].process, made.workers[1].began = 71, clock.now
    clock.now += workers.LONG - 0.5
    with caplog.at_level(logging.WARNING, "ctrbox.serve"):
        made._reap()
    assert caplog.messages == ["worker 2 (process 71) ended with exit code 3; another one starts now"]
    assert [(w.process, w.serving, w.short) for w in made.workers] == [(70, True, 0), (0, False, 1), (0, False, 0)]
    assert (made.board.replaced, made.workers[1].due) == (1, clock.now)
    made.workers[1].process, made.workers[1].began = 71, clock.now
    clock.now += workers.LONG
    made._reap()
    assert made.workers[1].short == 0  # it has served for long


def test_what_a_worker_said_last_is_heard_when_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    made = supervisor(1)
    says(made, 0, {"failed": "out of memory", "module": None})
    monkeypatch.setattr(workers.os, "waitpid", lambda process, how: (process, 9))
    with pytest.raises(PlanError, match=r"^out of memory$"):
        made._reap(first=True)


def test_a_worker_whose_event_loop_stands_still_is_killed_and_others_are_not(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = supervisor(3)
    for number in (0, 1):
        made.workers[number].process, made.workers[number].serving = 70 + number, True
    made.workers[2].process = 72  # it still begins, which may take long
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(workers.os, "kill", lambda process, number: killed.append((process, int(number))))
    seconds = 0.0
    while not killed and seconds < 100:
        clock.now += 0.5
        seconds += 0.5
        made.board.places[0].facts[HEARD] = clock.now
        with caplog.at_level(logging.ERROR, "ctrbox.serve"):
            made._watch()
    assert killed == [(71, 9)]
    assert abs(seconds - workers.HUNG_SECONDS) <= 3
    assert caplog.messages == ["worker 2 (process 71) hangs and is killed"]


def test_silence_is_added_up_second_by_second_and_two_seconds_at_most(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = supervisor(2)
    one, other = made.workers
    one.process, one.serving, other.process, other.serving = 70, True, 71, True
    killed: list[int] = []
    monkeypatch.setattr(workers.os, "kill", lambda process, number: killed.append(process))
    made._watch()
    assert (one.silent, other.silent) == (2.0, 2.0)  # the first look: since when is not known
    for passed, silent in ((1.0, 3.0), (0.5, 3.0), (0.5, 4.0), (1.25, 5.25), (900.0, 7.25)):
        clock.now += passed
        made._watch()
        assert one.silent == silent
    made.board.places[1].facts[HEARD] = clock.now
    clock.now += 1.0
    made._watch()
    assert (one.silent, other.silent, other.heard) == (8.25, 0.0, clock.now - 1.0)
    one.silent = workers.HUNG_SECONDS - 1.0
    clock.now += 1.0
    made._watch()
    assert (killed, one.silent, other.silent) == ([70], 0.0, 1.0)


def test_a_server_that_was_stopped_for_a_while_kills_no_worker_when_it_goes_on(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = supervisor(1)
    made.workers[0].process, made.workers[0].serving = 70, True
    monkeypatch.setattr(workers.os, "kill", lambda process, number: pytest.fail("killed"))
    for _ in range(12):
        for _ in range(3):
            clock.now += 1000
            made._watch()
        made.board.places[0].facts[HEARD] = clock.now


def test_workers_without_a_process_start_when_they_are_due(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    made = supervisor(4)
    started: list[int] = []
    monkeypatch.setattr(made, "_start", lambda worker: started.append(worker.number))
    made.workers[0].process = 70
    made.workers[1].due, made.workers[2].due, made.workers[3].due = clock.now, clock.now + 0.1, clock.now - 1
    made._start_due()
    assert started == [1, 3]


def test_the_supervisor_sleeps_until_the_next_look_or_the_next_start(clock: Clock) -> None:
    made = supervisor()
    made._next_look = clock.now + 5
    made.workers[0].process = made.workers[1].process = 70
    made.workers[0].due = clock.now + 1
    made._next_watch = clock.now + 6
    assert made._timeout() == 5
    made._next_watch = clock.now + 4
    assert made._timeout() == 4
    made.workers[0].process = 0
    assert made._timeout() == 1
    clock.now += 2
    assert made._timeout() == 0


def test_a_look_comes_as_often_as_it_is_asked_for(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[float] = []
    reloader = SimpleNamespace(look_safely=lambda: looked.append(clock.now), shared=None)
    made = supervisor(1, reloader)
    monkeypatch.setattr(workers, "memory_of", lambda process: 100)
    for step in (0.0, 0.4, 0.1, 0.1, 0.4):
        clock.now += step
        made._look()
    assert looked == [1000.0, 1000.5, 1001.0]


def test_news_name_the_file_of_a_version_and_the_memory_of_all(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    reloader = SimpleNamespace(shared=SimpleNamespace(file=""))
    made = supervisor(2, reloader, version=8)
    made.workers[1].process = 71
    asked: list[int] = []
    monkeypatch.setattr(workers, "memory_of", lambda process: asked.append(process) or 100)
    published: list[int] = []
    publish = made.board.publish
    monkeypatch.setattr(
        made.board, "publish", lambda version, news: (published.append(version), publish(version, news))
    )
    made._tell_news()
    assert (made.board.version, asked) == (0, [os.getpid(), 71])
    news = made.board.news.read()
    assert (news["version"], news["file"], news["memory"]) == (8, "", 200)
    reloader.shared.file = "/tmp/8.shared"
    clock.now += MEMORY_SECONDS - 1
    made._tell_news()
    assert (made.board.version, len(asked)) == (8, 2)
    made._tell_news()
    assert published == [0, 8]  # nothing new, nothing written
    clock.now += 1
    made._tell_news()
    assert len(asked) == 4


@pytest.mark.parametrize(("stops", "late", "killed"), [(1, False, False), (2, False, True), (1, True, True)])
def test_workers_are_given_time_to_end_unless_a_second_signal_comes(
    stops: int, late: bool, killed: bool, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = supervisor(3)
    made.stops = stops
    made.workers[0].process, made.workers[2].process = 70, 72
    sent: list[tuple[int, int]] = []
    looks = {70: 0, 72: 0}

    def waitpid(process: int, how: int) -> tuple[int, int]:
        looks[process] += 1
        if how == 0 or process == 70 or (not killed and looks[process] > 3):
            return process, 0
        return 0, 0

    def wait(seconds: float) -> None:
        clock.now += workers.GRACE if late else 0.1

    monkeypatch.setattr(workers.os, "kill", lambda process, number: sent.append((process, int(number))))
    monkeypatch.setattr(workers.os, "waitpid", waitpid)
    monkeypatch.setattr(made, "_wait", wait)
    made._end()
    assert made.board.draining
    assert sent == [(70, 15), (72, 15), *([(72, 9)] if killed else [])]
    assert [w.process for w in made.workers] == [0, 0, 0]


def test_requests_under_way_have_fifteen_seconds(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    made = supervisor(1)
    made.workers[0].process, made.stops = 70, 1
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        clock.now += 5.0

    sent: list[int] = []
    monkeypatch.setattr(workers.os, "kill", lambda process, number: sent.append(int(number)))
    monkeypatch.setattr(workers.os, "waitpid", lambda process, how: (0, 0))
    monkeypatch.setattr(made, "_wait", wait)
    made._end()
    assert (sent, waits) == ([15, 9], [0.1] * 4)


def test_a_worker_gets_a_process_and_one_that_cannot_start_is_tried_again(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = supervisor(2)
    worker = made.workers[1]
    worker.silent, worker.serving = 9.0, True
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    monkeypatch.setattr(workers.os, "fork", lambda: 77)
    made._start(worker)
    assert (worker.process, worker.serving, worker.began, worker.silent) == (77, False, clock.now, 0.0)
    assert made.board.places[1].told()["process"] == 77
    assert os.read(worker.says, 1) == b""  # the other end is the child's alone
    made._left(worker)
    assert (worker.process, worker.says) == (0, -1)

    def fork() -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(workers.os, "fork", fork)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with caplog.at_level(logging.WARNING, "ctrbox.serve"):
        for wait in (0.0, 1.0, 2.0):
            made._start(worker)
            assert (worker.process, worker.due) == (0, clock.now + wait)
    why = "cannot start worker 2: Resource temporarily unavailable; another one starts"
    assert caplog.messages == [f"{why} now", f"{why} in 1 s", f"{why} in 2 s"]
    assert len(list(Path("/proc/self/fd").iterdir())) <= before  # garbage of other tests may be collected meanwhile
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == blocked


@pytest.mark.parametrize("stopped", [False, True])
def test_the_server_is_ready_when_all_workers_serve_unless_it_is_stopped_before(
    stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, events = supervisor(2), list[str]()
    vars(made.server.settings).update(host="127.0.0.1", port=0, grpc_port=0)
    collected: list[str] = []  # the objects of pytest itself stay frozen
    steps = ("collect", "freeze", "unfreeze")
    monkeypatch.setattr(workers, "gc", SimpleNamespace(**{step: partial(collected.append, step) for step in steps}))
    monkeypatch.setattr(workers.os, "waitpid", lambda process, how: (0, 0))
    monkeypatch.setattr(made, "_tell_news", lambda: events.append("news"))
    monkeypatch.setattr(made, "_end", lambda: events.append("end"))

    def start(worker: Any) -> None:
        events.append(f"start {worker.number}")
        worker.process = 70 + worker.number

    def wait(seconds: float) -> None:
        events.append("wait")
        assert len(made.sockets) == 1
        begins = next((worker for worker in made.workers if not worker.serving), None)
        if begins is None or stopped:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            begins.serving = True

    monkeypatch.setattr(made, "_start", start)
    monkeypatch.setattr(made, "_wait", wait)
    before = [signal.getsignal(number) for number in workers.SIGNALS]
    made.run(lambda: events.append("ready"))
    rest = ["wait", "end"] if stopped else ["wait", "wait", "news", "ready", "wait", "news", "end"]
    assert events == ["start 0", "start 1", *rest]
    assert [signal.getsignal(number) for number in workers.SIGNALS] == before
    assert (made.stops, made.sockets, tuple(collected)) == (1, [], steps)


def test_a_supervisor_refreshes_views_for_its_workers(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    refresher = SimpleNamespace(
        interrupt=lambda: asked.append("end"), look_safely=lambda: asked.append("look"), told=lambda: {"views": {}}
    )
    plain = supervisor(1)
    service = plain.server.service
    server = SimpleNamespace(
        workers=2, reloader=None, service=service, settings=plain.server.settings, refresher=refresher
    )
    made = Supervisor(server)  # type: ignore[arg-type]
    monkeypatch.setattr(workers, "memory_of", lambda process: 100)
    made._look()
    assert made.board.news.read()["views"] == {"views": {}}
    assert refresher.asked() == 0  # type: ignore[attr-defined]
    for place in made.board.places:
        Desk(made.board, made.board.places.index(place)).ask_for_views()
    assert refresher.asked() == 2  # type: ignore[attr-defined]
    made._signaled(signal.SIGCHLD, None)
    assert asked == ["look"]
    made._signaled(signal.SIGTERM, None)
    assert asked == ["look", "end"]
    plain._look()
    assert "views" not in plain.board.news.read()


def test_signals_that_ask_for_the_end_are_counted() -> None:
    made = supervisor()
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        made._signaled(number, None)
    assert made.stops == 2


def test_the_first_message_of_a_worker_is_json_and_nobody_need_hear_it() -> None:
    hears, end = os.pipe()
    tell(end, {"serving": True})
    assert json.loads(os.read(hears, 100)) == {"serving": True}
    os.close(hears)
    tell(end, {"serving": True})  # the pipe is closed already


# ---- a worker that follows


class Taking:
    """A served model that takes versions, or fails."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.error: Exception | None = None
        self.taken: list[tuple[str, int, bool]] = []

    def take(self, file: Any, version: int, shared: bool = False) -> None:
        self.taken.append((str(file), version, shared))
        if self.error is not None:
            raise self.error
        self.version = version


def test_a_worker_takes_the_version_of_the_board_once() -> None:
    board, served = Board(1), Taking(3)
    follower = Follower(served, board)  # type: ignore[arg-type]
    assert not follower.look()  # no version is said yet
    board.publish(3, {"version": 3, "file": "/3"})
    assert not follower.look()
    board.publish(4, {"version": 4, "file": ""})
    assert not follower.look()
    board.publish(4, {"version": 3, "file": "/3"})  # news that are about to change
    assert not follower.look()
    assert not served.taken
    board.publish(4, {"version": 4, "file": "/4"})
    assert follower.look()
    assert not follower.look()
    assert served.taken == [("/4", 4, True)]


@pytest.mark.parametrize("error", [DataError("damaged"), OSError("gone"), MemoryError()])
def test_a_fault_of_a_worker_is_logged_once_and_tried_again(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    board, served = Board(1), Taking(3)
    follower = Follower(served, board)  # type: ignore[arg-type]
    board.publish(4, {"version": 4, "file": "/4"})
    served.error = error
    with caplog.at_level(logging.WARNING, "ctrbox.serve"):
        assert [follower.look() for _ in range(3)] == [False] * 3
        assert len(served.taken) == 3
        told = str(error) or "MemoryError of version 4"
        assert caplog.messages == [f"could not load version 4, will try again: {told}"]
        board._facts[2] = 5  # a newer version is on its way: this one's file may be gone
        board.news.write({"version": 5, "file": "/5"})
        board._facts[2] = 6
        assert not follower.look()
        assert len(caplog.messages) == 1
    served.error = None
    assert follower.look()
    assert served.version == 5


# ---- new versions


def test_a_file_of_a_version_is_kept_where_it_was_taken_and_the_one_before_goes(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.write_text("weights")
    shared = SharedVersions(tmp_path)
    taken: list[Path] = []

    def version(number: int) -> Any:
        return SimpleNamespace(number=number, kind=CLICK_MODEL)

    assert shared.file == ""
    shared.give(copy, version(7), taken.append)
    assert (taken, shared.file) == ([tmp_path / "00000007.shared"], str(tmp_path / "00000007.shared"))
    assert Path(shared.file).samefile(copy)

    def refuse(file: Path) -> None:
        raise DataError("no")

    with pytest.raises(DataError, match="no"):
        shared.give(copy, version(8), refuse)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00000007.shared", "copy"]
    shared.give(copy, version(9), taken.append)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00000009.shared", "copy"]
    (tmp_path / "00000010.shared").write_text("of a try that was interrupted")
    shared.give(copy, version(10), taken.append)
    assert Path(shared.file).read_text() == "weights"


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (OSError(errno.ENOSPC, "full"), True),
        (OSError(errno.EMFILE, "too many"), True),
        (FileNotFoundError(errno.ENOENT, "gone"), False),
        (NotADirectoryError(errno.ENOTDIR, "no folder"), False),
        (MemoryError(), True),
        (DataError("damaged"), False),
        (caused(WriteError("cannot write"), OSError(errno.ENOSPC, "full")), True),
        (caused(DataError("cannot read"), OSError(errno.ENOENT, "gone")), False),
        (caused(DataError("cannot read"), MemoryError()), True),
        (caused(DataError("cannot read"), OSError("without a number")), False),
        (ValueError("unknown"), True),
    ],
)
def test_a_fault_of_the_machine_passes_and_a_damaged_version_does_not(error: Exception, passes: bool) -> None:
    assert passing(error) is passes


def test_waits_after_a_passing_fault_double_up_to_a_minute(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    made = Reloader.__new__(Reloader)
    made.served, made.metrics, made.refused = Taking(3), Metrics(), set()  # type: ignore[assignment]
    made._wait, made._told = FIRST_WAIT, ""
    waits = []
    with caplog.at_level(logging.WARNING, "ctrbox.serve"):
        for _ in range(8):
            made._failed(None, OSError(errno.ENOSPC, "full"))
            waits.append(made._retry_at - clock.now)
        assert caplog.messages == [
            "could not load the published folder, still serving version 3; next retry in 1 s: [Errno 28] full"
        ]
        assert waits == [1, 2, 4, 8, 16, 32, LONGEST_WAIT, LONGEST_WAIT]
        made._failed(SimpleNamespace(number=5), DataError("damaged"))  # type: ignore[arg-type]
    assert caplog.messages[1:] == ["could not load version 5, still serving version 3; it will not be retried: damaged"]
    assert made.refused == {5}
    assert made.metrics.refused == 2
    assert made.metrics.last_refusal == "version 5: damaged"
