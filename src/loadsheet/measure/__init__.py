"""The real thing on this machine: parameters, kept tensors, FLOPs, peaks, matmul rates (needs torch)."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from loadsheet.errors import LoadsheetError


class _Measure(ModuleType):
    """This package, which can be called: `ls.measure(module, inputs)` is `measure.module.measure`."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        torch_or_error()
        from loadsheet.measure.module import measure

        return measure(*args, **options)


sys.modules[__name__].__class__ = _Measure


def torch_or_error() -> Any:
    """The torch module; LoadsheetError with the way to get it if it is not installed."""
    try:
        import torch
    except ImportError:
        raise LoadsheetError("measuring: torch is not installed", "pip install 'loadsheet[torch]'") from None
    return torch
