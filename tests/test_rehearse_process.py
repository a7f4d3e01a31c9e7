"""Nothing of a rehearsed command stays behind, however it ends; and what an unadapted script is told."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from terminal import refused

from loadsheet.cloud.rehearse.advice import advice, script_of
from loadsheet.cloud.rehearse.process import Lives, nothing_left

PATIENCE = 120.0
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the kernel is asked about processes"
)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be collected does not."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def pid_in(path: Path) -> int:
    """The process that a script has written down, once it has."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        with contextlib.suppress(OSError, ValueError):
            if (text := path.read_text()).endswith("\n"):
                return int(text)
        time.sleep(0.01)
    raise AssertionError(f"nobody wrote {path.name}")


def gone(pid: int) -> bool:
    """Whether a process is gone, soon."""
    until = time.monotonic() + PATIENCE
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not alive(pid)


# a child in the group, a daemon in a session of its own whose parent ends at once
FAMILY = """
sleep 600 & echo $! > child
setsid sh -c 'echo $$ > daemon; exec sleep 600' &
wait
"""


def test_no_child_and_no_daemon_stays(tmp_path: Path) -> None:
    """The group is killed as one; what had left it came to us, and is killed, too."""
    with nothing_left():
        with Lives().start(["sh", "-c", FAMILY], dict(os.environ), tmp_path, tmp_path / "out") as life:
            pids = [pid_in(tmp_path / name) for name in ("child", "daemon")]
            assert all(map(alive, pids))
            assert life.status() is None
        assert life.status() == -signal.SIGKILL
    assert [pid for pid in pids if not gone(pid)] == []


def test_what_a_life_says(tmp_path: Path) -> None:
    """Its status, and the last lines that it printed; of a progress bar only what it drew last."""
    script = r"printf 'one\ntwo\n\n10%%\r20%%\r30%%\n'; echo three >&2; exit 7"
    with (
        nothing_left(),
        Lives().start(["sh", "-c", script], dict(os.environ), tmp_path, tmp_path / "out") as life,
    ):
        assert life.wait(PATIENCE) == 7
        assert life.tail(3) == ["two", "30%", "three"]
        assert life.wait_for(lambda: False, PATIENCE) is False


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_rehearsal_that_is_ended(number: signal.Signals, code: int, tmp_path: Path) -> None:
    """Ctrl-C and SIGTERM clean up; after SIGKILL the system ends the command."""
    rehearse = [sys.executable, "-m", "loadsheet", "rehearse", "--", "sh", "-c", "echo $$ > pid; sleep 600"]
    process = subprocess.Popen(
        rehearse, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    pid = pid_in(tmp_path / "pid")
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == code
    assert b"Traceback" not in errors
    assert gone(pid)
    if number is not signal.SIGKILL:
        assert list((tmp_path / ".loadsheet").iterdir()) == []


def test_usage() -> None:
    """What cannot be run is said, with an example."""
    for words in (
        (),
        ("--",),
        ("--tiny", "train.py"),
        ("--", "no-such-program-here"),
        ("--timeout", "0", "--", "sh"),
    ):
        refused("rehearse", *words)
    refused("rehearse", "--scratch", "/no/such/folder", "--", "sh", "-c", "true")


# -- advice --------------------------------------------------------------------------------------------------


def advised(folder: Path, text: str, *command: str) -> list[str]:
    """The code that a script is told to add."""
    (folder / "train.py").write_text(textwrap.dedent(text))
    lines = advice(command or ("python", "train.py", "--tiny"), folder)
    return [line.partition("  # ")[0].rstrip() for line in lines]


def test_names_of_the_script(tmp_path: Path) -> None:
    """nanoGPT's manner: one loop over steps, a scaler, batches by a function."""
    lines = advised(
        tmp_path,
        """
        import torch
        from model import GPT
        max_iters = 600
        model = GPT()
        scaler = torch.amp.GradScaler("cpu")
        optimizer = torch.optim.AdamW(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-3)
        ema = torch.optim.swa_utils.AveragedModel(model)
        for it in tqdm(range(max_iters)):
            x, y = get_batch("train")
            scaler.scale(model(x, y)[1]).backward()
            scaler.step(optimizer)
        """,
    )
    assert lines == [
        "train.py opens no run; the lines to add, fitted to what can be seen of it:",
        "    import loadsheet as ls",
        '    run = ls.Run.open("runs", config)',
        "    run.keep(model=model, optimizer=optimizer, scaler=scaler, average=ema)",
        "    batches = run.batches(loader)",
        "    for step in run.steps(max_iters):",
        "        batch = next(batches)",
        "        run.log(loss=model(x, y)[1])",
    ]


def test_a_loop_over_epochs_and_batches(tmp_path: Path) -> None:
    """One loop over steps takes the place of both; the loader of the validation is not the one."""
    lines = advised(
        tmp_path,
        """
        args = parser.parse_args()
        val_loader = DataLoader(b, 8)
        train_dl = DataLoader(a, 8)
        net = Net()
        opt = torch.optim.SGD(net.parameters(), 0.1)
        sched = get_cosine_schedule_with_warmup(opt, 10, 100)
        for epoch in range(1, args.epochs + 1):
            for x, y in train_dl:
                loss = f(net(x), y)
                loss.backward()
            for x, y in val_loader:
                f(net(x), y)
        """,
    )
    assert '    run = ls.Run.open("runs", vars(args))' in lines
    assert "    run.keep(model=net, optimizer=opt, scheduler=sched)" in lines
    assert "    batches = run.batches(train_dl)" in lines
    assert "    for step in run.steps(args.epochs * len(train_dl)):" in lines
    assert "        run.log(loss=loss)" in lines


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("from transformers import Trainer\nTrainer(m, a).train()", "trains with transformers' Trainer"),
        ("import lightning as L\nL.Trainer().fit(m)", "trains with Lightning"),
        (
            "import loadsheet as ls\nrun = ls.Run.open('runs', {})",
            "opens a run in line 2, and has no loop over",
        ),
        ("this is no Python", "the lines to add (docs/run.md says more):"),
    ],
)
def test_what_else_is_seen(text: str, words: str, tmp_path: Path) -> None:
    """Trainers that keep their own checkpoints, a run without a loop, no Python at all."""
    assert words in advised(tmp_path, text)[0]


def test_which_script(tmp_path: Path) -> None:
    """By its path or as a module; a shell script is none."""
    (tmp_path / "pkg").mkdir()
    for name in ("train.py", "pkg/fit.py", "pkg/__main__.py"):
        (tmp_path / name).write_text("")
    assert script_of(["python", "-u", "train.py", "--x"], tmp_path) == tmp_path / "train.py"
    assert script_of(["python", "-m", "pkg.fit"], tmp_path) == tmp_path / "pkg" / "fit.py"
    assert script_of(["python", "-m", "pkg"], tmp_path) == tmp_path / "pkg" / "__main__.py"
    assert script_of(["bash", "train.sh"], tmp_path) is None
    assert shutil.which("bash") is None or advice(["bash", "train.sh"], tmp_path)[0].startswith(
        "the lines to add"
    )
