"""`loadsheet sign`: freeze the sheet before the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from loadsheet.cli.output import complain, show, show_json, warn, width
from loadsheet.cli.plan_options import plan_options, sheets_of
from loadsheet.closing import DoesNotFit, sign
from loadsheet.closing.signed_text import render
from loadsheet.closing.signing import of_run
from loadsheet.errors import BadInput
from loadsheet.sheet import Sheet
from loadsheet.sheet.view import header, verdict_line
from loadsheet.text import wrap
from loadsheet.units import parse_count


@click.command(name="sign")
@plan_options
@click.option("--steps", help="Optimizer steps of the run; or give --tokens.")
@click.option(
    "--checkpoint-every",
    help="How often the run will save, as `Run.steps` takes it: steps, a duration, `auto`, or `end`.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Write the signed sheet to this file.")
@click.option("--run", "run", type=click.Path(path_type=Path), help="Put it into this run directory.")
@click.option("--sign-anyway", is_flag=True, help="Sign a sheet that does not fit.")
@click.option("--json", "as_json", is_flag=True, help="Print what was signed as JSON.")
@click.option("--explain", is_flag=True, help="Print the whole sheet, with every working and source.")
@click.option("--strict", is_flag=True, help="Leave a sheet that is `tight` unsigned too.")
def command(
    model: str,
    gpu: str,
    gpus: str | None,
    steps: str | None,
    checkpoint_every: str | None,
    out: Path | None,
    run: Path | None,
    sign_anyway: bool,
    as_json: bool,
    explain: bool,
    strict: bool,
    **options: Any,
) -> int:
    """Freeze the sheet of MODEL before the run, so that `loadsheet close` can hold the run against it.

    The file holds the whole sheet, what is meant to be done (steps, tokens, saves, price), what that should
    take, and a hash of all this. The hash shows an edit; it does not prove who signed, or when.

    Every option of `loadsheet plan` goes; the sheet is that of one kind of GPU.

    Exit status: 0 signed, 1 unsigned because it does not fit, 2 the question makes no sense.
    """
    if (out is None) == (run is None):
        raise BadInput(
            f"sign: got {'neither' if out is None else 'both'} of --out and --run, expected one of them",
            "--out FILE before there is a run; --run DIR for one that is there",
        )
    place = out if run is None else of_run(run)
    assert place is not None
    count = None if steps is None else parse_count(steps, "--steps")
    alone = ("--gpu", "a run is on one kind")
    (sheet,) = sheets_of(model, gpu, gpus, options, alone=alone, steps=count)
    refused = sheet.verdict == "does_not_fit" or (strict and sheet.verdict == "tight")
    keep = None if refused and not sign_anyway else place
    signed = sign(sheet, keep, steps=count, checkpoint_every=checkpoint_every, sign_anyway=True)
    if keep is None:
        return _unsigned(sheet, signed, as_json=as_json, explain=explain)
    if refused:
        warn("this sheet was signed although it does not say that it fits")
    if as_json:
        show_json(signed)
        return 0
    show(
        "\n".join(
            [*_page(sheet, signed, explain=explain), f"signed  {place}, SHA-256 {signed['signed']['sha256']}"]
        )
    )
    return 0


def _page(sheet: Sheet, signed: dict[str, Any], *, explain: bool) -> list[str]:
    """The head of the sheet, or all of it, and the intent."""
    room = width()
    if explain:
        head = [sheet.text(width=room, explain=True)]
    else:
        head = [*wrap(header(sheet), room, "  "), "", *wrap(verdict_line(sheet), room, "  ")]
    return [*head, "", *render(signed, room)]


def _unsigned(sheet: Sheet, signed: dict[str, Any], *, as_json: bool, explain: bool) -> int:
    """The whole sheet and no signature: what is wrong with it stands there, with what would help."""
    if as_json:
        show_json({**signed, "signed": None})
    else:
        show(sheet.text(width=width(), explain=explain))
    error = DoesNotFit(f"not signed: {sheet.model.name} {_WORDS[sheet.verdict]} on {sheet.gpu.id}")
    complain("error", str(error), "change it as the sheet says, or give --sign-anyway to sign it as it is")
    return error.exit_code


_WORDS = {"does_not_fit": "does not fit", "tight": "may not fit (--strict)"}
