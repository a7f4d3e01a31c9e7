"""Buckets of a played account: versions, rules for a part, commands that do remove, and buckets that tell nothing."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from aws_world import Refusal, World, aws_server, empty_account, leftovers, listed  # noqa: F401

boto3 = pytest.importorskip("boto3")
pytest.importorskip("moto")
ASKED = ("--regions", "eu-west-1", "--kinds", "bucket")
BOTH = (*ASKED[:3], "bucket,multipart-upload")


def s3() -> Any:
    return boto3.client("s3", region_name="eu-west-1")


def made(*names: str, versions: str = "") -> None:
    """Buckets with an object in each."""
    for name in names:
        s3().create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
        if versions:
            s3().put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": versions})
        s3().put_object(Bucket=name, Key="a", Body=b"1")


def option(command: str, name: str) -> str:
    words = shlex.split(command)
    return words[words.index(name) + 1]


@pytest.mark.parametrize("versions", ["Enabled", "Suspended"])
def test_the_commands_of_a_bucket_with_versions(account: World, versions: str) -> None:
    """Its rules are valid by AWS's model and remove versions, markers and uploads; nothing only hides them."""
    from botocore.session import get_session
    from botocore.validate import ParamValidator

    made("kept", versions=versions)
    (row,) = listed(*ASKED)["items"]
    assert row["state"] == "versions stay"
    first, second = row["remove"]
    assert first.startswith("aws s3api put-bucket-lifecycle-configuration --region eu-west-1 --bucket kept ")
    assert second == "aws s3api delete-bucket --region eu-west-1 --bucket kept"
    rules = json.loads(option(first, "--lifecycle-configuration"))
    given = {"Bucket": "kept", "LifecycleConfiguration": rules}
    model = get_session().get_service_model("s3").operation_model("PutBucketLifecycleConfiguration")
    assert not ParamValidator().validate(given, model.input_shape).has_errors()
    parts = {key for rule in rules["Rules"] for key in rule}
    assert {"Expiration", "NoncurrentVersionExpiration", "AbortIncompleteMultipartUpload"} <= parts
    for rule in rules["Rules"]:
        assert (rule["Status"], rule["Filter"]) == ("Enabled", {"Prefix": ""})
        # AWS refuses both in one rule
        assert not {"Days", "ExpiredObjectDeleteMarker"} <= set(rule.get("Expiration", {}))
    assert any(rule.get("Expiration") == {"ExpiredObjectDeleteMarker": True} for rule in rules["Rules"])
    # the account takes them, and the bucket is seen to be on its way out
    s3().put_bucket_lifecycle_configuration(**given)
    assert listed(*ASKED)["items"][0]["state"] == "versions expire"


def test_what_rb_would_have_done(account: World) -> None:
    """The account itself: deleting what is listed hides a version and the bucket cannot be removed; hence the rules."""
    made("kept", versions="Enabled")
    s3().delete_object(Bucket="kept", Key="a")
    with pytest.raises(s3().exceptions.ClientError, match="BucketNotEmpty"):
        s3().delete_bucket(Bucket="kept")
    (row,) = listed(*ASKED)["items"]
    assert not any(shlex.split(text)[1:3] == ["s3", "rb"] for text in row["remove"])
    # without versions it is the right command, and stays
    made("plain")
    (plain,) = [row for row in listed(*ASKED)["items"] if row["id"] == "plain"]
    assert plain["remove"] == ["aws s3 rb --region eu-west-1 --force s3://plain"]


def test_no_rules_with_a_second_factor(account: World) -> None:
    """With MFA delete a bucket takes no lifecycle: no command, and the reason, which the page shows."""
    made("kept", versions="Enabled")
    account.answer(
        "s3:GET versioning",
        "<VersioningConfiguration><Status>Enabled</Status><MfaDelete>Enabled</MfaDelete></VersioningConfiguration>",
    )
    (row,) = listed(*ASKED)["items"]
    assert (row["remove"], "MFA delete" in row["no_command"]) == ([], True)
    assert "no command: its versions go one by one" in leftovers(*ASKED, code=1).stdout


OLD = {"NoncurrentVersionExpiration": {"NoncurrentDays": 7}, "Status": "Enabled"}


@pytest.mark.parametrize(
    ("rule", "state"),
    [
        ({"Filter": {"Prefix": ""}, **OLD}, "versions expire"),
        ({"Filter": {}, **OLD}, "versions expire"),
        ({"Prefix": "", **OLD}, "versions expire"),
        ({"Prefix": "logs/", **OLD}, "versions expire in part"),
        ({"Filter": {"Prefix": "logs/"}, **OLD}, "versions expire in part"),
        ({"Filter": {"Tag": {"Key": "a", "Value": "b"}}, **OLD}, "versions expire in part"),
        ({"Filter": {"ObjectSizeGreaterThan": 500}, **OLD}, "versions expire in part"),
        ({"Filter": {"ObjectSizeLessThan": 500}, **OLD}, "versions expire in part"),
        (
            {"Filter": {"And": {"Prefix": "", "Tags": [{"Key": "a", "Value": "b"}]}}, **OLD},
            "versions expire in part",
        ),
        (
            {
                **OLD,
                "Filter": {},
                "NoncurrentVersionExpiration": {"NoncurrentDays": 7, "NewerNoncurrentVersions": 3},
            },
            "versions expire in part",
        ),
        ({"Filter": {}, **OLD, "Status": "Disabled"}, "versions stay"),
        ({"Filter": {}, "Expiration": {"Days": 1}, "Status": "Enabled"}, "versions stay"),
    ],
)
def test_a_rule_for_a_part(account: World, rule: dict[str, Any], state: str) -> None:
    """A prefix, a tag, a size, copies that are kept: no reassurance; nor a rule that is switched off."""
    made("kept", versions="Enabled")
    account.answer("s3:GET lifecycle", written(rule))
    (row,) = listed(*ASKED)["items"]
    assert row["state"] == state
    assert ("for a part of it" in row["why"]) == (state == "versions expire in part")
    assert ("old versions go by a rule after 7 days" in row["why"]) == (state == "versions expire")
    assert ("no rule removes old ones" in row["why"]) == (state == "versions stay")


def written(rule: dict[str, Any]) -> str:
    """The answer that holds one rule, as S3 writes it."""

    def tag(name: str, value: Any) -> str:
        name = {"Tags": "Tag"}.get(name, name)
        if isinstance(value, list):
            return "".join(tag(name, each) for each in value)
        inner = "".join(tag(*pair) for pair in value.items()) if isinstance(value, dict) else str(value)
        return f"<{name}>{inner}</{name}>"

    return f"<LifecycleConfiguration>{tag('Rule', rule)}</LifecycleConfiguration>"


def only(bucket: str) -> Any:
    """Refuse what is asked of one bucket."""
    return lambda request: (
        Refusal("AccessDenied", 403) if request["Path"].strip("/").split("/")[0] == bucket else None
    )


def test_a_bucket_without_a_region(account: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named, once for each kind, in no region: that it would be in us-east-1 is a guess. The others are listed."""
    made("open", "shut", "shut-too")
    account.answer("s3:GetBucketLocation", lambda r: only("shut")(r) or only("shut-too")(r))
    found = listed(*BOTH)
    assert [row["id"] for row in found["items"]] == ["open"]
    told = [(f["kind"], f["id"], f["region"], f["permission"]) for f in found["failed"]]
    assert told == [
        (kind, name, "all", "s3:GetBucketLocation")
        for kind in ("bucket", "multipart-upload")
        for name in ("shut", "shut-too")
    ]
    assert not any("us-east-1" in f["error"] for f in found["failed"])
    monkeypatch.setenv("COLUMNS", "200")
    text = leftovers(*BOTH, code=1).stdout
    assert (
        "bucket, multipart-upload `shut`, `shut-too` in the account: not allowed to s3:GetBucketLocation"
        in text
    )
    assert text.count("shut-too") == 1
    assert text.count("loadsheet leftovers --aws-policy") == 1


def test_a_bucket_that_tells_a_part(account: World) -> None:
    """What it holds is known, whether it keeps versions is not: it is listed, and named among what failed."""
    made("open", "shut", versions="Enabled")
    account.answer("s3:GET versioning", only("shut"))
    found = listed(*ASKED)
    (shut,) = [row for row in found["items"] if row["id"] == "shut"]
    assert (shut["state"], shut["remove"]) == ("versions not known", [])
    assert "is not known" in shut["no_command"]
    assert [(f["id"], f["region"], f["permission"]) for f in found["failed"]] == [
        ("shut", "eu-west-1", "s3:GetBucketVersioning")
    ]
    assert (
        "bucket `shut` in eu-west-1: not allowed to s3:GetBucketVersioning"
        in leftovers(*ASKED, code=1).stdout
    )


def test_a_bucket_that_tells_nothing(account: World) -> None:
    """Neither CloudWatch nor S3 say what is in it: named with both permissions, and no item that may be empty."""
    made("open", "shut")
    account.refuse("cloudwatch", "AccessDenied", status=403)
    account.answer("s3:GET versions", only("shut"))
    found = listed(*ASKED)
    assert [(row["id"], "its size is not known" in row["why"]) for row in found["items"]] == [("open", True)]
    assert {(f["id"], f["permission"]) for f in found["failed"]} == {
        ("open", "cloudwatch:ListMetrics"),
        ("shut", "cloudwatch:ListMetrics"),
        ("shut", "s3:ListBucketVersions"),
    }
    assert found["looked"] == []


def test_uploads_that_may_not_be_listed(account: World) -> None:
    """The bucket is named, and the uploads of the others are listed."""
    made("open", "shut")
    s3().create_multipart_upload(Bucket="open", Key="step-1.pt")
    account.answer("s3:GET uploads", only("shut"))
    found = listed("--regions", "eu-west-1", "--kinds", "multipart-upload")
    assert [row["id"].split()[0] for row in found["items"]] == ["open/step-1.pt"]
    assert [(f["id"], f["region"]) for f in found["failed"]] == [("shut", "eu-west-1")]
