"""FSDP training once with each keyword and habit that several processes could do otherwise than
one; see `programs`."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

import fsdp
import spmd

STEPS, BATCH, WIDTH = 2, 16, 16
FSDP = fsdp.FullyShardedDataParallel
BF16 = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)


class Layer(nn.Module):
    """A layer with statistics of the whole batch, which no process has."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = (
            nn.Linear(WIDTH, 32),
            nn.BatchNorm1d(32),
            nn.Linear(32, WIDTH),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.norm(self.up(x))))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Layer(), nn.Linear(WIDTH, 10))


def checkpointed(module: nn.Module, **how: Any) -> nn.Module:
    return FSDP(fsdp.checkpoint_module(module), **how)


def in_place(model: nn.Module, mesh: spmd.Mesh, **_: Any) -> nn.Module:
    fsdp.fully_shard(model[0], mesh=mesh)
    return fsdp.fully_shard(model, mesh=mesh)


def put(rows: Tensor, mesh: spmd.Mesh) -> Tensor:
    """A batch of which each process gives its part."""
    part = rows.chunk(spmd.process_count())[spmd.process_index()]
    return spmd.from_process_local(part.contiguous(), mesh, (mesh.axis_names, None))


def train(
    wrap: Callable[..., nn.Module] = FSDP,
    *,
    sizes: tuple[int, ...] = (8,),
    clip: float | None = None,
    parts: int = 1,
    factors: tuple[float, float] | None = None,
    **how: Any,
) -> dict[str, list[float]]:
    """The results of the steps, and of the last state a few values and the norm by name: a pipe
    holds little more."""
    mesh = spmd.Mesh(spmd.device_ids(), sizes, ("data", "fsdp")[-len(sizes) :])
    model = wrap(net(), mesh, auto_wrap_policy={Layer}, **how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
    if factors:
        model.set_gradient_divide_factors(*factors, recursive=True)
    generator = torch.Generator().manual_seed(1)
    said = []
    for _ in range(STEPS):
        batches = torch.randn(parts, BATCH, WIDTH, generator=generator)
        losses = []
        for index, batch in enumerate(batches):
            with model.no_sync() if index + 1 < parts else nullcontext():
                loss = model(put(batch, mesh)).float().square().mean() / parts
                loss.backward()
                losses.append(loss.detach())
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip) if clip else torch.zeros(())
        optimizer.step()
        optimizer.zero_grad()
        spmd.sync()
        said += [*(loss.item() for loss in losses), norm.item()]
    state = spmd.full_state_dict(model)
    return {"said": said} | {
        name: [*value.double().flatten()[:4].tolist(), value.double().norm().item()]
        for name, value in state.items()
    }


VARIANTS: dict[str, Callable[[], dict[str, list[float]]]] = {
    "nothing": train,
    "fully_shard": lambda: train(in_place),
    "reshard_after_forward": lambda: train(reshard_after_forward=False),
    "mp_policy": lambda: train(mp_policy=BF16),
    "offload_policy": lambda: train(offload_policy=fsdp.CPUOffloadPolicy()),
    "extra_data_axis": lambda: train(sizes=(2, 4), extra_data_axis="data"),
    "min_shard_numel": lambda: train(min_shard_numel=100),
    "shard_placement_fn": lambda: train(shard_placement_fn=lambda parameter: 0),
    "auto_wrapper_callable": lambda: train(auto_wrapper_callable=checkpointed),
    "clip_grad_norm_": lambda: train(clip=0.01),
    "no_sync": lambda: train(parts=2),
    "set_gradient_divide_factors": lambda: train(factors=(2.0, 2.0)),
}


def keywords() -> dict[str, dict[str, list[float]]]:
    """Every variant, one after the other."""
    return {name: variant() for name, variant in VARIANTS.items()}
