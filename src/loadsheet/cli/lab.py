"""`loadsheet lab`."""

from __future__ import annotations

import click

from loadsheet.cli.output import show, show_json, width
from loadsheet.cli.progress import Progress
from loadsheet.errors import BadInput, UnknownKey
from loadsheet.lab import EXPERIMENTS, need_torch, run


@click.command(name="lab")
@click.argument("experiment")
@click.option("--plot", metavar="FOLDER", help="Experiment 2: draw the three sweeps into this folder.")
@click.option("--no-timing", is_flag=True, help="Leave out what depends on this machine's speed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (bytes, FLOP, seconds).")
def command(experiment: str, plot: str | None, no_timing: bool, as_json: bool) -> int:
    """One of the lecture's experiments, on the CPU in seconds: lecture, ours, measured.

    1: bytes per number, fp16 and bf16, loss scaling, INT8 with an outlier.

    2: parameters, optimizer states, KV cache, activations, checkpointing.

    3: FLOPs, this machine's rate and MFU, training of real models, decode.

    4: a crash and a resume, complete and with one part or another forgotten.

    Needs PyTorch: pip install 'loadsheet[torch]', for 4 'loadsheet[run]'. Seeds are fixed and one thread is used.

    Exit status: 0 all that must match does, 1 something does not.
    """
    known = {str(number): number for number in EXPERIMENTS}
    if experiment not in known:
        raise UnknownKey(experiment, known, "experiment")
    if plot is not None and experiment != "2":
        raise BadInput(
            f"--plot: got it with experiment {experiment}, expected it with experiment 2",
            "the sweeps of activation memory are what is drawn: `loadsheet lab 2 --plot FOLDER`",
        )
    folder = None
    if plot is not None:
        from loadsheet.lab.plot import draw, ready

        folder = ready(plot)
    need_torch()
    progress = Progress(f"lab {experiment}: {EXPERIMENTS[known[experiment]][1]}")
    try:
        report = run(known[experiment], timing=not no_timing, progress=progress)
    finally:
        progress.close()
    if as_json:
        show_json(report.to_json())
    else:
        show(report.text(width()))
    if folder is not None:
        for path in draw(report, folder):
            click.echo(f"wrote {path}", err=True)
    return 1 if report.failed else 0
