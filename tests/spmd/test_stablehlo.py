"""GSPMD text: the string of a sharding, and that it stands in the StableHLO before XLA has compiled
anything."""

import itertools
import math
import re

import numpy as np
import pytest
import torch

import spmd
from spmd import Mesh

MESHES = [
    (range(8), (8,), ("a",)),
    (range(8), (2, 4), ("a", "b")),
    (range(8), (4, 2), ("a", "b")),
    (range(8), (2, 2, 2), ("a", "b", "c")),
    ([7, 3, 5, 1, 6, 2, 4, 0], (2, 4), ("a", "b")),
    ([7, 3, 5, 1, 6, 2, 4, 0], (2, 2, 2), ("a", "b", "c")),
    ([6, 1, 3, 4], (2, 2), ("a", "b")),
    (range(8), (1, 8), ("a", "b")),
    (range(6), (3, 2), ("a", "b")),
    ([5], (1,), ("a",)),
]


def specs(names: tuple[str, ...], rank: int) -> list[tuple[object, ...]]:
    """Every way to put at most three axes, alone or in tuples, on the dims of a tensor."""
    entries = [None, *names, *itertools.permutations(names, 2), *itertools.permutations(names, 3)]
    found = []
    for spec in itertools.product(entries, repeat=rank):
        used = [
            axis
            for entry in spec
            if entry
            for axis in ((entry,) if isinstance(entry, str) else entry)
        ]
        if len(used) == len(set(used)):
            found.append(spec)
    return found


def expected_text(
    ids, shape: tuple[int, ...], names: tuple[str, ...], spec: tuple[object, ...]
) -> str:
    """The formula, written a second time: device lists of a tile assignment with the replicas in
    the last dim."""
    axes = [
        () if entry is None else (entry,) if isinstance(entry, str) else entry for entry in spec
    ]
    used = [names.index(axis) for entry in axes for axis in entry]
    tiles = [math.prod(shape[names.index(axis)] for axis in entry) for entry in axes]
    if all(size == 1 for size in tiles):
        return "{replicated}"
    rest = [i for i in range(len(shape)) if i not in used]
    copies = math.prod(shape[i] for i in rest)
    grid = np.asarray(list(ids)).reshape(shape).transpose(used + rest).reshape(-1, copies)
    devices = ",".join(str(device) for row in grid for device in sorted(row))
    if copies > 1:
        return (
            f"{{devices=[{','.join(map(str, [*tiles, copies]))}]{devices} last_tile_dim_replicate}}"
        )
    return f"{{devices=[{','.join(map(str, tiles))}]{devices}}}"


def expand(text: str) -> str:
    """GSPMD text with its short form of device lists, `<=[2,4]T(1,0)`, written out."""
    found = re.fullmatch(
        r"\{devices=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?( last_tile_dim_replicate)?\}", text
    )
    if found is None:
        return text
    tiles, dims, order = found[1], [int(n) for n in found[2].split(",")], found[3]
    ids = np.arange(math.prod(dims)).reshape(dims)
    ids = ids if order is None else ids.transpose([int(n) for n in order.split(",")])
    if found[4]:
        ids = np.sort(ids.reshape(-1, int(tiles.split(",")[-1])), axis=1)
    return f"{{devices=[{tiles}]{','.join(map(str, ids.reshape(-1)))}{found[4] or ''}}}"


class TestText:
    """`Sharding.text` is the string that PyTorch/XLA printed for the same mesh and spec."""

    @pytest.mark.parametrize(("ids", "shape", "names"), MESHES, ids=str)
    @pytest.mark.parametrize("rank", [1, 2, 3])
    def test_formula(self, ids, shape: tuple[int, ...], names: tuple[str, ...], rank: int) -> None:
        mesh = Mesh(ids, shape, names)
        for spec in specs(names, rank):
            assert mesh.sharding(spec, rank).text(rank) == expected_text(ids, shape, names, spec), (
                spec
            )

    def test_known_strings(self) -> None:
        mesh = Mesh(range(8), (2, 4), ("x", "y"))
        known = {
            ("x", "y"): "{devices=[2,4]0,1,2,3,4,5,6,7}",
            ("y", "x"): "{devices=[4,2]0,4,1,5,2,6,3,7}",
            ("x", None): "{devices=[2,1,4]0,1,2,3,4,5,6,7 last_tile_dim_replicate}",
            ("y", None): "{devices=[4,1,2]0,4,1,5,2,6,3,7 last_tile_dim_replicate}",
            (None, ("x", "y")): "{devices=[1,8]0,1,2,3,4,5,6,7}",
            (None, ("y", "x")): "{devices=[1,8]0,4,1,5,2,6,3,7}",
            (None, None): "{replicated}",
        }
        for spec, text in known.items():
            assert mesh.sharding(spec, 2).text(2) == text

    def test_scalar(self) -> None:
        x = spmd.mark_sharding(torch.tensor(3.0, device="xla"), Mesh(range(8), (8,), ("a",)), ())
        assert spmd.get_sharding(x).text(0) == "{replicated}" and (x + 1).item() == 4.0


class TestBeforeCompilation:
    """The attribute stands in the program that XLA is given, and asking for it runs and compiles
    nothing."""

    @pytest.mark.parametrize(("ids", "shape", "names"), MESHES[:6], ids=str)
    def test_attributes(self, ids, shape: tuple[int, ...], names: tuple[str, ...]) -> None:
        mesh = Mesh(ids, shape, names)
        cases = [(names[0], None), (None, names[-1]), (names, None), (None, names[::-1])]
        made = [
            spmd.mark_sharding(torch.ones(8, 16).to("xla") * (i + 1), mesh, spec)
            for i, spec in enumerate(cases)
        ]
        counts = spmd.metrics.num_compiles(), spmd.metrics.counter("runs")
        for tensor, spec in zip(made, cases, strict=True):
            text = spmd.get_stablehlo([tensor])
            if spmd.config.partitioner == "gspmd":
                found = {expand(item) for item in re.findall(r'mhlo.sharding = "([^"]*)"', text)}
                # In a program devices are numbered by their place in the mesh; which they are
                # stands beside it.
                assert expected_text(range(len(ids)), shape, names, spec) in found, found
                assert "@Sharding" in text and "sdy" not in text
            else:
                assert (
                    "sdy.sharding" in text
                    and "mhlo.sharding" not in text
                    and f'"{names[0]}"' in text
                )
        assert (spmd.metrics.num_compiles(), spmd.metrics.counter("runs")) == counts

    def test_argument_and_intermediate_and_result(self, mesh2x4: Mesh) -> None:
        w = spmd.mark_sharding(torch.ones(8, 8).to("xla"), mesh2x4, ("fsdp", None))
        h = spmd.mark_sharding(w @ w, mesh2x4, ("data", "fsdp"))
        y = spmd.mark_sharding(h * 2, mesh2x4, (None, "data"))
        text = spmd.get_stablehlo([y])
        if spmd.config.partitioner == "gspmd":
            arguments, rest = text.split("->", 1)
            found = [expand(item) for item in re.findall(r'mhlo.sharding = "([^"]*)"', arguments)]
            assert spmd.get_sharding(w).text(2) in found
            inner = {expand(item) for item in re.findall(r'mhlo.sharding = "([^"]*)"', rest)}
            assert {spmd.get_sharding(h).text(2), spmd.get_sharding(y).text(2)} <= inner
        assert y.tolist() == [[16.0] * 8] * 8

    def test_all_that_is_pending(self) -> None:
        spmd.sync()
        assert spmd.get_stablehlo() == ""
        x = torch.ones(3).to("xla")
        assert spmd.get_stablehlo() == "" and spmd.get_stablehlo([]) == ""
        first, second = x.sin(), x.cos()
        text = spmd.get_stablehlo()
        assert "stablehlo.sine" in text and "stablehlo.cosine" in text
        assert "stablehlo.cosine" not in spmd.get_stablehlo([first])
        del second

    def test_a_view(self) -> None:
        x = torch.ones(4, 4).to("xla")
        view = (x + 1)[1]
        assert "stablehlo.add" in spmd.get_stablehlo([view]) and view.tolist() == [2.0] * 4

    def test_data_and_views(self, mesh8: Mesh) -> None:
        """Of data it is a program that returns its argument, of a view what it shows; nothing runs,
        nothing moves."""
        spmd.sync()
        host = torch.ones(8).to("xla")
        data = spmd.mark_sharding(torch.ones(8, 8).to("xla"), mesh8, ("fsdp", None)) * 2
        spmd.sync()
        base = data + 1
        asked = [host, data, data[1:], base.t(), base[2:5]]
        before = spmd.metrics.counter("runs"), spmd.metrics.counter("syncs")
        texts = [spmd.get_stablehlo([tensor]) for tensor in asked]
        assert [spmd.residence(tensor) for tensor in (host, data, base)] == [
            "host",
            "devices",
            "pending",
        ]
        assert (spmd.metrics.counter("runs"), spmd.metrics.counter("syncs")) == before
        for text, shape in zip(
            texts, ("8xf32", "8x8xf32", "7x8xf32", "8x8xf32", "3x8xf32"), strict=True
        ):
            (result,) = re.findall(r"func public @main\(.*\) -> \(tensor<(\S+)>", text)
            assert result == shape
        assert "tensor<7x8xf32>" not in texts[0] + texts[1] and "stablehlo.slice" in texts[2]
        assert ["stablehlo.transpose" in text for text in texts] == [
            False,
            False,
            False,
            True,
            False,
        ]

    def test_optimised(self, mesh8: Mesh) -> None:
        """get_hlo: one device's program, compiled and not run."""
        spmd.sync()
        x = spmd.mark_sharding(torch.ones(8, 4).to("xla"), mesh8, ("fsdp", None))
        total = (x * 2).sum()
        runs = spmd.metrics.counter("runs")
        text = spmd.get_hlo([total])
        assert text.startswith("HloModule") and "all-reduce" in text and "f32[1,4]" in text
        assert (
            "all-reduce" in spmd.get_hlo()
            and "f32[1,4]" in spmd.get_hlo([x])
            and spmd.get_hlo([]) == ""
        )
        assert spmd.metrics.counter("runs") == runs and spmd.residence(total) == "pending"
        assert total.item() == 64

    def test_wrong_argument(self) -> None:
        for function in (spmd.get_stablehlo, spmd.get_hlo):
            name = function.__name__
            with pytest.raises(
                TypeError, match=f"{name}: expected a tensor on xla, got one on cpu"
            ):
                function([torch.ones(2)])
            with pytest.raises(
                TypeError,
                match=rf"{name}: expected a list of tensors, got one; write {name}\(\[tensor",
            ):
                function(torch.ones(2, device="xla"))
