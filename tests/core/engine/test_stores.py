"""Leaves as rows of stores: programs that take and give families as one array each, and all that a user sees of it,
which is nothing."""

import copy
import gc
import pickle
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from stacking import alike
from support import check, distinct
from torch import nn

import fsdp
import spmd
from spmd.core.compile import cache, families
from spmd.core.engine import launch
from spmd.core.ir.graph import Leaf
from spmd.core.ir.store import Store
from spmd.core.sharding import rows

FSDP = fsdp.FullyShardedDataParallel
LAYERS, WIDTH = 4, 16


@pytest.fixture(autouse=True)
def stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every program of a test takes its families as stacks."""
    monkeypatch.setattr(launch, "form", alike)
    yield
    spmd.sync()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Linear(WIDTH, 2 * WIDTH)
        self.outer = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(torch.relu(self.inner(self.norm(x))))


class Net(nn.Module):
    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[Block() for _ in range(layers)])
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x))


POLICY = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block})


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


class Pair:
    """A model on the device and its twin on the CPU, which are trained alike."""

    def __init__(self, mesh: spmd.Mesh | None = None) -> None:
        self.twin = net()
        self.model = net().to("xla")
        self.wrapped = self.model if mesh is None else FSDP(self.model, mesh=mesh, auto_wrap_policy=POLICY)
        self.optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (self.model, self.twin)]

    def step(self, seed: int = 0) -> None:
        torch.manual_seed(100 + seed)
        x = torch.randn(8, WIDTH)
        for model, optimizer, data in (
            (self.wrapped, self.optimizers[0], x.to("xla")),
            (self.twin, self.optimizers[1], x),
        ):
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()
        spmd.sync()

    def check(self) -> None:
        for one, other in zip(self.model.parameters(), self.twin.parameters(), strict=True):
            check(one, other)
            if other.grad is not None:
                check(one.grad, other.grad)


def leaf(tensor: torch.Tensor) -> Leaf:
    value = tensor._cell.value
    assert type(value) is Leaf
    return value


def live_bytes() -> int:
    spmd.sync(wait=True)
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


class TestTraining:
    """A step whose state is rows of stores is the step that it was."""

    def test_on_one_device(self) -> None:
        pair = Pair()
        for seed in range(3):
            pair.step(seed)
        pair.check()
        weights = [block.inner.weight for block in pair.model.blocks]
        assert [leaf(weight).row for weight in weights] == list(range(LAYERS))
        assert len({id(leaf(weight).store) for weight in weights}) == 1

    def test_under_fsdp(self, mesh8: spmd.Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
        """All state is overwritten in place, as without stores, and no step after the first makes a stack."""
        pair = Pair(mesh8)
        counts = []
        for seed in range(4):
            pair.step(seed)
            counts.append(spmd.metrics.num_compiles())
        pair.check()
        assert counts[1:] == counts[1:2] * 3
        stacked = spmd.metrics.compiles()[-1]
        assert f"{18 * LAYERS} of" in stacked.cause and "rows of 12 stores" in stacked.cause
        monkeypatch.setattr(launch, "form", families.none)
        Pair(mesh8).step()
        plain = spmd.metrics.compiles()[-1]
        assert stacked.alias_bytes == plain.alias_bytes > 0
        assert stacked.argument_bytes == plain.argument_bytes


class Calls:
    """How often rows were stacked, copied out of a store, set into one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: Counter[str] = Counter()
        for name in ("stacked", "row", "with_row"):
            monkeypatch.setattr(rows, name, self._counted(name, getattr(rows, name)))

    def _counted(self, name: str, function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        def call(*args: Any) -> jax.Array:
            self.made[name] += 1
            return function(*args)

        return call

    def since(self) -> dict[str, int]:
        made, self.made = dict(self.made), Counter()
        return made


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


class Layers(nn.Module):
    """Equal parameters, and their twins on the CPU."""

    def __init__(self, mesh: spmd.Mesh | None, *shape: int, num: int = LAYERS, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.twins = [distinct(*shape, dtype=dtype) for _ in range(num)]
        self.layers = nn.ParameterList(nn.Parameter(twin.to("xla"), requires_grad=False) for twin in self.twins)
        for layer in self.layers:
            if mesh is not None:
                spmd.mark_sharding(layer, mesh, ("fsdp", None)[: len(shape)])
        spmd.sync()

    def step(self) -> None:
        """Writes them all in place."""
        for values in (self.layers, self.twins):
            for i, value in enumerate(values):
                value.mul_(-1).add_(i)
        spmd.sync()

    def check(self) -> None:
        for one, other in zip(self.layers, self.twins, strict=True):
            check(one, other)

    def stores(self) -> set[Store | None]:
        return {leaf(layer).store for layer in self.layers}


@pytest.fixture
def layers(mesh8: spmd.Mesh) -> Layers:
    """Rows of one store."""
    made = Layers(mesh8, 16, 4)
    made.step()
    assert len(made.stores()) == 1 and None not in made.stores()
    return made


class TestShapes:
    """Whatever its shape, dtype and layout, a value can be a row."""

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64])
    def test_dtypes(self, dtype: torch.dtype, mesh8: spmd.Mesh) -> None:
        self.is_trained(Layers(mesh8, 8, 2, dtype=dtype))

    @pytest.mark.parametrize("shape", [(13, 3), (3, 5), (2,)])
    def test_uneven_dims(self, shape: tuple[int, ...], mesh8: spmd.Mesh) -> None:
        """A dim that the mesh does not divide is padded in the store as in a row."""
        layers = Layers(mesh8, *shape)
        self.is_trained(layers)
        (store,) = layers.stores()
        assert store.placed().shape == (LAYERS, -(-shape[0] // 8) * 8, *shape[1:])

    def test_scalars(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(launch, "form", partial(alike, least=1))
        self.is_trained(Layers(None))

    def test_on_one_device(self) -> None:
        self.is_trained(Layers(None, 4, 2))

    def test_on_another_order_of_the_devices(self) -> None:
        """Where several meshes meet, and their devices stand in another order than the program's."""
        layers = Layers(spmd.Mesh([3, 1, 2, 0, 7, 6, 5, 4], (8,), ("fsdp",)), 16, 4)
        other = spmd.mark_sharding(torch.ones(16).to("xla"), spmd.Mesh(range(8), (2, 4), ("a", "b")), ("b",))
        spmd.sync()
        for seed in range(3):
            other.add_(seed)
            layers.layers[0].mul_(other[0])
            layers.twins[0].mul_([1, 2, 4][seed])
            layers.step()
        layers.check()
        assert len(layers.stores()) == 1 and None not in layers.stores()

    def is_trained(self, layers: Layers) -> None:
        for _ in range(3):
            layers.step()
        layers.check()
        assert len(layers.stores()) == 1 and None not in layers.stores()


class TestReading:
    """A row is read as a tensor that has a buffer of its own."""

    def test_its_values(self, layers: Layers, calls: Calls) -> None:
        one, other = layers.layers[2], layers.twins[2]
        assert one.tolist() == other.tolist() and one[3, 1].item() == other[3, 1].item()
        assert repr(one.data).startswith(repr(other).splitlines()[0])
        check(one + 1, other + 1)
        assert set(calls.since()) == {"row"} and layers.stores() == {leaf(one).store}

    def test_its_layout(self, layers: Layers) -> None:
        one, other = layers.layers[1], layers.twins[1]
        assert spmd.get_sharding(one).partition_spec(2) == ("fsdp", None)
        shards = spmd.local_shards(one)
        assert [shard.device for shard in shards] == list(range(8))
        check(torch.cat([shard.data for shard in shards]), other)

    def test_copies_are_not_kept(self, layers: Layers) -> None:
        before = live_bytes()
        total = layers.layers[1].sum() + layers.layers[3].sum()
        assert total.item() == (layers.twins[1].sum() + layers.twins[3].sum()).item()
        del total
        assert live_bytes() == before

    def test_a_program_that_reads_all_takes_the_store(self, layers: Layers, calls: Calls) -> None:
        """Rolled or not: nothing is copied, before the program or by it."""
        total = sum(layer.square().sum() for layer in layers.layers)
        spmd.sync()
        assert calls.since() == {}
        assert "4 of 4 inputs are rows of 1 stores" in spmd.metrics.compiles()[-1].cause
        check(total, sum(twin.square().sum() for twin in layers.twins))

    def test_beside_a_barrier(self, layers: Layers) -> None:
        """Another thread's reads and steps that overwrite in place."""
        found, errors = [], []

        def read() -> None:
            try:
                for _ in range(30):
                    found.append(sum(shard.data.sum() for shard in spmd.local_shards(layers.layers[1])))
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        while thread.is_alive():
            layers.step()
        thread.join()
        assert not errors
        total = layers.twins[1].sum()
        both = {total.item(), (-total + layers.twins[1].numel()).item()}
        assert {value.item() for value in found} <= both


class TestWriting:
    """A row is written as a tensor that has a buffer of its own, and is a row again when its family is next taken."""

    def joins_again(self, layers: Layers, calls: Calls, place: int) -> None:
        """At the cost of one row."""
        assert leaf(layers.layers[place]).store is None and len(layers.stores()) == 2
        layers.check()
        calls.since()
        layers.step()
        assert calls.since() == {"with_row": 1}
        assert len(layers.stores()) == 1 and leaf(layers.layers[place]).row == place
        layers.check()

    def test_in_place(self, layers: Layers, calls: Calls) -> None:
        for values in (layers.layers, layers.twins):
            values[2].mul_(3)
        spmd.sync()
        self.joins_again(layers, calls, 2)

    def test_through_data(self, layers: Layers, calls: Calls) -> None:
        fresh = distinct(16, 4)
        layers.layers[0].data = fresh.to("xla")
        layers.twins[0] = fresh.clone()
        self.joins_again(layers, calls, 0)

    def test_copy(self, layers: Layers, calls: Calls) -> None:
        fresh = distinct(16, 4)
        layers.layers[3].copy_(fresh)
        layers.twins[3].copy_(fresh)
        self.joins_again(layers, calls, 3)

    def test_a_state_dict(self, layers: Layers, calls: Calls) -> None:
        """All rows are new data, and a new store."""
        state = {f"layers.{i}": distinct(16, 4) for i in range(LAYERS)}
        layers.load_state_dict(state)
        layers.twins = [value.clone() for value in state.values()]
        layers.check()
        calls.since()
        layers.step()
        assert calls.since() == {"stacked": 1}
        layers.check()

    def test_a_name_for_the_old_value(self, layers: Layers, calls: Calls) -> None:
        """What was a row when it was copied stays as it was."""
        kept = [layer.clone() for layer in layers.layers]
        old = [twin.clone() for twin in layers.twins]
        layers.step()
        layers.check()
        for one, other in zip(kept, old, strict=True):
            check(one, other)
        layers.step()
        layers.check()
        for one, other in zip(kept, old, strict=True):
            check(one, other)

    def test_another_layout(self, layers: Layers) -> None:
        """A row that is marked anew leaves the store."""
        mesh = spmd.Mesh(range(8), (8,), ("fsdp",))
        spmd.mark_sharding(layers.layers[1], mesh, (None, None))
        assert leaf(layers.layers[1]).store is None
        for _ in range(2):
            layers.step()
        layers.check()
        assert spmd.get_sharding(layers.layers[1]).is_replicated()
        spmd.mark_sharding(layers.layers[1], mesh, ("fsdp", None))
        for _ in range(2):
            layers.step()
        layers.check()
        assert len(layers.stores()) == 1 and None not in layers.stores()

    def test_one_is_frozen(self, layers: Layers, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
        """A row that a program reads and does not write comes out as it went in; the store is overwritten in place."""
        monkeypatch.setattr(launch, "form", families.none)
        for seed in range(3):
            for values in (layers.layers, layers.twins):
                total = sum(value.sum() for value in values)
                for i in (0, 1, 3):
                    values[i].add_(total * seed)
            spmd.sync()
            assert len(layers.stores()) == 1 and None not in layers.stores()
        assert calls.since() == {}
        assert spmd.metrics.compiles()[-1].alias_bytes == LAYERS * 16 * 4 * 4 // 8
        layers.check()


class TestLife:
    """A store lives as long as one of its rows."""

    def test_a_layer_is_deleted(self, layers: Layers) -> None:
        store = weakref.ref(leaf(layers.layers[0]).store)
        layers.layers = nn.ParameterList(layer for i, layer in enumerate(layers.layers) if i != 1)
        del layers.twins[1]
        gc.collect()
        layers.check()
        assert store() is not None and store().leaf(1) is None
        layers.step()
        layers.check()
        assert store() is None and len(layers.stores()) == 1

    def test_all_are_deleted(self, mesh8: spmd.Mesh) -> None:
        before = live_bytes()
        layers = Layers(mesh8, 16, 4)
        layers.step()
        assert live_bytes() == before + LAYERS * 16 * 4 * 4
        del layers
        assert live_bytes() == before

    def test_memory_is_that_of_the_rows(self, mesh8: spmd.Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
        layers = Layers(mesh8, 16, 4)
        with monkeypatch.context() as patch:
            patch.setattr(launch, "form", families.none)
            layers.step()
        gc.collect()
        allocated = torch.xla.memory_allocated()
        layers.layers[0].mul_(2)  # another program, which is compiled with stores
        layers.step()
        assert len(layers.stores()) == 1 and None not in layers.stores()
        assert torch.xla.memory_allocated() == allocated

    def test_rows_become_one_family_at_a_time(self, mesh8: spmd.Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
        """So that the peak is the state and one family."""
        before = live_bytes()
        all_layers = [Layers(mesh8, 16, 4 * 2**i) for i in range(3)]
        sizes = [LAYERS * layers.layers[0].numel() * 4 for layers in all_layers]
        seen = []
        stacked = rows.stacked

        def watched(*args: Any) -> jax.Array:
            made = stacked(*args)
            seen.append(sum(array.nbytes for array in jax.live_arrays()) - before)
            return made

        monkeypatch.setattr(rows, "stacked", watched)
        for layers in all_layers:
            for layer in layers.layers:
                layer.mul_(2)
        spmd.sync()
        assert seen == [sum(sizes) + size for size in sizes]

    def test_saved_copied_and_moved(self, layers: Layers, tmp_path: Path) -> None:
        one, other = layers.layers[1], layers.twins[1]
        torch.save(one.data, tmp_path / "row.pt")
        assert (tmp_path / "row.pt").stat().st_size < 2 * one.numel() * 4 + 2000
        check(torch.load(tmp_path / "row.pt"), other)
        check(copy.deepcopy(one), other)
        check(pickle.loads(pickle.dumps(one.data)), other)
        for name, value in layers.state_dict().items():
            check(value, layers.twins[int(name.split(".")[1])])
        before = [id(layer) for layer in layers.layers]
        layers.to("cpu")
        assert all(torch.equal(a, b) for a, b in zip(layers.layers, layers.twins, strict=True))
        layers.to("xla")
        assert [id(layer) for layer in layers.layers] == before
        layers.step()
        layers.check()

    def test_a_row_that_another_library_holds(self) -> None:
        """It is a copy, which later steps do not touch; they overwrite the store in place all the same."""
        layers = Layers(None, 8, 2)
        layers.step()
        taken = np.from_dlpack(layers.layers[1].data)
        expected = layers.twins[1].numpy().copy()
        for _ in range(2):
            layers.step()
            assert (taken == expected).all()
        assert spmd.metrics.compiles()[-1].alias_bytes == LAYERS * 8 * 2 * 4
        layers.check()


class TestPrograms:
    """Programs that see the same leaves differently do not copy whole families to and fro."""

    def test_before_and_after(self, mesh8: spmd.Mesh, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
        """A program that ran on single leaves runs on stores as another one, and still on the leaves of another model:
        the average's, which is never trained."""
        layers, average = Layers(mesh8, 24, 4), Layers(mesh8, 24, 4)
        monkeypatch.setattr(launch, "form", families.none)

        def evaluate(of: Layers) -> None:
            total = sum(layer.square().sum() for layer in of.layers)
            spmd.sync()
            check(total, sum(twin.square().sum() for twin in of.twins))

        evaluate(layers)
        monkeypatch.setattr(launch, "form", alike)
        layers.step()
        calls.since()
        monkeypatch.setattr(launch, "form", families.none)
        count = len(spmd.metrics.compiles())
        for _ in range(2):
            evaluate(layers)
            evaluate(average)
            layers.step()
        (record,) = spmd.metrics.compiles()[count:]
        assert record.cause.startswith("the same ops, on data that lies in other stores; 4 of 4 inputs")
        assert calls.since() == {} and average.stores() == {None}

    def test_a_family_of_some_rows(self, layers: Layers, calls: Calls) -> None:
        """It is a copy for this run, if nothing is written."""
        total = sum(layer.square().sum() for layer in layers.layers[:3])
        spmd.sync()
        check(total, sum(twin.square().sum() for twin in layers.twins[:3]))
        assert calls.since() == {"row": 3, "stacked": 1}
        layers.step()
        assert calls.since() == {} and len(layers.stores()) == 1
        layers.check()

    def test_some_rows_are_written_together(self, layers: Layers, calls: Calls) -> None:
        for values in (layers.layers, layers.twins):
            for i in (0, 1, 2):
                values[i].mul_(3)
        spmd.sync()
        layers.check()
        layers.step()
        layers.check()
        layers.step()
        layers.check()
        assert len(layers.stores()) == 1 and None not in layers.stores()

    def test_the_text_of_a_program(self, layers: Layers) -> None:
        for layer in layers.layers:
            layer.add_(1)
        assert "tensor<4x16x4xf32>" in spmd.get_stablehlo()


class TestFailing:
    """What fails gives up no more than it must, and every row says so."""

    def test_a_run_that_loses_its_store(self, layers: Layers, monkeypatch: pytest.MonkeyPatch) -> None:
        other = spmd.mark_sharding(torch.ones(8).to("xla"), spmd.Mesh(range(8), (8,), ("fsdp",)), ("fsdp",))
        spmd.sync()
        layers.step()
        program = cache.last_program()

        def lost(*buffers: Any) -> None:
            buffers[0].delete()
            raise KeyboardInterrupt

        monkeypatch.setattr(program, "executable", lost)
        with pytest.raises(KeyboardInterrupt):
            layers.step()
        for layer in layers.layers:
            with pytest.raises(RuntimeError, match=r"donated to the run at .*test_stores\.py"):
                layer.cpu()
        check(other, torch.ones(8))
        monkeypatch.undo()
        monkeypatch.setattr(launch, "form", alike)
        for i, layer in enumerate(layers.layers):
            layer.data = layers.twins[i].to("xla")
        layers.step()
        layers.check()

    def test_a_run_that_keeps_its_store(self) -> None:
        """A callback that raises: nothing was donated."""
        layers = Layers(None, 8, 2)
        layers.step()

        def broken(x: np.ndarray) -> np.ndarray:
            raise ValueError("no")

        def call(x: jax.Array) -> jax.Array:
            return jax.pure_callback(broken, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

        for layer in layers.layers:
            layer.mul_(2)
        layers.layers[0].add_(spmd.call_jax(call, layers.layers[1].sum()))
        with pytest.raises(RuntimeError):
            spmd.sync()
        layers.check()
        layers.step()
        layers.check()

    def test_a_guard(self, layers: Layers) -> None:
        """Nothing is written inside a NaN guard that finds one; what it lets pass joins again."""
        with pytest.raises(FloatingPointError), spmd.nan_guard():
            layers.layers[0].mul_(2).div_(0)
            total = sum(layer.sum() for layer in layers.layers[1:])
        layers.check()
        check(total, sum(twin.sum() for twin in layers.twins[1:]))
        with spmd.nan_guard():
            layers.step()
        layers.check()
        layers.step()
        layers.check()
        assert len(layers.stores()) == 1 and None not in layers.stores()
