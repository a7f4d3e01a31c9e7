"""A callback for transformers' `Trainer`: its metrics in a run directory, two lines for the user.

    from loadsheet.integrations.transformers import LoadsheetCallback
    trainer = Trainer(model, args, ..., callbacks=[LoadsheetCallback("runs")])

Checkpoints stay the Trainer's own: they are written to `output_dir`, by its rules, and
`trainer.train(resume_from_checkpoint=True)` goes on from them. Whether that gives the same bits is for the
Trainer to promise. What is recorded is everything else: config, provenance, one record per logged step,
each attempt with the step it went on from, and `measured.json` for `loadsheet close`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

import transformers

from loadsheet.integrations.record import Record, merged, nbytes_of, plain
from loadsheet.run.sheetfile import Source

#: of TrainingArguments: where things go, how much is told, how often is saved, with how many hands. None of
#: it changes what is learnt, so a run may go on with other values
NOT_THE_EXPERIMENT = frozenset([
    "output_dir", "logging_dir", "run_name", "project", "trackio_space_id", "trackio_bucket_id",
    "trackio_static_space_id", "report_to", "disable_tqdm", "log_level", "log_level_replica",
    "log_on_each_node", "logging_strategy", "logging_first_step", "logging_steps", "save_strategy",
    "save_steps", "save_total_limit", "save_on_each_node", "save_only_model", "enable_jit_checkpoint",
    "restore_callback_states_from_checkpoint", "resume_from_checkpoint", "push_to_hub", "hub_model_id",
    "hub_strategy", "hub_token", "hub_private_repo", "hub_always_push", "hub_revision",
    "dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers",
    "dataloader_prefetch_factor", "local_rank", "ddp_timeout", "ddp_backend", "debug",
    "skip_memory_metrics", "include_num_input_tokens_seen", "use_cpu", "do_train", "do_eval", "do_predict",
])  # fmt: skip


class LoadsheetCallback(transformers.TrainerCallback):
    """Records a `Trainer`'s training in the run directory of its config, below `root`.

    The config is the TrainingArguments (without output paths, reporting, saving and workers), the model's
    config, the number of training examples, and `config`: whatever else makes this experiment, the data
    above all. `exclude` names more keys that do not ("training.max_steps"). `sheet` is a signed sheet for
    `loadsheet close`. What goes wrong at the start is raised; later it is a RunWarning, and training goes
    on. Only process 0 records.

    Training that ends before `max_steps` is marked done if an EarlyStoppingCallback ended it; else it
    was stopped, and `resume_from_checkpoint` goes on.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] = "runs",
        *,
        config: Mapping[str, Any] | None = None,
        exclude: Iterable[str] = (),
        sheet: Source | None = None,
    ) -> None:
        self.record: Record | None = None
        self._root, self._config, self._exclude, self._sheet = root, config, tuple(exclude), sheet
        self._tokens = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Open the run; the step it goes on from is the Trainer's."""
        if not state.is_world_process_zero:
            return
        model = others.get("model")
        config, excluded = config_of(args, model, others.get("train_dataloader"))
        self.record = Record(
            self._root,
            merged(config, self._config),
            exclude=[*excluded, *self._exclude],
            start=state.global_step,
            total=state.max_steps if state.max_steps > 0 else None,
            sheet=self._sheet,
            # a mean over several steps begins anew with the process
            compare=args.logging_steps == 1 and not args.logging_first_step,
            modules={} if model is None else {"model": model},
        )
        self._tokens = state.num_input_tokens_seen

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """The loader is started anew; waiting for it begins here."""
        if self.record is not None:
            self.record.mark()

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """The batches of the step have been fetched."""
        if self.record is not None:
            self.record.begin_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """An optimizer step is complete."""
        if self.record is not None:
            tokens, self._tokens = (
                int(state.num_input_tokens_seen) - int(self._tokens),
                state.num_input_tokens_seen,
            )
            self.record.end_step(tokens if tokens > 0 else None)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        """Loss, learning rate, norm of the gradients, and the metrics of an evaluation."""
        if self.record is None or not logs:
            return
        if "train_loss" in logs:  # the mean of this attempt, with its runtime: said once, at the end
            self.record.event("summary", {"step": state.global_step, **logs})
        else:
            self.record.log(logs)

    def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """An evaluation has ended; it was no part of a step."""
        if self.record is not None:
            self.record.end_aside()

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """The Trainer has saved a checkpoint of its own."""
        if self.record is not None:
            path = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
            self.record.end_save(nbytes_of(path))

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Mark the run done if it is. An evaluation after it can still be logged."""
        if self.record is None:
            return
        if state.global_step >= state.max_steps or _stopped_early(args, state):
            self.record.finish()
        else:
            self.record.stop("the Trainer was told to stop")


def _stopped_early(args: Any, state: Any) -> bool:
    """Whether EarlyStoppingCallback has run out of patience, as far as the last checkpoint says."""
    for name, entry in (state.stateful_callbacks or {}).items():
        for facts in entry if isinstance(entry, list) else [entry]:
            if "EarlyStopping" in name and isinstance(facts, dict):
                patience = facts.get("args", {}).get("early_stopping_patience")
                counter = facts.get("attributes", {}).get("early_stopping_patience_counter")
                if patience is not None and counter is not None and counter >= patience:
                    return True
    return False


def _said(settings: Any) -> Any:
    """Settings without those that are null: of them there are many, and each release adds some."""
    if isinstance(settings, dict):
        return {name: value for name, value in settings.items() if value is not None}
    return settings


def config_of(args: Any, model: Any, loader: Any = None) -> tuple[dict[str, Any], list[str]]:
    """What makes this training the experiment it is, and the names in it that do not."""
    training = _said(plain(args.to_dict()))
    described: dict[str, Any] = {"class": type(model).__name__}
    for name in ("config", "peft_config"):
        if (found := getattr(model, name, None)) is not None:
            described[name] = _said(plain(found))
    if isinstance(described.get("config"), dict):
        # saving a model writes these two into its config: the same object would be another experiment afterwards
        described["config"].pop("architectures", None)
        if (dtype := getattr(model, "dtype", None)) is not None:
            described["config"]["dtype"] = str(dtype).removeprefix("torch.")
        described["config"].pop("transformers_version", None)
    config: dict[str, Any] = {"trainer": "transformers", "training": training, "model": described}
    with contextlib.suppress(AttributeError, TypeError):  # a stream has no length
        config["examples"] = len(loader.dataset)
    return config, [f"training.{name}" for name in sorted(NOT_THE_EXPERIMENT) if name in training]
