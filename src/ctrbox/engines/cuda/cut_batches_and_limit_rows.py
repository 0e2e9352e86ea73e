"""Cuts the rows of a GPU's chunks into batches of one size, up to a limit of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from ctrbox.columns.batch import Batch
from ctrbox.engines.cuda.copy_out_batches import MOST_STRETCHES, Piece
from ctrbox.engines.cuda.device_memory import Outcome

if TYPE_CHECKING:
    from ctrbox.engines.cuda.extract import Chunk, CudaExtractor


class Cutter:
    """Cuts the chunks' rows into batches of one size, up to a limit of rows."""

    def __init__(self, extractor: CudaExtractor, batch_size: int, limit: int | None) -> None:
        self.extractor, self.batch_size, self.left = extractor, batch_size, limit
        self.pieces: list[Piece] = []
        self.rows = 0  # in pieces
        self.after = 0
        self.begin = 0  # of the batch that a bad row is in, among its chunk's rows

    @property
    def full(self) -> bool:
        return self.left == 0

    def take(self, chunk: Chunk, outcome: Outcome) -> list[tuple[Batch, int]]:
        """Return the batches that a chunk completes, and copy its rows out of the slot."""
        e = self.extractor
        rows = outcome.rows if self.left is None else min(outcome.rows, self.left)
        # Batches end before the first bad row; a bad row behind the limit is none of ours.
        good = min([row for row, _, _, _ in outcome.bad], default=rows)
        if good < rows:
            rows = max(0, (self.rows + good) // self.batch_size * self.batch_size - self.rows)
            self.begin = rows
        if self.left is not None:
            self.left -= rows
        if not rows:
            return []
        cuts = sorted({0, rows, *range(self.batch_size - self.rows, rows, self.batch_size)})
        with e.on("reading"):
            if e.cuda:
                e.reading.wait_event(chunk.slot.done)
            values, last = self._ends(chunk, outcome, cuts)
            sources = e.maker.sources(chunk.slot)
            whole: list[tuple[Piece, int]] = []
            step = max(1, MOST_STRETCHES // e.maker.parts)
            for k in range(0, len(cuts) - 1, step):
                here = slice(k, k + step + 1)
                done = self.rows + cuts[k + 1] - cuts[k] == self.batch_size
                made = e.maker.cut(sources, np.array(cuts[here]), values[:, here], self.pieces if done else ())
                if done:
                    self.pieces, self.rows = [], 0
                for piece, row in zip(made, last[k + 1 :], strict=False):
                    self.after = chunk.morsel.start + int(row) + 1
                    if piece.rows == self.batch_size:
                        whole.append((piece, self.after))
                    else:
                        self.pieces.append(piece)
                        self.rows += piece.rows
            if e.cuda:
                chunk.slot.read = e.reading.record_event()
            return self._batches(whole)

    def _ends(self, chunk: Chunk, outcome: Outcome, cuts: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return for each list the number of values before each cut, and for each cut the row of the morsel before it."""
        e, slot = self.extractor, chunk.slot
        device = e.runtime.device
        inner = len(cuts) > 2 or cuts[-1] != outcome.rows
        filtered = e.layout.filtered
        before = np.array(cuts) - 1
        if inner or filtered:
            at = torch.tensor([cuts, [max(0, c - 1) for c in cuts]])
            if e.cuda:
                at = at.pin_memory().to(device, non_blocking=True)
            parts = [slot.parts["offsets"].index_select(1, at[0])]
            if filtered:
                parts.append(slot.picked.index_select(0, at[1]).to(torch.int64)[None])
            told = torch.cat(parts).cpu().numpy()
            values = told[: e.maker.lists]
            if filtered:
                before = told[-1]
        else:
            values = np.array([[0, total] for total in outcome.totals], np.int64).reshape(e.maker.lists, 2)
        if chunk.prepared is not None and chunk.prepared.selected is not None:
            before = np.array([chunk.prepared.row(max(0, c - 1)) for c in cuts])
        return values, before

    def _batches(self, whole: list[tuple[Piece, int]]) -> list[tuple[Batch, int]]:
        """Return the batches of pieces whose copies are queued, each with the row after it."""
        e = self.extractor
        e.maker.reach(max((piece.rows for piece, _ in whole), default=0))
        ready = None
        if e.cuda and whole:  # whoever uses them next does so on the usual stream
            usual = torch.cuda.default_stream(e.runtime.device)
            ready = e.reading.record_event()
            usual.wait_event(ready)
            for storage in {id(piece.storage): piece.storage for piece, _ in whole}.values():
                storage.record_stream(usual)
        return [(e.maker.batch(piece, ready), after) for piece, after in whole]

    def rest(self) -> list[tuple[Batch, int]]:
        if not self.pieces:
            return []
        e = self.extractor
        with e.on("reading"):
            return self._batches([(e.maker.joined(self.pieces), self.after)])
