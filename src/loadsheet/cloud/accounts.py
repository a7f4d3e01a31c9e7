"""Accounts are looked at only where that is asked for: preflight without one stays quick and on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from loadsheet.cloud.checklist import Check
from loadsheet.errors import UnknownKey

#: the beginning of a check's id -> whose account it looks at
ACCOUNTS: Final = {"aws": "AWS", "azure": "Azure", "gcp": "Google Cloud"}


def parse_accounts(names: Iterable[str]) -> tuple[str, ...]:
    """The accounts that were asked for, each once; UnknownKey for one that is none."""
    chosen = tuple(dict.fromkeys(names))
    for name in chosen:
        if name not in ACCOUNTS:
            raise UnknownKey(name, ACCOUNTS, "account")
    return chosen


def asked_for(
    checks: Iterable[Check], accounts: Iterable[str], only: Iterable[str] = ()
) -> tuple[list[Check], list[Check]]:
    """The checks to carry out, and those of accounts that nobody asked for.

    What `only` names is carried out in any case: without its account it says so.
    """
    accounts, only = set(accounts), list(only)
    chosen: list[Check] = []
    left: list[Check] = []
    for entry in checks:
        named = any(entry.id == name or entry.id.startswith(f"{name}.") for name in only)
        wanted = entry.needs == "machine" or entry.id.partition(".")[0] in accounts or named
        (chosen if wanted else left).append(entry)
    return chosen, left


def not_asked(left: Iterable[Check], accounts: Iterable[str]) -> str:
    """What was left out, in words; empty if nothing was."""
    names = sorted({c.id.partition(".")[0] for c in left} - set(accounts))
    if not names:
        return ""
    known = ", ".join(ACCOUNTS[name] for name in names)
    how = " or ".join(f"`--account {name}`" for name in names)
    return f"not looked at: your account ({known}); {how} asks it, and changes nothing there."
