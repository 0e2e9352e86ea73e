"""Serving images: published vectors, objects that come with a request, versions that are replaced whole."""

from __future__ import annotations

import copy
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest
import torch
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.utils import InferenceServerException

import ctrbox as cb
from ctrbox.errors import CtrboxError, DataError, PlanError
from ctrbox.predict.published_run import click_model_of
from ctrbox.publish.weight_file import Part, Weights, read_weights, write_weights
from ctrbox.publish.weights_of_models import CLICK_MODEL
from ctrbox.serve.metrics import Metrics
from ctrbox.serve.model_folder import ModelFolder, create
from ctrbox.serve.objects_in_requests import MOST_OBJECTS
from ctrbox.serve.reload import Reloader
from ctrbox.serve.served_click_model import ServedModel
from ctrbox.serve.served_models import open_served
from ctrbox.train.learn_batch import Learner
from tests.serve.image_worlds import CONTEXT, KEY, WIDTH, ImageWorld, fitted, make_world, unknown_images
from tests.serve.running import inputs, running

NEW = 10**9  # no ad has this id


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> ImageWorld:
    return make_world(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def exact(world: ImageWorld) -> ModelFolder:
    return create(world.place / "exact", world.plan, world.run, context=CONTEXT, quantize=False)


@pytest.fixture
def served(exact: ModelFolder) -> ServedModel:
    return opened(exact)


def opened(folder: ModelFolder, **options: Any) -> ServedModel:
    made = open_served(folder, **options)
    assert isinstance(made, ServedModel)
    return made


def ask(served: ServedModel, body: dict[str, Any]) -> np.ndarray:
    return served.score(served.reader.from_json(orjson.dumps(body)))[0]


def seeing_all(world: ImageWorld) -> Learner:
    """The run with a Model Server that has every image."""
    file = world.place / "all.ctrvec"
    if not file.exists():
        cb.tables.write_vectors(file, pq.read_table(world.place / "data" / "images"), key=KEY, vector="image")
    sources = world.run.learner.sources
    server = next(s.embedder for s in sources if isinstance(s.embedder, cb.tables.ModelServer))
    every = cb.tables.ModelServer(file, copy.deepcopy(server.submodel))
    tables = {n: every if s.embedder is server else s.embedder for s in sources for n in s.fields}
    learner = Learner(world.run.model, world.plan.schema, tables)
    learner.shift = world.run.learner.shift
    return learner


# ---- the same scores


def test_served_scores_are_the_runs(world: ImageWorld, served: ServedModel) -> None:
    for begin in (0, 40, 500, 900):
        body, rows = world.request(begin)
        assert np.abs(ask(served, body) - world.run.predict(rows)).max() < 1e-6
        assert np.array_equal(ask(served, body), ask(served, body))  # from the cache
    assert served.cache.counts.hits >= 4
    assert served.version == 1


def test_codes_change_scores_by_little(world: ImageWorld, tmp_path: Path) -> None:
    folder = create(tmp_path / "codes", world.plan, world.run, context=CONTEXT)
    served, (body, rows) = opened(folder), world.request(100)
    assert 0 < np.abs(ask(served, body) - world.run.predict(rows)).max() < 1e-3
    whole = (world.place / "exact" / "weights" / "versions" / "00000001.fbw").stat().st_size
    assert folder.published.file().stat().st_size < 0.75 * whole


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ads=st.lists(st.integers(-5, 200) | st.integers(-(2**63), 2**63 - 1), max_size=12),
    user=st.integers(-3, 300) | st.integers(-(2**63), 2**63 - 1),
    device=st.text(max_size=4),
)
def test_whatever_comes_is_scored_as_whole_rows_are(
    served: ServedModel, ads: list[int], user: int, device: str
) -> None:
    body = {
        "context": {"ts": 1_700_000_000_000_000, "user_id": user, "device": device},
        "candidates": [{"ad_id": ad, "position": 1} for ad in ads],
    }
    request = served.reader.from_json(orjson.dumps(body))
    scores, _ = served.score(request)
    part = served.split.context(request.context())
    batch = served.split.candidates(part.frame, request.candidates)
    expected = served.live.click_model.predict(served.split.joined(part, batch)) if ads else np.zeros(0)
    assert scores.shape == (len(ads),)
    assert np.allclose(scores, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["LR", "DeepFM", "DIN", "DCNv2", "YouTubeDNN", "XDeepFM", "WideDeep"])
def test_other_models_are_published_whole(world: ImageWorld, tmp_path: Path, name: str) -> None:
    options = {"target": "ad_image", "history": "behavior"} if name == "DIN" else {}
    model = cb.models.MODELS[name](world.plan.schema, **({} if name == "LR" else {"dim": 4}), **options)
    run = cb.Trainer(model, threads=1).fit(world.plan, batch_size=500, epochs=1, limit=1000)
    served = opened(create(tmp_path / "model", world.plan, run, context=CONTEXT, quantize=False))
    body, rows = world.request(300, 20)
    assert np.abs(ask(served, body) - run.predict(rows)).max() < 1e-6
    assert served.objects()["vectors"] == 0
    with pytest.raises(DataError, match="it takes none"):
        ask(served, {**body, "objects": {"ad_image": {"1": [0.0] * WIDTH}}})


# ---- objects that come with requests


def test_an_unseen_image_is_embedded_and_remembered(world: ImageWorld, served: ServedModel) -> None:
    unknown = unknown_images(world)
    ads = [*list(unknown)[:5], 1, 2, 3]
    body, rows = world.request(0, len(ads), ad_id=ads)
    blind = ask(served, body)
    assert served.objects()["missing"] >= 5
    assert np.abs(blind - world.run.predict(rows)).max() < 1e-6  # zero vectors there, too
    objects = {"ad_image": {str(ad): unknown[ad].tolist() for ad in ads[:5]}}
    expected = seeing_all(world).predict(world.plan.run(rows))
    seen = ask(served, {**body, "objects": objects})
    assert np.abs(seen - expected).max() < 1e-6
    assert np.abs(seen - blind).max() > 1e-5
    counted = served.objects()
    assert (counted["embedded"], counted["remembered"]) == (5, 5)
    assert np.array_equal(ask(served, body), seen)  # not sent again
    assert np.array_equal(ask(served, {**body, "objects": objects}), seen)  # sent again: not computed again
    assert served.objects()["embedded"] == 5


def test_images_of_the_behavior_count_at_once_though_the_context_is_cached(world: ImageWorld) -> None:
    unknown = unknown_images(world)
    users = pq.read_table(world.place / "data" / "users", columns=["user_id", "behavior"]).to_pylist()
    user, _ = next(
        (u["user_id"], ad) for u in users for ad in unknown if str(ad) in (u["behavior"] or "").split("|")[-30:]
    )
    served = opened(ModelFolder.open(world.place / "exact"))
    body, rows = world.request(0, 10, user_id=[user] * 10)
    blind = ask(served, body)
    assert np.array_equal(blind, ask(served, body))
    sent = {**body, "objects": {"behavior": {str(a): v.tolist() for a, v in unknown.items()}}}
    seen = ask(served, sent)
    assert not np.array_equal(seen, blind)
    assert np.array_equal(ask(served, body), seen)
    assert np.abs(seen - seeing_all(world).predict(world.plan.run(rows))).max() < 1e-6


def test_published_vectors_come_first_and_a_requests_own_object_before_others(
    world: ImageWorld, served: ServedModel
) -> None:
    known = pq.read_table(world.place / "data" / "images", columns=["ad_id"])["ad_id"][0].as_py()
    body, _ = world.request(0, 3, ad_id=[known, NEW, NEW + 1])
    image = np.linspace(-1, 1, WIDTH)
    one = ask(served, {**body, "objects": {"ad_image": {str(known): image.tolist(), str(NEW): image.tolist()}}})
    plain = ask(served, body)
    assert one[0] == plain[0]  # it has a published vector
    assert one[1] == plain[1]  # remembered
    other = ask(served, {**body, "objects": {"ad_image": {str(NEW): (-image).tolist()}}})
    assert other[1] != one[1]
    assert served.objects()["embedded"] == 2


def test_what_is_remembered_is_bounded(world: ImageWorld, served: ServedModel) -> None:
    table = served.live.scorer.tables["ad_image"]
    table.kept = 3
    for k in range(6):
        body, _ = world.request(0, 1, ad_id=[NEW + k])
        ask(served, {**body, "objects": {"ad_image": {str(NEW + k): [float(k)] * WIDTH}}})
    assert served.objects() | {"vectors": 0} == {"vectors": 0, "missing": 0, "embedded": 6, "remembered": 3}


@pytest.mark.parametrize(
    ("objects", "words"),
    [
        ([], "must be a JSON object with one entry per field"),
        ({"ad_image": []}, "must be a JSON object that maps ids to lists"),
        ({"ad_imag": {"1": [0.0] * WIDTH}}, "nearest: 'ad_image'"),
        ({"user": {"1": [0.0] * WIDTH}}, "does not compute vectors for 'user'"),
        ({"ad_image": {"1": [0.0] * (WIDTH - 1)}}, f"has 15 numbers; expected {WIDTH}"),
        ({"ad_image": {"1": [0.0] * (WIDTH + 1)}}, f"has 17 numbers; expected {WIDTH}"),
        ({"ad_image": {"1": []}}, f"has 0 numbers; expected {WIDTH}"),
        ({"ad_image": {"1": 7}}, "must be a list of 16 numbers"),
        ({"ad_image": {"1": None}}, "must be a list of 16 numbers"),
        ({"ad_image": {"1": [True] * WIDTH}}, "must be a list of 16 numbers"),
        ({"ad_image": {"1": ["0"] * WIDTH}}, "must be a list of 16 numbers"),
        ({"ad_image": {"1": [None] * WIDTH}}, "must be a list of 16 numbers"),
        ({"ad_image": {"1": [[0.0]] * WIDTH}}, "must be a list of 16 numbers"),
        ({"ad_image": {"1": [1e39] * WIDTH}}, "not finite as float32"),
        ({"ad_image": {"1": [3e38] * WIDTH}}, "not finite"),
        ({"ad_image": {str(NEW + k): [0.0] * WIDTH for k in range(MOST_OBJECTS + 1)}}, "at most 64"),
        ({"ad_image": {str(NEW): [0.0] * WIDTH}, "behavior": {str(NEW): [1.0] * WIDTH}}, "occurs twice"),
    ],
)
def test_objects_that_are_none_are_refused_and_nothing_is_remembered(
    world: ImageWorld, served: ServedModel, objects: Any, words: str
) -> None:
    body, _ = world.request(0, 2, ad_id=[1, NEW])
    if isinstance(objects, dict) and isinstance(objects.get("ad_image"), dict) and "1" in objects["ad_image"]:
        objects = {"ad_image": {str(NEW): objects["ad_image"]["1"]}}
    with pytest.raises(CtrboxError, match=words):
        ask(served, {**body, "objects": objects})
    assert served.objects()["remembered"] == 0


@pytest.mark.parametrize("text", ["-10000000000000000000", "0" * 30 + "9" * 30, "0" * 5000 + "1", "9" * 30, "-", ""])
def test_an_id_beyond_64_bits_is_refused(served: ServedModel, text: str) -> None:
    keys = copy.copy(served.keys)
    keys.plain = {"number": ("n", "i"), "key": ("n", "")}
    for field in ("number", "key"):
        with pytest.raises(DataError, match="not a whole number from -2"):
            keys.of(field, [text])
        assert len(keys.of(field, [str(-(2**63)), str(2**63 - 1)])) == 2


def test_a_name_of_a_megabyte_is_refused_in_few_words(world: ImageWorld, served: ServedModel) -> None:
    body, _ = world.request(0, 1)
    with pytest.raises(DataError, match="does not compute vectors for") as met:
        ask(served, {**body, "objects": {"ad_image" * 100_000: {"1": [0.0] * WIDTH}}})
    assert len(str(met.value)) < 500


def test_what_the_model_keeps_of_a_context_is_in_the_cache_s_bytes(world: ImageWorld, served: ServedModel) -> None:
    grown = 0
    for begin in range(12):
        served.cache.clear()
        body, _ = world.request(begin, 2, ad_id=[1, 2])
        one = {**body, "candidates": {name: values[:1] for name, values in body["candidates"].items()}}
        scores = ask(served, one)
        before = served.cache.bytes
        assert 0 < before < 50_000
        assert np.allclose(ask(served, body)[:1], scores, atol=1e-6)
        assert len(served.cache) == 1
        request = served.reader.from_json(orjson.dumps(body))
        met, size = served.cache.get(served.live.parts.cache_key(1) + request.key), served.cache.bytes
        (kept,) = met.found.kept.values()  # None where the user has clicked nothing
        grown += size > before
        assert served.cache.bytes == size == before + (kept.bytes if kept else 0)
        ask(served, body)
        assert served.cache.bytes == size
    assert grown > 3


def tensors_of(body: dict[str, Any], image: np.ndarray) -> dict[str, np.ndarray]:
    stamp = np.datetime64(body["context"]["ts"]).astype("datetime64[us]").astype(np.int64)
    return {
        "ts": np.array([stamp]),
        "user_id": np.array([body["context"]["user_id"]]),
        "device": np.array([(body["context"]["device"] or "none").encode()], object),
        "ad_id": np.array(body["candidates"]["ad_id"]),
        "position": np.array([-1 if p is None else p for p in body["candidates"]["position"]]),
        "objects.ad_image": image[None],
        "objects.ad_image.id": np.array([str(NEW).encode()], object),
    }


def test_tensors_carry_objects(world: ImageWorld, served: ServedModel) -> None:
    body, _ = world.request(0, 2, ad_id=[1, NEW])
    image = np.linspace(0, 1, WIDTH, dtype=np.float32)
    expected = ask(
        opened(ModelFolder.open(world.place / "exact")), {**body, "objects": {"ad_image": {str(NEW): image.tolist()}}}
    )
    tensors = tensors_of(body, image)
    assert np.array_equal(served.score(served.reader.from_tensors(tensors))[0], expected)
    for wrong in (
        {"objects.ad_image.id": None},
        {"objects.ad_image": image[None, :3]},
        {"objects.ad_image": image},
        {"objects.ad_image": image[None] * np.nan},
        {"objects.ad_image.id": np.array([b"1", b"2"], object)},
        {"objects.other": image[None]},
        {
            "objects.ad_image": np.stack([image, -image]),
            "objects.ad_image.id": np.array([str(NEW).encode()] * 2, object),
        },
    ):
        given = {n: t for n, t in {**tensors, **wrong}.items() if t is not None}
        with pytest.raises(CtrboxError):
            served.score(served.reader.from_tensors(given))


# ---- versions


@pytest.fixture(scope="module")
def later(world: ImageWorld) -> cb.Run:
    return fitted(world.place, world.plan, world.file, epochs=2).run


def test_a_patch_brings_vectors_and_submodel_together(
    world: ImageWorld, exact: ModelFolder, later: cb.Run, tmp_path: Path
) -> None:
    shutil.copytree(exact.folder, tmp_path / "model")
    folder = ModelFolder.open(tmp_path / "model")
    served, metrics = opened(folder), Metrics()
    reloader = Reloader(served, folder.published, metrics)
    image = {"ad_image": {str(NEW): np.linspace(-1, 1, WIDTH).tolist()}}
    body, rows = world.request(200, 30, ad_id=[NEW, *range(1, 30)])
    ask(served, {**body, "objects": image})
    run = later
    version = folder.published.publish(run, quantize=False)
    assert reloader.look()
    assert (metrics.applied, metrics.refused) == (1, 0)
    assert metrics.last_reload["how"] == "patch"
    assert version.patch_bytes > 0
    assert reloader.copy.read_bytes() == folder.published.file().read_bytes()
    assert served.objects()["remembered"] == 0
    assert np.abs(ask(served, body) - run.predict(rows)).max() < 1e-6
    embedded = ask(served, {**body, "objects": image})[0]
    server = next(s.embedder for s in run.learner.sources if isinstance(s.embedder, cb.tables.ModelServer))
    table = served.live.scorer.tables["ad_image"]
    key = served.keys.of("ad_image", [str(NEW)])
    assert np.allclose(table.pull(key), server.embed([image["ad_image"][str(NEW)]]), atol=1e-6)
    assert embedded != ask(opened(ModelFolder.open(exact.folder)), {**body, "objects": image})[0]
    folder.published.rollback(1)
    assert reloader.look()
    assert np.abs(ask(served, body) - world.run.predict(rows)).max() < 1e-6
    reloader.close()


def test_no_request_sees_half_a_version(world: ImageWorld, exact: ModelFolder, later: cb.Run, tmp_path: Path) -> None:
    other = tmp_path / "other.fbw"
    cb.publish.pack(later, other, quantize=False)
    files = [exact.published.file(), other]
    body, _ = world.request(0, 20, ad_id=[NEW, *range(1, 20)])
    body["objects"] = {"ad_image": {str(NEW): np.linspace(-1, 1, WIDTH).tolist()}}
    served = opened(exact)
    right = []
    for number, file in enumerate(files):
        served.take(file, number)
        right.append(ask(served, body).tobytes())
    assert right[0] != right[1]
    met: list[tuple[bytes, int]] = []
    stop = threading.Event()

    def client() -> None:
        while not stop.is_set():
            scores, version = served.score(served.reader.from_json(orjson.dumps(body)))
            met.append((scores.tobytes(), version))

    threads = [threading.Thread(target=client) for _ in range(2)]
    for thread in threads:
        thread.start()
    for k in range(12):
        served.take(files[k % 2], k % 2)
    stop.set()
    for thread in threads:
        thread.join()
    assert len(met) > 2
    assert all(scores == right[version] for scores, version in met)


def forged(weights: Weights, name: str, change: Callable[[Part], Part | None]) -> Weights:
    parts = [change(p) if p.name == name else p for p in weights.parts]
    return Weights(weights.kind, weights.about, [p for p in parts if p is not None])


@pytest.mark.parametrize(
    "what",
    [
        "plan",
        "model",
        "config",
        "gone",
        "shape",
        "twice",
        "dim",
        "submodel",
        "width",
        "kind",
        "shift",
        "infinite",
        "depth",
        "nan",
    ],
)
def test_weights_that_contradict_themselves_are_refused_and_the_old_version_goes_on(
    world: ImageWorld, exact: ModelFolder, served: ServedModel, tmp_path: Path, what: str
) -> None:
    weights = read_weights(exact.published.file())
    about = copy.deepcopy(weights.about)
    images = next(k for k, t in enumerate(about["tables"]) if "server" in t)
    if what == "plan":
        about["fingerprint"] = "0" * 64
    elif what == "model":
        about["model"] = "Sequential"
    elif what == "config":
        about["config"]["hidden"] = [1 << 40]
    elif what == "dim":
        about["tables"][images]["dim"] = 6
    elif what == "width":
        about["tables"][images]["server"]["width"] = 1 << 30
    elif what == "shift":
        about["shift"] = "nan"
    elif what == "infinite":
        about["tables"][images]["dim"] = float("inf")
    elif what == "depth":
        about["config"]["hidden"] = [1] * 100_000
    changed = Weights("tensors" if what == "kind" else CLICK_MODEL, about, weights.parts)
    if what == "gone":
        changed = forged(changed, "dense.bias", lambda p: None)
    elif what == "shape":
        changed = forged(changed, "dense.bias", lambda p: Part(p.name, p.dtype, (2,), np.zeros(2, np.float32)))
    elif what == "twice":
        changed = forged(
            changed,
            "table.0.key",
            lambda p: Part(p.name, p.dtype, p.shape, np.ascontiguousarray(np.zeros_like(p.data))),
        )
    elif what == "nan":
        changed = forged(
            changed, f"table.{images}.vector", lambda p: Part.floats(p.name, np.full(p.shape, np.nan, "f4"))
        )
    elif what == "submodel":
        changed = forged(changed, f"table.{images}.model.0.weight", lambda p: None)
    file = tmp_path / "forged.fbw"
    write_weights(file, changed, quantize=False)
    body, rows = world.request(0, 5)
    with pytest.raises(DataError):
        served.take(file, 2)
    assert served.version == 1
    assert np.abs(ask(served, body) - world.run.predict(rows)).max() < 1e-6


# ---- other sub-models


def test_a_text_submodel_takes_token_lists(world: ImageWorld, tmp_path: Path) -> None:
    ids = pq.read_table(world.place / "data" / "ads", columns=["ad_id"])["ad_id"].to_numpy()
    tokens = np.random.default_rng(0).integers(1, 51, (len(ids), 5))
    file = tmp_path / "titles.ctrvec"
    cb.tables.write_tokens(file, {"ad_id": ids[1:], "title": tokens[1:].tolist()}, key=KEY, tokens="title", width=5)
    other = fitted(tmp_path, world.plan, file, cb.tables.TextEmbedding(50, 8, 12))
    served = opened(create(tmp_path / "model", world.plan, other.run, context=CONTEXT, quantize=False))
    body, rows = world.request(0, 2, ad_id=[int(ids[0]), int(ids[1])])
    assert np.abs(ask(served, body) - other.run.predict(rows)).max() < 1e-6
    blind = ask(served, body)
    seen = ask(served, {**body, "objects": {"ad_image": {str(ids[0]): tokens[0, :3].tolist()}}})
    server = next(s.embedder for s in other.run.learner.sources if isinstance(s.embedder, cb.tables.ModelServer))
    expected = server.embed([[*tokens[0, :3].tolist(), 0, 0]])
    assert np.allclose(
        served.live.scorer.tables["ad_image"].pull(served.keys.of("ad_image", [str(ids[0])])), expected, atol=1e-6
    )
    assert seen[0] != blind[0]
    for wrong in ([51], [-1], [1.5], [1] * 6, [2**40]):
        with pytest.raises(DataError):
            ask(served, {**body, "objects": {"ad_image": {str(NEW): wrong}}})


class Squared(cb.tables.ImageEmbedding):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = super().forward(rows.square())
        return found


def test_a_submodel_of_ones_own_is_published_by_its_vectors_alone(world: ImageWorld, tmp_path: Path) -> None:
    other = fitted(tmp_path, world.plan, world.file, Squared(WIDTH, (8,), 12))
    served = opened(create(tmp_path / "model", world.plan, other.run, context=CONTEXT, quantize=False))
    body, rows = world.request(0, 20)
    assert np.abs(ask(served, body) - other.run.predict(rows)).max() < 1e-6
    with pytest.raises(DataError, match="a user-defined class"):
        ask(served, {**body, "objects": {"ad_image": {str(NEW): [0.0] * WIDTH}}})


# ---- publishing


def test_a_run_folder_is_pushed_with_its_vector_file(world: ImageWorld, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from ctrbox.cli.publish import app

    out = tmp_path / "run"
    server = cb.tables.ModelServer(world.file, cb.tables.ImageEmbedding(WIDTH, (8,), 12))
    model = cb.models.DICM(world.plan.schema, 12, ad_image="ad_image", behavior="behavior", query="ad", hidden=(8,))
    embedders = {"ad_image": server, "behavior": server, "*": cb.MemoryTable(12, threads=1)}
    run = cb.Trainer(model, embedders, threads=1).fit(world.plan, batch_size=500, epochs=1, limit=1000, out=out)
    folder = create(tmp_path / "model", world.plan, run, context=CONTEXT)
    weights = str(folder.folder / "weights")
    done = CliRunner().invoke(app, ["push", weights, str(out), "--server", f"behavior={world.file}"])
    assert done.exit_code == 0, done.output
    first, second = (read_weights(folder.published.file(n)) for n in (1, 2))
    assert first.about == second.about
    assert all(np.array_equal(a.data, b.data) for a, b in zip(first.parts, second.parts, strict=True))
    assert folder.published.verify() == []
    for wrong in (["--server", "user=x"], ["--server", "behavior"], []):
        assert CliRunner().invoke(app, ["push", weights, str(out), *wrong]).exit_code != 0
    assert folder.published.current is not None
    assert folder.published.current.number == 2

    # The run's own folder, served as it is: its vectors are in no file of its own.
    body, rows = world.request(0, 4)
    served = open_served(ModelFolder.open(out), servers={"ad_image": str(world.file)})
    scores = served.score(served.reader.from_json(orjson.dumps(body)))[0]
    assert np.abs(np.asarray(scores, np.float32) - run.predict(rows)).max() < 1e-6
    with pytest.raises(PlanError, match=r"pass one, with its data: cb\.Run\.load"):
        open_served(ModelFolder.open(out))
    with pytest.raises(PlanError, match=r"no Model Server for 'ad_imag', .*nearest: 'ad_image'"):
        open_served(ModelFolder.open(out), servers={"ad_imag": str(world.file)})
    with pytest.raises(PlanError, match="was published with its vectors"):
        open_served(folder, servers={"ad_image": str(world.file)})


def test_a_model_server_is_published_like_a_table(world: ImageWorld, tmp_path: Path) -> None:
    server = next(s.embedder for s in world.run.learner.sources if isinstance(s.embedder, cb.tables.ModelServer))
    cb.publish.pack(server, tmp_path / "vectors.fbw", quantize=False)
    cb.publish.unpack(tmp_path / "vectors.fbw", tmp_path / "vectors.parquet")
    found = pq.read_table(tmp_path / "vectors.parquet")
    keys, vectors, _ = server.export()
    assert found["key"].to_pylist() == sorted(server.data.keys.tolist()) == keys.tolist()
    assert np.array_equal(np.array(found["vector"].to_pylist(), np.float32), vectors)
    assert np.allclose(vectors, server.pull(keys, create=False), atol=1e-6)


def test_rows_keep_their_places_from_version_to_version(world: ImageWorld, tmp_path: Path) -> None:
    cb.publish.pack(world.run, tmp_path / "1.fbw")
    first = read_weights(tmp_path / "1.fbw")
    image = next(k for k, t in enumerate(first.about["tables"]) if "server" in t)
    moved = []
    for part in first.parts:
        rows = part.shape[0] if part.name in (f"table.{image}.key", f"table.{image}.vector") else 0
        data = part.data.reshape(rows, -1)[::-1].reshape(-1).copy() if rows else part.data
        moved.append(Part(part.name, part.dtype, part.shape, data))
    write_weights(tmp_path / "base.fbw", Weights(first.kind, first.about, moved))
    cb.publish.pack(world.run, tmp_path / "2.fbw", base=tmp_path / "base.fbw")
    again = read_weights(tmp_path / "2.fbw").part(f"table.{image}.key").data.view(np.int64)
    assert again.tolist() == first.part(f"table.{image}.key").data.view(np.int64)[::-1].tolist()
    click_model_of(read_weights(tmp_path / "2.fbw"), world.plan.schema, "2")


def test_a_model_of_ones_own_is_served_by_whoever_brings_it_and_other_plans_are_refused(
    world: ImageWorld, tmp_path: Path
) -> None:
    class Mine(cb.models.LR):
        pass

    run = cb.Trainer(Mine(world.plan.schema), threads=1).fit(world.plan, batch_size=500, epochs=1, limit=500)
    made = create(tmp_path / "own", world.plan, run, context=CONTEXT)
    with pytest.raises(DataError, match="user-defined model class 'Mine'"):
        open_served(made)
    with pytest.raises(DataError, match="the model that was passed is a LR"):
        open_served(made, own_model=cb.models.LR(world.plan.schema))
    assert open_served(made, own_model=Mine(world.plan.schema)).version == 1
    features = cb.FeatureSet(label=cb.col("clicked"), sparse={"user": cb.col("user_id")})
    other = cb.compile(cb.View(f"{world.place}/data/impressions", key="instance_id"), features, device="cpu")
    with pytest.raises(PlanError, match="fingerprint"):
        create(tmp_path / "model", other, world.run, context=CONTEXT)
    with pytest.raises(PlanError, match=r"needs a cb\.DeepFFM or a cb\.Run"):
        create(tmp_path / "model", world.plan, world.run.model, context=CONTEXT)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_server_answers_with_images_and_counts_them(world: ImageWorld, exact: ModelFolder) -> None:
    body, rows = world.request(0, 4, ad_id=[1, 2, NEW, NEW + 1])
    objects = {"ad_image": {str(NEW): np.linspace(-1, 1, WIDTH).tolist()}}
    expected = ask(opened(exact), {**body, "objects": objects})
    with running(exact.folder) as server:
        found = server.score(orjson.dumps(body))
        assert np.abs(np.array(found.json()["scores"]) - world.run.predict(rows)).max() < 1e-6
        found = server.score(orjson.dumps({**body, "objects": objects}))
        assert np.allclose(found.json()["scores"], expected, atol=1e-7)
        tensors = tensors_of(body, np.linspace(-1, 1, WIDTH).astype(np.float32))
        for client, port in ((over_http, server.port), (over_grpc, server.grpc_port)):
            with client.InferenceServerClient(f"127.0.0.1:{port}") as triton:
                got = triton.infer(exact.folder.name, inputs(client, tensors)).as_numpy("score")
                assert np.allclose(got, expected, atol=1e-7)
                short = {**tensors, "objects.ad_image": tensors["objects.ad_image"][:, 1:]}
                with pytest.raises(InferenceServerException, match="numbers; expected"):
                    triton.infer(exact.folder.name, inputs(client, short))
        for wrong in ({"ad_image": {"1": [0.0]}}, {"other": {}}, 5, {"ad_image": {"1": [1e39] * WIDTH}}):
            answer = server.score(orjson.dumps({**body, "objects": wrong}))
            assert answer.status_code == 400, answer.text
        live = server.get("/v1/live").json()["objects"]
        assert live["embedded"] == 1
        assert live["missing"] >= 3
        assert "ctrbox_objects_missing_total" in server.get("/metrics").text
        assert server.stop() == 0
