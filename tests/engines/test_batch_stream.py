"""The stream of batches: exact resume, shuffling, clean endings, errors in their place, reused buffers."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.columns.batch import Batch, Ragged

ROWS = 100


@pytest.fixture(autouse=True)
def _no_thread_outlives_its_test() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert not [t.name for t in threading.enumerate() if t not in before]


def chunked(table: pa.Table, rows: int = 9) -> pa.Table:
    """The same rows in many record batches, so that a small log has many morsels."""
    return pa.concat_tables([table.slice(k, rows) for k in range(0, table.num_rows, rows)])


def raw(rows: int = ROWS) -> pa.Table:
    each = range(rows)
    return pa.table(
        {
            "id": pa.array([3 * k for k in each], pa.int64()),
            "x": pa.array([k / 8 for k in each], pa.float64()),
            "words": pa.array([" ".join(f"w{j}" for j in range(k % 5)) for k in each]),
            "doc": pa.array(["{" if k % 10 == 7 else f'{{"a": {k}, "b": "t{k}"}}' for k in each]),
            "user": pa.array([k % 4 for k in each], pa.int64()),
        }
    )


def features() -> cb.FeatureSet:
    return cb.FeatureSet(
        label=col("x"),
        group=col("user"),
        weight=col("x") + 1.0,
        dense={"x": col("x"), "n": col("words").split(" ").length()},
        sparse={"id": col("id").key(), "words": col("words").split(" ").key()},
    )


def plan_of(kind: str, threads: int = 2, rows: int = ROWS) -> cb.Plan:
    log = cb.View(chunked(raw(rows)), key="id")
    if kind == "filtered":
        log = log.filter((col("user") != 1) & (col("x") > 2.0))
    if kind == "merged":
        basic = raw(rows).select(["id"]).append_column("ctr", raw(rows)["x"]).slice(5, rows - 12)
        log = log.merge(cb.View(chunked(basic, 7), key="id").fill(ctr=-1.0))
        wanted = features()
        dense = {**wanted.dense, "ctr": col("ctr")}
        more = cb.FeatureSet(wanted.label, wanted.group, wanted.weight, wanted.sparse, dense)
        return cb.compile(log, more, threads=threads, chunk_rows=4)
    return cb.compile(log, features(), threads=threads, chunk_rows=4)


def plain(batch: Batch) -> dict[str, Any]:
    """A batch as values of its own."""
    out: dict[str, Any] = {
        "rows": batch.rows,
        "label": None if batch.label is None else batch.label.tolist(),
        "weight": None if batch.weight is None else batch.weight.tolist(),
        "group": None if batch.group is None else batch.group.tolist(),
        "dense": batch.dense.tolist(),
    }
    for name, ragged in batch.sparse.items():
        out[name] = (ragged.values.tolist(), ragged.offsets.tolist())
    return out


def ids(batches: list[Batch]) -> list[int]:
    return [int(k) for b in batches for k in b.sparse["id"].values]


# ---- resume ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "filtered", "merged"])
@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_resume_after_any_batch_gives_the_rest(kind: str, batch_size: int) -> None:
    whole = [plain(b) for b in plan_of(kind).batches(batch_size)]
    assert len(whole) > 0
    plan = plan_of(kind)
    stream = plan.batches(batch_size)
    positions = [stream.position]
    for _ in stream:
        positions.append(stream.position)
    assert len(positions) == len(whole) + 1
    fresh = plan_of(kind)
    step = 1 if batch_size > 1 else 13
    for k in [*range(0, len(positions), step), len(positions) - 1]:
        rest = [plain(b) for b in fresh.batches(batch_size, start=positions[k])]
        assert rest == whole[k:], f"after {k} batches"


def test_resume_with_another_batch_size_goes_on_at_the_next_row() -> None:
    plan = plan_of("filtered")
    stream = plan.batches(7)
    head = [next(stream), next(stream)]
    here = stream.position
    stream.close()
    assert ids(head) + ids(list(plan.batches(10, start=here))) == ids(list(plan.batches(1000)))


def test_resume_from_files_starts_inside_a_file(tmp_path: Path) -> None:
    table = raw()
    for k in range(3):
        pq.write_table(table.slice(k * 34, 34), tmp_path / f"{k}.parquet", row_group_size=10)
    plan = cb.compile(cb.View(str(tmp_path), key="id").filter(col("x") >= 6.0), features(), threads=2)
    whole = [plain(b) for b in plan.batches(6)]
    plan = cb.compile(cb.View(str(tmp_path), key="id").filter(col("x") >= 6.0), features(), threads=3)
    stream = plan.batches(6)
    positions = [stream.position]
    for _ in stream:
        positions.append(stream.position)
    for k, position in enumerate(positions):
        assert [plain(b) for b in plan.batches(6, start=position)] == whole[k:]


def test_position_is_plain_data() -> None:
    stream = plan_of("plain").batches(10)
    assert stream.position == cb.types.Position(0, 0, 0)
    next(stream)
    assert stream.position == cb.types.Position(10)


def test_a_position_inside_a_shuffle_window_needs_the_shuffle() -> None:
    with pytest.raises(
        cb.errors.PlanError,
        match="the position lies inside a shuffle window, so it needs the "
        "shuffle= and seed= of the stream from which it comes",
    ):
        next(plan_of("plain").batches(10, start=cb.types.Position(0, 3)))


# ---- shuffling ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "filtered", "merged"])
def test_shuffle_permutes_rows_within_windows(kind: str) -> None:
    ordered = ids(list(plan_of(kind).batches(1000)))
    mixed = ids(list(plan_of(kind).batches(7, shuffle=24)))
    window = 21  # whole batches
    assert mixed != ordered
    for k in range(0, len(ordered), window):
        assert sorted(mixed[k : k + window]) == sorted(ordered[k : k + window])


def test_shuffled_rows_keep_their_values() -> None:
    ordered = next(plan_of("plain").batches(1000))
    rows = {ordered.sparse["id"].values[r]: plain(ordered.take(np.array([r]))) for r in range(ordered.rows)}
    for batch in plan_of("plain").batches(7, shuffle=30):
        for r in range(batch.rows):
            assert plain(batch.take(np.array([r]))) == rows[batch.sparse["id"].values[r]]


def test_shuffle_is_decided_by_its_seed() -> None:
    runs = {seed: [ids(list(plan_of("plain", t).batches(5, shuffle=20, seed=seed))) for t in (1, 3)] for seed in (0, 1)}
    assert runs[0][0] == runs[0][1]
    assert runs[1][0] == runs[1][1]
    assert runs[0][0] != runs[1][0]


@pytest.mark.parametrize("kind", ["plain", "filtered"])
def test_resume_inside_a_shuffle_window(kind: str) -> None:
    stream = plan_of(kind).batches(6, shuffle=20, seed=3)
    whole, positions = [], [stream.position]
    for batch in stream:
        whole.append(plain(batch))
        positions.append(stream.position)
    assert any(p.skip for p in positions)
    for k, position in enumerate(positions):
        rest = [plain(b) for b in plan_of(kind).batches(6, shuffle=20, seed=3, start=position)]
        assert rest == whole[k:]


def test_position_inside_a_window_needs_the_shuffle() -> None:
    plan = plan_of("plain")
    stream = plan.batches(5, shuffle=20)
    next(stream)
    with pytest.raises(cb.errors.PlanError, match="shuffle=20"):
        next(plan.batches(5, start=stream.position))


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(cb.errors.PlanError, match="batch_size must be a whole number"):
        next(plan_of("plain").batches(0))
    with pytest.raises(cb.errors.PlanError, match="smaller than a batch"):
        next(plan_of("plain").batches(10, shuffle=5))


# ---- limit -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [0, 20])
@pytest.mark.parametrize(("limit", "sizes"), [(0, []), (1, [1]), (7, [7]), (10, [7, 3]), (14, [7, 7]), (10**9, None)])
def test_limit_stops_after_so_many_rows(limit: int, sizes: list[int] | None, shuffle: int) -> None:
    whole = ids(list(plan_of("plain").batches(7, shuffle=shuffle)))
    some = list(plan_of("plain").batches(7, limit=limit, shuffle=shuffle))
    assert ids(some) == whole[:limit]
    if sizes is not None:
        assert [b.rows for b in some] == sizes


@pytest.mark.parametrize("shuffle", [0, 20])
def test_resume_after_a_limit_loses_no_row(shuffle: int) -> None:
    whole = ids(list(plan_of("plain").batches(7, shuffle=shuffle)))
    plan = plan_of("plain")
    stream = plan.batches(7, limit=10, shuffle=shuffle)
    head = ids(list(stream))
    rest = ids(list(plan.batches(7, start=stream.position, shuffle=shuffle)))
    assert head + rest == whole


# ---- endings -----------------------------------------------------------------------------------------------


def files(folder: Path, rows: int = 5000) -> str:
    table = raw(rows)
    for k in range(4):
        part = table.slice(k * rows // 4, rows // 4)
        pq.write_table(part, folder / f"part-{k}.parquet", row_group_size=97)
    return str(folder)


def consume(stream: Iterator[Batch], fail: bool) -> None:
    for _ in stream:
        if fail:
            raise RuntimeError


@pytest.mark.parametrize("ending", ["close", "drop", "error"])
def test_leaving_early_leaves_no_thread(ending: str, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    view = cb.View(files(tmp_path), key="id").filter(col("user") != 1)
    plan = cb.compile(view, features(), threads=3)
    stream = plan.batches(50)
    for _ in range(3):
        next(stream)
    assert set(threading.enumerate()) - before
    if ending == "close":
        stream.close()
    elif ending == "drop":
        del stream
        gc.collect()
    else:
        with pytest.raises(RuntimeError):
            consume(stream, fail=True)
        stream.close()
    assert not set(threading.enumerate()) - before
    assert sum(b.rows for b in plan.batches(1000)) == 3750  # and the plan still works


def test_a_stream_never_started_starts_no_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    stream = plan_of("plain").batches(10)
    assert set(threading.enumerate()) == before
    del stream


def test_keyboard_interrupt_in_the_consumer_ends_cleanly_and_resumes() -> None:
    before = set(threading.enumerate())
    plan = plan_of("filtered", threads=3)
    seen: list[int] = []
    positions: list[cb.types.Position] = []

    def interrupted() -> None:
        stream = plan.batches(7)
        for batch in stream:
            seen.extend(ids([batch]))
            positions.append(stream.position)
            if len(seen) > 20:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    gc.collect()
    assert not set(threading.enumerate()) - before
    assert seen + ids(list(plan.batches(7, start=positions[-1]))) == ids(list(plan.batches(1000)))


CTRL_C = """
    import sys, threading, time, pyarrow as pa, numpy as np, ctrbox as cb
    from ctrbox import col
    n = 200_000
    log = pa.table({"id": np.arange(n), "words": pa.array(["a b c d e f g"] * n)})
    wanted = cb.FeatureSet(sparse={"w": col("words").words().key()})
    plan = cb.compile(cb.View(log, key="id"), wanted, threads=2)
    try:
        for k in range(10_000):
            stream = plan.batches(1000)
            for batch in stream:
                if k == 0 and stream.position.row == 1000:
                    print("started", flush=True)
    except KeyboardInterrupt:
        # Ctrl-C may fall into the very start of a thread, which then ends by itself a moment later.
        for _ in range(200):
            left = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
            if not left:
                break
            time.sleep(0.05)
        print("stopped", stream.position.row % 1000, left, flush=True)
        sys.exit(7)
"""


def test_ctrl_c_stops_within_seconds() -> None:
    command = [sys.executable, "-c", textwrap.dedent(CTRL_C)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "started"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out.strip()) == (7, "stopped 0 []"), err


def test_streams_and_requests_of_one_plan_do_not_disturb_each_other() -> None:
    plan = plan_of("filtered", threads=2)
    whole = [plain(b) for b in plan.batches(7)]
    first, second = plan.batches(7), plan.batches(7)
    pairs = [(plain(a), plain(b)) for a, b in zip(first, second, strict=True)]
    assert pairs == [(b, b) for b in whole]
    answers: list[Any] = []

    def ask() -> None:
        for k in range(200):
            answers.append((k % ROWS, ids([plan.run(raw().slice(k % ROWS, 1))])))

    crowd = [threading.Thread(target=ask) for _ in range(3)]
    for thread in crowd:
        thread.start()
    for _ in range(5):
        assert [plain(b) for b in plan.batches(7)] == whole
    for thread in crowd:
        thread.join()
    alone = {k: ids([plan.run(raw().slice(k, 1))]) for k in range(ROWS)}
    assert len(answers) == 600
    assert all(answer == alone[k] for k, answer in answers)


# ---- errors where they lie ---------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("side", ["log", "basic"])
def test_ids_out_of_order_are_met_after_the_batches_before_them(side: str, threads: int) -> None:
    rows = {"log": list(range(100)), "basic": list(range(100))}
    rows[side][70], rows[side][71] = rows[side][71], rows[side][70]
    log = pa.table({"id": pa.array(rows["log"], pa.int64())})
    basic = pa.table({"id": pa.array(rows["basic"], pa.int64()), "v": pa.array(range(100), pa.int64())})
    view = cb.View(chunked(log, 10), key="id").merge(cb.View(chunked(basic, 10), key="id").fill(v=0), ordered=True)
    wanted = cb.FeatureSet(dense={"v": col("v")}, sparse={"id": col("id").key()})
    plan = cb.compile(view, wanted, threads=threads)
    got: list[Batch] = []
    stream = plan.batches(5)
    with pytest.raises(cb.errors.DataError, match=r"70 .*comes after 71 at memory row 71"):
        got.extend(stream)
    assert [x for batch in got for x in batch.dense[:, 0].tolist()] == list(range(70))
    assert stream.position == cb.types.Position(70)


def test_ids_that_repeat_across_morsels_are_out_of_order() -> None:
    log = pa.table({"id": pa.array([1, 2, 2, 3], pa.int64())})
    basic = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "v": pa.array([1, 2, 3], pa.int64())})
    view = cb.View(chunked(log, 2), key="id").merge(cb.View(basic, key="id").fill(v=0), ordered=True)
    with pytest.raises(cb.errors.DataError, match=r"2 .*comes after 2"):
        list(cb.compile(view, cb.FeatureSet(dense={"v": col("v")})).batches(1))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("where", ["feature", "filter"])
def test_strict_json_names_file_and_row(where: str, threads: int, tmp_path: Path) -> None:
    docs = ['{"a": 1}'] * 90
    docs[67] = "{"
    table = pa.table({"id": pa.array(range(90), pa.int64()), "doc": docs})
    for k in range(3):
        pq.write_table(table.slice(30 * k, 30), tmp_path / f"part-{k}.parquet", row_group_size=10)
    value = col("doc").json("$.a", "int", strict=True).fill(0)
    view = cb.View(str(tmp_path), key="id")
    view = view.filter(value == 1) if where == "filter" else view
    plan = cb.compile(view, cb.FeatureSet(dense={"a": value}), threads=threads)
    got: list[Batch] = []
    with pytest.raises(cb.errors.DataError, match=r"json.*part-2\.parquet row 7"):
        got.extend(plan.batches(10))
    assert sum(batch.rows for batch in got) == 60


def test_strict_feature_spares_rows_that_a_filter_drops() -> None:
    log = pa.table({"id": [1, 2], "doc": ["{", '{"a": 1, "b": 5}']})
    view = cb.View(log, key="id").filter(col("doc").json("$.a", "int").fill(0) == 1)
    plan = cb.compile(view, cb.FeatureSet(dense={"b": col("doc").json("$.b", "int", strict=True).fill(0)}))
    assert [b.dense.tolist() for b in plan.batches(10)] == [[[5.0]]]


# ---- warnings and statistics -------------------------------------------------------------------------------


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_malformed_documents_are_counted_once(filtered: bool, threads: int) -> None:
    view = cb.View(chunked(raw()), key="id")
    a, b = col("doc").json("$.a", "int").fill(0), col("doc").json("$.b").fill("")
    if filtered:
        view = view.filter(a >= 0)
    wanted = cb.FeatureSet(dense={"a": a, "n": b.length()}, sparse={"b": b.key()})
    plan = cb.compile(view, wanted, threads=threads, chunk_rows=4)
    assert plan.warnings == {}
    list(plan.batches(7))
    assert plan.warnings == {"json of 'doc'": 10}


def test_malformed_document_of_many_paths_is_counted_once() -> None:
    view = cb.View(raw(), key="id")
    plan = cb.compile(
        view, cb.FeatureSet(dense={f"d{k}": col("doc").json(f"$.p{k}", "int").fill(0) for k in range(40)})
    )
    list(plan.batches(7))
    assert plan.warnings == {"json of 'doc'": 10}


def test_malformed_documents_of_a_joined_view_are_counted() -> None:
    users = pa.table({"user": pa.array([0, 1, 2], pa.int64()), "profile": ["{", '{"age": 3}', "x"]})
    age = col("profile").json("$.age", "int").fill(0)
    view = cb.View(raw(), key="id").join(cb.View(users, key="user"), on="user")
    plan = cb.compile(view, cb.FeatureSet(dense={"age": age}))
    list(plan.batches(1000))
    assert plan.warnings == {"json of 'profile'": 2}


def test_stats_count_rows_by_stage() -> None:
    plan = plan_of("filtered", threads=3)
    rows = sum(b.rows for b in plan.batches(7))
    stats = plan.stats
    assert stats["read"]["rows"] == stats["filter"]["rows"] == ROWS
    assert stats["extract"]["rows"] == rows < ROWS
    assert all(stage["seconds"] >= 0 for stage in stats.values())
    assert plan.profile()


# ---- buffers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "filtered", "merged"])
def test_batches_that_are_held_do_not_change(kind: str) -> None:
    plan = plan_of(kind, threads=3)
    held: list[tuple[Batch, dict[str, Any]]] = []
    for round_ in range(6):
        for k, batch in enumerate(plan.batches(5)):
            if (k + round_) % 3 == 0:
                held.append((batch, plain(batch)))
        held = held[::2] if round_ % 2 else held  # some buffers go back to the pool between
    assert held
    for batch, then in held:
        assert plain(batch) == then


def test_an_array_outlives_its_batch() -> None:
    plan = plan_of("plain")
    kept = [(b.sparse["words"].values, b.dense, plain(b)) for b in plan.batches(9)]
    gc.collect()
    for _ in range(3):
        list(plan.batches(9))
    for values, dense, then in kept:
        assert values.tolist() == then["words"][0]
        assert dense.tolist() == then["dense"]


# ---- a batch in other shapes -------------------------------------------------------------------------------


def whole_batch(rows: int = ROWS) -> Batch:
    log = cb.View(raw(max(rows, 1)), key="id").filter(col("id") < 3 * rows)
    (batch,) = list(cb.compile(log, features()).batches(1000)) or [cb.compile(log, features()).run(raw(0))]
    return batch


@pytest.mark.parametrize("rows", [0, 1, ROWS])
def test_arrow_round_trip(rows: int) -> None:
    batch = whole_batch(rows)
    arrow = batch.to_arrow()
    assert arrow.num_rows == rows
    assert arrow.schema.names == ["label", "weight", "group", "x", "n", "id", "words"]
    assert plain(Batch.from_arrow(batch.schema, arrow)) == plain(batch)
    cut = arrow.slice(rows // 3, rows // 2)
    assert plain(Batch.from_arrow(batch.schema, cut)) == plain(
        batch.take(np.arange(rows // 3, rows // 3 + cut.num_rows))
    )


@pytest.mark.parametrize("rows", [0, 1, ROWS])
def test_torch_round_trip_shares_memory(rows: int) -> None:
    batch = whole_batch(rows)
    tensors = batch.torch()
    assert plain(Batch.from_torch(batch.schema, tensors)) == plain(batch)
    if rows > 1:
        assert tensors["dense"].data_ptr() == batch.dense.ctypes.data
        assert tensors["sparse"]["words"][0].data_ptr() == batch.sparse["words"].values.ctypes.data


def test_concat_of_the_batches_is_the_whole() -> None:
    parts = list(plan_of("plain").batches(7))
    assert plain(Batch.concat(parts)) == plain(whole_batch())
    assert plain(Batch.concat(parts[:1])) == plain(parts[0])
    again = Batch.concat([Batch.concat(parts[:3]), *parts[3:]])
    assert plain(again) == plain(whole_batch())


def test_concat_of_slices_of_arrow() -> None:
    """Offsets that do not begin at 0 are what a slice has."""
    values, offsets = np.arange(10, 20), np.array([2, 2, 5, 9])
    odd = Ragged(values, offsets)
    batch = whole_batch(3)
    twisted = Batch(
        batch.schema, 3, batch.label, batch.dense, {**batch.sparse, "words": odd}, batch.group, batch.weight
    )
    both = Batch.concat([twisted, batch])
    words = both.sparse["words"]
    assert [words[r].tolist() for r in range(3)] == [odd[r].tolist() for r in range(3)]
    assert [words[3 + r].tolist() for r in range(3)] == [batch.sparse["words"][r].tolist() for r in range(3)]


@pytest.mark.parametrize("rows", [[], [0], [5, 5, 2], list(range(99, -1, -1))])
def test_take_gives_the_rows_asked_for(rows: list[int]) -> None:
    batch = whole_batch()
    taken = batch.take(np.array(rows, np.int64))
    assert taken.rows == len(rows)
    assert taken.label.tolist() == [batch.label[r] for r in rows]
    for name, ragged in taken.sparse.items():
        assert [ragged[k].tolist() for k in range(len(rows))] == [batch.sparse[name][r].tolist() for r in rows]


# ---- long streams ------------------------------------------------------------------------------------------

LONG = """
    import resource, sys, numpy as np, pyarrow as pa, ctrbox as cb
    from ctrbox import col
    rows = int(sys.argv[1])
    class Log:  # a fresh stream at each scan, never held
        streaming = True
        schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("x", pa.float64(), False),
                            pa.field("words", pa.string(), False)])
        def __arrow_c_stream__(self, requested_schema=None):
            def parts():
                for start in range(0, rows, 50_000):
                    ids = np.arange(start, min(rows, start + 50_000))
                    words = pa.array(["a b c d"] * len(ids))
                    yield pa.record_batch([pa.array(ids), pa.array(ids / 2.0), words], schema=self.schema)
            reader = pa.RecordBatchReader.from_batches(self.schema, parts())
            return reader.__arrow_c_stream__(requested_schema)
    log = cb.View(Log(), key="id").filter(col("id") % 5 != 3)
    wanted = cb.FeatureSet(label=col("x"), dense={"x": col("x")},
                           sparse={"id": col("id").key(), "w": col("words").split(" ").key()})
    seen = sum(batch.rows for batch in cb.compile(log, wanted, threads=2).batches(20_000))
    print(seen, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def long_stream(rows: int) -> tuple[int, int]:
    command = [sys.executable, "-c", textwrap.dedent(LONG), str(rows)]
    out = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert out.returncode == 0, out.stderr
    seen, kilobytes = out.stdout.split()
    return int(seen), int(kilobytes)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_log() -> None:
    seen, short = long_stream(1_000_000)
    assert seen == 800_000
    seen, long = long_stream(8_000_000)
    assert seen == 6_400_000
    assert long < 1.1 * short, f"{short} kB for a million rows, {long} kB for eight"


@pytest.mark.slow
def test_ten_million_rows_of_a_trivial_plan() -> None:
    rows = 10_000_000
    log = pa.table({"id": np.arange(rows, dtype=np.int64)})
    wanted = cb.FeatureSet(dense={"rest": (col("id") % 1000).fill(0)}, sparse={"id": col("id").key()})
    plan = cb.compile(cb.View(log, key="id"), wanted)
    at, keys = 0, 0
    stream = plan.batches(65_536)
    for batch in stream:
        assert np.array_equal(batch.dense[:, 0], np.arange(at, at + batch.rows) % 1000)
        keys ^= int(np.bitwise_xor.reduce(batch.sparse["id"].values))
        at += batch.rows
    assert at == rows
    assert stream.position == cb.types.Position(rows)
    again = 0
    for batch in plan.batches(100_003):
        again ^= int(np.bitwise_xor.reduce(batch.sparse["id"].values))
    assert again == keys


# ---- requests ----------------------------------------------------------------------------------------------


def request_plan() -> cb.Plan:
    log = cb.View(
        pa.table({"id": [1, 2, 3], "device": ["ios", "tv", "web"], "price": [1.0, 2.0, 3.0], "clicked": [0, 1, 1]}),
        key="id",
    ).filter(col("device") != "tv")
    basic = cb.View(pa.table({"id": [1, 2, 3], "f": [7.0, 8.0, 9.0]}), key="id").fill(f=-1.0)
    return cb.compile(log.merge(basic), cb.FeatureSet(label="clicked", dense={"price": "price", "f": "f"}))


def test_a_request_needs_no_label_and_no_id_and_says_which_rows_passed() -> None:
    plan = request_plan()
    rows = pa.table({"device": ["tv", "ios", "web"], "price": [4.0, 5.0, 6.0]})
    for _ in range(2):  # the second time by the remembered schema
        batch = plan.run(rows)
        assert batch.label is None
        assert batch.dense.tolist() == [[5.0, -1.0], [6.0, -1.0]]
        assert batch.index is not None
        assert batch.index.tolist() == [1, 2]
    labeled = plan.run(rows.append_column("clicked", pa.array([0, 1, 0])))
    assert labeled.label is not None
    assert labeled.label.tolist() == [1.0, 0.0]
    with_merged = plan.run(rows.append_column("id", pa.array([1, 2, 3])).append_column("f", pa.array([1.0, 2.0, 3.0])))
    assert with_merged.dense[:, 1].tolist() == [2.0, 3.0]
    with pytest.raises(cb.errors.DataError, match="lacks column 'price'"):
        plan.run(rows.drop_columns("price"))


def test_a_position_of_another_shuffle_is_refused() -> None:
    plan = plan_of("plain")
    stream = plan.batches(5, shuffle=20, seed=7)
    next(stream)
    stream.close()
    for other in ({"shuffle": 20, "seed": 8}, {"shuffle": 40, "seed": 7}, {}):
        with pytest.raises(cb.errors.PlanError, match="shuffle=20, seed=7"):
            next(plan.batches(5, start=stream.position, **other))
