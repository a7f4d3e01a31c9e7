"""`import loadsheet` and `loadsheet --help` start at once: they load none of the heavy libraries.

Each check runs in a process of its own under `-X importtime`, which lists every module that is really
loaded, however it is reached.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"msgspec", "numpy", "rich", "starlette", "torch"}

IMPORT = "import loadsheet"
HELP = "import sys; sys.argv = ['loadsheet', '--help']; from loadsheet.cli import main; main()"


def run(code: str, first_on_path: Path | None = None) -> tuple[set[str], str]:
    """The top-level packages that a fresh interpreter loads for `code`, and what it prints."""
    path = [str(first_on_path)] if first_on_path else []
    path += filter(None, [os.environ.get("PYTHONPATH")])
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code],
        capture_output=True,
        check=False,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONUTF8": "1"},
        timeout=60,
    )
    timings = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    said = [line for line in done.stderr.splitlines() if line not in timings]
    assert done.returncode == 0, "\n".join(said)
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in timings}, done.stdout


def test_import_loads_nothing_heavy() -> None:
    """`import loadsheet` loads itself and no heavy library."""
    packages, _ = run(IMPORT)
    assert "loadsheet" in packages
    assert packages & HEAVY == set()


def test_help_loads_nothing_heavy() -> None:
    """`loadsheet --help` prints the help and loads no heavy library."""
    packages, printed = run(HELP)
    assert printed.startswith("Usage: loadsheet")
    assert packages & HEAVY == set()


@pytest.mark.parametrize("name", sorted(HEAVY))
def test_the_guard_catches_a_heavy_import(name: str, tmp_path: Path) -> None:
    """An import added anywhere, here inside the package's own process, is seen and named."""
    (tmp_path / f"{name}.py").write_text("", encoding="utf-8")  # stands in for the real one, installed or not
    packages, _ = run(f"{IMPORT}\nimport {name}", first_on_path=tmp_path)
    assert packages & HEAVY == {name}


def test_the_guard_catches_a_submodule_behind_a_function() -> None:
    """A lazy import of a submodule counts as soon as it happens."""
    packages, _ = run(f"{IMPORT}\ndef show():\n    import rich.table\nshow()")
    assert packages & HEAVY == {"rich"}
