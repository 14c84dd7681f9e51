"""Convolutions, running sums and associative scans over a sharded sequence: torch's numbers, and no
gathered rows."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import transformers
from torch._higher_order_ops.associative_scan import associative_scan
from torch.nn import functional as F

import fsdp
import spmd
from spmd import P

LENGTH = 256
Function = Callable[..., torch.Tensor]


@pytest.fixture(scope="module")
def mesh() -> spmd.Mesh:
    return spmd.Mesh(range(8), (2, 4), ("data", "context"))


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def trained(function: Function, specs: Any, *arrays: torch.Tensor) -> list[torch.Tensor]:
    """The result, with the gradients of the arrays, which are marked with specs."""
    arrays = tuple(x.detach().requires_grad_() for x in arrays)
    for x, spec in zip(arrays, specs, strict=False):
        spmd.mark_sharding(x, *spec)
    result = function(*arrays)
    (result * result).sum().backward()
    return [result, *(x.grad for x in arrays if x.grad is not None)]


def check(
    mesh: spmd.Mesh, function: Function, spec: Any, *arrays: torch.Tensor, num_marked: int = 1
) -> int:
    """Compares with the CPU, the first arrays marked; returns the bytes of the largest collective
    but for permutes."""
    expected = trained(function, (), *arrays)
    step = partial(trained, function, [(mesh, spec)] * num_marked)
    for actual, on_cpu in zip(step(*(x.to("xla") for x in arrays)), expected, strict=True):
        torch.testing.assert_close(actual.cpu(), on_cpu, rtol=1e-12, atol=1e-12)
    plan = spmd.plan(step, *(x.to("meta") for x in arrays))
    return max(
        (each.bytes for each in plan.collectives if each.kind != "collective-permute"), default=0
    )


def mamba(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """As Mamba does: padded on both sides, cut, gated."""
    cut = F.conv1d(x, weight, bias, padding=weight.shape[2] - 1, groups=x.shape[1])[
        ..., : x.shape[2]
    ]
    return F.silu(cut) * x


class TestConvolutions:
    """Rows of the devices beside, and no others."""

    @pytest.mark.parametrize(
        "spec", [P("data", None, "context"), P(None, "data", "context"), P(None, None, "context")]
    )
    def test_depthwise(self, mesh: spmd.Mesh, spec: Any) -> None:
        largest = check(mesh, mamba, spec, numbers(2, 8, LENGTH), numbers(8, 1, 4), numbers(8))
        assert largest < 2 * 8 * LENGTH * 8 // 8  # a device's shard

    @pytest.mark.parametrize(
        ("padding", "dilation", "groups"), [(1, 1, 1), (2, 2, 2), (0, 1, 1), (2, 1, 1), (0, 3, 2)]
    )
    def test_features(self, mesh: spmd.Mesh, padding: int, dilation: int, groups: int) -> None:
        how = {"padding": padding, "dilation": dilation, "groups": groups}
        arrays = numbers(2, 4, LENGTH), numbers(6, 4 // groups, 3), numbers(6)
        check(mesh, partial(F.conv1d, **how), P("data", None, "context"), *arrays)

    @pytest.mark.parametrize(("stride", "length"), [(2, LENGTH), (1, LENGTH + 2), (1, 8)])
    def test_left_to_the_partitioner(self, mesh: spmd.Mesh, stride: int, length: int) -> None:
        """A stride, a length that the devices do not divide, a window that reaches over a whole
        shard."""
        function = partial(F.conv1d, stride=stride, padding=3)
        check(
            mesh,
            function,
            P("data", None, "context"),
            numbers(2, 4, length),
            numbers(6, 4, 4),
            numbers(6),
        )

    def test_frozen_weight(self, mesh: spmd.Mesh) -> None:
        weight = numbers(8, 1, 4)

        def function(x: torch.Tensor) -> torch.Tensor:
            return mamba(x, weight.to(x.device), torch.zeros(8, dtype=x.dtype, device=x.device))

        expected = trained(function, (), x := numbers(2, 8, LENGTH))
        actual = trained(function, [(mesh, P("data", None, "context"))], x.to("xla"))
        torch.testing.assert_close(
            [each.cpu() for each in actual], expected, rtol=1e-12, atol=1e-12
        )


class TestSums:
    @pytest.mark.parametrize("name", ["cumsum", "cumprod", "logcumsumexp"])
    @pytest.mark.parametrize("dim", [1, -1])
    def test_running(self, mesh: spmd.Mesh, name: str, dim: int) -> None:
        spec = P("data", "context", None) if dim == 1 else P("data", None, "context")
        shape = (2, LENGTH, 8) if dim == 1 else (2, 8, LENGTH)
        largest = check(
            mesh, lambda x: getattr(torch, name)(1 + 0.01 * x, dim), spec, numbers(*shape)
        )
        assert largest < 2 * 8 * LENGTH * 8 // 8

    def test_of_integers(self, mesh: spmd.Mesh) -> None:
        x = torch.randint(-9, 9, (2, LENGTH))
        y = spmd.mark_sharding(x.to("xla"), mesh, P("data", "context")).cumsum(1, dtype=torch.int32)
        assert y.dtype == torch.int32 and torch.equal(y.cpu(), x.cumsum(1, dtype=torch.int32))


def recurrence(gate: torch.Tensor, x: torch.Tensor, reverse: bool = False) -> torch.Tensor:
    """h[t] = sigmoid(gate[t]) h[t - 1] + x[t], along dim 1."""

    def combine(left: Any, right: Any) -> Any:
        return left[0] * right[0], right[0] * left[1] + right[1]

    given = torch.sigmoid(gate), x
    return associative_scan(combine, given, dim=1, reverse=reverse, combine_mode="generic")[1]


class TestScans:
    @pytest.mark.parametrize("reverse", [False, True])
    def test_recurrence(self, mesh: spmd.Mesh, reverse: bool) -> None:
        function = partial(recurrence, reverse=reverse)
        shape = 2, LENGTH, 8
        largest = check(
            mesh,
            function,
            P("data", "context", None),
            numbers(*shape),
            numbers(*shape),
            num_marked=2,
        )
        assert largest < 2 * 8 * LENGTH * 8 // 8

    def test_is_gathered_without(self, mesh: spmd.Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "parallel", "off")
        shape = 2, LENGTH, 8
        largest = check(
            mesh,
            recurrence,
            P("data", "context", None),
            numbers(*shape),
            numbers(*shape),
            num_marked=2,
        )
        assert largest >= 2 * 8 * LENGTH * 8 // 8

    def test_products_of_matrices(self, mesh: spmd.Mesh) -> None:
        """A function that is not elementwise, of a length with one row more than the devices, and
        of two a device."""
        for length in (9, 16):
            matrices = numbers(length, 3, 3)
            expected = associative_scan(torch.matmul, matrices, 0, combine_mode="generic")
            given = spmd.mark_sharding(
                matrices.to("xla"), mesh, P("context" if length == 16 else None, None, None)
            )
            actual = associative_scan(torch.matmul, given, 0, combine_mode="generic")
            torch.testing.assert_close(actual.cpu(), expected, rtol=1e-12, atol=1e-12)

    @pytest.mark.filterwarnings("ignore::UserWarning")  # of Dynamo, on code of transformers
    def test_mamba_of_transformers(self) -> None:
        """An unmodified model, its layers compiled, from marked tokens alone."""
        model = transformers.MambaForCausalLM(
            transformers.MambaConfig(
                vocab_size=64,
                hidden_size=16,
                state_size=4,
                num_hidden_layers=1,
                use_associative_scan=True,
            )
        )
        on = spmd.Mesh(range(8), (2, 4), ("fsdp", "context"))
        tokens = torch.randint(64, (2, 32))
        # On the CPU by the loop over rows, as it is not compiled.
        expected = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        expected.backward()
        moved: Any = copy.deepcopy(model)
        wrapped = fsdp.FullyShardedDataParallel(moved.to("xla"), on)
        marked = spmd.mark_sharding(tokens.to("xla"), on, P("fsdp", "context"))
        loss = torch.compile(wrapped, backend="xla")(
            input_ids=marked, labels=marked, use_cache=False
        ).loss
        loss.backward()
        torch.testing.assert_close(loss.cpu(), expected, rtol=1e-5, atol=0)
        for (name, ours), theirs in zip(
            wrapped.named_parameters(), model.parameters(), strict=True
        ):
            torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-6, msg=name)
