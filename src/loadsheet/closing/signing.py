"""Sign a sheet: freeze the prediction before the run, so that it can be held against it afterwards."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from loadsheet import signature
from loadsheet.closing.intent import make_intent, parse_every, steps_of, tokens_per_step
from loadsheet.errors import BadFile, BadInput, LoadsheetError
from loadsheet.run.directory import write_whole
from loadsheet.run.sheetfile import NAME
from loadsheet.sheet import Sheet


class DoesNotFit(LoadsheetError):
    """A sheet that says that it does not fit is not signed unless that is asked for."""

    exit_code = 1


def sign(
    sheet: Sheet,
    path: str | os.PathLike[str] | None = None,
    *,
    steps: int | None = None,
    checkpoint_every: int | str | None = None,
    sign_anyway: bool = False,
) -> dict[str, Any]:
    """The sheet, signed for a run of so many steps; written to `path` if one is given.

    `steps`: optimizer steps, or as many as the sheet's `tokens` take. `checkpoint_every`: as `Run.steps`
    takes it, "end" for the end alone, None for not said. What is returned goes into `Run.open(sheet=…)`.
    Raises DoesNotFit unless `sign_anyway`; BadInput, also where another signed sheet stands at `path`;
    BadFile where something else does.
    """
    count = steps_of(sheet, steps)
    every = parse_every(checkpoint_every)
    each = tokens_per_step(sheet.recipe, sheet.gpus)
    if sheet.recipe.tokens != count * each:
        sheet = sheet.changed(tokens=count * each)
    if sheet.verdict == "does_not_fit" and not sign_anyway:
        raise DoesNotFit(
            f"not signed: {sheet.model.name} does not fit on {sheet.gpu.id}",
            "change it as the sheet says; `--sign-anyway` signs it as it is",
        )
    calibration = None if sheet.calibration is None else sheet.calibration.to_json()
    signed = signature.seal(sheet.to_dict(), make_intent(sheet, count, every), calibration)
    return signed if path is None else write(signed, Path(path))


def write(signed: dict[str, Any], path: Path) -> dict[str, Any]:
    """Write a signed sheet, whole; the one that stands in the file, if it is the same. Raises BadInput, BadFile."""
    if os.path.lexists(path):
        there = signature.read(path)
        if there["signed"]["sha256"] == signed["signed"]["sha256"]:
            return there
        raise BadInput(
            f"`{path}`: got another signed sheet there, expected none or the same",
            "a signed sheet is not overwritten: name another file, or remove it yourself",
        )
    if not path.parent.is_dir():
        raise BadInput(f"`{path}`: got a folder that is not there, expected one", f"mkdir -p {path.parent}")
    try:
        write_whole(path, signature.to_text(signed).encode())
    except OSError as error:
        raise BadFile(f"`{path}`: got {error.strerror or error}, expected to write it") from None
    return signed


def of_run(run: str | os.PathLike[str]) -> Path:
    """Where the signed sheet of a run stands; BadInput for what is no run directory."""
    path = Path(run)
    if not (path / "config.json").is_file():
        raise BadInput(
            f"run `{path}`: got no run directory, expected one made by `Run.open`",
            "before there is one: --out FILE, and `Run.open(…, sheet=FILE)` takes it along",
        )
    return path / NAME
