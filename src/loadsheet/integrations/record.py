"""The record of a training that somebody else's loop carries out: config, log, provenance, what was measured.

A trainer (transformers, Lightning, one of your own on Accelerate) has its own loop and its own checkpoints.
Here is what the run directory can hold of it: everything but checkpoints. It is the same directory, log and
`measured.json` that `ls.Run` writes, so that `read_log`, `loadsheet runs` and `close` read them alike.

A record counts completed steps. What is logged after a step belongs to it, with its index from 0 on, as
everywhere else; what is logged after the end belongs to the step that would come next.

To write down what happens must not cost what happens: once training goes on, what cannot be written is a
RunWarning, said once, and nothing more is recorded.
"""

from __future__ import annotations

import atexit
import contextlib
import enum
import os
import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from loadsheet.errors import BadInput, LoadsheetError
from loadsheet.run.directory import RunDirectory, cannot_write, root_of
from loadsheet.run.errors import RunWarning
from loadsheet.run.log import RESERVED, Log
from loadsheet.run.measured import Clock, attempt_entry, parameters_of, write_measured
from loadsheet.run.saver import SaveTimes
from loadsheet.run.sheetfile import Given, Source, adopt, fits, given

#: what is no result but a speed: never the same twice, so it is not compared when steps are run again
_TIMING = re.compile(r".*(_runtime|_per_second|_per_sec|_seconds|_time|_per_token|_mem_\w+)")


class _Loader:
    """What the clock asks of a loader: how long it was waited for."""

    wait_seconds = 0.0


#: the records of this process that can still be written to, by their directory: after the training an
#: evaluation may follow, and who begins the same run again (a cell of a notebook) must not wait for himself
_OPEN: dict[str, Record] = {}


class Record:
    """One attempt of a run whose loop and checkpoints are somebody else's.

    `start` steps are complete already, `total` will be; `guessed`: nobody said so, and in a directory
    without a log it is 0. `compare`: whether steps that are run again must log the same bits. Raises what
    `RunDirectory.open` raises: BadInput for the config, Busy, RunError.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        config: Mapping[str, Any],
        *,
        exclude: Iterable[str] = (),
        start: int = 0,
        guessed: bool = False,
        total: int | None = None,
        sheet: Source | None = None,
        compare: bool = False,
        modules: Mapping[str, Any] | None = None,
    ) -> None:
        self._ended: str | None = None
        self._inside = False  # a step is under way
        self._aside: float | None = None  # when an evaluation began
        self._logged = False  # a step has a record
        self._went_back = False  # was said
        self._broken = False
        self._closed = False
        self._loader = _Loader()
        self._saves: list[SaveTimes] = []
        self._parameters = parameters_of(modules or {})
        signed = given(sheet)
        self._directory = _open(root, config, exclude, signed)
        try:
            self._facts = adopt(signed, self.path)
            self._log = Log(self._directory.log_path, self._directory.attempt)
            if guessed and not self._directory.log_path.stat().st_size:
                start = 0
            self.start = self.completed = self._newest = start
            self._log.resume(start, compare=compare)
            if total is not None:
                self._log.event("steps", total=total)
            if (self._directory.done() or 0) > start:  # it is done again, from an earlier step on
                _unlink(self.path / "done.json")
        except BaseException:
            self._directory.close()
            raise
        self._clock = Clock()
        self.mark()
        _OPEN[str(self.path.resolve())] = self

    @property
    def path(self) -> Path:
        """The run directory."""
        return self._directory.path

    @property
    def over(self) -> bool:
        """Whether the training has ended, one way or the other."""
        return self._ended is not None

    @property
    def newest(self) -> int:
        """The last step that has a record; -1 if there is none."""
        return self._newest if self._logged else -1

    @property
    def attempt(self) -> int:
        """Which process life of this run this is, from 1."""
        return self._directory.attempt

    # --- time -----------------------------------------------------------------------------------------

    def mark(self) -> None:
        """From here on the time belongs to the next step."""
        self._clock.begin([self._loader])  # type: ignore[list-item]  # all that is asked for is `wait_seconds`
        self._marked = time.perf_counter()

    def begin_step(self) -> None:
        """The data are there; what has passed since the last mark was waiting for them."""
        if not self._inside:
            self._loader.wait_seconds += time.perf_counter() - self._marked
            self._inside = True

    def end_step(self, tokens: float | None = None) -> None:
        """A step is complete; `tokens` are those of this step."""
        if tokens is not None:
            self._clock.tokens.log(tokens)
        self._clock.end([self._loader])  # type: ignore[list-item]
        self._inside = False
        self.completed += 1
        self.mark()

    def leave_step(self) -> None:
        """The step under way, if one is, was completed, nobody noticed when: it counts, and is not timed."""
        if self._inside:
            self._inside = False
            self.completed += 1

    def begin_aside(self) -> None:
        """An evaluation begins here, and not where the last step ended."""
        self._aside = time.perf_counter()

    def end_aside(self) -> None:
        """What has passed since `begin_aside`, else since the last step, was an evaluation."""
        began, self._aside = self._marked if self._aside is None else self._aside, None
        self._clock.aside(time.perf_counter() - began)
        if not self._inside:
            self.mark()

    def end_save(self, nbytes: int = 0, began: float | None = None, *, stepped: bool = False) -> None:
        """A checkpoint of theirs was written since the last mark (or since `began`): training waited for it.

        `stepped`: the step under way has been made, and is in it.
        """
        seconds = time.perf_counter() - (self._marked if began is None else began)
        step = self.completed + (stepped and self._inside)
        self._saves.append(SaveTimes(step, nbytes, seconds, seconds))
        self._try(
            lambda: self._log.event(
                "checkpoint", step=step, bytes=nbytes, stall=seconds, total=seconds, elsewhere=True
            )
        )
        self._try(self._measure)
        if self._inside:  # no part of the step, nor of an evaluation: `save_stall_sum_seconds` has it
            self._clock.aside(seconds)
            self._clock.aside_seconds -= seconds
        else:
            self.mark()

    # --- what is logged -------------------------------------------------------------------------------

    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Log values: of the step under way, else of the one that has just ended; `step` says another.

        Speeds are put under `timing`. What cannot be logged (an image, a tensor of weights) is left out
        with a warning. Values of an evaluation before the first step of a resumed attempt are an event.
        """
        if step is None:
            if self._ended is not None or self._inside or self.completed == self.start == 0:
                step = self.completed
            elif self.completed == self.start:
                return self.event("evaluation", {"step": self.start, **values})
            else:
                step = self.completed - 1
        if step < self._newest:
            if not self._went_back:
                self._went_back = True
                warnings.warn(
                    f"not recorded: got values of step {step} after step {self._newest}, expected steps that "
                    "do not go back",
                    RunWarning,
                    stacklevel=3,
                )
            return None
        self._newest, self._logged = step, True
        results, timing = split(values)
        return self._try(lambda: self._write(step, results, timing))

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """A line in the log that belongs to no step."""
        self._try(lambda: self._log.event(name, **_of_event(fields)))

    def _write(self, step: int, results: dict[str, Any], timing: dict[str, Any]) -> None:
        try:
            self._log.write(step, results, timing or None)
        except BadInput as error:
            if len(results) < 2:
                warnings.warn(f"not recorded: {error}", RunWarning, stacklevel=4)
                return
            for name, value in results.items():
                self._write(step, {name: value}, timing)
                timing = {}

    # --- the end --------------------------------------------------------------------------------------

    def finish(self) -> None:
        """All steps are done: say so, durably. Values may still be logged."""
        self._try(self._mark_done)
        self._end("done")

    def _mark_done(self) -> None:
        self._log.sync()
        if self._directory.done() != self.completed:
            self._directory.mark_done(self.completed, elsewhere=True)

    def stop(self, reason: str, *, left: bool = False) -> None:
        """It ends before all steps are done: `left` by an error or by hand, else because it was told to."""
        newest = self._saves[-1].step if self._saves else self.start
        if left:
            self.event("left", {"step": self.completed, "reason": reason})
        else:
            self.event("stopped", {"step": newest, "reason": reason})
        self._end("left" if left else "stopped")

    def _end(self, how: str) -> None:
        self._ended, self._inside = how, False
        self._try(self._measure)

    def close(self) -> None:
        """Give the run back; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        _OPEN.pop(str(self.path.resolve()), None)
        with contextlib.suppress(LoadsheetError, OSError):
            self._measure()
        try:
            with contextlib.suppress(LoadsheetError):
                self._log.close()
        finally:
            self._directory.close()

    def _measure(self) -> None:
        if not self._clock.seconds:
            return
        self._directory.check_owner()
        entry = attempt_entry(
            self._clock,
            self._saves,
            start=self.start,
            steps=self.completed,
            lost=self._log.repeated,
            ended=self._ended,
            facts=self._facts,
            parameters=self._parameters,
        )
        try:
            write_measured(self.path, self.attempt, entry)
        except OSError as error:
            cannot_write(error, f"`{self.path / 'measured.json'}`")

    def _try(self, action: Callable[[], None]) -> None:
        """Nothing that goes wrong here ends the training."""
        if self._broken or self._closed:
            return
        try:
            action()
        except (LoadsheetError, OSError) as error:
            self._broken = True
            warnings.warn(
                f"{error}; training goes on, and nothing more is recorded", RunWarning, stacklevel=4
            )


def _open(
    root: str | os.PathLike[str], config: Mapping[str, Any], exclude: Iterable[str], sheet: Given | None
) -> RunDirectory:
    """The run directory; a record of the same run that this process has left open is closed first."""
    from loadsheet.run.fingerprint import canonical, digest

    names = list(exclude)
    path = root_of(root) / digest(canonical(config, names)[0])
    if (before := _OPEN.get(str(path.resolve()))) is not None:
        before.close()
    return RunDirectory.open(root, config, names, prepare=lambda path: fits(sheet, path))


@atexit.register
def _close_all() -> None:
    for record in list(_OPEN.values()):
        record.close()


def _unlink(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def _of_event(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        (f"{name}_" if name in RESERVED and name != "step" else name): value for name, value in values.items()
    }


def split(values: Mapping[Any, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was measured of the model, and apart from it what was measured of the clock.

    >>> split({"eval_loss": 2.5, "eval_runtime": 3.1, "eval_samples_per_second": 64.0})
    ({'eval_loss': 2.5}, {'eval_runtime': 3.1, 'eval_samples_per_second': 64.0})
    """
    results: dict[str, Any] = {}
    timing: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{name}_" if name in RESERVED or str(name).startswith("timing.") else name
        (timing if isinstance(name, str) and _TIMING.fullmatch(name) else results)[key] = value
    return results, timing


def plain(value: Any, depth: int = 0) -> Any:
    """Settings of somebody else's, as a config can hold them: what has no fixed text is left out (None).

    >>> plain({"lr": 0.1, "betas": (0.9, float("inf")), "hook": print})
    {'lr': 0.1, 'betas': [0.9, 'inf'], 'hook': None}
    """
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value, str) else value.name
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if depth > 20:
        return None
    if isinstance(value, Mapping):
        return {str(name): plain(entry, depth + 1) for name, entry in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(str(entry) for entry in value)
    if isinstance(value, list | tuple):
        return [plain(entry, depth + 1) for entry in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    for method in ("to_dict", "model_dump"):
        if callable(found := getattr(value, method, None)) and not isinstance(value, type):
            return plain(found(), depth + 1)
    if hasattr(value, "__dict__") and type(value).__module__ == "argparse":
        return plain(vars(value), depth + 1)
    if type(value).__module__ == "torch" and not hasattr(value, "shape"):  # dtypes, devices
        return str(value)
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return plain(value.item(), depth + 1)
    return None


def merged(config: Mapping[str, Any], more: Mapping[str, Any] | None) -> dict[str, Any]:
    """A config with what the user adds to it, under the user's names. Raises BadInput if one is taken."""
    taken = sorted(set(config) & set(more or {}))
    if taken:
        raise BadInput(
            f"config: got {taken[0]!r}, expected another name", "the callback itself writes that one"
        )
    return {**config, **(more or {})}


def nbytes_of(path: str | os.PathLike[str]) -> int:
    """Bytes of a file, or of all files in a directory; 0 if it is not there."""
    total = 0
    with contextlib.suppress(OSError):
        if os.path.isfile(path):
            return os.path.getsize(path)
        for folder, _, names in os.walk(path):
            total += sum(os.lstat(os.path.join(folder, name)).st_size for name in names)
    return total
