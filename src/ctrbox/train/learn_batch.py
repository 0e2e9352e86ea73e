"""Learns from one batch with one model and its embedders. Every kind of training uses this code.

`ClickModel` of ctrbox.predict is the same model for predictions.

    learn    pull → pool → model → loss → backward → push, dense step

The dense weights, and the sub-model of a Model Server, get the gradient of the mean loss of the batch. The tables get the
gradient of the summed loss: a key that occurs once in a batch moves as far in a batch of 100 rows as in one of 65,536.

On a GPU, a step is launched without waiting for its result. Its loss, and the error about a gradient that is not finite, arrive
one or two steps later, or in ``settle``, which is called before every checkpoint and evaluation. The dense part of batches of the
usual size is one recorded graph (cuda_graph.py).
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from ctrbox.columns.batch import Batch, Schema
from ctrbox.embed.common_features import shared
from ctrbox.embed.embedder import Keys
from ctrbox.embed.gpu.batch_to_device import References, Told
from ctrbox.embed.gpu.pooling import Reading
from ctrbox.embed.unique_keys import Lookup
from ctrbox.errors import DataError, TrainError
from ctrbox.models.inputs import Inputs, Pooled
from ctrbox.models.loss_of_several_labels import objective_of
from ctrbox.optimizers.native_adam_of_dense_weights import AdamStep
from ctrbox.predict.model_with_tables import ClickModel, Into, Looked, Pulled
from ctrbox.predict.nan_in_batch import culprit
from ctrbox.predict.native_forward import NativeNetwork
from ctrbox.predict.tables_of_fields import CPU, Embedders
from ctrbox.train.average_of_weights import Average
from ctrbox.train.checkpoint import Held
from ctrbox.train.cuda_graph import Fed, Graphed
from ctrbox.train.gradient_sums import ALONE, Together
from ctrbox.train.loss import check_counting, check_rows, has_rows, loss_of, loss_of_tasks
from ctrbox.train.native_training_step import native_step
from ctrbox.train.several_labels import start_from_means

AHEAD = 2  # steps launched on a GPU before the loss of the first is waited for: the host is never what it waits for
NO_KEYS = np.empty(0, np.int64)


class BatchStatistics(Protocol):
    """Makes the batch normalizations of a model use the rows of all workers."""

    def begin(self, rows: int) -> None:
        """Begin a step in which this worker has ``rows`` rows."""

    def finish(self) -> None:
        """End the forward and backward passes of a step. Every worker calls it, even if it has no rows."""


class Learner(ClickModel):
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
        l2: float = 0.0,
        average: float | None = None,
        common: Sequence[str] = (),
        together: Together = ALONE,
    ) -> None:
        """Make a learner. ``rows``: rows of the usual batch. ``adaptive_l2``, ``l2``, ``average``: see `Settings`.

        ``common``: see `Trainer`. ``together``: the group of workers to which this learner belongs.
        """
        super().__init__(model, schema, embedder, threads=threads, device=device, bf16=bf16, common=common)
        self.together = together
        if together.of > 1:
            for part in self.scaled:
                part.sums = together.sums
        self.statistics: BatchStatistics | None = None  # of batch normalizations over all workers
        self.unsettled: Looked | None = None  # the batch of the last step, whose gradients were not heard of yet
        self.untold: deque[tuple[Looked, Sequence[Pulled], Told]] = deque()  # the last steps, whose losses were not
        # Batches with downsampled negatives differ in size: no shape is usual.
        self.usual = rows if device.type == "cuda" and keep >= 1.0 else None
        self.graphed: Graphed | None = None
        self.last: float | None = None  # loss heard of
        weights = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = optimizer(weights) if optimizer is not None and weights else None
        self.rates = [g["lr"] for g in self.optimizer.param_groups] if self.optimizer else []
        self.clip = clip
        self.begun = False
        self.random_states: dict[str, torch.Tensor] = {}  # of torch, at the end of the training; empty before
        self.adaptive_l2 = adaptive_l2
        if adaptive_l2:
            check_counting(self.sources)
        self.l2 = l2
        if l2:
            check_rows(self.sources)
        self.average = Average(model, average) if average is not None and self.optimizer is not None else None
        self.adam = AdamStep(self.optimizer) if type(self.optimizer) is torch.optim.Adam else None
        self.objective = objective_of(model, schema) if self.tasks else None
        # Number added to each logit, which corrects it for downsampled negatives. With several labels, row weights do that.
        self.shift = 0.0 if self.tasks else math.log(keep)
        self.thinned = keep < 1.0

    @property
    def held(self) -> Held:
        return Held(self.model, self.embedders, self.optimizer)

    # ---- ahead of learning
    def keys(self, batch: Batch) -> list[Keys]:
        """Return the unique keys of the batch as ``look`` will find them, for each embedder that is told their next use."""
        known = batch.cpu()
        if self.common and known.group is not None:
            known, _ = shared(known, self.common)
        return [Lookup.of(known, s.fields, self.threads).keys for s in self.sources if s.traits.look_ahead]

    # ---- a step
    def learn(self, looked: Looked, factor: float = 1.0) -> float:
        """Make one step and return the mean loss; on a GPU, that of one or two steps before.

        ``factor`` is the factor of the learning rates.
        """
        with self._fitting(looked):
            return self._learn(looked, factor)

    def learn_part(
        self, looked: Looked | None, factor: float, beside: Sequence[float]
    ) -> tuple[int, float, list[float]]:
        """Make one step of several workers, each of which has a part of the batch, which may be empty.

        Return the number of rows of all workers, their mean loss and the sums of ``beside``. If no worker has rows, nothing
        changes.
        """
        batch = None if looked is None else looked.batch
        if not self.begun:
            self.begun = True
            self._start_from_the_click_rate(batch)
        self.model.train()
        self.model.zero_grad(set_to_none=True)
        network = self.native if self.native is not None and self.native.usable else None  # the same in all workers
        pulled: list[Pulled] = []
        mine, value = (0, 0.0) if batch is None else (batch.rows, 0.0)
        if self.statistics is not None:
            self.statistics.begin(mine)
        if looked is None:
            for source in self.sources:
                source.embedder.pull(NO_KEYS)
            for part in self.scaled if self.statistics is None else ():
                part.learn_none()
        elif network is not None:
            pulled, value = self._differentiated(network, looked, together=True)
        else:
            pulled = self._pull(looked, train=True)
            loss = self._loss(self._logits(looked, pulled), looked)
            value = float(loss.detach())
            self._refuse(looked, pulled, value)
            loss.backward()
        if self.statistics is not None:
            self.statistics.finish()
        # In one process, no gradient means no push, and a push of zeros would let momentum and weight decay move the rows.
        uses = [float(_gradient_of(one) is not None) for one in pulled] or [0.0] * len(self.sources)
        rows, summed, *told = self.together.sums([mine, value * mine, *uses, *beside])
        used, told = told[: len(uses)], told[len(uses) :]
        if not rows:
            return 0, 0.0, told
        if looked is None:
            for source, workers in zip(self.sources, used, strict=True):
                if not workers:
                    continue
                if source.traits.scales_lr:  # rows of other workers lie in this one's part of a table
                    source.full.scale_lr(factor)
                source.embedder.push(NO_KEYS, np.empty((0, source.embedder.row.width), np.float32))
        else:
            for one, workers in zip(pulled, used, strict=True):
                if not workers:
                    continue
                if isinstance(one, Reading):  # other workers wait for the push, even if this one has no gradient
                    one.expect_none()
                elif one.grad is None:
                    one.grad = torch.zeros_like(one)
            self._heard()
            self._push(looked, pulled, factor, mine / rows)
        self.together.add_up([p for p in self.model.parameters() if p.requires_grad], mine / rows)
        self._step_dense(factor, native=network is not None)
        return int(rows), summed / rows, told

    def _learn(self, looked: Looked, factor: float) -> float:
        if not self.begun:
            self.begun = True
            self._start_from_the_click_rate(looked.batch)
        if self.native is not None and self.native.usable:
            return self._learn_natively(self.native, looked, factor)
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

    def _learn_natively(self, network: NativeNetwork, looked: Looked, factor: float) -> float:
        """Make one step of a usual model, as ``_learn`` does, with native threads that each compute slices of the batch."""
        if not self.model.training:
            self.model.train()
        pulled, loss = self._differentiated(network, looked)
        self._push(looked, pulled, factor)
        self._step_dense(factor, native=True)
        return loss

    def _differentiated(
        self, network: NativeNetwork, looked: Looked, together: bool = False
    ) -> tuple[list[Pulled], float]:
        """Return the rows that a batch reads with their gradients, and its mean loss, computed by native threads."""
        batch, (lookup,) = looked.batch, looked.lookups
        assert isinstance(lookup, Lookup)
        assert looked.logs is not None
        rows = self.sources[0].embedder.pull(lookup.keys, create=True)
        label = np.ascontiguousarray(batch.label, np.float32)
        weight = None if batch.weight is None else np.ascontiguousarray(batch.weight, np.float32)
        loss, gradient = native_step(
            network, lookup, looked.index, rows, looked.logs, label, weight, self.threads, together
        )
        pulled = torch.from_numpy(rows)
        self._refuse(looked, [pulled], loss)
        pulled.grad = torch.from_numpy(gradient)
        return [pulled], loss

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
        if self.average is not None:
            self.average.update()

    def averaged(self) -> contextlib.AbstractContextManager[None]:
        """Replace the dense weights by their average inside this context, if an average is kept; for evaluating and saving."""
        return contextlib.nullcontext() if self.average is None else self.average.in_place()

    def keep_average(self) -> None:
        """Replace the dense weights by their average at the end of the training, if an average is kept."""
        if self.average is not None:
            self.average.put()
            self.average = None

    # ---- the dense part, recorded
    def _fed(self, looked: Looked, pulled: Sequence[Pulled]) -> Fed | None:
        """Return the inputs of a recorded step; None if this step has to run without a graph."""
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
        """Read the loss of the last step that is not among the ``ahead`` newest, if it has not been read yet."""
        value = None
        while len(self.untold) > ahead:
            looked, pulled, told = self.untold.popleft()
            value = told.value()
            self._refuse(looked, pulled, value)
        return value

    def settle(self) -> None:
        """Wait for the last step, and raise its error if it has one."""
        self._hear_loss(0)
        for source in self.sources:
            if source.fused:
                source.full.wait()
        self._heard()

    def end_schedule(self) -> None:
        """Give the tables the learning rates that they were created with: later pushes belong to no step of the schedule."""
        for source in self.sources:
            if source.traits.scales_lr:
                source.full.scale_lr(1.0)

    def _recorded(self, looked: Looked, source: int) -> Into | None:
        if self.graphed is None or looked.batch.rows != self.usual:
            return None
        weights = self.graphed.fed.weights[source]
        return self.graphed.fed.vectors[source].detach(), None if weights is None else weights.detach()

    # ---- parts of a step
    def _start_from_the_click_rate(self, batch: Batch | None) -> None:
        """Set the output bias to the log odds of the first batch if it is still 0, so that the model does not begin at a click
        rate of 1/2.
        """
        if self.tasks:
            start_from_means(self.model, self.tasks, batch, self.together.sums, self.thinned)
            return
        bias = getattr(self.model, "bias", None)
        if not isinstance(bias, nn.Parameter) or bias.shape != (1,) or bool(bias.detach().any()):
            return
        if batch is not None and batch.label is None:
            return
        mine = [0.0, 0.0] if batch is None else [float(batch.label.sum()), batch.rows]  # type: ignore[union-attr]
        clicks, rows = self.together.sums(mine)
        with torch.no_grad():
            bias.fill_(math.log((clicks + 0.5) / (rows - clicks + 0.5)))

    def _loss(self, logits: torch.Tensor, looked: Looked) -> torch.Tensor:
        batch, carried = looked.batch, looked.carried
        if self.objective is not None:
            return loss_of_tasks(logits, batch, self.objective)
        if carried is None:
            label = torch.from_numpy(np.asarray(batch.label, np.float32))
            weight = None if batch.weight is None else torch.from_numpy(np.asarray(batch.weight, np.float32))
        else:
            assert carried.label is not None
            label, weight = carried.label, carried.weight
        return loss_of(logits, label, weight)

    def _push(self, looked: Looked, pulled: Sequence[Pulled], factor: float, share: float = 1.0) -> None:
        """Apply the gradients to the tables. ``share`` is the share of the step's rows that this worker has."""
        for source, lookup, rows in zip(self.sources, looked.lookups, pulled, strict=True):
            if _gradient_of(rows) is None:
                continue
            traits = source.traits
            if traits.scales_lr:
                source.full.scale_lr(factor)
            if isinstance(rows, Reading):
                rows.push(looked.batch.rows)
                self.unsettled = looked
                continue
            gradients = rows.grad.cpu().numpy()
            if self.l2 and has_rows(source):
                assert isinstance(lookup, Lookup)
                share_of_rows = np.bincount(lookup.inverse, minlength=len(lookup.keys)) * (self.l2 / looked.batch.rows)
                gradients += share_of_rows.astype(np.float32)[:, None] * rows.detach().cpu().numpy()
            if traits.gradients == "sum":
                gradients *= np.float32(looked.batch.rows)
            elif share != 1.0:
                gradients *= np.float32(share)
            try:
                if traits.shows:
                    assert isinstance(lookup, Lookup)
                    shows, clicks = lookup.shown(np.asarray(looked.batch.label, np.float32))
                    if self.adaptive_l2:
                        met = source.full.counts(lookup.keys)[0] + shows
                        gradients += np.float32(self.adaptive_l2) * rows.detach().cpu().numpy() / met[:, None]
                    source.embedder.push(lookup.keys, gradients, shows=shows, clicks=clicks)
                else:
                    source.embedder.push(lookup.keys, gradients)
            except DataError:
                raise culprit(self, looked, pulled, math.nan) from None

    # ---- when a number is none
    def _refuse(self, looked: Looked, pulled: Sequence[Pulled], value: float) -> None:
        if not math.isfinite(value):
            raise culprit(self, looked, pulled, value)

    def _heard(self) -> None:
        """Raise an error about a step whose gradients a GPU table could not apply, if this is known by now."""
        looked = self.unsettled
        if looked is None:
            return
        for source, references in zip(self.sources, looked.lookups, strict=True):
            if not source.fused or not isinstance(references, References):
                continue
            bad = source.full.told()
            if bad >= 0:
                self.unsettled = None
                raise TrainError(
                    f"batch {looked.number}: a gradient of key {int(references.keys[bad])} of field "
                    f"{references.field_of(bad)!r} is not finite; lower the learning rate of its table, or limit the "
                    "gradients with clip=1.0"
                )


def _gradient_of(pulled: Pulled) -> Any:
    """Return the gradient, or gradients, of the rows of a batch; None if the loss depends on none of these rows."""
    return pulled.gradients if isinstance(pulled, Reading) else pulled.grad
