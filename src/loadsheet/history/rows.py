"""One run directory as one row: what it is, how far it came, what it measured, what is wrong with it.

Nothing here trusts the directory: files are bounded in size, links that leave the root are not followed,
and what cannot be read becomes a line in `problems`, never an exception and never a row left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from loadsheet import signature
from loadsheet.errors import LoadsheetError, one_line, shorten
from loadsheet.history.inside import Inside
from loadsheet.history.logs import LogSummary, Metric, Pass, read_pass, summary_of
from loadsheet.run.fingerprint import digest
from loadsheet.run.lock import in_use
from loadsheet.run.machine_time import alive

State = Literal["done", "running", "interrupted", "failed", "empty"]
STATES: Final = ("done", "running", "interrupted", "failed", "empty")
FINGERPRINT: Final = re.compile(r"[0-9a-f]{10}")
#: bytes of a file that is read; a config or a record of an attempt is far smaller
CONFIG_BYTES: Final = 4 << 20
RECORD_BYTES: Final = 4 << 20
_ATTEMPT: Final = re.compile(r"attempt-([0-9]{4,9})\.json")
_CHECKPOINT: Final = re.compile(r"step-([0-9]{8,18})")
_MOST_FILES: Final = 100_000  # of one run directory; a row must not cost minutes
_MOST_ATTEMPTS: Final = 1000  # whose records are read


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run; times in seconds since 1970, sizes in bytes.

    `step` counts completed steps that were logged or saved, `total` is what the done marker says and
    `planned` what the newest attempt was asked for. `seconds` is the machine time of all attempts: see
    `run.machine_time`. `lost_steps` were run again after an interruption; `unsaved_steps` were logged after
    the newest checkpoint and will be run again when the run goes on (None while it runs, or where the files
    do not tell). State "failed": the script left the loop before the last step, by an error or `break`;
    "interrupted": stopped or killed.
    """

    path: Path
    fingerprint: str
    config: dict[str, Any]
    excluded: dict[str, Any]
    attempts: int
    step: int
    total: int | None
    state: State
    started: float | None
    updated: float | None
    seconds: float
    resumes: int
    lost_steps: int
    metrics: dict[str, Metric]
    checkpoints: tuple[int, ...]
    nbytes: int
    problems: tuple[str, ...] = ()
    planned: int | None = None
    #: by the signed sheet: how many GPUs, and what one costs per hour; None where it does not say
    gpus: int = 1
    price: float | None = None
    currency: str = ""
    unsaved_steps: int | None = None

    @property
    def goal(self) -> int | None:
        """The steps this run is to make, as far as anything says so."""
        return self.total if self.state == "done" or self.planned is None else self.planned


@dataclass(slots=True)
class Notes:
    """What went wrong while one directory was read, a line each."""

    lines: list[str] = field(default_factory=list)

    def add(self, line: object) -> None:
        """One more, if it is new; the first twenty are kept."""
        text = one_line(str(line))
        if text not in self.lines and len(self.lines) < 20:
            self.lines.append(text)


def read_row(path: Path, root: Path | None = None) -> RunRow:
    """The row of a run directory; `root` is what links in it may not leave, by default itself.

    Raises nothing for what stands in the directory: see `problems`.
    """
    return read_again(path, root, None)[0]


def read_again(path: Path, root: Path | None, earlier: Pass | None) -> tuple[RunRow, Pass]:
    """As `read_row`, and the pass over the log, which goes on from an earlier one where it can."""
    notes = Notes()
    inside = Inside(path, root)
    if inside.leaves():
        notes.add("the directory is a link that leaves the folder of runs: not followed")
        return _row(path, {}, {}, None, {}, (), Pass(), 0, notes, None), Pass()
    config = read_object(inside, "config.json", CONFIG_BYTES, notes, needed=True)
    done = read_object(inside, "done.json", 1 << 16, notes)
    measured = read_object(inside, "measured.json", 16 << 20, notes)
    starts, excluded = _attempts(inside, notes)
    found = _log(inside, notes, earlier)
    sheet = _sheet(inside, notes)
    row = _row(
        path,
        config or {},
        excluded,
        done,
        starts,
        _checkpoints(inside, notes),
        found,
        _bytes(inside, notes),
        notes,
        measured,
        sheet,
    )
    return row, found


def _row(
    path: Path,
    config: dict[str, Any],
    excluded: dict[str, Any],
    done: dict[str, Any] | None,
    starts: dict[int, dict[str, Any]],
    checkpoints: tuple[int, ...],
    found: Pass,
    nbytes: int,
    notes: Notes,
    measured: dict[str, Any] | None,
    sheet: dict[str, Any] | None = None,
) -> RunRow:
    log = summary_of(found)
    for line in log.problems:
        notes.add(line)
    named = FINGERPRINT.fullmatch(path.name) is not None
    if config and named and (own := digest(config)) != path.name:
        notes.add(
            f"config.json: got the config of {own}, expected that of {path.name}: it was edited or moved"
        )
    total = (done or {}).get("steps")
    if done is not None and (type(total) is not int or not 0 <= total < 1 << 62):
        notes.add(f"done.json: got steps {shorten(total)}, expected a whole number from 0 on")
        total = None
    attempts = max([len(starts), *starts, *log.times], default=0)
    step = max(log.reached, log.resumed_from, *checkpoints, 0)
    if total is not None and log.last_step <= total and step <= total + 1:
        step = total  # a log that does not say what was planned, and what was logged after the loop
    times = [time for pair in log.times.values() for time in pair]
    begun = [unix_time(record.get("time")) for record in starts.values()]
    times += [time for time in begun if time is not None]
    if (finished := unix_time((done or {}).get("time"))) is not None:
        times.append(finished)
    gpus, price, currency = sheet_price(sheet)
    state = _state(step, total, attempts, log, measured)
    return RunRow(
        path=path,
        fingerprint=path.name if named or not config else digest(config),
        config=config,
        excluded=excluded,
        attempts=attempts,
        step=step,
        total=total,
        state=state,
        started=min(times, default=None),
        updated=max(times, default=None),
        seconds=_machine_seconds(starts, log, measured),
        resumes=log.resumes,
        lost_steps=log.lost_steps,
        metrics=log.metrics,
        checkpoints=checkpoints,
        nbytes=nbytes,
        problems=tuple(notes.lines),
        planned=log.planned,
        gpus=gpus,
        price=price,
        currency=currency,
        unsaved_steps=_unsaved(state, step, log, checkpoints, notes),
    )


def unix_time(value: object) -> float | None:
    """A time in seconds since 1970, if it is one."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e12:
        return float(value)
    return None


def sheet_price(signed: dict[str, Any] | None) -> tuple[int, float | None, str]:
    """By a signed sheet: the number of GPUs, the price of one for an hour (None: not said), its currency."""
    intent = (signed or {}).get("intent")
    cluster = _inner((signed or {}).get("sheet")).get("cluster")
    count = _inner(cluster).get("gpus")
    gpus = count if type(count) is int and 0 < count < 1 << 31 else 1
    price = _inner(intent).get("price")
    if isinstance(price, dict):
        amount, currency = price.get("amount"), price.get("currency")
    else:
        amount, currency = price, _inner(intent).get("currency")
    if not isinstance(amount, int | float) or isinstance(amount, bool) or not 0 <= amount < 1e12:
        return gpus, None, ""
    return gpus, float(amount), one_line(currency)[:8] if isinstance(currency, str) else ""


def _inner(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_it_runs(row: RunRow) -> RunRow:
    """The row as running if a living process has the run now, by its lock; a done run is not asked for."""
    if row.state == "done" or in_use(row.path / "lock") is not True:
        return row
    return replace(row, state="running", unsaved_steps=None)


def _unsaved(
    state: State, step: int, log: LogSummary, checkpoints: tuple[int, ...], notes: Notes
) -> int | None:
    """Completed steps that no checkpoint has; None where the checkpoints or the log could not be read."""
    if state in ("done", "empty"):
        return 0
    if any(line.startswith(("checkpoints", "log.jsonl: got", "the directory")) for line in notes.lines):
        return None
    saved = max(*checkpoints, log.saved_elsewhere or 0, 0)
    if saved < log.resumed_from:
        return None  # it went on from a checkpoint that is not here, so another one may be elsewhere
    return max(step - saved, 0)


def _state(
    step: int, total: int | None, attempts: int, log: LogSummary, measured: dict[str, Any] | None
) -> State:
    """What became of it, as far as its files tell; whether it runs now is for the lock to say.

    A killed attempt says nothing. One that was left by an error in the script, or by `break`, says so in the
    log and in `measured.json`.
    """
    if total is not None and step <= total:
        return "done"
    if not attempts:
        return "empty"
    ended = _inner(_inner(_inner(measured).get("attempts")).get(str(attempts))).get("ended")
    return "failed" if log.ending == "left" or (ended == "left" and not log.ending) else "interrupted"


def _machine_seconds(
    starts: dict[int, dict[str, Any]], log: LogSummary, measured: dict[str, Any] | None
) -> float:
    """The machine time of all attempts, by the rule of `run.machine_time`; one that left no sign of life has none."""
    known = _inner(_inner(measured).get("attempts"))
    seconds = 0.0
    for attempt in {*log.times, *starts}:
        entry = _inner(known.get(str(attempt)))
        if (span := alive(entry, starts.get(attempt), log.times.get(attempt, ()))) is not None:
            seconds += span[1] - span[0]
    return seconds


def read_object(
    inside: Inside, name: str, limit: int, notes: Notes, *, needed: bool = False
) -> dict[str, Any] | None:
    """The JSON object in a file of the run; None, and a note, if there is none that can be read."""
    try:
        return inside.json(name, limit)
    except FileNotFoundError:
        if needed:
            notes.add(f"{name}: there is none")
    except LoadsheetError as error:
        notes.add(error)
    return None


def _sheet(inside: Inside, notes: Notes) -> dict[str, Any] | None:
    """The signed sheet; None, and a note, if it is not as it was signed."""
    found = read_object(inside, "sheet.json", signature.MAX_BYTES, notes)
    if found is None:
        return None
    try:
        return signature.check(found, "sheet.json")
    except LoadsheetError as error:
        notes.add(error)
    return None


def _log(inside: Inside, notes: Notes, earlier: Pass | None) -> Pass:
    try:
        path = inside.file("log.jsonl")
        if not path.is_file():
            notes.add("log.jsonl: got no regular file, expected a log: not read")
            return Pass()
        return read_pass(path, earlier)
    except FileNotFoundError:
        pass
    except LoadsheetError as error:
        notes.add(error)
    except OSError as error:
        notes.add(f"log.jsonl: got {error.strerror!r}, expected to read it")
    return Pass()


def _names(inside: Inside, folder: str, notes: Notes) -> Iterator[str]:
    try:
        with os.scandir(inside.folder(folder)) as entries:
            for count, entry in enumerate(entries):
                if count >= _MOST_FILES:
                    notes.add(f"{folder}: got more than {_MOST_FILES:,} entries, the others were not read")
                    return
                yield entry.name
    except FileNotFoundError:
        return
    except LoadsheetError as error:
        notes.add(error)
    except OSError as error:
        notes.add(f"{folder}: got {error.strerror!r}, expected a folder to read")


def attempt_numbers(inside: Inside, notes: Notes) -> list[int]:
    """The numbers of the attempts that have a record, in order."""
    found = [_ATTEMPT.fullmatch(name) for name in _names(inside, "provenance", notes)]
    return sorted(int(match[1]) for match in found if match)


def attempt_file(number: int) -> str:
    """The record of an attempt, from the run directory on."""
    return f"provenance/attempt-{number:04d}.json"


def _attempts(inside: Inside, notes: Notes) -> tuple[dict[int, dict[str, Any]], dict[str, Any]]:
    """For each attempt when it started and was recorded, and what the newest one excluded from the config."""
    starts: dict[int, dict[str, Any]] = {}
    excluded: dict[str, Any] = {}
    for number in attempt_numbers(inside, notes)[-_MOST_ATTEMPTS:]:
        facts = read_object(inside, attempt_file(number), RECORD_BYTES, notes) or {}
        starts[number] = {name: facts.get(name) for name in ("started", "time")}
        if isinstance(found := facts.get("excluded"), dict):
            excluded = found
    return starts, excluded


def _checkpoints(inside: Inside, notes: Notes) -> tuple[int, ...]:
    found = [_CHECKPOINT.fullmatch(name) for name in _names(inside, "checkpoints", notes)]
    return tuple(sorted(int(match[1]) for match in found if match))


def _bytes(inside: Inside, notes: Notes) -> int:
    """Bytes of the files below a run directory; links are not followed."""
    total, seen = 0, 0
    waiting: list[str] = [os.fspath(inside.path)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    seen += 1
                    if seen > _MOST_FILES:
                        notes.add(f"got more than {_MOST_FILES:,} files, their sizes were not all added up")
                        return total
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return total
