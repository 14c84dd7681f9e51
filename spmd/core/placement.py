"""Where the arrays of one program lie: its mesh, its inputs, the results that keep a layout, what may be donated."""

from collections.abc import Iterable

from . import runtime
from .ir import Leaf, Node, Value, origin
from .lower import Graph
from .sharding import Sharding
from .source import describe
from .tensor import Cell


class MeshesError(ValueError):
    """Values on different meshes would have to share a program."""


def common_mesh(cells: Iterable[Cell], nodes: Iterable[Node], leaves: Iterable[Leaf]) -> Sharding:
    """A replicated sharding over the devices of this program: its mesh, or the first one when nothing is annotated."""
    found: dict[tuple[int, ...], Sharding] = {}
    for cell in cells:
        if cell.sharding is not None:
            found.setdefault(cell.sharding.device_ids, cell.sharding)
    for node in nodes:
        if node.entry.sharding is not None:
            found.setdefault(node.entry.sharding.device_ids, node.entry.sharding)
    for leaf in leaves:
        sharding = wanted(leaf)
        if sharding is not None:
            found.setdefault(sharding.device_ids, sharding)
    default = runtime.default_sharding()
    if len(found) > 1:
        found.pop(default.device_ids, None)  # what lies unannotated on the first device joins the mesh
    if len(found) > 1:
        shown = " and ".join(f"{sharding!r} on devices {list(ids)}" for ids, sharding in list(found.items())[:2])
        raise MeshesError(
            f"one program cannot span meshes with different devices or device orders: {shown}. Run spmd.sync() between "
            "the parts, and re-mark a value that crosses with mark_sharding on the other mesh."
        )
    return next(iter(found.values())).replicated() if found else default


def mesh_homes(nodes: Iterable[Node]) -> dict[Node, tuple[int, ...]]:
    """The devices each op must run on, where an annotation or an input says so.

    Raises MeshesError for an op between two meshes; only `mark_sharding` takes a value from one to another.
    """
    homes: dict[Node, tuple[int, ...]] = {}
    for node in nodes:
        met = {home for operand in node.operands if (home := _home(operand, homes)) is not None}
        if node.entry.sharding is not None:
            met = {node.entry.sharding.device_ids}
        if len(met) > 1:
            shown = " and ".join(str(list(ids)) for ids in sorted(met))
            raise MeshesError(
                f"{describe(node)} mixes values on devices {shown}: one program cannot span meshes with different "
                "devices or device orders. Take one of them to the other's mesh with mark_sharding first."
            )
        if met:
            homes[node] = met.pop()
    return homes


def _home(value: Value, homes: dict[Node, tuple[int, ...]]) -> tuple[int, ...] | None:
    if isinstance(value, Leaf):
        sharding = wanted(value)
        return None if sharding is None or sharding is runtime.default_sharding() else sharding.device_ids
    node = origin(value)
    return None if node is None else homes.get(node)


def crosses(node: Node, homes: dict[Node, tuple[int, ...]]) -> bool:
    """Whether an annotation takes its value to other devices than it is computed on."""
    if node.entry.sharding is None:
        return False
    home = _home(node.operands[0], homes)
    return home is not None and home != node.entry.sharding.device_ids


def moved(leaf: Leaf, target: Sharding) -> Leaf:
    """The same data on another mesh."""
    leaf.check()
    if leaf.host is not None:
        return Leaf(leaf.meta, host=leaf.host, sharding=target)
    buffer, lies = leaf.placed()
    return Leaf(leaf.meta, buffer=runtime.move(buffer, leaf.meta.shape, lies, target), sharding=target)


def wanted(leaf: Leaf) -> Sharding | None:
    if leaf.host is None:
        return leaf.sharding
    cell = leaf.holder() if leaf.holder is not None else None
    return (cell.sharding or cell.home) if cell is not None else leaf.sharding


def assign(leaf: Leaf, mesh: Sharding) -> None:
    """Decides where a leaf lies in a program over `mesh`; data elsewhere is moved, whole, to each device."""
    if leaf.host is not None:
        asked = wanted(leaf)
        leaf.sharding = asked if asked is not None and asked.device_ids == mesh.device_ids else mesh
    elif leaf.sharding.device_ids != mesh.device_ids:  # type: ignore[union-attr]  # a buffer has one
        leaf.check()
        buffer, lies = leaf.placed()
        leaf.buffer = runtime.move(buffer, leaf.meta.shape, lies, mesh)
        leaf.sharding = mesh
        cell = leaf.holder() if leaf.holder is not None else None
        if cell is not None:
            cell.home = mesh


def upload_leaves(graph: Graph) -> None:
    """Uploads the leaves that are still on the host."""
    for leaf in graph.leaves:
        if leaf.host is not None:
            assert leaf.sharding is not None, "assign has run"
            leaf.buffer = runtime.upload(leaf.host, leaf.sharding)
            leaf.host = None


def pinned_sharding(cell: Cell, mesh: Sharding) -> Sharding | None:
    if cell.sharding is not None:
        return cell.sharding
    if len(mesh.device_ids) == 1:
        return mesh
    # State written in place stays where the last run left it, so that a step's output fits its next input.
    return cell.home if cell.home is not None and cell.home.device_ids == mesh.device_ids else None


def is_overwritten(leaf: Leaf, asked: dict[Cell, Sharding | None]) -> bool:
    """Whether the only holder of this buffer gets a new value of the same layout from this program."""
    cell = leaf.holder() if leaf.holder is not None else None
    return (
        cell is not None
        and cell in asked
        and cell.value is not leaf
        and cell.meta.struct == leaf.meta.struct
        and asked[cell] is leaf.sharding
        and not leaf.shared
    )
