"""Learns from one batch: one model and its embedders, wherever the batches come from.

    keyed    unique keys of a batch, by embedder
    announce their rows told to the embedders (``prefetch``); look: both
    learn    pull → pool → model → loss → backward → push, dense step
    score    pull (creating nothing) → pool → model → logits

The dense weights, and the sub-model of a Model Server, see the mean loss of the batch. The tables see the gradient of the summed
loss: a key met once in a batch moves as far in a batch of 100 rows as in one of 65,536.

On a GPU ``announce`` sends the batch, and ``keyed`` leaves unique keys to the tables there. A step is launched, not waited
for: its loss, and a gradient that is not finite, are heard of a step or two later, or by ``settle``, which comes before every
checkpoint and evaluation. The dense part of batches of the usual size is one recorded graph (graphed.py).
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from ctrbox import _native
from ctrbox.columns.batch import Batch, Schema
from ctrbox.embed.embedder import Embedder, Floats, Keys
from ctrbox.embed.gpu.batch import Carried, Carrier, References, Told
from ctrbox.embed.gpu.pooling import Reading
from ctrbox.embed.gpu.table import GpuTable
from ctrbox.embed.lookup import Lookup
from ctrbox.embed.pooling import pool, sequence
from ctrbox.embed.shared_keys import check_common, shared
from ctrbox.embed.ssd.table import SparseTable
from ctrbox.embed.table import Table
from ctrbox.errors import DataError, DeviceError, PlanError, TrainError
from ctrbox.models.dense import DenseInput, checked_logs
from ctrbox.models.inputs import Inputs, Pooled
from ctrbox.train.adam_step import AdamStep
from ctrbox.train.graphed import Fed, Graphed
from ctrbox.train.look_ahead import NextUse
from ctrbox.train.loss import check_counting, loss_of
from ctrbox.train.not_finite import culprit
from ctrbox.train.sources import CPU, Embedders, Source, reads_of, sources_of
from ctrbox.train.together import ALONE, Together
from ctrbox.train.tower_step import TowerStep, tower_step_of

LONGEST = 1024  # keys of a row that a sequence hands over, its last ones: one row of 200,000 would be 25 GB of padding
AHEAD = 2  # steps launched on a GPU before the loss of the first is waited for: the host is never what it waits for
NO_KEYS = np.empty(0, np.int64)


@dataclass(frozen=True)
class Looked:
    """A batch and its keys, ready to be learned or scored. ``number``: of the batch in its pass, from 0."""

    batch: Batch
    lookups: tuple[Lookup | References, ...]  # a table on a GPU makes keys unique itself
    number: int = 0
    carried: Carried | None = None  # what is on the model's device, where that is not the batch itself
    logs: torch.Tensor | None = None  # of the dense columns, where the model takes them
    first: torch.Tensor | None = (
        None  # of each row the one that has the keys of its common fields, where they are shared
    )
    index: _native.TowerIndex | None = None  # for the native step, which has it built while the step before runs


# Rows of a source: a tensor (unique, width) that was pulled, or what a GPU table pooled.
Pulled: TypeAlias = torch.Tensor | Reading


class Learner:
    """A model, its embedders and its dense optimizer. Only ``learn`` changes weights."""

    def __init__(
        self,
        model: nn.Module,
        schema: Schema,
        embedder: Embedders | None,
        optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
        *,
        threads: int = 1,
        clip: float | None = None,
        keep: float = 1.0,
        device: torch.device = CPU,
        bf16: bool = False,
        rows: int | None = None,
        adaptive_l2: float = 0.0,
        common: Sequence[str] = (),
        together: Together = ALONE,
    ) -> None:
        """``rows``: of the usual batch. ``adaptive_l2``: see `Settings`. ``common``: see `Trainer`. ``together``: the workers of
        which this is one."""
        self.together = together
        self.model = model.to(device) if device.type == "cuda" else model
        self.reads = reads_of(model)
        self.schema = schema
        self.scaled = [part for part in model.modules() if isinstance(part, DenseInput)]
        self.takes_logs = bool(self.scaled)
        if together.of > 1:
            for part in self.scaled:
                part.sums = together.sums
        self.device, self.bf16 = device, bf16
        self.sources = sources_of(self.reads, schema, embedder, device)
        self.carrier = Carrier(device) if device.type == "cuda" or any(s.fused for s in self.sources) else None
        self.unsettled: Looked | None = None  # the batch of the last step, whose gradients were not heard of yet
        self.untold: deque[tuple[Looked, Sequence[Pulled], Told]] = deque()  # the last steps, whose losses were not
        # Batches with downsampled negatives differ in size: no shape is usual.
        self.usual = rows if device.type == "cuda" and keep >= 1.0 else None
        self.graphed: Graphed | None = None
        self.last: float | None = None  # loss heard of
        weights = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = optimizer(weights) if optimizer is not None and weights else None
        self.rates = [g["lr"] for g in self.optimizer.param_groups] if self.optimizer else []
        self.threads = threads
        self.clip = clip
        self.begun = False
        self.noticed: Callable[[Source, Lookup, torch.Tensor], None] | None = None  # told of rows that predictions read
        self.random_states: dict[str, torch.Tensor] = {}  # of torch, at the end of the training; empty before
        self.adaptive_l2 = adaptive_l2
        if adaptive_l2:
            check_counting(self.embedders)
        read = {f.name: f.ragged for f in schema.sparse if f.name in self.reads.dims}
        self.common = check_common(read, common, schema.group)
        if self.common and (self.carrier is not None or any(getattr(e, "takes_shows", False) for e in self.embedders)):
            raise PlanError("common= works only on the CPU and with tables without counters; remove common=")
        # There is a native step for the usual models on a CPU; torch computes other models, cluster workers and a GPU.
        plain = device.type == "cpu" and together.of == 1 and not bf16 and not self.common
        self.tower = tower_step_of(model, self.reads, self.sources) if plain else None
        self.adam = AdamStep(self.optimizer) if type(self.optimizer) is torch.optim.Adam else None
        self.shift = math.log(keep)  # of the logit, back to a log whose negatives were not downsampled

    @property
    def embedders(self) -> list[Embedder]:
        return [s.embedder for s in self.sources]

    # ---- ahead of learning
    def look(self, batch: Batch, number: int = 0, *, prefetch: bool = True, next_use: Sequence[NextUse] = ()) -> Looked:
        """The batch's unique keys, and their rows announced."""
        return self.announce(self.keyed(batch, number), prefetch=prefetch, next_use=next_use)

    def keyed(self, batch: Batch, number: int = 0, *, learns: bool = False) -> Looked:
        """The batch's unique keys; asks no table, so that the next batch's may be found while this one's rows are read.

        ``learns``: also what the native step needs of a batch that it is going to learn.
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
        if learns and self.tower is not None:
            index = self.tower.index(lookups[0], self.threads)
        return Looked(batch, lookups, number, logs=logs, first=first, index=index)

    def announce(self, looked: Looked, *, prefetch: bool = True, next_use: Sequence[NextUse] = ()) -> Looked:
        """What ``keyed`` gave, ready to be learned; with ``prefetch`` rows of its keys may be made now. Changes no weight.

        ``next_use``: for each table that ``keys`` tells of, in how many batches its keys are asked for again.
        """
        foretold = iter(next_use)
        for source, lookup in zip([s for s in self.sources if not s.fused], looked.lookups, strict=True):
            assert isinstance(lookup, Lookup)
            if prefetch and next_use and isinstance(source.embedder, SparseTable):
                source.embedder.prefetch(lookup.keys, next_use=next(foretold))
            elif prefetch:
                source.embedder.prefetch(lookup.keys)
        if self.carrier is None:
            return looked
        fused = [s for s in self.sources if s.fused]
        carried, there = self.carrier.carry(looked.batch, [(s.fields, s.sequences) for s in fused])
        if prefetch:
            for table, references in zip([s.embedder for s in fused], there, strict=True):
                assert isinstance(table, GpuTable)
                table.expect(references, carried.ready)
        here, sent = iter(looked.lookups), iter(there)
        return Looked(
            looked.batch, tuple(next(sent if s.fused else here) for s in self.sources), looked.number, carried
        )

    def keys(self, batch: Batch) -> list[Keys]:
        """The batch's unique keys, by table that lies on disk, as ``look`` will find them."""
        known = batch.cpu()
        if self.common and known.group is not None:
            known, _ = shared(known, self.common)
        return [
            Lookup.of(known, s.fields, self.threads).keys for s in self.sources if isinstance(s.embedder, SparseTable)
        ]

    # ---- a step
    def learn(self, looked: Looked, factor: float = 1.0) -> float:
        """One step; returns the mean loss, on a GPU that of a step or two before. ``factor``: of the learning rates."""
        with self._fitting(looked):
            return self._learn(looked, factor)

    def learn_part(
        self, looked: Looked | None, factor: float, beside: Sequence[float]
    ) -> tuple[int, float, list[float]]:
        """One step of several workers, each with a part of the batch, which may be without rows. Returns the rows of all,
        their mean loss and the sums of ``beside``; where nobody has rows nothing changes."""
        batch = None if looked is None else looked.batch
        if not self.begun:
            self.begun = True
            self._start_from_the_click_rate(batch)
        self.model.train()
        self.model.zero_grad(set_to_none=True)
        pulled: list[Pulled] = []
        mine, value = (0, 0.0) if batch is None else (batch.rows, 0.0)
        if looked is None:
            for source in self.sources:
                source.embedder.pull(NO_KEYS)
            for part in self.scaled:
                part.learn_none()
        else:
            pulled = self._pull(looked, train=True)
            loss = self._loss(self._logits(looked, pulled), looked)
            value = float(loss.detach())
            self._refuse(looked, pulled, value)
            loss.backward()
        rows, summed, *told = self.together.sums([mine, value * mine, *beside])
        if not rows:
            return 0, 0.0, told
        if looked is None:
            for source in self.sources:
                source.embedder.push(NO_KEYS, np.empty((0, source.embedder.row.width), np.float32))
        else:
            for one in pulled:
                assert isinstance(one, torch.Tensor)
                if one.grad is None:  # the others wait for this push
                    one.grad = torch.zeros_like(one)
            self._push(looked, pulled, factor, mine / rows)
        self.together.add_up([p for p in self.model.parameters() if p.requires_grad], mine / rows)
        self._step_dense(factor)
        return int(rows), summed / rows, told

    def _learn(self, looked: Looked, factor: float) -> float:
        if not self.begun:
            self.begun = True
            self._start_from_the_click_rate(looked.batch)
        if self.tower is not None and self.tower.usable:
            return self._learn_natively(self.tower, looked, factor)
        before = self._hear_loss(AHEAD)
        pulled = self._pull(looked, train=True)
        self.model.train()
        fed = self._fed(looked, pulled)
        if fed is not None:
            told = Told(self._replayed(fed, pulled))
        else:
            loss = self._loss(self._logits(looked, pulled), looked)
            told = Told(loss)
            if told.known:
                self._refuse(looked, pulled, told.value())
            self.model.zero_grad(set_to_none=True)
            loss.backward()
        if not told.known:
            self.untold.append((looked, pulled, told))
            if self.last is None:
                before = self._hear_loss(0)
        self._heard()
        self._push(looked, pulled, factor)
        self._step_dense(factor)
        if told.known:
            return told.value()
        self.last = self.last if before is None else before
        assert self.last is not None
        return self.last

    def _learn_natively(self, tower: TowerStep, looked: Looked, factor: float) -> float:
        """One step of a usual model: the same as ``_learn``, computed by native threads in slices of the batch."""
        if not self.model.training:
            self.model.train()
        batch, (lookup,) = looked.batch, looked.lookups
        assert isinstance(lookup, Lookup)
        assert looked.logs is not None
        rows = self.sources[0].embedder.pull(lookup.keys, create=True)
        label = np.ascontiguousarray(batch.label, np.float32)
        weight = None if batch.weight is None else np.ascontiguousarray(batch.weight, np.float32)
        loss, gradient = tower.learn(lookup, looked.index, rows, looked.logs, label, weight, self.threads)
        pulled = torch.from_numpy(rows)
        self._refuse(looked, [pulled], loss)
        pulled.grad = torch.from_numpy(gradient)
        self._push(looked, [pulled], factor)
        self._step_dense(factor, native=True)
        return loss

    def _step_dense(self, factor: float, native: bool = False) -> None:
        if self.optimizer is None:
            return
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        if native and self.adam is not None and self.adam.usable:
            self.adam.step(self.threads)
        else:
            self.optimizer.step()

    # ---- the dense part, recorded
    def _fed(self, looked: Looked, pulled: Sequence[Pulled]) -> Fed | None:
        """What a recorded step is given; None where this one has to run as it is written."""
        carried = looked.carried
        if looked.batch.rows != self.usual or carried is None or carried.label is None:
            return None
        read = [r for r in pulled if isinstance(r, Reading) and not r.names]
        if len(read) < len(pulled):
            return None
        dense, label, weight = carried.dense, carried.label, carried.weight
        fed = Fed(tuple(r.vectors for r in read), tuple(r.weights for r in read), dense, label, weight)
        if self.graphed is None:
            try:
                self.graphed = Graphed(self.model, self._step_of, fed)
            except RuntimeError as error:
                if isinstance(error, torch.cuda.OutOfMemoryError):
                    raise
                self.usual = None  # a model that asks the host something on its way
                return None
        assert self.graphed.shapes == fed.shapes, "batches of one number of rows have one shape"
        return fed

    def _step_of(self, fed: Fed) -> torch.Tensor:
        pools = tuple(
            Pooled(s.pooled, w, v) for s, w, v in zip(self.sources, fed.weights, fed.vectors, strict=True) if s.pooled
        )
        rows = len(fed.label)
        logits = self._answer(Inputs(self.reads, rows, fed.dense, pools, {}), rows)
        return loss_of(logits, fed.label, fed.weight)

    def _replayed(self, fed: Fed, pulled: Sequence[Pulled]) -> torch.Tensor:
        assert self.graphed is not None
        loss = self.graphed.run(fed)
        for reading, v, w in zip(pulled, self.graphed.fed.vectors, self.graphed.fed.weights, strict=True):
            assert isinstance(reading, Reading)
            reading.inbox.append((v.grad,) if w is None else (w.grad, v.grad))
        return loss

    def _hear_loss(self, ahead: int) -> float | None:
        """The loss of the last step that is not among the ``ahead`` newest, where it was still out."""
        value = None
        while len(self.untold) > ahead:
            looked, pulled, told = self.untold.popleft()
            value = told.value()
            self._refuse(looked, pulled, value)
        return value

    def settle(self) -> None:
        """Wait for the last step; refuse what it could not do."""
        self._hear_loss(0)
        for embedder in self.embedders:
            if isinstance(embedder, GpuTable):
                embedder.wait()
        self._heard()

    def score(self, looked: Looked) -> Floats:
        """Return logits (rows,) float32 with the shift for downsampled negatives; creates no rows."""
        self.model.eval()
        with torch.inference_mode(), self._fitting(looked):
            pulled = self._pull(looked, train=False)
            if self.tower is not None and self.tower.usable:
                (lookup,) = looked.lookups
                assert isinstance(lookup, Lookup)
                assert isinstance(pulled[0], torch.Tensor)
                assert looked.logs is not None
                logits = self.tower.score(lookup, pulled[0].numpy(), looked.logs, self.threads)
            else:
                logits = self._logits(looked, pulled).cpu().numpy()
        bad = np.flatnonzero(~np.isfinite(logits))
        if len(bad):
            raise culprit(self, looked, self._pull(looked, train=False), float(logits[bad[0]]))
        return logits + np.float32(self.shift) if self.shift else logits

    def answers(self, batch: Batch, of: Callable[[Inputs], torch.Tensor]) -> Floats:
        """What ``of`` makes of a batch as the model sees it, such as the vectors of a tower; creates no rows."""
        looked = self.look(batch, prefetch=False)
        self.model.eval()
        with torch.inference_mode(), self._fitting(looked):
            found: Floats = of(self.inputs(looked, self._pull(looked, train=False))).cpu().numpy()
        return found

    def predict(self, batch: Batch) -> Floats:
        """Probabilities of a click, one per row."""
        logits = self.score(self.look(batch, prefetch=False))
        return (1.0 / (1.0 + np.exp(-logits.astype(np.float64)))).astype(np.float32)

    # ---- parts of a step
    def _start_from_the_click_rate(self, batch: Batch | None) -> None:
        """A model whose output bias is still 0 begins with the log odds of its first batch, not with one click in two."""
        bias = getattr(self.model, "bias", None)
        if not isinstance(bias, nn.Parameter) or bias.shape != (1,) or bool(bias.detach().any()):
            return
        if batch is not None and batch.label is None:
            return
        mine = [0.0, 0.0] if batch is None else [float(batch.label.sum()), batch.rows]  # type: ignore[union-attr]
        clicks, rows = self.together.sums(mine)
        with torch.no_grad():
            bias.fill_(math.log((clicks + 0.5) / (rows - clicks + 0.5)))

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
        """Rows of every source; with ``train`` they want gradients, and new keys are created."""
        if looked.carried is not None:
            looked.carried.arrive([r for r in looked.lookups if isinstance(r, References)])
        pulled: list[Pulled] = []
        recorded = self.graphed if train and looked.batch.rows == self.usual else None
        for k, (s, lookup) in enumerate(zip(self.sources, looked.lookups, strict=True)):
            if isinstance(lookup, References):
                assert isinstance(s.embedder, GpuTable)
                how = (s.pooled, s.pooling, s.sequences)
                into = None
                if recorded is not None:
                    weights = recorded.fed.weights[k]
                    into = recorded.fed.vectors[k].detach(), None if weights is None else weights.detach()
                pulled.append(Reading(s.embedder, lookup, *how, longest=LONGEST, train=train, into=into))
            else:
                rows = torch.from_numpy(s.embedder.pull(lookup.keys, create=train)).to(self.device)
                if self.noticed is not None and not train:
                    self.noticed(s, lookup, rows)
                pulled.append(rows.requires_grad_() if train else rows)
        return pulled

    def _logits(self, looked: Looked, pulled: Sequence[Pulled]) -> torch.Tensor:
        return self._answer(self.inputs(looked, pulled), looked.batch.rows)

    def _answer(self, inputs: Inputs, rows: int) -> torch.Tensor:
        """The model's logits, looked at."""
        if self.bf16:
            with torch.autocast(self.device.type, torch.bfloat16):
                logits = self.model(inputs)
        else:
            logits = self.model(inputs)
        name = type(self.model).__name__
        if not isinstance(logits, torch.Tensor) or not logits.is_floating_point():
            met = f"a tensor of {logits.dtype}" if isinstance(logits, torch.Tensor) else f"a {type(logits).__name__}"
            raise PlanError(f"{name} returned {met}; expected logits, a tensor with one float per row")
        if self.model.training and not logits.requires_grad:
            raise PlanError(
                f"the logits of {name} have no gradient: its forward detaches them, or reads nothing trainable"
            )
        if logits.shape != (rows,):
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

    @staticmethod
    def _loss(logits: torch.Tensor, looked: Looked) -> torch.Tensor:
        batch, carried = looked.batch, looked.carried
        if carried is None:
            label = torch.from_numpy(np.asarray(batch.label, np.float32))
            weight = None if batch.weight is None else torch.from_numpy(np.asarray(batch.weight, np.float32))
        else:
            assert carried.label is not None
            label, weight = carried.label, carried.weight
        return loss_of(logits, label, weight)

    def _push(self, looked: Looked, pulled: Sequence[Pulled], factor: float, share: float = 1.0) -> None:
        """``share``: of the step's rows that are this worker's."""
        for source, lookup, rows in zip(self.sources, looked.lookups, pulled, strict=True):
            if (rows.gradients if isinstance(rows, Reading) else rows.grad) is None:
                continue
            scale = getattr(source.embedder, "scale_lr", None)
            if scale is not None:
                scale(factor)
            if isinstance(rows, Reading):
                rows.push(looked.batch.rows)
                self.unsettled = looked
                continue
            gradients = rows.grad.cpu().numpy()
            if getattr(source.embedder, "summed", True):
                gradients *= np.float32(looked.batch.rows)
            elif share != 1.0:
                gradients *= np.float32(share)
            try:
                if getattr(source.embedder, "takes_shows", False):
                    assert isinstance(lookup, Lookup)
                    shows, clicks = lookup.shown(np.asarray(looked.batch.label, np.float32))
                    if self.adaptive_l2:
                        assert isinstance(source.embedder, Table)
                        met = source.embedder.counts(lookup.keys)[0] + shows
                        gradients += np.float32(self.adaptive_l2) * rows.detach().cpu().numpy() / met[:, None]
                    source.embedder.push(lookup.keys, gradients, shows=shows, clicks=clicks)  # type: ignore[call-arg]
                else:
                    source.embedder.push(lookup.keys, gradients)
            except DataError:
                raise culprit(self, looked, pulled, math.nan) from None

    # ---- when a number is none
    def _refuse(self, looked: Looked, pulled: Sequence[Pulled], value: float) -> None:
        if not math.isfinite(value):
            raise culprit(self, looked, pulled, value)

    def _heard(self) -> None:
        """Refuse the step whose gradients a GPU table could not apply, if that is known by now."""
        looked = self.unsettled
        if looked is None:
            return
        for source, references in zip(self.sources, looked.lookups, strict=True):
            if not isinstance(source.embedder, GpuTable) or not isinstance(references, References):
                continue
            bad = source.embedder.told()
            if bad >= 0:
                self.unsettled = None
                raise TrainError(
                    f"batch {looked.number}: a gradient of key {int(references.keys[bad])} of field "
                    f"{references.field_of(bad)!r} is not finite; lower the learning rate of its table, or clip gradients"
                )


def _parted(
    fields: tuple[str, ...], common: Sequence[str], first: torch.Tensor | None
) -> list[tuple[tuple[str, ...], torch.Tensor | None]]:
    """Pooled fields, those that are shared apart from the others, with the row that has the keys of each."""
    own = tuple(n for n in fields if n not in common)
    parts: list[tuple[tuple[str, ...], torch.Tensor | None]] = [(own, None)]
    parts.append((tuple(n for n in fields if n in common), first))
    return [part for part in parts if part[0]]
