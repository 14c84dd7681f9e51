"""The tensor class, the cell that holds a tensor's value, the live set, and the barrier that runs what is pending."""

import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
import torch

from . import compile as compiling
from . import metrics, runtime
from .config import config
from .ir import Entry, Leaf, Line, Meta, Node, Pick, Value, intern_meta, origin, topological
from .lower import Graph, constrain
from .sharding import Sharding
from .source import user_line

DEVICE = torch.device("privateuseone:0")  # named xla:0 once core.backend has claimed the name

# One lock for recording and running: a thread that runs the graph must not donate what another is about to read.
LOCK = threading.RLock()


class Cell:
    """What a tensor and all its views share: the current value, how it must lie, and a stamp that changes with the value.

    sharding: asked for by the user, kept through in-place writes. use: how forward and backward ops read the value, where
    that differs from how it is stored (a view; see `core.views.Use`). home: where the last run left the value. is_state: held
    by a module (a Parameter or buffer), so its initial value is born in a program of its own. past: the values it held
    since the last barrier, from which that initial value is found.
    """

    __slots__ = ("__weakref__", "home", "is_state", "listed", "meta", "past", "sharding", "stamp", "use", "value")

    def __init__(self, value: Value, meta: Meta, sharding: Sharding | None = None):
        self.value = value
        self.meta = meta
        self.stamp = 0
        self.sharding = sharding
        self.home: Sharding | None = None
        self.use: Any = None
        self.is_state = False
        self.past: list[Value] | None = None
        self.listed = False
        if type(value) is Leaf:
            value.holder = weakref.ref(self)
        else:
            self.listed = True
            LIVE.append(weakref.ref(self))

    def write(self, value: Value) -> None:
        """Replaces the value, as an in-place op does."""
        if type(self.value) is not Leaf:
            if self.past is None:
                self.past = [self.value]
            else:
                self.past.append(self.value)
        self.value = value
        self.stamp += 1
        if type(value) is Leaf:
            value.holder = weakref.ref(self)
        elif not self.listed:
            self.listed = True
            LIVE.append(weakref.ref(self))

    def settle(self, leaf: Leaf) -> None:
        """Takes the result of a run."""
        self.value = leaf
        self.stamp += 1
        self.past = None
        self.home = leaf.sharding
        leaf.holder = weakref.ref(self)


# Cells whose value is a recorded op, in the order in which they became so; dead ones are dropped at the barrier.
LIVE: list["weakref.ref[Cell]"] = []


# Programs run so far: what was read before the last run is not in the graph that is recorded now.
RUNS = 0


class XlaTensor(torch.Tensor):
    """A tensor on the `xla` device: torch sees a wrapper with true sizes and strides, the data is a view of a cell."""

    _cell: Cell
    _view: Any
    _meta: Meta

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("core.dispatch installs the real dispatcher")

    @property
    def _is_param(self) -> bool:
        return self.__dict__.get("_is_param", False)

    @_is_param.setter
    def _is_param(self, value: bool) -> None:
        # nn.Parameter marks a subclass instance with this attribute; it is how a cell learns that a module holds it.
        self.__dict__["_is_param"] = value
        self._cell.is_state = value

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        if not isinstance(new, XlaTensor):
            raise TypeError(f"data: expected a tensor on xla, got one on {new.device}; move it with .to('xla') first")
        torch._C.TensorBase.data.__set__(self, new)
        kept, was_state = self._cell.sharding, self._cell.is_state
        self._cell, self._view, self._meta = new._cell, new._view, new._meta
        self._cell.is_state |= was_state
        if kept is not None and self._view is None and self._cell.sharding is None:
            annotate(self, kept)

    def __deepcopy__(self, memo: dict[int, Any]) -> "XlaTensor":
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError("deepcopy: only tensors created by the user can be copied deeply; call .detach() first")
        with torch.no_grad():
            copied = self.detach().clone()
        memo[id(self)] = copied
        if self._view is None and self._cell.sharding is not None:
            annotate(copied, self._cell.sharding)
        copied.requires_grad_(self.requires_grad)
        if self._is_param:
            copied._is_param = True
        pin = self.__dict__.get("_pins_grad")  # the hook by which mark_sharding lays out gradients
        if pin is not None:
            copied.__dict__["_pins_grad"] = pin
            copied.register_post_accumulate_grad_hook(pin)
        if self.grad is not None:
            copied.grad = self.grad.__deepcopy__(memo)
        return copied

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        text = self.detach().cpu().__repr__().removesuffix(")")
        parts = [f"device='{self.device}'"]
        for part in ("size", "dtype"):  # torch names them after the device
            text, found, value = text.partition(f", {part}=")
            if found:
                rest = value.partition(", dtype=")
                parts.append(f"{part}={rest[0]}")
                text += "".join(rest[1:])
        if self.grad_fn is not None:
            parts.append(f"grad_fn=<{self.grad_fn.name()}>")
        elif self.requires_grad:
            parts.append("requires_grad=True")
        text = f"{text}, {', '.join(parts)})"
        return f"Parameter containing:\n{text}" if self._is_param else text

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else super().__format__(spec)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> np.ndarray:
        if not force:
            raise TypeError("can't convert an xla tensor to numpy; use .cpu() first, or numpy(force=True)")
        return self.detach().cpu().numpy()

    def backward(self, *args: Any, **kwargs: Any) -> None:
        enter_thread()
        super().backward(*args, **kwargs)

    # Their presence lets Module.to() swap tensors in place, so that Parameter objects stay and tied weights stay tied.
    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        raise NotImplementedError("torch.compile on the xla device is not supported yet; call the function directly")

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> "XlaTensor":
        raise NotImplementedError("torch.compile on the xla device is not supported yet; call the function directly")


_threads = threading.local()


def enter_thread() -> None:
    """Once per thread: autograd runs in the caller's thread (a process that ends soon after a backward on autograd's own
    device thread aborts)."""
    if not getattr(_threads, "entered", False):
        torch.autograd.set_multithreading_enabled(False)
        _threads.entered = True


def wrap(meta: Meta, cell: Cell, view: Any = None) -> XlaTensor:
    """A torch tensor over a cell."""
    tensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
        XlaTensor, meta.shape, strides=meta.strides, storage_offset=meta.offset, dtype=meta.dtype, device=DEVICE
    )
    tensor._cell = cell
    tensor._view = view
    tensor._meta = meta
    return tensor


def pending() -> list[Cell]:
    """The live cells whose value is recorded and has not run, in the order in which those values were recorded.

    A first step creates optimizer state and a later one only writes it; ordered by value, both are the same program.
    """
    cells = [cell for ref in LIVE if (cell := ref()) is not None and type(cell.value) is not Leaf]
    cells.sort(key=_value_serial)
    return cells


def _value_serial(cell: Cell) -> tuple[int, int]:
    value = cell.value
    return (value.node.serial, value.index) if type(value) is Pick else (value.serial, 0)  # type: ignore[union-attr]


def sync(*, wait: bool = False) -> None:
    """Runs everything that is pending, as one program, and returns at once unless `wait`.

    State that depends on constants and random keys alone (initialisation) runs first, as a program of its own. With
    `wait` it returns when the devices are done. Errors: see `spmd.sync`.
    """
    with LOCK:
        cells = pending()
        if cells:
            line = user_line()
            metrics.add("syncs")
            _barrier(cells, line)
        for ref in LIVE:
            if (cell := ref()) is not None:
                cell.listed = False
        LIVE.clear()
        metrics.synced_ops = metrics.recorded_ops
    if wait:
        for device_array in [cell.value.buffer for cell in cells if cell.value.buffer is not None]:
            device_array.block_until_ready()


def materialise(cell: Cell) -> Leaf:
    """The cell's value as a leaf: at once when it has one, else after a barrier."""
    if type(cell.value) is not Leaf:
        if config.sync_on_read == "needed":
            with LOCK:
                _run([cell], user_line(), donate=False)
        else:
            sync()
    leaf = cell.value
    assert type(leaf) is Leaf
    leaf.check()
    return leaf


def placed(cell: Cell) -> Leaf:
    """The cell's value as a device buffer; host data is uploaded now."""
    leaf = materialise(cell)
    with LOCK:
        if leaf.host is not None:
            leaf.sharding = _wanted(leaf) or runtime.default_sharding()
            leaf.buffer, leaf.host = runtime.upload(leaf.host, leaf.sharding), None
            cell.home = leaf.sharding
    return leaf


def host_value(cell: Cell) -> np.ndarray:
    """The whole value of a cell as a host array of the logical shape."""
    with LOCK:
        leaf = materialise(cell)
        if leaf.host is not None:
            return leaf.host
        leaf.shared += 1  # another thread's barrier must not donate what this one waits for
    metrics.add("host_reads")
    try:
        return runtime.download(leaf.buffer, leaf.meta.shape)
    except jax.errors.JaxRuntimeError as error:
        program = compiling.last_program()
        raise (compiling.explain_failure(program, error) if program else error) from error
    finally:
        with LOCK:
            leaf.shared -= 1


def pending_stablehlo(cells: Sequence[Cell] | None = None) -> str:
    """The StableHLO that the next barrier would compile, with its sharding attributes; nothing runs."""
    with LOCK:
        chosen = [cell for cell in (pending() if cells is None else cells) if type(cell.value) is not Leaf]
        if not chosen:
            return ""
        return str(compiling.lower_graph(_graph(chosen, donate=cells is None)).as_text())


# --- sharding ---------------------------------------------------------------------------------------------------------

_MARKS: dict[tuple[Meta, Sharding, Sharding | None], Entry] = {}


def mark_entry(meta: Meta, sharding: Sharding, via: Sharding | None = None) -> Entry:
    """The op that asks the partitioner to lay a value out so, `via` another layout first."""
    key = (meta, sharding, via)
    if key not in _MARKS:

        def lower(operands: list[jax.Array], numbers: list[jax.Array]) -> tuple[jax.Array]:
            value = operands[0] if via is None else constrain(operands[0], via)
            return (constrain(value, sharding),)

        _MARKS[key] = Entry("mark_sharding", lower, (meta,), statics=sharding.text(len(meta.shape)), sharding=sharding)
    return _MARKS[key]


def annotate(tensor: XlaTensor, sharding: Sharding, via: Sharding | None = None) -> None:
    """Makes `sharding` the layout of a tensor: of the recorded value, of host data at its upload, or of the buffer now.

    A recorded value takes the layout `via` first, where one is given.
    """
    if not tensor._meta.numel:
        sharding = sharding.replicated()  # nothing to split, and the compiler would not
    with LOCK:
        cell, view = tensor._cell, tensor._view
        if view is not None:
            view.sharding = sharding
            view.stamp = -1  # the cached value is read anew, with the annotation
            return
        cell.sharding = sharding
        value = cell.value
        if type(value) is not Leaf:
            # The line is that of the value: an annotation is about it, and finding our own would cost more than recording.
            source = origin(value)
            cell.write(Node(mark_entry(cell.meta, sharding, via), (value,), (), source.code, source.instruction))
        elif value.host is not None:
            value.sharding = sharding  # for its upload, should the tensor itself be gone by then
        elif value.sharding is not sharding:
            value.check()
            moved = runtime.move(value.buffer, value.meta.shape, value.sharding, sharding)
            cell.settle(Leaf(value.meta, buffer=moved, sharding=sharding))


def clear_annotation(tensor: XlaTensor) -> None:
    """Forgets the asked-for layout; data on a mesh becomes whole on each of its devices."""
    with LOCK:
        if tensor._view is not None:
            tensor._view.sharding = None
            tensor._view.stamp = -1
            return
        cell = tensor._cell
        cell.sharding = cell.home = None
        value = cell.value
        if type(value) is Leaf and value.host is None and not value.sharding.is_replicated():
            target = value.sharding.replicated()
            moved = runtime.move(value.buffer, value.meta.shape, value.sharding, target)
            cell.settle(Leaf(value.meta, buffer=moved, sharding=target))


def current_sharding(tensor: XlaTensor) -> Sharding | None:
    """What was asked for, else where the data lies, else None (recorded and not yet run, or still on the host)."""
    if tensor._view is not None:
        return tensor._view.sharding
    cell = tensor._cell
    if cell.sharding is not None:
        return cell.sharding
    return cell.value.sharding if type(cell.value) is Leaf and cell.value.host is None else None


# --- running ----------------------------------------------------------------------------------------------------------


def _run(cells: list[Cell], line: Line, *, donate: bool, name: str = "step") -> None:
    global RUNS
    if not cells:
        return
    RUNS += 1
    graph = _graph(cells, donate=donate)
    _place(graph)
    program = compiling.program_for(graph, name, line)
    try:
        leaves = compiling.run(program, graph)
    except BaseException:
        for leaf, donated in zip(graph.leaves, graph.donated, strict=True):
            if donated and leaf.buffer is not None and leaf.buffer.is_deleted():
                leaf.gone = f"its buffer was donated to the run at {line}, which did not finish"
        raise
    for leaf, donated in zip(graph.leaves, graph.donated, strict=True):
        if donated:
            leaf.gone, leaf.buffer = "it was overwritten in place", None
    for cell, leaf in zip(cells, leaves, strict=True):
        cell.settle(leaf)


class MeshesError(ValueError):
    """Values on different meshes would have to share a program."""


def _barrier(cells: list[Cell], line: Line) -> None:
    """Runs these cells as one program; as several where they lie on different meshes and have nothing in common."""
    try:
        _give_birth(cells, line)
        _run([cell for cell in cells if type(cell.value) is not Leaf], line, donate=True)
    except MeshesError as error:
        groups = _unconnected([cell for cell in cells if type(cell.value) is not Leaf])
        if len(groups) < 2:
            _abandon(cells, error)
            raise
        for group in groups:
            _barrier(group, line)
    except Exception as error:
        _abandon(cells, error)
        raise


def _unconnected(cells: list[Cell]) -> list[list[Cell]]:
    """The cells in groups that share neither an op nor an input."""
    owner: dict[Value, int] = {}
    groups: dict[int, list[Cell]] = {}
    for number, cell in enumerate(cells):
        nodes, leaves = topological([cell.value])
        met = {owner[value] for value in (*nodes, *leaves) if value in owner}
        groups[number] = [member for old in sorted(met) for member in groups.pop(old)] + [cell]
        for value, old in owner.items():
            if old in met:
                owner[value] = number
        owner.update(dict.fromkeys((*nodes, *leaves), number))
    return list(groups.values())


def _abandon(cells: list[Cell], error: Exception) -> None:
    """After a failed barrier: a tensor that had data before keeps that data, one that had none says what failed.

    Where the error names the op that failed, only what depends on it is given up; the rest stays pending.
    """
    nodes, leaves = topological([cell.value for cell in cells])
    failed = getattr(error, "node", None)
    gone = {leaf for leaf in leaves if leaf.gone is not None}
    everything = failed is None and not gone
    lost: set[Node] = set()
    for node in nodes:
        if everything or node is failed or any(value in gone or origin(value) in lost for value in node.operands):
            lost.add(node)
    before = {leaf.holder(): leaf for leaf in leaves if leaf.holder is not None and leaf.gone is None}
    for cell in cells:
        if origin(cell.value) not in lost:
            continue
        old = before.get(cell)
        if old is None:
            old = Leaf(cell.meta)
            old.gone = str(error)
        cell.value, cell.past = old, None
        cell.stamp += 1
        old.holder = weakref.ref(cell)


def _graph(cells: list[Cell], *, donate: bool) -> Graph:
    roots = [cell.value for cell in cells]
    nodes, leaves = topological(roots)
    for leaf in leaves:
        if leaf.gone is not None:
            leaf.check()
    mesh = _common_mesh(cells, nodes, leaves)
    for leaf in leaves:
        _assign(leaf, mesh)
    pinned = [_pinned(cell, mesh) for cell in cells]
    asked = {cell: sharding for cell, sharding in zip(cells, pinned, strict=True)}
    donated = tuple(donate and _is_overwritten(leaf, asked) for leaf in leaves)
    return Graph(nodes, leaves, roots, pinned, donated)


def _common_mesh(cells: Iterable[Cell], nodes: Iterable[Node], leaves: Iterable[Leaf]) -> Sharding:
    """A replicated sharding over the devices of this program: its mesh, or the first device when nothing is annotated."""
    found: dict[tuple[int, ...], Sharding] = {}
    for cell in cells:
        if cell.sharding is not None:
            found.setdefault(cell.sharding.device_ids, cell.sharding)
    for node in nodes:
        if node.entry.sharding is not None:
            found.setdefault(node.entry.sharding.device_ids, node.entry.sharding)
    for leaf in leaves:
        sharding = _wanted(leaf)
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


def _wanted(leaf: Leaf) -> Sharding | None:
    if leaf.host is None:
        return leaf.sharding
    cell = leaf.holder() if leaf.holder is not None else None
    return (cell.sharding or cell.home) if cell is not None else leaf.sharding


def _assign(leaf: Leaf, mesh: Sharding) -> None:
    """Decides where a leaf lies in a program over `mesh`; data elsewhere is moved, whole, to each device."""
    if leaf.host is not None:
        wanted = _wanted(leaf)
        leaf.sharding = wanted if wanted is not None and wanted.device_ids == mesh.device_ids else mesh
    elif leaf.sharding.device_ids != mesh.device_ids:
        leaf.check()
        leaf.buffer = runtime.move(leaf.buffer, leaf.meta.shape, leaf.sharding, mesh)
        leaf.sharding = mesh
        cell = leaf.holder() if leaf.holder is not None else None
        if cell is not None:
            cell.home = mesh


def _place(graph: Graph) -> None:
    """Uploads the leaves that are still on the host."""
    for leaf in graph.leaves:
        if leaf.host is not None:
            leaf.buffer = runtime.upload(leaf.host, leaf.sharding)
            leaf.host = None


def _pinned(cell: Cell, mesh: Sharding) -> Sharding | None:
    if cell.sharding is not None:
        return cell.sharding
    if len(mesh.device_ids) == 1:
        return mesh
    # State written in place stays where the last run left it, so that a step's output fits its next input.
    return cell.home if cell.home is not None and cell.home.device_ids == mesh.device_ids else None


def _is_overwritten(leaf: Leaf, asked: dict[Cell, Sharding | None]) -> bool:
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


# --- the birth of state -----------------------------------------------------------------------------------------------


def _give_birth(cells: list[Cell], line: Line) -> None:
    """Gives state its initial value before the step runs, so that the first step is the same program as all others.

    Constants become buffers without compiling; what depends on constants and random keys alone, and is held by a
    parameter or buffer, runs as one program.
    """
    born: dict[Value, Leaf] = {}
    known: dict[Value, bool] = {}
    fixed: dict[Cell, list[Value]] = {}
    for cell in cells:
        history = [*(cell.past or ()), cell.value] if cell.is_state else cell.past or ()
        for value in history:
            if type(value) is not Leaf and (_constant(value) is not None or (cell.is_state and _is_pure(value, known))):
                fixed.setdefault(cell, []).append(value)
    if not fixed:
        return
    # An optimizer's decay of the weights depends on constants alone, too, where it is the step's first write: the initial
    # value is the one that the rest of the step reads first.
    read = _first_read(cells, {value for values in fixed.values() for value in values}, known)
    initial = {cell: next((value for value in values if value in read), values[-1]) for cell, values in fixed.items()}
    mesh = _common_mesh(initial, topological(list(initial.values()))[0], ())
    rest: list[tuple[Cell, Value]] = []
    for cell, node in initial.items():
        constant = _constant(node)
        if constant is None:
            rest.append((cell, node))
            continue
        sharding = cell.sharding or mesh
        buffer = runtime.filled(node.meta.shape, node.meta.struct.dtype, constant, sharding)
        born[node] = Leaf(node.meta, buffer=buffer, sharding=sharding)
    if rest:
        roots: list[Value] = [node for _, node in rest]
        nodes, leaves = topological(roots)
        pinned = [_pinned(cell, mesh) for cell, _ in rest]
        graph = Graph(nodes, leaves, roots, pinned, (False,) * len(leaves))
        program = compiling.program_for(graph, "init", line)
        for (_, node), leaf in zip(rest, compiling.run(program, graph), strict=True):
            born[node] = leaf
    for node in topological([cell.value for cell in cells])[0]:
        node.operands = tuple(born.get(operand, operand) for operand in node.operands)
    for cell, node in initial.items():
        leaf = born[node]
        cell.home = leaf.sharding
        if cell.value is node:
            # The stamp stays: what was read of the value reads the leaf by now, in the order of every later step.
            cell.value, cell.past = leaf, None
        leaf.holder = weakref.ref(cell)


def _first_read(cells: list[Cell], candidates: set[Value], known: dict[Value, bool]) -> set[Value]:
    """The candidates that are read, at first hand or through other pure values, by what is not pure."""
    read: set[Value] = set()
    seen: set[Value] = set()
    stack = [cell.value for cell in cells if not _is_pure(cell.value, known)]
    while stack:
        value = stack.pop()
        if value in candidates:
            read.add(value)
        elif type(value) is Pick:
            stack.append(value.node)
        elif type(value) is Node and value not in seen:
            seen.add(value)
            stack.extend(value.operands)
    return read


def _constant(value: Value) -> Any:
    """The number that fills a value, or None where it is more than that."""
    if type(value) is not Node or value.entry.constant is None:
        return None
    return value.numbers[0] if value.entry.constant == "lifted" else value.entry.constant


def _is_pure(value: Value, known: dict[Value, bool]) -> bool:
    """Whether a value depends on constants and random keys alone."""
    stack = [value]
    while stack:
        top = stack[-1]
        if top in known:
            stack.pop()
        elif type(top) is Leaf:
            known[top] = False
        else:
            operands = (top.node,) if type(top) is Pick else top.operands
            waiting = [operand for operand in operands if operand not in known]
            if waiting:
                stack.extend(waiting)
            else:
                known[top] = all(known[operand] for operand in operands)
    return known[value]


__all__ = ["LOCK", "Cell", "XlaTensor", "intern_meta", "sync", "wrap"]
