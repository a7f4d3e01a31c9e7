"""A callback for Lightning's `Trainer`: its metrics in a run directory, two lines for the user.

    from loadsheet.integrations.lightning import LoadsheetCallback
    trainer = Trainer(..., callbacks=[LoadsheetCallback("runs")])

Why a callback and not only a logger: a logger is told metrics and nothing else. It does not learn where a
resumed training goes on, when a step begins, or that it ended. So the callback adds a logger to those of
the trainer, which hands on what `self.log` reports; the callback knows the rest. It counts the steps itself
and keeps the count in Lightning's checkpoints, so that `fit(ckpt_path=...)` goes on at the right one,
whatever the number of optimizers.

Checkpoints stay Lightning's own: `ModelCheckpoint` writes them where it always did. Whether going on from
them gives the same bits is for Lightning to promise (in the middle of an epoch only with a loader that
keeps its own state).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import Logger

from loadsheet.integrations.record import Record, merged, nbytes_of, plain
from loadsheet.run.sheetfile import Source

#: of the trainer's settings, those that change what is learnt
_SETTINGS = (
    "max_epochs", "max_steps", "accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm",
    "precision", "limit_train_batches", "overfit_batches",
)  # fmt: skip


class LoadsheetCallback(Callback):
    """Records a `fit` in the run directory of its config, below `root`.

    The config is the module's class and `hparams` (what `save_hyperparameters` keeps), those of the
    datamodule, the optimizers with their settings, those of the trainer's settings that change what is
    learnt, the seed of `seed_everything`, and `config`: whatever else makes this experiment. `exclude` names keys that
    do not ("module.hparams.data_dir"). `sheet` is a signed sheet for `loadsheet close`. What goes wrong at
    the start is raised; later it is a RunWarning, and training goes on. Only process 0 records.

    Metrics of single validation batches (`on_step=True` there) belong to no step of the training and are
    left out. A fit that ends early is marked done if EarlyStopping ended it; else it was stopped.
    """

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
        self._metrics = _Metrics(self)
        self._completed: int | None = None  # by the checkpoint that fit goes on from
        self._optimizer_steps = 0
        self._save_began: float | None = None
        self.in_batches = False  # of an evaluation

    # --- begin and end ------------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Before the checkpoint is read."""
        self._completed = None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Listen to the metrics. Not earlier: ModelCheckpoint takes its directory from the first logger."""
        if trainer.is_global_zero and self._metrics not in trainer.loggers:
            trainer.loggers = [*trainer.loggers, self._metrics]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the run; the checkpoint, if there is one, has been restored."""
        if not trainer.is_global_zero:
            return
        start = trainer.global_step if self._completed is None else self._completed
        total = trainer.estimated_stepping_batches
        self.record = Record(
            self._root,
            merged(config_of(trainer, pl_module), self._config),
            exclude=self._exclude,
            start=start,
            total=int(total) if 0 < total < float("inf") else None,
            sheet=self._sheet,
            modules={"model": pl_module},
        )
        self._optimizer_steps = trainer.global_step

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Mark the run done if it is. What `validate` and `test` report after it can still be logged."""
        if self.record is None:
            return
        early = any(isinstance(each, EarlyStopping) and _has_stopped(each) for each in trainer.callbacks)
        steps, epochs = trainer.max_steps, trainer.max_epochs
        over = (0 <= steps <= trainer.global_step) or (
            epochs is not None and 0 <= epochs <= trainer.fit_loop.epoch_progress.current.processed
        )
        if (over or early) and not trainer.received_sigterm:
            self.record.finish()
        else:
            self.record.stop("the trainer was told to stop")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The fit was left by an error, by Ctrl-C, or by a signal."""
        if self.record is not None and not self.record.over:
            self.record.stop(type(exception).__name__, left=True)

    # --- steps ----------------------------------------------------------------------------------------------

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """The loader may be started anew."""
        if self.record is not None:
            self.record.mark()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """The batch is there."""
        if self.record is not None:
            self.record.begin_step()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Gradients of some batches are only accumulated; a step has ended if an optimizer has stepped."""
        if self.record is not None and trainer.global_step != self._optimizer_steps:
            self._optimizer_steps = trainer.global_step
            self.record.end_step()

    # --- evaluation -----------------------------------------------------------------------------------------

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """What single batches report is not listened to."""
        self.in_batches = True
        if self.record is not None:
            self.record.begin_aside()

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """What is reported from here on is of all batches."""
        self.in_batches = False

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """It was no part of a step."""
        if self.record is not None:
            self.record.end_aside()

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """As for validation."""
        self.in_batches = True

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """As for validation."""
        self.in_batches = False

    # --- Lightning's checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What is kept in Lightning's checkpoint: how many steps are complete."""
        return {} if self.record is None else {"completed": self.record.completed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The checkpoint that fit goes on from."""
        completed = state_dict.get("completed")
        self._completed = completed if isinstance(completed, int) else None

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """A checkpoint is about to be written."""
        self._save_began = time.perf_counter()

    def saved(self, checkpointing: Any) -> None:
        """ModelCheckpoint has written one."""
        if self.record is not None and self._save_began is not None:
            began, self._save_began = self._save_began, None
            paths = {
                checkpointing.last_model_path,
                checkpointing.best_model_path,
                *checkpointing.best_k_models,
            }
            there = [path for path in paths if path and os.path.exists(path)]
            newest = max(there, key=os.path.getmtime, default=None)
            self.record.end_save(0 if newest is None else nbytes_of(newest), began)


def _has_stopped(callback: EarlyStopping) -> bool:
    """Whether it was this one that ended the training; in the first epoch `stopped_epoch` stays 0."""
    reason = getattr(callback, "stopping_reason", None)  # since Lightning 2.6
    return bool(
        callback.stopped_epoch or callback.wait_count >= callback.patience or getattr(reason, "value", 0)
    )


class _Metrics(Logger):
    """Hands on what Lightning would log; has no files and no directory of its own."""

    def __init__(self, owner: LoadsheetCallback) -> None:
        super().__init__()
        self._owner = owner

    @property
    def name(self) -> str:
        """What Lightning asks of a logger."""
        return "loadsheet"

    @property
    def version(self) -> str:
        """The run's fingerprint, once there is one."""
        return "" if self._owner.record is None else self._owner.record.path.name

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """What `self.log` reports; which step it belongs to, the callback knows better."""
        if self._owner.record is not None and not self._owner.in_batches:
            self._owner.record.log(metrics)

    def log_hyperparams(self, *params: Any, **others: Any) -> None:
        """They are in the config already."""

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Called once the file is written."""
        self._owner.saved(checkpoint_callback)


def config_of(trainer: Any, module: Any) -> dict[str, Any]:
    """What makes this training the experiment it is."""
    config: dict[str, Any] = {
        "trainer": "lightning",
        "training": {name: plain(getattr(trainer, name, None)) for name in _SETTINGS},
        "module": {"class": type(module).__name__, "hparams": plain(dict(module.hparams))},
        "optimizers": [
            {"class": type(each).__name__, **plain(getattr(each, "defaults", {}))}
            for each in trainer.optimizers
        ],
    }
    if (data := trainer.datamodule) is not None:
        config["data"] = {"class": type(data).__name__, "hparams": plain(dict(data.hparams))}
    if (seed := os.environ.get("PL_GLOBAL_SEED", "")).isdigit():
        config["seed"] = int(seed)
    return config
