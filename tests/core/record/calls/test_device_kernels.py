"""Kernels that a package registers for the device: by torch's key of "xla", by PrivateUse1's, and
by `custom_op`."""

from typing import Any

import pytest
import torch
from support import check
from torch.autograd import Function

_library = torch.library.Library("spmdkernels", "DEF")
for _name in ("by_key", "by_private_key", "late", "lost"):
    _library.define(f"{_name}(Tensor x) -> Tensor")
torch.library.impl(_library, "by_key", "XLA")(lambda x: x + 1)
torch.library.impl(_library, "by_private_key", "PrivateUse1")(lambda x: x + 2)
for _name in ("part", "composite_part"):
    _library.define(f"{_name}(Tensor(a) x) -> Tensor(a)")
for _name in ("below", "above", "composite", "sevenfold"):
    _library.define(f"{_name}(Tensor x) -> Tensor")


class _Sevenfold(Function):
    """A kernel for autograd as packages write it: the op itself below, its gradient by hand."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.spmdkernels.sevenfold(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0] * 7


for _device in ("CPU", "XLA"):
    torch.library.impl(_library, "part", _device)(lambda x: x[1])
    torch.library.impl(_library, "below", _device)(lambda x: x.sin())
    torch.library.impl(_library, "above", f"Autograd{_device}")(lambda x: x.cos())
    torch.library.impl(_library, "sevenfold", _device)(lambda x: x.detach() * 7)
    torch.library.impl(_library, "sevenfold", f"Autograd{_device}")(_Sevenfold.apply)
torch.library.impl(_library, "composite", "CompositeExplicitAutograd")(lambda x: x.exp())
torch.library.impl(_library, "composite_part", "CompositeExplicitAutograd")(lambda x: x[1])


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
            check(
                torch.compile(lambda x: scaled_sin(x, 3.0) + 1, backend="xla")(x),
                x.detach().cpu().sin() * 3 + 1,
            )

    @pytest.mark.parametrize(("op", "expected"), [(five_times_, 5), (thrice_, 3)])
    def test_writes(self, op: Any, expected: int) -> None:
        x = torch.ones(2, 2, device="xla")
        op(x[1])
        assert x.tolist() == [[1, 1], [expected, expected]]

    # torch's, on the CPU as well
    @pytest.mark.filterwarnings("ignore:.*an autograd kernel was not registered")
    @pytest.mark.parametrize(
        "name", ["part", "composite_part", "below", "above", "composite", "sevenfold"]
    )
    def test_gradients_as_on_the_cpu(self, name: str) -> None:
        """A kernel's own ops have their gradients, without a formula of the op; AutogradXLA's
        kernel comes first."""
        op, data = getattr(torch.ops.spmdkernels, name), torch.randn(2, 3)
        grads = []
        for device in ("cpu", "xla"):
            x = data.clone().to(device).requires_grad_()
            op(x * 1).sum().backward()
            grads.append(x.grad)
        check(grads[1], grads[0])
        with torch.no_grad():
            check(op(data.to("xla")), op(data))

    @pytest.mark.parametrize("name", ["part", "composite_part"])
    def test_views(self, name: str) -> None:
        x = torch.zeros(2, 2, device="xla")
        getattr(torch.ops.spmdkernels, name)(x).add_(1)
        assert x.tolist() == [[0, 0], [1, 1]]
