"""What S3 holds: buckets with their size as CloudWatch knows it, and uploads that were never finished."""

from __future__ import annotations

import datetime
import json
import shlex
from collections.abc import Iterator
from typing import Any, Final

from loadsheet.cloud.aws.failures import CallFailed
from loadsheet.cloud.aws.session import GLOBAL
from loadsheet.cloud.leftovers.item import ACCOUNT, LONGEST, Item, clean, command, moment
from loadsheet.cloud.leftovers.registry import OneUnseen, Place, kind
from loadsheet.text import many

_SIZES: Final = "AWS/S3"  # CloudWatch's name of S3; BucketSizeBytes comes once a day, for each storage class
_DAYS: Final = 3  # looked back for the last size
#: removes all that a bucket with versions holds. `Days` and `ExpiredObjectDeleteMarker` do not go into one rule:
#: docs.aws.amazon.com/AmazonS3/latest/API/API_LifecycleExpiration.html
_ALL_GO: Final = {
    "Rules": [
        {
            "ID": "everything-goes",
            "Filter": {"Prefix": ""},
            "Status": "Enabled",
            "Expiration": {"Days": 1},
            "NoncurrentVersionExpiration": {"NoncurrentDays": 1},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
        },
        {
            "ID": "delete-markers-go",
            "Filter": {"Prefix": ""},
            "Status": "Enabled",
            "Expiration": {"ExpiredObjectDeleteMarker": True},
        },
    ]
}


def _buckets(place: Place) -> Iterator[tuple[str, str, Any] | OneUnseen]:
    """Name, region and row of every bucket in the regions that are looked at; one without a region is unseen."""
    for row in place.rows("s3", "list_buckets", "Buckets"):
        name = str(row.get("Name", ""))
        try:
            region = row.get("BucketRegion") or (
                place.call("s3", "get_bucket_location", Bucket=name).get("LocationConstraint") or GLOBAL
            )
        except CallFailed as error:  # where it is nobody knows: it is filed under no region
            told = CallFailed(
                str(error).replace(f" in {place.region}", ""), error.next, kind=error.kind, code=error.code,
                permission=error.permission,
            )  # fmt: skip
            yield place.unseen(told, name, ACCOUNT)
            continue
        region = {"EU": "eu-west-1"}.get(str(region), str(region))  # the name of 2007
        if place.wanted(region):
            yield name, region, row


@kind(
    "bucket",
    calls=[
        "s3:ListBuckets", "s3:GetBucketLocation", "s3:GetBucketVersioning",
        "s3:GetBucketLifecycleConfiguration", "s3:ListObjectVersions",
        "cloudwatch:ListMetrics", "cloudwatch:GetMetricStatistics",
    ],
    why="what is stored is billed; with versions and no lifecycle, what was deleted is stored, too",
    everywhere=True,
)  # fmt: skip
def buckets(place: Place) -> Iterator[Item | CallFailed]:
    """Buckets that are not empty."""
    for found in _buckets(place):
        if isinstance(found, CallFailed):
            yield found
        else:  # what fails for one is said with its name, and the others are looked at all the same
            yield from _bucket(place, *found)


def _bucket(place: Place, name: str, region: str, row: dict[str, Any]) -> Iterator[Item | OneUnseen]:
    """The bucket, if anything is in it, with what could be learnt of it."""
    size: float | None = None
    classes: list[str] = []
    unsized = "its size is not known yet: CloudWatch tells it once a day"
    try:
        size, classes = _size(place, name, region)
    except CallFailed as error:
        unsized = "its size is not known"
        yield place.unseen(error, name, region)
    if not size:  # CloudWatch has none: empty, or filled since it last looked
        try:
            one = place.call(
                "s3", "list_object_versions", region=region, proof="IsTruncated", Bucket=name, MaxKeys=1
            )
        except CallFailed as error:
            yield place.unseen(error, name, region)
            return
        if not one.get("Versions") and not one.get("DeleteMarkers"):
            return
        size = None
    try:
        state, why, remove, reason = _versions(place, name, region)
    except CallFailed as error:
        yield place.unseen(error, name, region)
        state, why, remove = "versions not known", "billed by what is in it", ()
        reason = "whether it keeps versions, and which rules it has, is not known"
    if size is None:
        why += f"; {unsized}"
    yield place.item(
        name, state, why, region=region, created=moment(row.get("CreationDate")), size=size,
        type=", ".join(classes), billed=("bucket",), remove=remove, **({"no_command": reason} if reason else {}),
    )  # fmt: skip


def _size(place: Place, name: str, region: str) -> tuple[float | None, list[str]]:
    """Bytes of a bucket over all storage classes, as CloudWatch knew them last; None if it knows none."""
    now = datetime.datetime.now(datetime.UTC)
    total, classes = None, []
    wanted = [{"Name": "BucketName", "Value": name}]
    for metric in place.rows(
        "cloudwatch", "list_metrics", "Metrics", region=region,
        Namespace=_SIZES, MetricName="BucketSizeBytes", Dimensions=wanted,
    ):  # fmt: skip
        points = place.call(
            "cloudwatch", "get_metric_statistics", region=region, proof="Datapoints", Namespace=_SIZES,
            MetricName="BucketSizeBytes", Dimensions=metric.get("Dimensions") or wanted,
            StartTime=now - datetime.timedelta(days=_DAYS), EndTime=now, Period=86400, Statistics=["Average"],
        ).get("Datapoints") or []  # fmt: skip
        if points:
            newest = max(points, key=lambda point: moment(point.get("Timestamp")) or 0.0)
            total = (total or 0.0) + float(newest.get("Average") or 0.0)
            classes += [
                clean(d.get("Value", ""))
                for d in metric.get("Dimensions") or ()
                if d.get("Name") == "StorageType"
            ]
    return total, sorted(set(classes))


def _versions(place: Place, name: str, region: str) -> tuple[str, str, tuple[str, ...], str]:
    """State and reason: are old versions kept, does anything remove them; the commands, or why there are none."""
    kept = place.call("s3", "get_bucket_versioning", region=region, Bucket=name)
    if not kept.get("Status"):
        return "no versions", "billed by what is in it", _emptied(name, region), ""
    rules: list[dict[str, Any]] = []
    try:
        rules = place.call(
            "s3", "get_bucket_lifecycle_configuration", region=region, proof="Rules", Bucket=name
        )["Rules"]
    except CallFailed as error:
        if error.code != "NoSuchLifecycleConfiguration":
            raise
    rules = [r for r in rules if r.get("Status") == "Enabled" and r.get("NoncurrentVersionExpiration")]
    days = [r["NoncurrentVersionExpiration"].get("NoncurrentDays") for r in rules if _for_all(r)]
    if days:
        after = f" after {many(min(days), 'day')}" if all(isinstance(day, int) for day in days) else ""
        state, why = "versions expire", f"billed by what is in it; old versions go by a rule{after}"
    elif rules:
        state = "versions expire in part"
        why = "it keeps versions, and a rule removes old ones for a part of it: "
        why += "the rest of what was deleted is billed on"
    else:
        state = "versions stay"
        why = "it keeps versions, and no rule removes old ones: what was deleted is billed on"
    if kept.get("MFADelete") == "Enabled":  # …/lifecycle-and-other-bucket-config.html: no lifecycle with it
        return (
            state,
            why,
            (),
            "its versions go one by one, each with the code of a second factor (MFA delete)",
        )
    why += (
        "; `aws s3 rb --force` would only hide them: the first command gives it rules, in place of its own, "
        "by which S3 removes all of it within days; the second removes the bucket once it is empty"
    )
    rule = json.dumps(_ALL_GO, separators=(",", ":"))
    given = command(
        "s3api", "put-bucket-lifecycle-configuration", region, bucket=name, lifecycle_configuration=rule
    )
    return state, why, given + command("s3api", "delete-bucket", region, bucket=name), ""


def _for_all(rule: dict[str, Any]) -> bool:
    """Whether a rule takes every old version: of all keys, sizes and tags, with none that are always kept.

    >>> _for_all({"Filter": {"Prefix": ""}}), _for_all({"Filter": {"Prefix": "logs/"}}), _for_all({"Prefix": "a"})
    (True, False, False)
    """
    narrowed = any(value not in (None, "") for value in (rule.get("Filter") or {}).values())
    ends = rule.get("NoncurrentVersionExpiration") or {}
    return not narrowed and not rule.get("Prefix") and not ends.get("NewerNoncurrentVersions")


def _emptied(name: str, region: str) -> tuple[str, ...]:
    """The command that empties and removes a bucket without versions."""
    safe = command("s3api", "delete-bucket", region, bucket=name)
    return (shlex.join(["aws", "s3", "rb", "--region", region, "--force", f"s3://{name}"]),) if safe else ()


@kind(
    "multipart-upload",
    calls=["s3:ListBuckets", "s3:GetBucketLocation", "s3:ListMultipartUploads"],
    why="the parts of an upload that was never finished are billed, and no list of objects shows them",
    everywhere=True,
)
def multipart_uploads(place: Place) -> Iterator[Item | CallFailed]:
    """Uploads that were begun and neither finished nor given up; the size of their parts is not asked."""
    for found in _buckets(place):
        if isinstance(found, CallFailed):
            yield found
            continue
        name, region, _ = found
        try:
            yield from _uploads(place, name, region)
        except CallFailed as error:
            yield place.unseen(error, name, region)


def _uploads(place: Place, name: str, region: str) -> Iterator[Item]:
    """The unfinished uploads of one bucket, 20 pages of 1,000 at most."""
    for row in place.rows(
        "s3", "list_multipart_uploads", "Uploads", region=region, proof="IsTruncated", Bucket=name, most=20
    ):
        key, upload = str(row.get("Key", "")), str(row.get("UploadId", ""))
        # one key may have several: each has its own id, which a long key must not push out of the name
        shown = f"{name}/{key}"[: max(0, LONGEST - len(upload) - 1)]
        yield place.item(
            f"{shown} {upload}", "not finished", "its parts are billed and stand in no list of objects",
            region=region, created=moment(row.get("Initiated")), billed=(),
            remove=command("s3api", "abort-multipart-upload", region,
                           bucket=name, key=key, upload_id=upload),
        )  # fmt: skip
