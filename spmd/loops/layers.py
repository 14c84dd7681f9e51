"""`spmd.scan_layers`: isomorphic layers in sequence as one loop whose iterations read each layer's own weights."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from ..core import LOCK, XlaTensor, ends_at_user_line, view_of
from ..core.extend import record_calls
from .gradient import Tensors
from .layer_match import LayersDifferError, LayerTensor, Numbered, check_same_in_all, settings_of
from .loop import ScanInput, run_loop
from .scan import Policy, carried, on_device, refilled, tensors_of, with_policy


@ends_at_user_line
def scan_layers(layers: Iterable[nn.Module], x: Any, *args: Any, policy: Policy = None, **kwargs: Any) -> Any:
    """Applies layers that differ only in their weights, one after the other, as one loop of the program.

    The same as

        for layer in layers:
            x = layer(x, *args, **kwargs)

    but the first layer's forward runs once in Python, with stand-ins for weights, and XLA compiles it once, whatever
    the number of layers. Each parameter gets its gradient, sharded like it; under FSDP an iteration gathers the weights
    of its own layer, in backward again, and reduces its own gradients. Buffers are read and written per layer. Dropout
    draws the numbers of the Python loop. Forward hooks run once, for all layers, and an attribute that forward sets on
    a layer does not stay. A whole number that differs between
    layers, such as a layer's index, is an error only where forward reads it. Without a tensor on xla in `x` this is the
    Python loop.

    Args:
        layers: modules of one class and the same settings, of any number.
        x: a pytree of tensors, a tuple too as one argument; the result of a layer has the same structure, shapes and
            dtypes. A layer may write in place into its argument, which leaves `x` as it is.
        args, kwargs: the same for each layer; gradients reach tensors among them.
        policy: the values of a layer that are saved for its backward, as `spmd.remat` takes it ("nothing": only the
            carry between layers; "dots": products, too; one of `spmd.checkpoint_policies`), or a list of ops or a
            function as `torch.utils.checkpoint.create_selective_checkpoint_contexts` takes it. None: autograd's choice.

    Raises LayersDifferError (a ValueError) that names the first difference (path, class, shape, dtype, setting, buffer,
    hook); the errors of `spmd.scan`. Source: `torch_xla.experimental.scan_layers`.

    >>> import torch, spmd
    >>> layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3)).to("xla")
    >>> y = spmd.scan_layers(layers, torch.ones(2, 4, device="xla"))
    >>> y.sum().backward()
    >>> layers[2].weight.grad.shape
    torch.Size([4, 4])
    """
    chosen = list(layers)
    if not chosen or not on_device("scan_layers", x):
        return layer_by_layer(chosen, x, *args, policy=policy, **kwargs)
    matches, numbered = check_same_in_all(chosen)
    for each in matches:
        for k, tensor in enumerate(each.tensors):
            if type(tensor) is not XlaTensor or view_of(tensor) is not None:
                kind = "a view" if type(tensor) is XlaTensor else f"on {tensor.device}"
                raise TypeError(
                    f"spmd.scan_layers: layers[{k}].{each.path} is {kind}; expected a tensor of its own on xla"
                )
    replaced: list[LayerTensor] = []

    def body(carry: Tensors, _: Tensors) -> tuple[Tensors, Tensors]:
        result = with_policy(chosen[0], policy, "scan_layers")(refilled(x, carry), *args, **kwargs)
        replaced[:] = [each for each in matches if each.is_buffer and _now(chosen[0], each) is not each.tensors[0]]
        return carried("spmd.scan_layers", x, result), [_now(chosen[0], each) for each in replaced]

    xs = [ScanInput(each.tensors, is_stack=False) for each in matches]  # type: ignore[arg-type]  # checked above
    with _as_every_layer(chosen[0], numbered):
        last, stacks, written = run_loop("spmd.scan_layers", body, tensors_of(x), xs, len(chosen))
    for i, new in written.items():
        for old, tensor in zip(matches[i].tensors, new, strict=True):
            _write(old, tensor)
    for each, stack in zip(replaced, stacks, strict=True):
        for layer, tensor in zip(chosen, stack.detach(), strict=True):
            _owner(layer, each)._buffers[each.name] = tensor.clone()
    return refilled(x, last)


def layer_by_layer(layers: Iterable[nn.Module], x: Any, *args: Any, policy: Policy = None, **kwargs: Any) -> Any:
    """Applies layers as `scan_layers` does, but one by one: in a graph of torch.compile, in which the passes find them
    again."""
    for layer in layers:
        x = with_policy(layer, policy, "scan_layers")(x, *args, **kwargs)
    return x


def _owner(layer: nn.Module, each: LayerTensor) -> nn.Module:
    return layer.get_submodule(each.owner)


def _now(layer: nn.Module, each: LayerTensor) -> Any:
    return _owner(layer, each)._buffers.get(each.name)


def _write(target: Any, new: XlaTensor) -> None:
    with LOCK:
        record_calls.write(target, record_calls.read(new))
    torch._C._increment_version([target])


@contextlib.contextmanager
def _as_every_layer(layer: nn.Module, numbered: Sequence[tuple[nn.Module, str, Numbered]]) -> Iterator[None]:
    """While the body is recorded, replaces numbers that differ between layers by objects that raise when read. Takes
    back what forward sets on the layer's modules: it runs for one layer, which stays like the others."""
    kept = [(module, settings_of(module)) for module in layer.modules()]
    for module, name, stand_in in numbered:
        vars(module)[name] = stand_in
    try:
        yield
    except Exception as error:
        read = [stand_in for _, _, stand_in in numbered if stand_in.is_read]
        if not read or isinstance(error, LayersDifferError):
            raise
        raise read[0].error() from error  # torch has raised an error of its own in place of this one
    finally:
        for module, settings in kept:
            for name in settings_of(module).keys() - settings.keys():
                del vars(module)[name]
            vars(module).update(settings)
