"""Machines and storage inside other services: SageMaker, RDS, ECR, CloudWatch Logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from loadsheet.cloud.aws.failures import CallFailed
from loadsheet.cloud.leftovers.item import Item, command, moment
from loadsheet.cloud.leftovers.registry import OneUnseen, Place, kind
from loadsheet.text import many
from loadsheet.units import GIB


@kind(
    "notebook",
    calls=["sagemaker:ListNotebookInstances"],
    why="a notebook is billed by the hour whether anybody types or not; stopped, its volume is",
)
def notebooks(place: Place) -> Iterator[Item]:
    """Notebook instances of SageMaker."""
    for row in place.rows("sagemaker", "list_notebook_instances", "NotebookInstances"):
        state, name = str(row.get("NotebookInstanceStatus", "")), row.get("NotebookInstanceName", "")
        if state == "Deleting":
            continue
        form = str(row.get("InstanceType", ""))
        runs = state in ("InService", "Pending", "Updating")
        yield place.item(
            name, state, "billed by the hour whether anybody types or not" if runs else "its volume is billed",
            created=moment(row.get("CreationTime")), type=form, gpu=is_ml_gpu(form),
            billed=(form, "notebook") if runs else (),
            remove=(
                *(command("sagemaker", "stop-notebook-instance", place.region, notebook_instance_name=name)
                  if runs else ()),
                *command("sagemaker", "delete-notebook-instance", place.region, notebook_instance_name=name),
            ),
        )  # fmt: skip


def is_ml_gpu(form: str) -> bool:
    """Whether an instance type of SageMaker has an accelerator.

    >>> is_ml_gpu("ml.g5.xlarge"), is_ml_gpu("ml.t3.medium"), is_ml_gpu("system")
    (True, False, False)
    """
    from loadsheet.cloud.leftovers.machines import is_gpu

    return form.startswith("ml.") and is_gpu(form[3:])


@kind(
    "endpoint",
    calls=["sagemaker:ListEndpoints"],
    why="the machines behind an endpoint are billed without a single request",
)
def endpoints(place: Place) -> Iterator[Item]:
    """Inference endpoints of SageMaker that are not being deleted."""
    for row in place.rows("sagemaker", "list_endpoints", "Endpoints"):
        name, state = row.get("EndpointName", ""), str(row.get("EndpointStatus", ""))
        if state == "Deleting":
            continue
        failed = state == "Failed"
        yield place.item(
            name, state,
            "it failed: whether there are machines behind it, and billed, is not told" if failed
            else "the machines behind it are billed without a single request",
            created=moment(row.get("CreationTime")), billed=() if failed else ("endpoint",),
            remove=command("sagemaker", "delete-endpoint", place.region, endpoint_name=name),
        )  # fmt: skip


@kind(
    "studio-app",
    calls=["sagemaker:ListApps"],
    why="an app of Studio keeps its machine when the browser is closed",
)
def studio_apps(place: Place) -> Iterator[Item]:
    """Apps of SageMaker Studio that are in service."""
    for row in place.rows("sagemaker", "list_apps", "Apps"):
        state = str(row.get("Status", ""))
        if state in ("Deleting", "Deleted", "Failed"):
            continue
        form = str((row.get("ResourceSpec") or {}).get("InstanceType", ""))
        owner = {
            name: row[key]
            for name, key in (("user_profile_name", "UserProfileName"), ("space_name", "SpaceName"))
            if row.get(key)
        }
        where = "/".join(
            str(part) for part in (row.get("DomainId", ""), *owner.values(), row.get("AppName", ""))
        )
        yield place.item(
            where, state, "its machine is billed when the browser is closed, too",
            created=moment(row.get("CreationTime")), type=form, gpu=is_ml_gpu(form),
            billed=() if form in ("", "system") else (form, "studio-app"),
            remove=command("sagemaker", "delete-app", place.region, domain_id=row.get("DomainId", ""), **owner,
                           app_type=row.get("AppType", ""), app_name=row.get("AppName", "")),
        )  # fmt: skip


@kind(
    "training-job",
    calls=["sagemaker:ListTrainingJobs"],
    why="the machines of a job are billed until it ends, and those of a warm pool after it",
)
def training_jobs(place: Place) -> Iterator[Item]:
    """Training jobs of SageMaker that have not ended, and those that have left a warm pool."""
    listed: set[str] = set()
    for row in place.rows(
        "sagemaker", "list_training_jobs", "TrainingJobSummaries", StatusEquals="InProgress"
    ):
        name = str(row.get("TrainingJobName", ""))
        listed.add(name)
        yield place.item(
            name, row.get("TrainingJobStatus", ""), "its machines are billed until it ends",
            created=moment(row.get("CreationTime")), billed=("training-job",),
            remove=command("sagemaker", "stop-training-job", place.region, training_job_name=name),
        )  # fmt: skip
    for row in place.rows(
        "sagemaker", "list_training_jobs", "TrainingJobSummaries", WarmPoolStatusEquals="Available"
    ):
        name = str(row.get("TrainingJobName", ""))
        if name in listed or (row.get("WarmPoolStatus") or {}).get("Status") != "Available":
            continue
        yield place.item(
            name, "warm pool", "it has ended, and its machines are kept warm for the next one, and billed",
            created=moment(row.get("CreationTime")), billed=("training-job",),
            remove=command("sagemaker", "update-training-job", place.region, training_job_name=name,
                           resource_config="KeepAlivePeriodInSeconds=0"),
        )  # fmt: skip


@kind(
    "database",
    calls=["rds:DescribeDBInstances"],
    why="billed by the hour and by its storage; a stopped one starts again by itself after seven days",
)
def databases(place: Place) -> Iterator[Item]:
    """Database instances of RDS that are not being deleted: replicas, and members of a cluster, too."""
    for row in place.rows("rds", "describe_db_instances", "DBInstances"):
        name, form = row.get("DBInstanceIdentifier", ""), str(row.get("DBInstanceClass", ""))
        state, size = str(row.get("DBInstanceStatus", "")), row.get("AllocatedStorage")
        if state == "deleting":
            continue
        stopped = state == "stopped"
        why, remove = _end_of(row, place.region)
        copied = bool(row.get("ReadReplicaDBInstanceIdentifiers"))
        yield place.item(
            name, state,
            ("its storage is billed, and it starts again after seven days" if stopped else "billed by the hour")
            + f"; {why}",
            row.get("TagList") or [], created=moment(row.get("InstanceCreateTime")), type=form,
            size=float(size) * GIB if isinstance(size, int | float) else None,
            billed=() if stopped else (form, "database"),
            extra="" if stopped else "storage", remove=remove,
            rank=(1 if _source(row) else 2) if copied else 0,
        )  # fmt: skip


#: in these states RDS makes no last snapshot, and deletes only without: docs.aws.amazon.com, "DeleteDBInstance"
_NO_SNAPSHOT: Final = ("failed", "incompatible-restore", "incompatible-network")
#: engines whose storage is the cluster's and whose instances are deleted one by one
_OF_CLUSTER: Final = ("aurora", "neptune", "docdb")


def _source(row: Mapping[str, Any]) -> str:
    """What a database is a replica of; "" if of none."""
    source = row.get("ReadReplicaSourceDBInstanceIdentifier") or row.get(
        "ReadReplicaSourceDBClusterIdentifier"
    )
    return str(source or "")


def _end_of(row: Mapping[str, Any], region: str) -> tuple[str, tuple[str, ...]]:
    """What stays of a database or goes before it, and the commands that delete it, by RDS's own rules."""
    name, engine = row.get("DBInstanceIdentifier", ""), str(row.get("Engine", ""))
    cluster = str(row.get("DBClusterIdentifier") or "")
    if cluster and not engine.startswith(_OF_CLUSTER):
        return (
            f"it goes with its cluster {cluster}, of which a last snapshot is kept and billed",
            command("rds", "delete-db-cluster", region, db_cluster_identifier=cluster,
                    final_db_snapshot_identifier=f"{cluster}-final"),
        )  # fmt: skip
    why: list[str] = []
    first: tuple[str, ...] = ()
    if row.get("DeletionProtection") and not cluster:
        why.append("it is protected from deletion, which the first command ends")
        first = command("rds", "modify-db-instance", region, "--no-deletion-protection", "--apply-immediately",
                        db_instance_identifier=name)  # fmt: skip
    if copies := row.get("ReadReplicaDBInstanceIdentifiers"):
        told = ", ".join(map(str, copies[:3])) + (" …" if len(copies) > 3 else "")
        why.append(f"its replicas go first, which would go on without it: {told}")
    flags: list[str] = []
    last: dict[str, object] = {}
    if cluster:
        why.append(
            f"its storage is that of its cluster {cluster}, which is billed until it is deleted after this"
        )
    elif source := _source(row):
        why.append(f"a replica of {source}, of which there is no last snapshot")
        flags.append("--skip-final-snapshot")
    elif engine.startswith("custom-") or row.get("DBInstanceStatus") in _NO_SNAPSHOT:
        why.append("RDS makes no last snapshot of it: what is in it is lost")
        flags.append("--skip-final-snapshot")
    else:
        why.append("the command keeps a last snapshot, which is billed")
        last = {"final_db_snapshot_identifier": f"{name}-final"}
    ends = command("rds", "delete-db-instance", region, *flags, db_instance_identifier=name, **last)
    return "; ".join(why), (*first, *ends)


@kind(
    "database-snapshot",
    calls=["rds:DescribeDBSnapshots"],
    why="kept, and billed, until somebody deletes it",
    turn=3,
)
def database_snapshots(place: Place) -> Iterator[Item]:
    """Snapshots of databases that were made by hand."""
    for row in place.rows("rds", "describe_db_snapshots", "DBSnapshots", SnapshotType="manual"):
        name, size = row.get("DBSnapshotIdentifier", ""), row.get("AllocatedStorage")
        if row.get("Status") == "deleting":
            continue
        yield place.item(
            name, row.get("Status", ""), "kept until somebody deletes it; at most this size is billed",
            row.get("TagList") or [], created=moment(row.get("SnapshotCreateTime")),
            size=float(size) * GIB if isinstance(size, int | float) else None, billed=("database-snapshot",),
            remove=command("rds", "delete-db-snapshot", place.region, db_snapshot_identifier=name),
        )  # fmt: skip


@kind(
    "image-repository",
    calls=["ecr:DescribeRepositories", "ecr:DescribeImages"],
    why="images of containers are billed by their size, and nothing removes old ones by itself",
)
def image_repositories(place: Place) -> Iterator[Item | OneUnseen]:
    """Repositories of ECR that hold images; the sum of their sizes counts shared layers more than once."""
    for row in place.rows("ecr", "describe_repositories", "repositories"):
        name, count, size = str(row.get("repositoryName", "")), 0, 0.0
        try:
            for image in place.rows("ecr", "describe_images", "imageDetails", repositoryName=name):
                count += 1
                size += float(image.get("imageSizeInBytes") or 0)
        except CallFailed as error:  # the others are looked at all the same
            yield place.unseen(error, name)
        if not count:
            continue
        yield place.item(
            name, "with images",
            f"{many(count, 'image')}, billed by their size (at most this: layers are shared)",
            created=moment(row.get("createdAt")), size=size, billed=("image-repository",),
            remove=command("ecr", "delete-repository", place.region, "--force", repository_name=name),
        )  # fmt: skip


@kind(
    "log-group",
    calls=["logs:DescribeLogGroups"],
    why="logs without a retention are kept, and billed, for ever",
)
def log_groups(place: Place) -> Iterator[Item]:
    """Log groups that hold something and never let it go."""
    for row in place.rows("logs", "describe_log_groups", "logGroups"):
        size = float(row.get("storedBytes") or 0)
        if row.get("retentionInDays") or not size:
            continue
        name = row.get("logGroupName", "")
        yield place.item(
            name, "never expires", "kept for ever: no retention is set", size=size, billed=("log-group",),
            created=moment(row.get("creationTime")),
            remove=command("logs", "put-retention-policy", place.region, log_group_name=name,
                           retention_in_days=30),
        )  # fmt: skip
