"""Lazy modules on the device: made there, moved there, and given their shapes by the first forward
or a checkpoint."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from support import check
from torch import nn
from torch.nn.parameter import is_lazy


def under_default() -> nn.Module:
    with torch.device("xla"):
        return nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d())


MAKERS: dict[str, Callable[[], nn.Module]] = {
    "moved": lambda: nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d()).to("xla"),
    "device=": lambda: nn.Sequential(
        nn.LazyLinear(4, device="xla"), nn.LazyBatchNorm1d(device="xla")
    ),
    "default device": under_default,
    # torch itself cannot copy an uninitialised buffer.
    "copied": lambda: nn.Sequential(
        copy.deepcopy(nn.LazyLinear(4, device="xla")), nn.LazyBatchNorm1d(device="xla")
    ),
    "pickled": lambda: pickle.loads(pickle.dumps(under_default())).to("xla"),
}


class TestLazyModules:
    """As on CPU: parameters appear with the first forward, on the module's device, and stay the
    same objects."""

    @pytest.mark.parametrize("how", MAKERS)
    def test_first_forward(self, how: str) -> None:
        made = MAKERS[how]()
        parameters = list(made.parameters())
        assert all(is_lazy(p) and p.device.type == "xla" for p in parameters)
        x = torch.linspace(-1, 1, 10).view(5, 2)
        reference = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4))
        made(x.to("xla"))
        assert list(map(id, made.parameters())) == list(map(id, parameters))
        assert type(made[0]) is nn.Linear and type(made[1]) is nn.BatchNorm1d
        made.load_state_dict(reference.state_dict())
        out, expected = made(x.to("xla")), reference(x)
        check(out, expected)
        out.sum().backward()
        assert all(isinstance(p, nn.Parameter) and p.grad is not None for p in made.parameters())

    def test_shapes_from_a_checkpoint(self) -> None:
        reference = nn.Linear(2, 4)
        made = nn.LazyLinear(4, device="xla")
        made.load_state_dict(reference.state_dict())
        check(made(torch.ones(3, 2, device="xla")), reference(torch.ones(3, 2)))

    def test_off_the_device(self) -> None:
        made = nn.LazyLinear(4, device="xla").to("cpu", torch.float64)
        assert made.weight.device.type == "cpu"
        assert made(torch.ones(3, 2, dtype=torch.float64)).dtype == torch.float64
