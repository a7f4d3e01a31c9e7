"""`vision_config` and `audio_config` → the weights of an encoder.

Widths and depths must be there; channels, kernels and switches take the class's default, as published
files leave them out.
"""

from __future__ import annotations

from typing import Any

from loadsheet.arch.config import LIMITS, Config
from loadsheet.arch.layers.audio import (
    Gemma3nAudio,
    Gemma3nAudioLayer,
    Gemma4Audio,
    Gemma4AudioLayer,
    Phi4Audio,
    Phi4AudioLayer,
    WhisperEncoder,
)
from loadsheet.arch.layers.mobilenet import MobileNetV5
from loadsheet.arch.layers.tower import Tower
from loadsheet.arch.layers.vision import (
    ClipVision,
    Gemma4Vision,
    Gemma4VisionLayer,
    Phi4Image,
    SamVision,
    Siglip,
    UnifiedPatches,
)
from loadsheet.errors import UnsupportedArchitecture, shorten


def tower_type(c: Config, known: str) -> Config:
    """The config itself, if it names no other type of encoder than `known` (older files name it "")."""
    if c.data.get("model_type") not in (None, "", known):
        raise UnsupportedArchitecture(
            f"{c.where}.model_type: got {shorten(c.data['model_type'])}, expected `{known}`"
        )
    return c


def _layers(c: Config, *names: str) -> int:
    """How many blocks; a tower may have none."""
    layers: int = c.size(*(names or ("num_hidden_layers",)), minimum=0, maximum=LIMITS["num_hidden_layers"])
    return layers


def _sides(c: Config) -> tuple[int, int]:
    """(patches along one side of the image, pixels along one side of a patch)."""
    patch = c.size("patch_size")
    return c.size("image_size", minimum=patch) // patch, patch


def _widths(c: Config) -> tuple[int, int]:
    """(width, width of the MLP), heads checked against the first."""
    width = c.size("hidden_size")
    c.divides("num_attention_heads", c.size("num_attention_heads"), "hidden_size", width)
    return width, c.size("intermediate_size")


def siglip(c: Config, *, head: bool | None = None) -> Siglip:
    """SigLIP; `head`: whether it has its pooling head, if the config does not say."""
    grid, patch = _sides(c)
    return Siglip(
        *_widths(c),
        _layers(c),
        channels=c.size("num_channels", default=3),
        patch=patch,
        patches=grid * grid,
        head=c.flag("vision_use_head", default=True) if head is None else head,
    )


def git_vision(c: Config) -> ClipVision:
    """GIT's CLIP."""
    grid, patch = _sides(c)
    channels = c.size("num_channels", default=3)
    return ClipVision(*_widths(c), _layers(c), channels=channels, patch=patch, patches=grid * grid)


#: transformers 4.49, which published GOT, left out of nested configs what is the class's default: all of this
GOT_VISION = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "image_size": 1024, "patch_size": 16,
    "output_channels": 256, "mlp_dim": 3072, "window_size": 14,
}  # fmt: skip


def got_vision(c: Config) -> SamVision:
    """GOT-OCR 2's SAM: windows in all layers but the listed ones."""
    grid, patch = _sides(c)
    width, heads, layers = c.size("hidden_size"), c.size("num_attention_heads"), _layers(c)
    c.divides("num_attention_heads", heads, "hidden_size", width)
    everywhere = c.ints("global_attn_indexes") if "global_attn_indexes" in c.data else [2, 5, 8, 11]
    relative = c.flag("use_rel_pos", default=True)
    window = (c.size("window_size", minimum=0) or grid) if relative else 0
    sides = [(grid if i in everywhere else window) if relative else 0 for i in range(layers)]
    return SamVision(
        width,
        c.size("mlp_dim"),
        sides,
        channels=c.size("num_channels", default=3),
        patch=patch,
        grid=grid,
        head_dim=width // heads,
        bias=c.flag("qkv_bias", default=True),
        positions=c.flag("use_abs_pos", default=True),
        out_channels=c.size("output_channels"),
    )


def gemma4_vision(c: Config) -> Gemma4Vision:
    """Gemma 4's image encoder."""
    width, head_dim = c.size("hidden_size"), c.size("head_dim")
    q, kv = c.size("num_attention_heads") * head_dim, c.size("num_key_value_heads") * head_dim
    layer = Gemma4VisionLayer(width, c.size("intermediate_size"), q, kv, head_dim)
    return Gemma4Vision(
        layer,
        _layers(c),
        width=width,
        patch=c.size("patch_size"),
        positions=c.size("position_embedding_size"),
    )


def unified_patches(c: Config) -> UnifiedPatches:
    """The image side of Gemma 4 without an encoder."""
    side = c.size("patch_size") * c.size("pooling_kernel_size")
    return UnifiedPatches(3 * side * side, c.size("mm_embed_dim"), c.size("mm_posemb_size"))


def gemma3n_vision(c: Config) -> MobileNetV5:
    """Gemma 3n's image encoder; its config only names it."""
    if c.data.get("architecture", "mobilenetv5_300m_enc") != "mobilenetv5_300m_enc" or c.data.get(
        "model_args"
    ):
        raise UnsupportedArchitecture(
            f"{c.where}.architecture: got {shorten(c.data.get('architecture'))}, expected "
            "`mobilenetv5_300m_enc` without `model_args`"
        )
    return MobileNetV5()


def _pairs(c: Config, key: str) -> list[list[int]]:
    """Two pairs of whole numbers, by default of Gemma 3n's convolutions."""
    value = c.data.get(key)
    if value is None:
        return [[3, 3], [3, 3]] if "kernel" in key else [[2, 2], [2, 2]]
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise c.error(key, "two pairs of whole numbers")
    return [_numbers(Config({key: pair}, c.where), key) for pair in value]


def _numbers(c: Config, key: str) -> list[int]:
    """A pair of whole numbers from 1 on."""
    value = c.ints(key)
    if len(value) != 2 or not all(1 <= v <= LIMITS["hidden_size"] for v in value):
        raise c.error(key, "two whole numbers, each at least 1")
    return value


def gemma3n_audio(c: Config) -> Gemma3nAudio:
    """Gemma 3n's sound encoder."""
    width, heads = c.size("hidden_size"), c.size("conf_num_attention_heads")
    layer = Gemma3nAudioLayer(width, heads, c.size("conf_conv_kernel_size", default=5))
    return Gemma3nAudio(
        layer,
        _layers(c, "conf_num_hidden_layers"),
        width=width,
        frequencies=c.size("input_feat_size", minimum=4),
        channels=_numbers(c, "sscp_conv_channel_size"),
        kernels=_pairs(c, "sscp_conv_kernel_size"),
        strides=_pairs(c, "sscp_conv_stride_size"),
    )


def gemma4_audio(c: Config) -> Gemma4Audio:
    """Gemma 4's sound encoder."""
    width = c.size("hidden_size")
    layer = Gemma4AudioLayer(width, c.size("num_attention_heads"), c.size("conv_kernel_size", default=5))
    channels = _numbers(c, "subsampling_conv_channels")
    return Gemma4Audio(layer, _layers(c), width=width, channels=channels, output=c.size("output_proj_dims"))


def phi4_image(c: Config, hidden_size: int) -> Phi4Image:
    """Phi-4-multimodal's image side: a SigLIP that always has its head."""
    return Phi4Image(siglip(c, head=True), c.size("hidden_size"), hidden_size)


def phi4_audio(c: Config, hidden_size: int) -> Phi4Audio:
    """Phi-4-multimodal's sound side."""
    width, heads = c.size("hidden_size"), c.size("num_attention_heads")
    reduction = c.size("time_reduction", default=8, minimum=2, maximum=1024)
    if reduction % 2:
        raise c.error("time_reduction", "an even number")
    halvings, frequencies = reduction.bit_length() - 1, c.size("input_size", default=80)
    for _ in range(halvings):
        frequencies = (frequencies + 1) // 2
    distances = c.size("bias_max_distance", default=1000)
    layer = Phi4AudioLayer(
        width,
        c.size("intermediate_size"),
        inner=heads * c.size("head_dim", default=width // heads),
        kernel=c.size("kernel_size", default=3),
        point_channels=c.size("ext_pw_out_channel"),
        depth_channels=c.size("depthwise_separable_out_channel"),
        multiplier=c.size("depthwise_multiplier", default=1),
    )
    return Phi4Audio(
        layer,
        _layers(c, "num_blocks"),
        width=width,
        heads=heads,
        hidden_size=hidden_size,
        channels=c.size("nemo_conv_channels"),
        halvings=halvings,
        frequencies=c.size("nemo_final_size", default=frequencies),
        buckets=distances * (1 if c.flag("bias_symmetric", default=False) else 2),
        rate=c.size("downsample_rate", default=1),
    )


def moss_audio(c: Config) -> WhisperEncoder:
    """The Whisper encoder of MOSS; older files use Whisper's names."""
    width = c.size("hidden_size", "d_model")
    heads = c.size("num_attention_heads", "encoder_attention_heads")
    c.divides("num_attention_heads", heads, "hidden_size", width)
    return WhisperEncoder(
        width,
        c.size("intermediate_size", "encoder_ffn_dim"),
        _layers(c, "num_hidden_layers", "encoder_layers"),
        mel_bins=c.size("num_mel_bins"),
        positions=c.size("max_source_positions"),
    )


def bridge(**weights: tuple[Any, ...]) -> Tower:
    """What joins an encoder to the language model: name -> shape; `__` stands for a dot."""
    tower = Tower()
    for name, shape in weights.items():
        tower.weight(name.replace("__", "."), *shape)
    return tower
