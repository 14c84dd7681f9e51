"""StableHLO composites by marks on tensors: `torch_xla.experimental.mark_pattern_utils` and
`torch.ops.xla.mark_tensor`."""

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...core import ends_at_user_line
from ...loops.interop.composite_marks import Attributes
from .xla_ops import XLA_LIB

XLA_LIB.define(
    "mark_tensor(Tensor x, str name, int pos, str id, bool is_input, Any? attr=None) -> Tensor"
)
XLA_LIB.impl("mark_tensor", torch.ops.spmd.mark_tensor, "CompositeImplicitAutograd")


class StableHLOCompositeBuilder:
    """Marks the tensors between which ops become one StableHLO composite, in programs and exports.

    Its gradient is that of its ops. One builder is for one composite; make it once, not in each
    step: another builder is another program.

    Args:
        name: of the composite. attr: its attributes: strings, numbers, bools, or lists of numbers
            or of bools.

    Raises ValueError for other attributes, and for a name without a dot. Source:
    `torch_xla.experimental.mark_pattern_utils.StableHLOCompositeBuilder`.

    >>> import torch, spmd
    >>> builder = spmd.torch_xla.composite_builder.StableHLOCompositeBuilder("my.scale", {"by": 2})
    >>> y = builder.mark_outputs(builder.mark_inputs(torch.ones(3, device="xla")) * 2)
    >>> 'stablehlo.composite "my.scale"' in spmd.get_stablehlo([y])
    True
    """

    @ends_at_user_line
    def __init__(self, name: str, attr: Mapping[str, Any] | None = None):
        if re.fullmatch(r"[a-zA-Z]\w*(\.[\w$]+)+", name, re.ASCII) is None:
            raise ValueError(
                "StableHLOCompositeBuilder: expected a name with a namespace, such as 'my.op', got "
                f"{name!r}"
            )
        self.name, self.attr, self.id = name, serialize_composite_attr(attr), _new_id()

    @ends_at_user_line
    def mark_inputs(self, *tensors: torch.Tensor) -> Any:
        """Returns the tensors as inputs of the composite, to be read in their place."""
        return self._marked(tensors, True)

    @ends_at_user_line
    def mark_outputs(self, *tensors: torch.Tensor) -> Any:
        """Returns the tensors as results of the composite, to be read in their place."""
        return self._marked(tensors, False)

    def _marked(self, tensors: Sequence[torch.Tensor], is_input: bool) -> Any:
        for tensor in tensors:
            if not isinstance(tensor, torch.Tensor):
                raise ValueError(
                    f"StableHLOCompositeBuilder: expected tensors, got a {type(tensor).__name__}"
                )
        attributes = None if is_input else self.attr
        marked = tuple(
            torch.ops.xla.mark_tensor(tensor, self.name, index, self.id, is_input, attributes)
            for index, tensor in enumerate(tensors)
        )
        return marked[0] if len(marked) == 1 else marked


def _constant(function: Any) -> Any:
    """`torch.compiler.assume_constant_result`, which imports all of torch._dynamo."""
    function._dynamo_marked_constant = True
    return function


@_constant
def _new_id() -> str:
    return uuid.uuid4().hex


@_constant
def serialize_composite_attr(attr: Mapping[str, Any] | None) -> Attributes | None:
    """Returns a composite's attributes as `torch.ops.xla.mark_tensor` takes them.

    Raises ValueError for what is no attribute. Source: `torch_xla.experimental.xla_marker`.

    >>> import spmd
    >>> spmd.torch_xla.composite_builder.serialize_composite_attr({"scale": 0.5})
    (('scale', 0.5),)
    """
    for name, value in (attr or {}).items():
        kinds = set(map(type, value)) if isinstance(value, (list, tuple)) else {type(value)}
        is_list = isinstance(value, (list, tuple))
        if (
            not isinstance(name, str)
            or len(kinds) != 1
            or not kinds <= {int, float, bool, *(() if is_list else (str,))}
        ):
            raise ValueError(
                "a composite's attributes are strings, numbers, bools, or lists of numbers or of "
                f"bools of one type; got {name!r}: {value!r}"
            )
    return None if attr is None else tuple(attr.items())
