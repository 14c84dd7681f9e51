"""Places of sliding windows: their parameters as torch's schemas write them."""


def per_dim(values, rank):
    """One value per spatial dim; in torch a single one is for all."""
    return tuple(values) * rank if len(values) == 1 else tuple(values)


def listed(value):
    """The values as a tuple; some schemas take one number instead of a list."""
    return (value,) if isinstance(value, int) else tuple(value)


def adaptive_bounds(size, count):
    """(start, end) of each of `count` windows that cover `size` places as evenly as can be."""
    return [(i * size // count, -((-(i + 1) * size) // count)) for i in range(count)]
