"""Help texts and public docstrings begin with a sentence that stands on its own, and the lists of commands are not cut off."""

from __future__ import annotations

import inspect
import re
import runpy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = runpy.run_path(str(ROOT / "tools" / "docs_site.py"))
# A text that begins with one of these words lacks its noun: "Of HTTP." does not say that it is a port.
DANGLING = re.compile(r"(Of|That|Unless|Within|Whose|Where|Which|Without)\b")


def commands(command: Any, name: str = "ctrbox") -> Iterator[tuple[str, Any]]:
    """Yield a command and all commands below it, by the words that a user types."""
    yield name, command
    for inner, other in getattr(command, "commands", {}).items():
        yield from commands(other, f"{name} {inner}")


def functions_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that a class of CTRBox defines itself."""
    for name, value in vars(kind).items():
        made = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if not name.startswith("_") and inspect.isfunction(made):
            yield name, made


@cache
def help_texts() -> dict[str, str]:
    """Return the help of every command, argument and option, by what a user types."""
    texts: dict[str, str] = {}
    for name, command in commands(SITE["command_line"]()):
        texts[name] = command.help or ""
        texts |= {f"{name} {(p.opts or [p.name])[0]}": getattr(p, "help", None) or "" for p in command.params}
    return texts


@cache
def docstrings() -> dict[str, str]:
    """Return the docstring of every public name, and of the public methods of every public class."""
    texts: dict[str, str] = {}
    for space, names in SITE["public_names"]().items():
        for name, value in names.items():
            called = ".".join(("cb", *filter(None, [space]), name))
            if not hasattr(value, "__qualname__"):  # a constant, whose docstring is that of its type
                continue
            texts[called] = inspect.cleandoc(value.__doc__ or "")
            if inspect.isclass(value):
                for inner, function in functions_of(value):
                    texts[f"{called}.{inner}"] = inspect.cleandoc(function.__doc__ or "")
    return texts


def dangling(texts: dict[str, str]) -> list[str]:
    """Return the texts that begin with a word that needs a noun before it."""
    return [f"{name}: {text.splitlines()[0]}" for name, text in texts.items() if DANGLING.match(text)]


@pytest.mark.parametrize("text", ["Of HTTP.", "That score; 0: none.", "Where to write.", "Within a second."])
def test_a_text_without_its_noun_is_found(text: str) -> None:
    assert dangling({"--port": text}) == [f"--port: {text}"]


def test_a_text_that_only_begins_with_the_same_letters_is_left_alone() -> None:
    assert dangling({"--out": "Offset of the first row.", "--json": "Thatch."}) == []


def test_no_help_text_begins_without_its_noun() -> None:
    assert len(help_texts()) > 150
    assert dangling(help_texts()) == []


def test_every_command_argument_and_option_has_a_help_text_that_is_a_sentence() -> None:
    assert [name for name, text in help_texts().items() if not re.match(r"[A-Z]", text)] == []
    ends = {name: text.split("\n\n")[0].rstrip()[-1] for name, text in help_texts().items()}
    assert [name for name, end in ends.items() if end not in ".?)"] == []


def test_no_public_docstring_begins_without_its_noun() -> None:
    assert len(docstrings()) > 350
    assert dangling(docstrings()) == []


def test_the_list_of_commands_shows_every_description_in_full() -> None:
    groups = [words.split()[1:] for words, command in commands(SITE["command_line"]()) if hasattr(command, "commands")]
    lists = {" ".join(words): SITE["help_of"](words, 80).partition("Commands:")[2] for words in groups}
    assert len(lists) == 4
    assert [
        line for listed in lists.values() for line in listed.partition("Examples:")[0].splitlines() if "..." in line
    ] == []
