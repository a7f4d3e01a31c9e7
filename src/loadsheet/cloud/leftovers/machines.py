"""Machines, and what starts them again: instances, spot requests, fleets, groups, reservations, clusters."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from loadsheet.cloud.aws.failures import CallFailed
from loadsheet.cloud.leftovers.item import Item, command, moment
from loadsheet.cloud.leftovers.makers import maker, managed, through
from loadsheet.cloud.leftovers.registry import OneUnseen, Place, kind
from loadsheet.text import many

#: families with accelerators: GPUs, Trainium, Inferentia, Gaudi, media, FPGA; as recalled, all in moto 5.2.5's types
_GPU: Final = re.compile(r"(p|g|gr|trn|inf|dl|vt|f)[0-9]")
_GONE: Final = ("terminated", "shutting-down")
_GUARD: Final = (
    "if it is protected from termination, end that first: "
    "`aws ec2 modify-instance-attribute … --no-disable-api-termination`"
)


def is_gpu(instance_type: str) -> bool:
    """Whether an instance type has an accelerator.

    >>> [is_gpu(t) for t in ("p3.16xlarge", "g4dn.xlarge", "gr6.4xlarge", "m5.large", "t3.micro")]
    [True, True, True, False, False]
    """
    return bool(_GPU.match(instance_type))


@kind(
    "instance",
    calls=["ec2:DescribeInstances", "ec2:DescribeAddresses"],
    why="billed by the second while it runs; stopped, its volumes and addresses go on costing",
)
def instances(place: Place) -> Iterator[Item | CallFailed]:
    """Every instance that is not terminated; addresses are asked for only where one may outlive its machine."""
    asked = False
    elastic: dict[str, tuple[str, ...]] = {}
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
            form = str(row.get("InstanceType", ""))
            runs = state in ("running", "pending")
            paid = _paid(row)
            why = f"{form} {paid or 'is billed while it runs'}" if runs else _stopped(row)
            # those that go with it are no items: what it costs beside its own price
            disks = sum(1 for disk in row.get("BlockDeviceMappings") or () if disk.get("Ebs"))
            if kept:
                why += (
                    f"; {', '.join(kept[:3])}{' …' if len(kept) > 3 else ''} will stay when it is terminated"
                )
            own = _own(row)
            if own and not asked:
                asked = True
                try:
                    elastic = _elastic(place)
                except CallFailed as error:
                    yield error
            stays = [ip for ip in own if ip in elastic]
            if stays:
                one = len(stays) == 1
                why += f"; its elastic {'address' if one else 'addresses'} {', '.join(stays)} "
                why += (
                    f"{'stays' if one else 'stay'} and {'is' if one else 'are'} billed when it is terminated"
                )
            hint, ends = ending(row, place.region)
            if ends:
                ends += tuple(text for ip in stays for text in elastic[ip])
            if row.get("InstanceLifecycle") == "spot":
                request = row.get("SpotInstanceRequestId") or "a request"
                why += f"; spot, look whether {request} starts it again"
            why += "".join(f"; {words}" for words in (hint, guard(row, ends)) if words)
            yield place.item(
                row.get("InstanceId", ""), state, why, row.get("Tags") or [],
                created=moment(row.get("LaunchTime")), type=form, gpu=is_gpu(form),
                billed=(form, "instance") if runs and not paid else (), remove=ends, **through(managed(row)),
                extra="volumes" if runs and disks > len(kept) else "",
            )  # fmt: skip


def _stopped(row: Mapping[str, Any]) -> str:
    disks = len(row.get("BlockDeviceMappings") or ())
    if not disks:
        return "stopped, it is not billed itself"
    return f"stopped, its {'volume costs' if disks == 1 else f'{disks} volumes cost'} on"


def _paid(row: Mapping[str, Any]) -> str:
    """What is billed in the place of a machine; "" where it is billed itself."""
    at = row.get("Placement") or {}
    if at.get("Tenancy") == "host":
        return f"is billed by its dedicated host {at.get('HostId') or ''}".rstrip()
    return (
        "is paid in advance with its capacity block"
        if row.get("InstanceLifecycle") == "capacity-block"
        else ""
    )


def ending(row: Mapping[str, Any], region: str) -> tuple[str, tuple[str, ...]]:
    """What would start a machine again, and the commands that end it so that it stays ended."""
    id = str(row.get("InstanceId", ""))
    if service := managed(row):
        return f"{service} runs it, and starts another while it is needed", ()
    made = maker(row.get("Tags"), region, id)
    if made is not None and made.remove is not None:
        return made.again, made.remove
    return made.again if made else "", command("ec2", "terminate-instances", region, instance_ids=id)


def guard(row: Mapping[str, Any], ends: tuple[str, ...]) -> str:
    """What to do first where EC2 may refuse to terminate a machine; "" where it does not.

    The list does not tell the protection. It holds back neither a group nor a spot machine, which cannot have it:
    docs.aws.amazon.com, "Change instance termination protection".
    """
    plain = any(text.startswith("aws ec2 terminate-instances ") for text in ends)
    return _GUARD if plain and row.get("InstanceLifecycle") != "spot" else ""


def _own(row: Mapping[str, Any]) -> list[str]:
    """The addresses of a machine that may be the account's own: those lent for its life are of `amazon`."""
    ties = [tie.get("Association") or {} for tie in row.get("NetworkInterfaces") or ()]
    return [
        str(t["PublicIp"]) for t in ties if t.get("PublicIp") and t.get("IpOwnerId", "amazon") != "amazon"
    ]


def _elastic(place: Place) -> dict[str, tuple[str, ...]]:
    """The account's own addresses in the region, each with the command that gives it back."""
    return {
        str(row.get("PublicIp", "")): command(
            "ec2", "release-address", place.region, allocation_id=row.get("AllocationId", "")
        )
        for row in place.rows("ec2", "describe_addresses", "Addresses")
    }


@kind(
    "spot-request",
    calls=["ec2:DescribeSpotInstanceRequests"],
    why="an open or persistent request starts machines, again after you have terminated them",
    turn=0,
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
    turn=0,
)
def fleets(place: Place) -> Iterator[Item]:
    """EC2 fleets that are not deleted, and deleted ones whose machines run on."""
    for row in place.rows("ec2", "describe_fleets", "Fleets"):
        state = str(row.get("FleetState", ""))
        if row.get("Type") == "instant" or state in ("deleted", "failed", "deleted_terminating"):
            continue  # an instant fleet only started its machines, which are listed themselves
        why = "it keeps a number of machines running" if state != "deleted_running" else "its machines run on"
        if made := maker(row.get("Tags"), place.region):
            why += f"; {made.made}"
        yield place.item(
            row.get("FleetId", ""), state, why, row.get("Tags") or [], created=moment(row.get("CreateTime")),
            remove=command("ec2", "delete-fleets", place.region, "--terminate-instances",
                           fleet_ids=row.get("FleetId", "")),
        )  # fmt: skip


@kind(
    "spot-fleet",
    calls=["ec2:DescribeSpotFleetRequests"],
    why="a spot fleet that maintains its size starts machines again after you have terminated them",
    turn=0,
)
def spot_fleets(place: Place) -> Iterator[Item]:
    """Spot fleet requests that are not cancelled, and cancelled ones whose machines run on."""
    for row in place.rows("ec2", "describe_spot_fleet_requests", "SpotFleetRequestConfigs"):
        state = str(row.get("SpotFleetRequestState", ""))
        if state in ("cancelled", "failed", "cancelled_terminating"):
            continue
        why = "it keeps a number of machines running"
        if made := maker(row.get("Tags"), place.region):
            why += f"; {made.made}"
        yield place.item(
            row.get("SpotFleetRequestId", ""), state, why, row.get("Tags") or [], created=moment(row.get("CreateTime")),
            remove=command("ec2", "cancel-spot-fleet-requests", place.region, "--terminate-instances",
                           spot_fleet_request_ids=row.get("SpotFleetRequestId", "")),
        )  # fmt: skip


@kind(
    "auto-scaling-group",
    calls=["autoscaling:DescribeAutoScalingGroups"],
    why="a group that wants machines starts them again after you have terminated them",
    turn=0,
)
def auto_scaling_groups(place: Place) -> Iterator[Item]:
    """Groups that want at least one machine, or have one, or keep a warm pool."""
    for row in place.rows("autoscaling", "describe_auto_scaling_groups", "AutoScalingGroups"):
        wanted = max(int(row.get("DesiredCapacity") or 0), int(row.get("MinSize") or 0))
        has, pool = len(row.get("Instances") or ()), row.get("WarmPoolConfiguration") or {}
        warm = int(row.get("WarmPoolSize") or 0)
        if wanted < 1 and not has and not pool and not warm:
            continue
        name = row.get("AutoScalingGroupName", "")
        why = f"it keeps {many(wanted, 'machine')} running"
        if not wanted:
            why = f"it wants none, and has {many(has, 'machine')}"
        if pool or warm:
            why += (
                f"; it keeps a warm pool, of {many(warm, 'machine')} now ({pool.get('PoolState', 'Stopped')})"
            )
        made = maker(row.get("Tags"), place.region)
        if made:
            why += f"; {made.made}"
        ends = made.remove if made else None
        if ends is None:
            ends = command("autoscaling", "delete-auto-scaling-group", place.region, "--force-delete",
                           auto_scaling_group_name=name)  # fmt: skip
        yield place.item(
            name, row.get("Status") or "active", why, row.get("Tags") or [],
            created=moment(row.get("CreatedTime")), remove=ends,
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
        owner = str(row.get("OwnerId") or place.owner)
        payer = str(row.get("UnusedReservationBillingOwnerId") or owner)
        if place.owner and place.owner not in (owner, payer):
            continue  # another account's, which has only shared it
        total, free = int(row.get("TotalInstanceCount") or 0), int(row.get("AvailableInstanceCount") or 0)
        form = str(row.get("InstanceType", ""))
        paid = row.get("ReservationType") == "capacity-block"
        why = f"{free} of {total} reserved {form} not in use, and billed all the same"
        if paid:
            why = f"a capacity block of {total} {form}, {free} of them not in use: paid for in advance"
        elif place.owner and payer != place.owner:
            why = f"{free} of {total} reserved {form} not in use, which account {payer} is billed for"
        reason = _not_cancelled(row, place.owner)
        billed = state == "active" and not paid and place.owner in ("", payer)
        yield place.item(
            row.get("CapacityReservationId", ""), state, why, row.get("Tags") or [],
            created=moment(row.get("CreateDate")), type=form, gpu=is_gpu(form), count=float(free),
            billed=(form, "capacity-reservation") if billed else (),
            remove=() if reason else command(
                "ec2", "cancel-capacity-reservation", place.region,
                capacity_reservation_id=row.get("CapacityReservationId", "")),
            **({"no_command": reason} if reason else {}),
        )  # fmt: skip


def _not_cancelled(row: Mapping[str, Any], account: str) -> str:
    """Why EC2 would not cancel a reservation; "" if it would. By docs.aws.amazon.com, "CancelCapacityReservation"."""
    if row.get("ReservationType") == "capacity-block":
        return "it is paid for in advance, and ends by itself"
    if account and row.get("OwnerId", account) != account:
        return f"account {row['OwnerId']} has it, and only that can cancel it"
    bound = moment((row.get("CommitmentInfo") or {}).get("CommitmentEndDate"))
    if row.get("State") == "scheduled" or (row.get("State") == "active" and bound and bound > time.time()):
        return (
            "you have committed yourself to it, and leaving costs: "
            "`aws ec2 create-capacity-reservation-cancellation-quote` tells how much"
        )
    return ""


@kind(
    "dedicated-host",
    calls=["ec2:DescribeHosts"],
    why="a host is billed by the hour as a whole, with or without machines on it",
    turn=3,
)
def dedicated_hosts(place: Place) -> Iterator[Item]:
    """Hosts that are not released."""
    for row in place.rows("ec2", "describe_hosts", "Hosts"):
        state = str(row.get("State", ""))
        if state in ("released", "released-permanent-failure"):
            continue
        if place.owner and row.get("OwnerId", place.owner) != place.owner:
            continue  # another account's, which has only shared it
        own = row.get("HostProperties") or {}
        form = str(own.get("InstanceType") or own.get("InstanceFamily") or "")
        guests = len(row.get("Instances") or ())
        why = "billed by the hour as a whole, with or without machines on it"
        if guests:
            why += f"; its {many(guests, 'machine')} must be terminated first"
        if row.get("HostReservationId"):
            why += "; it stands under a reservation, which is billed when the host is released, too"
        yield place.item(
            row.get("HostId", ""), state, why, row.get("Tags") or [],
            created=moment(row.get("AllocationTime")), type=form, gpu=is_gpu(form), billed=("dedicated-host",),
            remove=command("ec2", "release-hosts", place.region, host_ids=row.get("HostId", "")),
        )  # fmt: skip


@kind(
    "eks-cluster",
    calls=["eks:ListClusters", "eks:DescribeCluster", "eks:ListNodegroups", "eks:ListFargateProfiles"],
    why="the control plane of a cluster is billed by the hour, with or without machines",
    turn=3,
)
def eks_clusters(place: Place) -> Iterator[Item | OneUnseen]:
    """Kubernetes clusters, each with the commands for what must go before it."""
    for found in place.rows("eks", "list_clusters", "clusters"):
        name, why = str(found), "its control plane is billed by the hour"
        row: dict[str, Any] = {}
        first: list[str] = []
        try:
            row = place.call("eks", "describe_cluster", proof="cluster", name=name)["cluster"]
            if row.get("status") == "DELETING":
                continue
            for group in place.rows("eks", "list_nodegroups", "nodegroups", clusterName=name):
                first += command(
                    "eks", "delete-nodegroup", place.region, cluster_name=name, nodegroup_name=group
                )
            for profile in place.rows(
                "eks", "list_fargate_profiles", "fargateProfileNames", clusterName=name
            ):
                first += command("eks", "delete-fargate-profile", place.region, cluster_name=name,
                                 fargate_profile_name=profile)  # fmt: skip
        except CallFailed as error:  # that it is there is known all the same, and that it costs
            yield place.unseen(error, name)
            why += "; whether it has more node groups and Fargate profiles, which go first, is not known"
        last = command("eks", "delete-cluster", place.region, name=name)
        if row.get("deletionProtection"):
            why += "; it is protected from deletion, which a command ends before the last"
            free = command(
                "eks", "update-cluster-config", place.region, "--no-deletion-protection", name=name
            )
            last = (*free, *last)
        if first:
            why += "; what it runs on goes first, the cluster when that is gone"
        why += "; load balancers and volumes that its pods made stay"
        yield place.item(
            name, row.get("status", ""), why, row.get("tags") or {},
            created=moment(row.get("createdAt")), billed=("eks-cluster",),
            remove=(*first, *last),
        )  # fmt: skip
