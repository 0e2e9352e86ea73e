"""Runs the server process: HTTP, gRPC, loading of new versions and an orderly shutdown.

    the event loop        sockets, HTTP, routes, refusals; scores of a published model, one request per turn: JSON, plan, model
    ctrbox-score-k        threads of the queue, which score with a run folder
    ctrbox-grpc-k         threads of gRPC, which score the requests that they receive
    ctrbox-reload         a thread that loads new versions
    ctrbox-views          a thread that reads joined views again

After SIGTERM or Ctrl-C, readiness answers 503, the server answers the requests in progress, and then the process ends. With
several workers, each worker is such a process below a supervisor (workers.py), which loads new versions for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctrbox._native import usable_cores
from ctrbox.errors import PlanError, SourceError
from ctrbox.plan.language.user_operators import UserOperator
from ctrbox.publish.signed_statement import Trust
from ctrbox.publish.weights_of_models import DEEP_FFM
from ctrbox.serve.access_log import AccessLog
from ctrbox.serve.event_stream import EventStream
from ctrbox.serve.host_and_origin import AllowedHosts
from ctrbox.serve.listener import Listener
from ctrbox.serve.metrics import Metrics
from ctrbox.serve.model_folder import RUN, ModelFolder
from ctrbox.serve.open_file_limit import connections_allowed
from ctrbox.serve.own_copy_of_weights import OwnCopy
from ctrbox.serve.reload import Reloader
from ctrbox.serve.request_queue import ScoringQueue
from ctrbox.serve.served_models import Served, ServedRun, open_served
from ctrbox.serve.service import Limits, Service
from ctrbox.serve.state_of_histories import StateFollower, StateWriter
from ctrbox.serve.tls import Certificate
from ctrbox.serve.traces import Traces, check_target
from ctrbox.serve.view_refresh import ViewFollower, ViewRefresher, check_refreshes
from ctrbox.serve.watcher import Watcher
from ctrbox.serve.worker_follows_supervisor import Follower
from ctrbox.serve.workers import GRACE, Seat, Supervisor, worker_count

if TYPE_CHECKING:
    from ctrbox.serve.prerank import Prerank

LIBRARIES = {
    "grpc": "grpcio",
    "tritonclient": "tritonclient[grpc]",
    "orjson": "orjson",
}
GRPC_THREADS = 2
RPC_GRACE = 1.0  # seconds that gRPC calls in progress may take after all requests have left the queue
CATCH_UP_SECONDS = 20.0  # longest time that a process waits for the events of its stream before it serves
STORED_SECONDS = 5.0  # between two looks at a model on S3 or HDFS, each of which is a request
TOKEN = "CTRBOX_TOKEN"
TOKEN_FILE_BYTES = 8192
log = logging.getLogger("ctrbox.serve")


@dataclass(frozen=True)
class Settings:
    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int = 0  # 0: none
    token: str = ""
    name: str = ""  # of the model; its folder's unless given
    threads: int | None = (
        None  # that score; 0: the event loop. None: 1 for a run's folder, pre-rank and encoders, else 0
    )
    workers: int | None = (
        1  # processes; None: as many as there are usable cores, where the model allows it (workers.py)
    )
    reload_seconds: float = 0.5
    views_seconds: float = 0.0  # between two checks of the files of joined views; 0: they are read again only on a call
    state: Path | None = None  # of the plan's histories; None: requests bring their columns
    state_seconds: float = 30.0  # between two saves of the state
    events: str = ""  # address of a stream that feeds the state; "": calls bring the events
    follow_state: Path | None = None  # a state that another process writes, instead of ``state``
    limits: Limits = field(default_factory=Limits)
    views: Mapping[str, Any] = field(default_factory=dict)
    servers: Mapping[str, str] = field(default_factory=dict)  # vector files of a run's Model Servers, by field
    table_memory: int | None = None  # bytes for all Sparse Tables of a run; None: 2 GB for each of them
    allow_operators: bool | Sequence[UserOperator] = False
    prerank: Path | None = None  # folder of `ctrbox vectors prerank`; None: no pre-rank
    prerank_run: Path | None = None  # the run with the user tower; None: the served run itself
    prerank_views: Mapping[str, Any] = field(default_factory=dict)  # other data of that run's views, by name
    prerank_candidates: int = 100_000  # of one request at most
    tls_cert: Path | None = None  # PEM; with the key in it unless tls_key has it
    tls_key: Path | None = None
    allow_hosts: tuple[str, ...] = ()  # more names that a server without a token answers to
    allow_views: Sequence[str] = ()  # paths that the plan may open, as for cb.Plan.load
    public_keys: Sequence[Path] = ()  # of which one must have signed the model; none: signatures are not checked
    model_id: str = ""  # that a signed model must have; "": that of the first version
    trust_file: Path | None = None  # in which the server remembers the newest signed version
    encoders: Mapping[str, Any] = field(
        default_factory=dict
    )  # of images and texts of requests, by field (`open_served`)
    traces: str = ""  # URL of an OTLP/HTTP collector, or "console"; "": no spans are made
    access_log: Path | None = None  # file of a line for each request; None: none
    own_plan: Any = None  # plan and model of the user's job, for a model of their own class
    own_model: Any = None


def loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(path: Path | None) -> str:
    """Return the token from a file or from CTRBOX_TOKEN; "" if neither is given."""
    if path is None:
        return os.environ.get(TOKEN, "").strip()
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise SourceError(
                f"the token file {path} is a folder, a pipe or a device; expected a regular file, or the token in {TOKEN}"
            )
        with path.open("rb") as file:
            read = file.read(TOKEN_FILE_BYTES + 1)
        token = read.decode("utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise SourceError(f"cannot read the token file {path}: {getattr(error, 'strerror', None) or error}") from error
    if len(read) > TOKEN_FILE_BYTES:
        raise SourceError(
            f"the token file {path} is larger than {TOKEN_FILE_BYTES:,} bytes; check that it is the right file"
        )
    if not token:
        raise SourceError(f"the token file {path} is empty; write the token into it")
    return token


def check(settings: Settings) -> None:
    if not settings.token and not loopback(settings.host):
        raise PlanError(
            f"{settings.host} can be reached from other machines, so a token is required: --token-file FILE, or {TOKEN}; "
            "or listen at 127.0.0.1"
        )
    if settings.token and (
        len(settings.token) > 4096 or not settings.token.isascii() or not settings.token.isprintable()
    ):
        raise PlanError("a token must be printable ASCII of at most 4096 characters")
    if not settings.public_keys and (settings.model_id or settings.trust_file is not None):
        option = "--model-id" if settings.model_id else "--trust-file"
        raise PlanError(f"{option} needs the public key of the publisher; add --public-key FILE")
    if settings.prerank is None and (settings.prerank_run is not None or settings.prerank_views):
        option = "--prerank-view" if settings.prerank_run is None else "--prerank-run"
        raise PlanError(f"{option} needs the vectors of the ads: --prerank FOLDER, made by `ctrbox vectors prerank`")
    if settings.prerank_run is None and settings.prerank_views:
        raise PlanError(
            "--prerank-view can be used only with --prerank-run; for the views of the served model, use --view"
        )
    if settings.events and settings.state is None:
        raise PlanError("--events needs a state to which the server can add the events; add --state FILE")
    if settings.follow_state is not None and settings.state is not None:
        raise PlanError(
            "--follow-state names a state that another process writes, and --state names a state that this server writes; "
            "use only one of the two"
        )
    if settings.traces:
        check_target(settings.traces)
    if settings.access_log is not None:
        AccessLog(settings.access_log).close()
    if settings.tls_key is not None and settings.tls_cert is None:
        raise PlanError("--tls-key needs the certificate that the key belongs to: --tls-cert FILE")


@dataclass
class Server:
    """A server with a loaded model. ``open`` makes one, and ``run`` serves until a signal arrives."""

    settings: Settings
    service: Service
    reloader: Reloader | None
    certificate: Certificate | None = None
    workers: int = 1  # processes that serve
    refresher: ViewRefresher | None = None  # of joined views; None where none has files

    @staticmethod
    def open(folder: str | os.PathLike[str], settings: Settings) -> Server:
        check(settings)
        certificate = None if settings.tls_cert is None else Certificate(settings.tls_cert, settings.tls_key)
        trust = None
        if settings.public_keys:
            trust = Trust(settings.public_keys, model_id=settings.model_id, memory=settings.trust_file)
        found = ModelFolder.open(folder, trust=trust)
        if found.kind != DEEP_FFM or settings.prerank is not None:
            import torch

            # A request is too small to be divided: waking others takes longer than its work. Set before the model is opened, so
            # that torch starts no threads, which workers would not have.
            torch.set_num_threads(1)
        own = None if found.kind == RUN else OwnCopy(found.published)
        try:
            return Server._opened(found, own, settings, certificate)
        except BaseException:
            if own is not None:
                own.close()
            raise

    @staticmethod
    def _opened(found: ModelFolder, own: OwnCopy | None, settings: Settings, certificate: Certificate | None) -> Server:
        limits = settings.limits
        served = open_served(
            found,
            views=settings.views,
            servers=settings.servers,
            allow_operators=settings.allow_operators,
            allow_views=settings.allow_views,
            own_plan=settings.own_plan,
            own_model=settings.own_model,
            cache_bytes=limits.cache_bytes,
            most_candidates=limits.candidates,
            own=own,
            state=settings.state or settings.follow_state,
            encoders=settings.encoders,
            most_images=limits.images,
            most_pixels=limits.pixels,
            table_memory=settings.table_memory,
        )
        if served.past is not None:
            served.past.follows = settings.follow_state is not None
            if settings.events:
                served.past.stream = EventStream(served.past, settings.events)
                served.past.stream.check()
        prerank = prerank_of(found, served, settings)
        workers = worker_count(settings.workers, found.kind, served, limits.connections, prerank)
        if prerank is not None:
            prerank.threads = max(1, usable_cores() // workers)
        if workers > 1:
            served.cache.budget //= workers
        slow = found.kind == RUN or prerank is not None or bool(settings.encoders)
        threads = slow if settings.threads is None else settings.threads
        queue = ScoringQueue(int(threads), limits.waiting, limits.deadline_ms / 1000, limits.client_share)
        name = settings.name or found.folder.resolve().name or "model"
        hosts = None if settings.token else AllowedHosts(settings.host, settings.allow_hosts)
        online = found.online if found.trust is None else None  # what a learner says of itself is not signed
        service = Service(served, name, queue, limits, settings.token.encode(), online, hosts=hosts, prerank=prerank)
        reloader = None
        if not isinstance(served, ServedRun):
            period = settings.reload_seconds if found.stored is None else max(settings.reload_seconds, STORED_SECONDS)
            reloader = Reloader(served, found.published, service.metrics, period, shares=workers > 1, own=own)
        check_refreshes(settings.views_seconds, served)
        refresher = ViewRefresher(served, settings.views_seconds) if served.views.refreshable else None
        service.refresher = refresher
        return Server(settings, service, reloader, certificate, workers, refresher)

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until SIGTERM or SIGINT. ``ready`` is called when the sockets listen and, with several workers, all of them
        serve.
        """
        try:
            if self.workers > 1:
                Supervisor(self).run(ready)
            else:
                with self._keeping_state(saves=True):
                    try:
                        asyncio.run(self._run(ready, None, [self.reloader, self.refresher]))
                    finally:
                        self.service.queue.drain(0)
        finally:
            self.service.queue.drain(0)
            for watcher in (self.refresher, self.reloader):
                if watcher is not None:
                    watcher.close()

    @contextlib.contextmanager
    def _keeping_state(self, saves: bool) -> Iterator[None]:
        """Keep the state of histories up to date. ``saves``: whether this process, and not another worker, saves the file."""
        past = self.service.served.past
        if past is None:
            yield
            return
        if past.shared:  # this process may be the successor of one that ended
            follower = StateFollower(past)
            follower.look()
        if past.follows:
            follower.start()
            try:
                yield
            finally:
                follower.close()
            return
        writer = StateWriter(past, self.settings.state_seconds) if saves else None
        try:
            if past.stream is not None:
                past.stream.start()
                if not past.stream.wait(CATCH_UP_SECONDS):
                    log.warning("serving begins before all events of %s were fed", past.stream.name)
            if writer is not None:
                writer.start()
            yield
        finally:
            if past.stream is not None:
                past.stream.close()
            if writer is not None:
                writer.close()

    def work(self, seat: Seat, ready: Callable[[], None]) -> None:
        """Serve as one of several workers, in a process that the supervisor has forked."""
        service, board = self.service, seat.desk.board
        service.desk = seat.desk
        service.metrics = Metrics(seat.desk.place.cells, [p.cells for p in board.places], service.metrics.started)
        service.door.shown = seat.desk.place.connections
        versions = views = None
        if self.reloader is not None:
            versions = Follower(self.reloader.served, board, self.settings.reload_seconds)
        if self.refresher is not None:
            service.refresher = views = ViewFollower(service.served, seat.desk)
        try:
            with self._keeping_state(saves=seat.desk.number == 0):
                asyncio.run(self._run(ready, seat, [versions, views]))
        finally:
            for watcher in (versions, views):
                if watcher is not None:
                    watcher.close()

    async def _run(self, ready: Callable[[], None], seat: Seat | None, watchers: Sequence[Watcher | None]) -> None:
        settings, service, limits = self.settings, self.service, self.service.limits
        connections = connections_allowed(limits.connections // self.workers)
        rpc_connections = connections // 4 if settings.grpc_port else 0
        service.door.limit(connections - rpc_connections, limits.buffered_bytes // self.workers)
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        sockets = () if seat is None else seat.sockets
        front = Listener(service, settings.host, settings.port, self.certificate, sockets)
        rpc = None
        service.access = None if settings.access_log is None else AccessLog(settings.access_log)
        try:
            service.traces = Traces.to(settings.traces, service.name) if settings.traces else None
            if settings.grpc_port:
                from ctrbox.serve.grpc_server import grpc_server

                address = f"{bracketed(settings.host)}:{settings.grpc_port}"
                rpc = grpc_server(service, address, GRPC_THREADS, rpc_connections, self.certificate)
                rpc.start()
            front.start()
            for number in (signal.SIGTERM, signal.SIGINT) if seat is None else (signal.SIGTERM,):
                loop.add_signal_handler(number, stopped.set)
            for watcher in watchers:
                if watcher is not None:
                    watcher.start()
            if seat is not None:
                loop.add_reader(seat.life, stopped.set)  # its end: the supervisor is no more
                service.post()
                seat.desk.begin()
            ready()
            await stopped.wait()
            if seat is not None:
                loop.remove_reader(seat.life)
                seat.desk.end()
            else:
                log.info("stopping: %d requests are under way", service.queue.pending)
            ended = await asyncio.to_thread(service.queue.drain, GRACE)
            if not ended:
                log.warning("requests were still under way after %.0f s", GRACE)
            await asyncio.sleep(0.05)  # answers that are ready leave
        finally:
            try:
                calls = None if rpc is None else rpc.stop(RPC_GRACE)
                front.stop()
                await asyncio.sleep(0)  # connections are closed in the loop's next turn
                if calls is not None:  # its threads write the lines and spans of the last calls
                    await asyncio.to_thread(calls.wait, 2 * RPC_GRACE)
                if service.traces is not None:
                    await asyncio.to_thread(service.traces.close)
            finally:
                if service.access is not None:
                    service.access.close()


def prerank_of(folder: ModelFolder, served: Served, settings: Settings) -> Prerank | None:
    """Return the `Prerank` of a server if its settings name vectors; the user tower is the served run's or another run's."""
    if settings.prerank is None:
        return None
    from ctrbox.predict.prerank_folder import PrerankFolder
    from ctrbox.predict.run_predictor import RunPredictor
    from ctrbox.serve.prerank import Prerank

    if settings.prerank_run is not None:
        run = RunPredictor.open(
            settings.prerank_run,
            views=dict(settings.prerank_views),
            allow_operators=settings.allow_operators,
            allow_views=settings.allow_views,
        )
    elif isinstance(served, ServedRun):
        run = served.run
    else:
        raise PlanError(
            f"{folder.folder} is a published model, whose versions change while the vectors of --prerank do not; name the "
            "run folder "
            "of the TwoTower model: --prerank-run RUN"
        )
    made = Prerank(run, PrerankFolder.open(settings.prerank, run), most=settings.prerank_candidates)
    if settings.prerank_run is None and isinstance(served, ServedRun):
        served.prerank = made
    return made


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def missing_library(error: ImportError) -> PlanError:
    name = (error.name or "").partition(".")[0]
    package = LIBRARIES.get(name, name or str(error))
    return PlanError(
        f"serving needs {package}, which is not installed in {sys.executable}: pip install 'ctrbox[serve]'"
    )
