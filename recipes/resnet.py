"""A ResNet in plain PyTorch: nothing here knows of devices, meshes or shardings.

Lives here: the model and its configuration. Not here: images (`images.py`), training
(`train_resnet.py`).
"""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class ResNetConfig:
    """Sizes of a ResNet of basic blocks; the defaults are ResNet-18's.

    stages: blocks in each stage; a stage doubles the channels and, from the second on, halves the
    image.
    stem: "imagenet" is a convolution of 7 x 7 and a pool, which keep a sixteenth of the pixels;
    "small" a convolution
        of 3 x 3, which keeps all.
    """

    channels: int = 3
    classes: int = 1000
    width: int = 64
    stages: tuple[int, ...] = (2, 2, 2, 2)
    stem: str = "imagenet"

    def __post_init__(self) -> None:
        if self.stem not in ("imagenet", "small"):
            raise ValueError(
                f"ResNetConfig: expected stem 'imagenet' or 'small', got {self.stem!r}"
            )


class Block(nn.Module):
    """Two convolutions of 3 x 3, each with batch norm, and a shortcut."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """A ResNet of basic blocks (He et al. 2015, arXiv:1512.03385).

    Takes images (batch, channels, height, width) and returns logits (batch, classes).
    """

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.stem = stem(config)
        stages, channels = [], config.width
        for index, blocks in enumerate(config.stages):
            out = config.width * 2**index
            strides = (1 if index == 0 else 2, *[1] * (blocks - 1))
            layers = [
                Block(channels if i == 0 else out, out, stride) for i, stride in enumerate(strides)
            ]
            stages.append(nn.Sequential(*layers))
            channels = out
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(channels, config.classes)
        self.apply(_init)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


def stem(config: ResNetConfig) -> nn.Sequential:
    """Returns the layers in front of the blocks."""
    if config.stem == "small":
        conv: list[nn.Module] = [nn.Conv2d(config.channels, config.width, 3, padding=1, bias=False)]
        return nn.Sequential(*conv, nn.BatchNorm2d(config.width), nn.ReLU())
    conv = [nn.Conv2d(config.channels, config.width, 7, 2, padding=3, bias=False)]
    return nn.Sequential(
        *conv, nn.BatchNorm2d(config.width), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)
    )


def _init(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
