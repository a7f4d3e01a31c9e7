"""The first run, from its beginning to its end: data, train, evaluate, save."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from loadsheet.cloud.rehearse.advice import advice
from loadsheet.cloud.rehearse.process import Life
from loadsheet.cloud.rehearse.scratch import Traces, runs_among, traces
from loadsheet.cloud.rehearse.stage import (
    Failed,
    Stage,
    cut,
    interruptions,
    number,
    quoted,
    read_object,
    status_text,
)
from loadsheet.errors import LoadsheetError
from loadsheet.run.checkpoint import CheckpointStore
from loadsheet.run.directory import ELSEWHERE, read_done
from loadsheet.run.reading import read_events, stream_log
from loadsheet.text import many
from loadsheet.units import format_bytes, format_duration

if TYPE_CHECKING:
    from loadsheet.cloud.rehearse.carry_out import Rehearsal

#: the fewest steps in which a run can be interrupted twice, in different ones
FEWEST: Final = 4
_TO_SAVE: Final = 120.0  # seconds that a first state may take
_EVALUATION: Final = re.compile(r"(val|valid|validation|eval|test|dev)([_/.-].*)?", re.I)


def first_run(rehearsal: Rehearsal) -> Iterator[Stage]:
    """Carry it out, and say what was seen; raises Failed."""
    before = traces(rehearsal.directory)
    scratch = rehearsal.scratch
    scratch.hold(1)
    with rehearsal.start(scratch.reference, "reference") as life:
        if life.wait_for(lambda: scratch.held() is not None, rehearsal.timeout):
            rehearsal.figures.startup_seconds = life.seconds
            run = Path((scratch.held() or {})["run"])
            rehearsal.run = run.name
            if life.wait_for(lambda: scratch.has_step(run, 0), _TO_SAVE):
                scratch.begin_alike(run)
            scratch.release()
        status = life.wait(max(rehearsal.timeout - life.seconds, 0.1))
        took = life.seconds
        _check(rehearsal, life, status, before)
    run = scratch.reference / rehearsal.run
    total = rehearsal.figures.steps = read_done(run) or 0
    attempts = read_object(run / "measured.json").get("attempts")
    entry = attempts.get("1") if isinstance(attempts, dict) else None
    entry = entry if isinstance(entry, dict) else {}
    yield _data(rehearsal, run, total, entry)
    written = traces(rehearsal.directory).written_since(before)
    yield _trained(rehearsal, total, entry, written, took, repeated(total, _saves(run)))
    yield _evaluated(run, entry)
    yield _saved(rehearsal, run, total, entry)


def _check(rehearsal: Rehearsal, life: Life, status: int | None, before: Traces) -> None:
    """Fail unless the command ended well and left one whole run."""
    scratch = rehearsal.scratch
    if status is None:
        raise Failed("train", rehearsal.hangs(life, scratch.reference), *quoted(life))
    if status != 0:
        raise Failed("train", f"the command ended with {status_text(status)}", *quoted(life))
    lines = advice(rehearsal.command, rehearsal.directory)
    runs = scratch.runs(scratch.reference)
    if not runs:
        if elsewhere := runs_among(traces(rehearsal.directory).written_since(before)):
            raise Failed(
                "train",
                f"it kept its run in {cut(elsewhere[0], 80)}, and LOADSHEET_RUNS_ROOT said elsewhere: is that "
                "variable taken away, or is another version of loadsheet installed there?",
            )
        raise Failed(
            "train",
            f"no run appeared: the command ended well after {format_duration(life.seconds)}, and nothing of it can "
            "go on after an interruption",
            *lines,
        )
    rehearsal.run = rehearsal.run or runs[0].name
    run = scratch.reference / rehearsal.run
    if read_object(run / "done.json").get("checkpoints") == ELSEWHERE:
        raise Failed(
            "save",
            "a trainer with checkpoints of its own: what it does after a notice or a kill is not ours to prove",
        )
    total = read_done(run)
    if total is None:
        _unfinished(run, lines, life)
    elif total < FEWEST:
        raise Failed(
            "train", f"{total} steps are too few to be interrupted twice: {FEWEST} at least, better 20"
        )
    elif not scratch.has_step(scratch.resumed / rehearsal.run, 0):
        raise Failed("save", "the state before the first step was not saved", *quoted(life))


def _unfinished(run: Path, lines: list[str], life: Life) -> None:
    """A run that was not marked done: its loop was left, or there is none."""
    log = run / "log.jsonl"
    try:
        steps = sum(1 for _ in stream_log(run)) if log.exists() else 0
        left = any(event.get("event") == "left" for event in read_events(run)) if log.exists() else False
    except LoadsheetError:
        steps, left = 0, False
    text = f"the run was not brought to its end: {many(steps, 'step')} logged"
    if left:
        raise Failed(
            "train", f"{text}, then the loop was left (`break`, or an error that was caught)", *quoted(life)
        )
    raise Failed("train", text, *lines[:1], *quoted(life))


def _data(rehearsal: Rehearsal, run: Path, total: int, entry: Mapping[str, Any]) -> Stage:
    state = CheckpointStore(run / "checkpoints").load(total, set_aside=False)
    loaders = [name for name in state.names if state.kind(name) == "iterator"]
    if not loaders:
        return Stage(
            "data",
            "warn",
            (
                "no loader goes through `run.batches`: where it stood is known only if the script keeps it",
                "what is waiting for data cannot be told from work",
            ),
        )
    share = rehearsal.figures.data_wait_share = number(entry.get("data_wait_share"))
    waited = "" if share is None else f"; {100 * share:.1f} % of the steps' time was waiting for it"
    return Stage("data", "ok", (f"the place in {many(len(loaders), 'loader')} is kept{waited}",))


def to_come(took: float, startup: float, again: float) -> float:
    """Seconds that the four starts after the first take: each starts up, and together they train once more.

    `again`: what is trained twice, as SIGKILL came before it was saved.

    >>> to_come(took=70.0, startup=10.0, again=20.0)
    120.0
    """
    return 4 * startup + max(took - startup, 0.0) + again


def repeated(total: int, saved: Iterable[int]) -> int:
    """How many steps will be made twice if saves come after the same steps as in the first run.

    >>> repeated(20, saved=[0, 5, 10, 15, 20]), repeated(20, saved=[0, 20])
    (3, 7)
    """
    told, killed = interruptions(total)
    return killed - max((step for step in saved if told < step <= killed), default=told)


def _saves(run: Path) -> list[int]:
    """After which steps a run has saved."""
    found = (event.get("step") for event in read_events(run) if event["event"] == "checkpoint")
    return [step for step in found if isinstance(step, int)]


def _trained(
    rehearsal: Rehearsal, total: int, entry: Mapping[str, Any], written: list[str], took: float, again: int
) -> Stage:
    figures = rehearsal.figures
    step = entry.get("step_seconds")
    figures.step_seconds = number(step.get("median")) if isinstance(step, dict) else None
    text = f"{total:,} steps"
    if figures.step_seconds is not None:
        text += f", {format_duration(figures.step_seconds)} each"
    if figures.startup_seconds is not None:
        text += f"; {format_duration(figures.startup_seconds)} from the start to the end of the first"
        rest = to_come(took, figures.startup_seconds, again * (figures.step_seconds or 0.0))
        # or more: how long processes take to end, and the last start to find that all is done, was not measured
        text += f"; four more starts follow, about {format_duration(rest)} or more"
    if not written:
        return Stage("train", "ok", (text,))
    names = ", ".join(cut(name, 60) for name in written[:3]) + (", …" if len(written) > 3 else "")
    return Stage(
        "train",
        "ok",
        (
            text,
            f"it also wrote {names}, at each start again: in your folder, over what was there, and not compared",
        ),
    )


def _evaluated(run: Path, entry: Mapping[str, Any]) -> Stage:
    seconds = number(entry.get("aside_seconds")) or 0.0
    names = sorted({name for record in stream_log(run) for name in record if _EVALUATION.fullmatch(name)})
    shown = ", ".join(cut(name, 40) for name in names[:4])
    if seconds > 0:
        logged = f"; logged: {shown}" if names else ""
        return Stage("evaluate", "ok", (f"{format_duration(seconds)} in `run.aside`{logged}",))
    if names:
        return Stage(
            "evaluate",
            "warn",
            (
                f"{shown} logged, and no `with run.aside():` around the evaluation: how often one evaluates changes "
                "the training then, and its time counts as that of a step",
            ),
        )
    return Stage("evaluate", "warn", ("no evaluation was seen: neither `run.aside` nor a value named so",))


def _saved(rehearsal: Rehearsal, run: Path, total: int, entry: Mapping[str, Any]) -> Stage:
    figures = rehearsal.figures
    if not rehearsal.scratch.has_step(run, total):
        raise Failed("save", f"the final state, after {total} steps, is not there")
    stall, whole = number(entry.get("save_stall_seconds")), number(entry.get("save_total_seconds"))
    nbytes = number(entry.get("save_bytes"))
    figures.save_stall, figures.save_total = stall, whole
    figures.checkpoint_bytes = None if nbytes is None else int(nbytes)
    if stall is None or whole is None or nbytes is None:
        return Stage("save", "warn", ("the final state is there; what a save takes was not measured",))
    saves = many(int(number(entry.get("saves")) or 0), "save")
    return Stage(
        "save",
        "ok",
        (
            f"{saves} of {format_bytes(nbytes)}: training waits {format_duration(stall)}, on disk after "
            f"{format_duration(whole)}; the final state is there",
        ),
    )
