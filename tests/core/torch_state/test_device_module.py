"""`torch.xla`, `torch.accelerator` and what torch's own device-generic code asks of them."""

import gc
import os
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch.utils.benchmark
from support import run_script
from torch import nn

import spmd

alone = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


class TestModule:
    """`torch.xla` answers what scripts written for torch.cuda ask of a device's module."""

    def test_one_device(self) -> None:
        assert torch.get_device_module("xla") is torch.get_device_module() is torch.xla
        assert (
            torch.xla.is_available()
            and torch.xla.is_initialized()
            and not torch.xla._is_in_bad_fork()
        )
        assert (torch.xla.device_count(), torch.xla.current_device()) == (1, 0)
        torch.xla.init()
        torch.xla.set_device("xla:0")
        with (
            torch.xla.device(0),
            torch.xla.device("xla"),
            torch.xla.device_of(torch.ones(2, device="xla")),
        ):
            assert torch.ones(2, device="xla").device == torch.device("xla", 0)

    def test_what_it_is(self) -> None:
        properties = torch.xla.get_device_properties(0)
        assert (
            properties.name == torch.xla.get_device_name() == "cpu" and properties.platform == "cpu"
        )
        assert (
            properties.num_devices == 8
            and properties.total_memory == torch.xla.mem_get_info()[1] > 0
        )
        assert torch.xla.get_device_capability() == (0, 0) and torch.xla.is_bf16_supported()
        assert torch.xla.amp.GradScaler().is_enabled()
        with torch.xla.amp.autocast(dtype=torch.bfloat16):
            assert (
                nn.Linear(2, 2, device="xla")(torch.ones(2, 2, device="xla")).dtype
                == torch.bfloat16
            )

    def test_synchronize_runs_what_is_pending(self) -> None:
        for wait in (
            torch.xla.synchronize,
            torch.accelerator.synchronize,
            torch.xla.current_stream().synchronize,
        ):
            x = torch.ones(3, device="xla") + 1
            assert spmd.get_stablehlo([x])
            wait()
            assert spmd.residence(x) == "devices"

    def test_methods(self) -> None:
        x = torch.ones(2)
        assert (
            x.xla().device.type
            == x.xla("xla:0", True).device.type
            == nn.Linear(2, 2).xla().weight.device.type
            == "xla"
        )
        assert nn.utils.rnn.pack_sequence([x]).xla().data.device.type == "xla"
        assert x.xla().is_xla and not x.is_xla and nn.Parameter(x.xla()).is_xla


class TestAccelerator:
    """`torch.accelerator` as a whole; none of it meets an assertion of torch's C++."""

    def test_what_there_is(self) -> None:
        accelerator = torch.accelerator
        assert accelerator.is_available() and accelerator.device_count() == 1
        assert accelerator.current_accelerator(check_available=True) == torch.device("xla")
        assert accelerator.current_device_index() == 0
        accelerator.set_device_index(0)
        accelerator.set_device_index("xla:0")
        with accelerator.device_index(0), accelerator.device_index(None):
            assert accelerator.current_device_index() == 0
        assert {torch.float32, torch.bfloat16, torch.int64} <= accelerator.get_device_capability()[
            "supported_dtypes"
        ]
        accelerator.set_stream(accelerator.current_stream())
        accelerator.synchronize("xla:0")

    def test_memory(self) -> None:
        """Bytes of live buffers over all devices: of a replicated tensor on each, of a sharded one
        once."""
        accelerator = torch.accelerator
        accelerator.empty_cache()
        accelerator.memory.empty_host_cache()
        torch.xla.ipc_collect()
        mesh = spmd.Mesh(range(8), (8,), ("a",))
        gc.collect()  # what other tests left
        before = accelerator.memory_allocated()
        x = spmd.mark_sharding(torch.ones(1024, 16).to("xla"), mesh, ("a", None))
        y = spmd.mark_sharding(torch.ones(1024).to("xla"), mesh, (None,))
        (x.sum() + y.sum()).item()
        held = accelerator.memory_allocated() - before
        assert 1024 * 16 * 4 + 8 * 1024 * 4 <= held < 1024 * 16 * 4 + 8 * 1024 * 4 + 4096
        del x, y
        assert accelerator.memory_allocated() - before < 4096
        assert (
            accelerator.max_memory_allocated() >= before + held == torch.xla.max_memory_allocated()
        )
        accelerator.reset_peak_memory_stats()
        accelerator.reset_accumulated_memory_stats()
        assert accelerator.max_memory_allocated() == accelerator.memory_allocated()
        assert accelerator.memory_reserved() >= torch.xla.memory_allocated()
        assert accelerator.max_memory_reserved() >= accelerator.memory_reserved()
        assert accelerator.memory_stats().keys() == torch.xla.memory_stats().keys()
        free, total = accelerator.get_memory_info()
        assert 0 < free < total and "allocated_bytes.all.current" in torch.xla.memory_summary()

    def test_streams(self) -> None:
        """One stream, whoever makes it; its events tell when work is done."""
        for stream in (
            torch.Stream(),
            torch.Stream(device="xla"),
            torch.xla.Stream(),
            torch.accelerator.current_stream(),
        ):
            assert stream == torch.xla.current_stream() and stream.device == torch.device("xla", 0)
            assert isinstance(stream, torch.Stream)
            with stream, torch.xla.stream(stream):
                x = torch.ones(2, device="xla") + 1
            x.record_stream(stream)
            stream.wait_stream(torch.xla.current_stream())
            event = stream.record_event()
            stream.wait_event(event)
            event.synchronize()
            assert spmd.residence(x) == "devices" and event.query() and stream.query()

    def test_events_measure(self) -> None:
        for make in (torch.Event, torch.xla.Event, lambda **kwargs: torch.Event("xla", **kwargs)):
            start, end = make(enable_timing=True), make(enable_timing=True)
            with pytest.raises(ValueError, match="both events must be recorded first"):
                start.elapsed_time(end)
            start.record()
            x = torch.ones(2, device="xla") + 1
            end.record()
            end.wait()
            assert (
                spmd.residence(x) == "devices"
                and start.elapsed_time(end) >= 0
                and isinstance(end, torch.Event)
            )
        with pytest.raises(ValueError, match="enable_timing=True"):
            start.elapsed_time(torch.Event())

    def test_streams_of_the_cpu_are_torchs(self) -> None:
        event, stream = torch.Event(device="cpu"), torch.Stream(device="cpu")
        assert event.device.type == stream.device.type == "cpu" and type(event) is torch._C.Event
        assert isinstance(event, torch.Event) and isinstance(stream, torch.Stream)
        assert issubclass(torch._C.Event, torch.Event) and not isinstance(event, torch.xla.Event)
        assert not issubclass(torch._C.Stream, torch.Event)


class TestOneDevice:
    """There is no xla:1: who asks for one is told, not given xla:0."""

    CASES: tuple[Callable[[], Any], ...] = (
        lambda: torch.ones(2).to("xla:1"),
        lambda: torch.ones(2, device="xla").to(torch.device("xla", 3)),
        lambda: torch.empty(2, device="xla:7"),
        lambda: torch.empty((2, 2, 2, 2), device="xla:1", memory_format=torch.channels_last),
        lambda: torch.empty_strided((2,), (1,), device="xla:1"),
        lambda: torch.empty_permuted((2, 2), (1, 0), device="xla:1"),
        lambda: torch.ones(2, device="xla:1"),
        lambda: torch.tensor([1.0], device="xla:1"),
        lambda: torch.rand(2, device="xla:1"),
        lambda: torch.arange(2, device="xla:1"),
        lambda: torch.arange(1, 2, device="xla:1"),
        lambda: torch.arange(1, 5, 2, device="xla:1"),
        lambda: torch.linspace(0, 1, 3, device="xla:1"),
        lambda: torch.logspace(0, 1, 3, device="xla:1"),
        lambda: torch.eye(2, device="xla:1"),
        lambda: torch.eye(2, 3, device="xla:1"),
        lambda: torch.randperm(2, device="xla:1"),
        lambda: torch.tril_indices(2, 2, device="xla:1"),
        lambda: torch.kaiser_window(3, device="xla:1"),
        lambda: torch.zeros_like(torch.ones(2), device="xla:1"),
        lambda: torch.rand_like(torch.ones(2, device="xla"), device="xla:1"),
        lambda: torch.ones(2, device="xla").new_ones(3, device="xla:1"),
        lambda: nn.Linear(2, 2, device="xla:1"),
        lambda: nn.Linear(2, 2).to("xla:1"),
        lambda: nn.Linear(2, 2).xla(1),
        lambda: torch.xla.set_device(1),
        lambda: torch.xla.device(2),
        lambda: torch.xla.synchronize("xla:1"),
        lambda: torch.xla.Stream(1),
        lambda: torch.Event("xla:1"),
        lambda: torch.Generator("xla:1"),
        lambda: torch.accelerator.set_device_index(1),
        lambda: torch.accelerator.synchronize(1),
        lambda: torch.accelerator.device_index(1).__enter__(),
    )

    @pytest.mark.parametrize("case", range(len(CASES)))
    def test_refused(self, case: int) -> None:
        with pytest.raises(
            RuntimeError,
            match=r"there is no device xla:\d: the one logical device xla:0 stands for",
        ):
            self.CASES[case]()

    def test_other_names(self) -> None:
        with pytest.raises(ValueError, match="set_device: expected a device of type xla, got cuda"):
            torch.xla.set_device("cuda")
        with pytest.raises(
            TypeError, match="synchronize: expected a device, its name or its index"
        ):
            torch.xla.synchronize(1.5)
        torch.xla.set_device(-1)  # as in torch.cuda


class TestGenericCode:
    """The calls of torch's own modules with whatever accelerator there is."""

    def test_timer(self) -> None:
        timer = torch.utils.benchmark.Timer("x + 1", globals={"x": torch.ones(2, device="xla")})
        assert timer.timeit(2).number_per_run == 2

    def test_grad_scaler(self) -> None:
        """Scaled in float16; a step with infinite gradients is left out."""
        weight = nn.Parameter(torch.ones(4, device="xla"))
        optimizer, scaler = torch.optim.SGD([weight], 0.5), torch.amp.GradScaler("xla")
        for factor, expected in ((1.0, [0.5] * 4), (float("inf"), [0.5] * 4), (1.0, [0.0] * 4)):
            optimizer.zero_grad()
            scaler.scale((weight * factor).sum()).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            assert weight.tolist() == expected
        assert scaler.get_scale() == 2.0**15

    def test_data_parallel(self) -> None:
        """One logical device: the module runs where it is, and takes inputs from anywhere."""
        for device in ("cpu", "xla"):
            model = nn.Linear(3, 2).to(device)
            for wrapped in (nn.DataParallel(model), nn.DataParallel(model, device_ids=[0])):
                made = wrapped(torch.ones(4, 3))
                assert made.device.type == device and torch.equal(
                    made, model(torch.ones(4, 3, device=device))
                )

    @alone
    def test_checkpoint(self, mesh8: spmd.Mesh) -> None:
        """`torch.distributed.checkpoint` in one process, at once and in the background, sharded as
        it was."""
        model = nn.Linear(8, 8).to("xla")
        spmd.mark_sharding(model.weight, mesh8, ("fsdp", None))
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(2, 8, device="xla")).sum().backward()
        optimizer.step()

        def state() -> dict[str, Any]:
            return {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "row": model.weight.detach()[2],
            }

        expected = [
            model.weight.tolist(),
            optimizer.state[model.weight]["exp_avg"].tolist(),
            state()["row"].tolist(),
        ]
        for background in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                if background:
                    written = dcp.async_save(state(), checkpoint_id=folder)
                else:
                    dcp.save(state(), checkpoint_id=folder)
                with torch.no_grad():
                    model.weight.zero_()
                    optimizer.state[model.weight]["exp_avg"].zero_()
                if background:
                    written.result()
                assert ".metadata" in os.listdir(folder)
                loaded = {**state(), "row": torch.zeros(8, device="xla")}
                dcp.load(loaded, checkpoint_id=folder)
            assert [
                model.weight.tolist(),
                optimizer.state[model.weight]["exp_avg"].tolist(),
                loaded["row"].tolist(),
            ] == expected
            assert spmd.get_sharding(model.weight).text(2).startswith("{devices=[8,1]")

    def test_checkpoint_imported_first(self) -> None:
        run_script("""
            import tempfile, warnings, torch
            import torch.distributed.checkpoint as dcp
            import spmd
            warnings.simplefilter("ignore")
            with tempfile.TemporaryDirectory() as folder:
                saved = {"x": torch.arange(3.0, device="xla"), "y": torch.ones(2)}
                dcp.async_save(saved, checkpoint_id=folder).result()
                state = {"x": torch.zeros(3, device="xla"), "y": torch.zeros(2)}
                dcp.load(state, checkpoint_id=folder)
            assert state["x"].tolist() == [0.0, 1.0, 2.0] and state["y"].tolist() == [1.0, 1.0]
        """)

    def test_made_tensors(self) -> None:
        for dtype in (torch.float32, torch.int64, torch.bool, torch.complex64):
            made = torch.testing.make_tensor(3, dtype=dtype, device="xla", low=-2, high=2)
            assert made.dtype == dtype and made.device.type == "xla"

    def test_swap(self) -> None:
        one, two = (
            nn.Parameter(torch.ones(2, device="xla")),
            nn.Parameter(torch.zeros(2, device="xla")),
        )
        torch.utils.swap_tensors(one, two)
        assert one.tolist() == [0.0, 0.0] and two.tolist() == [1.0, 1.0]

    def test_saved_on_cpu(self) -> None:
        x = torch.full((3,), 2.0, device="xla", requires_grad=True)
        with torch.autograd.graph.save_on_cpu():
            y = (x * x).sum()
        y.backward()
        assert x.grad.tolist() == [4.0] * 3 and x.grad.device.type == "xla"

    def test_averaged_model(self) -> None:
        model = nn.Linear(2, 2).to("xla")
        averaged = torch.optim.swa_utils.AveragedModel(model, device="xla")
        averaged.update_parameters(model)
        assert torch.equal(averaged.module.weight, model.weight)
