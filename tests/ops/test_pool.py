"""Maximum, average, adaptive and fractional pooling with their gradients against torch on CPU."""

import pytest
import torch
from support import Batch, distinct
from torch.nn import functional as F

RANKS = {1: (9,), 2: (7, 8), 3: (5, 6, 4)}


def named(kind: str, rank: int):
    return getattr(F, f"{kind}_pool{rank}d")


def maxima(batch: Batch, dtype: torch.dtype, rank: int) -> None:
    x = distinct(8, 2, *RANKS[rank], dtype=dtype)
    pool = named("max", rank)
    for settings in (
        {},
        {"stride": 1},
        {"stride": 2, "padding": 1},
        {"stride": 2, "ceil_mode": True},
        {"stride": 1, "dilation": 2, "padding": 1},
    ):
        batch.case(
            f"max_pool{rank}d {settings}",
            lambda x, s=settings: pool(x, 2, return_indices=True, **s),
            x,
        )


def averages(batch: Batch, dtype: torch.dtype, rank: int) -> None:
    x = torch.randn(8, 2, *RANKS[rank]).to(dtype)
    pool = named("avg", rank)
    settings = [
        {},
        {"stride": 1, "padding": 1},
        {"padding": 1, "count_include_pad": False},
        {"ceil_mode": True, "padding": 1},
    ]
    settings += [] if rank == 1 else [{"divisor_override": 5}]
    for chosen in settings:
        batch.case(f"avg_pool{rank}d {chosen}", lambda x, s=chosen: pool(x, 3, **s), x)


def adaptive(batch: Batch, dtype: torch.dtype, rank: int) -> None:
    for size in (1, 2, 3):
        x = torch.randn(8, 2, *RANKS[rank]).to(dtype)
        batch.case(
            f"adaptive_avg {rank} {size}", lambda x, n=size: named("adaptive_avg", rank)(x, n), x
        )
        batch.case(
            f"adaptive_max {rank} {size}",
            lambda x, n=size: named("adaptive_max", rank)(x, n, return_indices=True),
            distinct(8, 2, *RANKS[rank], dtype=dtype),
        )


@pytest.mark.parametrize("rank", [1, 2, 3])
class TestFloat32:
    """Values, indices and gradients."""

    @pytest.mark.parametrize("kind", [maxima, averages, adaptive])
    def test_against_cpu(self, kind, rank):
        batch = Batch()
        kind(batch, torch.float32, rank)
        batch.check()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
class TestOtherDtypes:
    """Narrow floats sum in float32."""

    def test_against_cpu(self, dtype):
        batch = Batch()
        maxima(batch, dtype, 2)
        averages(batch, dtype, 2)
        batch.check()


class TestTies:
    """The first of equal values, and NaN over everything, as torch chooses."""

    def test_indices(self):
        x = (
            torch.tensor([[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, float("nan")]])
            .expand(1, 1, 2, 4)
            .clone()
        )
        batch = Batch()
        batch.case("ties", lambda x: F.max_pool2d(x, 2, return_indices=True), x, gradient=False)
        batch.case(
            "-inf",
            lambda x: F.max_pool2d(x, 2, padding=1, return_indices=True),
            torch.full((1, 1, 2, 4), -torch.inf),
        )
        batch.case("integers", lambda x: F.max_pool2d(x, 2), torch.arange(16).reshape(1, 1, 4, 4))
        batch.check()

    def test_large_windows(self):
        batch = Batch()
        batch.case("scattered", lambda x: F.max_pool2d(x, 7, 2), distinct(2, 2, 11, 11))
        batch.check()


class TestFractional:
    """Window starts come from the samples given."""

    def test_against_cpu(self):
        batch = Batch()
        samples = torch.rand(2, 3, 2)
        batch.case(
            "fractional 2d",
            lambda x: F.fractional_max_pool2d(
                x, 2, (4, 3), return_indices=True, _random_samples=samples.to(x.device)
            ),
            distinct(2, 3, 9, 8),
        )
        samples3 = torch.rand(2, 2, 3)
        batch.case(
            "fractional 3d",
            lambda x: F.fractional_max_pool3d(
                x, 2, (3, 4, 3), return_indices=True, _random_samples=samples3.to(x.device)
            ),
            distinct(2, 2, 6, 7, 6),
        )
        outside = torch.tensor([[[4.9624, -0.7130]]])  # torch takes any number, and truncates
        batch.case(
            "samples outside of 0 and 1",
            lambda x: F.fractional_max_pool2d(
                x, 1, 8, return_indices=True, _random_samples=outside.to(x.device)
            ),
            distinct(1, 1, 16, 16),
        )
        batch.check()


class TestUnpooling:
    """A pooled tensor written back to where its values came from."""

    @pytest.mark.parametrize("rank", [1, 2, 3])
    def test_against_cpu(self, rank):
        unpool = getattr(F, f"max_unpool{rank}d")

        def there_and_back(x):
            pooled, indices = named("max", rank)(x, 2, return_indices=True)
            return unpool(pooled, indices, 2)

        batch = Batch()
        batch.case("unpool", there_and_back, distinct(2, 2, *[4] * rank))
        batch.check()


class TestSharded:
    """Batch split over eight devices."""

    def test_partitioned(self, mesh8):
        batch = Batch(mesh=mesh8, axis="fsdp")
        for kind in (maxima, averages, adaptive):
            kind(batch, torch.float32, 2)
        batch.check()

    def test_height(self, mesh8):
        """The rows of an image split, so that windows reach over to the neighbour."""
        batch = Batch(mesh=mesh8, axis="fsdp")
        for height in (16, 24):
            x = distinct(height, 2, 2, 9)
            for window, stride, padding in ((3, 2, 1), (2, 2, 0), (3, 1, 1), (5, 3, 2)):
                for pool in (F.max_pool2d, F.avg_pool2d):
                    batch.case(
                        f"{pool.__name__} {window} {stride} of {height}",
                        lambda x, pool=pool, how=(window, stride, padding): pool(
                            x.permute(1, 2, 0, 3), *how
                        ),
                        x,
                    )
        batch.check()
