"""A Job of Kubernetes (batch/v1), with Kueue's label if a queue is named.

Disruptions and exit code 75 do not count as failures (`podFailurePolicy`, which needs restartPolicy Never and
replaces pods only once they are gone); any other code counts, three times. `activeDeadlineSeconds` bounds all pods
of the job together. The command replaces the shell (`exec`), or is the first process: so SIGTERM reaches it.
Kubernetes expands `$(NAME)` in commands and environments; a `$` is written twice, which means one.
"""

from __future__ import annotations

from typing import Any, Final

from loadsheet.cloud.export.job import VOLUME_AT, Job
from loadsheet.units import GIB, MIB, ceil_div

BACKOFF: Final = 3
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
_RESOURCES: Final = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
_PRODUCT: Final = "nvidia.com/gpu.product"


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
    pod["containers"] = [_container(job)]
    if job.volume is not None:
        pod["volumes"] = [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": job.volume}}]
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
    requests["ephemeral-storage"] = f"{ceil_div(_own_disk(job), MIB)}Mi"
    limits: dict[str, Any] = {"memory": requests["memory"]}
    if job.gpus:
        name = _RESOURCES[job.vendor]
        requests[name] = limits[name] = str(job.gpus)
    container["resources"] = {"requests": requests, "limits": limits}
    if job.volume is not None:
        container["volumeMounts"] = [{"name": "checkpoints", "mountPath": job.volume_path or VOLUME_AT}]
    return container


def _own_disk(job: Job) -> int:
    """Bytes on the node itself: all of it with a mirror, and only logs and scratch beside a volume."""
    return job.disk if job.volume is None else 1 * GIB


def _literal(text: str) -> str:
    """Text that Kubernetes hands on as it is.

    >>> _literal("$(HOME) $5")
    '$$(HOME) $$5'
    """
    return text.replace("$", "$$")
