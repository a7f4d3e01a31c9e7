"""Which number says how good a run is, and whether less or more of it is better."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from loadsheet.errors import BadInput, UnknownKey, one_line, shorten
from loadsheet.history.logs import Metric

Mode = Literal["min", "max"]
#: what of a run's curve is its value: the best over all steps, or the last one
Value = Literal["best", "last"]

_WORD: Final = r"(?:^|[/_.\- ])(?:{})(?:$|[/_.\- 0-9@])"
#: held-out data; what was measured on it says more than what was trained on
_HELD_OUT: Final = re.compile(
    _WORD.format("val|valid|validation|eval|evaluation|dev|test|heldout"), re.IGNORECASE
)
_LOSS: Final = re.compile(r"loss|nll|perplexity|ppl|bpb|bits_per_byte", re.IGNORECASE)
#: more of it is better; of everything else less is
_MORE: Final = re.compile(
    _WORD.format(
        "acc|accuracy|top[15]|f1|auc|auroc|precision|recall|map|miou|iou|bleu|rouge|rouge[l12]|meteor|score|reward"
        "|return|success|win_rate|pass|psnr|ssim|r2|correlation|exact_match|em|mfu|throughput|tokens_per_second|tps"
    )
    + "|per_second$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Measure:
    """The number by which runs are compared; `defaulted` has the names of what nobody chose.

    `logged`: how many runs have logged it, of how many that logged anything.
    """

    metric: str
    mode: Mode
    value: Value = "best"
    defaulted: frozenset[str] = frozenset()
    logged: tuple[int, int] | None = field(default=None, compare=False)

    def of(self, metrics: Mapping[str, Metric]) -> tuple[float, int] | None:
        """The value of a run and its step; None if it logged none that is finite."""
        metric = metrics.get(self.metric)
        if metric is None:
            return None
        if self.value == "last":
            return (metric.last, metric.last_step) if math.isfinite(metric.last) else None
        value, step = (metric.min, metric.min_step) if self.mode == "min" else (metric.max, metric.max_step)
        return None if value is None or step is None else (value, step)

    def better(self, one: float, other: float) -> bool:
        """Whether the first of two values is the better one."""
        return one < other if self.mode == "min" else one > other

    @property
    def said(self) -> str:
        """What it is, in a few words; a star marks what nobody chose. Where few runs have it, how many do.

        >>> Measure("val_loss", "min", "best", frozenset({"metric", "mode"})).said
        'val_loss*, the lowest* of each run'
        >>> Measure("val_loss", "min", "best", frozenset({"metric"}), (1, 6)).said
        'val_loss*: 1 of 6 runs, the lowest of each run'
        """
        metric = one_line(self.metric)[:60]
        few = ""
        if self.logged is not None and 2 * self.logged[0] <= self.logged[1]:
            few = f": {self.logged[0]:,} of {self.logged[1]:,} runs"
        star = {name: "*" if name in self.defaulted else "" for name in ("metric", "mode", "value")}
        if self.value == "last":
            less = "lower" if self.mode == "min" else "higher"
            return f"{metric}{star['metric']}{few}, the last{star['value']} of each run, {less}{star['mode']} is better"
        most = "lowest" if self.mode == "min" else "highest"
        return f"{metric}{star['metric']}{few}, the {most}{star['mode'] or star['value']} of each run"


def choose(
    all_metrics: Iterable[Mapping[str, Metric]],
    metric: str | None = None,
    mode: str | None = None,
    value: str | None = None,
) -> Measure | None:
    """The measure for some runs: what was asked for, the rest by the names that were logged.

    By default, of what most of the runs have logged, a loss on held-out data, else any number on held-out data,
    else a loss, else what most have; the highest is best of an accuracy, a score and the like, the lowest of all
    others. None if nothing was logged and nothing asked for. Raises UnknownKey for a metric that no run has.
    """
    for option, found, allowed in (("mode", mode, ("min", "max")), ("value", value, ("best", "last"))):
        if found is not None and found not in allowed:
            raise BadInput(f"--{option}: got {shorten(found)}, expected {' or '.join(allowed)}")
    counts: Counter[str] = Counter()
    total = 0
    for metrics in all_metrics:
        counts.update(metrics.keys())
        total += bool(metrics)
    if metric is not None and metric not in counts:
        raise UnknownKey(metric, counts, "metric")
    defaulted = {n for n, given in (("metric", metric), ("mode", mode), ("value", value)) if given is None}
    name = default_metric(counts, total) if metric is None else metric
    if name is None:
        return None
    return Measure(
        name,
        mode if mode in ("min", "max") else default_mode(name),  # type: ignore[arg-type]
        "last" if value == "last" else "best",
        frozenset(defaulted),
        (counts[name], total),
    )


def default_metric(counts: Mapping[str, int], total: int | None = None) -> str | None:
    """Of the names that were logged (with the number of runs that did, of `total`) the one that says most.

    What more than half of the runs have comes before what fewer have: by a number that one run of six has
    logged six runs cannot be compared.

    >>> default_metric({"loss": 3, "lr": 3, "val/loss": 2, "val/accuracy": 3})
    'val/loss'
    >>> default_metric({"loss": 6, "lr": 6, "val/loss": 1})
    'loss'
    """
    total = max(counts.values(), default=0) if total is None else total
    names = [name for name in counts if not name.startswith("timing.")] or list(counts)
    most = max((counts[name] for name in names), default=0)
    usual = [name for name in names if 2 * counts[name] > total]
    names = usual or [name for name in names if counts[name] == most]
    for test in (
        lambda name: _HELD_OUT.search(name) and _LOSS.search(name),
        _HELD_OUT.search,
        _LOSS.search,
        _MORE.search,
        lambda _: True,
    ):
        if found := [name for name in names if test(name)]:
            return min(found, key=lambda name: (-counts[name], len(name), name))
    return None


def default_mode(name: str) -> Mode:
    """Whether the lowest or the highest is best, by the name.

    >>> default_mode("val_loss"), default_mode("eval/accuracy"), default_mode("timing.tokens_per_second")
    ('min', 'max', 'max')
    """
    return "max" if _MORE.search(name) and not _LOSS.search(name) else "min"
