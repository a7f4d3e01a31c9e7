"""What several checks of an account need, asked once: who asks, the account's summary, its credential report."""

from __future__ import annotations

import csv
import datetime
import io
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from loadsheet.cloud.aws.failures import CallFailed
from loadsheet.cloud.aws.operations import PREFLIGHT
from loadsheet.cloud.aws.session import TIMEOUT, Account
from loadsheet.cloud.checklist import CannotLook
from loadsheet.cloud.context import Context
from loadsheet.errors import one_line

ROOT: Final = "<root_account>"  # the owner's row of a credential report
_REPORT_LIMIT: Final = 8 << 20
#: without these "no user, no key" would only be silence
_COLUMNS: Final = frozenset(
    {"user", "password_enabled", "mfa_active", "access_key_1_active", "access_key_2_active"}
)
_POLL: Final = 0.5  # seconds between two questions whether the report is there, growing
_REPORT_WAIT: Final = 20.0  # seconds
_ARN: Final = re.compile(r"arn:(?P<partition>aws[\w-]*):(?:iam|sts)::(?P<account>\d{12}):(?P<rest>.+)")


@dataclass(frozen=True)
class Caller:
    """Who asks: `kind` is root, user, role, federated or other; `name` of the user or role."""

    arn: str
    account: str
    kind: str
    name: str
    partition: str = "aws"

    @property
    def principal(self) -> str:
        """The ARN that policies are attached to: of the role itself where a session of it asks, if it has no path."""
        if self.kind == "role":
            return f"arn:{self.partition}:iam::{self.account}:role/{self.name}"
        return self.arn.replace(":sts::", ":iam::")


def account(context: Context) -> Account:
    """The account, opened once and only if it was asked for (`--account aws`); else CannotLook."""
    if "aws" not in context.inputs.accounts:
        raise CannotLook("the account was not to be looked at", "`--account aws`")

    def opened() -> Account:
        timeout = float(context.options.get("aws_timeout", TIMEOUT))
        return Account(context.inputs.regions, allowed=PREFLIGHT, timeout=timeout)

    return context.once("aws account", opened)


def regions(context: Context) -> list[str]:
    """The regions that were named, else the one that the configuration names; CannotLook if neither."""
    if context.inputs.regions:
        return list(context.inputs.regions)
    home = account(context).home
    if not home:
        raise CannotLook("no region is named", "`--region eu-west-1`, or AWS_DEFAULT_REGION")
    return [home]


def caller(context: Context) -> Caller:
    """Who asks."""

    def find() -> Caller:
        arn = str(account(context).call("sts", "get_caller_identity").get("Arn", ""))
        return parse_caller(arn)

    return context.once("aws caller", find)


def parse_caller(arn: str) -> Caller:
    """Who an ARN of get_caller_identity is.

    >>> found = parse_caller("arn:aws:sts::123456789012:assumed-role/train/i-0abc")
    >>> found.kind, found.name, found.principal
    ('role', 'train', 'arn:aws:iam::123456789012:role/train')
    """
    match = _ARN.fullmatch(arn)
    if match is None:
        raise CannotLook(f"who asks cannot be read from {one_line(arn)[:100]!r}")
    kind, _, rest = match["rest"].partition("/")
    names = {"root": "root", "user": "user", "assumed-role": "role", "federated-user": "federated"}
    # a user's name stands behind its path, a session's name behind its role
    name = rest.rpartition("/")[2] if kind == "user" else rest.partition("/")[0]
    return Caller(arn, match["account"], names.get(kind, "other"), name, match["partition"])


def principal(context: Context) -> tuple[str, CannotLook | None]:
    """The ARN that policies are attached to, of a role with its path, and why that could not be asked for.

    A session does not tell the path of its role, and those of IAM Identity Center have one
    (`/aws-reserved/sso.amazonaws.com/`, of most with the region behind it).
    """
    who = caller(context)
    if who.kind != "role":
        return who.principal, None
    try:
        role = account(context).call("iam", "get_role", RoleName=who.name).get("Role") or {}
    except CannotLook as error:
        return who.principal, error
    return str(role.get("Arn") or who.principal), None


def summary(context: Context) -> dict[str, int]:
    """The figures of the account's users and of its owner."""

    def find() -> dict[str, int]:
        found = account(context).call("iam", "get_account_summary").get("SummaryMap") or {}
        return {str(key): int(value) for key, value in found.items()}

    return context.once("aws summary", find)


def report(context: Context) -> list[dict[str, str]]:
    """The rows of the credential report, which AWS makes anew at most every four hours."""
    return context.once("aws report", lambda: _rows(_report(context)))


def _report(context: Context) -> str:
    """Ask for the report until it is complete."""
    asked, wait = account(context), _POLL
    end = min(time.monotonic() + _REPORT_WAIT, time.monotonic() + context.left())
    while asked.call("iam", "generate_credential_report").get("State") != "COMPLETE":
        if time.monotonic() + wait > end:
            raise CannotLook("the credential report is not ready yet", "try again in a minute")
        time.sleep(wait)
        wait = min(wait * 1.5, 3.0)
    content = asked.call("iam", "get_credential_report").get("Content", b"")
    if len(content) > _REPORT_LIMIT:
        raise CannotLook("the credential report is larger than is read here")
    return bytes(content).decode(errors="replace")


def _rows(text: str) -> list[dict[str, str]]:
    reader = csv.DictReader(io.StringIO(text))
    rows = list(reader)
    if not rows or not all(row.get("user") for row in rows):
        raise CannotLook("the credential report cannot be read")
    if missing := _COLUMNS - set(reader.fieldnames or ()):  # "nobody has a password" must have been said
        raise CannotLook(f"the credential report has no column {sorted(missing)[0]}")
    return [{str(key): str(value or "") for key, value in row.items() if key} for row in rows]


def root_row(context: Context) -> dict[str, str]:
    """The owner's row of the report; CannotLook if there is none."""
    for row in report(context):
        if row["user"] == ROOT:
            return row
    raise CannotLook("the credential report has no row for the owner (root)")


@dataclass(frozen=True)
class Root:
    """The owner: whether a second factor is on, keys exist, and a password; None where it is not said."""

    mfa: bool
    keys: bool
    password: bool | None


def root(context: Context) -> Root:
    """What the summary says of the owner, or where it may not be read the credential report."""
    try:
        found = summary(context)
        if "AccountMFAEnabled" not in found or "AccountAccessKeysPresent" not in found:
            raise CallFailed("the account's summary says nothing of the owner (root)")
    except CallFailed as refused:
        try:
            row = root_row(context)
        except CannotLook:
            raise refused from None
        keys = "true" in {row.get("access_key_1_active"), row.get("access_key_2_active")}
        return Root(row.get("mfa_active") == "true", keys, _root_password(row))
    password = found.get("AccountPasswordPresent")
    if password is None and not found["AccountMFAEnabled"]:
        try:
            known = _root_password(root_row(context))
        except CannotLook:
            known = None
    else:
        known = None if password is None else bool(password)
    return Root(bool(found["AccountMFAEnabled"]), bool(found["AccountAccessKeysPresent"]), known)


def _root_password(row: dict[str, str]) -> bool | None:
    """`false` where the organisation took the owner's password away; mostly the report does not say."""
    return {"true": True, "false": False}.get(row.get("password_enabled", ""))


def day(text: str) -> datetime.date | None:
    """A date of the report; None for `N/A`, `no_information`, `not_supported`."""
    try:
        return datetime.date.fromisoformat(text[:10])
    except ValueError:
        return None


def keys(row: dict[str, str]) -> Iterator[tuple[int, datetime.date | None, datetime.date | None]]:
    """The active keys of a row: number, made or replaced on, last used on."""
    for number in (1, 2):
        if row.get(f"access_key_{number}_active") == "true":
            made = day(row.get(f"access_key_{number}_last_rotated", ""))
            yield number, made, day(row.get(f"access_key_{number}_last_used_date", ""))


def attached(context: Context) -> list[tuple[str, str, str]]:
    """The managed policies of the caller, its groups' too: name, ARN, through what."""

    def find() -> list[tuple[str, str, str]]:
        asked, who = account(context), caller(context)
        if who.kind == "role":
            listed = asked.items("iam", "list_attached_role_policies", "AttachedPolicies", RoleName=who.name)
            return [(p["PolicyName"], p["PolicyArn"], f"role {who.name}") for p in listed]
        if who.kind != "user":
            return []
        listed = asked.items("iam", "list_attached_user_policies", "AttachedPolicies", UserName=who.name)
        found = [(p["PolicyName"], p["PolicyArn"], f"user {who.name}") for p in listed]
        for group in asked.items("iam", "list_groups_for_user", "Groups", UserName=who.name):
            name = group["GroupName"]
            listed = asked.items("iam", "list_attached_group_policies", "AttachedPolicies", GroupName=name)
            found += [(p["PolicyName"], p["PolicyArn"], f"group {name}") for p in listed]
        return found

    return context.once("aws attached", find)


def machines(context: Context, region: str) -> list[dict[str, Any]]:
    """The instances of a region as `describe_instances` gives them, without those that are terminated."""

    def find() -> list[dict[str, Any]]:
        states = ["pending", "running", "stopping", "stopped"]
        wanted = [{"Name": "instance-state-name", "Values": states}]
        rows = account(context).items(
            "ec2", "describe_instances", "Reservations", region=region, Filters=wanted
        )
        return [machine for row in rows for machine in row.get("Instances") or ()]

    return context.once(f"aws machines {region}", find)


def shown(values: Any, most: int = 6) -> str:
    """A list of names on one line, cut."""
    names = [one_line(str(value))[:80] for value in values]
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest:,} more" if rest > 0 else "")
