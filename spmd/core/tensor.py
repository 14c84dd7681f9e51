"""The tensor class, the cell that holds a tensor's value, the live set, and the barrier that runs what is pending."""

import copy
import threading
import weakref
from typing import Any

import jax
import numpy as np
import torch

from . import metrics, runtime
from .ir import Entry, Leaf, Meta, Node, Pick, Value, origin
from .lower import constrain
from .sharding import Sharding

DEVICE = torch.device("privateuseone:0")  # named xla:0 once core.backend has claimed the name

# One lock for recording and running: a thread that runs the graph must not donate what another is about to read.
LOCK = threading.RLock()


class Cell:
    """What a tensor and all its views share: the current value, how it must lie, and a stamp that changes with it.

    sharding: asked for by the user, kept through in-place writes. use: how forward and backward ops read the value,
    where that differs from how it is stored (a view; see `core.views.Use`). home: where the last run left the value.
    is_state: held by a module (a Parameter or buffer), so its initial value is born in a program of its own. past: the
    values it held since the last barrier, from which that initial value is found.
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


# What of a tensor's attributes is ours and no user's.
OURS = ("_cell", "_view", "_meta", "_is_param", "_pins_grad")


class XlaTensor(torch.Tensor):
    """A tensor on the `xla` device: torch sees a wrapper with true sizes and strides, the data is a view of a cell."""

    _cell: Cell
    _view: Any
    _meta: Meta

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
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
        # Unlike `detach()` it counts its writes apart, so that autograd does not see them.
        return alias(self, self._meta, self._view)

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        if not isinstance(new, XlaTensor):
            raise TypeError(f"data: expected a tensor on xla, got one on {new.device}; move it with .to('xla') first")
        torch._C.TensorBase.data.__set__(self, new)  # type: ignore[attr-defined]
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
        copied = self._copied_alone() if self._is_param else self._copied_with_views(memo)
        memo[id(self)] = copied
        copied.requires_grad_(self.requires_grad)
        if self._is_param:
            copied._is_param = True
        else:
            state = {name: value for name, value in self.__dict__.items() if name not in OURS}
            copied.__dict__.update(copy.deepcopy(state, memo))
        pin = self.__dict__.get("_pins_grad")  # the hook by which mark_sharding lays out gradients
        if pin is not None:
            copied.__dict__["_pins_grad"] = pin
            copied.register_post_accumulate_grad_hook(pin)
        if self.grad is not None:
            copied.grad = self.grad.__deepcopy__(memo)
        return copied

    def _copied_alone(self) -> "XlaTensor":
        with torch.no_grad():
            copied: XlaTensor = self.detach().clone()  # type: ignore[assignment]
        if self._view is None and self._cell.sharding is not None:
            annotate(copied, self._cell.sharding)
        return copied

    def _copied_with_views(self, memo: dict[int, Any]) -> "XlaTensor":
        """A copy of all the memory behind the tensor, which other views in the same deep copy will share."""
        whole: Any = memo.get(id(self._cell))
        if whole is None:
            with torch.no_grad():
                whole = memo[id(self._cell)] = wrap(self._cell.meta, self._cell).clone()
            if self._cell.sharding is not None:
                annotate(whole, self._cell.sharding)
        view = self._view
        return alias(whole, self._meta, None if view is None else view.elsewhere())

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
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

    # Savers find tied weights and views by the address and size of their storage. A cell has no memory to point at, so
    # its address is a number of its own, far from every other cell's; nothing lies there.
    def untyped_storage(self) -> torch.UntypedStorage:
        storage = super().untyped_storage()
        address = _address(self._cell)
        storage.data_ptr = lambda: address  # type: ignore[method-assign]
        for name in ("clone", "copy_", "cpu", "fill_", "resize_", "tolist", "__deepcopy__"):
            setattr(storage, name, no_bytes)
        return storage

    def data_ptr(self) -> int:
        return _address(self._cell) + self.storage_offset() * self.element_size()  # type: ignore[return-value]  # int

    def backward(self, *args: Any, **kwargs: Any) -> None:
        enter_thread()
        super().backward(*args, **kwargs)

    # Their presence lets Module.to() swap tensors in place, so that Parameter objects stay and tied weights stay tied.
    # Savers of Hugging Face ask the inner tensors whether storages are shared.
    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["_inner"], None

    @property
    def _inner(self) -> "_Inner":
        return _Inner(self)

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> "XlaTensor":
        raise NotImplementedError(_NO_COMPILE)


_NO_COMPILE = (
    "an xla tensor: torch.compile, torch.export and make_fx do not work on the xla device yet; "
    "call the function directly"
)


class _InnerType(type):
    def __repr__(cls) -> str:
        return _NO_COMPILE  # what torch says it got where it wants to trace the inner tensors


class _Inner(metaclass=_InnerType):
    """What stands for the tensor inside the wrapper: it tells where data would lie, and is nothing to compute with."""

    def __init__(self, tensor: XlaTensor):
        self.device, self.dtype = tensor.device, tensor.dtype
        self.nelement, self.data_ptr, self.untyped_storage = tensor.nelement, tensor.data_ptr, tensor.untyped_storage

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(_NO_COMPILE)


def no_bytes(*args: Any, **kwargs: Any) -> Any:
    """Stands for what would read or write the bytes of a storage."""
    raise NotImplementedError(
        "an xla tensor has no storage to read or write bytes of; use the tensor itself: .clone(), .fill_(), "
        ".resize_(), .cpu().untyped_storage()"
    )


def _address(cell: Cell) -> int:
    return id(cell) << 44  # room for 16 TiB each


_threads = threading.local()


def enter_thread() -> None:
    """Once per thread: autograd runs in the caller's thread (a process that ends soon after a backward on autograd's
    own device thread aborts)."""
    if not getattr(_threads, "entered", False):
        torch.autograd.set_multithreading_enabled(False)
        _threads.entered = True


def wrap(meta: Meta, cell: Cell, view: Any = None) -> XlaTensor:
    """A torch tensor over a cell."""
    tensor = torch.Tensor._make_wrapper_subclass(
        XlaTensor, meta.shape, strides=meta.strides, storage_offset=meta.offset, dtype=meta.dtype, device=DEVICE
    )
    tensor._cell = cell
    tensor._view = view
    tensor._meta = meta
    return tensor


def alias(base: XlaTensor, meta: Meta, view: Any = None) -> XlaTensor:
    """Another tensor over the cell of `base`: in inference mode, too, one that autograd knows if it knows `base`."""
    if torch.is_inference_mode_enabled() and not base.is_inference():
        with torch.inference_mode(False):
            return wrap(meta, base._cell, view)
    return wrap(meta, base._cell, view)


def pending() -> list[Cell]:
    """The live cells whose value is recorded and has not run, in the order in which those values were recorded.

    A first step creates optimizer state and a later one only writes it; ordered by value, both are the same program.
    """
    cells = [cell for ref in LIVE if (cell := ref()) is not None and type(cell.value) is not Leaf]
    cells.sort(key=lambda cell: value_serial(cell.value))
    return cells


def value_serial(value: Value) -> tuple[int, int]:
    """Sorts values in the order in which they were recorded."""
    return (value.node.serial, value.index) if type(value) is Pick else (value.serial, 0)  # type: ignore[union-attr]


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
            # The line is that of the value: an annotation is about it; finding our own would cost more than recording.
            source = origin(value)
            metrics.recorded_ops += 1
            code, instruction = source.code, source.instruction  # type: ignore[union-attr]  # None for leaves alone
            cell.write(Node(mark_entry(cell.meta, sharding, via), (value,), (), code, instruction))
        elif value.host is not None:
            value.sharding = sharding  # for its upload, should the tensor itself be gone by then
        elif value.sharding is not sharding:
            value.check()
            buffer, lies = value.placed()
            moved = runtime.move(buffer, value.meta.shape, lies, sharding)
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
        if type(value) is Leaf and value.host is None:
            buffer, lies = value.placed()
            if not lies.is_replicated():
                moved = runtime.move(buffer, value.meta.shape, lies, lies.replicated())
                cell.settle(Leaf(value.meta, buffer=moved, sharding=lies.replicated()))


def current_sharding(tensor: XlaTensor) -> Sharding | None:
    """What was asked for, else where the data lies, else None (recorded and not yet run, or still on the host)."""
    if tensor._view is not None:
        return tensor._view.sharding
    cell = tensor._cell
    if cell.sharding is not None:
        return cell.sharding
    return cell.value.sharding if type(cell.value) is Leaf and cell.value.host is None else None
