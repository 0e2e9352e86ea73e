"""Defines ``ctrbox search``, which trains many Deep FFMs on one parsed stream and compares them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctrbox.cli.options import AsJson
from ctrbox.cli.terminal import Mistake, hint, meter, say, say_json, tell

if TYPE_CHECKING:
    from ctrbox.ffm.examples_from_text_or_cache import ExampleCache

SEARCH_EXAMPLES = """\b
Examples:
  ctrbox search train.vw --test test.vw -o search.html
  ctrbox search train.ctrx --models models.yaml --window 30000 --json

\b
models.yaml lists the options of each model under the model's name, or a grid of options:
  small: {k: 4, bits: 18}
  deep: {k: 4, hidden: [24, 24], bits: 22}
\b
  grid: {k: [4, 8], hidden: [[], [16], [24, 24]], ffm: [0.05, 0.12]}
"""
USUAL: dict[str, Any] = {"k": [4, 8], "hidden": [(), (16,), (24, 24)], "bits": [20]}


def search(
    train: Annotated[
        Path,
        typer.Argument(
            metavar="TRAIN",
            help="File of training examples: text, or a cache of parsed examples (*.ctrx).",
        ),
    ],
    test: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of test examples in the same format. Default: compare the models by their predictions of the "
            "training examples; each model predicts an example before it learns from it.",
        ),
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option(metavar="FILE.YAML", help="YAML file that lists the models to try. Default: six built-in models."),
    ] = None,
    format: Annotated[
        str, typer.Option(metavar="vw|libffm", help="Text format of the examples: vw (Vowpal Wabbit) or libffm.")
    ] = "vw",
    window: Annotated[
        int,
        typer.Option(metavar="N", min=2, help="Number of examples per window; the AUC is computed for each window."),
    ] = 30_000,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="PAGE.html",
            help="HTML file for the table of results and the curves. Default: no file.",
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="MODEL.ffm", help="File for the best model. Default: the models are not saved."),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Number of models to train at the same time. Default: the number of cores."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train many Deep FFMs at once and compare them.

    All models learn from the same examples. The command reads and parses the examples only once.
    """
    from ctrbox.ffm.model_search import search as run

    asked = read_models(models)
    inputs = [path.resolve() for path in (train, test, models) if path is not None]
    for written in (output, save):
        if written is not None and written.resolve() in inputs:
            raise Mistake(f"{written} is an input of this search and would be overwritten; choose another file name")
    with TemporaryDirectory(prefix="ctrbox-search-") as folder, meter("learning") as tick:
        learned = parsed(train, Path(folder) / "train.ctrx", format, None)
        tested = None if test is None else parsed(test, Path(folder) / "test.ctrx", format, learned.fields)
        found = run(learned, asked, test=tested, window=window, threads=threads, tick=tick)
    if output is not None:
        found.write(output)
        tell(f"wrote {output}")
    if save is not None:
        found.best.model.save(save)
        tell(f"wrote {found.best.name} to {save}")
    if as_json:
        say_json(**found.json())
    else:
        say(str(found))
    if save is None:
        hint(f"ctrbox search {shlex.quote(str(train))} … --save best.ffm")
    else:
        hint(f"ctrbox publish push published {shlex.quote(str(save))}")


def parsed(path: Path, to: Path, format: str, fields: list[str] | None) -> ExampleCache:
    from ctrbox.ffm.examples_from_text_or_cache import ExampleCache

    if path.suffix == ".ctrx":
        return ExampleCache(path)
    return ExampleCache.parse(path, to, format=format, fields=fields)  # type: ignore[arg-type]


def read_models(path: Path | None) -> dict[str, dict[str, Any]]:
    from ctrbox.ffm.model_search import grid

    if path is None:
        return grid(**USUAL)
    import yaml

    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise Mistake(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    except yaml.YAMLError as error:
        raise Mistake(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(given, Mapping) or not given:
        raise Mistake(
            f"{path} must map the name of each model to its options, or have a `grid:` of options with lists of values"
        )
    made: dict[str, dict[str, Any]] = {}
    for name, options in given.items():
        if not isinstance(options, Mapping) or not all(isinstance(option, str) for option in options):
            raise Mistake(f"{path}: {name!r} must hold options of DeepFFM, got {options!r}")
        more = grid(**options) if name == "grid" else {str(name): dict(options)}
        if twice := [name for name in more if name in made]:
            raise Mistake(f"{path} has two models with the name {twice[0]!r}; rename one that is not of the grid")
        made |= more
    return made
