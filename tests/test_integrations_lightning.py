"""The callback for Lightning, with the real library: what it records is what Lightning's own logger writes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("lightning")
pytest.importorskip("msgspec")

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

import loadsheet as ls
from loadsheet.history.index import scan
from loadsheet.run.directory import read_done
from loadsheet.run.reading import read_events

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning has much to say


class Module(lightning.LightningModule):  # type: ignore[misc]
    """A tiny model; `optimizers` 2: as a GAN, which steps two of them for each batch."""

    def __init__(self, lr: float = 0.1, optimizers: int = 1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Linear(4, 1)
        self.other = torch.nn.Linear(4, 1)
        self.automatic_optimization = optimizers == 1

    def training_step(self, batch: Any, index: int) -> Any:
        loss = self.net(batch[0]).pow(2).mean() + self.other(batch[0]).pow(2).mean()
        self.log("loss", loss, on_step=True, on_epoch=True)
        if not self.automatic_optimization:
            for each in self.optimizers():
                each.zero_grad()
            self.manual_backward(loss)
            for each in self.optimizers():
                each.step()
            return None
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", self.net(batch[0]).pow(2).mean())
        self.log("of_a_batch", float(index), on_step=True, on_epoch=False)

    def configure_optimizers(self) -> Any:
        made = [torch.optim.Adam(m.parameters(), self.hparams.lr) for m in (self.net, self.other)]
        return (
            made if not self.automatic_optimization else torch.optim.Adam(self.parameters(), self.hparams.lr)
        )


class Crash(lightning.Callback):  # type: ignore[misc]
    def __init__(self, epoch: int, batch: int) -> None:
        self.at = (epoch, batch)

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        if (trainer.current_epoch, index) == self.at:
            raise ConnectionError("gone")


def fit(folder: Path, *callbacks: Any, module: Any = None, ckpt: Path | None = None, **settings: Any) -> Any:
    """Three epochs of ten batches; each is validated twice, and saved after each validation."""
    from loadsheet.integrations.lightning import LoadsheetCallback

    lightning.seed_everything(0, verbose=False)
    data = torch.utils.data.TensorDataset(torch.randn(40, 4, generator=torch.Generator().manual_seed(0)))
    loader = torch.utils.data.DataLoader(data, 4)
    trainer = lightning.Trainer(
        **{
            "default_root_dir": folder,
            "accelerator": "cpu",
            "logger": CSVLogger(folder, "csv", version=""),
            "max_epochs": 3,
            "log_every_n_steps": 1,
            "val_check_interval": 5,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "callbacks": [
                LoadsheetCallback(folder / "runs", config={"data": "fixed"}),
                *callbacks,
                ModelCheckpoint(folder / "saved", save_top_k=-1, every_n_epochs=1),
            ],
            **settings,
        }
    )
    trainer.fit(module or Module(), loader, torch.utils.data.DataLoader(data, 8), ckpt_path=ckpt)
    return trainer


def run_of(folder: Path) -> Path:
    """The one run directory."""
    (path,) = [path for path in (folder / "runs").iterdir() if path.is_dir()]
    return path


def csv_of(folder: Path) -> dict[int, dict[str, float]]:
    """What CSVLogger wrote, one entry per step."""
    found: dict[int, dict[str, float]] = {}
    with next(folder.rglob("metrics.csv")).open() as file:
        for row in csv.DictReader(file):
            step = int(row.pop("step"))
            found.setdefault(step, {}).update({k: float(v) for k, v in row.items() if v})
    return found


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A fit that crashed in its third epoch and went on from the end of the second; and one in one go."""
    whole, folder = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("resumed")
    fit(whole)
    with pytest.raises(ConnectionError):
        fit(folder, Crash(2, 3))
    (newest,) = (folder / "saved").glob("*step=20*")
    trainer = fit(folder, ckpt=newest, logger=False)
    data = torch.utils.data.TensorDataset(torch.randn(8, 4, generator=torch.Generator().manual_seed(0)))
    trainer.validate(Module(), torch.utils.data.DataLoader(data, 8), verbose=False)
    return whole, folder


def test_each_step_once_and_as_lightning_says(resumed: tuple[Path, Path]) -> None:
    """Against the CSV that Lightning writes of the fit in one go; the data have one order, so the numbers agree."""
    whole, folder = resumed
    expected = csv_of(whole)
    for path, last in ((run_of(whole), 30), (run_of(folder), 31)):
        log = ls.read_log(path)
        assert log["step"] == list(range(last))
        for name in ("loss_step", "val_loss", "loss_epoch", "epoch"):
            mine = log[name][:30]
            theirs = [expected[step].get(name) for step in range(30)]
            assert [m is None for m in mine] == [t is None for t in theirs], name
            assert [m for m in mine if m is not None] == pytest.approx([t for t in theirs if t is not None])
        assert "of_a_batch" not in log
    assert ls.read_log(run_of(folder))["attempt"] == [1] * 20 + [2] * 11


def test_attempts_and_events(resumed: tuple[Path, Path]) -> None:
    """The step it went on from, why it was left, what Lightning saved, and that it is done."""
    _, folder = resumed
    path = run_of(folder)
    events = read_events(path)
    assert [(e["attempt"], e["from"]) for e in events if e["event"] == "resume"] == [(1, 0), (2, 20)]
    assert [(e["step"], e["reason"]) for e in events if e["event"] == "left"] == [(23, "ConnectionError")]
    assert [e["step"] for e in events if e["event"] == "checkpoint"] == [5, 10, 15, 20, 25, 30]
    size = next((folder / "saved").glob("*step=30*")).stat().st_size
    assert [e["bytes"] for e in events if e["event"] == "checkpoint"][-1] == size
    assert read_done(path) == 30
    (row,) = scan(path.parent, index=False)
    assert (row.state, row.step, row.total, row.attempts, row.problems) == ("done", 30, 30, 2, ())


def test_what_was_measured(resumed: tuple[Path, Path]) -> None:
    """Steps, lost steps, saves and parameters of both attempts, by hand."""
    _, folder = resumed
    attempts = json.loads((run_of(folder) / "measured.json").read_bytes())["attempts"]
    facts = [
        [attempts[n][k] for k in ("from_step", "to_step", "steps_timed", "lost_steps", "saves", "ended")]
        for n in ("1", "2")
    ]
    assert facts == [[0, 23, 23, 0, 4, "left"], [20, 30, 10, 3, 2, "done"]]
    assert attempts["2"]["parameters"] == {"model": 2 * (4 + 1)}
    assert attempts["2"]["aside_seconds"] > 0


def test_two_optimizers_and_a_checkpoint_within_an_epoch(tmp_path: Path) -> None:
    """Lightning's global_step counts both optimizers; a step is one batch all the same, also when it goes on."""
    saving = ModelCheckpoint(tmp_path / "within", save_top_k=-1, every_n_train_steps=14)
    with pytest.raises(ConnectionError):
        fit(tmp_path, saving, Crash(0, 9), module=Module(optimizers=2))
    (newest,) = (tmp_path / "within").glob("*step=14*")
    fit(tmp_path, module=Module(optimizers=2), ckpt=newest)
    path = run_of(tmp_path)
    assert [e["from"] for e in read_events(path) if e["event"] == "resume"] == [0, 7]
    assert ls.read_log(path)["step"] == list(range(30))


def test_accumulated_gradients(tmp_path: Path) -> None:
    """Two batches are one step."""
    fit(tmp_path, accumulate_grad_batches=2, max_epochs=1)
    path = run_of(tmp_path)
    assert (ls.read_log(path)["step"], read_done(path)) == ([0, 1, 2, 3, 4], 5)


def test_stopped_early_and_stopped(tmp_path: Path) -> None:
    """EarlyStopping makes it done; a stop by anything else does not."""

    class Told(lightning.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.should_stop = trainer.global_step >= 4

    fit(tmp_path / "early", EarlyStopping("val_loss", min_delta=99.0, patience=1))
    fit(tmp_path / "told", Told())
    assert read_done(run_of(tmp_path / "early")) is not None
    told = run_of(tmp_path / "told")
    assert read_done(told) is None
    assert [e["reason"] for e in read_events(told) if e["event"] == "stopped"] == [
        "the trainer was told to stop"
    ]


def test_its_checkpoints_stay_where_they_were(tmp_path: Path) -> None:
    """With the callback and without a logger, ModelCheckpoint writes to the same place as without it."""
    from loadsheet.integrations.lightning import LoadsheetCallback

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 4)), 2)
    places = []
    for number, callbacks in enumerate(([], [LoadsheetCallback(tmp_path / "runs")])):
        folder = tmp_path / str(number)
        trainer = lightning.Trainer(
            default_root_dir=folder, accelerator="cpu", logger=False, callbacks=callbacks, max_epochs=1,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(Module(), loader)
        places.append(sorted(str(file.relative_to(folder)) for file in folder.rglob("*.ckpt")))
    assert places[0] == places[1] != []
