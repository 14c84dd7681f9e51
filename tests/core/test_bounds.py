"""Indices out of range: refused as on CPU where they are host data, and no number where only the device knows them."""

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
    "cross_entropy of probabilities' logs": lambda x, i: F.nll_loss(x.t()[:1], i, weight=x[:, 0] + 1),
    "multi_margin_loss": lambda x, i: F.multi_margin_loss(x.t()[:1], i),
}


def write(x: Tensor, index: Tensor) -> Tensor:
    x[index] = 7
    return x


def outcome(function: Callable[[Tensor, Tensor], Tensor], index: Tensor, device: str) -> Tensor | type[Exception]:
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
        with pytest.raises(IndexError, match=r"embedding: index 9 is out of bounds for dim 0 with size 6"):
            F.embedding(torch.tensor([[1, 9]]).to("xla"), TABLE.to("xla"))

    def test_an_ignored_target(self) -> None:
        logits = torch.randn(4, 6)
        target = torch.tensor([1, -100, 5, -100])
        torch.testing.assert_close(
            F.cross_entropy(logits.to("xla"), target.to("xla")).cpu(), F.cross_entropy(logits, target)
        )
        with pytest.raises(IndexError, match="index -1 is out of bounds"):
            F.cross_entropy(logits.to("xla"), torch.tensor([1, -1, 5, -100]).to("xla"))

    def test_only_what_a_view_shows(self) -> None:
        """A batch of tokens whose last column is no input: the labels are another view of the same data."""
        tokens = torch.tensor([[1, 2, 9], [3, 4, 9]]).to("xla")
        table = TABLE.to("xla")
        torch.testing.assert_close(F.embedding(tokens[:, :-1], table).cpu(), TABLE[torch.tensor([[1, 2], [3, 4]])])
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


class TestDeviceData:
    """The device cannot raise: what is read at an index out of range is NaN, and a NaN guard names the op."""

    READS: ClassVar[list[str]] = ["embedding", "index_select", "gather", "index", "take", "cross_entropy"]

    @pytest.mark.parametrize("name", READS)
    def test_no_number(self, name: str) -> None:
        index = torch.tensor([9], device="xla") + 0
        assert torch.isnan(OPS[name](TABLE.to("xla"), index)).all()

    def test_sharded(self, mesh8: spmd.Mesh) -> None:
        table = spmd.mark_sharding(torch.arange(32.0).reshape(16, 2).to("xla"), mesh8, ("fsdp", None))
        made = F.embedding(torch.tensor([3, 16, 15, -1], device="xla") + 0, table).cpu()
        torch.testing.assert_close(made, torch.tensor([[6.0, 7], [nan, nan], [30, 31], [nan, nan]]), equal_nan=True)

    def test_the_guard_names_it(self) -> None:
        with pytest.raises(FloatingPointError, match="embedding"), spmd.nan_guard():
            F.embedding(torch.tensor([9], device="xla") + 0, TABLE.to("xla")).sum().item()
