"""`loadsheet runs`: what finished and interrupted runs left; each subcommand is a module of its own here."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import click

from loadsheet.errors import LoadsheetError, UnknownKey

#: subcommand -> module under `loadsheet.cli.runs`, which holds it as `command`; and its line in the list
SUBCOMMANDS = {
    "compare": "Runs beside each other, or groups of seeds: configs, curves, is it really better.",
    "export": "Markdown, CSV, JSON, TensorBoard's event files, `model.safetensors`.",
    "gc": "What a retention rule would free; asks, then deletes.",
    "list": "A table of all runs: what differs, how far, how good, what it cost.",
    "plot": "Curves, on the terminal or as PNG, SVG or PDF.",
    "show": "One run: attempts, events, metrics, checkpoints, what was measured.",
    "verify": "Is what a run left whole: checksums, log, config, attempts.",
}


_NEEDED = {"msgspec", "torch", "xxhash"}


class Runs(click.Group):
    """The group of the subcommands: loads them when needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, sorted."""
        return sorted(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the subcommand's module."""
        if cmd_name not in SUBCOMMANDS:
            return None
        command: click.Command = import_module(f"loadsheet.cli.runs.{cmd_name}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand; what it cannot do without is asked for in one line."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if error.name not in _NEEDED:
                raise
            raise LoadsheetError(
                f"runs: got no {error.name}, expected it to be installed", "pip install 'loadsheet[run]'"
            ) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of subcommands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(SUBCOMMANDS.items()))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """An unknown subcommand is an error with the nearest known ones."""
        if args and args[0] not in SUBCOMMANDS and not args[0].startswith("-"):
            raise UnknownKey(args[0], SUBCOMMANDS, "command")
        return super().resolve_command(ctx, args)


def root_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """The option `--runs DIR`, the same for every subcommand; the parameter is `root`."""
    option = click.option("--runs", "root", default="runs", metavar="DIR", help="The folder of runs. [runs]")
    return option(function)


def measured(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say by which number runs are compared: `metric`, `mode`, `value`."""
    for option in (
        click.option("--value", help="Of each run its best value, or its last: best, last. [best]"),
        click.option("--mode", help="Which is best: min, max. [by the name]"),
        click.option("--metric", help="The logged number that says how good a run is. [by the names]"),
    ):
        function = option(function)
    return function


def seed_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of groups of seeds: `seed_key`, `unfinished`, `confidence`."""
    for option in (
        click.option("--confidence", default="0.95", metavar="SHARE", help="Of the intervals. [0.95]"),
        click.option("--unfinished", is_flag=True, help="Let runs count that are not done."),
        click.option(
            "--seed-key",
            multiple=True,
            metavar="KEY",
            help="A further key that is a seed; may be repeated. [seed]",
        ),
    ):
        function = option(function)
    return function


@click.group(name="runs", cls=Runs, no_args_is_help=False)
def command() -> None:
    """What finished and interrupted runs left, below one folder: listed, compared, tidied up.

    RUN is a fingerprint, the beginning of one, or a path.
    """
