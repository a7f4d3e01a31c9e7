"""All runs below a root, fast: an index that is derived, checked against the files, and can be deleted.

A run's files are read again only if the size or the time of one of them has changed. The index holds
nothing that is not in the files; if it is missing, damaged, of another version or cannot be written, the
answer is the same and takes longer.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import struct
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from loadsheet.errors import BadFile, BadInput, UnknownName, shorten
from loadsheet.history.logs import Metric, Pass
from loadsheet.history.rows import FINGERPRINT, RunRow, State, as_it_runs, read_again, read_row
from loadsheet.run.reading import without_gc

__all__ = ["Metric", "RunRow", "find", "run_paths", "runs", "scan"]

INDEX: Final = ".loadsheet-index.sqlite"
#: of the table and of what its columns hold; another number is another index, made anew
_VERSION: Final = 6
_MOST_BYTES: Final = 2 << 30  # of an index; no honest one comes near
#: a config.json alone is many things: other programs write one too
_SIGNS: Final = ("log.jsonl", "provenance", "done.json", "measured.json")
#: what a row is read from. A folder's time changes when a file is put into it, taken out or replaced whole, as
#: a run does with all but its log; the config is watched too, since people edit it
_WATCHED: Final = ("", "config.json", "log.jsonl", "provenance", "checkpoints")
_PACK: Final = struct.Struct(f"<{3 * len(_WATCHED)}q").pack
_ABSENT: Final = (0, 0, 0)
#: seconds for which a file is not trusted after it was written: its time may not move at a second writing
_FRESH: Final = 2.0


def runs(root: str | os.PathLike[str] = "runs") -> list[RunRow]:
    """The runs below a folder, by name: `for row in ls.runs("runs"): row.metrics["loss"].min`.

    What is wrong with one stands in its `problems`. Raises BadFile if there is no such folder.
    """
    return scan(root)


def scan(
    root: str | os.PathLike[str],
    *,
    index: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> list[RunRow]:
    """The runs below a root, by name; `index` False reads every file anew and writes nothing.

    `progress` is told how many of how many runs were read. Raises BadFile if the root is no folder that
    can be read; what is wrong with one run stands in its row.
    """
    paths = run_paths(root)
    base = Path(root)
    with _Index(base, index) as known, without_gc():
        rows = _rows(paths, base, known, progress)
    if index and (known.changed or known.rows):
        _write(base, known.changed, known.rows)
    return rows


def _rows(
    paths: list[Path], base: Path, known: _Index, progress: Callable[[int, int], None] | None
) -> list[RunRow]:
    rows = []
    untrusted = time.time() - _FRESH
    prefix = os.path.join(os.fspath(base), "")
    for number, path in enumerate(paths):
        name = path.name
        signature, newest = _signature(f"{prefix}{name}/")
        stored = known.rows.pop(name, None)
        row = _restored(path, stored[1]) if stored is not None and stored[0] == signature else None
        if row is None:
            row, found = read_again(path, base, known.pass_of(name) if stored is not None else None)
            mark = signature if newest < untrusted else b""
            with suppress(*_UNFIT):  # a number or text that the index cannot hold
                known.changed.append((name, mark, _stored(row), _encode(found)))
            if progress is not None:
                progress(number, len(paths))
        rows.append(as_it_runs(row))
    return rows


def run_paths(root: str | os.PathLike[str]) -> list[Path]:
    """The run directories below a root, by name: folders named by a fingerprint, or with a run's files."""
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadFile(
            f"runs: got {shorten(os.fspath(root))} ({reason}), expected a folder of runs",
            "name the folder with `--runs DIR`",
        ) from None
    base = Path(root)
    return [base / name for name in sorted(names) if FINGERPRINT.fullmatch(name) or is_run(base / name)]


def is_run(path: Path) -> bool:
    """Whether a folder is a run: by its name, or by what lies in it."""
    return bool(FINGERPRINT.fullmatch(path.name)) or any((path / name).exists() for name in _SIGNS)


def find(root: str | os.PathLike[str], word: str) -> RunRow:
    """One run: a path, a name below the root, or the beginning of one name.

    Raises UnknownName with the nearest names, BadInput if several begin so, BadFile if there is no root.
    """
    path, base = _found(root, word)
    row = (_fresh(base, path) if base is not None else None) or read_row(path, base)
    return as_it_runs(row)


def _fresh(root: Path, path: Path) -> RunRow | None:
    """The row of the index, if nothing has changed since it was made."""
    with _Index(root, True, path.name) as known:
        stored = known.rows.get(path.name)
    if stored is None or stored[0] != _signature(f"{path}/")[0]:
        return None
    return _restored(path, stored[1])


def _found(root: str | os.PathLike[str], word: str) -> tuple[Path, Path | None]:
    path = Path(word)
    is_path = "/" in word and _is_folder(path)
    if not is_path:
        known = {entry.name: entry for entry in run_paths(root)} if _is_folder(Path(root)) else None
        close = [name for name in known or () if word and name.startswith(word)]
        if known is not None and (word in known or len(close) == 1):
            return known[word if word in known else close[0]], Path(root)
        if len(close) > 1:
            shown = ", ".join(close[:8]) + (", …" if len(close) > 8 else "")
            raise BadInput(
                f"run: got {shorten(word)}, with which {len(close)} runs begin, expected one",
                f"one of {shown}",
            )
        if not (word and _is_folder(path) and is_run(path)):
            run_paths(root)  # raises if it is no folder
            raise UnknownName(word, known or {}, "run")
    if not is_run(path):
        raise BadInput(
            f"run: got {shorten(word)}, a folder without a run, expected a run directory",
            "one has a config.json and a log.jsonl",
        )
    return path, None


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


# --- what a run's files look like from outside ---------------------------------------------------------------


def _signature(folder: str) -> tuple[bytes, float]:
    """Time, size and number of all that a row is read from; and the newest of the times, Unix seconds."""
    numbers: list[int] = []
    newest = 0
    for name in _WATCHED:
        try:
            found = os.stat(folder + name)
        except (OSError, ValueError):
            numbers += _ABSENT
            continue
        changed = found.st_mtime_ns
        numbers += (changed, found.st_size, found.st_ino & 0x7FFFFFFFFFFFFFFF)
        newest = max(newest, changed)
    return _PACK(*numbers), newest / 1e9


# --- the index ------------------------------------------------------------------------------------------------


class _Stored(msgspec.Struct, array_like=True):
    """A row as the index has it: all but the path, the config as the text it is."""

    fingerprint: str
    config: str
    excluded: str
    attempts: int
    step: int
    total: int | None
    state: State
    started: float | None
    updated: float | None
    seconds: float
    resumes: int
    lost_steps: int
    metrics: dict[str, Metric]
    checkpoints: tuple[int, ...]
    nbytes: int
    problems: tuple[str, ...]
    planned: int | None
    gpus: int
    price: float | None
    currency: str
    unsaved_steps: int | None


_FIELDS: Final = _Stored.__struct_fields__
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Stored).decode
_decode_pass: Final = msgspec.msgpack.Decoder(Pass).decode
_to_text: Final = msgspec.json.Encoder().encode
_of_text: Final = msgspec.json.Decoder(dict[str, Any]).decode
_BROKEN: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, TypeError)
_UNFIT: Final = (OverflowError, ValueError, *_BROKEN)


def _stored(row: RunRow) -> bytes:
    values = {name: getattr(row, name) for name in _FIELDS}
    values["config"] = _to_text(row.config).decode()
    values["excluded"] = _to_text(row.excluded).decode()
    return _encode(_Stored(**values))


def _restored(path: Path, stored: bytes) -> RunRow | None:
    """A row from the index; None if what stands there is none."""
    try:
        found = _decode(stored)
        return RunRow(
            path,
            found.fingerprint,
            _of_text(found.config),
            _of_text(found.excluded) if found.excluded != "{}" else {},
            *[getattr(found, name) for name in _FIELDS[3:]],
        )
    except _BROKEN:
        return None


def _open(root: Path, mode: str) -> sqlite3.Connection | None:
    """The index of a root; None if it is not there (mode "ro"), or is nothing that may be opened."""
    path = root / INDEX
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        if mode == "ro":
            return None
    except OSError:
        return None
    else:
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
            return None  # a link would have us write somewhere else
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=0.5)
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


class _Index:
    """What an index has: `rows` by name (signature and row), and how far each log was read.

    `changed` is what it should have instead: name, signature, row, pass. `only`: one row instead of all.
    """

    def __init__(self, root: Path, used: bool, only: str | None = None) -> None:
        self.rows: dict[str, tuple[bytes, bytes]] = {}
        self.changed: list[tuple[str, bytes, bytes, bytes]] = []
        self._connection: sqlite3.Connection | None = None
        if not used:
            return
        try:
            self._connection = _open(root, "ro")
            if self._connection is None:
                return
            if self._connection.execute("PRAGMA user_version").fetchone() == (_VERSION,):
                asked = "SELECT name, signature, row FROM runs" + ("" if only is None else " WHERE name = ?")
                for name, mark, row in self._connection.execute(asked, () if only is None else (only,)):
                    if type(name) is str and type(mark) is bytes and type(row) is bytes:
                        self.rows[name] = mark, row
        except (sqlite3.Error, UnicodeEncodeError):  # damaged: it is made anew when it is written
            self.rows = {}

    def pass_of(self, name: str) -> Pass | None:
        """How far the log of a run was read when it was looked at last."""
        if self._connection is None:
            return None
        try:
            found = self._connection.execute("SELECT pass FROM runs WHERE name = ?", (name,)).fetchone()
            return _decode_pass(found[0]) if found is not None and type(found[0]) is bytes else None
        except (sqlite3.Error, *_BROKEN):
            return None

    def __enter__(self) -> _Index:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()


def _write(root: Path, changed: list[tuple[str, bytes, bytes, bytes]], gone: Iterable[str]) -> None:
    """Bring the index up to date; one that is damaged is made anew, one that cannot be written stays."""
    changed = [entry for entry in changed if _is_text(entry[0])]
    for _ in range(2):
        try:
            if (connection := _open(root, "rwc")) is None:
                return
            with closing(connection):
                connection.execute(
                    "PRAGMA synchronous = OFF"
                )  # it is derived: a power cut costs a second reading
                with connection:
                    connection.execute("BEGIN IMMEDIATE")
                    if connection.execute("PRAGMA user_version").fetchone() != (_VERSION,):
                        connection.execute("DROP TABLE IF EXISTS runs")
                        connection.execute(
                            "CREATE TABLE runs (name TEXT PRIMARY KEY, signature BLOB, row BLOB, pass BLOB)"
                        )
                        connection.execute(f"PRAGMA user_version = {_VERSION}")
                    connection.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?)", changed)
                    connection.executemany("DELETE FROM runs WHERE name = ?", [(name,) for name in gone])
            return
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error) and "has no column" not in str(error):
                return  # locked, read-only, no space
        except sqlite3.DatabaseError:
            pass
        try:
            os.unlink(root / INDEX)
        except OSError:
            return


def _is_text(name: str) -> bool:
    """Whether a name can stand in the index; one that is no UTF-8 is read anew each time."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
