"""The callback for transformers' Trainer, with the real library: what it records is what the Trainer says."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytest.importorskip("msgspec")

import torch
import transformers

import loadsheet as ls
from loadsheet.history.index import scan
from loadsheet.run.directory import read_done
from loadsheet.run.reading import read_events

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

STEPS = 10


class Crash(transformers.TrainerCallback):  # type: ignore[misc]
    """The machine goes after so many steps, before anything is logged of the last."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == self.after:
            raise ConnectionError("gone")


def trainer(folder: Path, *callbacks: Any, **settings: Any) -> Any:
    """A Trainer of a tiny Llama with dropout, on fixed data."""
    from loadsheet.integrations.transformers import LoadsheetCallback

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, vocab_size=50,
        intermediate_size=32, max_position_embeddings=32, attention_dropout=0.2,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 50, (24, 8), generator=generator)
    data = [{"input_ids": row, "labels": row} for row in tokens]
    arguments = transformers.TrainingArguments(
        **{
            "output_dir": str(folder / "out"),
            "max_steps": STEPS,
            "per_device_train_batch_size": 4,
            "logging_steps": 1,
            "save_steps": 3,
            "eval_strategy": "steps",
            "eval_steps": 4,
            "report_to": [],
            "disable_tqdm": True,
            "use_cpu": True,
            "dataloader_pin_memory": False,
            "include_num_input_tokens_seen": "all",
            **settings,
        }
    )
    callback = LoadsheetCallback(folder / "runs", config={"data": "fixed"})
    return transformers.Trainer(
        transformers.LlamaForCausalLM(config),
        arguments,
        train_dataset=data,
        eval_dataset=data[:8],
        callbacks=[callback, *callbacks],
    )


def run_of(folder: Path) -> Path:
    """The one run directory."""
    (path,) = [path for path in (folder / "runs").iterdir() if path.is_dir()]
    return path


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A training that crashed after 8 steps and went on from its checkpoint of 6, then evaluated once more."""
    folder = tmp_path_factory.mktemp("resumed")
    with pytest.raises(ConnectionError):
        trainer(folder, Crash(8)).train()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ls.RunWarning)  # the steps that ran twice logged the same bits
        second = trainer(folder)
        second.train(resume_from_checkpoint=True)
        second.evaluate()
    return run_of(folder), second


def test_each_step_once_and_as_the_trainer_says(resumed: tuple[Path, Any]) -> None:
    """Loss, learning rate, norm and evaluation, against the Trainer's own history, which it keeps over a resume."""
    path, second = resumed
    history: dict[int, dict[str, Any]] = {}
    after = STEPS  # what comes after the training
    for entry in second.state.log_history:
        if "train_loss" in entry:
            after = STEPS + 1
            continue
        # its step counts completed steps, ours are numbered from 0
        history.setdefault((entry["step"] if after > STEPS else entry["step"] - 1), {}).update(entry)
    log = ls.read_log(path)
    assert log["step"] == sorted(history) == [*range(STEPS), STEPS]
    for name in ("loss", "learning_rate", "grad_norm", "eval_loss", "epoch"):
        expected = [history[step].get(name) for step in sorted(history)]
        assert any(value is not None for value in expected), name
        assert log[name] == expected, name
    assert log["attempt"] == [1] * 6 + [2] * 5


def test_attempts_and_events(resumed: tuple[Path, Any]) -> None:
    """The step it went on from, the Trainer's checkpoints, its summary."""
    path, _ = resumed
    events = read_events(path)
    assert [(e["attempt"], e["from"]) for e in events if e["event"] == "resume"] == [(1, 0), (2, 6)]
    assert [e["step"] for e in events if e["event"] == "checkpoint"] == [3, 6, 9, 10]
    sizes = [e["bytes"] for e in events if e["event"] == "checkpoint"]
    folder = path.parent.parent / "out" / "checkpoint-9"
    assert sizes[2] == sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert [e["step"] for e in events if e["event"] == "summary"] == [STEPS]
    assert read_done(path) == STEPS
    assert sorted(p.name for p in (path / "provenance").glob("*.json")) == [
        "attempt-0001.json",
        "attempt-0002.json",
    ]


def test_what_was_measured(resumed: tuple[Path, Any]) -> None:
    """Steps of each attempt, tokens of a step by hand (4 × 8), saves, and the steps that were lost."""
    path, _ = resumed
    attempts = json.loads((path / "measured.json").read_bytes())["attempts"]
    # the first attempt was cut off: it has measured up to its last checkpoint, or to the end of the process
    assert [attempts[n]["from_step"] for n in ("1", "2")] == [0, 6]
    second = attempts["2"]
    assert (second["to_step"], second["steps_timed"], second["lost_steps"]) == (10, 4, 1)
    assert (second["tokens_per_step"], second["saves"], second["ended"]) == (32.0, 2, "done")
    assert second["aside_seconds"] > 0
    assert 0 <= second["data_wait_share"] <= 1
    # tied or not, as the model itself counts
    assert second["parameters"] == {"model": trainer(path.parent.parent / "x").model.num_parameters()}


def test_the_readers_of_runs(resumed: tuple[Path, Any]) -> None:
    """The index of runs: one row, done, nothing wrong with it."""
    path, second = resumed
    (row,) = scan(path.parent, index=False)
    assert (row.state, row.step, row.total, row.attempts, row.problems) == ("done", STEPS, STEPS, 2, ())
    best = min(e["eval_loss"] for e in second.state.log_history if "eval_loss" in e)
    assert row.metrics["eval_loss"].min == best


def test_what_makes_it_the_same_run(tmp_path: Path) -> None:
    """Output path, saving and reporting do not; learning rate, model and `config=` do."""
    from loadsheet.integrations.transformers import config_of
    from loadsheet.run.fingerprint import fingerprint

    def of(**settings: Any) -> str:
        made = trainer(tmp_path, **settings)
        config, excluded = config_of(made.args, made.model, made.get_train_dataloader())
        assert config["examples"] == 24
        return fingerprint(config, excluded)

    same = {
        of(),
        of(output_dir=str(tmp_path / "b")),
        of(save_steps=5, logging_steps=2, dataloader_num_workers=1),
    }
    assert len(same) == 1
    assert len(same | {of(learning_rate=1e-3), of(seed=7), of(max_steps=11)}) == 4


def test_stopped_early(tmp_path: Path) -> None:
    """EarlyStoppingCallback makes it done; another stop, of a machine that goes, does not."""

    class Told(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            control.should_training_stop = state.global_step == 4

    trainer(tmp_path / "told", Told()).train()
    told = run_of(tmp_path / "told")
    assert read_done(told) is None
    assert [e["reason"] for e in read_events(told) if e["event"] == "stopped"] == [
        "the Trainer was told to stop"
    ]
    early = trainer(
        tmp_path / "early",
        transformers.EarlyStoppingCallback(1, early_stopping_threshold=9.0),  # nothing is so much better
        eval_steps=3,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
    )
    early.train()
    assert early.state.global_step == 6
    assert read_done(run_of(tmp_path / "early")) == 6


def test_the_same_again_from_the_start(tmp_path: Path) -> None:
    """Without `resume_from_checkpoint` it begins anew: the same run, one more attempt, not done any more."""
    trainer(tmp_path, save_strategy="no").train()
    with pytest.raises(ConnectionError):
        trainer(tmp_path, Crash(2), save_strategy="no").train()
    path = run_of(tmp_path)
    assert read_done(path) is None
    assert ls.read_log(path)["step"] == [0]
