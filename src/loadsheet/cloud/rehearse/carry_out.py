"""The stages of a rehearsal, one after another; the first that fails ends it.

Two runs are made: one from its beginning to its end, and one that is told to go, is killed, and goes on.
Both begin with the same state. The first is held after its first step for a moment, so that the state it
saved before it can be given to the second; the second is held where it is interrupted, so that a run of a
few milliseconds can be.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from loadsheet.cloud.rehearse.first import first_run
from loadsheet.cloud.rehearse.process import Life, Lives, nothing_left
from loadsheet.cloud.rehearse.scratch import Scratch
from loadsheet.cloud.rehearse.second import second_run
from loadsheet.cloud.rehearse.stage import STAGES, Failed, Figures, Stage, quoted, read_object, status_text
from loadsheet.errors import BadFile, one_line
from loadsheet.run.errors import RunError
from loadsheet.run.fingerprint import differences
from loadsheet.run.reading import stream_log
from loadsheet.units import format_duration


@dataclass
class Rehearsal:
    """The rehearsal of a command in a directory; `stages` fills up as it is carried out.

    `timeout`: seconds that one start of the command may take; `notice`: from a notice to the end.
    """

    command: Sequence[str]
    directory: Path
    scratch: Scratch
    environment: Mapping[str, str]
    timeout: float = 600.0
    notice: float = 120.0
    lives: Lives = field(default_factory=Lives)
    stages: list[Stage] = field(default_factory=list)
    figures: Figures = field(default_factory=Figures)
    starts: int = 0
    run: str = ""  # the name of the run that is interrupted
    warned: list[str] = field(default_factory=list)  # by the run itself

    @property
    def passed(self) -> bool:
        """Whether every stage was come to, and none failed."""
        good = [stage for stage in self.stages if stage.state in ("ok", "warn")]
        return len(good) == len(STAGES)

    def carry_out(self) -> Iterator[Stage]:
        """The stages, each once it is through; nothing of the command is left at the end.

        In `stages` those that were not come to are there, too, once this has ended.
        """
        with nothing_left():
            try:
                for stage in self._all():
                    self.stages.append(stage)
                    yield stage
            except (Failed, BadFile, RunError) as error:  # what a run left cannot be read
                following = next(name for name in STAGES if name not in {stage.id for stage in self.stages})
                failed = error if isinstance(error, Failed) else Failed(following, one_line(str(error)))
                self.stages.append(failed.stage)
                yield failed.stage
        known = {stage.id: stage for stage in self.stages}
        self.stages = [known.get(name, Stage(name, "unknown", ("not come to",))) for name in STAGES]

    def _all(self) -> Iterator[Stage]:
        yield from first_run(self)
        yield from second_run(self)

    # --- what both runs need ----------------------------------------------------------------------------

    def start(self, root: Path, name: str) -> AbstractContextManager[Life]:
        """The command once more, its runs below `root`; its output is kept under `name`."""
        self.starts += 1
        environment = self.scratch.environment(root, self.environment)
        return self.lives.start(self.command, environment, self.directory, self.scratch.path / f"{name}.out")

    def wait_held(self, life: Life, stage: str, at: int) -> None:
        """Until the run waits after `at` steps; a failure of the stage if it does not come to that."""
        if not life.wait_for(lambda: self.scratch.held() is not None, self.timeout):
            status = life.status()
            if status is None:
                raise Failed(stage, self.hangs(life, self.scratch.resumed), *quoted(life))
            raise Failed(
                stage, f"started again it ended with {status_text(status)} before step {at}", *quoted(life)
            )
        found = Path((self.scratch.held() or {})["run"])
        if found.name != self.run:
            old, new = (
                read_object(path / "config.json") for path in (self.scratch.reference / self.run, found)
            )
            raise Failed(
                stage,
                "started again it opened another run, and would never find the first one: its config is another "
                f"each time ({'; '.join(differences(old, new, 3))})",
                "what does not make another experiment is left out by `Run.open(..., exclude=[...])`",
            )
        self.note_warnings(life)

    def hangs(self, life: Life, root: Path) -> str:
        """In words: how long nothing has come."""
        text = f"still running after {format_duration(life.seconds)} (--timeout)"
        logs = [path / "log.jsonl" for path in self.scratch.runs(root)]
        logs = [path for path in logs if path.exists()]
        steps = [record["step"] for path in logs for record in stream_log(path)]
        if not steps:
            return f"{text}, and no step was logged"
        ago = format_duration(max(time.time() - max(path.stat().st_mtime for path in logs), 0.0))
        return f"{text}; the last sign, {ago} ago: step {max(steps)}"

    def note_warnings(self, life: Life) -> None:
        """What the run warned of, for who must find a cause."""
        for line in life.tail(400, 400):
            _, mark, text = line.partition("RunWarning: ")
            # what differs is compared here, more thoroughly; and who is killed leaves a save unfinished
            if mark and not text.startswith("not the same bits") and "unfinished save" not in text:
                self.warned += [text] if text not in self.warned else []


def environment() -> dict[str, str]:
    """This process's own, without what concerns other runs."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LOADSHEET_")}
