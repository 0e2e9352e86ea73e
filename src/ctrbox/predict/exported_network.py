"""Defines the network that an export holds: from rows of tables and dense columns to scores, with operations of torch alone.

    dense.values     (rows, columns) float32             the dense columns, if the plan has any
    rows.FIELD       (rows, width) float32               row of the table of a field with exactly one key per row
                     (rows, longest, width) float32      rows of the keys of another field, padded with anything
    count.FIELD      (rows,) int64                       number of keys of such a field in each row
    key.FIELD        (rows,) int64                       keys of the field by which the scores are calibrated

The network pools the rows, runs the model, adds the correction for downsampled negatives and weights, applies the calibration and
returns probabilities. For several labels it returns the prediction of each. Slow twin: `ClickModel.predict`, the same up to
rounding.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from ctrbox.columns.label_task import MOST_LOG_COUNT
from ctrbox.evaluate.calibration_maps import MOST_LOGIT, Calibration, IsotonicMap, PlattMap
from ctrbox.evaluate.calibration_of_several_labels import TaskCalibration
from ctrbox.models.inputs import Inputs, Pooled
from ctrbox.models.loss_of_several_labels import stacked
from ctrbox.predict.model_with_tables import ClickModel
from ctrbox.predict.tables_of_fields import Source


@dataclass(frozen=True)
class Input:
    """A tensor that the network reads: its name, its shape with the names of dimensions that vary, and its type."""

    name: str
    shape: tuple[str | int, ...]
    dtype: torch.dtype = torch.float32

    def drawn(self, rows: int, longest: int, draw: torch.Generator) -> torch.Tensor:
        """Return random values with ``rows`` rows."""
        sizes = {"rows": rows, "longest": longest}
        shape = [sizes[n] if isinstance(n, str) else n for n in self.shape]
        if self.dtype == torch.int64:
            return torch.randint(0, longest + 1, shape, generator=draw)
        return torch.randn(shape, generator=draw)


class ExportedNetwork(nn.Module):
    """A copy of a model on the CPU that also computes scores from its outputs. It takes the tensors of `inputs` in order."""

    def __init__(self, click_model: ClickModel) -> None:
        super().__init__()
        self.model = copy.deepcopy(click_model.model).cpu().eval().requires_grad_(False)
        self.reads, self.tasks, self.shift = click_model.reads, click_model.tasks, click_model.shift
        self.sources: list[Source] = click_model.sources
        self.ragged = {f.name: f.ragged for f in click_model.schema.sparse}
        stored = click_model.calibration
        parts = stored.parts if isinstance(stored, TaskCalibration) else (stored,)
        # One for each output, None where it is not calibrated.
        self.calibrations = nn.ModuleList(nn.Identity() if part is None else CalibrationMaps(part) for part in parts)
        self.by = next((m.by for m in self.calibrations if isinstance(m, CalibrationMaps) and m.by is not None), None)
        self.inputs = self._inputs()

    def _inputs(self) -> list[Input]:
        found = [Input("dense.values", ("rows", self.reads.dense))] if self.reads.dense else []
        for source in self.sources:
            width = source.embedder.row.width
            for name in source.fields:
                if self.ragged[name]:
                    found.append(Input(f"rows.{name}", ("rows", "longest", width)))
                    found.append(Input(f"count.{name}", ("rows",), torch.int64))
                else:
                    found.append(Input(f"rows.{name}", ("rows", width)))
        if self.by is not None:
            found.append(Input(f"key.{self.by}", ("rows",), torch.int64))
        return found

    @property
    def outputs(self) -> list[str]:
        return [task.name for task in self.tasks] or ["score"]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = {asked.name: tensor for asked, tensor in zip(self.inputs, tensors, strict=True)}
        rows = tensors[0].shape[0]
        dense = given.get("dense.values")
        if dense is None:
            dense = tensors[0].new_zeros(rows, 0, dtype=torch.float32)
        pools: list[Pooled] = []
        sequences: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        for source in self.sources:
            linear = source.embedder.row.linear
            if source.pooled:
                whole = torch.stack(
                    [self._pooled(given, name, how) for name, how in zip(source.pooled, source.pooling, strict=True)],
                    1,
                )
                pools.append(Pooled(source.pooled, whole[:, :, 0] if linear else None, whole[:, :, int(linear) :]))
            for name in source.sequences:
                items = given[f"rows.{name}"]
                if self.ragged[name]:
                    lengths = given[f"count.{name}"]
                    items = items * real(items, lengths).unsqueeze(2)
                else:
                    items, lengths = items.unsqueeze(1), torch.ones_like(items[:, 0], dtype=torch.int64)
                sequences[name] = items[:, :, int(linear) :], lengths
        # In float64, because ONNX has no log1p: 1 + x of a small x in float32 would lose most of its digits.
        exact = dense.double()
        logs = (torch.sign(exact) * torch.log1p(exact.abs())).float()
        answer: Any = self.model(Inputs(self.reads, rows, dense, tuple(pools), sequences, logs))
        keys = None if self.by is None else given[f"key.{self.by}"]
        if self.tasks:
            return self._by_label(stacked(answer, self.tasks, rows, type(self.model).__name__), keys)
        return (probability(self._calibrated(0, answer + self.shift if self.shift else answer, keys)),)

    def _calibrated(self, k: int, logits: torch.Tensor, keys: torch.Tensor | None) -> torch.Tensor:
        """Return the calibrated logits of an output."""
        if k >= len(self.calibrations) or not isinstance(maps := self.calibrations[k], CalibrationMaps):
            return logits
        found: torch.Tensor = maps(logits, keys if maps.by is not None else None)
        return found

    def _pooled(self, given: dict[str, torch.Tensor], name: str, how: str) -> torch.Tensor:
        rows = given[f"rows.{name}"]
        if not self.ragged[name]:
            return rows
        count = given[f"count.{name}"]
        mask = real(rows, count).unsqueeze(2)
        if how == "max":
            best = rows.masked_fill(~mask, -torch.inf).amax(1)
            return torch.where((count > 0).unsqueeze(1), best, torch.zeros_like(best))
        total = torch.where(mask, rows, torch.zeros_like(rows)).sum(1)
        return total if how == "sum" else total / count.clamp(min=1).unsqueeze(1)

    def _by_label(self, outputs: torch.Tensor, keys: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        found = []
        for k, task in enumerate(self.tasks):
            one = outputs[:, k]
            if task.kind == "binary":
                one = probability(self._calibrated(k, one, keys))
            elif task.kind == "count":
                one = torch.exp(one.double().clamp(max=MOST_LOG_COUNT)).float()
            found.append(one)
        return tuple(found)


class CalibrationMaps(nn.Module):
    """The calibration of a model (`evaluate.calibration_maps`) as tensors: the shared map, then the map of each slice."""

    def __init__(self, calibration: Calibration) -> None:
        super().__init__()
        self.by = calibration.by if calibration.keys else None
        maps = [calibration.shared, *calibration.slices]
        self.platt = all(isinstance(one, PlattMap) for one in maps)
        if self.platt:
            lines = [(one.slope, one.intercept) for one in maps if isinstance(one, PlattMap)]
            self.lines = nn.Buffer(torch.tensor(lines, dtype=torch.float64))
        else:
            curves = [one for one in maps if isinstance(one, IsotonicMap)]
            most = max(len(one.logits) for one in curves)
            # Knots behind the last one lie at infinity, so that no logit is beyond them, and have its rate.
            logits = [np.pad(one.logits, (0, most - len(one.logits)), constant_values=np.inf) for one in curves]
            rates = [np.pad(one.rates, (0, most - len(one.rates)), mode="edge") for one in curves]
            self.logits = nn.Buffer(torch.from_numpy(np.stack(logits)))
            self.rates = nn.Buffer(torch.from_numpy(np.stack(rates)))
            self.last = nn.Buffer(torch.tensor([len(one.logits) - 1 for one in curves]))
        self.keys = nn.Buffer(torch.tensor(calibration.keys, dtype=torch.int64))

    def forward(self, logits: torch.Tensor, keys: torch.Tensor | None) -> torch.Tensor:
        z = logits.double()
        if keys is None:
            which = torch.zeros_like(z, dtype=torch.int64)
        else:
            # The place of the one key that is equal, from 1; 0, the shared map, if there is none.
            places = torch.arange(1, len(self.keys) + 1)
            which = ((keys.unsqueeze(1) == self.keys) * places).sum(1)
        if self.platt:
            line = self.lines[which]
            return (line[:, 0] * z + line[:, 1]).clamp(-MOST_LOGIT, MOST_LOGIT).float()
        knots, rates, last = self.logits[which], self.rates[which], self.last[which]
        right = (knots <= z.unsqueeze(1)).sum(1)
        left = (right - 1).clamp(min=0)
        right = torch.minimum(right, last)
        at, to = knots.gather(1, left.unsqueeze(1)).squeeze(1), knots.gather(1, right.unsqueeze(1)).squeeze(1)
        low, high = rates.gather(1, left.unsqueeze(1)).squeeze(1), rates.gather(1, right.unsqueeze(1)).squeeze(1)
        width = to - at
        between = (z > knots[:, 0]) & (width > 0)
        part = torch.where(between, (z - at) / torch.where(width > 0, width, 1.0), 0.0)
        rate = torch.minimum(low + part * (high - low), high)
        return (torch.log(rate) - torch.log(1.0 - rate)).float()


def real(rows: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Return a mask (rows, longest) of the places that have a key and are no padding."""
    return torch.arange(rows.shape[1], device=rows.device) < count.unsqueeze(1)


def probability(logits: torch.Tensor) -> torch.Tensor:
    """Return the sigmoid in float64, rounded to float32."""
    return (1.0 / (1.0 + torch.exp(-logits.double()))).float()
