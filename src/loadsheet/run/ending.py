"""Why a run stops, what it still does, and how it waits for a machine that is being taken."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadsheet.run.errors import REQUEUE, STOPS, Stopped
from loadsheet.run.notices import Notice, Notices
from loadsheet.run.signals import StopSignals
from loadsheet.units import format_duration

#: a save is begun only if this many times its measured duration is left
MARGIN = 1.3
#: seconds after the deadline (or after a notice without one) in which the machine should have gone
GRACE = 60.0
GRACE_WITHOUT_DEADLINE = 600.0
_PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class Why:
    """What ended the run; `save` False: there was no time, or it is done already."""

    code: int
    reason: str
    save: bool = True

    def stopped(self, step: int) -> Stopped:
        """The exception for it."""
        return Stopped(self.code, step, self.reason)


def by_signal(received: signal.Signals) -> Why:
    """After a signal."""
    return Why(STOPS[received], received.name)


def worth_saving(deadline: float | None, durations: Sequence[float], now: float | None = None) -> bool:
    """Whether a save will be durable before `deadline` (Unix seconds), by the slowest of the last saves.

    >>> worth_saving(130.0, [60.0, 90.0], now=0.0), worth_saving(110.0, [60.0, 90.0], now=0.0)
    (True, False)
    """
    if deadline is None or not durations:
        return True
    left = deadline - (time.time() if now is None else now)
    return left > MARGIN * max(durations[-5:])


def patience(notice: Notice) -> float:
    """Seconds to wait for the machine to be taken: until the deadline, and a grace."""
    if notice.deadline is None:
        return GRACE_WITHOUT_DEADLINE
    return max(notice.deadline - time.time(), 0.0) + GRACE


def stale(notice: Notice, began: float) -> str | None:
    """Why a notice is not for this attempt, which began at that Unix time; None if it is.

    A file of notices may outlive the machine that it was about, and would stop every attempt on the next one.
    """
    if notice.deadline is not None:
        late = began - notice.deadline
        return (
            f"whose deadline was {format_duration(late)} before this attempt began" if late > GRACE else None
        )
    if notice.written is None:
        return None
    age = began - notice.written
    old = age > GRACE_WITHOUT_DEADLINE or notice.written < booted()
    return f"written {format_duration(age)} before this attempt began" if old else None


def booted() -> float:
    """When this machine was started, in Unix seconds; 0 where the system does not say."""
    try:
        return time.time() - float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0


def wait_idle(signals: StopSignals, notices: Notices, notice: Notice) -> Why | None:
    """Wait for the machine to be taken; None if the notice was cancelled and training may go on.

    To exit at once would have a launcher start the job again on the machine that is about to go.
    """
    name = f"a notice{f' from {notice.source}' if notice.source else ''}"
    ends = time.monotonic() + patience(notice)
    while time.monotonic() < ends:
        if signals.received is not None:
            return Why(STOPS[signals.received], f"{name}, then {signals.received.name}", save=False)
        newest = notices.current()
        if newest is None or newest.kind == "cancelled":
            return None
        time.sleep(_PAUSE)
    return Why(REQUEUE, name, save=False)
