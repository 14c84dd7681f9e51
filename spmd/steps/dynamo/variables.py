"""This library's functions as variables of Dynamo: a call of one becomes one node of the graph.

Imported with Dynamo. The functions given to such a call (a scan's body) are traced into graphs of
their own, by what torch's higher-order ops use, so that guards see them.
"""

import dataclasses
import functools
import inspect
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch._dynamo import graph_break_hints, trace_rules, variables
from torch._dynamo.exc import unimplemented
from torch._dynamo.guards import GuardBuilder, get_verbose_code_parts, install_guard
from torch._dynamo.source import GlobalStateSource
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builder import SourcelessBuilder, wrap_fx_proxy
from torch._dynamo.variables.higher_order_ops import (
    discard_graph_changes,
    make_attr,
    speculate_subgraph,
)
from torch.utils._pytree import tree_leaves, tree_unflatten

from ...core import XlaTensor, replaces, specs
from ...core.extend import body as recording
from ...core.extend import meta_of
from . import functions as table
from .calls import Body, Enter, GraphedCall, GraphTensor, Like, OnStandIns, Untraced, leave, results
from .functions import Taken

# the calls whose bodies are under trace, the innermost last
_around: list[tuple[OnStandIns, Body]] = []


def _name(function: Any) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _break(function: Any, why: str) -> Any:
    name = getattr(function, "__name__", repr(function))
    unimplemented(
        gb_type="function of spmd",
        context=f"{getattr(function, '__module__', '')}.{name}",
        explanation=f"{name} cannot be part of a graph: {why}.",
        hints=["Call it outside the compiled function.", *graph_break_hints.SUPPORTABLE],
    )


class FunctionVariable(VariableTracker):
    """A function of the table; the table says what becomes of a call."""

    def __init__(self, value: Any, **how: Any):
        super().__init__(**how)
        self.value = value

    @classmethod
    def create_with_source(cls, value: Any, source: Any) -> "FunctionVariable":
        install_guard(source.make_guard(GuardBuilder.ID_MATCH))
        return cls(value, source=source)

    def as_python_constant(self) -> Any:
        return self.value

    def call_function(self, tx: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        name = _name(self.value)
        if name in table.BREAKS:
            _break(self.value, table.BREAKS[name])
        if name in table.REPLACED:
            substitute = trace_rules.load_object(table.REPLACED[name])
            return variables.UserFunctionVariable(substitute).call_function(tx, list(args), kwargs)
        return (_computed if name in table.PURE else _taken)(self.value, tx, args, kwargs)


def _computed(function: Any, tx: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Calls a function of constants at the trace."""
    try:
        constants = [value.as_python_constant() for value in args]
        named = {name: value.as_python_constant() for name, value in kwargs.items()}
    except NotImplementedError:
        _break(function, "an argument is no constant")
    return SourcelessBuilder.create(tx, function(*constants, **named))


def _taken(function: Any, tx: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Puts a call into the graph, and returns its results."""
    entry = _TAKEN[_name(function)]
    arguments = _Arguments(tx, function, entry)
    call = arguments.call(GraphedCall, args, kwargs)
    if entry.result == "run":
        return _run(tx, call, arguments)
    tensor, call.outputs = arguments.tensors[0], [0]
    with tx.fake_mode, torch.no_grad():
        like = torch.empty_like(_fake(tensor))
    requires_grad = torch.is_grad_enabled() and _fake(tensor).requires_grad
    (result,) = _node(tx, call, arguments, [_with_history(tx, like, requires_grad)])
    return tensor if entry.result == "same" else result


# --- arguments ------------------------------------------------------------------------------------


_BOTH = inspect.Parameter.POSITIONAL_OR_KEYWORD


class _Arguments:
    """The arguments of one call as data, with the tensors and the user's functions among them."""

    def __init__(self, tx: Any, function: Any, entry: Taken):
        self.tx, self.function, self.entry = tx, function, entry
        self.tensors: list[Any] = []
        self.bodies: list[Body] = []
        self.functions: dict[Body, Any] = {}  # of the user's, as Dynamo has them
        # of the graph's call: a body's graph and what that captures
        self.operands: dict[Body, list[Any]] = {}

    def call(
        self, kind: type[GraphedCall], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> GraphedCall:
        """Returns the call, which has a `GraphTensor` for each tensor, a `Body` for each function
        that is traced."""
        if recording.names.value:
            _break(
                self.function,
                f"the compiled function is called inside the body of {recording.names.value[-1]}",
            )
        signature = inspect.signature(self.function)
        try:
            bound = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            _break(self.function, str(error))
        parameters = signature.parameters
        names = [
            name
            for name, parameter in parameters.items()
            if parameter.kind in (parameter.POSITIONAL_ONLY, _BOTH)
        ]
        positional = [
            self._argument(*pair) for pair in zip_longest(names[: len(args)], args, fillvalue="")
        ]
        named = {name: self._argument(name, value) for name, value in kwargs.items()}
        is_ours = bool(_around) or any(
            _fake(tensor).device.type == "xla" for tensor in self.tensors
        )
        if not is_ours and (kind is GraphedCall or not _is_on_device(self.tx)):
            _break(self.function, "it has no tensor on xla among its arguments")
        meshes = _meshes(self.tx)
        for name in parameters.keys() & {"mesh", "device_mesh"}:
            if not meshes and _is_default(bound.get(name)):
                # The graph is guarded by the mesh of `with mesh:`, or of `set_global_mesh`.
                install_guard(GlobalStateSource().make_guard(_default_mesh_match))
        return kind(
            self.function,
            positional,
            named,
            len(self.tensors),
            self.bodies,
            meshes[-1] if meshes else None,
        )

    def _argument(self, name: str, value: Any) -> Any:
        value = value.realize()
        if name not in self.entry.bodies or (
            value.is_python_constant() and value.as_python_constant() is None
        ):
            return self._data(value)
        result = Body(f"{self.function.__name__}: {name}")
        self.bodies.append(result)
        self.functions[result] = value
        return result

    def _data(self, value: Any) -> Any:
        value = value.realize()
        if isinstance(value, variables.TensorVariable):
            self.tensors.append(value)
            return GraphTensor(len(self.tensors) - 1)
        if isinstance(value, variables.SymNodeVariable):
            return value.evaluate_expr(self.tx.output)
        if type(value) in (variables.ListVariable, variables.TupleVariable):
            return value.python_type()(map(self._data, value.items))
        if type(value) is variables.ConstDictVariable:
            return {
                key.vt.as_python_constant(): self._data(part) for key, part in value.items.items()
            }
        if (
            isinstance(value, variables.UserDefinedTupleVariable)
            and _name(value.python_type()) in table.TUPLES
        ):
            return value.python_type()(*map(self._data, value.unpack_var_sequence(self.tx)))
        return self._constant(value)

    def _constant(self, value: Any) -> Any:
        is_function = isinstance(
            value, variables.UserFunctionVariable | variables.SkipFunctionVariable
        )
        if value.is_python_constant() and not is_function:
            return value.as_python_constant()
        constant = getattr(value, "fn", None) or getattr(value, "value", None)
        is_data = (
            dataclasses.is_dataclass(constant)
            and vars(type(constant))["__dataclass_params__"].frozen
        )
        if value.source is None or not (
            callable(constant) or is_data or constant is specs.UNCONSTRAINED
        ):
            kind = getattr(value.python_type(), "__name__", "value")
            _break(self.function, f"an argument is a {kind} that no guard can be on")
        install_guard(value.source.make_guard(GuardBuilder.ID_MATCH))
        return constant


def _is_on_device(tx: Any) -> bool:
    """True if an argument of the compiled function is a tensor on xla, or a module with one."""
    flat = tree_leaves(dict(tx.output.root_tx.f_locals))
    tensors = (
        next(value.parameters(), None) if isinstance(value, torch.nn.Module) else value
        for value in flat
    )
    return any(type(tensor) is XlaTensor for tensor in tensors)


def _is_default(mesh: Any) -> bool:
    """True if an argument is no mesh, perhaps a spec in its place."""
    kinds = (
        variables.ConstantVariable | variables.TupleVariable | variables.UserDefinedTupleVariable
    )
    return mesh is None or isinstance(mesh.realize(), kinds)


def _meshes(tx: Any) -> list[Any]:
    """The meshes of `with mesh:` that the trace is in, the innermost last."""
    return tx.output.__dict__.setdefault("spmd_meshes", [])


def _default_mesh_match(builder: Any, guard: Any) -> None:
    read = trace_rules.load_object(table.DEFAULT_MESH)
    mesh = read()
    parts = get_verbose_code_parts(f"default mesh == {mesh!r}", guard)
    builder.guard_manager.root.add_lambda_guard(lambda _: read() == mesh, parts, guard.user_stack)


# --- nodes ----------------------------------------------------------------------------------------


def _run(tx: Any, call: GraphedCall, arguments: "_Arguments") -> Any:
    """Puts a call into the graph, after its functions are traced; returns its results."""
    on_stand_ins = OnStandIns(call, [_like_fake(_fake(tensor)) for tensor in arguments.tensors])
    while True:
        try:
            flat, tree = results(on_stand_ins, _around)
            break
        except Untraced as untraced:
            _trace(tx, on_stand_ins, arguments, untraced)
        except Exception as error:
            _break(call.function, f"it raises {type(error).__name__}: {error}")
    new = {id(value): value for value in flat if type(value) is Like}
    call.outputs = [
        next(index for index, value in enumerate(flat) if id(value) == key) for key in new
    ]
    result = dict(
        zip(
            new,
            _node(tx, call, arguments, [_fake_like(tx, like) for like in new.values()]),
            strict=True,
        )
    )

    def variable(value: Any) -> Any:
        if type(value) is Like:
            return result[id(value)]
        return (
            arguments.tensors[value[0]]
            if type(value) is list
            else SourcelessBuilder.create(tx, value)
        )

    return SourcelessBuilder.create(tx, tree_unflatten(list(map(variable, flat)), tree))


def _node(tx: Any, call: GraphedCall, arguments: "_Arguments", fakes: Sequence[Any]) -> list[Any]:
    operands = [tensor.as_proxy() for tensor in arguments.tensors]
    for body in call.bodies:
        operands += arguments.operands.get(body, ())
    proxy = tx.output.create_proxy("call_function", call, args=tuple(operands), kwargs={})
    result: Any = wrap_fx_proxy(tx, proxy, example_value=list(fakes)) if fakes else None
    return [] if result is None else list(result.items)


def _trace(tx: Any, call: OnStandIns, arguments: "_Arguments", untraced: Untraced) -> None:
    """Traces one function, for the arguments with which it is called."""
    body, (flat, body.arguments) = untraced.body, untraced.arguments
    with discard_graph_changes(tx):
        stand_ins = [_argument(tx, value) for value in flat]
    args, kwargs = tree_unflatten(stand_ins, body.arguments)
    function = arguments.functions[body]
    if kwargs:
        named = {name: SourcelessBuilder.create(tx, value) for name, value in kwargs.items()}
        function = variables.functions.FunctoolsPartialVariable(function, [], named)
    inputs = [SourcelessBuilder.create(tx, value) for value in args]
    _around.append((call, body))
    try:
        result: Any = speculate_subgraph(
            tx,
            function,
            inputs,
            {},
            f"spmd.{body.name}",
            set_subgraph_inputs="flatten_manual",
            should_flatten_outputs=True,
            supports_input_mutation=True,
            supports_aliasing=True,
        )
    finally:
        _around.pop()
    (_, spec), graph, captured = result
    body.results = spec.treespec.as_python_constant()
    body.constants = [
        [constant] if is_constant else None
        for is_constant, constant in zip(
            spec.masks_to_filter_const_values, spec.const_values, strict=True
        )
    ]
    body.num_captured = len(captured)
    module = torch.fx.GraphModule(tx.output.nn_modules, graph)
    arguments.operands[body] = [
        make_attr(tx, tx.output.install_subgraph("spmd_body", module)),
        *captured,
    ]
    call.traced[body] = module, list(map(_like_proxy, captured))


def _argument(tx: Any, value: Any) -> Any:
    if type(value) is not Like:
        return SourcelessBuilder.create(tx, value)
    proxy = tx.output.create_proxy("call_function", torch.empty, args=(0,), kwargs={})
    return wrap_fx_proxy(tx, proxy, example_value=_fake_like(tx, value))


# --- fake tensors ---------------------------------------------------------------------------------


def _fake(tensor: Any) -> Any:
    return tensor.as_proxy().node.meta["example_value"]


def _like_proxy(proxy: Any) -> Any:
    """Returns what a captured value is like; a number that the guards leave open is one of this
    type."""
    value = proxy.node.meta["example_value"]
    if isinstance(value, torch.SymFloat):
        return 1.0
    if not isinstance(value, torch.Tensor):
        return int(value)
    return (
        _like_fake(value)
        if value.device.type == "xla"
        else torch.ones([*map(int, value.shape)], dtype=value.dtype)
    )


def _like_fake(fake: Any) -> Like:
    """Returns what a fake tensor is like; its lengths are guarded."""
    size, stride = [*map(int, fake.shape)], [*map(int, fake.stride())]
    return Like(
        meta_of(torch.empty_strided(size, stride, dtype=fake.dtype, device="meta")),
        fake.requires_grad,
    )


def _fake_like(tx: Any, like: Like) -> Any:
    """Returns a fake tensor."""
    meta = like.meta
    with tx.fake_mode:
        result = torch.empty_strided(meta.shape, meta.strides, dtype=meta.dtype, device="xla")
    return _with_history(tx, result, like.requires_grad)


def _with_history(tx: Any, fake: Any, requires_grad: bool) -> Any:
    """Returns a fake tensor; with a gradient it is no leaf tensor."""
    with tx.fake_mode, torch.set_grad_enabled(requires_grad):
        return fake.requires_grad_().clone() if requires_grad else fake


# --- contexts -------------------------------------------------------------------------------------


class ContextVariable(variables.ContextWrappingVariable):
    """A mesh in `with mesh:`, which is the default mesh of the calls inside; or a context manager
    that the graph makes: the call that enters it, and the operands of that."""

    def __init__(self, context: Any, operands: Sequence[Any] = (), **how: Any):
        super().__init__(None, **how)
        self.context, self.operands, self.entered = context, operands, None

    def supports_graph_breaks(self) -> bool:
        return False

    def enter(self, tx: Any) -> Any:
        if type(self.context) is not Enter:
            _meshes(tx).append(self.context.as_python_constant())
            return self.context
        self.entered = tx.output.create_proxy(
            "call_function", self.context, tuple(self.operands), {}
        )
        return variables.ConstantVariable.create(None)

    def exit(self, tx: Any, *args: Any) -> Any:
        if type(self.context) is not Enter:
            _meshes(tx).pop()
        else:
            tx.output.create_proxy("call_function", leave, (self.entered,), {})
        return variables.ConstantVariable.create(None)


def _context(tx: Any, cls: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> ContextVariable:
    arguments = _Arguments(tx, cls, Taken(""))
    enter = arguments.call(Enter, args, kwargs)
    return ContextVariable(enter, [tensor.as_proxy() for tensor in arguments.tensors])


# --- torch's tables -------------------------------------------------------------------------------

_TAKEN = {entry.name: entry for entry in table.TAKEN}
_KINDS: dict[type[VariableTracker], Iterable[str]] = {
    FunctionVariable: (*_TAKEN, *table.BREAKS, *table.PURE, *table.REPLACED),
    variables.UserFunctionVariable: (*table.TRACED, *table.REPLACED.values()),
}


def register() -> None:
    """Has Dynamo find the table's functions, methods and contexts."""
    # torch looks the names up at the first trace, and skips those of folders that cannot be
    # imported. A function that is decorated (`ends_at_user_line`) is called by its decoration,
    # which Dynamo traces.
    forms = {
        f"{name}{form}": kind
        for kind, names in _KINDS.items()
        for name in names
        for form in ("", "#__wrapped__")
    }
    trace_rules.torch_name_rule_map.append(forms)
    trace_rules.get_torch_obj_rule_map.cache_clear()
    inlined = trace_rules.get_legacy_mod_inlinelist
    trace_rules.get_legacy_mod_inlinelist = functools.cache(
        lambda: {*inlined(), *map(_path, table.TRACED_FILES)}
    )

    @replaces(variables.TensorVariable, "call_method")
    def call_our_method(
        call_method: Any, self: Any, tx: Any, name: str, args: Any, kwargs: Any
    ) -> Any:
        if name in table.METHODS and _fake(self).device.type == "xla":
            function = trace_rules.load_object(table.METHODS[name])
            return FunctionVariable(function).call_function(tx, [self, *args], kwargs)
        return call_method(self, tx, name, args, kwargs)

    @replaces(variables.UserDefinedClassVariable, "call_function")
    def call_our_class(call_class: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if _name(self.value) in table.CONTEXTS:
            return _context(tx, self.value, args, kwargs)
        return call_class(self, tx, args, kwargs)

    @replaces(InstructionTranslatorBase, "setup_or_before_with")
    def before_our_with(before_with: Any, self: Any, inst: Any) -> None:
        top = self.stack[-1].realize()
        if hasattr(getattr(top, "value", None), "axis_names"):  # a mesh
            self.stack[-1] = ContextVariable(top)
        before_with(self, inst)


def _path(name: str) -> str:
    return str(Path(__file__).parents[2] / name)
