"""Functions that are traced when they are lowered: the branch of one platform costs the others nothing.

`jax.lax.platform_dependent` traces the branches of every platform and lowers one. A kernel takes long to trace, so a
branch binds it here, and it is traced where that branch is lowered.
"""

from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from .registry import Function

_late_p = Primitive("spmd_late")
_late_p.multiple_results = True


def late(function: Function, results: Any, *operands: Any) -> Any:
    """function(*operands), both pytrees; `results` has a `jax.ShapeDtypeStruct` for each array that it returns.

    The function must not hold arrays of the program other than its operands.
    """
    arrays, tree = jax.tree.flatten(operands)
    promised, shape = jax.tree.flatten(results)

    def flat(*arrays: jax.Array) -> Any:
        return jax.tree.flatten(function(*jax.tree.unflatten(tree, arrays)))[0]

    precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]  # made when jax starts
    result = _late_p.bind(*arrays, function=flat, results=tuple(promised), precision=precision)
    return jax.tree.unflatten(shape, result)


def _run(*arrays: jax.Array, function: Function, results: Any, precision: Any) -> Any:
    with jax.default_matmul_precision(precision):
        return function(*arrays)


def _shapes(*arrays: Any, function: Function, results: Any, precision: Any) -> Any:
    return [jax.core.ShapedArray(result.shape, result.dtype) for result in results]


_late_p.def_abstract_eval(_shapes)
mlir.register_lowering(_late_p, mlir.lower_fun(_run, multiple_results=True))
