"""`call_jax` and `register_lowering`: JAX functions of users in the graph, with gradients, and
rules of their ops."""

import functools

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.experimental import pallas
from support import check
from torch import nn

import fsdp
import spmd


def attention(q, k, v, *, scale):
    return jax.nn.softmax(q @ k.T * scale) @ v


def torch_attention(q, k, v, *, scale):
    return torch.softmax(q @ k.T * scale, -1) @ v


def gradients(function, *args, **static):
    made = function(*args, **static)
    return made, torch.autograd.grad(made.sum() * 2, args)


class TestValuesAndGradients:
    """As the same function in torch on CPU."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
    def test_against_torch(self, dtype):
        args = [torch.randn(4, 6, dtype=dtype, requires_grad=True) for _ in range(3)]
        ours = [a.detach().to("xla").requires_grad_() for a in args]
        made, grads = gradients(lambda *a, **s: spmd.call_jax(attention, *a, **s), *ours, scale=0.3)
        expected, expected_grads = gradients(torch_attention, *args, scale=0.3)
        assert made.dtype == dtype
        check(made, expected)
        for one, other in zip(grads, expected_grads, strict=True):
            check(one, other)

    def test_second_order(self):
        x = torch.randn(5)
        ours = x.to("xla").requires_grad_()
        (first,) = torch.autograd.grad(spmd.call_jax(jnp.sin, ours).sum(), ours, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), ours)
        check(second, -x.sin())

    def test_several_results_integers_and_bools(self):
        def top(x, k):
            values, indices = jax.lax.top_k(x, 2)
            return {"values": values, "more": [indices, values > k], "none": None}

        x, k = torch.randn(3, 7), torch.tensor([0, 1, 2])[:, None]
        ours = x.to("xla").requires_grad_()
        made = spmd.call_jax(top, ours, k.to("xla"))
        values, indices = x.topk(2)
        check(made["values"], values)
        assert made["more"][0].tolist() == indices.tolist() and not made["more"][0].requires_grad
        assert made["more"][1].tolist() == (values > k).tolist() and made["none"] is None
        made["values"].sum().backward()
        assert ours.grad.sum().item() == 6

    def test_only_some_need_gradients(self):
        x, w = torch.randn(3).to("xla"), torch.randn(3).to("xla").requires_grad_()
        spmd.call_jax(lambda x, w: x * w, x, w).sum().backward()
        check(w.grad, x.cpu())
        assert x.grad is None and not spmd.call_jax(jnp.sin, x).requires_grad
        with torch.no_grad():
            assert not spmd.call_jax(jnp.sin, w).requires_grad

    def test_pytrees_and_static_positions(self):
        def fn(tree, power, *, shift):
            return {"out": tree["a"] ** power + tree["b"][0] + shift}

        a, b = torch.randn(3), torch.randn(3)
        made = spmd.call_jax(fn, {"a": a.to("xla"), "b": [b.to("xla"), None]}, 2, shift=1)
        check(made["out"], a**2 + b + 1)
        check(
            spmd.call_jax(fn, {"a": a.to("xla"), "b": [b.to("xla"), None]}, 3, shift=1)["out"],
            a**3 + b + 1,
        )

    def test_views_and_writes(self):
        x = torch.arange(6.0).to("xla")
        view = x.view(2, 3)[1]
        first = spmd.call_jax(jnp.cumsum, view)
        x.add_(1)
        assert first.tolist() == [3, 7, 12]
        assert spmd.call_jax(jnp.cumsum, view).add_(1).tolist() == [5, 10, 16]

    def test_jax_defaults_stay_32_bit(self):
        made = spmd.call_jax(
            lambda x: x + jnp.zeros(3) * jnp.linspace(0, 1, 3), torch.ones(3).to("xla")
        )
        assert made.dtype == torch.float32
        assert spmd.call_jax(lambda x: x * 2, torch.arange(3).to("xla")).dtype == torch.int64
        assert jnp.zeros(3).dtype == jnp.float32

    def test_custom_vjp_and_scan(self):
        @jax.custom_vjp
        def clipped(x):
            return x * 3

        clipped.defvjp(lambda x: (x * 3, None), lambda _, g: (jnp.clip(g, -1, 1),))

        def loop(x):
            return jax.lax.scan(
                lambda carry, row: (jnp.tanh(carry + row), carry), jnp.zeros_like(x[0]), x
            )[0]

        x = torch.randn(4, 3)
        ours = x.to("xla").requires_grad_()
        (spmd.call_jax(clipped, ours) * 10).sum().backward()
        assert ours.grad.tolist() == [[1.0] * 3] * 4
        carry = torch.zeros(3)
        for row in x:
            carry = torch.tanh(carry + row)
        check(spmd.call_jax(loop, ours), carry)

    def test_pallas_in_interpret_mode(self):
        def double(x_ref, o_ref):
            o_ref[...] = x_ref[...] * 2

        def kernel(x):
            return pallas.pallas_call(
                double, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True
            )(x)

        x = torch.randn(8, 8)
        check(spmd.call_jax(kernel, x.to("xla")), x * 2)


class TestGraph:
    """One recorded op, compiled once, on a mesh as on one device."""

    def test_second_call_compiles_nothing(self):
        x = torch.randn(4, 6).to("xla").requires_grad_()
        compiled = []
        for _ in range(3):
            spmd.call_jax(attention, x, x, x, scale=0.5).sum().backward()
            spmd.sync()
            x.grad = None
            compiled.append(spmd.metrics.num_compiles())
        assert compiled[1] == compiled[2]

    def test_recorded_until_a_barrier(self):
        runs = spmd.metrics.counter("runs")
        y = spmd.call_jax(jnp.sin, torch.randn(3).to("xla")) + 1
        assert spmd.metrics.counter("runs") == runs
        assert "stablehlo.sine" in spmd.get_stablehlo([y])

    def test_sharded(self, mesh8):
        args = [torch.randn(8, 8, requires_grad=True) for _ in range(3)]
        ours = [
            spmd.mark_sharding(a.detach().to("xla").requires_grad_(), mesh8, ("fsdp", None))
            for a in args
        ]
        made, grads = gradients(lambda *a, **s: spmd.call_jax(attention, *a, **s), *ours, scale=0.3)
        expected, expected_grads = gradients(torch_attention, *args, scale=0.3)
        check(made, expected)
        for one, other in zip(grads, expected_grads, strict=True):
            check(one, other)

    def test_under_fsdp(self, mesh8):
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.linspace(-1, 1, 64).view(8, 8))

            def forward(self, x):
                if self.weight.device.type == "cpu":
                    return torch.tanh(x @ self.weight)
                return spmd.call_jax(lambda_free, x, self.weight)

        reference = Model()
        model = fsdp.FullyShardedDataParallel(Model().to("xla"), mesh8)
        x = torch.randn(8, 8)
        for _ in range(2):
            reference(x).pow(2).sum().backward()
            model(x.to("xla")).pow(2).sum().backward()
        check(next(model.parameters()).grad, reference.weight.grad)

    def test_eager(self):
        with spmd.eager():
            y = spmd.call_jax(jnp.sin, torch.zeros(3).to("xla"))
            assert spmd.residence(y) == "devices"

    def test_the_guard_names_it(self):
        with (
            pytest.raises(
                FloatingPointError, match=r"spmd.call_jax.log\(float32\[2\]\).*test_call_jax.py"
            ),
            spmd.nan_guard(),
        ):
            _y = spmd.call_jax(jnp.log, torch.tensor([-1.0, 1.0]).to("xla"))


def lambda_free(x, weight):
    return jnp.tanh(x @ weight)


class TestBadInput:
    """A clear error before anything is recorded."""

    def test_refused(self):
        x = torch.ones(2).to("xla")
        with pytest.raises(TypeError, match=r"expected a tensor on xla, got one on cpu"):
            spmd.call_jax(jnp.sin, torch.ones(2))
        with pytest.raises(TypeError, match=r"weights holds a tensor; pass tensors by position"):
            spmd.call_jax(lambda x, weights: x, x, weights=x)
        with pytest.raises(TypeError, match=r"table is a list, which cannot be hashed"):
            spmd.call_jax(lambda x, table: x, x, table=[1])
        with pytest.raises(TypeError, match=r"returns no array"):
            spmd.call_jax(lambda x: None, x)
        with pytest.raises(TypeError, match=r"incompatible shapes"):
            spmd.call_jax(jnp.add, x, torch.ones(3).to("xla"))
        assert (x + 1).tolist() == [2, 2]


@functools.cache
def library():
    """Custom ops of a user, registered once in a process."""

    @torch.library.custom_op("spmdtest::scale", mutates_args=())
    def scale(x: torch.Tensor, factor: float, times: int = 1) -> torch.Tensor:
        return torch.from_numpy(x.numpy() * factor * times)

    scale.register_fake(lambda x, factor, times=1: torch.empty_like(x))
    scale.register_autograd(
        lambda ctx, g: (scale(g, ctx.factor, ctx.times), None, None),
        setup_context=lambda ctx, inputs, output: (
            setattr(ctx, "factor", inputs[1]),
            setattr(ctx, "times", inputs[2]),
        )[0],
    )

    @torch.library.custom_op("spmdtest::bump", mutates_args=("x",))
    def bump(x: torch.Tensor) -> None:
        x.add_(1)

    torch.library.define("spmdtest::bare", "(Tensor x) -> Tensor")
    torch.library.impl("spmdtest::bare", "cpu", lambda x: x.flip(0))
    torch.library.register_fake("spmdtest::bare", torch.empty_like)
    return torch.ops.spmdtest


class TestRegisterLowering:
    """A rule for an op of others: checked against the schema, differentiable, and no second one."""

    def test_before_during_and_after(self, mesh8):
        ops = library()
        x = torch.randn(8, 2)
        ours = spmd.mark_sharding(x.to("xla").requires_grad_(), mesh8, ("fsdp", None))
        with pytest.raises(
            NotImplementedError,
            match=r"spmdtest.bare.default has no lowering rule.*spmd.register_lowering",
        ):
            ops.bare(ours)
        with pytest.raises(ValueError, match=r"do not match the schema of spmdtest.scale.default"):
            spmd.register_lowering(ops.scale.default, lambda x, factor: x)
        with pytest.raises(TypeError, match=r"expected an overload such as"):
            spmd.register_lowering(ops.scale, lambda x, factor, times: x)
        with pytest.raises(ValueError, match=r"writes into its arguments"):
            spmd.register_lowering(ops.bump.default, lambda x: x + 1)

        @spmd.register_lowering(ops.scale.default)
        def scale(x, factor, times):
            return x * factor * times

        spmd.register_lowering(ops.bare.default, lambda x: jnp.flip(x, 0))
        with pytest.raises(ValueError, match=r"has two rules: .*test_call_jax.py"):
            spmd.register_lowering(ops.scale.default, scale)
        made = ops.scale(ours, 0.5, 3)
        check(made, x * 1.5)
        made.sum().backward()
        check(ours.grad, torch.full((8, 2), 1.5))
        check(ops.bare(ours), x.flip(0))

    def test_names_of_torchs_ops(self) -> None:
        """The tables of torch's fills and scalar arguments are of torch's ops alone."""
        torch.library.define("spmdnames::zeros_like", "(Tensor x) -> Tensor")
        torch.library.define("spmdnames::clamp", "(Tensor x, float min) -> Tensor")
        for name, rule in (
            ("zeros_like", lambda x: x + 7),
            ("clamp", lambda x, min: x - min if min > 0 else x),
        ):
            torch.library.register_fake(f"spmdnames::{name}", lambda x, *_: torch.empty_like(x))
            spmd.register_lowering(getattr(torch.ops.spmdnames, name).default, rule)
        x = torch.ones(2, device="xla")
        check(torch.ops.spmdnames.zeros_like(x), torch.full((2,), 8.0))
        check(torch.ops.spmdnames.clamp(x, 3.0), torch.full((2,), -2.0))
