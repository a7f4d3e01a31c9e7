"""The command line: thin modules that parse, call and print; answers to stdout, the rest to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from loadsheet import __version__
from loadsheet.errors import LoadsheetError, nearest, one_line

#: command -> module under `loadsheet.cli`; imported only when the command runs or its help is asked for
COMMANDS = {"gpus": "gpus", "models": "models", "params": "params", "plan": "plan"}
#: shown in the list of commands, so that the list needs no imports
SUMMARIES = {
    "gpus": "The GPUs that are known, with their peaks, memory and sources.",
    "models": "The model presets, with their parameters and sources.",
    "params": "Exact parameters of a model, by part.",
    "plan": "The whole sheet: does it fit, how long, how much.",
}


class Root(click.Group):
    """The group of all commands: loads them when needed and ends every error with one line and a hint."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, sorted."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"loadsheet.cli.{COMMANDS[cmd_name]}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, SUMMARIES[name]) for name in sorted(COMMANDS)])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """An unknown command is an error with the nearest known ones."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            close = nearest(args[0], COMMANDS)
            known = ", ".join(f"`{name}`" for name in (close or sorted(COMMANDS)))
            raise LoadsheetError(
                f"unknown command: got {args[0]!r:.60}", ("did you mean " if close else "known: ") + known
            )
        return super().resolve_command(ctx, args)

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> Any:  # type: ignore[override]
        """Run; exit codes: 0 fits or done, 1 does not fit, 2 usage or bad input, 130 interrupted."""
        extra.pop("standalone_mode", None)
        sys.exit(self._run(args, prog_name, extra))

    def _run(self, args: Sequence[str] | None, prog_name: str | None, extra: dict[str, Any]) -> int:
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")  # a terminal without these characters shows others
        try:
            result = super().main(args, prog_name or "loadsheet", standalone_mode=False, **extra)
            sys.stdout.flush()
        except LoadsheetError as error:
            _complain(str(error), error.hint)
            return error.exit_code
        except click.UsageError as error:
            where = error.ctx.command_path if error.ctx is not None else "loadsheet"
            _complain(one_line(error.format_message()), f"`{where} --help` lists the options")
            return 2
        except click.ClickException as error:
            _complain(one_line(error.format_message()), "")
            return 2
        except (click.Abort, KeyboardInterrupt):
            _complain("interrupted", "")
            return 130
        except BrokenPipeError:  # the reader (head, less) has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return 0
        return result if isinstance(result, int) else 0


def _complain(message: str, hint: str) -> None:
    click.echo(f"error: {message}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="loadsheet")
def main() -> None:
    """Memory, compute and money of an LLM experiment, before the GPU is rented."""
