"""Accepts connections: opens the listening sockets, limits connections, starts TLS, and closes connections that are too
slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import time
from collections.abc import Sequence
from typing import Any

from ctrbox.errors import PlanError
from ctrbox.serve.http_connection import Connection, response
from ctrbox.serve.log_limit import LogLimit
from ctrbox.serve.refused_request import overloaded
from ctrbox.serve.routes import Routes, answer_of
from ctrbox.serve.service import Service
from ctrbox.serve.tls import Certificate

BACKLOG = 1024
ACCEPTED_AT_ONCE = 32  # connections taken in one turn of the loop, so that a flood of them does not stop the answers
STAND_BACK_SECONDS = 0.001  # that a worker leaves a new connection to one that has fewer
PAUSE_SECONDS = 0.1  # before the next try where the process has no file handle left
SWEEP_SECONDS = 0.5
POST_SECONDS = 0.05  # after an answer, until other workers see this worker's figures
IDLE_SECONDS = 75.0  # a connection without a request is kept so long
log = logging.getLogger("ctrbox.serve")


class Listener:
    """Listens for connections: call ``start`` on a running loop, and ``stop`` at the end.

    Raises PlanError if it cannot listen at the address.

    ``sockets`` are sockets that the workers share and that listen already. The kernel then wakes every worker for a new
    connection, and the first worker that asks gets it. So that a fast worker does not get all of them, a worker takes one
    connection at a time, and a worker that has more connections than another waits a moment before it takes the next.
    """

    def __init__(
        self,
        service: Service,
        host: str,
        port: int,
        certificate: Certificate | None = None,
        sockets: Sequence[socket.socket] = (),
    ) -> None:
        self.service, self.certificate = service, certificate
        self.loop = asyncio.get_running_loop()
        self.door = service.door
        self.routes = Routes(service)
        self.connections: set[Connection] = set()
        self.log_limit = LogLimit()
        self.sockets = list(sockets) or listening_sockets(host, port)
        self._beginning: set[asyncio.Task[None]] = set()
        self._timers: list[asyncio.TimerHandle] = []
        self._posting = False  # the figures will be posted
        self._no_room = response(
            answer_of(overloaded("this server has too many connections; retry shortly")), True, False
        )

    def start(self) -> None:
        self.log_limit.attach()
        for sock in self.sockets:
            self.loop.add_reader(sock.fileno(), self.accept, sock)
        self.sweep()

    def stop(self) -> None:
        """Stop listening, and end the connections that are left."""
        for timer in self._timers:
            timer.cancel()
        for sock in self.sockets:
            self.loop.remove_reader(sock.fileno())
            sock.close()
        self.sockets = []
        for task in self._beginning:
            task.cancel()
        for connection in list(self.connections):
            connection.close()
        self.log_limit.tell()
        self.log_limit.detach()

    def accept(self, sock: socket.socket) -> None:
        """Accept waiting connections. With several workers, the one with the fewest connections accepts the next."""
        desk = self.service.desk
        if desk is None:
            self.take(sock, ACCEPTED_AT_ONCE)
        elif desk.crowded(self.door.connections):
            self.listen_later(sock, STAND_BACK_SECONDS, take_one=True)
        else:
            self.take(sock, 1)

    def take(self, sock: socket.socket, most: int) -> None:
        for _ in range(most):
            try:
                taken, address = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self.pause(sock, error)
                return
            taken.setblocking(False)
            client = None if self.service.queue.closed else self.door.enter(address[0])
            if client is None:
                self.turn_away(taken)
                continue
            connection = Connection(self, client)
            self.connections.add(connection)
            task = connection.starting = self.loop.create_task(self.begin(taken, connection))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)

    async def begin(self, taken: socket.socket, connection: Connection) -> None:
        options: dict[str, Any] = {}
        if self.certificate is not None:
            seconds = self.service.limits.body_seconds
            options = {"ssl": self.certificate.context, "ssl_handshake_timeout": seconds, "ssl_shutdown_timeout": 1.0}
        try:
            await self.loop.connect_accepted_socket(lambda: connection, taken, **options)
        except (OSError, TimeoutError):  # the client went away, or its TLS handshake failed
            connection.leave()
        except asyncio.CancelledError:  # dropped, or the end; asyncio has closed the socket
            connection.leave()
            raise

    def turn_away(self, taken: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if self.certificate is None:
                taken.send(self._no_room)
        taken.close()

    def pause(self, sock: socket.socket, error: OSError) -> None:
        """Wait a moment if no connection can be accepted. The socket stays readable, so trying at once would keep a core busy."""
        log.warning("cannot take a connection for now: %s", error.strerror or error)
        if error.errno in (errno.EMFILE, errno.ENFILE):
            self.door.make_room()
        self.listen_later(sock, PAUSE_SECONDS)

    def listen_later(self, sock: socket.socket, seconds: float, take_one: bool = False) -> None:
        """Accept no connection of a socket for a while. With ``take_one``, accept one after that if nobody else did."""
        self.loop.remove_reader(sock.fileno())

        def again() -> None:
            if sock in self.sockets:
                self.loop.add_reader(sock.fileno(), self.accept, sock)
                if take_one:
                    self.take(sock, 1)

        self.loop.call_later(seconds, again)

    def answered(self) -> None:
        """Show the figures of this worker to the others soon; the figures after several answers are shown together."""
        if self.service.desk is not None and not self._posting:
            self._posting = True
            self.loop.call_later(POST_SECONDS, self.post)

    def post(self) -> None:
        self._posting = False
        self.service.post()

    def sweep(self) -> None:
        now = time.monotonic()
        idle = self.service.limits.body_seconds if self.service.queue.closed else IDLE_SECONDS
        for connection in list(self.connections):
            connection.check_time(now, idle)
        if self.certificate is not None:
            self.certificate.refresh()
        self.log_limit.tell()
        self.post()
        self._timers = [self.loop.call_later(SWEEP_SECONDS, self.sweep)]


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """Open the sockets of every address of ``host``. Raise a PlanError if it is not possible to listen at any of them."""
    opened: list[socket.socket] = []
    failure: Exception | None = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                sock = socket.socket(family, kind, protocol)
            except OSError as error:  # a machine without IPv6
                failure = error
                continue
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind(address)
                sock.listen(BACKLOG)
            except OSError as error:
                sock.close()
                failure = error
                if error.errno == errno.EADDRNOTAVAIL:
                    continue
                raise
            sock.setblocking(False)
            opened.append(sock)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that IDNA cannot write
        for sock in opened:
            sock.close()
        opened, failure = [], error
    if not opened:
        name = f"[{host}]" if ":" in host else host
        raise PlanError(
            f"cannot listen at {name[:100]}:{port}: {getattr(failure, 'strerror', None) or failure}"
        ) from failure
    return opened
