"""Wrappers: a language model with encoders for images or sound, or a config that nests one.

What AutoModelForCausalLM builds is counted: encoders too, if it builds them (Gemma, Phi-4, GOT, GIT, Fuyu,
MOSS); the language model alone, if not (Llama 4, Llama 3.2 Vision). Text passes no encoder, so a tower has
weights, but neither FLOPs nor activations.
"""

from __future__ import annotations

from typing import Any

from loadsheet.arch.config import LIMITS, Config
from loadsheet.arch.families.llama import attention, gated_mlp, pre_norm
from loadsheet.arch.families.nesting import nest, nested_type, text_model
from loadsheet.arch.families.parts import FULL, LAYER_NORM, RMS, assemble, optional_window, read_sizes
from loadsheet.arch.families.towers import (
    GOT_VISION,
    bridge,
    gemma3n_audio,
    gemma3n_vision,
    gemma4_audio,
    gemma4_vision,
    git_vision,
    got_vision,
    moss_audio,
    phi4_audio,
    phi4_image,
    siglip,
    tower_type,
    unified_patches,
)
from loadsheet.arch.layers.attention import Attention, AttentionNames
from loadsheet.arch.layers.base import Embedding, Layer, Norm
from loadsheet.arch.layers.crossed import ImageBlock
from loadsheet.arch.layers.mlp import MLP
from loadsheet.arch.layers.tower import Tower
from loadsheet.arch.model import Block, Model
from loadsheet.arch.residual import PostNormBlock


def wrapped(c: Config, model: Model, *towers: tuple[str, Tower], tied: bool = True) -> Model:
    """The language model in its place inside a wrapper, with the towers; the wrapper decides the tie."""
    nest(model)
    model.extras += towers
    model.tied = c.flag("tie_word_embeddings", default=tied)
    return model


def gemma3(c: Config) -> Model:
    """Gemma 3 with SigLIP. The published 4B leaves out what is the class's default, so this does too."""
    usual = {"vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
    text = c.part("text_config")
    model = text_model(Config({**c.data, "text_config": {**usual, **text.data}}, c.where), "gemma3_text")
    model.defaulted = (*(key for key in usual if key not in text.data), *model.defaulted)
    vision = tower_type(c.part("vision_config"), "siglip_vision_model")
    width = vision.size("hidden_size")
    joint = bridge(mm_input_projection_weight=(width, model.hidden_size), mm_soft_emb_norm__weight=(width,))
    return wrapped(c, model, ("model.vision_tower", siglip(vision)), ("model.multi_modal_projector", joint))


def gemma3n(c: Config) -> Model:
    """Gemma 3n with MobileNet V5 and a conformer; both have a small vocabulary of their own."""
    model = text_model(c, "gemma3n_text")
    towers: list[tuple[str, Tower]] = []
    for name, build in (("vision", gemma3n_vision), ("audio", gemma3n_audio)):
        part = tower_type(c.part(f"{name}_config"), f"gemma3n_{name}")
        tower: Tower = build(part)
        place = f"model.{name}_tower" + (".timm_model" if name == "vision" else "")
        width, vocab = part.size("hidden_size"), part.size("vocab_size")
        joint = bridge(
            embedding__weight=(vocab, width),
            hard_embedding_norm__weight=(width,),
            soft_embedding_norm__weight=(width,),
            embedding_projection__weight=(model.hidden_size, width),
        )
        towers += [(place, tower), (f"model.embed_{name}", joint)]
    return wrapped(c, model, *towers)


def gemma4(c: Config) -> Model:
    """Gemma 4 with those of its two encoders that the config has."""
    model = text_model(c, "gemma4_text")
    towers: list[tuple[str, Tower]] = []
    for name, build in (("vision", gemma4_vision), ("audio", gemma4_audio)):
        if c.data.get(f"{name}_config") is None:
            continue
        part = tower_type(c.part(f"{name}_config"), f"gemma4_{name}")
        tower: Tower = build(part)
        width = part.size("output_proj_dims", default=part.size("hidden_size"))
        joint = bridge(embedding_projection__weight=(model.hidden_size, width))
        towers += [(f"model.{name}_tower", tower), (f"model.embed_{name}", joint)]
    return wrapped(c, model, *towers)


def gemma4_unified(c: Config) -> Model:
    """Gemma 4 whose patches and sound samples go into the language model by one matrix each."""
    model = text_model(c, "gemma4_unified_text")
    towers: list[tuple[str, Tower]] = []
    if c.data.get("vision_config") is not None:
        part = tower_type(c.part("vision_config"), "gemma4_unified_vision")
        joint = bridge(embedding_projection__weight=(model.hidden_size, part.size("output_proj_dims")))
        towers += [("model.embed_vision", unified_patches(part))]
        towers += [("model.embed_vision.multimodal_embedder", joint)]
    if c.data.get("audio_config") is not None:
        part = tower_type(c.part("audio_config"), "gemma4_unified_audio")
        width = part.size("audio_embed_dim", "hidden_size", "output_proj_dims", "audio_samples_per_token")
        joint = bridge(embedding_projection__weight=(model.hidden_size, width))
        towers += [("model.embed_audio", joint)]
    return wrapped(c, model, *towers)


def llama4(c: Config) -> Model:
    """Llama 4: the causal class is its language model alone."""
    return text_model(c, "llama4_text")


def mllama(c: Config) -> Model:
    """Llama 3.2 Vision: the causal class is its language model, in which some blocks attend to the image."""
    text = c.part("text_config")
    nested_type(text, ("mllama_text_model",))
    s = read_sizes(text, head_dim="ignore", kv_heads="error")
    dropout = text.number("dropout", default=0.0, maximum=1)
    listed = text.data.get("cross_attention_layers")
    crossed = set(text.ints("cross_attention_layers")) if listed is not None else set(range(3, 40, 5))

    def block(is_crossed: bool) -> Block:
        if not is_crossed:
            return pre_norm(s, attention(s, dropout=dropout), gated_mlp(s))
        norms = Norm(s.hidden_size, RMS), Norm(s.hidden_size, RMS)
        return ImageBlock(attention(s, qk_norm="head", rotary=False), gated_mlp(s), norms)

    keys = [i in crossed for i in range(s.num_layers)]
    model = assemble(text, s, block, keys, norm=RMS, embedding_rows=s.vocab_size + 8)
    model.model_type = model.name = c.text("model_type", default="mllama")
    model.tied = False  # the embedding has rows that the head has not
    return model


def phi4_multimodal(c: Config) -> Model:
    """Phi-4-multimodal: Phi-4-mini with SigLIP and a conformer."""
    s = read_sizes(c, kv_heads="error")
    dropout = c.number("resid_pdrop", default=0.0, maximum=1)
    keys = [(optional_window(c), None)] * s.num_layers

    def block(k: Any) -> Block:
        mixer, mlp = attention(s, k, fused_qkv=True), gated_mlp(s, fused="gate_up_proj")
        return pre_norm(s, mixer, mlp, dropout=dropout)

    vision = tower_type(c.part("vision_config"), "phi4_multimodal_vision")
    audio = tower_type(c.part("audio_config"), "phi4_multimodal_audio")
    extras = (
        ("model.embed_tokens_extend.image_embed", phi4_image(vision, s.hidden_size)),
        ("model.embed_tokens_extend.audio_embed", phi4_audio(audio, s.hidden_size)),
    )
    return assemble(c, s, block, keys, norm=RMS, extras=extras)


#: where a flat Fuyu config keeps its language model
FUYU_TEXT = (
    "vocab_size", "max_position_embeddings", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "hidden_act", "qk_layernorm", "hidden_dropout", "attention_dropout", "layer_norm_eps",
)  # fmt: skip


def fuyu(c: Config) -> Model:
    """Fuyu: Persimmon, patches by one matrix; older files hold the language model's keys in the open."""
    if c.data.get("text_config") is None:
        flat = {key: c.data[key] for key in FUYU_TEXT if key in c.data}
        c = Config({**c.data, "text_config": flat}, c.where)
    model = text_model(c, "persimmon")
    patch, channels = c.size("patch_size"), c.size("num_channels", default=3)
    tower = Tower()
    tower.linear("vision_embed_tokens", patch * patch * channels, model.hidden_size)
    return wrapped(c, model, ("model", tower), tied=False)


def got_ocr2(c: Config) -> Model:
    """GOT-OCR 2: Qwen 2 with SAM, its map halved twice by convolutions."""
    model = text_model(c, "qwen2")
    given = tower_type(c.part("vision_config"), "got_ocr2_vision")
    vision = Config({**GOT_VISION, **given.data}, given.where)
    model.defaulted += tuple(f"vision_config.{key}" for key in GOT_VISION if key not in given.data)
    channels, d = vision.size("output_channels"), model.hidden_size
    joint = Tower()
    joint.conv("conv_upsampler1", channels, 2 * channels, 3, 3, bias=False)
    joint.conv("conv_upsampler2", 2 * channels, d, 3, 3, bias=False)
    joint.linear("multimodal_projector", d, d)
    return wrapped(
        c, model, ("model.vision_tower", got_vision(vision)), ("model.multi_modal_projector", joint)
    )


def moss(c: Config) -> Model:
    """MOSS-Transcribe-Diarize: Qwen 3 with Whisper's encoder, some frames joined before the projection."""
    model = text_model(c, "qwen3")
    audio = tower_type(c.part("audio_config"), "moss_transcribe_diarize_audio")
    d, bias = model.hidden_size, c.flag("projector_bias", default=True)
    frames = audio.size("hidden_size", "d_model") * c.size("audio_merge_size", default=4)
    joint = Tower()
    joint.linear("linear_1", frames, d, bias=bias)
    joint.linear("linear_2", d, d, bias=bias)
    joint.norm("norm", width=d)
    return wrapped(c, model, ("model.audio_tower", moss_audio(audio)), ("model.multi_modal_projector", joint))


def git(c: Config) -> Model:
    """GIT: a BERT that reads causally, after the patches of its CLIP."""
    s = read_sizes(c, head_dim="ignore", activation="gelu")
    positions = c.size("max_position_embeddings", maximum=LIMITS["vocab_size"])
    dropout = c.number("hidden_dropout_prob", default=0.1, maximum=1)
    weights = c.number("attention_probs_dropout_prob", default=0.1, maximum=1)
    d = s.hidden_size
    names = AttentionNames(q="self.query", k="self.key", v="self.value", o="output.dense")

    def block(_: Any) -> Block:
        mixer = Attention(
            d, s.heads, s.heads, s.head_dim, bias=True, rotary=False, dropout=weights, names=names
        )
        mlp = MLP(
            d, s.intermediate_size, s.activation, bias=True, names=("intermediate.dense", "output.dense")
        )
        return PostNormBlock(
            mixer,
            mlp,
            post_1=Norm(d, LAYER_NORM),
            post_2=Norm(d, LAYER_NORM),
            dropout=dropout,
            names=("attention", ""),
            norm_names=("", "", "attention.output.LayerNorm", "output.LayerNorm"),
        )

    vision = tower_type(c.part("vision_config"), "git_vision_model")
    width = vision.size("hidden_size")
    joint = Tower()
    joint.linear("visual_projection.visual_projection.0", width, d)
    joint.norm("visual_projection.visual_projection.1", width=d)
    for i in range(c.size("num_image_with_embedding", default=0, minimum=0, maximum=10_000)):
        joint.weight(f"img_temporal_embedding.{i}", 1, 1, width)
    extras: tuple[tuple[str, Layer], ...] = (
        ("git.embeddings.position_embeddings", Embedding(positions, d)),
        ("git.embeddings.LayerNorm", Norm(d, LAYER_NORM)),
        ("git.image_encoder.vision_model", git_vision(vision)),
        ("git", joint),
    )
    return assemble(
        c,
        s,
        block,
        [FULL] * s.num_layers,
        norm=None,
        embedding_name="git.embeddings.word_embeddings",
        prefix="git.encoder.layer",
        head_name="output",
        head_bias=True,
        extras=extras,
    )
