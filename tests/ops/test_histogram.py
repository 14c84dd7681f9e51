"""Histograms against torch on CPU."""

import torch
from support import Batch, distinct


def test_histograms() -> None:
    batch = Batch()
    x, weight = distinct(40), torch.rand(40)
    batch.case("histc", lambda x: torch.histc(x, 7), x, gradient=False)
    batch.case("histc bounds", lambda x: torch.histc(x, 5, -2, 2), x, gradient=False)
    batch.case("histc of one value", lambda x: torch.histc(x, 4), torch.ones(5), gradient=False)
    batch.case("histogram", lambda x: tuple(torch.histogram(x, 7)), x, gradient=False)
    batch.case(
        "histogram range",
        lambda x: tuple(torch.histogram(x, 4, range=(-3.0, 3.0))),
        x,
        gradient=False,
    )
    batch.case(
        "histogram weight density",
        lambda x, w: tuple(torch.histogram(x, 4, weight=w, density=True)),
        x,
        weight,
        gradient=False,
    )
    edges = torch.tensor([-5.0, -1.0, 0.0, 4.0])
    batch.case(
        "histogram edges", lambda x, e: tuple(torch.histogram(x, e)), x, edges, gradient=False
    )
    batch.case(
        "histogramdd",
        lambda x: torch.histogramdd(x, [3, 4]).hist,
        torch.randn(20, 2),
        gradient=False,
    )
    batch.check()


def test_outermost_edges() -> None:
    """Without data they are 0 and 1; a range that is one point is kept, with room on both sides."""
    batch = Batch()
    point = (0.5, 0.5)
    for name, x in (
        ("no data", torch.empty(0, 2)),
        ("data", torch.tensor([[0.5, 0.25], [3.0, 0.5]])),
    ):
        batch.case(
            f"histogram of {name}", lambda x: tuple(torch.histogram(x, 3)), x, gradient=False
        )
        batch.case(
            f"one point of {name}",
            lambda x: tuple(torch.histogram(x, 3, range=point)),
            x,
            gradient=False,
        )
        batch.case(f"histc of {name}", lambda x: torch.histc(x, 3, 1, 1), x, gradient=False)
        for edges in (None, point * 2):
            batch.case(
                f"histogramdd of {name}, {edges}",
                lambda x, edges=edges: torch.histogramdd(x, [2, 3], range=edges).bin_edges,
                x,
                gradient=False,
            )
            batch.case(
                f"counts of {name}, {edges}",
                lambda x, edges=edges: torch.histogramdd(x, [2, 3], range=edges).hist,
                x,
                gradient=False,
            )
    batch.check()
