"""The event lane as text: the lives of a run over its steps, and over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from loadsheet.history.story import Event, Life, Story
from loadsheet.units import format_duration

#: what stands for an event; where two fall on one place the later in this order is seen, but no notice is lost
SIGNS: Final = {
    "checkpoint": "●",
    "start": "▶",
    "resume": "▶",
    "weights": "▶",
    "notice": "!",
    "stopped": "■",
    "left": "✕",
    "gone": "✕",
    "differs": "≠",
    "done": "★",
}
_ALIVE, _LOST = "─", "╌"
_MEANING: Final = {
    "▶": "begins or goes on",
    "●": "checkpoint",
    "!": "notice",
    "■": "stopped by a signal or notice",
    "✕": "killed, lost or left",
    "≠": "differs from before",
    "★": "done",
    _LOST: "run again later",
}
_RANK: Final = {sign: rank for rank, sign in enumerate(dict.fromkeys(SIGNS.values()))}
_ROWS: Final = 24  # lives that are drawn: the first two, and the newest


def draw(story: Story, total: int | None, width: int) -> list[str]:
    """The lanes: one line per life over steps, one over time, each with its scale; none without a life."""
    if not story.lives:
        return []
    label = max(len(f"attempt {life.attempt}") for life in story.lives) + 2
    room = max(width - label, 12)
    lines = [*_by_step(story, total, label, room), "", *_by_time(story, label, room)]
    seen = set("".join(lines))
    return [*lines, "", *_legend(seen, width)]


def _by_step(story: Story, total: int | None, label: int, room: int) -> list[str]:
    last = max([life.end for life in story.lives] + [total or 0, 1])
    shown = list(range(len(story.lives)))
    if len(shown) > _ROWS:
        shown = [*shown[:2], *shown[-(_ROWS - 2) :]]
    lines = []
    for before, at in zip([-1, *shown], shown, strict=False):
        if at != before + 1:
            lines.append(f"… {at - before - 1} more")
        life = story.lives[at]
        lines.append(f"{f'attempt {life.attempt}':<{label}}{_life(story, at, last, room)}".rstrip())
    lines.append(" " * label + _scale("0", f"{last:,} steps", room))
    return lines


def _life(story: Story, at: int, last: int, room: int) -> str:
    """One life over steps."""
    life = story.lives[at]
    cells = [" "] * room

    def place(step: int) -> int:
        return min(round(step / last * (room - 1)), room - 1)

    for x in range(place(life.begin), place(life.end) + 1):
        cells[x] = _ALIVE
    if life.lost:
        for x in range(place(life.end - life.lost) + 1, place(life.end) + 1):
            cells[x] = _LOST
    _put(cells, place(life.begin), "▶")
    for event in _events_of(story, at):
        if event.step is not None and event.kind in ("checkpoint", "notice", "differs"):
            _put(cells, place(event.step), SIGNS.get(event.kind, ""))
    ending = {"stopped": "■", "left": "✕", "gone": "✕", "done": "★"}.get(life.ending, "")
    if life.ending != "done" or at == len(story.lives) - 1:
        _put(cells, place(life.end), ending)
    return "".join(cells)


def _events_of(story: Story, at: int) -> list[Event]:
    """The events of a life: of its attempt, and within its time if the attempt has had several."""
    life = story.lives[at]
    alone = sum(other.attempt == life.attempt for other in story.lives) == 1
    return [
        event for event in story.events if event.attempt == life.attempt and (alone or _within(event, life))
    ]


def _within(event: Event, life: Life) -> bool:
    if event.time is None or life.started is None or life.seen is None:
        return False
    return life.started <= event.time <= life.seen


def _by_time(story: Story, label: int, room: int) -> list[str]:
    """All lives on one line of time; where the line is broken nothing ran."""
    times = [t for life in story.lives for t in (life.started, life.seen) if t is not None]
    times += [event.time for event in story.events if event.time is not None]
    if not times:
        return []
    begin, end = min(times), max(times)
    span = max(end - begin, 1e-9)
    cells = [" "] * room

    def place(time: float) -> int:
        return min(max(round((time - begin) / span * (room - 1)), 0), room - 1)

    for life in story.lives:
        if life.started is not None and life.seen is not None:
            for x in range(place(life.started), place(life.seen) + 1):
                cells[x] = _ALIVE
    for event in story.events:
        if event.time is not None:
            _put(cells, place(event.time), SIGNS.get(event.kind, ""))
    return [
        f"{'time':<{label}}{''.join(cells)}".rstrip(),
        " " * label + _scale("0", format_duration(end - begin), room),
    ]


def _put(cells: list[str], at: int, sign: str) -> None:
    """A sign on a place, unless one that says more is there; a notice that loses its place stands beside it."""
    if not sign:
        return
    lesser = sign
    if _RANK.get(cells[at], -1) <= _RANK[sign]:
        cells[at], lesser = sign, cells[at]
    if lesser != SIGNS["notice"] or cells[at] == lesser:
        return
    for beside in (at - 1, at + 1):  # before it, if there is room: it may be why what hides it came
        if 0 <= beside < len(cells) and _RANK.get(cells[beside], -1) <= _RANK[lesser]:
            cells[beside] = lesser
            return


def _scale(left: str, right: str, room: int) -> str:
    return f"{left}{right:>{max(room - len(left), len(right) + 1)}}"


def _legend(seen: set[str], width: int) -> list[str]:
    """What the signs mean that were drawn."""
    lines, line = [], ""
    for sign, meaning in _MEANING.items():
        if sign not in seen:
            continue
        part = f"{sign} {meaning}"
        if line and len(line) + 3 + len(part) > width:
            lines.append(line)
            line = ""
        line = f"{line}   {part}" if line else part
    return [*lines, line] if line else lines


def listed(events: Sequence[Event], begin: float | None) -> list[list[str]]:
    """The events as rows of cells: time since the beginning, attempt, steps, what; saves in a row as one."""
    rows: list[list[str]] = []
    saves: list[Event] = []

    def flush() -> None:
        if saves:
            rows.append(_saves_row(saves, begin))
            saves.clear()

    for event in events:
        if event.kind == "checkpoint":
            if saves and saves[-1].attempt != event.attempt:
                flush()
            saves.append(event)
            continue
        flush()
        rows.append(_row(event, begin, event.text))
    flush()
    return rows


def _row(event: Event, begin: float | None, text: str) -> list[str]:
    known = event.time is not None and begin is not None
    when = f"+{format_duration(max(event.time - begin, 0.0))}" if known else "–"  # type: ignore[operator]
    step = f"{event.step:,}" if event.step is not None else ""
    return [when, str(event.attempt or ""), step, text]


def _saves_row(saves: Sequence[Event], begin: float | None) -> list[str]:
    if len(saves) == 1:
        return _row(saves[0], begin, "checkpoint")
    first, last = saves[0].step, saves[-1].step
    row = _row(saves[0], begin, f"{len(saves)} checkpoints, after {first or 0:,} to {last or 0:,} steps")
    row[2] = ""
    return row
