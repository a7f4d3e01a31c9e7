"""What a job needs of a sheet: a signed one, that of a run directory, or what `plan --json` prints."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadsheet import signature
from loadsheet.errors import BadFile, one_line
from loadsheet.run.sheetfile import NAME
from loadsheet.safejson import file_label, load_json

_MOST: Final = 1e30


@dataclass(frozen=True)
class Facts:
    """Figures of a sheet, base units; None for what it does not say."""

    label: str  # the file, as errors name it
    model: str
    task: str
    params: int | None
    gpu: str
    gpus: int
    cpu: bool  # the sheet is that of a CPU: no GPU is asked for
    verdict: str
    peak_low: float
    peak_high: float
    usable: float | None
    flops_per_step: float | None
    step_high: float  # seconds
    steps: int | None
    seconds: tuple[float, float, float] | None  # low, mid, high of the whole run
    counted: str  # what these seconds hold, in words
    cost: tuple[float, float, float] | None
    price: float | None  # per GPU hour
    currency: str
    checkpoint: int  # bytes of one that a run goes on from
    save_high: float | None  # seconds until a save is durable, where runs were measured
    interrupted: bool  # the sheet counts interruptions (--mtbf)
    sha256: str | None


def read_facts(path: Path) -> Facts:
    """The figures of a sheet in a file or a run directory; BadFile for no sheet, or an edited one."""
    if path.is_dir():
        path = path / NAME
        if not path.exists():
            raise BadFile(
                f"{path.parent}: got a folder without {NAME}, expected a run with a signed sheet",
                "`Run.open(…, sheet=FILE)` takes one along; or name the file itself",
            )
    label = file_label(path, "sheet")
    found: Any = load_json(path, "sheet", signature.MAX_BYTES)
    intent: dict[str, Any] = {}
    sha256 = None
    if isinstance(found, dict) and "signed" in found:
        found = signature.check(found, file_label(path, "signed sheet"))
        sha256, intent, found = found["signed"]["sha256"], found["intent"], found["sheet"]
    if not isinstance(found, dict) or not {"memory", "cluster", "compute", "recipe"} <= set(found):
        raise BadFile(
            f"{label}: got no sheet, expected a signed one or what `loadsheet plan … --json` prints",
            "`loadsheet sign MODEL --gpu GPU --steps N --out sheet.json` makes one",
        )
    return _Reader(label, found, intent).facts(sha256)


class _Reader:
    """Takes figures out of a sheet; BadFile names the one that is missing or no number."""

    def __init__(self, label: str, sheet: dict[str, Any], intent: dict[str, Any]) -> None:
        self.label = label
        self.sheet = sheet
        self.intent = intent

    def facts(self, sha256: str | None) -> Facts:
        task = self._text("recipe", "task")
        if task == "serve":
            raise BadFile(
                f"{self.label}: got a sheet of serving, expected one of training",
                "a server does not resume: there is nothing to export",
            )
        gpus = self._whole("cluster", "gpus")
        own = self._at("cluster", "own")
        seconds, steps = self._length()
        money = self._at("money")
        price = self._number(money, "price_per_gpu_hour") if isinstance(money, dict) else None
        cost = self._three(self._at("expected", "cost", top=self.intent))
        if cost is None and isinstance(money, dict):
            cost = self._three(money.get("cost"))
        save = self._three(self._at("expected", "save_total_seconds", top=self.intent))
        return Facts(
            label=self.label,
            model=self._text("model", "name"),
            task=task,
            params=_whole_or_none(self._at("model", "params")),
            gpu=self._text("cluster", "gpu"),
            gpus=gpus,
            cpu=isinstance(own, dict) and own.get("device") == "cpu",
            verdict=self._text("verdict"),
            peak_low=self._required("memory", "peak_bytes", "low"),
            peak_high=self._required("memory", "peak_bytes", "high"),
            usable=_positive(self._at("memory", "usable_bytes")),
            flops_per_step=_positive(self._at("compute", "flops_per_step")),
            step_high=self._required("compute", "step_seconds", "high"),
            steps=steps,
            seconds=seconds,
            counted=self._counted(),
            cost=cost,
            price=price,
            currency=one_line(str(money.get("currency") or ""))[:10] if isinstance(money, dict) else "",
            checkpoint=self._whole("checkpoint_bytes", "resume"),
            save_high=None if save is None else save[2],
            interrupted=isinstance(money, dict) and money.get("interruptions") is not None,
            sha256=sha256,
        )

    def _length(self) -> tuple[tuple[float, float, float] | None, int | None]:
        """Seconds and steps of the whole run: as signed, or as many as the plan's tokens take."""
        steps = _whole_or_none(self.intent.get("steps"))
        seconds = self._three(self._at("expected", "seconds", top=self.intent))
        if seconds is not None:
            return seconds, steps
        tokens = _positive(self._at("recipe", "tokens"))
        each = [_positive(self._at("recipe", name)) for name in ("batch", "seq", "accumulation")]
        step = self._three(self._at("compute", "step_seconds"))
        if tokens is None or step is None or None in each:
            return None, steps
        batch, seq, accumulation = each
        assert batch is not None
        assert seq is not None
        assert accumulation is not None
        steps = math.ceil(tokens / (batch * seq * accumulation * self._whole("cluster", "gpus")))
        return (step[0] * steps, step[1] * steps, step[2] * steps), steps

    def _counted(self) -> str:
        """What the seconds of `_length` hold: a plan's are steps alone, those signed say it themselves."""
        expected = self._at("expected", top=self.intent)
        if self._three(self._at("seconds", top=expected)) is not None:
            if expected.get("interruptions") is not None:
                return "interruptions and saves counted in"
            if expected.get("saving_seconds") is not None:
                return "saves counted in, without starts"
        return "steps alone, without starts"

    def _at(self, *path: str, top: Any = None) -> Any:
        value = self.sheet if top is None else top
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    def _text(self, *path: str) -> str:
        value = self._at(*path)
        if not isinstance(value, str) or not value:
            raise self._missing(path, "text")
        return one_line(value)[:200]

    def _required(self, *path: str) -> float:
        value = _positive(self._at(*path))
        if value is None:
            raise self._missing(path, "a number above 0")
        return value

    def _whole(self, *path: str) -> int:
        value = _whole_or_none(self._at(*path))
        if value is None:
            raise self._missing(path, "a whole number above 0")
        return value

    def _number(self, table: dict[str, Any], name: str) -> float | None:
        return _positive(table.get(name))

    def _three(self, value: Any) -> tuple[float, float, float] | None:
        if not isinstance(value, dict):
            return None
        low, mid, high = (_positive(value.get(name)) for name in ("low", "mid", "high"))
        return None if low is None or mid is None or high is None else (low, mid, high)

    def _missing(self, path: tuple[str, ...], expected: str) -> BadFile:
        return BadFile(
            f"{self.label}: {'.'.join(path)}: got none that can be used, expected {expected}",
            "make the sheet again with this version of loadsheet",
        )


def _positive(value: Any) -> float | None:
    """A finite number above 0; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MOST:
        return None
    return float(value)


def _whole_or_none(value: Any) -> int | None:
    good = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST
    return value if good else None
