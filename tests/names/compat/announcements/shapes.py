"""Models and batches of the programs of this folder, for them and for their tests: plain torch."""

import torch
import torch.nn.functional as F
from torch import nn


class BasicBlock(nn.Module):
    """Two convolutions around which the input goes, through a third where the width or the size changes."""

    def __init__(self, before: int, width: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1 or before != width:
            self.downsample = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + identity)


class ResNet18(nn.Module):
    """The layers of torchvision's resnet18, of another width."""

    def __init__(self, width: int = 8, num_classes: int = 10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        blocks, before = [], width
        for stage in range(4):
            after = width << stage
            blocks += [BasicBlock(before, after, 1 if stage == 0 else 2), BasicBlock(after, after, 1)]
            before = after
        self.layers = nn.Sequential(*blocks)
        self.fc = nn.Linear(before, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        return self.fc(self.layers(x).mean((2, 3)))


def resnet18() -> ResNet18:
    torch.manual_seed(3)
    return ResNet18()


class SimpleLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(32, 64)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.relu(self.fc1(x)))


def simple_linear() -> SimpleLinear:
    torch.manual_seed(4)
    return SimpleLinear()


def wide() -> nn.Module:
    """A model with one module of more than 1e7 parameters."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(16, 2560), nn.ReLU(), nn.Sequential(nn.Linear(2560, 4000)), nn.Linear(4000, 4))


def convolutions() -> nn.Module:
    torch.manual_seed(6)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8 * 4 * 4, 4))


def images(num_batches: int, size: int = 32, num_classes: int = 10) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of four images and their labels."""
    generator = torch.Generator().manual_seed(7)
    return [
        (torch.randn(4, 3, size, size, generator=generator), torch.randint(num_classes, (4,), generator=generator))
        for _ in range(num_batches)
    ]


def rows(num_batches: int, width: int = 32, size: int = 16) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of rows and their labels."""
    generator = torch.Generator().manual_seed(8)
    return [
        (torch.randn(size, width, generator=generator), torch.randint(4, (size,), generator=generator))
        for _ in range(num_batches)
    ]
