"""Hostile clients, each kind from loopback addresses of its own. A part of benchmarks/hostile.py.

python -m benchmarks.hostile_clients PORT SECONDS

    idle        connections that send nothing                                 127.0.0.2, 127.0.0.3
    slow        heads of which a byte comes now and then                      127.0.0.4
    unfinished  bodies of 1 MB that lack their last bytes                     127.0.0.5, 127.0.0.6
    chunked     bodies in chunks of one byte                                  127.0.0.7
    oversized   bodies that claim 100 MB, and chunked ones without an end     127.0.0.8
    forged      wrong tokens, two Host headers, Content-Length twice, noise   127.0.0.9

Each kind has a bounded number of connections and acts at a fixed rate, from one thread with non-blocking sockets, so that the
clients take little of the machine that the server needs as well. The last line is JSON: what each kind did, and the CPU time.
"""

from __future__ import annotations

import contextlib
import errno
import json
import resource
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable

HEAD = b"POST /v1/score HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %b\r\n"
TOKEN = b"good"  # most of them know it: what they do not need is to be let in
MB = 1 << 20
FORGED = [
    HEAD % b"wrong" + b"Content-Length: 500000\r\n\r\n" + b" " * 1000,
    HEAD % TOKEN + b"Host: other\r\n\r\n",
    HEAD % TOKEN + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}{}{}",
    HEAD % TOKEN + b"Content-Length: 2\r\n\r\n{}",  # in form, without sense
    b"GET /\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01" + bytes(100),
]


class Attack:
    """One kind of hostile client: at most ``most`` connections, ``rate`` actions a second."""

    def __init__(self, port: int, addresses: list[int], most: int, rate: float, act: Callable[[Attack], None]) -> None:
        self.port, self.addresses, self.most, self.rate, self.act = port, addresses, most, rate, act
        self.held: list[socket.socket] = []
        self.did: Counter[str] = Counter()
        self.sent = 0
        self.began = time.monotonic()
        self.acted = 0

    def due(self, now: float) -> None:
        wanted = int((now - self.began) * self.rate)
        for _ in range(min(wanted - self.acted, 20)):
            self.acted += 1
            with contextlib.suppress(OSError):
                self.act(self)
        self.acted = wanted

    def connect(self, keep: bool = True) -> socket.socket | None:
        """Open a connection, unless as many are held as may be; the oldest is looked at first."""
        if self.held and keep:
            oldest = self.held[0]
            try:
                gone = oldest.recv(1000) == b""
                self.did["answered"] += not gone
            except BlockingIOError:
                gone = False
            except OSError:
                gone = True
            if gone:
                self.did["closed by the server"] += 1
                self.held.pop(0).close()
            else:
                self.held.append(self.held.pop(0))
        if keep and len(self.held) >= self.most:
            return None
        s = socket.socket()
        s.setblocking(False)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MB)
        s.bind((f"127.0.0.{self.addresses[self.did['opened'] % len(self.addresses)]}", 0))
        if s.connect_ex(("127.0.0.1", self.port)) not in (0, errno.EINPROGRESS):
            s.close()
            return None
        self.did["opened"] += 1
        if keep:
            self.held.append(s)
        return s

    def send(self, s: socket.socket, data: bytes) -> None:
        with contextlib.suppress(BlockingIOError):
            self.sent += s.send(data)


def idle(a: Attack) -> None:
    a.connect()


def slow(a: Attack) -> None:
    s = a.connect()
    if s is not None:
        a.send(s, b"POST /v1/score HT")
    elif a.held:
        a.send(a.held[a.acted % len(a.held)], b"x")


def unfinished(a: Attack) -> None:
    s = a.connect()
    if s is not None:
        a.send(s, HEAD % TOKEN + b"Content-Length: %d\r\n\r\n" % MB + b" " * (MB - 1000))


def chunked(a: Attack) -> None:
    s = a.connect()
    if s is not None:
        a.send(s, HEAD % TOKEN + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 250)
    elif a.held:
        a.send(a.held[a.acted % len(a.held)], b"1\r\n \r\n" * 100)


def oversized(a: Attack) -> None:
    s = a.connect()
    if s is not None:
        ending = (
            b"Content-Length: 100000000\r\n\r\n{" if a.acted % 2 else b"Transfer-Encoding: chunked\r\n\r\nfffffff\r\n"
        )
        a.send(s, HEAD % TOKEN + ending + b" " * 10_000)


def forged(a: Attack) -> None:
    s = a.connect()
    if s is not None:
        a.send(s, FORGED[a.acted % len(FORGED)])


def main() -> None:
    port, seconds = int(sys.argv[1]), float(sys.argv[2])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    attacks = {
        "idle": Attack(port, [2, 3], 3000, 150, idle),
        "slow": Attack(port, [4], 200, 60, slow),
        "unfinished": Attack(port, [5, 6], 400, 20, unfinished),
        "chunked": Attack(port, [7], 50, 20, chunked),
        "oversized": Attack(port, [8], 50, 20, oversized),
        "forged": Attack(port, [9], 50, 40, forged),
    }
    until = time.monotonic() + seconds
    while (now := time.monotonic()) < until:
        for attack in attacks.values():
            attack.due(now)
        time.sleep(0.01)
    used = resource.getrusage(resource.RUSAGE_SELF)
    told = {
        name: {**attack.did, "held": len(attack.held), "bytes sent": attack.sent} for name, attack in attacks.items()
    }
    for attack in attacks.values():
        for s in attack.held:
            s.close()
    print(json.dumps({"attacks": told, "cpu_seconds": used.ru_utime + used.ru_stime}))


if __name__ == "__main__":
    main()
