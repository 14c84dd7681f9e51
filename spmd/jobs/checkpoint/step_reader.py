"""The tensors in a step's folder: any part of one is read from its shards, whose checksums are
compared."""

import math
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from . import manifest
from .manifest import DamagedError
from .places import Place, UrlPath, bytes_at
from .plain_values import decode, dtype_of

Index = tuple[slice, ...]


def overlaps(
    shards: Sequence[dict[str, Any]], indices: Index
) -> Iterator[tuple[dict[str, Any], Index, Index]]:
    """Yields the shards that have some of a tensor's elements at these indices, each with the
    indices of these elements in the shard and in what is read."""
    for shard in shards:
        source, target = [], []
        for index, begin, size in zip(indices, shard["at"], shard["shape"], strict=True):
            start, stop = max(index.start, begin), min(index.stop, begin + size)
            source.append(slice(start - begin, stop - begin))
            target.append(slice(start - index.start, stop - index.start))
        if all(part.start < part.stop for part in source):
            yield shard, tuple(source), tuple(target)


class StepReader:
    """A committed step. manifest: see `manifest.py`.

    Raises DamagedError where a file is missing or cut short.
    """

    def __init__(self, path: Place) -> None:
        self.path = path
        self.manifest = manifest.read(path)
        self.tensors: dict[str, Any] = self.manifest["tensors"]
        self._compared: set[tuple[str, int]] = set()
        # Of the tensor that is read: a shard of a URL is fetched once, whatever parts of it are
        # read.
        self._fetched: dict[tuple[str, int], np.ndarray] = {}
        self._name: str | None = None
        self._check()
        for name, size in self.manifest["files"].items():
            present = (path / name).stat().st_size if (path / name).is_file() else None
            if present != size:
                damage = (
                    "is missing"
                    if present is None
                    else f"is cut short or changed: it has {present:,} bytes"
                )
                names = [
                    tensor
                    for tensor, facts in self.tensors.items()
                    if any(s["file"] == name for s in facts["shards"])
                ]
                raise DamagedError(
                    f"{path / name} {damage}, expected {size:,}; it holds {', '.join(names[:4])}, "
                    "..."
                )

    def read(self, name: str, indices: Index | None = None) -> torch.Tensor:
        """Reads these elements of a tensor (None: all) into a new CPU tensor."""
        if name != self._name:
            self._fetched.clear()
            self._name = name
        tensor = self.tensors[name]
        dtype = dtype_of(tensor["dtype"])
        indices = tuple(slice(0, dim) for dim in tensor["shape"]) if indices is None else indices
        result = torch.empty(
            [index.stop - index.start for index in indices], dtype=dtype, device="cpu"
        )
        missing = result.numel()
        for shard, source, target in overlaps(tensor["shards"], indices):
            data = (
                torch.from_numpy(self._mapped(name, shard)).view(dtype).view(shard["shape"])[source]
            )
            result[target] = data
            missing -= data.numel()
        if missing:
            raise DamagedError(
                f"{self.path}: {missing:,} elements of {name!r} are in no shard of the manifest"
            )
        return result

    def verify(self) -> None:
        """Compares all checksums; raises DamagedError."""
        for name, tensor in self.tensors.items():
            for shard in tensor["shards"]:
                self._mapped(name, shard)

    def _check(self) -> None:
        """Decodes all values without their tensors; raises DamagedError for what no save writes."""
        try:
            for name, tensor in self.tensors.items():
                itemsize = dtype_of(tensor["dtype"]).itemsize
                if any(
                    math.prod(shard["shape"]) * itemsize != shard["bytes"]
                    for shard in tensor["shards"]
                ):
                    raise ValueError(
                        f"a shard of {name!r} has another number of bytes than of elements"
                    )
            for name, entry in self.manifest["values"].items():
                decode(entry, name, lambda *_: torch.empty(0, device="cpu"))
        except (
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
            ArithmeticError,
            RuntimeError,
        ) as error:
            raise DamagedError(
                f"{self.path}/{manifest.NAME} is damaged at {name!r}: {error}"
            ) from error

    def _mapped(self, name: str, shard: dict[str, Any]) -> np.ndarray:
        """The bytes of a shard, mapped or fetched; their checksum is compared once."""
        file, size, key = (
            self.path / shard["file"],
            shard["bytes"],
            (shard["file"], shard["offset"]),
        )
        if key in self._fetched:
            return self._fetched[key]
        data = bytes_at(file, shard["offset"], size)
        if key not in self._compared:
            crc = zlib.crc32(data.data)
            if f"{crc:08x}" != shard["crc32"]:
                raise DamagedError(
                    f"{file} is damaged: the {size:,} bytes from byte {shard['offset']:,} on, of "
                    f"{name!r} at {shard['at']}, have the CRC-32 {crc:08x}, not {shard['crc32']}"
                )
            self._compared.add(key)
        if isinstance(file, UrlPath) and name == self._name:
            self._fetched[key] = data
        return data
