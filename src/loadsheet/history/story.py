"""What happened to a run: its lives, and the events of its log in the order of time.

A life is a stretch of an attempt from one `resume` to the next. What a life logged from the step on from
which a later one went on is lost: those steps were run again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Literal

from loadsheet.errors import LoadsheetError, one_line, shorten
from loadsheet.history.inside import Inside
from loadsheet.history.logs import MOST_BYTES, Quiet
from loadsheet.history.rows import RunRow, unix_time
from loadsheet.run.reading import Limits, Reader, born
from loadsheet.run.rerun import Difference, first_difference

Kind = Literal[
    "start",
    "resume",
    "checkpoint",
    "notice",
    "stopped",
    "left",
    "gone",
    "differs",
    "done",
    "weights",
    "other",
]
_MOST_EVENTS: Final = 100_000
_MOST_LIVES: Final = 10_000
_MOST_COMPARED: Final = 1 << 29  # bytes of a log whose repeated steps are compared: they are held in memory


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: when (Unix seconds, None: not known), in which attempt, after which step."""

    kind: Kind
    text: str
    attempt: int | None = None
    time: float | None = None
    step: int | None = None


@dataclass(slots=True)
class Life:
    """A stretch of an attempt: steps `begin` to `end` (completed, as far as logged), and its times.

    `lost` of its last steps were run again later; `ending` is its last event: "stopped", "left", "done",
    "gone" (killed, or the machine was lost: it left no word), "running".
    """

    attempt: int
    begin: int
    end: int
    started: float | None = None
    seen: float | None = None
    lost: int = 0
    ending: str = "gone"
    reason: str = ""
    planned: int | None = None


@dataclass(slots=True)
class Story:
    """What happened to a run, and what could not be read of it.

    `difference` is the first step that logged something else when it was run again, None if none did;
    `compared` says whether that was looked at.
    """

    lives: list[Life] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    difference: Difference | None = None
    compared: bool = False
    problems: list[str] = field(default_factory=list)

    @property
    def repeated(self) -> int:
        """Steps that were run again after an interruption: each is a check of the bits."""
        return sum(life.lost for life in self.lives)


def read_story(row: RunRow) -> Story:
    """What happened to a run, from its log and done marker; nothing that stands there raises."""
    story = Story()
    inside = Inside(row.path, row.path.parent)
    try:
        path = inside.file("log.jsonl")
        with Quiet(path) as reader:
            if not path.is_file() or reader.end > MOST_BYTES:
                raise LoadsheetError("log.jsonl: too large, or no regular file: not read")
            _read(reader, story)
        with Quiet(path) as reader:
            if story.repeated and reader.end > _MOST_COMPARED:
                story.problems.append(f"log.jsonl: {reader.end:,} bytes: steps run again were not compared")
            elif story.repeated:
                story.difference = first_difference(reader)
                story.compared = True
    except FileNotFoundError:
        pass
    except (LoadsheetError, OSError) as error:
        story.problems.append(one_line(str(error)))
    _checkpoints_there(inside, story, row)
    _ends(story, row)
    story.events.sort(key=lambda event: (event.time is None, event.time or 0.0))
    return story


def _read(reader: Reader, story: Story) -> None:
    """One pass over the log, in the order of the file."""
    limits = Limits(reader.events())
    lives: dict[tuple[int, int], Life] = {}
    counts: dict[int, int] = {}
    current: Life | None = None
    for block in reader.blocks():
        for segment in reader.segments(block):
            if isinstance(segment, dict):
                key = born(segment, counts)
                if key is not None:
                    current = _born(story, segment, key[0])
                    lives[key] = current
                _event(story, segment, current)
                continue
            for record in reader.decode(segment, restore=False):
                attempt, step = record["attempt"], record["step"]
                life = lives.get((attempt, counts.get(attempt, 0)))
                if life is None and len(lives) < _MOST_LIVES:  # a log that does not say where it began
                    begun = {"from": max(step, 0), "time": record.get("time")}
                    life = lives[attempt, counts.get(attempt, 0)] = _born(story, begun, attempt)
                if life is not None and step + 1 > life.end and step < 1 << 62:
                    life.end = step + 1
                    life.seen = unix_time(record.get("time")) or life.seen
    for key, life in lives.items():
        if life.planned is not None:  # what is logged after the loop is no step
            life.end = max(min(life.end, life.planned), life.begin)
        limit = min(limits.of(key), 1 << 62)
        life.lost = max(life.end - max(limit, life.begin), 0)


def _born(story: Story, event: dict[str, Any], attempt: int) -> Life:
    time = unix_time(event.get("time"))
    life = Life(attempt, event["from"], event["from"], time, time)
    if len(story.lives) < _MOST_LIVES:
        story.lives.append(life)
    return life


def _event(story: Story, event: dict[str, Any], life: Life | None) -> None:
    """A line of the log that belongs to no step."""
    name, time = event.get("event"), unix_time(event.get("time"))
    attempt = event.get("attempt")
    attempt = attempt if type(attempt) is int else None
    step = event.get("from") if name == "resume" else event.get("step")
    step = step if type(step) is int and 0 <= step < 1 << 62 else None
    if life is not None and time is not None:
        life.seen = max(life.seen or time, time)
    kind: Kind = "other"
    if name == "resume":
        kind = "resume" if step or len(story.lives) > 1 else "start"
        text = f"goes on after {step:,} steps" if step else "begins"
    elif name == "steps":
        total = event.get("total")
        if life is not None and type(total) is int and 0 <= total < 1 << 62:
            life.planned = total
        return
    elif name == "checkpoint":
        kind, text = "checkpoint", "checkpoint"
    elif name == "notice":
        kind = "notice"
        source = f" from {shorten(event.get('source'))}" if event.get("source") else ""
        text = f"notice{source}: {shorten(event.get('kind'), 30)}"
    elif name == "stopped":
        kind = "stopped"
        text = f"stopped by {one_line(str(event.get('reason')))[:80]}, saved after {step or 0:,} steps"
        _close(life, "stopped", one_line(str(event.get("reason")))[:80])
    elif name == "left":
        kind, text = "left", "the script left the loop (an error, or `break`)"
        _close(life, "left", "")
    elif name == "differs":
        kind = "differs"
        names = event.get("names")
        shown = ", ".join(map(str, names[:3])) if isinstance(names, list) else "?"
        text = f"step {step} gave something else than in attempt {event.get('earlier_attempt')}: {one_line(shown)[:80]}"
    elif name == "start_from":
        kind, text = "weights", f"begins with the weights of {shorten(event.get('run'), 60)}, step {step}"
    else:
        text = shorten(name, 40)
    if len(story.events) < _MOST_EVENTS:
        story.events.append(Event(kind, text, attempt, time, step))


def _close(life: Life | None, ending: str, reason: str) -> None:
    if life is not None:
        life.ending, life.reason = ending, reason


def _ends(story: Story, row: RunRow) -> None:
    """How the lives ended of which the log says nothing, and that the run is done."""
    for at, life in enumerate(story.lives):
        last = at == len(story.lives) - 1
        if life.ending != "gone":
            continue
        if last and row.state == "running":
            life.ending = "running"
        elif row.state == "done" if last else _complete(life, story.lives[at + 1]):
            life.ending = "done"
        elif not last and story.lives[at + 1].attempt == life.attempt:
            life.ending = "done"  # a second loop in the same process
        else:
            story.events.append(
                Event(
                    "gone",
                    "killed, or the machine was lost: it left no word",
                    life.attempt,
                    life.seen,
                    life.end,
                )
            )
    if row.total is not None:
        # the last checkpoint is noted in the log a moment after the run was marked done
        saved = [e.time for e in story.events if e.kind == "checkpoint" and e.step == row.total]
        times = [time for time in (_done_time(row), *saved) if time is not None]
        text = f"done: {row.total:,} steps"
        story.events.append(Event("done", text, None, max(times, default=None), row.total))


def _complete(life: Life, after: Life) -> bool:
    """Whether a life came to its end: the next one found its last state."""
    return life.planned is not None and after.begin >= life.planned


def _done_time(row: RunRow) -> float | None:
    try:
        return unix_time(Inside(row.path, row.path.parent).json("done.json", 1 << 16).get("time"))
    except (OSError, LoadsheetError):
        return None


def _checkpoints_there(inside: Inside, story: Story, row: RunRow) -> None:
    """Checkpoints of which the log says nothing: the run was killed before it could, or is of an older version."""
    told = {event.step for event in story.events if event.kind == "checkpoint"}
    for before, life in pairwise(story.lives):
        if life.begin and life.begin not in told:  # it went on from one, which is gone by now
            told.add(life.begin)
            story.events.append(Event("checkpoint", "checkpoint", before.attempt, before.seen, life.begin))
    for step in row.checkpoints:
        if step in told:
            continue
        try:
            found = inside.json(f"checkpoints/step-{step:08d}/manifest.json", 1 << 20).get("manifest")
        except (OSError, LoadsheetError):
            continue
        facts = found if isinstance(found, dict) else {}
        attempt = facts.get("attempt")
        story.events.append(
            Event(
                "checkpoint",
                "checkpoint",
                attempt if type(attempt) is int else None,
                unix_time(facts.get("time")),
                step,
            )
        )


def to_json(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Events as `--json` has them."""
    return [
        {"kind": e.kind, "text": e.text, "attempt": e.attempt, "time": e.time, "step": e.step} for e in events
    ]
