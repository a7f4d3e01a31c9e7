"""The job file of an engine: the sheet as a comment, then what the engine reads."""

from __future__ import annotations

from pathlib import Path

from loadsheet.cloud.export import dstack, k8s, sky, slurm
from loadsheet.cloud.export.facts import Facts
from loadsheet.cloud.export.header import MARK, header
from loadsheet.cloud.export.job import Job
from loadsheet.cloud.export.words import yaml
from loadsheet.errors import BadFile, BadInput
from loadsheet.run.directory import write_whole
from loadsheet.safejson import open_regular

START = {
    "sky": "sky jobs launch FILE",
    "dstack": "dstack apply -f FILE",
    "slurm": "sbatch FILE",
    "k8s": "kubectl create -f FILE",
}


def render(job: Job, facts: Facts) -> str:
    """The whole file; the same sheet and options give the same bytes."""
    head = header(job, facts, START[job.engine])
    if job.engine == "slurm":
        return slurm.script(job, head)
    made = {"sky": sky.task, "dstack": dstack.task, "k8s": k8s.manifest}[job.engine](job)
    return "\n".join(head) + "\n" + yaml(made)


def write(text: str, path: Path) -> None:
    """Write the file, whole; only over one that was exported before. Raises BadInput, BadFile."""
    if path.is_symlink() or path.exists():
        with open_regular(path, "--out") as (file, _):
            first = file.read(4096)
        if MARK.encode() not in b"\n".join(first.split(b"\n")[:2]):
            raise BadInput(
                f"--out: `{path}` is there and was not exported, expected another file", "name another"
            )
    if not path.parent.is_dir():
        raise BadInput(
            f"--out: `{path}`: got a folder that is not there, expected one", f"mkdir -p {path.parent}"
        )
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise BadFile(f"--out: `{path}`: got {error.strerror or error}, expected to write it") from None
