"""Rows that data counts (`nonzero`, `where`, a boolean index): one program for many counts, with
the numbers of the CPU."""

import random
from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import spmd
from spmd.core import cache, storage_of

Op = Callable[[Tensor, Tensor], Tensor]


def rows_of(x: Tensor, mask: Tensor) -> Tensor:
    return x[torch.where(mask)[0]]


def zeros_like_rows(x: Tensor, mask: Tensor) -> Tensor:
    """Zeros of the rows' shape, written through a mask of them."""
    rows = rows_of(x, mask)
    written = torch.zeros_like(rows)
    index = torch.arange(len(rows), device=x.device)
    written[index] = rows * 2
    return (written + rows).sum(0)


def put(x: Tensor, mask: Tensor) -> Tensor:
    index = torch.where(mask)[0]
    target = torch.ones(24, 4, dtype=x.dtype, device=x.device)
    target[index] = x[index].exp()
    return target


def put_one(x: Tensor, mask: Tensor) -> Tensor:
    index = torch.where(mask)[0]
    target = x * 1
    target[index, index % 4] = 5.0
    return target


class TestOps:
    """Random masks; a count of none and of one, too. Values, gradients, and programs."""

    # by name: the op, and True for one that has no value for no rows
    OPS: ClassVar[dict[str, tuple[Op, bool]]] = {
        "sum": (lambda x, mask: rows_of(x, mask).sum(0), False),
        "sum of all": (lambda x, mask: x[mask].sum(), False),
        "mean": (lambda x, mask: rows_of(x, mask).mean(0), True),
        "mean of all": (lambda x, mask: rows_of(x, mask).mean(), True),
        "maximum": (lambda x, mask: rows_of(x, mask).amax(0), True),
        "largest": (lambda x, mask: rows_of(x, mask).max(0).values, True),
        "softmax": (lambda x, mask: (rows_of(x, mask).softmax(0) * rows_of(x, mask)).sum(0), False),
        "sort": (lambda x, mask: rows_of(x, mask).sort(0).values, False),
        "joined": (
            lambda x, mask: torch.cat((rows_of(x, mask), rows_of(x * 2, ~mask))).square().sum(0),
            False,
        ),
        "joined before": (lambda x, mask: torch.cat((x, rows_of(x, mask))).cumsum(0)[-1], False),
        "written": (put, False),
        "one number written": (put_one, False),
        "zeros": (zeros_like_rows, False),
        "added": (
            lambda x, mask: torch.zeros(24, 4, dtype=x.dtype, device=x.device).index_put(
                (torch.where(mask)[0],), x.sum(0), accumulate=True
            ),
            False,
        ),
        "index_add": (
            lambda x, mask: (x * 2).index_add(0, torch.where(mask)[0], rows_of(x, mask)),
            False,
        ),
        "cross entropy": (
            lambda x, mask: F.cross_entropy(rows_of(x, mask), torch.where(mask)[0] % 4),
            True,
        ),
        "cross entropy, summed": (
            lambda x, mask: F.cross_entropy(
                rows_of(x, mask), torch.where(mask)[0] % 4, reduction="sum"
            ),
            False,
        ),
        "binary cross entropy": (
            lambda x, mask: F.binary_cross_entropy_with_logits(
                x[mask], (x[mask] > 0).to(x.dtype), reduction="sum"
            ),
            False,
        ),
        "divided by their number": (
            lambda x, mask: rows_of(x, mask).sum() / max(1, len(torch.where(mask)[0])),
            False,
        ),
        "linear": (
            lambda x, mask: F.linear(rows_of(x, mask), x[:3]).reshape(-1, 3, 1).square().sum(0),
            False,
        ),
        "kept": (lambda x, mask: rows_of(x, mask) * 2, False),
        "selected": (lambda x, mask: torch.masked_select(x, mask[:, None]).square(), False),
        "by the sum of others": (
            lambda x, mask: rows_of(x, mask) * rows_of(x, ~mask).sum(0, keepdim=True),
            False,
        ),
        "distinct": (lambda x, mask: torch.unique(x.detach().long()) * x.sum(), False),
    }
    WITHOUT_A_RULE = frozenset(("largest", "selected", "sort", "joined before"))

    @pytest.mark.parametrize("name", OPS)
    def test_values_and_gradients(self, name: str) -> None:
        (op, needs_rows), draw, compiles = self.OPS[name], random.Random(name), []
        counts = [5, 9, 1, 0, 24, 4, 12, 2, *(draw.randrange(25) for _ in range(8))]
        for count in counts:
            if needs_rows and not count:
                continue
            data, before, made = torch.randn(24, 4).double(), spmd.metrics.num_compiles(), []
            mask = torch.zeros(24, dtype=torch.bool)
            mask[draw.sample(range(24), count)] = True
            for device in ("cpu", "xla"):
                x = data.to(device, copy=True).requires_grad_()
                result = op(x, mask.to(device))
                (grad,) = torch.autograd.grad(result.square().sum(), x)
                made.append((result.detach(), grad))
            assert made[0][0].shape == made[1][0].shape
            read = [tensor.cpu() for tensor in made[1]]
            torch.testing.assert_close(read, [*made[0]], rtol=1e-9, atol=1e-9)
            if count > 1:
                compiles.append(spmd.metrics.num_compiles() - before)
        if name not in self.WITHOUT_A_RULE:
            assert sum(compiles) <= 3 and not any(compiles[-6:]), (
                compiles,
                counts,
                spmd.metrics.report(),
            )

    @pytest.mark.parametrize("count", [0, 1, 7])
    def test_shapes_are_the_true_ones(self, count: int) -> None:
        mask = torch.arange(24) < count
        index = torch.where(mask.to("xla"))[0]
        rows = torch.ones(24, 3, device="xla")[index]
        assert (len(index), index.numel(), index.shape) == (count, count, (count,))
        assert rows.shape == (count, 3) and rows.tolist() == [[1.0] * 3] * count
        assert torch.equal(index.cpu(), torch.arange(count))
        assert torch.equal(mask.to("xla").nonzero().cpu(), mask.nonzero())

    def test_rows_of_a_length_that_other_dims_have(self) -> None:
        """Rows as many as columns, or as a batch: no dim is taken for the other."""
        for count in (4, 3, 5, 4, 8, 24):
            data, mask = torch.randn(24, 4), torch.arange(24) < count
            weight = torch.randn(4, 4)
            made = []
            for device in ("cpu", "xla"):
                x, there = data.to(device).requires_grad_(), weight.to(device)
                rows = x[mask.to(device)]
                result = (rows @ there + there.sum(0) + torch.ones_like(rows)).T.sum(0).sum()
                (grad,) = torch.autograd.grad(result.square(), x)
                made.append((result.detach().cpu(), grad.cpu()))
            torch.testing.assert_close(made[1], made[0], rtol=1e-4, atol=1e-4)


class TestMatchers:
    """What decides a count is computed by the host, once: the device reads the same numbers."""

    def test_no_program_for_the_count(self) -> None:
        before, data = spmd.metrics.num_compiles(), torch.rand(40, 3)
        scores = data.to("xla").mul(0.37).sum(1)
        index = torch.where(scores > scores.mean())[0]
        expected = data.mul(0.37).sum(1)
        assert index.tolist() == torch.where(expected > expected.mean())[0].tolist()
        assert spmd.metrics.num_compiles() == before
        assert torch.equal(scores.cpu(), expected)

    def test_a_network_is_not(self) -> None:
        """The result of a product is computed by the device, whole."""
        layer, data = torch.nn.Linear(8, 8), torch.rand(16, 8)
        expected = torch.where(layer(data) > 0)
        there = torch.where(layer.to("xla")(data.to("xla")) > 0)
        assert all(torch.equal(a.cpu(), b) for a, b in zip(there, expected, strict=True))

    def test_a_hit_rate_leaves_constants_to_the_program(self) -> None:
        """Without rows that data counts the programs stay as they are."""
        layer, data = torch.nn.Linear(8, 8).to("xla"), torch.rand(16, 8)
        total = torch.zeros(8, device="xla")
        hits = (layer(data.to("xla")).argmax(1) == 3).sum().item()
        assert 0 <= hits <= 16 and storage_of(total).value.host is None

    def test_random_order(self) -> None:
        """An order that a sampler draws is the same on the host."""
        torch.manual_seed(3)
        order = torch.randperm(9, device="xla").cpu()
        torch.manual_seed(3)
        index = torch.randperm(9, device="xla")
        before = spmd.metrics.num_compiles()
        mask = torch.zeros(9, dtype=torch.uint8).to("xla")
        mask[index[:4]] = 1
        assert torch.where(mask)[0].tolist() == sorted(order[:4].tolist())
        assert spmd.metrics.num_compiles() == before and torch.equal(index.cpu(), order)


def test_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program for each count, of rows without padding."""
    monkeypatch.setattr(spmd.config, "pad_lengths", False)
    for count in (3, 5, 4):
        mask, before = torch.arange(24) < count, spmd.metrics.num_compiles()
        rows = torch.ones(24, 3, device="xla")[torch.where(mask.to("xla"))[0]]
        assert rows.sum().item() == 3 * count and spmd.metrics.num_compiles() == before + 1
        program = cache.last_program()
        assert program is not None and "spmd.unpadded" not in [op.name for op in program.entries]
