"""`spmd.scan_layers`: equal layers, one after the other, as one loop whose turns have each layer's own weights."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..lazy.cell import LOCK
from ..lazy.tensor import XlaTensor
from ..lazy.views import read, write
from .alike import LayersDifferError, Numbered, check_alike
from .alike import Tensors as Own
from .loop import Rows, Tensors, run_loop
from .scan import Policy, carried, on_device, with_policy


def scan_layers(layers: Iterable[nn.Module], x: Any, *args: Any, policy: Policy = None, **kwargs: Any) -> Any:
    """Applies layers that differ in their weights alone one after the other, as one loop of the program.

    The same as

        for layer in layers:
            x = layer(x, *args, **kwargs)

    but the first layer's forward runs once in Python, with stand-ins for weights, and XLA compiles it once, whatever
    the number of layers. Each parameter gets its gradient, laid out like it; under FSDP a turn gathers the weights of
    its own layer, in backward again, and reduces its own gradients. Buffers are read and written per layer. Dropout
    draws what the plain loop draws. Forward hooks run once, for all layers. A whole number that differs between layers,
    such as a layer's index, is refused only where forward looks at it. Without a tensor on xla in `x` it is the plain
    loop.

    Args:
        layers: modules of one class and the same settings, of any number.
        x: a pytree of tensors, a tuple too as one argument; what a layer returns has the same structure, shapes and
            dtypes. A layer may write in place into what it is given, which leaves `x` as it is.
        args, kwargs: the same for each layer; gradients reach tensors among them.
        policy: what of a layer is kept for its backward, as `spmd.remat` takes it ("nothing": only what goes from layer
            to layer; "dots": products, too; one of `spmd.checkpoint_policies`), or a list of ops or a function as
            `torch.utils.checkpoint.create_selective_checkpoint_contexts` takes it. None: what autograd saves.

    Raises LayersDifferError (a ValueError) that names the first difference (path, class, shape, dtype, setting, buffer,
    hook); what `spmd.scan` raises. Source: `torch_xla.experimental.scan_layers`.

    >>> import torch, spmd
    >>> layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3)).to("xla")
    >>> y = spmd.scan_layers(layers, torch.ones(2, 4, device="xla"))
    >>> y.sum().backward()
    >>> layers[2].weight.grad.shape
    torch.Size([4, 4])
    """
    chosen = list(layers)
    if not chosen or not on_device("scan_layers", x):
        for layer in chosen:
            x = with_policy(layer, policy, "scan_layers")(x, *args, **kwargs)
        return x
    own, numbered = check_alike(chosen)
    for each in own:
        for k, tensor in enumerate(each.tensors):
            if type(tensor) is not XlaTensor or tensor._view is not None:
                what = "a view" if type(tensor) is XlaTensor else f"on {tensor.device}"
                raise TypeError(
                    f"spmd.scan_layers: layers[{k}].{each.path} is {what}; expected a tensor of its own on xla"
                )
    flat, tree = tree_flatten(x)
    places = [i for i, leaf in enumerate(flat) if isinstance(leaf, torch.Tensor)]
    replaced: list[Own] = []

    def body(carry: Tensors, _: Tensors) -> tuple[Tensors, Tensors]:
        given = list(flat)
        for place, tensor in zip(places, carry, strict=True):
            given[place] = tensor
        made = with_policy(chosen[0], policy, "scan_layers")(tree_unflatten(given, tree), *args, **kwargs)
        replaced[:] = [each for each in own if each.is_buffer and _now(chosen[0], each) is not each.tensors[0]]
        return carried("spmd.scan_layers", x, made), [_now(chosen[0], each) for each in replaced]

    rows = [Rows(each.tensors, is_whole=False) for each in own]  # type: ignore[arg-type]  # checked above
    init = [flat[i] for i in places]
    with _Settings(numbered):
        last, stacks, written = run_loop("spmd.scan_layers", body, init, rows, len(chosen))
    for each, new in zip(own, written, strict=True):
        for old, tensor in zip(each.tensors, new or (), strict=False):
            _write(old, tensor)
    for each, stack in zip(replaced, stacks, strict=True):
        for layer, tensor in zip(chosen, stack.detach(), strict=True):
            _owner(layer, each)._buffers[each.name] = tensor.clone()
    final = list(flat)
    for place, tensor in zip(places, last, strict=True):
        final[place] = tensor
    return tree_unflatten(final, tree)


def _owner(layer: nn.Module, each: Own) -> nn.Module:
    return layer.get_submodule(each.owner)


def _now(layer: nn.Module, each: Own) -> Any:
    return _owner(layer, each)._buffers.get(each.name)


def _write(target: Any, new: XlaTensor) -> None:
    with LOCK:
        write(target, read(new))
    torch._C._increment_version([target])


class _Settings:
    """While the body is recorded, numbers that differ between layers are what says so when it is looked at."""

    def __init__(self, numbered: Sequence[tuple[nn.Module, str, Numbered]]):
        self.numbered = numbered

    def __enter__(self) -> None:
        self.before = [vars(module)[name] for module, name, _ in self.numbered]
        for module, name, stand_in in self.numbered:
            vars(module)[name] = stand_in

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        for (module, name, _), value in zip(self.numbered, self.before, strict=True):
            vars(module)[name] = value
        if error is not None and not isinstance(error, LayersDifferError):
            for _, _, stand_in in self.numbered:
                if stand_in.is_read:  # torch has made an error of its own of it
                    raise stand_in.error() from error
