"""The bytes of a model under FSDP on each device, by its real buffers and by the compiled programs'
own figures."""

import gc
from collections import Counter
from collections.abc import Iterable
from functools import partial

import jax
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fsdp
import spmd
from recipes.gpt import GPT, Block, GPTConfig, cross_entropy
from spmd.core.base import in_flight

SEQUENCE, VOCABULARY = 16, 64


def gpt(width: int) -> GPT:
    return GPT(GPTConfig(layers=2, width=width, heads=4, sequence=SEQUENCE, vocabulary=VOCABULARY))


def sharded(model: nn.Module, mesh: spmd.Mesh) -> fsdp.FullyShardedDataParallel:
    policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block})
    data = "data" if "data" in mesh.axis_names else None
    return fsdp.FullyShardedDataParallel(
        model, mesh=mesh, auto_wrap_policy=policy, extra_data_axis=data
    )


def whole_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def bytes_per_device(tensors: Iterable[Tensor]) -> Counter[int]:
    """Device id -> bytes of the tensors' real shards."""
    held: Counter[int] = Counter()
    for tensor in tensors:
        for shard in spmd.local_shards(tensor):
            held[shard.device] += shard.data.numel() * shard.data.element_size()
    return held


def live_bytes() -> Counter[int]:
    """Device id -> bytes of every live JAX buffer of this process."""
    in_flight.wait()  # until a run has ended the library keeps one of its results
    gc.collect()
    held: Counter[int] = Counter()
    for array in jax.live_arrays():
        size = (
            int(np.prod(array.sharding.shard_shape(array.shape), dtype=np.int64))
            * array.dtype.itemsize
        )
        for device in array.sharding.device_set:
            held[device.id] += size
    return held


def train_once(model: nn.Module, mesh: spmd.Mesh) -> torch.optim.Optimizer:
    """One step that keeps its gradients."""
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(VOCABULARY, (8, SEQUENCE)).to("xla")
    cross_entropy(model(tokens), tokens).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    spmd.sync()
    return optimizer


class TestEachDeviceHoldsItsShare:
    """Parameters, gradients and optimizer state each take 1/n of their bytes on every device, for
    shapes n divides."""

    @pytest.mark.parametrize(("fixture", "ways"), [("mesh8", 8), ("mesh2x4", 4)])
    def test_after_a_step(self, fixture: str, ways: int, request: pytest.FixtureRequest) -> None:
        mesh = request.getfixturevalue(fixture)
        with torch.device("xla"):
            model = gpt(width=64)
        model = sharded(model, mesh)
        optimizer = train_once(model, mesh)
        parameters = list(model.parameters())
        gradients = [parameter.grad for parameter in parameters]
        moments = [
            optimizer.state[parameter][name]
            for parameter in parameters
            for name in ("exp_avg", "exp_avg_sq")
        ]
        for kind in (parameters, gradients, moments):
            held = bytes_per_device(kind)
            assert sorted(held) == list(range(8))
            for device in held:
                assert held[device] == pytest.approx(whole_bytes(kind) / ways, rel=0.01)

    def test_a_module_from_the_cpu_is_uploaded_in_shards(self, mesh8: spmd.Mesh) -> None:
        before = live_bytes()
        model = sharded(gpt(width=64), mesh8)
        sum(parameter.sum() for parameter in model.parameters()).item()  # a first use uploads
        after = live_bytes()
        share = whole_bytes(model.parameters()) / 8
        for device in range(8):
            assert share <= after[device] - before[device] <= 1.01 * share

    def test_momentum_of_sgd(self, mesh8: spmd.Mesh) -> None:
        """State that an optimizer makes from a gradient, not from zeros, is sharded like the
        gradient."""
        with torch.device("xla"):
            model = gpt(width=64)
        model = sharded(model, mesh8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        tokens = torch.randint(VOCABULARY, (8, SEQUENCE)).to("xla")
        for _ in range(2):
            cross_entropy(model(tokens), tokens).backward()
            optimizer.step()
            optimizer.zero_grad()
            spmd.sync()
        buffers = [
            optimizer.state[parameter]["momentum_buffer"] for parameter in model.parameters()
        ]
        held = bytes_per_device(buffers)
        for device in range(8):
            assert held[device] == pytest.approx(whole_bytes(buffers) / 8, rel=0.01)

    def test_a_batch_that_nobody_holds_is_uploaded_in_shards(self, mesh8: spmd.Mesh) -> None:
        """In an evaluation nothing keeps the input tensor, which is freed before the program that
        reads it runs."""
        model = fsdp.FullyShardedDataParallel(nn.Linear(8, 8), mesh=mesh8)
        batch = torch.randn(1024, 8)
        with torch.no_grad():
            model(batch.to("xla")).sum().item()
        record = spmd.metrics.compiles()[-1]
        assert record.argument_bytes == pytest.approx(whole_bytes([batch]) / 8, rel=0.05)


class TestBornSharded:
    """While a model that is built under `with torch.device("xla")` is initialised, no device holds
    more than 1.1 of its shard.

    Widths differ from test to test, so that each compiles a program for initialisation of its own.
    """

    @pytest.mark.parametrize("width", [48, 96, 256])
    def test_init_program_and_live_buffers(self, width: int, mesh8: spmd.Mesh) -> None:
        before = live_bytes()
        known = len(spmd.metrics.compiles())
        with torch.device("xla"):
            model = gpt(width)
        model = sharded(model, mesh8)
        # what another test left may go
        assert not live_bytes() - before, "nothing is made before the first sync"
        spmd.sync(wait=True)
        share = whole_bytes(model.parameters()) / 8
        (record,) = spmd.metrics.compiles()[known:]
        assert record.name == "init"
        after = live_bytes()
        for device in range(8):
            assert share <= after[device] - before[device] <= 1.1 * share
        # Constants are filled without a program: biases, and the weights of norms.
        varied = whole_bytes(p for p in model.parameters() if len(p.unique()) > 1) / 8
        assert varied <= record.output_bytes + record.temp_bytes <= 1.1 * share

    def test_reset_parameters_of_torch(self, mesh8: spmd.Mesh) -> None:
        """kaiming_uniform_ and uniform_ of nn.Linear, normal_ of nn.Embedding, in-place arithmetic
        on top."""
        known = len(spmd.metrics.compiles())
        with torch.device("xla"):
            model = nn.Sequential(nn.Embedding(128, 264), nn.Linear(264, 512), nn.Linear(512, 264))
        with torch.no_grad():
            model[1].weight.mul_(0.5).add_(0.25)
        model = fsdp.FullyShardedDataParallel(model, mesh=mesh8)
        spmd.sync(wait=True)
        share = whole_bytes(model.parameters()) / 8
        (record,) = spmd.metrics.compiles()[known:]
        assert record.name == "init"
        assert record.output_bytes + record.temp_bytes <= 1.1 * share

    def test_the_first_step_adds_no_initialisation(self, mesh8: spmd.Mesh) -> None:
        """A sync after a complete first step still initialises in a program of its own, of the same
        size."""
        known = len(spmd.metrics.compiles())
        with torch.device("xla"):
            model = gpt(width=72)
        model = sharded(model, mesh8)
        train_once(model, mesh8)
        init, step = spmd.metrics.compiles()[known:]
        share = whole_bytes(model.parameters()) / 8
        assert (init.name, step.name) == ("init", "step")
        assert init.output_bytes + init.temp_bytes <= 1.1 * share

    def test_the_numbers_do_not_depend_on_the_mesh(
        self, mesh8: spmd.Mesh, mesh1: spmd.Mesh
    ) -> None:
        weights = []
        for mesh in (mesh1, mesh8):
            torch.manual_seed(5)
            with torch.device("xla"):
                model = gpt(width=32)
            weights.append(
                {name: value.cpu() for name, value in sharded(model, mesh).state_dict().items()}
            )
        assert weights[0].keys() == weights[1].keys()
        for name, value in weights[0].items():
            assert torch.equal(value, weights[1][name]), name
