"""Experiment 4: what a checkpoint must hold, shown by leaving things out.

A window language model is trained for 600 steps with a checkpoint every 100. It crashes in the 250th step
and goes on from the 200th: once through `loadsheet.Run`, and then by hand, as scripts commonly do it, with
everything and with one part or another forgotten. Nothing fails, nothing warns; only the bits tell.
"""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from loadsheet.errors import LoadsheetError
from loadsheet.lab.measured import reproducible, versions
from loadsheet.lab.report import Figure, Number, Report, Section, Table, exactly

STEPS, WARM_UP, EVERY, CRASH, BATCH = 600, 60, 100, 250, 32
RATE = 3e-3
WINDOW, EMBEDDING, HIDDEN = 8, 24, 128
#: each word can be followed by the next two or by the fourth, so the text can be learnt but not known;
#: 23 letters and the space
WORDS = (
    *(
        "save",
        "the",
        "model",
        "before",
        "a",
        "cloud",
        "taker",
        "pulls",
        "it",
        "back",
        "and",
        "keep",
        "memory",
    ),
    *(
        "of",
        "every",
        "index",
        "weight",
        "buffer",
        "rank",
        "key",
        "checkpoint",
        "gradient",
        "loss",
        "value",
        "step",
    ),
)

Part = str  # "optimizer", "scheduler", "random"
EVERYTHING = frozenset({"optimizer", "scheduler", "random"})


class WindowModel(nn.Module):
    """The next character from the last eight: embedding, one hidden layer, logits."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, EMBEDDING)
        self.hidden = nn.Linear(WINDOW * EMBEDDING, HIDDEN)
        self.head = nn.Linear(HIDDEN, vocab)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits, (B, V), of windows, (B, 8)."""
        return self.head(torch.tanh(self.hidden(self.embedding(ids).flatten(1))))


def rate(step: int) -> float:
    """Warm-up and cosine as one factor.

    >>> round(RATE * rate(0), 10), round(RATE * rate(200), 8)
    (5e-05, 0.00252936)
    """
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.5 * (1 + math.cos(math.pi * (step - WARM_UP) / (STEPS - WARM_UP)))


def windows() -> tuple[Tensor, Tensor, int]:
    """Character ids of a text, as training and validation parts, and the size of the vocabulary."""
    dice = torch.Generator().manual_seed(0)
    at, text = 0, ""
    for jump in torch.randint(3, (6000,), generator=dice).tolist():
        text += WORDS[at] + " "
        at = (at + (1, 2, 4)[jump]) % len(WORDS)
    characters = sorted(set(text))
    ids = torch.tensor([characters.index(c) for c in text])
    return ids[:-4000], ids[-4000:], len(characters)


class Training:
    """Model, optimizer, scheduler and data of one attempt, built anew as a started program builds them."""

    def __init__(self, *, scheduler: bool = True) -> None:
        torch.manual_seed(0)
        self.train, self.held_out, vocab = windows()
        self.model = WindowModel(vocab)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE)
        self.scheduler: Any = LambdaLR(self.optimizer, rate) if scheduler else None
        self.rates: list[float] = []

    def step(self) -> float:
        """One step on a random batch; the loss."""
        x, y = _cut(self.train, torch.randint(len(self.train) - WINDOW, (BATCH,)))
        loss = F.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        self.optimizer.step()
        self.scheduler.step()
        return loss.item()

    def loss(self) -> float:
        """On the whole held-out text."""
        x, y = _cut(self.held_out, torch.arange(len(self.held_out) - WINDOW))
        with torch.no_grad():
            return F.cross_entropy(self.model(x), y).item()

    def state(self) -> dict[str, Any]:
        """Everything, by hand."""
        parts = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        states = {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}
        return {**states, "random": torch.get_rng_state()}

    def restore(self, state: dict[str, Any], parts: frozenset[Part]) -> None:
        """The weights, and of the rest only `parts`."""
        self.model.load_state_dict(state["model"])
        if "optimizer" in parts:
            self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        if self.scheduler is None:  # the trap: building it sets the optimizer's rate to that of step 0
            self.scheduler = LambdaLR(self.optimizer, rate)
        if "scheduler" in parts:
            self.scheduler.load_state_dict(state["scheduler"])
        if "random" in parts:
            torch.set_rng_state(state["random"])


def _cut(text: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Windows, (B, 8), and the character after each, (B,)."""
    return text[at[:, None] + torch.arange(WINDOW)], text[at + WINDOW]


@dataclass(frozen=True)
class Ending:
    """How an attempt ended: loss on the held-out text, weights, the first rate after resuming, all losses."""

    loss: float
    weights: Tensor
    rate: float
    losses: tuple[float, ...]

    def same(self, other: Ending) -> bool:
        """Whether every bit of the weights is the same."""
        return torch.equal(self.weights.view(torch.int32), other.weights.view(torch.int32))

    def first_difference(self, other: Ending) -> int | None:
        """The first step after the checkpoint whose loss is another, counted from 1; None if none is."""
        mine, others = self.losses[-(STEPS - FROM) :], other.losses[-(STEPS - FROM) :]
        return next((FROM + k + 1 for k, (a, b) in enumerate(zip(mine, others, strict=True)) if a != b), None)


FROM = (CRASH - 1) // EVERY * EVERY


def _ending(training: Training, losses: list[float], resumed: bool) -> Ending:
    weights = torch.cat([p.detach().flatten() for p in training.model.parameters()])
    return Ending(training.loss(), weights, training.rates[0 if resumed else FROM], tuple(losses))


def uninterrupted() -> tuple[Ending, dict[str, Any]]:
    """All steps at one go, and the state after 200 of them."""
    training, losses = Training(), []
    state: dict[str, Any] = {}
    for step in range(STEPS):
        if step == FROM:
            state = training.state()
        losses.append(training.step())
    return _ending(training, losses, False), state


def by_hand(state: dict[str, Any], parts: frozenset[Part], *, late: bool = False) -> Ending:
    """Resumed from the state with only some parts; `late`: the scheduler built after the optimizer was loaded."""
    training = Training(scheduler=not late)
    training.restore(state, parts)
    losses = [training.step() for _ in range(FROM, STEPS)]
    return _ending(training, losses, True)


class _Crash(Exception):
    """The machine is gone."""


def through_the_run() -> tuple[Ending, int, int]:
    """The same with `loadsheet.Run`; the step it went on from, and how many complete steps were lost."""
    from loadsheet.run.loop import Run

    config = {"steps": STEPS, "warm_up": WARM_UP, "rate": RATE, "batch": BATCH}
    completed = 0
    with tempfile.TemporaryDirectory() as folder:
        for crash in (CRASH, None):
            with Run.open(folder, config, progress=False) as run, suppress(_Crash):
                training, losses, first = Training(), [], None
                run.keep(model=training.model, optimizer=training.optimizer, scheduler=training.scheduler)
                for step in run.steps(STEPS, checkpoint_every=EVERY):
                    first = step if first is None else first
                    if step + 1 == crash:
                        completed = step
                        raise _Crash
                    losses.append(training.step())
                    run.log(loss=losses[-1])
        return _ending(training, losses, True), first or 0, completed - (first or 0)


#: what is left out, in words -> what is restored besides the weights
ABLATIONS: dict[str, frozenset[Part]] = {
    "complete, by hand": EVERYTHING,
    "no optimizer": EVERYTHING - {"optimizer"},
    "no scheduler": EVERYTHING - {"scheduler"},
    "no random state": EVERYTHING - {"random"},
    "no optimizer, no random state": frozenset({"scheduler"}),
    "no optimizer, no scheduler": frozenset({"random"}),
    "weights only": frozenset(),
}
LATE = "complete, scheduler built last"


def experiment(title: str, *, timing: bool, progress: Callable[[str], None]) -> Report:
    """All of it; which rows are bitwise equal is judged, the losses are this machine's."""
    try:
        import loadsheet.run.loop  # noqa: F401
    except ImportError as error:
        message = f"lab 4: {error.name} is not installed"
        raise LoadsheetError(message, "pip install 'loadsheet[run]'") from None
    with reproducible():
        progress("600 steps at one go")
        whole, state = uninterrupted()
        progress("through the run: crash and resume")
        resumed, start, lost = through_the_run()
        endings = {"complete, by `loadsheet.Run`": resumed}
        for name, parts in ABLATIONS.items():
            progress(f"resumed by hand: {name}")
            endings[name] = by_hand(state, parts)
        endings[LATE] = by_hand(state, EVERYTHING, late=True)
    count = sum(p.numel() for p in Training().model.parameters())
    return Report(
        title, (_setting(count, start, lost), _table(whole, endings), _bits(whole, endings)), versions()
    )


def _setting(count: int, start: int, lost: int) -> Section:
    vocab = len({c for word in WORDS for c in word}) + 1
    ours = vocab * EMBEDDING + (WINDOW * EMBEDDING + 1) * HIDDEN + (HIDDEN + 1) * vocab
    return Section(
        "The experiment",
        (
            "V·d + (8·d + 1)·h + (h + 1)·V parameters, V = 24 characters, d = 24, h = 128",
            "AdamW at 3e-3; warm-up over 60 steps and a cosine as one LambdaLR; batches drawn at random",
        ),
        (
            Figure("parameters", "parameters", "count", ours, None, count),
            Figure("steps", "steps", "count", STEPS, lecture=exactly(600)),
            Figure("start", "goes on from step", "count", FROM, None, start, exactly(200)),
            Figure(
                "lost", "complete steps lost", "count", CRASH - 1 - FROM, None, lost, exactly(49, "201 … 249")
            ),
        ),
    )


def _table(whole: Ending, endings: dict[str, Ending]) -> Section:
    rows: list[tuple[str, tuple[Number | None, ...]]] = [
        ("uninterrupted", (whole.loss, None, None, whole.rate, None))
    ]
    for name, end in endings.items():
        same = end.same(whole)
        rows.append((name, (end.loss, end.loss - whole.loss, same, end.rate, end.first_difference(whole))))
    better = [name for name, end in endings.items() if end.loss < whole.loss]
    return Section(
        "Resumed from step 200: the loss on held-out text after step 600",
        table=Table(
            ("", "loss", "difference", "bitwise equal", "first rate", "differs from step"),
            ("loss", "difference", "yes or no", "learning rate", "count"),
            tuple(rows),
        ),
        notes=(
            "Every row ran to its end without an error or a warning.",
            *(
                [f"Lower than uninterrupted: {'; '.join(better)}. Another model, not a worse one."]
                if better
                else []
            ),
            "Losses depend on the machine, which bits agree does not. The lecture's own text is not known; ours "
            "is made of the words of a small grammar.",
        ),
    )


def _bits(whole: Ending, endings: dict[str, Ending]) -> Section:
    figures = []
    for name, end in endings.items():
        complete = name.startswith("complete") and name != LATE
        # the lecture does not have the last one
        said = None if name == LATE else exactly(int(complete), "bit for bit" if complete else "another")
        figures.append(
            Figure(
                f"same.{name}",
                name,
                "yes or no",
                int(complete),
                None,
                int(end.same(whole)),
                said,
            )
        )
    rates = [
        Figure(
            f"rate.{name}",
            f"first rate: {name}",
            "learning rate",
            RATE * rate(step),
            None,
            endings[name].rate,
        )
        for name, step in (
            ("complete, by hand", FROM),
            ("no optimizer", 0),
            ("no scheduler", FROM),
            ("weights only", 0),
            (LATE, 0),
        )
    ]
    notes = (
        "The rate lives in the optimizer; the scheduler only counts. Without the optimizer's state the first "
        "step has the rate of step 0, without the scheduler's every step after the first.",
        "Built after the optimizer was loaded, a LambdaLR sets the rate back to that of step 0 for one step: "
        "everything was saved, everything was loaded, and it is another model. `loadsheet.Run` restores in the "
        "order that works, and refuses this one.",
    )
    return Section("The same bits", (), (*figures, *rates), notes=notes)
