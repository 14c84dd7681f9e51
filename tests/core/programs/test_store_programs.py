"""Stores over their life: what frees them, what programs make of them, what fails."""

import copy
import dataclasses
import gc
import pickle
import weakref
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from alike import WHERE, alike, ungrouped
from stacking import LAYERS, Layers, leaf, live_bytes
from support import check
from torch import nn

import spmd
from spmd.core.graph import store
from spmd.core.graph.graph import Graph
from spmd.core.programs import cache

pytestmark = pytest.mark.usefixtures("stores")


class TestLife:
    """A store lives as long as one of its rows."""

    def test_a_layer_is_deleted(self, layers: Layers) -> None:
        store = weakref.ref(leaf(layers.layers[0]).store)
        layers.layers = nn.ParameterList(layer for i, layer in enumerate(layers.layers) if i != 1)
        del layers.twins[1]
        gc.collect()
        layers.check()
        assert store() is not None and store().device_data(1) is None
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

    def test_memory_is_that_of_the_rows(
        self, mesh8: spmd.Mesh, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        layers = Layers(mesh8, 16, 4)
        with monkeypatch.context() as patch:
            patch.setattr(*WHERE, ungrouped)
            layers.step()
        gc.collect()
        allocated = torch.xla.memory_allocated()
        layers.layers[0].mul_(2)  # another program, which is compiled with stores
        layers.step()
        assert len(layers.stores()) == 1 and None not in layers.stores()
        assert torch.xla.memory_allocated() == allocated
        cache.clear_cache()  # of the step that has no stores

    def test_rows_become_one_family_at_a_time(
        self, mesh8: spmd.Mesh, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So that the peak is the state and one family."""
        before = live_bytes()
        all_layers = [Layers(mesh8, 16, 4 * 2**i) for i in range(3)]
        sizes = [LAYERS * layers.layers[0].numel() * 4 for layers in all_layers]
        seen = []
        stacked = store.stacked

        def watched(*args: Any) -> jax.Array:
            made = stacked(*args)
            seen.append(sum(array.nbytes for array in jax.live_arrays()) - before)
            return made

        monkeypatch.setattr(store, "stacked", watched)
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
        """It is a copy, which later steps do not touch; they overwrite the store in place all the
        same."""
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

    def test_before_and_after(
        self, mesh8: spmd.Mesh, calls: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A program that ran on single leaves runs on stores as another one, and still on the
        leaves of another model: the average's, which is never trained."""
        layers, average = Layers(mesh8, 24, 4), Layers(mesh8, 24, 4)
        monkeypatch.setattr(*WHERE, ungrouped)

        def evaluate(of: Layers) -> None:
            total = sum(layer.square().sum() for layer in of.layers)
            spmd.sync()
            check(total, sum(twin.square().sum() for twin in of.twins))

        evaluate(layers)
        monkeypatch.setattr(*WHERE, alike)
        layers.step()
        calls.since()
        monkeypatch.setattr(*WHERE, ungrouped)
        count = len(spmd.metrics.compiles())
        for _ in range(2):
            evaluate(layers)
            evaluate(average)
            layers.step()
        (record,) = spmd.metrics.compiles()[count:]
        assert record.cause.startswith("the same ops, on data in other stores; 4 of 4 inputs")
        assert calls.since() == {} and average.stores() == {None}

    def test_a_family_of_some_rows(self, layers: Layers, calls: Any) -> None:
        """It is a copy for this run, if nothing is written."""
        total = sum(layer.square().sum() for layer in layers.layers[:3])
        spmd.sync()
        check(total, sum(twin.square().sum() for twin in layers.twins[:3]))
        assert calls.since() == {"row": 3, "stacked": 1}
        layers.step()
        assert calls.since() == {} and len(layers.stores()) == 1
        layers.check()

    def test_some_rows_are_written_together(self, layers: Layers, calls: Any) -> None:
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
    """A failure gives up no more than it must, and every row says so."""

    def test_a_run_that_loses_its_store(
        self, layers: Layers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = spmd.mark_sharding(
            torch.ones(8).to("xla"), spmd.Mesh(range(8), (8,), ("fsdp",)), ("fsdp",)
        )
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
            with pytest.raises(RuntimeError, match=r"donated to the run at .*stacking\.py"):
                layer.cpu()
        check(other, torch.ones(8))
        monkeypatch.undo()
        monkeypatch.setattr(*WHERE, alike)
        for i, layer in enumerate(layers.layers):
            layer.data = layers.twins[i].to("xla")
        layers.step()
        layers.check()

    def test_a_run_that_keeps_its_store(self) -> None:
        """A callback that raises: nothing was donated. The layers that it is of take their values
        back, the others wait for the next barrier."""
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
        for twin in layers.twins[2:]:
            twin.mul_(2)
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


class TestOneGraphTwoModels:
    """Models that share a graph, of which the leaves of one lie in a store more."""

    def test_what_is_given_up_for_one_is_decided_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each keeps its program, however XLA takes the other's stacks; and no further one is
        rolled in vain."""

        def rows_of_weights(graph: Graph, may_scan: bool = True) -> Graph:
            if not may_scan:
                return graph
            found = alike(graph)
            return dataclasses.replace(
                found,
                stack_groups=tuple(
                    each
                    for each in found.stack_groups
                    if graph.inputs[each[0]].meta.shape == (16, 4)
                ),
            )

        def total(model: tuple[Layers, Layers]) -> int:
            before = spmd.metrics.num_compiles()
            check(
                sum(layer.sum() for each in model for layer in each.layers),
                sum(twin.sum() for each in model for twin in each.twins),
            )
            return spmd.metrics.num_compiles() - before

        models = [(Layers(None, 16, 4), Layers(None, 8, 2)) for _ in range(3)]
        for _, more in models[::2]:
            more.step()  # these become rows
        monkeypatch.setattr(*WHERE, rows_of_weights)
        monkeypatch.setattr(cache, "refuse_loops", [lambda _, graph: len(graph.stack_groups) > 1])
        before = spmd.metrics.counter("loops_given_up")
        first = [total(model) for model in models]
        assert first[0] == 2 and [total(model) for _ in range(2) for model in models] == [0] * 6, (
            first
        )
        assert spmd.metrics.counter("loops_given_up") == before + 1
