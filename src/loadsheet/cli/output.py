"""Where and how the commands print: width, colour, JSON."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from typing import Any

import click


def width() -> int:
    """The width to write for: the terminal's, or 100 where there is none; never under 40."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return max(40, int(columns))
    return max(40, shutil.get_terminal_size((100, 24)).columns) if sys.stdout.isatty() else 100


def coloured() -> bool:
    """Whether to colour: only a terminal, and not where NO_COLOR is set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


_COLOURS = {"FITS": "green", "TIGHT": "yellow", "DOES NOT FIT": "red", "fits": "green", "tight": "yellow"}


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
    """An answer."""
    click.echo(emphasise(text))


def show_json(value: Any) -> None:
    """An answer as JSON; base units, no NaN."""
    click.echo(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False))


def warn(message: str) -> None:
    """A remark that is no answer, to stderr."""
    click.echo(f"warning: {message}", err=True)
