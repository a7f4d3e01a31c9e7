"""The three sweeps of activation memory as pictures: what was measured, and the fit through it."""

from __future__ import annotations

from pathlib import Path

from loadsheet.errors import BadInput, LoadsheetError, shorten
from loadsheet.lab.report import Curve, Report
from loadsheet.units import MIB

AXES = {"batch": "sequences in the batch", "layers": "layers", "length": "tokens per sequence"}
_POINTS = 100  # of a drawn line


def ready(folder: str) -> Path:
    """The folder, made if need be, so that an experiment is not run in vain.

    Raises LoadsheetError if matplotlib is missing, BadInput if the folder cannot be made.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise LoadsheetError("--plot: matplotlib is not installed", "pip install 'loadsheet[plot]'") from None
    try:
        where = Path(folder)
        where.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise _unwritable(folder, error) from None
    return where


def draw(report: Report, folder: Path) -> list[Path]:
    """Write `activations-batch.png`, `-layers.png` and `-length.png`; returns their paths.

    Raises BadInput if they cannot be written.
    """
    from matplotlib.figure import Figure  # no pyplot: no global state, no display

    written = []
    for curve in report.curves:
        figure = Figure(figsize=(6, 4), layout="constrained")
        _panel(figure.subplots(), curve)
        path = folder / f"activations-{curve.name}.png"
        try:
            figure.savefig(path, dpi=150)
        except (OSError, ValueError) as error:
            raise _unwritable(path.name, error) from None
        written.append(path)
    return written


def _unwritable(path: str, error: Exception) -> BadInput:
    reason = getattr(error, "strerror", None) or error
    return BadInput(
        f"--plot: cannot write to {shorten(path)}: {reason}", "name a folder that you may write to"
    )


def _panel(axes: object, curve: Curve) -> None:
    """One sweep: points, the fit, and where there is a square its share at the right end."""
    top = max(curve.x)
    xs = [top * i / _POINTS for i in range(_POINTS + 1)]
    plot, set_up = axes.plot, axes.set  # type: ignore[attr-defined]
    plot(xs, [curve.at(x) / MIB for x in xs], color="#3f7fb5", label=f"fit: {curve.formula}")
    if 2 in curve.powers:
        linear = curve.coefficients[curve.powers.index(1)]
        share = curve.share(top, 2)
        plot(xs, [linear * x / MIB for x in xs], color="#3f7fb5", linestyle="--",
             label=f"its linear part; the square is {share:.0%} at {curve.label} = {top}")  # fmt: skip
    plot(curve.x, [y / MIB for y in curve.y], "o", color="#c0504d", label="measured")
    set_up(xlabel=f"{curve.label}, {AXES[curve.name]}", ylabel="MiB kept for backward")
    set_up(xlim=(0, None), ylim=(0, None))
    axes.legend(fontsize=8)  # type: ignore[attr-defined]
