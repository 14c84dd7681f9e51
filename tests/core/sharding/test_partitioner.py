"""The partitioner's context: what it hides of XLA's log."""

import pytest
from support import run_script

# A program over two devices, compiled by the library, where the user has imported jax first.
SCRIPT = """
    import os

    os.dup2(1, 2)  # XLA writes to the descriptor
    import jax
    import spmd, torch

    spmd.config.partitioner = "gspmd"
    spmd.simulate(2)
    x = spmd.mark_sharding(
        torch.ones(2, 2).to("xla"), spmd.Mesh(range(2), (2,), ("a",)), ("a", None)
    )
    print((x + 1).sum().item())
"""


class TestNotice:
    """XLA's warning that GSPMD's propagation will go away is seen by those alone that ask for all
    of XLA's log."""

    @pytest.mark.parametrize(("level", "is_unpadded"), [("1", False), ("0", True)])
    def test_log(self, level: str, is_unpadded: bool) -> None:
        printed = run_script(SCRIPT, SPMD_PROGRAM_CACHE="0", TF_CPP_MIN_LOG_LEVEL=level)
        assert "8.0\n" in printed and ("sharding_propagation" in printed) == is_unpadded
        assert is_unpadded or printed == "8.0\n"
