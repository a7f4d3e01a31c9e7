"""One line of a closed run, in the form in which a later plan uses it, appended to a file of such lines."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from loadsheet.closing.evidence import number
from loadsheet.closing.items import Row, Sides, estimate_of
from loadsheet.errors import BadFile, BadInput
from loadsheet.run.directory import fsync_directory, write_all
from loadsheet.sheet.calibration import MOST, SCHEMA, read_calibration
from loadsheet.signature import version


def calibration_line(sides: Sides, rows: list[Row]) -> dict[str, Any]:
    """What `plan --calibration` reads: base units; null where it was not measured.

    `mfu` is what people quote, model FLOPs over time and peak; `mfu_for_plan` the same in the plan's sense
    (recomputation lengthens the step and does not count), with the first and the last tenth of the steps.
    `overhead_bytes` is the measured peak beyond the predicted tensors.
    """
    e, sheet = sides.evidence, sides.sheet
    signed = e.signed["signed"]
    predicted, planned = estimate_of(sheet, "compute", "step_seconds"), number(sheet, "compute", "mfu")
    step = sides.step_seconds
    mfu = next((row.measured for row in rows if row.name == "mfu"), None)
    for_plan = None
    if step and predicted is not None and planned and mfu is not None:
        scale = (
            planned
            * predicted.mid
            * (sides.tokens_per_step or 0)
            / (number(sides.intent, "tokens_per_step") or 1)
        )
        slow, fast = (e.mean("step_seconds", name, by=_timed) or step for name in ("p90", "p10"))
        middle = scale / step
        # no step reaches more than the peak: a fastest tenth that seems to was timed by a coarse clock
        for_plan = {
            "low": scale / max(slow, step),
            "mid": middle,
            "high": min(scale / min(fast, step), max(middle, 1.0)),
        }
    peak, tensors = _peak(sides), estimate_of(sheet, "memory", "allocated_bytes")
    recipe = sheet.get("recipe")
    recipe = recipe if isinstance(recipe, dict) else {}
    model = sheet.get("model")
    model = model if isinstance(model, dict) else {}
    compute = sheet.get("compute")
    compute = compute if isinstance(compute, dict) else {}
    cluster = sheet.get("cluster")
    cluster = cluster if isinstance(cluster, dict) else {}
    names = ("task", "precision", "optimizer", "stack", "batch", "seq", "accumulation")
    total = e.mean("save_total_seconds", by=_saves)
    size = e.highest("save_bytes")
    return {
        "schema": SCHEMA,
        "time": time.time(),
        "version": version(),
        "sheet_sha256": signed.get("sha256"),
        "signed_version": signed.get("version"),
        "run": e.path.resolve().name,
        "finished": sides.finished,
        "model": {
            "name": model.get("name"),
            "model_type": model.get("model_type"),
            "params": model.get("params"),
        },
        "recipe": {name: recipe.get(name) for name in names},
        "gpu": cluster.get("gpu"),
        "gpus": cluster.get("gpus"),
        "peak_dtype": compute.get("peak_dtype"),
        "peak_flops_per_second": compute.get("peak_flops_per_second"),
        "mfu": mfu,
        "mfu_for_plan": for_plan,
        "step_seconds": step,
        "steps_timed": e.total("steps_timed"),
        "data_wait_share": e.mean("data_wait_share", by=_timed),
        "peak_bytes": None if peak is None else peak[1],
        "counter": None if peak is None else peak[0],
        "overhead_bytes": None if peak is None or tensors is None else peak[1] - tensors.mid,
        "save_bytes": size,
        "save_stall_seconds": e.mean("save_stall_seconds", by=_saves),
        "save_total_seconds": total,
        "save_bytes_per_second": size / total if size and total else None,
    }


def _timed(entry: Any) -> float | None:
    return number(entry, "steps_timed")


def _saves(entry: Any) -> float | None:
    return number(entry, "saves")


def _peak(sides: Sides) -> tuple[str, float] | None:
    """The counter nearest to the tensors that was measured, and its peak."""
    names = ("peak_gpu_allocated_bytes", "peak_gpu_reserved_bytes", "peak_device_bytes")
    for name in ("peak_host_bytes",) if sides.on_cpu else names:
        found = sides.evidence.highest(name)
        if found is not None:
            return name, found
    return None


def append(line: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Append a line, durably and whole.

    Raises BadInput where no MFU was measured, or one that no plan would take, BadFile for another file.
    """
    if line["mfu"] is None or line["mfu_for_plan"] is None:
        raise BadInput("calibration: got no measured MFU, expected one", "the run's measured.json says why")
    if line["mfu_for_plan"]["mid"] > MOST:
        raise BadInput(
            f"calibration: got an MFU of {line['mfu_for_plan']['mid']:.0%}, expected at most {MOST:.0%}",
            "the peak that it is a share of is too low: measure the machine anew while nothing else works on it",
        )
    place = Path(path)
    if os.path.lexists(place):
        read_calibration(place)  # a file that is something else is not added to
    data = (json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n").encode()
    try:
        fd = os.open(place, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o666)
        try:
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":  # whoever appended last was cut off
                data = b"\n" + data
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        fsync_directory(place.absolute().parent)
    except OSError as error:
        raise BadFile(
            f"calibration `{place}`: got {error.strerror or error}, expected to append to it"
        ) from None
