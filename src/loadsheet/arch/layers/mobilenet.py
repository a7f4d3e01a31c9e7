"""MobileNet V5 300M, the image encoder of Gemma 3n, by its weights.

Shapes as timm 1.0.31 builds `mobilenetv5_300m_enc`; its parts are those of MobileNet V4 (arXiv 2404.10518).
"""

from __future__ import annotations

from loadsheet.arch.layers.tower import Tower


class EdgeResidual(Tower):
    """A full 3x3 convolution to 4 times the channels of its input, then a 1x1 convolution."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.conv("conv_exp", n_in, 4 * n_in, 3, 3, bias=False)
        self.norm("bn1", width=4 * n_in, bias=False)
        self.conv("conv_pwl", 4 * n_in, n_out, 1, 1, bias=False)
        self.norm("bn2", width=n_out, bias=False)


class InvertedResidual(Tower):
    """1x1 up, 1x1 down, with depthwise convolutions before and between if their side is not 0."""

    def __init__(self, n_in: int, n_out: int, expansion: int, *, start: int = 0, mid: int = 0) -> None:
        super().__init__()
        wide = n_in * expansion

        def step(name: str, a: int, b: int, side: int) -> None:
            self.conv(f"{name}.conv", a, b, side, side, bias=False)
            self.norm(f"{name}.bn", width=b, bias=False)

        if start:
            step("dw_start", 1, n_in, start)
        step("pw_exp", n_in, wide, 1)
        if mid:
            step("dw_mid", 1, wide, mid)
        step("pw_proj", wide, n_out, 1)
        self.weight("layer_scale.gamma", n_out)


class MobileAttention(Tower):
    """Attention with one key and value head; these may come from a map of half the side."""

    def __init__(self, width: int, heads: int, head_dim: int, *, halved: bool) -> None:
        super().__init__()
        self.norm("norm", width=width, bias=False)
        self.conv("attn.query.proj", width, heads * head_dim, 1, 1, bias=False)
        for name in ("key", "value"):
            if halved:
                self.conv(f"attn.{name}.down_conv", 1, width, 3, 3, bias=False)
                self.norm(f"attn.{name}.norm", width=width, bias=False)
            self.conv(f"attn.{name}.proj", width, head_dim, 1, 1, bias=False)
        self.conv("attn.output.proj", heads * head_dim, width, 1, 1, bias=False)
        self.weight("layer_scale.gamma", width)


class MobileNetV5(Tower):
    """Four stages of 128, 256, 640 and 1280 channels and the adapter that joins the last two."""

    def __init__(self) -> None:
        super().__init__()
        self.conv("conv_stem.conv", 3, 64, 3, 3)
        self.norm("conv_stem.bn", width=64, bias=False)
        fused = (MobileAttention(640, 12, 64, halved=True), InvertedResidual(640, 640, 2))
        last = (MobileAttention(1280, 16, 96, halved=False), InvertedResidual(1280, 1280, 2))
        stages: tuple[tuple[Tower, ...], ...] = (
            tuple(EdgeResidual(n_in, 128) for n_in in (64, 128, 128)),
            (
                InvertedResidual(128, 256, 6, start=3, mid=5),
                *(InvertedResidual(256, 256, 4, start=side) for side in (5, 3, 5, 3)),
            ),
            (
                InvertedResidual(256, 640, 6, start=5, mid=5),
                *((InvertedResidual(640, 640, 4, start=5),) * 7),
                InvertedResidual(640, 640, 1),
                *(fused * 14),
            ),
            (InvertedResidual(640, 1280, 6, start=5, mid=5), *(last * 19)),
        )
        for i, stage in enumerate(stages):
            for j, block in enumerate(stage):
                self.part(f"blocks.{i}.{j}", block)
        self.conv("msfa.ffn.pw_exp.conv", 640 + 1280, 3840, 1, 1, bias=False)
        self.norm("msfa.ffn.pw_exp.bn", width=3840, bias=False)
        self.conv("msfa.ffn.pw_proj.conv", 3840, 2048, 1, 1, bias=False)
        self.norm("msfa.ffn.pw_proj.bn", "msfa.norm", width=2048, bias=False)
