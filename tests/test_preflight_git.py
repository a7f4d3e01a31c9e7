"""git on a repository that one does not trust: nothing of it is executed, nothing written, nothing passed over."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from preflight_world import LETTERS, Repo, alive, draw, facts, machine, result, results

from loadsheet.cloud.checklist import CannotLook
from loadsheet.cloud.context import Context, Inputs
from loadsheet.cloud.machine import Machine

pytestmark = pytest.mark.usefixtures("offline")


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """A repository with one commit that holds nothing."""
    made = Repo(tmp_path / "repo")
    made.commit("first", readme__md="hello\n")
    return made


@pytest.fixture
def host(tmp_path: Path) -> Machine:
    """A machine for it."""
    return machine(tmp_path / "root")


def token() -> str:
    """A token of Hugging Face."""
    return "hf_" + draw(34, LETTERS)


def deleted(repo: Repo, key: str) -> None:
    """Committed, and deleted in the next commit."""
    repo.commit(config__py=f"TOKEN = '{key}'\n")
    (repo.path / "config.py").unlink()
    repo.commit()


def test_no_repository_that_git_would_read(tmp_path: Path, host: Machine) -> None:
    """A folder named .git that is none, an unknown format, a missing HEAD: unknown, not ok."""
    folder = tmp_path / "odd"
    (folder / ".git").mkdir(parents=True)
    assert result(folder, host, "secrets.history").state == "unknown"
    made = Repo(tmp_path / "format")
    made.git("config", "core.repositoryFormatVersion", "99")
    assert result(made.path, host, "secrets.history").state == "unknown"


def test_git_is_not_installed(repo: Repo, tmp_path: Path) -> None:
    """unknown, everywhere where git would be asked."""
    host = machine(tmp_path / "root", environment={"PATH": "/nowhere"})
    found = results(
        repo.path, host, "secrets.history", "secrets.worktree", "code.committed", "secrets.remotes"
    )
    assert {r.state for r in found.values()} == {"unknown"}
    assert all("git is not installed" in facts(r) for r in found.values())


def fake_git(folder: Path, script: str) -> dict[str, str]:
    """An environment in which git is another program."""
    folder.mkdir(parents=True)
    (folder / "git").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "git").chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_somebody_else_s_repository(repo: Repo, tmp_path: Path) -> None:
    """git refuses it (`safe.directory`), and so do we, with what one can do."""
    text = f"fatal: detected dubious ownership in repository at '{repo.path}'"
    host = machine(tmp_path / "root", environment=fake_git(tmp_path / "bin", f'echo "{text}" >&2; exit 128'))
    found = result(repo.path, host, "secrets.history")
    assert (found.state, "dubious ownership" in facts(found)) == ("unknown", True)
    assert "safe.directory" in found.next
    # the kernel's clock is in step; the newest commit, which would show another fault, was not seen
    found = result(repo.path, host, "host.clock")
    assert (found.state, "kept in step" in facts(found), "safe.directory" in found.next) == (
        "unknown",
        True,
        True,
    )


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_somebody_else_s_repository_with_the_real_git(repo: Repo, host: Machine) -> None:
    """The same, as git itself says it."""
    for path in [repo.path, *repo.path.rglob("*")]:
        os.lchown(path, 12345, 12345)
    found = result(repo.path, host, "secrets.history")
    assert (found.state, "dubious ownership" in facts(found)) == ("unknown", True)


def test_git_hangs(repo: Repo, tmp_path: Path) -> None:
    """unknown when the time is over, and git is ended."""
    mark = tmp_path / "pid"
    script = f"echo $$ >> {mark}; exec sleep 600"
    host = machine(tmp_path / "root", environment=fake_git(tmp_path / "bin", script))
    found = results(repo.path, host, "secrets.history", timeout=1.0)["secrets.history"]
    assert found.state == "unknown"
    until = time.monotonic() + 30
    while time.monotonic() < until and any(alive(int(pid)) for pid in mark.read_text().split()):
        time.sleep(0.01)
    assert not any(alive(int(pid)) for pid in mark.read_text().split())


# --- nothing is executed ----------------------------------------------------------------------------------------


def test_nothing_of_the_repository_is_executed(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hooks, monitor, filters, converters, pager, signatures, aliases, transports, and the caller's GIT_ variables."""
    mark = tmp_path / "executed"
    trap = tmp_path / "trap"
    trap.write_text(f'#!/bin/sh\necho "$0 $@" >> {mark}\nexit 1\n')
    trap.chmod(0o755)
    repo.commit(a__py=token(), b__txt="1\n", **{".gitattributes": "* filter=evil diff=evil merge=evil\n"})
    for key in (
        "core.fsmonitor", "core.pager", "core.sshCommand", "core.editor", "core.askPass", "core.gitProxy",
        "filter.evil.clean", "filter.evil.smudge", "filter.evil.process", "diff.evil.command", "diff.evil.textconv",
        "diff.external", "merge.evil.driver", "gpg.program", "gpg.ssh.program", "alias.status", "alias.log",
        "credential.helper", "core.alternateRefsCommand", "uploadpack.packObjectsHook", "interactive.diffFilter",
        "pager.log", "pager.status", "filter.Evil.Clean", "core.hooksPath",
    ):  # fmt: skip
        repo.git("config", key, str(trap if key != "core.hooksPath" else tmp_path / "hooks"))
    for key, value in (
        ("filter.evil.required", "true"), ("log.showSignature", "true"), ("core.untrackedCache", "true"),
        ("protocol.ext.allow", "always"), ("remote.origin.url", f"ext::{trap} %S"),
        ("remote.origin.promisor", "true"), ("extensions.partialClone", "origin"),
        ("core.repositoryFormatVersion", "1"),
    ):  # fmt: skip
        repo.git("config", key, value)
    for folder in (tmp_path / "hooks", repo.path / ".git" / "hooks"):
        folder.mkdir(exist_ok=True)
        for name in (
            "post-index-change",
            "post-checkout",
            "reference-transaction",
            "pre-auto-gc",
            "fsmonitor-watchman",
        ):
            target = folder / name
            target.write_bytes(trap.read_bytes())
            target.chmod(0o755)
    # files that git has to look into again, because their time has changed
    for name in ("a.py", "b.txt"):
        os.utime(repo.path / name, (1, 1))
    repo.write("b.txt", "2\n")
    for name in ("GIT_EXTERNAL_DIFF", "GIT_PAGER", "GIT_SSH_COMMAND", "GIT_ASKPASS", "PAGER", "GIT_EDITOR"):
        monkeypatch.setenv(name, str(trap))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    host = machine(tmp_path / "root", environment=dict(os.environ))
    found = results(repo.path, host, "secrets", "code", "host.clock")
    assert not mark.exists(), mark.read_text()
    assert found["secrets.worktree"].state == "fail"
    assert found["secrets.history"].state == "fail"
    assert found["code.committed"].state == "warn"


def test_the_trap_works(repo: Repo, tmp_path: Path) -> None:
    """Plain git runs such programs: the test above can fail."""
    mark = tmp_path / "executed"
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {mark}\nexit 1\n")
    trap.chmod(0o755)
    repo.git("config", "core.fsmonitor", str(trap))
    repo.git("status")
    assert mark.exists()


def test_nothing_is_written(repo: Repo, host: Machine) -> None:
    """Every file of the repository is as before, its time included; the index is not refreshed."""
    deleted(repo, token())
    os.utime(repo.path / "readme.md", (1, 1))

    def state() -> list[tuple[str, int, int, int]]:
        found = []
        for path in sorted(repo.path.rglob("*")):
            facts = path.lstat()
            found.append((str(path), facts.st_mode, facts.st_size, facts.st_mtime_ns))
        return found

    before = state()
    results(repo.path, host, "secrets", "code")
    assert state() == before


def test_a_work_tree_elsewhere(repo: Repo, host: Machine, tmp_path: Path) -> None:
    """`core.worktree` cannot lead out of the folder that is looked at."""
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "x").write_text(token())
    repo.git("config", "core.worktree", str(tmp_path / "private"))
    found = result(repo.path, host, "secrets.worktree")
    assert (found.state, "work tree lies elsewhere" in facts(found)) == ("unknown", True)


def test_below_the_top_of_a_repository(repo: Repo, host: Machine) -> None:
    """From a folder inside, all of the repository is looked at."""
    repo.commit(**{"src/a.py": "1", "b.txt": token()})
    context = Context(repo.path / "src", Inputs(), host)
    assert context.repository is not None
    assert context.repository.top == repo.path
    assert result(repo.path / "src", host, "secrets.worktree").state == "fail"


def test_asked_once(repo: Repo, tmp_path: Path) -> None:
    """What several checks need is found out once, and a refusal is remembered too."""
    host = machine(tmp_path / "root", environment={"PATH": "/nowhere"})
    context = Context(repo.path, Inputs(), host)
    asked: list[int] = []

    def find() -> int:
        asked.append(1)
        raise CannotLook("no")

    for _ in range(3):
        with pytest.raises(CannotLook, match="no"):
            context.once("x", find)
    assert asked == [1]
