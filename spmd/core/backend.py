"""The one owner of torch's process-wide state: the device name `xla`, its hooks, factories, autocast and generator seed."""

import contextlib
import itertools
import signal
import threading
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import optimizer
from torch.utils import _foreach_utils

from . import random, recurrent, runtime
from .dispatch import PLANS, dispatch
from .entries import make_plan, new_entry
from .ir import Node
from .source import user_frame
from .specials import SPECIALS
from .tensor import LOCK, Cell, XlaTensor, annotate, enter_thread, wrap

aten = torch.ops.aten

NAME = "xla"


def _claim_name() -> None:
    """Renames torch's PrivateUse1 device to `xla`; only one library per process can own that name."""
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", NAME):
        raise ImportError(
            f"torch's one custom device of this process is already called {taken!r}, so `xla` cannot be registered. "
            "Import spmd in a process that does not import the other backend."
        )
    if taken == NAME or hasattr(torch, NAME):
        raise ImportError(
            "the device name 'xla' already has an owner in this process (torch_xla, or another copy of this library). "
            "Import only one of them."
        )
    torch.utils.rename_privateuse1_backend(NAME)


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def is_built(self) -> bool:
        return True

    def has_primary_context(self, index: int) -> bool:
        return True


_TYPE = torch._C._autograd.DeviceType.PrivateUse1
_interrupted = threading.local()  # .error: what was raised in this thread's backward pass
_probe = ().__len__  # the cheapest call that the interpreter does not specialise


class _Guard(torch._C._acc.DeviceGuard):
    # torch asks this several times an op, where no exception may come out: so it runs no bytecode, which Ctrl-C could stop.
    type_ = itertools.repeat(_TYPE).__next__


def _type_in_backward() -> Any:
    """What `_Guard.type_` is during a backward pass.

    The engine asks it also while it unwinds from a Python exception (a hook that raised), from a C++ destructor; to leave
    it with that exception still set would abort the process. Python turns a call made with an exception set into a
    SystemError caused by it: so it is found and kept, for `run_backward` to raise.
    """
    try:
        _probe()
    except SystemError as error:
        _interrupted.error = error.__cause__
    return _TYPE


_guard = _Guard()
_backward_lock = threading.Lock()
_num_backward = 0


@contextlib.contextmanager
def _guarded() -> Iterator[None]:
    global _num_backward
    with _backward_lock:
        _num_backward += 1
        _guard.type_ = _type_in_backward
    try:
        yield
    finally:
        with _backward_lock:
            _num_backward -= 1
            if not _num_backward:
                del _guard.type_


_pressed: list[Any] = []


def _note_ctrl_c(number: int, frame: Any) -> None:
    _pressed.append(frame)


@contextlib.contextmanager
def _ctrl_c_later() -> Iterator[None]:
    """Ctrl-C inside waits for the end: raised within `_type_in_backward` it would abort the process."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or handler is _note_ctrl_c or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _note_ctrl_c)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if _pressed:
            frame = _pressed[-1]
            _pressed.clear()
            handler(signal.SIGINT, frame)


def _keep_errors_of_backward() -> None:
    """Raises what `_type_in_backward` kept; the engine itself has forgotten it by then."""
    engine = torch.autograd._engine_run_backward

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        enter_thread()
        try:
            with _ctrl_c_later(), _guarded():
                return engine(*args, **kwargs)
        except SystemError:
            error, _interrupted.error = getattr(_interrupted, "error", None), None
            if error is None:
                raise
            raise error from None

    torch.autograd._engine_run_backward = run_backward


def _device_module() -> types.ModuleType:
    """`torch.xla`: what torch asks of a device's module."""
    module = types.ModuleType("torch.xla", "The xla device of torch-spmd.")
    module.is_available = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.set_device = lambda device: None
    module.device = lambda index: contextlib.nullcontext()
    module._is_in_bad_fork = lambda: False
    module._initialized = True  # torch.utils.checkpoint asks before it saves the random state
    module.manual_seed = random.manual_seed
    module.manual_seed_all = random.manual_seed
    module.get_rng_state = lambda device=None: torch.tensor(random.get_state(), dtype=torch.int64, device="cpu")
    module.set_rng_state = lambda state, device=None: random.set_state(tuple(int(part) for part in state.tolist()))
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    return module


def _make(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> XlaTensor:
    """Records a factory: an op without operands."""
    enter_thread()
    plan = PLANS.get(overload)
    if plan is None:
        plan = PLANS[overload] = make_plan(overload, SPECIALS)
    dtype = kwargs.get("dtype")
    keywords = {"dtype": dtype} if dtype is not None else {}
    numbers = [value for value, lifted in zip(args, plan.lifted, strict=False) if lifted]
    key = ("factory", *(_hashable(value, lifted) for value, lifted in zip(args, plan.lifted, strict=False)), dtype)
    with LOCK:
        entry = plan.entries.get(key)
        if entry is None:
            entry = plan.entries[key] = new_entry(plan, args, {**keywords, "device": torch.device("meta")})
        if plan.draws:
            numbers.extend(random.next_draw(kwargs.get("generator")))
        return wrap(entry.metas[0], Cell(Node(entry, (), numbers, *user_frame(2)), entry.metas[0]))


def _hashable(value: Any, lifted: bool) -> Any:
    if lifted:
        return type(value)
    return tuple(value) if isinstance(value, (list, tuple)) else (type(value), value)


def _empty(size: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None, memory_format: Any = None):
    if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        strides = torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format).stride()
        return _make(aten.empty_strided.default, (list(size), list(strides)), {"dtype": dtype or torch.get_default_dtype()})
    return _make(aten.empty.memory_format, (list(size),), {"dtype": dtype or torch.get_default_dtype()})


def _empty_strided(size: Any, stride: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None):
    return _make(aten.empty_strided.default, (list(size), list(stride)), {"dtype": dtype or torch.get_default_dtype()})


def _empty_permuted(size: Any, physical_layout: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None):
    strides, step = [0] * len(size), 1
    for dim in reversed(physical_layout):
        strides[dim], step = step, step * size[dim]
    return _empty_strided(size, strides, dtype)


def _arange_dtype(numbers: tuple[Any, ...], dtype: Any) -> Any:
    if dtype is not None:
        return dtype
    return torch.get_default_dtype() if any(isinstance(number, float) for number in numbers) else torch.int64


def _arange(end: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None):
    return _make(aten.arange.start_step, (0, end, 1), {"dtype": _arange_dtype((end,), dtype)})


def _arange_start(start: Any, end: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None):
    return _make(aten.arange.start_step, (start, end, 1), {"dtype": _arange_dtype((start, end), dtype)})


def _arange_step(start: Any, end: Any, step: Any = 1, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None):
    return _make(aten.arange.start_step, (start, end, step), {"dtype": _arange_dtype((start, end, step), dtype)})


def _randperm(n: int, dtype: Any = torch.int64, layout: Any = None, device: Any = None, pin_memory: Any = None):
    return _make(aten.randperm.default, (n,), {"dtype": dtype or torch.int64})


def _linspace(start: Any, end: Any, steps: int, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None):
    return _make(aten.linspace.default, (start, end, steps), {"dtype": dtype or torch.get_default_dtype()})


def _logspace(
    start: Any, end: Any, steps: int, base: float = 10.0, dtype: Any = None, layout: Any = None, device: Any = None,
    pin_memory: Any = None,
):  # fmt: skip
    exponents = torch.linspace(start, end, steps, dtype=torch.float64, device="cpu")
    return (base**exponents).to(dtype or torch.get_default_dtype()).to(NAME)


def _tril_indices(row: int, col: int, offset: int = 0, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None):
    return torch.tril_indices(row, col, offset, dtype=dtype or torch.int64, device="cpu").to(NAME)


def _triu_indices(row: int, col: int, offset: int = 0, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None):
    return torch.triu_indices(row, col, offset, dtype=dtype or torch.int64, device="cpu").to(NAME)


def _eye(*size: int, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> XlaTensor:
    overload = aten.eye.default if len(size) == 1 else aten.eye.m
    return _make(overload, size, {"dtype": dtype or torch.get_default_dtype()})


def _zeros(size: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> XlaTensor:
    return _make(aten.empty.memory_format, (list(size),), {"dtype": dtype or torch.get_default_dtype()})


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """A copy that torch makes with Python dispatch switched off, as `torch.tensor(data, device="xla")` does."""
    return dispatch(aten.copy_.default, (), (target, source), {})


def _attention(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, **kwargs: Any):
    return SPECIALS[aten.scaled_dot_product_attention.default](
        None, (query, key, value, attn_mask, dropout_p, is_causal), kwargs
    )


# Ops that torch casts on an accelerator: the matmul family down to the autocast dtype, these reductions up to float32.
_LOWER_PRECISION = (
    "addmm", "addbmm", "addmv", "addr", "baddbmm", "bmm", "mm", "mv", "matmul", "linear", "conv1d", "conv2d", "conv3d",
    "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "scaled_dot_product_attention",
)  # fmt: skip
_FLOAT32 = (
    "softmax.int", "log_softmax.int", "layer_norm", "group_norm", "nll_loss", "cross_entropy_loss", "mse_loss", "l1_loss",
    "exp", "log", "log1p", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "rsqrt", "sum", "sum.dim_IntList", "prod", "cumsum",
    "cumprod", "norm.Scalar", "norm.ScalarOpt_dim", "cosine_similarity", "binary_cross_entropy_with_logits", "softplus",
)  # fmt: skip

_libraries: list[torch.library.Library] = []


def _register_factories() -> None:
    library = torch.library.Library("aten", "IMPL")
    for name, function in {
        "empty.memory_format": _empty,
        "empty_strided": _empty_strided,
        "empty_permuted": _empty_permuted,  # what empty_like of a meta tensor asks for
        "arange": _arange,
        "arange.start": _arange_start,
        "arange.start_step": _arange_step,
        "randperm": _randperm,
        "eye": _eye,
        "eye.m": _eye,
        "_efficientzerotensor": _zeros,
        "linspace": _linspace,
        "logspace": _logspace,
        "tril_indices": _tril_indices,
        "triu_indices": _triu_indices,
        "_copy_from": _copy_from,
    }.items():
        library.impl(name, function, "PrivateUse1")
    library.impl("scaled_dot_product_attention", _attention, "AutogradPrivateUse1")
    for name, function in recurrent.KERNELS.items():
        library.impl(name, function, "AutogradPrivateUse1")
    _libraries.append(library)


def _register_autocast() -> None:
    fallback = torch.library.Library("_", "IMPL")
    fallback.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    library = torch.library.Library("aten", "IMPL")
    for name in _LOWER_PRECISION:
        library.impl(name, _autocast_kernel(name, None), "AutocastPrivateUse1")
    for name in _FLOAT32:
        library.impl(name, _autocast_kernel(name, torch.float32), "AutocastPrivateUse1")
    _libraries.extend((fallback, library))


def _autocast_kernel(name: str, dtype: torch.dtype | None) -> Any:
    packet, _, overload_name = name.partition(".")
    overload = getattr(getattr(aten, packet), overload_name or "default")

    def convert(value: Any, target: torch.dtype) -> Any:
        if isinstance(value, torch.Tensor):
            narrow = value.is_floating_point() and value.dtype != torch.float64 and value.device.type == NAME
            return value.to(target) if narrow and value.dtype != target else value
        return [convert(item, target) for item in value] if isinstance(value, (list, tuple)) else value

    def kernel(*args: Any, **kwargs: Any) -> Any:
        target = dtype or torch.get_autocast_dtype(NAME)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)):
            return overload(*convert(args, target), **{key: convert(value, target) for key, value in kwargs.items()})

    return kernel


def _join_foreach() -> None:
    """Lets torch.optim and clip_grad_norm_ use their list forms, as DTensor does: they know tensor types by exact class."""
    for known in (optimizer._foreach_supported_types, _foreach_utils._foreach_supported_types):
        if XlaTensor not in known:
            known.append(XlaTensor)


def _split_loaded_state() -> None:
    """Lets `Optimizer.load_state_dict` lay a parameter's state out like the parameter, as it already lays it on its device."""
    process = optimizer.Optimizer._process_value_according_to_param_policy

    def split(param: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        made = process(param, value, *args, **kwargs)
        if type(made) is XlaTensor and type(param) is XlaTensor and made.shape == param.shape:
            sharding = param._cell.sharding
            if sharding is not None and made._view is None and made._cell.sharding is None:
                annotate(made, sharding)
        return made

    optimizer.Optimizer._process_value_according_to_param_policy = staticmethod(split)


_claim_name()
_join_foreach()
_split_loaded_state()
runtime_module = _device_module()
torch._register_device_module(NAME, runtime_module)
torch._C._acc.register_python_privateuseone_hook(_Hooks())
torch._C._acc.register_python_privateuseone_device_guard(_guard)
_register_factories()
_register_autocast()
_keep_errors_of_backward()
random.manual_seed(torch.initial_seed())

__all__ = ["NAME", "runtime", "runtime_module"]
