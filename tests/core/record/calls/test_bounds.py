"""Indices out of range: refused as on CPU where they are host data, and no number where only the
device knows them."""

from collections.abc import Callable
from math import nan
from typing import ClassVar

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import spmd

TABLE = torch.arange(12.0).reshape(6, 2)

OPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "embedding": lambda x, i: F.embedding(i, x),
    "embedding_bag": lambda x, i: F.embedding_bag(i[None], x),
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "take_along_dim": lambda x, i: x.take_along_dim(i[:, None], 0),
    "index": lambda x, i: x[i],
    "index of a later dim": lambda x, i: x.t()[:, i],
    "take": lambda x, i: x[:, 0].take(i),
    "scatter": lambda x, i: x.scatter(0, i[:, None], 1.0),
    "scatter in place": lambda x, i: x.clone().scatter_(0, i[:, None], x),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None], x),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i[:, None], x, "amax"),
    "index_add": lambda x, i: x.index_add(0, i, x[:1]),
    "index_copy": lambda x, i: x.index_copy(0, i, x[:1]),
    "index_reduce": lambda x, i: x.index_reduce(0, i, x[:1], "prod"),
    "index_fill": lambda x, i: x.index_fill(0, i, 1.0),
    "index_put": lambda x, i: x.index_put((i,), x[0]),
    "put": lambda x, i: x[:, 0].clone().put_(i, x[0, :1]),
    "write": lambda x, i: write(x.clone(), i),
    "cross_entropy": lambda x, i: F.cross_entropy(x.t()[:1], i),
    "cross_entropy of probabilities' logs": lambda x, i: F.nll_loss(
        x.t()[:1], i, weight=x[:, 0] + 1
    ),
    "multi_margin_loss": lambda x, i: F.multi_margin_loss(x.t()[:1], i),
}


def write(x: Tensor, index: Tensor) -> Tensor:
    x[index] = 7
    return x


def outcome(
    function: Callable[[Tensor, Tensor], Tensor], index: Tensor, device: str
) -> Tensor | type[Exception]:
    try:
        return function(TABLE.to(device), index.to(device)).cpu()
    except (IndexError, RuntimeError) as error:
        return type(error)


class TestHostData:
    @pytest.mark.filterwarnings("ignore:index_reduce.. is in beta")
    @pytest.mark.parametrize("value", [0, 5, 6, 9, -1, -6, -7])
    @pytest.mark.parametrize("name", OPS)
    def test_as_on_cpu(self, name: str, value: int) -> None:
        index = torch.tensor([value])
        made, expected = (outcome(OPS[name], index, device) for device in ("xla", "cpu"))
        if isinstance(expected, type):
            assert made is expected
        else:
            assert isinstance(made, Tensor)
            torch.testing.assert_close(made, expected)

    def test_the_message(self) -> None:
        with pytest.raises(
            IndexError, match=r"embedding: index 9 is out of bounds for dim 0 with size 6"
        ):
            F.embedding(torch.tensor([[1, 9]]).to("xla"), TABLE.to("xla"))

    def test_an_ignored_target(self) -> None:
        logits = torch.randn(4, 6)
        target = torch.tensor([1, -100, 5, -100])
        torch.testing.assert_close(
            F.cross_entropy(logits.to("xla"), target.to("xla")).cpu(),
            F.cross_entropy(logits, target),
        )
        with pytest.raises(IndexError, match="index -1 is out of bounds"):
            F.cross_entropy(logits.to("xla"), torch.tensor([1, -1, 5, -100]).to("xla"))

    def test_only_what_a_view_shows(self) -> None:
        """A batch of tokens whose last column is no input: the labels are another view of the same
        data."""
        tokens = torch.tensor([[1, 2, 9], [3, 4, 9]]).to("xla")
        table = TABLE.to("xla")
        torch.testing.assert_close(
            F.embedding(tokens[:, :-1], table).cpu(), TABLE[torch.tensor([[1, 2], [3, 4]])]
        )
        tokens = torch.tensor([[1, 2, 9], [3, 4, 9]]).to("xla")
        with pytest.raises(IndexError, match="index 9"):
            F.embedding(tokens[:, 1:], table)

    def test_an_index_on_the_cpu(self) -> None:
        with pytest.raises(IndexError, match="index 9"):
            TABLE.to("xla")[torch.tensor([0, 9])]

    def test_nothing_is_read(self) -> None:
        index = torch.tensor([1, 2]).to("xla")
        with spmd.no_host_transfer():
            F.embedding(index, TABLE.to("xla"))


def placed(
    *values: float | list[float], dtype: torch.dtype = torch.float32
) -> Callable[[str], Tensor]:
    return lambda device: torch.tensor(values, dtype=dtype).to(device)


REFUSED: dict[str, Callable[[str], object]] = {
    "normal": lambda d: torch.normal(torch.zeros(2, device=d), placed(-1.0, 1)(d)),
    "normal of one mean": lambda d: torch.normal(0.0, placed(-1.0, 1)(d)),
    "bernoulli": lambda d: torch.bernoulli(placed(0.5, 2)(d)),
    "bernoulli_": lambda d: torch.zeros(2, device=d).bernoulli_(placed(0.5, 2)(d)),
    "multinomial": lambda d: torch.multinomial(placed(0.5, -2)(d), 1),
    "multinomial of nothing": lambda d: torch.multinomial(placed(0, 0)(d), 1),
    "poisson": lambda d: torch.poisson(placed(0.5, -2)(d)),
    "masked_scatter_": lambda d: torch.zeros(4, device=d).masked_scatter_(
        placed(1, 1, 1, 0, dtype=torch.bool)(d), torch.ones(2, device=d)
    ),
    "segments": lambda d: torch.segment_reduce(
        torch.ones(5, device=d), "sum", lengths=placed(1, 2, dtype=torch.int64)(d)
    ),
    "segments of less than nothing": lambda d: torch.segment_reduce(
        torch.ones(5, device=d), "sum", lengths=placed(-1, 6, dtype=torch.int64)(d)
    ),
    "offsets": lambda d: F.embedding_bag(
        torch.zeros(3, device=d).long(),
        torch.ones(3, 2, device=d),
        placed(1, 2, dtype=torch.int64)(d),
    ),
    "offsets past the end": lambda d: F.embedding_bag(
        torch.zeros(3, device=d).long(),
        torch.ones(3, 2, device=d),
        placed(0, 5, dtype=torch.int64)(d),
    ),
    "binary_cross_entropy": lambda d: F.binary_cross_entropy(
        placed(2.0)(d), torch.ones(1, device=d)
    ),
    "binary_cross_entropy's target": lambda d: F.binary_cross_entropy(
        torch.ones(1, device=d), placed(2.0)(d)
    ),
    "multilabel_margin_loss": lambda d: F.multilabel_margin_loss(
        torch.ones(1, 3, device=d), placed([0, 5, -1], dtype=torch.int64)(d)
    ),
    "max_unpool1d": lambda d: F.max_unpool1d(
        torch.ones(1, 2, device=d), placed([0, 9], dtype=torch.int64)(d), 2
    ),
    "lu_unpack": lambda d: torch.lu_unpack(
        torch.eye(2, device=d), placed(1, 5, dtype=torch.int32)(d)
    ),
    "searchsorted": lambda d: torch.searchsorted(
        torch.ones(2, device=d), torch.ones(2, device=d), sorter=placed(0, 7, dtype=torch.int64)(d)
    ),
    "repeat_interleave": lambda d: torch.repeat_interleave(
        placed(1, 2, dtype=torch.int64)(d), output_size=7
    ),
    "ctc_loss": lambda d: F.ctc_loss(
        torch.zeros(5, 2, 4, device=d),
        torch.ones(2, 2, device=d).long(),
        *[placed(9, 1, dtype=torch.int64)(d)] * 2,
    ),
}


class TestHostValues:
    """Chances, counts and lengths that torch's kernels refuse for what they are."""

    @pytest.mark.parametrize("name", REFUSED)
    def test_refused_as_on_cpu(self, name: str) -> None:
        with pytest.raises(Exception) as expected:  # whichever CPU raises
            REFUSED[name]("cpu")
        with pytest.raises(expected.type):
            REFUSED[name]("xla")

    def test_repeats_of_another_tensor(self) -> None:
        """In inference mode the op arrives whole: its first tensor is no count."""
        with torch.inference_mode():
            x, repeats = torch.tensor([5.0, 6.0]).to("xla"), torch.tensor([1, 2]).to("xla")
            assert x.repeat_interleave(repeats, output_size=3).tolist() == [5.0, 6.0, 6.0]

    def test_an_index_that_picks_nothing(self) -> None:
        """torch does not look at it."""
        index, nothing = torch.full((5, 1, 1), 75), torch.zeros(5, 0, 5).long()
        for device in ("cpu", "xla"):
            x, i, none = torch.rand(10, 0, 10, 10).to(device), index.to(device), nothing.to(device)
            assert x[:, none, :, i].shape == (5, 0, 5, 10, 10)
            assert torch.rand(3, 0).to(device)[torch.tensor([7]).to(device)].shape == (1, 0)
            assert torch.rand(3, 0).to(device).index_fill_(
                0, torch.tensor([7]).to(device), 1.0
            ).shape == (3, 0)


class TestDeviceData:
    """The device cannot raise: what is read at an index out of range is NaN, and a NaN guard names
    the op."""

    READS: ClassVar[list[str]] = [
        "embedding",
        "index_select",
        "gather",
        "index",
        "take",
        "cross_entropy",
    ]

    @pytest.mark.parametrize("name", READS)
    def test_no_number(self, name: str) -> None:
        index = torch.tensor([9], device="xla") + 0
        assert torch.isnan(OPS[name](TABLE.to("xla"), index)).all()

    def test_sharded(self, mesh8: spmd.Mesh) -> None:
        table = spmd.mark_sharding(
            torch.arange(32.0).reshape(16, 2).to("xla"), mesh8, ("fsdp", None)
        )
        made = F.embedding(torch.tensor([3, 16, 15, -1], device="xla") + 0, table).cpu()
        torch.testing.assert_close(
            made, torch.tensor([[6.0, 7], [nan, nan], [30, 31], [nan, nan]]), equal_nan=True
        )

    def test_the_guard_names_it(self) -> None:
        with pytest.raises(FloatingPointError, match="embedding"), spmd.nan_guard():
            F.embedding(torch.tensor([9], device="xla") + 0, TABLE.to("xla")).sum().item()


class TestOtherLibraries:
    """The names of torch's ops are free in another library: its op has none of their checks."""

    def test_an_embedding_of_its_own(self) -> None:
        torch.library.define("bounds::embedding", "(Tensor weight, Tensor indices) -> Tensor")
        torch.library.impl(
            "bounds::embedding",
            "CompositeExplicitAutograd",
            lambda weight, indices: weight + indices,
        )
        made = torch.ops.bounds.embedding(torch.ones(2).to("xla"), torch.tensor([9, 9]).to("xla"))
        assert made.tolist() == [10.0, 10.0]
