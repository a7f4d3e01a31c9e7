"""The signed sheet of a run: the one thing that a run knows of predictions, and it knows it from a file.

It is copied into the run directory whole, as `sheet.json`, before the first step, and stays there. From it
come the tokens of a step, the FLOPs of a token and the peak that an MFU is measured against.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadsheet import signature
from loadsheet.errors import BadFile, BadInput, a_type
from loadsheet.run.directory import cannot_write, write_whole
from loadsheet.run.tell import tell
from loadsheet.safejson import file_label, open_regular

NAME: Final = "sheet.json"
_HINT: Final = (
    "`loadsheet sign MODEL --gpu GPU --steps N --out FILE`, or `ls.sign(sheet, FILE, steps=N)`, makes one"
)

Source = str | os.PathLike[str] | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a run takes from its sheet; None where the sheet does not say."""

    sha256: str
    params: int | None
    tokens_per_step: float | None
    flops_per_token: float | None
    peak: float | None  # FLOP/s of one device, dense
    gpus: int

    def mfu(self, tokens_per_second: float | None) -> float | None:
        """Model FLOPs utilisation at a rate: rate·F/(gpus·P), Chowdhery et al. 2022, arXiv 2204.02311, app. B.

        >>> Facts("", None, None, 6e9, 3e14, 2).mfu(20_000.0)
        0.2
        """
        if tokens_per_second is None or self.flops_per_token is None or self.peak is None:
            return None
        return tokens_per_second * self.flops_per_token / (self.gpus * self.peak)


@dataclass(frozen=True, slots=True)
class Given:
    """A signed sheet that was given to a run: checked, and the bytes to be kept."""

    signed: Mapping[str, Any]
    data: bytes


def given(source: Source | None) -> Given | None:
    """The signed sheet in a file, or what `ls.sign` returned: read before anything of a run is written.

    Raises BadFile if it is not as it was signed, BadInput for what is no sheet.
    """
    if source is None:
        return None
    if isinstance(source, Mapping):
        found = signature.check(dict(source))
        return Given(found, signature.to_text(found).encode())
    if not isinstance(source, str | os.PathLike):
        raise BadInput(
            f"sheet: got {a_type(source)}, expected a signed sheet: its file or what `ls.sign` returned",
            _HINT,
        )
    with open_regular(source, "signed sheet") as (file, _):
        data = file.read(signature.MAX_BYTES + 1)
    return Given(signature.parse(data, file_label(source, "signed sheet")), data)


def fits(sheet: Given | None, path: Path) -> None:
    """Refuse a sheet for the run directory `path`; to be asked before an attempt is made there.

    Raises BadInput if the run was begun with another, BadFile if the one that is there is not as it was signed.
    """
    if sheet is None:
        return
    there, damage = _there(path)
    if damage is not None:
        raise BadFile(str(damage), f"put `{path / NAME}` back as it was signed, or take it away")
    if there is not None and there["signed"]["sha256"] != sheet.signed["signed"]["sha256"]:
        raise BadInput(
            f"sheet: got one with hash {sheet.signed['signed']['sha256'][:10]}, expected "
            f"{there['signed']['sha256'][:10]}, which this run was begun with",
            "a prediction is not exchanged while it is carried out: open the run without `sheet=`",
        )


def adopt(sheet: Given | None, path: Path) -> Facts | None:
    """Take a sheet that `fits` into the run directory `path`, or read the one there; None if there is none.

    Raises RunError or NoSpace if it cannot be written. One that is there and damaged is only warned about
    where none was given: the run does not depend on it.
    """
    there, damage = _there(path)
    if there is not None:
        return facts_of(there)
    if sheet is None:
        if damage is not None:
            tell(f"{damage}; the run goes on without it")
        return None
    try:
        write_whole(path / NAME, sheet.data)
    except OSError as error:
        cannot_write(error, f"`{path / NAME}`")
    return facts_of(sheet.signed)


def _there(path: Path) -> tuple[dict[str, Any] | None, BadFile | None]:
    """The sheet that a run directory has, or what is wrong with it."""
    if not os.path.lexists(path / NAME):
        return None, None
    try:
        return signature.read(path / NAME), None
    except BadFile as error:
        return None, error


def facts_of(signed: Mapping[str, Any]) -> Facts:
    """What a run takes from a signed sheet that was checked."""
    sheet, intent = signed["sheet"], signed["intent"]
    compute, cluster, model = (sheet.get(k) if isinstance(sheet.get(k), dict) else {} for k in _PARTS)
    gpus = _number(cluster.get("gpus"))
    params = _number(model.get("params"))
    return Facts(
        signed["signed"]["sha256"],
        None if params is None else int(params),
        _number(intent.get("tokens_per_step")),
        _number(compute.get("flops_per_token")),
        _number(compute.get("peak_flops_per_second")),
        int(gpus) if gpus is not None and gpus >= 1 else 1,
    )


_PARTS: Final = ("compute", "cluster", "model")


def _number(value: object) -> float | None:
    """A positive finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value > 0 else None
