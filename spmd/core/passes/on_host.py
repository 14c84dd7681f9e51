"""Ops that the host computes in place of a program: few and small ones behind a value that is
read."""

from collections.abc import Sequence, Set
from weakref import WeakSet

import torch

from ..base import counters
from ..base.state import Scalar
from ..graph.graph import (
    UNPADDED,
    DeviceData,
    Node,
    Value,
    origin,
    results,
    topological,
    value_name,
)
from ..graph.meta import Meta
from ..graph.op import OpSpec
from ..run.pjrt import processes, transfer
from ..sharding.value import Sharding

# The most elements of a host-computed value.
LARGEST = 1 << 16
# The most ops behind a value that a read computes on the host.
_FEW = 16
# The same behind a count: of a matcher's boxes by rows.
LARGEST_OF_COUNTS = 1 << 22
# The same where no program runs, as in a plan, or none is to: a mask over all tokens of a batch.
LARGEST_IN_A_PLAN = 1 << 24


def has_host_kernel(node: Node, largest: int = LARGEST) -> bool:
    """True if the host can compute an op, whose arrays have at most so many elements."""
    if node.op.on_host is None or processes.several():
        return False
    return all(value.meta.numel <= largest for value in (*results(node), *node.operands))


def computed(nodes: Sequence[Node]) -> dict[object, DeviceData]:
    """Computes ops on the host, in order; returns their results by name."""
    by_name: dict[object, DeviceData] = {}
    for node in nodes:
        operands = [
            operand if type(operand) is DeviceData else by_name[value_name(operand)]
            for operand in node.operands
        ]
        data = compute(node.op, operands, node.numbers)
        for value, device_data in zip(results(node), data, strict=True):
            device_data.source = node.code, node.instruction
            by_name[value_name(value)] = device_data
    return by_name


# Host data of which the host has computed a count with rounding, and what it has computed of it.
# All small ops of such data alone are the host's: those of the device may round otherwise.
OWN: "WeakSet[DeviceData]" = WeakSet()


def decided(pending: Sequence[Value], count: Value | None) -> dict[object, DeviceData]:
    """Computes the host's part of what is pending; returns the results by name.

    count: a value that decides a number of rows. It is among the results where all ops behind it
    are exact, or round host data that no program has read. Rows that are counted are no results, as
    the device has them padded. Where a program computes the mask of rows, constants are among the
    results: the program would have them without padding.
    """
    needed, inputs = topological([] if count is None else [count])
    host_data = {data for data in inputs if data.host is not None}
    constants, made, _ = _parts(needed, {*OWN, *host_data})
    rounding = {node for node in needed if node.op.on_host is None}
    is_known = all(map(_is_small, needed)) and not any(data.is_abstract for data in inputs)
    if count is not None and not (is_known and rounding <= constants | made):
        needed = [
            value
            for value in pending
            if type(value) is Node and value.op.constant is not None
            if value.meta.numel <= LARGEST and count.meta.shape
        ]
    elif rounding:
        OWN.update(host_data)
    _, made, rows = _parts(topological(pending)[0], {*OWN})
    data = computed(topological([*needed, *made])[0])
    for node in made:
        OWN.update(data[value_name(value)] for value in results(node))
    rows -= {count and origin(count)}
    hidden = {value_name(value) for node in rows for value in results(node)}
    return {name: device_data for name, device_data in data.items() if name not in hidden}


def _parts(nodes: Sequence[Node], data: Set[Value]) -> tuple[set[Node], set[Node], set[Node]]:
    """Returns the small ops of constants alone; those of this data, too, into which counted rows
    may be written; those of counted rows."""
    constants, made, rows = set[Node](), set[Node](), set[Node]()
    for node in filter(_is_small, nodes):
        makers = {origin(operand) or operand for operand in node.operands} - constants
        if node.op.name == UNPADDED:
            rows.add(node)
        elif makers <= made | data:
            (made if makers else constants).add(node)
        elif node.op.on_host is not None and not rows.isdisjoint(makers):
            first = node.operands[0]
            is_written = first.meta.shape == node.meta.shape and origin(first) not in rows
            (made if is_written and makers <= made | data | rows else rows).add(node)
    return constants, made, rows


def _is_small(node: Node) -> bool:
    """True if the host can compute an op of a matcher: a box for each row."""
    return node.op.on_host_rounded is not None and all(
        value.meta.numel <= LARGEST_OF_COUNTS for value in (*results(node), *node.operands)
    )


def constant_ops(value: Value) -> list[Node] | None:
    """Returns the ops behind a constant value (no data and no changing Python number), if the host
    can compute them; else None."""
    nodes = host_computable_ops(value, LARGEST_IN_A_PLAN) or []
    is_known = all(origin(operand) is not None for node in nodes for operand in node.operands)
    is_known &= not any(type(number) is Scalar for node in nodes for number in node.numbers)
    return nodes if nodes and is_known else None


def host_computable_ops(value: Value, largest: int = LARGEST) -> list[Node] | None:
    """Returns the ops behind a value, in order, if they are few and the host can compute them all;
    else None.

    A read of such a value need not wait for a program: a sampler checks whether the step before
    this one was the last (`if timestep - 20 >= 0`), and would wait for the whole network. largest:
    the elements of an array that is small.
    """
    # Back from the value, until an op is one too many or has no kernel on the host.
    makers: set[Node] = set()
    stack = [value]
    while stack:
        operand = stack.pop()
        maker = origin(operand)
        if type(operand) is DeviceData and operand.is_abstract:
            return None
        if maker is not None and maker not in makers:
            if len(makers) == _FEW or not has_host_kernel(maker, largest):
                return None
            makers.add(maker)
            stack.extend(maker.operands)
    return sorted(makers, key=lambda node: node.serial)


def compute(
    op: OpSpec, inputs: Sequence[DeviceData], numbers: Sequence[float | int]
) -> list[DeviceData]:
    """Returns a host-computed op's results as host data, from its operands' data; counted, as every
    op on the host."""
    counters.add("host_ops")
    assert op.on_host_rounded is not None
    operands = [_host_tensor(device_data) for device_data in inputs]
    with torch.no_grad():
        result = op.on_host_rounded(operands, numbers)
    return [
        DeviceData(
            meta,
            # an op in place keeps the dtype and the shape of its target
            host=transfer.host_array(tensor.to(meta.dtype).expand(meta.shape)).copy(),
            sharding=_sharding(meta, inputs),
        )
        for meta, tensor in zip(op.metas, result, strict=True)
    ]


def _host_tensor(device_data: DeviceData) -> torch.Tensor:
    """Returns the data as a CPU tensor."""
    array = device_data.host
    # Ops on the host only read their operands, so that sharing is safe.
    if array is not None and array.dtype.kind in "iub" and array.flags.writeable:
        return torch.from_numpy(array)
    if array is None:
        device_data.check()
        array = transfer.download(device_data.placed()[0], device_data.meta.shape)
    return transfer.host_tensor(array)


def _sharding(meta: Meta, operands: Sequence[DeviceData]) -> Sharding | None:
    """Returns the sharding of an operand of the same rank whose sharded dims are as long as the
    value's; else None."""
    for operand in operands:
        sharding, shape = operand.sharding, operand.meta.shape
        if sharding is not None and len(shape) == len(meta.shape):
            sharded_dims = [dim for dim, dim_spec in enumerate(sharding.spec.dims) if dim_spec.axes]
            if all(shape[dim] == meta.shape[dim] for dim in sharded_dims):
                return sharding
    return None
