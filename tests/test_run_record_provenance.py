"""Where an attempt comes from: code, machine, libraries, and no secret."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from run_processes import OPEN, by_hand

import loadsheet
from loadsheet.run import provenance
from loadsheet.run.directory import RunDirectory
from loadsheet.run.errors import RunWarning


def test_provenance_records_commit_diff_and_command(tmp_path: Path) -> None:
    """In a repository made for this test: the commit git prints, the edit in the saved diff."""
    repository = tmp_path / "code"
    repository.mkdir()

    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        return subprocess.run(
            ["git", "-C", str(repository), *identity, *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    git("init", "-q")
    git("remote", "add", "origin", "https://someone:pass@example.org/x.git")
    script = repository / "train.py"
    code = "import sys\nif sys.argv[3] == '--token': import torch\n" + OPEN
    script.write_text(code)
    git("add", ".")
    git("commit", "-qm", "one")
    script.write_text(code + "# an edit\n")
    (repository / "new.py").write_text("")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MY_API_KEY": "abcdef"}
    environment["PYTHONPATH"] = str(Path(loadsheet.__file__).parents[1])  # wherever the tests were started
    for arguments in (["--token", "xyz123"], ["again"]):
        subprocess.run(
            [sys.executable, script, tmp_path / "runs", "5", *arguments],
            cwd=tmp_path, env=environment, capture_output=True, check=True,
        )  # fmt: skip
    folder = tmp_path / "runs" / by_hand("{}") / "provenance"
    text = (folder / "attempt-0001.json").read_text()
    facts = json.loads(text)
    assert facts["code"]["commit"] == git("rev-parse", "HEAD")
    assert facts["code"]["untracked"] == ["new.py"]
    assert facts["code"]["remote"] == "https://***@example.org/x.git"
    diff = (folder / facts["code"]["diff_file"]).read_bytes()
    assert b"\n+# an edit\n" in diff
    assert hashlib.sha256(diff).hexdigest() == facts["code"]["diff_sha256"]
    assert len(list(folder.glob("*.diff"))) == 1  # the second attempt ran the same code
    assert facts["command"][1:] == [str(script), str(tmp_path / "runs"), "5", "--token", "***"]
    assert facts["libraries"]["torch"] == torch.__version__
    assert facts["libraries"]["threads"] == 1
    assert facts["packages"]["msgspec"] == msgspec.__version__
    assert facts["environment"]["OMP_NUM_THREADS"] == "1"
    assert "MY_API_KEY" in facts["environment_names"]
    assert [secret in text for secret in ("abcdef", "xyz123", "pass@")] == [False, False, False]


SECRETS = {
    "HF_TOKEN": "hf_abcdefghijklmnop",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG",
    "WANDB_API_KEY": "0123456789abcdef",
    "DATABASE": "postgres://user:hunter2@host/x",
    "SLURM_JWT_TOKEN": "qwertz",
    "HF_ENDPOINT": "https://user:hunter3@mirror.example.org",
    "CUDA_COMMENT": "sk-abcdefghijklmnopqrstuv",
}


def test_no_secret_of_the_environment_is_written_down() -> None:
    """By the variable's name, by its form, inside an address; and what has no known name at all."""
    text = json.dumps(provenance.environment(SECRETS))
    found = [value for value in (*SECRETS.values(), "hunter2", "hunter3") if value in text]
    assert found == []
    assert '"HF_ENDPOINT": "https://***@mirror.example.org"' in text


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["--hf-token", "x"], ["--hf-token", "***"]),
        (["--password=x"], ["--password=***"]),
        (["API_KEY=x"], ["API_KEY=***"]),
        (["--tokens", "15T"], ["--tokens", "15T"]),
        (["--max-tokens", "5"], ["--max-tokens", "5"]),
        (["--tokenizer", "gpt2"], ["--tokenizer", "gpt2"]),
        (["--monkey", "5"], ["--monkey", "5"]),
        (["sk-abcdefghijklmnop"], ["***"]),
        (["s3://u:p@host/x"], ["s3://***@host/x"]),
    ],
)
def test_the_command_line_without_secrets(given: list[str], shown: list[str]) -> None:
    """What a person may pass on the command line; ordinary words that contain such a word stay."""
    assert provenance.without_secrets(given) == shown


def test_excluded_secrets_are_not_recorded(tmp_path: Path) -> None:
    """A key in the config is excluded by name, and its value is not written down either."""
    with RunDirectory.open(tmp_path, {"wandb_key": "abc123xyz", "out": "runs"}, ["wandb_key", "out"]) as run:
        text = (run.provenance / "attempt-0001.json").read_text()
    assert "abc123xyz" not in text
    assert json.loads(text)["excluded"] == {"wandb_key": "***", "out": "runs"}


def test_another_number_of_threads_is_warned_about(tmp_path: Path) -> None:
    """1 and 2 threads sum in another order: other bits. A person must hear of it when the run goes on."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        RunDirectory.open(tmp_path, {}).close()
        torch.set_num_threads(2)
        with pytest.warns(RunWarning, match="threads: 1 → 2"):
            run = RunDirectory.open(tmp_path, {})
        run.close()
        assert run.changes == ["threads: 1 → 2"]
        RunDirectory.open(tmp_path, {}).close()  # nothing changed: no warning, which would be an error here
    finally:
        torch.set_num_threads(threads)


def test_gpus_as_the_driver_prints_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines in the format `nvidia-smi --query-gpu=... --format=csv,noheader,nounits` prints."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\necho 'NVIDIA H200, 570.86.15, 143771, GPU-0f1e'\necho 'NVIDIA H200, 570.86.15, 143771, GPU-1a2b'\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = provenance._gpus()
    assert found is not None
    assert [gpu["uuid"] for gpu in found] == ["GPU-0f1e", "GPU-1a2b"]
    assert found[0] == {
        "name": "NVIDIA H200", "driver": "570.86.15", "memory_bytes": 143771 * 2**20, "uuid": "GPU-0f1e",
    }  # fmt: skip
    tool.write_text(
        "#!/bin/sh\nexit 9\n"
    )  # a driver that gives no answer: that is not a machine without GPUs
    provenance._hardware.cache_clear()
    try:
        assert "gpus" not in provenance.machine()
    finally:
        provenance._hardware.cache_clear()
    before = {"machine": {"gpus": [{"name": "NVIDIA A100", "driver": "570.86.15"}] * 2}}
    assert provenance.changes(before, {"machine": {"gpus": found}}) == [
        "gpu: NVIDIA A100, NVIDIA A100 → NVIDIA H200, NVIDIA H200"
    ]
