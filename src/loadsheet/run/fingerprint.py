"""The identity of a run: the canonical JSON of its config, and the fingerprint of that.

Two configs are the same run exactly if their canonical JSON is the same text::

    sha256(json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=False))

The rules, so that anyone can compute it by hand:

- keys are sorted, so their order never matters; 3e-3 and 0.003 are the same number and agree;
- 1 and 1.0, True and 1, 0.0 and -0.0 are different texts and are told apart on purpose;
- a tuple is a list; a path is its text with "/"; text is brought to Unicode's form NFC;
- an enum is its name (its text if it is a `StrEnum`): a number from `auto()` moves when a member is added;
- NumPy and torch scalars count with exactly their value (float32 0.1 is not 0.1), arrays as lists,
  dtypes as "torch.bfloat16" and "numpy.float32";
- keys that are no text become text as JSON writes them (1 is "1", True is "true").

Everything else is refused by the path of its key, never written as `str()` happens to show it: the text
of a set or a function changes from process to process, and a long array's text leaves out its middle.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import hashlib
import json
import math
import os
import pathlib
import sys
import types
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, Final

from loadsheet.errors import BadInput, nearest, shorten

_DEEPEST: Final = 100
_DIGITS: Final = 10
_SCALARS: Final = (type(None), bool, int)


def fingerprint(config: object, exclude: Iterable[str] = ()) -> str:
    """The first 10 hex digits of SHA-256 of the canonical JSON of a config; BadInput as `canonical`.

    >>> fingerprint({"lr": 3e-3, "layers": 2}) == fingerprint({"layers": 2, "lr": 0.003})
    True
    >>> fingerprint({})
    '44136fa355'
    """
    return digest(canonical(config, exclude)[0])


def canonical(config: object, exclude: Iterable[str] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config as plain JSON values, and apart from it the excluded values under their names.

    A config is a dict, dataclass, msgspec.Struct, argparse.Namespace, OmegaConf, named tuple, attrs or
    pydantic object. `exclude` names keys that must not change the identity (an output path, a device),
    at the top or deeper as "data.num_workers". BadInput, with the path of the key, for what has no fixed
    text, for keys that become equal, and for an excluded name that is not there (a typing error would
    silently change the identity).

    >>> canonical({"lr": 0.1, "out": "runs"}, exclude=["out"])
    ({'lr': 0.1}, {'out': 'runs'})
    """
    names = [exclude] if isinstance(exclude, str) else _names(exclude)
    fields = _fields(config, "config")
    if fields is None:
        raise BadInput(
            f"config: got {_name_of(config)}, expected a dict, dataclass, Struct or Namespace",
            "a config is a set of named values",
        )
    walk = _Walk(frozenset(names))
    values = walk.mapping(fields, "config", "", 0)
    if missing := [name for name in names if name not in walk.excluded]:
        known = [path for path in walk.paths if path not in walk.excluded]
        close = nearest(missing[0], known)
        raise BadInput(
            f"exclude: got {shorten(missing[0])}, expected the name of a key of the config",
            f"did you mean {', '.join(f'`{name}`' for name in close)}?" if close else "names are exact",
        )
    return values, walk.excluded


def _names(exclude: object) -> list[str]:
    found: list[str] = []
    for name in exclude if isinstance(exclude, Iterable) else (exclude,):
        if not isinstance(name, str):
            raise BadInput(
                f"exclude: got {shorten(name)}, expected names of keys of the config",
                'exclude=["out", "device"]',
            )
        found.append(name)
    return found


def canonical_text(values: Mapping[str, Any]) -> str:
    """Plain JSON values as the one text whose digest is the fingerprint.

    >>> canonical_text({"b": 1, "a": [1.0, None]})
    '{"a":[1.0,null],"b":1}'
    """
    try:
        return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise BadInput(f"config: got {error}, expected plain JSON values") from None


def digest(values: Mapping[str, Any]) -> str:
    """The fingerprint of values that are canonical already."""
    return hashlib.sha256(canonical_text(values).encode()).hexdigest()[:_DIGITS]


def differences(old: Any, new: Any, limit: int = 5) -> list[str]:
    """Where two canonical configs differ, as lines "path: old → new", the first `limit` of them.

    >>> differences({"lr": 0.1, "a": {"b": 1}}, {"lr": 0.1, "a": {"b": 2}, "c": 3})
    ['a.b: 1 → 2', 'c: absent → 3']
    """
    if (isinstance(old, dict) and isinstance(new, dict)) and _shown(old) == _shown(new):
        return []  # the usual case, at once
    found: list[str] = []
    _compare(old, new, "", found, limit)
    return found[:limit]


_ABSENT: Final = object()


def _compare(old: Any, new: Any, path: str, found: list[str], limit: int) -> None:
    if len(found) >= limit:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            below = f"{path}.{key}" if path else key
            _compare(old.get(key, _ABSENT), new.get(key, _ABSENT), below, found, limit)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for at, (one, other) in enumerate(zip(old, new, strict=True)):
            _compare(one, other, f"{path}[{at}]", found, limit)
    elif _shown(old) != _shown(new):
        found.append(f"{shorten(path, 80).strip(chr(39))}: {_shown(old, 60)} → {_shown(new, 60)}")


def _shown(value: Any, limit: int = 0) -> str:
    text = "absent" if value is _ABSENT else json.dumps(value, sort_keys=True, ensure_ascii=False)
    return text if not limit or len(text) <= limit else text[: limit - 1] + "…"


class _Walk:
    """One walk over a config: turns it into plain values and takes out what is excluded."""

    def __init__(self, exclude: frozenset[str]) -> None:
        self.exclude = exclude
        self.excluded: dict[str, Any] = {}
        self.paths: list[str] = []  # of named keys, for the hint after a typing error
        self._open: set[int] = set()

    def mapping(self, fields: Mapping[Any, Any], where: str, path: str, depth: int) -> dict[str, Any]:
        self._enter(fields, where, depth)
        values: dict[str, Any] = {}
        spelled: dict[str, Any] = {}
        for key, value in fields.items():
            name = self._key(key, where)
            inner = f"{path}.{name}" if path else name
            if name in spelled:
                raise BadInput(
                    f"{where}: got keys {shorten(spelled[name])} and {shorten(key)}, "
                    f"expected keys that stay different as text (both are {shorten(name)})"
                )
            spelled[name] = key
            if len(self.paths) < 10_000:
                self.paths.append(inner)
            if inner in self.exclude:
                self.excluded[inner] = _recorded(value)
            else:
                values[name] = self.value(value, f"{where}.{name}", inner, depth + 1)
        self._open.discard(id(fields))
        return values

    def value(self, value: Any, where: str, path: str, depth: int) -> Any:
        kind = type(value)
        if kind in _SCALARS:
            return self._integer(value, where) if kind is int else value
        if kind is float:
            return self._float(value, where)
        if kind is str:
            return self._text(value, where)
        if (plain := _plain(value, where)) is not None:
            return self.value(plain, where, path, depth)
        if isinstance(value, os.PathLike):
            return self._text(_path_text(value), where)
        if isinstance(value, enum.Enum):
            if isinstance(value, str):
                return self._text(str(value.value), where)
            if value.name is not None:
                return value.name
        for base in (str, int, float):  # a subclass counts as what it is
            if isinstance(value, base):
                return self.value(base(value), where, path, depth)
        if (fields := _fields(value, where)) is not None:
            return self.mapping(fields, where, path, depth)
        if isinstance(value, list | tuple):
            return self._items(value, where, path, depth)
        raise BadInput(
            f"{where}: got {_name_of(value)}, expected text, numbers, booleans, None, lists and dicts",
            _hint(value),
        )

    def _items(self, value: list[Any] | tuple[Any, ...], where: str, path: str, depth: int) -> list[Any]:
        self._enter(value, where, depth)
        items = [self.value(item, f"{where}[{at}]", path, depth + 1) for at, item in enumerate(value)]
        self._open.discard(id(value))
        return items

    def _enter(self, value: object, where: str, depth: int) -> None:
        if id(value) in self._open:
            raise BadInput(f"{where}: got an object that contains itself, expected a tree of values")
        if depth > _DEEPEST:
            raise BadInput(f"{where}: got more than {_DEEPEST} levels, expected a flatter config")
        self._open.add(id(value))

    def _key(self, key: Any, where: str) -> str:
        if isinstance(key, str) and not isinstance(key, enum.Enum):
            return self._text(key, where)
        value = key if isinstance(key, list | tuple | dict) else self.value(key, f"{where} (key)", "", 0)
        if isinstance(value, str):
            return value
        if isinstance(value, dict | list | tuple):
            raise BadInput(f"{where}: got a key {shorten(key)}, expected text or a number as the key")
        return json.dumps(value)

    @staticmethod
    def _integer(value: int, where: str) -> int:
        if value.bit_length() > 10_000:  # beyond it Python itself refuses to write decimal digits
            raise BadInput(f"{where}: got an integer of {value.bit_length()} bits, expected at most 10000")
        return value

    @staticmethod
    def _float(value: float, where: str) -> float:
        if not math.isfinite(value):
            raise BadInput(
                f"{where}: got {value}, expected a finite number",
                "NaN is not equal to itself and JSON has no infinity: write None or text",
            )
        return value

    @staticmethod
    def _text(value: str, where: str) -> str:
        if value.isascii():
            return value
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BadInput(f"{where}: got {shorten(value)}, expected text that UTF-8 can hold") from None
        return unicodedata.normalize("NFC", value)


def _fields(value: Any, where: str) -> Mapping[Any, Any] | None:
    """The named values of an object that is a set of named values; None if it is none."""
    if isinstance(value, dict):
        return value
    if isinstance(value, type):
        return None
    if (omegaconf := sys.modules.get("omegaconf")) is not None and omegaconf.OmegaConf.is_config(value):
        plain = _from_omegaconf(omegaconf, value, where)
        return plain if isinstance(plain, dict) else None
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value):
        return _attributes(value, [field.name for field in dataclasses.fields(value)], where)
    if isinstance(value, argparse.Namespace | types.SimpleNamespace):
        return vars(value)
    kind = type(value)
    if isinstance(value, tuple):
        return value._asdict() if hasattr(value, "_fields") and hasattr(value, "_asdict") else None
    for names in ("__struct_fields__", "__attrs_attrs__", "model_fields"):  # msgspec, attrs, pydantic
        if isinstance(found := getattr(kind, names, None), tuple | Mapping):
            return _attributes(value, [getattr(entry, "name", entry) for entry in found], where)
    return None


def _attributes(value: Any, names: Iterable[Any], where: str) -> dict[str, Any]:
    """The attributes of these names; msgspec's UNSET means that there is none."""
    try:
        found = {str(name): getattr(value, name) for name in names}
    except AttributeError as error:
        raise BadInput(f"{where}: got a {type(value).__name__} with {error}, expected its values") from None
    unset = getattr(sys.modules.get("msgspec"), "UNSET", _ABSENT)
    return {name: entry for name, entry in found.items() if entry is not unset}


def _from_omegaconf(omegaconf: Any, value: Any, where: str) -> Any:
    """An OmegaConf dict or list with its interpolations resolved."""
    try:
        return omegaconf.OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
    except omegaconf.errors.OmegaConfBaseException as error:
        where = ".".join(filter(None, (where, error.full_key)))
        said = str(error).partition("\n")[0]  # what follows is the path again, and OmegaConf's own types
        raise BadInput(f"{where}: got {said!r}, expected every value to be set") from None


def _plain(value: Any, where: str) -> Any:
    """A NumPy or torch scalar, array or dtype as Python values; None if it is none of them."""
    if (numpy := sys.modules.get("numpy")) is not None:
        if isinstance(value, numpy.generic | numpy.ndarray):
            plain = value.tolist()
            # what NumPy itself cannot say in Python's numbers (long doubles) stays what it is
            return None if isinstance(plain, numpy.generic) else plain
        if isinstance(value, type) and issubclass(value, numpy.generic):
            return f"numpy.{numpy.dtype(value).name}"
        if isinstance(value, numpy.dtype):
            return f"numpy.{value.name}"
    if (torch := sys.modules.get("torch")) is not None:
        if isinstance(value, torch.Tensor):
            return None if value.is_meta or value.is_sparse else value.tolist()
        if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
            return str(value)
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is not None and isinstance(value, omegaconf.ListConfig):
        return _from_omegaconf(omegaconf, value, where)
    return None


def _path_text(value: os.PathLike[Any]) -> str:
    if isinstance(value, pathlib.PurePath):
        return value.as_posix()
    return os.fsdecode(value)


def _recorded(value: Any) -> Any:
    """An excluded value as well as it can be written down: it identifies nothing, so nothing is refused."""
    try:
        return _Walk(frozenset()).value(value, "config", "", 0)
    except BadInput:
        return shorten(value, 200)


def _name_of(value: object) -> str:
    """What a value is, without an address in memory."""
    kind = type(value)
    if isinstance(value, type) or callable(value):
        return f"the {kind.__name__} {shorten(getattr(value, '__qualname__', kind.__name__))}"
    text = shorten(value)
    if " at 0x" in text:
        text = f"of {kind.__module__}"
    return f"a {kind.__name__} {text}" if not isinstance(value, str | float | int) else text


def _hint(value: object) -> str:
    if isinstance(value, set | frozenset):
        return "the order of a set changes from process to process: write sorted(...)"
    if callable(value):
        return "write its name, and look the object up by it"
    for method in ("to_dict", "model_dump"):
        if hasattr(value, method):
            return f"give its `{method}()`"
    return "write it as text, or exclude the key by its name"
