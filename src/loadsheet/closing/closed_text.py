"""A closed sheet as a page: the items, where the hours went, which assumption was off."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from loadsheet.closing.evidence import number
from loadsheet.closing.hours import Hours, percent, ratio_text, signed_percent
from loadsheet.closing.items import Row
from loadsheet.closing.signed_text import money
from loadsheet.errors import one_line
from loadsheet.text import columns, wrap
from loadsheet.units import format_bytes, format_duration

_INDENT = "  "


def render(closed: Any, width: int) -> str:
    """The whole page."""
    lines = _head(closed, width)
    lines += ["", *_table(closed.rows, closed.sides, width)]
    lines += ["", *_hours(closed.hours, width)]
    for sentence in closed.assumptions:
        lines += wrap(sentence, width, _INDENT)
    for problem in closed.sides.evidence.unread:
        lines += wrap(f"Not read: {problem}", width, _INDENT)
    return "\n".join(lines)


def _head(closed: Any, width: int) -> list[str]:
    sides = closed.sides
    e, sheet = sides.evidence, sides.sheet
    recipe, model, cluster = (sheet.get(k) if isinstance(sheet.get(k), Mapping) else {} for k in _PARTS)
    what = " · ".join(
        one_line(str(part))[:80]
        for part in (
            model.get("name"),
            recipe.get("task"),
            f"{recipe.get('precision')}, {recipe.get('optimizer')}",
            f"batch {recipe.get('batch')} × {recipe.get('seq')} tokens",
            f"{sides.gpus} × {cluster.get('gpu')}",
        )
    )
    state = "done" if sides.finished else "not done: compared so far"
    steps = f"{e.completed:,} of {sides.steps:,} steps"
    lives = len(e.lives)
    run = f"run {one_line(e.path.name)[:60]}: {state}, {steps}, {lives} {'life' if lives == 1 else 'lives'}"
    signed = e.signed["signed"]
    stamp = number(signed, "time")
    day = (
        "at an unknown time"
        if stamp is None
        else time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(min(stamp, 1e11)))
    )
    when = {
        True: "before the run began",
        False: "AFTER the run had begun",
        None: "the log does not say when it began",
    }
    sheet_line = (
        f"sheet {str(signed.get('sha256'))[:10]}, signed {day} by loadsheet "
        f"{one_line(str(signed.get('version')))[:20]}, {when[closed.signed_before]}"
    )
    return [part for line in (what, run, sheet_line) for part in wrap(line, width, _INDENT)]


_PARTS = ("recipe", "model", "cluster")


# --- the items ------------------------------------------------------------------------------------------------


def _table(rows: tuple[Row, ...], sides: Any, width: int) -> list[str]:
    """One line for each item; the range and then the basis go where there is no room. Reasons stand below."""
    notes: list[str] = []
    cells = [["", "predicted", "low – high", "measured", "ratio", "", "basis"]]
    for row in rows:
        mark = ""
        if said := _note(row):
            if said not in notes:
                notes.append(said)
            mark = f" ({notes.index(said) + 1})"
        cells.append(
            [
                f"{row.label}, {sides.currency}" if row.unit == "money" and sides.currency else row.label,
                "not predicted" if row.predicted is None else shown(row, row.predicted.mid),
                _range(row),
                "not measured" if row.measured is None else shown(row, row.measured),
                "–" if row.ratio is None else ratio_text(row.ratio),
                {True: "inside", False: "OUTSIDE", None: "–"}[row.inside] + mark,
                row.basis if row.predicted is not None else "",
            ]
        )
    for drop in (None, 6, 2):
        if drop is not None:
            cells = [row[:drop] + row[drop + 1 :] for row in cells]
        lines = columns(cells)
        if max(map(len, lines)) <= width:
            break
    else:
        lines = [part for row in cells for part in wrap("  ".join(c for c in row if c), width, _INDENT)]
    for place, said in enumerate(notes, start=1):
        lines += wrap(f"({place}) {said}", width, "    ")
    return lines


def _note(row: Row) -> str:
    """What must be known of an item: why a side is missing, or what else."""
    if row.predicted is None or row.measured is None:
        return row.why
    return row.note


def _range(row: Row) -> str:
    if row.predicted is None:
        return ""
    low, high = shown(row, row.predicted.low), shown(row, row.predicted.high)
    return "" if low == high else f"{low} – {high}"


def shown(row: Row, value: float) -> str:
    """A value of an item in its unit, as a person reads it."""
    if row.unit == "bytes":
        return format_bytes(value)
    if row.unit == "s":
        return format_duration(value)
    if row.unit == "share":
        return percent(value)
    if row.unit == "money":
        return money(value)
    if row.unit == "per_second":
        return f"{value:,.0f}"
    return f"{value:,.1f}".removesuffix(".0")


# --- where the hours went --------------------------------------------------------------------------------------


def _hours(hours: Hours | str, width: int) -> list[str]:
    if isinstance(hours, str):
        return []
    lines = wrap(
        f"Machine time {format_duration(hours.predicted)} predicted, {format_duration(hours.measured)} measured: "
        f"{ratio_text(hours.ratio)} times",
        width,
        _INDENT,
    )
    parts = sorted((p for p in hours.parts if p.seconds), key=lambda p: -abs(p.seconds))
    out = []
    for part in parts:
        amount, share = _signed(part.seconds), signed_percent(part.seconds / hours.predicted)
        front = f"  {amount:>12}  {share:>7}  "
        if width - len(front) < 30:
            out += wrap(f"  {amount} ({share}) {part.name}: {part.what}", width, "    ")
        else:
            first, *rest = wrap(f"{part.name}: {part.what}", width - len(front))
            out += [front + first, *(" " * len(front) + more for more in rest)]
    return [*lines, *out, ""]


def _signed(seconds: float) -> str:
    return f"{'+' if seconds >= 0 else '−'}{format_duration(abs(seconds))}"
