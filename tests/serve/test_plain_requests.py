"""Requests that native code answers in one call against the path through Python: the same answers, errors and counts."""

from __future__ import annotations

import json
import random
import threading
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox.compiled_plan.split_for_requests import Split
from ctrbox.serve.request_queue import ScoringQueue
from ctrbox.serve.routes import Answer, Routes, answer_of
from ctrbox.serve.served_models import Live, Scored, ServedFfm
from ctrbox.serve.service import Limits, Service
from tests.compiled_plan.test_split_for_requests import COLUMNS, PLANS, rows
from tests.serve.hostile import RAW_VALUES, VALUES

MOST = 6  # candidates
Twins = tuple[Routes, Routes]
TWINS: dict[tuple[int, frozenset[str], bool], Twins] = {}
WITHOUT_PYTHON = [variant for variant in PLANS if not variant & 8]


def engine_of(plan: cb.Plan, context: tuple[str, ...], *, shares: bool = True) -> cb.DeepFFM:
    part = Split(plan, context).context_features
    once = [*(f.name for f in part.sparse), *part.dense_names] if shares else ()
    return cb.DeepFFM(plan.schema, context=once, k=2, hidden=(4, 4), bits=10, seed=3)


def routes_of(served: ServedFfm) -> Routes:
    return Routes(Service(served, "model", ScoringQueue(0, 8, 1.0), Limits()))


def served_of(routes: Routes) -> ServedFfm:
    served = routes.service.served
    assert isinstance(served, ServedFfm)
    return served


def twins(variant: int, context: frozenset[str], *, cached: bool) -> Twins:
    """Return the twins of all tests that ask both of them the same requests, so that their counts stay equal."""
    key = variant, context, cached
    if key not in TWINS:
        TWINS[key] = new_twins(variant, context, cached=cached)
    return TWINS[key]


def new_twins(variant: int, context: frozenset[str], *, cached: bool) -> Twins:
    """Return a model that native code answers for, and the same one that Python answers for."""
    plan, names = PLANS[variant], tuple(sorted(context))
    engine = engine_of(plan, names)
    fast, slow = (
        ServedFfm(plan, names, Live(engine, 1), cache_bytes=cached << 20, most_candidates=MOST) for _ in range(2)
    )
    slow.live = replace(slow.live, native=None)
    return routes_of(fast), routes_of(slow)


def answer(routes: Routes, body: bytes) -> Answer:
    try:
        return routes.score(body)
    except Exception as error:
        return answer_of(error)


def same(pair: Twins, body: bytes) -> Answer:
    fast, slow = (served_of(routes) for routes in pair)
    found, expected = answer(pair[0], body), answer(pair[1], body)
    assert found == expected
    for name in ("hits", "misses", "evictions"):
        assert getattr(fast.cache.counts, name) == getattr(slow.cache.counts, name)
    assert len(fast.cache) == len(slow.cache)
    assert fast.joins() == slow.joins()
    return found


def spoiled(body: dict[str, Any], draw: random.Random) -> bytes:
    """A request with something strange in it: a value, a name, a member, bytes, or where it ends."""
    mark = "HERE"
    text = json.dumps(body, ensure_ascii=draw.random() < 0.5)
    what = draw.randrange(9)
    parts = [body["context"], *(body["candidates"] if isinstance(body["candidates"], list) else [body["candidates"]])]
    part = draw.choice([p for p in parts if p] or [body])
    name = draw.choice(list(part))
    if what == 0:
        part[name] = draw.choice(VALUES)
        return json.dumps(body).encode("utf-8", "replace")
    if what == 1:
        part[name] = mark
        return json.dumps(body).encode().replace(b'"HERE"', draw.choice(RAW_VALUES))
    if what == 2:
        part[draw.choice(["id", "clicked", "segment", "x", "", *COLUMNS])] = part.pop(name)
        return json.dumps(body).encode()
    if what == 3:
        return json.dumps({**body, draw.choice(["objects", "score", "contexts"]): draw.choice(VALUES)}).encode()
    if what == 4:
        body[draw.choice(["context", "candidates"])] = draw.choice([*VALUES, [{}], {"ad": 1}, [1]])
        return json.dumps(body).encode()
    if what == 5:
        return text.encode()[: draw.randrange(len(text))]
    if what == 6:
        made = bytearray(text.encode())
        made[draw.randrange(len(made))] = draw.randrange(256)
        return bytes(made)
    if what == 7:
        return (" " + text + draw.choice(["", " ", "x", "\x00", "{}"])).encode()
    del body[draw.choice(["context", "candidates"])]
    return json.dumps(body).encode()


@dataclass(frozen=True)
class Sent:
    """A request, still as rows: the row of its context and those of its candidates; and the model that it goes to."""

    variant: int
    context: frozenset[str]
    cached: bool
    one: dict[str, Any]
    candidates: list[dict[str, Any]]
    seed: int

    def twins(self) -> Twins:
        return twins(self.variant, self.context, cached=self.cached)


def sent(rows: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[Sent]:
    """Requests to every plan without Python, with one candidate more than is allowed at the most."""
    return st.builds(
        Sent,
        variant=st.sampled_from(WITHOUT_PYTHON),
        context=st.sampled_from(
            [
                frozenset(names)
                for names in (("user", "query"), ("user",), ("query", "price", "shown"), ("ad", "device"))
            ]
        ),
        cached=st.booleans(),
        one=rows,
        candidates=st.lists(rows, min_size=0, max_size=MOST + 1),
        seed=st.integers(0, 2**32),
    )


@settings(max_examples=150, deadline=None)
@given(request=sent(rows), columnar=st.booleans())
def test_answers_errors_and_counts_are_those_of_the_path_through_python(request: Sent, columnar: bool) -> None:
    pair, draw = request.twins(), random.Random(request.seed)
    context, one, candidates = request.context, request.one, request.candidates
    each = [n for n in COLUMNS if n not in context]
    parts: Any = [{n: row[n] for n in each} for row in candidates]
    if columnar:
        parts = {n: [row[n] for row in candidates] for n in each}
    body = {"context": {n: one[n] for n in context}, "candidates": parts}
    plain = json.dumps(body).encode()
    same(pair, plain)
    same(pair, spoiled(body, draw))
    last = same(pair, plain)
    assert last.status == 200 or len(candidates) > MOST


def test_plain_requests_never_reach_python(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"ad": 1, "device": "ios", "price": 1.0, "shown": True}
    for variant in WITHOUT_PYTHON:
        routes, _ = new_twins(variant, frozenset(["user", "query"]), cached=False)
        monkeypatch.setattr(served_of(routes).reader, "from_json", None)
        found = routes.score(json.dumps({"context": {"user": 1, "query": "ü\n"}, "candidates": [row] * 2}).encode())
        assert (found.status, found.rows) == (200, 2)


def test_requests_that_are_read_but_cannot_be_scored_have_the_errors_of_python() -> None:
    context = frozenset(["user", "query", "price"])
    row = {"ad": 1, "device": "ios", "shown": True}
    good = {"user": 1, "query": "red", "price": 1.0}
    for cached in (False, True):
        pair = twins(0, context, cached=cached)
        assert same(
            pair, json.dumps({"context": {**good, "price": 3e38}, "candidates": [row] * 3}).encode()
        ).status in (
            200,
            400,
        )
        for change in ({"user": None}, {"price": 1e39}, {"price": None}, {"query": None}):
            same(pair, json.dumps({"context": {**good, **change}, "candidates": [row] * 3}).encode())
        for changed in ({"ad": None}, {"shown": None}, {"device": None}):
            same(pair, json.dumps({"context": good, "candidates": [row, {**row, **changed}, row]}).encode())
        for many in (MOST, MOST + 1):
            found = same(pair, json.dumps({"context": good, "candidates": [row] * many}).encode())
            assert found.status == (200 if many == MOST else 413)


def test_numbers_that_are_too_large_are_refused_in_the_words_of_python() -> None:
    """A feature of the context, one of the candidates, and a score of the model that is not finite."""
    table = {"id": [1, 2], "clicked": [0, 1], "of_user": [1.0, 2.0], "of_ad": [1.0, 2.0], "user": [1, 2], "ad": [1, 2]}
    log = cb.View(pa.table(table), key="id", name="log").filter(cb.col("of_ad") != 7.0)
    sparse = {"user": cb.col("user").key(), "ad": cb.col("ad").key()}
    dense = {"u": cb.col("of_user") * 1e300, "a": cb.col("of_ad") * 1e300}
    plan = cb.compile(log, cb.FeatureSet(label=cb.col("clicked"), sparse=sparse, dense=dense), device="cpu")
    engine = cb.DeepFFM(plan.schema, context=plan.features_of(["user", "of_user"]), k=2, hidden=(4,), bits=8, seed=3)
    made = [
        ServedFfm(plan, ("user", "of_user"), Live(engine, 1), cache_bytes=1 << 20, most_candidates=MOST)
        for _ in range(2)
    ]
    made[1].live = replace(made[1].live, native=None)
    pair = routes_of(made[0]), routes_of(made[1])
    seen = set()
    for of_user in (1e-300, 1e-262, 1e5):
        for of_ad in (1e-300, 7.0, 1e-263, 1e-262, 1e5):
            candidates = [{"ad": 1, "of_ad": 1e-300}, {"ad": 2, "of_ad": 7.0}, {"ad": 3, "of_ad": of_ad}]
            for _ in range(2):
                found = same(
                    pair, json.dumps({"context": {"user": 1, "of_user": of_user}, "candidates": candidates}).encode()
                )
                seen.add(found.body if found.status == 400 else b"")
    assert any(b"the context: " in body for body in seen)
    assert any(b"candidates: row 1: " in body for body in seen)


def answer_natively(served: ServedFfm, body: bytes) -> Scored:
    plain = served.plain()
    assert plain is not None
    scores = plain.json(body)
    assert scores is not None
    return Scored(scores, plain.version, plain.views)


def test_a_new_version_and_another_engine_are_used_from_the_next_request_on(tmp_path: Any) -> None:
    plan, names = PLANS[0], ("user", "query")
    body = json.dumps(
        {
            "context": {"user": 1, "query": "red"},
            "candidates": [{"ad": 1, "device": "ios", "price": 1.0, "shown": True}],
        }
    ).encode()
    served = ServedFfm(plan, names, Live(engine_of(plan, names), 1), cache_bytes=1 << 20, most_candidates=MOST)
    first = answer_natively(served, body)
    assert (first.version, len(served.cache)) == (1, 1)
    other = cb.DeepFFM(plan.schema, context=served.live.engine.context_fields, k=2, hidden=(4, 4), bits=10, seed=4)
    other.save(tmp_path / "other.ffm")
    served.take(tmp_path / "other.ffm", 2)
    assert len(served.cache) == 0
    second = answer_natively(served, body)
    assert second.version == 2
    assert second.scores.tobytes() == served.score(served.reader.from_json(body))[0].tobytes()
    assert second.scores.tobytes() != first.scores.tobytes()
    # An engine that computes no context once is scored by Python, with the cache that was there.
    engine_of(plan, names, shares=False).save(tmp_path / "whole.ffm")
    served.take(tmp_path / "whole.ffm", 3)
    assert served.plain() is None
    routes = routes_of(served)
    assert routes.score(body) == routes.score(body)
    assert (len(served.cache), served.cache.counts.hits) == (1, 2)


def test_a_plan_with_operators_in_python_is_left_to_python() -> None:
    plan, names = PLANS[8], ("user", "query")
    served = ServedFfm(plan, names, Live(engine_of(plan, names), 1), cache_bytes=0, most_candidates=MOST)
    assert served.live.native is None
    assert served.plain() is None


def test_threads_share_the_cache_and_get_the_same_bits() -> None:
    routes, _ = new_twins(3, frozenset(["user", "query"]), cached=True)
    bodies = [
        json.dumps(
            {
                "context": {"user": user, "query": "red hat"},
                "candidates": [{"ad": ad, "device": "ios", "price": 1.0, "shown": True} for ad in range(MOST)],
            }
        ).encode()
        for user in range(6)
    ]
    expected = [routes.score(body) for body in bodies]
    wrong: list[int] = []

    def ask(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(300):
            k = draw.randrange(len(bodies))
            if routes.score(bodies[k]) != expected[k]:
                wrong.append(k)
            if draw.random() < 0.02:
                served_of(routes).cache.clear()

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
