"""Standard output and error that nobody reads any more.

Who is asked to stop is often not alone: Ctrl-C and a launcher's SIGTERM reach the `tee` behind a pipe too, and SIGHUP
says that the terminal is gone. The next `print` would raise an error in the middle of the last step, and
nothing could be saved.
"""

from __future__ import annotations

import contextlib
import os
import select
from typing import Final

_STANDARD: Final = (1, 2)


def let_go_of_what_is_gone() -> None:
    """Put the null device where stdout and stderr lead to nobody: whoever writes there, nothing is raised.

    Files and not Python's objects: progress bars and loggers hold those of their own.
    """
    if not hasattr(select, "poll"):
        return
    for number in _STANDARD:
        with contextlib.suppress(OSError, ValueError):
            look = select.poll()
            look.register(number, 0)  # only that the other end is gone is asked
            if any(state & (select.POLLERR | select.POLLHUP) for _, state in look.poll(0)):
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, number)
                os.close(null)
