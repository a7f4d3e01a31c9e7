"""State-space mixers beside attention: Jamba, Bamba, Granite 4, Falcon-H1, Nemotron-H."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from loadsheet.arch.blocks import Beside
from loadsheet.arch.config import Config
from loadsheet.arch.families.llama import attention, gated_mlp, pre_norm
from loadsheet.arch.families.mamba import check_groups, mamba2_symbols, time_step_rank
from loadsheet.arch.families.moe import expert_counts, routed
from loadsheet.arch.families.parts import RMS, Sizes, assemble, read_sizes
from loadsheet.arch.layers.base import Layer, Norm
from loadsheet.arch.layers.latent_moe import LatentMoE
from loadsheet.arch.layers.mlp import ACTIVATIONS, MLP, Experts, GatedMLP, MoE, Router
from loadsheet.arch.layers.ssm import Mamba, Mamba2
from loadsheet.arch.model import Block, Model
from loadsheet.errors import BadConfig, shorten

MAMBA, ATTENTION = "linear_attention", "full_attention"
#: names of layer kinds in older files
OLDER = {"mamba": MAMBA, "attention": ATTENTION}


def layer_kinds(
    c: Config,
    count: int,
    known: tuple[str, ...],
    default: Callable[[int], str] | None = None,
    keys: tuple[str, ...] = ("layer_types", "layers_block_type"),
) -> list[str]:
    """The kind of each layer, from the first of `keys` that is there, else from the class's pattern."""
    key = next((k for k in keys if c.data.get(k) is not None), keys[0])
    found = c.pattern(key, count)
    if found is None:
        if default is None:
            raise c.error(keys[0], "a list with the kind of each layer")
        return [default(i) for i in range(count)]
    kinds = [OLDER.get(kind, kind) if isinstance(kind, str) else "" for kind in found]
    for kind, given in zip(kinds, found, strict=True):
        if kind not in known:
            raise BadConfig(
                f"{c.where}.{key}: got {shorten(given)}, expected one of "
                + ", ".join(f"`{k}`" for k in known)
            )
    return kinds


def jamba(c: Config) -> Model:
    """Jamba: attention in every n-th layer, mixtures in every m-th, Mamba 1 with normed Δ, B, C elsewhere."""
    s = read_sizes(c, kv_heads="error")
    experts = c.size("num_experts", "num_local_experts")
    every, at = c.size("attn_layer_period"), c.size("attn_layer_offset", minimum=0)
    moe_every, moe_at = c.size("expert_layer_period"), c.size("expert_layer_offset", minimum=0)
    if at >= every:
        raise c.error("attn_layer_offset", f"less than `attn_layer_period` = {every}")
    if moe_at >= moe_every:
        raise c.error("expert_layer_offset", f"less than `expert_layer_period` = {moe_every}")
    k = expert_counts(c, "num_experts")[1] if experts > 1 else 1
    width, states = c.size("mamba_expand") * s.hidden_size, c.size("mamba_d_state")
    rank, kernel = time_step_rank(c, s.hidden_size, "mamba_dt_rank"), c.size("mamba_d_conv")
    bias, conv_bias = c.flag("mamba_proj_bias", default=False), c.flag("mamba_conv_bias", default=True)
    keys = [(i % every == at, experts > 1 and i % moe_every == moe_at) for i in range(s.num_layers)]

    def block(key: tuple[bool, bool]) -> Block:
        attends, sparse = key
        mixer: Layer
        if attends:
            mixer = attention(s, rotary=False)
        else:
            mixer = Mamba(
                s.hidden_size,
                width,
                states=states,
                kernel=kernel,
                rank=rank,
                bias=bias,
                conv_bias=conv_bias,
                activation=s.activation,
                norms="weighted",
                one_kernel=False,
            )
        mlp: Layer = gated_mlp(s)
        if sparse:
            mlp = MoE(
                Router(s.hidden_size, experts),
                routed(s, s.intermediate_size, experts, k),
                router_name="router",
            )
        return hybrid_block(s, mixer, mlp, attends)

    symbols = {
        "I": width, "p": 2 * width, "N": states, "R": rank + 2 * states, "f_e": s.intermediate_size,
        "E": experts, "k": k,
    }  # fmt: skip
    return assemble(c, s, block, keys, norm=RMS, final_norm_name="model.final_layernorm", symbols=symbols)


def hybrid_block(s: Sizes, mixer: Layer, mlp: Layer, attends: bool, **more: Any) -> Block:
    """A pre-norm block as Jamba and its kin name its parts."""
    names = ("self_attn" if attends else "mamba", "feed_forward")
    return pre_norm(
        s, mixer, mlp, names=names, norm_names=("input_layernorm", "pre_ff_layernorm", "", ""), **more
    )


def off(c: Config, key: str) -> bool:
    """Whether a switch is there and null, which the classes that allow it take for off."""
    return key in c.data and c.data[key] is None


def mamba2_mixer(c: Config, s: Sizes, width: int, **more: Any) -> Callable[[], Mamba2]:
    """The Mamba 2 mixer of Bamba, Granite and Falcon-H1, from the keys that they share."""
    heads, groups = c.size("mamba_n_heads"), c.size("mamba_n_groups")
    if width % heads:
        raise c.error("mamba_n_heads", f"a divisor of Mamba's width = {width}")
    given = c.data.get("mamba_d_head", "auto")
    head_dim = width // heads if given == "auto" else c.size("mamba_d_head")
    if head_dim * heads != width:
        raise c.error("mamba_d_head", f"Mamba's width / `mamba_n_heads` = {width // heads}")
    check_groups(c, "mamba_n_groups", groups, "mamba_n_heads", heads)
    switches: dict[str, Any] = {
        "states": c.size("mamba_d_state"),
        "groups": groups,
        "kernel": c.size("mamba_d_conv"),
        "chunk": c.size("mamba_chunk_size", default=256),
        "bias": c.flag("mamba_proj_bias", default=False),
        "conv_bias": not off(c, "mamba_conv_bias") and c.flag("mamba_conv_bias", default=True),
        "activation": s.activation,
        **more,
    }
    return lambda: Mamba2(s.hidden_size, heads, head_dim, **switches)


def bamba(c: Config) -> Model:
    """Bamba: Mamba 2, and attention in the listed layers."""
    s = read_sizes(c, kv_heads="error")
    bias, mlp_bias = c.flag("attention_bias", default=False), c.flag("mlp_bias", default=False)
    listed = set(c.ints("attn_layer_indices"))
    mixer = mamba2_mixer(c, s, c.size("mamba_expand") * s.hidden_size)

    def block(attends: bool) -> Block:
        chosen = attention(s, bias=bias) if attends else mixer()
        return hybrid_block(s, chosen, gated_mlp(s, bias=mlp_bias), attends)

    keys = [i in listed for i in range(s.num_layers)]
    symbols = mamba2_symbols(mixer())
    return assemble(c, s, block, keys, norm=RMS, final_norm_name="model.final_layernorm", symbols=symbols)


def granitemoehybrid(c: Config) -> Model:
    """Granite 4: Mamba 2 or attention, then an MLP for all tokens and perhaps a mixture beside it."""
    s = read_sizes(c)
    bias = c.flag("attention_bias", default=False)
    experts = c.size("num_local_experts", minimum=0)
    k = expert_counts(c, "num_local_experts")[1] if experts else 0
    shared = c.size("shared_intermediate_size")
    rotary = c.text("position_embedding_type", default="") == "rope"
    mixer = mamba2_mixer(c, s, c.size("mamba_expand") * s.hidden_size)
    keys = layer_kinds(c, s.num_layers, (MAMBA, ATTENTION), lambda _: MAMBA)

    def block(kind: str) -> Block:
        attends = kind == ATTENTION
        chosen = attention(s, bias=bias, rotary=rotary) if attends else mixer()
        dense = GatedMLP(
            s.hidden_size,
            shared,
            s.activation,
            fused="input_linear",
            names=("", "", "output_linear"),
            symbol="f_s",
        )
        mixture = None
        if experts:
            mixture = MoE(
                Router(s.hidden_size, experts),
                routed(s, s.intermediate_size, experts, k),
                router_name="router",
            )
        both = Beside(block_sparse_moe=mixture, shared_mlp=dense)
        return pre_norm(s, chosen, both, names=("self_attn" if attends else "mamba", ""))

    symbols = {"f_s": shared, "f_e": s.intermediate_size, "E": experts, "k": k, **mamba2_symbols(mixer())}
    return assemble(c, s, block, keys, norm=RMS, symbols=symbols)


def falcon_h1(c: Config) -> Model:
    """Falcon-H1: attention and Mamba 2 side by side in every layer."""
    s = read_sizes(c, kv_heads="error")
    bias, mlp_bias = c.flag("attention_bias", default=False), c.flag("mlp_bias", default=False)
    width = c.size_or_null("mamba_d_ssm") or c.size("mamba_expand") * s.hidden_size
    mixer = mamba2_mixer(
        c,
        s,
        width,
        out_bias=c.flag("projectors_bias", default=False),
        norm=c.flag("mamba_rms_norm", default=False),
    )

    def block(_: Any) -> Block:
        both = Beside(self_attn=attention(s, bias=bias), mamba=mixer())
        norm_names = ("input_layernorm", "pre_ff_layernorm", "", "")
        return pre_norm(
            s, both, gated_mlp(s, bias=mlp_bias), names=("", "feed_forward"), norm_names=norm_names
        )

    symbols = mamba2_symbols(mixer())
    return assemble(
        c, s, block, [None] * s.num_layers, norm=RMS, final_norm_name="model.final_layernorm", symbols=symbols
    )


PATTERN = {"M": MAMBA, "E": "moe", "*": ATTENTION, "-": "mlp"}


def nemotron_kinds(c: Config) -> list[str]:
    """Nemotron-H's layers: a list, or a word of the letters M, *, -, E; they also tell how many there are."""
    key = next((k for k in ("layers_block_type", "layer_types") if c.data.get(k) is not None), "")
    if key:
        given = c.data[key]
        count = len(given) if isinstance(given, list | tuple) else 0
        if not 1 <= count <= 10_000:
            raise c.error(key, "a list with the kind of each layer")
        return layer_kinds(c, count, tuple(PATTERN.values()), keys=(key,))
    word = c.data.get("hybrid_override_pattern")
    if not isinstance(word, str) or not 1 <= len(word) <= 10_000 or set(word) - set(PATTERN):
        raise c.error("hybrid_override_pattern", "a letter of M, *, -, E for each layer")
    return [PATTERN[letter] for letter in word]


def nemotron_h(c: Config) -> Model:
    """Nemotron-H and Nemotron 3: one sub-layer per layer, Mamba 2, attention, MLP or a mixture; head never tied."""
    kinds = nemotron_kinds(c)
    heads = c.size("num_attention_heads")
    # files of the first models name it differently; the class then takes its default, 128
    head_dim = c.size("head_dim", "attention_head_dim")
    if "head_dim" not in c.data and head_dim != 128:
        raise c.error("attention_head_dim", "128, the head_dim that the published class takes")
    kv_heads = c.size_or_null("num_key_value_heads") or heads
    if heads % kv_heads:
        raise c.error("num_key_value_heads", f"a divisor of `num_attention_heads` = {heads}")
    s = Sizes(
        hidden_size=c.size("hidden_size"),
        num_layers=len(kinds),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=c.size("vocab_size"),
        intermediate_size=c.size("intermediate_size") if "mlp" in kinds else 0,
        activation=c.choice("mlp_hidden_act", ACTIVATIONS, "relu2"),
        tied=False,
        max_length=c.size("max_position_embeddings", default=0, minimum=0) or None,
    )
    make: dict[str, Callable[[], Layer]] = {
        MAMBA: lambda: nemotron_mamba(c, s),
        ATTENTION: lambda: attention(s, rotary=False),
        "mlp": lambda: nemotron_mlp(c, s, s.intermediate_size),
        "moe": lambda: nemotron_moe(c, s),
    }

    def block(kind: str) -> Block:
        return Block(
            make[kind](),
            None,
            norm_1=Norm(s.hidden_size, RMS),
            names=("mixer", ""),
            norm_names=("norm", "", "", ""),
        )

    symbols = mamba2_symbols(nemotron_mamba(c, s)) if MAMBA in kinds else {}
    if "moe" in kinds:
        experts, k = expert_counts(c, "n_routed_experts")
        symbols |= {"f_e": c.size("moe_intermediate_size"), "E": experts, "k": k}
    return assemble(
        c,
        s,
        block,
        kinds,
        norm=RMS,
        embedding_name="model.embeddings",
        final_norm_name="model.norm_f",
        symbols=symbols,
    )


def nemotron_mamba(c: Config, s: Sizes) -> Mamba2:
    """Its Mamba 2 mixer; older names of its keys win where both stand, as in the published class."""
    heads, head_dim = c.size("mamba_num_heads"), c.size("mamba_head_dim")

    def either(older: str, name: str, **more: Any) -> int:
        found: int = c.size(older if older in c.data else name, **more)
        return found

    groups = either("mamba_n_groups", "n_groups")
    check_groups(c, "n_groups", groups, "mamba_num_heads", heads)
    conv_bias = "mamba_conv_bias" if "mamba_conv_bias" in c.data else "use_conv_bias"
    return Mamba2(
        s.hidden_size,
        heads,
        head_dim,
        states=c.size("ssm_state_size"),
        groups=groups,
        kernel=either("mamba_d_conv", "conv_kernel"),
        chunk=either("mamba_chunk_size", "chunk_size", default=128),
        bias=c.flag("use_bias", default=False),
        conv_bias=c.flag(conv_bias, default=True),
        activation=c.choice("mamba_hidden_act", ACTIVATIONS, "silu"),
    )


def nemotron_mlp(c: Config, s: Sizes, width: int) -> MLP:
    """Its plain MLP."""
    return MLP(s.hidden_size, width, s.activation, bias=c.flag("mlp_bias", default=False))


def nemotron_moe(c: Config, s: Sizes) -> MoE:
    """Its mixture of plain MLPs, perhaps on a narrower vector, beside one MLP for all tokens."""
    experts, k = expert_counts(c, "n_routed_experts")
    width, latent = c.size("moe_intermediate_size"), c.size_or_null("moe_latent_size", default=None)
    shared = c.size("moe_shared_expert_intermediate_size", minimum=0) or c.size("intermediate_size")
    sizes = replace(s, hidden_size=latent or s.hidden_size)
    chosen: Experts = routed(sizes, width, experts, k, gated=False)
    router, dense = Router(s.hidden_size, experts), nemotron_mlp(c, s, shared)
    if latent is None:
        return MoE(router, chosen, shared=dense)
    bias = c.flag("mlp_bias", default=False)
    return LatentMoE(router, chosen, hidden_size=s.hidden_size, latent_size=latent, bias=bias, shared=dense)
