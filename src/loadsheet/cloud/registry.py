"""The one list of checks. Every module under `checks/` is found by itself; nothing is entered twice."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from loadsheet.cloud.checklist import PHASES, Check, Needs, Phase, Result, nothing_to_see
from loadsheet.errors import UnknownKey

if TYPE_CHECKING:
    from loadsheet.cloud.context import Context

_CHECKS: Final[dict[str, Check]] = {}
_ID: Final = re.compile(r"[a-z][a-z0-9]*(\.[a-z][a-z0-9-]*)+")


def check(
    id: str,
    *,
    phase: Phase,
    why: str,
    question: str = "",
    days: int = 30,
    settles: Iterable[str] = (),
    slow: bool = False,
    needs: Needs = "machine",
) -> Callable[[Callable[[Context], Result]], Callable[[Context], Result]]:
    """Enter a function as a check; the parameters are those of `Check`. An id stands once."""

    def enter(look: Callable[[Context], Result]) -> Callable[[Context], Result]:
        _enter(Check(id, phase, why, look, question, days, tuple(settles), slow, needs))
        return look

    return enter


def ask(
    id: str,
    question: str,
    *,
    phase: Phase,
    why: str,
    days: int = 30,
) -> None:
    """Enter a question that only a person can answer, or a check that `settles` it."""
    _enter(Check(id, phase, why, nothing_to_see, question, days))


def _enter(entry: Check) -> None:
    if not _ID.fullmatch(entry.id) or entry.id in _CHECKS:
        raise ValueError(f"check {entry.id!r}: expected an id like `disk.space` that stands once")
    _CHECKS[entry.id] = entry


@functools.lru_cache(maxsize=1)
def _load() -> None:
    from loadsheet.cloud import checks

    for module in sorted(m.name for m in pkgutil.iter_modules(checks.__path__)):
        importlib.import_module(f"{checks.__name__}.{module}")


def all_checks() -> list[Check]:
    """Every check, by phase and id: the order of every page and of the JSON."""
    _load()
    return sorted(_CHECKS.values(), key=lambda c: (PHASES.index(c.phase), c.id))


def select(only: Iterable[str] = (), skip: Iterable[str] = (), phases: Iterable[str] = ()) -> list[Check]:
    """The checks that were asked for; an id may be a beginning: `secrets` is all of `secrets.…`.

    Raises UnknownKey with the nearest ids for one that names nothing.
    """
    chosen = all_checks()
    known = {c.id for c in chosen}
    families = {family for id in known for family in _families(id)}

    def named(wanted: Iterable[str]) -> set[str]:
        found: set[str] = set()
        for name in wanted:
            if name not in known | families:
                raise UnknownKey(name, known | families, "check")
            found |= {id for id in known if id == name or id.startswith(f"{name}.")}
        return found

    keep, leave = named(only), named(skip)
    wanted = set(phases)
    return [
        c
        for c in chosen
        if (not keep or c.id in keep) and c.id not in leave and (not wanted or c.phase in wanted)
    ]


def now(checks: Iterable[Check], running: bool) -> tuple[list[Check], list[Check]]:
    """The checks that are in place where no phase is asked for, and the rest.

    Those before; while something runs those during; not those after.
    """
    phases = {"before", "during"} if running else {"before"}
    chosen = list(checks)
    return [c for c in chosen if c.phase in phases], [c for c in chosen if c.phase not in phases]


def _families(id: str) -> list[str]:
    """The beginnings of an id.

    >>> _families("aws.quota.gpu")
    ['aws', 'aws.quota']
    """
    words = id.split(".")
    return [".".join(words[:n]) for n in range(1, len(words))]
