"""From what a person has to a `Model`: preset, config.json, model folder, safetensors, GGUF."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from loadsheet.arch.families import build
from loadsheet.arch.model import Model
from loadsheet.arch.safejson import load_json
from loadsheet.errors import BadFile, BadInput, LoadsheetError, UnknownModel, shorten

_PRESETS = Path(__file__).parent / "presets"


@dataclass(frozen=True, slots=True)
class Preset:
    """One entry of the presets: what it is, where its figures stand, how many parameters."""

    name: str
    title: str
    params: int
    model_type: str
    max_length: int | None
    source: str
    date: str
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Every field, ready for `json.dumps`."""
        return {name: getattr(self, name) for name in self.__slots__}


@cache
def _names() -> frozenset[str]:
    return frozenset(entry[:-5] for entry in os.listdir(_PRESETS) if entry.endswith(".json"))


@cache
def _entry(name: str) -> dict[str, Any]:
    return load_json(_PRESETS / f"{name}.json", "preset")


@cache
def models() -> tuple[Preset, ...]:
    """All presets, smallest first."""
    found = []
    for name in _names():
        e = _entry(name)
        c = e["config"]
        length = c.get("max_position_embeddings") or c.get("n_positions")
        found.append(
            Preset(
                name,
                e["title"],
                e["params"],
                c["model_type"],
                length,
                e["source"],
                e["date"],
                e.get("note", ""),
            )
        )
    return tuple(sorted(found, key=lambda p: (p.params, p.name)))


@cache
def _preset(name: str) -> Model:
    entry = _entry(name)
    made = build(entry["config"], name, where=f"preset {name}")
    made.source = entry["source"]
    return made


def model(source: str | os.PathLike[str] | Mapping[str, Any] | Model) -> Model:
    """The model behind a preset name, a path or a config dict.

    A path may lead to a config.json, a folder that holds one, a `.safetensors` file or its index (with
    a config.json beside it), or a `.gguf` file. Files are read within limits; nothing is executed.

    Raises UnknownModel (with the nearest presets), BadFile, BadConfig or UnsupportedArchitecture.
    """
    if isinstance(source, Model):
        return source
    if isinstance(source, Mapping):
        return build(source, str(source.get("_name_or_path") or "")[:80] or "")
    if not isinstance(source, str | os.PathLike):
        raise BadInput(f"model: got {shorten(source)}, expected a preset name, a path or a config")
    text = os.fsdecode(source)
    if not text or "\0" in text:
        raise BadInput(f"model: got {shorten(text)}, expected a preset name or a path")
    name = text.strip().lower()
    if name in _names() and not os.path.lexists(text):
        return _preset(name)
    if not os.path.lexists(text):
        raise _unknown(text, name)
    return _from_path(Path(text))


def _unknown(text: str, name: str) -> LoadsheetError:
    if text.endswith((".json", ".gguf", ".safetensors")) or text.startswith((".", "/", "~")):
        return BadFile(f"model: got {shorten(text)}, expected a file or folder that exists")
    error = UnknownModel(text, _names())
    if "/" in text:
        last = name.rsplit("/", 1)[-1]
        error = UnknownModel(last, _names())
        error.hint += " (hub ids are not looked up; download its config.json and give the path)"
    return error


def _from_path(path: Path) -> Model:
    lower = path.name.lower()
    if path.is_dir():
        return _from_folder(path)
    if lower.endswith(".gguf"):
        return _from_gguf(path)
    if lower.endswith(".safetensors") or lower.endswith(".safetensors.index.json"):
        return _with_weights(path)
    return build(load_json(path), _label(path), where="config")


def _label(path: Path) -> str:
    """A short name for a model from a file: its folder, or the file's own stem."""
    if path.name == "config.json":
        return path.absolute().parent.name or "model"
    return path.name.split(".")[0] or "model"


def _from_folder(path: Path) -> Model:
    config = path / "config.json"
    if not config.exists():
        ggufs = sorted(p.name for p in path.iterdir() if p.name.lower().endswith(".gguf"))[:3]
        hint = "it holds " + ", ".join(f"`{g}`" for g in ggufs) + "; give one of them" if ggufs else ""
        raise BadFile(f"model: got folder {shorten(str(path))}, expected a config.json in it", hint)
    return build(load_json(config), _label(config.absolute()), where="config")


def _with_weights(path: Path) -> Model:
    from loadsheet.arch.safetensors import read_safetensors, read_safetensors_index

    stored = read_safetensors_index(path) if path.name.lower().endswith(".json") else read_safetensors(path)
    config = path.parent / "config.json"
    if not config.exists():
        count = f"{stored.params:,} parameters, " if stored.complete else ""
        raise BadFile(
            f"model: got {shorten(path.name)} ({count}{stored.nbytes:,} bytes), expected a config.json beside it",
            "tensor shapes alone do not tell the number of heads",
        )
    made = build(load_json(config), _label(config.absolute()), where="config")
    made.stored = stored
    return made


def _from_gguf(path: Path) -> Model:
    from loadsheet.arch.gguf import read_gguf

    file = read_gguf(path)
    made = build(file.config(), _label(path), where=f"{path.name[:60]} metadata")
    if made.params != file.model_params:
        raise BadFile(
            f"{shorten(path.name)}: got tensors of {file.model_params:,} parameters, expected the {made.params:,} "
            "that its metadata describe",
            "the file holds a structure that its metadata do not tell; give the model's config.json",
        )
    made.stored = file.weights
    return made
