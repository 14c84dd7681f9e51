"""The uses of a model's parameters, observed in one forward pass: consecutive products, lookups,
heads.

No use is inferred from a name. A product whose operand is not sharded yet can be sharded along the
dim that it makes; one that reads such a dim, along the dim that it sums over (arXiv:1909.08053).
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ...core import Storage, XlaTensor, storage_of
from ...rules.applied import tensors

aten = torch.ops.aten

# The positions of a product's operands.
_PRODUCTS = {
    aten.mm.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten.bmm.default: (0, 1),
    aten.baddbmm.default: (1, 2),
    aten._grouped_mm.default: (0, 1),
}
_COPIES = {aten._to_copy.default, aten.clone.default, aten.detach.default, aten.alias.default}
_SPLITS = {aten.view.default, aten._unsafe_view.default, aten.reshape.default}
_NORMS = {
    aten.native_layer_norm.default,
    aten._fused_rms_norm.default,
    aten.mean.dim,
    aten.sum.dim_IntList,
    aten.var.correction,
    aten.var_mean.correction,
}


@dataclass
class Use:
    """The use of one parameter.

    kind: "first" (a product whose operand is unsharded), "second" (one that sums over a dim which
    first ones made) or "lookup". free, summed: the parameter's dims that a product makes and sums
    over; for a lookup, `free` is the dim that is looked up. size, length: of these two dims. heads:
    the number of heads in the dim it makes. partners: for a second product, the first ones that it
    reads; keys and values may have fewer heads than queries. is_whole: True if an op needs the dim
    that it makes unsharded. module: the module of the parameter. reads: the module that returns its
    operand, if any. biases: the parameters added to its result.
    """

    path: str
    kind: str
    free: int
    summed: int
    size: int
    length: int
    heads: int | None = None
    partners: frozenset[str] = frozenset()
    is_whole: bool = False
    reads: str | None = None
    biases: set[str] = field(default_factory=set)

    @property
    def module(self) -> str:
        return self.path.rpartition(".")[0]


class HeldParameter(NamedTuple):
    """A parameter, or a cast of it, with its dims by stride."""

    path: str
    dims: dict[int, int]


class UseObserver(TorchDispatchMode):
    """Observes a forward pass. uses: by parameter. shapes: (module, "input" or "output") -> shape
    of the first tensor. recomputed: modules called outside of the model's call (recomputed in
    backward). returned: shapes of the model's results. parameters: shapes by path."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self.uses: dict[str, Use] = {}
        self.shapes: dict[tuple[str, str], tuple[int, ...]] = {}
        self.recomputed: set[str] = set()
        self.returned: set[tuple[int, ...]] = set()
        self.parameters = {
            path: tuple(parameter.shape)
            for path, parameter in model.named_parameters(remove_duplicate=False)
        }
        self._held: dict[Storage, HeldParameter] = {}
        self._open: dict[Storage, frozenset[str]] = {}
        self._made_by: dict[Storage, str] = {}
        self._depth = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observes the calls of the model inside the context."""
        for path, parameter in self.model.named_parameters():
            if isinstance(parameter, XlaTensor):
                dims = {parameter.stride(dim): dim for dim in reversed(range(parameter.dim()))}
                self._held[storage_of(parameter)] = HeldParameter(path, dims)
        with ExitStack() as hooks:
            for path, module in self.model.named_modules():
                hooks.enter_context(
                    module.register_forward_pre_hook(partial(self._begin, path), with_kwargs=True)
                )
                hooks.enter_context(
                    module.register_forward_hook(partial(self._end, path), always_call=not path)
                )
            # Also around the backward pass: a recomputation must record the same under a mode as
            # the first forward.
            with self:
                yield

    def _begin(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._depth += not path
        self._note(path, "input", (args, kwargs))

    def _end(self, path: str, module: nn.Module, args: Any, output: Any) -> None:
        self._note(path, "output", output)
        self._depth -= not path

    def _note(self, path: str, side: str, value: Any) -> None:
        """Records the inputs or outputs of a module."""
        if not self._depth and path:
            self.recomputed.add(path)
            return
        if not path and side == "output":
            self.returned |= {tuple(tensor.shape) for tensor in tensors(value)}
        noted = [tensor for tensor in tensors(value) if tensor.dim() or side == "output"]
        # Where images or tokens come with a vector (steps of a diffusion, lengths), they are the
        # batch.
        for tensor in sorted(noted, key=lambda tensor: side == "input" and tensor.dim() < 2)[:1]:
            self.shapes.setdefault((path, side), tuple(tensor.shape))
            if side == "output":
                self._made_by.setdefault(storage_of(tensor), path)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if not self._depth:
            return output
        operands = tensors((args, kwargs))
        opened = frozenset[str]().union(
            *(self._open.get(storage_of(tensor), frozenset()) for tensor in operands)
        )
        if func in _COPIES and operands and storage_of(operands[0]) in self._held:
            self._copy(operands[0], output)
        elif func in _PRODUCTS and self._product(func, args, output):
            return output
        elif func is aten.embedding.default and storage_of(args[0]) in self._held:
            held_parameter = self._held[storage_of(args[0])]
            self.uses.setdefault(
                held_parameter.path,
                Use(held_parameter.path, "lookup", 0, 1, args[0].shape[0], args[0].shape[1]),
            )
        for path in opened:
            self._read(self.uses[path], func, operands, output)
        for tensor in tensors(output) if opened else ():
            self._open[storage_of(tensor)] = (
                self._open.get(storage_of(tensor), frozenset()) | opened
            )
        return output

    def _copy(self, source: XlaTensor, output: XlaTensor) -> None:
        held_parameter = self._held[storage_of(source)]
        strides = [
            (output.stride(i), held_parameter.dims.get(source.stride(i)))
            for i in reversed(range(output.dim()))
        ]
        dims = {stride: dim for stride, dim in strides if dim is not None}
        self._held.setdefault(storage_of(output), HeldParameter(held_parameter.path, dims))

    def _product(self, func: Any, args: Any, output: XlaTensor) -> bool:
        """Records a product of a value and a parameter; returns True if it was one."""
        lhs, rhs = (args[index] for index in _PRODUCTS[func])
        value, weight, summed, free = lhs, rhs, -2, -1
        if storage_of(lhs) in self._held:
            value, weight, summed, free = rhs, lhs, -1, -2
        held_parameter = self._held.get(storage_of(weight))
        if held_parameter is None or storage_of(value) in self._held:
            return False
        result, along = (held_parameter.dims.get(weight.stride(dim)) for dim in (free, summed))
        if result is None or along is None:
            return False
        makers = [
            maker
            for path in self._open.get(storage_of(value), ())
            if not (maker := self.uses[path]).is_whole
        ]
        is_second = any(maker.size % weight.shape[summed] == 0 for maker in makers)
        kind = "second" if is_second else "first"
        use = self.uses.setdefault(
            held_parameter.path,
            Use(held_parameter.path, kind, result, along, weight.shape[free], weight.shape[summed]),
        )
        if is_second:
            use.partners |= {
                maker.path
                for maker in makers
                if maker.size % weight.shape[summed] == 0 or maker.heads is not None
            }
        use.reads = use.reads or self._made_by.get(storage_of(value))
        if (
            len(args) == 3
            and func is not aten._grouped_mm.default
            and storage_of(args[0]) in self._held
        ):
            use.biases.add(self._held[storage_of(args[0])].path)
        if use.kind == "first":
            self._open[storage_of(output)] = frozenset({held_parameter.path})
        return True

    def _read(self, use: Use, func: Any, operands: list[XlaTensor], output: XlaTensor) -> None:
        """Records the needs of an op that reads a made dim."""
        shape = operands[0].shape
        if func in _SPLITS and len(shape) and output.dim() > 1 and output.shape[-1]:
            heads, width = output.shape[-2:]  # the made dim becomes these two
            if heads * width == shape[-1] and width < shape[-1] and use.size % shape[-1] == 0:
                use.heads = use.heads or heads
        elif func in _NORMS:
            use.is_whole |= shape[-1:] == (use.size,)
        elif func is aten.add.Tensor and len(operands) == 2:
            for this, addend in (operands, operands[::-1]):
                held_parameter = self._held.get(storage_of(this))
                # a bias, which is sharded as its product
                if held_parameter is not None and this.shape == (use.size,):
                    use.biases.add(held_parameter.path)
                elif (
                    held_parameter is None
                    and this.shape == addend.shape
                    and not self._open.get(storage_of(this))
                ):
                    # as is the unsharded value that it is added to
                    use.is_whole |= this.shape[-1:] == (use.size,)
