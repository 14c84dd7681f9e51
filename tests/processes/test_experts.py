"""Two processes of four devices train a model with experts: as one process of eight."""

import json
import subprocess
import sys

import pytest
from support import ROOT

from .test_checkpoints import free_ports
from .test_processes import HASTY, environment, outputs

PROGRAM = ROOT / "tests/processes/experts.py"
SENTENCES = {
    "gathered": "weights are gathered",
    "all-to-all": "rows travel in rounds",
    "ring": "tokens travel",
}

pytestmark = pytest.mark.partitioned("experts over two processes")


def together(count: int, exchange: str, mesh: str) -> tuple[list[float], str]:
    """The numbers of that many processes, which are the same in all, and what the last program says
    of its exchange.

    One process has its numbers from a program, too: the router and the norms compute in float32,
    whose last digits depend on how much XLA optimizes.
    """
    port = free_ports()[0]
    started = [
        subprocess.Popen(
            [
                sys.executable,
                "-W",
                "error",
                str(PROGRAM),
                str(index),
                str(count),
                port,
                exchange,
                mesh,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(XLA_FLAGS=HASTY),
            cwd=ROOT,
        )
        for index in range(count)
    ]
    printed = outputs(started)
    assert [process.returncode for process in started] == [0] * count, printed
    first, *others = (json.loads(out.splitlines()[-1]) for out, _ in printed)
    assert all(other == first for other in others)
    return first["numbers"], first["exchanges"]


@pytest.mark.parametrize(
    ("exchange", "mesh"),
    [
        ("all-to-all", "expert"),
        pytest.param("ring", "expert", marks=pytest.mark.long),
        pytest.param("gathered", "expert", marks=pytest.mark.long),
        pytest.param("all-to-all", "fsdp and expert", marks=pytest.mark.long),
    ],
)
def test_losses_and_norms(exchange: str, mesh: str) -> None:
    """Of two clipped steps. Experts are over both processes, or each process has all of them."""
    found, sentence = together(2, exchange, mesh)
    assert sentence.startswith("experts over expert: " + SENTENCES[exchange]), sentence
    assert found == pytest.approx(together(1, exchange, mesh)[0], rel=1e-12)
