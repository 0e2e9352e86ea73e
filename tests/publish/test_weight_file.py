"""Weight files of every model of ours: what comes back, what stays in its place, what is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import ctrbox as cb
from ctrbox import publish
from ctrbox.errors import CtrboxError, DataError, PlanError, SourceError
from ctrbox.publish.weight_file import Part, Weights, read_directory

FIELDS = ["a", "b", "c"]
FLOATS = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False))
NAMED = st.dictionaries(st.one_of(st.sampled_from("ab"), st.text(max_size=8)), FLOATS, max_size=4)


def text(rows: int, seed: int) -> str:
    random = np.random.default_rng(seed)
    return "".join(
        f"{random.choice([1, -1])} |a x{random.integers(50)} |b y{random.integers(300)} |c z{random.integers(9)}\n"
        for _ in range(rows)
    )


@pytest.fixture
def engine(tmp_path: Path) -> cb.DeepFFM:
    (tmp_path / "train.vw").write_text(text(400, 1))
    (tmp_path / "more.vw").write_text(text(20, 2))
    made = cb.DeepFFM(FIELDS, bits=12, hidden=(5,), norm=True)
    made.learn(cb.ffm.ExampleText(tmp_path / "train.vw"))
    return made


def test_a_deep_ffm_is_half_without_accumulators_and_a_quarter_as_codes(engine: cb.DeepFFM, tmp_path: Path) -> None:
    engine.save(tmp_path / "model.ffm")
    publish.pack(engine, tmp_path / "plain.fbw", quantize=False)
    publish.pack(tmp_path / "model.ffm", tmp_path / "codes.fbw")
    full, plain, codes = ((tmp_path / n).stat().st_size for n in ("model.ffm", "plain.fbw", "codes.fbw"))
    assert plain < 0.53 * full
    assert codes < 0.53 * plain
    source = cb.ffm.ExampleText(tmp_path / "train.vw")
    expected = engine.predict(source)
    exact = cb.DeepFFM.load(tmp_path / "plain.fbw")
    assert (exact.fields, exact.learned, repr(exact)) == (engine.fields, engine.learned, repr(engine))
    assert exact.predict(source).tobytes() == expected.tobytes()
    assert np.abs(cb.DeepFFM.load(tmp_path / "codes.fbw").predict(source) - expected).max() < 1e-4


def test_patched_weights_equal_full_weights_bytewise(engine: cb.DeepFFM, tmp_path: Path) -> None:
    for kind in (True, False):
        publish.pack(engine, tmp_path / "old.fbw", quantize=kind)
        engine.learn(cb.ffm.ExampleText(tmp_path / "more.vw"))
        publish.pack(engine, tmp_path / "new.fbw", quantize=kind, base=tmp_path / "old.fbw")
        facts = publish.diff(tmp_path / "old.fbw", tmp_path / "new.fbw", tmp_path / "p")
        assert facts.word == (2 if kind else 4)
        assert facts.bytes < 0.2 * facts.result_bytes
        publish.apply(tmp_path / "old.fbw", tmp_path / "p", tmp_path / "again.fbw")
        assert (tmp_path / "again.fbw").read_bytes() == (tmp_path / "new.fbw").read_bytes()


def test_an_unchanged_model_is_an_empty_patch(engine: cb.DeepFFM, tmp_path: Path) -> None:
    publish.pack(engine, tmp_path / "old.fbw")
    publish.pack(engine, tmp_path / "new.fbw", base=tmp_path / "old.fbw")
    assert publish.diff(tmp_path / "old.fbw", tmp_path / "new.fbw", tmp_path / "p").changed == 0


def test_tensors_of_a_run_come_back(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    tensors = {
        "tower.0.weight": random.normal(0, 0.1, (16, 9)).astype(np.float32),
        "norm.weight": np.ones(16, np.float32),
        "steps": np.array(7, np.int64),
        "mask": np.array([True, False]),
        "half": random.normal(size=(3,)).astype(np.float16),
        "none": np.zeros((0, 4), np.float32),
    }
    folder = tmp_path / "run" / "model"
    folder.mkdir(parents=True)
    save_file(tensors, folder / "dense.safetensors")
    publish.pack(tmp_path / "run", tmp_path / "w.fbw")
    publish.unpack(tmp_path / "w.fbw", tmp_path / "back.safetensors")
    back = load_file(tmp_path / "back.safetensors")
    assert {k: (v.dtype, v.shape) for k, v in back.items()} == {k: (v.dtype, v.shape) for k, v in tensors.items()}
    for name, value in tensors.items():
        if name == "tower.0.weight":
            assert np.abs(back[name] - value).max() < 1e-4 * np.abs(value).max()
        else:
            assert back[name].tobytes() == value.tobytes()


def export(path: Path, keys: np.ndarray, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(1000, 4)).astype(np.float32)[keys % 1000]
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 4)
    pq.write_table(
        pa.table({"key": keys, "version": keys, "weight": vectors[:, 0], "vector": column, "states": column}), path
    )
    return vectors


def test_new_keys_of_a_table_leave_the_others_in_their_places(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    before = random.permutation(900)[:500].astype(np.int64)
    after = random.permutation(np.union1d(before, np.arange(900, 960))).astype(np.int64)
    export(tmp_path / "old.parquet", before)
    vectors = export(tmp_path / "new.parquet", after)
    publish.pack(tmp_path / "old.parquet", tmp_path / "old.fbw")
    publish.pack(tmp_path / "new.parquet", tmp_path / "new.fbw", base=tmp_path / "old.fbw")
    facts = publish.diff(tmp_path / "old.fbw", tmp_path / "new.fbw", tmp_path / "p")
    assert facts.changed < 60 * (4 + 1 + 4) + 600  # new rows and the directory alone
    publish.apply(tmp_path / "old.fbw", tmp_path / "p", tmp_path / "again.fbw")
    publish.unpack(tmp_path / "again.fbw", tmp_path / "back.parquet")
    back = pq.read_table(tmp_path / "back.parquet")
    assert back.column_names == ["key", "weight", "vector"]
    rows = np.argsort(back["key"].to_numpy())
    found = back["vector"].combine_chunks().flatten().to_numpy().reshape(-1, 4)[rows]
    assert np.abs(found - vectors[np.argsort(after)]).max() < 2e-4


def test_a_table_in_memory_and_its_empty_beginning(tmp_path: Path) -> None:
    table = cb.MemoryTable(3, linear=cb.optim.SGD(lr=0.1))
    publish.pack(table, tmp_path / "old.fbw")
    keys = np.array([5, 2, 9])
    table.push(keys, np.ones((3, table.row.width), np.float32))
    publish.pack(table, tmp_path / "new.fbw", base=tmp_path / "old.fbw")
    found = publish.read_weights(tmp_path / "new.fbw")
    assert found.part("key").data.view(np.int64).tolist() == [2, 5, 9]
    assert np.abs(found.part("vector").data.reshape(3, -1) - table.export()[1][:, table.row.linear :]).max() < 1e-3
    publish.diff(tmp_path / "old.fbw", tmp_path / "new.fbw", tmp_path / "p")
    publish.apply(tmp_path / "old.fbw", tmp_path / "p", tmp_path / "again.fbw")
    assert (tmp_path / "again.fbw").read_bytes() == (tmp_path / "new.fbw").read_bytes()


def test_a_table_that_lost_all_its_keys_is_packed_empty_over_its_base(tmp_path: Path) -> None:
    table = cb.MemoryTable(3)
    table.push(np.array([5, 2]), np.ones((2, table.row.width), np.float32))
    publish.pack(table, tmp_path / "old.fbw")
    publish.pack(cb.MemoryTable(3), tmp_path / "new.fbw", base=tmp_path / "old.fbw")
    assert publish.read_weights(tmp_path / "new.fbw").part("key").data.size == 0


def test_a_table_with_a_key_twice_or_without_vectors_is_refused(tmp_path: Path) -> None:
    export(tmp_path / "t.parquet", np.array([1, 2, 1]))
    with pytest.raises(DataError, match="has key 1 twice"):
        publish.pack(tmp_path / "t.parquet", tmp_path / "w.fbw")
    pq.write_table(pa.table({"key": [1], "vector": [1.0]}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="not an export of a table"):
        publish.pack(tmp_path / "t.parquet", tmp_path / "w.fbw")
    (tmp_path / "notes.txt").write_text("hello, there")
    with pytest.raises(DataError, match="not a model of CTRBox"):
        publish.pack(tmp_path / "notes.txt", tmp_path / "w.fbw")
    with pytest.raises(PlanError, match="cannot publish int"):
        publish.pack(42, tmp_path / "w.fbw")  # type: ignore[arg-type]
    assert not (tmp_path / "w.fbw").exists()


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.text(max_size=8), st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False)), max_size=4
    )
)
def test_any_parts_come_back(tmp_path: Path, named: dict[str, list[float]]) -> None:
    parts = [Part.floats(name, np.array(values, np.float32)) for name, values in named.items()]
    publish.write_weights(tmp_path / "w", Weights("x", {"n": 1}, parts), quantize=False)
    back = publish.read_weights(tmp_path / "w")
    assert [(p.name, p.data.tobytes()) for p in back.parts] == [(p.name, p.data.tobytes()) for p in parts]
    assert read_directory(tmp_path / "w").size == (tmp_path / "w").stat().st_size


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(old=NAMED, new=NAMED, codes=st.booleans())
def test_parts_may_come_go_and_grow(
    tmp_path: Path, old: dict[str, list[float]], new: dict[str, list[float]], codes: bool
) -> None:
    for name, parts, base in (("old", old, None), ("new", new, tmp_path / "old")):
        weights = Weights("x", {}, [Part.floats(n, np.array(values, np.float32)) for n, values in parts.items()])
        publish.write_weights(tmp_path / name, weights, quantize=codes, base=base)
    publish.diff(tmp_path / "old", tmp_path / "new", tmp_path / "p")
    publish.apply(tmp_path / "old", tmp_path / "p", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "new").read_bytes()


def test_cuts_and_flips_of_a_weight_file_are_refused(tmp_path: Path) -> None:
    small = cb.DeepFFM(["a"], bits=5, k=1)
    publish.pack(small, tmp_path / "w.fbw")
    whole = (tmp_path / "w.fbw").read_bytes()
    bad = tmp_path / "bad.fbw"
    for size in range(len(whole)):
        bad.write_bytes(whole[:size])
        with pytest.raises(SourceError):
            publish.read_weights(bad)
    for bit in range(0, 8 * len(whole), 11):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        bad.write_bytes(damaged)
        with pytest.raises(SourceError):
            publish.read_weights(bad)


def test_a_directory_that_lies_with_a_true_checksum_is_refused(tmp_path: Path) -> None:
    from ctrbox.publish.weight_file import HEAD, MAGIC, _sum

    publish.pack(cb.DeepFFM(["a"], bits=5, k=1), tmp_path / "w.fbw")
    whole = (tmp_path / "w.fbw").read_bytes()
    length = struct.unpack_from("<I", whole, 12)[0]
    directory = whole[HEAD.size : HEAD.size + length]
    lies = [
        (b'"bits":5', b'"bits":36'), (b'"bits":5', b'"bits":-1'), (b'"k":1', b'"k":65'), (b'"shape":[', b'"shape":[-1,'),
        (b'"shape":[', b'"shape":[1000000000000,'), (b'"first":', b'"first":999999999'), (b'"bucket":', b'"bucket":-'),
        (b'"at":', b'"at":1'), (b'"names":["a"]', b'"names":[]'), (b'"parts":[', b'"parts":[0,'), (b'"F32"', b'"F99"'),
        (b'{"kind"', b"[" * 20_000 + b'{"kind"'), (b'"kind":"deep_ffm"', b'"kind":"tensors"'), (b'"fields":1', b'"fields":500'),
    ]  # fmt: skip
    for met, said in lies:
        assert met in directory
        text = directory.replace(met, said, 1).rstrip()
        text = text.ljust(-(-len(text) // 64) * 64)
        size = len(whole) - length + len(text)
        (tmp_path / "bad.fbw").write_bytes(
            HEAD.pack(MAGIC, 1, len(text), _sum(text), size) + text + whole[HEAD.size + length :]
        )
        with pytest.raises(CtrboxError):
            cb.DeepFFM.load(tmp_path / "bad.fbw")


@pytest.mark.parametrize(
    "lie", [{"hidden": [1024] * 8}, {"bits": 20}, {"learned": -1}, {"learned": 2**70}, {"k": 65}, {"context": 600}]
)
def test_settings_that_the_weights_do_not_fill_are_refused_before_a_model_is_made(
    engine: cb.DeepFFM, tmp_path: Path, lie: dict[str, object]
) -> None:
    honest = engine.published()
    publish.pack(Weights(honest.kind, {**honest.about, **lie}, honest.parts), tmp_path / "lies.fbw")
    with pytest.raises(SourceError, match="contradict themselves"):
        cb.DeepFFM.load(tmp_path / "lies.fbw")


def test_only_the_keys_of_tables_are_put_in_order(tmp_path: Path) -> None:
    keys = np.array([5, 3, 9])
    names = ("dense.country_key", "dense.key", "table.0.model.key", "table.10.key")
    parts = [publish.Part(name, "I64", keys.shape, keys.view(np.uint8)) for name in names]
    parts += [publish.Part.floats("table.10.vector", keys.astype(np.float32).reshape(3, 1))]
    publish.pack(publish.Weights("click_model", {}, parts), tmp_path / "w.fbw", quantize=False)
    found = publish.read_weights(tmp_path / "w.fbw")
    assert [found.part(name).data.view(np.int64).tolist() for name in names] == [[5, 3, 9]] * 3 + [[3, 5, 9]]
    assert found.part("table.10.vector").data.tolist() == [3, 5, 9]
