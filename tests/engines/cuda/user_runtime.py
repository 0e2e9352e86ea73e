"""Runtimes for operators of users, without a GPU.

`ScalarRuntime`: the kernels on the CPU, with what numba compiles of scalar functions for a CPU in place of what it
compiles for a GPU; the calls between them are C's in both. `NvrtcRuntime`: the kernels compiled and linked for a real
architecture, and never run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ctrbox.engines.cpu.user_row_function import TYPES
from ctrbox.engines.cuda.compiler import Compiled, compile_source, expanded
from ctrbox.engines.cuda.kernel_source import type_of
from ctrbox.engines.cuda.runtime import NONE
from ctrbox.engines.cuda.user_row_function import device_code
from ctrbox.plan.language.user_operators import UserOperator
from tests.cuda_host import HostKernel, HostRuntime


def c_function(op: UserOperator) -> Any:
    """The operator's function as C calls it; keep it as long as it may be called."""
    import numba

    takes = [getattr(numba.types, TYPES[kind]) for kind in op.args]
    gives = getattr(numba.types, "int64" if op.result == "b" else TYPES[op.result])
    return numba.cfunc(gives(*takes), error_model="numpy")(op.function)


class ScalarRuntime(HostRuntime):
    """The library holds places for functions, which a kernel fills: their addresses differ by process, the library stays."""

    def compile(
        self, source: str, names: Sequence[str], *, name: str = "plan", scalars: Mapping[str, UserOperator] = NONE
    ) -> dict[str, HostKernel]:
        if not scalars:
            return super().compile(source, names, name=name)
        text, sets = [source], []
        for number, (symbol, op) in enumerate(scalars.items()):
            gives = "double" if op.result == "f" else "int64_t"
            takes = ", ".join(f"{type_of(kind)} a{k}" for k, kind in enumerate(op.args))
            given = ", ".join(f"a{k}" for k in range(len(op.args)))
            text.append(f"typedef {gives} (*Of_{symbol})({takes});\nstatic Of_{symbol} at_{symbol};\n")
            text.append(f'extern "C" {gives} {symbol}({takes}) {{ return at_{symbol}({given}); }}\n')
            sets.append(f"at_{symbol} = (Of_{symbol})p{number};")
        takes = ", ".join(f"uint64_t p{k}" for k in range(len(sets)))
        text.append(f'extern "C" __global__ void set_scalars({takes}) {{ {" ".join(sets)} }}\n')
        kernels = super().compile("".join(text), [*names, "set_scalars"], name=name)
        made = [c_function(op) for op in scalars.values()]
        self.kept = [*getattr(self, "kept", []), *made]
        kernels.pop("set_scalars")((1, 1), 1, *(f.address for f in made))
        return kernels


@dataclass
class Unrun:
    name: str
    registers: int
    spilled: int


class NvrtcRuntime:
    """Compiles for ``arch`` for real; ``made``: what came of it, the last at the end."""

    device = torch.device("cpu")
    threads = 256

    def __init__(self, folder: Path, arch: str = "sm_90") -> None:
        self.folder, self.arch = folder, arch
        self.made: list[Compiled] = []

    def compile(
        self, source: str, names: Sequence[str], *, name: str = "plan", scalars: Mapping[str, UserOperator] = NONE
    ) -> dict[str, Unrun]:
        linked = {symbol: device_code(op, symbol, self.arch) for symbol, op in scalars.items()}
        compiled = compile_source(expanded(source), self.arch, folder=self.folder, name=name, linked=linked)
        self.made.append(compiled)
        usage = compiled.usage()
        return {n: Unrun(n, usage[n]["registers"], usage[n]["spilled"]) for n in names}
