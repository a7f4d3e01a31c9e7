"""A GPT on characters, trained the way small scripts of that kind are; the lines for the run are marked.

Batches at random offsets from the global generator, gradients accumulated over micro-batches, a learning
rate computed from the step, gradient clipping, dropout, evaluation now and then. Nothing was written with
interruptions in mind but what is marked with `+`, and one line was moved: a batch that is fetched at the
end of a step, for the next, is in no state, so it is fetched where it is used.
"""

import json
import math
import os
import sys
from contextlib import nullcontext

import torch
import torch.nn as nn
from torch.nn import functional as F

import loadsheet as ls  # + 1

out_dir, result = sys.argv[1], sys.argv[2]
batch_size, block_size, grad_accum = 8, 16, 2
n_layer, n_head, n_embd, dropout = 2, 2, 32, 0.1
learning_rate, min_lr, warmup_iters, max_iters = 1e-2, 1e-3, 5, 80
weight_decay, beta1, beta2, grad_clip = 0.1, 0.9, 0.95, 1.0
eval_interval, eval_iters, seed = 20, 3, 1337
dtype = "bfloat16" if os.environ.get("AMP") else "float32"
config = {k: v for k, v in globals().items() if isinstance(v, int | float | str) and k not in ("out_dir", "result")}
config = {k: v for k, v in config.items() if not k.startswith("_")}

torch.manual_seed(seed)
torch.set_num_threads(1)
ctx = torch.autocast("cpu", torch.bfloat16) if dtype == "bfloat16" else nullcontext()

text = "a rented machine may be taken away at any time, and what was not written down is gone. " * 40
chars = sorted(set(text))
data = torch.tensor([chars.index(c) for c in text])
splits = {"train": data[: int(0.9 * len(data))], "val": data[int(0.9 * len(data)) :]}


def get_batch(split):
    """A batch of random stretches."""
    part = splits[split]
    at = torch.randint(len(part) - block_size, (batch_size,))
    x = torch.stack([part[i : i + block_size] for i in at])
    y = torch.stack([part[i + 1 : i + 1 + block_size] for i in at])
    return x, y


class Block(nn.Module):
    """Attention and an MLP, each behind a norm."""

    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.qkv, self.proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln_1(x)).view(b, t, 3, n_head, d // n_head).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout if self.training else 0.0, is_causal=True)
        x = x + self.drop(self.proj(y.transpose(1, 2).reshape(b, t, d)))
        return x + self.drop(self.mlp(self.ln_2(x)))


class GPT(nn.Module):
    """The model, its head tied to its embedding."""

    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(len(chars), n_embd), nn.Embedding(block_size, n_embd)
        self.blocks = nn.ModuleList(Block() for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd)
        self.head = nn.Linear(n_embd, len(chars), bias=False)
        self.head.weight = self.wte.weight

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln_f(x))
        return logits, F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


@torch.no_grad()
def estimate_loss():
    """Mean loss on both parts."""
    model.eval()
    out = {s: sum(model(*get_batch(s))[1].item() for _ in range(eval_iters)) / eval_iters for s in splits}
    model.train()
    return out


def get_lr(it):
    """Warm-up, then a cosine."""
    if it < warmup_iters:
        return learning_rate * (it + 1) / warmup_iters
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


model = GPT()
decay = [p for p in model.parameters() if p.dim() >= 2]
rest = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decay, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(beta1, beta2))
scaler = torch.amp.GradScaler("cpu", enabled=dtype == "float16")
run = ls.Run.open(out_dir, config)  # + 2
run.keep(model=model, optimizer=optimizer, scaler=scaler)  # + 3

for iter_num in run.steps(max_iters, checkpoint_every=2):  # + 4, instead of `while True`
    lr = get_lr(iter_num)
    for group in optimizer.param_groups:
        group["lr"] = lr
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
    for _micro_step in range(grad_accum):
        X, Y = get_batch("train")  # moved here from the end of the loop
        with ctx:
            _, loss = model(X, Y)
            loss = loss / grad_accum
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    run.log(loss=loss.item() * grad_accum, lr=lr)  # + 5

with open(result, "w") as file:
    json.dump({"weights": [p.detach().flatten().tolist() for p in model.parameters()], **estimate_loss()}, file)
