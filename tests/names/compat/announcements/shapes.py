"""Models and batches of the programs of this folder, for them and for their tests: plain torch."""

import importlib.util
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class BasicBlock(nn.Module):
    """Two convolutions around which the input goes, through a third where the width or the size
    changes."""

    def __init__(self, before: int, width: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1 or before != width:
            self.downsample = nn.Sequential(
                nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + identity)


class ResNet18(nn.Module):
    """The layers of torchvision's resnet18, of any width."""

    def __init__(self, width: int = 64, num_classes: int = 1000):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        blocks, before = [], width
        for stage in range(4):
            after = width << stage
            blocks += [
                BasicBlock(before, after, 1 if stage == 0 else 2),
                BasicBlock(after, after, 1),
            ]
            before = after
        self.layers = nn.Sequential(*blocks)
        self.fc = nn.Linear(before, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        return self.fc(self.layers(x).mean((2, 3)))


def resnet18() -> nn.Module:
    """torchvision's, or one of its depth and width."""
    torch.manual_seed(3)
    if importlib.util.find_spec("torchvision") is None:
        return ResNet18()
    model: nn.Module = importlib.import_module("torchvision.models").resnet18()
    return model


def narrow_resnet18() -> ResNet18:
    torch.manual_seed(3)
    return ResNet18(8, 10)


class SimpleLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(128, 64)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.relu(self.fc1(x)))


def simple_linear() -> SimpleLinear:
    torch.manual_seed(4)
    return SimpleLinear()


def wide() -> nn.Module:
    """A model with one module of more than 1e7 parameters."""
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Linear(16, 2560), nn.ReLU(), nn.Sequential(nn.Linear(2560, 4000)), nn.Linear(4000, 4)
    )


def convolutions() -> nn.Module:
    torch.manual_seed(6)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8 * 4 * 4, 4)
    )


def images(
    num_batches: int, size: int = 32, num_classes: int = 10, batch_size: int = 4
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of images and their labels."""
    generator = torch.Generator().manual_seed(7)
    return [
        (
            torch.randn(batch_size, 3, size, size, generator=generator),
            torch.randint(num_classes, (batch_size,), generator=generator),
        )
        for _ in range(num_batches)
    ]


def rows(
    num_batches: int, width: int = 128, size: int = 16
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of rows, and a number for each."""
    generator = torch.Generator().manual_seed(8)
    return [
        (torch.randn(size, width, generator=generator), torch.randn(size, 1, generator=generator))
        for _ in range(num_batches)
    ]


def labelled_rows(num_batches: int, width: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of rows and their labels."""
    generator = torch.Generator().manual_seed(8)
    return [
        (torch.randn(16, width, generator=generator), torch.randint(4, (16,), generator=generator))
        for _ in range(num_batches)
    ]


def diffusion_pipeline() -> Any:
    """Stable Diffusion by diffusers, of tiny random weights; it takes embeddings of prompts."""
    diffusers = importlib.import_module("diffusers")
    torch.manual_seed(10)
    unet = diffusers.UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        cross_attention_dim=16,
        attention_head_dim=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )
    vae = diffusers.AutoencoderKL(
        block_out_channels=(8, 16),
        norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
    )
    return diffusers.StableDiffusionPipeline(
        vae=vae,
        text_encoder=None,
        tokenizer=None,
        unet=unet,
        safety_checker=None,
        feature_extractor=None,
        scheduler=diffusers.DPMSolverMultistepScheduler(steps_offset=1),
        requires_safety_checker=False,
    )


def prompts(count: int) -> list[tuple[torch.Tensor, ...]]:
    """For each image the embeddings of its prompt and of an empty one, and its noise."""
    generator = torch.Generator().manual_seed(11)
    shapes = ((1, 16, 16), (1, 16, 16), (1, 4, 8, 8))
    return [
        tuple(torch.randn(shape, generator=generator) for shape in shapes) for _ in range(count)
    ]
