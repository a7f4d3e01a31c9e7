"""`plan --gpu any`: every GPU that the price list offers is planned; what fits is listed, the cheapest first."""

from __future__ import annotations

from typing import Any

from loadsheet.cli.output import show, show_json, table, warn, width
from loadsheet.cli.plan_options import sheets_of
from loadsheet.cli.plan_prices import PRICE_OPTIONS, price_list
from loadsheet.errors import BadInput
from loadsheet.ledger import Estimate
from loadsheet.money.offers import Freshness, Offer, cheapest_first, offer
from loadsheet.money.price import one_currency
from loadsheet.money.price_file import PriceList
from loadsheet.recipe import Training
from loadsheet.sheet import Sheet
from loadsheet.sheet.view import count, footnotes, question
from loadsheet.sheet.view_time import PREFILL_APART, rates
from loadsheet.text import gib_range, wrap
from loadsheet.units import format_duration, format_money

_SHOWN = 20  # offers; --json has all
_SPARE = ("billed by", "time", "location", "verdict", "per hour", "provider", "instance", "price of")
_SPARE_PER_HOUR = tuple(name for name in _SPARE if name != "per hour")  # where there is no cost of the run


def answer(model: str, gpus: str | None, options: dict[str, Any], *, as_json: bool, strict: bool) -> int:
    """Print the offers; 0 if there is one, 1 if nothing on offer fits."""
    for name in ("mtbf", "save", "restart"):
        if options[name] is not None:
            raise BadInput(
                f"--{name}: got it with --gpu any, expected one GPU", "name the GPU in a second plan"
            )
    found = price_list(options)
    if found is None:
        raise BadInput(
            "--gpu any: got no price list, expected --price-file or --prices-from",
            "`any` stands for the GPUs that a price list offers; `all` for every known one",
        )
    prices, fresh = found
    rows = [row for row in prices.rows if options["spot"] or not row.spot]
    spot_left = len(prices.rows) - len(rows)
    if not rows:
        raise BadInput(
            f"{prices.name}: got spot prices only, expected one on demand", "--spot lets them count"
        )
    one_currency(rows, "the offers")
    plain = {**options, **dict.fromkeys(PRICE_OPTIONS), "spot": False}
    sheets = sheets_of(model, ",".join(dict.fromkeys(row.gpu for row in rows)), gpus, plain)
    good = {"fits"} if strict else {"fits", "tight"}
    fitting = {s.gpu.id: s for s in sheets if s.verdict in good}
    offers = cheapest_first(
        offer(row, s.gpus, _seconds(s), s.verdict, fresh) for row in rows if (s := fitting.get(row.gpu))
    )
    too_small = [s for s in sheets if s.gpu.id not in fitting]
    flagged = [o for o in offers if o.flag]
    if flagged:
        warn(
            f"{len(flagged):,} of {len(offers):,} offers may not hold any more: undated, or not of the last "
            f"{fresh.limit} ({flagged[0].row.source}: {flagged[0].flag})"
        )
    if as_json:
        show_json(_json(prices, fresh, offers, too_small, spot_left))
    else:
        show("\n".join(_page(prices, fresh, offers, sheets, too_small, spot_left, width())))
    return 0 if offers else 1


def _seconds(sheet: Sheet) -> Estimate | None:
    """How long the run takes by the clock; None without --tokens."""
    hours = sheet.compute.gpu_hours
    if hours is None:
        return None
    scale = 3600 / sheet.gpus
    return Estimate(hours.low * scale, hours.mid * scale, hours.high * scale, hours.reason)


def _json(
    prices: PriceList, fresh: Freshness, offers: list[Offer], too_small: list[Sheet], spot_left: int
) -> dict[str, Any]:
    return {
        "schema": 1,
        "prices": prices.name,
        "freshness": fresh.to_json(),
        "offers": [o.to_json() for o in offers],
        "does_not_fit": [
            {"gpu": s.gpu.id, "verdict": s.verdict, "peak_bytes": s.memory.peak.to_json(),
             "usable_bytes": s.memory.usable_bytes}
            for s in too_small
        ],
        "spot_rows_left_out": spot_left,
        "skipped": [{"reason": s.reason, "rows": s.rows, "first": s.first} for s in prices.skipped],
        "not_looked_at": list(prices.notes),
    }  # fmt: skip


def _page(
    prices: PriceList,
    fresh: Freshness,
    offers: list[Offer],
    sheets: list[Sheet],
    too_small: list[Sheet],
    spot_left: int,
    room: int,
) -> list[str]:
    first = sheets[0]
    whose = [f"{count(first)} GPU(s), each with a replica", rates(sheets), f"prices of {prices.name}"]
    text = " · ".join([*question(first), *whose])
    lines = [*wrap(text, room, "  "), ""]
    if offers:
        shown = offers[:_SHOWN]
        all_fit = all(o.verdict == "fits" for o in shown)
        cells = [{**_cells(o), "verdict": "" if all_fit else o.verdict} for o in shown]
        lines += table(cells, _SPARE_PER_HOUR if offers[0].cost is None else _SPARE, room)
    notes = _notes(offers, fresh)
    if len(offers) > _SHOWN:
        notes.insert(0, f"and {len(offers) - _SHOWN:,} dearer offers; --json has all")
    if not offers:
        notes.append("Nothing on offer fits; `plan --gpu ID` says what would make it fit.")
    if too_small:
        names = ", ".join(
            f"{s.gpu.id} ({s.verdict.replace('_', ' ')}: needs {gib_range(s.memory.peak)} GiB)"
            for s in too_small[:12]
        )
        more = f" and {len(too_small) - 12} more" if len(too_small) > 12 else ""
        notes.append(f"Not listed: {names}{more}")
    if spot_left:
        notes.append(f"Left out: {spot_left:,} spot price(s); --spot lets them count.")
    if prices.left_out:
        notes.append(prices.left_out)
    if not isinstance(first.recipe, Training) and first.recipe.tokens:
        notes.append(PREFILL_APART[0].upper() + PREFILL_APART[1:] + ".")
    if prices.notes:
        notes.append(
            f"{prices.name} said {len(prices.notes)} thing(s) about what it could not look at: see stderr."
        )
    lines += ["", *(line for note in notes for line in wrap(note, room, "  "))]
    return [*lines, *footnotes(first, room, explained=True)]


def _notes(offers: list[Offer], fresh: Freshness) -> list[str]:
    """What a star and an exclamation mark in the table mean, and what the order is by."""
    notes = []
    if offers and offers[0].cost is None:
        notes.append("The cheapest hour is first; --tokens gives the cost of the run and orders by it.")
    shown = offers[:_SHOWN]
    if any(o.row.billing_seconds is None and o.cost is not None for o in shown):
        notes.append("* at a cost: no billing unit is given, so time is paid as used, not rounded up.")
    if any(o.flag for o in shown):
        notes.append(
            f"! the price may not hold: undated, or not of the last {fresh.limit} (--max-price-age)."
        )
    if any(o.row.spot for o in shown):
        notes.append("Spot: without interruptions; `plan --gpu ID --mtbf` adds them.")
    if any(o.instances * o.row.gpus > o.gpus for o in shown):
        notes.append(
            "Instances are rented whole: where `GPUs` is more than was asked for, the rest stands idle."
        )
    return notes


def _cells(each: Offer) -> dict[str, str]:
    row = each.row
    unit = row.billing_seconds
    star = "*" if unit is None else ""
    seen = f"{row.date or 'undated'}{' !' if each.flag else ''}"
    return {
        "gpu": row.gpu,
        "instance": row.instance,
        "GPUs": f"{each.instances} × {row.gpus}{', spot' if row.spot else ''}",
        "provider": row.provider,
        "location": row.region,
        "per hour": format_money(each.hourly, row.currency),
        "time": "" if each.seconds is None else format_duration(each.seconds.mid),
        "billed by": "" if unit is None else format_duration(unit),
        "cost": "" if each.cost is None else format_money(each.cost.mid, row.currency) + star,
        "price of": seen,
    }
