"""`spmd.compile`: a replayed call does what the plain one does, bit for bit."""

import cProfile
import functools
import gc
import pstats
import weakref
from typing import Any

import compiled_steps as steps
import pytest
import torch
from compiled_steps import Training, both, training
from torch import nn

import fsdp
import spmd
from recipes.gpt import GPT, Block, GPTConfig, cross_entropy


class TestSteps:
    """Training steps as people write them."""

    def test_clipping_and_average_of_weights(self) -> None:
        def step(own: Training) -> Any:
            average = [parameter.detach().clone() for parameter in own.model.parameters()]
            own.extra["average"] = average

            def stepped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                own.optimizer.zero_grad()
                loss = nn.functional.cross_entropy(own.model(x), y)
                loss.backward()
                norm = nn.utils.clip_grad_norm_(own.model.parameters(), 0.1)
                own.optimizer.step()
                with torch.no_grad():
                    torch._foreach_lerp_(average, list(own.model.parameters()), 0.1)
                return loss + norm + sum(value.sum() for value in average)

            return stepped

        compiled = both(training, step=step)
        assert compiled.num_recorded <= 3, compiled.explain()

    def test_accumulation_over_micro_batches(self) -> None:
        def step(own: Training) -> Any:
            def stepped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                total = torch.zeros((), device="xla")
                for part, target in zip(x.chunk(2), y.chunk(2), strict=True):
                    loss = nn.functional.cross_entropy(own.model(part), target) / 2
                    loss.backward()
                    total += loss.detach()
                own.optimizer.step()
                own.optimizer.zero_grad(set_to_none=False)
                return total

            return stepped

        compiled = both(training, step=step)
        assert compiled.num_recorded <= 3, compiled.explain()

    @pytest.mark.parametrize("optimizer", ["fused", "sgd", "capturable"])
    def test_a_gradient_scaler(self, optimizer: str) -> None:
        def make() -> Training:
            kinds: dict[str, Any] = {
                "fused": (torch.optim.AdamW, {"fused": True}),
                "capturable": (torch.optim.AdamW, {"capturable": True}),
                "sgd": (torch.optim.SGD, {"momentum": 0.9}),
            }
            kind, kwargs = kinds[optimizer]
            own = training(kind, **kwargs)
            own.extra["scaler"] = torch.amp.GradScaler(
                "xla", init_scale=2.0**127, growth_interval=2
            )
            return own

        compiled = both(
            make, step=lambda own: steps.scaled_step(own, own.extra["scaler"]), count=10
        )
        assert compiled.num_recorded <= 3, compiled.explain()

    def test_a_gradient_scaler_whose_optimizer_counts_on_the_cpu_is_refused(self) -> None:
        plain, own = training(), training()

        def step(own: Training) -> Any:
            return steps.scaled_step(own, torch.amp.GradScaler("xla", init_scale=4.0))

        compiled = spmd.compile(step(own))
        assert steps.run(compiled, 5) == steps.run(step(plain), 5)
        assert any("capturable=True" in cause for cause in compiled.causes), compiled.explain()

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    def test_a_wrapped_model(
        self, mesh8: spmd.Mesh, partitioner: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(spmd.config, "partitioner", partitioner)

        def run(compile: Any) -> tuple[list[float], Any]:
            torch.manual_seed(0)
            model = GPT(
                GPTConfig(layers=3, width=16, heads=2, sequence=8, vocabulary=32, dropout=0.1)
            ).to("xla")
            policy = functools.partial(
                fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block}
            )
            model = fsdp.FullyShardedDataParallel(model, mesh=mesh8, auto_wrap_policy=policy)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

            @compile
            def step(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
                loss = cross_entropy(model(tokens), targets)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                return loss

            torch.manual_seed(1)
            data = torch.randint(0, 32, (6, 8, 9))
            losses = []
            for batch in data:
                tokens, targets = (
                    spmd.mark_sharding(part.to("xla"), mesh8, ("fsdp", None))
                    for part in (batch[:, :-1], batch[:, 1:])
                )
                loss = step(tokens, targets)
                spmd.sync()
                losses.append(loss.item())
            for parameter in model.parameters():
                assert parameter.grad is None
            return losses, step

        expected, _ = run(lambda step: step)
        found, step = run(spmd.compile)
        assert found == expected
        assert step.num_replayed == 4, step.explain()
        # no state of a unit's own changes
        assert not any("_attached" in cause for cause in step.causes), step.causes

    def test_a_step_with_tensor_parallelism(self, mesh2x4: spmd.Mesh) -> None:
        def make() -> Training:
            own = training()
            spmd.mark_sharding(own.model.first.weight, mesh2x4, ("fsdp", None))
            spmd.mark_sharding(own.model.last.weight, mesh2x4, (None, "fsdp"))
            return own

        both(make)


def after_recording() -> None:
    """A function that a profile sees."""


class TestFunctions:
    """Functions that compute without training; methods, modules, results of every form."""

    def test_a_method(self) -> None:
        class Runner:
            def __init__(self, factor: float) -> None:
                self.factor = factor

            @spmd.compile
            def __call__(self, x: torch.Tensor) -> torch.Tensor:
                return x * self.factor

        one, other = Runner(2.0), Runner(3.0)
        x = torch.ones(2, device="xla")
        for _ in range(3):
            assert (one(x)[0].item(), other(x)[0].item()) == (2.0, 3.0)
        one.factor = 5.0
        assert (one(x)[0].item(), other(x)[0].item()) == (5.0, 3.0)

    def test_a_module(self) -> None:
        model = steps.Net(0.0).to("xla").eval()
        compiled = spmd.compile(model)
        x = torch.randn(4, 4).to("xla")
        with torch.inference_mode():
            expected = model(x).cpu()
            assert all(torch.equal(compiled(x).cpu(), expected) for _ in range(4))
        assert compiled.num_replayed >= 2, compiled.explain()

    def test_a_cache_that_is_written_a_token_a_call(self) -> None:
        cache = torch.zeros(8, 4, device="xla")

        @spmd.compile
        def token(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
            cache.index_copy_(0, place, x)
            return cache.sum(0)

        expected = torch.zeros(4)
        for i in range(8):
            x = torch.full((1, 4), float(i))
            expected += x[0]
            assert torch.equal(token(x.to("xla"), torch.tensor([i]).to("xla")).cpu(), expected)
        assert token.num_replayed >= 6, token.explain()

    def test_results_that_are_views_of_each_other(self) -> None:
        @spmd.compile
        def parts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = x * 2
            return y, y[0], y.t()

        x = torch.arange(6.0).reshape(2, 3).to("xla")
        for _ in range(3):
            whole, row, turned = parts(x)
            row += 1
            assert torch.equal(turned.cpu(), whole.cpu().t()) and whole[0, 0].item() == 1.0
        assert parts.num_replayed == 2, parts.explain()

    def test_a_compiled_function_inside_another(self) -> None:
        inner = spmd.compile(lambda x: x * 2)
        outer = spmd.compile(lambda x: inner(x) + 1)
        x = torch.ones(2, device="xla")
        assert [outer(x)[0].item() for _ in range(3)] == [3.0] * 3
        assert outer.num_replayed == 2 and inner.num_replayed == 0

    def test_an_error_of_the_function(self) -> None:
        fails = True

        @spmd.compile
        def function(x: torch.Tensor) -> torch.Tensor:
            if fails:
                raise KeyError("no such key")
            return x * 2

        x = torch.ones(2, device="xla")
        with pytest.raises(KeyError, match="no such key"):
            function(x)
        fails = False
        assert [function(x)[0].item() for _ in range(3)] == [2.0] * 3

    def test_a_function_in_a_plan(self) -> None:
        own = training()
        compiled = spmd.compile(own.step)
        x, y = steps.batches(1)[0]
        plan = spmd.plan(compiled, x.to("xla"), y.to("xla"))
        assert plan.parameters == sum(p.nbytes for p in own.model.parameters())
        assert compiled.num_recorded == 0

    def test_a_warm_function_compiles_nothing(self) -> None:
        own = training(dropout=0.0)
        compiled = spmd.compile(own.step)
        x, y = steps.batches(1, size=6)[0]
        assert (
            compiled.warm(
                torch.empty(6, 4, device="meta"), torch.empty(6, dtype=torch.long, device="meta")
            )
            > 0
        )
        before = spmd.metrics.num_compiles()
        for _ in range(3):
            compiled(x.to("xla"), y.to("xla"))
        assert spmd.metrics.num_compiles() == before
        assert compiled.num_replayed == 1, compiled.explain()

    def test_nothing_is_held_but_the_state(self) -> None:
        compiled = spmd.compile(lambda x: x * 2)
        refs = []
        for _ in range(3):
            x = torch.ones(2, device="xla")
            refs.append(weakref.ref(x._storage))
            compiled(x)
        del x
        gc.collect()
        assert [ref() for ref in refs] == [None] * 3

    def test_arguments_that_are_refused(self) -> None:
        with pytest.raises(TypeError, match="expected a function, got int"):
            spmd.compile(3)
        with pytest.raises(ValueError, match="has no argument 'speed'"):
            spmd.compile(lambda x: x, static_argnames="speed")

    def test_options_of_the_compiler(self) -> None:
        compiled = spmd.compile(
            lambda x: x * 2, compiler_options={"xla_cpu_enable_fast_math": False}
        )
        x = torch.ones(2, device="xla")
        before = spmd.config.compiler_options
        assert [compiled(x)[0].item() for _ in range(3)] == [2.0] * 3
        assert spmd.config.compiler_options == before
        unknown = spmd.compile(lambda x: x * 3, compiler_options={"xla_no_such_option": 1})
        with pytest.raises(ValueError, match="xla_no_such_option"):
            unknown(x)
        assert compiled.num_replayed == 2, compiled.explain()

    def test_under_a_profiler_of_python(self) -> None:
        """`python -m cProfile` goes on with its notes after a call was recorded."""
        with cProfile.Profile() as profile:
            compiled = spmd.compile(lambda x: x + 1)
            for _ in range(3):
                result = compiled(torch.ones(2, device="xla"))
                after_recording()
        assert result.tolist() == [2.0, 2.0] and compiled.num_replayed >= 1
        calls = {name: row[0] for (_, _, name), row in pstats.Stats(profile).stats.items()}  # type: ignore[attr-defined]
        assert calls["after_recording"] == 3
