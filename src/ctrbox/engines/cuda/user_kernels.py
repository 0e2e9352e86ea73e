"""Compiles and links kernels that call users' operators, and names the operator that does not compile.

A user's body stands in one source with everything else, so a missing brace may be reported anywhere. If that source
does not compile, each body is compiled alone, and the error names the first that fails, with its own line numbers.
"""

from __future__ import annotations

import re

from ctrbox.engines.cuda.compiler import DoesNotCompile
from ctrbox.engines.cuda.kernel_source import Source, user_body
from ctrbox.engines.cuda.runtime import Kernel, Runtime
from ctrbox.errors import DeviceError
from ctrbox.plan.language.user_operators import UserOperator


def compile_kernels(runtime: Runtime, source: Source) -> dict[str, Kernel]:
    """Return every kernel of a source; a DeviceError names the user's operator that does not compile."""
    text = source.text()
    names = [*source.launches, "copy"]
    users = source.layout.users
    scalars = {f"{name}_scalar": op for name, op in users.items() if not op.cuda}
    try:
        return runtime.compile(text, names, scalars=scalars) if scalars else runtime.compile(text, names)
    except DoesNotCompile:
        for name, op in users.items():
            if op.cuda:
                check_alone(runtime, name, op)
        raise


def check_alone(runtime: Runtime, name: str, op: UserOperator) -> None:
    text = f'#include "operators/types.h"\nusing namespace cb;\n{user_body(name, op)}'
    try:
        runtime.compile(text, [], name="operator")
    except DoesNotCompile as error:
        raise DeviceError(f"the cuda body of operator {op.name!r} does not compile:\n{shown(error.log, op)}") from None


def shown(log: str, op: UserOperator) -> str:
    """Return the compiler's log, and below it the lines of the user's text that have errors."""
    lines = op.cuda.splitlines()
    log = log.replace("\0", "").rpartition("compilation log:")[2]
    found = [int(n) for n in dict.fromkeys(re.findall(r"^operator .*\((\d+)\): error", log, re.M))]
    return "\n".join([log.strip(), *(f"line {n}: {lines[n - 1].strip()}" for n in found if 0 < n <= len(lines))])
