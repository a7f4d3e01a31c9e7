"""The table of architectures: each model type of transformers' AutoModelForCausalLM, counted anew.

Imported by cog in `docs/architectures.md` (`make docs`), so that CI finds a table that has fallen behind.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from loadsheet.arch.checked import CHECKED
from loadsheet.arch.families import build
from loadsheet.errors import LoadsheetError, UnsupportedArchitecture

DATA = Path(__file__).parent.parent / "tests" / "data"


def _load(name: str) -> Any:
    path = DATA / name
    raw = gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_bytes()
    return json.loads(raw)


@cache
def recorded() -> dict[str, list[dict[str, Any]]]:
    """Model type -> every configuration that was built with transformers, with what it counted."""
    out: dict[str, list[dict[str, Any]]] = {}
    for path in sorted([*DATA.glob("arch_*.json.gz"), DATA / "shapes.json.gz"]):
        for kind, entries in _load(path.name)["models"].items():
            out.setdefault(kind, []).extend(_flatten(entries))
    for kind, entries in _load("random_configs.json.gz")["configs"].items():
        out.setdefault(kind, []).extend(_flatten(entries))
    return out


def _flatten(entries: Any) -> Iterator[dict[str, Any]]:
    """Records in whatever nesting they were written: anything with a config and a total."""
    if isinstance(entries, dict) and "config" in entries and "total" in entries:
        yield entries
    elif isinstance(entries, dict):
        for name, value in entries.items():
            if name != "spoiled":
                yield from _flatten(value)
    elif isinstance(entries, list):
        for value in entries:
            yield from _flatten(value)


def exact(entry: dict[str, Any]) -> bool:
    """Whether our model has the total, and the names and shapes where they were recorded."""
    try:
        model = build(entry["config"])
    except LoadsheetError:
        return False
    if model.params != entry["total"]:
        return False
    if "digest" not in entry:
        return True
    lines = sorted(f"{p.name} {'x'.join(map(str, p.shape))}" for p in model.parameters())
    found = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return found.startswith(entry["digest"])  # some recordings keep the first digits only


def rows() -> Iterator[list[str]]:
    """Type, group, parameters of the default, exact configurations, whether memory is checked, status."""
    for kind in _load("causal_lm_types.json")["types"]:
        name = kind["model_type"]
        entries = recorded().get(name, [])
        good = sum(map(exact, entries))
        if entries:
            status = "exact" if good == len(entries) else "DIFFERS"
            memory = "checked" if name in CHECKED else "not checked"
            count = f"{good} of {len(entries)}"
            yield [f"`{name}`", kind["group"], f"{kind['params']:,}", count, memory, status]
            continue
        try:
            build({"model_type": name})
            status = "NOT RECORDED"
        except UnsupportedArchitecture:
            status = "refused: not supported"
        except LoadsheetError:
            status = "NOT RECORDED"
        yield [f"`{name}`", kind["group"], f"{kind['params']:,}", "–", "–", status]


def summary(lines: list[list[str]]) -> str:
    """How many of how many."""
    counts: dict[str, int] = {}
    for line in lines:
        counts[line[-1]] = counts.get(line[-1], 0) + 1
    configurations = sum(len(v) for v in recorded().values())
    parts = ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
    known = sum(line[-2] != "–" for line in lines)
    checked = sum(line[-2] == "checked" for line in lines)
    return (
        f"Of {len(lines)} model types: {parts}. {configurations:,} recorded configurations. "
        f"FLOPs and memory are checked for {checked} of the {known}."
    )
