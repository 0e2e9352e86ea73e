"""Whole plans on a device equal the CPU engine's. The test bodies; which device is a fixture, `runtime`."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.cpu.extract import Extractor
from ctrbox.engines.cuda.runtime import Runtime
from ctrbox.plan.placement.placement import place
from tests.compiled_plan.test_whole_plan import QUIET, Job, jobs, rich, world, write
from tests.engines.cuda import hostile
from tests.engines.cuda.plans import Stream, agree, assert_same, computed, on_cpu, on_device, warned
from tests.engines.cuda.registers import shrunk


def log_table(rows: int, seed: int = 0) -> pa.Table:
    """A log with ascending ids, documents, texts of many lengths, keys that a joined view may lack."""
    rng = random.Random(seed)
    each = range(rows)
    return pa.table(
        {
            "id": pa.array([3 * k for k in each], pa.int64()),
            "x": pa.array([rng.choice(hostile.FLOATS + hostile.SPECIAL) for _ in each], pa.float64()),
            "n": pa.array([rng.randrange(-4, 5) for _ in each], pa.int64()),
            "words": pa.array(
                [" ".join(rng.choices(hostile.WORDS, k=rng.choice([0, 1, 3, 9]))) for _ in each], pa.string()
            ),
            "doc": pa.array([rng.choice(hostile.DOCUMENTS) for _ in each], pa.string()),
            "user": pa.array([rng.choice([None, *range(9)]) for _ in each], pa.int64()),
            "tags": pa.array([rng.choices(hostile.WORDS, k=rng.randrange(4)) for _ in each], pa.list_(pa.string())),
            "v": pa.array([[rng.uniform(-1, 1), 1e300] for _ in each], pa.list_(pa.float64(), 2)),
        }
    )


def users(rows: int = 7) -> cb.View:
    rng = random.Random(5)
    table = pa.table(
        {
            "user": pa.array(range(rows), pa.int64()),
            "age": pa.array([rng.choice([None, 20, 30]) for _ in range(rows)], pa.int32()),
            "name": pa.array([rng.choice([None, "", "Ægir", "Bo B"]) for _ in range(rows)], pa.string()),
            "vector": pa.array([rng.choice([None, [1.5, -0.0]]) for _ in range(rows)], pa.list_(pa.float64(), 2)),
            "langs": pa.array(
                [rng.choice([None, [], ["de", "ja"], ["", "x" * 40]]) for _ in range(rows)], pa.list_(pa.string())
            ),
        }
    )
    return cb.View(table, key="user", name="users")


def features(**more: Any) -> cb.FeatureSet:
    words = col("words").lower().split(" ")
    given: dict[str, Any] = {
        "label": col("n") > 0,
        "group": col("user").fill(-1),
        "weight": col("x").fill(1.0),
        "dense": {"x": col("x"), "v": col("v"), "n": words.length(), "slot": col("doc").json("$.n", "int").fill(-9)},
        "sparse": {
            "id": col("id").key(),
            "words": words.key(),
            "city": col("doc").json("$.a.b").fill("none"),
            "cross": cb.cross("n", words, limit=5),
            "again": col("id").key(space="id"),
            "once_more": col("id").key(space="id"),
        },
    }
    return cb.FeatureSet(**given | more)


# ---- chunks and batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "capacity"), [(0, 256), (1, 256), (255, 256), (256, 256), (1030, 256), (1030, 300), (1030, 2000)]
)
def test_batches_are_cut_across_chunks(runtime: Runtime, rows: int, capacity: int) -> None:
    plan = cb.compile(cb.View(log_table(rows), key="id"), features())
    agree(plan, runtime, (7, 256, 257, 5000) if rows else (5,), capacity=capacity)


def test_a_chunk_of_more_tiles_than_a_block_has_threads(runtime: Runtime) -> None:
    rows = 70_000
    table = pa.table({"id": range(rows), "text": pa.array(["", "a b", "c", "d e f"] * (rows // 4))})
    view = cb.View(table, key="id").filter(col("id") % 3 != 1)
    wanted = cb.FeatureSet(label=col("id"), sparse={"words": col("text").split(" ").key()})
    agree(cb.compile(view, wanted), runtime, (30_000,), capacity=rows)


def test_batches_of_one_row(runtime: Runtime) -> None:
    agree(cb.compile(cb.View(log_table(60), key="id"), features()), runtime, (1,))


@pytest.mark.parametrize("filtered", [False, True])
def test_start_stop_and_limit(runtime: Runtime, filtered: bool) -> None:
    view = cb.View(log_table(900), key="id")
    plan = cb.compile(view.filter(col("n") != 2) if filtered else view, features())
    made, cpu = on_device(plan, runtime), on_cpu(plan)
    for start, limit, stop in (
        *(
            (0, None, None),
            (1, None, None),
            (257, 100, None),
            (0, 0, None),
            (0, 1, None),
            (0, 511, None),
            (899, None, None),
        ),
        *(
            (900, None, None),
            (5000, None, None),
            (0, None, 0),
            (0, None, 256),
            (3, None, 700),
            (10, 400, 600),
            (600, 5, 300),
        ),
    ):
        for size in (100, 10_000):
            assert_same(list(made.batches(size, start, limit, stop)), list(cpu.batches(size, start, limit, stop)))


def test_a_stream_that_is_left_early_can_be_begun_again(runtime: Runtime) -> None:
    plan = cb.compile(cb.View(log_table(900), key="id"), features())
    made, want = on_device(plan, runtime), list(on_cpu(plan).batches(64))
    for taken in (0, 1, 3):
        stream = made.batches(64)
        assert_same([next(stream) for _ in range(taken)], want[:taken])
        stream.close()
    assert_same(list(made.batches(64)), want)


def test_two_streams_of_one_plan_do_not_disturb_each_other(runtime: Runtime) -> None:
    plan = cb.compile(cb.View(log_table(900), key="id").filter(col("n") != 2), features())
    made, cpu = on_device(plan, runtime), on_cpu(plan)
    first, second = made.batches(64), made.batches(64, 333)
    both = list(zip(first, second, strict=False))
    assert_same([a for a, _ in both], list(cpu.batches(64))[: len(both)])
    assert_same([b for _, b in both], list(cpu.batches(64, 333)))


def test_every_part_of_a_batch_may_be_missing(runtime: Runtime) -> None:
    view = cb.View(log_table(300), key="id")
    for wanted in (
        cb.FeatureSet(label=col("n")),
        cb.FeatureSet(dense={"x": col("x")}),
        cb.FeatureSet(sparse={"words": col("words").split(" ").key()}),
        cb.FeatureSet(sparse={"id": col("id").key()}),
        cb.FeatureSet(
            dense={"one": cb.lit(1.5), "no": cb.lit(False)}, sparse={"k": cb.lit("x").key()}, label=cb.lit(1)
        ),
        cb.FeatureSet(group=col("words"), weight=cb.lit(2)),
    ):
        agree(cb.compile(view, wanted), runtime, (100, 1000))


# ---- filters ------------------------------------------------------------------------------------------------

TOKENS = col("words").lower().split(" ")
CONDITIONS: dict[str, Any] = {
    "all": col("id") >= 0,
    "none": col("id") < 0,
    "some": col("n") > 1,
    "one": col("id") == 3 * 300,
    "null": col("user") > 3,
    "document": col("doc").json("$.n", "int").fill(0) > 1,
    "list": TOKENS.length() > 2,
    "always": cb.lit(True),
    "never": cb.lit(False),
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_rows_pass_a_filter_as_on_the_cpu(runtime: Runtime, condition: str) -> None:
    view = cb.View(log_table(600), key="id").with_columns(tokens=TOKENS).filter(CONDITIONS[condition])
    wanted = features(dense={"n": col("tokens").length(), "x": col("x"), "s": col("doc").json("$.n", "int").fill(-1)})
    agree(cb.compile(view, wanted), runtime, (50, 1000))


def test_several_filters_and_what_they_keep(runtime: Runtime) -> None:
    view = (
        cb.View(log_table(700), key="id")
        .with_columns(
            city=col("doc").json("$.a.b"), tags2=col("doc").json("$.tags", "list[str]"), low=col("words").lower()
        )
        .filter(col("city").is_null() | (col("city") != ""))
        .filter(col("low").contains("e") | (col("tags2").length() > 2).fill(False))
        .filter(col("n") < 4)
    )
    wanted = features(
        sparse={"city": col("city").fill("?"), "tags": col("tags2").fill([]).key(), "low": col("low").words().key()},
        dense={"n": col("tags2").fill([]).length(), "slot": col("doc").json("$.x", "float").fill(-9.0)},
    )
    agree(cb.compile(view, wanted), runtime, (33, 1000))
    agree(cb.compile(view, wanted), runtime, (33, 1000), host_filters=True)


# ---- joins and merges ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["left", "inner"])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_joined_views(runtime: Runtime, how: str, rows: int) -> None:
    others = users(rows).fill(age=0, name="?", langs=[], vector=[])
    view = cb.View(log_table(600), key="id").join(others, on="user", how=how)
    wanted = features(
        dense={
            "age": col("age"),
            "both": cb.overlap("tags", "langs"),
            "n": col("langs").length(),
            "vector": col("vector"),
        },
        sparse={"langs": col("langs").key(), "name": col("name").lower(), "pair": cb.cross("tags", "langs")},
    )
    agree(cb.compile(view, wanted), runtime, (100, 1000))


def test_the_cpu_looks_up_a_joined_view_that_lies_on_disk(runtime: Runtime) -> None:
    others = users(7).fill(age=0, name="?", langs=[])
    wanted = features(
        dense={"age": col("age")}, sparse={"name": col("name").lower(), "pair": cb.cross("tags", "langs")}
    )
    log = cb.View(log_table(600), key="id")
    memory, disk = (
        cb.compile(log.join(others, on="user", how="inner", **more), wanted)
        for more in ({}, {"budget": 1, "spill": True})
    )
    made = agree(disk, runtime, (100, 1000))
    assert [d.on_disk for d in made.dimensions.values()] == [True]
    assert {n.op for n in made.host} == {"gather"}
    assert_same(list(on_cpu(disk).batches(100)), list(on_cpu(memory).batches(100)))


def versions(rows: int) -> cb.View:
    """Names of users that change over time, the latest first."""
    each = range(rows)
    table = pa.table(
        {
            "user": pa.array([k % 5 for k in each], pa.int64()),
            "since": pa.array([-(k // 5) for k in each], pa.timestamp("s")),
            "name": pa.array([None if k % 4 == 3 else f"name {k}" for k in each], pa.string()),
            "level": pa.array(each, pa.int64()),
        }
    )
    return cb.View(table, key="user", name="versions")


@pytest.mark.parametrize("how", ["left", "inner"])
@pytest.mark.parametrize("rows", [0, 23])
def test_as_of_joins(runtime: Runtime, how: str, rows: int) -> None:
    others = versions(rows).fill(name="?", level=-1)
    seconds = cb.when(col("n") == 4).then(10**15).otherwise(col("n"))  # no time has so many, so these are null
    log = cb.View(log_table(600), key="id").with_columns(ts=seconds.cast("time", unit="s"))
    wanted = features(dense={"level": col("level")}, sparse={"name": col("name"), "pair": cb.cross("tags", "name")})
    agree(cb.compile(log.join(others, on="user", how=how, as_of=("ts", "since")), wanted), runtime, (100, 1000))


@pytest.mark.parametrize("ids", ["gaps", "before", "behind", "all", "none"])
@pytest.mark.parametrize("filtered", [False, True])
def test_a_streamed_merge(runtime: Runtime, ids: str, filtered: bool) -> None:
    rows = 900
    of = {
        "gaps": [k for k in range(3 * rows) if k % 7 in (0, 1, 5)],
        "before": list(range(-50, 10)),
        "behind": list(range(3 * rows - 5, 3 * rows + 50)),
        "all": list(range(3 * rows)),
        "none": [-5],
    }[ids]
    rng = random.Random(3)
    basic = pa.table(
        {
            "id": pa.array(of, pa.int64()),
            "ctr": pa.array([rng.choice([None, 0.5, float("nan")]) for _ in of], pa.float64()),
            "topic": pa.array([rng.choice([None, "", "靴", "y" * 30]) for _ in of], pa.string()),
            "keys": pa.array([rng.choice([None, [], [1, None, 2]]) for _ in of], pa.list_(pa.int64())),
        }
    )
    view = cb.View(log_table(rows), key="id").merge(
        cb.View(basic, key="id", name="basic").fill(ctr=-1.0, topic="none", keys=[]), ordered=True
    )
    view = view.filter((col("ctr") > 0.0) | (col("n") > 0)) if filtered else view
    wanted = features(
        dense={"ctr": col("ctr"), "n": col("n")}, sparse={"t": col("topic").key(), "k": col("keys").as_key()}
    )
    agree(cb.compile(view, wanted), runtime, (100, 5000))


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("rows", [1, 400])
def test_a_rich_job_from_memory_and_from_files(runtime: Runtime, ordered: bool, rows: int, tmp_path: Path) -> None:
    made = world(7, rows, ordered=ordered)
    for sources in (made.tables, write(made.tables, tmp_path, files=3, group=50)):
        agree(cb.compile(*rich(sources, ordered)), runtime, (7, 1000))


def drawn(runtime: Runtime, job: Job, batch_size: int, files: int, folder: Path) -> None:
    made = world(job.seed, job.rows * 9, ordered=job.ordered)
    sources: dict[str, Any] = made.tables
    if files and job.rows:
        sources = write(made.tables, Path(tempfile.mkdtemp(dir=folder)), files, 30)
    agree(cb.compile(job.log(sources), job.features, chunk_rows=7), runtime, (batch_size,))


@settings(max_examples=5, **QUIET)
@given(job=jobs(), batch_size=st.sampled_from([1, 3, 1000]), files=st.sampled_from([0, 1, 3]))
def test_any_plan_gives_the_batches_of_the_cpu(
    runtime: Runtime, tmp_path_factory: pytest.TempPathFactory, job: Job, batch_size: int, files: int
) -> None:
    drawn(runtime, job, batch_size, files, tmp_path_factory.getbasetemp())


@pytest.mark.exhaustive
@settings(max_examples=50, **QUIET)
@given(job=jobs(), batch_size=st.sampled_from([1, 3, 1000]), files=st.sampled_from([0, 1, 3]))
def test_many_plans_give_the_batches_of_the_cpu(
    runtime: Runtime, tmp_path_factory: pytest.TempPathFactory, job: Job, batch_size: int, files: int
) -> None:
    drawn(runtime, job, batch_size, files, tmp_path_factory.getbasetemp())


# ---- the CPU's share ----------------------------------------------------------------------------------------


@cb.operator(args=["int"], result="int", nullable=True)
def odd_is_null(n: pa.Array) -> Any:
    return pc.if_else(pc.equal(pc.bit_wise_and(n, 1), 1), None, n)


@cb.operator(args=["str"], result="list[str]")
def halves(words: pa.Array) -> Any:
    return pa.array(
        [[w[: len(w) // 2], w[len(w) // 2 :]] if w else [] for w in words.to_pylist()], pa.list_(pa.string())
    )


@pytest.mark.parametrize("filtered", ["no", "before", "by it"])
def test_operators_of_users_run_on_the_cpu(runtime: Runtime, filtered: str) -> None:
    view = cb.View(log_table(600), key="id").with_columns(half=halves("words"), even=odd_is_null("n"))
    if filtered != "no":
        view = view.filter(col("n") > 0 if filtered == "before" else col("even") > 0)
    wanted = features(
        dense={"even": col("even").fill(-1), "twice": odd_is_null(col("n") * 2).fill(0) + col("n"), "x": col("x")},
        sparse={"half": col("half").key(), "low": col("half").join("").lower(), "id": col("id").key()},
    )
    made = agree(cb.compile(view, wanted), runtime, (50, 1000))
    assert made.host


@pytest.mark.parametrize("filtered", [False, True])
def test_the_cpus_share_of_rows_with_merged_ones(runtime: Runtime, filtered: bool) -> None:
    ids = list(range(1, 1500, 2))
    basic = pa.table(
        {"id": ids, "topic": [None if k % 5 == 0 else f"t{k % 9}" for k in ids], "m": [k % 4 for k in ids]}
    )
    other = cb.View(basic, key="id", name="basic").fill(topic="none", m=-2)
    view = cb.View(log_table(600), key="id").merge(other, ordered=True).with_columns(even=odd_is_null("m"))
    view = view.filter(col("even").fill(-1) != 2) if filtered else view
    wanted = features(
        dense={"even": col("even").fill(-1), "m": col("m")}, sparse={"t": halves("topic").key(), "topic": col("topic")}
    )
    assert agree(cb.compile(view, wanted), runtime, (50, 1000)).host


WORDS = cb.Dictionary([f"w{k}" for k in range(40_000)] + hostile.WORDS)


def shared_plan(filtered: bool) -> cb.Plan:
    view = cb.View(log_table(600), key="id").join(users().fill(age=0, name="", langs=[]), on="user")
    wanted = features(
        dense={
            "age": col("age"),
            "word": col("words").lookup(WORDS, default=-1),
            "slot": col("doc").json("$.n", "int").fill(0),
        },
        sparse={
            "langs": col("langs").key(),  # keys are made once a user
            "name": col("name").lower().key(),
            "ids": col("tags").lookup(WORDS, default=0).key(),
            "cross": cb.cross("langs", "n"),
            "city": col("doc").json("$.a.b").fill("").lower().words().key(),
        },
    )
    return cb.compile(view.filter(col("age") != 20) if filtered else view, wanted)


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("ops", ["gather", "key", "hash", "json lower", "dictionary_id words", "row length cross"])
def test_whatever_the_cpu_computes_travels(runtime: Runtime, ops: str, filtered: bool) -> None:
    """Every kind of result, keys included, with its nulls."""
    plan = shared_plan(filtered)
    host = computed(plan, *ops.split())
    assert host
    agree(plan, runtime, (50, 1000), host=host, warnings=False)


def test_a_row_is_warned_of_once_where_both_sides_compute_an_operator(runtime: Runtime) -> None:
    table = pa.table({"id": [1, 2, 3], "doc": ["{", '{"a": "x", "b": 2}', None]})
    text, number = col("doc").json("$.a").fill(""), col("doc").json("$.b", "int").fill(0)
    plan = cb.compile(
        cb.View(table, key="id"), cb.FeatureSet(sparse={"a": text.lower()}, dense={"b": number, "n": text.length()})
    )
    agree(plan, runtime, host=computed(plan, "lower"))


@pytest.mark.parametrize("filtered", [False, True])
def test_tables_beyond_the_memory_budget_stay_on_the_cpu(runtime: Runtime, filtered: bool) -> None:
    plan = shared_plan(filtered)
    sizes = [cb.types.Device("cuda", memory=f"{size}MB") for size in range(1, 30)]
    small = next(device for device in sizes if place(plan.graph, device).carried)  # the first that a chunk fits in
    made = agree(plan, runtime, (50, 1000), device=small)
    assert {n.op for n in made.host} == {"dictionary_id"}


# ---- memory that is too small at first ----------------------------------------------------------------------


def test_pool_outputs_and_working_memory_grow_and_rows_are_counted_once(runtime: Runtime) -> None:
    rng = random.Random(2)
    texts = ["", "a b", "X" * 30_000, " ".join(f"T{k}" for k in range(4_000))]
    docs = ["{", "{}", '{"t": [' + ",".join(f'"\\u0041{k}"' for k in range(900)) + "]}"]
    table = pa.table(
        {
            "id": list(range(600)),
            "text": rng.choices(texts, [50, 50, 2, 2], k=600),
            "doc": rng.choices(docs, [10, 90, 2], k=600),
        }
    )
    tokens = col("text").lower().split(" ")
    tags = col("doc").json("$.t", "list[str]").fill([])
    wanted = cb.FeatureSet(
        dense={"shared": cb.overlap(tokens, tags, "jaccard"), "n": tokens.distinct().length()},
        sparse={
            "tokens": tokens.key(),
            "tags": tags.key(),
            "cross": cb.cross(tokens, tags, limit=50),
            "low": col("text").lower(),
        },
    )
    plan = cb.compile(cb.View(table, key="id"), wanted)
    made, cpu = on_device(plan, runtime), on_cpu(plan)
    want = list(cpu.batches(100))
    told = warned(cpu)
    assert told.keys() == {"json of 'doc'", "cross of 'text'"}
    begin = made.device.pool.nbytes, made.device.scratch.nbytes
    assert_same(list(made.batches(100)), want)
    assert warned(made) == told
    assert made.device.pool.nbytes > begin[0]
    assert made.device.scratch.nbytes > begin[1]
    shrunk(made.device)
    assert_same(list(made.batches(100)), want)
    assert warned(made) == {name: 2 * rows for name, rows in told.items()}


def test_what_a_chunk_needed_is_remembered(runtime: Runtime) -> None:
    table = pa.table({"id": list(range(300)), "text": ["Word " * 500] * 300})
    made = on_device(
        cb.compile(cb.View(table, key="id"), cb.FeatureSet(sparse={"t": col("text").lower().words().key()})), runtime
    )
    list(made.batches(100))
    size = made.device.pool.nbytes
    for slot in made.device.slots:
        assert not made.device.too_small(slot)
    list(made.batches(100))
    assert made.device.pool.nbytes == size


# ---- rows that are an error ---------------------------------------------------------------------------------


def until_error(extractor: Extractor, size: int) -> tuple[Stream, str]:
    """The batches before an error, and what it says."""
    got: Stream = []
    try:
        got.extend(extractor.batches(size))
    except cb.errors.DataError as error:
        return got, str(error)
    raise AssertionError("there was no error")


def failures(plan: cb.Plan, runtime: Runtime, size: int) -> str:
    """What both engines say of a log that has an error."""
    said = [until_error(extractor, size)[1] for extractor in (on_cpu(plan), on_device(plan, runtime))]
    assert said[0] == said[1]
    return said[0]


def two_files(folder: Path, tables: list[pa.Table]) -> cb.View:
    for k, table in enumerate(tables):
        pq.write_table(table, folder / f"{k}.parquet", row_group_size=300)
    return cb.View(str(folder), key="id", name="log")


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("row", [0, 299, 300, 450])
def test_a_strict_document_that_is_none_names_file_and_row(
    runtime: Runtime, row: int, filtered: bool, tmp_path: Path
) -> None:
    first, second = log_table(700), log_table(500)
    docs = ["{}"] * 700
    first = first.set_column(first.schema.get_field_index("doc"), "doc", pa.array(docs))
    other = docs[:500]
    other[row] = "{"
    second = second.set_column(second.schema.get_field_index("doc"), "doc", pa.array(other))
    view = two_files(tmp_path, [first, second])
    if filtered:
        view = view.filter((col("n") != 0) | (col("doc") == "{"))
    plan = cb.compile(view, features(dense={"n": col("doc").json("$.n", "int", strict=True).fill(0)}))
    said = failures(plan, runtime, 100_000)
    assert said.endswith(f"1.parquet row {row})")
    assert said.startswith("json: the value is malformed")


def strict_plan(filtered: bool) -> tuple[cb.Plan, int]:
    """A plan whose first bad row comes after so many good ones."""
    table = pa.table({"id": list(range(900)), "doc": ["{"] + ["{}"] * 698 + ["{"] * 201})
    view = cb.View(table, key="id").filter(col("id") % 2 == 1) if filtered else cb.View(table.slice(1), key="id")
    value = col("doc").json("$.a", "int", strict=True).fill(0)
    return cb.compile(view, cb.FeatureSet(dense={"a": value, "id": col("id")})), 349 if filtered else 698


@pytest.mark.parametrize("filtered", [False, True])
def test_batches_before_a_bad_row_are_given(runtime: Runtime, filtered: bool) -> None:
    plan, _ = strict_plan(filtered)
    (want, said), (got, too) = until_error(on_cpu(plan), 50), until_error(on_device(plan, runtime), 50)
    assert said == too
    assert_same(got, want)


@pytest.mark.parametrize("filtered", [False, True])
def test_a_bad_row_behind_the_limit_is_no_error(runtime: Runtime, filtered: bool) -> None:
    plan, good = strict_plan(filtered)
    cpu, made = on_cpu(plan), on_device(plan, runtime)
    for limit in (good, good - 1, 10):
        assert_same(list(made.batches(50, 0, limit)), list(cpu.batches(50, 0, limit)))


@pytest.mark.parametrize("filtered", [False, True])
def test_rows_behind_the_limit_are_in_no_warning(runtime: Runtime, filtered: bool) -> None:
    table = pa.table({"id": range(900), "doc": ["{" if k % 3 else "{}" for k in range(900)], "n": range(900)})
    view = cb.View(table, key="id")
    broken = col("doc").json("$.a", "int").fill(7)
    plan = cb.compile(view.filter(col("n") % 5 != 1) if filtered else view, cb.FeatureSet(dense={"a": broken}))
    kept = [k for k in range(900) if not filtered or k % 5 != 1]
    for limit in (1, 7, 250, 256, 511, len(kept), None):
        made = on_device(plan, runtime, capacity=256)
        assert_same(list(made.batches(50, 0, limit)), list(on_cpu(plan).batches(50, 0, limit)))
        warned = sum(count for program in made.device_programs for count in program.native.counts)
        assert warned == sum(k % 3 != 0 for k in kept[:limit]), limit


def vectors(rows: int, *, null: int = -1, holes: tuple[int, ...] = ()) -> cb.View:
    """Vectors of two numbers; row ``null`` is null, those in ``holes`` have a null inside."""
    values = [None if k == null else [1.0, None if k in holes else 2.0] for k in range(rows)]
    return cb.View(pa.table({"id": range(rows), "v": pa.array(values, pa.list_(pa.float64(), 2))}), key="id")


def test_a_null_inside_a_vector_names_the_same_row_on_both_engines(runtime: Runtime) -> None:
    plan = cb.compile(vectors(600, holes=(444, 460)), cb.FeatureSet(dense={"v": col("v")}))
    assert failures(plan, runtime, 100) == (
        "column 'v' has a null inside a list of fixed size; a vector needs all its elements (at memory row 444)"
    )
    # Of two faults in one chunk the first row's is told.
    for null, said in ((443, "'v' is null, but"), (445, "'v' has a null inside a list")):
        plan = cb.compile(vectors(9), cb.FeatureSet(dense={"v": col("v")}))
        plan.graph.frames[0].sources[0].view = vectors(600, null=null, holes=(444,))
        told = failures(plan, runtime, 600)
        assert said in told
        assert told.endswith(f"(at memory row {min(null, 444)})")


def test_a_row_that_the_filter_drops_is_no_error(runtime: Runtime) -> None:
    table = pa.table({"id": [1, 2, 3], "doc": ["{}", "{", "{}"], "n": [1, 0, 1]})
    wanted = cb.FeatureSet(dense={"a": col("doc").json("$.a", "int", strict=True).fill(7)})
    agree(cb.compile(cb.View(table, key="id").filter(col("n") > 0), wanted), runtime)


def test_a_strict_document_of_the_filter_names_its_row(runtime: Runtime) -> None:
    table = pa.table({"id": list(range(600)), "doc": ["{}"] * 400 + ["{"] + ["{}"] * 199})
    condition = col("doc").json("$.a", "int", strict=True).is_null()
    plan = cb.compile(cb.View(table, key="id").filter(condition), cb.FeatureSet(dense={"id": col("id")}))
    assert failures(plan, runtime, 100) == "json: the value is malformed (at memory row 400)"


def test_a_null_in_a_column_that_was_never_null_names_file_and_row(runtime: Runtime, tmp_path: Path) -> None:
    plan = cb.compile(cb.View(log_table(20), key="id"), cb.FeatureSet(dense={"n": col("n"), "x": col("x")}))
    second = log_table(500)
    values = pa.array([None if k in (444, 460) else k for k in range(500)], pa.int64())
    second = second.set_column(second.schema.get_field_index("n"), "n", values)
    plan.graph.frames[0].sources[0].view = two_files(tmp_path, [log_table(600), second])  # not what it was built on
    said = failures(plan, runtime, 100_000)
    assert said.startswith("column 'n' is null, but the plan was built on data where it never is")
    assert said.endswith("1.parquet row 444)")


def test_what_was_fitted_runs_on_the_device(runtime: Runtime) -> None:
    rng = random.Random(1)
    rows = 500
    table = log_table(rows).append_column(
        "ts", pa.array([rng.randrange(2**40) for _ in range(rows)], pa.timestamp("us"))
    )
    clicked = col("n") > 0
    wanted = features(
        dense={
            "z": col("n").cast("float").standardize(),
            "rate": cb.rate("user", time="ts", label=clicked, every="1h").fill(0.5),
            "clicks": cb.clicks("words", time="ts", label=clicked, every="1h", window="5h"),
        },
        sparse={"bucket": col("n").bucketize(quantiles=4), "shows": cb.shows("user", time="ts", label=clicked).fill(0)},
    )
    agree(cb.compile(cb.View(table, key="id"), wanted), runtime, (100, 1000))


def test_batches_can_be_taken_and_put_together_like_the_cpus(runtime: Runtime) -> None:
    plan = cb.compile(cb.View(log_table(300), key="id"), features())
    order = np.random.default_rng(1).permutation(300)
    ((device, _),) = on_device(plan, runtime, capacity=300).batches(1000)
    ((cpu, _),) = on_cpu(plan).batches(1000)
    assert_same([(device.take(order[:70]), 0)], [(cpu.take(order[:70]), 0)])
