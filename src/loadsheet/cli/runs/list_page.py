"""What `runs list` prints."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

from loadsheet.cli.output import table
from loadsheet.cli.progress import Progress
from loadsheet.errors import one_line
from loadsheet.history.configs import ABSENT, cell, differing, flat, short_names
from loadsheet.history.index import scan
from loadsheet.history.listing import cost
from loadsheet.history.measures import Measure
from loadsheet.history.rows import STATES, RunRow
from loadsheet.history.seeds import Comparison, Group
from loadsheet.money.price import Price
from loadsheet.text import many, wrap
from loadsheet.units import format_duration, format_money

#: groups that the best one is compared with; each takes three lines
COMPARED: Final = 8
_SENTENCES: Final = 2  # more comparisons are a table
_KEYS: Final = 6  # of the config, as columns
_PROBLEMS: Final = 5
_OWN: Final = (
    "run",
    "state",
    "attempts",
    "steps",
    "best",
    "at step",
    "hours",
    "cost",
    "lost",
    "n",
    "mean",
    "group",
    "s",
    "min",
    "max",
    "left out",
)


def scanned(root: str) -> list[RunRow]:
    """All runs, with a line on a terminal's stderr if it takes long."""
    progress = Progress()
    try:
        return scan(root, progress=lambda done, total: progress(f"reading run {done + 1:,} of {total:,}"))
    finally:
        progress.close()


def number(value: float) -> str:
    """A measured value in a table.

    >>> number(2.3456789), number(0.00012345), number(1234567.0), number(3.0)
    ('2.3457', '0.00012345', '1.2346e+06', '3')
    """
    return f"{value:.5g}"


def starred(measure: Measure) -> str:
    """What the stars mean, if there are any."""
    options = ", ".join(f"--{name}" for name in ("metric", "mode", "value") if name in measure.defaulted)
    return f"; * nobody chose it: {options}" if options else ""


def runs(
    root: str,
    rows: Sequence[RunRow],
    everything: int,
    measure: Measure | None,
    price: Price | None,
    room: int,
    limit: int | None,
) -> str:
    """The table of runs, what it leaves out, and what is wrong with them."""
    shown = rows[:limit]
    lines = [*_head(root, rows, everything, room)]
    if not shown:
        return "\n".join(lines)
    flats = [flat(row.config) for row in shown]
    keys = differing(flats)
    names = short_names(keys[:_KEYS], _OWN)
    cells = [_cells(row, config, names, measure, price) for row, config in zip(shown, flats, strict=True)]
    spare = ["lost", "at step", "attempts", *reversed([names[key] for key in keys[1:_KEYS]]), "hours", "cost"]
    spare += [names[key] for key in keys[:1]] + ["steps"]
    lines += ["", *table(cells, spare, room), ""]
    if len(shown) < len(rows):
        lines += wrap(f"{len(shown)} of {len(rows):,} shown; --limit all shows the others", room, "  ")
    if measure is not None:
        lines += wrap(f"best: {measure.said}{starred(measure)}", room, "  ")
    if len(keys) > _KEYS:
        lines += wrap(f"more keys differ: {', '.join(map(one_line, keys[_KEYS:][:20]))}", room, "  ")
    lines += _odd(shown, measure, room)
    lines += _money(shown, price, room)
    lines += _problems(shown, room)
    return "\n".join(lines).rstrip()


def _head(root: str, rows: Sequence[RunRow], everything: int, room: int) -> list[str]:
    counts = Counter(row.state for row in rows)
    states = ", ".join(f"{counts[state]:,} {state}" for state in STATES if counts[state])
    of = f" of {everything:,}" if len(rows) != everything else ""
    noun = "run" if (everything if of else len(rows)) == 1 else "runs"
    return wrap(
        f"{len(rows):,}{of} {noun} in {one_line(root)}" + (f": {states}" if states else ""), room, "  "
    )


def _cells(
    row: RunRow,
    config: dict[str, object],
    names: dict[str, str],
    measure: Measure | None,
    price: Price | None,
) -> dict[str, str]:
    found = measure.of(row.metrics) if measure is not None else None
    money = cost(row, price.amount if price is not None else None)
    return {
        "run": one_line(row.fingerprint) + (" !" if row.problems else ""),
        "state": row.state + ("" if (odd := ends_in(row, measure)) is None else f" ({odd})"),
        **{name: cell(config.get(key, ABSENT)) for key, name in names.items()},
        "attempts": str(row.attempts),
        "steps": _steps(row),
        "best": number(found[0]) if found is not None else "",
        "at step": f"{found[1]:,}" if found is not None else "",
        "hours": format_duration(row.seconds) if row.seconds else "",
        "cost": format_money(money, price.currency if price is not None else row.currency)
        if money is not None
        else "",
        "lost": f"{row.lost_steps:,}" if row.lost_steps else "",
    }


def _steps(row: RunRow) -> str:
    """How far it came, of how many, and where it would go on if the last of its steps are not saved."""
    text = f"{row.step:,}" if row.goal in (None, row.step) else f"{row.step:,}/{row.goal:,}"
    return f"{text}, saved to {row.step - row.unsaved_steps:,}" if row.unsaved_steps else text


def ends_in(row: RunRow, measure: Measure | None) -> str | None:
    """What the measure of a run ends in if that is no finite number."""
    metric = row.metrics.get(measure.metric) if measure is not None else None
    if metric is None or math.isfinite(metric.last):
        return None
    return "NaN" if math.isnan(metric.last) else "infinite"


def _odd(rows: Sequence[RunRow], measure: Measure | None, room: int) -> list[str]:
    """What the mark behind a state means."""
    marks = sorted({mark for row in rows if (mark := ends_in(row, measure)) is not None})
    if measure is None or not marks:
        return []
    said = " and ".join(f"({mark})" for mark in marks)
    name = one_line(measure.metric)[:60]
    return wrap(
        f"{said}: the last {name} of the run is no finite number; `runs show` says since when", room, "  "
    )


def _money(rows: Sequence[RunRow], price: Price | None, room: int) -> list[str]:
    """What the costs are made of."""
    if price is not None:
        return wrap(f"cost: hours × {price}, {price.source}", room, "  ")
    if any(row.price is not None for row in rows):
        return wrap("cost: hours × GPUs × the price in the signed sheet", room, "  ")
    return []


def _problems(rows: Sequence[RunRow], room: int) -> list[str]:
    """What is wrong with the first few runs that something is wrong with."""
    bad = [row for row in rows if row.problems]
    lines = []
    for row in bad[:_PROBLEMS]:
        more = f" (and {len(row.problems) - 1} more)" if len(row.problems) > 1 else ""
        lines += wrap(f"! {one_line(row.fingerprint)}: {row.problems[0]}{more}", room, "  ")
    if len(bad) > _PROBLEMS:
        lines += wrap(f"! and {len(bad) - _PROBLEMS} more runs with problems: --json has all", room, "  ")
    return lines


# --- groups -----------------------------------------------------------------------------------------------------


def groups(
    root: str,
    found: Sequence[Group],
    compared: Sequence[Comparison],
    measure: Measure | None,
    room: int,
    limit: int | None,
) -> str:
    """The table of groups, best first, and whether the best one is better than the others."""
    total = sum(len(each.members) for each in found)
    lines = wrap(
        f"{many(len(found), 'group')} of {many(total, 'run')} in {one_line(root)}, alike but for the seed",
        room,
        "  ",
    )
    if measure is None or not found:
        return "\n".join(lines)
    order = sorted(
        found,
        key=lambda each: (
            (1, 0.0)
            if each.spread is None
            else (0, each.spread.mean if measure.mode == "min" else -each.spread.mean)
        ),
    )
    shown = order[:limit]
    flats = [flat(each.config) for each in shown]
    names = short_names(differing(flats)[:_KEYS], _OWN)
    cells = [_group_cells(each, config, names) for each, config in zip(shown, flats, strict=True)]
    spare = ["min", "max", "s", *reversed(list(names.values())[1:]), "left out", *list(names.values())[:1]]
    lines += ["", *table(cells, spare, room), ""]
    if len(shown) < len(order):
        lines += wrap(f"{len(shown)} of {len(order):,} shown; --limit all shows the others", room, "  ")
    lines += wrap(f"value: {measure.said}{starred(measure)}", room, "  ")
    lines += left_out(shown, room)
    lines += findings(compared, len([each for each in order if each.spread is not None]), room)
    return "\n".join(lines).rstrip()


def _group_cells(each: Group, config: dict[str, object], names: dict[str, str]) -> dict[str, str]:
    s = each.spread
    return {
        "group": one_line(each.fingerprint),
        "n": str(len(each.values)),
        **{name: cell(config.get(key, ABSENT)) for key, name in names.items()},
        "mean": number(s.mean) if s else "",
        "s": number(s.deviation) if s and s.deviation is not None else "",
        "min": number(s.low) if s and s.n > 1 else "",
        "max": number(s.high) if s and s.n > 1 else "",
        "left out": str(len(each.left_out)) if each.left_out else "",
    }


def left_out(found: Sequence[Group], room: int) -> list[str]:
    """Which runs do not count, and why: a mean over those that went well is no mean."""
    pairs = [pair for each in found for pair in each.left_out]
    lines = []
    for fingerprint, reason in pairs[:_PROBLEMS]:
        lines += wrap(f"left out: {one_line(fingerprint)}, {reason}", room, "  ")
    if len(pairs) > _PROBLEMS:
        lines += wrap(f"left out: {len(pairs) - _PROBLEMS} more; --json has all", room, "  ")
    return lines


def findings(compared: Sequence[Comparison], count: int, room: int) -> list[str]:
    """The plain sentences, a table of them if they are many, and what to think of several."""
    if not compared:
        return ["", *wrap("one group alone: there is nothing to be better than", room, "  ")]
    lines = [""]
    if len(compared) <= _SENTENCES:
        for sentence in dict.fromkeys(each.sentence for each in compared):  # of one seed the same one
            lines += wrap(capital(sentence), room, "  ")
    else:
        lines += [*table([_finding(each) for each in compared], ["p", "degrees of freedom"], room), ""]
        better = sum(each.finding == "better" for each in compared)
        lines += wrap(
            f"{compared[0].best.name} has the best mean. That it is better is shown for {better} of the "
            f"{len(compared)} other groups above: there the interval leaves out 0 and Holm's p is below the level.",
            room,
            "  ",
        )
    for remark in dict.fromkeys(remark for each in compared for remark in each.remarks):
        lines += wrap(capital(remark), room, "  ")
    if count > 2:
        more = (
            f" {count - 1 - len(compared):,} more groups are not shown." if count - 1 > len(compared) else ""
        )
        lines += wrap(
            f"The best of {count:,} groups is compared with each other one. Of many comparisons some come out by "
            "chance, so each must stand Holm's correction; and the best was chosen by the same numbers, so its mean is "
            f"flattered: new seeds for it and its rivals would settle it.{more}",
            room,
            "  ",
        )
    lines += wrap(
        "s is the sample standard deviation between seeds; the interval is Welch's (1947), for values that spread "
        "roughly as a normal distribution.",
        room,
        "  ",
    )
    return lines


def _finding(each: Comparison) -> dict[str, str]:
    w, gain = each.welch, each.gain
    return {
        "better than": each.other.name,
        "finding": "shown" if each.finding == "better" else each.finding,
        "by": number(gain[0]) if gain else "",
        "interval": f"{gain[1]:.3g} to {gain[2]:.3g}" if gain else "",
        "degrees of freedom": f"{w.df:.1f}" if w else "",
        "p": f"{w.p:.2g}" if w else "",
        "Holm's p": f"{each.p:.2g}" if each.p is not None else "",
    }


def capital(sentence: str) -> str:
    """A sentence as one; a name at its beginning stays as it is.

    >>> capital("not shown"), capital("lr=0.1 is better")
    ('Not shown.', 'lr=0.1 is better.')
    """
    name = not sentence.split(maxsplit=1)[0].rstrip(":,").isalpha()
    return f"{sentence if name else sentence[0].upper() + sentence[1:]}."
