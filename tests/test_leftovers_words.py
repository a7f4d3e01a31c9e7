"""The words of the page: numbers with their nouns, no empty state, why there is no command, what to do next."""

from __future__ import annotations

import builtins
import re
from typing import Any

import pytest
from aws_world import Refusal, World, aws_server, ec2, empty_account, leftovers, listed  # noqa: F401
from click.testing import CliRunner

from loadsheet.cli import main

boto3 = pytest.importorskip("boto3")
pytest.importorskip("moto")
HERE = ("--regions", "eu-west-1", "--kinds")


class Html(Refusal):
    """What something on the way to AWS answers."""

    def body(self, service: str, is_json: bool) -> bytes:
        return b"<html><head><title>502 Bad Gateway</title></head><body>nginx, secret-host.internal</body></html>"


@pytest.mark.parametrize(
    ("kind", "called"),
    [
        ("volume", "ec2:DescribeVolumes"),
        ("bucket", "s3:GET"),
        ("file-system", "efs:GET"),
        ("notebook", "sagemaker:ListNotebookInstances"),
        ("auto-scaling-group", "autoscaling:DescribeAutoScalingGroups"),
        ("image-repository", "ecr:DescribeRepositories"),
    ],
)
def test_a_page_in_place_of_an_answer(account: World, kind: str, called: str) -> None:
    """In every protocol of AWS: what is no answer is said to be none, and not quoted."""
    account.answer(called, Html("400", 400))
    asked = (*HERE, kind)
    (failed,) = listed(*asked)["failed"]
    assert "<" not in failed["error"]
    said = "a page of HTML, with status 400, came in place of AWS's answer (from a proxy?)"
    assert failed["error"].endswith(said), failed["error"]
    text = leftovers(*asked, code=1).stdout
    assert "nginx" not in text
    assert "secret-host" not in text
    assert "<h" not in text


def test_without_boto3(account: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way out is the line that preflight gives, on the page and in the JSON."""
    real = builtins.__import__

    def missing(name: str, names: Any = None, *rest: Any) -> Any:
        if name.partition(".")[0] == "boto3":
            raise ImportError(name)
        return real(name, names, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    (failed,) = listed()["failed"]
    text = leftovers(code=1).stdout
    monkeypatch.undo()
    assert (failed["error"], failed["next"]) == ("boto3 is not installed", "`pip install 'loadsheet[aws]'`")
    assert "→ `pip install 'loadsheet[aws]'`" in text


def test_no_credentials_and_what_then(account: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What to do stands below what failed, once."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    text = " ".join(leftovers(code=1).stdout.split())
    assert text.count("→ `aws sso login`") == 1


def repository(count: int) -> None:
    """A repository with images."""
    ecr = boto3.client("ecr", region_name="eu-west-1")
    ecr.create_repository(repositoryName="images")
    for n in range(count):
        ecr.put_image(repositoryName="images", imageManifest=manifest(n), imageTag=f"t{n}")


def manifest(n: int) -> str:
    return (
        '{"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json", '
        f'"config": {{"digest": "sha256:{n:064x}", "size": 1, "mediaType": "x"}}, "layers": []}}'
    )


@pytest.mark.parametrize(("count", "words"), [(1, "1 image, billed"), (2, "2 images, billed")])
def test_numbers_of_images(account: World, count: int, words: str) -> None:
    """The head counts repositories, the reason images."""
    repository(count)
    text = leftovers(*HERE, "image-repository", code=1).stdout
    assert words in text
    assert "image-repository   1: with images" in text


def test_numbers_of_states(account: World) -> None:
    """Things in more than one state: how many in each, in words that hold for one and for many."""
    for name, versions in (("one", "Enabled"), ("two", ""), ("three", "")):
        s3 = boto3.client("s3", region_name="eu-west-1")
        s3.create_bucket(Bucket=name + "-b", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
        if versions:
            s3.put_bucket_versioning(Bucket=name + "-b", VersioningConfiguration={"Status": versions})
        s3.put_object(Bucket=name + "-b", Key="a", Body=b"1")
    text = leftovers(*HERE, "bucket", code=1).stdout
    assert "bucket   3: 2 × no versions, 1 × versions stay" in text


def test_numbers_of_zones(account: World) -> None:
    """An interface endpoint in one zone."""
    vpc = ec2().describe_vpcs()["Vpcs"][0]["VpcId"]
    subnet = ec2().describe_subnets()["Subnets"][0]["SubnetId"]
    ec2().create_vpc_endpoint(
        VpcId=vpc, VpcEndpointType="Interface", ServiceName="com.amazonaws.eu-west-1.sts", SubnetIds=[subnet]
    )
    assert "billed by the hour in 1 zone" in leftovers(*HERE, "vpc-endpoint", code=1).stdout
    assert "1 zones" not in leftovers(*HERE, "vpc-endpoint", code=1).stdout


def test_a_state_that_is_not_told(account: World) -> None:
    """An empty state is no word of the page."""
    account.answer("fsx:DescribeFileSystems", {"FileSystems": [{"FileSystemId": "fs-1"}]})
    assert [row["state"] for row in listed(*HERE, "fsx-file-system")["items"]] == ["not told"]
    assert "fsx-file-system   1: not told" in leftovers(*HERE, "fsx-file-system", code=1).stdout


def stopped(disks: int) -> str:
    """An answer with a stopped machine that has so many volumes."""
    each = "".join(
        f"<item><deviceName>/dev/sd{n}</deviceName><ebs><volumeId>vol-{n}</volumeId></ebs></item>"
        for n in range(disks)
    )
    return (
        "<R><reservationSet><item><instancesSet><item><instanceId>i-1</instanceId><instanceState><name>stopped"
        f"</name></instanceState><instanceType>m5.large</instanceType><blockDeviceMapping>{each}"
        "</blockDeviceMapping></item></instancesSet></item></reservationSet></R>"
    )


@pytest.mark.parametrize(
    ("disks", "why"),
    [
        (0, "stopped, it is not billed itself"),
        (1, "stopped, its volume costs on"),
        (2, "stopped, its 2 volumes cost on"),
    ],
)
def test_numbers_of_volumes(account: World, disks: int, why: str) -> None:
    """A stopped machine with none, one and two."""
    account.answer("ec2:DescribeInstances", stopped(disks))
    assert [row["why"].partition("; if it")[0] for row in listed(*HERE, "instance")["items"]] == [why]


def test_what_could_not_be_looked_at_is_not_what_was(account: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first line counts what was looked at as that, and the rest beside it."""
    monkeypatch.setenv("COLUMNS", "400")
    ec2().create_volume(Size=1, AvailabilityZone="eu-west-1a")
    account.refuse("ec2:DescribeAddresses", "UnauthorizedOperation", status=403)
    first = leftovers(*HERE, "volume,address", code=1).stdout.splitlines()[0]
    assert first == (
        "STILL THERE   1 thing in 1 region, in what was looked at: 1 kind of thing in 1 region; "
        "1 place could not be looked at."
    )
    first = leftovers(*HERE, "snapshot,image,address", code=1).stdout.splitlines()[0]
    assert first.endswith("looked at; nothing found in what was looked at: 2 kinds of things in 1 region.")


def test_a_protection_that_no_list_tells(account: World) -> None:
    """EC2 refuses to end a protected machine: how to end the protection stands there; a spot machine has none."""
    spot = stopped(1).replace("</instanceId>", "</instanceId><instanceLifecycle>spot</instanceLifecycle>")
    for kind in ("instance", "attached-volume"):
        account.answer("ec2:DescribeInstances", stopped(1))
        account.answer(
            "ec2:DescribeVolumes",
            "<R><volumeSet><item><volumeId>vol-0</volumeId><status>in-use</status></item></volumeSet></R>",
        )
        (row,) = listed(*HERE, kind)["items"]
        assert any("terminate-instances" in text for text in row["remove"])
        assert "`aws ec2 modify-instance-attribute … --no-disable-api-termination`" in row["why"]
        account.answer("ec2:DescribeInstances", spot)
        (row,) = listed(*HERE, kind)["items"]
        assert "protected" not in row["why"]


def test_no_command_and_why(account: World) -> None:
    """Billed or not, an item without a command says why; and the reason is the right one."""
    account.answer(
        "ec2:DescribeCapacityReservations",
        "<R><capacityReservationSet><item><capacityReservationId>cr-1</capacityReservationId><instanceType>p5.48xlarge"
        "</instanceType><state>active</state><totalInstanceCount>1</totalInstanceCount><availableInstanceCount>1"
        "</availableInstanceCount><reservationType>capacity-block</reservationType></item></capacityReservationSet></R>",
    )
    account.answer(
        "ec2:DescribeSnapshots",
        "<R><snapshotSet><item><snapshotId>file:///x</snapshotId><status>completed</status></item></snapshotSet></R>",
    )
    rows = listed(*HERE, "capacity-reservation,snapshot")["items"]
    assert [row["remove"] for row in rows] == [[], []]
    text = leftovers(*HERE, "capacity-reservation,snapshot", code=1).stdout
    assert "no command: it is paid for in advance, and ends by itself" in text
    assert "no command: its name is none that the command line of AWS takes as it stands" in text


def test_no_word_of_one_and_many(account: World) -> None:
    """On the page of an account with one of many things, no `1 …s`."""
    started = CliRunner().invoke(main, ["leftovers", "--regions", "eu-west-1", "--kinds", "volume"])
    assert started.exit_code == 0
    repository(1)
    volume = ec2().create_volume(Size=1, AvailabilityZone="eu-west-1a")["VolumeId"]
    ec2().create_snapshot(VolumeId=volume)
    ec2().allocate_address(Domain="vpc")
    account.answer("ec2:DescribeInstances", stopped(1))
    text = " ".join(leftovers("--regions", "eu-west-1", "--wait", "60s", code=1).stdout.split())
    found = re.findall(r"\b1 (?:other )?[a-z]+s\b", text.partition("NOT LOOKED AT")[0])
    assert found == []
