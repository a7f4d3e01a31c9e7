"""A signed sheet and its end: what was predicted beside what was measured.

Signing needs the standard library only; closing reads a log, which takes the `run` extra. So the two are
found when they are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadsheet.closing.closed import Closed as Closed
    from loadsheet.closing.closed import close as close
    from loadsheet.closing.signing import DoesNotFit as DoesNotFit
    from loadsheet.closing.signing import sign as sign

_PUBLIC = {"Closed": "closed", "DoesNotFit": "signing", "close": "closed", "sign": "signing"}

__all__ = sorted(_PUBLIC)  # noqa: PLE0605  (the names come from the table above)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
