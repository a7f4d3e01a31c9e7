"""Amazon: who asks, with which rights, in whose organisation, and whether Amazon thinks that a key is public."""

from __future__ import annotations

from typing import Any, Final

from loadsheet.cloud.aws.failures import CallFailed, is_missing
from loadsheet.cloud.aws.looked import Caller, account, attached, caller, principal, shown
from loadsheet.cloud.aws.session import GLOBAL
from loadsheet.cloud.checklist import CannotLook, Result, fail, not_applicable, ok, unknown, warn
from loadsheet.cloud.context import Context
from loadsheet.cloud.registry import check

#: managed policies of AWS with which one may do everything, or give oneself the right to
_ALL: Final = frozenset({"AdministratorAccess", "AdministratorAccess-Amplify", "IAMFullAccess"})
#: what only an administrator should be able to do, and what whoever rents must be able to do
_RISKY: Final = ("iam:CreateUser", "iam:AttachUserPolicy", "iam:CreateAccessKey")
_NEEDED: Final = ("ec2:TerminateInstances",)
_QUARANTINE: Final = "AWSCompromisedKeyQuarantine"
#: docs.aws.amazon.com/aws-managed-policy/latest/reference has four, from stored copies of the pages; the first,
#: of 2020, has no number, V4 is of 2026-11-06. A later one would not be asked for, but seen on the caller
_VERSIONS: Final = ("", "V2", "V3", "V4")
_ROTATE: Final = (
    "make a new key, put it where the old one was used, delete the old one, look for what was started with it "
    "(every region); leave the policy attached until then, and answer AWS's case"
)


@check(
    "aws.caller",
    phase="before",
    needs="account",
    slow=True,
    why="a key of the owner (root) cannot be limited, and one of a user works until somebody deletes it",
)
def who(context: Context) -> Result:
    """Who asks: the owner (root), a user with a key that does not end, or a role whose keys do."""
    found = caller(context)
    row: dict[str, Any] = {"fact": found.arn, "arn": found.arn, "account": found.account, "kind": found.kind}
    at = account(context).endpoint
    rows = [row, f"asked at {at}, not at AWS"] if at else [row]
    if found.kind == "root":
        return fail(
            *rows, "this is the owner (root)", next="make a role or user for daily work, and use that"
        )
    if found.kind == "user":
        text = "a user's key works until it is deleted; keys of a role end by themselves"
        return warn(
            *rows, text, next="log in through IAM Identity Center (`aws configure sso`), or take a role"
        )
    if found.kind in {"role", "federated"}:
        return ok(*rows)
    return unknown(*rows, "neither root, user nor role")


@check(
    "aws.rights",
    phase="before",
    needs="account",
    slow=True,
    settles=("account.restricted",),
    why="with the key of an administrator a thief rents machines everywhere, and makes keys of his own",
)
def rights(context: Context) -> Result:
    """Whether the caller may do everything, by the policies attached and by what IAM's simulator says."""
    found = caller(context)
    if found.kind == "root":
        return fail("the owner (root) may do everything", next="use a role or user with few rights")
    if found.kind not in {"user", "role"}:
        return unknown(f"the rights of {found.arn} are not looked into")
    refused = ""
    try:
        names = attached(context)
    except CallFailed as error:
        names, refused = [], str(error)
    full = [f"{name} (of {via})" for name, _, via in names if name in _ALL]
    if found.name.startswith("AWSReservedSSO_AdministratorAccess_"):
        full.append(f"the permission set of {found.name}")
    if full:
        return warn({"fact": f"may do everything: {shown(full)}", "policies": full}, next=_less(found))
    return _simulated(context, found, refused)


def _less(found: Caller) -> str:
    return f"a {found.kind} that may rent, look at and end machines, and nothing in IAM"


def _simulated(context: Context, found: Caller, refused: str) -> Result:
    """What IAM says that the caller may do; without that there is no verdict: policies can be long."""
    asked = (*_RISKY, *_NEEDED)
    arn, without_path = principal(context)
    rows = account(context).items(
        "iam", "simulate_principal_policy", "EvaluationResults", PolicySourceArn=arn, ActionNames=list(asked)
    )
    try:
        decisions = {str(row.get("EvalActionName")): str(row.get("EvalDecision")) for row in rows}
    except CallFailed as error:
        if not (is_missing(error) and without_path):
            raise
        text = f"IAM knows no {arn}: the role has a path, which its session does not tell ({without_path})"
        raise CannotLook(text, without_path.next) from None
    if set(asked) - set(decisions):
        raise CannotLook(
            f"IAM's simulator did not say whether {shown(set(asked) - set(decisions))} is allowed"
        )
    may = [action for action in _RISKY if decisions[action] == "allowed"]
    row = {"fact": f"may {shown(may)}" if may else f"may not {shown(_RISKY)}", "decisions": decisions}
    notes = [refused] if refused else []
    if may:
        return warn(row, *notes, next=_less(found))
    if decisions[_NEEDED[0]] != "allowed":
        text = "may not end machines (ec2:TerminateInstances), as far as the simulator knows without tags"
        return warn(row, text, *notes, next="allow it: else you cannot stop the bill")
    return ok(row, *notes)


@check(
    "aws.organisation",
    phase="before",
    needs="account",
    slow=True,
    why="what an organisation forbids its accounts stands in none of their own policies, and one account pays for all",
)
def organisation(context: Context) -> Result:
    """Whether the account stands alone, belongs to an organisation, or manages one; what may hold from there."""
    found = caller(context)
    try:
        answer = account(context).call("organizations", "describe_organization", region=GLOBAL)
    except CallFailed as error:
        if error.code != "AWSOrganizationsNotInUseException":
            raise
        return ok("the account belongs to no organisation: only its own policies and budgets hold")
    about = answer.get("Organization") or {}
    name, manager, features = (str(about.get(key, "")) for key in ("Id", "MasterAccountId", "FeatureSet"))
    if not name or not manager:
        raise CannotLook("the answer does not say which organisation, or who manages it")
    row = {"organisation": name, "manager": manager, "features": features}
    if manager == found.account:
        text = f"this account manages the organisation {name}: its policies (SCPs) do not hold here"
        return warn({"fact": text, **row}, next="rent in another account of the organisation")
    policies = "what the organisation's policies (SCPs) refuse is refused here whatever IAM allows: they are not seen"
    if features == "CONSOLIDATED_BILLING":
        policies = "it is there for the bill alone (CONSOLIDATED_BILLING): no policies (SCPs) of it hold here"
    budgets = f"its budgets may stand in {manager}, which pays: `aws.budget` sees those of this account only"
    return ok(
        {"fact": f"an account of the organisation {name}, managed by {manager}", **row}, policies, budgets
    )


@check(
    "aws.quarantine",
    phase="before",
    needs="account",
    slow=True,
    why="Amazon looks for keys in public repositories, and takes rights from those it finds",
)
def quarantine(context: Context) -> Result:
    """Whether a policy AWSCompromisedKeyQuarantine… is attached to the caller, or to anybody in the account."""
    hit: list[str] = []
    refused: list[CannotLook] = []
    found = caller(context)
    try:
        hit += [f"{name} on {via}" for name, _, via in attached(context) if name.startswith(_QUARANTINE)]
    except CallFailed as error:
        refused.append(error)
    known = 0
    for version in _VERSIONS:
        arn = f"arn:{found.partition}:iam::aws:policy/{_QUARANTINE}{version}"
        try:
            for page in account(context).pages("iam", "list_entities_for_policy", PolicyArn=arn):
                for kind in ("User", "Role", "Group"):
                    entities = page.get(f"Policy{kind}s") or ()
                    name = f"{kind}Name"
                    hit += [f"{_QUARANTINE}{version} on {kind.lower()} {entity[name]}" for entity in entities]
            known += 1
        except CallFailed as error:
            if error.kind != "missing":  # a version that there is not
                refused.append(error)
                break
    hit = list(dict.fromkeys(hit))
    if hit:
        text = f"AWS holds a key for public: {shown(hit)}"
        return fail({"fact": text, "attached": hit}, next=f"do not detach it: {_ROTATE}")
    if refused:
        raise refused[0]
    if not known:
        return unknown(f"AWS knows no policy {_QUARANTINE}: to whom one is attached was not seen")
    if found.kind == "other":
        return not_applicable("nobody that policies could be attached to")
    return ok("no quarantine policy is attached to anybody")
