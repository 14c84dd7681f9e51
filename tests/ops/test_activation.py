"""Softmax and activation functions against torch on CPU."""

from collections.abc import Callable
from functools import partial
from typing import ClassVar

import pytest
import torch
from support import Batch
from torch.nn import functional as F

ACTIVATIONS = {
    "celu": lambda x: F.celu(x, 1.3), "elu": lambda x: F.elu(x, 0.7), "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "glu": F.glu, "hardshrink": F.hardshrink,
    "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish, "hardtanh": F.hardtanh,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1), "logsigmoid": F.logsigmoid, "mish": F.mish,
    "relu": F.relu, "relu6": F.relu6, "selu": F.selu, "sigmoid": torch.sigmoid, "silu": F.silu,
    "softplus": F.softplus, "softplus beta": lambda x: F.softplus(x, 2, 3),
    "softshrink": F.softshrink, "tanh": torch.tanh, "threshold": lambda x: F.threshold(x, 0.1, 0.3),
    "softmax": lambda x: torch.softmax(x, -1), "softmax 0": lambda x: torch.softmax(x, 0),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "softmin": lambda x: F.softmin(x, 1),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
class TestActivations:
    """Values and gradients."""

    def test_against_cpu(self, dtype):
        batch = Batch()
        x = (torch.randn(4, 6) * 2).to(dtype)
        for name, function in ACTIVATIONS.items():
            batch.case(name, function, x)
        batch.case("prelu", F.prelu, x, torch.full((6,), 0.2, dtype=dtype))
        batch.case("softmax to float32", lambda x: torch.softmax(x, -1, dtype=torch.float32), x)
        batch.check()


class TestSpecialValues:
    """NaN stays NaN, large inputs do not overflow, a row of -inf gives softmax NaN."""

    def test_nan_and_large(self):
        batch = Batch()
        x = torch.tensor([float("nan"), 1e4, -1e4, 0.0, -0.0, 88.0, -88.0, 1.0])
        for name in (
            "relu",
            "silu",
            "gelu",
            "gelu tanh",
            "sigmoid",
            "softplus",
            "logsigmoid",
            "leaky_relu",
            "hardtanh",
        ):
            batch.case(name, ACTIVATIONS[name], x, gradient=False)
        masked = torch.tensor([[-float("inf")] * 3, [0.0, -float("inf"), 1.0]])
        batch.case("softmax", ACTIVATIONS["softmax"], masked, gradient=False)
        batch.case("log_softmax", ACTIVATIONS["log_softmax"], masked, gradient=False)
        batch.case("hardsigmoid", F.hardsigmoid, torch.linspace(-4, 4, 9, dtype=torch.float64))
        batch.case("scalar softmax", lambda x: torch.softmax(x, 0), torch.tensor(3.0))
        for name in ("softmax", "log_softmax", "softmin"):
            for dim in (0, 1, 2):
                batch.case(
                    f"{name} of nothing", partial(getattr(F, name), dim=dim), torch.ones(5, 0, 0)
                )
        batch.check()


class TestSharded:
    """Along and across the sharded dim."""

    def test_partitioned(self, mesh8):
        batch = Batch(mesh=mesh8, axis="fsdp")
        for name, function in ACTIVATIONS.items():
            batch.case(name, function, torch.randn(8, 6))
        batch.check()


class TestInPlaceSlopes:
    """Of the result of a negative slope no gradient can be had, and torch refuses it, in the
    backward pass."""

    REFUSED: ClassVar[dict[str, Callable]] = {
        "elu_": lambda x: F.elu_(x, -1.0),
        "celu_": lambda x: F.celu_(x, -1.0),
        "leaky_relu_": lambda x: F.leaky_relu_(x, -1.0),
        "rrelu_": lambda x: F.rrelu_(x, -1.0, -0.5, False),
    }

    @pytest.mark.parametrize("name", REFUSED)
    def test_refused(self, name):
        for device in ("cpu", "xla"):
            x = torch.tensor([-1.0, 2.0], device=device, requires_grad=True)
            y = self.REFUSED[name](x * 1)
            with pytest.raises(RuntimeError, match="negative slope which is not supported"):
                y.sum().backward()

    def test_others_are_taken(self):
        batch, x = Batch(), torch.tensor([-1.0, 0.0, 2.0])
        for name, function in {
            "threshold_": lambda x: F.threshold_(x * 1, 1.0, -1.0),
            "relu6": lambda x: F.relu6(x * 1, inplace=True),
            "selu_": lambda x: F.selu_(x * 1),
            "elu_": lambda x: F.elu_(x * 1, 0.0),
            "out": lambda x: F.elu(x, -1.0),
            "leaky_relu": lambda x: F.leaky_relu(x, -1.0),
            "hardtanh_": lambda x: F.hardtanh_(x * 1, 0.0, 1.0),
        }.items():
            batch.case(name, function, x)
        batch.check()
