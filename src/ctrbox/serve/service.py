"""Connects every protocol with the model, its queue, its limits and its metrics."""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import time
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ctrbox import __version__, _native
from ctrbox.errors import CtrboxError, DataError, SourceError
from ctrbox.files.untrusted_files import read_regular
from ctrbox.predict.score_expression import ScoreExpression
from ctrbox.serve.access_log import AccessLog
from ctrbox.serve.answers import RANKING, Answered, described_outputs, ranked
from ctrbox.serve.connection_limits import Door
from ctrbox.serve.figures_of_workers import Figures, figures_of
from ctrbox.serve.host_and_origin import AllowedHosts
from ctrbox.serve.memory_shared_by_workers import Desk
from ctrbox.serve.metrics import ByLabel, Metrics
from ctrbox.serve.native_scoring import Tensor
from ctrbox.serve.prediction_sums import LabelSums, lines_of, means_of
from ctrbox.serve.refused_request import Refused, overloaded
from ctrbox.serve.request import Request
from ctrbox.serve.request_queue import ScoringQueue
from ctrbox.serve.served_models import Scored, Served
from ctrbox.serve.tensors import InferRequest, inputs_of, length_of_json
from ctrbox.serve.traces import Traces, current
from ctrbox.serve.versions_of_views_reported import lines_of_views, views_of
from ctrbox.serve.view_refresh import ViewFollower, ViewRefresher

if TYPE_CHECKING:
    from ctrbox.serve.prerank import Prerank  # brings torch, which a Deep FFM is served without

log = logging.getLogger("ctrbox.serve")
ONLINE_BYTES = 1 << 20
BEST_RANKED = 400  # candidates that pre-rank hands to the model unless a request says another number
EXTENSIONS = ["binary_tensor_data", "model_configuration"]


@dataclass(frozen=True)
class Limits:
    """The limits on what clients may use of the server; docs/serving/limits.md has a table of all of them."""

    body_bytes: int = 1 << 20  # of one request
    candidates: int = 1000  # of one request
    waiting: int = 64  # requests
    deadline_ms: int = 200  # that a request may wait
    cache_bytes: int = 256 << 20
    body_seconds: float = 10.0  # within which a request must be there
    buffered_bytes: int = 256 << 20  # of all requests that are being read or wait
    connections: int = 8192  # open at a time; fewer where the limit of open files is low
    images: int = 8  # and texts that one request brings to be encoded
    pixels: int = 16_000_000  # of one image
    client_share: float = 0.5  # of connections, buffered bytes and places in the queue that one client address may hold


@dataclass
class Service:
    served: Served
    name: str
    queue: ScoringQueue
    limits: Limits
    token: bytes = b""  # empty: nobody is asked
    online: Path | None = None  # what a learner beside the server writes
    metrics: Metrics = field(default_factory=Metrics)
    hosts: AllowedHosts | None = None  # the names that a server without a token answers to; None: any
    desk: Desk | None = None  # of one of several workers; None: this process is the whole server
    refresher: ViewRefresher | ViewFollower | None = None  # of joined views; None where none can be read again
    prerank: Prerank | None = None  # None: the server has no vectors of ads
    traces: Traces | None = None  # None: no spans are made
    access: AccessLog | None = None  # None: answers are not logged
    door: Door = field(init=False)
    label_sums: LabelSums = field(init=False)

    def __post_init__(self) -> None:
        limits = self.limits
        self.door = Door(limits.connections, limits.buffered_bytes, limits.client_share, limits.body_bytes)
        self.label_sums = LabelSums(self.labels)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of several labels; () for a model of one label."""
        return tuple(task.name for task in self.served.tasks)

    @property
    def ready(self) -> bool:
        """Whether this process accepts requests and, with several workers, all others do."""
        if self.queue.closed:
            return False
        board = None if self.desk is None else self.desk.board
        return board is None or (not board.draining and board.serving == len(board.places))

    def allows(self, authorization: bytes) -> bool:
        """Return whether a header contains the token: as Bearer, or as the password of Basic, which browsers can send."""
        if not self.token:
            return True
        kind, _, value = authorization.partition(b" ")
        value = value.strip()
        if kind.lower() == b"basic":
            try:
                value = b64decode(value, validate=True).partition(b":")[2]
            except ValueError:
                return False
        elif kind.lower() != b"bearer":
            return False
        return hmac.compare_digest(value, self.token)

    def check_model(self, name: str, version: str = "") -> None:
        if name != self.name:
            raise Refused(404, f"there is no model {name[:100]!r}; this server serves {self.name!r}")
        if version and version != str(self.served.version):
            raise Refused(
                404,
                f"model {name!r} has no version {version[:40]!r} here; the version that is served is "
                f"{self.served.version}",
            )

    def answer(self, request: Request, version: str = "") -> Answered:
        """Score the candidates. If the request asks for an expression of several labels, compute it and rank the candidates by
        it.

        ``version``: refuse to answer with another version.
        """
        asked = None if request.score is None else ScoreExpression.of(request.score, self.labels)
        scored = self.scored(request, version)
        found = Answered.of(scored.scores, scored.version, self.labels, asked, scored.views)
        if isinstance(found.scores, dict):
            self.label_sums.add(found.scores)
        return found

    def answer_plain(self, body: bytes) -> Answered | None:
        """Score the JSON of a request in one native call. Return None if Python has to read it first."""
        plain = self.served.plain()
        if plain is None:
            return None
        times = self._times()
        with told_to_the_client():
            scores = plain.json(body, times)
        self._measured(times, scores)
        return None if scores is None else Answered(plain.version, scores, views=plain.views)

    def infer_plain(self, body: bytes, header: str | None, version: str) -> tuple[Answered, InferRequest] | None:
        """Score a request of the Open Inference Protocol in one native call.

        ``header`` is as for `read_infer`, and ``version`` as for `answer`. Return None if Python has to read the request first.
        """
        plain, json_bytes = self.served.plain(), length_of_json(header, len(body))
        if plain is None or json_bytes is None:
            return None
        times = self._times()
        with told_to_the_client():
            found = plain.infer(body, json_bytes, times)
        self._measured(times, found)
        if found is None:
            return None
        scores, asked, binary = found
        check_version(version, plain.version)
        return Answered(plain.version, scores, views=plain.views), InferRequest(asked, {}, binary)

    def tensors_plain(self, tensors: Sequence[Tensor], version: str) -> Answered | None:
        """Score a request that came as tensors in one native call. Return None if Python has to read it first."""
        plain = self.served.plain()
        if plain is None:
            return None
        times = self._times()
        with told_to_the_client():
            scores = plain.tensors(tensors, times)
        self._measured(times, scores)
        if scores is None:
            return None
        check_version(version, plain.version)
        return Answered(plain.version, scores, views=plain.views)

    def _times(self) -> _native.RequestTimes | None:
        """Return what measures the parts of a native call, if this thread's request is traced."""
        return None if self.traces is None or current() is None else _native.RequestTimes()

    def _measured(self, times: _native.RequestTimes | None, found: object) -> None:
        """Record the times that a native call measured, unless it left the request to Python."""
        if times is not None and found is not None and (parts := current()) is not None:
            parts.native(times)

    def lap(self, part: str) -> None:
        """Add the time since the last part of this thread's request to this part, if the request is traced."""
        if self.traces is not None and (parts := current()) is not None:
            parts.lap(part)

    def pre_ranked(self, body: bytes) -> dict[str, Any]:
        """Return the answer to POST /v1/prerank."""
        prerank = self._prerank()
        with told_to_the_client():
            best = prerank.best(prerank.read(body))
            return best.json({} if best.index is None else prerank.ads_at(best.positions))

    def cascaded(self, body: bytes) -> tuple[dict[str, Any], int]:
        """Return the answer to POST /v1/cascade, and how many candidates the served model scored."""
        prerank, reader = self._prerank(), self.served.reader
        with told_to_the_client():
            given = prerank.read(body, cascade=True)
            if (k := given.get("k", min(BEST_RANKED, self.limits.candidates))) > self.limits.candidates:
                raise Refused(
                    413, f"k is {k:,}; the model of this server scores at most {self.limits.candidates:,} candidates"
                )
            best = prerank.best({**given, "k": k}, tuple(reader.known))
            request = reader.from_values(prerank.sent_on(given, best, reader))
        found = self.answer(request)
        answer = best.json({} if best.index is None else prerank.ads_at(best.positions))
        answer |= {"prerank": answer.pop("scores"), **found.json()}
        if isinstance(found.scores, np.ndarray):
            answer[RANKING] = ranked(found.scores)
        return answer, request.rows

    def _prerank(self) -> Prerank:
        if self.prerank is None:
            raise Refused(
                404, "this server cannot pre-rank, because it has no vectors of ads; start it with --prerank FOLDER"
            )
        return self.prerank

    def score(self, request: Request, version: str = "") -> tuple[np.ndarray, int]:
        """Return what `Served.score` returns; ``version``: refuse to answer with another version."""
        return self.scored(request, version)[:2]

    def scored(self, request: Request, version: str = "") -> Scored:
        """Return the answer of `Served.answer`; ``version``: refuse to answer with another version."""
        with told_to_the_client():
            found = self.served.answer(request)
        check_version(version, found.version)
        return found

    # ---- what is told about it

    def server_metadata(self) -> dict[str, Any]:
        return {"name": "ctrbox", "version": __version__, "extensions": EXTENSIONS}

    def model_metadata(self) -> dict[str, Any]:
        reader = self.served.reader
        return {
            "name": self.name,
            "versions": [str(self.served.version)],
            "platform": f"ctrbox_{self.served.kind}",
            "inputs": inputs_of(reader.columns, reader.context),
            "outputs": described_outputs(self.labels),
        }

    def model_config(self) -> dict[str, Any]:
        """Return the configuration in the form that clients of Triton expect; its dimensions include the rows."""
        metadata = self.model_metadata()

        def tensor(entry: dict[str, Any]) -> dict[str, Any]:
            kind = "STRING" if entry["datatype"] == "BYTES" else entry["datatype"]
            return {"name": entry["name"], "data_type": f"TYPE_{kind}", "dims": entry["shape"]}

        return {
            "name": self.name,
            "platform": metadata["platform"],
            "backend": "ctrbox",
            "max_batch_size": 0,
            "input": [tensor(e) for e in metadata["inputs"]],
            "output": [tensor(e) for e in metadata["outputs"]],
        }

    def figures(self) -> Figures:
        """Return the figures of the server: of this process, or of all workers together."""
        own = figures_of(self)
        if self.desk is None:
            return own
        if news := self.desk.board.news.read():
            self.metrics.hear(news["reloads"])
        return self.desk.all(own)

    def post(self) -> None:
        """Show the figures of this worker to the others."""
        if self.desk is not None:
            self.desk.post(figures_of(self))

    def workers(self) -> dict[str, int]:
        """Return how many workers the server has, how many of them serve, and how many had to be replaced."""
        if self.desk is None:
            return {"count": 1, "serving": int(self.ready), "replaced": 0}
        board = self.desk.board
        return {"count": len(board.places), "serving": board.serving, "replaced": board.replaced}

    def each_worker(self) -> list[dict[str, Any]]:
        """Return process, connections, requests and versions of joined views of each of several workers."""
        return [] if self.desk is None else [place.told() for place in self.desk.board.places]

    def live(self) -> dict[str, Any]:
        """Return the figures that the page shows."""
        m, now = self.metrics, self.figures()
        counters, gauges = now["counters"], now["gauges"]
        objects = {w: n for w in ("missing", "embedded", "encoded") if (n := counters.get(f"objects_{w}")) is not None}
        if now["vectors"] is not None:
            objects |= {"vectors": now["vectors"], "remembered": gauges["objects_remembered"]}
        return {
            "model": {"name": self.name, "kind": self.served.kind, "version": now["versions"][0]},
            "workers": {**self.workers(), "each": self.each_worker()},
            "labels": means_of(now["labels"]),
            **m.live(),
            "waiting": gauges["requests_pending"],
            "cache": {
                **{what: counters[f"cache_{what}"] for what in ("hits", "misses", "evictions")},
                **{what: gauges[f"cache_{what}"] for what in ("bytes", "entries")},
            },
            "patches": {
                "applied": m.applied,
                "refused": m.refused,
                "last": m.last_reload,
                "last_refusal": m.last_refusal,
            },
            "stale": self.stale(),
            "views": views_of(self, now),
            "objects": objects,
            "prerank": None if self.prerank is None else self.prerank.told(),
            "keys": {name: {"known": known, "unknown": unknown} for name, (known, unknown) in now["keys"].items()},
            "joins": [dict(zip(("view", "on", "keys", "missed"), join, strict=True)) for join in now["joins"]],
            "fields_without_known_keys": now["unlearned"],
            "uptime": time.time() - m.started,
            "online": self.learning(),
        }

    def stale(self) -> dict[str, Any] | None:
        """Return since when and why a newer version is not served; None if the current version is served."""
        found = self.metrics.staleness
        if found is None:
            return None
        return {
            "seconds": round(self.metrics.stale_seconds(), 1),
            "serving": self.served.version,
            "published": found.version or None,
            "reason": found.reason,
        }

    def readiness(self) -> dict[str, Any]:
        """Return the contents of the readiness answer.

        A model that is stale, or that knows no key of a field, still serves. The server is then ready and reports this.
        """
        now = self.figures()
        told: dict[str, Any] = {"ready": self.ready, "version": now["versions"][0]}
        if self.desk is not None:
            told["workers"] = self.workers()
        if (stale := self.stale()) is not None:
            told["stale"] = stale
        if views := [one for one in views_of(self, now) if one["stale"] is not None]:
            told["stale_views"] = [{"view": one["name"], "serving": one["version"], **one["stale"]} for one in views]
        if (past := self.served.past) is not None and (reason := past.behind()):
            told["stale_state"] = reason
        if now["unlearned"]:
            told["fields_without_known_keys"] = now["unlearned"]
        return told

    def learning(self) -> dict[str, Any] | None:
        """Return what an online loop wrote beside the weights; None if there is nothing that can be read."""
        if self.online is None:
            return None
        try:
            found = json.loads(read_regular(self.online, ONLINE_BYTES))
        except (OSError, DataError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def prometheus(self) -> str:
        now, workers = self.figures(), self.workers()
        gauges = {
            **now["gauges"],
            "model_version": now["versions"][0],  # the oldest, while workers change to another
            "model_stale": float(self.metrics.staleness is not None),
            "model_stale_seconds": self.metrics.stale_seconds(),
            "fields_without_known_keys": len(now["unlearned"]),
            "workers": workers["count"],
            "workers_serving": workers["serving"],
        }
        if now["vectors"] is not None:
            gauges["objects_vectors"] = now["vectors"]
        if self.prerank is not None:
            gauges["prerank_vectors"] = len(self.prerank.folder.rank)
            if self.prerank.folder.recall is not None:
                gauges["prerank_index_recall"] = self.prerank.folder.recall
        if now["past"]:
            gauges["histories_newest_seconds"] = now["past"][0] / 1e6  # in the worker that is the furthest behind
        counters = {**now["counters"], "workers_replaced": workers["replaced"]}
        news = {} if self.desk is None else self.desk.board.news.read()
        by_label = [keys_of(now), joins_of(now)]
        more = [*lines_of(now["labels"]), *lines_of_views(self, now)]
        return self.metrics.text(gauges, counters, by_label, news.get("memory"), more)


def check_version(wanted: str, served: int) -> None:
    if wanted and wanted != str(served):
        raise Refused(404, f"version {wanted[:40]!r} is no longer served; the current version is {served}")


@contextlib.contextmanager
def told_to_the_client() -> Iterator[None]:
    """Turn the errors of a request into refusals with a status."""
    try:
        yield
    except Refused:
        raise
    except SourceError as error:  # a file of the model, damaged since it was opened: no mistake of the client's
        log.error("a request failed: %s", error)
        raise Refused(500, "the server cannot read a file of the model; its log has the details") from None
    except CtrboxError as error:
        raise Refused(400, str(error)) from None
    except MemoryError:
        raise overloaded("there is not enough memory for this request now; retry shortly") from None


def keys_of(now: Figures) -> ByLabel:
    values = [
        ({"field": name, "learned": learned}, counts[which])
        for name, counts in now["keys"].items()
        for which, learned in enumerate(("yes", "no"))
    ]
    return ByLabel("keys", "Keys looked up, by field and whether the model learned them.", values)


def joins_of(now: Figures) -> ByLabel:
    values = []
    for view, on, keys, missed in now["joins"]:
        labels = {"view": view, "on": ",".join(on)}
        values += [({**labels, "found": "yes"}, keys - missed), ({**labels, "found": "no"}, missed)]
    return ByLabel("join_keys", "Keys looked up in joined views, and whether they have a row there.", values)
