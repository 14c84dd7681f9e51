"""`torch_xla.compile`, `_XLAC`, random states, metrics: what the adapters add to functions of
ours."""

import copy
import functools
import queue
from typing import Any

import pytest
import torch
from functorch.compile import min_cut_rematerialization_partition
from support import check

import spmd
from spmd.torch_xla import (
    compiled_step,
    custom_kernel,
    execution_time,
    script_tools,
    xla_loops,
    xla_metrics,
    xla_model,
    xlac,
)


class TestCompile:
    """compile(f, full_graph, name, max_different_graphs, custom_compile_options), step()."""

    def test_one_program_with_a_sync_around(self) -> None:
        before = torch.ones(2, device="xla") + 1
        with compiled_step.step():
            assert spmd.residence(before) == "devices"
            inside = before + 1
            assert spmd.residence(inside) == "pending"
        assert spmd.residence(inside) == "devices"

    def test_an_exception_comes_out(self) -> None:
        with pytest.raises(KeyError), compiled_step.step():
            raise KeyError

    def test_full_graph(self) -> None:
        @compiled_step.compile(full_graph=True)
        def step(x: torch.Tensor, *, reads: bool) -> torch.Tensor:
            y = x.cos()
            return y * 2 if not reads or y.sum().item() > 0 else y

        x = torch.ones(2, device="xla")
        check(step(x, reads=False), torch.ones(2).cos() * 2)
        with pytest.raises(RuntimeError, match=r"full_graph=True.*after the function"):
            step(x, reads=True)
        check(step(x, reads=False), torch.ones(2).cos() * 2)
        assert x.sum().item() == 2  # outside of it reads are free again

    @pytest.mark.parametrize("make", [torch.ones, torch.randn])
    def test_full_graph_with_a_read_of_the_input(self, make: Any) -> None:
        @compiled_step.compile(full_graph=True)
        def step(t: torch.Tensor) -> torch.Tensor:
            return t + 1 if t[0][0] > 0 else t - 1

        for t in (make(3, 3).to("xla"), make(3, 3, device="xla") * 2):
            spmd.sync()
            with pytest.raises(RuntimeError, match=r"read of a value, .*full_graph=True; read it"):
                step(t)
            assert (t[0][0] > 0).item() in (True, False)

    def test_max_different_graphs_of_a_function(self) -> None:
        def function(x: torch.Tensor) -> torch.Tensor:
            return x.sinh() - 1

        for size in (3, 4, 3):
            compiled_step.compile(function, max_different_graphs=2)(torch.ones(size, device="xla"))
        with pytest.raises(RuntimeError, match="2 were before"):
            compiled_step.compile(function, max_different_graphs=2)(torch.ones(5, device="xla"))
        spmd.sync()

    def test_max_different_graphs(self) -> None:
        step = compiled_step.compile(lambda x: x.cosh() - 1, max_different_graphs=2)
        for size in (3, 4, 3):
            step(torch.ones(size, device="xla"))
        with pytest.raises(RuntimeError, match="2 were before"):
            step(torch.ones(5, device="xla"))
        spmd.sync()

    def test_options(self) -> None:
        seen: list[str] = []
        before = spmd.config.compiler_options
        step = compiled_step.compile(
            lambda: seen.append(spmd.config.compiler_options),
            custom_compile_options={"xla_a": True, "xla_b": 3},
        )
        step()
        assert seen == ["auto xla_a=True xla_b=3"] and spmd.config.compiler_options == before

    @pytest.mark.parametrize("full_graph", [False, True])
    def test_leaves_the_eager_mode(self, full_graph: bool) -> None:
        """One program a call; outside of it each op runs by itself again."""
        modes: list[bool] = []

        @compiled_step.compile(full_graph=full_graph)
        def step(x: torch.Tensor) -> torch.Tensor:
            modes.append(xla_loops.is_eager_mode())
            return x.tan().sin() + 1

        x = torch.ones(3, device="xla")
        with xla_loops.eager_mode_context(True):
            runs = spmd.metrics.counter("runs")
            results = [step(x), step(x)]
            assert spmd.metrics.counter("runs") - runs == 2 and modes == [False, False]
            check(results[1], torch.ones(3).tan().sin() + 1)
            assert xla_loops.is_eager_mode() and spmd.residence(x + 1) == "devices"

    def test_no_function(self) -> None:
        with pytest.raises(TypeError, match="expected a function"):
            compiled_step.compile(3)  # type: ignore[arg-type]


class TestXlac:
    """Shardings and programs as text."""

    def test_shardings(self, mesh2x4: spmd.Mesh) -> None:
        x = spmd.mark_sharding(torch.ones(8, 4, device="xla"), mesh2x4, ("data", None))
        rows = xlac._get_xla_sharding_specs([x, torch.ones(2)])
        assert rows == ["{devices=[2,1,4]0,1,2,3,4,5,6,7 last_tile_dim_replicate}", ""]
        assert xlac._get_xla_sharding_type(x) == spmd.torch_xla.ShardingType.PARTIAL
        y = torch.ones(8, 4, device="xla")
        xlac._xla_mark_sharding(y, mesh2x4.get_op_sharding(("data", None)))
        assert spmd.get_sharding(y) == spmd.get_sharding(x)

    def test_hlo_has_shardings(self, mesh8: spmd.Mesh) -> None:
        x = spmd.mark_sharding(torch.ones(8, device="xla") * 2, mesh8, ("fsdp",))
        text = xlac._get_xla_tensors_hlo([x + 1])
        assert text.startswith("HloModule")
        assert "devices=[8]" in text if spmd.config.partitioner == "gspmd" else "fsdp" in text

    def test_hlo_after_the_passes(self, mesh8: spmd.Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
        x = spmd.mark_sharding(torch.ones(2, 8).to("xla"), mesh8, (None, "fsdp"))
        assert "all-reduce" not in xlac._get_xla_tensors_hlo([x.sum()])
        monkeypatch.setenv("XLA_DUMP_POST_OPTIMIZATIONS", "1")
        assert "all-reduce" in xlac._get_xla_tensors_hlo([x.sum()])


class TestDebugging:
    """What is printed and compared of a tensor and its graph; callbacks."""

    def test_debug_info(self, mesh8: spmd.Mesh) -> None:
        info = xlac._get_xla_tensor_debug_info
        x = torch.ones(8, 2).to("xla")
        assert "Tensor on host: with size [8, 2]" in info(x) and "IR: None" in info(x)
        y = spmd.mark_sharding(x, mesh8, ("fsdp", None)) * 2
        assert "[] aten::mul, xla_shape=f32[8,2]{1,0}" in info(y) and "XLAData: None" in info(y)
        assert "ShardingSpec: {devices=[8,1]0,1,2,3,4,5,6,7}" in info(x)
        spmd.sync()
        assert "Data Shape: f32[8,2]{1,0}" in info(y) and "IR: None" in info(y)
        assert info(torch.ones(2)) == "Not a XLATensor\n"
        for dtype, name in (
            (torch.bool, "pred"),
            (torch.bfloat16, "bf16"),
            (torch.complex64, "c64"),
            (torch.uint8, "u8"),
            (torch.int64, "s64"),
        ):
            assert f"XLA Shape: {name}[1]{{0}}" in info(torch.zeros(1, dtype=dtype, device="xla"))

    def test_graph_hash(self) -> None:
        x = torch.ones(3, device="xla")
        spmd.sync()
        assert xlac._get_graph_hash([x.sin()]) == xlac._get_graph_hash([x.sin()])
        assert xlac._get_graph_hash([x.sin()]) != xlac._get_graph_hash([x.cos()])

    def test_callbacks(self) -> None:
        x = torch.ones(3, device="xla") + 1
        seen: queue.Queue[torch.Tensor] = queue.Queue()
        execution_time.on_ready_callback(x, seen.put)
        assert seen.get(timeout=60) is x
        assert execution_time.on_ready_event(x * 2).wait(60)
        with pytest.raises(TypeError, match="on_ready_callback: expected a tensor on xla"):
            execution_time.on_ready_event(torch.ones(2))

    def test_nones(self) -> None:
        remover = script_tools.NoneRemover()
        values = ["a", None, "b", None]
        assert remover.remove_nones(values) is values and values == ["a", "b"]
        assert remover.add_nones(("a", "b")) == ("a", None, "b", None)
        with pytest.raises(TypeError, match="expected a list or a tuple, got dict"):
            remover.remove_nones({})


class TestRandomState:
    """One number, which seeds, restores, and fits an int64 tensor."""

    def test_seeds_as_torch_does(self) -> None:
        torch.manual_seed(5)
        expected = torch.rand(3, device="xla").tolist()
        xla_model.set_rng_state(5)
        assert torch.rand(3, device="xla").tolist() == expected

    @pytest.mark.parametrize("seed", [0, 7, -3, 1 << 62])
    def test_restored(self, seed: int) -> None:
        torch.manual_seed(seed)
        torch.rand(3, device="xla")
        state = int(torch.tensor(xla_model.get_rng_state()))
        expected = torch.rand(3, device="xla").tolist()
        torch.rand(3, device="xla")
        xla_model.set_rng_state(state)
        assert torch.rand(3, device="xla").tolist() == expected
        assert xla_model.get_rng_state() == state + (1 << 32)

    def test_forked(self) -> None:
        state = xla_model.get_rng_state()
        with xla_model.fork_rng():
            torch.rand(2, device="xla")
        assert xla_model.get_rng_state() == state


class TestMetrics:
    """Counters by both names, times in nanoseconds."""

    def test_counted(self) -> None:
        xla_metrics.clear_all()
        assert xla_metrics.metric_names() == [] and xla_metrics.counter_value("MarkStep") is None
        torch.ones(2, 3, 5, device="xla").sinh()
        y = torch.ones(2, 3, 5, device="xla").sinh()
        spmd.sync()
        assert y is not None and xla_metrics.counter_value("MarkStep") == 1
        assert (
            xla_metrics.counter_value("UncachedCompile")
            == spmd.metrics.counter("programs_compiled")
            == 1
        )
        count, total, samples = xla_metrics.metric_data("CompileTime") or (0, 0, ())
        assert (
            count == len(samples) == 1
            and total == samples[0][1] == spmd.metrics.compiles()[0].seconds * 1e9
        )
        assert "Counter: UncachedCompile\n  Value: 1" in xla_metrics.short_metrics_report()
        assert {"MarkStep", "syncs"} <= set(xla_metrics.counter_names())


class TestFlashAttention:
    """Scores without a scale, segments, causal rows."""

    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("segments", [False, True])
    def test_values(self, causal: bool, segments: bool) -> None:
        q, k, v = torch.randn(3, 2, 2, 6, 4)
        ids = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 2, 2]])
        scores = q @ k.mT
        if causal:
            scores = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), float("-inf"))
        if segments:
            scores = scores.masked_fill(
                (ids[:, :, None] != ids[:, None]).unsqueeze(1), float("-inf")
            )
        how: dict[str, Any] = (
            {"q_segment_ids": ids.to("xla"), "kv_segment_ids": ids.to("xla")} if segments else {}
        )
        made = custom_kernel.flash_attention(*(part.to("xla") for part in (q, k, v)), causal, **how)
        check(made, scores.softmax(-1) @ v)


class TestLoops:
    """Arguments that ours have not."""

    def test_further_inputs(self) -> None:
        limit = torch.tensor(20.0).to("xla")
        last = xla_loops.while_loop(
            lambda x, top: x < top, lambda x, top: (x * 3,), (limit / 20,), (limit,)
        )
        assert last[0].item() == 27

    def test_partition_fn(self) -> None:
        rows = torch.arange(3.0).to("xla")
        with pytest.warns(
            UserWarning, match=r"partition_fn min is not called, backward recomputes all"
        ):
            xla_loops.scan(lambda a, b: (a + b, a), rows[0], rows, partition_fn=min)
        _, ys = xla_loops.scan(
            lambda a, b: (a + b, a), rows[0], rows, partition_fn=xla_loops.default_partition
        )
        assert ys.tolist() == [0, 0, 1]

    def test_min_cut_recomputes(self) -> None:
        """What lies between products is computed again in backward; values and gradients stay."""
        layers = [
            torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.GELU())
            for _ in range(3)
        ]
        expected = torch.nn.Sequential(*copy.deepcopy(layers))(torch.ones(2, 8)).sum()
        stacked = [copy.deepcopy(layer).to("xla") for layer in layers]
        cut = functools.partial(min_cut_rematerialization_partition)
        tanhs = {}
        for partition_fn in (xla_loops.default_partition, cut):
            for layer in stacked:
                layer.zero_grad()
            loss = xla_loops.scan_layers(
                stacked, torch.ones(2, 8, device="xla"), partition_fn=partition_fn
            ).sum()
            loss.backward()
            grads = [layer[0].weight.grad for layer in stacked]
            tanhs[partition_fn] = spmd.get_stablehlo([loss, *grads]).count("stablehlo.tanh")
            torch.testing.assert_close(loss.cpu(), expected)
        assert tanhs[cut] > tanhs[xla_loops.default_partition]

    def test_layers_of_tuples(self) -> None:
        """A tuple is a layer's arguments; what a forward sets on its layer does not stay for the
        next step."""

        class Layer(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = torch.nn.Linear(4, 4)

            def forward(
                self, x: torch.Tensor, scale: torch.Tensor
            ) -> tuple[torch.Tensor, torch.Tensor]:
                self.last = x
                return self.linear(x) * scale, scale

        layers = torch.nn.ModuleList(Layer() for _ in range(3))
        x, scale = torch.randn(2, 4), torch.tensor(0.5)
        expected: Any = (x, scale)
        for layer in layers:
            expected = layer(*expected)
        expected[0].sum().backward()
        grads = [layer.linear.weight.grad for layer in layers]
        for layer in layers:
            del layer.last
        layers.zero_grad()
        layers.to("xla")
        for _ in range(2):
            layers.zero_grad()
            y, _ = xla_loops.scan_layers(layers, (x.to("xla"), scale.to("xla")))
            y.sum().backward()
            check(y, expected[0])
            for layer, grad in zip(layers, grads, strict=True):
                check(layer.linear.weight.grad, grad)

    def test_eager_mode(self) -> None:
        with xla_loops.eager_mode_context(True):
            x = torch.ones(2, device="xla") + 1
            assert spmd.residence(x) == "devices"
        assert spmd.residence(x + 1) == "pending" and not xla_loops.is_eager_mode()
