"""`loadsheet odds`: expected time and cost on machines that are taken away, and their distribution."""

from __future__ import annotations

from typing import Any

import click

from loadsheet.cli.output import show, show_json, warn, width
from loadsheet.errors import BadInput
from loadsheet.money.question import REHEARSAL


@click.command(name="odds")
@click.option("--work", help="Hours of useful work, such as 24h.")
@click.option("--save", help="How long a save stops the training, such as 5min.")
@click.option("--commit", help="From there until the save is durable, in the background. [0]")
@click.option("--restart", help="From a new machine to the first step: boot, pull, load, warm up. [10min]")
@click.option("--startup", help="The same at the first start. [as --restart]")
@click.option("--mtbf", help="Mean time between interruptions of one machine while it runs, such as 6h.")
@click.option("--every", help="Work between two saves. [what costs least]")
@click.option("--step", help="Seconds of a training step: saves stand between steps.")
@click.option("--notice-works", help="Share of interruptions whose notice lets a save be made in time. [0]")
@click.option("--notice", help="From the notice until the machine goes. [2min]")
@click.option("--failures", help="Mean time between failures without notice, on demand too. [none]")
@click.option(
    "--switch-after",
    metavar="T|deadline",
    help="Take on demand once no spot machine is there by then: a time, or as late as --deadline allows.",
)
@click.option("--machines", help="How many machines of which any stops the job. [1]")
@click.option("--down-mean", help="Mean wait for a machine after an interruption; 0 if one is there at once.")
@click.option(
    "--machine-now/--no-machine-now",
    default=None,
    help="Whether a machine is there at the start. [with M/(M + D): as at a random time]",
)
@click.option(
    "--trace",
    type=click.Path(),
    help="CSV or JSON of when a machine was there: `state,seconds` or `start,end`; instead of --mtbf and --down-mean.",
)
@click.option(
    "--history", metavar="RUN", help="Learn M and the save times from a run: directory or fingerprint."
)
@click.option("--runs", default="runs", type=click.Path(), help="Where --history finds a fingerprint. [runs]")
@click.option(
    "--rehearsal",
    type=click.Path(),
    help=f"Learn save and step times from a rehearsal. [{REHEARSAL} if there is one]",
)
@click.option(
    "--sheet", type=click.Path(), help="Learn work and price from a signed sheet or a `plan --json`."
)
@click.option(
    "--checkpoint-bytes",
    help="Size of the real checkpoint: a rehearsal's save is scaled to it. [from --sheet]",
)
@click.option("--price", help="Your price per machine hour.")
@click.option("--on-demand-price", help="The same for a machine that stays.")
@click.option("--billed-by", help="A machine's time is charged in whole ones of these. [1s]")
@click.option("--billed-least", help="At least so much is charged of every machine, such as 1min. [0]")
@click.option(
    "--storage", help="What is stored meanwhile, such as 500GB. [3 checkpoints, if their size is known]"
)
@click.option("--storage-price", help="Per GB and month of 730 h, waits included.")
@click.option(
    "--other-hourly", help="What else costs by the hour, waits included: addresses, a machine that watches."
)
@click.option("--egress", help="What is downloaded at the end, such as 50GB.")
@click.option("--egress-price", help="Per GB.")
@click.option("--budget", help="How likely is it that the job costs no more than this?")
@click.option("--deadline", help="How likely is it that it is done after this, such as 36h?")
@click.option(
    "--jobs", help="How many jobs to simulate; together at most 10,000,000 random numbers. [100,000]"
)
@click.option("--seed", help="Of the simulation. [0]")
@click.option(
    "--plot", type=click.Path(), help="Draw the distributions and the interval: FILE.png, .svg, .pdf."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (seconds, bytes, your currency).")
def command(plot: str | None, as_json: bool, **options: Any) -> int:
    """How long, how much, and how likely: a job on machines that can be taken away.

    Needs --work, --save and --mtbf, or files that tell them. Prices are yours. The answer holds for
    interruptions that come at random; what real ones do to it stands beside it as `stressed`. Write times
    with a unit: a bare number is taken for seconds, with a warning.

    Exit status: 0 answered, 1 most simulated jobs do not finish, 2 usage or bad input, and a job that hardly
    ever gets from one save to the next, of which there is no page.
    """
    from loadsheet.history.asked import needs, odds

    needs("loadsheet.money.odds", "odds")
    if plot is not None:
        from loadsheet.money.odds_plot import check

        check(plot)
    try:
        found = odds(**options)
    except BadInput as error:
        raise _as_option(error) from None
    if plot is not None:  # first: where it cannot be written, nothing is printed
        from loadsheet.money.odds_plot import draw

        draw(found, plot)
    if as_json:
        answer = found.to_json()
        for note in answer["notes"]:
            warn(note)
        show_json(answer)
    else:
        for text in found.question.warnings:
            warn(text)
        show(found.text(width()))
    return 1 if found.never_done else 0


def _as_option(error: BadInput) -> BadInput:
    """The error with the name of the option as it is typed here."""
    name, colon, rest = str(error).partition(": ")
    if colon and any(name == p.name for p in command.params if isinstance(p, click.Option)):
        named = BadInput(f"--{name.replace('_', '-')}: {rest}", error.hint or "`loadsheet odds --help`")
        named.warnings = error.warnings
        return named
    return error
