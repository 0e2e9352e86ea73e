"""What a server says about itself: the page at / before its script runs, /openapi.json and /docs."""

from __future__ import annotations

from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from ctrbox.columns.raw_values import RawColumn
from ctrbox.serve.objects_in_requests import MOST_OBJECTS
from ctrbox.serve.openapi import described, docs, openapi, sample
from ctrbox.serve.request import RequestReader
from ctrbox.serve.service import Limits, Service
from ctrbox.serve.status_page import page

SCHEMA = pa.schema(
    [("user", pa.int64()), ("ad", pa.string()), ("price", pa.float32()), ("tags", pa.list_(pa.string()))]
)


def service_of(context: list[str] | None, token: bytes = b"", objects: bool = False) -> Service:
    """Return as much of a service as its descriptions read."""
    reader = RequestReader(SCHEMA, [*SCHEMA.names, "clicked"], context, 50)
    served = SimpleNamespace(reader=reader, tasks=(), past=None, objects=lambda: {"ad": None} if objects else {})
    return cast(
        Service,
        SimpleNamespace(
            served=served,
            labels=(),
            name="a&b",
            token=token,
            limits=Limits(candidates=50),
            refresher=None,
            prerank=None,
        ),
    )


class Elements(HTMLParser):
    """The elements of a page in their order: name, attributes and the text that follows directly."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[list[Any]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append([tag, dict(attrs), ""])

    def handle_data(self, data: str) -> None:
        if self.found:
            self.found[-1][2] += data.strip()


def test_the_page_begins_with_a_large_card_and_names_the_model() -> None:
    text = page(service_of(["user"]))
    found = Elements(text).found
    cards = [about["class"] for tag, about, _ in found if tag == "div" and "card" in about.get("class", "")]
    assert cards == ["cards", "card first", *["card"] * 7]
    assert [about["id"] for tag, about, _ in found if tag == "b"] == [
        *("rate", "p50", "p99", "hits", "version", "patch", "auc", "calibration")
    ]
    charts = [(about["id"], about["aria-label"]) for tag, about, _ in found if tag == "svg"]
    assert charts == [
        ("requests", "Requests a second"),
        ("latency", "Latency, ms"),
        ("aucs", "AUC by window"),
        ("losses", "Log loss by window"),
    ]
    assert [about["class"] for tag, about, _ in found if tag == "i"] == ["key a", "key b", "key a", "key b"]
    assert "<title>CTRBox: a&amp;b</title>" in text


@pytest.mark.parametrize(("context", "once"), [(["user", "clicked"], ["user"]), ([], []), (None, [])])
def test_the_description_divides_the_columns_as_requests_do(context: list[str] | None, once: list[str]) -> None:
    found = openapi(service_of(context))
    asked = found["paths"]["/v1/score"]["post"]["requestBody"]["content"]["application/json"]
    properties = asked["schema"]["properties"]
    each = [name for name in SCHEMA.names if name not in once]
    assert asked["schema"]["required"] == (["candidates", "context"] if once else ["candidates"])
    assert (properties["context"]["required"], list(properties["context"]["properties"])) == (once, once)
    listed = properties["candidates"]["oneOf"][0]
    assert (listed["items"]["required"], list(listed["items"]["properties"]), listed["maxItems"]) == (each, each, 50)
    example = {"user": 1, "ad": "text", "price": 0.5, "tags": ["text"]}
    assert asked["example"] == {
        "context": {n: example[n] for n in once},
        "candidates": [{n: example[n] for n in each}],
    }
    assert set(properties) == {"context", "candidates"}


def test_the_description_says_which_objects_and_which_token_are_taken() -> None:
    found = openapi(service_of(["user"], b"secret", objects=True))
    asked = found["paths"]["/v1/score"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert asked["properties"]["objects"]["additionalProperties"]["maxProperties"] == MOST_OBJECTS
    assert found["security"] == [{"token": []}]
    assert openapi(service_of(["user"]))["security"] == []
    assert [path for path in found["paths"] if "a&b" in path] == [
        *("/v2/models/a&b/infer", "/v2/models/a&b", "/v2/models/a&b/config", "/v2/models/a&b/ready")
    ]


@pytest.mark.parametrize(
    ("type", "unit", "says", "example"),
    [
        (pa.bool_(), None, {"type": "boolean"}, True),
        (pa.int32(), None, {"type": "integer", "format": "int64"}, 1),
        (pa.float64(), None, {"type": "number"}, 0.5),
        (pa.timestamp("us"), None, {"type": "string", "format": "date-time"}, "2026-11-15T12:00:00"),
        (pa.list_(pa.int64()), None, {"type": "array", "items": {"type": "integer", "format": "int64"}}, [1]),
        (
            pa.timestamp("us"),
            "ms",
            {
                "oneOf": [
                    {"type": "string", "format": "date-time"},
                    {"type": "integer", "format": "int64", "description": "milliseconds since 1970"},
                ]
            },
            "2026-11-15T12:00:00",
        ),
    ],
)
def test_a_column_is_described_by_its_type_and_its_unit(
    type: pa.DataType, unit: str | None, says: dict[str, Any], example: Any
) -> None:
    column = RawColumn(pa.field("a", type), unit)
    assert described(column) == says
    assert sample(column) == example


def test_the_page_of_routes_has_a_section_for_each_and_one_example() -> None:
    told = openapi(service_of(["user"]))
    text = docs(told)
    assert [what for tag, _, what in Elements(text).found if tag == "b"] == ["POST", "POST", *["GET"] * 9]
    codes = [what for tag, _, what in Elements(text).found if tag == "code"]
    assert codes[:8] == ["/v1/score", "200", "400", "401", "403", "408", "413", "503"]
    assert text.count("<pre>") == 1
    assert "&quot;user&quot;: 1" in text
    assert "CTRBox: a&amp;b" in text
