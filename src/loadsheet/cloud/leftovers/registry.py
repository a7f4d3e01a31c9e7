"""The kinds of things that cost: one small function each, entered by `@kind`.

::

    @kind("volume", calls=("ec2:DescribeVolumes",), why="a volume is billed by its size, attached or not")
    def volumes(place: Place) -> Iterator[Item]:
        for row in place.rows("ec2", "describe_volumes", "Volumes"):
            yield place.item(row["VolumeId"], …)

What it yields is kept even if a later page fails; the failure then says that the kind was not looked at to
its end. A failure that it yields is noted, too, and it goes on. It asks only through `place`, and only what
stands in `calls`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from loadsheet.cloud.aws.failures import CallFailed
from loadsheet.cloud.aws.session import Account
from loadsheet.cloud.leftovers.item import Item, clean, tags_of
from loadsheet.errors import UnknownKey

_MODULES: Final = ("machines", "disks", "network", "services", "buckets")


@dataclass(frozen=True)
class Kind:
    """A kind: what is asked, and why it costs. `everywhere`: asked once, not in each region.

    `turn`: when it is removed: 0 before the machines that it would start again, 1 while its machine is there,
    3 after what holds or uses it.
    """

    name: str
    calls: tuple[str, ...]
    why: str
    look: Callable[[Place], Iterable[Item | CallFailed]]
    everywhere: bool = False
    turn: int = 2


class OneUnseen(CallFailed):
    """One thing that there is, and that could not be looked at."""

    def __init__(self, error: CallFailed, id: str, region: str) -> None:
        super().__init__(
            str(error), error.next, kind=error.kind, code=error.code, permission=error.permission
        )
        self.id = id
        self.region = region


@dataclass(frozen=True)
class Place:
    """One region in which a kind is looked for.

    `end`: when there is no more time, monotonic seconds. `only`: the regions that were named, all if none were.
    `owner`: the account's number; empty if it was not told.
    """

    account: Account
    region: str
    kind: Kind
    end: float
    only: frozenset[str] = frozenset()
    owner: str = ""

    def wanted(self, region: str) -> bool:
        """Whether a region is one of those that are looked at."""
        return not self.only or region in self.only

    def call(
        self, service: str, operation: str, region: str = "", proof: str = "", **parameters: Any
    ) -> dict[str, Any]:
        """One answer; CallFailed if there is none, or if the time is up.

        `proof`: what every answer of the service holds. Botocore reads one without it, such as `{}`, as an answer
        in which nothing stands, and that must not count as "nothing there".
        """
        self.in_time()
        where = region or self.region
        answer = self.account.call(service, operation, region=where, **parameters)
        if proof and answer.get(proof) is None:
            raise self._unread(service, operation, where, proof)
        return answer

    def rows(
        self,
        service: str,
        operation: str,
        key: str,
        region: str = "",
        most: int = 1000,
        proof: str = "",
        **parameters: Any,
    ) -> Iterator[dict[str, Any]]:
        """What a list holds, one page in memory at a time; `proof` as for `call`, by default the list itself."""
        where, proof = region or self.region, proof or key
        for page in self.account.pages(service, operation, region=where, most=most, **parameters):
            self.in_time()
            if page.get(proof) is None:
                raise self._unread(service, operation, where, proof)
            yield from page.get(key) or ()

    def _unread(self, service: str, operation: str, region: str, proof: str) -> CallFailed:
        """The failure of an answer that lacks what all of them have: an empty list is told, and not left out."""
        asked = f"{service}:{operation.replace('_', '')}"
        name = next((call for call in self.kind.calls if call.lower() == asked), operation).rpartition(":")[2]
        text = f"{service} in {region} gave no answer to {name} that can be read (no {proof} in it)"
        return CallFailed(text, region=region)

    def unseen(self, error: CallFailed, id: str, region: str = "") -> OneUnseen:
        """The failure of one thing of which nothing is known but its name; to be yielded."""
        return OneUnseen(error, clean(id), region or error.region or self.region)

    def in_time(self) -> None:
        """CallFailed if the time is up."""
        if time.monotonic() > self.end:
            raise CallFailed("not done in time", "`--timeout`", kind="other", region=self.region)

    def item(self, id: object, state: object, why: str, tags: object = None, **rest: Any) -> Item:
        """An item of this kind in this region, its texts made safe."""
        if not rest.get("remove"):
            rest.setdefault("no_command", "its name is none that the command line of AWS takes as it stands")
        return Item(
            kind=self.kind.name,
            id=clean(id),
            region=rest.pop("region", self.region),
            state=clean(state) or "not told",
            why=clean(why),
            tags=None if tags is None else tags_of(tags),
            type=clean(rest.pop("type", "")),
            **rest,
        )


_KINDS: dict[str, Kind] = {}


def kind(
    name: str, *, calls: Sequence[str], why: str, everywhere: bool = False, turn: int = 2
) -> Callable[
    [Callable[[Place], Iterable[Item | CallFailed]]], Callable[[Place], Iterable[Item | CallFailed]]
]:
    """Enter a function as the one that looks for a kind."""

    def enter(
        look: Callable[[Place], Iterable[Item | CallFailed]],
    ) -> Callable[[Place], Iterable[Item | CallFailed]]:
        _KINDS[name] = Kind(name, tuple(calls), why, look, everywhere, turn)
        return look

    return enter


@functools.cache
def kinds() -> dict[str, Kind]:
    """All kinds by name, in the order of the modules."""
    for module in _MODULES:
        import_module(f"loadsheet.cloud.leftovers.{module}")
    return dict(_KINDS)


def in_turn(names: Iterable[str]) -> list[tuple[int, list[str]]]:
    """The kinds of these names by their turn, which is the order in which to remove.

    >>> in_turn(["address", "volume", "nat-gateway", "spot-request"])
    [(0, ['spot-request']), (2, ['nat-gateway', 'volume']), (3, ['address'])]
    """
    turns: dict[int, list[str]] = {}
    for name in sorted(set(names)):
        turns.setdefault(turn(name), []).append(name)
    return sorted(turns.items())


def turn(name: str) -> int:
    """When a kind is removed; a name that is not known, with most of them."""
    known = kinds().get(name)
    return 2 if known is None else known.turn


def select(names: Iterable[str]) -> list[Kind]:
    """The kinds of these names, all if there are none; UnknownKey for one that is not known."""
    known = kinds()
    wanted = list(dict.fromkeys(names)) or list(known)
    for name in wanted:
        if name not in known:
            raise UnknownKey(name, known, "kind")
    return [known[name] for name in wanted]


#: asked before any kind: who, and which regions there are
FIRST: Final = ("sts:GetCallerIdentity", "ec2:DescribeRegions")
BILL: Final = "ce:GetCostAndUsage"


def calls(chosen: Iterable[Kind], paid: bool = False) -> frozenset[str]:
    """The calls that these kinds make, as "service:Operation"; the account is opened for no others."""
    return frozenset([*FIRST, *([BILL] if paid else []), *(call for kind in chosen for call in kind.calls)])
