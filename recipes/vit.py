"""A vision transformer (Dosovitskiy et al. 2020, arXiv:2010.11929) for small images, in plain
PyTorch.

It knows neither meshes nor devices.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class ViTConfig:
    size: int = 16  # pixels of a side
    patch: int = 4  # pixels of a side of a patch
    channels: int = 1
    classes: int = 10
    layers: int = 4
    width: int = 64
    heads: int = 4
    dropout: float = 0.0


class ViT(nn.Module):
    """A class token and the patches of each image, with learned positions, through pre-norm
    blocks."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.patches = nn.Conv2d(config.channels, config.width, config.patch, stride=config.patch)
        self.token = nn.Parameter(torch.zeros(1, 1, config.width))
        self.positions = nn.Parameter(
            0.02 * torch.randn(1, 1 + (config.size // config.patch) ** 2, config.width)
        )
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm, self.head = nn.LayerNorm(config.width), nn.Linear(config.width, config.classes)

    def forward(self, pictures: Tensor) -> Tensor:
        """Returns logits (n, classes) for images (n, channels, size, size)."""
        patches = self.patches(pictures).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(pictures), -1, -1), patches], dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


class Block(nn.Module):
    """Attention and a feed-forward network, each of normalised input, each added to it."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(config.width), Attention(config)
        self.norm2, self.up = nn.LayerNorm(config.width), nn.Linear(config.width, 4 * config.width)
        self.down, self.dropout = (
            nn.Linear(4 * config.width, config.width),
            nn.Dropout(config.dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class Attention(nn.Module):
    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query, self.key, self.value = (nn.Linear(config.width, config.width) for _ in range(3))
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        split = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        return self.out(F.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2))
