"""The user's price file: a CSV in our own columns or in gpuhunt's; the first row decides which.

UTF-8, commas between the cells, the first row naming the columns in any order. Our own, at most 1 MB:

============  ====================================================================================
gpu           required: a GPU id as `loadsheet gpus` lists it
price         required: a number with a decimal point, per hour
gpus          how many GPUs the instance has; 1 if left out. Instances are rented whole.
per           what the price is for: `gpu` or `instance`; required where `gpus` is more than 1
currency      a code such as USD or a sign such as €; may be empty
provider      free text, as are region and instance_name
region
instance_name
spot          yes or no; no if left out
date          when the price was seen: YYYY-MM-DD or YYYY-MM; `as_of` is another name for it
billing_unit  a started one is paid whole: 1s, 1min, 1h
============  ====================================================================================

A file with a column `gpu_name` is gpuhunt's (`hunted.py`), at most 32 MB: its columns, the price per
instance and hour in US dollars, and if you like `gpu`, `currency`, `date` or `as_of`, and `billing_unit`.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from loadsheet.errors import BadFile, BadInput, UnknownGpu, nearest, one_line, shorten
from loadsheet.hardware import listed
from loadsheet.money.price import PriceRow, read_amount, read_currency
from loadsheet.units import parse_duration

MAX_FILE_BYTES: Final = 1_000_000
MAX_CATALOG_BYTES: Final = 32_000_000
MAX_ROWS: Final = 200_000

_MAX_GPUS: Final = 1_000_000
_MAX_TEXT: Final = 80
_MAX_REASONS: Final = 50
_MAX_BILLING: Final = 366 * 86_400.0  # seconds; above it no unit of a bill, but a typing error
_COLUMNS: Final = (
    "gpu", "price", "gpus", "per", "currency", "provider", "region", "spot", "date", "as_of", "instance_name",
    "billing_unit",
)  # fmt: skip
_YES: Final = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
_DATE: Final = re.compile(r"[0-9]{4}-(?:0[1-9]|1[0-2])(?:-(?:0[1-9]|[12][0-9]|3[01]))?")


@dataclass(frozen=True, slots=True)
class Skipped:
    """Rows that were left out for one reason."""

    reason: str
    rows: int
    first: str  # "aws.csv row 3"


@dataclass(frozen=True, slots=True)
class PriceList:
    """The rows of a price file or a catalog, and what was left out of it."""

    name: str
    rows: tuple[PriceRow, ...]
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()  # what could not be looked at

    @property
    def left_out(self) -> str:
        """How many rows were skipped and why, in one line; "" if none was."""
        if not self.skipped:
            return ""
        count = sum(s.rows for s in self.skipped)
        why = "; ".join(f"{s.rows:,} × {s.reason} (first {s.first})" for s in self.skipped[:3])
        more = f"; and {len(self.skipped) - 3} more reasons" if len(self.skipped) > 3 else ""
        return f"{self.name}: {count:,} of {count + len(self.rows):,} rows skipped: {why}{more}"


class Skips:
    """Counts the rows that are left out, by reason; the number of reasons is bounded."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, str]] = {}
        self._known: dict[tuple[str, ...], tuple[str, int] | str] = {}

    @property
    def full(self) -> bool:
        """Whether a reason that is new goes to the others."""
        return len(self._found) >= _MAX_REASONS

    def add(self, reason: str, where: str) -> None:
        """One more row that is left out."""
        if reason not in self._found and self.full:
            reason = "other GPUs that are not known"
        count, first = self._found.get(reason, (0, where))
        self._found[reason] = (count + 1, first)

    def known(self, key: tuple[str, ...], find: Callable[[], tuple[str, int] | str]) -> tuple[str, int] | str:
        """What `find` says of `key`, asked once: catalogs repeat the same names thousands of times."""
        if key not in self._known:
            if len(self._known) >= 10_000:
                self._known.clear()
            self._known[key] = find()
        return self._known[key]

    def counted(self) -> tuple[Skipped, ...]:
        """Every reason, the most frequent first."""
        found = sorted(self._found.items(), key=lambda item: -item[1][0])
        return tuple(Skipped(reason, count, first) for reason, (count, first) in found)


class RowReader:
    """The cells of one row; each method reads one, or raises BadInput that names row and column."""

    def __init__(self, cells: Mapping[str, str], where: str) -> None:
        self.cells, self.where = cells, where

    def _what(self, column: str) -> str:
        return f"{self.where}, column `{column}`"

    def bad(self, column: str, expected: str, hint: str = "") -> BadInput:
        """The error for a cell that makes no sense."""
        got = shorten(self.cells.get(column, ""))
        return BadInput(f"{self._what(column)}: got {got}, expected {expected}", hint)

    def gpu(self, column: str) -> str:
        """A GPU id of ours."""
        try:
            return listed(self.cells[column]).id
        except UnknownGpu as error:
            raise self.bad(column, "a known GPU id", error.hint) from None

    def amount(self, column: str) -> float:
        """A price that is not negative."""
        return read_amount(self.cells[column], self._what(column), "a number")

    def whole(self, column: str, zero: bool = False) -> int:
        """A whole number from 1, or from 0; 1 where there is no such cell."""
        count = self.cells.get(column) or ("" if zero else "1")
        if not re.fullmatch(r"[0-9]{1,7}", count) or not (0 if zero else 1) <= int(count) <= _MAX_GPUS:
            raise self.bad(column, "a whole number from 0" if zero else "a positive whole number")
        return int(count)

    def yes(self, column: str, empty: bool | None = False) -> bool:
        """Yes or no; `empty` for no cell, an error if that is None."""
        text = self.cells.get(column, "").lower()
        found = _YES.get(text, None if text else empty)
        if found is None:
            raise self.bad(column, "yes or no")
        return found

    def date(self) -> str:
        """When the price was seen; "" if the row does not say."""
        column = "as_of" if self.cells.get("as_of") else "date"
        text = self.cells.get(column, "")
        if text and not _DATE.fullmatch(text):
            raise self.bad(column, "YYYY-MM-DD or YYYY-MM")
        return text

    def billing(self) -> float | None:
        """The billing unit in seconds; None if the row does not say."""
        text = self.cells.get("billing_unit", "")
        if not text:
            return None
        try:
            seconds = parse_duration(text)
        except BadInput:
            seconds = 0.0
        if not 0 < seconds <= _MAX_BILLING:
            raise self.bad("billing_unit", "a duration such as 1s, 1min or 1h")
        return seconds

    def text(self, column: str) -> str:
        """Free text on one line."""
        if len(self.cells.get(column, "")) > _MAX_TEXT:
            raise self.bad(column, f"at most {_MAX_TEXT} characters")
        return one_line(self.cells.get(column, ""))

    def currency(self, column: str) -> str:
        """A currency, or nothing."""
        return read_currency(self.cells.get(column, ""), self._what(column))


def _own_row(cells: Mapping[str, str], where: str, skips: Skips) -> PriceRow | None:
    read = RowReader(cells, where)
    gpu, price, count = read.gpu("gpu"), read.amount("price"), read.whole("gpus")
    per = cells.get("per", "").lower()
    if per not in ("gpu", "instance") and (per or count > 1):
        raise read.bad("per", "`gpu` or `instance`", "a price for several GPUs must say what it is for")
    return PriceRow(
        gpu=gpu,
        price=price,
        gpus=count,
        per="instance" if per == "instance" else "gpu",
        currency=read.currency("currency"),
        provider=read.text("provider"),
        region=read.text("region"),
        spot=read.yes("spot"),
        date=read.date(),
        source=where,
        instance=read.text("instance_name"),
        billing_seconds=read.billing(),
    )


Row = Callable[[Mapping[str, str], str, Skips], PriceRow | None]


def table(name: str, cells: Iterable[Mapping[str, str]], row: Row, unit: str = "item") -> PriceList:
    """The price list of rows that are already cut into cells; BadInput if there are too many, or none is left."""
    skips, rows = Skips(), []
    for number, each in enumerate(cells, start=1):
        if number > MAX_ROWS:
            raise BadInput(f"{name}: got more than {MAX_ROWS:,} rows, expected at most as many")
        found = row(each, f"{name} {unit} {number}", skips)
        if found is not None:
            rows.append(found)
    return _checked(PriceList(name, tuple(rows), skips.counted()))


def _checked(prices: PriceList) -> PriceList:
    if not prices.rows and prices.skipped:
        why = "; ".join(s.reason for s in prices.skipped[:3])
        raise BadInput(f"{prices.name}: got no row whose GPU is known here, expected one", f"skipped: {why}")
    if not prices.rows:
        raise BadInput(f"{prices.name}: got no prices, expected a row of column names and one row per price")
    return prices


def _read_text(path: str | os.PathLike[str], name: str) -> tuple[str, bool]:
    """The text, and whether it is in gpuhunt's form, which may be larger."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise BadFile(f"{name}: got a folder or a device, expected a CSV file")
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
            hunted = b"gpu_name" in data.partition(b"\n")[0][:2000].lower()
            if hunted:
                data += file.read(MAX_CATALOG_BYTES - MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadFile(f"{name}: got {reason!r}, expected a CSV file that can be read") from None
    limit = MAX_CATALOG_BYTES if hunted else MAX_FILE_BYTES
    if len(data) > limit:
        size = f"{limit // 1_000_000} MB"
        raise BadFile(f"{name}: got more than {size}, expected a price file of at most {size}")
    try:
        return data.decode("utf-8-sig"), hunted
    except UnicodeDecodeError as error:
        raise BadFile(
            f"{name}: got byte {data[error.start]:#04x} at {error.start}, expected UTF-8 text",
            "save the sheet as CSV UTF-8",
        ) from None


def _header(cells: Sequence[str], name: str, known: Sequence[str], needed: Sequence[str]) -> list[str]:
    columns = [cell.strip().lower() for cell in cells]
    if len(columns) == 1 and re.search(r"[;\t|]", columns[0]):
        raise BadFile(
            f"{name} row 1: got {shorten(columns[0])}, expected commas between the columns",
            "save the sheet as CSV with commas",
        )
    if "what" in columns:
        raise BadInput(
            f"{name} row 1: got prices of left-overs, which `loadsheet leftovers` reads, expected prices of GPUs",
            "columns: " + ", ".join(known),
        )
    for column in columns:
        if column not in known:
            close = nearest(column, known)
            hint = f"did you mean `{close[0]}`?" if close else "columns: " + ", ".join(known)
            raise BadInput(f"{name} row 1: got column {shorten(column)}, expected a known one", hint)
        if columns.count(column) > 1:
            raise BadInput(f"{name} row 1: got column `{column}` twice, expected it once")
    for column in needed:
        if column not in columns:
            raise BadInput(f"{name} row 1: got no column `{column}`, expected one")
    if "date" in columns and "as_of" in columns:
        raise BadInput(f"{name} row 1: got `date` and `as_of`, expected one of them", "they mean the same")
    return columns


def price_file(path: str | os.PathLike[str]) -> PriceList:
    """The rows of a user's price file (columns: see this module), blank ones left out.

    BadFile if it cannot be read, is no UTF-8 CSV or is too large; BadInput, with row and column (the row
    of the names is row 1), if a cell makes no sense or if no row is left.
    """
    import csv
    import io

    name = one_line(os.path.basename(os.fsdecode(path))) or "price file"
    text, hunted = _read_text(path, name)
    known: Sequence[str] = _COLUMNS
    needed: Sequence[str] = ("gpu", "price")
    read: Row = _own_row
    given: dict[str, str] = {}
    if hunted:
        from loadsheet.money import hunted as theirs

        known, needed, read = (*theirs.HUNTED, *theirs.OURS), theirs.NEEDED, theirs.hunted_row
        stem = name.partition(".")[0].lower()  # gpuhunt's own files carry the provider in their name only
        given = {"provider": stem} if theirs.is_provider(stem) else {}
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    columns: list[str] = []
    rows: list[PriceRow] = []
    skips = Skips()
    number = 0
    try:
        for number, cells in enumerate(reader, start=1):
            where = f"{name} row {number}"
            if number > MAX_ROWS:
                raise BadInput(f"{name}: got more than {MAX_ROWS:,} rows, expected at most as many")
            if number == 1:
                columns = _header(cells, name, known, needed)
            elif any(cell.strip() for cell in cells):
                if len(cells) != len(columns):
                    raise BadInput(f"{where}: got {len(cells)} cells, expected {len(columns)}")
                stripped = {c: cell.strip() for c, cell in zip(columns, cells, strict=True)}
                row = read({**given, **stripped}, where, skips)
                if row is not None:
                    rows.append(row)
    except csv.Error as error:
        raise BadFile(f"{name} row {number + 1}: got {str(error)!r}, expected CSV") from None
    return _checked(PriceList(name, tuple(rows), skips.counted()))


def read_price_file(path: str | os.PathLike[str]) -> tuple[PriceRow, ...]:
    """The rows of a user's price file alone; raises what `price_file` does."""
    return price_file(path).rows
