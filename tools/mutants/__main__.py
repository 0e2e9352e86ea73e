"""make test-mutants: apply random changes to copies of the tree, one at a time, and run the tests against each.

    python -m tools.mutants --count 100 --seed 1 [--jobs 2] [--native 0.25] [--fast-only]

A change is caught when a test fails, hangs (a limit of time per test) or crashes. Tests that lie nearest to the changed file run
first, then the other fast ones; a change that survives them meets the slow ones too, and a C++ change the native tests as well.
``--fast-only`` leaves out that last step. The seed decides which places of `sites.py` are drawn, so a run can be repeated.
The command prints one line for each change, the survivors, and a last line of JSON. It exits with 1 where fewer than --least
percent (fast tests) or --least-all percent were caught.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tools.mutants.sites import Site, native_sites, python_sites

ROOT = Path(__file__).resolve().parents[2]
FAST = "not slow and not s3 and not gpu and not hdfs and not exhaustive"
SLOW = "(slow or s3) and not gpu and not hdfs and not exhaustive"
# Folders of tests for folders of native code; Python's tests mirror its folders.
NATIVE_TESTS = {
    "native/core/sparse": ["sparse", "embed"],
    "native/core/ffm": ["online", "capi"],
    "native/core/parquet": ["views", "engine"],
    "native/core/publish": ["publish", "capi"],
    "native/core/request": ["serve", "engines"],
    "native/core/memory_table": ["embed"],
    "native/core/pooling": ["embed"],
    "native/operators": ["operators", "engine", "cuda"],
    "native/capi": ["capi"],
    "native/core": ["engine", "operators", "engines", "embed"],
    "native/bindings": ["engine", "embed", "online", "serve"],
}
PYTHON_TESTS = {"learning": ["cli", "train"], "training_command": ["cli", "train"], "streaming": ["cli", "online"]}


@dataclass
class Outcome:
    site: Site
    caught: str  # by what; empty for a survivor, "stillborn" where it does not compile
    seconds: float


def tests_for(site: Site, root: Path) -> list[str]:
    """Folders of tests, the nearest first; all of tests/ comes behind them."""
    if site.path.startswith("native/"):
        near = next((found for head, found in NATIVE_TESTS.items() if site.path.startswith(head)), [])
    else:
        parts = Path(site.path).parts[2:]
        folder = parts[0] if len(parts) > 1 else Path(parts[0]).stem
        near = PYTHON_TESTS.get(folder, [folder if len(parts) > 1 else "cli"])
        named = sorted(
            str(p.relative_to(root))
            for p in (root / "tests").rglob("test_*.py")
            if Path(site.path).stem in p.read_text(encoding="utf-8")
        )
        return [*named[:12], *(f"tests/{name}" for name in near if (root / "tests" / name).is_dir())]
    return [f"tests/{name}" for name in near if (root / "tests" / name).is_dir()]


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
        (site_packages / "borrowed.pth").write_text("\n".join([str(place / "src"), *borrowed]) + "\n")
        for tool in Path(sys.executable).parent.iterdir():  # servers of tests lie beside the interpreter
            if not (place / ".venv/bin" / tool.name).exists():
                (place / ".venv/bin" / tool.name).symlink_to(tool)
        self.python = place / ".venv/bin/python"
        self.built = False

    def build(self) -> bool:
        """The extension from this tree's native/; False where it does not compile."""
        folder = self.place / "build/mutants"
        tools = Path(sys.executable).parent
        if not (folder / "build.ninja").exists():
            command = [tools / "cmake", "-S", self.place, "-B", folder, "-G", "Ninja", "-DSKBUILD_STATE=editable"]
            command += [f"-DPython_EXECUTABLE={self.python}", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}"]
            if shutil.which("ccache"):
                command.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
            subprocess.run(command, check=True, capture_output=True)
        return self._ran([tools / "cmake", "--build", folder, "-j", "1"], 3600) == 0

    def native_tests(self) -> bool:
        """Whether all pass."""
        folder, tools = self.place / "build/native-tests", Path(sys.executable).parent
        if not (folder / "build.ninja").exists():
            command = [tools / "cmake", "-S", self.place, "-B", folder, "-G", "Ninja", "-DCTRBOX_TESTS=ON"]
            command += [f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", "-DCMAKE_CXX_FLAGS_RELEASE=-O1"]
            if shutil.which("ccache"):
                command.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
            subprocess.run(command, check=True, capture_output=True)
        if self._ran([tools / "cmake", "--build", folder, "-j", "1"], 3600) != 0:
            return False
        return self._ran([tools / "ctest", "--test-dir", folder, "--timeout", "300", "--stop-on-failure"], 3600) == 0

    def passes(self, marks: str, paths: list[str], limit: float) -> bool:
        """Whether pytest ends well; no tests is well."""
        command = [self.python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
        command += ["--timeout", "120", "-m", marks, *paths]
        return self._ran(command, limit) in (0, 5)

    def _ran(self, command: list[object], limit: float) -> int:
        environment = {
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self.place / ".h"),
        }
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=self.place,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return 124
        finally:
            with_children = process.pid
            for signal in (15, 9):
                try:
                    os.killpg(with_children, signal)
                except ProcessLookupError:
                    break
                time.sleep(0.2)
            process.wait()

    def outcome(self, site: Site, slow: bool, limit: float) -> Outcome:
        began = time.monotonic()
        path = self.place / site.path
        original = path.read_text(encoding="utf-8")
        native = site.path.startswith("native/")
        try:
            path.write_text(site.applied(original), encoding="utf-8")
            caught = self._caught(site, native, slow, limit)
        finally:
            path.write_text(original, encoding="utf-8")
            if native:
                self.build()
        return Outcome(site, caught, time.monotonic() - began)

    def _caught(self, site: Site, native: bool, slow: bool, limit: float) -> str:
        if native and not self.build():
            return "stillborn"
        near = tests_for(site, self.place)
        if near and not self.passes(FAST, near, limit):
            return "fast tests"
        if not self.passes(FAST, ["tests"], limit):
            return "fast tests"
        if slow and native and not self.native_tests():
            return "native tests"
        if slow and not self.passes(SLOW, near, limit):
            return "slow tests"
        if slow and not self.passes(SLOW, ["tests"], limit):
            return "slow tests"
        return ""


def drawn(seed: int, native: float) -> list[Site]:
    """All sites in a random order, ``native`` of them from C++."""
    rng = random.Random(seed)
    pools = [list(python_sites(ROOT)), list(native_sites(ROOT))]
    for pool in pools:
        rng.shuffle(pool)
    order = []
    while all(pools):
        order.append(pools[rng.random() < native].pop())
    return order


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="number of changes (default: 100)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample (default: 1)")
    parser.add_argument("--jobs", type=int, default=2, help="changes tried at a time (default: 2)")
    parser.add_argument("--native", type=float, default=0.25, help="share of C++ changes, 0 to 1 (default: 0.25)")
    parser.add_argument("--fast-only", action="store_true", help="run the fast tests alone")
    parser.add_argument("--limit", type=float, default=1800, help="seconds for one run of pytest (default: 1800)")
    parser.add_argument("--least", type=float, default=90, help="percent that fast tests must catch (default: 90)")
    parser.add_argument("--least-all", type=float, default=95, help="percent that all tests must catch (default: 95)")
    parser.add_argument("--minutes", type=float, default=0, help="stop drawing after this time; 0: never (default)")
    parser.add_argument("--place", type=Path, default=ROOT / "build/mutants", help="where copies of the tree are made")
    asked = parser.parse_args()
    began = time.monotonic()

    waiting: queue.SimpleQueue[Site] = queue.SimpleQueue()
    for site in drawn(asked.seed, asked.native):
        waiting.put(site)
    outcomes: list[Outcome] = []
    lock, reserved = threading.Lock(), [0]

    def work(number: int) -> None:
        tree = Tree(asked.place / f"job-{number}")
        while True:
            with lock:
                late = asked.minutes and time.monotonic() - began > 60 * asked.minutes
                if reserved[0] >= asked.count or late:
                    return
                reserved[0] += 1
                site = waiting.get()
            outcome = tree.outcome(site, not asked.fast_only, asked.limit)
            with lock:
                if outcome.caught == "stillborn":
                    reserved[0] -= 1
                else:
                    outcomes.append(outcome)
                print(f"{outcome.caught or 'SURVIVED':12} {outcome.seconds:6.0f} s  {site}", flush=True)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(asked.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    total = len(outcomes)
    fast = sum(o.caught == "fast tests" for o in outcomes)
    caught = sum(bool(o.caught) for o in outcomes)
    print(f"\n{total} changes with seed {asked.seed}: {fast} caught by fast tests, {caught} by all tests. Survivors:")
    for outcome in outcomes:
        if not outcome.caught:
            print(f"  {outcome.site}")
    share = {"fast": 100 * fast / max(1, total), "all": 100 * caught / max(1, total)}
    print(json.dumps({"changes": total, "seed": asked.seed, "percent_caught": share, "unit": "percent of changes"}))
    sys.exit(share["fast"] < asked.least or (not asked.fast_only and share["all"] < asked.least_all))


if __name__ == "__main__":
    main()
