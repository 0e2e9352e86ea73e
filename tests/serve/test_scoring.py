"""Requests against the slow twin: the plan over joined rows, the engine over the whole batch."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox.engines.cpu.frames_and_arrow import column_of
from ctrbox.errors import CtrboxError
from ctrbox.serve.model_folder import ModelFolder
from ctrbox.serve.refused_request import Refused
from ctrbox.serve.served_models import Live, ServedFfm, open_served
from tests.serve.worlds import CANDIDATE, CONTEXT, World


@pytest.fixture(scope="module")
def served(world: World) -> ServedFfm:
    made = open_served(ModelFolder.open(world.folder), most_candidates=1000)
    assert isinstance(made, ServedFfm)
    return made


def body_of(rows: pa.Table, context_row: int = 0, *, columnar: bool = False) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        return value.isoformat() if isinstance(value, datetime.datetime) else value

    context = {n: plain(rows[n][context_row].as_py()) for n in CONTEXT}
    candidates = rows.select(CANDIDATE).to_pydict() if columnar else rows.select(CANDIDATE).to_pylist()
    return {"context": context, "candidates": candidates}


def twin(world: World, served: ServedFfm, rows: pa.Table, context_row: int = 0) -> np.ndarray:
    """One joined row for every candidate, through the plan as a log would go, scored in one batch."""
    joined = {
        n: [rows[n][context_row].as_py()] * len(rows) if n in CONTEXT else rows[n].to_pylist()
        for n in rows.column_names
    }
    table = pa.table(joined, rows.schema)
    (batch,) = world.plan.over(table).batches(len(rows))
    return served.live.engine.predict(batch)


@pytest.mark.parametrize("columnar", [False, True])
def test_scores_are_those_of_the_plan_over_joined_rows(world: World, served: ServedFfm, columnar: bool) -> None:
    for begin in range(0, 900, 97):
        rows = world.rows(begin, 97)
        request = served.reader.from_json(orjson.dumps(body_of(rows, 5, columnar=columnar)))
        scores, version = served.score(request)
        assert version == 1
        assert np.array_equal(scores, twin(world, served, rows, 5))


def test_a_cached_context_gives_the_same_scores(world: World) -> None:
    folder = ModelFolder.open(world.folder)
    cached, plain = (open_served(folder, cache_bytes=n) for n in (25_000, 0))
    assert isinstance(cached, ServedFfm)
    assert isinstance(plain, ServedFfm)
    bodies = [orjson.dumps(body_of(world.rows(100 * k, 20), k)) for k in range(12)]
    order = np.random.default_rng(0).integers(0, 12, 200)
    for k in order:
        one, other = (m.score(m.reader.from_json(bodies[k]))[0] for m in (cached, plain))
        assert np.array_equal(one, other)
    counts = cached.cache.counts
    assert counts.hits > 20
    assert counts.evictions > 5
    assert counts.hits + counts.misses == 200
    assert cached.cache.bytes <= 25_000
    assert (len(plain.cache), plain.cache.counts.hits) == (0, 0)


def test_tensors_give_the_same_scores(world: World, served: ServedFfm) -> None:
    rows = world.rows(200, 30).combine_chunks()
    rows = rows.set_column(rows.column_names.index("query"), "query", pa.array(["red shoes"] * 30))
    rows = rows.set_column(rows.column_names.index("position"), "position", pa.array(range(30), pa.int32()))
    tensors = {
        "ts": rows["ts"].to_numpy().astype(np.int64)[:1],
        "user_id": rows["user_id"].to_numpy()[:1].reshape(1, 1),
        "query": np.array([b"red shoes"], object),
        "device": np.array([(rows["device"][0].as_py() or "").encode()], object),
        "context": np.array([rows["context"][0].as_py().encode()], object),
        "ad_id": rows["ad_id"].to_numpy(),
        "position": rows["position"].to_numpy().astype(np.int64).reshape(30, 1),
    }
    scores, _ = served.score(served.reader.from_tensors(tensors))
    body = body_of(rows)
    body["context"]["device"] = body["context"]["device"] or ""
    expected, _ = served.score(served.reader.from_json(orjson.dumps(body)))
    assert np.array_equal(scores, expected)
    for name, wrong in (
        ("ad_id", np.zeros(29, np.int64)),
        ("ad_id", np.zeros((30, 2), np.int64)),
        ("ad_id", np.zeros(30, np.float32)),
        ("user_id", np.zeros(30, np.int64)),
        ("query", np.array([b"\xff"], object)),
        ("position", np.full(30, 2**40)),
        ("qury", np.zeros(1)),
        ("ad_id", np.array(7)),
    ):
        with pytest.raises(CtrboxError):
            served.reader.from_tensors({**tensors, name: wrong})
    with pytest.raises(CtrboxError, match="lacks column 'ad_id'"):
        served.reader.from_tensors({n: v for n, v in tensors.items() if n != "ad_id"})


WRONG = [
    (b"", 400, "not JSON"),
    (b"[" * 5000, 400, "not JSON"),
    (b'{"a": NaN}', 400, "not JSON"),
    (b"[]", 400, "context and candidates"),
    (b'{"context": {}}', 400, "context and candidates"),
    (b'{"context": {}, "candidates": [], "more": 1}', 400, "unknown member .more."),
]


@pytest.mark.parametrize(("body", "status", "words"), WRONG)
def test_what_is_no_request_is_refused(served: ServedFfm, body: bytes, status: int, words: str) -> None:
    with pytest.raises(Refused, match=words) as met:
        served.reader.from_json(body)
    assert met.value.status == status


def changed(body: dict[str, Any], part: str, **values: Any) -> bytes:
    rows = [dict(row) for row in body["candidates"]]
    context = dict(body["context"])
    for name, value in values.items():
        target = context if part == "context" else rows[3]
        if value is ...:
            del target[name]
        else:
            target[name] = value
    return orjson.dumps({"context": context, "candidates": rows})


@pytest.mark.parametrize(
    ("part", "values", "words"),
    [
        ("candidates", {"ad_id": "7"}, "row 3: column 'ad_id' is a string .'7'., expected int"),
        ("candidates", {"ad_id": 1.5}, "is a fraction"),
        ("candidates", {"ad_id": True}, "is a bool"),
        ("candidates", {"ad_id": 2**64 - 1}, "expected int"),
        ("candidates", {"position": 2**40}, "int32"),
        ("candidates", {"ad_id": [1]}, "is a list"),
        ("candidates", {"ad_id": {}}, "is an object"),
        ("candidates", {"ad_id": ...}, "row 0 has column 'ad_id', but row 3 does not"),
        ("candidates", {"ad": 1}, "row 3 has column 'ad', but row 0 does not"),
        ("context", {"ts": "yesterday"}, "^context: column 'ts' is a string .'yesterday'., expected a time"),
        ("context", {"ts": 1.5}, "expected a time"),
        ("context", {"user_id": None}, "never is.* .at the request's context.$"),
        ("context", {"query": 5}, "column 'query' is a whole number .5., expected str"),
        ("context", {"user_id": ...}, "context lacks column 'user_id'"),
        ("context", {"user_idd": 5}, "no column 'user_idd'; nearest: 'user_id'"),
        ("context", {"ad_id": 5}, "'ad_id' belongs to the request's candidates"),
    ],
)
def test_wrong_fields_are_named(world: World, served: ServedFfm, part: str, values: dict[str, Any], words: str) -> None:
    with pytest.raises(CtrboxError, match=words):
        served.score(served.reader.from_json(changed(body_of(world.rows()), part, **values)))


def test_rows_and_columns_of_other_shapes_are_refused(world: World, served: ServedFfm) -> None:
    good = body_of(world.rows(0, 4))
    columns = body_of(world.rows(0, 4), columnar=True)["candidates"]
    for candidates in (
        5,
        "text",
        [1],
        [good["candidates"][0], 2],
        [{}],
        [None],
        {"ad_id": 5},
        {**columns, "ad_id": [1]},
        {"ad_id": [1]},
    ):
        with pytest.raises(CtrboxError):
            served.reader.from_json(orjson.dumps({"context": good["context"], "candidates": candidates}))
    with pytest.raises(Refused) as met:
        served.reader.from_json(orjson.dumps({**good, "candidates": good["candidates"] * 251}))
    assert met.value.status == 413


def test_no_candidates_get_no_scores_and_times_have_many_forms(world: World, served: ServedFfm) -> None:
    body = body_of(world.rows(0, 2))
    for empty in ([], {"ad_id": [], "position": []}):
        scores, _ = served.score(served.reader.from_json(orjson.dumps({**body, "candidates": empty})))
        assert scores.shape == (0,)
    found = []
    stamp = 1_709_251_200_000_000
    for ts in ("2024-03-01T00:00:00", "2024-03-01", "2024-03-01 01:00:00+01:00", "2024-03-01T00:00:00Z", stamp):
        body["context"]["ts"] = ts
        request = served.reader.from_json(orjson.dumps(body))
        row = request.context()
        place = served.split.context_schema.get_field_index("ts")
        times = row.column(place) if isinstance(row, pa.RecordBatch) else column_of(row, place)
        assert times.cast(pa.int64()).to_pylist() == [stamp]
        found.append(served.score(request)[0])
    assert all(np.array_equal(f, found[0]) for f in found)


@pytest.mark.parametrize("left_out", [[], ["log_bid"], ["overlap", "log_bid"], ["interests", "ad"]])
@pytest.mark.parametrize("context", ["none", "the plan's", "a part of it"])
def test_every_engine_gives_the_scores_of_whole_rows(world: World, left_out: list[str], context: str) -> None:
    """With the plan's context, with another and with none; with all features of the plan and with some."""
    fields = [
        n for n in [*(f.name for f in world.plan.schema.sparse), *world.plan.schema.dense_names] if n not in left_out
    ]
    once = [n for n in world.plan.features_of(CONTEXT) if n in fields]
    once = {"none": [], "the plan's": once, "a part of it": once[:3]}[context]
    engine = cb.DeepFFM(fields, context=once, k=4, hidden=(8,), bits=12)
    engine.learn(world.plan.batches(1000, limit=1000))
    served = ServedFfm(world.plan, CONTEXT, Live(engine, 1), cache_bytes=1 << 20, most_candidates=100)
    assert served.live.scorer is not None
    assert served.live.scorer.shares == (context == "the plan's")
    rows = world.rows(50, 40)
    for _ in range(2):
        scores, _ = served.score(served.reader.from_json(orjson.dumps(body_of(rows, 3))))
        assert np.array_equal(scores, twin(world, served, rows, 3))
