"""The server keeps the state of histories: its scores are those of rows that bring the columns of training."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import DataError, PlanError, WriteError
from ctrbox.serve.model_folder import ModelFolder, create
from ctrbox.serve.refused_request import Refused
from ctrbox.serve.request_queue import ScoringQueue
from ctrbox.serve.routes import Answer, Routes, Scoring
from ctrbox.serve.served_models import open_served
from ctrbox.serve.server import Server, Settings
from ctrbox.serve.service import Limits, Service
from ctrbox.serve.state_of_histories import ServedPast, StateWriter
from ctrbox.serve.view_refresh import ViewRefresher
from tests.serve.running import running

SECOND = 1_000_000
CONTEXT = ("user", "ts", "device", "seen", "seen_age", "n")
HALF = 1_000


def table(count: int = 2_000) -> pa.Table:
    random = np.random.default_rng(8)
    return pa.table(
        {
            "id": np.arange(count),
            "user": random.integers(0, 12, count),
            "ad": random.integers(0, 9, count),
            "device": pa.array(random.choice(["ios", "web"], count)),
            "price": random.random(count),
            "ts": pa.array(
                1_750_000_000 * SECOND + np.cumsum(random.integers(0, 3, count)) * SECOND, pa.timestamp("us")
            ),
            "clicked": random.integers(0, 2, count),
        }
    )


def plan_of(data: Any) -> cb.Plan:
    user, ad = cb.past(by="user", time="ts", gap="1s"), cb.past(by="ad", time="ts")
    log = cb.View(data, key="id", name="log").with_history(
        seen=cb.history("ad", by="user", time="ts", where=col("clicked") == 1, last=6, within="1h"),
        n=user.count(within="5m"),
        rate=ad.mean("clicked", within="20m"),
        pair=cb.past(by=["user", "ad"], time="ts").since(),
    )
    features = cb.FeatureSet(
        label=col("clicked"),
        sparse={
            "user": col("user").key(),
            "ad": col("ad").key(),
            "device": col("device").key(),
            "seen": col("seen").key(space="ad"),
        },
        dense={
            "n": col("n").log1p(),
            "rate": col("rate").fill(0.5),
            "pair": col("pair").fill(9e4).log1p(),
            "price": col("price"),
        },
    )
    return cb.compile(log, features, device="cpu", threads=1)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, a published run, a Deep FFM, and the state of the first half of the log."""
    place = tmp_path_factory.mktemp("past")
    pq.write_table(table(), place / "log.parquet")
    plan = plan_of(place / "log.parquet")
    model = cb.models.DeepFM(plan.schema, dim=4, hidden=(8,))
    run = cb.Trainer(model, cb.MemoryTable(4)).fit(plan, batch_size=500, epochs=1, out=place / "run")
    create(place / "published", plan, run, context=CONTEXT)
    engine = cb.DeepFFM(plan.schema, k=4, hidden=(4,), bits=10, context=plan.features_of(CONTEXT))
    engine.learn(next(iter(plan.batches(2_000))))
    create(place / "ffm", plan, engine, context=CONTEXT)
    create(place / "bare", plan, engine, context=("user", "ts", "device"))
    state = plan.histories()
    state.observe(table().slice(0, HALF), position="offset 1000")
    state.save(place / "half.past")
    return place


def served_of(place: Path, kind: str, state: Path | None = None) -> Any:
    return open_served(ModelFolder.open(place / kind), allow_views=[str(place)], state=state or place / "half.past")


def body(context: dict[str, Any], candidates: list[dict[str, Any]]) -> bytes:
    return orjson.dumps({"context": context, "candidates": candidates})


def request_of(row: dict[str, Any], ads: int = 5) -> bytes:
    context = {"user": row["user"], "ts": row["ts"].isoformat(), "device": row["device"]}
    return body(context, [{"ad": ad, "price": row["price"]} for ad in range(ads)])


@pytest.mark.parametrize("kind", ["run", "published", "ffm", "bare"])
def test_scores_equal_those_of_requests_that_bring_the_columns_of_training(place: Path, kind: str) -> None:
    """Some rows of the second half are scored as of their times, after the events before them were sent."""
    data = table()
    mine = served_of(place, kind)
    given = open_served(ModelFolder.open(place / kind), allow_views=[str(place)])
    times, fed = data["ts"].to_numpy(), HALF
    needed = sorted({f.name for f in given.reader.schema} - {"ad", "price"})
    made = ["seen", "seen_age", "n", "rate", "pair"]
    assert not set(mine.reader.schema.names) & set(made)
    for at in range(HALF, 2_000, 53):
        first = int(np.searchsorted(times, times[at]))
        if first > fed:
            mine.past.histories.observe(data.slice(fed, first - fed))
            fed = first
        row = data.slice(at, 1).to_pylist()[0]
        scores, _ = mine.score(mine.reader.from_json(request_of(row)))
        again, _ = mine.score(mine.reader.from_json(request_of(row)))  # from the cache of contexts
        ads = data.slice(0, first).to_pylist()
        asked = pa.concat_tables(
            [data.slice(0, first), pa.Table.from_pylist([{**row, "ad": ad} for ad in range(5)], data.schema)]
        )
        found = cb.compute({n: col(n) for n in [*made, "ad", "price", "user", "ts", "device"]}, plan_of(asked).log)
        rows = found.slice(len(ads)).to_pylist()
        context = {n: rows[0][n].isoformat() if n == "ts" else rows[0][n] for n in needed if n not in ("rate", "pair")}
        bare = kind in ("run", "bare")
        of_ads = [n for n in made if n in ("rate", "pair") or (bare and kind == "bare")]
        listed = [{n: r[n] for n in ("ad", "price", *of_ads) if n in given.reader.schema.names} for r in rows]
        context = {n: v for n, v in context.items() if n not in of_ads}
        expected, _ = given.score(given.reader.from_json(body(context, listed)))
        assert scores.tolist() == again.tolist() == expected.tolist()


def test_a_request_without_candidates_and_one_with_columns_of_histories(place: Path) -> None:
    row = table().slice(1_500, 1).to_pylist()[0]
    for kind in ("run", "published", "ffm"):
        served = served_of(place, kind)
        assert served.score(served.reader.from_json(request_of(row, 0)))[0].tolist() == []
        context = {"user": row["user"], "ts": row["ts"].isoformat(), "device": row["device"]}
        plain = served.score(served.reader.from_json(request_of(row)))[0]
        # The history columns are the server's own: those that a request brings are not read.
        candidates = [{"ad": ad, "price": row["price"], "rate": 0.9} for ad in range(5)]
        brought = served.score(served.reader.from_json(body(context, candidates)))[0]
        assert brought.tolist() == plain.tolist()
        with pytest.raises(DataError, match=r"'user'"):
            served.score(served.reader.from_json(body({"ts": context["ts"], "device": "web"}, candidates)))


def test_a_context_that_needs_columns_of_candidates_is_refused(place: Path) -> None:
    plan = plan_of(place / "log.parquet")
    with pytest.raises(PlanError, match=r"'rate' is in the context, but it is a history that reads column 'ad'"):
        ServedPast(plan, place / "half.past", ("user", "ts", "rate"))


def test_only_one_worker_keeps_a_state(place: Path) -> None:
    settings = Settings(state=place / "half.past", workers=2, allow_views=[str(place)])
    with pytest.raises(PlanError, match=r"--workers 2 is not possible: the state of histories is kept by one process"):
        Server.open(place / "ffm", settings)
    settings = Settings(state=place / "half.past", workers=None, allow_views=[str(place)])
    assert Server.open(place / "ffm", settings).workers == 1


def test_a_state_for_a_plan_without_histories_or_of_other_histories_is_refused(place: Path, tmp_path: Path) -> None:
    other = cb.compile(cb.View(table(), key="id"), cb.FeatureSet(dense={"p": col("price")}), device="cpu")
    with pytest.raises(PlanError, match="computes no histories"):
        ServedPast(other, place / "half.past")
    log = cb.View(table(), key="id").with_history(n=cb.past(by="user", time="ts").count())
    other = cb.compile(log, cb.FeatureSet(dense={"n": col("n")}), device="cpu")
    with pytest.raises(PlanError, match="holds the state of other histories"):
        ServedPast(other, place / "half.past")


# ---- events


def events_of(data: pa.Table) -> list[dict[str, Any]]:
    return [{**row, "ts": row["ts"].isoformat()} for row in data.to_pylist()]


def routes_of(place: Path, token: bytes = b"") -> Routes:
    return Routes(Service(served_of(place, "ffm"), "ads", ScoringQueue(0, 64, 60.0), Limits(), token))


def answered(routes: Routes, method: str, sent: Any = None) -> Any:
    found = routes.answer(method, "/v1/events", {}, sent if isinstance(sent, bytes) else orjson.dumps(sent))
    if isinstance(found, Scoring):
        found = found.work()
    assert isinstance(found, Answer)
    assert found.status == 200
    return orjson.loads(found.body)


def test_events_are_taken_counted_and_told(place: Path) -> None:
    routes = routes_of(place)
    told = answered(routes, "GET")
    assert (told["position"], told["taken"]) == ("offset 1000", HALF)
    assert set(told["columns"]) == {"user", "ad", "ts", "clicked"}
    rows = events_of(table().slice(HALF, 50))
    late = {**rows[0], "ts": "2020-01-01T00:00:00"}
    future = {**rows[0], "ts": "2999-01-01T00:00:00"}
    found = answered(routes, "POST", {"rows": [*rows, late, future], "position": "offset 1050"})
    assert found == {"taken": 50, "late": 1, "future": 1, "position": "offset 1050"}
    assert answered(routes, "POST", {"rows": [], "position": "end"}) == {
        "taken": 0,
        "late": 0,
        "future": 0,
        "position": "end",
    }
    assert answered(routes, "GET")["taken"] == HALF + 50


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"{", "the body is not JSON"),
        (b"[]", 'expected {"rows"'),
        ({"row": []}, "unknown member 'row'; nearest: 'rows'; known: rows, view, position"),
        ({"view": "log"}, "expected.*an object with"),
        ({"rows": {}}, "rows must be a list of objects"),
        ({"rows": [1]}, "rows must be a list of objects"),
        ({"rows": [{"user": 1}]}, "the event lacks column 'ts'.* a history reads it from view 'log'"),
        (
            {"rows": [{"user": None, "ad": 1, "clicked": 1, "ts": "2026-01-01T00:00:00"}]},
            "'user' is null at event row 0; .*leave out such events",
        ),
        ({"rows": [{"user": 1, "ad": 1, "clicked": 1, "ts": "soon"}]}, "'ts'"),
        ({"rows": [{"user": 1, "ad": 1, "clicked": 1, "ts": 5}]}, "'ts'"),
        ({"rows": [{"user": "a", "ad": 1, "clicked": 1, "ts": "2026-01-01T00:00:00"}]}, "'user'"),
        (b'{"rows": [{"user": 1e400, "ad": 1, "clicked": 1, "ts": "2026-01-01T00:00:00"}]}', "the body is not JSON"),
        ({"rows": [], "view": 3}, "view must be the name"),
        ({"rows": [{"a": 1}], "view": "clicks"}, "no history takes events from view 'clicks'"),
        ({"rows": [], "position": 3}, "position must be a text"),
        ({"rows": [], "position": "x" * 5000}, "position must be a text of at most 4,096"),
        (b'{"rows": [{"user": 1, "user": 2}]}', "twice"),
    ],
)
def test_events_that_are_wrong_are_refused_and_change_nothing(place: Path, sent: Any, message: str) -> None:
    routes = routes_of(place)
    with pytest.raises((DataError, Refused), match=message):
        answered(routes, "POST", sent)
    assert answered(routes, "GET")["taken"] == HALF


def test_the_client_is_told_to_send_a_value_instead_of_null(place: Path) -> None:
    """Also where it is a key or a time of a history, and the message names rows of the request."""
    served = served_of(place, "ffm")
    good = table().slice(HALF, 1).to_pylist()[0]
    context = {"user": good["user"], "ts": good["ts"].isoformat(), "device": "ios"}
    ads = [{"ad": 1, "price": 0.5}, {"ad": 2, "price": 0.5}]
    for sent, message in (
        (body(context, [ads[0], {**ads[1], "ad": None}]), "'ad' is null at request row 1; .*give every row a value"),
        (
            body(context, [ads[0], {**ads[1], "price": None}]),
            "'price' is null.*; give every row a value.*request row 1",
        ),
        (body({**context, "ts": None}, ads), "'ts' is null at request row 0; .*give every row a value"),
        (body({**context, "device": None}, ads), "'device' is null.*; give every row a value.*the request's context"),
        (
            body({**context, "ts": "2001-01-01T00:00:00"}, ads),
            "2001-01-01T00:00:00.000000 at request row 0 is more than",
        ),
    ):
        with pytest.raises(DataError, match=message):
            served.score(served.reader.from_json(sent))


def test_a_server_without_a_state_takes_no_events_and_other_methods_are_refused(place: Path) -> None:
    routes = routes_of(place)
    with pytest.raises(Refused, match="accepts POST and GET, not PUT"):
        answered(routes, "PUT")
    served = open_served(ModelFolder.open(place / "ffm"), allow_views=[str(place)])
    bare = Routes(Service(served, "ads", ScoringQueue(0, 64, 60.0), Limits()))
    with pytest.raises(Refused, match=r"keeps no state of histories.*--state FILE"):
        answered(bare, "GET")
    with pytest.raises(Refused, match="requires a token"):
        routes_of(place, b"secret").head("POST", "/v1/events", {})


def test_the_events_are_described(place: Path) -> None:
    from ctrbox.serve.openapi import docs, openapi

    routes = routes_of(place)
    described = openapi(routes.service)
    assert {"post", "get"} == set(described["paths"]["/v1/events"])
    example = described["paths"]["/v1/events"]["post"]["requestBody"]["content"]["application/json"]["example"]
    assert set(example["rows"][0]) == {"user", "ad", "ts", "clicked"}
    assert "/v1/events" in docs(described)


def test_the_state_is_saved_when_it_changed_and_a_failed_save_keeps_the_file(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "folder" / "my.past"
    file.parent.mkdir()
    file.write_bytes((place / "half.past").read_bytes())
    past = ServedPast(plan_of(place / "log.parquet"), file)
    writer = StateWriter(past, 1e6)
    before = file.stat().st_mtime_ns
    writer.save()
    assert file.stat().st_mtime_ns == before
    past.observe(orjson.dumps({"rows": events_of(table().slice(HALF, 10)), "position": "offset 1010"}))
    file.unlink()
    file.mkdir()  # where no file can be written
    writer.save()
    file.rmdir()
    writer.start()
    writer.close()
    again = ServedPast(plan_of(place / "log.parquet"), file)
    assert (again.histories.position, again.histories.taken) == ("offset 1010", HALF + 10)


def test_a_state_that_holds_a_part_of_a_call_is_not_saved_and_says_so(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "state.past"
    shutil.copyfile(place / "half.past", file)
    past = served_of(place, "ffm", file).past
    writer = StateWriter(past, 60)
    past.observe(orjson.dumps({"rows": events_of(table().slice(HALF, 10)), "position": "offset 1010"}))
    writer.save()
    saved = file.read_bytes()
    past.observe(orjson.dumps({"rows": events_of(table().slice(HALF + 10, 10)), "position": "offset 1020"}))
    state = past.histories.states[-1]  # all others are fed when this one fails
    with monkeypatch.context() as patched:
        patched.setattr(type(state), "passed", failing(state, type(state).passed))
        with pytest.raises(
            Refused,
            match="the state of histories takes no events until the server is restarted, "
            "because a call failed after a part of its events was added",
        ) as refused:
            past.observe(orjson.dumps({"rows": events_of(table().slice(HALF + 20, 10)), "position": "offset 1030"}))
    assert refused.value.status == 500
    for more in (events_of(table().slice(HALF + 20, 10)), []):
        with pytest.raises(Refused, match="takes no events until"):
            past.observe(orjson.dumps({"rows": more, "position": "offset 1040"}))
    assert "takes no events until" in past.behind()
    writer.close()
    with pytest.raises(PlanError, match="can no longer be used"):
        past.histories.save(file)
    assert file.read_bytes() == saved  # whole, so that a restart feeds each event once


def failing(last: Any, passed: Any) -> Any:
    """Fail for one state alone, with an error that has no words."""

    def call(self: Any, *arguments: Any) -> Any:
        if self is last:
            raise MemoryError
        return passed(self, *arguments)

    return call


def test_an_event_with_a_wrong_clock_does_not_make_the_requests_of_now_too_old(place: Path) -> None:
    served = served_of(place, "ffm")
    now = np.datetime64("now", "us")
    ahead = [str(now + np.timedelta64(seconds, "s")) for seconds in (30, 90, 3_000)]
    rows = [{"user": 1, "ad": 1, "clicked": 1, "ts": time} for time in ahead]
    found = served.past.observe(orjson.dumps({"rows": rows}))
    assert (found["taken"], found["future"]) == (1, 2)
    sent = body({"user": 1, "ts": str(now), "device": "ios"}, [{"ad": 1, "price": 0.5}])
    assert len(served.score(served.reader.from_json(sent))[0]) == 1


def test_columns_of_events_that_nothing_reads_cost_nothing_and_are_not_looked_at(place: Path) -> None:
    """Strangers may send 60,000 of them, lists in lists, and values of several types."""
    past = served_of(place, "ffm").past
    rows = events_of(table().slice(HALF, 2))
    nested: Any = 1
    for _ in range(500):
        nested = {"a": nested}
    began = time.process_time()
    for extra in ([nested, nested], [2**64 - 1, -1], [1, "x"], [None, {"a": [1]}]):
        sent = [{**row, "other": value} for row, value in zip(rows, extra, strict=True)]
        assert past.observe(json.dumps({"rows": sent}).encode())["taken"] == 2
    assert past.observe(json.dumps({"rows": [rows[0], {**rows[1], **{f"c{k}": k for k in range(60_000)}}]}).encode())[
        "taken"
    ]
    assert time.process_time() - began < 2


def test_a_full_disk_lets_events_wait(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    past = served_of(place, "ffm").past

    def full() -> None:
        raise WriteError("cannot write past events to /mnt/ssd: No space left on device")

    monkeypatch.setattr(past.histories.states[0], "check_budget", full)
    with pytest.raises(Refused, match="the server cannot store these events now") as refused:
        past.observe(orjson.dumps({"rows": events_of(table().slice(HALF, 1))}))
    assert refused.value.status == 503
    assert past.histories.taken == HALF


def test_requests_and_events_may_come_from_many_threads(place: Path) -> None:
    served = served_of(place, "ffm")
    data = table()
    failures: list[BaseException] = []
    last = data.slice(1_999, 1).to_pylist()[0]

    def ask() -> None:
        try:
            for _ in range(25):
                scores, _ = served.score(served.reader.from_json(request_of(last)))
                assert np.isfinite(scores).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for begin in range(HALF, 2_000, 50):
        served.past.histories.observe(data.slice(begin, 50))
    for thread in threads:
        thread.join()
    assert not failures
    whole = open_served(ModelFolder.open(place / "ffm"), allow_views=[str(place)], state=place / "half.past")
    whole.past.histories.observe(data.slice(HALF))
    expected, _ = whole.score(whole.reader.from_json(request_of(last)))
    assert served.score(served.reader.from_json(request_of(last)))[0].tolist() == expected.tolist()


def test_a_server_keeps_its_state_through_a_restart(place: Path, tmp_path: Path) -> None:
    state = tmp_path / "my.past"
    state.write_bytes((place / "half.past").read_bytes())
    row = table().slice(1_999, 1).to_pylist()[0]
    rows = events_of(table().slice(HALF, 900))
    options = ["--state", str(state), "--allow-views", str(place)]
    with running(place / "ffm", *options) as server:
        before = server.score(request_of(row)).json()["scores"]
        sent = httpx.post(f"{server.url}/v1/events", json={"rows": rows, "position": "offset 1900"}, timeout=30)
        assert sent.json()["taken"] == 900
        after = server.score(request_of(row)).json()["scores"]
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(30)
    assert before != after
    with running(place / "ffm", *options) as server:
        assert server.get("/v1/events").json()["position"] == "offset 1900"
        assert server.score(request_of(row)).json()["scores"] == after


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models whose histories read a joined view, which no feature reads, and their state of the first half of the log."""
    place = tmp_path_factory.mktemp("joined")
    pq.write_table(table(), place / "log.parquet")
    (place / "ads").mkdir()
    pq.write_table(pa.table({"ad": range(9), "brand": [ad % 3 for ad in range(9)]}), place / "ads" / "a.parquet")
    ads = cb.View(place / "ads", key="ad", name="ads")
    log = cb.View(place / "log.parquet", key="id", name="log").join(ads, on="ad").fill(brand=-1)
    log = log.with_history(
        seen=cb.history("brand", by="user", time="ts", last=4),
        n=cb.past(by="brand", time="ts").count(within="1h"),
    )
    features = cb.FeatureSet(
        label=col("clicked"), sparse={"user": col("user").key(), "seen": col("seen").key()}, dense={"n": "n"}
    )
    plan = cb.compile(log, features, device="cpu", threads=1)
    model = cb.models.DeepFM(plan.schema, dim=4, hidden=(8,))
    run = cb.Trainer(model, cb.MemoryTable(4)).fit(plan, batch_size=500, epochs=1, out=place / "run")
    create(place / "published", plan, run, context=("user", "ts", "device", "seen"))
    engine = cb.DeepFFM(
        plan.schema, k=4, hidden=(4,), bits=10, context=plan.features_of(("user", "ts", "device", "seen"))
    )
    engine.learn(next(iter(plan.batches(2_000))))
    create(place / "ffm", plan, engine, context=("user", "ts", "device", "seen"))
    state = plan.histories()
    state.observe(table().slice(0, HALF))
    state.save(place / "half.past")
    return place


@pytest.mark.parametrize("kind", ["run", "published", "ffm"])
def test_histories_read_the_new_rows_of_joined_views_after_a_refresh(joined: Path, tmp_path: Path, kind: str) -> None:
    shutil.copytree(joined, tmp_path / "world")
    place, data = tmp_path / "world", table()
    ads = {"ads": str(place / "ads")}

    def opened() -> Any:
        return open_served(
            ModelFolder.open(place / kind), allow_views=[str(joined)], views=ads, state=place / "half.past"
        )

    def scores(served: Any) -> list[float]:
        row = data.slice(HALF + 120, 1).to_pylist()[0]
        return [served.score(served.reader.from_json(request_of(row, 9)))[0].tolist() for _ in range(2)][1]

    served = opened()
    assert served.views.names == served.views.refreshable == ["ads"]
    before = scores(served)
    file = place / "ads" / "a.parquet"
    pq.write_table(pa.table({"ad": range(9), "brand": [ad // 3 for ad in range(9)]}), file.with_name("_a"))
    file.with_name("_a").rename(file)
    assert scores(served) == before
    refresher = ViewRefresher(served)
    refresher.ask()
    assert refresher.look()
    assert (refresher.refreshed, refresher.refused) == (1, 0)
    request = served.reader.from_json(request_of(data.slice(HALF + 120, 1).to_pylist()[0]))
    assert served.answer(request).views == b"ads=2"
    now = opened()
    # Keys of requests are those of the new rows; events that were fed before keep theirs.
    assert scores(served) == scores(now) != before
    for mine in (served, now):
        mine.past.histories.observe(data.slice(HALF, 120))
    assert scores(served) == scores(now)
    # A state that is read again keeps the rows of the joined views.
    shutil.copy(place / "half.past", place / "other.past")
    (place / "other.past").rename(place / "half.past")
    assert served.past.renew()
    assert scores(served) == scores(opened())
