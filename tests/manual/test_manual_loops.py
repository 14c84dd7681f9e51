"""Indices that are computed in a loop of a manual region: both partitioners compile the sort, the
gather and the scatter, and GSPMD does not end the process."""

from collections.abc import Callable

import pytest
import torch
from support import check

import spmd
from spmd import Mesh, P

MESHES = {"one axis": ((8,), ("a",)), "two axes": ((2, 4), ("a", "b"))}
ORDERS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "argsort": lambda x, index: index.argsort(stable=True),
    "sort": lambda x, index: index.sort(descending=True, stable=True).indices,
    "topk": lambda x, index: x[:, 0].topk(4).indices,
    "argmax": lambda x, index: x.argmax(1) % 4,
    "cummax": lambda x, index: index.cummax(0).indices,
    "mode": lambda x, index: x.round().mode(1).indices % 4,
}
WRITES: dict[str, Callable[..., torch.Tensor]] = {
    "index_add": lambda y, index, rows: y.index_add(0, index, rows),
    "scatter_add": lambda y, index, rows: y.scatter_add(0, index[:, None].expand_as(rows), rows),
    "index_put": lambda y, index, rows: y.index_put((index,), rows, accumulate=True),
    "gather": lambda y, index, rows: y + rows[index % 2].sum(0),
}


def rounds(order: str, write: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A loop of three iterations, each of which writes two rows where the order says."""

    def of_shard(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        places = ORDERS[order](x, index)

        def step(number: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            at = (number + torch.arange(2, device=x.device)) % 4
            return number + 1, WRITES[write](y, places[at], x[:2])

        start = torch.zeros((), dtype=torch.int64, device=x.device), torch.zeros_like(x)
        if x.device.type == "cpu":
            for _ in range(3):
                start = step(*start)
            return start[1]
        return spmd.while_loop(lambda number, y: number < 3, step, start)[1]

    return of_shard


CASES = [
    *((order, "index_add", "two axes") for order in ORDERS),
    *(("argsort", write, "one axis") for write in WRITES),
]


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize(("order", "write", "name"), CASES)
def test_as_on_the_cpu(
    order: str, write: str, name: str, partitioner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spmd.config, "partitioner", partitioner)
    mesh = Mesh(range(8), *MESHES[name])
    axes = mesh.axis_names
    x, index = torch.randn(32, 8), torch.randint(4, (32,))
    function = rounds(order, write)
    parts = zip(x.split(4), index.split(4), strict=True)
    expected = torch.cat([function(*part) for part in parts])
    rows, places = P(axes, None), P(axes)
    marked = (
        spmd.mark_sharding(x.to("xla"), mesh, rows),
        spmd.mark_sharding(index.to("xla"), mesh, places),
    )
    check(spmd.shard_map(function, mesh, (rows, places), rows)(*marked), expected)
