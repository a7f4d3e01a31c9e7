"""`loadsheet runs compare`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from loadsheet.cli.output import show, show_json, width
from loadsheet.cli.runs import measured, root_option, seed_options
from loadsheet.errors import BadInput, shorten
from loadsheet.units import parse_count, parse_share

if TYPE_CHECKING:
    from loadsheet.history.rows import RunRow
    from loadsheet.history.seeds import Group


@click.command(name="compare")
@click.argument("run", nargs=-1, required=True)
@root_option
@measured
@click.option("--by", default="step", help="Where curves are compared: step, tokens, time. [step]")
@click.option(
    "--tokens-per-step", metavar="N", help="Tokens of one step. [logged `tokens`, config, signed sheet]"
)
@click.option(
    "--seeds", is_flag=True, help="RUN stands for its group: all runs that differ from it only in the seed."
)
@seed_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON (seconds, bytes).")
def command(
    run: tuple[str, ...],
    root: str,
    metric: str | None,
    mode: str | None,
    value: str | None,
    by: str,
    tokens_per_step: str | None,
    seeds: bool,
    seed_key: tuple[str, ...],
    unfinished: bool,
    confidence: str,
    as_json: bool,
) -> int:
    """RUNs beside each other: only what differs in their configs, their curves at common points, their bits.

    With `--seeds` groups are compared (RUN, or the group that `list --groups` names): mean and spread over
    seeds, the interval of the difference, and whether it is more than the spread between seeds.
    """
    from loadsheet.history.plot_curves import Axis

    share = parse_share(confidence, "confidence")
    if by not in ("step", "tokens", "time"):
        raise BadInput(f"--by: got {shorten(by)}, expected step, tokens or time")
    tokens = parse_count(tokens_per_step, "tokens per step") if tokens_per_step is not None else None
    if tokens is not None and by != "tokens":
        raise BadInput(f"--tokens-per-step: got it with --by {by}, expected it with --by tokens")
    if seeds:
        return _groups(root, run, (metric, mode, value), seed_key, unfinished, share, as_json)
    return _runs(root, run, (metric, mode, value), Axis(by, tokens), seed_key, as_json)  # type: ignore[arg-type]


def _runs(
    root: str,
    words: tuple[str, ...],
    wanted: tuple[str | None, str | None, str | None],
    axis: object,
    seed_keys: tuple[str, ...],
    as_json: bool,
) -> int:
    from loadsheet.cli.runs import compare_page
    from loadsheet.history import compare, listing
    from loadsheet.history.index import find
    from loadsheet.history.measures import choose
    from loadsheet.history.plot_curves import Axis

    assert isinstance(axis, Axis)
    rows = [find(root, word) for word in words]
    _distinct(rows)
    measure = choose((row.metrics for row in rows), *wanted)
    keys = compare.config_differences(rows)
    aligned = compare.align(rows, measure.metric, axis) if measure is not None else None
    found = [pair for row in rows[1:] if (pair := compare.bits(rows[0], row, seed_keys)) is not None]
    if as_json:
        curves = (
            compare.aligned_json(rows, aligned, measure)
            if aligned is not None and measure is not None
            else None
        )
        show_json(
            {
                "schema": 1,
                "measure": listing.measure_json(measure),
                "runs": [listing.row_json(row, measure) for row in rows],
                "differs": compare.differences_json(rows, keys),
                "curves": curves,
                "bits": [compare.bits_json(pair) for pair in found],
            }
        )
    else:
        show(compare_page.runs(rows, measure, keys, aligned, found, seed_keys, width()))
    return 0


def _distinct(rows: list[RunRow]) -> None:
    """BadInput unless there are several runs, each once."""
    if len(rows) < 2:
        raise BadInput(
            "runs compare: got one run, expected two or more",
            "`runs show` shows one; with --seeds a run stands for all that differ from it only in the seed",
        )
    paths = [row.path.resolve() for row in rows]
    if len(set(paths)) < len(paths):
        twice = next(row for row, path in zip(rows, paths, strict=True) if paths.count(path) > 1)
        raise BadInput(f"runs compare: got {twice.fingerprint} twice, expected each run once")


def _groups(
    root: str,
    words: tuple[str, ...],
    wanted: tuple[str | None, str | None, str | None],
    seed_keys: tuple[str, ...],
    unfinished: bool,
    confidence: float,
    as_json: bool,
) -> int:
    from loadsheet.cli.runs import compare_page, list_page
    from loadsheet.history import compare, listing
    from loadsheet.history.configs import ABSENT
    from loadsheet.history.measures import choose
    from loadsheet.history.seeds import compare as compared_groups
    from loadsheet.history.seeds import comparison_json, group, named, to_json

    rows = list_page.scanned(root)
    every = group(rows, None, seed_keys)
    chosen = [_group_of(every, root, word) for word in words]
    ids = [each.fingerprint for each in chosen]
    if len(set(ids)) < max(len(ids), 2):
        shown = ", ".join(words)[:120]
        raise BadInput(
            f"runs compare: got {shown}: {len(set(ids))} group, expected several, each once",
            "runs that differ only in the seed are one group; `runs list --groups` shows them",
        )
    members = [row for each in chosen for row in each.members]
    measure = choose((row.metrics for row in members), *wanted)
    # grouped anew, with the measure that these runs have
    found = named(group(members, measure, seed_keys, unfinished=unfinished))
    comparisons = compared_groups(found, measure, confidence) if measure is not None else []
    keys = compare.group_differences(found)
    recorded = compare.recorded_in_all(members)
    if as_json:
        show_json(
            {
                "schema": 1,
                "measure": listing.measure_json(measure),
                "differs": {
                    key: {
                        each.fingerprint: value
                        for each, value in zip(found, values, strict=True)
                        if value is not ABSENT
                    }
                    for key, values in keys.items()
                },
                "groups": [to_json(each) for each in found],
                "comparisons": [comparison_json(each) for each in comparisons],
                "recorded": recorded,
            }
        )
    else:
        show(compare_page.groups(found, comparisons, keys, measure, recorded, width()))
    return 0


def _group_of(groups: list[Group], root: str, word: str) -> Group:
    """The group of that name, or the one that a run is in."""
    from loadsheet.history.index import find

    for each in groups:
        if each.fingerprint == word:
            return each
    row = find(root, word)
    for each in groups:
        if any(member.path.resolve() == row.path.resolve() for member in each.members):
            return each
    raise BadInput(
        f"runs compare: got {shorten(word)}, which is not below {shorten(root)}, expected a run of this folder",
        "groups are made of the runs below one folder: name it with `--runs DIR`",
    )
