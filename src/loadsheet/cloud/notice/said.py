"""What a metadata service said, as far as a run is concerned."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal

#: seconds before an announced end from which on a run saves and waits; earlier it saves and goes on.
#: The longest notice of the three is 120 s (AWS), so a notice of an interruption always falls within.
NEAR = 150.0


@dataclass(frozen=True, slots=True)
class Said:
    """A coming event: "terminate" or "rebalance", when (Unix seconds, None: not said), and its origin."""

    kind: Literal["terminate", "rebalance"]
    deadline: float | None
    source: str

    def to_json(self) -> dict[str, Any]:
        """As the notice file has it."""
        return {"kind": self.kind, "deadline": self.deadline, "source": self.source}


def unix_time(text: object) -> float | None:
    """Seconds of a date as these services write it; None if it is none.

    >>> unix_time("2026-11-29T12:20:45Z"), unix_time("Sun, 29 Nov 2026 12:19:15 GMT")
    (1795954845.0, 1795954755.0)
    >>> unix_time("21 Jan 2019 09:00:43 GMT"), unix_time("")
    (1548061243.0, None)
    """
    if not isinstance(text, str) or not text or len(text) > 60:
        return None
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            found = read(text)
        except (ValueError, TypeError, IndexError):
            continue
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    return None


def announced(deadline: float | None, source: str, now: float | None = None) -> Said:
    """An end that is announced: far off it is a reason to save, near it is the end."""
    far = deadline is not None and deadline - (time.time() if now is None else now) > NEAR
    return Said("rebalance" if far else "terminate", deadline, source)


def most_urgent(found: Iterable[Said]) -> Said | None:
    """The one that a run must obey: an end before a warning, the earlier before the later."""
    return min(
        found,
        key=lambda s: (s.kind != "terminate", -1.0 if s.deadline is None else s.deadline),
        default=None,
    )
