"""The results as lines of text, and as JSON."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from loadsheet.cloud.accounts import ACCOUNTS
from loadsheet.cloud.checklist import Check, Result
from loadsheet.cloud.commands import continued
from loadsheet.cloud.context import Inputs
from loadsheet.errors import one_line
from loadsheet.units import format_duration

SCHEMA: Final = 1
LABELS: Final = {
    "ok": "ok",
    "warn": "WARN",
    "fail": "FAIL",
    "unknown": "unknown",
    "not_applicable": "n/a",
}
_STATE: Final = 8  # columns of the state and the gap behind it
_ID: Final = 24
_QUOTED: Final = re.compile(r"`[^`]+`")
_SPAN: Final = re.compile(r"([^`]*)`([^`]+)`([^`]*)")
_GLUE: Final = "\0"  # a blank at which a line is not broken


def wrap(text: str, width: int, indent: str = "") -> list[str]:
    """A paragraph; options and paths are not broken at their hyphens, but where nothing else helps.

    What stands between backquotes stays on one line, so that it can be pasted; a command that is too long for one
    has lines of its own, continued as a shell reads them.
    """
    width = max(width, 16)
    lines: list[str] = []
    room = width - len(indent)
    glued = _QUOTED.sub(lambda match: _held(match[0], room), text)
    for is_command, part in _parts(glued, room):
        if is_command:
            lines += command(part.replace(_GLUE, " "), width, indent)
            continue
        first = indent if lines else ""
        whole = textwrap.wrap(
            part, width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False
        )
        lines += [line.replace(_GLUE, " ") for line in whole]
    return lines or [""]


def _held(quoted: str, room: int) -> str:
    """What stands between backquotes, held together if a line has room for it, or if it gets lines of its own."""
    fits = len(quoted) <= room or _plain(quoted.strip("`"))
    return quoted.replace(" ", _GLUE) if fits else quoted


def _parts(glued: str, room: int) -> Iterator[tuple[bool, str]]:
    """The text in pieces, and between them the commands that are too long for a line."""
    done = 0
    for word in re.finditer(r"\S+", glued):
        span = _SPAN.fullmatch(word[0])
        if span is None or len(word[0]) <= room or not _plain(span[2]):
            continue
        yield False, glued[done : word.start()].lstrip() + span[1]
        yield True, span[2]
        done = word.end() - len(span[3].lstrip(",;.:"))
    yield False, glued[done:].lstrip() if done else glued


def command(text: str, width: int, indent: str = "") -> list[str]:
    """A command on lines of its own; pasted into a shell it is the same command."""
    lines: list[str] = []
    for plain in continued(text, width, indent):
        option, blank, value = plain.lstrip().partition(" ")
        if (
            len(plain) > width and option.startswith("--") and blank
        ):  # a narrow page: its value has a line, too
            pad = plain[: len(plain) - len(plain.lstrip())]
            lines += [f"{pad}{option} \\", pad + value]
        else:
            lines.append(plain)
    return lines


def _plain(words: str) -> bool:
    """Whether a text is one command and its arguments, no option alone, and nothing that only a shell could do."""
    text = words.replace(_GLUE, " ")
    if " " not in text or text.startswith("-") or any(sign in text for sign in "|&;<>$"):
        return False
    try:
        return bool(shlex.split(text))
    except ValueError:
        return False


def sentence(evidence: Mapping[str, Any]) -> str:
    """A piece of evidence as a person reads it, on one line, whatever it quotes."""
    if "redacted" in evidence:
        return one_line(_finding(evidence))
    return one_line(str(evidence.get("fact", "")))


def _finding(row: Mapping[str, Any]) -> str:
    """A secret: what, where, since when."""
    place = row.get("path") or "no path"
    if row.get("line"):
        place = f"{place}:{row['line']}"
    parts = [f"{row.get('title') or row['rule']} {row['redacted']} in {place}"]
    if row.get("commit"):
        parts.append(f"commit {str(row['commit'])[:10]}" + (f" of {row['date']}" if row.get("date") else ""))
    if row.get("remark"):
        parts.append(str(row["remark"]))
    if row.get("fingerprint"):
        parts.append(f"fingerprint {row['fingerprint']}")
    return ", ".join(parts)


def lines(entry: Check, result: Result, width: int, *, explain: bool = False) -> list[str]:
    """One check: state, id, what was found; for all but `ok` also every piece of evidence and what to do."""
    head = f"{LABELS[result.state]:<{_STATE}}{entry.id}"
    said = [(text, str(row.get("command", ""))) for row in result.evidence if (text := sentence(row))]
    facts = [text for text, _ in said]
    asks = entry.only_asks and result.state == "unknown"
    quoted = any("redacted" in row for row in result.evidence)  # of an `ok` too: what was allowed or replaced
    full = explain or quoted or result.state in {"warn", "fail"} or (result.state == "unknown" and not asks)
    pad = " " * _STATE
    shown: list[str] = []
    if facts and width >= _STATE + _ID + 40:
        first, *rest = wrap(facts[0], width - _STATE - _ID)
        shown.append(f"{head:<{_STATE + _ID}}{'' if len(head) < _STATE + _ID else ' '}{first}")
        shown += [" " * (_STATE + _ID) + line for line in rest]
        more = [(" " * (_STATE + _ID), *row) for row in [("", said[0][1]), *said[1:]]]
        pad = " " * (_STATE + _ID)
    else:
        shown.append(head)
        more = [(pad, *row) for row in said]
    if not full:
        more = more[:1]
    for indent, text, call in more:
        shown += [indent + line for line in wrap(text, width - len(indent)) if text]
        shown += [indent + line for line in command(one_line(call), width - len(indent)) if call]
    if full and result.next:
        shown += [pad + line for line in wrap(f"→ {one_line(result.next)}", width - len(pad), "  ")]
    if explain:
        shown += [pad + line for line in wrap(f"why: {entry.why}", width - len(pad), "  ")]
    return shown


def summary(
    results: Iterable[tuple[Check, Result]], width: int, left_out: str = "", *, strict: bool = False
) -> list[str]:
    """How many of each, which ones to act on, how to answer what is asked, and what nobody asked for.

    `strict`: what warns or is unknown counts as failed, for the exit status.
    """
    results = list(results)
    counts = Counter(result.state for _, result in results)
    asked = [c.id for c, result in results if c.question and result.state == "unknown"]
    shown = [""]
    failed = [(c, result) for c, result in results if result.state == "fail"]
    if failed:
        shown.append(f"{len(failed)} fail:")
        for c, result in failed:
            todo = one_line(result.next) or next(filter(None, map(sentence, result.evidence)), "") or c.why
            shown += wrap(f"  {c.id} → {todo}", width, "    ")
    if named := [c.id for c, result in results if result.state == "warn"]:
        text = f"{len(named)} warn{' (counted as failed)' if strict else ''}: {', '.join(named)}"
        shown += wrap(text, width, "  ")
    counted = "counted as failed" if strict else "counted as failed only with `--strict`"
    rest = [
        f"{counts['unknown']} unknown ({counted})" if counts["unknown"] else "",
        f"{counts['ok']} ok" if counts["ok"] else "",
        f"{counts['not_applicable']} not applicable" if counts["not_applicable"] else "",
    ]
    if any(rest):
        shown += wrap("  ".join(filter(None, rest)), width)
    if not results:
        shown.append("no check was asked for")
    for name, provider in ACCOUNTS.items():
        states = [r.state for c, r in results if c.needs != "machine" and c.id.partition(".")[0] == name]
        states = [state for state in states if state != "not_applicable"]
        if len(states) > 1 and set(states) == {"unknown"}:
            shown += wrap(
                f"all {len(states)} checks of the account of {provider} that apply are unknown.", width
            )
    if asked:
        count = "1 question is" if len(asked) == 1 else f"{len(asked)} questions are"
        shown += wrap(
            f"{count} for a person: `loadsheet preflight --answer {asked[0]}=yes` (or =no) "
            "notes the answer, with its date, in .loadsheet/answers.json.",
            width,
        )
    if left_out:
        shown += wrap(left_out, width)
    return shown


def starred(inputs: Inputs, width: int) -> list[str]:
    """What was defaulted, where figures with a star stand above."""
    values = {
        "keep": f"--keep {inputs.keep}",
        "every": f"--every {format_duration(inputs.every)}",
        "notice": f"--notice {format_duration(inputs.notice)}",
        "workers": f"--workers {inputs.workers}",
        "runs": f"--runs {one_line(str(inputs.runs))}",
        "gpus": "--gpus 1",
        "instances": f"--instances {inputs.instances}",
        "spot": "on-demand, not --spot",
    }
    used = [text for name, text in values.items() if name in inputs.starred]
    return wrap("* defaulted: " + ", ".join(used), width, "  ") if used else []


def to_json(
    results: Iterable[tuple[Check, Result]], inputs: Inputs, not_asked: Iterable[Check] = ()
) -> dict[str, Any]:
    """The answer of `--json`; the order of the checks is theirs, not the one in which they were done.

    `not_asked`: checks of accounts that were not to be looked at, and of phases that were not asked for.
    """
    return {
        "schema": SCHEMA,
        "checks": [
            {
                "id": entry.id,
                "phase": entry.phase,
                "state": result.state,
                "why": entry.why,
                "evidence": [dict(row) for row in result.evidence],
                "next": result.next,
            }
            for entry, result in results
        ],
        "not_asked": [entry.id for entry in not_asked],
        "inputs": inputs.shown(),
    }
