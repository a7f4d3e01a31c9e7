"""The session of docs/close.md: a run that was recorded once is signed and closed anew, by today's code.

The folder holds the model, the machine as it was measured, and what the run left (log, measured.json). Its sheet
is signed when the document is made, so that the page shows what the program says now; only the time of the signing is
the recorded one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import docs

DATA = Path(__file__).parents[1] / "docs" / "data" / "closed-run"
SIGN = (
    "loadsheet sign small --gpu machine.json --precision fp32 --batch 4 --seq 128 --stack hf --steps 300 "
    "--checkpoint-every 100 --price 4USD --out sheet.json"
)


def shell(*commands: str, pick: tuple[str, ...] = ()) -> None:
    """A session in the folder of the recorded run; `pick`: of each answer only the paragraph that begins so."""
    with _folder():
        if not pick:
            docs.shell(*commands)
            return
        parts = []
        for command, word in zip(commands, pick, strict=True):
            answer = docs.run(command, 0).splitlines()
            begin = next(n for n, line in enumerate(answer) if line.startswith(word))
            end = next(
                (n for n in range(begin + 1, len(answer)) if not answer[n].startswith(" ")), len(answer)
            )
            parts.append("\n".join([f"$ {command}", *(["…"] if begin else []), *answer[begin:end]]))
        docs.fence("\n\n".join(parts), "console")


@contextlib.contextmanager
def _folder() -> Iterator[None]:
    """A copy of the recorded folder to stand in, the run's sheet signed."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "here"
        shutil.copytree(DATA, folder)
        os.chdir(folder)
        try:
            docs.run(SIGN, 0)
            signed = json.loads(Path("sheet.json").read_text(encoding="utf-8"))
            (run,) = Path("runs").iterdir()
            first = json.loads((run / "log.jsonl").read_text(encoding="utf-8").partition("\n")[0])
            signed["signed"]["time"] = first["time"] - 600
            (run / "sheet.json").write_text(json.dumps(signed), encoding="utf-8")
            Path("sheet.json").unlink()
            yield
        finally:
            os.chdir(before)
