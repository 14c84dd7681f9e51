"""The mesh that stands where none is given: of the innermost `with mesh:`, else the process's own."""

from .mesh import ENTERED, Mesh

_global: list[Mesh] = []  # at most one


def set_global_mesh(mesh: Mesh | None) -> None:
    """Makes a mesh the one that is meant where none is given, in all threads; None: there is none any more.

    `with mesh:` does so for a stretch of one thread, and comes first. Raises TypeError for what is no mesh.
    Source: `torch_xla.distributed.spmd.set_global_mesh`.

    >>> import spmd
    >>> spmd.set_global_mesh(spmd.Mesh([0], (1,), ("data",)))
    >>> spmd.get_global_mesh()
    Mesh([0], (1,), ('data',))
    >>> spmd.set_global_mesh(None)
    """
    if not isinstance(mesh, Mesh | None):
        raise TypeError(f"set_global_mesh: expected a spmd.Mesh or None, got {type(mesh).__name__}")
    _global[:] = [] if mesh is None else [mesh]


def get_global_mesh() -> Mesh | None:
    """The mesh of the innermost `with mesh:` around, else the one of `set_global_mesh`, else None.

    Source: `torch_xla.distributed.spmd.get_global_mesh`, `jax.sharding.get_mesh`.
    """
    entered = ENTERED.get()
    return entered[-1] if entered else next(iter(_global), None)


def needed_mesh(caller: str) -> Mesh:
    """The mesh that is meant by a caller of this name that got none. Raises ValueError where there is none."""
    mesh = get_global_mesh()
    if mesh is None:
        raise ValueError(
            f"{caller}: expected a mesh, got none; pass one, or say `with mesh:` around, or spmd.set_global_mesh(mesh)"
        )
    return mesh
