"""The device that frameworks take: xla after `spmd.use()` alone, and a warning where one leaves
it."""

import warnings

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import is_torch_xla_available
from support import run_script
from torch import nn

import fsdp
import spmd


@pytest.mark.usefixtures("use")
class TestUsed:
    """`spmd.use()` chooses xla, and leaves the CPU to those who ask for it."""

    def test_device(self) -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        assert Accelerator().device == torch.device("xla", 0)

    def test_cpu_is_asked_for(self) -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        assert Accelerator(cpu=True).device == torch.device("cpu")

    def test_one_process_with_all_devices(self) -> None:
        # accelerate's own path for PyTorch/XLA has no main process off TPUs, and gathers no
        # objects.
        AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = Accelerator()
        assert not is_torch_xla_available() and accelerator.is_local_main_process
        assert accelerator.gather_for_metrics(["a"], use_gather_object=True) == ["a"]

    def test_bfloat16_is_autocast(self) -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        with Accelerator(mixed_precision="bf16").autocast():
            assert nn.Linear(2, 2).to("xla")(torch.ones(1, 2, device="xla")).dtype == torch.bfloat16

    def test_a_second_call_is_none(self) -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        Accelerator()
        spmd.use()


@pytest.mark.usefixtures("unused")
class TestUnused:
    """A bare import changes nothing for others, but says where a model of ours is left."""

    def test_device(self) -> None:
        assert Accelerator().device == torch.device("cpu")

    def test_too_late(self) -> None:
        Accelerator()
        with pytest.raises(RuntimeError, match="accelerate has taken cpu already"):
            spmd.use()
        spmd.compat.uninstall()

    def test_a_model_that_is_moved_back(self, mesh8: spmd.Mesh) -> None:
        models = [fsdp.fully_shard(nn.Linear(8, 8), mesh=mesh8), nn.Linear(8, 8).to("xla")]
        accelerator = Accelerator()
        with pytest.warns(
            UserWarning, match="accelerate moves the model from xla to the CPU"
        ) as seen:
            for model in models:
                accelerator.prepare(model)
        assert len(seen) == 1 and "spmd.use()" in str(seen[0].message)
        assert seen[0].filename == __file__

    def test_a_move_that_is_asked_for(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model = nn.Linear(2, 2).to("xla")
            assert model.weight.cpu().device.type == "cpu"
            assert model.cpu().weight.device.type == "cpu"
            Accelerator().prepare(nn.Linear(2, 2))


class TestFirst:
    """A script that makes its choice before it imports accelerate, as `python -m spmd run` does for
    one."""

    def test_one_process_with_all_devices(self) -> None:
        out = run_script(
            """
            import spmd
            spmd.use()
            from accelerate import Accelerator
            from accelerate.utils import is_torch_xla_available
            accelerator = Accelerator(mixed_precision="bf16")
            print(is_torch_xla_available(), accelerator.is_local_main_process, accelerator.device)
            """
        )
        assert out.split() == ["False", "True", "xla:0"]


class TestEnvironment:
    """ACCELERATE_TORCH_DEVICE=xla is the same choice, whatever is imported first."""

    @pytest.mark.long  # imports transformers in a process of its own
    def test_chooses(self) -> None:
        out = run_script(
            """
            import warnings

            warnings.simplefilter("default")
            from transformers import TrainingArguments
            from accelerate import Accelerator
            import spmd

            print(
                Accelerator().device.type,
                TrainingArguments("out", bf16=True, report_to=[]).device.type,
            )
            """,
            ACCELERATE_TORCH_DEVICE="xla",
            HF_HUB_OFFLINE="1",
        )
        assert out.split() == ["xla", "xla"]
