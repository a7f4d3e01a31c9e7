"""Curves as a picture (PNG, SVG or PDF), drawn by matplotlib, which is imported only here.

No pyplot, so no display and no global state. The same curves give the same bytes: no dates, fixed ids.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from loadsheet.errors import BadInput, LoadsheetError, one_line, shorten
from loadsheet.history.export_file import check_free, write_file
from loadsheet.history.plot_curves import (
    Axis,
    Curve,
    axis_label,
    remarks,
    span,
    thinned,
    thinned_band,
    unit_of,
)

#: Okabe and Ito, "Color universal design" (2008), told apart with every kind of colour vision; their yellow
#: is left out, which cannot be seen on white
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES: Final = ("-", "--", ":", "-.")
_WIDTH: Final = 8.0  # inches
_DPI: Final = 150
#: file endings, and what is left out of the file so that it does not say when or by what it was made
FORMATS: Final[dict[str, dict[str, None]]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
#: columns of pixels that points are thinned to; a picture of letters and lines can be enlarged
_COLUMNS: Final = {".png": int(_WIDTH * _DPI), ".svg": 2000, ".pdf": 2000}
_SETTINGS: Final = {
    "text.parse_math": False,  # a `$` in a name is a `$`
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "loadsheet",
    "axes.formatter.useoffset": False,
    "font.size": 9.0,
    "path.simplify": False,  # it would drop single points, the spikes that were kept on purpose
}


def ready(out: str) -> Path:
    """The path of the picture, so that nothing is read in vain.

    Raises BadInput for an ending that is none of `FORMATS` or a place where no file can be, LoadsheetError
    if matplotlib is missing.
    """
    path = Path(out)
    if path.suffix.lower() not in FORMATS:
        raise BadInput(
            f"--out: got {shorten(out)}, expected a name that ends in {', '.join(FORMATS)}",
            "data instead of a picture: `loadsheet runs export`",
        )
    check_free(path, force=True)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise LoadsheetError(
            "runs plot: matplotlib is not installed", "pip install 'loadsheet[plot]'"
        ) from None
    return path


def draw(panels: Sequence[Sequence[Curve]], axis: Axis, beta: float, path: Path) -> int:
    """Write a picture with one panel for each list of curves, whole or not at all; its number of bytes.

    Raises BadInput if it cannot be written there. A picture that is there is replaced.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import StrMethodFormatter

    ending = path.suffix.lower()
    curves = [curve for panel in panels for curve in panel]
    begin, end = span(curves)
    label, scale = axis_label(axis, end - begin)
    styles = _styles(curves)
    buffer = io.BytesIO()
    settings: Any = {**matplotlib.rcParamsDefault, **_SETTINGS}  # whatever the user's own are
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a name in a script the font lacks
        names = list(dict.fromkeys((c.label, c.metric) for c in curves))
        legend_rows = math.ceil((len(names) + 2) / 2)
        height = 3.2 * len(panels) + 0.17 * legend_rows + 0.6
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
        entries: dict[str, Any] = {}
        marks: dict[str, Any] = {}
        for axes, panel in zip(grid[:, 0], panels, strict=True):
            for curve in panel:
                _curve(axes, curve, styles, (begin, end), scale, _COLUMNS[ending], beta, entries, marks)
            metrics = list(dict.fromkeys(curve.metric for curve in panel))
            axes.set_ylabel(", ".join(_named(metric) for metric in metrics))
            axes.grid(visible=True, color="#dddddd", linewidth=0.5)
            axes.margins(x=0.01)
        grid[-1, 0].set_xlabel(label)
        if axis.by == "step":
            grid[-1, 0].xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        points = max((len(curve.x) for curve in curves), default=0)
        said = remarks(curves, beta)
        if points > 4 * _COLUMNS[ending]:
            said.append(
                f"{points:,} points, of which each column of pixels shows the first, lowest, highest and last"
            )
        figure.suptitle("\n".join(textwrap.wrap("; ".join(said), 130)), fontsize=7, color="#555555")
        figure.legend(
            [*entries.values(), *marks.values()],
            [*entries, *marks],
            loc="outside lower center",
            ncols=2,
            fontsize=8,
            frameon=False,
        )
        figure.savefig(buffer, format=ending[1:], dpi=_DPI, metadata=FORMATS[ending])
    return write_file(path, [buffer.getvalue()], force=True)


def _named(metric: str) -> str:
    unit = unit_of(metric)
    return _plain(metric) + (f" ({unit})" if unit else "")


def _plain(text: str) -> str:
    """Text from a log or config as a picture can show it: one line, cut, and no name that is left out."""
    text = one_line(text)
    text = text if len(text) <= 80 else text[:79] + "…"
    return f" {text}" if text.startswith("_") else text  # matplotlib keeps such names out of legends


def _styles(curves: Sequence[Curve]) -> dict[tuple[str, str], tuple[str, str]]:
    """Colour and dashes of each curve: a colour for each run, dashes for each metric of it.

    With more runs than colours dashes tell the runs apart; with several metrics colours return.
    """
    labels = list(dict.fromkeys(curve.label for curve in curves))
    metrics = list(dict.fromkeys(curve.metric for curve in curves))
    out = {}
    for curve in curves:
        n, m = labels.index(curve.label), metrics.index(curve.metric)
        dash = m + n // len(COLOURS) if len(metrics) > 1 else n // len(COLOURS)
        out[curve.label, curve.metric] = COLOURS[n % len(COLOURS)], _DASHES[dash % len(_DASHES)]
    return out


def look_alikes(curves: Sequence[Curve]) -> int:
    """How many curves cannot be told from another by colour and dashes.

    >>> look_alikes([Curve(str(n), "loss") for n in range(28)]), look_alikes([Curve(str(n), "a") for n in range(30)])
    (0, 2)
    """
    styles = _styles(curves)
    return len(styles) - len(set(styles.values()))


def _curve(
    axes: Any,
    curve: Curve,
    styles: dict[tuple[str, str], tuple[str, str]],
    ends: tuple[float, float],
    scale: float,
    columns: int,
    beta: float,
    entries: dict[str, Any],
    marks: dict[str, Any],
) -> None:
    """One curve: the raw values faint, the smoothed ones, the band, the ticks, what is not finite."""
    colour, dashes = styles[curve.label, curve.metric]

    def line(values: Sequence[float], **style: Any) -> Any:
        xs, ys = thinned(curve.x, values, *ends, columns)
        marker = "." if len(xs) == 1 else None
        return axes.plot([x / scale for x in xs], ys, color=colour, marker=marker, **style)[0]

    if curve.low:
        xs, low, high = thinned_band(curve.x, curve.low, curve.high, *ends, columns)
        axes.fill_between([x / scale for x in xs], low, high, color=colour, alpha=0.18, linewidth=0)
    elif beta:
        line(curve.y, linewidth=0.6, alpha=0.25)
    name = f"{curve.label} · {curve.metric}"
    if curve.runs > 1:
        name += f" · mean of {curve.runs} seeds"
    if beta:
        name += f" · β {beta:g}"
    entries[_plain(name)] = line(curve.smooth, linewidth=1.3, linestyle=dashes)
    high_up = axes.get_xaxis_transform()  # places along the axis, heights as shares of the panel
    if curve.resumed:
        places = [x / scale for x in _apart(curve.resumed, ends, columns)]
        ticks = axes.plot(places, [0.98] * len(places), "|", transform=high_up, color=colour, markersize=9)[0]
        if len(styles) == 1:
            axes.vlines(places, 0.0, 1.0, transform=high_up, colors="#888888", linewidth=0.5, linestyles=":")
        marks.setdefault("an attempt was resumed", ticks)
    for marker, height, what, wanted in (
        ("x", 0.02, "not a number", math.isnan),
        ("^", 0.98, "infinite", lambda value: value == math.inf),
        ("v", 0.02, "minus infinite", lambda value: value == -math.inf),
    ):
        found = [place for place, value in curve.odd if wanted(value)]
        if found:
            places = [x / scale for x in _apart(found, ends, columns // 4)]
            points = axes.plot(
                places,
                [height] * len(places),
                marker,
                transform=high_up,
                color=colour,
                markersize=5,
                clip_on=False,
            )
            marks[_plain(f"{curve.label} · {curve.metric} · {what}: {len(found):,}")] = points[0]


def _apart(places: Sequence[float], ends: tuple[float, float], columns: int) -> list[float]:
    """Places without those that would fall on the same column of pixels."""
    begin, end = ends
    kept: dict[int, float] = {}
    for place in places:
        kept.setdefault(int((place - begin) / (end - begin) * columns) if end > begin else 0, place)
    return list(kept.values())
