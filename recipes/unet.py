"""A UNet that predicts the noise in an image (Ho et al. 2020, arXiv:2006.11239), in plain PyTorch.

Residual blocks with group norm, attention at the lowest resolution, the noise level as sines and
the class as a row of a table. It knows neither meshes nor devices.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class UNetConfig:
    channels: int = 1  # of an image
    classes: int = 10
    width: int = 32  # channels of the first resolution
    multiples: tuple[int, ...] = (1, 2)  # of the width, one for each resolution
    heads: int = 4
    groups: int = 8  # of the group norms


class UNet(nn.Module):
    """A UNet of images (n, channels, height, width), noise levels (n,) and labels (n,); it returns
    the noise.

    Height and width must be multiples of 2 ** (resolutions - 1).
    """

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        sizes = [config.width * multiple for multiple in config.multiples]
        self.time = TimeEmbedding(config.width, config.classes)
        self.first = nn.Conv2d(config.channels, sizes[0], 3, padding=1)
        self.down = nn.ModuleList()
        for number, (before, after) in enumerate(zip([sizes[0], *sizes], sizes, strict=False)):
            self.down.append(Down(before, after, config, halve=number > 0))
        self.middle = ResidualBlock(sizes[-1], sizes[-1], config)
        self.attention = Attention(sizes[-1], config)
        self.up = nn.ModuleList()
        for number, (before, after) in enumerate(
            zip(sizes[::-1], [*sizes[-2::-1], sizes[0]], strict=True)
        ):
            self.up.append(Up(before, after, config, double=number < len(sizes) - 1))
        self.norm = nn.GroupNorm(config.groups, sizes[0])
        self.last = nn.Conv2d(sizes[0], config.channels, 3, padding=1)
        nn.init.zeros_(self.last.weight)  # the first prediction is no noise at all

    def forward(self, x: Tensor, time: Tensor, labels: Tensor) -> Tensor:
        embedding = self.time(time, labels)
        x, kept = self.first(x), []
        for stage in self.down:
            x = stage(x, embedding)
            kept.append(x)
        x = self.attention(self.middle(x, embedding))
        for stage in self.up:
            x = stage(torch.cat([x, kept.pop()], dim=1), embedding)
        return self.last(F.silu(self.norm(x)))


class TimeEmbedding(nn.Module):
    """The noise level as sines of many frequencies, and the class, as one vector (n, 4 * width)."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.frequencies = nn.Buffer(
            torch.exp(-math.log(10_000) * torch.arange(width // 2) / (width // 2))
        )
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width)
        )
        self.labels = nn.Embedding(classes, 4 * width)

    def forward(self, time: Tensor, labels: Tensor) -> Tensor:
        angles = time[:, None].float() * self.frequencies
        return self.layers(torch.cat([angles.sin(), angles.cos()], dim=1)) + self.labels(labels)


class ResidualBlock(nn.Module):
    def __init__(self, before: int, after: int, config: UNetConfig) -> None:
        super().__init__()
        self.norm1, self.conv1 = (
            nn.GroupNorm(config.groups, before),
            nn.Conv2d(before, after, 3, padding=1),
        )
        self.embedding = nn.Linear(4 * config.width, after)
        self.norm2, self.conv2 = (
            nn.GroupNorm(config.groups, after),
            nn.Conv2d(after, after, 3, padding=1),
        )
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.embedding(F.silu(embedding))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class Attention(nn.Module):
    """Attention of all pixels of a feature map to each other."""

    def __init__(self, width: int, config: UNetConfig) -> None:
        super().__init__()
        self.heads, self.norm = config.heads, nn.GroupNorm(config.groups, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        pixels = self.norm(x).flatten(2).transpose(1, 2)  # (n, height * width, channels)
        split = self.qkv(pixels).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2)
        return x + self.out(mixed).transpose(1, 2).unflatten(2, x.shape[2:])


class Down(nn.Module):
    """A residual block, after a convolution that halves the resolution."""

    def __init__(self, before: int, after: int, config: UNetConfig, *, halve: bool) -> None:
        super().__init__()
        self.halve = nn.Conv2d(before, before, 3, stride=2, padding=1) if halve else nn.Identity()
        self.block = ResidualBlock(before, after, config)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        return self.block(self.halve(x), embedding)


class Up(nn.Module):
    """A residual block of two feature maps, put together; then the resolution is doubled."""

    def __init__(self, before: int, after: int, config: UNetConfig, *, double: bool) -> None:
        super().__init__()
        self.block = ResidualBlock(2 * before, after, config)
        self.smooth = nn.Conv2d(after, after, 3, padding=1) if double else None

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        x = self.block(x, embedding)
        return (
            x
            if self.smooth is None
            else self.smooth(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        )
