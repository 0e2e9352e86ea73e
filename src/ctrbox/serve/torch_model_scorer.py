"""Scores requests with a published click model; the vectors of the context are looked up and pooled once.

    context      keys → rows → pooled (1, fields, dim), sequences (1, longest, dim)        kept with the context
    candidates   keys → rows → pooled (rows, …)
    the model    reads both as rows; the row of the context stands for all rows by a stride of 0 and is not repeated in memory

`ClickModel.predict` over `Split.joined` is the slow twin; its results are the same up to rounding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ctrbox.columns.batch import Batch, Schema
from ctrbox.columns.label_task import predictions_of
from ctrbox.columns.raw_values import brief
from ctrbox.compiled_plan.split_for_requests import Split
from ctrbox.embed.embedder import Floats, Keys, Row
from ctrbox.embed.keys_looked_up import Asked, asked_of_lookup, asked_of_rows
from ctrbox.embed.pooling import pool, sequence
from ctrbox.embed.unique_keys import Lookup
from ctrbox.embed.vectors.published_table import PublishedVectors
from ctrbox.errors import DataError
from ctrbox.evaluate.calibration_maps import Calibration
from ctrbox.evaluate.calibration_of_several_labels import TaskCalibration
from ctrbox.models.inputs import Inputs, Pooled
from ctrbox.models.loss_of_several_labels import stacked
from ctrbox.predict.model_with_tables import LONGEST, ClickModel, slice_keys
from ctrbox.predict.tables_of_fields import Source
from ctrbox.serve.encode_objects import RawEncoders, rounded
from ctrbox.serve.objects_in_requests import ObjectKeys, Objects, matrix, served_by

Own = Mapping[
    int, Mapping[int, Floats]
]  # by number of the source, by key: vectors of objects that came with the request


@dataclass(frozen=True)
class Side:
    """The fields of one source that belong to the context, or those that belong to the candidates.

    ``single`` are pooled fields with exactly one key per row. Their vector is that of the key, so distinct keys need not be
    found.
    """

    number: int
    source: Source
    pooled: tuple[str, ...]
    pooling: tuple[str, ...]
    sequences: tuple[str, ...]
    single: bool = False

    @cached_property
    def table(self) -> Any:
        return self.source.embedder

    @cached_property
    def row(self) -> Row:
        return self.source.embedder.row

    @staticmethod
    def of(number: int, source: Source, schema: Schema) -> list[Side]:
        ragged = {f.name: f.ragged for f in schema.sparse}
        pooled = [(n, how) for n, how in zip(source.pooled, source.pooling, strict=True) if n in ragged]
        one = [(n, how) for n, how in pooled if not ragged[n]]
        many = [(n, how) for n, how in pooled if ragged[n]]
        sequences = tuple(n for n in source.sequences if n in ragged)
        sides = [
            Side(number, source, tuple(n for n, _ in some), tuple(how for _, how in some), past, single)
            for some, past, single in ((one, (), True), (many, sequences, False))
        ]
        return [side for side in sides if side.fields]

    @property
    def fields(self) -> tuple[str, ...]:
        return self.pooled + self.sequences


@dataclass(frozen=True)
class Found:
    """What one side of a request reads from the tables."""

    pools: list[Pooled]
    sequences: dict[str, tuple[torch.Tensor, torch.Tensor]]
    without: frozenset[tuple[int, int]]  # number of the source, key: those that have a vector nowhere
    asked: tuple[tuple[PublishedVectors, int], ...] = ()  # where keys were not published, and the state that was met
    counted: tuple[Asked, ...] = ()  # keys looked up and unknown ones, by field
    kept: dict[str, Any] = dataclasses.field(default_factory=dict)  # what the model worked out of it (`Inputs.once`)

    @property
    def fresh(self) -> bool:
        """Return whether looking it up again would give the same result."""
        return all(table.changes == met for table, met in self.asked)

    @property
    def bytes(self) -> int:
        tensors = [p.vectors for p in self.pools] + [p.linear for p in self.pools if p.linear is not None]
        tensors += [items for items, _ in self.sequences.values()]
        kept = sum(getattr(one, "bytes", 0) for one in self.kept.values())
        return kept + sum(512 + t.numel() * t.element_size() for t in tensors)


class ModelScorer:
    """One version of a click model. Any number of threads may use it."""

    def __init__(
        self, click_model: ClickModel, split: Split, keys: ObjectKeys, encoders: RawEncoders | None = None
    ) -> None:
        self.click_model, self.split, self.keys = click_model, split, keys
        self.encoders = RawEncoders() if encoders is None else encoders
        sources = list(enumerate(click_model.sources))
        self.context_sides = [s for k, x in sources for s in Side.of(k, x, split.context_features)]
        self.candidate_sides = [s for k, x in sources for s in Side.of(k, x, split.candidate_features)]
        self.servers = {n: k for k, x in sources if isinstance(x.embedder, PublishedVectors) for n in x.fields}
        self.tables: dict[str, PublishedVectors] = {}
        for name, k in self.servers.items():
            table = click_model.sources[k].embedder
            assert isinstance(table, PublishedVectors)
            self.tables[name] = table
        self.encoders.check(self.tables)
        # Where the columns of the dense matrix come from: of which side, from, to, at.
        places = {}
        for side, schema in enumerate((split.context_features, split.candidate_features)):
            begin = 0
            for name, width in schema.dense:
                places[name] = (side, begin, begin + width)
                begin += width
        self.dense: list[tuple[int, int, int, int]] = []
        at = 0
        for name, width in split.schema.dense:
            self.dense.append((*places[name], at))
            at += width

    def embed(self, objects: Mapping[str, Objects]) -> tuple[Own, int]:
        """Return vectors of the objects that came with a request, and for how many of them the sub-model ran."""
        self.encoders.check_count(sum(len(given.raw) for given in objects.values()))
        checked: list[tuple[str, Keys, Any]] = []  # objects of a field as the sub-model takes them
        unencoded: list[tuple[str, Objects, Keys]] = []
        contents: dict[tuple[int, int], bytes] = {}
        for field, given in objects.items():
            table, raw = served_by(field, self.tables), given.raw
            listed = [k for k in range(len(given.ids)) if k not in raw]
            rows = matrix(field, given.some(listed), table)
            keys = self.keys.of(field, given.ids)
            held = {k: row.tobytes() for k, row in zip(listed, rows, strict=True)}
            for k, (name, key) in enumerate(zip(given.ids, keys.tolist(), strict=True)):
                content = given.rows[k].data if k in raw else held[k]
                if contents.setdefault((self.servers[field], key), content) != content:
                    raise DataError(
                        f"object {brief(name)} of {field!r} occurs twice in the request with different contents"
                    )
            checked.append((field, keys[listed], rows))
            if raw:
                unencoded.append((field, given.some(sorted(raw)), keys[sorted(raw)]))
        checked += [(field, *self._encoded(field, given, keys)) for field, given, keys in unencoded]
        own: dict[int, dict[int, Floats]] = {}
        ran = 0
        for field, keys, rows in checked:
            found, computed = self.tables[field].embed(keys, rows)
            own.setdefault(self.servers[field], {}).update(found)
            ran += computed
        return own, ran

    def _encoded(self, field: str, given: Objects, keys: Keys) -> tuple[Keys, Any]:
        """Return the vectors of those images and texts whose keys have no published vector, and these keys."""
        table = self.tables[field]
        table.check_submodel(f"objects of {field!r}")
        unpublished = {*table.found(keys)[1].tolist()}
        taken, rows = [], []
        for k, raw in enumerate(given.rows):
            what = f"object {brief(given.ids[k])} of {field!r}"
            encoder = self.encoders.of_field(field, what, table)
            if k in unpublished and keys[k] != 0:
                vector = rounded(encoder.vector(raw, what), table.dtype)
                rows.append(table.checked(vector[None], f"the vector of {what}")[0])
                taken.append(k)
        return keys[taken], np.stack(rows) if rows else np.empty((0, table.width), np.float32)

    def context(self, batch: Batch, own: Own) -> Found:
        with torch.inference_mode():
            return self._found(batch, self.context_sides, own)

    def score(self, context: Batch, found: Found, candidates: Batch, own: Own) -> tuple[Floats, int, tuple[Asked, ...]]:
        """Return the probabilities, the number of distinct keys of the request that have no vector, and, by field, the key
        counts of the candidates.

        For several labels, return predictions (rows, labels) in float64 instead of probabilities.
        """
        with torch.inference_mode():
            theirs = self._found(candidates, self.candidate_sides, own)
            logits = self._logits(context, found, candidates, theirs)
        if self.click_model.shift:
            logits = logits + np.float32(self.click_model.shift)
        if not np.isfinite(logits).all():
            row = int(np.argwhere(~np.isfinite(logits))[0, 0])
            raise DataError(f"the model's output for candidate {row:,} is not finite; check that no value is too large")
        if self.click_model.calibration is not None:
            logits = self._calibrated(self.click_model.calibration, logits, context, candidates)
        with np.errstate(over="ignore"):  # a logit below -709 is a probability of 0
            if self.click_model.tasks:
                scores: Any = predictions_of(logits, self.click_model.tasks)
            else:
                scores = (1.0 / (1.0 + np.exp(-logits.astype(np.float64)))).astype(np.float32)
        return scores, len(found.without | theirs.without), theirs.counted

    def _calibrated(
        self, calibration: Calibration | TaskCalibration, logits: Floats, context: Batch, candidates: Batch
    ) -> Floats:
        """Return the calibrated logits. The field of the calibration may belong to the context or to the candidates."""
        if calibration.by is None:
            return calibration.apply(logits, None)
        if calibration.by in candidates.sparse:
            return calibration.apply(logits, slice_keys(candidates, calibration.by))
        return calibration.apply(logits, np.repeat(slice_keys(context, calibration.by), len(logits)))

    def _logits(self, context: Batch, found: Found, candidates: Batch, theirs: Found) -> Floats:
        rows = candidates.rows
        tasks = self.click_model.tasks
        if not rows:
            return np.zeros((0, len(tasks)) if tasks else 0, np.float32)
        pools = [*(expanded(p, rows) for p in found.pools), *theirs.pools]
        sequences = {n: (i.expand(rows, -1, -1), w.expand(rows)) for n, (i, w) in found.sequences.items()}
        dense = self._dense(context, candidates)
        inputs = Inputs(
            self.click_model.reads, rows, dense, tuple(pools), {**sequences, **theirs.sequences}, None, found.kept
        )
        answer: Any = self.click_model.model(inputs)
        if tasks:
            answer = stacked(answer, tasks, rows, type(self.click_model.model).__name__)
        logits: Floats = answer.numpy()
        return logits

    def _found(self, batch: Batch, sides: list[Side], own: Own) -> Found:
        pools: list[Pooled] = []
        sequences: dict[str, Any] = {}
        without: list[tuple[int, int]] = []
        asked: list[tuple[PublishedVectors, int]] = []
        counted: list[Asked] = []
        for side in sides:
            table, row = side.table, side.row
            lookup = None if side.single else Lookup.of(batch, side.fields)
            keys = single_keys(batch, side.pooled) if lookup is None else lookup.keys
            if isinstance(table, PublishedVectors):
                state = table.changes
                vectors, lacking, unpublished = table.look_up(keys, own.get(side.number))
                lost = lacking
                if len(unpublished):
                    without += [(side.number, key) for key in lacking.tolist()]
                    asked.append((table, state))
                    lost = np.flatnonzero(np.isin(keys, lacking))
            else:
                vectors, lost = table.pull_told(keys)
            counted += asked_of_rows(side.fields, keys, lost) if lookup is None else asked_of_lookup(lookup, lost)
            if lookup is None:
                block = torch.from_numpy(vectors)
                several = len(side.pooled) > 1
                block = block.view(len(side.pooled), -1, row.width).transpose(0, 1) if several else block.unsqueeze(1)
                linear, pooled = (block[:, :, 0], block[:, :, 1:]) if row.linear else (None, block)
                pools.append(Pooled(side.pooled, linear, pooled))
                continue
            found = torch.from_numpy(vectors)
            if side.pooled:
                linear, pooled = pool(found, lookup, row, side.pooling, 1, side.pooled)
                pools.append(Pooled(side.pooled, linear, pooled))
            for name in side.sequences:
                sequences[name] = sequence(found, lookup, row, name, LONGEST)
        return Found(pools, sequences, frozenset(without), tuple(asked), tuple(counted))

    def _dense(self, context: Batch, candidates: Batch) -> torch.Tensor:
        whole = np.empty((candidates.rows, self.split.schema.dense_width), np.float32)
        for side, begin, end, at in self.dense:
            whole[:, at : at + end - begin] = (context if side == 0 else candidates).dense[:, begin:end]
        if not np.isfinite(whole).all():
            row, column = np.argwhere(~np.isfinite(whole))[0]
            raise DataError(
                f"dense column {self.split.schema.dense_names[column]!r} of candidate {row} is {whole[row, column]}; expected "
                "a finite number"
            )
        return torch.from_numpy(whole)


def single_keys(batch: Batch, fields: Sequence[str]) -> Keys:
    """Return the keys of fields with exactly one key per row, field after field."""
    rows, sparse, values = batch.rows, batch.sparse, []
    for name in fields:
        keys = sparse[name].values
        if keys.size != rows:
            raise DataError(
                f"field {name!r} has rows with no key or several keys, but its schema says exactly one key per row"
            )
        values.append(keys)
    return np.concatenate(values) if len(values) > 1 else values[0]


def expanded(pooled: Pooled, rows: int) -> Pooled:
    linear = None if pooled.linear is None else pooled.linear.expand(rows, -1)
    return Pooled(pooled.fields, linear, pooled.vectors.expand(rows, -1, -1))
