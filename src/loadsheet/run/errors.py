"""What a run raises and warns about; all of it but `Stopped` is a `LoadsheetError`.

The tree::

    LoadsheetError
    ├── BadInput
    │   ├── ForeignConfig    the directory belongs to another config
    │   └── CannotKeep       an object with something inside that no checkpoint can hold
    ├── BadFile
    │   └── BadCheckpoint    torn, cut, flipped bits, or of a shape that does not fit
    └── RunError
        ├── Busy             another process has the run (exit status 2)
        ├── Fenced           a newer attempt has taken the run over
        ├── NoCheckpoint     nothing intact to load
        └── SaveFailed       a save did not reach the disk
            └── NoSpace      because the disk or the quota is full
    SystemExit
    └── Stopped              the run was asked to stop, saved and did: exit status 75 or 130
"""

from __future__ import annotations

import contextlib
import signal
import sys

from loadsheet.errors import BadFile, BadInput, LoadsheetError

#: exit status after SIGTERM, SIGUSR1 or a notice: "temporary failure, try again" (sysexits.h)
REQUEUE = 75
#: exit status after Ctrl-C, as shells count it: 128 + SIGINT
INTERRUPTED = 130
#: the signals that ask to stop, each with the exit status once the state is saved
STOPS = {
    signal.SIGTERM: REQUEUE,
    signal.SIGUSR1: REQUEUE,
    signal.SIGHUP: REQUEUE,  # the terminal is gone
    signal.SIGINT: INTERRUPTED,
}


class RunWarning(UserWarning):
    """Something a person should know about a run that goes on all the same."""


class RunError(LoadsheetError):
    """A run that cannot go on."""


class ForeignConfig(BadInput):
    """The run directory was made for another config; the message shows where they differ."""


class CannotKeep(BadInput):
    """An object holds something that a checkpoint cannot; the message has its path."""


class BadCheckpoint(BadFile):
    """A checkpoint that is torn, damaged, or does not fit what is to be restored."""


class Busy(RunError, SystemExit):
    """Another process has the run; left uncaught it ends the program with status 2 and two lines, no traceback."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self._said = False

    @property
    def code(self) -> int:  # type: ignore[override]
        """The exit status. Who asks for it ends the process and prints nothing of a SystemExit: so this does."""
        if not self._said:
            self._said = True
            with contextlib.suppress(AttributeError, OSError, ValueError):  # no stderr, or one that is closed
                sys.stderr.write(f"error: {self}\n" + (f"hint: {self.hint}\n" if self.hint else ""))
                sys.stderr.flush()
        return self.exit_code


class Fenced(RunError):
    """A newer attempt has taken the run over; this one must not write any more."""


class NoCheckpoint(RunError):
    """There is no intact checkpoint to load."""


class SaveFailed(RunError):
    """A save did not reach the disk; the checkpoints before it are untouched."""


class NoSpace(SaveFailed):
    """The disk or the quota is full; the message gives the bytes needed."""


class Stopped(SystemExit):
    """The run was asked to stop: everything is saved, the same command goes on from here.

    `code` is 75 after SIGTERM, SIGUSR1 or a notice (a launcher should start it again) and 130 after
    SIGINT; `step` is the number of completed steps, `reason` what asked for it.
    """

    code: int

    def __init__(self, code: int, step: int, reason: str) -> None:
        super().__init__(code)
        self.step = step
        self.reason = reason

    def __str__(self) -> str:
        return f"stopped by {self.reason} after {self.step} steps"
