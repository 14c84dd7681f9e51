"""Libraries over arrays of several kinds: they recognise a tensor of the device as torch's, by its
class's module or by its protocols, and give the CPU's numbers."""

import pickle
from collections.abc import Callable

import array_api_compat
import autoray
import einops
import numpy as np
import opt_einsum
import pytest
import torch
from tensordict import TensorDict
from torch import nn

import spmd


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(8, 6), torch.randn(6, 4)


# Each takes two matrices; what it returns is compared with the CPU's.
PROGRAMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "opt_einsum": lambda x, y: opt_einsum.contract("ij,jk,ik->i", x, y, x @ y),
    "opt_einsum's expression": lambda x, y: opt_einsum.contract_expression(
        "ij,jk->ik", x.shape, y.shape
    )(x, y),
    "autoray": lambda x, y: autoray.do("einsum", "ij,jk->ik", autoray.do("tanh", x), y),
    "autoray's numpy": lambda x, y: torch.tensor(autoray.to_numpy(x).sum(0)),
    "einops": lambda x, y: einops.rearrange(
        einops.einsum(x, y, "a b, b c -> a c"), "(n a) c -> n (a c)", n=2
    ),
    "einops' pack": lambda x, y: einops.pack([x, y.T], "* b")[0],
    "array-api-compat": lambda x, y: array_api_compat.array_namespace(x, y).matmul(x, y),
    "tensordict": lambda x, y: TensorDict({"x": x, "more": {"y": y.T}}, []).apply(torch.exp)[
        "more", "y"
    ],
    "tensordict's stack": lambda x, y: torch.stack([*TensorDict({"x": x}, [8])[2:6].split(2)])["x"],
}


class TestRecognised:
    """Results of whole tensors and of sharded ones."""

    @pytest.mark.parametrize("name", PROGRAMS)
    @pytest.mark.parametrize("is_sharded", [False, True])
    def test_agrees(self, name: str, is_sharded: bool, mesh8: spmd.Mesh) -> None:
        x, y = pair()
        on_device = x.to("xla"), y.to("xla")
        if is_sharded:
            spmd.mark_sharding(on_device[0], mesh8, ("fsdp", None))
        result = PROGRAMS[name](*on_device)
        torch.testing.assert_close(result.cpu(), PROGRAMS[name](x, y), rtol=2e-5, atol=2e-5)

    def test_kinds(self) -> None:
        x = torch.ones(2, device="xla")
        assert (
            autoray.infer_backend(x) == "torch"
            and opt_einsum.contract("i,i->", x, x).device.type == "xla"
        )
        assert array_api_compat.is_torch_array(x) and array_api_compat.device(x) == x.device
        assert TensorDict({"x": torch.ones(2)}, [2]).to("xla")["x"].device == x.device
        assert torch.overrides.is_tensor_like(x) and np.from_dlpack(x.cpu()).tolist() == [1, 1]

    def test_pickles(self) -> None:
        kind = type(torch.ones(1, device="xla"))
        assert kind.__module__.split(".")[0] == "torch"
        assert pickle.loads(pickle.dumps(kind)) is kind
        # as before it named torch
        assert pickle.loads(b"cspmd.core.lazy.tensor\nXlaTensor\n.") is kind


class SpectralConvolution(nn.Module):
    """A convolution by a product of the lowest frequencies with complex weights, as Fourier neural
    operators have it: dense, or a CP decomposition, contracted by opt_einsum."""

    def __init__(self, channels: int, modes: int, rank: int | None):
        super().__init__()
        self.modes = modes
        shapes = (
            [(channels, channels, modes, modes)]
            if rank is None
            else [(rank,), *[(channels, rank)] * 2]
        )
        shapes += [] if rank is None else [(modes, rank)] * 2
        self.factors = nn.ParameterList(
            torch.randn(shape, dtype=torch.cfloat) / 4 for shape in shapes
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft2(x, norm="forward")
        low = spectrum[:, :, : self.modes, : self.modes]
        equation = "bixy,ioxy->boxy" if len(self.factors) == 1 else "bixy,r,ir,or,xr,yr->boxy"
        product = torch.zeros_like(spectrum)
        product[:, :, : self.modes, : self.modes] = opt_einsum.contract(
            equation, low, *self.factors
        )
        return torch.fft.irfft2(product, s=x.shape[-2:], norm="forward")


class TestNeuralOperator:
    """A block of a Fourier neural operator trains with the CPU's gradients, its batch sharded."""

    @pytest.mark.parametrize("rank", [None, 3])
    def test_gradients(self, rank: int | None, mesh8: spmd.Mesh) -> None:
        model = SpectralConvolution(2, 3, rank)
        x = torch.randn(8, 2, 8, 8)
        model(x).square().mean().backward()
        expected = [factor.grad for factor in model.factors]
        ours = SpectralConvolution(2, 3, rank)
        ours.load_state_dict(model.state_dict())
        ours.to("xla")
        ours(
            spmd.mark_sharding(x.to("xla"), mesh8, ("fsdp", None, None, None))
        ).square().mean().backward()
        for factor, grad in zip(ours.factors, expected, strict=True):
            torch.testing.assert_close(factor.grad.cpu(), grad, rtol=2e-5, atol=2e-6)
