"""Programs of torch.export on the device: they run, train, and are sharded by the names of their
parameters."""

import copy
import io

import pytest
import torch
from functorch.compile import aot_function, aot_module, make_boxed_func
from support import check
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import fsdp
import spmd
from spmd import Mesh, P

MESH = Mesh(range(8), (8,), ("fsdp",))
IDS = torch.arange(32).reshape(8, 4) % 16


class Net(nn.Module):
    """Parameters, buffers that are written, a buffer outside the state dict, and tensors made in
    forward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.norm = nn.Embedding(16, 8), nn.BatchNorm1d(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.register_buffer("mask", torch.arange(8.0), persistent=False)

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.norm(self.embedding(ids).mean(1))
        y = self.down(torch.relu(self.up(x))) + self.mask + torch.arange(8, device=ids.device)
        return {"y": y, "rows": torch.ones(ids.shape[0], device=ids.device)}


def exported(net: nn.Module, **how: object) -> torch.export.ExportedProgram:
    """The program of a copy: the module of a program shares its parameters with what was
    exported."""
    return torch.export.export(copy.deepcopy(net), (IDS,), **how)


class TestRuns:
    """`.module().to("xla")` runs; the devices that the program names follow it."""

    def test_inference_and_back(self) -> None:
        net = Net().eval()
        module = exported(net).module().to("xla")
        check(module(IDS.to("xla"))["y"], net(IDS)["y"])
        check(module.cpu()(IDS)["y"], net(IDS)["y"])

    def test_training(self) -> None:
        net = Net()
        module = exported(net).module().to("xla")
        for _ in range(2):
            for one, ids in ((net, IDS), (module, IDS.to("xla"))):
                optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
                optimizer.zero_grad()
                one(ids)["y"].square().mean().backward()
                optimizer.step()
        for (_, found), (_, expected) in zip(
            module.named_parameters(), net.named_parameters(), strict=True
        ):
            check(found, expected)
        check(module.get_buffer("norm.running_mean"), net.norm.running_mean)

    @pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")
    def test_saved_decomposed_unflattened(self) -> None:
        net = Net().eval()
        expected = net(IDS)["y"]
        file = io.BytesIO()
        torch.export.save(exported(net), file)
        file.seek(0)
        for module in (
            torch.export.load(file).module(),
            exported(net).run_decompositions().module(),
            torch.export.unflatten(exported(net)),
        ):
            check(module.to("xla")(IDS.to("xla"))["y"], expected)

    def test_dynamic_lengths(self) -> None:
        net = Net().eval()
        batch = torch.export.Dim("batch", min=2, max=64)
        module = exported(net, dynamic_shapes=({0: batch},)).module().to("xla")
        for length in (2, 5, 33):
            ids = torch.randint(0, 16, (length, 4))
            check(module(ids.to("xla"))["y"], net(ids)["y"])
        with pytest.raises(AssertionError, match=r"Guard failed"):
            module(torch.zeros(65, 4, dtype=torch.int64, device="xla"))

    def test_a_plan_leaves_it_on_the_cpu(self) -> None:
        net = Net().eval()
        module = exported(net).module()
        spmd.export(module, (IDS,))
        check(module(IDS)["y"], net(IDS)["y"])


class TestFromDevice:
    """A model on xla is exported; the program has the model's own tensors."""

    @pytest.mark.parametrize("strict", [False, True])
    def test_runs(self, strict: bool) -> None:
        net, ids = Net().eval(), IDS.to("xla")
        model = copy.deepcopy(net).to("xla")
        program = torch.export.export(model, (ids,), strict=strict)
        module = program.module()
        assert module.get_parameter("up.weight")._storage is model.up.weight._storage
        check(module(ids)["y"], net(IDS)["y"])
        assert program.example_inputs[0][0] is ids

    def test_saved(self) -> None:
        net, ids = Net().eval(), IDS.to("xla")
        file = io.BytesIO()
        torch.export.save(torch.export.export(copy.deepcopy(net).to("xla"), (ids,)), file)
        file.seek(0)
        check(torch.export.load(file).module()(ids)["y"], net(IDS)["y"])

    @pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")
    @pytest.mark.parametrize("mode", [True, False])
    def test_decomposed(self, mode: bool) -> None:
        """With the model's own tensors, sharded, and again on the CPU's; running statistics are
        written."""
        net, ids = Net().train(mode), spmd.mark_sharding(IDS.to("xla"), MESH, P("fsdp", None))
        model = copy.deepcopy(net).to("xla")
        spmd.mark_sharding(model.up.weight, MESH, P("fsdp", None))
        program = torch.export.export(model, (ids,))
        before = program.graph_module.code
        decomposed = program.run_decompositions()
        assert program.graph_module.code == before and "aten.linear" in before
        assert (
            "aten.linear" not in decomposed.graph_module.code
            and "device='cpu'" not in decomposed.graph_module.code
        )
        assert decomposed.state_dict["up.weight"] is program.state_dict["up.weight"]
        made, expected = decomposed.module()(ids)["y"], net(IDS)["y"]
        check(made, expected)
        assert len(spmd.local_shards(made)) == 8
        check(model.norm.running_mean, net.norm.running_mean)
        # torch gives no gradient through decomposed statistics of a batch, on the CPU either
        if not mode:
            made.square().mean().backward()
            expected.square().mean().backward()
            check(model.up.weight.grad, net.up.weight.grad)

    def test_two_devices(self) -> None:
        with pytest.raises(RuntimeError, match=r"on the same device, but found .* cpu and xla"):
            torch.export.export(Net(), (IDS.to("xla"),))

    def test_memory_kinds(self) -> None:
        """Moves to the host and back are ops of the program."""
        x = torch.ones(4, device="xla")
        both = spmd.torch_xla.stablehlo_module.wrapped(
            lambda x: spmd.place_to_device(spmd.place_to_host(x) * 2)
        )
        program = torch.export.export(both, (x,))
        assert "spmd.place_to_host" in program.graph_module.code
        check(program.module()(x), 2 * torch.ones(4))
        with pytest.raises(TypeError, match=r"place_to_host: expected a tensor on xla"):
            torch.export.export(both, (torch.ones(4),))


class TestTracers:
    """make_fx and AOTAutograd over tensors of the device: graphs of aten ops, which run on it."""

    @pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
    def test_make_fx(self, mode: str) -> None:
        x = torch.rand(3, 4)
        graph = make_fx(lambda x: x.sin().sum(1), tracing_mode=mode)(x.to("xla"))
        targets = {node.target for node in graph.graph.nodes if node.op == "call_function"}
        assert targets == {torch.ops.aten.sin.default, torch.ops.aten.sum.dim_IntList}
        check(graph((2 * x).to("xla")), (2 * x).sin().sum(1))

    def test_closed_over(self) -> None:
        """Weights that the function does not take are the graph's own, not values of one call."""
        model = nn.Sequential(nn.Linear(4, 3), nn.GELU())
        there, x = copy.deepcopy(model).to("xla"), torch.rand(2, 4)
        graph = make_fx(lambda x: there(x).sum(1))(x.to("xla"))
        check(graph((2 * x).to("xla")), model(2 * x).sum(1))
        with torch.no_grad():
            there[0].weight.zero_()
        check(graph(x.to("xla")), nn.functional.gelu(model[0].bias).sum().expand(2))

    @pytest.mark.parametrize("kind", ["function", "module"])
    def test_aot(self, kind: str) -> None:
        """Forward and backward are graphs; gradients of a sharded argument are the CPU's."""
        graphs: list[torch.fx.GraphModule] = []

        def compiler(graph: torch.fx.GraphModule, _: object) -> object:
            graphs.append(graph)
            return make_boxed_func(graph.forward)

        model, x = nn.Linear(4, 3), torch.rand(8, 4)
        there = copy.deepcopy(model).to("xla")
        on_xla = spmd.mark_sharding(x.to("xla"), MESH, P("fsdp", None)).requires_grad_()
        if kind == "module":
            made = aot_module(there, compiler)(on_xla).square().sum()
        else:
            made = aot_function(
                lambda x, w, b: nn.functional.linear(x, w, b).square().sum(), compiler
            )(on_xla, there.weight, there.bias)
        made.backward()
        x.requires_grad_()
        expected = model(x).square().sum()
        expected.backward()
        check(made, expected)
        for found, known in ((on_xla, x), (there.weight, model.weight), (there.bias, model.bias)):
            check(found.grad, known.grad)
        assert len(graphs) == 2


class TestSharded:
    """Marks, rules and FSDP find the parameters by their names."""

    def test_rules(self) -> None:
        net = Net()
        module = exported(net).module().to("xla")
        rules = spmd.ShardingRules({"up.weight": P("fsdp", None), "down.weight": P(None, "fsdp")})
        rules.apply(module, MESH)
        made = module(spmd.mark_sharding(IDS.to("xla"), MESH, P("fsdp", None)))["y"]
        made.square().mean().backward()
        expected = net(IDS)["y"]
        expected.square().mean().backward()
        check(made, expected)
        gradient = module.get_parameter("down.weight").grad
        assert spmd.get_sharding(gradient).partition_spec(2) == (None, "fsdp")
        check(gradient, net.down.weight.grad)

    def test_fsdp(self) -> None:
        net = Net()
        module = fsdp.FullyShardedDataParallel(exported(net).module(), MESH)
        made = module(IDS.to("xla"))["y"]
        made.square().mean().backward()
        check(made, net(IDS)["y"])
        shardings = {
            name: spmd.get_sharding(one).partition_spec(one.dim())
            for name, one in module.named_parameters()
        }
        assert shardings["up.weight"] == ("fsdp", None)
