"""The settings of the partitioner while our programs are traced, and its report of the shardings it
chose."""

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from ...ops import sharded
from ..base import messages
from ..base.config import LOGS_WARNINGS, config
from ..base.jax_private import (
    GSPMDSharding,
    hlo,
    ir,
    sdy,
    set_log_level,
    use_shardy_partitioner,
    xla_client,
)
from ..base.state import PerThread, while_any
from .topology import grid, stand_in
from .value import Sharding

_P = ParamSpec("_P")
_R = TypeVar("_R")

if use_shardy_partitioner is None:
    config.partitioner = "shardy"

_of_program = PerThread("")  # that of the program which the thread compiles, "": the config's


def partitioner() -> str:
    """Returns the name of the partitioner of the program that this thread compiles."""
    return _of_program.value or config.partitioner


def by_shardy_where_needed(compiling: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorates what compiles a program: one that GSPMD cannot partition is compiled by Shardy."""

    @wraps(compiling)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return compiling(*args, **kwargs)
        except sharded.NeedsShardyError as error:
            messages.say(f"a program is partitioned by Shardy: {error}", "partitioner")
        with _of_program.held("shardy"):
            return compiling(*args, **kwargs)

    return call


@contextlib.contextmanager
def compiler_context() -> Iterator[None]:
    """Sets the state of JAX that our tracing needs, whatever the user's own JAX code has set:
    64-bit types, the chosen partitioner, operands of different ranks and dtypes."""
    is_shardy = partitioner() == "shardy"
    if use_shardy_partitioner is None and not is_shardy:
        raise ValueError(
            f"config.partitioner: jax {jax.__version__} has no 'gspmd' any more; set it to 'shardy'"
        )
    with (
        jax.enable_x64(True),
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
        contextlib.nullcontext()
        if use_shardy_partitioner is None
        else use_shardy_partitioner(is_shardy),
        contextlib.nullcontext() if is_shardy else _without_notice(),
    ):
        yield


_quiet = while_any(partial(set_log_level, 2), partial(set_log_level, 1))


def _without_notice() -> contextlib.AbstractContextManager[None]:
    """Hides XLA's warning that GSPMD's propagation will go away (jax 0.10 logs it at each compile,
    later ones once).

    The level of XLA's entire log is above warnings while any thread is in this context. A level
    that the user has set stays.
    """
    is_set = jax.config.jax_logging_level not in (None, "NOTSET")  # type: ignore[attr-defined]
    return contextlib.nullcontext() if is_set or not LOGS_WARNINGS else _quiet()


# --- the partitioner's choice ---------------------------------------------------------------------

_report_p = Primitive("spmd_report_sharding")
_report_p.def_impl(lambda value, *, callback: value)
_report_p.def_abstract_eval(lambda value, *, callback: value)


def report_sharding(
    value: jax.Array, callback: Callable[[xla_client.HloSharding], None]
) -> jax.Array:
    """Returns the value; when the program is compiled, the partitioner passes its `HloSharding` of
    it to `callback`.

    Like `jax.debug.inspect_array_sharding`, without its limits: no mesh has to name the sharding,
    and nothing happens at a run.
    """
    return _report_p.bind(value, callback=callback)


def _lower_report(
    context: mlir.LoweringRuleContext,
    value: ir.Value,
    *,
    callback: Callable[[xla_client.HloSharding], None],
) -> list[ir.Value]:
    """Lowers `report_sharding` to XLA's custom call `InspectSharding`; the value stays as it is."""
    key = xla_client.encode_inspect_sharding_callback(callback)
    # The program has the callback's address alone, and must keep it alive.
    context.module_context.add_keepalive(callback)
    _custom_call("InspectSharding", value, backend_config=key)
    return [value]


mlir.register_lowering(_report_p, _lower_report)


def reported_sharding(tiling: xla_client.HloSharding, mesh: Sharding) -> jax.sharding.Sharding:
    """Returns the partitioner's report of a value in a program over this mesh as a jax sharding."""
    return GSPMDSharding(
        list(grid(mesh.device_ids, (len(mesh.device_ids),), mesh.target or stand_in.value)), tiling
    )


# --- two values of one sharding -------------------------------------------------------------------

_shard_as_p = Primitive("spmd_shard_alike")
_shard_as_p.multiple_results = True
_shard_as_p.def_impl(lambda x, y: [x, y])
_shard_as_p.def_abstract_eval(lambda x, y: [x, y])
_GROUP = object()


def shard_as(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the values, of one shape; the partitioner gives both the same sharding."""
    result = _shard_as_p.bind(x, y)
    return result[0], result[1]


def _lower_shard_as(context: mlir.LoweringRuleContext, x: ir.Value, y: ir.Value) -> list[ir.Value]:
    """Lowers `shard_as`: both values join a new shard group of the module."""
    # Groups are numbered by module, so that all processes lower the same text: a module's list of
    # keepalives is shared by all its functions.
    group = sum(keepalive is _GROUP for keepalive in context.module_context.keepalives)
    context.module_context.add_keepalive(_GROUP)
    if partitioner() == "shardy":
        for value in (x, y):
            sdy.sharding_group(value, group)
        return [x, y]
    # XLA's own text of an `OpSharding` of type UNKNOWN in a shard group. Without the side effect
    # the call is removed before the partitioner has seen it.
    text = ir.StringAttr.get(f"{{unknown shard_as {group}}}")
    result = [_custom_call("Sharding", value, backend_config="") for value in (x, y)]
    for call in result:
        call.attributes["mhlo.sharding"] = text
    return [call.results[0] for call in result]


# Not cached: equal calls would become one function of the module, and all their pairs one group.
mlir.register_lowering(_shard_as_p, _lower_shard_as, cacheable=False)


# --- arrays of one complex number -----------------------------------------------------------------


def hide(module: Any) -> None:
    """Puts optimization barriers into a module wherever XLA could find that a complex array is
    filled with one number.

    XLA folds the sum over devices of such an array into a constant; a complex constant it makes
    without a shape, and aborts the process. Both partitioners write such sums, also to move zeros.
    """
    constants: set[ir.Value] = set()
    for op in ops_of(module):
        if not all(value in constants or _may_be_known(value) for value in op.operands):
            continue
        for result in op.results:
            if not _is_complex(result) or not result.type.rank:
                constants.add(result)
            elif op.name == "stablehlo.broadcast_in_dim":
                # An optimization barrier behind it would put the array into memory.
                with op.location, ir.InsertionPoint(op):
                    op.operands[0] = hlo.OptimizationBarrierOp([op.operands[0]]).results[0]
            else:
                with op.location, ir.InsertionPoint.after(op):
                    barrier = hlo.OptimizationBarrierOp([result])
                result.replace_all_uses_except(barrier.results[0], barrier.operation)


def _is_complex(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType) and isinstance(
        value.type.element_type, ir.ComplexType
    )


def _may_be_known(value: ir.Value) -> bool:
    """True if XLA may know a value that is no constant here: an integer (x - x is 0), or an array
    without elements."""
    kind = value.type
    return isinstance(kind, ir.RankedTensorType) and (
        isinstance(kind.element_type, ir.IntegerType) or 0 in kind.shape
    )


# --- sorts in manual regions ----------------------------------------------------------------------


def mark_manual_sorts(module: ir.Module) -> None:
    """States that sorts of several operands in fully manual regions are manual; for GSPMD.

    GSPMD loses the manual sharding of such a sort if its result is an index of a scatter in a loop,
    and ends the process (`hlo_sharding.cc`: "Check failed: !IsManualLeaf()").
    """
    sorts = [sort for sort in ops_of(module, "stablehlo.sort") if len(sort.results) > 1]
    if not sorts:
        return
    is_manual = manual_parts(module)
    with module.context:
        for sort in filter(is_manual, sorts):
            shardings = ", ".join(["{manual}"] * len(sort.results))
            sort.attributes["mhlo.sharding"] = ir.StringAttr.get(f"{{{shardings}}}")


def manual_parts(module: ir.Module) -> Callable[[ir.Operation], bool]:
    """Returns a function that is True for an op in a fully manual region, or in a function that
    only such regions call."""
    mesh_texts = [str(mesh.attributes["mesh"]) for mesh in ops_of(module, "sdy.mesh")]
    mesh_sizes = [
        {axis: int(size) for axis, size in re.findall(r'"([^"]+)"=(\d+)', text)}
        for text in mesh_texts
    ]
    num_devices = max((math.prod(mesh.values()) for mesh in mesh_sizes), default=0)

    def is_manual(op: Any) -> bool:
        """True if all devices are split by the manual axes around the op, or around all calls of
        its function."""
        while op.name != "func.func":
            if op.name == "sdy.manual_computation":
                axes = re.findall(r'"([^"]+)"', str(op.attributes["manual_axes"]))
                # Meshes may share the name of an axis: the smallest size counts, as a region not
                # known to be manual is left to the partitioner.
                if (
                    math.prod(
                        min(mesh[axis] for mesh in mesh_sizes if axis in mesh) for axis in axes
                    )
                    == num_devices
                ):
                    return True
            op = op.parent.operation
        return function_of(op) in manual_functions

    # `manual_functions` grows to all functions whose calls are all in manual regions or in
    # functions of this set.
    callers: dict[str, list[ir.Operation]] = {}
    for call in ops_of(module, "func.call"):
        callers.setdefault(callee_of(call), []).append(call)
    manual_functions: set[str] = set()
    while (
        new_functions := {
            name
            for name, calls in callers.items()
            if all(
                is_manual(call) or any(_is_manual_part(operand.owner) for operand in call.operands)
                for call in calls
            )
        }
        - manual_functions
    ):
        manual_functions |= new_functions
    return is_manual


def ops_of(module: ir.Module, *names: str) -> list[ir.Operation]:
    """Returns the ops of a lowered program in order: those of these names, or all without names."""
    ops: list[ir.Operation] = []

    def collect(op: ir.Operation) -> ir.WalkResult:
        if not names or op.operation.name in names:
            ops.append(op.operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(collect, ir.WalkOrder.PRE_ORDER)
    return ops


def function_of(op: Any) -> str:
    """Returns the name of the function that contains an op."""
    while op.name != "func.func":
        op = op.parent.operation
    return str(op.attributes["sym_name"].value)


def callee_of(call: Any) -> str:
    """Returns the name of the function that an op calls."""
    return str(call.attributes["callee"].value)


def _is_manual_part(owner: ir.Operation | ir.OpView | ir.Block) -> bool:
    """True for an op by which GSPMD passes an array into a fully manual region."""
    attributes = getattr(owner, "attributes", {})  # the owner of an argument is a block
    names = "call_target_name", "mhlo.sharding"
    return [attributes[name].value for name in names if name in attributes] == [
        "SPMDFullToShardShape",
        "{manual}",
    ]


def mesh_names(module: ir.Module) -> list[str]:
    """Returns the names of a module's meshes; none under GSPMD."""
    return [str(mesh.attributes["sym_name"]).strip('"') for mesh in ops_of(module, "sdy.mesh")]


def replicated(value: Any, meshes: Sequence[str]) -> ir.Value:
    """Returns the value constrained to be replicated. meshes: `mesh_names` of the module."""
    if meshes:
        dims = ", ".join(["{}"] * value.type.rank)
        return sdy.ShardingConstraintOp(
            value, ir.Attribute.parse(f"#sdy.sharding<@{meshes[0]}, [{dims}]>")
        ).result
    call = _custom_call("Sharding", value, backend_config="")
    call.attributes["mhlo.sharding"] = ir.StringAttr.get("{replicated}")
    return call.results[0]


def _custom_call(target: str, value: ir.Value, *, backend_config: str) -> ir.OpView:
    """Returns a call of one of XLA's own targets, with a side effect and a result of the operand's
    type."""
    text = ir.StringAttr.get(backend_config)
    return hlo.CustomCallOp(
        [value.type], [value], target, has_side_effect=True, backend_config=text
    )
