"""GSPMD text of a tiling of an array over devices, with lists of devices and in the iota form.

Source: `xla::HloSharding::ToString`, `xla::TileAssignment` (V1 lists, V2 iota), `xla::OpSharding`.
"""

from typing import NamedTuple

import numpy as np


class Tiling(NamedTuple):
    """The number of tiles of each dim of an array, and the devices of each tile.

    tiles: a number for each dim. sums: the number of summands whose sum each tile still is; copies:
    the number of devices that hold each summand. devices: by tile, summand and copy. A replicated
    tiling has no tiles of its dims (`tiles` is empty), so it is a tiling of arrays of any rank.
    """

    tiles: tuple[int, ...]
    sums: int
    copies: int
    devices: tuple[int, ...]


def spell(tiling: Tiling, *, iota: bool = False) -> str:
    """Returns the text of a tiling. iota: devices as a reshaped and transposed count from 0, if
    they have that form."""
    if tiling.copies == len(tiling.devices):
        return "{replicated}"
    if tiling.sums == len(tiling.devices):
        return "{unreduced}"
    last_dims = {"unreduced": tiling.sums, "replicated": tiling.copies}
    last_dims = {kind: size for kind, size in last_dims.items() if size > 1}
    sizes = ",".join(map(str, (*tiling.tiles, *last_dims.values())))
    suffix = (
        f" last_tile_dims={{{', '.join(last_dims)}}}"
        if tiling.sums > 1
        else " last_tile_dim_replicate"
        if last_dims
        else ""
    )
    devices = _as_iota(tiling.devices) if iota else None
    return f"{{devices=[{sizes}]{devices or ','.join(map(str, tiling.devices))}{suffix}}}"


def _as_iota(devices: tuple[int, ...]) -> str | None:
    """Returns a list of devices in the iota form, or None if it has none: 0,2,1,3 is
    `<=[2,2]T(1,0)`."""
    ids, dims = np.array(devices), list[tuple[int, int]]()  # (stride, size), the outermost first
    while ids.size > 1:
        # Splits off the innermost remaining dim: a run of equal steps.
        stride = int(ids[1] - ids[0])
        breaks = np.flatnonzero(np.diff(ids) != stride)
        size = int(breaks[0]) + 1 if breaks.size else ids.size
        if ids.size % size:
            return None
        dims.insert(0, (stride, size))
        ids = ids[::size]
    by_stride = sorted(dims, reverse=True)
    sizes, order = [size for _, size in by_stride], [by_stride.index(dim) for dim in dims]
    if (
        tuple(np.arange(len(devices)).reshape(sizes).transpose(order).reshape(-1).tolist())
        != devices
    ):
        return None
    transpose = f"T({','.join(map(str, order))})" if order != sorted(order) else ""
    return f"<=[{','.join(map(str, sizes))}]{transpose}"
