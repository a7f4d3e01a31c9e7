"""`loadsheet runs list`."""

from __future__ import annotations

import click

from loadsheet.cli.output import show, show_json, width
from loadsheet.cli.runs import measured, root_option, seed_options
from loadsheet.units import parse_share


@click.command(name="list")
@root_option
@measured
@click.option("--price", help="Your price per GPU hour, such as 2.5 or `2.50 USD`. [the signed sheet's]")
@click.option(
    "--sort",
    metavar="KEY",
    help="run, state, attempts, steps, best, hours, cost, lost, bytes, started, updated, a metric, or a key of the "
    "config. [best]",
)
@click.option("--reverse", is_flag=True, help="The other way round.")
@click.option(
    "--where", multiple=True, metavar="KEY=VALUE", help="Only these: = != < <= > >=; may be repeated."
)
@click.option("--state", multiple=True, help="done, running, interrupted, failed, empty; may be repeated.")
@click.option("--limit", metavar="N", help="How many are shown, or `all`. [40; with --json all]")
@click.option("--groups", is_flag=True, help="Runs that differ only in the seed as one: n, mean, spread.")
@seed_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON (seconds, bytes).")
def command(
    root: str,
    metric: str | None,
    mode: str | None,
    value: str | None,
    price: str | None,
    sort: str | None,
    reverse: bool,
    where: tuple[str, ...],
    state: tuple[str, ...],
    limit: str | None,
    groups: bool,
    seed_key: tuple[str, ...],
    unfinished: bool,
    confidence: str,
    as_json: bool,
) -> int:
    """A table of all runs: what differs in the config, how far, how good, how long, how much.

    `best` is the best value of a metric over the steps of a run; one that nobody chose has a star. A run is
    `failed` if its script left the loop (an error, or `break`), `interrupted` if it was stopped or killed.
    """
    from loadsheet.cli.runs import list_page
    from loadsheet.history import listing, seeds
    from loadsheet.history.measures import choose
    from loadsheet.money.price import parse_price

    share = parse_share(confidence, "confidence")
    rate = parse_price(price) if price is not None else None
    amount = rate.amount if rate is not None else None
    most = listing.limited(limit, 0 if as_json else 40) or None
    everything = list_page.scanned(root)
    rows = listing.chosen(everything, state, where)
    measure = choose((row.metrics for row in rows), metric, mode, value)
    rows = listing.ordered(rows, sort, measure, reverse=reverse, price=amount)
    found = seeds.group(rows, measure, seed_key, unfinished=unfinished) if groups or as_json else []
    compared = seeds.compare(found, measure, share, list_page.COMPARED) if measure is not None else []
    if as_json:
        show_json(
            {
                "schema": 1,
                "root": root,
                "measure": listing.measure_json(measure),
                "currency": rate.currency if rate is not None else None,
                "found": len(rows),
                "runs": [listing.row_json(row, measure, amount) for row in rows[:most]],
                "groups": [seeds.to_json(each) for each in found],
                "comparisons": [seeds.comparison_json(each) for each in compared],
            }
        )
    elif groups:
        show(list_page.groups(root, found, compared, measure, width(), most))
    else:
        show(list_page.runs(root, rows, len(everything), measure, rate, width(), most))
    return 0
