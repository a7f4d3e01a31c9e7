"""Programs that open a run in a process of their own, and the fingerprint as anyone can compute it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import textwrap
from pathlib import Path


def by_hand(text: str) -> str:
    """The fingerprint of a canonical text that was written down by hand."""
    return hashlib.sha256(text.encode()).hexdigest()[:10]


OPEN = textwrap.dedent("""
    import sys
    from loadsheet.errors import LoadsheetError
    from loadsheet.run.directory import RunDirectory
    try:
        run = RunDirectory.open(sys.argv[1], {}, wait=float(sys.argv[2]))
    except LoadsheetError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    print("attempt", run.attempt, flush=True)
""")
HOLD = OPEN + "sys.stdin.read()\n"
# the holder forks a loader worker, which lives on after it
FORK = OPEN + textwrap.dedent("""
    import os, time
    if os.fork() == 0:
        print("worker", os.getpid(), flush=True)
        time.sleep(600)
        os._exit(0)
    sys.stdin.read()
""")


def start(code: str, root: Path, wait: float = 0) -> subprocess.Popen[str]:
    """A process that opens the run, once it has said that it did."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(root), str(wait)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "attempt 1\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()
