"""What is new and what is gone since an earlier list."""

from __future__ import annotations

import os
from typing import Any, Final

from loadsheet.cloud.leftovers.item import Found, is_seen
from loadsheet.errors import BadFile, shorten
from loadsheet.safejson import file_label, load_json

_LIMIT: Final = 128 << 20  # bytes
_VALUES: Final = 20_000_000
_LATEST: Final = 253402300800.0  # the year 10000, the first that no date has
Key = tuple[str, str, str]


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A list that `--save` wrote; BadFile if it is anything else."""
    found = load_json(path, "list of left-overs", _LIMIT, _VALUES)
    label = file_label(path, "list of left-overs")
    when = found.get("time")
    if found.get("schema") != 1 or isinstance(when, bool) or not isinstance(when, int | float):
        raise BadFile(f"{label}: got another file, expected one that `leftovers --save` wrote")
    if not 0 <= when < _LATEST:
        text = f"got time {shorten(when)}, expected seconds since 1970, as `leftovers --save` writes them"
        raise BadFile(f"{label}: {text}")
    for part, names in (("items", ("kind", "region", "id")), ("looked", ("kind", "region"))):
        rows = found.get(part)
        if not isinstance(rows, list) or not all(
            isinstance(row, dict) and all(isinstance(row.get(n), str) for n in names) for row in rows
        ):
            raise BadFile(f"{label}: got no list of {part}, expected one that `leftovers --save` wrote")
    only = found.get("only", [])
    if not isinstance(only, list) or not all(isinstance(name, str) for name in only):
        raise BadFile(f"{label}: got no list of regions, expected one that `leftovers --save` wrote")
    return found


def compare(before: dict[str, Any], now: Found) -> dict[str, Any]:
    """New, gone, and what cannot be told because a kind was looked at only once."""
    old = {(row["kind"], row["region"], row["id"]) for row in before["items"]}
    new = {(item.kind, item.region, item.id) for item in now.items}
    then = {(row["region"], row["kind"]) for row in before["looked"]}
    today = set(now.looked)
    named = before.get("only")
    result: dict[str, Any] = {
        "then": before["time"],
        "same_account": not before.get("account") or not now.account or before["account"] == now.account,
        "new": [],
        "gone": [],
        "not_told": [],
    }
    for key in sorted(new - old):
        result["new" if is_seen(key[1], key[0], then, named) else "not_told"].append(_row(key))
    for key in sorted(old - new):
        result["gone" if is_seen(key[1], key[0], today, now.only) else "not_told"].append(_row(key))
    return result


def _row(key: Key) -> dict[str, str]:
    return dict(zip(("kind", "region", "id"), key, strict=True))
