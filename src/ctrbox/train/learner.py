"""One model and its embedders: what happens to a batch, and nothing about where batches come from.

    look     unique keys of a batch, by embedder; rows announced (``prefetch``)
    learn    pull → pool → model → loss → backward → push, dense step
    score    pull (creating nothing) → pool → model → logits

The dense weights see the mean loss of the batch. The tables see the gradient of the summed loss: a key met once in a
batch moves as far in a batch of 100 rows as in one of 65,536.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from ctrbox.columns.batch import Batch, Schema
from ctrbox.embed.embedder import Embedder, Floats
from ctrbox.embed.lookup import Lookup
from ctrbox.embed.memory import MemoryTable
from ctrbox.embed.optimizers import Adagrad
from ctrbox.embed.pooling import pool, sequence
from ctrbox.errors import DataError, PlanError, TrainError, nearest
from ctrbox.models.inputs import Inputs, Pooled, Reads

LONGEST = 1024  # keys of a row that a sequence hands over, its last ones: one row of 200,000 would be 25 GB of padding
HUGE = 1e6  # no useful weight is so large; products of such ones are what makes a loss infinite


@dataclass(frozen=True)
class Source:
    """Fields that a model reads from one embedder."""

    embedder: Embedder
    fields: tuple[str, ...]  # pooled ones first, then sequences
    pooled: tuple[str, ...]
    pooling: tuple[str, ...]
    sequences: tuple[str, ...]


@dataclass(frozen=True)
class Looked:
    """A batch and its keys, ready to be learned or scored. ``number``: of the batch in its pass, from 0."""

    batch: Batch
    lookups: tuple[Lookup, ...]
    number: int = 0


def sources_of(reads: Reads, schema: Schema, embedder: Embedder | Mapping[str, Embedder] | None) -> list[Source]:
    """Which embedder serves which field: the one given, one by field name ("*": the rest), or memory tables by dim."""
    names = [*reads.fields, *reads.sequences]
    spaces = {f.name: f.space for f in schema.sparse}
    for name in names:
        if name not in spaces:
            raise PlanError(
                f"the model reads {name!r}, which this plan does not have{nearest(name, spaces)}; build it with the schema of "
                "this plan"
            )
    chosen: dict[str, Embedder] = {}
    if embedder is None:
        tables = {reads.dims[n]: MemoryTable(reads.dims[n], optimizer=Adagrad()) for n in names}
        chosen = {n: tables[reads.dims[n]] for n in names}
    elif isinstance(embedder, Mapping):
        for name in embedder:
            if name != "*" and name not in names:
                raise PlanError(f"an embedder is given for {name!r}, which the model does not read; it reads {names}")
        for name in names:
            found = embedder.get(name, embedder.get("*"))
            if found is None:
                raise PlanError(f"no embedder is given for {name!r}; add one, or {{'*': …}} for all other fields")
            chosen[name] = found
    else:
        chosen = dict.fromkeys(names, embedder)
    for one in chosen.values():
        if not isinstance(one, Embedder):
            raise PlanError(f"a table must be an embedder, such as cb.MemoryTable(dim=16), got {one!r}")
    owner: dict[str, str] = {}
    for name in names:
        first = owner.setdefault(spaces[name], name)
        if chosen[first] is not chosen[name]:
            raise PlanError(
                f"fields {first!r} and {name!r} share the keys of {spaces[name]!r}; give both the same embedder"
            )
    sources = []
    for one in {id(e): e for e in chosen.values()}.values():
        mine = [n for n in names if chosen[n] is one]
        rows = {reads.row(n) for n in mine}
        for n in mine:
            if reads.dims[n] != one.dim:
                raise PlanError(
                    f"the model reads {reads.dims[n]} floats of {n!r}, its table has dim={one.dim}; build the model with "
                    f"dim={one.dim} or the table with dim={reads.dims[n]}"
                )
        one.open(rows.pop())
        pooled = tuple(n for n in mine if n in reads.fields)
        sequences = tuple(n for n in mine if n in reads.sequences)
        how = tuple(reads.pooling[n] for n in pooled)
        sources.append(Source(one, (*pooled, *sequences), pooled, how, sequences))
    return sources


def reads_of(model: nn.Module) -> Reads:
    found = getattr(model, "reads", None)
    if not isinstance(found, Reads):
        raise PlanError(
            f"{type(model).__name__} does not say what it reads; set self.reads = cb.models.Reads(schema, dim=…) in its "
            "__init__"
        )
    return found


class Learner:
    """A model, its embedders and its dense optimizer. Only ``learn`` changes weights."""

    def __init__(
        self,
        model: nn.Module,
        schema: Schema,
        embedder: Embedder | Mapping[str, Embedder] | None,
        optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
        *,
        threads: int = 1,
        clip: float | None = None,
        keep: float = 1.0,
    ) -> None:
        self.model = model
        self.reads = reads_of(model)
        self.schema = schema
        self.sources = sources_of(self.reads, schema, embedder)
        weights = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = optimizer(weights) if optimizer is not None and weights else None
        self.rates = [g["lr"] for g in self.optimizer.param_groups] if self.optimizer else []
        self.threads = threads
        self.clip = clip
        self.begun = False
        self.shift = math.log(keep)  # of the logit, back to a log whose negatives were not thinned out

    @property
    def embedders(self) -> list[Embedder]:
        return [s.embedder for s in self.sources]

    # ---- ahead of learning
    def look(self, batch: Batch, number: int = 0, *, prefetch: bool = True) -> Looked:
        """The batch's unique keys; with ``prefetch`` their rows may be made now. Changes no weight."""
        if not np.isfinite(batch.dense).all():
            raise self._culprit(Looked(batch, (), number), (), math.nan)
        lookups = tuple(Lookup.of(batch, s.fields, self.threads) for s in self.sources)
        if prefetch:
            for source, lookup in zip(self.sources, lookups, strict=True):
                source.embedder.prefetch(lookup.keys)
        return Looked(batch, lookups, number)

    # ---- a step
    def learn(self, looked: Looked, factor: float = 1.0) -> float:
        """One step; returns the mean loss. ``factor``: of the learning rates."""
        batch = looked.batch
        if not self.begun:
            self.begun = True
            self._start_from_the_click_rate(batch)
        pulled = self._pull(looked, create=True)
        for rows in pulled:
            rows.requires_grad_()
        self.model.train()
        logits = self._logits(looked, pulled)
        loss = self._loss(logits, batch)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise self._culprit(looked, pulled, value)
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._push(looked, pulled, factor)
        if self.optimizer is not None:
            if self.clip is not None:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
                group["lr"] = rate * factor
            self.optimizer.step()
        return value

    def score(self, looked: Looked) -> Floats:
        """Logits (rows,) float32 with the shift of thinned negatives; creates no rows."""
        self.model.eval()
        with torch.inference_mode():
            logits = self._logits(looked, self._pull(looked, create=False)).numpy()
        bad = np.flatnonzero(~np.isfinite(logits))
        if len(bad):
            raise self._culprit(looked, self._pull(looked, create=False), float(logits[bad[0]]))
        return logits + np.float32(self.shift) if self.shift else logits

    def predict(self, batch: Batch) -> Floats:
        """Probabilities of a click, one a row."""
        logits = self.score(self.look(batch, prefetch=False))
        return (1.0 / (1.0 + np.exp(-logits.astype(np.float64)))).astype(np.float32)

    # ---- parts of a step
    def _start_from_the_click_rate(self, batch: Batch) -> None:
        """A model whose output bias is still 0 begins with the log odds of its first batch, not with one click in two."""
        bias = getattr(self.model, "bias", None)
        if batch.label is None or not isinstance(bias, nn.Parameter) or bias.shape != (1,) or bool(bias.detach().any()):
            return
        clicks = float(batch.label.sum())
        with torch.no_grad():
            bias.fill_(math.log((clicks + 0.5) / (batch.rows - clicks + 0.5)))

    def _pull(self, looked: Looked, create: bool) -> list[torch.Tensor]:
        return [
            torch.from_numpy(s.embedder.pull(lookup.keys, create=create))
            for s, lookup in zip(self.sources, looked.lookups, strict=True)
        ]

    def _logits(self, looked: Looked, pulled: Sequence[torch.Tensor]) -> torch.Tensor:
        logits: torch.Tensor = self.model(self.inputs(looked, pulled))
        name = type(self.model).__name__
        if not isinstance(logits, torch.Tensor) or not logits.is_floating_point():
            met = f"a tensor of {logits.dtype}" if isinstance(logits, torch.Tensor) else f"a {type(logits).__name__}"
            raise PlanError(f"{name} gave {met}; expected logits, a tensor of one float a row")
        if self.model.training and not logits.requires_grad:
            raise PlanError(
                f"the logits of {name} have no gradient: its forward detaches them, or reads nothing trainable"
            )
        if logits.shape != (looked.batch.rows,):
            raise PlanError(
                f"{name} gave logits of shape {tuple(logits.shape)}; expected one a row, ({looked.batch.rows},)"
            )
        return logits

    def inputs(self, looked: Looked, pulled: Sequence[torch.Tensor]) -> Inputs:
        pools, sequences = [], {}
        for source, lookup, rows in zip(self.sources, looked.lookups, pulled, strict=True):
            row = source.embedder.row
            if source.pooled:
                linear, vectors = pool(rows, lookup, row, source.pooling, self.threads, source.pooled)
                pools.append(Pooled(source.pooled, linear, vectors))
            for name in source.sequences:
                sequences[name] = sequence(rows, lookup, row, name, LONGEST)
        dense = torch.from_numpy(looked.batch.dense).clone()  # a model may change it in place, a batch never changes
        return Inputs(self.reads, looked.batch.rows, dense, tuple(pools), sequences)

    @staticmethod
    def _loss(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        label = torch.from_numpy(np.asarray(batch.label, np.float32))
        if batch.weight is None:
            return nn.functional.binary_cross_entropy_with_logits(logits, label)
        weight = torch.from_numpy(np.asarray(batch.weight, np.float32))
        each = nn.functional.binary_cross_entropy_with_logits(logits, label, reduction="none")
        return (each * weight).sum() / batch.rows

    def _push(self, looked: Looked, pulled: Sequence[torch.Tensor], factor: float) -> None:
        for source, lookup, rows in zip(self.sources, looked.lookups, pulled, strict=True):
            if rows.grad is None:
                continue
            gradients = rows.grad.numpy()
            gradients *= np.float32(looked.batch.rows)
            scale = getattr(source.embedder, "scale_lr", None)
            if scale is not None:
                scale(factor)
            try:
                source.embedder.push(lookup.keys, gradients)
            except DataError:
                raise self._culprit(looked, pulled, math.nan) from None

    # ---- when a number is none
    def _culprit(self, looked: Looked, pulled: Sequence[torch.Tensor], value: float) -> TrainError:
        """The first thing of the batch that is not a number, by name."""
        batch, where = looked.batch, f"batch {looked.number}"
        found = np.argwhere(~np.isfinite(batch.dense))
        if len(found):
            row, column = found[0]
            name = self.schema.dense_names[column]
            return TrainError(
                f"{where}: dense feature {name!r} is {batch.dense[row, column]} in row {row} of the batch; fill or clip it in "
                "the plan"
            )
        for array, what in ((batch.weight, "the sample weight"), (batch.label, "the label")):
            bad = np.flatnonzero(~np.isfinite(array if array is not None else 0.0))
            if len(bad) and array is not None:
                return TrainError(f"{where}: {what} is {array[bad[0]]} in row {bad[0]} of the batch")
        for what, tensors in (("value", pulled), ("gradient", [p.grad for p in pulled])):
            for source, lookup, rows in zip(self.sources, looked.lookups, tensors, strict=True):
                if rows is None or not len(lookup.keys):
                    continue
                largest = np.abs(rows.detach().numpy()).max(1)
                largest[np.isnan(largest)] = np.inf
                worst = int(largest.argmax())
                if largest[worst] > HUGE:
                    name, key = _field_of(lookup, source, worst), int(lookup.keys[worst])
                    return TrainError(
                        f"{where}: a {what} of key {key} of field {name!r} has grown to {largest[worst]:.3g}; lower the learning "
                        "rate of its table, or clip gradients"
                    )
        for parameter, weight in self.model.named_parameters():
            if not bool(torch.isfinite(weight).all()):
                return TrainError(
                    f"{where}: weight {parameter!r} of the model is not finite; lower the learning rate, or clip=1.0"
                )
        return TrainError(f"{where}: the loss is {value}; lower the learning rate, or clip=1.0")


def _field_of(lookup: Lookup, source: Source, place: int) -> str:
    """A field that refers to the unique key at ``place``."""
    at = int(np.flatnonzero(lookup.inverse == place)[0])
    return next(n for n, end in zip(source.fields, lookup.starts[1:], strict=True) if at < end)
