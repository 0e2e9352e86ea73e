"""Sealed files: what was written comes back, and every other text is refused in one sentence that says what is wrong with it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctrbox.errors import DataError, SourceError
from ctrbox.files import sealed_json as sealed_file
from ctrbox.files.sealed_json import FORMAT, plain, read_sealed, sealed, unsealed


def opened(text: str) -> dict[str, Any]:
    return unsealed(text.encode(), "config.json", "run folder")


def test_a_sealed_object_comes_back_with_its_format_and_without_its_seal(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, "ü"], "b": {"c": None}}
    (tmp_path / "x.json").write_text(sealed(value), encoding="utf-8")
    assert read_sealed(tmp_path / "x.json", "run folder") == {"format": FORMAT, **value}


@pytest.mark.parametrize(
    "text",
    [
        "5",
        "null",
        "[]",
        '["format", "seal"]',
        '"format seal"',  # a text holds both words, too
        "{}",
        '{"format": 1}',
        '{"seal": "x"}',
    ],
)
def test_json_that_is_no_sealed_object_is_refused(text: str) -> None:
    with pytest.raises(DataError, match=r"^config\.json is not a file of a CTRBox run folder, or it is damaged: "):
        opened(text)


def test_an_object_without_a_format_is_no_sealed_object_whatever_its_seal() -> None:
    nothing = json.dumps({"a": 1, "seal": sealed_file._seal({"a": 1})})
    with pytest.raises(DataError, match="is not a file of a CTRBox run folder"):
        opened(nothing)


def test_a_changed_value_and_a_changed_format_are_refused() -> None:
    text = sealed({"a": 1})
    with pytest.raises(
        DataError,
        match=r"^config\.json is damaged: its checksum does not match its contents; restore the file from a copy$",
    ):
        opened(text.replace('"a": 1', '"a": 2'))
    newer = {"format": FORMAT + 1, "a": 1}
    with pytest.raises(
        DataError, match=f"^config.json has format {FORMAT + 1}, but this version of CTRBox reads format {FORMAT}; use"
    ):
        opened(json.dumps({**newer, "seal": sealed_file._seal(newer)}))


@pytest.mark.parametrize("text", [b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_damaged(text: bytes) -> None:
    with pytest.raises(DataError, match=r"^config\.json is damaged: "):
        unsealed(text, "config.json", "run folder")


def test_a_file_that_is_missing_or_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"is not a run folder: x\.json is missing$"):
        read_sealed(tmp_path / "x.json", "run folder")
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match=r"^cannot read .*x\.json: Not a directory$"):
        read_sealed(tmp_path / "file" / "x.json", "run folder")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_a_number_that_json_does_not_know_becomes_null(value: Any) -> None:
    assert plain(value) is None
    assert opened(sealed({"a": [{"b": value}], "c": (value, 1.0)})) == {
        "format": FORMAT,
        "a": [{"b": None}],
        "c": [None, 1.0],
    }


def test_numbers_of_numpy_become_those_of_python() -> None:
    assert type(plain(np.int64(3))) is int
    assert type(plain(np.float32(0.5))) is float
