"""What is not looked at at all, and the commands to look by hand: other clouds, other services, the bill."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from loadsheet.cloud.leftovers.item import Found
from loadsheet.cloud.leftovers.registry import Kind, kinds
from loadsheet.text import many


def not_looked(found: Found, chosen: Sequence[Kind], paid: bool) -> list[dict[str, Any]]:
    """Each with `what`, `why`, perhaps `names`, and `by_hand`, the commands."""
    text = resources.files("loadsheet.cloud.leftovers").joinpath("elsewhere.json").read_text(encoding="utf-8")
    others = [name for name in kinds() if name not in {kind.name for kind in chosen}]
    rows: list[dict[str, Any]] = list(found.ignored)
    if others:
        rows.append(
            {
                "what": many(len(others), "other kind"),
                "why": "--kinds named others",
                "names": others,
                "by_hand": ["loadsheet leftovers"],
            }
        )
    if not paid:
        rows.append(
            {
                "what": "yesterday's bill",
                "why": "AWS bills 0.01 USD for each request to Cost Explorer",
                "names": [],
                "by_hand": ["loadsheet leftovers --paid-calls"],
            }
        )
    rows += json.loads(text)["elsewhere"]
    return [
        {"what": r["what"], "why": r["why"], "names": r.get("names", []), "by_hand": r["by_hand"]}
        for r in rows
    ]
