"""How long things take: `make bench`, or `python bench/bench.py [--check] [--repeats N]`.

Whole processes are compared with other processes of the same run, turn by turn, so that a busy or slow
machine slows both sides: the targets are ratios of medians. Times inside one process are medians of
many repeats. `--check` exits 1 if a target is missed or a row could not be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter

MODEL, GPU = "llama-3-8b", "h100-sxm"
PLAN = ("plan", MODEL, "--gpu", GPU)

# What `accelerate estimate-memory` does once it has a config (accelerate.commands.estimate: its
# create_empty_model and gather_data); the command itself takes no folder and asks the hub first.
ACCELERATE = """
import sys
from accelerate import init_empty_weights
from accelerate.commands.estimate import estimate_training_usage
from accelerate.utils import calculate_maximum_sizes
from transformers import AutoConfig, AutoModel

config = AutoConfig.from_pretrained(sys.argv[1])
with init_empty_weights():
    model = AutoModel.from_config(config)
total, largest = calculate_maximum_sizes(model)
print(total, largest, [estimate_training_usage(total, d) for d in ("float32", "float16", "int8", "int4")])
"""

# Every preset read, built and counted, in a process that has done nothing before.
PRESETS = """
import time
from loadsheet.arch.read import _names, model
begin = time.perf_counter()
total = sum(model(name).params for name in _names())
print(time.perf_counter() - begin)
"""


@dataclass(frozen=True)
class Row:
    """One line of the table: what was measured, the figure, the target, and how the figure came about."""

    what: str
    measured: float | None
    target: float
    unit: str
    detail: str

    @property
    def met(self) -> bool:
        return self.measured is not None and self.measured <= self.target


def command() -> list[str]:
    """The console script beside this Python, else the module."""
    script = Path(sys.executable).with_name("loadsheet")
    return [str(script)] if script.exists() else [sys.executable, "-m", "loadsheet"]


def seconds_of(arguments: Sequence[str]) -> float:
    """Wall time of one process; its output is dropped, a crash is shown."""
    begin = perf_counter()
    done = subprocess.run(arguments, capture_output=True, check=False, encoding="utf-8", timeout=600)
    spent = perf_counter() - begin
    if done.returncode not in (0, 1):  # 1: the plan says that it does not fit
        raise RuntimeError(f"{' '.join(arguments[:4])}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return spent


def turns(left: Sequence[str], right: Sequence[str], repeats: int) -> tuple[float, float]:
    """Median seconds of two commands run in turns; the first turn fills the disk cache and is dropped."""
    pairs = [(seconds_of(left), seconds_of(right)) for _ in range(repeats + 1)][1:]
    return median(a for a, _ in pairs), median(b for _, b in pairs)


def ratio(
    what: str, left: Sequence[str], right: Sequence[str], target: float, repeats: int, names: str
) -> Row:
    """A row that compares two processes."""
    a, b = turns(left, right, repeats)
    ours, theirs = names.split(" / ")
    return Row(
        what, a / b, target, "×", f"{ours} {a * 1e3:.0f} ms / {theirs} {b * 1e3:.0f} ms, {repeats} turns"
    )


def inside(function: Callable[[], object], repeats: int) -> float:
    """Median seconds of a call in this process, after one call that fills the caches."""
    function()
    spent = []
    for _ in range(repeats):
        begin = perf_counter()
        function()
        spent.append(perf_counter() - begin)
    return median(spent)


def first_line(arguments: Sequence[str], folder: str) -> float:
    """Seconds from the start of a process to its first line; it is then read to its end."""
    begin = perf_counter()
    with subprocess.Popen(
        arguments, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        spent = perf_counter() - begin
        process.stdout.read()
    if not line:
        raise RuntimeError(f"{' '.join(arguments)}: no line, exit {process.returncode}")
    return spent


def repository(folder: str) -> None:
    """A repository of 2,000 files of 10 kB in two commits."""
    for number in range(2000):
        path = Path(folder, f"part{number % 20}", f"file{number}.py")
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"value_{number}_{line} = {line}\n" for line in range(500)), encoding="utf-8")
    git = ["git", "-c", "user.name=bench", "-c", "user.email=bench@example.com", "-C", folder]
    for words in (
        ["init", "-q"],
        ["add", "part1*"],
        ["commit", "-qm", "one"],
        ["add", "."],
        ["commit", "-qm", "two"],
    ):
        subprocess.run([*git, *words], check=True)


def preflight(repeats: int) -> Row:
    """How long one waits for the first line of preflight."""
    with tempfile.TemporaryDirectory() as folder:
        repository(folder)
        first = median([first_line([*command(), "preflight"], folder) for _ in range(repeats + 1)][1:])
    return Row(
        "loadsheet preflight, until its first line",
        first,
        1,
        "s",
        f"2,000 files, median of {repeats} processes",
    )


def rows(repeats: int) -> list[Row]:
    """All rows, the quick ones first."""
    from loadsheet import model, plan

    calls = 50 * repeats
    bare = inside(lambda: plan(MODEL, gpu=GPU), calls)
    full = inside(lambda: plan(MODEL, gpu=GPU).remedies, 2 * repeats)
    presets = [sys.executable, "-c", PRESETS]
    counted = median(float(subprocess.check_output(presets, encoding="utf-8")) for _ in range(repeats))
    out = [
        Row("plan, in process, without remedies", bare * 1e3, 1, "ms", f"median of {calls} calls"),
        Row("plan, in process, with remedies", full * 1e3, 10, "ms", f"median of {2 * repeats} calls"),
        Row("parameters of all presets together", counted * 1e3, 50, "ms", f"median of {repeats} fresh processes"),
        ratio(
            "loadsheet --help / import click", [*command(), "--help"], [sys.executable, "-c", "import click"],
            2.5, 3 * repeats, "help / click",
        ),
        preflight(repeats),
    ]  # fmt: skip
    missing = [name for name in ("accelerate", "transformers", "torch") if find_spec(name) is None]
    what = "loadsheet plan / accelerate's estimate"
    if missing:
        out.append(
            Row(what, None, 0.1, "×", f"not installed: {', '.join(missing)} (the `bench` extra has them)")
        )
        return out
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.json")
        config.write_text(json.dumps(model(MODEL).config, default=str), encoding="utf-8")
        ours, theirs = [*command(), *PLAN], [sys.executable, "-c", ACCELERATE, folder]
        out.append(ratio(what, ours, theirs, 0.1, repeats, "plan / accelerate"))
    return out


def show(table: list[Row]) -> None:
    """Print the rows: measured beside target."""
    width = max(len(row.what) for row in table)
    print(f"{'':{width}}  {'measured':>10}  {'target':>10}")
    for row in table:
        measured = "–" if row.measured is None else f"{row.measured:.3g} {row.unit}"
        mark = "" if row.met else "  MISSED" if row.measured is not None else "  NOT MEASURED"
        print(f"{row.what:{width}}  {measured:>10}  {f'≤ {row.target:g} {row.unit}':>10}  {row.detail}{mark}")


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed or not measured")
    parser.add_argument("--repeats", type=int, default=5, help="turns of the slow comparison [5]")
    options = parser.parse_args()
    os.environ["PYTHONUTF8"] = "1"
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    table = rows(max(options.repeats, 1))
    show(table)
    return int(options.check and not all(row.met for row in table))


if __name__ == "__main__":
    sys.exit(main())
