"""The command line in a process of its own that need not load its modules first.

`python -m ctrbox` imports pyarrow and, where a model is involved, torch: one to five seconds of processor time for each
process. `run_command` keeps one process that has imported them and lets it fork a child for each command. The child has its own
folder, environment, streams and exit code, as any process has. What happens while modules load, and which of them a command
loads, is for tests that start Python itself.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[2]


def run_command(
    arguments: Sequence[object], *, cwd: Path, env: Mapping[str, str] | None = None, text: bool = True
) -> subprocess.CompletedProcess[Any]:
    """Run `ctrbox` with these arguments and return its exit code and both streams, as `subprocess.run` does."""
    words = [str(a) for a in arguments]
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder) / name for name in ("stdout", "stderr")]
        request = {"argv": words, "cwd": str(cwd), "env": dict(env or os.environ), "streams": [str(s) for s in streams]}
        process = warm_process()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        assert answer, f"the warm process ended with code {process.wait()}"
        raw = [s.read_bytes() for s in streams]
    found = [one.decode() for one in raw] if text else raw
    return subprocess.CompletedProcess(["ctrbox", *words], int(answer), *found)


@functools.cache
def warm_process() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.cli.warm"]
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}  # it serves many tests
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(process.communicate)  # closes its input, which ends it
    return process


def next_request() -> dict[str, Any]:
    """Fork for each request and answer with the exit code of the child. Returns in the child alone."""
    while line := sys.stdin.buffer.readline():
        child = os.fork()
        if not child:
            request: dict[str, Any] = json.loads(line)
            return request
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(1, b"%d\n" % code)
    sys.exit()


def become(request: dict[str, Any]) -> None:
    """Take the folder, environment, streams and arguments that were asked for."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv[:] = ["ctrbox", *request["argv"]]
    sys.path[0] = request["cwd"]
    for number, path in enumerate([os.devnull, *request["streams"]]):
        opened = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    # Where coverage.py records which test executes which line (tools/mutants), these are lines of the test that runs the command.
    coverage = sys.modules.get("coverage")
    if coverage is not None and (measured := coverage.Coverage.current()) is not None:
        measured.switch_context(os.environ.get("PYTEST_CURRENT_TEST", ""))


def import_everything() -> None:
    """Import what commands import when they need it."""
    import ctrbox

    importlib.import_module("torch._dynamo")  # an optimizer of torch imports it when it is made
    for name in dir(ctrbox):
        getattr(ctrbox, name)
    gc.freeze()  # else a child's first collection of garbage writes to, and so copies, all of this memory


def end(code: int) -> NoReturn:
    """End as Python does, but without taking every module apart: torch's take half a second."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    from ctrbox.cli.main import main

    import_everything()
    become(next_request())
    try:
        main()
    except SystemExit as ended:
        end(int(ended.code or 0))
