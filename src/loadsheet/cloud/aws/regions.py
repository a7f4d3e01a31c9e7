"""Regions by their names: one that there is not is refused, as it would be mute and every check of it `unknown`."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from importlib import resources

from loadsheet.cloud.aws.looked import account
from loadsheet.cloud.aws.partitions import AWS, OTHERS, partition_of
from loadsheet.cloud.aws.session import GLOBAL, Account
from loadsheet.cloud.checklist import CannotLook
from loadsheet.cloud.context import Context
from loadsheet.errors import BadInput, UnknownKey, nearest, shorten


@functools.cache
def known_regions() -> frozenset[str]:
    """The regions of AWS in our table; source and date stand in `regions.json`."""
    text = resources.files("loadsheet.cloud").joinpath("export", "regions.json").read_text(encoding="utf-8")
    return frozenset(json.loads(text)["clouds"]["aws"])


def parse_regions(names: Iterable[str]) -> tuple[str, ...]:
    """The regions of `--region`, each once; BadInput for what is no name of one at any provider."""
    found = tuple(dict.fromkeys(names))
    for name in found:
        plain = name.isascii() and name.replace("-", "").isalnum() and name == name.lower()
        if not plain or len(name) > 40:
            raise BadInput(f"--region: got {shorten(name)}, expected a name such as `eu-west-1`")
    return found


def require_regions(context: Context) -> list[str]:
    """Raise UnknownKey for a region that AWS does not have; those of which nobody could say it.

    What is in our table takes no question; of others AWS is asked, which may have made them since. With accounts
    of other providers a name may be theirs, and is not asked for.
    """
    named = context.inputs.regions
    strange = [name for name in named if not _known(name)]
    if set(context.inputs.accounts) != {"aws"} or (named and not strange):
        return []
    try:
        asked = account(context)
        if not named:
            strange = [asked.home] if asked.home and not _known(asked.home) else []
        if not strange:
            return []
        known = _told(asked, context.deadline)
    except CannotLook:
        return strange
    if asked.base != GLOBAL:  # AWS in China, or for a government: another list than that of our table
        known |= known_regions()
    for name in strange:
        if name not in known:
            raise UnknownKey(name, known, "region")
    return []


def _told(asked: Account, end: float) -> set[str]:
    """The regions that AWS names, until `end`; the checks after it are bounded by those who carry them out."""
    home = asked.home if asked.home in known_regions() and asked.base == GLOBAL else asked.base
    asked.until = end
    try:
        rows = asked.call("ec2", "describe_regions", region=home, AllRegions=True).get("Regions") or ()
    finally:
        asked.until = None
    return {str(row.get("RegionName", "")) for row in rows}


def _known(name: str) -> bool:
    """Whether a region stands in one of our tables."""
    return name in known_regions() or name in OTHERS


def doubtful(name: str) -> str:
    """A remark on a region in no table, of which AWS could not be asked."""
    near = nearest(name, known_regions()) if partition_of(name) == AWS else []
    hint = f", near {', '.join(near)}" if near else ""
    return (
        f"region: {shorten(name)} is in no table here{hint}, and AWS could not be asked whether it is there"
    )
