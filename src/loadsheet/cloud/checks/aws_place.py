"""Amazon: bucket, volume and machine in one region and zone, and no gateway in between that is paid by the gigabyte."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from loadsheet.cloud.aws.failures import is_missing
from loadsheet.cloud.aws.gpu_types import offered
from loadsheet.cloud.aws.looked import account, regions, shown
from loadsheet.cloud.aws.session import GLOBAL, Account
from loadsheet.cloud.checklist import CannotLook, Result, fail, not_applicable, ok, unknown, warn
from loadsheet.cloud.context import Context
from loadsheet.cloud.registry import check
from loadsheet.errors import one_line

_OLD_NAME: Final = {"EU": "eu-west-1", "": GLOBAL}  # what S3 says of buckets from before there were others


def _buckets(places: tuple[str | None, ...]) -> list[str]:
    """The buckets among places of data."""
    parts = [urlsplit(place) for place in places if place]
    return list(
        dict.fromkeys(p.hostname or "" for p in parts if p.scheme in {"s3", "s3a", "s3n"} and p.hostname)
    )


@check(
    "aws.data-near",
    phase="before",
    needs="account",
    slow=True,
    settles=("data.near",),
    why="data from another region is paid for by the gigabyte, and arrives slowly",
)
def near(context: Context) -> Result:
    """The region of every bucket of `--data`, beside the machine's; and that no NAT gateway stands between."""
    named = _buckets(context.inputs.data)
    asked = account(context)
    if not named:
        return not_applicable("no `--data s3://…` was named")
    others = [one_line(place) for place in context.inputs.data if not _buckets((place,))]
    found = _compared(asked, regions(context), named)
    if found.state != "ok":
        return found
    way = nat(context)  # the question that this settles asks for the way, too
    if way.state in {"warn", "fail"}:
        text = "the way there may lead through a NAT gateway: see aws.nat"
        return warn(*found.evidence, text, next=way.next)
    if way.state == "unknown":
        text = "whether the way there leads through a NAT gateway could not be seen: see aws.nat"
        return unknown(*found.evidence, text, next=way.next)
    if others:
        return unknown(*found.evidence, f"not of this account: {shown(others)}")
    return found


@check(
    "aws.mirror-near",
    phase="before",
    needs="account",
    slow=True,
    why="checkpoints that leave the region are paid for by the gigabyte, every time",
)
def mirror(context: Context) -> Result:
    """The region of the bucket of `--mirror`, beside the machine's."""
    named = _buckets((context.inputs.mirror,))
    asked = account(context)
    if not named:
        return not_applicable("no `--mirror s3://…` was named")
    return _compared(asked, regions(context), named)


def _compared(asked: Account, places: list[str], buckets: list[str]) -> Result:
    """Buckets against the one region of the machine."""
    rows: list[dict[str, Any]] = []
    refused: CannotLook | None = None
    far, gone = [], []
    for bucket in buckets:
        try:
            answer = asked.call("s3", "get_bucket_location", region=places[0], Bucket=bucket)
        except CannotLook as error:
            if is_missing(error):
                gone.append(bucket)
                rows.append({"fact": f"{bucket} is not there: {error}", "bucket": bucket})
                continue
            refused = refused or error
            rows.append({"fact": f"{bucket}: {error}", "bucket": bucket})
            continue
        place = answer.get("LocationConstraint") or ""
        place = _OLD_NAME.get(place, place)
        rows.append({"fact": f"{bucket} is in {place}", "bucket": bucket, "region": place})
        if place not in places:
            far.append(bucket)
    if gone:
        return fail(*rows, next=f"make it, or mend the name: {shown(gone)}")
    if far:
        text = f"the machine is to be in {shown(places)}"
        return fail(text, *rows, next="rent where the data is, or copy the bucket once")
    if refused is not None:
        return unknown(*rows, next=refused.next)
    if len(places) > 1:
        return warn(*rows, f"but the machine may be in any of {shown(places)}", next="name one `--region`")
    return ok(*rows)


@check(
    "aws.volume-near",
    phase="before",
    needs="account",
    slow=True,
    why="a volume can only be attached in its own zone, and a spot machine comes up where there is room",
)
def volume(context: Context) -> Result:
    """The zone of `--volume` beside that of `--subnet`, and whether `--instance-type` is offered there."""
    wanted, asked = context.inputs.volume, account(context)
    if wanted is None:
        return not_applicable("no `--volume` was named")
    places = regions(context)
    seen = _where(asked, places, wanted, "describe_volumes", "Volumes", "VolumeIds")
    if seen is None:
        return fail(f"{wanted} is not in {shown(places)}", next="name its region: `--region`")
    region, found = seen
    zone = str(found.get("AvailabilityZone", ""))
    rows: list[Mapping[str, Any] | str] = [{"fact": f"{wanted} is in {zone}", "volume": wanted, "zone": zone}]
    if context.inputs.subnet:
        subnet = _subnet(asked, region, context.inputs.subnet)
        if subnet is None:
            text = f"{context.inputs.subnet} is not in {region}"
            return fail(*rows, text, next=f"a subnet in {zone}")
        other = str(subnet.get("AvailabilityZone", ""))
        rows.append({"fact": f"{context.inputs.subnet} is in {other}", "zone": other})
        if other != zone:
            return fail(*rows, next=f"a subnet in {zone}, or a snapshot of the volume in {other}")
    kind = context.inputs.instance_type
    if kind:
        zones = offered(asked, region, [kind])[kind]
        rows.append({"fact": f"{kind} is offered in {shown(zones) or 'no zone here'}", "zones": zones})
        if zone not in zones:
            return fail(
                *rows, next=f"another type, or a snapshot of the volume in {shown(zones) or 'another region'}"
            )
    if not context.inputs.subnet:
        return warn(*rows, next=f"start the machine in {zone}: name a `--subnet` there")
    if len(places) > 1:
        text = f"but the machine may be in any of {shown(places)}"
        return warn(*rows, text, next=f"name one region: `--region {region}`")
    return ok(*rows)


def _where(
    asked: Account, places: list[str], wanted: str, operation: str, key: str, ids: str
) -> tuple[str, Mapping[str, Any]] | None:
    """The region of something of EC2, and what is said of it there; None where it is in none of them.

    CannotLook where it was not found, and a region did not say.
    """
    refused: CannotLook | None = None
    for region in places:
        try:
            found = next(asked.items("ec2", operation, key, region=region, most=1, **{ids: [wanted]}), None)
        except CannotLook as error:
            refused = refused if is_missing(error) else refused or error
            continue
        if found is not None:
            return region, found
    if refused is not None:
        raise refused
    return None


def _subnet(asked: Account, region: str, wanted: str) -> Mapping[str, Any] | None:
    """A subnet of a region; None where it is not there."""
    found = _where(asked, [region], wanted, "describe_subnets", "Subnets", "SubnetIds")
    return None if found is None else found[1]


@check(
    "aws.nat",
    phase="before",
    needs="account",
    slow=True,
    why="20 TB from a bucket through a NAT gateway cost more than 1,000 USD in a day; an endpoint is free",
)
def nat(context: Context) -> Result:
    """Routes to a NAT gateway without a gateway endpoint for S3 beside them: of `--subnet`, or of the region."""
    return context.once("aws nat", lambda: _nat(context))


def _nat(context: Context) -> Result:
    """What `nat` finds, for those who need it too."""
    asked, wanted = account(context), context.inputs.subnet
    found = asked.everywhere(regions(context), lambda region: _tables(asked, region, wanted))
    if wanted and all(tables is None for tables in found.values()):
        return fail(
            f"{wanted} is not in {shown(found)}", next="mend its name, or name its region: `--region`"
        )
    rows: list[dict[str, Any]] = []
    through, refused = False, None
    bad: list[dict[str, Any]] = []
    for region, tables in found.items():
        if isinstance(tables, CannotLook):
            refused = refused or tables
            rows.append({"fact": f"{region}: {tables}", "region": region})
            continue
        for table, gateway, free in tables or ():
            through = True
            text = f"{table} sends all to {gateway}, " + ("S3 by its endpoint" if free else "S3 too")
            row = {"fact": f"{region}: {text}", "region": region, "route_table": table, "endpoint": free}
            (rows.append if free else bad.append)(row)
    if bad:
        how = "make a gateway endpoint for S3 in that network (it costs nothing), with these route tables"
        worst = fail if wanted else warn
        return worst(*bad[:10], *rows[:5], next=how)
    if refused is not None:
        return unknown(*rows[:10], next=refused.next)
    if not through:
        return not_applicable(f"no route to a NAT gateway in {shown(found)}")
    return ok(*rows[:10])


def _tables(asked: Account, region: str, wanted: str | None) -> list[tuple[str, str, bool]] | None:
    """Route tables that send everything to a NAT gateway: id, gateway, whether S3 has an endpoint there.

    None where the subnet that was named is not in this region.
    """
    network = None
    if wanted is not None:
        subnet = _subnet(asked, region, wanted)
        if subnet is None:
            return None
        network = str(subnet.get("VpcId"))
    service = [{"Name": "service-name", "Values": [f"com.amazonaws.{region}.s3"]}]
    endpoints = asked.items("ec2", "describe_vpc_endpoints", "VpcEndpoints", region=region, Filters=service)
    free = {
        str(table)
        for endpoint in endpoints
        if endpoint.get("VpcEndpointType") == "Gateway"
        and str(endpoint.get("State", "")).lower() == "available"
        for table in endpoint.get("RouteTableIds") or ()
    }
    found, own = [], []
    for table in asked.items("ec2", "describe_route_tables", "RouteTables", region=region):
        if network is not None and table.get("VpcId") != network:
            continue
        name = str(table.get("RouteTableId", ""))
        gateways = [
            str(route["NatGatewayId"])
            for route in table.get("Routes") or ()
            if route.get("NatGatewayId") and route.get("DestinationCidrBlock") == "0.0.0.0/0"
        ]
        ties = table.get("Associations") or ()
        row = [(name, gateway, name in free) for gateway in gateways]
        if wanted is None or any(tie.get("Main") for tie in ties):
            found += row
        if wanted is not None and any(tie.get("SubnetId") == wanted for tie in ties):
            own.append(row)
    # a subnet with a table of its own does not use the main one
    return own[0] if own else found
