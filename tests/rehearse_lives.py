"""Lives for the tests of rehearsals: scripts forked from a server that has imported PyTorch already."""

from __future__ import annotations

import multiprocessing
import os
import random
import runpy
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torture.killing import start_server

from loadsheet.cloud.rehearse.process import Lives

CONTEXT = multiprocessing.get_context("forkserver")
PATIENCE = 300.0  # seconds, for what must happen: only how long a failure takes


def _script(words: list[str], environment: dict[str, str], directory: str, output: str) -> None:
    os.setsid()
    fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    random.seed()  # else each would draw what the server would
    torch.seed()
    sys.argv = words
    sys.path.insert(0, directory)
    try:
        runpy.run_path(words[0], run_name="__main__")
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    finally:
        sys.stdout.flush()


class Process:
    """A forked life, to be treated as one of `subprocess`."""

    def __init__(self, process: Any) -> None:
        self.process = process
        self.pid = process.pid

    def poll(self) -> int | None:
        code: int | None = self.process.exitcode
        return code

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("script", timeout or 0)
        return code

    def terminate(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class Forked(Lives):
    """`python SCRIPT ...` from the server: a start takes a tenth of a second instead of many."""

    def spawn(
        self, command: Sequence[str], environment: Mapping[str, str], directory: Path, output: Path
    ) -> Any:
        arguments = (list(command[1:]), dict(environment), str(directory), str(output))
        process = CONTEXT.Process(target=_script, args=arguments)
        process.start()
        return Process(process)


def begin() -> None:
    """Start the server, so that it is no orphan of a rehearsal."""
    start_server()
