"""What is asked of a model (`Work`) and how its layers are carried out (`Execution`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from loadsheet.units import largest, smallest

#: bytes of one element
DTYPE_BYTES = {
    "fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "uint8": 1, "bool": 1, "int64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Work:
    """`sequences` sequences, each with `new` tokens to compute after `past` tokens already cached.

    One notion for training (past = 0), prefill (past = 0 or a cached prefix) and decode (new = 1).
    Sizes may be numbers or arrays.
    """

    sequences: Any
    new: Any
    past: Any = 0
    causal: bool = True

    @property
    def tokens(self) -> Any:
        """Tokens computed: B·T."""
        return self.sequences * self.new

    @property
    def context(self) -> Any:
        """Tokens that one sequence holds afterwards."""
        return self.past + self.new

    def pairs(self, window: int | None = None, chunk: int | None = None) -> Any:
        """(query, key) pairs of one sequence that attention really needs.

        causal:  Σ_{i=1..new} (past + i)              = new·past + new·(new + 1)/2
        window w: each query sees at most w keys;  chunk c: a query sees its own chunk of c tokens only.

        >>> Work(1, 4).pairs(), Work(1, 4).pairs(window=2), Work(1, 4).pairs(chunk=2), Work(1, 1, 9).pairs()
        (10, 7, 6, 10)
        """
        if not self.causal:
            return self.pairs_full()
        if chunk is not None:
            return _chunk_pairs(self.context, chunk) - _chunk_pairs(self.past, chunk)
        if window is None:
            return self.new * self.past + self.new * (self.new + 1) // 2
        short = smallest(self.new, largest(window - self.past, 0))  # queries that see fewer than w keys
        return short * self.past + short * (short + 1) // 2 + (self.new - short) * window

    def pairs_full(self) -> Any:
        """Pairs of the full score matrix of one sequence, as FlopCounterMode and the eager path count."""
        return self.new * self.context


def _chunk_pairs(length: Any, chunk: int) -> Any:
    rest = length % chunk
    return (length // chunk) * (chunk * (chunk + 1) // 2) + rest * (rest + 1) // 2


@dataclass(frozen=True, slots=True)
class Execution:
    """How a model is carried out: data, not a family of switches in code.

    attention   eager writes the score matrix; sdpa and flash do not
    kernels     eager spells norms out in elementwise steps; fused takes each as one kernel
    loss        eager: logits, fp32 copy, log-softmax; chunked: the same by pieces; fused: never whole
    repeat_kv   keys and values are copied to every query head before attention
    masked      the attention kernel is given a mask (padding): a 16-bit T×T bias is kept in every layer
    recompute   none; selective (the attention core again in backward); full (each block again)
    fp8         linear layers of the blocks in fp8: an 8-bit copy of each input and two of each weight
    autocast    fp32 parameters whose 16-bit copies are made when used
    holds_logits  the program keeps the returned logits until the step ends (`out = model(...)`)
    chunked_head  a chunked loss makes the logits by chunks too; else they are whole and only the loss is not
    loss_chunk    tokens of each sequence in one chunk; 0: its length over `loss_chunks`
    wide_logits   the logits that a model returns are copied to fp32 (Lightning Fabric's half precision)
    fused_qkv     q, k and v come from one product and v stays a part of it (LitGPT)
    wide_norms    a written-out RMSNorm stays in fp32 up to its weight (LitGPT)
    written_softcap  scores that a tanh squeezes are written out, whatever `attention` says (LitGPT)
    quantised_head   weight-only quantisation packs the head as well (LitGPT)
    quantised_inputs_held  the inputs of packed products are held until the graph goes, which backward does
                  not do (bitsandbytes before 0.43.2 put them on the autograd context): of how many iterations
    unpacked_bytes  of each number of a packed matrix while it is used: 2, or 4 where it is unpacked to fp16
                  and copied to bf16 (Fabric; bitsandbytes before 0.43)
    compiled_loss  the chunks' cross-entropy is one compiled kernel each way: it keeps the 16-bit logits, and
                  nothing is ever in fp32 (torchtune under torch.compile)
    inputs_on_device  inputs of recomputed blocks that are on the GPU at once, the others being offloaded to
                  the host; 0: all
    device      on the CPU, dropout keeps its mask in the tensor's dtype and LayerNorm its statistics too
    """

    attention: Literal["eager", "sdpa", "flash"] = "flash"
    kernels: Literal["eager", "fused"] = "fused"
    loss: Literal["eager", "chunked", "fused"] = "eager"
    repeat_kv: bool = False
    masked: bool = False
    recompute: Literal["none", "selective", "full"] = "none"
    autocast: bool = False
    fp8: bool = False
    loss_chunks: int = 8
    upcast_logits: bool = True
    holds_logits: bool = True
    chunked_head: bool = True
    loss_chunk: int = 0
    wide_logits: bool = False
    fused_qkv: bool = False
    wide_norms: bool = False
    written_softcap: bool = False
    quantised_head: bool = False
    quantised_inputs_held: int = 0
    unpacked_bytes: int = 2
    compiled_loss: bool = False
    inputs_on_device: int = 0
    device: Literal["cuda", "cpu"] = "cuda"


#: the name by which a LoRA target means the head, whatever the checkpoint calls it
HEAD_TARGET = "lm_head"


@dataclass(frozen=True, slots=True)
class Adapter:
    """LoRA as PEFT builds it: y = W·x + (α/r)·B(A(dropout(x))), A: in → r, B: r → out (arXiv 2106.09685)."""

    rank: int
    targets: frozenset[str] | None = None  # module names; None: every linear layer but the head
    dropout: float = 0.0
    dtype: str = "fp32"  # of its weights, to which PEFT casts the input
    compute: str = "bf16"  # of its products (autocast)

    def applies(self, tag: str) -> bool:
        """Whether the linear layer of that module name gets an adapter."""
        return bool(tag) and (self.targets is None or tag in self.targets)

    @property
    def on_head(self) -> bool:
        """Whether the head gets one too: only if it is asked for by name."""
        return self.targets is not None and HEAD_TARGET in self.targets
