"""Defines ``Cluster``, which says where distributed training runs and with how many workers and servers.

cluster = cb.Cluster("local", workers=2, servers=2)                # or the address of a Ray cluster: "auto", "10.0.0.1:6379"
run = cb.Trainer(model, table).fit(plan, out="runs/today", cluster=cluster)
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import torch

from ctrbox import _native
from ctrbox.arguments.numbers import counted, whole
from ctrbox.embed.vectors.model_server import ModelServer
from ctrbox.errors import DeviceError, PlanError
from ctrbox.train.fit import Fit

MOST = 1024  # workers or servers
REACHED_SECONDS = 10.0  # in which a Ray cluster must answer a connection
STRANGER = "; check that the cluster runs and that this process has its token"  # Ray does not tell the two apart
TOKENLESS = (
    "; check that the cluster runs. This process has no token; if the cluster requires one, set RAY_AUTH_MODE=token "
    "and RAY_AUTH_TOKEN_PATH"
)


class Cluster:
    """A cluster of workers and parameter servers on Ray.

    ``address``    Ray cluster to use: "local" starts Ray on this machine and ends it after the training; "auto" or
                   "host:port" joins a running cluster
    ``workers``    number of workers; each worker trains on a part of every batch
    ``servers``    number of parameter servers, which hold the tables and Model Servers; each server holds a shard of all keys
    ``cores``      number of cores of each worker: the number of its threads, and of the cores that Ray reserves for it
    ``restarts``   number of times that lost workers or servers are replaced before the training ends with an error
    ``dashboard``  whether a local Ray starts its dashboard, which needs: pip install 'ray[default]'

    After training, ``moved`` is the number of bytes of keys, rows, gradients and counts that were sent between workers and
    servers. It includes neither dense gradients, which workers exchange among themselves, nor what Ray adds to a message.
    """

    leads = True  # the process that has it starts all others
    keeps_rows = False

    def __init__(
        self,
        address: str = "local",
        *,
        workers: int = 1,
        servers: int = 1,
        cores: int | None = None,
        restarts: int = 20,
        dashboard: bool = True,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        if not isinstance(address, str) or not address:
            raise PlanError(f"address must be 'local', 'auto' or host:port of a Ray cluster, got {address!r}")
        self.address = address
        self.workers, self.servers = whole("workers", workers, 1, MOST), whole("servers", servers, 1, MOST)
        self.cores = None if cores is None else whole("cores", cores, 1, 1024)
        self.restarts = whole("restarts", restarts, 0, 10_000)
        self.dashboard = dashboard
        self.tell = tell or _tell
        self.moved = 0
        try:
            import ray  # noqa: F401
        except ImportError as error:
            raise DeviceError("training on a cluster needs Ray: pip install 'ctrbox[cluster]'") from error

    def __repr__(self) -> str:
        return f"Cluster({self.address!r}, workers={self.workers}, servers={self.servers})"

    # ---- what the trainer asks

    def check(self, fit: Fit) -> None:
        """Refuse a training run that a cluster does not support, such as one with several labels or on a GPU."""
        from ctrbox.embed.shards import Spec, check_splits

        if fit.learner.tasks:
            raise PlanError(
                "cluster= is not available for several labels (labels=) yet; remove cluster=, or use one label="
            )
        if fit.learner.device.type != "cpu" or fit.learner.bf16:
            raise PlanError("training on a cluster uses CPUs only; set device='cpu' for the plan and the trainer")
        if fit.settings.adaptive_l2:
            raise PlanError(
                "adaptive_l2 needs the number of times that each key occurred on all workers, which is not available on a "
                "cluster; remove adaptive_l2"
            )
        if fit.settings.average is not None:
            raise PlanError("average= is not available on a cluster; remove average=, or train without cluster=")
        for source in fit.learner.sources:
            Spec.of(source.embedder, self.servers)
            if isinstance(source.embedder, ModelServer) and source.embedder.device.type != "cpu":
                raise PlanError(
                    f"this ModelServer computes on {source.embedder.device}, but a cluster trains on CPUs only; set "
                    "device='cpu', or train without cluster="
                )
            if self.servers > 1:
                check_splits(source.embedder)

    def train(self, fit: Fit) -> None:
        """Train into the run folder of ``fit``, from its newest checkpoint to its last checkpoint."""
        import ray

        from ctrbox.cluster.recovery import Crew
        from ctrbox.cluster.workers import Order

        mine = not ray.is_initialized()
        if mine:
            self._join()
        crew = None
        try:
            cores = self.cores or max(1, _native.usable_cores() // self.workers if self.address == "local" else 1)
            threads = torch.get_num_threads() if self.workers == 1 and self.cores is None else cores
            self._check_room(cores if self.address != "local" else 0)
            order = Order.of(fit, self.servers, threads)
            crew = Crew(
                order, fit.plan, self.workers, self.servers, 0 if self.address == "local" else cores, self.restarts
            )
            show = partial(self._show, crew, order, cores)
            for name, clock in crew.run(fit.watch, self.tell, show).items():
                fit.clocks[name].__dict__.update(clock.__dict__)
            self.moved = crew.moved
        finally:
            if crew is not None:
                crew.dismiss()
            if mine:
                ray.shutdown()

    def follow(self, fit: Fit) -> NoReturn:
        raise AssertionError("the process that starts a cluster leads its training")

    # ---- parts

    def _join(self) -> None:
        import ray

        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        check_listening(self.address)
        try:
            if self.address == "local":  # said to Ray too, which else joins one that runs on this machine
                options["include_dashboard"] = None if self.dashboard else False  # None: where it is installed
            ray.init(address=self.address, **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            hint = STRANGER if os.environ.get("RAY_AUTH_MODE") == "token" else TOKENLESS
            raise DeviceError(
                f"cannot join the Ray cluster at {self.address!r}: {' '.join(str(error).split())[:300]}{hint}"
            ) from error

    def _check_room(self, cores: int) -> None:
        import ray

        there = ray.cluster_resources().get("CPU", 0)
        if self.workers * cores > there:
            raise DeviceError(
                f"{counted(self.workers, 'worker')} of {counted(cores, 'core')} "
                f"need{'s' if self.workers == 1 else ''} {counted(self.workers * cores, 'core')}, but this cluster has "
                f"{there:g}; lower workers= or cores="
            )

    def _show(self, crew: Any, order: Any, cores: int) -> None:
        """Report on which machines the actors run, the budgets of the tables, and the address of the dashboard."""
        import ray

        self.tell(f"{counted(self.workers, 'worker')} of {counted(cores, 'core')}, {counted(self.servers, 'server')}")
        for machine, names in crew.placed().items():
            self.tell(f"  {machine}: {', '.join(names)}")
        for k, (fields, spec) in enumerate(order.tables):
            what = "Model Server" if spec.kind is ModelServer else spec.kind.__name__
            shown = ", ".join(fields[:4]) + (" …" if len(fields) > 4 else "")
            self.tell(f"  table {k} ({what}: {shown}): at most {spec.budget:,} bytes per server")
        url = getattr(getattr(ray._private.worker, "_global_node", None), "webui_url", None)
        if url:
            self.tell(f"  dashboard: http://{url}")
        elif self.dashboard:
            self.tell("  no dashboard; to get one: pip install 'ray[default]'")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def check_listening(address: str) -> None:
    """Raise an error if nothing listens at host:port. Ray itself would try to connect for minutes."""
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACHED_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise DeviceError(
            f"cannot join the Ray cluster at {address!r}"
            f": no answer from that address ({error}); use the address that "
            f"`ray start --head` printed"
        ) from error
