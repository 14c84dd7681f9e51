"""torch.distributed.tensor's words: meshes, placements, distribute_*, parallel plans; without a
process group."""

import copy
import re
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed
from block import SEQUENCE_PARALLEL, Block
from torch import nn
from torch.distributed.device_mesh import DeviceMesh as TorchMesh

import fsdp
import spmd
from spmd import Mesh
from spmd.dtensor import (
    ColwiseParallel,
    DeviceMesh,
    DTensor,
    ParallelStyle,
    Partial,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    Replicate,
    RowwiseParallel,
    Shard,
    distribute_module,
    distribute_tensor,
    init_device_mesh,
    loss_parallel,
    ones,
    parallelize_module,
    placements_of,
    randn,
)


@pytest.fixture(scope="module")
def mesh() -> DeviceMesh:
    return init_device_mesh("xla", (2, 4), mesh_dim_names=("dp", "tp"))


class TestDeviceMesh:
    def test_words(self, mesh: DeviceMesh) -> None:
        assert (
            mesh.shape == (2, 4)
            and mesh.ndim == 2
            and mesh.size() == 8
            and mesh.size("tp") == mesh.size(1) == 4
        )
        assert mesh.mesh.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]] and mesh.device_type == "xla"
        assert mesh.root == Mesh(range(8), (2, 4), ("dp", "tp")) and mesh["dp", "tp"] == mesh
        assert (
            mesh["tp"].shape == (4,)
            and mesh["tp"].mesh.tolist() == [0, 1, 2, 3]
            and mesh["dp"].mesh.tolist() == [0, 4]
        )
        assert (
            mesh["tp"].get_group() == "tp"
            and mesh.get_all_groups() == ["dp", "tp"]
            and mesh.get_group(-1) == "tp"
        )
        assert (
            mesh == init_device_mesh("xla", (2, 4), mesh_dim_names=("dp", "tp"))
            and mesh != mesh["tp"]
        )
        assert repr(mesh["tp"]) == "DeviceMesh(tp=4)" and len({mesh, copy.copy(mesh)}) == 1

    def test_flattened(self) -> None:
        mesh = init_device_mesh("xla", (2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
        flat = mesh["dp", "cp"]._flatten("batch")
        assert (
            flat.shape == (4,)
            and flat.get_group() == ("dp", "cp")
            and mesh["batch", "tp"].shape == (4, 2)
        )
        assert mesh.size("batch") == flat.size(0) == 4 and mesh.get_group("batch") == ("dp", "cp")
        x = distribute_tensor(torch.ones(8, 8), mesh["batch", "tp"], [Shard(0), Shard(1)])
        sharding = spmd.get_sharding(x)
        assert sharding is not None and sharding.partition_spec(2) == (("dp", "cp"), "tp")

    def test_as_context(self, mesh: DeviceMesh) -> None:
        with mesh:
            assert spmd.torch_xla.get_global_mesh() is mesh.root
            assert distribute_tensor(torch.ones(8), placements=[Shard(0), Replicate()]).placements[
                0
            ] == Shard(0)

    def test_theirs(self) -> None:
        """torch's own, of type "xla", which needs no process group either."""
        theirs = TorchMesh("xla", torch.arange(8).view(2, 4), mesh_dim_names=("dp", "tp"))
        x = distribute_tensor(torch.ones(8, 8), theirs, [Shard(0), Shard(1)])
        assert spmd.get_sharding(x) is Mesh(range(8), (2, 4), ("dp", "tp")).sharding(
            ("dp", "tp"), 2
        )
        assert not torch.distributed.is_initialized()

    def test_order_of_devices(self) -> None:
        mesh = DeviceMesh("xla", [[3, 1], [0, 2]], mesh_dim_names=("a", "b"))
        x = distribute_tensor(torch.arange(4.0), mesh, [Shard(0), Shard(0)])
        assert {shard.device: shard.data.item() for shard in spmd.local_shards(x)} == {
            3: 0.0,
            1: 1.0,
            0: 2.0,
            2: 3.0,
        }

    def test_refused(self, mesh: DeviceMesh) -> None:
        with pytest.raises(ValueError, match="expected device_type 'xla', got 'cuda'"):
            init_device_mesh("cuda", (8,))
        with pytest.raises(KeyError, match=r"there is no dim 'pp' \(dims: 'dp', 'tp'\)"):
            mesh["pp"]
        with pytest.raises(NotImplementedError, match="one program runs on all devices"):
            mesh.get_local_rank()
        with pytest.raises(RuntimeError, match="has 2 dims; name one"):
            mesh.get_group()
        with pytest.raises(
            TypeError, match=r"distribute_tensor: expected a DeviceMesh or a spmd.Mesh, got list"
        ):
            distribute_tensor(torch.ones(8), [0, 1], [Shard(0)])
        with pytest.raises(ValueError, match="distribute_tensor: expected a mesh, got none"):
            distribute_tensor(torch.ones(8))


class TestDistributeTensor:
    def test_from_the_cpu(self, mesh: DeviceMesh) -> None:
        whole = torch.randn(8, 6)
        x = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
        assert (
            isinstance(x, DTensor)
            and x.placements == (Shard(0), Shard(1))
            and x.device_mesh == mesh
        )
        assert torch.equal(x.full_tensor(), whole) and x.local_shards[0].data.shape == (4, 2)

    def test_parameter(self, mesh: DeviceMesh) -> None:
        weight = distribute_tensor(nn.Parameter(torch.ones(8, 8)), mesh, [Replicate(), Shard(0)])
        assert isinstance(weight, nn.Parameter) and weight.is_leaf and weight.requires_grad
        weight.square().sum().backward()
        spmd.sync()
        assert weight.grad is not None and weight.grad.placements == (Replicate(), Shard(0))
        assert torch.equal(weight.grad.cpu(), torch.full((8, 8), 2.0))

    def test_one_dim_after_the_other(self, mesh: DeviceMesh) -> None:
        """On a part of a mesh a tensor stays as it lay on the rest: tensor parallel first, then
        data parallel."""
        x = distribute_tensor(torch.ones(8, 8), mesh["tp"], [Shard(0)])
        assert x.placements == (Replicate(), Shard(0))
        x = distribute_tensor(x, mesh["dp"], [Shard(0)])
        sharding = spmd.get_sharding(x)
        assert sharding is not None and sharding.partition_spec(2) == (("tp", "dp"), None)
        assert placements_of(sharding, 2) == x.placements and re.match(
            r"_StridedShard\(dim=0, sf=4\)", repr(x.placements[0])
        )
        assert distribute_tensor(x, mesh["tp"], [Replicate()]).placements == (Shard(0), Replicate())

    def test_redistribute(self, mesh: DeviceMesh) -> None:
        x = distribute_tensor(
            torch.arange(64.0).view(8, 8), mesh, [Shard(0), Replicate()]
        ).requires_grad_()
        y = x.redistribute(placements=[Replicate(), Shard(1)])
        (y * y).sum().backward()
        spmd.sync()
        assert x.placements == (Shard(0), Replicate()) and y.placements == (Replicate(), Shard(1))
        assert x.grad is not None and torch.equal(x.grad.cpu(), 2 * x.detach().cpu())
        assert y.redistribute(mesh["tp"], [Replicate()]).placements == (Replicate(), Replicate())

    def test_from_local(self, mesh: DeviceMesh) -> None:
        x = DTensor.from_local(torch.ones(8, 2), mesh, [Shard(0), Replicate()])
        assert x.shape == (8, 2) and x.placements == (Shard(0), Replicate())

    def test_factories(self, mesh: DeviceMesh) -> None:
        assert ones(8, 4, device_mesh=mesh, placements=[Shard(0), Shard(1)]).sum().item() == 32
        x = randn(8, 4, device_mesh=mesh, placements=[Shard(0), Shard(1)], requires_grad=True)
        assert x.is_leaf and x.requires_grad and x.placements == (Shard(0), Shard(1))

    def test_refused(self, mesh: DeviceMesh) -> None:
        with pytest.raises(NotImplementedError, match="is a pending sum over axis '1'"):
            distribute_tensor(torch.ones(8), mesh, [Replicate(), Partial()])
        with pytest.raises(ValueError, match="are 1 placements, but the mesh has 2 axes"):
            distribute_tensor(torch.ones(8), mesh, [Shard(0)])
        with pytest.raises(
            ValueError,
            match=r"the tensor is on meta and has no values; build it under torch.device",
        ):
            distribute_tensor(torch.ones(8, device="meta"), mesh, [Shard(0), Replicate()])
        with pytest.raises(
            NotImplementedError, match="this process has 8 devices, each with its own shard"
        ):
            ones(8, device_mesh=mesh).to_local()


class TestDistributeModule:
    def test_functions(self, mesh: DeviceMesh) -> None:
        def partition(name: str, module: nn.Module, device_mesh: Any) -> None:
            if isinstance(module, nn.Linear):
                distribute_tensor(module.weight, device_mesh, [Replicate(), Shard(0)])

        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
        expected = copy.deepcopy(model)
        model = distribute_module(
            model,
            mesh,
            partition,
            lambda _, inputs, __: (inputs[0] * 2,),
            lambda _, outputs, __: outputs + 1,
        )
        assert model[0].weight.placements == (Replicate(), Shard(0))
        assert (
            model[0].bias.placements
            == model[1].running_mean.placements
            == (Replicate(), Replicate())
        )
        x = torch.randn(8, 4)
        torch.testing.assert_close(model(x.to("xla")).cpu(), expected(x * 2) + 1)


TENSOR_PARALLEL: dict[str, ParallelStyle] = {
    "attention.w[qkv]": ColwiseParallel(),
    "attention.wo": RowwiseParallel(),
    "w[13]": ColwiseParallel(),
    "w2": RowwiseParallel(),
}


class TestParallelizeModule:
    @pytest.mark.parametrize(
        "plan", [TENSOR_PARALLEL, SEQUENCE_PARALLEL], ids=["tensor", "sequence"]
    )
    def test_block(self, mesh: DeviceMesh, plan: dict[str, ParallelStyle]) -> None:
        """Values and gradients of a Llama block under data and tensor parallelism are those of
        torch on the CPU."""
        block = Block(16, 4)
        expected, x = copy.deepcopy(block), torch.randn(4, 8, 16)
        block = parallelize_module(block.to("xla"), mesh["tp"], plan)
        y = block(distribute_tensor(x, mesh, [Shard(0), Replicate()]))
        y.square().mean().backward()
        spmd.sync()
        expected(x).square().mean().backward()
        torch.testing.assert_close(y.cpu(), expected(x))
        for name, parameter in block.named_parameters():
            assert (
                parameter.grad is not None and parameter.grad.placements == parameter.placements
            ), name
            torch.testing.assert_close(parameter.grad.cpu(), expected.get_parameter(name).grad)
        assert block.attention["wq"].weight.placements == (Replicate(), Shard(0))
        assert block.w2.weight.placements == (Replicate(), Shard(1))

    def test_embedding(self, mesh: DeviceMesh) -> None:
        ids = torch.randint(0, 16, (4, 6))
        for style in (RowwiseParallel(input_layouts=Replicate()), ColwiseParallel()):
            table = nn.Embedding(16, 8)
            found = parallelize_module(copy.deepcopy(table), mesh["tp"], style)(ids.to("xla"))
            torch.testing.assert_close(found.cpu(), table(ids))

    def test_inputs_and_outputs(self, mesh: DeviceMesh) -> None:
        class Two(nn.Module):
            def forward(
                self, a: torch.Tensor, *, b: torch.Tensor
            ) -> tuple[torch.Tensor, torch.Tensor]:
                seen.append((a.placements, b.placements))
                return a + b, a - b

        seen: list[Any] = []
        styles = PrepareModuleInputOutput(
            input_layouts=(Replicate(),),
            desired_input_layouts=(Shard(1),),
            input_kwarg_layouts={"b": Replicate()},
            desired_input_kwarg_layouts={"b": Shard(1)},
            output_layouts=(Shard(1), None),
            desired_output_layouts=(Replicate(), None),
        )
        plain = init_device_mesh("xla", (8,), mesh_dim_names=("tp",))
        two = parallelize_module(Two(), plain, styles)
        a, b = torch.randn(2, 8), torch.randn(2, 8)
        plus, minus = two(a.to("xla"), b=b.to("xla"))
        assert seen == [((Shard(1),), (Shard(1),))] and plus.placements == (Replicate(),)
        torch.testing.assert_close((plus.cpu(), minus.cpu()), (a + b, a - b))
        with pytest.raises(ValueError, match="Two: the plan places 2 inputs, but there are 1"):
            parallelize_module(
                Two(),
                plain,
                PrepareModuleInput(
                    input_layouts=(Shard(0), None), desired_input_layouts=(Shard(0), None)
                ),
            )(a.to("xla"), b=b.to("xla"))
        assert isinstance(PrepareModuleOutput, type)

    def test_loss_parallel(self, mesh: DeviceMesh) -> None:
        head = nn.Linear(8, 16)
        x, target = torch.randn(4, 8), torch.randint(0, 16, (4,))
        expected = nn.functional.cross_entropy(head(x), target)
        parallelize_module(head, mesh["tp"], ColwiseParallel(use_local_output=False))
        with loss_parallel():
            loss = nn.functional.cross_entropy(head(x.to("xla")), target.to("xla"))
            loss.backward()
        torch.testing.assert_close(loss.cpu(), expected)

    def test_refused(self, mesh: DeviceMesh) -> None:
        block = Block(16, 4)
        with pytest.raises(
            ValueError, match=r'expected a mesh of one dim, got DeviceMesh.*as in mesh\["tp"\]'
        ):
            parallelize_module(block, mesh, SEQUENCE_PARALLEL)
        with pytest.warns(UserWarning, match="'w4' matches no submodule of Block; did you mean 'w"):
            parallelize_module(block, mesh["tp"], {"w4": ColwiseParallel()})
        with pytest.warns(UserWarning, match="no parallelize_plan was passed"):
            parallelize_module(block, mesh["tp"])
        with pytest.raises(
            NotImplementedError,
            match=r"ColwiseParallel splits nn.Linear and nn.Embedding, got RMSNorm",
        ):
            parallelize_module(block, mesh["tp"], {"ffn_norm": ColwiseParallel()})
        with pytest.raises(
            TypeError, match="expected a style or a dict from paths to styles, got list"
        ):
            parallelize_module(block, mesh["tp"], [ColwiseParallel()])  # type: ignore[arg-type]


class TestFsdp:
    """FSDP2 as its users write it: over one dim of a mesh, beside tensor parallelism on another."""

    def test_two_dims(self, mesh: DeviceMesh) -> None:
        block = Block(16, 4)
        expected, x = copy.deepcopy(block), torch.randn(4, 8, 16)
        block = parallelize_module(block.to("xla"), mesh["tp"], SEQUENCE_PARALLEL)
        fsdp.fully_shard(block, mesh=mesh["dp"])
        block(x.to("xla")).square().mean().backward()
        spmd.sync()
        expected(x).square().mean().backward()
        for name, parameter in block.named_parameters():
            assert (
                parameter.grad is not None and parameter.grad.placements == parameter.placements
            ), name
            torch.testing.assert_close(parameter.grad.cpu(), expected.get_parameter(name).grad)
        sharding = spmd.get_sharding(block.w1.weight)
        assert sharding is not None and {"dp", "tp"} <= {
            axis for dim in sharding.spec.dims for axis in dim.axes
        }

    def test_replicas_and_shards(self) -> None:
        mesh = init_device_mesh("xla", (2, 4), mesh_dim_names=("replicate", "shard"))
        layer = fsdp.fully_shard(nn.Linear(8, 8, device="xla"), mesh=mesh)
        assert layer.weight.placements == (Replicate(), Shard(0))

    def test_refused(self) -> None:
        mesh = init_device_mesh("xla", (2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
        with pytest.raises(
            ValueError, match="fully_shard: expected a mesh of one dim, or of replicas and shards"
        ):
            fsdp.fully_shard(nn.Linear(8, 8, device="xla"), mesh=mesh)


def test_ids_as_arrays() -> None:
    assert DeviceMesh("xla", np.arange(4)).mesh.tolist() == [0, 1, 2, 3]
