"""Scripts that must end: each in a process of its own, in time, and with nobody left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from torture.killing import living

#: seconds: far more than any of these processes needs, far less than those that hung did
LIMIT = 60

BEGIN = """
import multiprocessing, os, signal, subprocess, sys, threading, time
import torch
import loadsheet as ls
from loadsheet.run import batches, leaving
fork = multiprocessing.get_context("fork")
run = ls.Run.open(sys.argv[1], {}, notice=None)
"""


def ended(code: str, root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The process of a script, which must be over in time and leave nobody."""
    process = subprocess.Popen(
        [sys.executable, "-c", BEGIN + code, str(root), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=LIMIT)
    finally:
        left = living(process.pid)
        if left:
            os.killpg(process.pid, signal.SIGKILL)
    assert left == []
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)
