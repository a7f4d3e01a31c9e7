"""`loadsheet odds`: expected time and cost on machines that are taken away, and their distribution."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import click

from loadsheet.cli.output import show, show_json, warn, width
from loadsheet.errors import BadInput, LoadsheetError, shorten
from loadsheet.money.price import parse_price
from loadsheet.money.question import REHEARSAL
from loadsheet.units import parse_bytes, parse_count, parse_duration, parse_share

_DURATIONS = (
    "work", "save", "commit", "restart", "startup", "mtbf", "notice", "failures", "every", "step", "down_mean",
    "deadline", "billed_by", "billed_least",
)  # fmt: skip
_MONEY = ("price", "on_demand_price", "other_hourly", "storage_price", "egress_price", "budget")
_SIZES = ("storage", "egress", "checkpoint_bytes")
_COUNTS = ("machines", "jobs")
_PER = {"storage_price": "GB and month", "egress_price": "GB", "budget": "job"}


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
def command(
    trace: str | None, history: str | None, runs: str, rehearsal: str | None, sheet: str | None,
    machine_now: bool | None, plot: str | None, as_json: bool, **options: str | None,
) -> int:  # fmt: skip
    """How long, how much, and how likely: a job on machines that can be taken away.

    Needs --work, --save and --mtbf, or files that tell them. Prices are yours. The answer holds for
    interruptions that come at random; what real ones do to it stands beside it as `stressed`. Write times
    with a unit: a bare number is taken for seconds, with a warning.

    Exit status: 0 answered, 1 the job does not finish, 2 usage or bad input.
    """
    _needs("loadsheet.money.odds", "odds")
    from loadsheet.money.answer import Odds
    from loadsheet.money.question import Inputs, ask, from_rehearsal, from_sheet
    from loadsheet.money.traces import read_trace

    if plot is not None:
        from loadsheet.money.odds_plot import check

        check(plot)
    values, currency = _read({k: v for k, v in options.items() if v is not None})
    inputs = Inputs({**values, "machine_now": machine_now})
    inputs.warnings += _unitless(options)
    rate = None if history is None else _history(inputs, runs, history)
    if sheet is not None:
        named = from_sheet(inputs, sheet)
        if "price" not in values:
            currency = _one_currency(currency, named, sheet)
    if rehearsal is not None or ("save" not in inputs and Path(REHEARSAL).is_file()):
        from_rehearsal(inputs, rehearsal or REHEARSAL)
    try:
        found = None if trace is None else read_trace(trace, int(values.get("machines", 1)))
        odds = Odds(ask(inputs, trace=found, rate=rate, currency=currency))
    except BadInput as error:
        raise _as_option(error) from None
    if plot is not None:  # first: where it cannot be written, nothing is printed
        from loadsheet.money.odds_plot import draw

        draw(odds, plot)
    if as_json:
        answer = odds.to_json()
        for note in answer["notes"]:
            warn(note)
        show_json(answer)
    else:
        for text in inputs.warnings:
            warn(text)
        show(odds.text(width()))
    return 1 if odds.never_done else 0


def _unitless(options: dict[str, str | None]) -> list[str]:
    """A warning for times that were given as bare numbers: seconds are seldom meant by `--work 24`."""
    bare = [
        f"--{name.replace('_', '-')} {shorten(text)}"
        for name, text in options.items()
        if name in _DURATIONS and text and text.strip()[-1:].isdigit() and parse_duration(text) > 0
    ]
    each = "each is taken" if len(bare) > 1 else "it is taken"
    return [f"no unit in {', '.join(bare)}: {each} for seconds; write h, min or s"] if bare else []


def _needs(module: str, extra: str) -> None:
    """LoadsheetError with what to install if a module lacks the library that it is built on."""
    try:
        import_module(module)
    except ImportError as error:
        raise LoadsheetError(
            f"odds: {error.name or module} is not installed", f"pip install 'loadsheet[{extra}]'"
        ) from None


def _as_option(error: BadInput) -> BadInput:
    """The error with the name of the option as it is typed here."""
    name, colon, rest = str(error).partition(": ")
    if colon and any(name == p.name for p in command.params if isinstance(p, click.Option)):
        return BadInput(f"--{name.replace('_', '-')}: {rest}", error.hint or "`loadsheet odds --help`")
    return error


def _read(options: dict[str, str]) -> tuple[dict[str, Any], str]:
    """The options as numbers in base units, and the one currency of all that are money."""
    found: dict[str, Any] = {}
    currency = ""
    for name, text in options.items():
        option = f"--{name.replace('_', '-')}"
        if name in _DURATIONS:
            found[name] = parse_duration(text, option)
        elif name in _MONEY:
            per = _PER.get(name, "hour")
            price = parse_price(text, option, expected=f"an amount per {per} such as `2.5` or `2.50 USD`")
            currency = _one_currency(currency, price.currency, option)
            found[name] = price.amount
        elif name in _SIZES:
            found[name] = parse_bytes(text, option)
        elif name in _COUNTS:
            found[name] = parse_count(text, option)
        elif name == "notice_works":
            found[name] = parse_share(text, option)
        else:
            found[name] = _seed(text)
    return found, currency


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise BadInput(
            f"--seed: got {shorten(text)}, expected a whole number from 0 on", "such as `--seed 1`"
        )
    return int(text)


def _one_currency(known: str, new: str, what: str) -> str:
    if known and new and known != new:
        raise BadInput(
            f"{what}: got {new}, expected {known} as the other prices", "convert one of them first"
        )
    return known or new


def _history(inputs: Any, root: str, word: str) -> Any:
    """What a run tells: its save and step times into `inputs`; how often its machines went."""
    _needs("loadsheet.history.exposure", "run")
    from loadsheet.history.exposure import exposure
    from loadsheet.money.rates import rate

    seen = exposure(root, word)
    source = f"measured by run {seen.path.name}"
    if seen.save_stall is not None:
        inputs.give("save", seen.save_stall, source)
        if seen.save_total is not None:
            inputs.give("commit", max(seen.save_total - seen.save_stall, 0.0), source)
    inputs.give("step", seen.step, source)
    if seen.seconds <= 0:
        raise BadInput(
            f"--history: got `{seen.path}`, which has run for no time at all, expected some", "give --mtbf"
        )
    return rate(seen.seconds, seen.interruptions)
