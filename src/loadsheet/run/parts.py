"""What must be saved of each kind of object, and how it is put back exactly.

`state_dict` alone is not enough. A module's leaves out non-persistent buffers, modes and frozen weights;
`Optimizer.load_state_dict` casts moments to the dtype of the weights and takes over the checkpoint's
`fused` and `foreach`, so that the code's own choice is ignored without a word.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from loadsheet.errors import shorten
from loadsheet.run.errors import BadCheckpoint, CannotKeep
from loadsheet.run.tell import tell

#: the order in which kinds are put back
KINDS = ("module", "optimizer", "scheduler", "scaler", "data", "tensor", "iterator", "generator")
#: how an optimizer computes is the code's choice, not the checkpoint's
FLAGS = ("foreach", "fused", "capturable", "differentiable")


def kind_of(name: str, value: Any) -> str:
    """Which of `KINDS` an object is. Raises CannotKeep for what could not be put back in place."""
    if isinstance(value, nn.Module):
        return "module"
    if isinstance(value, torch.optim.Optimizer):
        return "optimizer"
    if isinstance(value, LRScheduler):
        return "scheduler"
    if isinstance(value, torch.amp.GradScaler):
        return "scaler"
    if isinstance(value, torch.Generator | random.Random) or _numpy_generator(value):
        return "generator"
    if isinstance(value, torch.Tensor):
        return "tensor"
    has_state = all(callable(getattr(value, method, None)) for method in ("state_dict", "load_state_dict"))
    if has_state and not isinstance(value, type):
        return "data"
    if isinstance(value, dict | list):
        return "data"
    raise CannotKeep(
        f"keep {name}: got {shorten(value)} ({type(value).__qualname__}), expected an object with state_dict and "
        "load_state_dict, a dict, a list, a tensor or a generator",
        "a number cannot be changed in place: keep it in a dict",
    )


def bare(module: nn.Module) -> nn.Module:
    """The module inside the wrappers of `torch.compile` and data parallelism, whose names they prefix."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


# --- modules ----------------------------------------------------------------------------------------


def save_module(module: nn.Module) -> dict[str, Any]:
    """Parameters, all buffers, modes, which weights are frozen, and which have a gradient tensor.

    Whether a weight has a gradient of zeros or none decides whether the next step decays it. The values
    are not saved: at the end of a step they are zero, or about to be cleared.
    """
    module = bare(module)
    state = dict(module.state_dict())
    buffers = {name: b for name, b in module.named_buffers(remove_duplicate=False) if name not in state}
    parameters = list(module.named_parameters(remove_duplicate=False))
    return {
        "state": state,
        "buffers": buffers,
        "evaluating": [name for name, part in module.named_modules() if not part.training],
        "frozen": [name for name, p in parameters if not p.requires_grad],
        "gradients": [name for name, p in parameters if p.grad is not None],
    }


def load_weights(module: nn.Module, saved: Mapping[str, Any], name: str = "model") -> None:
    """Put a saved module's weights and buffers into one of the same shape, and nothing else.

    Raises BadCheckpoint where names, shapes or dtypes differ.
    """
    module = bare(module)
    state = saved["state"]
    live = module.state_dict()
    for key in [*state, *live]:
        _compare(f"{name}.{key}", state, live, key)
    try:
        module.load_state_dict(state, strict=True)
    except (RuntimeError, KeyError, ValueError, TypeError) as error:
        raise BadCheckpoint(
            f"restore {name}: got {shorten(str(error), 200)}, expected the saved module"
        ) from None
    buffers = dict(module.named_buffers(remove_duplicate=False))
    for key, value in saved["buffers"].items():
        owner, _, leaf = key.rpartition(".")
        have = buffers.get(key)
        with torch.no_grad():
            if have is not None and have.shape == value.shape and have.dtype == value.dtype:
                have.copy_(value)
            else:  # a cache that grew: it was another tensor in the run as well
                try:
                    part = module.get_submodule(owner)
                except AttributeError:
                    raise _differs(f"{name}.{key}", "nothing", "the saved buffer") from None
                device = next((t.device for t in module.parameters()), torch.device("cpu"))
                part.register_buffer(leaf, value.detach().clone().to(device), persistent=False)


def _compare(path: str, state: Mapping[str, Any], live: Mapping[str, Any], key: str) -> None:
    if key not in live:
        raise _differs(path, "no such name", "the saved one")
    if key not in state:
        raise _differs(path, "a name that was not saved", "only saved ones")
    ours, saved = live[key], state[key]
    if isinstance(ours, torch.Tensor) and isinstance(saved, torch.Tensor):
        for what in ("shape", "dtype"):
            if (got := getattr(ours, what)) != (expected := getattr(saved, what)):
                raise _differs(path, f"{what} {_tidy(got)}", _tidy(expected))


def _tidy(value: object) -> str:
    return str(tuple(value)) if isinstance(value, torch.Size) else str(value)


def _differs(path: str, got: str, expected: str) -> BadCheckpoint:
    hint = "the code builds another model than the one that was saved; the config should have told"
    return BadCheckpoint(f"restore {path}: got {got}, expected {expected}", hint)


def load_module(module: nn.Module, saved: Mapping[str, Any], name: str) -> None:
    """Put everything back that `save_module` took."""
    load_weights(module, saved, name)
    module = bare(module)
    evaluating, frozen, gradients = (set(saved[key]) for key in ("evaluating", "frozen", "gradients"))
    for key, part in module.named_modules():
        part.training = key not in evaluating
    for key, parameter in module.named_parameters(remove_duplicate=False):
        parameter.requires_grad_(key not in frozen)
        if key not in gradients:
            parameter.grad = None
        elif parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        else:
            parameter.grad.zero_()


# --- optimizers -------------------------------------------------------------------------------------


def save_optimizer(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[str, Any]:
    """Its state and groups as they are, and the name of every weight, so that another order shows."""
    state = optimizer.state_dict()
    groups = [[names.get(id(p), "?") for p in group["params"]] for group in optimizer.param_groups]
    return {"class": type(optimizer).__qualname__, "names": groups, "state": dict(state)}


def load_optimizer(
    optimizer: torch.optim.Optimizer, saved: Mapping[str, Any], names: Mapping[int, str], name: str
) -> None:
    """Put state and groups back: values, dtypes and all, but computed as the code says.

    Raises BadCheckpoint for another class or other weights.
    """
    if (got := type(optimizer).__qualname__) != saved["class"]:
        raise BadCheckpoint(f"restore {name}: got a {got}, expected the saved {saved['class']}")
    live = [[names.get(id(p), "?") for p in group["params"]] for group in optimizer.param_groups]
    for number, (ours, theirs) in enumerate(zip(live, saved["names"], strict=False)):
        for got, expected in zip(ours, theirs, strict=False):
            if got != expected and "?" not in (got, expected):
                raise _differs(f"{name}, group {number}", f"weight {got}", f"{expected} in its place")
    if [len(group) for group in live] != [len(group) for group in saved["names"]]:
        raise _differs(
            name, f"groups of {[len(g) for g in live]} weights", f"{[len(g) for g in saved['names']]}"
        )
    own_flags = [{key: group[key] for key in FLAGS if key in group} for group in optimizer.param_groups]
    try:
        optimizer.load_state_dict(dict(saved["state"]))
    except (RuntimeError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise BadCheckpoint(
            f"restore {name}: got {shorten(str(error), 200)}, expected its saved state"
        ) from None
    for number, (group, own) in enumerate(zip(optimizer.param_groups, own_flags, strict=True)):
        for key, flag in own.items():
            if bool(group.get(key)) != bool(flag):
                tell(
                    f"{name}, group {number}: the code says {key}={flag}, the checkpoint was made with "
                    f"{key}={group.get(key)}; the code's is used, and other bits follow from it"
                )
            group[key] = flag
    if type(optimizer).load_state_dict is torch.optim.Optimizer.load_state_dict:
        _exact_state(optimizer, saved["state"]["state"])


def _exact_state(optimizer: torch.optim.Optimizer, state: Mapping[int, Any]) -> None:
    """Undo the cast to the weights' dtype: what was saved is what comes back, where it was."""
    ordered = [(group, p) for group in optimizer.param_groups for p in group["params"]]
    for index, (group, parameter) in enumerate(ordered):
        if index not in state:
            continue
        on_device = bool(group.get("fused") or group.get("capturable"))

        def place(key: object, value: Any, p: torch.Tensor = parameter, on_device: bool = on_device) -> Any:
            if isinstance(value, torch.Tensor):
                if key == "step":
                    return value.to(p.device) if on_device else value.cpu()
                return value if saved_device(value).type == "cpu" else value.to(p.device)
            if isinstance(value, dict):
                return {k: place(k, v) for k, v in value.items()}
            if isinstance(value, list | tuple):
                return type(value)(place(key, v) for v in value)
            return value

        own = state[index]
        optimizer.state[parameter] = (
            {k: place(k, v) for k, v in own.items()} if isinstance(own, dict) else place(None, own)
        )


def saved_device(tensor: torch.Tensor) -> torch.device:
    """The device that a restored tensor was on when it was saved."""
    return torch.device(getattr(tensor, "_saved_device", "cpu"))


def moments_to_come(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the moments that an optimizer makes in its first step; 0 once it has some.

    Copies of each weight as the update rules in torch.optim keep them; two for a rule not known here.
    """
    if optimizer.state:
        return 0
    total = 0
    for group in optimizer.param_groups:
        copies = {
            "SGD": int(bool(group.get("momentum"))),
            "RMSprop": 1 + bool(group.get("momentum")) + bool(group.get("centered")),
            "Lion": 1,
            "Adafactor": 1,  # less, where it factors
        }.get(type(optimizer).__name__, 2 + bool(group.get("amsgrad")))
        total += copies * sum(p.numel() * p.element_size() for p in group["params"])
    return total


def load_groups(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Put the groups' numbers back once more: building or restoring a scheduler may have reset them."""
    for group, values in zip(optimizer.param_groups, saved["state"]["param_groups"], strict=True):
        for key, value in values.items():
            if key != "params" and key not in FLAGS:
                have = group.get(key)
                if isinstance(have, torch.Tensor) and isinstance(value, torch.Tensor):
                    have.fill_(value)  # a compiled step holds on to this tensor
                else:
                    group[key] = value


# --- the rest ---------------------------------------------------------------------------------------


def save_data(value: Any) -> Any:
    """The state of anything else."""
    return value.state_dict() if callable(getattr(value, "state_dict", None)) else value


def load_data(value: Any, saved: Any, name: str) -> None:
    """Put it back, in place."""
    if callable(getattr(value, "load_state_dict", None)):
        try:
            value.load_state_dict(saved)
        except (RuntimeError, KeyError, ValueError, TypeError, AttributeError) as error:
            message = f"restore {name}: got {type(error).__name__} ({shorten(str(error), 200)}), expected it to load"
            raise BadCheckpoint(
                message, "its load_state_dict does not take what its state_dict gave"
            ) from error
    elif type(value) is not type(saved):
        raise BadCheckpoint(
            f"restore {name}: got a {type(value).__qualname__}, expected a {type(saved).__qualname__}"
        )
    elif isinstance(value, dict):
        value.clear()
        value.update(saved)
    else:
        value[:] = saved


def load_tensor(value: torch.Tensor, saved: torch.Tensor, name: str) -> None:
    """Copy the values into the kept tensor."""
    _compare(name, {name: saved}, {name: value}, name)
    with torch.no_grad():
        value.copy_(saved)


def _numpy_generator(value: Any) -> bool:
    return type(value).__module__.startswith("numpy.random") and type(value).__qualname__ in (
        "Generator",
        "RandomState",
    )


def save_generator(value: Any) -> dict[str, Any]:
    """The state of a generator of random numbers."""
    if isinstance(value, torch.Generator):
        return {"torch": value.get_state()}
    if isinstance(value, random.Random):
        try:
            return {"python": value.getstate()}
        except NotImplementedError:  # SystemRandom has none, and nobody can repeat it
            raise CannotKeep(
                f"keep: got a {type(value).__qualname__}, expected a generator with a state"
            ) from None
    if type(value).__qualname__ == "RandomState":
        return {"legacy": value.get_state(legacy=False)}
    return {"numpy": value.bit_generator.state}


def load_generator(value: Any, saved: Mapping[str, Any], name: str) -> None:
    """Put the state of a generator back."""
    ((kind, state),) = saved.items()
    try:
        if kind == "torch":
            value.set_state(state)
        elif kind == "python":
            value.setstate(state)
        elif kind == "legacy":
            value.set_state(state)
        else:
            value.bit_generator.state = state
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise BadCheckpoint(
            f"restore {name}: got {shorten(str(error), 200)}, expected a {kind} generator"
        ) from None


def parameter_names(modules: Mapping[str, nn.Module]) -> dict[int, str]:
    """The name of every weight of the kept modules, by identity."""
    return {
        id(p): f"{name}.{key}"
        for name, module in modules.items()
        for key, p in bare(module).named_parameters()
    }


SAVE: dict[str, Callable[[Any], Any]] = {
    "module": save_module,
    "scheduler": save_data,
    "scaler": save_data,
    "data": save_data,
    "tensor": lambda tensor: tensor,
    "iterator": save_data,
    "generator": save_generator,
}

LOAD: dict[str, Callable[[Any, Any, str], None]] = {
    "module": load_module,
    "scheduler": load_data,
    "scaler": load_data,
    "data": load_data,
    "tensor": load_tensor,
    "iterator": load_data,
    "generator": load_generator,
}


def inner_schedulers(scheduler: Any) -> Iterator[Any]:
    """A scheduler and those it drives."""
    yield scheduler
    for inner in getattr(scheduler, "_schedulers", ()):
        yield from inner_schedulers(inner)
