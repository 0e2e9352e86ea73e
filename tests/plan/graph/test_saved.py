"""Saved plans: the same bits in another process, or one clear error."""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.compiled_plan.fingerprint import fingerprint
from ctrbox.compiled_plan.plan_file import HEAD, MAGIC, load_plan, paths_to_allow, save_plan
from ctrbox.compiled_plan.saved_views import reference_of
from ctrbox.errors import CtrboxError, PlanError, SourceError
from ctrbox.plan.graph.expression_json import Reader, Writer, canonical
from tests.plan import world

ROOT = Path(__file__).parents[3]


def on_disk(folder: Path) -> dict[str, str]:
    paths = {}
    for name, table in world.tables().items():
        (folder / name).mkdir()
        pq.write_table(table, folder / name / "part-0.parquet")
        paths[name] = str(folder / name)
    return paths


def bits(plan: cb.Plan) -> str:
    """A digest of every batch, the same only for the same bits."""
    h = hashlib.sha256()
    for batch in plan.batches(7):
        for array in (batch.label, batch.dense, batch.group):
            h.update(np.ascontiguousarray(array).tobytes())
        for name, ragged in batch.sparse.items():
            h.update(name.encode() + ragged.values.tobytes() + ragged.offsets.tobytes())
    return h.hexdigest()


# ---- round trips


def test_a_plan_loaded_in_another_process_gives_the_same_bits(tmp_path: Path) -> None:
    plan = world.plan(on_disk(tmp_path))
    wanted = bits(plan)  # fits too
    plan.save(tmp_path / "p.plan")
    code = (
        "import sys, ctrbox as cb\n"
        "from tests.plan.graph.test_saved import bits\n"
        "plan = cb.Plan.load(sys.argv[1])\n"
        "assert plan.fitted, 'what was fitted is not fitted again'\n"
        "print(plan.fingerprint, bits(plan))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "p.plan")], cwd=ROOT, capture_output=True, text=True
    )
    assert run.stderr == ""
    assert run.stdout.split() == [plan.fingerprint, wanted]


def test_what_was_fitted_is_kept_bit_for_bit(tmp_path: Path) -> None:
    plan = world.plan(on_disk(tmp_path)).fit()
    plan.save(tmp_path / "p.plan")
    loaded = cb.Plan.load(tmp_path / "p.plan")
    assert loaded.fitted.keys() == plan.fitted.keys()
    for number, state in plan.fitted.items():
        for name, array in state.items():
            other = loaded.fitted[number][name]
            assert other.dtype == array.dtype
            assert other.tobytes() == array.tobytes()
            assert other.shape == array.shape


def test_a_plan_saved_unfitted_is_fitted_when_it_runs(tmp_path: Path) -> None:
    plan = world.plan(on_disk(tmp_path))
    plan.save(tmp_path / "p.plan")
    loaded = cb.Plan.load(tmp_path / "p.plan")
    assert not loaded.fitted
    assert loaded.fingerprint == plan.fingerprint
    assert bits(loaded) == bits(plan)
    assert loaded.fingerprint == plan.fingerprint


def test_a_loaded_plan_can_be_saved_again(tmp_path: Path) -> None:
    plan = world.plan(on_disk(tmp_path)).fit()
    plan.save(tmp_path / "a.plan")
    cb.Plan.load(tmp_path / "a.plan").save(tmp_path / "b.plan")
    assert (tmp_path / "a.plan").read_bytes() == (tmp_path / "b.plan").read_bytes()


def test_rows_in_memory_are_asked_for_by_name(tmp_path: Path) -> None:
    plan = world.plan()
    wanted = bits(plan)
    plan.save(tmp_path / "p.plan")
    without = cb.Plan.load(tmp_path / "p.plan")
    assert without.fingerprint == plan.fingerprint  # nothing needs the rows before the plan runs
    with pytest.raises(PlanError, match=r"view '\w+' was made of rows in memory.*views={'\w+': …}"):
        next(without.batches(7))
    loaded = cb.Plan.load(tmp_path / "p.plan", views=world.tables())
    assert loaded.fingerprint == plan.fingerprint
    assert bits(loaded) == wanted


def test_other_data_by_view_name(tmp_path: Path) -> None:
    plan = world.plan(on_disk(tmp_path)).fit()
    plan.save(tmp_path / "p.plan")
    other = world.tables()["log"].slice(3, 10)
    loaded = cb.Plan.load(tmp_path / "p.plan", views={"log": other})
    assert bits(loaded) == bits_of_rows(plan, other)
    assert loaded.fingerprint == plan.fingerprint
    with pytest.raises(PlanError, match="no view 'lgo'; nearest: 'log'"):
        cb.Plan.load(tmp_path / "p.plan", views={"lgo": other})


def bits_of_rows(plan: cb.Plan, rows: pa.Table) -> str:
    return bits(world.plan({**world.tables(), "log": rows})._like(fitted=plan.fitted))


def test_columns_that_could_be_null_still_can_with_data_that_have_none(tmp_path: Path) -> None:
    plan = world.plan(on_disk(tmp_path)).fit()
    plan.save(tmp_path / "p.plan")
    full = world.tables()["log"].filter(pa.compute.field("query").is_valid())
    loaded = cb.Plan.load(tmp_path / "p.plan", views={"log": full})
    assert loaded.fingerprint == plan.fingerprint
    rows = world.tables()["log"].slice(0, 3)  # its first query is null
    assert rows["query"][0].as_py() is None
    assert loaded.run(rows).sparse["query"].values.tolist() == plan.run(rows).sparse["query"].values.tolist()


def test_a_column_of_another_type_is_refused(tmp_path: Path) -> None:
    world.plan(on_disk(tmp_path)).save(tmp_path / "p.plan")
    log = world.tables()["log"]
    texts = log.set_column(1, "user_id", log["user_id"].cast(pa.string()))
    with pytest.raises(
        PlanError, match="column 'user_id' of view 'log' is str in memory, but the plan was built on int"
    ):
        cb.Plan.load(tmp_path / "p.plan", views={"log": texts})


def test_a_file_that_is_gone_is_named_with_a_way_out(tmp_path: Path) -> None:
    paths = on_disk(tmp_path)
    world.plan(paths).save(tmp_path / "p.plan")
    Path(paths["ads"]).rename(tmp_path / "elsewhere")
    with pytest.raises(SourceError, match=r"view 'ads':.*does not exist.*views={'ads': …}"):
        next(cb.Plan.load(tmp_path / "p.plan").batches(7))
    loaded = cb.Plan.load(tmp_path / "p.plan", views={"ads": str(tmp_path / "elsewhere")})
    assert loaded.fingerprint == world.plan().fingerprint


def test_lists_of_paths_and_formats_are_found_again(tmp_path: Path) -> None:
    for k in (10, 9):  # natural order would turn them round
        (tmp_path / f"part-{k}.txt").write_text(f"a\tb\n{k}\tx\n")
    paths = [str(tmp_path / "part-10.txt"), str(tmp_path / "part-9.txt")]
    log = cb.View(paths, format="tsv", name="log").fill(a=0)
    plan = cb.compile(log, cb.FeatureSet(dense={"a": col("a")}), device="cpu")
    plan.save(tmp_path / "p.plan")
    (batch,) = cb.Plan.load(tmp_path / "p.plan").batches(8)
    assert batch.dense[:, 0].tolist() == [10, 9]


def test_two_views_in_memory_of_one_name_are_refused(tmp_path: Path) -> None:
    log = cb.View(pa.table({"k": [1]})).join(cb.View(pa.table({"k": [1], "x": [1]}), key="k").fill(x=0), on="k")
    plan = cb.compile(log, cb.FeatureSet(sparse={"x": col("x")}), device="cpu")
    with pytest.raises(PlanError, match="two views are called 'memory'"):
        plan.save(tmp_path / "p.plan")


def test_a_view_joined_twice_is_one_view_again(tmp_path: Path) -> None:
    ads = cb.View(pa.table({"k": [1, 2], "x": [5, 6]}), key="k", name="ads").fill(x=0)
    log = cb.View(pa.table({"a": [1], "b": [2]}), name="log").join(ads, on="a").join(ads, on="b", prefix="b_")
    plan = cb.compile(log, cb.FeatureSet(sparse={"x": col("x"), "y": col("b_x")}), device="cpu")
    plan.save(tmp_path / "p.plan")
    data = {"log": pa.table({"a": [1], "b": [2]}), "ads": pa.table({"k": [1, 2], "x": [5, 6]})}
    loaded = cb.Plan.load(tmp_path / "p.plan", views=data)
    assert len(loaded.graph.frames) == len(plan.graph.frames) == 2
    assert loaded.fingerprint == plan.fingerprint


def test_dictionaries_of_any_words_come_back(tmp_path: Path) -> None:
    words = pa.array(["skip", "zürich", "", "a\0b", "b"]).cast(pa.large_string()).slice(1)
    big = cb.Dictionary(words, [2**62, -1, 0, 5])
    numbers = cb.Dictionary([10, -3], [[0.1, float("nan")], [1e300, -0.0]])
    log = cb.View(pa.table({"w": ["zürich", "q"], "n": [10, 7]}), name="log")
    features = cb.FeatureSet(sparse={"w": col("w").lookup(big, default=-7)}, dense={"v": col("n").lookup(numbers)})
    plan = cb.compile(log, features, device="cpu")
    plan.save(tmp_path / "p.plan")
    loaded = cb.Plan.load(tmp_path / "p.plan", views={"log": pa.table({"w": ["zürich", "q"], "n": [10, 7]})})
    assert loaded.fingerprint == plan.fingerprint
    (a,), (b,) = plan.batches(4), loaded.batches(4)
    assert a.sparse["w"].values.tolist() == b.sparse["w"].values.tolist()
    assert a.dense.tobytes() == b.dense.tobytes()


def test_secrets_in_a_path_are_not_saved() -> None:
    class Source:
        name = "s3://b/k?access_key=A&secret_key=S&region=eu"
        _files = ("one",)

    class Parquet:
        pass

    source: Any = Source()
    source._format = Parquet()
    assert reference_of(source) == {"paths": ["s3://b/k?region=eu"], "format": "parquet"}


def test_saving_replaces_whole_files_and_a_failure_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "p.plan"
    plan = world.plan()
    plan.save(path)
    old = path.read_bytes()
    local = cb.operator(args=["int"], result="int")(lambda x: x)
    with pytest.raises(PlanError):
        world.plan(extra=local(col("user_id"))).save(path)
    assert path.read_bytes() == old
    with pytest.raises(cb.errors.WriteError, match="cannot write"):
        plan.save(path / "below a file")
    assert path.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == ["p.plan"]


# ---- operators of the user's own


@cb.operator(args=["int"], result="int")
def plus_one(x: pa.Array) -> pa.Array:
    return pa.compute.add(x, 1)


@pytest.mark.slow
def test_user_operators_are_imported_only_when_allowed(tmp_path: Path) -> None:
    module = tmp_path / "my_operators.py"
    module.write_text(
        "import ctrbox as cb, pathlib\n"
        "pathlib.Path(__file__).with_suffix('.ran').touch()\n"
        "@cb.operator(args=['int'], result='int', arrays='numpy')\n"
        "def triple(x):\n    return x * 3\n"
    )
    make = (
        "import ctrbox as cb, pyarrow as pa, my_operators, sys\n"
        "log = cb.View(pa.table({'n': [1, 2]}), name='log')\n"
        "features = cb.FeatureSet(dense={'t': my_operators.triple(cb.col('n'))})\n"
        "cb.compile(log, features, device='cpu').save(sys.argv[1])\n"
    )
    load = (
        "import ctrbox as cb, pyarrow as pa, sys\n"
        "plan = cb.Plan.load(sys.argv[1], views={'log': pa.table({'n': [5]})}, allow_operators=True)\n"
        "print(next(iter(plan.batches(4))).dense[0, 0])\n"
    )

    def run(code: str) -> str:
        found = subprocess.run([sys.executable, "-c", code, "p.plan"], cwd=tmp_path, capture_output=True, text=True)
        assert found.stderr == ""
        return found.stdout.strip()

    run(make)
    (tmp_path / "my_operators.ran").unlink()
    with pytest.raises(PlanError, match=r"my_operators:triple.*allow_operators=True"):
        cb.Plan.load(tmp_path / "p.plan", views={"log": pa.table({"n": [5]})})
    assert not (tmp_path / "my_operators.ran").exists()
    assert run(load) == "15.0"
    assert (tmp_path / "my_operators.ran").exists()


@pytest.mark.parametrize("kind", ["lambda", "local"])
def test_operators_that_cannot_be_imported_are_refused(kind: str, tmp_path: Path) -> None:
    def local(x: Any) -> Any:
        return x

    function: Callable[..., Any] = (lambda x: x) if kind == "lambda" else local
    operator = cb.operator(args=["int"], result="int")(function)
    with pytest.raises(PlanError, match="import path"):
        world.plan(extra=operator(col("user_id"))).save(tmp_path / "p.plan")
    assert world.plan(extra=operator(col("user_id"))).fingerprint


# ---- fingerprints


def test_equal_jobs_have_equal_fingerprints(tmp_path: Path) -> None:
    assert world.plan().fingerprint == world.plan().fingerprint
    assert world.plan().fingerprint == world.plan(on_disk(tmp_path)).fingerprint  # wherever their rows lie


@pytest.mark.parametrize(
    "changed",
    [
        {"city": col("city").key("town")},
        {"age": col("age").bucketize([18, 35, 61]).key()},
        {"price": col("price").bucketize(quantiles=5).key()},
        {"query": col("query").lower().split("  ").key()},
        {"word": col("query").lookup(cb.Dictionary(["red", "shoe"], [10, 21]), default=0).key()},
        {"word": col("query").lookup(cb.Dictionary(["red", "shor"], [10, 20]), default=0).key()},
        {"word": col("query").lookup(cb.Dictionary(["red", "shoe"], [10, 20]), default=1).key()},
        {"extra": plus_one(col("user_id")).key()},
        {"user_x_hour": cb.cross("user_id", col("ts").hour(offset_minutes=60))},
        {"user_x_hour": cb.cross("user_id", col("ts").hour(), limit=1023)},
    ],
)
def test_a_change_of_any_constant_changes_the_fingerprint(changed: dict[str, Any]) -> None:
    assert world.plan(**changed).fingerprint != world.plan().fingerprint


def test_steps_of_views_count() -> None:
    def of(log: cb.View) -> str:
        return cb.compile(log, cb.FeatureSet(dense={"a": col("a")}), device="cpu").fingerprint

    rows = pa.table({"a": pa.array([1, None]), "b": [1, 2]})
    view = cb.View(rows, name="log")
    plans = [
        view.fill(a=0),
        view.fill(a=1),
        view.fill(a=0).filter(col("b") > 1),
        view.cast(a="float").fill(a=0),
    ]
    assert len({of(v) for v in plans}) == len(plans)
    assert of(view.fill(a=0)) == of(cb.View(rows, name="other").fill(a=0))  # a name decides nothing


def test_null_facts_of_columns_that_are_read_count() -> None:
    def of(values: list[Any], unread: list[Any]) -> str:
        log = cb.View(pa.table({"a": pa.array(values, pa.int64()), "u": unread}), name="log").fill(a=0)
        return cb.compile(log, cb.FeatureSet(dense={"a": col("a")}), device="cpu").fingerprint

    assert of([1, None], ["x", "y"]) != of([1, 2], ["x", "y"])
    assert of([1, 2], ["x", "y"]) == of([1, 2], [0.5, None])


def test_what_is_fitted_counts_and_the_digest_is_kept() -> None:
    plan = world.plan()
    before = plan.fingerprint
    plan.fit()
    fitted = plan.fingerprint
    assert fitted != before
    assert fitted == world.plan().fit().fingerprint
    plan = plan._like(fitted={k: {n: a.copy() for n, a in s.items()} for k, s in plan.fitted.items()})
    assert plan.fingerprint == fitted
    state = next(s for s in plan.fitted.values() if "mean" in s)
    state["mean"] = state["mean"] + 1
    assert plan.fingerprint != fitted


@pytest.mark.slow
def test_the_fingerprint_is_the_same_in_another_process() -> None:
    code = "from tests.plan import world; print(world.plan().fit().fingerprint)"
    wanted = world.plan().fit().fingerprint
    for seed in ("1", "2"):
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
        assert run.stderr == ""
        assert run.stdout.strip() == wanted


def test_words_of_a_slice_are_told_apart() -> None:
    words = pa.array(["a", "b", "c", "d"], pa.large_string())

    def of(part: pa.Array) -> str:
        log = cb.View(pa.table({"q": ["a"]}), name="log")
        lookup = col("q").lookup(cb.Dictionary(part, [1, 2]), default=0)
        return cb.compile(log, cb.FeatureSet(sparse={"q": lookup}), device="cpu").fingerprint

    assert of(words.slice(0, 2)) != of(words.slice(2, 2))
    assert of(words.slice(2, 2)) == of(pa.array(["c", "d"]))


# ---- damage


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "p.plan"
    save_plan(world.plan().fit(), path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged") / "p.plan"


def refuses(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(PlanError) as caught:
        load_plan(path, views=world.tables())
    assert "\n" not in str(caught.value)
    return str(caught.value)


@settings(max_examples=200, deadline=None)
@given(place=st.integers(min_value=0), bit=st.integers(0, 7))
def test_any_flipped_bit_is_noticed(saved: bytes, damaged: Path, place: int, bit: int) -> None:
    data = bytearray(saved)
    data[place % len(data)] ^= 1 << bit
    refuses(damaged, bytes(data))


@settings(max_examples=50, deadline=None)
@given(length=st.integers(min_value=0))
def test_any_truncation_is_noticed(saved: bytes, damaged: Path, length: int) -> None:
    refuses(damaged, saved[: length % len(saved)])


def test_appended_bytes_are_noticed(saved: bytes, damaged: Path) -> None:
    refuses(damaged, saved + b"\0")
    refuses(damaged, saved + saved)


def test_foreign_and_newer_files_are_named_as_such(saved: bytes, damaged: Path) -> None:
    assert "is not a saved plan" in refuses(damaged, b"PK\x03\x04" + bytes(100))
    assert "is not a saved plan" in refuses(damaged, b"")
    newer = MAGIC + struct.pack("<I", 99) + saved[12:]
    assert "format version 99" in refuses(damaged, newer)
    with pytest.raises(PlanError, match="there is no saved plan at"):
        load_plan(damaged.parent / "missing.plan")


def forged(saved: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    """The file with another header and every checksum right: what an attacker would write."""
    _, version, length = HEAD.unpack(saved[: HEAD.size])
    header = json.loads(saved[HEAD.size : HEAD.size + length])
    change(header)
    text = json.dumps(header).encode()
    data = HEAD.pack(MAGIC, version, len(text)) + text + saved[HEAD.size + length : -32]
    return data + hashlib.sha256(data).digest()


def doubling(header: dict[str, Any]) -> None:
    place = len(header["expressions"])
    header["expressions"].append(["column", [], {"name": "price"}])
    for k in range(60):
        header["expressions"].append(["add", [place + k, place + k], {}])
    header["features"]["dense"].append(["bomb", place + 60])


def deep(header: dict[str, Any]) -> None:
    place = len(header["expressions"])
    header["expressions"].append(["column", [], {"name": "price"}])
    for k in range(10_000):
        header["expressions"].append(["abs", [place + k], {}])
    header["features"]["dense"].append(["deep", place + 10_000])


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h.pop("expressions"),
        lambda h: h.pop("views"),
        lambda h: h.pop("features"),
        lambda h: h.pop("blobs"),
        lambda h: h.pop("fitted"),
        lambda h: h.pop("device"),
        lambda h: h.update(log=99),
        lambda h: h.update(log=-1),
        lambda h: h["expressions"].insert(0, ["system", [], {}]),
        lambda h: h["expressions"].append(["add", [10**9, 0], {}]),
        lambda h: h["expressions"].append(["add", [len(h["expressions"])], {}]),
        lambda h: h["expressions"][-1].append(1),
        lambda h: h["expressions"].__setitem__(0, ["column", [], {"name": 5}]),
        lambda h: h["expressions"].__setitem__(0, ["column", [], {}]),
        lambda h: h["expressions"].__setitem__(0, ["literal", [], {"value": {"float": "nine"}}]),
        lambda h: h["expressions"].__setitem__(0, ["literal", [], {"value": {"bytes": "%%%"}}]),
        lambda h: h["expressions"].__setitem__(0, ["literal", [], {"value": {"python": "1+1"}}]),
        lambda h: h["expressions"].__setitem__(0, ["literal", [], {"value": {"dictionary": 77}}]),
        lambda h: h["expressions"].__setitem__(0, ["cross", [], {}]),
        lambda h: h["features"]["sparse"].append(["x", 10**6]),
        lambda h: h["features"]["sparse"].append(h["features"]["sparse"][0]),
        lambda h: h["views"][-1]["steps"].append(["exec", "print()"]),
        lambda h: h["views"][0]["steps"].append(["join", 0, ["user_id"], "left", ""]),
        lambda h: h["views"][-1]["steps"].append(["join", 0, ["user_id"], "outer", ""]),
        lambda h: h["views"][-1]["steps"].append([]),
        lambda h: h["views"][-1].update(name=7),
        lambda h: h["views"][-1].update(columns="all"),
        lambda h: h["blobs"][0].update(length=10**15),
        lambda h: h["blobs"][0].update(length=-1),
        lambda h: h["blobs"][0].update(sha256="0" * 64),
        lambda h: next(b for b in h["blobs"] if "shape" in b).update(shape=[2**40, 2**40]),
        lambda h: next(b for b in h["blobs"] if "dtype" in b).update(dtype="|O"),
        lambda h: h["fitted"].update({"99": {}}),
        lambda h: h["fitted"].update({"-1": {}}),
        lambda h: h["dictionaries"].append({"words": 0, "values": 10**9}),
        doubling,
        deep,
    ],
)
def test_a_forged_header_is_refused(saved: bytes, damaged: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    refuses(damaged, forged(saved, change))


def test_a_forged_import_path_is_not_imported(saved: bytes, damaged: Path) -> None:
    def change(header: dict[str, Any]) -> None:
        about = {"args": ["i"], "result": "i", "nullable": False, "arrays": "arrow"}
        call = ["user", [0], {"function": {"operator": {"path": "os:system", **about}}}]
        header["expressions"] += [["column", [], {"name": "user_id"}], call]
        call[1] = [len(header["expressions"]) - 2]
        header["features"]["dense"].append(["x", len(header["expressions"]) - 1])

    assert "allow_operators" in refuses(damaged, forged(saved, change))
    with pytest.raises(PlanError, match=r"declared with @cb\.operator"):
        load_plan(damaged, views=world.tables(), allow_operators=True)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
@pytest.mark.slow
def test_any_change_of_the_header_gives_a_plan_or_one_error(saved: bytes, damaged: Path, data: st.DataObject) -> None:
    """Whatever a header with right checksums says, nothing but an error of ours comes out."""

    def change(header: dict[str, Any]) -> None:
        here: Any = header
        for _ in range(data.draw(st.integers(1, 6))):
            keys = list(here) if isinstance(here, dict) else list(range(len(here)))
            if not keys:
                return
            key = data.draw(st.sampled_from(keys))
            if not isinstance(here[key], dict | list) or data.draw(st.integers(0, 5)) == 0:
                here[key] = data.draw(
                    st.sampled_from([None, -1, 0, 1, 2**70, 0.5, "", "x", [], {}, True, [[]], {"float": "nan"}])
                )
                return
            here = here[key]

    damaged.write_bytes(forged(saved, change))
    with suppress(CtrboxError):
        plan = load_plan(damaged, views=world.tables())
        list(plan.batches(7))
        plan.explain("cpu")


# ---- expressions as data


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.datetimes(),
    st.tuples(st.integers(), st.floats(), st.text()),
)


@given(values)
def test_values_survive_bit_for_bit(value: Any) -> None:
    def refuse(written: dict[str, Any]) -> Any:
        raise AssertionError

    written = Writer().value(value)
    back = Reader([], refuse).value(json.loads(canonical(written)))
    assert canonical(Writer().value(back)) == canonical(written)
    if isinstance(value, float) and value == value:
        assert struct.pack("<d", back) == struct.pack("<d", value)


def test_equal_expressions_are_written_once() -> None:
    writer = Writer()
    x = col("a")
    for _ in range(200):
        x = x + x
    writer.expression(x)
    writer.expression(col("a") + col("a"))
    assert len(writer.expressions) == 201


def test_the_digest_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from ctrbox.compiled_plan import fingerprint as module

    plan = world.plan()
    first = fingerprint(plan)
    monkeypatch.setattr(module, "_canonical_form", lambda plan: pytest.fail("computed again"))
    assert fingerprint(plan) == first


def test_the_paths_of_a_plan_that_a_user_must_allow_are_those_outside_of_its_folder(tmp_path: Path) -> None:
    """The views of a log, of a second log and of two joins: beside the plan, elsewhere, and in memory."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
        pq.write_table(pa.table({"k": [1, 2], "user": [1, 2], "x": [0.5, 1.5]}), folder / "log.parquet")
        pq.write_table(pa.table({"user": [1, 2], "age": [30.0, 40.0]}), folder / "users.parquet")

    def saved(log: Path | pa.Table, users: Path | pa.Table) -> Path:
        views = [data if isinstance(data, pa.Table) else str(data) for data in (log, users)]
        joined = cb.View(views[0], key="k", name="log").join(
            cb.View(views[1], key="user", name="users").fill(age=0.0), on="user"
        )
        dense = {"x": col("x"), "age": col("age")}
        cb.compile(joined, cb.FeatureSet(dense=dense), device="cpu").save(inside / "p.ctrplan")
        return inside / "p.ctrplan"

    logs, users = (
        (inside / "log.parquet", outside / "log.parquet"),
        (inside / "users.parquet", outside / "users.parquet"),
    )
    assert paths_to_allow(saved(logs[0], users[0])) == []
    assert paths_to_allow(saved(logs[1], users[0])) == [str(logs[1])]
    assert paths_to_allow(saved(logs[1], users[0]), log=False) == []
    assert paths_to_allow(saved(logs[0], users[1])) == [str(users[1])]
    assert paths_to_allow(saved(logs[0], users[1]), log=False) == [str(users[1])]
    assert sorted(paths_to_allow(saved(logs[1], users[1])) or []) == [str(logs[1]), str(users[1])]
    assert paths_to_allow(saved(logs[1], users[1]), log=False) == [str(users[1])]
    memory = pq.read_table(logs[0]), pq.read_table(users[0])
    assert paths_to_allow(saved(memory[0], users[1])) is None
    assert paths_to_allow(saved(memory[0], users[1]), log=False) == [str(users[1])]
    assert paths_to_allow(saved(logs[1], memory[1])) is None
    assert paths_to_allow(saved(logs[1], memory[1]), log=False) is None
