"""A signed sheet as a page: what was meant, what is expected of it, and what is not predicted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadsheet.text import wrap
from loadsheet.units import format_bytes, format_duration, format_money

_INDENT = "        "


def render(signed: Mapping[str, Any], width: int = 100) -> list[str]:
    """The lines of the intent, and the hash."""
    intent = signed["intent"]
    expected, price = intent["expected"], intent["price"]
    lines = [
        f"Steps   {intent['steps']:,} × {intent['tokens_per_step']:,} tokens = {intent['tokens']:,}; a step "
        f"{_seconds(expected['step_seconds'])}",
        f"Time    {_seconds(expected['seconds'])}{_with(expected)}",
    ]
    if price is not None:
        cost, currency = expected["cost"], price["currency"]
        lines.append(f"Cost    {_range(cost, lambda x: money(x, currency))}")
    lines.append(f"Saves   {_saves(intent)}")
    if expected["interruptions"] is not None:
        lines.append(
            f"Taken   {_count(expected['interruptions'])} interruptions, {_count(expected['lost_steps'])} steps lost"
        )
    unknown = [f"{name.replace('_', ' ')} ({why})" for name, why in intent["not_predicted"].items()]
    if unknown:
        lines.append("Not predicted: " + "; ".join(unknown))
    return [part for line in lines for part in wrap(line, width, _INDENT)]


def money(amount: float, currency: str = "") -> str:
    """An amount of money, a small one with three digits that count.

    >>> money(0.00732, "USD"), money(12.5), money(0.0)
    ('0.00732 USD', '12.50', '0.00')
    """
    return f"{amount:.3g} {currency}".rstrip() if 0 < amount < 0.995 else format_money(amount, currency)


def _with(expected: Mapping[str, Any]) -> str:
    if expected["interruptions"] is not None:
        return ", interruptions and saves counted in"
    return ", saves counted in" if expected["saving_seconds"] is not None else ", of steps alone"


def _saves(intent: Mapping[str, Any]) -> str:
    expected, every = intent["expected"], intent["checkpoint_every"]
    size = format_bytes(intent["checkpoint_bytes"])
    if expected["saves"] is None:
        return f"{size} each" + (", as often as `auto` finds best" if every == "auto" else "")
    how = (
        "at the start and the end"
        if every == "end"
        else f"every {every}{' steps' if isinstance(every, int) else ''}"
    )
    text = f"{_count(expected['saves'])} of {size}, {how}"
    stall = expected["save_stall_seconds"]
    return text if stall is None else f"{text}; each holds the loop up for {_seconds(stall)}"


def _seconds(value: Mapping[str, float]) -> str:
    return _range(value, format_duration)


def _count(value: Mapping[str, float]) -> str:
    return _range(value, lambda x: f"{x:,.1f}".removesuffix(".0"))


def _range(value: Mapping[str, float], shown: Any) -> str:
    """mid (low – high), or one number where they print the same."""
    low, mid, high = (shown(value[end]) for end in ("low", "mid", "high"))
    return mid if low == high else f"{mid} ({low} – {high})"
