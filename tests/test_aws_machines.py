"""Quotas, instance types, regions and gateways of an account; story 4 and story 6; the printed policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aws_world import (
    ACCOUNT,
    REGION,
    Refusal,
    World,
    aws_server,  # noqa: F401
    caller,
    decisions,
    look,
    looked,
    sheet,
    summary,
    world,  # noqa: F401
)
from preflight_world import facts
from terminal import answered, run

from loadsheet.cloud.aws.gpu_types import _table, parse_type, sold_by
from loadsheet.cloud.aws.operations import PREFLIGHT
from loadsheet.cloud.aws.quotas import quota_of, quotas
from loadsheet.cloud.aws.regions import require_regions
from loadsheet.cloud.aws.session import policy
from loadsheet.cloud.context import Context, Inputs
from loadsheet.errors import UnknownKey

GIB = 1 << 30
G_ON_DEMAND, G_SPOT = "L-DB2E81BA", "L-3819A6DF"


def limits(world: World, values: dict[str, float], region: str = "") -> None:  # noqa: F811
    """What quotas allow, by their codes; others are 0."""
    world.answer(
        "service-quotas:GetServiceQuota",
        lambda request: {
            "Quota": {"QuotaCode": request["QuotaCode"], "Value": values.get(request["QuotaCode"], 0.0)}
        },
        region,
    )


def requests(world: World, *rows: dict[str, Any]) -> None:  # noqa: F811
    """What was asked for."""
    world.answer(
        "service-quotas:ListRequestedServiceQuotaChangeHistoryByQuota", {"RequestedQuotas": list(rows)}
    )


def start(world: World, kind: str, count: int = 1, *, spot: bool = False, region: str = REGION) -> list[str]:  # noqa: F811
    """Running machines."""
    more: dict[str, Any] = {"InstanceMarketOptions": {"MarketType": "spot"}} if spot else {}
    made = world.client("ec2", region).run_instances(
        ImageId="ami-12345678", InstanceType=kind, MinCount=count, MaxCount=count, **more
    )
    return [instance["InstanceId"] for instance in made["Instances"]]


# --- story 4 -----------------------------------------------------------------------------------------------


def test_story_4_a_new_account(world: World, tmp_path: Path) -> None:  # noqa: F811
    """Quota 0: no machine starts; how much to ask for, of what, and when, is said."""
    limits(world, {})
    requests(world)
    found = look(tmp_path, "aws.quota", instance_type="g4dn.xlarge")
    assert found.state == "fail"
    assert "us-east-1: 0 allowed, 0 in use, 0 left: too little" in facts(found)
    assert found.next.startswith("ask for 4 vCPUs of G and VT (L-DB2E81BA), today: approval takes days")
    assert found.evidence[0]["needed_vcpus"] == 4


def test_story_4_one_is_less_than_four(world: World, tmp_path: Path) -> None:  # noqa: F811
    """The quota counts vCPUs, not machines: 1 is not one g4dn.xlarge."""
    limits(world, {G_ON_DEMAND: 1.0})
    requests(world)
    assert look(tmp_path, "aws.quota", instance_type="g4dn.xlarge").state == "fail"
    limits(world, {G_ON_DEMAND: 4.0})
    found = look(tmp_path, "aws.quota", instance_type="g4dn.xlarge")
    assert found.state == "ok"
    assert "1* × g4dn.xlarge (4 vCPUs) = 4 vCPUs, on-demand*" in facts(found)


def test_story_4_all_in_use(world: World, tmp_path: Path) -> None:  # noqa: F811
    """4 allowed, 4 in use by what runs already; spot, stopped and other families do not count."""
    limits(world, {G_ON_DEMAND: 4.0, G_SPOT: 4.0})
    requests(world)
    start(world, "g5.xlarge", spot=True)
    start(world, "m5.4xlarge")
    (stopped,) = start(world, "g5.xlarge")
    world.client("ec2").stop_instances(InstanceIds=[stopped])
    assert look(tmp_path, "aws.quota", instance_type="g5.xlarge").state == "ok"
    start(world, "g4dn.xlarge")
    found = look(tmp_path, "aws.quota", instance_type="g5.xlarge")
    assert found.state == "fail"
    assert "4 allowed, 4 in use, 0 left" in facts(found)
    assert "ask for 8 vCPUs" in found.next
    # the same need as spot: 4 allowed, 4 in use there too
    assert look(tmp_path, "aws.quota", instance_type="g5.xlarge", spot=True).state == "fail"


def test_story_4_asked_for(world: World, tmp_path: Path) -> None:  # noqa: F811
    """64 asked for, not decided: wait; a request that was closed is none."""
    limits(world, {})
    row = {"DesiredValue": 64.0, "Status": "CASE_OPENED", "Created": 1_796_000_000, "QuotaCode": G_ON_DEMAND}
    requests(world, row)
    found = look(tmp_path, "aws.quota", instance_type="g5.xlarge")
    assert found.state == "fail"
    assert "64 asked for on 2026-11-" in facts(found)
    assert found.next.startswith("wait for the answer")
    requests(world, {**row, "Status": "DENIED"})
    assert look(tmp_path, "aws.quota", instance_type="g5.xlarge").next.startswith("ask for 4 vCPUs")


# --- quotas ------------------------------------------------------------------------------------------------


def test_several_machines_and_regions(world: World, tmp_path: Path) -> None:  # noqa: F811
    """8 × g5.xlarge are 32 vCPUs; a region with room beside one without is a warning."""
    limits(world, {G_ON_DEMAND: 32.0})
    limits(world, {G_ON_DEMAND: 31.0}, "eu-west-1")
    requests(world)
    asked: dict[str, Any] = {"instance_type": "g5.xlarge", "instances": 8}
    assert look(tmp_path, "aws.quota", regions=("us-east-1",), **asked).state == "ok"
    assert look(tmp_path, "aws.quota", regions=("eu-west-1",), **asked).state == "fail"
    found = look(tmp_path, "aws.quota", regions=("us-east-1", "eu-west-1"), **asked)
    assert found.state == "warn"
    assert "8 × g5.xlarge" in facts(found)


def test_a_region_that_may_not_be_looked_at(world: World, tmp_path: Path) -> None:  # noqa: F811
    """Alone it is unknown, with the permission; beside one with room a warning."""
    limits(world, {G_ON_DEMAND: 32.0})
    requests(world)
    world.refuse("service-quotas:GetServiceQuota", "AccessDeniedException", region="eu-west-1")
    found = look(tmp_path, "aws.quota", regions=("eu-west-1",), instance_type="g5.xlarge")
    assert found.state == "unknown"
    assert "servicequotas:GetServiceQuota" in found.next
    both = look(tmp_path, "aws.quota", regions=("us-east-1", "eu-west-1"), instance_type="g5.xlarge")
    assert both.state == "warn"
    assert "not allowed to servicequotas:GetServiceQuota in eu-west-1" in facts(both)


def test_the_default_where_nothing_was_granted(world: World, tmp_path: Path) -> None:  # noqa: F811
    """NoSuchResource is not 0: AWS's default is asked for, and named as such."""
    world.refuse("service-quotas:GetServiceQuota", "NoSuchResourceException")
    world.answer("service-quotas:GetAWSDefaultServiceQuota", {"Quota": {"Value": 5.0}})
    requests(world)
    found = look(tmp_path, "aws.quota", instance_type="m5.xlarge")
    assert found.state == "ok"
    assert "5 allowed, 0 in use, 5 left: enough (AWS's default)" in facts(found)


def test_a_code_that_nobody_is_sure_of(world: World, tmp_path: Path) -> None:  # noqa: F811
    """P6 spot is unknown; quotas with such names are shown, for the eye."""
    row = {"QuotaName": "All P6 Spot Instance Requests", "Value": 192.0}
    world.answer(
        "service-quotas:ListServiceQuotas",
        {"Quotas": [row, {"QuotaName": "Running On-Demand P", "Value": 1.0}]},
    )
    found = look(tmp_path, "aws.quota", instance_type="p6-b200.48xlarge", spot=True)
    assert found.state == "unknown"
    assert "All P6 Spot Instance Requests: 192.0" in facts(found)
    assert "Running On-Demand" not in facts(found)


def test_without_an_instance_type(world: World, tmp_path: Path) -> None:  # noqa: F811
    """Nothing allowed anywhere fails; else the figures are shown, and the type is asked for."""
    limits(world, {})
    requests(world)
    assert look(tmp_path, "aws.quota").state == "fail"
    limits(world, {G_SPOT: 8.0})
    found = look(tmp_path, "aws.quota")
    assert found.state == "unknown"
    assert "G and VT, spot, us-east-1: 8 allowed, 0 in use, 8 left" in facts(found)
    assert "--instance-type" in found.next


def test_without_a_region(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """It is asked for, not guessed."""
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    found = look(tmp_path, "aws.quota", instance_type="g5.xlarge")
    assert (found.state, found.next) == ("unknown", "`--region eu-west-1`, or AWS_DEFAULT_REGION")


def test_a_type_that_there_is_not(world: World, tmp_path: Path, quick: None) -> None:  # noqa: F811
    """AWS says so: a failure, and never 0 vCPUs; with names that come near. Not allowed to ask: unknown."""
    limits(world, {G_ON_DEMAND: 32.0})
    for kind in ("g5.xlrage", "nonsense"):
        found = look(tmp_path, "aws.quota", instance_type=kind)
        assert (found.state, facts(found)) == ("fail", f"AWS has no instance type {kind} in us-east-1")
    assert "g5.xlarge" in look(tmp_path, "aws.quota", instance_type="g5.xlrage").next
    assert "g5.xlarge" in look(tmp_path, "aws.quota", instance_type="g5.nonsense").next
    # a region that may not be asked could have it
    world.refuse("ec2:DescribeInstanceTypes", "UnauthorizedOperation", region="eu-west-1", status=403)
    both = ("us-east-1", "eu-west-1")
    assert look(tmp_path, "aws.quota", instance_type="g5.tiny", regions=both).state == "unknown"


@pytest.mark.parametrize(
    ("kind", "market", "code"),
    [
        ("g4dn.xlarge", "on-demand", "L-DB2E81BA"),
        ("gr6.4xlarge", "on-demand", "L-DB2E81BA"),
        ("vt1.3xlarge", "spot", "L-3819A6DF"),
        ("p5.48xlarge", "on-demand", "L-417A185B"),
        ("p4de.24xlarge", "spot", "L-7212CCBC"),
        ("p5en.48xlarge", "spot", "L-C4BD4855"),
        ("dl1.24xlarge", "on-demand", "L-6E869C2A"),
        ("dl1.24xlarge", "spot", "L-85EED4F7"),
        ("trn1.2xlarge", "on-demand", "L-2C3B7624"),
        ("inf2.xlarge", "spot", "L-B5D1601B"),
        ("m7i-flex.large", "on-demand", "L-1216C47A"),
    ],
)
def test_which_quota_holds(kind: str, market: str, code: str) -> None:
    """By the table of EC2's documentation."""
    found = quota_of(kind, market)
    assert found is not None
    assert found.code == code


def test_one_quota_for_each_type() -> None:
    """No type counts against two quotas of one market; no code stands twice; a code that is sure is there."""
    kinds = [
        f"{family}{generation}.large"
        for quota in quotas()
        for family in quota.families
        for generation in range(1, 9)
    ]
    for market in ("on-demand", "spot"):
        for kind in kinds:
            assert sum(quota.holds_for(kind, market) for quota in quotas()) <= 1
    codes = [quota.code for quota in quotas() if quota.code]
    assert len(codes) == len(set(codes))
    assert all(quota.code or not quota.verified for quota in quotas())


# --- instance types ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpu_rows(aws_server: World) -> list[dict[str, Any]]:  # noqa: F811
    """moto's copy of what AWS says of types with GPUs; asked once, because it takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        wanted = [{"Name": "instance-type", "Values": ["g*", "p*"]}]
        pages = aws_server.client("ec2").get_paginator("describe_instance_types").paginate(Filters=wanted)
        return [row for page in pages for row in page["InstanceTypes"]]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, gpu_rows: list[dict[str, Any]]) -> None:
    """The long list is not asked for again."""
    from loadsheet.cloud.aws.session import Account

    asked = Account.items

    def items(self: Account, service: str, operation: str, key: str, **more: Any) -> Any:
        if operation == "describe_instance_types" and "Filters" in more:
            return iter(gpu_rows)
        return asked(self, service, operation, key, **more)

    monkeypatch.setattr(Account, "items", items)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("peak", "gpus", "first"),
    [
        (14 * GIB, 1, "g4dn.xlarge"),  # a T4
        (20 * GIB, 1, "g5.xlarge"),  # 24 GB of an A10G or L4, as A10G stands first
        (40 * GIB, 1, "g6e.xlarge"),  # 48 GB of an L40S
        (60 * GIB, 1, "p5.4xlarge"),  # one H100, before eight A100
        (100 * GIB, 8, "p5e.48xlarge"),
    ],
)
def test_the_smallest_that_holds_it(world: World, tmp_path: Path, peak: float, gpus: int, first: str) -> None:  # noqa: F811
    """The smallest type whose every GPU holds the sheet's peak."""
    found = look(tmp_path, "aws.instance-type", sheet=sheet(tmp_path / "s.json", peak, gpus))
    assert found.state == "ok"
    names = [row["instance_type"] for row in found.evidence if "instance_type" in row]
    assert names[0] in {first, first.replace("g5.", "g6."), first.replace("p5e.", "p5en."), "g7e.2xlarge"}


def test_mib_is_not_gb(world: World, tmp_path: Path) -> None:  # noqa: F811
    """An A10G "with 24 GB" has 22,888 MiB: 23 GiB do not fit, nor do 22.3 that its driver keeps."""
    for peak, state in ((23 * GIB, "fail"), (22.3 * GIB, "fail"), (21 * GIB, "ok")):
        found = look(
            tmp_path, "aws.instance-type", instance_type="g5.xlarge", sheet=sheet(tmp_path / "s.json", peak)
        )
        assert found.state == state


@pytest.mark.parametrize(
    ("kind", "state", "words"),
    [
        ("g5g.xlarge", "warn", "ARM"),
        ("g6f.xlarge", "fail", "0.125 of a GPU"),
        ("p3dn.24xlarge", "warn", "compute capability 7"),
        ("m5.xlarge", "fail", "m5.xlarge has no GPU"),
        ("g5.nonsense", "fail", "AWS has no instance type g5.nonsense in us-east-1"),
        ("g6.xlarge", "ok", "spot possible, us-east-1: us-east-1"),
    ],
)
def test_traps_of_a_name(world: World, tmp_path: Path, kind: str, state: str, words: str) -> None:  # noqa: F811
    """ARM, slices of a GPU, GPUs too old for current builds, and names that there are not."""
    found = look(tmp_path, "aws.instance-type", instance_type=kind, sheet=sheet(tmp_path / "s.json", GIB))
    assert found.state == state
    assert words in facts(found)


def test_too_few_gpus(world: World, tmp_path: Path) -> None:  # noqa: F811
    """Two GPUs of the sheet on a machine with one: two machines."""
    asked: dict[str, Any] = {"instance_type": "g5.xlarge", "sheet": sheet(tmp_path / "s.json", GIB, 2)}
    found = look(tmp_path, "aws.instance-type", **asked)
    assert (found.state, found.next) == ("fail", "`--instances 2`, or a larger one")
    assert look(tmp_path, "aws.instance-type", instances=2, **asked).state == "ok"


def test_types_that_may_not_be_asked_for(world: World, tmp_path: Path) -> None:  # noqa: F811
    """Unknown, with the permission; zones alone, too."""
    asked: dict[str, Any] = {"instance_type": "g5.xlarge", "sheet": sheet(tmp_path / "s.json", GIB)}
    world.refuse("ec2:DescribeInstanceTypeOfferings", "UnauthorizedOperation", status=403)
    found = look(tmp_path, "aws.instance-type", **asked)
    assert (found.state, "ec2:DescribeInstanceTypeOfferings" in found.next) == ("unknown", True)
    world.refuse("ec2:DescribeInstanceTypes", "UnauthorizedOperation", status=403)
    found = look(tmp_path, "aws.instance-type", **asked)
    assert (found.state, "ec2:DescribeInstanceTypes" in found.next) == ("unknown", True)


OFFERINGS = "ec2:DescribeInstanceTypeOfferings"


def offering(*pairs: tuple[str, str]) -> str:
    """An answer of `describe_instance_type_offerings`: types and zones."""
    rows = "".join(
        f"<item><instanceType>{name}</instanceType><location>{zone}</location>"
        "<locationType>availability-zone</locationType></item>"
        for name, zone in pairs
    )
    name = "DescribeInstanceTypeOfferingsResponse"
    return f"<{name}><instanceTypeOfferingSet>{rows}</instanceTypeOfferingSet></{name}>"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("instances", [{}, {"instance_type": "g5.xlarge"}])
def test_where_nobody_could_look_is_never_ok(
    world: World,  # noqa: F811
    tmp_path: Path,
    instances: dict[str, Any],
) -> None:
    """Zones that may not be seen, in one region or in all: unknown, with the permission."""
    given: dict[str, Any] = {"sheet": sheet(tmp_path / "s.json", 20 * GIB), **instances}
    world.refuse(OFFERINGS, "UnauthorizedOperation", region="eu-west-1", status=403)
    for places in (("eu-west-1",), ("us-east-1", "eu-west-1")):
        found = look(tmp_path, "aws.instance-type", regions=places, **given)
        assert (found.state, "ec2:DescribeInstanceTypeOfferings" in found.next) == ("unknown", True)
        assert "eu-west-1: could not look" in facts(found)
    assert look(tmp_path, "aws.instance-type", regions=("us-east-1",), **given).state == "ok"


def test_a_region_whose_types_nobody_could_see(world: World, tmp_path: Path) -> None:  # noqa: F811
    """The type that was named is there in one of two regions, the other one is mute: unknown, not ok."""
    world.refuse("ec2:DescribeInstanceTypes", "UnauthorizedOperation", region="eu-west-1", status=403)
    given: dict[str, Any] = {"sheet": sheet(tmp_path / "s.json", GIB), "instance_type": "g5.xlarge"}
    found = look(tmp_path, "aws.instance-type", regions=("us-east-1", "eu-west-1"), **given)
    assert (found.state, "ec2:DescribeInstanceTypes" in found.next) == ("unknown", True)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("instances", [{}, {"instance_type": "g5.xlarge"}])
def test_offered_nowhere(world: World, tmp_path: Path, instances: dict[str, Any]) -> None:  # noqa: F811
    """In no zone of any region: a failure; in one region of two: a warning that names it."""
    given: dict[str, Any] = {"sheet": sheet(tmp_path / "s.json", 20 * GIB), **instances}
    both = ("us-east-1", "eu-west-1")
    world.answer(OFFERINGS, offering())
    found = look(tmp_path, "aws.instance-type", regions=both, **given)
    assert (found.state, "not offered in us-east-1, eu-west-1" in facts(found)) == ("fail", True)
    world.answer(OFFERINGS, offering(("g5.xlarge", "eu-west-1a")), "eu-west-1")
    found = look(tmp_path, "aws.instance-type", regions=both, **given)
    assert (found.state, found.next) == ("warn", "rent in eu-west-1")


@pytest.mark.usefixtures("quick")
def test_the_one_that_is_offered_goes_first(world: World, tmp_path: Path) -> None:  # noqa: F811
    """Far down the list, and the only one that there is: it is looked for, too, and named on the first line."""
    world.answer(OFFERINGS, offering(("p5.48xlarge", "us-east-1a")))
    found = look(tmp_path, "aws.instance-type", sheet=sheet(tmp_path / "s.json", 20 * GIB))
    assert found.state == "ok"
    assert found.evidence[0]["fact"] == "needed: 1 × 20.00 GiB; held by p5.48xlarge"


def test_the_plain_page_names_the_types(
    world: World,  # noqa: F811
    tmp_path: Path,
    quick: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the line answers stands on it without `--explain`: the first types, and how many more."""
    monkeypatch.chdir(tmp_path)
    sheet(tmp_path / "s.json", 60 * GIB)
    words = ["preflight", "--account", "aws", "--only", "aws.instance-type", "--sheet", "s.json"]
    text = answered(*words, "--timeout", "5min").stdout.partition("\n\n")[0]
    first = " ".join(text.split())
    assert first.startswith("ok aws.instance-type needed: 1 × 60.00 GiB; ")
    # H100 by one is the smallest of EC2 that holds 60 GiB, but for what has 96 GiB of GDDR
    assert "held by " in first
    assert "p5.4xlarge" in first
    assert first.endswith(" more")


def spotless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same types, none of them as spot."""
    return [{**row, "SupportedUsageClasses": ["on-demand"]} for row in rows]


def test_no_spot_anywhere(
    world: World,  # noqa: F811
    tmp_path: Path,
    quick: None,
    gpu_rows: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As spot only what is to be had as spot counts; where nothing is, that fails."""
    given: dict[str, Any] = {"sheet": sheet(tmp_path / "s.json", 20 * GIB), "spot": True}
    assert look(tmp_path, "aws.instance-type", **given).state == "ok"
    monkeypatch.setattr("loadsheet.cloud.checks.aws_types.gpu_types", _types(spotless(gpu_rows)))
    found = look(tmp_path, "aws.instance-type", **given)
    assert (found.state, "none that holds it is to be had as spot" in facts(found)) == ("fail", True)


def _types(rows: list[dict[str, Any]]) -> Any:
    return lambda *asked: [found for row in rows if (found := parse_type(row)) is not None]


@pytest.mark.usefixtures("quick")
def test_gpus_over_several_machines(world: World, tmp_path: Path) -> None:  # noqa: F811
    """No machine has 16 GPUs of 60 GiB; two have eight each."""
    given: dict[str, Any] = {"sheet": sheet(tmp_path / "s.json", 60 * GIB, 16)}
    assert look(tmp_path, "aws.instance-type", **given).state == "fail"
    assert look(tmp_path, "aws.instance-type", instances=2, **given).state == "ok"


def test_a_type_that_there_is_not_without_a_sheet(world: World, tmp_path: Path, quick: None) -> None:  # noqa: F811
    """Takes no sheet to fail; one that there is remains a question of memory."""
    assert look(tmp_path, "aws.instance-type", instance_type="g5.nonsense").state == "fail"
    assert look(tmp_path, "aws.instance-type", instance_type="g5.xlarge").state == "unknown"


def test_every_type_of_the_list_is_understood(gpu_rows: list[dict[str, Any]]) -> None:
    """65 types: each has a GPU with memory, and a process may have no more of it than there is."""
    found = [parse_type(row) for row in gpu_rows]
    assert len(found) > 60
    for kind in found:
        assert kind is not None
        assert 0 < kind.usable <= kind.memory
        assert kind.count >= 1
        assert kind.capability is not None


def test_how_many_a_machine_has(gpu_rows: list[dict[str, Any]]) -> None:
    """Our table against moto's copy of what AWS says: the counts of every GPU that we have an entry for."""
    seen: dict[str, set[int]] = {}
    for row in gpu_rows:
        found = parse_type(row)
        if found is None or found.arm or found.share < 1 or not found.measured:
            continue
        mib = str(found.memory >> 20)
        seen.setdefault(_table()["gpus"][found.gpu]["entries"][mib], set()).add(found.count)
    assert len(seen) >= 10
    for entry, counts in seen.items():
        assert set(sold_by(entry)) == counts, entry


# --- places ------------------------------------------------------------------------------------------------


def bucket(world: World, name: str, region: str) -> None:  # noqa: F811
    """A bucket in a region."""
    more: dict[str, Any] = (
        {} if region == REGION else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    )
    world.client("s3", region).create_bucket(Bucket=name, **more)


def test_a_bucket_in_another_region(world: World, tmp_path: Path) -> None:  # noqa: F811
    """Null is us-east-1; another region is paid for by the gigabyte."""
    bucket(world, "here-data", REGION)
    bucket(world, "there-data", "eu-west-1")
    near = look(tmp_path, "aws.data-near", data=("s3://here-data/x",))
    assert near.state == "ok"
    far = look(tmp_path, "aws.data-near", data=("s3://here-data", "s3://there-data/y"))
    assert far.state == "fail"
    assert "there-data is in eu-west-1" in facts(far)
    assert look(tmp_path, "aws.data-near", data=("s3://there-data",), regions=("eu-west-1",)).state == "ok"
    assert look(tmp_path, "aws.mirror-near", mirror="s3://there-data/z").state == "fail"
    assert look(tmp_path, "aws.mirror-near", mirror="s3://here-data/z").state == "ok"
    assert look(tmp_path, "aws.mirror-near").state == "not_applicable"
    assert (
        look(tmp_path, "aws.data-near", data=("s3://here-data",), regions=(REGION, "eu-west-1")).state
        == "warn"
    )
    assert look(tmp_path, "aws.data-near", "data.near", data=("s3://here-data",)).state == "ok"
    assert look(tmp_path, "aws.data-near", data=("s3://here-data", "gs://other")).state == "unknown"


def test_a_bucket_of_somebody_else(world: World, tmp_path: Path) -> None:  # noqa: F811
    """Not allowed: unknown. Not there, or no name of a bucket: a failure, also as the mirror."""
    world.refuse("s3:GetBucketLocation", "AccessDenied", status=403)
    found = look(tmp_path, "aws.data-near", data=("s3://here-data",))
    assert (found.state, "s3:GetBucketLocation" in found.next) == ("unknown", True)
    world.answers.clear()
    for name, words in (("nobody-s", "NoSuchBucket"), ("no!pe", "no bucket can have that name")):
        for check, given in (("data", {"data": (f"s3://{name}/x",)}), ("mirror", {"mirror": f"s3://{name}"})):
            found = look(tmp_path, f"aws.{check}-near", **given)
            assert (found.state, found.next) == ("fail", f"make it, or mend the name: {name}")
            assert words in facts(found)


def test_a_volume_in_another_zone(world: World, tmp_path: Path) -> None:  # noqa: F811
    """Volumes are of a zone: the subnet's zone must be the same."""
    ec2 = world.client("ec2")
    made = ec2.create_volume(AvailabilityZone="us-east-1b", Size=8)["VolumeId"]
    subnets = {row["AvailabilityZone"]: row["SubnetId"] for row in ec2.describe_subnets()["Subnets"]}
    assert look(tmp_path, "aws.volume-near", volume=made, subnet=subnets["us-east-1a"]).state == "fail"
    assert look(tmp_path, "aws.volume-near", volume=made, subnet=subnets["us-east-1b"]).state == "ok"
    found = look(tmp_path, "aws.volume-near", volume=made)
    assert (found.state, found.next) == ("warn", "start the machine in us-east-1b: name a `--subnet` there")
    assert look(tmp_path, "aws.volume-near", volume=made, regions=("eu-west-1",)).state == "fail"
    assert look(tmp_path, "aws.volume-near").state == "not_applicable"
    # moto, after AWS: g5.xlarge is offered in five of six zones
    other = ec2.create_volume(AvailabilityZone="us-east-1e", Size=8)["VolumeId"]
    found = look(tmp_path, "aws.volume-near", volume=other, instance_type="g5.xlarge")
    assert found.state == "fail"
    assert "us-east-1a" in found.next


def test_a_volume_in_the_second_region(world: World, tmp_path: Path) -> None:  # noqa: F811
    """It is looked for in every region that was named; a region that is mute could have it."""
    ec2 = world.client("ec2", "eu-west-1")
    made = ec2.create_volume(AvailabilityZone="eu-west-1b", Size=8)["VolumeId"]
    rows = ec2.describe_subnets()["Subnets"]
    subnet = next(row["SubnetId"] for row in rows if row["AvailabilityZone"] == "eu-west-1b")
    given: dict[str, Any] = {"volume": made, "subnet": subnet, "regions": (REGION, "eu-west-1")}
    found = look(tmp_path, "aws.volume-near", **given)
    assert (found.state, found.next) == ("warn", "name one region: `--region eu-west-1`")
    assert look(tmp_path, "aws.volume-near", **{**given, "regions": ("eu-west-1",)}).state == "ok"
    world.refuse("ec2:DescribeVolumes", "UnauthorizedOperation", region="eu-west-1", status=403)
    assert look(tmp_path, "aws.volume-near", **given).state == "unknown"


def test_a_subnet_that_there_is_not(world: World, tmp_path: Path) -> None:  # noqa: F811
    """AWS says InvalidSubnetID.NotFound: a failure; in one region of two it is looked at there."""
    ec2 = world.client("ec2")
    made = ec2.create_volume(AvailabilityZone="us-east-1b", Size=8)["VolumeId"]
    both = (REGION, "eu-west-1")
    for places in ((REGION,), both):
        found = look(tmp_path, "aws.nat", subnet="subnet-0nope", regions=places)
        assert (found.state, "subnet-0nope is not in us-east-1" in facts(found)) == ("fail", True)
    assert look(tmp_path, "aws.volume-near", volume=made, subnet="subnet-0nope").state == "fail"
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    assert look(tmp_path, "aws.nat", subnet=subnet, regions=both).state == "not_applicable"
    world.refuse("ec2:DescribeSubnets", "UnauthorizedOperation", region="eu-west-1", status=403)
    assert look(tmp_path, "aws.nat", subnet="subnet-0nope", regions=both).state == "unknown"


def test_data_behind_a_gateway(private: tuple[World, str, str, str], tmp_path: Path) -> None:
    """The question asks for region and way: a bucket next door through a NAT gateway does not settle it."""
    scene, _, subnet, _ = private
    bucket(scene, "here-data", REGION)
    given: dict[str, Any] = {"data": ("s3://here-data",), "subnet": subnet}
    found = looked(tmp_path, "aws.data-near", "data.near", **given)
    assert found["aws.data-near"].state == "warn"
    assert found["data.near"].state == "not_applicable"
    assert "warn, see there" in facts(found["data.near"])
    scene.refuse("ec2:DescribeRouteTables", "UnauthorizedOperation", status=403)
    found = looked(tmp_path, "aws.data-near", "data.near", **given)
    assert {result.state for result in found.values()} == {"unknown"}


@pytest.fixture
def private(world: World) -> tuple[World, str, str, str]:  # noqa: F811
    """A network whose private subnet goes out through a NAT gateway: world, network, subnet, route table."""
    ec2 = world.client("ec2")
    network = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=network, CidrBlock="10.0.1.0/24")["Subnet"]["SubnetId"]
    address = ec2.allocate_address(Domain="vpc")["AllocationId"]
    gateway = ec2.create_nat_gateway(SubnetId=subnet, AllocationId=address)["NatGateway"]["NatGatewayId"]
    table = ec2.create_route_table(VpcId=network)["RouteTable"]["RouteTableId"]
    ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", NatGatewayId=gateway)
    ec2.associate_route_table(RouteTableId=table, SubnetId=subnet)
    world.calls.clear()
    return world, network, subnet, table


def test_story_6_through_the_gateway(private: tuple[World, str, str, str], tmp_path: Path) -> None:
    """A private subnet, a NAT gateway, no endpoint: warned of, a fault where the machine is to be there."""
    scene, network, subnet, table = private
    found = look(tmp_path, "aws.nat")
    assert found.state == "warn"
    assert table in facts(found)
    assert look(tmp_path, "aws.nat", subnet=subnet).state == "fail"
    made = scene.client("ec2").create_vpc_endpoint(
        VpcId=network,
        ServiceName="com.amazonaws.us-east-1.s3",
        VpcEndpointType="Gateway",
        RouteTableIds=[table],
    )
    assert made["VpcEndpoint"]["RouteTableIds"] == [table]
    assert look(tmp_path, "aws.nat").state == "ok"
    assert look(tmp_path, "aws.nat", subnet=subnet).state == "ok"


def test_an_endpoint_that_does_not_help(private: tuple[World, str, str, str], tmp_path: Path) -> None:
    """One for another table, or another service, leaves the way through the gateway."""
    scene, network, subnet, _ = private
    ec2 = scene.client("ec2")
    other = ec2.create_route_table(VpcId=network)["RouteTable"]["RouteTableId"]
    for service, tables in (("s3", [other]), ("dynamodb", [private[3]])):
        ec2.create_vpc_endpoint(
            VpcId=network,
            ServiceName=f"com.amazonaws.us-east-1.{service}",
            VpcEndpointType="Gateway",
            RouteTableIds=tables,
        )
    assert look(tmp_path, "aws.nat", subnet=subnet).state == "fail"


def test_no_gateway(world: World, tmp_path: Path) -> None:  # noqa: F811
    """Nothing to see, in the whole region or for a subnet that goes another way; no permission is unknown."""
    assert look(tmp_path, "aws.nat").state == "not_applicable"
    world.refuse("ec2:DescribeRouteTables", "UnauthorizedOperation", status=403)
    assert look(tmp_path, "aws.nat").state == "unknown"


# --- all together ------------------------------------------------------------------------------------------


def test_the_policy_allows_exactly_what_is_called(
    private: tuple[World, str, str, str],
    tmp_path: Path,
    quick: None,
) -> None:
    """Every call of every check is declared, and every declared call is made: the policy is the smallest."""
    scene, _, subnet, _ = private
    iam, ec2 = scene.client("iam"), scene.client("ec2")
    iam.create_user(UserName="ada")
    iam.create_group(GroupName="team")
    iam.add_user_to_group(GroupName="team", UserName="ada")
    iam.create_role(RoleName="train", AssumeRolePolicyDocument="{}")
    bucket(scene, "here-data", REGION)
    made = ec2.create_volume(AvailabilityZone=REGION + "a", Size=8)["VolumeId"]
    about = {"NotificationType": "ACTUAL", "ComparisonOperator": "GREATER_THAN", "Threshold": 50.0}
    scene.client("budgets").create_budget(
        AccountId=ACCOUNT,
        Budget={
            "BudgetName": "all",
            "BudgetLimit": {"Amount": "9", "Unit": "USD"},
            "TimeUnit": "MONTHLY",
            "BudgetType": "COST",
        },
        NotificationsWithSubscribers=[
            {
                "Notification": about,
                "Subscribers": [{"SubscriptionType": "EMAIL", "Address": "a@example.org"}],
            }
        ],
    )
    start(scene, "g5.xlarge")
    scene.calls.clear()
    scene.answer("budgets:DescribeSubscribersForNotification", {"Subscribers": []})
    scene.answer("iam:SimulatePrincipalPolicy", decisions())
    scene.answer("iam:GetAccountSummary", summary(AccountMFAEnabled=0, AccountAccessKeysPresent=0))
    scene.refuse("service-quotas:GetServiceQuota", "NoSuchResourceException")
    scene.answer("service-quotas:GetAWSDefaultServiceQuota", {"Quota": {"Value": 5.0}})
    scene.answer("service-quotas:ListServiceQuotas", {"Quotas": []})
    requests(scene)
    given: dict[str, Any] = {
        "data": ("s3://here-data",),
        "mirror": "s3://here-data",
        "volume": made,
        "subnet": subnet,
        "sheet": sheet(tmp_path / "s.json", GIB),
    }
    # a region that our table does not have is asked for
    with pytest.raises(UnknownKey, match="eu-moon-1"):
        require_regions(Context(tmp_path, Inputs(accounts=("aws",), regions=("eu-moon-1",))))
    for who, kind, spot in (
        ("user/ada", "g5.xlarge", False),
        ("assumed-role/train/x", "p6-b200.48xlarge", True),
    ):
        scene.answer("sts:GetCallerIdentity", caller(who, "iam" if "user" in who else "sts"))
        found = looked(tmp_path, "aws", instance_type=kind, spot=spot, **given)
        assert "this check itself failed" not in " ".join(map(facts, found.values()))
    assert scene.seen == PREFLIGHT


def test_nothing_may_be_looked_at(world: World, tmp_path: Path, quick: None) -> None:  # noqa: F811
    """An account that refuses all: every check is unknown and names a permission; none is ok."""
    for service in ("iam", "ec2", "budgets", "service-quotas", "s3", "organizations"):
        is_json = service in {"budgets", "service-quotas", "organizations"}
        world.answer(
            service, Refusal("AccessDeniedException" if is_json else "AccessDenied", 400 if is_json else 403)
        )
    world.answer("sts:GetCallerIdentity", caller("user/ada", "iam"))
    found = looked(
        tmp_path, "aws", instance_type="g5.xlarge", data=("s3://b-b",), mirror="s3://b-b", volume="vol-1",
        sheet=sheet(tmp_path / "s.json", GIB),
    )  # fmt: skip
    states = {
        id: result.state for id, result in found.items() if id not in {"aws.caller", "aws.instance-type"}
    }
    assert set(states.values()) == {"unknown"}, states
    assert all("allow `" in found[id].next for id in states), {id: found[id].next for id in states}


def test_no_credentials_at_all(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Everything is unknown, at once, and nothing is sent."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    found = looked(tmp_path, "aws.caller", "aws.root-mfa", "aws.budget", "aws.nat", "aws.quota")
    assert {result.state for result in found.values()} == {"unknown"}
    assert all("no credentials" in facts(result) for result in found.values())
    assert world.calls == []


# --- the command line --------------------------------------------------------------------------------------


def test_the_policy_is_printed() -> None:
    """As JSON that IAM takes, and nothing is asked."""
    assert json.loads(answered("preflight", "--aws-policy").stdout) == policy(PREFLIGHT)


def test_from_the_command_line(
    world: World,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without `--account` nothing is asked and that is said; with it, the quota is looked at."""
    monkeypatch.chdir(tmp_path)
    limits(world, {G_ON_DEMAND: 1.0})
    requests(world)
    quiet = answered("preflight", "--only", "plan", "--only", "budget", "--json")
    assert world.calls == []
    assert json.loads(quiet.stdout)["not_asked"] == []
    asked = ["--account", "aws", "--only", "aws.quota", "--only", "quota.gpu", "--region", "us-east-1"]
    done = run("preflight", *asked, "--instance-type", "g5.xlarge", "--timeout", "5min", "--json")
    states = {row["id"]: row["state"] for row in json.loads(done.stdout)["checks"]}
    assert states == {"aws.quota": "fail", "quota.gpu": "not_applicable"}
    assert done.exit_code == 1
