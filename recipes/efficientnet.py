"""An EfficientNet in plain PyTorch: inverted residual blocks, whose 3 x 3 and 5 x 5 convolutions
are depthwise."""

from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class EfficientNetConfig:
    """Sizes of an EfficientNet; the defaults are B0's.

    stages: (factor of the inner channels, channels, blocks, stride of the first, window) of each
    stage.
    """

    channels: int = 3
    classes: int = 1000
    width: int = 32
    stages: tuple[tuple[int, int, int, int, int], ...] = (
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 40, 2, 2, 5),
        (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    )
    head: int = 1280


def convolution(
    channels: int, out: int, window: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    """Returns a convolution that keeps the image's size, but for its stride, with batch norm and
    SiLU."""
    conv = nn.Conv2d(channels, out, window, stride, padding=window // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(out), nn.SiLU()]


class SqueezeExcitation(nn.Module):
    """Channels scaled by what their means say (Hu et al. 2017, arXiv:1709.01507)."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, inner, 1),
            nn.SiLU(),
            nn.Conv2d(inner, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale(x)


class Block(nn.Module):
    """An inverted residual block: 1 x 1 to more channels, depthwise, squeeze and excitation, 1 x 1
    back."""

    def __init__(self, channels: int, out: int, factor: int, stride: int, window: int) -> None:
        super().__init__()
        inner = channels * factor
        layers = convolution(channels, inner, 1) if factor > 1 else []
        layers += convolution(inner, inner, window, stride, groups=inner)
        layers += [SqueezeExcitation(inner, max(1, channels // 4)), *convolution(inner, out, 1)[:2]]
        self.layers = nn.Sequential(*layers)
        self.has_shortcut = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.has_shortcut else self.layers(x)


class EfficientNet(nn.Module):
    """An EfficientNet (Tan and Le 2019, arXiv:1905.11946), without stochastic depth.

    Takes images (batch, channels, height, width) and returns logits (batch, classes).
    """

    def __init__(self, config: EfficientNetConfig) -> None:
        super().__init__()
        layers, channels = convolution(config.channels, config.width, 3, 2), config.width
        for factor, out, blocks, stride, window in config.stages:
            for index in range(blocks):
                layers.append(Block(channels, out, factor, stride if index == 0 else 1, window))
                channels = out
        self.features = nn.Sequential(*layers, *convolution(channels, config.head, 1))
        self.head = nn.Linear(config.head, config.classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))
