"""Every aten call on the device: rule -> schema-derived form -> torch's decomposition -> a clear error.

A call is recorded by looking up its Entry under (operand metas, static arguments) and making a Node of it. All that is
slow (running the op on meta tensors, binding arguments to the rule) happens once per Entry, in `core.dispatch.infer`.
"""

import sys
from typing import Any

import torch

from .. import pace, seed
from ..dtypes import check_fits
from ..engine.unsynced import run_turns
from ..interrupt import raise_held
from ..ir.graph import Leaf, Node, Value, results
from ..ir.meta import Meta, dense_meta
from ..ir.op import Entry, Slot
from ..ir.source import THREADS, place_of
from ..lazy.cell import LOCK, Cell
from ..lazy.overlap import check_operands, elements_meet
from ..lazy.reads import operand, operand_of
from ..lazy.rebased import follow
from ..lazy.record import NOWHERE, backward_line, graph_task, record, record_here
from ..lazy.tensor import XlaTensor, alias, tensors_of, wrap
from ..lazy.threads import enter_thread
from ..lazy.views import View, read, read_view, write
from ..ops.lifting import LARGEST, is_one_number
from ..pjrt.transfer import host_array
from .infer import new_entry, reads_default_dtype
from .layouts import refuse_tensor
from .lists import entry_for
from .overloads import FUNCTION, MUTATION, VIEW, Plan
from .resolve import PLANS, plan_of

aten = torch.ops.aten

_count_writes = torch._C._increment_version  # autograd does so for what an op writes, but not for a list op
_getframe = sys._getframe


def dispatch(func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
    """Records one aten call; torch calls it for every op with a tensor of the device among its arguments."""
    plan = PLANS.get(func)
    if plan is None:
        plan = plan_of(func)
    try:
        THREADS.ring  # noqa: B018  # whether the thread has one
    except AttributeError:
        enter_thread()
    if pace.recorded_ops > pace.look_at:
        _look()  # before any operand is read: a run may donate what they are read from
    if plan.handler is not None:
        done = plan.handler(func, args, kwargs or {})
        if type(done) is Plan:
            plan = done  # the op is recorded as another one
        elif done is not NotImplemented:
            return done
    if plan.kind is VIEW:
        return _record_view(plan, args, kwargs or {})
    LOCK.acquire()
    try:
        key: list[Any] = []
        operands: list[Value] = []
        numbers: list[float | int] = []
        lifted = plan.lifted
        position = 0
        task = graph_task()
        for value in args:
            if type(value) is XlaTensor:
                key.append(value._meta.layout)
                view, cell = value._view, value._cell
                if view is not None:
                    operands.append(read_view(view, cell))
                elif cell.reads is None or plan.kind is MUTATION:  # what is written is written as it is stored
                    operands.append(cell.value)
                else:
                    operands.append(operand_of(cell))
            else:
                _scan(value, lifted[position], key, operands, numbers, plan)
            position += 1  # noqa: SIM113  # enumerate costs twice as much for two arguments
        if kwargs:
            for name, value in kwargs.items():
                if name not in plan.ignored:
                    key.append(name)
                    _scan(value, name in plan.lifted_names, key, operands, numbers, plan)
                elif name == "memory_format":  # the rule does not see it, but it decides the result's strides
                    key.append(value)
        signature = tuple(key)
        entry = plan.entries.get(signature)
        if entry is None:
            entry = _find(plan, signature, args, kwargs or {})
        if not plan.is_plain:
            operands = _look_at_data(plan, entry, operands, numbers, args, kwargs or {})
        # In autograd's own threads there is no caller's frame.
        node = record_here(entry, operands, numbers or (), _getframe(1) if task == -1 else None, task)
        if plan.kind is FUNCTION:
            metas = entry.metas
            if len(metas) == 1 and entry.layout is None:
                meta = metas[0]
                cell = Cell(node, meta)
                if plan.inherits_sharding:
                    _inherit(cell, args[0])
                return wrap(meta, cell)
            return _several(node, plan)
        assert plan.kind is MUTATION
        return _mutate(plan, node, args, kwargs or {})
    finally:
        LOCK.release()


def _find(plan: Plan, signature: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An entry that is new; or one whose types torch's default dtype decides, which then is a part of its key."""
    with_default = ("default", torch.get_default_dtype(), signature)
    entry = plan.entries.get(with_default)
    if entry is None:
        made = entry_for(plan, args, kwargs)
        key = with_default if reads_default_dtype(plan, args, kwargs, made.metas) else signature
        entry = plan.table.of(key, lambda: made)
    return entry


def _record_view(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> XlaTensor:
    """A view: a new tensor over the same cell; its op is recorded when the view is first read."""
    base = args[0]
    key: list[Any] = [base._meta]
    for value in args[1:]:
        _scan(value, False, key, [], [], plan)
    for name, value in kwargs.items():
        key.append(name)
        _scan(value, False, key, [], [], plan)
    signature = tuple(key)
    with LOCK:
        rule = plan.entries.get(signature)
        if rule is None:
            rule = plan.table.of(signature, lambda: new_entry(plan, args, kwargs))
        cell, parent = base._cell, base._view
        if parent is None and cell.reads is not None:
            parent = cell.reads.current()
        task = graph_task()
        code, instruction = place_of(_getframe(2)) if task == -1 else backward_line(task)
        made = alias(base, rule.meta, View(rule, parent, code, instruction))
        if base.requires_grad:
            follow(cell, made)
        return made


def _scan(
    value: Any, is_lifted: bool, key: list[Any], operands: list[Value], numbers: list[float | int], plan: Plan
) -> None:
    """Adds one argument to the key, and to the operands or lifted numbers."""
    kind = type(value)
    if kind is int:
        if is_lifted and value <= LARGEST:
            key.append(int)
            numbers.append(value)
        else:
            key.append(value)
    elif value is None or kind is str or kind is torch.dtype:
        key.append(value)
    elif kind is float:
        if is_lifted:
            key.append(float)
            numbers.append(value)
        else:
            # 1.0 equals 1 and 0.0 equals -0.0 as dict keys; they are different arguments.
            key.append(("f", value.hex()))
    elif kind is bool:
        key.append("True" if value else "False")
    elif kind is list or kind is tuple:
        key.append(len(value))
        if len(value) > 3 and type(value[0]) is XlaTensor and _scan_list(value, key, operands, plan):
            return
        if is_lifted and is_one_number(value):
            key.append((type(value[0]),))
            numbers.append(value[0])
            return
        for item in value:
            if type(item) is XlaTensor:
                key.append(item._meta.layout)
                operands.append(_read(item, plan))
            else:
                _scan(item, is_lifted, key, operands, numbers, plan)
    elif kind is XlaTensor:
        key.append(value._meta.layout)
        operands.append(_read(value, plan))
    elif isinstance(value, torch.Tensor):
        meta, operand = _host_operand(value, plan)
        key.append(meta)
        operands.append(operand)
    elif kind is complex:
        key.append(("c", value.real.hex(), value.imag.hex()))
    elif kind is torch._C.Generator:
        key.append(None)  # it gives the draw's seed, and is no part of the op
    else:
        key.append((kind, value))  # layouts, memory formats, devices


def _look_at_data(
    plan: Plan,
    entry: Entry,
    operands: list[Value],
    numbers: list[float | int],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> list[Value]:
    """What an op that is not plain does besides: looks at its data, draws; returns the operands that it reads."""
    if plan.bounds is not None:
        plan.bounds(args, kwargs)
    if plan.fills and numbers:
        check_fits(plan.name, numbers[0], entry.metas[0].dtype)
    if plan.draws:
        numbers.extend(seed.next_draw(_generator(args, kwargs)))
    return [] if plan.ignores_operands else operands


def _generator(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Generator | None:
    """The generator that a draw was given; some ops take it by position."""
    given = kwargs.get("generator")
    return given or next((value for value in args if type(value) is torch._C.Generator), None)


def _read(tensor: XlaTensor, plan: Plan) -> Value:
    """An operand's value: what is written is written as it is stored."""
    return read(tensor) if plan.kind is MUTATION else operand(tensor)


def _scan_list(tensors: Any, key: list[Any], operands: list[Value], plan: Plan) -> bool:
    """The quick way through a long list of device tensors none of which is a view, as optimizers pass them."""
    try:
        if any([tensor._view for tensor in tensors]):  # noqa: C419  # a list is faster than a generator
            return False
        if plan.kind is not MUTATION and any([tensor._cell.reads for tensor in tensors]):  # noqa: C419
            return False
        metas = [tensor._meta.layout for tensor in tensors]
        values = [tensor._cell.value for tensor in tensors]
    except AttributeError:  # a CPU tensor or None among them
        return False
    key.extend(metas)
    operands.extend(values)
    return True


def _host_operand(tensor: torch.Tensor, plan: Plan) -> tuple[Meta, Value]:
    """A CPU tensor among device tensors: taken where torch takes it on accelerators, else an error says what to do."""
    if isinstance(tensor, XlaTensor):
        return tensor._meta.layout, _read(tensor, plan)
    if tensor.device.type == "cpu" and (tensor.dim() == 0 or plan.takes_host_indices):
        meta = dense_meta(tensor.shape, tensor.dtype)
        if tensor.dim() == 0 and tensor.dtype in _SCALAR_KINDS:
            return meta, record(_scalar_entry(meta), (), (tensor.item(),), NOWHERE)
        return meta, Leaf(meta, host=host_array(tensor).copy())
    refuse_tensor(tensor)
    raise RuntimeError(
        f"{plan.name}: expected all tensors on xla:0, but one of shape {list(tensor.shape)} is on {tensor.device}; "
        'move it with .to("xla") (only 0-dim CPU tensors and CPU index tensors may be mixed in)'
    )


_SCALAR_KINDS = {torch.float32: "f", torch.float64: "f", torch.int64: "i", torch.int32: "i", torch.bool: "i"}


def _scalar_entry(meta: Meta) -> Any:
    """A 0-dim CPU tensor's value as a lifted number, so that a changing one costs neither an upload nor a program."""
    key = "scalar"
    plan = plan_of(aten.scalar_tensor.default)
    found = plan.entries.get((key, meta))
    if found is None:
        number = 1.0 if _SCALAR_KINDS[meta.dtype] == "f" else 1
        found = plan.table.of((key, meta), lambda: new_entry(plan, (number,), {"dtype": meta.dtype}))
    return found


def _several(node: Node, plan: Plan) -> Any:
    made = tensors_of(node)
    layout = node.entry.layout
    if layout is not None:
        tensors = iter(made)
        made = [next(tensors) if item is Slot else item for item in layout]
    return made if plan.returns_list else tuple(made)


def _inherit(cell: Cell, like: Any) -> None:
    """`zeros_like`, `clone` and their kin lie as the tensor they are like: so does an optimizer's state."""
    if type(like) is XlaTensor and like._view is None and like._meta.shape == cell.meta.shape:
        cell.sharding = like._cell.sharding
        cell.home = like._cell.home


def _mutate(plan: Plan, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    targets: list[Any] = []
    for where in plan.mutated:
        value = args[where] if type(where) is int else kwargs[where]  # type: ignore[index]  # a name
        targets.extend(value) if type(value) in (list, tuple) else targets.append(value)
    if len(targets) == 1 and len(args) > 1 and type(targets[0]) is XlaTensor:
        check_operands(plan.name, targets[0], args[1:])
    if plan.is_list:
        if len(targets) > 1 and elements_meet(node.operands, targets, args[1:]):
            return _element_by_element(plan, args, kwargs)
        _count_writes(targets)
    for target, value in zip(targets, results(node), strict=True):
        if type(target) is not XlaTensor:
            raise RuntimeError(f"{plan.name}: writes into a tensor on {target.device} from xla; move one of them first")
        if target._view is None:
            target._cell.write(value)
        else:
            write(target, value, node.code, node.instruction)
    if not plan.returns_targets:
        return None
    if len(targets) == 1 or (len(plan.overload._schema.returns) == 1 and not plan.returns_list):
        return targets[0]  # some write more than they return: _amp_update_scale_
    return tuple(targets)


def _element_by_element(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A list op some of whose elements share memory: each reads what those before it have written."""
    count = len(args[0])

    def at(i: int, value: Any) -> Any:
        return value[i : i + 1] if type(value) in (list, tuple) and len(value) == count else value

    for i in range(count):
        plan.overload(*[at(i, value) for value in args], **{name: at(i, value) for name, value in kwargs.items()})
    return tuple(args[0]) if plan.returns_targets else None


def _look() -> None:
    """Takes a Ctrl-C; runs the finished turns of a loop that nobody syncs, and a graph that is too long."""
    raise_held()
    run_turns()
