"""Defines the kinds of values: one letter for each, with its Arrow type and its name for users.

b bool · i int · f float · t time (microseconds, UTC) · s str · k key; a list of X is "*X".
"""

from __future__ import annotations

import pyarrow as pa

NAMES = {"b": "bool", "i": "int", "f": "float", "t": "time", "s": "str", "k": "key"}
LETTERS = {name: letter for letter, name in NAMES.items()} | {"string": "s", "timestamp": "t"}


def name_of(kind: str) -> str:
    """Return the name of a kind for users: 'list[str]' for '*s'."""
    return f"list[{NAMES[kind[1:]]}]" if kind.startswith("*") else NAMES[kind]


def kind_named(name: str) -> str | None:
    """Return the kind with this name: '*s' for 'list[str]'; None for an unknown name."""
    if name.startswith("list[") and name.endswith("]"):
        inner = LETTERS.get(name[5:-1])
        return None if inner is None else "*" + inner
    return LETTERS.get(name)


def kind_of_arrow(type_: pa.DataType) -> str | None:
    """Return the kind as which a column of this Arrow type is read; None if the type is not simple."""
    if pa.types.is_dictionary(type_):
        return kind_of_arrow(type_.value_type)
    if pa.types.is_boolean(type_):
        return "b"
    if pa.types.is_integer(type_):
        return "i"
    if pa.types.is_floating(type_):
        return "f"
    if pa.types.is_timestamp(type_):
        return "t"
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return "s"
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return "s"
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        inner = kind_of_arrow(type_.value_type)
        return None if inner is None or inner.startswith("*") else "*" + inner
    return None


ARROW = {
    "b": pa.bool_(),
    "i": pa.int64(),
    "f": pa.float64(),
    "t": pa.timestamp("us"),
    "s": pa.large_string(),
    "k": pa.uint64(),
}


def arrow_type(kind: str) -> pa.DataType:
    """Return the Arrow type in which a column of this kind is handed out."""
    return pa.large_list(ARROW[kind[1:]]) if kind.startswith("*") else ARROW[kind]
