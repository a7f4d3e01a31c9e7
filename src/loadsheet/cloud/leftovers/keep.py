"""What is meant to stay: a file that names things one by one, so that they do not count for the exit status.

::

    # kind, region and id, as the page and the JSON show them
    bucket eu-west-1 my-checkpoints
    volume eu-west-1 vol-0123456789abcdef0

No patterns: what somebody else makes tomorrow must not be covered by what was meant today. No tag: whoever
may start a machine may tag it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from loadsheet.cloud.leftovers.item import Item, clean
from loadsheet.cloud.leftovers.registry import kinds
from loadsheet.errors import BadFile, nearest, shorten
from loadsheet.safejson import file_label, open_regular

_LIMIT: Final = 1_000_000  # bytes
_WHAT: Final = "list of what is to stay"


@dataclass(frozen=True, order=True, slots=True)
class Entry:
    """One thing, by what makes it unique."""

    kind: str
    region: str
    id: str


def read(path: str | os.PathLike[str]) -> list[Entry]:
    """The entries of a file, each once; BadFile with the row for one that names nothing."""
    label = file_label(path, _WHAT)
    with open_regular(path, _WHAT) as (file, _):
        data = file.read(_LIMIT + 1)
    if len(data) > _LIMIT:
        raise BadFile(f"{label}: got more than {_LIMIT:,} bytes, expected at most that")
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise BadFile(f"{label}: got {shorten(str(error))}, expected text in UTF-8") from None
    found: dict[Entry, None] = {}
    for number, line in enumerate(lines, 1):
        words = line.split(maxsplit=2)
        if not words or words[0].startswith("#"):
            continue
        if len(words) < 3:
            text = f"{label}, row {number}: got {shorten(line.strip())}, expected kind, region and id"
            raise BadFile(
                text, "such as `volume eu-west-1 vol-0123456789abcdef0`; each thing by its name, no patterns"
            )
        if words[0] not in kinds():
            close = ", ".join(f"`{name}`" for name in nearest(words[0], kinds()))
            hint = f"did you mean {close}?" if close else "`loadsheet leftovers --list` names the kinds"
            raise BadFile(f"{label}, row {number}: got {shorten(words[0])}, expected a kind", hint)
        found[Entry(words[0], words[1], clean(words[2]))] = None
    return list(found)


def split(items: Iterable[Item], entries: Sequence[Entry]) -> tuple[list[Item], list[Item], list[Entry]]:
    """What is left, what is meant to stay, and the entries that name nothing of it."""
    named = set(entries)
    left: list[Item] = []
    kept: list[Item] = []
    for item in items:
        (kept if Entry(item.kind, item.region, item.id) in named else left).append(item)
    there = {Entry(item.kind, item.region, item.id) for item in kept}
    return left, kept, [entry for entry in entries if entry not in there]
