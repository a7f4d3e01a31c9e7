"""The lab's small models in PyTorch, written so that every kept tensor can be seen.

Parameters are named as in the checkpoints of GPT-2 and Llama. Attention is written out: two matrix
products with a softmax between them, so that FlopCounterMode sees both and autograd keeps the scores.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from loadsheet.lab.described import GPTSizes, LlamaSizes


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q·kᵀ/√d_h, no query sees later keys)·v; all of shape (B, h, T, d_h)."""
    length, head_dim = q.shape[-2:]
    scores = q @ k.transpose(-2, -1) / math.sqrt(head_dim)  # (B, h, T, T)
    later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(later, -math.inf).softmax(dim=-1) @ v


class GPTAttention(nn.Module):
    """Multi-head attention with q, k and v from one matrix."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, d) → (B, T, d)."""
        batch, length, width = x.shape
        packed = self.c_attn(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = packed.permute(2, 0, 3, 1, 4)  # (B, h, T, d_h) each
        mixed = attend(q, k, v).transpose(1, 2).reshape(batch, length, width)
        return self.c_proj(mixed)


class GPTMLP(nn.Module):
    """down(gelu(up(x))), four times the width, the exact GELU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, d) → (B, T, d)."""
        return self.c_proj(F.gelu(self.c_fc(x)))


class GPTBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = GPTAttention(width, heads)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = GPTMLP(width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, d) → (B, T, d)."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """GPT-2's architecture without dropout: learned positions, norms before, one more at the end.

    `checkpointing`: each block keeps its input only and runs again in backward; `early_stop` lets that
    second run end once the last tensor that backward needs is there.
    """

    def __init__(self, sizes: GPTSizes, *, checkpointing: bool = False, early_stop: bool = True) -> None:
        super().__init__()
        self.checkpointing, self.early_stop = checkpointing, early_stop
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(sizes.vocab, sizes.width),
                "wpe": nn.Embedding(sizes.positions, sizes.width),
                "h": nn.ModuleList(GPTBlock(sizes.width, sizes.heads) for _ in range(sizes.layers)),
                "ln_f": nn.LayerNorm(sizes.width),
            }
        )
        self.lm_head = nn.Linear(sizes.width, sizes.vocab, bias=False)
        if sizes.tied:
            self.lm_head.weight = self.transformer["wte"].weight

    def forward(self, ids: Tensor) -> Tensor:
        """(B, T) → (B, T, V)."""
        parts = self.transformer
        x = parts["wte"](ids) + parts["wpe"](torch.arange(ids.shape[1], device=ids.device))
        for block in parts["h"]:
            if self.checkpointing:
                with set_checkpoint_early_stop(self.early_stop):
                    x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.lm_head(parts["ln_f"](x))


def gpt2_small() -> GPTSizes:
    """GPT-2 small: 124,439,808 parameters (Radford et al. 2019; config.json of openai-community/gpt2)."""
    return GPTSizes(width=768, heads=12, layers=12, vocab=50257, positions=1024, tied=True)


class RMSNorm(nn.Module):
    """x / rms(x) ⊙ w (arXiv 1910.07467)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Same shape."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def rotate(x: Tensor) -> Tensor:
    """Rotary positions (arXiv 2104.09864): the two halves of a head are turned by angles that grow with t."""
    length, head_dim = x.shape[-2:]
    powers = torch.arange(0, head_dim, 2, device=x.device) / head_dim
    angles = torch.outer(torch.arange(length, device=x.device), 10_000.0**-powers)  # (T, d_h/2)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


class LlamaAttention(nn.Module):
    """Grouped-query attention (arXiv 2305.13245): each key-value head serves heads/kv_heads query heads."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, d) → (B, T, d)."""
        batch, length, width = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        group = self.heads // self.kv_heads
        k, v = rotate(k).repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        mixed = attend(rotate(q), k, v).transpose(1, 2).reshape(batch, length, width)
        return self.o_proj(mixed)


class LlamaMLP(nn.Module):
    """down(silu(gate(x)) ⊙ up(x)) (arXiv 2002.05202)."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, d) → (B, T, d)."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, sizes: LlamaSizes) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(sizes.width, sizes.heads, sizes.kv_heads)
        self.mlp = LlamaMLP(sizes.width, sizes.inner)
        self.input_layernorm = RMSNorm(sizes.width)
        self.post_attention_layernorm = RMSNorm(sizes.width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, d) → (B, T, d)."""
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Llama's architecture (arXiv 2302.13971; grouped-query attention from Llama 2 70B on)."""

    def __init__(self, sizes: LlamaSizes) -> None:
        super().__init__()
        self.model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(sizes.vocab, sizes.width),
                "layers": nn.ModuleList(LlamaBlock(sizes) for _ in range(sizes.layers)),
                "norm": RMSNorm(sizes.width),
            }
        )
        self.lm_head = nn.Linear(sizes.width, sizes.vocab, bias=False)
        if sizes.tied:
            self.lm_head.weight = self.model["embed_tokens"].weight

    def forward(self, ids: Tensor) -> Tensor:
        """(B, T) → (B, T, V)."""
        x = self.model["embed_tokens"](ids)
        for block in self.model["layers"]:
            x = block(x)
        return self.lm_head(self.model["norm"](x))


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    """Cross-entropy with one tensor as input and as target: what is learnt is no matter here."""
    logits = model(ids)
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), ids.view(-1))
