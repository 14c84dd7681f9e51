"""Reductions, scans and sorts against torch on CPU."""

import math

import pytest
import torch
from support import DEVICE, Batch, distinct

import spmd

DIMS = {"all": None, "first": 0, "last": -1, "two": (0, 2)}


def reductions(batch: Batch, x: torch.Tensor) -> None:
    for label, dim in DIMS.items():
        for keepdim in (False, True):
            where = {} if dim is None else {"dim": dim, "keepdim": keepdim}
            names = ["sum", "amax", "amin", "any", "all"]
            if x.is_floating_point():
                names += ["mean", "logsumexp", "var", "std", "nansum"]
            for name in names:
                if name == "logsumexp" and dim is None:
                    continue
                function = getattr(torch, name)
                batch.case(f"{name} {label} {keepdim}", lambda x, f=function, w=where: f(x, **w), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
class TestReductions:
    """Every dim argument, with and without keepdim."""

    def test_dims(self, dtype):
        batch = Batch()
        reductions(batch, distinct(3, 4, 5, dtype=dtype))
        batch.check()

    def test_indices(self, dtype):
        batch = Batch()
        x = distinct(3, 4, 5, dtype=dtype)
        for name in ("max", "min"):
            function = getattr(torch, name)
            batch.case(name, function, x)
            batch.case(f"{name} dim", lambda x, f=function: f(x, 1), x)
            batch.case(f"{name} keepdim", lambda x, f=function: f(x, -1, keepdim=True), x)
            arg = getattr(torch, f"arg{name}")
            batch.case(f"arg{name}", lambda x, f=arg: (f(x), f(x, 0), f(x, 1, keepdim=True)), x)
        batch.case("sort", lambda x: torch.sort(x, 1), x)
        batch.case("sort descending", lambda x: torch.sort(x, 0, descending=True), x)
        batch.case("topk", lambda x: torch.topk(x, 2), x)
        batch.case("topk smallest", lambda x: torch.topk(x, 2, dim=0, largest=False), x)
        batch.case("kthvalue", lambda x: torch.kthvalue(x, 2), x)
        batch.case("median", lambda x: torch.median(x, 1), x)
        batch.check()

    def test_scans(self, dtype):
        batch = Batch()
        x = distinct(2, 3, 2, dtype=dtype)
        for name in ("cumsum", "cumprod", "cummax", "cummin"):
            batch.case(name, lambda x, f=getattr(torch, name): f(x, 1), x)
        batch.case(
            "count_nonzero",
            lambda x: (torch.count_nonzero(x), torch.count_nonzero(x, 1)),
            x,
            gradient=False,
        )
        batch.case("prod", lambda x: (torch.prod(x), torch.prod(x, 1)), x[:1, :2] + 1)
        batch.check()

    def test_scans_of_flips(self, dtype):
        """A scan of what was flipped along its dim alone is one from the end."""
        batch = Batch()
        x = distinct(2, 3, 2, dtype=dtype)
        # the CPU has no logcumsumexp of integers
        for name in ("cumsum", "cumprod", *(["logcumsumexp"] if dtype.is_floating_point else [])):
            scan = getattr(torch, name)
            batch.case(f"{name} and back", lambda x, f=scan: f(x.flip(1), 1).flip(1), x)
            batch.case(f"{name} of two", lambda x, f=scan: f(x.flip(0, 1), 1), x)
            batch.case(f"{name} of another", lambda x, f=scan: f(x.flip(0), -2).flip(1), x)
            batch.case(f"{name} of a cast", lambda x, f=scan: f(x.flip(1).double(), 1), x)
        batch.case("integers", lambda x: x.int().flip(0).cumsum(0), x, gradient=False)
        batch.check()


def test_the_gradient_of_a_sum_reverses_nothing():
    x = torch.randn(4, 6).to("xla").requires_grad_()
    (grad,) = torch.autograd.grad((x.cumsum(1) * torch.arange(6.0).to("xla")).sum(), x)
    assert " reverse(" not in spmd.get_hlo([grad])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
class TestNorms:
    """Vector norms of every order, and moments with a correction."""

    def test_vector_norm(self, dtype):
        batch = Batch()
        x = distinct(3, 5, dtype=dtype) + 0.125
        for order in (0, 1, 2, 3, math.inf, -math.inf):
            batch.case(f"norm {order}", lambda x, o=order: torch.linalg.vector_norm(x, o), x)
            batch.case(
                f"norm {order} dim", lambda x, o=order: torch.linalg.vector_norm(x, o, 1, True), x
            )
        batch.check()

    def test_moments(self, dtype):
        batch = Batch()
        x = distinct(3, 5, dtype=dtype)
        for correction in (0, 1, 2):
            batch.case(
                f"var {correction}", lambda x, c=correction: torch.var(x, 1, correction=c), x
            )
            batch.case(
                f"std_mean {correction}",
                lambda x, c=correction: torch.std_mean(x, 0, correction=c),
                x,
            )
        batch.check()


class TestSpecialValues:
    """NaN wins every extreme; an empty dim list is every dim; a 0-d tensor has dims 0 and -1."""

    def test_nan_and_empty(self):
        batch = Batch()
        x = torch.tensor([[1.0, float("nan"), 2.0], [-float("inf"), 3.0, -1.0]])
        for name in ("amax", "amin", "max", "min", "argmax", "argmin", "nansum", "sum", "median"):
            batch.case(name, getattr(torch, name), x, gradient=False)
        batch.case(
            "logsumexp",
            lambda x: torch.logsumexp(x, 1),
            torch.full((2, 3), -float("inf")),
            gradient=False,
        )
        batch.case(
            "scalar",
            lambda x: (x.sum(0), x.max(-1)[0], x.cumsum(0), x.sort(0)[0]),
            torch.tensor(2.5),
        )
        batch.case(
            "empty",
            lambda x: (x.sum(0), x.prod(0), x.any(0), x.all(0)),
            torch.zeros(0, 3),
            gradient=False,
        )
        batch.check()


class TestSharded:
    """Reductions along and across the sharded dim."""

    def test_partitioned(self, mesh8):
        batch = Batch(mesh=mesh8, axis="fsdp")
        reductions(batch, distinct(8, 4, 5))
        x = distinct(8, 6)
        batch.case("argmax", lambda x: (x.argmax(), x.argmax(0), x.argmax(1)), x, gradient=False)
        batch.case("cumsum", lambda x: x.cumsum(0), x)
        batch.case("sort", lambda x: torch.sort(x, 0), x)
        batch.check()


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_nan_on_one_of_several_devices(
    dtype: torch.dtype, partitioner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A maximum over sharded rows is NaN where one of them is: XLA's CPU devices drop it when they
    combine theirs."""
    monkeypatch.setattr(spmd.config, "partitioner", partitioner)
    mesh = spmd.Mesh(range(8), (2, 4), ("a", "b"))
    compared = []
    for place in (0, 3, 7):
        x = torch.arange(24.0).reshape(8, 3).to(dtype)
        x[place, 1] = torch.nan
        sharded = spmd.mark_sharding(x.to(DEVICE), mesh, (("a", "b"), None))
        for function in (
            lambda x: x.amax(0),
            lambda x: x.amin(0),
            lambda x: x.max(),
            lambda x: x.min(),
            lambda x: x.max(0)[0],
            lambda x: torch.stack(torch.aminmax(x, dim=0)),
            lambda x: torch.linalg.vector_norm(x, torch.inf, dim=0),
            lambda x: torch.zeros_like(x[:2]).index_reduce(
                0, torch.zeros(8, dtype=int, device=x.device), x, "amax"
            ),
            lambda x: torch.zeros_like(x[:2]).scatter_reduce(
                0, torch.zeros_like(x, dtype=int), x, "amin"
            ),
        ):
            compared.append((function(sharded), function(x)))
    spmd.sync()
    for result, expected in compared:
        torch.testing.assert_close(result.cpu(), expected, equal_nan=True)
