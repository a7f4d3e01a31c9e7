"""Runs for the documents: written by hand, with numbers that are the same every time.

They stand in for the runs of a small sweep, three learning rates by three seeds. One was killed and stopped
on the way, one failed. Nothing was trained: the curves come from a formula.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xxhash

from loadsheet.run.fingerprint import digest
from loadsheet.run.manifest import DOCUMENT, FORMAT, MANIFEST, TENSORS, FileEntry, Manifest, pack

BEGUN = 1_767_225_600.0  # 2026-01-01 00:00:00 UTC
STEPS, EVERY = 600, 100
_STEP = 2.0  # seconds
_FACTS = {
    "machine": {"host": "gpu-1", "cpu": "AMD EPYC 7R32", "gpus": [{"name": "NVIDIA A10G", "driver": "550.90"}]},
    "libraries": {
        "python": "3.11.7", "torch": "2.13.0", "cuda": "12.4", "cudnn": 90100, "threads": 4, "deterministic": True,
    },
    "environment": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
    "code": {"commit": "3f9f2673c0ffee", "diff_sha256": None},
}  # fmt: skip


@contextlib.contextmanager
def folder() -> Iterator[None]:
    """A current directory with the runs in `runs`, in universal time, for as long as the context lasts."""
    before, zone = Path.cwd(), os.environ.get("TZ")
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        os.environ["TZ"] = "UTC"
        time.tzset()
        try:
            for number, lr in enumerate((1e-3, 2e-3, 4e-3)):
                for seed in range(3):
                    _run(number, lr, seed)
            yield
        finally:
            os.chdir(before)
            if zone is None:
                del os.environ["TZ"]
            else:
                os.environ["TZ"] = zone
            time.tzset()


def _run(number: int, lr: float, seed: int) -> None:
    config = {
        "seed": seed,
        "batch": 32,
        "optimizer": {"name": "adamw", "lr": lr},
        "model": {"layers": 4, "width": 256},
    }
    path = Path("runs") / digest(config)
    (path / "provenance").mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    begun = BEGUN + 4000 * (3 * number + seed)
    lives: list[tuple[int, int, float, str]] = [(0, STEPS, begun, "done")]
    if (number, seed) == (1, 0):  # killed at 340, on from 300, stopped at 450, on from there
        lives = [
            (0, 340, begun, "gone"),
            (300, 450, begun + 900, "stopped"),
            (450, STEPS, begun + 1400, "done"),
        ]
    elif (number, seed) == (2, 2):
        lives = [(0, 257, begun, "left")]
    lines = [line for attempt, life in enumerate(lives, start=1) for line in _life(attempt, life, config)]
    (path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for attempt, life in enumerate(lives, start=1):
        facts = {"attempt": attempt, "time": life[2], "excluded": {}, **_FACTS}
        if attempt > 1:
            facts["machine"] = {**_FACTS["machine"], "host": f"gpu-{attempt}"}  # type: ignore[dict-item]
        (path / "provenance" / f"attempt-{attempt:04d}.json").write_text(json.dumps(facts))
    if lives[-1][3] == "done":
        (path / "done.json").write_text(
            json.dumps({"steps": STEPS, "attempt": len(lives), "time": lines[-1]["time"]})
        )
    for step in (STEPS - EVERY, STEPS) if lives[-1][3] == "done" else (EVERY, 2 * EVERY):
        made = next(
            n["time"] for n in reversed(lines) if n.get("event") == "checkpoint" and n["step"] == step
        )
        _checkpoint(path / "checkpoints" / f"step-{step:08d}", step, made)


def _life(
    attempt: int, life: tuple[int, int, float, str], config: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """The lines that one attempt wrote."""
    start, end, begun, ending = life
    now = begun + 10.0

    def event(name: str, **fields: Any) -> dict[str, Any]:
        return {"event": name, "attempt": attempt, "time": now, **fields}

    yield event("resume", **{"from": start})
    yield event("steps", total=STEPS)
    for step in range(start, end):
        now += _STEP
        yield {"step": step, "attempt": attempt, "time": now, **_values(step, config), "tokens": 16_384}
        if (step + 1) % EVERY == 0:
            yield event("checkpoint", step=step + 1, bytes=12_700_000, stall=0.01, total=0.2)
    if ending == "stopped":
        yield event("checkpoint", step=end, bytes=12_700_000, stall=0.01, total=0.2)
        yield event("stopped", step=end, reason="SIGTERM")
    elif ending == "left":
        yield event("left", step=end)


def _values(step: int, config: dict[str, Any]) -> dict[str, float]:
    """A loss that falls as losses do, with noise that is the same for the same seed and step."""
    lr, seed = config["optimizer"]["lr"], config["seed"]
    draw = random.Random(1000 * seed + step + round(lr * 1e7)).gauss
    luck = random.Random(17 * seed + round(lr * 1e6)).gauss(0, 0.02)
    floor = {1e-3: 2.45, 2e-3: 2.36, 4e-3: 2.38}[lr]
    loss = floor + luck + 8 * math.exp(-lr * 12 * (step + 1))
    found = {"loss": round(loss + draw(0, 0.05), 6)}
    if step % 20 == 19:
        found["val_loss"] = round(loss + 0.08 + draw(0, 0.004), 6)
    return found


def _checkpoint(path: Path, step: int, made: float) -> None:
    """Zeros instead of a state, under a manifest that is right."""
    path.mkdir(parents=True)
    files = {}
    for name, size in ((DOCUMENT, 24_000), (TENSORS, 12_675_400)):
        with (path / name).open("wb") as file:
            file.truncate(size)
        files[name] = FileEntry(size, xxhash.xxh3_128_hexdigest(bytes(size)))
    facts = Manifest(FORMAT, step, 1, 0, made, "", files)
    (path / MANIFEST).write_bytes(pack(facts))
    for file_name in (MANIFEST, DOCUMENT, TENSORS):
        os.utime(path / file_name, (made, made))
