"""Ops that the host computes in place of a program: few and small ones behind a value that is
read."""

from collections.abc import Sequence

import torch

from ..base import counters
from ..base.state import Scalar
from ..graph.graph import DeviceData, Name, Node, Value, origin, results, value_name
from ..graph.meta import Meta
from ..graph.op import OpSpec
from ..run.pjrt import processes, transfer
from ..sharding.value import Sharding

# The most elements of a host-computed value.
LARGEST = 1 << 16
# The most ops behind a value that a read computes on the host.
_FEW = 16
# The same where no program runs, as in a plan, or none is to: a mask over all tokens of a batch.
LARGEST_IN_A_PLAN = 1 << 24


def has_host_kernel(node: Node, largest: int = LARGEST) -> bool:
    """True if the host can compute an op, whose arrays have at most so many elements."""
    if node.op.on_host is None or processes.several():
        return False
    return all(value.meta.numel <= largest for value in (*results(node), *node.operands))


def computed(value: Value, nodes: Sequence[Node]) -> DeviceData:
    """Computes a value on the host, by the ops behind it (see `host_computable_ops`)."""
    by_name: dict[Name, DeviceData] = {}
    for node in nodes:
        operands = [
            operand if type(operand) is DeviceData else by_name[value_name(operand)]
            for operand in node.operands
        ]
        by_name |= zip(
            map(value_name, results(node)), compute(node.op, operands, node.numbers), strict=True
        )
    return value if type(value) is DeviceData else by_name[value_name(value)]


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
    assert op.on_host is not None
    operands = [_host_tensor(device_data) for device_data in inputs]
    with torch.no_grad():
        result = op.on_host(operands, numbers)
    return [
        DeviceData(meta, host=transfer.host_array(tensor).copy(), sharding=_sharding(meta, inputs))
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
