"""torch's own words on "xla": DTensor's functions, plans, both FSDPs, in the place of
spmd.dtensor's and fsdp's."""

import copy
import importlib
import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist
from block import SEQUENCE_PARALLEL, Block
from support import run_script
from torch import nn
from torch.distributed import fsdp as torch_fsdp
from torch.distributed import tensor as words
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor import parallel as plans

import fsdp
import spmd


@pytest.fixture(scope="module")
def mesh() -> Any:
    return init_device_mesh("xla", (2, 4), mesh_dim_names=("dp", "tp"))


def check_gradients(module: nn.Module, expected: nn.Module) -> None:
    for name, parameter in expected.named_parameters():
        gradient = module.get_parameter(name).grad
        assert gradient is not None and parameter.grad is not None, name
        torch.testing.assert_close(gradient.cpu(), parameter.grad)


class TestMesh:
    def test_is_both(self, mesh: Any) -> None:
        assert (
            isinstance(mesh, DeviceMesh)
            and type(mesh) is spmd.dtensor.DeviceMesh
            and not dist.is_initialized()
        )
        assert mesh == spmd.dtensor.init_device_mesh("xla", (2, 4), mesh_dim_names=("dp", "tp"))
        assert mesh["tp"].shape == (4,) and mesh["dp", "tp"]._flatten("all").size() == 8
        assert DeviceMesh("xla", torch.arange(8).view(4, 2)).root == spmd.Mesh(range(8), (4, 2))
        assert copy.deepcopy(mesh["tp"]) == pickle.loads(pickle.dumps(mesh["tp"])) == mesh["tp"]

    def test_of_the_context(self, mesh: Any) -> None:
        with mesh["tp"]:
            assert distribute_tensor(torch.ones(8), placements=[Shard(0)]).placements == (
                Replicate(),
                Shard(0),
            )
            with spmd.Mesh(range(8), (8,), ("all",)):
                assert distribute_tensor(torch.ones(8), placements=[Shard(0)]).placements == (
                    Shard(0),
                )
        with pytest.raises(RuntimeError, match="No device mesh is currently active"):
            distribute_tensor(torch.ones(8), placements=[Shard(0)])


class TestDTensor:
    def test_distribute_tensor(self, mesh: Any) -> None:
        whole = torch.randn(8, 6, requires_grad=True)
        x = distribute_tensor(whole, mesh, [Shard(0), Shard(1)], src_data_rank=None)
        (x * x).sum().backward()
        assert (
            x.placements == (Shard(0), Shard(1)) and x.device.type == "xla" and x.grad is not None
        )
        torch.testing.assert_close(x.grad.cpu(), 2 * whole.detach())

    def test_from_local(self, mesh: Any) -> None:
        """In the graph of its part."""
        part = torch.randn(8, 6, requires_grad=True)
        x = words.DTensor.from_local(part, mesh, [Shard(0), Replicate()], run_check=False)
        (x * x).sum().backward()
        assert x.placements == (Shard(0), Replicate()) and part.grad is not None
        torch.testing.assert_close(part.grad, 2 * part.detach())

    @pytest.mark.parametrize("name", ["zeros", "ones", "empty", "rand", "randn"])
    def test_factories(self, name: str, mesh: Any) -> None:
        create = getattr(words, name)
        x = create(
            8,
            4,
            device_mesh=mesh,
            placements=[Shard(0), Shard(1)],
            dtype=torch.bfloat16,
            requires_grad=True,
        )
        assert x.shape == (8, 4) and x.dtype == torch.bfloat16 and x.is_leaf and x.requires_grad
        assert x.placements == (Shard(0), Shard(1)) and create((3,), device_mesh=mesh).shape == (3,)

    def test_full(self, mesh: Any) -> None:
        assert (
            words.full((8, 4), 0.5, device_mesh=mesh, placements=[Shard(0), Shard(1)]).sum().item()
            == 16
        )

    def test_distribute_module(self, mesh: Any) -> None:
        """A partition function that registers new parameters, a pre-hook of two parameters,
        full_tensor at the end."""

        def split(name: str, module: nn.Module, device_mesh: Any) -> None:
            for key, parameter in module.named_parameters(recurse=False):
                sharded = distribute_tensor(parameter, device_mesh, [Replicate(), Shard(0)])
                module.register_parameter(key, nn.Parameter(sharded))

        plain = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        module = distribute_module(
            copy.deepcopy(plain),
            mesh,
            split,
            lambda inputs, device_mesh: (
                distribute_tensor(inputs[0], device_mesh, [Shard(0), Replicate()]),
            ),
            lambda owner, output, device_mesh: output.full_tensor(
                grad_placements=[Shard(0), Replicate()]
            ),
        )
        x = torch.randn(8, 8)
        assert module[0].weight.placements == (Replicate(), Shard(0))
        output, expected = module(x), plain(x)
        assert output.device.type == "cpu"
        torch.testing.assert_close(output, expected)
        output.square().sum().backward()
        expected.square().sum().backward()
        check_gradients(module, plain)


class TestFullTensor:
    def test_gradient(self, mesh: Any) -> None:
        x = distribute_tensor(torch.randn(8, 8), mesh, [Shard(0), Replicate()]).requires_grad_()
        with torch.no_grad():
            assert not x.full_tensor().requires_grad
        (
            (x * x).full_tensor() * 3 + x.full_tensor(grad_placements=[Replicate(), Shard(1)])
        ).sum().backward()
        spmd.sync()
        assert x.grad is not None and x.grad.placements == x.placements
        torch.testing.assert_close(x.grad.cpu(), 6 * x.detach().cpu() + 1)
        plain = torch.ones(2, device="xla", requires_grad=True)
        (plain * 2).full_tensor().sum().backward()
        assert plain.grad is not None and plain.grad.cpu().tolist() == [2.0, 2.0]

    def test_partial_gradient_is_refused(self, mesh: Any) -> None:
        with pytest.raises(NotImplementedError, match="is a pending sum over axis 'tp'"):
            words.ones(8, device_mesh=mesh).full_tensor(grad_placements=[Replicate(), Partial()])


class TestPlans:
    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    def test_tensor_parallel_and_fsdp(
        self, partitioner: str, mesh: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """torch's parallelize_module and fully_shard of a Llama block: values and gradients of
        torch on the CPU."""
        monkeypatch.setattr(spmd.config, "partitioner", partitioner)
        block = Block(16, 4)
        expected, x = copy.deepcopy(block), torch.randn(4, 8, 16)
        block = plans.parallelize_module(block, mesh["tp"], SEQUENCE_PARALLEL).to("xla")
        assert torch_fsdp.fully_shard.state(block) is None
        block = torch_fsdp.fully_shard(
            block, mesh=mesh["dp"], mp_policy=torch_fsdp.MixedPrecisionPolicy()
        )
        output = block(x.to("xla"))
        output.square().mean().backward()
        spmd.sync()
        torch.testing.assert_close(output.cpu(), expected(x))
        expected(x).square().mean().backward()
        check_gradients(block, expected)
        assert isinstance(block, torch_fsdp.FSDPModule) and isinstance(block, fsdp.FSDPModule)
        assert torch_fsdp.fully_shard.state(block) is fsdp.fully_shard.state(block) is not None
        sharding = spmd.get_sharding(block.w1.weight)
        assert sharding is not None and {"dp", "tp"} <= {
            axis for dim in sharding.spec.dims for axis in dim.axes
        }


class TestFsdp:
    def test_without_a_mesh(self) -> None:
        layer = torch_fsdp.fully_shard(nn.Linear(8, 8).to("xla"))
        assert len(layer.weight.local_shards) == 8 and layer.weight.local_shards[0].data.shape == (
            1,
            8,
        )
        torch_fsdp.register_fsdp_forward_method(layer, "forward")
        layers = [nn.Linear(8, 8).to("xla"), nn.Linear(8, 8).to("xla")]
        assert torch_fsdp.fully_shard(layers) is layers and isinstance(
            layers[1], torch_fsdp.FSDPModule
        )

    def test_of_version_1(self) -> None:
        plain = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        module = copy.deepcopy(plain).to("xla")
        model = torch_fsdp.FullyShardedDataParallel(
            module,
            auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
            use_orig_params=True,
            mixed_precision=torch_fsdp.MixedPrecision(),
        )
        assert isinstance(model, fsdp.FullyShardedDataParallel) and len(model.units) == 2
        x = torch.randn(16, 8)
        model(x.to("xla")).square().sum().backward()
        plain(x).square().sum().backward()
        check_gradients(model.module, plain)
        assert list(model.state_dict()) == list(plain.state_dict())

    def test_a_mesh_of_torch(self) -> None:
        mesh = init_device_mesh("xla", (8,))
        model = torch_fsdp.FullyShardedDataParallel(
            nn.Linear(8, 8), device_mesh=mesh, use_orig_params=True
        )
        layer = torch_fsdp.fully_shard(nn.Linear(8, 8), mesh=mesh)
        assert len(model.module.weight.local_shards) == len(layer.weight.local_shards) == 8
        expected, x = copy.deepcopy(layer).cpu(), torch.randn(16, 8)
        layer(distribute_tensor(x, mesh, [Shard(0)])).square().sum().backward()
        expected(x).square().sum().backward()
        check_gradients(layer, expected)

    def test_subclass_is_refused(self) -> None:
        wrapper = type("Wrapper", (torch_fsdp.FullyShardedDataParallel,), {})
        with pytest.raises(
            TypeError, match=r"Wrapper: .* expected a subclass of fsdp\.FullyShardedDataParallel"
        ):
            wrapper(nn.Linear(8, 8).to("xla"))

    def test_on_the_cpu(self) -> None:
        with pytest.raises(
            ValueError, match="Default process group has not been initialized"
        ) as info:
            torch_fsdp.FullyShardedDataParallel(nn.Linear(8, 8))
        assert "model.to('xla') first" in info.value.__notes__[0]
        with pytest.raises(ValueError, match="does not support containers"):
            torch_fsdp.fully_shard(nn.ModuleList())


class TestOtherDevices:
    """A mesh or a module of another device stays torch's."""

    script = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_module, distribute_tensor, ones
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.distributed.fsdp import FSDPModule, fully_shard

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
results = [
    distribute_tensor(torch.ones(4), mesh, [Shard(0)]),
    ones(4, device_mesh=mesh),
    DTensor.from_local(torch.ones(4), mesh),
    distribute_module(nn.Linear(2, 2), mesh).weight,
    parallelize_module(nn.Linear(2, 2), mesh, ColwiseParallel()).weight,
    fully_shard(nn.Linear(2, 2), mesh=mesh).weight,
]
assert all(isinstance(result, DTensor) and result.device.type == "cpu" for result in results), (
    results
)
assert fully_shard.state(fully_shard(nn.Linear(2, 2), mesh=mesh)) is not None
"""
    on_xla = """
spmd.simulate(8)
mesh = init_device_mesh("xla", (8,))
assert distribute_tensor(torch.ones(8), mesh, [Shard(0)]).device_mesh == mesh
assert parallelize_module(nn.Linear(8, 8), mesh, ColwiseParallel()).weight.placements == (Shard(0),)
assert isinstance(fully_shard(nn.Linear(8, 8), mesh=mesh), FSDPModule)
print("done")
"""

    @pytest.mark.parametrize("first", ["spmd", "torch"])
    def test_are_torchs(self, first: str) -> None:
        """With names that the script has imported before this library, too."""
        lines = "import spmd" + self.script if first == "spmd" else self.script + "import spmd"
        assert run_script(lines + self.on_xla).strip() == "done"


class TestBackend:
    def test_default(self) -> None:
        assert (
            dist.get_default_backend_for_device("xla")
            == dist.get_default_backend_for_device("xla:0")
            == "xla"
        )
        assert dist.get_default_backend_for_device("cpu") == "gloo"

    def test_group_without_a_name(self) -> None:
        lines = (
            "import spmd, torch, torch.distributed as dist",
            "dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)",
            "x = torch.ones(2)",
            "dist.all_reduce(x)",
            "print(dist.get_backend_config(), x.tolist())",
        )
        assert run_script("\n".join(lines)).strip() == "xla:xla [1.0, 1.0]"

    def test_test_base_of_torch(self) -> None:
        base = importlib.import_module("torch.testing._internal.distributed._tensor.common_dtensor")
        assert (base.DEVICE_TYPE, base.PG_BACKEND) == ("xla", "xla")
