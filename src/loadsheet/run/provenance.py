"""Where a result comes from: the code, the machine, the libraries and the command of each attempt.

Collected when an attempt starts, from files and a few short commands; nothing here touches a GPU (to ask
CUDA would create its context in a process that may still want to fork). Whatever cannot be found out is
left out, never an error: a missing `git` must not stop an experiment.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from loadsheet.run.machine_time import working_since

_TIMEOUT: Final = 10.0
_DIFF_LIMIT: Final = 20_000_000
#: how many attempts this process has begun
_collected: Final = itertools.count()
_HIDDEN: Final = "***"

#: environment variables that say how a run computes; of all others only the names are kept
_KEPT: Final = re.compile(
    r"(CUDA|NVIDIA|NCCL|GLOO|CUBLAS|CUDNN|TORCH|PYTORCH|TORCHINDUCTOR|TRITON|XLA|ROCR|ROCM|HIP|HSA"
    r"|OMP|MKL|OPENBLAS|KMP|GOMP|ATEN|DNNL|ONEDNN|TOKENIZERS|HF|TRANSFORMERS|ACCELERATE|DEEPSPEED|FSDP"
    r"|SLURM|MALLOC|LOADSHEET)_[A-Z0-9_]+"
    r"|LC_[A-Z]+|LANG|TZ|PATH|LD_LIBRARY_PATH|LD_PRELOAD|VIRTUAL_ENV|CONDA_DEFAULT_ENV|CONDA_PREFIX"
    r"|PYTHON(PATH|HASHSEED|HOME|OPTIMIZE|MALLOC|DONTWRITEBYTECODE|WARNINGS)"
    r"|(LOCAL_|GROUP_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)"
)
#: of these, the ones whose change may change the bits of a result
_BITS: Final = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "MKL_CBWR",
    "MKL_NUM_THREADS",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "ONEDNN_MAX_CPU_ISA",
    "ATEN_CPU_CAPABILITY",
    "PYTORCH_NVFUSER_DISABLE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
)
#: words of a name, alone or at the end of a longer word, that announce a secret ("monkey" does not)
_SECRET_WORD: Final = re.compile(
    r"(.*(token|secret|password|passwd|passphrase|apikey|credentials?)|key|keys|pwd|pass|auth|authorization"
    r"|cookie|session|private|signature|bearer|dsn|jwt|sas|pat|license)"
)
_SECRET_VALUE: Final = re.compile(
    r"\b(hf_|sk-|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abpr]-|AKIA|ASIA|AIza|pypi-|npm_|ya29\.|eyJ[A-Za-z0-9_-]{8,}\.)"
    r"[A-Za-z0-9._/+-]{8,}"
)
_NAME: Final = re.compile(r"^Name:[ \t]*(\S+)", re.MULTILINE)
_VERSION: Final = re.compile(r"^Version:[ \t]*(\S+)", re.MULTILINE)
_LOGIN: Final = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def collect(attempt: int, excluded: dict[str, Any] | None = None) -> dict[str, Any]:
    """Everything known about this attempt, as JSON values; the diff, if any, is bytes in `code.diff`."""
    now = time.time()
    return {
        "attempt": attempt,
        "started": working_since(now, first=next(_collected) == 0),
        "time": now,
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "command": without_secrets(getattr(sys, "orig_argv", sys.argv)),
        "directory": os.getcwd(),
        "pid": os.getpid(),
        "excluded": {name: _redact(name, value) for name, value in (excluded or {}).items()},
        "code": code(),
        "machine": machine(),
        "libraries": libraries(),
        "packages": packages(),
        **environment(os.environ),
    }


# --- code -----------------------------------------------------------------------------------------------


def code() -> dict[str, Any] | None:
    """The commit of the repository the script lies in (else the current directory), and what is not in it.

    `diff` is the change against the commit as bytes, `diff_sha256` its digest, `untracked` the names of
    new files. None where there is no repository or no git.
    """
    script = Path(sys.argv[0]) if sys.argv and sys.argv[0] not in {"", "-c", "-m"} else None
    folders = [script.resolve().parent] if script is not None and script.is_file() else []
    for folder in [*folders, Path.cwd()]:
        found = _git(folder, "rev-parse", "--show-toplevel", "HEAD", "--abbrev-ref", "HEAD")
        if found is None:
            continue
        top, commit, branch = found.decode(errors="replace").strip().rsplit("\n", 2)
        diff = _git(folder, "diff", "--no-color", "--no-ext-diff", "--no-textconv", "HEAD") or b""
        new = _git(folder, "ls-files", "--others", "--exclude-standard", "-z", "--full-name", top) or b""
        remote = _git(folder, "config", "--get", "remote.origin.url") or b""
        cut = diff[:_DIFF_LIMIT]
        return {
            "repository": top,
            "commit": commit,
            "branch": branch,
            "remote": _LOGIN.sub(_HIDDEN, remote.decode(errors="replace").strip()),
            "diff": cut,
            "diff_sha256": hashlib.sha256(diff).hexdigest() if diff else None,
            "diff_bytes": len(diff),
            "diff_is_cut": len(cut) < len(diff),
            "untracked": new.decode(errors="replace").split("\0")[:200][: new.count(b"\0")],
        }
    return None


def _git(folder: Path, *arguments: str) -> bytes | None:
    """What git prints; None where it fails or is not there."""
    return _output(["git", "-C", str(folder), *arguments])


def _output(command: list[str]) -> bytes | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT,
            check=False,
            # git must neither ask for a password nor write into the repository
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


# --- machine and libraries ------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """Host, processors, memory in bytes, GPUs with their driver."""
    facts = dict(_hardware())
    facts["host"] = socket.gethostname()
    with contextlib.suppress(AttributeError, OSError):
        facts["cpus_usable"] = len(os.sched_getaffinity(0))
    return facts


@functools.lru_cache(maxsize=1)
def _hardware() -> tuple[tuple[str, Any], ...]:
    """What cannot change while a process lives, found out once."""
    memory = None
    with contextlib.suppress(ValueError, OSError, AttributeError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpus = _gpus()
    return (
        ("system", platform.platform()),
        ("cpu", _cpu()),
        ("cpus", os.cpu_count()),
        ("memory_bytes", memory),
        *(() if gpus is None else (("gpus", gpus),)),
    )


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in {"model name", "Model", "cpu model"}:
                return value.strip()
    return platform.processor() or platform.machine()


def _gpus() -> list[dict[str, Any]] | None:
    """Name, driver and memory of each GPU, from the driver's own tool and not through CUDA.

    None if the tool is there and gave no answer: that is not a machine without GPUs.
    """
    tool = "nvidia-smi"
    if shutil.which(tool) is None:
        return []
    found = _output(
        [tool, "--query-gpu=name,driver_version,memory.total,uuid", "--format=csv,noheader,nounits"]
    )
    if found is None:
        return None
    gpus = []
    for line in found.decode(errors="replace").splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) == 4:
            size = int(values[2]) * 1024 * 1024 if values[2].isdigit() else None
            gpus.append({"name": values[0], "driver": values[1], "memory_bytes": size, "uuid": values[3]})
    return gpus


def libraries() -> dict[str, Any]:
    """Python, and what PyTorch computes with: versions, instruction set, number of threads."""
    facts: dict[str, Any] = {"python": platform.python_version(), "executable": sys.executable}
    if (torch := sys.modules.get("torch")) is not None:
        facts |= {
            "torch": str(torch.__version__),
            "cuda": torch.version.cuda,
            "threads": torch.get_num_threads(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
        }
        if torch.version.cuda is not None:  # reads the library's version, creates no context
            with contextlib.suppress(RuntimeError):
                facts["cudnn"] = torch.backends.cudnn.version()
    return facts


@functools.lru_cache(maxsize=1)
def _packages() -> tuple[tuple[str, str], ...]:
    from importlib import metadata

    found: dict[str, str] = {}
    for entry in metadata.distributions():
        with contextlib.suppress(OSError, ValueError):
            # The parser of `entry.metadata` reads on to the end of the text, which is somebody's README.
            head = (entry.read_text("METADATA") or entry.read_text("PKG-INFO") or "").partition("\n\n")[0]
            name, version = _NAME.search(head), _VERSION.search(head)
            if name and version and name[1] not in found:  # the first on the path is the one that is imported
                found[name[1]] = version[1]
    return tuple(sorted(found.items(), key=lambda pair: pair[0].lower()))


def packages() -> dict[str, str]:
    """Installed packages with their versions."""
    return dict(_packages())


# --- without secrets ------------------------------------------------------------------------------------


def environment(variables: Iterable[tuple[str, str]] | Any) -> dict[str, Any]:
    """The variables that say how a run computes, and only the names of all others.

    >>> environment({"OMP_NUM_THREADS": "2", "HF_TOKEN": "abc", "MY_THING": "abc"})
    {'environment': {'OMP_NUM_THREADS': '2'}, 'environment_names': ['HF_TOKEN', 'MY_THING']}
    """
    kept, names = {}, []
    for name, value in sorted(dict(variables).items()):
        if _KEPT.fullmatch(name) and not _is_secret(name):
            kept[name] = _clean(value)
        else:
            names.append(name)
    return {"environment": kept, "environment_names": names}


def without_secrets(arguments: Iterable[str]) -> list[str]:
    """A command line in which every value that looks like a secret, or is named like one, is hidden.

    >>> without_secrets(["train.py", "--lr", "0.1", "--api-key", "abc", "--hf_token=abc", "--max-tokens=5"])
    ['train.py', '--lr', '0.1', '--api-key', '***', '--hf_token=***', '--max-tokens=5']
    """
    shown: list[str] = []
    hide = False
    for argument in arguments:
        name, sign, _ = argument.partition("=")
        if hide and not argument.startswith("--"):
            shown.append(_HIDDEN)
            hide = False
        elif sign and _is_secret(name):
            shown.append(f"{name}={_HIDDEN}")
        else:
            hide = argument.startswith("-") and not sign and _is_secret(name)
            shown.append(_clean(argument))
    return shown


def _is_secret(name: str) -> bool:
    words = re.split(r"[^a-z0-9]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower())
    return any(_SECRET_WORD.fullmatch(word) for word in words)


def _clean(text: str) -> str:
    """A text without what looks like a credential."""
    return _LOGIN.sub(_HIDDEN, _SECRET_VALUE.sub(_HIDDEN, text))


def _redact(name: str, value: Any) -> Any:
    """A value of the config without its secrets, all the way down."""
    if _is_secret(name.rpartition(".")[2]):
        return _HIDDEN
    if isinstance(value, dict):
        return {key: _redact(key, entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_redact("", entry) for entry in value]
    return _clean(value) if isinstance(value, str) else value


# --- from attempt to attempt ----------------------------------------------------------------------------


def newest(folder: Path, below: int) -> dict[str, Any] | None:
    """The record of the newest attempt before `below` that can be read; None if there is none."""
    for number in range(below - 1, max(below - 20, 0), -1):
        try:
            found = json.loads((folder / f"attempt-{number:04d}.json").read_bytes())
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(found, dict) and "machine" in found:  # a claim alone says nothing of the machine
            return found
    return None


def changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What differs between two attempts and may change the bits of a result, a line each.

    >>> changes({"libraries": {"threads": 8}}, {"libraries": {"threads": 4}})
    ['threads: 8 → 4']
    """
    old, new = _bits(before), _bits(now)
    return [
        f"{name}: {_said(old[name])} → {_said(new[name])}"
        for name in sorted(old.keys() & new.keys())
        if old[name] != new[name]
    ]


def code_changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Whether the code differs between two attempts, a line each: the commit, and what is not in it."""
    old, new = before.get("code") or {}, now.get("code") or {}
    lines = []
    if old.get("commit") != new.get("commit"):
        lines.append(f"commit: {_said(old.get('commit'))[:12]} → {_said(new.get('commit'))[:12]}")
    elif old.get("diff_sha256") != new.get("diff_sha256"):
        lines.append("the code was edited (the saved diffs differ)")
    return lines


def _said(value: Any) -> str:
    return "not set" if value is None else str(value)


def _bits(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts on which bits depend, flat; what was not found out is not there."""
    machine, libraries = facts.get("machine") or {}, facts.get("libraries") or {}
    found = {name: value for name, value in libraries.items() if name != "executable"}
    if "cpu" in machine:
        found["cpu"] = machine["cpu"]
    if "gpus" in machine:
        gpus = machine["gpus"]
        found["gpu"] = ", ".join(sorted(str(gpu.get("name")) for gpu in gpus)) or "none"
        if gpus:
            found["driver"] = ", ".join(sorted({str(gpu.get("driver")) for gpu in gpus}))
    if "packages" in facts:
        found |= {name: facts["packages"].get(name) for name in ("numpy", "triton", "flash-attn")}
    if "environment" in facts:
        variables = facts["environment"]
        found |= {name: variables.get(name) for name in _BITS}
    return found
