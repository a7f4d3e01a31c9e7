"""A task of dstack for `dstack apply`.

dstack looks at no exit code: its event `error` is any code but 0, so a bug would be retried as well. Only the
loss of a machine is retried here (`interruption`, `no-capacity`). 75 is mapped by the command itself: started again in
place, a bounded number of times; after SIGTERM, when the machine is about to go, it waits to be taken instead of
ending, because an end would be an error.
"""

from __future__ import annotations

from typing import Any, Final

from loadsheet.cloud.export.job import RESTARTS, VOLUME_AT, Job
from loadsheet.cloud.export.words import shell
from loadsheet.errors import BadInput
from loadsheet.units import GIB, ceil_div

#: how long a machine is looked for after one was lost
PATIENCE: Final = "1d"

_LOOP: Final = """\
{  # one command: what stands before it is joined by &&
child='' told='' stop='' starts=0
tell() { told=1; stop=1; [ -z "$child" ] || kill -s TERM "$child" 2>/dev/null; }
trap tell TERM INT HUP
while [ -z "$stop" ]; do
  {train} &
  child=$!
  [ -z "$stop" ] || kill -s TERM "$child" 2>/dev/null  # told just before
  while
    told=''
    wait "$child"
    status=$?
    [ -n "$told" ]  # a signal ended this wait, not the training: wait again
  do :; done
  child=''
  [ "$status" -eq 75 ] || exit "$status"
  starts=$((starts + 1))
  [ "$starts" -le {restarts} ] || break
done
# saved, and the machine goes: to end now would count as an error, so wait to be taken
if [ -n "$stop" ]; then sleep {grace} & wait $!; fi
exit 75
}
"""


def task(job: Job) -> dict[str, Any]:
    """The task, as a mapping. BadInput for `${{`, which dstack reads as a variable of its own."""
    texts = [*job.command, *job.setup, *job.environment.values()]
    if any("${{" in text for text in texts):
        raise BadInput("--command: got `${{`, expected none", "dstack puts its own variables there")
    resources: dict[str, Any] = {"cpu": f"{job.cpus}..", "memory": f"{ceil_div(job.ram, GIB)}GB.."}
    if job.shm is not None:
        resources["shm_size"] = f"{ceil_div(job.shm, GIB)}GB"
    if job.gpus:
        resources["gpu"] = f"{job.gpu_name}:{job.gpus}"
    resources["disk"] = f"{ceil_div(job.disk, GIB)}GB.."
    found: dict[str, Any] = {"type": "task", "name": job.name}
    if job.image is not None:
        found["image"] = job.image
    if job.workdir is not None:
        found["working_dir"] = job.workdir
    if job.environment:
        found["env"] = [f"{name}={value}" for name, value in sorted(job.environment.items())]
    found["commands"] = [*job.setup, *_made(job), _loop(job)]
    found["resources"] = resources
    if job.volume is not None:
        found["volumes"] = [{"name": job.volume, "path": job.volume_path or VOLUME_AT}]
    if job.region is not None:
        cloud, region = job.region
        found["backends"] = [cloud]
        if region is not None:
            found["regions"] = [region]
    found["spot_policy"] = "spot" if job.spot else "on-demand"
    found["retry"] = {"on_events": ["no-capacity", "interruption"], "duration": PATIENCE}
    if job.price_cap is not None:
        found["max_price"] = job.price_cap
    found["max_duration"] = f"{job.time}s"
    found["stop_duration"] = f"{job.grace}s"
    return found


def _made(job: Job) -> list[str]:
    return [] if job.volume_path is None else ['mkdir -p -- "$LOADSHEET_RUNS_ROOT"']


def _loop(job: Job) -> str:
    text = _LOOP.replace("{grace}", str(job.grace)).replace("{restarts}", str(RESTARTS))
    return text.replace("{train}", shell(job.command))
