"""Is what a run left whole? Every byte of its checkpoints, every line of its log, config, attempts, done marker.

A finding is `ok`, `damaged`, `unknown` (it could not be looked at, which is never ok) or a `note`: something
to know that is no damage, such as the half line that a killed attempt leaves behind.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from loadsheet.errors import BadFile, LoadsheetError, one_line, shorten
from loadsheet.history.check_files import Counter, Guarded
from loadsheet.history.inside import Inside
from loadsheet.history.logs import Pass, read_pass
from loadsheet.history.rows import (
    CONFIG_BYTES,
    FINGERPRINT,
    RECORD_BYTES,
    Notes,
    attempt_file,
    attempt_numbers,
)
from loadsheet.run.checkpoint import CheckpointStore, directory_name
from loadsheet.run.directory import ELSEWHERE
from loadsheet.run.errors import BadCheckpoint
from loadsheet.run.fingerprint import digest
from loadsheet.run.lock import in_use
from loadsheet.run.manifest import Manifest

State = Literal["ok", "note", "unknown", "damaged"]
#: in this order a page has a column for each
PARTS: Final = ("config", "attempts", "log", "done", "checkpoint")
_WORST: Final = ("ok", "note", "unknown", "damaged")
_REFUSED: Final = {errno.EACCES, errno.EPERM}


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one part of a run; `step` of a checkpoint, `nbytes` that were read."""

    what: str
    state: State
    why: str = ""
    step: int | None = None
    nbytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """As JSON, in base units."""
        return {
            "what": self.what,
            "state": self.state,
            "step": self.step,
            "bytes": self.nbytes,
            "why": self.why,
        }


@dataclass(slots=True)
class Checked:
    """All that was found of one run."""

    path: Path
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether everything was looked at and nothing is damaged."""
        return all(finding.state in ("ok", "note") for finding in self.findings)

    def state(self, what: str) -> State | None:
        """The worst state of one part; None if there was nothing to look at."""
        states = [finding.state for finding in self.findings if finding.what == what]
        return max(states, key=_WORST.index, default=None)

    def to_json(self) -> dict[str, Any]:
        """As JSON, in base units."""
        return {
            "run": self.path.name,
            "path": str(self.path),
            "ok": self.ok,
            "findings": [finding.to_json() for finding in self.findings],
        }


def check(path: Path, counter: Counter | None = None) -> Checked:
    """Look at everything in a run directory; nothing is changed, and no lock is taken.

    Raises nothing for what stands in the directory.
    """
    return Checked(path, [_tidied(f) for f in _Check(path, counter or Counter()).all()])


def checkpoint_bytes(path: Path) -> int:
    """Bytes that reading back all checkpoints of a run takes, about: for a progress bar."""
    total = 0
    for folder, _, names in os.walk(path / "checkpoints"):
        if os.path.basename(folder).startswith("step-"):
            for name in names:
                try:
                    total += os.lstat(os.path.join(folder, name)).st_size
                except OSError:
                    continue
    return total


def _tidied(finding: Finding) -> Finding:
    """No control characters in what is printed."""
    return Finding(finding.what, finding.state, one_line(finding.why), finding.step, finding.nbytes)


class _Check:
    """One look at one run directory."""

    def __init__(self, path: Path, counter: Counter) -> None:
        self.path = path
        self.inside = Inside(path)
        self.counter = counter
        self.running = in_use(path / "lock") is True
        self.log: Pass | None = None
        self.log_size = 0
        self.numbers: list[int] = []
        self.steps: list[int] = []

    def all(self) -> Iterator[Finding]:
        """Every part in turn; what goes wrong with one does not keep the others from being looked at."""
        for part in (self._config, self._log, self._attempts, self._checkpoints, self._done):
            name = part.__name__.strip("_")
            name = "checkpoint" if name == "checkpoints" else name
            try:
                yield from part()
            except FileNotFoundError as error:
                yield Finding(name, "damaged", f"{Path(error.filename or name).name}: there is none")
            except OSError as error:
                yield Finding(name, "unknown", f"{name}: got `{error.strerror}`, expected to look at it")
            except LoadsheetError as error:
                refused = any(word in str(error) for word in ("not followed", "Permission", "not permitted"))
                yield Finding(name, "unknown" if refused else "damaged", str(error))

    def _config(self) -> Iterator[Finding]:
        config = self.inside.json("config.json", CONFIG_BYTES)
        name = digest(config)
        if FINGERPRINT.fullmatch(self.path.name) is None:
            why = f"the folder is not named by a fingerprint: whether the config is still that of {name} is not known"
            yield Finding("config", "unknown", why)
        elif name != self.path.name:
            why = (
                f"config.json: got a config of fingerprint {name}, expected {self.path.name}: it was changed"
            )
            yield Finding("config", "damaged", why)
        else:
            yield Finding("config", "ok")

    def _log(self) -> Iterator[Finding]:
        try:
            path = self.inside.file("log.jsonl")
        except FileNotFoundError:
            if any((self.path / name).exists() for name in ("done.json", "measured.json")) or self._saved():
                raise
            why = "log.jsonl: there is none, and nothing was saved: the attempt ended as it began"
            yield Finding("log", "note", why)
            return
        if not path.is_file():
            raise BadFile("log.jsonl: got something that is no file, expected a log: not followed")
        self.log_size = path.stat().st_size
        self.log = found = read_pass(path)
        if found.damaged:
            yield Finding(
                "log", "damaged", f"log.jsonl: {found.damaged:,} lines are damaged and were left out"
            )
        if found.disordered:
            why = f"log.jsonl: {found.disordered:,} records go back to an earlier step without a resume"
            yield Finding("log", "damaged", why)
        torn = self.log_size - found.offset
        if torn > 0 and not self.running:
            why = f"log.jsonl: the last line is cut off after {torn:,} bytes; the next start sets it aside"
            yield Finding("log", "note", why)
        for name in sorted(os.listdir(self.path)):
            if name.startswith("log.torn-"):
                yield Finding("log", "note", f"{name}: half a line that a killed attempt left, set aside")
        if not (found.damaged or found.disordered):
            yield Finding("log", "ok", nbytes=found.offset)

    def _saved(self) -> bool:
        """Whether there is anything where checkpoints are kept, or that cannot be seen."""
        try:
            return bool(os.listdir(self.path / "checkpoints"))
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def _attempts(self) -> Iterator[Finding]:
        self.inside.folder("provenance")
        notes = Notes()
        self.numbers = attempt_numbers(self.inside, notes)
        for line in notes.lines:
            yield Finding("attempts", "unknown", line)
        logged = sorted(self.log.summary.times) if self.log is not None else []
        last = max([*self.numbers, *logged], default=0)
        missing = last - len(self.numbers)
        if not last:
            yield Finding("attempts", "note", "no attempt was made yet")
            return
        bad = 0
        if missing > 0:
            known = set(self.numbers)
            first = next(n for n in range(1, last + 1) if n not in known)
            why = f"{attempt_file(first)}: there is none" + (
                f", and {missing - 1:,} more" if missing > 1 else ""
            )
            yield Finding("attempts", "damaged", f"{why}; expected a record of each of {last:,} attempts")
            bad += 1
        for number in self.numbers:
            for finding in self._attempt(number, number in logged):
                bad += finding.state != "note"
                yield finding
        if not bad and not notes.lines:
            yield Finding("attempts", "ok")

    def _attempt(self, number: int, logged: bool) -> Iterator[Finding]:
        """What is wrong with the record of one attempt."""
        name = attempt_file(number)
        try:
            if not self.inside.file(name).stat().st_size and not logged:
                if not (self.running and number == self.numbers[-1]):
                    yield Finding("attempts", "note", f"{name}: empty, the attempt ended as it began")
                return
            facts = self.inside.json(name, RECORD_BYTES)
        except LoadsheetError as error:
            yield Finding("attempts", "damaged", str(error))
            return
        if facts.get("attempt") != number:
            why = f"{name}: got the record of attempt {shorten(facts.get('attempt'))}, expected that of {number}"
            yield Finding("attempts", "damaged", why)

    def _checkpoints(self) -> Iterator[Finding]:
        try:
            folder = self.inside.folder("checkpoints")
        except FileNotFoundError:
            return
        os.listdir(folder)  # may it be read at all?
        guarded = Guarded(folder, self.counter)
        store = CheckpointStore(folder, files=guarded)
        self.steps = store.steps()
        for step in list(self.steps):
            name = directory_name(step)
            self.counter.what = f"{self.path.name} {name}"
            try:
                manifest = store.verify(step)
            except BadCheckpoint as error:
                if not (folder / name).exists():  # the run has removed it meanwhile
                    self.steps.remove(step)
                    continue
                failed = guarded.failure()
                refused = failed is not None and failed.errno in _REFUSED
                yield Finding("checkpoint", "unknown" if refused else "damaged", str(error), step)
                continue
            yield self._whole(step, manifest)
        for name in sorted(os.listdir(folder)):
            if name.startswith("torn-"):
                yield Finding(
                    "checkpoint", "note", f"{name}: found damaged by an earlier start and set aside"
                )
            elif name.startswith((".saving-", ".old-")) and not self.running:
                yield Finding(
                    "checkpoint", "note", f"{name}: left by a save or removal that was not finished"
                )

    def _whole(self, step: int, manifest: Manifest) -> Finding:
        """A checkpoint whose bytes are right: does it fit the log?"""
        nbytes = sum(entry.bytes for entry in manifest.files.values())
        if self.log is not None and manifest.log_offset > self.log_size:
            why = (
                f"log.jsonl: got {self.log_size:,} bytes, expected at least {manifest.log_offset:,}, as when "
                f"{directory_name(step)} was saved: records were lost"
            )
            return Finding("log", "damaged", why)
        return Finding("checkpoint", "ok", step=step, nbytes=nbytes)

    def _done(self) -> Iterator[Finding]:
        try:
            done = self.inside.json("done.json", 1 << 16)
        except FileNotFoundError:
            return
        steps, attempt = done.get("steps"), done.get("attempt")
        if type(steps) is not int or not 0 <= steps < 1 << 62:
            why = f"done.json: got steps {shorten(steps)}, expected a whole number from 0 on"
        elif max(self.steps, default=-1) < steps and done.get("checkpoints") != ELSEWHERE:
            newest = f"the newest is step {self.steps[-1]:,}" if self.steps else "there is none"
            why = f"done.json: says that {steps:,} steps are complete, and no checkpoint has that state: {newest}"
        elif self.numbers and attempt not in self.numbers:
            why = f"done.json: got attempt {shorten(attempt)}, expected one of those that have a record"
        elif attempt == max(self.numbers, default=0) and self.log and self.log.summary.last_step > steps:
            why = f"done.json: got {steps:,} steps, expected no fewer than the log has"
        else:
            yield Finding("done", "ok")
            return
        yield Finding("done", "damaged", why)
