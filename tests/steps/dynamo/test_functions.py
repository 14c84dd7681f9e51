"""This library's functions inside a graph of `torch.compile`: one op, and the values and gradients
of a plain call."""

from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import jax
import pytest
import torch
from support import check
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import spmd
from spmd import P
from spmd.core.base import counters
from spmd.core.base.pace import pace
from spmd.core.graph.graph import origin, walk
from spmd.dtensor import Replicate, Shard, distribute_tensor, init_device_mesh
from spmd.steps.dynamo import functions

pytestmark = [
    pytest.mark.skipif(
        torch.torch_version.TorchVersion(torch.__version__) < "2.12",
        reason="torch 2.11: they are graph breaks",
    ),
    # torch's own lines, at the import of inductor and in its trace of a tensor with a history
    pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning"),
    pytest.mark.filterwarnings(
        "ignore:.*grad attribute of a Tensor that is not a leaf:UserWarning"
    ),
]

MESH = spmd.Mesh(range(8), (2, 4), ("data", "model"))
OTHER = spmd.Mesh(range(8), (4, 2), ("data", "model"))
DEVICE_MESH = init_device_mesh("xla", (2, 4), mesh_dim_names=("data", "model"))


@pytest.fixture(autouse=True)
def _new_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function: Any, **settings: Any) -> Any:
    return torch.compile(function, **{"backend": "xla", "fullgraph": True, **settings})


def num_graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


class Model(nn.Module):
    """Two layers around what a case does with the activations."""

    def __init__(self, middle: Callable[..., Any]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 8)
        self.middle = middle

    def forward(self, x: Tensor) -> Tensor:
        return self.middle(self, self.first(x))


def mark(model: Model, h: Tensor) -> Tensor:
    h = spmd.mark_sharding(h, MESH, P("data", "model"))
    return spmd.mark_sharding(model.last(h.relu()), MESH, ("data", None))


def constraints(model: Model, h: Tensor) -> Tensor:
    h = spmd.reshard(h, P("data", "model"), MESH).relu()
    h = spmd.torch_xla.mark_sharding_with_gradients(h, MESH, (None, "model"))
    h, _ = spmd.shard_as(h * 2, torch.zeros_like(h))
    return spmd.clear_sharding(spmd.mark_sharding(model.last(h), MESH, P("data", None)))


def mesh_context(model: Model, h: Tensor) -> Tensor:
    with MESH:
        h = spmd.mark_sharding(h, None, P("data", "model"))
        return spmd.mark_sharding(model.last(h), ("data", None))


def read_sharded(model: Model, h: Tensor) -> Tensor:
    h = spmd.mark_sharding(h, MESH, P("data", None))
    with spmd.use_sharding([model.last.weight], MESH, P(None, "model")):
        return model.last(h)


def dtensor(model: Model, h: Tensor) -> Tensor:
    return model.last(h.redistribute(DEVICE_MESH, [Shard(0), Replicate()]))


def shard_map(model: Model, h: Tensor) -> Tensor:
    def product(x: Tensor, w: Tensor) -> Tensor:
        total = spmd.manual.all_reduce(x @ w, "sum", "model")
        return (
            spmd.manual.all_gather(total, 0, "data")[: total.shape[0]] * x.shape[1]
            + model.last.bias
        )

    specs = (P("data", "model"), P("model", None))
    return spmd.shard_map(product, MESH, specs, P("data"), check_vma=False)(
        h, model.last.weight.t()
    )


def scan(model: Model, h: Tensor) -> Tensor:
    def cell(carry: Tensor, row: Tensor) -> tuple[Tensor, dict[str, Any]]:
        carry = torch.tanh(carry + model.last(spmd.mark_sharding(row, MESH, P("model"))))
        return carry, {"y": carry * 2, "nothing": None}

    last, ys = spmd.scan(cell, torch.zeros_like(h[0, :8]), h, policy="nothing")
    return ys["y"] + last


def while_loop(model: Model, h: Tensor) -> Tensor:
    start = torch.zeros((), dtype=torch.int32, device="xla"), h.detach()
    _, grown = spmd.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), start)
    return model.last(h + grown)


def cond(model: Model, h: Tensor) -> Tensor:
    return spmd.cond(h.sum() > 0, lambda x: model.last(x), lambda x: x[:, :8] * 2, (h,))


def checkpointed(model: Model, h: Tensor) -> Tensor:
    def block(x: Tensor) -> Tensor:
        return model.last(spmd.mark_sharding(x.exp(), MESH, P("data", "model")).sin())

    return checkpoint(block, h, use_reentrant=False)


def remat(model: Model, h: Tensor) -> Tensor:
    def block(x: Tensor, factor: float) -> Tensor:
        return model.last(spmd.checkpoint_name(x.exp() + h, "kept").sin()) * factor

    return spmd.remat(block, policy=spmd.checkpoint_policies.save_only_these_names("kept"))(h, 2.0)


def softplus(x: Any, *, scale: int) -> Any:
    return jax.nn.softplus(x) * scale, x.sum()


def call_jax(model: Model, h: Tensor) -> Tensor:
    h, total = spmd.call_jax(softplus, h, scale=2)
    return model.last(spmd.call_jax(jax.nn.silu, h)) + total


def attention(model: Model, h: Tensor) -> Tensor:
    h = h.view(2, 4, 2, 8)
    return spmd.torch_xla.custom_kernel.flash_attention(
        h, h, h, causal=True, partition_spec=("data", None, None, None), mesh=MESH
    )


def on_host(model: Model, h: Tensor) -> Tensor:
    return model.last(spmd.place_to_device(spmd.place_to_host(h)).relu())


def saved_on_cpu(model: Model, h: Tensor) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        h = h.exp().sin()
    return model.last(h)


CASES = (
    mark,
    constraints,
    mesh_context,
    read_sharded,
    dtensor,
    shard_map,
    scan,
    while_loop,
    cond,
    checkpointed,
    remat,
    call_jax,
    attention,
    on_host,
    saved_on_cpu,
)


CALLS = ("spmd.call", "spmd.call.backward")


def ops(values: list[Tensor]) -> Counter[str]:
    """Counts this library's ops behind tensors, those inside of calls, too; an annotation with its
    sharding."""
    stack, seen = [origin(value._storage.value) for value in values], set()
    found: Counter[str] = Counter()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        stack += map(origin, node.operands)
        for each in walk([node]):
            if each.op.name not in CALLS and not each.op.name.startswith("aten."):
                found[f"{each.op.name} {each.op.sharding or ''}"] += 1
    return found


class TestInside:
    """Each function inside a model: forward is one op; its ops, values and gradients are those of
    the plain model."""

    @pytest.mark.parametrize("middle", CASES, ids=lambda middle: middle.__name__)
    def test_training(self, middle: Callable[..., Any]) -> None:
        model = Model(middle).to("xla")
        function, x, found, results, shardings = compiled(model), torch.randn(8, 8), [], [], []
        for call in (model, function, function):
            model.zero_grad()
            given = spmd.mark_sharding(x.to("xla").requires_grad_(), MESH, P("data", None))
            before = pace.recorded_ops
            made = call(given)
            num_ops = pace.recorded_ops - before
            made.square().sum().backward()
            values = [
                made.detach(),
                given.grad,
                *(p.grad for p in model.parameters() if p.grad is not None),
            ]
            found.append(ops(values))
            shardings.append(str(spmd.get_sharding(made)))
            results.append(values)
        assert num_ops == 1
        assert found[1] == found[2] and found[0].keys() == found[1].keys()
        # The plain call leaves the gradient of an annotated value that Python has dropped as it is.
        assert found[0] <= found[1]
        assert shardings[0] == shardings[2]
        spmd.sync()
        for plain, first, later in zip(*results, strict=True):
            check(first, plain.cpu())
            check(later, plain.cpu())

    def test_inference(self) -> None:
        model = Model(mark).to("xla")
        function, x = compiled(model), torch.randn(8, 8, device="xla")
        with torch.no_grad():
            made = function(x)
            assert spmd.get_sharding(made).partition_spec(2) == ("data", None)
            spmd.sync()  # from here on the parameters are on the mesh
            for _ in range(2):
                programs, again = spmd.metrics.num_compiles(), function(x)
                spmd.sync()
            assert spmd.metrics.num_compiles() == programs
            check(again, model(x).cpu())
            check(made, again.cpu())

    def test_layers(self) -> None:
        layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4)).to("xla")
        x = torch.randn(2, 8, device="xla")
        plain = spmd.scan_layers(layers, x, policy="nothing")
        made = compiled(lambda x: spmd.scan_layers(layers, x, policy="nothing"))(x)
        check(made, plain.cpu())

    def test_names_of_others(self) -> None:
        pure = spmd.assume_pure(lambda x: x * 2)

        def function(x: Tensor) -> Tensor:
            x = distribute_tensor(pure(x), DEVICE_MESH, [Shard(0), Replicate()])
            return spmd.torch_xla.xla_loops.scan(lambda total, row: (total + row, total), x[0], x)[
                1
            ]

        x = torch.randn(8, 8)
        check(
            compiled(function)(x.to("xla")),
            torch.cat([x[:1] * 2, x[:1] * 2 + (x[:-1] * 2).cumsum(0)]),
        )

    def test_module_that_recomputes(self) -> None:
        block = spmd.remat(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), policy="dots").to("xla")
        x = torch.randn(2, 8).to("xla")
        grads = []
        for call in (block, compiled(block)):
            block.zero_grad()
            call(x).sum().backward()
            grads.append([parameter.grad.cpu() for parameter in block.parameters()])
        for one, other in zip(*grads, strict=True):
            check(one, other)

    def test_functions_made_outside(self) -> None:
        total = spmd.shard_map(
            lambda x: spmd.manual.all_reduce(x.sum(), "sum", "data"), MESH, P("data"), P()
        )
        wave = spmd.remat(torch.sin)
        x = torch.arange(8.0).to("xla")
        made = compiled(lambda x: total(x) + wave(x))(x)
        check(made, torch.arange(8.0).sum() + torch.arange(8.0).sin())

    def test_mesh_and_spec_as_values(self) -> None:
        def function(x: Tensor) -> Tensor:
            mesh = spmd.Mesh(range(8), (8,), ("data",))
            spec = P(P.UNCONSTRAINED, *P("data", None).without("data")[1:])
            x = spmd.mark_sharding(x * mesh.shape()["data"] * len(spec), mesh, spec)
            return spmd.mark_sharding(x, MESH, (*P("data")[0:1], None)) if mesh != MESH else x

        made = compiled(function)(torch.ones(8, 8, device="xla"))
        assert spmd.get_sharding(made).partition_spec(2) == ("data", None)
        check(made, torch.full((8, 8), 16.0))

    def test_without_gradient(self) -> None:
        def function(x: Tensor) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                kept = spmd.reshard(x, P("data", None), MESH)
            return (kept + 1 if kept.requires_grad else kept), spmd.reshard(
                x, P("data", None), MESH
            )

        kept, made = compiled(function)(torch.ones(8, 8, device="xla").requires_grad_())
        assert (kept.requires_grad, made.requires_grad) == (False, True)
        check(kept, torch.ones(8, 8))

    def test_op_by_op(self) -> None:
        def function(x: Tensor) -> tuple[Tensor, Tensor]:
            ys = spmd.scan(
                lambda carry, row: (carry + row, carry),
                x[0],
                spmd.mark_sharding(x * 2, MESH, P("data", None)),
            )[1]
            return ys, torch.rand(2).to("xla")

        x = torch.randn(8, 4)
        made = compiled(function)(x.to("xla"))[0]
        check(made, torch.cat([x[:1], x[:1] + (x[:-1] * 2).cumsum(0)]))
        assert any("recorded op by op: it has a tensor on cpu" in note for note in counters._notes)

    def test_contexts_are_left(self) -> None:
        def function(x: Tensor) -> Tensor:
            with torch.autograd.graph.save_on_cpu():
                return spmd.mark_sharding(x.exp(), MESH, P("data", "data"))

        x = torch.ones(8, 8, device="xla", requires_grad=True)
        with pytest.raises(ValueError, match="is used"):
            compiled(function)(x)
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


class TestArguments:
    """An annotation of an argument is seen by the caller, and by the argument's gradient."""

    def test_data_and_recorded_values(self) -> None:
        function = compiled(lambda x: spmd.mark_sharding(x, MESH, P("data", "model")) * 2)
        for x in (torch.ones(8, 8).to("xla"), torch.ones(8, 8, device="xla") * 3):
            for _ in range(2):
                made = function(x)
                assert spmd.get_sharding(x).partition_spec(2) == ("data", "model")
            check(made, torch.full((8, 8), 2 * x[0, 0].item()))

    def test_gradient(self) -> None:
        function = compiled(lambda x: (spmd.mark_sharding(x, MESH, P("data", "model")) * 2).sum())
        x = torch.ones(8, 8).to("xla").requires_grad_()
        function(x).backward()
        spmd.sync()
        assert spmd.get_sharding(x.grad).partition_spec(2) == ("data", "model")

    def test_view_as_a_result(self) -> None:
        made = compiled(lambda x: spmd.mark_sharding((x * 2).t(), MESH, P("data", "model")))(
            torch.ones(8, 8).to("xla")
        )
        assert spmd.get_sharding(made).partition_spec(2) == ("data", "model")

    def test_removal(self) -> None:
        x = spmd.mark_sharding(torch.ones(8, 8).to("xla"), MESH, P("data", None))
        check(compiled(lambda x: spmd.clear_sharding(x) * 2)(x), torch.full((8, 8), 2.0))
        assert spmd.get_sharding(x).partition_spec(2) == (None, None)


class TestGuards:
    """Values that a function reads besides its tensors are guarded, or read at each call."""

    def test_mesh_and_spec(self) -> None:
        own = SimpleNamespace(mesh=MESH, spec=P("data", None))
        function, x = (
            compiled(lambda x: spmd.mark_sharding(x * 2, own.mesh, own.spec)),
            torch.ones(8, 8, device="xla"),
        )
        assert spmd.get_sharding(function(x)).partition_spec(2) == ("data", None)
        own.spec = P(None, "model")
        assert spmd.get_sharding(function(x)).partition_spec(2) == (None, "model")
        own.mesh = OTHER
        assert spmd.get_sharding(function(x)).mesh_shape == (4, 2)
        graphs, own.mesh = num_graphs(), spmd.Mesh(range(8), (4, 2), ("data", "model"))
        function(x)
        assert num_graphs() == graphs  # an equal mesh

    def test_default_mesh(self) -> None:
        def shard(x: Tensor) -> Tensor:
            return spmd.manual.all_gather(x, 0, "data") * x.shape[0]

        mark = compiled(lambda x: spmd.mark_sharding(x * 2, ("data", None)))
        gather = compiled(
            lambda x: spmd.shard_map(shard, None, P("data"), P("model"), check_vma=False)(x)
        )
        x = torch.ones(8, 8, device="xla")
        for mesh in (MESH, OTHER, MESH):
            with mesh:
                assert spmd.get_sharding(mark(x)).mesh_shape == mesh.mesh_shape
                data, model = mesh.mesh_shape
                check(gather(x), torch.full((8 * model, 8), 8.0 / data))
        with pytest.raises(ValueError, match="expected a mesh, got none"):
            mark(x)

    def test_function_and_what_it_reads(self) -> None:
        def times(factor: int) -> Callable[..., Any]:
            return lambda x: x * factor

        own = SimpleNamespace(jax=times(2), factor=2.0)
        call = compiled(lambda x: spmd.call_jax(own.jax, x))
        loop = compiled(
            lambda x: spmd.scan(lambda carry, row: (carry + row * own.factor, None), x[0], x)[0]
        )
        x = torch.ones(4, 3, device="xla")
        check(call(x), torch.full((4, 3), 2.0))
        check(loop(x), torch.full((3,), 9.0))
        own.jax, own.factor = times(3), 5.0
        check(call(x), torch.full((4, 3), 3.0))
        check(loop(x), torch.full((3,), 21.0))
        own.factor = 7.0  # now a number that the guards leave open
        check(loop(x), torch.full((3,), 29.0))

    def test_function_of_shards_replaced(self) -> None:
        def total(mesh: spmd.Mesh, axis: str) -> Any:
            return spmd.shard_map(
                lambda x: spmd.manual.all_reduce(x, "sum", axis), mesh, P(axis), P()
            )

        own = SimpleNamespace(total=total(MESH, "data"))
        function, x = compiled(lambda x: own.total(x)), torch.ones(8, 2, device="xla")
        check(function(x), torch.full((4, 2), 2.0))
        own.total = total(MESH, "model")
        check(function(x), torch.full((2, 2), 4.0))
        own.total = total(OTHER, "data")
        check(function(x), torch.full((2, 2), 4.0))

    def test_lengths(self) -> None:
        def function(x: Tensor) -> Tensor:
            return spmd.mark_sharding(x * 2, MESH, P(None, "model")) + spmd.reshard(
                x, P(None, None), MESH
            )

        mark, graphs = compiled(function), num_graphs()
        for length in (5, 9, 30):
            x = torch.ones(length, 8).to("xla")
            torch._dynamo.mark_dynamic(x, 0)
            check(mark(x), torch.full((length, 8), 3.0))
        assert num_graphs() == graphs + 1
        call = compiled(lambda x: spmd.call_jax(jax.numpy.tanh, x))
        for length in (5, 9, 30):
            check(call(torch.ones(length, 2, device="xla")), torch.ones(length, 2).tanh())


class TestBreaks:
    """A function that cannot be in a graph says why, and without fullgraph stands between two
    graphs."""

    def test_reason(self) -> None:
        def function(x: Tensor) -> Tensor:
            y = x * 2
            return y * 3 if spmd.get_sharding(y) is None else y

        x = torch.ones(2, device="xla")
        with pytest.raises(
            torch._dynamo.exc.Unsupported, match="the sharding of a value is known when its program"
        ):
            compiled(function)(x)
        check(compiled(function, fullgraph=False)(x), torch.full((2,), 6.0))

    def test_error_of_the_user(self) -> None:
        def function(x: Tensor) -> Tensor:
            return spmd.shard_map(lambda x: x, MESH, P("dta"), P("dta"))(x * 2)

        x = torch.ones(8, device="xla")
        with pytest.raises(torch._dynamo.exc.Unsupported, match=r"ValueError: .*'dta'"):
            compiled(function)(x)
        with pytest.raises(ValueError, match="'dta'"):
            compiled(function, fullgraph=False)(x)

    def test_break_in_a_body(self) -> None:
        def function(x: Tensor) -> Tensor:
            def row(carry: Tensor, x: Tensor) -> tuple[Tensor, None]:
                torch._dynamo.graph_break()
                return carry + x, None

            return spmd.scan(row, x[0] * 2, x * 3)[0]

        x = torch.ones(2, 3, device="xla")
        check(compiled(function, fullgraph=False)(x), torch.full((3,), 8.0))

    def test_other_devices(self) -> None:
        with pytest.raises(
            torch._dynamo.exc.Unsupported, match="no tensor on xla among its arguments"
        ):
            torch.compile(
                lambda x: spmd.mark_sharding(x, MESH, P("data")), backend="eager", fullgraph=True
            )(torch.ones(8))


class TestTable:
    """Each name of the table is a function or a class."""

    def test_names(self) -> None:
        names = {
            *(taken.name for taken in functions.TAKEN),
            *functions.PURE,
            *functions.CONTEXTS,
            *functions.TRACED,
            *functions.REPLACED,
            *functions.REPLACED.values(),
            *functions.METHODS.values(),
            *functions.BREAKS,
            functions.DEFAULT_MESH,
        }
        found = {name: torch._dynamo.trace_rules.load_object(name) for name in names}
        assert all(
            callable(one) and f"{one.__module__}.{one.__qualname__}" == name
            for name, one in found.items()
        )
