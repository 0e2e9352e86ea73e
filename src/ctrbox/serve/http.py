"""HTTP: an ASGI application without a framework, because the hot route is all there is to be fast.

    POST /v1/score                    {"context": …, "candidates": …} → {"scores": […], "version": 7}
    GET  /v2 …                        the Open Inference Protocol, JSON and binary tensors
    GET  /healthz, /v2/health/live    liveness; everything else asks for the token, where there is one
    GET  /metrics, /openapi.json, /docs, /, /v1/live

A body is counted while it is read, whatever its header claims. Every refusal is a status and {"error": one sentence}.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any
from urllib.parse import unquote

import orjson

from ctrbox.errors import CtrboxError
from ctrbox.serve.refused import Refused, overloaded
from ctrbox.serve.service import Service
from ctrbox.serve.tensors import infer_answer, read_infer

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]

JSON, TEXT, HTML = b"application/json", b"text/plain; version=0.0.4; charset=utf-8", b"text/html; charset=utf-8"
BINARY = b"application/octet-stream"
LENGTH_OF_JSON = b"inference-header-content-length"
LIVENESS = frozenset(["/healthz", "/v2/health/live"])
# A page asks nobody but its own server.
PAGE_HEADERS: tuple[Header, ...] = (
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
)
log = logging.getLogger("ctrbox.serve")


class Application:
    """``await app(scope, receive, send)``, as ASGI has it."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.pages: dict[str, Callable[[], tuple[bytes, bytes]]] = {
            "/healthz": lambda: (b'{"status":"ok"}', JSON),
            "/metrics": lambda: (service.prometheus().encode(), TEXT),
            "/v1/live": lambda: (orjson.dumps(service.live(), option=orjson.OPT_NON_STR_KEYS), JSON),
            "/openapi.json": self.openapi,
            "/docs": self.docs,
            "/": self.page,
            "/v2": lambda: (orjson.dumps(service.server_metadata()), JSON),
            "/v2/": lambda: (orjson.dumps(service.server_metadata()), JSON),
            "/v2/health/live": lambda: (b"", JSON),
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await lifespan(receive, send)
            return
        began = time.perf_counter()
        path: str = scope["path"]
        route, candidates, extra = "score" if path == "/v1/score" else "other", 0, ()
        more: Iterable[Header]
        try:
            headers = dict(scope["headers"])
            if (
                self.service.token
                and path not in LIVENESS
                and not self.service.allows(headers.get(b"authorization", b""))
            ):
                raise Refused(401, "this server asks for a token: Authorization: Bearer …")
            if path == "/v1/score":
                self.need(scope, "POST")
                body = await self.body(headers, receive)
                began = time.perf_counter()
                answer, candidates = await self.service.queue.run(partial(self.score, body))
                kind, more, status = JSON, extra, 200
            elif path in self.pages:
                self.need(scope, "GET")
                answer, kind = self.pages[path]()
                more, status = PAGE_HEADERS if kind is HTML else extra, 200
            elif path.startswith("/v2/"):
                route = "infer" if path.endswith("/infer") else "other"
                status, answer, kind, more, candidates, began = await self.v2(scope, path, headers, receive)
            else:
                raise Refused(404, f"there is nothing at {path[:100]!r}; see /docs")
        except Refused as refused:
            status, answer, kind, more = refused.status, error_body(str(refused)), JSON, refusal_headers(refused)
        except CtrboxError as error:
            status, answer, kind, more = 400, error_body(str(error)), JSON, ()
        except Exception:
            log.exception("a request failed")
            status, answer, kind, more = 500, error_body("internal error; the server's log has more"), JSON, ()
        self.service.metrics.add(route, status, time.perf_counter() - began, candidates)
        start = [(b"content-type", kind), (b"content-length", b"%d" % len(answer)), *more]
        await send({"type": "http.response.start", "status": status, "headers": start})
        await send({"type": "http.response.body", "body": answer})

    @staticmethod
    def need(scope: Message, method: str) -> None:
        if scope["method"] != method:
            raise Refused(405, f"{scope['path'][:100]} takes {method}, not {scope['method'][:20]}")

    async def body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """The whole body, never more than the limit in memory."""
        limits, service = self.service.limits, self.service
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise Refused(415, "bodies are taken as they are, without a Content-Encoding")
        claimed = headers.get(b"content-length", b"0")
        if claimed.isdigit() and (len(claimed) > 18 or int(claimed) > limits.body_bytes):
            raise too_large(limits.body_bytes)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":  # said all the same: a client may have closed one side only
                        raise Refused(400, f"the body ended after {size} bytes, before its end")
                    part = message.get("body", b"")
                    size += len(part)
                    service.buffered += len(part)
                    if size > limits.body_bytes:
                        raise too_large(limits.body_bytes)
                    if service.buffered > limits.buffered_bytes:
                        raise overloaded("too many bodies are being read; ask again in a moment")
                    if not message.get("more_body", False):
                        return b"".join((*parts, part)) if parts else part
                    parts.append(part)
        except TimeoutError:
            raise Refused(408, f"the body was not complete within {limits.body_seconds:g} s") from None
        finally:
            service.buffered -= size

    # ---- scoring, in a thread of the queue

    def score(self, body: bytes) -> tuple[bytes, int]:
        request = self.service.served.reader.from_json(body)
        scores, version = self.service.score(request)
        answer = orjson.dumps({"version": version, "scores": scores}, option=orjson.OPT_SERIALIZE_NUMPY)
        return answer, request.rows

    def infer(self, body: bytes, header: str | None, version: str) -> tuple[bytes, int | None, int]:
        asked = read_infer(body, header)
        request = self.service.served.reader.from_tensors(asked.tensors)
        scores, served = self.service.score(request, version)
        answer, json_bytes = infer_answer(self.service.name, served, asked, scores)
        return answer, json_bytes, request.rows

    # ---- the Open Inference Protocol

    async def v2(
        self, scope: Message, path: str, headers: dict[bytes, bytes], receive: Receive
    ) -> tuple[int, bytes, bytes, Iterable[Header], int, float]:
        service, began = self.service, time.perf_counter()
        if path == "/v2/health/ready":
            self.need(scope, "GET")
            return (200 if service.ready else 503), b"", JSON, (), 0, began
        if path == "/v2/repository/index":
            self.need(scope, "POST")
            index = [{"name": service.name, "version": str(service.served.version), "state": "READY"}]
            return 200, orjson.dumps(index), JSON, (), 0, began
        steps = path.split("/")[3:] if path.startswith("/v2/models/") else []
        name = unquote(steps[0]) if steps else ""
        version, rest = (steps[2], steps[3:]) if steps[1:2] == ["versions"] and len(steps) > 2 else ("", steps[1:])
        if not name or rest not in ([], ["ready"], ["config"], ["infer"]):
            raise Refused(404, f"there is nothing at {path[:100]!r}; see /docs")
        service.check_model(name, version)
        if rest != ["infer"]:
            self.need(scope, "GET")
            if rest == ["ready"]:
                return (200 if service.ready else 503), b"", JSON, (), 0, began
            told = service.model_config() if rest == ["config"] else service.model_metadata()
            return 200, orjson.dumps(told), JSON, (), 0, began
        self.need(scope, "POST")
        body = await self.body(headers, receive)
        began = time.perf_counter()
        header = headers.get(LENGTH_OF_JSON)
        text = None if header is None else header.decode("latin-1")
        answer, json_bytes, rows = await service.queue.run(partial(self.infer, body, text, version))
        if json_bytes is None:
            return 200, answer, JSON, (), rows, began
        return 200, answer, BINARY, ((LENGTH_OF_JSON, b"%d" % json_bytes),), rows, began

    # ---- pages

    def openapi(self) -> tuple[bytes, bytes]:
        from ctrbox.serve.openapi import openapi

        return orjson.dumps(openapi(self.service)), JSON

    def docs(self) -> tuple[bytes, bytes]:
        from ctrbox.serve.openapi import docs, openapi

        return docs(openapi(self.service)).encode(), HTML

    def page(self) -> tuple[bytes, bytes]:
        from ctrbox.serve.page import page

        return page(self.service).encode(), HTML


def too_large(most: int) -> Refused:
    return Refused(413, f"the body is larger than {most:,} bytes, the most this server takes")


def error_body(message: str) -> bytes:
    return orjson.dumps({"error": message[:2000].encode(errors="replace").decode()})


def refusal_headers(refused: Refused) -> list[Header]:
    if refused.status == 401:
        return [(b"www-authenticate", b'Bearer, Basic realm="ctrbox: any name, the token as password"')]
    return [(b"retry-after", b"%d" % refused.retry_after)] if refused.retry_after else []


async def lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
