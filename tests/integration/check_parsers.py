"""What SkyPilot's and dstack's own parsers say of exported jobs: `python check_parsers.py sky|dstack`.

Each runs in an environment of its own, where that engine is installed (`make integration`); nothing is submitted.
Exit status 0: the parser read every job, and found in them what was asked for. It refuses a misspelt key, or it would
not have been asked.
"""

from __future__ import annotations

import importlib.metadata
import io
import os
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import yaml

from loadsheet.cli import main

SIGN = "sign llama-3.2-1b --gpu {gpu} --task lora --batch 1 --seq 1024 --steps 1000 --price 2USD --out {out}"
HOSTILE = "python train.py --title 'a: b\n#c $(d) `e` é🙂 \" \\' --x '{y: [z'"
VARIANTS: tuple[tuple[str, ...], ...] = (
    ("--mirror", "s3://bucket/runs"),
    ("--volume", "ckpt:/data", "--setup", "pip install -r requirements.txt", "--spot"),
    ("--mirror", "gs://bucket/runs", "--region", "gcp/us-central1", "--on-demand", "--price-cap", "3.5"),
    ("--mirror", "s3://b/r", "--image", "pytorch/pytorch:2.9.0-cuda12.9-cudnn9-runtime", "--region", "aws/us-east-1"),
)  # fmt: skip


def call(*words: str) -> str:
    """The command line's answer; SystemExit if it refuses."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main(words)
    except SystemExit as stop:
        if stop.code not in (None, 0):
            raise SystemExit(f"{' '.join(words)}: {stop.code}: {err.getvalue()}") from None
    return out.getvalue()


def read_sky(job: dict[str, Any]) -> tuple[Any, ...]:
    """What SkyPilot made of a task."""
    import sky

    (resources,) = sky.Task.from_yaml_config(job).resources
    return resources.job_recovery["recover_on_exit_codes"], resources.accelerators, resources.use_spot


def read_dstack(job: dict[str, Any]) -> tuple[Any, ...]:
    """What dstack made of a task."""
    from dstack._internal.core.models.configurations import parse_apply_configuration

    task = parse_apply_configuration(job)
    if task.resources.shm_size != 8:  # GB, as its memory: 1 for each CPU
        raise SystemExit(f"shm_size was read as {task.resources.shm_size}")
    return [event.value for event in task.retry.on_events], task.resources.gpu.name, task.max_duration > 0


def check(engine: str) -> None:
    """Export every variant for every GPU that has a name there, and have it read."""
    read = {"sky": read_sky, "dstack": read_dstack}[engine]
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        for gpu in ("a100-sxm-80gb", "h100-sxm", "l4", "rtx-4090"):
            sheet = Path(folder) / f"{gpu}.json"
            call(*SIGN.format(gpu=gpu, out=sheet).split())
            for options in VARIANTS:
                job = yaml.safe_load(call("export", engine, str(sheet), "--command", HOSTILE, *options))
                found = read(job)
                assert found[0] == ([75] if engine == "sky" else ["no-capacity", "interruption"]), found
                count += 1
        job["retri" if engine == "dstack" else "resourcess"] = {}
        try:
            read(job)
        except Exception as error:  # each has an error of its own
            print(f"a misspelt key is refused: {type(error).__name__}")
        else:
            raise SystemExit("a misspelt key was not refused: the parser says nothing")
    name = {"sky": "skypilot"}.get(engine, engine)
    print(f"{count} jobs read by {name} {importlib.metadata.version(name)}")


if __name__ == "__main__":
    os.environ["SKYPILOT_DISABLE_USAGE_COLLECTION"] = "1"
    check(sys.argv[1])
