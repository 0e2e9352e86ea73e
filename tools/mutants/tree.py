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
        # Compiled modules are compared by a hash of their source: a change may keep the size and the second of a file.
        compiled = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "src"]
        subprocess.run([self.python, *compiled], cwd=place, check=True)

    def build(self) -> bool:
        """Build the extension from this tree's native/; return False where it does not compile."""
        options = ["-DSKBUILD_STATE=editable", f"-DPython_EXECUTABLE={self.python}"]
        return self._built(self.place / "build/mutants", options)

    def native_tests_pass(self) -> bool:
        """Build and run the native tests."""
        folder = self.place / "build/native-tests"
        if not self._built(folder, ["-DCTRBOX_TESTS=ON", "-DCMAKE_CXX_FLAGS_RELEASE=-O1"]):
            return False
        return self.ran([TOOLS / "ctest", "--test-dir", folder, "--timeout", "300", "--stop-on-failure"], 3600) == 0

    def _built(self, folder: Path, options: list[str]) -> bool:
        if not (folder / "build.ninja").exists():
            command = [TOOLS / "cmake", "-S", self.place, "-B", folder, "-G", "Ninja", *options]
            command.append(f"-DCMAKE_MAKE_PROGRAM={TOOLS / 'ninja'}")
            if shutil.which("ccache"):
                command.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
            subprocess.run(command, check=True, capture_output=True)
        return self.ran([TOOLS / "cmake", "--build", folder, "-j", "1"], 3600) == 0

    def pytest(
        self, arguments: list[object], limit: float, chosen: list[str] | None = None, **environment: str
    ) -> tuple[int, list[dict]]:
        """Run pytest, of ``chosen`` tests alone where given; return its exit status and the entries of `plugin.py`."""
        log, choice = self.place.parent / f"{self.place.name}.log", self.place.parent / f"{self.place.name}.chosen"
        log.unlink(missing_ok=True)
        environment["MUTANTS_LOG"] = str(log)
        if chosen is not None:
            choice.write_text(json.dumps(chosen), encoding="utf-8")
            environment["MUTANTS_CHOSEN"] = str(choice)
        # The same random examples every time, so that a failure comes from the change and not from another example.
        command = [self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
        command += ["-p", "tools.mutants.plugin", *arguments]
        status = self.ran(command, limit, **environment)
        return status, [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def ran(self, command: list[object], limit: float, **environment: str) -> int:
        """Run a command in this tree; end it and all that it started after ``limit`` seconds."""
        output = (self.place.parent / f"{self.place.name}.out").open("w")
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=self.place,
            stdout=output,
            stderr=output,
            env={
                **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
                "HYPOTHESIS_STORAGE_DIRECTORY": str(self.place / ".h"),
                "CCACHE_BASEDIR": str(self.place),  # so that all copies share what ccache keeps
                "CCACHE_NOHASHDIR": "1",
                **environment,
            },
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
