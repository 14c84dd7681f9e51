"""`spmd.kernel`: a JAX function of shards gives one device's values and gradients, and is computed
shard by shard."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.experimental import pallas as pl
from torch import Tensor

import fsdp
import spmd
from spmd import P

pytestmark = pytest.mark.partitioned("a kernel of shards")


def scaled(x: Any, w: Any) -> Any:
    """Rows divided by their largest element, times a weight that all rows share; and the sums of
    the rows."""
    y = x / jnp.abs(x).max(-1, keepdims=True) * w
    return y, y.sum((0, 1))


def plain(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = x / x.abs().amax(-1, keepdim=True) * w
    return y, y.sum((0, 1))


@pytest.fixture
def mesh() -> spmd.Mesh:
    return spmd.Mesh(range(8), (2, 4), ("data", "context"))


class TestNumbers:
    """A result without a sharded dim is the sum of all devices, an operand without one has summed
    gradients."""

    @pytest.mark.parametrize(
        "spec", [("data", "context", None), (None, ("data", "context"), None), (None, None, "data")]
    )
    def test_values_and_gradients(self, spec: tuple[Any, ...], mesh: spmd.Mesh) -> None:
        shapes: list[tuple[int, ...]] = []

        def noted(x: Any, w: Any) -> Any:
            shapes.append(x.shape)
            return scaled(x, w)

        own = spmd.kernel(noted, "b s d, d -> b s d, d", sharded="b s")
        x, w = torch.randn(2, 16, 8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
        leaves = [t.clone().requires_grad_() for t in (x, w)]
        ours = [t.to("xla").requires_grad_() for t in (x, w)]
        spmd.mark_sharding(ours[0], mesh, P(*spec))
        for results in (plain(*leaves), own(*ours)):
            sum((r.double() * (i + 1)).sin().sum() for i, r in enumerate(results)).backward()
        torch.testing.assert_close(
            [t.grad.cpu() for t in ours], [t.grad for t in leaves], rtol=1e-12, atol=1e-12
        )
        torch.testing.assert_close(
            [t.cpu() for t in own(*ours)], [*plain(x, w)], rtol=1e-12, atol=1e-12
        )
        sizes = {"data": 2, "context": 4}
        parts = [
            1 if a is None or i == 2 else sizes[a] if isinstance(a, str) else 8
            for i, a in enumerate(spec)
        ]
        assert (2 // parts[0], 16 // parts[1], 8) in shapes

    def test_a_given_backward(self, mesh: spmd.Mesh) -> None:
        calls: list[tuple[int, ...]] = []

        def backward(x: Any, w: Any, grad: Any) -> Any:
            calls.append(x.shape)
            return grad * w, (grad * x).sum((0, 1))

        own = spmd.kernel(lambda x, w: x * w, "b s d, d -> b s d", sharded="b s", backward=backward)
        x, w = torch.randn(2, 16, 8), torch.randn(8)
        leaves = [t.clone().requires_grad_() for t in (x, w)]
        ours = [t.to("xla").requires_grad_() for t in (x, w)]
        spmd.mark_sharding(ours[0], mesh, P("data", "context", None))
        (leaves[0] * leaves[1]).sin().sum().backward()
        own(*ours).sin().sum().backward()
        torch.testing.assert_close([t.grad.cpu() for t in ours], [t.grad for t in leaves])
        assert (1, 4, 8) in calls

    def test_pallas_in_scanned_layers(
        self, mesh: spmd.Mesh, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A Pallas kernel, interpreted, in eight layers under FSDP: one loop, of shards."""

        def body(x: Any, y: Any) -> None:
            y[...] = jnp.tanh(x[...])

        def tanh(x: Any) -> Any:
            return pl.pallas_call(
                body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True
            )(x)

        own = spmd.kernel(
            tanh,
            "b s d -> b s d",
            sharded="b s",
            backward=lambda x, grad: (grad * (1 - tanh(x) ** 2),),
        )

        class Layer(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = torch.nn.Linear(8, 8)

            def forward(self, x: Tensor) -> Tensor:
                x = self.inner(x)
                return x + (own(x) if x.device.type == "xla" else x.tanh())

        model, x = (
            torch.nn.Sequential(*(Layer() for _ in range(8))).double(),
            torch.randn(4, 8, 8).double(),
        )
        model(x).square().sum().backward()
        expected = [p.grad for p in model.parameters()]
        model.zero_grad()
        policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Layer})
        wrapped = fsdp.FullyShardedDataParallel(
            model.to("xla"), mesh, shard_axis="data", auto_wrap_policy=policy
        )
        monkeypatch.setattr(spmd.config, "scan_layers", "always")
        tokens = spmd.mark_sharding(x.to("xla"), mesh, P("data", "context", None))
        wrapped(tokens).square().sum().backward()
        text = spmd.get_stablehlo([p.grad for p in wrapped.parameters()])
        assert "stablehlo.while" in text and "tensor<2x2x8xf64>" in text
        found = [p.grad.cpu() for p in wrapped.parameters()]
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


class TestMistakes:
    """What cannot be computed is said at once."""

    def test_words(self) -> None:
        with pytest.raises(ValueError, match="expected words as"):
            spmd.kernel(jnp.tanh, "b s", sharded="b")
        with pytest.raises(ValueError, match="'t' of sharded is no dim of an operand"):
            spmd.kernel(jnp.tanh, "b s -> b s", sharded="b t")

    def test_operands(self) -> None:
        own = spmd.kernel(jnp.tanh, "b s -> b s", sharded="b")
        with pytest.raises(ValueError, match=r"expected operands of 'b s', got shapes \(3,\)"):
            own(torch.ones(3, device="xla"))
        with pytest.raises(TypeError, match="kernel: expected a tensor on xla, got one on cpu"):
            own(torch.ones(3, 3))

    def test_a_gathered_dim_is_a_finding(self, mesh: spmd.Mesh) -> None:
        own = spmd.kernel(jnp.sort, "b s -> b s", sharded="b")
        x = torch.empty(2, 16, device="meta")

        def step(x: Tensor) -> Tensor:
            return own(spmd.mark_sharding(x, mesh, P("data", "context")))

        plan = spmd.plan(step, x)
        assert [f for f in plan.findings if "kernel sort gathers dim 's' over context" in str(f)], (
            plan.findings
        )
