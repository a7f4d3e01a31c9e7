"""Plain text for ledgers and tables: no colour, aligned columns, nothing wider than it must be."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from loadsheet.ledger import Estimate, Item, Ledger
from loadsheet.units import GIB, format_bytes, format_duration, format_number


def columns(rows: Iterable[Sequence[str]], *, left: int = 1, gap: int = 2) -> list[str]:
    """Rows of cells as aligned lines: the first `left` columns to the left, the others to the right."""
    cells = [list(row) for row in rows]
    if not cells:
        return []
    count = max(len(row) for row in cells)
    for row in cells:
        row.extend([""] * (count - len(row)))
    widths = [max(len(row[i]) for row in cells) for i in range(count)]
    lines = []
    for row in cells:
        parts = [row[i].ljust(widths[i]) if i < left else row[i].rjust(widths[i]) for i in range(count)]
        lines.append((" " * gap).join(parts).rstrip())
    return lines


def wrap(text: str, width: int, indent: str = "") -> list[str]:
    """A paragraph broken at `width`, later lines indented."""
    return textwrap.wrap(text, width=max(width, 20), subsequent_indent=indent, break_long_words=False) or [""]


def gib_range(value: Estimate, digits: int = 1) -> str:
    """An estimate in GiB: "153.0–155.7", or one number if both ends print the same."""
    low, high = f"{value.low / GIB:,.{digits}f}", f"{value.high / GIB:,.{digits}f}"
    return low if low == high else f"{low}–{high}"


def amount(item: Item, unit: str) -> str:
    """An item's amount, labelled."""
    value = item.estimate
    if unit == "bytes":
        if value.low == value.high:
            return format_bytes(value.mid)
        return f"{format_bytes(value.low)} – {format_bytes(value.high)}"
    if unit == "s":
        low, high = format_duration(value.low), format_duration(value.high)
        return low if low == high else f"{low} – {high}"
    return f"{format_number(value.mid)} {unit}"


def explain(ledger: Ledger, width: int = 100) -> list[str]:
    """Every item of a ledger with its working, basis and source, children indented."""
    lines: list[str] = []
    for top in ledger.items:
        for depth, item in top.walk():
            pad = "  " * (depth + 1)
            lines += wrap(
                f"{pad}{item.name}: {amount(item, ledger.unit)}  [{item.basis}]", width, pad + "    "
            )
            lines += wrap(f"{pad}  = {item.working}", width, pad + "    ")
            if item.source and not item.children:
                lines += wrap(f"{pad}  source: {item.source}", width, pad + "    ")
    return lines


def many(count: int, one: str, others: str = "") -> str:
    """A number with its noun.

    >>> many(1, "zone"), many(0, "zone"), many(2000, "copy", "copies")
    ('1 zone', '0 zones', '2,000 copies')
    """
    return f"{count:,} {one if count == 1 else others or one + 's'}"
