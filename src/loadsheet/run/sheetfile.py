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
from loadsheet.errors import BadFile, BadInput
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


def adopt(source: Source | None, path: Path) -> Facts | None:
    """Take a signed sheet into the run directory `path`, or read the one that is there; None if there is none.

    `source` is a file or what `ls.sign` returned. Raises BadFile if it is not as it was signed, BadInput
    if the directory has another, RunError or NoSpace if it cannot be written. A sheet that is there and damaged is
    only warned about where none was given: the run does not depend on it.
    """
    place = path / NAME
    there: dict[str, Any] | None = None
    damage: BadFile | None = None
    if os.path.lexists(place):
        try:
            there = signature.read(place)
        except BadFile as error:
            damage = error
    if source is None:
        if damage is not None:
            tell(f"{damage}; the run goes on without it")
        return None if there is None else facts_of(there)
    given, data = _read(source)
    if damage is not None:
        raise BadFile(str(damage), f"put `{place}` back as it was signed, or take it away")
    if there is not None:
        if there["signed"]["sha256"] != given["signed"]["sha256"]:
            raise BadInput(
                f"sheet: got one with hash {given['signed']['sha256'][:10]}, expected "
                f"{there['signed']['sha256'][:10]}, which this run was begun with",
                "a prediction is not exchanged while it is carried out: open the run without `sheet=`",
            )
        return facts_of(there)
    try:
        write_whole(place, data)
    except OSError as error:
        cannot_write(error, f"`{place}`")
    return facts_of(given)


def _read(source: Source) -> tuple[dict[str, Any], bytes]:
    """The signed sheet, checked, and the bytes to be kept."""
    if isinstance(source, Mapping):
        found = signature.check(dict(source))
        return found, signature.to_text(found).encode()
    if not isinstance(source, str | os.PathLike):
        raise BadInput(
            f"sheet: got a {type(source).__name__}, expected a signed sheet: its file or what `ls.sign` returned",
            _HINT,
        )
    with open_regular(source, "signed sheet") as (file, _):
        data = file.read(signature.MAX_BYTES + 1)
    return signature.parse(data, file_label(source, "signed sheet")), data


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
