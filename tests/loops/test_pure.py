"""`spmd.assume_pure` and `spmd.PureModule`: recorded once, then one op and one op of its gradient a
call."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support import check
from torch import Tensor, nn

import fsdp
import spmd
from spmd.core.base.pace import pace


def counted(function: Callable[..., Any]) -> tuple[Callable[..., Any], list[int]]:
    """A function, and a list that grows with each run of it in Python."""
    runs: list[int] = []

    def run(*args: Any, **kwargs: Any) -> Any:
        runs.append(1)
        return function(*args, **kwargs)

    return run, runs


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 2))


class TestFunction:
    """Values and gradients are those of the plain function, and Python runs once."""

    def test_values_and_gradients(self) -> None:
        run, runs = counted(lambda x, w, scale: {"y": torch.tanh(x @ w) * scale, "kept": scale})
        pure = spmd.assume_pure(run)
        w = torch.randn(3, 3)
        expected, actual = w.clone().requires_grad_(), w.to("xla").requires_grad_()
        for _ in range(3):
            x = torch.randn(2, 3)
            y, z = torch.tanh(x @ expected) * 2, pure(x.to("xla"), actual, scale=2)
            check(z["y"], y)
            assert z["kept"] == 2
            y.square().sum().backward()
            z["y"].square().sum().backward()
        check(actual.grad, expected.grad)
        assert len(runs) == 1

    def test_recorded_again(self) -> None:
        run, runs = counted(lambda x, n: x * n)
        pure = spmd.assume_pure(run)
        x = torch.ones(2, device="xla")
        for given, n in (
            (x, 2),
            (x, 2),
            (x, 3),
            (x, 3.0),
            (x, 0.0),
            (x, -0.0),
            (torch.ones(3, device="xla"), 2),
        ):
            check(pure(given, n), given.cpu() * n)
        assert len(runs) == 6
        with torch.no_grad():
            pure(x, 2)
        with torch.autocast("xla"):
            pure(x, 2)
        pure(x.double(), 2)
        pure(x.detach().requires_grad_(), 2)
        assert len(runs) == 10

    def test_one_op_a_call(self) -> None:
        def deep(x: Tensor) -> Tensor:
            for _ in range(50):
                x = torch.sin(x) + 1
            return x

        pure, x = spmd.assume_pure(deep), torch.ones(3, device="xla")
        first = pure(x)
        before = pace.recorded_ops
        second = pure(x)
        assert pace.recorded_ops == before + 1
        check(second, deep(torch.ones(3)))
        check(first, deep(torch.ones(3)))

    def test_closed_over_tensors(self) -> None:
        w = torch.randn(3, device="xla", requires_grad=True)
        pure = spmd.assume_pure(lambda x: (x * w).sum())
        x = torch.randn(3, device="xla")
        for factor in (1.0, 2.0):
            with torch.no_grad():
                w.fill_(factor)
            loss = pure(x)
            check(loss, (x.cpu() * factor).sum())
            w.grad = None
            loss.backward()
            check(w.grad, x.cpu())

    def test_sharded(self, mesh8: spmd.Mesh) -> None:
        pure = spmd.assume_pure(
            lambda x, w: spmd.mark_sharding(x @ w, mesh8, ("fsdp", None)).relu()
        )
        x, w = torch.randn(16, 8), torch.randn(8, 8)
        given = spmd.mark_sharding(x.to("xla"), mesh8, ("fsdp", None))
        weight = spmd.mark_sharding(w.to("xla").requires_grad_(), mesh8, (None, "fsdp"))
        for _ in range(2):
            made = pure(given, weight)
            made.sum().backward()
        expected = w.clone().requires_grad_()
        (x @ expected).relu().sum().backward()
        check(made, (x @ w).relu())
        check(weight.grad, 2 * expected.grad)
        assert spmd.get_sharding(weight.grad) == spmd.get_sharding(weight)
        assert str(spmd.get_sharding(made)) == str(spmd.get_sharding(given))

    def test_closed_over_fsdp(self, mesh8: spmd.Mesh) -> None:
        """A gather that waits for a value of the recorded body is gone with it."""
        torch.manual_seed(0)
        blocks = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3)))
        plain = copy.deepcopy(blocks)
        sharded = fsdp.FullyShardedDataParallel(
            blocks.to("xla"),
            mesh=mesh8,
            auto_wrap_policy=partial(fsdp.size_based_auto_wrap_policy, min_num_params=200),
        )
        pure = spmd.assume_pure(lambda x: sharded(x))
        optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in (plain, sharded)]
        for _ in range(3):
            x = torch.randn(8, 16)
            inputs = spmd.mark_sharding(x.to("xla"), mesh8, ("fsdp", None))
            losses = [plain(x).square().mean(), pure(inputs).square().mean()]
            for loss, optimizer in zip(losses, optimizers, strict=True):
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            spmd.sync()
            check(losses[1], losses[0])
        for actual, expected in zip(sharded.parameters(), plain.parameters(), strict=True):
            check(actual, expected)


class TestDraws:
    """Random draws are new in each call, and those that the plain function would make."""

    def test_as_plain(self) -> None:
        def drop(x: Tensor) -> Tensor:
            return nn.functional.dropout(x, 0.5) + torch.rand_like(x)

        x, pure = torch.ones(64, device="xla"), spmd.assume_pure(drop)
        spmd.manual_seed(3)
        plain = [drop(x) for _ in range(3)]
        spmd.manual_seed(3)
        recorded = [pure(x) for _ in range(3)]
        for one, other in zip(plain, recorded, strict=True):
            check(other, one.cpu())
        assert not torch.equal(recorded[0].cpu(), recorded[1].cpu())

    def test_seed_argument(self) -> None:
        pure = spmd.assume_pure(lambda x: torch.rand_like(x), add_rng_seed_argument=True)
        x = torch.ones(8, device="xla")
        one, same, other = pure(x, rng_seed=1), pure(x, rng_seed=1), pure(x, rng_seed=2)
        check(same, one.cpu())
        assert not torch.equal(one.cpu(), other.cpu())
        with pytest.raises(TypeError, match="expected rng_seed to be an int"):
            pure(x, rng_seed=1.5)


class TestModule:
    """A module's parameters and buffers are arguments: replaced ones, flags and in-place writes are
    seen."""

    def test_training(self) -> None:
        plain = model()
        ours = spmd.PureModule(copy.deepcopy(plain).to("xla"))
        sgd = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (plain, ours)]
        for _ in range(3):
            x = torch.randn(6, 4)
            losses = plain(x).square().mean(), ours(x.to("xla")).square().mean()
            check(losses[1], losses[0])
            for loss, optimizer in zip(losses, sgd, strict=True):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        for one, other in zip(ours.buffers(), plain.buffers(), strict=True):
            check(one, other)
        plain.eval(), ours.eval()
        plain[0].weight = nn.Parameter(torch.ones(8, 4))
        ours._module[0].weight = nn.Parameter(torch.ones(8, 4).to("xla"))
        with torch.no_grad():
            check(ours(x.to("xla")), plain(x))


class TestErrors:
    """Calls that cannot be one op say so."""

    def test_writes_outside(self) -> None:
        total = torch.zeros(2, device="xla")
        with pytest.raises(
            NotImplementedError,
            match="writes in place into a tensor that is not among its arguments",
        ):
            spmd.assume_pure(lambda x: total.add_(x))(torch.ones(2, device="xla"))
        assert total.tolist() == [0.0, 0.0]

    def test_reads(self) -> None:
        with pytest.raises(spmd.BodyError, match="item"):
            spmd.assume_pure(lambda x: x * x.sum().item())(torch.ones(2, device="xla"))

    def test_static_arguments(self) -> None:
        x = torch.ones(2, device="xla")
        with pytest.raises(TypeError, match="cannot be hashed"):
            spmd.assume_pure(lambda x, s: x)(x, set())
        with pytest.raises(TypeError, match="got one on cpu"):
            spmd.assume_pure(lambda x, y: x)(x, torch.ones(2))

    def test_second_gradient(self) -> None:
        x = torch.ones(2, device="xla", requires_grad=True)
        with pytest.raises(NotImplementedError, match="has no second derivative"):
            torch.autograd.grad(spmd.assume_pure(torch.sin)(x).sum(), x, create_graph=True)
