"""The frameworks that the tests of this folder train with are there: `make install` installs the
extra `frameworks`."""

import importlib.util

import pytest


@pytest.mark.parametrize(
    "name",
    [
        *(
            "accelerate",
            "array_api_compat",
            "autoray",
            "datasets",
            "diffusers",
            "grain",
            "lightning",
            "peft",
        ),
        *("tensordict", "torchdata", "torchmetrics", "trl"),
    ],
)
def test_is_installed(name: str) -> None:
    assert importlib.util.find_spec(name) is not None, f"{name} is missing: run make install"
