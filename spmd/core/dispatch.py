"""Every aten call on the device: rule -> schema-derived form -> torch's decomposition -> a clear error.

A call is recorded by looking up its Entry under (operand metas, static arguments) and making a Node of it. All that is
slow (running the op on meta tensors, binding arguments to the rule) happens once per Entry, in `core.entries`.
"""

import sys
from types import CodeType, FrameType
from typing import Any

import torch

from . import bounds, metrics, random
from .barrier import run_turns, sync
from .config import config
from .dtypes import check_fits
from .entries import new_entry
from .foreach import entry_for
from .interrupt import raise_held
from .ir import Leaf, Line, Meta, Node, Slot, Value, dense_meta, meta_of, results
from .ops.lifting import base_name, is_one_number
from .ops.shape import PARTS, part
from .overlap import check_operands
from .plans import FUNCTION, MUTATION, VIEW, Plan, make_plan
from .precision import is_product, matmul_precision, reads_float32, with_precision
from .runtime import host_array
from .source import (
    FORWARD_CODE,
    FORWARD_INSTRUCTION,
    FORWARD_NUMBER,
    RING,
    place_of,
    user_frame,
)
from .specials import SPECIALS
from .tensor import LOCK, Cell, XlaTensor, _threads, alias, enter_thread, wrap
from .views import View, check_bounds, read_use, read_view, strided_rule, write

aten = torch.ops.aten

# By overload; by (overload, precision) for products that are not full float32.
PLANS: dict[Any, Plan] = {}

_graph_task = torch._C._current_graph_task_id
_autograd_node = torch._C._current_autograd_node
_next_sequence = torch._C._autograd._get_sequence_nr
_RING_MASK = RING - 1
_getframe = sys._getframe


def dispatch(func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
    """Records one aten call; torch calls it for every op with a tensor of the device among its arguments."""
    plan = PLANS.get(func)
    if plan is None:
        plan = PLANS[func] = make_plan(func, SPECIALS)
        plan.bounds = bounds.check_of(base_name(func))
        if plan.handler is None and is_product(plan):
            plan.handler = _product
    if not hasattr(_threads, "entered"):
        enter_thread()
    metrics.recorded_ops += 1
    if metrics.recorded_ops > metrics.look_at:
        _look()  # before any operand is read: a run may donate what they are read from
    if plan.handler is not None:
        done = plan.handler(func, args, kwargs or {})
        if done is not NotImplemented:
            return done
    if plan.kind is VIEW:
        return _record_view(plan, args, kwargs or {}, _getframe(1))
    LOCK.acquire()
    try:
        key: list[Any] = []
        operands: list[Value] = []
        numbers: list[float | int] = []
        lifted = plan.lifted
        position = 0
        in_backward_task = _graph_task()
        in_backward = in_backward_task != -1
        for value in args:
            if type(value) is XlaTensor:
                key.append(value._meta.layout)
                view, cell = value._view, value._cell
                if view is not None:
                    operands.append(read_view(view, cell))
                elif cell.use is None:
                    operands.append(cell.value)
                else:
                    operands.append(_read_stored(cell, plan, in_backward))
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
            entry = _remember(plan, signature, entry_for(plan, args, kwargs or {}, PLANS))
        if plan.bounds is not None:
            plan.bounds(args)
        if plan.fills and numbers:
            check_fits(plan.name, numbers[0], entry.metas[0].dtype)
        if plan.draws:
            numbers.extend(random.next_draw((kwargs or {}).get("generator")))
        if plan.ignores_operands:
            operands = []

        if in_backward:
            code, instruction = _backward_place(in_backward_task)
            current = _autograd_node()
            sequence = -1 if current is None else current._sequence_nr()
        else:
            code, instruction = place_of(_getframe(1))
            sequence = -1
            forward = _next_sequence() - 1
            slot = forward & _RING_MASK
            if FORWARD_NUMBER[slot] != forward:
                FORWARD_NUMBER[slot] = forward
                FORWARD_CODE[slot] = code
                FORWARD_INSTRUCTION[slot] = instruction

        node = Node(entry, operands, numbers or (), code, instruction, sequence)
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


def _remember(plan: Plan, signature: tuple[Any, ...], entry: Any) -> Any:
    """Puts an entry into its op's table; a table that has grown too large is emptied first."""
    if len(plan.entries) >= config.entry_cache_size:
        plan.entries.clear()
        metrics.add("entry_tables_emptied")
    plan.entries[signature] = entry
    return entry


def _record_view(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType | None) -> XlaTensor:
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
            rule = _remember(plan, signature, new_entry(plan, args, kwargs))
        cell, parent, task = base._cell, base._view, _graph_task()
        if parent is None and cell.use is not None and (cell.use.active or task != -1):
            parent = cell.use
        code, instruction = _backward_place(task) if task != -1 else place_of(frame)
        return alias(base, rule.meta, View(rule, parent, code, instruction))


_last_backward: tuple[int, CodeType | None, int] = (-1, None, 0)


def _backward_place(task: int) -> tuple[CodeType | None, int]:
    """The user's line that called backward: found once for each run of autograd's engine."""
    global _last_backward
    if _last_backward[0] != task:
        _last_backward = (task, *user_frame(3))
    return _last_backward[1], _last_backward[2]


def _scan(
    value: Any, is_lifted: bool, key: list[Any], operands: list[Value], numbers: list[float | int], plan: Plan
) -> None:
    """Adds one argument to the key, and to the operands or lifted numbers."""
    kind = type(value)
    if kind is int:
        if is_lifted:
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
        if len(value) > 3 and type(value[0]) is XlaTensor and _scan_list(value, key, operands):
            return
        if is_lifted and is_one_number(value):
            key.append((type(value[0]),))
            numbers.append(value[0])
            return
        for item in value:
            if type(item) is XlaTensor:
                key.append(item._meta.layout)
                view = item._view
                operands.append(item._cell.value if view is None else read_view(view, item._cell))
            else:
                _scan(item, is_lifted, key, operands, numbers, plan)
    elif kind is XlaTensor:
        key.append(value._meta.layout)
        view = value._view
        operands.append(value._cell.value if view is None else read_view(view, value._cell))
    elif isinstance(value, torch.Tensor):
        meta, operand = _host_operand(value, plan)
        key.append(meta)
        operands.append(operand)
    elif kind is complex:
        key.append(("c", value.real.hex(), value.imag.hex()))
    else:
        key.append((kind, value))  # layouts, memory formats, devices


def _scan_list(tensors: Any, key: list[Any], operands: list[Value]) -> bool:
    """The quick way through a long list of device tensors none of which is a view, as optimizers pass them."""
    try:
        if any([tensor._view for tensor in tensors]):  # noqa: C419  # a list is faster than a generator
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
        view, cell = tensor._view, tensor._cell
        return tensor._meta.layout, cell.value if view is None else read_view(view, cell)
    if tensor.device.type == "cpu" and (tensor.dim() == 0 or plan.takes_host_indices):
        meta = dense_meta(tensor.shape, tensor.dtype)
        if tensor.dim() == 0 and tensor.dtype in _SCALAR_KINDS:
            return meta, Node(_scalar_entry(meta), (), (tensor.item(),))
        return meta, Leaf(meta, host=host_array(tensor).copy())
    raise RuntimeError(
        f"{plan.name}: expected all tensors on xla:0, but one of shape {list(tensor.shape)} is on {tensor.device}; "
        'move it with .to("xla") (only 0-dim CPU tensors and CPU index tensors may be mixed in)'
    )


_SCALAR_KINDS = {torch.float32: "f", torch.float64: "f", torch.int64: "i", torch.int32: "i", torch.bool: "i"}


def _scalar_entry(meta: Meta) -> Any:
    """A 0-dim CPU tensor's value as a lifted number, so that a changing one costs neither an upload nor a program."""
    key = "scalar"
    plan = PLANS.setdefault(aten.scalar_tensor.default, make_plan(aten.scalar_tensor.default, SPECIALS))
    found = plan.entries.get((key, meta))
    if found is None:
        number = 1.0 if _SCALAR_KINDS[meta.dtype] == "f" else 1
        found = new_entry(plan, (number,), {"dtype": meta.dtype})
        plan.entries[(key, meta)] = found
    return found


def _several(node: Node, plan: Plan) -> Any:
    made = [wrap(value.meta, Cell(value, value.meta)) for value in results(node)]
    layout = node.entry.layout
    if layout is not None:
        tensors = iter(made)
        made = [next(tensors) if item is Slot else item for item in layout]
    return made if plan.returns_list else tuple(made)


def _inherit(cell: Cell, like: Any) -> None:
    """`zeros_like` and its kin lie as the tensor they are like."""
    if type(like) is XlaTensor and like._view is None and like._meta.shape == cell.meta.shape:
        cell.sharding = like._cell.sharding
        cell.home = like._cell.home


def _read_stored(cell: Cell, plan: Plan, in_backward: bool) -> Value:
    """The value of a cell that forward and backward ops read in another layout than the one it is stored in."""
    if plan.kind is not MUTATION and (cell.use.active or in_backward):
        return read_use(cell.use)
    return cell.value


def _mutate(plan: Plan, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    targets: list[Any] = []
    for where in plan.mutated:
        value = args[where] if type(where) is int else kwargs[where]  # type: ignore[index]  # a name
        targets.extend(value) if type(value) in (list, tuple) else targets.append(value)
    if len(targets) == 1 and len(args) > 1 and type(targets[0]) is XlaTensor:
        check_operands(plan.name, targets[0], args[1:])
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


def _product(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A product: another op where the user allows less than full float32 at this call."""
    setting = matmul_precision()
    if setting == "highest" or not reads_float32(args):
        return NotImplemented
    if (func, setting) not in PLANS:
        PLANS[func, setting] = with_precision(func, setting)
    metrics.recorded_ops -= 1  # it is one op
    return dispatch((func, setting), None, args, kwargs)


def _split(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """split, split_with_sizes, unbind: several views, each of which is a slice or a selection."""
    base = args[0]
    arguments = (*args[1:], *kwargs.values())
    count = _part_count(func, base._meta, arguments)
    made = []
    for index in range(count):
        overload, part_arguments = part(func, base._meta.shape, arguments, index)
        plan = PLANS.get(overload)
        if plan is None:
            plan = PLANS[overload] = make_plan(overload, SPECIALS)
        metrics.recorded_ops += 1
        made.append(_record_view(plan, (base, *part_arguments), {}, _getframe(2)))
    return made


def _part_count(func: Any, meta: Meta, arguments: tuple[Any, ...]) -> int:
    """How many views torch makes of it; torch itself, with its own errors, is asked once per layout and arguments."""
    key = (func, meta, *(tuple(value) if isinstance(value, list) else value for value in arguments))
    found = _part_counts.get(key)
    if found is None:
        found = _part_counts[key] = len(func(meta.make(), *arguments))
    return found


_part_counts: dict[tuple[Any, ...], int] = {}


def _as_strided(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> XlaTensor:
    base = args[0]
    bound = dict(zip(("size", "stride", "storage_offset"), args[1:], strict=False)) | kwargs
    offset = bound.get("storage_offset")
    made = base._meta.make().as_strided(bound["size"], bound["stride"], offset)
    meta = meta_of(made)
    check_bounds(base._cell.meta, meta)
    with LOCK:
        code, instruction = user_frame(2)
        rule = strided_rule(base._cell.meta, meta)
        return alias(base, meta, View(rule, None, code, instruction))


_hinted = False


def _look() -> None:
    """Takes a Ctrl-C; runs the finished turns of a loop nobody syncs, and a graph that is too long, with one hint."""
    global _hinted
    raise_held()
    if metrics.recorded_ops - metrics.synced_ops <= config.max_pending_ops:
        run_turns()
        return
    if not _hinted:
        _hinted = True
        print(
            f"spmd: {config.max_pending_ops:,} ops recorded without a barrier; running them now. Call spmd.sync() once "
            f"per step, so that every step is the same program. Recording at {Line(*user_frame(2))}"
        )
    sync()


for _overload in PARTS:
    SPECIALS[_overload] = _split
SPECIALS[aten.as_strided.default] = _as_strided

XlaTensor.__torch_dispatch__ = staticmethod(dispatch)  # type: ignore[method-assign]
