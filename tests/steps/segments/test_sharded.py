"""Played loops over eight devices: FSDP, marks, contexts; equal bits to the same loops recorded."""

import contextlib
import functools
from typing import Any

import played_loops
import pytest
import torch
from played_loops import STEPS, WIDTH, Block, Net, Trace
from torch import nn
from torch.distributed.fsdp import MixedPrecision
from torch.utils.checkpoint import checkpoint

import fsdp
import spmd
from spmd import P


def wrapped(model: nn.Module, mesh: spmd.Mesh, **how: Any) -> Any:
    policy = functools.partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block})
    return fsdp.FullyShardedDataParallel(model, mesh=mesh, auto_wrap_policy=policy, **how)


def in_place(model: Any, mesh: spmd.Mesh, **how: Any) -> Any:
    for block in model.blocks:
        fsdp.fully_shard(block, mesh=mesh, **how)
    return fsdp.fully_shard(model, mesh=mesh, **how)


WRAPS = {"FullyShardedDataParallel": wrapped, "fully_shard": in_place}


def sharded(mesh: spmd.Mesh) -> Any:
    """Shards a batch."""

    def place(x: torch.Tensor) -> torch.Tensor:
        return spmd.mark_sharding(x, mesh, P("fsdp", *[None] * (x.dim() - 1)))

    return place


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 0.01)


@pytest.fixture(params=WRAPS)
def wrap(request: pytest.FixtureRequest) -> Any:
    return WRAPS[request.param]


class TestFSDP:
    """Units are gathered, and gradients reduced, as in the recorded loop."""

    @pytest.mark.partitioned
    def test_units(self, wrap: Any, mesh8: spmd.Mesh) -> None:
        def loop(trace: Trace) -> None:
            model = wrap(Net().to("xla"), mesh8)
            played_loops.classify(trace, model, adam(model), place=sharded(mesh8))

        played_loops.check_same_programs(loop)

    def test_batches_without_a_mark(self, wrap: Any, mesh8: spmd.Mesh) -> None:
        def loop(trace: Trace) -> None:
            model = wrap(Net().to("xla"), mesh8)
            played_loops.classify(trace, model, adam(model))

        played_loops.check_same_programs(loop)

    def test_dropout(self, wrap: Any, mesh8: spmd.Mesh) -> None:
        def loop(trace: Trace) -> None:
            model = wrap(Net(dropout=0.25).to("xla"), mesh8)
            played_loops.classify(trace, model, adam(model), place=sharded(mesh8))

        played_loops.check_same_programs(loop)

    def test_replicas(self, wrap: Any, mesh2x4: spmd.Mesh) -> None:
        def loop(trace: Trace) -> None:
            model = wrap(Net().to("xla"), mesh2x4)
            played_loops.classify(trace, model, adam(model), place=lambda x: spmd.mark_sharding(
                x, mesh2x4, P(("data", "fsdp"), *[None] * (x.dim() - 1))
            ))  # fmt: skip

        played_loops.check_same_programs(loop)

    def test_kept_gathered(self, wrap: Any, mesh8: spmd.Mesh) -> None:
        """reshard_after_forward=False, or ZeRO-2."""

        def loop(trace: Trace) -> None:
            if wrap is wrapped:
                strategy = torch.distributed.fsdp.ShardingStrategy.SHARD_GRAD_OP
                model = wrap(Net().to("xla"), mesh8, sharding_strategy=strategy)
            else:
                model = wrap(Net().to("xla"), mesh8, reshard_after_forward=False)
            played_loops.classify(trace, model, adam(model), place=sharded(mesh8))

        played_loops.check_same_programs(loop)

    def test_accumulated_by_synced_micro_batches(self, wrap: Any, mesh8: spmd.Mesh) -> None:
        def loop(trace: Trace) -> None:
            model = wrap(Net().to("xla"), mesh8)
            optimizer, place = adam(model), sharded(mesh8)
            trace.watch(model, optimizer)
            for _ in range(STEPS):
                for _ in range(2):
                    x, y = map(place, trace.batch())
                    loss = nn.functional.cross_entropy(model(x), y) / 2
                    loss.backward()
                    spmd.sync()
                optimizer.step()
                trace.step(loss)
                optimizer.zero_grad()

        played_loops.check_same_programs(loop)

    def test_activation_checkpoints(self, wrap: Any, mesh8: spmd.Mesh) -> None:
        class Model(Net):
            def forward(self, x: torch.Tensor) -> Any:
                for block in self.blocks:
                    x = checkpoint(block, x, use_reentrant=False)
                return self.head(x)

        def loop(trace: Trace) -> None:
            model = wrap(Model(dropout=0.25).to("xla"), mesh8)
            played_loops.classify(trace, model, adam(model), place=sharded(mesh8))

        played_loops.check_same_programs(loop)

    def test_a_layer_that_nothing_uses(self, wrap: Any, mesh8: spmd.Mesh) -> None:
        """It is gathered with the others."""

        def loop(trace: Trace) -> None:
            net = Net()
            net.unused = nn.Linear(WIDTH, WIDTH)
            model = wrap(net.to("xla"), mesh8)
            played_loops.classify(trace, model, adam(model), place=sharded(mesh8))

        played_loops.check_same_programs(loop)

    @pytest.mark.parametrize("which", ["hidden", "turned", "all"])
    def test_results_of_results(self, which: str, wrap: Any, mesh8: spmd.Mesh) -> None:
        """One is made of another one, and two share memory."""

        class Model(Net):
            def forward(self, x: torch.Tensor) -> Any:
                hidden = self.blocks[0](x)
                y = self.blocks[1](hidden)
                return {"hidden": hidden, "y": y, "turned": y.t(), "detached": y.detach()}

        def loop(trace: Trace) -> None:
            model = wrap(Model().to("xla"), mesh8)

            def logits(x: torch.Tensor) -> torch.Tensor:
                results = model(x)
                trace.read("detached", results["detached"])
                each = {"hidden": results["hidden"], "turned": results["turned"].t()}
                return sum(each.values()) if which == "all" else each[which]

            place = sharded(mesh8)
            played_loops.classify(trace, model, adam(model), place=place, logits=logits)

        played_loops.check_played(loop)

    def test_a_read_before_backward(self, wrap: Any, mesh8: spmd.Mesh) -> None:
        """A program ends there: backward gathers again, and what forward returns is a view."""

        class Model(Net):
            def forward(self, x: torch.Tensor) -> Any:
                return self.blocks[1](self.blocks[0](x)).unsqueeze(1).squeeze(1)

        def loop(trace: Trace) -> None:
            model, place = wrap(Model().to("xla"), mesh8), sharded(mesh8)
            optimizer = adam(model)
            trace.watch(model, optimizer)
            for _ in range(STEPS):
                x, y = map(place, trace.batch())
                logits = model(x)
                trace.read("hits", (logits.argmax(dim=1) == y).sum())
                loss = nn.functional.cross_entropy(logits, y)
                loss.backward()
                optimizer.step()
                trace.step(loss)
                optimizer.zero_grad()

        played_loops.check_same_programs(loop)

    def test_checkpointed_modules(self, wrap: Any, mesh8: spmd.Mesh) -> None:
        """fsdp.checkpoint_module."""

        def loop(trace: Trace) -> None:
            net = Net().to("xla")
            for place, block in enumerate(net.blocks):
                net.blocks[place] = fsdp.checkpoint_module(block)
            model = fsdp.FullyShardedDataParallel(net, mesh=mesh8)
            played_loops.classify(trace, model, adam(model), place=sharded(mesh8))

        played_loops.check_same_programs(loop)

    def test_clipped_norm(self, wrap: Any, mesh8: spmd.Mesh) -> None:
        def loop(trace: Trace) -> None:
            model = wrap(Net().to("xla"), mesh8)
            optimizer, place = adam(model), sharded(mesh8)
            trace.watch(model, optimizer)
            for _ in range(STEPS):
                x, y = map(place, trace.batch())
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                trace.read("norm", nn.utils.clip_grad_norm_(model.parameters(), 0.1))
                optimizer.step()
                trace.step(loss)
                optimizer.zero_grad()

        played_loops.check_same_programs(loop)

    def test_evaluations(self, wrap: Any, mesh8: spmd.Mesh) -> None:
        def loop(trace: Trace) -> None:
            model, place = wrap(Net(dropout=0.25).to("xla"), mesh8), sharded(mesh8)

            def evaluate(_: int) -> None:
                model.eval()
                with torch.no_grad():
                    trace.read("evaluation", model(place(trace.batch()[0])))
                model.train()

            played_loops.classify(trace, model, adam(model), place=place, after=evaluate)

        played_loops.check_same_programs(loop)

    def test_frozen_parameters(self, wrap: Any, mesh8: spmd.Mesh) -> None:
        def loop(trace: Trace) -> None:
            net = Net().to("xla")
            net.blocks[0].requires_grad_(False)
            model = wrap(net, mesh8)
            played_loops.classify(trace, model, adam(model), place=sharded(mesh8))

        played_loops.check_same_programs(loop)

    def test_full_parameters_summoned(self, mesh8: spmd.Mesh) -> None:
        def loop(trace: Trace) -> None:
            model = wrapped(Net().to("xla"), mesh8)

            def look(_: int) -> None:
                with model.summon_full_params(model):
                    for name, weight in model.named_parameters():
                        trace.read(name, weight)

            played_loops.classify(trace, model, adam(model), place=sharded(mesh8), after=look)

        played_loops.check_same_programs(loop)

    def test_a_changed_batch(self, wrap: Any, mesh8: spmd.Mesh) -> None:
        """Sizes alternate."""

        def loop(trace: Trace) -> None:
            model, place = wrap(Net().to("xla"), mesh8), sharded(mesh8)
            optimizer = adam(model)
            trace.watch(model, optimizer)
            for number in range(12):
                x, y = map(place, trace.batch(16 if number % 2 else 8))
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                trace.step(loss)
                optimizer.zero_grad()

        played_loops.check_same_programs(loop)


class TestMarks:
    """`mark_sharding` and `use_sharding` inside and outside of a module."""

    @pytest.mark.partitioned
    def test_marks_of_activations(self, mesh8: spmd.Mesh) -> None:
        class Model(Net):
            def forward(self, x: torch.Tensor) -> Any:
                x = spmd.mark_sharding(self.blocks[0](x), mesh8, P(None, "fsdp"))
                return self.head(spmd.mark_sharding(self.blocks[1](x), mesh8, P("fsdp", None)))

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            played_loops.classify(trace, model, adam(model), place=sharded(mesh8))

        played_loops.check_same_programs(loop)

    @pytest.mark.partitioned
    def test_marks_of_weights(self, mesh2x4: spmd.Mesh) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            for block in model.blocks:
                spmd.mark_sharding(block.layer.weight, mesh2x4, P("fsdp", None))
            played_loops.classify(trace, model, adam(model), place=lambda x: spmd.mark_sharding(
                x, mesh2x4, P("data", *[None] * (x.dim() - 1))
            ))  # fmt: skip

        played_loops.check_same_programs(loop)

    def test_marks_of_an_input_inside(self, mesh8: spmd.Mesh) -> None:
        class Model(Net):
            def forward(self, x: torch.Tensor) -> Any:
                spmd.mark_sharding(x, mesh8, P("fsdp", None))
                return super().forward(x)

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            played_loops.classify(trace, model, adam(model))

        played_loops.check_same_programs(loop)

    def test_marks_of_results(self, mesh8: spmd.Mesh) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            played_loops.classify(
                trace, model, adam(model),
                logits=lambda x: spmd.mark_sharding(model(x), mesh8, P("fsdp", None)),
            )  # fmt: skip

        played_loops.check_same_programs(loop)

    def test_marks_that_change(self, mesh8: spmd.Mesh) -> None:
        """A batch is sharded, then another way, then not at all."""

        def loop(trace: Trace) -> None:
            model, number = Net().to("xla"), iter(range(100))

            def place(x: torch.Tensor) -> torch.Tensor:
                if x.dim() == 1:
                    return x
                spec = [P("fsdp", None), P(None, "fsdp"), P(None, None)][next(number) // 6]
                return spmd.mark_sharding(x, mesh8, spec)

            played_loops.classify(trace, model, adam(model), steps=18, place=place)

        played_loops.check_same_programs(loop)

    def test_a_weight_marked_between_steps(self, mesh8: spmd.Mesh) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")

            def mark(number: int) -> None:
                if number == 6:
                    spmd.mark_sharding(model.head.weight, mesh8, P(None, "fsdp"))

            played_loops.classify(
                trace, model, adam(model), steps=12, place=sharded(mesh8), before=mark
            )

        played_loops.check_same_programs(loop)

    def test_a_context(self, mesh8: spmd.Mesh) -> None:
        """`use_sharding` inside: stored sharded, read replicated."""

        class Model(Net):
            def forward(self, x: torch.Tensor) -> Any:
                with spmd.use_sharding([block.layer.weight for block in self.blocks], mesh8):
                    return super().forward(x)

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            for block in model.blocks:
                spmd.mark_sharding(block.layer.weight, mesh8, P("fsdp", None))
            played_loops.classify(trace, model, adam(model), place=sharded(mesh8))

        played_loops.check_same_programs(loop)

    def test_a_context_around_the_loop(self, mesh8: spmd.Mesh) -> None:
        """It is recorded as before."""

        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            weights = [block.layer.weight for block in model.blocks]
            for weight in weights:
                spmd.mark_sharding(weight, mesh8, P("fsdp", None))
            with spmd.use_sharding(weights, mesh8):
                played_loops.classify(trace, model, adam(model), place=sharded(mesh8))

        trace = played_loops.compare(loop)
        for part in trace.parts:
            segment = trace.segment(part)
            assert segment.num_replayed == 0 and "inside spmd.use_sharding" in segment.explain()


class TestAccumulation:
    """Gradients of narrow weights, and of several batches."""

    @pytest.mark.parametrize("reduced", [torch.float32, torch.bfloat16])
    def test_mixed_precision(self, wrap: Any, reduced: torch.dtype, mesh8: spmd.Mesh) -> None:
        def loop(trace: Trace) -> None:
            if wrap is wrapped:
                precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=reduced)
                model = wrap(Net().to("xla"), mesh8, mixed_precision=precision)
            else:
                precision = fsdp.MixedPrecisionPolicy(torch.bfloat16, reduced)
                model = wrap(Net().to("xla"), mesh8, mp_policy=precision)
            played_loops.classify(trace, model, adam(model), place=sharded(mesh8))

        played_loops.check_same_programs(loop)

    @pytest.mark.parametrize("is_synced", [True, False])
    def test_accumulated(self, wrap: Any, is_synced: bool, mesh8: spmd.Mesh) -> None:
        """Two micro batches; the first one without a reduction: no_sync."""

        def loop(trace: Trace) -> None:
            model = wrap(Net().to("xla"), mesh8)
            optimizer, place = adam(model), sharded(mesh8)
            trace.watch(model, optimizer)
            for _ in range(STEPS):
                for micro_batch in range(2):
                    x, y = map(place, trace.batch())
                    is_last = is_synced or micro_batch == 1
                    if wrap is wrapped:
                        context = contextlib.nullcontext() if is_last else model.no_sync()
                    else:
                        model.set_requires_gradient_sync(is_last)
                        context = contextlib.nullcontext()
                    with context:
                        loss = nn.functional.cross_entropy(model(x), y) / 2
                        loss.backward()
                optimizer.step()
                trace.step(loss)
                optimizer.zero_grad()

        played_loops.check_same_programs(loop, but=2)

    def test_no_sync_between_steps(self, wrap: Any, mesh8: spmd.Mesh) -> None:
        """Four steps are a graph."""

        def loop(trace: Trace) -> None:
            model, place = wrap(Net().to("xla"), mesh8), sharded(mesh8)
            optimizer = adam(model)
            trace.watch(model, optimizer)
            losses = []
            for number in range(12):
                x, y = map(place, trace.batch())
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.detach())
                if number % 4 == 3:
                    trace.read("loss", loss)
            for loss in losses:
                trace.read("loss", loss)

        played_loops.check_played(loop, but=1)


def test_the_random_stream_goes_on(wrap: Any, mesh8: spmd.Mesh) -> None:
    """The wrapper marks the batch, so a call is recorded twice; its draws are drawn once."""

    def loop(trace: Trace) -> None:
        model = wrap(Net(dropout=0.25).to("xla"), mesh8)
        played_loops.classify(trace, model, adam(model))
        trace.read("draw", torch.rand(3, device="xla"))

    played_loops.check_same_programs(loop)
