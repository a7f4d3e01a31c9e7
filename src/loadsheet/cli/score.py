"""`loadsheet score`."""

from __future__ import annotations

import click

from loadsheet.cli.output import show, show_json, width
from loadsheet.score import score
from loadsheet.score.report import PUBLISHED, Report, tables
from loadsheet.text import columns, wrap


@click.command(name="score")
@click.option(
    "--truth",
    metavar="FILE",
    help="CSV of measurements, columns as in docs/how-right.md. [the published ones that come along]",
)
@click.option("--rows", is_flag=True, help="Every row: measured, predicted, or why it is skipped.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(truth: str | None, rows: bool, as_json: bool) -> int:
    """Accuracy on published measurements: peak memory of training on one GPU.

    Each row is mapped to a model, a recipe and a GPU, predicted and compared with the same counter:
    allocated, reserved, or what the device holds. Every source weighs the same, and the median of
    each configuration counts once. A row that cannot be predicted is skipped with its reason.

    Exit status: 0 scored, 1 no row of the table could be predicted.
    """
    report = score(PUBLISHED if truth is None else truth)
    if as_json:
        show_json(report.to_json())
    else:
        show("\n".join(_page(report, rows, width())))
    return 0 if any(s.skipped is None for s in report.rows) else 1


def _page(report: Report, rows: bool, room: int) -> list[str]:
    lines: list[str] = []
    for title, table in tables(report, rows=rows).items():
        if len(table) > 1:
            lines += ["", title, *columns(table, left=1 if not title.startswith("Row") else 3)]
    verdicts = report.verdicts
    if total := sum(verdicts.values()):
        lines += [
            "",
            f"{total} runs had no room: of these the sheet says does not fit {verdicts['does_not_fit']}, "
            f"tight {verdicts['tight']}, fits {verdicts['fits']}",
        ]
    if report.skipped:
        lines += ["", "Skipped"]
        for reason, count in report.skipped.items():
            lines += wrap(f"{count:5}  {reason}", room, "       ")
    return lines[1:] if lines else ["no rows"]
