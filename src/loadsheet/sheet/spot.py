"""The hours and the cost of a planned run on machines that are taken away, by the formulas of `money`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loadsheet.errors import BadInput, shorten
from loadsheet.ledger import Estimate, Item
from loadsheet.money.interruptions import REPLAY_MARGIN, RESTART, Job, expected, must_finish
from loadsheet.money.interval import best_every
from loadsheet.money.price import Price
from loadsheet.sheet.compute import Compute
from loadsheet.units import format_duration, format_money

_FORMULA = "M·(e^(R/M) − 1) + K·M·e^(R/M)·(e^((τ+δ)/M) − 1)"
_SOURCE = "Daly 2006, eq. 13, with a first start; K equal segments"
_REASON = "MFU; at the high end interruptions as replays of real traces had them"


@dataclass(frozen=True, slots=True)
class Interruptions:
    """What is known of them: one every `mtbf` seconds on average, for all that the run rents together.

    A save stops the training for `save` seconds; a restart takes `restart` until the first step, as does
    the first start. Raises BadInput.
    """

    mtbf: float
    save: float
    restart: float | None = None  # None: ten minutes, and marked as defaulted

    def __post_init__(self) -> None:
        for name, value, least in (("mtbf", self.mtbf, "above"), ("save", self.save, "from")):
            if not (0 < value < 1e12 or (value == 0 and least == "from")):
                raise BadInput(f"{name}: got {shorten(value)} s, expected a duration {least} 0")

    @property
    def restarting(self) -> float:
        """Seconds of a restart."""
        return RESTART if self.restart is None else self.restart


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The run with its interruptions: hours of the machines together, and what they cost."""

    given: Interruptions
    every: float  # seconds of work between saves
    count: float  # interruptions
    hours: Estimate
    gpu_hours: Item
    cost: Item

    def to_json(self) -> dict[str, Any]:
        """Seconds and hours, and the cost in the currency of the price."""
        return {
            "mtbf_seconds": self.given.mtbf,
            "save_seconds": self.given.save,
            "restart_seconds": self.given.restarting,
            "defaulted": [] if self.given.restart is not None else ["restart"],
            "every_seconds": self.every,
            "interruptions": self.count,
            "hours": self.hours.to_json(),
            "gpu_hours": self.gpu_hours.estimate.to_json(),
            "cost": self.cost.estimate.to_json(),
        }

    def text(self, currency: str) -> str:
        """The line of the page."""
        given, cost, hours = self.given, self.cost.estimate, self.hours
        return (
            f"Spot   interrupted every {format_duration(given.mtbf)}, saved in {format_duration(given.save)} every "
            f"{format_duration(self.every)}, restarted in {format_duration(given.restarting)}"
            f"{'*' if given.restart is None else ''}: {format_duration(hours.mid * 3600)} of machines "
            f"({format_duration(hours.low * 3600)} – {format_duration(hours.high * 3600)}), "
            f"{format_money(cost.mid, currency)} ({format_money(cost.low)} – {format_money(cost.high)}), waits for "
            "capacity not counted; `loadsheet odds` has the distribution"
        )


def interrupted(compute: Compute, price: Price, gpus: int, given: Interruptions) -> Interrupted:
    """The hours of a run stretched by saves, restarts and repeated work. Raises BadInput.

    The high end is what replays of real traces cost at worst beyond the formula.
    """
    hours = compute.gpu_hours
    if hours is None:
        raise BadInput("mtbf: got one without the tokens of a whole run, expected both", "give --tokens")

    def job(gpu_hours: float) -> Job:
        work = gpu_hours * 3600 / gpus
        every = best_every(work, given.save, given.mtbf, 0.0, 0.0)
        return Job(work, given.save, every, given.mtbf, given.restarting, given.restarting)

    must_finish(job(hours.high))
    middle = job(hours.mid)
    of = expected(middle)
    low, high = (expected(job(end)).total.mean / 3600 for end in (hours.low, hours.high))
    span = Estimate(low, of.total.mean / 3600, max(high * REPLAY_MARGIN, of.total.mean / 3600), _REASON)
    operands = {
        "M": given.mtbf, "R": given.restarting, "K": middle.segments, "τ": middle.interval, "δ": given.save,
        "gpus": gpus,
    }  # fmt: skip
    gpu_hours = Item("spot GPU hours", span * gpus, f"gpus/3,600·({_FORMULA})", operands, _SOURCE, "modelled")
    cost = Item(
        "training, with interruptions",
        span * (gpus * price.amount),
        "hours·price",
        {"hours": gpu_hours.estimate.mid, "price": price.amount},
        f"price {price.source}",
        "modelled",
    )
    return Interrupted(given, middle.interval, of.interruptions, span, gpu_hours, cost)
