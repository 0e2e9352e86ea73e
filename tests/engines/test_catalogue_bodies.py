"""Every line of the native catalogue names the body it runs, in words that compile.

The lines become one C++ file: each body by its text, with static_asserts that its functions take and give what shape
and kinds say. A compiler that only checks it is all that runs.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrbox import _native

NATIVE = Path(__file__).parents[2] / "native"
SCALARS = {"b": "uint8_t", "i": "int64_t", "t": "int64_t", "f": "double", "k": "uint64_t", "s": "Str"}
SPECIALS = {
    "lower",
    "replace",
    "overlap_count",
    "distinct_count",
    "fill",
    "select",
    "is_null",
    "json",
    "ints_to_strs",
}


def written(kind: str) -> str:
    return f"List<{SCALARS[kind[1:]]}>" if kind[0] == "*" else SCALARS[kind]


def element(kind: str) -> str:
    """What an Items body writes: bytes of a string, elements of a list."""
    return "char" if kind == "s" else SCALARS[kind[1:]]


def functions(args: list[str], result: str, shape: str) -> Iterator[tuple[str, str]]:
    """Name and type of the functions a body of this shape has."""
    given = ["const Params&", *map(written, args)]
    if shape == "map":
        yield "apply", f"{written(result)} (*)({', '.join(given)})"
    elif shape == "partial":
        yield "apply", f"bool (*)({', '.join([given[0], written(result) + '*', *given[1:]])})"
    elif shape == "each":
        yield "apply", f"{element(result)} (*)({', '.join([given[0], element(args[0]), *given[2:]])})"
    else:
        assert shape == "items"
        yield "bound", f"uint32_t (*)({', '.join(given)})"
        yield "write", f"uint32_t (*)({', '.join([given[0], element(result) + '*', *given[1:]])})"


def source(lines: dict[str, tuple[str, str, str, bool, str]]) -> str:
    out = [f'#include "operators/{header}"' for header in sorted({line[-1] for line in lines.values()})]
    out += ["template <class A, class B> constexpr bool alike = false;"]
    out += ["template <class A> constexpr bool alike<A, A> = true;", "namespace cb {"]
    for call, (result, shape, body, _, _) in lines.items():
        for name, type_ in functions(call[call.index("(") + 1 : -1].split(","), result, shape):
            out.append(f'static_assert(alike<decltype(&{body}::{name}), {type_}>, "{call}: {shape} {body}::{name}");')
    return "\n".join([*out, "}", ""])


def compiled(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler on this machine")
    file = folder / "bodies.cpp"
    file.write_text(text)
    command = [compiler, "-std=c++20", "-fsyntax-only", "-I", str(NATIVE), str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def plain() -> dict[str, tuple[str, str, str, bool, str]]:
    return {call: line for call, line in _native.bodies().items() if line[1] != "special"}


def test_bodies_compile_by_their_texts_and_have_the_functions_their_shapes_say(tmp_path: Path) -> None:
    answer = compiled(source(plain()), tmp_path)
    assert answer.returncode == 0, answer.stderr


def test_a_wrong_text_shape_or_kind_is_found(tmp_path: Path) -> None:
    right = ("k", "map", "HashInt", False, "hash.h")
    assert compiled(source({"hash(i)": right}), tmp_path).returncode == 0
    for wrong in (
        ("k", "map", "HashInts", False, "hash.h"),
        ("k", "partial", "HashInt", True, "hash.h"),
        ("i", "map", "HashInt", False, "hash.h"),
        ("k", "map", "Eq<T>", False, "numbers.h"),
    ):
        assert compiled(source({"hash(i)": wrong}), tmp_path).returncode != 0, wrong


def test_bodies_are_told_for_every_line_of_the_catalogue() -> None:
    told = {call: (line[0], line[3]) for call, line in _native.bodies().items()}
    assert told == {f"{name}({args})": (result, nulls) for name, args, result, nulls in _native.catalogue()}


def test_headers_declare_the_bodies_they_are_said_to() -> None:
    for call, (_, _, body, _, header) in plain().items():
        declared = rf"^(struct|using) {body.split('<')[0]}\b"
        assert re.search(declared, (NATIVE / "operators" / header).read_text(), re.MULTILINE), (call, header)


def test_only_partial_bodies_and_json_make_nulls() -> None:
    for call, (_, shape, _, makes_nulls, _) in _native.bodies().items():
        assert makes_nulls == (shape == "partial" or call == "json(s)"), call


def test_specials_are_the_ones_other_engines_know() -> None:
    lines = _native.bodies()
    assert {body for _, shape, body, _, _ in lines.values() if shape == "special"} == SPECIALS
    assert lines["split(s)"][1:3] == ("items", "Split")  # not the kernel's own bound
