"""All runs below a root, fast: an index that is derived, checked against the files, and can be deleted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from loadsheet.errors import BadFile, BadInput, UnknownName, shorten
from loadsheet.history.logs import Metric
from loadsheet.history.rows import FINGERPRINT, RunRow, read_row

__all__ = ["Metric", "RunRow", "find", "run_paths", "scan"]

INDEX: Final = ".loadsheet-index.sqlite"
_SIGNS: Final = ("config.json", "log.jsonl", "provenance")


def scan(root: str | os.PathLike[str], *, index: bool = True) -> list[RunRow]:
    """The runs below a root, by name; `index` False reads every file anew and writes nothing.

    Raises BadFile if the root is no folder that can be read; what is wrong with one run stands in its row.
    """
    return [read_row(path, Path(root)) for path in run_paths(root)]


def run_paths(root: str | os.PathLike[str]) -> list[Path]:
    """The run directories below a root, by name: folders named by a fingerprint, or with a run's files."""
    try:
        with os.scandir(root) as entries:
            folders = [Path(root) / e.name for e in entries if not e.name.startswith(".") and e.is_dir()]
    except OSError as error:
        raise BadFile(
            f"runs: got `{os.fspath(root)}` ({error.strerror}), expected a folder of runs",
            "name it with `--runs DIR`",
        ) from None
    return sorted(path for path in folders if is_run(path))


def is_run(path: Path) -> bool:
    """Whether a folder is a run: by its name, or by what lies in it."""
    return bool(FINGERPRINT.fullmatch(path.name)) or any((path / name).exists() for name in _SIGNS)


def find(root: str | os.PathLike[str], word: str) -> RunRow:
    """One run: a path, a name below the root, or the beginning of one name. Raises BadInput, UnknownName."""
    if "/" in word and Path(word).is_dir():
        return read_row(Path(word))
    names = {path.name: path for path in run_paths(root)} if Path(root).is_dir() else {}
    if word in names:
        return read_row(names[word], Path(root))
    if word and Path(word).is_dir() and is_run(Path(word)):
        return read_row(Path(word))
    close = [name for name in names if word and name.startswith(word)]
    if len(close) == 1:
        return read_row(names[close[0]], Path(root))
    if close:
        raise BadInput(
            f"run: got {shorten(word)}, which {len(close)} runs begin with, expected one",
            ", ".join(close[:8]),
        )
    raise UnknownName(word, names, "run")
