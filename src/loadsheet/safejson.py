"""Read JSON that may be hostile: regular files only, behind limits on size, depth and digits.

`json` from the standard library does the parsing; what stands around it makes sure that it is never
asked to do too much. Every failure is a BadFile of one line: what, got, expected.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, BinaryIO, Final, NoReturn

from loadsheet.errors import BadFile, shorten

MAX_BYTES: Final = 8 << 20
MAX_DEPTH: Final = 64
MAX_VALUES: Final = 1_000_000
MAX_DIGITS: Final = 20  # of a whole number: 2^64 has 20
_MAX_FLOAT_TEXT: Final = 64

# A whole string (an unterminated one runs to the end, so the scan stays linear) or one structural sign.
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[\]{},]', re.DOTALL)
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


def file_label(path: str | os.PathLike[str], what: str) -> str:
    """What a file is and its name, fit for one line of an error.

    >>> file_label("models/tiny/config.json", "config")
    "config 'models/tiny/config.json'"
    """
    text = os.fspath(path)
    return f"{what} {shorten(text if len(text) <= 56 else '…' + PurePath(text).name[-52:])}"


@contextmanager
def open_regular(path: str | os.PathLike[str], what: str) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file for reading and give it with its size in bytes; BadFile for anything else.

    A pipe or a device is refused before it is opened (opening could block), and an OSError while
    the caller reads becomes a BadFile too.
    """
    label = file_label(path, what)
    flags = os.O_RDONLY
    for name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"):
        flags |= getattr(os, name, 0)
    try:
        _require_regular(os.stat(path).st_mode, label)
        file = open(os.open(path, flags), "rb")  # noqa: SIM115  (closed below; errors differ)
    except OSError as error:
        raise _unreadable(label, error) from error
    except ValueError as error:  # a null byte or a lone surrogate in the path
        raise BadFile(f"{label}: got no usable path ({error}), expected a file") from error
    with file:
        try:
            found = os.fstat(file.fileno())  # again: the path may have been replaced since
            _require_regular(found.st_mode, label)
            yield file, found.st_size
        except OSError as error:
            raise _unreadable(label, error) from error


def _unreadable(label: str, error: OSError) -> BadFile:
    reason = (error.strerror or type(error).__name__).lower()
    return BadFile(f"{label}: got {reason}, expected a readable file", "check the path")


def _require_regular(mode: int, label: str) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for test, name in _KINDS if test(mode)), "something else")
        hint = "name the file inside it" if kind == "a folder" else ""
        raise BadFile(f"{label}: got {kind}, expected a regular file", hint)


def load_json(
    path: str | os.PathLike[str],
    what: str = "config.json",
    limit: int = MAX_BYTES,
    max_values: int = MAX_VALUES,
) -> dict[str, Any]:
    """The JSON object in a file of at most `limit` bytes; BadFile if it is anything else.

    The size is looked at before reading, and the read itself is bounded: a sparse file of 10 GB
    costs nothing.
    """
    label = file_label(path, what)
    with open_regular(path, what) as (file, size):
        data = b"" if size > limit else file.read(limit + 1)
    if max(size, len(data)) > limit:
        raise BadFile(
            f"{label}: got {max(size, len(data)):,} bytes, expected at most {limit:,}",
            "is this the right file? weights are read from .safetensors and .gguf",
        )
    value = parse_json(data, label, max_values=max_values)
    if not isinstance(value, dict):
        raise BadFile(f"{label}: got {_kind(value)} at the top level, expected an object {{...}}")
    return value


def parse_json(data: bytes, what: str, max_depth: int = MAX_DEPTH, max_values: int = MAX_VALUES) -> object:
    """The value that UTF-8 JSON text holds; `what` names the text in errors, all of them BadFile.

    Refused: nesting beyond `max_depth`, more than `max_values` values, whole numbers of more than
    20 digits, NaN and infinities (1e999 too), a key that stands twice in one object, lone
    surrogates, invalid UTF-8. A byte order mark is passed over.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")
    _check_structure(data, what, max_depth, max_values)

    def fail(got: str, expected: str) -> NoReturn:
        raise BadFile(f"{what}: got {got}, expected {expected}")

    def whole(text: str) -> int:
        if len(text.lstrip("-")) > MAX_DIGITS:
            fail(f"a whole number of {len(text.lstrip('-'))} digits", f"at most {MAX_DIGITS}")
        return int(text)

    def decimal(text: str) -> float:
        value = float(text) if len(text) <= _MAX_FLOAT_TEXT else math.inf
        if not math.isfinite(value):
            fail(f"the number {shorten(text)}", "one that a 64-bit float can hold")
        return value

    def constant(text: str) -> NoReturn:
        fail(f"the value {text}", "a finite number")

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            seen: set[str] = set()
            twice = next(key for key, _ in items if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            fail(f"the key {shorten(twice)} twice in one object", "each key once")
        return found

    try:
        value: object = json.loads(
            data.decode("utf-8"),
            parse_int=whole,
            parse_float=decimal,
            parse_constant=constant,
            object_pairs_hook=pairs,
        )
    except UnicodeDecodeError as error:
        fail(f"a byte that is not UTF-8 at offset {error.start:,}", "UTF-8 text")
    except json.JSONDecodeError as error:
        if not data.strip():
            fail("nothing" if not data else "only white space", "JSON")
        fail(f"no valid JSON at line {error.lineno}, column {error.colno} ({error.msg.lower()})", "JSON")
    except RecursionError:
        fail("values nested too deeply for this stack", f"at most {max_depth} levels")
    if _SURROGATE.search(data):
        _check_surrogates(value, what)
    return value


def _check_structure(data: bytes, what: str, max_depth: int, max_values: int) -> None:
    """Bound depth and number of values before the parser allocates anything."""
    opened = data.count(b"[") + data.count(b"{")
    if opened <= max_depth and opened + data.count(b",") < max_values:
        return  # even if none of these signs stood inside a string, no limit could be reached
    depth, values = 0, 1
    for token in _TOKEN.finditer(data):
        sign = data[token.start()]
        if sign == 0x22:  # a string
            continue
        if sign in b"[{":
            depth += 1
            values += 1
            if depth > max_depth:
                raise BadFile(f"{what}: got nesting deeper than {max_depth}, expected at most that")
        elif sign == 0x2C:  # a comma
            values += 1
        else:
            depth -= 1
        if values > max_values:
            raise BadFile(f"{what}: got more than {max_values:,} values, expected at most that")


def _check_surrogates(value: object, what: str) -> None:
    """BadFile if a string or key holds half a surrogate pair, which no output could encode."""
    waiting: list[Any] = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting.extend(item)
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
        elif isinstance(item, str):
            try:
                item.encode("utf-8")
            except UnicodeEncodeError:
                raise BadFile(
                    f"{what}: got half a surrogate pair in {shorten(item)}, expected Unicode text"
                ) from None


def _kind(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")
