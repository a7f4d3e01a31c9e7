"""A task of SkyPilot for `sky jobs launch`.

SkyPilot recovers a managed job whose machine is taken; of exit codes it recovers those that
`job_recovery.recover_on_exit_codes` names, and those without a bound. `timeout` bounds each start: it sends
SIGTERM, the training saves, and the status is timeout's own 124, which is in no list. SkyPilot has a cap on the
price of an hour and none on a sum.
"""

from __future__ import annotations

from typing import Any, Final

from loadsheet.cloud.export.job import Job
from loadsheet.cloud.export.words import shell
from loadsheet.errors import BadInput
from loadsheet.units import GIB, ceil_div

_GB: Final = GIB  # SkyPilot's sizes are powers of two, whatever they are called


def task(job: Job) -> dict[str, Any]:
    """The task, as a mapping."""
    for what, text in (("--volume", job.volume_path or ""), ("--workdir", job.workdir or "")):
        if "$" in text:
            raise BadInput(f"{what}: got `$` in {text!r}, expected none", "SkyPilot puts variables in there")
    resources: dict[str, Any] = {}
    if job.region is not None:
        resources["infra"] = "/".join(part for part in job.region if part)
    if job.gpus:
        resources["accelerators"] = {job.gpu_name: job.gpus}
    resources |= {
        "cpus": f"{job.cpus}+",
        "memory": f"{ceil_div(job.ram, _GB)}+",
        "disk_size": ceil_div(job.disk, _GB),
        "use_spot": bool(job.spot),
    }
    if job.image is not None:
        resources["image_id"] = f"docker:{job.image}"
    if job.price_cap is not None:
        resources["max_hourly_cost"] = job.price_cap
    resources["job_recovery"] = {"max_restarts_on_errors": 0, "recover_on_exit_codes": [75]}
    found: dict[str, Any] = {"name": job.name, "resources": resources, "num_nodes": 1}
    if job.workdir is not None:
        found["workdir"] = job.workdir
    if job.environment:
        found["envs"] = dict(sorted(job.environment.items()))
    if job.volume is not None:
        found["volumes"] = {job.volume_path: job.volume}
    if job.setup:
        found["setup"] = "\n".join(["set -e", *job.setup]) + "\n"
    found["run"] = _run(job)
    return found


def _run(job: Job) -> str:
    lines = []
    if job.volume_path is not None:
        lines.append('mkdir -p -- "$LOADSHEET_RUNS_ROOT"')
    lines += [
        "# 75, saved and to be started again, is recovered; 124, over the time cap, is not",
        f"exec timeout --kill-after={job.grace} {job.time} {shell(job.command)}",
    ]
    return "\n".join(lines) + "\n"
