"""Matrix products against torch on CPU."""

import pytest
import torch
from support import Batch


def products(batch: Batch, dtype: torch.dtype) -> None:
    def make(*shape: int) -> torch.Tensor:
        return (torch.randint(-4, 5, shape) / 4).to(dtype) if dtype.is_floating_point else torch.randint(-4, 5, shape)

    batch.case("mm", torch.mm, make(8, 5), make(5, 6))
    batch.case("bmm", torch.bmm, make(8, 4, 5), make(8, 5, 6))
    batch.case("mv", torch.mv, make(8, 5), make(5))
    batch.case("dot", torch.dot, make(8), make(8))
    batch.case("matmul", torch.matmul, make(8, 3, 4, 5), make(3, 5, 2))
    batch.case("einsum", lambda a, b: torch.einsum("bij,bkj->bik", a, b), make(8, 4, 5), make(8, 3, 5))
    batch.case("outer", torch.outer, make(8), make(3))
    for beta, alpha in ((1, 1), (0, 1), (2, 3)):
        scale = {"beta": beta, "alpha": alpha}
        batch.case(
            f"addmm {scale}", lambda s, a, b, k=scale: torch.addmm(s, a, b, **k), make(6), make(8, 5), make(5, 6)
        )
        batch.case(
            f"baddbmm {scale}",
            lambda s, a, b, k=scale: torch.baddbmm(s, a, b, **k),
            make(8, 4, 6),
            make(8, 4, 5),
            make(8, 5, 6),
        )
        batch.case(
            f"addbmm {scale}",
            lambda s, a, b, k=scale: torch.addbmm(s, a, b, **k),
            make(4, 6),
            make(8, 4, 5),
            make(8, 5, 6),
        )
        batch.case(f"addmv {scale}", lambda s, a, b, k=scale: torch.addmv(s, a, b, **k), make(8), make(8, 5), make(5))
        batch.case(f"addr {scale}", lambda s, a, b, k=scale: torch.addr(s, a, b, **k), make(8, 3), make(8), make(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
class TestProducts:
    """Every product, with scale and bias."""

    def test_values_and_gradients(self, dtype):
        batch = Batch()
        products(batch, dtype)
        batch.check()


class TestScale:
    """beta=0 ignores self, even where it is NaN; a linear layer of a 3-d input is a 2-d product."""

    def test_nan_bias(self):
        batch = Batch()
        bias = torch.full((6,), float("nan"))
        batch.case(
            "addmm",
            lambda s, a, b: torch.addmm(s, a, b, beta=0),
            bias,
            torch.ones(4, 5),
            torch.ones(5, 6),
            gradient=False,
        )
        batch.check()

    def test_linear(self):
        batch = Batch()
        x, weight, bias = torch.randn(2, 3, 5), torch.randn(6, 5), torch.randn(6)
        batch.case("linear", torch.nn.functional.linear, x, weight, bias)
        batch.case("linear without bias", torch.nn.functional.linear, x, weight)
        batch.check()


class TestGrouped:
    """`grouped_mm`: rows, columns or the inner dim in groups whose ends are data, one of them empty."""

    @staticmethod
    def cases(batch: Batch) -> None:
        ends = torch.tensor([2, 2, 5, 8], dtype=torch.int32)
        product = torch.nn.functional.grouped_mm
        batch.case("rows", lambda a, b, e: product(a, b, offs=e), torch.randn(8, 4), torch.randn(4, 4, 8), ends)
        batch.case("columns", lambda a, b, e: product(a, b, offs=e), torch.randn(4, 3, 4), torch.randn(4, 8), ends)
        inner = torch.randn(4, 8), torch.randn(8, 8)
        batch.case("inner", lambda a, b, e: product(a, b, offs=e), *inner, ends, gradient=False)
        batch.case("batched", product, torch.randn(8, 4, 4), torch.randn(8, 4, 8))
        narrow = torch.randn(8, 8).bfloat16(), torch.randn(4, 8, 8).bfloat16()
        batch.case("bfloat16", lambda a, b, e: product(a, b, offs=e), *narrow, ends)

    def test_values_and_gradients(self):
        batch = Batch()
        self.cases(batch)
        batch.check()

    def test_partitioned(self, mesh8):
        batch = Batch(mesh=mesh8, axis="fsdp")
        self.cases(batch)
        batch.check()


class TestSharded:
    """Rows, batches and contracted dims over eight devices."""

    def test_partitioned(self, mesh8):
        batch = Batch(mesh=mesh8, axis="fsdp")
        products(batch, torch.float32)
        batch.case("contracted", torch.mm, torch.randn(3, 8), torch.randn(8, 4))
        batch.check()
