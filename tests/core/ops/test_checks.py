"""Arguments that torch's meta kernels take and its other kernels refuse: refused here, where the op is written."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

REFUSED: dict[str, Callable[[str], object]] = {
    "bucketize": lambda d: torch.bucketize(torch.ones(3, device=d), torch.ones(2, 2, device=d)),
    "cat of numbers": lambda d: torch.cat([torch.tensor(1.0, device=d)] * 2),
    "histogramdd": lambda d: torch.histogramdd(torch.ones(3, 5, device=d), [1, 1, 1, 1]),
    "index_add": lambda d: torch.ones(3, 2, device=d).index_add(
        0, torch.tensor([0, 1], device=d), torch.ones(2, 3, device=d)
    ),
    "lstsq of a number": lambda d: torch.linalg.lstsq(torch.ones((), device=d), torch.ones((), device=d)),
    "lstsq to a number": lambda d: torch.linalg.lstsq(torch.ones(3, 2, device=d), torch.ones((), device=d)),
    "masked_scatter": lambda d: torch.ones(3, device=d).masked_scatter(
        torch.ones(3, device=d).byte(), torch.ones(3, device=d)
    ),
    "multinomial of more than there are": lambda d: torch.multinomial(torch.ones(2, device=d), 3),
    "multinomial of none": lambda d: torch.multinomial(torch.ones(2, device=d), 0),
    "multinomial of integers": lambda d: torch.multinomial(torch.ones(2, 2, device=d).long(), 1),
    "dilation": lambda d: F.conv1d(torch.ones(1, 1, 4, device=d), torch.ones(1, 1, 2, device=d), dilation=-1),
    "stride": lambda d: F.conv1d(torch.ones(1, 1, 4, device=d), torch.ones(1, 1, 2, device=d), stride=0),
    "padding": lambda d: F.conv1d(torch.ones(1, 1, 4, device=d), torch.ones(1, 1, 2, device=d), padding=-1),
    "embedding": lambda d: F.embedding(torch.ones(2, 2, device=d).long(), torch.ones((), device=d)),
    "uniform_": lambda d: torch.ones(3, device=d).uniform_(3, -1),
    "random_": lambda d: torch.ones(3, device=d).random_(3, 1),
    "bernoulli_": lambda d: torch.ones(3, device=d).bernoulli_(2),
    "poisson of integers": lambda d: torch.poisson(torch.ones(3, device=d).long()),
    "amax over nothing": lambda d: torch.amax(torch.ones(0, 3, device=d), 0),
    "amin of nothing": lambda d: torch.amin(torch.ones(0, device=d)),
    "aminmax of nothing": lambda d: torch.aminmax(torch.ones(0, device=d)),
    "aminmax over nothing": lambda d: torch.aminmax(torch.ones(0, 3, device=d), dim=0),
    "max of nothing": lambda d: torch.max(torch.ones(0, device=d)),
    "max over nothing": lambda d: torch.max(torch.ones(0, 2, device=d), 0),
    "median over nothing": lambda d: torch.median(torch.ones(0, 2, device=d), 0),
    "sub of a bool": lambda d: torch.sub(torch.ones(3, device=d), True),
    "sub of bools": lambda d: torch.ones(3, device=d) - (torch.ones(3, device=d) > 0),
    "bool alpha": lambda d: torch.add(torch.ones(3, device=d), torch.ones(3, device=d), alpha=True),
    "float alpha": lambda d: torch.add(torch.ones(3, device=d).int(), 2, alpha=1.5),
    "complex alpha": lambda d: torch.sub(torch.ones(3, device=d), torch.ones(3, device=d), alpha=1j),
    "complex value": lambda d: torch.addcmul(*[torch.ones(3, device=d)] * 3, value=1j),
    "complex weight": lambda d: torch.lerp(*[torch.ones(3, device=d)] * 2, 1j),
    "lerp of integers": lambda d: torch.lerp(*[torch.ones(3, device=d).int()] * 2, 1),
    "clamp_min to a complex number": lambda d: torch.clamp_min(torch.ones(3, device=d), 1j),
    "clamp to a complex number": lambda d: torch.clamp(torch.ones(3, device=d), 1j),
    "maximum of complex numbers": lambda d: torch.maximum(*[torch.ones(3, device=d) * 1j] * 2),
    "negative power of integers": lambda d: torch.pow(torch.ones(3, device=d).int(), -1),
    "sign of complex numbers": lambda d: torch.sign(torch.ones(3, device=d) * 1j),
    "floor of complex numbers": lambda d: torch.floor(torch.ones(3, device=d) * 1j),
    "lgamma of complex numbers": lambda d: torch.lgamma(torch.ones(3, device=d) * 1j),
    "quotient of booleans": lambda d: torch.addcdiv(torch.ones(3, device=d), *[torch.ones(3, device=d) > 0] * 2),
    "mode over nothing": lambda d: torch.mode(torch.ones(2, 0, device=d)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_as_on_cpu(name: str) -> None:
    """The same type of error, at the call and in words of its own op."""
    with pytest.raises(Exception) as expected:  # whichever CPU raises
        REFUSED[name]("cpu")
    with pytest.raises(expected.type) as actual:
        REFUSED[name]("xla")
    assert actual.type is expected.type
    assert str(actual.value) and "jax" not in str(actual.value) and "lowering" not in str(actual.value)


def test_other_dims_may_be_empty() -> None:
    """Only what is reduced must have elements."""
    x = torch.ones(0, 3, device="xla")
    assert torch.amax(x, 1).shape == torch.max(x, 1).values.shape == torch.mode(x).values.shape == (0,)
    assert torch.aminmax(x, dim=1).max.shape == (0,)
