"""What a number becomes in a smaller floating-point format, by its bits alone (IEEE 754, halves to even)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Format:
    """A binary format with a sign bit, `exponent` and `mantissa` bits, subnormals and infinity."""

    exponent: int
    mantissa: int

    @property
    def bytes(self) -> int:
        """Bytes of one number."""
        return (1 + self.exponent + self.mantissa) // 8

    @property
    def bias(self) -> int:
        """The largest exponent: 2^(e-1) - 1."""
        return 2 ** (self.exponent - 1) - 1

    @property
    def largest(self) -> float:
        """The largest finite number: (2 - 2^-m)·2^bias.

        >>> FP16.largest
        65504.0
        """
        return (2 - 2.0**-self.mantissa) * 2.0**self.bias

    @property
    def smallest(self) -> float:
        """The smallest number above 0: 2^(1 - bias - m), the step of the subnormals."""
        return 2.0 ** (1 - self.bias - self.mantissa)

    @property
    def step(self) -> float:
        """The step above 1: 2^-m."""
        return 2.0**-self.mantissa

    @property
    def digits(self) -> float:
        """Decimal digits: log10 of 2^(m+1).

        >>> round(BF16.digits, 2)
        2.41
        """
        return (self.mantissa + 1) * math.log10(2)

    def round(self, value: float) -> float:
        """The nearest number of the format, ties to the even one; infinity beyond the largest.

        >>> FP16.round(1e-6), FP16.round(2e-8), BF16.round(2e-8)
        (1.0132789611816406e-06, 0.0, 2.0023435354232788e-08)
        """
        if value == 0 or not math.isfinite(value):
            return value
        power = max(math.frexp(value)[1] - 1, 1 - self.bias)  # subnormals share the smallest exponent
        step = 2.0 ** (power - self.mantissa)
        rounded = round(value / step) * step  # Python rounds halves to even
        return math.copysign(math.inf, value) if abs(rounded) > self.largest else rounded


FP32: Final = Format(8, 23)
FP16: Final = Format(5, 10)
BF16: Final = Format(8, 7)
