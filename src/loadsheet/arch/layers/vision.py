"""Image encoders, by their weights: SigLIP and its kin, GIT's CLIP, GOT's SAM, Gemma 4's."""

from __future__ import annotations

from loadsheet.arch.layers.tower import Tower


class ViTLayer(Tower):
    """A block of a vision transformer: attention and a plain MLP, each after a LayerNorm."""

    def __init__(self, width: int, mlp_width: int) -> None:
        super().__init__()
        for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
            self.linear(f"self_attn.{name}", width, width)
        self.norm("layer_norm1", "layer_norm2", width=width)
        self.linear("mlp.fc1", width, mlp_width)
        self.linear("mlp.fc2", mlp_width, width)


class PoolingHead(Tower):
    """One learned query that attends to all patches."""

    def __init__(self, width: int, mlp_width: int) -> None:
        super().__init__()
        self.weight("probe", 1, 1, width)
        self.weight("attention.in_proj_weight", 3 * width, width)
        self.weight("attention.in_proj_bias", 3 * width)
        self.linear("attention.out_proj", width, width)
        self.norm("layernorm", width=width)
        self.linear("mlp.fc1", width, mlp_width)
        self.linear("mlp.fc2", mlp_width, width)


class Siglip(Tower):
    """SigLIP (arXiv 2303.15343): patches, learned positions, blocks, perhaps a pooling head."""

    def __init__(
        self, width: int, mlp_width: int, layers: int, *, channels: int, patch: int, patches: int, head: bool
    ) -> None:
        super().__init__()
        self.conv("embeddings.patch_embedding", channels, width, patch, patch)
        self.weight("embeddings.position_embedding.weight", patches, width)
        self.stack("encoder.layers", ViTLayer(width, mlp_width), layers)
        self.norm("post_layernorm", width=width)
        if head:
            self.part("head", PoolingHead(width, mlp_width))


class ClipVision(Tower):
    """CLIP's image encoder (arXiv 2103.00020): a class token, patches without bias, a norm before the blocks."""

    def __init__(
        self, width: int, mlp_width: int, layers: int, *, channels: int, patch: int, patches: int
    ) -> None:
        super().__init__()
        self.weight("embeddings.class_embedding", width)
        self.conv("embeddings.patch_embedding", channels, width, patch, patch, bias=False)
        self.weight("embeddings.position_embedding.weight", patches + 1, width)
        self.norm("pre_layrnorm", "post_layernorm", width=width)
        self.stack("encoder.layers", ViTLayer(width, mlp_width), layers)


class SamLayer(Tower):
    """A block of SAM's encoder (arXiv 2304.02643) with relative positions along both sides of its window."""

    def __init__(self, width: int, mlp_width: int, *, bias: bool, side: int, head_dim: int) -> None:
        super().__init__()
        self.norm("layer_norm1", "layer_norm2", width=width)
        self.linear("attn.qkv", width, 3 * width, bias=bias)
        self.linear("attn.proj", width, width)
        if side:
            self.weight("attn.rel_pos_h", 2 * side - 1, head_dim)
            self.weight("attn.rel_pos_w", 2 * side - 1, head_dim)
        self.linear("mlp.lin1", width, mlp_width)
        self.linear("mlp.lin2", mlp_width, width)


class SamVision(Tower):
    """SAM's encoder: `sides` gives the side of each layer's window in patches, 0 without relative positions."""

    def __init__(
        self,
        width: int,
        mlp_width: int,
        sides: list[int],
        *,
        channels: int,
        patch: int,
        grid: int,
        head_dim: int,
        bias: bool,
        positions: bool,
        out_channels: int,
    ) -> None:
        super().__init__()
        self.conv("patch_embed.projection", channels, width, patch, patch)
        if positions:
            self.weight("pos_embed", 1, grid, grid, width)
        for side in sorted(set(sides)):
            layer = SamLayer(width, mlp_width, bias=bias, side=side, head_dim=head_dim)
            self.some("layers", layer, [i for i, found in enumerate(sides) if found == side])
        self.conv("neck.conv1", width, out_channels, 1, 1, bias=False)
        self.conv("neck.conv2", out_channels, out_channels, 3, 3, bias=False)
        self.norm("neck.layer_norm1", "neck.layer_norm2", width=out_channels)


class Gemma4VisionLayer(Tower):
    """Gemma's block with norms around both parts, its matrices kept one module deeper."""

    def __init__(self, width: int, mlp_width: int, q_width: int, kv_width: int, head_dim: int) -> None:
        super().__init__()
        shapes = {"q_proj": (width, q_width), "k_proj": (width, kv_width), "v_proj": (width, kv_width),
                  "o_proj": (q_width, width)}  # fmt: skip
        for name, (n_in, n_out) in shapes.items():
            self.linear(f"self_attn.{name}.linear", n_in, n_out, bias=False)
        self.norm("self_attn.q_norm", "self_attn.k_norm", width=head_dim, bias=False)
        self.linear("mlp.gate_proj.linear", width, mlp_width, bias=False)
        self.linear("mlp.up_proj.linear", width, mlp_width, bias=False)
        self.linear("mlp.down_proj.linear", mlp_width, width, bias=False)
        names = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        self.norm(*(f"{name}_layernorm" for name in names), width=width, bias=False)


class Gemma4Vision(Tower):
    """Gemma 4's encoder: patches by a matrix, positions along both sides from one table."""

    def __init__(
        self, layer: Gemma4VisionLayer, layers: int, *, width: int, patch: int, positions: int
    ) -> None:
        super().__init__()
        self.linear("patch_embedder.input_proj", 3 * patch * patch, width, bias=False)
        self.weight("patch_embedder.position_embedding_table", 2, positions, width)
        self.stack("encoder.layers", layer, layers)


class UnifiedPatches(Tower):
    """Gemma 4 without an encoder: patches go through one matrix straight into the language model."""

    def __init__(self, patch_width: int, width: int, positions: int) -> None:
        super().__init__()
        self.norm("patch_ln1", width=patch_width)
        self.linear("patch_dense", patch_width, width)
        self.norm("patch_ln2", "pos_norm", width=width)
        self.weight("pos_embedding", positions, 2, width)


class Phi4Image(Tower):
    """Phi-4-multimodal's image side: its SigLIP, a projection, and two learned separators."""

    def __init__(self, siglip: Siglip, width: int, hidden_size: int) -> None:
        super().__init__()
        self.part("img_processor", siglip)
        self.linear("img_projection_up", width, hidden_size)
        self.linear("img_projection_down", hidden_size, hidden_size)
        self.weight("global_img_feature_extensor", 1, 1, width)
        self.weight("sub_img_feature_extensor", 1, 1, 1, width)
