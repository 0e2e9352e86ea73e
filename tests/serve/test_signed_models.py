"""Signed models: a server with a public key takes what its publisher signed, and goes on with its last good version."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest

import ctrbox as cb
from ctrbox.errors import PlanError, SignatureError
from ctrbox.publish import Published, keygen
from ctrbox.publish.chain_of_sealed_lines import sealed_line
from ctrbox.serve.model_folder import ModelFolder, create
from ctrbox.serve.server import Server, Settings
from tests.serve.test_reload import damage, learner
from tests.serve.test_scoring import body_of
from tests.serve.worlds import CONTEXT, World


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the key of the publisher, ``mine``, and another one, ``theirs``."""
    place = tmp_path_factory.mktemp("keys")
    keygen(place / "mine")
    keygen(place / "theirs")
    return place


@pytest.fixture(scope="module")
def signed(world: World, keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a signed model with two versions, which tests copy."""
    place = tmp_path_factory.mktemp("signed") / "model"
    model = create(place, world.plan, world.engine, context=CONTEXT, sign_with=keys / "mine")
    engine = learner(world)
    engine.learn(world.plan.batches(200, limit=200))
    model.published.publish(engine)
    return place


@pytest.fixture
def model(signed: Path, tmp_path: Path) -> Path:
    shutil.copytree(signed, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def server(model: Path, keys: Path) -> Iterator[Server]:
    found = Server.open(model, Settings(public_keys=[keys / "mine.pub"]))
    yield found
    assert found.reloader is not None
    found.reloader.close()


def next_version(world: World, model: Path, key: Path, rows: int = 300) -> None:
    engine = learner(world)
    engine.learn(world.plan.batches(rows, limit=rows))
    Published(model / "weights", sign_with=key).publish(engine)


def unsigned(model: Path, keys: Path) -> None:
    path = model / "weights" / "CURRENT"
    facts = json.loads(path.read_text())
    del facts["signed"], facts["seal"]
    path.write_bytes(sealed_line("", facts)[0])


def by_another_key(model: Path, keys: Path) -> None:
    unsigned(model, keys)
    Published(model / "weights", sign_with=keys / "theirs").sign()


def forged_signature(model: Path, keys: Path) -> None:
    path = model / "weights" / "CURRENT"
    facts = json.loads(path.read_text())
    del facts["seal"]
    facts["signed"]["statement"] = facts["signed"]["statement"].replace('"version":3', '"version":4')
    path.write_bytes(sealed_line("", facts)[0])


def replayed(model: Path, keys: Path) -> None:
    for name in ("CURRENT", "log.jsonl"):
        shutil.copyfile(model.parent / "first" / name, model / "weights" / name)


def of_another_model(model: Path, keys: Path) -> None:
    shutil.rmtree(model / "weights")
    shutil.copytree(model.parent / "other" / "weights", model / "weights")


def cut_patch(model: Path, keys: Path) -> None:
    damage(model / "weights" / "patches" / "00000003.patch", "cut")


def flipped_patch(model: Path, keys: Path) -> None:
    damage(model / "weights" / "patches" / "00000003.patch", "flipped")


ATTACKS: dict[Callable[[Path, Path], None], str] = {
    unsigned: "is not signed; expected a signature by the key",
    by_another_key: "which is not trusted here; trusted: ",
    forged_signature: "was changed after it was signed: the signature by the key",
    replayed: "is version 1, older than version 2, which was accepted before",
    of_another_model: "is signed for another model",
    cut_patch: "the patch to version 3 of",
    flipped_patch: "the patch to version 3 of",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_the_publisher_did_not_sign_is_refused_and_counted_and_the_server_goes_on(
    world: World, model: Path, keys: Path, server: Server, attack: Callable[[Path, Path], None]
) -> None:
    service, reloader = server.service, server.reloader
    assert reloader is not None
    body = orjson.dumps(body_of(world.rows(0, 20)))
    request = service.served.reader.from_json(body)
    before, version = service.score(request)
    assert version == 2
    if attack is of_another_model:
        create(model.parent / "other", world.plan, world.engine, context=CONTEXT, sign_with=keys / "mine")
    if attack is replayed:
        first = create(model.parent / "first_model", world.plan, world.engine, context=CONTEXT).folder / "weights"
        lines = (model / "weights" / "log.jsonl").read_bytes().splitlines(keepends=True)
        shutil.copytree(first, model.parent / "first")
        (model.parent / "first" / "log.jsonl").write_bytes(lines[0])
        sign_again(model, keys, model.parent / "first", lines[0])
    next_version(world, model, keys / "mine")
    good = model.parent / "good"
    shutil.copytree(model / "weights", good)
    attack(model, keys)
    for _ in range(3):
        assert not reloader.look()
    told = ATTACKS[attack]
    metrics = service.metrics
    assert told in metrics.last_refusal
    assert "\n" not in metrics.last_refusal
    by_signature = attack not in (cut_patch, flipped_patch)
    assert (metrics.refused, metrics.signatures_refused) == (1, int(by_signature))
    ready = service.readiness()
    assert ready["ready"]
    assert ready["version"] == 2
    assert told in ready["stale"]["reason"]
    text = service.prometheus()
    assert "ctrbox_model_stale 1\n" in text
    assert f"ctrbox_signatures_refused_total {int(by_signature)}\n" in text
    assert service.score(request)[0].tolist() == before.tolist()
    # The publisher's own folder is back, with one version more.
    shutil.rmtree(model / "weights")
    shutil.copytree(good, model / "weights")
    next_version(world, model, keys / "mine", 400)
    assert reloader.look()
    assert service.score(request)[1] == 4
    assert "stale" not in service.readiness()


def sign_again(model: Path, keys: Path, place: Path, line: bytes) -> None:
    """Write the signed CURRENT that the model had at version 1, as whoever kept a copy of it could."""
    statement = Published(model / "weights", sign_with=keys / "mine").statement()
    assert statement is not None
    old = Published(place, sign_with=keys / "mine")
    old._point(1, len(line), json.loads(line)["seal"], statement)


def test_a_rollback_is_a_new_signed_version(model: Path, keys: Path, server: Server) -> None:
    assert server.reloader is not None
    folder = ModelFolder.open(model, sign_with=keys / "mine")
    folder.published.rollback(1)
    assert server.reloader.look()
    assert server.service.served.version == 3
    assert server.service.metrics.last_reload["how"] in ("patch", "whole file")


@pytest.mark.parametrize("name", ["plan.ctr", "serve.json", "log.arrow", "weights/versions/00000002.fbw"])
@pytest.mark.parametrize("how", ["flipped", "cut", "gone", "longer"])
def test_a_changed_file_of_the_model_is_refused_at_the_start(model: Path, keys: Path, name: str, how: str) -> None:
    path = model / name
    if how == "longer":
        path.write_bytes(path.read_bytes() + b"\0")
    else:
        damage(path, how)
    with pytest.raises(cb.errors.CtrboxError) as met:
        Server.open(model, Settings(public_keys=[keys / "mine.pub"]))
    assert path.name in str(met.value) or "version 2 of" in str(met.value)


def test_a_server_with_a_key_refuses_models_without_a_signature(
    world: World, model: Path, keys: Path, tmp_path: Path
) -> None:
    with pytest.raises(SignatureError, match="is not signed; expected a signature by the key"):
        Server.open(world.folder, Settings(public_keys=[keys / "mine.pub"]))
    with pytest.raises(SignatureError, match="not trusted here"):
        Server.open(model, Settings(public_keys=[keys / "theirs.pub"]))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(SignatureError, match="is not a signed model folder: it holds no published version"):
        Server.open(tmp_path / "run", Settings(public_keys=[keys / "mine.pub"]))
    shutil.copytree(world.folder / "weights", tmp_path / "other" / "weights")
    Published(tmp_path / "other" / "weights", sign_with=keys / "mine").sign()
    shutil.copyfile(world.folder / "plan.ctr", tmp_path / "other" / "plan.ctr")
    with pytest.raises(SignatureError, match="is not a signed model folder: its signature does not cover a plan"):
        Server.open(tmp_path / "other", Settings(public_keys=[keys / "mine.pub"]))
    with pytest.raises(PlanError, match="--model-id needs the public key of the publisher"):
        Server.open(model, Settings(model_id="0" * 32))
    with pytest.raises(SignatureError, match="expected the model 0000"):
        Server.open(model, Settings(public_keys=[keys / "mine.pub"], model_id="0" * 32))


def test_a_model_without_signatures_is_signed_and_then_served(world: World, keys: Path, tmp_path: Path) -> None:
    shutil.copytree(world.folder, tmp_path / "model")
    published = Published(tmp_path / "model" / "weights", sign_with=keys / "mine")
    published.sign()
    assert published.verify() == []
    found = Server.open(tmp_path / "model", Settings(public_keys=[keys / "mine.pub"]))
    assert found.service.served.version == 1
    assert found.service.online is None  # a learner's report is not signed
    assert found.reloader is not None
    found.reloader.close()
    (tmp_path / "model" / "plan.ctr").write_bytes(b"other")
    assert published.verify() == [f"plan.ctr beside {published.folder} changed after the signature"]
    with pytest.raises(SignatureError, match=r"plan\.ctr has .* bytes|was changed after it was signed"):
        ModelFolder.open(tmp_path / "model", sign_with=keys / "mine")
