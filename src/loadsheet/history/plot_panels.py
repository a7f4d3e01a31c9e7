"""Which curves stand in which panel: of runs, or of groups of runs that differ only in the seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loadsheet.errors import BadInput
from loadsheet.history.configs import ABSENT, differing, flat
from loadsheet.history.listing import comparable
from loadsheet.history.measures import choose
from loadsheet.history.plot_curves import Axis, Curve, labels, mean_of, read_curves
from loadsheet.history.rows import RunRow
from loadsheet.history.seeds import Group, group, without_seeds

_SHOWN = 5  # runs that are left out, by name


@dataclass(slots=True)
class Panels:
    """The curves of each panel, what must be said about those that are missing, and the runs left out.

    `left_out` has for each run that does not count in its group the reason.
    """

    curves: list[list[Curve]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


def panels_of(
    rows: Sequence[RunRow],
    wanted: Sequence[Sequence[str]],
    axis: Axis,
    beta: float,
    seed_keys: Sequence[str] | None = None,
    *,
    unfinished: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Panels:
    """The curves of the metrics of each panel, in the order of what differs in the configs.

    With `seed_keys` (further names of seeds) runs that differ only in their seed are one curve, of those that
    count: see `seeds.group`. Raises BadInput where nothing is left to draw, and what reading a log raises.
    """
    found = Panels()
    names = list(dict.fromkeys(name for panel in wanted for name in panel))
    rows = _sorted(rows, seed_keys)
    if seed_keys is None:
        curves = _of_runs(rows, names, axis, beta, found, say)
    else:
        curves = _of_groups(rows, names, axis, beta, seed_keys, unfinished, found, say)
    for panel in wanted:
        found.curves.append([curve for name in panel for curve in curves if curve.metric == name])
        if not found.curves[-1]:
            raise BadInput(
                f"runs plot: got no value of {', '.join(panel)[:80]} to draw, expected at least one",
                f"{found.notes[0]}; --unfinished lets such runs count" if found.left_out else "",
            )
    return found


def _sorted(rows: Sequence[RunRow], seed_keys: Sequence[str] | None) -> list[RunRow]:
    """The runs by what differs in their configs, the seeds last."""
    configs = [flat(row.config) for row in rows]
    plain = [flat(without_seeds(row.config, seed_keys or ())) for row in rows]
    first = differing(plain)
    keys = [*first, *(key for key in differing(configs) if key not in first)]

    def order(at: int) -> list[tuple[int, object]]:
        values = [configs[at].get(key, ABSENT) for key in keys]
        return [(-1, 0) if value is ABSENT else comparable(value) for value in values]

    return [rows[at] for at in sorted(range(len(rows)), key=order)]


def _of_runs(
    rows: Sequence[RunRow],
    names: Sequence[str],
    axis: Axis,
    beta: float,
    found: Panels,
    say: Callable[[str], None],
) -> list[Curve]:
    curves = []
    for number, (row, label) in enumerate(zip(rows, labels(rows), strict=True)):
        say(f"reading {row.fingerprint}, {number + 1} of {len(rows)}")
        if not set(names) & row.metrics.keys():
            found.notes.append(f"{row.fingerprint}: has logged no {', '.join(names)}; it is left out")
            continue
        read = read_curves(row, label, names, axis, beta)
        curves += [dataclasses.replace(curve, order=number) for curve in read]
    return curves


def _of_groups(
    rows: Sequence[RunRow],
    names: Sequence[str],
    axis: Axis,
    beta: float,
    seed_keys: Sequence[str],
    unfinished: bool,
    found: Panels,
    say: Callable[[str], None],
) -> list[Curve]:
    curves = []
    alone = True
    for name in names:
        measure = choose([row.metrics for row in rows], name)
        for number, each in enumerate(group(rows, measure, seed_keys, unfinished=unfinished)):
            alone &= len(each.members) == 1
            found.left_out.update(each.left_out)
            read = []
            for row in each.counted:
                say(f"reading {row.fingerprint}")
                read += read_curves(row, each.name, [name], axis, beta)
            if not read:
                continue
            mean = mean_of(read, each.name) if len(read) > 1 else read[0]
            if not mean.x and len(read) > 1:
                found.notes.append(
                    f"{each.name}: its {len(read)} seeds have no step with {name} in common; left out"
                )
                continue
            _say_cut(each, name, read, found)
            curves.append(dataclasses.replace(mean, order=number, grouped=True))
    lines = [f"left out: {fingerprint}, {reason}" for fingerprint, reason in found.left_out.items()]
    if more := len(lines) - _SHOWN:
        lines[_SHOWN:] = [f"left out: {more} more; --json has all"] if more > 0 else []
    found.notes += lines
    if alone:
        found.notes.append("--seeds: no two of these runs differ only in their seed; each is drawn by itself")
    return curves


def _say_cut(each: Group, name: str, read: Sequence[Curve], found: Panels) -> None:
    """A mean ends where the first of its runs does: whose that is must be said."""
    ends = [curve.steps[-1] for curve in read if curve.steps]
    if len(ends) > 1 and min(ends) < max(ends):
        row = each.counted[ends.index(min(ends))]
        found.notes.append(
            f"{each.name}: the mean of {name} ends at step {min(ends):,}, where {row.fingerprint} does; the others go "
            f"on to step {max(ends):,}"
        )
