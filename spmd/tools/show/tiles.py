"""The devices of each tile, as an array of device ids: of a Sharding, or of a GSPMD text in either form.

Such a table has a dim for each dim of the array, by tile, then one by summand and one by copy of the same tile.
"""

import numpy as np

from ...core import Sharding, specs


def table_of(sharding: Sharding, rank: int) -> np.ndarray:
    """The table of a sharding of arrays of `rank` dims."""
    sums, copies = sharding.last_tiles()
    return np.array(sharding._groups()).reshape(*sharding.tiles(rank), sums, copies)


def read_table(given: str, num_devices: int, caller: str) -> np.ndarray:
    """Returns the table that a GSPMD text names; a replicated text names no devices and holds for `num_devices`.

    Raises ValueError where the text is no sharding, or does not name the devices of the tiles (`{manual}`).
    """
    text, _ = specs.open_dims(given)
    if text in ("", "{replicated}"):  # PyTorch/XLA's text of a tensor without an annotation is empty
        return np.arange(num_devices).reshape(1, num_devices)
    if text == "{unreduced}":
        return np.arange(num_devices).reshape(num_devices, 1)
    tiling = specs.read_tiled(text, caller)
    return np.array(tiling.devices).reshape(*tiling.tiles, tiling.sums, tiling.copies)
