"""DeepSeek V2 and V3: latent attention, leading dense layers, then mixtures with shared experts."""

from __future__ import annotations

from loadsheet.arch.config import Config
from loadsheet.arch.families.llama import gated_mlp, pre_norm
from loadsheet.arch.families.moe import expert_counts, routed
from loadsheet.arch.families.parts import RMS, Sizes, assemble, read_max_length
from loadsheet.arch.layers.latent import LatentAttention
from loadsheet.arch.layers.mlp import ACTIVATIONS, GatedMLP, MoE, Router
from loadsheet.arch.model import Block, Model


def deepseek(c: Config) -> Model:
    """DeepSeek V2, V2-Lite, V3, R1 (the extra multi-token-prediction block is not loaded, so not counted)."""
    nope, rope = c.size("qk_nope_head_dim", minimum=0), c.size("qk_rope_head_dim", minimum=1)
    heads, rank, value = c.size("num_attention_heads"), c.size("kv_lora_rank"), c.size("v_head_dim")
    s = Sizes(
        hidden_size=c.size("hidden_size"),
        num_layers=c.size("num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_dim=nope + rope,
        vocab_size=c.size("vocab_size"),
        intermediate_size=c.size("intermediate_size"),
        activation=c.choice("hidden_act", ACTIVATIONS, "silu"),
        tied=c.flag("tie_word_embeddings", default=False),
        max_length=read_max_length(c),
    )
    query_rank = c.size_or_null("q_lora_rank", minimum=0) or None
    bias = c.flag("attention_bias", default=False)
    second = c.data.get("model_type") == "deepseek_v2"
    mlp_bias = second and c.flag("mlp_bias", default=False)
    # the class of V2 leaves the experts per token open; both published models of it use 6
    experts, k = expert_counts(c, "n_routed_experts", 6 if second else None)
    width, shared = c.size("moe_intermediate_size"), c.size_or_null("n_shared_experts", minimum=0) or 0
    dense_first = c.size("first_k_dense_replace", minimum=0)
    every = c.size("moe_layer_freq", default=1)
    sparse = [i >= dense_first and i % every == 0 for i in range(s.num_layers)]

    def block(is_sparse: bool) -> Block:
        mixer = LatentAttention(
            s.hidden_size,
            heads,
            q_lora_rank=query_rank,
            kv_lora_rank=rank,
            nope_dim=nope,
            rope_dim=rope,
            value_dim=value,
            bias=bias,
        )
        if not is_sparse:
            return pre_norm(s, mixer, gated_mlp(s, bias=mlp_bias))
        extra = (
            GatedMLP(s.hidden_size, width * shared, s.activation, bias=mlp_bias, symbol="f_s")
            if shared
            else None
        )
        return pre_norm(
            s, mixer, MoE(Router(s.hidden_size, experts), routed(s, width, experts, k), shared=extra)
        )

    symbols = {
        "f_e": width, "f_s": width * shared, "E": experts, "k": k, "c_q": query_rank or 0, "c_kv": rank + rope,
        "q": heads * (nope + rope), "kv_b": heads * (nope + value),
    }  # fmt: skip
    return assemble(c, s, block, sparse, norm=RMS, symbols=symbols)
