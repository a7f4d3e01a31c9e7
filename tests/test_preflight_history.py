"""Secrets in a repository: wherever git can bring them back from, and nothing of it is executed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from preflight_world import BASE64, HEX, LETTERS, Repo, draw, facts, machine, private_key, result, results

from loadsheet.cloud import git, git_history
from loadsheet.cloud.answers import ROTATED, Answer, add_answers
from loadsheet.cloud.machine import Machine, Output
from loadsheet.cloud.secrets import Scanner, fingerprint

pytestmark = pytest.mark.usefixtures("offline")


def token() -> str:
    """A token of Hugging Face."""
    return "hf_" + draw(34, LETTERS)


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


def rows(repo: Repo, host: Machine, id: str = "secrets.history") -> list[dict[str, Any]]:
    """The findings of a check."""
    return [dict(row) for row in result(repo.path, host, id).evidence if "redacted" in row]


# --- everywhere ----------------------------------------------------------------------------------------------


def deleted(repo: Repo, key: str) -> None:
    """Committed, and deleted in the next commit."""
    repo.commit(config__py=f"TOKEN = '{key}'\n")
    (repo.path / "config.py").unlink()
    repo.commit()


def edited(repo: Repo, key: str) -> None:
    """Committed, and replaced in the next commit."""
    repo.commit(config__py=f"TOKEN = '{key}'\n")
    repo.commit(config__py="TOKEN = os.environ['TOKEN']\n")


def branch(repo: Repo, key: str) -> None:
    """On a branch that is not checked out."""
    repo.git("switch", "--quiet", "--create", "other")
    repo.commit(config__py=key)
    repo.git("switch", "--quiet", "main")


def deleted_branch(repo: Repo, key: str) -> None:
    """On a branch that was deleted: only the reflog of HEAD knows it."""
    branch(repo, key)
    repo.git("branch", "--quiet", "-D", "other")


def amended(repo: Repo, key: str) -> None:
    """Taken out by amending: only the reflog knows it."""
    repo.commit(config__py=key)
    repo.write("config.py", "nothing\n")
    repo.git("commit", "--quiet", "--all", "--amend", "--message", "clean")


def reset(repo: Repo, key: str) -> None:
    """Taken out by a reset: only the reflog knows it."""
    repo.commit(config__py=key)
    repo.git("reset", "--quiet", "--hard", "HEAD~1")


def stashed(repo: Repo, key: str) -> None:
    """In a stash below another one."""
    for text in (key, "later"):
        repo.write("readme.md", text)
        repo.git("stash", "--quiet")


def stashed_untracked(repo: Repo, key: str) -> None:
    """In a new file that was stashed with `--include-untracked`."""
    repo.write("new.txt", key)
    repo.git("stash", "--quiet", "--include-untracked")


def dropped(repo: Repo, key: str) -> None:
    """In a stash that was dropped: nothing refers to it any more."""
    repo.write("readme.md", key)
    repo.git("stash", "--quiet")
    repo.git("stash", "drop", "--quiet")


def staged(repo: Repo, key: str) -> None:
    """Added, and taken back before the commit."""
    repo.write("config.py", key)
    repo.git("add", "config.py")
    repo.git("reset", "--quiet")
    (repo.path / "config.py").unlink()


def tagged(repo: Repo, key: str) -> None:
    """On a tag alone, without a branch or a reflog."""
    branch(repo, key)
    repo.git("tag", "v1", "other")
    repo.git("branch", "--quiet", "-D", "other")
    repo.git("reflog", "expire", "--expire=now", "--all")


def in_tag_message(repo: Repo, key: str) -> None:
    """In the message of a tag."""
    repo.git("tag", "--annotate", "--message", f"release {key}", "v1")


def in_message(repo: Repo, key: str) -> None:
    """In the message of a commit."""
    repo.commit(f"use {key} from now on")


def noted(repo: Repo, key: str) -> None:
    """In a note."""
    repo.git("notes", "add", "--message", key)


def merged(repo: Repo, key: str) -> None:
    """Only in a merge commit, as the solution of a conflict."""
    repo.git("switch", "--quiet", "--create", "side")
    repo.commit(readme__md="side\n")
    repo.git("switch", "--quiet", "main")
    repo.commit(readme__md="main\n")
    repo.git("merge", "--quiet", "side", check=False)
    repo.write("readme.md", key)
    repo.git("commit", "--quiet", "--all", "--message", "merge")
    repo.commit(readme__md="clean\n")


def packed(repo: Repo, key: str) -> None:
    """Deleted, and everything packed into deltas."""
    for n in range(20):
        repo.commit(data__txt=f"line {n}\n" * 200 + (key if n == 7 else ""))
    repo.git("gc", "--quiet", "--aggressive")


def strange_name(repo: Repo, key: str) -> None:
    """In a file whose name has a line end, quotes and a tabulator."""
    repo.write('a\n"b\tü.py', key)
    repo.commit()
    (repo.path / 'a\n"b\tü.py').unlink()
    repo.commit()


def notebook(repo: Repo, key: str) -> None:
    """In the output of a notebook's cell, beside a picture."""
    cell = {
        "cell_type": "code",
        "source": ["!env"],
        "outputs": [
            {"output_type": "stream", "text": [f"HF_TOKEN={key}\n"]},
            {"data": {"image/png": draw(4000, BASE64)}},
        ],
    }
    repo.commit(**{"a.ipynb": json.dumps({"cells": [cell]})})
    repo.commit(**{"a.ipynb": json.dumps({"cells": []})})


def binary(repo: Repo, key: str) -> None:
    """In a large binary file, behind three megabytes."""
    repo.commit(**{"model.bin": bytes(range(256)) * 12_000 + key.encode() + bytes(100)})
    (repo.path / "model.bin").unlink()
    repo.commit()


def elsewhere(repo: Repo, key: str) -> None:
    """On the branch of a linked work tree."""
    repo.git("worktree", "add", "--quiet", "-b", "linked", str(repo.path.parent / "linked"))
    (repo.path.parent / "linked" / "x.py").write_text(key)
    for words in (("add", "x.py"), ("commit", "--quiet", "--message", "x")):
        repo.git("-C", str(repo.path.parent / "linked"), *words)


def remote(repo: Repo, key: str) -> None:
    """On a branch that only the remote has, as of the last fetch."""
    other = Repo(repo.path.parent / "other")
    other.commit(config__py=key)
    repo.git("remote", "add", "origin", str(other.path))
    repo.git("fetch", "--quiet", "origin")


PLACES = [
    deleted, edited, branch, deleted_branch, amended, reset, stashed, stashed_untracked, dropped, staged, tagged,
    in_tag_message, in_message, noted, merged, packed, strange_name, notebook, binary, elsewhere, remote,
]  # fmt: skip


@pytest.mark.parametrize("hide", PLACES, ids=lambda hide: hide.__name__)
def test_found_wherever_git_can_bring_it_back_from(
    hide: Callable[[Repo, str], None], repo: Repo, host: Machine
) -> None:
    """Each place fails, names one secret, and does not show it."""
    key = token()
    hide(repo, key)
    found = result(repo.path, host, "secrets.history")
    assert found.state == "fail"
    secrets = [row for row in found.evidence if "redacted" in row]
    assert [(row["rule"], row["fingerprint"]) for row in secrets] == [
        ("hugging-face-token", fingerprint(key.encode()))
    ]
    assert secrets[0]["redacted"] == f"hf_{key[3]}… (37 characters)"
    assert key[:8] not in str(found)
    assert "deleting it is not enough" in found.next


def test_nothing_is_found_in_a_clean_history(repo: Repo, host: Machine) -> None:
    """ok, with how much was looked at; the objects are those that git counts, without trees."""
    for n in range(5):
        repo.commit(a__py=f"x = {n}\n")
    found = result(repo.path, host, "secrets.history")
    listing = repo.git("cat-file", "--batch-all-objects", "--batch-check=%(objecttype)").split()
    assert found.state == "ok"
    assert found.evidence[0]["objects"] == sum(kind != "tree" for kind in listing) == 12


def test_where_it_came_and_went(repo: Repo, host: Machine) -> None:
    """The commit that brought it, its date, path and line, and the one that took it away."""
    key = token()
    repo.write("src/config.py", f"import os\n\nTOKEN = '{key}'\n")
    added = repo.commit("add")
    repo.commit("between", other__py="1")
    (repo.path / "src/config.py").unlink()
    removed = repo.commit("remove")
    (row,) = rows(repo, host)
    assert (row["path"], row["line"], row["commit"], row["date"]) == ("src/config.py", 3, added, "2026-01-01")
    assert f"deleted in {removed[:10]}" in row["remark"]


@pytest.mark.parametrize("hide", [stashed, stashed_untracked], ids=lambda hide: hide.__name__)
def test_in_which_stash(hide: Callable[[Repo, str], None], repo: Repo, host: Machine) -> None:
    """Its name as git has it, where to look, and how to take it away; a commit of the branch is in none."""
    hide(repo, token())
    number = 1 if hide is stashed else 0
    (row,) = rows(repo, host)
    assert f"in a stash: `git stash show -p stash@{{{number}}}`" in row["remark"]
    assert f"`git stash drop stash@{{{number}}}`" in row["remark"]
    repo.commit(other__py=f"T = '{token()}'\n")
    assert ["stash" in row.get("remark", "") for row in rows(repo, host)] == [
        row["path"] != "other.py" for row in rows(repo, host)
    ]


def test_the_first_commit_and_the_many_versions(repo: Repo, host: Machine) -> None:
    """A file that was edited twenty times with the key in it is one secret, from its first commit on."""
    key = token()
    commits = [repo.commit(config__py=f"# {n}\nT = '{key}'\n") for n in range(20)]
    (row,) = rows(repo, host)
    assert row["commit"] in commits
    assert "19 more times" in row["remark"]


def test_a_root_commit_counts(tmp_path: Path, host: Machine) -> None:
    """A key in the very first commit, whatever `log.showRoot` says."""
    made = Repo(tmp_path / "fresh")
    made.git("config", "log.showRoot", "false")
    first = made.commit(a__py=token())
    (row,) = rows(made, host)
    assert row["commit"] == first


def test_without_a_commit(tmp_path: Path, host: Machine) -> None:
    """An empty repository has an empty history; what was staged is found."""
    made = Repo(tmp_path / "fresh")
    assert result(made.path, host, "secrets.history").state == "ok"
    made.write("a.py", token())
    made.git("add", "a.py")
    assert result(made.path, host, "secrets.history").state == "fail"


def test_without_a_repository(tmp_path: Path, host: Machine) -> None:
    """There is no history; the files of the folder are looked at, environments left out."""
    folder = tmp_path / "plain"
    (folder / ".venv").mkdir(parents=True)
    (folder / ".venv" / "lib.py").write_text(token())
    (folder / "a.py").write_text("x = 1\n")
    found = results(folder, host, "secrets")
    assert (found["secrets.history"].state, found["secrets.worktree"].state) == ("not_applicable", "ok")
    (folder / "b.py").write_text(token())
    assert result(folder, host, "secrets.worktree").state == "fail"


def test_worktree_tracked_new_and_ignored(repo: Repo, host: Machine) -> None:
    """Tracked and new files are looked at, ignored ones are not; symbolic links are not followed."""
    keys = [token() for _ in range(4)]
    outside = repo.path.parent / "outside.txt"
    outside.write_text(keys[3])
    repo.write(".gitignore", "ignored.txt\n")
    repo.commit(tracked__txt=keys[0])
    repo.write("new dir/new.txt", keys[1])
    repo.write("ignored.txt", keys[2])
    (repo.path / "link.txt").symlink_to(outside)
    (repo.path / "linked").symlink_to(outside.parent)
    os.mkfifo(repo.path / "pipe")
    found = rows(repo, host, "secrets.worktree")
    assert {row["path"] for row in found} == {"tracked.txt", "new dir/new.txt"}
    assert {row["commit"] for row in found} == {None}


def test_a_path_does_not_show_a_secret(repo: Repo, host: Machine) -> None:
    """A file that is named like its key."""
    key = token()
    repo.commit(**{f"{key}.txt": key})
    for id in ("secrets.history", "secrets.worktree"):
        found = result(repo.path, host, id)
        assert found.state == "fail"
        assert key not in str(found)


def test_pairs_and_keys_of_clouds(repo: Repo, host: Machine) -> None:
    """AWS, Google, Azure, GitHub, OpenAI, Weights & Biases, a private key: all deleted, all named."""
    pair = f"AKIA{draw(16, 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567')}\n{draw(40, BASE64)}\n"
    account = {"type": "service_account", "private_key_id": draw(40, HEX), "private_key": private_key("")}
    repo.commit(
        aws__csv=pair,
        gcp__json=json.dumps(account),
        azure__txt=f"AccountKey={draw(86, BASE64)}==",
        gh__txt="ghp_" + draw(36),
        oai__txt="sk-proj-" + draw(74) + "T3BlbkFJ" + draw(74),
        run__sh=f"WANDB_API_KEY={draw(40, HEX)}",
        id__txt=private_key("OPENSSH "),
    )
    repo.git("rm", "--quiet", "-r", ".")
    repo.commit()
    assert {row["rule"] for row in rows(repo, host)} == {
        "aws-access-key-id", "aws-secret-access-key", "gcp-service-account-key", "azure-storage-key",
        "github-token", "openai-key", "wandb-key", "private-key",
    }  # fmt: skip


# --- allowed, replaced, in part -------------------------------------------------------------------------------


def test_allowed_by_comment_or_baseline(repo: Repo, host: Machine) -> None:
    """Counted and not shown; a baseline's entry that was audited as real does not count."""
    allowed, listed, real = token(), token(), token()
    repo.commit(a__py=f"x = '{allowed}'  # pragma: allowlist secret\n", b__py=listed, c__py=real)

    def entry(key: str, **more: bool) -> dict[str, object]:
        import hashlib

        return {
            "hashed_secret": hashlib.sha1(key.encode()).hexdigest(),
            "type": "x",
            "line_number": 1,
            **more,
        }

    baseline = {
        "version": "1.5.0",
        "results": {"b.py": [entry(listed)], "c.py": [entry(real, is_secret=True)]},
    }
    repo.write(".secrets.baseline", json.dumps(baseline))
    for id in ("secrets.history", "secrets.worktree"):
        found = result(repo.path, host, id)
        assert [row["fingerprint"] for row in found.evidence if "redacted" in row] == [
            fingerprint(real.encode())
        ]
        assert "2 allow-listed" in facts(found)
    repo.write(".secrets.baseline", "{")
    assert "nothing in it counts" in facts(result(repo.path, host, "secrets.worktree"))


def baseline_of(repo: Repo) -> None:
    """The real program's baseline of what is there."""
    done = subprocess.run(
        [sys.executable, "-m", "detect_secrets", "scan", "--no-verify"],
        cwd=repo.path,
        capture_output=True,
        check=True,
    )
    repo.write(".secrets.baseline", done.stdout)


def test_a_baseline_as_detect_secrets_writes_it(repo: Repo, host: Machine) -> None:
    """The real program's baseline allows what it has found."""
    repo.commit(a__py=f"key = 'AKIA{draw(16, 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567')}'\n")
    assert result(repo.path, host, "secrets.worktree").state == "fail"
    baseline_of(repo)
    assert result(repo.path, host, "secrets.worktree").state == "ok"


def test_a_baseline_that_names_no_token(repo: Repo, host: Machine) -> None:
    """Of GitHub's tokens the real program hashes the first three letters: one that allows all of them allows none."""
    repo.commit(a__py=f"# ghp_{draw(36)}\n")
    baseline_of(repo)
    (row,) = json.loads((repo.path / ".secrets.baseline").read_text())["results"]["a.py"]
    assert row["hashed_secret"] == hashlib.sha1(b"ghp").hexdigest()
    assert result(repo.path, host, "secrets.worktree").state == "fail"


def test_a_replaced_key(repo: Repo, host: Machine) -> None:
    """Once a person says that it was replaced, the history is in order; another key in it is not."""
    import datetime

    key = token()
    deleted(repo, key)
    path = repo.path / ".loadsheet" / "answers.json"
    add_answers(
        path, [Answer(ROTATED, True, datetime.date(2026, 1, 2), "Ada", fingerprint=fingerprint(key.encode()))]
    )
    found = result(repo.path, host, "secrets.history")
    assert found.state == "ok"
    assert "replaced: so says Ada on 2026-01-02" in str(found.evidence)
    deleted(repo, token())
    assert result(repo.path, host, "secrets.history").state == "fail"


def test_no_time(repo: Repo, host: Machine) -> None:
    """Without a finding it is unknown; with one it fails all the same, and says that there is more to look at."""
    for n in range(30):
        repo.commit(a__py=f"{n}\n" * 50_000)
    repository = git.find(host, repo.path)
    assert repository is not None
    asked = iter([10.0] * 20)
    history = git_history.search(repository, Scanner(), lambda: next(asked, 0.0))
    assert history.stopped == "there was no time for the rest"
    assert 0 < history.objects < 61
    found = results(repo.path, host, "secrets.history", timeout=0.001)["secrets.history"]
    assert found.state == "unknown"


def test_a_shallow_clone_is_not_the_whole_history(repo: Repo, host: Machine) -> None:
    """unknown: what came before is not here; a finding fails all the same."""
    repo.commit(a__py="2")
    clone = repo.path.parent / "clone"
    repo.git("clone", "--quiet", "--depth", "1", f"file://{repo.path}", str(clone))
    found = result(clone, host, "secrets.history")
    assert (found.state, "shallow clone" in facts(found)) == ("unknown", True)


@pytest.mark.parametrize("word", ["--is-shallow-repository", "--get-regexp"])
def test_a_clone_of_which_git_does_not_say_whether_it_is_whole(
    word: str, repo: Repo, host: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence is not "whole"."""
    asked = git.Repository.run

    def run(self: git.Repository, *words: str, **more: Any) -> Output:
        return Output(128, "", "fatal: no") if word in words else asked(self, *words, **more)

    monkeypatch.setattr(git.Repository, "run", run)
    found = result(repo.path, host, "secrets.history")
    assert (found.state, "git does not say: fatal: no" in facts(found)) == ("unknown", True)


def test_a_partial_clone_fetches_nothing(repo: Repo, host: Machine) -> None:
    """Contents that were left out are not asked for, and it is unknown."""
    repo.commit(a__py="x" * 1000)
    (repo.path / "a.py").unlink()
    repo.commit()
    repo.git("config", "uploadpack.allowFilter", "true")
    clone = repo.path.parent / "clone"
    repo.git("clone", "--quiet", "--filter=blob:none", f"file://{repo.path}", str(clone))
    before = sorted(p.name for p in (clone / ".git/objects").rglob("*"))
    repo.path.rename(repo.path.parent / "gone")
    found = result(clone, host, "secrets.history")
    assert (found.state, "partial clone" in facts(found)) == ("unknown", True)
    assert sorted(p.name for p in (clone / ".git/objects").rglob("*")) == before


def test_a_damaged_repository(repo: Repo, host: Machine) -> None:
    """An object that cannot be read is not passed over in silence."""
    repo.commit(a__py="x" * 5000)
    name = repo.git("rev-parse", "HEAD:a.py")
    path = repo.path / ".git/objects" / name[:2] / name[2:]
    path.chmod(0o644)
    path.write_bytes(b"damaged")
    assert result(repo.path, host, "secrets.history").state == "unknown"
