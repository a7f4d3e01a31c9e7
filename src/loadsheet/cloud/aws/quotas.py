"""The quotas of EC2: which one holds for an instance type, what it allows, and what runs under it already."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from loadsheet.cloud.aws.failures import CallFailed
from loadsheet.cloud.aws.session import Account
from loadsheet.cloud.checklist import CannotLook
from loadsheet.errors import one_line

MARKETS: Final = ("on-demand", "spot")
_FAMILY: Final = re.compile(r"(?P<letters>[a-z]+?)(?P<generation>\d+)[a-z0-9-]*\.[a-z0-9-]+")
_TYPES_AT_ONCE: Final = 100  # describe_instance_types takes no more names


@dataclass(frozen=True)
class Quota:
    """One quota, in vCPUs of running instances; `code` is None where nobody is sure of it."""

    name: str
    market: str
    code: str | None
    families: frozenset[str]
    generations: frozenset[int] | None
    verified: bool
    note: str = ""

    def holds_for(self, instance_type: str, market: str) -> bool:
        """Whether instances of a type count against it."""
        found = _FAMILY.fullmatch(instance_type)
        if found is None or market != self.market or found["letters"] not in self.families:
            return False
        return self.generations is None or int(found["generation"]) in self.generations


@functools.cache
def quotas() -> list[Quota]:
    """The table of quotas; source and date stand in `quotas.json`."""
    text = resources.files("loadsheet.cloud.aws").joinpath("quotas.json").read_text(encoding="utf-8")
    return [
        Quota(
            name=row["name"],
            market=row["market"],
            code=row["code"],
            families=frozenset(row["families"]),
            generations=None if row["generations"] is None else frozenset(row["generations"]),
            verified=row["verified"],
            note=row.get("note", ""),
        )
        for row in json.loads(text)["quotas"]
    ]


def quota_of(instance_type: str, market: str) -> Quota | None:
    """The quota that an instance type counts against; None if our table has none.

    >>> [quota_of("g5.xlarge", m).code for m in ("on-demand", "spot")]
    ['L-DB2E81BA', 'L-3819A6DF']
    >>> quota_of("p5.48xlarge", "spot").name
    'P5'
    """
    return next((quota for quota in quotas() if quota.holds_for(instance_type, market)), None)


@dataclass(frozen=True)
class Room:
    """What one quota allows in one region; vCPUs. `pending`: what was asked for and is not decided."""

    region: str
    limit: float
    used: int
    pending: float | None = None
    asked: str = ""  # the day
    state: str = ""
    default: bool = False  # the value is AWS's default, nothing was ever granted

    @property
    def left(self) -> float:
        """vCPUs that may still be started; never below 0."""
        return max(self.limit - self.used, 0.0)


def room(account: Account, quota: Quota, region: str) -> Room:
    """What a quota still allows in a region; CannotLook where its code is not sure, or may not be read."""
    if quota.code is None or not quota.verified:
        raise CannotLook(
            f"{quota.name}, {quota.market}: {quota.note}{_by_name(account, quota, region)}", _BY_HAND
        )
    about = {"ServiceCode": "ec2", "QuotaCode": quota.code}
    default = False
    try:
        answer = account.call("service-quotas", "get_service_quota", region=region, **about)
    except CallFailed as error:
        if error.kind != "missing":
            raise
        answer = account.call("service-quotas", "get_aws_default_service_quota", region=region, **about)
        default = True
    value = (answer.get("Quota") or {}).get("Value")
    if not isinstance(value, int | float):
        raise CannotLook(f"the quota {quota.code} in {region} has no value", _BY_HAND)
    used = running(account, quota, region)
    asked = _pending(account, quota, region)
    return Room(
        region,
        float(value),
        used,
        asked.get("DesiredValue"),
        str(asked.get("Created", ""))[:10],
        str(asked.get("Status", "")),
        default,
    )


_BY_HAND: Final = "look in the console: Service Quotas, Amazon EC2"


def _by_name(account: Account, quota: Quota, region: str) -> str:
    """Quotas whose names come near, to help the eye; nothing if they may not be read."""
    word = re.compile(rf"\b{quota.name[:2].strip()}", re.IGNORECASE)
    try:
        listed = account.items(
            "service-quotas", "list_service_quotas", "Quotas", region=region, most=30, ServiceCode="ec2"
        )
        near = [
            f"{one_line(str(row.get('QuotaName')))[:80]}: {row.get('Value')}"
            for row in listed
            if word.search(str(row.get("QuotaName")))
            and (quota.market == "spot") == ("Spot" in str(row["QuotaName"]))
        ]
    except CallFailed:
        return ""
    return f"; by their names: {'; '.join(near[:4])}" if near else ""


def _pending(account: Account, quota: Quota, region: str) -> dict[str, Any]:
    """The newest request that is not decided yet; a refusal to read it takes nothing from the rest."""
    try:
        rows = account.items(
            "service-quotas",
            "list_requested_service_quota_change_history_by_quota",
            "RequestedQuotas",
            region=region,
            most=20,
            ServiceCode="ec2",
            QuotaCode=quota.code,
        )
        waiting = [row for row in rows if row.get("Status") in {"PENDING", "CASE_OPENED"}]
    except CallFailed as error:
        return {"Status": f"whether more was asked for could not be read: {error}"}
    return max(waiting, key=lambda row: str(row.get("Created", "")), default={})


def running(account: Account, quota: Quota, region: str) -> int:
    """vCPUs of the running instances that count against a quota."""
    counts: dict[str, int] = {}
    states = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    for reservation in account.items(
        "ec2", "describe_instances", "Reservations", region=region, Filters=states
    ):
        for instance in reservation.get("Instances", ()):
            market = "spot" if instance.get("InstanceLifecycle") == "spot" else "on-demand"
            name = str(instance.get("InstanceType", ""))
            if quota.holds_for(name, market):
                counts[name] = counts.get(name, 0) + 1
    sizes = vcpus(account, counts, region)
    return sum(sizes[name] * count for name, count in counts.items())


def vcpus(account: Account, types: Iterable[str], region: str) -> dict[str, int]:
    """The vCPUs of instance types, as quotas count them: what a type has when nothing is switched off."""
    names = sorted(set(types))
    found: dict[str, int] = {}
    for start in range(0, len(names), _TYPES_AT_ONCE):
        part = names[start : start + _TYPES_AT_ONCE]
        for row in account.items(
            "ec2", "describe_instance_types", "InstanceTypes", region=region, InstanceTypes=part
        ):
            found[str(row["InstanceType"])] = int(row["VCpuInfo"]["DefaultVCpus"])
    if missing := set(names) - set(found):
        raise CannotLook(f"{region} does not say how many vCPUs {', '.join(sorted(missing)[:3])} has")
    return found
