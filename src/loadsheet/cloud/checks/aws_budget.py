"""Amazon: a budget that warns somebody at 50, 80 and 100 %, and how much is spent before it can."""

from __future__ import annotations

from typing import Any

from loadsheet.cloud.aws.budgets import LEVELS, Budget, create_call, read_budgets
from loadsheet.cloud.aws.looked import account, caller, shown
from loadsheet.cloud.checklist import Result, fail, ok, unknown, warn
from loadsheet.cloud.checks.questions import unseen
from loadsheet.cloud.context import Context
from loadsheet.cloud.registry import check


@check(
    "aws.budget",
    phase="before",
    needs="account",
    slow=True,
    settles=("budget.alerts",),
    why="a budget of 100 USD that alerted a day late ended as a bill of 2,300",
)
def budget(context: Context) -> Result:
    """A budget that counts EC2, in its time, and sends alerts at 50, 80 and 100 % to somebody; and their delay."""
    who = caller(context)
    found = read_budgets(account(context), who.account, context.machine.time())
    create = {"fact": "what would make one, printed and not run:", "command": create_call(who.account)}
    if not found:
        return fail(
            "there is no budget", create, next="make one: the command above, with your amount and address"
        )
    counting = [b for b in found if not b.useless]
    rows = [{"fact": f"{b.name}: {b.useless}", "budget": b.name} for b in found if b.useless][:6]
    if not counting:
        return fail(
            "no budget counts here", *rows, create, next="make one that counts EC2: the command above"
        )
    best = min(counting, key=Budget.open_points)
    late, cost = unseen(context)
    row = {"fact": best.said, "budget": best.name, "limit": best.limit, "actual": best.actual}
    remarks: list[str | dict[str, Any]] = [*best.remarks, *rows, late]
    missing = [level for level in LEVELS if level not in best.levels]
    unread = next((b for b in [best, *counting] if b.unread is not None), None)
    if missing and unread is not None and unread.unread is not None:  # its alerts may be there
        text = f"the alerts of {unread.name} could not be read: {unread.unread}"
        return unknown(row, text, *remarks, next=unread.unread.next)
    if missing:
        text = f"no alert that reaches somebody at {shown(f'{level} %' for level in missing)}"
        return fail(row, text, *remarks, create, next="add them to the budget: Billing, Budgets, Alerts")
    price = context.inputs.price
    if price is not None and price.currency not in {best.unit, ""}:
        text = f"your price is in {price.currency} and the budget in {best.unit}: not compared"
        return unknown(row, text, *remarks, next=f"`--price` in {best.unit}")
    if cost is not None and cost > best.limit:
        text = f"before the first alert {cost / best.limit:.1f} budgets can be spent at your price"
        return warn(
            row, text, *remarks, next="a cap of your own (`loadsheet watch`, a timer): alerts stop nothing"
        )
    if best.remarks:
        return warn(row, *remarks, next="see above: the alert may not mean what it says")
    return ok(row, *remarks)
