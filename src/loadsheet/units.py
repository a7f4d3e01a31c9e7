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
#: digits are ASCII; `,` and `_` stand only between groups of three, so that "1,5" is never read as 15
_DIGITS: Final = r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?:_[0-9]{3})+|[0-9]+"
_NUMBER: Final = re.compile(
    rf"(?P<sign>[+-]?)(?:(?P<whole>{_DIGITS})(?:\.(?P<part>[0-9]*))?|\.(?P<only>[0-9]+))"
    r"(?:e(?P<power>[+-]?[0-9]{1,3}))?\s*(?P<unit>[a-z]*)",
    re.IGNORECASE,
)
_LIMIT: Final = 10**30  # anything larger is a typing error, not a quantity
_MAX_TEXT: Final = 60


def _split(text: object, what: str, example: str) -> tuple[int, int, str]:
    """Numerator, denominator (exact, whatever the number of digits) and lower-case unit; else BadInput."""
    raw = str(text).strip() if not isinstance(text, str) or len(text) <= 2 * _MAX_TEXT else ""
    match = _NUMBER.fullmatch(raw) if len(raw) <= _MAX_TEXT else None
    if match is None:
        hint = "write decimals with a point; a comma only groups thousands, as in 8,192" if "," in raw else ""
        raise BadInput(f"{what}: got {shorten(text)}, expected a quantity such as {example}", hint)
    part = match["part"] or match["only"] or ""
    digits = int((match["whole"] or "").replace("_", "").replace(",", "") + part)
    power = int(match["power"] or 0) - len(part)
    top, bottom = digits * 10 ** max(power, 0), 10 ** max(-power, 0)
    if top > _LIMIT * bottom:
        raise BadInput(f"{what}: got {shorten(text)}, expected a quantity up to 1e30 such as {example}")
    return -top if match["sign"] == "-" else top, bottom, match["unit"].lower()


def _parse(text: object, what: str, example: str, table: dict[str, Any]) -> tuple[Any, int]:
    """Numerator and denominator in base units."""
    top, bottom, unit = _split(text, what, example)
    if unit not in table:
        raise BadInput(
            f"{what}: got unit {shorten(unit)} in {shorten(text)}, expected a quantity such as {example}",
            "units known here: " + ", ".join(u for u in table if u),
        )
    return top * table[unit], bottom


def parse_bytes(text: object, what: str = "size") -> int:
    """Bytes from "80GiB", "24 GB" or a plain number of bytes; BadInput if negative or not a size.

    >>> parse_bytes("80GiB"), parse_bytes("24 GB")
    (85899345920, 24000000000)
    """
    top, bottom = _parse(text, what, "`80GiB` or `24GB`", _BYTES)
    if top < 0:
        raise BadInput(f"{what}: got {shorten(text)}, expected no negative size")
    return int((2 * top + bottom) // (2 * bottom))  # rounded to whole bytes


def parse_count(text: object, what: str = "count") -> int:
    """A whole number from "15T", "300B", "1.5e12" or "8192"; BadInput if it is not a positive one.

    >>> parse_count("15T"), parse_count("8_192"), parse_count("123456789012345678901")
    (15000000000000, 8192, 123456789012345678901)
    """
    top, bottom = _parse(text, what, "`8192`, `300B` or `15T`", _COUNT)
    if top <= 0 or top % bottom:
        raise BadInput(f"{what}: got {shorten(text)}, expected a positive whole number")
    return int(top // bottom)


def parse_duration(text: object, what: str = "duration") -> float:
    """Seconds from "24h", "5min", "90 s", "2d"; a bare number is seconds; BadInput if negative.

    >>> parse_duration("5min"), parse_duration("1.5h")
    (300.0, 5400.0)
    """
    top, bottom = _parse(text, what, "`24h`, `5min` or `90s`", {"": 1, **_SECONDS})
    if top < 0:
        raise BadInput(f"{what}: got {shorten(text)}, expected no negative duration")
    return float(top / bottom)


def parse_share(text: object, what: str = "share") -> float:
    """A share from "0.4" or "40%"; BadInput if it is no number, negative or above 1.

    >>> parse_share("0.4"), parse_share("40%")
    (0.4, 0.4)
    """
    raw = str(text).strip()
    percent = raw.endswith("%")
    try:
        top, bottom, unit = _split(raw[:-1] if percent else text, what, "`0.4` or `40%`")
    except BadInput as error:
        raise BadInput(
            f"{what}: got {shorten(text)}, expected a share such as `0.4` or `40%`", error.hint
        ) from None
    if percent:
        bottom *= 100
    if unit or not 0 <= top <= bottom:
        hint = f"did you mean `{raw}%`?" if not unit and not percent and bottom < top <= 100 * bottom else ""
        raise BadInput(
            f"{what}: got {shorten(text)}, expected a share from 0 to 1 such as `0.4` or `40%`", hint
        )
    return top / bottom


_SCALES: Final = (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB))
_PREFIXES: Final = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


def format_bytes(amount: float, digits: int = 2) -> str:
    """Bytes in the binary unit that reads best, labelled.

    >>> format_bytes(16_060_522_496), format_bytes(327_680), format_bytes(12), format_bytes(GIB - 1)
    ('14.96 GiB', '320.00 KiB', '12 B', '1.00 GiB')
    """
    for label, scale in _SCALES:
        if _reaches(amount, scale, digits, 1024):
            return f"{amount / scale:,.{digits}f} {label}"
    return f"{amount:,.0f} B"


def _reaches(amount: float, scale: float, digits: int, step: int) -> bool:
    """Whether an amount is printed in this unit: at least one of it, also after rounding in the next smaller."""
    below = 0 if scale in (KIB, 1e3) else digits
    return abs(amount) >= scale or round(abs(amount) / (scale / step), below) >= step


def gib(amount: float, digits: int = 2) -> str:
    """Bytes in GiB, without the label, for table columns that carry it in the header."""
    return f"{amount / GIB:,.{digits}f}"


def format_si(amount: float, unit: str = "", digits: int = 2) -> str:
    """A number with a decimal prefix and its unit.

    >>> format_si(989.4e12, "FLOP/s"), format_si(8_030_261_248)
    ('989.40 TFLOP/s', '8.03 G')
    """
    for prefix, scale in _PREFIXES:
        if _reaches(amount, scale, digits, 1000):
            return f"{amount / scale:,.{digits}f} {prefix}{unit}"
    return f"{amount:,.{digits}f} {unit}".rstrip()


def format_params(count: float) -> str:
    """A parameter count as people say it: 8.03B, 124M.

    >>> format_params(8_030_261_248), format_params(124_439_808), format_params(671_026_419_200)
    ('8.03B', '124M', '671B')
    """
    for suffix, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if count >= scale * 0.9995:  # 999.5M is printed as 1B
            value = count / scale
            return f"{value:.0f}{suffix}" if value >= 100 else f"{value:.3g}{suffix}"
    return f"{count:.0f}"


#: (from, seconds in the unit, format, name); a duration belongs to the first row whose limit it stays under
_DURATIONS: Final = (
    (0.9995e-3, 1e-6, ".3g", "µs"),
    (0.9995, 1e-3, ".3g", "ms"),
    (59.95, 1.0, ".3g", "s"),
    (3599.7, 60.0, ".2f", "min"),
    (172_800.0, 3600.0, ".2f", "h"),
    (math.inf, 86400.0, ",.1f", "days"),
)


def format_duration(seconds: float) -> str:
    """Seconds as a person reads them.

    >>> format_duration(0.00479), format_duration(90), format_duration(7200), format_duration(2e6)
    ('4.79 ms', '1.50 min', '2.00 h', '23.1 days')
    """
    for limit, unit, digits, name in _DURATIONS:
        if seconds < limit:
            value = seconds / unit
            return f"{value:{digits}} {name}" if value < 1e6 else f"{value:.3g} {name}"
    return f"{seconds} s"  # infinite, or not a number


def format_money(amount: float, currency: str = "") -> str:
    """An amount of money with the user's own currency; two decimals below 1000, and more where it is small.

    >>> format_money(10.49), format_money(1014947.07, "USD"), format_money(0.00732), format_money(0.05)
    ('10.49', '1,014,947 USD', '0.0073', '0.05')
    """
    size = abs(amount)
    if 0 < size < 0.1:  # two digits that count
        text = f"{amount:.{min(1 - math.floor(math.log10(size)), 12)}f}".rstrip("0")
        text += "0" * (2 - len(text.partition(".")[2]))
    else:
        text = f"{amount:,.2f}" if size < 1000 else f"{amount:,.0f}"
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
