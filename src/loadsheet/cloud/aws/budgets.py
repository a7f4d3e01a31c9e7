"""The budgets of an account, and what their alerts are worth."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from loadsheet.cloud.aws.failures import CallFailed
from loadsheet.cloud.aws.session import GLOBAL, Account
from loadsheet.errors import one_line

LEVELS: Final = (50, 80, 100)  # percent, of the lecture's list
_MOST: Final = 200  # budgets whose alerts are read
#: how Budgets names what machines are: values of its filter by service
_EC2: Final = "Amazon Elastic Compute Cloud - Compute"
#: filters under which EC2 still counts, but not all of it
_PART: Final = ("Region", "AZ", "LinkedAccount", "TagKeyValue", "CostCategory", "UsageType", "UsageTypeGroup",
                "InstanceType", "Operation", "PurchaseType", "InvoicingEntity", "LegalEntityName")  # fmt: skip


@dataclass(frozen=True)
class Budget:
    """One budget; `useless` says why it cannot warn of a forgotten machine, `levels` are alerts that reach somebody."""

    name: str
    limit: float
    unit: str
    period: str
    actual: float | None = None
    useless: str = ""
    levels: frozenset[int] = frozenset()
    remarks: tuple[str, ...] = ()
    unread: CallFailed | None = field(default=None, compare=False)

    def open_points(self) -> tuple[bool, int, int]:
        """What is missing, for finding the best of several."""
        return self.unread is not None, len(LEVELS) - len(self.levels), len(self.remarks)

    @property
    def said(self) -> str:
        """The budget in a sentence."""
        spent = "" if self.actual is None else f", {self.actual:,.2f} of it spent as far as AWS knows"
        levels = ", ".join(f"{level} %" for level in sorted(self.levels)) or "none"
        alerts = "" if self.unread is not None else f"; alerts at {levels}"
        return f"{self.name}: {self.limit:,.2f} {self.unit} {self.period}{spent}{alerts}"


def read_budgets(account: Account, number: str, now: float) -> list[Budget]:
    """Every budget of the account `number`; `now` in seconds since 1970."""
    found: list[Budget] = []
    for row in account.items("budgets", "describe_budgets", "Budgets", region=GLOBAL, AccountId=number):
        plain = parse_budget(row, now)
        if not plain.useless:
            asked = len(found) < _MOST
            plain = _with_alerts(account, number, plain) if asked else replace(plain, unread=_too_many())
        found.append(plain)
    return found


def _too_many() -> CallFailed:
    return CallFailed(f"of more than {_MOST} budgets the alerts of the others are not read", kind="many")


def parse_budget(row: Mapping[str, Any], now: float) -> Budget:
    """A budget as `describe_budgets` gives it."""
    limit = _amount(row.get("BudgetLimit"))
    unit = str((row.get("BudgetLimit") or {}).get("Unit", ""))[:10]
    useless, remarks = "", []
    period = row.get("TimePeriod") or {}
    start, end = period.get("Start"), period.get("End")
    filters = {str(key): value for key, value in (row.get("CostFilters") or {}).items() if value}
    services = filters.get("Service", [])
    if row.get("BudgetType") != "COST":
        useless = f"counts {str(row.get('BudgetType', 'nothing')).lower()}, not cost"
    elif isinstance(end, datetime.datetime) and end.timestamp() < now:
        useless = f"ended on {end.date()}"
    elif isinstance(start, datetime.datetime) and start.timestamp() > now:
        useless = f"begins only on {start.date()}"
    elif services and not any(str(service) == _EC2 for service in services):
        useless = "counts only services without EC2's machines"
    elif limit is None or limit <= 0:
        useless = "has no limit"
    if row.get("FilterExpression"):
        remarks.append("it has a filter expression, which is not read here: see that it counts EC2")
    part = [key for key in filters if key in _PART]
    if part:
        remarks.append(f"it counts only a part (filtered by {', '.join(part)})")
    if (row.get("CostTypes") or {}).get("IncludeCredit", False):
        remarks.append("it counts credits as income: the alert comes when they are used up")
    return Budget(
        name=one_line(str(row.get("BudgetName", "")))[:100],
        limit=limit or 0.0,
        unit=unit,
        period=str(row.get("TimeUnit", "")).lower(),
        actual=_amount((row.get("CalculatedSpend") or {}).get("ActualSpend")),
        useless=useless,
        remarks=tuple(remarks),
    )


def _amount(spend: object) -> float | None:
    try:
        value = float(spend["Amount"])  # type: ignore[index]
    except (KeyError, TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _with_alerts(account: Account, number: str, plain: Budget) -> Budget:
    """The budget with the levels at which somebody hears of it."""
    about: dict[str, Any] = {"region": GLOBAL, "AccountId": number, "BudgetName": plain.name}
    levels: set[int] = set()
    remarks = list(plain.remarks)
    unheard = 0
    try:
        for alert in account.items("budgets", "describe_notifications_for_budget", "Notifications", **about):
            level = reached(alert, plain.limit)
            if level is None:
                continue
            keys = ("NotificationType", "ComparisonOperator", "Threshold", "ThresholdType")
            asked = {key: alert[key] for key in keys if key in alert}
            heard = account.items(
                "budgets", "describe_subscribers_for_notification", "Subscribers", Notification=asked, **about
            )
            if any(one.get("Address") for one in heard):
                levels.add(level)
            else:
                unheard += 1
    except CallFailed as error:
        return replace(plain, unread=error)
    if unheard:
        remarks.append(f"{unheard} of its alerts go to nobody")
    return replace(plain, levels=frozenset(levels), remarks=tuple(remarks))


def reached(alert: Mapping[str, Any], limit: float) -> int | None:
    """Which of 50, 80 and 100 % an alert stands for: the first that is not below it; of money spent only.

    >>> reached({"NotificationType": "ACTUAL", "ComparisonOperator": "GREATER_THAN", "Threshold": 75.0}, 100)
    80
    """
    if alert.get("NotificationType") != "ACTUAL" or alert.get("ComparisonOperator") != "GREATER_THAN":
        return None
    try:
        percent = float(alert.get("Threshold", math.nan))
    except (TypeError, ValueError):
        return None
    if alert.get("ThresholdType") == "ABSOLUTE_VALUE":
        percent = 100 * percent / limit
    return next((level for level in LEVELS if 0 < percent <= level), None)


def create_call(number: str) -> str:
    """The command that makes a budget with three alerts; amount and address are the user's to fill in."""
    budget = {
        "BudgetName": "all-costs",
        "BudgetLimit": {"Amount": "AMOUNT", "Unit": "USD"},
        "TimeUnit": "MONTHLY",
        "BudgetType": "COST",
        "CostTypes": {"IncludeCredit": False, "IncludeRefund": False},
    }
    alerts = [
        {
            "Notification": {
                "NotificationType": "ACTUAL",
                "ComparisonOperator": "GREATER_THAN",
                "Threshold": level,
                "ThresholdType": "PERCENTAGE",
            },
            "Subscribers": [{"SubscriptionType": "EMAIL", "Address": "YOU@EXAMPLE.ORG"}],
        }
        for level in LEVELS
    ]
    return (
        f"aws budgets create-budget --account-id {number} --budget '{json.dumps(budget)}' "
        f"--notifications-with-subscribers '{json.dumps(alerts)}'"
    )
