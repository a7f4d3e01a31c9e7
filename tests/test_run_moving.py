"""What changes in the steps and is not kept is named; what stands still, or is kept, never is."""

from __future__ import annotations

import copy
import random
import re
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import loadsheet as ls
from loadsheet.run.carried import carried
from loadsheet.run.errors import RunWarning

Body = Callable[[int, nn.Module], object]


def named(root: Path, body: Body, aside: bool = False, **kept: Any) -> list[str]:
    """What is warned about in four steps, up to the word that says what it does."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.Run.open(root, {}, progress=False) as run, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.keep(model=model, optimizer=optimizer, **kept)
        for step in run.steps(4, checkpoint_every=2):
            optimizer.zero_grad()
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
            if aside:
                with run.aside():
                    body(step, model)
            else:
                body(step, model)
    assert all(each.filename == __file__ for each in caught)  # they point to this file
    return [str(each.message) for each in caught if issubclass(each.category, RunWarning)]


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(40.0)), 4, **options)


GENERATORS = [
    (lambda: torch.Generator().manual_seed(1), lambda g: torch.rand(1, generator=g)),
    (lambda: np.random.default_rng(1), lambda g: g.random()),
    (lambda: np.random.RandomState(1), lambda g: g.rand()),
    (lambda: random.Random(1), lambda g: g.random()),
]


@pytest.mark.parametrize(("make", "draw"), GENERATORS)
def test_generators(make: Callable[[], Any], draw: Callable[[Any], object], tmp_path: Path) -> None:
    """One that draws and is not kept is named, as the script calls it; kept, or at rest, it is not."""
    mine = make()
    found = named(tmp_path / "a", lambda step, model: draw(mine))
    assert [line.partition(" draws")[0] for line in found] == [f"`mine` ({type(mine).__name__})"]
    assert named(tmp_path / "b", lambda step, model: draw(mine), mine=mine) == []
    assert named(tmp_path / "c", lambda step, model: None) == []


def test_a_generator_of_the_data(tmp_path: Path) -> None:
    """A dataset's own generator has its name through the object that holds it."""

    class Data:
        def __init__(self) -> None:
            self.rng = np.random.default_rng(1)

    data = Data()
    found = named(tmp_path, lambda step, model: data.rng.random())
    assert [line.partition(" (")[0] for line in found] == ["`data.rng`"]


def average(step: int, model: nn.Module, ema: nn.Module) -> None:
    """As much code has it, past the counters of versions."""
    for mean, weight in zip(ema.parameters(), model.parameters(), strict=True):
        mean.data.mul_(0.9).add_(weight.data, alpha=0.1)


ROWS = {
    "lists": lambda: [list(range(k, k + 1000)) for k in range(10_000)],
    "records": lambda: [[{"text": str(k), "ids": [k, k + 1]} for k in range(1000)] for _ in range(50)],
    "table": lambda: {k: float(k) for k in range(1_000_000)},
    "pairs": lambda: [(torch.zeros(1), [k]) for k in range(10_000)],
}


@pytest.mark.parametrize("rows", ROWS)
def test_beside_data_in_memory(rows: str, tmp_path: Path) -> None:
    """Rows of plain data do not hide what stands deeper than they do, nor what stands in a list of its own kind."""

    class Part:
        pass

    trainer, inner = Part(), Part()
    trainer.__dict__.update(data=ROWS[rows](), part=inner)
    inner.__dict__.update(data=trainer.__dict__["data"], rngs=[random.Random(k) for k in range(40)])
    found = named(tmp_path, lambda step, model: inner.__dict__["rngs"][39].random())
    names = [line.partition(" draws")[0] for line in found]
    assert names in (["`trainer.part.rngs[39]` (Random)"], ["`inner.rngs[39]` (Random)"])


def test_an_average(tmp_path: Path) -> None:
    """A deep copy that moves is named; kept it is not, and a teacher that stands still never is."""
    ema = nn.Linear(4, 1)
    teacher = nn.Linear(4, 1)
    found = named(tmp_path / "a", lambda step, model: (average(step, model, ema), teacher(torch.ones(4))))
    assert [line.partition(" changes")[0] for line in found] == ["`ema` (Linear)"]
    assert named(tmp_path / "b", lambda step, model: average(step, model, ema), ema=ema) == []


def test_a_copy_for_evaluation(tmp_path: Path) -> None:
    """What is brought up to date inside `aside` is computed anew each time."""
    other = nn.Linear(4, 1)
    body: Body = lambda step, model: other.load_state_dict(copy.deepcopy(model.state_dict()))  # noqa: E731
    assert named(tmp_path, body, aside=True) == []


def endless(of: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from of


def test_loaders(tmp_path: Path) -> None:
    """An iterator that is in the middle of an epoch from step to step is named, wherever it hides."""
    visible = iter(loader())
    found = named(tmp_path / "a", lambda step, model: next(visible))
    assert [line.partition(" goes on")[0] for line in found] == ["`visible` (_SingleProcessDataLoaderIter)"]
    assert "run.batches(loader)" in found[0]
    hidden = endless(loader())
    found = named(tmp_path / "b", lambda step, model: next(hidden))
    assert [line.partition(" goes on")[0] for line in found] == ["`hidden` (_SingleProcessDataLoaderIter)"]


@pytest.mark.parametrize("options", [{}, {"shuffle": True, "generator": torch.Generator()}])
def test_evaluation_is_no_alarm(options: dict[str, Any], tmp_path: Path) -> None:
    """A loader that is used in `aside` is not the training's: all of it, or a batch at a time."""
    other = loader(**options)
    assert named(tmp_path / "a", lambda step, model: list(other), aside=True) == []
    mine = iter(other)
    assert named(tmp_path / "b", lambda step, model: next(mine), aside=True) == []


def test_batches_are_no_alarm(tmp_path: Path) -> None:
    """The harness's own iterators and generators are not the user's to keep."""
    torch.manual_seed(0)
    with ls.Run.open(tmp_path, {}, progress=False) as run, warnings.catch_warnings():
        warnings.simplefilter("error")
        batches = run.batches(loader(shuffle=True, generator=torch.Generator()))
        stream = run.batches([[1], [2], [3]])
        for _ in run.steps(12, checkpoint_every=2):
            next(batches), next(stream)


def test_a_batch_fetched_ahead(tmp_path: Path) -> None:
    """As nanoGPT does: fetched at the end of a step for the next; what is fetched in its own step is not named."""
    torch.manual_seed(0)
    with ls.Run.open(tmp_path, {}, progress=False) as run, pytest.warns(RunWarning) as caught:
        ahead = torch.rand(3)
        for _ in run.steps(4):
            for _micro in range(2):
                inside = ahead * torch.rand(3)
            run.log(loss=inside.sum())
            ahead = torch.rand(3)
    assert [re.findall(r"`(\w+)` holds", str(each.message)) for each in caught] == [["ahead"]]


def test_a_look_keeps_nothing_alive(tmp_path: Path) -> None:
    """Frames of Python 3.11 keep the variables that they were asked for: a tensor of the second step must go."""
    with ls.Run.open(tmp_path, {}, progress=False) as run:
        gone = None
        for step in run.steps(3):
            if step == 2:
                held = None
                assert gone is not None
                assert gone() is None
            else:
                held = torch.rand(3)
                gone = weakref.ref(held)


def loops() -> dict[str, tuple[str, set[str]]]:
    """Bodies of a loop `for s in r:`, and what is carried by them, worked out by hand."""
    return {
        "fetched ahead": ("use(x); x = get()", {"x"}),
        "fetched inside": ("x = get(); use(x)", set()),
        "in an inner loop": ("for k in a:\n  x = get()\n use(x)", set()),
        "sum of an inner loop": ("t = 0\n for k in a:\n  t = t + get()\n use(t)", set()),
        "sum over steps": ("t = t + get(); use(t)", {"t"}),
        "only sometimes": ("if s: x = get()\n use(x)", {"x"}),
        "either way": ("if s: x = get()\n else: x = 0\n use(x)", set()),
        "read after the loop": ("y = get()", set()),
        "only read": ("use(x)", set()),
        "in a with": ("with c:\n  x = get()\n use(x)", set()),
        "one after the other": ("h, x = x, get()\n use(h)", {"x"}),
    }


@pytest.mark.parametrize("name", loops())
@pytest.mark.parametrize("inside", ["def f(r, a, x, t, c, get, use):\n {}", "{}"])
def test_what_a_loop_carries(name: str, inside: str) -> None:
    """Variables read before they are written on some way round, in a function and in a module."""
    body, expected = loops()[name]
    text = f"for s in r:\n {body}\nuse(y)" if "y = " in body else f"for s in r:\n {body}"
    text = inside.format(text.replace("\n", "\n " if inside != "{}" else "\n"))
    code = compile(text, "script.py", "exec")
    if inside != "{}":
        code = next(c for c in code.co_consts if hasattr(c, "co_code"))
    import dis

    head = next(i.offset for i in dis.get_instructions(code) if i.opname == "FOR_ITER")
    assert carried(code, head) == expected
