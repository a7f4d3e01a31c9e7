"""The question of `odds` as it is asked: options as numbers or as text, and files that answer for the user."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from loadsheet.errors import BadInput, LoadsheetError, shorten
from loadsheet.money.answer import Odds
from loadsheet.money.price import parse_price
from loadsheet.money.question import REHEARSAL, Inputs, ask, from_rehearsal, from_sheet
from loadsheet.money.switch import DEADLINE
from loadsheet.money.traces import read_trace
from loadsheet.units import parse_bytes, parse_count, parse_duration, parse_share

if TYPE_CHECKING:
    from loadsheet.money.rates import Rate
    from loadsheet.sheet import Sheet

_DURATIONS: Final = (
    "work", "save", "commit", "restart", "startup", "mtbf", "notice", "failures", "every", "step", "down_mean",
    "deadline", "billed_by", "billed_least",
)  # fmt: skip
_MONEY: Final = ("price", "on_demand_price", "other_hourly", "storage_price", "egress_price", "budget")
_SIZES: Final = ("storage", "egress", "checkpoint_bytes")
_COUNTS: Final = ("machines", "jobs")
_PER: Final = {"storage_price": "GB and month", "egress_price": "GB", "budget": "job"}

#: seconds, bytes, an amount, a share, as a number; or text as on the command line
Given = float | str | None
_File = str | os.PathLike[str] | None


def odds(
    *,
    work: Given = None,
    save: Given = None,
    mtbf: Given = None,
    commit: Given = None,
    restart: Given = None,
    startup: Given = None,
    every: Given = None,
    step: Given = None,
    notice_works: Given = None,
    notice: Given = None,
    failures: Given = None,
    switch_after: Given = None,
    machines: Given = None,
    down_mean: Given = None,
    machine_now: bool | None = None,
    trace: _File = None,
    history: str | None = None,
    runs: str | os.PathLike[str] = "runs",
    rehearsal: _File = None,
    sheet: _File | Sheet = None,
    checkpoint_bytes: Given = None,
    price: Given = None,
    on_demand_price: Given = None,
    billed_by: Given = None,
    billed_least: Given = None,
    storage: Given = None,
    storage_price: Given = None,
    other_hourly: Given = None,
    egress: Given = None,
    egress_price: Given = None,
    budget: Given = None,
    deadline: Given = None,
    jobs: Given = None,
    seed: Given = None,
) -> Odds:
    """How long, how much, and how likely: a job on machines that can be taken away, as `loadsheet odds` says it.

    The names are those of its options; numbers are seconds, bytes, shares and amounts per hour, texts as they are
    typed there ("24h", "1.20 USD"). `sheet` may be what `ls.plan` gave. Raises BadInput for what is missing or
    makes no sense, BadFile for a file that is none, UnknownName for a run that there is not, LoadsheetError
    without NumPy.
    """
    options = dict(locals())
    for name in ("machine_now", "trace", "history", "runs", "rehearsal", "sheet"):
        del options[name]
    needs("loadsheet.money.odds", "odds")
    options = {name: value for name, value in options.items() if value is not None}
    values, currency = _read(options)
    inputs = Inputs({**values, "machine_now": machine_now})
    inputs.warnings += _unitless(options)
    try:
        rate = None if history is None else _history(inputs, os.fspath(runs), history)
        if sheet is not None:
            what = os.fsdecode(sheet) if isinstance(sheet, str | os.PathLike) else "sheet"
            given = sheet if isinstance(sheet, str | os.PathLike) else json.loads(sheet.to_json())
            named = from_sheet(inputs, given)
            if "price" not in values:
                currency = _one_currency(currency, named, what)
        if rehearsal is not None or ("save" not in inputs and Path(REHEARSAL).is_file()):
            from_rehearsal(inputs, rehearsal or REHEARSAL)
        found = None if trace is None else read_trace(trace, int(values.get("machines", 1)))
        return Odds(ask(inputs, trace=found, rate=rate, currency=currency))
    except LoadsheetError as error:
        error.warnings = tuple(inputs.warnings)
        raise


def needs(module: str, extra: str) -> None:
    """LoadsheetError with what to install if a module lacks the library that it is built on."""
    try:
        import_module(module)
    except ImportError as error:
        raise LoadsheetError(
            f"odds: {error.name or module} is not installed", f"pip install 'loadsheet[{extra}]'"
        ) from None


def _unitless(options: Mapping[str, float | str]) -> list[str]:
    """A warning for times that are bare numbers as text: seconds are seldom meant by `--work 24`."""
    bare = [
        f"--{name.replace('_', '-')} {shorten(text)}"
        for name, text in options.items()
        if name in _DURATIONS
        and isinstance(text, str)
        and text.strip()[-1:].isdigit()
        and parse_duration(text) > 0
    ]
    each = "each is taken" if len(bare) > 1 else "it is taken"
    return [f"no unit in {', '.join(bare)}: {each} for seconds; write h, min or s"] if bare else []


def _read(options: Mapping[str, float | str]) -> tuple[dict[str, Any], str]:
    """The options as numbers in base units, and the one currency of all that are money."""
    found: dict[str, Any] = {}
    currency = ""
    for name, given in options.items():
        if name in _DURATIONS:
            found[name] = parse_duration(given, name)
        elif name in _MONEY:
            per = _PER.get(name, "hour")
            price = parse_price(given, name, expected=f"an amount per {per} such as `2.5` or `2.50 USD`")
            currency = _one_currency(currency, price.currency, name)
            found[name] = price.amount
        elif name in _SIZES:
            found[name] = parse_bytes(given, name)
        elif name in _COUNTS:
            found[name] = parse_count(given, name)
        elif name == "switch_after":
            found[name] = given if given == DEADLINE else _after(given)
        elif name == "notice_works":
            found[name] = parse_share(given, name)
        else:
            found[name] = _seed(given)
    return found, currency


def _after(given: float | str) -> float:
    try:
        return parse_duration(given, "switch_after")
    except BadInput:
        raise BadInput(
            f"switch_after: got {shorten(given)}, expected `deadline` or a time such as `24h`"
        ) from None


def _seed(given: float | str) -> int:
    text = str(given)
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise BadInput(f"seed: got {shorten(given)}, expected a whole number from 0 on", "such as `--seed 1`")
    return int(text)


def _one_currency(known: str, new: str, what: str) -> str:
    if known and new and known != new:
        raise BadInput(
            f"{what}: got {new}, expected {known} as the other prices", "convert one of them first"
        )
    return known or new


def _history(inputs: Inputs, root: str, word: str) -> Rate:
    """What a run tells: its save and step times into `inputs`; how often its machines went."""
    needs("loadsheet.history.exposure", "run")
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
            f"history: got `{seen.path}`, which has run for no time at all, expected some", "give --mtbf"
        )
    return rate(seen.seconds, seen.interruptions)
