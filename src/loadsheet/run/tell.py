"""Warnings that point to the user's line, and not to ours."""

from __future__ import annotations

import sys
import threading
import warnings
from pathlib import Path
from types import FrameType
from typing import Final

from loadsheet.run.errors import RunWarning

_OURS: Final = str(Path(__file__).resolve().parent.parent) + "/"


def tell(message: str) -> None:
    """Warn with a RunWarning, at the line outside Loadsheet that led here; in a thread of ours, at our own."""
    level, frame = 2, sys._getframe(1)
    outer: FrameType | None = frame
    while outer is not None and outer.f_code.co_filename.startswith(_OURS):
        outer, level = outer.f_back, level + 1
    in_thread = outer is None or outer.f_code.co_filename == threading.__file__
    warnings.warn(message, RunWarning, stacklevel=2 if in_thread else level)
