"""The command line: thin modules that parse, call and print; answers to stdout, the rest to stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from loadsheet import __version__
from loadsheet.cli.output import complain, unwritable, warn
from loadsheet.errors import LoadsheetError, UnknownKey, one_line

#: command -> module under `loadsheet.cli`; imported only when the command runs or its help is asked for
COMMANDS = {"close": "close", "export": "export", "gpus": "gpus", "lab": "lab",
            "leftovers": "leftovers", "measure": "measure", "models": "models", "notices": "notices",
            "odds": "odds", "params": "params", "plan": "plan", "preflight": "preflight",
            "rehearse": "rehearse", "runs": "runs", "score": "score", "sign": "sign",
            "verify": "verify", "watch": "watch"}  # fmt: skip
#: shown in the list of commands, so that the list needs no imports
SUMMARIES = {
    "close": "Predicted beside measured, and which assumption was off.",
    "export": "A sheet becomes a job file that resumes by itself: SkyPilot, dstack, Slurm, Kubernetes.",
    "gpus": "The GPUs that are known, with their peaks, memory and sources.",
    "lab": "The lecture's experiments: what it says, what we say, what PyTorch measures.",
    "leftovers": "What still costs in the account, over all regions; read-only.",
    "measure": "The real thing: this machine, your own module, a training script.",
    "models": "The model presets, with their parameters and sources.",
    "notices": "Listen for the end of this machine, and tell the run.",
    "odds": "Time and cost on machines that can be taken away, and how likely they are.",
    "params": "Exact parameters of a model, by part.",
    "plan": "The whole sheet: does it fit, how long, how much.",
    "preflight": "The checklist before, during and after renting: what would cost time, money or data.",
    "rehearse": "The pipeline on a small scale: trained, told to go, killed, gone on, compared.",
    "runs": "What finished and interrupted runs left: listed, compared, plotted, exported, tidied up.",
    "score": "Accuracy on published measurements.",
    "sign": "Freeze a sheet before the run.",
    "verify": "Formulas against real PyTorch on this machine.",
    "watch": "Beside a training: does it get on, does it make sense, is there money left.",
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
            raise UnknownKey(args[0], COMMANDS, "command")
        return super().resolve_command(ctx, args)

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> Any:  # type: ignore[override]
        """Run; exit codes: 0 fits or done, 1 does not fit, 2 usage or bad input, 130 interrupted."""
        extra.pop("standalone_mode", None)
        sys.exit(self._run(args, extra))

    def _run(self, args: Sequence[str] | None, extra: dict[str, Any]) -> int:
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")  # a terminal without these characters shows others
        words = list(sys.argv[1:] if args is None else args)
        if not words:
            complain(
                "error", "no command: got nothing, expected one of " + ", ".join(sorted(COMMANDS)), _HELP
            )
            return 2
        try:
            result = super().main(words, "loadsheet", standalone_mode=False, **extra)
        except LoadsheetError as error:
            for text in error.warnings:
                warn(text)
            complain("error", str(error), error.hint or _help_of(words))
            return error.exit_code
        except click.NoSuchOption as error:
            known = [o for p in error.ctx.command.params for o in p.opts if not getattr(p, "hidden", False)]  # type: ignore[union-attr]
            unknown = UnknownKey(error.option_name, known, "option")
            complain(
                "error", str(unknown), unknown.hint if "did you mean" in unknown.hint else _help_of(words)
            )
            return 2
        except click.ClickException as error:
            message = one_line(error.format_message()).rstrip(".")
            complain("error", message[:1].lower() + message[1:], _help_of(words))
            return 2
        except (click.Abort, KeyboardInterrupt):
            complain("error", "interrupted")
            return 130
        except SystemExit as stop:  # click's way out where the reader of a help page is gone
            return 0 if stop.code == 1 else int(stop.code or 0)
        except OSError as error:  # a help page that cannot be written
            complain("error", str(unwritable(error)), "")
            return 2
        return result if isinstance(result, int) else 0


_HELP = "`loadsheet --help` says what there is"


def _help_of(words: Sequence[str]) -> str:
    """Where to read on, for errors that have no better hint."""
    found: click.Command = main
    path = []
    for word in words:
        if word.startswith("-"):
            continue
        context = click.Context(found)
        if not isinstance(found, click.Group) or word not in found.list_commands(context):
            break
        path.append(word)
        found = found.get_command(context, word) or found  # imported already: it is what failed
    return f"`loadsheet {' '.join(path)} --help` says what is accepted" if path else _HELP


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="loadsheet")
def main() -> None:
    """Memory, compute and money of an LLM experiment, before the GPU is rented."""
