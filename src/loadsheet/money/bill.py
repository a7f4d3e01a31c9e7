"""What the hours of a job cost, with what is charged beside the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from loadsheet.units import GB

HOUR: Final = 3600.0
#: hours of a month in prices per GB and month, as the clouds count them (365·24/12)
MONTH_HOURS: Final = 730.0


@dataclass(frozen=True, slots=True)
class Bill:
    """The user's prices, all in one currency; storage in bytes, a GB is 10⁹ bytes."""

    price: float  # of one machine, per hour
    machines: int = 1
    hourly: float = (
        0.0  # beside the machines, per hour on the wall: volumes, addresses, a machine that watches
    )
    storage_bytes: float = 0.0
    storage_price: float = 0.0  # per GB and month of 730 hours
    egress_bytes: float = 0.0
    egress_price: float = 0.0  # per GB, once
    currency: str = ""

    def parts(self, charged: Any, waiting: Any, wall: Any) -> dict[str, Any]:
        """What each part costs, by name, for seconds of machines, of waiting for one of them, and on the wall.

        Nothing is charged for a machine that is not there; while one of several is missing, the others
        are there and charged. Storage and the rest cost by the hour on the wall, waiting included.

        >>> Bill(2.0, machines=4).parts(3600.0, 1800.0, 5400.0)["machines kept while one is missing"]
        3.0
        """
        return {
            "machines": self.machines * self.price * charged / HOUR,
            "machines kept while one is missing": (self.machines - 1) * self.price * waiting / HOUR,
            "storage": self.storage_bytes / GB * self.storage_price * wall / (HOUR * MONTH_HOURS),
            "other hours": self.hourly * wall / HOUR,
            "egress": self.egress_bytes / GB * self.egress_price,
        }

    def total(self, charged: Any, waiting: Any, wall: Any) -> Any:
        """All parts together; numbers or arrays.

        100 GB at 0.08 for a month:

        >>> Bill(0.0, storage_bytes=100e9, storage_price=0.08).total(0.0, 0.0, 730 * 3600.0)
        8.0
        """
        return sum(self.parts(charged, waiting, wall).values())

    @property
    def by_wall(self) -> bool:
        """Whether anything is charged while one waits."""
        return self.hourly > 0 or self.storage_bytes * self.storage_price > 0 or self.machines > 1
