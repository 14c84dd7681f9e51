"""The parts of a picture of a sharding and their positions: tiles in grids, grids in grids, in
characters or points.

Drawing in a terminal or on a page is in `pictures`."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...core import Sharding
from ...mesh import sharding_text

# --- the devices of each tile ---------------------------------------------------------------------

# An array of device ids, of a Sharding, or of a GSPMD text in either form. Such a table has a dim
# for each dim of the array, by tile, then one by summand and one by copy of the same tile.


def table_of(sharding: Sharding, rank: int) -> np.ndarray:
    """The table of a sharding of arrays of `rank` dims."""
    sums, copies = sharding.last_tiles()
    return np.array(sharding._groups()).reshape(*sharding.tiles(rank), sums, copies)


def read_table(layout_text: str, num_devices: int, caller: str) -> np.ndarray:
    """Returns the table that a GSPMD text names; a replicated text names no devices and holds for
    `num_devices`.

    Raises ValueError where the text is no sharding, or does not name the devices of the tiles
    (`{manual}`).
    """
    text, _ = sharding_text.open_dims(layout_text)
    # PyTorch/XLA's text of a tensor without an annotation is empty
    if text in ("", "{replicated}"):
        return np.arange(num_devices).reshape(1, num_devices)
    if text == "{unreduced}":
        return np.arange(num_devices).reshape(num_devices, 1)
    tiling = sharding_text.read_tiled(text, caller)
    return np.array(tiling.devices).reshape(*tiling.tiles, tiling.sums, tiling.copies)


# --- tiles and grids ------------------------------------------------------------------------------


NUM_HUES, NUM_LIGHTNESSES = 12, 3  # a colour's number: hue + NUM_HUES * lightness


def _colour(tile_index: int, count: int, columns: int) -> int:
    """The colour of a tile: hues along the last dim, lightnesses along the others, so that
    neighbours differ."""
    if count <= NUM_HUES:
        return tile_index
    row, column = divmod(tile_index, columns)
    hue = (column + row // NUM_LIGHTNESSES * columns) % NUM_HUES
    return hue + NUM_HUES * ((row + column // NUM_HUES) % NUM_LIGHTNESSES)


@dataclass(frozen=True, slots=True)
class Tile:
    """One shard, or several where there is no room for one each: lines of text, the number of its
    colour, and the fractions of its height and its width that are padding, at the bottom and to the
    right."""

    lines: tuple[str, ...]
    colour: int
    padded: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows of tiles or of grids; titles: the dims that go down and across; labels: the indices of
    each row and each column; "" for no title or label."""

    items: tuple[tuple["Tile | Grid", ...], ...]
    titles: tuple[str, str] = ("", "")
    labels: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    def widest(self) -> int:
        """The characters of the longest text that must fit into a tile's width."""
        items = [item for row in self.items for item in row]
        inner = max(
            item.widest() if isinstance(item, Grid) else max(map(len, item.lines)) + 2
            for item in items
        )
        is_inner = isinstance(self.items[0][0], Tile)
        return max(inner, *map(len, self.labels[1])) if is_inner and self.labels[1] else inner

    def tiles(self) -> Iterator[Tile]:
        """Yields every tile inside, row by row."""
        for row in self.items:
            for item in row:
                yield from item.tiles() if isinstance(item, Grid) else (item,)


def lone(text: str, shape: Sequence[int]) -> Grid:
    """The grid of an array of this shape that is on no device: one tile with a text."""
    drawn = grid_of(np.zeros((1,) * (len(shape) + 2), int), shape, rows=1, columns=1)
    return Grid(((Tile((text,), 0),),), drawn.titles, drawn.labels)


def grid_of(table: np.ndarray, shape: Sequence[int] | None, *, rows: int, columns: int) -> Grid:
    """The grid of a table of devices (see `core.sharding.tiles`), with at most so many rows and
    columns of tiles.

    Up to two dims go down and across; of more, the dims that are split, in pairs, the last ones
    innermost.
    """
    tiles = table.shape[:-2]
    drawn = list(range(len(tiles)))
    if len(tiles) > 2:
        cut = [dim for dim in drawn if tiles[dim] > 1]
        uncut = [dim for dim in drawn if tiles[dim] == 1]
        drawn = sorted([*cut, *uncut[len(uncut) - max(0, 2 - len(cut)) :]])
    is_odd = len(drawn) % 2
    levels: list[Level] = [*zip(drawn[is_odd::2], drawn[is_odd + 1 :: 2], strict=True)]
    if is_odd:
        levels.insert(0, (drawn[0], None) if levels else (None, drawn[0]))
    bins: dict[int | None, list[Bin]] = {}
    for dims, room in zip(zip(*levels, strict=True), (rows, columns), strict=False):
        bins |= zip(
            dims, _bins([1 if dim is None else tiles[dim] for dim in dims], room), strict=True
        )
    return _Drawing(table, shape, bins).grid(levels, {})


Level = tuple[int | None, int | None]  # the dims that go down and across in a grid
Bin = tuple[int, int]  # the first shard of a dim and the end of the range


def _bins(counts: list[int], room: int) -> list[list[Bin]]:
    """Groups the shards of some dims into bins, as few to a bin as the room allows."""
    sizes = [1] * len(counts)
    shown = list(counts)
    while math.prod(shown) > room and max(shown) > 1:
        widest = shown.index(max(shown))
        sizes[widest] = _next(counts[widest], sizes[widest])
        shown[widest] = -(-counts[widest] // sizes[widest])
    return [
        [(low, min(low + size, count)) for low in range(0, count, size)]
        for count, size in zip(counts, sizes, strict=True)
    ]


def _next(count: int, size: int) -> int:
    """The next larger size that divides the count, if it is at most twice this size, else size +
    1."""
    even = next((n for n in range(size + 1, 2 * size + 1) if count % n == 0), None)
    return even if even is not None else size + 1


class _Drawing(NamedTuple):
    """A table of devices being drawn. bins: of each dim that is drawn; of None, in place of a dim,
    a single one."""

    table: np.ndarray
    shape: Sequence[int] | None
    bins: dict[int | None, list[Bin]]

    def grid(self, levels: Sequence[Level], bin_of_dim: dict[int, Bin]) -> Grid:
        """The grid of these levels, outermost first, for the part of the array at these bins."""
        if not levels:
            return Grid(((self._tile(bin_of_dim, (None, None)),),))
        level, *inner = levels
        rows, columns = (self.bins[dim] for dim in level)

        def item(*position: Bin) -> Tile | Grid:
            inner_bins = bin_of_dim | {
                dim: dim_bin
                for dim, dim_bin in zip(level, position, strict=True)
                if dim is not None
            }
            return self.grid(inner, inner_bins) if inner else self._tile(inner_bins, level)

        if inner and len(rows) == len(columns) == 1:  # a single grid in a grid adds nothing
            only = item(rows[0], columns[0])
            assert isinstance(only, Grid), "an inner level is one"
            return only
        return Grid(
            tuple(tuple(item(row, column) for column in columns) for row in rows),
            (_title(level[0], "↓"), _title(level[1], "→")),
            (self._labels(level[0]), self._labels(level[1])),
        )

    def _labels(self, drawn: int | None) -> tuple[str, ...]:
        """The range of elements of a dim in each bin."""
        if drawn is None or self.shape is None:
            return ()
        dim = self.shape[drawn]
        size = -(-dim // self.table.shape[drawn])
        ends = [(min(low * size, dim), min(high * size, dim)) for low, high in self.bins[drawn]]
        is_long = len(str(dim)) > _LONG_NUMBER and len(ends) > 1
        texts = [f"{start}:" if is_long else f"{start}:{end}" for start, end in ends]
        return tuple(
            text if start < end or not dim else "-"
            for text, (start, end) in zip(texts, ends, strict=True)
        )

    def _tile(self, bin_of_dim: dict[int, Bin], level: Level) -> Tile:
        """The tile of the part of the array at these bins, in a grid of this level."""
        dims = range(self.table.ndim - 2)
        part = self.table[
            tuple(slice(*bin_of_dim[dim]) if dim in bin_of_dim else slice(None) for dim in dims)
        ]
        *shards, sums, copies = part.shape
        counts = {"shards": math.prod(shards), "summands": sums, "copies": copies}
        notes = tuple(f"{count} {kind}" for kind, count in counts.items() if count > 1)
        order = [self.bins[dim].index(bin_of_dim[dim]) for dim in bin_of_dim]
        sizes = [len(self.bins[dim]) for dim in bin_of_dim]
        number = int(np.ravel_multi_index(order, sizes)) if order else 0
        colour = _colour(number, math.prod(sizes), sizes[-1] if len(sizes) > 1 else NUM_HUES)
        shares: dict[int | None, float] = {
            dim: self._padding(dim, bin_of_dim[dim]) for dim in bin_of_dim
        }
        down, across = (1.0 if 1 in shares.values() else shares.get(dim, 0.0) for dim in level)
        return Tile((devices_text(part.reshape(-1).tolist()), *notes), colour, (down, across))

    def _padding(self, dim: int, dim_bin: Bin) -> float:
        """The fraction of a bin of a dim that is padding."""
        if self.shape is None or not self.shape[dim]:
            return 0.0
        size = -(-self.shape[dim] // self.table.shape[dim])
        low, high = dim_bin[0] * size, dim_bin[1] * size
        real = max(min(high, self.shape[dim]) - low, 0)
        return 1 - real / (high - low)


def _title(dim: int | None, way: str) -> str:
    return "" if dim is None else f"dim {dim} {way}"


_LONGEST = 16  # characters that name the devices of a tile
_LONG_NUMBER = 4  # digits; for longer numbers a label has the first index alone


def devices_text(ids: Sequence[int]) -> str:
    """The ids of devices as a short text: 0-7; 0-3,8-11; 0-56 by 8; 0 ... 505."""
    numbers = sorted(ids)
    if len(numbers) > 2 and len(steps := {b - a for a, b in itertools.pairwise(numbers)}) == 1:
        step = steps.pop()
        return f"{numbers[0]}-{numbers[-1]}" + (f" by {step}" if step > 1 else "")
    # one for each run
    places = itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    parts = [[number for _, number in run] for _, run in places]
    text = ",".join(
        str(p[0]) if len(p) == 1 else f"{p[0]}{',' if len(p) == 2 else '-'}{p[-1]}" for p in parts
    )
    if len(text) <= _LONGEST:
        return text
    return f"{numbers[0]} ... {numbers[-1]}"


# --- positions ------------------------------------------------------------------------------------


class CellSize(NamedTuple):
    """The sizes of the drawing's parts: of a tile, a line of labels, a character of them; gap:
    between tiles; apart: between grids, across and down; margin: between labels and the
    labelled."""

    width: float
    height: float
    line: float
    char: float
    gap: float
    apart: tuple[float, float]
    margin: float


class Box(NamedTuple):
    """A tile at its position."""

    tile: Tile
    x: float
    y: float


class CellLabel(NamedTuple):
    """A text at its position: x is its start, its middle or its end, by the anchor; y the top of
    its line."""

    text: str
    x: float
    y: float
    anchor: str


Parts = list[Box | CellLabel]


def drawn_parts(grid: Tile | Grid, unit: CellSize) -> tuple[Parts, float, float]:
    """The tiles and labels of a grid with their positions, and its width and height, labels
    included."""
    if isinstance(grid, Tile):
        return [Box(grid, 0, 0)], unit.width, unit.height
    longest = max(map(len, (*grid.labels[0], grid.titles[0])))
    left_margin = longest * unit.char + unit.margin if longest else 0
    num_lines = bool(grid.titles[1]) + bool(
        any(grid.labels[1]) or (grid.titles[0] and not grid.titles[1])
    )
    top, is_inner = num_lines * unit.line, isinstance(grid.items[0][0], Tile)
    # edge: of the frame around tiles
    gap, edge = ((unit.gap, unit.gap), unit.gap) if is_inner else (unit.apart, 0)
    items = [[drawn_parts(item, unit) for item in row] for row in grid.items]
    _, width, height = items[0][0]
    xs = [left_margin + edge + column * (width + gap[0]) for column in range(len(items[0]))]
    ys = [top + edge + row * (height + gap[1]) for row in range(len(items))]
    parts: Parts = []
    if grid.titles[1]:
        parts.append(CellLabel(grid.titles[1], left_margin + edge, 0, "start"))
    if grid.titles[0]:
        parts.append(
            CellLabel(grid.titles[0], left_margin - unit.margin, max(top - unit.line, 0), "end")
        )
    parts += [
        CellLabel(label, x + width / 2, top - unit.line, "middle")
        for x, label in zip(xs, grid.labels[1], strict=False)
    ]
    parts += [
        CellLabel(label, left_margin - unit.margin, y + (height - unit.line) / 2, "end")
        for y, label in zip(ys, grid.labels[0], strict=False)
    ]
    for y, row in zip(ys, items, strict=True):
        for x, (inner, _, _) in zip(xs, row, strict=True):
            parts += [part._replace(x=x + part.x, y=y + part.y) for part in inner]
    title = left_margin + unit.gap + len(grid.titles[1]) * unit.char
    return parts, max(xs[-1] + width + edge, title), ys[-1] + height + edge
