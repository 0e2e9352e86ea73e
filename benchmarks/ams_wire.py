"""Arrays over a socket, and how many bytes went each way: what a strategy moves is counted here, where it moves.

8    bytes of what follows
…    the array's bytes; both sides know its type
"""

from __future__ import annotations

import socket
import struct
from collections import Counter

import numpy as np

HEAD = struct.Struct("<Q")
MOST = 1 << 33


class Wire:
    """One end of a connection; ``moved`` adds up bytes by what they were for."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self.moved: Counter[str] = Counter()

    def send(self, what: str, array: np.ndarray) -> None:
        body = memoryview(np.ascontiguousarray(array)).cast("B") if array.size else memoryview(b"")
        self.connection.sendall(HEAD.pack(len(body)))
        self.connection.sendall(body)
        self.moved[what] += HEAD.size + len(body)

    def receive(self, what: str, dtype: str, width: int = 0) -> np.ndarray:
        (size,) = HEAD.unpack(self._exactly(HEAD.size))
        if size > MOST:
            raise ValueError(f"{size:,} bytes were announced; expected at most {MOST:,}")
        found = np.frombuffer(self._exactly(size), dtype)
        self.moved[what] += HEAD.size + size
        return found.reshape(-1, width) if width else found

    def _exactly(self, size: int) -> bytearray:
        body = bytearray(size)
        view, got = memoryview(body), 0
        while got < size:
            part = self.connection.recv_into(view[got:])
            if part == 0:
                raise ConnectionError("the other side is gone")
            got += part
        return body


def listen() -> tuple[socket.socket, int]:
    door = socket.socket()
    door.bind(("127.0.0.1", 0))
    door.listen()
    return door, door.getsockname()[1]


def call(port: int) -> Wire:
    return Wire(socket.create_connection(("127.0.0.1", port), timeout=120))
