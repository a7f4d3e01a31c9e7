"""A sum that can explain itself.

An `Item` is one line of an account: a name, an amount, the expression it came from with the
operands put in, its source and its basis. An item with children is their sum. A `Ledger` is a named
tuple of items with a unit. Text is rendered on demand, so building a ledger costs next to nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from loadsheet.units import format_number

Basis = Literal["exact", "modelled", "measured", "assumed"]
#: from the surest to the least sure: a sum is no surer than its weakest part
BASES: tuple[Basis, ...] = ("exact", "modelled", "measured", "assumed")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number that is not known exactly: low, mid, high, and the reason for the width."""

    low: Any
    mid: Any
    high: Any
    reason: str = ""

    def __add__(self, other: Any) -> Estimate:
        if not isinstance(other, Estimate):
            return Estimate(self.low + other, self.mid + other, self.high + other, self.reason)
        reason = self.reason
        if other.reason and other.reason not in reason:
            reason = f"{reason}; {other.reason}" if reason else other.reason
        return Estimate(self.low + other.low, self.mid + other.mid, self.high + other.high, reason)

    __radd__ = __add__

    def __mul__(self, factor: Any) -> Estimate:
        return Estimate(self.low * factor, self.mid * factor, self.high * factor, self.reason)

    __rmul__ = __mul__

    def to_json(self) -> dict[str, Any]:
        """`{"low", "mid", "high"}` with plain numbers."""
        return {"low": self.low, "mid": self.mid, "high": self.high}


def estimate(value: Any) -> Estimate:
    """The value as an Estimate; a plain number has no width."""
    return value if isinstance(value, Estimate) else Estimate(value, value, value)


_WORD = re.compile(r"[^\W\d]\w*(?:′)?")


@dataclass(frozen=True, slots=True)
class Item:
    """One line of an account. With children, the amount is their sum and need not be given."""

    name: str
    amount: Any = None  # a number, an array or an Estimate
    expression: str | Callable[[], tuple[str, Mapping[str, Any]]] = ""  # "2·N", with the names in `operands`
    operands: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    basis: Basis = "exact"
    children: tuple[Item, ...] = ()

    def __post_init__(self) -> None:
        if self.children and self.amount is None:
            total: Any = 0
            for child in self.children:
                total = child.amount + total
            object.__setattr__(self, "amount", total)
            worst = max(self.children, key=lambda c: BASES.index(c.basis)).basis
            if BASES.index(worst) > BASES.index(self.basis):
                object.__setattr__(self, "basis", worst)

    @property
    def estimate(self) -> Estimate:
        """The amount with its width."""
        return estimate(self.amount)

    @property
    def working(self) -> str:
        """The formula, then the same with the numbers put in.

        >>> Item("weights", 16060522496, "2·N", {"N": 8030261248}).working
        '2·N = 2·8,030,261,248'
        """
        expression, operands = self.formula
        if not expression:
            return " + ".join(child.name for child in self.children)
        put_in = _WORD.sub(lambda m: format_number(operands[m[0]]) if m[0] in operands else m[0], expression)
        return expression if put_in == expression else f"{expression} = {put_in}"

    @property
    def formula(self) -> tuple[str, Mapping[str, Any]]:
        """The expression and the values of its names; a formula that costs time to write is made here."""
        if callable(self.expression):
            return self.expression()
        return self.expression, self.operands

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Item]]:
        """This item and everything below it, with its depth."""
        yield depth, self
        for child in self.children:
            yield from child.walk(depth + 1)

    def to_json(self, unit: str = "bytes") -> dict[str, Any]:
        """The item as the JSON of the design: name, amount under its unit, children, working, source."""
        return {
            "name": self.name,
            unit: self.estimate.to_json(),
            "children": [child.to_json(unit) for child in self.children],
            "basis": self.basis,
            "working": self.working,
            "source": self.source,
        }


@dataclass(frozen=True, slots=True)
class Ledger:
    """A named account: items of one unit that add up."""

    name: str
    items: tuple[Item, ...]
    unit: str = "bytes"
    total: Estimate = field(init=False, compare=False, repr=False)  # the sum of the items, with its width

    def __post_init__(self) -> None:
        total = Estimate(0, 0, 0)
        for item in self.items:
            total = total + item.amount
        object.__setattr__(self, "total", total)

    def __getitem__(self, name: str) -> Item:
        """The item of that name, wherever it stands in the tree; KeyError if there is none."""
        for item in self.items:
            for _, found in item.walk():
                if found.name == name:
                    return found
        raise KeyError(name)

    def get(self, name: str) -> Item | None:
        """The item of that name, or None."""
        try:
            return self[name]
        except KeyError:
            return None

    def to_json(self) -> dict[str, Any]:
        """Name and items, ready for `json.dumps`."""
        return {"name": self.name, "items": [item.to_json(self.unit) for item in self.items]}
