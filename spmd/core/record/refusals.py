"""Errors of torch's meta kernels, in the words of its CPU kernels and with the names and shapes of
the arguments."""

import dis

import torch
from torch._ops import OpOverload

from ...ops.checks import run_on_cpu
from ...ops.meta_rules import META_FUNCTIONS
from ..graph.source import user_frame
from .overloads import Args, Kwargs

# By op: an argument, its dim, the word for that dim's size; a second argument, its dim, which must
# have the same size, and the words for it.
_EQUAL_DIMS = {
    "linear": ("input", -1, "features", "weight", 1, "expects {}"),
    "batch_norm": ("input", 1, "features", "weight", 0, "expects {}"),
    **{
        name: (a, 1, "columns", b, 0, "has {} rows")
        for name, a, b in (
            ("mm", "self", "mat2"),
            ("addmm", "mat1", "mat2"),
            ("mv", "self", "vec"),
            ("addmv", "mat", "vec"),
        )
    },
    **{
        name: (a, 2, "columns", b, 1, "has {} rows")
        for name, a, b in (
            ("bmm", "self", "mat2"),
            ("baddbmm", "batch1", "batch2"),
            ("addbmm", "batch1", "batch2"),
        )
    },
    "dot": ("self", 0, "elements", "tensor", 0, "has {}"),
}

_ASSIGNS = dis.opmap["STORE_SUBSCR"]


def refusal(
    overload: OpOverload,
    error: Exception,
    args: Args,
    kwargs: Kwargs,
    twin: OpOverload | None = None,
) -> Exception:
    """Returns the error with the arguments' shapes, in the words of torch's CPU kernel if there is
    one. twin: the form of the op for the CPU."""
    name = overload._schema.name.partition("::")[2]
    arguments = {
        **{
            argument.name: value
            for argument, value in zip(overload._schema.arguments, args, strict=False)
        },
        **kwargs,
    }
    shapes = {argument: shape for argument, value in arguments.items() if (shape := _shape(value))}
    if name in _EQUAL_DIMS:
        first, dim_a, unit, second, dim_b, expected = _EQUAL_DIMS[name]
        a, b = shapes[first], shapes.get(second, [])
        if len(a) > max(dim_a, 0) and len(b) > dim_b and a[dim_a] != b[dim_b]:
            return type(error)(
                f"{name}: {first} {a} has {a[dim_a]} {unit}, {second} {b} "
                f"{expected.format(b[dim_b])}"
            )
    code, instruction = user_frame()
    if name == "expand" and code is not None and code.co_code[instruction] == _ASSIGNS:
        # torch expands the value of `x[...] = value` first
        return type(error)(
            f"assignment by an index: the value has shape {shapes['self']}, and what the index "
            f"names has {list(arguments['size'])}; they must be equal, or broadcast"
        )
    words = str(error)
    if words.partition(": ")[0].isidentifier():
        return error  # words of this library
    has_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    if overload not in META_FUNCTIONS and has_kernel(overload.name(), "CPU"):
        try:
            run_on_cpu(twin or overload, *args, **kwargs)
        except type(error) as on_cpu:
            words = str(on_cpu)
    shown = ", ".join(f"{argument} {shape}" for argument, shape in shapes.items())
    return type(error)(f"{name}: {words.splitlines()[0].strip()} ({shown})")


def _shape(value: object) -> list | None:
    """The shape of a tensor, or the shapes of those in a list; None for another argument."""
    if isinstance(value, (list, tuple)):
        return [shape for item in value if (shape := _shape(item)) is not None]
    return list(value.shape) if isinstance(value, torch.Tensor) else None
