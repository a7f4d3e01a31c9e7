"""`loadsheet runs plot`."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from loadsheet.cli.output import show, show_json, warn, width
from loadsheet.cli.progress import Progress
from loadsheet.cli.runs import root_option
from loadsheet.cli.runs.which import rows_of, seed_key_option, where_option
from loadsheet.errors import BadInput, UnknownKey, shorten
from loadsheet.units import format_bytes, parse_count, parse_share

if TYPE_CHECKING:
    from loadsheet.history.plot_curves import Axis, Curve
    from loadsheet.history.rows import RunRow


@click.command(name="plot")
@click.argument("run", nargs=-1)
@root_option
@where_option
@click.option(
    "--metric",
    multiple=True,
    metavar="NAME[,NAME…]",
    help="What to draw; with a comma in one panel, given again in another. [what says most]",
)
@click.option(
    "--out", metavar="FILE", help="A picture: .png, .svg or .pdf (needs matplotlib). [the terminal]"
)
@click.option(
    "--by", type=click.Choice(["step", "tokens", "time", "epoch"]), default="step", help="The axis. [step]"
)
@click.option("--tokens-per-step", metavar="N", help="For --by tokens, where the log does not count them.")
@click.option("--smooth", metavar="SHARE", help="Weight of what came before, e.g. 0.9. [0: as logged]")
@click.option("--seeds", is_flag=True, help="Runs that differ only in their seed: mean, lowest and highest.")
@seed_key_option
@click.option("--unfinished", is_flag=True, help="With --seeds: let runs count that are not done.")
@click.option("--json", "as_json", is_flag=True, help="Print the curves as JSON (steps, tokens, seconds).")
def command(
    run: tuple[str, ...],
    root: str,
    where: tuple[str, ...],
    metric: tuple[str, ...],
    out: str | None,
    by: str,
    tokens_per_step: str | None,
    smooth: str | None,
    seeds: bool,
    seed_key: tuple[str, ...],
    unfinished: bool,
    as_json: bool,
) -> None:
    """Curves of RUN or of all runs, one record per step: on the terminal, or as a picture.

    Steps that were run again are drawn once; a tick says where an attempt was resumed, a mark where a value is
    not finite. Smoothing is s = β·s + (1 − β)·y, shown as s / (1 − βᵗ). Of long logs every column of pixels
    shows the first, lowest, highest and last value. With --seeds only runs count that `list --groups` counts
    (done, with another seed each); those that are left out are named.
    """
    from loadsheet.history.plot_curves import Axis
    from loadsheet.history.plot_panels import panels_of

    if unfinished and not seeds:
        raise BadInput(
            "--unfinished: got it without --seeds, expected both", "without --seeds all runs are drawn"
        )
    beta = 0.0 if smooth is None else parse_share(smooth, "--smooth")
    if beta >= 1:
        raise BadInput(f"--smooth: got {shorten(smooth)}, expected a share below 1 such as `0.9`")
    if tokens_per_step is not None and by != "tokens":
        raise BadInput(f"--tokens-per-step: got it with --by {by}, expected it with --by tokens")
    tokens = None if tokens_per_step is None else parse_count(tokens_per_step, "--tokens-per-step")
    axis = Axis(by, tokens)  # type: ignore[arg-type]
    path = None
    if out is not None:
        from loadsheet.history.plot import ready

        path = ready(out)
    progress = Progress()
    try:
        rows = rows_of(root, run, where)
        wanted, notes = _metrics(rows, metric)
        keys = seed_key if seeds else None
        found = panels_of(rows, wanted, axis, beta, keys, unfinished=unfinished, say=progress)
        panels, notes = found.curves, notes + found.notes
        nbytes = 0
        if path is not None:
            from loadsheet.history.plot import alike_text, draw

            progress(f"drawing {path.name}")
            nbytes = draw(panels, axis, beta, path)
            if (alike := alike_text(panels, seeds=seeds)) is not None:
                notes.append(alike)
    finally:
        progress.close()
    for note in notes:
        warn(note)
    if as_json:
        show_json(_json(panels, by, beta, out, nbytes) | {"left_out": found.left_out})
    elif path is not None:
        curves = sum(map(len, panels))
        show(f"{path}: {curves} {'curve' if curves == 1 else 'curves'}, {format_bytes(nbytes, 1)}")
    else:
        _text(panels, axis, beta)


def _metrics(rows: Sequence[RunRow], asked: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """The names for each panel; the one that says most if nobody asked."""
    from loadsheet.history.measures import choose

    known = sorted({name for row in rows for name in row.metrics})
    if not asked:
        measure = choose([row.metrics for row in rows])
        if measure is None:
            raise BadInput("runs plot: got runs that have logged no number, expected one", "run.log(loss=…)")
        others = [name for name in known if name != measure.metric]
        more = f"; there are also {shorten(', '.join(others), 160)}" if others else ""
        return [[measure.metric]], [f"--metric was not given: {measure.metric} is drawn{more}"]
    panels = [[name.strip() for name in text.split(",") if name.strip()] for text in asked]
    for name in (name for panel in panels for name in panel):
        if name not in known:
            raise UnknownKey(name, known or ["(nothing was logged)"], "metric")
    if not all(panels):
        raise BadInput("--metric: got no name, expected one such as `loss`")
    return [list(dict.fromkeys(panel)) for panel in panels], []


def _text(panels: Sequence[Sequence[Curve]], axis: Axis, beta: float) -> None:
    from loadsheet.history.plot_text import page

    encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
    unicode = encoding.startswith("utf") and os.environ.get("TERM") != "dumb"
    for number, panel in enumerate(panels):
        if number:
            show("")
        for line in page(panel, axis, beta, width(), unicode=unicode):
            show(line)


def _json(
    panels: Sequence[Sequence[Curve]], by: str, beta: float, out: str | None, nbytes: int
) -> dict[str, Any]:
    def curve(one: Curve) -> dict[str, Any]:
        words = {math.inf: "Infinity", -math.inf: "-Infinity"}
        return {
            "label": one.label,
            "metric": one.metric,
            "runs": one.runs,
            "steps": one.steps,
            "x": one.x,
            "y": one.y if one.runs == 1 else None,
            "smooth": one.smooth,
            "low": one.low or None,
            "high": one.high or None,
            "resumed": one.resumed,
            "not_finite": [[place, words.get(value, "NaN")] for place, value in one.odd],
        }

    return {
        "schema": 1,
        "by": by,
        "smooth": beta,
        "panels": [[curve(one) for one in panel] for panel in panels],
        "out": out,
        "bytes": nbytes if out is not None else None,
    }
