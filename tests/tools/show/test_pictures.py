"""Pictures of shardings: text compared, SVG parsed; any rank, any number of devices; PyTorch/XLA's
words."""

import itertools
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch

import spmd
from spmd import P
from spmd.tools.show.grids import devices_text, read_table, table_of
from spmd.tools.show.pictures import _GREY, _TERMINAL, Picture, _hex

SVG = "{http://www.w3.org/2000/svg}"
H = "\N{BOX DRAWINGS LIGHT DIAGONAL UPPER RIGHT TO LOWER LEFT}"


def picture(shape: tuple[int, ...], mesh: spmd.Mesh, *spec: object) -> Picture:
    return spmd.show_sharding(spmd.mark_sharding(torch.zeros(shape).to("xla"), mesh, spec))


def drawn(picture: Picture) -> list[str]:
    """The lines below the caption."""
    return picture.text().split("\n")[len(picture.caption) :]


def cells(picture: Picture) -> list[str]:
    return [
        cell.get("data-devices", "")
        for cell in ElementTree.fromstring(picture.svg()).iter(f"{SVG}g")
    ]


def rects(cell: ElementTree.Element, kind: str | None) -> list[ElementTree.Element]:
    return [rect for rect in cell.iter(f"{SVG}rect") if rect.get("class") == kind]


class TestText:
    """One and two dims are grids, in the order of the dims."""

    def test_two_dims(self, mesh2x4: spmd.Mesh) -> None:
        assert picture((8, 8), mesh2x4, "data", "fsdp").text().split("\n") == [
            "float32[8,8] on the host, not uploaded yet, as P('data', 'fsdp') over data=2, fsdp=4",
            "each of 8 devices holds float32[4,2], 32 B; decided by annotation",
            "         dim 1 →",
            "dim 0 ↓   0:2   2:4   4:6   6:8",
            "        ┌─────┬─────┬─────┬─────┐",
            "    0:4 │  0  │  1  │  2  │  3  │",
            "        ├─────┼─────┼─────┼─────┤",
            "    4:8 │  4  │  5  │  6  │  7  │",
            "        └─────┴─────┴─────┴─────┘",
        ]

    def test_copies(self, mesh2x4: spmd.Mesh) -> None:
        assert drawn(picture((8, 8), mesh2x4, None, "data"))[2:] == [
            "        ┌──────────┬──────────┐",
            "    0:8 │   0-3    │   4-7    │",
            "        │ 4 copies │ 4 copies │",
            "        └──────────┴──────────┘",
        ]

    def test_one_dim_and_padding(self, mesh8: spmd.Mesh) -> None:
        shown = picture((9,), mesh8, "fsdp")
        assert "dim 0 of 9 is held as 16: the rest is padding" in shown.caption
        assert drawn(shown) == [
            " dim 0 →",
            "  0:2   2:4   4:6   6:8   8:9    -     -     -",
            "┌─────┬─────┬─────┬─────┬─────┬─────┬─────┬─────┐",
            f"│  0  │  1  │  2  │  3  │  4 {H}│{H} 5 {H}│{H} 6 {H}│{H} 7 {H}│",
            "└─────┴─────┴─────┴─────┴─────┴─────┴─────┴─────┘",
        ]

    def test_padding_at_the_bottom(self, mesh2x4: spmd.Mesh) -> None:
        assert drawn(picture((3, 4), mesh2x4, "data", None))[-5:] == [
            "        ├──────────┤",
            "        │   4-7    │",
            "    2:3 │ 4 copies │",
            f"        │{10 * H}│",
            "        └──────────┘",
        ]

    def test_everywhere(self, mesh8: spmd.Mesh) -> None:
        shown = picture((), mesh8)
        assert "replicated on all 8 devices" in shown.caption
        assert drawn(shown) == ["┌──────────┐", "│   0-7    │", "│ 8 copies │", "└──────────┘"]

    def test_grids_of_grids(self) -> None:
        mesh = spmd.Mesh(range(8), (2, 2, 2), ("a", "b", "c"))
        assert drawn(spmd.show_sharding(mesh.sharding(P("a", "b", "c"), 3), (4, 2, 2))) == [
            "dim 0 ↓",
            "                 dim 2 →",
            "        dim 1 ↓   0:1   1:2",
            "                ┌─────┬─────┐",
            "    0:2     0:1 │  0  │  1  │",
            "                ├─────┼─────┤",
            "            1:2 │  2  │  3  │",
            "                └─────┴─────┘",
            "                 dim 2 →",
            "        dim 1 ↓   0:1   1:2",
            "                ┌─────┬─────┐",
            "    2:4     0:1 │  4  │  5  │",
            "                ├─────┼─────┤",
            "            1:2 │  6  │  7  │",
            "                └─────┴─────┘",
        ]

    def test_whole_dims_of_many_are_left_out(self, mesh2x4: spmd.Mesh) -> None:
        lines = drawn(picture((4, 3, 5, 8), mesh2x4, "data", None, None, "fsdp"))
        assert lines[0].strip() == "dim 3 →" and lines[1].startswith("dim 0 ↓") and len(lines) == 7

    def test_colour(
        self, mesh8: spmd.Mesh, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shown = picture((8,), mesh8, "fsdp")
        coloured = shown.text(use_color=True)
        assert (
            coloured.count("\x1b[38;5;16;48;5;") == 8
            and f"48;5;{_TERMINAL[7]}m  7  \x1b[0m" in coloured
        )
        assert str(shown) == repr(shown) == shown.text()  # no terminal here
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        assert str(shown) == coloured
        monkeypatch.setenv("NO_COLOR", "1")
        assert str(shown) == shown.text()

    def test_unknown_and_other_devices(self) -> None:
        assert drawn(spmd.show_sharding(torch.ones(3).to("xla")))[-2] == "│ host │"
        assert drawn(spmd.show_sharding(torch.ones(3, 2)))[-2] == "    0:3 │ cpu │"

    def test_a_recorded_value(self, mesh2x4: spmd.Mesh) -> None:
        x = spmd.mark_sharding(torch.ones(8, 8).to("xla"), mesh2x4, ("data", None))
        assert spmd.show_sharding(x.t() * 2).caption[1].endswith("decided by compiler")
        assert drawn(spmd.show_sharding(spmd.inspect(x.t() * 2)))[2:] == [
            "        ┌──────────┬──────────┐",
            "    0:8 │   0-3    │   4-7    │",
            "        │ 4 copies │ 4 copies │",
            "        └──────────┴──────────┘",
        ]

    def test_what_the_partitioner_chooses_and_other_memory(self, mesh8: spmd.Mesh) -> None:
        sharding = mesh8.sharding(P(P.UNCONSTRAINED, "fsdp"), 2)
        assert "dim 0 is left to the partitioner" in spmd.show_sharding(sharding, (8, 8)).caption
        x = spmd.mark_sharding(torch.ones(8).to("xla"), mesh8, ("fsdp",), memory_kind="pinned_host")
        assert "in the memory pinned_host" in spmd.show_sharding(x).caption


class TestManyDevices:
    """A picture without room is drawn as fewer cells; each device is in one of them, and no line is
    too long."""

    @pytest.mark.parametrize(
        "sizes", [(512,), (16, 32), (32, 16), (1, 512), (8, 8, 8), (2,) * 9, (7, 73), (2, 3, 5, 17)]
    )
    @pytest.mark.parametrize("width", [40, 80])
    def test_fits(self, sizes: tuple[int, ...], width: int) -> None:
        text = f"{{devices=[{','.join(map(str, sizes))}]<=[{torch.Size(sizes).numel()}]}}"
        shown = Picture(read_table(text, 1, "test"), None, ())
        lines = shown.text(max_width=width).split("\n")
        assert max(map(len, lines)) <= width and len(lines) < 120
        grid = shown._grid(16, 16)
        table = read_table(text, 1, "test")
        counts = [tile.lines[1] if len(tile.lines) > 1 else "1 shard" for tile in grid.tiles()]
        assert sum(int(count.split()[0]) for count in counts) == table.size

    def test_which_devices(self) -> None:
        shown = Picture(read_table("{devices=[512]<=[512]}", 1, "test"), None, ())
        assert "│   0-127    │  128-255   │  256-383   │  384-511   │" in shown.text()
        assert shown.text().count("128 shards") == 4
        assert cells(shown)[:2] == ["0-31", "32-63"] and len(cells(shown)) == 16

    def test_names(self) -> None:
        assert [
            devices_text(ids) for ids in ([3], [4, 0], [2, 1, 0], [0, 1, 5, 6, 7], range(0, 64, 8))
        ] == ["3", "0,4", "0-2", "0,1,5-7", "0-56 by 8"]
        assert devices_text([i for i in range(64) if i % 3]) == "1 ... 62"


class TestSvg:
    """A document that parses, with a cell for each piece, its padding hatched, readable on light
    and dark."""

    def test_structure(self, mesh2x4: spmd.Mesh, tmp_path: Path) -> None:
        shown = picture((10, 3), mesh2x4, "fsdp", "data")
        root = ElementTree.fromstring(shown.svg())
        assert root.tag == f"{SVG}svg" and root.find(f"{SVG}title").text == " | ".join(
            shown.caption
        )
        assert cells(shown) == ["0", "4", "1", "5", "2", "6", "3", "7"]
        hatched = {
            cell.get("data-devices"): [
                (rect.get("width"), rect.get("height")) for rect in rects(cell, "padding")
            ]
            for cell in root.iter(f"{SVG}g")
        }
        right, bottom, rest = ("22", "36"), ("44", "24"), ("22", "12")
        assert {name: found for name, found in hatched.items() if found} == {
            "4": [right],
            "5": [right],
            "6": [right],
            "3": [bottom],
            "7": [bottom, rest],
        }
        assert (
            len({rect.get("fill") for cell in root.iter(f"{SVG}g") for rect in rects(cell, None)})
            == 8
        )
        labels = [label.text for label in root.iter(f"{SVG}text") if label.get("class") == "label"]
        assert labels == ["dim 1 →", "dim 0 ↓", "0:2", "2:3", "0:3", "3:6", "6:9", "9:10"]
        shown.save(tmp_path / "x.svg")
        assert (tmp_path / "x.svg").read_text() == shown.svg() == shown._repr_svg_()

    def test_nothing_leaves_the_page(self, mesh2x4: spmd.Mesh) -> None:
        for shown in (
            picture((10, 3), mesh2x4, "fsdp", "data"),
            picture((2, 4, 2, 8), mesh2x4, "data", None, "fsdp", None),
        ):
            root = ElementTree.fromstring(shown.svg())
            width, height = float(root.get("width")), float(root.get("height"))
            found = [rect for cell in root.iter(f"{SVG}g") for rect in cell.iter(f"{SVG}rect")]
            boxes = [
                [float(rect.get(name)) for name in ("x", "y", "width", "height")] for rect in found
            ]
            assert all(
                x >= 0 and y >= 0 and x + w <= width and y + h <= height for x, y, w, h in boxes
            )

    def test_neighbours_differ(self) -> None:
        root = ElementTree.fromstring(
            Picture(read_table("{devices=[16,16]<=[256]}", 1, "t"), None, ()).svg()
        )
        colours = [next(cell.iter(f"{SVG}rect")).get("fill") for cell in root.iter(f"{SVG}g")]
        rows = [colours[i : i + 16] for i in range(0, 256, 16)]
        for grid in (rows, list(zip(*rows, strict=True))):
            assert all(a != b for row in grid for a, b in itertools.pairwise(row))

    @pytest.mark.parametrize("cuts", [(16, 1), (2, 8), (8, 4), (3, 12), (36, 1)])
    def test_colours_do_not_repeat(self, cuts: tuple[int, int]) -> None:
        count = cuts[0] * cuts[1]
        table = read_table(f"{{devices=[{cuts[0]},{cuts[1]}]<=[{count}]}}", 1, "t")
        root = ElementTree.fromstring(Picture(table, None, ()).svg())
        cells = [cell for cell in root.iter(f"{SVG}g") if cell.get("class") == "cell"]
        found = [next(cell.iter(f"{SVG}rect")).get("fill") for cell in cells]
        assert len(found) == len(set(found))

    def test_contrast(self) -> None:
        def luminance(colour: str) -> float:
            parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
            linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
            return sum(
                weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True)
            )

        def contrast(one: str, two: str) -> float:
            low, high = sorted(map(luminance, (one, two)))
            return (high + 0.05) / (low + 0.05)

        assert all(contrast(_hex(colour), "#000000") >= 6 for colour in _TERMINAL)
        assert contrast(_GREY, "#ffffff") >= 4.5 and contrast(_GREY, "#0d1117") >= 4
        assert (
            len(set(_TERMINAL))
            == spmd.tools.show.grids.NUM_HUES * spmd.tools.show.grids.NUM_LIGHTNESSES
        )

    def test_another_file(self, mesh8: spmd.Mesh) -> None:
        with pytest.raises(ValueError, match=r"a name that ends in \.svg, got 'x\.png'"):
            picture((8,), mesh8, "fsdp").save("x.png")


class TestWordsOfPytorchXla:
    """visualize_sharding, visualize_tensor_sharding and construct_v1_sharding_str."""

    def test_text(self, capsys: pytest.CaptureFixture[str]) -> None:
        shown = spmd.torch_xla.visualize_sharding("{devices=[2,2]0,1,2,3}", use_color=False)
        printed = capsys.readouterr().out
        assert printed == shown.text(min_width=9) + "\n" and "│    0    │    1    │" in printed
        spmd.torch_xla.visualize_sharding("{replicated}", scale=2.0, min_width=10)
        assert (
            "0-7" in (printed := capsys.readouterr().out)
            and "replicated on all 8 devices" in printed
        )
        assert len(printed.split("\n")[2]) == 22
        spmd.torch_xla.visualize_sharding("")
        assert "(no annotation)" in capsys.readouterr().out

    @pytest.mark.parametrize("rank", [1, 6])
    def test_ranks(self, rank: int, mesh8: spmd.Mesh, capsys: pytest.CaptureFixture[str]) -> None:
        """Those that PyTorch/XLA cannot draw."""
        x = spmd.mark_sharding(
            torch.zeros((8,) * rank).to("xla"), mesh8, ("fsdp", *[None] * (rank - 1))
        )
        shown = spmd.torch_xla.visualize_tensor_sharding(x, use_color=False)
        assert isinstance(shown, Picture) and "7" in capsys.readouterr().out

    def test_construct(self, mesh2x4: spmd.Mesh) -> None:
        x = spmd.mark_sharding(torch.zeros(8, 8).to("xla"), mesh2x4, ("fsdp", None))
        assert (
            spmd.torch_xla.construct_v1_sharding_str(x)
            == "{devices=[4,1,2]0,4,1,5,2,6,3,7 last_tile_dim_replicate}"
        )
        assert spmd.torch_xla.construct_v1_sharding_str(
            x * 2
        ) == spmd.torch_xla.construct_v1_sharding_str(x)
        assert spmd.torch_xla.construct_v1_sharding_str(torch.ones(2).to("xla")) == ""

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("{manual}", r"expected GSPMD text such as .*got '\{manual\}'"),
            ("{devices=[4,2]0,1}", "the tiles of .* are 8, but it names 2 devices"),
            ("{devices=[2]0,0}", "names a device twice"),
            ("{devices=[4,2]<=[2,4]T(1,1)}", r"T\(1,1\) of .* is no order of its 2 dims"),
            ("{devices=[2,2]<=[4] last_tile_dims={manual}}", "the last tile dims of"),
        ],
    )
    def test_bad_text(self, text: str, said: str) -> None:
        with pytest.raises(ValueError, match=f"visualize_sharding: .*{said}"):
            spmd.torch_xla.visualize_sharding(text)

    def test_errors(self, mesh8: spmd.Mesh) -> None:
        with pytest.raises(
            TypeError,
            match="visualize_sharding: expected GSPMD text, got Tensor; see show_sharding",
        ):
            spmd.torch_xla.visualize_sharding(torch.ones(2))  # type: ignore[arg-type]
        with pytest.raises(
            TypeError, match="visualize_tensor_sharding: expected a tensor, got str"
        ):
            spmd.torch_xla.visualize_tensor_sharding("{replicated}")  # type: ignore[arg-type]
        with pytest.raises(
            TypeError, match="construct_v1_sharding_str: expected a tensor, got int"
        ):
            spmd.torch_xla.construct_v1_sharding_str(3)  # type: ignore[arg-type]
        with pytest.raises(
            TypeError, match=r"show_sharding: expected a tensor, a spmd\.Sharding or .*got str"
        ):
            spmd.show_sharding("{replicated}")  # type: ignore[arg-type]
        sharding = mesh8.sharding(P(None, "fsdp"), 2)
        with pytest.raises(ValueError, match=r"pass the one to draw: shape=\(8, 16\)"):
            spmd.show_sharding(sharding)
        with pytest.raises(ValueError, match=r"is for arrays of 2 dims or more, got shape \(8,\)"):
            spmd.show_sharding(sharding, (8,))
        with pytest.raises(ValueError, match="a tensor has a shape of its own"):
            spmd.show_sharding(torch.ones(2), (2,))


class TestTables:
    """A sharding's table is that of its text, in both spellings."""

    @pytest.mark.parametrize(
        "spec", [("data", "fsdp"), (("fsdp", "data"), None), (None, None), ("fsdp", None)]
    )
    def test_of_text(self, spec: tuple[object, ...], mesh2x4: spmd.Mesh) -> None:
        sharding = mesh2x4.sharding(P(*spec), 2)
        if not sharding.is_replicated():
            assert read_table(sharding.text(2), 8, "t").tolist() == table_of(sharding, 2).tolist()
        assert table_of(sharding, 2).shape[:2] == sharding.tiles(2)

    def test_iota(self) -> None:
        text = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"
        assert read_table(text, 8, "t").reshape(-1).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
        summed = read_table("{devices=[2,2,2]<=[8] last_tile_dims={unreduced, replicated}}", 8, "t")
        assert summed.shape == (2, 2, 2) and read_table("{unreduced}", 8, "t").shape == (8, 1)
