"""Defines and parses options that several commands share, and words errors for the command line."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from ctrbox.cli.terminal import Mistake
from ctrbox.errors import CtrboxError


def _allowing(paths: str) -> str:
    return " ".join(f"--allow-views {path}" for path in paths.split(", "))


# What errors call an argument in Python, and the option that sets it.
WORDS: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"load\(…, views=\{'([^']*)': …\}\)"), r"--view \1=PATH"),
    (re.compile(r"load\(…, allow_views=\[('[^']*'(?:, '[^']*')*)\]\)"), lambda met: _allowing(met[1])),
    (re.compile(r"run\.evaluate\(data\)"), "ctrbox evaluate RUN DATA"),
    (re.compile(r"cb\.Run\.load\(…, servers=\{'([^']*)': cb\.tables\.ModelServer\(…\)\}\)"), r"--server \1=PATH"),
    (re.compile(r"cb\.Plan\.load\(…, allow_operators=True\)"), "--allow-operators"),
    (re.compile(r"\bservers=(?=[ ,;]|$)"), "--server"),
    (re.compile(r"overwrite=True"), "--overwrite"),
    (re.compile(r"resume=True"), "--resume"),
    (re.compile(r"\btables='(empty|keep)'"), r"--tables \1"),
    (re.compile(r"^lr= is"), "--lr is"),
    (re.compile(r"\bout=(?=[ ,;]|$)"), "--out"),
    (re.compile(r"\bout="), "--out "),
    (re.compile(r"\blook_ahead=(?=\d)"), "--look-ahead "),
    (re.compile(r"\blook_ahead\b=?"), "--look-ahead"),
    (re.compile(r"\bcalibrate='(\w+)'"), r"--calibrate \1"),
    (re.compile(r"\bcalibrate must"), "--calibrate must"),
    (re.compile(r"\bcalibrate_share= to"), "'calibrate_share' in the job's `settings` to"),
    (re.compile(r"another calibrate_share="), "another 'calibrate_share' in the job's `settings`"),
    (re.compile(r"compared: label='([^']*)'"), r"compared: --label \1"),
    (re.compile(r"^label=(?='[^']*' (?:chooses|is not a label))"), "--label "),
    (re.compile(r"remove label=$"), "remove --label"),
    (re.compile(r"\b(patience|cluster)=(?=[ ,;]|$)"), r"--\1"),
)

AsJson = Annotated[
    bool, typer.Option("--json", help="Print the result as one JSON object to stdout. Default: print text.")
]
Epochs = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Number of epochs. In an epoch, the training reads all training rows once. Default: the job's setting, "
        "otherwise 1.",
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="ROWS",
        help="Number of rows per training step, 1 to 16777216. Default: the job's setting, otherwise a power of two from 64 "
        "to 16384 that gives about 250 steps per epoch.",
    ),
]
AllowOperators = Annotated[
    bool,
    typer.Option(
        "--allow-operators",
        help="Import the Python modules of the user-defined operators that the plan names. This runs the code of these "
        "modules. Default: refuse a plan with such operators.",
    ),
]
Servers = Annotated[
    list[str] | None,
    typer.Option(
        "--server",
        metavar="FIELD=PATH",
        help="Vector file, such as images.ctrvec, for the field FIELD of the model. The Model Server of the field, which "
        "is the sub-model that turns long vectors of images or texts into short ones, reads it as its input; may be "
        "repeated. Required once for each Model Server of a run folder.",
    ),
]
SignWith = Annotated[
    Path | None,
    typer.Option(
        "--sign-with",
        metavar="KEY",
        help="Private key file, made by `ctrbox publish keygen`, with which the command signs each version that it "
        "publishes. Required if the versions in the folder are signed. Default: no signature.",
    ),
]
RowsAsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print the number of rows and the speed as one JSON object to stdout; not allowed together with `-o -`.",
    ),
]


@contextlib.contextmanager
def in_words_of_options(**also: str) -> Iterator[None]:
    """Name options in errors in place of the arguments of Python that they set.

    ``also``: more arguments, each with the option that sets it in the command that runs, such as ``ram="--table-memory"``.
    """
    words = [*WORDS]
    for argument, option in also.items():
        words.append((re.compile(rf"\b{argument}=(?=[ ,;]|$)"), option))
        words.append((re.compile(rf"\b{argument}=(?=\d)"), f"{option} "))
    try:
        yield
    except CtrboxError as error:
        told = str(error)
        for pattern, text in words:
            told = pattern.sub(text, told)
        if told == str(error):
            raise
        raise Mistake(told) from error


def pairs_of(option: str, given: Sequence[str] | None, example: str) -> dict[str, str]:
    """Parse NAME=PATH options: ["users=tomorrow/users"] becomes {"users": "tomorrow/users"}."""
    found: dict[str, str] = {}
    for text in given or []:
        name, equals, path = text.partition("=")
        if not name or not equals or not path:
            raise Mistake(f"{option} {text}: expected NAME=PATH, such as {option} {example}")
        if name in found:
            raise Mistake(f"{option} {name}=… is given twice: {found[name]} and {path}; remove one of the two")
        # A shell leaves the ~ behind a = as it is.
        found[name] = str(Path(path).expanduser()) if path.startswith("~") else path
    return found


def vector_files(given: Sequence[str] | None) -> dict[str, str]:
    """Return the vector files that --server names, by field."""
    return pairs_of("--server", given, "ad_image=images.ctrvec")
