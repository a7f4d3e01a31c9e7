"""Fewer of the items, and never without saying how many were left out: by age, by a run; and the loud ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

from loadsheet.cloud.leftovers.item import Found, Item
from loadsheet.cloud.leftovers.registry import kinds
from loadsheet.errors import BadInput
from loadsheet.text import many

MARGIN: Final = 2 * 3600.0  # seconds before a run begins and after it ends in which its machines come and go
_DAY: Final = 86400.0
#: what hangs on a machine, or is started with it, and shows no other use of a region
_WITH_MACHINES: Final = (
    "instance", "attached-volume", "volume", "spot-request", "fleet", "spot-fleet", "auto-scaling-group", "address",
    "dedicated-host", "capacity-reservation",
)  # fmt: skip


def loud(items: Iterable[Item], home: str, found: Found | None = None) -> list[Item]:
    """The items, GPU machines marked where nothing else shows that the region is used.

    A region is used if the configuration names it, or if it holds a machine without a GPU or anything that
    is not started together with machines. Somebody who has got hold of a key starts GPUs where nobody looks.
    `found`: with it the words say where not all was looked at that would show a use.
    """
    rows = list(items)
    used = {home} | {
        item.region for item in rows
        if item.kind not in _WITH_MACHINES or (item.kind == "instance" and not item.gpu)
    }  # fmt: skip

    def marked(item: Item) -> Item:
        where = nothing_else(() if found is None else unseen(found, item.region))
        return replace(item, loud=True, why=f"a GPU {where}: is it yours? {item.why}")

    return [
        marked(item) if item.gpu and item.kind == "instance" and item.region not in used else item
        for item in rows
    ]


def unseen(found: Found, region: str) -> list[str]:
    """The kinds that would show that a region is used, and that were not looked at there."""
    return [name for name in kinds() if name not in _WITH_MACHINES and not found.was_looked_at(region, name)]


def nothing_else(blind: Collection[str]) -> str:
    """Where a GPU is loud, in words that claim no more than was seen.

    >>> nothing_else([]), nothing_else(["bucket"])
    ('where nothing else of yours is', 'where nothing else of yours was found (1 kind was not looked at)')
    """
    if not blind:
        return "where nothing else of yours is"
    were = "was" if len(blind) == 1 else "were"
    return f"where nothing else of yours was found ({many(len(blind), 'kind')} {were} not looked at)"


def older_than(items: Iterable[Item], seconds: float, now: float) -> tuple[list[Item], int]:
    """The items that are older, or whose age nothing tells; and how many are younger."""
    rows = list(items)
    kept = [item for item in rows if item.created is None or now - item.created >= seconds]
    return kept, len(rows) - len(kept)


@dataclass(frozen=True)
class Span:
    """A run: its name, and when it began and was written to last, Unix seconds."""

    name: str
    start: float
    end: float
    margin: float = MARGIN

    def __post_init__(self) -> None:
        if not self.start <= self.end:
            raise BadInput(
                f"--after: got a run {self.name} that ends before it starts, expected times in order"
            )


def of_run(items: Iterable[Item], span: Span) -> tuple[list[Item], Counter[str]]:
    """The items that a run explains, each with the reason; and how many others there are of each kind.

    Explained: a tag that holds the run's name; made between the run's start and end, give or take the margin.
    What has no date and no such tag stays, since nothing says that it is not of the run.
    """
    kept: list[Item] = []
    others: Counter[str] = Counter()
    for item in items:
        reason = _reason(item, span)
        if reason:
            kept.append(replace(item, why=f"{item.why} ({reason})"))
        else:
            others[item.kind] += 1
    return kept, others


def _reason(item: Item, span: Span) -> str:
    if any(span.name in text for pair in (item.tags or {}).items() for text in pair):
        return "its tag names the run"
    if item.created is None:
        return "may be of the run: nothing says when it was made"
    if span.start <= item.created <= span.end:
        return "made while the run ran"
    within = f"made within {span.margin / 3600:.3g} h"
    if span.start - span.margin <= item.created < span.start:
        return f"{within} before the run"
    return f"{within} after the run" if span.end < item.created <= span.end + span.margin else ""
