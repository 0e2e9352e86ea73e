"""CTRBox: from raw ad logs to served click predictions, in one program.

    import ctrbox as cb
    from ctrbox import col

Names are imported when they are first used, so that ``ctrbox --help`` need not wait for Arrow. The list of the names is in
``__init__.pyi``, which type checkers and editors read as well.
"""

from __future__ import annotations

from importlib import import_module
from sys import modules

TYPE_CHECKING = False  # Type checkers take it for True. Importing typing, re and pathlib here would take 20 ms.
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.2.0"

with open(__file__.removesuffix(".py") + ".pyi", encoding="utf-8") as _names:  # noqa: PTH123 - pathlib is slow to import
    _LINES = [line.split() for line in _names if line.startswith("from ")]  # from MODULE import NAME as NAME
# The module of each public name; of a namespace it is this package.
HOME = {line[3]: line[1] for line in _LINES}


def __getattr__(name: str) -> Any:
    if name in HOME:
        home = HOME[name]
        try:
            value = import_module(f"ctrbox.{name}") if home == "ctrbox" else getattr(import_module(home), name)
        except (AttributeError, ImportError) as error:
            _with_cause(error)
            raise
        if "ctrbox._native" in modules:
            vars(modules["ctrbox._native"])["__getattr__"] = _no_native_name
        globals()[name] = value
        return value
    if name == "_native":  # ``from ctrbox import _native``
        native = import_module("ctrbox._native")
        vars(native)["__getattr__"] = _no_native_name
        return native
    raise AttributeError(f"module 'ctrbox' has no attribute {name!r}{_advice(name)}", name=name)


def __dir__() -> list[str]:
    return sorted([*HOME, "__version__"])


def _no_native_name(name: str) -> Any:
    """Say why the extension has no such name: Python calls this where an attribute of it is not found."""
    error = AttributeError(f"module 'ctrbox._native' has no attribute {name!r}", name=name)
    raise error if name.startswith("__") else _with_cause(error)


def _with_cause(error: Exception) -> Exception:
    """Add to an error that the extension of a checkout is missing or older than its sources, if that is so."""
    told = import_module("ctrbox.cli.outdated_native_build").old_native(error)
    if told and told not in getattr(error, "__notes__", []):
        error.add_note(told)
    return error


def _advice(name: str) -> str:
    """Return ``"; nearest: cb.tables.Counters"``: the public name most like `name`, or ``""`` when none is like it."""
    if name.startswith("_"):  # Python and libraries ask for names such as __wrapped__ all the time
        return ""
    if name.startswith(("read_", "scan_")):  # as in pandas and polars: read_csv, scan_parquet
        return "; a view reads files: cb.View('log.parquet', key='id')"
    from ctrbox.arguments.names import closest

    known = {inner: f"cb.{inner}" for inner in HOME}
    for space in [space for space, home in HOME.items() if home == "ctrbox"]:
        for inner in import_module(f"ctrbox.{space}").__all__:
            known.setdefault(inner, f"cb.{space}.{inner}")
    found = closest(name, known)
    return f"; nearest: {known[found]}" if found else ""
