"""`loadsheet preflight`."""

from __future__ import annotations

import contextlib
import getpass
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadsheet import __version__
from loadsheet.cli.output import coloured, show, show_json, warn, width
from loadsheet.cli.progress import Progress
from loadsheet.errors import BadFile, BadInput, UnknownKey, shorten
from loadsheet.units import parse_bytes, parse_count, parse_duration

if TYPE_CHECKING:
    from loadsheet.cloud.checklist import Check, Result
    from loadsheet.cloud.context import Context, Inputs

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red", "unknown": "cyan", "not_applicable": None}


@click.command(name="preflight")
@click.option("--runs", type=click.Path(), help="Where runs are kept. [runs]")
@click.option("--checkpoint-dir", type=click.Path(), help="Where checkpoints are written. [as --runs]")
@click.option(
    "--sheet", type=click.Path(), help="A sheet: `plan … --json`, or signed. Gives sizes and needs."
)
@click.option("--checkpoint-bytes", help="Size of one checkpoint. [from the sheet, else the last run]")
@click.option("--keep", help="Checkpoints that are kept. [2]")
@click.option("--every", help="Time between saves. [10min]")
@click.option("--notice", help="Time from a notice to the end. [120s as AWS; Google, Azure: 30s]")
@click.option("--data", multiple=True, help="A path or bucket of the training data; may be repeated.")
@click.option("--mirror", help="Where a second copy of the run goes: a path, s3://…, gs://…, az://…")
@click.option("--workers", help="Loader processes. [4]")
@click.option("--gpus", help="GPUs that the training takes. [from the sheet]")
@click.option("--price", help="Your price per GPU hour, such as 2.5 or `2.50 USD`.")
@click.option(
    "--account", multiple=True, help="Ask this account, too: aws, gcp, azure; may be repeated. [none]"
)
@click.option("--region", multiple=True, help="Where the machine is to be; may be repeated. [as configured]")
@click.option(
    "--instance-type", help="The machine to rent, such as g5.xlarge: is the quota enough, does it fit?"
)
@click.option("--instances", help="How many of them. [1]")
@click.option("--spot", is_flag=True, help="As spot. [on-demand]")
@click.option("--subnet", help="AWS: the subnet of the machine, for its zone and its way to S3.")
@click.option("--volume", help="AWS: a volume that the machine is to use.")
@click.option(
    "--aws-policy", is_flag=True, help="Print the policy that lets `--account aws` look, and nothing else."
)
@click.option("--pid", help="A training that runs already: would it survive a closed session?")
@click.option(
    "--only",
    multiple=True,
    metavar="ID,…",
    help="Only these checks, or families (`secrets`); may be repeated.",
)
@click.option("--skip", multiple=True, metavar="ID,…", help="Not these checks or families; may be repeated.")
@click.option(
    "--phase",
    multiple=True,
    help="before, during, after; may be repeated. [before; during, too, while a run goes on]",
)
@click.option("--timeout", help="What is not done by then is `unknown`. [60s]")
@click.option("--strict", is_flag=True, help="Exit status 1 also for warnings and for what is unknown.")
@click.option("--explain", is_flag=True, help="Why each check is made, and all that it found.")
@click.option("--list", "as_list", is_flag=True, help="List the checks, and look at nothing.")
@click.option(
    "--answer", multiple=True, metavar="ID=yes|no", help="Note your answer to a question; looks at nothing."
)
@click.option("--who", help="Whose answer it is. [your login]")
@click.option("--html", type=click.Path(), metavar="FILE", help="Write the results as a page, too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(**given: Any) -> int:
    """The checklist before, during and after renting: what would cost time, money or data.

    Looks at this folder, its repository and this machine; nothing of the repository is executed. An account
    is asked only with --account, and never changed. Each line appears when its check is done. A check that
    cannot look says `unknown` and why, never `ok`.

    Exit status: 0 nothing fails (--strict: and nothing is open), 1 something fails, 2 usage.
    """
    from loadsheet.cloud.accounts import asked_for, not_asked
    from loadsheet.cloud.carry_out import carry_out
    from loadsheet.cloud.checklist import PHASES
    from loadsheet.cloud.context import Context
    from loadsheet.cloud.registry import now, select
    from loadsheet.cloud.report import starred, summary, to_json

    for name in ("only", "skip", "phase"):
        given[name] = tuple(word.strip() for text in given[name] for word in text.split(","))
    for phase in given["phase"]:
        if phase not in PHASES:
            raise UnknownKey(phase, PHASES, "phase")
    if given["aws_policy"]:
        from loadsheet.cloud.aws.operations import PREFLIGHT
        from loadsheet.cloud.aws.session import policy

        show_json(policy(PREFLIGHT))
        return 0
    checks = select(given["only"], given["skip"], given["phase"])
    if given["as_list"]:
        _list(checks, given["as_json"])
        return 0
    timeout = parse_duration(given["timeout"] or "60s", "--timeout")
    if timeout <= 0:
        raise BadInput("--timeout: got 0, expected a duration above 0")
    context = Context(Path.cwd(), inputs(given), timeout=timeout)
    if given["answer"]:
        note(given["answer"], given["who"], context)
        return 0
    _require_sheet(context.inputs.sheet)
    later: list[Check] = []
    if not given["phase"] and not given["only"]:
        from loadsheet.cloud.checks.run import going_on

        checks, later = now(checks, context.inputs.pid is not None or going_on(context))
    checks, left = asked_for(checks, context.inputs.accounts, given["only"])
    if any(c.id.startswith("aws.") for c in checks):
        from loadsheet.cloud.aws.regions import doubtful, require_regions

        for name in require_regions(context):
            warn(doubtful(name))
    page = Path(given["html"]) if given["html"] else None
    if page is not None and not page.parent.is_dir():
        raise BadInput(f"--html: got {shorten(given['html'])}, expected a file in a folder that exists")
    found: dict[str, tuple[Check, Result]] = {}
    with _told(context) as between:
        for entry, result in carry_out(checks, context):
            found[entry.id] = entry, result
            if not given["as_json"]:
                with between():
                    show(_styled(entry, result, given["explain"]))
    results = [found[entry.id] for entry in checks]
    if given["as_json"]:
        show_json(to_json(results, context.inputs, [*left, *later]))
    else:
        rest = [not_asked(left, context.inputs.accounts), _later(later), _leftovers(results)]
        text = " ".join(filter(None, rest))
        for line in [
            *summary(results, width(), text, strict=given["strict"]),
            *starred(context.inputs, width()),
        ]:
            show(line)
    if page is not None:
        from loadsheet.cloud.page_html import page as make_page
        from loadsheet.run.directory import write_whole

        try:
            write_whole(page, make_page(results, context, __version__).encode())
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise BadInput(f"--html: got {reason}, expected to write {shorten(str(page))}") from None
        click.echo(f"wrote {page}", err=True)
    bad = {"fail", "warn", "unknown"} if given["strict"] else {"fail"}
    return 1 if any(result.state in bad for _, result in results) else 0


def _require_sheet(path: Path | None) -> None:
    """BadFile before any check if the sheet that was given is none, or was edited after it was signed."""
    from loadsheet.cloud.checklist import CannotLook
    from loadsheet.cloud.plan_file import read_plan_file

    if path is not None:
        try:
            read_plan_file(path.expanduser())
        except CannotLook as error:
            raise BadFile(str(error), error.next) from None


def _later(left: list[Check]) -> str:
    """Which phases were left out, in words; empty if none was."""
    phases = list(dict.fromkeys(c.phase for c in left))
    if not phases:
        return ""
    how = " ".join(f"--phase {phase}" for phase in phases)
    return f"left out: {len(left)} checks for {' and '.join(phases)} the run; `{how}` asks for them."


def _leftovers(results: list[tuple[Check, Result]]) -> str:
    """Where to look for what is left, if what is to be done after a run was asked for."""
    if not any(c.phase == "after" for c, _ in results):
        return ""
    return (
        "what is left in an account of AWS: `loadsheet leftovers` looks in every region, and removes nothing."
    )


@contextlib.contextmanager
def _told(context: Context) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """What a long check is at, on the last line of a terminal; the lines of the answer go between."""
    progress, lock = Progress(), threading.Lock()

    def tell(text: str) -> None:
        with lock:
            progress(text)

    @contextlib.contextmanager
    def between() -> Iterator[None]:
        with lock:
            progress.pause()
            yield

    tell("looking")
    context.tell = tell
    try:
        yield between
    finally:
        context.tell = lambda text: None
        progress.close()


def _styled(entry: Check, result: Result, explain: bool) -> str:
    """The lines of a check, its state in colour on a terminal."""
    from loadsheet.cloud.report import LABELS, lines

    first, *rest = lines(entry, result, width(), explain=explain)
    label = LABELS[result.state]
    if coloured():
        colour = _COLOURS[result.state]
        first = (
            click.style(label, fg=colour, bold=result.state == "fail", dim=colour is None)
            + first[len(label) :]
        )
    return "\n".join([first, *rest])


def _list(checks: list[Check], as_json: bool) -> None:
    """What there is to check."""
    from loadsheet.text import wrap

    if as_json:
        keys = ("id", "phase", "why", "question", "needs")
        show_json({"checks": [{key: getattr(c, key) for key in keys} for c in checks]})
        return
    for c in checks:
        show(f"{c.phase:<8}{c.id}")
        for line in wrap(c.question or c.why, width() - 10):
            show(" " * 10 + line)


def inputs(given: dict[str, Any]) -> Inputs:
    """The options as figures in base units; BadInput for what is none."""
    from loadsheet.cloud.accounts import parse_accounts
    from loadsheet.cloud.context import Inputs
    from loadsheet.money.price import parse_price

    values: dict[str, Any] = {}
    for name in ("runs", "checkpoint_dir", "sheet"):
        if given[name] is not None:
            values[name] = Path(given[name])
    for name in ("keep", "workers", "gpus", "pid", "instances"):
        if given[name] is not None:
            zero = name == "workers" and str(given[name]).strip() == "0"
            values[name] = 0 if zero else parse_count(given[name], f"--{name}")
    for name in ("every", "notice"):
        if given[name] is not None:
            values[name] = parse_duration(given[name], f"--{name}")
    if given["checkpoint_bytes"] is not None:
        values["checkpoint_bytes"] = parse_bytes(given["checkpoint_bytes"], "--checkpoint-bytes")
    if given["price"] is not None:
        values["price"] = parse_price(given["price"])
    if given["data"]:
        values["data"] = tuple(given["data"])
    for name in ("mirror", "instance_type", "subnet", "volume"):
        if given[name] is not None:
            values[name] = given[name]
    if given["spot"]:
        values["spot"] = True
    if given["account"]:
        values["accounts"] = parse_accounts(given["account"])
    if given["region"]:
        from loadsheet.cloud.aws.regions import parse_regions

        values["regions"] = parse_regions(given["region"])
    return replace(Inputs(), **values, given=frozenset(values))


def note(texts: tuple[str, ...], who: str | None, context: Any) -> None:
    """Write the answers of `--answer` into the file."""
    import datetime

    from loadsheet.cloud.answers import ROTATED, Answer, add_answers
    from loadsheet.cloud.registry import all_checks
    from loadsheet.cloud.secrets import FINGERPRINT

    known = {c.id: c for c in all_checks() if c.question}
    person = who or os.environ.get("USER") or getpass.getuser()
    today = datetime.date.fromtimestamp(context.machine.time())
    answers = []
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or value not in {"yes", "no"}:
            raise BadInput(
                f"--answer: got {shorten(text)}, expected ID=yes or ID=no", "`--list` has the questions"
            )
        id_, _, fingerprint = name.partition(":")
        if id_ == ROTATED and fingerprint:
            if FINGERPRINT.fullmatch(fingerprint) is None:
                raise BadInput(
                    f"--answer: got {shorten(fingerprint)}, expected the fingerprint of a secret: 12 digits 0-9, a-f",
                    "`loadsheet preflight --only secrets` prints it behind what it found",
                )
            answers.append(Answer(ROTATED, value == "yes", today, person, fingerprint=fingerprint))
            continue
        if name not in known:
            raise UnknownKey(name, known, "question")
        answers.append(Answer(name, value == "yes", today, person))
    path = context.notebook / "answers.json"
    add_answers(path, answers)
    for entry in answers:
        days = known[entry.id].days if entry.id in known else None
        until = f", good until {entry.good_until(days)}" if days else ""
        show(f"{entry.id}: {'yes' if entry.yes else 'no'}, {entry.who}, {entry.date}{until}")
    show(f"noted in {path}")
    if any(entry.id == ROTATED for entry in answers):
        show("no secret was looked for: `loadsheet preflight --only secrets` says which ones this holds for")
