"""Compiles generated source to GPU machine code with NVRTC, through cuda.core. Compilation needs no GPU.

Compiled kernels are kept on disk by the hash of source, architecture, compiler and options, the source beside them:

    <folder>/<hash>.cubin    8 bytes magic, u32 version, u32 length of the compiler's log, u64 length of the code,
                             32 bytes SHA-256 of all that follows; the compiler's log; the code
    <folder>/<hash>.cu       the source, for people

If a file is damaged or has another version, its source is compiled again. Folder: $CTRBOX_KERNELS, else ~/.cache/ctrbox/kernels.
NVRTC has a cache of its own since 12.9. It is turned off, because a kernel from it lacks the report on registers.
Floating-point contraction is off: a fused multiply-add rounds once where the CPU rounds twice.

Functions that numba compiled for the GPU are linked in by nvJitLink, which comes with cuda-core as NVRTC does.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctrbox.errors import CtrboxError, DeviceError
from ctrbox.files.atomic import written_aside

MAGIC, VERSION = b"CTRKERNL", 2
HEAD = struct.Struct("<8sIIQ32s")
INCLUDE = re.compile(r'^#include "([\w/]+\.h)"\n', re.M)
LINKING = ("-lto", "-fma=0", "-ftz=0", "-prec-div=1", "-prec-sqrt=1")  # code of what is linked is made by the linker
INSTALL = "pip install 'ctrbox[cuda]'"


class DoesNotCompile(DeviceError):
    """Raised if the compiler refuses a source. ``log``: its messages."""

    def __init__(self, message: str, log: str) -> None:
        super().__init__(message)
        self.log = log


@dataclass(frozen=True)
class Compiled:
    """Machine code of a source, and the report of the assembler on each kernel."""

    code: bytes
    said: str

    def usage(self) -> dict[str, dict[str, int]]:
        """Return, by kernel, the registers per thread, the bytes of its stack frame, and the bytes of spilled registers."""
        found: dict[str, dict[str, int]] = {}
        for part in self.said.split("Compiling entry function ")[1:]:
            name = re.match(r"'(\w+)'", part)
            registers = re.search(r"Used (\d+) registers", part)
            frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", part)
            if name and registers and frame:
                found[name[1]] = {"registers": int(registers[1]), "frame": int(frame[1]), "spilled": int(frame[2])}
        return found


def headers() -> Path:
    """Return the folder that holds operators/ and cuda/: inside the package, or beside its sources in a checkout."""
    package = Path(__file__).parents[2]
    installed = package / "native"
    return installed if installed.is_dir() else package.parents[1] / "native"


def expanded(source: str) -> str:
    """Return the source with our headers in place of their #include lines, each once, so that its hash covers everything."""
    seen: set[str] = set()
    root = headers()

    def put(match: re.Match[str]) -> str:
        name = match[1]
        if name in seen:
            return ""
        seen.add(name)
        text = (root / name).read_text("utf-8").replace("#pragma once\n", "")
        return f"// ---- {name}\n" + INCLUDE.sub(put, text)

    return INCLUDE.sub(put, source)


def kernel_folder() -> Path:
    chosen = os.environ.get("CTRBOX_KERNELS")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "ctrbox" / "kernels"


def nvrtc() -> Any:
    """Return the module cuda.core; if it is missing or too old, raise a DeviceError that says so."""
    try:
        import cuda.core as core
    except ImportError as error:
        raise DeviceError(f"compiling for a GPU needs cuda-core, which is not installed ({error}): {INSTALL}") from None
    if not hasattr(core, "Program"):
        raise DeviceError(f"the installed cuda-core is too old; expected version 1.0 or newer: {INSTALL}")
    return core


def nvrtc_version() -> tuple[int, int]:
    """Return the version of the run-time compiler; raise a RuntimeError if it cannot be loaded."""
    from cuda.bindings import nvrtc as compiler

    _, major, minor = compiler.nvrtcVersion()
    return major, minor


def compile_source(
    source: str, arch: str, *, folder: Path | None = None, name: str = "plan", linked: Mapping[str, bytes] | None = None
) -> Compiled:
    """Return the machine code of a source without includes, for an architecture such as ``sm_90``; from disk if it is there.

    ``linked``: device functions in NVVM's intermediate form (LTO-IR), by name. The source is then translated to this form as
    well, and everything is optimized together, so that a call of such a function costs no more than any other call.
    """
    core = nvrtc()
    folder = folder or kernel_folder()
    options = {"std": "c++20", "arch": arch, "fma": False, "ftz": False, "prec_div": True, "prec_sqrt": True}
    made_from: list[Any] = [VERSION, core.__version__, sorted(options.items()), source]
    if linked:
        options |= {"relocatable_device_code": True, "link_time_optimization": True}
        made_from.append([hashlib.sha256(code).hexdigest() for code in linked.values()])
    key = hashlib.sha256(repr(made_from).encode()).hexdigest()[:40]
    place = folder / f"{key}.cubin"
    known = read(place)
    if known is not None:
        return known
    said = io.StringIO()
    try:
        if nvrtc_version() >= (12, 9):
            options["no_cache"] = True
        program = core.Program(
            source,
            "c++",
            core.ProgramOptions(**options, name=f"{name}.cu", ptxas_options=["-v"], lineinfo=True, diag_suppress=[177]),
        )
        made = bytes(program.compile("ltoir" if linked else "cubin", logs=said).code)
    except RuntimeError as error:  # the library that cuda.core loads at this moment
        raise DeviceError(f"NVRTC, the run-time compiler of CUDA, cannot be loaded: {error}; {INSTALL}") from None
    except Exception as error:
        if "NVRTC" not in type(error).__name__:
            raise DeviceError(f"NVRTC cannot be used: {type(error).__name__}: {error}; {INSTALL}") from error
        log = explained(str(error), source)
        raise DoesNotCompile(f"the kernels of this plan do not compile for {arch}:\n{log}", str(error)) from None
    compiled = link({f"{name}.cu": made, **linked}, arch) if linked else Compiled(made, said.getvalue())
    keep(place, compiled, source)
    return compiled


def link(parts: Mapping[str, bytes], arch: str) -> Compiled:
    """Link parts in LTO-IR into one piece of machine code."""
    try:
        from cuda.bindings import nvjitlink

        nvjitlink.version()  # loads the library
    except (ImportError, RuntimeError, OSError) as error:
        raise DeviceError(f"nvJitLink, the run-time linker of CUDA, cannot be loaded: {error}; {INSTALL}") from None
    options = [f"-arch={arch}", *LINKING, "-lineinfo", "-Xptxas=-v"]
    handle = nvjitlink.create(len(options), options)
    try:
        try:
            for name, code in parts.items():
                nvjitlink.add_data(handle, nvjitlink.InputType.LTOIR, code, len(code), name)
            nvjitlink.complete(handle)
        except nvjitlink.nvJitLinkError as error:
            log = bytearray(nvjitlink.get_error_log_size(handle))
            nvjitlink.get_error_log(handle, log)
            why = log.decode("utf-8", "replace").strip("\0\n ")
            raise DeviceError(f"{', '.join(parts)} cannot be linked for {arch}: {error}\n{why}") from None
        said = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, said)
        made = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, made)
        return Compiled(bytes(made), said.decode("utf-8", "replace").strip("\0"))
    finally:
        nvjitlink.destroy(handle)


def explained(log: str, source: str) -> str:
    """Return the compiler's log, with the line of source below each error."""
    lines = source.splitlines()
    shown = [log.strip()]
    for number in dict.fromkeys(re.findall(r"\.cu\((\d+)\): error", log)):
        at = int(number)
        if 0 < at <= len(lines):
            shown.append(f"line {at}: {lines[at - 1].strip()}")
    return "\n".join(shown)


def read(place: Path) -> Compiled | None:
    """Return a kept kernel, or None if there is none that can be used."""
    try:
        if not place.is_file():  # nothing, or something that would never end
            return None
        raw = place.read_bytes()
        magic, version, said, code, digest = HEAD.unpack_from(raw)
    except (OSError, struct.error):
        return None
    rest = raw[HEAD.size :]
    if (magic, version, len(rest)) != (MAGIC, VERSION, said + code) or hashlib.sha256(rest).digest() != digest:
        return None
    return Compiled(rest[said:], rest[:said].decode("utf-8", "replace"))


def keep(place: Path, compiled: Compiled, source: str) -> None:
    """Write a kernel and its source. A cache that cannot be written is ignored."""
    said = compiled.said.encode()
    rest = said + compiled.code
    head = HEAD.pack(MAGIC, VERSION, len(said), len(compiled.code), hashlib.sha256(rest).digest())
    try:
        with written_aside(place.with_suffix(".cu")) as aside:
            aside.write_text(source, "utf-8")
        with written_aside(place) as aside:
            aside.write_bytes(head + rest)
    except (CtrboxError, OSError):
        return
