"""Fields of which the model has learned no key: counted, shown in /metrics, and said once."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.embed.keys_looked_up import asked_of_lookup, asked_of_rows
from ctrbox.embed.unique_keys import Lookup
from ctrbox.serve.model_folder import ModelFolder, create
from ctrbox.serve.request_queue import ScoringQueue
from ctrbox.serve.served_models import open_served
from ctrbox.serve.service import Limits, Service
from ctrbox.serve.unlearned_keys import REQUESTS, KnownKeys
from tests.serve.locks import waits_for
from tests.serve.test_scoring import body_of
from tests.serve.worlds import World

CONTEXT = ("user",)


def log_of(user: Any = lambda u: f"{u}", rows: int = 600) -> pa.Table:
    rng = np.random.default_rng(0)
    users, ads = rng.integers(0, 20, rows), rng.integers(1, 9, rows)
    return pa.table(
        {
            "user": [user(int(u)) for u in users],
            "ad": ads,
            "tags": [[f"t{int(u) % 3}", "x"] for u in users],
            "clicked": (rng.random(rows) < 0.3).astype(np.int8),
        }
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> cb.Run:
    features = cb.FeatureSet(
        label=col("clicked"), sparse={"user": col("user"), "ad": col("ad"), "tags": col("tags").key()}
    )
    plan = cb.compile(cb.View(log_of()), features, device="cpu", threads=1)
    model = cb.models.DeepFM(plan.schema, dim=4, hidden=(4,))
    out = tmp_path_factory.mktemp("known") / "run"
    return cb.Trainer(model, cb.MemoryTable(4), threads=1).fit(plan, batch_size=100, out=out)


@pytest.fixture(params=["published", "run"])
def service(request: Any, run: cb.Run, tmp_path: Path) -> Service:
    folder = run.folder
    assert folder is not None
    views: dict[str, Any] = {run.plan.log.name: log_of()}
    if request.param == "published":
        folder, views = tmp_path / "model", {}
        create(folder, run.plan, run, context=CONTEXT)
    served = open_served(ModelFolder.open(folder), views=views)
    return Service(served, "m", ScoringQueue(0, 4, 1.0), Limits())


def ask(service: Service, user: str, ads: list[int], tags: list[str]) -> None:
    body = {"context": {"user": user}, "candidates": [{"ad": ad, "tags": tags} for ad in ads]}
    service.score(service.served.reader.from_json(orjson.dumps(body)))


def test_a_field_of_which_no_key_is_known_is_counted_and_said_once(service: Service, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, logger="ctrbox.serve"):
        for k in range(REQUESTS + 30):
            ask(service, f"{k:04}", [1, 2, 99], ["t0", "none"])  # "0017" was learned as "17"
    told = [r.getMessage() for r in caplog.records if "none of the keys" in r.getMessage()]
    assert len(told) == 1
    assert "field 'user'" in told[0]
    assert f"last {REQUESTS} requests" in told[0]
    assert service.readiness()["fields_without_known_keys"] == ["user"]
    assert service.live()["fields_without_known_keys"] == ["user"]
    assert service.live()["keys"]["user"]["known"] == 0
    text = service.prometheus()
    requests = REQUESTS + 30
    assert f'ctrbox_keys_total{{field="ad",learned="yes"}} {2 * requests}\n' in text
    assert f'ctrbox_keys_total{{field="ad",learned="no"}} {requests}\n' in text
    assert f'ctrbox_keys_total{{field="tags",learned="no"}} {3 * requests}\n' in text
    assert "ctrbox_fields_without_known_keys 1\n" in text
    ask(service, "17", [1], ["t0"])  # the way it was learned
    assert "fields_without_known_keys" not in service.readiness()
    assert service.live()["keys"]["user"]["known"] == 1


def test_a_model_that_knows_the_keys_says_nothing(service: Service, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, logger="ctrbox.serve"):
        for k in range(REQUESTS + 5):
            ask(service, str(k % 20), [1, 2], ["t0"])
    assert not caplog.records
    assert service.readiness() == {"ready": True, "version": service.served.version}
    assert service.live()["keys"]["ad"] == {"known": 2 * (REQUESTS + 5), "unknown": 0}


def test_counts_of_keys_are_changed_and_read_under_their_lock() -> None:
    known = KnownKeys(["a"])
    for work in (lambda: known.add([("a", 2, 1)]), known.counted, known.never_found, known.restart):
        assert waits_for(known._lock, work)
    assert known.counted() == {"a": {"known": 1, "unknown": 1}}


def test_a_new_version_begins_the_count_of_requests_anew() -> None:
    known = KnownKeys(["a"])
    for _ in range(REQUESTS - 1):
        known.add([("a", 1, 1)])
    known.add([("a", 0, 0)])  # a request without a key of the field says nothing about it
    assert known.never_found() == []
    known.add([("a", 1, 1)])
    assert known.never_found() == ["a"]
    known.restart()
    assert known.never_found() == []


def test_keys_that_a_joined_view_lacks_are_counted_by_the_server(world: World) -> None:
    service = Service(open_served(ModelFolder.open(world.folder)), "m", ScoringQueue(0, 4, 1.0), Limits())
    body = body_of(world.rows(0, 10))
    for k, candidate in enumerate(body["candidates"]):
        candidate["ad_id"] = candidate["ad_id"] if k < 7 else 10**9 + k  # no ad has such an id
    service.score(service.served.reader.from_json(orjson.dumps(body)))
    text = service.prometheus()
    for found, count in (("yes", 7), ("no", 3)):
        assert f'ctrbox_join_keys_total{{view="ads",on="ad_id",found="{found}"}} {count}\n' in text
    (ads,) = (join for join in service.live()["joins"] if join["view"] == "ads")
    assert (ads["keys"], ads["missed"]) == (10, 3)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 6), max_size=5), min_size=2, max_size=6), st.sets(st.integers(1, 6)))
def test_keys_are_counted_as_one_by_one(rows: list[list[int]], known: set[int]) -> None:
    """Two fields: one of lists, one of a key per row."""
    ones = [sum(row) % 7 for row in rows]
    many = [k for row in rows for k in row]
    expected = [
        (name, sum(k != 0 for k in keys), sum(k != 0 and k not in known for k in keys))
        for name, keys in (("many", many), ("one", ones))
    ]
    keys = np.array(sorted({*many, *ones}), np.int64)
    inverse = np.searchsorted(keys, np.array([*many, *ones], np.int64)).astype(np.int32)
    starts = (0, len(many), len(inverse))
    lookup = Lookup(keys, inverse, len(rows), ("many", "one"), starts, (None, None))
    lost = np.flatnonzero([k not in known for k in keys.tolist()])
    assert asked_of_lookup(lookup, lost) == expected
    both = np.array([*ones, *reversed(ones)], np.int64)
    places = np.flatnonzero([k not in known for k in both.tolist()])
    assert asked_of_rows(("one", "again"), both, places) == [expected[1], ("again", *expected[1][1:])]
    assert asked_of_rows(("one",), both[: len(ones)], places[places < len(ones)]) == [expected[1]]


def test_a_version_that_reads_other_fields_is_served(tmp_path: Path) -> None:
    features = cb.FeatureSet(label=col("clicked"), sparse={"user": col("user"), "ad": col("ad")})
    plan = cb.compile(cb.View(log_of(), name="log"), features, device="cpu", threads=1)
    runs = [
        cb.Trainer(cb.models.LR(plan.schema, fields=fields), threads=1).fit(plan, batch_size=100)
        for fields in (["user"], ["user", "ad"])
    ]
    folder = create(tmp_path / "m", plan, runs[0], context=CONTEXT)
    served = open_served(folder)
    request = served.reader.from_json(orjson.dumps({"context": {"user": "3"}, "candidates": [{"ad": 2}, {"ad": 99}]}))
    served.score(request)
    version = folder.published.publish(runs[1])
    served.take(folder.published.file(), version.number)  # type: ignore[union-attr]
    assert served.score(request)[1] == 2
    assert served.known.counted() == {"user": {"known": 2, "unknown": 0}, "ad": {"known": 1, "unknown": 1}}
