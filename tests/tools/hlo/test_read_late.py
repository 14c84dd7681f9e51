"""The text of a program is read when its line of the compile log is, and the line keeps no program
alive."""

import copy
import gc
import pickle
import weakref

import torch

import spmd
from spmd.core.programs import cache


def summed(
    mesh: spmd.Mesh,
) -> tuple[spmd.metrics.CompileRecord, "weakref.ref[object]", "weakref.ref[object]"]:
    """The line of a program with an all-reduce, its program, and the data that it read."""
    x = spmd.mark_sharding(torch.ones(8, 12).to("xla"), mesh, ("fsdp", None))
    spmd.sync()
    y = x.sum(0).sin()
    spmd.sync(wait=True)
    program = cache.last_program()
    assert program is not None and y.shape == (12,)
    return spmd.metrics.compiles()[-1], weakref.ref(program), weakref.ref(x)


def test_a_compilation_reads_no_text(mesh8: spmd.Mesh) -> None:
    program = summed(mesh8)[1]()
    assert program is not None and "facts" not in vars(program)


def test_a_line_outlives_its_program(mesh8: spmd.Mesh) -> None:
    record, program, data = summed(mesh8)
    gc.collect()
    assert data() is None and program() is not None
    cache.clear_cache()
    gc.collect()
    assert program() is None
    (row,) = record.traffic
    assert (
        row.kind == "all-reduce"
        and "y = x.sum(0).sin()" in row.line
        and record.collectives == {"all-reduce": 1}
    )
    assert record.flops > 0
    assert (
        pickle.loads(pickle.dumps(record)).traffic
        == copy.deepcopy(record).traffic
        == record.traffic
    )
