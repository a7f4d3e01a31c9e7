"""The whole answer: what was found, narrowed, priced, compared; as JSON in base units."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loadsheet.cloud.leftovers.item import Found, Item
from loadsheet.cloud.leftovers.keep import Entry
from loadsheet.cloud.leftovers.narrow import Span
from loadsheet.cloud.leftovers.prices import Rate, currency, per_hour


@dataclass
class Answer:
    """What is shown: `items` of what was `found`, `rates` for them, and what was left out or beside it.

    `kept`: what is meant to stay, and `absent`, what a file names so and was not found; both count for nothing.
    """

    found: Found
    items: list[Item]
    rates: Mapping[str, Rate] = field(default_factory=dict)
    not_looked: list[dict[str, Any]] = field(default_factory=list)
    span: Span | None = None
    others: Counter[str] = field(default_factory=Counter)
    younger: int = 0
    compared: dict[str, Any] | None = None
    bill: dict[str, Any] | None = None
    kept: list[Item] = field(default_factory=list)
    absent: list[Entry] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """1 if anything is left that is not meant to stay, or could not be looked at."""
        return 1 if self.items or self.found.failed else 0

    @property
    def priced(self) -> tuple[float, int, int]:
        """What the items cost in an hour at the user's prices, for how many, and for how many no price is known."""
        costs = [cost for item in self.items if (cost := per_hour(item, self.rates)) is not None]
        billed = sum(1 for item in self.items if item.billed)
        return sum(costs), len(costs), billed - len(costs)


def stamp(seconds: float | None) -> str | None:
    """A time in UTC, ISO 8601.

    >>> stamp(1764374400.0)
    '2025-11-29T00:00:00Z'
    """
    if seconds is None:
        return None
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def item_json(item: Item, rates: Mapping[str, Rate], now: float) -> dict[str, Any]:
    """One item; `per_hour` and `since_created` at the user's prices, null without one."""
    cost, age = per_hour(item, rates), item.age(now)
    return {
        "kind": item.kind,
        "id": item.id,
        "region": item.region,
        "state": item.state,
        "created": stamp(item.created),
        "tags": None if item.tags is None else dict(item.tags),
        "why": item.why,
        "type": item.type,
        "age_days": None if age is None else round(age, 3),
        "size_bytes": item.size,
        "loud": item.loud,
        "per_hour": cost,
        "since_created": None if cost is None or age is None else cost * age * 24,
        "remove": list(item.remove),
        "no_command": item.no_command,
        "extra": item.extra,
    }


def to_json(answer: Answer) -> dict[str, Any]:
    """The keys of design §3, `items`, `looked`, `failed`, and more beside them."""
    found = answer.found
    total, priced, unpriced = answer.priced
    span = answer.span
    return {
        "schema": 1,
        "time": found.time,
        "account": found.account,
        "endpoint": found.endpoint,
        "items": [item_json(item, answer.rates, found.time) for item in answer.items],
        "only": list(found.only),
        "looked": [{"region": region, "kind": kind} for region, kind in found.looked],
        "failed": [
            {
                "region": f.region,
                "kind": f.kind,
                "error": f.error,
                "reason": f.reason,
                "permission": f.permission,
                "id": f.id,
                "next": f.next,
            }
            for f in found.failed
        ],
        "not_looked": answer.not_looked,
        "cost": {
            "per_hour": total if priced else None,
            "currency": currency(answer.rates),
            "priced": priced,
            "without_price": unpriced,
        },
        "after": None
        if span is None
        else {
            "run": span.name,
            "start": stamp(span.start),
            "end": stamp(span.end),
            "margin_seconds": span.margin,
            "others": dict(answer.others),
        },
        "younger": answer.younger,
        "compared": answer.compared,
        "bill": answer.bill,
        "kept": [item_json(item, answer.rates, found.time) for item in answer.kept],
        "keep_not_found": [
            {"kind": e.kind, "region": e.region, "id": e.id, "looked": found.was_looked_at(e.region, e.kind)}
            for e in answer.absent
        ],
    }


def saved(answer: Answer) -> dict[str, Any]:
    """What `--save` writes: everything that was found, whatever the page was narrowed to."""
    return to_json(Answer(answer.found, answer.found.items, answer.rates, answer.not_looked))
