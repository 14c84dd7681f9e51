"""Played loops that use more of the library: accumulation in one program, offload, ZeRO, tensor
parallel layers, loops, compiled steps; equal bits to the same loops recorded."""

from typing import Any

import played_loops
import pytest
import torch
from played_loops import CLASSES, STEPS, WIDTH, Net, Trace
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

import fsdp
import spmd
from spmd import P


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 0.01)


def sharded(mesh: spmd.Mesh) -> Any:
    return lambda x: spmd.mark_sharding(x, mesh, P("fsdp", *[None] * (x.dim() - 1)))


def units(model: Any, mesh: spmd.Mesh, **how: Any) -> Any:
    for block in model.blocks:
        fsdp.fully_shard(block, mesh=mesh, **how)
    return fsdp.fully_shard(model, mesh=mesh, **how)


class TestFSDP:
    """What stands around FSDP."""

    @pytest.mark.parametrize("reduce", ["each", "once"])
    def test_accumulation_in_a_program(self, reduce: str, mesh8: spmd.Mesh) -> None:
        """`fsdp.accumulate_gradients` calls the model in a loop's body."""

        def loop(trace: Trace) -> None:
            model, place = units(Net().to("xla"), mesh8), sharded(mesh8)
            optimizer = adam(model)
            trace.watch(model, optimizer)
            for _ in range(STEPS):
                batch = tuple(map(place, trace.batch(16)))
                loss = fsdp.accumulate_gradients(
                    model,
                    lambda part: nn.functional.cross_entropy(model(part[0]), part[1]),
                    batch, 2, reduce=reduce,
                )  # fmt: skip
                optimizer.step()
                trace.step(loss)
                optimizer.zero_grad()

        trace = played_loops.compare(loop)
        assert trace.segment(trace.parts[1]).num_replayed >= 4, trace.explain()

    def test_offload(self, mesh8: spmd.Mesh) -> None:
        def loop(trace: Trace) -> None:
            model = units(Net().to("xla"), mesh8, offload_policy=fsdp.CPUOffloadPolicy())
            played_loops.classify(trace, model, adam(model), place=sharded(mesh8))

        played_loops.check_played(loop)

    def test_neighbours(self, mesh8: spmd.Mesh) -> None:
        """reshard_after_forward=2."""

        def loop(trace: Trace) -> None:
            model = units(Net().to("xla"), mesh8, reshard_after_forward=2)
            played_loops.classify(trace, model, adam(model), place=sharded(mesh8))

        played_loops.check_played(loop)

    def test_zero(self, mesh8: spmd.Mesh) -> None:
        """`fsdp.ZeroRedundancyOptimizer`."""

        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = fsdp.ZeroRedundancyOptimizer(
                model.parameters(), torch.optim.AdamW, mesh=mesh8, lr=0.01
            )
            played_loops.classify(trace, model, optimizer, place=sharded(mesh8))

        played_loops.check_played(loop)

    def test_loaded_between_steps(self, mesh8: spmd.Mesh) -> None:
        def loop(trace: Trace) -> None:
            model = units(Net().to("xla"), mesh8)
            saved: list[Any] = []

            def load(number: int) -> None:
                if number == 2:
                    saved.append({k: v.detach().clone() for k, v in model.state_dict().items()})
                elif number == 5:
                    model.load_state_dict(saved[0])

            played_loops.classify(trace, model, adam(model), place=sharded(mesh8), before=load)

        played_loops.check_played(loop)

    def test_its_own_clipping(self, mesh8: spmd.Mesh) -> None:
        def loop(trace: Trace) -> None:
            model: Any = fsdp.FullyShardedDataParallel(Net().to("xla"), mesh=mesh8)
            optimizer, place = adam(model), sharded(mesh8)
            trace.watch(model, optimizer)
            for _ in range(STEPS):
                x, y = map(place, trace.batch())
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                trace.read("norm", model.clip_grad_norm_(0.1))
                optimizer.step()
                trace.step(loss)
                optimizer.zero_grad()

        played_loops.check_played(loop)

    def test_a_frozen_unit_with_adapters(self, mesh8: spmd.Mesh) -> None:
        """Low-rank adapters are trained, and units are frozen."""

        class Adapted(nn.Module):
            def __init__(self, inner: nn.Linear) -> None:
                super().__init__()
                self.inner = inner.requires_grad_(False)
                self.down = nn.Linear(inner.in_features, 2, bias=False)
                self.up = nn.Linear(2, inner.out_features, bias=False)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.inner(x) + self.up(self.down(x))

        def loop(trace: Trace) -> None:
            net = Net().requires_grad_(False)
            for block in net.blocks:
                block.layer = Adapted(block.layer)
            model = units(net.to("xla"), mesh8)
            trained = [one for one in model.parameters() if one.requires_grad]
            optimizer = torch.optim.AdamW(trained, 0.01)
            played_loops.classify(trace, model, optimizer, place=sharded(mesh8))

        played_loops.check_played(loop)


class TestLibrary:
    """Other parts of the library in a played model."""

    def test_tensor_parallel(self, mesh8: spmd.Mesh) -> None:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, CLASSES)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.down(torch.relu(self.up(x)))

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            model = spmd.dtensor.parallelize_module(model, mesh8, plan)
            played_loops.classify(trace, model, adam(model))

        played_loops.check_same_programs(loop)

    def test_recomputed(self) -> None:
        """`spmd.remat`."""

        class Model(Net):
            def forward(self, x: torch.Tensor) -> Any:
                for block in self.blocks:
                    x = spmd.remat(block)(x)
                return self.head(x)

        def loop(trace: Trace) -> None:
            model = Model(dropout=0.25).to("xla")
            played_loops.classify(trace, model, adam(model))

        played_loops.check_played(loop)

    def test_a_shard_map(self, mesh8: spmd.Mesh) -> None:
        class Model(Net):
            def forward(self, x: torch.Tensor) -> Any:
                x = spmd.shard_map(
                    lambda rows: rows * 2, mesh8, in_specs=P("fsdp"), out_specs=P("fsdp")
                )(x)
                return super().forward(x)

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            played_loops.classify(trace, model, adam(model), place=sharded(mesh8))

        played_loops.check_played(loop)

    def test_a_compiled_step(self) -> None:
        """`spmd.compile` of the whole step: the model inside is no segment."""

        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = adam(model)
            trace.watch(model, optimizer)

            @spmd.compile
            def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                return loss

            for _ in range(STEPS):
                trace.read("loss", step(*trace.batch()))
            trace.read("replayed", step.num_replayed)

        played_loops.compare(loop)

    def test_checkpointed_by_the_loop(self) -> None:
        """The loop checkpoints the model's call."""

        def loop(trace: Trace) -> None:
            model = Net(dropout=0.25).to("xla")
            played_loops.classify(
                trace, model, adam(model),
                logits=lambda x: torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False),
            )  # fmt: skip

        played_loops.compare(loop)

    def test_pipelined_reads(self) -> None:
        """The loss of a step is read in the next one."""

        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = adam(model)
            trace.watch(model, optimizer)
            before: Any = None
            for _ in range(12):
                x, y = trace.batch()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                spmd.sync()
                if before is not None:
                    trace.read("loss", before)
                before = loss.detach()

        played_loops.check_played(loop)


class TestMeshes:
    """Two models over meshes of their own in one step."""

    @pytest.mark.parametrize("kind", ["disjoint", "of two axes"])
    def test_two_meshes(self, kind: str, mesh8: spmd.Mesh, mesh2x4: spmd.Mesh) -> None:
        def loop(trace: Trace) -> None:
            meshes = (mesh8, mesh2x4)
            if kind == "disjoint":
                meshes = tuple(
                    spmd.Mesh(range(start, start + 4), (4,), ("fsdp",)) for start in (0, 4)
                )  # type: ignore[assignment]
            models = [units(Net().to("xla"), mesh) for mesh in meshes]
            optimizers = [adam(model) for model in models]
            trace.watch(*models, *optimizers)
            for _ in range(STEPS):
                losses = []
                for model, mesh in zip(models, meshes, strict=True):
                    x, y = map(sharded(mesh), trace.batch())
                    losses.append(nn.functional.cross_entropy(model(x), y))
                for loss in losses:
                    loss.backward()
                for optimizer in optimizers:
                    optimizer.step()
                for loss in losses:
                    trace.step(loss)
                for optimizer in optimizers:
                    optimizer.zero_grad()

        played_loops.check_played(loop)
