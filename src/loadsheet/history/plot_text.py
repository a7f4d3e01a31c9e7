"""Curves as text: dots of Braille where there is one curve, letters where there are several."""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Sequence
from typing import Final

from loadsheet.errors import one_line
from loadsheet.history.plot_curves import Axis, Curve, axis_label, remarks, span, thinned, unit_of
from loadsheet.text import wrap

_LETTERS: Final = string.ascii_lowercase + string.ascii_uppercase
_GUTTER: Final = 10  # columns for the numbers at the left
_SHARED: Final = "#"
_PLAIN: Final = {ord("β"): "b", ord("·"): "-"}
#: bits of the dots of a Braille character (Unicode, block U+2800), by row and column
_DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def page(
    panel: Sequence[Curve], axis: Axis, beta: float, width: int, *, unicode: bool = True, height: int = 16
) -> list[str]:
    """Lines of text, at most `width` wide, that show some curves over one another."""
    columns, rows = max(width - _GUTTER - 2, 20), height
    begin, end = span(panel)
    values = [value for curve in panel for value in curve.smooth]
    low, high = (min(values), max(values)) if values else (0.0, 0.0)
    if low == high:  # a flat line in the middle
        low, high = low - (abs(low) / 2 or 1.0), high + (abs(high) / 2 or 1.0)
    braille = unicode and len(panel) == 1
    across, down = (2, 4) if braille else (1, 1)
    cells: dict[tuple[int, int], set[int]] = {}
    for number, curve in enumerate(panel):
        xs, ys = thinned(curve.x, curve.smooth, begin, end, columns * across)
        points = [
            (
                _place(x, begin, end, columns * across),
                rows * down - 1 - _place(y, low, high, rows * down),
            )
            for x, y in zip(xs, ys, strict=True)
        ]
        for column, row in _joined(points):
            cells.setdefault((column, row), set()).add(number)
    body = _braille(cells, columns, rows) if braille else _letters(cells, columns, rows, len(panel))
    bar, corner, line = ("│", "└", "─") if unicode else ("|", "+", "-")
    marks = {0: high, rows // 2: high - (high - low) * (rows // 2 + 0.5) / rows, rows - 1: low}
    texts = _distinct(list(marks.values()))
    sides = dict(zip(marks, texts, strict=True))
    metrics = ", ".join(dict.fromkeys(_named(curve.metric) for curve in panel))
    lines = [f"{metrics}"[:width]]
    lines += [f"{sides.get(n, ''):>{_GUTTER}} {bar}{text}".rstrip() for n, text in enumerate(body)]
    lines.append(" " * (_GUTTER + 1) + corner + line * columns)
    label, scale = axis_label(axis, end - begin)
    lines.append(" " * (_GUTTER + 2) + _ends(begin / scale, end / scale, columns))
    below = len(lines) - 1  # what follows stands under the axis and above its numbers
    lines += [" " * (_GUTTER + 2) + text.center(columns).rstrip() for text in wrap(label, columns)]
    resumed = [place for curve in panel for place in curve.resumed]
    if resumed:
        lines.insert(below, f"{'resumed':>{_GUTTER}}  {_row(resumed, begin, end, columns, '^')}".rstrip())
    odd = [place for curve in panel for place, _ in curve.odd]
    if odd:
        lines.insert(below, f"{'not finite':>{_GUTTER}}  {_row(odd, begin, end, columns, 'x')}".rstrip())
    for number, curve in enumerate(panel):
        lines += _legend(curve, number, len(panel), axis, width)
    if len(panel) > 1 and any(len(who) > 1 for who in cells.values()):
        lines.append(f"{_SHARED} several of them")
    lines += wrap("; ".join(remarks(panel, beta, picture=False)), width)
    return lines if unicode else [text.translate(_PLAIN) for text in lines]


def _named(metric: str) -> str:
    unit = unit_of(metric)
    return one_line(metric) + (f" ({unit})" if unit else "")


def _place(value: float, low: float, high: float, count: int) -> int:
    """Which of `count` equal parts of low … high a value lies in."""
    if not high > low:
        return 0
    return min(max(int((value - low) / (high - low) * count), 0), count - 1)


def _joined(points: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
    """The cells of the lines from each point to the next."""
    found = set(points)
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        length = max(abs(x1 - x0), abs(y1 - y0))
        for n in range(1, length):
            found.add((round(x0 + (x1 - x0) * n / length), round(y0 + (y1 - y0) * n / length)))
    return found


def _braille(cells: dict[tuple[int, int], set[int]], columns: int, rows: int) -> list[str]:
    grid = [[0] * columns for _ in range(rows)]
    for x, y in cells:
        grid[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
    return ["".join(chr(0x2800 + dots) if dots else " " for dots in row) for row in grid]


def _letters(cells: dict[tuple[int, int], set[int]], columns: int, rows: int, count: int) -> list[str]:
    grid = [[" "] * columns for _ in range(rows)]
    for (x, y), who in cells.items():
        grid[y][x] = _SHARED if len(who) > 1 else _letter(min(who), count)
    return ["".join(row) for row in grid]


def _letter(number: int, count: int) -> str:
    return "*" if count == 1 else _LETTERS[number % len(_LETTERS)]


def _row(places: Sequence[float], begin: float, end: float, columns: int, mark: str) -> str:
    row = [" "] * columns
    for place in places:
        row[_place(place, begin, end, columns)] = mark
    return "".join(row)


def _ends(begin: float, end: float, columns: int) -> str:
    if begin == end:
        return _distinct([begin])[0]
    first, last = _distinct([begin, end])
    return f"{first}{last:>{max(columns - len(first), len(last) + 1)}}"


def _distinct(values: Sequence[float]) -> list[str]:
    """Numbers with as many digits as it takes to tell them apart."""
    for digits in range(4, 10):
        texts = [_number(value, digits) for value in values]
        if len(set(texts)) == len(set(values)):
            break
    return [
        text if len(text) <= _GUTTER else f"{value:.2e}" for text, value in zip(texts, values, strict=True)
    ]


def _number(value: float, digits: int) -> str:
    if value.is_integer() and abs(value) < 1e7:
        return f"{int(value):,}"
    return f"{value:.{digits}g}"


def _legend(curve: Curve, number: int, count: int, axis: Axis, width: int) -> list[str]:
    """Which curve a letter is, and its last and lowest values as they are drawn."""
    head = f"{_letter(number, count)} " if count > 1 else ""
    parts = [f"{head}{one_line(curve.label)[:100]} · {_named(curve.metric)}"]
    if curve.runs > 1:
        parts.append(f"mean of {curve.runs} seeds")
    elif curve.grouped:
        parts.append("one seed")
    if curve.smooth:
        _, scale = axis_label(axis, span([curve])[1] - span([curve])[0])
        at = min(range(len(curve.smooth)), key=lambda n: curve.smooth[n])
        where = [_number(curve.x[n] / scale, 4) for n in (-1, at)]
        parts.append(
            f"last {curve.smooth[-1]:.5g} at {where[0]}, lowest {curve.smooth[at]:.5g} at {where[1]}"
        )
    for what, wanted in (("not a number", math.isnan), ("infinite", math.isinf)):
        if times := sum(wanted(value) for _, value in curve.odd):
            parts.append(f"{what}: {times:,}")
    return wrap(" · ".join(parts), width, "  ")
