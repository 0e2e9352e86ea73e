"""What cannot be published, packed or read back: the sentence of each refusal."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctrbox.errors import CtrboxError
from ctrbox.publish import Part, Published, Weights, diff, pack, read_weights, unpack, write_weights
from ctrbox.publish.chain_of_sealed_lines import sealed_line
from ctrbox.publish.patch import HEAD as PATCH_HEAD
from ctrbox.publish.patch import MAGIC as PATCH
from ctrbox.publish.patch import SEAL, read_facts
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


def test_a_damaged_version_is_told_by_its_size_or_its_checksum(folder: Published) -> None:
    path, size = folder.file(), folder.log()[-1].bytes
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert folder.verify() == [f"{path} is damaged: its checksum differs from that in the log"]
    path.write_bytes(whole + b"x")
    assert folder.verify() == [f"{path} is damaged: it has {size + 1:,} bytes, expected {size:,}"]


def test_a_copy_of_a_damaged_version_is_refused_with_what_was_met(folder: Published, tmp_path: Path) -> None:
    path, size = folder.file(), folder.log()[-1].bytes
    whole = path.read_bytes()
    for content, met in (
        (whole[:-1] + bytes([whole[-1] ^ 1]), "its checksum differs from that in the log"),
        (whole[:-1], f"it has {size - 1:,} bytes, expected {size:,} bytes"),
        (whole + b"xy", f"it has more than {size:,} bytes, expected {size:,} bytes"),
    ):
        path.write_bytes(content)
        with pytest.raises(CtrboxError) as told:
            folder.copied(tmp_path / "copy.fbw")
        assert str(told.value) == f"the file of version 2 of {folder.shown} is damaged: {met}"
        assert not (tmp_path / "copy.fbw").exists()


def test_the_shortest_patch_is_judged_by_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "p"
    least = PATCH_HEAD.size + SEAL
    for content, told in (
        (PATCH.ljust(least - 1), f"is not a patch, or was truncated: it has {least - 1} bytes; copy the patch again"),
        (PATCH.ljust(least), "is damaged or truncated, because its checksum does not match; copy the patch again"),
        (b"CTRPATCX".ljust(least), f"is not a patch, or was truncated: it has {least} bytes; copy the patch again"),
    ):
        path.write_bytes(content)
        with pytest.raises(CtrboxError) as met:
            read_facts(path)
        assert str(met.value) == f"{path} {told}"


def test_a_patch_that_ends_within_its_table_of_streams_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p"
    for streams, table in ((2, 0), (2, 1), (3, 2)):
        text = PATCH_HEAD.pack(PATCH, 1, 1, 0, bytes(32), 0, bytes(32), 0, streams) + bytes(16 * table)
        path.write_bytes(text + hashlib.sha256(text).digest())
        with pytest.raises(CtrboxError) as met:
            read_facts(path)
        assert str(met.value) == (
            f"{path} contradicts itself: 0 regions, {streams} streams, words of 1 bytes; make the patch again"
        )
    text = PATCH_HEAD.pack(PATCH, 1, 1, 0, bytes(32), 0, bytes(32), 0, 2) + bytes(32)
    path.write_bytes(text + hashlib.sha256(text).digest())
    assert (read_facts(path).word, read_facts(path).result_bytes) == (1, 0)


@pytest.mark.parametrize(("numbers", "word"), [(8, 2), (9, 4)])
def test_files_of_which_half_are_codes_are_compared_by_two_bytes(tmp_path: Path, numbers: int, word: int) -> None:
    path = tmp_path / "w.fbw"
    codes = Part.floats("w", np.linspace(0, 1, 32, dtype=np.float32))  # 64 bytes of codes, and 64 or 128 of others
    other = Part("n", "I64", (numbers,), np.zeros(8 * numbers, np.uint8))
    write_weights(path, Weights("test", {}, [codes, other]))
    assert diff(path, path, tmp_path / "p").word == word


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


# ---- directories of weight files, and features of a plan, each with one thing wrong


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, ""),
        ({"at": 128 + 64}, "its part 'b' is not described correctly"),
        ({"shape": [-3]}, "its part 'b' is not described correctly"),
        ({"shape": [-1, -3]}, "its part 'b' is not described correctly"),
        ({"shape": [2]}, "its part 'b' is not described correctly"),
        ({"bytes": 8}, "its part 'b' is not described correctly"),
        ({"dtype": "I64"}, "its part 'b' is not described correctly"),
        ({"dtype": "I16", "shape": [6], "bucket": 1.0, "first": 0}, "its part 'b' is not described correctly"),
        ({"dtype": "F8"}, "KeyError('F8')"),
        ({"name": "a"}, "its parts do not add up to its size"),
    ],
)
def test_a_directory_that_contradicts_itself_is_refused(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    path = tmp_path / "w.fbw"
    write_weights(path, weights("a", "b"), quantize=False)
    whole = path.read_bytes()
    length = struct.unpack_from("<I", whole, 12)[0]
    directory = json.loads(whole[HEAD.size : HEAD.size + length])
    directory["parts"][1] |= changed
    text = json.dumps(directory, separators=(",", ":")).encode().ljust(length)
    assert len(text) == length
    path.write_bytes(HEAD.pack(MAGIC, 1, length, _sum(text), len(whole)) + text + whole[HEAD.size + length :])
    if not told:
        assert [part.name for part in read_weights(path).parts] == ["a", "b"]
        return
    with pytest.raises(CtrboxError) as met:
        read_weights(path)
    assert told in str(met.value)
    assert str(met.value).startswith(f"cannot read {path}: its directory contradicts itself: ")


def deep_ffm(**about: Any) -> Weights:
    return Weights(DEEP_FFM, {"names": ["user", "ad"], **about}, [Part.floats("w", np.ones(3, np.float32))])


def test_a_model_must_fit_the_plan_that_it_is_served_with(tmp_path: Path) -> None:
    folder = Published(tmp_path / "model" / "weights")
    folder.folder.mkdir(parents=True)
    folder.publish(deep_ffm())  # nobody has said what is served
    folder.serves(["user", "ad", "day"], {"user": "int", "ad": "text", "day": "odd"})
    assert folder._features() == {"user": "int", "ad": "text", "day": ""}
    folder.publish(deep_ffm(keys=["int", "text"]))
    folder.publish(deep_ffm(keys=["", ""]))
    other = f"{tmp_path}/model is served with"
    for about, told in (
        (
            {"names": ["user", "dag"]},
            f"the model's field 'dag' is not a feature of the plan that {other}; nearest: 'day'; make another folder for it: "
            "ctrbox publish create",
        ),
        ({"keys": ["text", "text"]}, f"the model does not fit the plan that {other}: "),
        ({"keys": ["int"]}, "cannot publish 00000004.fbw: "),
    ):
        with pytest.raises(CtrboxError) as met:
            folder.publish(deep_ffm(**about))
        assert str(met.value).startswith(told)
    assert [v.number for v in folder.log()] == [1, 2, 3]
    any_model = Published(tmp_path / "other")
    any_model.folder.mkdir()
    any_model.serves(["user"])
    any_model.publish(weights())  # only a Deep FFM has fields


# ---- rows of tables


class Exported:
    """A table that is exported with these keys; a row has a weight and two numbers."""

    def __init__(self, *keys: int, linear: bool = True) -> None:
        self.keys, self.row = np.array(keys, np.int64), SimpleNamespace(linear=linear)

    def export(self) -> Any:
        numbers = np.arange(len(self.keys) * 3, dtype=np.float32) + 10 * np.repeat(self.keys, 3).astype(np.float32)
        rows = numbers.reshape(len(self.keys), 3)
        return self.keys, rows if self.row.linear else rows[:, 1:], None


@pytest.mark.parametrize("linear", [True, False])
def test_rows_of_a_table_keep_the_places_of_the_version_before(tmp_path: Path, linear: bool) -> None:
    before = Exported(30, 10, 20, linear=linear)
    pack(before, tmp_path / "1.fbw", quantize=False)
    after = Exported(40, 20, 5, 10, linear=linear)
    pack(after, tmp_path / "2.fbw", base=tmp_path / "1.fbw", quantize=False)
    found = []
    for name in ("1", "2"):
        unpack(tmp_path / f"{name}.fbw", tmp_path / f"{name}.parquet")
        found.append(pq.read_table(tmp_path / f"{name}.parquet").to_pylist())
    assert [[row["key"] for row in rows] for rows in found] == [[10, 20, 30], [10, 20, 5, 40]]
    for table, rows in zip((before, after), found, strict=True):
        keys, floats, _ = table.export()
        for row in rows:
            (expected,) = floats[keys == row["key"]].tolist()
            assert [*([row["weight"]] if linear else []), *row["vector"]] == expected
            assert ("weight" in row) is linear
    pack(tmp_path / "2.parquet", tmp_path / "3.fbw", base=tmp_path / "2.fbw", quantize=False)
    assert (tmp_path / "3.fbw").read_bytes() == (tmp_path / "2.fbw").read_bytes()
    pack(Exported(linear=linear), tmp_path / "4.fbw", base=tmp_path / "2.fbw")
    assert read_weights(tmp_path / "4.fbw").part("key").shape == (0,)
    with pytest.raises(CtrboxError, match=r"^the exported table has key 7 twice; export it again$"):
        pack(Exported(8, 7, 9, 7, linear=linear), tmp_path / "5.fbw")


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"key": [1]}, "key"),
        ({"vector": pa.array([[1.0]], pa.list_(pa.float32(), 1))}, "vector"),
        ({"key": [1], "vector": [[1.0]]}, "key, vector"),
        ({"key": [1], "vector": pa.array([[1.0]], pa.list_(pa.float64(), 1)), "weight": [1.0]}, "key, vector, weight"),
    ],
)
def test_a_file_that_is_no_export_is_told_its_columns(tmp_path: Path, columns: dict[str, Any], told: str) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(columns), path)
    with pytest.raises(CtrboxError) as met:
        pack(path, tmp_path / "w.fbw")
    assert str(met.value) == f"{path} is not an export of a table: it has the columns {told}; expected key and vector"


def test_what_has_no_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        CtrboxError, match=r"^cannot publish int; expected the path of a model, a cb\.DeepFFM, a cb\.Run or a"
    ):
        pack(7, tmp_path / "w.fbw")  # type: ignore[arg-type]
    for word in (0, 3, 8):
        with pytest.raises(CtrboxError, match=rf"^word= must be 1, 2 or 4, got {word}$"):
            diff(tmp_path / "a", tmp_path / "b", tmp_path / "p", word=word)
    with pytest.raises(CtrboxError) as met:
        write_weights(tmp_path / "w.fbw", Weights("test", {}, [Part.floats("w", np.array([1, np.nan], np.float32))]))
    assert str(met.value) == "weight 1 of 'w' is nan; only models whose weights are all finite can be published"
