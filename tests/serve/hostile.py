"""Hostile requests, as bytes on a socket: what a fuzzer, a broken client or an enemy sends.

    python -m tests.serve.hostile 127.0.0.1 8000 --count 10000

Each is sent on a connection of its own. The server must answer with a status below 500, 501 or 503, or close the connection;
it must be alive afterwards and answer a good request as before.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")
VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    2**64,
    10**400,
    1.5,
    1e308,
    -0.0,
    "",
    "x" * 5000,
    "\x00\ud7ff",
    "NaN",
    [],
    [[]],
    [1],
    {},
    {"a": 1},
]
RAW_VALUES = [
    b"NaN",
    b"Infinity",
    b"1e999",
    b"-",
    b'"\\ud800"',
    b'"\\u00',
    b"[" * 3000,
    b"{" * 3000,
    b'{"a":' * 1000,
    b"\xff\xfe",
    b"01",
]


class Hostile:
    """Draws requests from a seed. ``good``: a body of /v1/score that is right."""

    def __init__(self, good: dict[str, Any], name: str, seed: int) -> None:
        self.good, self.name, self.random = good, name, random.Random(seed)
        self.kinds: list[Callable[[], bytes]] = [
            self.noise,
            self.cut,
            self.mutated,
            self.wrong_value,
            self.raw_value,
            self.wrong_shape,
            self.lying_length,
            self.chunked,
            self.bad_head,
            self.tensors,
            self.binary_tensors,
            self.nearly_right_tensors,
            self.paths,
        ]

    def draw(self) -> tuple[str, bytes]:
        kind = self.random.choice(self.kinds)
        return kind.__name__, kind()

    def post(self, path: str, body: bytes, *headers: str, length: int | None = None) -> bytes:
        size = len(body) if length is None else length
        head = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {size}", "Connection: close", *headers]
        return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body

    def score(self, body: bytes) -> bytes:
        return self.post("/v1/score", body)

    def copy(self) -> Any:
        return json.loads(json.dumps(self.good))

    # ---- what is sent

    def noise(self) -> bytes:
        return self.random.randbytes(self.random.choice([0, 1, 7, 100, 3000]))

    def cut(self) -> bytes:
        whole = self.score(json.dumps(self.good).encode())
        return whole[: self.random.randrange(len(whole))]

    def mutated(self) -> bytes:
        body = bytearray(json.dumps(self.good).encode())
        for _ in range(self.random.choice([1, 1, 2, 5, 50])):
            at = self.random.randrange(len(body))
            how = self.random.randrange(3)
            if how == 0:
                body[at] = self.random.randrange(256)
            elif how == 1:
                del body[at : at + self.random.randrange(1, 20)]
            else:
                body[at:at] = self.random.choice(RAW_VALUES[:7])
        return self.score(bytes(body))

    def wrong_value(self) -> bytes:
        body = self.copy()
        place = self.random.choice([body, body["context"], *body["candidates"][:3]])
        key = self.random.choice([*place, "", "unknown", "ad_id", "user_id"])
        place[key] = self.random.choice(VALUES)
        return self.score(json.dumps(body).encode())

    def raw_value(self) -> bytes:
        text = json.dumps(self.good).encode()
        numbers = [m.span() for m in re.finditer(rb"-?\d+", text)]
        begin, end = self.random.choice(numbers)
        return self.score(text[:begin] + self.random.choice(RAW_VALUES) + text[end:])

    def wrong_shape(self) -> bytes:
        body: Any = self.copy()
        rows = body["candidates"]
        choice = self.random.randrange(7)
        if choice == 0:
            body["candidates"] = {n: [r[n] for r in rows][: self.random.randrange(4)] for n in rows[0]}
        elif choice == 1:
            body["candidates"] = rows * 2000
        elif choice == 2:
            body["candidates"] = self.random.choice(VALUES)
        elif choice == 3:
            body["context"] = self.random.choice(VALUES)
        elif choice == 4:
            rows.insert(self.random.randrange(len(rows)), self.random.choice(VALUES))
        elif choice == 5:
            body = self.random.choice(VALUES)
        else:
            rows[0] = {f"column {k}": k for k in range(2000)}
        return self.score(json.dumps(body).encode())

    def lying_length(self) -> bytes:
        body = json.dumps(self.good).encode()
        size = self.random.choice([0, 1, len(body) - 1, len(body) + 1, 10**7, 10**15, 2**64])
        return self.post("/v1/score", body, length=size)

    def chunked(self) -> bytes:
        body = json.dumps(self.good).encode()
        size = self.random.choice([b"%x" % len(body), b"ffffffffffffffff", b"-1", b"zz", b"%x" % (len(body) + 5), b"0"])
        head = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n"
        if self.random.random() < 0.3:
            head += b"Content-Length: 5\r\n"
        return head + b"\r\n" + size + b"\r\n" + body + b"\r\n0\r\n\r\n"

    def bad_head(self) -> bytes:
        body = json.dumps(self.good).encode()
        return self.random.choice(
            [
                b"GET\r\n\r\n",
                b"POST /v1/score HTTP/9.9\r\n\r\n",
                b"POST /v1/score HTTP/1.1\r\n" + b"A: " + b"b" * 100_000 + b"\r\n\r\n",
                b"POST /v1/score HTTP/1.1\r\n" + b"".join(b"H%d: x\r\n" % k for k in range(500)) + b"\r\n",
                b"POST /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                self.post("/v1/score", body, "Content-Encoding: gzip"),
                self.post("/v1/score", body, "Content-Length: 3"),
                self.post("/v1/score", body, "Expect: 100-continue"),
                self.post("/v1/score", body, "Upgrade: websocket", "Connection: Upgrade"),
                self.post("/v1/score", body, "Authorization: Basic " + "A" * 5000),
            ]
        )

    def tensors(self) -> bytes:
        inputs = []
        for name in self.random.sample(
            ["ad_id", "user_id", "query", "ts", "position", "device", "context", "nothing"], 5
        ):
            inputs.append(
                {
                    "name": self.random.choice([name, 5, None, ""]) if self.random.random() < 0.2 else name,
                    "shape": self.random.choice(
                        [[1], [3], [1, 1], [-1], [2**40], [2**31, 2**31], [], "3", [1.5], [0], None]
                    ),
                    "datatype": self.random.choice(["INT64", "BYTES", "FP32", "FP99", "BOOL", "UINT8", None, 7]),
                    "data": self.random.choice(
                        [[1], ["a"], [1, 2, 3], [[1]], VALUES, None, "x", [True], [10**30], [-1]]
                    ),
                }
            )
        body = {"inputs": self.random.choice([inputs, inputs[:1], [], None, {}, inputs * 400])}
        if self.random.random() < 0.3:
            body["outputs"] = self.random.choice([[{"name": "x"}], 5, [5], [{"name": "score", "parameters": 3}]])
        return self.post(f"/v2/models/{self.name}/infer", json.dumps(body).encode())

    def binary_tensors(self) -> bytes:
        raw = struct.pack("<I", self.random.choice([0, 3, 2**31, 2**32 - 1])) + self.random.randbytes(
            self.random.randrange(40)
        )
        kind = self.random.choice(["BYTES", "INT64", "FP32"])
        size = self.random.choice([0, len(raw), len(raw) + 1, -1, 2**63, "3", None, 1.5])
        shape = self.random.choice([[1], [5], [2**20], [2**30, 2**30]])
        entry = {"name": "query", "shape": shape, "datatype": kind, "parameters": {"binary_data_size": size}}
        head = json.dumps({"inputs": [entry] * self.random.choice([1, 2])}).encode()
        claimed = self.random.choice([len(head), 0, -1, len(head) + 10**6, "abc", 2**70, len(head) - 3, "9" * 5000, ""])
        header = f"Inference-Header-Content-Length: {claimed}"
        return self.post(f"/v2/models/{self.name}/infer", head + raw, header)

    def nearly_right_tensors(self) -> bytes:
        """The good request as binary tensors, with one thing wrong that a reader may trust: a size, a type, a byte, an end."""
        columns = {name: [value] for name, value in self.good["context"].items()}
        columns |= {name: [row[name] for row in self.good["candidates"]] for name in self.good["candidates"][0]}
        inputs: list[dict[str, Any]] = []
        rest = b""
        for name, values in columns.items():
            if any(isinstance(value, str) for value in values):
                kind = "BYTES"
                raw = b"".join(struct.pack("<I", len(t)) + t for t in (str(v or "").encode() for v in values))
            else:
                kind = "FP64" if any(isinstance(value, float) for value in values) else "INT64"
                raw = struct.pack(f"<{len(values)}{'d' if kind == 'FP64' else 'q'}", *(v or 0 for v in values))
            size = {"binary_data_size": len(raw)}
            inputs.append({"name": name, "shape": [len(values)], "datatype": kind, "parameters": size})
            rest += raw
        what, entry = self.random.randrange(9), self.random.choice(inputs)
        if what == 0:
            rest = rest[: self.random.randrange(len(rest))]
        elif what in (1, 2):
            at = self.random.randrange(len(rest))
            rest = rest[:at] + self.random.choice([b"\xff", b"\x80", b"\x00", b"\x7f"]) + rest[at + 1 :]
        elif what == 3:
            entry["parameters"]["binary_data_size"] = self.random.choice([0, 1, 2**31, 2**32, 2**63, 2**64, -1, 10**30])
        elif what == 4:
            entry["datatype"] = self.random.choice(["FP16", "FP32", "FP64", "BOOL", "INT8", "UINT64", "BYTES", "INT64"])
        elif what == 5:
            entry["shape"] = self.random.choice([[0], [2**31 - 1], [2**62], [1] * 100_000, [1, 2**31 - 1], [-1]])
        elif what == 6:
            inputs.insert(self.random.randrange(len(inputs)), entry)
        elif what == 7:
            inputs.remove(entry)
        else:
            inputs += [{**entry, "name": f"column {k}"} for k in range(1000)]
        head = json.dumps({"inputs": inputs}).encode()
        header = f"Inference-Header-Content-Length: {len(head)}"
        return self.post(f"/v2/models/{self.name}/infer", head + rest, header)

    def paths(self) -> bytes:
        version = self.random.choice([0, -1, 10**50, "x"])
        known = [
            "/v2/models//infer",
            "/v2/models/%00/infer",
            "/v2/models/%ff",
            "//",
            "/v2/models/a/versions/",
            "/..%2f..",
            "*",
        ]
        path = self.random.choice([*known, f"/v2/models/{self.name}/versions/{version}/infer", "/v1/score?x=1", "/%"])
        method = self.random.choice(["GET", "POST", "PUT", "HEAD", "OPTIONS", "TRACE", "CONNECT", "BREW"])
        return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode("latin-1")


def exchange(host: str, port: int, data: bytes, wait: float) -> list[int] | None:
    """The statuses that came back; None where the connection was closed without one."""
    with socket.create_connection((host, port), timeout=wait) as s:
        found = b""
        with contextlib.suppress(OSError):
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            while part := s.recv(65_536):
                found += part
    return [int(code) for code in STATUS.findall(found)] or None


def attack(
    host: str, port: int, good: dict[str, Any], name: str, count: int, seed: int = 0, wait: float = 15.0
) -> Counter[Any]:
    """Statuses met, by kind of request; AssertionError at the first 5xx other than 501 and 503."""
    hostile, met = Hostile(good, name, seed), Counter[Any]()
    for number in range(count):
        kind, data = hostile.draw()
        statuses = exchange(host, port, data, wait)
        for status in statuses or ["closed"]:
            met[kind, status] += 1
            assert status == "closed" or status < 500 or status in (501, 503), (number, kind, status, data[:2000])
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description="Send hostile requests to a server of `ctrbox serve`.")
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("--body", required=True, help="file with a good body of /v1/score")
    parser.add_argument("--name", default="model")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with open(given.body, encoding="utf-8") as file:
        good = json.load(file)
    met = attack(given.host, given.port, good, given.name, given.count, given.seed)
    for (kind, status), times in sorted(met.items(), key=str):
        print(f"{kind:16} {status!s:>7} {times:>7,}")
    statuses = exchange(given.host, given.port, Hostile(good, given.name, 0).score(json.dumps(good).encode()), 15.0)
    print(f"{given.count:,} hostile requests; a good one afterwards: {statuses}")
    sys.exit(statuses != [200])


if __name__ == "__main__":
    main()
