"""Advanced indexing with every kind of index, edge values and type promotion, as on CPU."""

import itertools
from typing import Any

import pytest
import torch
from support import Batch, check

import spmd

LONG = torch.tensor([2, 0, 3, 0])
MASK = torch.tensor([True, False, True, True])
MASK2 = torch.arange(12).view(4, 3) % 3 == 1

# Each one indexes a tensor of shape (4, 3, 2).
INDICES: dict[str, Any] = {
    "int": 1, "negative int": -1, "slice": slice(1, 3), "step": slice(None, None, 2),
    "empty slice": slice(2, 2), "beyond": slice(1, 100), "None": None, "Ellipsis": ...,
    "Ellipsis int": (..., 1), "int Ellipsis": (1, ..., None), "two ints": (1, 2),
    "three ints": (1, 2, 0), "slices": (slice(1, 3), slice(0, 2)),
    "None between": (0, None, slice(1, 3)), "list": [0, 2], "negative list": [-1, 0, 1],
    "empty list": [], "bool list": [True, False, True, False], "long": LONG, "int32": LONG.int(),
    "2-d long": LONG.view(2, 2), "0-d long": torch.tensor(2), "mask": MASK, "2-d mask": MASK2,
    "all false": torch.zeros(4, dtype=torch.bool), "True": True, "False": False,
    "0-d mask": torch.tensor(True), "long slice": (LONG, slice(1, 3)),
    "slice long": (slice(1, 3), LONG % 3), "long long": (LONG, LONG % 3), "long None": (LONG, None),
    "apart": (LONG, slice(None), LONG % 2), "together": (slice(None), LONG % 3, LONG % 2),
    "int and long": (1, slice(None), LONG % 2), "broadcast": (LONG[:, None], LONG[None] % 3),
    "mask slice": (MASK, slice(0, 2)), "mask int": (MASK, 1),
    "slice mask": (slice(None), torch.tensor([True, False, True])),
    "mask long": (MASK, torch.tensor([0, 1, 2])), "Ellipsis long": (..., LONG % 2),
    "long Ellipsis": (LONG, ...), "list in tuple": ([0, 1], [1, 2]),
    "empty long": torch.zeros(0, dtype=torch.int64),
    "mixed": (slice(1, None), [0, 2], None, ..., 0), "range": range(2),
    "two masks": (MASK, torch.tensor([True, True, True])),
}  # fmt: skip

HOST_KINDS = {
    name
    for name in INDICES
    if "mask" in name or name in ("bool list", "all false", "True", "False")
}


def moved(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(moved(part) for part in index)
    return index.to("xla") if isinstance(index, torch.Tensor) else index


SOURCE = torch.arange(24.0).view(4, 3, 2)
QUIET = pytest.mark.filterwarnings(
    "ignore:indexing with dtype torch.uint8:UserWarning", "ignore:.*torch.uint8.*:UserWarning"
)


@QUIET
class TestIndexing:
    """Reads, writes of numbers and tensors, accumulation and gradients."""

    @pytest.mark.parametrize("name", INDICES)
    def test_like_cpu(self, name: str) -> None:
        index = INDICES[name]
        cases: list[tuple[torch.Tensor, torch.Tensor]] = []
        for place in (moved(index), index):  # index tensors may stay on the host, as torch allows
            x, y = SOURCE.to("xla").requires_grad_(), SOURCE.clone().requires_grad_()
            try:
                expected = y[index]
            except IndexError as error:
                with pytest.raises(IndexError, match=str(error)[:20]):
                    x[place].cpu()
                return
            actual = x[place]
            if expected.numel():
                (actual * actual).sum().backward()
                (expected * expected).sum().backward()
                cases.append((x.grad, y.grad))
            cases.append((actual, expected))
            x, y = SOURCE.to("xla") * 1, SOURCE.clone()
            x[place] = -1.5
            y[index] = -1.5
            cases.append((x, y))
            x, y = SOURCE.to("xla") * 1, SOURCE.clone()
            given = (
                torch.arange(float(max(expected.shape[-1:] or (1,))))
                if expected.dim()
                else torch.tensor(7.0)
            )
            if expected.shape[-1:] != (0,):
                x[place] = given.to("xla")
                y[index] = given
                x[place] += 2
                y[index] += 2
                cases.append((x, y))
        for one, other in cases:
            check(one, other)

    def test_index_put(self) -> None:
        values = torch.arange(8.0).view(4, 2)
        for accumulate in (False, True):
            index = (LONG if accumulate else torch.tensor([2, 0, 3, 1]), torch.tensor([0, 1, 2, 0]))
            x = SOURCE.to("xla").index_put(moved(index), values.to("xla"), accumulate)
            check(x, SOURCE.index_put(index, values, accumulate))

    @pytest.mark.parametrize(
        "index", [torch.tensor([2, 0]), torch.tensor([True, False, True, False])]
    )
    def test_index_put_impl(self, index: torch.Tensor) -> None:
        """The in-place op that `index_put_` ends in, by its own name."""
        values = torch.arange(2.0 * SOURCE[0].numel()).view(2, *SOURCE.shape[1:])
        for accumulate in (False, True):
            x, y = SOURCE.to("xla", copy=True), SOURCE.clone()
            assert torch._index_put_impl_(x, [index.to("xla")], values.to("xla"), accumulate) is x
            check(x, torch._index_put_impl_(y, [index], values, accumulate))

    def test_refusals(self) -> None:
        x = SOURCE.to("xla")
        for index in (slice(None, None, -1), slice(3, 0, -2)):
            with pytest.raises(ValueError, match="step must be greater than zero"):
                x[index]
        for index in (4, -5, (0, 3), (0, 0, 0, 0), torch.ones(3, dtype=torch.bool)):
            with pytest.raises(IndexError):
                x[moved(index)].cpu()
        with pytest.raises((RuntimeError, IndexError)):
            x[0] = torch.ones(5).to("xla")

    @pytest.mark.parametrize("device", ["cpu", "xla"])
    def test_refusals_as_on_cpu(self, device: str) -> None:
        """At once, and never by broadcasting a mask or cutting off a fraction."""
        x, whole = (
            torch.zeros(4, 3, device=device),
            torch.zeros(4, dtype=torch.int64, device=device),
        )
        picks = torch.tensor([1, 2], device=device)
        for mask in (torch.ones(4, 1), torch.ones(1, 3), torch.ones(1), torch.ones(4, 3, 1)):
            with pytest.raises(IndexError, match=r"mask|too many indices"):
                x[mask.bool().to(device)] = 1.0
        for dtype in (torch.float32, torch.int8, torch.int16, torch.complex64):
            index = torch.ones(2, device=device).to(dtype)
            with pytest.raises(
                IndexError, match="tensors used as indices must be long, int, byte or bool"
            ):
                x[index]
            with pytest.raises(
                IndexError, match="tensors used as indices must be long, int, byte or bool"
            ):
                x[index] = 1.0
        with pytest.raises(RuntimeError, match="source and destination dtypes match"):
            whole[picks] = torch.tensor([0.5, 1.5], device=device)
        for value in (torch.ones(2, 2), torch.ones(4), torch.ones(2, 1, 3)):
            with pytest.raises(RuntimeError, match="shape mismatch: value tensor of shape"):
                x[picks] = value.to(device)
        with pytest.raises(
            IndexError, match="shape mismatch: indexing tensors could not be broadcast"
        ):
            x[picks, torch.tensor([0, 1, 2], device=device)] = 1.0
        x[picks] = torch.ones(1, 1, 1, 3, device=device)
        whole[whole == 0] = torch.tensor(2.5)
        assert x.sum().item() == 6.0 and whole.tolist() == [2] * 4

    def test_write_of_another_dtype(self) -> None:
        x, y = torch.zeros(4, dtype=torch.int64, device="xla"), torch.zeros(4, dtype=torch.int64)
        x[1:3], y[1:3] = 2.7, 2.7
        x[0], y[0] = torch.tensor(3.9, device="xla"), torch.tensor(3.9)
        check(x, y)


class TestEdges:
    """Zero-size and 0-dim tensors, NaN and infinity."""

    def test_zero_size(self) -> None:
        batch = Batch()
        empty, wide = torch.zeros(0, 3), torch.zeros(2, 0, 3)
        for name, function in {
            "sum": lambda x: x.sum(), "sum dim": lambda x: x.sum(0), "mean": lambda x: x.mean(),
            "prod": lambda x: x.prod(), "exp": torch.exp, "cat": lambda x: torch.cat([x, x]),
            "view": lambda x: x.reshape(-1), "all": lambda x: (x > 0).all(),
            "any": lambda x: (x > 0).any(), "softmax": lambda x: x.softmax(-1),
            "cumsum": lambda x: x.cumsum(0), "matmul": lambda x: x @ x.new_ones(3, 2),
            "sort": lambda x: x.sort(-1).values, "flip": lambda x: x.flip(0),
            "norm": lambda x: x.norm(), "transpose": lambda x: x.transpose(0, 1),
            "where": lambda x: torch.where(x > 0, x, x), "argsort": lambda x: x.argsort(),
            "pad": lambda x: torch.nn.functional.pad(x, (1, 1)),
            "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (3,)),
            "logsumexp": lambda x: x.logsumexp(-1),
            "linear": lambda x: torch.nn.functional.linear(x, x.new_ones(4, 3)),
        }.items():  # fmt: skip
            batch.case(name, function, empty)
            batch.case(f"{name} 3-d", function, wide)
        batch.check()
        for reduction in (torch.max, torch.min, torch.argmax, torch.amax):
            with pytest.raises((RuntimeError, IndexError)):
                reduction(empty.to("xla")).cpu()

    def test_zero_dim(self) -> None:
        batch = Batch()
        x = torch.tensor(2.5)
        for name, function in {
            "sum": lambda x: x.sum(), "sum 0": lambda x: x.sum(0), "max": lambda x: x.max(0).values,
            "softmax": lambda x: x.softmax(0), "view": lambda x: x.view(1, 1),
            "add": lambda x: x + torch.ones(3, device=x.device), "cumsum": lambda x: x.cumsum(0),
            "sort": lambda x: x.sort().values, "index": lambda x: x[None],
            "Ellipsis": lambda x: x[...], "stack": lambda x: torch.stack([x, x]),
            "norm": lambda x: x.norm(), "var": lambda x: x.var(correction=0),
            "flip": lambda x: x.flip(()), "unsqueeze": lambda x: x.unsqueeze(0),
        }.items():  # fmt: skip
            batch.case(name, function, x)
        batch.check()

    def test_nan_and_infinity(self) -> None:
        batch = Batch()
        nan, inf = float("nan"), float("inf")
        x, y = (
            torch.tensor([nan, inf, -inf, 1.0, -0.0, 0.0, nan]),
            torch.tensor([1.0, nan, inf, 0.0, -0.0, -inf, nan]),
        )
        one = {
            "max": lambda x: x.max(), "min": lambda x: x.min(), "argmax": lambda x: x.argmax(),
            "argmin": lambda x: x.argmin(), "max dim": lambda x: torch.max(x, 0),
            "sort": lambda x: x.sort().values,
            "descending": lambda x: x.sort(descending=True).values, "sum": torch.sum,
            "nansum": torch.nansum, "nanmean": torch.nanmean, "median": lambda x: x.median(),
            "nanmedian": lambda x: x.nanmedian(), "cummax": lambda x: x.cummax(0),
            "cumsum": lambda x: x.cumsum(0), "cumprod": lambda x: x.cumprod(0),
            "isnan": torch.isnan, "isinf": torch.isinf, "nan_to_num": torch.nan_to_num,
            "sign": torch.sign, "signbit": torch.signbit, "relu": torch.relu,
            "clamp": lambda x: x.clamp(-1, 1), "softmax": lambda x: x.softmax(0),
            "sigmoid": torch.sigmoid, "tanh": torch.tanh, "silu": torch.nn.functional.silu,
            "softplus": torch.nn.functional.softplus, "topk": lambda x: x.topk(3).values,
            "logsumexp": lambda x: x.logsumexp(0), "norm": torch.norm, "prod": torch.prod,
            "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt,
            "unique": lambda x: torch.unique(x[1:6]), "amax": lambda x: x.amax(0),
            "aminmax": lambda x: torch.aminmax(x), "reciprocal": torch.reciprocal,
            "round": torch.round, "frac": torch.frac, "erf": torch.erf,
            "hardtanh": torch.nn.functional.hardtanh,
            "leaky": torch.nn.functional.leaky_relu,
        }  # fmt: skip
        two = {
            "maximum": torch.maximum, "minimum": torch.minimum, "fmax": torch.fmax,
            "fmin": torch.fmin, "eq": torch.eq, "lt": torch.lt, "ne": torch.ne, "add": torch.add,
            "mul": torch.mul, "div": torch.div, "pow": torch.pow, "atan2": torch.atan2,
            "fmod": torch.fmod, "remainder": torch.remainder, "logaddexp": torch.logaddexp,
            "xlogy": torch.xlogy, "copysign": torch.copysign, "hypot": torch.hypot,
            "nextafter": torch.nextafter, "floor_divide": torch.floor_divide,
            "isclose": torch.isclose, "heaviside": torch.heaviside, "ge": torch.ge,
        }  # fmt: skip
        for name, function in one.items():
            batch.case(name, function, x, gradient=False)
        for name, function in two.items():
            batch.case(name, function, x, y, gradient=False)
        batch.check()


# jax has no such dtypes; torch 2.15 has the second, and makes it of bfloat16 and complex numbers.
SHORT_COMPLEX = (torch.complex32, getattr(torch, "bcomplex32", None))
HALF = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]


@HALF
class TestPromotion:
    """Results' dtypes and values over all pairs of dtypes, dimensions and Python numbers."""

    @pytest.mark.parametrize("name", ["add", "div", "where", "pow"])
    def test_pairs(self, name: str) -> None:
        function: Any = (
            (
                lambda x, y: torch.where(
                    torch.tensor([True, False, True], device=y.device if y.dim() else x.device),
                    x,
                    y,
                )
            )
            if name == "where"
            else (lambda x, y: torch.cat([x.reshape(-1), y.reshape(-1)]))
            if name == "cat"
            else getattr(torch, name)
        )
        compared = []
        for one, other in itertools.product(DTYPES, DTYPES):
            for x, y in (
                (torch.tensor([1, 2, 3]), torch.tensor([3, 1, 2])),
                (torch.tensor([1, 2, 3]), torch.tensor(2)),
            ):
                x, y = x.to(one), y.to(other)
                try:
                    expected = function(x, y)
                except (RuntimeError, NotImplementedError):
                    continue
                if expected.dtype in SHORT_COMPLEX:
                    continue
                compared.append(
                    (
                        f"{name} of {one}{list(x.shape)} and {other}{list(y.shape)}",
                        function(x.to("xla"), y.to("xla")),
                        expected,
                    )
                )
        spmd.sync()
        wrong = [
            f"{what}: {a.dtype} {a.tolist()}, on cpu {b.dtype} {b.tolist()}"
            for what, a, b in compared
            if not _same(a, b)
        ]
        assert not wrong, "\n".join(wrong[:20]) + f"\n{len(wrong)} of {len(compared)}"

    def test_numbers(self) -> None:
        compared = []
        for dtype in DTYPES:
            for number in (True, 2, 2.5, 1 + 2j):
                for name in ("add", "mul", "sub", "true_divide"):
                    x = torch.tensor([1, 2, 3]).to(dtype)
                    try:
                        expected = getattr(torch, name)(x, number)
                    except RuntimeError:
                        continue
                    if expected.dtype == torch.complex32:
                        continue
                    compared.append(
                        (
                            f"{name} of {dtype} and {number}",
                            getattr(torch, name)(x.to("xla"), number),
                            expected,
                        )
                    )
        spmd.sync()
        wrong = [
            f"{what}: {a.dtype} {a.tolist()}, on cpu {b.dtype} {b.tolist()}"
            for what, a, b in compared
            if not _same(a, b)
        ]
        assert not wrong, "\n".join(wrong[:20])

    def test_in_place_keeps_the_dtype(self) -> None:
        for dtype in DTYPES:
            for other in DTYPES:
                x, y = torch.ones(3).to(dtype), torch.ones(3).to(other)
                if torch.can_cast(torch.result_type(x, y), dtype):
                    assert x.to("xla").add_(y.to("xla")).dtype == dtype
                else:
                    with pytest.raises(RuntimeError, match=r"can't be cast|element size change"):
                        x.to("xla").add_(y.to("xla"))


def _same(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    try:
        check(actual, expected)
    except AssertionError:
        return False
    return True
