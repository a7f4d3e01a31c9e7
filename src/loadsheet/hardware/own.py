"""Hardware of one's own: a JSON file with one entry as it stands in `gpus.json`.

`loadsheet measure machine --save machine.json` writes one for the machine at hand; a data sheet that is
not among ours is typed by hand. What must be there is the id, the memory, the bandwidth and the peaks.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, Final

from loadsheet.errors import BadFile, UnknownKey, nearest, shorten
from loadsheet.hardware import DTYPES, Gpu, gpus
from loadsheet.safejson import file_label, load_json

MAX_BYTES: Final = 64 << 10
#: the ranges in which a quantity is one, from a small board to a rack taken as one device
_MEMORY: Final = (1 << 20, 1 << 50)
_RATES: Final = (1e6, 1e18)
_ID: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,46}[a-z0-9])?")
_DATE: Final = re.compile(r"[0-9]{4}-(?:0[1-9]|1[0-2])(?:-(?:0[1-9]|[12][0-9]|3[01]))?")
_PCIE: Final = re.compile(r"(?:[3456]\.0 x(?:1|2|4|8|16))?")
_CHOICES: Final = {
    "kind": ("own", "datacenter", "workstation", "consumer"),
    "memory_usable_basis": ("measured", "assumed"),
    "device": ("cuda", "cpu"),
}
_HINT: Final = "`loadsheet measure machine --save FILE` writes one; `loadsheet gpus --json` shows the form"


def read_gpu(path: str | os.PathLike[str]) -> Gpu:
    """The hardware that a file describes. Raises BadFile, UnknownKey, with the file and the key."""
    return own_gpu(
        load_json(path, "hardware", MAX_BYTES), file_label(path, "hardware"), os.path.basename(path)
    )


def own_gpu(entry: Mapping[str, Any], label: str, file: str) -> Gpu:
    """One entry, checked key by key; `label` names it in errors, `file` is what it is shown as."""
    known = [field.name for field in fields(Gpu) if field.name != "own"]
    if set(entry) == {"device", "rates"} or "gpus" in entry:
        raise BadFile(f"{label}: got a list of them, expected one entry by itself", _HINT)
    for key in entry:
        if key not in known:
            raise UnknownKey(key, known, f"key of {label}")
    defaults = {f.name: f.default for f in fields(Gpu) if f.default is not MISSING}
    defaults |= {
        "name": entry.get("id"), "vendor": "", "kind": "own", "memory_usable_basis": "assumed", "memory_type": "",
        "link": "", "link_bandwidth": 0.0, "pcie": "", "tdp_watts": None, "source": "", "date": "", "verified": False,
    }  # fmt: skip
    taken = {**defaults, **entry}
    for name in ("id", "memory_usable_bytes", "bandwidth", "peaks"):
        if name not in taken:
            raise BadFile(f"{label}: got no {name}, expected it", _HINT)

    def bad(name: str, expected: str, hint: str = "") -> BadFile:
        return BadFile(f"{label}: got {name} {shorten(taken[name])}, expected {expected}", hint)

    def number(name: str, low: float, high: float) -> float:
        value = taken[name]
        good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not good or not low <= value <= high:
            raise bad(name, f"a number from {low:g} to {high:g}")
        return float(value)

    if not isinstance(taken["id"], str) or not _ID.fullmatch(taken["id"]):
        raise bad("id", "lower-case letters, digits, points and dashes, such as `my-card`")
    if any(taken["id"] == listed.id for listed in gpus()):
        raise bad("id", "one that none of the listed GPUs has", f"call it `my-{taken['id']}`")
    for name, choices in _CHOICES.items():
        if taken[name] not in choices:
            close = nearest(str(taken[name]), choices)
            raise bad(name, "one of " + ", ".join(choices), f"did you mean `{close[0]}`?" if close else "")
    for name in ("name", "vendor", "memory_type", "link", "source", "note"):
        if not isinstance(taken[name], str) or len(taken[name]) > 500:
            raise bad(name, "text of at most 500 characters")
    if not isinstance(taken["pcie"], str) or not _PCIE.fullmatch(taken["pcie"]):
        raise bad("pcie", "generation and lanes such as `5.0 x16`, or nothing")
    if not isinstance(taken["date"], str) or (taken["date"] and not _DATE.fullmatch(taken["date"])):
        raise bad("date", "YYYY-MM-DD or YYYY-MM")
    if not isinstance(taken["verified"], bool):
        raise bad("verified", "true or false")
    usable = taken["memory_usable_bytes"]
    if not isinstance(usable, int) or isinstance(usable, bool):
        raise bad("memory_usable_bytes", "a whole number of bytes")
    number("memory_usable_bytes", *_MEMORY)
    marketed = taken.setdefault("memory_marketed_gb", max(1, round(usable / 1e9)))
    if not isinstance(marketed, int) or isinstance(marketed, bool) or not 1 <= marketed <= 1 << 20:
        raise bad("memory_marketed_gb", "a whole number of GB from 1 on")
    taken["bandwidth"] = number("bandwidth", *_RATES)
    taken["link_bandwidth"] = number("link_bandwidth", 0, _RATES[1])
    if taken["tdp_watts"] is not None:
        number("tdp_watts", 0, 1e6)
    return Gpu(**{**taken, "peaks": _peaks(taken["peaks"], label), "own": file or "a description"})


def _peaks(found: object, label: str) -> tuple[tuple[str, float], ...]:
    """The dense peaks, in the order of `DTYPES`."""
    if not isinstance(found, dict) or not found:
        raise BadFile(f"{label}: got peaks {shorten(found)}, expected FLOP/s by dtype", _HINT)
    for dtype, rate in found.items():
        if dtype not in DTYPES:
            raise UnknownKey(dtype, DTYPES, f"dtype in the peaks of {label}")
        good = isinstance(rate, int | float) and not isinstance(rate, bool) and math.isfinite(rate)
        if not good or not _RATES[0] <= rate <= _RATES[1]:
            raise BadFile(
                f"{label}: got a peak of {shorten(rate)} for {dtype}, "
                f"expected FLOP/s from {_RATES[0]:g} to {_RATES[1]:g}",
                "989.4 TFLOP/s are 989.4e12",
            )
    return tuple((dtype, float(found[dtype])) for dtype in DTYPES if dtype in found)
