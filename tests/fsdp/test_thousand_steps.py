"""A long run with values that change at each step: a schedule, clipping, bias correction, dropout,
printed losses."""

import gc
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
import torch
from torch import nn

import fsdp
import spmd
from spmd.core.base import in_flight

STEPS, EVERY, WARM = 1000, 10, 200
# bytes that the process may gain in 800 steps: 40 KiB a step, less than a step's graph
GROWTH = 32 << 20


class CompileEvents:
    """JAX's own events of backend compilations."""

    def __init__(self) -> None:
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self)

    def __call__(self, event: str, seconds: float, **_: object) -> None:
        self.count += event == "/jax/core/compile/backend_compile_duration"


@pytest.fixture(scope="module")
def events() -> CompileEvents:
    return CompileEvents()


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def sharded_mlp(width: int, mesh: spmd.Mesh) -> nn.Module:
    """A sharded MLP; each caller has a width of its own, so that it compiles its own programs."""
    with torch.device("xla"):
        model = nn.Sequential(
            nn.Linear(16, width),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.LayerNorm(width),
            nn.Linear(width, 8),
        )
    return fsdp.FullyShardedDataParallel(model, mesh=mesh, auto_wrap_policy=fsdp.always_wrap_policy)


def steps(model: nn.Module, *, read: str) -> Iterator[float]:
    """Yields each tenth step's loss, read right after the forward pass ("middle") or after the
    whole step ("end")."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.55 + 0.45 * math.cos(math.pi * step / STEPS)
    )
    generator = torch.Generator().manual_seed(0)
    for step in range(1, STEPS + 1):
        x = torch.randn(8, 16, generator=generator)
        target = x[:, :8].sin()
        loss = nn.functional.mse_loss(model(x.to("xla")), target.to("xla"))
        if read == "middle" and step % EVERY == 0:
            yield loss.item()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if read == "end" and step % EVERY == 0:
            yield loss.item()
        spmd.sync()


class TestPrograms:
    """One program for the step, the first step included, one for a step with a printed loss, one
    for initialisation."""

    def test_read_after_the_step(self, events: CompileEvents, mesh8: spmd.Mesh) -> None:
        before, known = events.count, len(spmd.metrics.compiles())
        losses = list(steps(sharded_mlp(40, mesh8), read="end"))
        names = [record.name for record in spmd.metrics.compiles()[known:]]
        assert names == ["init", "step"], spmd.metrics.report()
        assert events.count - before == 2
        assert losses[-1] < 0.5 * losses[0]

    def test_read_in_the_middle(self, events: CompileEvents, mesh8: spmd.Mesh) -> None:
        """The read splits a step into two programs: the ops that the loss needs, and the rest."""
        before, known = events.count, len(spmd.metrics.compiles())
        losses = list(steps(sharded_mlp(48, mesh8), read="middle"))
        names = [record.name for record in spmd.metrics.compiles()[known:]]
        assert names == ["init", "step", "step", "step"], spmd.metrics.report()
        assert events.count - before == 4
        assert losses[-1] < 0.5 * losses[0]

    def test_read_in_the_middle_of_the_first_step_too(
        self, events: CompileEvents, mesh8: spmd.Mesh
    ) -> None:
        self.five_steps(sharded_mlp(56, mesh8), events)

    def test_also_without_a_mesh(self, events: CompileEvents) -> None:
        with torch.device("xla"):
            model = nn.Sequential(nn.Linear(16, 72), nn.GELU(), nn.LayerNorm(72), nn.Linear(72, 8))
        self.five_steps(model, events)

    def five_steps(self, model: nn.Module, events: CompileEvents) -> None:
        before = events.count
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.randn(8, 16).to("xla")
        for _ in range(5):
            loss = model(x).square().mean()
            loss.item()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            spmd.sync()
        assert events.count - before == 3, spmd.metrics.report()


@pytest.mark.skipif(sys.platform != "linux", reason="reads the resident size from /proc")
class TestMemory:
    """The process's memory does not depend on the number of steps: as many buffers live after 1000
    as after 200."""

    @pytest.mark.parametrize("read", ["end", "middle"])
    def test_flat(self, read: str, mesh8: spmd.Mesh) -> None:
        sizes, buffers = {}, {}
        for number, _ in enumerate(steps(sharded_mlp(64, mesh8), read=read), start=1):
            if number * EVERY in (WARM, STEPS):
                in_flight.wait()  # until a run has ended the library keeps one of its results
                gc.collect()
                sizes[number * EVERY] = resident_bytes()
                buffers[number * EVERY] = len(jax.live_arrays())
        assert buffers[STEPS] == buffers[WARM]
        assert sizes[STEPS] - sizes[WARM] < GROWTH, (
            f"{sizes[WARM] >> 20} MiB, then {sizes[STEPS] >> 20} MiB"
        )
