"""Compiles a user's function of one row with numba into a device function; needs no GPU.

The result is LTO-IR, not PTX: whether a multiply and an add are contracted is decided where machine code is made, numba has no
option against it, and from LTO-IR the linker (compiler.py) makes the code. The linker also puts the function into the
kernels that call it.

C's calling convention: bool as a byte, int and time as 64 bits, float as a double; a bool is returned as 64 bits, since
numba's own return of one byte is refused by NVVM.
"""

from __future__ import annotations

import functools
import importlib
import re

from ctrbox.engines.cpu.user_row_function import INSTALL, TYPES, brief, numba
from ctrbox.errors import DeviceError
from ctrbox.plan.language.user_operators import UserOperator


@functools.lru_cache(256)  # numba numbers what it compiles: compiled again, the same function has other bytes
def device_code(op: UserOperator, symbol: str, arch: str) -> bytes:
    """Return the LTO-IR of the operator's function under the name ``symbol``, for an architecture such as ``sm_90``."""
    module = numba()
    digits = re.sub(r"\D", "", arch)
    takes = [getattr(module.types, TYPES[kind]) for kind in op.args]
    gives = getattr(module.types, "int64" if op.result == "b" else TYPES[op.result])
    try:
        code, _ = importlib.import_module("numba.cuda").compile(
            op.function,
            gives(*takes),
            device=True,
            abi="c",
            abi_info={"abi_name": symbol},
            cc=(int(digits[:-1]), int(digits[-1])),
            output="ltoir",
        )
    except (module.core.errors.NumbaError, NotImplementedError) as error:
        raise DeviceError(f"operator {op.name!r} cannot be compiled by numba for the GPU: {brief(error)}") from None
    except Exception as error:  # NVVM is not there, or refuses what numba made: each of its releases has its own error
        said, _, _ = brief(error).partition("\n")
        raise DeviceError(
            f"operator {op.name!r} cannot be compiled for the GPU: numba's CUDA part failed ({type(error).__name__}: {said}); "
            f"it needs NVVM, which numba-cuda brings: {INSTALL}"
        ) from error
    return bytes(code)
