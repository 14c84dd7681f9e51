"""FullyShardedDataParallel: each argument, and what a user relies on around it, against plain torch."""

import copy
import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from support import check
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.utils import ModelOutput

import fsdp
import spmd

FSDP = fsdp.FullyShardedDataParallel


class Net(nn.Module):
    """Two blocks and a head; `norm` has a buffer."""

    def __init__(self, width: int = 16, blocks: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Layer(width) for _ in range(blocks))
        self.head = nn.Linear(width, 8)
        self.register_buffer("scale", torch.full((width,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x * self.scale)


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


POLICY = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Layer})


def train(
    model: nn.Module, x: Tensor, *, optimizer: torch.optim.Optimizer | None = None, steps: int = 3
) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2) if optimizer is None else optimizer
    losses = []
    for _ in range(steps):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        spmd.sync()
        losses.append(loss.item())
    return losses


def same_training(make: Callable[[], nn.Module], mesh: spmd.Mesh, *shape: int, **how: Any) -> FSDP:
    """Trains twins, one in plain torch and one wrapped, asserts equal losses and weights, returns the wrapped one."""
    plain = make()
    wrapped = FSDP(copy.deepcopy(plain), mesh=mesh, **how)
    x = torch.randn(*shape)
    assert train(wrapped, x.to("xla")) == pytest.approx(train(plain, x), rel=1e-5)
    for (name, value), (other, expected) in zip(wrapped.state_dict().items(), plain.state_dict().items(), strict=True):
        assert name == other
        check(value, expected)
    return wrapped


def spec(tensor: Tensor) -> tuple[Any, ...]:
    sharding = spmd.get_sharding(tensor)
    assert sharding is not None
    return sharding.partition_spec(tensor.dim())


class TestModule:
    """module: annotated in place; its parameters, names and classes stay."""

    def test_trains_as_plain_torch(self, mesh8: spmd.Mesh) -> None:
        same_training(Net, mesh8, 16, 16, auto_wrap_policy=POLICY)

    def test_parameters_are_split_and_buffers_whole(self, mesh8: spmd.Mesh) -> None:
        model = FSDP(Net(), mesh=mesh8)
        assert spec(model.head.weight) == (None, "fsdp")
        assert spec(model.blocks[0].up.weight) == ("fsdp", None)
        assert spec(model.head.bias) == ("fsdp",)
        assert spec(model.scale) == (None,)

    def test_the_same_parameter_objects_on_the_device(self, mesh8: spmd.Mesh) -> None:
        net = Net()
        before = dict(net.named_parameters())
        model = FSDP(net, mesh=mesh8)
        after = dict(model.named_parameters())
        assert after.keys() == before.keys()
        assert all(after[name] is parameter for name, parameter in before.items())
        assert {parameter.device.type for parameter in after.values()} == {"xla"}
        assert all(isinstance(parameter, nn.Parameter) for parameter in after.values())

    def test_classes_are_unchanged(self, mesh8: spmd.Mesh) -> None:
        net = Net()
        before = {name: type(module) for name, module in net.named_modules()}
        forwards = {cls: cls.forward for cls in before.values()}
        model = FSDP(net, mesh=mesh8, auto_wrap_policy=POLICY)
        assert model.module is net
        assert {name: type(module) for name, module in net.named_modules()} == before
        assert all(cls.forward is forward for cls, forward in forwards.items())

    def test_attributes_and_items_of_the_module(self, mesh8: spmd.Mesh) -> None:
        model = FSDP(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), mesh=mesh8)
        assert isinstance(model[0], nn.Linear)
        assert FSDP(Net(), mesh=mesh8).head.out_features == 8
        with pytest.raises(AttributeError, match="no attribute 'absent'"):
            _ = model.absent

    def test_an_optimizer_built_before_works(self, mesh8: spmd.Mesh) -> None:
        plain = Net()
        net = copy.deepcopy(plain)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        model = FSDP(net, mesh=mesh8, auto_wrap_policy=POLICY)
        x = torch.randn(8, 16)
        assert train(model, x.to("xla"), optimizer=optimizer) == pytest.approx(train(plain, x), rel=1e-5)

    def test_uneven_shapes(self, mesh8: spmd.Mesh) -> None:
        """Linear(10, 7) on eight devices: a padded weight, a bias too small to split, a batch that does not divide."""

        def make() -> nn.Module:
            return nn.Sequential(nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 3))

        model = same_training(make, mesh8, 12, 10, auto_wrap_policy=fsdp.always_wrap_policy)
        assert spec(model[0].weight) == (None, "fsdp")
        assert spec(model[0].bias) == (None,)
        shards = spmd.local_shards(model[0].weight)
        assert [tuple(shard.data.shape) for shard in shards] == [(7, 2)] * 8
        assert [tuple(shard.unpadded_data.shape) for shard in shards] == [(7, 2)] * 5 + [(7, 0)] * 3

    def test_not_a_module(self, mesh8: spmd.Mesh) -> None:
        with pytest.raises(TypeError, match=r"expected a torch.nn.Module, got list"):
            FSDP([nn.Linear(2, 2)], mesh=mesh8)  # type: ignore[arg-type]


class TestWhereTheModuleComesFrom:
    """A module built on the CPU, under `with torch.device("xla")` or on meta ends up on the device, split."""

    def test_meta_is_materialised_by_reset_parameters(self, mesh8: spmd.Mesh) -> None:
        with torch.device("meta"):
            net = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 8))
        torch.manual_seed(1)
        model = FSDP(net, mesh=mesh8)
        assert spec(model[0].weight) == ("fsdp", None)
        weight = model[0].weight.detach().cpu()
        assert 0 < weight.abs().max() <= 0.25  # 1 / sqrt(in_features)
        assert weight.std().item() == pytest.approx(0.25 / 3**0.5, rel=0.1)
        assert torch.equal(model[1].weight.detach().cpu(), torch.ones(32))

    def test_meta_equals_a_module_born_on_the_device(self, mesh8: spmd.Mesh) -> None:
        values = []
        for device in ("meta", "xla"):
            torch.manual_seed(2)
            with torch.device(device):
                net = nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 8))
            torch.manual_seed(2) if device == "meta" else None
            values.append([value.cpu() for value in FSDP(net, mesh=mesh8).state_dict().values()])
        assert all(torch.equal(one, other) for one, other in zip(*values, strict=True))

    def test_meta_without_reset_parameters_is_refused(self, mesh8: spmd.Mesh) -> None:
        class Bare(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.empty(8))

        with torch.device("meta"):
            net = nn.Sequential(Bare())
        with pytest.raises(ValueError, match=r"Bare is on the meta device and has no reset_parameters\(\)"):
            FSDP(net, mesh=mesh8)

    def test_frozen_parameters(self, mesh8: spmd.Mesh) -> None:
        net = Net()
        net.blocks[0].requires_grad_(False)
        model = FSDP(net, mesh=mesh8, auto_wrap_policy=POLICY)
        before = model.blocks[0].up.weight.detach().cpu()
        train(model, torch.randn(8, 16).to("xla"))
        assert model.blocks[0].up.weight.grad is None
        assert torch.equal(model.blocks[0].up.weight.detach().cpu(), before)
        assert spec(model.blocks[0].up.weight) == ("fsdp", None)


class TestMesh:
    """mesh, shard_axis, extra_data_axis."""

    def test_default_is_all_devices(self) -> None:
        model = FSDP(nn.Linear(8, 8))
        assert model.mesh == spmd.Mesh(range(8), (8,), ("fsdp",))

    def test_shard_axis_has_any_name(self) -> None:
        model = FSDP(nn.Linear(8, 8), mesh=spmd.Mesh(range(4), (2, 2), ("zero", "other")), shard_axis="zero")
        assert spec(model.weight) == ("zero", None)

    def test_extra_data_axis_splits_the_batch_only(self, mesh2x4: spmd.Mesh) -> None:
        model = same_training(Net, mesh2x4, 8, 16, auto_wrap_policy=POLICY, extra_data_axis="data")
        assert spec(model.head.weight) == (None, "fsdp")
        output = model(torch.randn(8, 16).to("xla"))
        assert spec(output) == (("data", "fsdp"), None)

    @pytest.mark.parametrize("how", [{"shard_axis": "model"}, {"extra_data_axis": "model"}])
    def test_unknown_axis(self, how: dict[str, str], mesh8: spmd.Mesh) -> None:
        with pytest.raises(ValueError, match=r"the mesh has no axis 'model' \(axes: fsdp\)"):
            FSDP(nn.Linear(8, 8), mesh=mesh8, **how)  # type: ignore[arg-type]

    def test_the_batch_axis_is_not_the_shard_axis(self, mesh8: spmd.Mesh) -> None:
        with pytest.raises(ValueError, match="extra_data_axis must be another axis than shard_axis"):
            FSDP(nn.Linear(8, 8), mesh=mesh8, extra_data_axis="fsdp")

    def test_wrong_type(self) -> None:
        with pytest.raises(TypeError, match=r"expected mesh to be a spmd.Mesh, got tuple"):
            FSDP(nn.Linear(8, 8), mesh=(8,))  # type: ignore[arg-type]

    def test_an_error_leaves_the_module_as_it_was(self, mesh8: spmd.Mesh) -> None:
        net = Net()
        with pytest.raises(ValueError):
            FSDP(net, mesh=mesh8, shard_axis="model")
        assert {parameter.device.type for parameter in net.parameters()} == {"cpu"}


class TestAutoWrapPolicy:
    """auto_wrap_policy: the units' outputs are split over the batch axis; the numbers do not depend on it."""

    def test_units_are_listed(self, mesh8: spmd.Mesh) -> None:
        assert [name for name, _ in FSDP(Net(), mesh=mesh8, auto_wrap_policy=POLICY).units] == ["blocks.0", "blocks.1"]
        assert FSDP(Net(), mesh=mesh8).units == []

    def test_every_policy_trains_alike(self, mesh8: spmd.Mesh) -> None:
        same_training(Net, mesh8, 8, 16, auto_wrap_policy=fsdp.always_wrap_policy)
        same_training(Net, mesh8, 8, 16, auto_wrap_policy=partial(fsdp.size_based_auto_wrap_policy, min_num_params=100))
        same_training(Net, mesh8, 8, 16)

    def test_outputs_of_units_are_annotated(self, mesh8: spmd.Mesh) -> None:
        model = FSDP(Net(), mesh=mesh8, auto_wrap_policy=POLICY)
        seen = []
        model.blocks[0].register_forward_hook(lambda module, args, output: seen.append(spec(output)))
        model(torch.randn(8, 16).to("xla"))
        assert seen == [("fsdp", None)]


class TestShardOutput:
    """shard_output(output, mesh): takes the place of splitting each unit's output along dim 0."""

    def test_called_for_units_and_root(self, mesh8: spmd.Mesh) -> None:
        outputs = []

        def shard_output(output: Tensor, mesh: spmd.Mesh) -> None:
            assert mesh == mesh8
            outputs.append(tuple(output.shape))
            spmd.mark_sharding(output, mesh, (None, "fsdp"))

        model = FSDP(Net(), mesh=mesh8, auto_wrap_policy=POLICY, shard_output=shard_output)
        output = model(torch.randn(8, 16).to("xla"))
        assert outputs == [(8, 16), (8, 16), (8, 8)]
        assert spec(output) == (None, "fsdp")

    def test_same_numbers(self, mesh8: spmd.Mesh) -> None:
        same_training(Net, mesh8, 8, 16, auto_wrap_policy=POLICY, shard_output=lambda output, mesh: None)


class TestIgnoredModules:
    """ignored_modules: neither split nor units."""

    def test_whole_on_each_device(self, mesh8: spmd.Mesh) -> None:
        net = Net()
        model = FSDP(net, mesh=mesh8, auto_wrap_policy=POLICY, ignored_modules=[net.blocks[1]])
        assert [name for name, _ in model.units] == ["blocks.0"]
        assert spec(net.blocks[1].up.weight) == (None, None)
        assert spec(net.blocks[0].up.weight) == ("fsdp", None)
        assert len(spmd.local_shards(net.blocks[1].up.weight)) == 8
        train(model, torch.randn(8, 16).to("xla"))
        assert spec(net.blocks[1].up.weight) == (None, None)

    def test_a_generator_will_do(self, mesh8: spmd.Mesh) -> None:
        net = Net()
        model = FSDP(net, mesh=mesh8, auto_wrap_policy=POLICY, ignored_modules=(block for block in [net.blocks[1]]))
        assert spec(net.blocks[1].up.weight) == (None, None)
        assert [name for name, _ in model.units] == ["blocks.0"]


@dataclass
class Answer(ModelOutput):
    logits: Tensor | None = None
    hidden: tuple[Tensor, ...] | None = None


class TestForms:
    """Inputs and outputs of any form: positional, by keyword, tuple, dict, ModelOutput, nested; tensors are marked."""

    def output(self, form: Callable[[Tensor], Any], mesh: spmd.Mesh) -> Any:
        class Wraps(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(8, 8)

            def forward(self, x: Tensor, *, times: float = 1.0, mask: Tensor | None = None) -> Any:
                y = self.linear(x) * times
                return form(y if mask is None else y * mask)

        self.model = FSDP(Wraps(), mesh=mesh)
        self.x, self.mask = torch.ones(8, 8).to("xla"), torch.ones(8, 8).to("xla")
        return self.model(self.x, times=2.0, mask=self.mask)

    def test_tuple(self, mesh8: spmd.Mesh) -> None:
        first, number, text, nothing = self.output(lambda y: (y, 3, "text", None), mesh8)
        assert spec(first) == ("fsdp", None)
        assert (number, text, nothing) == (3, "text", None)

    def test_dict_nested(self, mesh8: spmd.Mesh) -> None:
        output = self.output(lambda y: {"one": y, "more": [y + 1, {"deep": y.sum(1)}]}, mesh8)
        assert spec(output["one"]) == spec(output["more"][0]) == ("fsdp", None)
        assert output["more"][1]["deep"].shape == (8,)

    def test_model_output(self, mesh8: spmd.Mesh) -> None:
        output = self.output(lambda y: Answer(logits=y, hidden=(y + 1,)), mesh8)
        assert type(output) is Answer
        assert spec(output.logits) == spec(output.hidden[0]) == ("fsdp", None)

    def test_scalars_are_left_alone(self, mesh8: spmd.Mesh) -> None:
        assert self.output(lambda y: y.sum(), mesh8).shape == ()

    def test_inputs_are_split_where_nobody_marked_them(self, mesh8: spmd.Mesh) -> None:
        self.output(lambda y: y, mesh8)
        assert spec(self.x) == spec(self.mask) == ("fsdp", None)
        marked = spmd.mark_sharding(torch.ones(8, 8).to("xla"), mesh8, (None, "fsdp"))
        self.model(marked)
        assert spec(marked) == (None, "fsdp")


class TestStateDict:
    """state_dict has the plain module's keys, in both directions, also inside another module."""

    def test_round_trip(self, mesh8: spmd.Mesh) -> None:
        plain = Net()
        model = FSDP(Net(), mesh=mesh8, auto_wrap_policy=POLICY)
        assert list(model.state_dict()) == list(plain.state_dict())
        assert str(model.load_state_dict(plain.state_dict())) == "<All keys matched successfully>"
        other = Net()
        other.load_state_dict({name: value.cpu() for name, value in model.state_dict().items()})
        for name, value in plain.state_dict().items():
            assert torch.equal(other.state_dict()[name], value)
        assert spec(model.blocks[0].up.weight) == ("fsdp", None)

    def test_values_on_the_device_load_into_a_cpu_module(self, mesh8: spmd.Mesh) -> None:
        model = FSDP(Net(), mesh=mesh8)
        plain = Net()
        plain.load_state_dict(model.state_dict())
        assert torch.equal(plain.head.weight, model.head.weight.detach().cpu())

    def test_inside_another_module(self, mesh8: spmd.Mesh) -> None:
        class Outer(nn.Module):
            def __init__(self, inner: nn.Module) -> None:
                super().__init__()
                self.inner = inner
                self.module_out = nn.Linear(8, 8)

        plain = Outer(Net())
        outer = Outer(FSDP(Net(), mesh=mesh8, auto_wrap_policy=POLICY))
        assert list(outer.state_dict()) == list(plain.state_dict())
        assert not any(outer.load_state_dict(plain.state_dict()))
        assert torch.equal(outer.inner.head.weight.detach().cpu(), plain.inner.head.weight)

    def test_wrapped_inside_wrapped(self, mesh8: spmd.Mesh) -> None:
        plain = Net()
        net = copy.deepcopy(plain)
        net.blocks[0] = FSDP(net.blocks[0], mesh=mesh8)
        model = FSDP(net, mesh=mesh8)
        assert sorted(model.state_dict()) == sorted(plain.state_dict())
        assert not any(model.load_state_dict(plain.state_dict()))
        x = torch.randn(8, 16)
        check(model(x.to("xla")), plain(x))

    def test_a_submodule_called_module(self, mesh8: spmd.Mesh) -> None:
        plain = nn.ModuleDict({"module": nn.Linear(8, 8), "other": nn.Linear(8, 8)})
        model = FSDP(copy.deepcopy(plain), mesh=mesh8)
        assert list(model.state_dict()) == list(plain.state_dict())
        assert not any(model.load_state_dict(plain.state_dict()))

    def test_missing_and_unexpected_keys_by_their_plain_names(self, mesh8: spmd.Mesh) -> None:
        model = FSDP(Net(), mesh=mesh8)
        state = Net().state_dict()
        del state["head.bias"]
        state["extra"] = torch.ones(1)
        found = model.load_state_dict(state, strict=False)
        assert (found.missing_keys, found.unexpected_keys) == (["head.bias"], ["extra"])
        with pytest.raises(RuntimeError, match=r'"head.bias"') as error:
            model.load_state_dict(state)
        assert "module." not in str(error.value)

    def test_the_given_dict_is_not_changed(self, mesh8: spmd.Mesh) -> None:
        state = Net().state_dict()
        before = list(state)
        FSDP(Net(), mesh=mesh8).load_state_dict(state)
        assert list(state) == before

    def test_a_materialised_meta_module(self, mesh8: spmd.Mesh) -> None:
        """The other order: `to_empty`, wrap, then load."""
        plain = Net()
        with torch.device("meta"):
            net = Net()
        model = FSDP(net.to_empty(device="xla"), mesh=mesh8, auto_wrap_policy=POLICY)
        assert not any(model.load_state_dict(plain.state_dict()))
        x = torch.randn(8, 16)
        check(model(x.to("xla")), plain(x))
        assert spec(model.head.weight) == (None, "fsdp")

    def test_optimizer_state(self, mesh8: spmd.Mesh) -> None:
        """An optimizer's state dict goes on where another run stopped."""
        x = torch.randn(8, 16)
        plain = Net()
        wrapped = FSDP(copy.deepcopy(plain), mesh=mesh8)
        one, other = torch.optim.AdamW(plain.parameters()), torch.optim.AdamW(wrapped.parameters())
        train(plain, x, optimizer=one)
        wrapped.load_state_dict(plain.state_dict())
        other.load_state_dict(copy.deepcopy(one.state_dict()))
        assert train(wrapped, x.to("xla"), optimizer=other) == pytest.approx(train(plain, x, optimizer=one), rel=1e-5)
        assert spec(other.state[wrapped.head.weight]["exp_avg"]) == (None, "fsdp")


class TestTiedWeights:
    """Weights that two modules share stay shared, are annotated once and trained once."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(32, 16)
            self.body = Layer(16)
            self.head = nn.Linear(16, 32, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.body(self.embed(tokens)))

    @pytest.mark.parametrize("device", ["cpu", "xla"])
    def test_stay_tied(self, device: str, mesh8: spmd.Mesh) -> None:
        with torch.device(device):
            net = self.Tied()
        model = FSDP(net, mesh=mesh8, auto_wrap_policy=fsdp.always_wrap_policy)
        assert model.head.weight is model.embed.weight
        assert spec(model.head.weight) == ("fsdp", None)

    def test_train_as_plain_torch(self, mesh8: spmd.Mesh) -> None:
        plain = self.Tied()
        model = FSDP(copy.deepcopy(plain), mesh=mesh8, auto_wrap_policy=POLICY)
        tokens = torch.randint(32, (8, 4))
        assert train(model, tokens.to("xla")) == pytest.approx(train(plain, tokens), rel=1e-5)
        check(model.head.weight, plain.embed.weight)


class TestTraining:
    """What a training program does besides the plain step."""

    def test_gradients_accumulate_over_two_backwards(self, mesh8: spmd.Mesh) -> None:
        plain = Net()
        model = FSDP(copy.deepcopy(plain), mesh=mesh8, auto_wrap_policy=POLICY)
        for x in torch.randn(2, 8, 16):
            plain(x).square().mean().backward()
            model(x.to("xla")).square().mean().backward()
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            check(one.grad, other.grad)
            assert spmd.get_sharding(one.grad) is spmd.get_sharding(one)

    def test_gradients_accumulate_with_a_barrier_between(self, mesh8: spmd.Mesh) -> None:
        plain = Net()
        model = FSDP(copy.deepcopy(plain), mesh=mesh8, auto_wrap_policy=POLICY)
        for x in torch.randn(3, 8, 16):
            plain(x).square().mean().backward()
            model(x.to("xla")).square().mean().backward()
            spmd.sync()
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            check(one.grad, other.grad)
            assert spmd.get_sharding(one.grad) is spmd.get_sharding(one)

    def test_eval_without_gradients(self, mesh8: spmd.Mesh) -> None:
        plain = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.BatchNorm1d(16), nn.Linear(16, 8)).eval()
        model = FSDP(copy.deepcopy(plain), mesh=mesh8)
        assert not model.module.training
        x = torch.randn(8, 16)
        with torch.no_grad():
            output = model(x.to("xla"))
            check(output, plain(x))
        assert not output.requires_grad
        assert model.train()[1].training

    def test_an_evaluation_between_two_steps_does_not_recompile_the_step(self, mesh8: spmd.Mesh) -> None:
        model = FSDP(Net(width=24), mesh=mesh8, auto_wrap_policy=POLICY)
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.randn(8, 24)
        train(model, x.to("xla"), optimizer=optimizer, steps=1)
        with torch.no_grad():
            model.eval()(x.to("xla")).sum().item()
        model.train()
        before = spmd.metrics.num_compiles()
        train(model, x.to("xla"), optimizer=optimizer, steps=2)
        assert spmd.metrics.num_compiles() == before

    @pytest.mark.parametrize("use_reentrant", [False, True])
    def test_checkpointed_blocks(self, use_reentrant: bool, mesh8: spmd.Mesh) -> None:
        class Checkpointed(Net):
            def forward(self, x: Tensor) -> Tensor:
                x.requires_grad_()
                for block in self.blocks:
                    x = checkpoint(block, x, use_reentrant=use_reentrant)
                return self.head(x * self.scale)

        same_training(Checkpointed, mesh8, 8, 16, auto_wrap_policy=POLICY)

    def test_an_error_in_forward_leaves_the_model_usable(self, mesh8: spmd.Mesh) -> None:
        plain = Net()
        model = FSDP(copy.deepcopy(plain), mesh=mesh8, auto_wrap_policy=POLICY)
        with pytest.raises(RuntimeError):
            model(torch.randn(8, 15).to("xla"))
        x = torch.randn(8, 16)
        check(model(x.to("xla")), plain(x))
        train(model, x.to("xla"), steps=1)
        assert spec(model.head.weight) == (None, "fsdp")

    def test_a_frozen_copy_of_the_batch_is_not_needed(self, mesh8: spmd.Mesh) -> None:
        """A batch that the devices do not divide runs too; its last batch of an epoch, say."""
        plain = Net()
        model = FSDP(copy.deepcopy(plain), mesh=mesh8, auto_wrap_policy=POLICY)
        x = torch.randn(5, 16)
        check(model(x.to("xla")), plain(x))


class TestConversion:
    """`.to(dtype)`, `.to("xla")` and `.cpu()` on the wrapped model, or on a module around it."""

    @pytest.mark.parametrize("around", [False, True])
    def test_another_dtype_is_split_and_trains_alike(self, around: bool, mesh8: spmd.Mesh) -> None:
        plain = Net()
        model = FSDP(copy.deepcopy(plain), mesh=mesh8, auto_wrap_policy=POLICY)
        (nn.Sequential(model) if around else model).to(torch.float64)
        plain.to(torch.float64)
        assert spec(model.head.weight) == (None, "fsdp")
        x = torch.randn(8, 16, dtype=torch.float64)
        assert train(model, x.to("xla")) == pytest.approx(train(plain, x), rel=1e-9)
        assert spec(model.blocks[0].up.weight) == ("fsdp", None)

    def test_to_the_device_again_changes_nothing(self, mesh8: spmd.Mesh) -> None:
        plain = Net(width=32)
        model = FSDP(copy.deepcopy(plain), mesh=mesh8, auto_wrap_policy=POLICY)
        x = torch.randn(8, 32)
        expected = train(plain, x, steps=4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = train(model, x.to("xla"), optimizer=optimizer, steps=2)
        before = spmd.metrics.num_compiles()
        losses += train(model.to("xla"), x.to("xla"), optimizer=optimizer, steps=2)
        assert losses == pytest.approx(expected, rel=1e-5)
        assert spmd.metrics.num_compiles() == before

    def test_back_to_the_cpu(self, mesh8: spmd.Mesh) -> None:
        model = FSDP(Net(), mesh=mesh8, auto_wrap_policy=POLICY)
        x = torch.randn(8, 16)
        expected = model(x.to("xla")).detach().cpu()
        torch.testing.assert_close(model.cpu()(x), expected, rtol=2e-5, atol=2e-5)


class TestCopies:
    """deepcopy gives a model of its own, split and gathered like the first."""

    def test_deepcopy(self, mesh8: spmd.Mesh) -> None:
        model = FSDP(Net(), mesh=mesh8, auto_wrap_policy=POLICY)
        copied = copy.deepcopy(model)
        assert list(copied.state_dict()) == list(model.state_dict())
        assert spec(copied.blocks[0].up.weight) == ("fsdp", None)
        x = torch.randn(8, 16).to("xla")
        check(copied(x), model(x).detach().cpu())
        before = copied.head.weight.detach().cpu()
        expected = train(model, x)
        assert torch.equal(copied.head.weight.detach().cpu(), before)
        compiled = spmd.metrics.num_compiles()
        assert train(copied, x) == pytest.approx(expected, rel=1e-6)
        assert spmd.metrics.num_compiles() == compiled, "the copy trains by the same program"

    def test_deepcopy_keeps_ties(self, mesh8: spmd.Mesh) -> None:
        copied = copy.deepcopy(FSDP(TestTiedWeights.Tied(), mesh=mesh8))
        assert copied.head.weight is copied.embed.weight


class TestLifetime:
    """What nobody holds any more is freed at once, without the garbage collector."""

    def test_the_wrapper_is_in_no_cycle(self, mesh8: spmd.Mesh) -> None:
        model = FSDP(Net(), mesh=mesh8, auto_wrap_policy=POLICY)
        train(model, torch.randn(8, 16).to("xla"), steps=1)
        gone = weakref.ref(model)
        gc.disable()
        try:
            del model
            assert gone() is None
        finally:
            gc.enable()

    def test_parameters_go_with_the_model(self, mesh8):
        def build() -> nn.Module:
            model = FSDP(Net().to("xla"), mesh=mesh8, auto_wrap_policy=POLICY)
            model(torch.randn(8, 16, device="xla")).sum().backward()
            spmd.sync()
            return model

        build()  # the first use of an op keeps frames until the collector runs
        gc.collect()
        gc.disable()
        try:
            model = build()
            cells = [weakref.ref(parameter._cell) for parameter in model.parameters()]
            del model
            assert [cell() for cell in cells if cell() is not None] == []
        finally:
            gc.enable()


class TestFrozen:
    """A parameter that was frozen when the model was wrapped and is trained later has a split gradient, too."""

    def test_thawed(self, mesh8):
        module = nn.Linear(16, 8).requires_grad_(False)
        model = FSDP(module, mesh=mesh8)
        model.requires_grad_(True)
        model(torch.randn(8, 16, device="xla")).sum().backward()
        spmd.sync()
        for parameter in model.parameters():
            assert spmd.get_sharding(parameter.grad) is spmd.get_sharding(parameter)
