"""`torch.cond`, torch's `while_loop`, `scan`, `map` and functions under `torch.compile`, with
tensors of the device."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import check, in_thread
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils._pytree import tree_leaves, tree_map

import spmd


def cond_plain(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()
) -> Any:
    return true_fn(*operands) if pred else false_fn(*operands)


def while_plain(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried: Any) -> Any:
    while cond_fn(*carried):
        carried = body_fn(*carried)
    return carried


def map_plain(function: Callable[..., Any], xs: Any, *args: Any) -> Any:
    rows = [
        function(tree_map(lambda x, i=i: x[i], xs), *args) for i in range(len(tree_leaves(xs)[0]))
    ]
    return tree_map(lambda *each: torch.stack(each), *rows)


def associative_plain(
    combine: Callable[..., Any],
    xs: Any,
    dim: int,
    reverse: bool = False,
    combine_mode: str = "pointwise",
) -> Any:
    places = range(tree_leaves(xs)[0].shape[dim])
    made: list[Any] = []
    for i in reversed(places) if reverse else places:
        x = tree_map(lambda each, i=i: each.select(dim, i), xs)
        made.append(combine(made[-1], x) if made else x)
    return tree_map(lambda *each: torch.stack(each, dim), *(made[::-1] if reverse else made))


ON_XLA = SimpleNamespace(
    cond=torch.cond, loop=while_loop, scan=scan, map=torch_map, associative_scan=associative_scan
)
ON_CPU = SimpleNamespace(
    cond=cond_plain,
    loop=while_plain,
    scan=spmd.scan,
    map=map_plain,
    associative_scan=associative_plain,
)


def step(
    x: torch.Tensor, scale: torch.Tensor, cond: Any, loop: Any, iterations: Any, each: Any
) -> list[Any]:
    a, b = cond(x.sum() > 0, lambda v: (v + 1, v * scale), lambda v: (v - 1, v * 3), (x,))
    with torch.no_grad():
        count, doubled = loop(
            lambda n, v: n < 3, lambda n, v: (n + 1, v * 2), (torch.zeros_like(x[0, 0]), x + 1)
        )
    carry, ys = iterations(
        lambda c, row: ({"sum": c["sum"] * scale + row}, c["sum"] * 2),
        {"sum": scale},
        x,
        reverse=True,
    )
    mapped = each(lambda row, s: row * s, x, scale)
    (
        a.square().sum() + b.sum() + carry["sum"].square().sum() + ys.sum() + mapped.square().sum()
    ).backward()
    return [a, b, count, doubled, carry["sum"], ys, mapped, x.grad, scale.grad]


@pytest.mark.parametrize("sign", [1, -1])
def test_control_flow_of_torch(sign: int) -> None:
    cpu = (sign * torch.arange(1.0, 13).reshape(4, 3) / 10, torch.tensor([0.5, 1.0, 1.5]))
    results = []
    torchs, plain = (
        (torch.cond, while_loop, scan, torch_map),
        (cond_plain, while_plain, spmd.scan, map_plain),
    )
    for device, how in (("xla", torchs), ("cpu", plain)):
        results.append(step(*(tensor.to(device).requires_grad_() for tensor in cpu), *how))
    for ours, theirs in zip(*map(tree_leaves, results), strict=True):
        check(ours, theirs)


# Of functions (`hops`), a matrix x of 8 x 4 and a matrix w of 4 x 4.


def closures_and_none(hops: Any, x: Any, w: Any) -> Any:
    other = w.exp()  # not a leaf tensor
    return hops.cond(x.sum() > 0, lambda: (x @ other + w.sum(), None), lambda: (x, None))


def operands_in_pytrees(hops: Any, x: Any, w: Any) -> Any:
    def one(named: Any, listed: Any) -> Any:
        return {"a": named["x"] + listed[0], "b": [named["w"]]}

    def other(named: Any, listed: Any) -> Any:
        return {"a": named["x"] * listed[0], "b": [named["w"] * 2]}

    return hops.cond(x.sum() < 0, one, other, ({"x": x, "w": w}, [x + 1]))


def map_of_pytrees(hops: Any, x: Any, w: Any) -> Any:
    other = w.cos()
    return hops.map(lambda row, w: (row["x"] @ w, other + row["y"].sum()), {"x": x, "y": x * x}, w)


def cond_in_scan(hops: Any, x: Any, w: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        after = hops.cond(
            carry.sum() > 1, lambda c, r: c * w[0] + r, lambda c, r: c + r, (carry, row)
        )
        return after, carry.sin()

    return hops.scan(step, w[1] * 1, x)


def scan_in_scan(hops: Any, x: Any, w: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        last, _ = hops.scan(lambda c, r: (c * 0.5 + r * w[0], c * 1), carry, row.expand(3, 4))
        return last, last + 1

    return hops.scan(step, w[0] * 1, x)


def scans_in_map_in_cond(hops: Any, x: Any, w: Any) -> Any:
    def products(row: Any) -> Any:
        return hops.associative_scan(lambda a, b: a * b, row * w[0], 0)

    return hops.cond(x.sum() > 0, lambda x: hops.map(products, x), lambda x: x, (x,))


def cond_in_while_loop(hops: Any, x: Any, w: Any) -> Any:
    def halved(count: Any, x: Any) -> Any:
        return count + 1, hops.cond(x.sum() > 0, lambda x: x / 2, lambda x: x + w.sum(), (x,))

    with torch.no_grad():
        return hops.loop(
            lambda count, x: count < 3, halved, (torch.zeros((), device=x.device), x * 1)
        )


def linear_recurrence(hops: Any, x: Any, w: Any, **how: Any) -> Any:
    def combine(a: Any, b: Any) -> Any:
        return {
            "gate": a["gate"] * b["gate"],
            "state": (a["state"][0] * b["gate"] + b["state"][0],),
        }

    return hops.associative_scan(combine, {"gate": x.sigmoid(), "state": (x * w[0],)}, **how)


def recurrences(hops: Any, x: Any, w: Any) -> Any:
    return [
        linear_recurrence(hops, x, w, dim=dim, reverse=reverse, combine_mode=mode)
        for dim, reverse, mode in (
            (0, False, "pointwise"),
            (1, True, "pointwise"),
            (0, True, "generic"),
        )
    ]


def products_of_matrices(hops: Any, x: Any, w: Any) -> Any:
    matrices = x[:5, :, None] * 0.1 + w
    return hops.associative_scan(lambda a, b: a @ b, matrices, 0, combine_mode="generic")


def results(function: Any, hops: Any, x: torch.Tensor, w: torch.Tensor) -> list[Any]:
    """Results and gradients."""
    made = [each for each in tree_leaves(function(hops, x, w)) if each is not None]
    total: Any = sum(each.square().sum() for each in made if each.requires_grad)
    return [
        *made,
        *(
            torch.autograd.grad(total, [x, w], materialize_grads=True)
            if made[0].requires_grad
            else ()
        ),
    ]


@pytest.mark.parametrize("is_sharded", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        closures_and_none,
        operands_in_pytrees,
        map_of_pytrees,
        cond_in_scan,
        scan_in_scan,
        scans_in_map_in_cond,
        cond_in_while_loop,
        recurrences,
        products_of_matrices,
    ],
)
def test_closures_pytrees_and_nesting(function: Any, is_sharded: bool, mesh8: Any) -> None:
    x, w = (torch.linspace(-0.5, 1.5, size).reshape(-1, 4).double() for size in (32, 16))
    expected = results(function, ON_CPU, x.requires_grad_(), w.requires_grad_())
    x, w = x.detach().to("xla"), w.detach().to("xla")
    if is_sharded:
        spmd.mark_sharding(x, mesh8, ("fsdp", None))
    made = results(function, ON_XLA, x.requires_grad_(), w.requires_grad_())
    for ours, theirs in zip(made, expected, strict=True):
        check(ours, theirs)


def test_the_op_of_associative_scan_with_lifted_inputs() -> None:
    """As a compiled graph calls it: flat results, closed-over tensors as operands."""
    x, w = torch.rand(6, 3, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    expected = associative_plain(lambda a, b: a * b * w, x, 0)
    op = torch.ops.higher_order.associative_scan
    (made,) = op(lambda a, b, w: (a * b * w,), [x.to("xla")], (w.to("xla"),))
    check(made, expected)


def test_under_autocast() -> None:
    """A body's products are in bfloat16, as without the op."""
    x, w = torch.ones(3, 4, device="xla", requires_grad=True), torch.ones(4, 4, device="xla")
    with torch.autocast("xla"):
        made = [
            torch.cond(x.sum() > 0, lambda x: x @ w, lambda x: x @ w * 2, (x,)),
            scan(lambda carry, row: (carry + row, row @ w), torch.zeros(4, device="xla"), x)[1],
            torch_map(lambda row: row @ w, x),
            while_loop(lambda v: v.sum() < 10, lambda v: ((v @ w).float(),), (x.detach() / 4,))[0],
            torch.ops.higher_order.associative_scan(
                lambda a, b: (a @ w.float(),), [x.detach()[:, None]], ()
            )[0],
        ]
    assert [each.dtype for each in made[:3]] == [torch.bfloat16] * 3
    assert made[3].tolist() == [[1.0] * 4] * 3


def test_a_gradient_inside_inference_mode_that_is_off() -> None:
    """`inference_mode(False)` has autograd use threads of its own, which waited for this one for
    ever."""

    def gradient() -> object:
        x = torch.ones(3, device="xla", requires_grad=True)
        with torch.inference_mode(False):
            torch.cond(x.sum() > 0, torch.exp, torch.neg, (x,)).sum().backward()
        return x.grad

    check(in_thread(gradient), torch.ones(3).exp())  # type: ignore[arg-type]


def test_in_inference_mode() -> None:
    with torch.inference_mode():
        x = torch.ones(3, device="xla")
        assert torch.cond(x.sum() > 4, torch.neg, torch.exp, (x,)).tolist() == pytest.approx(
            [2.71828] * 3
        )
        assert while_loop(lambda v: v.sum() < 10, lambda v: (v * 2,), (x,))[0].tolist() == [4.0] * 3
