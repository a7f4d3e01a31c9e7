"""Regions that there are not, accounts that could not be looked at, and what that means for the exit status."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from aws_world import (
    World,
    aws_server,  # noqa: F401
    let_go,
    world,  # noqa: F401
)
from terminal import answered, refused, run

from loadsheet.cloud.aws.partitions import OTHERS, base_of, partition_of
from loadsheet.cloud.aws.regions import known_regions
from loadsheet.cloud.aws.session import GLOBAL, Account

ASK = ("preflight", "--account", "aws", "--only", "aws.caller", "--timeout", "5min")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to look at."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_region_that_there_is_not(world: World) -> None:  # noqa: F811
    """Refused with the nearest names, as by `leftovers`; nothing else is asked."""
    error = refused(*ASK, "--region", "eu-wset-1", words="did you mean `eu-west-1`")
    assert error == "error: unknown region: got 'eu-wset-1'"
    assert world.seen == {"ec2:DescribeRegions"}


def test_a_region_of_the_configuration_that_there_is_not(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """AWS_DEFAULT_REGION misspelt is the same fault, unless `--region` names another."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-wset-1")
    refused(*ASK, words="unknown region: got 'eu-wset-1'")
    assert "aws.caller" in run(*ASK, "--region", "eu-west-1").stdout


def test_a_region_that_no_table_has_yet(world: World) -> None:  # noqa: F811
    """AWS knows its new regions itself; where it may not be asked, that is remarked and not refused."""
    row = "<item><regionName>eu-moon-1</regionName><optInStatus>opted-in</optInStatus></item>"
    name = "DescribeRegionsResponse"
    world.answer("ec2:DescribeRegions", f"<{name}><regionInfo>{row}</regionInfo></{name}>")
    assert run(*ASK, "--region", "eu-moon-1").stderr == ""
    world.refuse("ec2:DescribeRegions", "UnauthorizedOperation", status=403)
    done = run(*ASK, "--region", "eu-wset-1")
    assert done.exit_code == 0
    assert "'eu-wset-1' is in no table here, near eu-west-1" in done.stderr


@pytest.mark.parametrize("name", ["eu west 1", "EU-WEST-1", "", "é"])
def test_what_is_no_name_of_a_region(name: str) -> None:
    """Of no provider; nothing is asked."""
    refused("preflight", "--account", "gcp", "--region", name, words="expected a name such as")


def test_regions_of_others_are_theirs(world: World) -> None:  # noqa: F811
    """With two accounts a region may be of either: it is not held against AWS alone."""
    done = run(*ASK, "--account", "gcp", "--region", "us-central1")
    assert done.exit_code == 0
    assert "ec2:DescribeRegions" not in world.seen


def test_known_regions_are_those_of_botocore() -> None:
    """Every region of our table is one of EC2 in boto3's own data."""
    session = pytest.importorskip("boto3").session.Session(region_name="us-east-1")
    assert known_regions() <= set(session.get_available_regions("ec2"))


def test_partitions_are_those_of_botocore() -> None:
    """Each region of each partition is in it by its name, and so is the one where services without regions answer."""
    session = pytest.importorskip("botocore.session").Session()
    others = set()
    for partition in session.get_available_partitions():
        for name in session.get_available_regions("ec2", partition_name=partition):
            assert (partition_of(name), partition_of(base_of(name))) == (partition, partition)
            others |= {name} - ({name} if partition == "aws" else set())
    assert others == OTHERS


@pytest.mark.parametrize("name", ["cn-northwest-1", "us-gov-east-1", "eusc-de-east-1"])
def test_a_region_of_another_partition(world: World, name: str) -> None:  # noqa: F811
    """It is known, takes no question in another partition, and nothing is asked outside its own."""
    assert run(*ASK, "--region", name).stderr == ""
    assert {region for region, _ in world.calls} == {base_of(name)}


def test_the_question_for_a_region_has_an_end(world: World) -> None:  # noqa: F811
    """What `--timeout` says holds for it, too, and not three tries of three seconds."""
    over = threading.Event()
    world.answer("ec2:DescribeRegions", lambda request: over.wait(300) and None)
    try:
        done = run(*ASK[:-2], "--timeout", "500ms", "--region", "eu-moon-1")
    finally:
        let_go(over)
    assert "'eu-moon-1' is in no table here, and AWS could not be asked" in done.stderr
    assert world.calls.count(("us-east-1", "ec2:DescribeRegions")) <= 1  # no second try


def test_a_region_of_china_that_no_table_has(world: World) -> None:  # noqa: F811
    """China is asked whether it is there; where it does not say, no region of Europe is near."""
    world.refuse("ec2:DescribeRegions", "UnauthorizedOperation", status=403)
    done = run(*ASK, "--region", "cn-north-9")
    assert "'cn-north-9' is in no table here, and AWS could not be asked" in done.stderr
    assert {region for region, _ in world.calls} == {"cn-north-1"}


@pytest.mark.parametrize(
    ("region", "service", "url"),
    [
        ("cn-northwest-1", "iam", "https://iam.cn-north-1.amazonaws.com.cn"),
        ("cn-northwest-1", "organizations", "https://organizations.cn-northwest-1.amazonaws.com.cn"),
        ("cn-north-1", "budgets", "https://budgets.amazonaws.com.cn"),
        ("cn-north-1", "s3", "https://s3.cn-north-1.amazonaws.com.cn"),
        ("us-gov-east-1", "iam", "https://iam.us-gov.amazonaws.com"),
        ("us-gov-west-1", "s3", "https://s3.us-gov-west-1.amazonaws.com"),
        ("eu-west-1", "iam", "https://iam.amazonaws.com"),
        ("eu-west-1", "budgets", "https://budgets.amazonaws.com"),
    ],
)
def test_where_services_without_regions_are_asked(
    offline: object, monkeypatch: pytest.MonkeyPatch, region: str, service: str, url: str
) -> None:
    """In the partition of the region that is looked at, named or configured, whatever the other says."""
    for named, configured in (([region], "ap-south-1"), ([], region)):
        monkeypatch.setenv("AWS_DEFAULT_REGION", configured)
        assert Account(named).client(service, GLOBAL).meta.endpoint_url == url


def test_an_account_that_nobody_could_look_at(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without credentials all is unknown: exit status 0, and said; with `--strict` 1."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    words = ("preflight", "--account", "aws", "--only", "aws", "--timeout", "5min")
    done = answered(*words)
    states = [row["state"] for row in json.loads(run(*words, "--json").stdout)["checks"]]
    assert set(states) <= {"unknown", "not_applicable"}  # no bucket was named, say
    count = states.count("unknown")
    assert f"{count} unknown (counted as failed only with `--strict`)" in done.stdout
    assert f"all {count} checks of the account of AWS that apply are unknown." in done.stdout
    strict = answered(*words, "--strict", code=1)
    assert f"{count} unknown (counted as failed)" in strict.stdout


def test_after_a_run_leftovers_is_named() -> None:
    """The questions on what is left name the command that looks; so does the end of the page."""
    done = answered("preflight", "--phase", "after")
    for line in done.stdout.splitlines():
        if line.split()[1:2] and line.split()[1] in {"after.terminated", "after.volumes", "after.removed"}:
            assert line.startswith("unknown")
    text = " ".join(done.stdout.split())
    assert text.count("`loadsheet leftovers`") == 4
    assert "`loadsheet leftovers`" not in run("preflight", "--only", "budget.read").stdout
