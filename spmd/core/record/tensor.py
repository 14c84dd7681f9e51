"""The tensor class."""

# Why calls arrive below autograd (`__torch_dispatch__`) and torch functions are off: the formulas
# of gradients stay torch's, and what is recorded are the ops that they call. A torch function would
# be a second call of Python for each op, before autograd has seen it.
#
# Why the class is one, and parameters are instances of it: `nn.Parameter` of a subclass keeps its
# class, so that `type(x) is XlaTensor`, the cheapest test there is, holds for all tensors of the
# device but those of a user's subclass (`torch_state.subclasses`). Where calls are recorded it
# comes first; elsewhere it is `isinstance`.

import copy
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from ..base.state import PerThread
from ..graph.graph import DeviceData, Node, results
from ..graph.meta import Meta
from ..graph.source import ends_at_user_line
from ..sharding.value import Sharding
from . import deferred, view_rebase
from .annotations import annotate
from .storage import Storage
from .threads import enter_thread

# named xla:0 once core.torch_state.install has claimed the name
DEVICE = torch.device("privateuseone:0")


# The attributes of a tensor that are the library's and not the user's.
OURS = ("_storage", "_view", "_meta", "_is_param", "_pins_grad", "_strided_layouts", "_loading")


# False where a text about tensors must not read them: a read would run half a step.
_shows_values = PerThread(True)


def described(value: object, longest: int = 60) -> str:
    """The `repr` of an object, where no tensor of the device shows its values; an object's type
    where that is longer."""
    if isinstance(value, torch.Tensor):
        return f"a tensor {list(value.shape)}"
    with _shows_values.held(False):
        text = repr(value)
    return text if len(text) <= longest else f"a {type(value).__name__}"


# Called with each annotated tensor that becomes a parameter.
WHEN_PARAMETER: list[Callable[["XlaTensor"], None]] = []


# Other objects after each assignment to an attribute that torch keeps in C++, of any tensor: to its
# gradient, and to others. Who has read such attributes reads them again only then. No numbers: two
# threads may add at once.
last_gradient = last_assignment = object()


def note_gradients() -> None:
    """Marks that gradients were assigned."""
    global last_gradient
    last_gradient = object()


_gradient: Any = vars(torch._C.TensorBase)["grad"]


def gradients_of(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor | None]:
    """The gradients of many tensors, None for none."""
    return [*map(_gradient.__get__, tensors)]


def set_gradients(
    tensors: Sequence[torch.Tensor], gradients: Iterable[torch.Tensor | None]
) -> None:
    """Assigns the gradients of many tensors."""
    deque(map(_gradient.__set__, tensors, gradients), 0)
    note_gradients()


def _note_assignment() -> None:
    global last_assignment
    last_assignment = object()


def _noted(
    name: str, note: Callable[[], None] = _note_assignment, before: Callable[[], Any] = bool
) -> property:
    """An attribute of torch's whose assignments are noted."""
    slot: Any = inspect.getattr_static(torch.Tensor, name)

    def noted(write: Callable[..., None]) -> Callable[..., None]:
        def write_and_note(*args: object) -> None:
            before()
            write(*args)
            note()

        return write_and_note

    return property(slot.__get__, noted(slot.__set__), noted(slot.__delete__))


class XlaTensor(torch.Tensor):
    """A tensor on the `xla` device: to torch a wrapper with true sizes and strides, its data a view
    of a storage."""

    _storage: Storage
    _view: Any
    _meta: Meta

    # Array libraries choose their backend by the first word of it; pickles find the class there,
    # too.
    __module__ = "torch.xla"

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: torch._ops.OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise AssertionError("no handler yet: see `handle_calls_by`")

    # Autograd assigns gradients itself: `run_backward` notes it. `swap_tensors` assigns `__dict__`.
    grad, _grad = _noted("grad", note_gradients), _noted("_grad", note_gradients)
    __dict__ = _noted("__dict__", before=deferred.finish)
    _backward_hooks = _noted("_backward_hooks")
    _post_accumulate_grad_hooks = _noted("_post_accumulate_grad_hooks")

    @property
    def _is_param(self) -> bool:
        """Set by `nn.Parameter`: the storage becomes a module's."""
        return self.__dict__.get("_is_param", False)

    @_is_param.setter
    def _is_param(self, value: bool) -> None:
        # nn.Parameter marks a subclass instance with this attribute, by which the storage learns
        # that a module holds it.
        self.__dict__["_is_param"] = value
        self._storage.is_state = self._storage.is_parameter = value
        if value and self._storage.sharding is not None:
            for function in WHEN_PARAMETER:
                function(self)

    @property
    def data(self) -> torch.Tensor:
        """Another tensor over the same memory; set, it makes this tensor an alias of the new
        one."""
        # Unlike `detach()` it has a version counter of its own, so that autograd does not see its
        # writes.
        return alias(self, self._meta, self._view)

    @data.setter
    @ends_at_user_line
    def data(self, new: torch.Tensor) -> None:
        if not isinstance(new, XlaTensor):
            raise TypeError(
                f"data: expected a tensor on xla, got one on {new.device}; move it with "
                ".to('xla') first"
            )
        if new._meta is not self._meta:  # of another dtype or shape, or elsewhere in memory
            view_rebase.replace_data(self, new)
        else:
            self._become_alias(new)

    def _become_alias(self, new: "XlaTensor") -> None:
        """Makes this tensor an alias of `new` (`.data =`). Views and reads follow; the sharding as
        well, if it fits."""
        for view in view_rebase.live_views(self):
            view_rebase.follow(new._storage, view)  # it stays a view of this tensor
        torch._C.TensorBase.data.__set__(self, new)  # type: ignore[attr-defined]
        sharding, old = self._storage.sharding if self._view is None else None, self._storage
        self._storage, self._view, self._meta = new._storage, new._view, new._meta
        self._storage.is_state |= old.is_state
        self._storage.is_parameter |= old.is_parameter
        if old.reads is not None and self._view is None:
            old.reads.move(old, self._storage)
        unmarked = self._view is None and self._storage.sharding is None
        if unmarked and sharding is not None and len(sharding.spec.dims) <= len(self._meta.shape):
            annotate(self, sharding)

    as_strided_, resize_, resize_as_, squeeze_, swapaxes_, swapdims_, t_, transpose_, unsqueeze_ = (
        map(view_rebase.reshaping_method, view_rebase.METHODS)
    )

    @ends_at_user_line
    def __deepcopy__(self, memo: dict[int, Any]) -> "XlaTensor":
        """Copies a leaf tensor with its gradient, its hook for gradients' shardings, and the user's
        attributes."""
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                "deepcopy: only tensors created by the user can be copied deeply; call .detach() "
                "first"
            )
        copied = self._copied_alone() if self._is_param else self._copied_with_views(memo)
        memo[id(self)] = copied
        copied.requires_grad_(self.requires_grad)
        # the hook by which mark_sharding shards gradients; False: none
        pin = self.__dict__.get("_pins_grad")
        if pin is False:
            copied.__dict__["_pins_grad"] = False
        if self._is_param:
            copied._is_param = True
        # torch's parameters lose their attributes
        if not self._is_param or type(self) is not XlaTensor:
            state = attributes_of(self)
            copied.__dict__.update(copy.deepcopy(state, memo))
        if pin and not copied.__dict__.get("_pins_grad"):
            copied.__dict__["_pins_grad"] = pin
            copied.register_post_accumulate_grad_hook(pin)
        if self.grad is not None:
            copied.grad = self.grad.__deepcopy__(memo)
        copied.__class__ = type(self)  # last: a user's function may read the attributes
        return copied

    def _copied_alone(self) -> "XlaTensor":
        """A copy of the tensor's elements alone, with its sharding."""
        with torch.no_grad():
            copied: XlaTensor = self.detach().clone()  # type: ignore[assignment]
        if self._view is None and self._storage.sharding is not None:
            annotate(copied, self._storage.sharding)
        return copied

    def _copied_with_views(self, memo: dict[int, Any]) -> "XlaTensor":
        """A copy of all memory behind the tensor, shared with other views in the same deep copy."""
        base: Any = memo.get(id(self._storage))
        if base is None:
            with torch.no_grad():
                base = memo[id(self._storage)] = wrap(self._storage.meta, self._storage).clone()
            if self._storage.sharding is not None:
                annotate(base, self._storage.sharding)
        view = self._view
        return alias(base, self._meta, None if view is None else view.without_cache())

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        if not _shows_values.value:
            return f"tensor({tensor_meta(self)!r}, device='{self.device}')"
        text = self.detach().cpu().__repr__().removesuffix(")")
        parts = [f"device='{self.device}'"]
        for part in ("size", "dtype"):  # torch names them after the device
            text, separator, value = text.partition(f", {part}=")
            if separator:
                size, *dtype = value.partition(", dtype=")
                parts.append(f"{part}={size}")
                text += "".join(dtype)
        if self.grad_fn is not None:
            parts.append(f"grad_fn=<{self.grad_fn.name()}>")
        elif self.requires_grad:
            parts.append("requires_grad=True")
        text = f"{text}, {', '.join(parts)})"
        return f"Parameter containing:\n{text}" if self._is_param else text

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else super().__format__(spec)

    def tolist(self) -> list[object]:
        return self.cpu().tolist()

    @ends_at_user_line
    def numpy(self, *, force: bool = False) -> np.ndarray:
        if not force:
            raise TypeError(
                "can't convert an xla tensor to numpy; use .cpu() first, or numpy(force=True); of "
                'an array next to a tensor write torch.as_tensor(array).to("xla")'
            )
        return self.detach().cpu().numpy()

    # Savers find tied weights and views by the address and size of their storage. A `Storage` has
    # no memory to point at, so its address is a number of its own, far from every other one's;
    # there is nothing at it.
    def untyped_storage(self) -> torch.UntypedStorage:
        """torch's storage object, with an address for comparisons and without bytes."""
        storage = super().untyped_storage()
        address = _address(self._storage)
        storage.data_ptr = lambda: address  # type: ignore[method-assign]
        for name in ("clone", "copy_", "cpu", "fill_", "resize_", "tolist", "__deepcopy__"):
            setattr(storage, name, no_bytes)
        return storage

    def data_ptr(self) -> int:
        return _address(self._storage) + self.storage_offset() * self.element_size()  # type: ignore[return-value]  # int

    def backward(self, *args: object, **kwargs: object) -> None:
        enter_thread()
        super().backward(*args, **kwargs)

    # AOTAutograd traces plain fake tensors of the device, whose gradients ours are.
    def __coerce_same_metadata_as_tangent__(
        self, metadata: object, expected: type | None = None
    ) -> "XlaTensor | None":
        return self if expected is torch.Tensor else None


def no_bytes(*args: object, **kwargs: object) -> NoReturn:
    """Raises NotImplementedError: replaces the methods of a torch storage that read or write its
    bytes."""
    raise NotImplementedError(
        "an xla tensor has no storage to read or write bytes of; use the tensor itself: .clone(), "
        ".fill_(), .resize_(), .cpu().untyped_storage()"
    )


def _address(storage: Storage) -> int:
    return id(storage) << 44  # room for 16 TiB each


def handle_calls_by(handler: Callable[..., object]) -> None:
    """Has torch call `handler` for every aten call with a tensor of the class among its
    arguments."""
    XlaTensor.__torch_dispatch__ = staticmethod(handler)  # type: ignore[method-assign]


# looked up once: `wrap` is called for every result
_make_wrapper = torch.Tensor._make_wrapper_subclass


def storage_of(tensor: XlaTensor) -> Storage:
    """A tensor's storage; a view shares its base's."""
    return tensor._storage


def attributes_of(tensor: torch.Tensor) -> dict[str, Any]:
    """The attributes that a user has given to a tensor."""
    return {name: value for name, value in tensor.__dict__.items() if name not in OURS}


def view_of(tensor: XlaTensor) -> Any:
    """The steps from the storage to a tensor's elements (`views.View`); None where it has all of
    them."""
    return tensor._view


def tensor_meta(tensor: XlaTensor) -> Meta:
    """The shape, strides and dtype of a tensor."""
    return tensor._meta


def set_storage(tensor: XlaTensor, storage: Storage, view: Any) -> None:
    """Has a tensor read and write another storage, through a view, or None for all of it."""
    tensor._storage, tensor._view = storage, view
    deferred.num_assigned += 1


def wrap(meta: Meta, storage: Storage, view: Any = None) -> XlaTensor:
    """A torch tensor over a storage."""
    tensor = _make_wrapper(
        XlaTensor,
        meta.shape,
        strides=meta.strides,
        storage_offset=meta.offset,
        dtype=meta.dtype,
        device=DEVICE,
    )
    tensor._storage = storage
    tensor._view = view
    tensor._meta = meta
    return tensor


def abstract(meta: Meta, sharding: Sharding) -> XlaTensor:
    """A tensor with this sharding and without data: for programs that are compiled and never
    run."""
    return wrap(
        meta, Storage(DeviceData(meta, sharding=sharding, is_abstract=True), meta, sharding)
    )


def tensors_of(node: Node) -> list[XlaTensor]:
    """A new tensor for each result of a recorded op."""
    return [wrap(value.meta, Storage(value, value.meta)) for value in results(node)]


def alias(base: XlaTensor, meta: Meta, view: Any = None) -> XlaTensor:
    """Another tensor over the storage of `base`; autograd knows it if it knows `base`, in inference
    mode, too."""
    if torch.is_inference_mode_enabled() and not base.is_inference():
        with torch.inference_mode(False):
            return wrap(meta, base._storage, view)
    return wrap(meta, base._storage, view)
