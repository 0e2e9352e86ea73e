"""New versions while serving: taken up whole, never half; bad patches refused; requests under way at the end are answered."""

from __future__ import annotations

import contextlib
import math
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import orjson
import pytest

import ctrbox as cb
from ctrbox.errors import WriteError
from ctrbox.files.temporary_folder import OwnFolder
from ctrbox.serve.metrics import Metrics
from ctrbox.serve.model_folder import ModelFolder
from ctrbox.serve.reload import Reloader
from ctrbox.serve.request_queue import ScoringQueue
from ctrbox.serve.served_models import ServedFfm, open_served
from ctrbox.serve.service import Limits, Service
from tests.serve.running import Running, running
from tests.serve.test_scoring import body_of
from tests.serve.worlds import World


@pytest.fixture
def served(folder: ModelFolder) -> ServedFfm:
    made = open_served(folder)
    assert isinstance(made, ServedFfm)
    return made


def learner(world: World) -> cb.DeepFFM:
    world.engine.save(world.data / "learner.ffm")
    return cb.DeepFFM.load(world.data / "learner.ffm")


def watching(folder: ModelFolder, served: ServedFfm) -> tuple[Reloader, Metrics]:
    metrics = Metrics()
    return Reloader(served, folder.published, metrics), metrics


def learn_and_publish(engine: cb.DeepFFM, world: World, folder: ModelFolder) -> None:
    engine.learn(world.plan.batches(200, limit=200))
    folder.published.publish(engine)


def test_a_published_version_is_taken_up_and_a_rollback_too(
    world: World, folder: ModelFolder, served: ServedFfm
) -> None:
    reloader, metrics = watching(folder, served)
    engine = learner(world)
    body = orjson.dumps(body_of(world.rows(0, 40)))
    before, _ = served.score(served.reader.from_json(body))
    assert not reloader.look()
    engine.learn(world.plan.batches(500, limit=500))
    folder.published.publish(engine)
    assert reloader.look()
    after, version = served.score(served.reader.from_json(body))
    assert version == 2
    assert not np.array_equal(before, after)
    assert reloader.copy.read_bytes() == folder.published.file().read_bytes()
    folder.published.rollback(1)
    assert reloader.look()
    again, version = served.score(served.reader.from_json(body))
    assert version == 3
    assert np.array_equal(again, before)
    assert (metrics.applied, metrics.refused) == (2, 0)
    reloader.close()
    assert not reloader.copy.parent.exists()


def damage(path: Path, how: str) -> None:
    whole = path.read_bytes()
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(whole[: len(whole) // 2])
    elif how == "flipped":
        path.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    elif how == "another's":
        path.write_bytes(path.with_name("00000002.patch").read_bytes())
    else:
        path.write_bytes(b"")


@pytest.mark.parametrize("how", ["cut", "flipped", "another's", "empty", "gone"])
def test_a_bad_patch_is_refused_and_the_next_version_comes_whole(
    world: World, folder: ModelFolder, served: ServedFfm, how: str
) -> None:
    reloader, metrics = watching(folder, served)
    engine = learner(world)
    for n in range(2):
        learn_and_publish(engine, world, folder)
        assert n or reloader.look()
    damage(folder.published.patch(3), how)
    body = orjson.dumps(body_of(world.rows(0, 40)))
    before, version = served.score(served.reader.from_json(body))
    assert version == 2
    for _ in range(3):
        assert not reloader.look()
    assert metrics.refused == 1
    assert "version 3" in metrics.last_refusal
    assert np.array_equal(served.score(served.reader.from_json(body))[0], before)
    folder.published.publish(engine)
    assert reloader.look()
    assert served.version == 4
    assert (metrics.refused, metrics.last_refusal) == (1, "")  # of the past
    expected = folder.engine().predict(served.split.joined(*parts(served, body)))
    assert np.array_equal(served.score(served.reader.from_json(body))[0], expected)
    reloader.close()


def parts(served: ServedFfm, body: bytes) -> tuple:  # type: ignore[type-arg]
    request = served.reader.from_json(body)
    part = served.split.context(request.context())
    return part, served.split.candidates(part.frame, request.candidates)


def test_a_damaged_log_and_a_whole_file_that_is_damaged_are_refused(
    world: World, folder: ModelFolder, served: ServedFfm
) -> None:
    reloader, metrics = watching(folder, served)
    engine = learner(world)
    learn_and_publish(engine, world, folder)
    damage(folder.published.patch(2), "cut")
    assert not reloader.look()
    learn_and_publish(engine, world, folder)
    damage(folder.published.file(3), "flipped")
    assert not reloader.look()
    assert "checksum" in metrics.last_refusal
    (folder.published.folder / "CURRENT").write_text("{}")
    assert not reloader.look()
    assert (served.version, metrics.applied, metrics.refused) == (1, 0, 3)
    reloader.close()


def test_no_request_fails_or_sees_half_a_model_while_versions_come(world: World, folder: ModelFolder) -> None:
    """Every answer is the one of the version it names, whatever is published meanwhile."""
    bodies = [orjson.dumps(body_of(world.rows(100 * k, 30), k)) for k in range(4)]
    answers: list[tuple[int, int, list[float]]] = []
    failures: list[str] = []
    published = threading.Event()

    def client(server: Running, seed: int) -> None:
        order = np.random.default_rng(seed)
        with httpx.Client(base_url=server.url, timeout=30) as http:
            while not published.is_set():
                k = int(order.integers(4))
                found = http.post("/v1/score", content=bodies[k])
                if found.status_code != 200:
                    failures.append(found.text)
                else:
                    answers.append((k, found.json()["version"], found.json()["scores"]))

    engine = learner(world)
    with running(folder.folder, "--queue", "64", "--deadline-ms", "20000") as server:
        clients = [threading.Thread(target=client, args=(server, k)) for k in range(3)]
        for c in clients:
            c.start()
        for version in range(1, 6):
            if version > 1:
                learn_and_publish(engine, world, folder)
            until = time.monotonic() + 60
            while not any(met == version for _, met, _ in answers) and time.monotonic() < until:
                time.sleep(0.05)
        published.set()
        for c in clients:
            c.join()
        assert server.get("/v1/live").json()["patches"]["applied"] == 4
        assert server.stop() == 0
    assert not failures
    assert {version for _, version, _ in answers} == {1, 2, 3, 4, 5}
    expected = {}
    for version in range(1, 6):
        served = open_served(folder)
        assert isinstance(served, ServedFfm)
        model = folder.engine(version)
        for k, body in enumerate(bodies):
            expected[k, version] = model.predict(served.split.joined(*parts(served, body)))
    for k, version, scores in answers:
        assert np.array_equal(np.array(scores, np.float32), expected[k, version])


def test_what_a_killed_server_left_is_removed_by_the_next_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    alive = OwnFolder("ctrbox-serve-")
    code = (
        "import os, signal; from ctrbox.files.temporary_folder import OwnFolder; own = OwnFolder('ctrbox-serve-'); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)})
    (tmp_path / "ctrbox-serve-bare").mkdir()  # without a LOCK: not surely ours
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "LOCK").touch()
    (tmp_path / "ctrbox-serve-link").symlink_to(tmp_path / "elsewhere")
    left = {p.name for p in tmp_path.iterdir()} - {
        alive.place.name,
        "ctrbox-serve-bare",
        "elsewhere",
        "ctrbox-serve-link",
    }
    assert len(left) == 1
    again = OwnFolder("ctrbox-serve-")
    kept = {alive.place.name, again.place.name, "ctrbox-serve-bare", "elsewhere", "ctrbox-serve-link"}
    assert {p.name for p in tmp_path.iterdir()} == kept
    again.close()
    alive.close()
    assert not alive.place.exists()
    assert (tmp_path / "elsewhere" / "LOCK").exists()


def test_nothing_is_left_where_the_weights_cannot_be_copied(
    folder: ModelFolder, served: ServedFfm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # a disk without room
    try:
        with pytest.raises(WriteError, match=r"cannot write .*served.fbw: File too large"):
            Reloader(served, folder.published, Metrics())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list((tmp_path / "temporary").iterdir()) == []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(WriteError, match="cannot make a temporary folder"):
        Reloader(served, folder.published, Metrics())


def test_a_model_of_other_fields_is_refused_when_it_is_pushed(world: World, folder: ModelFolder) -> None:
    other = cb.DeepFFM([*world.engine.fields, "weather"], bits=10)
    with pytest.raises(
        cb.errors.DataError, match=r"field 'weather' is not a feature of the plan that .*model is served with"
    ):
        folder.published.publish(other)
    assert [v.number for v in folder.published.log()] == [1]
    assert folder.published.verify() == []
    folder.published.publish(cb.DeepFFM(world.engine.fields[:2], bits=10))  # fewer are the plan's too
    (folder.published.folder / "FEATURES").write_text("{}")
    assert "FEATURES is damaged" in folder.published.verify()[0]
    with pytest.raises(cb.errors.DataError, match="FEATURES is damaged"):
        folder.published.publish(world.engine)


def test_what_is_under_way_is_answered_before_the_end(world: World, folder: ModelFolder) -> None:
    body = orjson.dumps(body_of(world.rows(0, 100)))
    codes: list[int] = []
    ended = threading.Event()

    def client(server: Running) -> None:
        with httpx.Client(base_url=server.url, timeout=30) as http:
            while not ended.is_set():
                try:
                    codes.append(http.post("/v1/score", content=body).status_code)
                except httpx.ConnectError:  # the socket is closed: nothing was asked
                    return
                except (httpx.ReadError, httpx.RemoteProtocolError):
                    # A connection that was kept may be closed as the next request leaves; nothing of it was read.
                    return

    with running(folder.folder) as server:
        clients = [threading.Thread(target=client, args=(server,)) for _ in range(3)]
        for c in clients:
            c.start()
        while len(codes) < 50:
            time.sleep(0.01)
        assert server.stop() == 0
        ended.set()
        for c in clients:
            c.join()
    assert set(codes) <= {200, 503}
    assert any("all requests that had been received were answered" in line for line in server.said)
    assert not any("Traceback" in line for line in server.said)


def no_handles() -> Iterator[None]:
    """Leave this process without a file handle, as a crowd of clients would."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = os.dup(0)
    os.close(highest)
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 4, before[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        yield
    finally:
        for handle in held:
            os.close(handle)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def no_room() -> Iterator[None]:
    """Let no file grow beyond 1,000 bytes, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("fault", [no_handles, no_room])
def test_a_passing_fault_is_tried_again_and_told_as_stale(
    world: World, folder: ModelFolder, served: ServedFfm, fault: Callable[[], Iterator[None]]
) -> None:
    """Such a fault left the old model for ever: the version was marked as refused."""
    service = Service(served, "ads", ScoringQueue(0, 4, 1.0), Limits())
    metrics = service.metrics
    reloader = Reloader(served, folder.published, metrics)
    engine = learner(world)
    learn_and_publish(engine, world, folder)
    with contextlib.contextmanager(fault)():
        assert not reloader.look()
        assert not reloader.look()  # too early for the next try
        reloader._retry_at = 0.0
        assert not reloader.look()
        told = service.readiness()
        stale = told["stale"]
        text = service.prometheus()
    assert (told["ready"], told["version"], stale["serving"]) == (True, 1, 1)
    assert re.search("Too many open files|File too large", stale["reason"])
    assert "ctrbox_model_stale 1\n" in text
    assert float(re.findall(r"^ctrbox_model_stale_seconds (\S+)", text, re.M)[0]) >= 0
    assert metrics.refused == 1  # said once, however often it is tried
    assert reloader._wait == 4.0  # 1 s, then 2 s, now 4 s
    assert served.version == 1
    assert not reloader.look()
    reloader._retry_at = 0.0
    assert reloader.look()  # without anything published since
    assert served.version == 2
    assert service.readiness() == {"ready": True, "version": 2}
    assert "ctrbox_model_stale 0\n" in service.prometheus()
    reloader.close()


def test_a_damaged_version_is_stale_but_not_tried_again(world: World, folder: ModelFolder, served: ServedFfm) -> None:
    reloader, metrics = watching(folder, served)
    engine = learner(world)
    learn_and_publish(engine, world, folder)
    damage(folder.published.patch(2), "flipped")
    assert not reloader.look()
    assert reloader._retry_at == math.inf
    assert metrics.staleness is not None
    assert metrics.staleness.version == 2
    reloader.close()


def test_the_watch_ends_with_the_reloader(folder: ModelFolder, served: ServedFfm) -> None:
    reloader = Reloader(served, folder.published, Metrics(), period=0.01)
    reloader.start()
    reloader.close()
    assert not reloader._thread.is_alive()
