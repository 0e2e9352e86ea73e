"""Keeps the vectors that an encoding has computed, so that an encoding that was killed continues where it stopped.

The folder beside the result holds two files:

    state.json   sealed: what identifies the encoding (encoder, digest of `prepare`, batch size, bounds), and the width of a
                 vector
    vectors      records of 32 bytes (SHA-256 of an item), width × 4 bytes (float32), 4 bytes (CRC-32 of both)

Records are written a batch at a time. After a crash the sound records that make whole batches are kept, so that the
batches that follow hold the same items as they would have without the crash: the result is the same bit for bit.

A thread writes `state.json`, since its identity may have to wait for a checksum of many weights. Vectors without a state are
deleted by the next call, so a process that is killed before that keeps none.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from ctrbox import _native
from ctrbox.embed.vectors.vector_file import MOST_WIDTH
from ctrbox.errors import CtrboxError, DataError, WriteError
from ctrbox.files.atomic import written_aside
from ctrbox.files.interruptible_wait import result_of, wait_until_done
from ctrbox.files.sealed_json import read_sealed, sealed

HASH = 32


class EncodedSoFar:
    """The vectors of an encoding, by the hash of their items. One process at a time uses the folder.

    ``identity`` is called when a state is read or written, so that a new encoding can begin while the checksum of the weights is
    still being computed. ``patient``: whether `add` waits until the state is written.
    """

    def __init__(
        self, folder: Path, identity: Callable[[], Mapping[str, Any]], batch: int, patient: bool = True
    ) -> None:
        self.patient = patient
        self.folder, self.identity, self.batch = folder, identity, batch
        self.width: int | None = None
        self.places: dict[bytes, int] = {}
        self._file: Any = None
        self._state: Future[None] | None = None
        self._rows = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / "lock").open("wb")
            self._take()
            self._open()
        except OSError as error:
            if isinstance(error, CtrboxError):
                raise
            raise WriteError(f"cannot save the vectors of this encoding in {folder}: {error.strerror}") from error

    def _take(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise WriteError(
                f"another process is writing the vectors of an encoding to {self.folder}; wait until it has ended, or choose "
                "another output file"
            ) from None

    def _open(self) -> None:
        state = self.folder / "state.json"
        if not state.exists():
            (self.folder / "vectors").unlink(missing_ok=True)
            return
        kept = read_sealed(state, "unfinished encoding")
        if kept.get("identity") != self.identity():
            raise DataError(
                f"{self.folder} holds an unfinished encoding that used another encoder, prepare function, batch size or "
                "limit; delete this folder to start over, or encode with the old settings to continue"
            )
        width = kept.get("width")
        if not isinstance(width, int) or not 1 <= width <= MOST_WIDTH:
            raise DataError(
                f"{state} is damaged: it says that a vector has {width!r} numbers; delete the folder to start over"
            )
        self.width = width
        self._keep_sound()

    def _keep_sound(self) -> None:
        """Take over the sound records that make whole batches, and cut off the rest."""
        record = self._record()
        path = self.folder / "vectors"
        if path.exists():
            with path.open("rb") as file:
                while len(data := file.read(record)) == record:
                    body, told = data[:-4], data[-4:]
                    if zlib.crc32(body).to_bytes(4, "little") != told or body[:HASH] in self.places:
                        break
                    self.places[body[:HASH]] = self._rows
                    self._rows += 1
        whole = self._rows // self.batch * self.batch
        self.places = {key: place for key, place in self.places.items() if place < whole}
        self._rows = whole
        with path.open("ab") as file:
            file.truncate(whole * record)

    def _record(self) -> int:
        return HASH + 4 * (self.width or 0) + 4

    def _records(self) -> np.dtype[Any]:
        return np.dtype([("hash", f"S{HASH}"), ("vector", "<f4", (self.width or 0,)), ("crc", "<u4")])

    def add(self, hashes: Sequence[bytes], vectors: np.ndarray) -> None:
        """Keep the vectors of a batch."""
        try:
            if self.width is None:
                self.width = int(vectors.shape[1])
                beside = ThreadPoolExecutor(1, "ctrbox-state")
                self._state = beside.submit(self._write_state, self.width)
                beside.shutdown(wait=False)
            if self._state is not None and (self.patient or self._state.done()):
                result_of(self._state)
            if self._file is None:
                self._file = (self.folder / "vectors").open("ab")
            records = np.empty(len(hashes), self._records())
            records["hash"], records["vector"] = hashes, vectors
            bodies = records.view(np.uint8).reshape(len(hashes), -1)
            records["crc"] = _native.row_checksums(bodies[:, :-4])
            self._file.write(records)
            self._file.flush()
        except OSError as error:
            raise WriteError(f"cannot save the vectors of this encoding in {self.folder}: {error.strerror}") from error
        first = self._rows
        self._rows += len(hashes)  # before the places: another thread reads the vectors of the places that it sees
        self.places.update(zip(hashes, range(first, self._rows), strict=True))

    def _write_state(self, width: int) -> None:
        with written_aside(self.folder / "state.json") as aside:
            aside.write_text(sealed({"identity": dict(self.identity()), "width": width}))

    def vectors(self, places: np.ndarray) -> np.ndarray:
        """Return the vectors at these places."""
        mapped = np.memmap(self.folder / "vectors", self._records(), mode="r", shape=(self._rows,))
        found: np.ndarray = mapped["vector"][places]
        return found

    def close(self, *, remove: bool) -> None:
        """Close the files; remove the folder when the result is complete."""
        if self._state is not None:
            wait_until_done(self._state)
        if self._file is not None:
            if not remove:
                os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
        self._lock.close()
        if remove:
            shutil.rmtree(self.folder, ignore_errors=True)
