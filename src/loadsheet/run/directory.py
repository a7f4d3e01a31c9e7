"""The directory of a run: found by its fingerprint, locked, its attempts counted.

What makes it safe to be killed at any instant:

- every file here appears whole or not at all (`write_whole`: written aside, fsynced, renamed, directory
  fsynced);
- an attempt is one file `provenance/attempt-0001.json`, made with O_EXCL: two processes can never have the
  same number, even where the lock failed. It is on disk before the attempt writes anything else.
- the number fences: an attempt that finds a newer one (`check_owner`) must not commit any more. It may
  have been asleep, a paused machine for example, while the other one took over.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn

from loadsheet.errors import BadFile
from loadsheet.run import provenance
from loadsheet.run.errors import Fenced, ForeignConfig, NoSpace, RunError
from loadsheet.run.fingerprint import canonical, differences, digest
from loadsheet.run.lock import RunLock, refuse_unsafe
from loadsheet.run.tell import tell

_ATTEMPT: Final = re.compile(r"attempt-([0-9]{4,})\.json")
_UNFINISHED: Final = re.compile(r"\..+\.unfinished")
FULL: Final = {errno.ENOSPC, errno.EDQUOT}
#: the mirror of a script that names none; a job file says it
MIRROR_VARIABLE: Final = "LOADSHEET_MIRROR"
#: names a directory that takes the place of every root: a rehearsal must not touch the runs there are
ROOT_VARIABLE: Final = "LOADSHEET_RUNS_ROOT"
#: in `done.json`: who trains keeps its own checkpoints
ELSEWHERE: Final = "elsewhere"


def root_of(root: str | os.PathLike[str]) -> Path:
    """The directory of runs: `root`, unless the environment names another (`LOADSHEET_RUNS_ROOT`)."""
    return Path(os.environ.get(ROOT_VARIABLE) or root)


class RunDirectory:
    """One run on disk, held by this process from `open` to `close`."""

    def __init__(self, path: Path, config: dict[str, Any], excluded: dict[str, Any]) -> None:
        self.path = path
        self.config = config
        self.excluded = excluded
        self.fingerprint = digest(config)
        self.attempt = 0
        self.checkpoints = path / "checkpoints"
        self.log_path = path / "log.jsonl"
        self.provenance = path / "provenance"
        #: what changed on the machine since the attempt before, a line each; it may change bits
        self.changes: list[str] = []
        self._lock = RunLock(path / "lock")

    @classmethod
    def open(
        cls,
        root: str | os.PathLike[str],
        config: object,
        exclude: Iterable[str] = (),
        wait: float = 60.0,
        *,
        prepare: Callable[[Path], None] | None = None,
    ) -> RunDirectory:
        """The directory `root`/<fingerprint>, made if need be, locked, with a new attempt on disk.

        Waits up to `wait` seconds for the lock. `prepare` is called with the path once the lock is held
        and before anything is read (to fetch a copy from elsewhere, or to refuse); where it raises, a
        directory that was made for it goes again. Raises BadInput for the config,
        ForeignConfig if the directory was made for another, Busy if another process has it, BadFile for a
        file system that cannot hold a run, RunError or NoSpace if it cannot be written.
        """
        values, excluded = canonical(config, exclude)
        # absolute: the script may change its directory
        run = cls(root_of(root).absolute() / digest(values), values, excluded)
        try:
            refuse_unsafe(run.path)
            new = not run.path.exists()
            make_directory(run.path)
            run._lock.acquire(wait)
            try:
                if prepare is not None:
                    try:
                        prepare(run.path)
                    except BaseException:
                        if new:
                            run._take_away()
                        raise
                run._settle()
            except BaseException:
                run._lock.release()
                raise
        except OSError as error:
            cannot_write(error, f"run directory `{run.path}`")
        return run

    def _take_away(self) -> None:
        """Remove the directory, in which there is nothing but our lock: a start that was refused is no run."""
        with contextlib.suppress(OSError):
            if os.listdir(self.path) == [self._lock.path.name]:
                self._lock.path.unlink()  # who waits for it sees that it is no longer in its place
                self.path.rmdir()

    def _settle(self) -> None:
        """Everything that is done under the lock: sweep, check the config, take the next number."""
        sweep(self.path)
        for folder in (self.checkpoints, self.provenance):
            make_directory(folder)
        sweep(self.provenance)
        self._check_config()
        self._take_number()
        facts = provenance.collect(self.attempt, self.excluded)
        before = provenance.newest(self.provenance, self.attempt)
        self.changes = provenance.changes(before, facts) if before else []
        self._save_diff(facts["code"] or {})
        text = json.dumps(facts, indent=1, ensure_ascii=False, default=str)
        write_whole(self._file(self.attempt), text.encode(errors="replace") + b"\n")
        if self.changes:
            text = "; ".join(self.changes)
            tell(f"this machine is not the one of the attempt before, bits may differ: {text}")

    def _check_config(self) -> None:
        path = self.path / "config.json"
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            text = json.dumps(self.config, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
            write_whole(path, text.encode() + b"\n")
            return
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            raise ForeignConfig(
                f"`{path}`: got a file that is no JSON, expected the config of this run",
                "it was edited or damaged: put the config back as it was",
            ) from None
        if lines := differences(found, self.config):
            raise ForeignConfig(
                f"`{path}`: got another config ({'; '.join(lines)}), expected the one of this run",
                "there → here; the file was edited, or two configs share a fingerprint: use another root",
            )

    def _take_number(self) -> None:
        """The next number; it is durable with the record of the attempt, which is written next."""
        number = max(self._newest(), _last_logged(self.log_path)) + 1
        while True:
            path = self._file(number)
            try:
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
                break
            except FileExistsError:  # a process that the lock did not keep out
                number += 1
        os.close(fd)
        self.attempt = number
        self.check_owner()  # where the lock failed, the lower of two numbers gives way at once

    def _save_diff(self, code: dict[str, Any]) -> None:
        """The diff in a file of its own, named by its digest: most attempts run the same code."""
        if diff := code.pop("diff", b""):
            path = self.provenance / f"{code['diff_sha256'][:16]}.diff"
            code["diff_file"] = path.name
            if not path.exists():
                write_whole(path, diff)

    def _file(self, number: int) -> Path:
        return self.provenance / f"attempt-{number:04d}.json"

    def _newest(self) -> int:
        found = [_ATTEMPT.fullmatch(name) for name in os.listdir(self.provenance)]
        return max((int(match[1]) for match in found if match), default=0)

    def check_owner(self) -> None:
        """Fenced if a newer attempt exists, RunError if the directory went away or was made anew."""
        if self._file(self.attempt + 1).exists():
            newest = self._newest()
            raise Fenced(
                f"run `{self.path}`: got attempt {newest}, expected {self.attempt} to be the newest",
                "another process has taken the run over; this one has written nothing since",
            )
        if not self._lock.in_place() or not self._file(self.attempt).exists():
            raise RunError(
                f"run `{self.path}`: got a directory that was deleted or replaced, expected the one in use",
                "nothing more can be saved there",
            )

    def mark_done(self, steps: int, *, elsewhere: bool = False) -> None:
        """Write down, durably, that `steps` steps are complete; Fenced or RunError as `check_owner`.

        `elsewhere`: another trainer keeps the checkpoints of this run, so none is expected here.
        """
        self.check_owner()
        facts: dict[str, Any] = {"steps": steps, "attempt": self.attempt, "time": time.time()}
        data = json.dumps({**facts, "checkpoints": ELSEWHERE} if elsewhere else facts)
        try:
            write_whole(self.path / "done.json", data.encode() + b"\n")
        except OSError as error:
            cannot_write(error, f"`{self.path / 'done.json'}`")

    def done(self) -> int | None:
        """The number of steps after which the run was marked done; None if it was not."""
        return read_done(self.path)

    def close(self) -> None:
        """Give the run back; a second call does nothing."""
        self._lock.release()

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_done(path: Path) -> int | None:
    """What the done marker of a run directory says; None if there is none that can be read."""
    try:
        found = json.loads((path / "done.json").read_bytes())["steps"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _last_logged(path: Path) -> int:
    """The attempt of the last whole line of a log: a log that was fetched comes without its attempts."""
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - 65536, 0))
            lines = file.read().split(b"\n")
    except OSError:
        return 0
    for line in reversed(lines):
        try:
            found = json.loads(line)["attempt"]
        except (ValueError, KeyError, TypeError):
            continue
        if isinstance(found, int):
            return found
    return 0


# --- files that appear whole or not at all -----------------------------------------------------------


def cannot_write(error: OSError, what: str) -> NoReturn:
    """Turn what the operating system says into one line: NoSpace if the disk is full, else RunError."""
    reason = error.strerror or str(error)
    if error.errno in FULL:
        raise NoSpace(f"{what}: got {reason!r}, expected room to write", "free space, then start again")
    raise RunError(f"{what}: got {reason!r}, expected to write there") from error


def fsync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:  # a system that keeps names in order by itself
            raise
    finally:
        os.close(fd)


def make_directory(path: Path) -> None:
    """Make a directory and those above it, each durable in the one above."""
    if path.is_dir():
        fsync_directory(path.parent)  # whoever made it may have been killed before this
        return
    if path.exists():
        raise BadFile(f"`{path}`: got a file, expected a directory or nothing")
    if not path.parent.is_dir():
        make_directory(path.parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
    fsync_directory(path.parent)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of it, however little the system takes at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that is there whole or not at all, whenever the machine goes away; durable on return."""
    aside = path.with_name(f".{path.name}.unfinished")
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        write_all(fd, data)
        os.fsync(fd)  # before the rename, or the name may stand there before the bytes do
    finally:
        os.close(fd)
    os.replace(aside, path)
    fsync_directory(path.parent)


def sweep(path: Path) -> None:
    """Remove what an attempt was writing aside when it was killed: it was never part of the run."""
    for name in os.listdir(path):
        if _UNFINISHED.fullmatch(name):
            os.unlink(path / name)
