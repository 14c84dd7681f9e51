"""Which device has which piece, as an array of device ids: of a Sharding, or of a GSPMD text in either spelling.

Such a table has a dim for each dim of the array, by piece, then one by summand and one by copy of the same piece.
"""

import numpy as np

from .text import open_dims, read_tiled
from .value import Sharding


def table_of(sharding: Sharding, rank: int) -> np.ndarray:
    """The table of a sharding of arrays of `rank` dims."""
    sums, copies = sharding.last_tiles()
    return np.array(sharding._groups()).reshape(*sharding.tiles(rank), sums, copies)


def read_table(given: str, num_devices: int, caller: str) -> np.ndarray:
    """The table that a GSPMD text names; what is whole everywhere names no devices: it is on so many.

    Raises ValueError where the text is none, or does not say which device has what (`{manual}`).
    """
    text, _ = open_dims(given)
    if text in ("", "{replicated}"):  # PyTorch/XLA's text of a tensor that nobody has annotated is empty
        return np.arange(num_devices).reshape(1, num_devices)
    if text == "{unreduced}":
        return np.arange(num_devices).reshape(num_devices, 1)
    tiling = read_tiled(text, caller)
    return np.array(tiling.devices).reshape(*tiling.tiles, tiling.sums, tiling.copies)
