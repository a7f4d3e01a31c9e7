"""What `docs/checklist.md` and `docs/preflight.md` quote: the lecture's list, and the registry of checks."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import resources
from typing import Any

import cog

import docs
from loadsheet.cloud.checklist import MEANING, PHASES, Check
from loadsheet.cloud.registry import all_checks
from loadsheet.cloud.secrets import rules

_PHASES = {"before": "Before you pay", "during": "While it runs", "after": "When it is over"}


def lecture() -> list[dict[str, Any]]:
    """The parts of the lecture's list with their lines."""
    text = resources.files("loadsheet.cloud").joinpath("checklist.json").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = json.loads(text)["parts"]
    return found


def lines() -> None:
    """Every line of the lecture's list, linked to what answers for it."""
    for part in lecture():
        cog.outl(f"\n### {part['title']}\n")
        rows = [(f"{line['en']} ({line['zh']})", _links(line["checks"])) for line in part["lines"]]
        docs.table(["the lecture says", "checked or asked by"], rows)


def _links(ids: Iterable[str]) -> str:
    return ", ".join(f"[`{id}`](#{id})" for id in ids) or "this page"


def beyond() -> None:
    """Checks that no line of the lecture asks for."""
    named = {id for part in lecture() for line in part["lines"] for id in line["checks"]}
    cog.outl(_links(c.id for c in all_checks() if c.id not in named) + ".")


def checks() -> None:
    """Every check of the registry, by phase."""
    for phase in PHASES:
        cog.outl(f"\n### {_PHASES[phase]}\n")
        rows = [(f'<a id="{c.id}"></a>`{c.id}`', _said(c), c.why) for c in all_checks() if c.phase == phase]
        docs.table(["id", "looks at, or asks", "because"], rows)


def _said(entry: Check) -> str:
    seen = "" if entry.only_asks else " ".join((entry.look.__doc__ or "").split())
    asked = f"*{entry.question}* (good for {entry.days} days)" if entry.question else ""
    others = [c.id for c in all_checks() if entry.id in c.settles]
    settled = f"answered by {_links(others)} where it can look" if others else ""
    return "<br>".join(filter(None, [seen, asked, settled]))


def states() -> None:
    """The five states."""
    docs.table(["state", "meaning"], [(f"`{state}`", meaning) for state, meaning in MEANING.items()])


def secrets() -> None:
    """The kinds of secrets that our own rules know."""
    titles = dict.fromkeys([rule.title for rule in rules()] + ["Google service account key", "private key"])
    cog.outl("; ".join(sorted(titles, key=str.lower)) + ".")
