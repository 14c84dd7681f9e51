"""List ops: lists of numbers of several kinds, and what an element cannot hold."""

from collections.abc import Callable

import pytest
import torch
from support import check

NUMBERS: dict[str, list[complex | float | bool]] = {
    "int, float, complex": [1, 2.0, 3 + 4.5j],
    "bool first": [True, 1, 2.5],
    "bool and complex first": [True, 2j, 3.0],
    "one bool": [2, 3.5, True],
}


class TestScalarLists:
    """A list of numbers some of which are part of the program, as bools and complex ones are."""

    @pytest.mark.parametrize("numbers", NUMBERS.values(), ids=NUMBERS)
    @pytest.mark.parametrize("function", [torch._foreach_add, torch._foreach_mul, torch._foreach_div])
    def test_mixed(self, numbers, function) -> None:
        x = [torch.linspace(1, 2, size) for size in (3, 2, 4)]
        for one, other in zip(function([t.to("xla") for t in x], numbers), function(x, numbers), strict=True):
            check(one, other)


REFUSED: dict[str, Callable[[str], object]] = {
    "float into int": lambda d: torch._foreach_exp_([torch.ones(2, dtype=torch.int32, device=d)]),
    "complex into float": lambda d: torch._foreach_add_([torch.ones(2, device=d)] * 2, [1.0, 2j]),
    "a float tensor into int": lambda d: torch._foreach_mul_(
        [torch.ones(2, dtype=torch.int32, device=d)], torch.tensor(0.5, device=d)
    ),
    "growth": lambda d: torch._foreach_pow_([torch.ones(3, device=d)], [torch.ones(1, 3, device=d)]),
    "lists of two lengths": lambda d: torch._foreach_add([torch.ones(3, device=d)], [torch.ones(3, device=d)] * 2),
    "numbers of another length": lambda d: torch._foreach_add([torch.ones(3, device=d)], [1.0, 2.0]),
}


class TestRefused:
    """Errors of the same class as on CPU, at the call."""

    @pytest.mark.parametrize("name", REFUSED)
    def test_like_cpu(self, name: str) -> None:
        for device in ("cpu", "xla"):
            with pytest.raises(RuntimeError) as error:
                REFUSED[name](device)
            assert error.type is RuntimeError
