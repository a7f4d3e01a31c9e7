"""A Job of Kubernetes (batch/v1), with Kueue's label if a queue is named.

Disruptions and exit code 75 do not count as failures (`podFailurePolicy`, which needs restartPolicy Never and
replaces pods only once they are gone); any other code counts, three times. `activeDeadlineSeconds` bounds all pods
of the job together. The command replaces the shell (`exec`), or is the first process: so SIGTERM reaches it.
Kubernetes expands `$(NAME)` in commands and environments; a `$` is written twice, which means one. /dev/shm, of
which a container has 64 MiB, is an emptyDir in memory: what is written there counts against the container's memory.
"""

from __future__ import annotations

import re
from typing import Any, Final

from loadsheet.cloud.export.job import VOLUME_AT, Job
from loadsheet.errors import BadInput, shorten
from loadsheet.units import MIB, ceil_div

BACKOFF: Final = 3
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
_RESOURCES: Final = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_TAINT: Final = re.compile(
    r"(?P<key>(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?)"
    r"(?:=(?P<value>(?:[A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?)?))?(?::(?P<effect>\w+))?",
    re.ASCII,
)
_PRODUCT: Final = "nvidia.com/gpu.product"


def parse_toleration(text: str) -> dict[str, str]:
    """A toleration as `kubectl taint` writes the taint: KEY[=VALUE][:EFFECT]; without a value any will do.

    >>> parse_toleration("nvidia.com/gpu:NoSchedule")
    {'key': 'nvidia.com/gpu', 'operator': 'Exists', 'effect': 'NoSchedule'}
    """
    found = _TAINT.fullmatch(text)
    if found is None or (found["effect"] or _EFFECTS[0]) not in _EFFECTS:
        raise BadInput(
            f"--toleration: got {shorten(text)}, expected KEY[=VALUE][:EFFECT] such as nvidia.com/gpu:NoSchedule",
            f"an effect is one of {', '.join(_EFFECTS)}; `kubectl describe node` shows a node's taints",
        )
    row = {"key": found["key"], "operator": "Exists" if found["value"] is None else "Equal"}
    if found["value"] is not None:
        row["value"] = found["value"]
    return row if found["effect"] is None else {**row, "effect": found["effect"]}


def manifest(job: Job) -> dict[str, Any]:
    """The Job, as a mapping."""
    metadata: dict[str, Any] = {"name": job.name}
    if job.namespace is not None:
        metadata["namespace"] = job.namespace
    spec: dict[str, Any] = {}
    if job.queue is not None:
        metadata["labels"] = {QUEUE_LABEL: job.queue}
        spec["suspend"] = True  # Kueue starts it
    spec |= {
        "backoffLimit": BACKOFF,
        "activeDeadlineSeconds": job.time,
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {
                    "action": "Ignore",
                    "onExitCodes": {"containerName": "train", "operator": "In", "values": [75]},
                },
            ]
        },
        "podReplacementPolicy": "Failed",
        "template": {"spec": _pod(job)},
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _pod(job: Job) -> dict[str, Any]:
    pod: dict[str, Any] = {"restartPolicy": "Never", "terminationGracePeriodSeconds": job.grace}
    if job.gpus and job.gpu_name is not None and job.vendor == "nvidia":
        pod["nodeSelector"] = {_PRODUCT: job.gpu_name}
    if job.tolerations:
        pod["tolerations"] = [dict(row) for row in job.tolerations]
    if job.service_account is not None:
        pod["serviceAccountName"] = job.service_account
    pod["containers"] = [_container(job)]
    volumes: list[dict[str, Any]] = []
    if job.volume is not None:
        volumes.append({"name": "checkpoints", "persistentVolumeClaim": {"claimName": job.volume}})
    if job.shm is not None:
        size = f"{ceil_div(job.shm, MIB)}Mi"
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}})
    if volumes:
        pod["volumes"] = volumes
    return pod


def _container(job: Job) -> dict[str, Any]:
    words = list(job.command)
    if job.setup:
        lines = "\n".join(["set -e", *job.setup, 'exec "$@"']) + "\n"
        words = ["/bin/bash", "-c", lines, "train", *words]
    container: dict[str, Any] = {"name": "train", "image": job.image, "command": [_literal(w) for w in words]}
    if job.workdir is not None:
        container["workingDir"] = job.workdir
    if job.environment:
        container["env"] = [{"name": n, "value": _literal(v)} for n, v in sorted(job.environment.items())]
    requests: dict[str, Any] = {"cpu": str(job.cpus), "memory": f"{ceil_div(job.ram, MIB)}Mi"}
    requests["ephemeral-storage"] = f"{ceil_div(job.disk, MIB)}Mi"
    limits: dict[str, Any] = {"memory": requests["memory"]}
    if job.gpus:
        name = _RESOURCES[job.vendor]
        requests[name] = limits[name] = str(job.gpus)
    container["resources"] = {"requests": requests, "limits": limits}
    mounts: list[dict[str, Any]] = []
    if job.volume is not None:
        mounts.append({"name": "checkpoints", "mountPath": job.volume_path or VOLUME_AT})
    if job.shm is not None:
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    if mounts:
        container["volumeMounts"] = mounts
    return container


def _literal(text: str) -> str:
    """Text that Kubernetes hands on as it is.

    >>> _literal("$(HOME) $5")
    '$$(HOME) $$5'
    """
    return text.replace("$", "$$")
