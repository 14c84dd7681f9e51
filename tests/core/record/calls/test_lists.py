"""List ops: lists of numbers of several kinds, and what an element cannot hold."""

from collections.abc import Callable

import pytest
import torch
from support import check
from torch import nn

import spmd

NUMBERS: dict[str, list[complex | float | bool]] = {
    "int, float, complex": [1, 2.0, 3 + 4.5j],
    "bool first": [True, 1, 2.5],
    "bool and complex first": [True, 2j, 3.0],
    "one bool": [2, 3.5, True],
}


class TestScalarLists:
    """A list of numbers some of which are part of the program, as bools and complex ones are."""

    @pytest.mark.parametrize("numbers", NUMBERS.values(), ids=NUMBERS)
    @pytest.mark.parametrize(
        "function", [torch._foreach_add, torch._foreach_mul, torch._foreach_div]
    )
    def test_mixed(self, numbers, function) -> None:
        x = [torch.linspace(1, 2, size) for size in (3, 2, 4)]
        for one, other in zip(
            function([t.to("xla") for t in x], numbers), function(x, numbers), strict=True
        ):
            check(one, other)


REFUSED: dict[str, Callable[[str], object]] = {
    "float into int": lambda d: torch._foreach_exp_([torch.ones(2, dtype=torch.int32, device=d)]),
    "complex into float": lambda d: torch._foreach_add_([torch.ones(2, device=d)] * 2, [1.0, 2j]),
    "a float tensor into int": lambda d: torch._foreach_mul_(
        [torch.ones(2, dtype=torch.int32, device=d)], torch.tensor(0.5, device=d)
    ),
    "growth": lambda d: torch._foreach_pow_(
        [torch.ones(3, device=d)], [torch.ones(1, 3, device=d)]
    ),
    "lists of two lengths": lambda d: torch._foreach_add(
        [torch.ones(3, device=d)], [torch.ones(3, device=d)] * 2
    ),
    "numbers of another length": lambda d: torch._foreach_add(
        [torch.ones(3, device=d)], [1.0, 2.0]
    ),
}


class TestRefused:
    """Errors of the same class as on CPU, at the call."""

    @pytest.mark.parametrize("name", REFUSED)
    def test_like_cpu(self, name: str) -> None:
        for device in ("cpu", "xla"):
            with pytest.raises(RuntimeError) as error:
                REFUSED[name](device)
            assert error.type is RuntimeError

    def test_without_an_op_of_one_element(self) -> None:
        """As `_foreach_powsum` in torch 2.13."""
        names = {name.removesuffix("_") for name in dir(torch) if name.startswith("_foreach_")}
        for name in names - {"_foreach_norm"}:
            element = name.removeprefix("_foreach_")
            if not hasattr(torch.ops.aten, element):
                with pytest.raises(
                    NotImplementedError, match=rf"no op of one element, '{element}'"
                ):
                    getattr(torch, name)([torch.ones(2, device="xla")])


STAGES = [spmd.Mesh(range(4), (4,), ("data",)), spmd.Mesh(range(4, 8), (4,), ("data",))]
OPTIMIZERS = {
    "AdamW": lambda weights: torch.optim.AdamW(weights, lr=0.1),
    "Adam, fused": lambda weights: torch.optim.Adam(weights, lr=0.1, fused=True),
    "AdamW, amsgrad": lambda weights: torch.optim.AdamW(weights, lr=0.1, amsgrad=True),
    "SGD": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
    "SGD, fused": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, fused=True),
    "Adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.1),
    "NAdam": lambda weights: torch.optim.NAdam(weights, lr=0.1),
    "Rprop": lambda weights: torch.optim.Rprop(weights, lr=0.1),
}


def stage_weights(
    optimizer: Callable[..., torch.optim.Optimizer], device: str
) -> list[torch.Tensor]:
    """The weights of two stages on devices of their own after three steps of one optimizer."""
    torch.manual_seed(0)
    stages = [nn.Linear(8, 8).to(device) for _ in range(2)]
    x = torch.linspace(0, 1, 32, device=device).reshape(4, 8)
    if device == "xla":
        for stage, mesh in zip(stages, STAGES, strict=True):
            spmd.mark_sharding(stage.weight, mesh, ("data", None))
            spmd.mark_sharding(stage.bias, mesh, (None,))
        spmd.mark_sharding(x, STAGES[0], ("data", None))
    weights = [weight for stage in stages for weight in stage.parameters()]
    steps = optimizer(weights)
    for _ in range(3):
        hidden = stages[0](x)
        hidden = spmd.reshard(hidden, ("data", None), STAGES[1]) if device == "xla" else hidden
        steps.zero_grad()
        stages[1](hidden).square().mean().backward()
        steps.step()
    return weights


class TestTwoMeshes:
    """Lists of tensors on several meshes are computed mesh by mesh, as torch groups them by
    device."""

    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_optimizers(self, name: str) -> None:
        weights = stage_weights(OPTIMIZERS[name], "xla")
        torch.testing.assert_close(
            [w.detach().cpu() for w in weights], stage_weights(OPTIMIZERS[name], "cpu")
        )
        assert [spmd.get_sharding(w).devices for w in weights[::2]] == [
            frozenset(range(4)),
            frozenset(range(4, 8)),
        ]

    def test_results_are_in_the_order_of_the_list(self) -> None:
        tensors = [
            spmd.mark_sharding(torch.full((4,), float(i)).to("xla"), STAGES[i % 2], ("data",))
            for i in range(5)
        ]
        plain = torch.full((4,), 9.0, device="xla")
        for result in (
            torch._foreach_add([*tensors, plain], 1.0),
            torch._foreach_mul([*tensors, plain], [2.0] * 6),
            torch._foreach_sqrt(torch._foreach_mul([*tensors, plain], [*tensors, plain])),
        ):
            torch._foreach_neg_(result)
            assert [value[0].item() for value in result] == sorted(
                (value[0].item() for value in result), reverse=True
            )
        norms = torch._foreach_norm(tensors)
        assert [norm.item() for norm in norms] == [2.0 * i for i in range(5)]
        torch._foreach_copy_(tensors, torch._foreach_add(tensors, 1.0))
        assert [tensor.tolist() for tensor in tensors] == [[i + 1.0] * 4 for i in range(5)]
