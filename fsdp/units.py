"""`Unit`: the parameters that FSDP gathers together around a forward and a backward, in the dtype
of computation."""

# [Note: a unit's tensors and states]
#
# Tensors: a parameter is the sharded one at all times, and the only one that is stored. Its
# unsharded (all-gathered) value, and the cast that is gathered in its place, are values of the
# graph that nothing here holds beyond a pass; a gradient arrives in the parameter's sharding, which
# XLA turns into a reduce-scatter of the summands.
#
# A unit changes no data. Between steps its parameters are SHARDED: marked with their specs. A
# forward pass (FORWARD) reads them through `use_sharding`, which makes the gather an op of the
# graph: its result is freed after the last op that reads it, as any value is, so there is no buffer
# of ours and nothing to free by hand. Backward (BACKWARD) reads them through a second gather, for
# which the first gradient that arrives is the signal: a hook on the outputs, as torch has no hook
# before a module's backward that sees every path into it. UNSHARDED is what `unshard` leaves.
#
# Hooks, in order: pre_forward enters the gathers, forward runs, post_forward exits them and watches
# the outputs; pre_backward renews the gathers at the first gradient, post_backward ends them. FSDP2
# prefetches the next unit's all-gather by hand; here XLA's scheduler does, as it sees the whole
# step.
#
# Why the gather depends on an input, and on a gradient (`renew`): XLA merges two gathers of one
# parameter into one that stays in memory from forward to backward, and moves a gather that depends
# on nothing to the start of the program. A value that exists only then holds it back.
#
# Why casts stand in modules only while a pass runs: optimizers, state dicts and users look at
# `module.weight` between steps and must find the parameter. A recomputation in backward calls
# forward without hooks, so that the casts of the pass whose backward runs stand there again until
# backward ends, or the next forward where it raised (`restore`).

import dataclasses
import enum
import functools
import itertools
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

import spmd
from spmd.mesh.notes import say_once, warn

from .api import CPUOffloadPolicy, FullPrecision, Settings, mesh_within
from .gradients import GradientHooks, UnsyncedGradients
from .outputs import BatchSplit, cast, is_time_first, tensors, time_first_note
from .plan import placement

# (module, name of a parameter) -> the tensor under that name
_SlotValues = dict[tuple[nn.Module, str], torch.Tensor]
Inputs = tuple[tuple[object, ...], dict[str, object]]  # what a module is called with
ATTRIBUTE = "_fsdp_unit"  # the attribute of a module that holds its unit


class UnitState(enum.Enum):
    """The states of a unit's parameters: between steps, and while one runs."""

    SHARDED = "stored sharded"
    UNSHARDED = "stored unsharded, until the next forward ends or `reshard`"
    FORWARD = "gathered by a forward pass that runs"
    BACKWARD = "gathered by a backward pass that runs, casts in the place of parameters"


@dataclasses.dataclass(eq=False)
class _Pass:
    """The state of one forward pass.

    gather: that of all tensors of the unit. casts: the casts in the slots of parameters; None after
    backward, which frees them even if the loss is referenced (a second backward casts again).
    output_dtype: the dtype of the output. saved_shards: the tensors kept for backward. task:
    autograd's graph task of its backward.
    """

    gather: spmd.use_sharding
    casts: _SlotValues | None
    output_dtype: torch.dtype | None = None
    saved_shards: Sequence[Any] = ()
    task: int = -1


# Units by the ids of their parameters, which they keep alive, so that the ids stay valid. A mark of
# a parameter looks its unit up, and a module that is wrapped after its parent.
OWNERS: "weakref.WeakValueDictionary[int, Unit]" = weakref.WeakValueDictionary()
# Units with casts in their slots for a backward pass.
WITH_CASTS: "weakref.WeakSet[Unit]" = weakref.WeakSet()


def warn_of_dropped_axis(tensor: torch.Tensor, sharding: Any) -> None:
    """Warns if a new sharding of a unit's parameter drops the axis over which FSDP shards it."""
    unit, present = OWNERS.get(id(tensor)), spmd.get_sharding(tensor)
    if unit is None or present is None or unit._stored is not UnitState.SHARDED:
        return
    if all(tensor is not parameter for parameter in unit.parameters):
        return
    axis = unit.settings.shard_axis
    former, new = (
        spmd.PartitionSpec(*layout.partition_spec(tensor.dim())) for layout in (present, sharding)
    )
    if former.without(axis) != former and new.without(axis) == new:
        warn(
            f"mark_sharding: FSDP shards this parameter {list(tensor.shape)} over {axis!r}, as "
            f"{former!r}; {new!r} drops that axis, and each of its devices holds all of it: name "
            "the axis, too, or use spmd.ShardingRules"
        )


class Unit:
    """Parameters that are gathered together: unsharded in the unit's forward, and again in its
    backward.

    parameters: those that it gathers. ignored: the parameters below the unit that stay unsharded.
    buffers: those of its modules; it gathers those that are sharded over its axis, as they are.
    slots: (module, name) of each parameter that forward reads in another dtype. A slot holds a cast
    of the parameter during forward, and from the first gradient to the end of backward (which may
    recompute forward without a hook); at other times it holds the parameter. Hooks do nothing until
    the parameters are on the device.

    is_root: True if no other unit is above this one.
    """

    def __init__(
        self,
        parameters: Collection[nn.Parameter],
        ignored: Collection[nn.Parameter],
        slots: Collection[tuple[nn.Module, str]],
        settings: Settings,
        split: BatchSplit,
    ):
        self.settings = settings
        self.split = split
        self.reshard_after_forward = settings.reshard_after_forward
        self.is_root = True
        self.divide_factor: float | None = None
        self.parameters, self.ignored = tuple(parameters), tuple(ignored)
        self.buffers: tuple[torch.Tensor, ...] = ()
        self._slots = tuple(slots)
        # the specs in which the parameters are stored
        self._specs: tuple[spmd.PartitionSpec, ...] = ()
        self._hooks = GradientHooks()
        self.unsynced = UnsyncedGradients()
        self._modules: list[weakref.ref[nn.Module]] = []
        self._time_first = False  # dim 1 of inputs and outputs is the batch
        self._note = ""  # for a root
        self._restart()

    def _restart(self) -> None:
        """Resets the state of passes: no pass runs, and no gather is made yet."""
        # The gather of passes without casts; None: not made. It is the same object for all of them,
        # as a compiled step has a guard on it.
        self._stored_gather: spmd.use_sharding | None = None
        self._buffer_shardings: list[Any] = []  # those of `buffers` when they were made
        # running passes, innermost last, with the tensors they replaced
        self._passes: list[tuple[_Pass, _SlotValues]] = []
        self._masters: _SlotValues = {}  # the parameters that casts replace during backward
        self._backward_pass: _Pass | None = None  # the pass whose backward runs
        self._stored = UnitState.SHARDED

    def __getstate__(self) -> dict[str, object]:
        # A copy begins with no pass under way.
        transient = {
            "_stored_gather",
            "_buffer_shardings",
            "_passes",
            "_masters",
            "_backward_pass",
            "_stored",
            "_modules",
        }
        return {name: value for name, value in self.__dict__.items() if name not in transient}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._modules = []
        self._restart()

    @property
    def modules(self) -> list[nn.Module]:
        """The modules that the unit has hooks on; after a copy, the modules that were passed to
        `refresh`."""
        return [module for ref in self._modules if (module := ref()) is not None]

    def release(self, below: "Unit") -> None:
        """Drops the parameters that now belong to `below`, a new unit of modules below this one."""
        moved_ids = {id(parameter) for parameter in below.parameters}
        is_kept = [id(parameter) not in moved_ids for parameter in self.parameters]
        self._specs = tuple(itertools.compress(self._specs, is_kept))
        self.parameters = tuple(itertools.compress(self.parameters, is_kept))
        self._slots = tuple(slot for slot in self._slots if id(_slot_value(*slot)) not in moved_ids)
        moved_ids = {id(buffer) for buffer in below.buffers}
        self.buffers = tuple(buffer for buffer in self.buffers if id(buffer) not in moved_ids)
        self._restart()

    def exchange(self, new: Mapping[int, nn.Parameter], modules: Collection[nn.Module]) -> None:
        """Replaces parameters: `new` maps the id of an old parameter to the one that takes its
        place."""
        self.ignored = tuple(new.get(id(parameter), parameter) for parameter in self.ignored)
        self.parameters = tuple(new.get(id(parameter), parameter) for parameter in self.parameters)
        self.refresh(modules)

    @property
    def state(self) -> UnitState:
        """The state of the parameters now."""
        if self._passes:
            return UnitState.FORWARD
        return UnitState.BACKWARD if self._backward_pass is not None else self._stored

    @property
    def is_on_device(self) -> bool:
        """True if all of the unit's parameters are on the device xla."""
        return all(
            parameter.device.type == "xla" for parameter in (*self.parameters, *self.ignored)
        )

    @property
    def reshards(self) -> bool:
        """True if parameters are freed after forward and gathered again for backward.

        Default: every unit but the root, whose parameters backward needs at once.
        """
        # A number of 1 gathers among one device: kept as it is, which is not to reshard.
        value = self.reshard_after_forward
        return (
            not self.is_root if value is None else value if isinstance(value, bool) else value > 1
        )

    @property
    def kept_on(self) -> spmd.Mesh | None:
        """The mesh over which gathered parameters stay sharded from forward to backward, where
        `reshard_after_forward` is a number of devices; else None."""
        value = self.reshard_after_forward
        size = self.settings.mesh.shape()[self.settings.shard_axis]
        if value is None or isinstance(value, bool) or value in (1, size):
            return None
        return mesh_within(self.settings.mesh, self.settings.shard_axis, value)

    def refresh(self, modules: Collection[nn.Module]) -> None:
        """Shards the present parameters of modules, and marks their buffers replicated that have no
        mark on the mesh; to be called after `.to(dtype)`, which makes new tensors."""
        self._restart()
        self._hooks.forget()
        OWNERS.update((id(parameter), self) for parameter in (*self.parameters, *self.ignored))
        self._modules += [weakref.ref(module) for module in modules if module not in self.modules]
        inside = modules_of(self.modules, self)
        buffers = {id(buffer): buffer for module in inside for buffer in module._buffers.values()}
        former = self.buffers
        self.buffers = tuple(
            buffer
            for buffer in buffers.values()
            if buffer is not None and buffer.device.type == "xla"
        )
        self._time_first = any(map(is_time_first, self.modules))
        self._note = (
            "" if self._time_first else next(filter(None, map(time_first_note, self.modules)), "")
        )
        if self.is_on_device:  # else on meta, or in a copy on the CPU: `.to("xla")` refreshes again
            self._specs = tuple(map(self._stored_spec, self.parameters))
            self.reshard()
            for parameter in self.ignored:
                spmd.mark_sharding(parameter, self.settings.mesh, self._base_spec(parameter))
            mesh = self.settings.mesh
            # A loaded buffer (`assign=True`) takes the mark of the one that it replaces.
            marked = former if len(former) == len(self.buffers) else self.buffers
            for buffer, old in zip(self.buffers, marked, strict=True):
                is_new = spmd.get_sharding(buffer) is None and old.shape == buffer.shape
                spmd.mark_sharding(buffer, mesh, spec_without(old if is_new else buffer, mesh))
            # made here, a compiled call does not see it appear in the first forward pass
            self._gather_stored()

    def _stored_spec(self, parameter: nn.Parameter) -> spmd.PartitionSpec:
        """The stored spec of a parameter: its spec over other axes and, unless it is small, one dim
        sharded over the shard axis."""
        base_spec, settings = self._base_spec(parameter), self.settings
        if parameter.numel() < settings.min_shard_numel:
            return base_spec
        size = settings.mesh.shape()[settings.shard_axis]
        return placement(
            parameter, settings.shard_axis, size, base_spec, settings.shard_placement_fn
        )

    def _base_spec(self, parameter: nn.Parameter) -> spmd.PartitionSpec:
        """The spec of a parameter over the axes other than the shard axis."""
        return spec_without(parameter, self.settings.mesh, self.settings.shard_axis)

    def unshard(self, *, with_gradients: bool = False) -> None:
        """Stores the parameters unsharded, until the unit's next forward pass ends or `reshard` is
        called."""
        axis = self.settings.shard_axis
        self._store([spec.without(axis) for spec in self._specs], "device", with_gradients)

    def reshard(self, *, with_gradients: bool = False) -> None:
        """Stores the parameters sharded."""
        is_offloaded = isinstance(self.settings.offload_policy, CPUOffloadPolicy)
        self._store(self._specs, "pinned_host" if is_offloaded else "device", with_gradients)
        self._stored = UnitState.SHARDED

    def _store(
        self, specs: Sequence[spmd.PartitionSpec], memory: str, with_gradients: bool
    ) -> None:
        """Stores the parameters, and their gradients if requested, in these specs and this
        memory."""
        self._stored = UnitState.UNSHARDED  # from here on, as its own marks may drop an axis
        for parameter, spec in zip(self.parameters, specs, strict=bool(specs)):
            for tensor in (parameter, parameter.grad if with_gradients else None):
                if tensor is not None:
                    spmd.mark_sharding(tensor, self.settings.mesh, spec, memory_kind=memory)

    def gathered_bytes(self, parameter: nn.Parameter) -> int:
        """The bytes of an unsharded parameter, in the dtype that it is gathered in."""
        # The cast is gathered, not the parameter: bytes on the network are those of the narrow
        # dtype.
        policy = self.settings.mp_policy
        dtype = policy.param_dtype if self._is_cast(parameter) else parameter.dtype
        if parameter.is_floating_point() and parameter.dim() > 1:
            dtype = policy.gather_dtype or dtype
        assert dtype is not None, "`_is_cast` requires a param_dtype"
        return parameter.numel() * dtype.itemsize

    def divide_gradients(self, factor: float | None) -> None:
        """Sets the divisor of the gradients' sum over the batch's shards; None: the number of
        shards, a mean."""
        self.divide_factor = factor
        if self.is_on_device:
            self._hook_gradients()

    def defer_gradients(self, over: Sequence[str]) -> None:
        """Has later backward passes leave gradients unreduced over these axes of the batch (see
        `unsynced`)."""
        self.unsynced.set([*self.parameters, *self.ignored], self.split.mesh, self.split.axes, over)

    def _hook_gradients(self) -> None:
        """Registers the hooks that reduce gradients in `reduce_dtype` and scale them."""
        scale = None if self.divide_factor is None else self.split.ways / self.divide_factor
        self._hooks.put(self.parameters, self.settings.mp_policy.reduce_dtype, scale)

    def pre_forward(
        self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Inputs:
        """Begins a forward pass; returns its inputs. The gather depends on the first input, so that
        the compiler cannot schedule it earlier."""
        if not self.is_on_device:
            self._refuse_meta(module)
            return args, kwargs
        if self.is_root:
            if self._note:
                say_once(self._note)
            unmarked = [
                tensor for tensor in tensors((args, kwargs)) if spmd.get_sharding(tensor) is None
            ]
            # Before the split, as a mark of the user's on the input says how its sequences are
            # sharded.
            self.split.note_sequences((args, kwargs))
            self._split(unmarked, is_batch=True)
        if not self._passes:
            # A backward that raised has left casts in modules; and parameters may have been frozen
            # since.
            self.restore()
            self._hook_gradients()
        policy = self.settings.mp_policy
        inputs: Inputs = cast(
            (args, kwargs), policy.param_dtype if policy.cast_forward_inputs else None
        )
        stored = self._stored_slots()
        recomputed = self._recomputed_pass()
        current_pass = recomputed or self._cast_pass(stored)
        current_pass.output_dtype = self._output_dtype((args, kwargs))
        if self.reshards and not recomputed:
            # The gather waits for the unit's input. A recomputation reads the gather that the
            # gradient has renewed.
            for tensor in tensors(inputs)[:1]:
                current_pass.gather.renew(tensor)
        current_pass.gather.__enter__()
        self._passes.append((current_pass, stored))
        _fill_slots(current_pass.casts)
        return inputs

    def _split(self, values: Sequence[torch.Tensor], *, is_batch: bool = False) -> None:
        """Shards the batch dim of inputs or outputs; for time-first modules that is dim 1, and
        matrices, such as a mask, stay."""
        if self._time_first:
            self.split([tensor for tensor in values if tensor.dim() > 2], dim=1, is_batch=is_batch)
        else:
            self.split(values, is_batch=is_batch)

    def _cast_pass(self, stored: _SlotValues) -> _Pass:
        """Begins a forward pass with casts of the parameters. A cast is sharded like its parameter
        and then gathered, so that the all-gather moves the narrower dtype."""
        casts: dict[int, torch.Tensor] = {}
        for parameter in {id(parameter): parameter for parameter in stored.values()}.values():
            sharding = spmd.get_sharding(parameter)
            assert sharding is not None, "parameters are marked when they are wrapped"
            spec = sharding.partition_spec(parameter.dim())
            narrow = parameter.to(self.settings.mp_policy.param_dtype)
            casts[id(parameter)] = spmd.mark_sharding(narrow, self.settings.mesh, spec)
        gather = self._gather(casts) if casts else self._gather_stored()
        return _Pass(gather, {slot: casts[id(parameter)] for slot, parameter in stored.items()})

    def _recomputed_pass(self) -> _Pass | None:
        """The forward pass that a recomputation in backward runs again, or None. The second run
        reads the same casts, which were gathered when the gradient arrived."""
        backward_pass = self._backward_pass
        return (
            backward_pass
            if backward_pass is not None and backward_pass.task == torch._C._current_graph_task_id()
            else None
        )

    def post_forward(self, module: nn.Module, args: object, output: object) -> object:
        """Ends a forward pass; returns its output. output: None where forward raised, as a
        recomputation does once it has all values that it needs."""
        if not self._passes:
            return output
        # Also where forward raised: torch calls the hook always, and a retry must find the
        # parameters in place.
        ended, stored = self._passes.pop()
        _fill_slots(stored)
        returned = [tensor for tensor in tensors(output) if tensor.grad_fn is not None]
        is_recomputed = ended is self._recomputed_pass()
        if self.kept_on is not None and returned and not is_recomputed:
            # The shards are computed before an output, so that the gathered value is freed where
            # forward ends.
            ended.saved_shards = ended.gather.keep(self.kept_on, returned[0])
        ended.gather.__exit__()
        if self._stored is UnitState.UNSHARDED and not self._passes:
            self.reshard()
        if output is None:
            return None
        output = cast(output, ended.output_dtype)
        if self.settings.shard_output is None:
            self._split([tensor for tensor in tensors(output) if spmd.get_sharding(tensor) is None])
        else:
            self.settings.shard_output(output, self.settings.mesh)
        if not is_recomputed and (self.reshards or ended.casts):
            # The first gradient that arrives at an output begins the backward of this pass.
            for tensor in tensors(output):
                if tensor.grad_fn is not None:
                    tensor.register_hook(functools.partial(self.pre_backward, ended))
        return output

    def restore(self) -> None:
        """Puts parameters back into the slots of casts that a failed backward pass has left."""
        if self._masters:
            _fill_slots(self._masters)
            self._masters.clear()
            WITH_CASTS.discard(self)

    def pre_backward(self, forward_pass: _Pass, gradient: torch.Tensor) -> None:
        """Begins the backward of a forward pass, once in each run of autograd's engine: gathers its
        parameters and puts casts into modules."""
        # Each output has the hook, and a model may call a unit twice: each backward has an engine's
        # task of its own.
        task = torch._C._current_graph_task_id()
        if task == forward_pass.task:
            return
        forward_pass.task = task
        # a second backward (retain_graph): the casts were freed after the first
        if forward_pass.casts is None:
            with torch.enable_grad():
                renewed = self._cast_pass(self._stored_slots())
            forward_pass.gather, forward_pass.casts = renewed.gather, renewed.casts
        if self.reshards:
            forward_pass.gather.renew(gradient, forward_pass.saved_shards)
        if forward_pass.casts and not self._passes:
            # Kept from the first time on: later the slots may hold the casts of a nested pass.
            if not self._masters:
                self._masters.update((slot, _slot_value(*slot)) for slot in forward_pass.casts)
                WITH_CASTS.add(self)
            _fill_slots(forward_pass.casts)
            self._backward_pass = forward_pass
        if (forward_pass.casts and not self._passes) or forward_pass.saved_shards:
            # torch runs it when the whole backward has ended: there is no hook after a module's own
            # part of it.
            torch.autograd.Variable._execution_engine.queue_callback(
                functools.partial(self.post_backward, forward_pass)
            )

    def post_backward(self, forward_pass: "_Pass") -> None:
        """Ends the backward of a forward pass: parameters stand in modules again, and its casts are
        freed."""
        self.restore()
        self._backward_pass = None
        forward_pass.gather = self._gather_stored()
        forward_pass.casts, forward_pass.saved_shards = None, ()

    def _refuse_meta(self, module: nn.Module) -> None:
        if any(parameter.is_meta for parameter in self.parameters):
            raise RuntimeError(
                f"{self.settings.caller}: {type(module).__name__} runs with parameters on meta, "
                "which have no values; "
                'call .to_empty(device="xla") on the model and initialise it, or load its state '
                "dict, first"
            )

    def _gather_stored(self) -> spmd.use_sharding:
        """The gather of passes without casts; made again where a buffer is marked."""
        shardings = [*map(spmd.get_sharding, self.buffers)]
        if self._stored_gather is None or shardings != self._buffer_shardings:
            self._stored_gather, self._buffer_shardings = self._gather({}), shardings
        return self._stored_gather

    @property
    def sharded_buffers(self) -> list[torch.Tensor]:
        """The buffers that are sharded over the unit's axis."""
        mesh, axis = self.settings.mesh, self.settings.shard_axis
        return [
            buffer
            for buffer in self.buffers
            if (spec := spec_without(buffer, mesh)) != spec.without(axis)
        ]

    def _gather(self, casts: Mapping[int, torch.Tensor]) -> spmd.use_sharding:
        """One gather of all tensors, as the first of two would be renewed where the last is live:
        parameters, or their casts by id, and buffers that are sharded like parameters (packed
        weights), in their own dtype."""
        settings, dtype = self.settings, self.settings.mp_policy.gather_dtype
        weights = [casts.get(id(parameter), parameter) for parameter in self.parameters]
        buffers = self.sharded_buffers
        dtypes = (*[dtype] * len(weights), *[None] * len(buffers))
        return spmd.use_sharding(
            (*weights, *buffers), settings.mesh, over=settings.shard_axis, dtype=dtypes
        )

    def _stored_slots(self) -> _SlotValues:
        """The parameters that a pass casts, by their slots."""
        return {
            slot: _slot_value(*slot) for slot in self._slots if self._is_cast(_slot_value(*slot))
        }

    def _is_cast(self, tensor: torch.Tensor) -> bool:
        dtype = self.settings.mp_policy.param_dtype
        return dtype is not None and tensor.is_floating_point() and tensor.dtype != dtype

    def _output_dtype(self, inputs: object) -> torch.dtype | None:
        """The dtype of a forward pass's output; with `FullPrecision`, the dtype of the last input
        that is cast."""
        policy = self.settings.mp_policy
        if not isinstance(policy, FullPrecision):
            return policy.output_dtype
        return next(
            (tensor.dtype for tensor in reversed(tensors(inputs)) if self._is_cast(tensor)), None
        )


def unit_of(module: nn.Module) -> Unit | None:
    """The unit of a module, or None."""
    return module.__dict__.get(ATTRIBUTE)


def units_in(module: nn.Module) -> dict[Unit, list[tuple[str, nn.Module]]]:
    """The units at and below a module, parents first, each with the (name, module) pairs that it
    has hooks on."""
    units: dict[Unit, list[tuple[str, nn.Module]]] = {}
    for name, below in module.named_modules():
        unit = unit_of(below)
        if unit is not None:
            units.setdefault(unit, []).append((name, below))
    return units


def modules_of(modules: Iterable[nn.Module], unit: Unit | None = None) -> list[nn.Module]:
    """All modules from these down to the units below; unit: that of these modules."""
    # torch's walk omits the modules of its memo.
    memo = {
        member
        for module in modules
        for other, pairs in units_in(module).items()
        if other is not unit
        for _, member in pairs
    }
    return [child for module in modules for _, child in module.named_modules(memo)]


def wrapped_units(caller: str, module: nn.Module) -> dict[Unit, list[tuple[str, nn.Module]]]:
    """`units_in`; raises ValueError for a module without units."""
    units = units_in(module)
    if not units:
        raise ValueError(f"{caller}: {type(module).__name__} has no units; wrap it with fsdp first")
    return units


def names_by_id(model: nn.Module) -> dict[int, list[str]]:
    """All names of each parameter of a model, by its id: a tied one has several."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return names


def root_of(module: nn.Module) -> Unit | None:
    """The outermost unit at or below a module, or None."""
    return unit_of(module) or next(iter(units_in(module)), None)


def spec_without(tensor: torch.Tensor, mesh: spmd.Mesh, *axes: str) -> spmd.PartitionSpec:
    """The spec of a tensor over the other axes of the mesh (tensor parallel); replicated if the
    tensor is on another mesh or on none."""
    sharding = spmd.get_sharding(tensor)
    if sharding is None or sharding.mesh_axes() != mesh.shape():
        return spmd.PartitionSpec(*(None for _ in tensor.shape))
    return functools.reduce(
        spmd.PartitionSpec.without, axes, spmd.PartitionSpec(*sharding.partition_spec(tensor.dim()))
    )


def _slot_value(module: nn.Module, name: str) -> torch.Tensor:
    """The tensor in a slot: a parameter, or its cast while a pass runs."""
    tensor = module._parameters[name]
    assert tensor is not None, "a slot is the place of a parameter"
    return tensor


def _fill_slots(values: _SlotValues | None) -> None:
    """Puts tensors, parameters or not, into the slots of modules."""
    values = values or {}
    for (module, name), value in values.items():
        module._parameters[name] = value  # type: ignore[assignment]  # a cast is no parameter
    # torch's recurrent modules keep a list of their weights, which they pass to the op.
    for module in {module for module, _ in values if isinstance(module, nn.RNNBase)}:
        module._flat_weights = [getattr(module, name) for name in module._flat_weights_names]
