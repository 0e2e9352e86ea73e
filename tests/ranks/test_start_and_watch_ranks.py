"""The launcher of `ctrbox train --ranks`: one message when a rank fails, signals that reach all ranks, nothing left behind."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from ctrbox.ranks import start_and_watch_ranks as launching
from ctrbox.ranks.start_and_watch_ranks import LOST, launch

# A rank that waits until it is ended, and says so.
WAITS = """
import os, signal, sys, time
rank, folder = int(os.environ["RANK"]), sys.argv[1]
def end(number, frame):
    open(f"{folder}/ended-{rank}-{number}", "w").close()
    os._exit(128 + number)
signal.signal(signal.SIGINT, end)
signal.signal(signal.SIGTERM, end)
open(f"{folder}/here-{rank}", "w").close()
def all_here():
    return all(os.path.exists(f"{folder}/here-{k}") for k in range(int(os.environ["WORLD_SIZE"])))
while not all_here():
    time.sleep(0.01)
"""
FOREVER = "\nwhile True: time.sleep(0.01)\n"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "LATE", 0.2)


def started(tmp_path: Path, code: str, ranks: int = 3) -> tuple[int, list[str], set[str]]:
    told: list[str] = []
    result = launch(ranks, [sys.executable, "-S", "-c", WAITS + code + FOREVER, str(tmp_path)], told.append)
    return result, told, {p.name for p in tmp_path.iterdir() if p.name.startswith("ended")}


def test_all_ranks_that_end_well_are_a_success(tmp_path: Path) -> None:
    assert started(tmp_path, "os._exit(0)") == (0, [], set())


def test_a_rank_that_fails_ends_the_others_and_its_last_error_is_told(tmp_path: Path) -> None:
    code = "if rank == 1: print('ctrbox: error: no such column', file=sys.stderr, flush=True); os._exit(1)"
    result, told, ended = started(tmp_path, code)
    assert result == 1
    assert told == [
        "ctrbox: error: rank 1: no such column. All ranks have ended; run the same command again to continue from the last "
        "checkpoint, if there is one"
    ]
    assert ended == {"ended-0-15", "ended-2-15"}


def test_ranks_that_lost_another_one_are_not_blamed(tmp_path: Path) -> None:
    code = f"""
if rank == 2: os.kill(os.getpid(), 9)
os._exit({LOST})"""
    result, told, _ = started(tmp_path, code)
    assert result == 1
    assert len(told) == 1
    assert told[0].startswith("ctrbox: error: rank 2 was killed by SIGKILL")


def test_what_a_rank_wrote_is_shown_where_it_gave_no_reason(tmp_path: Path) -> None:
    _, told, _ = started(tmp_path, "if rank == 1: print('Traceback …', file=sys.stderr, flush=True); os._exit(5)")
    assert told[0].startswith("ctrbox: error: rank 1 ended with exit code 5; it wrote last:\n  Traceback …")


def test_a_rank_0_that_is_slow_to_say_why_it_fails_is_waited_for(tmp_path: Path) -> None:
    code = f"""
if rank == 0:
    time.sleep(1.0)  # the others have ended long before
    os._exit(1)
os._exit({LOST})"""
    assert started(tmp_path, code) == (1, [], set())


@pytest.mark.parametrize(("code", "told"), [(3, "exit code 3"), (0, "exit code 0 in the middle of training")])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_ends_without_a_word_is_named(tmp_path: Path, rank: int, code: int, told: str) -> None:
    result, lines, _ = started(tmp_path, f"os._exit({code} if rank == {rank} else {LOST})")
    assert result == 1
    assert [line.partition(". ")[0] for line in lines] == [f"ctrbox: error: rank {rank} ended with {told}"]


def test_rank_0_says_itself_why_it_fails(tmp_path: Path) -> None:
    result, told, ended = started(tmp_path, "if rank == 0: os._exit(1)")
    assert (result, told, ended) == (1, [], {"ended-1-15", "ended-2-15"})


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_all_ranks_once(tmp_path: Path, number: signal.Signals) -> None:
    def send() -> None:
        while len(list(tmp_path.glob("here-*"))) < 2:
            pass
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    sender = threading.Thread(target=send)
    sender.start()
    result, told, ended = started(tmp_path, "", ranks=2)
    sender.join()
    assert (result, told) == (128 + number, [])
    assert ended == {f"ended-0-{int(number)}", f"ended-1-{int(number)}"}
    assert signal.getsignal(number) is before
