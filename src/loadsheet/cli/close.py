"""`loadsheet close`: predicted beside measured."""

from __future__ import annotations

from pathlib import Path

import click

from loadsheet.cli.output import show, show_json, warn, width
from loadsheet.errors import LoadsheetError


@click.command(name="close")
@click.argument("run")
@click.option("--runs", "root", type=click.Path(), default="runs", help="The folder of runs. [runs]")
@click.option(
    "--sheet", type=click.Path(path_type=Path), help="The signed sheet, if the run has none of its own."
)
@click.option("--price", help="What was paid per GPU hour, if not what the sheet says.")
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    help="Append what was measured to this file, for `plan --calibration` and `sign --calibration`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (bytes, seconds).")
@click.option("--strict", is_flag=True, help="Exit 1 if something lies outside its predicted range.")
def command(
    run: str,
    root: str,
    sheet: Path | None,
    price: str | None,
    calibration: Path | None,
    as_json: bool,
    strict: bool,
) -> int:
    """Hold RUN against its signed sheet: predicted, measured, ratio, and which assumption was off.

    RUN: a run directory, or a fingerprint or the beginning of one below --runs. A run that is not done
    is compared so far. What was not measured is said to be so, with the reason; it is never taken for
    right.

    Exit status: 0 closed, 1 with --strict if something is outside its range, 2 there is nothing to
    compare.
    """
    try:
        from loadsheet.closing import close
        from loadsheet.history.index import find
    except ModuleNotFoundError as error:
        if error.name != "msgspec":
            raise
        raise LoadsheetError(
            f"close: got no {error.name}, expected it to be installed", "pip install 'loadsheet[run]'"
        ) from None
    found = close(find(root, run).path, sheet=sheet, price=price)
    if as_json:
        show_json(found.to_dict())
    else:
        show(found.text(width=width()))
    if calibration is not None:
        found.append_to(calibration)
        warn(f"appended to {calibration}") if as_json else show(f"appended to {calibration}")
    return 1 if strict and found.outside else 0
