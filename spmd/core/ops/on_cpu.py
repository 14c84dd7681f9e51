"""Ops that torch's own CPU kernel computes, whatever `config.fallback` says: no model is trained with them."""

# Why a table and no rules: a rule of one of these is a kernel of its own (a series by range, a pivoted factorization),
# fifty lines that few programs call. Gradients are torch's formulas; the ops in them that are as rare stand here, too.

# By the op's name in the schema.
ON_CPU = frozenset(
    f"aten::{name}"
    for name in (
        "special_airy_ai", "special_bessel_j0", "special_bessel_j1", "special_bessel_y0", "special_bessel_y1",
        "special_modified_bessel_k0", "special_modified_bessel_k1", "special_scaled_modified_bessel_k0",
        "special_scaled_modified_bessel_k1", "special_spherical_bessel_j0",
        *(f"special_{shifted}chebyshev_polynomial_{kind}" for shifted in ("", "shifted_") for kind in "tuvw"),
        "special_hermite_polynomial_h", "special_hermite_polynomial_he", "special_laguerre_polynomial_l",
        "special_legendre_polynomial_p",
        "linalg_ldl_factor_ex", "linalg_ldl_solve", "ormqr", "triangular_solve",
        "histogram", "_histogramdd_bin_edges", "_histogramdd_from_bin_cts", "_histogramdd_from_bin_tensors",
        "segment_reduce", "_segment_reduce_backward", "hash_tensor",
        *(f"fractional_max_pool{rank}d{end}" for rank in (2, 3) for end in ("", "_backward")),
        "multilabel_margin_loss_forward", "multilabel_margin_loss_backward",
    )
)  # fmt: skip
