"""`loadsheet rehearse`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import click

from loadsheet.cli.output import coloured, show, show_json, warn, width
from loadsheet.cli.progress import Progress
from loadsheet.errors import BadInput, shorten
from loadsheet.text import wrap
from loadsheet.units import format_duration, parse_duration

_COLOURS = {"ok": "green", "WARN": "yellow", "FAIL": "red", "unknown": "cyan"}


@click.command(
    name="rehearse", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.option("--timeout", help="What one start of the command may take; there are five. [10min]")
@click.option("--notice", help="Time from a notice to the end. [120s as AWS; Google, Azure: 30s]")
@click.option("--scratch", type=click.Path(), help="Work in this new folder, and leave it there.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("line", nargs=-1, type=click.UNPROCESSED)
def command(
    timeout: str | None, notice: str | None, scratch: str | None, as_json: bool, line: tuple[str, ...]
) -> int:
    """The whole pipeline on a small scale: train, be told to go, be killed, go on, compare bit for bit.

    `loadsheet rehearse -- python train.py --tiny` runs the command five times: once to its end; once until a
    notice that the machine goes; once until SIGKILL; once to the end; once more when all is done. Its runs are
    kept in a scratch folder, so your own are not touched, and there is no mirror. What it writes beside its
    runs it writes into your folder, as ever: the page names it. It takes five times the start-up and about two
    trainings. What was found stays in .loadsheet/rehearsal.json, for `preflight`, `odds` and `plan --mtbf`.

    Exit status: 0 passed, 1 failed, 2 usage.
    """
    if line and line[0] == "--":
        line = line[1:]
    if not line or line[0].startswith("-"):
        raise BadInput(
            f"rehearse: got {shorten(line[0]) if line else 'no command'}, expected a command after `--`",
            "such as `loadsheet rehearse -- python train.py --tiny`; `loadsheet rehearse --help` says more",
        )
    if shutil.which(line[0]) is None:
        raise BadInput(
            f"rehearse: got {shorten(line[0])}, expected a program that can be run",
            "loadsheet rehearse -- python train.py --tiny",
        )
    limit = _above_0(timeout, "10min", "--timeout")
    deadline = _above_0(notice, "120s", "--notice")

    with _interrupts_wait():
        from loadsheet.cloud.context import Context
        from loadsheet.cloud.rehearse.carry_out import Rehearsal, environment
        from loadsheet.cloud.rehearse.report import (
            commit_of,
            keep_save,
            lines,
            not_come_to,
            shown_command,
            to_json,
        )
        from loadsheet.cloud.rehearse.scratch import Scratch
        from loadsheet.run.directory import write_whole

    directory = Path.cwd()
    notebook = Context(directory).notebook
    begun = time.monotonic()
    progress = Progress()
    place = _scratch(scratch, notebook)
    try:  # from here on, so that Ctrl-C leaves no folder behind
        commit, dirty = commit_of(directory)
        rehearsal = Rehearsal(line, directory, Scratch(place), environment(), timeout=limit, notice=deadline)
        if not as_json:
            show(f"rehearsal of `{shown_command(line)}`")
        progress("training, first to its end")
        for stage in rehearsal.carry_out():
            if not as_json:
                progress.pause()
                for text in lines(stage, width()):
                    show(_styled(text))
            progress(f"after {stage.id}")
    finally:
        progress.close()
        if scratch is None:
            shutil.rmtree(place, ignore_errors=True)
    found = to_json(rehearsal, commit, dirty, time.monotonic() - begun)
    file = notebook / "rehearsal.json"
    keep_save(found, file)
    try:
        notebook.mkdir(exist_ok=True)
        write_whole(file, json.dumps(found, indent=1, allow_nan=False).encode() + b"\n")
    except OSError as error:
        warn(f"{file}: not written: {(error.strerror or str(error)).lower()}")
    if as_json:
        show_json(found)
    else:
        verdict = "passed" if rehearsal.passed else "FAILED"
        took = format_duration(found["seconds"])
        for text in not_come_to(rehearsal.stages, width()):
            show(_styled(text))
        if found["save_from"] is not None:
            earlier = shown_command(found["save_from"]["command"])
            for part in wrap(f"no save was measured: what one takes stays that of `{earlier}`", width()):
                show(part)
        show(f"\n{verdict} in {took}; written to {os.path.relpath(file)}")
    return 0 if rehearsal.passed else 1


@contextlib.contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Ctrl-C counts at the end of the block: imports of C extensions (torch asks for numpy) swallow its exception."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if pressed:
        raise KeyboardInterrupt


def _above_0(text: str | None, default: str, option: str) -> float:
    seconds = float(parse_duration(text or default, option))
    if seconds <= 0:
        raise BadInput(f"{option}: got {shorten(text)}, expected a duration above 0")
    return seconds


def _scratch(given: str | None, notebook: Path) -> Path:
    """A new folder on the disk of the code: what a save takes is measured there."""
    try:
        if given is None:
            notebook.mkdir(exist_ok=True)
            return Path(tempfile.mkdtemp(prefix="rehearsal-", dir=notebook))
        path = Path(given).absolute()
        path.mkdir()
    except OSError as error:
        what = "--scratch" if given else str(notebook)
        reason = (error.strerror or str(error)).lower()
        raise BadInput(f"{what}: got {reason}, expected a new folder in one that can be written") from None
    return path


def _styled(text: str) -> str:
    """A line with its state in colour, on a terminal."""
    word = text.split(" ", 1)[0]
    if coloured() and word in _COLOURS:
        return click.style(word, fg=_COLOURS[word], bold=word == "FAIL") + text[len(word) :]
    return text
