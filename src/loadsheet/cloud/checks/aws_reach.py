"""Amazon: who reaches the machines from outside, and who on them reaches their role's keys."""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Final

from loadsheet.cloud.aws.looked import account, machines, regions, shown
from loadsheet.cloud.checklist import CannotLook, Result, not_applicable, ok, unknown, warn
from loadsheet.cloud.context import Context
from loadsheet.cloud.registry import check
from loadsheet.errors import one_line

_SSH: Final = 22
#: addresses from which on a group counts as open to the world, all its ranges taken together: a /8 of IPv4 (one in 256
#: of all), a /16 of IPv6; nobody who rents a machine has so many of his own
_WORLD: Final = {4: 2 ** (32 - 8), 6: 2 ** (128 - 16)}
#: what can be reached from everywhere: of IPv6 what is handed out (RFC 4291), of IPv4 all but private networks
_PUBLIC: Final = ipaddress.IPv6Network("2000::/3")
_PRIVATE: Final = [ipaddress.IPv4Network(net) for net in ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12",
                   "192.168.0.0/16", "224.0.0.0/3")]  # fmt: skip
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_MOST: Final = 10  # groups or machines that are shown


@check(
    "aws.ssh-open",
    phase="before",
    needs="account",
    slow=True,
    why="a port for SSH that is open to the world is tried within minutes, by everybody who scans it",
)
def ssh_open(context: Context) -> Result:
    """Security groups, of the default network or of a machine, that let the internet, or a /8 of it, in on port 22."""
    asked = account(context)
    found = asked.everywhere(regions(context), lambda region: _groups(context, region))
    bad: list[dict[str, Any]] = []
    lists: list[dict[str, Any]] = []
    count = 0
    refused, rows = _refused(found)
    for region, groups in found.items():
        for group, on in () if isinstance(groups, CannotLook) else groups:
            count += 1
            world, named = let_in(group)
            name = str(group.get("GroupId", ""))
            said = f"{region}: {name} ({one_line(str(group.get('GroupName', '')))[:60]})"
            row = {"region": region, "group": name, "machines": on[:100]}
            where = f"on {shown(on, 3)}" if on else "on no machine yet, but in the default network"
            if world:
                fact = f"{said} lets {shown(world, 4)} in on port {_SSH}; {where}"
                bad.append({**row, "fact": fact, "open_to": world})
            elif named:
                fact = f"{said} lets {shown(named)} in on port {_SSH}: what stands in that list is not read"
                lists.append({**row, "fact": fact, "prefix_lists": named})
    if bad:
        how = "allow your own address only (`curl https://checkip.amazonaws.com`), or use Session Manager and no port"
        return warn(*bad[:_MOST], *lists[:_MOST], *rows, next=how)
    if refused is not None:
        return unknown(*lists[:_MOST], *rows, next=refused.next)
    if lists:
        return unknown(
            *lists[:_MOST], next="`aws ec2 get-managed-prefix-list-entries` shows what is in a list"
        )
    if not count:
        return not_applicable(f"no security group of a machine or of a default network in {shown(found)}")
    return ok(
        {
            "fact": f"none of {count:,} groups lets the whole internet, or a /8 of it, in on port {_SSH}",
            "groups": count,
        }
    )


def _groups(context: Context, region: str) -> list[tuple[Mapping[str, Any], list[str]]]:
    """The groups of a region that count, with the machines they are on."""
    asked = account(context)
    default = [{"Name": "is-default", "Values": ["true"]}]
    networks = {
        vpc.get("VpcId")
        for vpc in asked.items("ec2", "describe_vpcs", "Vpcs", region=region, Filters=default)
    }
    on: dict[str, list[str]] = {}
    for machine in machines(context, region):
        cards = machine.get("NetworkInterfaces") or ()
        ties = [*(machine.get("SecurityGroups") or ()), *(t for c in cards for t in c.get("Groups") or ())]
        for name in dict.fromkeys(str(tie.get("GroupId")) for tie in ties):
            on.setdefault(name, []).append(str(machine.get("InstanceId")))
    groups = asked.items("ec2", "describe_security_groups", "SecurityGroups", region=region)
    return [(g, on.get(g["GroupId"], [])) for g in groups if g["GroupId"] in on or g.get("VpcId") in networks]


def let_in(group: Mapping[str, Any], port: int = _SSH) -> tuple[list[str], list[str]]:
    """Who a security group lets in on a TCP port: the ranges that are the world, alone or together, and prefix lists.

    >>> everybody = {"IpProtocol": "tcp", "FromPort": 0, "ToPort": 1024, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
    >>> let_in({"IpPermissions": [everybody]})
    (['0.0.0.0/0'], [])
    """
    found: dict[str, _Network] = {}
    lists: list[str] = []
    for rule in group.get("IpPermissions") or ():
        protocol = str(rule.get("IpProtocol", "-1"))
        # "-1" is every protocol and port; a rule for TCP without ports would be for all of them
        if protocol not in {"-1", "tcp", "6"}:
            continue
        if protocol != "-1" and not rule.get("FromPort", 0) <= port <= rule.get("ToPort", 65535):
            continue
        ranges = [str(r.get("CidrIp", "")) for r in rule.get("IpRanges") or ()]
        ranges += [str(r.get("CidrIpv6", "")) for r in rule.get("Ipv6Ranges") or ()]
        found.update((r, ipaddress.ip_network(r, strict=False)) for r in ranges)
        lists += [str(entry.get("PrefixListId", "")) for entry in rule.get("PrefixListIds") or ()]
    return _wide(found), list(dict.fromkeys(lists))


def _wide(ranges: Mapping[str, _Network]) -> list[str]:
    """The ranges that are the world by themselves, else those that are it together; none if they are not.

    >>> _wide({text: ipaddress.ip_network(text) for text in ("10.0.0.0/8", "16.0.0.0/9", "16.128.0.0/9")})
    ['16.0.0.0/9', '16.128.0.0/9']
    """
    wide: list[str] = []
    for version, limit in _WORLD.items():
        sizes = {text: _reached([net]) for text, net in ranges.items() if net.version == version}
        alone = [text for text, size in sizes.items() if size >= limit]
        together = [ranges[text] for text, size in sizes.items() if size]
        if alone or _reached(together) >= limit:
            wide += alone or sorted((text for text, size in sizes.items() if size), key=lambda t: -sizes[t])
    return wide


def _reached(networks: Iterable[_Network]) -> int:
    """How many addresses of the internet stand in networks of one version, each counted once."""
    count = 0
    for net in ipaddress.collapse_addresses(networks):  # type: ignore[type-var]
        if isinstance(net, ipaddress.IPv6Network):
            count += (
                min(net, _PUBLIC, key=lambda n: n.num_addresses).num_addresses if net.overlaps(_PUBLIC) else 0
            )
        else:
            inside = [min(net, p, key=lambda n: n.num_addresses) for p in _PRIVATE if net.overlaps(p)]
            count += net.num_addresses - sum(p.num_addresses for p in inside)
    return count


@check(
    "aws.metadata",
    phase="before",
    needs="account",
    slow=True,
    why="with version 1 a server on the machine that is talked into fetching an address gives its role's keys away",
)
def metadata(context: Context) -> Result:
    """Machines whose metadata service answers version 1 (IMDSv1), without a session's token."""
    found = account(context).everywhere(regions(context), lambda region: machines(context, region))
    old: list[dict[str, Any]] = []
    silent: list[dict[str, Any]] = []
    count = 0
    refused, rows = _refused(found)
    for region, seen in found.items():
        for machine in () if isinstance(seen, CannotLook) else seen:
            count += 1
            options = machine.get("MetadataOptions") or {}
            name, tokens = str(machine.get("InstanceId", "")), options.get("HttpTokens")
            row = {"region": region, "instance": name}
            if tokens == "required" or options.get("HttpEndpoint") == "disabled":
                continue
            if tokens == "optional":
                old.append({**row, "fact": f"{region}: {name} answers version 1 (HttpTokens optional)"})
            else:
                silent.append({**row, "fact": f"{region}: {name}: which version it answers is not said"})
    if old:
        words = ["aws", "ec2", "modify-instance-metadata-options", "--http-tokens", "required"]
        words += ["--region", old[0]["region"], "--instance-id", old[0]["instance"]]
        how = f"`{one_line(shlex.join(words))}`; in a container also `--http-put-response-hop-limit 2`"
        return warn(*old[:_MOST], *silent[:_MOST], *rows, next=how)
    if refused is not None or silent:
        return unknown(*silent[:_MOST], *rows, next=refused.next if refused else "")
    if not count:
        return not_applicable(f"no machine in {shown(found)}")
    return ok({"fact": f"none of {count:,} machines answers version 1", "machines": count})


def _refused(found: Mapping[str, Any]) -> tuple[CannotLook | None, list[dict[str, Any]]]:
    """The first region that could not be looked at, and all of them as evidence."""
    refused = {region: error for region, error in found.items() if isinstance(error, CannotLook)}
    rows = [{"fact": f"{region}: {error}", "region": region} for region, error in refused.items()]
    return next(iter(refused.values()), None), rows[:_MOST]
