"""A block as Llama has it, and torch's plan that splits it over heads, columns and the sequence."""

import torch
from torch import nn
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
)


class Block(nn.Module):
    """Two norms around an attention and a gated MLP, as in a Llama block; attention by whole
    heads."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.ffn_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = nn.ModuleDict(
            {name: nn.Linear(width, width, bias=False) for name in ("wq", "wk", "wv", "wo")}
        )
        self.w1, self.w3 = (
            nn.Linear(width, 2 * width, bias=False),
            nn.Linear(width, 2 * width, bias=False),
        )
        self.w2 = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.attention_norm(x)
        q, k, v = (
            self.attention[name](h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for name in ("wq", "wk", "wv")
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention["wo"](mixed.transpose(1, 2).flatten(-2))
        h = self.ffn_norm(x)
        return x + self.w2(nn.functional.silu(self.w1(h)) * self.w3(h))


SEQUENCE_PARALLEL: dict[str, ParallelStyle] = {
    "attention_norm": SequenceParallel(),
    "ffn_norm": SequenceParallel(),
    "attention.w[qkv]": ColwiseParallel(),
    "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
    "w[13]": ColwiseParallel(),
    "w2": RowwiseParallel(output_layouts=Shard(1)),
}
