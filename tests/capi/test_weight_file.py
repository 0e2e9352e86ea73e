"""Weight files whose checksums are true and whose directory is not: libctrbox names the lie and makes no model of it."""

from __future__ import annotations

import ctypes
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ctrbox as cb
from ctrbox import _native, publish
from tests.capi.models import DAMAGED, opened, refused

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A model whose parts lr and ffm are floats, and dense is 16-bit codes: 3 fields, 2^6 weights, k 2."""
    path = tmp_path_factory.mktemp("model") / "model.fbw"
    publish.pack(cb.DeepFFM(["user", "ad", "words"], bits=6, k=2, hidden=(3,), context=("user",)), path)
    return path.read_bytes()


def padded(size: int) -> int:
    return -(-size // 64) * 64


def of(whole: bytes) -> tuple[dict[str, Any], bytes]:
    """The directory and the parts."""
    (length,) = struct.unpack_from("<I", whole, 12)
    return json.loads(whole[64 : 64 + length]), whole[64 + length :]


def file_of(directory: object, parts: bytes, behind: bytes = b"") -> bytes:
    """A file with true checksums and sizes; parts keep their distances."""
    size, shift, text = 0, 1, b""
    while shift:  # places of parts follow the length of the text
        text = json.dumps(directory, separators=(",", ":")).encode()
        size, listed = padded(len(text)), directory.get("parts") if isinstance(directory, dict) else None
        listed = listed if isinstance(listed, list) else []
        shift = 64 + size - min(part["at"] for part in listed) if listed else 0
        for part in listed:
            part["at"] += shift
    text = text.ljust(size)
    sum_ = _native.checksum(np.frombuffer(text, np.uint8))
    end = 64 + size + len(parts) + len(behind)
    return struct.pack("<8sIIQQ32x", b"CTRWGHTS", 1, size, sum_, end) + text + parts + behind


@pytest.fixture
def open_(lib: ctypes.CDLL, tmp_path: Path) -> Callable[[bytes], str]:
    """Open a file; return what is said about it, or nothing where it is opened."""
    path = tmp_path / "forged.fbw"

    def tried(octets: bytes) -> str:
        path.write_bytes(octets)
        model = ctypes.c_void_p()
        status = lib.ctrbox_open(str(path).encode(), ctypes.byref(model))
        if status == 0:
            lib.ctrbox_close(model)
            return ""
        assert status == DAMAGED
        return refused(lib, path).removeprefix(f"cannot read {path}: ")

    return tried


def test_a_file_written_anew_from_its_parts_is_opened(open_: Callable[[bytes], str], whole: bytes) -> None:
    directory, parts = of(whole)
    assert open_(whole) == ""
    assert file_of(directory, parts) == whole
    directory["about"]["more"] = 'é"\\'  # what is not asked for is passed over
    assert open_(file_of(directory, parts)) == ""
    directory["about"]["names"] = ['é"', "ad", "words"]
    assert open_(file_of(directory, parts)) == ""


def test_names_with_escapes_are_those_of_the_model(lib: ctypes.CDLL, whole: bytes, tmp_path: Path) -> None:
    directory, parts = of(whole)
    directory["about"]["names"] = ['é"\n', "ad", "words"]
    (tmp_path / "m.fbw").write_bytes(file_of(directory, parts))
    with opened(lib, tmp_path / "m.fbw") as model:
        assert lib.ctrbox_field_name(model, 0, None) == 'é"\n'.encode()
        assert lib.ctrbox_field_name(model, 2, None) == b"words"


HEADER = [
    (0, b"x", "it is not"),
    (8, struct.pack("<I", 2), "it has version 2 of the format, but this version of CTRBox reads 1"),
    (8, struct.pack("<I", 0), "it has version 0 of the format, but this version of CTRBox reads 1"),
    (12, struct.pack("<I", (64 << 20) + 1), "it has {size} bytes, but its header says {size}"),
    (16, bytes(8), "the checksum of its directory is wrong"),
    (24, struct.pack("<Q", 1), "it has {size} bytes, but its header says 1"),
    (32, b"\1", "it has {size} bytes, but its header says {size}"),
    (63, b"\1", "it has {size} bytes, but its header says {size}"),
]


@pytest.mark.parametrize(("at", "new", "sentence"), HEADER)
def test_a_header_that_lies_is_refused(
    open_: Callable[[bytes], str], whole: bytes, at: int, new: bytes, sentence: str
) -> None:
    assert open_(whole[:at] + new + whole[at + len(new) :]).startswith(sentence.format(size=len(whole)))


def test_a_directory_may_fill_the_file_but_not_leave_it(open_: Callable[[bytes], str]) -> None:
    def file(size: int) -> bytes:
        text = b"{}".ljust(64)
        sum_ = _native.checksum(np.frombuffer(text, np.uint8))
        return struct.pack("<8sIIQQ32x", b"CTRWGHTS", 1, size, sum_, 128) + text

    assert open_(file(64)) == "its directory contradicts itself: the directory without about"
    assert open_(file(65)) == "it has 128 bytes, but its header says 128"
    assert open_(file(64)[:64]) == "it has 64 bytes, but its header says 128"
    assert open_(file(64)[:63]) == "it is not a weight file: only 63 bytes"


def about(name: str, value: object) -> Change:
    return lambda directory: directory["about"].update({name: value})


def part(k: int, name: str, value: object) -> Change:
    return lambda directory: directory["parts"][k].update({name: value})


def without(*names: str) -> Change:
    def change(directory: dict[str, Any]) -> None:
        for name in names[:-1]:
            directory = directory[int(name) if name.isdigit() else name]
        del directory[names[-1]]

    return change


CONTRADICTS = "its directory contradicts itself: "
WEIGHTS = "its parts do not have as many weights as its settings need"
LIES: list[tuple[Change, str]] = [
    (without("about"), "the directory without about"),
    (without("kind"), "the directory without kind"),
    (without("parts"), "the directory without parts"),
    (lambda d: d.update(about=7), "about"),
    (lambda d: d.update(kind=7), "kind"),
    (lambda d: d.update(parts={}), "parts"),
    *((without("about", name), f"about without {name}") for name in ("fields", "k", "bits", "lr", "names", "learned")),
    *((without("parts", "0", name), f"a part without {name}") for name in ("name", "dtype", "bytes", "sum", "shape")),
    *((about(name, value), name) for name in ("fields", "k", "bits") for value in (0, -1, 1.5, "2", None, True)),
    *((about(name, value), name) for name, value in (("fields", 513), ("k", 65), ("bits", 37), ("context", 513))),
    *((about(name, -1), name) for name in ("context", "learned")),
    *((about(name, value), name) for name in ("lr", "ffm", "norm", "residual") for value in (1, "true", None)),
    *((about("hidden", value), "hidden") for value in (7, [0], [1025], ["3"], [1] * 9)),
    *((about(name, [0.1, 0.5]), name) for name in ("lr_rates", "ffm_rates", "nn_rates")),
    *((about(name, [0.1, 0.5, 1, 1]), name) for name in ("lr_rates", "ffm_rates", "nn_rates")),
    (about("lr_rates", [0.1, 0.5, "1"]), "lr_rates"),
    (about("ffm_init", "0.1"), "ffm_init"),
    *((about("keys", value), "keys") for value in (7, ["int", "int", 7], ["int"] * 513)),
    (about("keys", ["int", "int", "number"]), "a kind of keys that is none"),
    *((about("keys", ["int"] * count), "keys and fields") for count in (0, 2, 4)),
    (about("keys", ["int", "string", "text"]), ""),
    (about("ffm_init", 1e999), "it is not JSON"),
    (about("names", ["user", "ad", 3]), "names"),
    (about("names", ["user", "ad"]), "names and fields"),
    (about("names", ["a", "b", "c", "d"]), "names and fields"),
    (about("k", 64), "bits is too small: 2^bits weights cannot hold one row of 192"),
    (about("fields", 512), "bits is too small: 2^bits weights cannot hold one row of 2048"),
    (about("context", 512), "the context cannot have more fields than the model"),
    (about("k", 4), ""),
    (about("learned", 2**63 - 1), ""),
    (about("context", 3), ""),
    (part(0, "first", 2**21), ""),
    (part(0, "first", -(2**21)), ""),
    (part(0, "shape", [1] * 31 + [64]), ""),
    (about("bits", 7), WEIGHTS),
    (about("hidden", [1024]), WEIGHTS),
    (about("hidden", [3] * 8), WEIGHTS),
    (part(0, "dtype", "F16"), "part 'lr' is not of float32"),
    (part(0, "name", "rl"), "it has no part 'lr'"),
    (part(1, "name", "lr"), "two parts have the same name"),
    (part(0, "bytes", -1), "a part's bytes"),
    (part(0, "shape", 64), "a part's shape"),
    (part(0, "shape", [-64]), "a part's shape"),
    (part(0, "shape", [2**40, 2**40]), "a part's shape"),
    (part(0, "shape", [1] * 33), "a part's shape"),
    (part(0, "shape", [0]), "part 'lr'"),
    (part(0, "shape", [65]), "part 'lr'"),
    (part(0, "sum", 7), "a checksum"),
    *((part(0, "sum", text), "a checksum") for text in ("0" * 15, "0" * 17, "0" * 15 + "g", "A" * 16, "0" * 15 + "/")),
    *((part(0, "sum", "0" * 15 + c), "a checksum") for c in ":`"),
    *((part(0, "bucket", value), "a part's bucket") for value in (0, -0.5, "1", 1e39, 1e-50)),
    (part(0, "first", 2**21 + 1), "a part's first code"),
    (part(0, "first", -(2**21) - 1), "a part's first code"),
    (part(0, "first", None), "a part's first code"),
]


@pytest.mark.parametrize(("change", "sentence"), LIES)
def test_a_directory_that_lies_is_refused_and_one_at_its_bounds_is_not(
    open_: Callable[[bytes], str], whole: bytes, change: Change, sentence: str
) -> None:
    directory, parts = of(whole)
    assert "bucket" in directory["parts"][0]
    change(directory)
    assert open_(file_of(directory, parts)) == (CONTRADICTS + sentence if sentence else "")


def test_a_directory_of_another_kind_or_of_no_json_is_told(open_: Callable[[bytes], str], whole: bytes) -> None:
    directory, parts = of(whole)
    directory["kind"] = "k" * 41
    assert open_(file_of(directory, parts)) == f"it holds weights of kind '{'k' * 40}'; expected 'deep_ffm'"
    assert open_(file_of([directory], parts)) == CONTRADICTS + "the directory"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: d["parts"][1].update(at=d["parts"][1]["at"] + 64), "part 'ffm'"),
        (lambda d: d["parts"][1].update(at=d["parts"][1]["at"] - 64), "part 'ffm'"),
        (lambda d: d["parts"].pop(), "parts and size"),
        (lambda d: d["parts"].append({**d["parts"][0], "name": "x", "at": d["parts"][2]["at"] + 64}), "part 'x'"),
    ],
)
def test_parts_fill_the_file_in_order(
    open_: Callable[[bytes], str], whole: bytes, change: Change, sentence: str
) -> None:
    directory, parts = of(whole)
    change(directory)
    assert open_(file_of(directory, parts)) == CONTRADICTS + sentence


def test_a_part_has_its_checksum_and_zeros_behind_it(open_: Callable[[bytes], str], whole: bytes) -> None:
    directory, parts = of(whole)
    began = directory["parts"][0]["at"]
    for entry in directory["parts"]:
        begin, end = entry["at"] - began, entry["at"] - began + entry["bytes"]
        for at in {begin, end - 1, end, begin + padded(entry["bytes"]) - 1}:
            if at < begin + padded(entry["bytes"]):
                changed = parts[:at] + bytes([parts[at] ^ 1]) + parts[at + 1 :]
                assert open_(file_of(directory, changed)) == f"the checksum of part '{entry['name']}' is wrong"


def test_a_part_that_no_model_has_is_refused(open_: Callable[[bytes], str], whole: bytes) -> None:
    """The weights of the model, divided among one part more."""
    directory, parts = of(whole)
    dense = directory["parts"][2]
    assert dense["bytes"] > 2
    begin = dense["at"] - directory["parts"][0]["at"]
    kept, split = parts[begin : begin + dense["bytes"] - 2], parts[begin + dense["bytes"] - 2 : begin + dense["bytes"]]
    count = len(kept) // 2
    more = {**dense, "name": "more", "shape": [1], "bytes": 2, "at": dense["at"] + padded(len(kept))}
    dense |= {"shape": [count], "bytes": len(kept)}
    for entry, octets in ((dense, kept), (more, split)):
        entry["sum"] = f"{_native.checksum(np.frombuffer(octets, np.uint8)):016x}"
    directory["parts"].append(more)
    forged = parts[:begin] + kept.ljust(padded(len(kept)), b"\0") + split.ljust(64, b"\0")
    assert open_(file_of(directory, forged)) == CONTRADICTS + "parts that no Deep FFM has"
