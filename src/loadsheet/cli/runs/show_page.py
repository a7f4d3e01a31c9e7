"""What `runs show` prints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from loadsheet.cli.runs.list_page import capital, number, starred
from loadsheet.errors import one_line
from loadsheet.history.configs import cell, flat
from loadsheet.history.lane import draw, listed
from loadsheet.history.levels import Level
from loadsheet.history.show import Account
from loadsheet.money.price import Price
from loadsheet.text import columns, wrap
from loadsheet.units import format_bytes, format_duration, format_si

_METRICS: Final = 30
_CHECKPOINTS: Final = 12
_EVENTS: Final = 30

#: of `measured.json`, per attempt: key, heading, how it is printed
_MEASURED: Final[tuple[tuple[str, str, Callable[[float], str]], ...]] = (
    ("tokens_per_second", "tokens/s", lambda value: format_si(value, "", 1)),
    ("mfu", "MFU", lambda value: f"{value * 100:.1f} %"),
    ("data_wait_share", "data wait", lambda value: f"{value * 100:.1f} %"),
    ("saves", "saves", lambda value: f"{value:,.0f}"),
    ("save_stall_seconds", "save stall", format_duration),
    ("save_total_seconds", "save total", format_duration),
    ("peak_gpu_allocated_bytes", "GPU allocated", format_bytes),
    ("peak_gpu_reserved_bytes", "GPU reserved", format_bytes),
    ("peak_device_bytes", "device", format_bytes),
    ("peak_host_bytes", "host memory", format_bytes),
)


def page(found: Account, room: int, every_event: bool) -> str:
    """The page: where it stands, what it was, what happened, what came out, how far it can be trusted."""
    lines = _head(found, room)
    for title, part in (
        ("config", _config(found, room)),
        ("attempts", _attempts(found, room)),
        ("steps", draw(found.story, found.row.goal, room - 2)),
        ("events", _events(found, room, every_event)),
        ("metrics", _metrics(found, room)),
        ("measured", _measured(found.measured, room)),
        ("checkpoints", _checkpoints(found, room)),
        ("signed sheet", _sheet(found, room)),
        ("reproducibility", reproducibility(found.levels, room)),
        ("problems", [line for each in found.problems for line in wrap(f"! {each}", room - 2, "  ")]),
    ):
        if part:
            lines += ["", title, *(f"  {line}".rstrip() for line in part)]
    return "\n".join(lines)


def _head(found: Account, room: int) -> list[str]:
    row = found.row
    goal = f" of {row.goal:,}" if row.goal is not None else ""
    attempts = f"{row.attempts} attempt{'s' if row.attempts != 1 else ''}"
    parts = [
        f"{row.state} after {row.step:,}{goal} steps",
        attempts,
        format_duration(row.seconds),
        format_bytes(row.nbytes),
    ]
    if row.lost_steps:
        parts.append(f"{row.lost_steps:,} {_plural('step', row.lost_steps)} run again")
    if row.unsaved_steps:
        parts.append(
            f"saved to {row.step - row.unsaved_steps:,}: {row.unsaved_steps:,} "
            f"{_plural('step', row.unsaved_steps)} will be run again"
        )
    return [
        *wrap(f"{one_line(row.fingerprint)}  {' · '.join(parts)}", room, "  "),
        one_line(str(row.path)),  # whole, so that it can be copied
    ]


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"


def _config(found: Account, room: int) -> list[str]:
    rows = [[one_line(key), cell(value, max(room // 2, 24))] for key, value in flat(found.row.config).items()]
    rows += [
        [f"{one_line(key)} (excluded)", cell(value, max(room // 2, 24))]
        for key, value in found.row.excluded.items()
    ]
    return [line[: room - 2] for line in columns(rows, left=2)]


def _attempts(found: Account, room: int) -> list[str]:
    lines = []
    for each in found.attempts:
        begun = (
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each.started))
            if each.started
            else "time not known"
        )
        lines += wrap(f"{each.number}  {begun}, commit {each.code}, {each.machine}", room - 2, "   ")
        lines += [line for text in each.changes for line in wrap(f"   changed: {text}", room - 2, "     ")]
    return lines


def _events(found: Account, room: int, every: bool) -> list[str]:
    events = found.story.events
    begin = min((event.time for event in events if event.time is not None), default=None)
    rows = [row for event in events for row in listed([event], begin)] if every else listed(events, begin)
    cut = [] if every else rows[_EVENTS:]
    if cut:
        rows = [*rows[: _EVENTS // 2], *rows[-(_EVENTS // 2) :]]
    lines = []
    texts = [row.pop() for row in rows]
    heads = columns([["when", "attempt", "step"], *rows], left=0)
    for at, (head, text) in enumerate(zip(heads, ["", *texts], strict=True)):
        indent = " " * (max(map(len, heads)) + 2)
        lines += wrap(f"{head:<{len(indent) - 2}}  {text}".rstrip(), room - 2, indent) if text else [head]
        if cut and at == _EVENTS // 2:
            lines.append(f"… {len(cut)} more: --events lists them")
    return lines if rows else []


def _metrics(found: Account, room: int) -> list[str]:
    metrics = found.row.metrics
    if not metrics:
        return []
    rows = [["", "last", "least", "at step", "greatest", "at step", "values"]]
    for name, m in list(metrics.items())[:_METRICS]:
        rows.append(
            [
                cell(name, 28),
                number(m.last),
                *(["–", ""] if m.min is None else [number(m.min), f"{m.min_step:,}"]),
                *(["–", ""] if m.max is None else [number(m.max), f"{m.max_step:,}"]),
                f"{m.count:,}",
            ]
        )
    lines = columns(rows)
    while max(map(len, lines)) > room - 2 and len(rows[0]) > 2:
        rows = [row[:-1] for row in rows]
        lines = columns(rows)
    if len(metrics) > _METRICS:
        lines.append(f"… {len(metrics) - _METRICS} more: --json has them")
    for name, m in list(metrics.items())[:_METRICS]:
        if m.nonfinite:
            ends = "" if math.isfinite(m.last) else ", and the last one is none"
            text = (
                f"! {cell(name, 28)}: {m.nonfinite:,} of {m.count:,} values {'is' if m.nonfinite == 1 else 'are'} no "
                f"finite number, the first at step {m.nonfinite_step:,}{ends}"
            )
            lines += wrap(text, room - 2, "  ")
    if found.measure is not None and (best := found.measure.of(metrics)) is not None:
        text = f"{found.measure.said}: {number(best[0])} at step {best[1]:,}{starred(found.measure)}"
        lines += wrap(text, room - 2, "  ")
    return lines


def _measured(entries: Mapping[str, Mapping[str, Any]], room: int) -> list[str]:
    """What the newest attempts measured, a line each under headings; what was not measured is left out."""
    rows = []
    for number_of, entry in list(entries.items())[-6:]:
        row = {"attempt": one_line(str(number_of))[:8], "step time": _median(entry)}
        for key, heading, shown in _MEASURED:
            value = entry.get(key)
            good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30
            row[heading] = shown(float(value)) if good and value is not None else ""
        rows.append(row)
    if not rows:
        return []
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    lines: list[str] = []
    while names:  # as many columns as fit, then the others below
        count = len(names)
        while True:
            part = columns(
                [names[:count], *([row[name] or "–" for name in names[:count]] for row in rows)], left=0
            )
            if count <= 1 or max(map(len, part)) <= room - 2:
                break
            count -= 1
        lines += part
        names = names[count:]
    return lines


def _median(entry: Mapping[str, Any]) -> str:
    found = entry.get("step_seconds")
    median = found.get("median") if isinstance(found, dict) else None
    return format_duration(median) if isinstance(median, int | float) and 0 <= median < 1e12 else ""


def _checkpoints(found: Account, room: int) -> list[str]:
    kept = found.checkpoints
    if not kept:
        return []
    rows = [["step", "size", "made"]]
    for each in kept[-_CHECKPOINTS:]:
        made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each.time)) if each.time else "–"
        rows.append([f"{each.step:,}", format_bytes(each.nbytes), made])
    lines = columns(rows, left=0)
    if len(kept) > _CHECKPOINTS:
        lines.append(f"… {len(kept) - _CHECKPOINTS} older")
    return [*lines, *wrap("`loadsheet runs verify` reads them and compares their checksums", room - 2, "  ")]


def _sheet(found: Account, room: int) -> list[str]:
    if found.sheet is None:
        return []
    signed, intent = found.sheet.get("signed"), found.sheet.get("intent")
    signed = signed if isinstance(signed, dict) else {}
    shown = (
        [
            f"{one_line(str(key))} {_price(value) if key == 'price' else cell(value)}"
            for key, value in (intent or {}).items()
        ]
        if isinstance(intent, dict)
        else []
    )
    text = f"{one_line(str(signed.get('sha256')))[:10]}, version {one_line(str(signed.get('version')))[:20]}"
    if shown:
        text += "; intent: " + ", ".join(shown[:10])
    return [*wrap(text, room - 2, "  "), *wrap("`loadsheet close` holds the run against it", room - 2, "  ")]


def _price(value: Any) -> str:
    """The price of an intent: an amount and a currency; anything else as it stands there."""
    if not isinstance(value, dict):
        return "none" if value is None else cell(value)
    amount, currency = value.get("amount"), value.get("currency")
    if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < 1e12:
        return cell(value)
    return str(Price(amount, one_line(currency)[:20] if isinstance(currency, str) else ""))


def reproducibility(found: Sequence[Level], room: int) -> list[str]:
    """The levels, what each was found to be, and what was recorded."""
    lines = []
    for count, level in enumerate(found, start=1):
        lines += wrap(f"{count}  {level.name}: {level.found}. {capital(level.why)}", room - 2, "   ")
        lines += [line for text in level.recorded for line in wrap(f"   recorded: {text}", room - 2, "     ")]
    return lines
