"""How fast do raw logs become batches on a GPU, next to the CPU engine on all cores of the same machine?

    python -m benchmarks.gpu_extract [--quick] [--batch 65536] [--passes 5]

The job is that of benchmarks.extract, from columns in host memory and from Parquet in the page cache, which the CPU
decodes, or the GPU ("gpu Parquet, decoded there": CTRBOX_GPU_PARQUET). Batches of both
engines are compared bit for bit first. Then the engines take turns; a pass is the whole log, dimensions are loaded and
kernels compiled before. The limit from host memory is the copy over PCIe, measured in the same run. The log in memory is
a generated one several times over, with ids that go on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import extract_job, gpu, report
from ctrbox.plan.placement.device_description import PARQUET_SWITCH

NAME = "gpu_extract"
DECODED_THERE = "gpu Parquet, decoded there"
BASE, QUICK_BASE, COPIES = 4_000_000, 500_000, 4
CHECKED = 200_000  # rows
GOAL_SHARE, GOAL_TIMES = 0.60, 10.0
GROUPS_SHOWN = 14
CALLS_AT_ONCE = (4, 8, 12, 16, 32)  # of the decoder, tried one after the other


# ---- data and answers ------------------------------------------------------------------------------------------------


def repeated(tables: dict[str, pa.Table], copies: int) -> dict[str, pa.Table]:
    """The log and what is merged with it so many times over, its ids going on; joined views as they are."""
    step = pc.max(tables["impressions"]["instance_id"]).as_py() + 1

    def shifted(table: pa.Table, number: int) -> pa.Table:
        at = table.schema.get_field_index("instance_id")
        moved = pc.add(table["instance_id"], pa.scalar(number * step, table["instance_id"].type))
        return table.set_column(at, "instance_id", moved)

    def several(table: pa.Table) -> pa.Table:
        return pa.concat_tables([shifted(table, k) for k in range(copies)]).combine_chunks()

    return {name: several(t) if "instance_id" in t.column_names else t for name, t in tables.items()}


def differences(ours: Any, theirs: Any) -> list[str]:
    """What of two batches is not the same bits; either may lie on a GPU."""
    ours, theirs = ours.cpu(), theirs.cpu()
    if ours.rows != theirs.rows:
        return [f"{ours.rows} rows, not {theirs.rows}"]

    def same(a: Any, b: Any) -> bool:
        if a is None or b is None:
            return a is b
        return a.dtype == b.dtype and np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()

    names = ("label", "weight", "group", "dense")
    found = [name for name in names if not same(getattr(ours, name), getattr(theirs, name))]
    for name, ragged in theirs.sparse.items():
        mine = ours.sparse[name]
        if not same(mine.values, ragged.values) or not same(mine.offsets, ragged.offsets):
            found.append(name)
    return found


def checked(on_gpu: Any, on_cpu: Any, rows: int, size: int) -> int:
    """Batches of both engines, compared; the rows compared."""
    compared = 0
    for ours, theirs in zip(on_gpu.batches(size, limit=rows), on_cpu.batches(size, limit=rows), strict=True):
        wrong = differences(ours, theirs)
        if wrong:
            raise SystemExit(f"the engines differ in rows from {compared:,} on: {', '.join(wrong)}")
        compared += ours.rows
    return compared


# ---- time ------------------------------------------------------------------------------------------------------------


def one_pass(plan: Any, size: int, clock: gpu.Clock) -> float:
    """Seconds of the whole log, batch by batch, each dropped at once."""
    clock.wait()
    began = time.perf_counter()
    for _ in plan.batches(size):
        pass
    clock.wait()
    return time.perf_counter() - began


def turns(plans: dict[str, Any], sizes: dict[str, int], passes: int, clock: gpu.Clock) -> dict[str, list[float]]:
    """Seconds of every pass, by plan, after one to warm up."""
    for name, plan in plans.items():
        one_pass(plan, sizes[name], clock)
    spent: dict[str, list[float]] = {name: [] for name in plans}
    for _ in range(passes):
        for name, plan in plans.items():
            spent[name].append(one_pass(plan, sizes[name], clock))
    return spent


def raw_bytes(extractor: Any) -> int:
    """Bytes of the columns in memory that travel for the whole log."""
    sent = zip(extractor.log.sources, extractor.sent, strict=True)
    return sum(spec.view.source.table.select(names).nbytes for spec, names in sent)


def replay_ms(extractor: Any, slot: Any, calls: int = 10) -> float:
    """The kernels of the slot's chunk, from first to last, as they run: one graph."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(extractor.computing):
        slot.graph.replay()
        begin.record()
        for _ in range(calls):
            slot.graph.replay()
        end.record()
        end.synchronize()
    return begin.elapsed_time(end) / calls


def chunk_times(extractor: Any) -> dict[str, Any]:
    """Of a whole chunk: rows, milliseconds of its graph, and of every group of operators run alone."""
    import torch

    torch.cuda.synchronize()
    slots = extractor.slots
    rows = [int(slot.header[:8].view(torch.int64)[0]) for slot in slots]
    slot = slots[int(np.argmax(rows))]
    whole = replay_ms(extractor, slot)
    spent = extractor.device.timed(slot)
    return {"rows": max(rows), "ms": whole, "groups": [(*at, ms, members(extractor, *at)) for at, ms in spent.items()]}


def members(extractor: Any, kernel: str, group: int) -> str:
    """The operators of a group, in words."""
    groups = extractor.source.members.get(kernel, [])
    names = [k.name for k in groups[group]] if group < len(groups) else []
    counts = {name: names.count(name) for name in dict.fromkeys(names)}
    return ", ".join(name if n == 1 else f"{n} {name}" for name, n in counts.items())


def show_chunk(times: dict[str, Any]) -> None:
    groups = times["groups"]
    alone = sum(ms for _, _, ms, _ in groups)
    rows, whole = times["rows"], times["ms"]
    print(
        f"a chunk of {rows:,} rows: {whole:.3f} ms as a graph, {whole * 1e6 / rows:.2f} ns per row; "
        f"{alone:.3f} ms with every group alone\n"
    )
    layers: dict[str, tuple[float, int]] = {}
    for kernel, _, ms, _ in groups:
        before, n = layers.get(kernel, (0.0, 0))
        layers[kernel] = before + ms, n + 1
    lines = [[name, f"{n}", f"{ms * 1e3:,.1f}", f"{ms / alone:.1%}"] for name, (ms, n) in layers.items()]
    report.table(["launch", "groups", "µs alone", "share"], lines)
    print()
    ranked = sorted(groups, key=lambda g: -g[2])[:GROUPS_SHOWN]
    lines = [
        [f"{kernel} {number}: {names}"[:70], f"{ms * 1e3:,.1f}", f"{ms / alone:.1%}"]
        for kernel, number, ms, names in ranked
    ]
    report.table(["slowest groups", "µs", "share"], lines)


def decoding(plan: Any, size: int, clock: gpu.Clock) -> dict[str, Any]:
    """One more pass of the plan whose files the GPU decodes, with the time of every stage."""
    extractor = plan.extractor()
    decoder = next(reading.decoder for reading in extractor.readings if reading is not None)
    waited = {name: stage.seconds for name, stage in extractor.stats.stages.items()}
    decoder.forget()
    decoder.timed = True
    clock.wait()
    began = time.perf_counter()
    batches = plan.batches(size)
    next(batches)
    first = time.perf_counter() - began
    for _ in batches:
        pass
    clock.wait()
    whole = time.perf_counter() - began
    decoder.timed = False
    waited = {name: stage.seconds - waited.get(name, 0.0) for name, stage in extractor.stats.stages.items()}
    left = {name: why for reading in extractor.readings if reading is not None for name, why in reading.reasons.items()}
    return {
        "seconds": whole,
        "first_batch": first,
        "waited": waited,
        "host": dict(decoder.seconds),
        "gpu": dict(decoder.kernel_seconds),
        "calls": decoder.calls,
        "pages": decoder.pages,
        "stored_bytes": decoder.stored_bytes,
        "decoded_by_the_cpu": left,
    }


def by_calls(plan: Any, size: int, clock: gpu.Clock, passes: int = 3) -> dict[int, float]:
    """Seconds of the best pass by the number of calls of the decoder that use the GPU at a time."""
    extractor = plan.extractor()
    turns_of = next(reading.decoder for reading in extractor.readings if reading is not None).turns
    usual = turns_of.most
    told = {}
    for most in sorted({*CALLS_AT_ONCE, usual}):
        turns_of.most = most
        one_pass(plan, size, clock)
        told[most] = min(one_pass(plan, size, clock) for _ in range(passes))
    turns_of.most = usual
    return told


def show_decoding(told: dict[str, Any]) -> None:
    calls = max(1, told["calls"])

    def each(seconds: dict[str, float]) -> str:
        return ", ".join(f"{name} {value * 1e3 / calls:.2f} ms" for name, value in seconds.items())

    print(
        f"{DECODED_THERE}, one pass of {told['seconds'] * 1e3:.0f} ms: first batch after {told['first_batch'] * 1e3:.0f} ms; "
        f"{calls} calls of the decoder, {told['pages']:,} pages, {told['stored_bytes'] / 1e6:,.0f} MB stored"
    )
    print(f"  mean of a call, reader thread: {each(told['host'])}")
    print(f"  mean of a call, GPU, beside other calls: {each(told['gpu'])}")
    told_of = ", ".join(f"{name} {seconds * 1e3:.0f} ms" for name, seconds in told["waited"].items())
    print(f"  the engine in that pass (read: waiting for rows): {told_of}")
    for name, why in told["decoded_by_the_cpu"].items():
        print(f"  column {name} is decoded by the CPU: it {why}")


def source_of(name: str) -> str:
    """memory or Parquet, of "gpu memory, batches of …"."""
    return name.split(",")[0].split()[1]


def stages(plan: Any) -> Iterator[tuple[str, int, float]]:
    for name, stage in plan.extractor().stats.stages.items():
        yield name, stage.rows, stage.seconds


# ---- the question ----------------------------------------------------------------------------------------------------


def plans_over(root: Path, memory: dict[str, pa.Table]) -> dict[str, Any]:
    """The five: on the GPU and on the CPU, from memory and from Parquet, which for one of them the GPU decodes."""
    return {
        "gpu memory": extract_job.plan(root, memory=memory, device="cuda"),
        "cpu memory": extract_job.plan(root, memory=memory, device="cpu"),
        "gpu Parquet": extract_job.plan(root, device="cuda"),
        DECODED_THERE: extract_job.plan(root, device="cuda"),
        "cpu Parquet": extract_job.plan(root, device="cpu"),
    }


def main() -> None:
    options = report.options(__doc__)
    options.add_argument("--quick", action="store_true", help=f"{QUICK_BASE * COPIES:,} rows, 2 passes")
    options.add_argument("--batch", type=int, default=65_536, help="rows of a batch")
    options.add_argument("--passes", type=int, help="timed passes of each: 5, or 2 with --quick")
    given = options.parse_args()
    runtime = gpu.runtime_here(NAME)
    if runtime is None:
        return
    clock = gpu.Clock(runtime.device)
    base = QUICK_BASE if given.quick else BASE
    passes = given.passes or (2 if given.quick else 5)
    root = extract_job.data(base)
    memory = repeated(extract_job.tables(root), COPIES)
    rows = {"memory": memory["impressions"].num_rows, "Parquet": base}
    print(f"{gpu.gpu_in_words()}\n{report.machine()}\ncommit {report.commit()}\n")
    plans = plans_over(root, memory)
    ready = {}
    for name, plan in plans.items():
        began = time.perf_counter()
        os.environ[PARQUET_SWITCH] = "1" if name == DECODED_THERE else "0"
        plan.extractor()
        ready[name] = time.perf_counter() - began
    for name, plan in plans.items():
        if name.startswith("gpu"):
            compared = checked(plan, plans[f"cpu {source_of(name)}"], CHECKED, 50_000)
            print(f"{name}: {compared:,} rows have the bits of the CPU engine")

    large = {f"{name}, batches of 262,144": plan for name, plan in plans.items() if name.startswith("gpu")}
    sizes = dict.fromkeys(plans, given.batch) | dict.fromkeys(large, 262_144)
    spent = turns(plans | large, sizes, passes, clock)
    speed = {name: rows[source_of(name)] / min(seconds) for name, seconds in spent.items()}
    extractor = plans["gpu memory"].extractor()
    size = raw_bytes(extractor) / rows["memory"]
    upload = clock.upload_gbs()
    limit = upload * 1e9 / size
    share, times = speed["gpu memory"] / limit, speed["gpu memory"] / speed["cpu memory"]
    best_share = max(v for k, v in speed.items() if k.startswith("gpu memory")) / limit

    print(f"\n{rows['memory']:,} rows in memory, {rows['Parquet']:,} in Parquet; best of {passes} passes in turns")
    lines = [
        [
            name,
            f"{speed[name] / 1e6:.2f}",
            f"{rows[source_of(name)] / np.median(spent[name]) / 1e6:.2f}",
            f"{speed[name] / speed['cpu ' + source_of(name)]:.2f}",
            f"{speed[name] / limit:.1%}" if name.startswith("gpu memory") else "–",
            f"{ready.get(name, 0.0):.2f}" if name in ready else "–",
        ]
        for name in spent
    ]
    report.table(
        ["engine and source", "M rows/s", "median", "× the CPU engine", "of the copy limit", "set-up s"], lines
    )
    print(
        f"\na row has {size:.0f} raw bytes; copies of page-locked memory: {upload:.1f} GB/s, {limit / 1e6:.1f} M rows/s"
    )
    for name in ("gpu memory", "gpu Parquet", DECODED_THERE):
        told = ", ".join(f"{stage} {seconds:.2f} s" for stage, _, seconds in stages(plans[name]) if seconds >= 0.005)
        print(f"{name}, seconds of all threads in all passes: {told}")
    print()
    pages = decoding(plans[DECODED_THERE], given.batch, clock)
    show_decoding(pages)
    at_once = by_calls(plans[DECODED_THERE], given.batch, clock)
    told = ", ".join(f"{calls}: {rows['Parquet'] / seconds / 1e6:.1f}" for calls, seconds in at_once.items())
    print(f"  M rows/s by the number of calls that use the GPU at a time: {told}")
    print()
    chunk = chunk_times(extractor)
    show_chunk(chunk)
    print()
    cores = os.cpu_count()
    goals = {
        f"{GOAL_SHARE:.0%} of the copy limit from memory": best_share >= GOAL_SHARE,
        f"{GOAL_TIMES:g} × the CPU engine on {cores} cores from memory": times >= GOAL_TIMES,
    }
    gpu.finish(
        NAME,
        goals,
        speed["gpu memory"],
        {name: value for name, value in speed.items() if name.startswith("cpu")},
        "rows/s",
        quick=given.quick,
        rows=rows,
        speed=speed,
        seconds=spent,
        raw_bytes_a_row=size,
        upload_gbs=upload,
        copy_limit=limit,
        copy_share=share,
        best_copy_share=best_share,
        times_the_cpu_engine=times,
        chunk_rows=chunk["rows"],
        chunk_ms=chunk["ms"],
        chunk_groups=[(kernel, number, round(ms, 5), names) for kernel, number, ms, names in chunk["groups"]],
        setup_seconds=ready,
        decoding=pages,
        seconds_by_calls_at_once=at_once,
    )


if __name__ == "__main__":
    main()
