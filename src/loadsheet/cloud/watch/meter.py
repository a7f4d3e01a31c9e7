"""Counting the money oneself, from above: a provider's bill is 8 to 24 hours late.

spent ≤ Σ over machines ceil(uptime / u)·u · p + f, with u the billing unit in seconds, p the price per second
of everything that is rented together, f what is fixed or was spent before. Uptime counts from the boot of the
machine, not from the start of the training: that is what is billed. Machines of the past are told apart by
their boot id and known from the journal; each is counted `slack` seconds longer than it was last seen.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadsheet.errors import BadFile
from loadsheet.units import ceil_div

_LARGEST: Final = 64 << 20
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot() -> tuple[str, float]:
    """(identity of this boot, seconds since it), from the kernel; setting the clock changes neither."""
    try:
        identity = _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        identity = "unknown"
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # counts while the machine sleeps, too
    return identity, time.clock_gettime(clock)


def spent_on(uptime: float, price_per_second: float, unit: float) -> float:
    """What one machine has cost: started units count whole.

    >>> spent_on(3601, 2.0 / 3600, 3600), spent_on(0, 1.0, 60)   # per started hour: two hours
    (4.0, 0.0)
    """
    return float(ceil_div(uptime, unit) * unit * price_per_second)


@dataclass(frozen=True, slots=True)
class Cap:
    """A budget that is not passed: `reserve` is kept for the last save's upload, storage, the way out.

    Times in seconds: `save` until a checkpoint is durable, `poll` between two looks, `stop` until the machine is off.
    """

    budget: float
    reserve: float = 0.0
    save: float = 60.0
    poll: float = 10.0
    stop: float = 120.0

    def room(self, spent: float, price_per_second: float) -> float:
        """Seconds that may still be trained before it must be saved and stopped; negative: too late.

        (B − reserve − spent)/p − save − poll − stop
        """
        left = self.budget - self.reserve - spent
        if price_per_second <= 0:
            return math.inf if left >= 0 else -math.inf
        return left / price_per_second - self.save - self.poll - self.stop

    def allows(self, segment: float, spent: float, price_per_second: float) -> bool:
        """Whether another `segment` of seconds may begin: spent + p·(segment + save + poll + stop) + reserve ≤ B."""
        return self.room(spent, price_per_second) >= segment


class Meter:
    """The money so far, kept in a journal that outlives the machine if it lies beside the checkpoints."""

    def __init__(
        self,
        path: Path,
        price_per_second: float,
        *,
        unit: float = 1.0,
        before: float = 0.0,
        every: float = 30.0,
        now: Callable[[], tuple[str, float]] = boot,
    ) -> None:
        self.path = path
        self.price = price_per_second
        self.unit = unit
        self.before = before
        self._every = every
        self._now = now
        self._uptimes, self._slacks = _read(path)
        self._written = -math.inf

    def spent(self) -> float:
        """Money so far, rounded up as it is billed; writes the journal if that is due."""
        identity, uptime = self._now()
        known = self._uptimes.get(identity, 0.0)
        self._uptimes[identity] = max(known, uptime)
        if uptime - self._written >= self._every or uptime < self._written:
            self._write(identity, uptime)
            self._written = uptime
        total = self.before
        for name, seconds in self._uptimes.items():
            longer = 0.0 if name == identity else self._slacks.get(name, self._every)
            total += spent_on(seconds + longer, self.price, self.unit)
        return total

    @property
    def machines(self) -> int:
        """How many machines (boots) were paid for."""
        return len(self._uptimes)

    def _write(self, identity: str, uptime: float) -> None:
        line = json.dumps(
            {"boot": identity, "up": round(uptime, 3), "every": self._every, "time": time.time()}
        )
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                os.write(fd, line.encode() + b"\n")
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise BadFile(
                f"journal of money `{self.path}`: got {error.strerror!r}, expected a place that can be written",
                "without it the money of an earlier machine is forgotten; --journal names another place",
            ) from None


def _read(path: Path) -> tuple[dict[str, float], dict[str, float]]:
    """(uptime, journal interval) of each machine in the journal; torn lines are passed over."""
    uptimes: dict[str, float] = {}
    slacks: dict[str, float] = {}
    try:
        if path.stat().st_size > _LARGEST:
            raise BadFile(f"journal of money `{path}`: got more than {_LARGEST:,} bytes, expected less")
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return uptimes, slacks
    except OSError as error:
        raise BadFile(
            f"journal of money `{path}`: got {error.strerror!r}, expected a readable file"
        ) from None
    for line in lines:
        entry = _entry(line)
        if entry is not None:
            name, up, every = entry
            uptimes[name] = max(uptimes.get(name, 0.0), up)
            slacks[name] = max(slacks.get(name, 0.0), every)
    return uptimes, slacks


def _entry(line: bytes) -> tuple[str, float, float] | None:
    try:
        found: Any = json.loads(line)
        name, up, every = str(found["boot"]), float(found["up"]), float(found.get("every", 30.0))
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError):
        return None
    good = math.isfinite(up) and math.isfinite(every) and up >= 0 and every >= 0 and len(name) <= 100
    return (name, up, every) if good else None
