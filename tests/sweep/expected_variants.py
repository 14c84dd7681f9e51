"""The forms of ops that are known to differ on `xla`, each with its reason; a new one fails
`variants.py`.

Names are those of `sweep.OPS`. Grouped by form and reason; strict: a form that starts to work has
to leave the table.
"""

_REASONS: dict[str, dict[str, tuple[str, ...]]] = {
    "method": {
        "sparse layouts: XLA has dense arrays only": ("to_sparse",),
        "float16 complex numbers (torch.complex32): XLA has no such type": ("chalf",),
    },
    "out": {
        "sparse layouts: XLA has dense arrays only": ("sparse.sampled_addmm",),
        "CPU writes into an out with gaps as if it had none; xla fills it right": (
            "narrow_copy",
            "nn.functional.avg_pool3d",
        ),
        "CPU gives the caller's out other strides; xla keeps them": ("cholesky_inverse",),
        (
            "of lists that ask for a gradient torch refuses this one on CPU, and takes "
            "split_with_sizes_copy's"
        ): ("unbind_copy",),
        "CPU warns of a resize, though out has the right shape": ("nn.functional.linear",),
    },
    "error": {
        (
            "CPU resizes an out that is a view until it overlaps the index; xla gives it memory "
            "of its own"
        ): ("gather",),
        (
            "CPU fails in an internal assertion; xla raises IndexError, as the database asks of "
            "accelerators"
        ): ("narrow_copy",),
    },
    "noncontiguous": {
        "sparse layouts: XLA has dense arrays only": (
            "sparse.mm.reduce",
            "sparse.sampled_addmm",
            "to_sparse",
        ),
        "float16 complex numbers (torch.complex32): XLA has no such type": ("chalf",),
        "CPU's kernel refuses what is not contiguous; xla takes it": ("native_group_norm",),
    },
}

EXPECTED_VARIANTS = {
    (name, form): reason
    for form, reasons in _REASONS.items()
    for reason, names in reasons.items()
    for name in names
}
