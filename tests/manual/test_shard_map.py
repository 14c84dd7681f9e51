"""`spmd.shard_map`: per-shard code against the same model on whole tensors, values and
gradients."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import check
from torch import nn
from torch.utils._pytree import tree_leaves

import fsdp
import spmd
from spmd import P


@pytest.fixture(params=["gspmd", "shardy"])
def partitioner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(spmd.config, "partitioner", request.param)
    return request.param


def results(
    function: Callable[..., Any], given: Sequence[torch.Tensor], device: str
) -> list[torch.Tensor]:
    """The results of a function, and the gradients of those of floats."""
    own = [tensor.clone().to(device).requires_grad_(tensor.is_floating_point()) for tensor in given]
    made = tree_leaves(function(*own))
    loss = [
        (one * torch.arange(1.0, one.numel() + 1, device=device).reshape(one.shape)).sum()
        for one in made
    ]
    total: Any = sum(one for one in loss if one.requires_grad)
    total.backward()
    if device == "xla":
        spmd.sync()
    return [*made, *(tensor.grad for tensor in own if tensor.grad is not None)]


def same(mapped: Callable[..., Any], dense: Callable[..., Any], *given: torch.Tensor) -> None:
    """Asserts that both make the same of these, with the same gradients."""
    ours, expected = results(mapped, given, "xla"), results(dense, given, "cpu")
    assert len(ours) == len(expected)
    for one, other in zip(ours, expected, strict=True):
        check(one, other)


def mesh_of(*shape: int) -> spmd.Mesh:
    names = ("data", "model", "expert")[: len(shape)] if len(shape) > 1 else ("model",)
    count = int(torch.tensor(shape).prod())
    return spmd.Mesh(range(count), shape, names)


def mlp(x: Any, up: Any, down: Any, bias: Any) -> Any:
    return torch.tanh(x @ up) @ down + bias


def tensor_parallel(x: Any, up: Any, down: Any, bias: Any) -> Any:
    return spmd.manual.all_reduce(torch.tanh(x @ up) @ down, "sum", "model") + bias


class TestTensorParallel:
    """An MLP cut by columns, then by rows, with one all-reduce."""

    @pytest.mark.parametrize("shape", [(1,), (2,), (8,), (2, 4), (2, 2, 2)])
    def test_meshes(self, partitioner: str, shape: tuple[int, ...]) -> None:
        mesh = mesh_of(*shape)
        batch = P("data") if len(shape) > 1 else P()
        mapped = spmd.shard_map(
            tensor_parallel, mesh, (batch, P(None, "model"), P("model"), P()), batch
        )
        same(
            mapped,
            mlp,
            torch.randn(4, 8) / 3,
            torch.randn(8, 16) / 3,
            torch.randn(16, 8) / 3,
            torch.randn(8),
        )

    def test_the_rest_is_automatic(self, partitioner: str) -> None:
        """One axis by hand; along the other the partitioner splits what is annotated, outside and
        inside."""
        mesh = mesh_of(2, 4)

        def shard(x: Any, up: Any, down: Any, bias: Any) -> Any:
            hidden = spmd.mark_sharding(torch.tanh(x @ up), mesh, P("data", None))
            return spmd.manual.all_reduce(hidden @ down, "sum", "model") + bias

        mapped = spmd.shard_map(
            shard, mesh, (P(), P(None, "model"), P("model"), P()), P(), axis_names={"model"}
        )

        def data_parallel(x: Any, *weights: Any) -> Any:
            return (
                mapped(spmd.mark_sharding(x, mesh, P("data", None)), *weights)
                if x.device.type == "xla"
                else None
            )

        given = (
            torch.randn(4, 8) / 3,
            torch.randn(8, 16) / 3,
            torch.randn(16, 8) / 3,
            torch.randn(8),
        )
        ours, expected = results(data_parallel, given, "xla"), results(mlp, given, "cpu")
        for one, other in zip(ours, expected, strict=True):
            check(one, other)
        assert spmd.get_sharding(ours[0]).partition_spec(2)[0] == "data"

    def test_one_all_reduce_each_way(self) -> None:
        """Backward sums the gradient of x once, and nothing twice."""
        mesh = mesh_of(8)
        mapped = spmd.shard_map(
            tensor_parallel, mesh, (P(), P(None, "model"), P("model"), P()), P()
        )
        given = [
            torch.randn(s, device="xla").requires_grad_() for s in ((4, 8), (8, 16), (16, 8), (8,))
        ]
        mapped(*given).sum().backward()
        text = spmd.get_stablehlo([tensor.grad for tensor in given])
        # the forward one, where a loss needs it, and that of x
        assert text.count("stablehlo.all_reduce") <= 2, text


class TestExamples:
    """Bodies as people write them by hand."""

    def test_ring_attention(self, partitioner: str) -> None:
        """Keys and values go round; each shard keeps a running softmax of its queries."""
        mesh = mesh_of(4)
        ring = [(i, (i + 1) % 4) for i in range(4)]

        def shard(q: Any, k: Any, v: Any) -> Any:
            top = torch.full_like(q[..., :1], -1e30)
            total, out = torch.zeros_like(top), torch.zeros_like(q)
            for step in range(4):
                scores = q @ k.mT / q.shape[-1] ** 0.5
                new = torch.maximum(top, scores.amax(-1, keepdim=True))
                weights = torch.exp(scores - new)
                scale = torch.exp(top - new)
                out, total, top = (
                    out * scale + weights @ v,
                    total * scale + weights.sum(-1, keepdim=True),
                    new,
                )
                if step < 3:
                    k, v = (spmd.manual.collective_permute(each, ring, "model") for each in (k, v))
            return out / total

        spec = P(None, "model")
        mapped = spmd.shard_map(shard, mesh, spec, spec)
        q, k, v = (torch.randn(2, 8, 4) for _ in range(3))
        same(mapped, lambda q, k, v: torch.softmax(q @ k.mT / 2, -1) @ v, q / 9, k / 9, v / 9)

    def test_experts(self, partitioner: str) -> None:
        """Tokens go to the shards of their experts and come back."""
        mesh = mesh_of(4)

        # [1 group, experts, tokens, width], [1 expert, width, width]
        def shard(tokens: Any, weight: Any) -> Any:
            there = spmd.manual.all_to_all(tokens, 1, 0, "model")
            done = torch.tanh(torch.einsum("getw,ewv->getv", there, weight))
            return spmd.manual.all_to_all(done, 0, 1, "model")

        mapped = spmd.shard_map(shard, mesh, P("model"), P("model"))
        dense = lambda tokens, weight: torch.tanh(torch.einsum("getw,ewv->getv", tokens, weight))  # noqa: E731
        same(mapped, dense, torch.randn(4, 4, 2, 3) / 9, torch.randn(4, 3, 3) / 9)

    @pytest.mark.parametrize("axis_names", [None, ("model",)])
    def test_halo_exchange(self, partitioner: str, axis_names: Any) -> None:
        """A convolution over a height that is split: each shard gets a row of its neighbours."""
        mesh = mesh_of(2, 4)
        down, up = [(i, i + 1) for i in range(3)], [(i + 1, i) for i in range(3)]

        def shard(x: Any, weight: Any) -> Any:
            above = spmd.manual.collective_permute(x[:, :, -1:], down, "model")
            below = spmd.manual.collective_permute(x[:, :, :1], up, "model")
            return F.conv2d(torch.cat([above, x, below], 2), weight, padding=(0, 1))

        batch = None if axis_names else "data"
        mapped = spmd.shard_map(
            shard,
            mesh,
            (P(batch, None, "model"), P()),
            P(batch, None, "model"),
            axis_names=axis_names,
        )
        same(
            mapped,
            lambda x, w: F.conv2d(x, w, padding=1),
            torch.randn(2, 2, 8, 3) / 9,
            torch.randn(3, 2, 3, 3) / 9,
        )


class Scale(torch.autograd.Function):
    """A product with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, w = ctx.saved_tensors
        return gradient * w, (gradient * x).sum(0)


def together(x: Any) -> Any:
    """A sum over the shards; on the CPU there is one."""
    return spmd.manual.all_reduce(x, "sum", "model") if x.device.type == "xla" else x


def written(x: Any, w: Any) -> Any:
    one = x * 2
    one += w
    one[:, 1:3] = w[:2]
    one.mul_(w)
    return together(one.sum(0))


def checkpointed(x: Any, w: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    inner = checkpoint(lambda x, w: torch.tanh(x * w), x, w, use_reentrant=False)
    kept = (
        spmd.remat(lambda x, w: torch.tanh(x * w))(x, w)
        if x.device.type == "xla"
        else torch.tanh(x * w)
    )
    return together((inner * kept).sum(0))


def looped(x: Any, w: Any) -> Any:
    total, sums = spmd.scan(
        lambda c, row: (torch.tanh(c + together(row.sum() * w)), c * w), torch.zeros_like(w), x
    )
    return total, sums.sum(0)


def chosen(x: Any, w: Any) -> Any:
    return together(
        spmd.cond(w.sum() > 0, lambda x, w: (x * w).sum(0), lambda x, w: (x + w).sum(0), (x, w))
    )


def inner_gradient(x: Any, w: Any) -> Any:
    """Of what is whole on all shards the gradient is summed over them."""
    own = w.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(torch.tanh(x * own).sum(), own)
    return (gradient * w).sum()


def partly_without(x: Any, w: Any) -> Any:
    with torch.no_grad():
        scale = together((x * w).sum(0))
    return together((x * scale).sum(0)) * scale


class TestBodies:
    """The ops that a body may have: each against the same on the whole."""

    def test_of_all_kinds(self, partitioner: str) -> None:
        mesh = mesh_of(2, 4)
        bodies = {
            "mixed": lambda x, w: together((x * (w * 2)).sum(0)) * w + (w * 2).square(),
            "custom": lambda x, w: together(Scale.apply(x, w * 3).sum(0)) + w * 3,
            "written": written,
            "checkpointed": checkpointed,
            "chosen": chosen,
            "inner_gradient": inner_gradient,
            "partly_without": partly_without,
            "views": lambda x, w: (
                together(x.T.reshape(4, -1)[1:].sum(1)) + w.view(2, 2).T.flatten()[1:]
            ),
            "double": lambda x, w: together((x.double() * w).sum(0)).float(),
        }
        given = [torch.randn(8, 4) / 3, torch.randn(4) / 3]
        for axis_names in (None, "model"):
            ours = [[tensor.clone().to("xla").requires_grad_() for tensor in given] for _ in bodies]

            def shard(every: Any) -> Any:
                return [body(x, w) for body, (x, w) in zip(bodies.values(), every, strict=True)]

            specs = [(P("model"), P())] * len(bodies)
            made = spmd.shard_map(shard, mesh, (specs,), P(), axis_names=axis_names)(
                [tuple(each) for each in ours]
            )
            sum(one.square().sum() for one in made).backward()
            spmd.sync()
            for (name, body), one, (x, w) in zip(bodies.items(), made, ours, strict=True):
                own = [tensor.clone().requires_grad_() for tensor in given]
                expected = body(*own)
                expected.square().sum().backward()
                check(one, expected)
                for ours_one, theirs in ((x.grad, own[0].grad), (w.grad, own[1].grad)):
                    assert (ours_one is None) == (theirs is None), name
                    if theirs is not None:
                        check(ours_one, theirs)

    def test_loops(self, partitioner: str) -> None:
        mapped = spmd.shard_map(looped, mesh_of(2, 4), (P(None, "model"), P()), P())
        same(mapped, looped, torch.randn(3, 8) / 3, torch.randn(4) / 3)

    def test_layers(self, partitioner: str) -> None:
        """A rolled stack of layers whose parameters the body closes over."""
        results = []
        for device in ("cpu", "xla"):
            torch.manual_seed(0)
            layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to(device)
            x = (torch.arange(32.0).reshape(8, 4) / 32).to(device).requires_grad_()

            def run(x: Any, layers: Any = layers) -> Any:
                return spmd.scan_layers(layers, x)

            mapped = (
                spmd.shard_map(run, mesh_of(2, 4), P("model"), P("model"))
                if device == "xla"
                else run
            )
            y = mapped(x)
            y.square().sum().backward()
            results.append([y, x.grad, *(p.grad for p in layers.parameters())])
        for one, other in zip(results[1], results[0], strict=True):
            check(one, other.detach())

    def test_in_a_loop(self, partitioner: str) -> None:
        """A region in the body of a scan."""
        mapped = spmd.shard_map(
            lambda x, w: together((x * w).sum(0)), mesh_of(8), (P("model"), P()), P()
        )

        def run(x: Any, w: Any) -> Any:
            one = mapped if x.device.type == "xla" else lambda x, w: (x * w).sum(0)
            return spmd.scan(lambda c, row: (torch.tanh(c + one(row, c * w)), c), w, x)[0]

        same(run, run, torch.randn(3, 8, 4) / 3, torch.randn(4) / 3)

    def test_closes_over_a_module(self, partitioner: str) -> None:
        """Its parameters are whole on every shard, their gradients summed; its buffers are written
        where all agree."""
        results = []
        for device in ("cpu", "xla"):
            torch.manual_seed(0)
            layer = nn.Linear(4, 3).to(device)
            layer.register_buffer("seen", torch.zeros((), device=device))
            x = (torch.arange(32.0).reshape(8, 4) / 32).to(device)

            def run(x: Any, layer: Any = layer) -> Any:
                layer.seen += together(x.sum())
                return torch.tanh(layer(x))

            mapped = (
                spmd.shard_map(run, mesh_of(2, 4), P("model"), P("model"))
                if device == "xla"
                else run
            )
            y = mapped(x)
            y.square().sum().backward()
            results.append([y, layer.weight.grad, layer.bias.grad, layer.seen])
        for one, other in zip(results[1], results[0], strict=True):
            check(one, other.detach())

    def test_in_an_fsdp_unit(self, partitioner: str) -> None:
        """Tensor parallel by hand within a model whose parameters FSDP splits over the other
        axis."""
        mesh = spmd.Mesh(range(8), (2, 4), ("fsdp", "model"))

        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.up, self.down = nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)

            def forward(self, x: Any) -> Any:
                if x.device.type == "cpu":
                    return x + self.down(torch.tanh(self.up(x)))
                specs = (P(), P("model"), P(None, "model"))
                mapped = spmd.shard_map(
                    lambda x, up, down: together(F.linear(torch.tanh(F.linear(x, up)), down)),
                    mesh,
                    specs,
                    P(),
                    axis_names="model",
                )
                return x + mapped(x, self.up.weight, self.down.weight)

        results = []
        for device in ("cpu", "xla"):
            torch.manual_seed(0)
            model = nn.Sequential(Block(), Block())
            x = torch.arange(32.0).reshape(4, 8) / 32
            if device == "xla":
                for block in model:
                    fsdp.fully_shard(block.to("xla"), mesh=mesh)
                fsdp.fully_shard(model, mesh=mesh)
            y = model(x.to(device))
            y.square().sum().backward()
            if device == "xla":
                spmd.sync()
            results.append([y, *(p.grad for p in model.parameters())])
        for one, other in zip(results[1], results[0], strict=True):
            check(one, other.detach())

    def test_closes_over_what_has_a_history(self) -> None:
        w = torch.ones(4, device="xla", requires_grad=True)
        scale, x = w * 3, torch.arange(8.0).reshape(2, 4).to("xla")
        mapped = spmd.shard_map(
            lambda x: (x * scale, scale), mesh_of(2), P("model"), (P("model"), P())
        )
        y, same = mapped(x)
        (y.sum() + same.sum()).backward()
        assert w.grad.tolist() == [15.0, 21.0, 27.0, 33.0]

    def test_a_transformer_layer(self) -> None:
        """torch's own, closed over, on a split batch."""
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        ours = copy.deepcopy(layer).to("xla")
        x = torch.randn(8, 4, 8)
        y = spmd.shard_map(lambda x: ours(x), mesh_of(2, 4), P("model"), P("model"))(x.to("xla"))
        y.mean().backward()
        expected = layer(x)
        expected.mean().backward()
        check(y, expected)
        for one, other in zip(ours.parameters(), layer.parameters(), strict=True):
            check(one.grad, other.grad)

    def test_functional_and_vmapped(self) -> None:
        layer = nn.Linear(3, 2).to("xla")
        x = torch.arange(24.0).reshape(8, 3).to("xla")

        def shard(x: Any, weights: Any) -> Any:
            return torch.vmap(
                lambda row: torch.func.functional_call(layer, weights, (row,)) + layer.bias
            )(x)

        weights = {name: p.detach().requires_grad_() for name, p in layer.named_parameters()}
        made = spmd.shard_map(shard, mesh_of(4), (P("model"), P()), P("model"))(x, weights)
        check(made, (layer(x) + layer.bias).detach().cpu())
        made.sum().backward()
        check(weights["weight"].grad, x.cpu().sum(0).expand(2, 3))
        assert weights["bias"].grad.tolist() == layer.bias.grad.tolist() == [8.0, 8.0]

    def test_torch_on_the_cpu_is_left_alone(self) -> None:
        """A function with a gradient of its own, in a process in which a body was recorded."""
        spmd.shard_map(lambda x: x, mesh_of(2), P("model"), P("model"))(torch.ones(2, device="xla"))
        x, w = torch.ones(2, 3, requires_grad=True), torch.ones(3, requires_grad=True)
        Scale.apply(x, w).sum().backward()
        assert w.grad is not None
        assert w.grad.tolist() == [2.0, 2.0, 2.0]

    def test_structures(self) -> None:
        """Pytrees in and out, with specs that are a prefix; None and Python's values pass."""
        mesh = mesh_of(4)

        @spmd.shard_map(
            mesh=mesh,
            in_specs=({"a": P("model"), "b": P()}, None, P("model")),
            out_specs=(P("model"), P()),
        )
        def shard(given: Any, factor: float, pair: Any, *, shift: int = 0) -> Any:
            assert given["b"][0].shape == (3,)
            first = {"x": given["a"] * factor + shift, "none": None}
            return first, [together(pair[0].sum() + pair[1].sum()), given["b"][0] * 2]

        a, b = torch.arange(8.0), torch.arange(3.0)
        first, (total, twice) = shard(
            {"a": a.to("xla"), "b": [b.to("xla")]}, 2.0, (a.to("xla"), a.to("xla")), shift=1
        )
        assert first["none"] is None
        check(first["x"], a * 2 + 1)
        check(total, a.sum() * 2)
        check(twice, b * 2)

    def test_empty_and_without_dims(self) -> None:
        mesh = mesh_of(4)
        mapped = spmd.shard_map(
            lambda x, y: (x * 2, y + 1), mesh, (P("model"), P()), (P("model"), P())
        )
        made = mapped(torch.zeros(0, 3, device="xla"), torch.tensor(1.0).to("xla"))
        assert made[0].shape == (0, 3)
        assert made[1].item() == 2.0

    @pytest.mark.parametrize("ids", [[7, 6, 5, 4, 3, 2, 1, 0], [2, 3, 6, 7]])
    def test_other_devices(self, partitioner: str, ids: list[int]) -> None:
        """Another order of the devices, and some of them."""
        mesh = spmd.Mesh(ids, (2, len(ids) // 2), ("data", "model"))
        mapped = spmd.shard_map(
            lambda x: (
                spmd.manual.all_gather(x, 0, "model"),
                spmd.manual.axis_index(("data", "model")).reshape(1),
            ),
            mesh,
            P(("data", "model")),
            (P("data"), P(("data", "model"))),
        )
        whole, places = mapped(
            spmd.mark_sharding(torch.arange(8.0).to("xla"), mesh, (("data", "model"),))
        )
        check(whole, torch.arange(8.0))
        assert places.tolist() == list(range(len(ids)))

    def test_several_meshes_in_a_program(self, partitioner: str) -> None:
        one, other = mesh_of(2, 4), spmd.Mesh(range(8), (8,), ("all",))
        x = spmd.mark_sharding(torch.arange(16.0).reshape(8, 2).to("xla"), other, ("all", None)) * 1
        y = spmd.shard_map(
            lambda x: spmd.manual.all_gather(x, 0, "model"), one, P(("data", "model")), P("data")
        )(x)
        z = spmd.shard_map(lambda x: spmd.manual.all_reduce(x, "sum", "all"), other, P("all"), P())(
            y
        )
        check(y, torch.arange(16.0).reshape(8, 2))
        check(z, torch.arange(16.0).reshape(8, 2).sum(0, keepdim=True))

    def test_the_mesh_of_the_arguments(self) -> None:
        mesh = mesh_of(4)
        x = spmd.mark_sharding(torch.arange(4.0).to("xla"), mesh, ("model",))
        mapped = spmd.shard_map(lambda x: together(x), in_specs=P("model"), out_specs=P())
        assert mapped(x).tolist() == [6.0]
        with mesh_of(2):
            assert mapped(torch.arange(4.0).to("xla")).tolist() == [2.0, 4.0]

    def test_specs_as_text(self) -> None:
        mapped = spmd.shard_map(together, mesh_of(4), "{devices=[4]<=[4]}", P())
        assert mapped(torch.arange(8.0).to("xla")).tolist() == [12.0, 16.0]

    def test_an_axis_without_a_name(self) -> None:
        mesh = spmd.Mesh(range(4), (2, 2))
        mapped = spmd.shard_map(
            lambda x: spmd.manual.all_reduce(x, "sum", 1), mesh, P((0, 1)), P(0)
        )
        assert mapped(torch.arange(4.0).to("xla")).tolist() == [1.0, 5.0]

    def test_is_compiled_once(self) -> None:
        mapped = spmd.shard_map(
            tensor_parallel, mesh_of(8), (P(), P(None, "model"), P("model"), P()), P()
        )
        given = [
            torch.randn(s, device="xla").requires_grad_() for s in ((4, 8), (8, 16), (16, 8), (8,))
        ]
        spmd.sync()

        def step() -> None:
            torch.autograd.grad((F.dropout(mapped(*given), 0.5) ** 2).sum(), given)[0].cpu()

        step()
        before = len(spmd.metrics.compiles())
        step()
        assert len(spmd.metrics.compiles()) == before


class TestRandom:
    """Each shard's own numbers, but where a value is dropped that all shards have."""

    def test_own_numbers(self) -> None:
        mesh = mesh_of(8)
        torch.manual_seed(3)
        mapped = spmd.shard_map(
            lambda x: (torch.rand_like(x), F.dropout(x, 0.5)), mesh, P("model"), P("model")
        )
        drawn, dropped = mapped(torch.ones(8, 64, device="xla"))
        assert len({tuple(row) for row in drawn.tolist()}) == 8
        assert len({tuple(row) for row in dropped.tolist()}) == 8
        torch.manual_seed(3)
        check(drawn[0], torch.rand_like(torch.ones(1, 64, device="xla"))[0].cpu())

    @pytest.mark.parametrize("axis_names", [None, "model"])
    def test_what_all_have_is_dropped_alike(self, partitioner: str, axis_names: Any) -> None:
        mesh = mesh_of(2, 4)

        def shard(x: Any, y: Any) -> Any:
            return F.dropout(x, 0.5), F.dropout(y, 0.5)

        mapped = spmd.shard_map(
            shard, mesh, (P(), P("model")), (P(), P("model")), axis_names=axis_names
        )
        x = torch.ones(64, device="xla").requires_grad_()
        y = torch.ones(256, device="xla").requires_grad_()
        alike, own = mapped(x, y)
        (alike.sum() + own.sum()).backward()
        assert 0 < alike.sum().item() < 128
        check(x.grad, alike.detach().cpu())
        check(y.grad, own.detach().cpu())
        assert len({tuple(row) for row in own.reshape(4, 64).tolist()}) == 4

    def test_recomputed_alike(self) -> None:
        mesh = mesh_of(8)
        mapped = spmd.shard_map(
            spmd.remat(lambda x: F.dropout(x, 0.5) * x), mesh, P("model"), P("model")
        )
        x = torch.ones(512, device="xla").requires_grad_()
        y = mapped(x)
        y.sum().backward()
        check(x.grad, y.detach().cpu() * 2)

    def test_the_stream_moves_on(self) -> None:
        mesh = mesh_of(4)
        mapped = spmd.shard_map(torch.rand_like, mesh, P("model"), P("model"))
        x = torch.ones(8, device="xla")
        assert mapped(x).tolist() != mapped(x).tolist()


class TestErrors:
    """Each names the argument, the axes and the sizes."""

    def refuses(
        self, error: type[Exception], text: str, fn: Any, *args: Any, **kwargs: Any
    ) -> None:
        with pytest.raises(error) as caught:
            spmd.shard_map(fn, kwargs.pop("mesh", mesh_of(2, 4)), **kwargs)(*args)
        assert text in str(caught.value), str(caught.value)

    def test_specs(self) -> None:
        x = torch.ones(8, 6, device="xla")
        same = lambda x: x  # noqa: E731
        out = {"out_specs": P()}
        self.refuses(ValueError, "did you mean 'model'?", same, x, in_specs=P("modle"), **out)
        self.refuses(
            ValueError,
            "in_specs of args[0]: P('model', None, None) has 3 entries",
            same,
            x,
            in_specs=P("model", None, None),
            **out,
        )
        self.refuses(ValueError, "is used twice", same, x, in_specs=P("model", "model"), **out)
        self.refuses(
            ValueError,
            "dim 1 of args[0] has 6 elements (shape [8, 6]), which the 4 shards along 'model' (4) "
            "do not",
            same,
            x,
            in_specs=P(None, "model"),
            **out,
        )
        self.refuses(
            ValueError,
            "is not manual (axis_names: 'model')",
            same,
            x,
            in_specs=P("data"),
            axis_names="model",
            **out,
        )
        self.refuses(
            TypeError,
            "in_specs for args is 'model'; write a spec, P('model')",
            same,
            x,
            in_specs="model",
            **out,
        )
        self.refuses(ValueError, "in_specs for args are 2", same, x, in_specs=(P(), P()), **out)
        self.refuses(
            ValueError,
            "have the keys ['b'], it has ['a']",
            same,
            {"a": x},
            in_specs=({"b": P()},),
            **out,
        )
        self.refuses(
            ValueError,
            "out_specs must have the structure",
            same,
            x,
            in_specs=P(),
            out_specs=(P(), P()),
        )
        self.refuses(ValueError, "UNCONSTRAINED", same, x, in_specs=P(P.UNCONSTRAINED), **out)
        self.refuses(ValueError, "axis_names is empty", same, x, in_specs=P(), axis_names=(), **out)
        self.refuses(
            ValueError,
            "no tensor is sharded over one",
            same,
            x,
            in_specs=P(),
            mesh=None,
            **out,
        )

    def test_results_that_differ(self) -> None:
        x = torch.ones(8, device="xla")
        with pytest.raises(ValueError) as caught:
            spmd.shard_map(
                lambda x: (x * 2, x.sum()), mesh_of(2, 4), P("model"), (P("model"), P())
            )(x)
        text = str(caught.value)
        assert (
            "out_specs says that result[1] is the same on all shards along 'model', but it "
            "may differ"
        ) in text
        assert "test_shard_map.py" in text
        assert "all_reduce" in text
        promised = spmd.shard_map(lambda x: x[:1], mesh_of(2, 4), P("model"), P(), check_vma=False)
        assert promised(x).tolist() == [1.0]

    def test_tensors(self) -> None:
        self.refuses(
            TypeError,
            "args[0] of shape [2] is on cpu",
            lambda x: x,
            torch.ones(2),
            in_specs=P(),
            out_specs=P(),
        )
        x = torch.ones(4, device="xla")
        self.refuses(TypeError, "result is 3", lambda x: 3, x, in_specs=P(), out_specs=P())
        with pytest.raises(TypeError, match="y holds a tensor"):
            spmd.shard_map(lambda x, y: x, mesh_of(4), P(), P())(x, y=x)
        with pytest.raises(TypeError, match="expected a function"):
            spmd.shard_map(3, mesh_of(4))

    def test_bodies(self) -> None:
        x = torch.ones(4, device="xla")
        both = {"in_specs": P("model"), "out_specs": P("model")}
        self.refuses(
            NotImplementedError, "writes in place into an argument", lambda x: x.add_(1), x, **both
        )
        leaf = x.clone().requires_grad_()
        self.refuses(
            NotImplementedError,
            "writes in place into an argument",
            lambda x: x.add_(1),
            leaf,
            **both,
        )
        self.refuses(
            NotImplementedError,
            ".backward() at",
            lambda x: (x * 1).sum().backward() or x,
            leaf,
            **both,
        )
        self.refuses(spmd.BodyError, "", lambda x: x * x.sum().item(), x, **both)
        seen = torch.zeros((), device="xla")
        self.refuses(
            ValueError,
            "writes in place into a tensor from outside",
            lambda x: seen.add_(x.sum()) * x,
            x,
            **both,
        )
        mesh = mesh_of(2, 4)
        self.refuses(
            ValueError,
            "axis 'data' is manual there",
            lambda x: spmd.mark_sharding(x * 2, mesh, P("data")),
            x,
            **both,
        )
        self.refuses(
            ValueError,
            "all axes of its mesh are manual there",
            lambda x: spmd.mark_sharding(x * 2, mesh, P(None)),
            x,
            **both,
        )
        self.refuses(
            ValueError,
            "axis 'model' is manual there",
            lambda x: spmd.mark_sharding(x * 2, mesh, ("model",)),
            x,
            axis_names="model",
            **both,
        )
        nested = spmd.shard_map(lambda x: x, mesh, P(), P(), axis_names="data")
        self.refuses(
            NotImplementedError,
            "inside another one",
            lambda x: nested(x),
            x,
            axis_names="model",
            **both,
        )
        self.refuses(
            NotImplementedError,
            "a gradient of the gradient is not summed",
            lambda x: torch.func.grad(lambda x: (x * x).sum())(x),
            x,
            **both,
        )
        y = spmd.shard_map(lambda x: x * 2, mesh, P("model"), P("model"))(leaf)
        with pytest.raises(NotImplementedError, match="has no second derivative"):
            torch.autograd.grad(y.sum(), leaf, create_graph=True)
