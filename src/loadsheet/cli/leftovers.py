"""`loadsheet leftovers`."""

from __future__ import annotations

import datetime
import json
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadsheet.cli.output import coloured, show, show_json, warn, width
from loadsheet.cli.progress import Progress
from loadsheet.errors import BadInput, LoadsheetError, shorten
from loadsheet.units import parse_duration

if TYPE_CHECKING:
    from loadsheet.cloud.leftovers.answer import Answer
    from loadsheet.cloud.leftovers.keep import Entry
    from loadsheet.cloud.leftovers.narrow import Span
    from loadsheet.cloud.leftovers.registry import Kind

_LOUD = ("STILL THERE", "LOOK HERE FIRST", "COULD NOT LOOK", "NOT KNOWN", "ANOTHER ACCOUNT")


@click.command(name="leftovers")
@click.option("--regions", metavar="A,B", help="Only these regions. [all that are enabled]")
@click.option("--kinds", metavar="A,B", help="Only these kinds, as `--list` names them.")
@click.option("--older-than", metavar="TIME", help="Only what is older, such as 7d, or has no date.")
@click.option(
    "--after", metavar="RUN", help="Only what this run's time and tags explain; the rest is counted."
)
@click.option("--runs", default="runs", type=click.Path(), help="Where runs are kept. [runs]")
@click.option("--margin", metavar="TIME", help="With --after: how long before and after the run. [2h]")
@click.option(
    "--price", multiple=True, metavar="WHAT=PRICE", help="Your price of a kind or type; may be repeated."
)
@click.option("--price-file", type=click.Path(), help="Your prices: a CSV of what, price, per, currency.")
@click.option(
    "--keep", type=click.Path(), metavar="FILE", help="What is meant to stay: rows of kind, region, id."
)
@click.option("--save", type=click.Path(), metavar="FILE", help="Write all that was found, for --compare.")
@click.option("--compare", type=click.Path(), metavar="FILE", help="What is new and gone since that list.")
@click.option(
    "--paid-calls", is_flag=True, help="Ask Cost Explorer for yesterday's bill: 0.01 USD a request."
)
@click.option("--timeout", metavar="TIME", help="What is not done by then could not be looked at. [10min]")
@click.option("--wait", metavar="TIME", help="For a part of one answer, three times tried. [3s]")
@click.option("--all", "everything", is_flag=True, help="Show every item; else five of each kind.")
@click.option(
    "--list", "as_list", is_flag=True, help="List the kinds and what is asked, and look at nothing."
)
@click.option("--aws-policy", is_flag=True, help="Print the smallest policy of IAM that this needs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (bytes, seconds, prices an hour).")
def command(**given: Any) -> int:
    """What still costs in the account of AWS, over all regions: read-only, nothing is ever removed.

    The commands that would remove something are printed, for you to read and run. Google Cloud, Azure and
    the services that are not asked are named with the command to look by hand.

    Exit status: 0 all was looked at and nothing found but what --keep names and what --older-than and --after leave
    out, 1 something is there or could not be looked at, 2 usage.
    """
    from loadsheet.cloud.leftovers.answer import saved, to_json
    from loadsheet.cloud.leftovers.look import parse_regions
    from loadsheet.cloud.leftovers.page import page
    from loadsheet.cloud.leftovers.prices import collect, doubtful
    from loadsheet.cloud.leftovers.registry import select

    regions = parse_regions(given["regions"])
    names = [part.strip() for part in (given["kinds"] or "").split(",") if part.strip()]
    if given["kinds"] is not None and not names:
        raise BadInput(
            "--kinds: got nothing, expected names such as `volume,snapshot`", "without it all are looked at"
        )
    chosen = select(names)
    if given["as_list"] or given["aws_policy"]:
        _list(chosen, given)
        return 0
    rates = collect(given["price_file"], given["price"])
    for remark in doubtful(rates):
        warn(remark)
    span = _span(given)
    stay = None
    if given["keep"]:
        from loadsheet.cloud.leftovers.keep import read as read_keep

        stay = read_keep(given["keep"])
    before = None
    if given["compare"]:
        from loadsheet.cloud.leftovers.compare import read

        before = read(given["compare"])
    target = _target(given["save"])
    answer = _answer(chosen, regions, given, span, before, stay)
    answer.rates = rates
    if target is not None:
        _save(target, saved(answer))
    if given["as_json"]:
        show_json(to_json(answer))
    else:
        for line in page(answer, width(), given["everything"]):
            show(_styled(line))
    return answer.exit_code


def _answer(
    chosen: list[Kind],
    regions: tuple[str, ...],
    given: dict[str, Any],
    span: Span | None,
    before: Any,
    stay: list[Entry] | None,
) -> Answer:
    """Look, then compare, set aside what is to stay, and narrow."""
    from loadsheet.cloud.checklist import CannotLook
    from loadsheet.cloud.leftovers.answer import Answer
    from loadsheet.cloud.leftovers.compare import compare
    from loadsheet.cloud.leftovers.elsewhere import not_looked
    from loadsheet.cloud.leftovers.keep import split
    from loadsheet.cloud.leftovers.look import look, open_account, unopened
    from loadsheet.cloud.leftovers.makers import with_groups
    from loadsheet.cloud.leftovers.narrow import loud, of_run, older_than

    timeout, wait = _above(given, "timeout", "10min"), _above(given, "wait", "3s")
    age = None if given["older_than"] is None else _with_unit(given["older_than"], "--older-than", "7d")
    progress, lock = Progress(), threading.Lock()

    def tell(text: str) -> None:
        with lock:
            progress(text)

    bill = None
    try:
        account = open_account(chosen, regions, paid=given["paid_calls"], wait=wait)
        found = look(account, chosen, regions, timeout=timeout, tell=tell)
        progress.pause()
        if given["paid_calls"]:
            bill = _bill(account, found)
    except CannotLook as error:
        found = unopened(error, time.time())
    finally:
        progress.close()
    found.items = loud(found.items, found.home, found)
    answer = Answer(found, found.items, bill=bill, span=span)
    answer.not_looked = not_looked(found, chosen, given["paid_calls"])
    if before is not None:
        answer.compared = compare(before, found)
    if stay is not None:
        answer.items, answer.kept, answer.absent = split(answer.items, stay)
    if span is not None:
        answer.items, answer.others = of_run(answer.items, span)
    if age is not None:
        answer.items, answer.younger = older_than(answer.items, age, found.time)
    answer.items = with_groups(answer.items)
    return answer


def _bill(account: Any, found: Any) -> dict[str, Any] | None:
    """Yesterday's bill, or the part of it that was told; what it costs is said on stderr before each request."""
    from loadsheet.cloud.leftovers.bill import bill
    from loadsheet.cloud.leftovers.look import failure

    told, failed = bill(account, datetime.datetime.now(datetime.UTC).date(), warn)
    if failed is not None:
        found.failed.append(failure(failed, "all", "bill"))
    return told if told["whole"] or told["by_region"] else None


def _span(given: dict[str, Any]) -> Span | None:
    """When the run of `--after` began and ended."""
    if not given["after"]:
        if given["margin"]:
            raise BadInput("--margin: got no --after, expected a run that it stands around")
        return None
    from loadsheet.cloud.leftovers.narrow import MARGIN, Span
    from loadsheet.history.index import find

    try:
        row = find(given["runs"], given["after"])
    except ModuleNotFoundError as error:
        raise LoadsheetError(
            f"--after: got no {error.name}, expected it to be installed", "pip install 'loadsheet[run]'"
        ) from None
    if row.started is None or row.updated is None:
        raise BadInput(
            f"--after: got run {shorten(row.fingerprint)} without a start and an end, expected one that was started"
        )
    margin = _with_unit(given["margin"], "--margin", "2h") if given["margin"] else MARGIN
    return Span(row.fingerprint, row.started, row.updated, margin)


def _with_unit(text: str, what: str, example: str) -> float:
    """A duration in seconds; BadInput for a number alone, which would be seconds where days or hours are meant."""
    seconds = parse_duration(text, what)
    if seconds and not text.strip()[-1:].isalpha():
        raise BadInput(f"{what}: got {shorten(text)}, expected it with its unit, such as `{example}`")
    return seconds


def _above(given: dict[str, Any], name: str, default: str) -> float:
    """A duration above 0, in seconds."""
    seconds = parse_duration(given[name] or default, f"--{name}")
    if seconds <= 0:
        raise BadInput(f"--{name}: got 0, expected a duration above 0")
    return seconds


def _target(text: str | None) -> Path | None:
    """Where to save; BadInput before anything is asked if that folder is not there."""
    if text is None:
        return None
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise BadInput(f"--save: got {shorten(text)}, expected a file in a folder that exists")
    return path


def _save(path: Path, value: dict[str, Any]) -> None:
    from loadsheet.run.directory import write_whole

    try:
        write_whole(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BadInput(f"--save: got {reason}, expected to write {shorten(str(path))}") from None
    click.echo(f"wrote {path}", err=True)


def _list(chosen: list[Kind], given: dict[str, Any]) -> None:
    """The kinds, or the policy that they need."""
    from loadsheet.cloud.aws.session import policy
    from loadsheet.cloud.leftovers.registry import calls
    from loadsheet.text import wrap

    if given["aws_policy"]:
        show_json(policy(calls(chosen, given["paid_calls"])))
    elif given["as_json"]:
        show_json({"kinds": [{"kind": k.name, "calls": list(k.calls), "why": k.why} for k in chosen]})
    else:
        for each in chosen:
            show(each.name)
            for line in wrap(f"    {each.why} [{', '.join(each.calls)}]", width(), "    "):
                show(line)


def _styled(line: str) -> str:
    """The words of alarm in bold on a terminal; meaning does not hang on it."""
    head = next((word for word in _LOUD if line.startswith(word)), "")
    return click.style(head, fg="red", bold=True) + line[len(head) :] if head and coloured() else line
