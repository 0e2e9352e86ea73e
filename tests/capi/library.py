"""libctrbox, built by the system's compilers into build/capi-tests and installed into a folder of the test's own."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def tool(name: str) -> str:
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name) or name


def run(*command: str, **more: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, **more)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return str(done.stdout)


def installed(prefix: Path) -> Path:
    """Build without optimization, install, and return the folder with include/ and lib/.

    The build stays, so only its first run takes long. It is not the one of `make capi`, which is optimized. Test processes
    that run at the same time wait for the first of them."""
    build = ROOT / "build" / "capi-tests"
    build.mkdir(parents=True, exist_ok=True)
    with (build / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        build_and_install(build, prefix)
    return prefix


def build_and_install(build: Path, prefix: Path) -> None:
    run(
        tool("cmake"), "-S", str(ROOT), "-B", str(build), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
        "-DCTRBOX_CAPI=ON", "-DCTRBOX_WERROR=ON", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0",
        f"-DCMAKE_INSTALL_PREFIX={prefix}", "-DCMAKE_INSTALL_LIBDIR=lib",
    )  # fmt: skip
    run(tool("cmake"), "--build", str(build))
    run(tool("cmake"), "--install", str(build))


def example(prefix: Path, out: Path, **more: str) -> Path:
    """examples/c/score.c by its Makefile."""
    shutil.copytree(ROOT / "examples" / "c", out)
    environment = {**os.environ, "PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig"), "CFLAGS": "-O1 -Werror", **more}
    run("make", "-C", str(out), env=environment)
    return out / "score"


class Examples(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_size_t),
        ("offsets", ctypes.POINTER(ctypes.c_uint64)),
        ("fields", ctypes.POINTER(ctypes.c_uint32)),
        ("keys", ctypes.POINTER(ctypes.c_uint64)),
        ("values", ctypes.POINTER(ctypes.c_float)),
    )


def loaded(prefix: Path) -> ctypes.CDLL:
    lib = ctypes.CDLL(str(prefix / "lib" / "libctrbox.so"))
    for name in ("ctrbox_last_error", "ctrbox_version", "ctrbox_field_name"):
        getattr(lib, name).restype = ctypes.c_char_p
    lib.ctrbox_learned.restype = ctypes.c_uint64
    lib.ctrbox_context_bytes.restype = ctypes.c_size_t
    for name in ("ctrbox_close", "ctrbox_context_free", "ctrbox_scorer_close"):
        getattr(lib, name).restype = None
    return lib
