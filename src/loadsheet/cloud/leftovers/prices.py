"""What an item costs at prices that the user gives; without one there is no number."""

from __future__ import annotations

import csv
import functools
import io
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Final

from loadsheet.cloud.leftovers.item import Item
from loadsheet.cloud.leftovers.registry import kinds
from loadsheet.errors import BadFile, BadInput, nearest, shorten
from loadsheet.money.price import parse_price
from loadsheet.safejson import file_label, open_regular
from loadsheet.units import GIB

MONTH: Final = 730.0  # hours; as AWS's own price pages count a month
_LIMIT: Final = 1_000_000  # bytes of a price file
#: unit -> hours, and whether it is for each GiB. AWS writes GB and counts 2^30 bytes
#: (aws.amazon.com/s3/faqs, "How will I be charged")
_UNITS: Final = {
    "h": (1.0, False), "hour": (1.0, False), "day": (24.0, False), "month": (MONTH, False),
    "gb-month": (MONTH, True), "gib-month": (MONTH, True), "gb-h": (1.0, True), "gib-h": (1.0, True),
}  # fmt: skip
#: types of volumes, file systems and snapshots under which a price may be given
_TYPES: Final = (
    "gp2", "gp3", "io1", "io2", "st1", "sc1", "standard", "snapshot-archive",
    "fsx-lustre", "fsx-ontap", "fsx-openzfs", "fsx-windows",
)  # fmt: skip
#: a type of EC2, SageMaker (`ml.`) or RDS (`db.`), by its size
_MACHINE: Final = re.compile(
    r"(?:(?:ml|db)\.)?[a-z][a-z0-9-]*\."
    r"(?:nano|micro|small|medium|large|xlarge|[0-9]+xlarge|metal(?:-[0-9]+xl)?)(?:\.tpc[0-9](?:\.mem[0-9]+x)?)?"
)
#: kinds that cost through something else, which is a kind of its own
NOT_BILLED: Final = frozenset(
    {"spot-request", "fleet", "spot-fleet", "auto-scaling-group", "image", "multipart-upload"}
)
_LIST: Final = "`loadsheet leftovers --list` names the kinds"
_EXAMPLE: Final = "`volume=0.08/GB-month`, `p3.16xlarge=24.48 USD/h`"


@dataclass(frozen=True)
class Rate:
    """A price: `amount` an hour, for one of it or (`by_size`) for each GiB."""

    amount: float
    currency: str
    by_size: bool

    def per_hour(self, item: Item) -> float | None:
        """What an item costs in an hour; None if the price is for a size that is not known."""
        if self.by_size:
            return None if item.size is None else self.amount * item.size / GIB
        return self.amount * item.count


def parse(text: str, what: str = "--price") -> tuple[str, Rate]:
    """A kind, or a type of instance or volume, and its price; BadInput for what is not clear.

    >>> parse("nat-gateway=0.05 USD/h")
    ('nat-gateway', Rate(amount=0.05, currency='USD', by_size=False))
    """
    name, equals, rest = text.partition("=")
    amount, slash, unit = rest.rpartition("/")
    if not equals or not slash or not name.strip() or unit.strip().lower() not in _UNITS:
        units = ", ".join(f"/{u}" for u in ("h", "day", "month", "GB-month"))
        raise BadInput(f"{what}: got {shorten(text)}, expected {_EXAMPLE}", f"a price is for one of {units}")
    hours, by_size = _UNITS[unit.strip().lower()]
    price = parse_price(amount, what, expected=_EXAMPLE)
    return _known(name.strip(), what), Rate(price.amount / hours, price.currency, by_size)


def _known(name: str, what: str) -> str:
    """The name of a kind that is billed, or of a type; BadInput with the nearest there are for any other."""
    if name in NOT_BILLED:
        text = "expected what it starts or holds, such as `p3.16xlarge`, `snapshot` or `bucket`"
        raise BadInput(f"{what}: got `{name}`, which is not billed itself, {text}", _LIST)
    if name in kinds() or name in _TYPES or _MACHINE.fullmatch(name):
        return name
    close = ", ".join(f"`{k}`" for k in nearest(name, [*(kinds().keys() - NOT_BILLED), *_TYPES]))
    expected = "expected a kind, or a type such as `gp3` or `p3.16xlarge`"
    raise BadInput(f"{what}: got {shorten(name)}, {expected}", f"did you mean {close}?" if close else _LIST)


@functools.cache
def _families() -> frozenset[str]:
    text = (
        resources.files("loadsheet.cloud.aws").joinpath("instance_families.json").read_text(encoding="utf-8")
    )
    return frozenset(json.loads(text)["families"])


def doubtful(names: Iterable[str]) -> list[str]:
    """Remarks on types of machines whose family is in no table here: AWS may have made it since, or it is mistyped.

    Those of RDS are not doubted: AWS lists them nowhere.

    >>> doubtful(["p3.16xlarge", "volume"]), len(doubtful(["p33.16xlarge"]))
    ([], 1)
    """
    found = []
    for name in names:
        family = name.removeprefix("ml.").partition(".")[0]
        if _MACHINE.fullmatch(name) and not name.startswith("db.") and family not in _families():
            near = ", ".join(nearest(family, _families()))
            hint = f", near {near}" if near else ""
            found.append(
                f"price: the family of {name} is in no table here{hint}: a price of what is not is never used"
            )
    return found


def read(path: str | os.PathLike[str]) -> dict[str, Rate]:
    """The prices of a CSV file with the columns `what`, `price` and `per`, and perhaps `currency`; BadFile."""
    label = file_label(path, "price file")
    with open_regular(path, "price file") as (file, _):
        data = file.read(_LIMIT + 1)
    if len(data) > _LIMIT:
        raise BadFile(f"{label}: got more than {_LIMIT:,} bytes, expected at most that")
    try:
        rows = csv.DictReader(io.StringIO(data.decode("utf-8-sig")), strict=True)
        names = {(name or "").strip().lower() for name in rows.fieldnames or ()}
        if names & {"gpu", "gpu_name"} and "what" not in names:
            text = "got prices of GPUs, which `loadsheet plan --price-file` reads, expected columns what, price, per"
            raise BadFile(f"{label}: {text}", "docs/leftovers.md has an example")
        if not {"what", "price", "per"} <= names:
            raise BadFile(f"{label}: got columns {shorten(sorted(names))}, expected what, price, per")
        found: dict[str, Rate] = {}
        for number, row in enumerate(rows, 2):
            cells = {str(k).strip().lower(): str(v).strip() for k, v in row.items() if isinstance(v, str)}
            what, price, unit, money = (cells.get(name, "") for name in ("what", "price", "per", "currency"))
            key, rate = parse(f"{what}={price} {money}/{unit}", f"{label}, row {number}")
            if key in found:
                raise BadFile(f"{label}, row {number}: got {shorten(key)} twice, expected it once")
            found[key] = rate
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadFile(f"{label}: got {shorten(str(error))}, expected CSV in UTF-8") from None
    return found


def collect(path: str | None, texts: Iterable[str]) -> dict[str, Rate]:
    """The prices of the file and of the command line, which wins; BadInput for two currencies."""
    found = {} if path is None else read(path)
    found.update(parse(text) for text in texts)
    currencies = sorted({rate.currency for rate in found.values()})
    if len(currencies) > 1:
        raise BadInput(f"--price: got currencies {shorten(currencies)}, expected one, so that there is a sum")
    return found


def per_hour(item: Item, rates: Mapping[str, Rate]) -> float | None:
    """What an item costs in an hour at the user's prices; None where no price is given for it."""
    rate = next((rates[name] for name in item.billed if name in rates), None)
    return None if rate is None else rate.per_hour(item)


def currency(rates: Mapping[str, Rate]) -> str:
    """The one currency of the prices."""
    return next((rate.currency for rate in rates.values()), "")
