"""Runs an encoder on whole batches on a GPU while the next batches are filled and the vectors of earlier ones are kept.

    caller            fills the rows of a page-locked batch, many images at a time where they lie side by side
    copying stream    copies it to the GPU while the network runs on the batch before
    current stream    normalizes the pixels and runs the network
    returning stream  copies the vectors into page-locked memory
    one thread        waits for the vectors of each batch in turn and hands them to `keep`

`BATCHES` batches exist; the caller waits for a free one. Their number and order do not change a result. On a CPU, where tests run
it, the same code runs without streams.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ctrbox.embed.vectors.encoders import Encoder
from ctrbox.errors import DataError
from ctrbox.files.interruptible_wait import join, taken_from

BATCHES = 4  # while one is filled, others are copied, computed and kept


@dataclass
class _Batch:
    """Memory of a batch. ``inputs`` and ``vectors`` are allocated when their shapes are known."""

    hashes: list[bytes] = field(default_factory=list)
    inputs: torch.Tensor | None = None
    vectors: torch.Tensor | None = None
    began: Any = None
    ended: Any = None
    returned: Any = None


def _bytes(images: torch.Tensor) -> np.ndarray:
    """Return the bytes of images. NumPy copies them with one thread; torch would divide them among all its threads, which then
    wait for work on the cores that decode.
    """
    return images.contiguous().view(-1).view(torch.uint8).numpy()


class GpuBatches:
    """Collects images into batches and passes their vectors to ``keep`` in the order in which the images came.

    ``finish`` computes the input of the network from the images of a batch, on the GPU. By default, the images are the input.
    """

    def __init__(
        self,
        encoder: Encoder,
        batch_size: int,
        keep: Callable[[list[bytes], np.ndarray], None],
        finish: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        self.encoder, self.batch_size, self.keep, self.finish = encoder, batch_size, keep, finish
        self.seconds = 0.0  # seconds that the network ran
        self.cuda = encoder.device.type == "cuda"
        self._streams = [torch.cuda.Stream(encoder.device) for _ in range(2)] if self.cuda else []
        self._free: queue.SimpleQueue[_Batch] = queue.SimpleQueue()
        self._sent: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        for _ in range(BATCHES):
            self._free.put(_Batch())
        self._filling = taken_from(self._free)
        self._thread = threading.Thread(target=self._keep_vectors, name="ctrbox-vectors", daemon=True)
        self._thread.start()

    def add(self, digests: Sequence[bytes], images: torch.Tensor) -> None:
        """Copy images, (number, ...), into the batch that is being filled; a full batch goes to the GPU."""
        begin = 0
        while begin < len(digests):
            batch = self._filling
            if batch.inputs is None:
                batch.inputs = torch.empty(
                    (self.batch_size, *images.shape[1:]), dtype=images.dtype, pin_memory=self.cuda
                )
            if images.shape[1:] != batch.inputs.shape[1:] or images.dtype != batch.inputs.dtype:
                shapes = sorted({tuple(batch.inputs.shape[1:]), tuple(images.shape[1:])})
                told = shapes if len(shapes) > 1 else sorted({str(batch.inputs.dtype), str(images.dtype)})
                raise DataError(
                    f"prepare= returned tensors of different shapes or types: {told}; it must return the same shape and type "
                    "for every item"
                )
            filled = len(batch.hashes)
            taken = min(self.batch_size - filled, len(digests) - begin)
            np.copyto(_bytes(batch.inputs[filled : filled + taken]), _bytes(images[begin : begin + taken]))
            batch.hashes += digests[begin : begin + taken]
            begin += taken
            if len(batch.hashes) == self.batch_size:
                self._send()

    def end(self) -> None:
        """Send the last batch, and wait until all vectors are kept."""
        if self._filling.hashes:
            self._send()
        self.close()
        self._raise()

    def close(self) -> None:
        """End the thread after the batches that were sent."""
        if self._thread.is_alive():
            self._sent.put(None)
            join(self._thread)

    def _send(self) -> None:
        self._raise()
        batch = self._filling
        with torch.inference_mode(), torch.cuda.device(self.encoder.device) if self.cuda else contextlib.nullcontext():
            self._run(batch)
        self._sent.put(batch)
        self._filling = taken_from(self._free)
        self._raise()

    def _run(self, batch: _Batch) -> None:
        assert batch.inputs is not None
        rows = len(batch.hashes)
        inputs = batch.inputs[:rows]
        if not self.cuda:
            began = time.perf_counter()
            self._returning(batch, self._vectors(inputs.to(self.encoder.device), rows))
            self.seconds += time.perf_counter() - began
            return
        copying, returning = self._streams
        computing = torch.cuda.current_stream()
        batch.began, batch.ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(copying):
            inputs = inputs.to(self.encoder.device, non_blocking=True)
        computing.wait_stream(copying)
        inputs.record_stream(computing)
        batch.began.record()
        found = self._vectors(inputs, rows)
        batch.ended.record()
        returning.wait_event(batch.ended)
        found.record_stream(returning)
        with torch.cuda.stream(returning):
            self._returning(batch, found)
            batch.returned = torch.cuda.Event(blocking=True)  # a thread that waits for it sleeps
            batch.returned.record()

    def _vectors(self, inputs: torch.Tensor, rows: int) -> torch.Tensor:
        try:
            return self.encoder.checked(self.encoder.module(self.finish(inputs) if self.finish else inputs), rows)
        except torch.cuda.OutOfMemoryError as error:
            raise DataError(
                f"encoder {self.encoder.name!r} does not fit into the memory of the GPU with batches of {self.batch_size:,} "
                f"items: {str(error).splitlines()[0]}; choose a smaller batch size"
            ) from error

    def _returning(self, batch: _Batch, found: torch.Tensor) -> None:
        if batch.vectors is None or batch.vectors.shape[1] != found.shape[1]:
            batch.vectors = torch.empty((self.batch_size, found.shape[1]), pin_memory=self.cuda)
        batch.vectors[: len(found)].copy_(found, non_blocking=True)

    def _keep_vectors(self) -> None:
        """Wait for each batch in turn, and keep its vectors. After an error, only return the memory of the batches, so
        that the caller never hangs.
        """
        while (batch := self._sent.get()) is not None:
            try:
                if self._error is None:
                    self._keep(batch)
            except BaseException as error:
                self._error = error
            batch.hashes = []
            self._free.put(batch)

    def _keep(self, batch: _Batch) -> None:
        assert batch.vectors is not None
        if self.cuda:
            batch.returned.synchronize()
            self.seconds += batch.began.elapsed_time(batch.ended) / 1000
        self.keep(batch.hashes, batch.vectors[: len(batch.hashes)].numpy())

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
