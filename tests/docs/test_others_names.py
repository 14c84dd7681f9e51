"""A name of another library that is not here answers with what to write, at the line that reads
it."""

import subprocess
import sys
from pathlib import Path

import pytest

import fsdp
import spmd

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_is_current() -> None:
    command = [sys.executable, "tests/docs/others_names.py", "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fully_shard", "fsdp.fully_shard"),
        ("FSDP", "fsdp.FullyShardedDataParallel"),
        ("NamedSharding", "mesh.sharding(spec, rank)"),
        ("device_put", "spmd.mark_sharding(x, mesh, spec)"),
        ("jit", "spmd.compile(step)"),
        ("pjit", "spmd.compile(step)"),
        ("psum", "all_reduce"),
        ("all_reduce", "spmd.manual.all_reduce"),
        ("mark_step", "spmd.sync()"),
        ("xla_device", "spmd.device()"),
        ("init_device_mesh", "init_device_mesh"),
        ("distribute_tensor", "spmd.dtensor.distribute_tensor"),
        ("parallelize_module", "spmd.dtensor.parallelize_module"),
        ("save", "torch.save"),
        ("value_and_grad", "torch.func.grad_and_value"),
    ],
)
def test_spmd(name: str, words: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'spmd' has no attribute '{name}'") as caught:
        getattr(spmd, name)
    assert words in str(caught.value)
    assert not hasattr(spmd, name)
    with pytest.raises(ImportError) as imported:
        exec(f"from spmd import {name}")
    assert words in str(imported.value)


def test_fsdp() -> None:
    with pytest.raises(AttributeError, match=r"it is spmd\.mark_sharding"):
        fsdp.mark_sharding  # noqa: B018
    with pytest.raises(ImportError, match=r"fsdp\.FullyShardedDataParallel"):
        exec("from fsdp import FSDP")


def test_a_name_that_no_library_has() -> None:
    with pytest.raises(AttributeError) as caught:
        spmd.nonsense  # noqa: B018
    assert str(caught.value) == "module 'spmd' has no attribute 'nonsense'"
