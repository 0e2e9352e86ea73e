"""The machine's own limit for benchmarks.scale: what N independent processes of one core each do in sum.

Nothing is shared between the processes but the machine: each is pinned to a core of its own, has its own memory, and does the
work of one thread. They start each measurement together, at a barrier, and each works for the same stated time; their rates are
added up. Where N threads of one process reach that sum, what keeps them below N times one thread is the machine: a clock that
falls when all cores are busy, cores that are two threads of one core, and caches and memory that all cores share.

Two measurements that have nothing to do with CTRBox tell these causes apart. "arithmetic" is a loop of Python that stays in the
first caches, so its sum grows by less than N only where the clock falls or cores are shared. "random reads" takes numbers from
random places of 256 MB.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

Meet = Callable[[], Any]

PATIENCE = 120.0  # seconds after which a process that the others do not meet gives up
REFERENCE_SECONDS = 0.3
READ_BYTES = 256 << 20  # larger than the caches of a core

_barrier: threading.Barrier  # of the processes, set in each of them


def rate_of(meet: Meet, seconds: float, work: Callable[[], int]) -> float:
    """Meet the other processes, then repeat ``work`` for so many seconds; return what it counts, per second."""
    meet()
    done, began = 0, time.perf_counter()
    while (now := time.perf_counter()) - began < seconds:
        done += work()
    return done / (now - began)


def independent(part: str | None, folder: Path, cores: int, quick: bool, seconds: float) -> dict[str, float]:
    """Return the summed rates of so many processes, by name; ``part``: the module of a part, or None for the references alone.

    "clock in MHz" is the mean over the processes while they worked, where the system tells it.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores, mp_context=context, initializer=_begin, initargs=(context.Barrier(cores),)) as pool:
        asked = [pool.submit(_one, part, folder, k, quick, seconds) for k in range(cores)]
        errors = [error for one in asked if (error := one.exception())]
        # A process that fails breaks the barrier, and then all others fail: the first cause says what happened.
        for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
            raise error
        found = [one.result() for one in asked]
    sums = {name: sum(one[name] for one in found) for name in found[0] if all(name in one for one in found)}
    if "clock in MHz" in sums:
        sums["clock in MHz"] /= cores
    return sums


def _begin(barrier: threading.Barrier) -> None:
    global _barrier
    _barrier = barrier


def _one(part: str | None, folder: Path, place: int, quick: bool, seconds: float) -> dict[str, float]:
    """Measure in one process, on the core with that place among the usable ones."""
    try:
        core = place
        if hasattr(os, "sched_setaffinity"):  # before the part is imported: libraries count the cores then
            core = sorted(os.sched_getaffinity(0))[place]
            os.sched_setaffinity(0, [core])
        found = references(_meet, core)
        if part is not None:
            found |= importlib.import_module(part).limit(folder, quick, seconds, _meet)
        return found
    except BaseException:
        _barrier.abort()
        raise


def _meet() -> None:
    _barrier.wait(PATIENCE)


def references(meet: Meet, core: int) -> dict[str, float]:
    """Return the rates of the two measurements that do without CTRBox, and the clock of the core where it can be read."""
    import numpy as np

    def add() -> int:
        total = 0
        for k in range(10_000):
            total += k
        return 10_000

    numbers = np.ones(READ_BYTES // 8)
    places = np.random.default_rng(core).integers(0, len(numbers), 65_536)
    read = np.empty(len(places))

    def take() -> int:
        np.take(numbers, places, out=read, mode="clip")
        return len(places)

    found = {"arithmetic": rate_of(meet, REFERENCE_SECONDS, add)}
    if clock := clock_of(core):
        found["clock in MHz"] = clock
    found["random reads"] = rate_of(meet, REFERENCE_SECONDS, take)
    return found


def clock_of(core: int) -> float | None:
    """Return the present clock of a core in MHz; None where neither the kernel's governor nor /proc/cpuinfo tells it."""
    try:
        return int(Path(f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq").read_text()) / 1000
    except (OSError, ValueError):
        pass
    try:
        blocks = Path("/proc/cpuinfo").read_text().split("\n\n")
    except OSError:
        return None
    for block in blocks:
        facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in block.splitlines())}
        if facts.get("processor") == str(core) and "cpu MHz" in facts:
            return float(facts["cpu MHz"])
    return None


def processor() -> dict[str, str]:
    """Return what lscpu says about threads per core, caches and clock; nothing where there is no lscpu."""
    wanted = (
        "Model name",
        "Thread(s) per core",
        "Core(s) per socket",
        "Socket(s)",
        "CPU max MHz",
        "L2 cache",
        "L3 cache",
    )
    try:
        listed = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return {}
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in listed.splitlines())}
    return {name: facts[name] for name in wanted if name in facts}
