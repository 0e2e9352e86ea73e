"""Copies a batch to the device of the model: each array that the model and the GPU tables read is sent once.

Batches of the CPU engine are arrays: they are put together in page-locked memory and travel on a stream of their own
while the step before them runs. Batches of the CUDA engine already are tensors and are used as they are. The host has
never read their contents, so the kernels do not trust their offsets.

This module refuses fields that the batch does not have, keys that are not int64 and, in arrays, offsets that do not
fit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from ctrbox.arguments.names import nearest
from ctrbox.columns.batch import Batch, as_array
from ctrbox.embed.unique_keys import arrays_of, from_zero
from ctrbox.errors import DataError, PlanError


def facts(batch: Batch) -> Batch:
    """Return the batch with label, weight and group as arrays. Its keys and dense columns stay where they are."""
    if not batch.on_device:
        return batch
    with beside(batch):
        label, weight, group = (None if t is None else as_array(t) for t in (batch.label, batch.weight, batch.group))
        return replace(batch, label=label, weight=weight, group=group)


_sides: dict[torch.device, torch.cuda.Stream] = {}


@contextlib.contextmanager
def beside(batch: Batch) -> Iterator[None]:
    """Run the block on a stream that waits only for the kernels that wrote the batch, and not for steps of the training."""
    if batch.ready is None:
        yield
        return
    dense: Any = batch.dense
    side = _sides.get(dense.device)
    if side is None:
        side = _sides.setdefault(dense.device, torch.cuda.Stream(dense.device))
    side.wait_event(batch.ready)
    with torch.cuda.stream(side):
        yield


@dataclass(frozen=True, eq=False)
class References:
    """All references of a batch to one GPU table: field after field, row after row within a field."""

    keys: torch.Tensor  # (references,) int64
    rows: int
    fields: tuple[str, ...]
    starts: tuple[int, ...]  # len(fields) + 1: where each field's references begin
    offsets: torch.Tensor | None  # of ragged fields, rows + 1 each, one after the other, each from 0
    at: tuple[int, ...]  # by field: where its offsets begin, -1: exactly one key per row
    longest: Mapping[str, int] = field(default_factory=dict)  # by sequence: keys of its longest row

    def __len__(self) -> int:
        return self.starts[-1]

    @property
    def inverse(self) -> range:
        """The place of each reference in ``keys``, as in a `Lookup`; here the keys are not unique, so it is the
        reference itself.
        """
        return range(len(self))

    def field_of(self, reference: int) -> str:
        return next(n for n, end in zip(self.fields, self.starts[1:], strict=True) if reference < end)

    @staticmethod
    def of(batch: Batch, fields: Sequence[str], device: torch.device, sequences: Sequence[str] = ()) -> References:
        """Return what ``batch`` reads for ``fields``, with the length of the longest row of each field in ``sequences``."""
        here = not batch.on_device
        parts = sent_parts(batch, fields) if here else tensors_of(batch, fields)
        starts, at, behind = [0], [], 0
        ragged, longest = [], {}
        for name, (values, offsets) in zip(fields, parts, strict=True):
            starts.append(starts[-1] + (values.size if here else values.numel()))
            at.append(-1 if offsets is None else behind)
            if offsets is not None:
                ragged.append(offsets)
                behind += batch.rows + 1
            if name in sequences:
                most = 1 if offsets is None or not batch.rows else int((offsets[1:] - offsets[:-1]).max())
                longest[name] = max(1, most)
        if starts[-1] >= 2**31 or batch.rows * max(1, len(fields)) >= 2**31:
            raise DataError("the batch refers to more than 2^31 - 1 keys; use smaller batches")
        values = [values for values, _ in parts]
        if here:
            keys, *rest = sent([np.concatenate([*values, np.empty(0, np.int64)]), *ragged], device)
        else:
            keys, rest = joined(values, device), ragged
        ends = joined(rest, device) if rest else None
        return References(keys, batch.rows, tuple(fields), tuple(starts), ends, tuple(at), longest)


Parts = list[tuple[Any, Any]]


def sent_parts(batch: Batch, fields: Sequence[str]) -> Parts:
    """Return the keys of each field, and its offsets, which begin at 0; the offsets are None if every row has one key."""
    parts: Parts = []
    for name, (values, offsets, ragged) in zip(fields, arrays_of(batch, fields), strict=True):
        if not ragged and offsets[0] == 0 and len(values) == batch.rows:
            parts.append((values, None))
            continue
        lengths = np.diff(offsets)
        if offsets[0] < 0:
            raise DataError(f"field {name!r}: offsets begin at {offsets[0]}, below 0")
        if (lengths < 0).any():
            raise DataError(f"field {name!r}: offsets decrease from one row to the next; expected ascending offsets")
        if offsets[-1] > len(values):
            raise DataError(f"field {name!r}: offsets end at {offsets[-1]}, but there are only {len(values)} values")
        single = bool((lengths == 1).all())
        if not single and not ragged:
            raise DataError(
                f"field {name!r} has rows with no key or several keys, but its schema says exactly one key per row"
            )
        parts.append((values[offsets[0] : offsets[-1]], None if single else from_zero(offsets)))
    return parts


def tensors_of(batch: Batch, fields: Sequence[str]) -> Parts:
    """Return the same as `sent_parts` for a batch of tensors, without reading their contents."""
    ragged = {f.name: f.ragged for f in batch.schema.sparse}
    parts: Parts = []
    for name in fields:
        if name not in ragged or name not in batch.sparse:
            raise PlanError(f"{name!r} is not a sparse field of this batch{nearest(name, ragged)}; it has {[*ragged]}")
        one: Any = batch.sparse[name]
        values, offsets = one.values, one.offsets
        if values.dtype != torch.int64 or offsets.dtype != torch.int64:
            raise DataError(f"field {name!r} has {values.dtype} keys and {offsets.dtype} offsets; expected int64")
        if offsets.numel() != batch.rows + 1:
            raise DataError(f"field {name!r} has {len(offsets) - 1} rows, but the batch has {batch.rows}")
        if not ragged[name] and values.numel() != batch.rows:
            raise DataError(
                f"field {name!r} has rows with no key or several keys, but its schema says exactly one key per row"
            )
        parts.append((values, offsets if ragged[name] else None))
    return parts


def joined(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Join tensors; make no copy if they already follow each other in memory, as the CUDA engine writes them."""
    some = [t for t in tensors if t.numel()]
    if not some:
        return torch.empty(0, dtype=torch.int64, device=device)
    end = some[0].data_ptr()
    first = end
    for t in some:
        if t.data_ptr() != end or not t.is_contiguous():
            return torch.cat(some)
        end += t.numel() * 8
    storage = some[0].untyped_storage()
    if end > storage.data_ptr() + storage.nbytes():
        return torch.cat(some)  # neighbors by chance, of different allocations
    offset = (first - storage.data_ptr()) // 8
    whole = torch.empty(0, dtype=torch.int64, device=some[0].device)
    return whole.set_(storage, offset, ((end - first) // 8,))


def sent(arrays: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """Send arrays of one type to a device in one transfer from page-locked memory, and return them as tensors."""
    total = sum(a.size for a in arrays)
    dtype = torch.from_numpy(np.empty(0, arrays[0].dtype)).dtype
    staged = torch.empty(total, dtype=dtype, pin_memory=device.type == "cuda")
    view, at = staged.numpy(), 0
    for a in arrays:
        view[at : at + a.size] = a.reshape(-1)
        at += a.size
    moved = staged.to(device, non_blocking=True)
    found, at = [], 0
    for a in arrays:
        found.append(moved[at : at + a.size].view(a.shape))
        at += a.size
    return found


@dataclass(frozen=True, eq=False)
class Carried:
    """The inputs of a model other than keys, for one batch, on its device. ``ready``: the event after all transfers."""

    dense: torch.Tensor
    label: torch.Tensor | None
    weight: torch.Tensor | None
    ready: Any = None

    def arrive(self, references: Sequence[References]) -> None:
        """Make the current stream wait for the transfers."""
        if self.ready is None:
            return
        stream = torch.cuda.current_stream(self.dense.device)
        stream.wait_event(self.ready)
        for tensor in (self.dense, self.label, self.weight, *(t for r in references for t in (r.keys, r.offsets))):
            if tensor is not None:
                tensor.record_stream(stream)


class Carrier:
    """Sends batches to a device, on a stream of its own where the device has streams."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def carry(
        self, batch: Batch, reads: Sequence[tuple[Sequence[str], Sequence[str]]]
    ) -> tuple[Carried, list[References]]:
        """Send a batch to the device. ``reads``: for each GPU table, the fields that are read, and those that are read
        as sequences.
        """
        if batch.on_device:
            with beside(batch):
                dense, label, weight = (_float(t) for t in (batch.dense, batch.label, batch.weight))
                assert dense is not None
                references = [References.of(batch, fields, self.device, sequences) for fields, sequences in reads]
                # A model may change its input in place, a batch never changes.
                dense = dense.clone()
                ready = None if batch.ready is None else torch.cuda.current_stream(self.device).record_event()
            carried = Carried(dense, label, weight, ready)
            carried.arrive(references)
            return carried, references
        with contextlib.ExitStack() as stack:
            if self.stream is not None:
                stack.enter_context(torch.cuda.stream(self.stream))
            present = [a for a in (batch.dense, batch.label, batch.weight) if a is not None]
            moved = sent([np.asarray(a, np.float32) for a in present], self.device)
            dense = moved.pop(0)
            label = None if batch.label is None else moved.pop(0)
            weight = None if batch.weight is None else moved.pop(0)
            references = [References.of(batch, fields, self.device, sequences) for fields, sequences in reads]
            ready = None if self.stream is None else self.stream.record_event()
        carried = Carried(dense, label, weight, ready)
        carried.arrive(references)
        return carried, references


def _float(tensor: Any) -> torch.Tensor | None:
    return None if tensor is None else tensor.float()


class Told:
    """A number of the device on its way to the host."""

    def __init__(self, number: torch.Tensor) -> None:
        self.number = number.detach()
        self.known = self.number.device.type != "cuda"
        if not self.known:
            self.there = torch.empty((), dtype=self.number.dtype, pin_memory=True)
            self.there.copy_(self.number, non_blocking=True)
            self.behind = torch.cuda.Event()
            self.behind.record(torch.cuda.current_stream(self.number.device))

    def value(self) -> float:
        """Wait until the number has arrived, and return it."""
        if self.known:
            return float(self.number)
        self.behind.synchronize()
        return float(self.there)
