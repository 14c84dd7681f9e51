"""The parts of a picture of a sharding and their positions: tiles in grids, grids in grids, in characters or points.

Drawing in a terminal or on a page is in `pictures`."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...core import Sharding
from ...mesh import sharding_text

# --- the devices of each tile -----------------------------------------------------------------------------------------

# An array of device ids, of a Sharding, or of a GSPMD text in either form. Such a table has a dim for each dim of the
# array, by tile, then one by summand and one by copy of the same tile.


def table_of(sharding: Sharding, rank: int) -> np.ndarray:
    """The table of a sharding of arrays of `rank` dims."""
    sums, copies = sharding.last_tiles()
    return np.array(sharding._groups()).reshape(*sharding.tiles(rank), sums, copies)


def read_table(given: str, num_devices: int, caller: str) -> np.ndarray:
    """Returns the table that a GSPMD text names; a replicated text names no devices and holds for `num_devices`.

    Raises ValueError where the text is no sharding, or does not name the devices of the tiles (`{manual}`).
    """
    text, _ = sharding_text.open_dims(given)
    if text in ("", "{replicated}"):  # PyTorch/XLA's text of a tensor without an annotation is empty
        return np.arange(num_devices).reshape(1, num_devices)
    if text == "{unreduced}":
        return np.arange(num_devices).reshape(num_devices, 1)
    tiling = sharding_text.read_tiled(text, caller)
    return np.array(tiling.devices).reshape(*tiling.tiles, tiling.sums, tiling.copies)


# --- tiles and grids --------------------------------------------------------------------------------------------------


NUM_HUES, NUM_LIGHTNESSES = 12, 3  # a colour's number: hue + NUM_HUES * lightness


def _colour(place: int, count: int, columns: int) -> int:
    """The colour of a tile: hues along the last dim, lightnesses along the others, so that neighbours differ."""
    if count <= NUM_HUES:
        return place
    row, column = divmod(place, columns)
    hue = (column + row // NUM_LIGHTNESSES * columns) % NUM_HUES
    return hue + NUM_HUES * ((row + column // NUM_HUES) % NUM_LIGHTNESSES)


@dataclass(frozen=True, slots=True)
class Tile:
    """One shard, or several where there is no room for one each: lines of text, the number of its colour, and the
    fractions of its height and its width that are padding, at the bottom and to the right."""

    lines: tuple[str, ...]
    colour: int
    padded: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows of tiles or of grids; titles: the dims that go down and across; labels: the indices of each row and each
    column; "" for no title or label."""

    items: tuple[tuple["Tile | Grid", ...], ...]
    titles: tuple[str, str] = ("", "")
    labels: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    def widest(self) -> int:
        """The characters of the longest text that must fit into a tile's width."""
        inner = max(item.widest() if isinstance(item, Grid) else _width(item) for row in self.items for item in row)
        is_inner = isinstance(self.items[0][0], Tile)
        return max(inner, *map(len, self.labels[1])) if is_inner and self.labels[1] else inner

    def tiles(self) -> Iterator[Tile]:
        """Yields every tile inside, row by row."""
        for row in self.items:
            for item in row:
                yield from item.tiles() if isinstance(item, Grid) else (item,)


def _width(tile: Tile) -> int:
    return max(map(len, tile.lines)) + 2


def lone(text: str, shape: Sequence[int]) -> Grid:
    """The grid of an array of this shape that is on no device: one tile with a text."""
    drawn = grid_of(np.zeros((1,) * (len(shape) + 2), int), shape, rows=1, columns=1)
    return Grid(((Tile((text,), 0),),), drawn.titles, drawn.labels)


def grid_of(table: np.ndarray, shape: Sequence[int] | None, *, rows: int, columns: int) -> Grid:
    """The grid of a table of devices (see `core.sharding.tiles`), with at most so many rows and columns of tiles.

    Up to two dims go down and across; of more, the dims that are split, in pairs, the last ones innermost.
    """
    tiles = table.shape[:-2]
    drawn = list(range(len(tiles)))
    if len(tiles) > 2:
        cut = [dim for dim in drawn if tiles[dim] > 1]
        uncut = [dim for dim in drawn if tiles[dim] == 1]
        drawn = sorted([*cut, *uncut[len(uncut) - max(0, 2 - len(cut)) :]])
    levels = [drawn[i : i + 2] for i in range(len(drawn) % 2, len(drawn), 2)]
    if len(drawn) % 2:
        levels.insert(0, drawn[:1])
    down = [level[0] for level in levels if len(level) == 2 or len(levels) > 1]
    across = [level[-1] for level in levels if len(level) == 2 or len(levels) == 1]
    bins = _bins([tiles[dim] for dim in down], rows) + _bins([tiles[dim] for dim in across], columns)
    return _Drawing(table, shape, dict(zip(down + across, bins, strict=True)), down).grid(levels, {})


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
    """The next larger size that divides the count, if it is at most twice this size, else size + 1."""
    even = next((n for n in range(size + 1, 2 * size + 1) if count % n == 0), None)
    return even if even is not None else size + 1


class _Drawing(NamedTuple):
    """A table of devices being drawn. bins: of each dim that is drawn; down: the dims that go down."""

    table: np.ndarray
    shape: Sequence[int] | None
    bins: dict[int, list[Bin]]
    down: list[int]

    def grid(self, levels: list[list[int]], at: dict[int, Bin]) -> Grid:
        """The grid of these levels, outermost first, for the part of the array at these bins."""
        if not levels:
            return Grid(((self._tile(at),),))
        level, *inner_levels = levels
        rows = [dim for dim in level if dim in self.down]
        columns = [dim for dim in level if dim not in self.down]

        if inner_levels and all(len(self.bins[dim]) == 1 for dim in level):  # a single grid in a grid adds nothing
            return self.grid(inner_levels, {**at, **{dim: self.bins[dim][0] for dim in level}})

        def item(row: Bin | None, column: Bin | None) -> Tile | Grid:
            position = {**at, **{dim: row for dim in rows if row}, **{dim: column for dim in columns if column}}
            return self.grid(inner_levels, position) if inner_levels else self._tile(position)

        return Grid(
            tuple(tuple(item(row, column) for column in self._of(columns)) for row in self._of(rows)),
            (self._title(rows, "↓"), self._title(columns, "→")),
            (self._labels(rows), self._labels(columns)),
        )

    def _of(self, dims: list[int]) -> Sequence[Bin | None]:
        return self.bins[dims[0]] if dims else [None]

    def _title(self, dims: list[int], way: str) -> str:
        return f"dim {dims[0]} {way}" if dims else ""

    def _labels(self, dims: list[int]) -> tuple[str, ...]:
        """The range of elements of a dim in each bin."""
        if not dims or self.shape is None:
            return ()
        dim = self.shape[dims[0]]
        size = -(-dim // self.table.shape[dims[0]])
        ends = [(min(low * size, dim), min(high * size, dim)) for low, high in self.bins[dims[0]]]
        is_long = len(str(dim)) > _LONG_NUMBER and len(ends) > 1
        texts = [f"{start}:" if is_long else f"{start}:{end}" for start, end in ends]
        return tuple(text if start < end or not dim else "-" for text, (start, end) in zip(texts, ends, strict=True))

    def _tile(self, at: dict[int, Bin]) -> Tile:
        dims = range(self.table.ndim - 2)
        part = self.table[tuple(slice(*at[dim]) if dim in at else slice(None) for dim in dims)]
        *shards, sums, copies = part.shape
        counts = {"shards": math.prod(shards), "summands": sums, "copies": copies}
        notes = tuple(f"{count} {kind}" for kind, count in counts.items() if count > 1)
        order = [self.bins[dim].index(at[dim]) for dim in at]
        sizes = [len(self.bins[dim]) for dim in at]
        number = int(np.ravel_multi_index(order, sizes)) if order else 0
        colour = _colour(number, math.prod(sizes), sizes[-1] if len(sizes) > 1 else NUM_HUES)
        shares = {dim: self._padding(dim, at[dim]) for dim in at}
        inner = sorted(at)[-2:]
        down = next((shares[dim] for dim in inner if dim in self.down), 0.0)
        across = next((shares[dim] for dim in inner if dim not in self.down), 0.0)
        if any(shares[dim] == 1 for dim in at):
            down = across = 1.0
        return Tile((devices_text(part.reshape(-1).tolist()), *notes), colour, (down, across))

    def _padding(self, dim: int, at: Bin) -> float:
        """The fraction of a bin of a dim that is padding."""
        if self.shape is None or not self.shape[dim]:
            return 0.0
        size = -(-self.shape[dim] // self.table.shape[dim])
        low, high = at[0] * size, at[1] * size
        real = max(min(high, self.shape[dim]) - low, 0)
        return 1 - real / (high - low)


_LONGEST = 16  # characters that name the devices of a tile
_LONG_NUMBER = 4  # digits; for longer numbers a label has the first index alone


def devices_text(ids: Sequence[int]) -> str:
    """The ids of devices as a short text: 0-7; 0-3,8-11; 0-56 by 8; 0 ... 505."""
    numbers = sorted(ids)
    if len(numbers) > 2 and len(steps := {b - a for a, b in itertools.pairwise(numbers)}) == 1:
        step = steps.pop()
        return f"{numbers[0]}-{numbers[-1]}" + (f" by {step}" if step > 1 else "")
    places = itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])  # one for each run
    parts = [[number for _, number in run] for _, run in places]
    text = ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}{',' if len(p) == 2 else '-'}{p[-1]}" for p in parts)
    if len(text) <= _LONGEST:
        return text
    return f"{numbers[0]} ... {numbers[-1]}"


# --- positions --------------------------------------------------------------------------------------------------------


class CellSize(NamedTuple):
    """The sizes of the drawing's parts: of a tile, a line of labels, a character of them; gap: between tiles; apart:
    between grids, across and down; margin: between labels and the labelled."""

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
    """A text at its position: x is its start, its middle or its end, by the anchor; y the top of its line."""

    text: str
    x: float
    y: float
    anchor: str


class _Extent(NamedTuple):
    """The sizes of a grid's parts. left, top: of its labels; width, height: of an item; across, down: from one item to
    the next; edge: of the frame around tiles."""

    left: float
    top: float
    width: float
    height: float
    across: float
    down: float
    edge: float


def _extent_of(grid: Grid, unit: CellSize) -> _Extent:
    longest = max(map(len, (*grid.labels[0], grid.titles[0])))
    label_width = longest * unit.char + unit.margin if longest else 0
    lines = bool(grid.titles[1]) + bool(any(grid.labels[1]) or (grid.titles[0] and not grid.titles[1]))
    first = grid.items[0][0]
    width, height = size_of(first, unit)
    across, down, edge = (unit.gap,) * 3 if isinstance(first, Tile) else (*unit.apart, 0)
    return _Extent(label_width, lines * unit.line, width, height, width + across, height + down, edge)


def size_of(item: Tile | Grid, unit: CellSize) -> tuple[float, float]:
    """Width and height of the drawing, labels included."""
    if isinstance(item, Tile):
        return unit.width, unit.height
    label_width, top, width, height, across, down, edge = _extent_of(item, unit)
    body = 2 * edge + (len(item.items[0]) - 1) * across + width
    title = unit.gap + len(item.titles[1]) * unit.char
    return label_width + max(body, title), top + 2 * edge + (len(item.items) - 1) * down + height


def placed(item: Grid, unit: CellSize, x: float = 0, y: float = 0) -> Iterator[Box | CellLabel]:
    """Yields every tile and label of a grid, with their positions."""
    label_width, top, width, height, across, down, edge = _extent_of(item, unit)
    begin_x, begin_y = x + label_width + edge, y + top + edge
    if item.titles[1]:
        yield CellLabel(item.titles[1], begin_x, y, "start")
    if item.titles[0]:
        yield CellLabel(item.titles[0], x + label_width - unit.margin, y + max(top - unit.line, 0), "end")
    for column, label in enumerate(item.labels[1]):
        yield CellLabel(label, begin_x + column * across + width / 2, y + top - unit.line, "middle")
    for row, label in enumerate(item.labels[0]):
        yield CellLabel(label, x + label_width - unit.margin, begin_y + row * down + (height - unit.line) / 2, "end")
    for row, items in enumerate(item.items):
        for column, inner in enumerate(items):
            at = begin_x + column * across, begin_y + row * down
            if isinstance(inner, Grid):
                yield from placed(inner, unit, *at)
            else:
                yield Box(inner, *at)
