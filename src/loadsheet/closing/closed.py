"""Close a sheet: what was predicted beside what was measured, and which assumption was off."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from loadsheet.closing.assumptions import assumptions, sameness
from loadsheet.closing.calibrate import append, calibration_line
from loadsheet.closing.evidence import gather, number
from loadsheet.closing.hours import Hours, hours_of
from loadsheet.closing.items import Row, Sides, rows
from loadsheet.errors import BadInput
from loadsheet.money.price import parse_price

SCHEMA = 1


@dataclass(frozen=True)
class Closed:
    """A run held against its signed sheet."""

    sides: Sides

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Every item: predicted, measured, ratio, inside or outside."""
        return tuple(rows(self.sides))

    @cached_property
    def hours(self) -> Hours | str:
        """Where the machine time went, or why that cannot be said."""
        return hours_of(self.sides)

    @cached_property
    def assumptions(self) -> tuple[str, ...]:
        """Which assumption was off, in sentences."""
        return assumptions(self.sides, self.rows, self.hours)

    @cached_property
    def calibration(self) -> dict[str, Any]:
        """The line that a later plan can use."""
        return calibration_line(self.sides, list(self.rows))

    @property
    def outside(self) -> tuple[str, ...]:
        """The names of the items that lie outside the predicted range."""
        return tuple(row.name for row in self.rows if row.inside is False)

    @cached_property
    def signed_before(self) -> bool | None:
        """Whether the sheet was signed before the first step; None where the log has no time."""
        signed = number(self.sides.evidence.signed, "signed", "time")
        first = next((life.first for life in self.sides.evidence.lives if life.first is not None), None)
        return None if signed is None or first is None else signed <= first

    def __getitem__(self, name: str) -> Row:
        """The item of that name; KeyError if there is none."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def append_to(self, path: str | os.PathLike[str]) -> None:
        """Append the calibration to a file. Raises BadInput for a run that the sheet does not describe, BadFile."""
        other = next(sameness(self.sides, self.rows, step=False), None)
        if other is not None:
            raise BadInput(
                "calibration: got a run that is not what the sheet describes, expected the same", other
            )
        append(self.calibration, path)

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `close`; base units."""
        e = self.sides.evidence
        signed = e.signed["signed"]
        model = self.sides.sheet.get("model")
        cluster = self.sides.sheet.get("cluster")
        return {
            "schema": SCHEMA,
            "run": {
                "path": str(e.path),
                "fingerprint": e.path.resolve().name,
                "finished": self.sides.finished,
                "steps": e.completed,
                "attempts": len(e.attempts),
                "lives": len(e.lives),
                "interruptions": e.interruptions,
                "lost_steps": e.lost_steps,
            },
            "sheet": {
                "sha256": signed.get("sha256"),
                "signed": signed.get("time"),
                "version": signed.get("version"),
                "signed_before_the_run": self.signed_before,
                "model": model.get("name") if isinstance(model, dict) else None,
                "gpu": cluster.get("gpu") if isinstance(cluster, dict) else None,
                "gpus": self.sides.gpus,
                "steps": self.sides.steps,
                "currency": self.sides.currency,
            },
            "share": self.sides.share,
            "items": [row.to_json() for row in self.rows],
            "outside": list(self.outside),
            "hours": {"why": self.hours} if isinstance(self.hours, str) else self.hours.to_json(),
            "assumptions": list(self.assumptions),
            "unread": list(e.unread),
            "calibration": self.calibration,
        }

    def text(self, *, width: int = 100) -> str:
        """The page."""
        from loadsheet.closing.closed_text import render

        return render(self, width)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Closed {self.sides.evidence.path.name}: {len(self.outside)} outside>"


def close(run: Any, *, sheet: str | os.PathLike[str] | None = None, price: Any = None) -> Closed:
    """Hold a run (its directory, or a `Run`) against its signed sheet; one that is not done, so far.

    `sheet` names the signed sheet where the run has none of its own. `price` per GPU hour, if another was
    paid than the sheet has. Reads only. Raises BadInput, BadFile.
    """
    path = run if isinstance(run, str | os.PathLike) else run.path
    paid = None if price is None else parse_price(price)
    return Closed(Sides(gather(path, sheet), paid))
