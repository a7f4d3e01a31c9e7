"""`loadsheet leftovers` on a played account: every planted fault is found, no phantom, and nothing is changed."""

from __future__ import annotations

import gc
import json
import threading
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aws_world import (
    IMAGE,
    World,
    aws_server,  # noqa: F401
    ec2,
    empty_account,  # noqa: F401
    leftovers,
    let_go,
    listed,
    started,
)
from history_runs import written

boto3 = pytest.importorskip("boto3")
pytest.importorskip("moto")


def test_an_empty_account_has_nothing(account: World) -> None:
    """All kinds were looked at and nothing was found: exit status 0, and no phantom."""
    found = listed("--regions", "eu-west-1", code=0)
    assert (found["items"], found["failed"]) == ([], [])
    from loadsheet.cloud.leftovers.registry import kinds

    assert sorted(kinds()) == sorted(row["kind"] for row in found["looked"])
    assert found["account"] == "123456789012"
    assert found["endpoint"] == account.url
    text = leftovers("--regions", "eu-west-1", "--kinds", "volume", code=0).stdout
    assert text.startswith("NOTHING FOUND   in what was looked at: 1 kind of thing in 1 region.")
    assert "gcloud compute instances list" in text
    assert "az vm list" in text
    assert "Look again tomorrow" in text


def test_forty_seven_machines_in_three_foreign_regions(account: World) -> None:
    """Story 2: 47 p3.16xlarge where nothing else is: all found, loud, and priced at the user's price."""
    planted = {"ap-southeast-1": 16, "sa-east-1": 16, "eu-north-1": 15}
    ids = {i for region, count in planted.items() for i in started(region, "p3.16xlarge", count)}
    quiet = started("eu-west-1", "g4dn.xlarge")
    found = listed("--kinds", "instance", "--price", "p3.16xlarge=24.48 USD/h")
    assert ids == {row["id"] for row in found["items"] if row["loud"]}
    assert planted == Counter(row["region"] for row in found["items"] if row["loud"])
    assert quiet == [row["id"] for row in found["items"] if not row["loud"]]
    assert found["cost"] == {
        "per_hour": pytest.approx(47 * 24.48),
        "currency": "USD",
        "priced": 47,
        "without_price": 1,
    }
    assert len(found["looked"]) == len({row["region"] for row in found["looked"]}) > 15
    text = leftovers("--kinds", "instance", "--regions", ",".join(["eu-west-1", *planted]), code=1).stdout
    assert "LOOK HERE FIRST   47 GPU machines where nothing else of yours was found (" in text
    assert "eu-north-1: 15 × p3.16xlarge" in text
    assert "43 more: --all, --json" in text  # 48, five shown


def test_a_volume_outlives_its_machine(account: World) -> None:
    """Story 8: without DeleteOnTermination the volume stays, untagged; found before and after the end."""
    (machine,) = started("eu-west-1", "m5.large", stays=True)
    before = listed("--regions", "eu-west-1", "--kinds", "volume,attached-volume")
    (warned,) = before["items"]
    assert ("attached-volume", f"it stays when {machine} is terminated") == (warned["kind"], warned["why"])
    ec2().terminate_instances(InstanceIds=[machine])
    after = listed("--regions", "eu-west-1", "--price", "volume=0.073/GB-month")
    (left,) = after["items"] if not after["failed"] else []
    assert ("volume", warned["id"], "available", {}) == tuple(
        left[k] for k in ("kind", "id", "state", "tags")
    )
    assert left["size_bytes"] == 100 * 2**30
    assert left["per_hour"] == pytest.approx(100 * 0.073 / 730)
    assert left["remove"] == [f"aws ec2 delete-volume --region eu-west-1 --volume-id {left['id']}"]


def plant() -> dict[str, str]:
    """One of everything that moto can hold: kind -> id."""
    client, planted = ec2(), {}
    (stopped,) = started("eu-west-1", "m5.large")
    client.stop_instances(InstanceIds=[stopped])
    planted["instance"] = stopped
    described = client.describe_instances(InstanceIds=[stopped])["Reservations"][0]["Instances"][0]
    planted["attached-volume"] = described["BlockDeviceMappings"][0]["Ebs"]["VolumeId"]
    volume = client.create_volume(Size=7, AvailabilityZone="eu-west-1a", VolumeType="gp3")
    planted["volume"] = volume["VolumeId"]
    planted["snapshot"] = client.create_snapshot(VolumeId=volume["VolumeId"])["SnapshotId"]
    planted["address"] = client.allocate_address(Domain="vpc")["AllocationId"]
    subnets = [row["SubnetId"] for row in client.describe_subnets()["Subnets"]]
    used = client.allocate_address(Domain="vpc")["AllocationId"]
    gateway = client.create_nat_gateway(SubnetId=subnets[0], AllocationId=used)["NatGateway"]
    planted["nat-gateway"] = gateway["NatGatewayId"]
    group = client.describe_vpcs()["Vpcs"][0]["VpcId"]
    made = client.create_vpc_endpoint(
        VpcId=group,
        VpcEndpointType="Interface",
        ServiceName="com.amazonaws.eu-west-1.sts",
        SubnetIds=subnets[:2],
    )
    planted["vpc-endpoint"] = made["VpcEndpoint"]["VpcEndpointId"]
    balancer = boto3.client("elbv2", region_name="eu-west-1")
    balancer.create_load_balancer(Name="left", Subnets=subnets[:2])
    planted["load-balancer"] = "left"
    s3 = boto3.client("s3", region_name="eu-west-1")
    place = {"LocationConstraint": "eu-west-1"}
    s3.create_bucket(Bucket="checkpoints", CreateBucketConfiguration=place)
    s3.create_bucket(Bucket="empty-one", CreateBucketConfiguration=place)
    s3.put_bucket_versioning(Bucket="checkpoints", VersioningConfiguration={"Status": "Enabled"})
    s3.put_object(Bucket="checkpoints", Key="a", Body=b"1")
    upload = s3.create_multipart_upload(Bucket="checkpoints", Key="step 1; rm -rf ~.pt")["UploadId"]
    planted["bucket"] = "checkpoints"
    planted["multipart-upload"] = f"checkpoints/step 1; rm -rf ~.pt {upload}"
    boto3.client("sagemaker", region_name="eu-west-1").create_notebook_instance(
        NotebookInstanceName="nb", InstanceType="ml.p3.2xlarge", RoleArn="arn:aws:iam::123456789012:role/x"
    )
    planted["notebook"] = "nb"
    planted["file-system"] = boto3.client("efs", region_name="eu-west-1").create_file_system()["FileSystemId"]
    boto3.client("ecr", region_name="eu-west-1").create_repository(repositoryName="no-image-in-it")
    return planted


def test_one_of_everything(account: World) -> None:
    """Each planted thing is found under its kind, nothing else is, and only calls that read went over the wire."""
    planted = plant()
    account.calls.clear()
    found = listed("--regions", "eu-west-1")
    assert found["failed"] == []
    assert planted == {row["kind"]: row["id"] for row in found["items"]}
    assert len(planted) == len(found["items"])
    assert account.calls
    for _, called in account.calls:
        assert called.partition(":")[2].startswith(("Describe", "List", "Get", "GET")), called
    by_kind = {row["kind"]: row for row in found["items"]}
    assert "no rule removes old ones" in by_kind["bucket"]["why"]
    (command,) = by_kind["multipart-upload"]["remove"]
    assert "--key 'step 1; rm -rf ~.pt'" in command
    assert by_kind["notebook"]["remove"][0].startswith("aws sagemaker stop-notebook-instance")
    # in another region only what stands in all of them was looked at, and the others are said
    other = listed("--regions", "us-east-1", code=0)
    assert other["items"] == []
    assert "eu-west-1" in next(row["names"] for row in other["not_looked"] if "other regions" in row["what"])


def test_a_persistent_request(account: World) -> None:
    """A persistent spot request starts again what was terminated: listed, and it is to be cancelled first."""
    made = ec2().request_spot_instances(
        SpotPrice="0.5",
        Type="persistent",
        LaunchSpecification={"ImageId": IMAGE, "InstanceType": "g4dn.xlarge"},
    )
    id = made["SpotInstanceRequests"][0]["SpotInstanceRequestId"]
    (row,) = listed("--regions", "eu-west-1", "--kinds", "spot-request")["items"]
    assert (row["id"], row["type"]) == (id, "g4dn.xlarge")
    assert row["why"].startswith("persistent")
    assert (
        f"cancel-spot-instance-requests --region eu-west-1 --spot-instance-request-ids {id}"
        in row["remove"][0]
    )


def test_size_of_a_bucket(account: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes from CloudWatch, over all storage classes, and no object is listed."""
    import datetime

    from moto.s3.models import S3Backend

    # moto counts its own objects at midnight, none here: whether that falls into the period of what is
    # planted below would depend on the hour
    monkeypatch.setattr(S3Backend, "get_cloudwatch_metrics", classmethod(lambda *args, **rest: []))
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="big-one")
    now = datetime.datetime.now(datetime.UTC)
    for storage, size in (("StandardStorage", 5 * 2**40), ("GlacierStorage", 2**40)):
        boto3.client("cloudwatch", region_name="us-east-1").put_metric_data(
            Namespace="AWS/S3",
            MetricData=[
                {
                    "MetricName": "BucketSizeBytes",
                    "Timestamp": now - datetime.timedelta(hours=30),
                    "Value": size,
                    "Dimensions": [
                        {"Name": "BucketName", "Value": "big-one"},
                        {"Name": "StorageType", "Value": storage},
                    ],
                }
            ],
        )
    account.calls.clear()
    (row,) = listed("--kinds", "bucket", "--price", "bucket=0.023/GB-month")["items"]
    assert (row["id"], row["region"], row["size_bytes"]) == ("big-one", "us-east-1", 6 * 2**40)
    assert row["per_hour"] == pytest.approx(6 * 1024 * 0.023 / 730)


def test_no_permission(account: World) -> None:
    """What may not be looked at is named with its permission; never "nothing left"."""
    account.refuse("ec2:DescribeVolumes", "UnauthorizedOperation", status=403)
    found = listed("--regions", "eu-west-1,us-east-1", "--kinds", "volume,snapshot")
    assert found["items"] == []
    told = [(f["region"], f["kind"], f["reason"], f["permission"]) for f in found["failed"]]
    assert told == [(r, "volume", "denied", "ec2:DescribeVolumes") for r in ("eu-west-1", "us-east-1")]
    assert [(r["region"], r["kind"]) for r in found["looked"]] == [
        ("eu-west-1", "snapshot"),
        ("us-east-1", "snapshot"),
    ]
    text = leftovers("--regions", "eu-west-1", "--kinds", "volume", code=1).stdout
    assert text.startswith("NOT KNOWN   1 place could not be looked at")
    assert "NOTHING" not in text
    assert "not allowed to ec2:DescribeVolumes" in text


def test_one_region_fails_and_one_is_throttled(account: World) -> None:
    """The others answer, and what they hold is listed."""
    started("eu-west-1", "m5.large")
    account.refuse("ec2:DescribeInstances", "RequestLimitExceeded", "sa-east-1", 503)
    account.refuse("ec2:DescribeInstances", "InternalError", "us-west-2", 500)
    found = listed("--regions", "eu-west-1,sa-east-1,us-west-2", "--kinds", "instance")
    assert [row["region"] for row in found["items"]] == ["eu-west-1"]
    assert {f["region"]: f["reason"] for f in found["failed"]} == {
        "sa-east-1": "throttled",
        "us-west-2": "other",
    }
    assert found["looked"] == [{"region": "eu-west-1", "kind": "instance"}]


def test_a_region_that_does_not_answer(account: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens: unreachable, said for each kind, and not waited for at each of them."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", "http://127.0.0.1:9")
    found = listed("--regions", "eu-west-1", "--kinds", "volume,snapshot,image")
    assert {f["kind"]: f["reason"] for f in found["failed"]} == dict.fromkeys(
        ("regions", "volume", "snapshot", "image"), "unreachable"
    )


def test_no_credentials(account: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing could be looked at, which is no empty list: exit status 1."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    found = listed()
    assert found["failed"][0]["reason"] == "credentials"
    assert found["looked"] == []
    assert leftovers(code=1).stdout.startswith("NOT KNOWN")


def many_volumes(count: int, at_once: int = 1000, more_of_each: int = 0) -> Any:
    """A player of DescribeVolumes with so many of them, `at_once` on a page, each with what nobody asks for."""
    rest = "".join(f"<item><device>/dev/sd{n}</device></item>" for n in range(more_of_each))

    def answer(fields: dict[str, str]) -> str:
        first = int(fields.get("NextToken", "0"))
        last = min(first + at_once, count)
        rows = "".join(
            f"<item><volumeId>vol-{n:017x}</volumeId><size>100</size><status>available</status><volumeType>gp3"
            f"</volumeType><attachmentSet>{rest}</attachmentSet>"
            f"<createTime>2026-01-01T00:00:{n % 60:02}Z</createTime></item>"
            for n in range(first, last)
        )
        more = f"<nextToken>{last}</nextToken>" if last < count else ""
        return f"<R><volumeSet>{rows}</volumeSet>{more}</R>"

    return answer


def test_memory_of_many(account: World) -> None:
    """One page is in memory at a time: from page to page a volume leaves 1 KiB, where its page holds more than 8."""
    from loadsheet.cloud.leftovers.look import open_account
    from loadsheet.cloud.leftovers.registry import Place, select

    (chosen,) = select(["volume"])
    place = Place(open_account([chosen], ["eu-west-1"], wait=120.0), "eu-west-1", chosen, float("inf"))
    held: list[int] = []
    page = many_volumes(900, 100, 30)

    def answer(fields: dict[str, str]) -> str:
        gc.collect()
        held.append(tracemalloc.get_traced_memory()[0])
        answered: str = page(fields)
        return answered

    account.answer("ec2:DescribeVolumes", answer)
    tracemalloc.start()
    try:
        found = list(chosen.look(place))
    finally:
        tracemalloc.stop()
    assert (len(found), len(held)) == (900, 9)
    assert (held[8] - held[2]) / 600 < 3 * 1024


def test_ten_thousand_volumes(account: World) -> None:
    """All pages are read; the page on the terminal stays short, and says how many there are."""
    account.answer("ec2:DescribeVolumes", many_volumes(10_000))
    text = leftovers("--regions", "eu-west-1", "--kinds", "volume", code=1).stdout
    assert "volume   10,000: available" in text
    assert "9,995 more: --all, --json" in text
    assert len(text.splitlines()) < 60


def test_pages_without_end(account: World) -> None:
    """A list that never ends is given up, what was read is kept, and the kind counts as not looked at."""
    from loadsheet.cloud.leftovers import look as module

    account.answer("ec2:DescribeVolumes", many_volumes(10**9))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST", 2500)
        found = listed("--regions", "eu-west-1", "--kinds", "volume")
    assert len(found["items"]) == 2500
    assert [(f["kind"], f["reason"]) for f in found["failed"]] == [("volume", "many")]
    assert found["looked"] == []


def test_no_time(account: World) -> None:
    """What is not done in time could not be looked at, and is not waited for."""
    found = listed("--regions", "eu-west-1", "--kinds", "volume,image", "--timeout", "1ms")
    assert {f["kind"]: f["error"] for f in found["failed"]} == dict.fromkeys(
        ("account", "regions", "volume", "image"), "not done in time"
    )


def test_a_service_that_hangs(account: World) -> None:
    """Three tries of a minute each are not waited for where `--timeout` is over; the rest was looked at."""
    over = threading.Event()
    account.answer("ec2:DescribeVolumes", lambda request: over.wait(300) and None)
    try:
        found = listed("--regions", "eu-west-1", "--kinds", "volume,image", "--timeout", "5s")
    finally:
        let_go(over)
    assert [(f["kind"], f["error"]) for f in found["failed"]] == [("volume", "not done in time")]
    assert found["looked"] == [{"region": "eu-west-1", "kind": "image"}]


def test_tomorrow(account: World, tmp_path: Path) -> None:
    """--save today, --compare tomorrow: what is new, what is gone, and what cannot be told."""
    file = str(tmp_path / "today.json")
    old = ec2().create_volume(Size=1, AvailabilityZone="eu-west-1a")["VolumeId"]
    kept = ec2().create_volume(Size=1, AvailabilityZone="eu-west-1a")["VolumeId"]
    asked = ("--regions", "eu-west-1", "--kinds", "volume,address")
    listed(*asked, "--save", file)
    ec2().delete_volume(VolumeId=old)
    new = ec2().create_volume(Size=1, AvailabilityZone="eu-west-1a")["VolumeId"]
    found = listed(*asked, "--compare", file)
    assert {kept, new} == {row["id"] for row in found["items"]}
    told = {part: [row["id"] for row in found["compared"][part]] for part in ("new", "gone", "not_told")}
    assert told == {"new": [new], "gone": [old], "not_told": []}
    # a kind that may no longer be looked at is not gone
    account.refuse("ec2:DescribeVolumes", "UnauthorizedOperation", status=403)
    blind = listed(*asked, "--compare", file)["compared"]
    assert [blind["gone"], len(blind["not_told"])] == [[], 2]
    assert "1 new thing, 1 gone" not in leftovers(*asked, "--compare", file, code=1).stdout


def test_after_a_run_of_this_hour(account: World, tmp_path: Path) -> None:
    """Made around the run, or tagged with it: listed; an older thing is counted and no more."""
    now = time.time()
    run = written(tmp_path, {"lr": 0.1}, {"loss": [1.0, 0.5]}, begun=now - 60)
    made = ec2().create_volume(Size=1, AvailabilityZone="eu-west-1a")["VolumeId"]
    asked = (
        "--regions",
        "eu-west-1",
        "--kinds",
        "volume,snapshot",
        "--runs",
        str(tmp_path),
        "--after",
        run.name[:6],
    )
    found = listed(*asked)
    assert [row["id"] for row in found["items"]] == [made]
    assert (found["after"]["run"], found["after"]["others"]) == (run.name, {})
    old = written(tmp_path, {"lr": 0.2}, {"loss": [1.0]}, begun=now - 40 * 86400.0)
    asked = (*asked[:-1], old.name)
    assert listed(*asked, code=0)["after"]["others"] == {"volume": 1}
    ec2().create_tags(Resources=[made], Tags=[{"Key": "run", "Value": old.name}])
    assert [row["id"] for row in listed(*asked)["items"]] == [made]
    assert leftovers(*asked, code=1).stdout.startswith("STILL THERE   1 thing of the run in 1 region")


def test_the_bill_only_where_it_may_cost(account: World) -> None:
    """Cost Explorer is asked with --paid-calls alone, and each request is announced with its price before."""
    amount = {"Metrics": {"UnblendedCost": {"Amount": "12.5", "Unit": "USD"}}}
    told = {"Keys": ["Amazon EC2", "eu-west-1"], **amount}
    answer = {"ResultsByTime": [{"Estimated": True, "Groups": [told]}]}
    account.answer("ce:GetCostAndUsage", answer)
    asked = ("--regions", "eu-west-1", "--kinds", "address")
    listed(*asked, code=0)
    assert not any(called.startswith("ce:") for called in account.seen)
    result = leftovers(*asked, "--paid-calls", "--json", code=0)
    found = json.loads(result.stdout)["bill"]
    assert (found["requests"], found["estimated"], found["currency"]) == (2, True, "USD")
    assert found["by_region"] == [{"service": "Amazon EC2", "region": "eu-west-1", "amount": 12.5}]
    assert [c for _, c in account.calls if c.startswith("ce:")] == ["ce:GetCostAndUsage"] * 2
    assert result.stderr.count("AWS bills 0.01 USD") == 2
    account.refuse("ce:GetCostAndUsage", "AccessDeniedException")
    assert listed(*asked, "--paid-calls")["failed"][0]["kind"] == "bill"


def test_unknown_names(account: World) -> None:
    """Kinds and regions that there are not: one line, with the nearest that there are."""
    for args, words in (
        (("--kinds", "volumes"), "`volume`"),
        (("--regions", "eu-west-9"), "`eu-west-1`"),
        (("--regions", "EU/../x"), "expected names"),
        (("--price", "volume=0.08"), "GB-month"),
        (("--price", "volum=0.08/h"), "`volume`"),
        (("--price", "volume=0.08/h", "--price", "nat-gatway=1/h"), "`nat-gateway`"),
        (("--margin", "2h"), "--after"),
        (("--kinds", ""), "--kinds: got nothing"),
        (("--kinds", " , "), "--kinds: got nothing"),
        (("--older-than", "7"), "such as `7d`"),
        (("--older-than", "1e3"), "such as `7d`"),
        (("--older-than", ""), "--older-than"),
        (("--save", "no/such/folder/x"), "folder"),
        (("--compare", "no-such-file"), "no such file"),
    ):
        assert words in leftovers(*args, code=2).stderr


@pytest.mark.parametrize("home", ["cn-north-1", "us-gov-west-1"])
def test_another_partition(account: World, monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    """A key of China or GovCloud goes to no region of another partition, and its buckets are found."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", home)
    s3 = boto3.client("s3", region_name=home)
    s3.create_bucket(Bucket="mine", CreateBucketConfiguration={"LocationConstraint": home})
    s3.put_object(Bucket="mine", Key="a", Body=b"1")
    s3.create_multipart_upload(Bucket="mine", Key="b")
    account.answer(
        "ec2:DescribeRegions", f"<R><regionInfo><item><regionName>{home}</regionName></item></regionInfo></R>"
    )
    account.answer("ce:GetCostAndUsage", {"ResultsByTime": [{"Groups": []}]})
    asked = ("--kinds", "bucket,multipart-upload,volume", "--paid-calls")
    account.calls.clear()
    found = listed(*asked)
    assert [(row["kind"], row["region"]) for row in found["items"]] == [
        ("bucket", home),
        ("multipart-upload", home),
    ]
    assert found["failed"] == []
    assert {region for region, called in account.calls if not called.startswith("ce:")} == {home}
    assert all(region.startswith(home[:3]) and region != "us-east-1" for region, _ in account.calls)
    # the configuration names none, the command line does
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    account.calls.clear()
    listed("--regions", home, *asked[:2])
    assert {region for region, _ in account.calls} == {home}


def test_a_gpu_where_not_all_was_looked_at(account: World) -> None:
    """Where buckets may not be listed, or other kinds were not asked for, nobody knows that nothing else is there."""
    started("sa-east-1", "p3.16xlarge")
    asked = ("--regions", "sa-east-1")
    head = "LOOK HERE FIRST   1 GPU machine where nothing else of yours "
    assert f"{head}is." in leftovers(*asked, code=1).stdout
    account.refuse("s3:GET", "AccessDenied", status=403)
    text = " ".join(leftovers(*asked, code=1).stdout.split())
    assert f"{' '.join(head.split())} was found (2 kinds were not looked at)." in text
    assert "a GPU where nothing else of yours was found (2 kinds were not looked at): is it yours?" in text
    from loadsheet.cloud.leftovers.registry import kinds

    text = " ".join(leftovers(*asked, "--kinds", "instance", code=1).stdout.split())
    told = int(text.partition("was found (")[2].split()[0])
    assert 10 < told < len(kinds())


def test_what_is_too_young(account: World) -> None:
    """Six volumes of today are no left-overs of a week, and "nothing found" is not all that is said of them."""
    for _ in range(6):
        ec2().create_volume(Size=1, AvailabilityZone="eu-west-1a")
    asked = ("--regions", "eu-west-1", "--kinds", "volume", "--older-than", "7d")
    text = leftovers(*asked, code=0).stdout
    assert text.startswith(
        "NOTHING THAT OLD FOUND   6 younger things left out (--older-than); nothing else in what "
    )
    assert listed(*asked, code=0)["younger"] == 6
    assert leftovers(*asked[:4], "--older-than", "0", code=1).stdout.startswith("STILL THERE   6 things")


def test_what_no_key_of_one_account_sees(account: World) -> None:
    """Other accounts of an organisation are named, and that the way by hand to other services shows a part."""
    found = {
        row["what"]: row
        for row in listed("--regions", "eu-west-1", "--kinds", "address", code=0)["not_looked"]
    }
    assert found["the other accounts of an organisation"]["by_hand"][0] == "aws organizations list-accounts"
    assert "of one region what has, or had, a tag" in found["other services of AWS"]["why"]
