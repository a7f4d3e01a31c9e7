"""Two runs of one config, bit for bit: every record, every tensor of every checkpoint that both have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from loadsheet.cloud.rehearse.stage import cut
from loadsheet.errors import LoadsheetError, shorten
from loadsheet.run.checkpoint import CheckpointStore
from loadsheet.run.log import RESERVED
from loadsheet.run.reading import read_events, stream_log
from loadsheet.run.rerun import Difference, compare
from loadsheet.run.snapshot import State, same_bits

#: names of what is measured with a clock
_SPEED: Final = re.compile(
    r"(.*[_./])?(seconds|secs?|ms|time|elapsed|rate|tps|mfu|tok_s|.*per_s(ec(ond)?)?)", re.I
)


@dataclass
class Comparison:
    """What was compared, and where the two first differ; `record` and `state` are empty if nothing does."""

    records: int = 0
    tensors: int = 0
    steps: list[int] = field(default_factory=list)  # of the checkpoints compared
    record: list[str] = field(default_factory=list)
    step: int | None = None  # the first whose record differs
    early: bool = False  # that is before any interruption
    speeds: list[str] = field(default_factory=list)  # names that look measured with a clock, and differ
    state: list[str] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Whether everything is, but what was measured with a clock."""
        return not self.record and not self.state


def compare_runs(reference: Path, other: Path, interruptions: list[tuple[int, str]]) -> Comparison:
    """Hold `other`, which was interrupted, against `reference`, which was not.

    `interruptions`: the steps from which it went on, with what had happened, for the words about the cause.
    Raises BadFile, NoCheckpoint, BadCheckpoint for what cannot be read.
    """
    found = Comparison()
    _records(reference, other, interruptions, found)
    _states(reference, other, found)
    return found


# --- records --------------------------------------------------------------------------------------------------


def _records(reference: Path, other: Path, interruptions: list[tuple[int, str]], found: Comparison) -> None:
    speeds: set[str] = set()
    for one, two in _pairs(stream_log(reference), stream_log(other)):
        found.records += 1
        step = (one or two or {})["step"]
        if one is None or two is None:
            where = "only without interruption" if two is None else "only with interruptions"
            _first(found, step, [f"step {step} has a record {where}"])
            return
        names = [name for name in compare(one, two, whole=True) if name not in RESERVED]
        slow = [name for name in names if _SPEED.fullmatch(name)]
        speeds.update(slow)
        names = [name for name in names if name not in slow]
        if names and found.step is None:
            shown = ", ".join(
                f"{name} {shorten(one.get(name, 'absent'), 30)} → {shorten(two.get(name, 'absent'), 30)}"
                for name in names[:3]
            )
            lines = [f"step {step} is the first that differs: {shown}"]
            began = [entry for entry in interruptions if entry[0] <= step]
            found.early = not began
            if began:
                start, what = began[-1]
                cause = Difference(step, 1, two["attempt"], tuple(names), one, two, start).cause()
                lines.append(f"it went on from step {start} after {what}; likely: {cause}")
            _first(found, step, lines)
    found.speeds = sorted(speeds)


def _first(found: Comparison, step: int, lines: list[str]) -> None:
    if found.step is None:
        found.step, found.record = step, lines


def _pairs(
    left: Iterator[dict[str, Any]], right: Iterator[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any] | None, dict[str, Any] | None]]:
    """The records of both by step; None where one of them has none."""
    one, two = next(left, None), next(right, None)
    while one is not None or two is not None:
        if two is None or (one is not None and one["step"] < two["step"]):
            yield one, None
            one = next(left, None)
        elif one is None or two["step"] < one["step"]:
            yield None, two
            two = next(right, None)
        else:
            yield one, two
            one, two = next(left, None), next(right, None)


# --- states ---------------------------------------------------------------------------------------------------


def _states(reference: Path, other: Path, found: Comparison) -> None:
    stores = [CheckpointStore(path / "checkpoints") for path in (reference, other)]
    found.steps = sorted(set(stores[0].steps()) & set(stores[1].steps()))
    for step in found.steps:
        one, two = (store.load(step) for store in stores)
        found.tensors = max(found.tensors, len(one.entries))
        if lines := differing(one, two):
            found.state = [f"of the state after {step} steps {lines[0]}", *lines[1:]]
            return


def differing(one: State, two: State) -> list[str]:
    """Where two states differ: what is only in one of them, and the first place in each object."""
    lines: list[str] = []
    for name in one.names:
        if name not in two.names:
            lines.append(f"`{name}` is missing where it was interrupted")
        elif (place := first_difference(one.value(name), two.value(name))) is not None:
            path, left, right = place
            lines.append(f"{_named(name, path, one)} differs{_by_how_much(left, right)}")
    lines += [
        f"`{name}` is there only where it was interrupted" for name in two.names if name not in one.names
    ]
    if not lines and first_difference(one.random, two.random) is not None:
        lines.append("the random numbers differ: other ones, or more or fewer of them, were drawn")
    return lines


def first_difference(
    one: Any, two: Any, path: tuple[str, ...] = ()
) -> tuple[tuple[str, ...], Any, Any] | None:
    """The first place where two trees of values and tensors are not the same bits, and what stands there.

    >>> first_difference({"a": [1, 2.0], "b": 0}, {"a": [1, 2.5], "b": 1})
    (('a', '1'), 2.0, 2.5)
    """
    if hasattr(one, "dtype") and hasattr(two, "dtype"):
        return None if _same_values(one, two) else (path, one, two)
    pairs: list[tuple[Any, Any, Any]]
    if isinstance(one, dict) and isinstance(two, dict) and one.keys() == two.keys():
        pairs = [(key, one[key], two[key]) for key in one]
    elif isinstance(one, list | tuple) and isinstance(two, list | tuple) and len(one) == len(two):
        pairs = [(number, a, b) for number, (a, b) in enumerate(zip(one, two, strict=True))]
    else:
        same = type(one) is type(two) and repr(one) == repr(two)  # a NaN equals itself, 0.0 and -0.0 differ
        return None if same else (path, one, two)
    for key, a, b in pairs:
        if (found := first_difference(a, b, (*path, str(key)))) is not None:
            return found
    return None


def _same_values(one: Any, two: Any) -> bool:
    if one.dtype != two.dtype or tuple(one.shape) != tuple(two.shape):
        return False
    if hasattr(one, "tobytes"):  # an array
        return bool(one.tobytes() == two.tobytes())
    return bool(same_bits(one, two))


def _named(name: str, path: tuple[str, ...], state: State) -> str:
    """A place as one would write it: `model.0.weight`, `optimizer.exp_avg of model.0.weight`."""
    keys = list(path)
    if state.kind(name) in ("module", "optimizer") and keys[:1] == ["state"]:
        keys = keys[1:]
    if state.kind(name) == "optimizer" and keys[:1] == ["state"] and len(keys) == 3 and keys[1].isdigit():
        names = [each for group in state.value(name).get("names") or [] for each in group or []]
        number = int(keys[1])
        if number < len(names):
            return f"{name}.{keys[2]} of {cut(names[number], 80)}"
    return cut(".".join([name, *keys]), 120)


def _by_how_much(one: Any, two: Any) -> str:
    """How many values of a tensor differ and by how much at most; of anything else, what it is."""
    try:
        apart = (one.double() - two.double()).abs()
        return f": {int((apart != 0).sum()):,} of {one.numel():,} values, by {float(apart.max()):.3g} at most"
    except (AttributeError, TypeError, RuntimeError):
        return f": {shorten(one, 40)} → {shorten(two, 40)}"


def went_on_from(run: Path) -> list[int]:
    """The step from which each attempt of a run went on."""
    try:
        return [event["from"] for event in read_events(run) if event.get("event") == "resume"]
    except (LoadsheetError, KeyError):
        return []
