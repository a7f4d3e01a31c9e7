"""The sum that explains itself: amounts, widths, bases and workings of items and ledgers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from workings import Prose, evaluate

from loadsheet.ledger import BASES, Estimate, Item, Ledger, estimate
from loadsheet.text import explain

_LLAMA_3_8B = 8_030_261_248
_amounts = st.integers(0, 2**60)


@st.composite
def _estimates(draw: st.DrawFn) -> Estimate:
    low, mid, high = sorted(draw(st.tuples(_amounts, _amounts, _amounts)))
    return Estimate(low, mid, high, draw(st.sampled_from(["", "measured", "a stated range"])))


def _states() -> Item:
    """16 bytes per parameter of mixed-precision Adam (Rajbhandari et al. 2020, arXiv 1910.02054)."""
    parts = {"weights": 2, "gradients": 2, "master": 4, "m": 4, "v": 4}
    children = (Item(name, b * _LLAMA_3_8B, "b·N", {"b": b, "N": _LLAMA_3_8B}) for name, b in parts.items())
    return Item("model states", children=tuple(children))


# --- estimates -------------------------------------------------------------------------------------------


@given(_estimates(), _estimates())
def test_ends_add_to_ends(a: Estimate, b: Estimate) -> None:
    """Low adds to low and high to high: intervals as in interval arithmetic."""
    total = a + b
    assert (a.low + b.low, a.mid + b.mid, a.high + b.high) == (total.low, total.mid, total.high)
    assert total.low <= total.mid <= total.high


@given(_estimates(), _amounts)
def test_a_plain_number_has_no_width(a: Estimate, number: int) -> None:
    """Adding a number moves an estimate and leaves its width; the order does not matter."""
    assert a + number == number + a
    assert a.high - a.low == (a + number).high - (a + number).low
    assert Estimate(number, number, number) == estimate(number)


@given(_estimates(), st.integers(0, 1000))
def test_scaling(a: Estimate, factor: int) -> None:
    """A factor scales all three."""
    assert a * factor == factor * a
    assert (a.low * factor, a.high * factor) == ((a * factor).low, (a * factor).high)


def test_a_reason_is_said_once() -> None:
    """The reasons of two widths stand side by side, the same one once."""
    one = Estimate(1, 2, 3, "context")
    assert (one + one).reason == "context"
    assert (one + Estimate(0, 0, 1, "fragmentation")).reason == "context; fragmentation"


# --- items -----------------------------------------------------------------------------------------------


def test_children_add_up() -> None:
    """16·N of Llama 3 8B: 119.66 GiB."""
    item = _states()
    assert 16 * _LLAMA_3_8B == 128_484_179_968 == item.amount
    assert round(item.amount / 2**30, 2) == 119.66


@given(st.lists(st.sampled_from(BASES), min_size=1, max_size=5))
def test_a_sum_is_no_surer_than_its_weakest_part(bases: list[str]) -> None:
    """One assumed part makes the sum assumed."""
    item = Item("sum", children=tuple(Item(str(i), 1, basis=b) for i, b in enumerate(bases)))  # type: ignore[arg-type]
    assert max(bases, key=BASES.index) == item.basis


@pytest.mark.parametrize(
    ("expression", "operands", "expected"),
    [
        ("2·N", {"N": _LLAMA_3_8B}, "2·N = 2·8,030,261,248"),
        ("b·(N - N_q)", {"b": 2, "N": 1000, "N_q": 10}, "b·(N - N_q) = 2·(1,000 - 10)"),
        ("L·kv′", {"L": 2, "kv′": 8}, "L·kv′ = 2·8"),
        ("stated range", {}, "stated range"),
    ],
)
def test_working(expression: str, operands: dict[str, int], expected: str) -> None:
    """The formula, then the same with the numbers put in; longer names are not mistaken for shorter ones."""
    assert expected == Item("x", 1, expression, operands).working


def test_working_of_a_sum_and_of_a_late_formula() -> None:
    """A sum names its parts; an expression may be written only when it is asked for."""
    assert _states().working == "weights + gradients + master + m + v"
    assert Item("x", 6, lambda: ("2·N", {"N": 3})).working == "2·N = 2·3"


@given(st.integers(1, 10**12), st.integers(1, 64), st.integers(0, 10**6))
def test_the_numbers_put_in_give_the_amount(n: int, b: int, rest: int) -> None:
    """What stands right of the equals sign, worked out, is what stands left of it."""
    working = Item("x", b * n + rest, "b·N + rest", {"b": b, "N": n, "rest": rest}).working
    left, _, right = working.partition(" = ")
    assert b * n + rest == evaluate(left, {"b": b, "N": n, "rest": rest}) == evaluate(right, {})


@pytest.mark.parametrize("words", ["stated range", "Σ 2·MAC", "g·N - this block's", "once for all", ""])
def test_prose_is_no_arithmetic(words: str) -> None:
    """The check of workings cannot take words for a number."""
    with pytest.raises(Prose):
        evaluate(words, {"g": 2, "N": 3})


# --- ledgers ---------------------------------------------------------------------------------------------


@given(st.lists(_estimates(), max_size=6))
def test_a_ledger_is_the_sum_of_its_items(amounts: list[Estimate]) -> None:
    """Each end of the total is the sum of that end over the items; an empty account is 0."""
    total = Ledger("all", tuple(Item(str(i), a) for i, a in enumerate(amounts))).total
    assert (sum(a.low for a in amounts), sum(a.high for a in amounts)) == (total.low, total.high)


def test_items_are_found_by_name_at_any_depth() -> None:
    """`ledger["m"]` is the item, wherever it stands; a name that is not there is a KeyError."""
    ledger = Ledger("all", (_states(), Item("context", Estimate(1, 2, 3))))
    assert ledger["m"].amount == 4 * _LLAMA_3_8B
    assert ledger.get("nothing") is None
    with pytest.raises(KeyError):
        ledger["nothing"]


def test_json_of_a_ledger() -> None:
    """The keys of the interface, and numbers that `json` can write."""
    written = json.loads(json.dumps(Ledger("all", (_states(),)).to_json()))
    item = written["items"][0]
    assert {"name", "bytes", "children", "basis", "working", "source"} == set(item)
    assert 128_484_179_968 == item["bytes"]["mid"] == sum(c["bytes"]["mid"] for c in item["children"])


def test_every_line_of_an_explanation_fits() -> None:
    """Workings and sources are wrapped; every item of the tree is named."""
    ledger = Ledger("all", (_states(), Item("rest", 1, "stated range", source="a data sheet " * 30)))
    lines = explain(ledger, 60)
    assert max(map(len, lines)) <= 60
    for name in ("model states", "weights", "v", "rest"):
        assert any(line.strip().startswith(f"{name}:") for line in lines)
