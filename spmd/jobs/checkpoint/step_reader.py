"""The tensors in a step's folder: any part of one is read from its shards, whose checksums are compared."""

import math
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from . import manifest
from .manifest import DamagedError
from .places import Place, UrlPath, bytes_at
from .plain_values import dtype_of


class StepReader:
    """A committed step. manifest: see `manifest.py`. Raises DamagedError where a file is missing or cut short."""

    def __init__(self, path: Place) -> None:
        self.path = path
        self.manifest = manifest.read(path)
        self.tensors: dict[str, Any] = self.manifest["tensors"]
        self._compared: set[tuple[str, int]] = set()
        # Of the tensor that is read: a shard of a URL is fetched once, whatever parts of it are read.
        self._fetched: dict[tuple[str, int], np.ndarray] = {}
        self._name: str | None = None
        for name, size in self.manifest["files"].items():
            present = (path / name).stat().st_size if (path / name).is_file() else None
            if present != size:
                said = "is missing" if present is None else f"is cut short or changed: it has {present:,} bytes"
                held = [tensor for tensor, one in self.tensors.items() if any(s["file"] == name for s in one["shards"])]
                raise DamagedError(f"{path / name} {said}, expected {size:,}; it holds {', '.join(held[:4])}, ...")

    def read(self, name: str, indices: tuple[slice, ...] | None = None) -> torch.Tensor:
        """Reads these elements of a tensor (None: all) into a new CPU tensor."""
        if name != self._name:
            self._fetched.clear()
            self._name = name
        tensor = self.tensors[name]
        dtype, shape = dtype_of(tensor["dtype"]), tensor["shape"]
        bounds = [(0, dim) for dim in shape] if indices is None else [(index.start, index.stop) for index in indices]
        result = torch.empty([stop - start for start, stop in bounds], dtype=dtype, device="cpu")
        missing = result.numel()
        for shard, common in self.needed(name, bounds):
            source = tuple(slice(a - at, b - at) for (a, b), at in zip(common, shard["at"], strict=True))
            target = tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(common, bounds, strict=True))
            data = torch.from_numpy(self._mapped(name, shard)).view(dtype).view(shard["shape"])
            result[target] = data[source]
            missing -= math.prod(b - a for a, b in common)
        if missing:
            raise DamagedError(f"{self.path}: {missing:,} elements of {name!r} are in no shard of the manifest")
        return result

    def needed(
        self, name: str, bounds: list[tuple[int, int]]
    ) -> Iterator[tuple[dict[str, Any], list[tuple[int, int]]]]:
        """Yields the shards that have elements within these bounds, each with the bounds that they have in common."""
        for shard in self.tensors[name]["shards"] if all(start < stop for start, stop in bounds) else ():
            common = [
                (max(start, at), min(stop, at + size))
                for (start, stop), at, size in zip(bounds, shard["at"], shard["shape"], strict=True)
            ]
            if all(start < stop for start, stop in common):
                yield shard, common

    def verify(self) -> None:
        """Compares all checksums; raises DamagedError."""
        for name, tensor in self.tensors.items():
            for shard in tensor["shards"]:
                self._mapped(name, shard)

    def _mapped(self, name: str, shard: dict[str, Any]) -> np.ndarray:
        """The bytes of a shard, mapped or fetched; their checksum is compared once."""
        file, size, key = self.path / shard["file"], shard["bytes"], (shard["file"], shard["offset"])
        if key in self._fetched:
            return self._fetched[key]
        data = bytes_at(file, shard["offset"], size)
        if key not in self._compared:
            crc = zlib.crc32(data.data)
            if f"{crc:08x}" != shard["crc32"]:
                raise DamagedError(
                    f"{file} is damaged: the {size:,} bytes from byte {shard['offset']:,} on, of {name!r} at "
                    f"{shard['at']}, have the CRC-32 {crc:08x}, not {shard['crc32']}"
                )
            self._compared.add(key)
        if isinstance(file, UrlPath) and name == self._name:
            self._fetched[key] = data
        return data
