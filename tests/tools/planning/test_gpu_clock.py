"""The seconds of collectives by the GPU's clock."""

import pytest

from spmd.core.programs.hlo import Module
from spmd.tools.planning import gpu_clock
from spmd.tools.planning.clock import CHIPS

_NODES = (0, 0, 1, 1)  # of four devices


@pytest.mark.parametrize(
    ("pairs", "link"),
    [("{}", "ici"), ("{{0,1},{1,0}}", "ici"), ("{{0,1},{1,2}}", "dcn")],
)
def test_a_permutation(pairs: str, link: str) -> None:
    """It takes as long as its slowest pair; nothing where no device sends, as in the last chunk of
    a ring that is unrolled."""
    module = Module(
        f"""ENTRY %main (p: f32[1024]) -> f32[1024] {{
  %p = f32[1024]{{0}} parameter(0)
  ROOT %sent = f32[1024]{{0}} collective-permute(%p), channel_id=1, source_target_pairs={pairs}
}}
"""
    )
    line = module.computations[module.entry].lines[-1]
    chip = CHIPS["NVIDIA H100 80GB HBM3"]
    clock = gpu_clock.GpuClock(module, chip, _NODES, gpu_clock.EXPECTED)
    seconds, found = clock.seconds_of(line, "collective-permute", 4096)
    assert (seconds > 0, found) == (pairs != "{}", link)
