"""Dispatch of every aten call on the device: rule -> schema-derived form -> torch's
decomposition -> a clear error.

A call is recorded by looking up its OpSpec under (operand metas, static arguments) and making a
Node of it. All slow work (running the op on meta tensors, binding arguments to the rule) happens
once per OpSpec, in `core.record.infer`.
"""

# Why the path of a known op is one long function: a call of a Python function costs about as much
# as the lookup of an op spec. What is rare (views, draws, checks of data, list ops) is in functions
# of its own.

import functools
import sys
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_map_only

from ..base import seed
from ..base.config import config
from ..base.dtypes import check_fits
from ..base.interrupt import raise_held
from ..base.pace import pace
from ..base.state import Scalar, active_observation
from ..graph.graph import LARGEST, DeviceData, Node, Value, is_one_number, results
from ..graph.meta import Meta, dense_meta
from ..graph.op import OpSpec, Slot
from ..graph.source import THREADS, at_user_line, place_of
from ..run.pjrt.transfer import host_array
from .calls.lists import in_groups, op_for
from .infer import new_op, reads_default_dtype
from .memory_formats import cure_of, refuse_tensor
from .overlap import check_operands, elements_overlap
from .overloads import FUNCTION, MUTATION, VIEW, Args, Kwargs, Plan, TorchValue, aten, written
from .reads import operand, operand_of
from .record import NOWHERE, at_once, backward_line, graph_task, record, record_here
from .resolve import PLANS, plan_of
from .storage import LOCK, Storage
from .tensor import XlaTensor, alias, tensors_of, wrap
from .threads import enter_thread
from .view_rebase import follow
from .views import View, read, write

Key = list[Hashable]  # of an op: what of its arguments is static
Numbers = list[float | int]

# autograd does so for the tensor that an op writes, but not for a list op
_count_writes = torch._C._increment_version
_getframe = sys._getframe


def dispatch(
    func: OpOverload, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
) -> TorchValue:
    """Records one aten call; torch calls it for every op with a tensor of the device among its
    arguments."""
    # One dict lookup a call; the plan is made at the first.
    plan = PLANS.get(func)
    if plan is None:
        plan = plan_of(func)
    try:
        THREADS.ring  # noqa: B018  # whether the thread has one
    except AttributeError:
        enter_thread()
    if pace.recorded_ops > pace.look_at:
        _poll()  # before any operand is read: a run may donate the buffers that they are read from
    try:
        if plan.handler is not None:
            result = plan.handler(func, args, kwargs or {})
            if type(result) is Plan:
                plan = result  # the op is recorded as another one
            elif result is not NotImplemented:
                return result
        if plan.kind is VIEW:
            return _record_view(plan, args, kwargs or {})
        LOCK.acquire()
        try:
            key: Key = []
            operands: list[Value] = []
            numbers: Numbers = []
            scalar_args = plan.scalar_args
            position = 0
            task = graph_task()
            for value in args:
                if type(value) is XlaTensor:
                    key.append(value._meta.layout)
                    view, storage = value._view, value._storage
                    if view is not None:
                        operands.append(view.value_of(storage))
                    elif storage.reads is None or plan.kind is MUTATION:
                        # a write is in the stored sharding
                        operands.append(storage.value)
                    else:
                        operands.append(operand_of(storage))
                else:
                    _scan(value, scalar_args[position], key, operands, numbers, plan)
                position += 1  # noqa: SIM113  # enumerate costs twice as much for two arguments
            if kwargs:
                for name, value in kwargs.items():
                    if name not in plan.ignored:
                        key.append(name)
                        _scan(
                            value, name in plan.scalar_argument_names, key, operands, numbers, plan
                        )
                    elif name == "memory_format":
                        # the rule does not see it, but it decides the result's strides
                        key.append(value)
            signature = tuple(key)
            op = plan.entries.get(signature)
            if op is None:
                op = _resolve_op(plan, signature, args, kwargs or {})
            if not plan.is_plain:
                operands = _checked_operands(plan, op, operands, numbers, args, kwargs or {})
            # While tokens are decoded, the host computes small integers (see `AtOnce`).
            host_lists = at_once.value
            if (
                host_lists
                and plan.kind is FUNCTION
                and (data := host_lists.computed(op, operands, numbers)) is not None
            ):
                return wrap(op.metas[0], Storage(data, op.metas[0]))
            # In autograd's own threads there is no caller's frame.
            node = record_here(
                op, operands, numbers or (), _getframe(1) if task == -1 else None, task
            )
            if plan.kind is FUNCTION:
                metas = op.metas
                # Nearly all ops: no list of results, no iterator.
                if len(metas) == 1 and op.layout is None:
                    meta = metas[0]
                    storage = Storage(node, meta)
                    if plan.inherits_sharding:
                        _inherit(storage, args[0])
                    return wrap(meta, storage)
                return _torch_results(node, plan)
            assert plan.kind is MUTATION
            return _mutate(plan, node, args, kwargs or {})
        finally:
            LOCK.release()
    except (RuntimeError, LookupError, TypeError, ValueError) as error:
        at_user_line(error)
        raise


def _resolve_op(plan: Plan, signature: tuple[Hashable, ...], args: Args, kwargs: Kwargs) -> OpSpec:
    """Returns an op spec that dispatch has not found by its signature: a new one, or one filed with
    torch's default dtype, which decides a dtype of the op."""
    with_default = ("default", torch.get_default_dtype(), signature)
    if (op := plan.entries.get(with_default)) is not None:
        return op
    observing = active_observation.value
    if observing is not None:
        args, kwargs = tree_map_only(torch.SymFloat, observing.plain, (args, kwargs))
    result: Any = op_for(plan, args, kwargs)  # a view op has a ViewRule
    key = with_default if reads_default_dtype(plan, args, kwargs, result.metas) else signature
    return plan.table.of(key, lambda: result)


def _record_view(plan: Plan, args: Args, kwargs: Kwargs) -> XlaTensor:
    """A view: a new tensor over the same storage; its op is recorded when the view is first
    read."""
    base = args[0]
    # Only the key is filled: a view has one operand and no scalar arguments.
    key: Key = [base._meta]
    for value in args[1:]:
        _scan(value, False, key, [], [], plan)
    for name, value in kwargs.items():
        key.append(name)
        _scan(value, False, key, [], [], plan)
    signature = tuple(key)
    with LOCK:
        rule = plan.entries.get(signature)
        if rule is None:
            rule = plan.table.of(signature, lambda: new_op(plan, args, kwargs))
        storage, parent = base._storage, base._view
        if parent is None and storage.reads is not None:
            parent = storage.reads.current()  # the view of a gathered parameter
        task = graph_task()
        code, instruction = place_of(_getframe(2)) if task == -1 else backward_line(task)
        result = alias(base, rule.meta, View(rule, parent, code, instruction))
        if base.requires_grad:
            follow(storage, result)
        return result


def _scan(
    value: TorchValue,
    is_scalar_argument: bool,
    key: Key,
    operands: list[Value],
    numbers: Numbers,
    plan: Plan,
) -> None:
    """Adds one argument to the key, and to the operands or scalar arguments."""
    kind = type(value)
    if kind is int:
        if is_scalar_argument and value <= LARGEST:
            key.append(int)
            numbers.append(value)
        else:
            key.append(value)
    elif value is None or kind is str or kind is torch.dtype:
        key.append(value)
    elif kind is float:
        if is_scalar_argument:
            key.append(float)
            numbers.append(value)
        else:
            # 1.0 equals 1 and 0.0 equals -0.0 as dict keys; they are different arguments.
            key.append(("f", value.hex()))
    elif kind is bool:
        key.append("True" if value else "False")
    elif kind is list or kind is tuple:
        key.append(len(value))
        if (
            len(value) > 3  # as optimizers pass them
            and type(value[0]) is XlaTensor
            and _scan_list(value, key, operands, plan)
        ):
            return
        observing = active_observation.value if is_scalar_argument else None
        if observing is not None:
            value = observing.scalars(value)
        if is_scalar_argument and is_one_number(value):
            # a tuple of the type: the key of the number alone is the type
            key.append((float if isinstance(value[0], float) else int,))
            numbers.append(value[0])
            return
        for item in value:
            if type(item) is XlaTensor:
                key.append(item._meta.layout)
                operands.append(_operand_value(item, plan))
            else:
                _scan(item, is_scalar_argument, key, operands, numbers, plan)
    elif kind is XlaTensor:
        key.append(value._meta.layout)
        operands.append(_operand_value(value, plan))
    elif isinstance(value, torch.Tensor):
        meta, operand = _host_operand(value, plan)
        key.append(meta)
        operands.append(operand)
    elif kind is complex:
        key.append(("c", value.real.hex(), value.imag.hex()))
    elif kind is torch.SymFloat:
        # Its value is a guard where the argument is static.
        observing = active_observation.value if is_scalar_argument else None
        number = float(value) if observing is None else observing.scalar(value)
        _scan(number, is_scalar_argument, key, operands, numbers, plan)
    elif kind is Scalar:
        key.append(float)
        numbers.append(value)
    elif kind is torch._C.Generator:
        key.append(None)  # it gives the draw's seed, and is not part of the op
    else:
        key.append((kind, value))  # layouts, memory formats, devices


def _checked_operands(
    plan: Plan, op: OpSpec, operands: list[Value], numbers: Numbers, args: Args, kwargs: Kwargs
) -> list[Value]:
    """Checks the host data of an op that is not plain, and returns its operands. A draw's key joins
    the scalar arguments.
    """
    if plan.check_data is not None:
        plan.check_data(*args, **kwargs)
    if plan.fills and numbers:
        check_fits(plan.name, numbers[0], op.metas[0].dtype)
    if plan.draws:
        numbers.extend(seed.next_draw(_generator(args, kwargs)))
    return [] if plan.ignores_operands else operands


def _generator(args: Args, kwargs: Kwargs) -> torch.Generator | None:
    """The generator passed to a draw; some ops take it by position."""
    return kwargs.get("generator") or next(
        (value for value in args if type(value) is torch._C.Generator), None
    )


def _operand_value(tensor: XlaTensor, plan: Plan) -> Value:
    """An operand's value; a mutation reads it in the stored sharding."""
    return read(tensor) if plan.kind is MUTATION else operand(tensor)


def _scan_list(tensors: Sequence[XlaTensor], key: Key, operands: list[Value], plan: Plan) -> bool:
    """Scans a long list of device tensors without views quickly, as optimizers pass them; False for
    other lists."""
    try:
        if any([tensor._view for tensor in tensors]):  # noqa: C419  # a list is faster than a generator
            return False
        if plan.kind is not MUTATION and any([tensor._storage.reads for tensor in tensors]):  # noqa: C419
            return False
        metas = [tensor._meta.layout for tensor in tensors]
        values = [tensor._storage.value for tensor in tensors]
    except AttributeError:  # a CPU tensor or None among them
        return False
    key.extend(metas)
    operands.extend(values)
    return True


def _host_operand(tensor: torch.Tensor, plan: Plan) -> tuple[Meta, Value]:
    """(key, operand) of a CPU tensor among device tensors; raises where torch takes none on
    accelerators."""
    if isinstance(tensor, XlaTensor):  # of a user's subclass
        return tensor._meta.layout, _operand_value(tensor, plan)
    if tensor.device.type == "cpu" and (tensor.dim() == 0 or plan.takes_host_indices):
        meta = dense_meta(tensor.shape, tensor.dtype)
        if tensor.dim() == 0 and tensor.dtype in _SCALAR_DTYPES:
            return meta, record(_scalar_op(tensor.dtype), (), (tensor.item(),), NOWHERE)
        return meta, DeviceData(meta, host=host_array(tensor).copy())
    refuse_tensor(tensor)
    name = next(filter(None, (name_of(tensor) for name_of in names_of)), "")
    raise RuntimeError(
        f"{plan.name}: expected all tensors on xla:0, but one of shape {list(tensor.shape)}"
        f"{f' ({name})' if name else ''} is on {tensor.device}; {cure_of(name)}"
    )


# Functions that return the user's name of a tensor, for errors; "" if unknown.
names_of: list[Callable[[torch.Tensor], str]] = []
_SCALAR_DTYPES = {torch.float32, torch.float64, torch.int64, torch.int32, torch.bool}


@functools.cache
def _scalar_op(dtype: torch.dtype) -> OpSpec:
    """The op of a 0-dim CPU tensor's value as a scalar argument: a new value costs neither an
    upload nor a program."""
    return new_op(
        plan_of(aten.scalar_tensor.default),
        (1.0 if dtype.is_floating_point else 1,),
        {"dtype": dtype},
    )


def _torch_results(node: Node, plan: Plan) -> TorchValue:
    """The results of an op as torch returns several: a list or tuple, with None and numbers between
    the tensors (`OpSpec.layout`)."""
    result = tensors_of(node)
    layout = node.op.layout
    if layout is not None:
        queue = iter(result)
        result = [next(queue) if item is Slot else item for item in layout]
    return result if plan.returns_list else tuple(result)


def _inherit(storage: Storage, like: torch.Tensor) -> None:
    """Gives the result of `zeros_like`, `clone` and similar ops its operand's sharding: optimizer
    state gets it so."""
    if (
        isinstance(like, XlaTensor)
        and like._view is None
        and like._meta.shape == storage.meta.shape
    ):
        storage.sharding = like._storage.sharding
        storage.home = like._storage.home


def _mutate(plan: Plan, node: Node, args: Args, kwargs: Kwargs) -> TorchValue:
    """Writes the results of an in-place op into its targets, and returns them."""
    targets = written(plan.overload, args, kwargs)
    # torch refuses a write that changes what the op still reads.
    if len(targets) == 1 and len(args) > 1 and isinstance(targets[0], XlaTensor):
        check_operands(plan.name, targets[0], args[1:])
    if plan.is_list:
        # Where an element reads what an earlier one writes: one op for each element, in order.
        if len(targets) > 1 and elements_overlap(node.operands, targets, args[1:]):
            return in_groups(plan.overload, args, kwargs, [[i] for i in range(len(targets))])
        _count_writes(targets)
    for target, value in zip(targets, results(node), strict=True):
        if not isinstance(target, XlaTensor):
            raise RuntimeError(
                f"{plan.name}: writes into a tensor on {target.device} from xla; move one of them "
                "first"
            )
        if target._view is None:
            target._storage.write(value)
        else:
            write(target, value, node.code, node.instruction)
    return plan.returned(targets)


# Called between two ops, when `pace` has counted enough of them since the last look.
between_ops: list[Callable[[], None]] = []


def _poll() -> None:
    """Raises a delayed Ctrl-C; calls packages, which may run recorded ops: finished iterations of a
    loop."""
    raise_held()
    # A package schedules the next look itself.
    if not between_ops:
        pace.look_after(config.max_pending_ops)
    for look in between_ops:
        look()
