"""Matrix products against torch on CPU."""

import importlib
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from references import STOPS, on_cpu, scaled_mm
from rule_calls import known
from support import DEVICE, Batch, check
from torch.nn import functional as F

import spmd
from spmd.ops import matmul
from spmd.ops.kernels import grouped


def products(batch: Batch, dtype: torch.dtype) -> None:
    def make(*shape: int) -> torch.Tensor:
        return (
            (torch.randint(-4, 5, shape) / 4).to(dtype)
            if dtype.is_floating_point
            else torch.randint(-4, 5, shape)
        )

    batch.case("mm", torch.mm, make(8, 5), make(5, 6))
    batch.case("bmm", torch.bmm, make(8, 4, 5), make(8, 5, 6))
    batch.case("mv", torch.mv, make(8, 5), make(5))
    batch.case("dot", torch.dot, make(8), make(8))
    batch.case("matmul", torch.matmul, make(8, 3, 4, 5), make(3, 5, 2))
    batch.case(
        "einsum", lambda a, b: torch.einsum("bij,bkj->bik", a, b), make(8, 4, 5), make(8, 3, 5)
    )
    batch.case("outer", torch.outer, make(8), make(3))
    for beta, alpha in ((1, 1), (0, 1), (2, 3)):
        scale = {"beta": beta, "alpha": alpha}
        batch.case(
            f"addmm {scale}",
            lambda s, a, b, k=scale: torch.addmm(s, a, b, **k),
            make(6),
            make(8, 5),
            make(5, 6),
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
        batch.case(
            f"addmv {scale}",
            lambda s, a, b, k=scale: torch.addmv(s, a, b, **k),
            make(8),
            make(8, 5),
            make(5),
        )
        batch.case(
            f"addr {scale}",
            lambda s, a, b, k=scale: torch.addr(s, a, b, **k),
            make(8, 3),
            make(8),
            make(3),
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
class TestProducts:
    """Every product, with scale and bias."""

    def test_values_and_gradients(self, dtype):
        batch = Batch()
        products(batch, dtype)
        batch.check()


class TestScale:
    """beta=0 ignores self, even where it is NaN."""

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


def layers(batch: Batch, dtype: torch.dtype) -> None:
    """Inputs of every rank and layout; weights that are vectors or transposed; biases that
    broadcast; nothing."""

    def make(*shape: int) -> torch.Tensor:
        return (torch.randint(-4, 5, shape) / 4).to(dtype)

    weight, bias = make(6, 5), make(6)
    for shape in ((5,), (8, 5), (8, 3, 5), (8, 3, 2, 5)):
        batch.case(f"{shape}", F.linear, make(*shape), weight, bias)
        batch.case(f"{shape} without bias", F.linear, make(*shape), weight)
        batch.case(f"{shape} with a vector", F.linear, make(*shape), make(5))
    batch.case(
        "transposed", lambda x, w, b: F.linear(x.mT, w.mT, b), make(8, 5, 3), make(5, 6), bias
    )
    batch.case("permuted", lambda x, w: F.linear(x.permute(1, 2, 0), w), make(8, 4, 3), make(5, 8))
    batch.case(
        "expanded", lambda x, w, b: F.linear(x.expand(3, 8, 5), w, b), make(8, 5), weight, bias
    )
    batch.case("bias of one", F.linear, make(8, 5), weight, make(1))
    batch.case("bias of rows", F.linear, make(8, 5), weight, make(8, 6))
    batch.case("no rows", F.linear, make(0, 5), weight, bias)
    batch.case("no rows of several", F.linear, make(2, 0, 5), weight, bias)
    batch.case("nothing to sum", F.linear, make(8, 0), make(6, 0), bias)
    batch.case("no results", F.linear, make(8, 5), make(0, 5), make(0))


class TestLinear:
    """A linear layer is one op: a product of matrices, whatever the rank of its input."""

    @pytest.mark.parametrize(
        "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.complex64]
    )
    def test_values_and_gradients(self, dtype):
        batch = Batch()
        layers(batch, dtype)
        batch.check()

    def test_strides_of_gradients(self):
        strides = []
        for device in ("cpu", DEVICE):
            x, weight = (
                torch.ones(shape).to(device).requires_grad_() for shape in ((8, 4, 3), (8, 6))
            )
            y = F.linear(x.permute(1, 2, 0), weight.T)
            strides.append(
                [g.stride() for g in torch.autograd.grad(y, [x, weight], torch.ones_like(y))]
            )
        assert strides[0] == strides[1]

    def test_a_product_of_matrices(self):
        x, weight, bias = (
            torch.ones(shape).to(DEVICE).requires_grad_() for shape in ((2, 3, 5), (6, 5), (6,))
        )
        y = F.linear(x, weight, bias)
        text = spmd.get_stablehlo(
            [y, *torch.autograd.grad(y, [x, weight, bias], torch.ones_like(y))]
        )
        products = [line for line in text.splitlines() if "dot_general" in line]
        assert len(products) == 3 and not any("batching_dims" in line for line in products)
        assert all(re.search(r"-> tensor<\d+x\d+xf32>", line) for line in products)

    @pytest.mark.parametrize(
        "spec", [("fsdp", None, None), (None, None, "fsdp")], ids=["batch", "contracted"]
    )
    def test_collectives(self, mesh8, spec):
        """As many as of torch's own composition, and the same numbers."""
        x, weight, bias, cotangent = (
            torch.randn(8, 2, 16),
            torch.randn(24, 16),
            torch.randn(24),
            torch.randn(8, 2, 24),
        )

        def composed(x, weight, bias):
            return torch.addmm(bias, x.view(16, 16), weight.t()).view(8, 2, 24)

        found = []
        for function in (F.linear, composed):
            inputs = [value.to(DEVICE).requires_grad_() for value in (x, weight, bias)]
            spmd.mark_sharding(inputs[0], mesh8, spec)
            spmd.mark_sharding(inputs[1], mesh8, (None, spec[2]))
            spmd.sync()
            y = function(*inputs)
            gradients = torch.autograd.grad(y, inputs, cotangent.to(DEVICE))
            spmd.sync()
            found.append((spmd.metrics.compiles()[-1].collectives, [y, *gradients]))
        assert found[0][0] == found[1][0]
        for one, other in zip(found[0][1], found[1][1], strict=True):
            check(one, other.detach().cpu())

    def test_errors(self):
        x = torch.ones(4, 5).to(DEVICE)
        for weight, message in (
            (torch.ones(6, 4), r"input \[4, 5\] has 5 features, weight \[6, 4\] expects 4"),
            (torch.ones(2, 6, 5), "2 dim"),
        ):
            with pytest.raises(RuntimeError, match=message):
                F.linear(x, weight.to(DEVICE))
        with pytest.raises(RuntimeError, match="expected all tensors on xla"):
            F.linear(x, torch.ones(6, 5))


class TestGrouped:
    """`grouped_mm`: rows, columns or the inner dim in groups whose ends are data, one of them
    empty."""

    @staticmethod
    def cases(batch: Batch) -> None:
        ends = torch.tensor([2, 2, 5, 8], dtype=torch.int32)
        product = torch.nn.functional.grouped_mm
        batch.case(
            "rows",
            lambda a, b, e: product(a, b, offs=e),
            torch.randn(8, 4),
            torch.randn(4, 4, 8),
            ends,
        )
        batch.case(
            "columns",
            lambda a, b, e: product(a, b, offs=e),
            torch.randn(4, 3, 4),
            torch.randn(4, 8),
            ends,
        )
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

    @pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
    def test_blocks_fit_a_core(self, dtype, monkeypatch):
        """The two buffers of each block and the sum, at Mixtral's and other sizes, leave room in 16
        MiB of VMEM."""
        asked = []

        def kernel(left, right, sizes, *, tiling, **options):
            asked.append((kernel.name, tiling))
            return jnp.zeros(kernel.result, jnp.float32)

        module = importlib.import_module("jax.experimental.pallas.ops.tpu.megablox.gmm")
        monkeypatch.setattr(grouped, "_has_kernel", lambda *_: True)
        monkeypatch.setattr(module, "gmm", kernel)
        monkeypatch.setattr(module, "tgmm", kernel)
        sizes = jax.ShapeDtypeStruct((8,), jnp.int32)
        for inner, outer in ((4096, 28672), (14336, 4096), (1024, 1024), (384, 4096), (200, 72)):
            rows, weights, columns = (
                jax.ShapeDtypeStruct(shape, dtype)
                for shape in ((2048, inner), (8, inner, outer), (2048, outer))
            )
            kernel.name, kernel.result = "gmm", (2048, outer)
            jax.eval_shape(
                partial(grouped.of_rows, dtype=dtype, computed=2048), rows, weights, sizes
            )
            kernel.name, kernel.result = "tgmm", (8, inner, outer)
            turned = jax.ShapeDtypeStruct((inner, 2048), dtype)
            jax.eval_shape(
                partial(grouped.of_groups, dtype=dtype, computed=2048), turned, columns, sizes
            )
        for name, (rows, inner, outer) in asked:
            right, result = rows * outer, inner * outer
            if name == "gmm":
                right, result = result, right
            left = rows * inner
            taken = 2 * (left + right) * jnp.dtype(dtype).itemsize + 3 * 4 * result
            assert taken <= 15 << 20 and not (inner % 128 or outer % 128), (
                name,
                rows,
                inner,
                outer,
                taken,
            )
        assert len(asked) == 10

    @pytest.mark.parametrize("name", ["gmm", "tgmm"])
    def test_rows_that_are_computed(self, name, monkeypatch):
        """The rows in the scope, which plans count, are those of the blocks that the kernel visits:
        a block once for each group that it has rows of, none behind the last group."""
        # each end but the last is inside of a block of 512
        sizes = np.array([700, 300, 1500, 36, 512, 1048])
        total = sizes.sum()
        starts = np.cumsum(sizes) - sizes
        visits = sum(
            -(-(start + size) // 512) - start // 512
            for start, size in zip(starts, sizes, strict=True)
        )
        operands = [(total, 128), (6, 128, 256)] if name == "gmm" else [(128, total), (total, 256)]
        arrays = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in operands]
        monkeypatch.setattr(grouped, "_has_kernel", lambda *_: True)
        product = grouped.rows_by_group if name == "gmm" else grouped.groups_of_rows
        ends = jax.ShapeDtypeStruct((6,), jnp.int32)
        lowered = jax.jit(product).trace(*arrays, ends).lower(lowering_platforms=("tpu",))
        assert f"rows={visits * 512}/" in lowered.as_text(debug_info=True)

    def test_kernels_compute_columns_too(self, monkeypatch):
        monkeypatch.setattr(grouped, "INTERPRET", True)
        batch = Batch()
        self.cases(batch)
        batch.check()


class TestSharded:
    """Rows, batches and contracted dims over eight devices."""

    def test_partitioned(self, mesh8):
        batch = Batch(mesh=mesh8, axis="fsdp")
        products(batch, torch.float32)
        batch.case("contracted", torch.mm, torch.randn(3, 8), torch.randn(8, 4))
        layers(batch, torch.float32)
        batch.check()

    @pytest.mark.parametrize("is_added", [False, True])
    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    def test_batch_over_the_axis_of_the_sum(
        self, partitioner: str, is_added: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """XLA takes the wrong parts where the result's batch has the summed dim's axis, and its
        columns the batch's."""
        monkeypatch.setattr(spmd.config, "partitioner", partitioner)
        grid = spmd.Mesh(range(8), (2, 4), ("a", "b"))
        data = torch.randn(4, 8, 16)
        x = spmd.mark_sharding(data.to(DEVICE), grid, ("b", None, "a"))
        product = torch.baddbmm(x[:, :, :8], x, x.mT) if is_added else torch.bmm(x, x.mT)
        expected = data @ data.mT + (data[:, :, :8] if is_added else 0)
        result = spmd.mark_sharding(product, grid, ("a", None, "b"))
        torch.testing.assert_close(result.cpu(), expected)

    @pytest.mark.xfail(
        reason="XLA mixes up the rows of two devices (docs/decisions/copies-in-sums.md)",
        strict=True,
    )
    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    def test_uneven_rows_on_three_axes(
        self, partitioner: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(spmd.config, "partitioner", partitioner)
        grid = spmd.Mesh(range(8), (2, 2, 2), ("a", "b", "c"))
        rows, weight = torch.randn(6, 3), torch.randn(3, 3)
        x = spmd.mark_sharding(rows.to(DEVICE), grid, (("a", "b"), None))
        w = spmd.mark_sharding(weight.to(DEVICE), grid, ("c", "b"))
        torch.testing.assert_close((x @ w + x @ w.T).cpu(), rows @ weight + rows @ weight.T)


class TestSequenceParallel:
    """Hidden units over the axis that splits residuals by rows (arXiv:2205.05198): the gradient is
    gathered."""

    def test_numbers(self, mesh2x4):
        data, tensor = mesh2x4.axis_names
        twins = [torch.randint(-4, 5, shape) / 8 for shape in ((2, 8, 16), (32, 16), (16, 32))]
        leaves = [twin.to("xla").requires_grad_() for twin in twins]
        for leaf, spec in zip(
            leaves, ((data, tensor, None), (tensor, None), (None, tensor)), strict=True
        ):
            spmd.mark_sharding(leaf, mesh2x4, spec)
        x, up, down = leaves
        entered = spmd.mark_sharding(x * 1, mesh2x4, (data, None, None))
        left = spmd.mark_sharding(
            F.linear(F.relu(F.linear(entered, up)), down), mesh2x4, (data, tensor, None)
        )
        left.square().sum().backward()
        cpu = [twin.requires_grad_() for twin in twins]
        F.linear(F.relu(F.linear(cpu[0], cpu[1])), cpu[2]).square().sum().backward()
        for one, other in zip(leaves, cpu, strict=True):
            check(one.grad, other.grad)

    @pytest.mark.parametrize(
        ("features", "gradient", "placed"),
        [
            (("data", None, "tensor"), ("data", "tensor", None), [("data", None, None)]),
            (("data", None, "tensor"), (("data", "tensor"), None, None), [("data", None, None)]),
            (("data", None, "tensor"), ("data", None, None), []),
            (("data", "tensor", None), ("data", "tensor", None), []),
            (("data", None, None), ("data", None, "tensor"), [("data", None, None)]),
            (("data", "tensor", None), ("data", None, "tensor"), []),
        ],
    )
    def test_what_is_placed(self, features, gradient, placed):
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("data", "tensor"))
        shardings = [jax.NamedSharding(mesh, jax.P(*spec)) for spec in (features, gradient)]

        def backward(x, grad, weight):
            with known((x, grad), shardings):
                return matmul.aten_linear_backward(
                    x, grad, weight, (True, True, False), returns=(x, weight, None)
                )[:2]

        traced = jax.make_jaxpr(backward)(
            jnp.ones((8, 8, 16)), jnp.ones((8, 8, 4)), jnp.ones((4, 16))
        )
        found = [
            line.params["sharding"].spec
            for line in traced.eqns
            if line.primitive.name == "sharding_constraint"
        ]
        assert found == [jax.P(*spec) for spec in placed]


class TestScaled:
    """`_scaled_mm`: eight-bit floats with scales, of any sizes, against the same product in
    float64."""

    DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz)
    product = staticmethod(on_cpu(scaled_mm, torch._scaled_mm))

    @classmethod
    def cases(cls, batch: Batch) -> None:
        rows, columns = torch.rand(8, 1) + 0.5, torch.rand(1, 7) + 0.5
        for left in cls.DTYPES:
            for right in cls.DTYPES:
                a, b = torch.randn(8, 5).to(left), torch.randn(7, 5).to(right).t()
                for out in (torch.float32, torch.bfloat16):
                    for scales in ((torch.tensor(0.5), torch.tensor([[3.0]])), (rows, columns)):
                        run = partial(cls.product, out_dtype=out)
                        batch.case(f"{left} {right} {out}", run, a, b, *scales, gradient=False)
                run = partial(cls.product, out_dtype=torch.float32)
                batch.case(
                    f"{left} {right} bias", run, a, b, rows, columns, torch.randn(7), gradient=False
                )

    def test_values(self):
        batch = Batch()
        self.cases(batch)
        batch.check()

    def test_partitioned(self, mesh8):
        batch = Batch(mesh=mesh8, axis="fsdp")
        self.cases(batch)
        batch.check()

    def test_eight_bit_results(self):
        """Rounded once, at the end; a scale of the result divides it where torch takes one."""
        a, b = ((torch.randint(-4, 5, (8, 16)) / 2).to(self.DTYPES[0]) for _ in "ab")
        scales = torch.tensor(0.5), torch.tensor(60.0)
        for out in (None, *self.DTYPES):
            for scale in (None, torch.tensor(0.25)) if out else (None,):
                expected = scaled_mm(a, b.t(), *scales, scale_result=scale, out_dtype=out)
                x, y, *others = (
                    None if given is None else given.to("xla") for given in (a, b, *scales, scale)
                )
                actual = torch._scaled_mm(
                    x, y.t(), *others[:2], scale_result=others[2], out_dtype=out
                )
                assert actual.dtype == expected.dtype
                assert torch.equal(actual.cpu().view(torch.uint8), expected.view(torch.uint8)), (
                    out,
                    scale,
                )

    @pytest.mark.parametrize("dtype", STOPS, ids=str)
    def test_overflow(self, dtype):
        """As on CUDA: past the largest number the result stays there; NaN stays NaN."""
        x = torch.tensor([[1.0, 0.0], [torch.nan, 1.0]]).to(dtype).to(DEVICE)
        large, limit = torch.tensor(1e30, device=DEVICE), torch.finfo(dtype).max
        found = torch._scaled_mm(x, x.t(), large, -large, out_dtype=dtype).cpu().float()
        assert found[0, 0] == -limit and found[1].isnan().all()
        assert (
            torch._scaled_mm(x, x.t(), large, large, out_dtype=dtype).cpu().float()[0, 0] == limit
        )

    def test_second_form(self, mesh8):
        """`nn.functional.scaled_mm`, which names how its scales lie."""
        product, Scaling = torch.nn.functional.scaled_mm, torch.nn.functional.ScalingType
        scales = {
            Scaling.TensorWise: (torch.rand(1), torch.rand(1)),
            Scaling.RowWise: (torch.rand(8, 1), torch.rand(1, 7)),
        }
        batch = Batch(mesh=mesh8, axis="fsdp")
        for recipe, given in scales.items():

            def run(a, b, s, t, recipe=recipe):
                if a.is_cpu:
                    return scaled_mm(a, b, s, t, out_dtype=torch.float32)
                return product(a, b, s, recipe, t, recipe, output_dtype=torch.float32)

            a, b = torch.randn(8, 5).to(self.DTYPES[0]), torch.randn(7, 5).to(self.DTYPES[1]).t()
            batch.case(str(recipe), run, a, b, *given, gradient=False)
        batch.check()
        a = torch.ones(32, 32, device="xla").to(self.DTYPES[0])
        blocks = torch.ones(32, 1, device="xla").to(torch.float8_e8m0fnu)
        with pytest.raises(NotImplementedError, match="scales are one a matrix"):
            product(a, a, blocks, Scaling.BlockWise1x32, blocks, Scaling.BlockWise1x32).cpu()

    def test_errors(self):
        a = torch.ones(4, 4, device="xla").to(torch.float8_e4m3fn)
        one = torch.ones((), device="xla")
        with pytest.raises(
            RuntimeError, match=r"expected two matrices of eight-bit floats, got torch\.float32"
        ):
            torch._scaled_mm(a.float(), a, one, one)
        with pytest.raises(
            RuntimeError, match=r"one a column of the second, got \(4,\) torch.float32"
        ):
            torch._scaled_mm(a, a, torch.ones(4, device="xla"), one)

    def test_products_without_scales(self):
        """They, too, accumulate in float32; rounding past the largest number is that of `to`."""
        x = (torch.arange(-8.0, 8.0).reshape(4, 4) * 16).to(torch.float8_e4m3fn)
        found, expected = (x.to("xla") @ x.to("xla")).cpu(), (x.float() @ x.float()).to(x.dtype)
        assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


class TestFilled:
    """Products with a matrix that one number fills, and what is fused with them."""

    def test_against_cpu(self) -> None:
        torch.manual_seed(0)
        batch = Batch()
        for rows, inner, columns in ((64, 64, 64), (256, 128, 512)):
            x = torch.rand(rows, inner)
            for name, read in {
                "max": lambda y: y.amax(-1),
                "sums": lambda y: (y * y).mean(0),
                "softmax": lambda y: y.softmax(-1),
            }.items():
                batch.case(
                    f"{rows} {inner} {columns} {name}",
                    lambda x, read=read, n=columns: read(
                        x @ torch.full((x.shape[1], n), 1 / 32, device=x.device)
                    ),
                    x,
                    gradient=False,  # which reads the product, too: another fusion
                )
        batch.check()

    def test_norm_of_the_gradient_of_a_sum(self) -> None:
        a, b = torch.rand(64, 96), torch.rand(96, 80)
        norms = []
        for device in ("cpu", "xla"):
            ours = [value.clone().to(device).requires_grad_() for value in (a, b)]
            (ours[0] @ ours[1]).sum().backward()
            norms.append(torch.nn.utils.clip_grad_norm_(ours, 1.0))
        check(norms[1], norms[0])
