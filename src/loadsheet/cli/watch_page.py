"""What `loadsheet watch` prints: what begins and what is over, how it goes, one look as a page."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING

from loadsheet.cli.output import Unwritable, show, warn
from loadsheet.units import format_duration, format_money

if TYPE_CHECKING:
    from loadsheet.cloud.watch.look import Look


class Shown:
    """What a person sees: a line when something begins or is over, and on a terminal how it goes."""

    def __init__(self, currency: str, as_json: bool) -> None:
        self.currency = currency
        self.as_json = as_json
        self.before: dict[str, str] = {}
        self.line = sys.stderr.isatty() and not as_json and os.environ.get("TERM") != "dumb"

    def look(self, look: Look) -> None:
        """What is new in this look."""
        try:
            self._show(look)
        except Unwritable as error:  # a training is not stopped because nobody can be told of it
            warn(f"{error}; the watch goes on")

    def _show(self, look: Look) -> None:
        if self.as_json:
            show(json.dumps(look.to_json()))
            return
        self.clear()
        clock = time.strftime("%H:%M:%S", time.localtime(look.time))
        found = {f.id: f"{f.level}: {f.text}" for f in look.findings}
        for name, text in found.items():
            if name not in self.before:
                show(f"{clock} {text}")
        for name in self.before.keys() - found.keys():
            show(f"{clock} over: {name}")
        self.before = found
        if self.line:
            with contextlib.suppress(OSError, ValueError):
                columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
                sys.stderr.write(_status(look, self.currency)[: columns - 1])
                sys.stderr.flush()

    def clear(self) -> None:
        """Take the line that says how it goes away."""
        if self.line:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()


def _status(look: Look, currency: str) -> str:
    """How it goes, in one line."""
    of = "" if look.total is None else f"/{look.total:,}"
    parts = [f"step {look.step + 1:,}{of}", f"attempt {look.attempt}"]
    if look.spent is not None:
        parts.append(f"{format_money(look.spent, currency)} so far")
    if look.room is not None:
        parts.append(f"budget lasts {format_duration(max(look.room, 0.0))}")
    parts.append(
        "done"
        if look.done
        else f"{len(look.findings)} finding{'s' * (len(look.findings) != 1)}"
        if look.findings
        else "all is well"
    )
    return " · ".join(parts)


def page(look: Look, currency: str) -> str:
    """One look as a page."""
    lines = [f"{look.run}: {_status(look, currency)}"]
    lines += [f"{f.level}: {f.text}" for f in look.findings]
    lines += [f"unknown: {text}" for text in look.unknown]
    return "\n".join(lines)
