"""When to save: every so many steps, every so many minutes, or as often as pays.

The interval that costs least, from J. W. Young, "A first order approximation to the optimum checkpoint
interval", Communications of the ACM 17 (1974): √(2·δ·M), where δ is what a save costs the loop and M the
mean time between failures. δ is the measured stall, not the time on the disk: training goes on meanwhile.
An interruption costs half an interval on average, and what was not durable yet: the whole time of a save.
That latency does not move the optimum, but below twice of it saves would follow one another without pause.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from loadsheet import units
from loadsheet.errors import BadInput, LoadsheetError, shorten

#: mean time between interruptions, seconds, until something better is known; an assumption
MTBF = 6 * 3600.0


def young_interval(stall: float, total: float, mtbf: float = MTBF) -> float:
    """Seconds between saves that cost least; never less than twice the total time of a save.

    >>> round(young_interval(0.089, 0.5, 7200)), young_interval(0.001, 30, 7200)
    (36, 60.0)
    """
    return max(math.sqrt(2 * stall * mtbf), 2.0 * total)


def overhead(interval: float, stall: float, total: float, mtbf: float = MTBF) -> float:
    """Share of the time that saving and repeating lost steps cost, first order.

    >>> round(overhead(35.8, 0.089, 0.5, 7200), 4)
    0.005
    """
    return stall / interval + (interval / 2 + total) / mtbf


class Policy:
    """Says after which steps to save. `every` is a number of steps, a duration ("10 min"), "auto" or None.

    A duration counts from the last save. Raises BadInput.
    """

    def __init__(
        self,
        every: int | str | None,
        *,
        mtbf: float = MTBF,
        clock: Callable[[], float] = time.monotonic,  # wall clocks are set back
    ) -> None:
        self.steps: int | None = None
        self.seconds: float | None = None
        self.auto = every == "auto"
        self._mtbf = mtbf
        self._clock = clock
        self._last = clock()
        self._times: tuple[float, float] | None = None
        if every is None or self.auto:
            return
        if isinstance(every, str):
            try:
                self.seconds = float(units.parse_duration(every))
            except LoadsheetError as error:
                raise BadInput(
                    f"checkpoint_every: got {shorten(every)}, expected steps, a duration or `auto`",
                    error.hint,
                ) from None
        elif type(every) is int and every > 0:
            self.steps = every
        else:
            raise BadInput(
                f"checkpoint_every: got {shorten(every)}, expected steps from 1 on, a duration or `auto`"
            )
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise BadInput(f"checkpoint_every: got {shorten(every)}, expected a duration above 0")

    @property
    def interval(self) -> float | None:
        """Seconds between saves as things stand; None if steps decide, or nothing was measured yet."""
        if self.auto and self._times is not None:
            return young_interval(*self._times, self._mtbf)
        return self.seconds

    def due(self, step: int) -> bool:
        """Is the checkpoint of `step` completed steps to be taken?

        With "auto" the first is taken after one step: nothing is known before it was measured.
        """
        if self.steps is not None:
            return step % self.steps == 0
        if self.auto and self._times is None:
            return True
        interval = self.interval
        return interval is not None and self._clock() - self._last >= interval

    def saved(self) -> None:
        """A save has begun."""
        self._last = self._clock()

    def measured(self, stall: float, total: float) -> None:
        """What the last save took, seconds."""
        self._times = (stall, total)
