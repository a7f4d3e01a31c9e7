"""`loadsheet watch`: the rules, the money counted from above, and a training that is stopped in time."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_logs import attempt, by_hand, record, resumed
from terminal import refused, run

import loadsheet as ls
from loadsheet.cli.watch import _wait_for_run
from loadsheet.cloud.watch import act, signs
from loadsheet.cloud.watch.look import Watcher
from loadsheet.cloud.watch.meter import Cap, Meter, spent_on
from loadsheet.cloud.watch.power import Draw, draws
from loadsheet.cloud.watch.tail import Tail
from loadsheet.errors import BadFile
from loadsheet.run.directory import RunDirectory

# --- the rules --------------------------------------------------------------------------------------------


def test_idle_is_no_progress_and_little_power() -> None:
    """The GPU that "works" at 97 % and draws 15 % of its power (a hung job) is found idle, and the reason is said."""
    found = signs.silent(400, 2.0, [Draw(0.15, 0.97)], window=300, start=900)
    assert found is not None
    assert found.level == "alarm"
    assert "idle" in found.text
    assert "15%" in found.text
    assert "97% busy" in found.text
    hung = signs.silent(400, 2.0, [Draw(0.15, 1.0), Draw(0.8, 1.0)], window=300, start=900)
    assert hung is not None
    assert "idle" not in hung.text
    assert signs.silent(299, 2.0, [Draw(0.05, 0.0)], window=300, start=900) is None  # not for so long


def test_a_slow_step_is_no_idleness() -> None:
    """Ten usual pauses are allowed where they are longer than the window; before the first records the start counts."""
    assert signs.silent(1900, 200.0, None, window=300, start=900) is None
    assert signs.silent(2100, 200.0, None, window=300, start=900) is not None
    assert signs.silent(800, None, None, window=300, start=900) is None
    assert signs.silent(1000, None, None, window=300, start=900) is not None


def test_what_the_gpu_draws_may_be_unknown() -> None:
    """Without a figure nothing is claimed of the GPU, and the silence is an alarm all the same."""
    for asked in (None, [], [Draw(None, 0.97)]):
        found = signs.silent(400, 2.0, asked, window=300, start=900)
        assert found is not None
        assert "not known" in found.text
        assert "idle" not in found.text


def test_loss_that_is_no_number() -> None:
    """NaN now is an alarm with the step it began at; NaN that has passed is none."""
    values = [(1, 2.0), (2, math.nan), (3, math.inf), (4, math.nan)]
    found = signs.not_a_number(values, "loss")
    assert found is not None
    assert "since step 2" in found.text
    assert signs.not_a_number([*values, (5, 2.0)], "loss") is None
    assert signs.not_a_number([], "loss") is None


def test_spike_of_the_loss() -> None:
    """Around 2 with a spread of some hundredths: 3 for five records is a spike; one outlier, a slow rise are none."""
    calm = [(n, 2.0 + 0.02 * (-1) ** n) for n in range(100)]
    assert signs.spike([*calm, *[(100 + n, 3.0) for n in range(5)]], "loss") is not None
    assert signs.spike([*calm, *[(100 + n, 2.0) for n in range(4)], (104, 3.0)], "loss") is None
    assert signs.spike([(n, 2.0 + n / 1000) for n in range(200)], "loss") is None
    assert signs.spike([*calm[:10], (11, 9.0)], "loss") is None  # too little to compare with


def test_nobody_trains() -> None:
    """A run that is not done and that no process has: killed, stopped or left; "could not look" is none of them."""
    texts = {end: signs.gone(False, end, done=False) for end in ("", "stopped", "left")}
    assert [f.text.rpartition("(")[2] for f in texts.values() if f] == [
        "it was killed)", "it was stopped)", "an error or `break` ended it)",
    ]  # fmt: skip
    assert signs.gone(True, "", done=False) is None
    assert signs.gone(None, "", done=False) is None
    assert signs.gone(False, "", done=True) is None


def test_disk_that_fills() -> None:
    """No room for the next checkpoint is an alarm; none within the hour at this rate a warning."""
    assert signs.filling(99, 100, None) == signs.Finding(
        "disk", "alarm", "99 B free, the next checkpoint takes 100 B"
    )
    soon = signs.filling(1_000_000, 100_000, 300.0)  # 900,000 B at 300 B/s: 50 minutes
    assert soon is not None
    assert (soon.level, "full in 50.00 min" in soon.text) == ("warning", True)
    assert signs.filling(1_000_000, 100_000, 200.0) is None  # 75 minutes
    assert signs.filling(1_000_000, None, -5.0) is None
    assert signs.filling(None, 1, None) is None


def test_waiting_for_data() -> None:
    """A fifth of the time is too much; not measured is not "none"."""
    assert signs.waiting(0.25) is not None
    assert signs.waiting(0.1) is None
    assert signs.waiting(None) is None


def test_power_as_nvidia_smi_tells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in its place: two GPUs, one of which says nothing; a driver that fails is no GPU at rest."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf '350.00, 700.00, 97\\n[N/A], [N/A], [N/A]\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert draws() == (Draw(0.5, 0.97), Draw(None, None))
    program.write_text(
        "#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'; exit 18\n"
    )
    assert draws() is None


# --- money ------------------------------------------------------------------------------------------------


def test_started_units_are_paid_whole() -> None:
    """Per second, per minute, per hour, at 3.6 an hour; by hand."""
    price = 3.6 / 3600
    assert [round(spent_on(61, price, unit), 9) for unit in (1, 60, 3600)] == [0.061, 0.12, 3.6]


def test_two_machines_are_paid_for(tmp_path: Path) -> None:
    """The journal remembers the machine that was taken, a little longer than it was last seen."""
    path = tmp_path / "watch.jsonl"
    first = Meter(path, 0.01, every=30, now=lambda: ("a", 1000.0))
    assert first.spent() == 10.0
    second = Meter(path, 0.01, every=30, before=5.0, now=lambda: ("b", 100.0))
    assert second.spent() == pytest.approx(5.0 + (1000 + 30) * 0.01 + 1.0)
    assert second.machines == 2
    with path.open("ab") as file:
        file.write(b'{"boot": "c", "up": NaN}\n[]\n{"boot": "d"\n\xff\n{"boot": "a", "up": 5, "every": 30}\n')
    assert Meter(path, 0.01, every=30, now=lambda: ("b", 100.0)).machines == 2


def test_a_journal_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """Money that is not written down is money that is forgotten."""
    with pytest.raises(BadFile, match="journal"):
        Meter(tmp_path / "no" / "journal", 1.0, now=lambda: ("a", 1.0)).spent()


def test_room_by_hand() -> None:
    """Budget 100, 10 kept, 70 spent, 0.01 a second: 2,000 s, less 60 to save, 10 to look and 120 to stop."""
    cap = Cap(100, reserve=10, save=60, poll=10, stop=120)
    assert cap.room(70, 0.01) == pytest.approx(1810)
    assert cap.allows(1800, 70, 0.01)
    assert not cap.allows(1820, 70, 0.01)
    assert cap.room(0, 0.0) == math.inf


@given(
    budget=st.floats(1, 1e4),
    reserve=st.floats(0, 1),
    price=st.floats(1e-5, 1e-1),
    unit=st.sampled_from([1.0, 60.0]),
    jitter=st.lists(st.floats(0, 1), min_size=1, max_size=20),
    lives=st.lists(st.floats(60, 50_000), min_size=1, max_size=5),
)
def test_the_budget_is_never_passed(
    budget: float, reserve: float, price: float, unit: float, jitter: list[float], lives: list[float]
) -> None:
    """Machines that are taken at any time, looks that come late by up to a poll, started units that are paid whole.

    What is really paid until the last machine is off, the reserve besides, stays below the budget: unless it was
    too small for the first look.
    """
    save, poll, stop = 20.0, 10.0, 30.0
    cap = Cap(budget, reserve, save, poll, stop + unit)  # the last started unit belongs to the way out
    paid = 0.0  # of machines that are gone
    for life in lives:
        if cap.room(paid, price) <= 0:
            break  # no further machine is rented
        up, turn = 0.0, 0
        while up < life:
            if cap.room(paid + spent_on(up, price, unit), price) <= 0:
                up += save + stop
                break
            up += poll * (1 - jitter[turn % len(jitter)] / 2)
            turn += 1
        paid += spent_on(up, price, unit)
    assert paid <= budget - reserve + 1e-9 * budget or paid <= spent_on(save + stop, price, unit)


# --- following a log ----------------------------------------------------------------------------------------


def test_a_log_is_followed(tmp_path: Path) -> None:
    """New records, a torn last line, a resume that goes back, pauses between them by our own clock."""
    path = tmp_path / "log.jsonl"
    now = [100.0]
    tail = Tail(path, "loss", lambda: now[0])
    assert tail.read().records == 0
    by_hand(path, resumed(1, 0), record(1, 0, loss=3.0), record(1, 1, loss=2.0))
    assert (tail.read().step, tail.progress.records, tail.progress.at) == (1, 2, 100.0)
    whole = path.read_bytes()
    by_hand(path, resumed(1, 0), *(record(1, s, loss=3.0 - s) for s in range(4)), resumed(2, 2))
    assert path.read_bytes().startswith(whole)
    path.write_bytes(path.read_bytes() + b'{"step": 2, "atte')
    now[0] = 110.0
    p = tail.read()
    assert (p.step, list(p.pauses), list(p.values)[-1]) == (1, [5.0, 5.0], (3, 0.0))


# --- one look -------------------------------------------------------------------------------------------------


def test_one_look_at_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that a process has: no alarm; given back, nobody trains; NaN is seen."""
    monkeypatch.delenv("LOADSHEET_NOTICE", raising=False)
    directory = RunDirectory.open(tmp_path, {"watched": 1})
    attempt(directory.log_path, 1, 0, 1, lambda _: math.nan)
    watcher = Watcher(directory.path, ask_gpus=lambda: [Draw(0.9, 1.0)])
    look = watcher.look()
    assert [f.id for f in look.findings] == ["loss.finite"]
    assert look.unknown == ()
    directory.close()
    assert {f.id for f in watcher.look().findings} == {"loss.finite", "process"}
    assert Watcher(directory.path, ask_gpus=lambda: None).look().unknown != ()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"attempts": {"x": 1}}', '{"attempts": {"1": []}}', "[" * 5000]
)
def test_measured_figures_may_be_damaged(tmp_path: Path, text: str) -> None:
    """A file that makes no sense says nothing, and ends nothing."""
    (tmp_path / "measured.json").write_text(text)
    assert Watcher(tmp_path, ask_gpus=lambda: None).look().step == -1


# --- a training, watched ---------------------------------------------------------------------------------------

TRAIN = """
import sys, time, torch, loadsheet as ls
model = torch.nn.Linear(4, 4)
run = ls.Run.open(sys.argv[1], {"kind": "watched"})
run.keep(model=model)
for step in run.steps(int(sys.argv[2]), checkpoint_every=5):
    run.log(loss=1.0)
    time.sleep(0.01)
"""


def _watch(root: Path, steps: int, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loadsheet", "watch", "--runs", str(root), "--json", *options, "--",
         sys.executable, "-c", TRAIN, str(root), str(steps)],
        env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def test_a_command_is_stopped_before_the_budget_is_passed(tmp_path: Path) -> None:
    """Ten hours are paid for and the next checkpoint is a thousand away: the run saves and ends with 75."""
    root = tmp_path / "runs"
    with open("/proc/uptime") as file:
        hours = float(file.read().split()[0]) / 3600
    money = ["--price", "1", "--budget", f"{hours + 10:.3f}", "--interval", "1000h", "--poll", "0.2s"]
    done = _watch(root, 10**9, *money, "--journal", str(tmp_path / "journal"))
    assert done.returncode == 75, done.stderr
    looks = [json.loads(line) for line in done.stdout.splitlines()]
    assert [look["stop"] is None for look in looks] == [True] * (len(looks) - 1) + [False]
    assert hours <= looks[-1]["spent"] <= hours + 1
    path = next(root.glob("*/log.jsonl")).parent
    assert max(int(p.name[5:]) for p in (path / "checkpoints").glob("step-*")) > 0
    assert '"stopped"' in (path / "log.jsonl").read_text()


def test_a_command_that_ends_by_itself(tmp_path: Path) -> None:
    """Its exit status is ours, and the machine is shut down when that was asked for."""
    programs = tmp_path / "bin"
    programs.mkdir()
    said = tmp_path / "said"
    (programs / "shutdown").write_text(f'#!/bin/sh\necho "$@" >> {said}\n')
    (programs / "shutdown").chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    done = _watch(
        tmp_path / "runs", 20, "--poll", "0.1s", "--then-shutdown", "--dead-man", "30min", PATH=path
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["done"]
    lines = said.read_text().splitlines()
    assert [line.split()[:2] for line in lines] == [["-h", "+30"], ["-h", "now"]]


def test_a_command_without_a_run(tmp_path: Path) -> None:
    """Nothing was watched, and that is said."""
    done = subprocess.run(
        [sys.executable, "-m", "loadsheet", "watch", "--runs", str(tmp_path),
         "--", sys.executable, "-c", "raise SystemExit(3)"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 3
    assert "nothing was watched" in done.stderr


def test_a_download_before_the_run_costs_as_well(tmp_path: Path) -> None:
    """The cap holds from the start on: a command that opens no run is stopped when the money is needed for that."""
    uptime = iter(range(100, 10_000, 100))
    meter = Meter(tmp_path / "journal", 1.0, now=lambda: ("a", float(next(uptime))))
    cap = Cap(budget=1000, save=0, poll=0, stop=250)
    child = subprocess.Popen(["sleep", "600"])
    settings = {"poll": 0.01, "save": 0.0, "stop": 60.0, "currency": ""}
    assert _wait_for_run(str(tmp_path), None, child, 0.0, meter, cap, settings) is None
    assert child.returncode == -signal.SIGTERM
    assert next(uptime) == 900  # stopped at 800: 800 + 250 is beyond 1000


def test_stopping_what_runs_beside(tmp_path: Path) -> None:
    """The owner of the lock gets SIGTERM; one that does not obey, SIGKILL; a dead one is nobody."""
    program = "import sys, time, signal\nfrom loadsheet.run.directory import RunDirectory\n"
    program += (
        "d = RunDirectory.open(sys.argv[1], {})\nif len(sys.argv) > 2: signal.signal(15, signal.SIG_IGN)\n"
    )
    program += "print(d.path, flush=True)\ntime.sleep(600)"
    for more, ended in (([], -signal.SIGTERM), (["deaf"], -signal.SIGKILL)):
        root = tmp_path / str(ended)
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(root), *more], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        path = Path(process.stdout.readline().strip())
        process.stdout.close()
        pid = act.owner(path)
        assert pid == process.pid
        assert act.stop(pid, lambda p=process: p.poll() is None, 1.0) == (not more)  # type: ignore[misc]
        assert process.wait() == ended
        assert act.owner(path) is None


def test_a_training_elsewhere_is_not_stopped_here(tmp_path: Path) -> None:
    """A process id means something on its own machine only."""
    run_ = RunDirectory.open(tmp_path, {})
    (run_.path / "lock").write_text(json.dumps({"pid": os.getpid(), "host": "elsewhere"}))
    with pytest.raises(act.CannotStop, match="elsewhere"):
        act.owner(run_.path)
    run_.close()


# --- the command line ---------------------------------------------------------------------------------------------


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    import torch

    with ls.Run.open(tmp_path / "runs", {"seed": 0}, progress=False) as made:
        made.keep(model=torch.nn.Linear(2, 2))
        for _ in made.steps(3):
            made.log(loss=1.0)
        return made.path


def test_once(finished: Path) -> None:
    """A run that is done: status 0, the newest found by itself; one that is not and that nobody has: status 1."""
    root = str(finished.parent)
    result = run("watch", "--once", "--runs", root)
    assert (result.exit_code, "done" in result.stdout) == (0, True), result.output
    (finished / "done.json").unlink()
    result = run("watch", "--once", "--runs", root, "--run", finished.name[:6], "--json")
    found: dict[str, Any] = json.loads(result.stdout)
    assert (result.exit_code, [f["id"] for f in found["findings"]]) == (1, ["process"])
    assert found["step"] == 2


def test_bad_usage(tmp_path: Path) -> None:
    """One line and a hint."""
    refused("watch", "--once", "--runs", str(tmp_path / "none"), words="no run in")
    result = run("watch", "--runs", str(tmp_path / "none"), "--start", "0s")
    assert (result.exit_code, "no run in" in result.stderr) == (2, True)
    refused("watch", "--once", "--budget", "5", words="no --price")
    result = run("watch", "--runs", str(tmp_path / "r"), "--price", "1000000", "--budget", "1", "--", "true")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nothing was started" in result.stderr
    refused("watch", "--once", "--poll", "0", words="--poll")
    refused("watch", "--once", "--", "true", words="--once")
    refused("watch", "--", str(tmp_path / "nothing-here"), words="no such file")
    refused("watch", "--", words="nothing after `--`")
    refused("watch", "--once", "--", words="nothing after `--`")
