"""Every pair of ways to train, interrupted and resumed, ends bit for bit as it does uninterrupted."""

from __future__ import annotations

import json
import shutil
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
from torture.killing import columns
from torture.programs import Crash, Spec, train

from loadsheet.run.reading import read_events

WAYS: dict[str, tuple[Any, ...]] = {
    "optimizer": ("sgd", "sgd-fused", "adam", "adam-fused", "adamw", "adamw-fused"),
    "scheduler": ("lambda", "onecycle", "cosine", "plateau"),
    "workers": (0, 2, None),
    "accumulation": (1, 3),
    "amp": (False, True),
}


def pairwise(ways: dict[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Few combinations that hold every pair of values of two different ways: greedily, the best one next."""
    names = list(ways)
    everything = [dict(zip(names, values, strict=True)) for values in product(*ways.values())]

    def pairs(one: dict[str, Any]) -> set[Any]:
        return {((a, one[a]), (b, one[b])) for a, b in combinations(names, 2)}

    missing = set().union(*map(pairs, everything))
    chosen = []
    while missing:
        best = max(everything, key=lambda one: len(pairs(one) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return chosen


@pytest.mark.parametrize("ways", pairwise(WAYS), ids=lambda w: "-".join(map(str, w.values())))
def test_resumes_bit_for_bit(ways: dict[str, Any], tmp_path: Path) -> None:
    """Ended after step 12, resumed from 10, ended after 16, resumed from 15: the same digest and log."""
    check(Spec(**ways, steps=20), tmp_path)


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning:torch")
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_resumes_bit_for_bit_compiled(tmp_path: Path) -> None:
    """With `torch.compile` too."""
    check(Spec(compiled=True, scheduler="sequential", steps=20), tmp_path)


def check(spec: Spec, folder: Path) -> None:
    """Uninterrupted against twice interrupted."""
    train(str(folder / "whole"), spec, str(folder / "whole.json"))
    for crash_at in (12, 16):
        with pytest.raises(Crash):
            train(str(folder / "cut"), spec, str(folder / "cut.json"), crash_at)
    train(str(folder / "cut"), spec, str(folder / "cut.json"))
    (path,) = (folder / "cut").iterdir()
    assert [e["from"] for e in read_events(path) if e["event"] == "resume"] == [0, 10, 15]
    assert json.loads((folder / "cut.json").read_text()) == json.loads((folder / "whole.json").read_text())
    assert columns(folder / "cut") == columns(folder / "whole")
