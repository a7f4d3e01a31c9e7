"""The job files for Kubernetes, dstack and SkyPilot: what the targets read in them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from export_sheets import COMMAND, ENGINES, exported, gpu_sheet, resealed
from terminal import refused, run

from loadsheet.cloud.export import Wish, make_job, read_facts
from loadsheet.cloud.machine import Machine
from loadsheet.errors import BadInput
from loadsheet.hardware import gpus

pyyaml = pytest.importorskip("yaml")


@pytest.fixture(scope="module")
def sheet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed sheet of one A100."""
    return gpu_sheet(tmp_path_factory.mktemp("sheet"))


def read(engine: str, sheet: Path, *options: str) -> Any:
    """The job as a YAML reader sees it."""
    return pyyaml.safe_load(exported(engine, str(sheet), *COMMAND, *ENGINES[engine], *options).stdout)


# --- Kubernetes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [(), ("--setup", "pip install -r requirements.txt"), ("--queue", "team", "--namespace", "mine"),
     ("--workdir", "/w"), ("--shm", "0"), ("--shm", "16GiB", "--service-account", "train.me"),
     ("--toleration", "nvidia.com/gpu", "--toleration", "pool=gpu:NoExecute")],
)  # fmt: skip
def test_kubernetes_schema(sheet: Path, options: tuple[str, ...]) -> None:
    """kubernetes-validate, strict, against the newest schemas it has, and two versions before."""
    validator = pytest.importorskip("kubernetes_validate")
    job = read("k8s", sheet, *options)
    for version in ("1.31", "1.34", validator.latest_version()):
        validator.validate(job, version, strict=True)


def test_kubernetes_rules_that_no_schema_has(sheet: Path) -> None:
    """What the API server checks in code (kubernetes.io, "Handling retriable and non-retriable pod failures")."""
    spec = read("k8s", sheet, "--queue", "team")["spec"]
    pod = spec["template"]["spec"]
    container = pod["containers"][0]
    assert pod["restartPolicy"] == "Never"  # podFailurePolicy needs it
    assert spec["podReplacementPolicy"] == "Failed"  # the only value beside a podFailurePolicy
    assert spec["suspend"] is True  # Kueue's: it starts the job
    for rule in spec["podFailurePolicy"]["rules"]:
        assert len(rule.keys() & {"onExitCodes", "onPodConditions"}) == 1
        codes = rule.get("onExitCodes")
        if codes:
            assert codes["containerName"] == container["name"]
            assert 0 not in codes["values"]  # not allowed with `In`
            assert codes["values"] == sorted(set(codes["values"])) == [75]
    assert spec["podFailurePolicy"]["rules"][0]["onPodConditions"][0]["type"] == "DisruptionTarget"
    resources = container["resources"]
    assert resources["requests"]["nvidia.com/gpu"] == resources["limits"]["nvidia.com/gpu"] == "1"
    assert container["volumeMounts"][0]["mountPath"] == "/checkpoints"
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    assert container["env"] == [{"name": "LOADSHEET_RUNS_ROOT", "value": "/checkpoints/runs"}]


def test_kubernetes_grace(sheet: Path) -> None:
    """At least 1.3 · save + step: 200 s of saving take 261 s, with a step below a second."""
    pod = read("k8s", sheet, "--save", "200s")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 261


def quantity(text: str) -> int:
    """Bytes of a size of Kubernetes."""
    assert text.endswith("Mi")
    return int(text[:-2]) << 20


def test_kubernetes_shared_memory(sheet: Path) -> None:
    """An emptyDir in memory at /dev/shm; what is written there counts against the container's memory (its docs)."""

    def asked(*options: str) -> tuple[Any, int, int]:
        pod = read("k8s", sheet, *options)["spec"]["template"]["spec"]
        resources = pod["containers"][0]["resources"]
        assert resources["requests"]["memory"] == resources["limits"]["memory"]
        mounted = {m["mountPath"]: m["name"] for m in pod["containers"][0]["volumeMounts"]}.get("/dev/shm")
        volume = next((v["emptyDir"] for v in pod["volumes"] if v["name"] == mounted), None)
        size = 0 if volume is None else quantity(volume["sizeLimit"])
        return volume, size, quantity(resources["limits"]["memory"])

    volume, size, memory = asked()
    assert (volume["medium"], size) == ("Memory", 8 << 30)  # ours: 1 GiB for each of 8 CPUs
    none, _, least = asked("--shm", "0")
    assert (none, memory - least) == (None, 8 << 30)
    assert asked("--shm", "20GiB")[1:] == (20 << 30, least + (20 << 30))
    assert asked("--cpus", "4")[1] == 4 << 30
    # a memory that was given is all there is
    assert asked("--ram", "64GiB")[1:] == (8 << 30, 64 << 30)
    assert asked("--ram", "12GiB")[1:] == (6 << 30, 12 << 30)
    job = ("export", "k8s", str(sheet), *COMMAND, *ENGINES["k8s"])
    refused(*job, "--ram", "12GiB", "--shm", "12GiB", words="--shm: got 12.00 GiB, expected less than --ram")
    refused(*job, "--shm", "8", words="--shm: got 8 bytes")


def test_shared_memory_is_said(sheet: Path) -> None:
    """In the file and on the page, with where it comes from; a default has a star."""
    for engine in ("k8s", "dstack"):
        done = exported(engine, str(sheet), *COMMAND, *ENGINES[engine])
        assert (
            "#   /dev/shm: 8 GiB (1 GiB for each CPU, as each may be a worker; a default of ours)"
            in done.stdout
        )
        assert "8 GiB /dev/shm*" in done.stderr
        given = exported(engine, str(sheet), *COMMAND, *ENGINES[engine], "--shm", "2GiB")
        assert "#   /dev/shm: 2 GiB (given)" in given.stdout
        assert "2 GiB /dev/shm ·" in given.stderr.replace("\n  ", " ")


def test_kubernetes_tolerations(sheet: Path) -> None:
    """As `kubectl taint` writes a taint (kubernetes.io, "Taints and Tolerations")."""
    taints = ("nvidia.com/gpu", "a/b=:NoSchedule", "pool=gpu:NoExecute")
    pod = read("k8s", sheet, *(word for taint in taints for word in ("--toleration", taint)))
    assert pod["spec"]["template"]["spec"]["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists"},
        {"key": "a/b", "operator": "Equal", "value": "", "effect": "NoSchedule"},
        {"key": "pool", "operator": "Equal", "value": "gpu", "effect": "NoExecute"},
    ]
    assert "tolerations" not in read("k8s", sheet)["spec"]["template"]["spec"]
    for taint in ("", ":NoSchedule", "a b", "a=b:Never", "a:b:NoExecute", "x\ny", "-a", "a/b/c"):
        job = ("export", "k8s", str(sheet), *COMMAND, *ENGINES["k8s"], "--toleration", taint)
        refused(*job, words="--toleration: got")


def test_kubernetes_service_account(sheet: Path) -> None:
    """Whose rights the pod has; a name of Kubernetes."""
    pod = read("k8s", sheet, "--service-account", "train")["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "train"
    job = ("export", "k8s", str(sheet), *COMMAND, *ENGINES["k8s"], "--service-account")
    for name in ("", "A", "a_b", "x\ny", "-a"):
        refused(*job, name, words="--service-account: got")


def test_kubernetes_exec(sheet: Path) -> None:
    """With setup lines a shell comes first, and gives way to the training, which then gets SIGTERM."""
    job = read("k8s", sheet, "--setup", "pip install -r requirements.txt")
    command = job["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[:2] == ["/bin/bash", "-c"]
    assert command[2].splitlines() == ["set -e", "pip install -r requirements.txt", 'exec "$$@"']
    assert command[3:] == ["train", "python", "train.py"]


# --- dstack, SkyPilot -------------------------------------------------------------------------------------------------


def test_dstack(sheet: Path) -> None:
    """The fields of dstack 0.22's task; the real parser reads it in `make integration`."""
    job = read("dstack", sheet, "--region", "aws/us-east-1", "--spot")
    assert job["type"] == "task"
    assert job["resources"]["gpu"] == "A100:80GB:1"
    # docs: 64 MB where nothing is said; the memory that is asked for has to hold it
    assert job["resources"]["shm_size"] == "8GB"
    without = read("dstack", sheet, "--shm", "0")["resources"]
    assert "shm_size" not in without
    more, least = (int(r["memory"].removesuffix("GB..")) for r in (job["resources"], without))
    assert more - least == 8
    assert (job["backends"], job["regions"], job["spot_policy"]) == (["aws"], ["us-east-1"], "spot")
    assert job["retry"]["on_events"] == ["no-capacity", "interruption"]  # `error` would retry a bug as well
    assert job["max_price"] == 2
    assert job["env"] == ["LOADSHEET_MIRROR=s3://bucket/runs"]
    assert re.fullmatch(r"\d+s", job["max_duration"])


def test_dstack_variables_are_refused(sheet: Path) -> None:
    """`${{ … }}` is dstack's own."""
    words = "expected none"
    refused("export", "dstack", str(sheet), "--command", "a '${{ x }}'", *ENGINES["dstack"], words=words)


@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize(("codes", "status", "starts"), [("75 0", 0, 2), ("3", 3, 1), ("75", 75, 21)])
def test_dstack_starts_again_in_place(
    tmp_path: Path, sheet: Path, shell: str, codes: str, status: int, starts: int
) -> None:
    """75 starts the training again, twenty times at most; other codes end the task; a failed setup too."""
    (tmp_path / "train").write_text(
        f'#!/bin/bash\necho >> "{tmp_path}/starts"\nn=$(wc -l < "{tmp_path}/starts")\ncodes=({codes})\n'
        'exit "${codes[$((n - 1))]:-75}"\n'
    )
    (tmp_path / "train").chmod(0o755)
    text = exported("dstack", str(sheet), "--command", str(tmp_path / "train"), *ENGINES["dstack"]).stdout
    script = " && ".join(["true", *pyyaml.safe_load(text)["commands"]])
    assert subprocess.run([shell, "-c", script], check=False, timeout=60).returncode == status
    assert len((tmp_path / "starts").read_text().splitlines()) == starts
    failed = " && ".join(["false", *pyyaml.safe_load(text)["commands"]])
    (tmp_path / "starts").unlink()
    assert subprocess.run([shell, "-c", failed], check=False, timeout=60).returncode == 1
    assert not (tmp_path / "starts").exists()


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_dstack_stops(tmp_path: Path, sheet: Path, shell: str) -> None:
    """dstack interrupts the shell: the training hears SIGTERM, saves, and is not started again."""
    (tmp_path / "train").write_text(
        f"#!/bin/bash\ntrap 'touch {tmp_path}/saved; exit 75' TERM\necho >> {tmp_path}/starts\n"
        f"touch {tmp_path}/began\nfor i in $(seq 600); do sleep 0.1; done\n"
    )
    (tmp_path / "train").chmod(0o755)
    text = exported("dstack", str(sheet), "--command", str(tmp_path / "train"), *ENGINES["dstack"]).stdout
    script = " && ".join(pyyaml.safe_load(text)["commands"]).replace("sleep 30", "sleep 0.2")
    process = subprocess.Popen([shell, "-c", script], start_new_session=True)
    end = time.monotonic() + 60
    while not (tmp_path / "began").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 75
    assert (tmp_path / "saved").exists()
    assert len((tmp_path / "starts").read_text().splitlines()) == 1


def test_sky(sheet: Path) -> None:
    """The fields of SkyPilot 0.14's task; the real parser reads it in `make integration`."""
    job = read("sky", sheet, "--region", "gcp/us-central1", "--setup", "pip install x")
    resources = job["resources"]
    assert resources["job_recovery"] == {"max_restarts_on_errors": 0, "recover_on_exit_codes": [75]}
    assert resources["accelerators"] == {"A100-80GB": 1}
    assert (resources["infra"], resources["use_spot"], resources["max_hourly_cost"]) == (
        "gcp/us-central1",
        False,
        2,
    )
    assert job["setup"] == "set -e\npip install x\n"
    assert "exec timeout --kill-after=" in job["run"]


def test_sky_time_cap(tmp_path: Path, sheet: Path) -> None:
    """Over the cap the training hears SIGTERM and saves with 75; the job ends with 124, which nobody recovers."""
    (tmp_path / "train").write_text(
        f'#!/bin/bash\ntrap "touch {tmp_path}/saved; exit 75" TERM\nfor i in $(seq 600); do sleep 0.1; done\n'
    )
    (tmp_path / "train").chmod(0o755)
    job = pyyaml.safe_load(
        exported(
            "sky", str(sheet), "--command", str(tmp_path / "train"), "--time", "60s", *ENGINES["sky"]
        ).stdout
    )
    script = job["run"].replace(" 60 ", " 1 ")
    assert subprocess.run(["bash", "-c", script], check=False, timeout=60).returncode == 124
    assert (tmp_path / "saved").exists()


# --- what every engine has --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_deterministic_with_the_sheet_at_its_head(tmp_path: Path, sheet: Path, engine: str) -> None:
    """The same sheet gives the same bytes, and the head says what it says."""
    arguments = (engine, str(sheet), *COMMAND, *ENGINES[engine])
    text = exported(*arguments).stdout
    assert text == exported(*arguments).stdout
    out = tmp_path / "job"
    exported(*arguments, "--json", "--out", str(out))
    assert out.read_text() == text
    signed = json.loads(sheet.read_text())
    assert f"SHA-256 {signed['signed']['sha256']}" in text
    assert "llama-3.2-1b, 1.24B parameters, lora, on 1 × a100-sxm-80gb" in text
    assert "1,000 steps" in text
    assert "verdict: fits" in text


def test_fields_as_json(sheet: Path) -> None:
    """The entries in base units: (2 + 1) checkpoints, 2 B a parameter and 50 GiB; 1.5 · high + 15 min + grace."""
    options = (*COMMAND, "--image", "i", "--mirror", "s3://bucket/runs")
    data = json.loads(exported("k8s", str(sheet), *options, "--json").stdout)
    signed = json.loads(sheet.read_text())
    checkpoint = signed["sheet"]["checkpoint_bytes"]["resume"]
    need = 3 * checkpoint + 2 * 1_235_814_400 + 50 * 2**30
    assert need <= data["disk_bytes"] < need + 2**30
    assert data["shm_bytes"] == 8 * 2**30  # 1 GiB for each of 8 CPUs, a part of the memory
    need = 2 * checkpoint + 4 * 1_235_814_400 + 8 * 2**30 + data["shm_bytes"]
    assert need <= data["ram_bytes"] < need + 2**30
    seconds = 1.5 * signed["intent"]["expected"]["seconds"]["high"] + 900 + 30
    assert seconds <= data["time_seconds"] < seconds + 60
    assert {"name", "cpus", "ram", "shm", "disk", "time", "save"} <= set(data["defaulted"])
    assert data["command"] == ["python", "train.py"]


def _ephemeral(job: Any) -> str:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    found = container["resources"]["requests"]["ephemeral-storage"]
    assert isinstance(found, str)
    return found


def test_the_disk_of_the_summary_is_asked_for(sheet: Path) -> None:
    """Beside a claim 1 GiB of the node by default, else what --disk says: in the job, the summary and the JSON."""
    base = (str(sheet), *COMMAND, *ENGINES["k8s"])
    for options, asked, said in (
        ((), "1024Mi", "1 GiB disk*"),
        (("--disk", "200GiB"), "204800Mi", "200 GiB disk "),
    ):
        result = exported("k8s", *base, *options)
        assert _ephemeral(pyyaml.safe_load(result.stdout)) == asked
        assert said in " ".join(result.stderr.split())
    data = json.loads(exported("k8s", *base, "--json").stdout)
    assert (data["disk_bytes"], "disk" in data["defaulted"]) == (2**30, True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "steps alone, without starts"),
        (("--mtbf", "4h", "--save", "1min"), "interruptions and saves counted in"),
    ],
)
def test_what_the_time_holds(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    """A time that was signed with interruptions has them and the saves in it; a plan's is that of steps."""
    signed = gpu_sheet(tmp_path, *options)
    (line,) = re.findall(r"^#   time: .*$", exported("slurm", str(signed), *COMMAND).stdout, re.M)
    assert line.endswith(f"GPU hours; {words}")
    plain = tmp_path / "plain.json"
    plain.write_text(json.dumps(json.loads(signed.read_text())["sheet"]))
    assert "GPU hours; steps alone, without starts" in exported("slurm", str(plain), *COMMAND).stdout


def test_saves_alone_in_the_time(tmp_path: Path, sheet: Path) -> None:
    """Saves whose length runs have measured are in the signed time; starts are not."""

    def measured(found: dict[str, Any]) -> None:
        found["intent"]["expected"]["saving_seconds"] = {"low": 1.0, "mid": 1.0, "high": 1.0}

    (tmp_path / "sheet.json").write_text(sheet.read_text())
    changed = resealed(tmp_path / "sheet.json", measured)
    assert "GPU hours; saves counted in, without starts" in exported("slurm", str(changed), *COMMAND).stdout


@pytest.mark.parametrize("engine", ENGINES)
def test_one_process_only(tmp_path: Path, sheet: Path, engine: str) -> None:
    """`ls.Run` refuses several processes: a job of several GPUs says so, in the file and the summary; of one not."""
    eight = gpu_sheet(tmp_path, "--gpus", "8")
    for path, said in ((eight, True), (sheet, False)):
        result = exported(engine, str(path), *COMMAND, *ENGINES[engine])
        for page in (result.stdout, " ".join(result.stderr.split())):
            assert ("`ls.Run` takes one process only" in page) is said
            assert ("those of 8 replicas" in page) is said


def test_defaults_are_starred(sheet: Path) -> None:
    """What was not given has a star and a reason; what was given has none."""
    page = exported("k8s", str(sheet), *COMMAND, *ENGINES["k8s"], "--cpus", "6", "--time", "2h").stderr
    assert "6 CPUs ·" in page.replace("\n  ", " ")
    assert "RAM* ·" in page.replace("\n  ", " ")
    assert "at most 2.00 h ·" in page.replace("\n  ", " ")


def test_plan_json_and_run_directory(tmp_path: Path, sheet: Path) -> None:
    """The answer of `plan --json` does, with a note that it is not signed; so does a run directory with a sheet."""
    plain = tmp_path / "plain.json"
    plain.write_text(json.dumps(json.loads(sheet.read_text())["sheet"]))
    assert "not signed" in exported("slurm", str(plain), *COMMAND).stderr
    (tmp_path / "run").mkdir()
    refused("export", "slurm", str(tmp_path / "run"), *COMMAND, words="a folder without sheet.json")
    (tmp_path / "run" / "sheet.json").write_bytes(sheet.read_bytes())
    exported("slurm", str(tmp_path / "run"), *COMMAND)


def test_bad_sheets(tmp_path: Path, sheet: Path) -> None:
    """Edited after it was signed, no sheet, one of serving, one without a length: refused, each with its reason."""
    text = sheet.read_text()
    edited = tmp_path / "edited.json"
    edited.write_text(text.replace('"steps": 1000', '"steps": 10'))
    refused("export", "slurm", str(edited), *COMMAND, words="than was signed")
    edited.write_text("{}")
    refused("export", "slurm", str(edited), *COMMAND, words="got no sheet")
    found = json.loads(text)["sheet"]
    found["recipe"]["tokens"] = None
    edited.write_text(json.dumps(found))
    refused("export", "slurm", str(edited), *COMMAND, words="give --time")
    found["recipe"]["task"] = "serve"
    edited.write_text(json.dumps(found))
    refused("export", "slurm", str(edited), *COMMAND, words="serving")


@pytest.mark.parametrize("value", [None, "x", -1, True, [], 1e40, {}])
def test_a_sheet_with_nonsense_in_it(tmp_path: Path, value: Any) -> None:
    """A figure that is none is named, whoever signed it."""

    def change(found: dict[str, Any]) -> None:
        found["sheet"]["checkpoint_bytes"]["resume"] = value

    sheet = resealed(gpu_sheet(tmp_path), change)
    refused(
        "export", "slurm", str(sheet), *COMMAND, words="checkpoint_bytes.resume: got none that can be used"
    )


def test_a_sheet_that_does_not_fit(tmp_path: Path) -> None:
    """Refused with exit status 1, written on request, with a note."""
    path = tmp_path / "big.json"
    made = run(
        "sign", "llama-3-8b", "--gpu", "h100-sxm", "--steps", "10", "--sign-anyway", "--out", str(path)
    )
    assert path.exists(), made.stderr
    result = run("export", "slurm", str(path), *COMMAND)
    assert result.exit_code == 1
    assert "does not fit on 1 × h100-sxm" in result.stderr
    assert "does_not_fit" in exported("slurm", str(path), *COMMAND, "--export-anyway").stderr


def test_where_checkpoints_may_be(sheet: Path) -> None:
    """A bucket as a volume, two places, none, a key in the mirror, a folder that goes with its machine: refused."""
    base = ("export", "sky", str(sheet), *COMMAND)
    refused(*base, words="got neither a mirror nor a volume")
    refused(*base, "--mirror", "s3://b/r", "--volume", "v", words="got a mirror and a volume")
    for bucket in ("s3://bucket/x", "gs://bucket"):
        refused(*base, "--volume", bucket, words="FUSE")
    refused(*base, "--mirror", "s3://key:secret@bucket/x", words="a key or a query")
    refused(*base, "--mirror", "https://host/x?sig=abc", words="a key or a query")
    refused(*base, "--mirror", "/mnt/runs", words="a folder goes with its machine")


def test_a_mounted_bucket_is_no_disk(tmp_path: Path, sheet: Path) -> None:
    """A path on s3fs, as /proc/self/mountinfo has it, is refused; beside it, on NFS, it is taken."""
    mounts = tmp_path / "proc" / "self" / "mountinfo"
    mounts.parent.mkdir(parents=True)
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:50 / /bucket rw - fuse.s3fs s3fs rw\n"
        "3 1 0:51 / /scratch rw - nfs4 server:/scratch rw\n"
    )
    machine = Machine(root=tmp_path, system="linux")
    facts = read_facts(sheet)
    with pytest.raises(BadInput, match="on s3fs, expected a disk"):
        make_job("slurm", facts, Wish("python train.py", volume="/bucket/me"), machine)
    job = make_job("slurm", facts, Wish("python train.py", volume="/scratch/me"), machine)
    assert job.environment == {"LOADSHEET_RUNS_ROOT": "/scratch/me/runs"}


def test_no_secret_is_written(sheet: Path) -> None:
    """A token on the command line or in a setup line is not put into a file."""
    token = "hf_" + "abcdefghij" * 3 + "klmn"
    error = refused(
        "export", "slurm", str(sheet), "--command", f"python train.py --token {token}", words="secret"
    )
    assert token not in error
    refused("export", "slurm", str(sheet), *COMMAND, "--setup", f"export HF_TOKEN={token}", words="secret")


def test_files_of_others_are_not_overwritten(tmp_path: Path, sheet: Path) -> None:
    """Exported again over an export; not over anything else; not through a link."""
    out = tmp_path / "job.sh"
    arguments = ("slurm", str(sheet), *COMMAND, "--json", "--out")
    exported(*arguments, str(out))
    exported(*arguments, str(out))
    out.write_text("mine\n")
    refused("export", *arguments, str(out), words="was not exported")
    assert out.read_text() == "mine\n"
    refused("export", *arguments, str(tmp_path / "no" / "job.sh"), words="a folder that is not there")
    (tmp_path / "link").symlink_to(out)
    refused("export", *arguments, str(tmp_path / "link"))


# --- names ------------------------------------------------------------------------------------------------------------


def test_names_of_gpus_are_of_gpus_we_have() -> None:
    """Each entry of the table is one of our ids, and no engine's name has a space or is empty."""
    from importlib.resources import files

    table = json.loads(files("loadsheet.cloud.export").joinpath("gpu_names.json").read_text(encoding="utf-8"))
    assert table["gpus"].keys() <= {gpu.id for gpu in gpus()}
    for entry in table["gpus"].values():
        assert entry.keys() == {"sky", "dstack", "k8s"}
        assert all(name is None or re.fullmatch(r"[\w.:-]+", name) for name in entry.values())
    for name, entry in table["gpus"].items():  # dstack's says the memory that ours says
        if entry["dstack"]:
            (marketed,) = [gpu.memory_marketed_gb for gpu in gpus() if gpu.id == name]
            assert abs(int(entry["dstack"].split(":")[1].removesuffix("GB")) - marketed) <= 9, name


def test_an_unknown_gpu_names_the_nearest(tmp_path: Path) -> None:
    """Of a card whose name for the engine nobody wrote down, the nearest are named, and how to give one."""

    def change(found: dict[str, Any]) -> None:
        found["sheet"]["cluster"]["gpu"] = "a800-sxm-80gb"

    sheet = resealed(gpu_sheet(tmp_path), change)
    refused("export", "sky", str(sheet), *COMMAND, *ENGINES["sky"], words="a100-sxm-80gb = A100-80GB")
    refused("export", "sky", str(sheet), *COMMAND, *ENGINES["sky"], words="--gpu-name NAME")
    assert read("sky", sheet, "--gpu-name", "A800-80GB")["resources"]["accelerators"] == {"A800-80GB": 1}


def test_regions(sheet: Path) -> None:
    """A misspelt region of a cloud that we know is an error; of another cloud it is said that nobody checked."""
    base = ("export", "sky", str(sheet), *COMMAND, *ENGINES["sky"], "--region")
    refused(*base, "aws/us-esat-1", words="us-east-1")
    refused(*base, "aws/", words="--region: got")
    assert "could not be checked" in exported(*base[1:], "lambda/us-west-1").stderr.replace("\n  ", " ")


def test_a_card_that_is_sold_by_eight(sheet: Path) -> None:
    """AWS has A100 with 80 GB in p4de.24xlarge alone, by eight: one of them will not be found there."""
    for engine in ("sky", "dstack"):
        job = (engine, str(sheet), *COMMAND, *ENGINES[engine])
        done = exported(*job, "--region", "aws/us-east-1")
        assert "# Note: no machine of AWS has 1 × a100-sxm-80gb, only 8 of them" in done.stdout
        for options in (("--region", "gcp"), (), ("--region", "aws", "--gpus", "0")):
            assert "no machine of AWS" not in exported(*job, *options).stdout


def test_currencies(tmp_path: Path) -> None:
    """A price in another currency than the engines' caps nothing by itself, and it is said."""
    sheet = gpu_sheet(tmp_path, "--price", "2EUR")
    assert "no price per hour is capped" in exported(
        "sky", str(sheet), *COMMAND, *ENGINES["sky"]
    ).stderr.replace("\n  ", " ")
    refused(
        "export", "sky", str(sheet), *COMMAND, *ENGINES["sky"], "--price-cap", "3EUR", words="--price-cap"
    )
    job = read("sky", sheet, "--price-cap", "3.5")
    assert job["resources"]["max_hourly_cost"] == 3.5
