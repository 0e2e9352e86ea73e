"""A plan written for libctrbox gives the bits of Python: any columns as context, filters, joins, crosses, times, nulls."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import _native, col
from ctrbox.compiled_plan.split_for_requests import Split
from ctrbox.errors import PlanError
from ctrbox.serve.request_plan import save_request_plan
from ctrbox.serve.served_models import Live, ServedFfm
from tests.compiled_plan.test_split_for_requests import COLUMNS, PLANS, rows, table_of
from tests.serve.worlds import CANDIDATE, CONTEXT, World

SCORERS: dict[tuple[int, frozenset[str], bool], tuple[ServedFfm, _native.RequestScorer]] = {}


def scorers(
    place: Path, plan: cb.Plan, context: tuple[str, ...], *, shares: bool = True, fields: list[str] | None = None
) -> tuple[ServedFfm, _native.RequestScorer]:
    """The server's model and the scorer of libctrbox, over the same engine."""
    split = Split(plan, context)
    once = [*(f.name for f in split.context_features.sparse), *split.context_features.dense_names]
    once = [name for name in once if fields is None or name in fields]
    engine = cb.DeepFFM(fields or plan.schema, context=once if shares else (), k=2, hidden=(4, 4), bits=10, seed=3)
    save_request_plan(plan, place, context=context)
    served = ServedFfm(plan, context, Live(engine, 1), cache_bytes=0, most_candidates=1000)
    return served, _native.RequestScorer(_native.RequestPlan.read(str(place)), engine._native, engine.fields)


def both(served: ServedFfm, scorer: _native.RequestScorer, body: bytes) -> tuple[np.ndarray, np.ndarray]:
    met, wrong = scorer.scores(body)
    assert not wrong, wrong
    return served.score(served.reader.from_json(body))[0], met


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    variant=st.integers(0, 7),
    context=st.frozensets(st.sampled_from(COLUMNS)),
    shares=st.booleans(),
    one=rows,
    candidates=st.lists(rows, min_size=0, max_size=6),
    columnar=st.booleans(),
)
def test_scores_have_the_bits_of_the_server(
    tmp_path: Path,
    variant: int,
    context: frozenset[str],
    shares: bool,
    one: dict[str, Any],
    candidates: list[dict[str, Any]],
    columnar: bool,
) -> None:
    key = variant, context, shares
    if key not in SCORERS:
        SCORERS[key] = scorers(tmp_path / "request.ctr", PLANS[variant], tuple(sorted(context)), shares=shares)
    served, scorer = SCORERS[key]
    each = [n for n in COLUMNS if n not in context]
    parts: Any = [{n: row[n] for n in each} for row in candidates]
    if columnar and each:
        parts = {n: [row[n] for row in candidates] for n in each}
    body = json.dumps({"context": {n: one[n] for n in context}, "candidates": parts}).encode()
    expected, met = both(served, scorer, body)
    assert met.dtype == expected.dtype == np.float32
    assert met.tobytes() == expected.tobytes()
    joined = [{**row, **{n: one[n] for n in context}} for row in candidates]
    if joined:  # and the bits of whole rows
        batch = PLANS[variant].run(table_of(joined))
        whole = np.full(len(joined), np.nan, np.float32)
        whole[slice(None) if batch.index is None else batch.index] = served.live.engine.predict(batch)
        assert met.tobytes() == whole.tobytes()


def test_a_trained_model_gives_the_bits_of_the_server(world: World, tmp_path: Path) -> None:
    path = tmp_path / "request.ctr"
    save_request_plan(world.plan, path, context=CONTEXT)
    served = ServedFfm(world.plan, CONTEXT, Live(world.engine, 1), cache_bytes=0, most_candidates=1000)
    scorer = _native.RequestScorer(_native.RequestPlan.read(str(path)), world.engine._native, world.engine.fields)
    logged = world.rows(0, 400).to_pylist()
    draw = random.Random(1)
    for at in range(0, 400, 40):
        for row in logged[at : at + 40]:
            row["ts"] = row["ts"].isoformat()
            if draw.random() < 0.1:
                row["ad_id"] = 10**15 + at  # an ad that the view does not know
        body = {
            "context": {n: logged[at][n] for n in CONTEXT},
            "candidates": [{n: row[n] for n in CANDIDATE} for row in logged[at : at + 40]],
        }
        expected, met = both(served, scorer, json.dumps(body).encode())
        assert met.tobytes() == expected.tobytes()
        assert len(set(met.tolist())) > 1


def test_as_of_joins_tables_of_operators_and_fits_are_in_the_file(tmp_path: Path) -> None:
    draw = random.Random(2)
    ads = pa.table(
        {
            "ad": [1, 1, 2, 3],
            "since": pa.array([0, 10**15, 0, 5 * 10**14], pa.timestamp("us")),
            "price": [1.0, 2.0, 3.0, 4.0],
            "topics": [["a", "ü"], [], ["b"], ["a"]],
        }
    )
    many = [
        {
            "id": n,
            "clicked": draw.randrange(2),
            "ad": draw.randrange(5),
            "at": draw.randrange(2 * 10**15),
            "text": draw.choice(["red", "blue hat", "", "ü", "x" * 40]),
            "doc": draw.choice([None, "{}", '{"a": {"b": [1, 2.5, "x"]}, "n": 7}', "[", '{"n": "seven"}']),
            "bid": draw.choice([None, 0.1, 5.0, -3.0]),
        }
        for n in range(300)
    ]
    table = pa.Table.from_pylist(many).set_column(3, "at", pa.array([r["at"] for r in many], pa.timestamp("us")))
    log = cb.View(table, key="id", name="log", time_units={"at": "us"}).fill(text="", bid=0.0)
    views = cb.View(ads, key="ad", name="ads").fill(price=-1.0, topics=[])
    log = log.join(views, on="ad", as_of=("at", "since"))
    doc, words = col("doc"), col("text").split(" ")
    features = cb.FeatureSet(
        label=col("clicked"),
        sparse={
            "ad": col("ad").key(),
            "topics": col("topics").key(),
            "words_x_topics": cb.cross(words, "topics"),
            "hour": col("at").hour().key(),
            "few": col("text").is_in(["red", ""]).key(),
            "many": col("ad").is_in(list(range(1, 40, 2))).key(),
            "bucket": col("bid").bucketize([0.0, 1.0]).key(),
            "quantile": col("price").bucketize(quantiles=4).key(),
        },
        dense={
            "n": doc.json("$.n", "int").fill(-1),
            "b": doc.json("$.a.b[1]", "float").fill(0.0),
            "bid": col("bid").standardize(),
            "length": col("text").length(),
        },
    )
    plan = cb.compile(log, features, device="cpu", threads=1)
    served, scorer = scorers(tmp_path / "request.ctr", plan, ("at", "text"))
    for at in range(0, 300, 30):
        part = many[at : at + 30]
        body = {"context": {n: part[0][n] for n in ("at", "text")}}
        body["candidates"] = [{n: row[n] for n in ("ad", "doc", "bid")} for row in part]
        expected, met = both(served, scorer, json.dumps(body).encode())
        assert met.tobytes() == expected.tobytes()


def test_a_view_of_which_only_the_keys_are_read_is_in_the_file(tmp_path: Path) -> None:
    ads = cb.View(pa.table({"ad": list(range(0, 3000, 2))}), key="ad", name="ads")
    table = pa.table({"id": [1, 2, 3], "clicked": [0, 1, 0], "ad": [1, 2, 4]})
    log = cb.View(table, key="id", name="log").join(ads, on="ad", how="inner")
    features = cb.FeatureSet(label=col("clicked"), sparse={"ad": col("ad").key()})
    served, scorer = scorers(tmp_path / "request.ctr", cb.compile(log, features, device="cpu"), ())
    body = json.dumps({"candidates": {"ad": [1, 2, 5, 4, 2998, 3000]}}).encode()
    expected, met = both(served, scorer, body)
    assert met.tobytes() == expected.tobytes()
    assert np.isnan(met).tolist() == [True, False, True, False, False, True]


def test_a_model_that_leaves_features_out_is_scored(tmp_path: Path) -> None:
    plan = PLANS[0]
    fields = ["ad", "bid", "user", "words"]
    served, scorer = scorers(tmp_path / "request.ctr", plan, ("user", "query"), fields=fields)
    body = b'{"context": {"user": 1, "query": "red hat"}, "candidates": [{"ad": 1, "device": null, "price": 2, "shown": true}]}'
    expected, met = both(served, scorer, body)
    assert met.tobytes() == expected.tobytes()


def test_what_libctrbox_cannot_do_is_refused_with_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "request.ctr"
    with pytest.raises(PlanError, match=r"operators written in Python \('mixed'\)"):
        save_request_plan(PLANS[8], path, context=["user"])
    table = pa.table({"id": [1, 2], "clicked": [0, 1], "tags": [["a"], ["b"]]})
    features = cb.FeatureSet(label=col("clicked"), sparse={"tags": col("tags").key()})
    plan = cb.compile(cb.View(table, key="id"), features, device="cpu")
    with pytest.raises(PlanError, match=r"column 'tags' is list<.*which libctrbox cannot read from a request"):
        save_request_plan(plan, path, context=[])
    with pytest.raises(PlanError, match="must be a list of column names"):
        save_request_plan(PLANS[0], path, context="user")
    with pytest.raises(PlanError, match=r"'usr' is not in view 'log'.*user"):
        save_request_plan(PLANS[0], path, context=["usr"])
    assert not list(tmp_path.iterdir())


def test_a_wrong_request_is_told_what_is_wrong(tmp_path: Path) -> None:
    served, scorer = scorers(tmp_path / "request.ctr", PLANS[0], ("user", "query"))
    good = {"ad": 1, "device": "ios", "price": 0.5, "shown": True}
    for change, said in (
        ({"ad": "1"}, "row 0: column 'ad' must be a whole number from -2147483648 to 2147483647, or null; met \"1\""),
        ({"price": "cheap"}, "row 0: column 'price' must be a number that fits float32"),
        ({"color": 1}, "there is no column 'color' here"),
    ):
        body = {"context": {"user": 1, "query": ""}, "candidates": [{**good, **change}]}
        met, wrong = scorer.scores(json.dumps(body).encode())
        assert said in wrong
        assert not len(met)
        with pytest.raises(cb.errors.CtrboxError):
            served.score(served.reader.from_json(json.dumps(body).encode()))


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path, cut = tmp_path / "request.ctr", tmp_path / "cut.ctr"
    save_request_plan(PLANS[7], path, context=["user"])
    whole = path.read_bytes()
    draw = random.Random(1)
    for n in range(200):
        damaged = bytearray(whole)
        if n % 2:
            del damaged[draw.randrange(len(whole)) :]
        else:
            damaged[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        cut.write_bytes(damaged)
        with pytest.raises(_native.DamagedFile):
            _native.RequestPlan.read(str(cut))
