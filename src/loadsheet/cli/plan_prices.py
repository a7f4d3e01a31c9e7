"""The prices of a plan: from the command line, from the user's file, or from gpuhunt's catalogs."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any

from loadsheet.cli.output import warn
from loadsheet.errors import BadInput, shorten
from loadsheet.hardware import Gpu
from loadsheet.money.offers import MAX_AGE, Freshness
from loadsheet.money.price import Price, PriceRow, cheapest, parse_price
from loadsheet.money.price_file import PriceList, price_file
from loadsheet.units import parse_duration

#: options of a command that say what a GPU costs, and nothing of the plan itself
PRICE_OPTIONS = ("price", "price_file", "prices_from", "max_price_age", "spot")


def price_list(options: Mapping[str, Any]) -> tuple[PriceList, Freshness] | None:
    """The rows of a file or of gpuhunt, and how old they may be; None where the user named neither.

    BadInput for options that contradict each other. What was left out is said on stderr.
    """
    file, hunted = options["price_file"], options["prices_from"]
    given = [n for n in ("price", "price_file", "prices_from") if options[n] is not None]
    if len(given) > 1:
        names = [f"--{n.replace('_', '-')}" for n in given]
        raise BadInput(f"{' and '.join(names)}: got both, expected one of them", "leave one of them out")
    if file is None and hunted is None:
        for name, set_ in (("--spot", options["spot"]), ("--max-price-age", options["max_price_age"])):
            if set_:
                raise BadInput(
                    f"{name}: got no --price-file, expected one", f"{name[2:]} is about a price file's rows"
                )
        return None
    age = options["max_price_age"]
    limit = MAX_AGE if age is None else parse_duration(age, "--max-price-age")
    fresh = Freshness(datetime.date.today(), limit, defaulted=age is None)
    if hunted is None:
        prices = price_file(file)
    elif hunted != "gpuhunt":
        raise BadInput(
            f"--prices-from: got {shorten(hunted)}, expected gpuhunt", "a file goes to --price-file"
        )
    else:
        from loadsheet.money.hunted import hunt

        prices = hunt(fresh.today.isoformat())
    for note in prices.notes:
        warn(f"{prices.name}: {note}")
    if prices.left_out:
        warn(prices.left_out)
    return prices, fresh


def prices_of(options: Mapping[str, Any], *, alone: bool) -> Callable[[Gpu, int], Price | None]:
    """The price of a GPU, by how many there are; None where the user named none.

    In a comparison, a GPU that the price file does not have goes without. A price that is old or undated
    says so itself, and on stderr.
    """
    found, spot = price_list(options), options["spot"]
    if found is None:
        text = options["price"]
        price = None if text is None else parse_price(text, "--price")
        return lambda gpu, count: price
    prices, fresh = found

    def may(row: PriceRow) -> bool:
        return spot or not row.spot

    def of(gpu: Gpu, count: int) -> Price | None:
        if not alone and not any(row.gpu == gpu.id and may(row) for row in prices.rows):
            return None
        price = cheapest(prices.rows, gpu, count, allow_spot=spot, flag=fresh.flag)
        if price.flag:
            warn(
                f"the price of {gpu.id} ({price.source}) may not hold: expected a date at most {fresh.limit} ago"
            )
        return price

    return of
