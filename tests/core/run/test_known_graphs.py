"""A sync of a known program: one comparison in place of walks and keys, and what a script does in
between. `tests/properties/test_known_graphs.py` draws such scripts."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import pytest
import torch
from support import check
from torch import Tensor, nn

import fsdp
import spmd
from spmd import P
from spmd.core import storage_of
from spmd.core.graph.graph import Graph
from spmd.core.programs import cache
from spmd.core.run import host_reads

START = torch.arange(16.0).reshape(8, 2)


# Two steps that differ in one fact of their graphs.
Step = Callable[[Tensor, Tensor], Tensor]
PAIRS: dict[str, tuple[Step, Step]] = {
    "operand": (lambda x, y: x * y + x, lambda x, y: x * y + y),
    "result": (
        lambda x, y: torch.var_mean(x, 0)[0] * y,
        lambda x, y: torch.var_mean(x, 0)[1] * y,
    ),
    "op": (lambda x, y: x.sin() + y, lambda x, y: x.cos() + y),
    "number": (lambda x, y: x * 0.5 + y, lambda x, y: x * 0.25 + y),
    "number of operands": (lambda x, y: torch.cat([x, y]), lambda x, y: torch.cat([x, x])),
    "shared op": (
        lambda x, y: x.sin() * y + x.sin(),
        lambda x, y: (lambda sine: sine * y + sine)(x.sin()),
    ),
    "shared tensor": (lambda x, y: x.mul_(0.5).add_(y), lambda x, y: x.mul_(0.5).add_(x)),
    "one tensor": (lambda x, y: x.add_(y, alpha=0.5), lambda x, y: x.add_(x, alpha=0.5)),
    "in place": (lambda x, y: x.mul_(y), lambda x, y: x * y),
    "target": (lambda x, y: torch.add(x, y, out=x), lambda x, y: torch.add(x, y, out=y)),
    "constant": (lambda x, y: x.fill_(2).mul_(y), lambda x, y: x.mul_(2).mul_(y)),
}


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """The graphs whose keys were made."""
    result: list[Graph] = []
    key = Graph.key
    monkeypatch.setattr(Graph, "key", lambda graph: result.append(graph) or key(graph))
    return result


@pytest.fixture
def stacked() -> Iterator[None]:
    before = spmd.config.scan_layers
    spmd.config.scan_layers = "always"
    yield
    spmd.config.scan_layers = before


def model_and_step(device: str, mesh: spmd.Mesh | None) -> tuple[nn.Module, Callable[[], Tensor]]:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)]
    model: Any = nn.Sequential(*layers).to(device)
    x = torch.linspace(-1, 1, 64).reshape(8, 8).to(device)
    if mesh is not None:
        policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={nn.Sequential})
        model = fsdp.FullyShardedDataParallel(model, mesh=mesh, auto_wrap_policy=policy)
        x = spmd.mark_sharding(x, mesh, P("fsdp", None))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step() -> Tensor:
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return model, step


class TestKnownGraphs:
    """A step that recurs makes no key, and gives the values of torch on the CPU."""

    @pytest.mark.parametrize("is_sharded", [False, True])
    def test_training(self, is_sharded: bool, mesh8: spmd.Mesh, keys: list[Graph]) -> None:
        model, step = model_and_step("xla", mesh8 if is_sharded else None)
        expected, expected_step = model_and_step("cpu", None)
        losses = []
        for number in range(6):
            keys.clear()
            losses.append((step(), expected_step()))
            spmd.sync()
            assert number < 3 or not keys
        for loss, expected_loss in losses:
            check(loss, expected_loss)
        for mine, theirs in zip(model.parameters(), expected.parameters(), strict=True):
            check(mine, theirs)

    def test_data_stays_the_object_of_its_tensor(self) -> None:
        x = (START * 1).to("xla")
        data = []
        for _ in range(5):
            x.mul_(0.5)
            spmd.sync()
            data.append(storage_of(x).value)
        assert data[4] is data[3] is not data[0]
        check(x, START * 0.5**5)

    def test_two_steps_that_take_turns(self, keys: list[Graph]) -> None:
        x, y = (START * 1).to("xla"), (START * 2).to("xla")
        for number in range(8):
            keys.clear()
            (x.add_(y) if number % 2 else x.sub_(y, alpha=0.5))
            spmd.sync()
            assert number < 4 or not keys
        check(x, START + 4 * START)

    @pytest.mark.parametrize("name", PAIRS)
    def test_steps_that_are_alike(self, name: str) -> None:
        tensors = [((START * 1).to(device), (START + 0.5).to(device)) for device in ("xla", "cpu")]
        for step in (0, 0, 0, 0, 1, 1, 1, 1, 0, 1, 0):
            mine, theirs = (PAIRS[name][step](x, y) for x, y in tensors)
            spmd.sync()
            check(mine, theirs)
            for x, expected in zip(*tensors, strict=True):
                check(x, expected)

    def test_another_sharding_of_what_it_reads(self, mesh8: spmd.Mesh) -> None:
        x, y = (spmd.mark_sharding((START * 1).to("xla"), mesh8, P("fsdp", None)) for _ in range(2))
        for number in range(6):
            if number == 4:
                spmd.mark_sharding(y, mesh8, P(None, "fsdp"))
            x.add_(y)
            spmd.sync()
        assert storage_of(y).value.sharding is storage_of(y).sharding
        check(x, START * 7)

    def test_a_flag(self, monkeypatch: pytest.MonkeyPatch) -> None:
        x = (START * 1).to("xla")
        programs = []
        for value in ("auto", "auto", "auto", "auto", "never", "auto"):
            monkeypatch.setattr(spmd.config, "scan_layers", value)
            x.add_(1)
            spmd.sync()
            programs.append(cache.last_program())
        assert programs[3] is programs[5] is not programs[4]
        check(x, START + 6)

    def test_an_evicted_program(self, monkeypatch: pytest.MonkeyPatch) -> None:
        x = (START * 1).to("xla")
        for _ in range(4):
            x.add_(3.5)
            spmd.sync()
        monkeypatch.setattr(cache, "_programs", dict(cache._programs))
        cache._drop(len(cache._programs))
        compiled = spmd.metrics.counter("programs_compiled")
        x.add_(3.5)
        spmd.sync()
        assert spmd.metrics.counter("programs_compiled") > compiled
        check(x, START + 17.5)

    def test_another_sharding_of_state(self, mesh8: spmd.Mesh) -> None:
        x = spmd.mark_sharding((START * 1).to("xla"), mesh8, P("fsdp", None))
        y = spmd.mark_sharding((START * 1).to("xla"), mesh8, P(None, None))
        first, second = map(spmd.get_sharding, (x, y))
        for number in range(8):
            x.add_(1)
            if number == 4:
                spmd.mark_sharding(x, mesh8, P(None, None))
            spmd.sync()
            assert spmd.get_sharding(x) == (first if number < 4 else second)
        check(x, START + 8)

    def test_one_tensor_in_the_place_of_two(self) -> None:
        x, y = (START * 1).to("xla"), (START * 2).to("xla")
        x0, y0 = START * 1, START * 2
        for number in range(7):
            for a, b in [(x, y), (x0, y0)] if number != 5 else [(x, x), (x0, x0)]:
                a.mul_(0.5).add_(b)
            spmd.sync()
        check(x, x0)
        check(y, y0)

    def test_a_constant_over_state(self) -> None:
        layer, x = nn.Linear(2, 2).to("xla"), (START * 1).to("xla")
        for number in range(6):
            programs = spmd.metrics.counter("programs_compiled")
            with torch.no_grad():
                if number == 3:
                    nn.init.ones_(layer.weight)
                layer.weight.add_(x[:2])
            spmd.sync()
            # The constant is an initial value, and no op of the step.
            assert number < 2 or spmd.metrics.counter("programs_compiled") == programs
        check(layer.weight, 1 + 3 * START[:2])


class TestMemory:
    """Results take the data that they replace; what readers hold stays as it is."""

    @pytest.mark.usefixtures("stacked")
    @pytest.mark.parametrize("is_sharded", [False, True])
    def test_a_read_in_progress(self, is_sharded: bool, mesh8: spmd.Mesh) -> None:
        layers = [(START * (i + 1)).to("xla") for i in range(4)]
        if is_sharded:
            layers = [spmd.mark_sharding(layer, mesh8, P("fsdp", None)) for layer in layers]
        for _ in range(5):
            for layer in layers:
                layer.copy_(torch.tanh(layer) + 0.5)
            spmd.sync()
        before = layers[1].cpu()
        with host_reads.leased(storage_of(layers[1]), on_device=True) as lease:
            for layer in layers:
                layer.copy_(torch.tanh(layer) + 0.5)
            spmd.sync(wait=True)
            check(torch.from_numpy(jax.device_get(lease.placed()[0]).copy()), before)
        check(layers[1], torch.tanh(before) + 0.5)

    @pytest.mark.usefixtures("stacked")
    def test_a_row_that_is_written_alone(self) -> None:
        def updates(layers: list[Tensor]) -> Iterator[None]:
            for _ in range(5):
                for layer in layers:
                    layer.copy_(torch.tanh(layer) + 0.5)
                yield
                layers[1].mul_(0.5)
                yield

        ours = [(START * (number + 1)).to("xla") for number in range(4)]
        theirs = [START * (number + 1) for number in range(4)]
        for _ in zip(updates(ours), updates(theirs), strict=True):
            spmd.sync()
            check(ours[2], theirs[2])
        for mine, expected in zip(ours, theirs, strict=True):
            check(mine, expected)

    def test_a_shard_that_no_sync_runs(self, mesh8: spmd.Mesh) -> None:
        x = spmd.mark_sharding((START * 1).to("xla"), mesh8, P("fsdp", None))
        for number in range(6):
            shard = spmd.torch_xla.enable_manual_sharding(x, ("fsdp", None), mesh=mesh8)
            for _ in range(number):  # of known graphs, but for the first ones
                x.add_(1)
                spmd.sync()
            full = spmd.torch_xla.disable_manual_sharding(shard * 2, ("fsdp", None), (8, 2))
            check(full, 2 * (START + sum(range(number))))
            check(x, START + sum(range(number + 1)))

    def test_a_launch_that_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        x = (START * 1).to("xla")
        for _ in range(4):
            x.add_(1.25)
            spmd.sync()
        program = cache.last_program()
        assert program is not None

        def failing(*arguments: Any) -> Any:
            raise jax.errors.JaxRuntimeError("INTERNAL: no launch")

        with monkeypatch.context() as patch:
            patch.setattr(program, "executable", failing)
            x.add_(1.25)
            with pytest.raises(RuntimeError, match="no launch"):
                spmd.sync()
        check(x, START + 5)
        x.add_(1.25)
        check(x, START + 6.25)
