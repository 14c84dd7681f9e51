"""A tour of the library: what a user does, in the order in which they meet it."""

import torch
from torch import nn

import fsdp
import spmd


class TestTour:
    """Plain PyTorch on `xla`: recorded, annotated, partitioned, run."""

    def test_tensors_are_recorded_and_run_when_read(self) -> None:
        x = torch.arange(6.0, device="xla").reshape(2, 3)
        y = (x @ x.T).relu() + 1
        assert y.device == spmd.device() and y.shape == (2, 2)
        assert y.tolist() == [[6.0, 15.0], [15.0, 51.0]]

    def test_autograd(self) -> None:
        x = torch.tensor([1.0, 2.0, 3.0], device="xla", requires_grad=True)
        (x**3).sum().backward()
        assert x.grad.tolist() == [3.0, 12.0, 27.0]

    def test_views_share_memory(self) -> None:
        x = torch.zeros(3, 3, device="xla")
        x.t()[0].add_(1)
        x.diagonal().mul_(5)
        assert x.tolist() == [[5.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]

    def test_a_sharding_stands_in_the_program_before_xla_sees_it(self, mesh2x4: spmd.Mesh) -> None:
        x = spmd.mark_sharding(torch.ones(8, 4, device="xla"), mesh2x4, ("fsdp", None))
        y = spmd.mark_sharding(x * 2, mesh2x4, spmd.P("data", "fsdp"))
        assert (
            spmd.get_sharding(x).text(2)
            == "{devices=[4,1,2]0,4,1,5,2,6,3,7 last_tile_dim_replicate}"
        )
        attribute = (
            'mhlo.sharding = "{devices=[2,4]<=[8]}"'
            if spmd.config.partitioner == "gspmd"
            else '[{"data"}, {"fsdp"}]'
        )
        assert attribute in spmd.get_stablehlo([y])
        assert [shard.data.shape for shard in spmd.local_shards(y)] == [(4, 1)] * 8
        assert (y == 2).all()
        spmd.sync()

    def test_a_model_trains_sharded(self, mesh8: spmd.Mesh) -> None:
        with torch.device("xla"):
            model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
        model = fsdp.FullyShardedDataParallel(
            model, mesh=mesh8, auto_wrap_policy=fsdp.always_wrap_policy
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        x, y = torch.randn(8, 16).to("xla"), torch.randn(8, 8).to("xla")
        losses = []
        before = spmd.metrics.num_compiles()
        for step in range(4):
            for group in optimizer.param_groups:
                # a schedule: another number each step, the same program
                group["lr"] = 1e-2 / (step + 1)
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert losses == sorted(losses, reverse=True)
        # initialisation, and one step
        assert spmd.metrics.num_compiles() - before == 2, spmd.metrics.report()
        first = next(model.parameters())
        for tensor in (first, optimizer.state[first]["exp_avg"]):
            assert spmd.get_sharding(tensor).shard_shape(tensor.shape) == (4, 16)
        initialisation, step = spmd.metrics.compiles()[-2:]
        assert (initialisation.name, step.name) == ("init", "step")
        assert "loss.item()" in step.line and step.argument_bytes > 0


class TestBarrier:
    """The loop `for x in xs: z += x` compiles one program with a barrier inside it, and one per
    length without."""

    def test_inside_the_loop(self) -> None:
        counts = []
        for length in (3, 5, 9):
            before = spmd.metrics.num_compiles()
            z = torch.zeros(7, device="xla")
            for x in torch.ones(length, 7).unbind():
                z += x.to("xla")
                spmd.sync()
            counts.append(spmd.metrics.num_compiles() - before)
            assert z.tolist() == [length] * 7
        assert counts == [1, 0, 0]

    def test_after_the_loop(self) -> None:
        counts = []
        for length in (2, 4, 6, 4):
            before = spmd.metrics.num_compiles()
            z = torch.zeros(11, device="xla")
            for x in torch.ones(length, 11).unbind():
                z += x.to("xla")
            spmd.sync()
            counts.append(spmd.metrics.num_compiles() - before)
            assert z.tolist() == [length] * 11
        assert counts == [1, 1, 1, 0]
