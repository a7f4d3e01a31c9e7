"""A rehearsal as lines of text, and as the file that `preflight` and `odds` read."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from loadsheet.cloud.checklist import CannotLook
from loadsheet.cloud.rehearse.carry_out import Rehearsal
from loadsheet.cloud.rehearse.stage import Stage
from loadsheet.cloud.report import LABELS, wrap
from loadsheet.errors import BadFile, one_line
from loadsheet.safejson import load_json

SCHEMA: Final = 1
_STATE: Final = 8
_ID: Final = 10


def lines(stage: Stage, width: int) -> list[str]:
    """One stage: its state, its name, its evidence; code and quoted output keep their form."""
    head = f"{LABELS[stage.state]:<{_STATE}}{stage.id:<{_ID}}"
    pad = " " * (_STATE + _ID) if width >= 60 else " " * 4
    shown: list[str] = []
    for number, text in enumerate(stage.evidence):
        if text.startswith("    "):
            shown += _code(text, pad, width)
        elif text.startswith("| "):
            shown.append(pad + text)
        elif number == 0 and width >= 60:
            first, *rest = wrap(one_line(text), width - len(pad))
            shown += [head + first, *(pad + line for line in rest)]
        else:
            if number == 0:
                shown.append(head.rstrip())
            shown += [pad + line for line in wrap(one_line(text), width - len(pad))]
    return shown or [head.rstrip()]


def _code(text: str, pad: str, width: int) -> list[str]:
    """A line of code; where there is no room for its remark, that follows below."""
    code, mark, remark = text.partition("  # ")
    if not mark or len(pad) + len(text) <= width:
        return [pad + text]
    indent = pad + " " * 6
    return [pad + code.rstrip(), *(f"{indent}# {line}" for line in wrap(remark, width - len(indent) - 2))]


def not_come_to(stages: Sequence[Stage], width: int) -> list[str]:
    """The stages that were not come to, in a line."""
    names = ", ".join(stage.id for stage in stages if stage.state == "unknown")
    head = f"{LABELS['unknown']:<{_STATE}}"
    return wrap(f"{head}{names}: not come to", width, " " * _STATE) if names else []


def commit_of(directory: Path) -> tuple[str | None, bool | None]:
    """The commit that is checked out, and whether files differ from it; None where git does not say."""
    from loadsheet.cloud.checks.code import changed
    from loadsheet.cloud.context import Context

    try:
        repository = Context(directory).repository
        if repository is None or repository.head is None:
            return None, None
        differ, new = changed(repository)
    except CannotLook:
        return None, None
    return repository.head, bool(differ or any(name.endswith(".py") for name in new))


def to_json(rehearsal: Rehearsal, commit: str | None, dirty: bool | None, seconds: float) -> dict[str, Any]:
    """What is written to `.loadsheet/rehearsal.json`: base units; null where nothing was measured."""
    figures = rehearsal.figures
    save = None
    if figures.save_stall is not None and figures.save_total is not None:
        save = {"stall": figures.save_stall, "total": figures.save_total}
    return {
        "schema": SCHEMA,
        "time": time.time(),
        "commit": commit,
        "dirty": dirty,
        "command": list(rehearsal.command),
        "passed": rehearsal.passed,
        "stages": [stage.to_json() for stage in rehearsal.stages],
        "save_seconds": save,
        "save_from": None,
        "checkpoint_bytes": figures.checkpoint_bytes,
        "step_seconds": figures.step_seconds,
        "data_wait_share": figures.data_wait_share,
        "steps": figures.steps,
        "startup_seconds": figures.startup_seconds,
        "notice_seconds": figures.notice_seconds,
        "starts": rehearsal.starts,
        "seconds": seconds,
    }


def keep_save(found: dict[str, Any], file: Path) -> None:
    """Where this rehearsal measured no save, keep that of the record it replaces, and say in `save_from` whose it is.

    The size and the time of a step go with it: the three are of one model. Anything else stays as it was found
    now, above all whether it passed.
    """
    if found["save_seconds"] is not None:
        return
    try:
        before = load_json(file, "rehearsal.json", 1 << 20)
    except BadFile:
        return
    command = before.get("command")
    if not isinstance(before.get("save_seconds"), dict) or not isinstance(command, list):
        return
    source = before.get("save_from")
    if not isinstance(source, dict) or not isinstance(source.get("command"), list):
        source = {"time": before.get("time"), "commit": before.get("commit"), "command": command}
    if not all(isinstance(word, str) for word in source["command"]):
        return
    found["save_from"] = source
    for name in ("save_seconds", "checkpoint_bytes", "step_seconds"):
        found[name] = before.get(name)


def shown_command(command: Sequence[str]) -> str:
    """A command as one would type it."""
    return one_line(shlex.join(command))
