"""Tables of published measurements: a CSV file, read within limits, and its rows."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TextIO

from loadsheet.errors import BadFile, LoadsheetError, shorten

#: columns without which a row says nothing
NEEDED: Final = ("id", "source_key", "task", "model", "framework", "n_gpus", "peak_mem_gib", "mem_kind")
#: limits beyond which a file is no table of measurements
MAX_BYTES: Final = 64 << 20
MAX_ROWS: Final = 100_000
MAX_COLUMNS: Final = 500
MAX_CELL: Final = 20_000


class Skip(LoadsheetError):
    """Why a row is not predicted. `in_scope`: such rows count against coverage."""

    def __init__(self, reason: str, *, in_scope: bool = True) -> None:
        super().__init__(reason)
        self.in_scope = in_scope


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement; `number` is its line among the data rows, from 1."""

    number: int
    cells: dict[str, str]

    def text(self, column: str) -> str:
        """The cell, without outer spaces; "" if the table has no such column."""
        return self.cells.get(column, "").strip()

    def real(self, column: str) -> float | None:
        """A finite number, or None where the cell is empty. Skip, naming row and column, for anything else."""
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise Skip(f"row {self.number}, {column}: got {shorten(text, 30)}, expected a number")
        return value

    def whole(self, column: str, maximum: int = 1 << 40) -> int | None:
        """A whole number from 1, or None where the cell is empty. Skip for anything else."""
        value = self.real(column)
        if value is None:
            return None
        if value != int(value) or not 1 <= value <= maximum:
            got = shorten(self.text(column), 30)
            raise Skip(f"row {self.number}, {column}: got {got}, expected a whole number from 1")
        return int(value)

    def need(self, column: str) -> int:
        """The same; Skip where the cell is empty."""
        value = self.whole(column)
        if value is None:
            raise Skip(f"{column} is not stated")
        return value

    @property
    def id(self) -> str:
        """The row's own name, or its number."""
        return self.text("id") or f"row {self.number}"

    @property
    def source(self) -> str:
        """Which publication it comes from."""
        return self.text("source_key") or "unnamed"

    @property
    def group(self) -> str:
        """Rows of one configuration share it; a row without one is a group of its own."""
        return self.text("dup_group") or f"\0{self.number}"

    @property
    def complete(self) -> bool:
        """Whether the table says that nothing is missing; a table without that column says so of all rows."""
        return "complete" not in self.cells or self.text("complete").lower() == "yes"


def read_truth(path: str | os.PathLike[str]) -> list[Row]:
    """The rows of a CSV file with the columns of `NEEDED` at least; others are used where they are known.

    Raises BadFile, naming row and column, for what is no such table.
    """
    name = shorten(os.path.basename(os.fspath(path)) or os.fspath(path))
    try:
        if os.path.isdir(path):
            raise BadFile(f"truth: got folder {name}, expected a CSV file")
        if os.path.getsize(path) > MAX_BYTES:
            raise BadFile(f"{name}: got {os.path.getsize(path):,} bytes, expected at most {MAX_BYTES:,}")
        with open(path, encoding="utf-8-sig", newline="") as file:
            return list(_rows(file, name))
    except UnicodeDecodeError as error:
        raise BadFile(
            f"{name}: got bytes that are no UTF-8 at {error.start:,}, expected a CSV file"
        ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise BadFile(
            f"truth: got {name} ({reason.lower()}), expected a readable CSV file", "check the path"
        ) from error


def _rows(file: TextIO, name: str) -> Iterator[Row]:
    limit = csv.field_size_limit(MAX_CELL)
    try:
        lines = csv.reader(file, strict=True)
        header = _header(next(lines, []), name)
        for number, cells in enumerate(lines, 1):
            if number > MAX_ROWS:
                raise BadFile(f"{name}: got more than {MAX_ROWS:,} rows, expected at most that many")
            if not cells:
                continue
            if len(cells) != len(header):
                last = header[min(len(cells), len(header)) - 1]
                raise BadFile(
                    f"{name}, row {number}: got {len(cells)} cells, expected {len(header)}",
                    f"the header has {len(header)} columns; look at the quotes before `{last}`",
                )
            yield Row(number, dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        at = getattr(lines, "line_num", 0)
        raise BadFile(f"{name}, line {at}: got {error}, expected a CSV file") from error
    finally:
        csv.field_size_limit(limit)


def _header(cells: list[str], name: str) -> list[str]:
    header = [cell.strip() for cell in cells]
    if len(header) > MAX_COLUMNS:
        raise BadFile(f"{name}, header: got {len(header):,} columns, expected at most {MAX_COLUMNS}")
    missing = [column for column in NEEDED if column not in header]
    if missing:
        raise BadFile(
            f"{name}, header: got no column `{missing[0]}`, expected {', '.join(NEEDED)}",
            "one row for each measurement; docs/how-right.md describes the columns",
        )
    twice = next((column for column in header if column and header.count(column) > 1), None)
    if twice is not None:
        raise BadFile(f"{name}, header: got column {shorten(twice)} twice, expected it once")
    return header
