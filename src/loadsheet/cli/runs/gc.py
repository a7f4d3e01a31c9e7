"""`loadsheet runs gc`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from loadsheet.cli.output import show, show_json, warn, width
from loadsheet.cli.progress import Progress
from loadsheet.cli.runs import root_option
from loadsheet.errors import BadInput, shorten
from loadsheet.text import columns, wrap
from loadsheet.units import format_bytes, parse_count, parse_duration

if TYPE_CHECKING:
    from loadsheet.history.tidy import Freeable, Freed, Item, Rule


@click.command(name="gc")
@click.argument("run", nargs=-1)
@root_option
@click.option("--keep-last", metavar="K", help="Keep the newest K checkpoints of each run.")
@click.option("--keep-every", metavar="M", help="Keep those whose step is a multiple of M.")
@click.option(
    "--keep-best",
    metavar="METRIC[:min|max][:N]",
    multiple=True,
    help="Keep the N best by a logged metric, as `load` finds them. [:min:1]",
)
@click.option("--older-than", metavar="TIME", help="Free only what is older, e.g. `30d`.")
@click.option("--damaged", is_flag=True, help="Free checkpoints that are not whole as well; reads every one.")
@click.option("--yes", is_flag=True, help="Delete without asking.")
@click.option("--dry-run", is_flag=True, help="Only show; the exit status is 0.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (bytes, seconds); asks nothing.")
def command(
    run: tuple[str, ...],
    root: str,
    keep_last: str | None,
    keep_every: str | None,
    keep_best: tuple[str, ...],
    older_than: str | None,
    damaged: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """What a retention rule would free, of RUN or of all runs; asks, then deletes.

    A checkpoint stays if any part of the rule keeps it. Without a rule only leftovers go: of saves that were
    not finished, and checkpoints found damaged and set aside. The newest whole checkpoint always stays, a run
    that is in use is not touched, and what stays is read back before anything goes.

    Exit status: 0 done, nothing to do, or declined; 1 something could not be freed, or there was nobody to ask
    and no `--yes`: then nothing is deleted.
    """
    if yes and dry_run:
        raise BadInput("runs gc: got --yes with --dry-run, expected one of them")
    rule = _rule(keep_last, keep_every, keep_best, older_than, damaged)
    progress = Progress()
    try:
        plans = _plans(root, run, rule, progress)
    finally:
        progress.close()
    nbytes = sum(plan.nbytes for plan in plans)
    count = sum(len(plan.free) for plan in plans)
    if not as_json:
        for line in _page(plans, rule, width()):
            show(line)
    done: list[Freed] = []
    answer = bool(count) and not dry_run and (yes or (not as_json and _agreed(count, nbytes)))
    if answer:
        done = _carried_out(plans, rule)
    problems = [f"{freed.path.name}: {problem}" for freed in done for problem in freed.problems]
    if as_json:
        show_json(_json(plans, done, problems, deleted=answer))
    elif answer:
        freed = sum(one.nbytes for one in done)
        show(f"freed {format_bytes(freed)} in {sum(len(one.items) for one in done):,} directories")
    for problem in problems:
        warn(problem)
    if problems:
        return 1
    if count and not answer and not dry_run and (as_json or not _terminal()):
        if not as_json:
            warn("nothing was deleted: nobody to ask, and no `--yes`")
        return 1
    return 0


def _rule(last: str | None, every: str | None, best: Sequence[str], older: str | None, damaged: bool) -> Rule:
    from loadsheet.history.tidy import Rule

    return Rule(
        keep_last=None if last is None else parse_count(last, "--keep-last"),
        keep_every=None if every is None else parse_count(every, "--keep-every"),
        best=tuple(map(best_of, best)),
        older_than=None if older is None else parse_duration(older, "--older-than"),
        damaged=damaged,
    )


def best_of(text: str) -> Any:
    """The rule in METRIC[:min|max][:N]; the name of a metric may have a colon of its own."""
    from loadsheet.run.retention import Best

    name, count, mode = text, 1, "min"
    head, _, tail = name.rpartition(":")
    if head and tail.isascii() and tail.isdigit():
        name, count = head, parse_count(tail, "--keep-best")
        head, _, tail = name.rpartition(":")
    if head and tail in ("min", "max"):
        name, mode = head, tail
    if not name or name.endswith(":"):
        raise BadInput(
            f"--keep-best: got {shorten(text)}, expected METRIC[:min|max][:N]", "for example `val_loss:min:3`"
        )
    return Best.parse((name, mode, count))


def _plans(root: str, words: Sequence[str], rule: Rule, progress: Progress) -> list[Freeable]:
    from loadsheet.history.index import find, run_paths
    from loadsheet.history.tidy import plan

    paths = [find(root, word).path for word in words] if words else run_paths(root)
    return [plan(path, rule, say=progress) for path in dict.fromkeys(paths)]


def _carried_out(plans: Sequence[Freeable], rule: Rule) -> list[Freed]:
    from loadsheet.history.tidy import carry_out

    progress = Progress()
    try:
        return [carry_out(plan, rule, say=progress) for plan in plans if plan.free]
    finally:
        progress.close()


def _terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr is not None and sys.stderr.isatty()


def _agreed(count: int, nbytes: int) -> bool:
    if not _terminal():
        return False
    return click.confirm(
        f"delete these {count:,} directories, {format_bytes(nbytes)}?", default=False, err=True
    )


# --- the page -------------------------------------------------------------------------------------------------


def _page(plans: Sequence[Freeable], rule: Rule, room: int) -> list[str]:
    """A line for each run with something to free, the total, and what is left alone and why."""
    rows = [["run", "to free", "bytes", "stays"]]
    for plan in plans:
        if plan.free:
            kept = [item for item in plan.stay if item.kind == "checkpoint"]
            rows.append(
                [plan.path.name, _named(plan.free), format_bytes(plan.nbytes, 1), _named(kept) or "–"]
            )
    lines: list[str] = []
    if len(rows) > 1:
        rows.append(
            [
                "total",
                _counted([i for p in plans for i in p.free]),
                format_bytes(sum(p.nbytes for p in plans), 1),
                "",
            ]
        )
        lines = columns(rows, left=2)
        if max(map(len, lines)) > room:
            lines = [
                line
                for name, free, nbytes, stays in rows[1:]
                for line in wrap(
                    f"{name}: {nbytes} in {free}" + (f"; stays: {stays}" if stays else ""), room, "  "
                )
            ]
    else:
        lines = wrap(f"nothing to free in {len(plans)} runs", room)
    if not rule.of_checkpoints:
        lines += wrap(
            "no rule for checkpoints was given (`--keep-last K`, `--keep-best METRIC`, …): all whole ones stay",
            room,
            "  ",
        )
    for plan in plans:
        if plan.reason:
            lines += wrap(f"{plan.path.name}: left alone: {plan.reason}", room, "  ")
        for reason in plan.damaged:
            fate = "" if rule.damaged else "; it stays, unless `--damaged` is given"
            lines += wrap(f"{plan.path.name}: damaged: {reason}{fate}", room, "  ")
    return lines


def _named(items: Sequence[Item]) -> str:
    """Steps, the first and last of many, and how many leftovers."""
    steps = [item.step for item in items if item.kind == "checkpoint" and item.step is not None]
    text = (
        ", ".join(map(str, steps))
        if len(steps) <= 4
        else f"{steps[0]}, {steps[1]} … {steps[-1]} ({len(steps)})"
    )
    parts = [f"step {text}"] if steps else []
    for kind in ("damaged", "set aside", "unfinished"):
        if number := sum(item.kind == kind for item in items):
            parts.append(f"{number} {kind}")
    return "; ".join(parts)


def _counted(items: Sequence[Item]) -> str:
    kinds = {
        "checkpoint": "checkpoints",
        "damaged": "damaged",
        "set aside": "set aside",
        "unfinished": "unfinished",
    }
    return ", ".join(
        f"{n} {word}" for kind, word in kinds.items() if (n := sum(item.kind == kind for item in items))
    )


def _json(
    plans: Sequence[Freeable], done: Sequence[Freed], problems: Sequence[str], *, deleted: bool
) -> dict[str, Any]:
    freed = {one.path: {item.name for item in one.items} for one in done}

    def item(plan: Freeable, one: Item) -> dict[str, Any]:
        gone = one.name in freed.get(plan.path, ())
        return {
            "kind": one.kind,
            "name": one.name,
            "step": one.step,
            "bytes": one.nbytes,
            "time": one.time,
            "deleted": gone,
        }

    return {
        "schema": 1,
        "deleted": deleted,
        "bytes": sum(plan.nbytes for plan in plans),
        "freed_bytes": sum(one.nbytes for one in done),
        "runs": [
            {
                "run": plan.path.name,
                "path": str(plan.path),
                "free": [item(plan, one) for one in plan.free],
                "stay": [item(plan, one) for one in plan.stay],
                "damaged": plan.damaged,
                "left_alone": plan.reason or None,
            }
            for plan in plans
        ],
        "problems": list(problems),
    }
