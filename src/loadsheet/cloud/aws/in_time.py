"""A bound on what has none of its own: a program that gives credentials, three tries of a call, a lock before both."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from loadsheet.cloud.aws.failures import CallFailed

_T = TypeVar("_T")
NAME: Final = "asked in time"  # of the threads


def in_time(end: float | None, ask: Callable[[], _T], region: str = "") -> _T:
    """What `ask` gives or raises; CallFailed where neither is there at `end` (monotonic seconds, None: no end).

    It goes on in a thread that nobody waits for, and that ends with the process.
    """
    if end is None:
        return ask()
    done: queue.SimpleQueue[tuple[_T, None] | tuple[None, BaseException]] = queue.SimpleQueue()

    def work() -> None:
        try:
            done.put((ask(), None))
        except BaseException as error:
            done.put((None, error))

    left = end - time.monotonic()
    if left > 0:
        threading.Thread(target=work, daemon=True, name=NAME).start()
    try:
        found, error = done.get(timeout=max(left, 0.0))
    except queue.Empty:
        raise CallFailed("not done in time", "give it longer: `--timeout`", region=region) from None
    if error is not None:
        raise error
    return found  # type: ignore[return-value]
