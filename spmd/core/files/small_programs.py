"""Small programs (rows of stacks, moves between devices), which no recorded graph names: jitted, or
kept in files."""

import hashlib
import threading
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from ..base import forking
from ..base.jax_private import device_order, dump_executable
from ..sharding.partitioner import compiler_context
from . import disk

Operand = jax.Array | np.generic
Like = Operand | jax.ShapeDtypeStruct
Kind = tuple[Hashable, ...]  # the shapes, dtypes and shardings of operands

_lock = forking.survives_fork(threading.Lock())


class SmallProgram:
    """A function of arrays as programs, one for each kind of operands.

    The function is determined by `text`, which is the same in every process, and by this package's
    source: a program that is kept in a file is named by both, so that nothing is traced at a second
    start.

    Args:
        function: of arrays. facts: plain values that determine it, with a `repr` that is the same
            in every process.
        options: of `jax.jit`.
    """

    __slots__ = ("jitted", "programs", "text")

    def __init__(self, function: Callable[..., jax.Array], *facts: object, **options: Any):
        self.text = f"{function.__module__}.{function.__qualname__} {facts!r} {options!r}"
        self.jitted = jax.jit(function, **options)
        self.programs: dict[Kind, jax.stages.Compiled] = {}  # of those that are kept in files

    def __call__(self, *arrays: Operand) -> jax.Array:
        """Runs the program on arrays of one set of devices, and on numpy's numbers."""
        if not disk.is_read():
            return self.jitted(*arrays)
        key: Kind = tuple(
            (array.shape, array.dtype, getattr(array, "sharding", None)) for array in arrays
        )
        with _lock:
            if key not in self.programs:
                self.programs[key] = self._loaded_or_compiled(arrays)
        return self.programs[key](*arrays)

    def file_for(self, *arrays: Like) -> tuple[str, bytes]:
        """Compiles the program for these arrays; returns the digest and the content of its file."""
        with compiler_context():
            digest, header, _ = self._identity(arrays)
            return digest, disk.content_of(
                digest, header, dump_executable(self.jitted.lower(*arrays).compile())
            )

    def _loaded_or_compiled(self, arrays: Sequence[Like]) -> jax.stages.Compiled:
        """Returns the executable for these arrays: from the disk, or compiled now and written
        there."""
        digest, header, devices = self._identity(arrays)
        executable = disk.loaded(
            digest, header, lambda body: disk.executable_of(body, len(arrays), 0, devices)
        )
        if executable is None:
            executable = self.jitted.lower(*arrays).compile()
            disk.keep(digest, header, partial(dump_executable, executable))
        return executable

    def _identity(self, arrays: Sequence[Like]) -> tuple[str, dict[str, str], Sequence[jax.Device]]:
        """Returns the digest, the setting and the devices of the program for these arrays."""
        shardings = [
            sharding
            for array in arrays
            if (sharding := getattr(array, "sharding", None)) is not None
        ]
        layouts = [
            (repr(sharding), [device.id for device in device_order(sharding)])
            for sharding in shardings
        ]
        kinds = [(array.shape, array.dtype.name) for array in arrays]
        header = disk.setting(tuple(layouts[0][1]))
        facts = repr((self.text, kinds, layouts, sorted(header.items())))
        return hashlib.sha256(facts.encode()).hexdigest(), header, device_order(shardings[0])
