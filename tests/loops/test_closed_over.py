"""Bodies that close over a tensor and a function of it: each part of the gradient counts once,
whatever the op."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support import check
from torch import nn

import spmd
from spmd import P


def data(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) / 2


def written_view(x: torch.Tensor) -> torch.Tensor:
    base = x * 2
    view = base.t()
    base.mul_(x)
    return view


# Functions of x; the body closes over x and the result.
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "x+1": lambda x: x + 1,
    "sin": torch.sin,
    "view": lambda x: x.t(),
    "view of another": lambda x: x.sin()[::2].repeat(2, 1).t(),
    "written view": written_view,
    "tuple element": lambda x: torch.stack([x, x.cos()]).unbind(0)[1],
}


def iteration(x: Any, y: Any) -> Callable[[Any, Any], Any]:
    return lambda c, r: (torch.tanh(c @ x + y * r), (c * y).sum(0) + y.T[0] + x.mT[1])


def scan(x: Any, y: Any, c: Any, rows: Any) -> Any:
    return spmd.scan(iteration(x, y), c, rows)


def cond(x: Any, y: Any, c: Any, rows: Any) -> Any:
    return [spmd.cond(p, lambda: x * y, lambda: x + y * c) for p in (c.sum() > -100, c.sum() > 100)]


def branch_returns_it(x: Any, y: Any, c: Any, rows: Any) -> Any:
    return [
        spmd.cond(p, lambda c: y, lambda c: c * x, (c,)) for p in (c.sum() > -100, c.sum() > 100)
    ]


def scan_in_scan(x: Any, y: Any, c: Any, rows: Any) -> Any:
    def outer(c: Any, r: Any) -> Any:
        z = y * r  # computed in the outer body of a tensor from outside
        c, ys = spmd.scan(lambda c, r: iteration(x, y)(c * z + z.view(4, 4), r), c, rows)
        return c + y, ys

    return spmd.scan(outer, c, rows)


def scan_of_it_in_scan(x: Any, y: Any, c: Any, rows: Any) -> Any:
    """As carry and as xs, which no function of torch shows to the outer body."""

    def outer(c: Any, r: Any) -> Any:
        return c * x + spmd.scan(lambda c, r: (c.tanh() + r, None), y, y[:, None] * x[0])[0], None

    return spmd.scan(outer, c, rows)[0]


def cond_in_scan(x: Any, y: Any, c: Any, rows: Any) -> Any:
    def body(c: Any, r: Any) -> Any:
        return spmd.cond(r.sum() > 0, lambda c: c * x + y, lambda c: (c - y) @ x, (c,)), c.sum()

    return spmd.scan(body, c, rows)


def scan_in_cond(x: Any, y: Any, c: Any, rows: Any) -> Any:
    return spmd.cond(c.sum() > -100, lambda c: scan(x, y, c, rows)[0] * y, lambda c: x * y, (c,))


def scan_layers(x: Any, y: Any, c: Any, rows: Any) -> Any:
    class Layer(nn.Module):
        def __init__(self, weight: Any):
            super().__init__()
            self.weight = nn.Parameter(weight)

        def forward(self, c: Any) -> Any:
            return torch.tanh(c @ self.weight + c * x + y)

    return spmd.scan_layers([Layer(data(4, 4, seed=i).to(x.device)) for i in range(3)], c)


def own_gradient(x: Any, y: Any, c: Any, rows: Any) -> Any:
    """The body takes gradients itself, through the graph outside."""

    def body(c: Any, r: Any) -> Any:
        loss = (c.detach() * y.sin() * r + x).sum()
        to_x, to_y = torch.autograd.grad(loss, [x, y], retain_graph=True)
        return c * to_x + to_y * y, None

    return spmd.scan(body, c, rows)[0]


class Product(torch.autograd.Function):
    """A function that torch's modes do not see."""

    @staticmethod
    def forward(ctx: Any, one: Any, other: Any) -> Any:
        ctx.save_for_backward(one, other)
        return one * other

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        one, other = ctx.saved_tensors
        return gradient * other, gradient * one


def custom_function(x: Any, y: Any, c: Any, rows: Any) -> Any:
    return spmd.scan(lambda c, r: (Product.apply(c, y) + Product.apply(x, y) * r, None), c, rows)[0]


OPS = [
    scan,
    cond,
    branch_returns_it,
    scan_in_scan,
    scan_of_it_in_scan,
    cond_in_scan,
    scan_in_cond,
    scan_layers,
    own_gradient,
    custom_function,
]


def results(
    op: Callable[..., Any],
    function: Callable[..., Any],
    device: str,
    mesh: Any = None,
    dtype: Any = torch.float32,
) -> list[Any]:
    """Returns the results of an op and the gradients of all that it reads."""
    x, c = (data(4, 4, seed=seed).to(device, dtype).requires_grad_() for seed in (1, 2))
    rows = data(3, 4, seed=3).to(device, dtype).requires_grad_()
    if mesh is not None:
        spmd.mark_sharding(x, mesh, ("fsdp", None))
        spmd.mark_sharding(c, mesh, (None, "fsdp"))
    y = function(x)
    calls: list[torch.Tensor] = []
    # torch fails at the former, on any device
    is_hooked = function is not written_view and op is not own_gradient
    if is_hooked:
        y.register_hook(calls.append)
    x.register_hook(lambda gradient: gradient * 2)
    made = op(x, y, c, rows)
    made = [
        each for each in (made if isinstance(made, (list, tuple)) else [made]) if each is not None
    ]
    sum(each.square().sum() for each in made).backward()
    assert len(calls) == is_hooked
    return [*made, *(each.grad for each in (x, c, rows) if each.grad is not None), *calls]


def same(ours: list[Any], expected: list[Any]) -> None:
    for one, other in zip(ours, expected, strict=False):
        check(one, other)
    assert len(ours) >= len(expected)


class TestOnce:
    """Values, gradients and hooks are those of the plain loop."""

    @pytest.mark.parametrize("name", FUNCTIONS)
    @pytest.mark.parametrize("op", OPS)
    def test_each(self, op: Callable[..., Any], name: str) -> None:
        same(results(op, FUNCTIONS[name], "xla"), results(op, FUNCTIONS[name], "cpu"))

    def test_sharded(self, mesh2x4: spmd.Mesh) -> None:
        same(results(scan, torch.sin, "xla", mesh2x4), results(scan, torch.sin, "cpu"))

    def test_a_weight_of_the_first_layer_and_its_transpose(self) -> None:
        grads = []
        for device in ("xla", "cpu"):
            layers = [nn.Linear(4, 4, bias=False) for _ in range(3)]
            for i, layer in enumerate(layers):
                layer.weight.data = data(4, 4, seed=i)
                layer.to(device)
            transposed = layers[0].weight.t()
            x = data(2, 4, seed=9).to(device)
            spmd.scan(lambda c, r, layers=layers, t=transposed: (layers[0](c) @ t * r, None), x, x)[
                0
            ].sum().backward()
            grads.append(layers[0].weight.grad)
        check(*grads)

    def test_again_with_retain_graph_and_not_without(self) -> None:
        x = data(4, 4).to("xla").requires_grad_()
        loss = scan(x, x.sin(), data(4, 4).to("xla"), data(3, 4).to("xla"))[0].sum()
        loss.backward(retain_graph=True)
        first = x.grad.clone()
        loss.backward()
        check(x.grad, first.cpu() * 2)
        with pytest.raises(
            RuntimeError, match="Trying to backward through the graph a second time"
        ):
            loss.backward()

    def test_what_the_body_sees_of_it(self) -> None:
        x = data(4, 4).to("xla").requires_grad_()
        y = x.sin()
        node = y.grad_fn
        seen = []

        def body(c: Any, r: Any) -> Any:
            c = c + y * x
            seen.append((y.grad_fn is node, y.is_leaf, x.is_leaf, y._base, (y * 2).grad_fn.name()))
            return c, None

        spmd.scan(body, y, length=2)
        assert seen == [(True, False, True, None, "MulBackward0")]

    @pytest.mark.parametrize("op", [scan, cond])
    def test_the_gradient_of_a_view_has_no_sharding_of_its_base(
        self, op: Callable[..., Any], mesh8: spmd.Mesh
    ) -> None:
        weight = data(8, 4).to("xla").requires_grad_()
        spmd.mark_sharding(weight, mesh8, ("fsdp", None))
        view, c = weight.t(), data(4, 8).to("xla")
        if op is scan:
            made = spmd.scan(lambda c, r: (c * view, None), c, length=2)[0]
        else:
            made = spmd.cond(c.sum() > 0, lambda: c * view, lambda: view)
        made.sum().backward()
        # [4, 8] padded to be sharded like [8, 4]
        assert "tensor<8x8xf32>" not in spmd.get_stablehlo([weight.grad])


class TestRefusals:
    """No number is better than a wrong one."""

    def test_a_call_that_torch_does_not_show(self) -> None:
        x = data(4, 4).to("xla").requires_grad_()
        p = torch.ones((), device="xla") > 0

        def doubled(y: Any) -> Any:
            return torch.func.vmap(lambda row: row * 2)(y)

        y = x.sin()
        spmd.cond(p, lambda: doubled(y), lambda: y).sum().backward()
        check(x.grad, 2 * x.detach().cpu().cos())
        y = x.sin()
        with pytest.raises(NotImplementedError, match="one is computed from the other"):
            spmd.cond(p, lambda: doubled(y) * x, lambda: y)

    @pytest.mark.parametrize("is_read", [True, False])
    def test_a_write(self, is_read: bool) -> None:
        x = data(4).to("xla").requires_grad_()
        y = x.sin()

        def body(c: Any, r: Any) -> Any:
            y.mul_(2)
            return (c * y if is_read else c + 1), None

        with pytest.raises(
            NotImplementedError, match="writes in place into a tensor from outside that requires a"
        ):
            spmd.scan(body, data(4).to("xla"), length=2)

    def test_backward_in_a_body(self) -> None:
        x = data(4).to("xla").requires_grad_()
        y = x.sin()

        def body(c: Any, r: Any) -> Any:
            (c * y).sum().backward()
            return c, None

        with pytest.raises(RuntimeError, match=r"\.backward\(\) inside the body of spmd.scan"):
            spmd.scan(body, data(4).to("xla"), length=2)

    def test_an_unused_input_of_a_gradient_in_a_body(self) -> None:
        x = data(4).to("xla").requires_grad_()
        y = x.sin()

        def body(c: Any, r: Any, **settings: Any) -> Any:
            other = torch.zeros(4, device="xla", requires_grad=True)
            grads = torch.autograd.grad((y * c).sum(), [y, other], **settings)
            return c + sum(grad for grad in grads if grad is not None), None

        c = data(4).to("xla")
        check(spmd.scan(lambda c, r: body(c, r, allow_unused=True), c, length=2)[0], c.cpu() * 4)
        check(
            spmd.scan(lambda c, r: body(c, r, materialize_grads=True), c, length=2)[0], c.cpu() * 4
        )
        with pytest.raises(RuntimeError, match="appears to not have been used"):
            spmd.scan(body, c, length=2)


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("name", FUNCTIONS)
class TestShardMap:
    """The same in a function of one shard, around a loop and in one."""

    def test_each(self, name: str, partitioner: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "partitioner", partitioner)
        mesh = spmd.Mesh(range(2), (2,), ("model",))

        def mapped(x: Any, y: Any, c: Any, rows: Any) -> Any:
            def shard(c: Any) -> Any:
                c = torch.tanh(c @ x + y[0]) * spmd.manual.all_gather(y, 0, "model").sum()
                return spmd.scan(lambda c, r: (c @ y + x[1] * r, None), c, x[:3])[0]

            return spmd.shard_map(shard, mesh, P("model"), P("model"))(c)

        def plain(x: Any, y: Any, c: Any, rows: Any) -> Any:
            c = torch.tanh(c @ x + y[0]) * (y.sum() * 2)
            return spmd.scan(lambda c, r: (c @ y + x[1] * r, None), c, x[:3])[0]

        def in_scan(op: Any) -> Any:
            return lambda x, y, c, rows: spmd.scan(
                lambda c, r: (torch.tanh(op(x, y, c * r, rows) / 50), None), c, rows
            )[0]

        function = FUNCTIONS[name]
        # In float32 a `tanh` near 1 is 1 for one kernel, which has no gradient then, and less for
        # another.
        double = partial(results, dtype=torch.float64)
        same(double(mapped, function, "xla"), double(plain, function, "cpu"))
        same(double(in_scan(mapped), function, "xla"), double(in_scan(plain), function, "cpu"))
