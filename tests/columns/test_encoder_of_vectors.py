"""What a vector file tells about its encoder: read only where it is a few short texts, and compared fact by fact."""

from __future__ import annotations

import dataclasses
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ctrbox.columns.encoder_of_vectors import EncodedBy
from ctrbox.embed.vectors.vector_file import HEAD, VectorFile
from ctrbox.embed.vectors.write_vector_file import write_encoded
from ctrbox.errors import DataError, SourceError

MADE = EncodedBy("net", "image", "Net", "small", "ab" * 32, "cpu", "2.13")


def written(place: Path) -> Path:
    schema = pa.schema([("key", pa.int64()), ("vector", pa.list_(pa.float32(), 2))])
    batch = pa.RecordBatch.from_pydict({"key": [5, 4], "vector": [[1.0, 2.0], [3.0, 4.0]]}, schema=schema)
    write_encoded(place / "v.ctrvec", pa.RecordBatchReader.from_batches(schema, [batch]), MADE, "float32", str)
    return place / "v.ctrvec"


def with_about(path: Path, about: bytes) -> Path:
    """Put other bytes at the end of a file, with checksums that fit."""
    whole = path.read_bytes()
    head = list(HEAD.unpack_from(whole))
    index = whole[64 + 16 : len(whole) - head[6]] + about
    head[6], head[8] = len(about), zlib.crc32(index)
    packed = HEAD.pack(*head)
    packed += struct.pack("<I", zlib.crc32(packed))
    path.write_bytes(packed.ljust(64, b"\0") + whole[64 : 64 + 16] + index)
    return path


def test_a_file_tells_which_encoder_made_it(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert VectorFile(path).encoder == MADE
    assert VectorFile(path).verify() == 2
    assert VectorFile(with_about(path, json.dumps(MADE.facts()).encode())).encoder == MADE
    damaged = bytearray(path.read_bytes())
    damaged[-5] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(SourceError, match="the checksum of its index does not match"):
        VectorFile(path)


@pytest.mark.parametrize(
    "about",
    [
        b"\xff",
        b"[" * 9000,
        b"[]",
        b"{}",
        json.dumps({**MADE.facts(), "more": "x"}).encode(),
        json.dumps({**MADE.facts(), "name": 7}).encode(),
        json.dumps({**MADE.facts(), "name": "x" * 1001}).encode(),
        json.dumps({**MADE.facts(), "name": "a\nb"}).encode(),
        json.dumps({**MADE.facts(), "kind": "sound"}).encode(),
    ],
)
def test_facts_that_are_none_are_refused(tmp_path: Path, about: bytes) -> None:
    with pytest.raises(SourceError, match=r"v\.ctrvec is damaged: .*encoder"):
        VectorFile(with_about(written(tmp_path), about))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"weights": "cd" * 32}, "SHA-256 of the weights is 'cdcdcd"),
        ({"name": "other", "kind": "text"}, "items is 'text', expected 'image'; name is 'other', expected 'net'"),
        ({"module": "x" * 99}, "module is 'xxxxxxxxxxxxxxxx…', expected 'Net'"),
    ],
)
def test_differences_are_named(changed: dict[str, Any], words: str) -> None:
    assert "; ".join(MADE.differences(dataclasses.replace(MADE, **changed))).startswith(words)


def test_other_devices_and_versions_of_torch_are_told_as_rounding() -> None:
    assert MADE.differences(dataclasses.replace(MADE, device="cuda", torch="3")) == []
    assert MADE.rounding(MADE) == ""
    assert MADE.rounding(dataclasses.replace(MADE, device="cuda")).startswith(
        "the published vectors were computed on cpu, but this process"
    )
    assert (
        MADE.rounding(dataclasses.replace(MADE, torch="3")) == "the published vectors were computed with torch 2.13, "
        "but this process has torch 3"
    )
    with pytest.raises(DataError, match="x is damaged"):
        EncodedBy.read(None, "x")


def test_a_fact_is_a_text_of_at_most_1000_printable_characters() -> None:
    facts = MADE.facts()
    assert EncodedBy.read({**facts, "name": "x" * 1000}, "v").name == "x" * 1000
    assert EncodedBy.read({**facts, "kind": "text"}, "v").kind == "text"
    for wrong, told in (
        ({**facts, "name": "x" * 1001}, "the name of its encoder is not a short text; encode the items again"),
        ({**facts, "module": 5}, "the module of its encoder is not a short text; encode the items again"),
        ({**facts, "kind": "sound" * 9}, "its encoder takes items of kind 'soundsoundsoundsound'"),
        ({"name": "x"}, "it does not describe the encoder that made its vectors; encode the items again"),
        ([], "it does not describe the encoder that made its vectors; encode the items again"),
    ):
        with pytest.raises(DataError) as caught:
            EncodedBy.read(wrong, "v")
        assert str(caught.value) == f"v is damaged: {told}"


def test_a_difference_shows_up_to_80_characters() -> None:
    for module, shown in (("x" * 80, repr("x" * 80)), ("x" * 81, repr("x" * 16 + "…"))):
        other = dataclasses.replace(MADE, module=module, prepare="other")
        assert MADE.differences(other) == [f"module is {shown}, expected 'Net'", "prepare is 'other', expected 'small'"]
    assert MADE.same == (
        ("kind", "image"),
        ("name", "net"),
        ("module", "Net"),
        ("prepare", "small"),
        ("weights", "ab" * 32),
    )
    assert MADE.differences(MADE) == []


def test_rounding_names_the_device_before_the_version() -> None:
    both = dataclasses.replace(MADE, device="cuda", torch="3")
    assert (
        MADE.rounding(both) == "the published vectors were computed on cpu, but this process computes vectors on cuda"
    )
