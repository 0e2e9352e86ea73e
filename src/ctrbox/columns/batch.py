"""Defines ``Batch``, the input of training: labels, a matrix of dense features, lists of keys, and group ids.

Arrays are views of buffers that the native core owns and uses again once the last array is dropped: copy what you keep
beyond many batches. Values are int64 keys; row r of a field owns ``values[offsets[r]:offsets[r + 1]]``.

The arrays of a plan that runs on a GPU are torch tensors there, with the same names, types and bits; ``cpu()`` brings
them over.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ctrbox.arguments.names import nearest
from ctrbox.columns.label_task import Task, late
from ctrbox.errors import PlanError


@dataclass(frozen=True)
class Field:
    """A sparse field: its name, the name whose keys it shares, and whether a row can have other than one key.

    ``keys``: what its keys are hashes of (`ctrbox.columns.key_kinds`); "" if that is not known.
    """

    name: str
    space: str
    ragged: bool
    keys: str = dataclasses.field(default="", compare=False)


@dataclass(frozen=True)
class Schema:
    """The features that the batches of a plan hold. Models are built from it."""

    sparse: tuple[Field, ...]
    dense: tuple[tuple[str, int], ...]  # name, number of columns
    label: bool
    group: bool
    weight: bool
    fingerprint: str = ""
    tasks: tuple[Task, ...] = ()  # those of FeatureSet(labels=…), in its order; ``label`` is then False

    @property
    def key_kinds(self) -> dict[str, str]:
        """The kind of key of each feature, by name: what its keys are hashes of (`ctrbox.columns.key_kinds`)."""
        return {**{f.name: f.keys for f in self.sparse}, **dict.fromkeys(self.dense_names, "dense")}

    @property
    def dense_width(self) -> int:
        return sum(width for _, width in self.dense)

    @property
    def dense_names(self) -> list[str]:
        """One name per column of the matrix; a vector's columns are numbered."""
        return [n if w == 1 else f"{n}.{k}" for n, w in self.dense for k in range(w)]


@dataclass(frozen=True)
class Ragged:
    """Keys of one field: int64 values and int64 offsets (rows + 1)."""

    values: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        if row < 0:
            row += len(self)
            if row < 0:
                raise IndexError(f"there is no row {row - len(self)}, because there are {len(self):,} rows")
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def take(self, rows: np.ndarray) -> Ragged:
        """Return the given rows, in the given order. Negative numbers count from the end."""
        offsets_: Any = self.offsets
        if not isinstance(offsets_, np.ndarray):
            return _taken_on_device(self, rows)
        rows = _numbers(rows, len(self))
        lengths = np.diff(self.offsets)[rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        starts = np.repeat(self.offsets[:-1][rows] - offsets[:-1], lengths)
        return Ragged(self.values[starts + np.arange(offsets[-1])], offsets)

    def cpu(self) -> Ragged:
        return Ragged(as_array(self.values), as_array(self.offsets))

    def to_arrow(self) -> pa.LargeListArray:
        return pa.LargeListArray.from_arrays(pa.array(as_array(self.offsets)), pa.array(as_array(self.values)))


def as_array(tensor: Any) -> np.ndarray:
    """Return an array, or a tensor of torch, as a NumPy array; a tensor on a GPU is copied."""
    return tensor if isinstance(tensor, np.ndarray) else np.asarray(tensor.cpu().numpy())


def _numbers(rows: Any, of: int) -> np.ndarray:
    """Return the numbers of rows among so many, which may be given as a mask."""
    given = np.asarray(rows)
    if given.dtype == bool:
        return np.arange(of)[given]
    return given.astype(np.int64, casting="same_kind" if given.size else "unsafe", copy=False)


def _taken_on_device(ragged: Any, rows: Any) -> Ragged:
    import torch

    given = (
        rows if isinstance(rows, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(_numbers(rows, len(ragged))))
    )
    at = given.to(ragged.offsets.device)
    lengths = torch.diff(ragged.offsets)[at]
    offsets = torch.zeros(len(at) + 1, dtype=torch.int64, device=at.device)
    torch.cumsum(lengths, 0, out=offsets[1:])
    starts = torch.repeat_interleave(ragged.offsets[:-1][at] - offsets[:-1], lengths)
    values: Any = ragged.values[starts + torch.arange(len(starts), device=at.device)]
    found: Any = offsets
    return Ragged(values, found)


class Fields(Mapping[str, Ragged]):
    """Fields by name. Each is wrapped when it is first read, so that a request of one row does not pay for 40 unused arrays."""

    def __init__(self, names: Sequence[str], make: Callable[[int], Ragged], native: Any = None) -> None:
        """``native``: the native batch that the fields are views of, for code that reads it directly."""
        self.native = native
        self._at = {name: k for k, name in enumerate(names)}
        self._make = make
        self._made: dict[str, Ragged] = {}

    def __getitem__(self, name: str) -> Ragged:
        found = self._made.get(name)
        if found is None:
            if name not in self._at:
                raise KeyError(f"the batch has no sparse feature {name!r}{nearest(str(name), self._at)}")
            found = self._made[name] = self._make(self._at[name])
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._at)

    def __len__(self) -> int:
        return len(self._at)


@dataclass(frozen=True)
class Batch:
    """One mini-batch. ``label``, ``weight`` and ``group`` are None if the feature set does not have them.

    If the feature set has several labels, ``labels`` contains the values of each label by its name, and ``observed`` says in
    which rows they are known; a label that was not observed is NaN. With one label or none, both are empty. ``arrived`` is
    for labels that may turn from 0 to 1 later, such as conversions: for each row, it is the share of all ones that has
    arrived when a row has this age. It is 1 for rows that are at least as old as the window, and NaN if the age is not known.
    """

    schema: Schema
    rows: int
    label: np.ndarray | None
    dense: np.ndarray
    sparse: Mapping[str, Ragged]
    group: np.ndarray | None
    weight: np.ndarray | None = None
    index: np.ndarray | None = None  # of a request: which of its rows these are, where filters dropped some
    ready: Any = None  # of a batch on a GPU: the event behind what wrote it, for streams other than the usual one
    labels: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)  # float32
    observed: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)  # bool
    arrived: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)  # float32

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        roles = [name for name in ("label", "weight", "group") if getattr(self, name) is not None]
        roles += [f"labels: {', '.join(self.labels)}"] if self.labels else []
        names = list(self.sparse)
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")
        parts = [f"{self.rows:,} rows", *roles, *([f"sparse: {shown}"] if names else [])]
        parts += [f"dense: {self.dense.shape[1]:,} columns"] if self.dense.shape[1] else []
        return f"Batch({', '.join(parts)})"

    def _repr_html_(self) -> str:
        """Return the first rows, for notebooks: at most three keys of each field."""
        from ctrbox.show.notebook import framed, grid

        few = self.take(np.arange(min(5, self.rows))).cpu()
        columns: dict[tuple[str, str], list[Any]] = {}
        for name, values in (("label", few.label), ("weight", few.weight), ("group", few.group)):
            if values is not None:
                columns[name, str(values.dtype)] = list(values)
        for name, values in few.labels.items():
            columns[name, "label"] = [
                f"{v:g}" if known else "" for v, known in zip(values, few.observed[name], strict=True)
            ]
        for name, ragged in few.sparse.items():
            keys = [ragged[row].tolist() for row in range(few.rows)]
            columns[name, "keys"] = [", ".join(map(str, row[:3])) + (", …" if len(row) > 3 else "") for row in keys]
        for at, name in enumerate(self.schema.dense_names):
            columns[name, "float32"] = [f"{value:g}" for value in few.dense[:, at]]
        return framed(f"Batch of {self.rows:,} rows", grid(list(columns), zip(*columns.values(), strict=True)))

    def final(self, label: str) -> np.ndarray:
        """Return in which rows one of several labels was observed and cannot change any more.

        A label that may turn from 0 to 1 later is final in rows that are at least as old as its window.
        """
        known = self.observed[label]
        return known & (self.arrived[label] >= 1) if label in self.arrived else known

    @property
    def _parts(self) -> tuple[tuple[Any, ...], ...]:
        """Return what batches that are joined must have in common: the features, and which other arrays there are."""
        roles = [name for name in ("label", "weight", "group") if getattr(self, name) is not None]
        return tuple(sorted(self.sparse)), self.schema.dense, (*roles, *sorted(self.labels), *sorted(self.arrived))

    @property
    def on_device(self) -> bool:
        """Return whether the arrays are tensors on a GPU."""
        return not isinstance(self.dense, np.ndarray)

    def cpu(self) -> Batch:
        """Return this batch with NumPy arrays. If it has NumPy arrays already, return the batch itself."""
        if not self.on_device:
            return self

        def over(array: Any) -> np.ndarray | None:
            return None if array is None else as_array(array)

        sparse = {name: ragged.cpu() for name, ragged in self.sparse.items()}
        label, group, weight = over(self.label), over(self.group), over(self.weight)
        several: dict[str, Any] = {
            kind: {name: as_array(array) for name, array in getattr(self, kind).items()}
            for kind in ("labels", "observed", "arrived")
        }
        return Batch(self.schema, self.rows, label, as_array(self.dense), sparse, group, weight, self.index, **several)

    def take(self, rows: np.ndarray) -> Batch:
        """Return a batch with copies of the given rows, in the given order.

        ``rows`` are numbers, where negative ones count from the end, or a mask with one value per row.
        """
        rows = _numbers(rows, self.rows)
        index = None if self.index is None else self.index[rows]
        if self.on_device:
            import torch

            dense: Any = self.dense
            at: Any = torch.from_numpy(np.ascontiguousarray(rows)).to(dense.device)
            rows = at

        def pick(array: np.ndarray | None) -> np.ndarray | None:
            return None if array is None else array[rows]

        return Batch(
            self.schema,
            len(rows),
            pick(self.label),
            self.dense[rows],
            {name: ragged.take(rows) for name, ragged in self.sparse.items()},
            pick(self.group),
            pick(self.weight),
            index,
            labels={name: values[rows] for name, values in self.labels.items()},
            observed={name: known[rows] for name, known in self.observed.items()},
            arrived={name: shares[rows] for name, shares in self.arrived.items()},
        )

    def slice(self, start: int, stop: int) -> Batch:
        """Return the rows from ``start`` up to ``stop`` as a batch that shares the memory of this batch, which must not be on
        a GPU. Negative numbers count from the end, as in slices of lists.
        """
        start, stop, _ = slice(start, stop).indices(self.rows)
        stop = max(start, stop)

        def part(array: np.ndarray | None) -> np.ndarray | None:
            return None if array is None else array[start:stop]

        sparse = {}
        for name, ragged in self.sparse.items():
            offsets = ragged.offsets[start : stop + 1]
            sparse[name] = Ragged(ragged.values[offsets[0] : offsets[-1]], offsets - offsets[0])
        return Batch(
            self.schema,
            len(self.dense[start:stop]),
            part(self.label),
            self.dense[start:stop],
            sparse,
            part(self.group),
            part(self.weight),
            part(self.index),
            labels={name: values[start:stop] for name, values in self.labels.items()},
            observed={name: known[start:stop] for name, known in self.observed.items()},
            arrived={name: shares[start:stop] for name, shares in self.arrived.items()},
        )

    def select(self, schema: Schema) -> Batch:
        """Return a batch with the features that ``schema`` names, in the order of ``schema``.

        The new batch shares the keys of this batch. Dense columns are copied if ``schema`` leaves some of them out.
        """
        columns, at = {}, 0
        for name, width in self.schema.dense:
            columns[name] = range(at, at + width)
            at += width
        for name in [*(f.name for f in schema.sparse), *(name for name, _ in schema.dense)]:
            if name not in self.sparse and name not in columns:
                raise PlanError(
                    f"feature {name!r} is neither a sparse feature nor a dense column of this "
                    f"batch{nearest(name, [*self.sparse, *columns])}"
                )
        chosen = [k for name, _ in schema.dense for k in columns[name]]
        return Batch(
            schema,
            self.rows,
            self.label if schema.label else None,
            self.dense
            if chosen == list(range(self.dense.shape[1]))
            else self.dense[:, chosen]
            if self.on_device
            else np.ascontiguousarray(self.dense[:, chosen]),
            {f.name: self.sparse[f.name] for f in schema.sparse},
            self.group if schema.group else None,
            # Weights that the feature set does not name come from downsampled negatives and belong to the rows.
            self.weight if schema.weight or not self.schema.weight else None,
            self.index,
            labels={task.name: self.labels[task.name] for task in schema.tasks if task.name in self.labels},
            observed={task.name: self.observed[task.name] for task in schema.tasks if task.name in self.observed},
            arrived={task.name: self.arrived[task.name] for task in schema.tasks if task.name in self.arrived},
        )

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        """Return one batch with the rows of several batches, one after the other. All batches must have the same schema."""
        if not batches:
            raise PlanError("Batch.concat needs at least one batch")
        batches = [b.cpu() for b in batches]
        first = batches[0]
        for k, b in enumerate(batches):
            for what, ours, theirs in zip(
                ("sparse features", "dense features", "labels, weights and groups"), first._parts, b._parts, strict=True
            ):
                if ours != theirs:
                    raise PlanError(
                        f"Batch.concat needs batches with the same {what}, but batch 0 has {ours} and batch {k} has {theirs}"
                    )

        def join(arrays: list[Any]) -> np.ndarray | None:
            return None if arrays[0] is None else np.concatenate(arrays)

        sparse = {}
        for name in first.sparse:
            parts = [b.sparse[name] for b in batches]
            values = [p.values[p.offsets[0] : p.offsets[-1]] for p in parts]
            ends = np.cumsum([0] + [len(v) for v in values])
            offsets = [p.offsets[:-1] - p.offsets[0] + end for p, end in zip(parts, ends, strict=False)]
            sparse[name] = Ragged(np.concatenate(values), np.concatenate([*offsets, ends[-1:]]).astype(np.int64))
        return Batch(
            first.schema,
            sum(b.rows for b in batches),
            join([b.label for b in batches]),
            np.concatenate([b.dense for b in batches]),
            sparse,
            join([b.group for b in batches]),
            join([b.weight for b in batches]),
            labels={name: np.concatenate([b.labels[name] for b in batches]) for name in first.labels},
            observed={name: np.concatenate([b.observed[name] for b in batches]) for name in first.observed},
            arrived={name: np.concatenate([b.arrived[name] for b in batches]) for name in first.arrived},
        )

    def to_arrow(self) -> pa.RecordBatch:
        """Return an Arrow batch with the columns ``label``, ``weight`` and ``group``, and one column for each feature.

        Dense columns are float32, and sparse features are int64 or lists. Each of several labels is a column with the name of
        the label; it is null where the label was not observed. The shares of ``arrived`` are columns with the name "arrived
        NAME".
        """
        if self.on_device:
            return self.cpu().to_arrow()
        columns: dict[str, pa.Array] = {}
        for name in ("label", "weight", "group"):
            array = getattr(self, name)
            if array is not None:
                columns[name] = pa.array(array)
        for name, values in self.labels.items():
            columns[name] = pa.array(values, mask=~self.observed[name])
        for name, shares in self.arrived.items():
            columns[f"arrived {name}"] = pa.array(shares)
        for k, name in enumerate(self.schema.dense_names):
            columns[name] = pa.array(np.ascontiguousarray(self.dense[:, k]))
        for field in self.schema.sparse:
            ragged = self.sparse[field.name]
            columns[field.name] = ragged.to_arrow() if field.ragged else pa.array(ragged.values)
        if not columns:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * self.rows, pa.struct([])))
        return pa.RecordBatch.from_pydict(columns)

    @staticmethod
    def from_arrow(schema: Schema, rows: pa.RecordBatch) -> Batch:
        """Return the batch from which ``to_arrow`` made an Arrow batch. Dense columns are copied into one matrix; keys are
        not copied.
        """
        dense = np.empty((rows.num_rows, schema.dense_width), np.float32)
        for k, name in enumerate(schema.dense_names):
            dense[:, k] = rows.column(name).to_numpy(zero_copy_only=False)
        sparse = {}
        for field in schema.sparse:
            column = rows.column(field.name)
            if field.ragged:
                offsets = column.offsets.to_numpy()
                sparse[field.name] = Ragged(
                    column.values.to_numpy()[offsets[0] : offsets[-1]],
                    (offsets - offsets[0]).astype(np.int64),
                )
            else:
                sparse[field.name] = Ragged(column.to_numpy(), np.arange(rows.num_rows + 1, dtype=np.int64))

        def optional(name: str, present: bool) -> np.ndarray | None:
            return np.asarray(rows.column(name).to_numpy(zero_copy_only=False)) if present else None

        return Batch(
            schema,
            rows.num_rows,
            optional("label", schema.label),
            dense,
            sparse,
            optional("group", schema.group),
            optional("weight", "weight" in rows.schema.names),  # also of downsampled negatives
            labels={t.name: np.asarray(rows.column(t.name).to_numpy(zero_copy_only=False)) for t in schema.tasks},
            observed={t.name: np.asarray(rows.column(t.name).is_valid()) for t in schema.tasks},
            arrived={
                t.name: np.asarray(rows.column(f"arrived {t.name}").to_numpy(zero_copy_only=False))
                for t in late(schema.tasks)
            },
        )

    def torch(self) -> dict[str, Any]:
        """Return a dict of torch tensors that share the memory of the batch: label, dense, group, weight and sparse.

        ``sparse`` is a dict with a pair (values, offsets) for each feature. If there are several labels, ``labels`` and
        ``observed`` are dicts with one tensor for each label, and ``arrived`` is a dict with one tensor for each label that
        may turn from 0 to 1 later.
        """
        import torch

        def tensor(array: Any) -> Any:
            return torch.from_numpy(array) if isinstance(array, np.ndarray) else array

        tensors: dict[str, Any] = {"dense": tensor(self.dense)}
        for name in ("label", "weight", "group"):
            array = getattr(self, name)
            if array is not None:
                tensors[name] = tensor(array)
        if self.labels:
            tensors["labels"] = {name: tensor(values) for name, values in self.labels.items()}
            tensors["observed"] = {name: tensor(known) for name, known in self.observed.items()}
            tensors["arrived"] = {name: tensor(shares) for name, shares in self.arrived.items()}
        tensors["sparse"] = {name: (tensor(r.values), tensor(r.offsets)) for name, r in self.sparse.items()}
        return tensors

    @staticmethod
    def from_torch(schema: Schema, tensors: Mapping[str, Any]) -> Batch:
        """Return the batch from which ``torch`` made tensors. CPU tensors share their memory with the batch."""
        dense = tensors["dense"].numpy()
        arrays = {n: tensors[n].numpy() if n in tensors else None for n in ("label", "weight", "group")}
        sparse = {n: Ragged(v.numpy(), o.numpy()) for n, (v, o) in tensors["sparse"].items()}
        several: dict[str, Any] = {
            kind: {n: t.numpy() for n, t in tensors.get(kind, {}).items()} for kind in ("labels", "observed", "arrived")
        }
        return Batch(schema, len(dense), arrays["label"], dense, sparse, arrays["group"], arrays["weight"], **several)
