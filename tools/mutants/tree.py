"""A copy of the committed tree in which one change at a time is made, built and tested."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.executable).parent
# Programs that tests start are measured as well, where the environment asks for it.
MEASURE = "import os; 'COVERAGE_PROCESS_START' in os.environ and __import__('coverage').process_startup()"


class Tree:
    """A copy of the committed tree with an environment that imports the package from it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x"], cwd=place, input=archive, check=True)
        for name in ("_native.pyi", *(p.name for p in (ROOT / "src/ctrbox").glob("_native*.so"))):
            shutil.copy2(ROOT / "src/ctrbox" / name, place / "src/ctrbox" / name)
        shared = ROOT.parent / "shared"
        if shared.exists():
            (place.parent / "shared").unlink(missing_ok=True)
            (place.parent / "shared").symlink_to(shared)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / ".venv"], check=True)
        (site_packages,) = (place / ".venv/lib").glob("python3*/site-packages")
        borrowed = [p for p in sys.path if p.endswith("site-packages")]
        (site_packages / "borrowed.pth").write_text("\n".join([str(place / "src"), *borrowed, MEASURE]) + "\n")
        for tool in TOOLS.iterdir():  # servers of tests lie beside the interpreter
            if not (place / ".venv/bin" / tool.name).exists():
                (place / ".venv/bin" / tool.name).symlink_to(tool)
        self.python = place / ".venv/bin/python"
        self.output = place.parent / f"{place.name}.out"
        self.nursery: subprocess.Popen[str] | None = None
        self.environment = {
            **{name: os.environ[name] for name in os.environ if name not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")},
            "HYPOTHESIS_STORAGE_DIRECTORY": str(place / ".h"),
            "CCACHE_BASEDIR": str(place),  # so that all copies share what ccache keeps
            "CCACHE_NOHASHDIR": "1",
        }
        # Compiled modules are compared by a hash of their source: a change may keep the size and the second of a file.
        compiled = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "src"]
        subprocess.run([self.python, *compiled], cwd=place, check=True)

    def use_extension(self, built: Path) -> None:
        """Put a copy of a built extension in the place of this tree's own."""
        (own,) = (self.place / "src/ctrbox").glob("_native*.so")
        shutil.copy2(built, own.with_suffix(".new"))
        own.with_suffix(".new").replace(own)  # a process that still runs keeps the file that it has opened

    def pytest(
        self, arguments: list[object], limit: float, chosen: list[str] | None = None, **environment: str
    ) -> tuple[int, list[dict]]:
        """Run pytest, of ``chosen`` tests alone where given; return its exit status and the entries of `pytest_plugin.py`."""
        log, choice = self.place.parent / f"{self.place.name}.log", self.place.parent / f"{self.place.name}.chosen"
        log.unlink(missing_ok=True)
        environment["MUTANTS_LOG"] = str(log)
        if chosen is not None:
            choice.write_text(json.dumps(chosen), encoding="utf-8")
            environment["MUTANTS_CHOSEN"] = str(choice)
        # The same random examples every time, so that a failure comes from the change and not from another example.
        words = ["-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", "-p", "tools.mutants.pytest_plugin", *arguments]
        if chosen is None:
            status = self.ran([self.python, "-m", "pytest", *words], limit, **environment)
        else:
            status = self._forked([str(word) for word in words], limit, environment)
        return status, [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def _forked(self, arguments: list[str], limit: float, environment: dict[str, str]) -> int:
        """Run pytest in a fork of this tree's `fork_server.py`, which is started where it does not run."""
        if self.nursery is None or self.nursery.poll() is not None:
            self.nursery = subprocess.Popen(
                [self.python, "-m", "tools.mutants.fork_server"],
                cwd=self.place,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=self.environment,
                process_group=0,
            )
        assert self.nursery.stdin is not None
        assert self.nursery.stdout is not None
        asked = {"arguments": arguments, "environment": environment, "output": str(self.output), "limit": limit}
        self.nursery.stdin.write(json.dumps(asked) + "\n")
        self.nursery.stdin.flush()
        return int(self.nursery.stdout.readline())

    def ran(self, command: list[object], limit: float, **environment: str) -> int:
        """Run a command in this tree; end it and all that it started after ``limit`` seconds."""
        output = self.output.open("w")
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=self.place,
            stdout=output,
            stderr=output,
            env={**self.environment, **environment},
            process_group=0,
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return 124
        finally:
            for signal in (15, 9):
                try:
                    os.killpg(process.pid, signal)
                except ProcessLookupError:
                    break
                time.sleep(0.2)
            process.wait()
            output.close()
