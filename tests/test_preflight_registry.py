"""The registry of checks and how they are carried out: states, time, order, answers of a person."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import threading
import time
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from preflight_world import Repo, alive, machine, results

from loadsheet.cloud import registry
from loadsheet.cloud.answers import ROTATED, Answer, add_answers, read_answers
from loadsheet.cloud.carry_out import carry_out
from loadsheet.cloud.checklist import (
    PHASES,
    STATES,
    CannotLook,
    Check,
    Needs,
    Result,
    fail,
    nothing_to_see,
    ok,
    unknown,
    warn,
)
from loadsheet.cloud.context import Context, Inputs
from loadsheet.cloud.machine import Machine
from loadsheet.cloud.page_html import page
from loadsheet.cloud.registry import all_checks, select
from loadsheet.cloud.report import lines, summary, to_json
from loadsheet.errors import BadFile, UnknownKey

pytestmark = pytest.mark.usefixtures("offline")


def a_check(look: object, id: str = "test.it", **more: object) -> Check:
    """A check for a test."""
    return Check(id, "before", "because", look, **more)  # type: ignore[arg-type]


def carried(tmp_path: Path, *checks: Check, timeout: float = 60.0) -> dict[str, Result]:
    """The results of these checks."""
    context = Context(tmp_path, Inputs(), machine(tmp_path / "root"), timeout)
    return {entry.id: found for entry, found in carry_out(checks, context)}


# --- the registry ---------------------------------------------------------------------------------------------


def test_every_check_says_what_it_is() -> None:
    """Ids stand once; each check has a phase, a reason, and either looks or asks."""
    found = all_checks()
    assert len({c.id for c in found}) == len(found) > 40
    for c in found:
        assert re.fullmatch(r"[a-z]+(\.[a-z0-9-]+)+", c.id)
        assert c.phase in PHASES
        assert len(c.why) > 20
        assert c.question.endswith("?") or not c.only_asks
        assert c.look.__doc__


def test_order_is_by_phase_and_id() -> None:
    """The order of pages and JSON does not depend on the order in which modules are read."""
    keys = [(PHASES.index(c.phase), c.id) for c in all_checks()]
    assert keys == sorted(keys)


def test_adding_a_check_takes_ten_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The example of the documentation, entered and carried out."""
    text = (Path(__file__).parent.parent / "docs" / "preflight.md").read_text(encoding="utf-8")
    source = re.search(r"```python\n(@check\(.*?)```", text, re.DOTALL)
    assert source is not None
    assert len(source[1].splitlines()) <= 10
    monkeypatch.setattr(registry, "_CHECKS", {})
    exec(source[1], {"check": registry.check, "Context": Context, "Result": Result, "warn": warn, "ok": ok})
    entry = registry._CHECKS["host.uptime"]
    for seconds, state in (("30.5 1.0", "warn"), ("3600.2 1.0", "ok")):
        host = machine(tmp_path / seconds, {"/proc/uptime": seconds})
        assert entry.look(Context(tmp_path, Inputs(), host)).state == state


@pytest.mark.parametrize("id", ["disk.space", "Disk", "disk", "disk space", ""])
def test_an_id_that_stands_already_or_is_none(id: str) -> None:
    """It is refused when the module is read."""
    all_checks()
    with pytest.raises(ValueError, match="expected an id"):
        registry.check(id, phase="before", why="x")(lambda context: ok())


def test_selection() -> None:
    """By id, by family, by phase; an unknown one is an error with the nearest."""
    assert [c.id for c in select(["disk.space"])] == ["disk.space"]
    family = [c.id for c in select(["secrets"])]
    assert {"secrets.history", "secrets.worktree"} < set(family)
    assert all(id.startswith("secrets.") for id in family)
    assert {c.phase for c in select(phases=["after"])} == {"after"}
    assert "disk.space" not in {c.id for c in select(skip=["disk"])}
    with pytest.raises(UnknownKey) as error:
        select(["disk.spaec"])
    assert "`disk.space`" in error.value.hint


def test_the_lecture_s_list_is_whole() -> None:
    """The lines put together are the lecture's §7 (its digest), and every check that they name exists."""
    text = resources.files("loadsheet.cloud").joinpath("checklist.json").read_text(encoding="utf-8")
    parts = json.loads(text)["parts"]
    joined = "\n".join("".join(line["zh"] for line in part["lines"]) for part in parts)
    digest = "24a9449d97cb08c0865d8d7b49db4c10136bcd67e7e534a4eeb37ff54d667b40"
    assert hashlib.sha256(joined.encode()).hexdigest() == digest
    named = [id for part in parts for line in part["lines"] for id in line["checks"]]
    assert set(named) <= {c.id for c in all_checks()}
    assert all(line["checks"] for part in parts[1:] for line in part["lines"])
    document = (Path(__file__).parent.parent / "docs" / "checklist.md").read_text(encoding="utf-8")
    assert all(line["zh"] in document and line["en"] in document for part in parts for line in part["lines"])
    assert all(f'<a id="{c.id}"></a>' in document for c in all_checks())


# --- carrying out --------------------------------------------------------------------------------------------


class Ending(BaseException):
    """What would end a process."""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("boom"), "this check itself failed: ValueError: boom"),
        (Ending("now"), "this check itself failed: Ending: now"),
        (SystemExit(3), "this check itself failed: SystemExit: 3"),
        (RecursionError(), "RecursionError"),
        (CannotLook("no permission", "ask for it"), "no permission"),
        (BadFile("x: got y, expected z", "mend it"), "x: got y, expected z"),
        (PermissionError(13, "Permission denied"), "Permission denied"),
    ],
)
def test_what_a_check_raises_is_unknown(error: BaseException, words: str, tmp_path: Path) -> None:
    """With its reason; never ok, never a crash, and the others are carried out."""

    def look(context: Context) -> Result:
        raise error

    found = carried(tmp_path, a_check(look), a_check(lambda context: ok("fine"), "test.other"))
    assert (found["test.it"].state, found["test.other"].state) == ("unknown", "ok")
    assert words in str(found["test.it"].evidence[0]["fact"])


@pytest.mark.parametrize("value", [None, True, "ok", ("ok",)])
def test_what_is_no_result_is_unknown(value: object, tmp_path: Path) -> None:
    """A check that returns something else is at fault."""
    assert carried(tmp_path, a_check(lambda context: value))["test.it"].state == "unknown"


def test_what_hangs_is_unknown_and_holds_nobody_up(tmp_path: Path) -> None:
    """More hanging checks than there are workers: the quick ones before them are done, the rest is unknown."""
    for_ever = threading.Event()

    def hang(context: Context) -> Result:
        for_ever.wait()
        return ok()

    hanging = [a_check(hang, f"test.hang{n}") for n in range(6)]
    slow = a_check(hang, "test.slow", slow=True)
    quick = a_check(lambda context: ok("done"), "test.quick")
    found = carried(tmp_path, quick, slow, *hanging, timeout=0.5)
    for_ever.set()
    assert found["test.quick"].state == "ok"
    assert {found[c.id].state for c in [*hanging, slow]} == {"unknown"}
    assert "not done within 500 ms" in str(found["test.hang5"].evidence)
    assert "--timeout" in found["test.hang5"].next


def test_results_come_as_they_are_ready(tmp_path: Path) -> None:
    """The quick ones are there while a slow one is still at it."""
    go_on = threading.Event()

    def slow(context: Context) -> Result:
        assert go_on.wait(30)
        return ok("slow")

    checks = [a_check(slow, "test.a", slow=True), a_check(lambda context: ok("quick"), "test.b")]
    context = Context(tmp_path, Inputs(), machine(tmp_path / "root"), 60.0)
    stream = carry_out(checks, context)
    assert next(stream)[0].id == "test.b"
    go_on.set()
    assert next(stream)[0].id == "test.a"
    assert list(stream) == []


def test_an_account_is_asked_after_the_machine(tmp_path: Path) -> None:
    """What needs a network comes behind what is there within a moment."""
    seen: list[str] = []

    def noted(needs: Needs) -> Check:
        def look(context: Context) -> Result:
            seen.append(needs)
            return ok()

        return a_check(look, f"test.{needs}", needs=needs)

    context = Context(tmp_path, Inputs(), machine(tmp_path / "root"))
    checks = [noted("account"), *(a_check(noted("machine").look, f"test.m{n}") for n in range(20))]
    list(carry_out(checks, context))
    assert "account" in seen[10:]


def test_a_program_that_hangs_is_ended(tmp_path: Path) -> None:
    """With the process that it has started: nothing is left behind after its time."""
    mark = tmp_path / "pid"
    script = tmp_path / "bin" / "slowly"
    script.parent.mkdir()
    script.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {mark}\nwait\n")
    script.chmod(0o755)
    host = Machine(environment={"PATH": f"{script.parent}:/usr/bin:/bin"})

    def look(context: Context) -> Result:
        return ok(str(host.command(["slowly"], timeout=1.0)))

    found = carried(tmp_path, a_check(look))["test.it"]
    assert (found.state, found.evidence[0]["fact"]) == ("unknown", "slowly did not answer within 1 s")
    child = int(mark.read_text())
    until = time.monotonic() + 30
    while alive(child) and time.monotonic() < until:
        time.sleep(0.01)
    assert not alive(child)


def test_programs_of_the_folder_are_not_run(tmp_path: Path) -> None:
    """PATH may name the folder that is looked at, or a relative one: nothing there is started."""
    mark = tmp_path / "ran"
    for folder in (tmp_path / "repo", tmp_path / "repo" / "bin"):
        folder.mkdir(exist_ok=True)
        script = folder / "nvidia-smi"
        script.write_text(f"#!/bin/sh\ntouch {mark}\n")
        script.chmod(0o755)
    path = f"{tmp_path}/repo:.:bin::{tmp_path}/repo/bin"
    host = Machine(environment={"PATH": path}, not_from=[tmp_path / "repo"])
    assert host.command(["nvidia-smi"]) is None
    assert Machine(environment={"PATH": ":.:bin:"}).which("nvidia-smi") is None
    assert not mark.exists()


# --- questions and answers -----------------------------------------------------------------------------------

DAY = datetime.date(2026, 11, 29)
NOON = datetime.datetime(2026, 11, 29, 12).timestamp()
QUESTION = a_check(nothing_to_see, "test.question", question="Is it on?", days=30)


def asked(
    tmp_path: Path, *answers: dict[str, str], time: float = NOON, checks: tuple[Check, ...] = ()
) -> Result:
    """The result of a question, with a file of answers."""
    folder = tmp_path / ".loadsheet"
    folder.mkdir(exist_ok=True)
    (folder / "answers.json").write_text(json.dumps({"schema": 1, "answers": list(answers)}))
    context = Context(tmp_path, Inputs(), machine(tmp_path / "root", time=lambda: time))
    return {c.id: r for c, r in carry_out([QUESTION, *checks], context)}["test.question"]


def answer(**more: str) -> dict[str, str]:
    """An answer of today, changed."""
    return {"id": "test.question", "answer": "yes", "who": "Ada", "date": DAY.isoformat(), **more}


def test_a_question_without_an_answer(tmp_path: Path) -> None:
    """It is unknown, says the question and how to answer."""
    found = asked(tmp_path)
    assert (found.state, found.evidence[0]["question"]) == ("unknown", "Is it on?")
    assert "--answer test.question=yes" in found.next


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({}, "ok"),
        ({"answer": "no"}, "fail"),
        ({"date": "2026-10-30"}, "ok"),  # thirty days ago
        ({"date": "2026-10-29"}, "unknown"),  # thirty-one
        ({"date": "2026-10-30", "expires": "2026-11-28"}, "unknown"),
        ({"date": "2026-01-01", "expires": "2027-01-01"}, "ok"),
        ({"date": "2026-11-30"}, "unknown"),  # to come
        ({"id": "test.other"}, "unknown"),
    ],
)
def test_answers_have_a_date_and_an_end(change: dict[str, str], state: str, tmp_path: Path) -> None:
    """Yes is ok, no fails; both only for as long as the answer is good."""
    found = asked(tmp_path, answer(**change))
    assert found.state == state
    if state in {"ok", "fail"}:
        assert "answered by Ada on" in str(found.evidence[-1]["fact"])


def test_the_newest_answer_counts(tmp_path: Path) -> None:
    """Whatever the order in the file."""
    assert asked(tmp_path, answer(date="2026-11-01", answer="no"), answer()).state == "ok"
    assert asked(tmp_path, answer(), answer(date="2026-11-01", answer="no")).state == "ok"


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", "null", '{"schema": 2, "answers": []}', '{"schema": 1}', '{"schema": 1, "answers": {}}',
        '{"schema": 1, "answers": [1]}', '{"schema": 1, "answers": [{"id": 1}]}',
        '{"schema": 1, "answers": [{"id": "test.question", "answer": "yes", "date": "2026-11-29"}]}',
        '{"schema": 1, "answers": [{"id": "test.question", "answer": "maybe", "who": "A", "date": "2026-11-29"}]}',
        '{"schema": 1, "answers": [{"id": "test.question", "answer": "yes", "who": "A", "date": "yesterday"}]}',
        '{"schema": 1, "answers": [{"id": "test.question", "answer": "yes", "who": " ", "date": "2026-11-29"}]}',
    ],
)  # fmt: skip
def test_a_damaged_file_answers_nothing(text: str, tmp_path: Path) -> None:
    """It is unknown with the reason, never ok, and `--answer` does not write over it."""
    folder = tmp_path / ".loadsheet"
    folder.mkdir()
    path = folder / "answers.json"
    path.write_text(text)
    context = Context(tmp_path, Inputs(), machine(tmp_path / "root", time=lambda: NOON))
    ((_, found),) = carry_out([QUESTION], context)
    assert found.state == "unknown"
    assert "no answer counts" in str(found.evidence)
    with pytest.raises(BadFile):
        add_answers(path, [Answer("test.question", True, DAY, "Ada")])
    assert path.read_text() == text


@settings(max_examples=25, deadline=None)  # every answer is synced to the disk
@given(
    st.lists(
        st.builds(
            Answer,
            id=st.sampled_from(["a.b", "a.c", ROTATED]),
            yes=st.booleans(),
            date=st.dates(datetime.date(2020, 1, 1), datetime.date(2030, 1, 1)),
            who=st.sampled_from(["Ada", "Grace Hopper", "李"]),
            expires=st.none() | st.dates(datetime.date(2020, 1, 1), datetime.date(2030, 1, 1)),
            fingerprint=st.sampled_from(["", "0123456789ab"]),
        ),
        max_size=6,
    )
)
def test_answers_come_back_as_they_were_given(given_answers: list[Answer]) -> None:
    """The last of each question, with all its fields."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ".loadsheet" / "answers.json"
        for entry in given_answers:
            add_answers(path, [entry])
        expected = {(a.id, a.fingerprint): a for a in given_answers}
        assert {(a.id, a.fingerprint): a for a in read_answers(path).answers} == expected


@pytest.mark.parametrize(
    ("found", "state", "words"),
    [
        (ok("root has MFA"), "ok", "answered by test.aws"),
        (fail("root has none"), "not_applicable", "looked at by test.aws: fail"),
        (warn("root has keys"), "not_applicable", "looked at by test.aws: warn"),
        (unknown("no permission"), "unknown", "Is it on?"),
    ],
)
def test_a_check_that_looks_settles_a_question(found: Result, state: str, words: str, tmp_path: Path) -> None:
    """Its ok answers it, its fail is shown once and there; where it cannot look, the person is asked."""
    aws = a_check(lambda context: found, "test.aws", settles=("test.question",))
    settled = asked(tmp_path, checks=(aws,))
    assert settled.state == state
    assert words in str(settled.evidence)


def test_an_answer_does_not_change_what_was_seen(tmp_path: Path) -> None:
    """A check that looked and found something wrong stays as it is, whatever a person says."""
    entry = a_check(lambda context: fail("seen"), "test.question", question="Is it on?")
    folder = tmp_path / ".loadsheet"
    folder.mkdir()
    (folder / "answers.json").write_text(json.dumps({"schema": 1, "answers": [answer()]}))
    context = Context(tmp_path, Inputs(), machine(tmp_path / "root", time=lambda: NOON))
    assert [r.state for _, r in carry_out([entry], context)] == ["fail"]


# --- pages ---------------------------------------------------------------------------------------------------

HOSTILE = "<script>alert(1)</script> & \"quotes\" 'single'\x1b[31m\x07\u202e\n\nlines"


def hostile() -> list[tuple[Check, Result]]:
    """Results in every state, full of what wants to be more than text."""
    makers = (ok, warn, fail, unknown)
    rows = {"fact": HOSTILE}
    secret = {
        "rule": HOSTILE,
        "path": HOSTILE,
        "commit": HOSTILE,
        "redacted": HOSTILE,
        "line": 3,
        "remark": HOSTILE,
    }
    found = [(a_check(nothing_to_see, f"test.{m.__name__}"), m(rows, secret, next=HOSTILE)) for m in makers]
    return [*found, (a_check(nothing_to_see, "test.none"), Result("not_applicable"))]


def test_the_page_is_self_contained_and_escaped(tmp_path: Path) -> None:
    """No script, no link, no foreign markup; every state and every check stands in it."""
    from html.parser import HTMLParser

    context = Context(tmp_path, Inputs(data=(HOSTILE,)), machine(tmp_path / "root"))
    text = page(hostile(), context, "1.0")
    tags: list[tuple[str, dict[str, str | None]]] = []
    written: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            tags.append((tag, dict(attributes)))

        def handle_data(self, data: str) -> None:
            written.append(data)

    Reader().feed(text)
    names = {tag for tag, _ in tags}
    assert names & {"script", "img", "link", "iframe", "a", "form"} == set()
    assert not any(name.startswith("on") or name in {"src", "href"} for _, a in tags for name in a)
    assert ("http-equiv", "Content-Security-Policy") in {item for _, a in tags for item in a.items()}
    assert sum("<script>alert(1)</script>" in data for data in written) > 8
    assert "\x1b" not in text
    assert "\x07" not in text
    for state in STATES:
        assert f'class="state {state}"' in text


@pytest.mark.parametrize("width", [40, 60, 100, 400])
def test_lines_keep_to_the_width(width: int) -> None:
    """No line is wider than the terminal, and no control character reaches it."""
    results = hostile()
    text = [line for c, r in results for line in lines(c, r, width, explain=True)] + summary(results, width)
    assert max(map(len, text)) <= width
    assert all(line.isprintable() for line in text)


def test_the_json_has_the_keys_of_the_design(tmp_path: Path) -> None:
    """`checks` with exactly six keys each, in the order of the checks, and no NaN."""
    found = to_json(hostile(), Inputs())
    assert set(found) == {"schema", "checks", "not_asked", "inputs"}
    keys = ["id", "phase", "state", "why", "evidence", "next"]
    assert all(list(row) == keys for row in found["checks"])
    assert [row["id"] for row in found["checks"]] == [c.id for c, _ in hostile()]
    json.dumps(found, allow_nan=False)


def test_the_same_world_gives_the_same_json(tmp_path: Path) -> None:
    """Twice over all local checks: threads do not show."""
    Repo(tmp_path / "repo").commit(train__py="print(1)\n")
    host = machine(tmp_path / "root", time=lambda: NOON)
    ids = [c.id for c in select() if c.needs == "machine"]
    twice = []
    for _ in range(2):
        found = results(tmp_path / "repo", host, *ids)
        twice.append(json.dumps(to_json([(c, found[c.id]) for c in select(ids)], Inputs())))
    assert twice[0] == twice[1]
