"""Settings of a server at the ends of their ranges, and what a server is made of; nothing listens here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ctrbox.errors import PlanError, SourceError
from ctrbox.publish.weights_of_models import CLICK_MODEL, DEEP_FFM
from ctrbox.serve import server as module
from ctrbox.serve.memory_shared_by_workers import Board, Desk
from ctrbox.serve.metrics import Metrics
from ctrbox.serve.model_folder import RUN
from ctrbox.serve.reload import Reloader
from ctrbox.serve.server import (
    STORED_SECONDS,
    TOKEN,
    TOKEN_FILE_BYTES,
    Server,
    Settings,
    bracketed,
    check,
    loopback,
    read_token,
)
from ctrbox.serve.service import Limits

NO_VIEWS = SimpleNamespace(refreshable=[], names=[])


class _Other:
    """A model of one label that is no run."""

    tasks = ()
    past = None
    views = NO_VIEWS


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhosts", False),
        ("", False),
    ],
)
def test_only_this_machine_reaches_a_loopback_address(host: str, expected: bool) -> None:
    assert loopback(host) is expected
    if expected:
        check(Settings(host=host))
    else:
        with pytest.raises(PlanError, match="can be reached from other machines, so a token is required:"):
            check(Settings(host=host))
    check(Settings(host=host, token="secret"))


NEEDED = r"^{} needs the public key of the publisher; add --public-key FILE$"
VECTORS = r"^{} needs the vectors of the ads: --prerank FOLDER, made by `ctrbox vectors prerank`$"
HERE = Path()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"model_id": "ads"}, NEEDED.format("--model-id")),
        ({"trust_file": HERE}, NEEDED.format("--trust-file")),
        ({"model_id": "ads", "trust_file": HERE}, NEEDED.format("--model-id")),
        ({"model_id": "ads", "trust_file": HERE, "public_keys": [HERE]}, ""),
        ({"prerank_run": HERE}, VECTORS.format("--prerank-run")),
        ({"prerank_views": {"a": 1}}, VECTORS.format("--prerank-view")),
        ({"prerank_run": HERE, "prerank_views": {"a": 1}}, VECTORS.format("--prerank-run")),
        ({"prerank": HERE, "prerank_views": {"a": 1}}, r"^--prerank-view can be used only with --prerank-run; for the"),
        ({"prerank": HERE, "prerank_run": HERE, "prerank_views": {"a": 1}}, ""),
        ({"prerank": HERE, "prerank_run": HERE}, ""),
        ({"prerank": HERE}, ""),
        (
            {"events": "nats://a/B"},
            r"^--events needs a state to which the server can add the events; add --state FILE$",
        ),
        ({"events": "nats://a/B", "state": HERE}, ""),
        (
            {"follow_state": HERE, "state": HERE},
            r"^--follow-state names a state that another process writes, and --state",
        ),
        ({"follow_state": HERE}, ""),
        ({"state": HERE}, ""),
        ({"tls_key": HERE}, r"^--tls-key needs the certificate that the key belongs to: --tls-cert FILE$"),
        ({"tls_key": HERE, "tls_cert": HERE}, ""),
        ({"tls_cert": HERE}, ""),
        ({"traces": "here"}, r"^--traces takes the URL of an OTLP/HTTP collector, .*; got 'here'$"),
        ({"access_log": HERE}, r"^cannot write the access log \.: Is a directory$"),
    ],
)
def test_settings_that_need_others_say_which(settings: dict[str, Any], says: str) -> None:
    if not says:
        check(Settings(**settings))
        return
    with pytest.raises((PlanError, SourceError), match=says):
        check(Settings(**settings))


@pytest.mark.parametrize(
    ("token", "good"),
    [("x", True), ("x" * 4096, True), ("x" * 4097, False), ("é", False), ("a\tb", False), ("a b", True)],
)
def test_a_token_is_short_printable_ascii(token: str, good: bool) -> None:
    if good:
        check(Settings(token=token))
        return
    with pytest.raises(PlanError, match="a token must be printable ASCII of at most 4096 characters"):
        check(Settings(token=token))


def test_a_token_comes_from_its_file_or_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    assert read_token(None) == ""
    monkeypatch.setenv(TOKEN, " from outside\n")
    assert read_token(None) == "from outside"
    path = tmp_path / "token"
    path.write_text(" secret\n")
    assert read_token(path) == "secret"
    path.write_bytes(b"x" * TOKEN_FILE_BYTES)
    assert len(read_token(path)) == TOKEN_FILE_BYTES
    for content, says in (
        (b"x" * (TOKEN_FILE_BYTES + 1), "is larger than"),
        (b" \n", "is empty"),
        (b"\xff", "cannot read the token file"),
    ):
        path.write_bytes(content)
        with pytest.raises(SourceError, match=says):
            read_token(path)
    with pytest.raises(SourceError, match="No such file"):
        read_token(tmp_path / "none")
    with pytest.raises(SourceError, match="is a folder, a pipe or a device"):
        read_token(tmp_path)


def test_addresses_of_ipv6_stand_in_brackets() -> None:
    assert [bracketed(host) for host in ("127.0.0.1", "::1", "here")] == ["127.0.0.1", "[::1]", "here"]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Open a server over a folder of a kind, whose model is nothing."""
    threads = torch.get_num_threads()

    def made(kind: str, *, stored: Any = None, trust: Any = None, copies: Any = None, **settings: Any) -> Server:
        place = tmp_path / "clicks"
        place.mkdir(exist_ok=True)
        folder = SimpleNamespace(
            kind=kind, folder=place, online=place / "online.json", published="versions", stored=stored, trust=trust
        )
        monkeypatch.setattr(module, "ModelFolder", SimpleNamespace(open=lambda path, **how: folder))
        monkeypatch.setattr(module, "ServedRun", SimpleNamespace)
        served = SimpleNamespace(tasks=(), past=None, views=_Other.views) if kind == RUN else _Other()
        monkeypatch.setattr(module, "open_served", lambda *_, **how: served)
        monkeypatch.setattr(module, "OwnCopy", copies or (lambda published: None))
        if module.Reloader is Reloader:
            monkeypatch.setattr(module, "Reloader", lambda *given, **how: given)
        return Server.open(place, Settings(**settings))

    yield made
    torch.set_num_threads(threads)  # a server of a torch model uses one


def test_a_run_is_scored_by_a_thread_and_other_models_on_the_loop(opened: Any) -> None:
    torch.set_num_threads(3)
    for kind, threads in ((RUN, 1), (DEEP_FFM, 0), (CLICK_MODEL, 0)):
        server = opened(kind)
        assert len(server.service.queue.threads) == threads
        assert (server.reloader is None) == (kind == RUN)
        assert torch.get_num_threads() == (3 if kind == DEEP_FFM else 1)  # only torch's models need torch
        torch.set_num_threads(3)
        server.service.queue.drain(1.0)
    server = opened(RUN, threads=0)
    assert not server.service.queue.threads
    server = opened(DEEP_FFM, threads=2, limits=Limits(waiting=7, deadline_ms=250, client_share=0.5))
    queue = server.service.queue
    assert (len(queue.threads), queue.most, queue.deadline, queue.most_of_client) == (2, 9, 0.25, 4)
    assert server.reloader[1] == "versions"
    queue.drain(1.0)


def test_a_model_has_the_name_of_its_folder_and_a_token_takes_the_place_of_names(opened: Any) -> None:
    plain = opened(DEEP_FFM)
    assert (plain.service.name, plain.service.token) == ("clicks", b"")
    assert plain.service.hosts is not None
    named = opened(DEEP_FFM, name="ads", token="secret", host="0.0.0.0")
    assert (named.service.name, named.service.token, named.service.hosts) == ("ads", b"secret", None)


def test_what_a_server_is_made_of_follows_its_settings(opened: Any, tmp_path: Path) -> None:
    plain = opened(DEEP_FFM)
    assert (plain.workers, plain.refresher, plain.service.refresher, plain.certificate) == (1, None, None, None)
    assert plain.service.online == tmp_path / "clicks/online.json"
    assert plain.reloader[3] == 0.5
    assert opened(DEEP_FFM, reload_seconds=7.0).reloader[3] == 7.0
    assert opened(DEEP_FFM, stored=object(), reload_seconds=2.0).reloader[3] == STORED_SECONDS
    assert opened(DEEP_FFM, stored=object(), reload_seconds=9.0).reloader[3] == 9.0
    assert opened(DEEP_FFM, trust="keys").service.online is None  # nobody signed it
    for settings, count in (({"encoders": {"ad": 1}}, 1), ({"encoders": {"ad": 1}, "threads": 0}, 0), ({}, 0)):
        assert len(opened(DEEP_FFM, **settings).service.queue.threads) == count
    with pytest.raises(
        PlanError, match=r"^--views-every 2.5 is not possible: this model joins no views; remove the opt"
    ):
        opened(DEEP_FFM, views_seconds=2.5)
    _Other.views = SimpleNamespace(refreshable=["ads"], names=["ads"])  # type: ignore[assignment]
    try:
        watching = opened(DEEP_FFM, views_seconds=2.5)
        assert watching.refresher is watching.service.refresher is not None
        assert (watching.refresher.every, list(watching.refresher.states)) == (2.5, ["ads"])
    finally:
        _Other.views = NO_VIEWS


@pytest.mark.parametrize(("workers", "shares", "budget"), [(1, False, 900), (3, True, 300)])
def test_workers_share_the_memory_of_the_cache_and_new_versions(
    opened: Any, monkeypatch: pytest.MonkeyPatch, workers: int, shares: bool, budget: int
) -> None:
    monkeypatch.setattr(module, "worker_count", lambda *given: workers)
    monkeypatch.setattr(module, "Reloader", lambda *given, **how: how)
    monkeypatch.setattr(_Other, "cache", SimpleNamespace(budget=900), raising=False)
    server = opened(DEEP_FFM)
    assert (server.workers, server.reloader["shares"], _Other.cache.budget) == (workers, shares, budget)  # type: ignore[attr-defined]


def test_what_cannot_be_opened_removes_its_copy_of_the_weights(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(Server, "_opened", lambda *given: {}["none"])
    with pytest.raises(KeyError, match="none"):
        opened(DEEP_FFM)
    with pytest.raises(KeyError, match="none"):
        opened(DEEP_FFM, copies=lambda published: SimpleNamespace(close=lambda: closed.append(published)))
    assert closed == ["versions"]


# ---- serving, without sockets


class Told:
    """Writes into a list what is asked of it."""

    def __init__(self, events: list[str], _who: str, **facts: Any) -> None:
        self._events, self._name = events, _who
        vars(self).update(facts)

    def __getattr__(self, what: str) -> Any:
        def call(*given: Any) -> Any:
            self._events.append(f"{self._name}.{what}{given or ''}")
            return not getattr(self, "late", False)

        return call


@pytest.mark.parametrize(
    ("stream", "follows", "saves", "late", "expected"),
    [
        ("", False, True, False, ["writer 9", "writer.start", "served", "writer.close"]),
        ("", False, False, False, ["served"]),
        ("", True, True, False, ["follower", "follower.look", "follower.start", "served", "follower.close"]),
        (
            *("clicks", False, True, False),
            [
                *(
                    "follower",
                    "follower.look",
                    "writer 9",
                    "stream.start",
                    "stream.wait(20.0,)",
                    "writer.start",
                    "served",
                ),
                *("stream.close", "writer.close"),
            ],
        ),
        (
            *("clicks", False, False, True),
            ["follower", "follower.look", "stream.start", "stream.wait(20.0,)", "served", "stream.close"],
        ),
    ],
)
def test_the_state_of_histories_is_kept_while_a_server_serves(
    stream: str,
    follows: bool,
    saves: bool,
    late: bool,
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    events: list[str] = []
    monkeypatch.setattr(module, "StateFollower", lambda past: events.append("follower") or Told(events, "follower"))
    monkeypatch.setattr(
        module, "StateWriter", lambda past, every: events.append(f"writer {every}") or Told(events, "writer")
    )
    made = Told(events, "stream", late=late, name=stream) if stream else None
    past = SimpleNamespace(shared=follows or bool(stream), follows=follows, stream=made)
    service = SimpleNamespace(served=SimpleNamespace(past=past))
    server = Server(Settings(state_seconds=9), service, None)  # type: ignore[arg-type]
    with server._keeping_state(saves):
        events.append("served")
    assert events == expected
    warned = ["serving begins before all events of clicks were fed"]
    assert caplog.messages == (warned if late else [])
    events.clear()

    def broken() -> None:
        with server._keeping_state(saves):
            events.append("served")
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        broken()
    assert events == expected  # what was started is closed
    service.served.past = None
    with server._keeping_state(saves):
        pass
    assert events == expected


def test_a_server_ends_its_queue_and_its_watchers(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    service = SimpleNamespace(served=SimpleNamespace(past=None), queue=Told(events, "queue"))
    watchers = [Told(events, "reloader"), Told(events, "refresher")]
    monkeypatch.setattr(module.asyncio, "run", lambda given: events.append(f"run {given}"))
    monkeypatch.setattr(module, "Supervisor", lambda server: Told(events, "supervisor"))
    monkeypatch.setattr(Server, "_run", lambda self, ready, seat, watched: [one is None for one in watched])
    end = ["queue.drain(0,)", "refresher.close", "reloader.close"]
    Server(Settings(), service, watchers[0], refresher=watchers[1]).run()  # type: ignore[arg-type]
    assert events == ["run [False, False]", "queue.drain(0,)", *end]
    events.clear()
    Server(Settings(), service, None).run()  # type: ignore[arg-type]
    assert events == ["run [True, True]", *["queue.drain(0,)"] * 2]
    events.clear()
    Server(Settings(), service, watchers[0], None, 2, watchers[1]).run(print)  # type: ignore[arg-type]
    assert events == [f"supervisor.run({print!r},)", *end]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("watches", [False, True])
def test_a_worker_follows_versions_and_views_and_the_first_one_saves_the_state(
    number: int, watches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    monkeypatch.setattr(
        module, "Follower", lambda served, board, period: events.append(f"{period}") or Told(events, "versions")
    )
    monkeypatch.setattr(module, "ViewFollower", lambda served, desk: Told(events, "views"))
    monkeypatch.setattr(module, "StateWriter", lambda past, seconds: Told(events, "writer"))
    monkeypatch.setattr(module.asyncio, "run", lambda given: events.append(f"run {given}"))
    monkeypatch.setattr(Server, "_run", lambda self, ready, seat, watched: [one is None for one in watched])
    board = Board(2)
    past = SimpleNamespace(shared=False, follows=False, stream=None)
    door = SimpleNamespace(shown=None)
    service: Any = SimpleNamespace(
        served=SimpleNamespace(past=past), metrics=Metrics(started=7.0), door=door, refresher=None
    )
    watched: Any = SimpleNamespace(served=None) if watches else None
    server = Server(Settings(reload_seconds=3.5), service, watched, refresher=watched)
    server.work(SimpleNamespace(desk=Desk(board, number)), print)  # type: ignore[arg-type]
    writer = (["writer.start"], ["writer.close"]) if number == 0 else ([], [])
    watch = (["3.5"], ["versions.close", "views.close"]) if watches else ([], [])
    assert events == [*watch[0], *writer[0], f"run [{not watches}, {not watches}]", *writer[1], *watch[1]]
    service.metrics.add("score", 200, 0.001)
    assert [place.told()["requests"] for place in board.places] == [1 - number, number]
    door.shown[0] = 5
    assert [place.told()["connections"] for place in board.places] == [5 * (1 - number), 5 * number]
    assert service.metrics.started == 7.0


@pytest.mark.parametrize(
    ("workers", "grpc", "expected"), [(1, 0, (90, 8000)), (1, 9, (68, 8000)), (3, 0, (30, 2666)), (3, 9, (23, 2666))]
)
def test_connections_and_bytes_are_divided_among_workers_and_grpc(
    workers: int, grpc: int, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Enough(Exception):
        pass

    def listener(*given: Any) -> None:
        raise Enough

    limited: list[tuple[int, int]] = []
    monkeypatch.setattr(module, "connections_allowed", lambda wanted: wanted)
    monkeypatch.setattr(module, "Listener", listener)
    limits = Limits(connections=90, buffered_bytes=8000)
    service: Any = SimpleNamespace(limits=limits, door=SimpleNamespace(limit=lambda *given: limited.append(given)))
    server = Server(Settings(grpc_port=grpc), service, None, workers=workers)
    with pytest.raises(Enough):
        asyncio.run(server._run(print, None, []))
    assert limited == [expected]
