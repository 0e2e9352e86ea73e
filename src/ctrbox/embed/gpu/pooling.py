"""Looks up, pools and updates the rows of a batch in a GPU table with fused kernels.

    reading = table.read(references, pooled, pooling, sequences)         rows found or made, sorting begun
    reading.weights, reading.vectors, reading.sequences                  pooled in one launch, part of autograd's graph
    loss.backward()                                                      gradients of those come to rest here
    reading.push(scale)                                                  summed a key and applied, in three launches

Pooling is that of ``pooling.py``: sums begin with the first reference and run in order, a mean is sum / count, a
maximum is taken number by number. The gradients of a key are added up in an order that depends only on its references
(table_training_step.h). It is not the order of the CPU, so sums of more than two terms agree with those of the CPU up
to rounding. Two runs give the same bits.

Bytes per reference at dim 16 with SGD: key 8, slot 32, row number 4 + 4, row 64 in and 64 out, sorting about 100, its
gradient 64, its row 64 in and 64 out, in all about 470; so 65,536 rows × 40 keys cannot take less than 0.3 ms at 4
TB/s.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from ctrbox.embed.embedder import Row
from ctrbox.embed.gpu.batch_to_device import References
from ctrbox.embed.gpu.kernels import address
from ctrbox.embed.gpu.table_memory import Gradients, Store
from ctrbox.embed.pooling import KINDS
from ctrbox.errors import DataError, PlanError

ONE = 0x3F800000  # bits of 1.0
Sequenced = dict[str, tuple[torch.Tensor, torch.Tensor]]


class Pools(Protocol):
    """The methods of a table that a `Reading` calls: a `GpuTable`, or the table of a rank on a GPU."""

    factor: float  # of the learning rates

    @property
    def device(self) -> torch.device: ...
    @property
    def row(self) -> Row: ...
    @property
    def anchor(self) -> torch.Tensor: ...
    @property
    def side_stream(self) -> Any: ...
    def ordered(self) -> contextlib.AbstractContextManager[None]: ...
    def reach(self, references: References, train: bool) -> tuple[Store, torch.Tensor]: ...
    def learned(self, references: References) -> None: ...


class Reading:
    """Pooled vectors (rows, fields, dim), first-order weights (rows, fields) and sequences of one batch and table.

    ``references`` are those of the pooled fields, then those of the sequences. ``longest``: the number of last keys of
    a row that a sequence keeps. Without ``train``, no rows are created and there is no gradient. ``into``: memory for
    vectors and weights, which are then not part of autograd's graph; the caller that gave it puts the gradients into
    ``inbox``. ``bf16``: vectors and their gradients are bfloat16, but not with sequences; with ``into``, its memory
    decides the type.
    """

    def __init__(
        self,
        table: Pools,
        references: References,
        pooled: Sequence[str],
        pooling: Sequence[str],
        sequences: Sequence[str],
        *,
        longest: int,
        train: bool,
        into: tuple[torch.Tensor, torch.Tensor | None] | None,
        bf16: bool,
    ) -> None:
        if references.fields != (*pooled, *sequences):
            raise PlanError(
                f"the references belong to the fields {references.fields}; expected {(*pooled, *sequences)}"
            )
        for kind in pooling:
            if kind not in KINDS:
                raise PlanError(f"pooling must be one of {', '.join(KINDS)}, got {kind!r}")
        self.table, self.references, self.train = table, references, train
        self.fields, self.kinds, self.names, self.longest = len(pooled), pooling, tuple(sequences), longest
        # Autograd's graph holds this list and not the reading, which holds the graph: a circle would outlive its step.
        self.into = into
        self.type = torch.bfloat16 if bf16 and not sequences else torch.float32
        if into is not None:
            self.type = into[0].dtype
        self.inbox: list[tuple[torch.Tensor | None, ...]] = []
        self.store, self.rows = table.reach(references, train)
        with table.ordered():
            self._plan()
            self._sort_ahead()
            if train and into is None:
                outputs = list(_Read.apply(table.anchor, self))
            else:
                outputs = list(self._read())
        self.weights = outputs.pop(0) if table.row.linear else None
        self.vectors = outputs.pop(0)
        lengths = [length for _, length, _ in self.spans]
        self.sequences: Sequenced = dict(zip(self.names, zip(outputs, lengths, strict=True), strict=True))

    # ---- forward

    def _plan(self) -> None:
        """How fields are pooled, as kernels read it; nothing where all have one key per row."""
        r = self.references
        self.single = all(at < 0 for at in r.at[: self.fields])
        self.maxima = 0
        lines = []
        for f in range(0 if self.single else self.fields):
            how = KINDS.index(self.kinds[f]) if r.at[f] >= 0 else 0  # of one key all kinds are a copy
            lines.append([r.starts[f], r.starts[f + 1] - r.starts[f], r.at[f], how, self.maxima])
            self.maxima += KINDS[how] == "max"
        self.plan = None
        if not self.single:
            plan = torch.tensor(lines, dtype=torch.int64)
            if self.table.device.type == "cuda":
                plan = plan.pin_memory()
            self.plan = plan.to(self.table.device, non_blocking=True)
        self.links: torch.Tensor | None = None
        self.winners: torch.Tensor | None = None
        if self.train and (not self.single or self.names):
            # One more than there are references: what belongs to none is written there.
            self.links = torch.full((len(r) + 1, 2), -1, dtype=torch.int32, device=self.table.device)
        if self.train and self.maxima:
            shape = (r.rows * self.maxima, self.store.kernels.sums)
            self.winners = torch.empty(shape, dtype=torch.int32, device=self.table.device)

    def _read(self) -> tuple[torch.Tensor, ...]:
        table, store, r = self.table, self.store, self.references
        dim, cells = table.row.dim, (r.rows, self.fields)
        if self.into is not None:
            vectors, weights = self.into
        else:
            vectors = torch.empty(*cells, dim, device=table.device, dtype=self.type)
            weights = torch.empty(cells, device=table.device) if table.row.linear else None
        tiles = (r.rows + 7) // 8 * 8
        store.kernels(
            "table_pool",
            tiles * self.fields,
            *(address(store.head), address(r.keys), address(self.rows), address(self.plan)),
            *(self.fields, r.rows, address(r.offsets), int(self.single), address(vectors), address(weights)),
            *(address(self.winners), self.maxima, address(self.links), int(self.type == torch.bfloat16)),
            shared=True,
        )
        self.spans = [self._span(name) for name in self.names]
        if r.rows * (self.fields + sum(span[2] for span in self.spans)) >= 2**31:
            raise DataError(f"{r.rows:,} rows of these sequences are more than 2^31 - 1 vectors; use smaller batches")
        sequences = [self._sequence(f, longest) for f, (_, _, longest) in enumerate(self.spans)]
        return (*(() if weights is None else (weights,)), vectors, *sequences)

    def _span(self, name: str) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Return, for each row of a sequence, the reference after its last key and the number of kept keys; and the
        largest number.
        """
        r, device = self.references, self.table.device
        f = r.fields.index(name)
        if r.at[f] < 0:
            ends = torch.arange(1, r.rows + 1, device=device)
            lengths = torch.ones(r.rows, dtype=torch.int64, device=device)
        else:
            assert r.offsets is not None
            offsets = r.offsets[r.at[f] : r.at[f] + r.rows + 1].clamp(0, r.starts[f + 1] - r.starts[f])
            ends, lengths = offsets[1:], torch.diff(offsets).clamp(0, self.longest)
        return ends + r.starts[f], lengths, min(self.longest, r.longest[name])

    def _sequence(self, number: int, longest: int) -> torch.Tensor:
        """Vectors (rows, longest, dim) of a field's last keys; where a row has fewer, those of the null slot."""
        table, r = self.table, self.references
        ends, lengths, _ = self.spans[number]
        column = torch.arange(longest, device=table.device)
        there = column < lengths.unsqueeze(1)
        which = torch.where(there, (ends - lengths).unsqueeze(1) + column, len(r)).view(-1)
        rows = torch.cat([self.rows, self.rows.new_zeros(1)])[which]
        keys = torch.cat([r.keys, r.keys.new_zeros(1)])[which]
        out = torch.empty(r.rows, longest, table.row.dim, device=table.device)
        self.store.gather(keys, rows, out, table.row.dim, None)
        if self.links is not None:
            before = r.rows * (self.fields + sum(span[2] for span in self.spans[:number]))
            pair = torch.arange(before, before + len(which), dtype=torch.int32, device=table.device)
            self.links[which] = torch.stack([pair, torch.full_like(pair, ONE)], 1)
        return out

    # ---- backward

    def _sort_ahead(self) -> None:
        """References by row. It needs nothing of the model, so on a GPU it runs beside it."""
        self.sorted: Any = None
        if not self.train:
            return
        if self.table.device.type != "cuda":
            self.sorted = torch.sort(self.rows, stable=True)
            return
        stream = torch.cuda.current_stream(self.table.device)
        side = self.table.side_stream
        side.wait_stream(stream)
        with torch.cuda.stream(side):
            self.sorted = torch.sort(self.rows, stable=True)
            self.behind = side.record_event()
        self.rows.record_stream(side)

    @property
    def gradients(self) -> tuple[torch.Tensor | None, ...] | None:
        """Return the gradients of weights, vectors and sequences; None if the loss depends on none of them."""
        return self.inbox[0] if self.inbox else None

    def expect_none(self) -> None:
        """Make ``push`` push zeros if the loss depends on no vector of this batch."""
        if not self.inbox:
            self.inbox.append((None,) * (1 + int(self.table.row.linear) + len(self.names)))

    def push(self, scale: float) -> None:
        """Make one step of the optimizers of the table with the gradients times ``scale``. Numbers whose gradient is
        not finite do not change.
        """
        if self.gradients is None:
            return
        table, r = self.table, self.references
        dim = table.row.dim
        given = [None if g is None else g.contiguous() for g in self.gradients]
        weights = given.pop(0) if table.row.linear else None
        weights = None if weights is None else weights.float()
        vectors = given[0] if given[0] is None else given[0].to(self.type)
        if self.names:
            shapes = [(r.rows * self.fields, dim), *((r.rows * span[2], dim) for span in self.spans)]
            vectors = torch.cat(
                [
                    torch.zeros(s, device=table.device) if g is None else g.view(s)
                    for g, s in zip(given, shapes, strict=True)
                ]
            )
        gradients = Gradients(
            r.rows,
            self.fields,
            vectors,
            dim,
            weights,
            1,
            links=self.links,
            winners=self.winners,
            maxima=self.maxima,
            plan=self.plan,
        )
        rows, order = self.sorted
        with table.ordered():
            if table.device.type == "cuda":
                stream = torch.cuda.current_stream(table.device)
                stream.wait_event(self.behind)
                for tensor in (rows, order):
                    tensor.record_stream(stream)
            self.store.step(rows, order, gradients, table.factor, scale)
            table.learned(r)

    def largest(self, scale: float) -> tuple[float, str, int]:
        """Return the largest gradient of a pooled field: its size (infinite if it is not a number), its field, and one
        of its keys.
        """
        found = (0.0, "", 0)
        if self.gradients is None:
            return found
        r = self.references
        for g in self.gradients[: 1 + int(self.table.row.linear)]:
            if g is None or not g.numel():
                continue
            sizes = (g.float().abs().view(r.rows, self.fields, -1) * scale).amax(2)
            sizes = torch.where(torch.isnan(sizes), torch.inf, sizes)
            at = int(sizes.argmax())
            size = float(sizes.view(-1)[at])
            if size > found[0]:
                row, f = divmod(at, self.fields)
                reference = r.starts[f] + row
                if r.at[f] >= 0:
                    assert r.offsets is not None
                    reference = r.starts[f] + int(r.offsets[r.at[f] + row])
                found = (size, r.fields[f], int(r.keys[min(reference, len(r) - 1)]))
        return found


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, reading: Reading) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.inbox = reading.inbox
        return reading._read()

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[None, None]:
        ctx.inbox.append(gradients)
        return None, None
