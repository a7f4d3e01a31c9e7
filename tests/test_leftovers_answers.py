"""Answers in which nothing stands, though it is not the service that says "nothing": never an empty list."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aws_world import Page, Refusal, World, aws_server, empty_account, leftovers, listed  # noqa: F401

boto3 = pytest.importorskip("boto3")
pytest.importorskip("moto")
HERE = ("--regions", "eu-west-1", "--kinds")
HTML = "<html><head><title>Sign in</title></head><body><p>x</p></body></html>"
#: kind -> the call of its list, one of each protocol and of each service that leaves out more
LISTS = {
    "volume": "ec2:DescribeVolumes",
    "load-balancer": "elbv2:DescribeLoadBalancers",
    "database": "rds:DescribeDBInstances",
    "bucket": "s3:GET",
    "notebook": "sagemaker:ListNotebookInstances",
    "image-repository": "ecr:DescribeRepositories",
    "log-group": "logs:DescribeLogGroups",
    "eks-cluster": "eks:GET",
    "file-system": "efs:GET",
    "fsx-file-system": "fsx:DescribeFileSystems",
}


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("body", [HTML, "{}", "", '{"message": "please sign in"}'])
def test_what_is_not_the_service_s_own(account: World, kind: str, body: str) -> None:
    """A status of 200 from a proxy or a login page: could not look, and why; exit status 1."""
    account.answer(LISTS[kind], Page(body))
    found = listed(*HERE, kind)
    assert (found["items"], found["looked"]) == ([], [])
    (failed,) = found["failed"]
    assert failed["kind"] == kind
    assert "in place of AWS's answer" in failed["error"]
    assert "sign in" not in failed["error"].lower()


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("volume", "<DescribeVolumesResponse/>"),
        ("bucket", "<ListAllMyBucketsResult/>"),
        ("notebook", {}),
        ("image-repository", {"message": "x"}),
        ("log-group", {}),
        ("eks-cluster", {}),
        ("file-system", {}),
        ("fsx-file-system", {}),
    ],
)
def test_an_answer_without_its_list(account: World, kind: str, body: Any) -> None:
    """With the id of a request, and without the list that stands in every answer of the service."""
    account.answer(LISTS[kind], body)
    found = listed(*HERE, kind)
    assert found["looked"] == []
    (failed,) = found["failed"]
    assert "that can be read (no " in failed["error"]


def test_uploads_and_objects_that_are_not_told(account: World) -> None:
    """S3 leaves an empty list of these out, but says that it is whole: without that, nothing was said."""
    place = {"LocationConstraint": "eu-west-1"}
    boto3.client("s3", region_name="eu-west-1").create_bucket(Bucket="bbb", CreateBucketConfiguration=place)
    listed(*HERE, "bucket,multipart-upload", code=0)
    account.answer("s3:GET uploads", "<ListMultipartUploadsResult/>")
    account.answer("s3:GET versions", "<ListVersionsResult/>")
    found = listed(*HERE, "bucket,multipart-upload")
    assert [(f["kind"], f["id"]) for f in found["failed"]] == [("bucket", "bbb"), ("multipart-upload", "bbb")]


def test_no_regions(account: World) -> None:
    """Which regions there are was not told: said, the named one is looked at, and without a name none is."""
    for answer in ("<DescribeRegionsResponse/>", "<R><regionInfo/></R>", Page(HTML)):
        account.answer("ec2:DescribeRegions", answer)
        found = listed(*HERE, "volume")
        assert [f["kind"] for f in found["failed"]] == ["regions"]
        assert found["looked"] == [{"region": "eu-west-1", "kind": "volume"}]
        assert leftovers("--kinds", "volume", code=1).stdout.startswith("NOT KNOWN")


def cost(amount: str, token: str = "") -> dict[str, Any]:
    """One page of Cost Explorer."""
    told = {"Keys": ["Amazon EC2", "x"], "Metrics": {"UnblendedCost": {"Amount": amount, "Unit": "USD"}}}
    page = {"ResultsByTime": [{"Estimated": True, "Groups": [told]}]}
    return {**page, "NextPageToken": token} if token else page


@pytest.mark.parametrize("answer", [{}, {"ResultsByTime": []}, Page(HTML), Page("{}")])
def test_a_bill_that_says_nothing(account: World, answer: Any) -> None:
    """No day in it: not "no charges"; and the second question is not paid for."""
    account.answer("ce:GetCostAndUsage", answer)
    result = leftovers(*HERE, "address", "--paid-calls", "--json", code=1)
    found = json.loads(result.stdout)
    assert found["bill"] is None
    assert [f["kind"] for f in found["failed"]] == ["bill"]
    assert result.stderr.count("AWS bills 0.01 USD") == 1
    assert "no charges" not in leftovers(*HERE, "address", "--paid-calls", code=1).stdout


def test_a_day_without_charges(account: World) -> None:
    """A day of the bill in which nothing stands is told as such."""
    account.answer("ce:GetCostAndUsage", {"ResultsByTime": [{"Estimated": True, "Groups": []}]})
    assert "no charges" in leftovers(*HERE, "address", "--paid-calls", code=0).stdout


@pytest.mark.parametrize("last", [cost("5.5", "more"), Refusal("LimitExceededException")])
def test_what_was_paid_for_is_shown(account: World, last: Any) -> None:
    """A bill that is too long, or breaks off: the pages that came stand there, and that they are a part."""
    pages = [cost("2.5", "more"), cost("3.5", "more")]
    account.answer("ce:GetCostAndUsage", lambda request: pages.pop(0) if pages else last)
    result = leftovers(*HERE, "address", "--paid-calls", "--json", code=1)
    found = json.loads(result.stdout)
    amounts = [row["amount"] for row in found["bill"]["by_region"]]
    assert amounts[-2:] == [3.5, 2.5]
    assert (found["bill"]["whole"], found["bill"]["by_usage_type"]) == (False, [])
    assert [f["kind"] for f in found["failed"]] == ["bill"]
    pages = [cost("2.5", "more"), cost("3.5", "more")]
    text = leftovers(*HERE, "address", "--paid-calls", code=1).stdout
    assert "as far as it was told" in text
    assert "3.50 USD" in text
