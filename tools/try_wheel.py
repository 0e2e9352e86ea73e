"""Install a wheel where no compiler can be found, and run the demo with it: python tools/try_wheel.py [WHEEL]

The wheel goes into a new, empty virtual environment under build/try_wheel. PATH holds only the programs of that environment, so
neither pip nor the demo can start a compiler, and pip is told to take nothing but wheels. The demo runs in an empty folder,
which keeps the sources of this repository out of sight.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "build" / "try_wheel"
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "cmake", "ninja", "make")


def newest_wheel() -> Path:
    """Return the wheel that was built last."""
    wheels = sorted((ROOT / "dist").glob("ctrbox-*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        raise SystemExit("there is no wheel in dist; run: make wheel")
    return wheels[-1]


def without_compilers(bin_folder: Path) -> dict[str, str]:
    """Return the variables of this process with a PATH on which no compiler lies."""
    variables = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX", "PYTHONPATH")}
    variables["PATH"] = str(bin_folder)
    found = [name for name in COMPILERS if shutil.which(name, path=variables["PATH"])]
    if found:
        raise SystemExit(
            f"{bin_folder} has {', '.join(found)}, so this would not show that the wheel needs no compiler"
        )
    return variables


def try_wheel(wheel: Path, python: str, rows: int) -> None:
    """Install a wheel into an empty environment and run `ctrbox demo` there."""
    shutil.rmtree(HOME, ignore_errors=True)
    subprocess.run([python, "-m", "venv", str(HOME / "env")], check=True)
    bin_folder = HOME / "env" / "bin"
    variables = without_compilers(bin_folder)
    empty = HOME / "empty"
    empty.mkdir()
    pip = [
        str(bin_folder / "python"),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "-q",
        "--only-binary",
        ":all:",
    ]
    subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), str(wheel)], check=True, env=variables, cwd=empty)
    where = [str(bin_folder / "python"), "-c", "import ctrbox; print(ctrbox.__file__, ctrbox.__version__)"]
    shown = subprocess.run(where, check=True, env=variables, cwd=empty, capture_output=True, text=True).stdout
    if not shown.startswith(str(HOME)):
        raise SystemExit(f"ctrbox was imported from {shown.strip()}, not from the environment under {HOME}")
    demo = [str(bin_folder / "ctrbox"), "demo", "--rows", str(rows), "--out", "demo"]
    subprocess.run(demo, check=True, env=variables, cwd=empty)
    if not list((empty / "demo").rglob("report.html")):
        raise SystemExit(f"the demo ended well and left no report.html under {empty / 'demo'}")
    print(f"{wheel.name} works without a compiler: {shown.strip()}")


def main() -> None:
    options = argparse.ArgumentParser(description="Try a wheel of CTRBox where no compiler can be found.")
    options.add_argument("wheel", nargs="?", type=Path, help="The wheel. Default: the newest one in dist.")
    options.add_argument(
        "--python", default=sys.executable, help="Interpreter to install for. Default: the one running."
    )
    options.add_argument("--rows", type=int, default=50_000, help="Number of impressions in the demo. Default: 50000.")
    chosen = options.parse_args()
    try_wheel((chosen.wheel or newest_wheel()).resolve(), chosen.python, chosen.rows)


if __name__ == "__main__":
    main()
