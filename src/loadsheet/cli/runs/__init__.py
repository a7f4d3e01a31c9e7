"""`loadsheet runs`: what finished and interrupted runs left; each subcommand is a module of its own here."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import click

from loadsheet.errors import UnknownKey

#: subcommand -> module under `loadsheet.cli.runs`, which holds it as `command`; and its line in the list
SUBCOMMANDS = {
    "compare": "Runs beside each other, or groups of seeds: configs, curves, is it really better.",
    "list": "A table of all runs: what differs, how far, how good, what it cost.",
    "show": "One run: attempts, events, metrics, checkpoints, what was measured.",
}


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


@click.group(name="runs", cls=Runs)
def command() -> None:
    """What finished and interrupted runs left, below one folder: listed, compared, tidied up.

    RUN is a fingerprint, the beginning of one, or a path.
    """
