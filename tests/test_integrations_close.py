"""A signed sheet, carried out by another trainer that is cut off once, and closed; with the real libraries."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("msgspec")

import torch
import transformers
from terminal import answered

import loadsheet as ls
from loadsheet.closing.closed import Closed
from loadsheet.history.rows import read_row

pytestmark = pytest.mark.filterwarnings("ignore")  # the trainers have much to say

STEPS, SAVED, CUT = 10, 6, 8  # of 10 steps, saved after every third, the ninth does not come
TOKENS = 4 * 8


def net() -> Any:
    """A tiny Llama, the same each time."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, vocab_size=50,
        intermediate_size=32, max_position_embeddings=32, tie_word_embeddings=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def data() -> torch.Tensor:
    return torch.randint(0, 50, (24, 8), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def sheet(tmp_path: Path) -> Path:
    """The signed sheet of that Llama on a CPU: 10 steps of 4 × 8 tokens."""
    model, card = tmp_path / "model.json", tmp_path / "card.json"
    model.write_text(json.dumps(net().config.to_dict() | {"architectures": ["LlamaForCausalLM"]}))
    machine = {"id": "a-cpu", "device": "cpu", "memory_usable_bytes": 8 << 30, "bandwidth": 1e10}
    card.write_text(json.dumps(machine | {"peaks": {"fp32": 5e10}}))
    planned = ls.plan(str(model), str(card), batch=4, seq=8, precision="fp32", stack="hf")
    ls.sign(planned, tmp_path / "sheet.json", steps=STEPS, checkpoint_every=3)
    return tmp_path / "sheet.json"


def cut_off(root: Path, logged: int) -> Path:
    """The run after its first life: where its trainer saved is known, though the checkpoints are elsewhere."""
    (path,) = [path for path in root.iterdir() if path.is_dir()]
    row = read_row(path)
    assert (row.step, row.unsaved_steps, row.checkpoints) == (logged, logged - SAVED, ())
    page = answered("runs", "show", path.name, "--runs", str(root)).stdout
    assert f"saved to {SAVED}: {logged - SAVED} step" in " ".join(page.split())
    return path


def closed(path: Path, sheet: Path) -> Closed:
    """The closed sheet, and what holds whatever the trainer."""
    found = ls.close(path)
    predicted = json.loads(sheet.read_text())["sheet"]["memory"]["peak_bytes"]["mid"]
    item = found["peak_bytes"]  # no second copy of the state is kept, as a run of our own does
    assert item.predicted is not None
    assert (item.predicted.mid, item.note) == (predicted, "")
    assert item.measured is not None
    assert found["tokens_per_step"].measured == TOKENS
    assert (found["interruptions"].measured, found["lost_steps"].measured) == (1, CUT - SAVED)
    attempts = json.loads((path / "measured.json").read_text())["attempts"].values()
    parts = {part.name: part.seconds for part in found.hours.parts}
    assert parts["saving"] == pytest.approx(math.fsum(a["save_stall_sum_seconds"] for a in attempts))
    assert math.fsum(parts.values()) == pytest.approx(found.hours.measured - found.hours.predicted)
    assert found.hours.measured == read_row(path).seconds
    assert read_row(path).state == "done"
    return found


def test_transformers(tmp_path: Path, sheet: Path) -> None:
    """A Trainer that dies in its eighth step, before anything is logged of it, and goes on after the sixth."""
    pytest.importorskip("accelerate")
    from loadsheet.integrations.transformers import LoadsheetCallback

    class Cut(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if state.global_step == CUT:
                raise ConnectionError("gone")

    def train(*callbacks: Any, resume: bool = False) -> None:
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / "out"), max_steps=STEPS, per_device_train_batch_size=4, logging_steps=1,
            save_steps=3, report_to=[], disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False,
        )  # fmt: skip
        callback = LoadsheetCallback(tmp_path / "runs", config={"data": "fixed"}, sheet=sheet)
        rows = [{"input_ids": row, "labels": row} for row in data()]
        trainer = transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[callback, *callbacks])
        try:
            trainer.train(resume_from_checkpoint=resume)
        finally:
            assert callback.record is not None
            callback.record.close()  # the end of the process does this

    model = net()
    with pytest.raises(ConnectionError):
        train(Cut())
    path = cut_off(tmp_path / "runs", CUT - 1)
    # the same model in the same process: what saving has written into its config makes it no other run
    train(resume=True)
    found = closed(path, sheet)
    item = found["parameters"]
    assert (item.measured, item.inside) == (model.num_parameters(), True)
    sizes = [sum(f.stat().st_size for f in folder.rglob("*")) for folder in (tmp_path / "out").iterdir()]
    assert found["checkpoint_bytes"].measured in sizes


def test_lightning(tmp_path: Path, sheet: Path) -> None:
    """A fit that is left by an error before its ninth step, and goes on after the sixth."""
    lightning = pytest.importorskip("lightning")
    from loadsheet.integrations.lightning import LoadsheetCallback

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, batch: Any, index: int) -> Any:
            loss = self.net(input_ids=batch, labels=batch).loss
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), 1e-3)

    class Cut(lightning.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
            if trainer.global_step == CUT:
                raise ConnectionError("gone")

    def fit(*callbacks: Any, ckpt: str | None = None) -> None:
        saves = lightning.pytorch.callbacks.ModelCheckpoint(
            tmp_path / "saved", every_n_train_steps=3, save_last=True
        )
        callback = LoadsheetCallback(tmp_path / "runs", sheet=sheet)
        trainer = lightning.Trainer(
            max_steps=STEPS, accelerator="cpu", logger=False, enable_progress_bar=False, log_every_n_steps=1,
            enable_model_summary=False, default_root_dir=tmp_path, callbacks=[callback, saves, *callbacks],
        )  # fmt: skip
        try:
            trainer.fit(Module(), torch.utils.data.DataLoader(data(), 4), ckpt_path=ckpt)
        finally:
            assert callback.record is not None
            callback.record.close()  # the end of the process does this

    with pytest.raises(ConnectionError):
        fit(Cut())
    path = cut_off(tmp_path / "runs", CUT)
    fit(ckpt="last")
    found = closed(path, sheet)
    assert (found["parameters"].measured, found["parameters"].inside) == (net().num_parameters(), True)
    assert found["checkpoint_bytes"].measured == (tmp_path / "saved" / "last.ckpt").stat().st_size


def test_accelerate(tmp_path: Path, sheet: Path) -> None:
    """A loop that saves within a step after it has been made: after six steps, and not after five."""
    accelerate = pytest.importorskip("accelerate")
    from loadsheet.integrations.accelerate import LoadsheetTracker

    saved = tmp_path / "saved"

    def train(completed: int, until: int) -> None:
        tracker = LoadsheetTracker(tmp_path / "runs", sheet=sheet)
        accelerator = accelerate.Accelerator(cpu=True, log_with=tracker)
        accelerator.init_trackers("test", config={"lr": 1e-3})
        model = net()
        model, optimizer, loader = accelerator.prepare(
            model, torch.optim.AdamW(model.parameters(), 1e-3), torch.utils.data.DataLoader(data(), 4)
        )
        if completed:
            accelerator.load_state(saved)
        tracker.resume(completed, STEPS)
        while completed < until:
            for batch in tracker.batches(loader):
                loss = model(input_ids=batch, labels=batch).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                accelerator.log({"loss": loss.item()}, step=completed)
                completed += 1
                if completed % 3 == 0:
                    with tracker.saving(saved):
                        accelerator.save_state(saved)
                if completed == until:
                    break
        if until == STEPS:
            accelerator.end_training()
        else:
            assert tracker.record is not None
            tracker.record.leave_step()
            tracker.record.close()

    train(0, CUT)
    path = cut_off(tmp_path / "runs", CUT)
    train(SAVED, STEPS)
    found = closed(path, sheet)
    assert found["checkpoint_bytes"].measured == sum(f.stat().st_size for f in saved.rglob("*"))
    assert {part.name: part.seconds for part in found.hours.parts}["evaluation"] == 0  # a save is none
