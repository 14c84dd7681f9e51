"""Every module of torch's module database on `xla` against CPU: results, gradients, buffers, and
the module's habits.

    python tests/sweep/modules.py  # two inputs of each, training mode
    python tests/sweep/modules.py --samples 0 --ways train,eval --ops 'RNN|LSTM'
    python tests/sweep/modules.py --samples 0 --ways channels_last,gradgrad,float64,bfloat16

A module is made on CPU, copied, moved, and called with inputs that ask for gradients. The ways:
training, evaluation mode where it differs, another dtype, inputs and parameters and gradients that
are not contiguous or lie channels last, the gradient of the gradient, and habits: pickling,
copying, state, dtypes, construction on the device (`habits.py`).
"""

import copy
import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_utils import noncontiguous_like
from torch.utils._pytree import tree_flatten, tree_map

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from sweep import cases, habits
from sweep.cases import WIDER, Outcome, Pair
from sweep.command import UNTRIED, Result, Sweep, main

MODULES = {info.name: info for info in module_db}
NAMES = tuple(MODULES)

# (name, way) -> reason.
_NO_BATCH = (
    "CPU gives the gradient of an input without a batch dim other strides than the same input "
    "with one"
)
EXPECTED: dict[tuple[str, str], str] = {
    ("nn.ConvTranspose3d", "channels_last"): _NO_BATCH,
    ("nn.LazyConvTranspose3d", "channels_last"): _NO_BATCH,
    (
        "nn.TransformerEncoder",
        "bfloat16",
    ): "a relu at zero: the rounding of what comes before decides its gradient",
    (
        "nn.NLLLoss",
        "channels_last",
    ): "CPU's kernel refuses a gradient that is not contiguous; xla takes it",
}

PER_PROGRAM = 20


@dataclass(frozen=True, slots=True)
class Way:
    """The ways in which the inputs of a module are tried."""

    dtype: torch.dtype = torch.float32
    training: bool = True
    memory: str = "contiguous"
    is_twice: bool = False


WAYS = {
    "train": Way(),
    "eval": Way(training=False),
    "float64": Way(torch.float64),
    "bfloat16": Way(torch.bfloat16),
    "noncontiguous": Way(memory="noncontiguous"),
    "channels_last": Way(memory="channels_last"),
    # two roundings more than the tolerance of float32 is for
    "gradgrad": Way(torch.float64, is_twice=True),
    "habits": Way(),
}


def inputs(info: Any, way: Way, count: int) -> list[Any]:
    """The database's inputs of a module, the first `count` of them or (0) all."""
    given = info.module_inputs_func(
        info, device="cpu", dtype=way.dtype, requires_grad=True, training=way.training
    )
    return given[: count or None]


def build(info: Any, given: Any, way: Way, device: str, wide: bool = False) -> nn.Module:
    """The module of one input on a device; the same weights everywhere."""
    torch.manual_seed(0)
    constructor = given.constructor_input
    # A loss is given its weights, which are of the inputs' dtype already.
    made = info.module_cls(
        *copy.deepcopy(constructor.args), **copy.deepcopy(constructor.kwargs)
    ).to(way.dtype)
    made.train(way.training)
    if info.is_lazy:
        with torch.no_grad():
            call(made, given, way, "cpu", [])
    made = copy.deepcopy(made)
    if wide:
        made = made.to(WIDER.get(way.dtype, way.dtype))
    return made.to(device)


def call(
    module: nn.Module,
    given: Any,
    way: Way,
    device: str,
    leaves: list[torch.Tensor],
    wide: bool = False,
) -> Any:
    """Calls the module with its inputs on a device; inputs that ask for gradients are added to
    `leaves`."""

    def move(value: Any) -> Any:
        if isinstance(value, PackedSequence):
            data, sizes, *orders = value
            return PackedSequence(move(data), sizes, *map(move, orders))
        if not isinstance(value, torch.Tensor):
            return value
        moved = (
            value.detach()
            .clone()
            .to(device, WIDER.get(value.dtype, value.dtype) if wide else value.dtype)
        )
        moved = lay(moved, way.memory)
        if value.requires_grad:
            leaves.append(moved.requires_grad_())
        return moved

    forward = given.forward_input
    args, kwargs = tree_map(move, (forward.args, forward.kwargs))
    return module(*args, **kwargs)


def lay(tensor: torch.Tensor, memory: str) -> torch.Tensor:
    """The same values as they are to lie in memory."""
    if memory == "noncontiguous":
        return noncontiguous_like(tensor) if tensor.numel() > 1 else tensor
    if memory == "channels_last" and tensor.dim() in (4, 5):
        return tensor.contiguous(
            memory_format=torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
        )
    return tensor


def compute(
    info: Any, given: Any, way: Way, device: str, seed: int = 0, wide: bool = False
) -> list[Any]:
    """Results, gradients of inputs and parameters, buffers; where the memory is special also the
    results' strides."""
    module = build(info, given, way, device, wide)
    for parameter in module.parameters():
        parameter.data = lay(parameter.data, way.memory)
    leaves: list[torch.Tensor] = []
    torch.manual_seed(seed)
    result = call(module, given, way, device, leaves, wide)
    leaves += [parameter for parameter in module.parameters() if parameter.requires_grad]
    outputs = [
        out.data if isinstance(out, PackedSequence) else out for out in tree_flatten(result)[0]
    ]
    shown: list[Any] = list(outputs)
    if way.memory != "contiguous":
        shown += [out.stride() for out in outputs if isinstance(out, torch.Tensor)]
    wanted = [out for out in outputs if isinstance(out, torch.Tensor) and out.requires_grad]
    if wanted and leaves:
        shown += gradients(wanted, leaves, way)
    return [*shown, *(buffer.clone() for buffer in module.buffers())]


def gradients(
    wanted: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor], way: Way
) -> list[torch.Tensor | None]:
    """The gradient of each leaf, and where wanted the gradient of these."""
    cotangents = [lay(cases.cotangent(out), way.memory) for out in wanted]
    if not way.is_twice:
        torch.autograd.backward(wanted, cotangents)
        return [leaf.grad for leaf in leaves]
    first = torch.autograd.grad(wanted, leaves, cotangents, allow_unused=True, create_graph=True)
    again = [grad for grad in first if grad is not None and grad.requires_grad]
    if not again:
        return list(first)
    weights = [cases.cotangent(grad) for grad in again]
    return [*first, *torch.autograd.grad(again, leaves, weights, allow_unused=True)]


def case(info: Any, way: Way, count: int) -> Callable[[Outcome], None]:
    """The inputs of a module, tried in one way."""

    def tried(outcome: Outcome) -> None:
        numbered = enumerate(inputs(info, way, count))
        while some := list(itertools.islice(numbered, PER_PROGRAM)):
            pairs = []
            for index, given in some:
                on = functools.partial(compute, info, given, way)
                what = f"input {index} {given.desc}".strip()
                found = outcome.both(what, on)
                if found is not None:
                    exact, draws = (
                        functools.partial(on, "cpu", wide=True),
                        functools.partial(_draws, on),
                    )
                    pairs.append(Pair(what, *found, exact, draws))
            outcome.check(pairs)

    return tried


def _draws(on: Callable[..., list[Any]]) -> list[list[Any]]:
    return [on("cpu", seed=seed) for seed in range(1, 9)]


def is_tried(info: Any, name: str) -> bool:
    """True for a way that this module has."""
    return not (name == "eval" and not info.train_and_eval_differ) and not (
        WAYS[name].is_twice and not info.supports_gradgrad
    )


def run_named(name: str, way: str, count: int = 0) -> Result:
    """One module of the database in one way, by their names."""
    info = MODULES[name]
    if not is_tried(info, way):
        return Result(name, way, UNTRIED)
    if way == "habits":
        tried = functools.partial(_habits, info, inputs(info, WAYS[way], 1)[0])
        return cases.run(name, way, tried)[0]
    return cases.run(name, way, case(info, WAYS[way], count))[0]


def _habits(info: Any, given: Any, outcome: Outcome) -> None:
    def forward(module: nn.Module, device: str) -> Any:
        return call(module, given, WAYS["habits"], device, [])

    def made(device: str) -> nn.Module:
        return build(info, given, WAYS["habits"], device)

    habits.check(outcome, info, given, made, forward)


def is_expected(name: str, way: str) -> bool:
    """True for a module that is known to fail in a way."""
    return (name, way) in EXPECTED


if __name__ == "__main__":
    title = "modules of torch.testing, xla against CPU"
    main(Sweep(__file__, title, __doc__, NAMES, "ways", "train", run_named, is_expected))
