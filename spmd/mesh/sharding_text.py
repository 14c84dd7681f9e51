"""GSPMD text read: the tiling of an array that a text names, with a list of devices or in the iota
form.

Source: `xla::ParseSharding`; the texts are those of `Sharding.text`.
"""

import math
import re

import numpy as np

from ..core import Tiling

_TILED = re.compile(
    r"\{devices=\[(?P<sizes>\d+(?:,\d+)*)\]"
    r"(?:<=\[(?P<iota>\d+(?:,\d+)*)\](?:T\((?P<order>\d+(?:,\d+)*)\))?|(?P<list>\d+(?:,\d+)*))"
    r"(?P<copied>\s+last_tile_dim_replicate)?(?:\s+last_tile_dims=\{(?P<last>[\w\s,]*)\})?\s*\}"
)
_KINDS = ("unreduced", "replicated")


def read(text: str, rank: int, devices: tuple[int, ...], caller: str = "sharding") -> Tiling:
    """Returns the tiling of arrays of `rank` dims over these devices that a text names.

    Raises ValueError where the text is no tiling, is inconsistent, is of another rank or names
    other devices.
    """
    if text == "{replicated}":
        return Tiling((1,) * rank, 1, len(devices), devices)
    if text == "{unreduced}":
        return Tiling((1,) * rank, len(devices), 1, devices)
    tiling = read_tiled(text, caller)
    if len(tiling.tiles) != rank:
        raise ValueError(
            f"{caller}: {text} cuts arrays of {len(tiling.tiles)} dims, but the tensor has {rank} "
            "dims"
        )
    if sorted(tiling.devices) != sorted(devices):
        raise ValueError(
            f"{caller}: {text} names devices {_span(tiling.devices)}, but the mesh has devices "
            f"{_span(devices)}"
        )
    return tiling


def read_tiled(text: str, caller: str = "sharding") -> Tiling:
    """Returns the tiling of a text that names its dims and devices.

    Raises ValueError where it is none.
    """
    match = _TILED.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{caller}: expected GSPMD text such as '{{devices=[4,2]<=[8]}}', "
            "'{devices=[2,1,4]0,1,2,3,4,5,6,7 last_tile_dim_replicate}' or '{replicated}', got "
            f"{text!r}"
        )
    return _tiling(text, match, caller)


_OPEN = re.compile(r"\s*unspecified_dims=\[(\d+(?:,\d+)*)\]\s*$")


def open_dims(text: str) -> tuple[str, tuple[int, ...]]:
    """Returns a text without the dims that it leaves to the partitioner, and these dims."""
    match = _OPEN.search(text)
    return (
        (text.strip(), ()) if match is None else (text[: match.start()].strip(), _numbers(match[1]))
    )


def _tiling(text: str, match: re.Match[str], caller: str) -> Tiling:
    sizes = _numbers(match["sizes"])
    kinds = (
        tuple(part.strip() for part in match["last"].split(","))
        if match["last"] is not None
        else ()
    )
    kinds = ("replicated",) if match["copied"] is not None else kinds
    unknown = [kind for kind in kinds if kind not in _KINDS]
    if unknown or len(set(kinds)) < len(kinds) or len(kinds) > len(sizes):
        raise ValueError(
            f"{caller}: the last tile dims of {text!r} must be 'unreduced' and 'replicated', each "
            "once"
        )
    devices = _devices(text, match, math.prod(sizes), caller)
    rank = len(sizes) - len(kinds)
    last = dict(zip(kinds, sizes[rank:], strict=True))
    table = np.array(devices).reshape(sizes)
    if kinds == ("replicated", "unreduced"):
        table = np.swapaxes(table, -1, -2)
    sums, copies = last.get("unreduced", 1), last.get("replicated", 1)
    return Tiling(sizes[:rank], sums, copies, tuple(table.reshape(-1).tolist()))


def _devices(text: str, match: re.Match[str], count: int, caller: str) -> tuple[int, ...]:
    """Returns the devices of a text that is right in form; there is one for each tile, and none
    twice."""
    if match["list"] is not None:
        devices = _numbers(match["list"])
    else:
        sizes = _numbers(match["iota"])
        order = _numbers(match["order"]) if match["order"] is not None else tuple(range(len(sizes)))
        if sorted(order) != list(range(len(sizes))):
            raise ValueError(
                f"{caller}: T({match['order']}) of {text!r} is no order of its {len(sizes)} dims"
            )
        devices = tuple(
            np.arange(math.prod(sizes)).reshape(sizes).transpose(order).reshape(-1).tolist()
        )
    if len(devices) != count:
        raise ValueError(
            f"{caller}: the tiles of {text!r} are {count}, but it names {len(devices)} devices"
        )
    if len(set(devices)) < count:
        raise ValueError(f"{caller}: {text!r} names a device twice")
    return devices


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _span(devices: tuple[int, ...]) -> str:
    return f"{min(devices)} to {max(devices)} ({len(devices)} of them)"
