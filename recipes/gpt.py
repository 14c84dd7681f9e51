"""A GPT-2 over bytes in plain PyTorch: nothing here knows of devices, meshes or shardings.

Lives here: the model and its configuration. Not here: data (`text.py`), training (`train_gpt.py`).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of a GPT; `width` must be divisible by `heads`."""

    layers: int = 4
    width: int = 256
    heads: int = 8
    sequence: int = 128
    vocabulary: int = 256
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(
                f"GPTConfig: width {self.width} is not divisible by heads {self.heads}; choose a "
                "multiple of heads"
            )


class Attention(nn.Module):
    """Causal self-attention with one fused projection for queries, keys and values."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, sequence, width = x.shape
        # (batch, sequence, 3 * width) -> three of (batch, heads, sequence, width of a head)
        qkv = self.qkv(x).view(batch, sequence, 3, self.heads, width // self.heads)
        query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, sequence, width))


class MLP(nn.Module):
    """Two linear layers, four times as wide in the middle."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    """A pre-norm transformer block; a unit of FSDP."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.width)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    """GPT-2 (Radford et al. 2019) with an untied head.

    Takes tokens (batch, sequence) and returns logits (batch, sequence, vocabulary).
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.sequence, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        # Untied: with 256 bytes the table is small, and embedding and head may then be sharded each
        # in its own way.
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.apply(self._init)
        for block in self.blocks:
            # Every block adds to the residual stream twice: scaled down, its variance does not
            # depend on depth.
            for projection in (block.attention.out, block.mlp.down):
                nn.init.normal_(projection.weight, std=0.02 / math.sqrt(2 * config.layers))

    @staticmethod
    def _init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.positions(positions))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Returns the mean loss in nats per token of logits (batch, sequence, vocabulary), targets
    (batch, sequence)."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
