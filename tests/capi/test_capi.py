"""libctrbox against Python: the same keys, the same scores bit by bit, the same files refused."""

from __future__ import annotations

import ctypes
import random
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import _native, col, publish
from tests.capi.library import Examples, example, run
from tests.capi.models import (
    BAD_ARGUMENT,
    CANNOT_READ,
    CANNOT_WRITE,
    DAMAGED,
    OK,
    TOO_LARGE,
    WRONG_BASE,
    learned,
    lines,
    opened,
    refused,
)

with_makefile = pytest.mark.skipif(
    not shutil.which("make") or not shutil.which("pkg-config"), reason="needs make and pkg-config"
)
KINDS = {
    "whole": {"k": 4, "hidden": (8, 4), "norm": True, "context": ("user",)},
    "ffm": {"k": 3, "hidden": (), "lr": None},
    "lr": {"ffm": None, "hidden": ()},
}


class Rows:
    """Features of a native `Examples` as the arrays that C takes."""

    def __init__(self, found: _native.Examples) -> None:
        self.kept = [found.offsets.astype(np.uint64), found.fields.astype(np.uint32), found.keys, found.values]
        kinds = (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_float)
        given = [a.ctypes.data_as(ctypes.POINTER(k)) if a.size else None for a, k in zip(self.kept, kinds, strict=True)]
        self.c = Examples(found.rows, *given)
        self.scores = np.zeros(found.rows, np.float32)
        self.out = self.scores.ctypes.data_as(ctypes.POINTER(ctypes.c_float))


@with_makefile
@pytest.mark.parametrize("kind", KINDS)
def test_the_example_in_c_gives_pythons_bits(prefix: Path, tmp_path: Path, kind: str) -> None:
    engine = learned(tmp_path, **KINDS[kind])
    engine.save(tmp_path / "model.ffm")
    publish.pack(engine, tmp_path / "codes.fbw")
    publish.pack(engine, tmp_path / "floats.fbw", quantize=False)
    score = example(prefix, tmp_path / "c")
    asked = lines(150, seed=2)
    (tmp_path / "asked.vw").write_text("\n".join(asked) + "\n")
    for name in ("model.ffm", "codes.fbw", "floats.fbw"):
        expected = cb.DeepFFM.load(tmp_path / name).predict(cb.ffm.ExampleText(tmp_path / "asked.vw"))
        met = run(
            str(score), str(tmp_path / name), input=(tmp_path / "asked.vw").read_text(),
            env={"LD_LIBRARY_PATH": str(prefix / "lib")},
        )  # fmt: skip
        assert np.array([float(x) for x in met.split()], np.float32).tobytes() == expected.tobytes()


@with_makefile
def test_the_example_takes_models_of_a_plan(prefix: Path, tmp_path: Path) -> None:
    table = pa.table(
        {"query": ["u1", "Köln", "shoes"], "n": [1, -5, 2**62], "x": [0.5, 1.0, -2.0], "clicked": [0, 1, 1]}
    )
    sparse = {"query": col("query").key(), "n": col("n").key()}
    plan = cb.compile(
        cb.View(table), cb.FeatureSet(label=col("clicked"), sparse=sparse, dense={"x": col("x")}), device="cpu"
    )
    engine = cb.DeepFFM(plan.schema, bits=8, k=2)
    for _ in range(20):
        engine.learn(plan.batches(10))
    engine.save(tmp_path / "model.ffm")
    (batch,) = plan.batches(10)
    score = str(example(prefix, tmp_path / "c", LDFLAGS=f"-Wl,-rpath,{prefix / 'lib'}"))  # no LD_LIBRARY_PATH then
    asked = "".join(f"|query {q} |n {n} |x :{x}\n" for q, n, x, _ in zip(*table.to_pydict().values(), strict=True))
    met = run(score, str(tmp_path / "model.ffm"), "query=string", "n=int", "x=dense", input=asked)
    assert np.array([float(x) for x in met.split()], np.float32).tobytes() == engine.predict(batch).tobytes()
    for words, said in (
        (["n=number"], "n=number: expected FIELD=text, string, int or dense"),
        (["m=int"], "m=int: "),
        (["query=int"], "u1: expected a whole number"),
    ):
        done = subprocess.run([score, str(tmp_path / "model.ffm"), *words], input=asked, capture_output=True, text=True)
        assert (done.returncode, said in done.stderr) == (1, True), done.stderr


def test_a_context_and_its_candidates_have_the_bits_of_whole_rows(lib: ctypes.CDLL, tmp_path: Path) -> None:
    engine = learned(tmp_path, **KINDS["whole"])
    publish.pack(engine, tmp_path / "codes.fbw")
    loaded_again = cb.DeepFFM.load(tmp_path / "codes.fbw")
    fields = loaded_again.fields
    parser = _native.ExampleParser(False, fields, [])
    candidates = [line.split("|ad")[1] for line in lines(40, seed=3)]
    parser.feed("".join(f"|user u7 |ad{c}\n" for c in candidates).encode())
    whole = parser.take()
    parser.feed(b"|user u7\n")
    context = parser.take()
    parser.feed("".join(f"|ad{c}\n" for c in candidates).encode())
    part = parser.take()
    expected, _ = loaded_again._native.predict(whole, 1)
    with opened(lib, tmp_path / "codes.fbw") as model:
        assert lib.ctrbox_context_fields(model) == 1
        rows, one, many = Rows(whole), Rows(context), Rows(part)
        assert lib.ctrbox_score(model, ctypes.byref(rows.c), rows.out) == OK
        assert rows.scores.tobytes() == expected.tobytes()
        made = ctypes.c_void_p()
        assert lib.ctrbox_context_make(model, ctypes.byref(one.c), ctypes.byref(made)) == OK, lib.ctrbox_last_error()
        assert lib.ctrbox_context_bytes(made) > 0
        assert lib.ctrbox_context_score(model, made, ctypes.byref(many.c), many.out) == OK
        assert many.scores.tobytes() == expected.tobytes()
        # Fields on the wrong side, several contexts, another model's context.
        assert lib.ctrbox_context_score(model, made, ctypes.byref(rows.c), rows.out) == BAD_ARGUMENT
        wrong = ctypes.c_void_p()
        assert lib.ctrbox_context_make(model, ctypes.byref(many.c), ctypes.byref(wrong)) == BAD_ARGUMENT
        with opened(lib, tmp_path / "codes.fbw") as other:
            assert lib.ctrbox_context_score(other, made, ctypes.byref(many.c), many.out) == BAD_ARGUMENT
            assert b"another model" in lib.ctrbox_last_error()
        lib.ctrbox_context_free(made)


def test_keys_are_those_of_a_plan(lib: ctypes.CDLL, tmp_path: Path) -> None:
    table = pa.table({"user": ["u1", "", "Köln", "u" * 50], "n": [1, -5, 2**62, 0], "x": [0.5, 1.0, -2.0, 3.0]})
    log = cb.View(table.append_column("clicked", [[0, 1, 0, 1]]))
    features = cb.FeatureSet(
        label=col("clicked"), sparse={"who": col("user").key(), "number": col("n").key()}, dense={"x": col("x")}
    )
    plan = cb.compile(log, features, device="cpu")
    (batch,) = plan.batches(10)
    engine = cb.DeepFFM(plan.schema, bits=8, k=2)
    engine.save(tmp_path / "model.ffm")
    expected = engine.predict(batch)
    with opened(lib, tmp_path / "model.ffm") as model:
        number = ctypes.c_uint32()
        fields = {}
        for name in (b"who", b"number", b"x"):
            assert lib.ctrbox_field(model, name, ctypes.c_size_t(len(name)), ctypes.byref(number)) == OK
            fields[name] = number.value
        keys, columns, values = [], [], []
        for row, (user, n, x) in enumerate(zip(*(table[c].to_pylist() for c in ("user", "n", "x")), strict=True)):
            text, key = user.encode(), ctypes.c_uint64()
            size = ctypes.c_size_t(len(text))
            assert lib.ctrbox_key_of_string(model, fields[b"who"], text, size, ctypes.byref(key)) == OK
            mine = [key.value]
            assert lib.ctrbox_key_of_int(model, fields[b"number"], ctypes.c_int64(n), ctypes.byref(key)) == OK
            mine.append(key.value)
            given = ctypes.c_uint64(int(batch.sparse["number"].values[row]) % 2**64)
            assert lib.ctrbox_key_of_key(model, fields[b"number"], given, ctypes.byref(key)) == OK
            assert key.value == mine[1]
            assert lib.ctrbox_key_of_dense(model, fields[b"x"], ctypes.byref(key)) == OK
            keys += [*mine, key.value]
            columns += [fields[b"who"], fields[b"number"], fields[b"x"]]
            values += [1.0, 1.0, x]
        arrays = (
            (ctypes.c_uint64 * 5)(*range(0, 13, 3)),
            (ctypes.c_uint32 * 12)(*columns),
            (ctypes.c_uint64 * 12)(*keys),
            (ctypes.c_float * 12)(*values),
        )
        scores = (ctypes.c_float * 4)()
        assert lib.ctrbox_score(model, ctypes.byref(Examples(4, *arrays)), scores) == OK
    assert np.array(scores, np.float32).tobytes() == expected.tobytes()


def test_a_patch_gives_the_files_bytes_and_damage_leaves_nothing(lib: ctypes.CDLL, tmp_path: Path) -> None:
    engine = learned(tmp_path, **KINDS["whole"])
    old, new, patch = (tmp_path / name for name in ("old.fbw", "new.fbw", "update.patch"))
    publish.pack(engine, old)
    engine.learn(cb.ffm.ExampleText(tmp_path / "train.vw"))
    publish.pack(engine, new, base=old)
    publish.diff(old, new, patch)

    def apply(base: Path, change: Path, result: Path, most: int = 0) -> int:
        names = [str(p).encode() for p in (base, change, result)]
        return int(lib.ctrbox_apply_patch(*names, ctypes.c_uint64(most)))

    served = tmp_path / "served" / "model.fbw"
    served.parent.mkdir()
    assert apply(old, patch, served) == OK, lib.ctrbox_last_error()
    assert served.read_bytes() == new.read_bytes()
    shutil.copy(old, served)
    assert apply(served, patch, served) == OK  # in place
    assert served.read_bytes() == new.read_bytes()

    whole = patch.read_bytes()
    draw = random.Random(4)
    cut = tmp_path / "cut.patch"
    for n in (0, 1, 7, 8, 103, 104, 135, 136, len(whole) - 1, *(draw.randrange(len(whole)) for _ in range(30))):
        cut.write_bytes(whole[:n])
        assert apply(old, cut, served) == DAMAGED
    for _ in range(60):
        at = draw.randrange(8 * len(whole))
        flipped = bytearray(whole)
        flipped[at // 8] ^= 1 << at % 8
        cut.write_bytes(flipped)
        assert apply(old, cut, served) == DAMAGED
    assert apply(new, patch, served) == WRONG_BASE
    assert b"another file" in lib.ctrbox_last_error() or b"applies to a file of" in lib.ctrbox_last_error()
    assert apply(old, patch, served, most=100) == TOO_LARGE
    assert apply(old, tmp_path / "none.patch", served) == CANNOT_READ
    assert apply(old, patch, tmp_path / "no" / "folder" / "x") == CANNOT_WRITE
    assert served.read_bytes() == new.read_bytes()
    assert [p.name for p in served.parent.iterdir()] == ["model.fbw"]


def test_damaged_files_are_refused_as_python_refuses_them(lib: ctypes.CDLL, tmp_path: Path) -> None:
    engine = learned(tmp_path, rows=50, **KINDS["ffm"])
    engine.save(tmp_path / "model.ffm")
    publish.pack(engine, tmp_path / "codes.fbw")
    draw = random.Random(5)
    path = tmp_path / "damaged"
    for name in ("model.ffm", "codes.fbw"):
        whole = (tmp_path / name).read_bytes()
        for n in range(80):
            bytes_ = bytearray(whole)
            if n % 2:
                del bytes_[draw.randrange(len(bytes_)) :]
            else:
                at = draw.randrange(8 * len(bytes_))
                bytes_[at // 8] ^= 1 << at % 8
            path.write_bytes(bytes_)
            assert str(path) in refused(lib, path)
    path.write_bytes(b"")
    refused(lib, path)
    refused(lib, tmp_path)
    refused(lib, tmp_path / "nothing")


def test_forged_directories_are_refused(lib: ctypes.CDLL, tmp_path: Path) -> None:
    """True checksums over settings that lie about the weights."""
    engine = learned(tmp_path, rows=50, **KINDS["ffm"])
    publish.pack(engine, tmp_path / "codes.fbw")
    whole = (tmp_path / "codes.fbw").read_bytes()
    length = struct.unpack_from("<I", whole, 12)[0]
    directory = whole[64 : 64 + length]
    lies = [
        (b'"bits":12', b'"bits":36'), (b'"bits":12', b'"bits":-1'), (b'"fields":3', b'"fields":2'),
        (b'"k":3', b'"k":64'), (b'"kind":"deep_ffm"', b'"kind":"deep_fft"'), (b'"lr":false', b'"lr":true '),
        (b'"hidden":[]', b'"hidden":7 '), (b'"shape":[', b'"shape":{'), (b'"first":', b'"fjrst":'), (b'"kind"', b'"kjnd"'),
    ]  # fmt: skip
    for old, new in lies:
        assert old in directory, old
        forged = directory.replace(old, new, 1)[:length].ljust(length)
        sum_ = _native.checksum(np.frombuffer(forged, np.uint8))
        head = whole[:16] + struct.pack("<Q", sum_) + whole[24:64]
        path = tmp_path / "forged.fbw"
        path.write_bytes(head + forged + whole[64 + length :])
        assert "directory" in refused(lib, path) or "kind" in refused(lib, path)
        with pytest.raises(cb.errors.CtrboxError):
            cb.DeepFFM.load(path)


def test_the_header_is_plain_c_and_nothing_else_is_exported(prefix: Path, tmp_path: Path) -> None:
    source = tmp_path / "use.c"
    source.write_text('#include "ctrbox.h"\nint main(void) { return ctrbox_abi() == CTRBOX_ABI ? 0 : 1; }\n')
    for standard, compiler in (("c99", "cc"), ("c11", "cc"), ("c++17", "c++")):
        language = "c++" if compiler == "c++" else "c"
        run(
            compiler, f"-std={standard}", "-Wall", "-Wextra", "-pedantic", "-Werror", "-x", language, str(source),
            f"-I{prefix}/include", f"-L{prefix}/lib", "-lctrbox", "-o", str(tmp_path / "use"),
        )  # fmt: skip
        run(str(tmp_path / "use"), env={"LD_LIBRARY_PATH": str(prefix / "lib")})
    if shutil.which("nm"):
        listed = subprocess.run(
            ["nm", "-D", "--defined-only", str(prefix / "lib" / "libctrbox.so")],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        names = {line.split()[-1].split("@")[0] for line in listed.splitlines()}
        assert names - {"CTRBOX_1"} == {name for name in names if name.startswith("ctrbox_")}
        declared = (prefix / "include" / "ctrbox.h").read_text()
        assert all(f"{name}(" in declared for name in names - {"CTRBOX_1"})


def test_hashed_interactions_have_the_keys_of_python(lib: ctypes.CDLL, tmp_path: Path) -> None:
    text = tmp_path / "train.vw"
    text.write_text("1 |user u1 |ad a7\n-1 |user u2 |ad a7\n1 |user u1 |ad a8\n" * 20)
    source = cb.ffm.ExampleText(text, fields=["user", "ad"], interactions=[("user", "ad")])
    engine = cb.DeepFFM(["user", "ad", "user*ad"], bits=8, k=2)
    engine.learn(source)
    engine.save(tmp_path / "model.ffm")
    expected = engine.predict(source)[:3]
    with opened(lib, tmp_path / "model.ffm") as model:
        keys = []
        for user, ad in ((b"u1", b"a7"), (b"u2", b"a7"), (b"u1", b"a8")):
            mine = (ctypes.c_uint64 * 3)()
            for field, name in enumerate((user, ad)):
                at = ctypes.byref(mine, 8 * field)
                assert lib.ctrbox_key_of_text(model, field, name, ctypes.c_size_t(len(name)), at) == OK
            crossed = ctypes.byref(mine, 16)
            assert lib.ctrbox_key_of_interaction(model, 2, mine, ctypes.c_size_t(2), crossed) == OK
            keys += list(mine)
        arrays = (
            (ctypes.c_uint64 * 4)(0, 3, 6, 9),
            (ctypes.c_uint32 * 9)(*[0, 1, 2] * 3),
            (ctypes.c_uint64 * 9)(*keys),
        )
        scores = (ctypes.c_float * 3)()
        assert lib.ctrbox_score(model, ctypes.byref(Examples(3, *arrays, None)), scores) == OK
    assert np.array(scores, np.float32).tobytes() == expected.tobytes()
