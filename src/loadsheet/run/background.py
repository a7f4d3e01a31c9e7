"""Threads of ours, which leave signals to the main thread."""

from __future__ import annotations

import signal
import threading

from loadsheet.run.errors import STOPS


class Background(threading.Thread):
    """A thread that the system gives no signals that ask to stop.

    Python's handlers run in the main thread, and only a signal that this thread gets itself wakes it out of a
    `sleep` or `join`. Given to another thread, which happens while the main one has not yet seen an earlier
    signal, it would be heard when the wait is over. Not for what starts programs: they inherit it.
    """

    def run(self) -> None:
        """As any thread."""
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        super().run()
