"""`torch_xla._internal.tpu`: what a host says of its chips and of its slice."""

import glob
import importlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import spmd
from spmd.names.torch_xla import tpu_host

METADATA = {
    "tpu-env": """ACCELERATOR_TYPE: 'v5p-16'
TPU_CHIPS_PER_PROCESS_BOUNDS: '2,2,1'
TPU_PROCESS_BOUNDS: '1,1,2'
WORKER_ID: '1'
""",
    "worker-network-endpoints": "a:1:10.0.0.7,b:2:10.0.0.8",
}


@pytest.fixture(autouse=True)
def without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.startswith(("TPU_", "CLOUD_TPU_")):
            monkeypatch.delenv(name)


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu_host, "_get_metadata", METADATA.__getitem__)


class TestHost:
    """Chips by the PCI bus, processes by variables."""

    @pytest.mark.parametrize("count", [0, 4])
    def test_chips(self, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        devices = [("0x1ae0", "0x0063")] * count + [("0x10de", "0x2336"), ("0x1ae0", "0x1234")]
        for i, (vendor, device) in enumerate(devices):
            (tmp_path / str(i)).mkdir()
            (tmp_path / str(i) / "vendor").write_text(f"{vendor}\n")
            (tmp_path / str(i) / "device").write_text(f"{device}\n")
        files = glob.glob(f"{tmp_path}/*/vendor")
        monkeypatch.setattr(glob, "glob", lambda path: files)
        assert tpu_host.num_available_chips() == tpu_host.num_local_processes() == count
        monkeypatch.setenv("TPU_PROCESS_BOUNDS", "1,1,1")
        assert tpu_host.num_local_processes() == min(count, 1)

    def test_bounds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert tpu_host.process_bounds_size() is None and tpu_host.task_id() is None
        monkeypatch.setenv("TPU_PROCESS_BOUNDS", "2,2,4")
        monkeypatch.setenv("CLOUD_TPU_TASK_ID", "3")
        assert tpu_host.process_bounds_size() == 16 and tpu_host.task_id() == 3
        monkeypatch.setenv("TPU_PROCESS_BOUNDS", "2,2")
        with pytest.raises(ValueError, match="expected three sizes as '2,2,1', got '2,2'"):
            tpu_host.process_bounds_size()


@pytest.mark.usefixtures("metadata")
class TestSlice:
    """Type, number of the host and addresses, by metadata or by variables."""

    def test_by_metadata(self) -> None:
        assert tpu_host.version() == 5 and tpu_host.get_tpu_type() == "v5p"
        assert tpu_host.worker_id() == 1 and tpu_host.num_tpu_workers() == 2
        assert tpu_host.get_worker_ips() == ["10.0.0.7", "10.0.0.8"]

    def test_by_variables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")  # as jax sets it where there is no TPU
        assert tpu_host.version() == 5
        monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v6e-8")
        monkeypatch.setenv("TPU_WORKER_ID", "0")
        assert (tpu_host.version(), tpu_host.worker_id()) == (6, 0)
        assert tpu_host.get_worker_ips() == ["localhost"]

    def test_not_by_what_stands_for_a_tpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in spmd.core.variables.WITHOUT_TPU.items():
            monkeypatch.setenv(name, value)
        assert tpu_host.get_tpu_type() == "v5p"

    def test_a_process_a_chip(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TPU_PROCESS_PORT", "1")
        tpu_host.configure_topology(2, 4)
        names = ["BOUNDS", "CLOUD_TPU_TASK_ID", "TPU_PROCESS_PORT", "TPU_VISIBLE_CHIPS"]
        assert os.environ["TPU_PROCESS_BOUNDS"] == "2,2,2"
        assert [os.environ[name] for name in names[1:]] == ["6", "1", "2"]
        assert os.environ["TPU_PROCESS_ADDRESSES"].count("10.0.0.8:") == 4

    def test_another_text(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(METADATA, "tpu-env", "ACCELERATOR_TYPE: 'gpu'")
        with pytest.raises(OSError, match="expected a type as 'v5litepod-16', got 'gpu'"):
            tpu_host.version()


class TestModule:
    """The module of theirs is this one: what a script replaces in it acts."""

    @pytest.fixture(autouse=True)
    def installed(self) -> Iterator[None]:
        spmd.compat.install()
        yield
        spmd.compat.uninstall()

    def test_replaced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tpu = importlib.import_module("torch_xla._internal.tpu")
        assert tpu is importlib.import_module("torch_xla").tpu
        monkeypatch.setattr(tpu, "version", lambda: 3)
        monkeypatch.setattr(tpu, "num_available_chips", lambda: 4)
        assert tpu.num_available_devices() == 8

    def test_a_name_that_is_not_here(self) -> None:
        tpu = importlib.import_module("torch_xla._internal.tpu")
        with pytest.raises(AttributeError, match="discover_master_worker_ip of PyTorch/XLA is not"):
            _ = tpu.discover_master_worker_ip
