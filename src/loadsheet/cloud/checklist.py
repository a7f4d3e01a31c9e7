"""What a check is, and what it can answer.

A check is one small function with an id, a phase and a reason. It answers with one of five states; "could
not look" is `unknown`, never `ok`. Adding one is a few lines in a file under `checks/`::

    @check("disk.inodes", phase="before", why="a checkpoint of many small files can run out of inodes")
    def inodes(context: Context) -> Result:
        free = context.machine.statvfs(context.checkpoint_place).f_favail
        if free < 1000:
            return fail(f"{free:,} inodes free", next="remove files, or make the file system anew")
        return ok(f"{free:,} inodes free")

What a check raises becomes `unknown` with the reason: `CannotLook` for what is known to happen, anything
else as a fault of the check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

if TYPE_CHECKING:
    from loadsheet.cloud.context import Context

State = Literal["ok", "warn", "fail", "unknown", "not_applicable"]
Phase = Literal["before", "during", "after"]
#: what a check asks for: nothing but this machine; an account's free, read-only calls; calls that cost money
Needs = Literal["machine", "account", "paid"]

STATES: Final[tuple[State, ...]] = get_args(State)
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)

#: what the states mean, for pages and help
MEANING: Final[dict[State, str]] = {
    "ok": "looked at, and in order",
    "warn": "looked at; may cost time, money or data",
    "fail": "looked at; will cost time, money or data: the exit status is 1",
    "unknown": "not looked at, or not in full, with the reason; or a question that only a person can answer",
    "not_applicable": "there is nothing here to look at",
}


class CannotLook(Exception):
    """Raised in a check that cannot look: the result is `unknown` with this reason and next step."""

    def __init__(self, reason: str, next: str = "") -> None:
        super().__init__(reason)
        self.next = next


@dataclass(frozen=True)
class Result:
    """What a check found: a state, what it rests on, and what to do next.

    Each piece of evidence is a JSON object. A sentence is `{"fact": "…"}`; figures stand beside it in base
    units under their own names. A secret is `{"rule", "path", "line", "commit", "redacted", …}`.
    """

    state: State
    evidence: tuple[Mapping[str, Any], ...] = ()
    next: str = ""


def _result(state: State, evidence: tuple[str | Mapping[str, Any], ...], next: str) -> Result:
    rows = tuple({"fact": e} if isinstance(e, str) else dict(e) for e in evidence)
    return Result(state, rows, next)


def ok(*evidence: str | Mapping[str, Any], next: str = "") -> Result:
    """In order."""
    return _result("ok", evidence, next)


def warn(*evidence: str | Mapping[str, Any], next: str = "") -> Result:
    """May cost something."""
    return _result("warn", evidence, next)


def fail(*evidence: str | Mapping[str, Any], next: str = "") -> Result:
    """Will cost something."""
    return _result("fail", evidence, next)


def unknown(*evidence: str | Mapping[str, Any], next: str = "") -> Result:
    """Not looked at, or not in full."""
    return _result("unknown", evidence, next)


def not_applicable(*evidence: str | Mapping[str, Any]) -> Result:
    """Nothing here to look at."""
    return _result("not_applicable", evidence, "")


@dataclass(frozen=True)
class Check:
    """One line of the checklist.

    `question`: what a person is asked where the machine does not know; an answer that is still good turns
    `unknown` into `ok`, a "no" into `fail`. `days`: how long an answer is good for. `settles`: ids of
    questions that this check answers by itself where it can look. `slow`: may take longer than a second.
    """

    id: str
    phase: Phase
    why: str
    look: Callable[[Context], Result]
    question: str = ""
    days: int = 30
    settles: tuple[str, ...] = ()
    slow: bool = False
    needs: Needs = "machine"

    @property
    def only_asks(self) -> bool:
        """Whether it looks at nothing and only asks a person."""
        return self.look is nothing_to_see


def nothing_to_see(context: Context) -> Result:
    """What a question finds out by itself."""
    return unknown()
