"""The session of docs/export.md: a sheet is signed in a folder of its own, and exported."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import docs

SIGN = "loadsheet sign llama-3-8b --gpu a100-sxm-80gb --task lora --steps 1000 --price 2USD --out sheet.json"
EXPORT = 'loadsheet export slurm sheet.json --command "python train.py" --partition gpu'


def session() -> None:
    """What the program writes for Slurm, with its remarks."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            docs.run(SIGN, 0)
            docs.shell(EXPORT)
        finally:
            os.chdir(before)
