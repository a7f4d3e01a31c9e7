"""The partitions of AWS: China, the governments' and Europe's own have accounts, names and endpoints to themselves.

Regions and partitions: botocore 1.44.8, `endpoints.json` and `partitions.json`.
"""

from __future__ import annotations

from typing import Final

AWS: Final = "aws"
#: beginning of a region's name -> the partition, and the region of it in which services without regions are asked
_BY_NAME: Final = {
    "cn-": ("aws-cn", "cn-north-1"),
    "us-gov-": ("aws-us-gov", "us-gov-west-1"),
    "us-iso-": ("aws-iso", "us-iso-east-1"),
    "us-isob-": ("aws-iso-b", "us-isob-east-1"),
    "eu-isoe-": ("aws-iso-e", "eu-isoe-west-1"),
    "us-isof-": ("aws-iso-f", "us-isof-south-1"),
    "eusc-": ("aws-eusc", "eusc-de-east-1"),
}
_BASE: Final = "us-east-1"
#: the regions of the other partitions
OTHERS: Final = frozenset({
    "cn-north-1", "cn-northwest-1", "us-gov-east-1", "us-gov-west-1", "us-iso-east-1", "us-iso-west-1",
    "us-isob-east-1", "us-isob-west-1", "eu-isoe-west-1", "us-isof-east-1", "us-isof-south-1", "eusc-de-east-1",
})  # fmt: skip


def partition_of(region: str) -> str:
    """The partition of a region, by its name; the ordinary one for a name that says nothing.

    >>> partition_of("cn-northwest-1"), partition_of("us-gov-east-1"), partition_of("eu-west-1")
    ('aws-cn', 'aws-us-gov', 'aws')
    """
    return _found(region)[0]


def base_of(region: str) -> str:
    """The region in which services without regions are asked, in the partition of a region.

    >>> base_of("cn-northwest-1"), base_of("eu-west-1"), base_of("")
    ('cn-north-1', 'us-east-1', 'us-east-1')
    """
    return _found(region)[1]


def _found(region: str) -> tuple[str, str]:
    return next((row for start, row in _BY_NAME.items() if region.startswith(start)), (AWS, _BASE))
