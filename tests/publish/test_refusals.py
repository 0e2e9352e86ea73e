"""What cannot be published, packed or read back: the sentence of each refusal."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctrbox.errors import CtrboxError
from ctrbox.publish import Part, Published, Weights, diff, pack, read_weights, unpack, write_weights
from ctrbox.publish.chain_of_sealed_lines import sealed_line
from ctrbox.publish.weight_file import HEAD, MAGIC, _entry, _sum
from ctrbox.publish.weights_of_models import DEEP_FFM, FFM_MAGIC


def weights(*names: str) -> Weights:
    return Weights("test", {}, [Part.floats(name, np.ones(3, np.float32)) for name in names or ("w",)])


def safetensors(dtype: str) -> bytes:
    head = json.dumps({"t": {"dtype": dtype, "shape": [1], "data_offsets": [0, 1]}}).encode()
    return struct.pack("<Q", len(head)) + head + b"\0"


# ---- packing and unpacking


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nothing.fbw", None, "cannot read {}: No such file or directory$"),
        ("saved.ffm", FFM_MAGIC + b"x" * 20, "cannot read {}: "),
        ("broken.safetensors", b"\xff" * 16, "cannot read {}: .*header"),
        (
            "eight.safetensors",
            safetensors("F8_E5M2"),
            "tensor 't' of {} has the type F8_E5M2; expected one of F64, F32, F16",
        ),
        ("table.parquet", b"PAR1 and then nothing", "cannot read {}: "),
        ("other.bin", b"something else", "{} is not a model of CTRBox; expected a saved Deep FFM"),
    ],
)
def test_a_model_that_cannot_be_packed_is_named(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CtrboxError, match=message.format(re.escape(str(path)))):
        pack(path, tmp_path / "out.fbw")
    assert not (tmp_path / "out.fbw").exists()


def test_tensors_of_eight_bits_are_packed(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(safetensors("U8"))
    pack(tmp_path / "w.safetensors", tmp_path / "w.fbw")
    assert [(p.name, p.dtype, p.data.tolist()) for p in read_weights(tmp_path / "w.fbw").parts] == [("t", "U8", [0])]


def test_a_deep_ffm_is_not_unpacked(tmp_path: Path) -> None:
    write_weights(tmp_path / "w.fbw", Weights(DEEP_FFM, {}, []))
    with pytest.raises(CtrboxError, match=r"holds weights of kind 'deep_ffm'; load a Deep FFM with cb\.DeepFFM\.load"):
        unpack(tmp_path / "w.fbw", tmp_path / "out")


def test_weights_that_contradict_themselves_are_not_written(tmp_path: Path) -> None:
    path = tmp_path / "w.fbw"
    with pytest.raises(
        CtrboxError, match="two parts of the weight file have the same name; give each part its own name"
    ):
        write_weights(path, weights("a", "b", "a"))
    for wrong in ((31, 0), (0, -31), (1.5, 0)):
        with pytest.raises(CtrboxError, match=r"decimals= must be two whole numbers from -30 to 30, got \("):
            write_weights(path, weights(), decimals=wrong)  # type: ignore[arg-type]
    assert not path.exists()
    write_weights(path, weights(), decimals=(30, -30))
    with pytest.raises(CtrboxError, match="weights of kind 'test' have no part 'v'"):
        read_weights(path).part("v")


def test_a_directory_whose_parts_do_not_fill_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.fbw"
    write_weights(path, weights("a", "b"))
    whole = path.read_bytes()
    length = struct.unpack_from("<I", whole, 12)[0]
    text = whole[HEAD.size : HEAD.size + length]
    twice = text.replace(b'"name":"b"', b'"name":"a"')
    for directory, rest in ((text, bytes(64)), (twice, b"")):
        body = directory + whole[HEAD.size + length :] + rest
        path.write_bytes(HEAD.pack(MAGIC, 1, length, _sum(directory), HEAD.size + len(body)) + body)
        with pytest.raises(
            CtrboxError, match=r"its directory contradicts itself: ValueError\('its parts do not add up to its size'\)"
        ):
            read_weights(path)


@pytest.mark.parametrize(
    ("bucket", "first", "good"),
    [
        (1e-300, 0, True),
        (0.0, 0, False),
        (-1.0, 0, False),
        (float("inf"), 0, False),
        (float("nan"), 0, False),
        (1.0, 1 << 21, True),
        (1.0, -(1 << 21), True),
        (1.0, (1 << 21) + 1, False),
        (1.0, -(1 << 21) - 1, False),
    ],
)
def test_buckets_of_codes_have_a_finite_width_and_a_first_number_near_0(bucket: float, first: int, good: bool) -> None:
    facts = {
        "name": "a",
        "dtype": "F32",
        "shape": [2],
        "at": 64,
        "bytes": 4,
        "sum": "0",
        "bucket": bucket,
        "first": first,
    }
    if good:
        codes = _entry(facts).codes
        assert codes is not None
        assert (codes.bucket, codes.first) == (bucket, first)
        return
    with pytest.raises(ValueError, match="buckets"):
        _entry(facts)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(CtrboxError, match=rf"^cannot read {tmp_path}/none: No such file or directory$"):
        read_weights(tmp_path / "none")
    with pytest.raises(CtrboxError, match=rf"^cannot read {tmp_path}/none: No such file or directory$"):
        diff(tmp_path / "none", tmp_path / "none", tmp_path / "patch")
    with pytest.raises(CtrboxError, match=rf"^cannot read {tmp_path}: it is not a regular file$"):
        diff(tmp_path, tmp_path, tmp_path / "patch")


# ---- folders of versions


@pytest.fixture
def folder(tmp_path: Path) -> Published:
    made = Published(tmp_path / "published")
    for _ in range(2):
        made.publish(weights())
    return made


def test_a_folder_without_versions_says_so(tmp_path: Path) -> None:
    empty = Published(tmp_path)
    assert (empty.current, empty.log()) == (None, [])
    asked: list[Callable[[], Any]] = [
        empty.file,
        lambda: empty.patch(1),
        lambda: empty.update(tmp_path / "w.fbw"),
        lambda: empty.rollback(1),
    ]
    for ask in asked:
        with pytest.raises(CtrboxError, match=f"{tmp_path} holds no published version"):
            ask()


def test_versions_count_from_1(folder: Published) -> None:
    assert (folder.file(1).name, folder.file(2).name) == ("00000001.fbw", "00000002.fbw")
    for number in (0, 3, -1):
        with pytest.raises(CtrboxError, match=f"has no version {number}; its versions are 1 to 2"):
            folder.file(number)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "versions").write_text("")
    with pytest.raises(CtrboxError, match=f"^cannot publish to {tmp_path}: File exists$"):
        Published(tmp_path).publish(weights())


def test_a_missing_file_of_the_newest_version_is_told(folder: Published) -> None:
    path = folder.file()
    path.unlink()
    assert folder.verify() == [f"cannot read {path}: No such file or directory"]


def test_features_that_are_none_are_told(folder: Published) -> None:
    path = folder.folder / "FEATURES"
    path.write_bytes(sealed_line("", {"features": "user"})[0])
    assert folder.verify() == [f"{path} is damaged: it does not list the features of the plan; restore it from a copy"]
    path.unlink()
    path.mkdir()
    assert folder.verify() == [f"cannot read {path}: Is a directory"]


def sealed_pointer(folder: Published, **facts: Any) -> None:
    (folder.folder / "CURRENT").write_bytes(sealed_line("", facts)[0])


def test_a_pointer_and_a_log_with_true_checksums_that_do_not_fit_are_refused(folder: Published) -> None:
    pointer, log = folder.folder / "CURRENT", folder.folder / "log.jsonl"
    told = json.loads(pointer.read_text())
    facts = {name: told[name] for name in ("version", "log_bytes", "log_seal")}
    no_pointer = (
        f"{pointer} is damaged, or is not the file CURRENT of a folder of published versions; restore it from a copy"
    )
    for wrong in ({"version": 2}, {**facts, "log_bytes": "1"}, {**facts, "more": 1}):
        sealed_pointer(folder, **wrong)
        assert folder.verify() == [no_pointer]
    for size in (0, facts["log_bytes"] + 1):
        sealed_pointer(folder, **{**facts, "log_bytes": size})
        assert folder.verify() == [
            f"{log} was truncated: it has {facts['log_bytes']:,} bytes, expected {size:,}; restore the folder from a copy"
        ]
    for wrong in ({**facts, "version": 3}, {**facts, "log_seal": "0"}):
        sealed_pointer(folder, **wrong)
        assert folder.verify() == [
            f"{folder.folder} is damaged: CURRENT and log.jsonl do not belong together; restore the folder from a copy"
        ]
    # The second line twice: its seal is right behind the first, its number is not that of a third version.
    first, second = (json.loads(line) for line in log.read_text().splitlines())
    seal = second.pop("seal")
    line, seal = sealed_line(seal, second)
    log.write_bytes(log.read_bytes() + line)
    sealed_pointer(folder, version=3, log_bytes=log.stat().st_size, log_seal=seal)
    assert folder.verify() == [f"{log} is damaged at version 3"]
    assert first["number"] == 1
