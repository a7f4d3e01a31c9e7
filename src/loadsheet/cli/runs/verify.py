"""`loadsheet runs verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadsheet.cli.output import show, show_json, width
from loadsheet.cli.progress import Progress
from loadsheet.cli.runs import root_option
from loadsheet.errors import BadInput
from loadsheet.text import columns, wrap
from loadsheet.units import format_bytes

if TYPE_CHECKING:
    from loadsheet.history.check import Checked

_SHOWN = {"ok": "ok", "note": "ok", "unknown": "NOT LOOKED AT", "damaged": "DAMAGED", None: "–"}
_HEADS = {
    "config": "config",
    "attempts": "attempts",
    "log": "log",
    "done": "done",
    "checkpoint": "checkpoints",
}


@click.command(name="verify")
@click.argument("run", nargs=-1)
@root_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON (bytes).")
def command(run: tuple[str, ...], root: str, as_json: bool) -> int:
    """Is what a run left whole? Without RUN, all of them are looked at.

    Every byte of every checkpoint is read and compared with its checksum (XXH3), every line of the log is
    decoded, the config is compared with the fingerprint, attempts are counted, the done marker must have
    its checkpoint. Nothing is changed; a run may go on meanwhile.

    Exit status: 0 all is whole, 1 something is damaged or could not be looked at.
    """
    from loadsheet.history.check import check, checkpoint_bytes
    from loadsheet.history.check_files import Counter

    paths = _paths(root, run)
    progress = Progress()
    counter = Counter(progress)
    try:
        counter.total = sum(map(checkpoint_bytes, paths))
        found = [check(path, counter) for path in paths]
    finally:
        progress.close()
    good = all(one.ok for one in found)
    if as_json:
        show_json({"schema": 1, "ok": good, "runs": [one.to_json() for one in found]})
    else:
        for line in _page(found, width()):
            show(line)
    return 0 if good else 1


def _paths(root: str, words: tuple[str, ...]) -> list[Path]:
    from loadsheet.history.index import find, run_paths

    if words:
        return list(dict.fromkeys(find(root, word).path for word in words))
    if not (paths := run_paths(root)):
        raise BadInput(
            f"runs verify: got no run below `{root}`, expected at least one",
            "name the folder with `--runs DIR`",
        )
    return paths


def _page(found: list[Checked], room: int) -> list[str]:
    """A line for each run, then what is not in order, then the sum."""
    rows = [["run", *_HEADS.values()]]
    for one in found:
        row = [one.path.name]
        for what in _HEADS:
            state = one.state(what)
            count = (
                sum(1 for f in one.findings if f.what == what and f.state == "ok")
                if what == "checkpoint"
                else 0
            )
            row.append(f"{count} ok" if count and state in ("ok", "note") else _SHOWN[state])
        rows.append(row)
    lines = columns(rows)
    if max(map(len, lines)) > room:  # a narrow page: a block for each run
        lines = [
            line
            for row in rows[1:]
            for line in wrap(
                f"{row[0]}: " + ", ".join(f"{h} {c}" for h, c in zip(rows[0][1:], row[1:], strict=True)),
                room,
                "  ",
            )
        ]
    for one in found:
        for finding in one.findings:
            if finding.state != "ok":
                kind = {"damaged": "DAMAGED", "unknown": "NOT LOOKED AT", "note": "note"}[finding.state]
                lines += wrap(f"{one.path.name}: {kind}: {finding.why}", room, "  ")
    bad = sum(not one.ok for one in found)
    read = sum(finding.nbytes for one in found for finding in one.findings)
    verdict = (
        f"{bad} of {len(found)} not in order"
        if bad
        else f"all {len(found)} whole"
        if len(found) > 1
        else "whole"
    )
    lines += wrap(f"{verdict}; {format_bytes(read, 1)} read back and compared", room, "  ")
    return lines
