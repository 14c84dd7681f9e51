"""Equal layers become loops of the program: the numbers stay, wherever the layers differ, are
shared or are read."""

import dataclasses
import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import jax
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fsdp
import spmd
from recipes.gpt import GPT, Block, GPTConfig, cross_entropy
from spmd.adaptive import changing
from spmd.core.graph.graph import topological
from spmd.core.passes import scan_layers
from spmd.core.passes.repeats import find_loops
from spmd.core.programs import cache

WIDTH = 16


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Nothing of another test is pending; the flag is as it was afterwards."""
    spmd.sync()
    before = spmd.config.scan_layers
    yield
    spmd.config.scan_layers = before
    spmd.sync()


class Layer(nn.Module):
    """A residual block of few ops."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.down(torch.tanh(self.up(self.norm(x)))))


class Wave(nn.Module):
    """A block whose backward has more ops than its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.sin(torch.cos(torch.sigmoid(self.inner(x))))


class Tower(nn.Module):
    """Layers between an entry and a head."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.op = nn.Linear(8, WIDTH)
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.op(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@dataclasses.dataclass
class Trained:
    """The outcome of a training: what its steps returned, the parameters, the ledger's line of the
    step."""

    values: list[Tensor]
    parameters: dict[str, Tensor]
    record: Any

    def iterations(self) -> list[int]:
        return [iterations for iterations, _ in self.record.loops]


Step = Callable[[nn.Module, Tensor], Tensor]


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean()


def train(
    make: Callable[[], nn.Module],
    *,
    mode: str,
    step: Step = loss_of,
    optimizer: Callable[..., torch.optim.Optimizer] = partial(torch.optim.AdamW, lr=1e-2),
    clip: float | None = None,
    mesh: spmd.Mesh | None = None,
    units: bool = False,
    steps: int = 3,
) -> Trained:
    """Trains a model for a few steps. mesh: under FSDP (units: a unit per layer, else one)."""
    spmd.config.scan_layers = mode
    cache.clear_cache()
    changing.forget()  # a test of many models has a program for each at one barrier
    torch.manual_seed(0)
    model = make().to("xla")
    if mesh is not None:
        policy = (
            partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Layer, Block})
            if units
            else None
        )
        model = fsdp.FullyShardedDataParallel(model, mesh=mesh, auto_wrap_policy=policy)
    made = optimizer([p for p in model.parameters() if p.requires_grad])
    draws = torch.Generator().manual_seed(1)
    spmd.metrics.clear()
    values = []
    for _ in range(steps):
        x = torch.randn(8, 8, generator=draws).to("xla")
        if mesh is not None:
            spmd.mark_sharding(x, mesh, (mesh.axis_names[-1], None))
        loss = step(model, x)
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        made.step()
        made.zero_grad()
        values.append(loss.detach())
        spmd.sync()
    *_, record = [
        record for record in spmd.metrics.compiles() if record.name == "step" and record.nodes > 20
    ]
    parameters = {name: p.detach().cpu() for name, p in model.named_parameters()}
    return Trained([value.cpu() for value in values], parameters, record)


def same(scanned: Trained, unrolled: Trained) -> None:
    """Within rounding: other programs fuse other sums."""
    assert not unrolled.record.loops
    for one, other in zip(scanned.values, unrolled.values, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5)
    for name, one in scanned.parameters.items():
        torch.testing.assert_close(
            one, unrolled.parameters[name], rtol=2e-5, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}"
        )


def both(make: Callable[[], nn.Module], **given: Any) -> Trained:
    """Rolled against unrolled; returns the rolled one."""
    scanned = train(make, mode="always", **given)
    same(scanned, train(make, mode="never", **given))
    return scanned


def tower(count: int = 4, dropout: float = 0.0) -> nn.Module:
    return Tower([Layer(dropout) for _ in range(count)])


class TestNumbers:
    """Values and gradients of the rolled program are those of the unrolled one."""

    def test_adamw(self) -> None:
        assert both(tower).iterations() == [4, 4]

    def test_single_tensor(self) -> None:
        assert both(
            tower, optimizer=partial(torch.optim.AdamW, lr=1e-2, foreach=False)
        ).iterations() == [4, 4, 4]

    @pytest.mark.parametrize(
        "optimizer",
        [
            partial(torch.optim.AdamW, lr=1e-2, fused=True),
            partial(torch.optim.Adam, lr=1e-2, weight_decay=0.1, amsgrad=True, fused=True),
            partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True),
        ],
        ids=["adamw", "adam with amsgrad", "sgd"],
    )
    def test_fused(self, optimizer: Callable[..., torch.optim.Optimizer], mesh8: spmd.Mesh) -> None:
        scanned = both(tower, optimizer=optimizer, clip=0.1, mesh=mesh8, units=True)
        assert scanned.iterations() == [4, 4]
        state = [name for name in scanned.parameters if "layers" in name]
        assert int(re.search(r"(\d+) of \d+ inputs are rows", scanned.record.cause)[1]) >= 2 * len(
            state
        )

    def test_sgd_with_momentum_and_clipping(self) -> None:
        both(tower, optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9), clip=0.1)

    def test_fsdp(self, mesh8: spmd.Mesh) -> None:
        assert both(tower, mesh=mesh8, units=True, clip=0.1).iterations() == [4, 4]

    def test_fsdp_in_one_unit(self, mesh2x4: spmd.Mesh) -> None:
        both(tower, mesh=mesh2x4)

    def test_dropout_draws_the_same(self) -> None:
        assert both(partial(tower, dropout=0.3)).iterations() == [4, 4]

    def test_gpt(self, mesh8: spmd.Mesh) -> None:
        config = GPTConfig(layers=3, width=16, heads=2, sequence=8, vocabulary=32, dropout=0.1)

        def step(model: nn.Module, x: Tensor) -> Tensor:
            tokens = (x.abs() * 10).long() % 32
            return cross_entropy(model(tokens), tokens)

        assert both(
            partial(GPT, config), step=step, mesh=mesh8, units=True, clip=1.0
        ).iterations() == [3, 3]


class TestLayersThatDiffer:
    """An op that is not equal stays outside of the loop, or ends it."""

    def test_a_frozen_layer(self) -> None:
        def make() -> nn.Module:
            model = tower(7)
            model.layers[3].requires_grad_(False)
            return model

        scanned = both(make)
        assert scanned.iterations() == [7, 3, 3]

    def test_frozen_first_layers(self) -> None:
        def make() -> nn.Module:
            model = tower(6)
            model.op.requires_grad_(False)
            model.layers[:2].requires_grad_(False)
            return model

        assert both(make).iterations()[0] in (4, 6)

    def test_one_of_another_kind(self) -> None:
        def make() -> nn.Module:
            return Tower(
                [
                    *(Layer() for _ in range(4)),
                    nn.Linear(WIDTH, WIDTH),
                    *(Layer() for _ in range(3)),
                ]
            )

        assert sorted(both(make).iterations()) == [3, 3, 4, 4]

    def test_two_kinds_in_turn(self) -> None:
        def make() -> nn.Module:
            return Tower(
                [layer for _ in range(3) for layer in (Layer(), nn.Linear(WIDTH, WIDTH), nn.ReLU())]
            )

        assert both(make).iterations() == [3, 3]

    def test_one_layer_many_times(self) -> None:
        """Tied weights: each turn adds to the gradient that the one before has made."""

        def make() -> nn.Module:
            shared = Layer()
            return Tower([shared] * 5)

        assert both(make).iterations()[0] == 5

    def test_rates_per_layer(self) -> None:
        def rates(parameters: list[Tensor]) -> torch.optim.Optimizer:
            return torch.optim.AdamW(
                [{"params": [p], "lr": 1e-3 * (i + 1)} for i, p in enumerate(parameters)]
            )

        both(tower, optimizer=rates)


class TestReading:
    """Reads of the layers besides those of the next ones."""

    def test_hidden_states_of_every_layer(self) -> None:
        def step(model: nn.Module, x: Tensor) -> Tensor:
            states, x = [], model.op(x)
            for layer in model.layers:
                states.append(x)
                x = layer(x)
            return (
                torch.stack([state.square().mean() for state in states]).sum()
                + model.head(x).square().mean()
            )

        assert both(tower, step=step).iterations()[0] == 4

    def test_a_layer_read_in_the_middle(self) -> None:
        read = []

        def step(model: nn.Module, x: Tensor) -> Tensor:
            loss = model(x).square().mean()
            read.append(model.layers[2].up.weight[0, 0].item())
            return loss

        scanned = train(tower, mode="always", step=step)
        seen = read.copy()
        same(scanned, train(tower, mode="never", step=step))
        torch.testing.assert_close(torch.tensor(seen), torch.tensor(read[len(seen) :]))

    def test_states_are_results(self) -> None:
        """Forward alone, every layer's output wanted."""
        model = tower(5).to("xla").requires_grad_(False)
        x = torch.randn(8, WIDTH)

        def states() -> list[Tensor]:
            cache.clear_cache()
            kept, y = [], x.to("xla")
            for layer in model.layers:
                y = layer(y)
                kept.append(y)
            spmd.sync()
            return [state.cpu() for state in kept]

        spmd.config.scan_layers = "never"
        unrolled = states()
        spmd.config.scan_layers = "always"
        spmd.metrics.clear()
        torch.testing.assert_close(states(), unrolled, rtol=2e-5, atol=2e-5)
        assert spmd.metrics.compiles()[-1].loops == ((5, 5),)

    def test_auxiliary_losses_are_summed(self) -> None:
        def step(model: nn.Module, x: Tensor) -> Tensor:
            total, x = torch.zeros((), device="xla"), model.op(x)
            for layer in model.layers:
                x = layer(x)
                total = total + x.abs().mean()
            return model.head(x).square().mean() + total

        assert both(tower, step=step).iterations()[0] == 4


class Gated(nn.Module):
    """A layer with what a router of it would make, and a share of the layer that is a row of one
    parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer()
        self.gate = nn.Linear(WIDTH, 4)


JOINS: dict[str, Callable[[list[Tensor]], Tensor]] = {
    "cat": partial(torch.cat, dim=0),
    "cat of columns": partial(torch.cat, dim=-1),
    "stack": torch.stack,
    "stack behind": partial(torch.stack, dim=1),
    "stack from behind": lambda values: torch.stack(values[::-1], dim=-1),
}


def joining(join: Callable[[list[Tensor]], Tensor]) -> Step:
    """A loss of all layers' logits in one, as that which balances experts, and of what the layers
    make."""

    def step(model: nn.Module, x: Tensor) -> Tensor:
        logits, x = [], model.op(x)
        for gated in model.layers:
            logits.append(gated.gate(x))
            x = gated.layer(x)
        return (join(logits).softmax(-1).square() * 2).mean() + model.head(x).square().mean()

    return step


class TestJoined:
    """The values that layers hand to one op are its operand as one array, and the gradient's rows
    come from one."""

    @pytest.mark.parametrize("join", JOINS.values(), ids=JOINS)
    def test_numbers(self, join: Callable[[list[Tensor]], Tensor], mesh8: spmd.Mesh) -> None:
        scanned = both(lambda: Tower([Gated() for _ in range(6)]), step=joining(join), mesh=mesh8)
        forward, backward = scanned.iterations()
        assert forward >= 5 and backward >= 5

    @pytest.mark.parametrize("join", JOINS.values(), ids=JOINS)
    def test_length_of_the_program(self, join: Callable[[list[Tensor]], Tensor]) -> None:
        """Twice the layers are not more lines."""
        spmd.config.scan_layers = "always"
        lines = []
        for count in (6, 12):
            model = Tower([Gated() for _ in range(count)]).to("xla")
            loss = joining(join)(model, torch.randn(8, 8).to("xla"))
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            lines.append(spmd.get_stablehlo([loss, *gradients]).count("\n"))
        few, many = lines
        assert many - few < 6 * 10  # the weights' 10 gradients a layer are results

    def test_a_row_a_layer(self, mesh8: spmd.Mesh) -> None:
        """Each layer takes its row of one parameter, forward, and adds its own to that one's
        gradient."""

        class Scaled(Tower):
            def __init__(self) -> None:
                super().__init__([Layer() for _ in range(6)])
                self.scales = nn.Parameter(torch.rand(6, WIDTH))
                self.shares = nn.Parameter(torch.rand(12))

            def forward(self, x: Tensor) -> Tensor:
                x = self.op(x)
                for i, layer in enumerate(self.layers):
                    x = self.shares[2 * i] * x + layer(x * self.scales[i]) * self.shares[2 * i + 1]
                return self.head(x)

        forward, backward = both(Scaled, mesh=mesh8).iterations()
        assert forward >= 5 and backward >= 4


class TestByItself:
    """config.scan_layers = "auto": from a depth on, where it costs nothing; the ledger says so."""

    def test_deep_and_shallow(self) -> None:
        deep = train(partial(tower, 8), mode="auto")
        assert (
            deep.iterations() == [8, 8]
            and "rows of" in deep.record.cause
            and "8 times" in str(deep.record)
        )
        same(deep, train(partial(tower, 8), mode="never"))
        assert not train(tower, mode="auto").record.loops

    def test_all_state_is_aliased(self, mesh8: spmd.Mesh) -> None:
        scanned = train(partial(tower, 8), mode="auto", mesh=mesh8, units=True)
        unrolled = train(partial(tower, 8), mode="never", mesh=mesh8, units=True)
        assert scanned.record.alias_bytes == unrolled.record.alias_bytes
        assert scanned.record.collectives["all-gather"] < unrolled.record.collectives["all-gather"]
        assert scanned.record.temp_bytes <= unrolled.record.temp_bytes
        same(scanned, unrolled)

    def test_not_where_stacks_are_copied(self) -> None:
        with mock.patch.object(
            cache, "refuse_loops", [lambda program, graph: graph.recorded is not None]
        ):
            trained = train(partial(tower, 8), mode="auto")
        assert not trained.record.loops and "XLA would copy" in trained.record.cause
        assert [
            bool(record.loops) for record in spmd.metrics.compiles() if record.name == "step"
        ] == [True, False]

    def test_short_loops_whose_stacks_are_copied(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Three layers whose backward would be a loop over copies of what forward kept: the others
        still are loops."""
        monkeypatch.setattr(scan_layers, "_LARGE", 16)

        def make() -> nn.Module:
            return Tower([Wave() for _ in range(3)] + [Layer() for _ in range(8)])

        def of_many_rows(model: nn.Module, x: Tensor) -> Tensor:
            return loss_of(model, x.repeat(64, 1))

        assert train(make, mode="auto").iterations() == [8, 8, 3]
        trained = train(make, mode="auto", step=of_many_rows)
        assert trained.iterations() == [8, 8]
        same(trained, train(make, mode="never", step=of_many_rows))

    def test_one_program_for_every_step(self) -> None:
        train(partial(tower, 8), mode="auto", steps=4)
        assert len([record for record in spmd.metrics.compiles() if record.name == "step"]) == 1

    def test_the_text_before_it_runs(self) -> None:
        spmd.config.scan_layers = "auto"
        model = tower(8).to("xla").requires_grad_(False)
        y = model(torch.randn(8, 8).to("xla"))
        text = spmd.get_stablehlo([y])
        assert "stablehlo.while" in text and text.count("stablehlo.tanh") == 1
        # Turns are counted in 32 bits: of such a loop XLA's TPU compiler sees that it fills what it
        # writes into.
        assert re.search(
            r"stablehlo\.compare +LT, %iterArg\S*, %\S+, +SIGNED : \(tensor<i32>", text
        )


class TestGathers:
    """Under FSDP each turn gathers its own layer, and stores its own gradients."""

    def test_no_whole_model(self, mesh8: spmd.Mesh) -> None:
        trained = train(partial(tower, 8), mode="always", mesh=mesh8, units=True)
        assert trained.iterations() == [8, 8]
        program = cache.last_program()
        assert program is not None
        gathered = [
            line.split(" = ")[1].split(" ")[0]
            for line in program.executable.as_text().splitlines()
            if re.search(r"= \S+ (all-gather|all-reduce)(-start)?\(", line)
        ]
        # What joins the layers of a unit is two-dimensional; nothing has a dim of 8 layers beside
        # those of a weight.
        assert gathered and not any(re.match(r"\w+\[8,\d+,\d+", shape) for shape in gathered)


def loops_of(x: Tensor) -> list[tuple[int, int]]:
    """The loops of what a value needs: (turns, ops of a turn)."""
    root = x._storage.value
    return [(loop.iterations, loop.period) for loop in find_loops(topological([root])[0], [root])]


class TestFinding:
    """Graphs that become a loop."""

    def test_wired_differently(self) -> None:
        """Equal ops of which each reads the first one's result, not the last one's."""

        def step(model: nn.Module, x: Tensor) -> Tensor:
            first = model.op(x)
            return torch.stack([layer(first).square().mean() for layer in model.layers]).sum()

        assert both(tower, step=step).iterations()[0] == 4

    def test_skips_over_a_layer(self) -> None:
        """A read of the iteration before the last makes no loop."""

        def step(model: nn.Module, x: Tensor) -> Tensor:
            before, x = model.op(x), model.op(x) * 2
            for layer in model.layers:
                before, x = x, layer(x) + before
            return model.head(x).square().mean()

        both(partial(tower, 6), step=step)

    @pytest.mark.parametrize("seed", range(3))
    def test_short_turns_behind_long_ones(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """The distances between equal ops are most often those within long turns; they hide no
        short ones."""
        # no turn runs before the last is recorded
        monkeypatch.setattr(spmd.config, "loop_search_ops", 0)
        kinds = (torch.sin, torch.cos, torch.tanh, torch.exp, torch.sigmoid, torch.neg)
        kinds += (torch.abs, torch.erf, torch.floor, torch.ceil, torch.square, torch.relu)
        ops = random.Random(seed).sample(kinds, k=120, counts=[10] * len(kinds))
        x, states = torch.rand(4, device="xla"), []
        for _ in range(10):
            for op in ops:
                x = op(x)
            states.append(x)
        for state in states:
            x = x + state.log().sqrt()
        assert loops_of(x) == [(10, 120), (10, 3)]

    def test_steps_in_time_are_no_layers(self) -> None:
        """The turns of a cell read other rows of the input and the same weights."""
        layer, x = Layer().to("xla"), torch.rand(10, WIDTH, device="xla")
        state = torch.zeros(WIDTH, device="xla")
        for i in range(10):
            state = layer(state + x[i])
        assert loops_of(state) == []
        for _ in range(10):
            state = layer(state + x[0])
        assert [iterations for iterations, _ in loops_of(state)] == [10]

    def test_late_errors_name_the_line(self) -> None:
        """A failure inside an iteration is traced back to the op of the first one."""

        def failing(x: Any) -> Any:
            return jax.pure_callback(_raise, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

        spmd.config.scan_layers = "always"
        x = torch.randn(4, 4).to("xla")
        for _ in range(5):
            x = spmd.call_jax(failing, torch.tanh(x * 2))
        with pytest.raises(RuntimeError, match=r"test_scan_layers\.py"):
            x.cpu()


def _raise(x: Any) -> Any:
    raise ValueError("this layer fails")


class TestStacks:
    """Random stacks of layers: rolled as unrolled."""

    @settings(max_examples=4, deadline=None, database=None, derandomize=True)
    @given(
        kinds=st.lists(
            st.sampled_from(["layer", "linear", "norm", "shared", "frozen", "tanh"]),
            min_size=1,
            max_size=3,
        ),
        repeats=st.integers(3, 5),
        extra=st.booleans(),
        foreach=st.booleans(),
    )
    def test_random(self, kinds: list[str], repeats: int, extra: bool, foreach: bool) -> None:
        def make() -> nn.Module:
            shared = nn.Linear(WIDTH, WIDTH)
            made: dict[str, Callable[[], nn.Module]] = {
                "layer": Layer,
                "linear": partial(nn.Linear, WIDTH, WIDTH),
                "norm": partial(nn.LayerNorm, WIDTH),
                "shared": lambda: shared,
                "frozen": lambda: Layer().requires_grad_(False),
                "tanh": nn.Tanh,
            }
            layers = [made[kind]() for _ in range(repeats) for kind in kinds]
            return Tower([*layers, Layer()] if extra else layers)

        both(make, optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.5, foreach=foreach))
