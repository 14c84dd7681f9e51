"""What a user sets about a wrapped module: frozen values, checked when they are made."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """In which dtypes a wrapped module computes and communicates; its parameters keep the one they are stored in.

    Attributes:
        param_dtype: floating-point parameters are cast to it in front of their gather, so that this dtype travels, and
            are seen so by `forward`; gradients are reduced in it and arrive in the parameter's own dtype, which is
            also the optimizer's. None: the parameter's own.
        reduce_dtype: another dtype to reduce gradients in. Not built yet: None.
        output_dtype: what the output is cast to. Not built yet: None.
        cast_forward_inputs: cast floating-point inputs of each unit to `param_dtype`.

    Raises TypeError for what is no floating-point dtype, NotImplementedError for what is not built.
    Source: `torch.distributed.fsdp.MixedPrecisionPolicy`.

    >>> import torch, spmd, fsdp
    >>> policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    >>> mesh = spmd.Mesh([0], (1,), ("fsdp",))
    >>> model = fsdp.FullyShardedDataParallel(torch.nn.Linear(4, 2), mesh=mesh, mp_policy=policy)
    >>> model(torch.ones(3, 4, device="xla")).dtype, model.weight.dtype
    (torch.bfloat16, torch.float32)
    """

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    cast_forward_inputs: bool = True

    def __post_init__(self) -> None:
        for name in ("param_dtype", "reduce_dtype", "output_dtype"):
            dtype = getattr(self, name)
            if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
                raise TypeError(
                    f"MixedPrecisionPolicy: expected {name} to be a floating-point torch.dtype, got {dtype!r}"
                )
        for name in ("reduce_dtype", "output_dtype"):
            if getattr(self, name) is not None:
                raise NotImplementedError(
                    f"MixedPrecisionPolicy: {name} is not built; leave it None (gradients are reduced in param_dtype, "
                    "outputs stay as the module computes them)"
                )
