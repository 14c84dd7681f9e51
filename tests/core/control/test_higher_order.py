"""`torch.cond`, torch's `while_loop`, `scan`, `map` and functions under `torch.compile`, with tensors of the device."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import check, run_script
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils._pytree import tree_leaves

import spmd


def cond_plain(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any) -> Any:
    return true_fn(*operands) if pred else false_fn(*operands)


def while_plain(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried: Any) -> Any:
    while cond_fn(*carried):
        carried = body_fn(*carried)
    return carried


def map_plain(function: Callable[..., Any], xs: torch.Tensor, *args: Any) -> Any:
    return torch.stack([function(row, *args) for row in xs])


def step(x: torch.Tensor, scale: torch.Tensor, cond: Any, loop: Any, iterations: Any, each: Any) -> list[Any]:
    a, b = cond(x.sum() > 0, lambda v: (v + 1, v * scale), lambda v: (v - 1, v * 3), (x,))
    with torch.no_grad():
        count, doubled = loop(lambda n, v: n < 3, lambda n, v: (n + 1, v * 2), (torch.zeros_like(x[0, 0]), x + 1))
    carry, ys = iterations(
        lambda c, row: ({"sum": c["sum"] * scale + row}, c["sum"] * 2), {"sum": scale}, x, reverse=True
    )
    mapped = each(lambda row, s: row * s, x, scale)
    (a.square().sum() + b.sum() + carry["sum"].square().sum() + ys.sum() + mapped.square().sum()).backward()
    return [a, b, count, doubled, carry["sum"], ys, mapped, x.grad, scale.grad]


@pytest.mark.parametrize("sign", [1, -1])
def test_control_flow_of_torch(sign: int) -> None:
    cpu = (sign * torch.arange(1.0, 13).reshape(4, 3) / 10, torch.tensor([0.5, 1.0, 1.5]))
    results = []
    torchs, plain = (torch.cond, while_loop, scan, torch_map), (cond_plain, while_plain, spmd.scan, map_plain)
    for device, how in (("xla", torchs), ("cpu", plain)):
        results.append(step(*(tensor.to(device).requires_grad_() for tensor in cpu), *how))
    for ours, theirs in zip(*map(tree_leaves, results), strict=True):
        check(ours, theirs)


def test_in_inference_mode() -> None:
    with torch.inference_mode():
        x = torch.ones(3, device="xla")
        assert torch.cond(x.sum() > 4, torch.neg, torch.exp, (x,)).tolist() == pytest.approx([2.71828] * 3)
        assert while_loop(lambda v: v.sum() < 10, lambda v: (v * 2,), (x,))[0].tolist() == [4.0] * 3


def test_functions_under_compile_run_as_they_are() -> None:
    run_script("""
        import warnings
        import torch
        import spmd

        spmd.simulate(2)
        warnings.simplefilter("ignore")  # torch's own about its compiler

        def helper(x):
            return x * 2

        @torch.compile
        def compiled(x):
            made = helper(x)
            made.add_(torch.ones(3).sum())
            return made.sum()

        @torch.compile(fullgraph=True)
        def of_one_graph(x):
            return x + 1

        x = torch.ones(4, 3).to("xla").requires_grad_()
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for _ in range(2):
                y = compiled(x)
                y.backward()
                assert (y.item(), x.grad.sum().item()) == (60.0, 24.0), (y, x.grad)
                x.grad = None
            module = torch.compile(torch.nn.Linear(3, 2).to("xla"))
            optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
            losses = []
            for _ in range(3):
                loss = module(x.detach()).square().sum()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            assert losses[0] > losses[1] > losses[2], losses
        said = [str(warning.message) for warning in found if "TORCHDYNAMO_DISABLE=1" in str(warning.message)]
        assert len(said) == 1, said
        try:
            of_one_graph(x)
        except torch._dynamo.exc.Unsupported as error:
            assert "TORCHDYNAMO_DISABLE=1, it runs as it is" in str(error), error
        else:
            raise AssertionError("fullgraph=True ran without a graph")
    """)
