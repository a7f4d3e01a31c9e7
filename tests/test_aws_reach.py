"""Ports for SSH that are open to the world, the metadata service, and the organisation of an account."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aws_world import ACCOUNT, REGION, Page, World, aws_server, look, looked, sheet, world  # noqa: F401
from preflight_world import facts

from loadsheet.cloud.checks.aws_reach import let_in

WORLD = [{"CidrIp": "0.0.0.0/0"}]


def default_network(world: World) -> str:  # noqa: F811
    """The network that an account has from the start."""
    asked = world.client("ec2").describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])
    found: str = asked["Vpcs"][0]["VpcId"]
    return found


def group(
    world: World,  # noqa: F811
    network: str,
    low: int = 22,
    high: int = 22,
    protocol: str = "tcp",
    **ranges: Any,
) -> str:
    """A security group with one rule."""
    ec2 = world.client("ec2")
    name = f"g-{low}-{high}-{protocol}"
    made: str = ec2.create_security_group(GroupName=name, Description="x", VpcId=network)["GroupId"]
    rule = {"IpProtocol": protocol, "FromPort": low, "ToPort": high, **(ranges or {"IpRanges": WORLD})}
    ec2.authorize_security_group_ingress(GroupId=made, IpPermissions=[rule])
    return made


def machine(world: World, **more: Any) -> str:  # noqa: F811
    """A machine that runs."""
    made = world.client("ec2").run_instances(
        ImageId="ami-12345678", InstanceType="g5.xlarge", MinCount=1, MaxCount=1, **more
    )
    found: str = made["Instances"][0]["InstanceId"]
    return found


# --- the port for SSH --------------------------------------------------------------------------------------


def test_an_account_as_it_comes(world: World, tmp_path: Path) -> None:  # noqa: F811
    """The default group lets in only itself."""
    found = look(tmp_path, "aws.ssh-open")
    assert (found.state, facts(found)) == (
        "ok",
        "none of 1 groups lets the whole internet, or a /8 of it, in on port 22",
    )


def test_a_group_of_the_default_network(world: World, tmp_path: Path) -> None:  # noqa: F811
    """Warned of by its id before a machine is in it, and with the machine afterwards."""
    made = group(world, default_network(world))
    found = look(tmp_path, "aws.ssh-open")
    assert (found.state, found.evidence[0]["group"], found.evidence[0]["machines"]) == ("warn", made, [])
    assert f"us-east-1: {made} (" in facts(found)
    assert "lets 0.0.0.0/0 in on port 22; on no machine yet" in facts(found)
    name = machine(world, SecurityGroupIds=[made])
    found = look(tmp_path, "aws.ssh-open")
    assert (found.state, found.evidence[0]["machines"]) == ("warn", [name])
    assert {name for _, name in world.calls if not name.startswith("ec2:Describe")} <= {
        "ec2:CreateSecurityGroup", "ec2:AuthorizeSecurityGroupIngress", "ec2:RunInstances",
    }  # fmt: skip


def test_a_network_of_ones_own(world: World, tmp_path: Path) -> None:  # noqa: F811
    """A group there counts while a machine is in it, stopped or not; terminated, it does not."""
    ec2 = world.client("ec2")
    network = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=network, CidrBlock="10.9.1.0/24")["Subnet"]["SubnetId"]
    made = group(world, network)
    assert look(tmp_path, "aws.ssh-open").state == "ok"
    name = machine(world, SubnetId=subnet, SecurityGroupIds=[made])
    ec2.stop_instances(InstanceIds=[name])
    found = look(tmp_path, "aws.ssh-open")
    assert (found.state, found.evidence[0]["group"], found.evidence[0]["machines"]) == ("warn", made, [name])
    ec2.terminate_instances(InstanceIds=[name])
    assert look(tmp_path, "aws.ssh-open").state == "ok"


@pytest.mark.parametrize(
    ("low", "high", "protocol", "ranges", "state"),
    [
        (20, 30, "tcp", {}, "warn"),
        (-1, -1, "-1", {}, "warn"),
        (22, 22, "tcp", {"Ipv6Ranges": [{"CidrIpv6": "::/0"}]}, "warn"),
        (22, 22, "udp", {}, "ok"),
        (443, 443, "tcp", {}, "ok"),
        (22, 22, "tcp", {"IpRanges": [{"CidrIp": "203.0.113.7/32"}]}, "ok"),
    ],
)
def test_which_rules_count(
    world: World,  # noqa: F811
    tmp_path: Path,
    low: int,
    high: int,
    protocol: str,
    ranges: dict[str, Any],
    state: str,
) -> None:
    """A range of ports, every protocol, IPv6; not other ports, other protocols, one's own address."""
    group(world, default_network(world), low, high, protocol, **ranges)
    assert look(tmp_path, "aws.ssh-open").state == state


def test_a_prefix_list_is_not_read(world: World, tmp_path: Path) -> None:  # noqa: F811
    """What is in it was not looked at: never ok."""
    listed = world.client("ec2").create_managed_prefix_list(
        PrefixListName="all", MaxEntries=1, AddressFamily="IPv4", Entries=[{"Cidr": "0.0.0.0/0"}]
    )["PrefixList"]["PrefixListId"]
    group(world, default_network(world), PrefixListIds=[{"PrefixListId": listed}])
    found = look(tmp_path, "aws.ssh-open")
    assert found.state == "unknown"
    assert f"lets {listed} in on port 22: what stands in that list is not read" in facts(found)


def test_rules_by_hand() -> None:
    """As EC2's reference has them: -1 has no ports; a network of length 0 is everybody, however it is written."""
    everything = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "10.1.2.3/0"}], "Ipv6Ranges": []}
    assert let_in({"IpPermissions": [everything]}) == (["10.1.2.3/0"], [])
    assert let_in({}) == ([], [])


@pytest.mark.parametrize(
    ("ranges", "wide"),
    [
        (["0.0.0.0/1", "128.0.0.0/1"], ["0.0.0.0/1", "128.0.0.0/1"]),  # all, in two halves
        (["0.0.0.0/1"], ["0.0.0.0/1"]),
        (["54.0.0.0/8", "203.0.113.7/32"], ["54.0.0.0/8"]),
        (["54.0.0.0/9"], []),
        (["54.0.0.0/9", "18.0.0.0/9"], ["54.0.0.0/9", "18.0.0.0/9"]),  # as many as a /8 has
        (["54.0.0.0/9", "54.64.0.0/10"], []),  # one in the other
        ([f"54.{n}.0.0/16" for n in range(255)], []),
        ([f"54.{n}.0.0/16" for n in range(256)], [f"54.{n}.0.0/16" for n in range(256)]),
        (["10.0.0.0/8"], []),  # private: nobody comes from there
        (["8.0.0.0/6"], ["8.0.0.0/6"]),  # three /8, and 10.0.0.0/8
        (["10.0.0.0/7"], ["10.0.0.0/7"]),  # 11.0.0.0/8 is in it
        (["224.0.0.0/3"], []),  # multicast, and what is nobody's
        (["::/0"], ["::/0"]),
        (["::/1"], ["::/1"]),  # 2000::/3, all that is handed out, is in it
        (["8000::/1", "fc00::/7"], []),
        (["2000::/3"], ["2000::/3"]),
        (["2600::/16"], ["2600::/16"]),
        (["2a02:908::/29"], []),  # a provider
    ],
)
def test_how_much_is_the_world(ranges: list[str], wide: list[str]) -> None:
    """As many addresses as a /8 of IPv4 or a /16 of IPv6, in one range or in many."""
    v4 = [{"CidrIp": text} for text in ranges if ":" not in text]
    v6 = [{"CidrIpv6": text} for text in ranges if ":" in text]
    rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": v4, "Ipv6Ranges": v6}
    assert let_in({"IpPermissions": [rule]}) == (wide, [])
    apart = [{**rule, "IpRanges": [row], "Ipv6Ranges": []} for row in v4]
    apart += [{**rule, "IpRanges": [], "Ipv6Ranges": [row]} for row in v6]
    assert let_in({"IpPermissions": apart}) == (wide, [])


def test_groups_that_may_not_be_looked_at(world: World, tmp_path: Path) -> None:  # noqa: F811
    """Each of the three calls refused is unknown with its permission; a bad group elsewhere is still told."""
    for call in ("DescribeVpcs", "DescribeInstances", "DescribeSecurityGroups"):
        world.refuse(f"ec2:{call}", "UnauthorizedOperation", region="eu-west-1", status=403)
        found = look(tmp_path, "aws.ssh-open", regions=(REGION, "eu-west-1"))
        assert (found.state, f"ec2:{call}" in found.next) == ("unknown", True)
        world.answers.clear()
    world.refuse("ec2:DescribeVpcs", "UnauthorizedOperation", region="eu-west-1", status=403)
    group(world, default_network(world))
    found = look(tmp_path, "aws.ssh-open", regions=(REGION, "eu-west-1"))
    assert found.state == "warn"
    assert "eu-west-1: not allowed to ec2:DescribeVpcs" in facts(found)


# --- the metadata service ----------------------------------------------------------------------------------


def test_version_1(world: World, tmp_path: Path) -> None:  # noqa: F811
    """A machine that takes it warns with the command that ends it, which is not run; one that does not is ok."""
    assert look(tmp_path, "aws.metadata").state == "not_applicable"
    machine(world, MetadataOptions={"HttpTokens": "required"})
    assert look(tmp_path, "aws.metadata").state == "ok"
    name = machine(world, MetadataOptions={"HttpTokens": "optional"})
    found = look(tmp_path, "aws.metadata")
    assert (found.state, found.evidence[0]["instance"], len(found.evidence)) == ("warn", name, 1)
    wanted = "aws ec2 modify-instance-metadata-options --http-tokens required"
    assert found.next.startswith(f"`{wanted} --region us-east-1 --instance-id {name}`")
    world.client("ec2").terminate_instances(InstanceIds=[name])
    assert look(tmp_path, "aws.metadata").state == "ok"


def test_a_service_that_is_off(world: World, tmp_path: Path) -> None:  # noqa: F811
    """It answers no version."""
    machine(world, MetadataOptions={"HttpTokens": "optional", "HttpEndpoint": "disabled"})
    assert look(tmp_path, "aws.metadata").state == "ok"


def test_a_version_that_is_not_said(world: World, tmp_path: Path) -> None:  # noqa: F811
    """An answer without the options is unknown, not ok; so is a refusal."""
    row = "<item><instancesSet><item><instanceId>i-1</instanceId></item></instancesSet></item>"
    answer = f"<DescribeInstancesResponse><reservationSet>{row}</reservationSet></DescribeInstancesResponse>"
    world.answer("ec2:DescribeInstances", answer)
    found = look(tmp_path, "aws.metadata")
    assert found.state == "unknown"
    assert "us-east-1: i-1: which version it answers is not said" in facts(found)
    world.refuse("ec2:DescribeInstances", "UnauthorizedOperation", status=403)
    found = look(tmp_path, "aws.metadata")
    assert (found.state, "ec2:DescribeInstances" in found.next) == ("unknown", True)


# --- the organisation --------------------------------------------------------------------------------------


def belongs(world: World, manager: str, features: str = "ALL") -> None:  # noqa: F811
    """The account is in an organisation that another manages."""
    about = {"Id": "o-exampleorgid", "MasterAccountId": manager, "FeatureSet": features}
    world.answer("organizations:DescribeOrganization", {"Organization": about})


def test_an_account_that_stands_alone(world: World, tmp_path: Path) -> None:  # noqa: F811
    """moto says AWSOrganizationsNotInUseException, as AWS does: an answer, not a failure."""
    found = look(tmp_path, "aws.organisation")
    assert (found.state, "belongs to no organisation" in facts(found)) == ("ok", True)


def test_the_account_that_manages(world: World, tmp_path: Path) -> None:  # noqa: F811
    """SCPs do not hold in it: warned of."""
    world.client("organizations").create_organization(FeatureSet="ALL")
    found = look(tmp_path, "aws.organisation")
    assert (found.state, found.evidence[0]["manager"]) == ("warn", ACCOUNT)
    assert "manages the organisation o-" in facts(found)


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ("ALL", "refused here whatever IAM allows: they are not seen"),
        ("CONSOLIDATED_BILLING", "no policies (SCPs) of it hold here"),
    ],
)
def test_a_member(world: World, tmp_path: Path, features: str, words: str) -> None:  # noqa: F811
    """What may hold from elsewhere is said: policies, and budgets of the account that pays."""
    belongs(world, "999988887777", features)
    found = look(tmp_path, "aws.organisation")
    assert found.state == "ok"
    assert words in facts(found)
    assert "its budgets may stand in 999988887777" in facts(found)


@pytest.mark.parametrize("code", ["AccessDeniedException", "TooManyRequestsException", "ServiceException"])
def test_an_organisation_that_may_not_be_read(world: World, tmp_path: Path, code: str) -> None:  # noqa: F811
    """Whatever fails, membership is unknown; without the permission, it is named."""
    world.refuse("organizations:DescribeOrganization", code)
    found = look(tmp_path, "aws.organisation")
    assert found.state == "unknown"
    assert ("organizations:DescribeOrganization" in found.next) is (code == "AccessDeniedException")


def test_an_answer_without_an_organisation(world: World, tmp_path: Path) -> None:  # noqa: F811
    """Is no account that stands alone."""
    world.answer("organizations:DescribeOrganization", {})
    assert look(tmp_path, "aws.organisation").state == "unknown"


# --- what is no answer -------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [Page("<html><body>us-east-1</body></html>"), Page("{}"), Page("")])
def test_a_page_in_the_place_of_answers(world: World, tmp_path: Path, page: Page) -> None:  # noqa: F811
    """Who asks is known, and all else is answered by something on the way: nothing is ok, missing or n/a."""
    for service in ("iam", "ec2", "s3", "budgets", "organizations", "service-quotas"):
        world.answer(service, page)
    ids = ("aws.budget", "aws.data-near", "aws.instance-type", "aws.metadata", "aws.mirror-near", "aws.nat",
           "aws.old-keys", "aws.organisation", "aws.people-mfa", "aws.quarantine", "aws.quota", "aws.rights",
           "aws.root-keys", "aws.root-mfa", "aws.ssh-open", "aws.volume-near")  # fmt: skip
    asked: dict[str, Any] = {
        "data": ("s3://data",), "mirror": "s3://runs", "volume": "vol-1", "instance_type": "g5.xlarge",
        "sheet": sheet(tmp_path / "sheet.json", 1e9),
    }  # fmt: skip
    found = looked(tmp_path, *ids, **asked)
    assert {id: result.state for id, result in found.items()} == dict.fromkeys(ids, "unknown")
    assert all("in place of AWS's answer (from a proxy?)" in facts(result) for result in found.values())
