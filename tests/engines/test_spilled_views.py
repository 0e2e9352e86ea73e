"""A joined view on disk gives the rows that it gives in memory, whatever its budget, its runs, the chunks and the threads."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.cpu import joined_views, spilled_views

COLUMNS = {
    "n": pa.int64(),
    "x": pa.float64(),
    "flag": pa.bool_(),
    "text": pa.string(),
    "numbers": pa.list_(pa.int64()),
    "floats": pa.list_(pa.float64()),
    "words": pa.list_(pa.string()),
    "at": pa.timestamp("us"),
}


def text(r: Random) -> str:
    return "".join(r.choices("ab é\n", k=r.choice([0, 1, 5, 300])))


VALUES: dict[str, Callable[[Random], Any]] = {
    "n": lambda r: r.choice([0, -1, -(2**63), 2**63 - 1, r.getrandbits(40)]),
    "x": lambda r: r.choice([0.0, -0.0, float("inf"), r.random()]),
    "flag": lambda r: r.random() < 0.5,
    "text": text,
    "numbers": lambda r: [r.randint(-5, 5) for _ in range(r.randint(0, 4))],
    "floats": lambda r: [r.random() for _ in range(r.randint(0, 4))],
    "words": lambda r: [text(r) for _ in range(r.randint(0, 4))],
    "at": lambda r: r.randint(0, 10**15),
}


@pytest.fixture(autouse=True, scope="module")
def small_parts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joined_views, "LOAD_ROWS", 7)
        patch.setattr(spilled_views, "LEAST_RUN", 3000)
        patch.setattr(spilled_views, "MERGED_AT_ONCE", 500)
        yield


def rows_with(keys: list[Any], r: Random) -> list[dict[str, Any]]:
    """A row for each key, with nulls in all columns."""
    return [{"key": key} | {n: None if r.random() < 0.2 else VALUES[n](r) for n in COLUMNS} for key in keys]


def view_of(rows: list[dict[str, Any]], kind: pa.DataType, name: str = "ads") -> cb.View:
    fields = [pa.field("key", kind), *(pa.field(n, t) for n, t in COLUMNS.items())]
    return cb.View(pa.Table.from_pylist(rows, pa.schema(fields)), key="key", name=name)


def cleaned(view: cb.View, fills: bool) -> cb.View:
    """A view with operators that are computed once per row of it."""
    view = view.with_columns(upper=col("text").lower(), first=col("words").get(0), many=col("numbers").length())
    return view.fill(n=-7, text="nothing", upper="none") if fills else view


NAMES = [*COLUMNS, "upper", "first", "many"]


def computed(log: cb.View, names: list[str], chunk_rows: int = 1024) -> list[dict[str, Any]]:
    found = cb.compute({name: col(name) for name in names}, log, chunk_rows=chunk_rows)
    return found.to_pylist()  # type: ignore[no-any-return]


@st.composite
def keys_and_log(draw: st.DrawFn) -> tuple[list[Any], list[Any], pa.DataType]:
    """Keys of a view, those that the log asks for, and their type."""
    kind = draw(st.sampled_from([pa.int64(), pa.string()]))
    r = Random(draw(st.integers(0, 2**32)))
    every: list[Any] = list(range(-30, 30)) if kind == pa.int64() else [f"{'k' * (k % 3)}{k}" for k in range(60)]
    keys = r.sample(every, draw(st.integers(0, 50)))
    asked = [None if r.random() < 0.1 else r.choice(every) for _ in range(draw(st.integers(0, 80)))]
    return keys, asked, kind


@settings(deadline=None, max_examples=40)
@given(
    world=keys_and_log(),
    seed=st.integers(0, 2**32),
    how=st.sampled_from(["left", "inner"]),
    fills=st.booleans(),
    chunk=st.sampled_from([1, 3, 1024]),
    budget=st.sampled_from([1, 3_000, 8_000, 100_000]),
    names=st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
    filtered=st.booleans(),
)
def test_a_view_on_disk_gives_the_rows_of_one_in_memory(
    world: tuple[list[Any], list[Any], pa.DataType],
    seed: int,
    how: str,
    fills: bool,
    chunk: int,
    budget: int,
    names: list[str],
    filtered: bool,
) -> None:
    keys, asked, kind = world
    log = cb.View(pa.table({"id": pa.array(range(len(asked)), pa.int64()), "k": pa.array(asked, kind)}), key="id")
    view = cleaned(view_of(rows_with(keys, Random(seed)), kind), fills)
    slow = log.join(view, on="k", how=how)
    disk = log.join(view, on="k", how=how, budget=budget, spill=True)
    if filtered:
        slow, disk = (v.filter(col("id") % 3 != 1) for v in (slow, disk))
    assert computed(disk, ["id", *names], chunk) == computed(slow, ["id", *names])


def batches_of(log: cb.View, threads: int) -> list[tuple[Any, ...]]:
    features = cb.FeatureSet(
        label=col("id") < 500,
        sparse={"words": col("words").key(), "k": col("k"), "both": cb.cross("k", "upper"), "city": col("city")},
        dense={"n": col("n"), "x": col("x"), "many": col("many"), "age": col("age")},
    )
    plan = cb.compile(log, features, threads=threads, device="cpu")
    found = []
    for batch in plan.batches(100):
        lists = [(batch.sparse[f].values.tolist(), batch.sparse[f].offsets.tolist()) for f in features.sparse]
        found.append((batch.dense.tobytes(), batch.label.tobytes(), lists))
    return [*found, tuple(plan.joins)]


@pytest.mark.parametrize("threads", [1, 4])
def test_batches_over_several_joins_are_the_same_bits(threads: int) -> None:
    r = Random(5)
    rows = rows_with(list(range(400)), r)
    ads = cleaned(view_of(rows, pa.int64()), True).fill(x=0.0, many=0, words=[])
    cities = cb.View(pa.table({"n": [-7, 0, -1], "city": ["none", "Oslo", "Rome"]}), key="n", name="cities")
    users = cb.View(pa.table({"u": range(300), "age": [k % 90 for k in range(300)]}), key="u", name="users")
    log = cb.View(
        pa.table(
            {"id": range(1000), "k": [r.randrange(500) for _ in range(1000)], "u": [k % 350 for k in range(1000)]}
        ),
        key="id",
    )

    def joined(**spill: Any) -> cb.View:
        below = ads.join(cities.fill(city="?"), on="n", **spill)  # a joined view with a join of its own
        return log.join(below, on="k", **spill).join(users.fill(age=-1), on="u", how="inner", **spill)

    assert batches_of(joined(budget="20KB", spill=True), threads) == batches_of(joined(), 1)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32), how=st.sampled_from(["left", "inner"]), budget=st.sampled_from([1, 9_000]))
def test_an_as_of_join_on_disk_takes_the_same_versions(seed: int, how: str, budget: int) -> None:
    r = Random(seed)
    count = r.randint(0, 120)
    moment = pa.timestamp("us")
    versions = pa.table(
        {
            "key": pa.array([r.randint(0, 9) for _ in range(count)], pa.int64()),
            "since": pa.array([r.randint(-50, 50) for _ in range(count)], moment),
            "text": pa.array([text(r) for _ in range(count)], pa.string()),
        }
    )
    asked = [(r.choice([None, *range(12)]), r.choice([None, *range(-60, 60)])) for _ in range(80)]
    log = cb.View(
        pa.table({"k": pa.array([k for k, _ in asked], pa.int64()), "ts": pa.array([t for _, t in asked], moment)})
    )
    view = cb.View(versions, key="key", name="versions", keep="last").fill(text="none")
    slow, disk = (
        log.join(view, on="k", how=how, as_of=("ts", "since"), **more)
        for more in ({}, {"budget": budget, "spill": True})
    )
    assert computed(disk, ["k", "ts", "text"], 7) == computed(slow, ["k", "ts", "text"])


@pytest.mark.parametrize("rows", [(0, 1), (0, 99), (30, 57)])
@pytest.mark.parametrize("least", [-1, 10])
def test_duplicates_are_refused_with_the_same_words(rows: tuple[int, int], least: int) -> None:
    ids = list(range(100))
    ids[rows[1]] = ids[rows[0]]
    table = pa.table({"key": ids, "n": ids})
    log = cb.View(pa.table({"k": [1]}))
    told = []
    for more in ({}, {"budget": 1, "spill": True}):
        view = cb.View(table, key="key", name="ads").filter(col("n") >= least)
        try:
            told.append(computed(log.join(view, on="k", **more), ["n"]))
        except cb.errors.DataError as error:
            told.append(str(error))
        last = log.join(cb.View(table, key="key", name="ads", keep="last"), on="k", **more)
        assert computed(last, ["n"]) == [{"n": 1 if rows[1] != 1 else None}]
    assert told[0] == told[1]
    assert ("more than once" in told[0]) == (rows[0] >= least)


def test_a_user_operator_and_a_filter_on_the_joined_view_read_it_from_disk() -> None:
    view = view_of(rows_with(list(range(60)), Random(3)), pa.int64()).fill(n=0, text="")
    log = cb.View(pa.table({"k": [k % 70 for k in range(200)]}))
    read = {"twice": twice(col("n") % 1000), "n": col("n"), "words": col("words"), "k": col("k")}
    slow, disk = (
        log.join(view, on="k", **more).filter(twice(col("n") % 1000) > 0).filter(col("text") != "a")
        for more in ({}, {"budget": 1, "spill": True})
    )
    assert cb.compute(read, disk).to_pylist() == cb.compute(read, slow).to_pylist() != []


@cb.operator(args=["int"], result="int")
def twice(a: Any) -> Any:
    return pa.compute.multiply(a, 2)


# ---- what is refused ----------------------------------------------------------------------------------------


def people(count: int = 5000) -> pa.Table:
    return pa.table({"key": range(count), "text": ["x" * (k % 50) for k in range(count)]})


def test_a_view_over_its_budget_is_refused_with_its_size_and_both_remedies() -> None:
    log = cb.View(pa.table({"k": [1]}))
    view = cb.View(people(), key="key", name="people")
    with pytest.raises(cb.errors.BudgetError) as refused:
        computed(log.join(view, on="k", budget="200KB"), ["text"])
    told = str(refused.value)
    assert told.startswith("joined view 'people' needs at least 4")
    assert "5,000 rows, more than its budget of 200.0 KB" in told
    assert "raise join(…, budget=…)" in told
    assert "join(…, spill=True)" in told


def test_strings_and_lists_count_and_are_measured_while_a_view_is_loaded() -> None:
    log = cb.View(pa.table({"k": [1]}))
    long = pa.table({"key": range(1000), "text": ["x" * 3000] * 1000, "words": [["word"] * 200] * 1000})
    for column in ("text", "words"):
        view = cb.View(long, key="key", name="people")
        with pytest.raises(
            cb.errors.BudgetError, match=r"'people': \d+ of its 1,000 rows take .* \(all rows about [234]"
        ):
            computed(log.join(view, on="k", budget="1MB"), [column])
        assert (
            computed(log.join(view, on="k", budget="1MB", spill=True), [column])[0][column] == long[column][1].as_py()
        )


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_the_budget_of_a_merge_holds_for_files_of_every_format(tmp_path: Path, suffix: str) -> None:
    table = pa.table({"id": range(2000, 0, -1), "text": ["x" * 1000] * 2000})
    path = tmp_path / f"basic.{suffix}"
    if suffix == "parquet":
        pq.write_table(table, path)
    elif suffix == "csv":
        pa.csv.write_csv(table, path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    log = cb.View(pa.table({"id": range(2000)}), key="id")
    basic = cb.View(str(path), key="id")
    with pytest.raises(cb.errors.BudgetError, match=r"merged view 'basic'.*; sort both views .*merge\(…, spill=True\)"):
        computed(log.merge(basic, budget="500KB"), ["id", "text"])
    found = computed(log.merge(basic, budget="500KB", spill=True), ["id", "text"])
    assert found == computed(log.merge(basic), ["id", "text"])
    assert found[0]["text"] is None
    assert len(found[1]["text"]) == 1000


def test_bad_folders_and_budgets_are_refused(tmp_path: Path) -> None:
    log = cb.View(pa.table({"k": [1]}))
    view = cb.View(people(), key="key", name="people")
    for spill in (7, "", b"/tmp"):
        with pytest.raises(cb.errors.PlanError, match="spill must be True or a folder"):
            log.join(view, on="k", spill=spill)  # type: ignore[arg-type]
    with pytest.raises(cb.errors.PlanError, match="can only be on a local disk"):
        log.join(view, on="k", spill="s3://bucket/folder")
    with pytest.raises(cb.errors.PlanError, match="budget="):
        log.join(view, on="k", budget="much")
    with pytest.raises(
        cb.errors.WriteError, match=r"cannot make a file in .*/nothing for joined view 'people': No such"
    ):
        computed(log.join(view, on="k", budget="10KB", spill=tmp_path / "nothing"), ["text"])


def test_explain_says_where_a_view_lies_and_why(tmp_path: Path) -> None:
    log = cb.View(pa.table({"k": [1, 2], "y": [0, 1]}), name="log")
    view = cb.View(people(), key="key", name="people").fill(text="")
    features = cb.FeatureSet(label=col("y"), sparse={"text": col("text")})
    plan = cb.compile(log.join(view, on="k", budget="300KB", spill=tmp_path), features, device="cpu")
    assert f"in memory, or on disk in {tmp_path} if it needs more than its budget of 300.0 KB" in plan.explain()
    list(plan.batches(10))
    assert f"on disk in {tmp_path} (" in plan.explain()
    assert "more than its budget of 300.0 KB" in plan.explain()
    facts = plan.explain(json=True)["frames"][1]["memory"]
    assert facts["loaded"]
    assert facts["memory_bytes"] <= 300 << 10 < facts["needed_bytes"]
    assert facts["file_bytes"] > 100_000
    assert list(tmp_path.iterdir()) == []  # the file has no name
    large = cb.compile(log.join(view, on="k", budget="3MB", spill=tmp_path), features, device="cpu")
    list(large.batches(10))
    assert "in memory, where it takes" in large.explain()


def test_a_saved_plan_keeps_the_budget_and_no_folder(tmp_path: Path) -> None:
    pq.write_table(people(), tmp_path / "people.parquet")
    pq.write_table(pa.table({"k": [1, 2], "y": [0, 1]}), tmp_path / "log.parquet")
    log = cb.View(str(tmp_path / "log.parquet"))
    view = cb.View(str(tmp_path / "people.parquet"), key="key").fill(text="")
    features = cb.FeatureSet(label=col("y"), sparse={"text": col("text")})
    plans = [
        cb.compile(log.join(view, on="k", **more), features, device="cpu")
        for more in ({}, {"budget": "300KB", "spill": tmp_path / "elsewhere"})
    ]
    assert plans[0].fingerprint == plans[1].fingerprint
    plans[1].save(tmp_path / "of.plan")
    again = cb.Plan.load(tmp_path / "of.plan")
    (step,) = again.log.steps
    assert (step.budget_bytes, step.spill) == (300 << 10, "")


# ---- what goes wrong with the file --------------------------------------------------------------------------


def on_disk(folder: Path) -> cb.Plan:
    log = cb.View(pa.table({"k": range(5000), "y": [0, 1] * 2500}))
    view = cb.View(people(), key="key", name="people").fill(text="")
    features = cb.FeatureSet(label=col("y"), sparse={"text": col("text")})
    return cb.compile(log.join(view, on="k", budget="10KB", spill=folder), features, device="cpu", threads=2)


def open_files(folder: Path) -> list[Path]:
    links = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return [path for path in links if str(path.readlink()).startswith(str(folder))]


def test_a_file_that_was_damaged_while_it_is_used_is_refused(tmp_path: Path) -> None:
    plan = on_disk(tmp_path)
    plan.fit().extractor()
    (path,) = open_files(tmp_path)
    with path.open("r+b") as file:
        for page in range(4096, path.stat().st_size, 4096):
            file.seek(page + 1234)
            byte = file.read(1)
            file.seek(page + 1234)
            file.write(bytes([byte[0] ^ 16]))
    told = rf"joined view 'people', which lies on disk in {tmp_path}: its file is damaged: page \d+ is not as it was written"
    with pytest.raises(cb.errors.SourceError, match=told):
        list(plan.batches(100))


def test_files_are_closed_with_the_plan(tmp_path: Path) -> None:
    plan = on_disk(tmp_path)
    list(plan.batches(1000))
    assert len(open_files(tmp_path)) == 1
    del plan
    gc.collect()
    assert open_files(tmp_path) == []


def test_a_full_disk_is_one_clear_error_and_leaves_nothing(tmp_path: Path) -> None:
    code = f"""
        import resource, signal
        import pyarrow as pa
        import ctrbox as cb
        from ctrbox import col
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        people = cb.View(pa.table({{"key": range(5000), "text": ["x" * 50] * 5000}}), key="key", name="people")
        log = cb.View(pa.table({{"k": [1]}})).join(people, on="k", budget="10KB", spill={str(tmp_path)!r})
        try:
            cb.compute({{"text": col("text")}}, log)
        except cb.errors.WriteError as error:
            print(error)
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert run.stdout.startswith(
        f"the disk of {tmp_path} is full: joined view 'people' is larger than its memory budget"
    )
    assert "spill='/a/folder'" in run.stdout
    assert list(tmp_path.iterdir()) == []
