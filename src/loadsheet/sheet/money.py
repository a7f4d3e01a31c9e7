"""The money part of a sheet: hours times the user's own price."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from loadsheet.ledger import Estimate, Item
from loadsheet.money.price import Price, cost_per_million_tokens, training_cost
from loadsheet.sheet.compute import Compute

if TYPE_CHECKING:
    from loadsheet.sheet.spot import Interrupted, Interruptions


@dataclass(frozen=True, slots=True)
class Money:
    """What the run costs at the user's price, or per million tokens if no number of tokens is given."""

    price: Price
    gpu_hours: Estimate | None
    cost: Item | None
    per_million_tokens: Item
    interruptions: Interrupted | None = None  # only where they were asked for
    not_counted: tuple[str, ...] = ()  # what comes on top

    def to_json(self) -> dict[str, Any]:
        """Price, hours, cost and cost per million tokens."""
        return {
            "price_per_gpu_hour": self.price.amount,
            "currency": self.price.currency,
            "source": self.price.source,
            "billing_unit_seconds": self.price.billing_seconds,
            "gpu_hours": None if self.gpu_hours is None else self.gpu_hours.to_json(),
            "cost": None if self.cost is None else self.cost.estimate.to_json(),
            "per_million_tokens": self.per_million_tokens.estimate.to_json(),
            "interruptions": None if self.interruptions is None else self.interruptions.to_json(),
            "not_counted": list(self.not_counted),
        }


def money(
    compute: Compute,
    price: Price,
    gpus: int,
    spot: Interruptions | None = None,
    tokens: int | None = None,
) -> Money:
    """Multiply the hours by the price; with interruptions, BadInput if the run would never finish.

    Where started units are billed and the run's `tokens` are known, a million of them costs its share of
    the bill.
    """
    cost = None if compute.gpu_hours is None else training_cost(compute.gpu_hours, price, gpus=gpus)
    if cost is not None and compute.decode is not None:
        cost = replace(cost, name="generated tokens")
    if cost is not None and tokens and price.billing_seconds:
        each = Item(
            "per million tokens",
            cost.estimate * (1e6 / tokens),
            "cost·10⁶/tokens",
            {"cost": cost.estimate.mid, "tokens": tokens},
            cost.source,
            "modelled",
        )
    else:
        mid, rate = compute.step_seconds.mid, compute.tokens_per_second
        spread = Estimate(
            rate * mid / compute.step_seconds.high,
            rate,
            rate * mid / compute.step_seconds.low,
            compute.step_seconds.reason,
        )
        each = cost_per_million_tokens(spread, gpus, price)
    taken = None
    if spot is not None:
        from loadsheet.sheet.spot import interrupted

        taken = interrupted(compute, price, gpus, spot)
    return Money(price, compute.gpu_hours, cost, each, taken, compute.not_counted)
