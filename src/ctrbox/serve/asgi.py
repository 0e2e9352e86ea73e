"""The routes as an ASGI application, for Granian and uvicorn. A body is counted while it is read, whatever its header claims."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ctrbox.serve.refused import Refused, overloaded
from ctrbox.serve.routes import Answer, Headers, Routes, Scoring, answer_of, too_large
from ctrbox.serve.service import Service

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Application:
    """``await app(scope, receive, send)``."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.routes = Routes(service)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await lifespan(receive, send)
            return
        began, route = time.perf_counter(), "other"
        method, path, headers = scope["method"], scope["path"], dict(scope["headers"])
        try:
            self.routes.head(method, path, headers)
            found = self.routes.answer(method, path, headers, await self.body(headers, receive))
            if isinstance(found, Scoring):
                route, began = found.route, time.perf_counter()
                found = await self.service.queue.run(found.work)
        except Exception as error:
            found = answer_of(error)
        await self.send(found, send)
        self.service.metrics.add(route, found.status, time.perf_counter() - began, found.rows)

    @staticmethod
    async def send(answer: Answer, send: Send) -> None:
        head = [(b"content-type", answer.kind), (b"content-length", b"%d" % len(answer.body)), *answer.headers]
        await send({"type": "http.response.start", "status": answer.status, "headers": head})
        await send({"type": "http.response.body", "body": answer.body})

    async def body(self, headers: Headers, receive: Receive) -> bytes:
        """The whole body, never more than the limit in memory."""
        limits, service = self.service.limits, self.service
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


async def lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
