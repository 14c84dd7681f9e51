"""Layers over the stages of a pipeline: values, gradients and steps of a loop on one device, and
where a layer's state lies."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import check
from torch import nn

import fsdp
import spmd
from spmd import P, ShardingRules
from spmd.core import storage_of
from spmd.core.lower.lower import LoweringError

from .staged import WIDTH, Model, loss_of

ROWS = 16


@pytest.fixture(autouse=True)
def micro_batches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    spmd.sync()
    monkeypatch.setattr(spmd.config, "micro_batches", 0)
    yield
    spmd.sync()


def staged(model: nn.Module, sizes: tuple[int, ...], rules: Any = (), **options: Any) -> nn.Module:
    mesh = spmd.Mesh(range(8), sizes, ("stage", "fsdp", "tensor")[: len(sizes)])
    table = ShardingRules(rules, units=["layers.*"], stages="stage", **options)
    model = copy.deepcopy(model).to("xla")
    table.apply(model, mesh)
    return model


CLOSE = 1e-12  # in float64, of the largest value of a tensor


def check_gradients(model: nn.Module, expected: nn.Module) -> None:
    for actual, parameter in zip(model.parameters(), expected.parameters(), strict=True):
        assert actual.grad is not None and parameter.grad is not None
        check(actual.grad, parameter.grad)
        if parameter.dtype == torch.float64:
            difference = (actual.grad.cpu() - parameter.grad).abs().max()
            assert difference <= CLOSE * parameter.grad.abs().max()


TENSOR = {"layers.*.up.weight": P("tensor", None), "layers.*.down.weight": P(None, "tensor")}


# Pairwise: sizes of stage, fsdp and tensor, layers, micro-batches, partitioner.
CASES = [
    ((8, 1), 8, None, "gspmd"),
    ((4, 2), 8, 2, "shardy"),
    ((2, 4), 4, 1, "gspmd"),
    ((2, 2, 2), 4, 4, "shardy"),
    ((2, 2, 2), 6, None, "gspmd"),
    ((4, 2), 6, 8, "gspmd"),
    ((4, 2), 3, 4, "shardy"),
]


class TestTraining:
    @pytest.mark.parametrize(("sizes", "layers", "count", "partitioner"), CASES)
    def test_steps(
        self,
        sizes: tuple[int, ...],
        layers: int,
        count: int | None,
        partitioner: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Losses and gradients of three steps of AdamW, in float64; uneven layers, too."""
        monkeypatch.setattr(spmd.config, "partitioner", partitioner)
        expected = Model(layers).double()
        rules = TENSOR if len(sizes) == 3 else ()
        model = staged(expected, sizes, rules, micro_batches=count)
        optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (model, expected)]
        for _ in range(3):
            x = torch.randn(ROWS, 8, dtype=torch.float64)
            losses = loss_of(model, x.to("xla")), loss_of(expected, x)
            for loss in losses:
                loss.backward()
            check(*losses)
            check_gradients(model, expected)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    def test_an_optimizer_in_front(self) -> None:
        """A loss that is read before the optimizer's step: the step is in the program of the next
        loss, whose layers are stages, too."""
        expected = Model(4).double()
        model = staged(expected, (4, 2))
        optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (model, expected)]
        spmd.metrics.clear()
        for _ in range(3):
            x = torch.randn(ROWS, 8, dtype=torch.float64)
            losses = loss_of(model, x.to("xla")), loss_of(expected, x)
            for loss in losses:
                loss.backward()
            check(*losses)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        notes = [dict(record.passes) for record in spmd.metrics.compiles()]
        assert [note["stages"] for note in notes if "stages" in note] == ["2 loops in stages"] * 2

    def test_accumulation(self) -> None:
        """Gradients of two batches, each a sum over its own micro-batches."""
        expected = Model(4).double()
        model = staged(expected, (4, 2))
        for _ in range(2):
            x = torch.randn(ROWS, 8, dtype=torch.float64)
            loss_of(model, x.to("xla")).backward()
            loss_of(expected, x).backward()
            spmd.sync()
        check_gradients(model, expected)

    def test_dropout(self) -> None:
        """The elements that are dropped are those of one device."""
        on_cpu = Model(4, p=0.4)
        models = on_cpu.to("xla"), staged(on_cpu, (4, 2), micro_batches=4)
        x, losses = torch.randn(ROWS, 8).to("xla"), []
        for model in models:
            torch.manual_seed(5)
            losses.append(loss_of(model, x))
            losses[-1].backward()
        check(losses[1], losses[0].cpu())
        for actual, parameter in zip(models[1].parameters(), models[0].parameters(), strict=True):
            check(actual.grad, parameter.grad.cpu())

    def test_checkpointed_layers(self) -> None:
        expected = Model(4).double()
        model = staged(expected, (4, 2), checkpoint=["layers.*"])
        x = torch.randn(ROWS, 8, dtype=torch.float64)
        loss_of(model, x.to("xla")).backward()
        loss_of(expected, x).backward()
        check_gradients(model, expected)

    def test_frozen_first_layer_and_evaluation(self) -> None:
        """Backward ends behind the first layer; a pass without gradients is a pipeline, too."""
        expected = Model(4).double()
        for module in (expected.embed, expected.layers[0]):
            module.requires_grad_(False)
        model = staged(expected, (4, 2))
        x = torch.randn(ROWS, 8, dtype=torch.float64)
        loss_of(model, x.to("xla")).backward()
        loss_of(expected, x).backward()
        for actual, parameter in zip(model.parameters(), expected.parameters(), strict=True):
            assert (actual.grad is None) == (parameter.grad is None)
            if parameter.grad is not None:
                check(actual.grad, parameter.grad)
        with torch.no_grad():
            check(loss_of(model, x.to("xla")), loss_of(expected, x))

    def test_mixed_precision(self) -> None:
        """Gradients are summed in float32, and are no farther from it than those of FSDP alone."""
        on_cpu, x = Model(4), torch.randn(ROWS, 8)
        policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        mesh, models = spmd.Mesh(range(8), (4, 2), ("stage", "fsdp")), []
        for stages in ("stage", None):
            models.append(copy.deepcopy(on_cpu).to("xla"))
            table = ShardingRules((), units=["layers.*"], stages=stages)
            table.apply(models[-1], mesh, mp_policy=policy)
            loss_of(models[-1], x.to("xla")).backward()
        loss_of(on_cpu, x).backward()
        distances = [
            torch.stack(
                [
                    (actual.grad.cpu() - parameter.grad).norm() / parameter.grad.norm()
                    for actual, parameter in zip(
                        model.parameters(), on_cpu.parameters(), strict=True
                    )
                ]
            ).mean()
            for model in models
        ]
        assert {parameter.grad.dtype for parameter in models[0].parameters()} == {torch.float32}
        assert 0 < distances[0] < 1.5 * distances[1]


class TestState:
    def test_a_device_holds_its_layers(self) -> None:
        """Weights, gradients and the optimizer's state, also where backward and the optimizer are
        programs of their own."""
        model = staged(Model(8), (4, 2))
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for _ in range(2):
            loss_of(model, torch.randn(ROWS, 8).to("xla")).backward()
            spmd.sync()
            optimizer.step()
            spmd.sync()
        for parameter in model.layers.parameters():
            state = optimizer.state[parameter]
            for tensor in (parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"]):
                store = storage_of(tensor).value.store
                assert store is not None and store.sharding.spec.stack == ("stage",)
                (first, *_) = store.buffer.addressable_shards
                assert first.data.shape[0] == store.buffer.shape[0] // 4

    @pytest.mark.parametrize("sizes", [(2, 4), (8, 1), None])
    def test_resumed_elsewhere(self, sizes: tuple[int, int] | None, tmp_path: Path) -> None:
        """A step saved on four stages goes on on another number of stages, and on none."""
        on_cpu, batches = Model(8).double(), torch.randn(3, ROWS, 8, dtype=torch.float64)

        def train(model: nn.Module, optimizer: torch.optim.Optimizer, count: slice) -> float:
            for x in batches[count]:
                loss = loss_of(model, x.to("xla"))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            return loss.item()

        model = staged(on_cpu, (4, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        train(model, optimizer, slice(2))
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        spmd.CheckpointManager(tmp_path).save(2, state)
        expected = train(model, optimizer, slice(2, 3))

        other = on_cpu.to("xla") if sizes is None else staged(Model(8).double(), sizes)
        other_optimizer = torch.optim.AdamW(other.parameters(), lr=1e-2)
        train(other, other_optimizer, slice(1))  # makes the state that is restored
        state = {"model": other.state_dict(), "optimizer": other_optimizer.state_dict()}
        spmd.CheckpointManager(tmp_path).restore(state)
        other_optimizer.load_state_dict(state["optimizer"])
        assert train(other, other_optimizer, slice(2, 3)) == pytest.approx(expected, rel=1e-12)

    def test_a_mark_keeps_the_stage(self) -> None:
        model = staged(Model(4), (4, 2))
        weight = model.layers[1].up.weight
        spmd.mark_sharding(weight, spmd.Mesh(range(8), (4, 2), ("stage", "fsdp")), P(None, "fsdp"))
        assert spmd.get_sharding(weight).spec.stack == ("stage",)


class TestOwnStack:
    @pytest.mark.parametrize("count", [0, 4, 32])
    def test_scan(self, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """`P("stage")` on the leading dim of a stack that `spmd.scan` reads."""
        monkeypatch.setattr(spmd.config, "micro_batches", count)
        weights, x = torch.randn(8, WIDTH, WIDTH) / 4, torch.randn(32, WIDTH)
        expected, carry = weights.clone().requires_grad_(), x
        for row in expected:
            carry = torch.tanh(carry @ row)
        carry.square().mean().backward()
        stack = nn.Parameter(weights.to("xla"))
        spmd.mark_sharding(stack, spmd.Mesh(range(8), (8,), ("stage",)), P("stage", None, None))
        result, _ = spmd.scan(lambda h, row: (torch.tanh(h @ row), None), x.to("xla"), stack)
        result.square().mean().backward()
        check(result, carry)
        check(stack.grad, expected.grad)


class MixesRows(nn.Module):
    def __init__(self, p: float):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.linear(x - x.mean(0))


class TestRefused:
    def test_layers_that_mix_rows(self) -> None:
        model = staged(Model(4, layer=MixesRows), (4, 2))
        with pytest.raises(
            LoweringError, match=r"aten.mean.dim at .*test_stages.*computes along the batch"
        ):
            loss_of(model, torch.randn(ROWS, 8).to("xla")).item()

    def test_layers_that_differ(self) -> None:
        """Two layers are no loop."""
        model = staged(Model(2), (4, 2))
        with pytest.raises(LoweringError, match=r"at .*staged.* outside of a loop over 3"):
            loss_of(model, torch.randn(ROWS, 8).to("xla")).item()

    def test_rules(self) -> None:
        with pytest.raises(ValueError, match=r"stages='stage' splits units; name the layers"):
            ShardingRules((), stages="stage")
        with pytest.raises(ValueError, match="micro_batches=4; expected a number from 1 on"):
            ShardingRules((), units=["layers.*"], micro_batches=4)
        mesh = spmd.Mesh(range(8), (8,), ("stages",))
        table = ShardingRules((), units=["layers.*"], stages="stage")
        with pytest.raises(ValueError, match=r"'stage' is not in the mesh .axes: stages"):
            table.apply(Model(4), mesh)

    def test_in_a_file(self) -> None:
        table = ShardingRules((), units=["layers.*"], stages="stage", micro_batches=8)
        assert ShardingRules.from_toml(table.to_toml()) == table


class TestOperations:
    """Products a device, as executed: ticks without a micro-batch compute nothing. Eight stages of
    a layer each, 32 micro-batches."""

    LENGTH, COUNT = 16, 32

    def check_share(self, staged: spmd.Plan, one: spmd.Plan, head: float) -> None:
        share = (staged.flops - head / 8) / ((one.flops - head) / 8)
        print(f"{share:.3f} of an eighth of the layers' operations, and the head's")
        assert 0.9 < share <= 1.1

    @pytest.mark.parametrize("form", ["scan", "a Python loop"])
    def test_own_stack(self, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "micro_batches", self.COUNT)
        mesh = spmd.Mesh(range(8), (8,), ("stage",))

        def planned(is_staged: bool) -> spmd.Plan:
            stack = nn.Parameter(torch.randn(8, 64, 64, device="xla") / 8)
            if is_staged:
                spmd.mark_sharding(stack, mesh, P("stage", None, None))

            def step(x: torch.Tensor) -> torch.Tensor:
                h = x.to("xla")
                if is_staged:
                    spmd.mark_sharding(h, mesh, P("stage", None, None))
                if form == "scan":
                    h, _ = spmd.scan(lambda h, row: (torch.tanh(h @ row), None), h, stack)
                for i in range(0 if form == "scan" else 8):
                    h = torch.tanh(h @ stack[i])
                loss = h.square().mean()
                loss.backward()
                return loss

            return spmd.plan(step, torch.zeros(self.COUNT, self.LENGTH, 64))

        self.check_share(planned(True), planned(False), 0)

    def test_llama(self) -> None:
        transformers = pytest.importorskip("transformers")
        mesh = spmd.Mesh(range(8), (8,), ("stage",))

        def planned(layers: int, stages: str | None) -> spmd.Plan:
            config = transformers.LlamaConfig(
                hidden_size=64, intermediate_size=128, num_hidden_layers=layers, vocab_size=64,
                num_attention_heads=4, num_key_value_heads=2,
            )  # fmt: skip
            model = transformers.LlamaForCausalLM(config).to("xla")
            if stages:
                table = ShardingRules(
                    (), units=["model.layers.*"], stages=stages, micro_batches=self.COUNT
                )
                table.apply(model, mesh)

            def step(ids: torch.Tensor) -> torch.Tensor:
                ids = ids.to("xla")
                if stages:
                    spmd.mark_sharding(ids, mesh, P(stages, None))
                loss = model(input_ids=ids, labels=ids).loss
                loss.backward()
                return loss

            return spmd.plan(step, torch.zeros(self.COUNT, self.LENGTH, dtype=torch.long))

        head, staged = planned(0, None).flops, planned(8, "stage")
        self.check_share(staged, planned(8, None), head)
        hop = self.LENGTH * 64 * 4
        found = [finding.text for finding in staged.findings if finding.kind == "schedule"]
        for text, way in zip(found, ("forward", "backward"), strict=True):
            assert text.startswith(
                f"8 layers on 8 stages over stage, {way}: 32 micro-batches of 1 row in 39 ticks, "
                f"18% of them bubbles; a device sends {hop:,} bytes a tick, {39 * hop:,} in all"
            )


def test_plans_of_transformers() -> None:
    """An unmodified Llama: its `_pp_plan` names the layers, and a step is that of the CPU."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=64, distributed_config={"pp_size": 4},
    )  # fmt: skip
    expected = transformers.LlamaForCausalLM(config)
    with pytest.raises(ValueError, match=r"pp_size .* name the mesh axis: stages"):
        ShardingRules.of(expected, config.distributed_config, tensor=None)
    table = ShardingRules.of(
        expected, config.distributed_config, tensor=None, stages="stage", micro_batches=4
    )
    assert table.units is not None and table.units.modules == ("model.layers.*",)
    model = copy.deepcopy(expected).to("xla")
    table.apply(model, spmd.Mesh(range(8), (4, 2), ("stage", "fsdp")))
    ids = torch.randint(0, 64, (ROWS, 8))
    losses = [m(input_ids=x, labels=x).loss for m, x in ((model, ids.to("xla")), (expected, ids))]
    for loss in losses:
        loss.backward()
    check(losses[0], losses[1])
    check_gradients(model, expected)
