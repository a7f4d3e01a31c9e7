"""Seventeen models as the hub has them: whole config.json files, with all the keys that do not matter here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import json_values, written
from terminal import answered, run

import loadsheet as ls
from loadsheet.errors import LoadsheetError

#: hub id -> {"params": what the hub counts in the weights, "config": config.json}
HUB: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "hub_configs.json").read_text(encoding="utf-8")
)["configs"]


@pytest.mark.parametrize("name", HUB)
def test_parameters_are_those_of_the_hub(name: str) -> None:
    """The count of a config is the count of the published weights, to the last parameter."""
    model = ls.model(HUB[name]["config"])
    assert HUB[name]["params"] == model.params == sum(model.split.values())
    assert model.active_params <= model.params
    assert len(model.defaulted) == len(set(model.defaulted)) or name == "EleutherAI/pythia-1b"


@pytest.mark.parametrize("name", HUB)
def test_every_task_is_planned(name: str, tmp_path: Path) -> None:
    """From its file, each model gives a sheet for each task; the model's own length bounds the default."""
    path = written(tmp_path, "config.json", json.dumps(HUB[name]["config"]).encode())
    limit = HUB[name]["config"].get("max_position_embeddings") or HUB[name]["config"]["n_positions"]
    peaks = {}
    for task in ("train", "lora", "qlora", "serve"):
        result = run("plan", str(path), "--gpu", "h100-sxm", "--task", task, "--json")
        sheet = json.loads(result.stdout)
        assert result.exit_code == (1 if sheet["verdict"] == "does_not_fit" else 0)
        assert sheet["recipe"]["seq"] == min(limit, 8192)
        assert sheet["model"]["params"] == HUB[name]["params"]
        assert sheet["model"]["name"] == tmp_path.name
        peaks[task] = sheet["memory"]["peak_bytes"]["mid"]
    assert peaks["serve"] < peaks["lora"] < peaks["train"]
    assert str(HUB[name]["params"]) in answered("params", str(path)).stdout.replace(",", "")


_KEYS = sorted({key for entry in HUB.values() for key in entry["config"]})


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.sampled_from(sorted(HUB)),
    st.dictionaries(st.sampled_from(_KEYS), json_values, max_size=3),
    st.booleans(),
)
def test_spoilt_configs_give_a_sheet_or_an_error(name: str, changes: dict[str, Any], drop: bool) -> None:
    """Whatever stands under its keys, a config gives a sound sheet or one of our errors, and nothing else."""
    config = {**HUB[name]["config"], **changes}
    if drop and changes:
        del config[next(iter(changes))]
    try:
        sheet = ls.plan(config, "h100-sxm", seq=128)
    except LoadsheetError:
        return
    assert sheet.model.params > 0
    assert sheet.to_json()
