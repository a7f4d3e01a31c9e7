"""The sheet at the head of a job file, as a comment: what the job was asked for, and why so much."""

from __future__ import annotations

from loadsheet.cloud.export.facts import Facts
from loadsheet.cloud.export.job import Job
from loadsheet.cloud.export.words import comment
from loadsheet.ledger import Estimate
from loadsheet.signature import version
from loadsheet.text import gib_range
from loadsheet.units import GIB, format_bytes, format_duration, format_money, format_params

MARK = "# Written by `loadsheet export"


def header(job: Job, facts: Facts, start: str) -> list[str]:
    """Lines of comment; `start` is how the file is handed to the engine."""
    peak = gib_range(Estimate(facts.peak_low, (facts.peak_low + facts.peak_high) / 2, facts.peak_high))
    room = "" if facts.usable is None else f" of {facts.usable / GIB:,.1f} GiB usable"
    params = "" if facts.params is None else f", {format_params(facts.params)} parameters"
    lines = [
        f"model: {facts.model}{params}, {facts.task}, on {facts.gpus} × {facts.gpu}",
        f"verdict: {facts.verdict.replace('_', ' ')}; needs {peak} GiB{room}",
    ]
    if facts.flops_per_step is not None:
        whole = (
            ""
            if facts.steps is None
            else f"; {facts.steps:,} steps, {facts.flops_per_step * facts.steps:.3g} FLOP"
        )
        lines.append(f"work: {facts.flops_per_step:.3g} FLOP per step{whole}")
    if facts.seconds is not None:
        low, mid, high = (format_duration(s) for s in facts.seconds)
        hours = facts.seconds[1] * facts.gpus / 3600
        lines.append(f"time: {mid} ({low} to {high}), {hours:.3g} GPU hours; {facts.counted}")
    if facts.cost is not None:
        low, mid, high = (format_money(c, facts.currency) for c in facts.cost)
        lines.append(f"money: {mid} ({low} to {high})")
    else:
        lines.append("money: the sheet has no price")
    lines.append(f"checkpoint: {format_bytes(facts.checkpoint)}")
    lines.append(f"time cap: {format_duration(job.time)} ({job.why['time']})" + _reach(job))
    if job.price_cap is not None:
        worst = format_money(job.price_cap * job.time / 3600, "USD")
        lines.append(
            f"price cap: {job.price_cap:g} USD an hour; with the time cap at most {worst} each start"
        )
    lines.append(f"grace: {job.grace} s ({job.why['grace']})")
    if job.shm is not None:
        lines.append(
            f"/dev/shm: {format_bytes(job.shm, 0)} ({job.why['shm']}), a part of the memory asked for"
        )
    lines.append(f"sheet: {'not signed' if facts.sha256 is None else 'SHA-256 ' + facts.sha256}")
    first = f"{MARK} {job.engine}` (loadsheet {version()}). Start it with: {start}"
    return [
        first,
        *comment(["The sheet:", *(f"  {line}" for line in lines)]),
        *comment(f"Note: {note}" for note in job.notes),
    ]


def _reach(job: Job) -> str:
    if job.engine == "k8s":
        return ", over all pods of the job"
    if job.engine == "dstack":
        return ", of each submission"
    return ", of each start; the run goes on in the next"
