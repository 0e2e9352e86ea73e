"""TensorBoard events: read back by a small parser of our own and by TensorBoard itself, also after a kill."""

from __future__ import annotations

import math
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from ctrbox.errors import WriteError
from ctrbox.train.tensorboard_file import Events, crc32c
from tests.twins import metrics as twin

# -- a parser that shares nothing with the writer ----------------------------------------------------------------------


def unmasked(stored: int) -> int:
    rotated = (stored - 0xA282EAD8) % 2**32
    return (rotated << 15 | rotated >> 17) % 2**32


def records(data: bytes) -> Iterator[bytes]:
    """Whole records; a last one that was cut off is left out, a damaged one is an error."""
    at = 0
    while at + 12 <= len(data):
        length, crc = struct.unpack_from("<QI", data, at)
        assert unmasked(crc) == twin.crc32c(data[at : at + 8])
        if at + 16 + length > len(data):
            return
        body = data[at + 12 : at + 12 + length]
        assert unmasked(struct.unpack_from("<I", data, at + 12 + length)[0]) == twin.crc32c(body)
        yield body
        at += 16 + length


def message(data: bytes) -> dict[int, Any]:
    """Fields of a protobuf message by number: varints and doubles as numbers, the rest as bytes."""
    at = 0
    fields: dict[int, Any] = {}

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    while at < len(data):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            value = varint()
            fields[number] = value - 2**64 if value >= 2**63 else value
        elif kind == 2:
            length = varint()
            fields[number] = data[at : at + length]
            at += length
        else:
            code, width = {1: ("<d", 8), 5: ("<f", 4)}[kind]
            fields[number] = struct.unpack_from(code, data, at)[0]
            at += width
    return fields


def scalars(path: Path) -> list[tuple[str, float, int, float]]:
    """tag, value, step, wall time"""
    first, *rest = [message(body) for body in records(path.read_bytes())]
    assert first[3] == b"brain.Event:2"
    found = []
    for event in rest:
        if 5 in event:
            point = message(message(event[5])[1])
            found.append((point[1].decode(), point[2], event[2], event[1]))
    return found


# -- what is written ---------------------------------------------------------------------------------------------------

STEP = st.one_of(st.integers(0, 300), st.integers(-(2**63), 2**63 - 1))
POINT = st.tuples(st.text(max_size=300), st.floats(), STEP, st.floats(allow_nan=False))


@settings(max_examples=100, deadline=None)
@given(st.lists(POINT, max_size=10))
def test_every_scalar_is_read_back_as_it_was_written(tmp_path_factory: Any, points: list[Any]) -> None:
    with Events(tmp_path_factory.mktemp("events")) as events:
        for tag, value, step, wall_time in points:
            events.scalar(tag, value, step, wall_time)
    found = scalars(events.path)
    assert len(found) == len(points)
    with np.errstate(over="ignore"):
        for (tag, value, step, moment), mine in zip(points, found, strict=True):
            assert (mine[0], mine[2], mine[3]) == (tag, step, moment)
            assert mine[1] == float(np.float32(value)) or (math.isnan(mine[1]) and math.isnan(value))


def test_tensorboard_reads_the_scalars(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with Events(tmp_path) as events:
        for step in range(300):
            events.scalar("train/loss", 1 / (step + 1), step, 1000.5 + step)
            events.scalar("valid/aüc", math.nan if step == 7 else step / 300, step, 1000.5 + step)
    board = accumulator.EventAccumulator(str(tmp_path), size_guidance={"scalars": 0}).Reload()
    assert sorted(board.Tags()["scalars"]) == ["train/loss", "valid/aüc"]
    loss = board.Scalars("train/loss")
    assert [(e.step, e.wall_time) for e in loss] == [(k, 1000.5 + k) for k in range(300)]
    assert [e.value for e in loss] == [float(np.float32(1 / (k + 1))) for k in range(300)]
    assert math.isnan(board.Scalars("valid/aüc")[7].value)


def test_tensorboard_takes_a_value_for_a_scalar_of_its_plugin(tmp_path: Path) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    with Events(tmp_path) as events:
        events.scalar("auc", 0.75, 2**40, 5.0)
    version, event = loader.EventFileLoader(str(events.path)).Load()
    assert version.file_version == "brain.Event:2"
    assert (event.step, event.wall_time) == (2**40, 5.0)
    value = event.summary.value[0]
    assert (value.tag, value.metadata.plugin_data.plugin_name, value.tensor.float_val[0]) == ("auc", "scalars", 0.75)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_the_checksum_equals_the_one_bit_by_bit(data: bytes) -> None:
    assert crc32c(data) == twin.crc32c(data)


def test_the_checksum_gives_the_published_values() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43


# -- crashes and restarts ----------------------------------------------------------------------------------------------

CHILD = """
import sys
from ctrbox.train.tensorboard_file import Events
events = Events(sys.argv[1])
for step in range(10**9):
    events.scalar("loss", step, step, 0.0)
    if step % 7 == 0:
        events.flush()
        print(step, flush=True)
"""


def test_what_was_flushed_outlives_kill_9_and_the_resumed_run_writes_a_later_file(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        acknowledged = -1
        while acknowledged < 700:
            acknowledged = int(child.stdout.readline())
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    (before,) = tmp_path.iterdir()
    kept = before.read_bytes()
    steps = [step for _, _, step, _ in scalars(before)]
    assert steps == list(range(len(steps)))
    assert len(steps) > acknowledged
    with Events(tmp_path, resumed_at=500) as events:
        for step in range(500, 510):
            events.scalar("loss", -1.0, step, 0.0)
    assert before.read_bytes() == kept
    assert events.path.name > before.name
    assert [step for _, _, step, _ in scalars(events.path)] == list(range(500, 510))


def test_tensorboard_shows_the_resumed_run_from_the_step_it_resumed_at(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for resumed_at, first, value in ((None, 0, 1.0), (50, 50, 2.0), (30, 30, 3.0)):
        events = Events(tmp_path, resumed_at=resumed_at)
        for step in range(first, first + 40):
            events.scalar("loss", value, step, 0.0)
        events.flush()
        os.write(events._file, b"cut")  # type: ignore[arg-type]
        os.close(events._file)  # type: ignore[arg-type]
        events._file = None
    board = accumulator.EventAccumulator(str(tmp_path), size_guidance={"scalars": 0}).Reload()
    found = [(e.step, e.value) for e in board.Scalars("loss")]
    assert found == [*((step, 1.0) for step in range(30)), *((step, 3.0) for step in range(30, 70))]


def cut_off_at_every_byte(folder: Path) -> Iterator[tuple[Path, int]]:
    """Files that end at each byte after the first record, and how many whole records they have."""
    with Events(folder / "whole") as events:
        for step in range(4):
            events.scalar("loss", 1.0, step)
    data = events.path.read_bytes()
    ends = [0]
    for body in records(data):
        ends.append(ends[-1] + 16 + len(body))
    assert ends[-1] == len(data)
    for size in range(ends[1], len(data) + 1):
        path = folder / f"events.out.tfevents.{size}"
        path.write_bytes(data[:size])
        yield path, sum(end <= size for end in ends) - 1


def test_a_file_cut_off_at_any_byte_gives_its_whole_records(tmp_path: Path) -> None:
    for path, whole in cut_off_at_every_byte(tmp_path):
        assert len(scalars(path)) == whole - 1


def test_tensorboard_takes_a_record_cut_off_for_the_end_of_its_file(tmp_path: Path) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    for path, whole in cut_off_at_every_byte(tmp_path):
        assert len(list(loader.EventFileLoader(str(path)).Load())) == whole


def test_a_new_file_sorts_last_also_after_a_fast_restart_or_a_clock_set_back(tmp_path: Path) -> None:
    future = tmp_path / f"events.out.tfevents.{int(time.time()) + 10_000:010d}.ctrbox.0003.99"
    future.touch()
    (tmp_path / "events.out.tfevents.x.ctrbox.y.z").touch()  # not ours: neither read nor touched
    names = [future.name]
    for _ in range(12):
        with Events(tmp_path) as events:
            names.append(events.path.name)
    assert names == sorted(names)
    assert len(set(names)) == 13


def test_scalars_are_held_until_flush_and_many_are_flushed_unasked(tmp_path: Path) -> None:
    events = Events(tmp_path)
    assert scalars(events.path) == []  # the version stands there at once
    events.scalar("loss", 1.0, 1)
    assert scalars(events.path) == []
    events.flush()
    assert len(scalars(events.path)) == 1
    for step in range(3_000):
        events.scalar("loss", 1.0, step)
    assert len(scalars(events.path)) > 1_000
    events.close()
    events.close()
    assert len(scalars(events.path)) == 3_001


def test_writing_after_close_is_refused(tmp_path: Path) -> None:
    events = Events(tmp_path)
    events.close()
    events.flush()
    with pytest.raises(WriteError, match="is closed; create a new Events object to write 'loss'"):
        events.scalar("loss", 1.0, 1)


def test_a_step_beyond_64_bits_is_refused(tmp_path: Path) -> None:
    with (
        Events(tmp_path) as events,
        pytest.raises(WriteError, match="step 9223372036854775808 does not fit into a whole number of 64 bits"),
    ):
        events.scalar("loss", 1.0, 2**63)


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(WriteError, match=r"cannot write TensorBoard events into .*runs"):
        Events(tmp_path / "runs")


def test_a_full_disk_is_named_and_the_file_stays_readable(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk; what did not fit is written once there is room."""
    code = f"""
import resource, signal
from ctrbox.errors import WriteError
from ctrbox.train.tensorboard_file import Events
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
events = Events({str(tmp_path)!r})
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
for step in range(10):
    events.scalar("loss", 1.0, step)
try:
    events.flush()
except WriteError as error:
    assert str(error).startswith("cannot write {tmp_path}"), error
else:
    raise AssertionError("no error")
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
events.close()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    (path,) = tmp_path.iterdir()
    assert [step for _, _, step, _ in scalars(path)] == list(range(10))
