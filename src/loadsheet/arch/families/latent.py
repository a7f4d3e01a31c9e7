"""Latent attention after DeepSeek V3: with indexers, gates, hyper-connections, in dense models and mixtures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loadsheet.arch.config import Config
from loadsheet.arch.families.llama import gated_mlp
from loadsheet.arch.families.mixtures import Mixture, counts, decoder, dense_first, listed_sparse
from loadsheet.arch.families.parts import RMS, Sizes, assemble, read_max_length
from loadsheet.arch.layers.base import Layer, Norm
from loadsheet.arch.layers.expert_parts import ExpertsWithNone, NormedMoE, ShortcutBlock
from loadsheet.arch.layers.gates import GatedNorm
from loadsheet.arch.layers.indexer import Indexer
from loadsheet.arch.layers.latent import LatentAttention
from loadsheet.arch.layers.mlp import ACTIVATIONS, MoE, Router
from loadsheet.arch.model import Block, Model
from loadsheet.errors import BadConfig, shorten
from loadsheet.units import ceil_div


@dataclass(frozen=True, slots=True)
class Latent:
    """The sizes of latent attention."""

    heads: int
    query_rank: int | None
    rank: int
    nope: int
    rope: int
    value: int
    bias: bool

    def layer(self, hidden_size: int, **switches: Any) -> LatentAttention:
        """One layer of it."""
        return LatentAttention(
            hidden_size,
            self.heads,
            q_lora_rank=self.query_rank,
            kv_lora_rank=self.rank,
            nope_dim=self.nope,
            rope_dim=self.rope,
            value_dim=self.value,
            bias=self.bias,
            **switches,
        )

    @property
    def symbols(self) -> dict[str, int]:
        """Letters of formulas."""
        return {
            "c_q": self.query_rank or 0, "c_kv": self.rank + self.rope, "kv_b": self.heads * (self.nope + self.value),
            "d_v": self.value,
        }  # fmt: skip


def read_latent(
    c: Config,
    *,
    query: str = "required",
    value: int | None = None,
    rope: tuple[str, ...] = ("qk_rope_head_dim",),
) -> Latent:
    """Read and check them.

    `query`: q_lora_rank is "required", may be "null" (one matrix instead of two), or may be "missing" too;
    `value`: what a missing v_head_dim means.
    """
    rank: int | None
    if query == "required":
        rank = c.size("q_lora_rank")
    elif query == "null":
        rank = c.size_or_null("q_lora_rank")
    else:
        rank = c.size("q_lora_rank", default=0) or None
    return Latent(
        heads=c.size("num_attention_heads"),
        query_rank=rank,
        rank=c.size("kv_lora_rank"),
        nope=c.size("qk_nope_head_dim", minimum=0),
        rope=c.size(*rope),
        value=c.size("v_head_dim") if value is None else c.size("v_head_dim", default=value),
        bias=c.flag("attention_bias", default=False),
    )


def latent_sizes(c: Config, a: Latent, *, dense: bool, tied: bool = False) -> Sizes:
    """The sizes of the model around it."""
    return Sizes(
        hidden_size=c.size("hidden_size"),
        num_layers=c.size("num_hidden_layers"),
        heads=a.heads,
        kv_heads=a.heads,
        head_dim=a.nope + a.rope,
        vocab_size=c.size("vocab_size"),
        intermediate_size=c.size("intermediate_size") if dense else 0,
        activation=c.choice("hidden_act", ACTIVATIONS, "silu"),
        tied=c.flag("tie_word_embeddings", default=tied),
        max_length=read_max_length(c),
    )


def read_mixture(c: Config, *names: str, shared: tuple[str, ...] = ("n_shared_experts",)) -> Mixture:
    """DeepSeek's mixture: shared experts of the same width as the routed ones."""
    experts, k = counts(c, "n_routed_experts", "num_local_experts", *names)
    width = c.size("moe_intermediate_size")
    return Mixture(width, experts, k, width * c.size(*shared))


def indexer(c: Config, hidden_size: int, a: Latent) -> Indexer:
    """The indexer with a config's sizes."""
    rank = a.query_rank or 0
    return Indexer(
        hidden_size,
        rank,
        c.size("index_n_heads"),
        c.size("index_head_dim"),
        c.size("index_topk", default=2048),
    )


def same_kinds(c: Config, count: int, *known: str) -> None:
    """BadConfig if `layer_types` is no list of these, one for each layer; they say nothing else here."""
    for kind in c.pattern("layer_types", count) or []:
        if not isinstance(kind, str) or kind not in known:
            names = ", ".join(f"`{k}`" for k in known)
            raise BadConfig(f"{c.where}.layer_types: got {shorten(kind)}, expected one of {names}")


DSA = ("indexed_attention", "deepseek_sparse_attention")


def dense_latent(c: Config) -> Model:
    """MiniCPM 3 and Youtu: dense models, tied heads."""
    third = c.data.get("model_type") == "minicpm3"
    value = None
    if third:
        heads, hidden = c.size("num_attention_heads"), c.size("hidden_size")
        c.divides("num_attention_heads", heads, "hidden_size", hidden)
        value = hidden // heads
    a = read_latent(c, query="null", value=value)
    s = latent_sizes(c, a, dense=True, tied=True)
    mlp_bias = third and c.flag("mlp_bias", default=False)
    return decoder(
        c,
        s,
        [0] * s.num_layers,
        lambda _: a.layer(s.hidden_size),
        lambda _: gated_mlp(s, bias=mlp_bias),
        symbols=a.symbols,
    )


def deepseek_like(c: Config) -> Model:
    """DeepSeek V3 under other names: GLM-4.7-Flash (as `glm4_moe_lite`), Sarvam (as `sarvam_mla`), A.X-K1."""
    kind = c.data.get("model_type")
    layers = c.size("num_hidden_layers")
    if kind == "glm4_moe_lite":
        sparse = listed_sparse(c, layers, lambda i: i > 0, longer=True)
        a = read_latent(c, query="null", rope=("qk_rope_head_dim", "head_dim"))
        mix = read_mixture(c)
    elif kind == "sarvam_mla":
        sparse = dense_first(c, layers)
        a = read_latent(c, query="missing")
        mix = read_mixture(c, "num_experts", shared=("n_shared_experts", "num_shared_experts"))
    else:
        sparse = leading_dense(c, layers, longer=True)
        a = read_latent(c)
        mix = read_mixture(c)
    s = latent_sizes(c, a, dense=not all(sparse))

    def mlp(is_sparse: bool) -> Layer:
        if not is_sparse:
            return gated_mlp(s)
        if kind != "axk1":
            return mix.layer(s)
        made: Any = mix.layer(s, kind=NormedMoE)
        normed: NormedMoE = made.with_norm("post_mlp_layernorm", Norm(s.hidden_size, RMS))
        return normed

    symbols = {**a.symbols, **mix.symbols}
    return decoder(c, s, sparse, lambda _: a.layer(s.hidden_size), mlp, symbols=symbols)


def leading_dense(c: Config, count: int, *, longer: bool = False) -> list[bool]:
    """Which layers are mixtures: `mlp_layer_types`, or after the dense ones every `moe_layer_freq`-th."""
    if c.data.get("mlp_layer_types") is not None:
        return listed_sparse(c, count, lambda _: True, longer=longer)
    every = c.size("moe_layer_freq", default=1)
    return [sparse and i % every == 0 for i, sparse in enumerate(dense_first(c, count))]


def indexed(c: Config) -> Model:
    """DeepSeek V3.2 and GLM-5 (as `glm_moe_dsa`, where some layers use the choice of the one before)."""
    layers = c.size("num_hidden_layers")
    sparse = dense_first(c, layers, listed=True)
    same_kinds(c, layers, *DSA)
    own = shared_choices(c, layers) if c.data.get("model_type") == "glm_moe_dsa" else [True] * layers
    a = read_latent(c)
    s = latent_sizes(c, a, dense=not all(sparse))
    mix = read_mixture(c, "num_experts")

    def mixer(key: tuple[bool, bool]) -> Layer:
        return a.layer(s.hidden_size, **choosing(c, s, a, own=key[0]))

    return decoder(
        c,
        s,
        list(zip(own, sparse, strict=True)),
        mixer,
        lambda key: mix.layer(s) if key[1] else gated_mlp(s),
        symbols={**a.symbols, **mix.symbols},
    )


def choosing(c: Config, s: Sizes, a: Latent, *, own: bool) -> dict[str, Any]:
    """Switches of a layer that attends to chosen keys: its own indexer, or the choice of the layer before."""
    if own:
        return {"indexer": indexer(c, s.hidden_size, a)}
    return {"chosen": c.size("index_topk", default=2048)}


def shared_choices(c: Config, count: int, default: Callable[[int], bool] | None = None) -> list[bool]:
    """Which layers have an indexer: `indexer_types`, `index_topk_pattern` ("FSSF…"), or every `index_topk_freq`-th."""
    key, names = "indexer_types", {"full": True, "shared": False}
    if c.data.get(key) is None:
        if default is not None:
            return [default(i) for i in range(count)]
        key = "index_topk_pattern"
    kinds = c.data.get(key)
    if kinds is None:
        every = c.size("index_topk_freq", default=1, minimum=0)
        offset = c.size("index_skip_topk_offset", default=2, minimum=0)
        return [max(i - offset + 1, 0) % max(every, 1) == 0 for i in range(count)]
    letters = isinstance(kinds, str) and key == "index_topk_pattern"
    if letters:
        names = {"F": True, "S": False}
    if not (letters or isinstance(kinds, (list, tuple))) or len(kinds) < count:
        raise c.error(key, f"one entry for each of {count} layers")
    for kind in kinds:
        if not isinstance(kind, str) or kind not in names:
            raise BadConfig(
                f"{c.where}.{key}: got {shorten(kind)}, expected one of " + ", ".join(f"`{k}`" for k in names)
            )
    return [names[kind] for kind in kinds[:count]]


def axk2(c: Config) -> Model:
    """A.X-K2: an indexer, queries and a gate from one matrix, norms with gates of their own."""
    layers = c.size("num_hidden_layers")
    sparse = leading_dense(c, layers)
    same_kinds(c, layers, *DSA)
    a = read_latent(c)
    s = latent_sizes(c, a, dense=not all(sparse))
    mix, rank, d = read_mixture(c), c.size("gated_norm_rank"), s.hidden_size

    def block(is_sparse: bool) -> Block:
        mixer = a.layer(d, query_gate="q_gate_proj", **choosing(c, s, a, own=True))
        mlp = mix.layer(s) if is_sparse else gated_mlp(s)
        second = GatedNorm(d, rank) if is_sparse else Norm(d, RMS)
        return Block(mixer, mlp, norm_1=GatedNorm(d, rank), norm_2=second)

    return assemble(c, s, block, sparse, norm=RMS, symbols={**a.symbols, **mix.symbols})


def longcat_flash(c: Config) -> Model:
    """LongCat-Flash: two attentions and two MLPs per layer beside one mixture, where no expert is a choice too."""
    if c.data.get("num_hidden_layers") is not None:
        layers = c.size("num_hidden_layers", minimum=2) // 2
        if c.data.get("num_layers") not in (None, layers):
            raise c.error(
                "num_layers", f"half of `num_hidden_layers`, {layers}: two attentions are in each layer"
            )
    else:
        layers = c.size("num_layers")
    a = read_latent(c)
    if c.data.get("qk_head_dim") not in (None, a.nope + a.rope):
        raise c.error("qk_head_dim", f"`qk_nope_head_dim` + `qk_rope_head_dim` = {a.nope + a.rope}")
    whole = {
        **c.data, "num_hidden_layers": layers,
        "intermediate_size": c.size("ffn_hidden_size", "intermediate_size"),
    }  # fmt: skip
    s = latent_sizes(Config(whole, c.where), a, dense=True)
    width = c.size("expert_ffn_hidden_size", "moe_intermediate_size")
    none = c.size_or_null("zero_expert_num", minimum=0) or 0
    experts = c.size("n_routed_experts", "num_local_experts")
    chosen = c.size("moe_topk", "num_experts_per_tok", maximum=experts + none)
    k = ceil_div(chosen * experts, experts + none)  # on average, if every choice is equally likely
    bias = c.flag("router_bias", default=False)
    d = s.hidden_size

    def block(_: Any) -> Block:
        routed = ExpertsWithNone(d, width, experts, k, s.activation, choices=experts + none)
        router = Router(d, experts + none, bias=bias, name="classifier.weight")
        return ShortcutBlock(
            (a.layer(d), a.layer(d)),
            (gated_mlp(s), gated_mlp(s)),
            MoE(router, routed, router_name="router"),
            [Norm(d, RMS) for _ in range(4)],
        )

    symbols = {**a.symbols, **Mixture(width, experts, k).symbols}
    return assemble(c, s, block, [0] * layers, norm=RMS, symbols=symbols)
