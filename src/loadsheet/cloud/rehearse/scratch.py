"""Where a rehearsal happens: runs of its own, its notice, its hold; and what a script wrote elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadsheet.run.checkpoint import CheckpointStore
from loadsheet.run.directory import ROOT_VARIABLE, write_whole
from loadsheet.run.hold import AT, HELD
from loadsheet.run.hold import VARIABLE as HOLD_VARIABLE
from loadsheet.run.notices import VARIABLE as NOTICE_VARIABLE

_MOST: Final = 20_000  # entries that are looked at
_FOREIGN: Final = frozenset({".git", ".hg", ".loadsheet", "__pycache__", "node_modules", ".venv", "venv"})


class Scratch:
    """The folder of one rehearsal: `reference` and `resumed` hold runs, the rest is how it is directed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reference, self.resumed, self.fresh = path / "reference", path / "resumed", path / "fresh"
        self._hold, self._notice = path / "hold", path / "notice.json"
        for folder in (self.reference, self.resumed, self.fresh, self._hold):
            folder.mkdir(parents=True, exist_ok=True)

    def environment(self, root: Path, base: Mapping[str, str]) -> dict[str, str]:
        """What the command is told: where its runs go, where it hears of notices and of where to wait."""
        return {
            **base,
            ROOT_VARIABLE: str(root),
            NOTICE_VARIABLE: str(self._notice),
            HOLD_VARIABLE: str(self._hold),
            "PYTHONUNBUFFERED": "1",
        }

    # --- to be held, to be told -------------------------------------------------------------------------

    def hold(self, step: int) -> None:
        """The run is to wait after so many completed steps."""
        (self._hold / HELD).unlink(missing_ok=True)
        write_whole(self._hold / AT, str(step).encode())

    def release(self) -> None:
        """It may go on."""
        (self._hold / AT).unlink(missing_ok=True)

    def held(self) -> dict[str, Any] | None:
        """Which run waits, after which step; None if none does."""
        try:
            found = json.loads((self._hold / HELD).read_bytes()[:65_536])
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and isinstance(found.get("run"), str) else None

    def notice(self, seconds: float) -> float:
        """Say that the machine goes in so many seconds; when that was said, by `time.monotonic`."""
        notice = {"kind": "terminate", "deadline": time.time() + seconds, "source": "the rehearsal"}
        write_whole(self._notice, json.dumps(notice).encode())
        return time.monotonic()

    def take_back(self) -> None:
        """There is no notice any more."""
        self._notice.unlink(missing_ok=True)

    # --- runs -----------------------------------------------------------------------------------------------

    @staticmethod
    def runs(root: Path) -> list[Path]:
        """The run directories below a root."""
        return sorted(path.parent for path in root.glob("*/config.json"))

    @staticmethod
    def has_step(run: Path, step: int) -> bool:
        """Whether there is a checkpoint of so many steps."""
        return (run / "checkpoints" / f"step-{step:08d}").is_dir()

    def begin_alike(self, run: Path) -> None:
        """Let the second run begin as the first did: with the state that this saved before its first step.

        So a script that seeds nothing can be compared with itself.
        """
        target = self.resumed / run.name
        target.mkdir(exist_ok=True)
        shutil.copyfile(run / "config.json", target / "config.json")
        first = "step-00000000"
        shutil.copytree(run / "checkpoints" / first, target / "checkpoints" / first)
        size = CheckpointStore(target / "checkpoints").manifest(0).log_offset
        with (run / "log.jsonl").open("rb") as log:
            (target / "log.jsonl").write_bytes(log.read(size))


@dataclass(frozen=True)
class Traces:
    """The files of a folder at a moment; `whole` False: there were too many to look at all."""

    files: Mapping[str, tuple[int, int]]
    whole: bool

    def written_since(self, before: Traces) -> list[str]:
        """Files that are new or changed."""
        return sorted(name for name, facts in self.files.items() if before.files.get(name) != facts)


def traces(directory: Path) -> Traces:
    """What lies in a folder now, but for repositories, environments and caches."""
    found: dict[str, tuple[int, int]] = {}
    for number, (name, facts) in enumerate(_walk(directory)):
        if number >= _MOST:
            return Traces(found, False)
        found[name] = (facts.st_mtime_ns, facts.st_size)
    return Traces(found, True)


def _walk(directory: Path) -> Iterator[tuple[str, os.stat_result]]:
    for folder, folders, files in os.walk(directory):
        folders[:] = [
            name for name in folders if name not in _FOREIGN and not Path(folder, name, "pyvenv.cfg").exists()
        ]
        for name in files:
            path = os.path.join(folder, name)
            try:
                facts = os.lstat(path)
            except OSError:
                continue
            if stat.S_ISREG(facts.st_mode) and not name.endswith(".pyc"):
                yield os.path.relpath(path, directory), facts


def runs_among(names: list[str]) -> list[str]:
    """The run directories among files that were written."""
    logs = {os.path.dirname(name) for name in names if os.path.basename(name) == "log.jsonl"}
    folders = {
        os.path.dirname(name) for name in names if os.path.basename(name) in ("done.json", "measured.json")
    }
    return sorted(logs & folders)
