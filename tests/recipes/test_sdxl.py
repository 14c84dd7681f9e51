"""The benchmark of Stable Diffusion XL, tiny: the steps of an image are few programs, and those of
the next one no more."""

import pytest

import spmd
from recipes.benchmarks import sdxl


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # torch's own
def test_images() -> None:
    spmd.sync()
    first, *later = sdxl.images(steps=6, blocks=1)
    assert 0 < first["programs compiled"] <= 3 and first["runs"] <= 10
    assert [one["with copies"] for one in later] == [0, 0]
