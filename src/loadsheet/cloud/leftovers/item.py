"""One thing that still costs, and what came out of looking: found, looked at, could not be looked at."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from loadsheet.errors import one_line

#: characters of a text; the longest name that a service gives out is an S3 key's 1,024
LONGEST: Final = 1024
_TAGS: Final = 50  # of one resource, docs.aws.amazon.com/tag-editor: "Maximum number of tags"
#: beginnings of a value that the command line of AWS takes for a file or an address to read
_LOADED: Final = ("file:", "fileb:", "http:", "https:")
_DAY: Final = 86400.0
ACCOUNT: Final = "all"  # in place of a region, for what is asked once for the whole account


@dataclass(frozen=True, slots=True)
class Item:
    """Something that costs, or will: all texts on one line, times as Unix seconds, sizes in bytes.

    `tags` None: the service does not tell them with the list. `billed`: the names under which a price may be
    given, the closest first; empty if what costs is another item. `count`: how many of it are billed.
    `remove`: commands that a person may run, in their order; `no_command`: why there is none.
    `extra`: what is billed beside that and has no price here. `rank`: of its kind, what is removed first has the least.
    """

    kind: str
    id: str
    region: str
    state: str
    why: str
    created: float | None = None
    tags: Mapping[str, str] | None = None
    size: float | None = None
    type: str = ""
    billed: tuple[str, ...] = ()
    count: float = 1.0
    remove: tuple[str, ...] = ()
    no_command: str = ""
    extra: str = ""
    gpu: bool = False
    loud: bool = False
    rank: int = 0

    def age(self, now: float) -> float | None:
        """Days since it was made; None if nothing says when."""
        return None if self.created is None else max(0.0, (now - self.created) / _DAY)

    @property
    def name(self) -> str:
        """What the tag `Name` says."""
        return (self.tags or {}).get("Name", "")


@dataclass(frozen=True, slots=True)
class Failure:
    """A kind that could not be looked at in a region, or not to its end; `id`, if it is one thing of the kind.

    `next`: what to do about it.
    """

    region: str
    kind: str
    error: str
    reason: str = "other"
    permission: str = ""
    id: str = ""
    next: str = ""


@dataclass
class Found:
    """What came out: `items` of what was `looked` at, as (region, kind); `failed`, what was not.

    `ignored`: where a disabled region or a kind that was not asked for is said not to have been looked at.
    `only`: the regions that were named; all were looked at if none is.
    """

    items: list[Item] = field(default_factory=list)
    looked: list[tuple[str, str]] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    ignored: list[dict[str, Any]] = field(default_factory=list)
    account: str = ""
    endpoint: str = ""
    home: str = ""
    time: float = 0.0
    only: tuple[str, ...] = ()

    def was_looked_at(self, region: str, kind: str) -> bool:
        """Whether a kind was looked at in a region to the end: what was not found there is not there."""
        return is_seen(region, kind, self.looked, self.only)


def is_seen(
    region: str, kind: str, looked: Collection[tuple[str, str]], only: Collection[str] | None
) -> bool:
    """Whether (region, kind) is in what was looked at, by itself or with the whole account.

    What is asked of the whole account is listed for the named regions `only`; None if nobody knows which these were.

    >>> is_seen("eu-west-1", "bucket", [("all", "bucket")], ["us-east-1"])
    False
    """
    whole = (ACCOUNT, kind) in looked and only is not None and (not only or region in only)
    return (region, kind) in looked or whole


def clean(value: object) -> str:
    """A text of the other side on one line, without control characters, at most 1,024 long."""
    return one_line(str(value))[:LONGEST]


def moment(value: object) -> float | None:
    """Unix seconds of a time as botocore gives it: a date, milliseconds, or text of ISO 8601.

    >>> moment("2026-11-29T00:00:00.000Z"), moment(1764374400000), moment(None)
    (1795910400.0, 1764374400.0, None)
    """
    try:
        if isinstance(value, str):
            value = datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
        if isinstance(value, datetime.datetime):
            aware = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
            return aware.timestamp()
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e14:
            return value / 1000 if value > 1e11 else float(value)
    except (ValueError, OverflowError, OSError):
        pass
    return None


def tags_of(rows: object) -> dict[str, str]:
    """Tags as the services list them, `[{"Key": …, "Value": …}]`, or as a mapping."""
    if isinstance(rows, Mapping):
        pairs = list(rows.items())
    elif isinstance(rows, list):
        pairs = [
            (row.get("Key", row.get("key", "")), row.get("Value", row.get("value", "")))
            for row in rows
            if isinstance(row, dict)
        ]
    else:
        pairs = []
    return {clean(key): clean(value) for key, value in pairs[:_TAGS]}


def command(service: str, operation: str, region: str, *flags: str, **values: object) -> tuple[str, ...]:
    """A command of the AWS command line, quoted for a shell; empty if a value is none that AWS gives out.

    Ids are text of the other side. One that cannot be printed, or that the command line would take for a
    file to read, gets no command at all.

    >>> command("ec2", "delete-volume", "eu-west-1", volume_id="vol-1")
    ('aws ec2 delete-volume --region eu-west-1 --volume-id vol-1',)
    >>> command("logs", "delete-log-group", "eu-west-1", log_group_name="-a; rm -rf ~")
    ("aws logs delete-log-group --region eu-west-1 '--log-group-name=-a; rm -rf ~'",)
    >>> command("ec2", "delete-volume", "eu-west-1", volume_id="file:///etc/passwd")
    ()
    """
    words = ["aws", service, operation, "--region", region]
    for name, value in values.items():
        text = str(value)
        if not text or text != clean(text) or text.strip().lower().startswith(_LOADED):
            return ()
        option = "--" + name.rstrip("_").replace("_", "-")
        words += [f"{option}={text}"] if text.startswith("-") else [option, text]
    return (shlex.join([*words, *flags]),)
