"""spmd.plan: records a step twice without data, and compiles the programs of the second
recording."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...core import (
    DeviceData,
    Sharding,
    compiled_with,
    config,
    ends_at_user_line,
    hardware,
    syncs,
    topology,
    user_line,
)
from ...core.extend import Graph, Line, Objects, Recording, Target, abstract_calls, executables
from ...mesh.global_mesh import get_global_mesh
from ...mesh.mesh import Mesh
from ...mesh.rented import target_of
from ...rules.rules import ShardingRules
from ...tensors.annotate import get_sharding
from . import layout
from .figures import (
    OF_LARGEST,
    SUMMED,
    Figures,
    chip_of,
    error_text,
    figures_of,
    largest,
    memory_of,
    notes_on,
    summed,
)
from .report import Plan, advice, timed


@ends_at_user_line
def plan(
    step: Callable[..., Any],
    *args: Any,
    target: str | None = None,
    mesh: Mesh | None = None,
    rules: ShardingRules | None = None,
    compiler_options: Mapping[str, Any] | None = None,
    check_marks: bool = False,
    **kwargs: Any,
) -> Plan:
    """Returns the compiler's figures of a training or inference step, without running or allocating
    it.

    The step is called twice with these arguments and recorded; the second recording, the steady
    step, is compiled with the options of a run. Afterwards parameters, gradients, optimizer state,
    buffers, random streams, and the reachable containers and attributes are restored; also where
    the step raises. Other threads wait while it is recorded.

    Args:
        step: the function as a run calls it: forward, backward, clipping, optimizer. Modules and
            optimizers are found through arguments, closure and globals. Modules on `meta` or the
            CPU are on the device without data meanwhile, and with them their optimizers' state and
            the arguments.
        args, kwargs: its arguments; tensors on `meta` have only a shape.
        target: a TPU slice ("v4:2x4x4", "v5e:4x4", "v5p:4x8x8", "v6e:4x4", of two devices a chip
            "tpu7x:2x2x1"; the extra `tpu`), GPUs ("h100:8", two nodes "2xh100:8"; a100, h100, h200,
            b200, l4 or one of `describe_gpu`; the extra `gpu-plan`), simulated devices
            ("cpu:2048"), or None: the mesh's own target, else the devices here. A mesh over devices
            here is planned on the target's, by ordinal; on as many of them, which `Plan.notes`
            says, where a simulated target has more, or where there is no mesh.
        mesh, rules: shard the reachable model by these rules for the length of the plan;
            `Plan.findings` then has the findings on the rules. mesh=None: that of `with mesh:`. A
            module without arguments is planned as the table of its shardings only, without
            compiling.
        compiler_options: options of XLA's, name -> value, for the step's programs, in addition to
            those that they need. They are part of a program's key: a run takes the plan's program
            where it has the same (`spmd.config.compiler_options`, or `torch_xla.compile`).
        check_marks: for each value that the partitioner moves and no annotation requests, compile
            with other annotations until one removes the move; `Plan.findings` then has that one. Up
            to about sixty compilations for each such value.

    Raises `AbstractError` (a RuntimeError) at the user's line that reads a value (`.item()`,
    `print(loss)`), ValueError for a target that is not known or has another number of chips than
    the mesh and for an option that XLA does not have, `LoweringError` for a kernel that does not
    compile. A step that does not fit is not an error: see `Plan.fits`. Source: XLA's memory and
    cost analysis, `jax.stages.Compiled`.

    >>> import torch, spmd
    >>> model = torch.nn.Linear(1024, 1024, device="meta")
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> def step(x):
    ...     model(x).square().mean().backward()
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    >>> plan = spmd.plan(step, torch.empty(8, 1024, device="meta"))
    >>> plan.optimizer_state // plan.parameters
    2
    """
    line, started = user_line(), time.monotonic()
    if not callable(step):
        raise TypeError(f"plan: expected a function that does a step, got {type(step).__name__}")
    if (target := target_of(target, "plan")) is not None:
        topology.num_devices(
            target
        )  # raises for one that is not known, before the step is recorded
    mesh = get_global_mesh() if rules is not None and mesh is None else mesh
    if (mesh is None) is not (rules is None):
        have, lack = ("rules", "mesh") if mesh is None else ("mesh", "rules")
        raise TypeError(
            f"plan: got {have} without {lack}; rules shard a model over a mesh: pass both or "
            "neither"
        )
    lay = None if rules is None or mesh is None else ApplyRules(rules, mesh)
    if isinstance(step, nn.Module) and not (args or kwargs):
        return timed(_table(step, lay, target, line), started)
    options = dict(compiler_options or {})
    with compiled_with(options):
        result = planned(step, args, kwargs, target, lay, line, check_marks=check_marks)
    words = " ".join(f"{name}={value}" for name, value in options.items())
    return replace(
        timed(result, started),
        compiler_options={name: str(value) for name, value in options.items()},
        notes=(
            *result.notes,
            *([f"compiled with these options of XLA's: {words}"] if options else ()),
        ),
    )


@ends_at_user_line
def warm(
    step: Callable[..., Any],
    *args: Any,
    folder: str | Path | None = None,
    mesh: Mesh | None = None,
    rules: ShardingRules | None = None,
    compiler_options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> int:
    """Compiles the programs of a step and of its initial values, so that the first step compiles
    nothing; returns their number. Nothing runs, and nothing is allocated.

    They wait in this process and, where it is on, in the cache on disk. With a folder they are
    written there for other processes and machines of the same kind, which take them by
    `load_programs`.

    Args:
        step, args, kwargs, mesh, rules, compiler_options: as of `plan`.
        folder: a new folder, or one that this function has written.

    Raises the errors of `plan`, and ValueError where a program cannot be a file. Source:
    `jax.stages.Lowered.compile`.

    >>> import torch, spmd
    >>> model = torch.nn.Linear(3, 2, device="xla")
    >>> spmd.warm(lambda x: model(x).sum().backward(), torch.ones(4, 3, device="meta")) > 0
    True
    """
    result = plan(step, *args, mesh=mesh, rules=rules, compiler_options=compiler_options, **kwargs)
    recorded = result.recorded
    assert recorded is not None, "a step was planned"
    if folder is not None:
        return result.save_program(folder)
    with topology.standing_in(recorded.target), compiled_with(result.compiler_options):
        return len({id(executables.planned_for(graph, recorded.line)) for graph in recorded.graphs})


@dataclass(frozen=True)
class ApplyRules:
    """Rules to apply to the models of a step before it is recorded. fsdp: keywords of FSDP. model:
    the only model."""

    rules: ShardingRules
    mesh: Mesh
    fsdp: dict[str, Any] = field(default_factory=dict)
    model: nn.Module | None = None

    def apply(self, roots: Sequence[nn.Module]) -> tuple[dict[str, str], set[str]]:
        """Applies the rules; returns path -> pattern, and the modules whose activations have a
        rule. A rule that matches nothing is a finding, not an error."""
        shardings_of: dict[str, str] = {}
        sites: set[str] = set()
        for root in roots if self.model is None else (self.model,):
            applied = self.rules.apply(root, self.mesh, strict=False, **self.fsdp)
            shardings_of |= applied.tensors
            sites |= applied.sites.keys()
        return shardings_of, sites


def planned(
    step: Any,
    args: Any,
    kwargs: Any,
    target: Target,
    lay: ApplyRules | None,
    line: Line,
    *,
    check_marks: bool = False,
) -> Plan:
    """See `plan`."""
    layouts: dict[tuple[int, int], Sharding] = {}
    with layout.stage("plan"):
        while True:
            with layout.stage("recording the step"):
                recording = Recording(layouts)
                step_recorded = _record(step, args, kwargs, recording, lay)
            target = checked(target, step_recorded.programs)
            with topology.standing_in(target):
                try:
                    read = {
                        device_data
                        for graph in step_recorded.programs
                        for device_data in graph.inputs
                    }
                    chosen_layouts = chosen(read, recording, line)
                except torch.OutOfMemoryError as error:
                    # of the first step, which a run begins with
                    result = compiled(step_recorded, target, line)
                    return replace(result, verdict=result.verdict or error_text(error))
                if not chosen_layouts:
                    return compiled(step_recorded, target, line, check_marks=check_marks)
            layouts |= chosen_layouts


def _record(
    step: Any, args: Any, kwargs: Any, recording: Recording, lay: ApplyRules | None
) -> layout.PlannedStep:
    with abstract_calls.abstractly(step, (args, kwargs), recording) as reachable:
        modules = reachable.of(nn.Module)
        calls = layout.Calls(modules)
        roots = layout.roots_of(modules)
        patterns, sites = ({}, None) if lay is None else lay.apply(roots)
        result = step(*args, **kwargs)
        syncs.sync()
        first, first_result = len(recording.programs), len(recording.results)
        with calls.noted():
            result = step(*args, **kwargs)
            syncs.sync()
        programs, results = recording.programs[first:], {*recording.results[first_result:]}
        rows = layout.rows_of(roots, patterns)
        record = layout.recorded_step(
            recording, programs, results, Objects.of_step(step, (args, kwargs)), calls, rows, sites
        )
        if lay is not None:
            record.findings.extend(layout.rules_of_nothing(lay.rules, roots, lay.rules.line))
        del result
    if not programs:
        raise ValueError(
            "plan: the step recorded nothing on the device: what it computes of CPU tensors alone "
            "stays on the CPU; "
            'move them by .to("xla"), or make them on device="meta". Modules among its arguments, '
            "globals or closures "
            "may be on xla, meta or the CPU"
        )
    return record


def _table(model: nn.Module, lay: ApplyRules | None, target: Target, line: Line) -> Plan:
    """The plan of a module without a step: its shardings and their bytes."""
    with abstract_calls.abstractly(model, ()):
        patterns, _ = ({}, None) if lay is None else lay.apply([model])
        rows, findings = layout.rows_of([model], patterns)
        tensors = [tensor for _, tensor, _ in layout.tensors_of(model)]
        trained = sum(
            row.bytes for row, tensor in zip(rows, tensors, strict=True) if tensor.requires_grad
        )
        shardings = [
            sharding for tensor in tensors if (sharding := get_sharding(tensor)) is not None
        ]
        findings = [replace(finding, line=str(line)) for finding in findings]
        if lay is not None:
            findings += layout.rules_of_nothing(lay.rules, [model], lay.rules.line)
    parameters, buffers = (
        sum(row.bytes for row in rows if row.is_buffer is kind) for kind in (False, True)
    )
    state = Counter({"parameters": parameters, "gradients": trained, "inputs": buffers})
    mesh = max(
        shardings,
        key=lambda candidate: len(candidate.device_ids),
        default=hardware.default_sharding(),
    )
    recorded = layout.PlannedStep([], [], state, lambda node: "", rows, findings, None, mesh)
    target = mesh.target or target
    with topology.standing_in(target):
        result = compiled(recorded, target, line)
    note = (
        "no step was passed: with AdamW's two moments training holds "
        f"{parameters + buffers + 3 * trained:,} bytes"
    )
    peak = parameters + buffers
    notes = (*_idle([mesh], target), note)
    return replace(result, peak=peak, notes=notes, peak_flops=None, clock=None, constants="")


def checked(target: Target, programs: Sequence[Graph]) -> Target:
    """The target of the step's meshes, else the given one.

    Raises ValueError where these do not agree.
    """
    named = {name for graph in programs if (name := graph.mesh.target) is not None}
    if len(named) > 1 or (named and target is not None and target not in named):
        raise ValueError(
            f"plan: the step's meshes are over {', '.join(map(repr, sorted(named)))}"
            + (
                f", and target is {target!r}; leave it out"
                if target is not None and len(named) == 1
                else "; plan one"
            )
        )
    if named:
        return named.pop()
    if target is not None:
        count = topology.num_devices(target)
        for graph in programs:
            size = len(graph.mesh.device_ids)
            if size > count or (1 < size < count and not topology.is_simulated(target)):
                raise ValueError(
                    f"plan: the step's mesh has {size} devices and {target!r} has {count}; plan "
                    "for as many, or make the mesh of the target's devices: "
                    f"spmd.Mesh(range({count}), ..., target={target!r})"
                )
    return target


def chosen(
    read: Set[DeviceData], recording: Recording, line: Line
) -> dict[tuple[int, int], Sharding]:
    """The compiler's shardings of results of earlier programs that are read and that have no
    annotation."""
    chosen_shardings: dict[tuple[int, int], Sharding] = {}
    for number in sorted(
        {recording.unknown[device_data][0] for device_data in read & recording.unknown.keys()}
    ):
        graph = recording.programs[number]
        with layout.stage(f"compiling {len(graph.nodes):,} ops for the shardings of their results"):
            results = executables.planned_for(graph, line).results
        chosen_shardings |= {
            (number, i): sharding for i, sharding in enumerate(results) if graph.pinned[i] is None
        }
    return chosen_shardings


def compiled(
    recorded: layout.PlannedStep, target: Target, line: Line, *, check_marks: bool = False
) -> Plan:
    """The figures of a recorded step, whose programs are compiled for them."""
    programs = recorded.programs
    # rules are complete where nothing else is moved
    above = config.moves_above if recorded.sites is None else 0
    figures = figures_of(programs, recorded.paths, line, above, check=check_marks)
    mesh = recorded.mesh or max(
        (graph.mesh for graph in programs), key=lambda mesh: len(mesh.device_ids)
    )
    device: Any = next(iter(mesh.jax.device_set))
    chip = chip_of(device)
    collectives = [row for program_figures in figures for row in program_figures.collectives]
    widest = max(figures, key=lambda program_figures: program_figures.peak, default=Figures())
    memory = memory_of(target, device, chip)
    are_large = (
        program_figures.error or (memory is not None and program_figures.peak > memory)
        for program_figures in figures
    )
    refused = next(itertools.compress(programs, are_large), None)
    result = Plan(
        target=target,
        chip=device.device_kind,
        num_devices=len(mesh.device_ids),
        mesh={str(name): size for name, size in mesh.mesh_axes().items()},
        parameters=recorded.state["parameters"],
        gradients=recorded.state["gradients"],
        optimizer_state=recorded.state["optimizer state"],
        inputs=recorded.state["inputs"],
        temporaries=max((program_figures.temporaries for program_figures in figures), default=0),
        host=recorded.state["host"]
        + max((program_figures.host for program_figures in figures), default=0),
        memory=memory,
        collectives=tuple(sorted(collectives, key=lambda row: -row.moved_bytes)),
        num_programs=len(programs),
        num_ops=sum(len(graph.nodes) for graph in programs),
        num_lowered=sum(
            len(graph.nodes)
            - sum((iterations - 1) * period for _, iterations, period in program_figures.loops)
            for graph, program_figures in zip(programs, figures, strict=True)
        ),
        line=str(line),
        verdict=next(
            (program_figures.error for program_figures in figures if program_figures.error), ""
        ),
        largest=() if refused is None else largest(refused, recorded.paths),
        peak_flops=None if chip is None else chip.peak_flops,
        clock=None if chip is None else chip.clock,
        constants="" if chip is None else chip.source,
        notes=(
            *_idle([graph.mesh for graph in programs] or [mesh], target),
            *notes_on(figures, device, chip, target),
            *_loops(recorded, figures),
        ),
        terms=summed([program_figures.terms for program_figures in figures]),
        layout=tuple(recorded.rows),
        findings=(
            *recorded.findings,
            *layout.unused_axes(
                words for program_figures in figures for words in program_figures.unused_axes
            ),
            *layout.reshards(
                [move for program_figures in figures for move in program_figures.moves],
                recorded.sites or (),
            ),
        ),
        recorded=layout.recordings(recorded.earlier, programs, target, line),
        **{name: getattr(widest, name) for name in OF_LARGEST},
        **{
            name: sum(getattr(program_figures, name) for program_figures in figures)
            for name in SUMMED
        },
    )
    return advice(result, programs)


def _loops(recorded: layout.PlannedStep, figures: Sequence[Figures]) -> Iterator[str]:
    """Notes on the loops of scanned layers, with the modules, and on why there are none."""
    for graph, program_figures in zip(recorded.programs, figures, strict=True):
        for start, iterations, period in program_figures.loops:
            paths = map(recorded.paths, graph.nodes[start : start + period])
            of = Counter(
                layout.NUMBER.sub("*", path).rpartition("*")[0] + "*"
                for path in paths
                if layout.NUMBER.search(path)
            )
            where = f" of {of.most_common(1)[0][0]}" if of else ""
            yield (
                f"{iterations} equal layers{where} are one loop of the program ({period:,} ops "
                "per iteration)."
            )
        if program_figures.no_loops and len(graph.nodes) >= _MANY_OPS:
            yield f"no layers are scanned as a loop of the program: {program_figures.no_loops}."


_MANY_OPS = 200  # from which on compiling may take long enough for a note


def _idle(meshes: Sequence[Sharding], target: Target) -> Iterator[str]:
    """Notes that the target has more devices than these meshes."""
    used = len({device for mesh in meshes for device in mesh.device_ids})
    if target is not None and used < (count := topology.num_devices(target)):
        yield (
            f"the step's mesh has {used} of the {count} devices of {target!r}, and the figures "
            f"are of these {used}. For all make it spmd.Mesh(range({count}), ..., "
            f"target={target!r})."
        )
