"""From a GGUF header to the Hugging Face style config of the model that its tensors make up.

GGUF names sizes in its own words (`llama.embedding_length`); what it leaves out (biases, tied
embeddings, norms on queries and keys) is seen from which tensors are there. Sizes that metadata and
tensors both tell must agree. Source for the words: llama.cpp, `gguf-py/gguf/constants.py` and
`conversion/`; for the keys of the configs: transformers, `configuration_*.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from loadsheet.arch.gguf import GgufFile
from loadsheet.arch.gguf_facts import ALWAYS_TIED, Facts


def hugging_face_config(file: GgufFile) -> dict[str, Any]:
    """The config that `GgufFile.config` promises."""
    facts = Facts(file)
    if not file.architecture:
        raise facts.error("no `general.architecture`", "the name of an architecture")
    build = _FAMILIES.get(file.architecture)
    if build is None:
        raise facts.unsupported("")
    config = build(facts)
    if file.architecture == "gpt2":  # this one config has names of its own
        config = {_GPT2_NAMES.get(key, key): value for key, value in config.items()}
    return config


def _base(facts: Facts, model_type: str, *, heads_of_their_own_size: bool = False) -> dict[str, Any]:
    """What every config has; BadFile where a tensor's shape says otherwise."""
    embedding = facts.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2 or not embedding.params:
        raise facts.error("no `token_embd.weight` of two dimensions", "the weights of a language model")
    vocab = embedding.shape[0]
    width, heads = facts.need("embedding_length"), facts.need("attention.head_count")
    kv_heads = facts.size("attention.head_count_kv") or heads
    config: dict[str, Any] = {
        "model_type": model_type,
        "vocab_size": vocab,
        "hidden_size": width,
        "num_hidden_layers": facts.layers(),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "tie_word_embeddings": (
            facts.file.architecture in ALWAYS_TIED or "output.weight" not in facts.tensors
        ),
    }
    expected = {"token_embd": (vocab, width), "output": (vocab, width)}
    inner = facts.size("feed_forward_length")
    if inner:
        config["intermediate_size"] = inner
        expected["ffn_down"] = (width, inner)
    if not heads_of_their_own_size:
        query = facts.shape("attn_q.weight")
        by_tensor = query[0] // heads if query and query[0] % heads == 0 else width // heads
        size = facts.size("attention.key_length") or by_tensor
        config["head_dim"] = size
        q, kv = heads * size, kv_heads * size
        rows = {"attn_q": q, "attn_k": kv, "attn_v": kv, "attn_qkv": q + 2 * kv}
        expected |= {kind: (n, width) for kind, n in rows.items()} | {"attn_output": (width, q)}
    for kind, shape in expected.items():
        facts.require_shape(f"{kind}.weight", shape)
    for key, value in (
        ("max_position_embeddings", facts.size("context_length")),
        ("rope_theta", facts.real("rope.freq_base")),
        ("rms_norm_eps", facts.real("attention.layer_norm_rms_epsilon")),
        ("layer_norm_eps", facts.real("attention.layer_norm_epsilon")),
    ):
        if value:
            config[key] = value
    return config


def _biased(facts: Facts) -> bool:
    return facts.has("attn_q.bias", "attn_qkv.bias")


def _biased_alike(facts: Facts) -> bool:
    """Whether all four attention projections have a bias; these classes know all or none."""
    biased = _biased(facts)
    if biased != facts.has("attn_output.bias"):
        raise facts.unsupported("with biases on some attention projections only")
    return biased


def _sliding(facts: Facts, config: dict[str, Any], period: int) -> dict[str, Any]:
    """Add the window and which layers it holds for: the file's own pattern, else every `period`th is full."""
    window = facts.size("attention.sliding_window")
    layers = config["num_hidden_layers"]
    key = f"{facts.file.architecture}.attention.sliding_window_pattern"
    pattern = facts.file.arrays.get(key)
    if key in facts.file.metadata:
        period = facts.need("attention.sliding_window_pattern")
    if pattern is not None and len(pattern) < layers:
        raise facts.error(f"a sliding window pattern of {len(pattern)} layers", f"one of {layers}")
    slides = list(pattern[:layers]) if pattern else [(layer + 1) % period != 0 for layer in range(layers)]
    if window:
        config["sliding_window"] = window
    config["layer_types"] = [
        "sliding_attention" if slide and window else "full_attention" for slide in slides
    ]
    return config


def _experts(facts: Facts, config: dict[str, Any], count_key: str) -> dict[str, Any]:
    """Add the number of experts and how many a token uses."""
    config[count_key] = facts.need("expert_count")
    config["num_experts_per_tok"] = facts.need("expert_used_count")
    stacked = facts.stack("ffn_down_exps.weight")
    if stacked is not None and stacked[0] != config[count_key]:
        raise facts.error(
            f"{stacked[0]} experts in `ffn_down_exps.weight`", f"{config[count_key]} by the metadata"
        )
    return config


def _expert_width(facts: Facts) -> int:
    """Inner size of one expert: its tensor tells; older files have no key for it."""
    stacked = facts.stack("ffn_down_exps.weight")
    claimed = facts.size("expert_feed_forward_length")
    found = stacked[-1] if stacked else claimed
    if not found or (claimed and claimed != found):
        expected = f"{claimed} by the metadata" if claimed else "one of at least 1"
        raise facts.error(f"an expert of inner size {found}", expected)
    return found


# --- one function for each architecture, named as GGUF names it ------------------------------------


def _llama(facts: Facts) -> dict[str, Any]:
    config = _base(facts, "llama")
    biased, mlp_biased = _biased_alike(facts), facts.has("ffn_down.bias")
    window = facts.size("attention.sliding_window")
    if facts.size("expert_count"):
        config["model_type"] = "mixtral"
        _experts(facts, config, "num_local_experts")
    elif window:
        config |= {"model_type": "mistral", "sliding_window": window}
    else:
        return config | {"attention_bias": biased, "mlp_bias": mlp_biased}
    if biased or mlp_biased:
        raise facts.unsupported("with experts or a sliding window, and with biases")
    return config


def _llama4(facts: Facts) -> dict[str, Any]:
    config = _experts(facts, _base(facts, "llama4_text"), "num_local_experts")
    config["intermediate_size_mlp"] = config["intermediate_size"]
    config["intermediate_size"] = _expert_width(facts)
    return config | {
        "interleave_moe_layer_step": facts.need("interleave_moe_layer_step"),
        "attention_bias": _biased_alike(facts),
    }


def _qwen2(facts: Facts) -> dict[str, Any]:
    if not _biased(facts) or facts.has("attn_output.bias"):
        raise facts.unsupported("without the biases of Qwen2 on queries, keys and values")
    return _base(facts, "qwen2")


def _qwen2moe(facts: Facts) -> dict[str, Any]:
    config = _experts(facts, _base(facts, "qwen2_moe"), "num_experts")
    shared = facts.shape("ffn_down_shexp.weight")
    if not _biased(facts) or not shared:
        raise facts.unsupported("without the biases or the shared expert of Qwen2-MoE")
    return config | {
        "moe_intermediate_size": _expert_width(facts),
        "shared_expert_intermediate_size": shared[-1],
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": False,
    }


def _qwen3(facts: Facts) -> dict[str, Any]:
    return _base(facts, "qwen3") | {"attention_bias": _biased_alike(facts)}


def _qwen3moe(facts: Facts) -> dict[str, Any]:
    return _experts(facts, _base(facts, "qwen3_moe"), "num_experts") | {
        "attention_bias": _biased_alike(facts),
        "moe_intermediate_size": _expert_width(facts),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    }


def _gpt_oss(facts: Facts) -> dict[str, Any]:
    config = _experts(facts, _sliding(facts, _base(facts, "gpt_oss"), 2), "num_local_experts")
    return config | {"intermediate_size": _expert_width(facts), "attention_bias": _biased_alike(facts)}


def _gemma3(facts: Facts) -> dict[str, Any]:
    return _sliding(facts, _base(facts, "gemma3_text"), 6) | {"attention_bias": _biased_alike(facts)}


def _gemma2(facts: Facts) -> dict[str, Any]:
    return _sliding(facts, _base(facts, "gemma2"), 2) | {"attention_bias": _biased_alike(facts)}


def _phi3(facts: Facts) -> dict[str, Any]:
    if _biased(facts):
        raise facts.unsupported("with attention biases")
    return _base(facts, "phi3") | {"sliding_window": facts.size("attention.sliding_window") or None}


def _phimoe(facts: Facts) -> dict[str, Any]:
    return _experts(facts, _base(facts, "phimoe"), "num_local_experts") | {
        "attention_bias": _biased_alike(facts),
        "lm_head_bias": "output.bias" in facts.tensors,
        "sliding_window": facts.size("attention.sliding_window") or None,
    }


def _phi2(facts: Facts) -> dict[str, Any]:
    return _base(facts, "phi") | {"qk_layernorm": facts.has("attn_q_norm.weight")}


def _gptneox(facts: Facts) -> dict[str, Any]:
    parallel = facts.file.metadata.get("gptneox.use_parallel_residual", True)
    return _base(facts, "gpt_neox") | {
        "attention_bias": _biased_alike(facts), "use_parallel_residual": bool(parallel),
    }  # fmt: skip


_GPT2_NAMES: Final = {
    "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
    "intermediate_size": "n_inner", "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
}  # fmt: skip


def _gpt2(facts: Facts) -> dict[str, Any]:
    config = _base(facts, "gpt2")
    table = facts.tensors.get("position_embd.weight")
    positions = table.shape if table else ()
    shared = config["num_key_value_heads"] != config["num_attention_heads"]
    if shared or not positions or positions[1:] != (config["hidden_size"],):
        raise facts.unsupported("without position embeddings, or with shared key-value heads")
    for key in ("num_key_value_heads", "head_dim"):
        del config[key]
    return config | {"max_position_embeddings": positions[0]}


def _stablelm(facts: Facts) -> dict[str, Any]:
    # The converter writes `use_parallel_residual` as true where the config says nothing; the second
    # norm of a block, which the parallel form lacks, tells the truth.
    return _base(facts, "stablelm") | {
        "use_qkv_bias": _biased(facts),
        "qk_layernorm": facts.has("attn_q_norm.weight"),
        "use_parallel_residual": not facts.has("ffn_norm.weight"),
    }


def _olmo2(facts: Facts) -> dict[str, Any]:
    config = _base(facts, "olmo2") | {"attention_bias": _biased_alike(facts)}
    if facts.size("attention.sliding_window"):
        config["model_type"] = "olmo3"
        _sliding(facts, config, 4)
    return config


def _olmoe(facts: Facts) -> dict[str, Any]:
    config = _experts(facts, _base(facts, "olmoe"), "num_experts")
    return config | {"intermediate_size": _expert_width(facts), "attention_bias": _biased_alike(facts)}


def _granite(facts: Facts) -> dict[str, Any]:
    return _base(facts, "granite") | {
        "attention_bias": _biased_alike(facts), "mlp_bias": facts.has("ffn_down.bias"),
    }  # fmt: skip


def _command_r(facts: Facts) -> dict[str, Any]:
    return _base(facts, "cohere") | {
        "attention_bias": _biased_alike(facts), "use_qk_norm": facts.has("attn_q_norm.weight"),
    }  # fmt: skip


def _cohere2(facts: Facts) -> dict[str, Any]:
    return _sliding(facts, _base(facts, "cohere2"), 4) | {"attention_bias": _biased_alike(facts)}


def _deepseek2(facts: Facts) -> dict[str, Any]:
    sigmoid = facts.size("expert_gating_func") == 2 or facts.has("exp_probs_b.bias", "exp_probs_b")
    config = _base(facts, "deepseek_v3" if sigmoid else "deepseek_v2", heads_of_their_own_size=True)
    _experts(facts, config, "n_routed_experts")
    rotary = facts.need("rope.dimension_count")
    # Files of 2025 and later store one key-value head and the compressed sizes, and add the real ones.
    key = facts.size("attention.key_length_mla") or facts.need("attention.key_length")
    value = facts.size("attention.value_length_mla") or facts.need("attention.value_length")
    if key <= rotary:
        raise facts.error(f"a key of {key} with {rotary} rotary dimensions", "a longer key")
    config |= {
        "num_key_value_heads": config["num_attention_heads"],
        "q_lora_rank": facts.size("attention.q_lora_rank") if facts.has("attn_q_a.weight") else None,
        "kv_lora_rank": facts.need("attention.kv_lora_rank"),
        "qk_rope_head_dim": rotary,
        "qk_nope_head_dim": key - rotary,
        "v_head_dim": value,
        "moe_intermediate_size": _expert_width(facts),
        "n_shared_experts": facts.size("expert_shared_count") or None,
        "first_k_dense_replace": facts.size("leading_dense_block_count") or 0,
        "norm_topk_prob": bool(facts.file.metadata.get("deepseek2.expert_weights_norm", False)),
        "attention_bias": facts.has("attn_q_a.bias"),
    }
    for name, source in (("n_group", "expert_group_count"), ("topk_group", "expert_group_used_count")):
        if facts.size(source):
            config[name] = facts.size(source)
    return config


_FAMILIES: Final[dict[str, Callable[[Facts], dict[str, Any]]]] = {
    "llama": _llama,
    "llama4": _llama4,
    "qwen2": _qwen2,
    "qwen2moe": _qwen2moe,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3moe,
    "gpt-oss": _gpt_oss,
    "gemma": lambda facts: _base(facts, "gemma") | {"attention_bias": _biased_alike(facts)},
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi2": _phi2,
    "phi3": _phi3,
    "phimoe": _phimoe,
    "gptneox": _gptneox,
    "gpt2": _gpt2,
    "starcoder2": lambda facts: _base(facts, "starcoder2") | {"use_bias": _biased_alike(facts)},
    "stablelm": _stablelm,
    "olmo": lambda facts: _base(facts, "olmo") | {"attention_bias": _biased_alike(facts)},
    "olmo2": _olmo2,
    "olmoe": _olmoe,
    "granite": _granite,
    "command-r": _command_r,
    "cohere2": _cohere2,
    "deepseek2": _deepseek2,
    "glm4": lambda facts: _base(facts, "glm4") | {"attention_bias": _biased(facts)},
}

#: architectures that have a config, by GGUF's own names
ARCHITECTURES: Final = tuple(_FAMILIES)
