"""Where training spends its time: seconds of the parts of a step, for the training part of benchmarks.scale.

Three threads are watched, because a step takes as long as the slowest of them. The thread that runs the training loop waits for
a batch, pulls rows, runs the native step (in five parts), pushes gradients and steps the dense weights; what is left is Python,
its waiting for Python's global lock included. The thread that hands over batches waits for extraction and then finds the unique
keys of a batch; a third tells the table which rows will be pulled. Times are on the clock, so that a thread that another program
interrupts seems to work.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ctrbox as cb
from benchmarks import report
from ctrbox import _native
from ctrbox.optimizers.native_adam_of_dense_weights import AdamStep
from ctrbox.predict.native_forward import NativeNetwork
from ctrbox.train import fit, learn_batch
from ctrbox.train.learn_batch import Learner

NATIVE = ("prepare", "inputs", "rows", "keys", "sum")


class Stages:
    """Seconds by name since the training began."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.network: NativeNetwork | None = None

    def timed(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same and adds its time to a name."""

        def wrapped(*given: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return work(*given, **named)
            finally:
                self.seconds[name] += time.perf_counter() - began

        return wrapped

    def waiting(self, name: str, make: Callable[..., Generator[Any, None, None]]) -> Callable[..., Any]:
        """Return a function that makes the same generator, whose consumer's time is added to a name."""

        def wrapped(*given: Any, **named: Any) -> Generator[Any, None, None]:
            inner = make(*given, **named)
            following = self.timed(name, lambda: next(inner, None))
            try:
                while (item := following()) is not None:
                    yield item
            finally:
                inner.close()

        return wrapped

    def now(self) -> Counter[str]:
        """Return everything counted so far; to be called by the thread that runs the training loop."""
        found = Counter(self.seconds)
        found["time"], found["cpu"] = time.perf_counter(), time.process_time()
        if self.network is not None:
            found.update({f"native step {name}": seconds for name, seconds in self.network.native.seconds.items()})
        found.update({f"helpers {name}": count for name, count in _native.parallel_calls().items()})
        return found

    @contextmanager
    def watched(self, table: cb.MemoryTable) -> Iterator[None]:
        """Count the trainings inside the block."""
        native_step = learn_batch.native_step

        def known(network: NativeNetwork, *given: Any) -> Any:
            self.network = network
            return native_step(network, *given)

        places = [
            (fit, "run_stages", self.waiting("wait", fit.run_stages)),
            (Learner, "learn", self.timed("learn", Learner.learn)),
            (Learner, "announce", self.timed("announce", Learner.announce)),
            (Learner, "keyed", self.timed("keyed", Learner.keyed)),
            (fit.Fit, "_walk", self.waiting("extraction", fit.Fit._walk)),
            (learn_batch, "native_step", self.timed("native step", known)),
            (AdamStep, "step", self.timed("dense step", AdamStep.step)),
            (type(table), "pull", self.timed("pull", type(table).pull)),
            (type(table), "push", self.timed("push", type(table).push)),
        ]
        before = [(place, name, getattr(place, name)) for place, name, _ in places]
        try:
            for place, name, work in places:
                setattr(place, name, work)
            yield
        finally:
            for place, name, work in before:
                setattr(place, name, work)


def per_step(first: Counter[str], last: Counter[str], steps: int) -> dict[str, float]:
    """Return milliseconds per step of each part, and the helpers per parallel call of the training loop."""
    each = {name: (last[name] - first[name]) / steps for name in last}
    found = {"step": each["time"], "wait for a batch": each["wait"], "pull": each["pull"]}
    found |= {f"native step: {name}": each.get(f"native step {name}", 0.0) for name in NATIVE}
    found |= {"push": each["push"], "dense step": each["dense step"]}
    inside = sum(each[name] for name in ("pull", "native step", "push", "dense step"))
    found["Python inside a step"] = (
        each["learn"] - inside + each["native step"] - sum(found[f"native step: {n}"] for n in NATIVE)
    )
    found["Python between steps"] = each["time"] - each["wait"] - each["learn"]
    found["hand-over: wait for extraction"] = each["extraction"]
    found["hand-over: unique keys"] = each["keyed"]
    found["prefetch of rows"] = each["announce"]
    found = {name: 1000 * seconds for name, seconds in found.items()}
    found["cores busy"] = each["cpu"] / each["time"]
    calls = max(each["helpers calls"], 1e-9)
    found["parallel calls"] = each["helpers calls"]
    for what in ("asked", "room", "came"):
        found[f"helpers {what} per call"] = each[f"helpers {what}"] / calls
    return found


def show_stages(found: Mapping[int, Mapping[str, float]]) -> None:
    """Print a line for each part and a column for each number of cores."""
    print("\nmilliseconds of a step by part, with the number of cores above; the last five lines are numbers")
    names = list(next(iter(found.values())))
    report.table(["", *map(str, found)], [[name, *(f"{one[name]:.3f}" for one in found.values())] for name in names])
