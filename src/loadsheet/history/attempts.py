"""The attempts of a run: where each ran, with what, and what changed from one to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from loadsheet.errors import one_line
from loadsheet.history.inside import Inside
from loadsheet.history.rows import RECORD_BYTES, Notes, attempt_file, attempt_numbers, read_object, unix_time
from loadsheet.run.provenance import changes, code_changes

_MOST: Final = 200  # the first and the newest ones


@dataclass(frozen=True, slots=True)
class Attempt:
    """One process life: its record (`facts`, checked for its form), and what changed since the one before."""

    number: int
    facts: dict[str, Any]
    changes: tuple[str, ...] = ()

    @property
    def started(self) -> float | None:
        """When it started, Unix seconds."""
        return unix_time(self.facts.get("time"))

    @property
    def code(self) -> str:
        """The commit it ran, and whether the tree was as committed.

        >>> Attempt(1, {"code": {"commit": "0123456789abcdef", "diff_sha256": "ab"}}).code
        '0123456789 edited'
        """
        code = self.facts.get("code") or {}
        commit = code.get("commit")
        if not isinstance(commit, str):
            return "no repository"
        return one_line(commit)[:10] + (" edited" if code.get("diff_sha256") else "")

    @property
    def machine(self) -> str:
        """Host, and what it computes with."""
        machine = self.facts.get("machine") or {}
        host = one_line(str(machine.get("host") or "?"))[:40]
        return f"{host}, {self.processor}"

    @property
    def processor(self) -> str:
        """The GPUs by name and number, else the CPU."""
        machine = self.facts.get("machine") or {}
        names = [one_line(str(gpu.get("name"))) for gpu in machine.get("gpus") or []]
        if names:
            return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))[:80]
        return one_line(str(machine.get("cpu") or "CPU not known"))[:60]


def read_attempts(inside: Inside, notes: Notes) -> list[Attempt]:
    """The attempts that have a record that can be read, in order."""
    numbers = attempt_numbers(inside, notes)
    if len(numbers) > _MOST:
        notes.add(f"provenance: {len(numbers):,} attempts, the newest {_MOST} were read")
    found: list[Attempt] = []
    for number in numbers[-_MOST:]:
        facts = read_object(inside, attempt_file(number), RECORD_BYTES, notes)
        if facts is None:
            continue
        facts = sane(facts)
        before = found[-1].facts if found else None
        lines = [] if before is None else [*code_changes(before, facts), *_machine_changes(before, facts)]
        found.append(Attempt(number, facts, tuple(one_line(line)[:160] for line in lines)))
    return found


def _machine_changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What may change the bits, and the host, which alone does not."""
    lines = changes(before, now) if "machine" in before and "machine" in now else []
    old, new = (facts.get("machine", {}).get("host") for facts in (before, now))
    return [*lines, *([f"host: {old} → {new}"] if old != new else [])]


def sane(facts: dict[str, Any]) -> dict[str, Any]:
    """A record in which every part has the form that readers expect; a part that has not is left out."""
    kept = dict(facts)
    for name in ("code", "machine", "libraries", "packages", "environment", "excluded"):
        if name in kept and not isinstance(kept[name], dict):
            del kept[name]
    machine = kept.get("machine")
    if machine is not None and "gpus" in machine:
        gpus = machine["gpus"]
        whole = isinstance(gpus, list) and all(isinstance(gpu, dict) for gpu in gpus)
        kept["machine"] = {**machine, "gpus": gpus if whole else []}
    return kept
