"""A tracker for Accelerate: the metrics of your own loop in a run directory.

    from loadsheet.integrations.accelerate import LoadsheetTracker
    tracker = LoadsheetTracker("runs")
    accelerator = Accelerator(log_with=tracker)
    accelerator.init_trackers("experiment", config=vars(args))

    accelerator.load_state(folder)                     # if you go on from a checkpoint of yours
    tracker.resume(completed)                          # … after so many steps
    for batch in tracker.batches(loader):              # times the steps, and the waiting for data
        ...
        accelerator.log({"loss": loss.item()}, step=completed)
    accelerator.end_training()                         # marks the run done

Checkpoints stay your own (`accelerator.save_state`): what goes on from where is in your hands. Only
`init_trackers`, `log` and `end_training` are needed; `batches`, `aside` and `saving` measure.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from accelerate.state import GradientState
from accelerate.tracking import GeneralTracker, on_main_process
from torch.optim.optimizer import register_optimizer_step_post_hook

from loadsheet.errors import BadInput
from loadsheet.integrations.record import Record, merged, nbytes_of, plain
from loadsheet.run.reading import stream_log
from loadsheet.run.sheetfile import Source


class LoadsheetTracker(GeneralTracker):
    """Records a training loop on Accelerate in the run directory of its config, below `root`.

    The config is what `init_trackers` is given, and `config`; `exclude` names keys of it that do not make
    another experiment ("output_dir"). `sheet` is a signed sheet for `loadsheet close`. The steps are those
    that `accelerator.log(..., step=...)` says. What goes wrong at the start is raised; later it is a
    RunWarning, and training goes on. Only the main process records.
    """

    name = "loadsheet"
    requires_logging_directory = False
    main_process_only = True

    def __init__(
        self,
        root: str | os.PathLike[str] = "runs",
        *,
        config: Mapping[str, Any] | None = None,
        exclude: Iterable[str] = (),
        sheet: Source | None = None,
    ) -> None:
        super().__init__()
        self.record: Record | None = None
        self._root, self._config, self._exclude, self._sheet = root, config, tuple(exclude), sheet
        self._values: Mapping[str, Any] = {}
        self._total: int | None = None
        self._stepped = False  # an optimizer has, since the batch came

    @property
    def tracker(self) -> Record | None:
        """The record, once the first step or value has come."""
        return self.record

    @on_main_process
    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """What makes this experiment; called by `init_trackers`."""
        self._values = values

    @on_main_process
    def resume(self, completed: int, total: int | None = None) -> None:
        """The training goes on after so many completed steps (of `total`); to be said before the first one."""
        if type(completed) is not int or completed < 0:
            raise BadInput(f"resume: got {completed!r}, expected a whole number of completed steps")
        self._total = total
        self._open(completed)

    def _open(self, start: int, *, guessed: bool = False) -> None:
        self.record = Record(
            self._root,
            merged({"trainer": "accelerate", **plain(self._values)}, self._config),
            exclude=self._exclude,
            start=start,
            guessed=guessed,
            total=self._total,
            sheet=self._sheet,
        )

    @on_main_process
    def log(self, values: Mapping[str, Any], step: int | None = None, **others: Any) -> None:
        """Values of a step; without `step`, of the one that has just ended."""
        if self.record is None:
            self._open(step or 0, guessed=True)
        if self.record is not None:
            self.record.log(values, step)

    @on_main_process
    def finish(self) -> None:
        """All steps are done; called by `end_training`."""
        if self.record is None:
            return
        self.record.leave_step()
        if self.record.completed == self.record.start:  # nobody counted: what was logged says it
            first = next(stream_log(self.record.path), {"step": 0})["step"]  # they may count from 1
            self.record.completed = max(self.record.start, self.record.newest + (first == 0))
        self.record.finish()
        self.record.close()

    # --- what is measured --------------------------------------------------------------------------------------

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The batches of a loader; a step ends where one is asked for after the gradients were applied."""
        gradients = GradientState()
        if self.record is None and _is_main():
            self._open(0)
        record = self.record
        if record is not None:
            record.leave_step()  # the loop before this was left by `break`
            record.mark()
        watching = register_optimizer_step_post_hook(self._step)
        try:
            for batch in loader:
                if record is not None:
                    record.begin_step()
                self._stepped = False
                yield batch
                if record is not None and gradients.sync_gradients:
                    record.end_step()
        finally:
            watching.remove()

    def _step(self, *_: object) -> None:
        self._stepped = True

    @contextmanager
    def aside(self) -> Iterator[None]:
        """For an evaluation: what it takes is no part of a step."""
        if self.record is not None:
            self.record.begin_aside()
        yield
        if self.record is not None:
            self.record.end_aside()

    @contextmanager
    def saving(self, path: str | os.PathLike[str] | None = None) -> Iterator[None]:
        """For `accelerator.save_state(path)`: how long the training waits for it, and how many bytes it is."""
        began = time.perf_counter()
        yield
        if self.record is not None:
            self.record.end_save(0 if path is None else nbytes_of(path), began, stepped=self._stepped)


def _is_main() -> bool:
    from accelerate.state import PartialState

    return bool(PartialState().is_main_process)
