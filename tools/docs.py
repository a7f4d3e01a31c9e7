"""What the documents quote: every number and every help text comes from the package itself.

A document holds a comment that calls one of these functions; cog runs it and puts what it prints below
(`make docs`), or finds that the document has fallen behind (`make lint`)::

    <!-- [[[cog
    import docs
    docs.shell("loadsheet params gpt2")
    ]]] -->
    <!-- [[[end]]] -->
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from doctest import DocTestParser
from pathlib import Path
from typing import Any

import click
import cog
from click.testing import CliRunner

from loadsheet.cli import main

WIDTH = 100
TORTURE = Path(__file__).parents[1] / "tests" / "torture" / "runs.jsonl"
#: no colour, one width, and nothing of the caller's terminal
ENVIRONMENT = {"COLUMNS": str(WIDTH), "NO_COLOR": "1", "TERM": "dumb", "FORCE_COLOR": None}
_BEGINS = re.compile(r"loadsheet: .* …")


def run(command: str, status: int) -> str:
    """What the command line prints; RuntimeError if it ends with another exit status."""
    program, *arguments = shlex.split(command)
    if program != "loadsheet":
        raise RuntimeError(f"{command}: expected a `loadsheet` command")
    result = CliRunner().invoke(
        main, arguments, prog_name="loadsheet", env=ENVIRONMENT, terminal_width=WIDTH, catch_exceptions=False
    )
    if result.exit_code != status:
        raise RuntimeError(f"{command}: exit status {result.exit_code}, expected {status}\n{result.output}")
    # what is said where there is no terminal: on one it is gone when the answer is there
    lines = [line for line in result.output.splitlines() if not _BEGINS.fullmatch(line)]
    return "\n".join(line.rstrip() for line in lines)


def fence(text: str, language: str) -> None:
    """A block of literal text."""
    cog.outl(f"```{language}\n{text}\n```")


def shell(*commands: str, status: int = 0, lines: int | None = None) -> None:
    """A session at the prompt; `lines` cuts each answer, and the cut is shown."""
    parts = []
    for command in commands:
        answer = run(command, status).splitlines()
        if lines is not None and len(answer) > lines:
            answer = [*answer[:lines], f"… ({len(answer) - lines} more lines)"]
        parts.append("\n".join([f"$ {command}", *answer]))
    fence("\n\n".join(parts), "console")


def output(command: str, status: int = 0) -> None:
    """The answer alone, without the prompt."""
    fence(run(command, status), "text")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A Markdown table."""
    for row in (head, ["---"] * len(head), *rows):
        cog.outl(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |")


def helps() -> None:
    """A section with the help text of every visible command, groups before what is in them."""
    for name in names(main, "loadsheet"):
        cog.outl(f"\n## `{name}`\n")
        fence(run(f"{name} --help", 0), "text")


def torture() -> None:
    """What the recorded torture runs add up to."""
    lines = (TORTURE.read_text(encoding="utf-8")).splitlines()
    total = Counter[str]()
    for line in lines:
        total.update({k: v for k, v in json.loads(line).items() if type(v) is int})
    cog.outl(
        f"Recorded so far (`tests/torture/runs.jsonl`, one line for each invocation): {total['kills']:,} kills, "
        f"{total['in_save']:,} of them inside a save, {total['cold']:,} of a fresh interpreter, in "
        f"{total['lives']:,} lives of {total['runs']:,} runs; {total['lost']:,} lost anything, "
        f"{total['mismatched']:,} ended with other bits, {total['failed']:,} did not end."
    )


def names(command: click.Command, name: str) -> Iterator[str]:
    """The words that call the command, then those of every visible command below it, sorted."""
    yield name
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=name)
        for child_name in sorted(command.list_commands(context)):
            child = command.get_command(context, child_name)
            if child is not None and not child.hidden:
                yield from names(child, f"{name} {child_name}")


def python(source: str) -> None:
    """A session with the Python interface: the statements as written, each followed by its answer.

    `source` is written like the input of a doctest, `>>>` and `...` included, without the answers.
    A statement that raises stops the generation.
    """
    shown: list[str] = []
    variables: dict[str, Any] = {}
    for example in DocTestParser().get_examples(source):
        first, *rest = example.source.rstrip("\n").split("\n")
        shown += [f">>> {first}", *(f"... {line}" for line in rest)]
        answer = io.StringIO()
        with contextlib.redirect_stdout(answer):
            exec(compile(example.source, "<document>", "single"), variables)  # as the prompt would
        shown += [line.rstrip() for line in answer.getvalue().splitlines()]
    fence("\n".join(shown), "pycon")
