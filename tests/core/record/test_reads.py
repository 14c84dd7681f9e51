"""Reading a tensor in another layout than the one it is stored in: a stack of contexts, and what
renews it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import spmd
from spmd.core.graph.graph import Node, origin, topological
from spmd.core.sharding.value import Sharding

UNSHARDED = None
ROWS, COLUMNS = ("fsdp", None), (None, "fsdp")


def stored(mesh: spmd.Mesh, *shape: int) -> Tensor:
    """A split parameter with more elements than share a gather."""
    return spmd.mark_sharding(
        torch.ones(*shape or (512, 256)).to("xla").requires_grad_(), mesh, ROWS
    )


def reads(tensor: Tensor) -> list[Sharding | None]:
    """The layouts that the op which made a tensor reads its operands in; None: as they are
    stored."""
    made = origin(tensor._storage.value)
    assert made is not None
    return [value.op.sharding if type(value) is Node else None for value in made.operands]


def behind(tensor: Tensor) -> int:
    """The number of renewals before a tensor's value."""
    nodes, _ = topological([tensor._storage.value])
    return sum(node.op.name == "spmd.renew" for node in nodes)


def layout(mesh: spmd.Mesh, spec: tuple[str | None, ...] | None) -> Sharding:
    return mesh.sharding((None, None) if spec is None else spec, 2, "test")


def layouts_behind(tensor: Tensor) -> set[Sharding | None]:
    """The annotations of all ops that a tensor comes from."""
    return {node.op.sharding for node in topological([tensor._storage.value])[0]}


class TestTheInnermostCounts:
    """A context that is entered pushes a layout, one that is left takes it away again."""

    def test_two_contexts_on_one_tensor(self, mesh8: spmd.Mesh) -> None:
        w = stored(mesh8)
        with spmd.use_sharding([w], mesh8):
            assert reads(w * 2)[0] is layout(mesh8, UNSHARDED)
            with spmd.use_sharding([w], mesh8, COLUMNS):
                assert reads(w * 2)[0] is layout(mesh8, COLUMNS)
            assert reads(w * 2)[0] is layout(mesh8, UNSHARDED)
        assert reads(w * 2)[0] is None

    def test_one_that_was_made_later_changes_nothing_for_the_first(self, mesh8: spmd.Mesh) -> None:
        w = stored(mesh8)
        first, second = spmd.use_sharding([w], mesh8), spmd.use_sharding([w], mesh8, COLUMNS)
        with first:
            assert reads(w * 2)[0] is layout(mesh8, UNSHARDED)
        with second:
            assert reads(w * 2)[0] is layout(mesh8, COLUMNS)

    def test_entered_again_inside_itself(self, mesh8: spmd.Mesh) -> None:
        w = stored(mesh8)
        whole = spmd.use_sharding([w], mesh8)
        with whole:
            with whole:
                pass
            assert reads(w * 2)[0] is layout(mesh8, UNSHARDED)
        assert reads(w * 2)[0] is None

    def test_left_by_an_exception(self, mesh8: spmd.Mesh) -> None:
        w = stored(mesh8)
        with pytest.raises(RuntimeError, match="here"), spmd.use_sharding([w], mesh8):
            raise RuntimeError("here")
        assert reads(w * 2)[0] is None

    def test_contexts_of_equal_layout_gather_once(self, mesh8: spmd.Mesh) -> None:
        w = stored(mesh8)
        made = []
        for _ in range(3):
            with spmd.use_sharding([w], mesh8):
                made.append(origin((w * 2)._storage.value).operands[0])
        assert made[0] is made[1] is made[2]


class TestBackwardReadsAsForward:
    """A backward op reads by the context that its forward op was in."""

    def test_two_layouts(self, mesh8: spmd.Mesh) -> None:
        w, x = stored(mesh8, 256, 256), torch.ones(4, 256).to("xla").requires_grad_()
        seen = []
        with spmd.use_sharding([w], mesh8):
            first = x @ w
        with spmd.use_sharding([w], mesh8, COLUMNS):
            second = first @ w
        first.register_hook(lambda gradient: seen.append(gradient))
        second.sum().backward()
        assert layout(mesh8, COLUMNS) in layouts_behind(seen[0])
        assert layout(mesh8, UNSHARDED) not in layouts_behind(seen[0])
        assert layout(mesh8, UNSHARDED) in layouts_behind(x.grad)
        assert torch.equal(x.grad.cpu(), torch.full((4, 256), 65536.0))


class TestEveryWayToRead:
    """Lists, keyword arguments, views and JAX functions read as the context says, too."""

    @pytest.mark.parametrize(
        "call",
        [
            lambda w: torch.cat([w, w]),
            lambda w: torch.cat([w] * 5),
            lambda w: torch.mul(input=w, other=w),
            lambda w: torch.addcmul(input=w, tensor1=w, tensor2=w),
            lambda w: spmd.call_jax(lambda a: a * 2, w),
            lambda w: torch.einsum("ij,ij->i", w, w),
            lambda w: torch._foreach_mul([w, w], 2.0)[0],
        ],
        ids=["list", "long list", "keywords", "three keywords", "call_jax", "views", "list op"],
    )
    def test_inside_a_unit(self, call: Callable[[Tensor], Tensor], mesh8: spmd.Mesh) -> None:
        w = stored(mesh8).detach()
        with spmd.use_sharding([w], mesh8):
            made = call(w)
        assert layout(mesh8, UNSHARDED) in layouts_behind(made)
        assert torch.equal(made.cpu(), call(w).cpu())

    def test_what_writes_reads_as_stored(self, mesh8: spmd.Mesh) -> None:
        w = stored(mesh8).detach()
        with spmd.use_sharding([w], mesh8):
            w.add_(w)
            torch._foreach_add_([w], [w])
        assert layout(mesh8, UNSHARDED) not in layouts_behind(w)
        assert w.cpu().unique().tolist() == [4.0]


class TestCarried:
    """The layouts stay with the tensor where it takes other data, as its own sharding does."""

    def test_data_is_set_between_two_entries(self, mesh8: spmd.Mesh) -> None:
        w = stored(mesh8)
        whole = spmd.use_sharding([w], mesh8)
        w.data = torch.full((512, 256), 3.0).to("xla")
        with whole:
            y = w * 2
        assert reads(y)[0] is layout(mesh8, UNSHARDED)
        assert y[0, 0].item() == 6.0

    def test_data_is_set_inside(self, mesh8: spmd.Mesh) -> None:
        w = stored(mesh8)
        before = w.data
        with spmd.use_sharding([w], mesh8):
            w.data = torch.full((512, 256), 3.0).to("xla")
            assert reads(w * 2)[0] is layout(mesh8, UNSHARDED)
        assert reads(w * 2)[0] is None
        w.data = before
        assert reads(w * 2)[0] is None
        assert (w * 2)[0, 0].item() == 2.0

    def test_another_dtype(self, mesh8: spmd.Mesh) -> None:
        w = stored(mesh8)
        whole = spmd.use_sharding([w], mesh8)
        w.data = w.data.to(torch.bfloat16)
        with whole:
            y = w * 2
        assert reads(y)[0] is layout(mesh8, UNSHARDED)
        assert y.dtype == torch.bfloat16


class TestRenew:
    """A gathered value is gathered anew, once a tensor is computed, by XLA, too."""

    def test_gathers_twice(self, mesh8: spmd.Mesh) -> None:
        w, v = stored(mesh8), stored(mesh8)
        whole, other = spmd.use_sharding([w], mesh8), spmd.use_sharding([v], mesh8)
        x = torch.ones(8, 512).to("xla")
        with whole:
            y = x @ w
        with other:
            z = y @ v.t()
        whole.renew(z)
        with whole:
            y = z @ w
        assert behind(y) == 1
        y.sum().item()
        assert spmd.metrics.compiles()[-1].collectives["all-gather"] == 3

    def test_nothing_else_was_entered_since(self, mesh8: spmd.Mesh) -> None:
        w, x = stored(mesh8), torch.ones(8, 512).to("xla")
        whole = spmd.use_sharding([w], mesh8)
        with whole:
            y = x @ w
            whole.renew(y)
            assert behind(y @ w.t()) == 0

    def test_views_that_were_read_before(self, mesh8: spmd.Mesh) -> None:
        w, x = stored(mesh8), torch.ones(8, 512).to("xla")
        whole = spmd.use_sharding([w], mesh8)
        with whole, spmd.use_sharding([stored(mesh8)], mesh8):
            turned = w.t()
            y = x @ w + (turned * 2).sum()
            whole.renew(y)
            assert behind(turned * 2) == 1

    def test_a_view_is_waited_for(self, mesh8: spmd.Mesh) -> None:
        w, x = stored(mesh8), torch.ones(8, 512).to("xla")
        whole = spmd.use_sharding([w], mesh8)
        with whole:
            y = (x @ w).t()
        with spmd.use_sharding([stored(mesh8)], mesh8):
            whole.renew(y)
        with whole:
            z = y.t() @ w.t()
        assert behind(z) == 1
        assert z[0, 0].item() == 512 * 256

    def test_data_is_waited_for_by_nothing(self, mesh8: spmd.Mesh) -> None:
        w, x = stored(mesh8), torch.ones(8, 512).to("xla")
        whole = spmd.use_sharding([w], mesh8)
        with spmd.use_sharding([stored(mesh8)], mesh8):
            whole.renew(x)
        with whole:
            assert behind(x @ w) == 0

    def test_small_ones_share_a_gather_again(self, mesh8: spmd.Mesh) -> None:
        small = [stored(mesh8, 16, 4) for _ in range(3)]
        whole = spmd.use_sharding(small, mesh8)
        with whole:
            y = small[0] + small[1] + small[2]
        with spmd.use_sharding([stored(mesh8)], mesh8):
            whole.renew(y)
        with whole:
            y = y * small[0] * small[1] * small[2]
        assert y[0, 0].item() == 3.0
        assert spmd.metrics.compiles()[-1].collectives["all-gather"] == 2

    def test_small_ones_beside_a_large_one_stay(self, mesh8: spmd.Mesh) -> None:
        """Their memory is next to nothing, and a gather of them is saved; new values are
        gathered."""
        large, small = stored(mesh8), [stored(mesh8, 16, 4) for _ in range(2)]
        whole, x = spmd.use_sharding([large, *small], mesh8), torch.ones(8, 512).to("xla")
        with whole:
            y = (x @ large).mean() + small[0] + small[1]
        with spmd.use_sharding([stored(mesh8)], mesh8):
            whole.renew(y)
        with whole:
            y = y.sum() * ((x @ large).mean() + small[0] * small[1])
        assert y[0, 0].item() == 64 * (512 + 2) * (512 + 1)
        assert spmd.metrics.compiles()[-1].collectives["all-gather"] == 3
        with torch.no_grad():
            small[0].mul_(2)
        with spmd.use_sharding([stored(mesh8)], mesh8):
            whole.renew(x @ large)
        with whole:
            assert (small[0] + small[1])[0, 0].item() == 3.0

    def test_not_on_the_device(self, mesh8: spmd.Mesh) -> None:
        with pytest.raises(
            TypeError, match=r"use_sharding.renew: expected a tensor on xla, got one on cpu"
        ):
            spmd.use_sharding([stored(mesh8)], mesh8).renew(torch.ones(2))
