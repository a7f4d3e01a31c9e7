"""The files of a folder that could leave it: what git tracks, and what it would take with `git add`."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from loadsheet.cloud.checklist import CannotLook
from loadsheet.cloud.git import Repository
from loadsheet.cloud.secrets import CHUNK, Found, Scanner

#: folders that hold other people's files, where there is no git to say so
_FOREIGN: Final = {".git", ".hg", "node_modules", "__pycache__", ".venv", "venv", ".tox", ".mypy_cache"}
_MOST_FILES: Final = 200_000
_MOST_SECRETS: Final = 2000
_MOST_PLACES: Final = 100  # of one secret


@dataclass
class WorkTree:
    """What was found, and how much was looked at. `stopped` says why not at all of it."""

    found: list[tuple[Found, str]] = field(default_factory=list)
    times: Counter[str] = field(default_factory=Counter)  # how often each fingerprint stands there
    files: int = 0
    bytes: int = 0
    unreadable: list[str] = field(default_factory=list)
    repositories: list[str] = field(default_factory=list)  # submodules: repositories of their own
    stopped: str = ""


def search(top: Path, names: Iterator[str], scanner: Scanner, left: Callable[[], float]) -> WorkTree:
    """Secrets in files below `top`; symbolic links are not followed. `left`: seconds there still are."""
    tree = WorkTree()
    for name in names:
        if left() <= 0:
            tree.stopped = "there was no time for the rest"
            break
        if tree.files >= _MOST_FILES:
            tree.stopped = f"there are more than {_MOST_FILES:,} files"
            break
        try:
            for entry in scanner.stream(_pieces(top, name, tree, left)):
                tree.times[entry.fingerprint] += 1
                if tree.times[entry.fingerprint] <= _MOST_PLACES:
                    tree.found.append((entry, name))
        except FileNotFoundError:
            continue  # deleted, and not yet committed
        except TimeoutError:
            tree.stopped = "there was no time for the rest"
            break
        except OSError:
            tree.unreadable.append(name)
        if len(tree.times) >= _MOST_SECRETS:
            tree.stopped = f"there are {_MOST_SECRETS:,} secrets and more"
            break
    return tree


def _pieces(top: Path, name: str, tree: WorkTree, left: Callable[[], float]) -> Iterator[bytes]:
    """The content of a regular file; nothing for anything else, or for what lies elsewhere."""
    path = top / name
    mode = os.lstat(path).st_mode
    if stat.S_ISDIR(mode):
        tree.repositories.append(name)
        return
    if not stat.S_ISREG(mode) or not path.parent.resolve().is_relative_to(top.resolve()):
        return
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags), "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return
        tree.files += 1
        while piece := file.read(CHUNK):
            tree.bytes += len(piece)
            yield piece
            if left() <= 0:
                raise TimeoutError


def listed(repository: Repository) -> Iterator[str]:
    """What git tracks, and new files that it does not ignore; CannotLook if it cannot list them."""
    names = repository.lines("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--full-name")
    yield from dict.fromkeys(name.rstrip("/") for name in names)


def walked(top: Path) -> Iterator[str]:
    """Every file of a folder without git, but environments and caches; sorted in each folder."""

    def refuse(error: OSError) -> None:
        raise CannotLook(f"{error.filename}: {(error.strerror or str(error)).lower()}")

    for folder, folders, files in os.walk(top, onerror=refuse):
        here = Path(folder)
        folders[:] = sorted(
            name for name in folders if name not in _FOREIGN and not (here / name / "pyvenv.cfg").exists()
        )
        for name in sorted(files):
            yield str((here / name).relative_to(top))
