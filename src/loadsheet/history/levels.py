"""The three levels at which a result can be reproduced, and what a run has recorded for each.

1. Bit for bit on one machine: the same program on the same machine gives the same numbers.
2. Deterministic on a GPU: the same, where by default kernels may add up in any order.
3. Statistical: other seeds, other machines give results that agree within a spread that is known.

Each is a statement about what was checked, never a promise: "nothing was run twice" is an answer too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadsheet.errors import one_line
from loadsheet.history.attempts import Attempt
from loadsheet.history.measures import Measure
from loadsheet.history.seeds import Group
from loadsheet.history.story import Story


@dataclass(frozen=True, slots=True)
class Level:
    """One level: what it asks, what was found ("yes", "no", "not checked", "does not apply"), what was recorded."""

    name: str
    found: str
    why: str
    recorded: tuple[str, ...] = ()


def levels(
    story: Story, attempts: Sequence[Attempt], group: Group | None, measure: Measure | None = None
) -> list[Level]:
    """The three levels for one run; `group` are the runs that differ from it only in the seed, by `measure`."""
    return [_bitwise(story, attempts), _gpu(attempts), statistical(group, measure)]


def _bitwise(story: Story, attempts: Sequence[Attempt]) -> Level:
    name = "bit for bit on one machine"
    recorded = _recorded(attempts)
    if story.difference is not None:
        return Level(name, "no", one_line(story.difference.text()), recorded)
    if story.repeated and story.compared:
        count = sum(life.lost > 0 for life in story.lives)
        return Level(
            name,
            "yes",
            f"{story.repeated:,} steps were run again after {count} {_plural('interruption', count)} and logged the "
            "same values, bit for bit",
            recorded,
        )
    if story.repeated:
        return Level(name, "not checked", "steps were run again, and could not be compared", recorded)
    return Level(name, "not checked", "no step was run twice, so nothing could be compared", recorded)


def _recorded(attempts: Sequence[Attempt]) -> tuple[str, ...]:
    """What the bits depend on, as the newest attempt recorded it, and what changed between attempts."""
    if not attempts:
        return ("no record of an attempt can be read",)
    newest = attempts[-1]
    libraries, machine = newest.facts.get("libraries") or {}, newest.facts.get("machine") or {}
    parts = [
        _part("CPU threads", libraries.get("threads")),
        _part("CPU", machine.get("cpu")),
        _part("instruction set", libraries.get("cpu_capability")),
        _part("torch", libraries.get("torch")),
        _part("Python", libraries.get("python")),
    ]
    lines = [", ".join(part for part in parts if part) or "threads, CPU and versions were not recorded"]
    changed = [line for each in attempts for line in each.changes if not line.startswith("host:")]
    if changed:
        lines.append("changed between attempts: " + "; ".join(dict.fromkeys(changed)))
    elif len(attempts) > 1:
        lines.append("none of it changed between attempts")
    return tuple(lines)


def _part(name: str, value: Any) -> str:
    return "" if value is None else f"{name} {one_line(str(value))[:60]}"


def _gpu(attempts: Sequence[Attempt]) -> Level:
    name = "deterministic on a GPU"
    if not attempts:
        return Level(name, "not checked", "no record of an attempt can be read")
    newest = attempts[-1]
    libraries, machine = newest.facts.get("libraries") or {}, newest.facts.get("machine") or {}
    if not machine.get("gpus"):
        return Level(name, "does not apply", "no GPU was seen: it ran on the CPU")
    environment = newest.facts.get("environment") or {}
    drivers = ", ".join(sorted({one_line(str(gpu.get("driver"))) for gpu in machine["gpus"]}))
    parts = [
        newest.processor,
        _part("driver", drivers),
        _part("CUDA", libraries.get("cuda")),
        _part("cuDNN", libraries.get("cudnn")),
        _part("CUBLAS_WORKSPACE_CONFIG", environment.get("CUBLAS_WORKSPACE_CONFIG")),
    ]
    recorded = (", ".join(part for part in parts if part),)
    if libraries.get("cuda") is None:
        return Level(name, "does not apply", "there are GPUs, and this build of PyTorch uses none", recorded)
    if libraries.get("deterministic") is True:
        why = "deterministic algorithms were asked for when the run was opened; only steps run twice tell if they did"
        return Level(name, "asked for", why, recorded)
    why = "deterministic algorithms were not asked for when the run was opened (`ls.deterministic(seed)` does it)"
    return Level(name, "no", why, recorded)


def statistical(group: Group | None, measure: Measure | None = None) -> Level:
    """The third level: how many seeds there are, how many of them count, and how far they spread in which number."""
    name = "statistical, over seeds"
    members = len(group.members) if group is not None else 0
    if group is None or not group.values:
        of = f" of the {members} runs that differ only in the seed" if members > 1 else ""
        return Level(
            name, "not checked", f"no finished run{of or ' of this config'} counts", _left_out(group)
        )
    s = group.spread
    n = len(group.values)
    if n == 1 or s is None or s.deviation is None:
        seeds = f"one of {members} seeds counts" if members > 1 else "one seed"
        why = f"{seeds}: how far other seeds fall from it is not known"
        return Level(name, "not checked", why, ("n = 1", *_left_out(group)))
    what = f"{measure.said}: " if measure is not None else ""
    recorded = f"{what}n = {n}, mean {s.mean:.5g}, s = {s.deviation:.3g}, {s.low:.5g} to {s.high:.5g}"
    count = f"{n} runs differ" if n == members else f"{n} of {members} runs that differ"
    those = f"{count} only in the seed" + ("" if n == members else " count")
    why = f"{those}; their spread is known as well as {n} runs tell"
    return Level(name, "yes", why, (recorded, *_left_out(group)))


def _left_out(group: Group | None) -> tuple[str, ...]:
    """Which runs of the group do not count, and why; the first three."""
    pairs = group.left_out if group is not None else ()
    lines = [f"does not count: {one_line(fingerprint)}, {reason}" for fingerprint, reason in pairs[:3]]
    return (*lines, *([f"nor do {len(pairs) - 3} more"] if len(pairs) > 3 else []))


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"


def to_json(found: Sequence[Level]) -> list[dict[str, Any]]:
    """Levels as `--json` has them."""
    return [
        {"level": n, "name": each.name, "found": each.found, "why": each.why, "recorded": list(each.recorded)}
        for n, each in enumerate(found, start=1)
    ]
