"""The money part of a sheet: hours times the user's own price."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loadsheet.ledger import Estimate, Item
from loadsheet.money.price import Price, cost_per_million_tokens, training_cost
from loadsheet.sheet.compute import Compute


@dataclass(frozen=True, slots=True)
class Money:
    """What the run costs at the user's price, or per million tokens if no number of tokens is given."""

    price: Price
    gpu_hours: Estimate | None
    cost: Item | None
    per_million_tokens: Item

    def to_json(self) -> dict[str, Any]:
        """Price, hours, cost and cost per million tokens."""
        return {
            "price_per_gpu_hour": self.price.amount,
            "currency": self.price.currency,
            "source": self.price.source,
            "gpu_hours": None if self.gpu_hours is None else self.gpu_hours.to_json(),
            "cost": None if self.cost is None else self.cost.estimate.to_json(),
            "per_million_tokens": self.per_million_tokens.estimate.to_json(),
        }


def money(compute: Compute, price: Price, gpus: int) -> Money:
    """Multiply the hours by the price."""
    cost = None if compute.gpu_hours is None else training_cost(compute.gpu_hours, price)
    mid = compute.step_seconds.mid
    rate = compute.tokens_per_second
    spread = Estimate(
        rate * mid / compute.step_seconds.high,
        rate,
        rate * mid / compute.step_seconds.low,
        compute.step_seconds.reason,
    )
    each = cost_per_million_tokens(spread, gpus, price)
    return Money(price, compute.gpu_hours, cost, each)
