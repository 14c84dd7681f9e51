"""Programs of `torch.export` with dims of any size, as StableHLO with the dims open (`?`).

A recorded call has the sizes of its arguments; so the ops of the traced program are lowered one by
one here, over jax's symbolic sizes.
"""

import importlib
import itertools
import types
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import export as jax_export
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch.export import ExportedProgram, default_decompositions
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Interpreter, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves, tree_map, tree_unflatten

from ...core import Meta, compiler_context, dtypes, extras, hardware, resolve
from ...core.extend import infer
from ...loops.interop.call_jax import call_jax

# Of torch's sizes, what sympy has no function for.
_FUNCTIONS = {
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "PythonMod": lambda a, b: a % b,
    "Mod": lambda a, b: a % b,
    "Max": jax.core.max_dim,
    "Min": jax.core.min_dim,
}


def _split(self: torch.Tensor, split_sizes: Sequence[int], dim: int = 0) -> list[torch.Tensor]:
    ends = itertools.accumulate(split_sizes)
    return [self.narrow(dim, e - size, size) for e, size in zip(ends, split_sizes, strict=True)]


# For ops without a rule: torch's own, of which that of a split reads memory by strides.
_DECOMPOSED = {**decomposition_table, torch.ops.aten.split_with_sizes.default: _split}
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def has_open_dims(program: ExportedProgram) -> bool:
    """True if a program has inputs of which sizes are open."""
    return bool(_open_sizes(program))


class OpenProgram:
    """The StableHLO of a program whose sizes are open. It is called with tensors of any sizes."""

    def __init__(self, program: ExportedProgram):
        extras.imported("flatbuffers", "export", "export")
        hardware.prepare()
        ops = {node.target for node in program.graph.nodes if isinstance(node.target, OpOverload)}
        missing = {op for op in ops & _DECOMPOSED.keys() if resolve.plan_of(op).rule is None}
        table = {**default_decompositions(), **{op: _DECOMPOSED[op] for op in missing}}
        program = program.run_decompositions(table)
        signature = program.graph_signature
        written = [x for x in signature.output_specs if x.kind is not OutputKind.USER_OUTPUT]
        if written:
            raise NotImplementedError(
                f"a program with open dims that writes {written[0].target}: write a function that "
                "returns the new value"
            )
        self.tree = program.call_spec.out_spec
        state = {**program.state_dict, **program.constants}
        self._names = [
            spec.target for spec in signature.input_specs if spec.kind is not InputKind.USER_INPUT
        ]
        self.state = {name: state[name] for name in self._names}
        with compiler_context():
            sizes = _Sizes(program)
            run = _Lowered(program.graph_module, sizes).run
            structs = [
                jax.ShapeDtypeStruct(sizes.of(value.shape), dtypes.to_numpy_dtype(value.dtype))
                for value in _inputs(program)
                if isinstance(value, torch.Tensor)
            ]
            values = _inputs(program)

            def spmd_exported(*arrays: jax.Array) -> Any:
                queue = iter(arrays)
                return run(*(next(queue) if isinstance(x, torch.Tensor) else x for x in values))

            self.exported = jax_export.export(jax.jit(spmd_exported, keep_unused=True))(*structs)
        self.call = self.exported.call

    @property
    def serialized(self) -> bytes:
        return bytes(self.exported.serialize())

    def stablehlo(self) -> str:
        """The program as text."""
        return str(self.exported.mlir_module())

    def save(self, path: Any, *, weights: bool = True) -> None:
        """Raises NotImplementedError."""
        raise NotImplementedError(
            "a program with open dims is not saved with its weights; export one for each size, or "
            "write get_stablehlo_bytecode() into a file"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
        if missing := [name for name in self._names if name not in self.state]:
            raise ValueError(f"a program with open dims: expected {missing} among its weights")
        state = [torch.as_tensor(self.state[name]).detach().to("xla") for name in self._names]
        return tree_unflatten(call_jax(self.call, *state, *tensors), self.tree)


def _inputs(program: ExportedProgram) -> list[Any]:
    """The placeholders of a program: fake tensors, and constants."""
    return [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"]


def _open_sizes(program: ExportedProgram) -> list[Any]:
    tensors = (value for value in _inputs(program) if isinstance(value, torch.Tensor))
    return [size for value in tensors for size in value.shape if isinstance(size, torch.SymInt)]


class _Sizes:
    """jax's symbolic sizes by torch's."""

    def __init__(self, program: ExportedProgram):
        # A program that was traced again has constraints of sizes that are no input's, too.
        symbols = {one for size in _open_sizes(program) for one in size.node.expr.free_symbols}
        bounds = {
            str(symbol): (limits.lower, limits.upper)
            for symbol, limits in program.range_constraints.items()
            if symbol in symbols
        }
        limits = [f"{name} >= {max(1, int(low))}" for name, (low, _) in bounds.items()]
        limits += [
            f"{name} <= {high}"
            for name, (_, high) in bounds.items()
            if high.is_Integer and high < 2**31
        ]
        self._names = sorted(bounds)
        self._dims = jax_export.symbolic_shape(",".join(self._names), constraints=limits)

    def value(self, size: Any) -> Any:
        """A number or symbol of torch as one of jax."""
        if not isinstance(size, _SYMBOLIC):
            return size
        sympy: Any = importlib.import_module("sympy")  # which takes long to import
        compute = sympy.lambdify(self._names, size.node.expr, modules=[_FUNCTIONS])
        return compute(*self._dims)

    def of(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(map(self.value, shape))


class _Lowered(Interpreter):
    """The ops of a traced program as functions of arrays, by their rules."""

    def __init__(self, module: torch.fx.GraphModule, sizes: _Sizes):
        super().__init__(module)
        self._sizes = sizes

    def run_node(self, node: Node) -> Any:
        value = node.meta.get("val")
        if node.op != "placeholder" and isinstance(value, _SYMBOLIC):
            return self._sizes.value(value)
        if isinstance(node.target, OpOverload):
            if value is None:  # an assertion
                return None
            return self._op(node, node.target, value)
        return super().run_node(node)

    def _op(self, node: Node, overload: OpOverload, value: Any) -> Any:
        plan = resolve.plan_of(overload)
        if plan.rule is None:
            raise NotImplementedError(
                f"{plan.name} has no rule for open dims ({node.stack_trace or node.format_node()})"
            )
        fakes = map_arg((node.args, dict(node.kwargs)), lambda argument: argument.meta["val"])
        args, kwargs = tree_map(self._opened, fakes)
        binding = infer.bind(plan, args, kwargs)
        lowering, constant = infer.lowering_of(plan, binding)
        arrays = [
            leaf
            for leaf in tree_leaves(self.fetch_args_kwargs_from_env(node))
            if isinstance(leaf, jax.Array)
        ]
        op: Any = types.SimpleNamespace(
            name=plan.name,
            layout=None,
            constant=constant,
            operands=self._metas(fakes),
            metas=self._metas(value),
        )
        numbers = [jnp.asarray(number, _KINDS[type(number)]) for number in binding.numbers]
        is_narrow = any(meta.dtype in (torch.bfloat16, torch.float16) for meta in op.operands)
        with jax.default_matmul_precision(None if is_narrow else "highest"):
            results = lowering.lower(op, arrays, numbers, [None] * len(arrays))
        return results[0] if isinstance(value, torch.Tensor) else list(results)

    def _metas(self, values: Any) -> list[Meta]:
        return [
            Meta(self._sizes.of(leaf.shape), leaf.dtype, (), 0)
            for leaf in tree_leaves(values)
            if isinstance(leaf, torch.Tensor)
        ]

    def _opened(self, value: Any) -> Any:
        """A value of the trace: a tensor of the traced size, any other with open sizes."""
        if not isinstance(value, torch.Tensor):
            return self._sizes.value(value)
        shape = [size.node.hint if isinstance(size, torch.SymInt) else size for size in value.shape]
        return torch.empty(shape, dtype=value.dtype, device="meta")


_KINDS = {float: np.float64, int: np.int64}
