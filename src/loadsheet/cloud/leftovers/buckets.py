"""What S3 holds: buckets with their size as CloudWatch knows it, and uploads that were never finished."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Iterator
from typing import Any, Final

from loadsheet.cloud.aws.failures import CallFailed
from loadsheet.cloud.aws.session import GLOBAL
from loadsheet.cloud.leftovers.item import Item, clean, command, moment
from loadsheet.cloud.leftovers.registry import Place, kind

_SIZES: Final = "AWS/S3"  # CloudWatch's name of S3; BucketSizeBytes comes once a day, for each storage class
_DAYS: Final = 3  # looked back for the last size


def _buckets(place: Place) -> Iterator[tuple[str, str, Any] | CallFailed]:
    """Name, region and row of every bucket in the regions that are looked at; what failed for one in its place."""
    for row in place.rows("s3", "list_buckets", "Buckets", region=GLOBAL):
        name = str(row.get("Name", ""))
        try:
            region = row.get("BucketRegion") or (
                place.call("s3", "get_bucket_location", region=GLOBAL, Bucket=name).get("LocationConstraint")
                or GLOBAL
            )
        except CallFailed as error:
            yield error
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
            continue
        try:
            yield from _bucket(place, *found)
        except CallFailed as error:  # the others are looked at all the same
            yield error


def _bucket(place: Place, name: str, region: str, row: dict[str, Any]) -> Iterator[Item]:
    """The bucket, if anything is in it."""
    size, classes = _size(place, name, region)
    if not size:  # CloudWatch has none: empty, or filled since it last looked
        one = place.call("s3", "list_object_versions", region=region, Bucket=name, MaxKeys=1)
        if not one.get("Versions") and not one.get("DeleteMarkers"):
            return
        size = None
    state, why = _versions(place, name, region)
    if size is None:
        why += "; its size is not known yet: CloudWatch tells it once a day"
    yield place.item(
        name, state, why, region=region, created=moment(row.get("CreationDate")), size=size,
        type=", ".join(classes), billed=("bucket",), remove=_emptied(name, region),
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
            "cloudwatch", "get_metric_statistics", region=region, Namespace=_SIZES,
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


def _versions(place: Place, name: str, region: str) -> tuple[str, str]:
    """Whether old versions are kept, and whether anything ever removes them."""
    status = place.call("s3", "get_bucket_versioning", region=region, Bucket=name).get("Status")
    if not status:
        return "no versions", "billed by what is in it"
    rules: list[dict[str, Any]] = []
    try:
        rules = place.call("s3", "get_bucket_lifecycle_configuration", region=region, Bucket=name)["Rules"]
    except CallFailed as error:
        if error.code != "NoSuchLifecycleConfiguration":
            raise
    ends = any(r.get("Status") == "Enabled" and r.get("NoncurrentVersionExpiration") for r in rules)
    if ends:
        return "versions expire", "billed by what is in it; old versions go by a rule"
    return (
        "versions stay",
        "it keeps versions, and no rule removes old ones: what was deleted is billed on",
    )


def _emptied(name: str, region: str) -> tuple[str, ...]:
    """The command that empties and removes a bucket without versions; it ends with an error where there are some."""
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
            yield error


def _uploads(place: Place, name: str, region: str) -> Iterator[Item]:
    """The unfinished uploads of one bucket, 20 pages of 1,000 at most."""
    for row in place.rows("s3", "list_multipart_uploads", "Uploads", region=region, Bucket=name, most=20):
        key, upload = str(row.get("Key", "")), str(row.get("UploadId", ""))
        yield place.item(
            f"{name}/{key}", "not finished", "its parts are billed and stand in no list of objects",
            region=region, created=moment(row.get("Initiated")), billed=(),
            remove=command("s3api", "abort-multipart-upload", region,
                           bucket=name, key=key, upload_id=upload),
        )  # fmt: skip
