"""The score: every row predicted or skipped with its reason, and what it amounts to per source."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from loadsheet.errors import LoadsheetError, one_line
from loadsheet.ledger import Estimate
from loadsheet.memory import MemoryAccount, training_memory
from loadsheet.score.cases import Case
from loadsheet.score.frameworks import case_of
from loadsheet.score.statistics import Metrics, Pair, merged, metrics
from loadsheet.score.truth import Row, Skip, read_truth
from loadsheet.units import GIB

METRIC: Final = "peak_memory"
#: the published measurements that come with the package
PUBLISHED: Final = Path(__file__).parent / "data" / "peak_memory.csv"


@dataclass(frozen=True, slots=True)
class Scored:
    """One row: measured and predicted bytes, or why it is skipped; a verdict if the run had no room."""

    row: Row
    measured: float | None = None
    predicted: Estimate | None = None
    verdict: str | None = None
    skipped: str | None = None
    in_scope: bool = True
    assumed: tuple[str, ...] = ()

    @property
    def pair(self) -> Pair | None:
        """Measured beside predicted, if there are both."""
        if self.measured is None or self.predicted is None:
            return None
        p = self.predicted
        return Pair(self.row.source, self.row.group, self.measured, p.low, p.mid, p.high)

    def to_json(self) -> dict[str, Any]:
        """As the design has it; bytes."""
        p = self.predicted
        return {
            "id": self.row.id,
            "source": self.row.source,
            "metric": METRIC,
            "measured": self.measured,
            "low": p.low if p is not None else None,
            "mid": p.mid if p is not None else None,
            "high": p.high if p is not None else None,
            "skipped": self.skipped,
            "complete": self.row.complete,
            "in_scope": self.in_scope,
            "verdict": self.verdict,
            "assumed": list(self.assumed),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All rows, and their figures; `only_complete` rows make up the figures, the others stand apart."""

    rows: tuple[Scored, ...]

    @property
    def sources(self) -> dict[str, Metrics]:
        """Source -> figures of its complete rows; sources none of whose rows count are left out."""
        return self._by_source(complete=True)

    @property
    def partial(self) -> dict[str, Metrics]:
        """The same of rows that leave something open, for which a default was taken."""
        return {s: m for s, m in self._by_source(complete=False).items() if m.n}

    @property
    def overall(self) -> Metrics:
        """Over sources, each of which weighs the same."""
        rows = [s for s in self.rows if s.row.complete and s.in_scope]
        return _metrics(rows)

    @property
    def by_task(self) -> dict[str, Metrics]:
        """Task -> figures of complete rows."""
        rows = [s for s in self.rows if s.row.complete and s.in_scope]
        tasks = sorted({s.row.text("task").lower() for s in rows})
        return {t: _metrics([s for s in rows if s.row.text("task").lower() == t]) for t in tasks}

    @property
    def verdicts(self) -> dict[str, int]:
        """Of complete runs that had no room: how often the sheet says so, is undecided, or says it fits."""
        found = [s.verdict for s in self.rows if s.verdict is not None and s.row.complete]
        return {v: found.count(v) for v in ("does_not_fit", "tight", "fits")}

    @property
    def skipped(self) -> dict[str, int]:
        """Reason -> rows, most frequent first."""
        reasons: dict[str, int] = {}
        for s in self.rows:
            if s.skipped is not None:
                reasons[s.skipped] = reasons.get(s.skipped, 0) + 1
        return dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0])))

    def _by_source(self, *, complete: bool) -> dict[str, Metrics]:
        out: dict[str, Metrics] = {}
        for source in dict.fromkeys(s.row.source for s in self.rows):
            rows = [
                s for s in self.rows if s.row.source == source and s.row.complete == complete and s.in_scope
            ]
            if rows:
                out[source] = _metrics(rows)
        return out

    def to_json(self) -> dict[str, Any]:
        """As the design has it, and besides: figures by task, of partial rows, verdicts."""
        return {
            "metrics": {METRIC: self.overall.to_json()},
            "sources": {source: {METRIC: m.to_json()} for source, m in self.sources.items()},
            "tasks": {task: {METRIC: m.to_json()} for task, m in self.by_task.items()},
            "partial": {source: {METRIC: m.to_json()} for source, m in self.partial.items()},
            "verdicts": self.verdicts,
            "rows": [s.to_json() for s in self.rows],
        }


def score(path: str | os.PathLike[str]) -> Report:
    """Predict every row of a table of measurements. Raises BadFile if it is none."""
    return Report(tuple(_score(row) for row in read_truth(path)))


def _metrics(rows: Sequence[Scored]) -> Metrics:
    predicted = sum(s.skipped is None for s in rows)
    return metrics(merged(p for s in rows if (p := s.pair) is not None), predicted, len(rows))


def _score(row: Row) -> Scored:
    measured = None
    try:
        peak = row.real("peak_mem_gib")
        measured = peak * GIB if peak is not None else None
        if measured is not None and measured <= 0:
            raise Skip(f"row {row.number}, peak_mem_gib: got {peak:g}, expected more than 0")
        case = case_of(row)
        estimate, verdict = _predict(case, measured)
    except Skip as skip:
        return Scored(row, measured, skipped=str(skip), in_scope=skip.in_scope)
    except LoadsheetError as error:
        return Scored(row, measured, skipped=one_line(str(error)))
    if verdict is not None:
        return Scored(row, None, estimate, verdict, assumed=case.assumed)
    return Scored(row, measured, estimate, assumed=case.assumed)


def _predict(case: Case, measured: float | None) -> tuple[Estimate, str | None]:
    """The estimate of the counter that the row names; for a run that had no room, the verdict."""
    account = training_memory(case.model, case.recipe)
    estimate = _of_counter(account, case)
    if case.shorter < 1:  # the longest batch may be shorter than the bound that the row states
        least = replace(case.recipe, seq=max(1, int(case.recipe.seq * case.shorter)))
        low = _of_counter(training_memory(case.model, least), case).low
        estimate = Estimate(low, estimate.mid, estimate.high, estimate.reason)
    if case.counter != "out of memory":
        return estimate, None
    capacity = case.capacity or 0.0
    if estimate.low > capacity:
        return estimate, "does_not_fit"
    return estimate, "fits" if estimate.high <= capacity else "tight"


def _of_counter(account: MemoryAccount, case: Case) -> Estimate:
    if case.counter == "allocated":
        return account.allocated
    return account.reserved if case.counter == "reserved" else account.peak


def tables(report: Report, *, rows: bool = False) -> dict[str, list[list[str]]]:
    """The figures as tables of text, by title: all and by source, by task, partial rows; every row if asked."""
    head = ["n", "coverage", "median", "90 %", "bias", "> 5 % low", "inside", "width", "own median", "90 %"]
    out: dict[str, list[list[str]]] = {}
    every = {"all sources": report.overall, **report.sources}
    for title, group in (
        ("Peak memory, |relative error|", every),
        ("By task", report.by_task),
        ("Rows that leave something open, with defaults for it", report.partial),
    ):
        out[title] = [["", *head], *([name, *_cells(m)] for name, m in group.items())]
    if rows:
        found = [["id", "source", "model", "measured", "low", "mid", "high", "error", ""]]
        found += [_line(s) for s in report.rows if s.skipped is None]
        found += [
            [s.row.id, s.row.source, s.row.text("model"), *[""] * 5, s.skipped or ""]
            for s in report.rows
            if s.skipped is not None and s.in_scope
        ]
        out["Rows, GiB"] = found
    return out


def _cells(m: Metrics) -> list[str]:
    def percent(value: float | None, digits: int = 1) -> str:
        return "–" if value is None else f"{100 * value:.{digits}f} %"

    shares = (percent(m.too_low_share, 0), percent(m.inside_share, 0))
    trivial = (percent(m.trivial_median_abs_error), percent(m.trivial_p90_abs_error))
    errors = (percent(m.median_abs_error), percent(m.p90_abs_error), percent(m.bias))
    return [str(m.n), percent(m.coverage, 0), *errors, *shares, percent(m.median_width), *trivial]


def _line(s: Scored) -> list[str]:
    assert s.predicted is not None
    p, pair = s.predicted, s.pair
    figures = [f"{value / GIB:.2f}" for value in (p.low, p.mid, p.high)]
    name = f"{s.row.text('model')} {s.row.text('task')}"
    if pair is None:
        return [s.row.id, s.row.source, name, "no room", *figures, "", s.verdict or ""]
    note = "" if pair.inside else "outside"
    if not s.row.complete:
        note = f"{note} partial".strip()
    return [
        s.row.id,
        s.row.source,
        name,
        f"{pair.measured / GIB:.2f}",
        *figures,
        f"{100 * pair.error:+.1f} %",
        note,
    ]
