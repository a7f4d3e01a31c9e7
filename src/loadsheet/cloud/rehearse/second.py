"""The second run, which is interrupted: notice, kill, resume, bitwise, done."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from loadsheet.cloud.rehearse.compare import compare_runs, went_on_from
from loadsheet.cloud.rehearse.stage import Failed, Stage, cut, interruptions, quoted, status_text
from loadsheet.errors import LoadsheetError, one_line
from loadsheet.run.checkpoint import CheckpointStore
from loadsheet.run.directory import read_done
from loadsheet.run.errors import REQUEUE
from loadsheet.run.reading import stream_log
from loadsheet.run.rerun import compare
from loadsheet.text import many
from loadsheet.units import format_duration

if TYPE_CHECKING:
    from loadsheet.cloud.rehearse.carry_out import Rehearsal

_TO_END: Final = 120.0  # seconds that a run may take that is asked to end


def second_run(rehearsal: Rehearsal) -> Iterator[Stage]:
    """Carry it out, and hold it against the first; raises Failed."""
    total = rehearsal.figures.steps or 0
    told, killed = interruptions(total)
    yield _told(rehearsal, told)
    yield _killed(rehearsal, told, killed)
    begun = _resumed(rehearsal, total)
    again = max(killed - begun, 0)
    text = f"went on from step {begun}: {many(again, 'step')} again, then on to step {total}"
    yield Stage("resume", "ok", (text,))
    yield _compared(rehearsal, [(told, "the notice"), (begun, "SIGKILL")])
    yield _again(rehearsal, total)


def _told(rehearsal: Rehearsal, at: int) -> Stage:
    scratch, limit = rehearsal.scratch, rehearsal.notice
    run = scratch.resumed / rehearsal.run
    scratch.hold(at)
    with rehearsal.start(scratch.resumed, "notice") as life:
        rehearsal.wait_held(life, "notice", at)
        told = scratch.notice(limit)
        scratch.release()
        if not life.wait_for(lambda: scratch.has_step(run, at), limit):
            status = life.status()
            how = "it went on" if status is None else f"it ended with {status_text(status)}"
            raise Failed(
                "notice",
                f"a notice after step {at} was not obeyed within {format_duration(limit)}: {how}, and the state was "
                "not saved. Does the script give `notice=` of its own?",
                *quoted(life),
            )
        seconds = rehearsal.figures.notice_seconds = time.monotonic() - told
        life.ask_to_end()
        status = life.wait(_TO_END)
        if status != REQUEUE:
            how = "did not end" if status is None else f"ended with {status_text(status)}"
            raise Failed(
                "notice",
                f"saved {format_duration(seconds)} after the notice; after the SIGTERM that follows one it {how}, "
                f"expected status {REQUEUE}, by which a launcher knows that it may start it again",
                "does the script catch SystemExit?" if status is not None else "is there a step that long?",
                *quoted(life),
            )
    scratch.take_back()
    return Stage(
        "notice",
        "ok",
        (
            f"saved {format_duration(seconds)} after a notice in step {at} (AWS gives 120 s, Google and Azure 30 s); "
            f"the SIGTERM that follows one ended it with status {REQUEUE}",
        ),
    )


def _killed(rehearsal: Rehearsal, told: int, at: int) -> Stage:
    scratch = rehearsal.scratch
    run = scratch.resumed / rehearsal.run
    scratch.hold(at)
    with rehearsal.start(scratch.resumed, "kill") as life:
        rehearsal.wait_held(life, "kill", at)
        life.kill()
    scratch.release()
    begun = went_on_from(run)[-1:]
    if begun != [told]:
        raise Failed(
            "kill",
            f"started again it went on from step {begun[0] if begun else '?'}, expected {told}, which was saved",
            *quoted(life),
        )
    steps = CheckpointStore(run / "checkpoints").steps()
    lost = at - max(steps, default=0)
    return Stage(
        "kill",
        "ok",
        (f"went on from step {told}; SIGKILL after step {at}, with {many(lost, 'step')} not saved",),
    )


def _resumed(rehearsal: Rehearsal, total: int) -> int:
    """To the end; the step from which it went on."""
    scratch = rehearsal.scratch
    with rehearsal.start(scratch.resumed, "resume") as life:
        status = life.wait(rehearsal.timeout)
        if status is None:
            raise Failed("resume", rehearsal.hangs(life, scratch.resumed), *quoted(life))
        if status != 0:
            raise Failed(
                "resume", f"started again after SIGKILL it ended with {status_text(status)}", *quoted(life)
            )
        rehearsal.note_warnings(life)
        run = scratch.resumed / rehearsal.run
        if read_done(run) != total:
            raise Failed("resume", f"started again after SIGKILL it ended before step {total}", *quoted(life))
    return went_on_from(run)[-1]


def _compared(rehearsal: Rehearsal, interruptions: list[tuple[int, str]]) -> Stage:
    scratch = rehearsal.scratch
    found = compare_runs(scratch.reference / rehearsal.run, scratch.resumed / rehearsal.run, interruptions)
    if not found.same:
        lines = list(found.record)
        if found.early and found.step is not None:
            lines += _cause(rehearsal, found.step)
        lines += found.state
        raise Failed("bitwise", *lines, *(f"the run itself warned: {text}" for text in rehearsal.warned[:3]))
    lines = [
        f"{many(found.records, 'record')} and {many(found.tensors, 'tensor')} of the state after step "
        f"{found.steps[-1]} are the same, bit for bit"
    ]
    if not found.records:
        lines.append("nothing was logged, so only states were compared: `run.log(loss=...)` shows more")
    if found.speeds:
        names = ", ".join(cut(name, 40) for name in found.speeds[:4])
        lines.append(
            f"but for {names}, measured with a clock: log such as `timing={{...}}`, it never repeats"
        )
    others = len(scratch.runs(scratch.reference)) - 1
    if others > 0:
        lines.append(f"{many(others, 'further run')} of the command: neither interrupted nor compared")
    return Stage("bitwise", "warn" if len(lines) > 1 else "ok", tuple(lines))


def _cause(rehearsal: Rehearsal, step: int) -> list[str]:
    """Why a step before any interruption differs: does a fresh start give what the first one gave?"""
    scratch = rehearsal.scratch
    scratch.hold(step + 1)
    with rehearsal.start(scratch.fresh, "fresh") as life:
        held = life.wait_for(lambda: scratch.held() is not None, rehearsal.timeout)
    scratch.release()
    if not held:
        return ["that is before any interruption"]
    if _same_until(scratch.reference / rehearsal.run, scratch.fresh / rehearsal.run, step):
        return [
            "that is before any interruption: it began with the state that was saved before the first step. A fresh "
            "start gives what the first one gave, so something is not kept: a batch fetched before the loop, a "
            "value that changes, an object that is not in `run.keep`"
        ]
    return [
        "that is before any interruption, and a fresh start differs as well: the script draws random numbers "
        "without a seed that are no part of its state, or its operations are not deterministic. "
        "`ls.deterministic(0)` as its first line says what is needed; until then nothing can be compared"
    ]


def _same_until(one: Path, two: Path, step: int) -> bool:
    """Whether two runs have the same records up to a step."""
    try:
        left, right = (
            {record["step"]: record for record in stream_log(run) if record["step"] <= step}
            for run in (one, two)
        )
    except LoadsheetError:
        return False
    return left.keys() == right.keys() and not any(
        compare(record, right[number], whole=True) for number, record in left.items()
    )


def _again(rehearsal: Rehearsal, total: int) -> Stage:
    """Started once more, a done run does nothing."""
    scratch = rehearsal.scratch
    run = scratch.resumed / rehearsal.run
    before = _identity(run)
    with rehearsal.start(scratch.resumed, "done") as life:
        status = life.wait(rehearsal.timeout)
        if status is None:
            raise Failed("done", rehearsal.hangs(life, scratch.resumed), *quoted(life))
        if status != 0:
            text = f"all {total} steps were done; started once more it ended with {status_text(status)}"
            raise Failed("done", text, *quoted(life))
    if _identity(run) != before:
        raise Failed("done", f"all {total} steps were done; started once more it changed the final state")
    return Stage("done", "ok", (f"marked done after {total} steps; started once more it trained no more",))


def _identity(run: Path) -> tuple[int | None, str]:
    """Which final state a run has."""
    store = CheckpointStore(run / "checkpoints")
    try:
        return read_done(run), store.manifest(store.steps()[-1]).digest
    except (LoadsheetError, IndexError) as error:
        return None, one_line(str(error))
