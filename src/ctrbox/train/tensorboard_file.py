"""Writes TensorBoard scalars without TensorBoard.

A file consists of records, one after the other, in little-endian order:

    0       8   length of the event, n
    8       4   masked CRC-32C of those 8 bytes
    12      n   the event
    12 + n  4   masked CRC-32C of the event

An event is a protobuf message: 1 wall_time (double), 2 step (int64), then one of 3 file_version (string),
5 summary {1 value {1 tag (string), 2 simple_value (float)}}, 7 session_log {1 status}. The first event names the version.

Every run, and every resumed run, writes a new file and never changes an existing one, for two reasons. TensorBoard reads all
files of a folder in the order of their names. And if a kill has cut off a record, TensorBoard takes this record for the end of
the file. What ``flush`` has written survives a kill of the process. Only one thread at a time may use a file.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from types import TracebackType

import numpy as np

from ctrbox.errors import WriteError

FLUSH_BYTES = 1 << 16  # held back at most, about a thousand scalars
SESSION_START = 1


def _table() -> list[int]:
    rows = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        rows.append(byte)
    return rows


_CRC_OF_BYTE = _table()


def crc32c(data: bytes) -> int:
    """Compute CRC-32C (Castagnoli), one byte at a time, because events have only about 40 bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_OF_BYTE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + _masked(length) + event + _masked(event)


def _varint(number: int) -> bytes:
    number &= 2**64 - 1  # a negative number is its two's complement, ten bytes
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _bytes(field: int, data: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(data)) + data


def _event(wall_time: float, step: int, body: bytes) -> bytes:
    return b"\x09" + struct.pack("<d", wall_time) + b"\x10" + _varint(step) + body


class Events:
    """Scalars for TensorBoard in a new file of ``folder``: ``events.out.tfevents.<seconds>.ctrbox.<number>.<process>``.

    A run that was resumed from a checkpoint gives ``resumed_at``, the first step that it makes again. TensorBoard then hides what
    earlier files contain of this step and of later ones.
    """

    def __init__(self, folder: str | Path, *, resumed_at: int | None = None) -> None:
        now = time.time()
        self._held = bytearray()
        self._file: int | None = None
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.path, self._file = self._create(Path(folder), now)
        except OSError as error:
            raise WriteError(f"cannot write TensorBoard events into {folder}: {error.strerror or error}") from error
        self._held += _record(_event(now, 0, _bytes(3, b"brain.Event:2")))
        if resumed_at is not None:
            self._held += _record(_event(now, _int64(resumed_at), _bytes(7, b"\x08" + _varint(SESSION_START))))
        self.flush()

    @staticmethod
    def _create(folder: Path, now: float) -> tuple[Path, int]:
        """Create a file whose name sorts after those of all earlier runs, also after a fast restart or if the clock was set
        back.
        """
        seconds, number = int(now), 0
        for other in folder.glob("events.out.tfevents.*.ctrbox.*.*"):
            parts = other.name.split(".")
            if parts[3].isdecimal() and parts[5].isdecimal():
                seconds, number = max((seconds, number), (int(parts[3]), int(parts[5]) + 1))
        while True:
            path = folder / f"events.out.tfevents.{seconds:010d}.ctrbox.{number:04d}.{os.getpid()}"
            try:
                return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            except FileExistsError:
                number += 1

    def scalar(self, tag: str, value: float, step: int, wall_time: float | None = None) -> None:
        """Write one point of the curve ``tag``. The value is stored as float32; NaN and infinities are allowed."""
        if self._file is None:
            raise WriteError(f"{self.path} is closed; create a new Events object to write {tag!r}")
        with np.errstate(over="ignore"):
            simple_value = np.float32(value).tobytes() if np.little_endian else np.float32(value).byteswap().tobytes()
        point = _bytes(1, tag.encode("utf-8", "replace")) + b"\x15" + simple_value
        moment = time.time() if wall_time is None else wall_time
        self._held += _record(_event(moment, _int64(step), _bytes(5, _bytes(1, point))))
        if len(self._held) >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Pass all records to the operating system."""
        if self._file is None:
            return
        try:
            while self._held:
                del self._held[: os.write(self._file, self._held)]
        except OSError as error:
            raise WriteError(f"cannot write {self.path}: {error.strerror or error}") from error

    def close(self) -> None:
        """Flush and close; a second close does nothing."""
        try:
            self.flush()
        finally:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def __enter__(self) -> Events:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _int64(step: int) -> int:
    if not -(2**63) <= step < 2**63:
        raise WriteError(f"step {step} does not fit into a whole number of 64 bits")
    return int(step)
