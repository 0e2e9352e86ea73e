"""Tests of plan files with right checksums and contents that no plan has: each is refused with its reason."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.compiled_plan.plan_file import HEAD, MAGIC, VERSION, _array, _beside, _blobs, _words, load_plan
from ctrbox.errors import PlanError

ROWS = pa.table({"n": [1, 2, 3], "x": [0.5, 1.5, 4.0], "s": ["a", "b", None]})


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("saved")
    pq.write_table(ROWS, folder / "log.parquet")
    words = col("s").fill("").lookup(cb.Dictionary(["a"], [1]), default=0)
    dense = {"n": col("n"), "word": words, "z": col("x").standardize(), "m": col("n").standardize()}
    plan = cb.compile(cb.View(folder / "log.parquet", key="n", name="log"), cb.FeatureSet(dense=dense), device="cpu")
    plan.fit().save(folder / "p.plan")
    return (folder / "p.plan").read_bytes()


def refusal(place: Path, data: bytes, **options: Any) -> str:
    (place / "p.plan").write_bytes(data)
    with pytest.raises(PlanError) as met:
        load_plan(place / "p.plan", **options)
    return str(met.value).replace(str(place / "p.plan"), "FILE")


def forged(saved: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    _, version, length = HEAD.unpack(saved[: HEAD.size])
    header = json.loads(saved[HEAD.size : HEAD.size + length])
    change(header)
    text = json.dumps(header).encode()
    data = HEAD.pack(MAGIC, version, len(text)) + text + saved[HEAD.size + length : -32]
    return data + hashlib.sha256(data).digest()


def view(**changed: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda header: header["views"][0].update(changed)


CHANGES: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda h: h.pop("blobs"), "blobs must be a list of at most 1,000,000 elements"),
    (lambda h: h.pop("views"), "views must be a list of at most 1,000,000 elements"),
    (lambda h: h.pop("features"), "features must be an object"),
    (lambda h: h.pop("expressions"), "expressions must be a list of at most 1,000,000 elements"),
    (lambda h: h.pop("dictionaries"), "dictionaries must be a list of at most 1,000,000 elements"),
    (lambda h: h.pop("fitted"), "what was fitted must be an object"),
    (lambda h: h.pop("device"), "the device must be a string"),
    (lambda h: h.pop("log"), "the log must be a whole number from 0 to 0"),
    (lambda h: h.update(log=1), "the log must be a whole number from 0 to 0"),
    (lambda h: h["fitted"].pop("1"), "it holds the values of 1 of 2 fitted operators"),
    (
        lambda h: h["fitted"].update({"2": {}}),
        "it holds values for the fitted operator '2', which the plan does not have",
    ),
    (
        lambda h: h["fitted"].update({"x": {}}),
        "it holds values for the fitted operator 'x', which the plan does not have",
    ),
    (lambda h: h["fitted"].update({"1": {}}), "moments need mean, scale, got []"),
    (lambda h: h["fitted"]["1"].update(mean=99), "a blob's place must be a whole number from 0 to 5"),
    (lambda h: h["blobs"][0].update(length=-1), "a blob's length must be a whole number from 0 to ROOM"),
    (lambda h: h["blobs"][0].update(length=10**9), "a blob's length must be a whole number from 0 to ROOM"),
    (lambda h: h["blobs"][0].update(sha256="0"), "the checksum of one of its arrays does not match"),
    (lambda h: h["blobs"].pop(), "8 bytes at its end belong to none of its parts"),
    (lambda h: h["dictionaries"].append(5), "a dictionary must be an object"),
    (view(keep="first"), "keep of a view must be absent or 'last'"),
    (view(key=["m"]), "key 'm' is not among the columns of view 'log'"),
    (view(key="n"), "a key must be a list of at most 1,000,000 elements"),
    (view(name=5), "a view's name must be a string"),
    (view(steps=None), "steps must be a list of at most 1,000,000 elements"),
    (view(source={"paths": ["a"], "format": 5}), "a format must be a string"),
    (
        view(source={"paths": ["a"], "format": "delta", "version": 1 << 63}),
        "a version must be a whole number from 0 to 9,223,372,036,854,775,807",
    ),
]


@pytest.mark.parametrize(("change", "told"), CHANGES)
def test_a_header_that_no_plan_has_is_refused_with_the_reason(
    saved: bytes, tmp_path: Path, change: Callable[[dict[str, Any]], Any], told: str
) -> None:
    _, _, length = HEAD.unpack(saved[: HEAD.size])
    told = told.replace("ROOM", f"{len(saved) - HEAD.size - length - 32:,}")  # what Arrow writes differs by its version
    found = refusal(tmp_path, forged(saved, change))
    assert found == f"the saved plan is malformed: {told}; compile the plan and save it again"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            view(time_units={"s": "y"}),
            "time_units= gives 'y' as the unit of column 's'; expected one of 's' (seconds), ",
        ),
        (
            view(source={"paths": ["a"], "format": "csv", "text": {"delimiter": 5}}),
            "delimiter must be a text of 1 to 16 characters without line ends, such as ",
        ),
    ],
)
def test_options_that_no_view_takes_are_refused_as_where_a_view_is_made(
    saved: bytes, tmp_path: Path, change: Callable[[dict[str, Any]], Any], told: str
) -> None:
    assert refusal(tmp_path, forged(saved, change)).startswith(told)


def test_a_head_that_no_plan_has_is_refused_with_the_reason(saved: bytes, tmp_path: Path) -> None:
    def sealed(data: bytes) -> bytes:
        return data + hashlib.sha256(data).digest()

    _, version, length = HEAD.unpack(saved[: HEAD.size])
    room = len(saved) - HEAD.size - 32
    begins = f"the plan at FILE is malformed: it begins with format version {version} and a header size of"
    for data, told in (
        (b"", f"FILE is not a saved plan: it does not begin with {MAGIC.decode()}"),
        (MAGIC + bytes(43), "the plan at FILE is cut off after 51 bytes; copy it again from where it was saved"),
        (
            HEAD.pack(MAGIC, VERSION + 1, 0) + bytes(32),
            f"the plan at FILE has format version {VERSION + 1}, but this version of CTRBox reads up to {VERSION}; update ctrbox",
        ),
        (
            HEAD.pack(MAGIC, VERSION, 0) + bytes(32),
            "the plan at FILE is damaged or cut off, because its checksum does not match; copy it again, or save the plan again",
        ),
        (
            sealed(HEAD.pack(MAGIC, 0, 0)),
            "the plan at FILE is malformed: it begins with format version 0 and a header size of 0 bytes, expected version 1 or "
            "later and at most 0 bytes; save the plan again",
        ),
        (
            sealed(HEAD.pack(MAGIC, version, room + 1) + saved[HEAD.size : -32]),
            f"{begins} {room + 1:,} bytes, expected version 1 or later and at most {room:,} bytes; save the plan again",
        ),
    ):
        assert refusal(tmp_path, data) == told
    whole = refusal(
        tmp_path, sealed(HEAD.pack(MAGIC, version, room) + saved[HEAD.size : -32])
    )  # reaches into the arrays
    assert whole.startswith("the saved plan is malformed: its header is not JSON (")
    assert length < room
    with pytest.raises(PlanError, match=r"^there is no saved plan at "):
        load_plan(tmp_path / "missing.plan")
    with pytest.raises(PlanError, match=r"^the plan at .* cannot be read: "):
        load_plan(tmp_path)
    (tmp_path / "p.plan").write_bytes(saved)
    with pytest.raises(PlanError, match=r"^the plan has no view 'lag'; nearest: 'log'$"):
        load_plan(tmp_path / "p.plan", views={"lag": ROWS})
    with pytest.raises(PlanError, match=r"^the plan has no view 'zzzzzz'; it has log$"):
        load_plan(tmp_path / "p.plan", views={"zzzzzz": ROWS})


def test_arrays_and_words_of_a_file_are_read_only_if_they_are_whole() -> None:
    data = memoryview(np.arange(6, dtype="<i4").tobytes())
    assert _array({"dtype": "<i4", "shape": [2, 3]}, data).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert _array({"dtype": "<i4", "shape": []}, data[:4]).shape == ()
    assert _array({"dtype": "<f8", "shape": [0]}, data[:0]).tolist() == []
    for entry, told in (
        ({"dtype": "<i4", "shape": [2, 2]}, "it contains an array of shape [2, 2], which does not fit its 24 bytes"),
        ({"dtype": "<i8", "shape": [6]}, "it contains an array of shape [6], which does not fit its 24 bytes"),
        ({"dtype": "|O", "shape": [3]}, "it contains an array of the type '|O'"),
    ):
        with pytest.raises(PlanError) as met:
            _array(entry, data)
        assert told in str(met.value)
    with pytest.raises(PlanError, match="the words of a dictionary cannot be read"):
        _words(memoryview(b"no words"))
    parts = memoryview(b"abcde")
    entries = [
        {"length": n, "sha256": hashlib.sha256(part).hexdigest()} for n, part in ((2, b"ab"), (0, b""), (3, b"cde"))
    ]
    assert [bytes(part) for part in _blobs({"blobs": entries}, parts)] == [b"ab", b"", b"cde"]


@pytest.mark.parametrize(
    ("files", "place", "beside"),
    [
        ([], "runs/job/p.plan", "runs/job"),
        (["runs/job/config.json"], "runs/job/p.plan", "."),
        (["out/job/config.json"], "out/job/p.plan", "out"),
        (["out/job/serve.json"], "out/job/p.plan", "out"),
        (["runs/job/serve.json"], "runs/job/p.plan", "."),
    ],
)
def test_the_data_of_a_plan_lie_beside_its_folder(tmp_path: Path, files: list[str], place: str, beside: str) -> None:
    (tmp_path / place).parent.mkdir(parents=True)
    for name in files:
        (tmp_path / name).touch()
    assert _beside(tmp_path / place) == (tmp_path / beside).resolve()
