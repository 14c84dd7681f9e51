"""Records the programs of this folder again: a small FSDP step as a TPU's compiler schedules it.

    PYTHONPATH=. python tests/tools/hlo/programs/record.py

Two blocks of width 1,024 over v5p:2x2x2 (libtpu 0.0.42), once with collectives on the SparseCore,
once without. Of each line the parts stay that are read: shapes, calls, groups, threads, rings and
estimated cycles.
"""

import re
import sys
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import gelu

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))  # runs without being installed, too

import fsdp
import spmd
from spmd.core.programs.hlo import Module

FOLDER = Path(__file__).parent
WIDTH, TARGET, NUM_DEVICES = 1024, "v5p:2x2x2", 8
WITHOUT = "xla_tpu_enable_async_collective_fusion=true xla_enable_async_all_gather=true"
READ = re.compile(r'"estimated_cycles":"?\d+"?|"phase_rings"|"emitter":"\w+"|active_dims:[01]+')


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = (
            nn.Linear(WIDTH, 4 * WIDTH, bias=False),
            nn.Linear(4 * WIDTH, WIDTH, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(gelu(self.up(x)))


def text_of(options: str) -> str:
    """The optimised program of the step."""
    spmd.config.compiler_options = options
    spmd.config.scan_layers = "never"
    mesh = spmd.Mesh(range(NUM_DEVICES), (NUM_DEVICES,), ("fsdp",), target=TARGET)
    with torch.device("meta"):
        model = nn.Sequential(Block(), Block())
    wrapped = fsdp.FullyShardedDataParallel(
        model,
        mesh,
        auto_wrap_policy=partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block}),
        mp_policy=fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16),
    )
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> None:
        spmd.mark_sharding(x, mesh, ("fsdp", None))
        wrapped(x).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    texts: list[str] = []
    read = Module.of.__func__  # type: ignore[attr-defined]  # of a class method
    Module.of = classmethod(
        lambda cls, executable: texts.append(executable.as_text()) or read(cls, executable)
    )  # type: ignore[assignment]
    spmd.plan(step, torch.empty(4096 * NUM_DEVICES, WIDTH, device="meta"))
    return texts[-1]


def shortened(text: str) -> str:
    lines = []
    for line in text.splitlines():
        head, mark, config = line.partition(", backend_config=")
        parts = READ.findall(config)
        lines.append(head + (f", backend_config={{{', '.join(parts)}}}" if mark and parts else ""))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for name, options in (("sparsecore", "auto"), ("tensorcore", WITHOUT)):
        (FOLDER / f"{name}.hlo").write_text(shortened(text_of(options)))
