"""The answer of `odds` as a page."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from loadsheet.money.odds_json import notes, unfinished
from loadsheet.text import columns, wrap
from loadsheet.units import format_bytes, format_duration, format_money

if TYPE_CHECKING:
    from loadsheet.money.answer import Odds

_SHOWN = ("p5", "p50", "p95", "p99")
_BYTES = frozenset({"storage", "egress", "checkpoint_bytes"})
_NUMBERS = frozenset({"machines", "jobs", "seed"})
_MONEY = frozenset({"price", "on_demand_price", "budget", "other_hourly", "storage_price", "egress_price"})
_LABELS = {
    "work": "work", "save": "a save stalls", "mtbf": "M", "restart": "restart", "startup": "start-up",
    "commit": "durable after", "every": "saves every", "notice_works": "notices that work", "notice": "notice",
    "machines": "machines", "failures": "failures every", "down_mean": "wait for capacity",
}  # fmt: skip


def page(odds: Odds, width: int) -> str:
    """The answer for a person: what to expect, why, the odds, and what would change them."""
    told = [wrap(_header(odds), width, "  "), wrap(_headline(odds), width, "  ")]
    if odds.never_done:
        told.reverse()
    lines = [*told[0], "", *told[1], ""]
    lines += _intervals(odds, width)
    lines += _times(odds, width)
    lines += _where(odds, width)
    lines += _money(odds, width)
    lines += _chances(odds, width)
    if odds.switch is not None:
        lines += [*wrap(odds.switch.text(), width, "       "), ""]
    lines += _spread_of_m(odds, width)
    lines += _remedies(odds, width)
    lines += _footnotes(odds, width)
    return "\n".join(lines)


def _header(odds: Odds) -> str:
    q = odds.question
    known = q.inputs

    def shown(name: str, value: float | None = None) -> str:
        entry = known[name]
        return f"{_LABELS[name]} {format_duration(entry.value if value is None else value)}{entry.star}"

    parts = [shown("work"), shown("save") + _rehearsed(odds)]
    if q.job.commit > 0 or not known["commit"].assumed:
        parts.append(shown("commit"))
    parts += [shown("mtbf"), shown("restart"), shown("startup")]
    if known["machines"].value > 1:
        parts.append(f"{known['machines'].value} machines, any of them stops all")
    if not math.isinf(q.failures):
        parts.append(shown("failures"))
    if q.job.notice_works > 0:
        parts.append(f"{known['notice_works'].value:.0%} of notices work, {shown('notice')}")
    if q.trace is not None:
        parts.append(
            f"{q.trace.source}: {len(q.trace.up):,} up-times, there {q.trace.available:.0%} of the time"
        )
    elif q.wait is not None:
        parts.append(shown("down_mean"))
    if q.wait is not None and q.wait > 0 and not math.isinf(q.job.mtbf):
        there = "a machine at the start: "
        if q.machine_now is None:
            there += f"{q.job.mtbf / (q.job.mtbf + q.wait):.0%} likely*"
        else:
            there += "yes" if q.machine_now else "none yet"
        parts.append(there)
    return " · ".join(parts)


def _rehearsed(odds: Odds) -> str:
    """Of what a rehearsal measured the save, where it did."""
    source = odds.question.inputs["save"].source
    _, found, what = source.partition(", a rehearsal ")
    return f" (rehearsal {what})" if found else ""


def _headline(odds: Odds) -> str:
    q = odds.question
    if odds.never_done:
        text = "DOES NOT FINISH   "
        if q.job.mtbf < q.job.save:
            text += (
                f"M, {format_duration(q.job.mtbf)}, is less than a save, {format_duration(q.job.save)}: most saves are "
                "interrupted. "
            )
        text += f"{_capital(unfinished(odds))}; by the formula {format_duration(odds.machine.total.mean)}."
        return f"{text} Save faster, or rent where machines stay."
    if odds.expected_seconds is None:
        text = f"NOT CERTAIN TO FINISH   {unfinished(odds)}"
    else:
        text = f"EXPECT {format_duration(odds.expected_seconds)} of machine time"
        if odds.std_seconds:
            text += f", give or take {format_duration(odds.std_seconds)}"
        if odds.expected_wall is not None:
            text += f", {format_duration(odds.expected_wall)} on the wall"
        text += (
            f"   ({odds.interruptions:.3g} interruptions; undisturbed {format_duration(q.job.undisturbed)})"
        )
    if odds.dominant is not None:
        share = (odds.wall or odds.machine).parts[odds.dominant] / q.job.work
        text += f".   Most of what is added: {odds.dominant}, {share:.1%} of the work."
    return text


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _intervals(odds: Odds, width: int) -> list[str]:
    q, job = odds.question, odds.question.job
    rows = [["Save every", "", "machine time"]]
    for label, seconds in (*odds.interval.items(), ("given" if q.interval_given else "used*", job.interval)):
        time = odds.machine_time(seconds)
        rows.append(
            [f"  {label}", _interval(seconds, job.work), "never done" if time is None else _fine(time)]
        )
    lines = columns(rows)
    if q.step_seconds:
        steps = round(job.interval / q.step_seconds)
        whose = "*, the rehearsal's" if q.inputs["step"].assumed else ""
        text = f"  that is every {steps:,} steps of {format_duration(q.step_seconds)}{whose}"
        lines += wrap(text, width, "  ")
    return [*lines, ""]


def _interval(seconds: float, work: float) -> str:
    if math.isinf(seconds):
        return "never"
    return f"{format_duration(seconds)}{' (once, at the end)' if seconds >= work else ''}"


def _fine(seconds: float) -> str:
    """A duration with enough digits to see a percent."""
    return f"{seconds / 3600:,.2f} h" if 3600 <= seconds < 3.6e8 else format_duration(seconds)


def _times(odds: Odds, width: int) -> list[str]:
    def row(name: str, found: dict[str, float | None]) -> list[str]:
        return [name, *("–" if found[p] is None else _fine(found[p] or 0.0) for p in _SHOWN)]

    label = "trace" if odds.question.trace is not None else "exponential"
    rows = [["Time of 100 jobs", "5 take less", "half", "5 take more", "1 takes more"]]
    rows.append(row(f"  machine, {label}", odds.sample.quantiles(odds.sample.machine)))
    if odds.question.trace is None:
        rows.append(row("  machine, stressed", odds.stressed.quantiles(odds.stressed.machine)))
    if odds.expected_wall is not None:
        rows.append(row(f"  on the wall, {label}", odds.sample.quantiles(odds.sample.wall)))
        if odds.question.trace is None:
            rows.append(row("  on the wall, stressed", odds.stressed.quantiles(odds.stressed.wall)))
    if max(map(len, columns(rows))) > width:
        rows = [[r[0], r[2], r[3]] for r in rows]
    lines = columns(rows)
    text = f"  {odds.sample.jobs:,} jobs simulated (seed {odds.question.seed})"
    if odds.simulated_mean is not None:
        mean, error = odds.simulated_mean
        text += f": mean {_fine(mean)}" + (f" ± {format_duration(error)}" if math.isfinite(error) else "")
        if odds.question.trace is not None:
            text += f"; exponential interruptions would say {_fine(odds.machine.total.mean)}"
        else:
            text += f", by the formula {_fine(odds.machine.total.mean)}"
    lines += wrap(text, width, "  ")
    if odds.expected_wall is None and not odds.sample.unfinished:
        text = "  On the wall it is longer: waits for a machine are unknown (--down-mean T or --trace FILE)."
        lines += wrap(text, width, "  ")
    return [*lines, ""]


def _where(odds: Odds, width: int) -> list[str]:
    parts = (odds.wall or odds.machine).parts
    total = sum(parts.values())
    head = "on average" if odds.question.trace is None else "by the formula"
    rows = [[f"Where it goes, {head}", "", "share"]]
    rows += [
        [f"  {name}", _fine(value), f"{value / total:.1%}"]
        for name, value in parts.items()
        if value > 5e-5 * total
    ]
    return [*columns(rows), ""]


def _money(odds: Odds, width: int) -> list[str]:
    q = odds.question
    if q.bill is None:
        return [*wrap("Cost   give --price PER_HOUR (no prices are shipped)", width, "       "), ""]
    currency = q.bill.currency
    each = format_money(q.bill.price, currency)
    text = f"Cost   at {each} per machine hour{f' × {q.bill.machines}' if q.bill.machines > 1 else ''}: "
    if odds.cost is None:
        text += f"unknown, {unfinished(odds)}"
    else:
        text += (
            f"{format_money(odds.cost['mid'], currency)} ({format_money(odds.cost['low'])} – "
            f"{format_money(odds.cost['high'])}: 5 of 100 jobs cost less; 5 of 100 "
            f"{'' if q.trace is not None else 'stressed ones '}more)"
        )
    lines = wrap(text, width, "       ")
    if odds.cost is not None and q.bill.by_wall | (q.bill.egress_price > 0):
        wall = odds.expected_wall or odds.expected_seconds or 0.0
        parts = q.bill.parts(odds.expected_seconds or 0.0, odds.interruptions * (q.wait or 0.0), wall)
        shown = ", ".join(f"{name} {format_money(value)}" for name, value in parts.items() if value > 0)
        lines += wrap(f"       {shown}", width, "       ")
    other = odds.on_demand
    if other is not None and q.on_demand is not None:
        text = (
            f"       on demand at {format_money(q.on_demand.price, currency)}: {format_money(other['cost'], currency)} "
            f"in {_fine(other['expected_seconds'])}"
        )
        if other["spot_saves"] is not None and other["break_even_ratio"] is not None:
            saved = other["spot_saves"]
            verb = "saves" if saved >= 0 else "costs"
            text += (
                f"; spot {verb} {format_money(abs(saved), currency)}{'' if saved >= 0 else ' more'}. It pays below "
                f"{_ratio(other['break_even_ratio'])} of the on-demand price"
            )
            if other["price_ratio"] is not None:
                text += f", and is at {_ratio(other['price_ratio'])}"
        lines += wrap(text + ".", width, "       ")
    return [*lines, ""]


def _ratio(value: float) -> str:
    return f"{value:.0%}" if value < 10 else f"{value:.3g} times"


def _chances(odds: Odds, width: int) -> list[str]:
    q = odds.question
    rows: list[str] = []
    for found, what, key in (
        (
            odds.within_budget,
            "" if q.budget is None else f"within {format_money(q.budget, q.bill.currency if q.bill else '')}",
            "p_within_budget",
        ),
        (
            odds.by_deadline,
            "" if q.deadline is None else f"by {format_duration(q.deadline)}",
            "p_by_deadline",
        ),
    ):
        if not what:
            continue
        if isinstance(found, tuple):
            text = f"{what}: {found[0]}"
            if q.trace is None:
                text += f"; stressed {found[1] or 'not known'}"
        elif found is None:
            text = f"{what}: not known. {odds.reasons.get(key, '')}"
        else:
            text = f"{what}: {'certain' if found else 'impossible'}"
            text += f", {odds.reasons[key]}" if key in odds.reasons else ""
        rows += wrap(f"Odds   {text}" if not rows else f"       {text}", width, "       ")
    other = odds.on_demand
    if (
        rows
        and other is not None
        and (other["by_deadline"] is not None or other["within_budget"] is not None)
    ):
        words = (
            [f"in time: {'yes' if other['by_deadline'] else 'no'}"]
            if other["by_deadline"] is not None
            else []
        )
        if other["within_budget"] is not None:
            words.append(f"within budget: {'yes' if other['within_budget'] else 'no'}")
        rows += wrap(f"       on demand {', '.join(words)}", width, "       ")
    return [*rows, ""] if rows else []


def _spread_of_m(odds: Odds, width: int) -> list[str]:
    q = odds.question
    if not odds.sensitivity:
        return []
    currency = "" if q.bill is None else q.bill.currency
    rows = [["If M is", "save every", "machine time", *(["cost"] if q.bill else [])]]
    for entry in odds.sensitivity:
        cells = [f"  {format_duration(entry['mtbf'])}", _interval(entry["every"], q.job.work)]
        time = entry["expected_seconds"]
        cells.append("never done" if time is None else _fine(time))
        if q.bill:
            cells.append("–" if entry["cost"] is None else format_money(entry["cost"], currency))
        rows.append(cells)
    if max(map(len, columns(rows))) > width:
        rows = [[r[0], *r[2:]] for r in rows]
    lines = columns(rows)
    if q.rate is not None and q.rate.mtbf is not None:
        text = (
            f"  seen: {q.rate.interruptions} interruptions in {format_duration(q.rate.exposure)}; M is between "
            f"{format_duration(q.rate.low)} and {format_duration(q.rate.high)} with 90 %"
        )
        lines += wrap(text, width, "  ")
    return [*lines, ""]


def _remedies(odds: Odds, width: int) -> list[str]:
    if not odds.changes:
        return []
    q = odds.question
    rows = [["What would change it", "time saved", *(["money saved"] if q.bill else [])]]
    for change in odds.changes:
        cells = [f"  {change.what}", _signed(change.seconds)]
        if q.bill:
            cells.append("–" if change.money is None else _money_signed(change.money, q.bill.currency))
        rows.append(cells)
    if max(map(len, columns(rows))) > width:
        told = [f"{row[0]}: {', '.join(row[1:])}" for row in rows]
        return [*(part for line in told for part in wrap(line, width, "    ")), ""]
    return [*columns(rows), ""]


def _signed(seconds: float) -> str:
    return f"−{format_duration(-seconds)}" if seconds < 0 else format_duration(seconds)


def _money_signed(amount: float, currency: str) -> str:
    return f"−{format_money(-amount, currency)}" if amount < 0 else format_money(amount, currency)


def _footnotes(odds: Odds, width: int) -> list[str]:
    q = odds.question
    lines: list[str] = []
    for note in notes(odds):
        lines += wrap(f"note: {note}", width, "  ")
    told = [
        f"{name.replace('_', ' ')} {_text_of(name, known.value)} ({known.source})"
        for name, known in q.inputs.items()
        if (not known.assumed or "rehearsal" in known.source) and not known.source.startswith("--")
    ]
    if told:
        lines += wrap("From files: " + "; ".join(told), width, "  ")
    starred = ("restart", "startup", "notice", "every", "save", "commit")
    if any(known.assumed for name, known in q.inputs.items() if name in starred):
        lines += wrap("* defaulted", width, "  ")
    if odds.question.trace is None:
        text = (
            "Exponential interruptions are too kind: replays of real traces cost 1–9 % more. `stressed` jobs have "
            "up-times as in those traces, and half of them meet a bad time."
        )
        lines += wrap(text, width, "  ")
    return lines


def _text_of(name: str, value: Any) -> str:
    if name in _BYTES:
        return format_bytes(value)
    if name in _NUMBERS:
        return f"{value:,}"
    return format_money(value) if name in _MONEY else format_duration(value)
