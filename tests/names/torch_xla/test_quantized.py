"""Products with int8 weights agree with the dequantized ones, on the CPU and on xla."""

import pytest
import torch
from support import check

import spmd
from spmd.torch_xla import quantized


def weights(block_size: int, has_zero: bool) -> tuple[torch.Tensor, ...]:
    """An int8 weight of 8 inputs and 6 outputs, its scale and zero point, and its values."""
    w = torch.randint(-128, 127, (6, 8), dtype=torch.int8)
    scale, zero = torch.rand(6), torch.rand(6) * has_zero
    if block_size == -1:
        return w, scale, zero, w * scale[:, None] - zero[:, None]
    num_blocks = 8 // block_size
    scale, zero = torch.rand(num_blocks, 6), torch.rand(num_blocks, 6) * has_zero
    blocks = w.t().reshape(num_blocks, block_size, 6)
    return blocks, scale, zero, (blocks * scale[:, None] - zero[:, None]).reshape(8, 6).t()


class TestProduct:
    """`quantized_matmul` and its layer."""

    @pytest.mark.parametrize("has_zero", [True, False])
    @pytest.mark.parametrize("block_size", [-1, 4])
    def test_values(self, block_size: int, has_zero: bool, mesh8: spmd.Mesh) -> None:
        w, scale, zero, dequantized = weights(block_size, has_zero)
        x = torch.randn(16, 8)
        expected = x @ dequantized.t()
        layer = quantized.XlaQuantizedLinear(8, 6, not has_zero, block_size)
        layer.load_quantized_weight(w, scale, zero if has_zero else None)
        torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-3)
        moved = spmd.mark_sharding(x.to("xla"), mesh8, ("fsdp", None)).requires_grad_()
        result = layer.to("xla")(moved)
        result.sum().backward()
        check(result, layer.cpu()(x))
        assert moved.grad is not None
        torch.testing.assert_close(
            moved.grad.cpu(), dequantized.sum(0).expand(16, 8), rtol=1e-4, atol=1e-3
        )

    def test_rounded_activations(self) -> None:
        w, scale, zero, dequantized = weights(-1, True)
        x = torch.randn(4, 8)
        of_cpu = torch.ops.xla.quantized_matmul(x, w, scale, zero, quantize_activation=True)
        assert (
            torch.corrcoef(torch.stack([of_cpu.ravel(), (x @ dequantized.t()).ravel()]))[0, 1]
            > 0.99
        )
        moved = [tensor.to("xla") for tensor in (x, w, scale, zero)]
        check(torch.ops.xla.quantized_matmul(*moved, -1, True, True), of_cpu)

    def test_refused(self) -> None:
        w, scale, zero, _ = weights(-1, True)
        x = torch.ones(1, 8)
        with pytest.raises(
            ValueError, match=r"expected a weight of torch\.int8, got torch\.float32"
        ):
            quantized.quantized_matmul(x, w.float(), scale)
        with pytest.raises(ValueError, match=r"expected a scale of shape \[6\], got \[1, 6\]"):
            quantized.quantized_matmul(x, w, scale[None])
        with pytest.raises(ValueError, match=r"expected inputs in blocks of 3, got 8"):
            quantized.quantized_matmul(x, w, scale, zero, block_size=3)
        with pytest.raises(ValueError, match=r"quantize_activation is for a scale for each output"):
            quantized.quantized_matmul(
                x, *weights(4, True)[:3], block_size=4, quantize_activation=True
            )


class TestDotGeneral:
    def test_values(self) -> None:
        x, w = torch.randn(10, 3, 4), torch.randn(10, 4, 5)
        for contracted in (([2], [1]), ([-1], [-2])):
            result = quantized.dot_general(x.to("xla"), w.to("xla"), (contracted, ([0], [0])))
            check(result, x @ w)
        i = torch.randint(-100, 100, (3, 4), dtype=torch.int8)
        result = quantized.dot_general(i.to("xla"), i.to("xla"), (([1], [1]), ()), torch.int32)
        check(result, i.int() @ i.int().t())
        with pytest.raises(TypeError, match="dot_general: expected a tensor on xla"):
            quantized.dot_general(x, w.to("xla"), (([2], [1]), ([0], [0])))
