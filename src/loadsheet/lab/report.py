"""A figure three times over: as the lecture prints it, by our formula, as PyTorch measures it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from loadsheet.text import columns, wrap
from loadsheet.units import GIB, MIB, format_duration, format_money, format_si

Number = int | float


def short(value: Number) -> str:
    """Four digits, and a power of ten without padding.

    >>> short(1.0133e-06), short(3.15e23), short(2.0)
    ('1.013e-6', '3.15e23', '2')
    """
    return f"{value:.4g}".replace("e-0", "e-").replace("e+", "e")


#: how a kind of figure is printed -> (its unit in JSON, the printer)
SHOW: Final[dict[str, tuple[str, Callable[[Any], str]]]] = {
    "count": ("", lambda v: f"{v:,}"),
    "bytes": ("bytes", lambda v: f"{v:,}"),
    "bytes and MiB": ("bytes", lambda v: f"{v:,}"),
    "GiB": ("bytes", lambda v: f"{v / GIB:,.2f} GiB"),
    "GB": ("bytes", lambda v: f"{v / 1e9:,.2f} GB"),
    "per number": ("bytes", lambda v: f"{v:g} B"),
    "FLOP": ("FLOP", lambda v: f"{v:,}"),
    "FLOP, rounded": ("FLOP", short),
    "share": ("share", lambda v: f"{v:.2%}"),
    "times": ("times", lambda v: f"{v:.4g}×"),
    "ratio": ("", lambda v: f"1 : {v:g}"),
    "bits": ("bits", lambda v: f"{v}"),
    "digits": ("digits", lambda v: f"{v:.2f}"),
    "value": ("", short),
    "duration": ("seconds", format_duration),
    "hours": ("seconds", lambda v: f"{v / 3600:,.0f} h"),
    "days": ("seconds", lambda v: f"{v / 86400:,.1f} days"),
    "rate": ("FLOP/s", lambda v: format_si(v, "FLOP/s")),
    "tokens/s": ("tokens/s", lambda v: f"{v:,.0f} tokens/s"),
    "bandwidth": ("bytes/s", lambda v: f"{v / 1e9:,.2f} GB/s"),
    "loss": ("nats", lambda v: f"{v:.6f}"),
    "difference": ("nats", lambda v: f"{v:+.6f}"),
    "learning rate": ("", lambda v: f"{v:.6g}"),
    "yes or no": ("", lambda v: "yes" if v else "no"),
    "batch": ("sequences", lambda v: f"{v:.1f}"),
    "money": ("currency", format_money),
}

Match = Literal["yes", "about", "off", "open", "machine", "no", ""]
MEANING: Final[dict[str, str]] = {
    "yes": "equal: to the last unit where we count, to the last printed digit where the lecture rounds",
    "about": "the lecture says about, or gives a bound, and it holds",
    "off": "the lecture's figure does not follow from its own model; the remark says why",
    "open": "the lecture leaves out what it takes to compute it again; the remark says what fits",
    "machine": "a time on this machine, not judged",
    "no": "must match and does not",
}


@dataclass(frozen=True, slots=True)
class Lecture:
    """A figure as the lecture prints it, and the bounds that these words allow; None: no bound."""

    text: str
    low: Number | None = None
    high: Number | None = None
    about: bool = False

    def allows(self, value: Number) -> bool:
        """Whether a value lies within the bounds."""
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)


def printed(text: str, scale: Number = 1) -> Lecture:
    """A rounded figure: "29.9 GiB" allows half a unit of the last printed digit.

    >>> printed("29.9 GiB").low, printed("29.9 GiB").high
    (29.85, 29.95)
    """
    match = re.match(r"([\d,]+)(?:\.(\d+))?", text)
    if match is None:
        raise ValueError(f"no figure in {text!r}")
    part = match[2] or ""
    digits, power = int(match[1].replace(",", "") + part), 10 ** len(part)
    return Lecture(text, (2 * digits - 1) / (2 * power) * scale, (2 * digits + 1) / (2 * power) * scale)


def exactly(value: int, text: str = "") -> Lecture:
    """A figure that allows nothing but itself."""
    return Lecture(text or f"{value:,}", value, value)


def printed_range(text: str, low: Number, high: Number) -> Lecture:
    """A rounded figure that is no plain decimal (1.01e-6), with its bounds."""
    return Lecture(text, low, high)


def around(text: str, value: Number, within: float) -> Lecture:
    """A figure that the lecture calls about: a relative distance is allowed."""
    return Lecture(text, value * (1 - within), value * (1 + within), about=True)


def between(text: str, low: Number | None, high: Number | None) -> Lecture:
    """A range, or a bound, in the lecture's words."""
    return Lecture(text, low, high, about=True)


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of a comparison. Amounts are in base units; None: there is none.

    ours       by a formula or a count of ours; `tape`: read off our tape, a second count
    measured   with PyTorch, here and now
    within     how far ours may be from what is measured, relative; 0: equal
    standing   "judged", or why the lecture's figure is not: it is "off", or it leaves it "open"
    varies     a time: printed, never judged
    """

    id: str
    name: str
    show: str
    ours: Number | None = None
    tape: Number | None = None
    measured: Number | None = None
    lecture: Lecture | None = None
    within: float = 0.0
    standing: Literal["judged", "off", "open"] = "judged"
    varies: bool = False
    remark: str = ""

    @property
    def best(self) -> Number | None:
        """What is held against the lecture: the measured amount, or ours where nothing is measured."""
        return self.measured if self.measured is not None else self.ours

    @property
    def match(self) -> Match:
        """How the amounts agree; "" if there is nothing to compare."""
        if self.varies:
            return "machine"
        found = [v for v in (self.ours, self.tape, self.measured) if v is not None]
        if any(not close(value, found[0], self.within) for value in found[1:]):
            return "no"
        if self.standing != "judged":
            return self.standing
        if self.lecture is None or self.best is None:
            return "yes" if len(found) > 1 else ""
        if not self.lecture.allows(self.best):
            return "no"
        return "about" if self.lecture.about else "yes"

    def cells(self, tape: bool) -> list[str]:
        """Name, lecture, ours, (tape,) measured, match."""
        amounts = [self.ours, *([self.tape] if tape else []), self.measured]
        said = self.lecture.text if self.lecture else "–"
        shown = [self.text(v) for v in amounts]
        if self.show == "bytes and MiB" and self.measured is not None:
            shown[-1] += f" = {self.measured / MIB:.2f} MiB"
        return [self.name, said, *shown, self.match or "–"]

    def text(self, value: Number | None) -> str:
        """An amount as this kind of figure is printed."""
        return "–" if value is None else SHOW[self.show][1](value)

    def to_json(self) -> dict[str, Any]:
        """Every field, base units."""
        said = self.lecture
        return {
            "id": self.id,
            "name": self.name,
            "unit": SHOW[self.show][0],
            "lecture": None if said is None else {"text": said.text, "low": said.low, "high": said.high},
            "ours": self.ours,
            "tape": self.tape,
            "measured": self.measured,
            "match": self.match or None,
            "remark": self.remark,
        }


def close(a: Number, b: Number, within: float) -> bool:
    """Equal, or within a relative distance."""
    return a == b if within == 0 else math.isclose(a, b, rel_tol=within)


def _fitted(head: list[str], body: list[list[str]], width: int) -> list[str]:
    """Aligned columns; where they are wider than `width` each row says its cells one after the other."""
    lines = columns([head, *body])
    if max(map(len, lines)) <= width:
        return lines
    lines = []
    for name, *cells in body:
        said = [f"{what} {cell}" for what, cell in zip(head[1:], cells, strict=True) if cell != "–"]
        lines += wrap(f"{name}: {', '.join(said)}", width, "  ")
    return lines


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that stand for themselves: a row is a label and amounts, each printed in its column's way."""

    head: tuple[str, ...]
    show: tuple[str, ...]  # of each column after the first
    rows: tuple[tuple[str, tuple[Number | None, ...]], ...]

    def lines(self, width: int) -> list[str]:
        """As aligned text, or a paragraph for each row where that is wider than `width`."""
        body = [
            [name, *("–" if v is None else SHOW[s][1](v) for s, v in zip(self.show, row, strict=True))]
            for name, row in self.rows
        ]
        return _fitted(list(self.head), body, width)

    def to_json(self) -> dict[str, Any]:
        """Names and units of the columns, and the rows; base units."""
        units = ["", *(SHOW[s][0] for s in self.show)]
        return {
            "columns": [{"name": n, "unit": u} for n, u in zip(self.head, units, strict=True)],
            "rows": [[name, *row] for name, row in self.rows],
        }


@dataclass(frozen=True, slots=True)
class Section:
    """A part of an experiment: the formulas, the figures, perhaps a table, and remarks."""

    title: str
    formulas: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    table: Table | None = None
    notes: tuple[str, ...] = ()

    def lines(self, width: int) -> list[str]:
        """As text, at most about `width` wide."""
        out = wrap(self.title, width, "  ")
        for formula in self.formulas:
            out += wrap(f"  {formula}", width, "      ")
        if self.figures:
            tape = any(f.tape is not None for f in self.figures)
            head = ["", "lecture", "ours", *(["tape"] if tape else []), "measured", "match"]
            body = [f.cells(tape) for f in self.figures]
            out += [f"  {line}" for line in _fitted(head, body, width - 2)]
        if self.table is not None:
            out += [f"  {line}" for line in self.table.lines(width - 2)]
        remarks = dict.fromkeys(f.remark for f in self.figures if f.remark)
        for note in (*self.notes, *remarks):
            out += wrap(f"  {note}", width, "    ")
        return out

    def to_json(self) -> dict[str, Any]:
        """Title, formulas, figures, table and notes."""
        return {
            "title": self.title,
            "formulas": list(self.formulas),
            "figures": [f.to_json() for f in self.figures],
            "table": None if self.table is None else self.table.to_json(),
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """What one experiment found."""

    title: str
    sections: tuple[Section, ...]
    versions: dict[str, str]
    curves: tuple[Curve, ...] = ()

    @property
    def figures(self) -> tuple[Figure, ...]:
        """All figures, in order."""
        return tuple(f for section in self.sections for f in section.figures)

    def __getitem__(self, figure_id: str) -> Figure:
        """The figure of that id; KeyError if there is none."""
        return {f.id: f for f in self.figures}[figure_id]

    @property
    def failed(self) -> tuple[Figure, ...]:
        """The figures that must match and do not."""
        return tuple(f for f in self.figures if f.match == "no")

    def text(self, width: int = 100) -> str:
        """The whole report, with what the words of the last column mean."""
        versions = ", ".join(f"{k} {v}" for k, v in self.versions.items())
        out = [*wrap(self.title, width, "  "), *wrap(versions, width, "  "), ""]
        for section in self.sections:
            out += [*section.lines(width), ""]
        counts = {word: sum(f.match == word for f in self.figures) for word in MEANING}
        for word, meaning in MEANING.items():
            if counts[word] or word == "no":
                out += wrap(f"{counts[word]:>3} {word:<8} {meaning}", width, " " * 13)
        return "\n".join(out)

    def to_json(self) -> dict[str, Any]:
        """Sections and verdict; base units."""
        return {
            "schema": 1,
            "title": self.title,
            "versions": self.versions,
            "sections": [s.to_json() for s in self.sections],
            "failed": [f.id for f in self.failed],
        }


@dataclass(frozen=True, slots=True)
class Curve:
    """A sweep and its fit a + b·x + c·x², for the plot; y in bytes."""

    name: str
    label: str
    x: tuple[Number, ...]
    y: tuple[Number, ...]
    powers: tuple[int, ...]
    coefficients: tuple[float, ...]

    def at(self, x: Number) -> float:
        """The fit's value."""
        return sum(c * x**p for p, c in zip(self.powers, self.coefficients, strict=True))

    def share(self, x: Number, power: int) -> float:
        """The part of the fit that one power makes up at x."""
        return self.coefficients[self.powers.index(power)] * x**power / self.at(x)

    @property
    def formula(self) -> str:
        """The fit in MiB, the variable as a letter.

        >>> Curve("length", "T", (), (), (1, 2), (2 * 1048576.0, 1048576.0)).formula
        '2·T + 1·T² MiB'
        """
        terms = []
        for power, coefficient in zip(self.powers, self.coefficients, strict=True):
            sign = {0: "", 1: f"·{self.label}", 2: f"·{self.label}²"}[power]
            terms.append(f"{coefficient / MIB:.4g}{sign}")
        return " + ".join(terms) + " MiB"
