"""What costs by the hour on the network: addresses, NAT gateways, load balancers, endpoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from loadsheet.cloud.leftovers.item import Item, command, moment
from loadsheet.cloud.leftovers.makers import through
from loadsheet.cloud.leftovers.registry import Place, kind
from loadsheet.text import many

_VALUES: Final = 200  # a filter of EC2 takes no more values
_GUARD: Final = (
    "if it is protected from deletion, end that first: `aws elbv2 modify-load-balancer-attributes … "
    "--attributes Key=deletion_protection.enabled,Value=false`"
)
_NO_ENDPOINT: Final = ("deleted", "deleting", "failed", "expired")


@kind(
    "address",
    calls=["ec2:DescribeAddresses", "ec2:DescribeNetworkInterfaces"],
    why="a public address is billed by the hour, more so when nothing uses it",
    turn=3,
)
def addresses(place: Place) -> Iterator[Item]:
    """Elastic addresses that nothing uses, or an interface that hangs on nothing.

    EC2 does not say since when they are there.
    """
    on: dict[str, list[dict[str, Any]]] = {}
    for row in place.rows("ec2", "describe_addresses", "Addresses"):
        if row.get("NetworkInterfaceId") and not row.get("InstanceId"):
            on.setdefault(str(row["NetworkInterfaceId"]), []).append(row)
        elif not row.get("AssociationId") and not row.get("InstanceId"):
            yield _address(place, row, "not in use", "is reserved and nothing uses it")
    ids = sorted(on)
    for start in range(0, len(ids), _VALUES):
        idle = [
            {"Name": "network-interface-id", "Values": ids[start : start + _VALUES]},
            {"Name": "status", "Values": ["available"]},  # those of a NAT gateway or a balancer are in use
        ]
        for face in place.rows("ec2", "describe_network_interfaces", "NetworkInterfaces", Filters=idle):
            id = str(face.get("NetworkInterfaceId", ""))
            for row in on.pop(id, []):
                yield _address(
                    place,
                    row,
                    "on an idle interface",
                    f"is on {id}, which hangs on no machine and no service",
                )


def _address(place: Place, row: dict[str, Any], state: str, why: str) -> Item:
    id = row.get("AllocationId") or row.get("PublicIp", "")
    key = "allocation_id" if row.get("AllocationId") else "public_ip"
    first: tuple[str, ...] = ()
    if row.get("AssociationId"):
        first = command("ec2", "disassociate-address", place.region, association_id=row["AssociationId"])
    return place.item(
        id, state, f"{row.get('PublicIp', '')} {why}", row.get("Tags") or [], billed=("address",),
        remove=(*first, *command("ec2", "release-address", place.region, **{key: id})),
    )  # fmt: skip


@kind("nat-gateway", calls=["ec2:DescribeNatGateways"], why="billed by the hour, and by each byte through it")
def nat_gateways(place: Place) -> Iterator[Item]:
    """NAT gateways that are not deleted."""
    for row in place.rows("ec2", "describe_nat_gateways", "NatGateways"):
        if row.get("State") in ("deleted", "deleting", "failed"):
            continue
        held = row.get("NatGatewayAddresses") or ()
        why, after = (
            "billed by the hour, traffic or not",
            _released(held, place.region),
        )
        if after:
            why += f"; {_stays([str(at.get('PublicIp', '')) for at in held if at.get('AllocationId')])}"
        yield place.item(
            row.get("NatGatewayId", ""), row.get("State", ""), why,
            row.get("Tags") or [], created=moment(row.get("CreateTime")), billed=("nat-gateway",), extra="traffic",
            remove=(
                *command("ec2", "delete-nat-gateway", place.region, nat_gateway_id=row.get("NatGatewayId", "")),
                *after,
            ),
        )  # fmt: skip


def _released(rows: Iterable[Mapping[str, Any]], region: str) -> tuple[str, ...]:
    """The commands that give back the elastic addresses that something held."""
    ids = dict.fromkeys(str(row["AllocationId"]) for row in rows if row.get("AllocationId"))
    return tuple(text for id in ids for text in command("ec2", "release-address", region, allocation_id=id))


def _stays(addresses: list[str]) -> str:
    """That the addresses outlive what holds them."""
    if len(addresses) == 1:
        return f"its elastic address {addresses[0]} stays and is billed: release it when this is gone"
    return f"its elastic addresses {', '.join(addresses)} stay and are billed: release them when this is gone"


@kind(
    "load-balancer",
    calls=["elbv2:DescribeLoadBalancers"],
    why="billed by the hour, and it holds public addresses",
)
def load_balancers(place: Place) -> Iterator[Item]:
    """Application, network and gateway load balancers."""
    for row in place.rows("elbv2", "describe_load_balancers", "LoadBalancers"):
        held = [
            at
            for zone in row.get("AvailabilityZones") or ()
            for at in zone.get("LoadBalancerAddresses") or ()
        ]
        why, after = (
            f"billed by the hour, traffic or not; {_GUARD}",
            _released(held, place.region),
        )
        if after:
            why += f"; {_stays([str(at.get('IpAddress', '')) for at in held if at.get('AllocationId')])}"
        yield place.item(
            row.get("LoadBalancerName", ""), (row.get("State") or {}).get("Code", ""), why,
            created=moment(row.get("CreatedTime")),
            type=row.get("Type", ""), billed=("load-balancer",), extra="traffic",
            remove=(
                *command("elbv2", "delete-load-balancer", place.region,
                         load_balancer_arn=row.get("LoadBalancerArn", "")),
                *after,
            ),
        )  # fmt: skip


@kind("classic-load-balancer", calls=["elb:DescribeLoadBalancers"], why="billed by the hour, traffic or not")
def classic_load_balancers(place: Place) -> Iterator[Item]:
    """Load balancers of the first generation; they have no state."""
    for row in place.rows("elb", "describe_load_balancers", "LoadBalancerDescriptions"):
        name = row.get("LoadBalancerName", "")
        yield place.item(
            name, "there", "billed by the hour, traffic or not", created=moment(row.get("CreatedTime")),
            billed=("classic-load-balancer", "load-balancer"), extra="traffic",
            remove=command("elb", "delete-load-balancer", place.region, load_balancer_name=name),
        )  # fmt: skip


@kind(
    "vpc-endpoint",
    calls=["ec2:DescribeVpcEndpoints"],
    why="an interface endpoint is billed by the hour, in each zone; those for S3 of type Gateway are free",
)
def vpc_endpoints(place: Place) -> Iterator[Item]:
    """Endpoints that are not of the type Gateway."""
    for row in place.rows("ec2", "describe_vpc_endpoints", "VpcEndpoints"):
        state = str(row.get("State", "")).lower()
        if row.get("VpcEndpointType", "Gateway") == "Gateway" or state in _NO_ENDPOINT:
            continue
        zones = len(row.get("SubnetIds") or ()) or 1
        yield place.item(
            row.get("VpcEndpointId", ""), state, f"billed by the hour in {many(zones, 'zone')}",
            row.get("Tags") or [], created=moment(row.get("CreationTimestamp")),
            type=row.get("VpcEndpointType", ""), billed=("vpc-endpoint",), extra="traffic", count=float(zones),
            **through("the service that made it" if row.get("RequesterManaged") else ""),
            remove=() if row.get("RequesterManaged") else command(
                "ec2", "delete-vpc-endpoints", place.region, vpc_endpoint_ids=row.get("VpcEndpointId", "")),
        )  # fmt: skip
