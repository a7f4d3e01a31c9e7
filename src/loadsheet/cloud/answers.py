"""What a person has answered: `.loadsheet/answers.json`, each with a date, a name, and an end.

    {"schema": 1, "answers": [{"id": "account.mfa", "answer": "yes", "who": "Ada", "date": "2026-11-29"}]}

An answer is good for as long as the question says (`expires` may name an earlier or later day), then the
question is open again. "no" makes it fail. For a secret that was found, the id is `secrets.rotated` and
`fingerprint` says which: the key was replaced at its provider, so what stands in the history opens nothing.
The file holds claims of a person, and is shown as such.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from loadsheet.cloud.checklist import Check, Result, fail, ok, unknown
from loadsheet.errors import BadFile, LoadsheetError, one_line, shorten
from loadsheet.safejson import load_json

if TYPE_CHECKING:
    from loadsheet.cloud.context import Context

SCHEMA: Final = 1
ROTATED: Final = "secrets.rotated"
ROTATED_DAYS: Final = 3650  # a key that was replaced stays replaced
_LIMIT: Final = 1 << 20
_MOST: Final = 10_000


@dataclass(frozen=True)
class Answer:
    """One answer of a person."""

    id: str
    yes: bool
    date: datetime.date
    who: str
    expires: datetime.date | None = None
    fingerprint: str = ""

    def good_until(self, days: int) -> datetime.date:
        """The last day on which it counts."""
        return self.expires or self.date + datetime.timedelta(days=days)


class Answers:
    """The answers of a file, the newest of each question first; `problem` says why there are none."""

    def __init__(self, path: Path, answers: Iterable[Answer] = (), problem: str = "") -> None:
        self.path = path
        self.answers = sorted(answers, key=lambda a: a.date, reverse=True)
        self.problem = problem

    def find(self, id: str, fingerprint: str = "") -> Answer | None:
        """The newest answer to a question."""
        return next((a for a in self.answers if a.id == id and a.fingerprint == fingerprint), None)

    def apply(self, entry: Check, result: Result, context: Context) -> Result:
        """`unknown` with its question, or what was answered."""
        today = datetime.date.fromtimestamp(context.machine.time())
        given = self.find(entry.id)
        remarks: list[dict[str, Any]] = list(map(dict, result.evidence))
        how = f"answer it: `loadsheet preflight --answer {entry.id}=yes`"
        if given is not None and given.date > today:
            remarks.append({"fact": f"an answer of {given.who} is dated {given.date}, which is to come"})
        elif given is not None and today > given.good_until(entry.days):
            until = given.good_until(entry.days)
            remarks.append({"fact": f"answered by {given.who} on {given.date}; that was good until {until}"})
        elif given is not None:
            row = {
                "fact": f"answered by {given.who} on {given.date}: {'yes' if given.yes else 'no'}",
                "question": entry.question,
                "answered": given.date.isoformat(),
                "who": given.who,
                "good_until": given.good_until(entry.days).isoformat(),
            }
            if given.yes:
                return ok(*remarks, row)
            return fail(*remarks, row, next=result.next or how)
        if self.problem:
            remarks.append({"fact": self.problem})
        next_step = f"{result.next}; or {how}" if result.next else how
        return unknown({"fact": entry.question, "question": entry.question}, *remarks, next=next_step)

    def rotated(self, fingerprint: str, today: datetime.date) -> Answer | None:
        """Whether somebody says that the secret with this fingerprint was replaced."""
        given = self.find(ROTATED, fingerprint)
        if given is None or not given.yes or not given.date <= today <= given.good_until(ROTATED_DAYS):
            return None
        return given


def read_answers(path: Path) -> Answers:
    """The answers in a file; none, with the reason, if it cannot be read."""
    if not path.exists():
        return Answers(path)
    try:
        found = load_json(path, "answers.json", _LIMIT)
        rows = found.get("answers")
        if found.get("schema") != SCHEMA or not isinstance(rows, list):
            raise BadFile(f'{path.name}: got no answers, expected {{"schema": 1, "answers": [...]}}')
        return Answers(path, [_answer(row) for row in rows[:_MOST]])
    except LoadsheetError as error:
        return Answers(path, problem=f"{error}: no answer counts")


def _answer(row: object) -> Answer:
    if not isinstance(row, dict):
        raise BadFile(f"answers.json: got {shorten(row)}, expected an object")
    texts = {name: row.get(name, "") for name in ("id", "answer", "who", "date", "expires", "fingerprint")}
    if not all(isinstance(text, str) and len(text) < 200 for text in texts.values()):
        raise BadFile(f"answers.json: got {shorten(row)}, expected texts")
    if texts["answer"] not in {"yes", "no"} or not texts["who"].strip():
        raise BadFile(f'answers.json: got {shorten(row)}, expected "answer" yes or no, and "who"')
    return Answer(
        texts["id"],
        texts["answer"] == "yes",
        _day(texts["date"]),
        one_line(texts["who"]),
        _day(texts["expires"]) if texts["expires"] else None,
        texts["fingerprint"],
    )


def _day(text: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise BadFile(f"answers.json: got {shorten(text)}, expected a date such as 2026-11-29") from None


def add_answers(path: Path, new: Iterable[Answer]) -> None:
    """Write answers into the file, in the place of older ones to the same questions.

    Raises BadFile if what is there is no file of answers: nothing of it is lost.
    """
    known = read_answers(path)
    if known.problem:
        raise BadFile(known.problem, f"mend or remove `{path}` first")
    kept = {(a.id, a.fingerprint): a for a in reversed(known.answers)}
    kept |= {(a.id, a.fingerprint): a for a in new}
    rows = []
    for entry in sorted(kept.values(), key=lambda a: (a.id, a.fingerprint)):
        row = {"id": entry.id, "answer": "yes" if entry.yes else "no", "who": entry.who}
        row["date"] = entry.date.isoformat()
        if entry.expires:
            row["expires"] = entry.expires.isoformat()
        if entry.fingerprint:
            row["fingerprint"] = entry.fingerprint
        rows.append(row)
    from loadsheet.run.directory import write_whole

    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"schema": SCHEMA, "answers": rows}, indent=1, ensure_ascii=False)
    write_whole(path, text.encode() + b"\n")
