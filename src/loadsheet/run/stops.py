"""How a loop ends before its last step: who asked for it, what is saved, noted and said, and with what status."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn

from loadsheet.errors import LoadsheetError, one_line
from loadsheet.run import ending
from loadsheet.run.errors import STOPS, Stopped
from loadsheet.run.leaving import end_now, see_to_the_end
from loadsheet.run.log import Log
from loadsheet.run.notices import Notices
from loadsheet.run.progress import Progress
from loadsheet.run.saves import Saves
from loadsheet.run.signals import Outside, StopSignals, Uncaught
from loadsheet.run.tell import tell
from loadsheet.run.waiting import Waiting
from loadsheet.units import format_duration

#: seconds for which a save that is under way is waited for, to say from which step the run goes on
_SAVE_PATIENCE: Final = 5.0


class Stops:
    """Signals, notices and errors that end a loop.

    `how` is "left" until something else is known, "stopped" or "done"; None before the first loop. `newest`
    gives the step to go on from.
    """

    def __init__(self, log: Log, notices: Notices, progress: Progress, newest: Callable[[], int]) -> None:
        self.signals = StopSignals()
        self._newest = newest
        self.outside = Outside(progress.say, self._goes_on_from, self._stopped_outside)
        self.how: str | None = None
        self._log = log
        self._notices = notices
        self._progress = progress
        self._uncaught = Uncaught(self.inside)
        self._saves: Saves | None = None
        self.waiting: Waiting | None = None

    def begin(self, saves: Saves) -> None:
        """A loop begins."""
        self.how, self._saves = "left", saves
        self.signals = StopSignals(tell=self._progress.terminal)
        self.signals.install()
        self.waiting = Waiting(self.signals, self._progress.say)
        self._uncaught.install()
        self._notices.start()

    def step_begins(self) -> None:
        """The body has its turn."""
        if self.waiting is not None:
            self.waiting.step_begins()

    def step_ends(self) -> None:
        """It asks for the next step."""
        if self.waiting is not None:
            self.waiting.step_ends()

    def leave(self) -> None:
        """The loop looks no more: it is done, or was left by an error or `break`, or thrown away."""
        self.signals.leave()

    def end(self) -> None:
        """It has ended."""
        self._notices.stop()
        if self.waiting is not None:
            self.waiting.end()
        self.signals.remove(heard=self.how == "stopped")
        if self.signals.unheard is not None:
            self.outside.where = "in a step that left the loop"
        if self.signals.received is None:  # else the error that ended the body is still on its way
            self._uncaught.remove()

    def close(self) -> None:
        """Nothing more will come; the log is still open."""
        self._uncaught.remove()
        if (which := self.signals.unheard) is not None and not self.outside.exiting:
            self._note(which)

    def give_back(self) -> None:
        """Nobody listens any more. Raises Stopped for a signal of the loop's that nobody has heard.

        Where nobody would see that, at the end of the process, it ends with the status.
        """
        which = self.signals.take()
        ours = which is not None and self.outside.has(which)
        self.outside.remove()
        if which is None:
            return
        if self.outside.exiting:
            end_now(STOPS[which])
        if not ours or threading.current_thread() is not threading.main_thread():
            os.kill(os.getpid(), which)  # somebody else's, or Ctrl-C
            return
        raise self.outside.stopped_by(which)

    def asked(self, completed: int, saves: Saves) -> ending.Why | None:
        """Whether a signal or a notice says so; a notice of what is far off only makes a checkpoint."""
        if self.signals.received is not None:
            return ending.by_signal(self.signals.received)
        notice = self._notices.current()
        if notice is None or not self._notices.heed(notice):
            return None
        if (why := ending.stale(notice, self._notices.began)) is not None:
            tell(
                f"a notice {why} was ignored, training goes on; whoever writes notices should remove old ones"
            )
            return None
        self._log.event("notice", kind=notice.kind, deadline=notice.deadline, source=notice.source)
        if notice.kind == "cancelled":
            self._progress.say("the notice was cancelled, training goes on")
            return None
        if notice.kind == "rebalance":
            self._progress.say("the machine may be taken soon: a checkpoint is written, training goes on")
            saves.take(completed)
            return None
        if saves.in_time(notice.deadline):
            saves.take(completed, wait=True)
            said = f"saved after {completed} steps"
        else:
            said = f"too late for a save, checkpoint {saves.newest} stays the newest"
        left = format_duration(ending.patience(notice))
        self._progress.say(f"{said}; waiting for the machine to be taken, at most {left}")
        return ending.wait_idle(self.signals, self._notices, notice)

    def stop(self, completed: int, saves: Saves, why: ending.Why) -> NoReturn:
        """Save unless a notice came too late for that, and raise Stopped."""
        if why.save:
            saves.take(completed, wait=True)
        saves.note(self._log)
        newest, self.how = saves.newest, "stopped"
        self._log.event("stopped", step=newest, reason=why.reason)
        self._progress.say(
            f"stopped by {why.reason} after {completed} steps; the same command goes on from step {newest}"
        )
        self._see_to_the_end(why.code)
        raise why.stopped(newest)

    def inside(self, error: BaseException | None) -> Stopped | None:
        """What an error in a step is after a signal: a stop, in the middle of that step; None if there was none.

        A launcher signals all processes of a job, and an evaluation whose workers died of it cannot go on.
        Nothing can be saved here; but the job is to be started again, and an error of the code's own comes back.
        """
        received = self.signals.received
        if received is None or self.how != "left" or self._saves is None or not isinstance(error, Exception):
            return None
        newest, self.how = self._saves.newest, "stopped"
        what = one_line(f"{type(error).__name__}: {error}")[:200]
        with suppress(LoadsheetError):
            self._log.event("stopped", step=newest, reason=received.name, error=what)
        self._progress.say(
            f"stopped by {received.name} in a step that ended with {what}; "
            f"the same command goes on from step {newest}"
        )
        self.signals.take()
        if self.waiting is not None:
            self.waiting.end()
        self._see_to_the_end(STOPS[received])
        return Stopped(STOPS[received], newest, received.name)

    def _goes_on_from(self) -> int:
        if self._saves is not None:
            self._saves.settle(_SAVE_PATIENCE)
        return self._newest()

    def _stopped_outside(self, which: signal.Signals) -> None:
        """A signal that no loop has heard: noted, if one was left before its last step, as it will go on."""
        self._note(which)
        self._see_to_the_end(STOPS[which])

    def _note(self, which: signal.Signals) -> None:
        if self.how == "left" and self._saves is not None:
            with suppress(LoadsheetError, OSError):
                self._log.event("stopped", step=self._saves.newest, reason=which.name)
            self.how = "stopped"

    def _see_to_the_end(self, code: int) -> None:
        self.outside.stopping()
        see_to_the_end(code, self._progress.say)
