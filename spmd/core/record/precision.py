"""torch's own setting of the precision of float32 products.

A program's products and convolutions are full float32 (`lower` sets that) unless the user's setting at the call allows
less. A product under such a setting is another op, `aten.mm:precision_high`, with an op table of its own: a graph may
mix settings, its key differs between them, and the compile log names the change. Ops that are no products pay nothing.
"""

import torch

from .overloads import Args, Plan
from .tensor import XlaTensor

# torch's word -> jax's. On GPU both are TF32; on TPU they are three passes of bfloat16 and one; a CPU computes in
# float32 under any setting.
_JAX = {"high": "high", "medium": "default"}
_FLOAT32 = (torch.float32, torch.complex64)

_read = torch._C._get_fp32_precision_getter


def matmul_precision() -> str:
    """The least precision that any of torch's settings for matmuls allows: "highest", "high" or "medium".

    `torch.set_float32_matmul_precision`, `torch.backends.fp32_precision` and the settings of
    `torch.backends.cuda.matmul` and `torch.backends.mkldnn.matmul` are read. Convolutions follow it, too: torch's own
    setting for them is cuDNN's, which allows TF32 by default.
    """
    allowed = (_read("cuda", "matmul"), _read("mkldnn", "matmul"))
    return "medium" if "bf16" in allowed else "high" if "tf32" in allowed else "highest"


def reads_float32(args: Args) -> bool:
    """True if an operand of a call has a dtype that the settings apply to."""
    return any(type(value) is XlaTensor and value._meta.dtype in _FLOAT32 for value in args)


def allow(setting: str, plan: Plan) -> None:
    """Makes a plan that of a product under "high" or "medium"."""
    plan.name = f"{plan.name}:precision_{setting}"
    plan.precision = _JAX[setting]
