"""Byte Latent Transformer: bytes → patches → a wide transformer over the patches → bytes (arXiv 2412.09871)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from loadsheet.arch.config import Config
from loadsheet.arch.families.parts import switch
from loadsheet.arch.layers.attention import Attention, CacheTensor
from loadsheet.arch.layers.base import Embedding, Layer, Linear, Norm, NormStyle
from loadsheet.arch.layers.mlp import ACTIVATIONS, GatedMLP
from loadsheet.arch.layers.patches import CrossAttention, HashEmbedding, patched
from loadsheet.arch.model import Block, Model, Pass
from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Tensor
from loadsheet.arch.work import Work
from loadsheet.errors import BadConfig

RMS = NormStyle("rms")
#: where a walk leaves the bytes while the patches pass, and the patches while the bytes pass
_BYTES, _PATCHES = ("bytes", 0), ("patches", 0)


@dataclass(frozen=True, slots=True)
class Part:
    """The sizes of one of the four transformers."""

    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    intermediate_size: int
    activation: str
    dropout: float
    window: int | None


def read_part(c: Config, window: int | None, *, derived: bool = False, activated: bool = True) -> Part:
    """Its sizes; `derived`: a missing width of the MLP is 8/3 of the hidden size."""
    d, heads = c.size("hidden_size"), c.size("num_attention_heads")
    c.divides("num_attention_heads", heads, "hidden_size", d)
    kv_heads = c.size("num_key_value_heads", default=0, minimum=0) or heads
    if heads % kv_heads:
        raise c.error("num_key_value_heads", f"a divisor of `num_attention_heads` = {heads}")
    width = (
        c.size("intermediate_size", default=0, minimum=0)
        if derived
        else c.size("intermediate_size", minimum=0)
    )
    activation = c.choice("hidden_act", ACTIVATIONS, "silu") if activated else "silu"
    return Part(
        d, c.size("num_hidden_layers"), heads, kv_heads, width or int(8 * d / 3), activation,
        c.number("dropout", default=0.0, maximum=1), window,
    )  # fmt: skip


def layer(p: Part) -> tuple[Attention, GatedMLP]:
    """Attention and MLP of one layer."""
    d = p.hidden_size
    mixer = Attention(d, p.heads, p.kv_heads, d // p.heads, window=p.window, dropout=p.dropout)
    return mixer, GatedMLP(d, p.intermediate_size, p.activation)


def byte_block(p: Part) -> Block:
    """Llama's block."""
    return Block(*layer(p), norm_1=Norm(p.hidden_size, RMS), norm_2=Norm(p.hidden_size, RMS))


class PatchBlock(Block):
    """Llama's block over patches; transformers keeps no cache of it."""

    def __init__(self, p: Part, patch_size: int) -> None:
        super().__init__(*layer(p), norm_1=Norm(p.hidden_size, RMS), norm_2=Norm(p.hidden_size, RMS))
        self.patch_size = patch_size

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T/p, d) → (B·T/p, d)."""
        work = tape.work
        tape.work = patched(work, self.patch_size)
        try:
            return super().forward(x, tape)
        finally:
            tape.work = work

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """Nothing."""
        return ()


class SideBlock(Block):
    """A block of the patcher, which reads the bytes beside the model and hands on nothing but lengths."""

    def __init__(self, p: Part) -> None:
        super().__init__(*layer(p), norm_1=Norm(p.hidden_size, RMS), norm_2=Norm(p.hidden_size, RMS))
        self.width = p.hidden_size

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """x as it came; beside it a stream of the patcher's own."""
        super().forward(tape.new(tape.work.tokens, self.width, "d_p", x.dtype), tape)
        return x

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """Nothing: it is passed anew over all bytes."""
        return ()


class Stage(Block):
    """What stands between the stacks: a block without mixer and MLP of its own."""

    def __init__(self, parts: Iterable[tuple[str, Layer]]) -> None:
        super().__init__(None, None)
        self._children = dict(parts)

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """Nothing."""
        return ()


class PatcherEnds(Stage):
    """The patcher's embedding, final norm and head: the entropy of the next byte."""

    def __init__(self, width: int, vocab: int) -> None:
        self.head = Linear(width, vocab, role="head", symbol="V", tp="vocab", quantisable=False)
        self.embedding, self.norm, self.width = Embedding(vocab, width), Norm(width, RMS), width
        super().__init__((("embed_tokens", self.embedding), ("norm", self.norm), ("lm_head", self.head)))

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """x as it came."""
        ids = tape.new(tape.work.tokens, 1, "ids", "int64")
        own = self.embedding.forward(ids, tape)
        self.head.forward(self.norm.forward(own, tape), tape)
        return x


class Pool(Stage):
    """Bytes → patches: the largest of each patch's bytes, k vectors of it, each reads the patch's bytes again."""

    def __init__(
        self, encoder: Part, k: int, crosses: int, projection: Linear | None, patch_size: int
    ) -> None:
        d = encoder.hidden_size
        self.width, self.k, self.patch_size, self.projection = d, k, patch_size, projection
        self.widen = Linear(d, k * d, role="attention", symbol="k·d", tag="patch_embedding_projection")
        self.crosses = [CrossAttention(d, encoder.heads, encoder.kv_heads) for _ in range(crosses)]
        place = "local_encoder"
        parts: list[tuple[str, Layer]] = [(f"{place}.patch_embedding_projection", self.widen)]
        parts += [(f"{place}.cross_attn_layers.{i}", cross) for i, cross in enumerate(self.crosses)]
        if projection is not None:
            parts.append(("global_transformer.token_embedding_projection", projection))
        super().__init__(parts)

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T/p, d_global); the bytes wait beside."""
        patches = patched(tape.work, self.patch_size)
        largest = tape.new(patches.tokens, self.width, x.symbol, x.dtype, x.grad)
        tape.add_record("patch_reduce", (x,), largest, (x, largest))
        for cross in self.crosses:  # one for each layer if so configured; the last one's output counts
            wide = self.widen.forward(largest, tape)
            queries = tape.view(wide, self.width, "d", rows=self.k * patches.tokens)
            made = tape.add(queries, cross.join(queries, x, self.k * tape.work.tokens, tape))
        x.storage.outside = True
        tape.tables[_BYTES] = x
        out = tape.view(made, self.k * self.width, "k·d", rows=patches.tokens)
        return out if self.projection is None else self.projection.forward(out, tape)


class Unpool(Stage):
    """Patches → what the decoder's cross-attention reads; the bytes go on."""

    def __init__(self, hidden_size: int, decoder: Part, k: int) -> None:
        self.widen = Linear(
            hidden_size,
            k * decoder.hidden_size,
            role="attention",
            symbol="k·d",
            tag="patch_embedding_projection",
        )
        self.width, self.k = decoder.hidden_size, k
        super().__init__((("local_decoder.patch_embedding_projection", self.widen),))

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T/p, d_global) → (B·T, d); the patches wait beside."""
        wide = self.widen.forward(x, tape)
        wide.storage.outside = True
        tape.tables[_PATCHES] = tape.view(wide, self.width, "d", rows=self.k * x.rows)
        waiting = tape.tables[_BYTES]
        return tape.copy(
            tape.new(tape.work.tokens, self.width, "d", waiting.dtype, waiting.grad, outside=True)
        )


class ByteCross(Stage):
    """x + cross-attention of the bytes over the patches."""

    def __init__(self, p: Part, k: int) -> None:
        self.cross, self.k = CrossAttention(p.hidden_size, p.heads, p.kv_heads), k
        super().__init__((("", self.cross),))

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        return tape.add(x, self.cross.join(x, tape.tables[_PATCHES], self.k * tape.work.tokens, tape))


def blt(c: Config) -> Model:
    """The patcher (frozen, entropy of the next byte), local encoder, global transformer and local decoder."""
    enc, dec, wide = c.part("encoder_config"), c.part("decoder_config"), c.part("global_config")
    window = c.size_or_null("local_attention_window_len", default=512)
    encoder, decoder = read_part(enc, window, derived=True), read_part(dec, window)
    globe = read_part(wide, None)
    k, patch = c.size("cross_attn_k"), c.size("patch_size", default=4)
    for part in (enc, dec):
        if part.size("cross_attn_k", default=2) != k:
            raise BadConfig(f"{part.where}.cross_attn_k: expected the same as `cross_attn_k` = {k}")
    if decoder.hidden_size != encoder.hidden_size:
        raise dec.error(
            "hidden_size", f"the encoder's, {encoder.hidden_size}: its bytes are the decoder's input"
        )
    if dec.size("hidden_size_global") != globe.hidden_size:
        raise dec.error("hidden_size_global", f"`hidden_size` of the global transformer, {globe.hidden_size}")
    vocab, d = c.size("vocab_size"), encoder.hidden_size
    tied = c.flag("tie_word_embeddings", default=False)
    if tied and enc.size("vocab_size") != vocab:
        raise enc.error("vocab_size", f"that of the tied head, {vocab}")

    projection = None
    if k * d != globe.hidden_size:
        projection = Linear(
            k * d, globe.hidden_size, role="attention", symbol="D", tag="token_embedding_projection"
        )
    crosses = [p.layers if switch(part, "cross_attn_all_layers", default=default) else 1
               for p, part, default in ((encoder, enc, False), (decoder, dec, True))]  # fmt: skip
    stages: list[tuple[Block, list[str]]] = []
    beside = _patcher(c)
    stages += beside
    stages.append((byte_block(encoder), _named("model.local_encoder.layers", encoder.layers)))
    stages.append((Pool(encoder, k, crosses[0], projection, patch), ["model"]))
    stages.append((PatchBlock(globe, patch), _named("model.global_transformer.layers", globe.layers)))
    stages.append((Unpool(globe.hidden_size, decoder, k), ["model"]))
    stages.append((ByteCross(decoder, k), _named("model.local_decoder.cross_attn_layers", crosses[1])))
    stages.append((byte_block(decoder), _named("model.local_decoder.layers", decoder.layers)))
    return Model(
        name=c.text("_name", default="") or "blt",
        model_type="blt",
        hidden_size=d,
        vocab_size=vocab,
        max_length=c.size("max_position_embeddings", default=0, minimum=0) or None,
        embedding=Embedding(enc.size("vocab_size"), d),
        embedding_name="model.local_encoder.embed_tokens",
        runs=tuple((block, len(names)) for block, names in stages),
        final_norm=Norm(d, RMS),
        final_norm_name="model.local_decoder.norm",
        head=Linear(d, vocab, role="head", symbol="V", tp="vocab", quantisable=False),
        head_name="lm_head",
        tied=tied,
        extras=(("model.encoder_hash_tok_embedding", _hashes(c, d)),),
        symbols={"V": vocab, "d": d, "D": globe.hidden_size, "L": globe.layers, "h": encoder.heads, "k": k},
        layer_names=tuple(name for _, names in stages for name in names),
        passes=tuple(
            Pass(i, len(names), grad=i >= len(beside)) for i, (_, names) in enumerate(stages)
        ),
        defaulted=tuple(key for key in c.defaulted if not key.startswith("_")),
    )  # fmt: skip


def _named(place: str, count: int) -> list[str]:
    return [f"{place}.{i}" for i in range(count)]


def _patcher(c: Config) -> list[tuple[Block, list[str]]]:
    """The small model that cuts the bytes into patches, if it is part of the forward."""
    if not switch(c, "patch_in_forward", default=True):
        return []
    part = c.part("patcher_config")
    p = read_part(part, part.size_or_null("sliding_window", default=512), activated=False)
    ends = PatcherEnds(p.hidden_size, part.size("vocab_size"))
    return [(ends, ["model.patcher"]), (SideBlock(p), _named("model.patcher.layers", p.layers))]


def _hashes(c: Config, width: int) -> HashEmbedding:
    groups: Any = c.data.get("encoder_hash_byte_group_size") or None
    if groups is None and "encoder_hash_byte_group_size" not in c.data:
        raise c.error("encoder_hash_byte_group_size", "a list of lengths of byte groups")
    count = 6 if groups is None else len(c.ints("encoder_hash_byte_group_size"))
    lookups = count * c.size("encoder_hash_byte_group_nb_functions", default=1, maximum=1000)
    return HashEmbedding(c.size("encoder_hash_byte_group_vocab") * lookups, width, lookups)
