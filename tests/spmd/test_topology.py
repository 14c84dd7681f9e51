"""The place of an array: meshes over devices that are not here, tensors without data, memories."""

import importlib.util
import math
import os
import pickle
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
import torch
from support import ROOT, run_script

import fsdp
import spmd
from recipes.gpt import GPT, Block, GPTConfig, cross_entropy
from spmd import Mesh, Sharding
from spmd.core.graph.errors import AbstractError
from spmd.core.graph.graph import Graph, topological
from spmd.core.graph.meta import dense_meta
from spmd.core.graph.source import user_line
from spmd.core.programs.compiler import lower_graph
from spmd.core.record.storage import LIVE, pending
from spmd.core.record.tensor import abstract
from spmd.core.run import executables
from spmd.core.run.executables import graph_of
from spmd.core.run.execute import roots_of
from spmd.core.run.schedule import meshes_met
from spmd.mesh import rented
from spmd.mesh.rented import target_of

TARGET = "cpu:64"


@pytest.fixture
def far() -> Any:
    """A mesh over devices that are not here; what is recorded over it is forgotten."""
    spmd.sync()
    yield Mesh(range(64), (8, 8), ("data", "fsdp"), target=TARGET)
    LIVE.clear()


def graph() -> Graph:
    cells = pending()
    roots = roots_of(cells)
    (mesh,) = meshes_met(cells, *topological([value for value, _ in roots])).values()
    return graph_of(roots, mesh, dies=lambda leaf: True)


def train_step(mesh: Mesh) -> Any:
    """The graph of an FSDP training step of a GPT over a mesh, its state without data."""
    config = GPTConfig(layers=2, width=64, heads=2, sequence=16)
    model = GPT(config).to("xla")
    for parameter in model.parameters():
        spec = fsdp.parameter_spec(parameter.shape, "fsdp", 8)
        meta = dense_meta(parameter.shape, parameter.dtype)
        parameter.data = abstract(meta, mesh.sharding(spec, parameter.dim()))
    for name, buffer in model.named_buffers():
        owner, _, last = name.rpartition(".")
        meta = dense_meta(buffer.shape, buffer.dtype)
        whole = abstract(meta, mesh.sharding((None,) * buffer.dim(), buffer.dim()))
        setattr(model.get_submodule(owner), last, whole)
    policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block})
    wrapped = fsdp.FullyShardedDataParallel(
        model, mesh, auto_wrap_policy=policy, extra_data_axis="data"
    )
    tokens = abstract(dense_meta((64, 16), torch.int64), mesh.sharding((("data", "fsdp"), None), 2))
    loss = cross_entropy(wrapped(tokens), tokens)
    loss.backward()
    with torch.no_grad():
        for parameter in wrapped.parameters():
            parameter -= 0.1 * parameter.grad
    return wrapped, loss


class TestMesh:
    """Mesh(..., target=...): the devices of a machine that need not be here."""

    def test_is_another_mesh(self) -> None:
        here, there = Mesh(range(8), (8,), ("a",)), Mesh(range(8), (8,), ("a",), target="cpu:8")
        assert here != there and there == Mesh(range(8), (8,), ("a",), target="cpu:8")
        assert here.sharding(("a",), 1) is not there.sharding(("a",), 1)
        assert pickle.loads(pickle.dumps(there)) == there
        assert pickle.loads(pickle.dumps(there.sharding(("a",), 1))) is there.sharding(("a",), 1)
        assert "target='cpu:8'" in repr(there) and "target='cpu:8'" in repr(
            there.sharding(("a",), 1)
        )

    def test_many_need_no_device(self) -> None:
        mesh = Mesh(range(2048), (2048,), ("a",), target="cpu:2048")
        assert mesh.sharding(("a",), 1).shard_shape((4096,)) == (2,)
        with pytest.raises(
            ValueError, match=r"there is no device 2048; 'cpu:2048' has 2048, from 0 on"
        ):
            Mesh([0, 2048], (2,), target="cpu:2048")

    @pytest.mark.parametrize("target", ["cpu", "cpu:none", "abacus:2x2"])
    def test_unknown(self, target: str) -> None:
        # libtpu, where it is installed, writes what it looked for to stderr; a process of its own
        # may.
        printed = run_script(
            f"""
            import warnings; warnings.simplefilter("ignore")
            import spmd
            try:
                spmd.Mesh([0], (1,), target={target!r})
            except ValueError as error:
                print(error)
            """
        )
        assert f"Mesh: target {target!r} is not known: expected a TPU slice" in printed


class TestAbstract:
    """Tensors without data: programs over them are lowered and compiled, and nothing runs or is
    read."""

    def test_training_step(self, far: Mesh) -> None:
        model, loss = train_step(far)
        made = graph()
        text = lower_graph(made).as_text()
        assert "num_partitions = 64" in text
        compiled = executables.planned_for(made, user_line()).executable
        assert any(made.donated)
        whole = sum(parameter.numel() * 4 for parameter in model.parameters())
        assert compiled.memory_analysis().argument_size_in_bytes < whole / 4
        assert "all-reduce" in compiled.as_text() and "all-gather" in compiled.as_text()
        with pytest.raises(AbstractError, match=r"cannot run at .*test_topology"):
            loss.item()

    def test_reading_raises_at_the_line(self, far: Mesh) -> None:
        x = abstract(dense_meta((8, 8), torch.float32), far.sharding(("data", None), 2))
        assert spmd.get_sharding(x) is far.sharding(("data", None), 2) and x.shape == (8, 8)
        with pytest.raises(
            AbstractError, match=r"test_topology\.py:\d+ in .*float32\[8,8\] is abstract"
        ):
            x.cpu()
        y = x + 1
        with pytest.raises(
            AbstractError, match=r"cannot run at .*test_topology\.py:\d+.*devices are not here"
        ):
            spmd.sync()
        del y

    def test_host_data_is_not_uploaded(self, far: Mesh) -> None:
        x = spmd.mark_sharding(torch.ones(8).to("xla"), far, ("data",))
        with pytest.raises(AbstractError, match="its devices are not here"):
            spmd.local_shards(x)

    def test_on_devices_here(self, mesh8: Mesh) -> None:
        """Abstract data on devices that are here: the program would run, and has nothing to run
        on."""
        spmd.sync()
        sharding = mesh8.sharding(("fsdp",), 1)
        real = spmd.mark_sharding(torch.ones(8, device="xla"), mesh8, ("fsdp",))
        spmd.sync()
        total = (real * 3).sum()
        assert total.item() == 24  # a program that the next graph would find
        total = (abstract(dense_meta((8,), torch.float32), sharding) * 3).sum()
        with pytest.raises(AbstractError, match=r"float32\[8\] is abstract"):
            total.item()
        LIVE.clear()


class TestTpu:
    """TPU slices that are not here: a step compiles for them where libtpu is installed; else the
    error names it."""

    def test_step(self) -> None:
        if importlib.util.find_spec("libtpu") is None:
            with pytest.raises(
                ValueError,
                match=r"target 'v5e:2x4' is not known: .*with the package libtpu installed",
            ):
                Mesh(range(8), (8,), target="v5e:2x4")
            return
        run_script(
            """
            import warnings; warnings.simplefilter("ignore")
            import spmd
            from test_topology import train_step, graph
            from spmd.core.run import executables
            from spmd.core.graph.source import user_line
            kept = train_step(spmd.Mesh(range(8), (1, 8), ("data", "fsdp"), target="v5e:2x4"))
            text = executables.planned_for(graph(), user_line()).executable.as_text()
            assert "reduce-scatter" in text and "all-gather" in text
            """,
            TPU_SKIP_MDS_QUERY="1",
            PYTHONPATH=f"{ROOT}/tests:{ROOT}/tests/spmd:{os.environ.get('PYTHONPATH', ROOT)}",
        )


class TestMemory:
    """In which memory: part of the value, kept through programs."""

    def test_value(self, mesh8: Mesh) -> None:
        split = mesh8.sharding(("fsdp",), 1)
        host = split.with_spec(split.spec, "pinned_host")
        assert host is not split and host.memory == "pinned_host" and split.memory == "device"
        assert (
            host.jax.memory_kind == "pinned_host"
            and not host.is_as(split, 1)
            and "pinned_host" in repr(host)
        )
        assert (
            Sharding.from_jax(host.jax, 1, [split]) is host
            and Sharding.from_jax(split.jax, 1, [split]) is split
        )
        assert pickle.loads(pickle.dumps(host)) is host

    def test_result_on_the_host(self, mesh8: Mesh) -> None:
        """A result that a program leaves on the host is recorded as there, read by the next, and
        stays in place."""
        x = spmd.mark_sharding(torch.arange(8.0, device="xla"), mesh8, ("fsdp",))
        kept = spmd.call_jax(lambda a: jax.device_put(a * 2, jax.memory.Space.Host), x)
        spmd.sync()
        assert spmd.get_sharding(kept).memory == "pinned_host"
        assert kept.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
        more = kept + 1
        kept.add_(1)
        spmd.sync()
        assert more.tolist() == kept.tolist() == [1, 3, 5, 7, 9, 11, 13, 15]
        assert (
            spmd.get_sharding(kept).memory == "pinned_host"
            and spmd.get_sharding(more).memory == "device"
        )
        assert np.asarray(kept._storage.value.buffer).sum() == 64


class TestBesideWhatRuns:
    """A model that stands on devices that are not here, to be planned with, does not stop what runs
    here."""

    def test_syncs(self, far: Mesh) -> None:
        with torch.device("xla"):
            model = torch.nn.Linear(64, 64)
        spmd.mark_sharding(model.weight, far, (None, "data"))
        spmd.mark_sharding(model.bias, far, (None,))
        x = torch.ones(4, device="xla") * 2
        spmd.sync()
        assert x.tolist() == [2.0] * 4
        with pytest.raises(AbstractError, match="its devices are not here"):
            model.weight.sum().item()


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("v5litepod-8", "v5e:2x4"),
        ("V5P-256", "v5p:4x4x8"),
        ("TPU v6e-16", "v6e:4x4"),
        ("v4-64", "v4:2x4x4"),
        ("H100:8", "h100:8"),
        ("8xA100", "a100:8"),
        ("2xH100:8", "2xh100:8"),
        ("a3-highgpu-8g", "h100:8"),
        ("p4d.24xlarge", "a100:8"),
        ("Standard_ND96isr_H100_v5", "h100:8"),
        ("2xv5e:2x4", "2xv5e:2x4"),
        ("cpu:8", "cpu:8"),
        (None, None),
    ],
)
def test_rented_names(name: str | None, target: str | None) -> None:
    assert target_of(name, "plan") == target


def test_a_shape_has_as_many_chips_as_its_name_says() -> None:
    for kind, per_chip, shapes in rented._SLICES.values():
        for size, shape in shapes.items():
            assert math.prod(map(int, shape.split("x"))) == size
            known = [word for word, row in rented._SLICES.items() if row[0] == kind]
            assert target_of(f"{known[0]}-{size * per_chip}", "plan") == f"{kind}:{shape}"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("v5e", 'write "v5e:2x2", "v5e:2x4"'),
        ("TPU v5p", 'write "v5p:2x2x2"'),
        ("h100", 'write "h100:8"'),
        ("v5p-100", "slices are v5p-8, v5p-16"),
        ("cpu:4096", "XLA simulates at most 2048"),
        ("mi300x:8", r"spmd\.describe_gpu"),
    ],
)
def test_targets_that_are_not_known(name: str, words: str) -> None:
    """An error before the step is recorded, at the line that names the target."""
    with pytest.raises(ValueError, match=words):
        spmd.plan(_never, torch.ones(2), target=name)
    with pytest.raises(ValueError, match=words):
        spmd.Mesh(range(8), (8,), ("data",), target=name)


def test_a_target_is_text() -> None:
    with pytest.raises(TypeError, match="expected text such as"):
        spmd.plan(_never, torch.ones(2), target=8)  # type: ignore[arg-type]


def _never(x: torch.Tensor) -> None:
    raise AssertionError("recorded")
