"""Small programs beside the recorded graphs (rows of stacks, exchanges between devices): jitted, and kept on disk."""

import hashlib
import threading
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.experimental import serialize_executable

from ...base import forking
from ...base.jax_private import device_order, dump_executable
from . import disk
from .disk import setting

Like = jax.Array | np.generic | jax.ShapeDtypeStruct
Key = tuple[Hashable, ...]
_lock = forking.survives_fork(threading.Lock())


class SmallProgram:
    """A function of arrays as programs, one for each kind of arguments: loaded from the disk, or compiled and kept.

    The function is determined by `facts`, plain values with a `repr` that is the same in every process, and by this
    package's source: both are part of a file's name, so that nothing is traced at a second start. options: of
    `jax.jit`.
    """

    def __init__(self, function: Callable[..., jax.Array], *facts: object, **options: Any):
        self._facts = f"{function.__module__}.{function.__qualname__} {facts!r} {options!r}"
        self._jitted = jax.jit(function, **options)
        self._programs: dict[Key, jax.stages.Compiled] = {}

    def __call__(self, *arrays: jax.Array | np.generic) -> jax.Array:
        """Runs the program on arrays of one set of devices, and on numpy's numbers."""
        if not disk.is_read():
            return self._jitted(*arrays)
        key: Key = tuple((array.shape, array.dtype, getattr(array, "sharding", None)) for array in arrays)
        with _lock:
            if key not in self._programs:
                self._programs[key] = self._made(arrays)
        return self._programs[key](*arrays)

    def file_for(self, *arrays: Like) -> tuple[str, bytes]:
        """Returns the digest and the content of the file of the program for arrays like these (`jax.ShapeDtypeStruct`s
        with shardings, or arrays); it is compiled now."""
        key, header, _ = self._named(arrays)
        body = dump_executable(self._jitted.lower(*arrays).compile())
        return key, disk.content_of(key, header, body)

    def _named(self, arrays: Sequence[Like]) -> tuple[str, dict[str, str], Sequence[jax.Device]]:
        """Returns the digest, the setting and the devices of the program for these arrays."""
        shardings = [sharding for array in arrays if (sharding := getattr(array, "sharding", None)) is not None]
        placed = [(repr(one), [device.id for device in device_order(one)]) for one in shardings]
        kinds = [(array.shape, array.dtype.name) for array in arrays]
        header = setting(tuple(placed[0][1]))
        facts = repr((self._facts, kinds, placed, sorted(header.items())))
        return hashlib.sha256(facts.encode()).hexdigest(), header, device_order(shardings[0])

    def _made(self, arrays: Sequence[Like]) -> jax.stages.Compiled:
        """Returns the program for these arrays: from the disk, or compiled now and written there."""
        key, header, devices = self._named(arrays)
        program = disk.loaded(key, header, lambda body: executable_of(body, len(arrays), 0, devices))
        if program is None:
            program = self._jitted.lower(*arrays).compile()
            disk.keep(key, header, partial(dump_executable, program))
        return program


def executable_of(
    body: bytes, num_arguments: int, results: object, devices: Sequence[jax.Device]
) -> jax.stages.Compiled:
    """Returns the executable that a body holds, over these devices; results: their tree, with any value for each."""
    arguments = jax.tree.structure(((0,) * num_arguments, {}))
    return serialize_executable.deserialize_and_load(
        body, arguments, jax.tree.structure(results), execution_devices=list(devices)
    )
