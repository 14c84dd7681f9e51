"""Pictures of shardings: the devices of each shard, coloured in a terminal, as SVG, in a
notebook."""

import importlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import numpy as np
import torch

from ...core import DEVICE, Sharding, ends_at_user_line, hardware, variables
from .grids import Box, CellSize, Grid, drawn_parts, grid_of, lone, read_table, table_of
from .inspection import Inspection, inspect

# For each number of a colour: its index in the table of 256 that every terminal has. Black is
# readable on all of them. Twelve hues, and each of them twice more in another lightness.
_TERMINAL = (
    75,
    215,
    114,
    211,
    141,
    221,
    80,
    180,
    203,
    155,
    110,
    176,
    153,
    137,
    157,
    204,
    183,
    136,
    87,
    223,
    224,
    107,
    117,
    225,
    69,
    208,
    34,
    218,
    189,
    214,
    37,
    202,
    217,
    150,
    74,
    219,
)
# Readable next to the tiles, on a white page and on a black one.
_GREY = "#767676"
_PADDING_SVG = (
    '<defs><pattern id="padding" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><path d="M0 0V6" stroke="#000" stroke-width="2.5" '
    'stroke-opacity="0.45"/></pattern></defs>'
)


def _hex(number: int) -> str:
    """A colour of the terminal's cube of 6 x 6 x 6."""
    level = (0, 95, 135, 175, 215, 255)
    cube = number - 16
    return "#" + "".join(f"{level[cube // 6**i % 6]:02x}" for i in (2, 1, 0))


@ends_at_user_line
class Picture:
    """The devices of each shard of an array. Printed it is text, coloured in a terminal; a notebook
    shows the SVG.

    Shards are tiles, in the order of the dims; an uneven dim ends in padding, which is hatched.
    Where the room is too small, a tile is several shards and has their number. rich prints it, too.

    Attributes:
        caption: the lines above the tiles.
    """

    def __init__(
        self, table: np.ndarray | str, shape: Sequence[int] | None, caption: Sequence[str]
    ):
        self._table = table
        self._shape = None if shape is None else tuple(shape)
        self.caption = tuple(caption)

    def _grid(self, rows: int, columns: int) -> Grid:
        if isinstance(self._table, str):
            return lone(self._table, self._shape or ())
        return grid_of(self._table, self._shape, rows=rows, columns=columns)

    def text(
        self,
        *,
        use_color: bool = False,
        scale: float = 1.0,
        min_width: int = 5,
        max_width: int = 80,
    ) -> str:
        """The picture in characters.

        Args:
            use_color: with the codes that colour it. scale: of the tiles. min_width: characters of
                a tile, where there is room. max_width: of the picture.
        """
        for rows, columns in [
            (rows, columns) for rows in (16, 8, 4, 2, 1) for columns in range(32, 0, -1)
        ]:
            grid = self._grid(rows, columns)
            least = grid.widest()
            if drawn_parts(grid, _characters(grid, least, scale))[1] <= max_width:
                break
        width = max(least, int(min_width * scale))
        while width > least and drawn_parts(grid, _characters(grid, width, scale))[1] > max_width:
            width -= 1
        canvas = _Canvas(grid, _characters(grid, width, scale))
        return "\n".join([*self.caption, *canvas.lines(use_color=use_color)])

    def svg(self) -> str:
        """The picture as an SVG document, readable on light and dark pages, without a font of its
        own."""
        grid = self._grid(16, 16)
        lines = max(len(tile.lines) for tile in grid.tiles())
        unit = CellSize(max(7 * grid.widest(), 44), 15 * lines + 21, 18, 7, 1, (14, 10), 6)
        top = 18 * len(self.caption) + 6
        parts, width, height = drawn_parts(grid, unit)
        width = max(width, max((7 * len(line) for line in self.caption), default=0)) + 8
        drawn = [
            f'<text x="4" y="{18 * (i + 1) - 4}">{escape(line)}</text>'
            for i, line in enumerate(self.caption)
        ]
        for part in (part._replace(x=part.x + 4, y=part.y + top) for part in parts):
            if isinstance(part, Box):
                drawn += _tile_svg(part, unit)
            else:
                where = f'x="{part.x:g}" y="{part.y + 13:g}" text-anchor="{part.anchor}"'
                drawn.append(f'<text class="label" {where}>{escape(part.text)}</text>')
        size = (
            f'width="{width:g}" height="{height + top + 4:g}" viewBox="0 0 {width:g} '
            f'{height + top + 4:g}"'
        )
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" '
            f'font-size="11.5" fill="{_GREY}">'
        )
        title = f"<title>{escape(' | '.join(self.caption))}</title>"
        return "\n".join([head, title, _PADDING_SVG, *drawn, "</svg>", ""])

    def save(self, path: str | Path) -> None:
        """Writes the SVG. Raises ValueError for a name that does not end in `.svg`."""
        if Path(path).suffix != ".svg":
            raise ValueError(
                "save: a picture is written as SVG; expected a name that ends in .svg, got "
                f"{str(path)!r}"
            )
        Path(path).write_text(self.svg(), encoding="utf-8")

    def __str__(self) -> str:
        return self.text(use_color=variables.wants_color(sys.stdout))

    __repr__ = __str__

    def _repr_svg_(self) -> str:
        return self.svg()

    def __rich__(self) -> Any:
        return importlib.import_module("rich.text").Text.from_ansi(self.text(use_color=True))


def _tile_svg(box: Box, unit: CellSize) -> list[str]:
    """A tile, its padding and its text."""
    (tile, x, y), (width, height) = box, unit[:2]
    down, across = (share * size for share, size in zip(tile.padded, (height, width), strict=True))
    parts = [
        f'<g class="cell" data-devices={quoteattr(tile.lines[0])}>',
        _rect(x, y, width, height, _hex(_TERMINAL[tile.colour])),
    ]
    if down:
        parts.append(_rect(x, y + height - down, width, down, "url(#padding)", 'class="padding" '))
    if across and down < height:
        parts.append(
            _rect(x + width - across, y, across, height - down, "url(#padding)", 'class="padding" ')
        )
    first = y + (height - 15 * len(tile.lines)) / 2 + 11.5
    parts += [
        (
            f'<text x="{x + width / 2:g}" y="{first + 15 * i:g}" text-anchor="middle" '
            f'fill="#000">{escape(line)}</text>'
        )
        for i, line in enumerate(tile.lines)
    ]
    return [*parts, "</g>"]


def _rect(x: float, y: float, width: float, height: float, fill: str, attributes: str = "") -> str:
    return (
        f'<rect {attributes}x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
        f'fill="{fill}"/>'
    )


# --- in characters --------------------------------------------------------------------------------


def _characters(grid: Grid, width: int, scale: float) -> CellSize:
    """The unit of a terminal.

    Where a tile is padded at the bottom, all have one line more, to show it.
    """
    lines = max(len(tile.lines) for tile in grid.tiles())
    is_padded = any(0 < tile.padded[0] < 1 for tile in grid.tiles())
    return CellSize(width, max(lines, round(lines * scale)) + is_padded, 1, 1, 1, (2, 0), 1)


# By the neighbours that are border, too: 1 for the one above, 2 below, 4 at the left, 8 at the
# right.
_BORDERS = np.array(list("   │ ┘┐┤ └┌├─┴┬┼"))
_HATCH = "\N{BOX DRAWINGS LIGHT DIAGONAL UPPER RIGHT TO LOWER LEFT}"


class _Canvas:
    """Characters in lines, each with the number of its background colour (-1: none)."""

    def __init__(self, grid: Grid, unit: CellSize):
        parts, *sides = drawn_parts(grid, unit)
        width, height = map(int, sides)
        self.text = np.full((height, width), " ")
        self.colours = np.full((height, width), -1)
        self.size = int(unit.width), int(unit.height)
        # tiles and the characters around them; a margin on each side
        framed = np.zeros((height + 2, width + 2), bool)
        for part in parts:
            if isinstance(part, Box):
                x, y = self._paint(part)
                framed[y : y + self.size[1] + 2, x : x + self.size[0] + 2] = True
            else:
                shift = {"start": 0.0, "middle": len(part.text) / 2, "end": len(part.text)}[
                    part.anchor
                ]
                self._write(part.text, int(part.x - shift), int(part.y))
        framed[1:-1, 1:-1] &= self.colours < 0
        is_border = framed[1:-1, 1:-1]
        near = (
            framed[:-2, 1:-1] + 2 * framed[2:, 1:-1] + 4 * framed[1:-1, :-2] + 8 * framed[1:-1, 2:]
        )
        self.text[is_border] = _BORDERS[near[is_border]]

    def _write(self, text: str, x: int, y: int) -> None:
        row = self.text[y]
        for i, character in enumerate(text):
            if 0 <= x + i < len(row):
                row[x + i] = character

    def _paint(self, box: Box) -> tuple[int, int]:
        """Writes a tile; returns its position."""
        (width, height), x, y = self.size, int(box.x), int(box.y)
        down, across = box.tile.padded
        padded_rows, padded_columns = _characters_of(down, height), _characters_of(across, width)
        area = slice(y, y + height), slice(x, x + width)
        self.colours[area] = box.tile.colour
        self.text[area][height - padded_rows :] = _HATCH
        self.text[area][:, width - padded_columns :] = _HATCH
        # the text is on the part without padding, if there is one
        real = height - padded_rows or height
        begin = y + max(real - len(box.tile.lines), 0) // 2
        for i, line in enumerate(box.tile.lines):
            self._write(f" {line} ", x + (width - len(line)) // 2 - 1, begin + i)
        return x, y

    def lines(self, *, use_color: bool) -> list[str]:
        """The lines of text, with the tiles coloured if requested."""
        colours = self.colours if use_color else np.full_like(self.colours, -1)
        return [
            "".join(_runs(*line)).rstrip() for line in zip(self.text, colours.tolist(), strict=True)
        ]


def _characters_of(share: float, size: int) -> int:
    """The characters of a tile's side that are padding; of a tile that is partly padding, neither
    none nor all."""
    return min(max(round(share * size), 1), size - 1) if 0 < share < 1 else int(share) * size


def _runs(row: np.ndarray, colours: list[int]) -> Iterator[str]:
    """A line as runs of one colour."""
    for colour, run in itertools.groupby(zip(row, colours, strict=True), key=lambda pair: pair[1]):
        text = "".join(character for character, _ in run)
        yield text if colour < 0 else f"\x1b[38;5;16;48;5;{_TERMINAL[colour]}m{text}\x1b[0m"


# --- public functions -----------------------------------------------------------------------------


@ends_at_user_line
def show_sharding(
    what: torch.Tensor | Sharding | Inspection, shape: Sequence[int] | None = None
) -> Picture:
    """Returns a picture of a tensor's sharding, or of a sharding of arrays of a shape.

    Print it, `.save("x.svg")` it, or make it the last line of a cell of a notebook. A tensor's
    sharding is found as by `spmd.inspect`: for a recorded value the compiler propagates it, and
    nothing runs.

    Args:
        what: a tensor, a `spmd.Sharding` (`spmd.get_sharding`) or a result of `spmd.inspect`.
            shape: with a sharding, the shape of the arrays; a tensor has its own.

    Raises TypeError for another type, ValueError for a missing or superfluous shape or one of too
    few dims.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh([0], (1,), ("data",))
    >>> x = spmd.mark_sharding(torch.ones(4, 2).to("xla"), mesh, ("data", None))
    >>> print(spmd.show_sharding(x).text())
    float32[4,2] on the host, not uploaded yet, as P(None, None) over data=1
    each of 1 devices holds float32[4,2], 32 B; decided by annotation
             dim 1 →
    dim 0 ↓   0:2
            ┌─────┐
        0:4 │  0  │
            └─────┘
    """
    if isinstance(what, Sharding):
        if shape is None:
            raise ValueError(
                "show_sharding: a sharding fits arrays of any shape; pass the one to draw: "
                "shape=(8, 16)"
            )
        return _of_sharding(what, tuple(shape))
    if shape is not None:
        raise ValueError(
            "show_sharding: a tensor has a shape of its own; pass shape only with a sharding"
        )
    if isinstance(what, torch.Tensor):
        return _of_inspection(inspect(what))
    if not isinstance(what, Inspection):
        raise TypeError(
            "show_sharding: expected a tensor, a spmd.Sharding or a result of spmd.inspect, got "
            f"{type(what).__name__}"
        )
    return _of_inspection(what)


def _of_inspection(inspection: Inspection) -> Picture:
    sharding = inspection.sharding
    if sharding is None:
        return Picture(inspection.residence, inspection.shape, (inspection.headline,))
    return Picture(
        table_of(sharding, len(inspection.shape)),
        inspection.shape,
        (inspection.headline, inspection.each, *_notes(sharding, inspection.shape)),
    )


def _of_sharding(sharding: Sharding, shape: tuple[int, ...]) -> Picture:
    if len(shape) < len(sharding.spec.dims):
        raise ValueError(
            f"show_sharding: {sharding!r} is for arrays of {len(sharding.spec.dims)} dims or "
            f"more, got shape {shape}"
        )
    axes = ", ".join(f"{name}={size}" for name, size in sharding.mesh_axes().items())
    head = f"{list(shape)} as P{sharding.partition_spec(len(shape))!r} over {axes}"
    shard_text = (
        f"each of {len(sharding.device_ids)} devices holds {list(sharding.shard_shape(shape))}"
    )
    return Picture(
        table_of(sharding, len(shape)), shape, (head, shard_text, *_notes(sharding, shape))
    )


def _notes(sharding: Sharding, shape: tuple[int, ...]) -> list[str]:
    """Lines on replication, padding, open dims and memory, which the tiles do not show."""
    notes = []
    if len(sharding.device_ids) > 1 and sharding.is_replicated() and not sharding.spec.unreduced:
        notes.append(f"replicated on all {len(sharding.device_ids)} devices")
    for dim, (size, padded) in enumerate(zip(shape, sharding.padded_shape(shape), strict=True)):
        if padded != size:
            notes.append(f"dim {dim} of {size} is held as {padded}: the rest is padding")
    notes += [
        f"dim {i} is left to the partitioner"
        for i, dim in enumerate(sharding.spec.dims)
        if dim.is_open
    ]
    if sharding.memory != DEVICE:
        notes.append(f"in the memory {sharding.memory}")
    return notes


@ends_at_user_line
def visualize_sharding(
    sharding: str,
    use_color: bool = True,
    scale: float = 1.0,
    min_width: int = 9,
    max_width: int = 80,
) -> Picture:
    """Prints the picture of a GSPMD text, in either spelling, of any rank and any number of
    devices; returns it.

    Args:
        sharding: the text of `spmd.get_sharding(t).text(t.dim())` or in `get_stablehlo`;
            "{replicated}" is drawn for all devices. use_color: where the terminal has colours.
            scale, min_width, max_width: of the tiles and of the picture, in characters.

    Raises ValueError for another text. Source:
    `torch_xla.distributed.spmd.debugging.visualize_sharding`.

    >>> import spmd
    >>> picture = spmd.torch_xla.visualize_sharding(
    ...     "{devices=[2,1,4]<=[8] last_tile_dim_replicate}", max_width=40
    ... )
    {devices=[2,1,4]<=[8] last_tile_dim_replicate}
    dim 0 ↓  dim 1 →
            ┌──────────┐
            │   0-3    │
            │ 4 copies │
            ├──────────┤
            │   4-7    │
            │ 4 copies │
            └──────────┘
    """
    if not isinstance(sharding, str):
        raise TypeError(
            f"visualize_sharding: expected GSPMD text, got {type(sharding).__name__}; see "
            "show_sharding"
        )
    table = read_table(sharding, len(hardware.devices()), "visualize_sharding")
    caption = [sharding or "(no annotation)"]
    if table.ndim == 2 and table.size > 1:
        caption.append(
            f"replicated on all {table.size} devices" if table.shape[0] == 1 else "partial sums"
        )
    return _printed(Picture(table, None, caption), use_color, scale, min_width, max_width)


@ends_at_user_line
def visualize_tensor_sharding(
    t: torch.Tensor,
    use_color: bool = True,
    scale: float = 1.0,
    min_width: int = 9,
    max_width: int = 80,
) -> Picture:
    """Prints the picture of a tensor's sharding (`show_sharding`) and returns it.

    Args: as of `visualize_sharding`. Raises TypeError for another type than a tensor.
    Source: `torch_xla.distributed.spmd.debugging.visualize_tensor_sharding`, which took neither one
    dim nor many.

    >>> import torch, spmd
    >>> x = spmd.mark_sharding(
    ...     torch.ones(4, 2, device="xla"), spmd.Mesh([0], (1,), ("data",)), ("data", None)
    ... )
    >>> picture = spmd.torch_xla.visualize_tensor_sharding(x, use_color=False)
    float32[4,2] recorded, not run, ...
    """
    if not isinstance(t, torch.Tensor):
        raise TypeError(
            f"visualize_tensor_sharding: expected a tensor, got {type(t).__name__}; see "
            "visualize_sharding"
        )
    return _printed(show_sharding(t), use_color, scale, min_width, max_width)


def _printed(
    picture: Picture, use_color: bool, scale: float, min_width: int, max_width: int
) -> Picture:
    is_coloured = use_color and variables.wants_color(sys.stdout)
    print(
        picture.text(use_color=is_coloured, scale=scale, min_width=min_width, max_width=max_width)
    )
    return picture


@ends_at_user_line
def construct_v1_sharding_str(t: torch.Tensor) -> str:
    """The GSPMD text of a tensor's sharding, devices listed one by one; "" where it has none.

    The sharding is found as by `spmd.inspect`. Raises TypeError for another type than a tensor.
    Source: `torch_xla.distributed.spmd.debugging.construct_v1_sharding_str`.

    >>> import torch, spmd
    >>> x = spmd.mark_sharding(
    ...     torch.ones(8, device="xla"), spmd.Mesh(range(8), (8,), ("data",)), ("data",)
    ... )
    >>> spmd.torch_xla.construct_v1_sharding_str(x)
    '{devices=[8]0,1,2,3,4,5,6,7}'
    """
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"construct_v1_sharding_str: expected a tensor, got {type(t).__name__}")
    return inspect(t).text
