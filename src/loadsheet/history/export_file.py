"""A file where the user wants it: there whole or not at all, and nothing is lost in its place."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from loadsheet.errors import BadInput, LoadsheetError, shorten
from loadsheet.run.directory import FULL, fsync_directory

_TAKEN: Final = "name another file, or overwrite this one with `--force`"


def check_free(path: Path, *, force: bool, what: str = "--out") -> None:
    """BadInput for a place where no file can come to be, or where one is and `force` is not given."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        found = None
    except (OSError, ValueError) as error:
        raise _unwritable(path, error, what) from None
    if found is not None:
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "something that is no file"
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISLNK(found.st_mode):
            raise BadInput(f"{what}: got `{path}`, which is {kind}, expected the name of a file")
        if not force:
            raise BadInput(f"{what}: got `{path}`, which exists, expected a new file", _TAKEN)
    elif not path.parent.is_dir():
        raise BadInput(
            f"{what}: got `{path}`, expected a file in a folder that exists", f"mkdir -p {path.parent}"
        )


@contextlib.contextmanager
def whole_file(path: Path, *, force: bool, what: str = "--out") -> Iterator[Path]:
    """The path of a file aside, which bears its name once the block has ended without an error.

    What the block has written there is durable then. Raises BadInput as `check_free`, LoadsheetError if
    the disk says no; the file aside is removed.
    """
    check_free(path, force=force, what=what)
    aside = path.with_name(f".{path.name[:100]}-{os.urandom(4).hex()}.unfinished")
    try:
        mode = _created(aside)
        yield aside
        os.chmod(aside, mode)  # a library may have put a file of its own there
        _sync(aside)
        if not force:
            check_free(path, force=False, what=what)  # it may have come to be while this one was written
        os.replace(aside, path)
    except OSError as error:
        raise _unwritable(path, error, what) from None
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()
    with contextlib.suppress(OSError):
        fsync_directory(path.parent)


def write_file(path: Path, parts: Iterable[bytes], *, force: bool, what: str = "--out") -> int:
    """A file of these bytes, as `whole_file`; their number."""
    nbytes = 0
    with whole_file(path, force=force, what=what) as aside, aside.open("wb") as file:
        for part in parts:
            file.write(part)
            nbytes += len(part)
    return nbytes


def _created(path: Path) -> int:
    """The permissions that a new file has here; it is there, empty, from now on."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        return stat.S_IMODE(os.fstat(fd).st_mode)
    finally:
        os.close(fd)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _unwritable(path: Path, error: Exception, what: str) -> LoadsheetError:
    reason = getattr(error, "strerror", None) or str(error)
    number = getattr(error, "errno", None)
    hint = "free space, then try again" if number in FULL else "name a place where you may write"
    if number == errno.ENAMETOOLONG:
        hint = "a shorter name"
    return BadInput(f"{what}: got `{shorten(str(path))}` ({reason}), expected to write there", hint)


def make_folder(path: Path, what: str = "--out") -> Path:
    """The folder, made with those above it if need be. Raises BadInput."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error, what) from None
    return path
