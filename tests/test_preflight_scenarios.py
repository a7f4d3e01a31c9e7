"""`loadsheet preflight` as a person runs it: stories that cost somebody money, and the whole of it in a real folder."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from offline import Offline
from preflight_world import BASE64, LETTERS, Repo, Space, alive, draw
from terminal import answered, refused, run

from loadsheet.cloud.registry import all_checks

LOCAL = [c.id for c in all_checks() if c.needs == "machine"]
ACCOUNT = [word for c in all_checks() if c.needs != "machine" for word in ("--skip", c.id)]


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: Offline) -> Repo:
    """A small project in a repository, the folder one is in, and a home that holds nothing."""
    made = Repo(tmp_path / "project")
    made.commit("first", train__py="print('hello')\n", **{".gitignore": ".env\n.loadsheet\nruns\n"})
    monkeypatch.chdir(made.path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    for name in ("SSH_CONNECTION", "SSH_TTY", "TMUX", "SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return made


def found(*words: str, code: int) -> dict[str, dict[str, Any]]:
    """The checks of `--json`, by id."""
    data = json.loads(answered("preflight", *words, "--json", code=code).stdout)
    assert list(data) == ["schema", "checks", "not_asked", "inputs"]
    return {row["id"]: row for row in data["checks"]}


# --- stories ------------------------------------------------------------------------------------------------


def test_story_1_a_key_that_was_deleted(repo: Repo) -> None:
    """2,375 USD in one night: committed, deleted in the next commit; the work tree is clean, the history fails."""
    key, secret = "AKIA" + draw(16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"), draw(40, BASE64)
    added = repo.commit(aws__py=f"boto3.client('s3', '{key}', '{secret}')\n")
    repo.git("rm", "--quiet", "aws.py")
    repo.commit()
    checks = found("--only", "secrets.history", "--only", "secrets.worktree", code=1)
    assert (checks["secrets.history"]["state"], checks["secrets.worktree"]["state"]) == ("fail", "ok")
    rows = [row for row in checks["secrets.history"]["evidence"] if "rule" in row]
    assert [(r["rule"], r["path"], r["commit"], r["redacted"]) for r in rows] == [
        ("aws-access-key-id", "aws.py", added, f"{key[:4]}… (20 characters)"),
        ("aws-secret-access-key", "aws.py", added, f"{secret[:4]}… (40 characters)"),
    ]
    assert "deleting it is not enough" in checks["secrets.history"]["next"]


def test_no_secret_in_any_output(repo: Repo, tmp_path: Path) -> None:
    """Text at several widths, JSON, page, explanations: not a piece of it longer than four characters."""
    keys = [
        "hf_" + draw(34, LETTERS),
        "ghp_" + draw(36),
        "AKIA" + draw(16, "ABCDEFGHIJ234567"),
        draw(40, BASE64),
    ]
    repo.write(f"{keys[0]}.txt", f"x = ['{keys[1]}']\n{keys[2]} {keys[3]}\n")
    repo.commit(f"use {keys[1]}")
    repo.git("remote", "add", "origin", f"https://ada:{keys[1]}@github.com/ada/x.git")
    outputs = []
    for words in (("--json",), ("--explain",), ("--html", str(tmp_path / "p.html"))):
        for columns in ("40", "120"):
            result = run("preflight", "--only", "secrets", *words, COLUMNS=columns)
            assert result.exit_code == 1
            outputs += [result.stdout, result.stderr]
    outputs.append((tmp_path / "p.html").read_text())
    for text in outputs:
        for key in keys:
            assert all(key[i : i + 8] not in text.replace("\n", "") for i in range(len(key) - 8))


def test_story_10_the_disk_is_full_at_the_first_save(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Free space is nine tenths of what is needed: said before anything is trained, with the bytes."""
    monkeypatch.setattr(os, "statvfs", lambda path: Space(27_000_000_000))
    row = found("--only", "disk.space", "--checkpoint-bytes", "10GB", "--keep", "2", code=1)["disk.space"]
    assert row["state"] == "fail"
    assert row["evidence"][0]["needed_bytes"] == 30_000_000_000
    assert row["next"].startswith("free 2.79 GiB")


def test_story_12_the_driver_was_upgraded(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Driver/library version mismatch`, status 18, from a program named nvidia-smi."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    checks = found("--only", "gpu", code=1)
    assert checks["gpu.driver"]["state"] == "fail"
    assert "Driver/library version mismatch" in checks["gpu.driver"]["evidence"][0]["fact"]
    assert {row["state"] for id, row in checks.items() if id != "gpu.driver"} == {"unknown"}


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm")
def test_checkpoints_in_memory(repo: Repo) -> None:
    """/dev/shm is a tmpfs on every Linux."""
    row = found("--only", "storage.persistent", "--checkpoint-dir", "/dev/shm/ckpt", code=1)[
        "storage.persistent"
    ]
    assert row["evidence"][0]["file_system"] == "tmpfs"


def test_a_lost_rehearsal_and_uncommitted_code(repo: Repo) -> None:
    """Each is seen; none of them fails by itself."""
    repo.write("train.py", "print('edited')\n")
    repo.write("new.py", "")
    checks = found("--only", "code", code=0)
    assert {id: row["state"] for id, row in checks.items()} == {
        "code.committed": "warn", "code.environment": "warn", "code.pushed": "warn", "code.rehearsed": "unknown",
    }  # fmt: skip


def test_a_secret_is_replaced_and_said_to_be(repo: Repo) -> None:
    """From the failing line to an exit status of 0, with what the command itself says to do."""
    repo.commit(a__py=f"x = 'ghp_{draw(36)}'\n")
    repo.git("rm", "--quiet", "a.py")
    repo.commit()
    text = answered("preflight", "--only", "secrets.history", code=1).stdout
    fingerprint = re.search(r"fingerprint\s+([0-9a-f]{12})", text)
    assert fingerprint is not None
    said = answered("preflight", "--answer", f"secrets.rotated:{fingerprint[1]}=yes", "--who", "Ada").stdout
    assert "no secret was looked for" in said
    for wrong in (fingerprint[1][:-1], fingerprint[1].upper() + "0", "the old key"):
        refused("preflight", "--answer", f"secrets.rotated:{wrong}=yes", words="12 digits")
    assert "replaced: so says Ada" in " ".join(
        answered("preflight", "--only", "secrets.history").stdout.split()
    )
    answered("preflight", "--answer", f"secrets.rotated:{fingerprint[1]}=no")
    answered("preflight", "--only", "secrets.history", code=1)


def test_questions_are_answered(repo: Repo) -> None:
    """Open, answered, answered with no; the file stands at the top of the repository."""
    assert found("--only", "account.mfa", code=0)["account.mfa"]["state"] == "unknown"
    answered("preflight", "--only", "account.mfa", "--strict", code=1)
    said = answered("preflight", "--answer", "account.mfa=yes", "--who", "Ada").stdout
    assert said.startswith("account.mfa: yes, Ada, 20")
    row = found("--only", "account.mfa", "--strict", code=0)["account.mfa"]
    assert (row["state"], row["evidence"][0]["who"]) == ("ok", "Ada")
    answered("preflight", "--answer", "account.mfa=no")
    assert found("--only", "account.mfa", code=1)["account.mfa"]["state"] == "fail"
    assert (repo.path / ".loadsheet" / "answers.json").is_file()


# --- options ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "secrts.history"], "did you mean `secrets.history`"),
        (["--skip", "nothing"], "unknown check"),
        (["--phase", "sooner"], "unknown phase"),
        (["--timeout", "0"], "expected a duration above 0"),
        (["--timeout", "soon"], "--timeout"),
        (["--every", "often"], "--every"),
        (["--keep", "0"], "--keep"),
        (["--keep", "-1"], "--keep"),
        (["--workers", "few"], "--workers"),
        (["--checkpoint-bytes", "many"], "--checkpoint-bytes"),
        (["--price", "cheap"], "price"),
        (["--html", "/no/such/folder/p.html"], "--html"),
        (["--answer", "account.mfa"], "expected ID=yes or ID=no"),
        (["--answer", "account.mfa=perhaps"], "expected ID=yes or ID=no"),
        (["--answer", "account.maf=yes"], "`account.mfa`"),
        (["--answer", "disk.inodes=yes"], "unknown question"),
        (["--onyl", "disk"], "--only"),
        (["disk"], ""),
    ],
)
def test_refused(words: list[str], said: str, repo: Repo) -> None:
    """One line of error and one of hint, and nothing was looked at."""
    refused("preflight", *words, words=said)
    assert not (repo.path / ".loadsheet").exists()


def test_a_page_that_cannot_be_written(repo: Repo) -> None:
    """Said in one line; the results were printed all the same."""
    (repo.path / "p.html").mkdir()
    result = run("preflight", "--only", "account.mfa", "--html", "p.html")
    assert (result.exit_code, "account.mfa" in result.stdout) == (2, True)
    assert result.stderr.startswith("error: --html: ")


def test_list(repo: Repo) -> None:
    """Every check with its reason or question, as text and JSON; a selection too."""
    text = answered("preflight", "--list").stdout
    data = json.loads(answered("preflight", "--list", "--json").stdout)["checks"]
    assert [row["id"] for row in data] == [c.id for c in all_checks()]
    assert all(row["id"] in text for row in data)
    data = json.loads(answered("preflight", "--list", "--json", "--phase", "after").stdout)["checks"]
    assert {row["phase"] for row in data} == {"after"}


def test_commas(repo: Repo) -> None:
    """`--only a,b` is both; a name that is none is refused as ever."""
    assert set(found("--only", "account.mfa, account.liable", code=0)) == {"account.mfa", "account.liable"}
    refused("preflight", "--only", "account.mfa,acount.liable", words="did you mean `account.liable`")


def test_phases_that_are_in_place(repo: Repo) -> None:
    """Before anything ran: `before`; while a run goes on `during`, too; `after` if asked for. The rest is named."""
    quick = [word for c in LOCAL if c.split(".")[0] in {"disk", "gpu", "secrets"} for word in ("--skip", c)]

    def phases() -> tuple[set[str], set[str]]:
        data = json.loads(run("preflight", *quick, "--json").stdout)
        of = {c.id: c.phase for c in all_checks() if c.needs == "machine"}
        return {row["phase"] for row in data["checks"]}, {of[id] for id in data["not_asked"] if id in of}

    assert phases() == ({"before"}, {"during", "after"})
    text = " ".join(run("preflight", *quick).stdout.split())
    assert re.search(
        r"left out: \d+ checks for during and after the run; `--phase during --phase after`", text
    )
    log = repo.path / "runs" / "a" / "log.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text("{}\n")
    assert phases() == ({"before", "during"}, {"after"})
    (log.parent / "done.json").write_text("{}")
    assert phases() == ({"before"}, {"during", "after"})


def test_the_summary_names_what_to_do(repo: Repo) -> None:
    """Each failure stands at the end with its next step."""
    repo.commit(a__py=f"x = 'ghp_{draw(36)}'\n")
    text = answered("preflight", "--only", "secrets.worktree", code=1).stdout
    end = " ".join(text[text.index("\n\n") :].split())
    assert end.startswith("1 fail: secrets.worktree → deleting it is not enough")
    assert "Where: github.com/settings/tokens: delete it." in end


def test_inputs_are_starred(repo: Repo) -> None:
    """What was not given is marked where it is used, and once below; what was given is not."""
    text = answered("preflight", "--only", "disk.space", "--checkpoint-bytes", "1kB").stdout
    assert "(2* + 1)" in text
    assert text.rstrip().endswith("* defaulted: --keep 2")
    text = answered("preflight", "--only", "disk.space", "--checkpoint-bytes", "1kB", "--keep", "5").stdout
    assert "(5 + 1)" in text
    assert "defaulted" not in text
    data = json.loads(answered("preflight", "--only", "disk.space", "--keep", "5", "--json").stdout)
    assert {row["name"]: row["defaulted"] for row in data["inputs"]}["keep"] is False
    assert all(row["defaulted"] for row in data["inputs"] if row["name"] != "keep")


def test_price_of_a_late_alert(repo: Repo) -> None:
    """8 to 24 hours at 2 USD for each of 4 GPUs: 64 to 192, by hand."""
    text = answered("preflight", "--only", "budget.alerts", "--price", "2 USD", "--gpus", "4").stdout
    assert "64.00 to 192.00 USD" in " ".join(text.split())


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_width(columns: str, repo: Repo) -> None:
    """Pages keep to the width of the terminal."""
    text = run("preflight", *ACCOUNT, "--skip", "disk.speed", COLUMNS=columns).stdout
    assert max(map(len, text.splitlines())) <= int(columns)


# --- the whole of it, in a process of its own ---------------------------------------------------------------------


def command(*words: str) -> list[str]:
    """The command line in a process of its own."""
    return [sys.executable, "-m", "loadsheet", "preflight", *words, *ACCOUNT]


def test_the_whole_list_in_a_scratch_repository(repo: Repo, offline: Offline, tmp_path: Path) -> None:
    """Every local check answers on this machine, none is at fault, nothing is changed, no heavy library is loaded."""
    page = tmp_path / "page.html"
    before = repo.git("status", "--porcelain")
    words = ["--checkpoint-bytes", "1MiB", "--data", "train.py", "--html", str(page), "--json"]
    words += ["--phase", "before,during", "--phase", "after"]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *command(*words)[1:]],
        env=offline.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "import time:" in line}
    said = [line for line in done.stderr.splitlines() if "import time:" not in line]
    assert said == [f"wrote {page}"]
    checks = {row["id"]: row for row in json.loads(done.stdout)["checks"]}
    assert list(checks) == LOCAL
    assert not [row for row in checks.values() if "this check itself failed" in str(row["evidence"])]
    assert all(row["evidence"] for row in checks.values())
    assert done.returncode == (1 if any(row["state"] == "fail" for row in checks.values()) else 0)
    assert {checks[id]["state"] for id in ("secrets.worktree", "secrets.history", "data.near")} == {"ok"}
    assert {name.partition(".")[0] for name in loaded} & {"torch", "numpy", "msgspec", "matplotlib"} == set()
    text = page.read_text(encoding="utf-8")
    assert all(f'<span class="id">{id}</span>' in text for id in LOCAL)
    assert repo.git("status", "--porcelain") == before
    assert sorted(path.name for path in repo.path.iterdir()) == [".git", ".gitignore", "train.py"]


def test_twice_the_same_order(repo: Repo, offline: Offline) -> None:
    """The JSON's ids and states do not depend on which check was done first."""
    words = command("--json", "--skip", "disk.speed", "--skip", "host.memory")
    seen = []
    for _ in range(2):
        done = subprocess.run(words, env=offline.environment, capture_output=True, text=True, check=False)
        seen.append([(row["id"], row["state"]) for row in json.loads(done.stdout)["checks"]])
    assert seen[0] == seen[1]


def slow_git(folder: Path, gate: Path) -> dict[str, str]:
    """A git that waits until a file is there before it lists objects."""
    real = subprocess.run(
        ["sh", "-c", "command -v git"], capture_output=True, text=True, check=True
    ).stdout.strip()
    folder.mkdir()
    program = folder / "git"
    program.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *cat-file*) while [ ! -e {gate} ]; do sleep 0.02; done;; esac\n'
        f'exec {real} "$@"\n'
    )
    program.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def test_lines_come_while_a_long_scan_goes_on(repo: Repo, offline: Offline, tmp_path: Path) -> None:
    """Through a pipe: other lines are read before the history is allowed to begin."""
    gate = tmp_path / "gate"
    environment = {**offline.environment, **slow_git(tmp_path / "bin", gate)}
    words = command(
        "--only", "secrets.history", "--only", "disk.inodes", "--only", "host", "--timeout", "10min"
    )
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        early = process.stdout.readline()
        assert "secrets.history" not in early
        gate.touch()
        rest = process.stdout.read()
    assert process.returncode == 0
    assert "ok      secrets.history" in rest


def test_a_long_scan_that_is_not_done(repo: Repo, offline: Offline, tmp_path: Path) -> None:
    """unknown at `--timeout`, the rest is there, and the process ends; in JSON and in the exit status too."""
    environment = {**offline.environment, **slow_git(tmp_path / "bin", tmp_path / "never")}
    words = command("--only", "secrets.history", "--only", "account.mfa", "--timeout", "1s", "--json")
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0
    states = {row["id"]: row["state"] for row in json.loads(done.stdout)["checks"]}
    assert states == {"account.mfa": "unknown", "secrets.history": "unknown"}


def test_interrupted(repo: Repo, offline: Offline, tmp_path: Path) -> None:
    """130 at Ctrl-C, and the git that it waited for is ended."""
    gate, mark = tmp_path / "never", tmp_path / "pid"
    environment = {**offline.environment, **slow_git(tmp_path / "bin", gate)}
    program = tmp_path / "bin" / "git"
    program.write_text(program.read_text().replace("*cat-file*) ", f"*cat-file*) echo $$ >> {mark}; "))
    words = command("--only", "secrets.history", "--only", "disk.inodes", "--timeout", "10min")
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        until = time.monotonic() + 60
        while not mark.exists() and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said.strip()) == (130, "error: interrupted")
    (pid,) = mark.read_text().split()
    while alive(int(pid)) and time.monotonic() < until:
        time.sleep(0.02)
    assert not alive(int(pid))


def test_a_reader_that_has_seen_enough(repo: Repo, offline: Offline) -> None:
    """`| head -1` is no error."""
    line = " ".join(command("--only", "account", "--only", "after"))
    done = subprocess.run(
        ["sh", "-c", f"{line} | head -1"],
        env=offline.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr, len(done.stdout.splitlines())) == (0, "", 1)


def test_a_folder_that_is_no_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: Offline
) -> None:
    """Everything answers; without git there is no history."""
    folder = tmp_path / "plain"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    checks = found("--only", "secrets", "--only", "code", code=0)
    assert checks["secrets.history"]["state"] == "not_applicable"
    assert checks["secrets.worktree"]["state"] == "ok"
    assert not [row for row in checks.values() if "this check itself failed" in str(row["evidence"])]
