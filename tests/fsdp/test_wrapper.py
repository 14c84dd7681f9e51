"""FullyShardedDataParallel: each argument, against plain torch."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput
from wrapped import FSDP, POLICY, Net, same_training, spec, train

import fsdp
import spmd
from spmd.core.base import messages
from spmd.core.programs import cache
from spmd.mesh import notes


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
        assert train(model, x.to("xla"), optimizer=optimizer) == pytest.approx(
            train(plain, x), rel=1e-5
        )

    def test_uneven_shapes(self, mesh8: spmd.Mesh) -> None:
        """Linear(10, 7) on eight devices: a padded weight, a bias too small to shard, a batch that
        does not divide."""

        def make() -> nn.Module:
            return nn.Sequential(
                nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 3)
            )

        model = same_training(make, mesh8, 12, 10, auto_wrap_policy=fsdp.always_wrap_policy)
        assert spec(model[0].weight) == (None, "fsdp")
        assert spec(model[0].bias) == (None,)
        shards = spmd.local_shards(model[0].weight)
        assert [tuple(shard.data.shape) for shard in shards] == [(7, 2)] * 8
        assert [tuple(shard.unpadded_data.shape) for shard in shards] == [(7, 2)] * 5 + [(7, 0)] * 3

    def test_wrapped_twice(self, mesh8: spmd.Mesh) -> None:
        model = fsdp.FullyShardedDataParallel(nn.Linear(8, 8), mesh8)
        with pytest.raises(
            ValueError, match=r"the Linear is wrapped already, over .*; wrap a module once"
        ):
            fsdp.FullyShardedDataParallel(model, mesh8)

    @pytest.mark.parametrize("api", ["wrapper", "fully_shard"])
    def test_names_of_another_wrapper(self, api: str, mesh8: spmd.Mesh) -> None:
        """State dicts of PyTorch/XLA's FSDPv2 load, with the names of its inner wrappers."""
        source, model = (nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)) for _ in range(2))
        if api == "wrapper":
            model = fsdp.FullyShardedDataParallel(model, mesh8, auto_wrap_policy={nn.Linear})
        else:
            fsdp.fully_shard(model[0], mesh=mesh8)
            fsdp.fully_shard(model, mesh=mesh8)
        names = {
            name: f"_orig_module.{name}".replace("0.", "0._orig_module.")
            for name in source.state_dict()
        }
        model.load_state_dict({names[name]: value for name, value in source.state_dict().items()})
        for name, value in model.state_dict().items():
            assert torch.equal(value.cpu(), source.state_dict()[name])
        with pytest.raises(RuntimeError, match=r"2\.weight"):
            model.load_state_dict(
                {names[name]: 0 for name in names} | {"_orig_module.2.weight": torch.ones(1)}
            )

    def test_no_mesh_on_one_device(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """It says so, once for all units; over several devices it is silent."""
        FSDP(nn.Linear(8, 8))
        assert "one device" not in capsys.readouterr().err
        monkeypatch.setattr(spmd, "device_ids", lambda: [0])
        notes.say_once.cache_clear()
        messages.forget()
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        for unit in (*model, model):
            fsdp.fully_shard(unit)
        assert capsys.readouterr().err.count("fully_shard: without a mesh and with one device") == 1

    def test_not_a_module(self, mesh8: spmd.Mesh) -> None:
        with pytest.raises(TypeError, match=r"expected a torch.nn.Module, got list"):
            FSDP([nn.Linear(2, 2)], mesh=mesh8)  # type: ignore[arg-type]


class TestWhereTheModuleComesFrom:
    """A module built on the CPU, under `with torch.device("xla")` or on meta ends up on the device,
    sharded."""

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
        with pytest.raises(
            ValueError, match=r"Bare is on the meta device and has no reset_parameters\(\)"
        ):
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
        model = FSDP(
            nn.Linear(8, 8), mesh=spmd.Mesh(range(4), (2, 2), ("zero", "other")), shard_axis="zero"
        )
        assert spec(model.weight) == ("zero", None)

    def test_extra_data_axis_splits_the_batch_only(self, mesh2x4: spmd.Mesh) -> None:
        model = same_training(Net, mesh2x4, 8, 16, auto_wrap_policy=POLICY, extra_data_axis="data")
        assert spec(model.head.weight) == (None, "fsdp")
        output = model(torch.randn(8, 16).to("xla"))
        assert spec(output) == (("data", "fsdp"), None)

    def test_an_axis_named_data_is_the_batchs(self, mesh2x4: spmd.Mesh) -> None:
        model = FSDP(nn.Linear(16, 16), mesh=mesh2x4)
        assert spec(model.weight) == ("fsdp", None)
        assert spec(model(torch.randn(8, 16).to("xla"))) == (("data", "fsdp"), None)
        rows = FSDP(nn.Linear(16, 16), mesh=mesh2x4, shard_axis="data")
        # the other axis may be tensor parallel's: its dims are not FSDP's to decide
        assert spec(rows(torch.randn(8, 16).to("xla"))) == ("data", spmd.P.UNCONSTRAINED)

    def test_the_batch_is_split_in_the_order_of_the_mesh(self) -> None:
        mesh = spmd.Mesh(range(8), (4, 2), ("fsdp", "data"))
        model = FSDP(Net(), mesh=mesh, auto_wrap_policy=POLICY)
        batch = spmd.mark_sharding(torch.randn(8, 16).to("xla"), mesh, (("fsdp", "data"), None))
        output = model(batch)
        assert spec(output) == (("fsdp", "data"), None)
        spmd.sync()
        program = cache.last_program()
        assert program is not None and "collective-permute" not in program.executable.as_text(), (
            "no rows are swapped"
        )

    @pytest.mark.parametrize("how", [{"shard_axis": "model"}, {"extra_data_axis": "model"}])
    def test_unknown_axis(self, how: dict[str, str], mesh8: spmd.Mesh) -> None:
        with pytest.raises(ValueError, match=r"the mesh has no axis 'model' \(axes: fsdp\)"):
            FSDP(nn.Linear(8, 8), mesh=mesh8, **how)  # type: ignore[arg-type]

    def test_the_batch_axis_is_not_the_shard_axis(self, mesh8: spmd.Mesh) -> None:
        with pytest.raises(
            ValueError, match="extra_data_axis must be another axis than shard_axis"
        ):
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
    """auto_wrap_policy: the units' outputs are sharded over the batch axis; the numbers do not
    depend on it."""

    def test_units_are_listed(self, mesh8: spmd.Mesh) -> None:
        assert [name for name, _ in FSDP(Net(), mesh=mesh8, auto_wrap_policy=POLICY).units] == [
            "blocks.0",
            "blocks.1",
        ]
        assert FSDP(Net(), mesh=mesh8).units == []

    def test_every_policy_trains_alike(self, mesh8: spmd.Mesh) -> None:
        same_training(Net, mesh8, 8, 16, auto_wrap_policy=fsdp.always_wrap_policy)
        same_training(
            Net,
            mesh8,
            8,
            16,
            auto_wrap_policy=partial(fsdp.size_based_auto_wrap_policy, min_num_params=100),
        )
        same_training(Net, mesh8, 8, 16)

    def test_outputs_of_units_are_annotated(self, mesh8: spmd.Mesh) -> None:
        model = FSDP(Net(), mesh=mesh8, auto_wrap_policy=POLICY)
        seen = []
        model.blocks[0].register_forward_hook(
            lambda module, args, output: seen.append(spec(output))
        )
        model(torch.randn(8, 16).to("xla"))
        assert seen == [("fsdp", None)]


class TestShardOutput:
    """shard_output(output, mesh): replaces the sharding of each unit's output along dim 0."""

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
        same_training(
            Net, mesh8, 8, 16, auto_wrap_policy=POLICY, shard_output=lambda output, mesh: None
        )


class TestIgnoredModules:
    """ignored_modules: neither sharded nor units."""

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
        model = FSDP(
            net,
            mesh=mesh8,
            auto_wrap_policy=POLICY,
            ignored_modules=(block for block in [net.blocks[1]]),
        )
        assert spec(net.blocks[1].up.weight) == (None, None)
        assert [name for name, _ in model.units] == ["blocks.0"]


@dataclass
class Answer(ModelOutput):
    logits: Tensor | None = None
    hidden: tuple[Tensor, ...] | None = None


class TestForms:
    """Inputs and outputs of any form: positional, by keyword, tuple, dict, ModelOutput, nested;
    tensors are marked."""

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
