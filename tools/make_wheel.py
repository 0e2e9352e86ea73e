"""Build a wheel that installs without a compiler: python tools/make_wheel.py [--python python3.12] [--out dist]

The wheel is built in a small virtual environment of its own under build/wheel, which has the build requirements and the
`release` extra of pyproject.toml and nothing else. auditwheel then checks which shared libraries the native core needs and
gives the wheel the oldest manylinux tag that they allow. The wheel is one of two:

- Python 3.12 or newer: `cp312-abi3`, which uses the stable ABI and installs into every Python from 3.12 on;
- Python 3.11: `cp311-cp311`, because nanobind needs the stable ABI of 3.12.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What every manylinux system has (PEP 600) and the core may need. Any other library would have to be copied into the wheel, so it
# is refused until somebody decides that it should be.
SYSTEM_LIBRARIES = {
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "libm.so.6",
    "libc.so.6",
    "libdl.so.2",  # this and the next two are part of libc from glibc 2.34 on
    "libpthread.so.0",
    "librt.so.1",
}
LOADER = re.compile(r"ld-linux-[\w-]+\.so\.\d")


def requirements() -> list[str]:
    """Return what the environment of the build needs: the build requirements and the `release` extra."""
    import tomllib  # from Python 3.11 on; an older interpreter is refused by name before

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return [*project["build-system"]["requires"], *project["project"]["optional-dependencies"]["release"]]


def environment(python: str) -> Path:
    """Make the environment of the build for an interpreter, and return its bin folder."""
    asked = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    version = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    if tuple(map(int, version.split("."))) < (3, 11):
        raise SystemExit(f"{python} is Python {version}; ctrbox needs Python 3.11 or newer")
    home = ROOT / "build" / "wheel" / f"python{version}"
    if not (home / "bin" / "python").exists():
        subprocess.run([python, "-m", "venv", str(home)], check=True)
    install = [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    subprocess.run([*install, "-c", str(ROOT / "constraints.txt"), *requirements()], check=True)
    return home / "bin"


def foreign_libraries(wheel: Path, folder: Path) -> set[str]:
    """Return the shared libraries that the native core of a wheel needs and a manylinux system need not have."""
    shutil.unpack_archive(wheel, folder, "zip")
    found: set[str] = set()
    for library in folder.rglob("*.so"):
        shown = subprocess.run(
            ["patchelf", "--print-needed", str(library)], check=True, capture_output=True, text=True, env=os.environ
        )
        found |= set(shown.stdout.split())
    return {name for name in found - SYSTEM_LIBRARIES if not LOADER.fullmatch(name)}


def make_wheel(python: str, out: Path) -> Path:
    """Build the wheel of an interpreter, give it its manylinux tag, and return its path under `out`."""
    bin_folder = environment(python)
    # cmake and ninja of the environment are found first, and so is patchelf, which auditwheel calls.
    os.environ["PATH"] = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
    plain = bin_folder.parent / "plain"
    unpacked = bin_folder.parent / "unpacked"
    for folder in (plain, unpacked):
        shutil.rmtree(folder, ignore_errors=True)
    build = [str(bin_folder / "python"), "-m", "build", "--wheel", "--no-isolation", "--outdir", str(plain)]
    # Each source is compiled alone and reads its own headers, so a source that forgets an include is found here.
    build += [f"-Ccmake.define.{name}" for name in ("CTRBOX_FOLDERS_AS_ONE=OFF", "CMAKE_DISABLE_PRECOMPILE_HEADERS=ON")]
    subprocess.run([*build, str(ROOT)], check=True)
    (wheel,) = plain.glob("*.whl")
    foreign = foreign_libraries(wheel, unpacked)
    if foreign:
        raise SystemExit(
            f"{wheel.name} needs {', '.join(sorted(foreign))}, which a manylinux system need not have: link it statically, "
            "or let auditwheel copy it into the wheel and say so in tools/make_wheel.py"
        )
    repaired = bin_folder.parent / "repaired"
    shutil.rmtree(repaired, ignore_errors=True)
    subprocess.run([str(bin_folder / "auditwheel"), "show", str(wheel)], check=True, stdout=sys.stderr)
    subprocess.run([str(bin_folder / "auditwheel"), "repair", "-w", str(repaired), str(wheel)], check=True)
    (made,) = repaired.glob("*.whl")
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(made, out / made.name))


def main() -> None:
    options = argparse.ArgumentParser(description="Build a manylinux wheel of CTRBox for this machine's architecture.")
    options.add_argument("--python", default=sys.executable, help="Interpreter to build for. Default: the one running.")
    options.add_argument("--out", type=Path, default=ROOT / "dist", help="Folder of the finished wheel. Default: dist.")
    chosen = options.parse_args()
    try:
        print(make_wheel(chosen.python, chosen.out))
    except subprocess.CalledProcessError as failure:
        raise SystemExit(f"this command failed, and its messages stand above: {shlex.join(failure.cmd)}") from None


if __name__ == "__main__":
    main()
