"""Warnings that point to the user's line, and not to ours."""

from __future__ import annotations

import site
import sys
import sysconfig
import threading
import warnings
from pathlib import Path
from types import FrameType
from typing import Final

from loadsheet.run.errors import RunWarning

_OURS: Final = str(Path(__file__).resolve().parent.parent) + "/"


def tell(message: str) -> None:
    """Warn with a RunWarning, at the user's line that led here; in a thread of ours, at our own.

    A library may stand between (a progress bar around `run.steps`): it is passed over.
    """
    level, outside = 1, 0
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename != threading.__file__:
        file = frame.f_code.co_filename
        if written_by_user(file):
            outside = level
            break
        if not outside and not file.startswith(_OURS):
            outside = level
        frame, level = frame.f_back, level + 1
    warnings.warn(message, RunWarning, stacklevel=outside or 2)


def _libraries() -> tuple[str, ...]:
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    with_user = {*paths, *site.getsitepackages(), site.getusersitepackages()}
    return tuple(f"{path}/" for path in with_user if path)


_LIBRARIES: Final = _libraries()


def written_by_user(file: str | None) -> bool:
    """Whether code is neither ours nor a library's; what was typed in has no file, or one in brackets."""
    if file is None or file.startswith("<"):
        return not str(file).startswith("<frozen")
    return not file.startswith((_OURS, *_LIBRARIES))
