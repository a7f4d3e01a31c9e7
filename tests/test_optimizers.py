"""States of the optimizers against torch.optim itself, on the same shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import loadsheet as ls
from loadsheet.lab.described import GPTSizes
from loadsheet.lab.models import GPT
from loadsheet.memory.states import state_items
from loadsheet.memory.training import training_memory
from loadsheet.recipe import Training

SIZES = GPTSizes(width=64, heads=4, layers=2, vocab=100, positions=32)


def _states(optimizer: str) -> float:
    """Bytes of the states that our account has for the small GPT in fp32."""
    model = ls.model(SIZES.config)
    items, *_ = state_items(model, Training(seq=32, precision="fp32", optimizer=optimizer))
    return float(next(i.amount for i in items if i.name == "optimizer states"))


def _measured(make: Any) -> int:
    """Bytes of the states that torch keeps after a step, without the step counters of one element."""
    module = GPT(SIZES)
    for p in module.parameters():
        p.grad = torch.zeros_like(p)
    optimizers = make(module)
    total = 0
    for optimizer in optimizers:
        optimizer.step()
        for state in optimizer.state.values():
            total += sum(
                t.numel() * t.element_size() for t in state.values() if torch.is_tensor(t) and t.dim()
            )
    return total


def _muon(module: GPT) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, AdamW for embeddings, head and vectors."""
    named = list(module.named_parameters())
    hidden = [p for n, p in named if p.dim() == 2 and ".h." in n]
    rest = [p for n, p in named if not (p.dim() == 2 and ".h." in n)]
    return [torch.optim.Muon(hidden), torch.optim.AdamW(rest)]


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("adamw", lambda m: [torch.optim.AdamW(m.parameters())]),
        ("sgd-momentum", lambda m: [torch.optim.SGD(m.parameters(), momentum=0.9)]),
        ("adafactor", lambda m: [torch.optim.Adafactor(m.parameters())]),
        ("muon", _muon),
    ],
)
def test_states_equal_torch(name: str, make: Any) -> None:
    """The bytes of the states, to the byte, as torch.optim keeps them for the same tensors."""
    assert _states(name) == _measured(make)


def test_lion_keeps_one_momentum() -> None:
    """Chen et al. 2023, algorithm 2: one exponential average, half of Adam's states."""
    assert _states("lion") == _states("adamw") / 2


def test_paged_states_are_not_on_the_gpu() -> None:
    """bitsandbytes' paged optimizers keep their states in managed memory: no item, and a lower peak."""
    model = ls.model("llama-3.2-1b")
    plain = training_memory(model, Training(seq=512, optimizer="adamw-8bit"))
    paged = training_memory(model, Training(seq=512, optimizer="adamw-8bit-paged"))
    assert paged.peak.low < plain.peak.low  # in the host, or on the GPU as long as there is room
    assert all(i.name != "optimizer states" for instant in paged.instants for i in instant.tensors.items)


def test_optimizer_in_backward_holds_no_gradients() -> None:
    """A step as soon as a gradient is made: at no instant are all 2·N bytes of gradients there."""
    model = ls.model("llama-3.2-1b")
    usual = training_memory(model, Training(seq=512, precision="pure-bf16"))
    early = training_memory(model, Training(seq=512, precision="pure-bf16", optimizer_form="in-backward"))
    all_of_them = 2 * model.params

    def gradients(account: Any) -> float:
        return max(i.amount for t in account.instants for i in t.tensors.items if i.name == "gradients")

    assert gradients(usual) == all_of_them
    held = [i.amount for t in early.instants for i in t.tensors.items if i.name == "gradients"]
    assert max(held, default=0) < all_of_them / 2
    assert early.peak.mid < usual.peak.mid


def test_paged_states_are_in_the_checkpoint() -> None:
    """A state_dict has them wherever they are: (2 + 4 + 8)·N bytes of Qwen3 4B; the page says which are paged."""
    sheet = ls.plan("qwen3-4b", "h100-sxm", optimizer="adamw-paged")
    assert sheet.checkpoint_bytes == {"weights": 2 * 4_022_468_096, "resume": 14 * 4_022_468_096}
    page = " ".join(str(sheet).split())
    assert "8 bytes per parameter, × N = 4,022,468,096: 29.97 GiB; and 29.97 GiB of optimizer states" in page
    blocks = {
        name: ls.plan("gpt2", "h100-sxm", optimizer=name) for name in ("adamw-8bit", "adamw-8bit-paged")
    }
    assert len({sheet.checkpoint_bytes["resume"] for sheet in blocks.values()}) == 1


@pytest.mark.parametrize("name", ["lion", "adafactor", "muon", "adamw-8bit-paged", "adamw-paged"])
def test_sheets_of_all_optimizers(name: str) -> None:
    """Every optimizer gives a sheet whose page says what its states are."""
    sheet = ls.plan("llama-3.2-1b", gpu="h100-sxm", task="train", optimizer=name, seq=1024)
    assert sheet.verdict == "fits"
    assert name in str(sheet)
