"""How the partitioner is set and asked: the context of our own tracing, and its report of what it chose."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax._src import config as jax_config  # the partitioner as a context: the public switch is process-wide
from jax._src.lib import xla_client  # the partitioner's own report of what it chose (see `report_sharding`)
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import hlo
from jax._src.sharding_impls import GSPMDSharding
from jax.extend.core import Primitive
from jax.interpreters import mlir

from ..config import config
from .topology import grid, stand_in
from .value import Sharding

# None in a jax that knows one partitioner only, which is Shardy.
_SWITCH = getattr(jax_config, "use_shardy_partitioner", None)
if _SWITCH is None:
    config.partitioner = "shardy"


@contextlib.contextmanager
def compiler_context() -> Iterator[None]:
    """What our own tracing needs, whatever is set for the user's own JAX code: 64-bit types, the chosen partitioner,
    operands of different ranks and dtypes."""
    is_shardy = config.partitioner == "shardy"
    if _SWITCH is None and not is_shardy:
        raise ValueError(f"config.partitioner: jax {jax.__version__} has no 'gspmd' any more; set it to 'shardy'")
    with (
        jax.enable_x64(True),
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
        contextlib.nullcontext() if _SWITCH is None else _SWITCH(is_shardy),
    ):
        yield


# --- what the partitioner chose ---------------------------------------------------------------------------------------

_report_p = Primitive("spmd_report_sharding")
_report_p.def_impl(lambda value, *, tell: value)
_report_p.def_abstract_eval(lambda value, *, tell: value)


def report_sharding(value: jax.Array, tell: Callable[[Any], None]) -> jax.Array:
    """The value itself; while the program is compiled, the partitioner tells the `HloSharding` that it gave it.

    As `jax.debug.inspect_array_sharding`, which must name the layout by the axes of one mesh and has an effect at each
    run; this has neither.
    """
    return _report_p.bind(value, tell=tell)


def _lower_report(context: Any, value: Any, *, tell: Callable[[Any], None]) -> list[Any]:
    key = xla_client.encode_inspect_sharding_callback(tell)
    context.module_context.add_keepalive(tell)  # as long as the program, which has only its address
    hlo.CustomCallOp(
        [value.type],
        [value],
        call_target_name=ir.StringAttr.get("InspectSharding"),
        has_side_effect=ir.BoolAttr.get(True),
        api_version=ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 1),
        called_computations=ir.ArrayAttr.get([]),
        backend_config=ir.StringAttr.get(key),
    )
    return [value]


mlir.register_lowering(_report_p, _lower_report)


def as_chosen(chosen: Any, mesh: Sharding) -> jax.sharding.Sharding:
    """What the partitioner reported of a value in a program over this mesh."""
    return GSPMDSharding(list(grid(mesh.device_ids, (len(mesh.device_ids),), mesh.target or stand_in())), chosen)
