"""Files of a run directory that somebody else may have filled: bounded, regular, and inside their root."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from loadsheet.safejson import open_regular
from loadsheet.errors import BadFile, shorten


class Inside:
    """Reads below `path`; a link counts only if what it points to lies below `root` (or `path`) too."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path = path
        self._roots = (os.path.realpath(root), os.path.realpath(path))

    def file(self, name: str) -> Path:
        """The path of a file. Raises FileNotFoundError, BadFile for a link out of the root."""
        return self._checked(name)

    def folder(self, name: str) -> Path:
        """The path of a folder; errors as `file`, and BadFile if it is none."""
        found = self._checked(name)
        if not found.is_dir():
            raise BadFile(f"{name}: got a file, expected a folder")
        return found

    def _checked(self, name: str) -> Path:
        found = self.path / name
        os.lstat(found)
        real = os.path.realpath(found)
        # a run directory that is itself a link out of the root must not make everything below it inside
        root = self._roots[0]
        if real != root and not real.startswith(root.rstrip("/") + "/"):
            raise BadFile(
                f"{name}: got a link that leaves the directory, expected a file in it: not followed"
            )
        os.lstat(real)
        return found

    def json(self, name: str, limit: int) -> dict[str, Any]:
        """The JSON object in a file of at most `limit` bytes; FileNotFoundError, BadFile."""
        path = self.file(name)
        with open_regular(path, name) as (file, size):
            data = b"" if size > limit else file.read(limit + 1)
        if max(size, len(data)) > limit:
            raise BadFile(f"{name}: got {max(size, len(data)):,} bytes, expected at most {limit:,}")
        return parse_object(data, name)


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def parse_object(data: bytes, name: str) -> dict[str, Any]:
    """The JSON object in some bytes; BadFile if it is anything else, `name` says what it is read from."""
    try:
        found = json.loads(data, parse_constant=_refuse)
        if isinstance(found, dict):
            json.dumps(found, allow_nan=False).encode()  # 1e999 is read as infinity
            return found
    except (ValueError, RecursionError) as error:
        reason = "values nested too deeply" if isinstance(error, RecursionError) else shorten(str(error), 80)
        raise BadFile(f"{name}: got no valid JSON ({reason}), expected an object") from None
    raise BadFile(f"{name}: got a {type(found).__name__}, expected an object {{...}}")
