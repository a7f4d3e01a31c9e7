"""Run directories written by hand, so that what a closed sheet must say of them can be worked out on paper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loadsheet import signature

BEGAN = 1_800_000_000.0  # Unix seconds
HOUR = 3600.0


def estimate(low: float, mid: float, high: float) -> dict[str, float]:
    """Low, mid, high."""
    return {"low": low, "mid": mid, "high": high}


def signed(**changed: Any) -> dict[str, Any]:
    """A signed sheet in round numbers: 100 steps of 2 s (1 to 4), 1,000 tokens each, MFU 40 % (20 to 80).

    A token takes 8 GFLOP and the peak is 10 TFLOP/s: 1,000·8e9/(2·10e12) = 0.4.
    """
    sheet = {
        "schema": 1,
        "model": {"name": "paper", "model_type": "llama", "params": 1000},
        "recipe": {
            "task": "train", "precision": "fp32", "optimizer": "adamw", "stack": "torch", "batch": 10, "seq": 100,
            "accumulation": 1, "execution": {"device": "cuda"},
        },
        "cluster": {"gpu": "paper-card", "gpus": 1},
        "memory": {
            "allocated_bytes": estimate(90e6, 100e6, 110e6), "reserved_bytes": estimate(100e6, 120e6, 130e6),
            "peak_bytes": estimate(600e6, 700e6, 900e6),
        },
        "compute": {
            "flops_per_token": 8e9, "peak_flops_per_second": 10e12, "peak_dtype": "bf16", "mfu": 0.4,
            "mfu_basis": "assumed", "step_seconds": estimate(1.0, 2.0, 4.0),
        },
        "verdict": "fits",
    }  # fmt: skip
    intent: dict[str, Any] = {
        "steps": 100, "tokens_per_step": 1000, "tokens": 100_000, "checkpoint_every": 20, "checkpoint_bytes": 12_000,
        "price": {"amount": 3.6, "currency": "EUR", "source": "given"},
        "expected": {
            "step_seconds": estimate(1.0, 2.0, 4.0), "running_seconds": estimate(100.0, 200.0, 400.0),
            "save_stall_seconds": None, "save_total_seconds": None, "saving_seconds": None, "interruptions": None,
            "lost_steps": None, "seconds": estimate(100.0, 200.0, 400.0),
            "gpu_hours": estimate(100 / HOUR, 200 / HOUR, 400 / HOUR), "cost": estimate(0.1, 0.2, 0.4),
        },
        "not_predicted": {"interruptions": "nobody knows", "save_stall_seconds": "never saved here"},
    }  # fmt: skip
    for path, value in changed.items():
        place: Any = {"sheet": sheet, "intent": intent}
        *outer, name = path.split("__")
        for key in outer:
            place = place[key]
        place[name] = value
    found = signature.seal(sheet, intent, None)
    found["signed"]["time"] = BEGAN - 60
    return found


def entry(**changed: Any) -> dict[str, Any]:
    """What an attempt of 100 steps measured: a median of 2.5 s, 60 s of waiting for data, and so on."""
    return {
        "from_step": 0, "to_step": 100, "steps_timed": 100, "lost_steps": 0, "ended": "done",
        "started": BEGAN - 10, "opened": BEGAN - 4, "written": BEGAN + 300,
        "step_seconds": {"median": 2.5, "p10": 2.0, "p90": 4.0, "sum": 260.0, "warmup_steps": 10, "steps": 90},
        "tokens_per_step": 1000.0, "tokens_per_step_source": "sheet", "tokens_per_second": 400.0, "mfu": 0.32,
        "data_wait_share": 0.2, "data_wait_seconds": 50.0, "aside_seconds": 12.0, "aside_share": 0.04,
        "saves": 7, "save_bytes": 12_500, "save_stall_seconds": 0.5, "save_stall_sum_seconds": 3.5,
        "save_total_seconds": 2.0, "parameters": {"model": 1000}, "peak_host_bytes": 400_000_000,
        "peak_gpu_allocated_bytes": 105_000_000, "peak_gpu_reserved_bytes": 140_000_000, "peak_device_bytes": None,
        "counters": {"peak_gpu_allocated_bytes": "torch.cuda.max_memory_allocated"}, "device": "cuda",
        "gpu": "Paper card", "missing": {"peak_device_bytes": "NVML is not there"},
    } | changed  # fmt: skip


def life(
    attempt: int, begun: int, at: float, *steps: int, every: float = 2.5, total: int = 100
) -> list[dict[str, Any]]:
    """The lines of a life: a resume, what it is to do, and a record for each step, `every` seconds apart."""
    lines: list[dict[str, Any]] = [
        {"event": "resume", "attempt": attempt, "time": at, "from": begun},
        {"event": "steps", "attempt": attempt, "time": at, "total": total},
    ]
    for number, step in enumerate(steps, start=1):
        lines.append({"step": step, "attempt": attempt, "time": at + number * every, "loss": 1.0})
    return lines


def event(name: str, attempt: int, at: float, **fields: Any) -> dict[str, Any]:
    """A line that belongs to no step."""
    return {"event": name, "attempt": attempt, "time": at, **fields}


def write(
    path: Path,
    lines: list[dict[str, Any]],
    measured: dict[int, dict[str, Any]] | None,
    *,
    sheet: dict[str, Any] | None = None,
    done: int | None = None,
) -> Path:
    """A run directory of these; its path."""
    (path / "provenance").mkdir(parents=True)
    (path / "config.json").write_text("{}")
    (path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if measured is not None:
        attempts = {str(number): entry for number, entry in measured.items()}
        (path / "measured.json").write_text(json.dumps({"schema": 1, "attempts": attempts}))
    (path / "sheet.json").write_text(signature.to_text(signed() if sheet is None else sheet))
    if done is not None:
        (path / "done.json").write_text(json.dumps({"steps": done, "attempt": 1, "time": BEGAN + 300}))
    return path


def finished(path: Path, **changed: Any) -> Path:
    """A run of 100 steps in one life, done: 310 s of machine time, from 10 s before the first line on."""
    lines = life(1, 0, BEGAN, *range(100))
    lines += [event("checkpoint", 1, BEGAN + 299, step=100, bytes=12_500, stall=0.5, total=2.0)]
    return write(path, lines, {1: entry(**changed)}, done=100)
