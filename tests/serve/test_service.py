"""The service alone: who may ask, which path a request takes, and what the server says of itself, over a model of a few lines."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ctrbox.columns.label_task import Task
from ctrbox.engines.missed_keys import JoinCount
from ctrbox.serve.memory_shared_by_workers import Board, Desk
from ctrbox.serve.prerank import Best
from ctrbox.serve.refused_request import Refused
from ctrbox.serve.request import Request
from ctrbox.serve.request_queue import ScoringQueue
from ctrbox.serve.served_models import Scored
from ctrbox.serve.service import Limits, Service, check_version
from ctrbox.serve.traces import Traced


class Model:
    """A served model whose scores are 0.25, 0.5, …; of several labels, each is half of the one before."""

    kind, version = "deep_ffm", 3

    def __init__(self, *labels: str) -> None:
        self.tasks = tuple(Task(name, "binary") for name in labels)
        self.past: Any = None
        self.native: Any = None
        self.vectors: dict[str, int] = {}
        self.joined = [JoinCount("ads", ("ad_id",), 10, 3)]
        self.unlearned: list[str] = []
        counts = SimpleNamespace(hits=5, misses=6, evictions=7)
        self.cache = type("Cache", (), {"counts": counts, "bytes": 80, "__len__": lambda self: 9})()
        self.known = SimpleNamespace(
            counted=lambda: {"user": {"known": 4, "unknown": 2}}, never_found=lambda: self.unlearned
        )
        self.views = SimpleNamespace(loaded={}, names=[], refreshable=[])
        self.reader = SimpleNamespace(columns={}, context=None, known=["a"])

    def answer(self, request: Request) -> Scored:
        scores = np.arange(1, request.rows + 1) / 4
        several = np.stack([scores / 2**k for k in range(len(self.tasks))], 1) if self.tasks else scores.astype("f4")
        return Scored(several, self.version, b"ads=1")

    def plain(self) -> Any:
        return self.native

    def objects(self) -> dict[str, int]:
        return self.vectors

    def joins(self) -> list[JoinCount]:
        return self.joined


def service_of(model: Model | None = None, **settings: Any) -> Service:
    limits = settings.pop("limits", Limits())
    return Service(model or Model(), "ads", ScoringQueue(0, 4, 1.0), limits, **settings)


def request_of(rows: int, score: str | None = None) -> Request:
    return Request(lambda: None, None, rows, b"", None, score)


# ---- who may ask


def basic(text: str) -> bytes:
    return b"Basic " + b64encode(text.encode())


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        (b"Bearer secret", True),
        (b"bearer secret", True),
        (b"BEARER  secret ", True),
        (basic("any:secret"), True),
        (basic(":secret"), True),
        (basic("any:secret").replace(b"Basic", b"bAsIc"), True),
        (basic("secret:any"), False),
        (basic("secret"), False),
        (b"Basic secret", False),
        (b"Basic !", False),
        (b"Token secret", False),
        (b"Bearer secre", False),
        (b"Bearer", False),
        (b"secret", False),
        (b"", False),
    ],
)
def test_a_token_is_taken_as_bearer_or_as_the_password_of_basic(header: bytes, allowed: bool) -> None:
    assert service_of(token=b"secret").allows(header) is allowed
    assert service_of().allows(header)


def test_a_process_is_ready_while_it_takes_requests_and_all_workers_serve() -> None:
    alone = service_of()
    assert (alone.ready, alone.workers(), alone.each_worker()) == (True, {"count": 1, "serving": 1, "replaced": 0}, [])
    assert "workers" not in alone.readiness()
    alone.queue.close()
    assert (alone.ready, alone.workers()) == (False, {"count": 1, "serving": 0, "replaced": 0})
    board = Board(2)
    one, other = Desk(board, 0), Desk(board, 1)
    worker = service_of(desk=one)
    one.begin()
    assert not worker.ready
    other.begin()
    assert worker.ready
    assert worker.readiness() == {"ready": True, "version": 3, "workers": {"count": 2, "serving": 2, "replaced": 0}}
    board.occupy(1, 77)
    assert [each["process"] for each in worker.each_worker()] == [0, 77]
    board.drain()
    assert not worker.ready
    worker.queue.close()
    assert not worker.ready


# ---- the paths of a request


class Native:
    """Scores in one native call, or leaves the request to Python."""

    version, views = 8, b"ads=2"

    def __init__(self, found: Any) -> None:
        self.found = found
        self.times: list[Any] = []

    def json(self, body: bytes, times: Any) -> Any:
        self.times.append(times)
        return self.found

    def infer(self, body: bytes, json_bytes: int, times: Any) -> Any:
        self.times.append(times)
        return None if self.found is None else (self.found, f"{body!r} {json_bytes}", True)

    tensors = json


def test_a_request_is_answered_natively_or_left_to_python() -> None:
    model, scores = Model(), np.array([0.5], np.float32)
    service = service_of(model)

    def ways(version: str = "") -> list[Any]:
        return [
            service.answer_plain(b"{}"),
            service.infer_plain(b"{}", None, version),
            service.tensors_plain([], version),
        ]

    assert ways() == [None] * 3
    model.native = Native(None)
    assert ways() == [None] * 3
    model.native = Native(scores)
    for version in ("", "8"):
        plain, (infer, asked), tensors = ways(version)
        for found in (plain, infer, tensors):
            assert (found.version, found.scores, found.views) == (8, scores, b"ads=2")
        assert (asked.id, asked.tensors, asked.binary) == ("b'{}' 2", {}, True)
    assert model.native.times == [None] * 6
    for way in (service.infer_plain, service.tensors_plain):
        given: tuple[Any, ...] = (b"{}", None, "7") if way == service.infer_plain else ([], "7")
        with pytest.raises(Refused, match=r"^version '7' is no longer served; the current version is 8$"):
            way(*given)  # type: ignore[operator]
    assert service.infer_plain(b"{}", "1", "") is not None
    assert service.infer_plain(b"{}", "3", "") is None  # the header is wrong: Python says how
    check_version("", 8)
    check_version("8", 8)


def test_parts_of_a_request_are_measured_where_it_is_traced() -> None:
    model = Model()
    model.native = Native(np.array([0.5], np.float32))
    service = service_of(model)
    traced = Traced(None, None)  # type: ignore[arg-type]
    assert traced.around(lambda: service.answer_plain(b"")) is not None
    service.lap("engine")  # neither traces nor a traced request
    service.traces = object()  # type: ignore[assignment]
    service.lap("engine")
    service.answer_plain(b"")
    assert model.native.times == [None, None]
    traced.around(lambda: service.answer_plain(b""))
    assert model.native.times[2] is not None
    assert traced.parts is not None
    assert set(traced.parts.took) == {"reading", "plan", "engine", "writing"}
    model.native.found = None
    traced.around(lambda: (service.answer_plain(b""), service.lap("engine")))
    assert set(traced.parts.took) == {"engine", "writing"}  # what native code left to Python has no native times


def test_an_expression_of_labels_is_computed_where_it_is_asked_for() -> None:
    plain = service_of().answer(request_of(2))
    assert plain.json() == {"version": 3, "scores": pytest.approx([0.25, 0.5])}
    assert plain.views == b"ads=1"
    several = service_of(Model("click", "buy"))
    found = several.answer(request_of(3))
    assert {name: one.tolist() for name, one in found.scores.items()} == {  # type: ignore[union-attr]
        "click": [0.25, 0.5, 0.75],
        "buy": [0.125, 0.25, 0.375],
    }
    assert (found.score, found.ranking) == (None, None)
    found = several.answer(request_of(3, "click - 3 * buy"))
    assert found.score is not None
    assert found.ranking is not None
    assert (found.score.tolist(), found.ranking.tolist()) == ([-0.125, -0.25, -0.375], [0, 1, 2])
    assert several.label_sums.told() == {"click": [3.0, 6], "buy": [1.5, 6]}
    with pytest.raises(Refused, match="version '4' is no longer served; the current version is 3"):
        several.answer(request_of(1), "4")


class Preranking:
    """Pre-ranks by taking the first candidates."""

    candidates, missing = 40, 4

    def __init__(self, index: str | None) -> None:
        self.index, self.asked = index, list[Any]()
        self.folder = SimpleNamespace(rank=[0] * 12, recall=0.75 if index == "hnsw" else None)

    def read(self, body: bytes, *, cascade: bool = False) -> dict[str, Any]:
        return json.loads(body)  # type: ignore[no-any-return]

    def best(self, given: dict[str, Any], known: tuple[str, ...] = ()) -> Best:
        self.asked.append((given.get("k"), known))
        count = min(given.get("k", 2), 3)
        return Best(np.arange(count), np.full(count, 0.5, np.float32), 1, self.index)

    def ads_at(self, positions: np.ndarray) -> dict[str, Any]:
        return {"ad": positions.tolist()}

    def sent_on(self, given: dict[str, Any], best: Best, reader: Any) -> int:
        return len(best.positions)

    def joins(self) -> list[JoinCount]:
        return [JoinCount("users", ("user",), 2, 1)]

    def told(self) -> dict[str, Any]:
        return {"vectors": 12}


@pytest.mark.parametrize("index", [None, "exact"])
@pytest.mark.parametrize("labels", [(), ("click", "buy")])
def test_a_cascade_asks_for_as_many_as_the_model_scores(index: str | None, labels: tuple[str, ...]) -> None:
    made = Preranking(index)
    service = service_of(Model(*labels), prerank=made, limits=Limits(candidates=300))  # type: ignore[arg-type]
    service.served.reader.from_values = request_of  # type: ignore[attr-defined,method-assign]
    where = {"positions": [0, 1], "missing": 1} if index is None else {"candidates": {"ad": [0, 1]}, "index": "exact"}

    def plain(told: dict[str, Any]) -> Any:
        return json.loads(json.dumps(told, default=lambda one: one.tolist()))

    assert plain(service.pre_ranked(b"{}")) == {**where, "scores": [0.5, 0.5]}
    answer, rows = service.cascaded(b'{"k": 2}')
    scores: Any = [0.25, 0.5]
    if labels:
        scores = {"click": [0.25, 0.5], "buy": [0.125, 0.25]}
    expected = {**where, "prerank": [0.5, 0.5], "version": 3, "scores": scores}
    assert plain(answer) == (expected if labels else {**expected, "ranking": [1, 0]})
    assert rows == 2
    service.cascaded(b"{}")
    service.cascaded(b'{"k": 300}')
    service.limits = Limits(candidates=1000)
    service.cascaded(b"{}")
    assert made.asked[1:] == [(2, ("a",)), (300, ("a",)), (300, ("a",)), (400, ("a",))]
    with pytest.raises(
        Refused, match=r"^k is 1,001; the model of this server scores at most 1,000 candidates$"
    ) as told:
        service.cascaded(b'{"k": 1001}')
    assert told.value.status == 413
    with pytest.raises(Refused, match=r"^this server cannot pre-rank, because it has no vectors of ads; start") as told:
        service_of().pre_ranked(b"{}")
    assert told.value.status == 404


# ---- what it says of itself


def values_of(text: str) -> dict[str, str]:
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))  # type: ignore[misc]


def test_the_figures_of_a_server_are_told_to_prometheus_and_to_the_page() -> None:
    service = service_of()
    told, live = values_of(service.prometheus()), service.live()
    expected = {
        "ctrbox_cache_hits_total": "5",
        "ctrbox_cache_misses_total": "6",
        "ctrbox_cache_evictions_total": "7",
        "ctrbox_cache_bytes": "80",
        "ctrbox_cache_entries": "9",
        "ctrbox_model_version": "3",
        "ctrbox_model_stale": "0",
        "ctrbox_model_stale_seconds": "0",
        "ctrbox_fields_without_known_keys": "0",
        "ctrbox_workers": "1",
        "ctrbox_workers_serving": "1",
        "ctrbox_workers_replaced_total": "0",
        'ctrbox_keys_total{field="user",learned="yes"}': "4",
        'ctrbox_keys_total{field="user",learned="no"}': "2",
        'ctrbox_join_keys_total{view="ads",on="ad_id",found="yes"}': "7",
        'ctrbox_join_keys_total{view="ads",on="ad_id",found="no"}': "3",
    }
    assert {name: told.get(name) for name in expected} == expected
    assert not [name for name in told if of_some_models(name)]
    assert live["cache"] == {"hits": 5, "misses": 6, "evictions": 7, "bytes": 80, "entries": 9}
    assert (live["keys"], live["objects"], live["prerank"]) == ({"user": {"known": 4, "unknown": 2}}, {}, None)
    assert live["joins"] == [{"view": "ads", "on": ["ad_id"], "keys": 10, "missed": 3}]
    assert (live["workers"]["each"], live["stale"], live["online"]) == ([], None, None)
    assert 0 <= live["uptime"] < 60
    assert service.readiness() == {"ready": True, "version": 3}


def of_some_models(name: str) -> bool:
    return any(part in name for part in ("objects", "prerank", "histories"))


def test_figures_that_only_some_models_have_are_told_where_they_are() -> None:
    model = Model()
    model.vectors = {"vectors": 50, "missing": 1, "embedded": 2, "remembered": 3, "encoded": 4}
    model.unlearned = ["user"]
    newest = 1_750_000_000_500_000
    model.past = SimpleNamespace(histories=SimpleNamespace(newest=newest), behind=lambda: "the stream is gone")
    service = service_of(model, prerank=Preranking("hnsw"))  # type: ignore[arg-type]
    service.metrics.stale(9, "damaged")
    told, live = values_of(service.prometheus()), service.live()
    expected = {
        "ctrbox_objects_vectors": "50",
        "ctrbox_objects_missing_total": "1",
        "ctrbox_objects_embedded_total": "2",
        "ctrbox_objects_encoded_total": "4",
        "ctrbox_objects_remembered": "3",
        "ctrbox_prerank_candidates_total": "40",
        "ctrbox_prerank_missing_total": "4",
        "ctrbox_prerank_vectors": "12",
        "ctrbox_prerank_index_recall": "0.75",
        "ctrbox_histories_newest_seconds": "1750000000.5",
        "ctrbox_model_stale": "1",
        "ctrbox_fields_without_known_keys": "1",
        'ctrbox_join_keys_total{view="users",on="user",found="no"}': "1",
    }
    assert {name: told.get(name) for name in expected} == expected
    assert live["objects"] == {"missing": 1, "embedded": 2, "encoded": 4, "vectors": 50, "remembered": 3}
    assert (live["prerank"], live["fields_without_known_keys"]) == ({"vectors": 12}, ["user"])
    stale = live["stale"]
    assert 0 <= stale.pop("seconds") < 60
    assert stale == {"serving": 3, "published": 9, "reason": "damaged"}
    ready = service.readiness()
    assert ready.pop("stale")["published"] == 9
    assert ready == {
        "ready": True,
        "version": 3,
        "stale_state": "the stream is gone",
        "fields_without_known_keys": ["user"],
    }
    service.metrics.stale(0, "the folder cannot be read")
    assert service.readiness()["stale"]["published"] is None
    model.past = SimpleNamespace(histories=SimpleNamespace(newest=None), behind=lambda: "")
    service.metrics.fresh()
    model.unlearned = []
    assert service.readiness() == {"ready": True, "version": 3}
    assert "ctrbox_histories_newest_seconds" not in service.prometheus()
    exact = service_of(prerank=Preranking("exact"))  # type: ignore[arg-type]
    assert "ctrbox_prerank_index_recall" not in exact.prometheus()


def test_a_worker_tells_the_news_of_the_supervisor_and_the_figures_of_all() -> None:
    board = Board(2)
    service, other = service_of(desk=Desk(board, 0)), service_of(desk=Desk(board, 1))
    for worker in (service, other):
        assert worker.desk is not None
        worker.desk.begin()
        worker.post()
    service_of().post()  # nobody to tell
    assert values_of(service.prometheus())["ctrbox_cache_hits_total"] == "10"
    assert service.metrics.applied == 0
    sender = service_of().metrics
    sender.reloaded(3, 0.5, "patch")
    board.publish(3, {"reloads": sender.told(), "memory": 123_456, "views": {}})
    told = values_of(service.prometheus())
    assert (told["ctrbox_patches_applied_total"], told["process_resident_memory_bytes"]) == ("1", "123456")
    assert (told["ctrbox_workers"], told["ctrbox_workers_serving"]) == ("2", "2")
    assert service.live()["workers"]["count"] == len(service.live()["workers"]["each"]) == 2


def test_joined_views_are_told_with_their_versions_and_why_they_are_stale() -> None:
    model = Model()
    service = service_of(model)
    assert "ctrbox_view" not in service.prometheus()
    now = time.time()
    one = SimpleNamespace(number=2, rows=10, read_at=now - 100, digest="d")
    model.views.loaded = {"ads": one, 'us"ers': SimpleNamespace(number=1, rows=5, read_at=now + 100, digest="")}
    model.views.names = list(model.views.loaded)
    ads, users = service.live()["views"]
    assert ads == {
        "name": "ads",
        "version": 2,
        "versions": [2],
        "rows": 10,
        "read_at": now - 100,
        "files": "d",
        "refreshable": False,
        "stale": None,
    }
    assert (users["files"], users["versions"]) == (None, [1])
    told = values_of(service.prometheus())
    assert (told['ctrbox_view_version{view="ads"}'], told['ctrbox_view_rows{view="us\\"ers"}']) == ("2", "5")
    assert 100 <= float(told['ctrbox_view_age_seconds{view="ads"}']) < 160
    assert told['ctrbox_view_age_seconds{view="us\\"ers"}'] == "0"  # read later than now, by this clock
    assert told['ctrbox_view_stale_seconds{view="ads"}'] == told["ctrbox_views_refused_total"] == "0"
    known = {"rows": 11, "read_at": now, "digest": "e", "refreshable": True}
    stale = {"since": now - 50, "reason": "damaged"}
    views = {"ads": {**known, "stale": stale}, 'us"ers': {**known, "stale": None}}
    service.refresher = SimpleNamespace(told=lambda: {"refreshed": 3, "refused": 4, "views": views})  # type: ignore[assignment]
    ads, users = service.live()["views"]
    assert (ads["rows"], ads["files"], ads["refreshable"], ads["stale"]["reason"]) == (11, "e", True, "damaged")
    assert 50 <= ads["stale"]["seconds"] < 110
    assert users["stale"] is None
    told = values_of(service.prometheus())
    assert (told["ctrbox_views_refreshed_total"], told["ctrbox_views_refused_total"]) == ("3", "4")
    assert 50 <= float(told['ctrbox_view_stale_seconds{view="ads"}']) < 110
    (late,) = service.readiness()["stale_views"]
    assert (late["view"], late["serving"], late["reason"]) == ("ads", 2, "damaged")


def test_what_a_learner_writes_is_read_within_its_limit(tmp_path: Path) -> None:
    service = service_of()
    assert service.learning() is None
    service.online = tmp_path / "online.json"
    for text in ("", "[" * 5000, '{"a": ' + "1" * (1 << 20) + "}"):
        service.online.write_text(text)
        assert service.learning() is None
    service.online.write_text('{"auc": 0.5}')
    assert service.live()["online"] == {"auc": 0.5}
    assert service.metrics.started <= time.time()
