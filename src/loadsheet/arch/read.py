"""From what a person has to a `Model`: preset, config.json, model folder, safetensors, GGUF."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from loadsheet.arch.families import build
from loadsheet.arch.model import Model
from loadsheet.errors import BadFile, BadInput, LoadsheetError, UnknownModel, nearest, one_line, shorten
from loadsheet.safejson import file_label, load_json

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
        name = source.get("_name_or_path")
        return build(source, one_line(name[:80]) if isinstance(name, str) else "")
    if not isinstance(source, str | os.PathLike):
        raise BadInput(f"model: got {shorten(source)}, expected a preset name, a path or a config")
    text = os.fsdecode(source)
    if not text.strip() or "\0" in text:
        raise BadInput(f"model: got {shorten(text)}, expected a preset name or a path", _SEE_MODELS)
    name = text.strip().lower()
    try:
        if not os.path.lexists(text):
            if name in _names():
                return _preset(name)
            raise _unknown(text, name)
        path = Path(text)
        if name in _names() and os.path.isdir(path) and not os.path.lexists(path / "config.json"):
            return _preset(name)  # a folder of that name (of checkpoints, say) that holds no model
        return _from_path(path)
    except OSError as error:  # a folder that may not be read, a working directory that is gone
        reason = (error.strerror or type(error).__name__).lower()
        raise BadFile(
            f"model: got {shorten(text)} ({reason}), expected a readable path", "check the path"
        ) from error


def config_of(source: str) -> dict[str, Any]:
    """The config alone, whether a family describes it or not: of a preset, a config.json or its folder.

    Raises UnknownModel or BadFile.
    """
    name = source.strip().lower()
    if not os.path.lexists(source):
        if name in _names():
            return dict(_entry(name)["config"])
        raise _unknown(source, name)
    path = Path(source)
    return load_json(path / "config.json" if path.is_dir() else path)


def shadowed(source: str) -> bool:
    """Whether a text names both a preset and what lies here under that name, which is then the one read."""
    if source.strip().lower() not in _names() or not os.path.lexists(source):
        return False
    return not os.path.isdir(source) or os.path.lexists(os.path.join(source, "config.json"))


_SEE_MODELS = (
    "`loadsheet models` lists the presets; else give a config.json, its folder, .safetensors or .gguf"
)
_FILE_ENDS = (".json", ".gguf", ".safetensors", ".bin", ".pt", ".pth")


def _unknown(text: str, name: str) -> LoadsheetError:
    """No preset and no file: which of the two was meant shows in the text."""
    head = text.split("/", 1)[0]
    if (
        text.startswith((".", "/", "~"))
        or name.endswith(_FILE_ENDS)
        or text.count("/") > 1
        or os.path.lexists(head)
    ):
        hint = "`~` is left as it is; give the full path" if text.startswith("~") else "check the path"
        if "://" in text:
            hint = "nothing is downloaded; fetch its config.json and give the path"
        return BadFile(f"model: got {shorten(text)}, expected a file or folder that exists", hint)
    if "/" not in text:
        return UnknownModel(text, _names())
    error = UnknownModel(text, ())
    close = nearest(name.rsplit("/", 1)[-1], _names())
    presets = "nearest presets: " + ", ".join(f"`{k}`" for k in close) + "; " if close else ""
    error.hint = presets + "hub ids are not looked up: download its config.json and give the path"
    return error


def _from_path(path: Path) -> Model:
    lower = path.name.lower()
    if os.path.isdir(path):
        return _from_folder(path)
    if lower.endswith(".gguf"):
        return _from_gguf(path)
    if lower.endswith((".safetensors", ".safetensors.index.json")):
        return _with_weights(path)
    return _built(path)


def _built(config: Path) -> Model:
    """The model of a config.json; errors name the file."""
    return build(load_json(config), _label(config), where=file_label(config, "config"))


def _label(path: Path) -> str:
    """A short name for a model from a file: its folder, or the file's own stem; printable, on one line."""
    name = path.absolute().parent.name if path.name == "config.json" else path.name.split(".")[0]
    return one_line(name)[:80] or "model"


def _from_folder(path: Path) -> Model:
    config = path / "config.json"
    if not os.path.lexists(config):
        with os.scandir(path) as entries:
            names = [e.name for e in islice(entries, 10_000)]
        found = sorted(n for n in names if n.lower().endswith(".gguf"))[:3]
        hint = (
            "it holds " + ", ".join(f"`{n}`" for n in found) + "; give one of them" if found else _SEE_MODELS
        )
        raise BadFile(f"model: got folder {shorten(str(path))}, expected a config.json in it", hint)
    return _built(config)


def _with_weights(path: Path) -> Model:
    from loadsheet.arch.safetensors import read_safetensors, read_safetensors_index

    stored = read_safetensors_index(path) if path.name.lower().endswith(".json") else read_safetensors(path)
    config = path.parent / "config.json"
    if not os.path.lexists(config):
        count = f"{stored.params:,} parameters, " if stored.complete else ""
        raise BadFile(
            f"model: got {shorten(path.name)} ({count}{stored.nbytes:,} bytes), expected a config.json beside it",
            "tensor shapes alone do not tell the number of heads",
        )
    made = _built(config)
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
