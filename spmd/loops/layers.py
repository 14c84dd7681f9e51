"""`spmd.scan_layers`: isomorphic layers in sequence as one loop whose iterations read each layer's
own weights."""

import contextlib
import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..core import LOCK, XlaTensor, dense_meta, described, ends_at_user_line, view_of
from ..core.extend import views
from .gradient import Tensors
from .loop import ScanInput, run_loop
from .scan import Policy, carried, on_device, refilled, tensors_of, with_policy

# --- the check that layers are isomorphic: one of them represents all while the body of a loop is
# recorded

_OWN = frozenset(vars(nn.Module()))  # torch's own attributes of a module
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called",
)


class LayersDifferError(ValueError):
    """Raised for layers that cannot be one loop because they differ; the message names the first
    difference.

    >>> import torch, spmd
    >>> layers = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4, bias=False)]).to(
    ...     "xla"
    ... )
    >>> try:
    ...     spmd.scan_layers(layers, torch.ones(2, 4, device="xla"))
    ... except spmd.LayersDifferError as error:
    ...     print(error)
    spmd.scan_layers: the layers differ: layers[0].bias is float32[4], layers[1].bias is None
    """


@dataclass(frozen=True, slots=True)
class LayerTensor:
    """A parameter or buffer of every layer: its path in a layer, and its tensors, one per layer."""

    path: str
    owner: str
    name: str
    tensors: list[torch.Tensor]
    is_buffer: bool


class Numbered:
    """A stand-in for a whole number that differs from layer to layer, such as a layer's index: it
    may be passed on, and reading it raises LayersDifferError."""

    def __init__(self, path: str, numbers: Sequence[int]):
        self.path, self.numbers = path, numbers
        self.is_read = False

    def error(self) -> LayersDifferError:
        return LayersDifferError(
            f"spmd.scan_layers: the layers differ: {self.path} is "
            f"{', '.join(map(str, self.numbers[:4]))}{', ...' if len(self.numbers) > 4 else ''}, "
            "and their forward depends on it"
        )

    def refuse(self, *_: Any) -> Any:
        self.is_read = True
        raise self.error()


for _name in (
    "index", "int", "float", "bool", "eq", "ne", "lt", "le", "gt", "ge", "hash", "add", "radd",
    "sub", "rsub", "mul", "rmul", "floordiv", "truediv", "mod", "rmod", "pow", "neg", "abs",
    "format", "str", "getitem", "len", "iter",
):  # fmt: skip
    setattr(Numbered, f"__{_name}__", Numbered.refuse)


def check_same_in_all(
    layers: Sequence[nn.Module],
) -> tuple[list[LayerTensor], list[tuple[nn.Module, str, Numbered]]]:
    """Returns each layer's own tensors, and the whole numbers that differ.

    Raises LayersDifferError.
    """
    paths = [dict(layer.named_modules(remove_duplicate=False)) for layer in layers]
    numbers: dict[tuple[str, str], list[int]] = {}
    for k in range(1, len(layers)):
        _Pair(paths[0], paths[k], k).check(numbers)
    numbered = []
    for (path, name), later_numbers in numbers.items():
        first = getattr(paths[0][path], name)
        numbered.append(
            (
                paths[0][path],
                name,
                Numbered(f"layers[i].{_join(path, name)}", [first, *later_numbers]),
            )
        )
    return list(_tensors(paths)), numbered


def _tensors(paths: Sequence[Mapping[str, nn.Module]]) -> Iterator[LayerTensor]:
    """Yields every parameter and buffer once, but for tensors that all layers share."""
    visited: set[int] = set()
    for path, module in paths[0].items():
        for name, tensor in _state(module).items():
            if tensor is None or id(tensor) in visited:
                continue
            visited.add(id(tensor))
            all_of_them = [_state(modules[path])[name] for modules in paths]
            if len(paths) == 1 or any(twin is not tensor for twin in all_of_them):
                yield LayerTensor(
                    _join(path, name), path, name, all_of_them, name in module._buffers
                )


def _state(module: nn.Module) -> dict[str, Any]:
    """A module's own parameters and buffers; None for those that it goes without."""
    return {**module._parameters, **module._buffers}


def settings_of(module: nn.Module) -> dict[str, Any]:
    """The attributes that a user has given a module."""
    return {name: value for name, value in vars(module).items() if name not in _OWN}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _outline(modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yields the path of each part of a layer, with the words for it, and those for a layer that
    goes without it."""
    for path, module in modules.items():
        yield path, (f"is a {type(module).__module__}.{type(module).__qualname__}", "is not there")
        yield _join(path, "training"), (f"is {module.training}", "is not there")
        for name, tensor in _state(module).items():
            yield _join(path, name), (f"is {_shown(tensor)}", "is None")
        for kind in _HOOKS:
            yield _join(path, kind), (f"has {len(vars(module)[kind])} hooks", "is not there")
        for name in settings_of(module):
            yield _join(path, name), ("is set", "is not set")


class _Pair:
    """The comparison of the first layer with another: first the outlines, then part by part."""

    def __init__(
        self, first: Mapping[str, nn.Module], second_layer: Mapping[str, nn.Module], k: int
    ):
        self.first, self.other, self.k = first, second_layer, k
        self.twins: dict[int, Any] = {}  # the other layer's object by the id of the first layer's
        self.compared: set[tuple[int, int]] = set()

    def _differ(self, path: str, first_text: str, second_text: str) -> LayersDifferError:
        where = f".{path}" if path else ""
        return LayersDifferError(
            f"spmd.scan_layers: the layers differ: layers[0]{where} {first_text}, "
            f"layers[{self.k}]{where} {second_text}"
        )

    def check(self, numbers: dict[tuple[str, str], list[int]]) -> None:
        first, second = dict(_outline(self.first)), dict(_outline(self.other))
        for path in first | second:
            a = first[path][0] if path in first else second[path][1]
            b = second[path][0] if path in second else first[path][1]
            if a != b:
                raise self._differ(path, a, b)
        pairs = [(path, module, self.other[path]) for path, module in self.first.items()]
        for _, module, twin in pairs:
            self.twins[id(module)] = twin
            for name, tensor in _state(module).items():
                self.twins.setdefault(id(tensor), _state(twin).get(name))
        for path, module, twin in pairs:
            for name, tensor in _state(module).items():
                if tensor is not None and self.twins[id(tensor)] is not _state(twin)[name]:
                    raise self._differ(
                        _join(path, name), "is tied to another tensor of its layer", "is not"
                    )
            self._check_hooks(path, module, twin)
            for name, a in settings_of(module).items():
                b = vars(twin)[name]
                if type(a) is int and type(b) is int:
                    if a != b or (path, name) in numbers:
                        numbers.setdefault((path, name), [a] * (self.k - 1)).append(b)
                elif not self.same(a, b):
                    raise self._differ(_join(path, name), f"is {_text(a)}", f"is {_text(b)}")

    def _check_hooks(self, path: str, module: nn.Module, twin: nn.Module) -> None:
        for kind in _HOOKS:
            for a, b in zip(vars(module)[kind].values(), vars(twin)[kind].values(), strict=True):
                if not self.same(a, b):
                    raise self._differ(
                        _join(path, kind),
                        f"has the hook {_hook(a)}",
                        f"has {_hook(b)}, with other data: one hook stands for all layers and "
                        "cannot know which of them runs; use the same function for all, or remove "
                        "it",
                    )

    def same(self, a: Any, b: Any) -> bool:
        """True if two objects do the same, each in its layer."""
        if a is b or self.twins.get(id(a), self) is b:
            return True
        if type(a) is not type(b) or isinstance(a, (nn.Module, torch.Tensor)):
            return False
        if isinstance(a, (list, tuple)):
            return len(a) == len(b) and all(map(self.same, a, b))
        if isinstance(a, dict):
            return a.keys() == b.keys() and all(self.same(a[key], b[key]) for key in a)
        if isinstance(a, types.FunctionType):
            return a.__code__ is b.__code__ and self.same(_around(a), _around(b))
        if isinstance(a, types.MethodType):
            return self.same(a.__func__, b.__func__) and self.same(a.__self__, b.__self__)
        if isinstance(a, functools.partial):
            return self.same((a.func, a.args, a.keywords), (b.func, b.args, b.keywords))
        if type(a).__eq__ is not object.__eq__:
            return bool(a == b)
        if (id(a), id(b)) in self.compared:
            return True
        self.compared.add((id(a), id(b)))
        return self.same(_public(a), _public(b))


def _around(function: types.FunctionType) -> tuple[Any, ...]:
    """The closure, defaults and keyword defaults of a function."""
    closure = [cell.cell_contents for cell in function.__closure__ or ()]
    return (*closure, *(function.__defaults__ or ()), function.__kwdefaults__)


def _public(value: Any) -> dict[str, Any]:
    """An object's attributes without an underscore."""
    return {
        name: part
        for name, part in getattr(value, "__dict__", {}).items()
        if not name.startswith("_")
    }


def _shown(tensor: torch.Tensor | None) -> str:
    return "None" if tensor is None else repr(dense_meta(tensor.shape, tensor.dtype))


def _hook(hook: Callable[..., Any]) -> str:
    return getattr(hook, "__qualname__", None) or described(hook)


def _text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor {_shown(value)} that is neither parameter nor buffer"
    return described(value, 80)


# --- the loop -------------------------------------------------------------------------------------


@ends_at_user_line
def scan_layers(
    layers: Iterable[nn.Module], x: Any, *args: Any, policy: Policy = None, **kwargs: Any
) -> Any:
    """Applies layers that differ only in their weights, one after the other, as one loop of the
    program.

    The same as

        for layer in layers:
            x = layer(x, *args, **kwargs)

    but the first layer's forward runs once in Python, with stand-ins for weights, and XLA compiles
    it once, whatever the number of layers. Each parameter gets its gradient, sharded like it; under
    FSDP an iteration gathers the weights of its own layer, in backward again, and reduces its own
    gradients. Buffers are read and written per layer. Dropout draws the numbers of the Python loop.
    Forward hooks run once, for all layers, and an attribute that forward sets on a layer does not
    stay. A whole number that differs between layers, such as a layer's index, is an error only
    where forward reads it. Without a tensor on xla in `x` this is the Python loop.

    Args:
        layers: modules of one class and the same settings, of any number.
        x: a pytree of tensors, a tuple too as one argument; the result of a layer has the same
            structure, shapes and dtypes. A layer may write in place into its argument, which leaves
            `x` as it is.
        args, kwargs: the same for each layer; gradients reach tensors among them.
        policy: the values of a layer that are saved for its backward, as `spmd.remat` takes it
            ("nothing": only the carry between layers; "dots": products, too; one of
            `spmd.checkpoint_policies`), or a list of ops or a function as
            `torch.utils.checkpoint.create_selective_checkpoint_contexts` takes it. None: autograd's
            choice.

    Raises LayersDifferError (a ValueError) that names the first difference (path, class, shape,
    dtype, setting, buffer, hook); the errors of `spmd.scan`. Source:
    `torch_xla.experimental.scan_layers`.

    >>> import torch, spmd
    >>> layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3)).to("xla")
    >>> y = spmd.scan_layers(layers, torch.ones(2, 4, device="xla"))
    >>> y.sum().backward()
    >>> layers[2].weight.grad.shape
    torch.Size([4, 4])
    """
    layer_list = list(layers)
    if others := [layer for layer in layer_list if not isinstance(layer, nn.Module)]:
        raise TypeError(f"scan_layers: expected layers as modules, got {others[0]!r}")
    if not layer_list or not on_device("scan_layers", x):
        return layer_by_layer(layer_list, x, *args, policy=policy, **kwargs)
    matches, numbered = check_same_in_all(layer_list)
    for layer_tensor in matches:
        for k, tensor in enumerate(layer_tensor.tensors):
            if not isinstance(tensor, XlaTensor) or view_of(tensor) is not None:
                kind = "a view" if isinstance(tensor, XlaTensor) else f"on {tensor.device}"
                raise TypeError(
                    f"spmd.scan_layers: layers[{k}].{layer_tensor.path} is {kind}; expected a "
                    "tensor of its own on xla"
                )
    replaced: list[LayerTensor] = []

    def body(carry: Tensors, _: Tensors) -> tuple[Tensors, Tensors]:
        result = with_policy(layer_list[0], policy, "scan_layers")(
            refilled(x, carry), *args, **kwargs
        )
        replaced[:] = [
            layer_tensor
            for layer_tensor in matches
            if layer_tensor.is_buffer
            and _now(layer_list[0], layer_tensor) is not layer_tensor.tensors[0]
        ]
        return carried("spmd.scan_layers", x, result), [
            _now(layer_list[0], layer_tensor) for layer_tensor in replaced
        ]

    xs = [ScanInput(layer_tensor.tensors, is_stack=False) for layer_tensor in matches]  # type: ignore[arg-type]  # checked above
    with _as_every_layer(layer_list[0], numbered):
        last, stacks, written = run_loop(
            "spmd.scan_layers", body, tensors_of(x), xs, len(layer_list)
        )
    for i, new in written.items():
        for old, tensor in zip(matches[i].tensors, new, strict=True):
            _write(old, tensor)
    for layer_tensor, stack in zip(replaced, stacks, strict=True):
        for layer, tensor in zip(layer_list, stack.detach(), strict=True):
            _owner(layer, layer_tensor)._buffers[layer_tensor.name] = tensor.clone()
    return refilled(x, last)


def layer_by_layer(
    layers: Iterable[nn.Module], x: Any, *args: Any, policy: Policy = None, **kwargs: Any
) -> Any:
    """Applies layers as `scan_layers` does, but one by one: in a graph of torch.compile, in which
    the passes find them again."""
    for layer in layers:
        x = with_policy(layer, policy, "scan_layers")(x, *args, **kwargs)
    return x


def _owner(layer: nn.Module, layer_tensor: LayerTensor) -> nn.Module:
    return layer.get_submodule(layer_tensor.owner)


def _now(layer: nn.Module, layer_tensor: LayerTensor) -> Any:
    return _owner(layer, layer_tensor)._buffers.get(layer_tensor.name)


def _write(target: Any, new: XlaTensor) -> None:
    with LOCK:
        views.write(target, views.read(new))
    torch._C._increment_version([target])


@contextlib.contextmanager
def _as_every_layer(
    layer: nn.Module, numbered: Sequence[tuple[nn.Module, str, Numbered]]
) -> Iterator[None]:
    """While the body is recorded, replaces numbers that differ between layers by objects that raise
    when read. Takes back what forward sets on the layer's modules: it runs for one layer, which
    stays like the others."""
    old_settings = [(module, settings_of(module)) for module in layer.modules()]
    for module, name, stand_in in numbered:
        vars(module)[name] = stand_in
    try:
        yield
    except Exception as error:
        read = [stand_in for _, _, stand_in in numbered if stand_in.is_read]
        if not read or isinstance(error, LayersDifferError):
            raise
        # torch has raised an error of its own in place of this one
        raise read[0].error() from error
    finally:
        for module, settings in old_settings:
            for name in settings_of(module).keys() - settings.keys():
                del vars(module)[name]
            vars(module).update(settings)
