"""The signed sheet: a prediction frozen in a file, with a hash that shows whether it was edited.

    {"schema": 1, "signed": {"time", "version", "sha256", "parts"}, "sheet", "intent", "calibration"}

`sheet` is the answer of `plan --json`, `intent` what one means to do with it (steps, tokens, saves, price),
`calibration` null or the measured runs that the sheet was made with. The hash is the SHA-256 of the canonical
JSON of these three: keys sorted, no white space, UTF-8, numbers as Python writes them. `parts` has the first
16 digits of the same for each entry, so that an edit can be named.

The hash tells an edit from an accident or a second thought. It proves neither who signed nor when: whoever
can write the file can sign it again.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from loadsheet.errors import BadFile, shorten
from loadsheet.safejson import file_label, load_json, parse_json

SCHEMA: Final = 1
MAX_BYTES: Final = 4 << 20
SIGNED: Final = ("sheet", "intent", "calibration")
_KEYS: Final = frozenset({"schema", "signed", *SIGNED})
_LARGEST: Final = 1 << 63  # beyond it a whole number is written as a decimal: few readers could hold it


def canonical(value: Any) -> bytes:
    """The canonical JSON of a value.

    >>> canonical({"b": 0.1, "a": [1, None, "ü"]}).decode()
    '{"a":[1,null,"ü"],"b":0.1}'
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON of a value, 64 hexadecimal digits."""
    return hashlib.sha256(canonical(value)).hexdigest()


def version() -> str:
    """The version of this package: asked for when needed, as no layer may import what stands above all."""
    return str(sys.modules["loadsheet"].__version__)


def seal(
    sheet: Mapping[str, Any], intent: Mapping[str, Any], calibration: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The signed sheet, as it stands in the file."""
    content: dict[str, Any] = _plain({"sheet": sheet, "intent": intent, "calibration": calibration})
    signed = {
        "time": time.time(),
        "version": version(),
        "sha256": digest(content),
        "parts": {name: digest(part)[:16] for name, part in _parts(content)},
    }
    return {"schema": SCHEMA, "signed": signed, **content}


def to_text(signed: Mapping[str, Any]) -> str:
    """The content of the file."""
    return json.dumps(signed, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read(path: Any) -> dict[str, Any]:
    """The signed sheet in a file; BadFile if it is none, too large, or not as it was signed."""
    return check(load_json(path, "signed sheet", MAX_BYTES), file_label(path, "signed sheet"))


def parse(data: bytes, label: str) -> dict[str, Any]:
    """As `read`, from the bytes of a file that `label` names in errors."""
    if len(data) > MAX_BYTES:
        raise BadFile(f"{label}: got {len(data):,} bytes, expected at most {MAX_BYTES:,}")
    return check(parse_json(data, label), label)


def check(found: object, label: str = "signed sheet") -> dict[str, Any]:
    """A signed sheet, if that is what was given: of the right form, and its hash the one of its content."""
    if not isinstance(found, dict) or not isinstance(found.get("signed"), dict):
        hint = "`loadsheet sign MODEL --gpu GPU --steps N --out FILE` makes one"
        raise BadFile(f"{label}: got no signature, expected a sheet made by `loadsheet sign`", hint)
    if found.get("schema") != SCHEMA:
        raise BadFile(
            f"{label}: got schema {shorten(found.get('schema'))}, expected {SCHEMA}",
            "it was made by another version of loadsheet: sign it again with this one",
        )
    if set(found) != _KEYS or not isinstance(found["sheet"], dict) or not isinstance(found["intent"], dict):
        raise BadFile(
            f"{label}: got the keys {shorten(', '.join(map(str, sorted(found))), 120)}, "
            f"expected {', '.join(sorted(_KEYS))}",
            "it was edited after it was signed: sign it again",
        )
    content = {name: found[name] for name in SIGNED}
    try:
        mark = digest(content)
    except (TypeError, ValueError, RecursionError):  # a dict that never was a file
        raise BadFile(f"{label}: got values that JSON does not have, expected what was signed") from None
    if mark != found["signed"].get("sha256"):
        raise BadFile(
            f"{label}: got another {_edited(content, found['signed'])} than was signed, expected it unedited",
            "a prediction that is changed afterwards is none: put it back, or sign a new one",
        )
    return found


def _edited(content: Mapping[str, Any], signed: Mapping[str, Any]) -> str:
    """The names of what was edited, as far as the hashes of the parts tell."""
    known = signed.get("parts")
    if not isinstance(known, dict):
        return "content"
    now = {name: digest(part)[:16] for name, part in _parts(content)}
    names = sorted(name for name in {*known, *now} if known.get(name) != now.get(name))
    return shorten(", ".join(map(str, names)), 100).strip("'\"") if names else "hash"


def _parts(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in ("sheet", "intent"):
        for key, part in content[name].items():
            yield f"{name}.{key}", part
    yield "calibration", content["calibration"]


def _plain(value: Any) -> Any:
    """A value as it will be read back: dicts, lists, and whole numbers that any reader can hold."""
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= _LARGEST:
        return float(value)
    return value
