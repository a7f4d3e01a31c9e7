"""Accounts of Google and Azure, through the providers' own programs: `gcloud` and `az`, with what they know of you.

Only commands of the table below are run, all of them read; where the program is missing, not logged in or not
allowed, that is CannotLook with the question to answer by hand. Written after the programs' documentation and
tried with played answers; not yet with an account.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from loadsheet.cloud.checklist import CannotLook
from loadsheet.cloud.context import Context
from loadsheet.errors import LoadsheetError, one_line
from loadsheet.safejson import parse_json

_TIMEOUT: Final = 30.0  # seconds: both are slow to start
#: what is run; {…} is filled in with a value of `_VALUE`
COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "gcp configuration": ("gcloud", "config", "list", "--format=json"),
    "gcp rights": ("gcloud", "projects", "get-iam-policy", "{project}", "--format=json", "--quiet"),
    "gcp billing": ("gcloud", "billing", "projects", "describe", "{project}", "--format=json", "--quiet"),
    "gcp budgets": ("gcloud", "billing", "budgets", "list", "--billing-account={account}", "--format=json", "--quiet"),
    "gcp project": ("gcloud", "compute", "project-info", "describe", "--project={project}", "--format=json", "--quiet"),
    "gcp region": ("gcloud", "compute", "regions", "describe", "{region}", "--project={project}", "--format=json",
                   "--quiet"),
    "azure account": ("az", "account", "show", "--output", "json"),
    "azure rights": ("az", "role", "assignment", "list", "--assignee", "{user}", "--include-inherited",
                     "--include-groups", "--output", "json"),
    "azure budgets": ("az", "consumption", "budget", "list", "--output", "json"),
    "azure usage": ("az", "vm", "list-usage", "--location", "{region}", "--output", "json"),
}  # fmt: skip
_VALUE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9@._:+#/-]{0,199}")


def asked(context: Context, command: str, by_hand: str, **values: str) -> Any:
    """The JSON that a command of the table answers; asked once. CannotLook with `by_hand` as the next step."""
    provider = command.partition(" ")[0]
    if provider not in context.inputs.accounts:
        raise CannotLook("the account was not to be looked at", f"`--account {provider}`")
    for name, value in values.items():
        if not _VALUE.fullmatch(value):
            raise CannotLook(f"{name}: got {one_line(value)[:60]!r}, expected a name", by_hand)
    words = [word.format(**values) for word in COMMANDS[command]]

    def find() -> Any:
        output = context.machine.command(words, min(_TIMEOUT, max(context.left(), 1.0)))
        if output is None:
            raise CannotLook(f"`{words[0]}` is not installed", by_hand)
        if output.status != 0:
            said = one_line(output.err.strip() or output.out.strip())[:200]
            raise CannotLook(f"`{' '.join(words[:4])}` refuses: {said or f'status {output.status}'}", by_hand)
        try:
            return parse_json(output.out.encode(), words[0])
        except LoadsheetError as error:
            raise CannotLook(
                f"`{' '.join(words[:4])}` answers what cannot be read: {error}", by_hand
            ) from None

    return context.once(json.dumps(words), find)


def asked_list(context: Context, command: str, by_hand: str, **values: str) -> list[dict[str, Any]]:
    """The same for a command that lists: what is no list is not an empty one."""
    found = asked(context, command, by_hand, **values)
    if not isinstance(found, list):
        raise CannotLook(f"`{' '.join(COMMANDS[command][:4])}` answers no list", by_hand)
    return rows(found)


def table(value: object) -> dict[str, Any]:
    """A JSON object, or an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def rows(value: object) -> list[dict[str, Any]]:
    """The objects of a JSON list."""
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def number(value: object) -> float | None:
    """A number, also one in quotes as these programs write whole ones; None for anything else."""
    try:
        return None if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
