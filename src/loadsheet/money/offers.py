"""Offers: what a run costs at each row of a price list, the started billing units and whole instances paid.

An offer is one row, rented as often as the GPUs need it. Prices age: `Freshness` says which are too old or
have no date, so that none is used in silence.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from loadsheet.ledger import Estimate
from loadsheet.money.price import PriceRow, billed_seconds
from loadsheet.units import ceil_div

DAY: Final = 86_400.0  # seconds
MAX_AGE: Final = 30 * DAY  # prices of GPUs change by the week; a month is the most that is taken as it is


@dataclass(frozen=True, slots=True)
class Freshness:
    """What is said of a price's age: nothing if it is young, else why it may not hold any more."""

    today: datetime.date
    max_age: float = MAX_AGE  # seconds
    defaulted: bool = True  # nobody gave max_age

    def days(self, row: PriceRow) -> int | None:
        """Age of a price in days, of a month's from its first day; negative ahead of today; None if undated."""
        if not row.date:
            return None
        try:
            seen = datetime.date.fromisoformat(row.date if len(row.date) == 10 else f"{row.date}-01")
        except ValueError:  # the 31st of a month of 30 days, the year 0000
            return None
        return (self.today - seen).days

    def flag(self, row: PriceRow) -> str:
        """Why the price may not hold; "" if it is dated and young enough.

        >>> today = Freshness(datetime.date(2026, 11, 29))
        >>> today.flag(PriceRow("t4", 1.0, date="2026-11-01")), today.flag(PriceRow("t4", 1.0, date="2026-10"))
        ('', '59 days old')
        >>> today.flag(PriceRow("t4", 1.0))
        'undated'
        """
        days = self.days(row)
        if days is None:
            return "undated"
        if days < 0:
            return f"dated {row.date}, which is to come"
        return f"{days} days old" if days * DAY > self.max_age else ""

    @property
    def limit(self) -> str:
        """The limit in words, with a star if nobody gave it."""
        return f"{self.max_age / DAY:g} days" + ("*" if self.defaulted else "")

    def to_json(self) -> dict[str, Any]:
        """Today, the limit in seconds and whether it is the default."""
        return {"today": self.today.isoformat(), "max_age_seconds": self.max_age, "defaulted": self.defaulted}


@dataclass(frozen=True, slots=True)
class Offer:
    """One row of a price list, rented for a run."""

    row: PriceRow
    verdict: str
    gpus: int  # that work; the rest of the instances stands idle
    instances: int
    hourly: float  # all of its instances together, in the row's currency
    seconds: Estimate | None  # of the run; None if nobody said how long
    cost: Estimate | None  # of the run, started billing units paid whole
    flag: str  # why the price may not hold any more

    def to_json(self) -> dict[str, Any]:
        """Every field, money in the row's currency, times in seconds."""
        row = self.row
        return {
            "gpu": row.gpu,
            "verdict": self.verdict,
            "provider": row.provider,
            "location": row.region,
            "instance": row.instance,
            "gpus": self.gpus,
            "gpus_per_instance": row.gpus,
            "instances": self.instances,
            "spot": row.spot,
            "currency": row.currency,
            "per_hour": self.hourly,
            "seconds": None if self.seconds is None else self.seconds.to_json(),
            "billing_unit_seconds": row.billing_seconds,
            "cost": None if self.cost is None else self.cost.to_json(),
            "date": row.date or None,
            "flag": self.flag or None,
            "source": row.source,
        }


def offer(
    row: PriceRow, gpus: int, seconds: Estimate | None, verdict: str = "fits", fresh: Freshness | None = None
) -> Offer:
    """What `gpus` GPUs cost at one row; instances are rented whole, so some of their GPUs may stand idle.

    >>> eight = PriceRow("t4", 8.0, 8, "instance", billing_seconds=3600.0)
    >>> offer(eight, 9, Estimate(3600.0, 5400.0, 9000.0)).cost
    Estimate(low=16.0, mid=32.0, high=48.0, reason='')
    """
    instances = int(ceil_div(gpus, row.gpus))
    hourly = instances * row.instance_hour
    cost = None
    if seconds is not None:
        low, mid, high = (
            billed_seconds(s, row.billing_seconds) / 3600 * hourly
            for s in (seconds.low, seconds.mid, seconds.high)
        )
        cost = Estimate(low, mid, high, seconds.reason)
    return Offer(
        row, verdict, gpus, instances, hourly, seconds, cost, "" if fresh is None else fresh.flag(row)
    )


def cheapest_first(offers: Iterable[Offer]) -> list[Offer]:
    """By the cost of the run, or per hour where there is none; at one price what fits comes before what is tight."""

    def key(each: Offer) -> tuple[float, bool, float]:
        amount = each.hourly if each.cost is None else float(each.cost.mid)
        return amount, each.verdict != "fits", each.hourly

    return sorted(offers, key=key)
