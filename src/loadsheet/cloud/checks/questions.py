"""What only a person can know: the account, the budget, the quota, and what is left when all is over.

Where a cloud account is at hand, a check that looks by itself says so with `settles=` and the id of the
question.
"""

from __future__ import annotations

from typing import Any, Final

from loadsheet.cloud.checklist import CannotLook, Result, unknown
from loadsheet.cloud.context import Context
from loadsheet.cloud.registry import ask, check
from loadsheet.money.price import Price
from loadsheet.units import format_money

#: hours for which an alert of AWS may not know of a cost yet: updated up to three times a day, 8 to 12 hours apart
_LATE: Final = (8, 24)

ask(
    "account.mfa",
    "Is multi-factor authentication on for the account's owner (root), and for every person in it?",
    phase="before",
    days=90,
    why="the account has a credit card or course credits behind it",
)
ask(
    "account.restricted",
    "Do you work with a user or role whose rights are limited, and never as the owner (root)?",
    phase="before",
    days=90,
    why="a leaked key opens what its owner may do: a limited one rents no machines in 20 regions",
)
ask(
    "account.liable",
    "Do you know who pays if the account is misused, and whom to call at night?",
    phase="before",
    days=180,
    why="course rules (HW0) say that costs of a stolen account may be your own",
)


@check(
    "budget.alerts",
    phase="before",
    days=60,
    question="Are there cost alerts at 50 %, 80 % and 100 % of the budget, sent to somebody?",
    why="the first sign of a forgotten machine should be a mail, not the bill",
)
def alerts(context: Context) -> Result:
    """The question, and how much is spent before the first alert can know of it."""
    return unknown(unseen(context)[0])


def unseen(context: Context) -> tuple[dict[str, Any], float | None]:
    """How late alerts are, and the most that is spent before the first, in the price's currency; None without one."""
    price = context.inputs.price
    late = f"alerts are {_LATE[0]} to {_LATE[1]} hours late"
    if not isinstance(price, Price):
        return {"fact": f"{late}: with `--price` it is said what that costs"}, None
    gpus, star = context.inputs.gpus, ""
    if gpus is None:
        try:
            gpus = context.sheet.gpus if context.sheet is not None else None
        except CannotLook:
            gpus = None
    if gpus is None:
        gpus, star = 1, context.inputs.star("gpus")
    low, high = (price.amount * gpus * hours for hours in _LATE)
    text = (
        f"{format_money(low)} to {format_money(high, price.currency)} unseen at your price, {gpus}{star} GPU"
    )
    text += "s" if gpus > 1 else ""
    return {"fact": f"{late}: {text}", "unseen_cost": high}, high


ask(
    "budget.read",
    "Are the mails of the alerts read within hours, on weekends too?",
    phase="before",
    days=60,
    why="an alert that nobody reads stops nothing",
)
ask(
    "quota.gpu",
    "Is the GPU quota (in vCPUs, for this family, region and spot or on-demand) large enough?",
    phase="before",
    days=60,
    why="new accounts often have a quota of 0: the machine does not start at all",
)
ask(
    "quota.early",
    "If a quota is asked for: is the deadline more than a week away?",
    phase="before",
    days=14,
    why="approval takes days and may be refused",
)
ask(
    "instance.choice",
    "Was on-demand or spot chosen by what is lost at an interruption (`loadsheet odds`)?",
    phase="before",
    days=30,
    why="spot is much cheaper and may be taken away at any time, with two minutes' notice or less",
)
ask(
    "run.watched",
    "Does something stop the machine when training dies or stands still (`loadsheet watch`, a timer)?",
    phase="during",
    days=7,
    why="a training that crashed at 3 AM is paid for until somebody wakes up",
)
ask(
    "after.fetched",
    "Are results and the last checkpoint somewhere that outlives the machine?",
    phase="after",
    days=3,
    why="what is on the machine is deleted with it",
)
ask(
    "after.terminated",
    "Are all machines of this experiment terminated, in every region (AWS: `loadsheet leftovers` looks)?",
    phase="after",
    days=1,
    why="most surprising bills come from something that was not switched off",
)
ask(
    "after.volumes",
    "Are the volumes of stopped and terminated machines deleted, or meant to stay (`loadsheet leftovers`)?",
    phase="after",
    days=7,
    why="a stopped machine costs nothing, its volumes cost as before",
)
ask(
    "after.removed",
    "Are snapshots, buckets, addresses and gateways that nobody needs deleted (`loadsheet leftovers`)?",
    phase="after",
    days=7,
    why="they cost a little, every month, for ever",
)
ask(
    "after.bill",
    "Did you look at the bill on the day after?",
    phase="after",
    days=7,
    why="a bill is complete a day late: what was forgotten shows then",
)
