"""PyTorch/XLA's manual regions in two steps, and torch's functional collectives."""

from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as funcol
from support import check

import spmd
from spmd import P


@pytest.fixture(params=["gspmd", "shardy"])
def partitioner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(spmd.config, "partitioner", request.param)
    return request.param


@pytest.fixture
def mesh() -> spmd.Mesh:
    return spmd.Mesh(range(8), (2, 4), ("data", "model"))


class TestTwoSteps:
    """From the whole to a shard's piece and back."""

    def test_values_and_gradients(self, partitioner: str, mesh: spmd.Mesh) -> None:
        given = [
            torch.randn(4, 8) / 3,
            torch.randn(8, 16) / 3,
            torch.randn(16, 8) / 3,
            torch.randn(8),
        ]
        x, up, down, bias = (tensor.clone().to("xla").requires_grad_() for tensor in given)
        a = spmd.torch_xla.enable_manual_sharding(x * 1, ("data", None), mesh=mesh)
        b = spmd.torch_xla.enable_manual_sharding(up, (None, "model"), mesh=mesh)
        c = spmd.torch_xla.enable_manual_sharding(down, ("model", None), mesh=mesh)
        assert (a.shape, b.shape, c.shape) == ((2, 8), (8, 4), (4, 8))
        made = spmd.manual.all_reduce(torch.tanh(a @ b) @ c, "sum", "model")
        y = spmd.torch_xla.disable_manual_sharding(made, ("data", None), (4, 8), mesh=mesh) + bias
        spmd.sync()  # a barrier between leaves the pieces alone
        y.square().sum().backward()
        others = [tensor.clone().requires_grad_() for tensor in given]
        expected = torch.tanh(others[0] @ others[1]) @ others[2] + others[3]
        expected.square().sum().backward()
        check(y, expected)
        for ours, theirs in zip((x, up, down, bias), others, strict=True):
            check(ours.grad, theirs.grad)

    def test_what_is_whole(self, mesh: spmd.Mesh) -> None:
        """Of what all shards have the gradient is the sum; the mesh is known."""
        x, w = torch.arange(8.0).to("xla"), torch.ones(2, device="xla", requires_grad=True)
        piece = spmd.torch_xla.enable_manual_sharding(x, (("model", "data"),), mesh=mesh)
        own = spmd.torch_xla.enable_manual_sharding(w, (None,), mesh=mesh)
        total = spmd.manual.all_reduce(piece.sum() * own, "max", ("data", "model"))
        y = spmd.torch_xla.disable_manual_sharding(total, (None,), (2,))
        y.sum().backward()
        assert y.tolist() == [7.0, 7.0]
        assert w.grad.tolist() == [7.0, 7.0]

    def test_a_draw_with_data(self, mesh: spmd.Mesh) -> None:
        """The draw is each shard's own; the data that is added to it comes in from outside."""
        noise = torch.rand(1, device="xla") + torch.ones(1).to("xla")
        piece = spmd.torch_xla.enable_manual_sharding(
            torch.zeros(8).to("xla"), (("data", "model"),), mesh=mesh
        )
        made = spmd.torch_xla.disable_manual_sharding(
            piece + noise, (("data", "model"),), (8,)
        ).cpu()
        assert made.unique().numel() == 8
        assert bool(((made >= 1) & (made < 2)).all())

    def test_errors(self, mesh: spmd.Mesh) -> None:
        x = torch.ones(8, 6, device="xla")
        with pytest.raises(
            ValueError, match="enable_manual_sharding: dim 1 of the tensor has 6 elements"
        ):
            spmd.torch_xla.enable_manual_sharding(x, (None, "model"), mesh=mesh)
        with pytest.raises(ValueError, match="did you mean 'model'"):
            spmd.torch_xla.enable_manual_sharding(x, ("modle", None), mesh=mesh)
        with pytest.raises(ValueError, match=r"expected a mesh"):
            spmd.torch_xla.enable_manual_sharding(x, ("model", None))
        piece = spmd.torch_xla.enable_manual_sharding(x, ("model", None), mesh=mesh)
        with pytest.raises(
            ValueError,
            match=r"shards of shape \[2, 6\] make a tensor of shape \[8, 6\], not \[9, 6\]",
        ):
            spmd.torch_xla.disable_manual_sharding(piece, ("model", None), (9, 6))
        with pytest.raises(ValueError, match="along 'model' are the same, but they may differ"):
            spmd.torch_xla.disable_manual_sharding(piece, (None, None), (2, 6))
        with pytest.raises(
            ValueError, match="expected a shard that enable_manual_sharding returned"
        ):
            spmd.torch_xla.disable_manual_sharding(x, ("model", None), (8, 6))
        with pytest.raises(
            RuntimeError, match=r"join the shards with spmd.torch_xla.disable_manual_sharding first"
        ):
            (piece + 1).cpu()


# torch's older names work as well
@pytest.mark.filterwarnings("ignore:.*_tensor. is deprecated:FutureWarning")
class TestFunctionalCollectives:
    """torch's, in a manual region: a group is an axis."""

    def test_values_and_gradients(self, partitioner: str, mesh: spmd.Mesh) -> None:
        def shard(x: Any) -> Any:
            total = funcol.all_reduce(x, "SUM", "model")
            return {
                "sum": funcol.wait_tensor(total) * 2,
                "max": funcol.all_reduce(x, "max", (mesh, 1)),
                "both": funcol.all_reduce(x.sum(), "avg", ("data", "model")),
                "gathered": funcol.all_gather_tensor(x, 1, "model"),
                "scattered": funcol.reduce_scatter_tensor(x, "sum", 1, (mesh, "model")),
                "sent": funcol.all_to_all_single(x.mT.contiguous(), None, None, "model"),
                "turned": funcol.permute_tensor(x, [1, 2, 3, 0], "model"),
                "first": funcol.broadcast(x, 1, "model"),
                "many": funcol.all_reduce_coalesced([x, x * 2], "sum", "model")[1],
            }

        specs = {name: P() for name in ("sum", "max", "both", "first", "many", "gathered")}
        specs |= {"scattered": P(None, "model"), "sent": P(None, "model"), "turned": P("model")}
        values = torch.randn(8, 8)
        x = values.to("xla").requires_grad_()
        made = spmd.shard_map(shard, mesh, P("model"), specs)(x)
        sum(
            (one * torch.arange(1.0, one.numel() + 1, device="xla").reshape(one.shape)).sum()
            for one in made.values()
        ).backward()
        other = values.clone().requires_grad_()
        rows = other.reshape(4, 2, 8)
        expected = {
            "sum": rows.sum(0) * 2,
            "max": rows.amax(0),
            "both": rows.sum((1, 2)).mean(),
            "gathered": torch.cat(rows.unbind(0), 1),
            "scattered": rows.sum(0),
            "sent": other.reshape(4, 2, 4, 2).permute(0, 3, 2, 1).reshape(8, 8),
            "turned": other.roll(2, 0),
            "first": rows[1],
            "many": rows.sum(0) * 2,
        }
        sum(
            (one * torch.arange(1.0, one.numel() + 1).reshape(one.shape)).sum()
            for one in expected.values()
        ).backward()
        for name, one in expected.items():
            check(made[name], one)
        check(x.grad, other.grad)

    def test_between_two_steps(self, mesh: spmd.Mesh) -> None:
        x = torch.arange(8.0).to("xla").requires_grad_()
        piece = spmd.torch_xla.enable_manual_sharding(x, ("model",), mesh=mesh)
        total = funcol.all_reduce(piece, "sum", "model")
        y = spmd.torch_xla.disable_manual_sharding(total * piece, ("model",), (8,), mesh=mesh)
        y.sum().backward()
        rows = torch.arange(8.0).reshape(4, 2)
        check(y, (rows.sum(0) * rows).flatten())
        check(x.grad, (2 * rows.sum(0)).repeat(4))

    def test_errors(self, mesh: spmd.Mesh) -> None:
        x = torch.ones(8, device="xla")

        def shard(one: Any) -> Any:
            return spmd.shard_map(one, mesh, P("model"), P())(x)

        with pytest.raises(ValueError, match="there is no axis 'modle' in the mesh"):
            shard(lambda x: funcol.all_reduce(x, "sum", "modle"))
        with pytest.raises(NotImplementedError, match="splits of several sizes"):
            shard(lambda x: funcol.all_to_all_single(x, [2, 0, 0, 0], [1, 1, 0, 0], "model"))
        with pytest.raises(RuntimeError, match=r"called outside spmd.shard_map"):
            funcol.all_reduce(x, "sum", (mesh, "model"))
