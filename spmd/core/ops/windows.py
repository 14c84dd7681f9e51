"""Places of sliding windows: their parameters as torch's schemas write them."""


def per_dim(values, rank):
    """One value per spatial dim; in torch a single one, in some schemas without its list, is for all."""
    values = (values,) if isinstance(values, int) else tuple(values)
    return values * rank if len(values) == 1 else values


def adaptive_bounds(size, count):
    """(start, end) of each of `count` windows that cover `size` places as evenly as can be."""
    return [(i * size // count, -((-(i + 1) * size) // count)) for i in range(count)]
