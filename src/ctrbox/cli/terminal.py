"""Handles the terminal: stdout and stderr, the progress line, signals and exit codes.

Data goes to stdout (`say`), everything else to stderr (`tell`). Exit codes: 0 done; 1 an error in the job, the data or
the disk, shown as one line; 2 a wrong command line; 130 Ctrl-C; 143 SIGTERM. `CTRBOX_TRACEBACK=1` shows the traceback
behind a one-line error. This module knows no command, and imports nothing heavy at the top.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from ctrbox.cli.outdated_native_build import old_native
from ctrbox.errors import CtrboxError

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and line ends


class Mistake(Exception):
    """An error that the user can correct. It is shown as one line."""


def say(text: object) -> None:
    """Print data to stdout."""
    try:
        print(text, flush=True)
    except OSError as error:
        raise Mistake(f"cannot write to stdout ({error.strerror})") from error


def tell(line: str) -> None:
    """Print a message to stderr. If it cannot be written, the work continues."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        silence(2)


def hint(command: str) -> None:
    tell(f"next: {command}")


def say_json(**fields: Any) -> None:
    say(json.dumps(_finite(fields), default=str, allow_nan=False))


def _finite(value: Any) -> Any:
    """With null where a number is none: JSON has no other word for it."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, list | tuple) else value


@contextlib.contextmanager
def meter(what: str) -> Iterator[Callable[[int], None]]:
    """Yield a function ``tick(done)``, which moves a progress line if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    started = time.perf_counter()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what)

        def tick(done: int) -> None:
            rate = done / max(time.perf_counter() - started, 1e-9)
            progress.update(task, description=f"{what} {done:,} rows, {rate:,.0f} rows/s")

        yield tick


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    from ctrbox.files import atomic as aside

    with aside.written_aside(path) as beside:
        yield beside


# ---- the door ------------------------------------------------------------------------------------


class Stopped(SystemExit):
    """The exception that SIGTERM raises. It unwinds the stack as Ctrl-C does, so that unfinished files are removed."""


signals: list[int] = []  # those that came to stop the process
farewells: list[str] = []  # what is said then, if not that nothing was kept
quiet: list[bool] = []  # not empty: another process has said why this one ends
speaker: list[str] = []  # which of several processes this is, for its error


def stopped_with(line: str) -> None:
    """Print this line if a signal ends the process, because unfinished work was kept."""
    farewells.append(line)


def end_quietly(code: int) -> NoReturn:
    """End with this exit code and say nothing, because another process says why."""
    quiet.append(True)
    raise SystemExit(code)


def stop(number: int, frame: Any) -> NoReturn:
    signals.append(number)
    if loading_torch():
        # Torch's C++ code aborts the process when an exception passes through it. Nothing has been written yet.
        os.write(2, b"ctrbox: stopped; unfinished output was removed\n")
        os._exit(128 + number)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Stopped(128 + number)


def loading_torch() -> bool:
    """Return whether an import of torch is under way."""
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def run(command: Callable[[], Any]) -> NoReturn:
    """Run a command to its end, and exit with the exit code that says what happened."""
    code = 0
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGTERM, stop)
        open_streams()
        warnings.showwarning = tell_warning
        command()
    except KeyboardInterrupt:
        code = 130
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1 if end.code else 0
    except Exception as error:
        code = 1
        if not signals:  # else it is what became of the interrupt in somebody's code
            told = in_words(error) if isinstance(error, CtrboxError | Mistake | OSError) else old_native(error)
            if os.environ.get("CTRBOX_TRACEBACK") or not told:
                raise
            tell(f"ctrbox: error: {''.join(speaker)}{told}")
    if signals and code:
        code = 128 + signals[-1]
    if quiet:
        pass
    elif code and farewells and (signals or code == 130):
        tell(f"ctrbox: stopped\n{farewells[-1]}")
    elif code == 130:
        tell("ctrbox: stopped; unfinished output was removed")
    try:
        sys.stdout.flush()
    except OSError as error:
        silence(1)
        if not code:
            tell(f"ctrbox: error: cannot write to stdout ({error.strerror})")
            code = 1
    sys.exit(code)


def in_words(error: Exception) -> str:
    """Return the message of an error: a system error without its number, and without control characters, which could
    change what a terminal shows.
    """
    told = str(error)
    if isinstance(error, OSError) and not isinstance(error, CtrboxError) and error.strerror and error.filename:
        told = f"cannot use {error.filename}: {error.strerror}"
    return CONTROLS.sub(lambda met: repr(met[0])[1:-1], told)


def utf8(path: Path) -> Path:
    """Return a path. Raise a `Mistake` if its absolute form is not UTF-8, because native code and Parquet writers need that."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        raise Mistake(f"the path {str(path.absolute())!r} is not UTF-8; rename it, or choose another path") from None
    return path


def tell_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    """Print a warning: in one line if it is meant for users, and with its file and line if it is meant for programmers."""
    if issubclass(category, UserWarning):
        tell(f"ctrbox: warning: {message}")
    else:
        tell(warnings.formatwarning(message, category, filename, lineno, line).rstrip())


def open_streams() -> None:
    """Open closed standard streams (`2>&-`) on /dev/null; otherwise the next file opened would take their number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # What is read is empty; writing fails on stdout, as on any that is not there, and is lost on stderr.
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def silence(number: int) -> None:
    """Redirect a broken stream to /dev/null; otherwise the interpreter would fail at its end when it writes the rest."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
