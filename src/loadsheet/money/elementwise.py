"""Functions that the formulas of money need for numbers and for arrays alike, without importing NumPy."""

from __future__ import annotations

import math
from typing import Any, Final

from loadsheet.units import smallest

#: e to a greater power is never needed: what waits so many mean times for its chance never comes
MOST: Final = 300.0


def functions(*values: Any) -> Any:
    """`math`, or the namespace of the first value that is an array: both have exp, expm1, log1p, sqrt."""
    for value in values:
        if hasattr(value, "__array_namespace__"):
            return value.__array_namespace__()
    return math


def bounded(exponent: Any) -> Any:
    """The exponent, at most 300: its exponential and the square of that stay finite.

    >>> bounded(2.0), bounded(1e9)
    (2.0, 300.0)
    """
    return smallest(exponent, MOST)
