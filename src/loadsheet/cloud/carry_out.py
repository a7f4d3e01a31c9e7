"""Carry the checks out: at once, each in a thread, none waited for beyond the time that was given.

A check that hangs (a dead network disk, say) cannot be stopped; its thread is left behind, its result is
`unknown`, and the process can still end. Results come as they are ready; questions come last, because what
the other checks found may answer them.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping

from loadsheet.cloud.checklist import CannotLook, Check, Result, not_applicable, ok, unknown
from loadsheet.cloud.context import Context
from loadsheet.cloud.machine import end_all
from loadsheet.errors import LoadsheetError, one_line
from loadsheet.units import format_duration

_WORKERS = 4  # of the quick ones


def carry_out(checks: Iterable[Check], context: Context) -> Iterator[tuple[Check, Result]]:
    """Each check with its result, as they are done; each once, whatever happens in it."""
    checks = list(checks)
    results: dict[str, Result] = {}
    settling: dict[str, list[str]] = {}
    for c in checks:
        for question in c.settles:
            settling.setdefault(question, []).append(c.id)
    held: dict[str, Result] = {c.id: c.look(context) for c in checks if c.only_asks}
    for entry, result in _looked([c for c in checks if not c.only_asks], context):
        results[entry.id] = result
        if result.state == "unknown" and entry.id in settling:
            held[entry.id] = result
        else:
            yield entry, answered(entry, result, context)
    for entry in checks:
        if entry.id in held:
            others = {other: results[other] for other in settling.get(entry.id, ())}
            yield entry, settled(others) or answered(entry, held[entry.id], context)


def _looked(checks: list[Check], context: Context) -> Iterator[tuple[Check, Result]]:
    """The results of checks that look at something."""
    done: queue.SimpleQueue[tuple[Check, Result]] = queue.SimpleQueue()
    quick: queue.SimpleQueue[Check] = queue.SimpleQueue()
    # what stays on this machine first: it is there within a moment
    for entry in sorted(checks, key=lambda c: c.needs != "machine"):
        if not entry.slow:
            quick.put(entry)

    def work() -> None:
        while time.monotonic() < context.deadline:
            try:
                entry = quick.get_nowait()
            except queue.Empty:
                return
            done.put((entry, look(entry, context)))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(_WORKERS, quick.qsize()))]
    for entry in checks:
        if entry.slow:
            threads.append(
                threading.Thread(target=lambda e=entry: done.put((e, look(e, context))), daemon=True)
            )
    for thread in threads:
        thread.start()
    open_ones = {c.id: c for c in checks}
    try:
        while open_ones:
            try:
                entry, result = done.get(timeout=max(context.deadline - time.monotonic(), 0.0))
            except queue.Empty:
                break
            del open_ones[entry.id]
            yield entry, result
    finally:  # also where nobody wants the rest: interrupted
        if open_ones:
            end_all()
    for entry in open_ones.values():
        limit = format_duration(context.timeout)
        yield entry, unknown(f"not done within {limit}", next="give it longer: `--timeout`")


def look(entry: Check, context: Context) -> Result:
    """The result of one check; whatever it raises is `unknown`."""
    try:
        result = entry.look(context)
        if not isinstance(result, Result):
            raise TypeError(f"got {type(result).__name__}, expected a Result")
    except CannotLook as error:
        return unknown(one_line(str(error)), next=error.next)
    except LoadsheetError as error:
        return unknown(str(error), next=error.hint)
    except BaseException as error:  # also what would end a process must not end this one
        text = f"{type(error).__name__}: {one_line(str(error))}"[:300]
        return unknown(f"this check itself failed: {text}", next="report it as a fault of loadsheet")
    return result


def answered(entry: Check, result: Result, context: Context) -> Result:
    """The result with what a person has answered where the machine does not know."""
    if result.state != "unknown" or not entry.question:
        return result
    return context.answers.apply(entry, result, context)


def settled(others: Mapping[str, Result]) -> Result | None:
    """What other checks have found out in the place of a question; None unless all of them could look."""
    states = {result.state for result in others.values()}
    if not states or "unknown" in states or states == {"not_applicable"}:
        return None
    names = ", ".join(others)
    if states <= {"ok", "not_applicable"}:
        rows = [row for result in others.values() for row in result.evidence]
        return ok(*rows, {"fact": f"answered by {names}"})
    worst = "fail" if "fail" in states else "warn"
    at = ", ".join(id for id, result in others.items() if result.state == worst)
    return not_applicable({"fact": f"looked at by {at}: {worst}, see there"})
