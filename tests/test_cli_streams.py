"""The command line as a process: pipes, terminals, closed and full outputs, bare environments."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

_SOURCE = str(Path(__file__).parent.parent / "src")
_FITS = "plan gpt2 --gpu h100-sxm"
_TOO_LARGE = "plan gpt2 --gpu t4 --batch 1M"


def _environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "VIRTUAL_ENV", "SYSTEMROOT")}
    return {**kept, "PYTHONPATH": _SOURCE, **more}


def shell(
    script: str, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a shell script in which `loadsheet` is this package."""
    done = subprocess.run(
        ["bash", "-c", f'loadsheet() {{ "{sys.executable}" -m loadsheet "$@"; }}; {script}'],
        env=_environment() if environment is None else environment,
        cwd=folder,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def terminal(words: str, **environment: str) -> tuple[int, str]:
    """Exit status and output on a terminal of its own, 90 columns wide."""
    leader, follower = pty.openpty()
    environment = _environment(**{"TERM": "xterm", **environment})
    if "COLUMNS" not in environment:
        import fcntl
        import struct
        import termios

        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 90, 0, 0))
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), follower)
    command = [sys.executable, "-m", "loadsheet", *words.split()]
    with subprocess.Popen(command, env=environment, **streams) as process:
        os.close(follower)
        output = b""
        while True:
            try:
                chunk = os.read(leader, 65536)
            except OSError:  # the other end is closed: the process has ended
                break
            if not chunk:
                break
            output += chunk
    os.close(leader)
    return process.returncode, output.decode().replace("\r\n", "\n")


def test_module_prints_a_sheet() -> None:
    """`python -m loadsheet` answers on stdout in UTF-8, whatever the locale, and keeps quiet on stderr."""
    code, out, err = shell(
        f"loadsheet {_FITS}", {**_environment(), "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    )
    assert (code, err) == (0, "")
    assert out.startswith("gpt2 · train* · ")
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("question", "reader", "code"),
    [(_FITS, "head -1", 0), (_TOO_LARGE, "head -1", 1), ("models", "true", 0), ("plan --help", "true", 0)],
)
def test_a_reader_that_leaves_early(question: str, reader: str, code: int) -> None:
    """`| head` neither shows a traceback nor changes the answer's exit status."""
    script = f"loadsheet {question} | {reader} >/dev/null; echo ${{PIPESTATUS[0]}}"
    assert shell(script)[1].split() == [str(code)]


@pytest.mark.parametrize(
    ("question", "redirection", "code"),
    [
        (_FITS, ">&-", 0),
        (_TOO_LARGE, ">&-", 1),
        (_TOO_LARGE, ">&- 2>&-", 1),
        ("plan nope --gpu t4", "2>&-", 2),
        (_FITS, ">/dev/full", 2),
        ("plan --help", ">/dev/full", 2),
        (_TOO_LARGE, ">/dev/full 2>/dev/full", 2),
    ],
)
def test_closed_and_full_outputs(question: str, redirection: str, code: int) -> None:
    """With nobody to read it, the exit status is still the answer; a full disk is an error."""
    if "full" in redirection and not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    found, _, err = shell(f"loadsheet {question} {redirection}")
    assert found == code
    if redirection == ">/dev/full":
        assert "error: standard output: got no space left on device" in err


def test_bare_environment(tmp_path: Path) -> None:
    """No HOME, no PATH, no TERM, a folder that is gone or may not be written: the same sheet."""
    bare = {"PYTHONPATH": _SOURCE}
    gone = tmp_path / "gone"
    script = f'cd "{gone}" && rmdir "{gone}" && loadsheet {_FITS}; loadsheet params config.json; loadsheet params .'
    gone.mkdir()
    code, out, err = shell(script, {**bare, "PATH": os.environ["PATH"]})
    assert code == 2
    assert out == shell(f"loadsheet {_FITS}", bare)[1]
    heads = [line.split(":")[0] for line in err.splitlines() if ":" in line]
    assert [head for head in heads if head in ("error", "hint")] == ["error", "hint"] * 2
    before = sorted(tmp_path.iterdir())
    tmp_path.chmod(0o500)
    try:
        assert shell(f"loadsheet {_FITS}", folder=tmp_path)[0] == 0
    finally:
        tmp_path.chmod(0o700)
    assert before == sorted(tmp_path.iterdir())


def test_colour_only_on_a_terminal_that_wants_it() -> None:
    """The verdict alone is coloured, on a terminal, unless NO_COLOR or TERM=dumb; the words are the same."""
    code, coloured = terminal(_TOO_LARGE)
    assert code == 1
    assert coloured.count("\x1b[31m") == 1
    plain = coloured.replace("\x1b[31m\x1b[1m", "").replace("\x1b[0m", "")
    assert (1, plain) == terminal(_TOO_LARGE, NO_COLOR="1")
    assert "\x1b" not in plain


def test_width_of_a_terminal() -> None:
    """A terminal of 90 columns gets lines of at most 90; COLUMNS overrules it."""
    assert 80 < max(map(len, terminal(_FITS, NO_COLOR="1")[1].splitlines())) <= 90
    assert 90 < max(map(len, terminal(_FITS, NO_COLOR="1", COLUMNS="120")[1].splitlines())) <= 120
