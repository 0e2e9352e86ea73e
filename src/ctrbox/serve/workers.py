"""Serves with several processes: a supervisor opens the model, starts workers, replaces those that die or hang, and ends them.

    the supervisor     has the listening sockets, the model, new versions (reload.py), joined views (view_refresh.py) and the
                       board (memory_shared_by_workers.py); it answers no request
    a worker           accepts connections of the shared sockets, scores, and follows new versions (worker_follows_supervisor.py)
                       and views

The supervisor opens the model and *forks*. Everything that it has read by then (weights, joined views, tables) is memory that all
workers share, because nobody writes to it. A fork needs a process in which no thread holds a lock. The supervisor therefore
starts no threads, and a model whose tables need threads is served by one process (`why_one`).

HTTP workers inherit one listening socket instead of opening one each (SO_REUSEPORT). Connections that no worker has accepted yet
wait in one queue, so they survive the end of a worker, and a worker with few connections can accept the next one. grpcio cannot
inherit a socket. For gRPC, each worker therefore listens at the port with SO_REUSEPORT, and the supervisor reserves the port.

SIGTERM or SIGINT ends the server. Workers ignore SIGINT, which a terminal sends to all of them. If the supervisor is killed, the
workers notice the end of a pipe and stop.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import select
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ctrbox import _native
from ctrbox.errors import CtrboxError, PlanError
from ctrbox.publish.weights_of_models import CLICK_MODEL
from ctrbox.serve.listener import listening_sockets
from ctrbox.serve.memory_shared_by_workers import Board, Desk
from ctrbox.serve.metrics import resident
from ctrbox.serve.model_folder import RUN
from ctrbox.serve.open_file_limit import FEWEST
from ctrbox.serve.served_models import Served, ServedRun

if TYPE_CHECKING:
    from ctrbox.serve.prerank import Prerank
    from ctrbox.serve.server import Server

MOST_WORKERS = 256
GRACE = 10.0  # seconds that requests under way are given at the end
LONG = 10.0  # seconds that a worker must have served, or its successor waits the longer the more often that happens
LONGEST_WAIT = 60.0  # seconds
MEMORY_SECONDS = 10.0  # between two measurements of the memory
WATCH_SECONDS = 1.0  # between two looks at the event loops of the workers
HUNG_SECONDS = (
    30.0  # without a turn of its event loop, after which a worker is killed; its successor takes its connections
)
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
log = logging.getLogger("ctrbox.serve")


@dataclass(frozen=True)
class Seat:
    """The objects that a worker process gets from the supervisor. ``life``: a pipe that closes when the supervisor ends."""

    desk: Desk
    sockets: Sequence[socket.socket]
    life: int


@dataclass
class Worker:
    number: int
    process: int = 0  # 0: none now
    says: int = -1  # a pipe from which its first message comes: that it serves, or why it cannot
    serving: bool = False
    began: float = 0.0
    short: int = 0  # processes in a row that did not serve for long
    due: float = 0.0  # when to start the next one, by the monotonic clock
    heard: float = 0.0  # when its event loop had last run, as of the last look
    silent: float = 0.0  # seconds that the supervisor has watched its event loop stand still


def why_one(kind: str, served: Served, prerank: Prerank | None) -> str:
    """Return why only one process can serve a model; "" if several can."""
    if sys.platform != "linux":
        return "several worker processes are supported on Linux only"
    if served.past is not None and not served.past.shared:
        return "the state of histories is kept by one process, unless --events names a stream or --follow-state a file"
    models = [served.run.click_model] if kind == RUN and isinstance(served, ServedRun) else []
    models += [] if prerank is None else [prerank.users.click_model]
    if models:
        from ctrbox.embed.ssd.saved_parts import TableParts
        from ctrbox.embed.ssd.sparse_table import SparseTable

        if any(isinstance(source.embedder, SparseTable | TableParts) for model in models for source in model.sources):
            return "the run has a Sparse Table, whose reading threads belong to one process"
    return ""


def worker_count(asked: int | None, kind: str, served: Served, connections: int, prerank: Prerank | None = None) -> int:
    """Return how many workers serve a model; ``asked``: None for as many as there are usable cores.

    A published click model has one by default: each worker would load the tables of a new version into memory of its own.
    """
    if asked == 1:
        return 1
    why = why_one(kind, served, prerank)
    if asked is None:
        if why or kind == CLICK_MODEL:
            return 1
        return max(1, min(_native.usable_cores(), MOST_WORKERS, connections // FEWEST))
    if why:
        raise PlanError(f"--workers {asked} is not possible: {why}; use --workers 1")
    if asked * FEWEST > connections:
        raise PlanError(
            f"--max-connections {connections} leaves {connections // asked} connections for each of {asked} workers; at least "
            f"{FEWEST} are needed: raise it to {asked * FEWEST}, or use fewer workers"
        )
    return asked


class Supervisor:
    """Starts and watches workers. ``run`` serves until a signal arrives, in the main thread."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.board = Board(server.workers)
        if server.refresher is not None:
            server.refresher.asked = lambda: self.board.asked_for_views
        self.workers = [Worker(k) for k in range(server.workers)]
        self.sockets: list[socket.socket] = []
        self.stops = 0  # signals that ask for the end
        self._life = (-1, -1)
        self._woken: tuple[socket.socket, socket.socket] | None = None
        self._next_look = self._next_memory = self._next_watch = 0.0
        self._news: dict[str, Any] = {}
        self._memory: int | None = None

    def run(self, ready: Callable[[], None]) -> None:
        settings = self.server.settings
        with contextlib.ExitStack() as held:
            self.sockets = listening_sockets(settings.host, settings.port)
            held.callback(self._close_sockets)
            if settings.grpc_port:
                for sock in reserved(settings.host, settings.grpc_port):
                    held.enter_context(sock)
            self._life = os.pipe()
            for end in self._life:
                held.callback(os.close, end)
            self._woken = socket.socketpair()
            for sock in self._woken:
                sock.setblocking(False)
                held.enter_context(sock)
            before = {number: signal.signal(number, self._signaled) for number in SIGNALS}
            wakes = signal.set_wakeup_fd(self._woken[1].fileno(), warn_on_full_buffer=False)

            def restore() -> None:
                signal.set_wakeup_fd(wakes)
                for number, handler in before.items():
                    signal.signal(number, handler)

            held.callback(restore)
            gc.collect()
            gc.freeze()  # objects of the model are looked at by no collection, so their pages stay shared
            held.callback(gc.unfreeze)
            _native.fill_heap_holes()  # what a worker allocates would go there, and copy a page each time
            try:
                for worker in self.workers:
                    self._start(worker)
                while not self.stops and not all(worker.serving for worker in self.workers):
                    self._wait(1.0)
                    self._reap(first=True)
                    self._start_due()
                if not self.stops:
                    self._tell_news()
                    ready()
                while not self.stops:
                    self._wait(self._timeout())
                    self._reap()
                    self._watch()
                    self._start_due()
                    self._look()
            finally:
                self._end()

    def _signaled(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self.stops += 1
            if self.server.refresher is not None:
                self.server.refresher.interrupt()

    # ---- starting

    def _start(self, worker: Worker) -> None:
        """Fork a worker. Signals are blocked meanwhile, so that none reaches the child while it has the supervisor's handlers."""
        says, say = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            with warnings.catch_warnings():
                # Python 3.12 and newer warn where a library has threads. Those that are there, of Arrow, are idle, and Arrow
                # starts others in the child.
                warnings.simplefilter("ignore", DeprecationWarning)
                process = os.fork()
            if not process:
                self._child(worker, say)
        except OSError as error:
            os.close(says)
            worker.short += 1
            self._later(worker, f"cannot start worker {worker.number + 1}: {error.strerror or error}")
            return
        finally:
            os.close(say)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        worker.process, worker.says, worker.serving, worker.began = process, says, False, time.monotonic()
        worker.silent = 0.0
        self.board.occupy(worker.number, process)

    def _child(self, worker: Worker, say: int) -> None:
        """Serve as a worker. This call does not return."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            for number in (signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            os.close(self._life[1])
            seat = Seat(Desk(self.board, worker.number), self.sockets, self._life[0])
            self.server.work(seat, lambda: tell(say, {"serving": True}))
            code = 0
        except (CtrboxError, ImportError) as error:
            module = error.name if isinstance(error, ImportError) else None
            tell(say, {"failed": str(error)[:2000], "module": module})
        except BaseException as error:
            log.exception("a worker failed")
            tell(say, {"failed": f"a worker failed: {type(error).__name__}: {str(error)[:2000]}", "module": None})
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)  # nothing of the supervisor's is cleaned up here, its copy of the weights above all

    def _start_due(self) -> None:
        now = time.monotonic()
        for worker in self.workers:
            if not worker.process and worker.due <= now:
                self._start(worker)

    # ---- watching

    def _timeout(self) -> float:
        now = time.monotonic()
        moments = [self._next_look, self._next_watch, *(w.due for w in self.workers if not w.process)]
        return max(0.0, min(moments) - now)

    def _wait(self, seconds: float) -> None:
        """Wait for a signal or a worker's message, and read it."""
        assert self._woken is not None
        woken = self._woken[0]
        pipes = {worker.says: worker for worker in self.workers if worker.says >= 0}
        found = select.select([woken.fileno(), *pipes], [], [], seconds)[0]
        for end in found:
            if end == woken.fileno():
                with contextlib.suppress(BlockingIOError):
                    while woken.recv(4096):
                        pass
                continue
            worker = pipes[end]
            text = os.read(end, 65_536)
            os.close(end)
            worker.says = -1
            said = json.loads(text) if text else {}
            worker.serving = "serving" in said
            if "failed" in said:
                self._failed(worker, said)

    def _failed(self, worker: Worker, said: dict[str, Any]) -> None:
        """Handle a worker that could not begin. At the start of the server, this ends the server; later, it is logged and tried
        again.
        """
        if not self._news:
            if said["module"]:
                raise ImportError(said["failed"], name=said["module"])
            raise PlanError(said["failed"])
        log.error("worker %d could not start: %s", worker.number + 1, said["failed"])

    def _reap(self, first: bool = False) -> None:
        """Note which workers have ended."""
        for worker in self.workers:
            if not worker.process:
                continue
            process, status = os.waitpid(worker.process, os.WNOHANG)
            if not process:
                continue
            if worker.says >= 0:
                self._wait(0.0)  # what it said last
            self._left(worker)
            what = f"worker {worker.number + 1} (process {process}) ended {words_of(status)}"
            if first:
                raise PlanError(f"{what} before it could serve")
            self.board.vacate(worker.number)
            lived = time.monotonic() - worker.began
            worker.short = 0 if lived >= LONG else worker.short + 1
            self._later(worker, what)

    def _watch(self) -> None:
        """Kill workers whose event loop has not run for HUNG_SECONDS; they are then replaced like other workers that ended.

        Each check adds at most twice the time between checks. So no worker is killed when a machine, or the whole server with its
        supervisor, continues after it was stopped for a while.
        """
        now = time.monotonic()
        if now < self._next_watch:
            return
        passed = min(now - (self._next_watch - WATCH_SECONDS), 2 * WATCH_SECONDS)
        self._next_watch = now + WATCH_SECONDS
        for worker in self.workers:
            heard = self.board.places[worker.number].heard
            if not worker.process or not worker.serving or heard != worker.heard:
                worker.heard, worker.silent = heard, 0.0
                continue
            worker.silent += passed
            if worker.silent >= HUNG_SECONDS:
                log.error("worker %d (process %d) hangs and is killed", worker.number + 1, worker.process)
                os.kill(worker.process, signal.SIGKILL)
                worker.silent = 0.0

    def _left(self, worker: Worker) -> None:
        worker.process, worker.serving = 0, False
        if worker.says >= 0:
            os.close(worker.says)
            worker.says = -1

    def _later(self, worker: Worker, what: str) -> None:
        """Set when the next process of a worker starts: at once, or after a while if the last ones ended soon."""
        wait = min(LONGEST_WAIT, 2.0 ** (worker.short - 2)) if worker.short > 1 else 0.0
        worker.due = time.monotonic() + wait
        log.warning("%s; another one starts %s", what, f"in {wait:g} s" if wait else "now")

    def _look(self) -> None:
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + self.server.settings.reload_seconds
        if self.server.reloader is not None:
            self.server.reloader.look_safely()
        if self.server.refresher is not None:
            self.server.refresher.look_safely()
        self._tell_news()

    def _tell_news(self) -> None:
        """Write changes to the board: the version to serve, what happened to other versions, the memory of all processes."""
        now = time.monotonic()
        if now >= self._next_memory:
            self._next_memory = now + MEMORY_SECONDS
            self._memory = sum(memory_of(p) for p in [os.getpid(), *(w.process for w in self.workers if w.process)])
        reloader, service = self.server.reloader, self.server.service
        file = reloader.shared.file if reloader is not None and reloader.shared is not None else ""
        version = service.served.version
        news = {"version": version, "file": file, "reloads": service.metrics.told(), "memory": self._memory}
        if self.server.refresher is not None:
            news["views"] = self.server.refresher.told()
        if news != self._news:
            self._news = news
            self.board.publish(version if file else 0, news)

    # ---- the end

    def _end(self) -> None:
        """Let the workers answer requests in progress for a while. A second signal ends them at once."""
        self.board.drain()
        self._close_sockets()
        running = [worker for worker in self.workers if worker.process]
        for worker in running:
            os.kill(worker.process, signal.SIGTERM)
        end = time.monotonic() + GRACE + 5.0
        while running := [w for w in self.workers if w.process and not os.waitpid(w.process, os.WNOHANG)[0]]:
            for worker in self.workers:
                if worker.process and worker not in running:
                    self._left(worker)
            if self.stops > 1 or time.monotonic() > end:
                log.warning("%d workers had requests under way and were killed", len(running))
                for worker in running:
                    os.kill(worker.process, signal.SIGKILL)
                    os.waitpid(worker.process, 0)
                    self._left(worker)
                break
            with contextlib.suppress(CtrboxError, ImportError):
                self._wait(0.1)
        for worker in self.workers:
            self._left(worker)

    def _close_sockets(self) -> None:
        for sock in self.sockets:
            sock.close()
        self.sockets = []


def tell(pipe: int, message: dict[str, Any]) -> None:
    """Send a worker's first message to the supervisor; further messages are not read."""
    with contextlib.suppress(OSError):
        os.write(pipe, json.dumps(message).encode())
        os.close(pipe)


def words_of(status: int) -> str:
    """Say how a process ended, from what `os.waitpid` returned."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"by {signal.Signals(-code).name}"
        return f"by signal {-code}"
    return f"with exit code {code}"


def reserved(host: str, port: int) -> list[socket.socket]:
    """Reserve a port at which workers will listen with SO_REUSEPORT. Raise a PlanError if another process uses it."""
    held: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            try:
                sock = socket.socket(family, kind, protocol)
            except OSError:  # a machine without IPv6
                continue
            held.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
    except (OSError, UnicodeError) as error:
        for sock in held:
            sock.close()
        told = getattr(error, "strerror", None) or error
        raise PlanError(f"cannot listen at {host[:100]}:{port} for gRPC: {told}") from error
    return held


def memory_of(process: int) -> int:
    """Return the memory of a process in bytes. Of pages that it shares with others, its part counts (proportional set size)."""
    try:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return resident(process)
