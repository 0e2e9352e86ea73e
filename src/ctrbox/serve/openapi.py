"""Describes the routes for programs (/openapi.json) and for people (/docs)."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import orjson

from ctrbox import __version__
from ctrbox.columns.raw_values import RawColumn
from ctrbox.columns.times import UNITS
from ctrbox.predict.score_expression import MOST_CHARACTERS, example
from ctrbox.serve.objects_in_requests import MOST_OBJECTS
from ctrbox.serve.service import Service
from ctrbox.serve.state_of_histories import ServedPast

if TYPE_CHECKING:
    from ctrbox.serve.prerank import Prerank

JSON_TYPES: dict[str, dict[str, Any]] = {
    "b": {"type": "boolean"},
    "i": {"type": "integer", "format": "int64"},
    "f": {"type": "number"},
    "s": {"type": "string"},
    "t": {"type": "string", "format": "date-time"},
}
EXAMPLES: dict[str, Any] = {"b": True, "i": 1, "f": 0.5, "s": "text", "t": "2026-11-15T12:00:00"}


def objects_schema(raw: bool) -> dict[str, Any]:
    """Return the schema of objects in requests. ``raw``: whether the server encodes images and texts."""
    numbers = {"type": "array", "items": {"type": "number"}}
    image = {"type": "string", "contentEncoding": "base64", "description": "bytes of a JPEG, PNG or WebP image"}
    one: dict[str, Any] = {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "properties": {"image": image, "text": {"type": "string"}},
    }
    return {
        "type": "object",
        "description": "by field and raw id: what is known of objects that have no published vector",
        "additionalProperties": {
            "type": "object",
            "maxProperties": MOST_OBJECTS,
            "additionalProperties": {"oneOf": [numbers, one]} if raw else numbers,
        },
    }


def openapi(service: Service) -> dict[str, Any]:
    once, each = parts_of(service)
    request: dict[str, Any] = {
        "type": "object",
        "required": ["candidates"] + ["context"] * bool(once),
        "additionalProperties": False,
        "properties": {
            "context": of_columns(once),
            "candidates": {
                "oneOf": [
                    {"type": "array", "items": of_columns(each), "maxItems": service.limits.candidates},
                    {"type": "object", "description": "the same by column", "additionalProperties": {"type": "array"}},
                ]
            },
        },
    }
    if counts := service.served.objects():
        request["properties"] |= {"objects": objects_schema(raw="encoded" in counts)}
    request_example: dict[str, Any] = {
        "context": {n: sample(c) for n, c in once.items()},
        "candidates": [{n: sample(c) for n, c in each.items()}],
    }
    scores: dict[str, Any] = {
        "type": "array",
        "items": {"type": ["number", "null"]},
        "description": "null for a candidate that a filter drops",
    }
    scored: dict[str, Any] = {"type": "object", "properties": {"version": {"type": "integer"}, "scores": scores}}
    if labels := service.labels:
        told = f"optional: an expression of the labels by which the candidates are ranked, such as {example(labels)}"
        request["properties"] |= {"score": {"type": "string", "maxLength": MOST_CHARACTERS, "description": told}}
        request_example |= {"score": example(labels)}
        ranking = {
            "type": "array",
            "items": {"type": "integer"},
            "description": "positions of the candidates, the highest score first",
        }
        by_label = {"type": "object", "properties": dict.fromkeys(labels, scores)}
        scored["properties"] |= {"scores": by_label, "score": scores, "ranking": ranking}
    v2 = f"/v2/models/{service.name}"
    gives = " and ".join(f"`{name}`" for name in service.labels) or "`score`"
    get = {
        "/healthz": "Liveness check; needs no token.",
        "/metrics": "Counts and latencies, for Prometheus.",
        "/v1/live": "Counts and latencies for the page at /.",
        "/v2": "Open Inference Protocol: the server.",
        "/v2/health/live": "Liveness check; needs no token.",
        "/v2/health/ready": "Readiness: 503 while shutting down; says whether the model is stale, and why.",
        v2: "The model's raw columns as tensors.",
        f"{v2}/config": "The model's raw columns as a configuration of Triton.",
        f"{v2}/ready": "Readiness of the model.",
    }
    paths: dict[str, Any] = {
        "/v1/score": {
            "post": {
                "summary": "Score candidates: one context, many candidates, as raw fields.",
                "requestBody": {"content": {"application/json": {"schema": request, "example": request_example}}},
                "responses": responses(scored),
            }
        },
        f"{v2}/infer": {
            "post": {
                "summary": f"Open Inference Protocol: tensors of raw columns in, {gives} out; JSON or binary.",
                "responses": responses({"type": "object"}),
            }
        },
    }
    if service.refresher is not None:
        paths["/v1/views/refresh"] = {
            "post": {
                "summary": "Read the joined views again; the old rows answer until the new ones are complete.",
                "responses": {"202": {"description": "Accepted: the views will be read."}},
            }
        }
    if service.prerank is not None:
        paths |= prerank(service.prerank)
    if service.served.past is not None:
        paths["/v1/events"] = events(service.served.past)
    paths |= {
        path: {"get": {"summary": words, "responses": {"200": {"description": "OK"}}}} for path, words in get.items()
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": f"CTRBox: {service.name}", "version": __version__},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}] if service.token else [],
    }


def prerank(found: Prerank) -> dict[str, Any]:
    once, each = ({n: found.column(n) for n in names} for names in (found.users.columns.names, found.named_by.names))
    items = {"type": "array", "items": of_columns(each), "maxItems": found.most}
    columns = {"type": "object", "description": "the same by column", "additionalProperties": {"type": "array"}}
    schema: dict[str, Any] = {
        "type": "object",
        "required": ["context"],
        "properties": {
            "context": of_columns(once),
            "candidates": {"oneOf": [items, columns], "description": "by default all ads of the folder"},
            "k": {
                "type": "integer",
                "minimum": 1,
                "maximum": found.most,
                "description": "how many are returned; default 400",
            },
            "exact": {"type": "boolean", "description": "search all ads, even if there is an index"},
        },
    }
    example = {"context": {n: sample(c) for n, c in once.items()}, "k": 10}
    numbers = {"type": "array", "items": {"type": "number"}}
    best: dict[str, Any] = {
        "type": "object",
        "properties": {
            "positions": {"type": "array", "items": {"type": "integer"}},
            "candidates": columns,
            "scores": numbers,
            "missing": {"type": "integer", "description": "candidates without a vector"},
            "index": {"type": "string"},
        },
    }
    ranked = {
        "type": "object",
        "properties": {**best["properties"], "prerank": numbers, "version": {"type": "integer"}},
    }

    def post(summary: str, answer: dict[str, Any]) -> dict[str, Any]:
        content = {"application/json": {"schema": schema, "example": example}}
        return {"post": {"summary": summary, "requestBody": {"content": content}, "responses": responses(answer)}}

    return {
        "/v1/prerank": post("Select the best of many candidates, or of all ads, by the vectors of user and ad.", best),
        "/v1/cascade": post("Pre-rank, then score the best with the model; send the columns of both.", ranked),
    }


def events(past: ServedPast) -> dict[str, Any]:
    rows = {"type": "array", "items": {"type": "object", "required": past.histories.columns}}
    counts = {name: {"type": "integer"} for name in ("taken", "late", "future")}
    text = {"type": "string"}
    taken = {"type": "object", "properties": {**counts, "position": text}}
    schema = {
        "type": "object",
        "required": ["rows"],
        "additionalProperties": False,
        "properties": {"rows": rows, "view": text, "position": text},
    }
    columns = {name: RawColumn(past.schema.field(name)) for name in past.histories.columns}
    example = {"rows": [{name: sample(c) for name, c in columns.items()}], "position": "offset 1"}
    return {
        "post": {
            "summary": "Feed events to the histories, in the order in which they happened.",
            "requestBody": {"content": {"application/json": {"schema": schema, "example": example}}},
            "responses": responses(taken),
        },
        "get": {
            "summary": "The position of the last events that were fed, and the contents of the state.",
            "responses": {"200": {"description": "OK"}},
        },
    }


def parts_of(service: Service) -> tuple[dict[str, RawColumn], dict[str, RawColumn]]:
    """Return the columns that a request sends once, in its context, and those that every candidate has."""
    reader = service.served.reader
    once = {n: c for n, c in reader.columns.items() if reader.context is not None and n in reader.context}
    return once, {n: c for n, c in reader.columns.items() if n not in once}


def of_columns(columns: dict[str, RawColumn]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(columns),
        "properties": {n: described(c) for n, c in columns.items()},
    }


def described(column: RawColumn) -> dict[str, Any]:
    kind = JSON_TYPES[column.letter]
    if column.unit is not None:
        number = {"type": "integer", "format": "int64", "description": f"{UNITS[column.unit]} since 1970"}
        kind = {"oneOf": [kind, number]}
    return {"type": "array", "items": kind} if column.is_list else kind


def sample(column: RawColumn) -> Any:
    value = EXAMPLES[column.letter]
    return [value] if column.is_list else value


def responses(schema: dict[str, Any]) -> dict[str, Any]:
    refused = {
        "400": "A field is missing, unknown or of another type.",
        "401": "The token is missing or wrong.",
        "403": "The server has no token, and Host or Origin does not name its machine.",
        "408": "The request did not arrive completely within the time limit.",
        "413": "Too many candidates, or too many bytes.",
        "503": "Overloaded, or shutting down: retry after the time in Retry-After.",
    }
    good = {"200": {"description": "OK", "content": {"application/json": {"schema": schema}}}}
    return good | {code: {"description": words} for code, words in refused.items()}


STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c1c1c}
code,pre{font:13px/1.45 ui-monospace,monospace;background:#f4f4f2;border-radius:4px}code{padding:.1em .3em}
pre{padding:.8em;overflow:auto}h2{margin-top:2rem;font-size:1.05rem}b{color:#3d6b8c}table{border-collapse:collapse}
td{padding:.15rem 1rem .15rem 0;vertical-align:top}"""


def docs(described: dict[str, Any]) -> str:
    """Return the same description as an HTML page that loads nothing from other servers."""
    parts = [
        f"<h1>{escape(described['info']['title'])}</h1>",
        '<p><a href="/openapi.json">openapi.json</a> · <a href="/">live</a></p>',
    ]
    for path, methods in described["paths"].items():
        for method, about in methods.items():
            parts.append(
                f"<h2><b>{method.upper()}</b> <code>{escape(path)}</code></h2><p>{escape(about['summary'])}</p>"
            )
            content = about.get("requestBody", {}).get("content", {}).get("application/json")
            if content:
                example = orjson.dumps(content["example"], option=orjson.OPT_INDENT_2).decode()
                parts.append(f"<pre>{escape(example)}</pre>")
            rows = "".join(
                f"<tr><td><code>{code}</code><td>{escape(r['description'])}" for code, r in about["responses"].items()
            )
            parts.append(f"<table>{rows}</table>")
    head = f'<meta charset="utf-8"><title>{escape(described["info"]["title"])}</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en">{head}{"".join(parts)}</html>'
