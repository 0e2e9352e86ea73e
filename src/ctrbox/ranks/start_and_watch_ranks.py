"""Starts the ranks of ``ctrbox train --ranks N`` on this machine, and ends all of them when one fails.

    this process ── store (TCP on 127.0.0.1) at which the ranks meet
      ├─ rank 0     writes to this process's stdout and stderr
      └─ rank 1 …   the last lines that they write are kept, and shown if such a rank is the first to fail

The environment is that of torchrun, so a rank runs in the same way whoever started it. Ranks run in sessions of their own: Ctrl-C
and SIGTERM reach this process, which passes them on once; the ranks then end after the same step with a checkpoint. A second
signal kills them. When a rank fails, the others end because they lost its connection; a rank that does not gets SIGTERM and then
SIGKILL. If this process is killed, the ranks notice that the store is gone, and end with a checkpoint.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

from ctrbox.files.interruptible_wait import exit_code_of
from ctrbox.ranks.torchrun_environment import GPUS, LAUNCHED

LOST = 75  # exit code of a rank that ended because another one did
LOOK = 0.05  # seconds between two looks at the ranks
LATE = 3.0  # seconds in which ranks end by themselves because another one failed
GRACE = 10.0  # seconds in which a rank that was asked to end does so
SPOKEN = (1, 2)  # exit codes of a rank 0 that has printed why it failed
KEPT = 40  # lines that a rank other than 0 wrote last
MOST_LINE = 4000  # characters of one of them


class Rank:
    """A process that was started, and the last lines that it wrote."""

    def __init__(self, number: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.number = number
        self.lines: deque[str] = deque(maxlen=KEPT)
        heard = None if number == 0 else subprocess.PIPE
        self.process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=None if number == 0 else subprocess.DEVNULL,
            stderr=heard,
            start_new_session=True,
        )
        self.listener: threading.Thread | None = None
        if self.process.stderr is not None:
            self.listener = threading.Thread(target=self._listen, args=(self.process.stderr,), daemon=True)
            self.listener.start()

    def _listen(self, stream: IO[bytes]) -> None:
        while line := stream.readline(MOST_LINE):
            self.lines.append(line.decode("utf-8", "replace").rstrip("\n"))

    @property
    def code(self) -> int | None:
        """The exit code: None while the rank runs, and -9 after SIGKILL."""
        return self.process.poll()

    def send(self, number: int) -> None:
        if self.code is None:
            self.process.send_signal(number)

    def why(self) -> str:
        """Return in words how this rank ended, from its exit code and its last lines."""
        code = exit_code_of(self.process)
        if self.listener is not None:
            self.listener.join(GRACE)
        if code < 0:
            name = signal.Signals(-code).name
            memory = "; the kernel does that when memory runs out" if -code == signal.SIGKILL else ""
            return f"rank {self.number} was killed by {name}{memory}"
        said = [line.removeprefix("ctrbox: error: ") for line in self.lines if line.startswith("ctrbox: error: ")]
        if said:
            return f"rank {self.number}: {said[-1]}"
        lines = "".join(f"\n  {line}" for line in self.lines)
        early = "" if code else " in the middle of training"
        return f"rank {self.number} ended with exit code {code}{early}" + (f"; it wrote last:{lines}" if lines else "")


def launch(ranks: int, command: Sequence[str], tell: Callable[[str], None], gpus: int | None = None) -> int:
    """Run ``command`` in ``ranks`` processes, and return the exit code: 0 if all of them succeeded.

    ``gpus``: number of GPUs of this machine that they use; None: all GPUs. ``tell`` is called with one message that says which
    rank failed and why, unless rank 0 failed and has written its own message.
    """
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    started: list[Rank] = []
    with noting_signals() as noted:
        try:
            for number in range(ranks):
                started.append(Rank(number, command, environment_of(number, ranks, store.port, gpus)))
            return watch(started, noted, tell)
        finally:
            for rank in started:
                rank.send(signal.SIGKILL)
            for rank in started:
                exit_code_of(rank.process)


def environment_of(rank: int, ranks: int, port: int, gpus: int | None = None) -> dict[str, str]:
    """Return the environment of a rank, as torchrun sets it."""
    return (
        os.environ
        | ({} if gpus is None else {GPUS: str(gpus)})
        | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            LAUNCHED: "1",
        }
    )


def watch(ranks: Sequence[Rank], noted: list[int], tell: Callable[[str], None]) -> int:
    """Wait for all ranks, and return the exit code. Pass signals on to them, and end all ranks when one fails."""
    passed_on = 0
    failed_at: float | None = None
    first: Rank | None = None  # that failed
    while any(rank.code is None for rank in ranks):
        if len(noted) > passed_on:
            send(ranks, signal.SIGKILL if passed_on else noted[0])
            passed_on += 1
        if failed_at is None and not noted and any(rank.code for rank in ranks):
            failed_at = time.monotonic()
        if failed_at is not None:
            late = time.monotonic() - failed_at - LATE
            if all(rank.code in (None, 0, LOST) for rank in ranks):
                late -= GRACE  # the one that failed is still writing why
            if late > 0 and first is None:
                first = culprit(ranks)
                send(ranks, signal.SIGTERM)
            if late > GRACE:
                send(ranks, signal.SIGKILL)
        time.sleep(LOOK)
    if not any(rank.code for rank in ranks):
        return 0
    if noted:
        return 128 + noted[0]
    first = first or culprit(ranks)
    code = exit_code_of(first.process)
    if first.number or code not in SPOKEN:
        tell(
            f"ctrbox: error: {first.why()}. All ranks have ended; run the same command again to continue from the last "
            "checkpoint, if there is one"
        )
    return 1


def send(ranks: Sequence[Rank], number: int) -> None:
    for rank in ranks:
        rank.send(number)


def culprit(ranks: Sequence[Rank]) -> Rank:
    """Return the rank that failed first, and not because it lost another rank.

    If several did, it is one that was killed, otherwise the one with the lowest number. If every failed rank lost another rank,
    it is one that ended early with exit code 0.
    """
    failed = sorted((rank for rank in ranks if rank.code), key=lambda rank: (rank.process.returncode >= 0, rank.number))
    ended = [rank for rank in ranks if rank.code == 0]
    return next((rank for rank in [*failed, *ended] if rank.code != LOST), failed[0])


@contextmanager
def noting_signals() -> Iterator[list[int]]:
    """Yield a list to which each SIGINT (Ctrl-C) and SIGTERM is appended inside the context; they have no other effect."""
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    before: dict[int, Any] = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, lambda number, frame: noted.append(number))
    try:
        yield noted
    finally:
        for known, handler in before.items():
            signal.signal(known, handler)
