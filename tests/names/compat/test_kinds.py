"""Results of PyTorch/XLA's functions have the kinds of theirs, and names that scripts use do what
theirs do."""

import dataclasses
import functools
import importlib
import io
import types
from collections.abc import Iterator
from typing import Any

import jax
import pytest
import torch
from support import check, run_script
from torch import nn

import fsdp
import spmd
from spmd.torch_xla import (
    custom_kernel,
    device_replicas,
    sample_data,
    script_tools,
    training_log,
    xla_metrics,
    xla_model,
    xla_ops,
    xla_runtime,
)


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    spmd.compat.install()
    yield
    spmd.compat.uninstall()


def _device(value: Any) -> str:
    return value.device.type


class TestModel:
    """torch_xla.core.xla_model."""

    def test_a_tensor_comes_back_in_a_list(self) -> None:
        t = torch.arange(6.0).view(2, 3)
        moved = xla_model.send_cpu_data_to_device(t, "xla:0")
        assert isinstance(moved, list) and len(moved) == 1 and moved[0].shape == t.shape
        check(moved[0], t)
        assert _device(xla_model.send_cpu_data_to_device([t], "xla:0")[0]) == "xla"
        assert _device(xla_model.send_cpu_data_to_device({"x": t}, "xla:0")["x"]) == "xla"

    def test_tensors_of_a_plain_object_move(self) -> None:
        class Batch:
            def __init__(self) -> None:
                self.x, self.inner, self.itself = torch.ones(2), [torch.zeros(3)], self

        batch = Batch()
        moved = xla_model.send_cpu_data_to_device([batch], "xla:0")[0]
        assert _device(moved.x) == _device(moved.inner[0]) == "xla" and _device(batch.x) == "cpu"
        loader = importlib.import_module("torch_xla.distributed.parallel_loader").MpDeviceLoader(
            [batch], "xla:0"
        )
        assert [_device(one.x) for one in loader] == ["xla"]
        saved = xla_model.to_cpu([moved])[0]
        assert _device(saved.x) == _device(saved.inner[0]) == "cpu"

    def test_devices(self) -> None:
        assert xla_model.get_xla_supported_devices(2) == ["xla:0"]
        assert len(xla_model.xla_real_devices()) == 8 and xla_model.xla_real_devices(["xla:0"]) == [
            "CPU:0"
        ]
        assert xla_model.xla_replication_devices(["xla:0"]) == xla_model.real_devices()
        assert xla_model.xla_device_kind() == jax.devices()[0].device_kind
        attributes = xla_runtime.runtime_device_attributes("CPU:3")
        assert isinstance(attributes, dict) and attributes["name"] == "CPU:3"
        assert [one["id"] for one in xla_runtime.global_runtime_device_attributes()] == [*range(8)]

    def test_views(self) -> None:
        x = torch.ones(2, 2, device="xla")
        xla_model.check_view_sharing({"a": x, "b": [x], "c": torch.ones(2)})
        with pytest.raises(RuntimeError, match="is a view of the memory of"):
            xla_model.check_view_sharing([x, x.view(4)])
        assert xla_model.is_xla_tensor(x) and not xla_model.is_xla_tensor(torch.ones(1))

    def test_save_and_load(self) -> None:
        serialization = importlib.import_module("torch_xla.utils.serialization")
        file = io.BytesIO()
        serialization.save({"w": torch.ones(2, device="xla")}, path=file)
        check(serialization.load(path=io.BytesIO(file.getvalue()))["w"], torch.ones(2))


class TestNames:
    """Modules that stopped most files."""

    def test_variables(self) -> None:
        xenv = importlib.import_module("torch_xla.core.xla_env_vars")
        assert (
            xenv.PJRT_DEVICE == "PJRT_DEVICE"
            and xenv.TPU_MESH_CTLER_ADDR == "TPU_MESH_CONTROLLER_ADDRESS"
        )

    def test_the_backend_is_there(self) -> None:
        importlib.import_module("torch_xla.distributed.xla_backend")
        with pytest.raises(NotImplementedError, match='the group "xla" by init_process_group'):
            exec("from torch_xla.distributed.xla_backend import ProcessGroupXla as G; G()")
        assert importlib.import_module("torch_xla").xm is importlib.import_module(
            "torch_xla.core.xla_model"
        )

    def test_names_of_parameters(self) -> None:
        xs = importlib.import_module("torch_xla.distributed.spmd")
        mesh, t = xs.Mesh(range(8), (8,), ("data",)), torch.arange(8.0).to("xla")
        assert xs.mark_sharding(t=t, mesh=mesh, partition_spec=("data",)) is t
        assert xs.mark_sharding(t, mesh, partition_spec=("data",)) is t and t.partition_spec == (
            "data",
        )
        assert xs.mark_sharding(tensor=t, mesh=mesh, partition_spec=(None,)).partition_spec == (
            None,
        )
        functions = importlib.import_module("torch_xla.core.functions")
        check(functions.all_reduce("sum", value=t, scale=2.0), torch.arange(8.0) * 2)
        wrap = importlib.import_module("torch_xla.distributed.fsdp.wrap")
        assert wrap.always_wrap_policy(nn.Linear(2, 2), recurse=True, unwrapped_params=3)

    def test_precision(self) -> None:
        backends = importlib.import_module("torch_xla.backends")
        try:
            for precision in ("default", "high", "highest"):
                backends.set_mat_mul_precision(precision)
                assert backends.get_mat_mul_precision() == precision
            with pytest.raises(
                ValueError, match="expected 'default', 'high' or 'highest', got 'low'"
            ):
                backends.set_mat_mul_precision("low")
        finally:
            torch.set_float32_matmul_precision("highest")

    def test_jax_and_dynamo(self) -> None:
        builder = importlib.import_module("torch_xla.core.xla_builder")
        x = torch.arange(4.0)
        check(builder.call_jax(jax.numpy.add, args=(x.to("xla"), 1)), x + 1)
        with pytest.raises(AttributeError, match=r"spmd\.call_jax makes an op"):
            _ = builder.create_builder
        backend = importlib.import_module("torch_xla._dynamo.dynamo_backend2").dynamo_backend
        check(torch.compile(lambda x: x.exp() + 1, backend=backend)(x.to("xla")), x.exp() + 1)
        bridge = importlib.import_module("torch_xla.core.dynamo_bridge")
        graph = bridge.extract_compiled_graph(torch.fx.symbolic_trace(nn.ReLU()), [x])
        check(graph(x.to("xla") - 2), torch.relu(x - 2))

    def test_ops(self) -> None:
        mesh, x = spmd.Mesh(range(8), (8,), ("data",)), torch.arange(16.0).view(8, 2)
        marked = torch.ops.xla.dynamo_mark_sharding(
            x.to("xla"), [*range(8)], [8], "('data',)", "('data', None)"
        )
        assert marked.partition_spec == ("data", None)
        w = torch.ones(8, 2, device="xla", requires_grad=True)
        torch.ops.xla.aot_mark_sharding(w, str(mesh), "('data', None)").mul(
            x.to("xla")
        ).sum().backward()
        check(w.grad, x)
        assert w.grad.partition_spec == ("data", None)
        weight, bias = torch.randn(3, 2), torch.randn(3)
        linear = torch.ops.xla.einsum_linear_forward(x.to("xla"), weight.to("xla"), bias.to("xla"))
        check(linear, nn.functional.linear(x, weight, bias))
        t = torch.ones(2, device="xla")
        assert torch.ops.xla.dynamo_set_buffer_donor_(t, True) is t

    def test_marks_under_torch_compile(self) -> None:
        text = str(spmd.Mesh(range(8), (8,), ("data",)))

        @torch.compile(backend="openxla")
        def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            y = x + 1
            torch.ops.xla.dynamo_mark_sharding(y, [*range(8)], [8], "('data',)", "('data',)")
            return y * torch.ops.xla.aot_mark_sharding(w, text, "('data',)")

        x, w = torch.arange(16.0), torch.ones(16, device="xla", requires_grad=True)
        result = function(x.to("xla"), w)
        result.sum().backward()
        check(result, x + 1)
        check(w.grad, x + 1)
        assert result.partition_spec == w.grad.partition_spec == ("data",)

    def test_repeat_of_a_fixed_length(self) -> None:
        x, repeats = torch.randn(5), torch.tensor([2, 0, 3, 1, 0])
        whole = torch.repeat_interleave(x, repeats)
        repeat = custom_kernel.repeat_with_fixed_output_size
        check(repeat(x.to("xla"), repeats.to("xla"), 4), whole[:4])
        check(repeat(x.to("xla"), repeats.to("xla"), 8), torch.cat([whole, x[-1:].expand(2)]))

    def test_ops_are_there_at_once(self) -> None:
        script = "import spmd; spmd.compat.install(); import torch; print(torch.ops.xla.gmm)"
        assert run_script(script).strip() == "xla.gmm"

    def test_ops_have_torch_s_names_in_graphs(self) -> None:
        script = """
            import spmd; spmd.compat.install()
            import torch
            from torch_xla.experimental.unbounded_dynamism_export import *

            graph = torch.fx.Graph()
            x = graph.placeholder("x")
            op = torch.ops.xla.dynamic_view.default
            graph.output(graph.call_function(op, (x, [1], x, 0, 0, 1)))
            print(graph.python_code("self").src, remove_no_op_slice.__module__)
        """
        printed = run_script(script)
        assert "torch.ops.xla.dynamic_view.default(x, [1], x, 0, 0, 1)" in printed
        assert printed.strip().endswith("spmd.names.torch_xla.unbounded_dynamism")

    def test_ops_that_are_not_here(self) -> None:
        for name, hint in {
            "bgmv": r"call a Pallas kernel by spmd\.call_jax, or torch's own op",
            "quantized_matmul_int8": r"torch\._weight_int8pack_mm",
            "gmm_backward": "gmm, which has gradients",
        }.items():
            with pytest.raises(
                AttributeError, match=rf"torch\.ops\.xla\.{name} of PyTorch/XLA is not .*{hint}"
            ):
                getattr(torch.ops.xla, name)
        assert not hasattr(torch.ops.xla, "bgmv_expand")

    def test_products_of_groups(self) -> None:
        kernels = importlib.import_module("torch_xla.experimental.custom_kernel")
        rows, weights, sizes = torch.randn(8, 16), torch.randn(3, 16, 8), torch.tensor([3, 0, 5])
        grad, parts = torch.randn(8, 8), rows.split(sizes.tolist())
        expected = torch.cat([part @ weight for part, weight in zip(parts, weights, strict=True)])
        of_weights = torch.stack(
            [part.T @ one for part, one in zip(parts, grad.split(sizes.tolist()), strict=True)]
        )
        x, w = rows.to("xla").requires_grad_(), weights.to("xla").requires_grad_()
        for gmm, tgmm in ((kernels.gmm, kernels.tgmm), (torch.ops.xla.gmm, torch.ops.xla.tgmm)):
            made = gmm(x, w, sizes.to("xla"), tiling=(8, 8, 8))
            check(made, expected)
            check(tgmm(x.detach().T, grad.to("xla"), sizes.to("xla")), of_weights)
        check(torch.autograd.grad(made, w, grad.to("xla"))[0], of_weights)
        check(kernels.gmm(x, w.mT, sizes.to("xla"), transpose_rhs=True), expected)
        with pytest.raises(
            NotImplementedError, match="gmm: expected all groups, got a part of them"
        ):
            kernels.gmm(x, w, sizes.to("xla"), group_offset=torch.tensor([1]))

    def test_linear_patch(self) -> None:
        xu = importlib.import_module("torch_xla.distributed.fsdp.utils")
        model, x = nn.Sequential(nn.Linear(4, 2)), torch.randn(3, 4)
        expected = model(x) * 2
        xu.apply_xla_patch_to_nn_linear(
            model, lambda m, x: nn.functional.linear(x, m.weight, m.bias) * 2
        )
        check(model.to("xla")(x.to("xla")), expected)
        xs = importlib.import_module("torch_xla.distributed.spmd")
        check(xs.XLAPatchedLinear.apply(x, model[0].weight.cpu()), x @ model[0].weight.cpu().T)

    @pytest.mark.parametrize("is_training", [True, False])
    def test_batch_norm(self, is_training: bool) -> None:
        x = torch.randn(8, 3, 4)
        norm = xla_ops.SyncBatchNorm(3).train(is_training)
        expected = nn.functional.batch_norm(x, torch.zeros(3), torch.ones(3), training=is_training)
        moved = norm.to("xla")
        check(moved(x.to("xla")), expected)
        if is_training:
            check(moved.running_var, 0.9 + 0.1 * x.var((0, 2), correction=0))


class TestAttention:
    """splash_attention and FlashAttention against a softmax of all scores."""

    @pytest.mark.parametrize(
        ("settings", "how"),
        [
            ({}, {}),
            ({}, {"causal": False}),
            ({"attentiontype_local_sliding": True, "slide_window_size": 2}, {}),
            ({}, {"attn_logits_soft_cap": 2.0}),
            ({}, {"decoder_segment_ids": torch.tensor([[0, 0, 0, 1, 1, 1]])}),
        ],
    )
    def test_splash(self, settings: dict[str, Any], how: dict[str, Any]) -> None:
        q, k, v = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)
        config = custom_kernel.SplashAttentionConfig(**settings)
        keys, values = (one.repeat_interleave(2, 1) for one in (k, v))
        scores = q @ keys.transpose(-1, -2)
        cap = how.get("attn_logits_soft_cap")
        scores = scores if cap is None else cap * torch.tanh(scores / cap)
        rows, columns = torch.arange(6)[:, None], torch.arange(6)
        seen = rows >= columns if how.get("causal", True) else torch.ones(6, 6, dtype=torch.bool)
        seen = seen & ((rows - columns).abs() <= settings.get("slide_window_size", 6))
        ids = how.get("decoder_segment_ids")
        seen = seen if ids is None else seen & (ids[0][:, None] == ids[0])
        expected = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1) @ values
        how = {
            name: one.to("xla") if isinstance(one, torch.Tensor) else one
            for name, one in how.items()
        }
        check(
            custom_kernel.splash_attention(
                *(one.to("xla") for one in (q, k, v)), config.to_json(), **how
            ),
            expected,
        )

    def test_over_a_mesh(self) -> None:
        mesh = spmd.Mesh(range(8), (4, 2), ("data", "fsdp"))
        q = torch.randn(8, 2, 6, 4)
        config = custom_kernel.SplashAttentionConfig(mesh=str(mesh))
        heads = custom_kernel.splash_attention(*[q.to("xla")] * 3, config.to_json())
        assert heads.partition_spec == (("data", "fsdp"), None, None, None)
        check(heads, nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True, scale=1.0))

    def test_flash(self) -> None:
        q = torch.randn(1, 2, 6, 4)
        flash = importlib.import_module("torch_xla.experimental.custom_kernel").FlashAttention
        expected = nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True, scale=0.5)
        check(flash.apply(*[q.to("xla")] * 3, True, None, None, 0.5, None, None, None), expected)


class TestTools:
    """torch_xla.utils.utils, torch_xla.test.test_utils, metrics_compare_utils, data_parallel."""

    def test_rewriting(self) -> None:
        @dataclasses.dataclass
        class Item:
            value: Any

        shared = [1]
        tree = {"a": shared, "b": (shared, Item(2)), "c": {3}, "f": len}
        seen: list[int] = []
        script_tools.for_each_instance(tree, lambda x: isinstance(x, int), seen.append)
        assert sorted(seen) == [1, 2, 3]
        made = script_tools.for_each_instance_rewrite(
            tree, lambda x: isinstance(x, int), lambda x: x * 10
        )
        assert (
            made["a"] == [10]
            and made["b"][0] is made["a"]
            and made["b"][1].value == 20
            and made["c"] == {30}
        )
        assert made["f"] is len and tree["b"][1].value == 2 and isinstance(made["b"], list)

        class Wrapped(script_tools.DataWrapper):
            def get_tensors(self) -> list[Any]:
                return [1, 2]

            def from_tensors(self, tensors: list[Any]) -> Any:
                return tensors

        arena = script_tools.ToXlaTensorArena(
            lambda items: [-item for item in items], lambda x: isinstance(x, int)
        )
        assert arena.transform([Wrapped(), 3]) == [[-1, -2], -3] and arena.transform(["a"]) == ["a"]

    def test_a_wrapper_is_moved(self) -> None:
        class Wrapped(script_tools.DataWrapper):
            def get_tensors(self) -> list[Any]:
                return [torch.ones(2), None]

            def from_tensors(self, tensors: list[Any]) -> Any:
                return {"moved": tensors}

        for value, read in ((Wrapped(), lambda x: x), ([Wrapped()], lambda x: x[0])):
            tensors = read(xla_model.send_cpu_data_to_device(value, "xla"))["moved"]
            assert _device(tensors[0]) == "xla" and tensors[1] is None

    def test_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("A_FLAG", "0")
        assert script_tools.getenv_as("A_FLAG", bool) is False and not script_tools.check_env_flag(
            "A_FLAG", "1"
        )
        monkeypatch.setenv("A_FLAG", "true")
        assert (
            script_tools.check_env_flag("A_FLAG")
            and script_tools.getenv_as("NOT_SET", bool, True) is True
        )

    def test_generators(self) -> None:
        generator = sample_data.FnDataGenerator(torch.neg, 2, torch.ones, count=2)
        assert (
            next(generator)[0].shape == (2, 1)
            and len(list(generator)) == 2
            and next(generator)[1].sum() == -2
        )
        with pytest.raises(StopIteration):
            next(generator)

    def test_updates(self, capsys: pytest.CaptureFixture[str]) -> None:
        spmd.metrics.clear()  # ops that ran on the CPU before
        written: dict[str, float] = {}
        writer = types.SimpleNamespace(
            add_scalar=lambda name, value, step: written.update({name: value})
        )
        training_log.print_training_update(
            "xla:0", 1, 0.25, 10.0, 9.0, epoch=2, summary_writer=writer
        )
        assert (
            "| Training Device=xla:0/0 Epoch=2 Step=1 Loss=0.25000 Rate=10.00 GlobalRate=9.00 Time="
            in (capsys.readouterr().out)
        )
        assert written == {"examples/sec": 10.0, "average_examples/sec": 9.0}
        torch.ones(2, device="xla").add(1).cpu()
        training_log.write_to_summary(writer, 1, {"loss": 0.5}, write_xla_metrics=True)
        assert written["loss"] == 0.5 and written["aten_ops_sum"] == 0

    def test_reports(self) -> None:
        xla_metrics.clear_all()
        x = torch.ones(3, device="xla") + 1
        x.cpu()
        parsed = training_log.parse_metrics_report(xla_metrics.metrics_report())
        assert parsed["MarkStep__Value"] == xla_metrics.counter_value("MarkStep")
        count, total, _ = xla_metrics.metric_data("CompileTime") or (0, 0, ())
        assert parsed["CompileTime__TotalSamples"] == count
        assert parsed["CompileTime__Accumulator_sec"] == pytest.approx(total / 1e9, abs=1e-6)
        assert parsed["InboundData__Accumulator_mb"] == pytest.approx(12e-6)
        report = (
            "Metric: M\n  TotalSamples: 2\n  Accumulator: 01m02s003ms004.500us\n  Percentiles: "
            "1%=1.00KB; 99%=2"
        )
        texts = training_log.parse_metrics_report(report, dehumanize=False)
        assert texts["M__Accumulator_sec"] == (pytest.approx(62.0030045), "01m02s003ms004.500us")
        assert texts["M__Percentile_1_mb"] == (1e-3, "1.00KB") and texts["M__Percentile_99"] == (
            2.0,
            "2",
        )

    def test_data_parallel(self) -> None:
        def loop(model: nn.Module, loader: Any, device: torch.device, context: Any) -> int:
            context.calls = context.getattr_or("calls", 0) + 1
            return context.calls + sum(model(x).shape[0] for x in loader)

        model = device_replicas.DataParallel(lambda: nn.Linear(2, 1), device_ids=["xla:0"])
        assert model(loop, [torch.ones(3, 2)]) == [4] and model(loop, [torch.ones(3, 2)]) == [5]


class TestWrapped:
    """FSDP's wrappers, and tensors, as scripts look at them."""

    def test_chosen_modules_are_instances(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        policy = functools.partial(
            fsdp.transformer_auto_wrap_policy, transformer_layer_cls={nn.Linear}
        )
        mesh = spmd.Mesh(range(8), (8,), ("fsdp",))
        wrapped = fsdp.SpmdFullyShardedDataParallel(model, mesh=mesh, auto_wrap_policy=policy)
        kinds = [
            isinstance(one, fsdp.SpmdFullyShardedDataParallel)
            for one in (wrapped, wrapped[0], wrapped[1], model)
        ]
        assert kinds == [True, True, False, False] and wrapped._orig_module is model

    def test_of_the_first_one(self) -> None:
        mesh = spmd.Mesh(range(8), (8,), ("fsdp",))
        wrapped = fsdp.XlaFullyShardedDataParallel(nn.Linear(8, 4), False, False, mesh=mesh)
        assert [name for name, _ in wrapped.get_original_names_and_sharded_parameters()] == [
            "weight",
            "bias",
        ]
        assert len(wrapped.sharded_params) == 2 and isinstance(
            wrapped.sharded_params[0], nn.Parameter
        )

    def test_zero_by_position(self) -> None:
        with pytest.warns(UserWarning, match="optimizer_dtype.*save_master_weights"):
            optimizer = fsdp.ZeroRedundancyOptimizer(
                nn.Linear(2, 2, device="xla").parameters(),
                torch.optim.SGD,
                torch.float32,
                lr=0.1,
                save_master_weights=True,
            )
        assert optimizer.param_groups[0]["lr"] == 0.1

    def test_placements(self) -> None:
        x = spmd.mark_sharding(
            torch.ones(8, device="xla"), spmd.Mesh(range(8), (8,), ("data",)), ("data",)
        )
        assert [str(one) for one in x.placements] == ["S(0)"] and x.device_mesh.mesh_dim_names == (
            "data",
        )
        xst = spmd.torch_xla.XLAShardedTensor(torch.ones(2, device="xla"), requires_grad=True)
        assert xst.requires_grad

    def test_finalizing(self) -> None:
        unit = fsdp.fully_shard(nn.Linear(4, 2), mesh=spmd.Mesh(range(8), (8,), ("fsdp",)))
        with pytest.warns(UserWarning, match="set_keep_unsharded_storage"):
            unit.set_keep_unsharded_storage(True)
        with pytest.warns(UserWarning, match="set_manual_backward_finalization"):
            unit.set_manual_backward_finalization(True)
        assert unit.finalize_backward() is None
        unit.finalize_backward(async_op=True).wait()


def test_execution_is_measured_from_the_import_on() -> None:
    met = importlib.import_module("torch_xla.debug.metrics")
    met.clear_all()
    (torch.ones(2, device="xla") + 1).cpu()
    assert (
        met.metric_data("ExecuteTime")[0]
        == met.metric_data("DispatchTime")[0]
        == met.counter_value("MarkStep")
    )
