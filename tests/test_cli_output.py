"""What the command line prints: its surface is frozen; every command has its page and its JSON."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import click
import pytest
from terminal import TINY, answered, refused, run

import loadsheet as ls
from loadsheet.cli import COMMANDS, main

# --- the surface: extend it, never rename -----------------------------------------------------------------

SURFACE = {
    "close": "RUN --calibration --json --price --runs --sheet --strict",
    "export": "",
    "gpus": "TEXT --json --sources",
    "lab": "EXPERIMENT --json --no-timing --plot",
    "leftovers": (
        "--after --all --aws-policy --compare --json --keep --kinds --list --margin --older-than --paid-calls --price "
        "--price-file --regions --runs --save --timeout --wait"
    ),
    "measure": "",
    "models": "TEXT --json",
    "odds": (
        "--billed-by --billed-least --budget --checkpoint-bytes --commit --deadline --down-mean --egress "
        "--egress-price --every --failures --history --jobs --json --machine-now --machines --mtbf "
        "--no-machine-now --notice --notice-works --on-demand-price --other-hourly --plot --price --rehearsal "
        "--restart --runs --save --seed --sheet --startup --step --storage --storage-price --switch-after "
        "--trace --work"
    ),
    "notices": "--aws-endpoint --azure-endpoint --file --gcp-endpoint --gcp-notice --json --once --provider",
    "params": "MODEL --json --run-its-code --tensors --trace",
    "plan": (
        "MODEL --accumulation --attention --batch --calibration --double-quant --dropout --explain --gpu --gpus "
        "--group --json --keep-gradients --kernels --kv --lora-dropout --loss --max-price-age --mfu --mtbf "
        "--no-double-quant --no-dropout --no-repeat-kv --no-upcast --optimizer --optimizer-form --precision "
        "--prefill-chunk --price --price-file --prices-from --rank --recompute --repeat-kv --restart --save "
        "--seq --spot --stack --strict --targets --task --tokens --upcast --weights"
    ),
    "preflight": (
        "--account --answer --aws-policy --checkpoint-bytes --checkpoint-dir --data --every --explain --gpus "
        "--html --instance-type --instances --json --keep --list --mirror --notice --only --phase --pid --price "
        "--region --runs --sheet --skip --spot --strict --subnet --timeout --volume --who --workers"
    ),
    "rehearse": "LINE --json --notice --scratch --timeout",
    "runs": "",
    "score": "--json --rows --truth",
    "sign": "",  # below: what plan has, and its own
    "verify": "MODEL --counts --json --quick",
    "watch": (
        "COMMAND_LINE --billing-unit --budget --dead-man --gpus --idle --interval --journal --json --metric --once "
        "--poll --price --reserve --run --runs --save --spent --start --stop --then-shutdown"
    ),
}
_OF_SIGN = {"--checkpoint-every", "--out", "--run", "--sign-anyway", "--steps"}
SURFACE["sign"] = " ".join(["MODEL", *sorted({*SURFACE["plan"].split()[1:], *_OF_SIGN})])
REFUSED = {"--cp", "--dp", "--ep", "--fsdp", "--pp", "--sharding", "--tp", "--zero"}


def _surface(name: str) -> tuple[str, set[str]]:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    arguments = [(p.name or "").upper() for p in command.params if isinstance(p, click.Argument)]
    options = [p for p in command.params if isinstance(p, click.Option)]
    shown = sorted(o for p in options if not p.hidden for o in (*p.opts, *p.secondary_opts))
    return " ".join([*arguments, *shown]), {o for p in options if p.hidden for o in p.opts}


@pytest.mark.parametrize("name", SURFACE)
def test_surface_of_the_command_line(name: str) -> None:
    """The names of arguments and options stand: scripts depend on them."""
    shown, hidden = _surface(name)
    assert shown == SURFACE[name]
    assert hidden == (REFUSED if name in ("plan", "sign") else set())


def test_commands() -> None:
    """The names of the commands, and a line about each in the help of the whole."""
    assert set(SURFACE) == set(COMMANDS)
    page = answered("--help").stdout
    assert all(re.search(rf"^  {name}  ", page, re.M) for name in SURFACE)


def test_version() -> None:
    """One line with the name and the version of the package."""
    assert answered("--version").stdout.strip() == f"loadsheet, version {ls.__version__}"


# --- the commands beside one plan -------------------------------------------------------------------------------------


def test_params_json() -> None:
    """The keys of design §3; GPT-2's 124,439,808 parameters by part (openai-community/gpt2)."""
    data = json.loads(answered("params", "gpt2", "--json").stdout)
    keys = (
        "model total embedding attention mlp norm head other active matmul tied model_type source defaulted"
    )
    assert keys.split() == list(data)
    parts = ("embedding", "attention", "mlp", "norm", "head", "other")
    assert data["total"] == 124_439_808 == sum(data[part] for part in parts) == data["active"]
    assert data["embedding"] == 50_257 * 768 + 1024 * 768
    assert (data["head"], data["tied"]) == (0, True)
    tensors = json.loads(answered("params", "gpt2", "--json", "--tensors").stdout)["tensors"]
    assert sum(math.prod(t["shape"]) for t in tensors) == 124_439_808
    assert {"name", "shape", "role"} == set(tensors[0])
    assert len(answered("params", "gpt2", "--tensors").stdout.splitlines()) == len(tensors) == 148


def test_models_and_gpus_json() -> None:
    """One object for each, with its source; text filters both."""
    data = json.loads(answered("models", "--json").stdout)
    assert {"models", "architectures"} == set(data)
    keys = {"name", "title", "params", "model_type", "max_length", "source", "date", "note"}
    assert all(keys == set(model) and model["source"] for model in data["models"])
    assert {"llama", "gpt2", "mixtral", "deepseek_v3"} <= set(data["architectures"])
    gpus = json.loads(answered("gpus", "--json").stdout)["gpus"]
    assert {
        "id",
        "vendor",
        "memory_marketed_gb",
        "memory_usable_bytes",
        "bandwidth",
        "peaks",
        "source",
    } <= set(gpus[0])
    assert [g["id"] for g in json.loads(answered("gpus", "H100-SXM", "--json").stdout)["gpus"]] == [
        "h100-sxm"
    ]
    found = json.loads(answered("models", "Gemma", "--json").stdout)["models"]
    assert all("gemma" in m["name"] + m["model_type"] for m in found)
    assert len(found) > 3


def test_comparison() -> None:
    """Several GPUs: one line each, what fits first, each once; exit 0 if one of them holds it."""
    args = ("plan", "llama-3-8b", "--gpu", "t4,h100-sxm,T4,b200-sxm", "--tokens", "1B", "--price", "2")
    lines = answered(*args).stdout.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("gpu "))
    assert [line.split()[0] for line in lines[head + 1 : head + 4]] == ["b200-sxm", "h100-sxm", "t4"]
    assert "GPU hours" in lines[head]
    assert "cost" in lines[head]
    data = json.loads(answered(*args, "--json").stdout)
    assert {"schema", "compare"} == set(data)
    assert [s["verdict"] for s in data["compare"]] == ["does_not_fit", "does_not_fit", "fits"]
    left_out = {"remedies", "capacity", "checkpoint_bytes"}  # they take planning again, for every GPU
    whole = json.loads(run("plan", "llama-3-8b", "--gpu", "t4", "--json").stdout)
    assert list(data["compare"][0]) == [key for key in whole if key not in left_out]
    answered("plan", "llama-3-8b", "--gpu", "t4,h100-sxm", code=1)
    refused("plan", "gpt2", "--gpu", "all", "--explain", words="--explain: got several GPUs")


_GIVEN = {
    "task": "lora", "batch": "2", "seq": "512", "gpus": "1", "precision": "mixed", "optimizer": "adamw",
    "stack": "hf", "rank": "8", "mfu": "0.4",
}  # fmt: skip


@pytest.mark.parametrize("gpu", ["t4", "t4,l4"])
def test_every_default_is_starred(gpu: str) -> None:
    """In one plan and in a comparison alike: what is given has no star, what is not has one or is in the last line."""
    without = " ".join(answered("plan", "gpt2", "--gpu", gpu).stdout.split())
    for said in ("train*", "mixed*, adamw*", "torch*", "batch 1* × 1,024* tokens", "1* ", "40%*"):
        assert said in without
    given = [text for name, value in _GIVEN.items() for text in (f"--{name}", value)]
    page = " ".join(answered("plan", "gpt2", "--gpu", gpu, *given).stdout.split())
    for said in ("lora", "mixed, adamw", "hf", "rank 8", "batch 2 × 512 tokens", "1 ", "40%"):
        assert f"{said}*" not in page
        assert said in page
    assert "* defaulted, as are accumulation 1, attention sdpa, dropout on" in page
    serving = " ".join(answered("plan", "gpt2", "--gpu", gpu, "--task", "serve").stdout.split())
    assert "weights bf16*, KV bf16*" in serving
    assert "80 %*" in serving or "80–60 %*" in serving


def test_what_the_config_does_not_say(tmp_path: Path) -> None:
    """Whether the head is tied decides on parameters: a plan and a comparison name the keys that are missing."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    for gpu in ("t4", "t4,l4"):
        page = " ".join(answered("plan", str(path), "--gpu", gpu).stdout.split())
        names = page.split("Missing in the config, so defaulted: ")[1]
        assert "tie_word_embeddings" in names.split(", ")


def test_comparison_of_all() -> None:
    """`all` is every GPU that is known."""
    data = json.loads(answered("plan", "gpt2", "--gpu", "all", "--json").stdout)
    assert [s["cluster"]["gpu"] for s in data["compare"]] == [g.id for g in ls.gpus()]


@pytest.mark.parametrize("columns", ["40", "60", "80", "120", "200", "²", "9" * 5000, "-3", "abc", ""])
def test_width(columns: str) -> None:
    """Pages keep to the terminal's width from 40 on, and no number is cut; without a width, 100."""
    room = {"40": 40, "60": 60, "80": 80, "120": 120, "200": 200, "9" * 5000: 400}.get(columns, 100)
    for args in (
        ("plan", "llama-3-8b", "--gpu", "t4,h100-sxm", "--tokens", "1T", "--price", "2"),
        ("plan", "llama-3-8b", "--gpu", "t4", "--task", "qlora", "--explain"),
        ("params", "llama-3-8b"),
        ("params", "deepseek-v3"),
        ("models", "llama"),
        ("models", "kimi"),
        ("gpus",),
    ):
        page = run(*args, COLUMNS=columns).stdout
        assert max(map(len, page.splitlines())) <= room
    whole = set(re.findall(r"[\d.,]+", run("plan", "llama-3-8b", "--gpu", "h100-sxm", COLUMNS="400").stdout))
    narrow = run("plan", "llama-3-8b", "--gpu", "h100-sxm", COLUMNS=columns).stdout.split("To make it fit")[0]
    assert set(re.findall(r"[\d.,]+", narrow)) <= whole
