"""The whole way as a user goes it: measure the machine, sign, train, be killed twice, finish, close, plan again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from terminal import TINY

import loadsheet
from loadsheet.cli import main

#: a Llama of the sizes in tiny.json, written for this test: it knows nothing of ours but `Run`
TRAIN = """
import json, os, signal, sys
import torch
from torch import nn
from torch.nn import functional as F
import loadsheet as ls

torch.set_num_threads(1)
ls.deterministic(0)
c = json.load(open("tiny.json"))
d, f, h, g = (c[k] for k in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"))
kv = d // h * g


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.q, self.o = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.k, self.v = nn.Linear(d, kv, bias=False), nn.Linear(d, kv, bias=False)
        self.gate, self.up = nn.Linear(d, f, bias=False), nn.Linear(d, f, bias=False)
        self.down = nn.Linear(f, d, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        y = self.norm1(x)
        q = self.q(y).view(b, t, h, -1).transpose(1, 2)
        k, v = (p(y).view(b, t, g, -1).transpose(1, 2).repeat_interleave(h // g, 1) for p in (self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(c["vocab_size"], d)
        self.blocks = nn.ModuleList(Block() for _ in range(c["num_hidden_layers"]))
        self.norm, self.head = nn.RMSNorm(d), nn.Linear(d, c["vocab_size"], bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


model = Llama()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
with ls.Run.open("runs", {"model": c}, sheet="sheet.json", progress=False) as run:
    run.keep(model=model, optimizer=optimizer)
    for step in run.steps(120, checkpoint_every=20):
        ids = torch.randint(0, c["vocab_size"], (4, 65))
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)
        if step % 30 == 29:
            with run.aside(), torch.no_grad():
                model(ids)
        if [str(step), str(run.attempt)] == sys.argv[1:3]:
            os.kill(os.getpid(), getattr(signal, sys.argv[3]))
"""
STEPS, EVERY, TOKENS = 120, 20, 4 * 64
PARAMETERS = 86_848  # 2·100·64 + 64 + 2·(2·64² + 2·64·32 + 3·64·128 + 2·64)


def loadsheet_says(*words: str, code: int = 0) -> str:
    """What the command line answers."""
    result = CliRunner().invoke(main, words)
    assert result.exit_code == code, result.stderr
    return result.stdout


class Trial:
    """The folder of the trial, and what its processes cost in seconds, seen from outside."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spent: list[float] = []
        self.codes: list[int] = []

    def train(self, *kill: str) -> None:
        """One life of the training, in a process of its own."""
        began = time.monotonic()
        source = Path(loadsheet.__file__).parents[1]
        done = subprocess.run(
            [sys.executable, "train.py", *kill],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(source), "CUDA_VISIBLE_DEVICES": ""},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=300,
            check=False,
        )
        self.spent.append(time.monotonic() - began)
        self.codes.append(done.returncode)
        assert done.returncode in (0, 75, -9), done.stderr.decode()[-2000:]

    @property
    def run(self) -> Path:
        """The run directory."""
        (path,) = (p for p in (self.folder / "runs").iterdir() if p.is_dir())
        return path

    def lines(self) -> Iterator[dict[str, Any]]:
        """The lines of the log, read by nothing of ours."""
        for line in (self.run / "log.jsonl").read_text().splitlines():
            yield json.loads(line)


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """Measured, signed, trained with a SIGKILL and a SIGTERM, finished, closed."""
    folder = tmp_path_factory.mktemp("trial")
    before = Path.cwd()
    os.chdir(folder)
    try:
        Path("tiny.json").write_text(json.dumps(TINY))
        Path("train.py").write_text(TRAIN)
        loadsheet_says("measure", "machine", "--quick", "--save", "machine.json")
        loadsheet_says(
            "sign", "tiny.json", "--gpu", "machine.json", "--precision", "fp32", "--batch", "4", "--seq", "64",
            "--no-dropout", "--steps", str(STEPS), "--checkpoint-every", str(EVERY), "--price", "2.5 EUR",
            "--out", "sheet.json",
        )  # fmt: skip
        trial = Trial(folder)
        for kill in (("52", "1", "SIGKILL"), ("90", "2", "SIGTERM"), ()):
            trial.train(*kill)
        yield trial
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def closed(trial: Trial) -> dict[str, Any]:
    """The JSON of `close`, and what was measured appended to a file."""
    words = ("close", trial.run.name, "--calibration", "closed.jsonl", "--json")
    found: dict[str, Any] = json.loads(loadsheet_says(*words))
    return found


def item(closed: dict[str, Any], name: str) -> dict[str, Any]:
    """One item."""
    return next(found for found in closed["items"] if found["name"] == name)


def test_it_was_killed_twice_and_finished(trial: Trial, closed: dict[str, Any]) -> None:
    """SIGKILL, SIGTERM with its exit status, and the end; two interruptions of these kinds."""
    assert trial.codes == [-9, 75, 0]
    run = closed["run"]
    assert (run["finished"], run["steps"], run["attempts"]) == (True, STEPS, 3)
    assert run["interruptions"] == {"signal": 1, "notice": 0, "killed": 1, "left": 0}
    assert item(closed, "interruptions")["measured"] == 2
    assert closed["sheet"]["signed_before_the_run"] is True


def test_lost_steps_as_the_log_says(trial: Trial, closed: dict[str, Any]) -> None:
    """What the killed life had logged beyond the checkpoint that the next one went on from; SIGTERM lost none."""
    lines = list(trial.lines())
    starts = [line["from"] for line in lines if line.get("event") == "resume"]
    logged = [
        max(line["step"] for line in lines if line.get("attempt") == n and "step" in line and "loss" in line)
        for n in (1, 2)
    ]
    assert (starts[0], starts[1] in (0, 20, 40), starts[2]) == (0, True, 91)
    assert logged == [52, 90]
    assert closed["run"]["lost_steps"] == item(closed, "lost_steps")["measured"] == 53 - starts[1]
    measured = json.loads((trial.run / "measured.json").read_text())["attempts"]
    assert [measured[n]["lost_steps"] for n in ("2", "3")] == [53 - starts[1], 0]


def test_parameters_and_checkpoint(closed: dict[str, Any]) -> None:
    """The parameters are equal; a checkpoint is 12 bytes for each, and at most 1 % and 1 MiB more."""
    params = item(closed, "parameters")
    assert (params["measured"], params["predicted"]["mid"], params["inside"]) == (
        PARAMETERS,
        PARAMETERS,
        True,
    )
    checkpoint = item(closed, "checkpoint_bytes")
    assert checkpoint["predicted"]["mid"] == 12 * PARAMETERS
    assert 12 * PARAMETERS <= checkpoint["measured"] <= 12 * PARAMETERS * 1.01 + 2**20
    assert checkpoint["inside"] is True


def test_speed_is_one_story(trial: Trial, closed: dict[str, Any]) -> None:
    """Step, tokens/s and MFU tell the same: 256 tokens over the step, and the sheet's FLOPs over its peak."""
    step, rate, mfu = (
        item(closed, name)["measured"] for name in ("step_seconds", "tokens_per_second", "mfu")
    )
    compute = json.loads(Path("sheet.json").read_text())["sheet"]["compute"]
    assert rate == pytest.approx(TOKENS / step)
    assert mfu == pytest.approx(rate * compute["flops_per_token"] / compute["peak_flops_per_second"])
    machine = json.loads(Path("machine.json").read_text())
    assert compute["peak_flops_per_second"] == machine["peaks"]["fp32"]
    assert item(closed, "mfu")["ratio"] == pytest.approx(1 / item(closed, "step_seconds")["ratio"])
    # 6 FLOP for each parameter in a product, and attention on top
    assert 6 * (PARAMETERS - 100 * 64) < compute["flops_per_token"] < 7 * PARAMETERS
    seconds = [line["time"] for line in trial.lines() if line.get("attempt") == 3 and "loss" in line]
    assert step < (seconds[-1] - seconds[0]) / (len(seconds) - 1) * 2


def test_hours_agree_with_log_and_stopwatch(trial: Trial, closed: dict[str, Any]) -> None:
    """At least from the first line of each life to its last, at most what each process took, seen from outside."""
    spans: dict[int, list[float]] = {}
    for line in trial.lines():
        spans.setdefault(line["attempt"], []).append(line["time"])
    inside = sum(max(times) - min(times) for times in spans.values())
    seconds = item(closed, "seconds")["measured"]
    assert inside <= seconds <= sum(trial.spent)
    assert item(closed, "cost")["measured"] == pytest.approx(seconds / 3600 * 2.5)
    hours = closed["hours"]
    assert hours["measured_seconds"] == seconds
    assert sum(part["seconds"] for part in hours["parts"]) == pytest.approx(
        seconds - hours["predicted_seconds"]
    )
    parts = {part["name"]: part["seconds"] for part in hours["parts"]}
    assert parts["steps"] == 0
    assert parts["lost steps"] == pytest.approx(
        closed["run"]["lost_steps"] * item(closed, "step_seconds")["measured"]
    )
    assert max(parts, key=lambda name: abs(parts[name])) == hours["largest"]
    assert parts["evaluation"] > 0


def test_memory_by_its_counter(closed: dict[str, Any]) -> None:
    """On a CPU the resident set is measured and named; what PyTorch does not count is not measured, not right."""
    process = item(closed, "peak_bytes")
    assert 50e6 < process["measured"] < 20e9
    assert "resident set" in process["counter"]
    for name in ("peak_allocated_bytes", "peak_reserved_bytes"):
        found = item(closed, name)
        assert (found["measured"], found["inside"]) == (None, None)
        assert "does not count" in found["why"]


def test_the_page(trial: Trial, closed: dict[str, Any]) -> None:
    """What a person reads has both sides, and the part that was largest by its name."""
    page = loadsheet_says("close", trial.run.name)
    assert f"run {trial.run.name}: done, 120 of 120 steps, 3 lives" in page
    assert "1 × my-cpu" in page
    assert "not measured" in page
    assert closed["hours"]["largest"] in page
    strict = CliRunner().invoke(main, ["close", trial.run.name, "--strict"])
    assert strict.exit_code == (1 if closed["outside"] else 0)


def test_the_next_plan_is_calibrated(trial: Trial, closed: dict[str, Any]) -> None:
    """The MFU that this run reached is the one of the next plan on this machine, and hits its own step time."""
    words = (
        "plan",
        "tiny.json",
        "--gpu",
        "machine.json",
        "--precision",
        "fp32",
        "--batch",
        "4",
        "--seq",
        "64",
    )
    found = json.loads(loadsheet_says(*words, "--no-dropout", "--calibration", "closed.jsonl", "--json"))
    assert found["compute"]["mfu"] == pytest.approx(item(closed, "mfu")["measured"])
    assert found["compute"]["step_seconds"]["mid"] == pytest.approx(item(closed, "step_seconds")["measured"])
    assert found["compute"]["mfu_basis"] == "measured"
