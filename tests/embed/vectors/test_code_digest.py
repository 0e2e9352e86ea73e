"""Digests of functions: equal for the same function in another process, different for another one."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime
import decimal
import functools
import operator
import os
import pathlib
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ctrbox.embed.vectors.code_digest import code_digest

SIZE, MEANS = 32, [0.5, 0.25]


def scaled(image: Any, by: float = 2.0) -> Any:
    return image * by if image.mode in {"RGB", "L", "P"} else [x + 1 for x in image]


def reads_constants(image: Any) -> Any:
    return image, SIZE, MEANS


def calls_another(image: Any) -> Any:
    return scaled(image), calls_another


def with_(value: Any) -> Callable[[Any], Any]:
    return lambda image: (image, value)


class Scale:
    offset = 1

    def __init__(self, by: Any) -> None:
        self.by = by
        self.inner = self

    def __call__(self, image: Any) -> Any:
        return image * self.by

    @staticmethod
    def helper() -> int:
        return 1


class Nothing:
    def __call__(self, image: Any) -> Any:
        return image


@dataclasses.dataclass(slots=True)
class Slots:
    first: int
    __second: int = 0


@dataclasses.dataclass(slots=True)
class MoreSlots(Slots):
    third: int = 0


def of_text(text: str) -> str:
    """The digest of function f of a module with this text."""
    held: dict[str, Any] = {
        "__name__": "made",
        "np": np,
        "torch": torch,
        "re": re,
        "functools": functools,
        "Path": pathlib.Path,
    }
    exec(compile(textwrap.dedent(text), "made.py", "exec"), held)
    return code_digest(held["f"])


def test_the_same_function_has_the_same_digest_wherever_it_stands() -> None:
    text = "def f(x):\n    return x + 1\n"
    assert of_text(text) == of_text("\n\n# a comment\n" + text) == of_text(text)
    assert code_digest(with_(1)) == code_digest(with_(1))
    assert code_digest(Scale(3)) == code_digest(Scale(3))
    assert code_digest(Nothing()) == code_digest(Nothing())  # the first call asks what pickle would save of it


def test_each_part_of_a_function_counts() -> None:
    texts = [
        "def f(x): return x + 1",
        "def f(x): return x + 2",
        "def f(x): return x - 1",
        "def f(x, y=1): return x + 1",
        "def f(x, y=2): return x + 1",
        "def f(x, *, y=2): return x + 1",
        "def f(x, *, y=3): return x + 1",
        "def f(x): return x.real",
        "def f(x): return x.imag",
        "def f(x): return [y + 1 for y in x]",
        "def f(x): return [y + 2 for y in x]",
        "def f(x): return x in {'a', 'b'}",
        "def f(x): return x in {'a', 'c'}",
        "K = 1\ndef f(x): return K",
        "K = 2\ndef f(x): return K",
        "K = 1.0\ndef f(x): return K",
        "K = [1]\ndef f(x): return (lambda: K)()",
        "K = [2]\ndef f(x): return (lambda: K)()",
        "def g(x): return 1\ndef f(x): return g(x)",
        "def g(x): return 2\ndef f(x): return g(x)",
        "class C:\n    K = 1\ndef f(x): return C.K",
        "class C:\n    K = 2\ndef f(x): return C.K",
        "class B:\n    def m(self): return 1\nclass C(B): pass\ndef f(x): return C().m()",
        "class B:\n    def m(self): return 2\nclass C(B): pass\ndef f(x): return C().m()",
        "def f(x):\n    try: return x\n    except ValueError: return 1",
        "def f(x):\n    try: return x\n    except TypeError: return 1",
        "K = np.array([1.0])\ndef f(x): return K",
        "K = np.array([2.0])\ndef f(x): return K",
        "K = np.float32(1)\ndef f(x): return K",
        "K = np.float32(2)\ndef f(x): return K",
        "K = torch.zeros(1)\ndef f(x): return K",
        "K = torch.ones(1)\ndef f(x): return K",
        "K = re.compile('a')\ndef f(x): return K",
        "K = re.compile('b')\ndef f(x): return K",
        "K = Path('a')\ndef f(x): return K",
        "K = Path('b')\ndef f(x): return K",
        "g = functools.partial(min, 1)\ndef f(x): return g(x)",
        "g = functools.partial(min, 2)\ndef f(x): return g(x)",
        "@functools.lru_cache\ndef g(x): return 1\ndef f(x): return g(x)",
        "@functools.lru_cache\ndef g(x): return 2\ndef f(x): return g(x)",
        "class C: pass\nc = C()\nc.k = 1\ndef f(x): return c",
        "class C: pass\nc = C()\nc.k = 2\ndef f(x): return c",
        "class C:\n    K = np.array([1.0])\ndef f(x): return C.K",
        "class C:\n    K = np.array([2.0])\ndef f(x): return C.K",
        "class C:\n    @property\n    def k(self): return 1\ndef f(x): return C().k",
        "class C:\n    @property\n    def k(self): return 2\ndef f(x): return C().k",
    ]
    assert len({of_text(text) for text in texts}) == len(texts)


def test_what_a_function_holds_counts() -> None:
    values: list[Any] = [
        1, 2, 1.0, True, None, "1", b"1", (1,), [1], {1}, {1: 2}, {2: 1}, np.float64(1), np.arange(2), np.arange(3),
        np.arange(2.0), np.array([{}], object), torch.zeros(2), torch.ones(2), torch.ones(2, dtype=torch.bfloat16),
        torch.ones(2, 1), scaled, reads_constants, Scale(1), Scale(2), Scale, functools.partial(scaled, by=1.0),
        functools.partial(scaled, by=3.0), Scale(1).__call__, Scale(2).__call__, abs, len, functools.lru_cache(scaled),
        functools.lru_cache(reads_constants), torch.ones(1, device="meta"), np,
        pathlib.Path("a"), pathlib.Path("b"), re.compile("a"), re.compile("b"), datetime.date(2026, 1, 1),
        datetime.date(2026, 1, 2), decimal.Decimal(1), decimal.Decimal(2), operator.itemgetter(0), operator.itemgetter(1),
        collections.deque([1]), collections.deque([2]), array.array("i", [1]), array.array("i", [2]), bytearray(b"a"),
        bytearray(b"b"), range(2), range(3), slice(2), slice(3), torch.float32, torch.float16, {1: 2}.get, {1: 3}.get,
        "a".join, "b".join, Slots(1), Slots(2), Slots(1, 1), MoreSlots(1), MoreSlots(2),
    ]  # fmt: skip
    digests = [code_digest(with_(value)) for value in values]
    assert len(set(digests)) == len(values)
    assert [code_digest(with_(value)) for value in values] == digests
    assert len({code_digest(value) for value in (scaled, Scale(1), Scale(2), functools.partial(scaled, by=1.0))}) == 4


def test_values_that_hold_themselves_and_deep_ones_come_to_an_end() -> None:
    cycle: list[Any] = [1]
    cycle.append(cycle)
    deep: Any = 0
    for _ in range(100):
        deep = [deep]
    other: list[Any] = [2]
    other.append(other)
    assert len({code_digest(with_(value)) for value in (cycle, deep, other, calls_another)}) == 4

    def unset() -> Any:
        return later

    before = code_digest(unset)
    later = 1
    assert code_digest(unset) != before


@pytest.mark.slow  # a process that imports torch takes seconds
def test_another_process_finds_the_same_digests() -> None:
    code = (
        "import functools, torch; from ctrbox.embed.vectors.code_digest import code_digest as d;"
        "from tests.embed.vectors.test_code_digest import *;"
        "print(*[d(v) for v in (scaled, reads_constants, calls_another, Scale(2), with_({'a', 'b', 'c'}),"
        " with_(pathlib.Path('a')), with_(re.compile('a')), torch.nn.functional.relu)])"
    )
    runs = [
        subprocess.run(
            [sys.executable, *options, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for seed, options in (("1", ["-B"]), ("2", []))
    ]
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 8


def test_values_of_sparse_quantized_and_complex_tensors_count() -> None:
    plain = [torch.tensor([[0.0, 1.0], [0.0, x]]) for x in (2.0, 3.0)]
    made = {
        "sparse": [t.to_sparse() for t in plain],
        "rows": [t.to_sparse_csr() for t in plain],
        "quantized": [torch.quantize_per_tensor(t, 0.1, 0, torch.qint8) for t in plain],
        "conjugate": [torch.complex(t, t).conj() for t in plain],
        "empty": [torch.zeros(0), torch.zeros(0, dtype=torch.float64)],
    }

    def reading(held: torch.Tensor) -> Any:
        return lambda: held

    for first, second in made.values():
        assert code_digest(reading(first)) == code_digest(reading(first.clone()))
        assert code_digest(reading(first)) != code_digest(reading(second))
    assert code_digest(reading(torch.zeros(2, device="meta"))) != code_digest(reading(torch.zeros(3, device="meta")))
