"""The tape against closed forms from papers, against PyTorch's own counts, and against brute force."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadsheet.arch.families import build
from loadsheet.arch.layers.base import Embedding, Layer, Linear, Norm, NormStyle
from loadsheet.arch.layers.mlp import MLP
from loadsheet.arch.model import Block, Model, Taped
from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Summary, Tensor
from loadsheet.arch.work import Adapter, Execution, Work
from loadsheet.compute.flops import step_flops

# the sizes of the closed forms: d, q = h·d_h, kv = h_kv·d_h, f, V
D, HEADS, KV_HEADS, HEAD_DIM, F, V = 96, 6, 2, 24, 160, 300
Q, KV = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
LLAMA = {
    "model_type": "llama", "hidden_size": D, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM, "intermediate_size": F, "num_hidden_layers": 3, "vocab_size": V,
}  # fmt: skip
B, T = 3, 40


def one_block(model: Model, execution: Execution, work: Work | None = None, **options: Any) -> Summary:
    """The summary of the first block."""
    return model.walk(lambda: Ops(work or Work(B, T), execution, **options)).runs[0][0]


def kept(taped: Taped) -> Any:
    """Bytes that autograd keeps for the whole model, what blocks share counted once."""
    summaries = [(taped.before, 1), *taped.runs, (taped.after, 1)]
    shared = {
        storage: None for summary, _ in summaries for storage in summary.shared if storage in taped.tables
    }
    return sum(s.saved * n for s, n in summaries) + sum(storage.bytes for storage in shared)


# -- closed forms --------------------------------------------------------------------------------------------


def test_fused_llama_block() -> None:
    """One kernel per norm, activation and attention: B·T·(8d + 4q + 4kv + 6f), log-sum-exps, statistics.

    Per token and in bf16: norm input and output 2·(2d + 2d); rotated q, k and v, and the output 4q + 4kv;
    gate, up and their product 6f. fp32: one log-sum-exp per head (Dao et al. 2022, arXiv 2205.14135,
    algorithm 1) and one root mean square per norm.
    """
    expected = B * T * (8 * D + 4 * Q + 4 * KV + 6 * F) + 4 * HEADS * B * T + 2 * 4 * B * T
    assert expected == one_block(build(LLAMA), Execution()).saved


@pytest.mark.parametrize(("repeat", "kv"), [(False, KV), (True, Q)])
def test_eager_llama_block(repeat: bool, kv: int) -> None:
    """transformers' modules: B·T·(16d + 4q + 4kv′ + 8f), kv′ = q where KV heads are repeated.

    Each norm keeps its input in fp32 (4d), the normed 16-bit copy that meets the weight (2d) and its output
    (2d); silu keeps gate, the product keeps silu and up, down keeps the product (8f).
    """
    expected = B * T * (16 * D + 4 * Q + 4 * kv + 8 * F) + 4 * HEADS * B * T + 2 * 4 * B * T
    assert (
        expected
        == one_block(build(LLAMA), Execution(attention="sdpa", kernels="eager", repeat_kv=repeat)).saved
    )


def test_korthikanti() -> None:
    """A GPT block in 16 bit with dropout: s·b·h·(34 + 5·a·s/h) (Korthikanti et al. 2022, arXiv 2205.05198, eq. 1).

    GPT-2 as we take it differs in one term: the paper leaves the two statistics of each LayerNorm out, which
    are 2·2 fp32 numbers per token.
    """
    s, b, h, a = T, B, D, HEADS
    gpt2 = build(
        {"model_type": "gpt2", "n_embd": h, "n_head": a, "n_layer": 2, "vocab_size": V, "n_positions": 64}
    )
    paper = s * b * (34 * h + 5 * a * s)
    statistics = 2 * 2 * 4 * s * b
    assert paper + statistics == one_block(gpt2, Execution(attention="eager")).saved
    # without dropout: three masks of one byte and, since nothing stands between softmax and mix, one matrix less
    without = paper - 2 * s * b * h - a * s * s * b - 2 * a * s * s * b
    assert without + statistics == one_block(gpt2, Execution(attention="eager"), dropout=False).saved
    # one-kernel attention: no matrices, but the output again (the projection's input, already counted)
    # and one fp32 number per head and token
    flash = 34 * s * b * h + 4 * a * s * b
    assert flash + statistics == one_block(gpt2, Execution()).saved
    # GELU written out in Python (gelu_new) keeps three more tensors of width 4h
    assert flash + statistics + 24 * s * b * h == one_block(gpt2, Execution(kernels="eager")).saved


# -- the tiny GPT: exactly what saved_tensors_hooks and FlopCounterMode count ----------------------------------


class WrittenOutAttention(Layer):
    """Attention as in a first lecture: q·kᵀ, scale, a new boolean mask, softmax, times v."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, width // heads
        self.q, self.k, self.v, self.o = (
            self.add(name, Linear(width, width, bias=True, role="attention", symbol="d")) for name in "qkvo"
        )

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        q, k, v = (layer.forward(x, tape) for layer in (self.q, self.k, self.v))
        reach: dict[str, Any] = {"window": None, "chunk": None}
        scores = tape.pointwise("scale", tape.scores(q, k, heads=self.heads, key_dim=self.head_dim, **reach))
        mask = tape.new(tape.work.new, tape.work.context, "T", "bool")
        weights = tape.softmax(tape.masked(scores, mask))
        mixed = tape.mix(weights, v, heads=self.heads, value_dim=self.head_dim, symbol="d", **reach)
        return self.o.forward(tape.copy(mixed), tape)


def tiny_gpt(layers: int, d: int = 256, h: int = 8, vocabulary: int = 1000) -> Model:
    """Pre-norm GPT, exact GELU, no dropout, learned positions, untied head without bias."""
    norm = NormStyle("layer", bias=True)
    mlp = MLP(d, 4 * d, "gelu", bias=True)
    block = Block(WrittenOutAttention(d, h), mlp, norm_1=Norm(d, norm), norm_2=Norm(d, norm))
    return Model(
        name="tiny", model_type="tiny", hidden_size=d, vocab_size=vocabulary, max_length=1024,
        embedding=Embedding(vocabulary, d), embedding_name="tokens", runs=((block, layers),),
        final_norm=Norm(d, norm), final_norm_name="norm", head=Linear(d, vocabulary, role="head", symbol="V"),
        head_name="head", tied=False, extras=(("positions", Embedding(1024, d)),),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("b", "t", "layers", "expected"),
    [  # measured with torch 2.13 on the CPU, saved_tensors_hooks, each storage once, parameters left out
        (4, 64, 4, 20_460_036),
        (8, 64, 4, 40_903_172),
        (16, 64, 4, 81_789_444),
        (8, 64, 2, 22_004_228),
        (8, 64, 8, 78_701_060),
        (4, 32, 4, 9_701_636),
        (4, 128, 4, 45_147_140),
        (4, 256, 4, 107_202_564),
        (4, 512, 4, 282_038_276),
        (8, 256, 4, 214_140_932),
    ],
)
def test_tiny_gpt_keeps(b: int, t: int, layers: int, expected: int) -> None:
    """To the byte what PyTorch keeps, and the closed form of it."""
    d, h, vocabulary = 256, 8, 1000
    blocks = layers * (16 * d + 4 + h * t)
    ends = 2 * d + 2 + vocabulary + 2  # final norm, head, log-probabilities, token ids
    assert expected == 4 * b * t * (blocks + ends) + layers * t * t + 8 * t + 4
    taped = tiny_gpt(layers).walk(
        lambda: Ops(Work(b, t), Execution(kernels="eager"), dtype="fp32", grad_bytes=4)
    )
    assert expected == kept(taped)


@pytest.mark.parametrize(
    ("b", "t", "layers", "expected"),
    [  # FlopCounterMode of torch 2.13, forward and backward, per token
        (4, 32, 4, 20_803_584),
        (4, 64, 4, 21_196_800),
        (8, 64, 2, 11_366_400),
        (8, 64, 8, 40_857_600),
        (4, 128, 4, 21_983_232),
        (4, 256, 4, 23_556_096),
        (4, 512, 4, 26_701_824),
    ],
)
def test_tiny_gpt_flops(b: int, t: int, layers: int, expected: int) -> None:
    """To the FLOP what PyTorch counts, attention in full; and 6·N + 12·L·T·d over the matrices alone."""
    model = tiny_gpt(layers)
    taped = model.walk(lambda: Ops(Work(b, t), Execution(), dtype="fp32", grad_bytes=4))
    flops = step_flops(taped, b * t, "none")
    assert expected * b * t == flops.full
    assert expected == 6 * model.matmul_params + 12 * layers * t * 256
    assert flops.full - flops.model == 3 * layers * 2 * 2 * 256 * b * (t * t - t * (t + 1) // 2)


# -- one formula, two uses -------------------------------------------------------------------------------------

MODELS = {
    "llama": LLAMA,
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_head": 2, "n_layer": 3, "vocab_size": 50, "n_positions": 4096},
    "gemma2": {**LLAMA, "model_type": "gemma2", "sliding_window": 16},
    "qwen3": {**LLAMA, "model_type": "qwen3"},
    "mixtral": {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": {
        **LLAMA, "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16,
    },
    "llama4_text": {
        **LLAMA, "model_type": "llama4_text", "num_local_experts": 4, "num_experts_per_tok": 1,
        "intermediate_size_mlp": 64, "attention_chunk_size": 16,
    },
    "phi": {**LLAMA, "model_type": "phi"},
    "deepseek_v3": {
        "model_type": "deepseek_v3", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3,
        "vocab_size": 100, "intermediate_size": 96, "moe_intermediate_size": 32, "n_routed_experts": 4,
        "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "q_lora_rank": 24,
        "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
    },
}  # fmt: skip
BUILT = {name: build(config) for name, config in MODELS.items()}
executions = st.builds(
    Execution,
    attention=st.sampled_from(["eager", "sdpa", "flash"]),
    kernels=st.sampled_from(["eager", "fused"]),
    loss=st.sampled_from(["eager", "chunked", "fused"]),
    repeat_kv=st.booleans(),
    recompute=st.sampled_from(["none", "selective", "full"]),
)
sizes = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 100)), min_size=1, max_size=4)
NUMBERS = [
    "saved", "held", "forward_peak", "backward_peak", "forward_flops", "forward_flops_full", "recomputed_flops",
    "input_grad_flops", "weight_grad_flops", "weight_grad_bytes", "input_bytes", "input_kept", "copies", "touched",
]  # fmt: skip


@given(st.sampled_from(sorted(BUILT)), executions, sizes, st.booleans(), st.sampled_from(["bf16", "fp32"]))
def test_arrays_equal_numbers(
    name: str, execution: Execution, many: list[tuple[int, int]], training: bool, dtype: str
) -> None:
    """A walk over arrays of batch and length gives, element by element, the walks over the numbers."""
    work = Work(np.array([b for b, _ in many]), np.array([t for _, t in many]))

    def walk(w: Work) -> list[tuple[Summary, int]]:
        taped = BUILT[name].walk(lambda: Ops(w, execution, training=training, dtype=dtype), loss=training)
        return [(taped.before, 1), *taped.runs, (taped.after, 1)]

    together = walk(work)
    for index, (b, t) in enumerate(many):
        alone = walk(Work(b, t))
        for (array, count), (number, same) in zip(together, alone, strict=True):
            assert count == same
            for field in NUMBERS:
                value = np.broadcast_to(getattr(array, field), len(many))[index]
                assert getattr(number, field) == value, field


# -- pairs and caches --------------------------------------------------------------------------------------------


@given(
    new=st.integers(1, 40), past=st.integers(0, 40), window=st.none() | st.integers(1, 50),
    chunk=st.none() | st.integers(1, 50), causal=st.booleans(),
)  # fmt: skip
def test_pairs_against_brute_force(
    new: int, past: int, window: int | None, chunk: int | None, causal: bool
) -> None:
    """Count the (query, key) pairs one by one: causal, within the window or the query's own chunk."""
    if chunk is not None:
        window = None
    count = 0
    for query in range(past, past + new):
        for key in range(past + new):
            seen = key <= query
            if window is not None:
                seen = seen and query - key < window
            if chunk is not None:
                seen = seen and query // chunk == key // chunk
            count += seen or not causal
    assert count == Work(2, new, past, causal).pairs(window, chunk)


def cache_numbers(config: dict[str, Any], work: Work) -> int:
    """Elements of the whole cache."""
    return sum(tensor.elements * count for tensor, count in build(config).cache(work))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # Llama 2 70B: 2 · 80 layers · 8 KV heads · 128 · 2 bytes (Touvron et al. 2023, arXiv 2307.09288, table 1)
        (
            {
                "model_type": "llama", "hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8,
                "num_hidden_layers": 80, "intermediate_size": 28672, "vocab_size": 32000,
            },
            327_680,
        ),
        # Llama 2 7B: 32 KV heads, 32 layers
        (
            {
                "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
                "intermediate_size": 11008, "vocab_size": 32000,
            },
            524_288,
        ),
        # DeepSeek-V3: 512 + 64 numbers per token and layer (arXiv 2412.19437, section 4.2), 61 layers
        (
            {
                "model_type": "deepseek_v3", "hidden_size": 7168, "num_attention_heads": 128,
                "num_hidden_layers": 61, "vocab_size": 129280, "intermediate_size": 18432,
                "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
                "num_experts_per_tok": 8, "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512,
                "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
            },
            576 * 61 * 2,
        ),
    ],
)  # fmt: skip
def test_cache_per_token(config: dict[str, Any], expected: int) -> None:
    """Bytes per token of a 16-bit cache; twice as many tokens or sequences take twice as much."""
    assert expected == 2 * cache_numbers(config, Work(1, 1))
    assert 2048 * 3 * expected == 2 * cache_numbers(config, Work(3, 48, 2000))


def test_cache_of_windows() -> None:
    """Gemma 3 12B: 40 of 48 layers hold at most 1,024 tokens (Gemma Team 2025, arXiv 2503.19786, section 2)."""
    config = {
        "model_type": "gemma3_text", "hidden_size": 3840, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 256, "num_hidden_layers": 48, "intermediate_size": 15360, "vocab_size": 262208,
        "sliding_window": 1024, "sliding_window_pattern": 6,
    }  # fmt: skip
    per_layer = 2 * 8 * 256
    assert 48 * 500 * per_layer == cache_numbers(config, Work(1, 500))
    assert (40 * 1024 + 8 * 32_768) * per_layer == cache_numbers(config, Work(1, 1, 32_767))


def test_cache_of_chunks() -> None:
    """Llama 4 (text): three of four layers see their own chunk of 8,192 tokens, and hold no more."""
    config = {**MODELS["llama4_text"], "num_hidden_layers": 8, "attention_chunk_size": 8192}
    assert cache_numbers(config, Work(1, 1, 99_999)) == (6 * 8192 + 2 * 100_000) * 2 * KV


# -- frozen weights and adapters -----------------------------------------------------------------------------------

LLAMA_3_8B = {
    "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_hidden_layers": 32, "intermediate_size": 14336, "vocab_size": 128256,
}  # fmt: skip


@pytest.mark.parametrize(
    ("targets", "expected"), [(None, 41_943_040), ({"q_proj", "v_proj"}, 6_815_744), ({"k_proj"}, 2_621_440)]
)
def test_adapter_parameters(targets: set[str] | None, expected: int) -> None:
    """LoRA of rank 16 on Llama 3 8B: the counts of PEFT 0.21.2 (`get_peft_model` on the meta device)."""
    assert expected == build(LLAMA_3_8B).adapter_params(16, None if targets is None else frozenset(targets))


def test_frozen_weights_have_no_gradient() -> None:
    """LoRA: weight gradients of the adapters only; input gradients from the first adapter on."""
    rank, model = 4, build(LLAMA)
    taped = model.walk(lambda: Ops(Work(B, T), Execution(), full=False, adapter=Adapter(rank)))
    flops = step_flops(taped, B * T, "none")
    assert 2 * model.adapter_params(rank) * B * T == flops.weight_grads
    full = step_flops(model.walk(lambda: Ops(Work(B, T), Execution())), B * T, "none")
    assert full.forward + 2 * model.adapter_params(rank) * B * T == flops.forward
    # nothing below the first block trains: what is computed for its input goes no further down
    first, rest = taped.runs[0][0], taped.runs[1][0]
    inputs = 2 * B * T * D * (Q + 2 * KV) + 3 * 2 * B * T * D * rank  # into q, k, v and their adapters
    assert rest.input_grad_flops - inputs == first.input_grad_flops
    assert (taped.runs[0][1], taped.runs[1][1]) == (1, 2)


def test_serving_keeps_nothing() -> None:
    """Without autograd nothing is kept and nothing is computed backward."""
    taped = build(LLAMA).walk(lambda: Ops(Work(B, T), Execution(), training=False), loss=False)
    for summary in (taped.before, taped.runs[0][0], taped.after):
        assert (
            summary.saved, summary.input_grad_flops, summary.weight_grad_flops, summary.weight_grad_bytes,
        ) == (0, 0, 0, 0)  # fmt: skip


def test_full_training_counts_six() -> None:
    """Forward 2, backward 4 FLOPs per matrix parameter and token (Kaplan et al. 2020, arXiv 2001.08361)."""
    model = build(LLAMA)
    flops = step_flops(model.walk(lambda: Ops(Work(B, T), Execution())), B * T, "none")
    attention = 3 * 2 * 2 * Q * B * (T * (T + 1) // 2)  # layers · (scores and mix) · 2 · q · pairs
    assert 2 * model.matmul_params * B * T + attention == flops.forward
    assert 2 * model.matmul_params * B * T == flops.weight_grads
    assert 2 * model.matmul_params * B * T + 2 * attention == flops.input_grads


def test_a_tied_head_is_a_product() -> None:
    """A tie saves parameters, no FLOPs."""
    flops = {}
    for tied in (False, True):
        taped = build({**LLAMA, "tie_word_embeddings": tied}).walk(lambda: Ops(Work(B, T), Execution()))
        flops[tied] = replace(step_flops(taped, B * T, "none"))
    assert flops[False] == flops[True]


def test_selective_recompute_keeps_no_scores() -> None:
    """Selective recomputation drops the 5·a·s²·b of the attention core (arXiv 2205.05198, section 5)."""
    gpt2 = build(MODELS["gpt2"])
    execution = Execution(attention="eager", recompute="selective")
    s, b, h = T, B, 32
    assert 34 * s * b * h + 2 * 2 * 4 * s * b == one_block(gpt2, execution).saved


# -- what the modules of transformers 5.24.0 keep, measured with torch 2.13 on the CPU ------------------------------

#: the widths of tools/compare_saved.py, which measures the table below anew
SMALL = {
    "hidden_size": 128, "intermediate_size": 320, "num_attention_heads": 8, "num_key_value_heads": 2,
    "head_dim": 16, "vocab_size": 500, "max_position_embeddings": 512, "tie_word_embeddings": False,
    "num_hidden_layers": 2,
}  # fmt: skip
SQUARE = {k: v for k, v in SMALL.items() if k != "head_dim"} | {"num_key_value_heads": 8}
MOE = {"num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("config", "eager", "sdpa", "tolerance"),
    [  # bytes per token of one more block in fp32, attention written out and as one kernel
        ({**SMALL, "model_type": "llama"}, 18440, 9512, 0),
        ({**SMALL, "model_type": "qwen2"}, 18440, 9512, 0),
        ({**SMALL, "model_type": "qwen3"}, 19760, 10832, 0),
        ({**SMALL, "model_type": "mistral"}, 18440, 9512, 0),
        ({**SMALL, "model_type": "phi3"}, 18440, 10664, 0),
        ({**SMALL, "model_type": "olmo2"}, 19728, 10800, 0),
        ({**SMALL, "model_type": "starcoder2"}, 14864, 5936, 0),
        ({**SMALL, "model_type": "cohere"}, 17412, 8484, 0),
        ({**SQUARE, "model_type": "gpt_neox"}, 14352, 7728, 0),
        ({**SQUARE, "model_type": "phi"}, 17672, 10024, 0),
        ({**SQUARE, "num_key_value_heads": 2, "model_type": "stablelm"}, 17424, 9008, 0),
        (
            {
                "model_type": "gpt2", "n_embd": 128, "n_head": 8, "n_layer": 2, "vocab_size": 500,
                "n_positions": 512, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
            },
            22544, 14384, 0,
        ),
        (
            {
                "model_type": "opt", "hidden_size": 128, "ffn_dim": 320, "num_attention_heads": 8,
                "num_hidden_layers": 2, "vocab_size": 500, "max_position_embeddings": 512, "dropout": 0.0,
            },
            13584, 5424, 0,
        ),
        # 1 + w is a tensor of its own, whatever the length: 4·d bytes per norm
        ({**SMALL, "model_type": "gemma2"}, 28692, None, 0.001),
        ({**SMALL, "model_type": "gemma3_text"}, 21820, 12892, 0.001),
        ({**SMALL, "model_type": "glm4"}, 20528, 12112, 0.005),
        # indices of the routing
        ({**SMALL, **MOE, "model_type": "mixtral", "num_local_experts": 4}, 25708, 16780, 0.005),
        ({**SMALL, **MOE, "model_type": "gpt_oss", "num_local_experts": 4}, 33480, None, 0.005),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)  # fmt: skip
def test_blocks_keep_what_transformers_keeps(
    config: dict[str, Any], eager: int, sdpa: int | None, tolerance: float
) -> None:
    """The bytes that saved_tensors_hooks counts for one more block of transformers' own modules."""
    model, work = build(config), Work(2, 256)
    for attention, expected in (("eager", eager), ("sdpa", sdpa)):
        if expected is not None:
            execution = Execution(attention=attention, kernels="eager")  # type: ignore[arg-type]
            block = one_block(model, execution, work, dtype="fp32", grad_bytes=4)
            assert expected == pytest.approx(block.saved / work.tokens, rel=tolerance, abs=0)
