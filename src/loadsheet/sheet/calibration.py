"""What the user's own closed runs reached: the MFU and the saves of another plan on the same hardware.

A calibration file is JSON Lines, one line for each closed run, appended by `loadsheet close RUN
--calibration FILE`. The MFU in it is relative to a peak; where that of the hardware has changed since (a
machine measured anew), the rate in FLOP/s is kept and the MFU converted.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from loadsheet.errors import BadFile, one_line, shorten
from loadsheet.ledger import Estimate
from loadsheet.safejson import file_label, open_regular, parse_json

MAX_BYTES: Final = 16 << 20
SCHEMA: Final = 1
#: an MFU above 1 means another peak or another count of FLOPs; twice is more than rounding explains
MOST: Final = 2.0


@dataclass(frozen=True, slots=True)
class Closed:
    """One closed run, as far as a later plan uses it."""

    sheet: str  # the hash of the signed sheet
    run: str
    model: str
    params: int
    gpu: str
    task: str
    peak_dtype: str
    peak: float  # FLOP/s
    mfu: Estimate  # as `plan` uses it: without recomputation; low and high from the spread of the steps
    save_bytes: int | None
    save_stall_seconds: float | None
    save_total_seconds: float | None


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the closed runs of a file say about one model on one kind of hardware."""

    file: str
    model: str  # whose runs these are
    same_model: bool
    runs: int
    mfu: Estimate
    save_stall_per_byte: Estimate | None
    save_total_per_byte: Estimate | None

    def to_json(self) -> dict[str, Any]:
        """Every field."""
        shown = {name: getattr(self, name) for name in ("file", "model", "same_model", "runs")}
        for name in ("mfu", "save_stall_per_byte", "save_total_per_byte"):
            value = getattr(self, name)
            shown[name] = None if value is None else value.to_json()
        return shown

    @property
    def said(self) -> str:
        """Where the MFU comes from, in a few words."""
        runs = "1 run" if self.runs == 1 else f"{self.runs} runs"
        return f"measured by you, {runs} of {self.model}" + ("" if self.same_model else ", the nearest")


@dataclass(frozen=True, slots=True)
class Runs:
    """The closed runs of one file."""

    file: str
    closed: tuple[Closed, ...]


def read_calibration(path: str | os.PathLike[str] | Runs) -> Runs:
    """The closed runs of a file, the newest line of each run; BadFile, with the line, for what is none."""
    if isinstance(path, Runs):
        return path
    label = file_label(path, "calibration")
    with open_regular(path, "calibration") as (file, size):
        if size > MAX_BYTES:
            raise BadFile(f"{label}: got {size:,} bytes, expected at most {MAX_BYTES:,}")
        data = file.read(MAX_BYTES + 1)
    found: dict[tuple[str, str], Closed] = {}
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            closed = _closed(line, f"{label}, line {number}")
            if closed is not None:
                found.pop((closed.sheet, closed.run), None)
                found[closed.sheet, closed.run] = closed
    return Runs(one_line(os.path.basename(os.fspath(path))), tuple(found.values()))


def choose(
    runs: Runs, *, gpu: str, task: str, peak_dtype: str, peak: float, model: str, params: int
) -> Calibration | None:
    """The runs on the same hardware with the same kind of task and dtype: of this model, or of the nearest in size.

    The range goes from the slowest tenth of any run's steps to the fastest tenth; the middle is the median
    of the runs. None if no run is comparable.
    """
    fitting = [r for r in runs.closed if (r.gpu, r.task, r.peak_dtype) == (gpu, task, peak_dtype)]
    if not fitting:
        return None
    same = [r for r in fitting if (r.model, r.params) == (model, params)]
    if not same:
        nearest = min(fitting, key=lambda r: abs(math.log(r.params / params)))
        same = [r for r in fitting if (r.model, r.params) == (nearest.model, nearest.params)]
    known = same[0].model
    rates = [r.mfu * (r.peak / peak) for r in same]
    reason = f"measured by you in {len(same)} closed run{'s' * (len(same) > 1)} of {known}"
    mfu = Estimate(
        min(r.low for r in rates), median(r.mid for r in rates), max(r.high for r in rates), reason
    )

    def per_byte(name: str) -> Estimate | None:
        found = [getattr(r, name) / r.save_bytes for r in same if getattr(r, name) and r.save_bytes]
        return Estimate(min(found), median(found), max(found), reason) if found else None

    return Calibration(
        runs.file,
        known,
        (known, same[0].params) == (model, params),
        len(same),
        mfu,
        per_byte("save_stall_seconds"),
        per_byte("save_total_seconds"),
    )


# --- one line -----------------------------------------------------------------------------------------------


def _closed(line: bytes, label: str) -> Closed | None:
    """A line as a closed run; None if no MFU was measured in it."""
    entry = parse_json(line, label)
    if not isinstance(entry, dict) or entry.get("schema") != SCHEMA:
        got = shorten(entry.get("schema")) if isinstance(entry, dict) else "no object"
        raise BadFile(
            f"{label}: got schema {got}, expected {SCHEMA}",
            "`loadsheet close RUN --calibration FILE` writes it",
        )
    if entry.get("mfu") is None:
        return None
    try:
        model = entry["model"]
        return Closed(
            _text(entry["sheet_sha256"]),
            _text(entry["run"]),
            one_line(_text(model["name"])),
            int(_number(model["params"], 1, 1e15)),
            _text(entry["gpu"]),
            _text(entry["recipe"]["task"]),
            _text(entry["peak_dtype"]),
            _number(entry["peak_flops_per_second"], 1e6, 1e18),
            _spread(entry["mfu_for_plan"]),
            None if entry.get("save_bytes") is None else int(_number(entry["save_bytes"], 1, 1e16)),
            _seconds(entry, "save_stall_seconds"),
            _seconds(entry, "save_total_seconds"),
        )
    except (KeyError, TypeError, ValueError) as error:
        what = f"no {error.args[0]!r}" if isinstance(error, KeyError) else one_line(str(error))
        raise BadFile(
            f"{label}: got {what}, expected a closed run", "take the line out, or close the run again"
        ) from None


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > 300:
        raise ValueError(f"{shorten(value)} for a text")
    return value


def _number(value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"{shorten(value)} for a number from {low:g} to {high:g}")
    return float(value)


def _seconds(entry: Mapping[str, Any], name: str) -> float | None:
    return None if entry.get(name) is None else _number(entry[name], 0, 1e7)


def _spread(value: Any) -> Estimate:
    low, mid, high = (_number(value[name], 1e-9, MOST) for name in ("low", "mid", "high"))
    if not low <= mid <= high:
        raise ValueError(f"an MFU of {low:g}, {mid:g}, {high:g}")
    return Estimate(low, mid, high, "measured")
