"""Models of unusual structure, and unusual optimizers: each against plain torch."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import check
from torch import Tensor, nn
from wrapped import FSDP, POLICY, Layer, spec, train

import fsdp
import spmd


def same_gradients(model: nn.Module, plain: nn.Module, x: Tensor) -> None:
    model(x.to("xla")).square().mean().backward()
    plain(x).square().mean().backward()
    for (name, one), two in zip(model.named_parameters(), plain.parameters(), strict=True):
        check(one.grad, two.grad)
        assert spec(one.grad) == spec(one), name


def pair() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))


class TestAChildAfterItsParent:
    """A child that is wrapped after its parent takes its parameters over from the parent's unit."""

    @pytest.mark.parametrize("dtype", [None, torch.float32])
    def test_owned_once(self, dtype: torch.dtype | None, mesh8: spmd.Mesh) -> None:
        plain = pair()
        model, policy = copy.deepcopy(plain), fsdp.MixedPrecisionPolicy(param_dtype=dtype)
        fsdp.fully_shard(model, mesh=mesh8, mp_policy=policy)
        model(torch.randn(8, 16).to("xla"))
        fsdp.fully_shard(model[0], mesh=mesh8, mp_policy=policy)
        root, child = fsdp.show(model).units
        assert [row.names for row in root.parameters] == [("1.weight",), ("1.bias",)]
        assert [row.names for row in child.parameters] == [("0.weight",), ("0.bias",)]
        assert (root.reshards, child.reshards) == (False, True)
        same_gradients(copy.deepcopy(model), plain, torch.randn(16, 16))

    def test_what_was_ignored_stays_so(self, mesh8: spmd.Mesh) -> None:
        model = pair()
        fsdp.fully_shard(model, mesh=mesh8, ignored_params={model[0].bias})
        fsdp.fully_shard(model[0], mesh=mesh8)
        assert "ignored" in fsdp.show(model).units[1].parameters[1].notes

    def test_a_sibling_with_the_same_weight_is_not_above(self, mesh8: spmd.Mesh) -> None:
        plain = nn.Sequential(
            nn.Linear(16, 16, bias=False), nn.ReLU(), nn.Linear(16, 16, bias=False)
        )
        plain[2].weight = plain[0].weight
        model = copy.deepcopy(plain)
        for layer in (model[0], model[2]):
            fsdp.fully_shard(layer, mesh=mesh8)
        fsdp.fully_shard(model, mesh=mesh8)
        same_gradients(model, plain, torch.randn(16, 16))
        _, first, second = fsdp.show(model).units
        # Both units gather it; it is kept once.
        assert first.gathered_bytes == second.gathered_bytes == 16 * 16 * 4
        assert (first.kept_bytes, second.kept_bytes) == (16 * 16 * 4 // 8, 0)
        assert second.parameters[0].notes == ("tied", "kept above")


class TestLoadedByAssignment:
    """`load_state_dict(assign=True)` replaces parameters: the new ones are sharded, gathered and
    trained."""

    @pytest.mark.parametrize("device", ["cpu", "xla"])
    @pytest.mark.parametrize("how", ["in place", "wrapper"])
    def test_they_are_the_units(self, how: str, device: str, mesh8: spmd.Mesh) -> None:
        plain, model = pair(), pair()
        if how == "wrapper":
            model = FSDP(model, mesh=mesh8, auto_wrap_policy={nn.Linear})
        else:
            for unit in (*model, model):
                fsdp.fully_shard(unit, mesh=mesh8)
        state = {name: value.clone().to(device) for name, value in plain.state_dict().items()}
        model.load_state_dict(state, assign=True)
        for name, parameter in model.named_parameters():
            assert spec(parameter) == (("fsdp", None) if name.endswith("weight") else ("fsdp",))
        assert [row.names for row in fsdp.show(model).units[1].parameters] == [
            ("0.weight",),
            ("0.bias",),
        ]
        same_gradients(model, plain, torch.randn(16, 16))


class TestThawed:
    """requires_grad_(True) after wrapping: gradients are sharded, scaled and reduced like those of
    the others."""

    def test_after_a_step(self, mesh8: spmd.Mesh) -> None:
        plain = pair()
        model = copy.deepcopy(plain)
        model[0].requires_grad_(False)
        for unit in (*model, model):
            fsdp.fully_shard(unit, mesh=mesh8)
        for unit in model:
            # the sum over eight shards of the batch, not their mean
            unit.set_gradient_divide_factor(1.0)
        x = torch.randn(16, 16)
        model(x.to("xla")).square().mean().backward()
        assert model[0].weight.grad is None
        model.zero_grad()
        model.requires_grad_(True)
        model(x.to("xla")).square().mean().backward()
        plain(x).square().mean().backward()
        for one, two in zip(model.parameters(), plain.parameters(), strict=True):
            check(one.grad, 8 * two.grad)
            assert spec(one.grad) == spec(one)


class Shampoo(torch.optim.Optimizer):
    """State of two square matrices for each weight (arXiv:1802.09568)."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            state, grad, lr = self.state[parameter], parameter.grad, self.param_groups[0]["lr"]
            if grad.dim() < 2:
                parameter.sub_(grad, alpha=lr)
                continue
            for side, product in (("left", grad @ grad.T), ("right", grad.T @ grad)):
                if side not in state:
                    state[side] = 1e-3 * torch.eye(len(product), device=grad.device)
                state[side].add_(product)
            parameter.sub_(self._root(state["left"]) @ grad @ self._root(state["right"]), alpha=lr)

    @staticmethod
    def _root(matrix: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(matrix)
        return vectors @ torch.diag(values.clamp(min=1e-8) ** -0.25) @ vectors.T


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "Shampoo": Shampoo,
    "Muon": lambda parameters: torch.optim.Muon(
        [one for one in parameters if one.dim() == 2], lr=0.05
    ),
    "Adafactor": lambda parameters: torch.optim.Adafactor(parameters, lr=0.05),
}


class TestOptimizersWithStateOfAnotherShape:
    """Rows and columns, square matrices: no state has the sharding of its parameter."""

    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_as_torch(self, name: str, mesh8: spmd.Mesh) -> None:
        plain, x = (
            nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 16)),
            torch.randn(16, 16),
        )
        model = FSDP(copy.deepcopy(plain), mesh=mesh8, auto_wrap_policy={nn.Linear})
        ours = train(model, x.to("xla"), optimizer=OPTIMIZERS[name](list(model.parameters())))
        theirs = train(plain, x, optimizer=OPTIMIZERS[name](list(plain.parameters())))
        assert ours == pytest.approx(theirs, rel=1e-4)
        assert spec(model.get_parameter("0.weight")) == ("fsdp", None)

    def test_one_that_reads_numbers_in_its_step(self, mesh8: spmd.Mesh) -> None:
        """torch's Adafactor reads two of each parameter: its first step makes the state before, and
        is the same programs as the others all the same. The model's is one of them, once; the
        others go by shapes, not layers."""
        models = [
            FSDP(nn.Sequential(*map(Layer, [16] * depth)), mesh8, auto_wrap_policy={Layer})
            for depth in (2, 4)
        ]
        x, compiles = torch.randn(16, 16), []
        for model in models:
            before = spmd.metrics.num_compiles()
            optimizer = torch.optim.Adafactor(model.parameters(), lr=0.01)
            train(model, x.to("xla"), optimizer=optimizer, steps=1)
            first = spmd.metrics.num_compiles()
            train(model, x.to("xla"), optimizer=optimizer, steps=2)
            assert spmd.metrics.num_compiles() == first
            compiles.append(first - before)
        shapes = len({parameter.shape for parameter in models[0].parameters()})
        assert compiles[0] <= 1 + 3 * shapes
        assert compiles[1] == 1


class Adapted(nn.Module):
    """A frozen layer and two thin ones that are trained (LoRA, arXiv:2106.09685)."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class TestAdapters:
    """LoRA over a frozen sharded base: before and after wrapping."""

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_training(self, when: str, mesh8: spmd.Mesh) -> None:
        plain, x = pair(), torch.randn(16, 16)
        for place in range(2):
            plain[place] = Adapted(plain[place])
        if when == "before":
            model = FSDP(copy.deepcopy(plain), mesh=mesh8, auto_wrap_policy={Adapted})
        else:
            model = nn.Sequential(*(copy.deepcopy(one.base) for one in plain))
            for unit in (*model, model):
                fsdp.fully_shard(unit, mesh=mesh8)
            for place in range(2):
                adapted = copy.deepcopy(plain[place])
                adapted.base = model[place]
                model[place] = fsdp.fully_shard(adapted, mesh=mesh8)
        base = plain[0].base.weight.clone()

        def trained(module: nn.Module) -> torch.optim.Optimizer:
            return torch.optim.AdamW(
                [one for one in module.parameters() if one.requires_grad], lr=1e-2
            )

        ours = train(model, x.to("xla"), optimizer=trained(model))
        assert ours == pytest.approx(train(plain, x, optimizer=trained(plain)), rel=1e-4)
        check(model[0].base.weight, base)
        assert model[0].base.weight.grad is None
        assert spec(model[0].base.weight) == ("fsdp", None)
        assert spec(model[0].down.weight) == (None, "fsdp")


class TestResume:
    """Training that is saved and continues in a new model gives the same bits as training without a
    stop."""

    def test_bit_equal(self, mesh8: spmd.Mesh) -> None:
        def build() -> tuple[nn.Module, torch.optim.Optimizer]:
            torch.manual_seed(3)
            net = nn.Sequential(Layer(16), nn.Dropout(0.1), Layer(16))
            policy = fsdp.MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32
            )
            model = FSDP(net, mesh=mesh8, auto_wrap_policy=POLICY, mp_policy=policy)
            return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

        def steps(
            model: nn.Module, optimizer: torch.optim.Optimizer, count: int, start: int
        ) -> list[float]:
            losses = []
            for step in range(start, start + count):
                spmd.manual_seed(step)
                generator = torch.Generator().manual_seed(step)
                x = torch.randn(16, 16, generator=generator).to("xla")
                loss = model(x).float().square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                spmd.sync()
                losses.append(loss.item())
            return losses

        model, optimizer = build()
        first = steps(model, optimizer, 2, 0)
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        rest = steps(model, optimizer, 2, 2)
        again, other = build()
        file.seek(0)
        saved = torch.load(file)
        again.load_state_dict(saved["model"])
        other.load_state_dict(saved["optimizer"])
        assert steps(again, other, 2, 2) == rest != first
        for one, two in zip(again.parameters(), model.parameters(), strict=True):
            assert torch.equal(one.detach().cpu(), two.detach().cpu())


class TestHooks:
    """A user's hooks on a unit get the same arguments as on any module."""

    def test_forward_and_backward(self, mesh8: spmd.Mesh) -> None:
        def watch(model: nn.Module) -> list[Any]:
            seen: list[Any] = []
            model[0].register_forward_pre_hook(
                lambda module, args: seen.append(("before", *args[0].shape))
            )
            model[0].register_forward_hook(lambda module, args, output: output * 2)
            model[1].register_full_backward_pre_hook(lambda module, grads: (grads[0] * 3,))
            model[1].register_full_backward_hook(
                lambda module, given, grads: seen.append((len(given), len(grads)))
            )
            model[1].weight.register_post_accumulate_grad_hook(
                lambda one: seen.append(tuple(one.grad.shape))
            )
            return seen

        plain = pair()
        model = FSDP(copy.deepcopy(plain), mesh=mesh8, auto_wrap_policy={nn.Linear})
        ours, theirs = watch(model), watch(plain)
        same_gradients(model, plain, torch.randn(16, 16))
        assert sorted(map(str, ours)) == sorted(map(str, theirs))
        assert len(ours) == 3
