"""PyTorch/XLA's variables and schemes, a row each in docs/from-torch-xla.md (XLA_FLAGS:
core/run/test_start.py)."""

import pytest
from support import ROOT, run_script

from spmd.core.base.config import requested_hardware

PAGE = (ROOT / "docs/from-torch-xla.md").read_text()


class TestScalars:
    """XLA_NO_SPECIAL_SCALARS has nothing to switch off: 0 and 1 are numbers like others."""

    @pytest.mark.parametrize("value", ["0", "1"])
    def test_one_program(self, value: str) -> None:
        """The first number is a constant of its program; the others are operands of one."""
        script = """
            import torch, spmd
            x = torch.ones(4).to("xla")
            for number in (0, 1, 2, 3.5, -1.0):
                y = x * number + (number + 1)
                spmd.sync()
                assert y.tolist() == [2 * number + 1] * 4
            print(spmd.metrics.num_compiles())
            """
        assert run_script(script, XLA_NO_SPECIAL_SCALARS=value) == "2\n"
        assert "| `XLA_NO_SPECIAL_SCALARS` |" in PAGE


class TestRendezvous:
    """The scheme of PyTorch/XLA 2.0 is that of the later ones."""

    @pytest.mark.parametrize("scheme", ["pjrt", "xla"])
    def test_alone(self, scheme: str) -> None:
        script = f"""
            import torch, spmd
            import torch.distributed as dist
            dist.init_process_group("xla", init_method="{scheme}://")
            x = torch.ones(2).to("xla")
            dist.all_reduce(x)
            print(dist.get_backend(), dist.get_rank(), dist.get_world_size(), x.tolist())
            """
        assert run_script(script) == "xla 0 1 [1.0, 1.0]\n"
        assert f'"{scheme}://"' in PAGE


class TestHardware:
    """PJRT_DEVICE and GPU_NUM_DEVICES, read without the hardware."""

    def test_gpus_of_a_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("JAX_PLATFORMS", "JAX_CUDA_VISIBLE_DEVICES"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("GPU_NUM_DEVICES", "2")
        for kind in ("GPU", "CUDA"):
            monkeypatch.setenv("PJRT_DEVICE", kind)
            assert requested_hardware().platform == "cuda" and requested_hardware().gpus == (0, 1)
        monkeypatch.setenv("LOCAL_RANK", "3")
        assert requested_hardware().gpus == (6, 7)
        monkeypatch.setenv("GPU_NUM_DEVICES", "two")
        with pytest.raises(ValueError, match="GPU_NUM_DEVICES='two': expected a positive integer"):
            requested_hardware()
        assert (
            "| `GPU_NUM_DEVICES` |" in PAGE and "xla_force_host_platform_device_count=8` |" in PAGE
        )
