"""Sound encoders, by their weights: the conformers of Gemma 3n, Gemma 4 and Phi-4, and Whisper's encoder."""

from __future__ import annotations

from loadsheet.arch.layers.tower import Tower


class Gemma3nAudioLayer(Tower):
    """A conformer block (arXiv 2005.08100) of the Universal Speech Model (arXiv 2303.01037)."""

    def __init__(self, width: int, heads: int, kernel: int) -> None:
        super().__init__()
        inner = heads * (width // heads)
        for place in ("ffw_layer_start", "ffw_layer_end"):
            self.norm(f"{place}.pre_layer_norm", f"{place}.post_layer_norm", width=width, bias=False)
            self.linear(f"{place}.ffw_layer_1", width, 4 * width, bias=False)
            self.linear(f"{place}.ffw_layer_2", 4 * width, width, bias=False)
        self.norm("attention.pre_attn_norm", "attention.post_norm", "norm", width=width, bias=False)
        for name in ("q_proj", "k_proj", "v_proj", "relative_position_embedding.pos_proj"):
            self.linear(f"attention.attn.{name}", width, inner, bias=False)
        self.weight("attention.attn.per_dim_scale", width // heads)
        self.linear("attention.post", width, width, bias=False)
        self.norm("lconv1d.pre_layer_norm", "lconv1d.conv_norm", width=width, bias=False)
        self.linear("lconv1d.linear_start", width, 2 * width, bias=False)
        self.conv("lconv1d.depthwise_conv1d", 1, width, kernel, bias=False)
        self.linear("lconv1d.linear_end", width, width, bias=False)


class Gemma3nAudio(Tower):
    """Two strided convolutions over the spectrogram, then conformer blocks.

    `frequencies` are the rows of the spectrogram; each convolution pads one on both sides.
    """

    def __init__(
        self,
        layer: Gemma3nAudioLayer,
        layers: int,
        *,
        width: int,
        frequencies: int,
        channels: list[int],
        kernels: list[list[int]],
        strides: list[list[int]],
    ) -> None:
        super().__init__()
        n_in = 1
        for i, (n_out, kernel, stride) in enumerate(zip(channels, kernels, strides, strict=True)):
            place = f"subsample_conv_projection.conv_{i}"
            self.conv(f"{place}.conv", n_in, n_out, *kernel, bias=False)
            self.norm(f"{place}.norm", width=n_out, bias=False)
            frequencies = (frequencies + 2 - kernel[1]) // stride[1] + 1
            n_in = n_out
        self.linear("subsample_conv_projection.input_proj_linear", n_in * frequencies, width, bias=False)
        self.stack("conformer", layer, layers)


class Gemma4AudioLayer(Tower):
    """Gemma 4's conformer block, its matrices kept one module deeper."""

    def __init__(self, width: int, heads: int, kernel: int) -> None:
        super().__init__()
        inner = heads * (width // heads)
        for place in ("feed_forward1", "feed_forward2"):
            self.norm(f"{place}.pre_layer_norm", f"{place}.post_layer_norm", width=width, bias=False)
            self.linear(f"{place}.ffw_layer_1.linear", width, 4 * width, bias=False)
            self.linear(f"{place}.ffw_layer_2.linear", 4 * width, width, bias=False)
        for name in ("q_proj.linear", "k_proj.linear", "v_proj.linear", "relative_k_proj"):
            self.linear(f"self_attn.{name}", width, inner, bias=False)
        self.linear("self_attn.post.linear", width, width, bias=False)
        self.weight("self_attn.per_dim_scale", width // heads)
        self.norm("lconv1d.pre_layer_norm", "lconv1d.conv_norm", width=width, bias=False)
        self.linear("lconv1d.linear_start.linear", width, 2 * width, bias=False)
        self.conv("lconv1d.depthwise_conv1d", 1, width, kernel, bias=False)
        self.linear("lconv1d.linear_end.linear", width, width, bias=False)
        self.norm("norm_pre_attn", "norm_post_attn", "norm_out", width=width, bias=False)


class Gemma4Audio(Tower):
    """Two strided 3x3 convolutions over the spectrogram, conformer blocks, a projection."""

    def __init__(
        self, layer: Gemma4AudioLayer, layers: int, *, width: int, channels: list[int], output: int
    ) -> None:
        super().__init__()
        first, second = channels
        for i, (n_in, n_out) in enumerate(((1, first), (first, second))):
            self.conv(f"subsample_conv_projection.layer{i}.conv", n_in, n_out, 3, 3, bias=False)
            self.norm(f"subsample_conv_projection.layer{i}.norm", width=n_out, bias=False)
        self.linear("subsample_conv_projection.input_proj_linear", first // 4 * second, width, bias=False)
        self.stack("layers", layer, layers)
        self.linear("output_proj", width, output)


class Phi4AudioLayer(Tower):
    """Phi-4-multimodal's conformer block."""

    def __init__(
        self,
        width: int,
        mlp_width: int,
        *,
        inner: int,
        kernel: int,
        point_channels: int,
        depth_channels: int,
        multiplier: int,
    ) -> None:
        super().__init__()
        for place in ("feed_forward_in", "feed_forward_out"):
            self.norm(f"{place}.layer_norm", width=width)
            self.linear(f"{place}.gate_up_proj", width, 2 * mlp_width)
            self.linear(f"{place}.down_proj", mlp_width, width)
        for name in ("q_proj", "k_proj", "v_proj"):
            self.linear(f"self_attn.{name}", width, inner)
        self.linear("self_attn.o_proj", inner, width)
        self.norm("conv.layer_norm", "layer_norm_att", "layer_norm", width=width)
        self.conv("conv.glu.ext_pw_conv_1d", width, 2 * point_channels, 1)
        self.weight("conv.glu.b1", 1, point_channels, 1)
        self.weight("conv.glu.b2", 1, point_channels, 1)
        self.conv("conv.dw_sep_conv_1d.dw_conv", 1, width * multiplier, kernel)
        self.conv("conv.dw_sep_conv_1d.pw_conv", width * multiplier, depth_channels, 1)
        self.conv("conv.ext_pw_conv_1d", width, point_channels, 1)


class Phi4Audio(Tower):
    """Phi-4-multimodal's sound side: strided convolutions, conformer blocks, two projections.

    `buckets`: relative distances that attention tells apart; `rate`: frames joined before a projection.
    """

    def __init__(
        self,
        layer: Phi4AudioLayer,
        layers: int,
        *,
        width: int,
        heads: int,
        hidden_size: int,
        channels: int,
        halvings: int,
        frequencies: int,
        buckets: int,
        rate: int,
    ) -> None:
        super().__init__()
        self.conv("encoder.embed.conv.0", 1, channels, 3, 3)
        for i in range(halvings - 1):  # each step is followed by an activation, which takes a number too
            self.conv(f"encoder.embed.conv.{2 + 3 * i}", 1, channels, 3, 3)
            self.conv(f"encoder.embed.conv.{3 + 3 * i}", channels, channels, 1, 1)
        self.linear("encoder.embed.out", channels * frequencies, width)
        self.weight("encoder.relative_attention_bias_layer.bias_values.weight", buckets, heads)
        self.stack("encoder.encoders", layer, layers)
        for kind in ("speech", "vision_speech"):
            self.linear(f"up_proj_for_{kind}", width * rate, hidden_size)
            self.linear(f"down_proj_for_{kind}", hidden_size, hidden_size)


class WhisperLayer(Tower):
    """A block of Whisper's encoder (arXiv 2212.04356): no bias on the keys."""

    def __init__(self, width: int, mlp_width: int) -> None:
        super().__init__()
        for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
            self.linear(f"self_attn.{name}", width, width, bias=name != "k_proj")
        self.norm("self_attn_layer_norm", "final_layer_norm", width=width)
        self.linear("fc1", width, mlp_width)
        self.linear("fc2", mlp_width, width)


class WhisperEncoder(Tower):
    """Two convolutions over mel bins, fixed positions (stored all the same), blocks."""

    def __init__(self, width: int, mlp_width: int, layers: int, *, mel_bins: int, positions: int) -> None:
        super().__init__()
        self.conv("conv1", mel_bins, width, 3)
        self.conv("conv2", width, width, 3)
        self.weight("embed_positions.weight", positions, width)
        self.stack("layers", WhisperLayer(width, mlp_width), layers)
        self.norm("layer_norm", width=width)
