"""What docs/run.md quotes of the benches: what was measured of the log and of saves, with date and machine."""

from __future__ import annotations

import json
from pathlib import Path

import cog

COSTS = Path(__file__).resolve().parents[1] / "docs" / "data" / "run-costs.json"


def costs() -> None:
    """What a record and a save cost, and how fast a log is read."""
    found = json.loads(COSTS.read_text(encoding="utf-8"))
    log, save = found["log"], found["save"]
    speed = log["reading"]
    rows = [
        ("a record, flushed: survives the death of the process", log["flushed"]),
        ("with `durable_log=True`: survives the loss of power", log["durable"]),
        ("the same while 500 MB are saved beside it", log["durable_beside_saves"]),
    ]
    cog.outl("| | median | 99 % below | longest |")
    cog.outl("| --- | --: | --: | --: |")
    for name, row in rows:
        cog.outl(f"| {name} | {_time(row['median'])} | {_time(row['p99'])} | {_time(row['longest'])} |")
    cog.outl()
    cog.outl(
        f"`ls.read_log` reads {speed['columns_lines_per_second'] / 1e3:,.0f},000 lines per second of processor time, "
        f"`ls.stream_log` {speed['stream_lines_per_second'] / 1e3:,.0f},000 in {speed['bytes'] / 1e6:.0f} MB of "
        "memory however long the log is."
    )
    cog.outl()
    ours, theirs = save["loadsheet"], save["torch.save, fsynced"]
    cog.outl(
        f"Of a state of {save['bytes'] / 1e6:,.0f} MB the loop waits {_time(ours['stall'])} for the copy, "
        f"{ours['stall_ratio']:.2f} of what it waits for `torch.save` and the fsync that it leaves out "
        f"({_time(theirs['total'])}); durable, checksums included, it is after {_time(ours['total'])}, "
        f"{ours['total_ratio']:.2f} of that."
    )
    cog.outl()
    dates = " and ".join(sorted({log["date"], save["date"]}))
    cog.outl(
        f"Measured {dates} on {save['cores']} cores that others used as well; ratios are medians of "
        f"{save['rounds']} rounds in turns. `make bench` measures your machine."
    )


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            number = seconds / size
            return f"{number:.0f} {unit}" if number >= 10 else f"{number:.2g} {unit}"
    return "0 s"
