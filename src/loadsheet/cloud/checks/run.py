"""The plan before a run, and what a run that is under way, or was, says of itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from loadsheet.cloud import mounts
from loadsheet.cloud.checklist import Result, fail, not_applicable, ok, unknown, warn
from loadsheet.cloud.checks.storage import bucket_of
from loadsheet.cloud.context import Context
from loadsheet.cloud.registry import check
from loadsheet.errors import one_line
from loadsheet.units import format_bytes, format_duration

_WAIT: Final = 0.1  # share of the steps' time spent waiting for data
_SILENT: Final = 900.0  # seconds without a new record
_FORGOTTEN: Final = 7 * 86400.0


@check(
    "plan.fits", phase="before", why="first the memory that is needed, then the card: not the other way round"
)
def fits(context: Context) -> Result:
    """The verdict of the sheet."""
    sheet = context.sheet
    if sheet is None:
        todo = "`loadsheet plan MODEL --gpu GPU --json > sheet.json`, then `--sheet sheet.json`"
        return unknown("no sheet was given", next=todo)
    peak = f", {format_bytes(sheet.peak_bytes)} at the peak" if sheet.peak_bytes else ""
    text = f"{sheet.model or '?'} on {sheet.gpus or '?'} × {sheet.gpu or '?'}: {sheet.verdict}{peak}"
    row = {"fact": one_line(text) + ("" if sheet.signed else " (not signed)"), "verdict": sheet.verdict}
    if sheet.verdict == "fits":
        return ok(row)
    if sheet.verdict == "tight":
        return warn(row, next="see its remedies, or take a card with more memory")
    if sheet.verdict == "does_not_fit":
        return fail(row, next="see its remedies, or take a card with more memory")
    return unknown(row, next="make the sheet anew")


@check(
    "data.near",
    phase="before",
    question="Do the data and the machine lie in one region (and reach each other without a NAT gateway)?",
    why="data from another region is paid for by the gigabyte, and arrives slowly",
)
def near(context: Context) -> Result:
    """Every `--data`: a path on this machine's own disk, a network disk, or a bucket."""
    if not context.inputs.data:
        return unknown("no data was named", next="`--data PATH`, or s3://…")
    rows: list[dict[str, Any]] = []
    worst = "ok"
    for text in context.inputs.data:
        state, said = _where(context, text)
        rows.append({"fact": f"{one_line(text)}: {said}", "data": text})
        worst = max(worst, state, key=("ok", "warn", "unknown", "fail").index)
    if worst == "fail":
        return fail(*rows, next="bring the data here first")
    if worst == "warn":
        return warn(*rows, next="copy it to a local disk before training, or see that data_wait stays low")
    return unknown(*rows) if worst == "unknown" else ok(*rows)


def _where(context: Context, text: str) -> tuple[str, str]:
    """A state and a sentence for one place of data."""
    parts = urlsplit(text)
    if parts.scheme and parts.scheme != "file":
        return "unknown", "a bucket or server: which region that is does not show here"
    path = context.place(Path(parts.path if parts.scheme else text))
    if not path.exists():
        return "fail", "is not there"
    if path.is_dir() and _is_empty(path):
        return "fail", "is an empty folder"
    mount = mounts.mount_of(context.machine, path.resolve())
    if bucket := bucket_of(mount):
        return "unknown", f"a bucket that looks like a folder ({bucket}): its region does not show here"
    if mount.kind in mounts.NETWORK or mount.kind.startswith("fuse"):
        return "warn", f"on {mount.kind} from {one_line(mount.source)}"
    return "ok", f"on this machine ({mount.kind})"


def _is_empty(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return next(entries, None) is None


@check("run.data-wait", phase="during", why="a GPU that waits for data costs as much as one that computes")
def data_wait(context: Context) -> Result:
    """The share of its steps that the last run waited for the loader, as it measured itself."""
    run = context.last_run
    if run is None:
        return not_applicable(f"no run in {context.inputs.runs}{context.inputs.star('runs')} so far")
    share = run.measured.get("data_wait_share")
    if not isinstance(share, int | float) or isinstance(share, bool) or not 0 <= share <= 1:
        return unknown(f"run {one_line(run.name)} has not measured it: it says so when an attempt ends")
    row = {"fact": f"run {one_line(run.name)}: {share:.0%} of the time waiting for data", "share": share}
    if share > _WAIT:
        return warn(row, next="more loader workers, data prepared beforehand, or a smaller GPU")
    return ok(row)


def going_on(context: Context) -> bool:
    """Whether the last run is not done, and wrote not so long ago that it is forgotten."""
    run = context.last_run
    return run is not None and not run.done and context.machine.time() - run.written <= _FORGOTTEN


@check("run.progress", phase="during", why="a machine whose training ended or hangs goes on being paid for")
def progress(context: Context) -> Result:
    """When the last run wrote its last record."""
    run = context.last_run
    if run is None:
        return not_applicable(f"no run in {context.inputs.runs}{context.inputs.star('runs')} so far")
    name, silent = one_line(run.name), max(context.machine.time() - run.written, 0.0)
    row = {"fact": f"run {name}: last record {format_duration(silent)} ago", "silent_seconds": silent}
    if run.done:
        text = f"run {name} is done: its machine is needed no more"
        return ok({**row, "fact": text}) if silent < _FORGOTTEN else not_applicable({**row, "fact": text})
    if silent > _FORGOTTEN:
        return not_applicable(row)
    if silent > _SILENT:
        return warn(row, next="look whether it still runs; if not, start it again or give the machine back")
    return ok(row)
