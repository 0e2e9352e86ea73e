"""Several workers of one server, as real processes: requests, counts, versions, a worker that is killed, and the end."""

from __future__ import annotations

import http.client
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import tritonclient.grpc as over_grpc

import ctrbox as cb
from ctrbox.serve.model_folder import ModelFolder
from tests.serve.running import Running, inputs, running
from tests.serve.test_scoring import body_of
from tests.serve.worlds import World

PATIENCE = 60.0  # seconds until something that must happen counts as a failure; nothing waits for so long


def until(met: Callable[[], Any], what: str) -> Any:
    """Return what ``met`` returns once that is true."""
    end = time.monotonic() + PATIENCE
    while not (found := met()):
        assert time.monotonic() < end, f"{what} did not happen within {PATIENCE:.0f} s"
        time.sleep(0.01)
    return found


def gone(process: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet is a zombie, state Z."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class Kept:
    """A connection that is kept, and the process of the worker that has it."""

    def __init__(self, server: Running) -> None:
        self.http = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        self.worker = 0

    def score(self, body: bytes) -> dict[str, Any]:
        self.http.request("POST", "/v1/score", body)
        answer = self.http.getresponse()
        found: dict[str, Any] = orjson.loads(answer.read())
        assert answer.status == 200, found
        return found


def get(server: Running, path: str) -> tuple[int, bytes]:
    """Ask over a connection of its own, without the cost of a client library."""
    asked = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    try:
        asked.request("GET", path)
        answer = asked.getresponse()
        return answer.status, answer.read()
    finally:
        asked.close()


def workers(server: Running) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(get(server, "/v1/live")[1])["workers"]
    return found


def gauge(server: Running, name: str) -> float:
    lines = get(server, "/metrics")[1].decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))


def requests_by(server: Running) -> dict[int, int]:
    """Return the requests that each worker has answered before this one; the worker that answers is among them."""
    return {each["process"]: each["requests"] for each in workers(server)["each"]}


def one_for_each(server: Running, body: bytes) -> dict[int, Kept]:
    """Return a connection for each worker, by its process. Others are tried until every worker has one."""
    found: dict[int, Kept] = {}
    tried: list[Kept] = []
    for _ in range(200):
        kept = Kept(server)
        tried.append(kept)
        kept.score(body)  # one that was taken stays with its worker
        before = requests_by(server)
        for _ in range(10):
            kept.score(body)
        after = requests_by(server)
        # The worker of the connection has answered ten more; one question about the workers is counted, too.
        kept.worker = max(after, key=lambda process: after[process] - before.get(process, 0))
        found.setdefault(kept.worker, kept)
        if len(found) == len(after):
            break
    for kept in tried:
        if kept not in found.values():
            kept.http.close()
    return found


@pytest.fixture
def two(folder: ModelFolder) -> Iterator[Running]:
    # A long deadline: no request is refused because the machine is busy.
    with running(folder.folder, "--name", "ads", "--workers", "2", "--deadline-ms", "600000") as server:
        yield server


def total(server: Running, route: str = "score") -> int:
    lines = get(server, "/metrics")[1].decode().splitlines()
    label = f'ctrbox_requests_total{{route="{route}",code="200"}} '
    return next((int(line.removeprefix(label)) for line in lines if line.startswith(label)), 0)


def test_both_workers_answer_count_together_and_take_a_new_version(
    world: World, folder: ModelFolder, two: Running
) -> None:
    rows = world.rows(0, 20)
    body = orjson.dumps(body_of(rows))
    status, ready = get(two, "/v2/health/ready")
    assert (status, orjson.loads(ready)["workers"]) == (200, {"count": 2, "serving": 2, "replaced": 0})
    kept = one_for_each(two, body)
    assert len(kept) == 2
    assert two.process.pid not in kept
    answers = [one.score(body) for one in kept.values()]
    assert answers[0] == answers[1]
    # The counts are those of both, whichever worker is asked.
    counted = total(two)
    for _ in range(7):
        for one in kept.values():
            one.score(body)
    assert {total(two) for _ in range(6)} == {counted + 14}
    assert gauge(two, "ctrbox_workers") == gauge(two, "ctrbox_workers_serving") == 2
    assert gauge(two, "ctrbox_candidates_total") == 20 * (counted + 14)
    looked_up = until(
        lambda: gauge(two, "ctrbox_cache_hits_total") + gauge(two, "ctrbox_cache_misses_total") == counted + 14,
        "the sum of both caches",
    )
    assert looked_up
    assert gauge(two, "ctrbox_connections_limit") <= 8192
    # gRPC is served at one port by both.
    with over_grpc.InferenceServerClient(f"127.0.0.1:{two.grpc_port}") as client:
        tensors = {
            "ts": np.array([str(body_of(rows)["context"]["ts"]).encode()], object),
            "user_id": rows["user_id"].to_numpy()[:1],
            **{n: np.array([(rows[n][0].as_py() or "").encode()], object) for n in ("query", "device", "context")},
            "ad_id": rows["ad_id"].to_numpy(),
            "position": np.array([-1 if v is None else v for v in rows["position"].to_pylist()], np.int64),
            "price": rows["price"].fill_null(0.0).to_numpy().astype(np.float32),
        }
        scores = client.infer("ads", inputs(over_grpc, tensors)).as_numpy("score")
        assert client.is_server_ready()
    assert scores.shape == (20,)
    assert total(two, "grpc") == 1
    # The supervisor loads a version, and both workers follow.
    world.engine.save(folder.folder / "learner.ffm")
    engine = cb.DeepFFM.load(folder.folder / "learner.ffm")
    engine.learn(world.plan.batches(500, limit=500))
    folder.published.publish(engine)
    for one in kept.values():
        until(lambda one=one: one.score(body)["version"] == 2, "version 2")
    news = [one.score(body) for one in kept.values()]
    assert news[0] == news[1]
    assert news[0]["scores"] != answers[0]["scores"]
    assert until(lambda: gauge(two, "ctrbox_model_version") == 2, "version 2 in the metrics")
    assert gauge(two, "ctrbox_patches_applied_total") == 1
    # Both have mapped the one file of that version.
    for process in kept:
        assert "00000002.shared" in Path(f"/proc/{process}/maps").read_text()
    until(lambda: [line for line in two.said if "serving version 2" in line], "the line of the supervisor")
    # SIGTERM while requests come: each is answered, or its connection is closed with "connection: close" before it.
    ended = threading.Event()
    statuses: set[int] = set()

    def go_on(one: Kept) -> None:
        one.http.auto_open = False  # a connection that was closed in order is not opened again
        while not ended.is_set():
            try:
                one.http.request("POST", "/v1/score", body)
                answer = one.http.getresponse()
                answer.read()
            except (OSError, http.client.HTTPException):  # idle connections are closed at the end
                return
            statuses.add(answer.status)

    clients = [threading.Thread(target=go_on, args=(one,)) for one in kept.values()]
    for client in clients:
        client.start()
    until(lambda: statuses, "an answer")
    assert two.stop() == 0
    ended.set()
    for client in clients:
        client.join()
    assert statuses <= {200, 503}
    assert all(gone(process) for process in kept)
    assert not any("Traceback" in line or "were killed" in line for line in two.said)


def test_a_worker_that_is_killed_is_replaced_and_the_others_go_on(world: World, two: Running) -> None:
    body = orjson.dumps(body_of(world.rows(0, 20)))
    kept = one_for_each(two, body)
    (victim, his), (other, mine) = kept.items()
    expected = mine.score(body)
    answered: list[dict[str, Any]] = []
    failed: list[BaseException] = []
    ended = threading.Event()

    def go_on() -> None:
        while not ended.is_set():
            try:
                answered.append(mine.score(body))
            except BaseException as error:
                failed.append(error)
                return

    client = threading.Thread(target=go_on)
    client.start()
    counted = total(two)
    try:
        os.kill(victim, signal.SIGKILL)
        until(lambda: gone(victim), "the end of the worker")
        with pytest.raises((OSError, http.client.HTTPException)):
            his.score(body)  # its connections ended with it
        for _ in range(20):  # connections that wait belong to all workers
            assert Kept(two).score(body) == expected
        until(lambda: workers(two)["serving"] == 2 and workers(two)["replaced"] == 1, "another worker")
        until(lambda: get(two, "/v2/health/ready")[0] == 200, "readiness")
    finally:
        ended.set()
        client.join()
    assert not failed
    assert answered
    assert all(answer == expected for answer in answered)
    assert total(two) >= counted + 20  # what the dead one had counted is still there
    now = requests_by(two)
    assert victim not in now
    assert other in now
    until(lambda: any("ended by SIGKILL; another one starts now" in line for line in two.said), "a line about it")
    # A terminal sends SIGINT to all processes at once. One line says that the server stopped, and nothing is left.
    for process in (*now, two.process.pid):
        os.kill(process, signal.SIGINT)
    assert two.process.wait(PATIENCE) == 0
    assert all(gone(process) for process in now)
    until(lambda: any("stopped;" in line for line in two.said), "the last line")
    assert [line for line in two.said if "stop" in line and "Ctrl-C" not in line] == [two.said[-1]]
    assert not any("Traceback" in line for line in two.said)


def test_workers_end_when_their_supervisor_is_killed(two: Running) -> None:
    processes = requests_by(two)
    assert len(processes) == 2
    two.process.kill()
    until(lambda: all(gone(process) for process in processes), "the end of the workers")
