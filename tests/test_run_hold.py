"""A run that is held at a step from outside, and one whose root another process decides."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("msgspec")

from torture.small import Training

import loadsheet as ls
from loadsheet.run.hold import AT, HELD, VARIABLE

PATIENCE = 120.0
pytestmark = pytest.mark.filterwarnings("ignore:.*lives but was not kept")


class Watcher:
    """Another process, in a thread: once the run is held it does something."""

    def __init__(self, folder: Path, act: object) -> None:
        self.folder, self.act = folder, act
        self.seen: dict[str, object] = {}
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self) -> None:
        ended = threading.Event()
        for _ in range(int(PATIENCE / 0.01)):
            if (self.folder / HELD).exists():
                self.seen = json.loads((self.folder / HELD).read_bytes())
                self.act()  # type: ignore[operator]
                return
            ended.wait(0.01)


def test_held_until_it_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many completed steps, and told which run it is; nothing is different in the end."""
    folder = tmp_path / "hold"
    folder.mkdir()
    (folder / AT).write_text("3")
    monkeypatch.setenv(VARIABLE, str(folder))
    with Training(tmp_path / "runs") as training:
        watcher = Watcher(folder, (folder / AT).unlink)
        assert training.train(6) == [0, 1, 2, 3, 4, 5]
        watcher.thread.join()
        assert watcher.seen == {"run": str(training.run.path.resolve()), "completed": 3, "pid": os.getpid()}


def test_a_signal_ends_the_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state is saved, and the run stops as ever."""
    folder = tmp_path / "hold"
    folder.mkdir()
    (folder / AT).write_text("3")
    monkeypatch.setenv(VARIABLE, str(folder))
    with Training(tmp_path / "runs") as training:
        watcher = Watcher(folder, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(ls.Stopped) as stopped:
            training.train(6)
        watcher.thread.join()
        assert (stopped.value.code, stopped.value.step) == (75, 3)


@pytest.mark.parametrize("text", ["", "soon", "9", None])
def test_nothing_that_says_so(text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No number, one beyond the end, or no file: the run goes on."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    if text is not None:
        (tmp_path / AT).write_text(text)
    with Training(tmp_path / "runs") as training:
        assert training.train(4) == [0, 1, 2, 3]
    assert not (tmp_path / HELD).exists()


def test_another_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LOADSHEET_RUNS_ROOT takes the place of the script's, and the mirror is left alone."""
    monkeypatch.setenv("LOADSHEET_RUNS_ROOT", str(tmp_path / "scratch"))
    with Training(tmp_path / "runs", mirror=str(tmp_path / "mirror")) as training:
        training.train(3)
        assert training.run.path.parent == tmp_path / "scratch"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scratch"]
