"""The saves of one loop: when they are due, what each must wait for, and the copy elsewhere."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any, Literal

from loadsheet.errors import LoadsheetError
from loadsheet.run import ending
from loadsheet.run.checkpoint import CheckpointStore
from loadsheet.run.directory import RunDirectory, cannot_write
from loadsheet.run.errors import RunError, SaveFailed
from loadsheet.run.log import Log
from loadsheet.run.mirror import Mirror
from loadsheet.run.policy import Policy
from loadsheet.run.retention import Best, BestOf
from loadsheet.run.saver import Saver, SaveTimes
from loadsheet.run.state import Keeper
from loadsheet.run.tell import tell


class Saves:
    """Takes the state of `keeper` into the checkpoints of `directory`, by a policy or when told to."""

    def __init__(
        self,
        directory: RunDirectory,
        keeper: Keeper,
        policy: Policy,
        *,
        keep_last: int,
        keep_every: int | None,
        keep_best: object,
        when_save_fails: Literal["raise", "warn"],
        mirror: str | os.PathLike[str] | None,
        mirror_options: dict[str, Any] | None,
    ) -> None:
        self._directory = directory
        self._keeper = keeper
        self._policy = policy
        self._begun: int | None = None  # the step of the last save that was begun
        self._told = 0  # how many saves the log speaks of
        self.on_durable: Callable[[], None] | None = None  # called in the thread that saves
        best = None if keep_best is None else Best.parse(keep_best)
        self.store = CheckpointStore(
            directory.checkpoints,
            keep_last=keep_last,
            every_mth=keep_every,
            best=None if best is None else BestOf(directory.log_path, best),
        )
        self._saver = Saver(
            self.store,
            fence=directory.check_owner,
            attempt=directory.attempt,
            on_committed=lambda step, _: self._committed(step),
            on_failure=when_save_fails,
        )
        self._mirror = None
        if mirror is not None:  # last: what is refused has written nothing there
            self._mirror = Mirror(
                mirror,
                directory.path,
                keep_last=keep_last,
                every_mth=keep_every,
                best=best,
                options=mirror_options,
            )
            self._mirror.claim(directory.attempt)

    def _committed(self, step: int) -> None:
        """In the saver's thread: a checkpoint is durable."""
        if self.on_durable is not None:
            with contextlib.suppress(OSError, LoadsheetError):  # the loop says it at its end
                self.on_durable()
        if self._mirror is not None:
            self._mirror.push(step)

    @property
    def history(self) -> list[SaveTimes]:
        """What each save took."""
        return self._saver.history

    def note(self, log: Log) -> None:
        """Note in the log what became durable since; in the loop's thread, which alone writes to it."""
        for save in self._saver.history[self._told :]:
            self._told += 1
            log.event("checkpoint", step=save.step, bytes=save.nbytes, stall=save.stall, total=save.total)

    @property
    def newest(self) -> int:
        """The newest checkpoint's step; 0 if there is none."""
        return max(self.store.steps(), default=0)

    def begin(self, start: int, *, resumed: bool) -> None:
        """Before the first step of a loop: `step-0`, or a look whether there is room for those to come."""
        if not resumed:
            self.take(start)
            return
        self._begun = start
        manifest = self.store.manifest(start)
        if self._mirror is not None:
            self._mirror.bring_best()
        self.store.check_space(sum(entry.bytes for entry in manifest.files.values()))

    def take(self, completed: int, *, wait: bool = False) -> None:
        """Begin to save the state after so many steps; nothing if that was begun already."""
        if self._begun != completed:
            self._saver.wait()  # what went wrong is said before, and the buffer is free
            # The records of the steps to come must not count as part of this state.
            offset = self._log_bytes()
            snapshot = self._keeper.capture(completed)
            if self._begun is None:
                try:
                    self.store.check_space(self._keeper.expected_bytes(snapshot.nbytes))
                except BaseException:
                    snapshot.release()
                    raise
            self._begun = completed
            self._policy.saved()
            self._saver.save(snapshot, log_offset=lambda: self._durable_log(offset))
        if wait:
            self.wait()

    def _log_bytes(self) -> int:
        try:
            return os.stat(self._directory.log_path).st_size
        except OSError as error:
            self._directory.check_owner()  # if all of it is gone, that is what is to be said
            cannot_write(error, f"log `{self._directory.log_path}`")

    def _durable_log(self, offset: int) -> int:
        """In the saver's thread: what was logged up to here is on disk before the checkpoint is."""
        fd = os.open(self._directory.log_path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        return offset

    def due(self, completed: int) -> bool:
        """Whether the policy wants a checkpoint now."""
        if self.history:
            self._policy.measured(self.history[-1].stall, self.history[-1].total)
        return self._policy.due(completed)

    def check(self) -> None:
        """Raise, or warn of, what went wrong in the background."""
        self._saver.check()
        if self._mirror is not None:
            self._mirror.check()

    def wait(self) -> None:
        """Until everything begun is durable, here and in the mirror."""
        self._saver.wait()
        if self._mirror is not None:
            self._mirror.wait()

    def settle(self, seconds: float) -> None:
        """Until what was begun is durable on this machine, so long at most; raises nothing."""
        self._saver.settle(seconds)

    def in_time(self, deadline: float | None) -> bool:
        """Whether a save begun now will be durable before a deadline in Unix seconds."""
        self._saver.wait()
        return ending.worth_saving(deadline, [save.total for save in self.history])

    def finish(self, total: int) -> None:
        """Save the final state, wait until it is durable, mark the run done."""
        self.take(total, wait=True)
        if total not in self.store.steps():  # it failed, and that was only warned about
            newest = self.newest
            cause = self._saver.failed
            raise SaveFailed(
                f"run: the final state, step {total}, could not be saved ({'' if cause is None else cause}); "
                f"the {total - newest} steps since checkpoint {newest} are at stake",
                f"make room and start the same command again: it repeats the steps from {newest} on",
            )
        if self._directory.done() != total:
            self._directory.mark_done(total)

    def send_rest(self) -> None:
        """To the mirror: what was logged and measured since the last checkpoint; warns if that fails."""
        if self._mirror is None:
            return
        with contextlib.suppress(RunError):  # another process has it, or it is gone: not ours to send
            self._directory.check_owner()
            self._mirror.send_rest()

    def close(self) -> None:
        """Wait for the thread, and raise nothing: what went wrong last is warned about."""
        self._saver.close()
        try:
            self._saver.check()
        except LoadsheetError as error:
            tell(f"the last save failed: {error}")
