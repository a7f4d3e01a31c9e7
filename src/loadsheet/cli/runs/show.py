"""`loadsheet runs show`."""

from __future__ import annotations

import click

from loadsheet.cli.output import show, show_json, width
from loadsheet.cli.runs import measured, root_option


@click.command(name="show")
@click.argument("run")
@root_option
@measured
@click.option(
    "--seed-key", multiple=True, metavar="KEY", help="A further key that is a seed; may be repeated. [seed]"
)
@click.option("--events", is_flag=True, help="List every event, checkpoints one by one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (seconds, bytes).")
def command(
    run: str,
    root: str,
    metric: str | None,
    mode: str | None,
    value: str | None,
    seed_key: tuple[str, ...],
    events: bool,
    as_json: bool,
) -> int:
    """One run: its config, attempts and events, what it logged and measured, and how far it can be reproduced.

    Exit status: 0, or 1 if something in the directory could not be read (it is said what).
    """
    from loadsheet.cli.runs.show_page import page
    from loadsheet.history.index import find
    from loadsheet.history.show import account, account_json

    found = account(find(root, run), (metric, mode, value), seed_key)
    if as_json:
        show_json(account_json(found))
    else:
        show(page(found, width(), events))
    return 1 if found.problems else 0
