"""The ops of the database that are known not to work on `xla`, each with its reason; a new one
fails the sweep.

Names are those of `sweep.OPS`. Grouped by reason; the test is strict: an op that starts to work has
to leave the list. All tables of this folder are of torch 2.13: others have other ops and samples,
and a failure there says which it is.
"""

import torch

OF_TORCH = "2.13"
IS_OF_THIS_TORCH = torch.__version__.startswith(f"{OF_TORCH}.")
# What failures end with.
VERSIONS = (
    ""
    if IS_OF_THIS_TORCH
    else f" (expected.py is of torch {OF_TORCH}, this is {torch.__version__})"
)

_REASONS: dict[str, tuple[str, ...]] = {
    "jiterator compiles CUDA C++ at run time; torch itself refuses every other device": (
        "jiterator_2inputs_2outputs",
        "jiterator_4inputs_with_extra_args",
        "jiterator_binary",
        "jiterator_binary_return_by_ref",
        "jiterator_unary",
    ),
    "sparse layouts: XLA has dense arrays only": (
        "sparse.mm.reduce",
        "sparse.sampled_addmm",
        "to_sparse",
    ),
    "float16 complex numbers (torch.complex32): XLA has no such type": ("chalf",),
    "CUDA only: the op has no dtype on CPU to compare with": (
        "nn.functional.batch_norm.without_cudnn",
        "torch.ops.aten._efficient_attention_forward",
        "torch.ops.aten._flash_attention_forward",
    ),
}

EXPECTED_FAILURES = {name: reason for reason, names in _REASONS.items() for name in names}

# The same for other dtypes than float32; the command alone tries them. Some fail in a late sample
# only.
_REASONS_BY_DTYPE: dict[tuple[str, ...], dict[str, tuple[str, ...]]] = {
    ("bfloat16", "float16"): {
        (
            "statistics of narrow floats are saved in float32 on an accelerator, in the input's "
            "dtype on CPU"
        ): (
            "_batch_norm_with_update",
            "_native_batch_norm_legit",
            "native_batch_norm",
            "native_layer_norm",
        ),
        "CPU makes NaN of what float64 shows to be finite": ("matrix_exp",),
    },
    ("complex64",): {
        "CPU's norm and its abs round differently, so its gradient of the infinity norm is 0 / 0": (
            "renorm",
        ),
    },
    ("bfloat16",): {
        "of equal values another one is named than on CPU, and the gradient goes to it": ("topk",)
    },
    ("float16",): {
        "its results or operands are torch.complex32, which XLA has not": (
            "complex",
            "view_as_complex",
        ),
        "CPU overflows to infinity where the float32 inside the rule does not": (
            "nn.functional.soft_margin_loss",
        ),
    },
}

EXPECTED_BY_DTYPE = {
    (name, dtype): reason
    for dtypes, reasons in _REASONS_BY_DTYPE.items()
    for reason, names in reasons.items()
    for dtype in dtypes
    for name in names
}


def is_expected(name: str, dtype: str) -> bool:
    """True for an op that is known to fail in a dtype."""
    return name in EXPECTED_FAILURES or (name, dtype) in EXPECTED_BY_DTYPE
