"""What `runs compare` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from loadsheet.cli.output import table
from loadsheet.cli.runs.list_page import capital, findings, left_out, number, starred
from loadsheet.errors import one_line
from loadsheet.history.compare import Aligned, Bits, letters, only_excluded, only_seeds, sparkline
from loadsheet.history.configs import cell, short_names
from loadsheet.history.levels import statistical
from loadsheet.history.measures import Measure
from loadsheet.history.rows import RunRow
from loadsheet.history.seeds import Comparison, Group
from loadsheet.text import columns, wrap
from loadsheet.units import format_duration, format_si

_SPARK: Final = 16
_SHARE: Final = 0.9  # of all values within the scale of the small curves: the first steps would fill it alone
_KEYS: Final = 30


def runs(
    rows: Sequence[RunRow],
    measure: Measure | None,
    keys: Mapping[str, Sequence[Any]],
    aligned: Aligned | None,
    pairs: Sequence[Bits],
    seed_keys: Sequence[str],
    room: int,
) -> str:
    """Runs beside each other."""
    names = letters(len(rows))
    lines = []
    for name, row in zip(names, rows, strict=True):
        goal = f" of {row.goal:,}" if row.goal is not None else ""
        text = f"{name}  {one_line(row.fingerprint)}  {row.state} after {row.step:,}{goal} steps, "
        text += f"{format_duration(row.seconds)}, {row.attempts} attempt{'s' if row.attempts != 1 else ''}"
        lines += wrap(text, room, "   ")
        lines += [line for problem in row.problems[:2] for line in wrap(f"   ! {problem}", room, "     ")]
    excluded = only_excluded(rows, keys)
    lines += ["", "config", *(f"  {line}" for line in _config(names, keys, room - 2, excluded))]
    if aligned is not None and measure is not None:
        lines += ["", *_curves(rows, names, aligned, measure, room)]
    else:
        lines += ["", "nothing was logged that could be compared"]
    if pairs or len(rows) == 2:
        lines += ["", "bits", *(f"  {line}" for line in _bits(rows, names, pairs, room - 2))]
    own = {key: values for key, values in keys.items() if key not in excluded}
    lines += ["", *wrap(_of_two_runs(own, seed_keys), room, "  ")]
    return "\n".join(line.rstrip() for line in lines)


def _config(
    names: Sequence[str], keys: Mapping[str, Sequence[Any]], room: int, excluded: Sequence[str] = ()
) -> list[str]:
    """The keys that differ, as a table; where that is too wide one paragraph per key."""
    if not keys:
        return ["the same in all"]
    shown = list(keys)[:_KEYS]
    short = short_names(shown)
    short |= {key: f"{short[key]} (excluded)" for key in shown if key in excluded}
    rows = [["", *names], *([one_line(short[key]), *map(cell, keys[key])] for key in shown)]
    lines = columns(rows)
    if max(map(len, lines)) > room:
        lines = []
        for key in shown:
            values = ", ".join(f"{name} {cell(value)}" for name, value in zip(names, keys[key], strict=True))
            lines += wrap(f"{one_line(short[key])}: {values}", room, "  ")
    if len(keys) > len(shown):
        lines.append(f"… {len(keys) - len(shown)} more: --json has all")
    return lines


def _curves(
    rows: Sequence[RunRow], names: Sequence[str], found: Aligned, measure: Measure, room: int
) -> list[str]:
    """The metric of each run: its curve, its values at common points, the last and the best."""
    known = [curve for curve in found.curves if curve is not None]
    title = f"{one_line(found.metric)[:60]} by {found.axis.by}"
    if not known:
        return [
            title,
            *wrap(f"  none of these runs has logged a finite {one_line(found.metric)[:60]}", room, "  "),
        ]
    pooled = sorted(y for curve in known for y in curve.y)
    low, high = pooled[0], pooled[round(_SHARE * (len(pooled) - 1))]
    begin, end = min(c.x[0] for c in known), max(c.x[-1] for c in known)
    heads = [place(point, found.axis.by) for point in found.points]
    cells = []
    for at, (name, row) in enumerate(zip(names, rows, strict=True)):
        curve, last, best = found.curves[at], found.last(at), measure.of(row.metrics)
        line = {
            "": name,
            "curve": sparkline(curve, low, high, begin, end, _SPARK) if curve is not None else "",
        }
        for head, value in zip(heads, found.values[at] or [None] * len(heads), strict=True):
            line[head] = number(value) if value is not None else ""
        line["last"] = number(last[1]) if last else ""
        line["at"] = place(last[0], found.axis.by) if last else ""
        line["best"] = number(best[0]) if best else ""
        cells.append(line)
    spare = ["at", *_middle_out(heads), "curve"]
    lines = [title, *(f"  {line}" for line in table(cells, spare, room - 2))]
    notes = [f"best: {measure.said}{starred(measure)}"]
    if not found.points:
        notes.append("there is no stretch that all of them cover")
    elif not found.exact:
        notes.append("values at common points lie on the line between two records")
    above = ", what is above at the top" if pooled[-1] > high else ""
    notes.append(
        f"curves: {number(low)} to {number(high)}{above}; means of stretches, nothing else is smoothed"
    )
    return [*lines, *(line for note in notes for line in wrap(f"  {note}", room, "    "))]


def _middle_out(heads: Sequence[str]) -> list[str]:
    """The points in the order in which they are given up: every second first, the last point last."""
    inner = list(heads[1:-1])
    return [*inner[::2], *inner[1::2], *heads[:1], *heads[-1:]]


def place(x: float, by: str) -> str:
    """A place on an axis."""
    if by == "time":
        return format_duration(x)
    return format_si(x, "", 2) if by == "tokens" else f"{x:,.0f}"


def _bits(rows: Sequence[RunRow], names: Sequence[str], pairs: Sequence[Bits], room: int) -> list[str]:
    """Where runs that should be alike part."""
    if not pairs:
        return wrap("not compared: their configs differ in more than the seed", room, "  ")
    by_path = {row.path: name for row, name in zip(rows, names, strict=True)}
    lines = []
    for pair in pairs:
        who = f"{by_path[pair.one.path]} and {by_path[pair.other.path]}"
        what = "the same config and seed" if pair.same_seeds else "configs that differ only in the seed"
        if not pair.compared:
            text = f"{who}: {what}; no step was logged by both under one name"
        elif pair.step is None:
            text = f"{who}: {what}; the same values, bit for bit, in all {pair.compared:,} steps that both logged"
        else:
            shown = ", ".join(map(one_line, pair.names[:4]))
            text = f"{who}: {what}; the first step that differs is {pair.step:,} ({shown})"
            if pair.same_seeds:
                text += f", after {pair.compared - 1:,} that agree"
        lines += wrap(capital(text), room, "  ")
        if pair.changed:
            lines += wrap(f"  recorded differently: {'; '.join(pair.changed)}", room, "    ")
        elif pair.same_seeds:
            lines += wrap("  recorded alike: code, CPU or GPU, threads, versions", room, "    ")
    return lines


def _of_two_runs(keys: Mapping[str, Any], seed_keys: Sequence[str]) -> str:
    """What such a comparison shows, and what not."""
    if only_seeds(keys, seed_keys) and keys:
        return "These runs differ only in the seed: what lies between them is chance, and says how much of it there is."
    if not keys:
        return "One config: whatever differs comes from the machine, the code or chance."
    return (
        "One run a side shows no improvement: another seed may turn it round. `runs compare --seeds` asks whether "
        "the difference is larger than the spread between seeds."
    )


# --- groups -----------------------------------------------------------------------------------------------------


def groups(
    found: Sequence[Group],
    compared: Sequence[Comparison],
    keys: Mapping[str, Sequence[Any]],
    measure: Measure | None,
    recorded: Mapping[str, Sequence[str]],
    room: int,
) -> str:
    """Groups of seeds beside each other."""
    names = letters(len(found))
    lines = []
    for name, each in zip(names, found, strict=True):
        shown = f"{name}  {one_line(each.fingerprint)}  {each.name}: {len(each.members)} runs, {len(each.values)} count"
        lines += wrap(shown, room, "   ")
    lines += ["", "config, seeds aside", *(f"  {line}" for line in _config(names, keys, room - 2))]
    if measure is None:
        return "\n".join([*lines, "", "nothing was logged that could be compared"])
    cells = []
    for name, each in zip(names, found, strict=True):
        s = each.spread
        cells.append(
            {
                "": name,
                "n": str(len(each.values)),
                "mean": number(s.mean) if s else "",
                "s": number(s.deviation) if s and s.deviation is not None else "",
                "min": number(s.low) if s else "",
                "max": number(s.high) if s else "",
                "values": " ".join(number(value) for _, value in each.values[:8])
                + (" …" if len(each.values) > 8 else ""),
            }
        )
    lines += [
        "",
        one_line(measure.metric)[:60],
        *(f"  {line}" for line in table(cells, ["values", "min", "max"], room - 2)),
    ]
    lines += wrap(f"  value: {measure.said}{starred(measure)}", room, "    ")
    lines += left_out(found, room)
    lines += findings(compared, len([each for each in found if each.spread is not None]), room)
    lines += ["", *_recorded(found, names, recorded, room)]
    return "\n".join(line.rstrip() for line in lines)


def _recorded(
    found: Sequence[Group], names: Sequence[str], recorded: Mapping[str, Sequence[str]], room: int
) -> list[str]:
    """The third level of reproducibility, and what it rests on."""
    lines = ["reproducibility"]
    for name, each in zip(names, found, strict=True):
        level = statistical(each)
        lines += wrap(f"  {level.name}, {name}: {level.found}. {capital(level.why)}", room, "     ")
    one = [
        f"{name} {values[0]}"
        for name, values in recorded.items()
        if len(values) == 1 and values[0] != "not recorded"
    ]
    several = [f"{name} ({', '.join(values[:4])})" for name, values in recorded.items() if len(values) > 1]
    if one:
        lines += wrap(f"  recorded alike in all: {', '.join(one)}", room, "     ")
    if several:
        lines += wrap(
            f"  recorded differently: {'; '.join(several)}: part of the spread may come from there",
            room,
            "     ",
        )
    lines += wrap(
        "  bit for bit, and on a GPU: `runs show` says for each run whether steps that were run twice agreed",
        room,
        "     ",
    )
    return lines
