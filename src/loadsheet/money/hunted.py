"""Prices in gpuhunt's form: its columns, its GPU names, and its catalogs where the package is installed.

gpuhunt (github.com/dstackai/gpuhunt, MPL-2.0) collects what clouds charge: one row for an instance, in US
dollars per hour. Its GPU names do not tell SXM from PCIe; `hunted_gpus.json` says what each name stands
for. A row whose GPU is not known for certain is skipped with the reason, never guessed.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final

from loadsheet.errors import BadInput, nearest, one_line, shorten
from loadsheet.money.price import PriceRow
from loadsheet.money.price_file import PriceList, RowReader, Skips, table

#: gpuhunt's own, and what a user adds: `gpu` is an id of ours that settles the row
HUNTED: Final = (
    "provider", "instance_name", "location", "price", "cpu", "memory", "gpu_count", "gpu_name", "gpu_memory",
    "spot", "disk_size", "gpu_vendor", "flags", "cpu_arch", "provider_data",
)  # fmt: skip
OURS: Final = ("gpu", "currency", "date", "as_of", "billing_unit")
NEEDED: Final = ("instance_name", "location", "price", "gpu_count", "gpu_name", "gpu_memory", "spot")
DOLLARS: Final = "USD"  # CatalogItem.price: "$ per hour"

_TIMEOUT: Final = 30.0  # seconds for one answer of a catalog; gpuhunt itself sets none
_MAX_NOTES: Final = 20
_VERSION: Final = re.compile(r"(20[0-9]{2})(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])(?![0-9])")
_NUMBER: Final = re.compile(r"[0-9]{1,6}(?:\.[0-9]{0,6})?")


@cache
def _data() -> dict[str, Any]:
    import json

    with open(os.path.join(os.path.dirname(__file__), "hunted_gpus.json"), encoding="utf-8") as file:
        data: dict[str, Any] = json.load(file)
    return data


@cache
def _names() -> dict[str, dict[int, dict[str, Any]]]:
    """What is known of each name of theirs in lower case, by memory in GB."""
    names: dict[str, dict[int, dict[str, Any]]] = {}
    for entry in _data()["gpus"]:
        names.setdefault(entry["gpu_name"].lower(), {})[entry["gpu_memory"]] = entry
    return names


def is_provider(name: str) -> bool:
    """Whether gpuhunt has a catalog of that name."""
    return name in _data()["providers"]


def identify(
    name: str, memory: str, provider: str, instance: str, suggest: bool = True
) -> tuple[str, int] | str:
    """Our GPU id and how many of it one of theirs is; or, in words, why that is not certain.

    `suggest` looks for the nearest name, which takes a while: not for thousands of them.

    >>> identify("H100", "80.0", "aws", "p5.48xlarge")
    ('h100-sxm', 1)
    >>> identify("H100", "80.0", "", "node-1")
    '`H100` of 80 GB can be h100-sxm or h100-pcie; a column `gpu` with the id settles it'
    """
    name = one_line(name)[:40]
    known = _names().get(name.lower())
    if not known:
        near = nearest(name, [entry["gpu_name"] for entry in _data()["gpus"]], 1) if suggest else []
        return f"`{name}` is not a known name" + (f"; the nearest is `{near[0]}`" if near else "")
    size = float(memory) if _NUMBER.fullmatch(memory) else 0.0
    entry = known.get(round(size)) if abs(size - round(size)) < 0.01 else None
    if entry is None:
        sizes = " or ".join(map(str, known))
        return f"`{name}` of {one_line(memory)[:12] or 'unknown'} GB is not known; it has {sizes} GB"
    forms = [*entry["ids"], *entry.get("unlisted", ())]
    if len(forms) > 1:
        kept = _narrowed(forms, provider.lower(), instance.lower())
        if len(kept) != 1 or kept[0] not in entry["ids"]:
            meant = " or ".join(kept or forms)
            return f"`{name}` of {round(size)} GB can be {meant}; a column `gpu` with the id settles it"
        forms = kept
    return forms[0], entry.get("devices", 1)


def _narrowed(forms: list[str], provider: str, instance: str) -> list[str]:
    """The forms that the instance's name, or what is known of the provider's instances, leaves over."""
    from fnmatch import fnmatchcase

    said = [mark for word, mark in _data()["words"].items() if word in instance]
    kept = [form for form in forms if all(mark in form for mark in said)] if said else forms
    if len(kept) == 1:
        return kept
    ruled = {
        rule["id"]
        for rule in _data()["forms"]
        if rule["provider"] == provider and fnmatchcase(instance, rule["instance_name"])
    }
    return [form for form in kept if form in ruled] or kept


def hunted_row(cells: Mapping[str, str], where: str, skips: Skips) -> PriceRow | None:
    """One row of gpuhunt's form, checked; None if it is skipped; BadInput, naming the cell, if one makes no sense."""
    read = RowReader(cells, where)
    count = read.whole("gpu_count", zero=True)
    if count == 0:
        skips.add("no GPU", where)
        return None
    provider, instance = read.text("provider"), read.text("instance_name")
    key = (cells["gpu_name"][:80], cells["gpu_memory"][:20], provider, instance)
    found = skips.known(key, lambda: identify(*key, suggest=not skips.full))
    if cells.get("gpu"):
        stated = read.gpu("gpu")
        found = found if isinstance(found, tuple) and found[0] == stated else (stated, 1)
    if isinstance(found, str):
        skips.add(found, where)
        return None
    gpu, devices = found
    return PriceRow(
        gpu=gpu,
        price=read.amount("price"),
        gpus=count * devices,
        per="instance",
        currency=read.currency("currency") or DOLLARS,
        provider=provider,
        region=read.text("location"),
        spot=read.yes("spot", empty=None),
        date=read.date(),
        source=where,
        instance=instance,
        billing_seconds=read.billing(),
    )


# --- the catalogs, through the optional package ------------------------------------------------------


class _Said(logging.Handler):
    """Keeps what gpuhunt logs as lines, in place of tracebacks on the terminal."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.lines) < _MAX_NOTES:
            self.lines[one_line(record.getMessage())[:200]] = None


def hunt(today: str) -> PriceList:
    """What gpuhunt's catalogs offer now, over the network; prices of its live providers are dated `today`.

    A catalog is dated by its version; one without is undated. What gpuhunt could not load is in `notes`.
    BadInput if the package is not installed or no catalog answers.
    """
    import importlib
    import socket

    try:
        gpuhunt = importlib.import_module("gpuhunt")
    except ImportError:
        raise BadInput(
            "--prices-from: got no package `gpuhunt`, expected it to be installed",
            "pip install gpuhunt; or give a file with --price-file",
        ) from None
    said, log, before = _Said(), logging.getLogger("gpuhunt"), socket.getdefaulttimeout()
    passed_on = log.propagate
    log.addHandler(said)
    log.propagate = False
    socket.setdefaulttimeout(_TIMEOUT)
    try:
        catalog = gpuhunt.default_catalog()
        dated = _dates(catalog.catalog)
        items, failed = [], []
        for name in dict.fromkeys([*dated, *(str(p.NAME) for p in catalog.providers)]):
            try:  # one by one: a single live provider that does not answer would take all with it
                items += catalog.query(provider=name, min_gpu_count=1)
            except Exception as error:
                failed.append(f"{one_line(name)[:40]}: {shorten(one_line(str(error)), 160)}")
        if failed and not items:
            raise RuntimeError(failed[0])
    except Exception as error:  # its own, urllib's, zipfile's: whatever it is, there are no prices
        raise BadInput(
            f"--prices-from: got {shorten(one_line(str(error)) or type(error).__name__)} from gpuhunt, expected its "
            "catalogs",
            "it needs a network; without one give a file with --price-file",
        ) from None
    finally:
        socket.setdefaulttimeout(before)
        log.removeHandler(said)
        log.propagate = passed_on
    rows = table("gpuhunt", (_cells(item) for item in items), hunted_row)
    if os.environ.get("GPUHUNT_CATALOG_DIR"):  # files of the user's, of an age that nobody knows
        dated, today = {}, ""
    return replace(
        rows,
        rows=tuple(replace(row, date=dated.get(row.provider, today)) for row in rows.rows),
        notes=(*said.lines, *failed),
    )


def _dates(catalogs: Any) -> dict[str, str]:
    """The date of each provider's catalog, as its version tells it; "" where it tells none."""
    found = {}
    for provider, catalog in catalogs.items():
        match = _VERSION.match(str(getattr(catalog, "version", "")))
        found[str(provider)] = "-".join(match.groups()) if match else ""
    return found


def _cells(item: Any) -> dict[str, str]:
    """An item of gpuhunt's as the cells that a file would have."""
    cells = {}
    for name in ("provider", *NEEDED):
        value = getattr(item, name, None)
        if isinstance(value, float) and name == "price":
            value = f"{value:.6f}"
        cells[name] = "" if value is None else str(value).strip()
    return cells
