"""The listener on real sockets, with connections that do nothing: who is taken, who is turned away, and what is done in time."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ctrbox.serve import listener as module
from ctrbox.serve.listener import IDLE_SECONDS, Listener
from ctrbox.serve.service import Limits
from tests.serve.test_service import service_of


class Front(Listener):
    """A listener whose connections only are counted."""

    begun = 0

    async def begin(self, taken: socket.socket, connection: Any) -> None:
        self.begun += 1
        taken.close()


def on_loop(
    work: Callable[[Front, socket.socket, list[socket.socket]], Awaitable[None]], clients: int = 0, **settings: Any
) -> None:
    """Run ``work`` beside a listener at which so many clients wait."""
    certificate = settings.pop("certificate", None)

    async def run() -> None:
        with contextlib.ExitStack() as held:
            sock = held.enter_context(socket.create_server(("127.0.0.1", 0)))
            sock.setblocking(False)
            address = sock.getsockname()
            waiting = [held.enter_context(socket.create_connection(address, timeout=10)) for _ in range(clients)]
            front = Front(service_of(**settings), "127.0.0.1", 0, certificate, [sock])
            await work(front, sock, waiting)
            await asyncio.sleep(0)
            for timer in front._timers:
                timer.cancel()

    asyncio.run(run())


def test_so_many_connections_are_taken_in_a_turn() -> None:
    async def work(front: Front, sock: socket.socket, waiting: list[socket.socket]) -> None:
        front.take(sock, 2)
        await asyncio.sleep(0)
        assert (front.begun, len(front.connections), front.door.connections) == (2, 2, 2)
        front.take(sock, 5)  # the third, and then there is none
        while front._beginning:
            await asyncio.sleep(0)
        assert (front.begun, front.door.connections) == (3, 3)

    on_loop(work, 3)


def test_a_worker_with_more_connections_stands_back_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    crowded = [True]

    async def work(front: Front, sock: socket.socket, waiting: list[socket.socket]) -> None:
        front.service.desk = SimpleNamespace(crowded=lambda connections: crowded[0])  # type: ignore[assignment]
        front.accept(sock)
        assert front.begun == len(front.connections) == 0
        while not front.connections:
            await asyncio.sleep(0)
        front.loop.remove_reader(sock.fileno())
        before = len(front.connections)
        crowded[0] = False
        front.accept(sock)
        assert len(front.connections) == before + 1  # one at a time
        front.service.desk = None
        front.accept(sock)
        assert len(front.connections) == 5
        front.sockets = []
        front.listen_later(sock, 0.0, take_one=True)  # a socket that was closed meanwhile
        await asyncio.sleep(0.002)
        assert not front.loop.remove_reader(sock.fileno())

    monkeypatch.setattr(module, "STAND_BACK_SECONDS", 0.0)
    on_loop(work, 5)


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("closed", [False, True])
def test_who_finds_no_room_is_told_so_in_plain_http(secure: bool, closed: bool) -> None:
    async def work(front: Front, sock: socket.socket, waiting: list[socket.socket]) -> None:
        if closed:
            front.service.queue.close()
        front.take(sock, 1)
        for connection in front.connections:  # it has a request under way
            connection.client.idle.clear()
        front.take(sock, 1)
        turned = waiting[0] if closed else waiting[1]
        told = turned.recv(1000)
        assert told.startswith(b"HTTP/1.1 503") is not secure
        assert (b"this server has too many connections; retry shortly" in told) is not secure
        assert (b"connection: close" in told) is not secure
        assert len(front.connections) == (0 if closed else 1)

    certificate = SimpleNamespace(refresh=lambda: None) if secure else None
    on_loop(work, 2, certificate=certificate, limits=Limits(connections=1, client_share=1.0))


@pytest.mark.parametrize(("number", "drops"), [(errno.EMFILE, 1), (errno.ENFILE, 1), (errno.EPERM, 0)])
def test_a_connection_that_cannot_be_taken_is_tried_again_later(
    number: int, drops: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.0)
    asked: list[int] = []

    async def work(front: Front, sock: socket.socket, waiting: list[socket.socket]) -> None:
        def accept() -> Any:
            raise OSError(number, os.strerror(number))

        broken: Any = SimpleNamespace(accept=accept, fileno=sock.fileno)
        front.sockets = [broken]
        monkeypatch.setattr(front.door, "make_room", lambda: asked.append(1))
        front.loop.add_reader(sock.fileno(), print)
        front.take(broken, 3)
        assert len(asked) == drops
        assert caplog.messages == [f"cannot take a connection for now: {os.strerror(number)}"]
        assert not front.loop.remove_reader(sock.fileno())  # not listened to for now
        await asyncio.sleep(0.002)
        assert front.loop.remove_reader(sock.fileno())

    on_loop(work)


def test_figures_are_posted_once_after_several_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POST_SECONDS", 0.0)
    posted: list[int] = []

    async def work(front: Front, sock: socket.socket, waiting: list[socket.socket]) -> None:
        front.answered()
        await asyncio.sleep(0.002)
        assert posted == []  # there is nobody to tell
        front.service.desk = SimpleNamespace(post=lambda figures: posted.append(1))  # type: ignore[assignment]
        for count in (1, 2):
            for _ in range(3):
                front.answered()
            await asyncio.sleep(0.002)
            assert len(posted) == count

    on_loop(work)


class Watched:
    """A connection that keeps what time it was given."""

    def __init__(self) -> None:
        self.idle: list[float] = []

    def check_time(self, now: float, idle: float) -> None:
        self.idle.append(idle)


def test_a_sweep_closes_idle_connections_sooner_at_the_end() -> None:
    refreshed: list[int] = []

    async def work(front: Front, sock: socket.socket, waiting: list[socket.socket]) -> None:
        one: Any = Watched()
        front.connections.add(one)
        front.sweep()
        front.service.queue.close()
        front.sweep()
        assert one.idle == [IDLE_SECONDS, 4.5]
        assert len(front._timers) == 1
        assert len(refreshed) == 2

    certificate = SimpleNamespace(refresh=lambda: refreshed.append(1))
    on_loop(work, certificate=certificate, limits=Limits(body_seconds=4.5))
