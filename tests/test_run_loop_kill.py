"""SIGKILL at random instants, and signals to the whole process group: nothing promised is ever lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torture.killing import (
    PATIENCE,
    Life,
    Script,
    Tally,
    columns,
    committed,
    kill_many,
    living,
    reference,
    start_server,
)
from torture.programs import Spec

from loadsheet.run.reading import read_events

SCRIPTS = Path(__file__).parent / "torture" / "scripts"
SEED = 4  # of the kinds of kills; the instants are the machine's


@pytest.mark.parametrize(
    "spec",
    [
        Spec(workers=None, steps=60, every=4),
        Spec(workers=2, accumulation=2, scheduler="onecycle", optimizer="adam-fused"),
        Spec(workers=0, amp=True, scheduler="cosine", every=1),
    ],
    ids=["plain", "workers", "every-step"],
)
def test_killed_at_random_instants(spec: Spec, tmp_path: Path) -> None:
    """Twelve kills: an intact checkpoint is always found, and the end is the uninterrupted run's."""
    print("seed", SEED)  # pytest shows it if this fails
    tally = Tally()
    kill_many(tmp_path, spec, 12, random.Random(SEED), tally)
    assert tally.kills == 12
    assert tally.resumed >= 1  # lives that did not begin at step 0


@pytest.mark.parametrize("name", ["gpt.py", "loader.py"])
def test_a_script_with_five_lines_added(name: str, tmp_path: Path) -> None:
    """Killed twenty times, its weights in the end are those of the uninterrupted run.

    One in the manner of nanoGPT, one with two loader workers, augmentation and accumulated gradients.
    """
    print("seed", SEED)
    script = Script(SCRIPTS / name)
    marked = [line for line in script.path.read_text().splitlines() if "# + " in line]
    assert len(marked) == 5
    tally = Tally()
    kill_many(tmp_path, script, 20, random.Random(SEED), tally)
    assert tally.kills == 20
    assert tally.resumed >= 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_to_the_whole_group(number: signal.Signals, tmp_path: Path) -> None:
    """Loader workers do not hear it; the main process saves, says 75 or 130, and takes its workers along."""
    spec = Spec(workers=2, steps=60, every=20, hold=30)
    expected = reference(tmp_path, spec)
    root, out = tmp_path / "root", tmp_path / "out.json"
    hold = tmp_path / "out.json.hold"
    hold.touch()
    life = Life(root, spec, out)
    assert life.wait_until(lambda: committed(root) == 20) is None
    os.killpg(life.pid, number)
    hold.unlink()
    assert life.wait(PATIENCE) == (130 if number == signal.SIGINT else 75)
    assert living(life.pid) == []  # nobody of that group is left
    assert Life(root, spec, out).wait(PATIENCE) == 0
    (path,) = root.iterdir()
    starts = [event["from"] for event in read_events(path) if event["event"] == "resume"]
    assert len(starts) == 2
    assert 20 < starts[1] <= 31  # the step in which the signal came was finished, and no other
    assert json.loads(out.read_text()) == expected.digest
    assert columns(root) == expected.log


EVALUATION = """
import contextlib, os, sys, time
import loadsheet as ls
import torch

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        if index == 20 and os.path.exists(sys.argv[2] + ".hold"):  # the signal comes while a worker loads
            open(sys.argv[2] + ".there", "w").close()
            time.sleep(3600)
        return float(index)

torch.manual_seed(0)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loader = torch.utils.data.DataLoader(Data(), num_workers=2, persistent_workers=HOW == "idle")
run = ls.Run.open(sys.argv[1], {})
run.keep(model=model, optimizer=optimizer)
evaluation = iter(loader) if HOW == "idle" else None

def train():
    for step in run.steps(6, checkpoint_every=2):
        model(torch.rand(4, 1)).pow(2).mean().backward()
        optimizer.step()
        if step == 3:
            if HOW == "idle":
                next(evaluation)
                if os.path.exists(sys.argv[2] + ".hold"):
                    open(sys.argv[2] + ".there", "w").close()
                    while os.path.exists(sys.argv[2] + ".hold"):
                        time.sleep(0.01)
                    time.sleep(0.5)  # long enough for the workers to die, and for torch to be told
            else:
                with run.aside() if HOW == "aside" else contextlib.nullcontext():
                    sum(loader)
        optimizer.zero_grad()
        run.log(weight=model.weight.item())

if HOW == "with":
    with run:
        train()
else:
    train()
open(sys.argv[2], "w").write(str([p.item() for p in model.parameters()]))
"""


@pytest.mark.parametrize("how", ["aside", "with", "bare", "idle"])
def test_a_signal_to_an_evaluation_with_workers(how: str, tmp_path: Path) -> None:
    """Its workers die of the signal: a stop, at status 75, and the same command ends with the same weights.

    In `run.aside`, in `with run:`, in neither; or with workers that have nothing to do at the time, which
    does not even end the step.
    """
    script = Script(tmp_path / "script.py")
    script.path.write_text(f"HOW = {how!r}\n{EVALUATION}")
    start_server()
    root, whole, out = tmp_path / "runs", tmp_path / "whole", tmp_path / "out"
    assert Life(tmp_path / "runs-whole", script, whole).wait(PATIENCE) == 0
    hold, there = tmp_path / "out.hold", tmp_path / "out.there"
    hold.touch()
    life = Life(root, script, out, cold=how == "bare")  # what multiprocessing starts has no excepthook
    assert life.wait_until(there.exists) is None
    os.killpg(life.pid, signal.SIGTERM)
    hold.unlink()
    assert life.wait(PATIENCE) == 75
    assert living(life.pid) == []
    saved = 4 if how == "idle" else 2
    assert committed(root) == saved
    (path,) = root.iterdir()
    (event,) = (e for e in read_events(path) if e["event"] == "stopped")
    assert (event["step"], event["reason"]) == (saved, "SIGTERM")
    assert ("error" in event) == (how != "idle")  # torch says it in more than one way
    assert Life(root, script, out).wait(PATIENCE) == 0
    assert [e["from"] for e in read_events(path) if e["event"] == "resume"] == [0, saved]
    assert out.read_text() == whole.read_text()


ORPHANS = """
import sys, time
import loadsheet as ls
import torch

torch.utils.data._utils.worker.MP_STATUS_CHECK_INTERVAL = 1e6  # torch's own look at the parent
loader = torch.utils.data.DataLoader(range(100), num_workers=2)
run = ls.Run.open(sys.argv[1], {})
batches = run.batches(loader)
for step in run.steps(10):
    next(batches)
    open(sys.argv[2], "w").close()
    time.sleep(3600)
"""


def test_an_error_ends_the_workers(tmp_path: Path) -> None:
    """A process that multiprocessing has started ends with its workers too, and does not wait for them."""
    script = tmp_path / "script.py"
    script.write_text(ORPHANS.replace("time.sleep(3600)", "run._record = None"))  # the loop's end fails
    start_server()
    life = Life(tmp_path / "root", Script(script), tmp_path / "out")
    assert life.wait(PATIENCE) == 1
    assert living(life.pid) == []


def test_workers_end_with_a_killed_process(tmp_path: Path) -> None:
    """The main process alone is killed: its workers notice by themselves, and their memory is free."""
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text(ORPHANS)
    start_server()
    life = Life(tmp_path / "root", Script(script), out)
    assert life.wait_until(out.exists) is None
    assert len(living(life.pid)) == 3
    life.kill(group=False)
    deadline = time.monotonic() + 60
    while living(life.pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert living(life.pid) == []


HELD = """
import sys
import torch
from torchdata.stateful_dataloader import StatefulDataLoader
import loadsheet as ls

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from range(1000)

with ls.Run.open(sys.argv[1], {}, progress=False) as run:
    batches = run.batches(StatefulDataLoader(Stream(), 4, num_workers=2))
    for step in run.steps(2):
        next(batches)
sys.held = batches
"""


def test_a_loader_that_is_still_held_does_not_keep_the_process(tmp_path: Path) -> None:
    """Its workers are deaf to the SIGTERM by which a process ends its children; it ends all the same."""
    ended = subprocess.run(
        [sys.executable, "-c", HELD, str(tmp_path)],
        check=False,
        timeout=PATIENCE,
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, "Error" in ended.stderr) == (0, False), ended.stderr
