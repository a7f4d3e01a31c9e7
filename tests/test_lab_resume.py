"""The lecture's fourth experiment: which resumes give the same bits, and that a wrong one is noticed."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

from loadsheet import lab
from loadsheet.cli import main
from loadsheet.lab import resume
from loadsheet.lab.report import Report


@pytest.fixture(scope="module")
def report() -> Report:
    """The experiment, carried out once."""
    return lab.run(4)


#: what is restored -> (bitwise equal, rate of the first step, the first step that differs): the lecture says
#: which are equal; the rates follow from warm-up 60 and a cosine to 600 at 3e-3, by hand; a loss is computed
#: before the update, so what only changes updates is seen a step later
EXPECTED = {
    "complete, by `loadsheet.Run`": (True, 0.00252936, None),
    "complete, by hand": (True, 0.00252936, None),
    "no optimizer": (False, 5e-5, 202),
    "no scheduler": (False, 0.00252936, 203),
    "no random state": (False, 0.00252936, 201),
    "no optimizer, no random state": (False, 5e-5, 201),
    "no optimizer, no scheduler": (False, 5e-5, 202),
    "weights only": (False, 5e-5, 201),
    "complete, scheduler built last": (False, 5e-5, 202),
}


def test_the_table(report: Report) -> None:
    """Complete states give the same bits, everything else another model, and no row differs in more than that."""
    table = report.sections[1].table
    assert table is not None
    found = {}
    for name, (_, difference, same, first, differs) in table.rows[1:]:
        assert isinstance(first, float)
        found[name] = (same, float(f"{first:.6g}"), differs)
        assert (difference == 0) == same
        assert difference is not None
        assert abs(difference) < 0.05  # "only a little off": nobody would see it
    assert found == EXPECTED


def test_the_model(report: Report) -> None:
    """28,376 parameters: V = 24, a window of 8, d = 24, hidden 128."""
    assert report["parameters"].measured == report["parameters"].ours == 28_376
    assert (report["start"].measured, report["lost"].measured) == (200, 49)
    assert report.failed == ()


def test_learns(report: Report) -> None:
    """The loss is far below that of guessing, ln 24, so there is something to lose."""
    table = report.sections[1].table
    assert table is not None
    assert float(table.rows[0][1][0] or 9) < 0.2 * math.log(24)


def test_a_forgotten_state_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the run did not restore the random state, the experiment would say so and exit with 1."""
    true = resume.through_the_run

    def forgetful() -> tuple[resume.Ending, int, int]:
        ending, start, lost = true()
        return replace(ending, weights=torch.nextafter(ending.weights, torch.tensor(9.0))), start, lost

    monkeypatch.setattr(resume, "through_the_run", forgetful)
    found = CliRunner().invoke(main, ["lab", "4", "--json"])
    assert found.exit_code == 1
    assert json.loads(found.stdout)["failed"] == ["same.complete, by `loadsheet.Run`"]
