"""The walk over a recorded graph: which axes are known of a value's dims, behind ops, reshapes and
loops."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spmd
from spmd import P
from spmd.core.graph.graph import DeviceData, Node
from spmd.core.lower import lower
from spmd.ops.sharded import Dims, Values

Spec = tuple[Any, ...]


@pytest.fixture
def mesh() -> spmd.Mesh:
    return spmd.Mesh(range(8), (2, 2, 2), ("data", "tensor", "context"))


def spelled(dims: Dims) -> str:
    """The axes of each dim: `-` for none, `*` between the parts of a merged dim."""
    return " ".join(
        "*".join("+".join(axes) or "-" for _, axes in factors) or "-" for factors in dims
    )


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The known dims of a tensor, or of the last value of a shape before it."""
    walks: list[tuple[Sequence[Node], Values]] = []
    walk = lower.known_of[0]

    def noted(nodes: Sequence[Node], inputs: Mapping[DeviceData, Dims | None]) -> Values:
        walks.append((nodes, walk(nodes, inputs)))
        return walks[-1][1]

    monkeypatch.setattr(lower, "known_of", [noted])

    def of(tensor: torch.Tensor, shape: tuple[int, ...] = ()) -> str:
        walks.clear()
        spmd.get_stablehlo([tensor])
        nodes, values = walks[0]  # of the program; the next are of manual computations in it
        node = max(
            (node for node in nodes if node.op.metas[0].shape == (shape or tensor.shape)),
            key=nodes.index,
        )
        return spelled(values.dims.get((node, 0), ((),) * tensor.ndim))

    return of


def marked(mesh: spmd.Mesh, shape: tuple[int, ...], spec: Spec) -> torch.Tensor:
    return spmd.mark_sharding(torch.randn(shape).to("xla"), mesh, P(*spec))


X = (8, 4, 16), ("data", "context", "tensor")
OPS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "elementwise": (lambda x: x.exp() * 2 + x, "data context tensor"),
    "broadcast": (lambda x: x + torch.ones(16, device="xla"), "data context tensor"),
    "transpose": (lambda x: x.transpose(0, 2) * 2, "tensor context data"),
    "permute": (lambda x: x.permute(1, 2, 0) * 2, "context tensor data"),
    "merged": (lambda x: x.reshape(32, 16) * 2, "data*context tensor"),
    "merged and split": (
        lambda x: (x.reshape(32, 16) * 2).reshape(8, 4, 16) + 1,
        "data context tensor",
    ),
    "heads": (lambda x: x.reshape(8, 4, 2, 8) * 2, "data context tensor -"),
    "split elsewhere": (lambda x: x.reshape(8, 2, 32) * 2, "data context -*tensor"),
    "sum": (lambda x: x.sum(1) * 2, "data tensor"),
    "sum that keeps the dim": (lambda x: x.sum(1, keepdim=True) * 2, "data - tensor"),
    "select": (lambda x: x[:, 0] * 2, "data tensor"),
    "slice": (lambda x: x[:, :2] * 2, "data - tensor"),
    "unsqueeze": (lambda x: x[:, None] * 2, "data - context tensor"),
    "expand": (lambda x: x[:, None].expand(8, 3, 4, 16) * 2, "data - context tensor"),
    "stack": (lambda x: torch.stack([x, x]) * 2, "- data context tensor"),
    "cat": (lambda x: torch.cat([x, x], 1) * 2, "data - tensor"),
    "softmax": (lambda x: x.softmax(-1), "data context tensor"),
    "layer norm": (lambda x: F.layer_norm(x, (16,)), "data context tensor"),
    "linear": (lambda x: F.linear(x, torch.ones(6, 16, device="xla")), "data context -"),
    "batched product": (lambda x: x @ x.transpose(1, 2), "data context -"),
    "embedding": (
        lambda x: F.embedding(x[..., 0].long(), torch.ones(6, 5, device="xla")),
        "data context -",
    ),
    "index": (lambda x: x[torch.tensor([1, 2, 3]).to("xla")] * 2, "- context tensor"),
    "square transposed": (lambda x: x[0, :, :4].t() * 2, "- context"),
}


class TestOps:
    @pytest.mark.parametrize("name", OPS)
    def test_forward(self, mesh: spmd.Mesh, known: Callable[..., str], name: str) -> None:
        function, expected = OPS[name]
        assert known(function(marked(mesh, *X))) == expected

    def test_columns_of_a_product(self, mesh: spmd.Mesh, known: Callable[..., str]) -> None:
        x, weight = (
            marked(mesh, (8, 4, 16), ("data", None, None)),
            marked(mesh, (6, 16), ("tensor", None)),
        )
        assert known(F.linear(x, weight)) == "data - tensor"

    def test_no_axis_twice(self, mesh: spmd.Mesh, known: Callable[..., str]) -> None:
        """A weight sharded over the batch's axis is gathered: the result has the axis in the
        batch."""
        x, weight = (
            marked(mesh, (8, 4, 16), ("data", None, None)),
            marked(mesh, (6, 16), ("data", None)),
        )
        assert known(F.linear(x, weight)) == "data - -"

    def test_first_operand_with_axes(self, mesh: spmd.Mesh, known: Callable[..., str]) -> None:
        whole, cut = torch.zeros(8, 4, device="xla"), marked(mesh, (8, 4), ("data", None))
        assert known(whole + cut) == "data -"

    def test_an_open_dim(self, mesh: spmd.Mesh, known: Callable[..., str]) -> None:
        """A dim that an annotation leaves open has the axes of its operand."""
        x = marked(mesh, (8, 4), ("data", None)) * 2
        assert known(spmd.mark_sharding(x, mesh, P(P.UNCONSTRAINED, "tensor"))) == "data tensor"

    def test_backward(self, mesh: spmd.Mesh, known: Callable[..., str]) -> None:
        """What is known of a result is known of its operands where nothing else is."""
        x = torch.full((8, 4), 2.0, device="xla").exp()
        assert known(spmd.mark_sharding(x.t() * 2, mesh, P("data", None)), (8, 4)) == "- data"

    def test_gradients(self, mesh: spmd.Mesh, known: Callable[..., str]) -> None:
        x = marked(mesh, (8, 4, 16), ("data", "context", None)).requires_grad_()
        with torch.device("xla"):
            layer = nn.Linear(16, 32)
        layer(x).relu().sum().backward()
        assert x.grad is not None
        assert known(x.grad * 2) == "data context -"


class TestRegions:
    def test_scan(self, mesh: spmd.Mesh, known: Callable[..., str]) -> None:
        xs, start = (
            marked(mesh, (6, 8, 4), (None, "data", None)),
            marked(mesh, (8, 4), ("data", "tensor")),
        )
        carry, ys = spmd.scan(lambda carry, x: (carry + x, x * 2), start, xs)
        assert known(ys + 1) == "- data -"
        assert known(carry * 2) == "data tensor"

    def test_a_carry_without_axes(self, mesh: spmd.Mesh, known: Callable[..., str]) -> None:
        """A carry of which nothing is known at first has the axes that the body gives it."""
        xs = marked(mesh, (6, 8, 4), (None, "data", None))
        carry, _ = spmd.scan(lambda carry, x: (carry + x, x), torch.zeros(8, 4, device="xla"), xs)
        assert known(carry * 2) == "data -"

    def test_while_loop(self, mesh: spmd.Mesh, known: Callable[..., str]) -> None:
        x = marked(mesh, (8, 4), ("data", None))
        _, result = spmd.while_loop(
            lambda i, x: i < 3,
            lambda i, x: (i + 1, x * 2),
            (torch.zeros((), dtype=torch.int64, device="xla"), x),
        )
        assert known(result * 2) == "data -"

    def test_cond(self, mesh: spmd.Mesh, known: Callable[..., str]) -> None:
        x = marked(mesh, (8, 4), ("data", None))
        result = spmd.cond(x.sum() > 0, lambda x: x * 2, lambda x: x + 1, (x,))
        assert known(result * 2) == "data -"

    def test_behind_a_manual_computation(self, mesh: spmd.Mesh, known: Callable[..., str]) -> None:
        """The mesh of a manual computation is no annotation of its results."""
        x = marked(mesh, (8, 4), ("data", None))
        spec = P("data", None)
        assert (
            known(
                spmd.shard_map(lambda x: x * 2, mesh=mesh, in_specs=(spec,), out_specs=spec)(x) + 1
            )
            == "data -"
        )

    @pytest.mark.parametrize("scan_layers", ["always", "never"])
    def test_equal_layers(
        self,
        mesh: spmd.Mesh,
        known: Callable[..., str],
        monkeypatch: pytest.MonkeyPatch,
        scan_layers: str,
    ) -> None:
        monkeypatch.setattr(spmd.config, "scan_layers", scan_layers)
        with torch.device("xla"):
            layers = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(6)))
        spmd.sync()
        assert (
            known(layers(marked(mesh, (8, 4, 16), ("data", "context", None))) * 2)
            == "data context -"
        )
