"""What a job file tells a training script through its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("msgspec")

import loadsheet as ls  # noqa: E402
from loadsheet.cloud.export.job import Job  # noqa: E402
from loadsheet.run.directory import MIRROR_VARIABLE, ROOT_VARIABLE  # noqa: E402


def _train(root: Path, **options: str) -> float:
    run = ls.Run.open(root, {"seed": 0}, progress=False, **options)  # type: ignore[arg-type]
    model = torch.nn.Linear(2, 1)
    run.keep(model=model)
    for _ in run.steps(2, checkpoint_every=1):
        with torch.no_grad():
            model.weight += 1
    run.close()
    return float(model.weight.detach().sum())


def test_the_names_are_those_that_a_run_reads() -> None:
    """LOADSHEET_MIRROR for a mirror, LOADSHEET_RUNS_ROOT for a volume."""
    base = {
        "engine": "k8s", "name": "x", "command": ("x",), "setup": (), "gpus": 0, "gpu_name": None, "cpus": 1, "ram": 1,
        "disk": 1, "time": 60, "grace": 30, "price_cap": None, "image": None, "workdir": None, "region": None,
        "spot": None,
    }  # fmt: skip
    one = Job(**base, mirror="s3://b", volume=None, volume_path=None)  # type: ignore[arg-type]
    other = Job(**base, mirror=None, volume="v", volume_path="/v")  # type: ignore[arg-type]
    assert one.environment == {MIRROR_VARIABLE: "s3://b"}
    assert other.environment == {ROOT_VARIABLE: "/v/runs"}


def test_a_mirror_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that names no mirror uses this one, and goes on from it where its disk is empty."""
    monkeypatch.setenv(MIRROR_VARIABLE, str(tmp_path / "mirror"))
    trained = _train(tmp_path / "one")
    (copy,) = (tmp_path / "mirror").iterdir()
    assert (copy / "checkpoints").is_dir()
    assert _train(tmp_path / "two") == trained  # done there, so restored and not trained again


def test_a_mirror_that_the_script_names_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the code says is what was meant."""
    monkeypatch.setenv(MIRROR_VARIABLE, str(tmp_path / "other"))
    _train(tmp_path / "one", mirror=str(tmp_path / "mirror"))
    assert (tmp_path / "mirror").exists()
    assert not (tmp_path / "other").exists()


@pytest.mark.filterwarnings("ignore:.*mirror left out.*")
def test_a_rehearsal_does_not_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the root is another one, what is tried out reaches no mirror."""
    monkeypatch.setenv(MIRROR_VARIABLE, str(tmp_path / "mirror"))
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path / "root"))
    _train(tmp_path / "one")
    assert not (tmp_path / "mirror").exists()
