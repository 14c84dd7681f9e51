"""Interpolation, grid sampling, padding and columns with their gradients against torch on CPU."""

import pytest
import torch
from support import Batch
from torch.nn import functional as F

MODES = [
    ("nearest", (7,), {}),
    ("nearest-exact", (7,), {}),
    ("linear", (7,), {"align_corners": True}),
    ("linear", (7,), {}),
    ("nearest", (5, 6), {}),
    ("nearest-exact", (5, 6), {}),
    ("bilinear", (5, 6), {}),
    ("bilinear", (5, 6), {"align_corners": True}),
    ("bilinear", (5, 6), {"antialias": True}),
    ("bicubic", (5, 6), {}),
    ("bicubic", (5, 6), {"align_corners": True}),
    ("bicubic", (5, 6), {"antialias": True}),
    ("nearest", (3, 4, 5), {}),
    ("nearest-exact", (3, 4, 5), {}),
    ("trilinear", (3, 4, 5), {}),
]


def interpolations(batch: Batch, dtype: torch.dtype) -> None:
    for mode, sizes, settings in MODES:
        x = torch.randn(8, 2, *sizes).to(dtype)
        for target in (
            {"scale_factor": 2},
            {"scale_factor": 1.7},
            {"size": [3] * len(sizes)},
            {"size": [11] * len(sizes)},
        ):
            batch.case(
                f"{mode} {settings} {target}",
                lambda x, m=mode, s=settings, t=target: F.interpolate(x, mode=m, **t, **s),
                x,
            )


def others(batch: Batch, dtype: torch.dtype) -> None:
    plane, volume = torch.randn(8, 2, 4, 5).to(dtype), torch.randn(8, 2, 4, 3, 5).to(dtype)
    for mode in ("reflect", "replicate", "circular"):
        batch.case(f"{mode} 1d", lambda x, m=mode: F.pad(x, (2, 1), mode=m), plane[:, 0])
        batch.case(f"{mode} 2d", lambda x, m=mode: F.pad(x, (2, 1, 0, 3), mode=m), plane)
        batch.case(f"{mode} 3d", lambda x, m=mode: F.pad(x, (2, 1, 0, 2, 1, 1), mode=m), volume)
    batch.case("replicate negative", lambda x: F.pad(x, (-1, 2, 1, -2), mode="replicate"), plane)
    for settings in ({}, {"stride": 2}, {"padding": 1}, {"dilation": 2}):
        batch.case(f"unfold {settings}", lambda x, s=settings: F.unfold(x, 2, **s), plane)
    batch.case(
        "fold", lambda x: F.fold(x, (4, 5), 2, padding=1, stride=2), torch.randn(8, 8, 9).to(dtype)
    )
    batch.case("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), torch.randn(8, 4, 3, 3).to(dtype))
    batch.case(
        "pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), torch.randn(8, 1, 4, 4).to(dtype)
    )


class TestInterpolation:
    """Up and down, by factor and by size, in every mode."""

    def test_float32(self):
        batch = Batch()
        interpolations(batch, torch.float32)
        batch.check()

    def test_bfloat16(self):
        batch = Batch()
        x = torch.randn(2, 3, 6, 6).to(torch.bfloat16)
        batch.case("bilinear", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), x)
        batch.case("nearest", lambda x: F.interpolate(x, scale_factor=2), x)
        batch.check()

    def test_images_of_bytes(self):
        batch = Batch()
        image = torch.randint(0, 256, (1, 3, 5, 6), dtype=torch.uint8)
        batch.case("nearest", lambda x: F.interpolate(x, size=(7, 9)), image)
        batch.check()

    def test_infinity_stays_where_it_is(self):
        x = torch.zeros(1, 1, 6)
        x[0, 0, 2] = torch.inf
        batch = Batch()
        batch.case("linear", lambda x: F.interpolate(x, size=9, mode="linear"), x, gradient=False)
        batch.check()


class TestGridSampling:
    """Every mode and padding, inside and outside of the plane."""

    @pytest.mark.parametrize("align_corners", [False, True])
    def test_plane(self, align_corners):
        batch = Batch()
        x, grid = torch.randn(2, 3, 5, 6), torch.rand(2, 4, 3, 2) * 2.6 - 1.3
        for mode in ("bilinear", "nearest", "bicubic"):
            for padding in ("zeros", "border", "reflection"):
                batch.case(
                    f"{mode} {padding}",
                    lambda x, g, m=mode, p=padding: F.grid_sample(
                        x, g, m, p, align_corners=align_corners
                    ),
                    x,
                    grid,
                )
        batch.check()

    def test_volume(self):
        batch = Batch()
        x, grid = torch.randn(2, 3, 4, 5, 6), torch.rand(2, 3, 2, 3, 3) * 2.6 - 1.3
        for padding in ("zeros", "border", "reflection"):
            batch.case(
                padding,
                lambda x, g, p=padding: F.grid_sample(x, g, "bilinear", p, align_corners=False),
                x,
                grid,
            )
        batch.case(
            "affine",
            lambda t: F.affine_grid(t, (2, 3, 4, 5), align_corners=False),
            torch.randn(2, 2, 3),
        )
        batch.check()


class TestWindowsAndPadding:
    """Reflection, repetition, wrapping; columns of windows and back."""

    def test_against_cpu(self):
        batch = Batch()
        others(batch, torch.float32)
        batch.check()


class TestSharded:
    """Batch split over eight devices."""

    def test_partitioned(self, mesh8):
        batch = Batch(mesh=mesh8, axis="fsdp")
        others(batch, torch.float32)
        for mode, sizes in (("nearest", (4, 4)), ("bilinear", (4, 4)), ("bicubic", (4, 4))):
            batch.case(
                mode,
                lambda x, m=mode: F.interpolate(x, scale_factor=2, mode=m),
                torch.randn(8, 2, *sizes),
            )
        grid = torch.rand(8, 3, 3, 2) * 2 - 1
        batch.case(
            "grid",
            lambda x, g: F.grid_sample(x, g, align_corners=False),
            torch.randn(8, 2, 4, 4),
            grid,
        )
        batch.check()
