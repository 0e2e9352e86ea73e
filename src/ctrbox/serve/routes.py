"""Answers HTTP requests by route, without any knowledge of sockets.

    POST /v1/score                    {"context": …, "candidates": …} → {"scores": […], "version": 7} (answers.py)
    POST /v1/prerank, /v1/cascade     the best of many candidates by the vectors of user and ad, and these scored (prerank.py)
    POST /v1/events                   {"rows": [{…}, …]} → {"taken": 2, "late": 0, "future": 0, "position": ""}
    GET  /v1/events                   the position up to which events were fed
    GET  /v1/views                    versions of joined views; POST /v1/views/refresh: read them again
    GET  /v2 …                        the Open Inference Protocol, JSON and binary tensors
    GET  /healthz, /v2/health/live    liveness; every other route needs the token, if the server has one
    GET  /metrics, /openapi.json, /docs, /, /v1/live

The routes are called twice for a request: with its head, which may be refused before its body is read, and then with the whole
request. A request to be scored returns work for the queue. Every refusal is a status and {"error": one sentence}.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

import orjson

from ctrbox.errors import CtrboxError
from ctrbox.serve.answers import Answered
from ctrbox.serve.http_head import Headers
from ctrbox.serve.refused_request import Refused
from ctrbox.serve.service import Service
from ctrbox.serve.tensors import infer_answer, read_infer
from ctrbox.serve.versions_of_views_reported import views_of

Header = tuple[bytes, bytes]

JSON, TEXT, HTML = b"application/json", b"text/plain; version=0.0.4; charset=utf-8", b"text/html; charset=utf-8"
BINARY = b"application/octet-stream"
LENGTH_OF_JSON = b"inference-header-content-length"
VIEWS = b"ctrbox-views"  # the response header that says which versions of joined views were read
LIVENESS = frozenset(["/healthz", "/v2/health/live"])
POLICY = (
    b"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    b"frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
# A page asks nobody but its own server.
PAGE_HEADERS: tuple[Header, ...] = (
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
log = logging.getLogger("ctrbox.serve")


class Answer(NamedTuple):
    status: int
    body: bytes
    kind: bytes = JSON
    headers: tuple[Header, ...] = ()
    rows: int = 0  # candidates that were scored
    version: int | None = None  # of the model that scored them


class Scoring(NamedTuple):
    """Work for the queue. ``route`` is the name under which it is counted."""

    route: str
    work: Callable[[], Answer]


class Routes:
    def __init__(self, service: Service) -> None:
        self.service = service
        self.pages: dict[str, Callable[[], Answer]] = {
            "/healthz": lambda: Answer(200, b'{"status":"ok"}'),
            "/metrics": lambda: Answer(200, service.prometheus().encode(), TEXT),
            "/v1/live": lambda: Answer(200, orjson.dumps(service.live(), option=orjson.OPT_NON_STR_KEYS)),
            "/v1/views": lambda: Answer(200, orjson.dumps(self.views())),
            "/openapi.json": self.openapi,
            "/docs": self.docs,
            "/": self.page,
            "/v2": lambda: Answer(200, orjson.dumps(service.server_metadata())),
            "/v2/": lambda: Answer(200, orjson.dumps(service.server_metadata())),
            "/v2/health/live": lambda: Answer(200, b""),
            "/v2/health/ready": self.ready,
        }

    def head(self, method: str, path: str, headers: Headers) -> None:
        """Raise Refused if the head alone is enough to refuse the request."""
        service = self.service
        if service.token and path not in LIVENESS and not service.allows(headers.get(b"authorization", b"")):
            met = (
                "the Authorization header has another token"
                if b"authorization" in headers
                else ("the request has none")
            )
            raise Refused(
                401, f"this server requires a token, but {met}; expected the header Authorization: Bearer TOKEN"
            )
        if service.hosts is not None:
            service.hosts.check(headers)
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise Refused(
                415,
                "the request has a Content-Encoding, which this server does not support; send the body uncompressed",
            )
        claimed = headers.get(b"content-length", b"0")
        if claimed.isdigit() and (len(claimed) > 18 or int(claimed) > service.limits.body_bytes):
            raise too_large(service.limits.body_bytes)

    def answer(self, method: str, path: str, headers: Headers, body: bytes) -> Answer | Scoring:
        """Return the answer, or the work that makes it. Raise Refused, or another error of CTRBox, if there is none."""
        if path == "/v1/score":
            need(method, "POST", path)
            return Scoring("score", partial(self.score, body))
        if path == "/v1/prerank":
            need(method, "POST", path)
            return Scoring("prerank", partial(self.prerank, body))
        if path == "/v1/cascade":
            need(method, "POST", path)
            return Scoring("cascade", partial(self.cascade, body))
        if path == "/v1/events":
            return self.events(method, path, body)
        if path == "/v1/views/refresh":
            return self.refresh_views(method, path, body)
        page = self.pages.get(path)
        if page is not None:
            need(method, "GET", path)
            return page()
        if path.startswith("/v2/"):
            return self.v2(method, path, headers, body)
        raise Refused(404, f"there is no resource at {path[:100]!r}; see /docs")

    # ---- scoring, by the queue

    def score(self, body: bytes) -> Answer:
        found = self.service.answer_plain(body)
        if found is None:
            request = self.service.served.reader.from_json(body)
            self.service.lap("reading")
            found, rows = self.service.answer(request), request.rows
            self.service.lap("engine")
        else:
            rows = len(found.scores)
        answer = orjson.dumps(found.json(), option=orjson.OPT_SERIALIZE_NUMPY)
        return Answer(200, answer, JSON, header_of(found), rows, found.version)

    def prerank(self, body: bytes) -> Answer:
        found = self.service.pre_ranked(body)
        self.service.lap("engine")
        return Answer(200, orjson.dumps(found, option=orjson.OPT_SERIALIZE_NUMPY))

    def cascade(self, body: bytes) -> Answer:
        answer, rows = self.service.cascaded(body)
        self.service.lap("engine")
        return Answer(200, orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY), JSON, (), rows, answer["version"])

    def infer(self, body: bytes, header: str | None, version: str) -> Answer:
        plain = self.service.infer_plain(body, header, version)
        if plain is not None:
            found, asked = plain
            rows = len(found.scores)
        else:
            asked = read_infer(body, header, self.service.labels)
            request = self.service.served.reader.from_tensors(asked.tensors, asked.score)
            self.service.lap("reading")
            found, rows = self.service.answer(request, version), request.rows
            self.service.lap("engine")
        answer, json_bytes = infer_answer(self.service.name, found.version, asked, found.outputs())
        if json_bytes is None:
            return Answer(200, answer, JSON, header_of(found), rows, found.version)
        headers = (LENGTH_OF_JSON, b"%d" % json_bytes), *header_of(found)
        return Answer(200, answer, BINARY, headers, rows, found.version)

    # ---- events, for the state of histories

    def events(self, method: str, path: str, body: bytes) -> Answer | Scoring:
        past = self.service.served.past
        if past is None:
            raise Refused(
                404, "this server keeps no state of histories, so it accepts no events; start it with --state FILE"
            )
        if method in ("GET", "HEAD"):
            return Answer(200, orjson.dumps(past.told()))
        if method != "POST":
            raise Refused(405, f"{path} accepts POST and GET, not {method[:20]}")
        return Scoring("other", lambda: Answer(200, orjson.dumps(past.observe(body))))

    # ---- joined views

    def refresh_views(self, method: str, path: str, body: bytes) -> Answer:
        need(method, "POST", path)
        if body.strip() not in (b"", b"{}"):
            raise Refused(
                400,
                "a call that refreshes the joined views must have no body, because it reads all views that have files again",
            )
        refresher = self.service.refresher
        if refresher is None:
            raise Refused(404, "this model joins no views of files, so there is nothing to refresh")
        return Answer(202, orjson.dumps({"call": refresher.ask(), **self.views()}))

    def views(self) -> dict[str, Any]:
        service = self.service
        done = 0 if service.refresher is None else service.refresher.told().get("done", 0)
        return {"done": done, "views": views_of(service, service.figures())}

    # ---- the Open Inference Protocol

    def ready(self) -> Answer:
        return Answer(200 if self.service.ready else 503, orjson.dumps(self.service.readiness()))

    def v2(self, method: str, path: str, headers: Headers, body: bytes) -> Answer | Scoring:
        service = self.service
        if path == "/v2/repository/index":
            need(method, "POST", path)
            index = [{"name": service.name, "version": str(service.served.version), "state": "READY"}]
            return Answer(200, orjson.dumps(index))
        steps = path.split("/")[3:] if path.startswith("/v2/models/") else []
        name = unquote(steps[0]) if steps else ""
        version, rest = (steps[2], steps[3:]) if steps[1:2] == ["versions"] and len(steps) > 2 else ("", steps[1:])
        if not name or rest not in ([], ["ready"], ["config"], ["infer"]):
            raise Refused(404, f"there is no resource at {path[:100]!r}; see /docs")
        service.check_model(name, version)
        if rest == ["infer"]:
            need(method, "POST", path)
            header = headers.get(LENGTH_OF_JSON)
            return Scoring(
                "infer", partial(self.infer, body, None if header is None else header.decode("latin-1"), version)
            )
        need(method, "GET", path)
        if rest == ["ready"]:
            return self.ready()
        return Answer(200, orjson.dumps(service.model_config() if rest == ["config"] else service.model_metadata()))

    # ---- pages

    def openapi(self) -> Answer:
        from ctrbox.serve.openapi import openapi

        return Answer(200, orjson.dumps(openapi(self.service)))

    def docs(self) -> Answer:
        from ctrbox.serve.openapi import docs, openapi

        return Answer(200, docs(openapi(self.service)).encode(), HTML, PAGE_HEADERS)

    def page(self) -> Answer:
        from ctrbox.serve.status_page import page

        return Answer(200, page(self.service).encode(), HTML, PAGE_HEADERS)


def header_of(found: Answered) -> tuple[Header, ...]:
    return ((VIEWS, found.views),) if found.views else ()


def need(method: str, wanted: str, path: str) -> None:
    if method != wanted and not (method == "HEAD" and wanted == "GET"):
        raise Refused(405, f"{path[:100]} accepts {wanted}, not {method[:20]}")


def too_large(most: int) -> Refused:
    return Refused(413, f"the body is larger than {most:,} bytes, the maximum of this server")


def answer_of(error: BaseException) -> Answer:
    """Return what the client is told about an error. Errors of CTRBox are sentences for the client; others go to the log."""
    if isinstance(error, Refused):
        headers: tuple[Header, ...] = ()
        if error.status == 401:
            headers = ((b"www-authenticate", b'Bearer, Basic realm="ctrbox: any name, the token as password"'),)
        elif error.retry_after:
            headers = ((b"retry-after", b"%d" % error.retry_after),)
        return Answer(error.status, error_body(str(error)), JSON, headers)
    if isinstance(error, CtrboxError):
        return Answer(400, error_body(str(error)))
    log.error("a request failed", exc_info=error)
    return Answer(500, error_body("internal error; the server's log has more"))


def error_body(message: str) -> bytes:
    return orjson.dumps({"error": message[:2000].encode(errors="replace").decode()})
