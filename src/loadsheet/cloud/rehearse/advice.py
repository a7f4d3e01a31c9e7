"""Which lines a script lacks, fitted to what can be seen of it. It is parsed, never executed."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_LARGEST: Final = 4 << 20
_TRAINERS: Final = {
    "transformers": "transformers' Trainer", "trl": "TRL's trainer", "lightning": "Lightning",
    "pytorch_lightning": "Lightning", "accelerate": "Accelerate",
}  # fmt: skip
_OPTIMIZERS: Final = (
    "Adam",
    "SGD",
    "RMSprop",
    "Adagrad",
    "Adadelta",
    "Adafactor",
    "LBFGS",
    "Lion",
    "Muon",
    "Rprop",
)
_AVERAGES: Final = (
    "AveragedModel",
    "EMA",
    "ExponentialMovingAverage",
    "ModelEMA",
    "ModelEmaV2",
    "ModelEmaV3",
)


@dataclass
class Seen:
    """What a script shows of a training."""

    config: str = ""  # a variable that holds the settings
    kept: dict[str, str] = field(default_factory=dict)  # name → expression
    loader: str = ""
    loop: ast.For | ast.While | None = None  # the outermost one in which something is trained
    inner: ast.For | None = None  # over batches, inside it
    loss: str = ""
    trainer: str = ""
    opens_run: int = 0  # the line of `Run.open`, if there is one
    has_steps: bool = False


def script_of(command: Sequence[str], directory: Path) -> Path | None:
    """The Python file that a command runs, as far as that can be seen."""
    words = list(command)
    for at, word in enumerate(words):
        if word == "-m" and at + 1 < len(words):
            base = directory / words[at + 1].replace(".", os.sep)
            return next((p for p in (base.with_suffix(".py"), base / "__main__.py") if p.is_file()), None)
        if word.endswith(".py") and (directory / word).is_file():
            return directory / word
    return None


def look(path: Path) -> Seen | None:
    """What a script shows; None if it cannot be read as Python."""
    try:
        if path.stat().st_size > _LARGEST:
            return None
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    seen = Seen()
    try:
        _imports(tree, seen)
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.value, ast.Call):
                target = node.targets[0]
                if isinstance(target, ast.Name):
                    _assigned(target.id, node.value, seen)
            elif isinstance(node, ast.Call):
                _called(node, seen)
        _loop(tree, seen)
    except RecursionError:
        return None
    return seen


def _imports(tree: ast.Module, seen: Seen) -> None:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module or ''}.{alias.name}" for alias in node.names]
        for name in names:
            package = name.partition(".")[0]
            if package == "transformers" and not name.endswith("Trainer") and "." in name:
                continue  # a model of theirs in a loop of one's own
            if package in _TRAINERS and not (package == "transformers" and name == "transformers"):
                seen.trainer = seen.trainer or _TRAINERS[package]


def _assigned(name: str, call: ast.Call, seen: Seen) -> None:
    """What a variable is, by what makes it."""
    path = ast.unparse(call.func)
    last = path.rpartition(".")[2]
    if last in ("parse_args", "parse_known_args"):
        seen.config = seen.config or name
    elif last in _AVERAGES:
        seen.kept.setdefault("average", name)
    elif last.startswith(_OPTIMIZERS) or _of_optim(path):
        seen.kept.setdefault("optimizer" if "optimizer" not in seen.kept else name, name)
        if call.args and (model := _owner(call.args[0])):
            seen.kept.setdefault("model", model)
    elif ".lr_scheduler" in path or last.endswith("LR") or (last.startswith("get_") and "schedule" in last):
        seen.kept.setdefault("scheduler", name)
    elif last == "GradScaler":
        seen.kept.setdefault("scaler", name)
    elif last.endswith("DataLoader") and not any(word in name for word in ("val", "test", "eval", "valid")):
        seen.loader = seen.loader or name


def _of_optim(path: str) -> bool:
    """Whether a call makes something of a module `optim`, and no scheduler."""
    return "optim." in path and ".lr_scheduler" not in path and path.rpartition(".")[2][:1].isupper()


def _owner(node: ast.expr) -> str:
    """The model of `model.parameters()`, whatever is around it."""
    for part in ast.walk(node):
        if not isinstance(part, ast.Call) or not isinstance(part.func, ast.Attribute):
            continue
        if part.func.attr in ("parameters", "named_parameters"):
            return ast.unparse(part.func.value)
    return ""


def _called(call: ast.Call, seen: Seen) -> None:
    if not isinstance(call.func, ast.Attribute):
        return
    if call.func.attr == "backward" and not seen.loss:
        seen.loss = ast.unparse(call.func.value)
        if isinstance(call.func.value, ast.Call) and call.func.value.args:  # scaler.scale(loss)
            seen.loss = ast.unparse(call.func.value.args[0])
    if call.func.attr == "open" and ast.unparse(call.func.value).rpartition(".")[2] == "Run":
        seen.opens_run = call.lineno
    if call.func.attr == "steps" and seen.opens_run:
        seen.has_steps = True


def _trains(node: ast.AST) -> bool:
    return any(
        isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr == "backward"
        for part in ast.walk(node)
    )


def _loops(node: ast.AST) -> Iterator[ast.For | ast.While]:
    for part in ast.walk(node):
        if isinstance(part, ast.For | ast.While) and _trains(part):
            yield part


def _loop(tree: ast.Module, seen: Seen) -> None:
    """The loops around the backward pass; if that happens in a function, those that call it are not seen."""
    seen.loop = next(_loops(tree), None)
    if seen.loop is not None:
        inside = [part for part in _loops(seen.loop) if part is not seen.loop and isinstance(part, ast.For)]
        over = [part for part in inside if seen.loader and seen.loader in ast.unparse(part.iter)]
        seen.inner = next(iter(over or inside), None) if isinstance(seen.loop, ast.For) else None


def advice(command: Sequence[str], directory: Path) -> list[str]:
    """The lines to add, each with where it goes; in general words where the script cannot be read."""
    path = script_of(command, directory)
    seen = None if path is None else look(path)
    if seen is None:
        return ["the lines to add (docs/run.md says more):", *_lines(Seen(), "")]
    where = path.name if path is not None else ""
    if seen.trainer and seen.loop is None:
        return [
            f"{where} trains with {seen.trainer}, which keeps its own checkpoints: what it does after a notice or a "
            "kill is not ours to prove. `loadsheet.integrations` records it (docs/integrations.md)"
        ]
    if seen.opens_run and not seen.has_steps:
        return [f"{where} opens a run in line {seen.opens_run}, and has no loop over `run.steps(...)`"]
    return [
        f"{where} opens no run; the lines to add, fitted to what can be seen of it:",
        *_lines(seen, where),
    ]


def _lines(seen: Seen, where: str) -> list[str]:
    config = f"vars({seen.config})" if seen.config else "config"
    kept = (
        {"model": "model", "optimizer": "optimizer", "scheduler": "scheduler"}
        if not where
        else dict(seen.kept)
    )
    kept = kept or {"model": "model", "optimizer": "optimizer"}
    names = ", ".join(f"{name}={value}" for name, value in sorted(kept.items(), key=_order))
    loader = seen.loader or "loader"
    total, instead = _total(seen, loader)
    lines = [
        ("import loadsheet as ls", "at the top"),
        (f'run = ls.Run.open("runs", {config})', "once the settings are complete; each makes another run"),
        (f"run.keep({names})", "all that changes, before the loop"),
        (f"batches = run.batches({loader})", "endless; exact in the middle of an epoch"),
        (f"for step in run.steps({total}):", instead),
        ("    batch = next(batches)", "inside the step, not before it"),
        (f"    run.log(loss={seen.loss or 'loss'})", "after the update"),
    ]
    width = max(len(code) for code, _ in lines)
    return [f"    {code:<{width}}  # {remark}" for code, remark in lines]


def _order(item: tuple[str, str]) -> tuple[int, str]:
    known = ["model", "optimizer", "scheduler", "scaler", "average"]
    return (known.index(item[0]) if item[0] in known else len(known), item[0])


def _total(seen: Seen, loader: str) -> tuple[str, str]:
    """How many steps there are, and what the new line takes the place of."""
    loop = seen.loop
    if loop is None:
        return "total", "instead of the loop over steps"
    head = f"instead of line {loop.lineno}"
    if not isinstance(loop, ast.For):
        return "total", f"{head}, `while`"
    counted = _count(loop.iter)
    if seen.inner is not None:
        return (
            f"{counted or 'epochs'} * len({loader})",
            f"{head} and {seen.inner.lineno}: a step is one update, epochs follow one another by themselves",
        )
    if counted:
        return counted, head
    return (
        (f"len({loader})", head) if seen.loader and seen.loader in ast.unparse(loop.iter) else ("total", head)
    )


def _count(node: ast.expr) -> str:
    """The number of rounds of `range(...)`, bars around it aside."""
    for part in ast.walk(node):
        if not isinstance(part, ast.Call) or not isinstance(part.func, ast.Name) or part.func.id != "range":
            continue
        words = [ast.unparse(word) for word in part.args]
        if len(words) == 1 or (len(words) == 2 and words[0] == "0"):
            return words[-1]
        if len(words) == 2:
            counted = words[1].removesuffix(" + 1") if words[0] == "1" else words[1]
            return counted if counted != words[1] else f"({words[1]} - {words[0]})"
    return ""
