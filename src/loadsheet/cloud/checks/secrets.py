"""Keys and tokens where they can leave this machine: files, the history, remotes, the home folder."""

from __future__ import annotations

import datetime
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from loadsheet.cloud import git_history, work_tree
from loadsheet.cloud.checklist import CannotLook, Result, fail, not_applicable, ok, unknown, warn
from loadsheet.cloud.context import Context
from loadsheet.cloud.git import Repository
from loadsheet.cloud.git_history import Place
from loadsheet.cloud.registry import check
from loadsheet.cloud.secrets import Found, Scanner, redact
from loadsheet.errors import LoadsheetError, one_line
from loadsheet.safejson import load_json
from loadsheet.units import format_bytes

_MOST_ROWS: Final = 50
_ROTATE: Final = "deleting it is not enough, whoever copied it has it: make a new key and revoke this one"
_BASELINE: Final = ".secrets.baseline"


def _scanner(context: Context) -> Scanner:
    return context.once("scanner", Scanner)


# --- what was found, as a result --------------------------------------------------------------------------


def judge(
    context: Context,
    found: Iterable[tuple[Found, Place]],
    times: Mapping[str, int],
    looked: dict[str, Any],
    missing: list[str],
    *,
    next: str,
) -> Result:
    """Findings as a result: each secret once, allow-listed and replaced ones counted, nothing shown whole.

    `times` says how often each fingerprint stands there.
    `missing` says what could not be looked at: without a finding that makes it `unknown`.
    """
    scanner = _scanner(context)
    baseline, remark = _baseline(context)
    today = datetime.date.fromtimestamp(context.machine.time())
    groups: dict[str, list[tuple[Found, Place]]] = {}
    allowed = 0
    rotated: list[dict[str, Any]] = []
    for entry, place in found:
        if entry.allowed or entry.hashed in baseline:
            allowed += 1
        else:
            groups.setdefault(entry.fingerprint, []).append((entry, place))
    rows, levels = [], set()
    for print_, group in groups.items():
        group.sort(key=lambda pair: (pair[1].commit is None, pair[1].date or "", pair[1].path or ""))
        row = _row(scanner, *group[0], more=times.get(print_, 1) - 1)
        answer = context.answers.rotated(print_, today)
        if answer is not None:
            row["remark"] = f"replaced: so says {answer.who} on {answer.date}"
            rotated.append(row)
        else:
            levels.add(group[0][0].level)
            rows.append(row)
    rows.sort(key=lambda row: (row["rule"], row["path"] or "", row["line"]))
    evidence = rows[:_MOST_ROWS]
    if len(rows) > _MOST_ROWS:
        evidence.append({"fact": f"and {len(rows) - _MOST_ROWS:,} more"})
    evidence += rotated[:_MOST_ROWS]
    if allowed:
        evidence.append({"fact": f"{allowed:,} allow-listed by a comment or {_BASELINE}"})
    evidence += [{"fact": text} for text in [remark, *missing] if text]
    if rows:
        steps = list(dict.fromkeys(row["rotate"] for row in rows))[:3]
        done = "Once it is replaced: `--answer secrets.rotated:FINGERPRINT=yes`"
        todo = f"{_ROTATE}. Where: {'; '.join(steps)}. {next} {done}"
        return (fail if "fail" in levels else warn)(*evidence, looked, next=todo)
    if missing or remark:
        return unknown(*evidence, looked, next=_more_time(missing))
    return ok(looked, *evidence)


def _row(scanner: Scanner, entry: Found, place: Place, more: int) -> dict[str, Any]:
    """One secret as evidence."""
    remarks = []
    if place.stash is not None:
        name = f"stash@{{{place.stash}}}"
        remarks.append(
            f"in a stash: `git stash show -p {name}` shows it, `git stash drop {name}` and then "
            "`git gc --prune=now` take it away"
        )
    elif place.removed:
        remarks.append(f"deleted in {place.removed[:10]}, still in the history")
    if place.kind == "blob" and place.commit is None and place.object:
        remarks.append(
            f"in no commit that is still reached (object {place.object[:10]}), still in the repository"
        )
    if place.path and place.path.endswith(".ipynb"):
        remarks.append("a notebook: outputs count too")
    if more:
        remarks.append(f"and {more:,} more times")
    row: dict[str, Any] = {
        "rule": entry.rule,
        "path": _safe(scanner, place.path),
        "commit": place.commit,
        "redacted": entry.redacted,
        "line": entry.line,
        "title": entry.title,
        "fingerprint": entry.fingerprint,
        "rotate": entry.rotate,
    }
    if place.date:
        row["date"] = place.date
    if remarks:
        row["remark"] = "; ".join(remarks)
    return row


def _safe(scanner: Scanner, path: str | None) -> str | None:
    """A path without the secret that may stand in it."""
    if path is None:
        return None
    data = path.encode("utf-8", "surrogateescape")
    for entry in scanner.scan(data):
        data = data.replace(entry.secret, redact(entry.secret).encode())
    return data.decode("utf-8", "replace")


def _baseline(context: Context) -> tuple[set[str], str]:
    """Hashes that a baseline of detect-secrets allows, but not those marked there as real; and a problem."""
    repository = context.repository
    path = (repository.top if repository else context.directory) / _BASELINE
    if not path.exists():
        return set(), ""
    try:
        results = load_json(path, _BASELINE).get("results", {})
        rows = [row for rows in results.values() for row in rows]
        return {row["hashed_secret"] for row in rows if row.get("is_secret") is not True}, ""
    except (LoadsheetError, AttributeError, TypeError, KeyError) as error:
        return set(), f"{_BASELINE} cannot be read ({type(error).__name__}): nothing in it counts"


def _more_time(missing: list[str]) -> str:
    if any("time" in text for text in missing):
        return "give it longer: `--timeout 10min`"
    if any("detect-secrets" in text for text in missing):
        return "pip install 'loadsheet[preflight]'"
    return ""


# --- checks -----------------------------------------------------------------------------------------------


@check(
    "secrets.worktree",
    phase="before",
    slow=True,
    why="a key in a file is one `git push` away from robots that rent machines with it within minutes",
)
def worktree(context: Context) -> Result:
    """Files that git tracks, or would take with `git add`."""
    scanner, repository = _scanner(context), context.repository
    top = repository.top if repository else context.directory
    names = work_tree.listed(repository) if repository else work_tree.walked(top)
    tree = work_tree.search(top, names, scanner, context.left)
    kind = "tracked or new, ignored ones left out" if repository else "no repository: every file here"
    looked = {
        "fact": f"{tree.files:,} files, {format_bytes(tree.bytes)} looked through ({kind})",
        "files": tree.files,
        "bytes": tree.bytes,
    }
    missing = [f"not all was looked at: {tree.stopped}"] if tree.stopped else []
    if tree.unreadable:
        missing.append(
            f"{len(tree.unreadable):,} files could not be read, {_safe(scanner, tree.unreadable[0])} first"
        )
    if tree.repositories:
        missing.append(f"repositories of their own, run it there too: {', '.join(tree.repositories[:5])}")
    if scanner.problem:
        missing.append(scanner.problem)
    found = [(entry, Place("", "file", name)) for entry, name in tree.found]
    return judge(context, found, tree.times, looked, missing, next="Then take it out of the file.")


@check(
    "secrets.history",
    phase="before",
    slow=True,
    why="a key that was committed once and deleted later is still in every clone",
)
def history(context: Context) -> Result:
    """Every object of the repository: all branches, tags, stashes, reflogs, and what nothing refers to."""
    repository = context.repository
    if repository is None:
        return not_applicable("no git repository, so no history")
    scanner = _scanner(context)
    read = git_history.search(repository, scanner, context.left, context.tell)
    looked: dict[str, Any] = {
        "fact": f"{read.objects:,} objects, {format_bytes(read.bytes)} looked through: "
        "all branches, tags, stashes, reflogs, and what nothing refers to any more",
        "objects": read.objects,
        "bytes": read.bytes,
    }
    missing = [f"not all was looked at: {read.stopped}"] if read.stopped else []
    missing += list(_holes(repository))
    if scanner.problem:
        missing.append(scanner.problem)
    if read.packed:
        looked["fact"] += f"; {read.packed:,} compressed files were not unpacked"
    step = "To take it out of the history too: git filter-repo, then every clone anew."
    return judge(context, read.found, read.times, looked, missing, next=step)


def _holes(repository: Repository) -> Iterator[str]:
    """Why this copy may not hold the whole history."""
    shallow = repository.run("rev-parse", "--is-shallow-repository")
    if shallow.status != 0:
        yield f"whether it is a shallow clone git does not say: {one_line(shallow.err)[:120]}"
    elif shallow.out.strip() == "true":
        yield "a shallow clone: what came before it is not here"
    partial = repository.run("config", "--get-regexp", r"^(extensions\.partialclone|remote\..*\.promisor)$")
    if partial.status not in {0, 1}:  # 1: nothing of that name is set
        yield f"whether it is a partial clone git does not say: {one_line(partial.err)[:120]}"
    elif partial.out.strip():
        yield "a partial clone: some contents are not here"


_ENV: Final = re.compile(r"\.env(\..+)?|.+\.env")
_HARMLESS: Final = re.compile(r".*(example|sample|template|dist|tpl).*", re.IGNORECASE)
_KEY_FILES: Final = re.compile(
    r"\.netrc|_netrc|\.pypirc|kaggle\.json|id_(rsa|dsa|ecdsa|ed25519)|.+\.(pem|p12|pfx|ppk|jks|keystore)"
    r"|credentials(\.json|\.csv)?|(.+_)?accessKeys\.csv|rootkey\.csv|service[-_]account.*\.json"
    r"|client_secret.*\.json|\.htpasswd|secrets?\.(ya?ml|json|toml)"
)
_GLOBS: Final = (
    ".env", ".env.*", "*.env", ".netrc", "_netrc", ".pypirc", "kaggle.json", "id_rsa", "id_dsa", "id_ecdsa",
    "id_ed25519", "*.pem", "*.p12", "*.pfx", "*.ppk", "*.jks", "credentials", "credentials.json",
    "credentials.csv", "*accessKeys.csv", "rootkey.csv", "service[-_]account*.json", "client_secret*.json",
    ".htpasswd", "secret.*", "secrets.*",
)  # fmt: skip
_ASSIGNED: Final = re.compile(
    rb"^[ \t]{0,8}(?:export[ \t]+)?[A-Za-z0-9_]{0,60}(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)"
    rb"[A-Za-z0-9_]{0,20}[ \t]{0,8}[=:][ \t]{0,8}[\"']?[^\s\"'$<{#]{6,}",
    re.MULTILINE | re.IGNORECASE,
)


@check(
    "secrets.files",
    phase="before",
    slow=True,
    why="`.env` and key files belong beside the code, ignored, and never in it",
)
def files(context: Context) -> Result:
    """Files that hold secrets by their name: tracked, about to be, or once tracked."""
    repository = context.repository
    if repository is None:
        return not_applicable("no git repository, so nothing is about to be committed")
    scanner = _scanner(context)
    tracked = _named_so(repository.lines("ls-files", "-z", "--cached", "--full-name"))
    new = _named_so(repository.lines("ls-files", "-z", "--others", "--exclude-standard", "--full-name"))
    once = [name for name in _named_so(_once_tracked(repository, context)) if name not in tracked]
    full = {name for name in tracked if _holds_assignments(repository, name)}

    def rows(names: list[str], what: str, other: str = "") -> list[dict[str, Any]]:
        shown = [(_safe(scanner, name), other if name in full else what) for name in names[:_MOST_ROWS]]
        return [{"fact": f"{name} {said}", "path": name} for name, said in shown]

    evidence = [
        *rows(
            tracked, "is tracked and named like a file of secrets", "is tracked and gives values to secrets"
        ),
        *rows(new, "is new and not ignored: `git add .` would take it"),
        *rows(once, "was tracked once: it is still in the history"),
    ]
    if full:
        return fail(*evidence, next="`git rm --cached FILE`, ignore it, and replace what stands in it")
    if evidence:
        return warn(*evidence, next="look into them; write the names into .gitignore")
    ignored = repository.run("check-ignore", "--quiet", "--no-index", ".env").status == 0
    hint = "; .env is ignored" if ignored else "; .env would not be ignored: write it into .gitignore"
    return ok(f"no file that is tracked, new or in the history is named like one of secrets{hint}")


def _once_tracked(repository: Repository, context: Context) -> list[str]:
    """Paths that some commit of any branch, tag, stash or reflog has added under a telling name."""
    patterns = [f":(glob)**/{name}" for name in _GLOBS]
    words = ["log", "--all", "--reflog", "--diff-filter=A", "--no-renames", "--name-only", "-z", "--format="]
    return repository.lines(*words, "--no-show-signature", "--", *patterns, timeout=max(context.left(), 1.0))


def _named_so(names: Iterable[str]) -> list[str]:
    found = []
    for name in names:
        base = name.rpartition("/")[2]
        if (_ENV.fullmatch(base) or _KEY_FILES.fullmatch(base)) and not _HARMLESS.fullmatch(base):
            found.append(name)
    return sorted(found)


def _holds_assignments(repository: Repository, name: str) -> bool:
    """Whether a file of the work tree gives values to names like KEY or TOKEN, or cannot be read."""
    path = repository.top / name
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return False
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            return bool(_ASSIGNED.search(file.read(1 << 20)))
    except OSError:
        return False


@check(
    "secrets.remotes",
    phase="before",
    why="a token inside the address of a remote lies unencrypted in .git/config, and is printed by git",
)
def remotes(context: Context) -> Result:
    """Addresses and headers in the repository's configuration that carry a password or a token."""
    repository = context.repository
    if repository is None:
        return not_applicable("no git repository, so no remotes")
    output = repository.run("config", "--null", "--get-regexp", r"^(remote|url|http|submodule|branch)\.")
    if output.status not in {0, 1}:  # 1: nothing of that name is set
        raise CannotLook(f"git config: {one_line(output.err)[:200] or f'status {output.status}'}")
    rows: list[dict[str, Any]] = []
    count = 0
    for entry in output.out.split("\0"):
        key, _, value = entry.partition("\n")
        if key.endswith((".url", ".pushurl")) or key.startswith("url."):
            count += key.startswith("remote.")
            for address in (value, key.partition(".")[2]):
                if secret := _in_address(address):
                    rows.append(_remote_row(key, secret))
        elif key.endswith(".extraheader") and "authorization" in value.lower():
            rows.append(_remote_row(key, value.rpartition(" ")[2]))
    if rows:
        return fail(
            *rows,
            next="`git remote set-url NAME` without it, log in with a credential helper, and replace the token",
        )
    return ok(
        f"{count} remote address{'es' if count != 1 else ''}, none with a token" if count else "no remotes"
    )


def _in_address(address: str) -> str:
    """The password in an address; or the user's name where that is a token."""
    try:
        parts = urlsplit(address)
        if parts.scheme not in {"http", "https", "ftp"}:
            return ""
        return parts.password or (parts.username or "" if len(parts.username or "") >= 20 else "")
    except ValueError:
        return ""


def _remote_row(key: str, secret: str) -> dict[str, Any]:
    data = secret.encode("utf-8", "surrogateescape")
    # a key such as url.https://TOKEN@host/.insteadOf holds the secret itself
    name = key.replace(secret, redact(data))
    title = "token in the configuration"
    row = {"rule": "git-remote-token", "path": ".git/config", "commit": None, "redacted": redact(data)}
    return {**row, "title": f"{title} ({name})"}


_HOME_FILES: Final = (
    ".aws/credentials", ".netrc", ".ssh/id_rsa", ".ssh/id_ecdsa", ".ssh/id_ed25519", ".kaggle/kaggle.json",
    ".cache/huggingface/token", ".huggingface/token", ".config/gcloud/application_default_credentials.json",
    ".config/gcloud/credentials.db", ".azure/msal_token_cache.json", ".docker/config.json", ".pypirc",
    ".config/gh/hosts.yml", ".git-credentials", ".kube/config", ".runpod/config.toml", ".lambda_cloud/lambda_keys",
)  # fmt: skip


@check(
    "secrets.permissions",
    phase="before",
    why="on a shared machine a key file that others may read is everybody's key",
)
def permissions(context: Context) -> Result:
    """Modes of the usual key files in the home folder; none of them is opened."""
    home = context.machine.home
    open_ones, count = [], 0
    for name in _HOME_FILES:
        try:
            facts = os.stat(home / name)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise CannotLook(f"~/{name}: {(error.strerror or str(error)).lower()}") from None
        count += 1
        if facts.st_mode & 0o077:
            mode = stat.S_IMODE(facts.st_mode)
            open_ones.append(
                {"fact": f"~/{name} has mode {mode:o}", "path": f"~/{name}", "mode": f"{mode:o}"}
            )
    if open_ones:
        return warn(*open_ones, next="`chmod 600 FILE`")
    if not count:
        return not_applicable("none of the usual key files is in the home folder")
    return ok(f"{count} key files in the home folder, none that others may read")
