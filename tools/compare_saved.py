"""Compare the bytes that our tape says autograd keeps with what transformers' modules keep (not a test).

    python tools/compare_saved.py [MODEL_TYPE ...] [--detail]

For small models with random weights on the CPU, in bf16 and fp32, with written-out (eager) and one-kernel
(sdpa) attention, it runs forward and loss under `saved_tensors_hooks`, counts every storage once and leaves
parameters out. The table splits the difference into blocks (models of one and of two layers are compared)
and the rest. `--detail` lists the tensors that one more block keeps, theirs and ours.

Needs torch and transformers.
"""

from __future__ import annotations

import sys
from collections import Counter
from importlib import import_module
from typing import Any

from loadsheet.arch.families import build
from loadsheet.arch.model import Taped
from loadsheet.arch.ops import Ops
from loadsheet.arch.work import Execution, Work

BATCH, LENGTH = 2, 256
COMMON = {
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 500,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
SQUARE = {**COMMON, "num_key_value_heads": 8}
MODELS: dict[str, dict[str, Any]] = {
    "llama": COMMON,
    "qwen2": COMMON,
    "qwen3": COMMON,
    "mistral": {**COMMON, "sliding_window": 4096},
    "gemma2": {**COMMON, "sliding_window": 4096},
    "gpt2": {"n_embd": 128, "n_head": 8, "vocab_size": 500, "n_positions": 512},
    "gpt_neox": {**SQUARE, "hidden_act": "gelu"},
    "phi3": COMMON,
    "mixtral": {**COMMON, "num_local_experts": 4, "num_experts_per_tok": 2},
    "olmo2": COMMON,
    "starcoder2": COMMON,
    "opt": {
        "hidden_size": 128, "ffn_dim": 320, "num_attention_heads": 8, "vocab_size": 500,
        "max_position_embeddings": 512,
    },
    "phi": SQUARE,
    "cohere": COMMON,
    "stablelm": COMMON,
    "gemma3_text": {**COMMON, "sliding_window": 4096},
    "glm4": COMMON,
    "qwen2_moe": {**COMMON, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
                  "shared_expert_intermediate_size": 96},
    "qwen3_moe": {**COMMON, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    "gpt_oss": {**COMMON, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4096},
    "deepseek_v3": {
        **SQUARE, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
        "n_shared_experts": 1, "first_k_dense_replace": 0, "q_lora_rank": 48, "kv_lora_rank": 32,
        "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "n_group": 1, "topk_group": 1,
    },
}  # fmt: skip
ALSO_WITHOUT_HEAD_DIM = ("gpt_neox", "phi", "stablelm", "deepseek_v3")
DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
Kept = Counter[tuple[str, tuple[int, ...], int]]


def depth_key(model_type: str) -> str:
    """How the class calls its number of layers."""
    return "n_layer" if model_type == "gpt2" else "num_hidden_layers"


def configuration(model_type: str, layers: int) -> dict[str, Any]:
    """The small config of a model type with that many layers."""
    config = {
        k: v
        for k, v in MODELS[model_type].items()
        if k != "head_dim" or model_type not in ALSO_WITHOUT_HEAD_DIM
    }
    if model_type == "gpt2":  # with dropout in it, one-kernel attention falls back on the CPU
        config["attn_pdrop"] = 0.0
    return {**config, depth_key(model_type): layers, "model_type": model_type}


def measured(model_type: str, layers: int, dtype: str, attention: str) -> Kept:
    """(dtype, shape, bytes of the storage) of everything that transformers keeps, and how often."""
    torch, transformers = import_module("torch"), import_module("transformers")
    torch.manual_seed(0)
    config = configuration(model_type, layers)
    del config["model_type"]
    made = transformers.AutoConfig.for_model(model_type, pad_token_id=None, use_cache=False, **config)
    made._attn_implementation = attention
    model = transformers.AutoModelForCausalLM.from_config(made, dtype=getattr(torch, DTYPES[dtype])).train()
    mine = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, tuple[str, tuple[int, ...], int]] = {}
    alive = []

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in mine and storage.data_ptr() not in kept:
            kept[storage.data_ptr()] = (str(tensor.dtype)[6:], tuple(tensor.shape), storage.nbytes())
            alive.append(tensor)
        return tensor

    ids = torch.randint(3, 400, (BATCH, LENGTH))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(input_ids=ids, labels=ids)
    return Counter(kept.values())


def ours(model_type: str, layers: int, dtype: str, attention: str) -> Taped:
    """The same from the tape: norms and activations written out; KV heads copied by eager attention only."""
    execution = Execution(
        attention="eager" if attention == "eager" else "sdpa", kernels="eager", device="cpu"
    )
    model = build(configuration(model_type, layers))
    return model.walk(
        lambda: Ops(Work(BATCH, LENGTH), execution, dtype=dtype, grad_bytes=2 if dtype == "bf16" else 4)
    )


def total(kept: Kept) -> int:
    """Bytes of what is kept."""
    return sum(entry[2] * count for entry, count in kept.items())


def total_ours(taped: Taped) -> int:
    """Bytes that the tape keeps: beginning, blocks, end, and what they share."""
    shared = {
        s: None
        for summary in (taped.before, *(s for s, _ in taped.runs), taped.after)
        for s in summary.shared
    }
    blocks = sum(summary.saved * count for summary, count in taped.runs)
    return int(taped.before.saved + blocks + taped.after.saved + sum(s.bytes for s in shared))


def main(arguments: list[str]) -> None:
    """Print the table."""
    detail = "--detail" in arguments
    chosen = [name for name in arguments if not name.startswith("-")] or list(MODELS)
    import_module("transformers").logging.set_verbosity_error()
    rows = BATCH * LENGTH
    print("bytes per token, B = 2, T = 256, d = 128, 8 heads; * more than 2 %")
    print(
        f"{'model':12} {'dtype':5} {'attn':6} {'block':>10} {'ours':>10} {'':>8} {'rest':>10} {'ours':>10} {'':>8}"
    )
    for model_type in chosen:
        for dtype in DTYPES:
            for attention in ("eager", "sdpa"):
                try:
                    one, two = (measured(model_type, n, dtype, attention) for n in (1, 2))
                except Exception as error:  # a combination that the installed version cannot run
                    print(f"{model_type:12} {dtype:5} {attention:6} {type(error).__name__}: {error}"[:120])
                    continue
                tape_one, tape_two = (total_ours(ours(model_type, n, dtype, attention)) for n in (1, 2))
                block, block_ours = total(two) - total(one), tape_two - tape_one
                rest, rest_ours = total(one) - block, tape_one - block_ours
                cells = []
                for theirs, mine in ((block, block_ours), (rest, rest_ours)):
                    off = mine / theirs - 1
                    mark = "*" if abs(off) > 0.02 else " "
                    cells.append(f"{theirs / rows:10.1f} {mine / rows:10.1f} {100 * off:+6.1f}%{mark}")
                print(f"{model_type:12} {dtype:5} {attention:6} " + " ".join(cells))
                if detail:
                    for (kind, shape, size), count in sorted((two - one).items(), key=lambda e: -e[0][2]):
                        print(f"      theirs {count} x {kind:9} {shape!s:24} {size / rows:10.1f}")
                    for symbol, units, size in ours(model_type, 1, dtype, attention).runs[0][0].saved_by:
                        print(f"      ours   {symbol:6} {units!s:8} {size / rows:10.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
