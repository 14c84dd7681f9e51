"""The table of rare ops that run by torch's CPU kernel: right, with gradients, told, counted, and
refused in a plan."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import Batch
from torch.nn import functional as F

import spmd
from spmd.core.record.calls import fallback
from spmd.core.record.resolve import PLANS
from spmd.ops import ON_CPU
from spmd.ops.registry import RULES

FUNCTIONS = [
    "airy_ai",
    "bessel_j0",
    "bessel_j1",
    "bessel_y0",
    "bessel_y1",
    "modified_bessel_k0",
    "modified_bessel_k1",
    "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1",
    "spherical_bessel_j0",
]
POLYNOMIALS = [
    *(f"{shifted}chebyshev_polynomial_{kind}" for shifted in ("", "shifted_") for kind in "tuvw"),
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
]


def special(batch: Batch) -> None:
    x = torch.tensor([0.0, -0.0, 2.0, 5.0, -2.09, 110.0, torch.inf, torch.nan])
    for name in FUNCTIONS:
        batch.case(name, getattr(torch.special, name), x, gradient=False)
    points, degrees = torch.linspace(-1.5, 1.2, 8), torch.tensor([[-1.0], [0.0], [1.0], [7.0]])
    for name in POLYNOMIALS:
        function = getattr(torch.special, name)
        batch.case(name, function, points, degrees, gradient=False)
        batch.case(f"{name} of a degree", lambda x, f=function: f(x, 4), points, gradient=False)
        batch.case(f"{name} at a number", lambda n, f=function: f(0.3, n), degrees, gradient=False)


def linear_algebra(batch: Batch) -> None:
    x = torch.randn(3, 4, 4, dtype=torch.float64)
    symmetric, b = x + x.mT, torch.randn(3, 4, 2, dtype=torch.float64)
    batch.case(
        "ldl",
        lambda x, b: torch.linalg.ldl_solve(*torch.linalg.ldl_factor(x), b),
        symmetric,
        b,
        gradient=False,
    )
    batch.case("ormqr", torch.ormqr, *torch.geqrf(x), b)
    batch.case(
        "triangular_solve", lambda b, x: torch.triangular_solve(b, x)[0], b, x + 8 * torch.eye(4)
    )


def statistics(batch: Batch) -> None:
    x, edges = torch.randn(40), torch.tensor([-5.0, -1.0, 0.0, 4.0])
    batch.case(
        "histogram", lambda x: tuple(torch.histogram(x, 7, range=(-3.0, 3.0))), x, gradient=False
    )
    batch.case(
        "histogram edges", lambda x, e: tuple(torch.histogram(x, e)), x, edges, gradient=False
    )
    pairs = x.reshape(20, 2)
    batch.case("histogramdd", lambda x: torch.histogramdd(x, [3, 4]).hist, pairs, gradient=False)
    batch.case(
        "histogramdd edges",
        lambda x, e: torch.histogramdd(x, [e, e]).hist,
        pairs,
        edges,
        gradient=False,
    )
    batch.case("hash_tensor", lambda x: torch.hash_tensor(x).view(torch.int64), x, gradient=False)
    data, lengths = torch.randn(7, 3), torch.tensor([2, 0, 4, 1])
    for reduce in ("sum", "mean", "max", "min", "prod"):
        batch.case(
            reduce,
            lambda x, n, r=reduce: torch.segment_reduce(x, r, lengths=n, initial=0.5),
            data,
            lengths,
        )


def layers(batch: Batch) -> None:
    for rank, pool in ((2, F.fractional_max_pool2d), (3, F.fractional_max_pool3d)):
        samples = torch.rand(2, 3, rank)
        batch.case(
            f"fractional {rank}",
            lambda x, s, pool=pool: pool(x, 2, 3, return_indices=True, _random_samples=s.detach()),
            *(torch.randn(2, 3, *[7] * rank), samples),
        )
    goals = torch.tensor([[1, 0, -1, 2, 2], [3, -1, -1, -1, -1]])
    for reduction in ("none", "mean", "sum"):
        batch.case(
            reduction,
            lambda x, y, r=reduction: F.multilabel_margin_loss(x, y, reduction=r),
            torch.randn(2, 5),
            goals,
        )


@pytest.fixture
def untold() -> None:
    fallback._tell.cache_clear()
    spmd.metrics.clear()


@pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated")
class TestOnCpu:
    """No setting allows them, each has one line, and none is silent."""

    @pytest.mark.parametrize("is_sharded", [False, True])
    @pytest.mark.parametrize("cases", [special, linear_algebra, statistics, layers])
    def test_values_and_gradients(
        self, cases: Callable[[Batch], None], is_sharded: bool, mesh8: spmd.Mesh
    ) -> None:
        batch = Batch(mesh=mesh8, axis="fsdp") if is_sharded else Batch()
        cases(batch)
        batch.check()

    def test_every_row(self, untold: None) -> None:
        for cases in (special, linear_algebra, statistics, layers):
            cases(Batch())
        ran = {name.split(".")[1] for name in spmd.metrics.fallback_ops()}
        assert {f"aten::{name}" for name in ran} == ON_CPU
        assert ON_CPU.isdisjoint(op._schema.name for op in RULES)

    def test_told_once(self, untold: None, capsys: pytest.CaptureFixture[str]) -> None:
        x = torch.rand(3, device="xla")
        for degree in (2, 3, x):
            torch.special.hermite_polynomial_h(x, degree)
        (line,) = capsys.readouterr().err.splitlines()
        words = (
            "spmd: aten.special_hermite_polynomial_h runs on the CPU; spmd.register_lowering "
            "gives it a rule, at "
        )
        assert line.startswith(words + "test_on_cpu.py:")
        assert sum(spmd.metrics.fallback_ops().values()) == 3

    def test_out(self) -> None:
        x, out = torch.rand(3), torch.empty(3, device="xla")
        assert torch.special.airy_ai(x.to("xla"), out=out) is out
        torch.testing.assert_close(out.cpu(), torch.special.airy_ai(x))

    @pytest.mark.parametrize(
        ("where", "run"),
        [
            (
                "spmd.plan and spmd.export",
                lambda x: spmd.plan(lambda: torch.special.airy_ai(torch.rand_like(x)).sum()),
            ),
            (
                "the body of spmd.scan",
                lambda x: spmd.scan(lambda c, y: (c, torch.special.airy_ai(y)), x[0], x),
            ),
            (
                "the body of spmd.cond",
                lambda x: spmd.cond(x[0] > 0, torch.special.airy_ai, torch.sin, (x,)),
            ),
        ],
    )
    def test_where_nothing_has_a_value(
        self, where: str, run: Callable[[torch.Tensor], Any]
    ) -> None:
        words = (
            f"aten.special_airy_ai.default at .*test_on_cpu.* in {where} its operands have no "
            "value yet"
        )
        with pytest.raises(RuntimeError, match=words + ".*spmd.register_lowering"):
            run(torch.rand(3, device="xla"))

    def test_a_rule_comes_first(self) -> None:
        op, x = torch.ops.aten.special_bessel_j0.default, torch.rand(3, device="xla")
        torch.special.bessel_j0(x)
        spmd.register_lowering(op, lambda self: self * 7)
        try:
            spmd.metrics.clear()
            torch.testing.assert_close(torch.special.bessel_j0(x).cpu(), x.cpu() * 7)
            assert not spmd.metrics.fallback_ops()
        finally:
            del RULES[op]
            PLANS.pop(op, None)
