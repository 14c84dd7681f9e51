"""Images without a download: the handwritten digits inside scikit-learn, or random ones at
ImageNet's shapes.

Lives here: the images, their split, batches of them. Not here: any model.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Images:
    """Images (n, channels, height, width) of float32 with labels (n,) of int64; some held out,
    perhaps none."""

    train: tuple[Tensor, Tensor]
    heldout: tuple[Tensor, Tensor]
    classes: int


def digits(heldout: int = 360, *, size: int = 32) -> Images:
    """Returns the 1,797 digits of scikit-learn (Alpaydin and Kaynak, UCI 1998) of 8 x 8 pixels,
    scaled to size x size.

    They are sorted by writer: the last ones, held out, are by writers of whom some are not among
    the first.
    """
    loaded = load_digits()
    small = torch.tensor(loaded.images, dtype=torch.float32)[:, None] / 16
    images = F.interpolate(small, size=(size, size), mode="bilinear") - small.mean()
    labels = torch.tensor(loaded.target, dtype=torch.int64)
    cut = len(images) - heldout
    return Images((images[:cut], labels[:cut]), (images[cut:], labels[cut:]), classes=10)


def fake(number: int, seed: int) -> Images:
    """Returns random images and labels with ImageNet's shapes, none held out, to measure the cost
    of a step."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(number, 3, 224, 224, generator=generator)
    labels = torch.randint(1000, (number,), generator=generator)
    return Images((images, labels), (images[:0], labels[:0]), classes=1000)


def batches(
    images: Tensor, labels: Tensor, *, batch: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the images of one epoch in the random order of a seed, without the rest that fills no
    batch."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    for chosen in order.split(batch)[: len(order) // batch]:
        yield images[chosen], labels[chosen]


def endless(
    images: Tensor, labels: Tensor, *, batch: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the images of epoch after epoch, each in another order."""
    for epoch in count(seed):
        yield from batches(images, labels, batch=batch, seed=epoch)
