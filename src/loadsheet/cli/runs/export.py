"""`loadsheet runs export`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadsheet.cli.output import show, show_json, warn
from loadsheet.cli.progress import Progress
from loadsheet.cli.runs import root_option
from loadsheet.cli.runs.which import rows_of, seed_key_option, where_option
from loadsheet.errors import BadInput, shorten
from loadsheet.units import format_bytes

if TYPE_CHECKING:
    from loadsheet.history.rows import RunRow

_FORMATS = ("markdown", "csv", "json", "tensorboard", "safetensors")
#: of `--seeds`: further names of seeds, and whether runs that are not done count
_Seeds = tuple[Sequence[str], bool] | None


@click.command(name="export")
@click.argument("run", nargs=-1)
@root_option
@where_option
@click.option("--to", "form", type=click.Choice(_FORMATS), required=True, help="The format.")
@click.option(
    "--out", metavar="PATH", help="A file; for tensorboard a folder. [markdown, csv, json: standard output]"
)
@click.option("--force", is_flag=True, help="Overwrite what is there.")
@click.option(
    "--metric", multiple=True, metavar="NAME", help="markdown: a column; safetensors: what `best` means."
)
@click.option(
    "--mode", type=click.Choice(["min", "max"]), help="Whether the lowest or highest is best. [by name]"
)
@click.option("--seeds", is_flag=True, help="markdown: one line for runs that differ only in their seed.")
@seed_key_option
@click.option("--unfinished", is_flag=True, help="With --seeds: let runs count that are not done.")
@click.option("--checkpoint", metavar="WHICH", help="safetensors: `latest`, `best` or a step. [latest]")
@click.option("--name", help="safetensors: the name the module was kept under. [`model`, or the only one]")
@click.option("--json", "as_json", is_flag=True, help="Say as JSON what was written (bytes); needs --out.")
def command(
    run: tuple[str, ...],
    root: str,
    where: tuple[str, ...],
    form: str,
    out: str | None,
    force: bool,
    metric: tuple[str, ...],
    mode: str | None,
    seeds: bool,
    seed_key: tuple[str, ...],
    unfinished: bool,
    checkpoint: str | None,
    name: str | None,
    as_json: bool,
) -> None:
    """RUN, or all runs, for other programs: one record per step, or the weights of a checkpoint.

    markdown: a table that can be pasted, one line per run, with what differs in the configs.

    csv, json: every record; NaN, Infinity and -Infinity are words. No cell is a formula.

    tensorboard: PATH/RUN/events.out.tfevents.…, to be read by `tensorboard --logdir PATH`.

    safetensors: the weights of one checkpoint, bit for bit; tied weights once, their names in the metadata.

    A file is there whole or not at all.
    """
    _check(form, out, metric, mode, seeds, checkpoint, name, as_json)
    if unfinished and not seeds:
        raise BadInput(
            "--unfinished: got it without --seeds, expected both",
            "without --seeds every run has a line of its own",
        )
    keys = (seed_key, unfinished) if seeds else None
    progress = Progress()
    try:
        rows = rows_of(root, run, where)
        if form == "safetensors":
            written = _weights(rows, Path(out or ""), metric, mode, checkpoint, name, force, progress)
        elif form == "tensorboard":
            written = _events(rows, Path(out or ""), force, progress)
        elif out is not None:
            from loadsheet.history.export_file import write_file

            progress(f"writing {out}")
            nbytes = write_file(Path(out), _parts(form, rows, metric, mode, keys), force=force)
            written = [{"path": out, "bytes": nbytes}]
        else:
            written = []
    finally:
        progress.close()
    if as_json:
        facts = [{key: value for key, value in one.items() if key != "said"} for one in written]
        show_json({"schema": 1, "format": form, "runs": [row.fingerprint for row in rows], "written": facts})
    elif out is None:
        for part in _parts(form, rows, metric, mode, keys):
            show(part.decode().removesuffix("\n"))
    else:
        for one in written:
            show(f"{one['path']}: {format_bytes(one['bytes'], 1)}{one.get('said', '')}")


def _check(
    form: str,
    out: str | None,
    metric: Sequence[str],
    mode: str | None,
    seeds: bool,
    checkpoint: str | None,
    name: str | None,
    as_json: bool,
) -> None:
    """BadInput for options that this format has no use for."""
    if out is None and (as_json or form in ("tensorboard", "safetensors")):
        why = "--json" if as_json else f"--to {form}"
        raise BadInput(
            f"runs export: got {why} without --out, expected a place to write to", "give `--out PATH`"
        )
    given = {
        "--metric": bool(metric), "--mode": mode is not None, "--seeds": seeds,
        "--checkpoint": checkpoint is not None, "--name": name is not None,
    }  # fmt: skip
    used = {
        "markdown": {"--metric", "--mode", "--seeds"},
        "safetensors": {"--metric", "--mode", "--checkpoint", "--name"},
    }.get(form, set())
    for option, is_given in given.items():
        if is_given and option not in used:
            raise BadInput(
                f"{option}: got it with --to {form}, which has no use for it",
                "`loadsheet runs export --help`",
            )


def _parts(
    form: str, rows: Sequence[RunRow], metric: Sequence[str], mode: str | None, keys: _Seeds
) -> Iterator[bytes]:
    """The file, in pieces that end where a line may end."""
    from loadsheet.history import export

    if form == "markdown":
        return iter([_markdown(rows, metric, mode, keys)])
    return export.csv_parts(rows) if form == "csv" else export.json_parts(rows)


def _markdown(rows: Sequence[RunRow], metric: Sequence[str], mode: str | None, keys: _Seeds) -> bytes:
    """The table; with `keys` a line for each group of seeds."""
    from loadsheet.history.export_table import markdown, markdown_groups
    from loadsheet.history.measures import choose

    asked: list[str | None] = [*dict.fromkeys(metric)] if metric else [None]
    chosen = [choose([row.metrics for row in rows], name, mode) for name in asked]
    measures = [measure for measure in chosen if measure is not None]
    if keys is None:
        return ("\n".join(markdown(rows, measures)) + "\n").encode()
    seed_keys, unfinished = keys
    lines = markdown_groups(rows, measures, seed_keys, unfinished=unfinished)
    return ("\n".join(lines) + "\n").encode()


def _events(rows: Sequence[RunRow], out: Path, force: bool, progress: Progress) -> list[dict[str, Any]]:
    """An event file for each run, in a folder of its own: that is what TensorBoard calls a run."""
    from loadsheet.history.export_file import check_free, make_folder, write_file
    from loadsheet.history.tensorboard import Counts, events_name, run_events

    paths = [make_folder(out / row.fingerprint) / events_name(row) for row in rows]
    for path in paths:
        check_free(path, force=force)
    written = []
    for row, path in zip(rows, paths, strict=True):
        progress(f"writing the events of {row.fingerprint}")
        counts = Counts()
        nbytes = write_file(path, run_events(row, counts), force=force)
        written.append(
            {"run": row.fingerprint, "path": str(path), "bytes": nbytes, "records": counts.records}
        )
        if counts.too_large:
            warn(f"{row.fingerprint}: {counts.too_large:,} values do not fit in 32 bits and became infinite")
        if counts.texts:
            names = ", ".join(sorted(counts.texts))
            warn(f"{row.fingerprint}: left out what is no number: {shorten(names, 120)}")
    return written


def _weights(
    rows: Sequence[RunRow],
    out: Path,
    metric: Sequence[str],
    mode: str | None,
    checkpoint: str | None,
    name: str | None,
    force: bool,
    progress: Progress,
) -> list[dict[str, Any]]:
    """The weights of one checkpoint of one run."""
    if len(rows) != 1:
        raise BadInput(f"runs export: got {len(rows)} runs, expected one: a file holds one model")
    if len(metric) > 1 or ((metric or mode) and checkpoint != "best"):
        raise BadInput(
            "--metric: got it without `--checkpoint best`, expected the one metric that says what is best"
        )
    import warnings

    from loadsheet.history.export_weights import write_weights
    from loadsheet.history.measures import choose
    from loadsheet.run.errors import RunWarning

    which: Any = checkpoint or "latest"
    chosen = None
    if which == "best":
        chosen = choose([rows[0].metrics], metric[0] if metric else None, mode)
        if chosen is None:
            raise BadInput("--checkpoint best: got a run that has logged no number, expected a metric")
    elif which != "latest":
        if not (which.isascii() and which.isdigit() and len(which) < 19):
            raise BadInput(
                f"--checkpoint: got {shorten(which)}, expected `latest`, `best` or a number of steps"
            )
        which = int(which)
    progress(f"reading back and writing the weights of {rows[0].fingerprint}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RunWarning)
        found = write_weights(
            rows[0].path,
            out,
            which=which,
            metric=chosen.metric if chosen else "val_loss",
            mode=chosen.mode if chosen else "min",
            name=name,
            force=force,
        )
    for one in caught:
        warn(str(one.message))
    if found.left_out:
        warn(f"left out what is no tensor: {shorten(', '.join(found.left_out), 120)}")
    said = f", step {found.step:,}, {found.tensors} tensors"
    if chosen is not None:
        said += f", best by {chosen.said}"
    if found.aliases:
        said += "; tied: " + ", ".join(f"{alias} = {kept}" for alias, kept in found.aliases.items())
    return [
        {
            "run": rows[0].fingerprint, "path": str(out), "bytes": found.nbytes, "step": found.step,
            "name": found.name, "tensors": found.tensors, "aliases": found.aliases,
            "left_out": list(found.left_out), "said": said,
        }
    ]  # fmt: skip
