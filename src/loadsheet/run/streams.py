"""Standard output and error that nobody reads any more.

Who is asked to stop is often not alone: Ctrl-C and a launcher's SIGTERM reach the `tee` behind a pipe too, and SIGHUP
says that the terminal is gone. The next `print` would raise an error in the middle of the last step, and
nothing could be saved.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable
from typing import Any, Final

#: nobody at the other end of the pipe; no terminal any more
_GONE: Final = (errno.EPIPE, errno.EIO)


def outlive_the_terminal() -> None:
    """From now on what is written to a stdout or stderr that is gone is dropped, and raises nothing."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name, None)
        if stream is not None and not isinstance(stream, _Outliving):
            setattr(sys, name, _Outliving(stream))


class _Outliving:
    """A text stream; once the other end is gone its file is the null device, for whoever else writes there too."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """As any stream's."""
        return self._try(self._stream.write, text) or 0

    def writelines(self, lines: Any) -> None:
        """As any stream's."""
        self._try(self._stream.writelines, lines)

    def flush(self) -> None:
        """As any stream's."""
        self._try(self._stream.flush)

    def _try(self, do: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return do(*arguments)
        except OSError as error:
            if error.errno not in _GONE:
                raise
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)
        return None
