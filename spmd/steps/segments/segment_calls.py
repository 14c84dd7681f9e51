"""The calls that are segments: the outermost call of a module, an optimizer's step, and what clips
gradients, without a word of the user's."""

import functools
import itertools
import threading
import weakref
from typing import Any

import torch
from torch import nn
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch.nn.utils import clip_grad
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch.utils._python_dispatch import _len_torch_dispatch_stack
from torch.utils._pytree import tree_leaves

from ...core import (
    XlaTensor,
    config,
    ends_at_user_line,
    gradients_of,
    held,
    replaces,
    set_gradients,
)
from ...core.extend import losses
from ..replay.observed_call import ObservedCall
from ..replay.recipe import Recipe
from . import equal_steps as equal_steps
from . import module_slot
from .segment_function import SegmentFunction


class _Calls(threading.local):
    is_inside = False  # of a segment


_thread = _Calls()


# Weak, and no segment holds its object: an object dies with its last reference.
_segments: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def note_run(_line: Any) -> None:
    """Has the calls of modules looked at from now on; joins `points.on_schedule`."""
    if module_slot.resting is None:
        module_slot.resting = _called
        module_slot.rest()


def _called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    is_segment = (
        not _thread.is_inside
        and torch._C._current_graph_task_id() == -1  # a recomputation
        and config.replay_steps
        and torch.is_grad_enabled()
        and any(type(item) is XlaTensor for item in tree_leaves((args, kwargs)))
        and not get_eval_frame_callback()  # Dynamo compiles what this would run
    )
    if not is_segment:
        return module._call_impl(*args, **kwargs)
    segment = _segments.get(module)
    if segment is None:
        call = functools.partial(_call_of, weakref.ref(module))
        segment = _segments[module] = _Segment(module, call)
    return segment(*args, **kwargs)


def _watcher() -> str:
    """What of the user's sees each op, or what it saves; "" for nothing."""
    if torch.is_anomaly_enabled():
        return "anomaly detection looks at its ops"
    if _len_torch_dispatch_stack() > 0:
        return "a dispatch mode sees its ops"
    if losses.is_transformed():
        return "torch.func or forward-mode AD transforms its ops"
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return "" if hooks is None else "saved_tensors_hooks see what it saves"


class _Segment(SegmentFunction):
    """A segment that is no part of another one."""

    @ends_at_user_line
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _thread.is_inside:
            return self._function(*args, **kwargs)
        with held(_thread, is_inside=True):
            if watcher := _watcher():
                self.pass_by(watcher)
                return self._function(*args, **kwargs)
            return super().__call__(*args, **kwargs)


def _call_of(module: Any, *args: Any, **kwargs: Any) -> Any:
    return module()._call_impl(*args, **kwargs)


class OptimizerSegment(_Segment):
    """An optimizer's steps, as a function of the places of parameters without a gradient, as text,
    and of the gradients."""

    def __init__(self, optimizer: Any, step: Any):
        self._step = step
        super().__init__(optimizer, functools.partial(_step_of, weakref.ref(optimizer), step))

    def _roots(self) -> list[tuple[str, Any]]:
        return [*super()._roots(), ("its step", self._step)]

    def _recipe_of(self, call: ObservedCall) -> Recipe:
        recipe = super()._recipe_of(call)
        groups: Any = getattr(self._of(), "param_groups", ())
        trained = {id(x) for group in groups for x in group["params"]}
        # these gradients are its arguments
        recipe.gradients = [entry for entry in recipe.gradients if id(entry[0]) not in trained]
        return recipe


def _trained(optimizer: Any) -> list[torch.Tensor]:
    return [x for group in optimizer.param_groups for x in group["params"] if x.grad is not None]


def _step_of(of: Any, step: Any, _without: str, *gradients: torch.Tensor) -> Any:
    """Makes a step with these gradients."""
    trained = _trained(of())
    old = [parameter.grad for parameter in trained]
    for parameter, new in zip(trained, gradients, strict=True):
        parameter.grad = new
    try:
        return step(of())
    finally:
        for parameter, gradient in zip(trained, old, strict=True):
            parameter.grad = gradient


def _calls_closure_first(optimizer: Any) -> bool:
    """True for an optimizer of torch's that calls a closure once, before its step."""
    is_once = not isinstance(optimizer, torch.optim.LBFGS)
    has_hooks = optimizer._optimizer_step_pre_hooks or _global_optimizer_pre_hooks
    return is_once and not has_hooks and type(optimizer).__module__.startswith("torch.optim.")


def _play_steps(kind: type[torch.optim.Optimizer]) -> None:
    """Has the steps of a class of optimizers be segments."""
    original: Any = vars(kind).get("step")
    if not getattr(original, "hooked", False) or hasattr(original, "is_segment"):
        return

    @functools.wraps(original)
    def step(self: Any, closure: Any = None, **kwargs: Any) -> Any:
        is_played = config.replay_steps and not (kwargs or _thread.is_inside)
        loss = None
        if closure is not None and is_played and _calls_closure_first(self):
            with torch.enable_grad():
                loss, closure = closure(), None
        if closure is not None or not is_played:
            return original(self, *([] if closure is None else [closure]), **kwargs)
        segment = _segments.get(self)
        if segment is None:
            segment = _segments[self] = OptimizerSegment(self, original)
        each = gradients_of([x for group in self.param_groups for x in group["params"]])
        gradients = [gradient for gradient in each if gradient is not None]
        is_on_device = {*map(type, gradients)} == {XlaTensor}
        without = (
            str([i for i, gradient in enumerate(each) if gradient is None])
            if len(gradients) < len(each)
            else ""
        )
        result = segment(without, *gradients) if is_on_device else original(self)
        return result if loss is None else loss

    step.is_segment = True  # type: ignore[attr-defined]
    kind.step = step  # type: ignore[method-assign]


@replaces(torch.optim.Optimizer, "zero_grad")
def _zero_grad(original: Any, optimizer: torch.optim.Optimizer, set_to_none: bool = True) -> None:
    each = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if set_to_none and {*map(type, each)} == {XlaTensor} and not torch.compiler.is_compiling():
        set_gradients(each, itertools.repeat(None))
    else:
        original(optimizer, set_to_none)


class _Holder:
    """A gradient where torch expects a parameter."""

    def __init__(self, gradient: torch.Tensor):
        self.grad = gradient


def _play_clipping(original: Any, gradients: list[Any], held: Any, *others: Any) -> Any:
    """Calls a function of clip_grad as a segment. held: makes its argument of the gradients."""
    is_segment = (
        config.replay_steps and not _thread.is_inside and {*map(type, gradients)} == {XlaTensor}
    )
    if not is_segment:
        return original(held(gradients), *others)
    segment = _segments.get(original)
    if segment is None:
        num_others = len(others)

        def call(*arguments: Any) -> Any:
            gradients, rest = arguments[:-num_others], arguments[-num_others:]
            return original(held(gradients), *rest)

        segment = _segments[original] = _Segment(original, call)
    return segment(*gradients, *others)


# No `replaces`: Dynamo traces functions that it finds by name (`steps.dynamo.functions`).
_total_norm, _scale_to_norm = clip_grad._get_total_norm, clip_grad._clip_grads_with_norm_
_clip_norm = clip_grad.clip_grad_norm_


def _norm(
    tensors: Any,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    if torch.compiler.is_compiling():
        return _total_norm(tensors, norm_type, error_if_nonfinite, foreach)
    gradients = [tensors] if isinstance(tensors, torch.Tensor) else [*tensors]
    return _play_clipping(_total_norm, gradients, list, norm_type, error_if_nonfinite, foreach)


def _clip(
    parameters: Any,
    max_norm: float,
    total_norm: torch.Tensor,
    foreach: bool | None = None,
) -> None:
    if torch.compiler.is_compiling():
        return _scale_to_norm(parameters, max_norm, total_norm, foreach)
    parameters = [parameters] if isinstance(parameters, torch.Tensor) else [*parameters]
    gradients = [x.grad for x in parameters if x.grad is not None]
    return _play_clipping(_scale_to_norm, gradients, _held, max_norm, total_norm, foreach)


def _clip_to(
    parameters: Any,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    others = max_norm, norm_type, error_if_nonfinite, foreach
    if torch.compiler.is_compiling():
        return _clip_norm(parameters, *others)
    each = [parameters] if isinstance(parameters, torch.Tensor) else [*parameters]
    gradients = [gradient for gradient in gradients_of(each) if gradient is not None]
    if not gradients:
        return _clip_norm(each, *others)
    return _play_clipping(_clip_norm, gradients, _held, *others)


def _held(gradients: Any) -> list[_Holder]:
    return [*map(_Holder, gradients)]


_clip_to.__doc__ = _clip_norm.__doc__
clip_grad._get_total_norm, clip_grad._clip_grads_with_norm_ = _norm, _clip
clip_grad.clip_grad_norm_ = torch.nn.utils.clip_grad_norm_ = _clip_to


def _all(kind: Any) -> list[Any]:
    return [kind, *(inner for child in kind.__subclasses__() for inner in _all(child))]


@replaces(torch.optim.Optimizer, "_patch_step_function")
def _patched(original: Any, optimizer: torch.optim.Optimizer) -> None:
    original(optimizer)
    _play_steps(type(optimizer))


def segment_of(thing: Any) -> SegmentFunction | None:
    """The segment of a module, or of an optimizer; None for none."""
    return _segments.get(thing)


for _kind in _all(torch.optim.Optimizer):
    _play_steps(_kind)
