"""Google Cloud: rights, budget and GPU quota, where `gcloud` is logged in; else the question, to answer by hand."""

from __future__ import annotations

from typing import Any, Final

from loadsheet.cloud.aws.budgets import LEVELS
from loadsheet.cloud.checklist import CannotLook, Result, fail, ok, unknown, warn
from loadsheet.cloud.checks.questions import unseen
from loadsheet.cloud.context import Context
from loadsheet.cloud.provider_tools import asked, asked_list, number, rows, table
from loadsheet.cloud.registry import check

_RIGHTS: Final = "look in the console: IAM. Are you Owner of the project?"
_BUDGET: Final = "look in the console: Billing, Budgets & alerts. Are there alerts at 50, 80 and 100 %?"
_QUOTA: Final = "look in the console: IAM, Quotas. What do GPUS_ALL_REGIONS and your GPU's metric allow?"
_ALL: Final = frozenset({"roles/owner", "roles/resourcemanager.organizationAdmin", "roles/iam.securityAdmin"})


def _project(context: Context, by_hand: str) -> tuple[str, str]:
    """The account and project that gcloud is set to."""
    core = table(table(asked(context, "gcp configuration", by_hand)).get("core"))
    if not core.get("account") or not core.get("project"):
        raise CannotLook("gcloud is set to no account and project", f"`gcloud init`, or {by_hand}")
    return str(core["account"]), str(core["project"])


@check(
    "gcp.rights",
    phase="before",
    needs="account",
    slow=True,
    settles=("account.restricted",),
    why="a leaked key opens what its owner may do: an owner's opens everything",
)
def rights(context: Context) -> Result:
    """Whether the account of gcloud is named as an owner in the project's policy; groups are not looked into."""
    account, project = _project(context, _RIGHTS)
    policy = table(asked(context, "gcp rights", _RIGHTS, project=project))
    held, groups = [], False
    for binding in rows(policy.get("bindings")):
        members = [str(m) for m in binding.get("members") or ()]
        role = str(binding.get("role"))
        groups |= role in _ALL and any(m.startswith(("group:", "domain:")) for m in members)
        if any(m in {f"user:{account}", f"serviceAccount:{account}"} for m in members):
            held.append(role)
    row: dict[str, Any] = {
        "fact": f"{account} in {project}: {', '.join(held) or 'no role of its own'}",
        "roles": held,
    }
    if set(held) & _ALL:
        return warn(row, next="work with an account that may only use Compute Engine and Storage")
    if groups or not held:
        return unknown(row, "groups, folders and the organisation may give more", next=_RIGHTS)
    return ok(row)


@check(
    "gcp.budget",
    phase="before",
    needs="account",
    slow=True,
    settles=("budget.alerts",),
    why="the first sign of a forgotten machine should be a mail, not the bill",
)
def budget(context: Context) -> Result:
    """A budget of the billing account with thresholds at 50, 80 and 100 % of what was spent."""
    _, project = _project(context, _BUDGET)
    billing = str(
        table(asked(context, "gcp billing", _BUDGET, project=project)).get("billingAccountName", "")
    )
    if not billing:
        return unknown("the project has no billing account", next=_BUDGET)
    found = asked_list(context, "gcp budgets", _BUDGET, account=billing.rpartition("/")[2])
    late = unseen(context)[0]
    if not found:
        return fail("there is no budget", late, next="make one: Billing, Budgets & alerts")
    best: set[int] = set()
    part: set[int] = set()
    for entry in found:
        filters = table(entry.get("budgetFilter"))
        if filters.get("services"):
            continue  # of some services only
        levels = set()
        for rule in rows(entry.get("thresholdRules")):
            share = number(rule.get("thresholdPercent"))
            if share is not None and rule.get("spendBasis", "CURRENT_SPEND") in {
                "CURRENT_SPEND",
                "BASIS_UNSPECIFIED",
            }:
                levels |= {b for a, b in zip((0, *LEVELS), LEVELS, strict=False) if a < 100 * share <= b}
        mails = not table(entry.get("notificationsRule")).get("disableDefaultIamRecipients")
        if mails or table(entry.get("notificationsRule")).get("monitoringNotificationChannels"):
            if any(filters.get(name) for name in ("projects", "resourceAncestors", "subaccounts", "labels")):
                part = max(part, levels, key=len)
            else:
                best = max(best, levels, key=len)
    missing = [f"{level} %" for level in LEVELS if level not in best]
    if missing and len(part) == len(LEVELS):
        return unknown(
            "the budget counts some projects or labels only, which is not looked up", late, next=_BUDGET
        )
    if missing:
        text = f"no alert that reaches somebody at {', '.join(missing)}, of {len(found)} budgets"
        return fail(text, late, next="add them: Billing, Budgets & alerts")
    return ok(f"{len(found)} budgets, one of them with alerts at 50, 80 and 100 %", late)


@check(
    "gcp.quota",
    phase="before",
    needs="account",
    slow=True,
    why="new projects have a quota of 0 GPUs over all regions: the machine does not start at all",
)
def quota(context: Context) -> Result:
    """GPUS_ALL_REGIONS of the project, and the GPU metrics of each `--region`; newer GPUs are not among them."""
    _, project = _project(context, _QUOTA)
    need = context.inputs.gpus or 1
    quotas = rows(table(asked(context, "gcp project", _QUOTA, project=project)).get("quotas"))
    overall = [row for row in quotas if row.get("metric") == "GPUS_ALL_REGIONS"]
    shown: list[dict[str, Any]] = []
    for region in context.inputs.regions:
        found = rows(
            table(asked(context, "gcp region", _QUOTA, region=region, project=project)).get("quotas")
        )
        gpus = [
            r for r in found if "NVIDIA" in str(r.get("metric")) and "COMMITTED" not in str(r.get("metric"))
        ]
        shown += [_row(region, r) for r in gpus if number(r.get("limit"))][:8]
    head = [_row("all regions", row) for row in overall]
    if head and head[0]["left"] is not None and head[0]["left"] < need:
        return fail(*head, *shown, next="ask for more today: approval takes days, and may be refused")
    hint = _QUOTA if context.inputs.regions else f"`--region us-central1`, or {_QUOTA}"
    return unknown(*head, *shown, "which of them your machine takes is not looked up", next=hint)


def _row(where: str, quota: dict[str, Any]) -> dict[str, Any]:
    limit, used = number(quota.get("limit")), number(quota.get("usage"))
    left = None if limit is None or used is None else max(limit - used, 0.0)
    said = "cannot be read" if left is None else f"{limit:g} allowed, {used:g} in use, {left:g} left"
    return {"fact": f"{where}, {quota.get('metric')}: {said}", "limit": limit, "used": used, "left": left}
