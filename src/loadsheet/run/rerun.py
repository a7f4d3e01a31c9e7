"""Steps that were run twice: every preemption is a free audit.

What lies between the last checkpoint and the end of an attempt is run again by the next one, from the same
state and the same data. If the two records of a step are not the same bits, something is missing in the
state, or the computation does not repeat itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from loadsheet.errors import shorten
from loadsheet.run.reading import Life, Limits, Reader, log_path, merge

_UNCOMPARED: Final = frozenset({"step", "attempt", "time", "timing"})
_sorted: Final = msgspec.json.Encoder(order="sorted").encode


@dataclass(frozen=True)
class Difference:
    """A step that gave something else when it was run again."""

    step: int
    earlier_attempt: int
    attempt: int
    names: tuple[str, ...]
    earlier: dict[str, Any] = field(repr=False)
    now: dict[str, Any] = field(repr=False)
    resumed: int | None = None

    def cause(self) -> str:
        """What is most likely behind it, in a sentence."""
        if any(re.fullmatch(r"(.*[/_.])?(lr|learning_rate)([/_.].*)?", name) for name in self.names):
            return "the learning rate differs: a scheduler that was not kept, or was built with other numbers"
        if any("per_second" in name or "seconds" in name for name in self.names):
            return "measured speeds never repeat: log them under timing={...}"
        if self.step == self.resumed:
            return (
                "it is the first step after resuming: weights, data or random numbers are not kept in full, "
                "or the machine or the code changed (see provenance)"
            )
        return (
            "the steps before it agree: something with a memory is not kept (an optimizer, an average), or "
            "the computation is not deterministic (`ls.deterministic` says what is needed)"
        )

    def text(self) -> str:
        """One line for a person."""
        shown = ", ".join(
            f"{name} {shorten(self.earlier.get(name), 30)} → {shorten(self.now.get(name), 30)}"
            for name in self.names[:3]
        )
        return (
            f"not the same bits: step {self.step} of attempt {self.attempt} differs from attempt "
            f"{self.earlier_attempt} ({shown}); likely: {self.cause()}"
        )


def compare(earlier: Mapping[str, Any], now: Mapping[str, Any], *, whole: bool) -> tuple[str, ...]:
    """The names under which two records of one step hold different bits.

    With `whole` false only names that both have are compared: one attempt may have ended in that step.
    """
    if whole:
        names = sorted((earlier.keys() | now.keys()) - _UNCOMPARED)
    else:
        names = sorted((earlier.keys() & now.keys()) - _UNCOMPARED)
    return tuple(
        name
        for name in names
        if (name in earlier) != (name in now) or _sorted(earlier[name]) != _sorted(now[name])
    )


def explain_rerun(path: str | os.PathLike[str]) -> Difference | None:
    """As `reading.compare_rerun`, with what differed and the likely cause; the one with the lowest step."""
    with Reader(log_path(path)) as reader:
        return first_difference(reader)


def first_difference(reader: Reader) -> Difference | None:
    """The lowest step that was logged twice with different values, in what a reader reads; None if none was."""
    limits = Limits(reader.events())
    found: Difference | None = None
    # by step, what will be run again: the record, and whether its life went on after it
    before: dict[int, tuple[dict[str, Any], bool]] = {}

    def ended(life: Life, record: dict[str, Any], went_on: bool) -> None:
        nonlocal found
        step = record["step"]
        if (entry := before.pop(step, None)) is not None:
            earlier, whole = entry
            names = compare(earlier, record, whole=whole and went_on)
            if names and (found is None or step < found.step):
                found = Difference(
                    step, earlier["attempt"], life[0], names, earlier, record, limits.start(life)
                )
        if step >= limits.of(life):
            before[step] = record, went_on

    last: tuple[Life, dict[str, Any]] | None = None
    for life, group in reader.groups(restore=False):
        for record in group:
            if last is not None:
                if last[0] == life and last[1]["step"] == record["step"]:
                    merge(last[1], record)
                    continue
                ended(*last, went_on=last[0] == life)
            last = life, record
    if last is not None:
        ended(*last, went_on=False)
    return found
