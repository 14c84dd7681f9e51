"""Elementwise ops against torch on CPU: values, gradients, promotion, NaN and infinities."""

import pytest
import torch
from support import Batch

FLOATS = [torch.float32, torch.bfloat16]

# Each with a range in which it is smooth: (low, high).
UNARY = {
    "acos": (-0.9, 0.9), "acosh": (1.1, 4), "asin": (-0.9, 0.9), "asinh": (-3, 3), "atan": (-3, 3),
    "atanh": (-0.9, 0.9), "cos": (-3, 3), "cosh": (-2, 2), "deg2rad": (-90, 90),
    "digamma": (0.5, 4), "erf": (-2, 2), "erfc": (-1, 1), "erfinv": (-0.9, 0.9), "exp": (-2, 2),
    "exp2": (-2, 2), "expm1": (-2, 2), "lgamma": (0.5, 4), "log": (0.5, 4), "log10": (0.5, 4),
    "log1p": (-0.5, 4), "log2": (0.5, 4), "rad2deg": (-2, 2), "reciprocal": (0.5, 4),
    "rsqrt": (0.5, 4), "sigmoid": (-3, 3), "sin": (-3, 3), "sinh": (-2, 2), "sqrt": (0.5, 4),
    "tan": (-1, 1), "tanh": (-2, 2), "abs": (-3, 3), "ceil": (-3, 3), "floor": (-3, 3),
    "frac": (-3, 3), "neg": (-3, 3), "relu": (-3, 3), "round": (-3, 3), "sign": (-3, 3),
    "trunc": (-3, 3), "square": (-3, 3),
}  # fmt: skip

BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "atan2",
    "hypot",
    "logaddexp",
    "remainder",
    "fmod",
]

COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor"]

SPECIAL = [
    float("nan"),
    float("inf"),
    -float("inf"),
    0.0,
    -0.0,
    0.5,
    1.5,
    2.5,
    -0.5,
    -1.5,
    1.0,
    -1.0,
    7.25,
    -7.25,
]


def within(low: float, high: float, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.rand(shape) * (high - low) + low).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
class TestFloats:
    """Values and gradients of smooth inputs."""

    def test_unary(self, dtype):
        batch = Batch()
        for name, (low, high) in UNARY.items():
            batch.case(name, getattr(torch, name), within(low, high, 3, 5, dtype=dtype))
        batch.check()

    def test_binary_broadcasts(self, dtype):
        batch = Batch()
        left, right = within(0.5, 3, 4, 1, 5, dtype=dtype), within(0.5, 3, 6, 1, dtype=dtype)
        for name in BINARY:
            batch.case(name, getattr(torch, name), left, right)
        for name in COMPARISONS:
            batch.case(name, getattr(torch, name), left, right, gradient=False)
        batch.check()

    def test_numbers_keep_the_dtype(self, dtype):
        batch = Batch()
        x = within(0.5, 3, 4, 5, dtype=dtype)
        for exponent in (0, 1, 2, 3, -1, -2, 0.5, -0.5, 1.7):
            batch.case(f"pow {exponent}", lambda x, e=exponent: x**e, x)
        batch.case("number ** x", lambda x: 1.7**x, x)
        batch.case("axpy", lambda x: torch.add(x, x, alpha=0.3), x)
        batch.case("rsub", lambda x: 2 - x, x)
        batch.case("div", lambda x: 1 / x + x / 3, x)
        batch.case("remainder", lambda x: x % 0.7, x)
        batch.case("compare", lambda x: (x > 1.5, x == 2, x <= 1), x)
        batch.check()

    def test_ternary(self, dtype):
        batch = Batch()
        a, b, c = (within(0.5, 3, 4, 5, dtype=dtype) for _ in range(3))
        batch.case("addcmul", lambda a, b, c: torch.addcmul(a, b, c, value=0.3), a, b, c)
        batch.case("addcdiv", lambda a, b, c: torch.addcdiv(a, b, c, value=-0.3), a, b, c)
        batch.case("lerp near", lambda a, b: torch.lerp(a, b, 0.1), a, b)
        batch.case("lerp far", lambda a, b: torch.lerp(a, b, 0.9), a, b)
        batch.case("lerp tensor", torch.lerp, a, b, c / 3)
        batch.case("where", lambda a, b: torch.where(a > b, a, b), a, b)
        batch.case("where number", lambda a: torch.where(a > 1, a, 0.0), a)
        batch.case("masked_fill", lambda a: a.masked_fill(a > 1, -float("inf")), a)
        batch.case("clamp", lambda a: a.clamp(0.9, 2), a)
        batch.case("clamp tensor", torch.clamp, a, b, c)
        batch.check()


class TestSpecialValues:
    """NaN, infinities, signed zeros and halves come out as torch's."""

    def test_unary(self):
        batch = Batch()
        x = torch.tensor(SPECIAL)
        names = [
            "relu", "sign", "round", "floor", "ceil", "trunc", "abs", "exp", "log", "sqrt", "rsqrt",
            "sigmoid", "tanh", "isnan", "isinf", "isfinite", "isposinf", "isneginf", "nan_to_num",
            "logical_not", "signbit", "angle", "reciprocal", "digamma",
        ]  # fmt: skip
        for name in names:
            batch.case(name, getattr(torch, name), x, gradient=False)
        for low, high in ((-1, 1), (None, 0), (0, None), (2, 1)):
            batch.case(
                f"clamp {low} {high}",
                lambda x, low=low, high=high: x.clamp(low, high),
                x,
                gradient=False,
            )
        batch.check()

    def test_a_bound_that_is_nan(self):
        """All becomes NaN, as on CPU; torch 2.11's ignores it in `clamp` where it is the only
        bound."""
        x, nan = torch.tensor(SPECIAL), float("nan")
        for clamp in (
            lambda x: x.clamp(nan),
            lambda x: x.clamp(max=nan),
            lambda x: x.clamp(nan, 1),
            lambda x: x.clamp(0, nan),
            lambda x: x.clamp_min(nan),
            lambda x: x.clamp_max(nan),
        ):
            assert clamp(x.to("xla")).isnan().all()
        for clamp in (torch.clamp_min, torch.clamp_max):
            assert clamp(x, nan).isnan().all()

    def test_binary(self):
        batch = Batch()
        rows, columns = torch.tensor(SPECIAL)[:, None], torch.tensor(SPECIAL)
        names = [
            "maximum",
            "minimum",
            "fmax",
            "fmin",
            "remainder",
            "fmod",
            "floor_divide",
            "pow",
            "atan2",
            "copysign",
            "xlogy",
            "eq",
            "lt",
        ]
        for name in names:
            batch.case(name, getattr(torch, name), rows, columns, gradient=False)
        poles = torch.tensor(
            [-3.0, -2.0, -1.5, 0.0, 0.5, 1.0, 2.0, 3.0, torch.inf, -torch.inf, torch.nan]
        )
        angles = torch.complex(torch.randn(6, 1) * 4, torch.linspace(-9, 9, 6)[:, None])
        batch.case("logaddexp", torch.logaddexp, angles, angles[:, 0] * 2)
        for weight in (0.1 + 0.2j, 2 - 1j):  # near and far
            batch.case(
                f"lerp {weight}", lambda a, b, w=weight: torch.lerp(a, b, w), angles, angles * 1j
            )
        batch.case("zeta", torch.special.zeta, poles[:8, None], poles, gradient=False)
        for mode in ("trunc", "floor", None):
            batch.case(
                f"div {mode}",
                lambda a, b, m=mode: torch.div(a, b, rounding_mode=m),
                rows,
                columns,
                gradient=False,
            )
        batch.check()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool])
class TestExact:
    """Integers and booleans, and how they promote."""

    def test_arithmetic(self, dtype):
        batch = Batch()
        a, b = (torch.randint(-9, 10, (6, 7)).to(dtype) for _ in range(2))
        b = torch.where(b == 0, torch.ones_like(b), b)
        names = [
            "add",
            "mul",
            "div",
            "maximum",
            "minimum",
            "bitwise_and",
            "bitwise_or",
            "bitwise_xor",
            *COMPARISONS,
        ]
        if dtype != torch.bool:
            names += ["sub", "remainder", "fmod", "floor_divide", "pow", "gcd", "lcm"]
        for name in names:
            batch.case(name, getattr(torch, name), a, b)
        for name in ("exp", "sqrt", "sigmoid", "bitwise_not", "logical_not", "sin"):
            batch.case(name, getattr(torch, name), a * a)
        batch.case("promotes", lambda a: (a * 2, a * 0.5, a + 1, a / 2, a == 1), a)
        batch.case("where", lambda a: torch.where(a > 0, a, 0.5), a)
        batch.check()

    def test_integer_only(self, dtype):
        if dtype == torch.bool:
            return
        batch = Batch()
        a, b = torch.randint(-99, 99, (20,)).to(dtype), torch.randint(1, 5, (20,)).to(dtype)
        for mode in ("trunc", "floor", None):
            batch.case(f"div {mode}", lambda a, b, m=mode: torch.div(a, b, rounding_mode=m), a, b)
        for exponent in (0, 1, 2, 5):
            batch.case(f"pow {exponent}", lambda a, e=exponent: a**e, a)
        batch.case("abs", torch.abs, a)
        batch.case("shifts", lambda a, b: (a << b, a >> b), a, b)
        batch.case("pow of one", lambda b: torch.tensor([1, -1, 2]).to(b)[:, None] ** -b, b)
        batch.case("clamp", lambda a: (a.clamp(-5, 5), a.clamp(min=0.5)), a)
        batch.check()


class TestSharded:
    """The same on eight devices."""

    def test_partitioned(self, mesh8):
        batch = Batch(mesh=mesh8, axis="fsdp")
        a, b = (within(0.5, 3, 8, 5, dtype=torch.float32) for _ in range(2))
        for name in ("add", "mul", "div", "maximum", "lt"):
            batch.case(name, getattr(torch, name), a, b, gradient=name != "lt")
        for name in ("exp", "tanh", "rsqrt", "relu"):
            batch.case(name, getattr(torch, name), a)
        batch.case("broadcast", lambda a, b: a * b.sum(0), a, b)
        batch.check()
