"""The ops of the database that are known not to work on `xla`, each with its reason. A new one, or one that works by now, fails.

Names are those of `sweep.OPS`. Grouped by reason; the test is strict: an op that starts to work has to leave the list.
"""

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
    "a quantised product of float8 in torch's own scaling layouts; torch's CPU reference takes none of the samples": (
        "torch._scaled_mm",
        "torch._scaled_mm_v2",
    ),
}

EXPECTED_FAILURES = {name: reason for reason, names in _REASONS.items() for name in names}

# Right, but by way of the host: the shape of the result, or a Python decision inside torch, depends on data.
HOST_VISITS: dict[str, str] = {}
