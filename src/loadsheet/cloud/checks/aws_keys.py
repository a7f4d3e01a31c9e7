"""Amazon: second factors and keys, of the owner and of everybody else."""

from __future__ import annotations

import datetime
from typing import Final

from loadsheet.cloud.aws.looked import ROOT, keys, report, root, shown
from loadsheet.cloud.checklist import Result, fail, not_applicable, ok, unknown, warn
from loadsheet.cloud.context import Context
from loadsheet.cloud.registry import check

_OLD: Final = 90  # days after which a key is to be replaced: CIS AWS Foundations Benchmark 3.0, 1.14


@check(
    "aws.root-mfa",
    phase="before",
    needs="account",
    slow=True,
    settles=("account.mfa",),
    why="whoever has the owner's password and no second factor before him has the credit card",
)
def root_mfa(context: Context) -> Result:
    """Whether the owner (root) has a second factor; nothing to see where the organisation took his password away."""
    found = root(context)
    if found.mfa:
        return ok("the owner (root) has a second factor")
    if found.password is False and not found.keys:
        return not_applicable("the owner (root) has no password and no key: managed by the organisation")
    text = "the owner (root) has no second factor"
    if found.password is None and not found.keys:
        text += "; whether he has a password was not said, in an organisation he may have none"
    return fail(text, next="log in as the owner once, and add one: IAM, Security credentials, MFA")


@check(
    "aws.root-keys",
    phase="before",
    needs="account",
    slow=True,
    why="nothing can limit a key of the owner, and nobody needs one",
)
def root_keys(context: Context) -> Result:
    """Whether the owner (root) has access keys."""
    if root(context).keys:
        return fail("the owner (root) has an access key", next="replace it where it is used, then delete it")
    return ok("the owner (root) has no access key")


@check(
    "aws.people-mfa",
    phase="before",
    needs="account",
    slow=True,
    settles=("account.mfa",),
    why="a password that was used twice is in a list that somebody sells",
)
def people_mfa(context: Context) -> Result:
    """Whether every user with a password has a second factor, by the credential report."""
    people = [row for row in report(context) if row["user"] != ROOT and row.get("password_enabled") == "true"]
    without = [row["user"] for row in people if row.get("mfa_active") != "true"]
    if without:
        text = f"{len(without):,} of {len(people):,} users with a password have no second factor: "
        row = {"fact": text + shown(without), "users": without[:100], "count": len(without)}
        return fail(row, next="add one for each: IAM, Users, Security credentials")
    if not people:
        return not_applicable("no user has a password")
    return ok(
        {"fact": f"all {len(people):,} users with a password have a second factor", "users": len(people)}
    )


@check(
    "aws.old-keys",
    phase="before",
    needs="account",
    slow=True,
    why="the longer a key lives, the more places it has been copied to",
)
def old_keys(context: Context) -> Result:
    """Active keys of users that were made more than 90 days ago, by the credential report."""
    today = datetime.datetime.fromtimestamp(context.machine.time(), datetime.UTC).date()
    old, undated, count = [], [], 0
    for row in report(context):
        if row["user"] == ROOT:
            continue
        for number, made, used in keys(row):
            count += 1
            if made is None:
                undated.append(row["user"])
            elif (today - made).days > _OLD:
                last = f"last used {used}" if used else "never used"
                old.append(f"{row['user']}, key {number}: {(today - made).days} days, {last}")
    if old:
        text = f"{len(old):,} of {count:,} keys are older than {_OLD} days: {shown(old)}"
        how = "make a new one, use it, then delete the old; or use a role, whose keys end by themselves"
        return warn({"fact": text, "keys": old[:100], "count": len(old)}, next=how)
    if undated:
        return unknown(f"the report does not say when keys were made: {shown(undated)}")
    return ok({"fact": f"{count:,} active keys, none older than {_OLD} days", "keys": count})
