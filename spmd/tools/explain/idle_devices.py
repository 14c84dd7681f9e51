"""Steps that use one device of several: one line and a hint, with the mark that uses all."""

from ...core import hardware, messages
from ...core.extend import Graph, Program
from .difference import read_at
from .step_hints import note_idle

STEPS = 50  # in a row: more than a warm-up, or the ops of a notebook
LEAST_OPS = 10  # of a program that is a step

_steps = 0
# the largest input that is no state, and its reader; its shape
_batch: tuple[str, tuple[int, ...]] = "", ()
_is_said = False


def note_program(program: Program) -> None:
    """Notes that a program is about to run, and says the hint at the `STEPS`th in a row on the
    default device."""
    global _steps, _is_said
    mesh = program.graph.mesh
    if len(mesh.device_ids) > 1:
        _steps = 0
    elif len(program.entries) >= LEAST_OPS and not _is_said and mesh == hardware.default_sharding():
        _steps += 1
        if _steps == STEPS and (count := len(hardware.devices())) > 1:
            _is_said = True
            _say(program, count)


def note_batch(program: Program, graph: Graph) -> None:
    """Notes the input of a recorded step that is to be sharded: an uploaded one, the results of
    programs are state."""
    global _batch
    inputs = [
        data
        for data in (graph.inputs if 0 < _steps < 3 else ())
        if not data.is_state and data.maker is None and data.meta.shape
    ]
    if inputs:
        largest = max(inputs, key=lambda data: (data.host is not None, data.meta.nbytes))
        _batch = f"{largest.meta!r}{read_at(largest, graph.nodes)}", tuple(largest.meta.shape)


def _say(program: Program, count: int) -> None:
    name, shape = _batch
    spec = ", ".join(["'data'", *["None"] * (len(shape) - 1)])
    mark = f"spmd.mark_sharding(x, spmd.Mesh(range({count}), ({count},), ('data',)), P({spec}))"
    rows = f", with dim 0 a multiple of {count}" if shape and shape[0] % count else ""
    cause = f"{STEPS} steps ran on 1 of {count} devices: shard the batch, {mark}{rows}"
    full = f"{cause}; x is {name or 'an input of the step'}"
    messages.say(
        f"{cause} ({program.line})", "idle devices", f"{full}; the step ends at {program.line}"
    )
    note_idle(full, program.line, STEPS)


def forget() -> None:
    """Forgets what was noted and said."""
    global _steps, _batch, _is_said
    _steps, _batch, _is_said = 0, ("", ()), False
