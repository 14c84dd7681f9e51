"""This library's functions as variables of Dynamo: a call of one becomes one node of the graph.

Imported with Dynamo. The functions given to such a call (a scan's body) are traced into graphs of their own, by what
torch's higher-order ops use, so that guards see them.
"""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Iterable, Iterator, Sequence
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
from torch._dynamo.variables.higher_order_ops import discard_graph_changes, make_attr, speculate_subgraph
from torch.utils._pytree import tree_leaves, tree_unflatten

from ...core import XlaTensor, specs
from ...core.extend import body as recording
from ...core.extend import meta_of
from . import functions as table
from .calls import Body, Call, Enter, Place, leave
from .functions import Taken
from .stand_in_calls import Like, OnStandIns, Untraced, results

_around: list[tuple[OnStandIns, Body]] = []  # the calls whose bodies are under trace, the innermost last


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


class BreakVariable(VariableTracker):
    """A function that stands between two graphs."""

    def __init__(self, value: Any, **how: Any):
        super().__init__(**how)
        self.value = value

    @classmethod
    def create_with_source(cls, value: Any, source: Any) -> "BreakVariable":
        install_guard(source.make_guard(GuardBuilder.ID_MATCH))
        return cls(value, source=source)

    def as_python_constant(self) -> Any:
        return self.value

    def call_function(self, tx: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return _break(self.value, table.BREAKS[_name(self.value)])


class PureVariable(BreakVariable):
    """A function of constants, called at the trace."""

    def call_function(self, tx: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        try:
            given = [one.as_python_constant() for one in args]
            named = {name: one.as_python_constant() for name, one in kwargs.items()}
        except NotImplementedError:
            _break(self.value, "an argument is no constant")
        return SourcelessBuilder.create(tx, self.value(*given, **named))


class ReplacedVariable(BreakVariable):
    """A function in whose place another one is traced."""

    def call_function(self, tx: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        other = trace_rules.load_object(table.REPLACED[_name(self.value)])
        return variables.UserFunctionVariable(other).call_function(tx, list(args), kwargs)


class FunctionVariable(BreakVariable):
    """A function that a graph calls."""

    def call_function(self, tx: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Puts a call into the graph, and returns its results."""
        taken = _TAKEN[_name(self.value)]
        arguments = _Arguments(tx, self.value, taken)
        call = arguments.call(Call, args, kwargs)
        if taken.result == "run":
            return _run(tx, call, arguments)
        tensor, call.outputs = arguments.tensors[0], [0]
        with tx.fake_mode, torch.no_grad():
            like = torch.empty_like(_fake(tensor))
        requires_grad = torch.is_grad_enabled() and _fake(tensor).requires_grad
        (result,) = _node(tx, call, arguments, [_with_history(tx, like, requires_grad)])
        return tensor if taken.result == "same" else result


# --- arguments --------------------------------------------------------------------------------------------------------


_BOTH = inspect.Parameter.POSITIONAL_OR_KEYWORD


class _Arguments:
    """The arguments of one call as data, with the tensors and the user's functions among them."""

    def __init__(self, tx: Any, function: Any, taken: Taken):
        self.tx, self.function, self.taken = tx, function, taken
        self.tensors: list[Any] = []
        self.bodies: list[Body] = []
        self.functions: dict[Body, Any] = {}  # of the user's, as Dynamo has them
        self.operands: dict[Body, list[Any]] = {}  # of the graph's call: a body's graph and what that captures

    def call(self, kind: type[Call], args: Sequence[Any], kwargs: dict[str, Any]) -> Call:
        """Returns the call, which has a `Place` for each tensor, a `Body` for each function that is traced."""
        if recording.names():
            _break(self.function, f"the compiled function is called inside the body of {recording.names()[-1]}")
        try:
            bound = inspect.signature(self.function).bind(*args, **kwargs).arguments
        except TypeError as error:
            _break(self.function, str(error))
        parameters = inspect.signature(self.function).parameters
        names = [name for name, each in parameters.items() if each.kind in (each.POSITIONAL_ONLY, _BOTH)]
        given = [self._argument(name, value) for name, value in zip_longest(names[: len(args)], args, fillvalue="")]
        named = {name: self._argument(name, value) for name, value in kwargs.items()}
        is_ours = bool(_around) or any(_fake(one).device.type == "xla" for one in self.tensors)
        if not is_ours and (kind is Call or not _is_on_device(self.tx)):
            _break(self.function, "it has no tensor on xla among its arguments")
        meshes = _meshes(self.tx)
        for name in parameters.keys() & {"mesh", "device_mesh"}:
            if not meshes and _is_default(bound.get(name)):
                _guard_default_mesh()
        return kind(self.function, given, named, len(self.tensors), self.bodies, meshes[-1] if meshes else None)

    def _argument(self, name: str, value: Any) -> Any:
        value = value.realize()
        if name not in self.taken.bodies or _is_none(value):
            return self._data(value)
        result = Body(f"{self.function.__name__}: {name}")
        self.bodies.append(result)
        self.functions[result] = value
        return result

    def _data(self, value: Any) -> Any:
        value = value.realize()
        if isinstance(value, variables.TensorVariable):
            self.tensors.append(value)
            return Place(len(self.tensors) - 1)
        if isinstance(value, variables.SymNodeVariable):
            return value.evaluate_expr(self.tx.output)
        if type(value) in (variables.ListVariable, variables.TupleVariable):
            return value.python_type()(map(self._data, value.items))
        if type(value) is variables.ConstDictVariable:
            return {key.vt.as_python_constant(): self._data(one) for key, one in value.items.items()}
        if isinstance(value, variables.UserDefinedTupleVariable) and _name(value.python_type()) in table.TUPLES:
            return value.python_type()(*(self._data(one) for one in value.unpack_var_sequence(self.tx)))
        return self._constant(value)

    def _constant(self, value: Any) -> Any:
        if isinstance(value, variables.UserFunctionVariable | variables.SkipFunctionVariable) or not (
            value.is_python_constant()
        ):
            found = _object(value)
            is_data = dataclasses.is_dataclass(found) and vars(type(found))["__dataclass_params__"].frozen
            if value.source is None or not (callable(found) or is_data or found is specs.UNCONSTRAINED):
                kind = getattr(value.python_type(), "__name__", "value")
                _break(self.function, f"an argument is a {kind} that no guard can be on")
            install_guard(value.source.make_guard(GuardBuilder.ID_MATCH))
            return found
        return value.as_python_constant()


def _object(value: Any) -> Any:
    return getattr(value, "fn", None) or getattr(value, "value", None)


def _is_none(value: Any) -> bool:
    value = value.realize()
    return value.is_python_constant() and value.as_python_constant() is None


def _is_on_device(tx: Any) -> bool:
    """True if an argument of the compiled function is a tensor on xla, or a module with one."""
    flat = tree_leaves(dict(tx.output.root_tx.f_locals))
    held = [next(one.parameters(), None) if isinstance(one, torch.nn.Module) else one for one in flat]
    return any(type(one) is XlaTensor for one in held)


def _is_default(mesh: Any) -> bool:
    """True if an argument is no mesh, perhaps a spec in its place."""
    kinds = variables.ConstantVariable | variables.TupleVariable | variables.UserDefinedTupleVariable
    return mesh is None or isinstance(mesh.realize(), kinds)


def _meshes(tx: Any) -> list[Any]:
    """The meshes of `with mesh:` that the trace is in, the innermost last."""
    return tx.output.__dict__.setdefault("spmd_meshes", [])


def _guard_default_mesh() -> None:
    """Guards a graph by the mesh of `with mesh:`, or of `set_global_mesh`."""
    install_guard(GlobalStateSource().make_guard(_default_mesh_match))


def _default_mesh_match(builder: Any, guard: Any) -> None:
    read = trace_rules.load_object(table.DEFAULT_MESH)
    mesh = read()
    parts = get_verbose_code_parts(f"default mesh == {mesh!r}", guard)
    builder.guard_manager.root.add_lambda_guard(lambda _: read() == mesh, parts, guard.user_stack)


# --- nodes ------------------------------------------------------------------------------------------------------------


def _run(tx: Any, call: Call, arguments: "_Arguments") -> Any:
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
    new = {id(one): one for one in flat if type(one) is Like}
    call.outputs = [next(index for index, one in enumerate(flat) if id(one) == key) for key in new]
    result = dict(zip(new, _node(tx, call, arguments, [_fake_like(tx, one) for one in new.values()]), strict=True))

    def variable(one: Any) -> Any:
        if type(one) is Like:
            return result[id(one)]
        return arguments.tensors[one[0]] if type(one) is list else SourcelessBuilder.create(tx, one)

    return SourcelessBuilder.create(tx, tree_unflatten([variable(one) for one in flat], tree))


def _node(tx: Any, call: Call, arguments: "_Arguments", fakes: Sequence[Any]) -> list[Any]:
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
        given = [_argument(tx, one) for one in flat]
    args, kwargs = tree_unflatten(given, body.arguments)
    function = arguments.functions[body]
    if kwargs:
        named = {name: SourcelessBuilder.create(tx, value) for name, value in kwargs.items()}
        function = variables.functions.FunctoolsPartialVariable(function, [], named)
    with _inside(call, body):
        result: Any = speculate_subgraph(
            tx,
            function,
            [SourcelessBuilder.create(tx, one) for one in args],
            {},
            f"spmd.{body.name}",
            set_subgraph_inputs="flatten_manual",
            should_flatten_outputs=True,
            supports_input_mutation=True,
            supports_aliasing=True,
        )
    (_, spec), graph, captured = result
    body.results = spec.treespec.as_python_constant()
    body.constants = [
        [constant] if is_constant else None
        for is_constant, constant in zip(spec.masks_to_filter_const_values, spec.const_values, strict=True)
    ]
    body.num_captured = len(captured)
    module = torch.fx.GraphModule(tx.output.nn_modules, graph)
    arguments.operands[body] = [make_attr(tx, tx.output.install_subgraph("spmd_body", module)), *captured]
    call.traced[body] = module, [_like_proxy(one) for one in captured]


@contextlib.contextmanager
def _inside(call: OnStandIns, body: Body) -> Iterator[None]:
    _around.append((call, body))
    try:
        yield
    finally:
        _around.pop()


def _argument(tx: Any, one: Any) -> Any:
    if type(one) is not Like:
        return SourcelessBuilder.create(tx, one)
    proxy = tx.output.create_proxy("call_function", torch.empty, args=(0,), kwargs={})
    return wrap_fx_proxy(tx, proxy, example_value=_fake_like(tx, one))


# --- fake tensors -----------------------------------------------------------------------------------------------------


def _fake(tensor: Any) -> Any:
    return tensor.as_proxy().node.meta["example_value"]


def _like_proxy(proxy: Any) -> Any:
    """Returns what a captured value is like; a number that the guards leave open is one of this type."""
    value = proxy.node.meta["example_value"]
    if isinstance(value, torch.SymFloat):
        return 1.0
    if not isinstance(value, torch.Tensor):
        return int(value)
    return _like_fake(value) if value.device.type == "xla" else torch.ones([*map(int, value.shape)], dtype=value.dtype)


def _like_fake(fake: Any) -> Like:
    """Returns what a fake tensor is like; its lengths are guarded."""
    size, stride = [*map(int, fake.shape)], [*map(int, fake.stride())]
    return Like(meta_of(torch.empty_strided(size, stride, dtype=fake.dtype, device="meta")), fake.requires_grad)


def _fake_like(tx: Any, one: Like) -> Any:
    """Returns a fake tensor."""
    meta = one.meta
    with tx.fake_mode:
        result = torch.empty_strided(meta.shape, meta.strides, dtype=meta.dtype, device="xla")
    return _with_history(tx, result, one.requires_grad)


def _with_history(tx: Any, made: Any, requires_grad: bool) -> Any:
    """Returns a fake tensor; with a gradient it is no leaf tensor."""
    with tx.fake_mode, torch.set_grad_enabled(requires_grad):
        return made.requires_grad_().clone() if requires_grad else made


# --- contexts ---------------------------------------------------------------------------------------------------------


class _Context(variables.ContextWrappingVariable):
    def supports_graph_breaks(self) -> bool:
        return False


class ContextVariable(_Context):
    """An object of a context manager's class that the graph makes."""

    def __init__(self, enter: Enter, operands: Sequence[Any], **how: Any):
        super().__init__(None, **how)
        self.entering, self.operands, self.entered = enter, operands, None

    def enter(self, tx: Any) -> Any:
        self.entered = tx.output.create_proxy("call_function", self.entering, tuple(self.operands), {})
        return variables.ConstantVariable.create(None)

    def exit(self, tx: Any, *args: Any) -> Any:
        tx.output.create_proxy("call_function", leave, (self.entered,), {})
        return variables.ConstantVariable.create(None)


class MeshVariable(_Context):
    """A mesh in `with mesh:`: the default mesh of the calls inside."""

    def __init__(self, mesh: Any, **how: Any):
        super().__init__(None, **how)
        self.mesh = mesh

    def enter(self, tx: Any) -> Any:
        _meshes(tx).append(self.mesh.as_python_constant())
        return self.mesh

    def exit(self, tx: Any, *args: Any) -> Any:
        _meshes(tx).pop()
        return variables.ConstantVariable.create(None)


def _context(tx: Any, cls: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> ContextVariable:
    arguments = _Arguments(tx, cls, Taken(""))
    enter: Any = arguments.call(Enter, args, kwargs)
    return ContextVariable(enter, [tensor.as_proxy() for tensor in arguments.tensors])


# --- torch's tables ---------------------------------------------------------------------------------------------------

_TAKEN = {taken.name: taken for taken in table.TAKEN}
_KINDS: dict[type[VariableTracker], Iterable[str]] = {
    FunctionVariable: _TAKEN,
    BreakVariable: table.BREAKS,
    PureVariable: table.PURE,
    ReplacedVariable: table.REPLACED,
    variables.UserFunctionVariable: (*table.TRACED, *table.REPLACED.values()),
}


@functools.cache
def _rules() -> dict[int, Any]:
    """The kind of variable of each function, by its id; the functions are looked up at the first trace."""
    found = [(trace_rules.load_object(name), kind) for kind, names in _KINDS.items() for name in names]
    # None: a function of a folder that cannot be imported, without torch.distributed
    present = [(function, kind) for function, kind in found if function is not None]
    # One that is decorated (`ends_at_user_line`) is called by its decoration, which Dynamo traces.
    return {id(form): kind for function, kind in present for form in (function, inspect.unwrap(function))}


def register() -> None:
    """Has Dynamo find the table's functions, methods and contexts."""
    lookup, inlined = trace_rules._lookup_inner, trace_rules.get_legacy_mod_inlinelist
    call_method, call_class = variables.TensorVariable.call_method, variables.UserDefinedClassVariable.call_function
    before_with = InstructionTranslatorBase.setup_or_before_with

    def lookup_ours(
        obj: Any, name: Any = None, filename: Any = None, is_direct_call: bool = True, reasons: Any = None
    ) -> Any:
        found = _rules().get(id(obj))
        if found is None:
            return lookup(obj, name, filename, is_direct_call, reasons)
        if reasons is not None:
            reasons.add("a function of spmd")
        return found

    def call_our_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name in table.METHODS and _fake(self).device.type == "xla":
            function = trace_rules.load_object(table.METHODS[name])
            return FunctionVariable(function).call_function(tx, [self, *args], kwargs)
        return call_method(self, tx, name, args, kwargs)

    def call_our_class(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if _name(self.value) in table.CONTEXTS:
            return _context(tx, self.value, args, kwargs)
        return call_class(self, tx, args, kwargs)

    def before_our_with(self: Any, inst: Any) -> None:
        top = self.stack[-1].realize()
        if hasattr(getattr(top, "value", None), "axis_names"):  # a mesh
            self.stack[-1] = MeshVariable(top)
        before_with(self, inst)

    trace_rules._lookup_inner = lookup_ours
    trace_rules.get_legacy_mod_inlinelist = functools.cache(lambda: {*inlined(), *map(_path, table.TRACED_FILES)})
    variables.TensorVariable.call_method = call_our_method  # type: ignore[method-assign]
    variables.UserDefinedClassVariable.call_function = call_our_class  # type: ignore[method-assign]
    InstructionTranslatorBase.setup_or_before_with = before_our_with  # type: ignore[method-assign]


def _path(name: str) -> str:
    return str(Path(__file__).parents[2] / name)
