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
    batch.case("histogram range", lambda x: tuple(torch.histogram(x, 4, range=(-3.0, 3.0))), x, gradient=False)
    batch.case(
        "histogram weight density",
        lambda x, w: tuple(torch.histogram(x, 4, weight=w, density=True)),
        x,
        weight,
        gradient=False,
    )
    edges = torch.tensor([-5.0, -1.0, 0.0, 4.0])
    batch.case("histogram edges", lambda x, e: tuple(torch.histogram(x, e)), x, edges, gradient=False)
    batch.case("histogramdd", lambda x: torch.histogramdd(x, [3, 4]).hist, torch.randn(20, 2), gradient=False)
    batch.check()
