"""Checkpoints as they are found on the disk: listed, checked, and only then believed.

For whoever reads: no lock is needed, and nothing is changed but the name of what is damaged, if asked for.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import xxhash

from loadsheet.errors import shorten
from loadsheet.run.errors import BadCheckpoint, NoCheckpoint
from loadsheet.run.files import Disk, Files
from loadsheet.run.manifest import DOCUMENT, MANIFEST, TENSORS, FileEntry, Manifest, unpack
from loadsheet.run.state import State
from loadsheet.run.tell import tell

_NAME = re.compile(r"step-(\d{8,})")
_TORN = "torn-"
_LARGEST_DOCUMENT = 1 << 30
_CUT = "cut off: the disk was full, or it was copied while being written"
_BAD_DISK = "the disk cannot read it back"


def directory_name(step: int) -> str:
    """The name of the checkpoint of a step."""
    return f"step-{step:08d}"


class StoredCheckpoints:
    """The checkpoints of one run, in one directory."""

    def __init__(self, path: str | os.PathLike[str], *, files: Files | None = None) -> None:
        self.path = Path(path)
        self._files: Files = Disk() if files is None else files
        self._root = os.fspath(path)
        self._good: set[int] = set()  # read back and found whole by this process

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, in order."""
        found = []
        for name in self._files.names(self._root):
            match = _NAME.fullmatch(name)
            if match and directory_name(int(match[1])) == name:
                found.append(int(match[1]))
        return sorted(found)

    def torn(self) -> list[str]:
        """The names of damaged ones that were set aside."""
        return sorted(name for name in self._files.names(self._root) if name.startswith(_TORN))

    def _file(self, manifest: Manifest, name: str) -> str:
        """Where a file of a checkpoint is."""
        return self._at(directory_name(manifest.step), name)

    def manifest(self, step: int) -> Manifest:
        """The manifest of a checkpoint; its files are not looked at. Raises BadCheckpoint."""
        where = f"{directory_name(step)}/{MANIFEST}"
        path = self._at(directory_name(step), MANIFEST)
        try:
            if self._files.size(path) > 1 << 24:
                raise BadCheckpoint(f"{where}: got {self._files.size(path):,} bytes, expected a manifest")
            manifest = unpack(b"".join(bytes(part) for part in self._files.chunks(path)), where)
        except OSError as error:
            message = f"{where}: got `{error.strerror}`, expected a manifest"
            raise BadCheckpoint(message, "a checkpoint without one is not whole") from None
        if manifest.step != step:
            raise BadCheckpoint(f"{where}: got a manifest of step {manifest.step}, expected step {step}")
        return manifest

    def verify(self, step: int) -> Manifest:
        """Read every byte of a checkpoint and compare the checksums. Raises BadCheckpoint."""
        manifest = self.manifest(step)
        for name, expected in manifest.files.items():
            where = f"{directory_name(step)}/{name}"
            path = self._file(manifest, name)
            try:
                size = self._files.size(path)
                if size != expected.bytes:
                    raise BadCheckpoint(f"{where}: got {size:,} bytes, expected {expected.bytes:,}", _CUT)
                hasher = xxhash.xxh3_128()
                for part in self._files.chunks(path):
                    hasher.update(part)
            except OSError as error:
                raise BadCheckpoint(
                    f"{where}: got `{error.strerror}`, expected to read it", _BAD_DISK
                ) from None
            if hasher.hexdigest() != expected.xxh3_128:
                raise damaged(where, FileEntry(size, hasher.hexdigest()), expected)
        return manifest

    def load(self, step: int | None = None, *, set_aside: bool = True) -> State:
        """The state of a step, or the newest one that is whole.

        Damaged ones that are newer are reported, and with `set_aside` renamed, so that they are neither
        counted nor in the way. Raises BadCheckpoint if the step asked for is damaged, NoCheckpoint if
        there is none, or none that is whole (then nothing is renamed: to begin anew is not for us to say).
        """
        if step is not None:
            if step not in self.steps():
                raise NoCheckpoint(
                    f"checkpoint: got step {shorten(step)}, expected one of {shorten(self.steps())}",
                    f"in {self._root}",
                )
            return self._read(step)
        damaged: list[tuple[int, BadCheckpoint]] = []
        for number in reversed(self.steps()):
            try:
                state = self._read(number)
            except BadCheckpoint as error:
                damaged.append((number, error))
                continue
            for torn, reason in damaged:
                self._report(torn, reason, set_aside)
            return state
        if damaged:
            raise NoCheckpoint(
                f"checkpoints in {self._root}: got {len(damaged)}, all of them damaged, expected one that is whole",
                f"the newest: {damaged[0][1]}; to begin at step 0 remove the directory",
            )
        raise NoCheckpoint(f"checkpoints in {self._root}: got none, expected one")

    def _read(self, step: int) -> State:
        manifest = self.verify(step)
        folder = directory_name(step)
        try:
            if manifest.files[DOCUMENT].bytes > _LARGEST_DOCUMENT:
                raise BadCheckpoint(
                    f"{folder}/{DOCUMENT}: got more than {_LARGEST_DOCUMENT:,} bytes, expected less"
                )
            document = b"".join(bytes(part) for part in self._files.chunks(self._file(manifest, DOCUMENT)))
            data = self._files.read(self._file(manifest, TENSORS))
        except OSError as error:
            raise BadCheckpoint(f"{folder}: got `{error.strerror}`, expected to read it", _BAD_DISK) from None
        state = State(document, data)
        if state.step != step:
            raise BadCheckpoint(
                f"{folder}/{DOCUMENT}: got the state of step {state.step}, expected step {step}"
            )
        self._good.add(step)
        return state

    def _report(self, step: int, error: BadCheckpoint, set_aside: bool) -> None:
        fate = "left where it is"
        if set_aside:
            try:
                fate = f"set aside as {os.path.basename(self._set_aside(step))}"
            except OSError as failed:
                fate = f"cannot be set aside: {failed.strerror}"
        hint = f" ({error.hint})" if error.hint else ""
        tell(f"{error}{hint}; {fate}, an older checkpoint is used")

    def _set_aside(self, step: int) -> str:
        """Give a damaged checkpoint another name. Not made durable: if lost, it is only found once more."""
        name = directory_name(step)
        taken = set(self._files.names(self._root))
        number = next(n for n in range(1, len(taken) + 2) if f"{_TORN}{name}-{n}" not in taken)
        new = self._at(f"{_TORN}{name}-{number}")
        self._files.rename(self._at(name), new)
        return new

    def _at(self, *names: str) -> str:
        return os.path.join(self._root, *names)


class MirroredCheckpoints(StoredCheckpoints):
    """Those in the mirror of a run that is a directory: data under their digest, and there once the manifest is."""

    def steps(self) -> list[int]:
        """The steps that are complete."""
        return [
            step for step in super().steps() if MANIFEST in self._files.names(self._at(directory_name(step)))
        ]

    def _file(self, manifest: Manifest, name: str) -> str:
        return self._at(directory_name(manifest.step), manifest.digest, name)


def damaged(where: str, got: FileEntry, expected: FileEntry) -> BadCheckpoint:
    """The error for a file with other bytes than were written."""
    return BadCheckpoint(
        f"{where}: got checksum {got.xxh3_128} of {got.bytes:,} bytes, expected {expected.xxh3_128} of "
        f"{expected.bytes:,}",
        "bits have changed on the way to the disk or on it",
    )
