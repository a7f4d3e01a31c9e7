"""What made a thing and would make it again: as the tags tell that the services and their tools put on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from loadsheet.cloud.leftovers.item import Item, command, tags_of

_AGAIN: Final = "starts another in its place"
_GROUP: Final = "aws:autoscaling:groupName"
_LOWER: Final = ", or lower what it wants together with the machine (refused at the group's least size)"
_THROUGH: Final = "aws autoscaling terminate-instance-in-auto-scaling-group "


@dataclass(frozen=True, slots=True)
class Maker:
    """Who made it, what that does when a machine is terminated, and what to do first.

    `remove`: the commands that end it there; None where the thing's own are right.
    """

    who: str
    does: str
    first: str
    remove: tuple[str, ...] | None = None

    @property
    def again(self) -> str:
        """The hint at a machine."""
        return f"{self.who} {self.does}: {self.first}"

    @property
    def made(self) -> str:
        """The hint at a group or a fleet of machines."""
        return f"{self.who} made it: {self.first}"


#: tag -> who has set it, what that does, what to do first; the closest maker stands first. Tags by the user guides of
#: EC2 Fleet, AWS Batch, ECS, ParallelCluster, Karpenter and Ray; as recalled, and seen in public code
_TOOLS: Final = {
    "karpenter.sh/nodepool": ("Karpenter's node pool {}", "starts another while pods wait", "delete it first"),
    "karpenter.sh/provisioner-name": (
        "Karpenter's provisioner {}", "starts another while pods wait", "delete it first",
    ),
    "AWSBatchServiceTag": ("AWS Batch", "starts another while jobs wait", "disable its compute environment first"),
    "AmazonECSManaged": (
        "a capacity provider of ECS", "starts another while tasks wait", "set its services to no tasks first",
    ),
    "parallelcluster:cluster-name": (
        "ParallelCluster's {}", "starts another while jobs wait", "`pcluster delete-cluster` first",
    ),
    "ray-cluster-name": ("Ray's cluster {}", "starts its workers again", "take it down, or end its head first"),
    "aws:ec2:fleet-id": ("the fleet {}", "starts another if it maintains its size", "delete the fleet first"),
    "aws:ec2spot:fleet-request-id": (
        "the spot fleet {}", "starts another if it maintains its size", "cancel the request first",
    ),
}  # fmt: skip


def maker(tags: object, region: str, instance: str = "") -> Maker | None:
    """Who would start a machine, or make a group, again; None if no tag tells. `instance`: the machine's id.

    >>> maker([{"Key": "Name", "Value": "mine"}], "eu-west-1") is None
    True
    """
    found = tags_of(tags)
    for known, made in _SERVICES.items():
        if all(found.get(tag) for tag in known):
            return made(found, region)
    tools = [
        Maker(who.format(found[t]), does, first) for t, (who, does, first) in _TOOLS.items() if t in found
    ]
    if not instance or not found.get(_GROUP):
        return tools[0] if tools else None
    group = Maker(
        f"the auto-scaling group {found[_GROUP]}", _AGAIN,
        f"remove the group first{_LOWER}",
        command("autoscaling", "terminate-instance-in-auto-scaling-group", region,
                "--should-decrement-desired-capacity", instance_id=instance),
    )  # fmt: skip
    return (
        Maker(tools[0].who, tools[0].does, f"{tools[0].first}; {group.again}", group.remove)
        if tools
        else group
    )


def with_groups(items: Iterable[Item]) -> list[Item]:
    """The items, without the commands for a machine whose auto-scaling group is among them and removed as a whole."""
    rows = list(items)
    removed = {
        (item.region, item.id) for item in rows
        if item.kind == "auto-scaling-group"
        and any(text.startswith("aws autoscaling delete-auto-scaling-group ") for text in item.remove)
    }  # fmt: skip
    gone = {
        text: (item.tags or {})[_GROUP]
        for item in rows
        if item.kind == "instance" and (item.region, (item.tags or {}).get(_GROUP)) in removed
        for text in item.remove
        if text.startswith(_THROUGH)
    }

    def without(item: Item) -> Item:
        group = next((gone[text] for text in item.remove if text in gone), None)
        if group is None:
            return item
        machine = "it" if item.kind == "instance" else "its machine"
        goes = f"{machine} goes with the auto-scaling group {group}, whose command ends both"
        left, why = tuple(text for text in item.remove if text not in gone), item.why.replace(_LOWER, "")
        return replace(
            item, remove=left, why=f"{why}; {goes}" if left else why, no_command="" if left else goes
        )

    return [without(item) for item in rows]


def _nodes(tags: Mapping[str, str], region: str) -> Maker:
    cluster, group = tags["eks:cluster-name"], tags["eks:nodegroup-name"]
    ends = command("eks", "delete-nodegroup", region, cluster_name=cluster, nodegroup_name=group)
    return Maker(
        f"the node group {group} of the EKS cluster {cluster}", _AGAIN, "delete the node group", ends
    )


def _emr(tags: Mapping[str, str], region: str) -> Maker:
    flow = tags["aws:elasticmapreduce:job-flow-id"]
    ends = command("emr", "terminate-clusters", region, cluster_ids=flow)
    return Maker(f"the EMR cluster {flow}", _AGAIN, "terminate the cluster", ends)


def _beanstalk(tags: Mapping[str, str], region: str) -> Maker:
    name = tags["elasticbeanstalk:environment-name"]
    ends = command("elasticbeanstalk", "terminate-environment", region, environment_name=name)
    return Maker(f"the Elastic Beanstalk environment {name}", _AGAIN, "terminate the environment", ends)


#: the tags that must be there -> the service that ends it all; by the user guides of these services
_SERVICES: Final[dict[tuple[str, ...], Callable[[Mapping[str, str], str], Maker]]] = {
    ("eks:cluster-name", "eks:nodegroup-name"): _nodes,
    ("aws:elasticmapreduce:job-flow-id",): _emr,
    ("elasticbeanstalk:environment-name",): _beanstalk,
}


def owner(tags: object) -> str:
    """What a volume or a file system belongs to, with what goes first; "" if no tag tells.

    >>> owner([{"Key": "kubernetes.io/created-for/pvc/name", "Value": "data"}])
    'Kubernetes made it for the claim data: delete the claim in its cluster first'
    """
    found = tags_of(tags)
    if claim := found.get("kubernetes.io/created-for/pvc/name"):
        return f"Kubernetes made it for the claim {claim}: delete the claim in its cluster first"
    if domain := found.get("ManagedByAmazonSageMakerResource"):
        return f"SageMaker made it for {domain.rpartition(':')[2]}: delete that first"
    return ""


def managed(row: Mapping[str, Any]) -> str:
    """The service that runs this machine or volume in the account and ends it itself; "" if none does."""
    told = row.get("Operator") or {}
    return str(told.get("Principal") or "a service") if told.get("Managed") else ""


def through(service: str) -> dict[str, str]:
    """Why there is no command, for what a service ends itself."""
    return {"no_command": f"it is ended through {service}"} if service else {}


def backup(row: Mapping[str, Any]) -> str:
    """AWS Backup, where it holds a snapshot or an image: EC2 refuses to delete it then; "" where it does not.

    >>> backup({"Description": "This snapshot is created by the AWS Backup service."})
    'AWS Backup, whose recovery point it is: delete that from its vault'
    """
    held = "aws:backup:source-resource" in tags_of(row.get("Tags"))
    if held or "created by the AWS Backup service" in str(row.get("Description", "")):
        return "AWS Backup, whose recovery point it is: delete that from its vault"
    return ""
