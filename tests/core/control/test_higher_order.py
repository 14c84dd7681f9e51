"""`torch.cond`, torch's `while_loop`, `scan`, `map` and functions under `torch.compile`, with tensors of the device."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import check
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
