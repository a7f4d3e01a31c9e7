"""Text from outside on its way into a job file: it comes out as it went in, and never as syntax."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from export_sheets import COMMAND, ENGINES, exported, gpu_sheet, resealed
from hypothesis import given, settings
from hypothesis import strategies as st
from terminal import refused, run

from loadsheet.cloud.export.gpu_names import given_name
from loadsheet.cloud.export.places import mount_point
from loadsheet.cloud.export.words import parse_command, shell, yaml
from loadsheet.errors import BadInput

pyyaml = pytest.importorskip("yaml")

#: arguments that want to be something else: shell, YAML, Kubernetes' variables, lines of their own
HOSTILE = [
    "a b", "$(touch owned)", "`touch owned`", "'; touch owned; '", '"', "\\", "x\ny: z", "{{x}}", "- #: &a *b !c",
    "é…🙂", "\x7f\t", "no", "1e3", "$HOME", "$$", "${{ x }}"[:1], "%j", "",
]  # fmt: skip


@pytest.fixture(scope="module")
def sheet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed sheet of one A100."""
    return gpu_sheet(tmp_path_factory.mktemp("sheet"))


# --- YAML -------------------------------------------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(max_size=8), values, min_size=1, max_size=4))
def test_yaml_is_read_back(value: dict[str, Any]) -> None:
    """PyYAML (YAML 1.1) reads back what was written, for any text."""
    assert pyyaml.safe_load(yaml(value)) == value


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(codec="ascii", include_characters="\n"), max_size=60))
def test_yaml_scripts_are_read_back(text: str) -> None:
    """Scripts of several lines, written as blocks, come back unchanged."""
    value = {"run": f"first\n{text}\n", "list": [f"{text}\nlast\n"]}
    assert pyyaml.safe_load(yaml(value)) == value


# --- commands ---------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12), max_size=5
    )
)
def test_commands_are_split_as_they_were_quoted(words: list[str]) -> None:
    """Quoted by shlex, any arguments come back."""
    assert parse_command(shell(["python", *words])) == ("python", *words)


@pytest.mark.parametrize(
    "text",
    ["a | b", "a && b", "a; b", "a > b", "a $B", 'a "$B"', "a `b`", "(a)", "a\nb", "a ~/b", "a #b", "a 'b", "", "''",
     "a\0b"],
)  # fmt: skip
def test_what_only_a_shell_can_do_is_refused(sheet: Path, text: str) -> None:
    """A pipe or a variable would come between the signal and the training, or mean itself: an error that says so."""
    refused("export", "slurm", str(sheet), "--command", text, words="--command: got")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("HF_HOME=/x python t.py", "--command 'env HF_HOME=/x …'"),
        ("_A+=1 python t.py", "'env "),
        ("'A=1' python t.py", "'env A=1 …'"),  # dstack's shell would set it, quoted or not
        ("cd /x", "--setup"),
        ("exec python t.py", "--setup"),
        (". ./activate", "--setup"),
    ],
)
def test_what_means_something_only_to_a_shell(sheet: Path, engine: str, text: str, hint: str) -> None:
    """Three engines would look for a program of that name, and the one with a shell would do it: refused in all."""
    whole = ("export", engine, str(sheet), "--command", text, *ENGINES[engine])
    refused(*whole, words="expected one program and its arguments")
    assert hint in run(*whole).stderr.partition("hint: ")[2]


@pytest.mark.parametrize("text", ["env HF_HOME=/x python t.py", "python t.py lr=1", "./a=b", "=x", "2x=3"])
def test_what_looks_like_a_variable_and_is_none(text: str) -> None:
    """An assignment stands in front, and begins as a name."""
    assert shell(parse_command(text)) == text


@pytest.mark.parametrize(
    ("engine", "name"),
    [("slurm", "a100:2"), ("slurm", "a100,v100"), ("slurm", "gpu:a100"), ("slurm", "a b"), ("k8s", "NVIDIA/A100"),
     ("k8s", "A100:1"), ("k8s", "-A100"), ("k8s", "a" * 64), ("sky", "A100:2"), ("dstack", "A100:2"),
     ("dstack", "A100:80GB:2"), ("dstack", "A100:80GB,H100:80GB"), ("sky", "")],
)  # fmt: skip
def test_a_name_of_a_card_is_no_more_than_that(sheet: Path, engine: str, name: str) -> None:
    """The number is the sheet's, and stands behind the name: with another in it the engine would read nonsense."""
    whole = ("export", engine, str(sheet), *COMMAND, *ENGINES[engine])
    refused(*whole, f"--gpu-name={name}", words="--gpu-name: got")


@pytest.mark.parametrize(
    ("engine", "name"),
    [("slurm", "a100"), ("slurm", "nvidia_a100-sxm4-80gb"), ("slurm", "1g.5gb"), ("k8s", "NVIDIA-A100-SXM4-80GB"),
     ("k8s", "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"), ("sky", "A100-80GB"), ("dstack", "A100:80GB"), ("dstack", "A100"),
     ("dstack", "A100,H100:40GB..80GB"), ("dstack", "H100:80GB..")],
)  # fmt: skip
def test_names_that_engines_have(engine: str, name: str) -> None:
    """As their documentation writes them."""
    assert given_name(engine, name) == name


@pytest.mark.parametrize("engine", ["k8s", "dstack", "sky"])
@pytest.mark.parametrize(
    "place",
    ["/", "/.", "/dev", "/dev/shm", "/dev/shm/", "/dev//shm", "/dev/./shm", "/proc/x", "/sys", "/usr", "/etc/",
     "/x/../dev/shm", "/..", "/a:b", "x", ""],
)  # fmt: skip
def test_where_no_volume_can_be(sheet: Path, engine: str, place: str) -> None:
    """Over the whole image, over what the kernel or the job itself mounts, twice at one place."""
    image = ENGINES["k8s"][:2] if engine == "k8s" else ()
    whole = ("export", engine, str(sheet), *COMMAND, *image)
    refused(*whole, "--volume", f"c:{place}", words="--volume: got")


def test_where_a_volume_can_be() -> None:
    """A folder of its own, also below one of the system's."""
    found = [
        mount_point(path, "c") for path in ("/checkpoints", "/mnt/", "/var/lib//runs", "/devices", "//x")
    ]
    assert found == ["/checkpoints", "/mnt", "/var/lib/runs", "/devices", "/x"]
    with pytest.raises(BadInput):
        mount_point("//.", "c")


@pytest.mark.parametrize("engine", ENGINES)
def test_hostile_arguments_stay_arguments(tmp_path: Path, sheet: Path, engine: str) -> None:
    """Run by bash (as the engine would), the program gets exactly these arguments, and nothing else happened."""
    program = tmp_path / "show.py"
    program.write_text("import json, sys\njson.dump(sys.argv[1:], open('seen', 'w'))\n")
    words = [sys.executable, str(program), *HOSTILE]
    text = exported(engine, str(sheet), "--command", shell(words), *ENGINES[engine]).stdout
    if engine == "slurm":
        stubs = tmp_path / "bin"
        stubs.mkdir()
        (stubs / "srun").write_text('#!/bin/bash\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')
        (stubs / "srun").chmod(0o755)
        script = ["bash", "-c", f"PATH={stubs}:$PATH\nSLURM_CPUS_PER_TASK=1\n{text}"]
    elif engine == "k8s":
        container = pyyaml.safe_load(text)["spec"]["template"]["spec"]["containers"][0]
        script = [word.replace("$$", "$") for word in container["command"]]
    elif engine == "dstack":
        script = ["bash", "-c", " && ".join(pyyaml.safe_load(text)["commands"])]
    else:
        script = ["bash", "-c", pyyaml.safe_load(text)["run"]]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "seen").read_text()) == HOSTILE
    assert not (tmp_path / "owned").exists()


def test_a_hostile_sheet_stays_a_comment(tmp_path: Path) -> None:
    """A model's name with lines, directives and terminal codes in it: one line of comment, in every engine."""
    name = "x\n#SBATCH --wrap=owned\nkind: Pod\n\x1b[31m $(touch owned)"

    def change(found: dict[str, Any]) -> None:
        found["sheet"]["model"]["name"] = name

    sheet = resealed(gpu_sheet(tmp_path), change)
    for engine, options in ENGINES.items():
        text = exported(engine, str(sheet), *COMMAND, *options).stdout
        (line,) = [line for line in text.splitlines() if "touch owned" in line]
        assert line.startswith("#   model: x #SBATCH --wrap=owned kind: Pod ?[31m $(touch owned), ")
        assert not any(re.match(r"#SBATCH --wrap|kind: Pod", line) for line in text.splitlines())
        assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "option",
    [
        ("--name", "a b"), ("--name", "A"), ("--name", "x\ny"), ("--name", "-a"), ("--name", "a" * 41), ("--name", ""),
        ("--partition", "a b"), ("--partition", "x\n#SBATCH"), ("--account", "$(x)"), ("--qos", ""),
        ("--workdir", "a\nb"), ("--cpus", "0"), ("--ram", "12"), ("--time", "0"), ("--time", "2000d"),
        ("--save", "2d"), ("--setup", "echo 'x"), ("--setup", "x \\"), ("--gpus", "2"),
        ("--volume", "relative"), ("--mirror", "relative"),
    ],
)  # fmt: skip
def test_senseless_options(sheet: Path, option: tuple[str, str]) -> None:
    """Each is an error of one line that names the option."""
    refused("export", "slurm", str(sheet), *COMMAND, *option, words=f"{option[0]}: got")
