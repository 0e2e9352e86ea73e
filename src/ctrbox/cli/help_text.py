"""Defines what all commands share: their help, which looks like a manual page, and the check of the paths that they are given."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from ctrbox.files.urls import refuse_url


def in_words(text: str) -> str:
    """Write the ranges at the end of a help text in words: [x>=1] as [at least 1], [0<=x<=64] as [0 to 64]."""
    text = re.sub(r"(?<=[\[ ])([\d.]+)<=x<=([\d.]+)(?=[\];])", r"\1 to \2", text)
    return re.sub(r"(?<=[\[ ])x>=([\d.]+)(?=[\];])", r"at least \1", text)


class PlainCommand(TyperCommand):
    """A command whose help shows each argument by its name alone, in brackets if it is optional, and ranges in words."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = [self.options_metavar] if self.options_metavar else []
        for argument in self._arguments(ctx):
            name = argument.metavar if argument.required else f"[{argument.metavar}]"
            pieces.append(name if argument.nargs == 1 else f"{name}...")
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments = [
            (argument.metavar, in_words(argument.get_help_record(ctx)[1])) for argument in self._arguments(ctx)
        ]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments)
        options = [p.get_help_record(ctx) for p in self.get_params(ctx) if p.param_type_name == "option"]
        with formatter.section("Options"):
            formatter.write_dl(
                [(names, in_words(text)) for names, text in filter(None, options)]
            )  # None: a hidden option

    def _arguments(self, ctx: Any) -> list[Any]:
        return [p for p in self.get_params(ctx) if p.param_type_name == "argument"]


class Commands(typer.Typer):
    """A group of commands that are `PlainCommand`s and refuse a URL for every parameter that is declared as a `Path`.

    Without that check pathlib would turn s3://bucket/run into a local folder called s3:.
    """

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:  # type: ignore[override]
        register = super().command(name, **{"cls": PlainCommand, **settings})

        def registered(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def with_checked_paths(**given: Any) -> Any:
                for value in given.values():
                    for path in value if isinstance(value, list) else [value]:
                        if isinstance(path, Path):
                            refuse_url(path, "this argument of the command")
                return function(**given)

            register(with_checked_paths)
            return function

        return registered
