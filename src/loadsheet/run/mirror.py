"""A copy of a run elsewhere, from which a machine with an empty disk goes on.

Object storage has no rename, so completeness is a matter of order: the data of a checkpoint go up under a
name that contains their digest, its manifest last. A checkpoint is there when its manifest is. When one is
removed the manifest goes first. The log goes up in segments, each named by its attempt and by the byte it
begins at: where a later attempt begins, what an earlier one (a machine that was given up, and lives on)
has added behind that point does not count.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loadsheet.errors import LoadsheetError, one_line
from loadsheet.run.background import Background
from loadsheet.run.checkpoint import CheckpointStore, directory_name
from loadsheet.run.errors import BadCheckpoint
from loadsheet.run.manifest import MANIFEST, Manifest, unpack
from loadsheet.run.objects import MirrorFailed, Objects, place
from loadsheet.run.retention import Best, BestOf, kept
from loadsheet.run.tell import tell

__all__ = ["Mirror", "MirrorFailed"]

_SEGMENT = re.compile(r"log/(\d{4,})-(\d{20})\.jsonl")
_CHECKPOINT = re.compile(r"checkpoints/step-(\d{8,})/manifest\.json")
_DATA = re.compile(r"checkpoints/step-(\d+)/([0-9a-f]{32})/")
_SMALL = re.compile(r"(config\.json|sheet\.json|measured\.json|provenance/[\w.-]+)")
_LARGEST_SMALL = 1 << 26


class Mirror:
    """The copy of the run at `run_path` below `url` (`s3://…`, `gs://…`, `az://…`, or a path).

    It bears the name of the run directory. Pushing happens in a thread; if it fails that is a RunWarning,
    and the next push tries again. Raises BadInput for a URL that names no place.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        run_path: str | os.PathLike[str],
        *,
        keep_last: int = 2,
        every_mth: int | None = None,
        best: Best | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = Path(run_path)
        self.attempt = 0
        self._objects: Objects = place(url, options)
        self._name = self.path.name
        self._keep_last, self._every_mth = keep_last, every_mth
        self._store = CheckpointStore(self.path / "checkpoints", keep_last=keep_last, every_mth=every_mth)
        # what is best of those here, and of those there: a push may leave some out
        self._best_here = None if best is None else BestOf(self.path, best)
        self._best_there = None if best is None else BestOf(self.path, best)
        self._wanted: int | None = None
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._failed: BaseException | None = None
        self._in_vain = False  # the last push failed
        self._log_sent: int | None = None
        self._small_sent: dict[str, tuple[int, int]] = {}
        self.pushed: list[int] = []

    @property
    def where(self) -> str:
        """Where the copy is, without keys."""
        return f"{self._objects.where}/{self._name}"

    # --- there --------------------------------------------------------------------------------------

    def claim(self, attempt: int) -> None:
        """Say that this machine has the run now, before the first push: can it be written, is it ours?

        Raises MirrorFailed if not, or if another machine runs the same attempt of the same run.
        """
        self.attempt = attempt
        name = f"provenance/attempt-{attempt:04d}.json"
        content = self._read_small(self.path / name) or b"{}\n"
        try:
            self._objects.put(self._at(name), content, new=True)
        except FileExistsError:
            if self._objects.get(self._at(name)) != content:
                raise MirrorFailed(
                    f"mirror {self.where}: got attempt {attempt} of another machine, expected to be the only one",
                    "another machine has pulled this run and goes on with it; stop one of the two",
                ) from None
        self._sweep()
        self._begin_log()
        self._send_small()

    def _sweep(self) -> None:
        """Remove what an earlier life was sending when it was killed: data that no manifest speaks of."""
        self._objects.sweep(self._at("checkpoints/"))
        complete: dict[int, str] = {}
        for step in self.steps():
            with contextlib.suppress(BadCheckpoint, FileNotFoundError):
                raw = self._objects.get(self._at(f"checkpoints/{directory_name(step)}/{MANIFEST}"))
                complete[step] = unpack(raw, self.where).digest
        known = set(self.steps())
        for name in self._objects.list(self._at("checkpoints/")):
            match = _DATA.match(name.removeprefix(f"{self._name}/"))
            if match is None or (int(match[1]) in known and complete.get(int(match[1])) in (None, match[2])):
                continue  # what a manifest speaks of stays, and so does all of a step whose manifest is unreadable
            self._objects.delete([name])

    def push(self, step: int) -> None:
        """Copy the checkpoint of a step, and the log up to now; returns at once, `wait` waits.

        If pushes are slower than saves, those in between are left out. May be called in the saver's thread:
        what went wrong before is said by `check` and `wait`.
        """
        with self._wake:
            self._wanted = step
            if self._thread is None or not self._thread.is_alive():
                self._thread = Background(target=self._run, name="loadsheet-mirror")
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._wake:
                step, self._wanted = self._wanted, None
                if step is None:
                    self._thread = None
                    return
            try:
                self.push_now(step)
                self._in_vain = False
            except BaseException as error:
                self._failed, self._in_vain = error, True

    def wait(self) -> None:
        """Until nothing is left to push; warns if something went wrong."""
        thread = self._thread
        if thread is not None:
            thread.join()
        self.check()

    def check(self) -> None:
        """Warn of what went wrong in the background, once."""
        error, self._failed = self._failed, None
        if error is None:
            return
        if not isinstance(error, LoadsheetError):
            raise error
        hint = f" ({error.hint})" if error.hint else ""
        tell(f"{error}{hint}; the run goes on, the next push tries again")

    def send_rest(self) -> None:
        """Copy what the log and the small files have gained since the last push, now; warns if that fails.

        Not after a push that failed: to try a place that does not answer once more keeps the machine for nothing.
        """
        self.wait()
        if self._in_vain:
            return
        try:
            self._send_small()
            self._send_log(0)
        except MirrorFailed as error:
            self._failed = error
            self.check()

    def push_now(self, step: int) -> None:
        """Copy the checkpoint of a step, and the best ones. Raises MirrorFailed, BadCheckpoint if one is damaged."""
        manifest = self._push_one(step)
        if manifest is None:
            return
        if self._best_here is not None:
            steps = [one for one in self._store.steps() if one <= step]
            best = self._best_here.of(steps, manifest.log_offset)
            there = set(self.steps()) if best else set()
            for each in best:
                if each not in there:
                    self._push_one(each)
        self._prune(manifest.log_offset)

    def _push_one(self, step: int) -> Manifest | None:
        """Copy one checkpoint, manifest last; None if it has been removed meanwhile."""
        folder = directory_name(step)
        try:
            manifest = self._store.manifest(step)
            self._send_small()
            self._send_log(manifest.log_offset)
            for name in manifest.files:
                self._objects.put(self._data(manifest, name), self._store.path / folder / name)
            raw = (self._store.path / folder / MANIFEST).read_bytes()
        except FileNotFoundError:
            return None  # so a newer one is there, and will be pushed
        except BadCheckpoint:
            if step not in self._store.steps():
                return None
            raise
        self._objects.put(self._at(f"checkpoints/{folder}/{MANIFEST}"), raw)
        self.pushed.append(step)
        return manifest

    def _data(self, manifest: Manifest, name: str) -> str:
        return self._at(f"checkpoints/{directory_name(manifest.step)}/{manifest.digest}/{name}")

    def _at(self, name: str) -> str:
        return f"{self._name}/{name}"

    def _send_small(self) -> None:
        """Config, provenance, sheet: small files that are written whole."""
        names = ["config.json", "sheet.json", "measured.json"]
        with contextlib.suppress(OSError):
            names += [f"provenance/{name}" for name in os.listdir(self.path / "provenance")]
        for name in names:
            if not _SMALL.fullmatch(name):
                continue
            with contextlib.suppress(OSError):
                facts = os.stat(self.path / name)
                version = (facts.st_mtime_ns, facts.st_size)
                content = self._read_small(self.path / name)
                if self._small_sent.get(name) != version and content:
                    self._objects.put(self._at(name), content)
                    self._small_sent[name] = version

    @staticmethod
    def _read_small(path: Path) -> bytes | None:
        try:
            return path.read_bytes() if path.stat().st_size <= _LARGEST_SMALL else None
        except OSError:
            return None

    def _begin_log(self) -> int:
        """The byte from which this attempt sends the log: what is there, if it is here as well.

        Fixed when the run is claimed; what a machine that was given up adds later is not counted.
        """
        if self._log_sent is None:
            here = 0
            with contextlib.suppress(OSError):
                here = os.path.getsize(self.path / "log.jsonl")
            self._log_sent = min(self._log_length(), here)
        return self._log_sent

    def _send_log(self, least: int) -> None:
        """What the log has gained since the last segment, up to the last whole line, at least `least` bytes."""
        sent = self._begin_log()
        try:
            with open(self.path / "log.jsonl", "rb") as file:
                file.seek(sent)
                added = file.read()
        except FileNotFoundError:
            return
        end = max(added.rfind(b"\n") + 1, least - sent)
        if end > 0:
            self._objects.put(self._at(f"log/{self.attempt:04d}-{sent:020d}.jsonl"), added[:end])
            self._log_sent = sent + end

    def _segments(self) -> list[tuple[int, int, str]]:
        """The segments that make up the log: begin, length, name."""
        found = []
        for name, size in self._objects.list(self._at("log/")).items():
            if match := _SEGMENT.fullmatch(name.removeprefix(f"{self._name}/")):
                found.append((int(match[1]), int(match[2]), size, name))
        chain: list[tuple[int, int, str]] = []
        end, newest = 0, -1
        for attempt, begin, size, name in sorted(found):
            if attempt != newest:  # what older attempts have behind its beginning does not count
                while chain and chain[-1][0] >= begin:
                    chain.pop()
                if chain:
                    start, length, previous = chain[-1]
                    chain[-1] = (start, min(length, begin - start), previous)
                end, newest = (chain[-1][0] + chain[-1][1]) if chain else 0, attempt
            if begin != end:
                continue  # a piece before it is missing: it cannot be used
            chain.append((begin, size, name))
            end = begin + size
        return chain

    def _log_length(self) -> int:
        chain = self._segments()
        return chain[-1][0] + chain[-1][1] if chain else 0

    def steps(self) -> list[int]:
        """The steps that are complete there: those with a manifest."""
        names = self._objects.list(self._at("checkpoints/"))
        found = (_CHECKPOINT.fullmatch(name.removeprefix(f"{self._name}/")) for name in names)
        return sorted(int(match[1]) for match in found if match)

    def _prune(self, log_offset: int) -> None:
        """Remove what need not be kept, manifests first, and data that no manifest refers to any more.

        `log_offset` is that of the newest one.
        """
        names = self._objects.list(self._at("checkpoints/"))
        steps = self.steps()
        spare = set(steps) - kept(steps, self._keep_last, self._every_mth)
        if spare and self._best_there is not None:
            spare.difference_update(self._best_there.of(steps, log_offset))
        newest = steps[-1] if steps else -1
        for step in sorted(spare):
            self._objects.delete([self._at(f"checkpoints/{directory_name(step)}/{MANIFEST}")])
        for name in names:
            match = _DATA.match(name.removeprefix(f"{self._name}/"))
            # data without manifest below the newest: a push that was killed, or removed just now
            if match and int(match[1]) < newest and int(match[1]) not in set(steps) - spare:
                self._objects.delete([name])

    # --- and back -----------------------------------------------------------------------------------

    def pull(self, path: Path | None = None) -> int | None:
        """Bring the newest complete checkpoint here, with config, provenance and log; its step, or None.

        Nothing that is here is overwritten, and nothing is brought if what is here is as new. Checkpoints
        that are incomplete or damaged there are reported, and the next older one is taken. Raises
        MirrorFailed. To be called before an attempt is numbered; `path` is only there to be a hook.
        """
        here = self._store.steps()
        there = self.steps()
        if not there or (here and here[-1] >= there[-1]):
            return None
        self._bring_small()
        self._bring_log()
        for step in reversed(there):
            if here and here[-1] >= step:
                return None
            try:
                self._bring_checkpoint(step)
            except (BadCheckpoint, FileNotFoundError) as error:
                self._not_usable(step, error, "an older one is used")
                continue
            return step
        return None

    def bring_best(self) -> None:
        """Bring the best checkpoints here if they are only there; one that is not usable is reported.

        To be called when the run goes on: `pull` brings only what it goes on from.
        """
        here = self._store.steps()
        if self._best_here is None or not here:
            return
        there = set(self.steps())
        best = BestOf(self.path, self._best_here.best)
        steps = sorted(step for step in there.union(here) if step <= here[-1])
        for step in best.of(steps, self._store.manifest(here[-1]).log_offset):
            if step not in here:
                try:
                    self._bring_checkpoint(step)
                except (BadCheckpoint, FileNotFoundError) as error:
                    self._not_usable(step, error, "it was one of the best")

    def _not_usable(self, step: int, error: Exception, fate: str) -> None:
        tell(f"mirror {self.where}: checkpoint {step} is not usable ({one_line(str(error))}), {fate}")

    def _bring_checkpoint(self, step: int) -> None:
        raw = self._objects.get(self._at(f"checkpoints/{directory_name(step)}/{MANIFEST}"))
        manifest = unpack(raw, f"mirror {self.where}, {directory_name(step)}")
        if manifest.step != step:
            raise BadCheckpoint(
                f"{directory_name(step)}: got a manifest of step {manifest.step}, expected {step}"
            )

        def chunks(name: str) -> Iterator[memoryview]:
            try:
                yield from self._objects.stream(self._data(manifest, name))
            except FileNotFoundError:
                raise BadCheckpoint(
                    f"{directory_name(step)}/{name}: got no such object, expected one"
                ) from None

        self._store.adopt(raw, chunks)

    def _bring_small(self) -> None:
        for name, size in self._objects.list(self._name + "/").items():
            inner = name.removeprefix(f"{self._name}/")
            if _SMALL.fullmatch(inner) and size <= _LARGEST_SMALL and not (self.path / inner).exists():
                self._write(self.path / inner, [memoryview(self._objects.get(name))])

    def _bring_log(self) -> None:
        chain = self._segments()
        path = self.path / "log.jsonl"
        length = chain[-1][0] + chain[-1][1] if chain else 0
        if not length:
            return

        def chunks() -> Iterator[memoryview]:
            for _, size, name in chain:
                left = size
                for chunk in self._objects.stream(name):
                    yield chunk[:left]
                    left -= min(left, len(chunk))

        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size >= length:
                    return
                for chunk in chunks():  # only a log that goes on as ours does may take its place
                    mine = file.read(len(chunk))
                    if mine != bytes(chunk[: len(mine)]):
                        tell(f"mirror {self.where}: its log is another than `{path}`")
                        return
        except FileNotFoundError:
            pass
        self._write(path, chunks())

    def _write(self, path: Path, chunks: Any) -> None:
        """A file, whole and durable, or not at all."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            aside = path.with_name(f".{path.name}.unfinished")  # RunDirectory sweeps it
            with aside.open("wb") as file:
                for chunk in chunks:
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
            folder = os.open(path.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
        except OSError as error:
            raise MirrorFailed(
                f"mirror {self.where}: got `{error.strerror}`, expected to write {path}"
            ) from None
