"""What the checks need of a sheet: `plan --json`, or the same signed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadsheet import signature
from loadsheet.cloud.checklist import CannotLook
from loadsheet.errors import LoadsheetError
from loadsheet.safejson import file_label, load_json


@dataclass(frozen=True)
class PlanFile:
    """Figures of a sheet, base units; None for what it does not say."""

    verdict: str | None
    model: str | None
    gpu: str | None
    gpus: int | None
    peak_bytes: float | None  # what the device must hold, the middle of the estimate
    peak_high: float | None
    checkpoint_bytes: int | None
    signed: bool


def read_plan_file(path: Path) -> PlanFile:
    """The figures of a sheet; CannotLook if the file is none, or was edited after it was signed."""
    try:
        found = load_json(path, "sheet")
        signed = "signed" in found
        if signed:
            found = signature.check(found, file_label(path, "signed sheet"))["sheet"]
    except LoadsheetError as error:
        raise CannotLook(str(error), error.hint) from None
    if "memory" not in found or "cluster" not in found:
        raise CannotLook(
            f"{file_label(path, 'sheet')}: got no sheet, expected what `loadsheet plan … --json` prints",
            "write one: `loadsheet plan MODEL --gpu GPU --json > sheet.json`",
        )
    memory, cluster, model = _table(found, "memory"), _table(found, "cluster"), _table(found, "model")
    peak, sizes = _table(memory, "peak_bytes"), _table(found, "checkpoint_bytes")
    size = _number(sizes.get("resume", sizes.get("weights")))
    gpus = _number(cluster.get("gpus"))
    return PlanFile(
        verdict=_text(found.get("verdict")),
        model=_text(model.get("name")),
        gpu=_text(cluster.get("gpu")),
        gpus=None if gpus is None else int(gpus),
        peak_bytes=_number(peak.get("mid")),
        peak_high=_number(peak.get("high")),
        checkpoint_bytes=None if size is None else int(size),
        signed=signed,
    )


def _table(found: dict[str, Any], name: str) -> dict[str, Any]:
    value = found.get(name)
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None


def _text(value: object) -> str | None:
    return value[:200] if isinstance(value, str) else None
