"""Which device has which piece, as an array of device ids: of a Sharding, or of a GSPMD text in either spelling.

Such a table has a dim for each dim of the array, by piece, then one by summand and one by copy of the same piece.
"""

import math
import re

import numpy as np

from .value import Sharding


def table_of(sharding: Sharding, rank: int) -> np.ndarray:
    """The table of a sharding of arrays of `rank` dims."""
    sums, copies = sharding._last_tiles()
    return np.array(sharding._groups()).reshape(*sharding.tiles(rank), sums, copies)


_NUMBERS = r"\d+(?:,\d+)*"
_TILED = re.compile(
    rf"\{{devices=\[({_NUMBERS})\](?:<=\[({_NUMBERS})\](?:T\(({_NUMBERS})\))?|({_NUMBERS}))"
    r"(\s+last_tile_dim_replicate)?(?:\s+last_tile_dims=\{([\w\s,]*)\})?\s*\}"
)
_KINDS = {(): (), ("replicated",): (1,), ("unreduced",): (0,), ("unreduced", "replicated"): (0, 1)}
_EXAMPLES = "'{devices=[2,1,4]0,1,2,3,4,5,6,7 last_tile_dim_replicate}', '{devices=[4,2]<=[8]}' or '{replicated}'"


def read_table(text: str, num_devices: int, caller: str) -> np.ndarray:
    """The table that a GSPMD text names; what is whole everywhere names no devices: it is on so many.

    Raises ValueError where the text is none, or does not say which device has what (`{manual}`).
    """
    if text.strip() in ("", "{replicated}"):  # PyTorch/XLA's text of a tensor that nobody has annotated is empty
        return np.arange(num_devices).reshape(1, num_devices)
    if text.strip() == "{unreduced}":
        return np.arange(num_devices).reshape(num_devices, 1)
    found = _TILED.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{caller}: expected GSPMD text such as {_EXAMPLES}, got {text!r}")
    sizes, iota, order, listed = [() if part is None else _numbers(part) for part in found.groups()[:4]]
    kinds = tuple(part.strip() for part in found[6].split(",")) if found[6] else ()
    kinds = ("replicated",) if found[5] else kinds
    if kinds not in _KINDS:
        raise ValueError(
            f"{caller}: expected last_tile_dims of {text!r} to be {{unreduced, replicated}} or one of them"
        )
    devices = np.array(listed)
    if iota:
        order = order or tuple(range(len(iota)))
        if sorted(order) != list(range(len(iota))):
            raise ValueError(f"{caller}: T({found[3]}) in {text!r} is no order of {len(iota)} dims")
        devices = np.arange(math.prod(iota)).reshape(iota).transpose(order).reshape(-1)
    if len(devices) != math.prod(sizes) or len(set(devices.tolist())) != len(devices):
        raise ValueError(
            f"{caller}: {text!r} has {math.prod(sizes)} places for {len(set(devices.tolist()))} devices; each device "
            "stands in one"
        )
    rank = len(sizes) - len(kinds)
    last = [1, 1]
    for at, size in zip(_KINDS[kinds], sizes[rank:], strict=True):
        last[at] = size
    return devices.reshape(*sizes[:rank], *last)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))
