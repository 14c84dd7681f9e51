"""spmd.verify: runs of a step on one device and on meshes, compared by the rounding that explains
differences."""

import importlib.metadata
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path as FilePath
from typing import Any

import torch

from ...core import config, ends_at_user_line, seed
from ...loops.body_calls import BodyCalls
from ...mesh.global_mesh import get_global_mesh
from ...mesh.mesh import Mesh
from ...rules.rules import ShardingRules
from ..debug.check import distance, magnitude
from ..planning.layout import stage
from .evidence import Compared, Verification
from .one_run import Inputs, Layout, Name, Outcome, Runner
from .rounding import FORMULA, NO_PATH, Path, tolerance, unit_of
from .single_changes import repair

PARTITIONERS = ("gspmd", "shardy")
SAMPLES = 3  # the inputs and neighbours of theirs, at which rounding is measured
# in which it is measured for float64, which has no wider dtype to be compared with
_NARROW = torch.float32


@ends_at_user_line
def verify(
    step: Callable[..., Any],
    *args: Any,
    meshes: Sequence[Mesh] = (),
    rules: Sequence[ShardingRules] = (),
    evidence: str | FilePath | None = None,
    progress: bool = True,
    **kwargs: Any,
) -> Verification:
    """Runs a step on one device and on each mesh, and says where they differ by more than rounding
    explains.

    Each layout runs in float64 and in the step's own dtypes, under both partitioners, from the same
    values and random streams; what the step returns, its models' parameters and buffers afterwards,
    and its gradients as they are accumulated are compared. Tolerances follow from the step: from
    the roundings on the longest path to a value, and from the measured distance of the step in a
    narrow dtype from float64 (`tools/verification/rounding.py`). After a difference the step runs
    again with every op's result kept, and the first op that differs is named with its line.

    The user's objects are on the device as copies meanwhile; parameters, gradients, optimizer
    state, buffers, random streams and the containers that the step reaches are as before
    afterwards, also where the step raises.

    Args:
        step: the function as a run on one device calls it; args, kwargs: its arguments, on the CPU
            or on xla. Modules and optimizers are found through arguments, closure and globals, as
            by `spmd.plan`.
        meshes: the step runs inside of `with mesh:`, so that `spmd.shard_map` and annotations
            without a mesh take it; the run on one device has a mesh of one with the same axes.
            Without rules, tensors among the arguments are sharded along dim 0 over the mesh's first
            axis.
        rules: tables that shard the step's models, each over each mesh. Without meshes: over that
            of `with mesh:`.
        evidence: a file to write (`Verification.save`). progress: say on stderr what runs.

    Raises TypeError for a step that is no function, ValueError without meshes or rules, for tensors
    on meta, models that are sharded already, meshes of a target that is not here, and steps that
    use no mesh or return nothing to compare. Source: N. Higham, Accuracy and Stability of Numerical
    Algorithms, 2nd edition, chapters 3 and 4.

    >>> import torch, spmd
    >>> model = torch.nn.Linear(4, 2)
    >>> def step(x):
    ...     loss = model(x).square().mean()
    ...     loss.backward()
    ...     return loss
    >>> found = spmd.verify(
    ...     step, torch.randn(8, 4), meshes=[spmd.Mesh([0], (1,), ("data",))], progress=False
    ... )
    >>> bool(found), len(found.differences)
    (True, 0)
    """
    started = time.monotonic()
    if not callable(step):
        raise TypeError(f"verify: expected a function that does a step, got {type(step).__name__}")
    layouts = _layouts(meshes, rules)
    inputs = Inputs(step, (args, kwargs))
    runner = Runner(step, args, kwargs, inputs)
    with stage("verify", is_shown=progress):
        measured = _Measured(runner, _one_device(layouts))
        rows: list[Compared] = []
        for layout in layouts:
            for partitioner, dtype in itertools.product(PARTITIONERS, (torch.float64, None)):
                with stage(f"{layout}, {partitioner}, {_text(dtype)}"):
                    compared = _run(runner, measured, layout, partitioner, dtype)
                rows += measured.compared(compared, layout, partitioner, dtype)
        if not rows:
            raise ValueError(
                "verify: the step has nothing to compare: return its loss, or let a model's "
                "gradients or parameters be reachable from it"
            )
        first, change = _first(runner, measured, layouts, rows)
    result = Verification(
        tuple(rows), first, _evidence(inputs, layouts), time.monotonic() - started, change
    )
    if evidence is not None:
        result.save(evidence)
    return result


def _layouts(meshes: Sequence[Mesh], rules: Sequence[ShardingRules]) -> list[Layout]:
    for name, values, kind in (("meshes", meshes, Mesh), ("rules", rules, ShardingRules)):
        if not isinstance(values, (list, tuple)) or not all(
            isinstance(value, kind) for value in values
        ):
            raise TypeError(
                f"verify: expected {name} as a list of spmd.{kind.__name__}, got {values!r}"
            )
    around = get_global_mesh() if rules and not meshes else None
    layouts = [*meshes] if around is None else [around]
    if not layouts:
        raise ValueError(
            "verify: expected meshes to compare with one device, got none; pass "
            "meshes=[spmd.Mesh(...)], and rules=[...] where a table shards the model, or call it "
            "with rules inside of `with mesh:`"
        )
    for mesh in layouts:
        if mesh.target is not None:
            raise ValueError(
                f"verify: expected devices that are here, got a mesh of {mesh.target!r}; "
                "spmd.plan plans it"
            )
    if not rules:
        return [Layout(mesh) for mesh in layouts]
    names = [f", rules {number}" if len(rules) > 1 else ", rules" for number in range(len(rules))]
    return [
        Layout(mesh, table, name)
        for mesh in layouts
        for table, name in zip(rules, names, strict=True)
    ]


def _one_device(layouts: Sequence[Layout]) -> Layout:
    """A mesh of one device with the axes of all meshes."""
    if not all(layout.mesh.axis_names for layout in layouts):
        most = max(len(layout.mesh.mesh_shape) for layout in layouts)
        return Layout(Mesh([0], (1,) * most))
    axes = dict.fromkeys(str(axis) for layout in layouts for axis in layout.mesh.shape())
    return Layout(Mesh([0], (1,) * len(axes), tuple(axes)))


def _text(dtype: torch.dtype | None) -> str:
    return "own" if dtype is None else str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class _Sample:
    """The step in a narrow dtype: the worst distance of each value from float64, and the paths."""

    distances: dict[Name, float]
    paths: dict[Name, Path]


class _Measured:
    """The step on one device: its values, and how far rounding moves them."""

    def __init__(self, runner: Runner, layout: Layout):
        self.layout = layout
        points = [runner.inputs.near(number) for number in range(SAMPLES)]
        with stage("one device, float64"):
            self.in_float64 = runner.run(layout, torch.float64)
            exact = [runner.run(layout, torch.float64, values=values) for values in points]
        with stage("one device, own dtypes"):
            self.in_step_dtypes = runner.run(layout, None)
        self.rounding_in_step_dtypes = self.rounding_in_float64 = self._sample(
            runner, _NARROW, points, exact
        )
        units = {unit_of(value.dtype) for value in runner.inputs.values} - {0.0}
        if units - {unit_of(_NARROW), unit_of(torch.float64)}:
            self.rounding_in_step_dtypes = self._sample(runner, None, points, exact)

    def _sample(
        self,
        runner: Runner,
        dtype: torch.dtype | None,
        points: Sequence[Any],
        exact: Sequence[Outcome],
    ) -> _Sample:
        with stage(f"one device, {_text(dtype)}, rounding errors"):
            runs = [runner.run(self.layout, dtype, values=values) for values in points]
        distances = {
            name: max(
                distance(run.values.get(name), right.values.get(name))
                for run, right in zip(runs, exact, strict=True)
            )
            for name in runs[0].values
        }
        return _Sample(distances, runs[0].paths)

    def compared(
        self, outcome: Outcome, layout: Layout, partitioner: str, dtype: torch.dtype | None
    ) -> Iterator[Compared]:
        """Yields a row for each value of the run on one device or on the mesh."""
        right, sample = (
            (self.in_step_dtypes, self.rounding_in_step_dtypes)
            if dtype is None
            else (self.in_float64, self.rounding_in_float64)
        )
        for name in dict.fromkeys([*right.values, *outcome.values]):
            value = right.values.get(name)
            path = right.paths.get(name, NO_PATH)
            size = 0.0 if value is None else magnitude(value)
            allowed = tolerance(
                path, size, sample.distances.get(name, 0.0), sample.paths.get(name, NO_PATH)
            )
            off = distance(value, outcome.values.get(name))
            yield Compared(
                *name, str(layout), partitioner, _text(dtype), off, allowed, size, path.length
            )


def _run(
    runner: Runner, measured: _Measured, layout: Layout, partitioner: str, dtype: torch.dtype | None
) -> Outcome:
    """Runs the step over a mesh; what it raises there has a note with the change of a body that is
    known to mend it."""
    calls = BodyCalls()
    try:
        return runner.run(layout, dtype, partitioner=partitioner, calls=calls)
    except Exception as error:
        if repair_text := _repair(runner, measured, layout, partitioner, dtype, calls):
            error.add_note(f"verify: on one device the step runs; on {layout} {repair_text}")
        raise


def _repair(
    runner: Runner,
    measured: _Measured,
    layout: Layout,
    partitioner: str,
    dtype: torch.dtype | None,
    calls: BodyCalls,
) -> str:
    """The change of one collective in a body with which the step is equal to one device; "" for
    none."""

    def is_equal(changed: BodyCalls) -> bool:
        try:
            run = runner.run(layout, dtype, partitioner=partitioner, calls=changed)
        except Exception:  # a change that the body, or a check of it, does not take
            return False
        return all(row.is_equal for row in measured.compared(run, layout, partitioner, dtype))

    with stage("a change of one collective that makes it equal"):
        return repair(calls, is_equal)


def _first(
    runner: Runner, measured: _Measured, layouts: Sequence[Layout], rows: Sequence[Compared]
) -> tuple[str, str]:
    """The first op that differs in the first layout with a difference, in float64 where that
    differs, and the change of a body that mends it."""
    wrong = sorted(
        (row for row in rows if not row.is_equal), key=lambda row: row.dtype != "float64"
    )
    if not wrong:
        return "", ""
    row = wrong[0]
    layout = next(layout for layout in layouts if str(layout) == row.layout)
    dtype = torch.float64 if row.dtype == "float64" else None
    values = runner.inputs.near(0)
    with stage("the first op that differs"):
        wide = runner.run(measured.layout, dtype, values=values, with_ops=True)
        narrow = runner.run(measured.layout, _NARROW, values=values, with_ops=True)
        calls = BodyCalls()
        sharded_outcome = runner.run(
            layout, dtype, partitioner=row.partitioner, values=values, with_ops=True, calls=calls
        )
    first = (
        first_difference(wide, narrow, sharded_outcome)
        or f"{Name(row.kind, row.path)}; every op before it is equal"
    )
    return first, _repair(runner, measured, layout, row.partitioner, dtype, calls)


def first_difference(reference: Outcome, narrow: Outcome, sharded_outcome: Outcome) -> str:
    """The text of the first op, in the order of recording, that differs by more than its tolerance;
    "" for none.

    reference, narrow: on one device in float64 and in a narrow dtype. sharded: on the mesh, in
    float64. All with ops.
    """
    ours, theirs = [op.key for op in reference.ops], [op.key for op in sharded_outcome.ops]
    for block in SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks():
        for step in range(block.size):
            first, second = reference.ops[block.a + step], sharded_outcome.ops[block.b + step]
            sample = narrow.ops[block.a + step] if block.a + step < len(narrow.ops) else first
            sample = sample if sample.key == first.key else first
            allowed = tolerance(
                first.path, magnitude(first.value), distance(sample.value, first.value), sample.path
            )
            off = distance(first.value, second.value)
            if off > allowed:
                return f"{first.text}: differs by {off:.3g} where {allowed:.3g} is allowed"
    return ""


def _evidence(inputs: Inputs, layouts: Sequence[Layout]) -> dict[str, Any]:
    return {
        "digest": inputs.digest(),
        "num_tensors": len(inputs.values),
        "dtypes": sorted({str(value.dtype).removeprefix("torch.") for value in inputs.values}),
        "seeds": {
            "torch": torch.initial_seed(),
            "device": list(seed.get_state()),
            "samples": list(range(SAMPLES)),
        },
        "tolerance": FORMULA,
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("torch-spmd", "torch", "jax", "jaxlib")
        },
        "meshes": [
            {
                "layout": str(layout),
                "axes": {str(name): size for name, size in layout.mesh.shape().items()},
                "devices": list(map(int, layout.mesh.device_ids)),
                "rules": None if layout.rules is None else str(layout.rules),
            }
            for layout in layouts
        ],
        "partitioners": list(PARTITIONERS),
        "flags": repr(config).splitlines(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
