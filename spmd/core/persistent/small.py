"""Files of small programs: rows of stacks and moves between devices, which no graph names."""

import hashlib
import threading
from collections.abc import Sequence
from functools import partial

import jax
import numpy as np

from ..base import forking
from ..base.jax_private import device_order, dump_executable
from ..base.small_programs import Kind, Operand, SmallProgram, run_by
from ..graph.store import stack_program
from ..sharding.partitioner import compiler_context
from ..sharding.value import Sharding
from .disk import content_of, executable_of, is_read, keep, loaded, setting

Like = jax.Array | np.generic | jax.ShapeDtypeStruct
_lock = forking.survives_fork(threading.Lock())


def run(program: SmallProgram, arrays: Sequence[Operand]) -> jax.Array:
    """Runs a small program, loaded from the disk, or compiled and kept there."""
    if not is_read():
        return program.jitted(*arrays)
    key: Kind = tuple((array.shape, array.dtype, getattr(array, "sharding", None)) for array in arrays)
    with _lock:
        if key not in program.programs:
            program.programs[key] = _made(program, arrays)
    return program.programs[key](*arrays)


def file_of_stack(count: int, shape: tuple[int, ...], dtype: np.dtype, sharding: Sharding) -> tuple[str, bytes]:
    """Returns the digest and the content of the file of the program that stacks so many arrays of this shape, padded as
    it is stored, and sharding; it is compiled now."""
    with compiler_context():
        program = stack_program(count, sharding)
        rows = [jax.ShapeDtypeStruct(shape, dtype, sharding=sharding.jax)] * count
        key, header, _ = _named(program, rows)
        return key, content_of(key, header, dump_executable(program.jitted.lower(*rows).compile()))


def _named(program: SmallProgram, arrays: Sequence[Like]) -> tuple[str, dict[str, str], Sequence[jax.Device]]:
    """Returns the digest, the setting and the devices of a program for these arrays."""
    shardings = [sharding for array in arrays if (sharding := getattr(array, "sharding", None)) is not None]
    placed = [(repr(one), [device.id for device in device_order(one)]) for one in shardings]
    kinds = [(array.shape, array.dtype.name) for array in arrays]
    header = setting(tuple(placed[0][1]))
    facts = repr((program.text, kinds, placed, sorted(header.items())))
    return hashlib.sha256(facts.encode()).hexdigest(), header, device_order(shardings[0])


def _made(program: SmallProgram, arrays: Sequence[Like]) -> jax.stages.Compiled:
    """Returns the executable for these arrays: from the disk, or compiled now and written there."""
    key, header, devices = _named(program, arrays)
    executable = loaded(key, header, lambda body: executable_of(body, len(arrays), 0, devices))
    if executable is None:
        executable = program.jitted.lower(*arrays).compile()
        keep(key, header, partial(dump_executable, executable))
    return executable


run_by.append(run)
