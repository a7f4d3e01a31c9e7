"""The answer of `odds` as a picture: the distribution of cost or time, and the time against the interval."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loadsheet.errors import BadInput, LoadsheetError, shorten
from loadsheet.units import format_duration

if TYPE_CHECKING:
    from loadsheet.money.answer import Odds

_BINS = 80
_PLAIN, _STRESSED, _LINE = "#3f7fb5", "#f2a33a", "#c0504d"
SUFFIXES = (".png", ".svg", ".pdf")


def check(path: str) -> None:
    """Whether a picture can be made of that name; LoadsheetError without matplotlib, BadInput for the name."""
    if not path.lower().endswith(SUFFIXES):
        raise BadInput(f"--plot: got {shorten(path)}, expected a name that ends in .png, .svg or .pdf")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise LoadsheetError("--plot: matplotlib is not installed", "pip install 'loadsheet[plot]'") from None


def draw(odds: Odds, path: str | None = None) -> Any:
    """A matplotlib figure, written to `path` if one is given. Raises BadInput if it cannot be written."""
    from matplotlib.figure import Figure  # no pyplot: no global state, no display

    bill = odds.question.bill
    figure = Figure(figsize=(7, 3.2 * (3 if bill is not None else 2)), layout="constrained")
    panels = list(figure.subplots(3 if bill is not None else 2, 1))
    _times(panels[0], odds)
    if bill is not None:
        _costs(panels[1], odds)
    _intervals(panels[-1], odds)
    if path is not None:
        try:
            figure.savefig(path, dpi=150)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise BadInput(
                f"--plot: cannot write to {shorten(path)}: {reason}", "name a file that you may write"
            ) from None
    return figure


def _histogram(axes: Any, plain: Any, stressed: Any | None) -> None:
    groups = [g for g in (plain, stressed) if g is not None]
    if not all(len(g) for g in groups):
        return
    low = min(float(g.min()) for g in groups)
    # the last thousandth would squeeze the rest
    high = max(sorted(g)[min(int(0.999 * len(g)), len(g) - 1)] for g in groups)
    edges = [low + (high - low) * i / _BINS for i in range(_BINS + 1)] if high > low else [low - 1, low + 1]
    for group, colour, label in zip(groups, (_PLAIN, _STRESSED), ("exponential", "stressed"), strict=False):
        axes.hist(group, bins=edges, weights=[1 / len(group)] * len(group), histtype="stepfilled",
                  color=colour, alpha=0.55, label=label if len(groups) > 1 else "the trace, replayed")  # fmt: skip
    axes.set(ylabel="share of jobs", ylim=(0, None))


def _line(axes: Any, where: float, label: str, style: str = "--") -> None:
    axes.axvline(where, color=_LINE, linestyle=style, label=label)


def _times(axes: Any, odds: Odds) -> None:
    q = odds.question
    known = odds.expected_wall is not None
    plain, stressed = ((s.wall if known else s.machine)[~s.cut] for s in (odds.sample, odds.stressed))
    _histogram(axes, plain / 3600, None if q.trace is not None else stressed / 3600)
    _line(axes, q.job.undisturbed / 3600, f"undisturbed {format_duration(q.job.undisturbed)}", ":")
    if q.deadline is not None and known:
        _line(axes, q.deadline / 3600, f"deadline {format_duration(q.deadline)}")
    axes.set(xlabel="hours from start to end, waits included" if known else "hours of machine time")
    axes.legend(fontsize=8)


def _costs(axes: Any, odds: Odds) -> None:
    q = odds.question
    bill = q.bill
    if bill is None:
        return
    plain, stressed = (bill.total(s.charged, s.waiting, s.wall)[~s.cut] for s in (odds.sample, odds.stressed))
    _histogram(axes, plain, None if q.trace is not None else stressed)
    if q.budget is not None:
        _line(axes, q.budget, f"budget {q.budget:,.2f}")
    if odds.on_demand is not None:
        _line(axes, odds.on_demand["cost"], f"on demand {odds.on_demand['cost']:,.2f}", "-.")
    axes.set(xlabel=f"cost {bill.currency}".rstrip())
    axes.legend(fontsize=8)


def _intervals(axes: Any, odds: Odds) -> None:
    every, slowdown = odds.curve()
    axes.plot([tau / 60 for tau in every], slowdown, color=_PLAIN)
    best = min(slowdown)
    for name, colour in (("young", "#8db9dd"), ("daly", "#2e7d32"), ("exact", "#000000")):
        if every[0] <= odds.interval[name] <= every[-1]:
            axes.axvline(odds.interval[name] / 60, color=colour, linewidth=1, linestyle=":", label=name)
    if odds.question.interval_given:
        _line(axes, odds.question.job.interval / 60, "given")
    top = max(min(max(slowdown), 1 + 4 * (best - 1)), best * 1.02)
    axes.set(xscale="log", xlabel="minutes of work between saves", ylabel="machine time / work",
             ylim=(best - 0.05 * (top - best), top))  # fmt: skip
    axes.legend(fontsize=8)
