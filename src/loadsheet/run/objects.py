"""Where a mirror lives: object storage through obstore, or another directory. Five calls, and no rename.

An object appears whole or not at all; nothing else is assumed, and no two are ever changed together.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from loadsheet.errors import BadInput, one_line, shorten
from loadsheet.run.errors import RunError

_CHUNK = 8 * 1024 * 1024
#: what gets no answer is given up after a minute: meanwhile the machine waits, and costs
_RETRY: Final = {"retry_timeout": timedelta(seconds=60)}
_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "https")


class MirrorFailed(RunError):
    """The copy elsewhere could not be written or read; the run on this machine is not touched by it."""


class Objects(Protocol):
    """A place for objects. Every method raises MirrorFailed; what is not there is a FileNotFoundError."""

    where: str

    def put(self, name: str, content: bytes | Path, new: bool = False) -> None:
        """Store an object whole; with `new`, FileExistsError if there is one of that name."""

    def get(self, name: str) -> bytes:
        """The content of a small object."""

    def stream(self, name: str) -> Iterator[memoryview]:
        """The content of a large object, piece by piece."""

    def list(self, prefix: str) -> dict[str, int]:
        """The names below a prefix, with their sizes in bytes."""

    def sweep(self, prefix: str) -> None:
        """Remove what a process that was killed had half written."""

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; what is not there is removed already."""


def place(url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> Objects:
    """The place a URL names: `s3://`, `gs://`, `az://`, … or a path. Raises BadInput.

    Keys come from the environment or the machine's role, as the vendor's own tools take them; `options`
    go to obstore as they are.
    """
    text = os.fspath(url)
    scheme = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]*)://", text)
    if scheme is None or scheme[1].lower() == "file":
        path = text[len("file://") :] if scheme else text
        if not path:
            raise BadInput(f"mirror: got {shorten(text)}, expected a path or a URL like `s3://bucket/folder`")
        if os.path.lexists(path) and not os.path.isdir(path):
            raise BadInput(f"mirror: got {shorten(text)}, which is no directory, expected one, or a URL")
        return Folder(Path(path))
    if scheme[1].lower() not in _SCHEMES:
        raise BadInput(f"mirror: got {shorten(text)}, expected a path or one of s3://, gs://, az://")
    return Bucket(text, options or {})


def settled(url: str | os.PathLike[str]) -> str:
    """The same place whatever directory the script changes to: a path becomes absolute."""
    text = os.fspath(url)
    return text if not text or "://" in text else os.path.abspath(text)


def _first_line(error: BaseException) -> str:
    """What obstore says, without the structures of its own that it adds below."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return one_line(lines[0])[:160] if lines else type(error).__name__


class Bucket:
    """Object storage. Large objects go up in parts, and appear when the last part is acknowledged."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        try:
            import obstore
        except ImportError:
            raise BadInput(
                f"mirror: got {shorten(url)}, expected obstore to be installed", "pip install 'loadsheet[s3]'"
            ) from None
        self.where = re.sub(r"//[^/@]*@", "//", url.split("?", maxsplit=1)[0]).rstrip(
            "/"
        )  # no keys in messages
        self._obstore = obstore
        # what it raises: its own tree, Python's OSError for some, ValueError for senseless settings
        self._errors = (obstore.exceptions.BaseError, OSError, ValueError, TypeError)
        try:
            self._store = obstore.store.from_url(url, **({"retry_config": _RETRY} | dict(options)))
        except self._errors as error:
            raise BadInput(
                f"mirror: got {shorten(self.where)} ({_first_line(error)}), expected a bucket",
                "region, endpoint and keys come from the environment, or from `mirror_options`",
            ) from None

    def _failed(self, verb: str, name: str, error: BaseException) -> MirrorFailed:
        text = str(error)
        code = re.search(r"<Code>(\w+)</Code>", text) or re.search(r"status code: (\d+ [\w ]+)", text)
        return MirrorFailed(
            f"mirror {self.where}: got `{code[1] if code else _first_line(error)}`, expected to {verb} {name}",
            "bucket, region, endpoint and keys: does the vendor's own tool reach it from here?",
        )

    def put(self, name: str, content: bytes | Path, new: bool = False) -> None:
        """Upload; a missing bucket is an error, not a missing object."""
        mode: Literal["create", "overwrite"] = "create" if new else "overwrite"
        try:
            if isinstance(content, Path):
                self._obstore.put(self._store, name, content, mode=mode, chunk_size=_CHUNK, max_concurrency=4)
            else:
                self._obstore.put(self._store, name, content, mode=mode, use_multipart=False)
        except self._obstore.exceptions.AlreadyExistsError:
            raise FileExistsError(name) from None
        except FileNotFoundError as error:
            if isinstance(content, Path) and not content.exists():
                raise
            raise self._failed("write", name, error) from None
        except self._errors as error:
            raise self._failed("write", name, error) from None

    def get(self, name: str) -> bytes:
        """Download."""
        return b"".join(bytes(chunk) for chunk in self.stream(name))

    def stream(self, name: str) -> Iterator[memoryview]:
        """Download piece by piece."""
        try:
            for chunk in self._obstore.get(self._store, name).stream(min_chunk_size=_CHUNK):
                yield memoryview(chunk)
        except FileNotFoundError:
            raise
        except self._errors as error:
            raise self._failed("read", name, error) from None

    def list(self, prefix: str) -> dict[str, int]:
        """Names and sizes."""
        try:
            found = (entry for batch in self._obstore.list(self._store, prefix) for entry in batch)
            return {str(entry["path"]): int(entry["size"]) for entry in found}
        except self._errors as error:
            raise self._failed("list", prefix, error) from None

    def sweep(self, prefix: str) -> None:
        """Nothing: an upload that was not finished has no name here, and the vendor's rules remove its parts."""

    def delete(self, names: Iterable[str]) -> None:
        """Remove."""
        for name in names:
            try:
                self._obstore.delete(self._store, name)
            except FileNotFoundError:
                continue
            except self._errors as error:
                raise self._failed("remove", name, error) from None


class Folder:
    """A directory, on another disk or a network share."""

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._path = path

    def _failed(self, verb: str, name: str, error: OSError) -> MirrorFailed:
        return MirrorFailed(f"mirror {self.where}: got `{error.strerror}`, expected to {verb} {name}")

    def put(self, name: str, content: bytes | Path, new: bool = False) -> None:
        """Write aside, fsync, and give it its name."""
        path = self._path / name
        aside = path.with_name(f".{path.name}-{os.urandom(4).hex()}.unfinished")
        source = (
            content.open("rb") if isinstance(content, Path) else None
        )  # FileNotFoundError is the caller's
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with aside.open("wb") as file:
                if source is None:
                    file.write(content)  # type: ignore[arg-type]
                else:
                    while chunk := source.read(_CHUNK):
                        file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            if new:
                os.link(aside, path)
                aside.unlink()
            else:
                aside.replace(path)
        except OSError as error:
            aside.unlink(missing_ok=True)
            if isinstance(error, FileExistsError) and new:
                raise
            raise self._failed("write", name, error) from None
        finally:
            if source is not None:
                source.close()

    def get(self, name: str) -> bytes:
        """Read."""
        return b"".join(bytes(chunk) for chunk in self.stream(name))

    def stream(self, name: str) -> Iterator[memoryview]:
        """Read piece by piece."""
        try:
            with (self._path / name).open("rb") as file:
                while chunk := file.read(_CHUNK):
                    yield memoryview(chunk)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._failed("read", name, error) from None

    def list(self, prefix: str) -> dict[str, int]:
        """Names and sizes; what is half written has a hidden name."""
        found = {}
        try:
            for folder, _, names in os.walk(self._path / prefix):
                for name in names:
                    path = Path(folder, name)
                    if not name.startswith("."):
                        found[path.relative_to(self._path).as_posix()] = path.stat().st_size
        except OSError as error:
            raise self._failed("list", prefix, error) from None
        return found

    def sweep(self, prefix: str) -> None:
        """Remove what a process that was killed had half written, and directories that are empty."""
        try:
            for folder, _, names in os.walk(self._path / prefix, topdown=False):
                for name in names:
                    if name.startswith(".") and name.endswith(".unfinished"):
                        Path(folder, name).unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # not empty
                    Path(folder).rmdir()
        except OSError as error:
            raise self._failed("clear", prefix, error) from None

    def delete(self, names: Iterable[str]) -> None:
        """Remove, and the directories that become empty."""
        for name in names:
            path = self._path / name
            try:
                path.unlink(missing_ok=True)
                while path.parent != self._path and not any(path.parent.iterdir()):
                    path.parent.rmdir()
                    path = path.parent
            except FileNotFoundError:
                continue
            except OSError as error:
                raise self._failed("remove", name, error) from None
