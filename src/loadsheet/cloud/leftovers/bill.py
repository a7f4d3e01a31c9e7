"""Yesterday's bill as Cost Explorer tells it: each request costs, so it is asked only where that is allowed."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any, Final

from loadsheet.cloud.aws.failures import CallFailed
from loadsheet.cloud.aws.session import Account
from loadsheet.cloud.leftovers.item import clean

#: USD for each request, aws.amazon.com/aws-cost-management/aws-cost-explorer/pricing (from a stored copy of the page,
#: 2026-11-30); that each further page is one more request is as recalled
COST: Final = 0.01
_GROUPS: Final = (("SERVICE", "REGION"), ("SERVICE", "USAGE_TYPE"))
_PAGES: Final = 5  # of each question, at most


def bill(
    account: Account, today: datetime.date, tell: Callable[[str], None]
) -> tuple[dict[str, Any], CallFailed | None]:
    """What yesterday cost, by service and region and by service and usage type; and what was not told of it.

    `tell` is called before each request, with what it costs. What was paid for is kept when a later one fails.
    """
    day = today - datetime.timedelta(days=1)
    found: dict[str, Any] = {"day": day.isoformat(), "estimated": False, "requests": 0, "currency": ""}
    failed: CallFailed | None = None
    for pair in _GROUPS:
        rows: list[dict[str, Any]] = []
        try:
            if failed is None:
                _read(account, day, pair, found, rows, tell)
        except CallFailed as error:
            failed = error
        rows = [row for row in rows if row["amount"]]
        found["by_" + pair[1].lower()] = sorted(rows, key=lambda row: -row["amount"])
    found["whole"] = failed is None
    return found, failed


def _read(
    account: Account,
    day: datetime.date,
    pair: tuple[str, str],
    found: dict[str, Any],
    rows: list[dict[str, Any]],
    tell: Callable[[str], None],
) -> None:
    """The pages of one question, added to `rows` one by one; CallFailed."""
    names = [name.lower() for name in pair]
    token: str | None = None
    for page in range(_PAGES + 1):
        if page == _PAGES:
            raise CallFailed(f"the bill has more than {_PAGES} pages, the rest is not asked for", kind="many")
        found["requests"] += 1
        tell(f"Cost Explorer, request {found['requests']}: AWS bills {COST} USD for it")
        answer = account.call(
            "ce", "get_cost_and_usage", region=account.base,
            TimePeriod={"Start": day.isoformat(), "End": (day + datetime.timedelta(days=1)).isoformat()},
            Granularity="DAILY", Metrics=["UnblendedCost"],
            GroupBy=[{"Type": "DIMENSION", "Key": key} for key in pair],
            **({"NextPageToken": token} if token else {}),
        )  # fmt: skip
        parts = answer.get("ResultsByTime")
        if not parts and not page:  # of a day without a charge there is a part, too, without groups
            raise CallFailed("ce gave no answer to GetCostAndUsage that can be read (no ResultsByTime in it)")
        for part in parts or ():
            found["estimated"] |= bool(part.get("Estimated"))
            for group in part.get("Groups") or ():
                cost = (group.get("Metrics") or {}).get("UnblendedCost") or {}
                found["currency"] = clean(cost.get("Unit", ""))
                keys = [clean(key) for key in group.get("Keys") or ()]
                rows.append({**dict(zip(names, keys, strict=False)), "amount": _amount(cost)})
        token = answer.get("NextPageToken")
        if not token:
            return


def _amount(cost: dict[str, Any]) -> float:
    """The number of an amount; 0 if it is none."""
    try:
        value = float(cost.get("Amount") or 0)
    except ValueError:
        raise CallFailed(f"Cost Explorer answers {clean(cost)[:60]}, which is no amount") from None
    if not abs(value) < 1e15:  # nan, too
        raise CallFailed(f"Cost Explorer answers {clean(cost)[:60]}, which is no amount")
    return value
