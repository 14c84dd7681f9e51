"""P.UNCONSTRAINED: a dim of a spec that is left to the partitioner, while the others are asked
for."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch

import spmd
from spmd import P
from spmd.core.programs import program

U = P.UNCONSTRAINED


def sharded(
    mesh: spmd.Mesh, spec: P, *, mark_input: bool = True
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A loss and two gradients of a layer whose hidden value is marked so."""
    return run(lambda h: spmd.mark_sharding(h, mesh, spec), "xla", mesh if mark_input else None)


def run(
    mark: Callable[[torch.Tensor], torch.Tensor], device: str, mesh: spmd.Mesh | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x, w, v = (torch.randn(*shape) for shape in ((16, 8), (8, 32), (32, 8)))
    x, w, v = (t.to(device).requires_grad_() for t in (x, w, v))
    if mesh is not None:
        spmd.mark_sharding(w, mesh, P(None, "fsdp"))
        spmd.mark_sharding(x, mesh, P("data", None))
    h = mark(torch.tanh(x @ w))
    loss = (h @ v).square().mean()
    loss.backward()
    assert x.grad is not None and w.grad is not None
    return loss.detach().cpu(), x.grad.cpu(), w.grad.cpu()


class TestPublic:
    """The constant as a user writes it."""

    def test_it_is_jax_s_own(self) -> None:
        import jax

        assert P.UNCONSTRAINED is jax.sharding.PartitionSpec.UNCONSTRAINED
        assert repr(P("data", U)) == "P('data', UNCONSTRAINED)"
        assert pickle.loads(pickle.dumps(P(None, U))) == P(None, U) == copy.deepcopy(P(None, U))
        assert P(("data", "fsdp"), U).without("fsdp") == P("data", U)

    def test_in_a_tuple_of_axes_it_is_refused(self) -> None:
        with pytest.raises(TypeError, match="UNCONSTRAINED, got"):
            P(("data", U))


class TestRecorded:
    """A recorded value: the other dims lie as asked, the open one as the partitioner likes."""

    @pytest.mark.parametrize(
        "spec", [P("data", U), P(U, "fsdp"), P(U, U), P(("data", "fsdp"), U)], ids=repr
    )
    @pytest.mark.parametrize("mark_input", [True, False])
    def test_values_and_gradients(self, mesh2x4: spmd.Mesh, spec: P, mark_input: bool) -> None:
        wanted = run(lambda h: h, "cpu", None)
        for got, want in zip(sharded(mesh2x4, spec, mark_input=mark_input), wanted, strict=True):
            torch.testing.assert_close(got, want)

    def test_uneven(self, mesh2x4: spmd.Mesh) -> None:
        x = torch.randn(6, 7, device="xla")
        y = spmd.mark_sharding(x * 2, mesh2x4, P("fsdp", U))
        torch.testing.assert_close(y.cpu(), x.cpu() * 2)

    def test_the_partitioner_chooses_what_the_producer_has(self, mesh2x4: spmd.Mesh) -> None:
        """The weight's columns are split; asked for whole columns they would be gathered, left open
        they stay."""
        x, w = torch.randn(16, 8, device="xla"), torch.randn(8, 32, device="xla")
        spmd.mark_sharding(w, mesh2x4, P(None, "fsdp"))
        h = spmd.mark_sharding(x @ w, mesh2x4, P("data", U))
        before = spmd.get_sharding(h)
        assert before is not None and before.partition_spec(2) == ("data", U)
        spmd.sync()
        after = spmd.get_sharding(h)
        assert after is not None and after.partition_spec(2) == ("data", "fsdp")

    def test_many_steps_are_one_program(self, mesh2x4: spmd.Mesh) -> None:
        w = spmd.mark_sharding(torch.randn(8, 32, device="xla"), mesh2x4, P(None, "fsdp"))
        spmd.sync()
        compiles = []
        for _ in range(4):
            h = spmd.mark_sharding(torch.tanh(w), mesh2x4, P(U, "fsdp"))
            w.sub_(h * 0.1)
            spmd.sync()
            compiles.append(spmd.metrics.num_compiles())
        assert compiles[0] == compiles[-1]

    def test_kept_through_a_write_before_it_runs(self, mesh2x4: spmd.Mesh) -> None:
        h = spmd.mark_sharding(torch.randn(16, 8, device="xla") + 1, mesh2x4, P("data", U))
        h.mul_(torch.ones(16, 8, device="xla"))
        want = h.detach().clone()
        spmd.sync()
        sharding = spmd.get_sharding(h)
        assert sharding is not None and sharding.partition_spec(2)[0] == "data"
        torch.testing.assert_close(h.cpu(), want.cpu())

    def test_a_read_layout(self, mesh2x4: spmd.Mesh) -> None:
        w = spmd.mark_sharding(
            torch.randn(8, 32, device="xla"), mesh2x4, P("data", "fsdp")
        ).requires_grad_()
        with spmd.use_sharding([w], mesh2x4, P(None, U)):
            loss = w.square().sum()
        loss.backward()
        assert w.grad is not None
        torch.testing.assert_close(w.grad.cpu(), 2 * w.detach().cpu())

    def test_stablehlo_says_it(self, mesh2x4: spmd.Mesh) -> None:
        h = spmd.mark_sharding(torch.ones(16, 8, device="xla").cos() * 2, mesh2x4, P("data", U))
        text = spmd.get_stablehlo([h])
        said = "{?}" if spmd.config.partitioner == "shardy" else "unspecified_dims=[1]"
        assert said in text

    def test_a_choice_that_is_not_what_was_asked_is_an_error(
        self, mesh2x4: spmd.Mesh, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(program.Sharding, "allows", lambda self, chosen, rank: not self.is_open)
        h = spmd.mark_sharding(torch.randn(16, 8, device="xla").cos() * 2, mesh2x4, P("data", U))
        with pytest.raises(RuntimeError, match=r"instead of Sharding\(.*UNCONSTRAINED"):
            spmd.sync()
        del h


class TestData:
    """Data is whole in an open dim, wherever it is: no program runs that could choose."""

    @pytest.mark.parametrize("on_device", [False, True])
    def test_whole(self, mesh2x4: spmd.Mesh, on_device: bool) -> None:
        x = torch.arange(32.0).reshape(8, 4).to("xla")
        if on_device:
            spmd.mark_sharding(x, mesh2x4, P(None, "fsdp"))
            x.add_(0)
            spmd.sync()
        spmd.mark_sharding(x, mesh2x4, P("data", U))
        sharding = spmd.get_sharding(x)
        assert sharding is mesh2x4.sharding(P("data", None), 2)
        assert {shard.data.shape for shard in spmd.local_shards(x)} == {torch.Size([4, 4])}
        torch.testing.assert_close(x.cpu(), torch.arange(32.0).reshape(8, 4))

    def test_a_parameter_and_its_gradient(self, mesh2x4: spmd.Mesh) -> None:
        w = torch.nn.Parameter(torch.randn(8, 8).to("xla"))
        spmd.mark_sharding(w, mesh2x4, P(U, "fsdp"))
        w.square().sum().backward()
        spmd.sync()
        assert w.grad is not None
        assert (
            spmd.get_sharding(w.grad)
            is spmd.get_sharding(w)
            is mesh2x4.sharding(P(None, "fsdp"), 2)
        )

    def test_a_constant(self, mesh2x4: spmd.Mesh) -> None:
        x = spmd.mark_sharding(torch.zeros(8, 4, device="xla"), mesh2x4, P("data", U))
        spmd.sync()
        sharding = spmd.get_sharding(x)
        assert sharding is not None and sharding.partition_spec(2) == ("data", None)

    def test_one_device_is_the_same_program(self, mesh1: spmd.Mesh) -> None:
        assert mesh1.sharding(P("fsdp", U), 2) is mesh1.sharding(P(None, None), 2)
