"""SIGKILL at random instants, and signals to the whole process group: nothing promised is ever lost."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from torture.killing import Life, Script, columns, committed, kill_many, kill_until_done, reference
from torture.programs import Spec

from loadsheet.run.reading import read_events

SCRIPTS = Path(__file__).parent / "torture" / "scripts"
SEED = int.from_bytes(os.urandom(4), "little")


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
    tally = kill_many(tmp_path, spec, 12, random.Random(SEED))
    assert tally.kills >= 12
    assert tally.resumed >= 1  # lives that did not begin at step 0


@pytest.mark.parametrize("name", ["gpt.py", "loader.py"])
def test_a_script_with_five_lines_added(name: str, tmp_path: Path) -> None:
    """Killed twenty times (over as many runs as that takes), the weights are identical after each.

    One in the manner of nanoGPT, one with two loader workers, augmentation and accumulated gradients.
    """
    print("seed", SEED)
    script = Script(SCRIPTS / name)
    marked = [line for line in script.path.read_text().splitlines() if "# + " in line]
    assert len(marked) == 5
    expected = reference(tmp_path, script)
    kills = resumed = 0
    for number in range(10):  # a life that is quicker than its kill ends a run early
        folder = tmp_path / f"run-{number}"
        folder.mkdir()
        tally = kill_until_done(folder, script, expected, random.Random(SEED + number), least=20)
        kills, resumed = kills + tally.kills, resumed + tally.resumed
        if kills >= 20:
            break
    assert kills >= 20
    assert resumed >= 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_to_the_whole_group(number: signal.Signals, tmp_path: Path) -> None:
    """Loader workers do not hear it; the main process saves, says 75 or 130, and takes its workers along."""
    spec = Spec(workers=2, steps=400, every=100)
    expected = reference(tmp_path, spec)
    root, out = tmp_path / "root", tmp_path / "out.json"
    life = Life(root, spec, out, cold=False)
    deadline = time.monotonic() + 60
    while committed(root) < 100 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(life.pid, number)
    assert life.wait(30) == (130 if number == signal.SIGINT else 75)
    with pytest.raises(ProcessLookupError):
        os.killpg(life.pid, 0)  # nobody of that group is left
    assert Life(root, spec, out, cold=False).wait(60) == 0
    (path,) = root.iterdir()
    starts = [event["from"] for event in read_events(path) if event["event"] == "resume"]
    assert len(starts) == 2
    assert 100 <= starts[1] < 400
    assert json.loads(out.read_text()) == expected.digest
    assert columns(root) == expected.log


def test_workers_end_with_a_killed_process(tmp_path: Path) -> None:
    """The main process alone is killed: its workers notice at once, and their memory is free."""
    spec = Spec(workers=2, steps=4000, every=5)
    root, out = tmp_path / "root", tmp_path / "out.json"
    life = Life(root, spec, out, cold=False)
    deadline = time.monotonic() + 60
    while committed(root) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(life.pid, 0)
    life.kill(group=False)
    begun = time.monotonic()
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < begun + 10:
            os.killpg(life.pid, 0)
            time.sleep(0.02)
    assert time.monotonic() - begun < 3
