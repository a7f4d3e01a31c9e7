"""Saves in the background: the loop pays for the copy, a thread for the disk.

One save at a time. What goes wrong in the thread is raised in the loop, at its next call: a run that
believes in checkpoints it does not have is worse than one that stops.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from loadsheet.errors import BadInput, shorten
from loadsheet.run.background import Background
from loadsheet.run.checkpoint import CheckpointStore
from loadsheet.run.errors import SaveFailed
from loadsheet.run.snapshot import Snapshot
from loadsheet.run.tell import tell


@dataclass(frozen=True)
class SaveTimes:
    """What one save took, seconds: `stall` the loop waited, `total` from the copy until it was durable."""

    step: int
    nbytes: int
    stall: float
    total: float


class Saver:
    """Writes snapshots to a store, one at a time, in a thread.

    `fence` is passed on to the store; `on_committed(step, path)` is called in the thread once a checkpoint
    is durable, before old ones are removed. With `on_failure="warn"` a save that fails is a RunWarning and
    training goes on with the checkpoints there are; with "raise" the next call raises it.
    """

    def __init__(
        self,
        store: CheckpointStore,
        *,
        fence: Callable[[], None] | None = None,
        attempt: int = 0,
        on_committed: Callable[[int, Path], None] | None = None,
        on_failure: Literal["raise", "warn"] = "raise",
    ) -> None:
        if on_failure not in ("raise", "warn"):
            raise BadInput(f'steps: when_save_fails: got {shorten(on_failure)}, expected "raise" or "warn"')
        self.store = store
        self.history: list[SaveTimes] = []
        self._fence = fence
        self._attempt = attempt
        self._on_committed = on_committed
        self._on_failure = on_failure
        self.failed: SaveFailed | None = None  # what the last save came to, if it failed
        self._failures = 0  # in a row
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def stall_seconds(self) -> float | None:
        """How long the loop waited for the last save; None before the first."""
        return self.history[-1].stall if self.history else None

    @property
    def total_seconds(self) -> float | None:
        """How long the last save took until it was durable; None before the first."""
        return self.history[-1].total if self.history else None

    @property
    def busy(self) -> bool:
        """Whether a save is being written."""
        return self._thread is not None and self._thread.is_alive()

    def save(
        self, snapshot: Snapshot, *, log_offset: int | Callable[[], int] = 0, wait: bool = False
    ) -> None:
        """Begin to write a snapshot; it is released when done. Waits for the save before it.

        A streamed snapshot is written before this returns, and any with `wait`. Raises what went wrong in
        the save before this one, as `check` does.
        """
        began = time.perf_counter()
        try:
            self.wait()
        except BaseException:
            snapshot.release()
            raise
        if snapshot.lease is not None:
            snapshot.lease.busy = True
        if snapshot.streamed:
            self._write(snapshot, log_offset, began)
        else:
            # Not a daemon: a program that ends without waiting still ends with its last checkpoint.
            arguments = (snapshot, log_offset, began)
            self._thread = Background(target=self._write, args=arguments, name="loadsheet-checkpoint")
            self._thread.start()
        if wait or snapshot.streamed:
            self.wait()

    def _write(self, snapshot: Snapshot, log_offset: int | Callable[[], int], began: float) -> None:
        stall = snapshot.seconds + time.perf_counter() - began
        try:
            path = self.store.write(snapshot, log_offset=log_offset, fence=self._fence, attempt=self._attempt)
            total = snapshot.seconds + time.perf_counter() - began
            stall = total if snapshot.streamed else stall
            self._failures, self.failed = 0, None
            self.history.append(SaveTimes(snapshot.step, snapshot.nbytes, stall, total))
            snapshot.release()
            if self._on_committed is not None:
                self._on_committed(snapshot.step, path)
            self.store.prune()
        except BaseException as error:
            self._error = error
        finally:
            snapshot.release()

    def check(self) -> None:
        """Raise what went wrong in the background, once. Costs nothing."""
        error, self._error = self._error, None
        if error is None:
            return
        if self._on_failure == "warn" and isinstance(error, SaveFailed):
            self.failed = error
            self._failures += 1
            if self._failures > 1:  # the same thing again: once said, it is counted
                if self._failures in (10, 100, 1000, 10_000):
                    tell(f"{self._failures} saves in a row have failed; the last: {error}")
                return
            hint = f" ({error.hint})" if error.hint else ""
            tell(f"{error}{hint}; training goes on without this checkpoint")
            return
        raise error

    def wait(self) -> None:
        """Until the save in progress is durable; raises as `check` does."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def settle(self, seconds: float) -> None:
        """Until the save that is under way is over, so long at most; what went wrong is still to be said."""
        if self._thread is not None:
            self._thread.join(seconds)

    def close(self) -> None:
        """Wait, and raise nothing: for a program that ends with an error already."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
