"""What the checks are told: the folder, the user's figures, the machine, and how long they may take."""

from __future__ import annotations

import copy
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from loadsheet.cloud import git
from loadsheet.cloud.checklist import CannotLook
from loadsheet.cloud.last_run import LastRun, newest_run
from loadsheet.cloud.machine import Machine
from loadsheet.cloud.plan_file import PlanFile, read_plan_file

if TYPE_CHECKING:
    from loadsheet.cloud.answers import Answers
    from loadsheet.money.price import Price

_T = TypeVar("_T")
#: seconds before the end at which a long check gives what it has
_MARGIN: Final = 1.0


@dataclass(frozen=True)
class Inputs:
    """The user's figures, in base units; what was not given has a default and is starred where it is used."""

    runs: Path = Path("runs")
    checkpoint_dir: Path | None = None
    sheet: Path | None = None
    data: tuple[str, ...] = ()
    mirror: str | None = None
    keep: int = 2  # checkpoints, as `Run.steps` keeps
    checkpoint_bytes: int | None = None
    every: float = 600.0  # seconds between saves
    notice: float = 120.0  # seconds from a notice to the end: AWS; Google and Azure give 30
    workers: int = 4  # loader processes
    gpus: int | None = None
    price: Price | None = None
    pid: int | None = None  # a training that runs already
    accounts: tuple[str, ...] = ()  # aws, gcp, azure: looked at only where asked
    regions: tuple[str, ...] = ()  # of a provider, by its own names
    instance_type: str | None = None
    instances: int = 1
    spot: bool = False
    subnet: str | None = None
    volume: str | None = None
    #: names of the fields that were given
    given: frozenset[str] = field(default=frozenset())
    #: names of the fields that got a star
    starred: set[str] = field(default_factory=set, compare=False)

    def star(self, name: str) -> str:
        """A star for what was defaulted, as in a sheet."""
        if name in self.given:
            return ""
        self.starred.add(name)
        return "*"

    def shown(self) -> list[dict[str, Any]]:
        """Every input with its value and whether it was defaulted, as JSON."""
        rows = []
        for entry in fields(self):
            if entry.name in {"given", "starred"}:
                continue
            value = getattr(self, entry.name)
            if isinstance(value, Path):
                value = str(value)
            elif isinstance(value, tuple):
                value = list(value)
            elif not isinstance(value, str | int | float | bool | type(None)):
                value = str(value)
            rows.append({"name": entry.name, "value": value, "defaulted": entry.name not in self.given})
        return rows


class Context:
    """Handed to every check. What several checks need is found out once, when the first asks."""

    def __init__(
        self,
        directory: Path,
        inputs: Inputs | None = None,
        machine: Machine | None = None,
        timeout: float = 60.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`directory`: the folder of the code; `options`: whatever a family of checks is told beside `inputs`."""
        self.directory = directory.resolve()
        self.inputs = inputs or Inputs()
        # no program out of the folder that is looked at is run, whatever PATH says
        self.machine = machine or Machine(
            not_from=[self.directory] if self.directory.parent != self.directory else []
        )
        self.options = dict(options or {})
        self.deadline = time.monotonic() + timeout
        self.timeout = timeout
        #: told what a long check is at, from any thread; for a line on a terminal
        self.tell: Callable[[str], None] = lambda text: None
        self._locks: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)
        self._known: dict[str, tuple[Any, CannotLook | None]] = {}

    def left(self) -> float:
        """Seconds that a long check may still take, its margin for answering taken off."""
        return self.deadline - min(_MARGIN, self.timeout / 10) - time.monotonic()

    def once(self, name: str, find: Callable[[], _T]) -> _T:
        """What `find` finds, or the CannotLook that it raised, asked only once in the life of a context."""
        with self._locks[name]:  # one for each: what hangs holds up only those who need it
            if name not in self._known:
                try:
                    self._known[name] = find(), None
                except CannotLook as error:
                    self._known[name] = None, error
            value, refused = self._known[name]
        if refused is not None:
            raise copy.copy(refused)  # of its own kind, and with a traceback of its own
        found: _T = value
        return found

    @property
    def repository(self) -> git.Repository | None:
        """The repository of the folder; None where there is none; CannotLook where git refuses."""
        return self.once("repository", lambda: git.find(self.machine, self.directory))

    @property
    def sheet(self) -> PlanFile | None:
        """The sheet that was given; CannotLook if it cannot be read, or was edited after it was signed."""
        path = self.inputs.sheet
        return self.once("sheet", lambda: read_plan_file(self.place(path)) if path is not None else None)

    @property
    def last_run(self) -> LastRun | None:
        """The run under `--runs` that was written to last."""
        return self.once("last run", lambda: newest_run(self.place(self.inputs.runs)))

    def place(self, path: Path) -> Path:
        """A path as the user means it: relative to the folder of the code."""
        return self.directory / path.expanduser()

    @cached_property
    def checkpoint_place(self) -> Path:
        """Where checkpoints will be written; the nearest folder above that exists already."""
        wanted = self.place(self.inputs.checkpoint_dir or self.inputs.runs)
        while not wanted.exists() and wanted != wanted.parent:
            wanted = wanted.parent
        return wanted.resolve()

    @property
    def free_bytes(self) -> int:
        """Bytes that an ordinary user may still write there; looked at once, before anything is tried out."""

        def find() -> int:
            facts = self.machine.statvfs(self.checkpoint_place)
            return facts.f_bavail * facts.f_frsize

        return self.once("free bytes", find)

    @property
    def checkpoint_size(self) -> tuple[int, str] | None:
        """Bytes of one checkpoint, and where the figure comes from: given, the sheet, the last run."""
        if self.inputs.checkpoint_bytes is not None:
            return self.inputs.checkpoint_bytes, "as given"
        sheet = self.sheet
        if sheet is not None and sheet.checkpoint_bytes is not None:
            return sheet.checkpoint_bytes, "from the sheet"
        last = self.last_run
        if last is not None and last.checkpoint_bytes is not None:
            return last.checkpoint_bytes, f"from run {last.name}"
        return None

    @cached_property
    def answers(self) -> Answers:
        """What a person has answered before."""
        from loadsheet.cloud.answers import read_answers

        return read_answers(self.notebook / "answers.json")

    @property
    def notebook(self) -> Path:
        """The folder `.loadsheet` of the code: answers, and what a rehearsal found."""
        top = self.directory
        try:
            repository = self.repository
        except CannotLook:
            repository = None
        if repository is not None and not (top / ".loadsheet").is_dir():
            top = repository.top
        return top / ".loadsheet"
