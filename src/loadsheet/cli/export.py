"""`loadsheet export sky | dstack | slurm | k8s`: a sheet becomes a job file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from loadsheet.cli.output import show, show_json, width
from loadsheet.text import wrap
from loadsheet.units import format_bytes, format_duration

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


@click.group(name="export", no_args_is_help=False)
def command() -> None:
    """A sheet becomes a job file that resumes by itself: for SkyPilot, dstack, Slurm or Kubernetes.

    SHEET is a signed sheet, a run directory with one, or what `plan --json` printed. The file asks for what the
    sheet needs, hands the signals on, and has the engine start the training again when it ends with 75: stopped,
    saved, to be gone on with. Nothing is submitted, and no engine is asked anything.
    """


_COMMON: tuple[Decorator, ...] = (
    click.argument("sheet", type=click.Path(path_type=Path)),
    click.option("--command", "command", required=True, help="The program that trains, and its arguments: no shell."),
    click.option("--setup", multiple=True, help="A line of shell before it; can be given again."),
    click.option("--name", help="The name of the job."),
    click.option("--gpus", help="0 asks for no GPU; else the number of the sheet."),
    click.option("--gpu-name", help="How the engine calls the GPU, if not as our table says; `any` on k8s."),
    click.option("--cpus", help="CPU cores."),
    click.option("--ram", help="Memory of the host, such as 64GiB."),
    click.option("--time", help="The most it may take, such as 12h."),
    click.option("--save", help="How long a save takes until it is durable, such as 40s."),
    click.option("--mirror", help="Where the run is copied to, s3://…: the script sees LOADSHEET_MIRROR."),
    click.option("--volume", help="A block volume for the runs: the script sees LOADSHEET_RUNS_ROOT."),
    click.option("--workdir", help="The folder to start in."),
    click.option("--out", type=click.Path(path_type=Path), help="Write the job to this file."),
    click.option("--export-anyway", is_flag=True, help="Export a sheet that does not fit."),
    click.option("--json", "as_json", is_flag=True, help="Print what the job asks for as JSON."),
)  # fmt: skip
_DISK = click.option("--disk", help="Disk, such as 200GiB.")
_SHM = click.option(
    "--shm", help="Size of /dev/shm, for loader workers, such as 8GiB; 0: as the engine has it."
)
_IMAGE = click.option("--image", help="The container to train in.")
_CAP = click.option("--price-cap", help="The most an hour may cost, in USD, for the whole machine.")
_REGION = click.option("--region", help="CLOUD or CLOUD/REGION, such as aws/us-east-1.")
_SPOT = click.option(
    "--spot/--on-demand", "spot", default=None, help="Machines that can be taken away, or not."
)


def _options(*own: Decorator) -> Decorator:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed((*_COMMON, *own)):
            function = option(function)
        return function

    return decorate


@command.command(name="slurm")
@_options(
    click.option("--partition", help="Slurm's partition."),
    click.option("--account", help="Slurm's account."),
    click.option("--qos", help="Slurm's quality of service."),
)
def slurm(**options: Any) -> int:
    """A batch script: told before the time limit and on preemption, queued again on 75.

    \b
    loadsheet export slurm sheet.json --command "python train.py" --partition gpu --out job.sh
    sbatch job.sh
    """  # noqa: D301
    return _export("slurm", options)


@command.command(name="k8s")
@_options(
    _IMAGE,
    _DISK,
    _SHM,
    click.option("--namespace", help="The namespace."),
    click.option("--service-account", help="The pod's service account, for rights on a mirror, say."),
    click.option(
        "--toleration",
        multiple=True,
        metavar="TAINT",
        help="A taint of nodes that it bears, KEY[=VALUE][:EFFECT]; can be given again.",
    ),
    click.option("--queue", help="Kueue's local queue; the job waits until Kueue starts it."),
)
def k8s(**options: Any) -> int:
    """A Job whose disruptions and 75 do not count as failures.

    \b
    loadsheet export k8s sheet.json --command "python train.py" --image IMAGE --volume CLAIM --out job.yaml
    kubectl create -f job.yaml
    """  # noqa: D301
    return _export("k8s", options)


@command.command(name="dstack")
@_options(_IMAGE, _DISK, _SHM, _CAP, _REGION, _SPOT)
def dstack(**options: Any) -> int:
    """A task that is retried when its machine is lost; 75 starts the training again in place.

    \b
    loadsheet export dstack sheet.json --command "python train.py" --mirror s3://BUCKET/runs --out job.dstack.yml
    dstack apply -f job.dstack.yml
    """  # noqa: D301
    return _export("dstack", options)


@command.command(name="sky")
@_options(_IMAGE, _DISK, _CAP, _REGION, _SPOT)
def sky(**options: Any) -> int:
    """A managed job that is recovered when its machine is lost, and on 75.

    \b
    loadsheet export sky sheet.json --command "python train.py" --mirror s3://BUCKET/runs --out job.yaml
    sky jobs launch job.yaml
    """  # noqa: D301
    return _export("sky", options)


def _export(engine: str, options: dict[str, Any]) -> int:
    from loadsheet.cloud.export import Wish, make_job, read_facts, render, write

    sheet, out, as_json = options.pop("sheet"), options.pop("out"), options.pop("as_json")
    facts = read_facts(sheet)
    job = make_job(engine, facts, Wish(**options))
    text = render(job, facts)
    if out is not None:
        write(text, out)
    if as_json:
        show_json(
            {"schema": 1, **job.to_json(), "sha256": facts.sha256, "out": None if out is None else str(out)}
        )
    elif out is None:
        show(text.rstrip("\n"))
    for line in _summary(job.to_json(), None if out is None else str(out)):
        if sys.stderr is not None:
            click.echo(line, err=True)
    return 0


def _summary(job: dict[str, Any], out: str | None) -> list[str]:
    """What the job asks for, defaulted entries with a star, and the notes; for stderr."""
    words = {
        "name": job["name"],
        "gpus": f"{job['gpus']} GPU",
        "gpu_name": job["gpu_name"],
        "cpus": f"{job['cpus']} CPUs",
        "ram": f"{format_bytes(job['ram_bytes'], 0)} RAM",
        "shm": None if job["shm_bytes"] is None else f"{format_bytes(job['shm_bytes'], 0)} /dev/shm",
        "disk": f"{format_bytes(job['disk_bytes'], 0)} disk" if job["engine"] != "slurm" else None,
        "time": f"at most {format_duration(job['time_seconds'])}",
        "save": f"{job['grace_seconds']} s to save",
        "price_cap": None if job["price_cap_per_hour"] is None else f"{job['price_cap_per_hour']:g} USD/h",
        "spot": {True: "spot", False: "on demand", None: None}[job["spot"]],
        "volume_path": job["volume_path"] and f"runs below {job['volume_path']}",
    }
    starred = set(job["defaulted"])
    parts = [f"{word}{'*' if entry in starred else ''}" for entry, word in words.items() if word]
    room = width()
    lines = wrap(f"{job['engine']}: " + " · ".join(parts), room, "  ")
    if why := [f"{entry}: {job['why'][entry]}" for entry in words if entry in starred and words[entry]]:
        lines += wrap("* defaulted: " + "; ".join(why), room, "  ")
    for note in job["notes"]:
        lines += wrap(f"note: {note}", room, "  ")
    return [*lines, f"written: {out}"] if out is not None else lines
