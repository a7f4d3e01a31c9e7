"""The code: committed, pushed, with its environment written down, and rehearsed as it stands."""

from __future__ import annotations

import datetime
import re
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from loadsheet.cloud.checklist import CannotLook, Result, fail, not_applicable, ok, unknown, warn
from loadsheet.cloud.context import Context
from loadsheet.cloud.git import Repository
from loadsheet.cloud.registry import check
from loadsheet.errors import LoadsheetError, one_line
from loadsheet.safejson import load_json
from loadsheet.text import many
from loadsheet.units import format_duration

_NAMED: Final = 8  # files that are named
_CODE: Final = (".py", ".ipynb", ".sh", ".yaml", ".yml", ".toml", ".cu", ".cpp")


# --- committed and pushed -------------------------------------------------------------------------------


def changed(repository: Repository) -> tuple[list[str], list[str]]:
    """Files that differ from the commit, and new ones that are not ignored; CannotLook if git refuses."""
    words = (
        "status",
        "--porcelain=v1",
        "-z",
        "--no-renames",
        "--untracked-files=all",
        "--ignore-submodules=dirty",
    )
    differ: list[str] = []
    new: list[str] = []
    for line in repository.lines(*words):
        (new if line.startswith("??") else differ).append(line[3:])
    return differ, new


@check(
    "code.committed",
    phase="before",
    why="a result whose code was never committed cannot be explained later, and goes with the machine",
)
def committed(context: Context) -> Result:
    """No file differs from the commit, no new source file is left out, and the commit is on a branch."""
    repository = context.repository
    if repository is None:
        return warn("no git repository here", next="`git init`, commit, and push it somewhere")
    head = repository.head
    if head is None:
        return warn("nothing was committed so far", next="`git add` what belongs here, and commit")
    differ, new = changed(repository)
    source = [name for name in new if name.endswith(_CODE)]
    facts: list[dict[str, Any]] = []
    if differ:
        facts.append(
            {
                "fact": f"{_count(differ, 'file')} changed since the commit: {_some(differ)}",
                "changed": len(differ),
            }
        )
    if source:
        facts.append(
            {"fact": f"{_count(source, 'new source file')} not in git: {_some(source)}", "new": len(source)}
        )
    if repository.run("symbolic-ref", "--quiet", "HEAD").status != 0:
        facts.append(
            {"fact": f"detached at {head[:10]}: on no branch, so the next switch leaves new commits behind"}
        )
    if facts:
        return warn(*facts, next="commit, on a branch")
    rest = f", {_count(new, 'other new file')}" if new else ""
    return ok({"fact": f"commit {head[:10]}, nothing changed since{rest}", "commit": head})


@check(
    "code.pushed",
    phase="before",
    why="the machine will be taken away with the only copy of a commit that was not pushed",
)
def pushed(context: Context) -> Result:
    """Every commit is on a remote, as far as this copy knows: nothing is fetched."""
    repository = context.repository
    if repository is None:
        return not_applicable("no git repository here")
    if repository.head is None:
        return not_applicable("nothing was committed so far")
    if not repository.run("remote").out.strip():
        return warn("no remote: this is the only copy", next="`git remote add origin URL`, and push")
    here = _number(repository, "HEAD", "--not", "--remotes")
    branches = _number(repository, "--branches", "--not", "--remotes")
    tags = "as of the last fetch or push"
    if here:
        row = {"fact": f"{here:,} commit{'s' * (here != 1)} on no remote ({tags})", "commits": here}
        return warn(row, next="`git push`")
    if branches:
        text = f"{branches:,} commit{'s' * (branches != 1)} of other branches on no remote"
        row = {"fact": text, "commits": branches}
        return warn(row, next="`git push --all`, or delete the branches")
    stashes = len(repository.lines("stash", "list", "-z", "--format=%H"))
    if stashes:
        row = {"fact": f"{stashes} stash{'es' * (stashes != 1)}: they are never pushed", "stashes": stashes}
        return warn(row, next="commit what is worth keeping")
    return ok(f"every commit is on a remote, {tags}")


def _number(repository: Repository, *words: str) -> int:
    output = repository.run("rev-list", "--count", *words)
    if output.status != 0 or not output.out.strip().isdigit():
        raise CannotLook(f"git rev-list: {one_line(output.err)[:200]}")
    return int(output.out)


def _count(names: list[str], what: str) -> str:
    return many(len(names), what)


def _some(names: list[str]) -> str:
    shown = ", ".join(one_line(name)[:80] for name in names[:_NAMED])
    return shown + (f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else "")


# --- the environment ----------------------------------------------------------------------------------------

_LOCKS: Final = (
    "uv.lock",
    "poetry.lock",
    "pdm.lock",
    "Pipfile.lock",
    "pixi.lock",
    "conda-lock.yml",
    "pylock.toml",
)
_PIN: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*===?\s*([A-Za-z0-9.!+_-]+)")
_INCLUDED: Final = re.compile(r"(?:-r|--requirement)[\s=]*(\S.*)")
_FILES: Final = 20  # of requirements that take in each other
_DIRECT: Final = re.compile(r"@\s*\S+|(?:git\+|https?:|file:)\S+")


@check(
    "code.environment",
    phase="before",
    why="`pip install` gives other versions next month, and another version may give another result",
)
def environment(context: Context) -> Result:
    """A lock file, or requirements that name one version of everything."""
    repository = context.repository
    tops = [context.directory] + ([repository.top] if repository else [])
    for top in dict.fromkeys(tops):
        for name in _LOCKS:
            if (top / name).is_file():
                return _tracked(repository, top / name, ok(f"{name} fixes every version"))
    files = [path for top in dict.fromkeys(tops) for path in sorted(top.glob("requirements*.txt"))[:20]]
    if not files:
        return warn(
            "no lock file and no requirements.txt: which versions were used is written nowhere",
            next="`pip freeze > requirements.txt`, or use uv, poetry, conda-lock",
        )
    main = next((path for path in files if path.name == "requirements.txt"), files[0])
    pins, loose, unread = _requirements(main, set())
    if loose:
        return warn(
            {"fact": f"{main.name}: {_count(loose, 'line')} without one exact version: {_some(loose)}"},
            next="`pip freeze > requirements.txt` in the environment that works",
        )
    other = [
        f"{name} {wanted}, here {have}"
        for name, wanted in pins.items()
        if (have := _installed(name)) is not None and have.partition("+")[0] != wanted.partition("+")[0]
    ]
    if other:
        return warn(
            {"fact": f"{main.name} differs from the environment this runs in: {_some(other)}"},
            next="install from the file, or freeze anew: one of them is not what was tried",
        )
    text = f"{main.name} fixes {_count(list(pins), 'version')}"
    if unread:
        return unknown(text, f"it takes in what could not be read: {_some(unread)}")
    return _tracked(repository, main, ok(text))


def _tracked(repository: Repository | None, path: Path, result: Result) -> Result:
    """The result, unless git does not hold the file."""
    if repository is None:
        return result
    name = str(path.resolve().relative_to(repository.top.resolve()))
    if not repository.lines("ls-files", "-z", "--cached", "--full-name", "--", f":(literal,top){name}"):
        return warn(f"{path.name} is there but not in git", next=f"commit {path.name}")
    return result


def _requirements(path: Path, seen: set[Path]) -> tuple[dict[str, str], list[str], list[str]]:
    """Exact versions, lines that name none, and files that are taken in (`-r`) and could not be read.

    Other options, comments and links with a hash do not count.
    """
    pins: dict[str, str] = {}
    loose: list[str] = []
    unread: list[str] = []
    seen.add(path.resolve())
    text = path.read_bytes()[: 1 << 20].decode(errors="replace")
    for raw in text.replace("\\\n", " ").splitlines():
        line = raw.partition(" #")[0].strip()
        if match := _INCLUDED.fullmatch(line):
            other = path.parent / match[1]
            if other.resolve() in seen:
                continue
            if not other.is_file() or len(seen) >= _FILES:
                unread.append(match[1])
                continue
            more = _requirements(other, seen)
            pins, loose, unread = {**pins, **more[0]}, loose + more[1], unread + more[2]
            continue
        if not line or line.startswith(("#", "-")):
            continue
        if match := _PIN.match(line):
            pins[match[1]] = match[2]
        elif not re.search(r"@[0-9a-f]{7,40}(\b|$)|#sha256=", line) or not _DIRECT.search(line):
            loose.append(line)
    return pins, loose, unread


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except (metadata.PackageNotFoundError, ValueError):
        return None


# --- rehearsed ---------------------------------------------------------------------------------------------


@check(
    "code.rehearsed",
    phase="before",
    why="data → train → evaluate → save → resume, tried on a tiny configuration where a minute costs nothing",
)
def rehearsed(context: Context) -> Result:
    """The last rehearsal passed, on this commit and with nothing changed since."""
    path = context.notebook / "rehearsal.json"
    todo = "`loadsheet rehearse -- python train.py --tiny`"
    if not path.exists():
        return unknown("no rehearsal was made here", next=todo)
    try:
        found = load_json(path, "rehearsal.json", 1 << 20)
        passed, commit, dirty = found["passed"], found.get("commit"), bool(found.get("dirty"))
        when = datetime.datetime.fromtimestamp(float(found["time"])).astimezone()
    except (LoadsheetError, KeyError, TypeError, ValueError, OverflowError, OSError) as error:
        raise CannotLook(f"rehearsal.json: {one_line(str(error)) or type(error).__name__}", todo) from None
    ago = format_duration(max(context.machine.time() - when.timestamp(), 0.0))
    on = commit if isinstance(commit, str) else None
    row = {"time": when.timestamp(), "commit": on}
    if passed is not True:
        return fail({"fact": f"the rehearsal {ago} ago did not pass", **row}, next=f"mend it, then {todo}")
    repository = context.repository
    if repository is None or on is None:
        return warn(
            {"fact": f"passed {ago} ago, on which code is not known", **row}, next=f"commit, then {todo}"
        )
    head = repository.head or "none"
    if on != head:
        text = f"passed {ago} ago on commit {one_line(on)[:10]}; here it is {head[:10]}"
        return warn({"fact": text, **row}, next=f"again on this commit: {todo}")
    differ, _ = changed(repository)
    if dirty or differ:
        text = f"passed {ago} ago on commit {head[:10]}, with files changed " + ("then" if dirty else "since")
        return warn({"fact": text, **row}, next=f"commit, then {todo}")
    return ok({"fact": f"passed {ago} ago on this commit, {head[:10]}", **row})
