"""A process that has imported the libraries which nearly every test imports, and forks for each run of pytest.

A run in a new interpreter spends seconds on importing PyTorch and Arrow before its first test; a forked one spends none. The
package itself is not imported before the fork, so that each run sees the change that was just made.

The process reads one JSON object per line from its input, {"arguments": [...], "environment": {...}, "output": "file",
"limit": seconds}, and answers each with one line: the exit status of pytest, or 124 where the time was up.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time

IMPORTED = [
    *("numpy", "torch", "pandas", "orjson", "httpx", "typer", "rich.console", "rich.progress"),
    *("pyarrow", *(f"pyarrow.{part}" for part in ("compute", "csv", "dataset", "ipc", "json", "parquet"))),
]


def tested(arguments: list[str], environment: dict[str, str], output: str) -> None:
    """Run pytest in this process, a fork, and end it."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for descriptor, file in ((0, os.open(os.devnull, os.O_RDONLY)), (1, written), (2, written)):
        os.dup2(file, descriptor)
    os.environ.update(environment)
    sys.argv[:] = ["pytest", *arguments]
    status = 3
    try:
        import pytest

        status = int(pytest.main(arguments))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def waited(child: int, limit: float) -> int:
    """Wait for a fork, at most ``limit`` seconds; end what is left of it and of all that it started."""
    ends, status = time.monotonic() + limit, 124
    while time.monotonic() < ends:
        ended, how = os.waitpid(child, os.WNOHANG)
        if ended:
            status = os.waitstatus_to_exitcode(how)
            break
        time.sleep(0.01)
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child, number)
        except ProcessLookupError:
            break
        time.sleep(0.2)
    if status == 124:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)
    return status


def main() -> None:
    for name in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            tested(asked["arguments"], asked["environment"], asked["output"])
        print(waited(child, asked["limit"]), flush=True)


if __name__ == "__main__":
    main()
