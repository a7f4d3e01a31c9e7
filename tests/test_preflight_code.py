"""Code and key files: committed, pushed, with its environment, rehearsed; ignored, and readable by nobody else."""

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from preflight_world import LETTERS, Repo, draw, facts, machine, result

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


# --- files, remotes, permissions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tracked", "new", "ignored", "state"),
    [
        ({}, {}, {}, "ok"),
        ({".env": "API_KEY=abcdefghijk\n"}, {}, {}, "fail"),
        ({"deploy/prod.env": "export DB_PASSWORD='correct horse'\n"}, {}, {}, "fail"),
        ({".env": "DEBUG=1\n"}, {}, {}, "warn"),
        ({".env": "API_KEY=\nTOKEN=$OTHER\n"}, {}, {}, "warn"),
        ({}, {".env": "API_KEY=abcdefghijk\n"}, {}, "warn"),
        ({}, {}, {".env": "API_KEY=abcdefghijk\n"}, "ok"),
        ({".env.example": "API_KEY=your-key-goes-here\n"}, {}, {}, "ok"),
        ({"keys/id_rsa": "x"}, {}, {}, "warn"),
        ({"environment.py": "API_KEY=abcdefghijk\n"}, {}, {}, "ok"),
    ],
)
def test_files_named_like_secrets(
    tracked: dict[str, str],
    new: dict[str, str],
    ignored: dict[str, str],
    state: str,
    repo: Repo,
    host: Machine,
) -> None:
    """Tracked with values fails; tracked, or new and not ignored, warns; ignored is where they belong."""
    repo.commit(**tracked)
    if ignored:
        repo.commit(**{".gitignore": "\n".join(ignored)})
    for name, text in {**new, **ignored}.items():
        repo.write(name, text)
    assert result(repo.path, host, "secrets.files").state == state


def test_a_file_that_was_tracked_once(repo: Repo, host: Machine) -> None:
    """An .env that was deleted is still in the history, in a subfolder too."""
    repo.commit(**{"app/.env": "DB_PASSWORD=correct-horse\n"})
    repo.git("rm", "--quiet", "-r", "app")
    repo.commit()
    found = result(repo.path, host, "secrets.files")
    assert (found.state, "app/.env was tracked once" in facts(found)) == ("warn", True)


@pytest.mark.parametrize(
    ("key", "value", "state"),
    [
        ("remote.origin.url", "https://ada:{}@github.com/x/y.git", "fail"),
        ("remote.origin.url", "https://{}@huggingface.co/x/y", "fail"),
        ("remote.up.pushurl", "https://x-access-token:{}@github.com/x/y", "fail"),
        ("http.https://github.com/.extraheader", "AUTHORIZATION: basic {}", "fail"),
        ("remote.origin.url", "https://github.com/x/y.git", "ok"),
        ("remote.origin.url", "git@github.com:x/y.git", "ok"),
        ("remote.origin.url", "ssh://git@github.com/x/y.git", "ok"),
        ("remote.origin.url", "https://ada@github.com/x/y.git", "ok"),
        ("user.name", "Ada", "ok"),
    ],
)
def test_tokens_in_remotes(key: str, value: str, state: str, repo: Repo, host: Machine) -> None:
    """In the password, as the user, in a header of the configuration; never shown."""
    secret = token()
    repo.git("config", key, value.format(secret))
    found = result(repo.path, host, "secrets.remotes")
    assert found.state == state
    assert secret not in str(found)


def test_a_configuration_that_git_refuses(repo: Repo, host: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What git does not read has no remotes that anybody saw."""
    from loadsheet.cloud.git import Repository
    from loadsheet.cloud.machine import Output

    asked = Repository.run

    def run(self: Repository, *words: str, **more: Any) -> Output:
        refused = Output(128, "", "fatal: bad config line 1 in file .git/config")
        return refused if "--get-regexp" in words else asked(self, *words, **more)

    monkeypatch.setattr(Repository, "run", run)
    found = result(repo.path, host, "secrets.remotes")
    assert (found.state, "bad config line 1" in facts(found)) == ("unknown", True)


def test_a_token_in_a_rewritten_address(repo: Repo, host: Machine) -> None:
    """`url.https://TOKEN@host.insteadOf` holds it in the name of a key."""
    secret = token()
    repo.git("config", f"url.https://{secret}@github.com/.insteadOf", "https://github.com/")
    found = result(repo.path, host, "secrets.remotes")
    assert found.state == "fail"
    assert secret not in str(found)


def test_permissions_of_key_files(repo: Repo, tmp_path: Path) -> None:
    """A mode that lets others read warns; the files themselves are never opened."""
    home = tmp_path / "home"
    host = machine(tmp_path / "root", home=home)
    assert result(repo.path, host, "secrets.permissions").state == "not_applicable"
    (home / ".aws").mkdir(parents=True)
    (home / ".aws/credentials").write_text("x")
    (home / ".netrc").write_text("x")
    for mode, state in ((0o600, "ok"), (0o640, "warn"), (0o604, "warn")):
        (home / ".netrc").chmod(mode)
        (home / ".aws/credentials").chmod(0o600)
        assert result(repo.path, host, "secrets.permissions").state == state
    assert stat.S_IMODE((home / ".netrc").stat().st_mode) == 0o604


# --- code --------------------------------------------------------------------------------------------------------


def test_committed(repo: Repo, host: Machine) -> None:
    """Changed, new source, detached: each warns; other new files do not."""
    assert result(repo.path, host, "code.committed").state == "ok"
    repo.write("results.csv", "1,2\n")
    assert result(repo.path, host, "code.committed").state == "ok"
    repo.write("new.py", "x = 1\n")
    found = result(repo.path, host, "code.committed")
    assert (found.state, "new.py" in facts(found)) == ("warn", True)
    repo.commit()
    repo.write("readme.md", "changed\n")
    found = result(repo.path, host, "code.committed")
    assert (found.state, "1 file changed" in facts(found)) == ("warn", True)
    repo.commit()
    repo.git("checkout", "--quiet", "--detach")
    assert "detached" in facts(result(repo.path, host, "code.committed"))


def test_pushed(repo: Repo, host: Machine, tmp_path: Path) -> None:
    """No remote, a commit that is not there, another branch, a stash; and all of it there."""
    check = "code.pushed"
    assert "no remote" in facts(result(repo.path, host, check))
    subprocess.run(["git", "init", "--quiet", "--bare", str(tmp_path / "bare")], check=True)
    repo.git("remote", "add", "origin", str(tmp_path / "bare"))
    assert result(repo.path, host, check).state == "warn"
    repo.git("push", "--quiet", "origin", "main")
    assert result(repo.path, host, check).state == "ok"
    repo.commit(a__py="2")
    found = result(repo.path, host, check)
    assert (found.state, found.evidence[0]["commits"]) == ("warn", 1)
    repo.git("push", "--quiet", "origin", "main")
    repo.git("branch", "side", "HEAD~1")
    repo.git("switch", "--quiet", "side")
    repo.commit(b__py="2")
    repo.git("switch", "--quiet", "main")
    assert "of other branches" in facts(result(repo.path, host, check))
    repo.git("branch", "--quiet", "-D", "side")
    repo.write("a.py", "3")
    repo.git("stash", "--quiet")
    assert "1 stash" in facts(result(repo.path, host, check))


@pytest.mark.parametrize(
    ("files", "state"),
    [
        ({}, "warn"),
        ({"uv.lock": "version = 1\n"}, "ok"),
        (
            {"requirements.txt": "# pinned\n\npytest-no-such==1.0  # why\n--hash=sha256:0\n"},
            "ok",
        ),
        # a file that is taken in counts; one that cannot be read is not in order
        ({"requirements.txt": "x-no-such==1\n-r other.txt\n", "other.txt": "y-no-such==2\n"}, "ok"),
        ({"requirements.txt": "x-no-such==1\n-r other.txt\n", "other.txt": "torch\n"}, "warn"),
        ({"requirements.txt": "x-no-such==1\n-r other.txt\n"}, "unknown"),
        ({"requirements.txt": "-r other.txt\n", "other.txt": "-r requirements.txt\nx-no-such==1\n"}, "ok"),
        # it goes before its neighbours, whatever the alphabet says
        ({"requirements-dev.txt": "x-no-such==1\n", "requirements.txt": "torch\n"}, "warn"),
        (
            {"requirements.txt": "x-no-such @ git+https://example.org/x@0123456789abcdef0123456789abcdef\n"},
            "ok",
        ),
        ({"requirements.txt": "torch\nnumpy>=1\n"}, "warn"),
        ({"requirements.txt": "x-no-such @ git+https://example.org/x@main\n"}, "warn"),
        ({"requirements.txt": "pytest==0.0.1\n"}, "warn"),  # another one is installed here
    ],
)
def test_environment(files: dict[str, str], state: str, repo: Repo, host: Machine) -> None:
    """A lock file, or one exact version of everything, that is also the one installed."""
    repo.commit(**files)
    assert result(repo.path, host, "code.environment").state == state


def test_a_lock_file_that_is_not_committed(repo: Repo, host: Machine) -> None:
    """It is there, but not in git."""
    repo.write("uv.lock", "version = 1\n")
    found = result(repo.path, host, "code.environment")
    assert (found.state, "not in git" in facts(found)) == ("warn", True)


def rehearsal(repo: Repo, **change: object) -> None:
    """What `loadsheet rehearse` writes."""
    record = {"schema": 1, "time": 1_790_000_000, "commit": repo.git("rev-parse", "HEAD"), "dirty": False}
    record |= {"command": ["python", "train.py"], "passed": True, **change}
    repo.write(".loadsheet/rehearsal.json", json.dumps(record))


@pytest.mark.parametrize(
    ("change", "state", "words"),
    [
        ({}, "ok", "passed"),
        ({"passed": False}, "fail", "did not pass"),
        ({"passed": 1}, "fail", "did not pass"),
        ({"commit": "0" * 40}, "warn", "on commit 0000000000"),
        ({"commit": None}, "warn", "on which code is not known"),
        ({"dirty": True}, "warn", "with files changed then"),
        ({"time": "yesterday"}, "unknown", ""),
        ({"time": 1e300}, "unknown", ""),
    ],
)
def test_rehearsed(change: dict[str, object], state: str, words: str, repo: Repo, host: Machine) -> None:
    """The last rehearsal passed, on this commit, and with nothing changed then or since."""
    repo.commit(**{".gitignore": ".loadsheet\n"})
    assert result(repo.path, host, "code.rehearsed").state == "unknown"
    rehearsal(repo, **change)
    found = result(repo.path, host, "code.rehearsed")
    assert found.state == state
    assert words in facts(found)


def test_changed_since_the_rehearsal(repo: Repo, host: Machine) -> None:
    """A file that was edited afterwards, and a commit that was made afterwards."""
    rehearsal(repo)
    repo.write("readme.md", "edited")
    assert "changed since" in facts(result(repo.path, host, "code.rehearsed"))
    repo.commit()
    assert result(repo.path, host, "code.rehearsed").state == "warn"
