"""What a run measures of itself: seconds per step, tokens, waiting for data, saving, evaluation, memory.

`measured.json` has an entry for each attempt, in base units. It is written when a checkpoint has become
durable and when the loop ends, so an attempt that was killed has measured up to its last checkpoint. What
could not be measured is null, and `missing` says why.

The first steps of an attempt are warm-up (kernels are chosen, caches filled, files opened) and are left
out of the median: the first 10 % of the steps timed, at least 1, at most 10.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from loadsheet.run import peaks
from loadsheet.run.batches import Batches
from loadsheet.run.directory import write_whole
from loadsheet.run.machine_time import working_since
from loadsheet.run.saver import SaveTimes
from loadsheet.run.sheetfile import Facts

_MOST = 1_000_000  # step times that are kept
_LARGEST = 64 << 20  # bytes of a file that is read back


def warmup_steps(timed: int) -> int:
    """How many of an attempt's first steps are warm-up.

    >>> [warmup_steps(n) for n in (1, 5, 20, 50, 100, 5000)]
    [1, 1, 2, 5, 10, 10]
    """
    return min(max(timed // 10, 1), 10)


class Tokens:
    """The tokens of a step, as far as the script logs them under that name."""

    def __init__(self) -> None:
        self._steps = 0
        self._sum = 0.0
        self._now: float | None = None
        self._last: float | None = None
        self._grows = True

    def log(self, value: object) -> None:
        """What was logged as `tokens`; of several values in one step the last one counts."""
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and math.isfinite(value)
            and value > 0
        ):
            self._now = float(value)

    def end_step(self) -> None:
        """A step has ended."""
        if self._now is None:
            return
        self._grows = self._grows and (self._last is None or self._now > self._last)
        self._steps, self._sum, self._last, self._now = (
            self._steps + 1,
            self._sum + self._now,
            self._now,
            None,
        )

    def per_step(self) -> tuple[float | None, str]:
        """(mean, "") or (None, reason): a number that grows with each step is a running total."""
        if not self._steps:
            return None, "no `tokens` were logged and there is no signed sheet that says them"
        if self._grows and self._steps > 2:
            return None, "the logged `tokens` grow from step to step: expected those of one step"
        return self._sum / self._steps, ""


class Clock:
    """Times the steps, without what `aside` took: evaluation is no part of a training step."""

    _clocks = 0

    def __init__(self) -> None:
        self.opened = time.time()
        self.started = self._started()
        self.seconds = array("d")
        self.wait_seconds = 0.0
        self.step_seconds = 0.0
        self.aside_seconds = 0.0
        self.tokens = Tokens()
        self._aside = 0.0
        self._begun = 0.0
        self._waited = 0.0

    def _started(self) -> float:
        """Since when the machine works for this run: the start of the process, if it was started for it."""
        Clock._clocks += 1
        return working_since(self.opened, first=Clock._clocks == 1)

    def begin(self, batches: Iterable[Batches]) -> None:
        """A step begins."""
        self._aside = 0.0
        self._waited = sum(b.wait_seconds for b in batches)
        self._begun = time.perf_counter()

    def aside(self, seconds: float) -> None:
        """Some of it was spent on something else."""
        self._aside += seconds
        self.aside_seconds += seconds

    def end(self, batches: Iterable[Batches]) -> None:
        """It has ended."""
        spent = time.perf_counter() - self._begun - self._aside
        self.step_seconds += spent
        self.wait_seconds += sum(b.wait_seconds for b in batches) - self._waited
        self.tokens.end_step()
        if len(self.seconds) < _MOST:
            self.seconds.append(spent)

    @property
    def data_wait(self) -> float:
        """The share of the steps' time spent waiting for the loader."""
        return min(self.wait_seconds / self.step_seconds, 1.0) if self.step_seconds > 0 else 0.0


def spread(seconds: Sequence[float]) -> dict[str, Any] | None:
    """Median, first and last tenth of the steps after the warm-up; None if nothing is left.

    >>> spread([9.0] + [1.0] * 9 + [3.0] * 2)
    {'median': 1.0, 'p10': 1.0, 'p90': 3.0, 'warmup_steps': 1, 'steps': 11}
    """
    warmup = warmup_steps(len(seconds))
    kept = array("d", seconds[warmup:])
    if not kept:
        return None
    ordered = torch.frombuffer(kept, dtype=torch.float64).sort().values
    last = len(ordered) - 1
    return {
        "median": float((ordered[last // 2] + ordered[(last + 1) // 2]) / 2),
        "p10": float(ordered[round(last * 0.1)]),
        "p90": float(ordered[round(last * 0.9)]),
        "warmup_steps": warmup,
        "steps": len(ordered),
    }


def attempt_entry(
    clock: Clock,
    saves: Sequence[SaveTimes],
    *,
    start: int,
    steps: int,
    lost: int,
    ended: str | None,
    facts: Facts | None = None,
    parameters: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """What one attempt has measured so far; `lost` are steps that it runs again, `ended` how its loop ended."""
    seconds = array("d", clock.seconds)  # the loop goes on while this is read
    saves = list(saves)
    step = spread(seconds)
    missing: dict[str, str] = {}
    if step is None:
        missing["step_seconds"] = "no step was timed after the warm-up"
    tokens, source, why = _tokens(clock, facts)
    if tokens is None:
        missing["tokens_per_second"] = why
    rate = None if tokens is None or step is None or not step["median"] else tokens / step["median"]
    mfu = None if facts is None else facts.mfu(rate)
    if mfu is None:
        missing["mfu"] = "the run has no signed sheet" if facts is None else missing.get("step_seconds", why)
    counted = {
        "peak_host_bytes": peaks.host_peak(),
        "peak_gpu_allocated_bytes": peaks.allocated_peak(),
        "peak_gpu_reserved_bytes": peaks.reserved_peak(),
        "peak_device_bytes": peaks.device_peak(),
    }
    missing |= {name: peak.why for name, peak in counted.items() if peak.nbytes is None}
    if not saves:
        missing["save_bytes"] = "nothing was saved"
    stalls = [save.stall for save in saves]
    loop = clock.step_seconds + clock.aside_seconds + sum(stalls)
    gpu = peaks.on_gpu()
    return {
        "from_step": start,
        "to_step": steps,
        "steps_timed": len(seconds),
        "lost_steps": lost,
        "ended": ended,
        "started": clock.started,
        "opened": clock.opened,
        "written": time.time(),
        "step_seconds": None if step is None else {**step, "sum": clock.step_seconds},
        "tokens_per_step": tokens,
        "tokens_per_step_source": source,
        "tokens_per_second": rate,
        "mfu": mfu,
        "data_wait_share": clock.data_wait,
        "data_wait_seconds": clock.wait_seconds,
        "aside_seconds": clock.aside_seconds,
        "aside_share": clock.aside_seconds / loop if loop > 0 else 0.0,
        "saves": len(saves),
        "save_bytes": saves[-1].nbytes if saves else None,
        "save_stall_seconds": median(stalls) if saves else None,
        "save_stall_sum_seconds": sum(stalls),
        "save_total_seconds": median(s.total for s in saves) if saves else None,
        "parameters": dict(parameters or {}),
        **{name: peak.nbytes for name, peak in counted.items()},
        "counters": {name: peak.counter for name, peak in counted.items() if peak.nbytes is not None},
        "device": "cuda" if gpu else "cpu",
        "gpu": torch.cuda.get_device_name(peaks.busiest()) if gpu else None,
        "missing": missing,
    }


def _tokens(clock: Clock, facts: Facts | None) -> tuple[float | None, str | None, str]:
    """(tokens of a step, who says so, why nobody does): what was logged was measured, the sheet only says it."""
    logged, why = clock.tokens.per_step()
    if logged is not None:
        return logged, "logged", ""
    if facts is not None and facts.tokens_per_step is not None:
        return facts.tokens_per_step, "sheet", ""
    return None, None, why


def write_measured(path: Path, attempt: int, entry: Mapping[str, Any]) -> None:
    """Put an attempt's entry into `measured.json`; OSError if it cannot be written."""
    file = path / "measured.json"
    known: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        if file.stat().st_size <= _LARGEST:
            known = dict(json.loads(file.read_bytes())["attempts"])
    known[str(attempt)] = entry
    write_whole(file, json.dumps({"schema": 1, "attempts": known}, indent=1).encode() + b"\n")


def parameters_of(objects: Mapping[str, Any]) -> dict[str, int]:
    """Parameters of each kept module, tied ones counted once."""
    found = {}
    for name, value in objects.items():
        if isinstance(value, torch.nn.Module):
            with contextlib.suppress(ValueError, RuntimeError):  # a lazy one that was never used
                found[name] = sum(parameter.numel() for parameter in value.parameters())
    return found
