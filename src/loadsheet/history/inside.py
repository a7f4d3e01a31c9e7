"""Files of a run directory that somebody else may have filled: bounded, regular, and inside their root."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, Final

from loadsheet.errors import BadFile, shorten
from loadsheet.safejson import open_regular

_DEEPEST: Final = 200  # levels; what a run writes itself has at most 100


class Inside:
    """Reads below `path`; a link counts only if what it points to lies below `root` (or `path`) too."""

    def __init__(self, path: Path, root: Path | None = None) -> None:
        self.path = path
        self._root = os.path.realpath(path if root is None else root)

    def leaves(self) -> bool:
        """Whether the directory is itself a link that leaves the root."""
        return not self._below(os.path.realpath(self.path))

    def file(self, name: str) -> Path:
        """The path of a file. Raises FileNotFoundError, BadFile for a link out of the root."""
        at = os.fspath(self.path)
        linked = False
        try:
            for part in name.split("/"):
                at = f"{at}/{part}"
                linked |= stat.S_ISLNK(os.lstat(at).st_mode)
            if linked:
                os.stat(at)
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise BadFile(f"{name}: got {reason!r}, expected to read it") from None
        if linked and not self._below(os.path.realpath(at)):
            raise BadFile(
                f"{name}: got a link that leaves the directory, expected a file in it: not followed"
            )
        return Path(at)

    def folder(self, name: str) -> Path:
        """The path of a folder; errors as `file`, and BadFile if it is none."""
        found = self.file(name)
        if not found.is_dir():
            raise BadFile(f"{name}: got a file, expected a folder")
        return found

    def _below(self, real: str) -> bool:
        return real == self._root or real.startswith(self._root.rstrip("/") + "/")

    def json(self, name: str, limit: int) -> dict[str, Any]:
        """The JSON object in a file of at most `limit` bytes; FileNotFoundError, BadFile."""
        path = self.file(name)
        with open_regular(path, name) as (file, size):
            data = b"" if size > limit else file.read(limit + 1)
        if max(size, len(data)) > limit:
            raise BadFile(f"{name}: got {max(size, len(data)):,} bytes, expected at most {limit:,}")
        return parse_object(data, name)


def parse_object(data: bytes, name: str) -> dict[str, Any]:
    """The JSON object in some bytes; BadFile if it is anything else, `name` says what it is read from.

    Refused: NaN and infinities (1e999 too), text that UTF-8 cannot hold, more than 200 levels.
    """
    try:
        found = json.loads(data)
        if isinstance(found, dict):
            json.dumps(found, allow_nan=False, ensure_ascii=False).encode()
            if _depth_of(data) > _DEEPEST:
                raise RecursionError
            return found
    except (ValueError, RecursionError) as error:
        reason = "values nested too deeply" if isinstance(error, RecursionError) else shorten(str(error), 80)
        raise BadFile(f"{name}: got no valid JSON ({reason}), expected an object") from None
    raise BadFile(f"{name}: got a {type(found).__name__}, expected an object {{...}}")


def _depth_of(data: bytes) -> int:
    """Levels of nesting, or more: brackets within texts are counted too."""
    depth = deepest = 0
    if data.count(b"{") + data.count(b"[") <= _DEEPEST:
        return 0
    for sign in data:
        if sign in b"{[":
            depth += 1
            deepest = max(deepest, depth)
        elif sign in b"}]":
            depth -= 1
    return deepest
