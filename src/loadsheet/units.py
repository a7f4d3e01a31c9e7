"""Read and print quantities; the helpers that let one formula work on numbers and on arrays.

Inside, everything is in base units: bytes, FLOP, seconds. GiB = 2^30 and GB = 10^9 are told apart
here, at the printing edge, and every printed number carries its label.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

from loadsheet.errors import BadInput, shorten

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TIB: Final = 1 << 40
GB: Final = 10**9

_BYTES: Final = {
    "b": 1, "": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "pb": 10**15,
    "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB, "pib": 1 << 50,
}  # fmt: skip
_COUNT: Final = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12, "p": 10**15}
_SECONDS: Final = {
    "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0, "ms": 1e-3,
    "m": 60.0, "min": 60.0, "minute": 60.0, "minutes": 60.0,
    "h": 3600.0, "hr": 3600.0, "hour": 3600.0, "hours": 3600.0,
    "d": 86400.0, "day": 86400.0, "days": 86400.0,
}  # fmt: skip
_NUMBER: Final = re.compile(r"([+-]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-z]*)", re.IGNORECASE)
_LIMIT: Final = 1e30  # anything larger is a typing error, not a quantity


def _split(text: object, what: str, example: str) -> tuple[float, str]:
    """A number and its lower-case unit from text such as "2.5 GiB"; BadInput if it is not that."""
    raw = str(text).strip()
    match = _NUMBER.fullmatch(raw) if len(raw) <= 40 else None
    if match is None:
        raise BadInput(f"{what}: got {shorten(text)}, expected a quantity such as {example}")
    value = float(match[1].replace("_", "").replace(",", ""))
    if not math.isfinite(value) or abs(value) > _LIMIT:
        raise BadInput(f"{what}: got {shorten(text)}, expected a finite quantity such as {example}")
    return value, match[2].lower()


def _parse(text: object, what: str, example: str, table: dict[str, Any]) -> float:
    value, unit = _split(text, what, example)
    if unit not in table:
        raise BadInput(
            f"{what}: got unit {shorten(unit)} in {shorten(text)}, expected a quantity such as {example}",
            "units known here: " + ", ".join(u for u in table if u),
        )
    return float(value * table[unit])


def parse_bytes(text: object, what: str = "size") -> int:
    """Bytes from "80GiB", "24 GB" or a plain number of bytes; BadInput if negative or not a size.

    >>> parse_bytes("80GiB"), parse_bytes("24 GB")
    (85899345920, 24000000000)
    """
    value = _parse(text, what, "`80GiB` or `24GB`", _BYTES)
    if value < 0:
        raise BadInput(f"{what}: got {shorten(text)}, expected no negative size")
    return round(value)


def parse_count(text: object, what: str = "count") -> int:
    """A whole number from "15T", "300B", "1.5e12" or "8192"; BadInput if it is not a positive one.

    >>> parse_count("15T"), parse_count("8_192")
    (15000000000000, 8192)
    """
    value = _parse(text, what, "`15T`, `300B` or `1e12`", _COUNT)
    if value < 1 or value != int(value):
        raise BadInput(f"{what}: got {shorten(text)}, expected a positive whole number")
    return int(value)


def parse_duration(text: object, what: str = "duration") -> float:
    """Seconds from "24h", "5min", "90 s", "2d"; a bare number is seconds; BadInput if negative.

    >>> parse_duration("5min"), parse_duration("1.5h")
    (300.0, 5400.0)
    """
    value = _parse(text, what, "`24h`, `5min` or `90s`", {"": 1.0, **_SECONDS})
    if value < 0:
        raise BadInput(f"{what}: got {shorten(text)}, expected no negative duration")
    return value


_SCALES: Final = (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB))


def format_bytes(amount: float, digits: int = 2) -> str:
    """Bytes in the binary unit that reads best, labelled.

    >>> format_bytes(16_060_522_496), format_bytes(327_680), format_bytes(12)
    ('14.96 GiB', '320.00 KiB', '12 B')
    """
    for label, scale in _SCALES:
        if abs(amount) >= scale:
            return f"{amount / scale:,.{digits}f} {label}"
    return f"{amount:,.0f} B"


def gib(amount: float, digits: int = 2) -> str:
    """Bytes in GiB, without the label, for table columns that carry it in the header."""
    return f"{amount / GIB:,.{digits}f}"


def format_si(amount: float, unit: str = "", digits: int = 2) -> str:
    """A number with a decimal prefix and its unit.

    >>> format_si(989.4e12, "FLOP/s"), format_si(8_030_261_248)
    ('989.40 TFLOP/s', '8.03 G')
    """
    for prefix, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(amount) >= scale:
            return f"{amount / scale:,.{digits}f} {prefix}{unit}"
    return f"{amount:,.{digits}f} {unit}".rstrip()


def format_params(count: float) -> str:
    """A parameter count as people say it: 8.03B, 124M.

    >>> format_params(8_030_261_248), format_params(124_439_808), format_params(671_026_419_200)
    ('8.03B', '124M', '671B')
    """
    for suffix, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if count >= scale:
            value = count / scale
            return f"{value:.0f}{suffix}" if value >= 100 else f"{value:.3g}{suffix}"
    return f"{count:.0f}"


def format_duration(seconds: float) -> str:
    """Seconds as a person reads them.

    >>> format_duration(0.00479), format_duration(90), format_duration(7200), format_duration(2e6)
    ('4.79 ms', '1.50 min', '2.00 h', '23.1 days')
    """
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    if seconds < 3600:
        return f"{seconds / 60:.2f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.2f} h"
    return f"{seconds / 86400:,.1f} days"


def format_money(amount: float, currency: str = "") -> str:
    """An amount of money with the user's own currency; two decimals below 1000.

    >>> format_money(10.49), format_money(1014947.07, "USD")
    ('10.49', '1,014,947 USD')
    """
    text = f"{amount:,.2f}" if abs(amount) < 1000 else f"{amount:,.0f}"
    return f"{text} {currency}".rstrip()


def format_number(value: Any) -> str:
    """A number inside a working: whole numbers with separators, others with four digits.

    >>> format_number(8030261248), format_number(0.5), format_number(9.894e14)
    ('8,030,261,248', '0.5', '9.894e+14')
    """
    if hasattr(value, "__array_namespace__"):
        return f"array{tuple(value.shape)}"
    if float(value).is_integer() and abs(value) < 1e14:
        return f"{int(value):,}"
    return f"{value:.4g}"


# --- one formula, two uses: the same expression for numbers and for arrays -----------------------


def _namespace(values: tuple[Any, ...]) -> Any:
    for value in values:
        if hasattr(value, "__array_namespace__"):
            return value.__array_namespace__()
    return None


def largest(*values: Any) -> Any:
    """The greatest of the values, element by element where one is an array."""
    xp = _namespace(values)
    if xp is None:
        return max(values)
    result = values[0]
    for value in values[1:]:
        result = xp.maximum(result, value)
    return result


def smallest(*values: Any) -> Any:
    """The least of the values, element by element where one is an array."""
    xp = _namespace(values)
    if xp is None:
        return min(values)
    result = values[0]
    for value in values[1:]:
        result = xp.minimum(result, value)
    return result


def where(condition: Any, yes: Any, no: Any) -> Any:
    """`yes` where the condition holds, else `no`, element by element where one is an array."""
    xp = _namespace((condition, yes, no))
    return (yes if condition else no) if xp is None else xp.where(condition, yes, no)


def ceil_div(a: Any, b: Any) -> Any:
    """a / b rounded up, for whole numbers and arrays of them."""
    return -(-a // b)
