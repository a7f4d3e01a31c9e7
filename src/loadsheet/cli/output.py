"""Where and how the commands print: width, colour, JSON, and what happens when nobody listens."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import click

from loadsheet.errors import LoadsheetError, shorten

_MAX_WIDTH = 400  # no page gets better beyond


class Unwritable(LoadsheetError):
    """The answer cannot be written: a full disk, say."""


def width() -> int:
    """The width to write for: the terminal's, or 100 where there is none; from 40 to 400."""
    columns = os.environ.get("COLUMNS", "")
    if re.fullmatch(r"[0-9]{1,9}", columns) and int(columns):
        found = int(columns)
    else:
        found = shutil.get_terminal_size((100, 24)).columns if _on_terminal() else 100
    return min(max(40, found), _MAX_WIDTH)


def _on_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def coloured() -> bool:
    """Whether to colour: only a terminal, and not where NO_COLOR is set."""
    return _on_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


_COLOURS = {"FITS": "green", "TIGHT": "yellow", "DOES NOT FIT": "red"}


def emphasise(text: str) -> str:
    """Colour the verdict; meaning never hangs on colour alone."""
    if not coloured():
        return text
    return re.sub(
        r"^(FITS|TIGHT|DOES NOT FIT)\b",
        lambda m: click.style(m[0], fg=_COLOURS[m[0]], bold=True),
        text,
        flags=re.M,
    )


def show(text: str) -> None:
    """An answer, to stdout; Unwritable if it cannot be written.

    A reader that has seen enough (`head`) or a stdout that is closed changes neither the answer nor the
    exit status.
    """
    if sys.stdout is None:
        return
    try:
        click.echo(emphasise(text))
        sys.stdout.flush()
    except BrokenPipeError:
        _to_nowhere(sys.stdout)
    except OSError as error:
        raise unwritable(error) from error


def unwritable(error: OSError) -> Unwritable:
    """The error for an answer that could not be written; what is still buffered is dropped."""
    _to_nowhere(sys.stdout)
    reason = (error.strerror or type(error).__name__).lower()
    return Unwritable(f"standard output: got {reason}, expected room for the answer", "write it elsewhere")


def _to_nowhere(stream: TextIO) -> None:
    """Let what a stream has buffered, and all that follows, go to the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def show_json(value: Any) -> None:
    """An answer as JSON; base units, no NaN."""
    import json

    show(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False))


def warn(message: str) -> None:
    """A remark that is no answer, to stderr."""
    complain("warning", message)


def complain(kind: str, message: str, hint: str = "") -> None:
    """`kind: message` and a hint, to stderr; if that is closed, nobody wants to know."""
    if sys.stderr is None:
        return
    try:
        for head, text in ((kind, message), ("hint", hint)):
            if text:
                click.echo(f"{head}: {text}", err=True)
        sys.stderr.flush()
    except OSError:
        _to_nowhere(sys.stderr)


def warn_shadowed(model: str) -> None:
    """Say so if a file or folder here is read where a preset of that name may have been meant."""
    from loadsheet.arch.read import shadowed

    if shadowed(model):
        warn(f"model: {shorten(model)} is a preset too; what lies here under that name is read instead")


def table(rows: Sequence[Mapping[str, str]], spare: Sequence[str], room: int) -> list[str]:
    """Rows of named cells as aligned lines, the first two columns to the left.

    A column without any answer is left out; so are those of `spare`, in that order, until the lines
    fit in `room`, which a last line then says.
    """
    from loadsheet.text import columns, wrap

    names = [name for name in rows[0] if any(row[name] for row in rows)] if rows else []
    dropped: list[str] = []

    def lines_of(gap: int = 2) -> list[str]:
        return columns([names, *([row[name] or "–" for name in names] for row in rows)], left=2, gap=gap)

    while True:
        lines = lines_of()
        spared = next((name for name in spare if name in names), None)
        if spared is None or max(map(len, lines)) <= room:
            break
        names.remove(spared)
        dropped.append(spared)
    if max(map(len, lines)) > room:
        lines = lines_of(gap=1)
    return [
        *lines,
        *(wrap("left out for want of room: " + ", ".join(dropped), room, "  ") if dropped else []),
    ]
