"""Calls that are more than an op: copies between host and device, reads, aliases, forms without a functional op."""

from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from . import fused, indexing, metrics, recurrent
from .barrier import host_value
from .composed import COMPOSED
from .host import leaving
from .ir import Leaf
from .overlap import check_target
from .runtime import host_array, host_tensor
from .tensor import LOCK, XlaTensor, alias, no_bytes
from .views import write

aten = torch.ops.aten


def _changes_values(view: Any) -> bool:
    """Whether a view in the chain shows other numbers than memory holds (a conjugate, a negative)."""
    while view is not None:
        if view.rule.read.name in ("aten._conj", "aten._neg_view"):
            return True
        view = view.parent
    return False


def host_copy(tensor: XlaTensor, call: str = "a read") -> torch.Tensor:
    """The tensor's value as a CPU tensor of its own; a barrier. `call` is what the user called, for messages."""
    cell, meta = tensor._cell, tensor._meta
    leaving(call, repr(meta))
    if _changes_values(tensor._view):
        return host_copy(aten.clone.default(tensor))
    base = host_tensor(host_value(cell))
    if tensor._view is None:
        # The device's own layout is dense; give the copy the strides that torch would give a copy.
        return base if meta.strides == base.stride() else base.clone().as_strided_(meta.shape, base.stride())
    made = strided(tensor, base)
    return host_copy(aten.clone.default(tensor)) if made is None else made.clone()


def strided(tensor: XlaTensor, base: torch.Tensor) -> torch.Tensor | None:
    """A view on the host, given the host's copy of its base; None where it shows the bytes as other numbers."""
    meta, whole = tensor._meta, tensor._cell.meta
    if not meta.numel:  # numpy's strides of nothing are not torch's
        return torch.empty_strided(meta.shape, meta.strides, dtype=meta.dtype, device="cpu")
    order = sorted(range(base.dim()), key=lambda dim: (-whole.strides[dim], dim))
    storage = base.permute(order).contiguous().reshape(-1)
    storage = storage.view(meta.dtype) if storage.dtype != meta.dtype and not meta.dtype.is_complex else storage
    if meta.dtype != storage.dtype:
        return None
    return storage.as_strided(meta.shape, meta.strides, meta.offset - whole.offset)


def _detach(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> XlaTensor:
    tensor = args[0]
    return alias(tensor, tensor._meta, tensor._view)


def _copy_(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    target, source = args[0], args[1]
    if type(target) is not XlaTensor:
        return target.copy_(host_copy(source, "copy_ into a CPU tensor"))
    if isinstance(source, XlaTensor):
        return NotImplemented
    if source.device.type != "cpu":
        raise RuntimeError(f"copy_: expected a tensor on xla or cpu, got one on {source.device}")
    check_target("aten.copy_", "copy", target._meta)
    # A snapshot: the caller may change the CPU tensor before the upload, which waits for the first use.
    snapshot = torch.empty(target.shape, dtype=target.dtype, device="cpu").copy_(source)
    with LOCK:
        write(target, Leaf(_dense(target), host=host_array(snapshot)))
    return target


def _dense(target: XlaTensor) -> Any:
    return target._meta if target._view is None else target._view.meta.layout


def _to_copy(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    device = kwargs.get("device")
    if device is None or torch.device(device).type == "xla":
        return NotImplemented
    made = host_copy(args[0], "cpu() or to()")
    rest = {name: value for name, value in kwargs.items() if name not in ("device", "non_blocking", "pin_memory")}
    return made.to(device).to(rest.get("dtype") or made.dtype)


def _item(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return host_copy(args[0], "item() or bool()").item()


def _equal(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    left, right = args
    if left.shape != right.shape:
        return False
    return bool((left == right).all().item())


def _allclose(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(torch.isclose(*args, **kwargs).all().item())


def _elsewhere(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`x.new_zeros(2, device="cpu")`: a factory that is asked for a tensor on another device than its model's."""
    device = kwargs.get("device")
    if device is None or torch.device(device).type == "xla":
        return NotImplemented
    like = torch.empty_strided(args[0].shape, args[0].stride(), dtype=args[0].dtype, device=device)
    return func(like, *args[1:], **kwargs)


def _rand_like(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    rest = {name: value for name, value in kwargs.items() if name != "generator"}
    return torch.empty_like(args[0], **rest).uniform_(generator=kwargs.get("generator"))


def _randn_like(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    rest = {name: value for name, value in kwargs.items() if name != "generator"}
    return torch.empty_like(args[0], **rest).normal_(generator=kwargs.get("generator"))


def _randint_like(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, *bounds = args
    low, high = (0, bounds[0]) if len(bounds) == 1 else bounds
    return torch.empty_like(tensor, **kwargs).random_(low, high)


def _attention(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """`scaled_dot_product_attention` as torch's fused op for other backends, whose derivative formula torch has."""
    query, key, value, *rest = args
    bound = dict(zip(("attn_mask", "dropout_p", "is_causal"), rest, strict=False)) | kwargs
    mask, is_causal = bound.get("attn_mask"), bound.get("is_causal", False)
    if mask is not None and is_causal:
        raise RuntimeError(
            "scaled_dot_product_attention: attn_mask and is_causal=True exclude each other; pass one of them"
        )
    if key.shape[-3:-2] != query.shape[-3:-2] and not bound.get("enable_gqa", False):
        raise RuntimeError(
            f"scaled_dot_product_attention: {query.shape[-3]} query heads and {key.shape[-3]} key heads need "
            "enable_gqa=True"
        )
    outer = torch.broadcast_shapes(*(tensor.shape[:-3] for tensor in (query, key, value)))
    query, key, value = (tensor.expand(*outer, *tensor.shape[-3:]) for tensor in (query, key, value))
    batch = query.shape[:-3]
    if query.dim() != 4:
        query, key, value = (_to_4d(tensor) for tensor in (query, key, value))
        mask = mask if mask is None or mask.dim() <= 2 else _to_4d(mask)
    output = aten._scaled_dot_product_fused_attention_overrideable(
        query, key, value, mask, bound.get("dropout_p", 0.0), is_causal, False, scale=bound.get("scale")
    )[0]
    return output if output.dim() == len(batch) + 3 and len(batch) == 1 else _from_4d(output, args[0])


def _to_4d(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() == 2:
        return tensor[None, None]
    return tensor[None] if tensor.dim() == 3 else tensor.flatten(0, -4)


def _from_4d(output: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    return output.reshape(*query.shape[:-1], output.shape[-1])


def _batch_norm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`native_batch_norm` writes its running statistics, which its schema does not say."""
    names = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
    bound = dict(zip(names, args, strict=False)) | kwargs
    mean, var = bound["running_mean"], bound["running_var"]
    if mean is None or not bound["training"]:
        return NotImplemented
    *made, new_mean, new_var = aten._native_batch_norm_legit_functional(*(bound[name] for name in names))
    mean.copy_(new_mean)
    var.copy_(new_var)
    return tuple(made)


def _batch_norm_legit(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return aten.native_batch_norm.default(*args, **kwargs)


def _rrelu(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """`rrelu_with_noise` leaves the slopes it drew in its second argument, for backward."""
    names = ("self", "noise", "lower", "upper", "training", "generator")
    bound = (
        {"lower": 0.125, "upper": 1 / 3, "training": False, "generator": None}
        | dict(zip(names, args, strict=False))
        | kwargs
    )
    tensor, lower, upper = bound["self"], bound["lower"], bound["upper"]
    if not bound["training"]:
        return torch.nn.functional.leaky_relu(tensor, (lower + upper) / 2)
    drawn = torch.empty_like(tensor).uniform_(lower, upper, generator=bound["generator"])
    slopes = torch.where(tensor <= 0, drawn, 1)
    bound["noise"].copy_(slopes)
    return tensor * slopes


def _rrelu_(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    return args[0].copy_(_rrelu(func, args, kwargs))


def _on_host(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An op whose result's shape depends on data runs on the host, and is counted."""
    leaving(str(func), "its operands, as the result's shape depends on their values,")
    metrics.add("host_ops")
    args, kwargs = tree_map_only(torch.Tensor, lambda tensor: tensor.cpu(), (args, kwargs))
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to("xla"), func(*args, **kwargs))


def _repeats(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`repeat_interleave` of counts: a static program where the caller says how many there are in all."""
    return NotImplemented if kwargs.get("output_size") is not None else _on_host(func, args, kwargs)


# -- In-place ops that change a tensor's shape: it becomes the view that the op without underscore makes of it.


def _become(tensor: XlaTensor, new: XlaTensor) -> XlaTensor:
    # Sizes and strides, as torch sees them; gradient and version stay.
    torch._C.TensorBase.data.__set__(tensor, new)  # type: ignore[attr-defined]
    tensor._cell, tensor._view, tensor._meta = new._cell, new._view, new._meta
    return tensor


def _view_in_place(view: Any) -> Any:
    def handler(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> XlaTensor:
        return _become(args[0], view(*args, **kwargs))

    return handler


def _resize_(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> XlaTensor:
    """New elements are zeros; torch leaves them as it finds them."""
    tensor, size = args[0], torch.Size(args[1])
    if size == tensor.shape:
        return tensor
    missing = size.numel() - tensor.numel()
    if missing <= 0:
        flat = tensor.as_strided((size.numel(),), (1,)) if size.numel() else tensor.new_zeros(0)
    else:
        flat = (
            torch.cat([tensor.reshape(-1), tensor.new_zeros(missing)]) if tensor.numel() else tensor.new_zeros(missing)
        )
    return _become(tensor, flat.view(size))


def _resize_as_(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> XlaTensor:
    return _resize_(func, (args[0], args[1].shape), {})


def _as_strided_scatter(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """A copy of all the memory that the tensor is a view of: the layout may name any element of it."""
    tensor, source, *layout = args
    bound = {"storage_offset": None} | dict(zip(("size", "stride", "storage_offset"), layout, strict=False)) | kwargs
    memory, begin = tensor._cell.meta, tensor._cell.meta.offset
    offset = tensor.storage_offset() if bound["storage_offset"] is None else bound["storage_offset"]
    made = tensor.as_strided((memory.numel,), (1,), begin).clone()
    made.as_strided(bound["size"], bound["stride"], offset - begin).copy_(source)
    return made.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() - begin)


def _bernoulli_(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    chance = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    if not 0 <= chance <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={chance}")
    return NotImplemented


def _polygamma_(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """Its functional form has the two arguments the other way round."""
    tensor, order = args
    return tensor.copy_(torch.polygamma(order, tensor))


def _select_copy(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    return aten.select.int(*args, **kwargs).clone()


def _weight_norm_backward(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return aten._weight_norm_differentiable_backward.default.decompose(*args, **kwargs)


def _same_storage_numel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    sizes = [
        x._cell.meta.numel if isinstance(x, XlaTensor) else x.untyped_storage().nbytes() // x.itemsize for x in args
    ]
    return sizes[0] == sizes[1]


def _set_(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> XlaTensor:
    """The tensor becomes another name of its source's memory."""
    tensor = args[0]
    source = args[1] if len(args) > 1 else tensor.new_empty(0)
    if type(source) is not XlaTensor or source.dtype != tensor.dtype:
        raise RuntimeError(f"set_: expected a {tensor.dtype} tensor on xla:0, got {source.dtype} on {source.device}")
    return _become(tensor, alias(source, source._meta, source._view))


def _is_set_to(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    one, other = args
    return one._cell is other._cell and one._meta is other._meta


def _is_pinned(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return False


def _pin_memory(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0]


SPECIALS: dict[Any, Any] = {
    aten.detach.default: _detach,
    aten.alias.default: _detach,
    aten.detach_.default: lambda func, args, kwargs: args[0],  # in inference mode; else autograd does all of it
    aten.lift_fresh.default: _detach,
    aten.copy_.default: _copy_,
    aten._to_copy.default: _to_copy,
    aten._local_scalar_dense.default: _item,
    aten.item.default: _item,  # what `.item()` is below autograd, inside another handler
    aten.equal.default: _equal,
    aten.allclose.default: _allclose,
    aten.rand_like.default: _rand_like,
    aten.randn_like.default: _randn_like,
    aten.randint_like.default: _randint_like,
    aten.randint_like.low_dtype: _randint_like,
    aten.scaled_dot_product_attention.default: _attention,
    aten._pin_memory.default: _pin_memory,
    aten.is_pinned.default: _is_pinned,
    aten.is_set_to.default: _is_set_to,
    aten.set_.default: _set_,
    aten.set_.source_Tensor: _set_,
    aten.set_.source_Storage: no_bytes,
    aten.set_.source_Storage_storage_offset: no_bytes,
    aten.select_copy.int: _select_copy,
    aten.native_batch_norm.default: _batch_norm,
    aten._native_batch_norm_legit.default: _batch_norm_legit,
    aten.rrelu_with_noise.default: _rrelu,
    aten.rrelu_with_noise_.default: _rrelu_,
    aten.nonzero.default: _on_host,
    aten.masked_select.default: _on_host,
    aten._unique.default: _on_host,
    aten._unique2.default: _on_host,
    aten.unique_dim.default: _on_host,
    aten.unique_consecutive.default: _on_host,
    aten.unique_dim_consecutive.default: _on_host,
    aten.bincount.default: _on_host,
    aten.repeat_interleave.Tensor: _repeats,
    aten.allclose.default: _allclose,
    aten.squeeze_.default: _view_in_place(aten.squeeze.default),
    aten.squeeze_.dim: _view_in_place(aten.squeeze.dim),
    aten.squeeze_.dims: _view_in_place(aten.squeeze.dims),
    aten.unsqueeze_.default: _view_in_place(aten.unsqueeze.default),
    aten.transpose_.default: _view_in_place(aten.transpose.int),
    aten.t_.default: _view_in_place(aten.t.default),
    aten.as_strided_.default: _view_in_place(aten.as_strided.default),
    aten.resize_.default: _resize_,
    aten.resize_as_.default: _resize_as_,
    aten.as_strided_scatter.default: _as_strided_scatter,
    aten.bernoulli_.float: _bernoulli_,
    aten.bernoulli.p: _bernoulli_,
    aten.polygamma_.default: _polygamma_,
    aten._weight_norm_interface_backward.default: _weight_norm_backward,
    aten._has_same_storage_numel.default: _same_storage_numel,
}

for _overload in (
    aten.new_zeros.default, aten.new_ones.default, aten.new_full.default, aten.new_empty.default,
    aten.new_empty_strided.default, aten.zeros_like.default, aten.ones_like.default, aten.full_like.default,
    aten.empty_like.default,
):  # fmt: skip
    SPECIALS[_overload] = _elsewhere

SPECIALS.update(COMPOSED)
SPECIALS.update(indexing.HANDLERS)
SPECIALS.update(recurrent.HANDLERS)
SPECIALS.update(fused.HANDLERS)

# What of the above takes data to the host, for `python -m spmd where`.
HOST_HANDLERS = frozenset({_item, _equal, _allclose, _on_host})
