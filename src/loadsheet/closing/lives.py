"""The lives of a run as its log tells them: where each began, how far it came, and how it ended."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from loadsheet.errors import BadFile
from loadsheet.run.reading import Reader

#: how a life ended: by a signal, a notice of the machine, an error or `break`, without a word, at its end
Ending = Literal["done", "signal", "notice", "left", "killed"]
_MOST_BYTES = 4 << 30
_MOST_LIVES = 100_000


@dataclass(slots=True)
class Life:
    """From one `resume` to the next; steps counted as completed ones, times in Unix seconds."""

    attempt: int
    begun: int
    first: float | None = None  # time of its first line, and of its last
    last: float | None = None
    reached: int = 0  # steps completed as far as its records tell
    planned: int | None = None
    saves: list[tuple[int, int | None, float | None, float | None]] = field(default_factory=list)
    ending: Ending = "killed"  # until it says otherwise
    reason: str = ""
    elsewhere: bool = False  # its checkpoints are those of another trainer

    @property
    def executed(self) -> int:
        """Steps that it carried out."""
        return max(self.reached - self.begun, 0)


class _Quiet(Reader):
    """A reader whose findings are told, and not warned about."""

    def _report(self) -> None:
        pass


def read_lives(path: Path) -> tuple[list[Life], str]:
    """The lives of a log, in order, and what was left out of it. Raises BadFile if it cannot be read."""
    lives: list[Life] = []
    with _Quiet(path) as reader:
        if reader.end > _MOST_BYTES:
            raise BadFile(f"log: got {reader.end:,} bytes, expected at most {_MOST_BYTES:,}")
        for block in reader.blocks():
            for segment in reader.segments(block):
                if isinstance(segment, dict):
                    _event(lives, segment)
                elif lives:
                    for record in reader.decode(segment, restore=False):
                        _record(lives[-1], record)
    for life in lives:
        _finish(life)
    for life, after in pairwise(lives):
        if life.planned is not None and after.begun >= life.planned:
            life.ending = "done"  # its last state was there
    return lives, f"log.jsonl: {reader.damaged:,} damaged lines were left out" if reader.damaged else ""


def _time(found: dict[str, Any]) -> float | None:
    value = found.get("time")
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _seen(life: Life, found: dict[str, Any]) -> None:
    """The first and the last time that anything was written in a life."""
    when = _time(found)
    if when is not None:
        life.first = when if life.first is None else min(life.first, when)
        life.last = when if life.last is None else max(life.last, when)


def _record(life: Life, record: dict[str, Any]) -> None:
    if record["attempt"] == life.attempt:
        life.reached = max(life.reached, record["step"] + 1)
        _seen(life, record)


def _event(lives: list[Life], event: dict[str, Any]) -> None:
    name, attempt, start = event.get("event"), event.get("attempt"), event.get("from")
    if name == "resume" and type(attempt) is int and type(start) is int and start >= 0:
        if len(lives) >= _MOST_LIVES:
            raise BadFile(f"log: got more than {_MOST_LIVES:,} lives of one run, expected fewer")
        lives.append(Life(attempt, start, reached=start))
    if not lives or attempt != lives[-1].attempt:
        return
    life = lives[-1]
    _seen(life, event)
    step = event.get("step")
    if name == "steps" and type(event.get("total")) is int:
        life.planned = event["total"]
    elif name == "checkpoint" and type(step) is int:
        nbytes = event.get("bytes")
        size = nbytes if type(nbytes) is int else None
        life.elsewhere |= event.get("elsewhere") is True
        life.saves.append((step, size, _number(event.get("stall")), _number(event.get("total"))))
    elif name == "stopped":
        life.reason = str(event.get("reason", ""))[:200]
        life.ending = "notice" if "notice" in life.reason else "signal"
    elif name == "left":
        life.ending = "left"
        if type(step) is int:
            life.reached = max(life.reached, step)


def _number(value: object) -> float | None:
    good = (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    )
    return float(value) if good else None  # type: ignore[arg-type]


def _finish(life: Life) -> None:
    """Whether it came to its end, and what was logged after the loop is no step."""
    newest = max((save[0] for save in life.saves), default=life.begun)
    life.reached = max(life.reached, newest)
    if life.planned is not None:
        life.reached = max(min(life.reached, life.planned), life.begun)
        if newest >= life.planned:
            life.ending = "done"
