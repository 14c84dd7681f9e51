"""Usual calls of training programs on a sharded model, each against plain torch."""

import copy
from typing import Any

import pytest
import torch
from support import check
from torch import Tensor, nn
from wrapped import FSDP, Layer, Net, spec, train

import fsdp
import spmd
from spmd import config


@pytest.fixture(params=["gspmd", "shardy"])
def partitioner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(config, "partitioner", request.param)
    return request.param


def twins(mesh: spmd.Mesh, **how: Any) -> tuple[nn.Module, FSDP]:
    plain = Net()
    return plain, FSDP(copy.deepcopy(plain), mesh, auto_wrap_policy={Layer}, **how)


def same_gradients(ours: nn.Module, plain: nn.Module) -> None:
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if other.grad is not None:
            check(one.grad, other.grad)
            assert spmd.get_sharding(one.grad) is spmd.get_sharding(one)


class TestClipGradNorm:
    """clip_grad_norm_: one norm over all devices."""

    @pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
    def test_norms(self, norm_type: float, partitioner: str, mesh8: spmd.Mesh) -> None:
        (plain, model), x = twins(mesh8), torch.randn(16, 16)
        for each, batch in ((plain, x), (model, x.to("xla"))):
            each(batch).square().mean().backward()
        norm = model.clip_grad_norm_(0.01, norm_type)
        expected = nn.utils.clip_grad_norm_(plain.parameters(), 0.01, norm_type)
        assert norm.shape == ()
        check(norm, expected)
        same_gradients(model, plain)

    def test_not_finite(self, mesh8: spmd.Mesh) -> None:
        _, model = twins(mesh8)
        (model(torch.randn(8, 16).to("xla")).sum() * float("inf")).backward()
        with pytest.raises(RuntimeError, match="non-finite"):
            model.clip_grad_norm_(1.0, error_if_nonfinite=True)
        with pytest.raises(ValueError, match="expected groups=None"):
            model.clip_grad_norm_(1.0, groups=[[0]])


class TestNoSync:
    """no_sync: accumulated gradients are those of the big batch."""

    def test_exact(self, partitioner: str, mesh8: spmd.Mesh) -> None:
        (plain, model), x = twins(mesh8), torch.randn(32, 16)
        first, *others = x.to("xla").chunk(4)
        with model.no_sync():
            for part in others:
                (model(part).square().mean() / 4).backward()
        (model(first).square().mean() / 4).backward()
        plain(x).square().mean().backward()
        same_gradients(model, plain)


class TestGradientDivideFactors:
    """set_gradient_divide_factors(pre, post, recursive)."""

    def test_factors(self, mesh8: spmd.Mesh) -> None:
        (plain, model), x = twins(mesh8), torch.randn(16, 16)
        for pre, post, recursive, scale in (
            (2.0, 2.0, True, 2.0),
            (4.0, 2.0, True, 1.0),
            (1.0, 1.0, True, 8.0),
        ):
            model.set_gradient_divide_factors(pre, post, recursive)
            for each, batch in ((plain, x), (model, x.to("xla"))):
                each.zero_grad()
                each(batch).square().mean().backward()
            for one, other in zip(model.parameters(), plain.parameters(), strict=True):
                check(one.grad, scale * other.grad)

    def test_of_the_root_alone(self, mesh8: spmd.Mesh) -> None:
        (plain, model), x = twins(mesh8), torch.randn(16, 16)
        model.set_gradient_divide_factors(1.0, 1.0, recursive=False)
        for each, batch in ((plain, x), (model, x.to("xla"))):
            each(batch).square().mean().backward()
        check(model.head.weight.grad, 8 * plain.head.weight.grad)
        check(model.blocks[0].up.weight.grad, plain.blocks[0].up.weight.grad)


class TestSummonFullParams:
    """summon_full_params: a context with unsharded parameters."""

    def test_reads_and_writes(self, mesh8: spmd.Mesh) -> None:
        _, model = twins(mesh8)
        with FSDP.summon_full_params(model), torch.no_grad():
            assert spec(model.head.weight) == spec(model.blocks[0].up.weight) == (None, None)
            model.head.weight.fill_(2.0)
        assert spec(model.head.weight) == (None, "fsdp")
        check(model.head.weight, torch.full((8, 16), 2.0))
        check(model(torch.zeros(8, 16).to("xla")), copy.deepcopy(model).cpu()(torch.zeros(8, 16)))

    def test_writeback(self, mesh8: spmd.Mesh) -> None:
        plain, model = twins(mesh8)
        with fsdp.summon_full_params(model, writeback=False), torch.no_grad():
            model.head.weight.fill_(2.0)
        check(model.head.weight, plain.head.weight)

    def test_recurse(self, mesh8: spmd.Mesh) -> None:
        _, model = twins(mesh8)
        with fsdp.summon_full_params(model, recurse=False):
            assert spec(model.head.weight) == (None, None)
            assert spec(model.blocks[0].up.weight) == ("fsdp", None)

    def test_with_grads(self, mesh8: spmd.Mesh) -> None:
        _, model = twins(mesh8)
        model(torch.randn(8, 16).to("xla")).sum().backward()
        with fsdp.summon_full_params(model, with_grads=True):
            assert spec(model.head.weight.grad) == (None, None)
        assert spec(model.head.weight.grad) == (None, "fsdp")

    def test_within_a_step(self, mesh8: spmd.Mesh) -> None:
        (plain, model), x = twins(mesh8), torch.randn(16, 16)
        with FSDP.summon_full_params(model):
            pass
        assert train(model, x.to("xla")) == pytest.approx(train(plain, x), rel=1e-5)

    def test_refused_or_warned(self, mesh8: spmd.Mesh) -> None:
        _, model = twins(mesh8)
        with pytest.warns(UserWarning, match=r"rank0_only \(there is one global view"):
            FSDP.summon_full_params(model, rank0_only=True)
        with (
            pytest.raises(ValueError, match="Linear has no units"),
            fsdp.summon_full_params(nn.Linear(2, 2)),
        ):
            pass


class TestParamsWithGrad:
    """params_with_grad."""

    def test_those(self, mesh8: spmd.Mesh) -> None:
        _, model = twins(mesh8)
        assert model.params_with_grad() == []
        model.head(torch.randn(8, 16).to("xla")).sum().backward()
        assert [id(one) for one in model.params_with_grad()] == [
            id(model.head.weight),
            id(model.head.bias),
        ]


class Odd(nn.Module):
    """One block is called twice, one never, one on some paths; a parameter is read outside of its
    block."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.never, self.outside = Layer(16), Layer(16), Layer(16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(self.twice(x))
        return nn.functional.linear(x, self.outside.up.weight) + self.outside(x).repeat(1, 2)


class TestOddModels:
    """Modules called several times or skipped, parameters used outside of their unit, hooks, partly
    frozen units."""

    @pytest.mark.parametrize("reshard", [True, False])
    def test_calls(self, reshard: bool, partitioner: str, mesh8: spmd.Mesh) -> None:
        plain, x = Odd(), torch.randn(16, 16)
        model = FSDP(
            copy.deepcopy(plain), mesh8, auto_wrap_policy={Layer}, reshard_after_forward=reshard
        )
        for each, batch in ((plain, x), (model, x.to("xla"))):
            each(batch).square().mean().backward()
        same_gradients(model, plain)

    def test_mixed_requires_grad(self, mesh8: spmd.Mesh) -> None:
        plain, x = Net(), torch.randn(16, 16)
        plain.blocks[0].up.requires_grad_(False)
        plain.blocks[1].requires_grad_(False)
        model = FSDP(copy.deepcopy(plain), mesh8, auto_wrap_policy={Layer})
        for each, batch in ((plain, x), (model, x.to("xla"))):
            each(batch).square().mean().backward()
        same_gradients(model, plain)

    def test_hooks(self, mesh8: spmd.Mesh) -> None:
        seen: dict[str, list[Tensor]] = {"plain": [], "ours": []}
        (plain, model), x = twins(mesh8), torch.randn(16, 16)
        for name, each in (("plain", plain), ("ours", model)):
            each.blocks[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
            each.blocks[0].register_forward_hook(lambda module, args, output: output + args[0])
            each.blocks[1].register_full_backward_hook(
                lambda module, grads, outputs, name=name: seen[name].append(grads[0])
            )
        for each, batch in ((plain, x), (model, x.to("xla"))):
            each(batch).square().mean().backward()
        same_gradients(model, plain)
        check(seen["ours"][0], seen["plain"][0])
