"""Writes the usage line and the arguments of `--help` as manual pages do: `ctrbox evaluate [OPTIONS] RUN [DATA]`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand


class PlainCommand(TyperCommand):
    """A command whose help shows each argument by its name alone, in brackets if it is optional."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = [self.options_metavar] if self.options_metavar else []
        for argument in self._arguments(ctx):
            name = argument.metavar if argument.required else f"[{argument.metavar}]"
            pieces.append(name if argument.nargs == 1 else f"{name}...")
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments = [(argument.metavar, argument.get_help_record(ctx)[1]) for argument in self._arguments(ctx)]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments)
        options = [p.get_help_record(ctx) for p in self.get_params(ctx) if p.param_type_name == "option"]
        with formatter.section("Options"):
            formatter.write_dl([option for option in options if option])  # None: a hidden option

    def _arguments(self, ctx: Any) -> list[Any]:
        return [p for p in self.get_params(ctx) if p.param_type_name == "argument"]


class Commands(typer.Typer):
    """A group of commands that are `PlainCommand`s."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:  # type: ignore[override]
        return super().command(name, **{"cls": PlainCommand, **settings})
