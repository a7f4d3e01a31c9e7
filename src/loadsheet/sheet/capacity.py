"""What this GPU holds: the largest batch, the longest sequence, the largest preset for each task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from loadsheet.arch.model import Model
from loadsheet.arch.read import model as find_model
from loadsheet.arch.read import models
from loadsheet.errors import LoadsheetError
from loadsheet.ledger import Estimate
from loadsheet.memory.serving import serving_memory, weight_items
from loadsheet.memory.states import paged_states
from loadsheet.memory.training import state_items, training_memory
from loadsheet.recipe import MAX_SIZE, Recipe, Serving, Training, on_device, recipe
from loadsheet.sheet.plan import learned_positions, verdict_of
from loadsheet.sheet.software import missing

Device = Literal["cuda", "cpu"]
LIMIT = MAX_SIZE  # where a search ends: what still fits there has no limit that matters


class Probe:
    """Memory alone, for changed options: what remedies and capacity ask over and over."""

    def __init__(self, sheet: Any) -> None:
        self.sheet = sheet
        self.usable: int = sheet.memory.usable_bytes

    def peak(self, model: Model | None = None, **options: Any) -> Estimate:
        """The peak of the same question with some options changed."""
        return self.peak_of(self.recipe(model, **options), model)

    def peak_of(self, made: Recipe, model: Model | None = None) -> Estimate:
        """The peak of a recipe of that question."""
        target = model or self.sheet.model
        if isinstance(made, Training):
            return training_memory(target, made, self.sheet.gpus).peak
        return serving_memory(target, made).peak

    def recipe(self, model: Model | None = None, **options: Any) -> Recipe:
        """The recipe of the same question with some options changed."""
        length = (model or self.sheet.model).max_length
        return on_device(
            recipe(max_length=length, **{**self.sheet.options, **options}), self.sheet.gpu.device
        )

    def verdict(self, peak: Estimate) -> str:
        """The verdict of a peak on this GPU."""
        return verdict_of(peak, self.usable)


def greatest(fits: Callable[[int], float], usable: float, start: int, limit: int) -> int:
    """The greatest n ≤ limit whose peak `fits(n)` is at most `usable`; 0 if none is.

    The peak grows with n, at least in a straight line: a secant lands near the answer, and bisection
    between what fits and what does not makes it exact.
    """
    low, low_peak = 0, fits(1)
    if low_peak > usable:
        return 0
    low, high = 1, limit + 1
    guess = max(min(start, limit), 2)
    while high - low > 1:
        peak = fits(guess)
        if peak <= usable:
            low, low_peak = guess, peak
        else:
            high = guess
        slope = (peak - low_peak) / (guess - low) if guess != low and peak != low_peak else None
        if slope is None and low > 1:
            base = fits(low - 1)
            slope = low_peak - base
        step = int((usable - low_peak) / slope) if slope and slope > 0 else low
        guess = min(max(low + step, low + 1), high - 1)
        if guess == high - 1 and high - low > 2 and high <= limit:
            guess = high - 1 if (high - low) < 8 else (low + high) // 2
    return low


@dataclass(frozen=True, slots=True)
class Capacity:
    """The three answers; a preset's name is None where none fits."""

    largest_batch: int
    longest_seq: int
    largest_presets: tuple[tuple[str, str | None, int], ...]  # (what, preset, parameters)
    at: tuple[int, int]  # (batch, seq) of the third answer

    def to_json(self) -> dict[str, Any]:
        """Batch, sequence, presets."""
        return {
            "largest_batch": self.largest_batch,
            "longest_seq": self.longest_seq,
            "largest_presets": [{"use": u, "model": m, "params": n} for u, m, n in self.largest_presets],
            "at": {"batch": self.at[0], "seq": self.at[1]},
        }


#: the lecture's "what one 80 GiB GPU can do": each use with its options
USES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("serve bf16", {"task": "serve", "weights": "bf16"}),
    ("serve int8", {"task": "serve", "weights": "int8"}),
    ("serve int4", {"task": "serve", "weights": "int4"}),
    ("full training", {"task": "train", "recompute": "full"}),
    ("full training, 8-bit Adam", {"task": "train", "recompute": "full", "optimizer": "adamw-8bit"}),
    ("LoRA", {"task": "lora", "recompute": "full"}),
    ("QLoRA", {"task": "qlora", "recompute": "full"}),
)
USE_SEQ = 2048


def capacity(sheet: Any) -> Capacity:
    """Find all three by planning again."""
    probe = Probe(sheet)
    r = sheet.recipe
    usable = probe.usable
    batch = greatest(lambda n: probe.peak(batch=n).high, usable, r.batch, LIMIT)
    longest = learned_positions(sheet.model) or LIMIT
    seq = greatest(lambda n: probe.peak(seq=n).high, usable, r.seq, longest)
    presets = largest_presets(usable, sheet.gpu.device)
    shown = tuple(f for f, made in zip(presets, _uses(), strict=True) if not missing(sheet.gpu, made))
    return Capacity(batch, seq, shown, (1, USE_SEQ))


@cache
def _uses() -> tuple[Recipe, ...]:
    return tuple(recipe(**options) for _, options in USES)


_largest: dict[tuple[int, str], tuple[tuple[str, str | None, int], ...]] = {}


def largest_presets(usable: int, device: Device = "cuda") -> tuple[tuple[str, str | None, int], ...]:
    """For each use, the largest preset that fits at batch 1 and 2,048 tokens (or the model's own limit)."""
    if (usable, device) not in _largest:
        found = tuple((use, *_largest_for(options, usable, device)) for use, options in USES)
        _largest[usable, device] = found
    return _largest[usable, device]


def _largest_for(options: dict[str, Any], usable: int, device: Device) -> tuple[str | None, int]:
    for preset in reversed(models()):
        if preset.params * 0.5 > usable:
            continue
        try:
            target = find_model(preset.name)
            seq = min(USE_SEQ, target.max_length or USE_SEQ)
            made: Recipe = on_device(recipe(**options, batch=1, seq=seq, max_length=None), device)
            if _resident(target, made) > usable:
                continue
            peak = (
                training_memory(target, made).peak
                if isinstance(made, Training)
                else serving_memory(target, made).peak
            )
        except LoadsheetError:
            continue
        if peak.high <= usable:
            return preset.name, preset.params
    return None, 0


def _resident(model: Model, made: Training | Serving) -> Any:
    """What stays in memory all the time: a quick lower bound before the full account."""
    if isinstance(made, Serving):
        return weight_items(model, made).amount
    return sum(item.amount for item in state_items(model, made)[0])


def checkpoint_bytes(sheet: Any) -> dict[str, int]:
    """Bytes of the weights alone, and of all that a resume needs: paged states too, wherever they are."""
    r = sheet.recipe
    if isinstance(r, Serving):
        return {"weights": int(weight_items(sheet.model, r).amount)}
    items = {i.name: i for i in state_items(sheet.model, r)[0]}
    if r.task == "train":
        weights = int(items["weights"].amount)
        rest = [items[name].amount for name in ("master weights", "optimizer states") if name in items]
    else:
        weights = int(items["adapter weights"].amount)
        rest = [items["optimizer states"].amount] if "optimizer states" in items else []
    return {"weights": weights, "resume": weights + int(sum(rest)) + paged_states(sheet.model, r)}
