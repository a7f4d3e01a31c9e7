"""A small model of the same structure: what can be built and run on a CPU in a moment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: sizes of the small model by config key; a size that the config has smaller stays as it is
WIDTHS: dict[str, int] = {
    "vocab_size": 1000, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 96,
    "intermediate_size_mlp": 320,
    "kv_lora_rank": 32, "q_lora_rank": 48, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "n_routed_experts": 4, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "max_window_layers": 1,
}  # fmt: skip
HIDDEN = ("hidden_size", "n_embd", "d_model")
HEADS = ("num_attention_heads", "n_head", "n_heads")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers")
FEED = ("intermediate_size", "ffn_dim", "n_inner")
PATTERNS = ("layer_types", "mlp_layer_types", "no_rope_layers", "layers_block_type")
LENGTHS = ("max_position_embeddings", "n_positions")
SPECIAL = ("pad_token_id", "bos_token_id", "eos_token_id")


def shrink(config: Mapping[str, Any], layers: int = 2) -> dict[str, Any]:
    """The config with small sizes: same switches, same kind of heads, `layers` layers.

    KV heads keep their ratio to the query heads as far as whole numbers allow; patterns of layers are
    cut so that each kind that occurs is kept while there is room.
    """
    out = {
        k: v for k, v in config.items() if k not in ("_name_or_path", "architectures", "quantization_config")
    }
    heads_key = _first(out, HEADS)
    heads = 4
    if heads_key is not None:
        full = out[heads_key]
        ratio = full // out["num_key_value_heads"] if out.get("num_key_value_heads") else 1
        heads = 8 if ratio in (1, 2, 4, 8) else 2 * ratio if ratio <= 8 else 8
        out[heads_key] = heads
        if out.get("num_key_value_heads"):
            out["num_key_value_heads"] = max(heads // ratio, 1) if ratio <= 8 else 1
    if out.get("head_dim"):
        out["head_dim"] = 16
    hidden = heads * 16
    for keys, value in ((HIDDEN, hidden), (FEED, 5 * hidden // 2), (LAYERS, layers)):
        key = _first(out, keys)
        if key is not None:
            out[key] = value
    for key, value in WIDTHS.items():
        if isinstance(out.get(key), int) and not isinstance(out[key], bool):
            out[key] = min(out[key], value)
    if isinstance(out.get("qk_rope_head_dim"), int):  # sizes that are others' under a second name
        if config.get("head_dim") == config["qk_rope_head_dim"]:
            out["head_dim"] = out["qk_rope_head_dim"]
        if isinstance(out.get("qk_head_dim"), int):
            out["qk_head_dim"] = out["qk_nope_head_dim"] + out["qk_rope_head_dim"]
    if isinstance(
        out.get("n_routed_experts"), int
    ):  # groups that a class would make of them: no more than one
        out |= {key: 1 for key in ("n_group", "topk_group") if out.get(key) is None}
    for key in SPECIAL:
        if key in out and isinstance(out.get("vocab_size"), int):
            out[key] = _within(out[key], out["vocab_size"])
    for key in LENGTHS:
        if isinstance(out.get(key), int):
            out[key] = max(out[key], 2048)
    if out.get("word_embed_proj_dim"):
        out["word_embed_proj_dim"] = hidden
    for key in PATTERNS:
        if isinstance(out.get(key), list):
            out[key] = _cut(out[key], layers)
    # the CPU has no one-kernel attention with dropout: it would write the scores out
    out |= {"attn_pdrop": 0.0, "attention_dropout": 0.0}
    if isinstance(out.get("sliding_window"), int) and out["sliding_window"]:
        out["sliding_window"] = 4096  # longer than what is run: a window is no other kernel here
    for key in ("mlp_only_layers", "moe_layers"):
        if isinstance(out.get(key), list):
            out[key] = [i for i in out[key] if i < layers]
    return out


def _first(config: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    return next(
        (k for k in keys if isinstance(config.get(k), int) and not isinstance(config.get(k), bool)), None
    )


def _within(token: Any, vocab: int) -> Any:
    """A token id, or each of a list of them, brought into a vocabulary: an embedding has no row beyond."""
    if isinstance(token, list):
        return [_within(one, vocab) for one in token]
    return min(token, vocab - 1) if isinstance(token, int) else token


def _cut(pattern: list[Any], layers: int) -> list[Any]:
    """The first layers of a pattern, its kinds brought forward so that each is seen."""
    kinds = list(dict.fromkeys(pattern))
    if len(kinds) <= layers:
        cut = kinds + pattern
        return cut[:layers]
    return pattern[:layers]
