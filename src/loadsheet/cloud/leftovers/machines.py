"""Machines, and what starts them again: instances, spot requests, fleets, groups, reservations, clusters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from loadsheet.cloud.leftovers.item import Item, command, moment
from loadsheet.cloud.leftovers.registry import Place, kind

#: families with accelerators: GPUs, Trainium, Inferentia, Gaudi, media, FPGA; as recalled, all in moto 5.2.5's types
_GPU: Final = re.compile(r"(p|g|gr|trn|inf|dl|vt|f)[0-9]")
_GONE: Final = ("terminated", "shutting-down")


def is_gpu(instance_type: str) -> bool:
    """Whether an instance type has an accelerator.

    >>> [is_gpu(t) for t in ("p3.16xlarge", "g4dn.xlarge", "gr6.4xlarge", "m5.large", "t3.micro")]
    [True, True, True, False, False]
    """
    return bool(_GPU.match(instance_type))


@kind(
    "instance",
    calls=["ec2:DescribeInstances"],
    why="billed by the second while it runs; stopped, its volumes and addresses go on costing",
)
def instances(place: Place) -> Iterator[Item]:
    """Every instance that is not terminated."""
    for reservation in place.rows("ec2", "describe_instances", "Reservations"):
        for row in reservation.get("Instances") or ():
            state = str((row.get("State") or {}).get("Name", ""))
            if state in _GONE:
                continue
            kept = [
                disk["Ebs"].get("VolumeId", "")
                for disk in row.get("BlockDeviceMappings") or ()
                if disk.get("Ebs") and disk["Ebs"].get("DeleteOnTermination") is False
            ]
            total = len(row.get("BlockDeviceMappings") or ())
            form = str(row.get("InstanceType", ""))
            runs = state in ("running", "pending")
            why = f"{form} is billed while it runs" if runs else f"stopped, its {total} volumes cost on"
            if kept:
                why += (
                    f"; {', '.join(kept[:3])}{' …' if len(kept) > 3 else ''} will stay when it is terminated"
                )
            if row.get("InstanceLifecycle") == "spot":
                why += "; spot, look whether a request starts it again"
            yield place.item(
                row.get("InstanceId", ""), state, why, row.get("Tags") or [],
                created=moment(row.get("LaunchTime")), type=form, gpu=is_gpu(form),
                billed=(form, "instance") if runs else (),
                remove=command("ec2", "terminate-instances", place.region, instance_ids=row.get("InstanceId", "")),
            )  # fmt: skip


@kind(
    "spot-request",
    calls=["ec2:DescribeSpotInstanceRequests"],
    why="an open or persistent request starts machines, again after you have terminated them",
)
def spot_requests(place: Place) -> Iterator[Item]:
    """Requests that are open or active, and persistent ones that are disabled for a while."""
    states = [{"Name": "state", "Values": ["open", "active", "disabled"]}]
    for row in place.rows("ec2", "describe_spot_instance_requests", "SpotInstanceRequests", Filters=states):
        state, lasting = str(row.get("State", "")), row.get("Type") == "persistent"
        if state == "disabled" and not lasting:
            continue
        if lasting:
            why = "persistent: it starts a machine again after you terminate one; cancel it first"
        elif state == "open":
            why = "open: it starts a machine as soon as there is room"
        else:
            why = (
                f"active: {row.get('InstanceId') or 'its instance'} runs, and goes on when this is cancelled"
            )
        yield place.item(
            row.get("SpotInstanceRequestId", ""), state, why, row.get("Tags") or [],
            created=moment(row.get("CreateTime")),
            type=(row.get("LaunchSpecification") or {}).get("InstanceType", ""),
            remove=command("ec2", "cancel-spot-instance-requests", place.region,
                           spot_instance_request_ids=row.get("SpotInstanceRequestId", "")),
        )  # fmt: skip


@kind(
    "fleet",
    calls=["ec2:DescribeFleets"],
    why="a fleet that maintains its size starts machines again after you have terminated them",
)
def fleets(place: Place) -> Iterator[Item]:
    """EC2 fleets that are not deleted, and deleted ones whose machines run on."""
    for row in place.rows("ec2", "describe_fleets", "Fleets"):
        state = str(row.get("FleetState", ""))
        if row.get("Type") == "instant" or state in ("deleted", "failed", "deleted_terminating"):
            continue  # an instant fleet only started its machines, which are listed themselves
        why = "it keeps a number of machines running" if state != "deleted_running" else "its machines run on"
        yield place.item(
            row.get("FleetId", ""), state, why, row.get("Tags") or [], created=moment(row.get("CreateTime")),
            remove=command("ec2", "delete-fleets", place.region, "--terminate-instances",
                           fleet_ids=row.get("FleetId", "")),
        )  # fmt: skip


@kind(
    "spot-fleet",
    calls=["ec2:DescribeSpotFleetRequests"],
    why="a spot fleet that maintains its size starts machines again after you have terminated them",
)
def spot_fleets(place: Place) -> Iterator[Item]:
    """Spot fleet requests that are not cancelled, and cancelled ones whose machines run on."""
    for row in place.rows("ec2", "describe_spot_fleet_requests", "SpotFleetRequestConfigs"):
        state = str(row.get("SpotFleetRequestState", ""))
        if state in ("cancelled", "failed", "cancelled_terminating"):
            continue
        yield place.item(
            row.get("SpotFleetRequestId", ""), state, "it keeps a number of machines running",
            row.get("Tags") or [], created=moment(row.get("CreateTime")),
            remove=command("ec2", "cancel-spot-fleet-requests", place.region, "--terminate-instances",
                           spot_fleet_request_ids=row.get("SpotFleetRequestId", "")),
        )  # fmt: skip


@kind(
    "auto-scaling-group",
    calls=["autoscaling:DescribeAutoScalingGroups"],
    why="a group that wants machines starts them again after you have terminated them",
)
def auto_scaling_groups(place: Place) -> Iterator[Item]:
    """Groups that want at least one machine."""
    for row in place.rows("autoscaling", "describe_auto_scaling_groups", "AutoScalingGroups"):
        wanted = max(int(row.get("DesiredCapacity") or 0), int(row.get("MinSize") or 0))
        if wanted < 1 and not row.get("Instances"):
            continue
        yield place.item(
            row.get("AutoScalingGroupName", ""), row.get("Status") or "active",
            f"it keeps {wanted} machines running", row.get("Tags") or [],
            created=moment(row.get("CreatedTime")),
            remove=command("autoscaling", "delete-auto-scaling-group", place.region, "--force-delete",
                           auto_scaling_group_name=row.get("AutoScalingGroupName", "")),
        )  # fmt: skip


@kind(
    "capacity-reservation",
    calls=["ec2:DescribeCapacityReservations"],
    why="reserved machines are billed whether they run or not",
)
def capacity_reservations(place: Place) -> Iterator[Item]:
    """Reservations and capacity blocks that are not over."""
    for row in place.rows("ec2", "describe_capacity_reservations", "CapacityReservations"):
        state = str(row.get("State", ""))
        if state in ("expired", "cancelled", "failed", "payment-failed", "unsupported", "unavailable"):
            continue
        total, free = int(row.get("TotalInstanceCount") or 0), int(row.get("AvailableInstanceCount") or 0)
        form = str(row.get("InstanceType", ""))
        paid = row.get("ReservationType") == "capacity-block"
        why = f"{free} of {total} reserved {form} do not run and are billed all the same"
        if paid:
            why = f"a capacity block of {total} {form}, {free} of them not in use: paid for in advance"
        yield place.item(
            row.get("CapacityReservationId", ""), state, why, row.get("Tags") or [],
            created=moment(row.get("CreateDate")), type=form, gpu=is_gpu(form), count=float(free),
            billed=() if paid or state != "active" else (form, "capacity-reservation"),
            remove=() if paid else command(
                "ec2", "cancel-capacity-reservation", place.region,
                capacity_reservation_id=row.get("CapacityReservationId", "")),
        )  # fmt: skip


@kind(
    "eks-cluster",
    calls=["eks:ListClusters", "eks:DescribeCluster"],
    why="the control plane of a cluster is billed by the hour, with or without machines",
)
def eks_clusters(place: Place) -> Iterator[Item]:
    """Kubernetes clusters."""
    for name in place.rows("eks", "list_clusters", "clusters"):
        row = place.call("eks", "describe_cluster", name=str(name)).get("cluster") or {}
        yield place.item(
            name, row.get("status", ""), "its control plane is billed by the hour", row.get("tags") or {},
            created=moment(row.get("createdAt")), billed=("eks-cluster",),
            remove=command("eks", "delete-cluster", place.region, name=name),
        )  # fmt: skip
