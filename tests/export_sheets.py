"""Signed sheets for the tests of `export`: one of a GPU, one of a CPU, made by the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import Result
from terminal import TINY, answered, run

from loadsheet import signature

#: engine -> the options that it cannot do without
ENGINES: dict[str, tuple[str, ...]] = {
    "slurm": (),
    "k8s": ("--image", "pytorch/pytorch:2.9.0-cuda12.9-cudnn9-runtime", "--volume", "claim"),
    "dstack": ("--mirror", "s3://bucket/runs"),
    "sky": ("--mirror", "s3://bucket/runs"),
}
COMMAND = ("--command", "python train.py")


def gpu_sheet(folder: Path, *options: str) -> Path:
    """LoRA of a small Llama on one A100, 1000 steps, 2 USD a GPU hour."""
    path = folder / "sheet.json"
    answered(
        "sign", "llama-3.2-1b", "--gpu", "a100-sxm-80gb", "--task", "lora", "--batch", "1", "--seq", "1024",
        "--steps", "1000", "--price", "2USD", *options, "--out", str(path),
    )  # fmt: skip
    return path


def cpu_sheet(folder: Path, steps: int = 300) -> Path:
    """A tiny Llama on one thread of a CPU."""
    model, machine, path = folder / "tiny.json", folder / "machine.json", folder / "cpu.json"
    model.write_text(json.dumps(TINY))
    rates = {"bandwidth": 1e10, "peaks": {"fp32": 5e10}}
    machine.write_text(json.dumps({"id": "my-cpu", "device": "cpu", "memory_usable_bytes": 8 << 30, **rates}))
    answered(
        "sign", str(model), "--gpu", str(machine), "--precision", "fp32", "--batch", "4", "--seq", "64", "--stack",
        "hf", "--steps", str(steps), "--out", str(path),
    )  # fmt: skip
    return path


def resealed(path: Path, change: Any) -> Path:
    """The same sheet with its content changed, and signed again: what a hostile hand could make."""
    found = json.loads(path.read_text())
    change(found)
    again = signature.seal(found["sheet"], found["intent"], found["calibration"])
    other = path.with_name("changed.json")
    other.write_text(signature.to_text(again))
    return other


def exported(*args: str) -> Result:
    """`loadsheet export …`, which answers; what the job asks for stands on stderr."""
    result = run("export", *args)
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert result.stderr.startswith(f"{args[0]}: ")
    assert result.stdout
    return result
