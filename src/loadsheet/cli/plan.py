"""`loadsheet plan`: the main job."""

from __future__ import annotations

from typing import Any

import click

from loadsheet.cli.output import show, show_json, table, width
from loadsheet.cli.plan_options import plan_options, sheets_of
from loadsheet.recipe import Training
from loadsheet.sheet import Sheet
from loadsheet.sheet.view import count, footnotes, question
from loadsheet.sheet.view_time import PREFILL_APART, rates
from loadsheet.text import gib_range, wrap
from loadsheet.units import GIB, format_duration, format_money


@click.command(name="plan")
@plan_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON (bytes, FLOP, seconds).")
@click.option("--explain", is_flag=True, help="Print every item's working and source.")
@click.option("--strict", is_flag=True, help="Exit 1 for `tight` too.")
def command(
    model: str, gpu: str, gpus: str | None, as_json: bool, explain: bool, strict: bool, **options: Any
) -> int:
    """The whole sheet for MODEL: does it fit, why, what would make it fit, how long, how much.

    MODEL: a preset (`loadsheet models`), a config.json or its folder, a .safetensors file or its
    index, or a .gguf file. What is left out is defaulted and marked with a star.

    Exit status: 0 fits or tight, 1 does not fit, 2 the question makes no sense. Where GPUs are
    compared, 0 if one of them holds it. With `--gpu any`, 0 if an offer fits.
    """
    alone = ("--explain", "a comparison has no room; --json has every working") if explain else None
    if gpu.strip().lower() == "any" and not explain:
        from loadsheet.cli.plan_offers import answer

        return answer(model, gpus, options, as_json=as_json, strict=strict)
    sheets = sheets_of(model, gpu, gpus, options, alone=alone)
    if len(sheets) == 1:
        if as_json:
            show_json(sheets[0].to_dict())
        else:
            show(sheets[0].text(width=width(), explain=explain))
    elif as_json:
        show_json({"schema": 1, "compare": [s.to_dict(full=False) for s in sheets]})
    else:
        show(comparison(sheets, width()))
    good = {"fits"} if strict else {"fits", "tight"}
    return 0 if any(s.verdict in good for s in sheets) else 1


#: columns of the comparison that a narrow terminal goes without, the first ones first
_SPARE = ("tokens/s", "usable GiB", "step", "per million tokens", "GPU hours", "cost", "needs GiB")


def comparison(sheets: list[Sheet], room: int) -> str:
    """One line per GPU: what fits first, then by the time of a step; the columns that there is room for."""
    rank = {"fits": 0, "tight": 1, "does_not_fit": 2}
    ordered = sorted(sheets, key=lambda s: (rank[s.verdict], s.compute.step_seconds.mid))
    first = sheets[0]
    text = " · ".join([*question(first), f"{count(first)} GPU(s) each", rates(sheets)])
    lines = [*wrap(text, room, "  "), "", *table([_cells(s) for s in ordered], _SPARE, room)]
    flagged = [f"{s.gpu.id} {s.money.price.flag}" for s in ordered if s.money and s.money.price.flag]
    if flagged:
        lines += wrap("prices that may not hold: " + ", ".join(flagged), room, "  ")
    if not isinstance(first.recipe, Training) and (first.money or first.recipe.tokens):
        lines += wrap(PREFILL_APART, room, "  ")
    lines += footnotes(first, room, explained=True)
    return "\n".join(lines)


def _hours(hours: float) -> str:
    """Hours with one decimal, and more of them where they are few."""
    return f"{hours:,.1f}" if hours >= 0.95 else f"{hours:.2g}"


def _cells(sheet: Sheet) -> dict[str, str]:
    """One row of the comparison by its columns; an empty cell is one that has no answer."""
    c, money = sheet.compute, sheet.money
    cost = None if money is None else money.cost
    return {
        "gpu": sheet.gpu.id,
        "verdict": sheet.verdict.replace("_", " "),
        "needs GiB": gib_range(sheet.memory.peak),
        "usable GiB": f"{sheet.memory.usable_bytes / GIB:.1f}",
        "step": format_duration(c.step_seconds.mid),
        "tokens/s": f"{c.tokens_per_second:,.0f}",
        "GPU hours": "" if c.gpu_hours is None else _hours(c.gpu_hours.mid),
        "cost": ""
        if money is None or cost is None
        else format_money(cost.estimate.mid, money.price.currency),
        "per million tokens": ""
        if money is None
        else format_money(money.per_million_tokens.estimate.mid, money.price.currency),
    }
