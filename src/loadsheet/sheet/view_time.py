"""The sheet's lines on time and money, below the memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadsheet.recipe import Training, tables
from loadsheet.text import wrap
from loadsheet.units import format_bytes, format_duration, format_money, format_si

#: a remark on hours and money of serving where there is no room for more
PREFILL_APART = "hours and money are those of generated tokens; the prefill of their prompts is not in them"


def star(sheet: Any, name: str) -> str:
    """The mark of an input that was not given."""
    return "*" if name in sheet.recipe.defaulted else ""


def time_lines(sheet: Any, width: int) -> list[str]:
    """What a step takes, and the GPU hours of all tokens; for serving, of a token and of a prompt."""
    c = sheet.compute
    if isinstance(sheet.recipe, Training):
        lines = wrap(
            f"Time   {c.flops_per_step:.3g} FLOP per step ({c.flops_per_token:.3g} per token, causal; "
            f"{c.flops_per_token_full:.3g} with attention in full; {_rule(sheet)}), at MFU {_mfu(sheet)}"
            f" of {format_si(c.peak, 'FLOP/s', 1)} {c.peak_dtype}: "
            f"{format_duration(c.step_seconds.mid)} ({_span(sheet)}), {c.tokens_per_second:,.0f} tokens/s",
            width,
            "       ",
        )
        if c.recomputed_share:
            lines += wrap(
                f"       recomputation adds {c.recomputed_share:.0%} to the FLOPs and to the time",
                width,
                "       ",
            )
    else:
        lines = _serving_time(sheet, width)
    if c.gpu_hours is not None:
        hours = c.gpu_hours
        what = "tokens" if isinstance(sheet.recipe, Training) else "generated tokens"
        text = f"Hours  {sheet.recipe.tokens:,} {what}: {hours.mid:,.1f} GPU hours"
        if hours.mid < 1:
            text = f"Hours  {sheet.recipe.tokens:,} {what}: {format_duration(hours.mid * 3600)} of one GPU"
        if hours.low != hours.high and hours.mid >= 1:
            text += f" ({hours.low:,.1f} – {hours.high:,.1f})"
        if sheet.gpus > 1:
            text += f", {format_duration(hours.mid / sheet.gpus * 3600)} on {sheet.gpus} GPUs"
        if c.prefill_seconds is not None:
            text += (
                f"; prefill is not in it: {format_duration(c.prefill_seconds.mid)} more for each prompt of "
                f"{sheet.recipe.seq:,} tokens"
            )
        lines += wrap(text, width, "       ")
    elif isinstance(sheet.recipe, Training):
        lines += wrap("Hours  give --tokens for GPU hours", width, "       ")
    return lines


def _rule(sheet: Any) -> str:
    """The rule of thumb beside the exact count: 6·N, or 4·N where the weights are frozen."""
    n = sheet.model.active_params
    return f"6·N = {6 * n:.3g}" if sheet.recipe.task == "train" else f"frozen weights: 4·N = {4 * n:.3g}"


def _mfu(sheet: Any) -> str:
    """The MFU, with a star if defaulted; one below 10 % with the digits that tell it from another."""
    mfu, found = sheet.compute.mfu, sheet.calibration
    text = f"{mfu:.0%}" if mfu >= 0.0995 else f"{mfu * 100:.2g}%"
    return f"{text} ({found.said})" if found is not None else text + star(sheet, "mfu")


def rates(sheets: Sequence[Any]) -> str:
    """What the times of several sheets rest on: the MFU, by GPU where it differs, or the shares of the rates."""
    if not isinstance(sheets[0].recipe, Training):
        shares = f"{_band('bandwidth', 'mid')} of the bandwidth, {_band('prefill', 'mid')} of the FLOP/s"
        return f"at {shares}, whichever binds"
    said: dict[str, list[str]] = {}
    for sheet in sheets:
        said.setdefault(_mfu(sheet), []).append(sheet.gpu.id)
    most = max(said, key=lambda text: len(said[text]))
    others = [f"{text} on {', '.join(ids)}" for text, ids in said.items() if text != most]
    return f"MFU {most}" + (f", but {'; '.join(others)}" if others else "")


def _span(sheet: Any) -> str:
    value = sheet.compute.step_seconds
    if value.low == value.high:
        return "MFU given" if sheet.calibration is None else "every step alike"
    return f"{format_duration(value.low)} – {format_duration(value.high)}"


def _serving_time(sheet: Any, width: int) -> list[str]:
    c = sheet.compute
    d = c.decode
    lines = wrap(
        f"Decode reads {format_bytes(d.weight_bytes)} of weights in {format_duration(d.weight_seconds)} and "
        f"{format_bytes(d.cache_bytes)} of cache in {format_duration(d.cache_seconds)}, computes "
        f"{d.flops:.3g} FLOP in {format_duration(d.math_seconds)}: bound by {c.bound_by}{_though(c)}, "
        f"{d.intensity:.3g} FLOP per byte where the GPU has {d.peak / d.bandwidth:.0f}.",
        width,
        "       ",
    )
    step, gpus = c.step_seconds, sheet.gpus
    replicas = "" if gpus == 1 else f" on {gpus} GPUs, each a replica with its own batch"
    kind, rate = ("bandwidth", "bandwidth") if c.bound_by == "bandwidth" else ("prefill", "FLOP/s")
    lines += wrap(
        f"       A step takes at best {format_duration(step.low)} (weights alone {format_duration(d.weight_seconds)}), "
        f"and {format_duration(step.mid)} – {format_duration(step.high)} at {_band(kind, 'mid', 'low')} of the "
        f"data sheet's {rate}: {c.tokens_per_second:,.0f} tokens/s{replicas} at {_band(kind, 'mid')}, "
        f"{gpus * d.batch / step.low:,.0f} at best.",
        width,
        "       ",
    )
    crossing = (
        f"{c.critical_batch_with_cache:,.0f} with caches of this length"
        if c.critical_batch_with_cache is not None
        else "never with caches of this length: each sequence reads longer than it computes"
    )
    lines += wrap(
        f"       Computing takes as long as reading at batch {c.critical_batch:,.0f} (weights only); {crossing}.",
        width,
        "       ",
    )
    p = c.prefill_seconds
    lines += wrap(
        f"Prefill of one prompt of {sheet.recipe.seq:,} tokens: {format_duration(p.mid)} "
        f"({format_duration(p.low)} – {format_duration(p.high)}), at {_band('prefill', 'mid')} "
        f"({_band('prefill', 'low', 'high')}) of {format_si(c.peak, 'FLOP/s', 1)} {c.peak_dtype}, or as long as the "
        "weights are read",
        width,
        "       ",
    )
    return lines


def _though(c: Any) -> str:
    """Why computing binds although the data sheet's rates would have it otherwise."""
    other = c.bound_by == "compute" and c.decode.memory_seconds > c.decode.math_seconds
    return " (which reaches less of the data sheet than reading does)" if other else ""


def _band(kind: str, *ends: str) -> str:
    """A default efficiency of the data file as text, starred: "80–60 %*"."""
    entry = tables()["efficiency"][kind]
    return "–".join(f"{entry[end] * 100:.0f}" for end in ends) + " %*"


def money_lines(sheet: Any, width: int) -> list[str]:
    """What that costs at the user's price, with interruptions if there are any."""
    m = sheet.money
    if m is None:
        text = "Money  give --price PER_GPU_HOUR (no prices are shipped: they change by the week)"
        return wrap(text, width, "       ")
    currency = m.price.currency
    each = m.per_million_tokens.estimate
    unit = m.price.billing_seconds
    billed = "" if not unit else f", billed by {format_duration(unit)}"
    text = f"Money  at {m.price}{billed}: "
    if m.cost is not None:
        cost = m.cost.estimate
        text += f"{format_money(cost.mid, currency)}"
        if cost.low != cost.high:
            text += f" ({format_money(cost.low)} – {format_money(cost.high)})"
        text += "; "
    generated = "" if isinstance(sheet.recipe, Training) else "generated "
    text += f"{format_money(each.mid, currency)} per million {generated}tokens"
    if generated:
        text += ", prefill not in it"
    lines = wrap(text, width, "       ")
    if m.interruptions is None:
        return lines
    spot = m.interruptions.text(currency)
    if unit:
        spot += f"; hours as used, not in started units of {format_duration(unit)}"
    return [*lines, *wrap(spot, width, "       ")]
