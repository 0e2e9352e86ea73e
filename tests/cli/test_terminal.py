"""Streams, signals and the end of a command, in the process of the test: what is said last, and the exit code."""

from __future__ import annotations

import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ctrbox.cli import terminal
from ctrbox.cli.terminal import Mistake, Stopped
from ctrbox.errors import PlanError, WriteError


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("signals", "farewells", "quiet", "speaker"):
        monkeypatch.setattr(terminal, name, [])
    monkeypatch.delenv("CTRBOX_TRACEBACK", raising=False)
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), warnings.showwarning
    yield
    signal.signal(signal.SIGTERM, before[0])
    signal.signal(signal.SIGINT, before[1])
    warnings.showwarning = before[2]


def raising(*errors: BaseException, sent: int | None = None) -> Callable[[], None]:
    def command() -> None:
        if sent is not None:
            terminal.stop(sent, None)
        for error in errors:
            raise error

    return command


def ended(command: Callable[[], Any]) -> Any:
    with pytest.raises(SystemExit) as told:
        terminal.run(command)
    return told.value.code


def swallowing(sent: int, error: Exception) -> Callable[[], None]:
    """Somebody's code makes another error of the interrupt."""

    def command() -> None:
        try:
            terminal.stop(sent, None)
        except BaseException:
            raise error from None

    return command


NOTHING = "ctrbox: stopped; unfinished output was removed\n"


@pytest.mark.parametrize(
    ("command", "code", "nothing_kept", "something_kept"),
    [
        (raising(sent=signal.SIGINT), 130, NOTHING, "ctrbox: stopped\nresume: it\n"),
        (raising(KeyboardInterrupt()), 130, NOTHING, "ctrbox: stopped\nresume: it\n"),
        (raising(sent=signal.SIGTERM), 143, "", "ctrbox: stopped\nresume: it\n"),
        (swallowing(signal.SIGINT, ValueError("odd")), 130, NOTHING, "ctrbox: stopped\nresume: it\n"),
        (swallowing(signal.SIGTERM, Mistake("odd")), 143, "", "ctrbox: stopped\nresume: it\n"),
        (raising(Mistake("yours")), 1, "ctrbox: error: yours\n", "ctrbox: error: yours\n"),
        (raising(SystemExit(5)), 5, "", ""),
        (raising(SystemExit("why")), 1, "", ""),
        (raising(SystemExit("")), 0, "", ""),
        (raising(), 0, "", ""),
    ],
)
def test_what_is_said_when_a_command_was_stopped(
    capsys: pytest.CaptureFixture[str], command: Callable[[], None], code: int, nothing_kept: str, something_kept: str
) -> None:
    assert ended(command) == code
    assert capsys.readouterr().err == nothing_kept
    terminal.signals.clear()
    terminal.stopped_with("resume: something else")
    terminal.stopped_with("resume: it")
    assert ended(command) == code
    assert capsys.readouterr().err == something_kept
    terminal.quiet.append(True)
    terminal.signals.clear()
    assert ended(command) == code
    assert "stopped" not in capsys.readouterr().err


def test_a_rank_says_which_one_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.speaker.append("rank 3: ")
    assert ended(raising(PlanError("no such column"))) == 1
    assert capsys.readouterr().err == "ctrbox: error: rank 3: no such column\n"
    assert ended(lambda: terminal.end_quietly(7)) == 7
    assert (capsys.readouterr().err, terminal.quiet) == ("", [True])


def test_a_signal_ends_the_command_unless_torch_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        terminal.stop(signal.SIGINT, None)
    with pytest.raises(Stopped) as told:
        terminal.stop(signal.SIGTERM, None)
    assert (told.value.code, terminal.signals) == (143, [signal.SIGINT, signal.SIGTERM])
    torch = ModuleType("torch")
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert not terminal.loading_torch()
    torch.__spec__ = SimpleNamespace(_initializing=True)  # type: ignore[assignment]
    assert terminal.loading_torch()
    torch.__spec__ = SimpleNamespace(_initializing=False)  # type: ignore[assignment]
    assert not terminal.loading_torch()
    torch.__spec__ = SimpleNamespace(_initializing=True)  # type: ignore[assignment]
    written: list[Any] = []

    def end(code: int) -> None:
        written.append(code)
        raise Stopped(code)

    monkeypatch.setattr(terminal.os, "write", lambda *given: written.append(given))
    monkeypatch.setattr(terminal.os, "_exit", end)
    with pytest.raises(Stopped):
        terminal.stop(signal.SIGTERM, None)
    assert written == [(2, NOTHING.encode()), 143]


def test_ctrl_c_that_a_shell_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ended(raising())
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) is terminal.stop
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ended(raising())
    assert signal.getsignal(signal.SIGINT) is terminal.stop
    assert warnings.showwarning is terminal.tell_warning


class Full(io.StringIO):
    """A stream whose last bytes do not fit."""

    def flush(self) -> None:
        raise OSError(28, os.strerror(28))


def test_a_stdout_that_cannot_take_its_last_bytes_is_told_unless_more_went_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    silenced: list[int] = []
    monkeypatch.setattr(terminal, "silence", silenced.append)
    monkeypatch.setattr(sys, "stdout", Full())
    told = "ctrbox: error: cannot write to stdout (No space left on device)\n"
    for command, code, said in (
        (raising(), 1, told),
        (raising(Mistake("yours")), 1, "ctrbox: error: yours\n"),
        (raising(SystemExit(5)), 5, ""),
    ):
        assert ended(command) == code
        assert capsys.readouterr().err == said
    assert silenced == [1, 1, 1]


def test_words_for_a_user_are_one_line_and_those_for_a_programmer_name_their_place(
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal.tell_warning(UserWarning("too few rows"), UserWarning, "job.py", 3)
    terminal.tell_warning(DeprecationWarning("old"), DeprecationWarning, "job.py", 3, line="x = 1")
    assert capsys.readouterr().err.splitlines() == [
        "ctrbox: warning: too few rows",
        "job.py:3: DeprecationWarning: old",
        "  x = 1",
    ]


def test_errors_of_the_system_are_told_without_their_number() -> None:
    for error, told in (
        (OSError(2, "No such file", "x"), "cannot use x: No such file"),
        (OSError(2, "No such file"), "[Errno 2] No such file"),
        (OSError("odd"), "odd"),
        (WriteError("cannot write x"), "cannot write x"),
        (Mistake("a\tb\x9bc\x7f"), r"a\tb\x9bc\x7f".replace(r"\t", "\t")),
    ):
        assert terminal.in_words(error) == told


def test_words_that_cannot_be_written_are_lost_and_the_work_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    silenced: list[int] = []
    monkeypatch.setattr(terminal, "silence", silenced.append)
    monkeypatch.setattr(sys, "stderr", Full())
    terminal.tell("words")
    assert silenced == [2]


def test_a_path_is_utf_8_or_refused() -> None:
    assert terminal.utf8(Path("a é")) == Path("a é")
    with pytest.raises(Mistake, match=r"^the path '.*/p\\udcff' is not UTF-8; rename it, or choose another path$"):
        terminal.utf8(Path(os.fsdecode(b"p\xff")))
