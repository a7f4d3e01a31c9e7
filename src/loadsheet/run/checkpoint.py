"""Checkpoints on disk: complete or absent, and checked before they are believed.

The commit protocol, and why it is what it is:

1. everything is written into a hidden directory, so that a half-written checkpoint never bears the name
   of a finished one;
2. each file is fsynced: a rename may reach the disk before the data it refers to;
3. the manifest comes last, with size and checksum of each file and one of its own: nothing loads that is
   torn, cut or has a flipped bit;
4. the hidden directory is fsynced: the names in it must be there when its own name appears;
5. one rename gives it its name; it is atomic, so there is no moment in between;
6. the parent is fsynced: only now is the checkpoint there to stay, and only now does `write` return.

An older checkpoint is removed after the newer one was read back and found good. It is renamed first, so
that what is half removed no longer bears the name either. How they are read back stands in `stored`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import xxhash

from loadsheet.errors import BadInput, shorten
from loadsheet.run.errors import BadCheckpoint
from loadsheet.run.files import Files
from loadsheet.run.manifest import DOCUMENT, FORMAT, MANIFEST, TENSORS, FileEntry, Manifest, pack, unpack
from loadsheet.run.retention import BestOf, kept
from loadsheet.run.room import Room
from loadsheet.run.state import Snapshot
from loadsheet.run.stored import StoredCheckpoints, damaged, directory_name
from loadsheet.run.tell import tell

__all__ = ["CheckpointStore", "directory_name"]

_SAVING, _OLD, _REPLACED = ".saving-", ".old-", ".replaced-"
_HASH_CHUNK = 16 * 1024 * 1024


class CheckpointStore(StoredCheckpoints):
    """The checkpoints of one run, for the process that has it: written, removed.

    `keep_last` are kept, besides them those whose step is a multiple of `every_mth`, and those that `best`
    says. Raises BadInput for `keep_last` below 1.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        keep_last: int = 2,
        every_mth: int | None = None,
        best: BestOf | None = None,
        files: Files | None = None,
    ) -> None:
        for name, value in (("keep_last", keep_last), ("every_mth", 1 if every_mth is None else every_mth)):
            if type(value) is not int or value < 1:
                raise BadInput(f"{name}: got {shorten(value)}, expected a whole number from 1 on")
        super().__init__(path, files=files)
        self.keep_last = keep_last
        self.every_mth = every_mth
        self._best = best
        # of those kept, the ones that every m-th does not give room for
        self._room = Room(self._files, self._root, keep_last + (best.best.count if best else 0))
        self._rooted = False
        self._bad: set[int] = set()  # once best, and found damaged
        self._said = False  # that there is no best

    # --- writing ------------------------------------------------------------------------------------

    def write(
        self,
        snapshot: Snapshot,
        *,
        log_offset: int | Callable[[], int] = 0,
        fence: Callable[[], None] | None = None,
        attempt: int = 0,
    ) -> Path:
        """Make a snapshot a checkpoint; durable when this returns.

        `log_offset` is called, if it can be, when the data are written, and should make the log durable.
        `fence` is called at the beginning and before the commit, and raises if another process has taken
        over. Raises SaveFailed if the disk says no, NoSpace if it is full; what was there before is
        untouched. A checkpoint of that step that is the same already is left as it is.
        """
        step = snapshot.step

        def content(folder: str) -> bytes:
            data = self._put(folder, TENSORS, snapshot.chunks())
            document = self._put(folder, DOCUMENT, [memoryview(snapshot.document)])
            digest = xxhash.xxh3_128_hexdigest((document.xxh3_128 + data.xxh3_128).encode())
            manifest = Manifest(
                format=FORMAT,
                step=step,
                attempt=attempt,
                log_offset=log_offset() if callable(log_offset) else log_offset,
                time=time.time(),
                digest=digest,
                files={DOCUMENT: document, TENSORS: data},
                torch=str(torch.__version__),
            )
            return pack(manifest)

        return self._commit(step, content, fence, snapshot.nbytes + len(snapshot.document))

    def adopt(
        self,
        manifest: bytes,
        chunks: Callable[[str], Iterable[memoryview]],
        fence: Callable[[], None] | None = None,
    ) -> Path:
        """Make a checkpoint of one from elsewhere: its manifest, and the bytes of each of its files.

        Raises BadCheckpoint, and commits nothing, if they are not what the manifest says.
        """
        facts = unpack(manifest, "mirror")

        def content(folder: str) -> bytes:
            for name, expected in facts.files.items():
                got = self._put(folder, name, chunks(name))
                if got != expected:
                    raise damaged(f"{directory_name(facts.step)}/{name}", got, expected)
            return manifest

        return self._commit(facts.step, content, fence, sum(entry.bytes for entry in facts.files.values()))

    def _commit(
        self, step: int, content: Callable[[str], bytes], fence: Callable[[], None] | None, nbytes: int
    ) -> Path:
        if type(step) is not int or step < 0:
            raise BadInput(f"step: got {shorten(step)}, expected a whole number from 0 on")
        name = directory_name(step)
        final = self._at(name)
        # a process that was fenced off may still be writing: never into the same directory
        hidden = self._at(f"{_SAVING}{name}-{os.urandom(4).hex()}")
        files = self._files
        try:
            if fence is not None:
                fence()
            self._make_root()
            files.make_directory(hidden)
            manifest = content(hidden)
            self._put(hidden, MANIFEST, [memoryview(manifest)])
            files.sync_directory(hidden)
            if fence is not None:
                fence()
            if name in files.names(self._root) and not self._replace(step, manifest):
                self._drop(hidden)
                return self.path / name
            self._good.discard(step)
            files.rename(hidden, final)
            files.sync_directory(self._root)
            for old in [old for old in files.names(self._root) if old.startswith(f"{_REPLACED}{name}-")]:
                self._drop(self._at(old))
        except OSError as error:
            self._drop(hidden)
            raise self._room.failure(name, error, nbytes, self._stored()) from error
        except BaseException:
            self._drop(hidden)
            raise
        return self.path / name

    def _make_root(self) -> None:
        """The directory of all checkpoints, its name durable."""
        if self._rooted:
            return
        with contextlib.suppress(FileExistsError):
            self._files.make_directory(self._root)
        self._files.sync_directory(os.path.dirname(self._root) or ".")
        self._rooted = True

    def _replace(self, step: int, manifest: bytes) -> bool:
        """Clear the name for a new checkpoint of the same step; False if the one that has it is the same."""
        with contextlib.suppress(BadCheckpoint):
            if self.verify(step).digest == unpack(manifest, "new").digest:
                return False
        name = directory_name(step)
        self._files.rename(self._at(name), self._at(f"{_REPLACED}{name}-{os.urandom(4).hex()}"))
        return True

    def _put(self, folder: str, name: str, chunks: Iterable[memoryview]) -> FileEntry:
        """Write one file, fsynced; the checksum is computed beside the writing, on another core."""
        hasher = xxhash.xxh3_128()
        nbytes = 0
        file = self._files.create(os.path.join(folder, name))
        with ThreadPoolExecutor(1, "checksum") as pool:
            try:
                for part in _parts(chunks):
                    nbytes += len(part)
                    if len(part) < _HASH_CHUNK // 16:
                        hasher.update(part)
                        file.write(part)
                    else:
                        hashed = pool.submit(hasher.update, part)
                        file.write(part)
                        hashed.result()
                file.sync()
            finally:
                file.close()
        return FileEntry(nbytes, hasher.hexdigest())

    def _drop(self, hidden: str) -> None:
        """Remove what was begun; if even that fails, the next attempt sweeps."""
        with contextlib.suppress(OSError):
            self._files.remove(hidden)

    # --- space --------------------------------------------------------------------------------------

    def needed_bytes(self, nbytes: int) -> int:
        """Bytes that checkpoints of this size take at most: those kept, and the one being written."""
        return self._room.needed(nbytes)

    def check_space(self, nbytes: int) -> None:
        """Is there room for checkpoints of this size? Raises NoSpace if not; to be asked before step 1."""
        self._room.check(nbytes, self._stored())

    def _stored(self) -> int:
        """Bytes of those that are there, and whose room those to come will have."""
        stored = 0
        steps = self.steps()
        regular = set(steps[: -self.keep_last]) & kept(steps, self.keep_last, self.every_mth)
        for step in [step for step in steps if step not in regular][-self._room.most :]:
            for name in (DOCUMENT, TENSORS):
                with contextlib.suppress(OSError):
                    stored += self._files.size(self._at(directory_name(step), name))
        return stored

    # --- removing -----------------------------------------------------------------------------------

    def prune(self) -> list[int]:
        """Remove what need not be kept; returns the steps.

        Nothing is removed before the newest was read back and found whole; if it is not, it is reported
        and everything else stays.
        """
        steps = self.steps()
        spare = [step for step in steps if step not in kept(steps, self.keep_last, self.every_mth)]
        if not spare:
            return []
        try:
            for step in steps[-self.keep_last :]:
                self._found_good(step)
            best = self._best_of(steps)
        except BadCheckpoint as error:
            tell(f"{error}; no older checkpoint is removed")
            return []
        spare = [step for step in spare if step not in best]
        return self.remove(spare)

    def remove(self, steps: Iterable[int]) -> list[int]:
        """Remove checkpoints, whichever they are; returns the steps that are gone.

        Renamed first, and that made durable, so that what is half removed does not bear the name. Whether
        the others are whole is for the caller to find out before. One that cannot be renamed stays, with
        a RunWarning.
        """
        renamed = []
        for step in steps:
            name = directory_name(step)
            old = self._at(f"{_OLD}{name}-{os.urandom(4).hex()}")
            try:
                self._files.rename(self._at(name), old)
            except OSError as error:
                tell(f"{name}: cannot be removed: {error.strerror}")
                continue
            renamed.append((step, old))
        with contextlib.suppress(OSError):
            # Else the files may be gone from the disk while the name still stands there.
            self._files.sync_directory(self._root)
            for _, old in renamed:
                self._drop(old)
        return [step for step, _ in renamed]

    def _found_good(self, step: int) -> None:
        if step not in self._good:
            self.verify(step)
            self._good.add(step)

    def _best_of(self, steps: list[int]) -> list[int]:
        """The best of these, each found whole; one that is damaged is reported, and the next one takes its place."""
        if self._best is None:
            return []
        end = self.manifest(steps[-1]).log_offset
        while True:
            best = self._best.of(steps, end, without=self._bad)
            try:
                for step in best:
                    self._found_good(step)
            except BadCheckpoint as error:
                self._bad.add(step)
                tell(f"{error}; it was one of the best")
                continue
            if not self._best.found and not self._said:
                self._said = True
                tell(
                    f"keep_best: got no {shorten(self._best.best.metric)} logged in {steps[-1]} steps, expected "
                    "values of that name; until there is one, the other rules alone decide what is removed"
                )
            return best

    def sweep(self) -> list[str]:
        """Remove what unfinished saves and removals left behind, and say so; only for the run's owner.

        A checkpoint that was about to be replaced gets its name back if the new one did not come.
        """
        swept = []
        names = self._files.names(self._root)
        if names:
            # A process that was killed may have renamed, and not lived to make it durable. What we see must
            # be what is there before the first file goes.
            self._files.sync_directory(self._root)
        for name in names:
            path = self._at(name)
            if name.startswith(_REPLACED):
                final = name.removeprefix(_REPLACED).rpartition("-")[0]
                if final not in names:
                    self._files.rename(path, self._at(final))
                    names.append(final)
                    continue
            elif not name.startswith((_SAVING, _OLD)):
                continue
            try:
                self._files.remove(path)
            except OSError as error:
                tell(f"{name}: cannot be removed: {error.strerror}")
                continue
            if name.startswith(_SAVING):
                swept.append(name)
        if swept:
            tell(
                f"{len(swept)} unfinished save(s) removed from {self._root}: {shorten(', '.join(swept), 120)}"
            )
        return swept


def _parts(chunks: Iterable[memoryview]) -> Iterator[memoryview]:
    for chunk in chunks:
        for begin in range(0, len(chunk), _HASH_CHUNK):
            yield chunk[begin : begin + _HASH_CHUNK]
