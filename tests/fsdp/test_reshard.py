"""reshard_after_forward: gathered parameters are freed after a unit's forward and gathered again
for its backward."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from wrapped import FSDP, LAYERS, POLICY, Layer, Net, last_record, same_training, stack, train

import fsdp
import spmd
from spmd import config


def saved_bytes(model: nn.Module, x: Tensor) -> int:
    """The bytes that autograd saves for backward, without parameters, and of the largest result:
    over all devices."""
    saved: dict[int, int] = {}
    parameters = {id(parameter) for parameter in model.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        if id(tensor) not in parameters:
            saved[id(tensor)] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(x).square().mean().backward()
    return sum(saved.values()) + max(saved.values())


def step_of(
    width: int, mesh: spmd.Mesh, *, clip: bool = False, **how: Any
) -> tuple[spmd.metrics.CompileRecord, int]:
    """The compile log's line of one step of the stack, and the bytes of its activations per
    device."""
    activations = saved_bytes(stack(width), torch.randn(16, width)) // 8
    model = FSDP(stack(width), mesh=mesh, auto_wrap_policy=fsdp.always_wrap_policy, **how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(16, width).to("xla")).square().mean().backward()
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    spmd.sync()
    return last_record(), activations


@pytest.fixture(params=["gspmd", "shardy"])
def partitioner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(config, "partitioner", request.param)
    return request.param


class TestMemory:
    """Temporary bytes per device: the activations, two units' parameters and two units' gradients,
    all unsharded."""

    @pytest.mark.parametrize("megabytes", [8, 16, 32])
    def test_a_stack_of_linear_layers(self, megabytes: int, mesh8: spmd.Mesh) -> None:
        width = int((megabytes * 2**20 / 4 / LAYERS) ** 0.5) // 8 * 8
        record, activations = step_of(width, mesh8)
        assert record.temp_bytes <= activations + 4 * width * width * 4

    def test_under_both_partitioners(self, partitioner: str, mesh8: spmd.Mesh) -> None:
        record, activations = step_of(512, mesh8)
        assert record.temp_bytes <= activations + 4 * 512 * 512 * 4

    def test_with_clipping_the_split_gradients_once_more(
        self, partitioner: str, mesh8: spmd.Mesh
    ) -> None:
        """The norm waits for every gradient, and is computed from the sharded ones."""
        record, activations = step_of(512, mesh8, clip=True)
        assert record.temp_bytes <= activations + (4 + LAYERS / 8) * 512 * 512 * 4

    def test_false_keeps_the_whole_model(self, mesh8: spmd.Mesh) -> None:
        record, _ = step_of(512, mesh8, reshard_after_forward=False)
        assert record.temp_bytes >= LAYERS * 512 * 512 * 4

    def test_two_backwards_before_a_step(self, mesh8: spmd.Mesh) -> None:
        """The parameters gathered by a first forward pass are freed before the second, too."""
        width = 512
        model = FSDP(stack(width), mesh=mesh8, auto_wrap_policy=fsdp.always_wrap_policy)
        for _ in range(3):
            model(torch.randn(16, width).to("xla") + 0).square().mean().backward()
        spmd.sync()
        record = last_record()
        activations = 3 * saved_bytes(stack(width), torch.randn(16, width)) // 8
        split = LAYERS * width * width * 4 // 8
        assert record.temp_bytes <= activations + 4 * width * width * 4 + 2 * split


class TestCollectives:
    """The collectives of the compiled program."""

    def test_gathers_of_a_step(self, partitioner: str, mesh8: spmd.Mesh) -> None:
        """One per unit in forward; in backward none for the last, which has just been used, nor for
        the first, whose input needs no gradient."""
        record, _ = step_of(256, mesh8)
        assert record.collectives["all-gather"] == 2 * LAYERS - 2
        record, _ = step_of(256, mesh8, reshard_after_forward=False)
        assert record.collectives["all-gather"] == LAYERS

    def test_gathers_below_a_root_that_has_a_head(self, mesh8: spmd.Mesh) -> None:
        """The head is gathered once; the last layer again in backward, as the others are."""
        layers, head = stack(256, 3), nn.Linear(256, 256, bias=False)
        model = FSDP(
            nn.Sequential(layers, head),
            mesh=mesh8,
            auto_wrap_policy=lambda module, recurse, numel: recurse or module in set(layers),
        )
        model(torch.randn(16, 256).to("xla")).square().mean().backward()
        spmd.sync()
        # Three layers and the head, then two layers: the first one's input needs no gradient.
        assert last_record().collectives["all-gather"] == 4 + 2

    def test_gradients_are_reduced_unit_by_unit(self, mesh8: spmd.Mesh) -> None:
        record, _ = step_of(256, mesh8)
        assert record.collectives["all-reduce"] == LAYERS

    def test_the_users_own_options(self, mesh8: spmd.Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            config, "compiler_options", "xla_cpu_scheduler_type=CPU_SCHEDULER_TYPE_DEFAULT"
        )
        record, _ = step_of(256, mesh8)
        assert record.collectives["all-reduce"] == 1

    def test_a_second_step_is_the_same_program(self, mesh8: spmd.Mesh) -> None:
        model = FSDP(Net(), mesh=mesh8, auto_wrap_policy=POLICY)
        train(model, torch.randn(16, 16).to("xla"), steps=2)
        known = spmd.metrics.num_compiles()
        train(model, torch.randn(16, 16).to("xla"), steps=2)
        assert spmd.metrics.num_compiles() == known

    def test_nothing_is_gathered_anew_without_a_backward(self, mesh8: spmd.Mesh) -> None:
        model = FSDP(stack(256), mesh=mesh8, auto_wrap_policy=fsdp.always_wrap_policy)
        with torch.no_grad():
            model(torch.randn(16, 256).to("xla")).sum().item()
        assert last_record().collectives["all-gather"] == LAYERS


class TestNumbers:
    """Losses, weights and gradients are those of plain torch, and of `False`, for any mesh."""

    @pytest.mark.parametrize("reshard", [True, False])
    def test_training(self, reshard: bool, partitioner: str, mesh8: spmd.Mesh) -> None:
        same_training(Net, mesh8, 16, 16, auto_wrap_policy=POLICY, reshard_after_forward=reshard)

    def test_one_device(self, mesh1: spmd.Mesh) -> None:
        same_training(Net, mesh1, 16, 16, auto_wrap_policy=POLICY)

    def test_two_axes(self, mesh2x4: spmd.Mesh) -> None:
        same_training(Net, mesh2x4, 16, 16, auto_wrap_policy=POLICY, extra_data_axis="data")

    def test_a_copy_of_the_model(self, mesh8: spmd.Mesh) -> None:
        model = FSDP(Net(), mesh=mesh8, auto_wrap_policy=POLICY)
        twin = copy.deepcopy(model)
        x = torch.randn(16, 16).to("xla")
        for each in (model, twin):
            each(x).square().mean().backward()
        for one, other in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.equal(one.grad.cpu(), other.grad.cpu())


@dataclass
class Pair:
    first: Tensor
    second: Tensor


class Outputs(nn.Module):
    """A unit whose output is a structure."""

    def __init__(self, pack: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.up, self.down, self.pack = nn.Linear(16, 32), nn.Linear(32, 16), pack

    def forward(self, x: Tensor) -> Any:
        hidden = self.up(x)
        return self.pack(x + self.down(hidden.relu()), hidden)


class Model(nn.Module):
    """Three layers that are units, called in a test's way."""

    def __init__(
        self, forward: Callable[..., Tensor], unit: Callable[[], nn.Module] = lambda: Layer(16)
    ) -> None:
        super().__init__()
        self.units = nn.ModuleList(unit() for _ in range(3))
        self.how = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self.units, x)


def chain(units: nn.ModuleList, x: Tensor) -> Tensor:
    for unit in units:
        x = unit(x)
    return x


def gradients(
    model: nn.Module, x: Tensor, backward: Callable[[Tensor], None]
) -> dict[str, Tensor | None]:
    model.zero_grad()
    backward(model(x))
    return {
        name: None if parameter.grad is None else parameter.grad.cpu()
        for name, parameter in model.named_parameters()
    }


def squared(y: Tensor) -> None:
    y.square().mean().backward()


def same_gradients(
    make: Callable[[], nn.Module],
    mesh: spmd.Mesh,
    backward: Callable[[Tensor], None] = squared,
    kind: type = Layer,
) -> FSDP:
    """Gradients of plain torch, of True and of False are the same; in training the first keeps no
    unit unsharded."""
    plain = make()
    x = torch.randn(16, 16)
    copies = [copy.deepcopy(plain), copy.deepcopy(plain)]
    expected = gradients(plain, x, backward)
    for reshard, module in zip((False, True), copies, strict=True):
        model = FSDP(
            module,
            mesh=mesh,
            auto_wrap_policy=lambda module, recurse, numel: recurse or isinstance(module, kind),
            reshard_after_forward=reshard,
        )
        found = gradients(model, x.to("xla"), backward)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            if value is None:
                assert found[name] is None, name
            else:
                torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)
    return model


class TestHowUnitsAreUsed:
    """Whatever a unit returns and however often it is called, its gradients are torch's."""

    @pytest.mark.parametrize(
        ("pack", "first"),
        [
            (lambda y, hidden: (y, hidden), lambda output: output[0] + output[1].mean()),
            (
                lambda y, hidden: {"y": y, "more": [hidden]},
                lambda output: output["y"] + output["more"][0].mean(),
            ),
            (Pair, lambda output: output.first + output.second.mean()),
            (Pair, lambda output: output.first),
            (Pair, lambda output: output.second[:, :16]),
        ],
        ids=["tuple", "dict", "dataclass", "only the first", "only the second"],
    )
    def test_structured_outputs(
        self, pack: Any, first: Callable[[Any], Tensor], mesh8: spmd.Mesh
    ) -> None:
        def forward(units: nn.ModuleList, x: Tensor) -> Tensor:
            for unit in units:
                x = first(unit(x))
            return x

        same_gradients(lambda: Model(forward, lambda: Outputs(pack)), mesh8, kind=Outputs)

    def test_dataclasses_are_seen(self, mesh8: spmd.Mesh) -> None:
        """Their tensors are split along the batch, and their gradients renew the unit."""
        model = FSDP(Outputs(Pair), mesh=mesh8)
        output = model(torch.randn(16, 16).to("xla"))
        assert spmd.get_sharding(output.first).partition_spec(2) == ("fsdp", None)
        assert spmd.get_sharding(output.second).partition_spec(2) == ("fsdp", None)

    def test_called_several_times(self, mesh8: spmd.Mesh) -> None:
        same_gradients(
            lambda: Model(lambda units, x: chain(units, chain(units, units[0](units[0](x))))), mesh8
        )

    def test_skipped(self, mesh8: spmd.Mesh) -> None:
        same_gradients(lambda: Model(lambda units, x: units[2](units[0](x))), mesh8)

    def test_forward_without_gradients(self, mesh8: spmd.Mesh) -> None:
        def forward(units: nn.ModuleList, x: Tensor) -> Tensor:
            with torch.no_grad():
                x = units[0](x)
            return units[2](units[1](x))

        same_gradients(lambda: Model(forward), mesh8)

    @pytest.mark.parametrize("reentrant", [True, False])
    def test_each_unit_checkpointed(self, reentrant: bool, mesh8: spmd.Mesh) -> None:
        def forward(units: nn.ModuleList, x: Tensor) -> Tensor:
            x = x.requires_grad_()
            for unit in units:
                x = checkpoint(unit, x, use_reentrant=reentrant)
            return x

        same_gradients(lambda: Model(forward), mesh8)

    @pytest.mark.parametrize("reentrant", [True, False])
    def test_all_units_in_one_checkpoint(self, reentrant: bool, mesh8: spmd.Mesh) -> None:
        def forward(units: nn.ModuleList, x: Tensor) -> Tensor:
            return checkpoint(chain, units, x.requires_grad_(), use_reentrant=reentrant)

        same_gradients(lambda: Model(forward), mesh8)

    def test_frozen(self, mesh8: spmd.Mesh) -> None:
        def make() -> nn.Module:
            model = Model(chain)
            model.units[1].requires_grad_(False)
            model.units[2].up.weight.requires_grad_(False)
            return model

        same_gradients(make, mesh8)

    def test_backward_twice(self, mesh8: spmd.Mesh) -> None:
        def backward(y: Tensor) -> None:
            loss = y.square().mean()
            loss.backward(retain_graph=True)
            loss.backward()

        same_gradients(lambda: Model(chain), mesh8, backward)

    def test_gradients_of_gradients(self, mesh8: spmd.Mesh) -> None:
        def backward(y: Tensor) -> None:
            (gradient,) = torch.autograd.grad(y.square().mean(), y, create_graph=True)
            gradient.square().sum().backward()

        same_gradients(lambda: Model(chain), mesh8, backward)

    def test_gradients_of_inputs_that_have_one_themselves(self, mesh8: spmd.Mesh) -> None:
        def forward(units: nn.ModuleList, x: Tensor) -> Tensor:
            x = x.requires_grad_()
            (gradient,) = torch.autograd.grad(chain(units, x).square().mean(), x, create_graph=True)
            return gradient * 100

        same_gradients(lambda: Model(forward), mesh8)

    def test_an_output_written_into(self, mesh8: spmd.Mesh) -> None:
        def forward(units: nn.ModuleList, x: Tensor) -> Tensor:
            for unit in units:
                x = unit(x)
                x.mul_(0.5).add_(x.detach())
                x[:, :4] *= 0.5
            return x

        same_gradients(lambda: Model(forward), mesh8)

    def test_a_barrier_between_forward_and_backward(self, mesh8: spmd.Mesh) -> None:
        def backward(y: Tensor) -> None:
            loss = y.square().mean()
            loss.item()
            loss.backward()

        same_gradients(lambda: Model(chain), mesh8, backward)

    def test_units_in_units_and_a_loss_of_its_own(self, mesh8: spmd.Mesh) -> None:
        """A gradient may come to a unit's inside before one comes to its output."""

        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.before, self.inner, self.after = (
                    nn.Linear(16, 16),
                    Layer(16),
                    nn.Linear(16, 16),
                )

            def forward(self, x: Tensor) -> Tensor:
                hidden = self.before(x)
                self.penalty = hidden.square().mean()
                return self.after(self.inner(hidden))

        def forward(units: nn.ModuleList, x: Tensor) -> Tensor:
            y = chain(units, x)
            return y + sum(unit.penalty for unit in units)

        same_gradients(lambda: Model(forward, Outer), mesh8, kind=(Outer, Layer))

    def test_a_weight_that_two_units_read(self, mesh8: spmd.Mesh) -> None:
        def forward(units: nn.ModuleList, x: Tensor) -> Tensor:
            return chain(units, x) @ units[0].up.weight.t() @ units[2].up.weight

        same_gradients(lambda: Model(forward), mesh8)
