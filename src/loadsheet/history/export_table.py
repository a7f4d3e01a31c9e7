"""Runs as a table in Markdown, to be pasted into a paper, a README or an issue."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

from loadsheet.history.configs import ABSENT, cell, differing, flat, short_names
from loadsheet.history.index import RunRow
from loadsheet.history.measures import Measure
from loadsheet.history.seeds import Group, group
from loadsheet.history.welch import Spread
from loadsheet.units import format_duration

_SPECIAL: Final = re.compile(r"([\\`*\[\]<>|~#&@$])|(?<![^\W_])_|_(?![^\W_])")

#: columns of ours: a key of that name stands beside them under another
_OWN: Final = ("run", "steps", "resumed", "group", "runs", "n", "range", "at step", "machine time")
_STAR: Final = "\\* chosen by its name, not by a person."


def escaped(text: str) -> str:
    r"""Text as it stands in a Markdown cell: shown as it is, on one line.

    >>> print(escaped("a|b_c"), escaped("_x_ <b>"))
    a\|b_c \_x\_ \<b\>
    """
    return _SPECIAL.sub(lambda match: f"\\{match[0]}", " ".join(text.split()))


def table_lines(head: Sequence[str], body: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """The lines of a table whose first `left` columns stand to the left, the others to the right."""
    rows = [[escaped(text) for text in row] for row in (head, *body)]
    widths = [max(3, *(len(row[n]) for row in rows)) for n in range(len(head))]
    rule = ["-" * w if n < left else "-" * (w - 1) + ":" for n, w in enumerate(widths)]
    lines = []
    for row in (rows[0], rule, *rows[1:]):
        pairs = zip(row, widths, strict=True)
        cells = [text.ljust(w) if n < left else text.rjust(w) for n, (text, w) in enumerate(pairs)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def number(value: float) -> str:
    """A value of a metric with six significant digits; what is not finite in words.

    >>> number(2.87654321), number(1234567.0), number(float("nan"))
    ('2.87654', '1.23457e+06', 'nan')
    """
    return f"{value:.6g}"


def markdown(rows: Sequence[RunRow], measures: Sequence[Measure]) -> list[str]:
    """One line for each run: what differs in the configs, steps, resumes, last and best values, time.

    Below the table stands what its columns mean.
    """
    configs = [flat(row.config) for row in rows]
    keys = differing(configs)
    names = short_names(keys, _OWN)
    head = ["run", *(names[key] for key in keys), "steps", "resumed"]
    for measure in measures:
        head += [f"last {measure.metric}", _best_head(measure), "at step"]
    body = []
    for row, config in zip(rows, configs, strict=True):
        line = [
            row.fingerprint,
            *(cell(config.get(key, ABSENT)) for key in keys),
            _steps(row),
            str(row.resumes),
        ]
        for measure in measures:
            metric, best = row.metrics.get(measure.metric), measure.of(row.metrics)
            line += [number(metric.last) if metric else "–"]
            line += [number(best[0]), f"{best[1]:,}"] if best else ["–", "–"]
        body.append([*line, format_duration(row.seconds)])
    lines = table_lines([*head, "machine time"], body)
    said = ["Steps that were run again count once; machine time is that of all attempts."]
    if any(measure.defaulted & {"metric", "mode"} for measure in measures):
        said.append(_STAR)
    return [*lines, "", " ".join(said)]


def _best_head(measure: Measure) -> str:
    star = "*" if measure.defaulted & {"metric", "mode"} else ""
    return f"{'lowest' if measure.mode == 'min' else 'highest'} {measure.metric}{star}"


def _steps(row: RunRow) -> str:
    """How far it came, and what became of it if it is not done."""
    if row.state == "done":
        return f"{row.step:,}"
    of = f" of {row.goal:,}" if row.goal is not None else ""
    return f"{row.step:,}{of} ({row.state})"


def markdown_groups(
    rows: Sequence[RunRow], measures: Sequence[Measure], seed_keys: Sequence[str], *, unfinished: bool = False
) -> list[str]:
    """One line for each group of runs that differ only in their seed: mean ± standard deviation, n, range, time.

    The runs that `seeds.group` counts; those that do not count are named below the table, with the reason.
    """
    of_measure = [group(rows, measure, seed_keys, unfinished=unfinished) for measure in measures]
    groups = of_measure[0] if of_measure else group(rows, None, seed_keys, unfinished=unfinished)
    order = sorted(range(len(groups)), key=lambda at: _rank(groups[at], measures[:1]))
    groups = [groups[at] for at in order]
    of_measure = [[found[at] for at in order] for found in of_measure]
    configs = [flat(each.config) for each in groups]
    keys = differing(configs)
    names = short_names(keys, _OWN)
    head = ["group", *(names[key] for key in keys), "runs"]
    for measure in measures:
        head += [_best_head(measure), "n", "range"]
    body = []
    for at, (each, config) in enumerate(zip(groups, configs, strict=True)):
        line = [each.fingerprint, *(cell(config.get(key, ABSENT)) for key in keys), str(len(each.members))]
        for found in of_measure:
            line += _spread(found[at].spread)
        body.append([*line, format_duration(sum(row.seconds for row in each.members))])
    lines = table_lines([*head, "machine time"], body)
    over = "all that logged it, done or not" if unfinished else "those that are done"
    said = [f"A group is runs that differ only in the seed: mean ± standard deviation (n − 1), over {over}."]
    if any(measure.defaulted & {"metric", "mode"} for measure in measures):
        said.append(_STAR)
    left = [f"{name} ({why})" for found in of_measure for each in found for name, why in each.left_out]
    if left:
        said.append(f"Left out: {escaped('; '.join(dict.fromkeys(left)))}.")
    return [*lines, "", " ".join(said)]


def _rank(each: Group, measure: Sequence[Measure]) -> tuple[bool, float]:
    """The best first, those without a value last."""
    if each.spread is None or not measure:
        return True, 0.0
    return False, each.spread.mean if measure[0].mode == "min" else -each.spread.mean


def _spread(found: Spread | None) -> list[str]:
    if found is None:
        return ["–", "0", "–"]
    return [
        mean_text(found.mean, found.deviation),
        str(found.n),
        f"{number(found.low)} – {number(found.high)}",
    ]


def mean_text(mean: float, deviation: float | None) -> str:
    """A mean with its standard deviation, both to the second digit of the latter; without one, six digits.

    >>> mean_text(0.3899172, 0.2013), mean_text(2.5, None), mean_text(1234.5, 56.7), mean_text(0.1, 0.0)
    ('0.39 ± 0.20', '2.5', '1234 ± 57', '0.1 ± 0')
    """
    if deviation is None or not 1e-6 < deviation < 1e6 or abs(mean) > 1e6:
        return number(mean) + ("" if deviation is None else f" ± {deviation:.2g}")
    places = max(1 - math.floor(math.log10(deviation)), 0)
    return f"{mean:.{places}f} ± {deviation:.{places}f}"
