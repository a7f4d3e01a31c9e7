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
    styles, legend = _styles(panels), _entries(panels)
    buffer = io.BytesIO()
    settings: Any = {**matplotlib.rcParamsDefault, **_SETTINGS}  # whatever the user's own are
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a name in a script the font lacks
        legend_rows = math.ceil((len(set(legend.values())) + 2) / 2)
        height = 3.2 * len(panels) + 0.17 * legend_rows + 0.6
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
        entries: dict[str, Any] = dict.fromkeys(legend.values())
        marks: dict[str, Any] = {}
        for axes, panel in zip(grid[:, 0], panels, strict=True):
            for curve in panel:
                line = _curve(axes, curve, styles, (begin, end), scale, _COLUMNS[ending], beta, marks)
                name = legend[curve.label, curve.metric]
                entries[name] = entries[name] or line
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


Styles = dict[tuple[str, str], tuple[str, str]]


def _styles(panels: Sequence[Sequence[Curve]]) -> Styles:
    """Colour and dashes by label and metric: a colour for each configuration, the same in every panel.

    Dashes tell metrics of one panel apart, and configurations where there are more of them than colours. A
    metric that has a panel to itself needs none.
    """
    curves = [curve for panel in panels for curve in panel]
    labels = list(dict.fromkeys(curve.label for curve in sorted(curves, key=lambda curve: curve.order)))
    places: dict[str, int] = {}
    for panel in panels:
        metrics = list(dict.fromkeys(curve.metric for curve in panel))
        for metric in metrics if len(metrics) > 1 else []:
            taken = {places.get(other) for other in metrics}
            places.setdefault(metric, next(n for n in range(len(metrics) + 1) if n not in taken))
    rounds = math.ceil(len(labels) / len(COLOURS))  # how often the colours are used
    out = {}
    for curve in curves:
        n = labels.index(curve.label)
        dash = places.get(curve.metric, 0) * rounds + n // len(COLOURS)
        out[curve.label, curve.metric] = COLOURS[n % len(COLOURS)], _DASHES[dash % len(_DASHES)]
    return out


def look_alikes(panels: Sequence[Sequence[Curve]]) -> int:
    """How many curves cannot be told from another one in their panel by colour and dashes.

    >>> [look_alikes([[Curve(str(n), "a") for n in range(count)]]) for count in (28, 30)]
    [0, 2]
    """
    styles = _styles(panels)
    used = [[styles[curve.label, curve.metric] for curve in panel] for panel in panels]
    return sum(len(each) - len(set(each)) for each in used)


def alike_text(panels: Sequence[Sequence[Curve]], *, seeds: bool) -> str | None:
    """That some curves look alike, and what helps; None if none do. `seeds`: they are groups of seeds already."""
    count = look_alikes(panels)
    if not count:
        return None
    what = "1 curve looks like another one" if count == 1 else f"{count} curves look like others"
    several = any(len({curve.metric for curve in panel}) > 1 for panel in panels)
    advice = ["give --metric once for each metric, for a panel each"] if several else []
    advice += ["draw fewer runs (--where)"]
    advice += [] if seeds else ["or one curve for runs that differ only in the seed (--seeds)"]
    return f"{what} in the same panel: {', '.join(advice)}"


def _entries(panels: Sequence[Sequence[Curve]]) -> dict[tuple[str, str], str]:
    """What the legend calls each curve, by label and metric: the label alone where a panel has one metric."""
    several = any(len({curve.metric for curve in panel}) > 1 for panel in panels)
    curves = sorted((curve for panel in panels for curve in panel), key=lambda curve: curve.order)
    names = {}
    for curve in curves:
        alike = [c for c in curves if c.label == curve.label and (not several or c.metric == curve.metric)]
        name = f"{curve.label} · {curve.metric}" if several else curve.label
        if curve.grouped or curve.runs > 1:
            low, high = (end(c.runs for c in alike) for end in (min, max))
            count = f"{low}" if low == high else f"{low} to {high}"
            name += " · one seed" if high == 1 else f" · mean of {count} seeds"
        names[curve.label, curve.metric] = _plain(name)
    return names


def _curve(
    axes: Any,
    curve: Curve,
    styles: Styles,
    ends: tuple[float, float],
    scale: float,
    columns: int,
    beta: float,
    marks: dict[str, Any],
) -> Any:
    """One curve: the raw values faint, the smoothed ones, the band, the ticks, what is not finite; its line."""
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
    drawn = line(curve.smooth, linewidth=1.3, linestyle=dashes)
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
    return drawn


def _apart(places: Sequence[float], ends: tuple[float, float], columns: int) -> list[float]:
    """Places without those that would fall on the same column of pixels."""
    begin, end = ends
    kept: dict[int, float] = {}
    for place in places:
        kept.setdefault(int((place - begin) / (end - begin) * columns) if end > begin else 0, place)
    return list(kept.values())
