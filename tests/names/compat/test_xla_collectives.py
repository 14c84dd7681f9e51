"""PyTorch/XLA's collectives: among shards inside per-shard code, over one replica outside of it."""

from typing import Any

import pytest
import torch
from support import check

import spmd
from spmd import P
from spmd.torch_xla import xla_collectives as xc


def shards(mesh: spmd.Mesh, function: Any, out: P = P(("data", "fsdp"))) -> torch.Tensor:
    """Results of a function of one shard for the numbers 0 to 7, one a shard."""
    return spmd.shard_map(function, mesh, P(("data", "fsdp")), out)(torch.arange(8.0).to("xla"))


class TestInside:
    """Groups are the shards along axes of the mesh; without groups all shards."""

    def test_all_reduce(self, mesh2x4: spmd.Mesh) -> None:
        check(
            shards(mesh2x4, lambda x: xc.all_reduce(xc.REDUCE_SUM, x, scale=0.5)),
            torch.full((8,), 14.0),
        )
        rows = [[0, 1, 2, 3], [4, 5, 6, 7]]
        made = shards(mesh2x4, lambda x: xc.all_reduce(xc.REDUCE_MAX, x, groups=rows))
        check(made, torch.tensor([3.0] * 4 + [7.0] * 4))
        columns = [[0, 4], [1, 5], [2, 6], [3, 7]]
        made = shards(mesh2x4, lambda x: xc.all_reduce("mul", x, groups=columns))
        check(made, torch.tensor([0.0, 5.0, 12.0, 21.0] * 2))

    def test_in_place(self, mesh2x4: spmd.Mesh) -> None:
        def both(x: torch.Tensor) -> torch.Tensor:
            parts = [x.clone(), x + 1]
            assert xc.all_reduce("sum", parts) is parts
            return parts[0] + parts[1]

        check(shards(mesh2x4, both), torch.full((8,), 28.0 + 36.0))

    def test_the_others(self, mesh2x4: spmd.Mesh) -> None:
        check(shards(mesh2x4, lambda x: xc.all_gather(x), P()), torch.arange(8.0))
        made = shards(mesh2x4, lambda x: xc.reduce_scatter("sum", x.repeat(8), 2.0, 0, 8))
        check(made, torch.full((8,), 56.0))
        made = shards(mesh2x4, lambda x: xc.all_to_all(x.repeat(8), 0, 0, 8)[:1])
        check(made, torch.zeros(8))
        turned = [(i, (i + 1) % 8) for i in range(8)]
        check(
            shards(mesh2x4, lambda x: xc.collective_permute(x, turned)), torch.arange(8.0).roll(1)
        )

    def test_broadcast(self, mesh2x4: spmd.Mesh) -> None:
        def of_third(x: torch.Tensor) -> torch.Tensor:
            made = x.clone()
            xc.collective_broadcast([made], root_ordinal=3)
            return made

        check(shards(mesh2x4, of_third), torch.full((8,), 3.0))

    def test_after_enable_manual_sharding(self, mesh8: spmd.Mesh) -> None:
        x = torch.arange(8.0).to("xla")
        shard = spmd.torch_xla.enable_manual_sharding(x, ("fsdp",), mesh=mesh8)
        total = xc.all_reduce("sum", shard)
        check(
            spmd.torch_xla.disable_manual_sharding(total, ("fsdp",), (8,), mesh=mesh8),
            torch.full((8,), 28.0),
        )

    def test_mistakes(self, mesh2x4: spmd.Mesh) -> None:
        with pytest.raises(ValueError, match="shards along axes of the mesh"):
            shards(
                mesh2x4, lambda x: xc.all_reduce("sum", x, groups=[[0, 1], [2, 3], [4, 5], [6, 7]])
            )
        with pytest.raises(ValueError, match=r"a count of 8 shard\(s\) here, got 4"):
            shards(mesh2x4, lambda x: xc.reduce_scatter("sum", x, 1.0, 0, 4))


class TestOutside:
    """One logical device is one replica."""

    def test_identity(self) -> None:
        x = torch.arange(4.0).to("xla")
        reduced = xc.all_reduce("sum", x)
        check(reduced, torch.arange(4.0))
        assert reduced is not x and xc.all_gather(x) is x and xc.all_to_all(x, 0, 0, 1) is x
        output = torch.zeros(4, device="xla")
        assert (
            xc.all_gather([x], groups=[[0]])[0] is x and xc.all_gather(x, output=output) is output
        )
        check(output, torch.arange(4.0))
        check(xc.reduce_scatter("sum", x, 0.5, 0, 1), torch.arange(4.0) / 2)

    def test_lists(self) -> None:
        x, output = torch.arange(4.0).to("xla"), torch.zeros(4, device="xla")
        for gather in (xc.all_gather, xc.all_gather_bucketized):
            gathered = gather([x], output=[output.zero_()])
            assert isinstance(gathered, list) and gathered[0] is output
            check(output, torch.arange(4.0))
        assert xc.reduce_scatter_bucketized("sum", [x], 0.5, 0, 1, output=[output])[0] is output
        check(output, torch.arange(4.0) / 2)
        assert xc.all_reduce("sum", [x]) == [x]
        xc.all_reduce_bucketized_gradients([x], 0.5, None, True)
        check(x, torch.arange(4.0) / 2)

    def test_mistakes(self) -> None:
        x = torch.ones(4, device="xla")
        with pytest.raises(ValueError, match=r"\[\[0\]\].*inside spmd\.shard_map"):
            xc.all_reduce("sum", x, groups=[[0, 1]])
        with pytest.raises(ValueError, match=r"a count of 1 shard\(s\)"):
            xc.all_to_all(x, 0, 0, 2)
        with pytest.raises(ValueError, match=r"expected \[\[0, 0\]\]"):
            xc.collective_permute(x, [[0, 1]])
