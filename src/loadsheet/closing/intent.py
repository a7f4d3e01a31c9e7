"""What one means to do with a sheet, in the numbers that a run will be held against.

The sheet predicts a step; the intent says how many there will be, how often the state is saved, what an hour
costs. From both follow the hours, the money, the saves, and, where one says how often the machine is taken
away, the interruptions and the steps lost to them. What nobody can know beforehand is null, with the reason.
"""

from __future__ import annotations

import math
from typing import Any, Final

from loadsheet.errors import BadInput, LoadsheetError, shorten
from loadsheet.ledger import Estimate
from loadsheet.money.price import training_cost
from loadsheet.recipe import Training, whole
from loadsheet.sheet import Sheet
from loadsheet.units import parse_duration

AT_THE_END: Final = "end"
_MOST_STEPS: Final = 10**12
_SHARE: Final = 0.9  # of the cases that an interval of counts covers

Every = int | str | None


def tokens_per_step(recipe: Any, gpus: int) -> int:
    """Tokens of one optimizer step: batch·T·accumulation on each of the GPUs."""
    return int(recipe.batch * recipe.seq * recipe.accumulation * gpus)


def steps_of(sheet: Sheet, steps: int | None) -> int:
    """The steps of the run: given, or as many as the sheet's tokens take. Raises BadInput for neither or both."""
    if not isinstance(sheet.recipe, Training):
        raise BadInput(
            f"sign: got task {sheet.recipe.task}, expected one that trains",
            "a run is held against its sheet; serving has none",
        )
    each = tokens_per_step(sheet.recipe, sheet.gpus)
    tokens = sheet.recipe.tokens
    if steps is None:
        if tokens is None:
            raise BadInput("steps: got neither steps nor tokens, expected one of them", "give --steps N")
        return math.ceil(tokens / each)
    steps = whole("steps", steps, maximum=_MOST_STEPS)
    if tokens is not None and not (steps - 1) * each < tokens <= steps * each:
        raise BadInput(
            f"steps: got {steps:,} and {tokens:,} tokens, expected them to agree: "
            f"a step has {each:,} tokens, so these take {math.ceil(tokens / each):,}",
            "give one of them",
        )
    return steps


def parse_every(value: object) -> Every:
    """How often the state is saved, as `Run.steps` takes it: steps, a duration, "auto", or "end"; BadInput.

    >>> parse_every("100"), parse_every("10 min"), parse_every(None)
    (100, '10 min', None)
    """
    if value is None:
        return None
    if isinstance(value, str) and value in ("auto", AT_THE_END):
        return value
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value.strip()[:20])
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST_STEPS:
        return value
    expected = "expected steps from 1 on, a duration above 0, `auto` or `end`"
    try:
        good = isinstance(value, str) and 0 < parse_duration(value) < math.inf
    except LoadsheetError as error:
        raise BadInput(f"checkpoint-every: got {shorten(value)}, {expected}", error.hint) from None
    if not good:
        raise BadInput(f"checkpoint-every: got {shorten(value)}, {expected}")
    return str(value)


def make_intent(sheet: Sheet, steps: int, every: Every) -> dict[str, Any]:
    """The intent as it is signed, base units; `sheet` was made with the tokens of these steps."""
    r = sheet.recipe
    assert isinstance(r, Training)  # `steps_of` has seen to it
    each = tokens_per_step(r, sheet.gpus)
    size = sheet.checkpoint_bytes["resume"]
    expected, unknown = _expected(sheet, steps, every, size)
    price = sheet.price
    return {
        "steps": steps,
        "tokens_per_step": each,
        "tokens": steps * each,
        "batch": r.batch,
        "seq": r.seq,
        "accumulation": r.accumulation,
        "gpus": sheet.gpus,
        "checkpoint_every": every,
        "checkpoint_bytes": size,
        "price": None
        if price is None
        else {
            "amount": price.amount,
            "currency": price.currency,
            "source": price.source,
            "billing_unit_seconds": price.billing_seconds,
        },
        "expected": expected,
        "not_predicted": unknown,
    }


def _expected(sheet: Sheet, steps: int, every: Every, size: int) -> tuple[dict[str, Any], dict[str, str]]:
    """What is expected of the run, and why the rest is not."""
    unknown: dict[str, str] = {}
    step = sheet.compute.step_seconds
    running = step * steps
    spot = None if sheet.money is None else sheet.money.interruptions
    stall = None if sheet.calibration is None else _of_size(sheet.calibration.save_stall_per_byte, size)
    total = None if sheet.calibration is None else _of_size(sheet.calibration.save_total_per_byte, size)
    if spot is not None:
        stall = Estimate(spot.given.save, spot.given.save, spot.given.save, "given")
    if stall is None:
        unknown["save_stall_seconds"] = (
            "no closed run on this hardware has measured a save; give --calibration"
        )
    saves = count_saves(steps, every, running)
    if saves is None:
        unknown["saves"] = (
            "how often is not said; give --checkpoint-every" if every is None else "`auto` measures first"
        )
    saving = None if stall is None or saves is None else _times(stall, saves)
    interruptions = lost = None
    if spot is None:
        unknown["interruptions"] = "how often the machine is taken is not said; give --mtbf"
        seconds = running if saving is None else running + saving
    else:
        seconds = spot.hours * 3600.0
        interruptions = poisson_interval(spot.count)
        interval = every * step.mid if isinstance(every, int) else spot.every
        most = interval / step.mid
        lost = Estimate(
            0.0, interruptions.mid * most / 2, interruptions.high * most, "0 to one interval each"
        )
    hours = seconds * (sheet.gpus / 3600)
    price, cost = sheet.price, None
    if price is None:
        unknown["cost"] = "no price is given; give --price"
    elif spot is not None:
        cost = hours * price.amount  # over several machines: as used, as in the sheet
    else:
        cost = training_cost(hours, price, gpus=sheet.gpus).estimate

    def shown(value: Estimate | None) -> dict[str, Any] | None:
        return None if value is None else value.to_json()

    return {
        "step_seconds": shown(step),
        "running_seconds": shown(running),
        "saves": shown(saves),
        "save_stall_seconds": shown(stall),
        "save_total_seconds": shown(total),
        "saving_seconds": shown(saving),
        "interruptions": shown(interruptions),
        "lost_steps": shown(lost),
        "seconds": shown(seconds),
        "gpu_hours": shown(hours),
        "cost": shown(cost),
    }, unknown


def count_saves(steps: int, every: Every, running: Estimate) -> Estimate | None:
    """The saves of an uninterrupted run: before the first step, every so often, and at the end.

    >>> count_saves(600, 100, Estimate(1.0, 1.0, 1.0)).mid, count_saves(5, 2, Estimate(1.0, 1.0, 1.0)).mid
    (7, 4)
    """
    if every is None or every == "auto":
        return None

    if every == AT_THE_END:
        return Estimate(2, 2, 2)
    if isinstance(every, int):
        number = 2 + (steps - 1) // every
        return Estimate(number, number, number)
    seconds = parse_duration(every)
    ends = (running.low, running.mid, running.high)
    return Estimate(*(2 + math.floor(min(end / seconds, steps - 1)) for end in ends))


def _of_size(per_byte: Estimate | None, size: int) -> Estimate | None:
    return None if per_byte is None else per_byte * size


def _times(each: Estimate, count: Estimate) -> Estimate:
    return Estimate(each.low * count.low, each.mid * count.mid, each.high * count.high, each.reason)


def poisson_interval(mean: float, share: float = _SHARE) -> Estimate:
    """The mean, and the counts between which a Poisson variable lies in `share` of the cases.

    The smallest n with P(N ≤ n) ≥ (1 − share)/2, and the smallest with P(N ≤ n) ≥ (1 + share)/2. For a mean of
    2 and 90 %: P(N ≤ 0) = 0.135, P(N ≤ 4) = 0.947, P(N ≤ 5) = 0.983. Above 500 by the normal curve (Wilson
    and Hilferty 1931).

    >>> poisson_interval(2.0).low, poisson_interval(2.0).high, poisson_interval(0.0).high
    (0, 5, 0)
    """
    tail = (1 - share) / 2
    reason = f"{share:.0%} of a Poisson distribution"
    if mean > 500:
        from statistics import NormalDist

        z = NormalDist().inv_cdf(1 - tail)

        def root(sign: int) -> float:
            return 1 - 1 / (9 * mean) + sign * z / (3 * math.sqrt(mean))

        return Estimate(math.floor(mean * root(-1) ** 3), mean, math.ceil(mean * root(1) ** 3), reason)
    low = high = None
    term = below = math.exp(-mean)
    n = 0
    while high is None:
        if low is None and below >= tail:
            low = n
        if below >= 1 - tail:
            high = n
        n += 1
        term *= mean / n
        below += term
    return Estimate(low, mean, high, reason)
