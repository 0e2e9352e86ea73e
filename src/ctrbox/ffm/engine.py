"""Defines ``DeepFFM``: logistic regression, a field-aware factorization machine and a small network over both, on the CPU.

    engine = cb.DeepFFM(plan.schema, k=4, bits=22, hidden=(24, 24))
    engine.learn(plan.batches(65_536))       # one epoch, one example at a time
    engine.predict(batch)
    engine.save("model.ffm"); cb.DeepFFM.load("model.ffm")

    engine = cb.DeepFFM(plan.schema, context=["user", "hour"])
    shared = engine.context(one_row)         # once per request
    engine.score(shared, candidates)         # the bits of predict over whole rows

docs/online/deep_ffm.md has the network, the layout of the weights and the files. Every processor computes the same bits
of the weights. They depend only on the settings and the examples and, if the model learns in blocks, also on where a
batch ends. The number of threads never changes them. The engine refuses fields that the model does not have, labels
other than 0 and 1, numbers that are not finite, examples without a label to learn from, and damaged files.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ctrbox import _native
from ctrbox.arguments.names import named_arguments, nearest
from ctrbox.arguments.numbers import counted, flag, whole
from ctrbox.columns.batch import Batch, Schema
from ctrbox.columns.key_kinds import joined, mismatch
from ctrbox.errors import BudgetError, DataError, PlanError, SourceError, TrainError
from ctrbox.ffm.examples_from_text_or_cache import ExampleCache, ExampleText, names
from ctrbox.ffm.progressive_validation import Progress
from ctrbox.files.atomic import written_aside
from ctrbox.files.interruptible_wait import result_of
from ctrbox.files.urls import local_path, refuse_url
from ctrbox.publish.weight_file import Weights, is_weights, map_weights, read_weights
from ctrbox.publish.weights_of_models import DEEP_FFM, ffm_of, ffm_weights

BATCH_ROWS = 65_536  # of a plan's batches
BLOCK = 2048  # examples that several threads learn at once
MOST_THREADS = 32  # that can learn one model at once: a block has so many slices


@dataclass(frozen=True)
class Rate:
    """The learning rate of one part: w -= rate · g / (initial + Σ g²)^power_t. power_t = 0 is plain gradient descent."""

    rate: float
    power_t: float = 0.5
    initial: float = 1.0

    def __post_init__(self) -> None:
        for name in ("rate", "power_t", "initial"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
                raise PlanError(f"{name} of a Rate must be a number, got {value!r}")


# benchmarks/defaults.py chose the layers and the rates by validation over several data sets (docs/training/defaults.md).
LR, FFM, NN = Rate(0.05), Rate(0.12), Rate(0.1, initial=0.01)
HIDDEN = (24, 24)


@named_arguments
class DeepFFM:
    """The Deep FFM, a click model that learns from a stream of examples.

    ``fields``    fields of the model: the schema of a plan (each dense column is a field with a value), a list of names, or
                  an `ExampleCache`
    ``context``   names of the fields that a request contains only once, for all its candidates; these fields are numbered
                  first
    ``k``         number of floats in a latent vector, 1 to 64; a feature has one latent vector for every field
    ``hidden``    number of neurons in each hidden layer of the network, 1 to 1,024; default: (24, 24); with (), there is no
                  network
    ``bits``      base-2 logarithm of the number of weights of lr and of ffm, 4 to 36; if there are more features than
                  weights, some features share their weights
    ``lr``, ``ffm``, ``nn``   learning rates of the three parts, as a number or a `Rate`; default: 0.05, 0.12 and 0.1. If
                              lr or ffm is None, the model does not have this part
    ``norm``      whether the inputs of the network pass through a layer norm
    ``residual``  whether the outputs of lr and ffm are added to the output of the network
    ``ffm_init``  range of the initial latent weights, 0 to 10: they are uniform within ± ffm_init / sqrt(k)
    """

    kind = DEEP_FFM

    def __init__(
        self,
        fields: Schema | Sequence[str] | ExampleCache,
        *,
        context: Sequence[str] = (),
        k: int = 4,
        hidden: Sequence[int] = HIDDEN,
        bits: int = 22,
        lr: Rate | float | None = LR,
        ffm: Rate | float | None = FFM,
        nn: Rate | float = NN,
        norm: bool = False,
        residual: bool = True,
        ffm_init: float = 0.1,
        seed: int = 0,
    ) -> None:
        context = checked_context(context)
        self.fields = context_first(field_names(fields), context)
        k, bits, seed = whole("k", k, 1, 64), whole("bits", bits, 4, 36), whole("seed", seed, 0, 2**64 - 1)
        if isinstance(hidden, int | str) or not isinstance(hidden, Iterable):
            raise PlanError(f"hidden= must be the numbers of neurons of the layers, such as (24, 24), got {hidden!r}")
        hidden = [whole("a layer of hidden", neurons, 1, 1024) for neurons in hidden]
        given = _native.FfmSettings()
        try:
            given.context = len(context)
            given.fields, given.k, given.bits, given.seed = len(self.fields), k, bits, seed
            given.hidden = list(hidden)
            given.norm, given.residual = flag("norm", norm), flag("residual", residual)
            given.ffm_init = float(ffm_init)
            given.lr, given.ffm = lr is not None, ffm is not None
            given.lr_rates, given.ffm_rates, given.nn_rates = (
                _rates(n, r, d) for n, r, d in (("lr", lr, LR), ("ffm", ffm, FFM), ("nn", nn, NN))
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise PlanError(f"a setting of DeepFFM is of the wrong type or out of range: {error}") from error
        if wrong := given.wrong():
            raise PlanError(f"DeepFFM: {wrong}")
        check_memory(given)
        self._native = _native.DeepFfm(given)
        self.key_kinds = kinds_of(
            fields, self.fields
        )  # what the keys of each field are hashes of, "" where it is not known
        self.learned = 0
        self.progress = Progress()

    # ---- learning and predicting ----

    def learn(
        self,
        source: Any,
        *,
        threads: int | None = 1,
        block: int | None = None,
        sparse_updates: bool = True,
        show: bool | Callable[[str], object] = False,
    ) -> Progress:
        """Learn from a batch, several batches, a plan, an `ExampleCache` or an `ExampleText`, in order. Each example is
        learned once.

        ``threads``  number of threads, 1 to 256, of which at most 32 are used; None: all cores that this process may use. For
                     a given ``block``, the number of threads does not change the weights
        ``block``    number of examples, 1 to 4,096, whose gradients are computed with the same weights. With 1, one thread
                     learns one example after the other. Default: 1 if ``threads`` is 1, otherwise 2,048. A block also ends
                     where a batch ends, and the first blocks of a model are smaller
        ``sparse_updates``  whether to skip computations that cannot change a weight; False gives the same weights, but is
                            slower
        ``show``     True prints a progress table to stderr; a function is called with each line of this table

        Returns ``progress``, which covers all calls of this method so far.
        """
        if block is None:
            block = 1 if threads == 1 else BLOCK
        threads = _threads(threads, 1 if whole("block", block, 1, 4096) == 1 else MOST_THREADS)
        self._can_learn()
        if show:
            self.progress.show = show if callable(show) else lambda line: print(line, file=sys.stderr)
        source = self._read_for(source)
        self._learns_from(source)
        counted: Future[None] | None = None
        with ThreadPoolExecutor(1) as aside:
            for examples in self._examples(source):
                if examples.unlabeled:
                    raise DataError(
                        f"{examples.unlabeled:,} of {examples.rows:,} examples have no label; give every example a label of "
                        "0 or 1"
                    )
                predictions, broken = self._native.learn(examples, threads, sparse_updates, block, self.learned)
                if broken >= 0:
                    raise TrainError(
                        f"the model's output for example {self.learned + broken:,} is not finite, because a value of a "
                        "feature or a learning rate is too large. The weights may be unusable, so load the model that was "
                        "saved last"
                    )
                self.learned += examples.rows
                if threads == 1:
                    self.progress.add(examples.labels, predictions, examples.weights)
                    continue
                # Meanwhile the next batch is learned: on sixteen cores these figures would take a fifth of the time.
                if counted:
                    result_of(counted)
                counted = aside.submit(self.progress.add, examples.labels, predictions, examples.weights)
            if counted:
                result_of(counted)
        if isinstance(source, ExampleText):
            source.complain()
        return self.progress

    def predict(self, source: Any, *, threads: int | None = 1) -> npt.NDArray[np.float32]:
        """Return click probabilities, in the order of the examples. The examples need no labels. A malformed line of an
        `ExampleText` has no probability; such lines are reported on stderr.

        ``threads``: number of threads, 1 to 256; None: all cores that this process may use. It does not change the result.
        """
        threads = _threads(threads, 256)
        found: list[npt.NDArray[np.float32]] = []
        before = 0
        source = self._read_for(source)
        for predictions, broken in self._predicted(self._examples(source), threads):
            if broken >= 0:
                raise DataError(
                    f"the model's output for example {before + broken:,} is not finite; check that no value of a feature is "
                    "too large"
                )
            before += len(predictions)
            found.append(predictions)
        if isinstance(source, ExampleText):
            source.complain()
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else np.zeros(0, np.float32)

    def _predicted(
        self, parts: Iterator[_native.Examples], threads: int
    ) -> Iterator[tuple[npt.NDArray[np.float32], int]]:
        """Yield the predictions of each part. Two parts are under way at once, so that no thread waits for the last
        examples of a part, nor for Python between two parts."""
        ahead = list(islice(parts, 2))
        if threads == 1 or len(ahead) < 2:
            for examples in chain(ahead, parts):
                yield self._native.predict(examples, threads)
            return
        under_way: deque[Future[tuple[npt.NDArray[np.float32], int]]] = deque()
        with ThreadPoolExecutor(2) as callers:  # the two callers are two of the threads
            for examples in chain(ahead, parts):
                if len(under_way) == 2:
                    yield result_of(under_way.popleft())
                under_way.append(callers.submit(self._native.predict, examples, threads - 1))
            while under_way:
                yield result_of(under_way.popleft())

    @property
    def context_fields(self) -> list[str]:
        """The fields that a request contains only once."""
        return self.fields[: self._native.settings.context]

    def context(self, source: Any) -> _native.FfmContext:
        """Compute what the candidates of one request share, from one row with the fields of the context.

        ``source`` is a batch or examples. The result is valid only for the present weights: do not use it after `learn`.
        """
        try:
            return self._native.context(self._part(source, self.context_fields))
        except ValueError as error:
            raise DataError(f"the context: {error}") from error

    def score(self, context: _native.FfmContext, candidates: Any) -> npt.NDArray[np.float32]:
        """Return the click probabilities of the candidates of one request. They must have all fields that are not in the context.

        The probabilities have the same bits as those of `predict` for complete rows.
        """
        if not isinstance(context, _native.FfmContext):
            raise PlanError(f"score needs the result of this model's `context` method, got {type(context).__name__}")
        return scored(
            lambda: self._native.score(context, self._part(candidates, self.fields[self._native.settings.context :]))
        )

    # ---- files ----

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write weights, accumulators and settings to one file. The file appears under its name only when it is complete."""
        self._can_learn()
        with written_aside(local_path(path, "a saved Deep FFM")) as aside:
            self._native.save(str(aside), self.fields, self.learned, list(self.key_kinds.values()))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, learns: bool = True) -> Self:
        """Load a model that ``save`` wrote. It predicts and continues to learn with the same bits as the saved model.

        ``path`` may also be a published weight file. Such a file has no optimizer state, so the accumulators start again from
        their initial value. With ``learns=False``, the model can only predict; it then has no accumulators, which halves its
        memory.
        """
        refuse_url(path, "a saved Deep FFM")
        try:
            parts = (
                ffm_of(read_weights(path), str(path), learns) if is_weights(path) else _native.DeepFfm.load(str(path))
            )
        except _native.DamagedFile as error:
            raise SourceError(
                f"cannot read {path}: {error}; check the path, or use another copy of the file"
            ) from error
        except OSError as error:
            raise SourceError(f"cannot read {path}: {error.strerror or error}") from error
        return cls._of(*parts)

    @classmethod
    def _mapped(cls, path: str | os.PathLike[str]) -> Self:
        """Load a file of `publish.shared` to predict with it; the memory of its weights is shared with others that map it."""
        try:
            parts = ffm_of(map_weights(path), str(path), False)
        except _native.DamagedFile as error:
            raise SourceError(
                f"cannot read {path}: {error}; check the path, or use another copy of the file"
            ) from error
        return cls._of(*parts)

    @classmethod
    def _of(cls, found: _native.DeepFfm, fields: list[str], learned: int, keys: list[str]) -> Self:
        self = cls.__new__(cls)
        self.fields, self.learned, self.progress = fields, learned, Progress()
        self._native, self.key_kinds = found, dict(zip(fields, keys, strict=True))
        return self

    def predict_batch(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Return the click probability of each row of a batch, as ``predict`` does."""
        return self.predict(batch)

    def check_schema(self, schema: Schema) -> None:
        """Raise a `PlanError` unless a plan with this schema makes all features from which the engine learned."""
        features = schema.key_kinds
        for name in self.fields:
            if name not in features:
                raise PlanError(f"the model's field {name!r} is not a feature of the plan{nearest(name, features)}")
        if told := mismatch(self.key_kinds, features):
            raise PlanError(f"{told}; its scores would be random. Train the model on this plan: engine.learn(plan)")

    def published(self) -> Weights:
        """Return the weights without accumulators, for `cb.publish`."""
        return ffm_weights(self._native, self.fields, self.learned, list(self.key_kinds.values()))

    @property
    def simd(self) -> str:
        """The instruction set that is used. The environment variable CTRBOX_SIMD chooses another one. All give the same bits."""
        return self._native.simd

    @property
    def bytes(self) -> int:
        """Memory of the weights and accumulators in bytes."""
        return self._native.bytes

    def __repr__(self) -> str:
        s = self._native.settings
        parts = [
            f"{s.fields} fields",
            "lr" * s.lr,
            f"ffm k={s.k}" * s.ffm,
            f"hidden={tuple(s.hidden)}" * bool(s.hidden),
        ]
        return f"DeepFFM({', '.join(p for p in parts if p)}, bits={s.bits}, learned={self.learned:,})"

    def _can_learn(self) -> None:
        if not self._native.learns:
            raise PlanError(
                "this model can only predict, because it was loaded with learns=False, which leaves out the state of the "
                "optimizer; to train or save it, load it again with cb.DeepFFM.load(path)"
            )

    # ---- from sources to examples of this model's fields ----

    def examples(self, batch: Batch) -> _native.Examples:
        """Convert a batch to the examples from which this model learns.

        Raises a `DataError` that names the row if a row cannot be converted.
        """
        return self._of_batch(batch)

    def _part(self, source: Any, fields: list[str]) -> _native.Examples:
        if isinstance(source, _native.Examples):
            return source
        if isinstance(source, Batch):
            return self._of_batch(source, fields)
        raise PlanError(f"score cannot read a {type(source).__name__}; expected a Batch or Examples")

    def _learns_from(self, source: Any) -> None:
        """Note what the keys of a source are hashes of."""
        if isinstance(source, ExampleCache | ExampleText):
            kinds = dict.fromkeys(self.fields, "text")
        else:
            schema = getattr(source, "schema", None)
            kinds = schema.key_kinds if isinstance(schema, Schema) else {}
        for name, kind in self.key_kinds.items():
            self.key_kinds[name] = joined(kind, kinds.get(name, ""))

    def _read_for(self, source: Any) -> Any:
        return source.over(self.fields) if isinstance(source, ExampleText) and source.fields != self.fields else source

    def _examples(self, source: Any) -> Iterator[_native.Examples]:
        if isinstance(source, _native.Examples):
            yield source
        elif isinstance(source, Batch):
            yield self._of_batch(source)
        elif isinstance(source, ExampleCache):
            for examples, known in source.blocks():
                yield self._renumbered(examples, known, str(source.path))
        elif isinstance(source, ExampleText):
            for examples in source:
                yield self._renumbered(examples, source.fields, source.name)
        elif hasattr(source, "batches"):
            for batch in source.batches(BATCH_ROWS):
                yield self._of_batch(batch)
        elif isinstance(source, Iterable) and not isinstance(source, str | bytes | dict):
            for part in source:
                yield from self._examples(part)
        else:
            raise PlanError(
                f"cannot learn from or predict {type(source).__name__}; expected a Batch, batches, a plan, an ExampleCache "
                "or ExampleText"
            )

    def _renumbered(self, examples: _native.Examples, known: list[str], where: str) -> _native.Examples:
        if known == self.fields[: len(known)]:
            return examples
        at = {name: n for n, name in enumerate(self.fields)}
        for name in known:
            if name not in at:
                raise DataError(
                    f"{where} has field {name!r}, which this model does not have{nearest(name, self.fields)}"
                )
        return examples.renumbered([at[name] for name in known])

    def _of_batch(self, batch: Batch, fields: list[str] | None = None) -> _native.Examples:
        batch = batch.cpu()
        fields = self.fields if fields is None else fields
        columns = {name: c for c, name in enumerate(batch.schema.dense_names)}
        for name in fields:
            if name not in batch.sparse and name not in columns:
                raise PlanError(f"field {name!r} is not in this batch{nearest(name, [*batch.sparse, *columns])}")
        keyed = [name for name in fields if name in batch.sparse]
        valued = [name for name in fields if name not in batch.sparse]
        chosen = [columns[name] for name in valued]
        dense = batch.dense if chosen == list(range(batch.dense.shape[1])) else batch.dense[:, chosen]
        try:
            examples = _native.Examples.from_batch(
                [(batch.sparse[name].values, batch.sparse[name].offsets) for name in keyed],
                np.ascontiguousarray(dense, np.float32),
                [_native.salt(name.encode()) for name in [*keyed, *valued]],
                _floats(batch.label),
                _floats(batch.weight),
                valued,
            )
        except ValueError as error:
            raise DataError(f"batch, {error}") from error
        order = [*keyed, *valued]
        return examples if order == self.fields else self._renumbered(examples, order, "the batch")


def field_names(fields: Schema | Sequence[str] | ExampleCache) -> list[str]:
    if isinstance(fields, Schema):
        if fields.tasks:
            raise PlanError(
                "Deep FFM predicts one label, but this plan has several (labels=); use one label=, or a model such as "
                "cb.models.MMoE"
            )
        return names([*(f.name for f in fields.sparse), *fields.dense_names])
    return names(fields.fields if isinstance(fields, ExampleCache) else fields)


def kinds_of(given: Schema | Sequence[str] | ExampleCache, fields: Sequence[str]) -> dict[str, str]:
    kinds = given.key_kinds if isinstance(given, Schema) else {}
    return {name: kinds.get(name, "") for name in fields}


def checked_context(given: Sequence[str]) -> list[str]:
    if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray):
        raise PlanError(f"context= must be a list of field names, got {given!r}")
    return names(list(given)) if len(given) else []


def context_first(fields: list[str], context: Sequence[str]) -> list[str]:
    if not context:
        return fields
    for name in names(context):
        if name not in fields:
            raise PlanError(f"context= names {name!r}, which is not a field{nearest(name, fields)}")
    return [*context, *(name for name in fields if name not in context)]


def memory_here() -> int:
    """Return the size of the main memory of this machine in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_memory(settings: _native.FfmSettings) -> None:
    needed = (8 * settings.lr + 8 * settings.ffm) << settings.bits
    memory = memory_here()
    if needed > memory:
        raise BudgetError(
            f"bits={settings.bits} needs {needed:,} bytes for weights and accumulators, but this machine has {memory:,} bytes; "
            f"try bits={settings.bits - ((needed - 1) // memory).bit_length()}"
        )


def _rates(name: str, given: Any, usual: Rate) -> _native.BlockRates:
    if isinstance(given, bool) or not isinstance(given, Rate | int | float | np.integer | np.floating | None):
        raise PlanError(f"{name}= must be a number, a cb.ffm.Rate or None, got {given!r}")
    rate = given if isinstance(given, Rate) else usual if given is None else replace(usual, rate=float(given))
    return _native.BlockRates(float(rate.rate), float(rate.power_t), float(rate.initial))


def _threads(given: int | None, most: int) -> int:
    """Return the number of threads to use; warn where not all of those asked for can help."""
    if given is not None and whole("threads", given, 1, 256) == 1:
        return 1
    cores = _native.usable_cores()
    if given is None:
        return min(cores, most)
    if given > min(cores, most):
        why = (
            f"this process may use {counted(cores, 'core')}"
            if cores <= most
            else f"at most {most} can work at once here"
        )
        warnings.warn(f"threads={given}: {why}; more threads would not be faster; the result is the same", stacklevel=3)
    return min(given, most)


def _floats(column: np.ndarray | None) -> npt.NDArray[np.float32]:
    return np.zeros(0, np.float32) if column is None else np.ascontiguousarray(column, np.float32)


def scored(score: Callable[[], tuple[npt.NDArray[np.float32], int]]) -> npt.NDArray[np.float32]:
    """Return the click probabilities that a native call computed. Raise a `DataError` if one of them is not finite."""
    try:
        found, broken = score()
    except ValueError as error:
        raise DataError(f"candidates: {error}") from error
    if broken >= 0:
        raise not_finite(broken)
    return found


def not_finite(candidate: int) -> DataError:
    return DataError(f"the model's output for candidate {candidate:,} is not finite; check that no value is too large")
