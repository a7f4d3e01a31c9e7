"""Loadsheet: memory, compute and money of an LLM experiment, before the GPU is rented."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

#: public name -> module that holds it; resolved on first use, so `import loadsheet` stays instant
_PUBLIC = {
    "BadConfig": "errors",
    "BadFile": "errors",
    "BadInput": "errors",
    "LoadsheetError": "errors",
    "UnknownGpu": "errors",
    "UnknownKey": "errors",
    "UnknownModel": "errors",
    "UnknownName": "errors",
    "UnsupportedArchitecture": "errors",
    "Estimate": "ledger",
    "Item": "ledger",
    "Ledger": "ledger",
    "Run": "run.loop",
    "RunError": "run.errors",
    "RunWarning": "run.errors",
    "Sheet": "sheet",
    "Stopped": "run.errors",
    "close": "closing",
    "deterministic": "run.determinism",
    "gpu": "hardware",
    "gpus": "hardware",
    "load": "run.load",
    "measure": "",
    "model": "arch.read",
    "models": "arch.read",
    "odds": "history.asked",
    "plan": "sheet",
    "read_log": "run.reading",
    "runs": "history.index",
    "sign": "closing",
    "stream_log": "run.reading",
}

__all__ = sorted(_PUBLIC)  # noqa: PLE0605  (the names come from the table above)

if TYPE_CHECKING:
    from loadsheet import measure as measure
    from loadsheet.arch.read import model as model
    from loadsheet.arch.read import models as models
    from loadsheet.closing import close as close
    from loadsheet.closing import sign as sign
    from loadsheet.errors import BadConfig as BadConfig
    from loadsheet.errors import BadFile as BadFile
    from loadsheet.errors import BadInput as BadInput
    from loadsheet.errors import LoadsheetError as LoadsheetError
    from loadsheet.errors import UnknownGpu as UnknownGpu
    from loadsheet.errors import UnknownKey as UnknownKey
    from loadsheet.errors import UnknownModel as UnknownModel
    from loadsheet.errors import UnknownName as UnknownName
    from loadsheet.errors import UnsupportedArchitecture as UnsupportedArchitecture
    from loadsheet.hardware import gpu as gpu
    from loadsheet.hardware import gpus as gpus
    from loadsheet.history.asked import odds as odds
    from loadsheet.history.index import runs as runs
    from loadsheet.ledger import Estimate as Estimate
    from loadsheet.ledger import Item as Item
    from loadsheet.ledger import Ledger as Ledger
    from loadsheet.run.determinism import deterministic as deterministic
    from loadsheet.run.errors import RunError as RunError
    from loadsheet.run.errors import RunWarning as RunWarning
    from loadsheet.run.errors import Stopped as Stopped
    from loadsheet.run.load import load as load
    from loadsheet.run.loop import Run as Run
    from loadsheet.run.reading import read_log as read_log
    from loadsheet.run.reading import stream_log as stream_log
    from loadsheet.sheet import Sheet as Sheet
    from loadsheet.sheet import plan as plan


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'loadsheet' has no attribute {name!r}")
    from importlib import import_module

    if not _PUBLIC[name]:  # a package of that name, which can be called
        return import_module(f"loadsheet.{name}")
    try:
        value = getattr(import_module(f"loadsheet.{_PUBLIC[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name in {"msgspec", "torch", "xxhash"}:
            message = f"loadsheet.{name} needs {error.name}: pip install 'loadsheet[run]'"
            raise ImportError(message, name=error.name) from None
        raise
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
