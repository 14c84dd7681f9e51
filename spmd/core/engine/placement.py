"""Where the arrays of one program lie: its mesh, its inputs, the results that keep a layout, what may be donated."""

from collections.abc import Iterable

from ..ir.errors import AbstractError
from ..ir.graph import Leaf, Node, Value, origin
from ..ir.source import describe, user_line
from ..lazy.annotate import current_sharding
from ..lazy.cell import LOCK, Cell
from ..lazy.constraints import laid_out
from ..lazy.tensor import XlaTensor, wrap
from ..pjrt import agreement, devices, processes, transfer
from ..sharding.spec import Spec
from ..sharding.value import DEVICE, Sharding
from .abstract import recording


class MeshesError(ValueError):
    """Values on different devices would have to share a program; `node` is the op that mixes them."""

    def __init__(self, message: str, node: Node):
        super().__init__(message)
        self.node = node


def meshes_met(cells: Iterable[Cell], nodes: Iterable[Node], leaves: Iterable[Leaf]) -> dict[frozenset[int], Sharding]:
    """The devices that annotations and data name, each with a replicated sharding over them; the first device when
    nothing is annotated.

    Several meshes over the same devices share a program; the first that is met gives the order of the devices.
    """
    found: dict[frozenset[int], Sharding] = {}
    for cell in cells:
        if cell.sharding is not None:
            found.setdefault(cell.sharding.devices, cell.sharding)
    for node in nodes:
        if node.entry.sharding is not None:
            found.setdefault(node.entry.sharding.devices, node.entry.sharding)
    for leaf in leaves:
        sharding = wanted(leaf)
        if sharding is not None:
            found.setdefault(sharding.devices, sharding)
    default = devices.default_sharding()
    if len(found) > 1:
        found.pop(default.devices, None)  # what lies unannotated on the first device joins the mesh
    if not found:
        return {default.devices: default}
    return {ids: sharding.replicated() for ids, sharding in found.items()}


def check_here(mesh: Sharding) -> None:
    """Raises AbstractError where a program would run on devices that are not here."""
    if mesh.target is not None and recording() is None:
        raise AbstractError(
            f"a program over the mesh of {mesh!r} cannot run at {user_line()}: its devices are not here, and programs "
            "for them are only lowered and compiled"
        )


def mesh_homes(nodes: Iterable[Node]) -> dict[Node, frozenset[int]]:
    """The devices each op must run on, where an annotation or an input says so.

    Raises MeshesError for an op between two meshes; only `mark_sharding` takes a value from one to another.
    """
    homes: dict[Node, frozenset[int]] = {}
    for node in nodes:
        met = {home for operand in node.operands if (home := _home(operand, homes)) is not None}
        if node.entry.sharding is not None:
            met = {node.entry.sharding.devices}
        if len(met) > 1:
            shown = " and ".join(sorted(str(sorted(ids, key=str)) for ids in met))
            raise MeshesError(
                f"{describe(node)} mixes values on devices {shown}: one program cannot span meshes with different "
                "devices. Take one of them to the other's mesh with mark_sharding first.",
                node,
            )
        if met:
            homes[node] = met.pop()
    return homes


def _home(value: Value, homes: dict[Node, frozenset[int]]) -> frozenset[int] | None:
    if isinstance(value, Leaf):
        sharding = wanted(value)
        return None if sharding is None or sharding is devices.default_sharding() else sharding.devices
    node = origin(value)
    return None if node is None else homes.get(node)


def crosses(node: Node, homes: dict[Node, frozenset[int]]) -> bool:
    """Whether an annotation takes its value to other devices than it is computed on."""
    if node.entry.sharding is None:
        return False
    home = _home(node.operands[0], homes)
    return home is not None and home != node.entry.sharding.devices


def moved(leaf: Leaf, target: Sharding) -> Leaf:
    """The same data on another mesh."""
    if leaf.is_abstract or (recording() is not None and leaf.host is None):
        return Leaf(leaf.meta, sharding=target, is_abstract=True)
    leaf.check()
    if leaf.host is not None:
        return Leaf(leaf.meta, host=leaf.host, sharding=target, source=leaf.source)
    buffer, lies = leaf.placed()
    buffer = transfer.move(buffer, leaf.meta.shape, lies, target)
    return Leaf(leaf.meta, buffer=buffer, sharding=target, maker=leaf.maker, source=leaf.source)


def placed_like(tensor: XlaTensor, target: XlaTensor) -> XlaTensor:
    """A tensor of the same value on the devices of another one: split as that is where the shapes are equal, else
    replicated. It is annotated only if `target` is. The tensor itself where it needs no move."""
    asked, here = target._cell.sharding, tensor._cell.sharding
    lies = asked or current_sharding(target) or devices.default_sharding()
    if tensor.shape != target.shape:
        if here is None or here.devices == lies.devices:
            return tensor
        lies, asked = lies.replicated(), asked and asked.replicated()
    if here is asked or not tensor.numel():
        return tensor
    if tensor._view is not None or type(tensor._cell.value) is not Leaf:
        made = laid_out(tensor, lies)
        made._cell.sharding = asked
        return made
    with LOCK:
        leaf = tensor._cell.value
        data = moved(leaf, lies)
        if data.host is not None:
            data.sharding = asked
        return wrap(tensor._meta, Cell(data, tensor._cell.meta, asked))


def wanted(leaf: Leaf) -> Sharding | None:
    if leaf.host is None:
        return leaf.sharding
    cell = leaf.holder() if leaf.holder is not None else None
    if cell is None:
        return leaf.sharding
    return cell.home if cell.sharding is None else cell.sharding.closed()


def lies_in(leaf: Leaf, mesh: Sharding) -> Sharding:
    """How a leaf is to lie in a program over `mesh`: as asked or as it does; whole on each device where it comes from
    others."""
    asked = wanted(leaf)
    if asked is None:
        return mesh
    return asked if asked.devices == mesh.devices else mesh.with_spec(Spec(), asked.memory)


def bring(leaves: Iterable[Leaf], lies: Iterable[Sharding]) -> None:
    """Takes each leaf to the devices of the program that is about to read it."""
    for leaf, sharding in zip(leaves, lies, strict=True):
        if leaf.host is not None:
            if processes.several():
                agreement.note(f"the upload of {leaf.meta!r}", transfer.sample(leaf.host), user_line())
            buffer = transfer.upload(leaf.host, sharding)
        elif leaf.is_abstract or leaf.sharding is not sharding:
            leaf.check()
            old, lay = leaf.placed()
            buffer = transfer.move(old, leaf.meta.shape, lay, sharding)
        else:
            continue
        leaf.take(buffer, sharding)
        cell = leaf.holder() if leaf.holder is not None else None
        if cell is not None and cell.value is leaf:
            cell.lie(sharding)


def pinned_sharding(cell: Cell, mesh: Sharding) -> Sharding | None:
    """How a result must lie; None where the compiler may choose."""
    if cell.sharding is not None:
        return None if cell.sharding.is_open else cell.sharding  # its last op asks for what is asked (see `roots_of`)
    if len(mesh.device_ids) == 1:
        return mesh.with_spec(Spec(), _memory_of(cell))
    if cell.data is not None:  # What is written over data comes back as that came: one step's output fits the next.
        return lies_in(cell.data, mesh)
    return cell.home if cell.home is not None and cell.home.devices == mesh.devices else None


def _memory_of(cell: Cell) -> str:
    """In which memory a value that nobody has annotated lies: where it was, or where it is placed."""
    if cell.home is not None:
        return cell.home.memory
    made = origin(cell.value)
    return DEVICE if made is None else made.entry.memory


def written_over(leaf: Leaf, lies: Sharding, asked: dict[Cell, tuple[int, Sharding | None]]) -> int | None:
    """The place of the result, of the same layout, that the only holder of this buffer gets from this program."""
    cell = leaf.holder() if leaf.holder is not None else None
    if cell is None or cell not in asked or cell.value is leaf or cell.data not in (None, leaf):
        return None
    place, pinned = asked[cell]
    return place if pinned is lies and cell.meta.struct == leaf.meta.struct else None
