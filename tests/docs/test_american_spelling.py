"""Everything that a person reads is spelled the American way: code, comments, messages, documentation and file names."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("src", "native", "docs", "benchmarks", "examples", "tools")
FILES = ("README.md", "CONTRIBUTING.md", "CMakeLists.txt", "Makefile", "pyproject.toml", "mkdocs.yml")
SUFFIXES = {".py", ".pyi", ".cpp", ".h", ".in", ".cmake", ".md", ".svg", ".sh", ".c", ".java", ".rs", ".go", ".toml"}
# Stems of verbs whose British forms end in -ise, -ised, -ises, -ising or -isation.
STEMS = """
author capital categor character custom emphas final general initial item local material maxim memor minim
modern normal optim organ parallel penal prior quant random real recogn regular serial special standard steril
summar synchron token util vector visual
""".split()  # noqa: SIM905 - one word after the other reads better than a list
WORDS = """
analyse analysed analysing artefact artefacts behaviour behaviours cancelled cancelling centre centred centres
colour coloured colours defence favour favoured favourite favours fibre flavour grey honour honours labelled
labelling learnt levelled levelling licence metre misspelt modelled modelling neighbour neighbouring neighbours
signalled signalling spelt totalled travelled travelling unlabelled whilst
""".split()  # noqa: SIM905 - one word after the other reads better than a list
BRITISH = re.compile(rf"(?:de|re|un|non)?(?:{'|'.join(STEMS)})is(?:e|ed|er|ers|es|ing|ation|ations)|{'|'.join(WORDS)}")
# Names in files that earlier versions wrote, which these modules must still read.
KEPT = {
    ("native/core/program/program_file.cpp", "standardise"),
    ("src/ctrbox/models/__init__.py", "behaviour"),
    ("src/ctrbox/plan/graph/expression_json.py", "standardise"),
}


def british(text: str) -> list[str]:
    """Return the words of a text that are spelled the British way, also those inside names such as kQuantise or to_colour."""
    names = set(re.findall(r"[A-Za-z]+", text)) - {"CancelledError"}  # an exception of Python
    words = {word.lower() for name in names for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}
    return sorted(word for word in words if BRITISH.fullmatch(word))


@cache
def texts() -> dict[str, str]:
    """Return the contents of every file that people read, by its path."""
    paths = [p for place in PLACES for p in (ROOT / place).rglob("*") if p.is_file() and p.suffix in SUFFIXES]
    found = {str(p.relative_to(ROOT)): p for p in sorted(paths) if "__pycache__" not in p.parts}
    return {name: p.read_text("utf-8") for name, p in found.items()} | {n: (ROOT / n).read_text("utf-8") for n in FILES}


@pytest.mark.parametrize(
    "text",
    [
        "undefined behaviour",
        "dequantise(codes)",
        "kNormalised",
        "two neighbours",
        "optimisation",
        "to_colour",
        "misspelt",
    ],
)
def test_a_british_word_is_found(text: str) -> None:
    assert len(british(text)) == 1


@pytest.mark.parametrize(
    "text", ["raise an error", "likewise", "the optimizer", "advertiser", "precise", "CancelledError"]
)
def test_an_american_word_and_a_word_of_python_are_left_alone(text: str) -> None:
    assert british(text) == []


def test_no_file_is_spelled_the_british_way() -> None:
    assert len(texts()) > 900
    found = {(name, word) for name, text in texts().items() for word in british(text)}
    assert sorted(found - KEPT) == []
    assert found >= KEPT


def test_no_file_has_a_british_name() -> None:
    assert [name for name in texts() if british(name)] == []
