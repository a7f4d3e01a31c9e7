"""Gemma 3n and 4 (text): per-layer embeddings, shared keys and values, other heads in full attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from loadsheet.arch.config import LIMITS, Config
from loadsheet.arch.families.llama import capped
from loadsheet.arch.families.nesting import nested_type
from loadsheet.arch.families.parts import GEMMA_RMS, Sizes, assemble, read_sizes
from loadsheet.arch.layers.altup import AltUp, AltUpStreams, Laurel, SparseGatedMLP
from loadsheet.arch.layers.base import Layer
from loadsheet.arch.layers.gemma_blocks import AltUpBlock, Gemma4Block, ScaledRouter, TargetProjections
from loadsheet.arch.layers.mlp import Experts, GatedMLP
from loadsheet.arch.layers.per_layer import PerLayerGate, PerLayerInputs
from loadsheet.arch.layers.sharing import SharedAttention, Sharing
from loadsheet.arch.model import Block, Model
from loadsheet.errors import BadConfig, UnsupportedArchitecture, shorten

SLIDING, FULL = "sliding_attention", "full_attention"
NORM = GEMMA_RMS


def _sizes(c: Config) -> Sizes:
    c.size("head_dim")  # the class takes no null here
    return read_sizes(
        c,
        tied=True,
        kv_heads="error",
        activation_key="hidden_activation",
        activation="gelu_pytorch_tanh",
    )


def _kinds(c: Config, count: int, usual: Callable[[int], str]) -> list[str]:
    """The kind of each layer, from `layer_types` or the class's pattern."""
    kinds = c.pattern("layer_types", count) or [usual(i) for i in range(count)]
    for kind in kinds:
        if kind not in (SLIDING, FULL):
            raise BadConfig(
                f"{c.where}.layer_types: got {shorten(kind)}, expected one of `{FULL}`, `{SLIDING}`"
            )
    return kinds


def _sharing(c: Config, kinds: list[str], shared: int, *, all_shared: bool) -> list[Sharing]:
    """Which layers keep keys and values, and which read those of the last keeping layer of their kind.

    The last `shared` layers read. `all_shared`: whether every layer may (the class then takes the keys
    and values of another model).
    """
    count = len(kinds)
    if shared > count or (shared == count and not all_shared):
        raise c.error("num_kv_shared_layers", f"fewer than `num_hidden_layers` = {count}")
    own = kinds[: count - shared]
    if shared == count:
        return ["reuse"] * count
    if set(own) != set(kinds):
        raise c.error(
            "num_kv_shared_layers",
            "few enough for a layer of each kind in `layer_types` to keep keys and values",
        )
    last = {kind: index for index, kind in enumerate(own)}
    return ["store" if last[kind] == i else "own" for i, kind in enumerate(own)] + ["reuse"] * shared


def _widths(c: Config, count: int) -> list[int]:
    """The MLP's width in each layer; the file gives one for all or one for each."""
    listed = (
        c.pattern("intermediate_size", count) if isinstance(c.data.get("intermediate_size"), list) else None
    )
    if listed is None:
        return [c.size("intermediate_size")] * count
    return [Config({"intermediate_size": width}, c.where).size("intermediate_size") for width in listed]


def _sparse(c: Config, count: int) -> list[bool]:
    """Which layers let only their largest pre-activations through."""
    shares = c.pattern("activation_sparsity_pattern", count)
    if shares is None:
        return [count > 10 and i < 10 for i in range(count)]
    if not all(isinstance(share, (int, float)) and 0 <= share < 1 for share in shares):
        raise c.error("activation_sparsity_pattern", "shares from 0 to 1")
    return [share > 0 for share in shares]


def gemma3n(c: Config) -> Model:
    """Gemma 3n: four residual streams, a low-rank path, per-layer embeddings, sparse first layers."""
    count = c.size("num_hidden_layers")
    widths = _widths(c, count)
    c = Config({**c.data, "intermediate_size": max(widths)}, c.where)
    s = _sizes(c)
    d, bias = s.hidden_size, c.flag("attention_bias", default=False)
    kinds = _kinds(c, count, lambda i: SLIDING if (i + 1) % 5 else FULL)
    sharing = _sharing(c, kinds, c.size("num_kv_shared_layers", minimum=0), all_shared=False)
    window = c.size("sliding_window", default=512)
    narrow, streams = c.size("hidden_size_per_layer_input"), c.size("altup_num_inputs", maximum=1024)
    rank, vocab = c.size("laurel_rank"), c.size("vocab_size_per_layer_input", maximum=LIMITS["vocab_size"])
    scaled = c.flag("altup_correct_scale", default=True)
    keys = list(zip(kinds, sharing, widths, _sparse(c, count), strict=True))

    def block(key: tuple[str, Sharing, int, bool]) -> Block:
        kind, mode, width, sparse = key
        mixer = SharedAttention(
            d,
            s.heads,
            s.kv_heads,
            s.head_dim,
            kind=kind,
            sharing=mode,
            window=window if kind == SLIDING else None,
            bias=bias,
            norm_style=NORM,
        )
        return AltUpBlock(
            d,
            mixer,
            (SparseGatedMLP if sparse else GatedMLP)(d, width, s.activation),
            NORM,
            altup=AltUp(d, streams, NORM, scaled=scaled),
            laurel=Laurel(d, rank, NORM),
            gate=PerLayerGate(d, narrow, count, s.activation, NORM),
        )

    extras = (
        ("model", PerLayerInputs(d, narrow, count, vocab, NORM)),
        ("model", AltUpStreams(d, streams)),
    )
    symbols = {"p": narrow, "n_s": streams, "r_l": rank}
    logits = capped(c, "final_logit_softcapping", default=True)
    return assemble(c, s, block, keys, norm=NORM, extras=extras, symbols=symbols, logit_softcap=logits)


def _overrides(c: Config, count: int) -> list[Config]:
    """`per_layer_config`, as transformers writes it: what each layer overrides ("05": {"head_dim": 512})."""
    found = [Config({}, f"{c.where}.per_layer_config.{i}") for i in range(count)]
    listed = c.data["per_layer_config"]
    for key, values in ({} if listed is None else c.part("per_layer_config").data).items():
        number = str(key)
        index = int(number) if number.isdecimal() and len(number) < 10 else count
        if index >= count or not isinstance(values, Mapping):
            raise BadConfig(
                f"{c.where}.per_layer_config: got {shorten(key)}: {shorten(values)}, expected a layer below "
                f"{count} and an object"
            )
        found[index] = Config(values, f"{c.where}.per_layer_config.{key}")
        for name, value in values.items():
            if name not in ("head_dim", "num_key_value_heads") and value not in (c.data.get(name), []):
                raise UnsupportedArchitecture(
                    f"{found[index].where}.{shorten(name)}: got {shorten(value)}, expected the value of all layers",
                    "here, layers may differ in `head_dim` and `num_key_value_heads` only",
                )
    return found


def _heads(c: Config, s: Sizes, kinds: list[str], values_from_keys: bool) -> dict[str, tuple[int, int]]:
    """kind of layer -> (head_dim, KV heads).

    Published files name the sizes of full attention apart (`global_head_dim`, `num_global_key_value_heads`),
    later ones have `per_layer_config`, where all layers of a kind must agree.
    """
    found = dict.fromkeys(kinds, (s.head_dim, s.kv_heads))
    if "per_layer_config" not in c.data:
        groups = c.size_or_null("num_global_key_value_heads", default=0) if values_from_keys else None
        found[FULL] = (c.size("global_head_dim"), groups or s.kv_heads)
    else:
        for kind, override in zip(kinds, _overrides(c, len(kinds)), strict=True):
            sizes = (
                override.size("head_dim", default=s.head_dim),
                override.size("num_key_value_heads", default=s.kv_heads),
            )
            if found.setdefault(f"{kind}, seen", sizes) != sizes:
                raise BadConfig(
                    f"{override.where}: got other sizes than in layers before, expected the same in all of `{kind}`"
                )
            found[kind] = sizes
    for _, groups in found.values():
        if s.heads % groups:
            raise BadConfig(
                f"{c.where}.num_global_key_value_heads: got {groups}, expected a divisor of "
                f"`num_attention_heads` = {s.heads}"
            )
    return found


def gemma4(c: Config) -> Model:
    """Gemma 4 (text): wider heads in full attention, values perhaps made of keys, a mixture beside the MLP."""
    unified = str(c.data.get("model_type")).startswith("gemma4_unified")
    if c.data.get("use_bidirectional_attention") == "all":
        raise UnsupportedArchitecture(
            f"{c.where}.use_bidirectional_attention: got 'all', an encoder and no decoder"
        )
    s = _sizes(c)
    d, count, bias = s.hidden_size, s.num_layers, c.flag("attention_bias", default=False)
    kinds = _kinds(c, count, lambda i: SLIDING if (i + 1) % 6 else FULL)
    kinds[-1] = FULL  # the class sees to it
    shared = c.size("num_kv_shared_layers", default=0, minimum=0)
    sharing = _sharing(c, kinds, shared, all_shared=True)
    values_from_keys = c.flag("attention_k_eq_v", default=False)
    heads = _heads(c, s, kinds, values_from_keys)
    window = c.size("sliding_window", default=1024 if unified else 512)
    double = c.flag("use_double_wide_mlp", default=False)
    narrow = 0 if unified else c.size("hidden_size_per_layer_input", minimum=0)
    experts = k = expert_width = 0
    if not unified and c.flag("enable_moe_block", default=False):
        experts, k = c.size("num_experts", maximum=LIMITS["num_experts"]), c.size("top_k_experts")
        expert_width = c.size("moe_intermediate_size")
        if k > experts:
            raise c.error("top_k_experts", f"at most `num_experts` = {experts}")

    def block(key: tuple[str, Sharing]) -> Block:
        kind, mode = key
        head_dim, groups = heads[kind]
        mixer = SharedAttention(
            d,
            s.heads,
            groups,
            head_dim,
            kind=kind,
            sharing=mode,
            window=window if kind == SLIDING else None,
            bias=bias,
            values_from_keys=values_from_keys and kind == FULL,
            norm_style=NORM,
        )
        wide = double and mode == "reuse"
        mlp = GatedMLP(d, s.intermediate_size * (2 if wide else 1), s.activation)
        gate = PerLayerGate(d, narrow, count, s.activation, NORM) if narrow else None
        mixture = None
        if experts:
            mixture = ScaledRouter(d, experts), Experts(d, expert_width, experts, k, s.activation)
        return Gemma4Block(d, mixer, mlp, NORM, gate=gate, mixture=mixture)

    extras: tuple[tuple[str, Layer], ...] = ()
    if narrow:
        vocab = c.size("vocab_size_per_layer_input", maximum=LIMITS["vocab_size"])
        extras = (("model", PerLayerInputs(d, narrow, count, vocab, NORM)),)
    letters = {"p": narrow, "f_e": expert_width, "E": experts, "k": k}
    return assemble(
        c,
        s,
        block,
        list(zip(kinds, sharing, strict=True)),
        norm=NORM,
        extras=extras,
        symbols={name: size for name, size in letters.items() if size},
        logit_softcap=capped(c, "final_logit_softcapping", default=False),
    )


def gemma4_assistant(c: Config) -> Model:
    """The draft model of Gemma 4: its layers read the keys and values of the model that it helps.

    It takes the embedding and the last state of that model side by side. With `use_ordered_embeddings` it
    scores the likeliest clusters of tokens only; the head's FLOPs are counted for the whole vocabulary.
    """
    text = c.part("text_config")
    kind = "gemma4_unified_text" if c.data.get("model_type") == "gemma4_unified_assistant" else "gemma4_text"
    nested_type(text, (kind,))
    layers = text.size("num_hidden_layers")
    shared = text.size("num_kv_shared_layers", default=0, minimum=0) or layers
    if kind == "gemma4_text":
        _plain_only(text, shared, layers)
    model = gemma4(Config({**text.data, "model_type": kind, "num_kv_shared_layers": shared}, text.where))
    target = c.size("backbone_hidden_size", maximum=LIMITS["hidden_size"])
    centroids = c.size("num_centroids") if c.flag("use_ordered_embeddings", default=False) else 0
    model.tied, model.logit_softcap = c.flag("tie_word_embeddings", default=True), False
    model.extras += (("", TargetProjections(model.hidden_size, target, centroids)),)
    return model


def _plain_only(text: Config, shared: int, layers: int) -> None:
    """The class of the assistant takes no per-layer embedding, no mixture, and no layer with keys of its own."""
    for key in ("hidden_size_per_layer_input", "vocab_size_per_layer_input"):
        if text.size(key, minimum=0):
            raise text.error(key, "0 in an assistant")
    for key in ("enable_moe_block", "use_double_wide_mlp"):
        if text.flag(key, default=False):
            raise text.error(key, "false in an assistant")
    if shared != layers:
        raise text.error("num_kv_shared_layers", f"0 or `num_hidden_layers` = {layers} in an assistant")
