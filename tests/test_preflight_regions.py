"""Regions that there are not, accounts that could not be looked at, and what that means for the exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from aws_world import (
    World,
    aws_server,  # noqa: F401
    world,  # noqa: F401
)
from terminal import answered, refused, run

from loadsheet.cloud.aws.regions import known_regions

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
