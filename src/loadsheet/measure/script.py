"""A training loop seen from outside: tokens/s and MFU from what it prints, and idle time of the GPU.

The command runs as it is; its output is passed on. Steps are read from lines that name a step and a
loss or a rate, the way most loops print them; nothing is assumed of a line that does not.
"""

from __future__ import annotations

import math
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from loadsheet.errors import BadInput, shorten

_COUNT = r"(\d{1,3}(?:[,_]\d{3})+|\d{1,9})(?!\w|[.,]\d)"
_STEP = re.compile(rf"(?:\bsteps?|\biter(?:ation)?s?)\b\W{{0,3}}{_COUNT}", re.IGNORECASE)
_JSON_STEP = re.compile(rf'"(?:step|global_step|iter)"\s*:\s*{_COUNT}')
#: 1234.5, 1,234.5, 12 345, 1.2e5, 12.3k; not a part of another number
_NUMBER = (
    r"(?P<digits>\d{1,3}(?:,\d{3})+(?:\.\d+)?|[1-9]\d{0,2}(?:[ _'\u00a0\u202f]\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+)"
    r"(?P<power>e[+-]?\d{1,3})?(?:\s?(?P<scale>[kmg])(?![a-z]))?"
)
_UNIT = (
    r"(?<![a-z])(?P<prefix>[kmg]?)"
    r"(?:tok(?:en)?s?(?:\s?/\s?s(?:ec(?:ond)?)?|[_ ]per[_ ]s(?:ec(?:ond)?)?)|tps)(?![a-z])"
    r"(?:\s?/\s?(?:gpu|device)|[_ ]per[_ ](?:gpu|device))?"
)
#: what a number that is no rate is followed by
_OTHER = r"(?!\w|[.,]\d|\s?(?:%|/|[nuµm]?s\b|sec|min|[kmgt]i?b\b|it\b|steps?\b|samples?\b))"
_AFTER = re.compile(rf"{_UNIT}(?P<gap>[^\w,;.\n]{{0,12}}?)(?<!-){_NUMBER}{_OTHER}", re.IGNORECASE)
_BEFORE = re.compile(rf"(?<![\d.,/'_-]){_NUMBER}\s?{_UNIT}", re.IGNORECASE)
_LABEL = re.compile(r"([a-z]\w*)[\"']?\s*[:=]?\s*$", re.IGNORECASE)
_OF_RATES = frozenset({"at", "rate", "speed", "throughput"})
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_SCALES = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}


@dataclass(slots=True)
class Watched:
    """What was seen of a run."""

    exit_code: int
    seconds: float
    steps: list[tuple[int, float]] = field(default_factory=list)  # (step, seconds since the start)
    reported: list[float] = field(default_factory=list)  # tokens/s as the loop itself prints them
    idle_share: float | None = None
    idle_why: str = ""

    def step_seconds(self, warm_up: int = 2) -> float | None:
        """Median seconds per step between printed steps, the first ones left out; None if too few were seen."""
        pairs = list(zip(self.steps, self.steps[1:], strict=False))[warm_up:]
        times = [(t2 - t1) / (s2 - s1) for (s1, t1), (s2, t2) in pairs if s2 > s1]
        return statistics.median(times) if times else None

    def tokens_per_second(self, tokens_per_step: int | None) -> tuple[float | None, str]:
        """(rate, where it comes from): the step times if the tokens of a step are known, else the loop's own."""
        seconds = self.step_seconds()
        if tokens_per_step is not None and seconds:
            return tokens_per_step / seconds, "step times of the log"
        if self.reported:
            return statistics.median(self.reported[len(self.reported) // 5 :]), "printed by the loop"
        if self.steps and tokens_per_step is None:
            return None, "the output tells steps but no rate: give --tokens-per-step"
        return None, "too few steps to time" if self.steps else "no step or rate was found in the output"


def read_line(line: str) -> tuple[int | None, float | None]:
    """(step, tokens/s) that a line of output names; what could be read in two ways is not read."""
    line = _COLOUR.sub("", line)
    step = _STEP.search(line) or _JSON_STEP.search(line)
    if step is not None:  # its digits are no part of a rate
        line = f"{line[: step.start()]}|{line[step.end() :]}"
    return (int(re.sub("[,_]", "", step[1])) if step else None), _rate(line)


def _rate(line: str) -> float | None:
    """Tokens/s: the number after the unit, or the one before it unless that is another's (`loss 3.2 tok/s 90`)."""
    after, before = _AFTER.search(line), _BEFORE.search(line)
    if before is not None:
        label = _LABEL.search(line[max(0, before.start() - 40) : before.start()])
        known = label is None or label[1].lower() in _OF_RATES
        if not known and not after and any(c in before["digits"] for c in " \u00a0\u202f"):
            return None  # `rank 3 512 tok/s`
        if known or not after:
            return _value(before)
    return _value(after) if after is not None else None


def _value(found: re.Match[str]) -> float | None:
    """The number with its power and its k, M or G; None beyond what a float holds."""
    digits = re.sub(r"[,_' \u00a0\u202f]", "", found["digits"])
    scales = _SCALES[(found["scale"] or "").lower()] * _SCALES[found["prefix"].lower()]
    value = float(digits + (found["power"] or "")) * scales
    return value if math.isfinite(value) else None


def watch(command: Sequence[str]) -> Watched:
    """Run a command, pass its output on, note the time of every step that it prints; a signal is 128 + its number."""
    if not command:
        raise BadInput(
            "measure script: got no command, expected one after `--`",
            "loadsheet measure script -- python train.py",
        )
    start = time.monotonic()
    try:
        process = subprocess.Popen(
            list(command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            bufsize=1,
        )
    except OSError as error:
        raise BadInput(f"measure script: cannot run {shorten(command[0])}: {error.strerror}") from None
    found = Watched(0, 0.0)
    sampler = _Idle()
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stderr.write(line)
            step, rate = read_line(line[:4000])
            now = time.monotonic() - start
            if step is not None and (not found.steps or step > found.steps[-1][0]):
                found.steps.append((step, now))
            if rate is not None:
                found.reported.append(rate)
            sampler.sample()
    code = process.returncode
    found.exit_code = code if code >= 0 else 128 - code  # as a shell counts a signal
    found.seconds = time.monotonic() - start
    found.idle_share, found.idle_why = sampler.result()
    return found


class _Idle:
    """Utilisation of the first GPU through NVML, sampled as the loop prints."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._nvml: Any = None
        self._seen: list[int] = []
        self._why = "nvidia-ml-py is not installed (the `gpu` extra)"
        try:
            import pynvml
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            self._nvml = pynvml
            self._why = ""
        except pynvml.NVMLError as error:
            self._why = f"no NVIDIA driver answers: {error}"

    def sample(self) -> None:
        """Take one reading."""
        if self._nvml is not None:
            self._seen.append(int(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu))

    def result(self) -> tuple[float | None, str]:
        """(share of the time without work, why not if it could not be looked at)."""
        if not self._seen:
            return None, self._why or "no sample was taken"
        return 1 - sum(self._seen) / (100 * len(self._seen)), ""
