"""Memory of training: instants, optimizers, precisions, adapters, against papers, PEFT and bitsandbytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import loadsheet as ls
from loadsheet.arch.model import Model
from loadsheet.memory import MemoryAccount, training_memory
from loadsheet.memory.terms import Instant, format_bytes_of
from loadsheet.memory.training import optimizer_items, state_items, tape_training
from loadsheet.recipe import Training, recipe
from loadsheet.units import GIB


def train(model: Any, gpus: int = 1, **options: Any) -> MemoryAccount:
    """The account of a training step; batch 1 unless given."""
    found = ls.model(model)
    return training_memory(found, recipe(**{"task": "train", "batch": 1, **options}), gpus)


def allocated(account: MemoryAccount) -> float:
    """Bytes of the framework's tensors at their highest."""
    return float(account.allocated.mid)


def at(account: MemoryAccount, name: str) -> Instant:
    """The instant of that name."""
    return next(i for i in account.instants if i.name == name)


def amount(instant: Instant, name: str) -> float:
    """Bytes of one item of an instant; 0 if it has none."""
    item = instant.tensors.get(name)
    return 0 if item is None else float(item.estimate.mid)


def worst(account: MemoryAccount) -> str:
    """The instant whose tensors need most."""
    return max(account.instants, key=lambda i: i.tensors.total.mid).name


# --- instants -----------------------------------------------------------------------------------------------


def test_the_peak_is_one_instant_and_not_their_sum() -> None:
    """Gradients, activations and the loss's hill are never all there at once: Llama 3 8B, 8,192 tokens.

    By the closed forms: 14·N, 34·T·d per layer and 14·T·V at the loss; 16·N at the step; not all of it.
    """
    account, n, length = train("llama-3-8b", seq=8192), 8_030_261_248, 8192
    kept, hill = 32 * 34 * length * 4096, 14 * length * 128_256
    assert account.peak.mid == max(i.total.mid for i in account.instants)
    assert pytest.approx(14 * n + kept + hill, rel=0.005) == allocated(account)
    assert allocated(account) < 16 * n + kept + hill - n


@pytest.mark.parametrize(
    ("vocabulary", "options", "expected"),
    [
        (128_000, {"seq": 1024}, "backward of the loss"),
        (1000, {"seq": 16, "optimizer_form": "foreach"}, "optimizer step"),
        (100, {"seq": 2048, "recompute": "full", "batch": 4}, "backward of the last block"),
    ],
)
def test_which_instant_is_the_worst(vocabulary: int, options: dict[str, Any], expected: str) -> None:
    """Many tokens to choose from: the loss; few tokens and foreach: the step; recompute: a block made again."""
    small = {
        "model_type": "llama", "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 6,
        "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": vocabulary,
    }  # fmt: skip
    assert worst(train(small, precision="pure-bf16", **options)) == expected


def test_logits_take_six_bytes_and_then_fourteen() -> None:
    """2 + 4 bytes per token and vocabulary entry after forward, 2 + 4 + 4 + 4 at the worst of the loss.

    The final norm, written out, keeps 4 + 2 + 2 bytes per number of the last hidden state besides.
    """
    account, length = train("llama-3-8b", stack="hf", seq=4096), 4096
    instants = ("end of forward", "backward of the loss")
    each = [amount(at(account, i), "logits and loss") / length for i in instants]
    assert pytest.approx([6 * 128_256 + 8 * 4096, 14 * 128_256 + 8 * 4096], rel=1e-4) == each


def test_a_fused_loss_has_no_logits() -> None:
    """Liger (arXiv 2410.10989): 32,768 tokens and 151,936 entries are 18.5 GiB in fp32, saved almost whole."""
    eager = train("qwen2.5-7b", seq=32768, recompute="full")
    fused = train("qwen2.5-7b", seq=32768, recompute="full", loss="fused")
    saved = amount(at(eager, "backward of the loss"), "logits and loss")
    assert 18.5 < 32768 * 152_064 * 4 / GIB < 18.6
    assert saved >= 14 * 32768 * 152_064
    assert amount(at(fused, "backward of the loss"), "logits and loss") < 0.05 * saved


def test_recompute_still_holds_a_block_and_the_logits() -> None:
    """Korthikanti et al. 2022: 2·s·b·h per layer, and at the worst moment one whole block besides."""
    account, m = train("llama-3-8b", seq=8192, recompute="full"), ls.model("llama-3-8b")
    inputs = amount(at(account, "end of forward"), "block inputs (checkpoints)")
    assert inputs == 2 * 8192 * 4096 * m.num_layers
    one = at(account, "backward of the first block").tensors["one block, computed again, and its backward"]
    assert one.estimate.mid >= 34 * 8192 * 4096  # 8d + 4q + 4kv + 6f of this model is 34·d
    assert amount(at(account, "end of forward"), "logits and loss") >= 6 * 8192 * 128_256


def test_selective_recompute_means_nothing_with_flash() -> None:
    """There is no score matrix to drop (arXiv 2205.14135); a note says so."""
    plain, selective = train("llama-3-8b", seq=4096), train("llama-3-8b", seq=4096, recompute="selective")
    assert allocated(plain) == allocated(selective)
    assert any("selective" in note for note in selective.notes)


@pytest.mark.parametrize(
    ("options", "per_token"),
    [({"stack": "torch"}, 34), ({"stack": "hf", "repeat_kv": False}, 49), ({"stack": "hf"}, 52)],
)
def test_fused_and_written_out_blocks_keep_different_amounts(options: dict[str, Any], per_token: int) -> None:
    """Llama 3 8B: 34·d bytes per token and layer fused, 49 in transformers' modules, 52 with repeated keys."""
    kept = amount(at(train("llama-3-8b", seq=4096, **options), "end of forward"), "activations")
    assert pytest.approx(per_token, abs=0.1) == kept / (4096 * 4096 * 32)


def test_the_first_step_has_no_optimizer_states() -> None:
    """It peaks lower by exactly m and v: a run that survives its first step may die in the second."""
    account = train("llama-3-8b", seq=8192)
    first = next(i for i in account.instants if i.name.startswith("first step"))
    later = at(account, first.name.removeprefix("first step: "))
    assert later.tensors.total.mid - first.tensors.total.mid == 8 * 8_030_261_248


@pytest.mark.parametrize("options", [{"accumulation": 2}, {"keep_gradients": True}])
def test_gradients_live_at_the_loss_only_if_kept(options: dict[str, Any]) -> None:
    """set_to_none drops them after a step; accumulation or set_to_none=False holds 2·N through forward."""
    dropped, kept = train("llama-3-8b", seq=2048), train("llama-3-8b", seq=2048, **options)
    name = "backward of the loss"
    assert amount(at(dropped, name), "gradients") == 0
    assert at(kept, name).tensors.total.mid - at(dropped, name).tensors.total.mid == 2 * 8_030_261_248


def test_replicas_need_buckets_and_nothing_else() -> None:
    """DDP keeps a second copy of all gradients in its buckets, on every GPU, at every instant; states are whole."""
    one, eight = train("llama-3-8b", seq=2048), train("llama-3-8b", gpus=8, seq=2048)
    more = {
        b.tensors.total.mid - a.tensors.total.mid for a, b in zip(one.instants, eight.instants, strict=True)
    }
    assert more == {2 * 8_030_261_248}
    assert one.model_states.estimate.mid == eight.model_states.estimate.mid
    assert {i.name for i in eight.instants[0].around.items} - {
        i.name for i in one.instants[0].around.items
    } == {"NCCL buffers"}


def test_allocated_reserved_and_held_are_three_numbers() -> None:
    """max_memory_allocated ≤ max_memory_reserved ≤ what nvidia-smi shows: the allocator, then the context."""
    account = train("llama-3-8b", seq=2048)
    assert account.allocated.mid < account.reserved.mid < account.peak.mid
    context = next(i for i in account.worst.around.items if i.name == "CUDA context")
    assert pytest.approx(context.estimate.mid, rel=1e-9) == account.peak.mid - account.reserved.mid


# --- optimizers and precisions ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "form", "each"),
    [
        ("adamw", "fused", 0),
        ("adamw", "foreach", 4),
        ("sgd", "foreach", 0),
        ("adamw-8bit", "fused", 0),
        ("adamw-8bit", "foreach", 8),
    ],
)
def test_what_a_step_needs_for_a_moment(optimizer: str, form: str, each: int) -> None:
    """foreach takes the root of all second moments at once; 8-bit states are unpacked to fp32 for it."""
    step = at(train("llama-3-8b", seq=128, optimizer=optimizer, optimizer_form=form), "optimizer step")
    assert amount(step, "optimizer temporary") == each * 8_030_261_248


@pytest.mark.parametrize("form", ["loop", "in-backward"])
def test_eight_bit_states_of_one_tensor(form: str) -> None:
    """Tensor by tensor, two states of the largest, the embedding, are in fp32 for a moment: 8 bytes each."""
    step = at(train("llama-3-8b", seq=128, optimizer="adamw-8bit", optimizer_form=form), "optimizer step")
    assert amount(step, "optimizer temporary") == 8 * 128_256 * 4096


def test_a_step_in_backward_has_its_gradient() -> None:
    """One at a time: here that of the embedding, in 16 bits."""
    step = at(train("llama-3-8b", seq=128, optimizer_form="in-backward"), "optimizer step")
    assert amount(step, "gradient of the largest tensor") == 2 * 128_256 * 4096


def test_eight_bit_states() -> None:
    """A byte per number and fp32 constants per 256; below 4,096 numbers 32 bits (arXiv 2110.02861)."""
    states = optimizer_items("adamw-8bit", "fp32", {1_000_000: 3, 4095: 2})
    one = 3 * (1_000_000 + 4 * 3907) + 2 * 4095 * 4
    assert [item.estimate.mid for item in states] == [one, one]


@pytest.mark.parametrize(("precision", "weights", "gradients", "master", "states"), [
    ("mixed", 2, 2, 4, 8), ("amp", 4, 4, 0, 8), ("megatron", 2, 4, 4, 8), ("pure-bf16", 2, 2, 0, 4),
    ("fp32", 4, 4, 0, 8),
])  # fmt: skip
def test_bytes_of_each_copy(precision: str, weights: int, gradients: int, master: int, states: int) -> None:
    """ZeRO (arXiv 1910.02054), section 3.1; PyTorch's optimizers keep states in the dtype of the weights."""
    step = at(train("gpt2", seq=64, precision=precision), "optimizer step")
    names = ("weights", "gradients", "master weights", "optimizer states")
    assert [amount(step, n) / 124_439_808 for n in names] == [weights, gradients, master, states]


def test_autocast_holds_a_copy_of_every_matrix() -> None:
    """2 bytes for each parameter that multiplies, from forward to its backward (torch.amp's weight cache)."""
    account = train("llama-3-8b", seq=128, precision="amp")
    assert (
        amount(at(account, "end of forward"), "16-bit copies of weights")
        == 2 * ls.model("llama-3-8b").matmul_params
    )
    assert amount(at(account, "optimizer step"), "16-bit copies of weights") == 0


# --- adapters -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "rank", "targets", "expected"),
    [
        ("llama-2-7b", 8, {"q_proj", "v_proj"}, 4_194_304),  # PEFT's documentation: 0.0622 % of all
        ("llama-3-8b", 16, None, 41_943_040),  # Unsloth's notebooks, all linear layers
        ("mistral-7b-v0.1", 64, None, 167_772_160),
    ],
)
def test_trained_parameters_of_lora(model: str, rank: int, targets: set[str] | None, expected: int) -> None:
    """Σ r·(in + out), as PEFT prints them."""
    chosen = None if targets is None else frozenset(targets)
    made = recipe(task="lora", rank=rank, targets=chosen, batch=1, seq=64)
    assert isinstance(made, Training)
    assert state_items(ls.model(model), made)[1] == expected


@pytest.mark.parametrize("task", ["lora", "qlora"])
def test_only_adapters_have_gradients_and_states(task: str) -> None:
    """4 + 4 + 8 bytes for each of 41,943,040 parameters in fp32, none for the frozen eight billion."""
    step = at(train("llama-3-8b", task=task, rank=16, seq=256), "optimizer step")
    each = [amount(step, n) / 41_943_040 for n in ("adapter weights", "gradients", "optimizer states")]
    assert each == [4, 4, 8]


def test_lora_keeps_nearly_as_many_activations() -> None:
    """Frozen layers keep no input, but the path stays: more than two thirds of full training's (transformers)."""
    names = ("end of forward", "activations")
    full, lora = (
        amount(at(train("llama-3-8b", task=t, seq=2048, stack="hf"), names[0]), names[1])
        for t in ("train", "lora")
    )
    assert 2 / 3 < lora / full < 1.5


#: shape, double quantisation -> bytes of packed numbers, absmax, code and the second level (bitsandbytes 0.50.2)
PACKED = [
    ((4096, 4096), False, 9_437_248), ((4096, 4096), True, 8_655_940), ((1024, 4096), False, 2_359_360),
    ((14336, 4096), True, 30_293_060), ((64, 64), True, 3_208), ((100, 48), False, 2_764), ((33, 7), False, 196),
    ((33, 7), True, 1_216), ((128, 896), True, 60_256), ((4864, 896), False, 2_451_520), ((4864, 896), True, 2_249_324),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "double", "expected"), PACKED)
def test_nf4_has_exactly_bitsandbytes_bytes(shape: tuple[int, int], double: bool, expected: int) -> None:
    """functional.quantize_4bit(blocksize=64, quant_type="nf4"): the tensor and everything in its QuantState."""
    assert sum(format_bytes_of(shape, "nf4-double" if double else "nf4")) == expected


@pytest.mark.parametrize(("double", "bits"), [(False, 4.5), (True, 4.127)])
def test_nf4_bits_per_parameter(double: bool, bits: float) -> None:
    """QLoRA (arXiv 2305.14314), section 3: 32/64 bits of constants, or 8/64 + 32/(64·256)."""
    size = sum(format_bytes_of((8192, 8192), "nf4-double" if double else "nf4"))
    assert pytest.approx(bits, abs=0.0005) == size * 8 / 8192**2


@pytest.mark.parametrize(("tied", "expected"), [(False, 1_219_360), (True, 707_360)])
def test_peft_casts_what_is_not_packed_to_fp32(tied: bool, expected: int) -> None:
    """A small Llama after prepare_model_for_kbit_training (PEFT 0.21.2): every byte of its parameters."""
    small = {
        "model_type": "llama", "hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000, "tie_word_embeddings": tied,
    }  # fmt: skip
    frozen = amount(at(train(small, task="qlora", rank=8, seq=64), "end of forward"), "frozen weights")
    assert frozen == expected


def test_upcasting_costs_two_bytes_of_what_is_not_packed() -> None:
    """Llama 3 8B: embedding, head and norms, 1,050,939,392 parameters, in 4 bytes instead of 2."""
    sizes = [
        amount(at(train("llama-3-8b", task="qlora", seq=64, upcast=u), "end of forward"), "frozen weights")
        for u in (True, False)
    ]
    assert sizes[0] - sizes[1] == 2 * 1_050_939_392


def test_qlora_can_need_more_than_lora() -> None:
    """Where most parameters are a vocabulary (Gemma 3 270M: 63 %), fp32 for them outweighs 4 bits for the rest."""
    weights = {
        t: amount(at(train("gemma-3-270m", task=t, seq=64), "end of forward"), "frozen weights")
        for t in ("lora", "qlora")
    }
    assert weights["lora"] == 2 * 268_098_176
    assert weights["qlora"] > weights["lora"]


# --- one formula, two uses ------------------------------------------------------------------------------------

ARRAYS = [
    {}, {"stack": "hf"}, {"recompute": "full"}, {"attention": "eager", "recompute": "selective"}, {"loss": "chunked"},
    {"loss": "fused"}, {"precision": "amp"}, {"optimizer": "adamw-8bit"}, {"task": "lora"}, {"task": "qlora"},
]  # fmt: skip


@pytest.mark.parametrize("model", ["gpt2", "llama-3-8b", "mixtral-8x7b", "gemma-3-1b"])
@pytest.mark.parametrize("options", ARRAYS, ids=str)
def test_arrays_give_what_numbers_give(model: str, options: dict[str, Any]) -> None:
    """Batch and length as arrays: every instant's every entry is the scalar answer."""
    found, made = ls.model(model), recipe(**{"task": "train", "batch": 1, "seq": 64, **options})
    assert isinstance(made, Training)
    batch, length = np.array([[1], [3]]), np.array([[64, 1000, 5000]])
    many = instants(found, replace(made, batch=batch, seq=length))
    for row, b in enumerate(batch[:, 0]):
        for column, t in enumerate(length[0]):
            one = instants(found, replace(made, batch=int(b), seq=int(t)))
            assert one == {n: float(np.broadcast_to(v, (2, 3))[row, column]) for n, v in many.items()}


def instants(model: Model, made: Training) -> dict[str, Any]:
    """Bytes of the tensors at each instant of a steady step."""
    account = training_memory(model, made, 1, tape_training(model, made))
    return {i.name: i.tensors.total.mid for i in account.instants if not i.name.startswith("first step")}


def test_the_worst_instant_of_arrays() -> None:
    """The worst instant of arrays is that of their largest entry."""
    made = recipe(task="train", batch=1, seq=64)
    assert isinstance(made, Training)
    account = training_memory(ls.model("gpt2"), replace(made, seq=np.array([64, 128])))
    assert account.worst.name


def test_fp8_keeps_one_byte_of_each_linear_input() -> None:
    """Llama 3 8B, fused: norms 4d, five inputs of 1·d, o's 1·q, down's 1·f, attention 4q + 4kv, gate and up 4f."""
    m, tokens = ls.model("llama-3-8b"), 1024
    made = recipe(task="train", precision="fp8", batch=1, seq=tokens)
    assert isinstance(made, Training)
    summary = tape_training(m, made).runs[0][0]
    d, q, kv, f, h = 4096, 4096, 1024, 14336, 32
    expected = tokens * (9 * d + 5 * q + 4 * kv + 5 * f + 4 * h + 8)
    assert summary.saved - summary.copies == expected


def test_fp8_copies_of_the_weights() -> None:
    """Two bytes of every matrix of the blocks, and the states of mixed precision: 16 bytes per parameter."""
    m = ls.model("llama-3-8b")
    made = recipe(task="train", precision="fp8", batch=1, seq=1024)
    assert isinstance(made, Training)
    account = training_memory(m, made)
    forward = next(i for i in account.instants if i.name == "end of forward")
    matrices = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    assert forward.tensors["8-bit copies of weights"].amount == 2 * matrices
    assert account.model_states.amount == 16 * 8_030_261_248


_HRM = {
    "model_type": "hrm_text", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 12,
    "num_attention_heads": 4, "head_dim": 16, "max_position_embeddings": 64, "num_layers_per_stack": 2,
    "H_cycles": 2, "L_cycles": 3, "L_bp_cycles": [2],
}  # fmt: skip


def test_a_looped_block_keeps_an_input_for_each_call_with_gradients() -> None:
    """HRM's 4 layers are called 16 times, 6 of them without autograd: as often as transformers' own module says."""
    import torch
    from transformers import AutoModelForCausalLM, HrmTextConfig
    from transformers.modeling_layers import GradientCheckpointingLayer

    config = HrmTextConfig(**{k: v for k, v in _HRM.items() if k != "model_type"})
    module = AutoModelForCausalLM.from_config(config)
    graded = []
    for part in module.modules():
        if isinstance(part, GradientCheckpointingLayer):
            part.register_forward_pre_hook(lambda *_: graded.append(torch.is_grad_enabled()))
    module(input_ids=torch.zeros(2, 32, dtype=torch.long), use_cache=False)
    calls = sum(graded)
    assert (len(graded), calls) == (16, 10)
    account = train(_HRM, precision="fp32", batch=2, seq=32, recompute="full")
    each = 2 * 32 * 64 * 4  # B·T·d numbers in fp32
    assert amount(at(account, "end of forward"), "block inputs (checkpoints)") == calls * each
    others = amount(at(account, "backward of the last block"), "activations of earlier blocks")
    assert others == (calls - 1) * each


def test_inputs_of_another_width_count_as_they_are() -> None:
    """Mamba's residual stream is fp32 after its first block (`residual_in_fp32`): 2 bytes there, then 4."""
    mamba = {  # state-spaces/mamba-130m-hf, config.json
        "model_type": "mamba", "hidden_size": 768, "num_hidden_layers": 24, "vocab_size": 50280,
        "state_size": 16, "conv_kernel": 4, "expand": 2, "time_step_rank": 48, "use_conv_bias": True,
    }  # fmt: skip
    account = train(mamba, seq=1024, recompute="full")
    found = amount(at(account, "end of forward"), "block inputs (checkpoints)")
    assert found == 1024 * 768 * (2 + 23 * 4)
