"""All that is known of one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from loadsheet.errors import LoadsheetError
from loadsheet.history.attempts import Attempt, read_attempts
from loadsheet.history.index import INDEX, scan
from loadsheet.history.inside import Inside
from loadsheet.history.levels import Level, levels
from loadsheet.history.levels import to_json as levels_json
from loadsheet.history.listing import finite, measure_json, row_json
from loadsheet.history.measures import Measure, choose
from loadsheet.history.rows import Notes, RunRow, read_object, unix_time
from loadsheet.history.seeds import Group, group, to_json
from loadsheet.history.story import Story, read_story
from loadsheet.history.story import to_json as events_json

_MOST_CHECKPOINTS: Final = 1000
MEASURED_BYTES: Final = 16 << 20
SHEET_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint: completed steps, bytes of its files, when it was made (Unix seconds)."""

    step: int
    nbytes: int
    time: float | None


@dataclass(slots=True)
class Account:
    """A run with everything that was read of it."""

    row: RunRow
    measure: Measure | None
    story: Story
    attempts: list[Attempt]
    checkpoints: list[Checkpoint]
    measured: dict[str, dict[str, Any]]
    sheet: dict[str, Any] | None
    group: Group | None
    levels: list[Level] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def account(
    row: RunRow,
    measure: tuple[str | None, str | None, str | None] = (None, None, None),
    seed_keys: Sequence[str] = (),
) -> Account:
    """Read a run; `measure` is metric, mode and value as `measures.choose` takes them, by which seeds are compared.

    Raises UnknownKey for a metric that the run has not logged; what is wrong with its files stands in `problems`.
    """
    chosen = choose([row.metrics], *measure)
    notes = Notes()
    inside = Inside(row.path, row.path.parent)
    attempts = read_attempts(inside, notes)
    story = read_story(row)
    siblings = _siblings(row, chosen, seed_keys)
    measured = read_object(inside, "measured.json", MEASURED_BYTES, notes) or {}
    entries = measured.get("attempts")
    problems = dict.fromkeys([*row.problems, *notes.lines, *story.problems])
    return Account(
        row=row,
        measure=chosen,
        story=story,
        attempts=attempts,
        checkpoints=_checkpoints(inside, row),
        measured={k: v for k, v in entries.items() if isinstance(v, dict)}
        if isinstance(entries, dict)
        else {},
        sheet=read_object(inside, "sheet.json", SHEET_BYTES, notes),
        group=siblings,
        levels=levels(story, attempts, siblings, chosen),
        problems=list(problems),
    )


def _siblings(row: RunRow, measure: Measure | None, seed_keys: Sequence[str]) -> Group | None:
    """The runs beside this one that differ from it only in the seed, itself among them."""
    folder = Path(row.path).absolute().parent
    rows = scan(folder, index=(folder / INDEX).exists())  # nothing is written where nobody listed runs
    for found in group(rows, measure, seed_keys):
        if any(member.path.name == row.path.name for member in found.members):
            return found
    return None


def _checkpoints(inside: Inside, row: RunRow) -> list[Checkpoint]:
    found = []
    for step in row.checkpoints[-_MOST_CHECKPOINTS:]:
        folder = row.path / "checkpoints" / f"step-{step:08d}"
        nbytes, newest = 0, None
        for name in ("manifest.json", "state.json", "tensors.bin"):
            try:
                facts = inside.file(f"checkpoints/{folder.name}/{name}").stat()
            except (OSError, LoadsheetError):
                continue
            nbytes += facts.st_size
            newest = max(newest or 0.0, facts.st_mtime)
        found.append(Checkpoint(step, nbytes, unix_time(newest)))
    return found


def account_json(found: Account) -> dict[str, Any]:
    """An account as `--json` has it."""
    return {
        "schema": 1,
        **row_json(found.row, found.measure),
        "measure": measure_json(found.measure),
        "attempt_records": [
            {
                "attempt": each.number,
                "started": each.started,
                "machine": each.machine,
                "code": each.code,
                "changes": list(each.changes),
                "record": each.facts,
            }
            for each in found.attempts
        ],
        "lives": [
            {
                "attempt": life.attempt,
                "from_step": life.begin,
                "to_step": life.end,
                "started": life.started,
                "seen": life.seen,
                "lost_steps": life.lost,
                "ending": life.ending,
                "reason": life.reason,
            }
            for life in found.story.lives
        ],
        "events": events_json(found.story.events),
        "checkpoint_files": [
            {"step": c.step, "bytes": c.nbytes, "time": finite(c.time)} for c in found.checkpoints
        ],
        "measured": found.measured,
        "sheet": found.sheet,
        "group": to_json(found.group) if found.group is not None else None,
        "reproducibility": levels_json(found.levels),
        "problems": found.problems,
    }
