"""Azure: rights, budget and GPU quota, where `az` is logged in; else the question, to answer by hand."""

from __future__ import annotations

from typing import Any, Final

from loadsheet.cloud.aws.budgets import LEVELS
from loadsheet.cloud.checklist import CannotLook, Result, fail, ok, unknown, warn
from loadsheet.cloud.checks.questions import unseen
from loadsheet.cloud.context import Context
from loadsheet.cloud.provider_tools import asked, asked_list, number, table
from loadsheet.cloud.registry import check

_RIGHTS: Final = "look in the portal: Subscription, Access control. Are you Owner?"
_BUDGET: Final = "look in the portal: Cost Management, Budgets. Are there alerts at 50, 80 and 100 %?"
_QUOTA: Final = (
    "look in the portal: Subscription, Usage + quotas. What does the family of your machine allow?"
)
_ALL: Final = frozenset({"Owner", "User Access Administrator", "Role Based Access Control Administrator"})
#: families of machines with GPUs, as list-usage names them
_GPU_FAMILIES: Final = ("standardnc", "standardnd", "standardnv", "standardng")
_SPOT: Final = "lowPriorityCores"


@check(
    "azure.rights",
    phase="before",
    needs="account",
    slow=True,
    settles=("account.restricted",),
    why="a leaked key opens what its owner may do: an owner's opens everything",
)
def rights(context: Context) -> Result:
    """Whether the account of az is Owner of the subscription, or may make itself one."""
    account = table(asked(context, "azure account", _RIGHTS))
    user, subscription = str(table(account.get("user")).get("name", "")), str(account.get("id", ""))
    if not user:
        raise CannotLook("az is logged in as nobody", f"`az login`, or {_RIGHTS}")
    found = asked_list(context, "azure rights", _RIGHTS, user=user)
    held = sorted({str(row.get("roleDefinitionName")) for row in found})
    row: dict[str, Any] = {"fact": f"{user} in {subscription}: {', '.join(held) or 'no role'}", "roles": held}
    if set(held) & _ALL:
        return warn(row, next="work with an account that is Contributor of one resource group")
    return ok(row) if held else unknown(row, next=_RIGHTS)


@check(
    "azure.budget",
    phase="before",
    needs="account",
    slow=True,
    settles=("budget.alerts",),
    why="the first sign of a forgotten machine should be a mail, not the bill",
)
def budget(context: Context) -> Result:
    """A budget of the subscription whose notifications at 50, 80 and 100 % of what was spent go to somebody."""
    found = asked_list(context, "azure budgets", _BUDGET)
    late = unseen(context)[0]
    if not found:
        return fail("there is no budget", late, next="make one: Cost Management, Budgets")
    best: set[int] = set()
    part: set[int] = set()
    for entry in found:
        levels = set()
        notifications = table(entry.get("notifications")) or table(
            table(entry.get("properties")).get("notifications")
        )
        for alert in map(table, notifications.values()):
            percent = number(alert.get("threshold"))
            heard = any(alert.get(key) for key in ("contactEmails", "contactGroups", "contactRoles"))
            actual = str(alert.get("thresholdType") or "Actual") == "Actual"
            if percent is None or not heard or not actual or alert.get("enabled") is False:
                continue
            levels |= {b for a, b in zip((0, *LEVELS), LEVELS, strict=False) if a < percent <= b}
        if entry.get("filter") or table(entry.get("properties")).get("filter"):
            part = max(part, levels, key=len)
        else:
            best = max(best, levels, key=len)
    missing = [f"{level} %" for level in LEVELS if level not in best]
    if missing and len(part) == len(LEVELS):
        return unknown("the budget has a filter, and what it counts is not looked up", late, next=_BUDGET)
    if missing:
        text = f"no alert that reaches somebody at {', '.join(missing)}, of {len(found)} budgets"
        return fail(text, late, next="add them: Cost Management, Budgets")
    return ok(f"{len(found)} budgets, one of them with alerts at 50, 80 and 100 %", late)


@check(
    "azure.quota",
    phase="before",
    needs="account",
    slow=True,
    why="new subscriptions have a quota of 0 for most machines with GPUs",
)
def quota(context: Context) -> Result:
    """The vCPUs that families with GPUs (and spot, for all families) allow in each `--region`, minus what runs."""
    if not context.inputs.regions:
        asked(context, "azure account", _QUOTA)
        return unknown("no region is named", next=f"`--region eastus`, or {_QUOTA}")
    shown: list[dict[str, Any]] = []
    spot: list[dict[str, Any]] = []
    for region in context.inputs.regions:
        for usage in asked_list(context, "azure usage", _QUOTA, region=region):
            name = str(table(usage.get("name")).get("value", ""))
            limit, used = number(usage.get("limit")), number(usage.get("currentValue"))
            if limit is None or used is None:
                continue
            left = max(limit - used, 0.0)
            row = {
                "fact": f"{region}, {name}: {limit:g} vCPUs allowed, {used:g} in use, {left:g} left",
                "left": left,
            }
            if name == _SPOT:
                spot.append(row)
            elif name.lower().startswith(_GPU_FAMILIES):
                shown.append(row)
    of_interest = spot if context.inputs.spot else shown
    some = [row for row in shown if row["left"] > 0][:8]
    if of_interest and not any(row["left"] for row in of_interest):
        text = f"nothing left in any of {len(of_interest)} quotas{' for spot' if context.inputs.spot else ' for GPUs'}"
        return fail(text, *spot, next="ask for more today: approval takes days, and may be refused")
    return unknown(*some, *spot, "which of them your machine takes is not looked up", next=_QUOTA)
