"""Kernels that a package registers for the device: by torch's key of "xla", by PrivateUse1's, and by `custom_op`."""

from typing import Any

import pytest
import torch
from support import check

_library = torch.library.Library("spmdkernels", "DEF")
for _name in ("by_key", "by_private_key", "late", "lost"):
    _library.define(f"{_name}(Tensor x) -> Tensor")
torch.library.impl(_library, "by_key", "XLA")(lambda x: x + 1)
torch.library.impl(_library, "by_private_key", "PrivateUse1")(lambda x: x + 2)


@torch.library.custom_op("spmdkernels::scaled_sin", mutates_args=(), device_types="xla")
def scaled_sin(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x.sin() * scale


@torch.library.custom_op("spmdkernels::five_times_", mutates_args=("x",), device_types="xla")
def five_times_(x: torch.Tensor) -> None:
    x.mul_(5)


@torch.library.custom_op("spmdkernels::thrice_", mutates_args=("x",))
def thrice_(x: torch.Tensor) -> None:
    x.mul_(3)


@torch.library.custom_op("spmdkernels::by_device", mutates_args=(), device_types="cpu")
def by_device(x: torch.Tensor) -> torch.Tensor:
    return x * 2


by_device.register_kernel("xla")(lambda x: x * 4)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.scale = inputs[1]


scaled_sin.register_autograd(
    lambda ctx, grad: (grad * ctx.saved_tensors[0].cos() * ctx.scale, None), setup_context=_save
)
scaled_sin.register_fake(lambda x, scale: torch.empty_like(x))


class TestKernels:
    """Called for tensors on xla, with gradients, writes and torch.compile."""

    def test_by_key(self) -> None:
        x = torch.arange(3.0, device="xla")
        assert torch.ops.spmdkernels.by_key(x).tolist() == [1, 2, 3]
        assert torch.ops.spmdkernels.by_private_key(x).tolist() == [2, 3, 4]
        assert by_device(x).tolist() == [0, 4, 8] and by_device(x.cpu()).tolist() == [0, 2, 4]

    def test_registered_after_a_call(self) -> None:
        x = torch.ones(2, device="xla")
        with pytest.raises(NotImplementedError, match=r"late.*has no lowering rule"):
            torch.ops.spmdkernels.late(x)
        torch.library.impl(_library, "late", "XLA")(lambda x: x - 1)
        assert torch.ops.spmdkernels.late(x).tolist() == [0, 0]

    def test_none(self) -> None:
        with pytest.raises(NotImplementedError, match=r"lost.*has no lowering rule"):
            torch.ops.spmdkernels.lost(torch.ones(2, device="xla"))

    def test_gradients(self) -> None:
        x = torch.randn(4, device="xla", requires_grad=True)
        y = scaled_sin(x, 2.0)
        y.sum().backward()
        assert x.grad is not None
        check(y, x.detach().cpu().sin() * 2)
        check(x.grad, x.detach().cpu().cos() * 2)
        with torch.no_grad():
            check(torch.compile(lambda x: scaled_sin(x, 3.0) + 1, backend="xla")(x), x.detach().cpu().sin() * 3 + 1)

    @pytest.mark.parametrize(("op", "expected"), [(five_times_, 5), (thrice_, 3)])
    def test_writes(self, op: Any, expected: int) -> None:
        x = torch.ones(2, 2, device="xla")
        op(x[1])
        assert x.tolist() == [[1, 1], [expected, expected]]
