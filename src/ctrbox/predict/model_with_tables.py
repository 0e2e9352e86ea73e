"""Predicts a batch with a model and its embedders; where the batch comes from does not matter here.

    keyed     finds the unique keys of the batch for each embedder
    announce  tells the embedders which rows will be pulled (``prefetch``); ``look`` calls both
    score     pull (without creating rows) → pool → model → logits → calibration

`Learner` of ctrbox.train extends this class to learn. With a GPU, ``announce`` sends the batch to it, and the tables on the GPU
find the unique keys themselves.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from ctrbox import _native
from ctrbox.columns.batch import Batch, Schema, as_array
from ctrbox.columns.label_task import predictions_of
from ctrbox.embed.common_features import check_common, shared
from ctrbox.embed.embedder import Embedder, Floats, Keys, NextUse
from ctrbox.embed.gpu.batch_to_device import Carried, Carrier, References, beside
from ctrbox.embed.gpu.pooling import Reading
from ctrbox.embed.pooling import pool, sequence
from ctrbox.embed.unique_keys import Lookup
from ctrbox.errors import DataError, DeviceError, PlanError
from ctrbox.evaluate.calibration_maps import Calibration
from ctrbox.evaluate.calibration_of_several_labels import TaskCalibration
from ctrbox.models.dense_columns import DenseInput, checked_logs
from ctrbox.models.inputs import Inputs, Pooled
from ctrbox.models.loss_of_several_labels import stacked
from ctrbox.predict.nan_in_batch import culprit
from ctrbox.predict.native_forward import native_network_of
from ctrbox.predict.refuse_several_labels import check_tasks
from ctrbox.predict.tables_of_fields import CPU, Embedders, Source, reads_of, sources_of

LONGEST = 1024  # keys of a row that a sequence hands over, its last ones: one row of 200,000 would be 25 GB of padding
Into: TypeAlias = tuple[torch.Tensor, torch.Tensor | None]  # memory for pooled vectors and first-order weights


@dataclass(frozen=True)
class Looked:
    """A batch and its keys, ready to be learned or scored. ``number``: number of the batch in its epoch, from 0."""

    batch: Batch
    lookups: tuple[Lookup | References, ...]  # a table on a GPU makes keys unique itself
    number: int = 0
    carried: Carried | None = None  # what is on the model's device, where that is not the batch itself
    logs: torch.Tensor | None = None  # of the dense columns, where the model takes them
    first: torch.Tensor | None = (
        None  # of each row the one that has the keys of its common fields, where they are shared
    )
    index: _native.NetworkIndex | None = None  # for the native step, which has it built while the step before runs


# Rows of a source: a tensor (unique, width) that was pulled, or what a GPU table pooled.
Pulled: TypeAlias = torch.Tensor | Reading


class ClickModel:
    """A model and its embedders. A prediction changes neither of them."""

    def __init__(
        self,
        model: nn.Module,
        schema: Schema,
        embedder: Embedders | None,
        *,
        threads: int = 1,
        device: torch.device = CPU,
        bf16: bool = False,
        common: Sequence[str] = (),
    ) -> None:
        """``common``: see `Trainer`."""
        self.model = model.to(device) if device.type == "cuda" else model
        self.reads = reads_of(model)
        self.schema, self.tasks = schema, schema.tasks
        self.scaled = [part for part in model.modules() if isinstance(part, DenseInput)]
        self.takes_logs = bool(self.scaled)
        self.device, self.bf16, self.threads = device, bf16, threads
        self.sources = sources_of(self.reads, schema, embedder, device)
        self.carrier = Carrier(device) if device.type == "cuda" or any(s.fused for s in self.sources) else None
        self.noticed: Callable[[Source, Lookup, torch.Tensor], None] | None = None  # told of rows that predictions read
        read = {f.name: f.ragged for f in schema.sparse if f.name in self.reads.dims}
        self.common = check_common(read, common, schema.group)
        if self.common and self.carrier is not None:
            raise PlanError("common= works only on the CPU; remove common=, or train with device='cpu'")
        # A key that rows share is looked up once, so a table would count one show of it.
        counted = [name for s in self.sources if s.traits.shows for name in s.fields if name in self.common]
        if counted:
            raise PlanError(
                f"common= works only for fields whose tables have no counters, but {counted[0]!r} is in a table with counters; "
                "remove it from common="
            )
        if self.tasks:
            check_tasks(model, self.carrier is not None, any(s.traits.shows for s in self.sources))
        # There is a native step for the usual models on a CPU; torch computes other models, and a GPU.
        plain = device.type == "cpu" and not bf16 and not self.common
        self.native = native_network_of(model, self.reads, self.sources) if plain else None
        self.shift = 0.0  # added to every logit
        self.calibration: Calibration | TaskCalibration | None = None  # applied to the shifted logits

    @property
    def embedders(self) -> list[Embedder]:
        return [s.embedder for s in self.sources]

    # ---- ahead of learning
    def look(self, batch: Batch, number: int = 0, *, prefetch: bool = True, next_use: Sequence[NextUse] = ()) -> Looked:
        """Return the batch with its unique keys, after the embedders were told which rows will be pulled."""
        return self.announce(self.keyed(batch, number), prefetch=prefetch, next_use=next_use)

    def keyed(self, batch: Batch, number: int = 0, *, learns: bool = False) -> Looked:
        """Return the batch with its unique keys, which are found without any table, also while rows of another batch are read.

        ``learns``: whether to compute also what the native training step needs of the batch.
        """
        dense: Any = batch.dense
        if batch.on_device and (self.carrier is None or dense.device != self.device):
            batch = batch.cpu()
        # A tenth of a small model's step, and nobody waits for it here.
        logs = None
        if self.takes_logs and self.carrier is None:
            found, finite = checked_logs(np.ascontiguousarray(batch.dense), self.threads)
            logs = torch.from_numpy(found)
        else:
            finite = batch.on_device or bool(np.isfinite(batch.dense).all())
        if not finite:
            raise culprit(self, Looked(batch, (), number), (), math.nan)
        known = batch if all(s.fused for s in self.sources) else batch.cpu()
        first = None
        if self.common and batch.group is not None:
            known, where = shared(known, self.common)
            first = torch.from_numpy(where)
        lookups = tuple(Lookup.of(known, s.fields, self.threads) for s in self.sources if not s.fused)
        index = None
        if learns and self.native is not None:
            index = self.native.index(lookups[0], self.threads)
        return Looked(batch, lookups, number, logs=logs, first=first, index=index)

    def announce(self, looked: Looked, *, prefetch: bool = True, next_use: Sequence[NextUse] = ()) -> Looked:
        """Return what ``keyed`` returned, ready to be learned. With ``prefetch``, tables may create rows now. Changes no weight.

        ``next_use``: for each table that uses it (trait ``look_ahead``), after how many batches its keys are used again.
        """
        foretold = iter(next_use)
        for source, lookup in zip([s for s in self.sources if not s.fused], looked.lookups, strict=True):
            assert isinstance(lookup, Lookup)
            if prefetch and next_use and source.traits.look_ahead:
                source.embedder.prefetch(lookup.keys, next_use=next(foretold))
            elif prefetch:
                source.embedder.prefetch(lookup.keys)
        if self.carrier is None:
            return looked
        fused = [s for s in self.sources if s.fused]
        carried, there = self.carrier.carry(looked.batch, [(s.fields, s.sequences) for s in fused])
        if prefetch:
            for source, references in zip(fused, there, strict=True):
                source.full.expect(references, carried.ready)
        here, sent = iter(looked.lookups), iter(there)
        return Looked(
            looked.batch, tuple(next(sent if s.fused else here) for s in self.sources), looked.number, carried
        )

    # ---- predictions
    def score(self, looked: Looked) -> Floats:
        """Return calibrated logits (rows,) float32 or, for several labels, calibrated outputs (rows, tasks); creates no rows."""
        return self.calibrated(self.uncalibrated(looked), looked.batch)

    def calibrated(self, logits: Floats, batch: Batch) -> Floats:
        """Return what the calibration, if there is one, makes of the uncalibrated logits of a batch."""
        calibration = self.calibration
        if calibration is None:
            return logits
        return calibration.apply(logits, None if calibration.by is None else slice_keys(batch, calibration.by))

    def uncalibrated(self, looked: Looked) -> Floats:
        """Return logits (rows,) float32 with the shift for downsampled negatives and weights; creates no rows."""
        self.model.eval()
        with torch.inference_mode(), self._fitting(looked):
            pulled = self._pull(looked, train=False)
            if self.native is not None and self.native.usable:
                (lookup,) = looked.lookups
                assert isinstance(lookup, Lookup)
                assert isinstance(pulled[0], torch.Tensor)
                assert looked.logs is not None
                logits = self.native.score(lookup, pulled[0].numpy(), looked.logs, self.threads)
            else:
                logits = self._logits(looked, pulled).cpu().numpy()
        bad = ~np.isfinite(logits)
        if bad.any():
            raise culprit(self, looked, self._pull(looked, train=False), float(logits[bad][0]))
        return logits + np.float32(self.shift) if self.shift else logits

    def answers(self, batch: Batch, of: Callable[[Inputs], torch.Tensor]) -> Floats:
        """Return what ``of`` computes from the inputs of the model for a batch, such as vectors of a tower; creates no rows."""
        looked = self.look(batch, prefetch=False)
        self.model.eval()
        with torch.inference_mode(), self._fitting(looked):
            found: Floats = of(self.inputs(looked, self._pull(looked, train=False))).cpu().numpy()
        return found

    def predict(self, batch: Batch) -> Floats:
        """Return the probability of a click for each row or, for several labels, the predictions (rows, tasks)."""
        return self.predictions(batch).astype(np.float32)

    def predictions(self, batch: Batch) -> np.ndarray:
        """Return the same as `predict` in float64, before it is rounded."""
        logits = self.score(self.look(batch, prefetch=False))
        if self.tasks:
            return predictions_of(logits, self.tasks)
        return 1.0 / (1.0 + np.exp(-logits.astype(np.float64)))

    # ---- parts of a step
    @contextlib.contextmanager
    def _fitting(self, looked: Looked) -> Iterator[None]:
        try:
            yield
        except torch.cuda.OutOfMemoryError as error:
            raise DeviceError(
                f"batch {looked.number} of {looked.batch.rows:,} rows does not fit into the free memory of {self.device}: "
                f"{str(error).splitlines()[0]}; use a smaller batch_size=, or a smaller memory= for the tables"
            ) from None

    def _pull(self, looked: Looked, train: bool) -> list[Pulled]:
        """Return the rows of every source. With ``train``, they require gradients, and rows are created for new keys."""
        if looked.carried is not None:
            looked.carried.arrive([r for r in looked.lookups if isinstance(r, References)])
        pulled: list[Pulled] = []
        for k, (s, lookup) in enumerate(zip(self.sources, looked.lookups, strict=True)):
            if isinstance(lookup, References):
                how = (s.pooled, s.pooling, s.sequences)
                into = self._recorded(looked, k) if train else None
                half = self.bf16 and self.reads.bf16
                pulled.append(s.full.read(lookup, *how, longest=LONGEST, train=train, into=into, bf16=half))
            else:
                rows = torch.from_numpy(s.embedder.pull(lookup.keys, create=train)).to(self.device)
                if self.noticed is not None and not train:
                    self.noticed(s, lookup, rows)
                pulled.append(rows.requires_grad_() if train else rows)
        return pulled

    def _recorded(self, looked: Looked, source: int) -> Into | None:
        """Return the memory from which a recorded step reads the rows of a source, or None if there is no such step."""
        return None

    def _logits(self, looked: Looked, pulled: Sequence[Pulled]) -> torch.Tensor:
        return self._answer(self.inputs(looked, pulled), looked.batch.rows)

    def _answer(self, inputs: Inputs, rows: int) -> torch.Tensor:
        """Run the model, check its logits and return them; for several labels, return its outputs (rows, tasks)."""
        if self.bf16:
            with torch.autocast(self.device.type, torch.bfloat16):
                logits = self.model(inputs)
        else:
            logits = self.model(inputs)
        name = type(self.model).__name__
        if self.tasks:
            logits = stacked(logits, self.tasks, rows, name)
        if not isinstance(logits, torch.Tensor) or not logits.is_floating_point():
            met = f"a tensor of {logits.dtype}" if isinstance(logits, torch.Tensor) else f"a {type(logits).__name__}"
            raise PlanError(f"{name} returned {met}; expected logits, a tensor with one float per row")
        if self.model.training and not logits.requires_grad:
            raise PlanError(
                f"the logits of {name} have no gradient: its forward detaches them from the graph, or uses no weights that "
                "can be trained"
            )
        if logits.shape != (rows,) and not self.tasks:
            raise PlanError(f"{name} returned logits of shape {tuple(logits.shape)}; expected one per row, ({rows},)")
        return logits.float() if self.bf16 else logits

    def inputs(self, looked: Looked, pulled: Sequence[Pulled]) -> Inputs:
        pools, sequences = [], {}
        for source, lookup, rows in zip(self.sources, looked.lookups, pulled, strict=True):
            row = source.embedder.row
            if isinstance(rows, Reading):
                if source.pooled:
                    pools.append(Pooled(source.pooled, rows.weights, rows.vectors))
                sequences.update(rows.sequences)
                continue
            assert isinstance(lookup, Lookup)
            how = dict(zip(source.pooled, source.pooling, strict=True))
            ours = self.common if looked.first is not None else ()
            for names, first in _parted(source.pooled, ours, looked.first):
                linear, vectors = pool(rows, lookup, row, [how[n] for n in names], self.threads, names)
                if first is not None:
                    linear = None if linear is None else linear.index_select(0, first)
                    vectors = vectors.index_select(0, first)
                pools.append(Pooled(names, linear, vectors))
            for name in source.sequences:
                items, lengths = sequence(rows, lookup, row, name, LONGEST)
                if name in ours:
                    assert looked.first is not None
                    items, lengths = items.index_select(0, looked.first), lengths.index_select(0, looked.first)
                sequences[name] = items, lengths
        # A model may change it in place, a batch never changes.
        dense = torch.from_numpy(looked.batch.dense).clone() if looked.carried is None else looked.carried.dense
        return Inputs(self.reads, looked.batch.rows, dense, tuple(pools), sequences, looked.logs)


def slice_keys(batch: Batch, field: str) -> Keys:
    """Return the key of each row in a field of exactly one key per row."""
    with beside(batch):
        keys = as_array(batch.sparse[field].values)
    if len(keys) != batch.rows:
        raise DataError(
            f"field {field!r}, by which the calibration is fitted, has {len(keys):,} keys in {batch.rows:,} rows; expected "
            "exactly one key per row"
        )
    return keys


def _parted(
    fields: tuple[str, ...], common: Sequence[str], first: torch.Tensor | None
) -> list[tuple[tuple[str, ...], torch.Tensor | None]]:
    """Return the pooled fields in up to two parts: fields of each row's own with None, and common fields with ``first``."""
    own = tuple(n for n in fields if n not in common)
    parts: list[tuple[tuple[str, ...], torch.Tensor | None]] = [(own, None)]
    parts.append((tuple(n for n in fields if n in common), first))
    return [part for part in parts if part[0]]
