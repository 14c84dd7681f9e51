"""Dtypes that torch's CPU kernels refuse and its meta kernels take: refused at the line, in the
same words."""

import itertools

import pytest
import torch
from torch.nn import functional as F

import spmd

# Warnings of torch's: a beta, and casts of copies.
pytestmark = pytest.mark.filterwarnings("ignore:index_reduce", "ignore:Casting complex values")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64)


def _index(x, dtype=torch.int64):
    return torch.tensor([0, 2], dtype=dtype, device=x.device)


# By name: an op of (self of three elements, another tensor of two).
MIXED = {
    "index_copy": lambda x, y: x.index_copy(0, _index(x), y),
    "index_copy_": lambda x, y: x.index_copy_(0, _index(x), y),
    "index_add": lambda x, y: x.index_add(0, _index(x), y),
    "index_add_": lambda x, y: x.index_add_(0, _index(x), y),
    "index_reduce": lambda x, y: x.index_reduce(0, _index(x), y, "prod"),
    "index_fill": lambda x, y: x.index_fill(0, _index(x), y[0]),
    "put": lambda x, y: x.put(_index(x), y),
    "put_": lambda x, y: x.put_(_index(x), y, accumulate=True),
    "scatter": lambda x, y: x.scatter(0, _index(x), y),
    "scatter_add_": lambda x, y: x.scatter_add_(0, _index(x), y),
    "scatter_reduce": lambda x, y: x.scatter_reduce(0, _index(x), y, "sum"),
    "index_put_": lambda x, y: x.index_put_((_index(x),), y),
    "masked_scatter": lambda x, y: x.masked_scatter(
        torch.tensor([True, False, True], device=x.device), y
    ),
    "cross": lambda x, y: torch.linalg.cross(x, torch.cat([y, y[:1]])),
    "embedding_bag": lambda x, y: F.embedding_bag(
        _index(x), x[:, None], torch.tensor([0], device=x.device), mode="sum", per_sample_weights=y
    ),
    "heaviside": lambda x, y: torch.heaviside(x[:2], y),
    "binary_cross_entropy": lambda x, y: F.binary_cross_entropy(x[:2], y),
    "nll_loss": lambda x, y: F.nll_loss(x[None, :2].repeat(2, 1), _index(x) % 2, y),
    "rsub": lambda x, y: torch.rsub(x[:2], y),
    "isin": lambda x, y: torch.isin(x, y),
    "addcmul_": lambda x, y: x[:2].addcmul_(y, y),
    "grid_sample": lambda x, y: F.grid_sample(
        x[None, None, None], y[None, None, None], align_corners=False
    ),
    "slice_scatter": lambda x, y: x.slice_scatter(y, 0, 0, 2),
    "where": lambda x, y: torch.where(x[:2] == 0, x[:2], y),
}
# By name: an op of a tensor of three elements and an index of two.
INDICES = {
    "index_copy": lambda x, index: x.index_copy(0, index, x[:2]),
    "index_add": lambda x, index: x.index_add(0, index, x[:2]),
    "index_reduce": lambda x, index: x.index_reduce(0, index, x[:2], "amax"),
    "index_fill": lambda x, index: x.index_fill(0, index, 1.0),
    "index_select": lambda x, index: x.index_select(0, index),
    "put": lambda x, index: x.put(index, x[:2]),
    "take": lambda x, index: x.take(index),
    "scatter": lambda x, index: x.scatter(0, index, x[:2]),
    "gather": lambda x, index: x.gather(0, index),
    "nll_loss": lambda x, index: F.nll_loss(x[None].repeat(2, 1), index),
}
# Ops of numbers with an order, of one complex tensor of three elements.
ORDERED = {
    **{
        name: lambda x, f=getattr(torch, name): f(x, x)
        for name in (
            "lt", "le", "gt", "ge", "maximum", "minimum", "fmax", "fmin", "atan2", "xlogy",
            "heaviside", "searchsorted", "bucketize", "remainder", "fmod", "hypot", "isin",
        )
    },
    **{
        name: lambda x, f=getattr(torch, name): f(x)
        for name in (
            "sort", "argsort", "msort", "argmax", "argmin", "max", "min", "amax", "amin", "aminmax",
            "median", "nanmedian", "mode", "sign", "logit",
        )
    },
    **{
        f"{name} of a dim": lambda x, f=getattr(torch, name): f(x, 0)
        for name in ("max", "min", "median", "cummax", "cummin", "softmax", "log_softmax")
    },
    "lt of a number": lambda x: x < 1.0,
    "lt of a complex number": lambda x: x.real < 1j,
    "lt_": lambda x: x.clone().lt_(x),
    "lt into out": lambda x: torch.lt(x, x, out=torch.empty(3, dtype=torch.bool, device=x.device)),
    "topk": lambda x: x.topk(2),
    "kthvalue": lambda x: x.kthvalue(1),
    "clamp": lambda x: x.clamp(0),
    "clamp by a tensor": lambda x: x.clamp(x.real),
    "clamp_ by a tensor": lambda x: x.clone().clamp_(x.real),
    "index_reduce": lambda x: x.index_reduce(0, _index(x), x[:2], "amax"),
    "scatter_reduce": lambda x: x.scatter_reduce(0, _index(x), x[:2], "amax"),
    "max_pool": lambda x: F.max_pool1d(x[None], 2),
    "relu_": lambda x: F.relu_(x.clone()),
    "softplus": lambda x: F.softplus(x),
    "_foreach_max": lambda x: torch._foreach_max([x]),
}  # fmt: skip


def outcome(call, *tensors, device):
    """The dtype of a call's result, or its error."""
    moved = [tensor.to(device) for tensor in tensors]
    try:
        result = call(*moved)
    except (RuntimeError, IndexError) as error:
        return error
    return (result if isinstance(result, torch.Tensor) else result[0]).dtype


def check_refusal(call, *tensors):
    """Calls that the CPU refuses are refused, and those it takes are taken, with a result of its
    dtype."""
    on_cpu, on_device = (outcome(call, *tensors, device=device) for device in ("cpu", "xla"))
    assert isinstance(on_device, Exception) == isinstance(on_cpu, Exception), (on_cpu, on_device)
    assert isinstance(on_cpu, Exception) or on_cpu == on_device


class TestRefusedDtypes:
    """Operands that torch's CPU kernels refuse raise, and are not cast in silence."""

    @pytest.mark.parametrize("name", MIXED)
    def test_operands_of_several_dtypes(self, name):
        for one, other in itertools.product(DTYPES, DTYPES):
            if name == "addcmul_" and not one.is_floating_point:
                continue
            check_refusal(MIXED[name], torch.ones(3).to(one), torch.ones(2).to(other))

    @pytest.mark.parametrize("name", INDICES)
    def test_indices(self, name):
        for dtype in (torch.int64, torch.int32, torch.int16, torch.float32):
            check_refusal(INDICES[name], torch.ones(3), torch.tensor([0, 2]).to(dtype))

    @pytest.mark.parametrize("name", ORDERED)
    def test_complex_numbers_have_no_order(self, name):
        x = torch.arange(3.0).to(torch.complex64)
        assert isinstance(outcome(ORDERED[name], x, device="cpu"), Exception)
        assert isinstance(outcome(ORDERED[name], x, device="xla"), Exception)

    def test_words(self):
        x = torch.zeros(3, device="xla")
        with pytest.raises(
            RuntimeError, match=r"index_copy_\(\): self and source expected to have the same dtype"
        ):
            x.index_copy_(0, _index(x), torch.ones(2, device="xla", dtype=torch.float64))
        with pytest.raises(
            NotImplementedError, match="\"lt_cpu\" not implemented for 'ComplexFloat'"
        ):
            _ = x * 1j < x * 1j


class TestRefusedValues:
    """Values that the CPU refuses: an error where the host has them, NaN where only the device
    has."""

    def test_a_deviation_below_0(self):
        for mean in (torch.zeros(3, device="xla"), 0.0):
            with pytest.raises(RuntimeError, match=r"normal expects all elements of std >= 0\.0"):
                torch.normal(mean, torch.tensor([1.0, -1.0, 1.0]).to("xla"))
            computed = torch.arange(3, device="xla") - 1.0
            drawn = torch.normal(mean, computed)
            assert drawn.isnan().tolist() == [True, False, False] and drawn[1].item() == 0

    def test_draws_are_those_of_the_deviation(self):
        spmd.manual_seed(0)
        standard = torch.normal(torch.zeros(2, 3, device="xla"), torch.ones(3, device="xla"))
        spmd.manual_seed(0)
        wide = torch.normal(
            torch.full((2, 3), 5.0, device="xla"), torch.full((3,), 2.0, device="xla")
        )
        torch.testing.assert_close(wide, standard * 2 + 5)

    def test_a_short_source(self):
        target, mask = torch.zeros(3, device="xla"), torch.tensor([True, True, False])
        with pytest.raises(RuntimeError, match="source < number of ones in mask"):
            target.masked_scatter_(mask.to("xla"), torch.ones(1, device="xla"))
        written = target.masked_scatter(
            torch.arange(3, device="xla") < 2, torch.ones(1, device="xla")
        )
        assert written.isnan().tolist() == [False, True, False] and written[0].item() == 1
