"""Linear attention by the gated delta rule in most layers: Qwen3-Next, Qwen 3.5, Lara, OLMo, Kimi, Ling."""

from __future__ import annotations

from typing import Any

from loadsheet.arch.config import Config
from loadsheet.arch.families.hybrid import ATTENTION, MAMBA, layer_kinds
from loadsheet.arch.families.llama import attention, gated_mlp, pre_norm
from loadsheet.arch.families.moe import expert_counts, routed, sparse_layers
from loadsheet.arch.families.parts import GEMMA_RMS, RMS, Reach, Sizes, assemble, read_max_length
from loadsheet.arch.layers.base import Layer, Linear, Norm
from loadsheet.arch.layers.delta import DeltaNet, KimiDelta, QueryGatedAttention, Style
from loadsheet.arch.layers.gates import OutputGate
from loadsheet.arch.layers.latent import LatentAttention
from loadsheet.arch.layers.mlp import ACTIVATIONS, GatedMLP, MoE, Router
from loadsheet.arch.model import Block, Model
from loadsheet.errors import BadConfig

DELTA = MAMBA  # files call both kinds of layers "linear_attention"


def hybrid_sizes(c: Config, *, tied: bool, width: str | None, head_dim: str = "required") -> Sizes:
    """The usual sizes; `width` is the key of the MLP's, None where no layer has one."""
    hidden, heads = c.size("hidden_size"), c.size("num_attention_heads")
    if head_dim == "required":
        dim, kv_heads = c.size("head_dim"), c.size("num_key_value_heads")
    else:
        dim, kv_heads = c.size("head_dim", default=0), c.size("num_key_value_heads", default=heads)
    if not dim:
        c.divides("num_attention_heads", heads, "hidden_size", hidden)
        dim = hidden // heads
    if heads % kv_heads:
        raise BadConfig(
            f"{c.where}.num_key_value_heads: got {kv_heads}, expected a divisor of"
            f" `num_attention_heads` = {heads}"
        )
    return Sizes(
        hidden_size=hidden,
        num_layers=c.size("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        vocab_size=c.size("vocab_size"),
        intermediate_size=c.size(width) if width else 0,
        activation=c.choice("hidden_act", ACTIVATIONS, "silu"),
        tied=c.flag("tie_word_embeddings", default=tied),
        max_length=read_max_length(c),
    )


def delta_net(c: Config, s: Sizes, style: Style, heads: tuple[int, int], dims: tuple[int, int]) -> DeltaNet:
    """The mixer of Qwen, Lara and OLMo; `heads` and `dims` of keys and of values."""
    if heads[1] % heads[0]:
        raise c.error("linear_num_value_heads", f"a multiple of `linear_num_key_heads` = {heads[0]}")
    gate = c.text("output_gate_type", default="") or "silu"
    return DeltaNet(
        s.hidden_size,
        *heads,
        *dims,
        kernel=c.size("linear_conv_kernel_dim"),
        style=style,
        activation=s.activation,
        gate=ACTIVATIONS.get(gate, "silu"),
    )


def qwen_delta(c: Config, s: Sizes, style: Style) -> DeltaNet:
    """The same from Qwen's keys, which must all be there."""
    heads = c.size("linear_num_key_heads"), c.size("linear_num_value_heads")
    return delta_net(c, s, style, heads, (c.size("linear_key_head_dim"), c.size("linear_value_head_dim")))


def delta_symbols(mixer: DeltaNet) -> dict[str, int]:
    """The letters that the formulas of a delta net use."""
    return {"c": mixer.mixed, "v": mixer.values, "p": mixer.mixed + mixer.values, "K": mixer.keys}


def interval_kinds(c: Config, count: int, full: str = ATTENTION) -> list[str]:
    """Qwen's layers: `layer_types`, else full attention in every `full_attention_interval`-th."""
    if c.data.get("layer_types") is None:
        every = c.size("full_attention_interval", default=4)
        return [DELTA if (i + 1) % every else full for i in range(count)]
    return layer_kinds(c, count, (DELTA, full), keys=("layer_types",))


def shared_moe(c: Config, s: Sizes, *, gate: bool = True) -> tuple[Any, dict[str, int]]:
    """(maker of Qwen's mixture with one shared expert, the letters of its sizes)."""
    experts, k = expert_counts(c, "num_experts")
    width, shared = c.size("moe_intermediate_size"), c.size("shared_expert_intermediate_size")

    def make() -> MoE:
        return MoE(
            Router(s.hidden_size, experts),
            routed(s, width, experts, k),
            shared=GatedMLP(s.hidden_size, shared, s.activation, symbol="f_s"),
            shared_name="shared_expert",
            shared_gate=Linear(s.hidden_size, 1, symbol="1", quantisable=False) if gate else None,
        )

    return make, {"f_e": width, "f_s": shared, "E": experts, "k": k}


def qwen3_next(c: Config) -> Model:
    """Qwen3-Next: three delta nets to one attention with a gated output, mixtures with a gated shared expert."""
    s = hybrid_sizes(c, tied=False, width="intermediate_size")
    sparse = [False] * s.num_layers
    make: Any = None
    symbols: dict[str, int] = {}
    if c.size("num_experts", "num_local_experts", minimum=0):
        make, symbols = shared_moe(c, s)
        sparse = sparse_layers(c, s.num_layers)
    return qwen_blocks(c, s, "packed", sparse, make, symbols)


def qwen3_5(c: Config) -> Model:
    """Qwen 3.5 (text), dense."""
    s = hybrid_sizes(c, tied=False, width="intermediate_size")
    return qwen_blocks(c, s, "split", [False] * s.num_layers, None, {})


def qwen3_5_moe(c: Config) -> Model:
    """Qwen 3.5 (text), mixtures throughout."""
    s = hybrid_sizes(c, tied=False, width=None)
    make, symbols = shared_moe(c, s)
    return qwen_blocks(c, s, "split", [True] * s.num_layers, make, symbols)


def qwen_blocks(
    c: Config, s: Sizes, style: Style, sparse: list[bool], make: Any, symbols: dict[str, int]
) -> Model:
    """Delta nets and gated attention, each with an MLP or a mixture."""
    bias = c.flag("attention_bias", default=False)
    keys = list(zip(interval_kinds(c, s.num_layers), sparse, strict=True))
    delta = qwen_delta(c, s, style)

    def block(key: tuple[str, bool]) -> Block:
        kind, mixture = key
        mixer: Layer = delta
        if kind == ATTENTION:
            mixer = QueryGatedAttention(
                s.hidden_size, s.heads, s.kv_heads, s.head_dim, bias=bias, qk_norm="head",
                norm_style=GEMMA_RMS, output_gate=True,
            )  # fmt: skip
        mlp = make() if mixture else gated_mlp(s)
        names = ("self_attn" if kind == ATTENTION else "linear_attn", "mlp")
        return pre_norm(s, mixer, mlp, GEMMA_RMS, names=names)

    return assemble(c, s, block, keys, norm=GEMMA_RMS, symbols={**delta_symbols(delta), **symbols})


def text_of(c: Config) -> Config:
    """The text model's part of a multimodal file: what AutoModelForCausalLM loads of it; the towers are left out."""
    return c.part("text_config")


def qwen3_5_wrapper(c: Config) -> Model:
    """Qwen 3.5 with vision: its text model."""
    return qwen3_5(text_of(c))


def qwen3_5_moe_wrapper(c: Config) -> Model:
    """Qwen 3.5 with vision and mixtures: its text model."""
    return qwen3_5_moe(text_of(c))


LARA = (DELTA, "sliding_attention", DELTA, ATTENTION, "sliding_attention")


def lara_mini(c: Config) -> Model:
    """Lara Mini: delta nets, windows and full attention in turn, mixtures with a shared expert throughout."""
    s = hybrid_sizes(c, tied=True, width=None)
    bias, window = c.flag("attention_bias", default=False), c.size("sliding_window", default=512)
    make, symbols = shared_moe(c, s, gate=False)
    delta = qwen_delta(c, s, "split")
    kinds = layer_kinds(c, s.num_layers, LARA, lambda i: LARA[i % 5], keys=("layer_types",))
    reach: dict[str, Reach] = {"sliding_attention": (window, None), ATTENTION: (None, None)}

    def block(kind: str) -> Block:
        mixer: Layer = delta if kind == DELTA else attention(s, reach[kind], bias=bias, qk_norm="head")
        return pre_norm(s, mixer, make(), names=("linear_attn" if kind == DELTA else "self_attn", "mlp"))

    return assemble(c, s, block, kinds, norm=RMS, symbols={**delta_symbols(delta), **symbols})


def olmo_hybrid(c: Config) -> Model:
    """OLMo hybrid: pre-norm delta nets; every fourth layer OLMo 2's attention with norms after the sub-layers."""
    s = hybrid_sizes(c, tied=False, width="intermediate_size", head_dim="divide")
    bias = c.flag("attention_bias", default=False)

    def pattern(i: int) -> str:
        last = i == s.num_layers - 1 and s.num_layers < 4  # so that there is one
        return ATTENTION if i % 4 == 3 or last else DELTA

    kinds = layer_kinds(c, s.num_layers, (DELTA, ATTENTION), pattern, keys=("layer_types",))
    for kind in (DELTA, ATTENTION):
        if kind not in kinds:
            raise BadConfig(f"{c.where}.layer_types: got no `{kind}`, expected at least one of each kind")
    key_heads = c.size("linear_num_key_heads", default=s.heads)
    value_heads = c.size("linear_num_value_heads", default=s.heads)
    key_dim = c.size("linear_key_head_dim", default=0) or int(0.75 * s.hidden_size / key_heads)
    value_dim = c.size("linear_value_head_dim", default=2 * key_dim)
    delta = delta_net(c, s, "separate", (key_heads, value_heads), (key_dim, value_dim))

    def block(kind: str) -> Block:
        if kind == DELTA:
            return pre_norm(s, delta, gated_mlp(s), names=("linear_attn", "mlp"))
        d = s.hidden_size
        return Block(
            attention(s, bias=bias, qk_norm="all"),
            gated_mlp(s),
            post_1=Norm(d, RMS),
            post_2=Norm(d, RMS),
            norm_names=("", "", "post_attention_layernorm", "post_feedforward_layernorm"),
        )

    return assemble(c, s, block, kinds, norm=RMS, symbols=delta_symbols(delta))


#: names of sizes in Kimi's and Ling's files
KIMI_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def kimi_linear(c: Config) -> Model:
    """Kimi Linear, and Ling 3 (`bailing_hybrid`): delta attention with a decay per channel, latent attention between.

    Mixtures with shared experts after the first layers; the head is never tied.
    """
    ling = c.data.get("model_type") == "bailing_hybrid"
    heads, rank = c.size("num_attention_heads"), c.size("kv_lora_rank")
    nope, rope, value = c.size("qk_nope_head_dim"), c.size("qk_rope_head_dim"), c.size("v_head_dim")
    s = Sizes(
        hidden_size=c.size("hidden_size"),
        num_layers=c.size("num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_dim=nope + rope,
        vocab_size=c.size("vocab_size"),
        intermediate_size=c.size("intermediate_size"),
        activation=c.choice("hidden_act", ACTIVATIONS, "silu"),
        tied=False,
        max_length=c.size("max_position_embeddings", "model_max_length", default=0, minimum=0) or None,
    )
    bias = c.flag("attention_bias", default=False)
    query_rank = c.size_or_null("q_lora_rank", default=None)
    delta_heads, delta_dim, kernel, kinds = (ling_delta if ling else kimi_delta)(c, s)
    experts = c.size(*KIMI_EXPERTS)
    k = c.size("num_experts_per_tok", "num_experts_per_token")
    if k > experts:
        raise c.error("num_experts_per_tok", f"at most `num_experts` = {experts}")
    width, shared = c.size("moe_intermediate_size"), c.size("n_shared_experts", "num_shared_experts")
    first = c.size("first_k_dense_replace", default=2 if ling else 1, minimum=0)
    sparse = mlp_kinds(c, s.num_layers, first)

    def block(key: tuple[str, bool]) -> Block:
        mixer: Layer
        if key[0] == ATTENTION:
            mixer = LatentAttention(
                s.hidden_size, heads, q_lora_rank=query_rank, kv_lora_rank=rank, nope_dim=nope, rope_dim=rope,
                value_dim=value, bias=bias,
                gate=OutputGate(s.hidden_size, heads, value, name="g_proj", per="head") if ling else None,
            )  # fmt: skip
        else:
            mixer = KimiDelta(
                s.hidden_size, delta_heads, delta_dim, kernel=kernel, narrow=not ling, activation=s.activation
            )
        if not key[1]:
            return pre_norm(s, mixer, gated_mlp(s))
        extra = GatedMLP(s.hidden_size, width * shared, s.activation, symbol="f_s")
        mlp = MoE(Router(s.hidden_size, experts), routed(s, width, experts, k), shared=extra)
        return pre_norm(s, mixer, mlp)

    keys = list(zip(kinds, sparse, strict=True))
    wide = delta_heads * delta_dim
    symbols = {
        "f_e": width, "f_s": width * shared, "E": experts, "k": k, "c_q": query_rank or 0, "c_kv": rank + rope,
        "q": heads * (nope + rope), "kv_b": heads * (nope + value), "c": 3 * wide, "v": wide, "K": wide,
    }  # fmt: skip
    return assemble(c, s, block, keys, norm=RMS, symbols=symbols)


def mlp_kinds(c: Config, count: int, first: int) -> list[bool]:
    """Which layers are mixtures: `mlp_layer_types`, else all but the first few."""
    listed = c.pattern("mlp_layer_types", count)
    if listed is None:
        return [i >= first for i in range(count)]
    if any(kind not in ("sparse", "dense") for kind in listed):
        raise c.error("mlp_layer_types", "`sparse` or `dense` for each layer")
    return [kind == "sparse" for kind in listed]


def kimi_delta(c: Config, s: Sizes) -> tuple[int, int, int, list[str]]:
    """(heads, head_dim, kernel, kinds of layers); older files have them in `linear_attn_config`."""
    older = c.part("linear_attn_config") if c.data.get("linear_attn_config") is not None else None

    def size(name: str, older_name: str) -> int:
        part, key = (older, older_name) if older and older_name in older.data else (c, name)
        found: int = part.size(key)
        return found

    found = (
        size("linear_num_heads", "num_heads"),
        size("linear_head_dim", "head_dim"),
        size("linear_conv_kernel_dim", "short_conv_kernel_size"),
    )
    if c.data.get("layer_types") is None and older and {"full_attn_layers", "kda_layers"} <= set(older.data):
        full, kda = set(older.ints("full_attn_layers")), set(older.ints("kda_layers"))
        every = set(range(1, s.num_layers + 1))
        if full | kda != every or full & kda:
            raise older.error("kda_layers", "with `full_attn_layers` each layer once, counted from 1")
        return (*found, [ATTENTION if i in full else DELTA for i in sorted(every)])
    kinds = layer_kinds(
        c,
        s.num_layers,
        (DELTA, ATTENTION),
        lambda i: ATTENTION if i and i % 4 == 0 else DELTA,
        keys=("layer_types",),
    )
    return (*found, kinds)


def ling_delta(c: Config, s: Sizes) -> tuple[int, int, int, list[str]]:
    """The same for Ling 3: as many heads as attention has, `head_dim` wide."""
    every = c.size("layer_group_size", default=6)
    kinds = layer_kinds(
        c,
        s.num_layers,
        (DELTA, ATTENTION),
        lambda i: DELTA if (i + 1) % every else ATTENTION,
        keys=("layer_types",),
    )
    heads = c.size("linear_num_heads", default=s.heads)
    dim = c.size("linear_head_dim", default=0) or c.size("head_dim")
    kernel = c.size("linear_conv_kernel_dim", default=0) or c.size("short_conv_kernel_size")
    return heads, dim, kernel, kinds
