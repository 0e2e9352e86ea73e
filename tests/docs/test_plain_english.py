"""Help texts, docstrings, heads of files and error messages are sentences that stand on their own."""

from __future__ import annotations

import ast
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
DANGLING_ERROR = re.compile(r"(of|that|unless|within|whose|which) ", re.IGNORECASE)
# Constructions that were hard to read: "is no JSON" (is not JSON), "its checksum does not fit" (does not match).
PRIVATE = re.compile(
    r"(?<!here )\bis no (?!longer\b|more\b|such\b)[A-Za-z]|checksum[^;]* does not fit|\bbegins? anew\b|\bone a row\b"
)
SAYS = {
    "warn",
    "tell",
    "hint",
    "note",
    "malformed",
    "refuse",
    "wrong",
    "overloaded",
}  # calls whose text reaches a person


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


@cache
def sources() -> dict[str, ast.Module]:
    """Return the parsed modules of the package, by path below it."""
    folder = ROOT / "src" / "ctrbox"
    return {str(p.relative_to(folder)): ast.parse(p.read_text("utf-8")) for p in sorted(folder.rglob("*.py"))}


@cache
def all_docstrings() -> dict[str, str]:
    """Return the docstring of every module, class and function of the package, by file and line."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = ((file, n) for file, tree in sources().items() for n in ast.walk(tree) if isinstance(n, kinds))
    return {f"{file}:{getattr(n, 'lineno', 1)}": ast.get_docstring(n) or "" for file, n in nodes}


def text_of(node: ast.expr) -> str:
    """Return the text of a string or f-string, with {} for what is filled in; "" for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return ""


def called(node: ast.Call) -> str:
    """Return the last name of what is called: "warn" of ``warnings.warn(…)``."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


@cache
def messages() -> dict[str, str]:
    """Return the texts of exceptions, warnings and remarks, by file and line."""
    texts: dict[str, str] = {}
    for file, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (
                called(node) in SAYS or called(node).endswith(("Error", "Mistake", "Refused"))
            ):
                for k, text in enumerate(filter(None, map(text_of, node.args))):
                    texts[f"{file}:{node.lineno}.{k}"] = text
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
    assert len(lists) == 5
    assert [
        line for listed in lists.values() for line in listed.partition("Examples:")[0].splitlines() if "..." in line
    ] == []


def test_the_help_names_what_a_user_types_and_not_the_type_that_the_library_reads() -> None:
    shown = {words: SITE["help_of"](words.split()[1:]) for words, _ in commands(SITE["command_line"]())}
    usage = {words: text.splitlines()[0].removeprefix("Usage: ") for words, text in shown.items()}
    assert usage["ctrbox evaluate"] == "ctrbox evaluate [OPTIONS] RUN [DATA]"
    assert usage["ctrbox publish verify"] == "ctrbox publish verify [OPTIONS] PATH..."
    assert [line for line in usage.values() if re.search(r"[{<…]|\[\[", line)] == []
    typed = re.compile(r"^  \S.*<(int|float|str|path|list)\b", re.MULTILINE)
    assert [words for words, text in shown.items() if typed.search(text)] == []


def test_the_help_writes_ranges_in_words() -> None:
    shown = {words: SITE["help_of"](words.split()[1:], 200) for words, _ in commands(SITE["command_line"]())}
    assert "[default: 65536; at least 1]" in shown["ctrbox extract"]
    assert "[0 to 64]" in shown["ctrbox train"]
    assert [words for words, text in shown.items() if re.search(r"\bx ?[<>]=|<=x", text)] == []


def test_every_module_says_its_one_story_in_a_first_sentence() -> None:
    heads = {file: ast.get_docstring(tree) or "" for file, tree in sources().items()}
    assert len(heads) > 300
    assert [file for file, head in heads.items() if not re.match(r"[A-Z`]", head)] == []
    assert [file for file, head in heads.items() if not re.search(r"[.?:]\)?(\s|$)", head)] == []


def test_no_docstring_of_the_package_begins_without_its_noun() -> None:
    assert len(all_docstrings()) > 3_000
    assert dangling(all_docstrings()) == []


def test_no_message_begins_without_its_noun() -> None:
    assert len(messages()) > 1_500
    assert [f"{place}: {text}" for place, text in messages().items() if DANGLING_ERROR.match(text)] == []


@pytest.mark.parametrize(
    "text",
    ["{} is no JSON", "{} is damaged: its checksum does not fit", "overwrite=True begins anew", "expected one a row"],
)
def test_words_that_only_this_project_used_are_found(text: str) -> None:
    assert PRIVATE.search(text)


@pytest.mark.parametrize(
    "text", ["there is no file {}", "version {} is no longer kept", "{} does not fit into the budget"]
)
def test_the_usual_words_are_left_alone(text: str) -> None:
    assert not PRIVATE.search(text)


def test_no_message_uses_words_that_only_this_project_used() -> None:
    assert [f"{place}: {text}" for place, text in messages().items() if PRIVATE.search(text)] == []


def test_every_native_header_begins_with_a_comment_that_does_not_dangle() -> None:
    heads = {str(p.relative_to(ROOT)): p.read_text("utf-8") for p in sorted((ROOT / "native").rglob("*.h"))}
    assert len(heads) > 90
    assert [file for file, head in heads.items() if not re.match(r"(//|/\*) [A-Za-z]", head)] == []
    assert [
        file for file, head in heads.items() if DANGLING_ERROR.match(head[3:]) and not head[3:].startswith("Which")
    ] == []
