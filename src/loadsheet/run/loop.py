"""The run as a training script sees it: open, keep, batches, steps, log.

One step is one optimizer step. A checkpoint `step-K` holds K completed steps, and is taken when the body
asks for the next step, never inside the body: there the model may be in the middle of an update. The
first one, `step-0`, is taken before the first step. It proves that everything kept can be saved and that
the disk takes it, and makes even a script that seeds nothing resume exactly.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.util import Finalize
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from loadsheet.errors import BadInput, LoadsheetError, shorten
from loadsheet.run import ending
from loadsheet.run.batches import Batches
from loadsheet.run.checkpoint import CheckpointStore
from loadsheet.run.errors import RunError
from loadsheet.run.hold import Hold
from loadsheet.run.isolate import isolated, mix
from loadsheet.run.load import Old, put_weights, state_of
from loadsheet.run.lost import nothing_saved
from loadsheet.run.measured import Clock, attempt_entry, parameters_of, write_measured
from loadsheet.run.moving import Watch
from loadsheet.run.notices import Notices, Where
from loadsheet.run.opening import Opened, check_options, open_directory
from loadsheet.run.policy import MTBF, Policy
from loadsheet.run.progress import Progress
from loadsheet.run.reading import read_events
from loadsheet.run.retention import Wanted
from loadsheet.run.saves import Saves
from loadsheet.run.sheetfile import Source
from loadsheet.run.signals import while_opening
from loadsheet.run.state import Keeper
from loadsheet.run.stops import Stops
from loadsheet.run.tell import tell


class Run:
    """One execution of one config in its run directory; made by `Run.open`.

    `path` is the directory, `fingerprint` its name, `attempt` counts the lives of this run from 1.
    """

    def __init__(self, opened: Opened, notices: Notices, progress: Progress) -> None:
        self._directory = opened.directory
        self._log = opened.log
        self._notices = notices
        self._progress = progress
        self._keeper = Keeper()
        self._batches: dict[str, Batches] = {}
        self._clock = Clock()
        self._sheet = opened.sheet
        self._span = (0, 0)  # the steps of this attempt: begun with, completed
        self._start_from: Old | None = None
        self._saves: Saves | None = None
        self._watch: Watch | None = None
        self._mirror = opened.mirror
        self._mirror_options: dict[str, Any] | None = None
        self._step: int | None = None  # what `log` belongs to; None before the first step
        self._looping = False
        self._stops = Stops(
            self._log,
            notices,
            progress,
            lambda: max(CheckpointStore(opened.directory.checkpoints).steps(), default=0),
        )
        self._pid = os.getpid()
        self._closed = False
        self._steps: weakref.ref[Generator[int]] | None = None
        self._values: dict[str, Any] = {}

    @classmethod
    def open(
        cls,
        root: str | os.PathLike[str],
        config: object,
        *,
        exclude: Iterable[str] = (),
        start_from: Old | None = None,
        mirror: str | os.PathLike[str] | None = None,
        mirror_options: dict[str, Any] | None = None,
        sheet: Source | None = None,
        notice: Where | None = None,
        durable_log: bool = False,
        wait: float = 60.0,
        progress: bool | None = None,
    ) -> Run:
        """Open the run of this config under `root`: a new one, or the one that was interrupted.

        `config`: a dict, dataclass, Namespace, ...; every value in it decides which run this is, but those
        named in `exclude` (output path, device, number of workers), which are only recorded.
        `start_from`: an older run, or (run, step), whose weights a new run begins with.
        `mirror`: where a copy is kept, `s3://…`, `gs://…`, `az://…` or a path; a machine with an empty disk
        goes on from there. `mirror_options` are passed on to obstore (endpoint, region, ...).
        `sheet`: a signed sheet, its file or what `ls.sign` returned; a copy stays with the run, for `close`.
        `notice`: where to hear that the machine will go, a JSON file or a callable; by default the file
        that `LOADSHEET_NOTICE` names. `durable_log`: each record survives a loss of power when `log`
        returns. `wait`: seconds to wait for another process that has the run. `progress` False: silence.
        The environment variable LOADSHEET_RUNS_ROOT takes the place of `root`, and there is no mirror then:
        so a rehearsal leaves real runs alone. LOADSHEET_MIRROR names the mirror of a script that names none:
        so a job file can say it.
        Raises BadInput for the config, ForeignConfig if the directory belongs to another, Busy if another
        process has it (left uncaught, exit status 2), BadFile for a sheet that was edited, MirrorFailed,
        NoCheckpoint if there is nothing to start from. A start that is refused is no attempt.
        """
        check_options(wait, start_from, notice)
        shown = Progress(progress)
        with while_opening(shown.say):
            opened = open_directory(
                root,
                config,
                exclude,
                mirror=mirror,
                mirror_options=mirror_options,
                sheet=sheet,
                start_from=start_from,
                durable_log=durable_log,
                wait=wait,
                progress=shown,
            )
        run = cls(opened, Notices(notice), shown)
        run._start_from, run._mirror_options = start_from, mirror_options
        run._stops.outside.install()
        # a script that never calls `close` ends with a log that is complete, here and in the mirror
        Finalize(None, _close, args=(weakref.ref(run),), exitpriority=90)
        return run

    # --- what belongs to it ---------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """The run directory."""
        return self._directory.path

    @property
    def fingerprint(self) -> str:
        """The first 10 hex digits of SHA-256 of the config."""
        return self._directory.fingerprint

    @property
    def attempt(self) -> int:
        """Which process life of this run this is, from 1."""
        return self._directory.attempt

    def keep(self, **objects: Any) -> None:
        """Make objects part of the state: `run.keep(model=model, optimizer=optimizer, scheduler=scheduler)`.

        Modules, optimizers, schedulers, scalers, generators, tensors, dicts, lists, and whatever has
        `state_dict` and `load_state_dict`. The random states of Python, NumPy and torch are kept anyway.
        Raises CannotKeep for what cannot be saved, BadInput for a name that is taken.
        """
        self._keeper.keep(**objects)

    def batches(self, loader: Iterable[Any], name: str | None = None) -> Batches:
        """An endless iterator over a DataLoader, or anything that can be iterated again; part of the state.

        Exact in the middle of an epoch, shuffling and augmentation in workers included. Several need a
        `name` each only if their order changes. Raises BadInput for what can be iterated only once.
        """
        name = f"batches{len(self._batches) + 1}" if name is None else name
        if name in self._batches:
            raise BadInput(f"batches: got the name {shorten(name)} twice, expected another one")
        batches = Batches(loader)
        self._keeper.keep_as("iterator", name, batches)
        self._batches[name] = batches
        return batches

    # --- the loop ---------------------------------------------------------------------------------------

    def steps(
        self,
        total: int,
        *,
        checkpoint_every: int | str | None = "auto",
        keep_last: int = 2,
        keep_every: int | None = None,
        keep_best: Wanted | None = None,
        mtbf: float = MTBF,
        when_save_fails: Literal["raise", "warn"] = "raise",
    ) -> Iterator[int]:
        """Restore the newest state, now, and return the steps still to do: those of 0 … total − 1.

        `checkpoint_every`: steps, a duration ("10 min"), "auto" (what costs least with `mtbf` seconds
        between interruptions), or None: only the end. `keep_last` checkpoints are kept, every
        `keep_every`-th step's, and the best by a logged metric, `keep_best`: "val_loss", or
        ("accuracy", "max"), or ("accuracy", "max", 3) for three of them; `load` says what is best.
        `when_save_fails`: raise at the next step, or warn and go on.

        At the end the state is saved and the run marked done; a done run restores its final state and
        yields nothing; a larger `total` goes on. `break` and exceptions save nothing. SIGTERM, SIGUSR1,
        SIGINT and notices save after the current step and raise Stopped. Raises BadInput, BadCheckpoint,
        NoCheckpoint, SaveFailed, NoSpace, Fenced.
        """
        if type(total) is not int or total < 0:
            raise BadInput(f"steps: got {shorten(total)}, expected a whole number from 0 on")
        if self._looping:
            raise BadInput("steps: got a second loop inside the first, expected one at a time")
        policy = Policy(checkpoint_every, mtbf=mtbf)
        self._directory.check_owner()
        saves = Saves(
            self._directory,
            self._keeper,
            policy,
            keep_last=keep_last,
            keep_every=keep_every,
            keep_best=keep_best,
            when_save_fails=when_save_fails,
            mirror=self._mirror,
            mirror_options=self._mirror_options,
        )
        start, resumed = self._restore(saves.store, total)
        self._log.event("steps", total=total)
        self._saves = saves
        loop = self._loop(start, total, saves, resumed)
        self._steps = weakref.ref(loop)
        return loop

    def _restore(self, store: CheckpointStore, total: int) -> tuple[int, bool]:
        """Bring everything to the newest state; the number of its completed steps, and whether there was one."""
        state = None if nothing_saved(self.path, store) else store.load()
        start = 0 if state is None else state.step
        if start > total:
            raise BadInput(
                f"steps: got {total}, but this run has completed {start}",
                f"`ls.load(run, which={total})` reads an older checkpoint; fewer steps are another config",
            )
        self._keeper.restore(state)
        self._log.resume(start, since=0 if state is None else store.manifest(start).log_offset)
        self._step = start if start == total else None
        if state is not None:
            self._progress.say(f"{self.path}: attempt {self.attempt} goes on after {start} of {total} steps")
            if self._start_from is not None and not any(
                e["event"] == "start_from" for e in read_events(self.path)
            ):
                tell("start_from is ignored: this run began without it, and goes on from its own checkpoint")
        elif self._start_from is not None:
            self._take_weights(self._start_from)
        return start, state is not None

    def _take_weights(self, old: Old) -> None:
        where, which = old if isinstance(old, tuple) else (old, "latest")
        state = state_of(where, which)
        names = put_weights(state, self._keeper.objects)
        self._log.event("start_from", run=str(where), step=state.step, names=names)
        self._progress.say(f"{self.path}: begins with {', '.join(names)} of {where}, step {state.step}")

    def _loop(self, start: int, total: int, saves: Saves, resumed: bool) -> Generator[int]:
        batches = self._batches.values()
        self._span = (self._span[0] if self._clock.seconds else start, start)
        saves.on_durable = self._measure
        self._looping = True
        self._stops.begin(saves)
        hold = Hold()
        self._watch = watch = Watch(lambda: self._keeper.objects, lambda: self._keeper.unkept, tell)
        self._progress.begin(start, total)
        completed = start
        try:
            saves.begin(start, resumed=resumed)
            for step in range(start, total):
                self._step = step
                self._values = {}
                self._clock.begin(batches)
                self._stops.step_begins()
                yield step
                self._stops.step_ends()
                self._clock.end(batches)
                completed = step + 1
                self._span = (self._span[0], completed)
                if step == start:
                    self._keeper.seal()
                watch.after_step(completed - start)
                self._log.end_step()
                if repeated := self._log.audited:
                    self._progress.say(f"{repeated} steps repeated after the resume, identical")
                    self._log.audited = 0
                saves.check()
                saves.note(self._log)
                if completed == total:
                    break
                hold.wait(self.path, completed, lambda: self._stops.signals.received is not None)
                if saves.due(completed):
                    watch.later(completed - start)
                    saves.take(completed)
                if (why := self._stops.asked(completed, saves)) is not None:
                    watch.later(completed - start, least=3)
                    self._stops.stop(completed, saves, why)
                self._progress.update(completed, self._values)
            saves.finish(total)
            saves.note(self._log)
            self._step, self._stops.how = total, "done"
            if self._stops.signals.received is not None:
                # What comes after the loop is done by the next attempt, which finds the run complete.
                self._stops.stop(total, saves, ending.by_signal(self._stops.signals.received))
        except GeneratorExit:  # the body was left: by an error, or by `break`
            if os.getpid() != self._pid:
                return  # a child that the body has forked; the loop is not its own
            self._stops.leave()
            if self._stops.how == "left":
                with suppress(LoadsheetError):  # the error is what counts, not that it cannot be noted
                    self._log.event("left", step=completed)
            raise
        finally:
            if os.getpid() == self._pid:
                self._stops.leave()
                self._end_loop(saves)

    def _end_loop(self, saves: Saves) -> None:
        """What a loop leaves behind when it has ended, however it did."""
        try:
            self._looping = False
            self._watch = None
            self._progress.clear()
            saves.close()
            self._record()
            for each in self._batches.values():
                each.close()
        finally:
            self._stops.end()  # last: an error that a signal raises would be lost in here

    def _record(self) -> None:
        """Write down what was measured, with a warning if that cannot be done."""
        try:
            self._measure(self._stops.how)
        except OSError as error:
            tell(f"measured.json: not written: {error.strerror}")
        except RunError as error:  # the run has another owner, or is gone: it is not ours to write
            tell(f"measured.json: not written: {error}")

    def _measure(self, ended: str | None = None) -> None:
        """What this attempt has measured so far, into `measured.json`; in the saver's thread too."""
        if not self._clock.seconds or self._saves is None:
            return
        self._directory.check_owner()
        entry = attempt_entry(
            self._clock,
            self._saves.history,
            start=self._span[0],
            steps=self._span[1],
            lost=self._log.repeated,
            ended=ended,
            facts=self._sheet,
            parameters=parameters_of(self._keeper.objects),
        )
        write_measured(self.path, self.attempt, entry)

    # --- inside a step ------------------------------------------------------------------------------------

    def log(self, *, timing: dict[str, Any] | None = None, **values: Any) -> None:
        """Log values of this step; several calls are one record. `timing` is never compared.

        When it returns, the record survives the death of the process (with `durable_log`, of the machine).
        After the loop it belongs to step `total`. Raises BadInput before the first step.
        """
        if self._step is None:
            raise BadInput(
                "log: got a call before the first step, expected one inside the loop",
                "what stands before the loop happens in every attempt: log it under `if step == 0`",
            )
        self._log.write(self._step, values, timing)
        self._values.update(values)
        if "tokens" in values:
            self._clock.tokens.log(values["tokens"])

    @contextmanager
    def aside(self, seed: int | None = None) -> Iterator[None]:
        """For an evaluation: inside, random numbers of their own; outside nothing has been drawn.

        So how often one evaluates cannot change the training. Inside, the numbers depend on the config and
        the step only, or on `seed`. Time spent inside does not count as step time.
        """
        begun = time.perf_counter()
        own = mix(int(self.fingerprint, 16), -1 if self._step is None else self._step)
        with isolated(own if seed is None else seed, cuda=True):
            if self._watch is not None:
                self._watch.aside(begins=True)
            try:
                yield
            except Exception as error:
                if (stopped := self._stops.inside(error)) is None:
                    raise
                raise stopped from error
            if self._watch is not None:
                self._watch.aside(begins=False)
        self._clock.aside(time.perf_counter() - begun)

    # --- the end ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Finish the log and give the run back; a second call does nothing. Done at the process's end at the latest.

        Raises Stopped if a signal has come that the loop did not look at, since it was left in that step.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        loop = self._steps() if self._steps is not None else None
        if loop is not None:
            with suppress(ValueError):  # called from inside it
                loop.close()
        if self._saves is not None:
            self._saves.close()
        if not self._looping:  # what came after the loop belongs to the attempt
            with contextlib.suppress(OSError, RunError):  # said once, when the loop ended
                self._measure(self._stops.how)
        for batches in self._batches.values():
            batches.close()
        self._stops.close()
        try:
            self._log.close()
            if self._saves is not None:
                self._saves.send_rest()
        finally:
            self._directory.close()
            self._stops.give_back()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stopped = self._stops.inside(error)
        self.close()
        if stopped is not None:
            raise stopped from error


def _close(run: weakref.ref[Run]) -> None:
    if (found := run()) is not None:
        found._stops.outside.exiting = True
        found.close()
