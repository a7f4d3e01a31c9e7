"""Which checkpoints stay: the last ones, every so many steps, and the best by a logged metric.

What is best is read from the log, by one definition for the run, its mirror and `load`. A value logged in
step s was measured with s or s + 1 completed steps, before or after the update; it counts for the first
checkpoint from s on, and of several the last one counts. So the newest checkpoint is not settled yet: what
is logged in the next step may still count for it. It stays anyway. All the others are settled, and by
records that were durable before the newest was committed: a run that is killed, or loses power, finds the
same ones best when it goes on. Nothing of it is kept in memory that is not read from there again.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from loadsheet.errors import BadInput, shorten
from loadsheet.run.reading import Reader, log_path

Mode = Literal["min", "max"]
#: as a user writes it: "val_loss", ("accuracy", "max"), ("accuracy", "max", 3)
Wanted = str | tuple[str, Mode] | tuple[str, Mode, int]


@dataclass(frozen=True, slots=True)
class Best:
    """The `count` checkpoints whose `metric` is lowest (`mode` "max": highest)."""

    metric: str
    mode: Mode = "min"
    count: int = 1

    @classmethod
    def parse(cls, value: object) -> Best:
        """From what `keep_best` may be: a name, (name, mode) or (name, mode, count). Raises BadInput."""
        parts: tuple[Any, ...] = (value,) if isinstance(value, str) else ()
        if isinstance(value, tuple | list):
            parts = tuple(value)
        known = 1 <= len(parts) <= 3 and isinstance(parts[0], str) and parts[0]
        if not known or (len(parts) > 1 and parts[1] not in get_args(Mode)):
            raise BadInput(
                f"keep_best: got {shorten(value)}, expected the name of a logged metric",
                'or with its direction and how many: keep_best=("accuracy", "max", 3)',
            )
        if len(parts) > 2 and (type(parts[2]) is not int or parts[2] < 1):
            raise BadInput(f"keep_best: got {shorten(parts[2])} of them, expected a whole number from 1 on")
        return cls(*parts)


def kept(
    steps: Sequence[int], keep_last: int, every_mth: int | None = None, best: Collection[int] = ()
) -> set[int]:
    """Those of the checkpoints (steps in order) that stay.

    >>> sorted(kept([0, 100, 200, 300, 400, 500], keep_last=2, every_mth=300, best=[100]))
    [0, 100, 300, 400, 500]
    """
    regular = [step for step in steps if every_mth and step % every_mth == 0]
    return {*steps[-keep_last:], *regular, *(step for step in best if step in steps)}


def last_values(
    path: str | os.PathLike[str], steps: Sequence[int], metric: str, *, start: int = 0, end: int | None = None
) -> dict[int, float]:
    """For each checkpoint (steps in order) that has one: the last value of the metric that counts for it.

    `path` is the log or the run directory; only its bytes `start` to `end` are looked at. What is no
    number, or not a number, does not count. Raises BadFile.
    """
    found: dict[int, float] = {}
    reader = Reader(log_path(path), start, end)
    remaining = iter(steps)
    holder = next(remaining, None)
    with reader:
        for batch in reader.records(restore=True):
            for record in batch:
                while holder is not None and holder < record["step"]:
                    holder = next(remaining, None)
                value = _number(record.get(metric))
                if holder is not None and value is not None:
                    found[holder] = value
    return found


def best_ever(path: str | os.PathLike[str], metric: str, mode: str) -> tuple[int, float] | None:
    """The step and value of the best that was ever logged, of equals the last; None if there is none."""
    best: tuple[int, float] | None = None
    with Reader(log_path(path)) as reader:
        for batch in reader.records(restore=True):
            for record in batch:
                value = _number(record.get(metric))
                if value is not None and (best is None or not better(best[1], value, mode)):
                    best = record["step"], value
    return best


def better(one: float, other: float, mode: str) -> bool:
    """Whether the first value is the better one."""
    return one > other if mode == "max" else one < other


def _number(value: object) -> float | None:
    if not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    return None if math.isnan(number) else number


def ranked(values: Mapping[int, float], mode: str) -> list[int]:
    """The checkpoints, the best first; of equals the later.

    >>> ranked({100: 2.0, 200: 1.0, 300: 1.0}, "min")
    [300, 200, 100]
    """
    sign = -1.0 if mode == "max" else 1.0
    return sorted(values, key=lambda step: (sign * values[step], -step))


class BestOf:
    """The best of a run's checkpoints while the run goes on.

    Reads of the log only what was added since it was last asked; what it says is what reading all of it
    would give.
    """

    def __init__(self, log: str | os.PathLike[str], best: Best) -> None:
        self.best = best
        self._log = log
        self._read = 0  # bytes of the log
        self._values: dict[int, float] = {}

    @property
    def found(self) -> bool:
        """Whether any checkpoint has a value, as far as was read."""
        return bool(self._values)

    def of(self, steps: Sequence[int], end: int, *, without: Collection[int] = ()) -> list[int]:
        """The best of the settled checkpoints, all but the newest; `without` are those that cannot be used.

        `steps`: those there are, in order; `end`: the log offset in the manifest of the newest.
        """
        if not steps:
            return []
        self._forget(steps)
        if end > self._read:
            self._values |= last_values(self._log, steps, self.best.metric, start=self._read, end=end)
            self._read = end
        settled = {
            step: value for step, value in self._values.items() if step < steps[-1] and step not in without
        }
        return ranked(settled, self.best.mode)[: self.best.count]

    def _forget(self, steps: Iterable[int]) -> None:
        """What counted for a checkpoint that is gone counts for the next one, if that has nothing newer."""
        there = sorted(steps)
        for gone in sorted(self._values.keys() - set(there)):
            value = self._values.pop(gone)
            following = next((step for step in there if step > gone), None)
            if following is not None:
                self._values.setdefault(following, value)
