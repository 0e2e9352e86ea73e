"""Pre-rank in the server: a user and many candidates in, the best out, and these scored by the model of the server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

import ctrbox as cb
from ctrbox import col
from ctrbox.cli.main import app
from ctrbox.errors import CtrboxError, DataError, PlanError
from ctrbox.files.sealed_json import sealed
from ctrbox.predict.prerank_folder import PrerankFolder, _described
from ctrbox.serve.http_head import Headers
from ctrbox.serve.model_folder import create
from ctrbox.serve.refused_request import Refused
from ctrbox.serve.routes import Answer, Routes, Scoring
from ctrbox.serve.server import Server, Settings
from ctrbox.serve.service import Limits, Service
from tests.train.worlds import FAST, checkerboard

ADS = 60  # 40 of them are in the log
CONTEXT = {"user": 3, "device": "ios"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log joined with a view of ads, a run of a TwoTower model, the vectors of all ads, and a DeepFM that ranks."""
    place = tmp_path_factory.mktemp("prerank")
    pq.write_table(checkerboard(2000), place / "log.parquet")
    brands = [f"b{k % 7}" for k in range(ADS)]
    pq.write_table(
        pa.table({"ad": np.arange(ADS), "brand": brands, "floor": np.arange(ADS) / 8}), place / "ads.parquet"
    )
    ads = cb.View(str(place / "ads.parquet"), key="ad", name="ads").fill(brand="none", floor=0.0)
    log = cb.View(str(place / "log.parquet"), key="id").fill(tags=[]).join(ads, on="ad")
    sparse = {name: col(name) for name in ("user", "device", "ad", "brand", "tags")}
    plan = cb.compile(log, cb.FeatureSet(label=col("clicked"), sparse=sparse), device="cpu", threads=1)
    torch.manual_seed(0)
    towers = cb.models.TwoTower(plan.schema, 4, user=["user", "device"], ad=["ad", "brand"], vector=20, hidden=(8,))
    table = cb.MemoryTable(4, optimizer=cb.Adagrad(lr=0.1, initial=0.1), init=0.3)
    run = cb.Trainer(towers, table).fit(plan, out=place / "towers", **FAST)
    cb.tables.export_prerank(run, "ads", place / "ads.prerank", columns=["floor"])
    ranking = cb.models.DeepFM(plan.schema, dim=4, hidden=(8,))
    ranked = cb.Trainer(ranking, cb.MemoryTable(4, init=0.3)).fit(plan, out=place / "ranking", **FAST)
    create(place / "model", plan, ranked, context=["user", "device", "tags"])
    return place


def opened(place: Path, model: str = "towers", **options: Any) -> Service:
    other = {} if model == "towers" else {"prerank_run": place / "towers"}
    return Server.open(place / model, Settings(**{"prerank": place / "ads.prerank", **other, **options})).service


@pytest.fixture(scope="module")
def service(place: Path) -> Service:
    return opened(place)


@pytest.fixture(scope="module")
def both(place: Path) -> Service:
    return opened(place, "model")


def asked(service: Service, route: str, body: Any) -> dict[str, Any]:
    text = body if isinstance(body, bytes) else orjson.dumps(body)
    found = Routes(service).answer("POST", f"/v1/{route}", Headers(), text)
    assert isinstance(found, Scoring)
    assert found.route == route
    answer = found.work()
    assert isinstance(answer, Answer)
    assert answer.status == 200
    return json.loads(answer.body)


def every_ad(service: Service, context: dict[str, Any] = CONTEXT) -> list[tuple[float, int]]:
    """The slow twin: the logit of each ad by the whole model, without its bias; best first, equal ones by the ad's row."""
    assert service.prerank is not None
    model, plan = service.prerank.users.click_model, service.served.run.plan  # type: ignore[attr-defined]
    batch = plan.run([{**context, "tags": [], "ad": ad} for ad in range(ADS)])
    logits = model.uncalibrated(model.look(batch)) - model.model.bias.item()
    return sorted((-float(logit), ad) for ad, logit in enumerate(logits))


def test_all_ads_of_the_view_are_ranked_also_those_that_the_log_never_had(service: Service) -> None:
    found = asked(service, "prerank", {"context": CONTEXT, "k": ADS + 5})
    expected = every_ad(service)
    assert sorted(found["candidates"]["ad"]) == list(range(ADS))
    assert found["index"] == "exact"
    assert np.allclose(found["scores"], [-score for score, _ in expected], atol=1e-5)
    by_ad = {ad: -score for score, ad in expected}
    assert np.allclose([by_ad[ad] for ad in found["candidates"]["ad"]], found["scores"], atol=1e-5)
    assert found["candidates"]["floor"] == [ad / 8 for ad in found["candidates"]["ad"]]


@pytest.mark.parametrize("columns", [False, True])
def test_given_candidates_have_the_scores_of_the_whole_view_and_unknown_ones_are_counted(
    service: Service, columns: bool
) -> None:
    whole = asked(service, "prerank", {"context": CONTEXT, "k": ADS})
    score = dict(zip(whole["candidates"]["ad"], whole["scores"], strict=True))
    ads = [7, 1000, 50, 7, 3, 12, 59, -1]
    given = {"ad": ads} if columns else [{"ad": ad} for ad in ads]
    found = asked(service, "prerank", {"context": CONTEXT, "candidates": given, "k": 4})
    plain = sorted((-score[ad], at) for at, ad in enumerate(ads) if ad in score)[:4]
    assert found == {"positions": [at for _, at in plain], "scores": [-s for s, _ in plain], "missing": 2}
    assert asked(service, "prerank", {"context": CONTEXT, "candidates": []}) == {
        "positions": [],
        "scores": [],
        "missing": 0,
    }


def test_a_cascade_scores_the_best_as_the_score_route_does(both: Service, service: Service) -> None:
    context = {**CONTEXT, "tags": ["t1"]}
    first = asked(both, "prerank", {"context": CONTEXT, "k": 9})
    assert first == asked(service, "prerank", {"context": CONTEXT, "k": 9})
    found = asked(both, "cascade", {"context": context, "k": 9})
    assert found["candidates"] == first["candidates"]
    assert found["prerank"] == first["scores"]
    ads = [{"ad": ad} for ad in first["candidates"]["ad"]]
    plain = asked(both, "score", {"context": context, "candidates": ads})
    assert found["scores"] == plain["scores"]
    assert found["version"] == plain["version"] == 1
    assert found["ranking"] == np.argsort(-np.array(plain["scores"]), kind="stable").tolist()
    for given in (ads[::-1], {"ad": [row["ad"] for row in ads[::-1]]}):
        again = asked(both, "cascade", {"context": context, "candidates": given, "k": 3})
        assert again["positions"] == [8, 7, 6]
        assert again["scores"] == plain["scores"][:3]
    assert asked(both, "cascade", {"context": context, "candidates": []})["scores"] == []


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"kk": 1}, 400, "unknown member 'kk'; nearest: 'k'"),
        ({"objects": {}}, 400, "unknown member 'objects'"),
        ({"k": 0}, 400, "k must be a whole number of at least 1, got 0"),
        ({"k": True}, 400, "k must be a whole number"),
        ({"k": 1e2}, 400, "k must be a whole number"),
        ({"k": 100_001}, 413, "k is 100,001, but this server returns at most 100,000"),
        ({"exact": 1}, 400, "exact must be true or false, got 1"),
        ({"candidates": {"ad": [0] * 100_001}}, 413, "has 100,001 candidates; this server pre-ranks at most 100,000"),
        ({"candidates": None}, 400, "candidates must be a list of objects"),
        ({"candidates": [{"ad": "1"}]}, 400, "'ad'"),
        ({"candidates": [{"add": 1}]}, 400, "nearest: 'ad'"),
        ({"candidates": [{"ad": 1, "user": 3}]}, 400, "belongs to the request's context"),
        ({"candidates": {"ad": 5}}, 400, "column 'ad' must be a list"),
        ({"context": {"user": 3}}, 400, "context lacks column 'device'"),
        ({"context": {**CONTEXT, "ad": 3}}, 400, "belongs to the request's candidates"),
        ({"context": {**CONTEXT, "usr": 3}}, 400, "nearest: 'user'"),
        ({"context": [3]}, 400, "context must be an object"),
        ({"context": None}, 400, "context must be an object"),
    ],
)
def test_wrong_requests_are_refused(service: Service, change: dict[str, Any], status: int, message: str) -> None:
    with pytest.raises(Refused, match=message) as refused:
        asked(service, "prerank", {"context": CONTEXT, **change})
    assert refused.value.status == status


def test_what_is_no_object_or_has_a_name_twice_is_refused(both: Service) -> None:
    for body in (b"", b"[]", b"7", b"{", b'{"context":{},"context":{}}', b"\xff", b'{"k":' + b"[" * 2000):
        for route in ("prerank", "cascade"):
            with pytest.raises(CtrboxError):
                asked(both, route, body)
    with pytest.raises(Refused, match="scores at most 1,000 candidates") as refused:
        asked(both, "cascade", {"context": {**CONTEXT, "tags": []}, "k": 1001})
    assert refused.value.status == 413
    with pytest.raises(Refused, match="context lacks column 'tags'"):
        asked(both, "cascade", {"context": CONTEXT})


def test_a_server_without_vectors_says_how_to_start_it(place: Path) -> None:
    plain = Server.open(place / "towers", Settings()).service
    for route in ("prerank", "cascade"):
        with pytest.raises(Refused, match="start it with --prerank FOLDER") as refused:
            asked(plain, route, {"context": CONTEXT})
        assert refused.value.status == 404


def test_requests_are_counted_by_route_with_their_candidates(place: Path) -> None:
    service = opened(place)
    asked(service, "prerank", {"context": CONTEXT, "candidates": [{"ad": 1}, {"ad": 99}]})
    asked(service, "prerank", {"context": CONTEXT})
    service.metrics.add("prerank", 200, 0.001)
    text = service.prometheus()
    for line in (
        f"ctrbox_prerank_candidates_total {ADS + 2}",
        "ctrbox_prerank_missing_total 1",
        f"ctrbox_prerank_vectors {ADS}",
        'ctrbox_requests_total{route="prerank",code="200"} 1',
    ):
        assert line in text.splitlines()
    assert service.live()["prerank"] == {"vectors": ADS, "index": "exact", "recall": None, "recall_at": 0}
    from ctrbox.serve.openapi import openapi

    assert {"/v1/prerank", "/v1/cascade"} <= openapi(service)["paths"].keys()


def test_an_index_answers_with_exact_scores_and_its_recall_is_measured(place: Path, tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="the extra prerank brings faiss")
    run = cb.Run.load(place / "towers")
    folder = cb.tables.export_prerank(run, "ads", tmp_path / "hnsw", index="hnsw", recall_at=10)
    assert folder.recall is not None
    assert 0.9 <= folder.recall <= 1
    service = opened(place, prerank=tmp_path / "hnsw")
    found = asked(service, "prerank", {"context": CONTEXT, "k": 10})
    exact = asked(service, "prerank", {"context": CONTEXT, "k": 10, "exact": True})
    assert (found.pop("index"), exact.pop("index")) == ("hnsw", "exact")
    score = dict(zip(exact["candidates"]["ad"], exact["scores"], strict=True))
    assert all(score.get(ad, s) == s for ad, s in zip(found["candidates"]["ad"], found["scores"], strict=True))
    assert f"ctrbox_prerank_index_recall {folder.recall:.12g}" in service.prometheus().splitlines()
    assert len(asked(service, "prerank", {"context": CONTEXT, "k": 1000})["scores"]) <= ADS


def test_vectors_of_another_training_and_damaged_files_are_refused(place: Path, tmp_path: Path) -> None:
    run = cb.Run.load(place / "towers")
    for name in ("vectors.ctrvec", "ads.arrow", "prerank.json"):
        folder = tmp_path / name.replace(".", "_")
        shutil.copytree(place / "ads.prerank", folder)
        data = bytearray((folder / name).read_bytes())
        data[len(data) // 2] ^= 1
        (folder / name).write_bytes(data)
        with pytest.raises(DataError, match="damaged"):
            PrerankFolder.open(folder, run)
        (folder / name).unlink()
        with pytest.raises(CtrboxError):
            PrerankFolder.open(folder, run)
    with torch.no_grad():
        run.model.towers["user"][-1].bias[0] += 1
    told = r"were made by another training run than the served one, or with another plan; make the folder again from this run"
    with pytest.raises(DataError, match=told):
        PrerankFolder.open(place / "ads.prerank", run)
    with pytest.raises(PlanError, match=r"only a run of cb\.models\.TwoTower"):
        opened(place, "ranking", prerank_run=place / "ranking")
    with pytest.raises(PlanError, match=r"published model, whose versions change.*--prerank-run RUN"):
        opened(place, "model", prerank_run=None)
    with pytest.raises(PlanError, match="--prerank-run needs the vectors of the ads: --prerank FOLDER"):
        opened(place, prerank=None, prerank_run=place / "towers")


def test_what_cannot_be_exported_is_refused_and_nothing_is_written(place: Path, tmp_path: Path) -> None:
    run, out = cb.Run.load(place / "towers"), tmp_path / "out"
    ad = {"ad": [1, 2], "brand": ["x", "y"]}
    for view, message in (
        ("add", "joins no view 'add'; nearest: 'ads'"),
        (cb.View(pa.table({"add": [1]}), name="v"), "view 'v' has no column 'ad'.*nearest: 'add'"),
        (cb.View(pa.table({"ad": ["1"]}), name="v"), "string in view 'v' but int64 in the log"),
        (cb.View(pa.table({"ad": [1, 2, 1]}), name="v"), "rows 0 and 2 of view 'v' have the same 'ad'"),
        (cb.View(pa.table({"ad": [1, None]}), name="v"), "column 'ad' is null in row 1 of view 'v'"),
        (cb.View(pa.table({"ad": pa.array([], pa.int64())}), name="v"), "has no rows"),
    ):
        with pytest.raises((PlanError, DataError), match=message):
            cb.tables.export_prerank(run, view, out)
    with pytest.raises(PlanError, match="has no column 'flor'; nearest: 'floor'"):
        cb.tables.export_prerank(run, "ads", out, columns=["flor"])
    with pytest.raises(PlanError, match="index must be exact or hnsw"):
        cb.tables.export_prerank(run, cb.View(pa.table(ad)), out, index="ivf")
    with pytest.raises(PlanError, match="pass only one of them"):
        cb.tables.export_vectors(run, "ad", out, view="ads", plan=run.plan)
    assert list(tmp_path.iterdir()) == []


def test_every_ad_of_a_view_has_the_vector_that_the_log_gives_it(place: Path, tmp_path: Path) -> None:
    run = cb.Run.load(place / "towers")
    log = cb.tables.export_vectors(run, "ad", tmp_path / "log.ctrvec")
    view = cb.tables.export_vectors(run, "ad", tmp_path / "view.ctrvec", view="ads")
    assert (len(log), len(view)) == (40, ADS)
    assert np.array_equal(log.read(log.find(log.keys)), view.read(view.find(log.keys)))


def test_the_command_writes_the_folder(place: Path, tmp_path: Path) -> None:
    arguments = ["vectors", "prerank", str(place / "towers"), "ads", "-o", str(tmp_path / "out"), "--columns", "floor"]
    found = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert found.exit_code == 0
    told = json.loads(found.stdout)
    assert (told["vectors"], told["width"], told["columns"]) == (ADS, 20, ["ad", "floor"])
    assert (tmp_path / "out" / "vectors.ctrvec").read_bytes() == (place / "ads.prerank" / "vectors.ctrvec").read_bytes()


def test_a_token_and_the_size_of_a_body_hold_for_pre_rank_as_for_scores(place: Path) -> None:
    service = opened(place, token="secret", limits=Limits(body_bytes=1000))
    routes = Routes(service)
    for path in ("/v1/prerank", "/v1/cascade"):
        with pytest.raises(Refused, match="requires a token"):
            routes.head("POST", path, Headers())
        with pytest.raises(Refused, match="accepts POST"):
            routes.answer("GET", path, Headers(), b"")


def test_ads_that_are_cut_off_while_the_server_runs_keep_their_names(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "ads.prerank", tmp_path / "ads.prerank")
    service = opened(place, prerank=tmp_path / "ads.prerank")
    first = asked(service, "prerank", {"context": CONTEXT, "k": 9})
    with (tmp_path / "ads.prerank" / "ads.arrow").open("r+b") as file:
        file.truncate(10)
    assert asked(service, "prerank", {"context": CONTEXT, "k": 9}) == first


def test_a_forged_table_of_ads_is_refused(place: Path, tmp_path: Path) -> None:
    """Its checksum fits, but an offset of a text points outside its characters."""
    shutil.copytree(place / "ads.prerank", tmp_path / "ads.prerank")
    path = tmp_path / "ads.prerank" / "ads.arrow"
    ads = feather.read_table(path, memory_map=False).append_column("title", pa.array(["x"] * ADS))
    feather.write_feather(ads, str(path), compression="uncompressed")
    offsets = np.arange(ADS + 1, dtype=np.int32)
    whole, changed = offsets.tobytes(), [*offsets[:-1].tolist(), 1 << 30]
    assert path.read_bytes().count(whole) == 1
    path.write_bytes(path.read_bytes().replace(whole, np.array(changed, np.int32).tobytes()))
    facts = json.loads((tmp_path / "ads.prerank" / "prerank.json").read_text())
    facts = {name: value for name, value in facts.items() if name != "seal"}
    facts["files"]["ads.arrow"] = _described(path)
    (tmp_path / "ads.prerank" / "prerank.json").write_text(sealed(facts))
    with pytest.raises(DataError, match=r"ads\.arrow is damaged"):
        opened(place, prerank=tmp_path / "ads.prerank")


def test_the_user_of_the_served_run_is_read_from_a_view_as_it_is_now(tmp_path: Path) -> None:
    def users(*segments: str) -> None:
        pq.write_table(pa.table({"user": range(4), "segment": segments}), tmp_path / "users.parquet")

    users("a", "b", "c", "d")
    rows = {"user": np.arange(64) % 4, "ad": np.arange(64) % 5, "clicked": np.arange(64) % 2}
    view = cb.View(str(tmp_path / "users.parquet"), key="user", name="users").fill(segment="none")
    log = cb.View(pa.table(rows), name="log").join(view, on="user")
    sparse = {name: col(name) for name in ("user", "segment", "ad")}
    plan = cb.compile(log, cb.FeatureSet(label=col("clicked"), sparse=sparse), device="cpu", threads=1)
    torch.manual_seed(0)
    towers = cb.models.TwoTower(plan.schema, 4, user=["segment"], ad=["ad"], vector=4, hidden=())
    run = cb.Trainer(towers, cb.MemoryTable(4, init=0.3)).fit(plan, out=tmp_path / "run", **FAST)
    cb.tables.export_prerank(run, cb.View(pa.table({"ad": range(5)}), name="ads"), tmp_path / "ads")
    options: dict[str, Any] = {"allow_views": [str(tmp_path)], "views": {"log": pa.table(rows)}}
    service = Server.open(tmp_path / "run", Settings(prerank=tmp_path / "ads", **options)).service
    before, other = (asked(service, "prerank", {"context": {"user": user}})["scores"] for user in (0, 1))
    users("b", "a", "c", "d")
    service.served.take_views(service.served.views.refreshed(["users"]))
    assert asked(service, "prerank", {"context": {"user": 0}})["scores"] == other != before
    assert service.prerank is not None
    assert [(join.view, join.keys, join.missed) for join in service.prerank.joins()] == [("users", 3, 0)]
    asked(service, "score", {"context": {"user": 0}, "candidates": [{"ad": 1}]})
    lines = [line.split(" ")[0] for line in service.prometheus().splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines))
    assert 'ctrbox_join_keys_total{view="users",on="user",found="yes"} 4\n' in service.prometheus()
