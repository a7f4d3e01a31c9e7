"""A batch script for Slurm, which hears that it is to stop, tells the training, and asks to be started again.

What each part is for, and where it is documented (slurm.schedmd.com: sbatch, scontrol, slurm.conf):

* `--signal=B:USR1@S` sends USR1 to the batch shell alone, up to 60 s earlier than S before the time limit.
* bash runs a trap only when a command in the foreground has ended; so the training is in the background and
  waited for. A `wait` that a signal ends returns at once; so it is called again until no signal came between.
* On preemption Slurm tells the tasks of steps, not the batch shell; so the training is a step (`srun`).
* TERM reaches the batch shell when the job is ended: by scancel, which means it, or by Slurm, which queues it again
  by itself. So then nothing asks for a requeue. srun hands USR1 on, and at TERM kills its tasks at once (seen with
  22.05); so the training always hears USR1.
* `--requeue` lets a job be queued again under its number; 75 asks for it by `scontrol requeue`, as Slurm looks at
  no exit status. `--open-mode=append` keeps what the earlier starts have written.
"""

from __future__ import annotations

import shlex
from typing import Final

from loadsheet.cloud.export.job import RESTARTS, Job
from loadsheet.cloud.export.words import shell
from loadsheet.errors import BadInput
from loadsheet.units import MIB, ceil_div, format_duration

#: the span in which Slurm may send the signal too early (sbatch, --signal), seconds
EARLY: Final = 60
#: the longest --signal, seconds
MOST_SIGNAL: Final = 65_535

_WAIT: Final = """\
again() {  # 75: the state is saved, start me again; the number of starts is bounded
  if [ -n "$ended" ]; then
    echo "loadsheet: the job was ended from outside: not queued again by itself" >&2
  elif [ "${SLURM_RESTART_COUNT:-0}" -ge {restarts} ]; then
    echo "loadsheet: 75 after {restarts} restarts: not queued again" >&2
  elif scontrol requeue "$SLURM_JOB_ID"; then
    echo "loadsheet: queued again, restart $((${SLURM_RESTART_COUNT:-0} + 1))" >&2
  else
    echo "loadsheet: scontrol could not queue the job again; sbatch it once more to go on" >&2
  fi
  exit 75
}

child='' told='' ended=''
# shellcheck disable=SC2317  # it is called by the traps
tell() {  # a signal for the job is one for the training, which saves and exits with 75
  told=1
  [ -z "$child" ] || kill -s USR1 "$child" 2>/dev/null  # srun hands USR1 on; at TERM it kills
}
trap tell USR1
trap 'ended=1; tell' TERM  # scancel, or Slurm ends the job and queues it again by itself
"""

_RUN: Final = """\
[ -z "$told" ] || again  # told before it began
{train} &
child=$!
[ -z "$told" ] || kill -s USR1 "$child" 2>/dev/null  # told just before
while
  told=''
  wait "$child"
  status=$?
  [ -n "$told" ]  # a signal ended this wait, not the training: wait again
do :; done
[ "$status" -ne 75 ] || again
exit "$status"
"""


def script(job: Job, head: list[str]) -> str:
    """The batch script; `head` are lines of comment. BadInput where the time would be over before it begins."""
    if job.grace > MOST_SIGNAL:
        raise BadInput(
            f"--save: got {format_duration(job.grace)} to save, expected at most {format_duration(MOST_SIGNAL)}",
            "Slurm tells a job no earlier than that",
        )
    if job.time < job.grace + 2 * EARLY:
        raise BadInput(
            f"--time: got {format_duration(job.time)}, expected at least {format_duration(job.grace + 2 * EARLY)}",
            f"the training is told to stop {job.grace} s before the end, and Slurm may do so {EARLY} s too early",
        )
    lines = ["#!/bin/bash", *head, *(f"#SBATCH {option}" for option in options(job)), ""]
    lines += _WAIT.replace("{restarts}", str(RESTARTS)).rstrip("\n").split("\n")
    if before := _before(job):
        lines += ["", "set -e  # setting up may not fail", *before, "set +e"]
    lines.append("")
    train = 'srun --ntasks=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" -- ' + shell(job.command)
    lines += _RUN.replace("{train}", train).rstrip("\n").split("\n")
    return "\n".join(lines) + "\n"


def _before(job: Job) -> list[str]:
    """Lines of shell that stand before the training."""
    lines = [] if job.workdir is None else [f"cd -- {shlex.quote(job.workdir)}"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in job.environment.items()]
    if job.volume_path is not None:
        lines.append('mkdir -p -- "$LOADSHEET_RUNS_ROOT"')
    return [*lines, *job.setup]


def options(job: Job) -> list[str]:
    """The options of sbatch, one a line."""
    given = [
        f"--job-name={job.name}",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={job.cpus}",
        f"--mem={ceil_div(job.ram, MIB)}M",
    ]
    if job.gpus:
        given.append(f"--gpus-per-node={f'{job.gpu_name}:' if job.gpu_name else ''}{job.gpus}")
    given += [
        f"--time={_clock(job.time)}",
        f"--signal=B:USR1@{job.grace}",
        "--requeue",
        "--open-mode=append",
        f"--output={job.name}-%j.out",
    ]
    for name, value in (("partition", job.partition), ("account", job.account), ("qos", job.qos)):
        if value is not None:
            given.append(f"--{name}={value}")
    return given


def _clock(seconds: int) -> str:
    """A time limit as sbatch takes it: days-hours:minutes:seconds.

    >>> _clock(90_060)
    '1-01:01:00'
    """
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours // 24}-{hours % 24:02d}:{minute:02d}:{second:02d}"
