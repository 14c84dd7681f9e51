"""The default mesh: of the innermost `with mesh:`, else the process's own."""

from ..core import ends_at_user_line
from .mesh import ENTERED, Mesh

_global: list[Mesh] = []  # at most one


@ends_at_user_line
def set_global_mesh(mesh: Mesh | None) -> None:
    """Sets the default mesh of calls without one, in all threads; None removes it.

    `with mesh:` sets it for a block in one thread, and takes precedence. Raises TypeError for
    another type. Source: `torch_xla.distributed.spmd.set_global_mesh`.

    >>> import spmd
    >>> spmd.torch_xla.set_global_mesh(spmd.Mesh([0], (1,), ("data",)))
    >>> spmd.torch_xla.get_global_mesh()
    Mesh([0], (1,), ('data',))
    >>> spmd.torch_xla.set_global_mesh(None)
    """
    if not isinstance(mesh, Mesh | None):
        raise TypeError(f"set_global_mesh: expected a spmd.Mesh or None, got {type(mesh).__name__}")
    _global[:] = [] if mesh is None else [mesh]


def get_global_mesh() -> Mesh | None:
    """The mesh of the innermost enclosing `with mesh:`, else the one of `set_global_mesh`, else
    None.

    Source: `torch_xla.distributed.spmd.get_global_mesh`, `jax.sharding.get_mesh`.

    >>> import spmd
    >>> mesh = spmd.Mesh([0], (1,), ("data",))
    >>> with mesh:
    ...     spmd.torch_xla.get_global_mesh() == mesh
    True
    """
    entered = ENTERED.get()
    return entered[-1] if entered else next(iter(_global), None)


def needed_mesh(caller: str) -> Mesh:
    """The default mesh for the function `caller`, which got none.

    Raises ValueError where there is no default.
    """
    mesh = get_global_mesh()
    if mesh is None:
        raise ValueError(
            f"{caller}: expected a mesh, got none; pass one, or use `with mesh:` or "
            "spmd.torch_xla.set_global_mesh(mesh)"
        )
    return mesh
