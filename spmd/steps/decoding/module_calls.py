"""Calls without gradients of a module that writes a cache in place: recorded once, then replayed,
with no word of the user's.

Where a line of the user's runs a graph without gradients, the next call of a module is looked at.
If it has written buffers before, or has an object of tensors among its arguments, this call and
later ones are those of `spmd.compile`.
"""

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from ...core import DeviceData, XlaTensor, config, hardware, held, messages, storage_of, syncs
from ...core.extend import Bounded
from ..replay.argument_objects import ObjectParts, parts_of
from ..replay.compiled_function import CallKind, CompiledFunction, is_recorded
from ..segments import module_slot
from .host_lists import set_decoding


class _Calls(threading.local):
    is_inside = False  # a call of a module that is looked at, or replayed
    is_generate = False  # whose next call is looked at


_thread = _Calls()
_CALL = nn.Module._call_impl.__code__
_runs: Bounded[Any, int] = Bounded(1024)  # of graphs without gradients, by the user's line
_refused: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def note_run(line: Any) -> None:
    """Has the next call of a module looked at, at the 1st, 2nd, 4th... run of a line; joins
    `points.on_schedule`."""
    if torch.is_grad_enabled() or _thread.is_inside or is_recorded():
        return
    user_line = line.code, line.instruction
    count = _runs.keep(user_line, (_runs.get(user_line) or 0) + 1)
    if not count & (count - 1):
        look_at_next()


def look_at_next(*, is_generate: bool = False) -> None:
    """Has the next call of a module looked at: torch's slot for compiled calls is that of all
    modules here.

    is_generate: calls of one kind are known to repeat.
    """
    if config.record_modules:
        _thread.is_generate = is_generate
        module_slot.look(_looked_at)


def _looked_at(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _CALL:
        frame = frame.f_back
    items = tree_leaves((args, kwargs))
    if frame is not None or not any(type(item) is XlaTensor for item in items):
        # a part of another module's call, or on the CPU: the next call is it
        return module_slot.call(module, *args, **kwargs)
    module_slot.rest()
    is_dynamo = type(module).__module__.startswith("torch._dynamo")  # the result of torch.compile
    if torch.is_grad_enabled() or module in _refused or is_dynamo or not _may_write(module, items):
        return module_slot.call(module, *args, **kwargs)
    module._compiled_call_impl = call = ModuleCall(module)
    return call(*args, **kwargs)


def _may_write(module: nn.Module, items: Sequence[Any]) -> bool:
    """True if there are objects of tensors among the arguments, or buffers that were written
    before."""
    return any(map(parts_of, items)) or any(map(_is_written, module.buffers()))


def _is_written(tensor: torch.Tensor) -> bool:
    return type(tensor) is XlaTensor and (tensor.is_inference() or tensor._version > 0)


def unrolled() -> AbstractContextManager[None]:
    """Programs compiled inside have no loops over layers, but on a TPU: a loop would copy each
    layer's weights, and to read these is most of what a token costs."""
    is_tpu = hardware.default_sharding().platform == "tpu"
    return (
        contextlib.nullcontext()
        if is_tpu or config.scan_layers != "auto"
        else held(config, scan_layers="never")
    )


class RecordedCall(CompiledFunction[..., Any]):
    """Calls without gradients that write a cache in place, as those of `spmd.compile`."""

    tries = 2  # FSDP's first call changes Python state

    def __init__(self, module: nn.Module, function: Callable[..., Any]):
        def call(*args: Any, **kwargs: Any) -> Any:
            with unrolled():
                result = function(*args, **kwargs)
                syncs.sync()
            return result

        super().__init__(call, (), {})
        self._module, self._name = module, type(module).__name__

    def _recorded(self, *arguments: Any) -> Any:
        for parameter in self._module.parameters():
            held_by: Any = parameter
            data = storage_of(held_by).value if type(parameter.data) is XlaTensor else None
            if type(data) is DeviceData and data.store is not None:
                data.take(*data.placed())  # a row would be copied at each call
        return super()._recorded(*arguments)


class ModuleCall(RecordedCall):
    """The calls of a module: without gradients those of `spmd.compile`, else as they are.

    of_tokens: the functions of `generate` that call it, by their kind.
    """

    def __init__(self, module: nn.Module):
        super().__init__(module, module._call_impl)
        self._plain = self._call_impl = module._call_impl
        self._is_generate = _thread.is_generate
        self.of_tokens: dict[Any, RecordedCall] = {}
        self._seen: Bounded[Any, bool] = Bounded(256)
        self._last: Any = None
        self._has_buffers = any(map(_is_written, module.buffers()))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() or is_recorded() or not config.record_modules:
            return module_slot.call(self._module, *args, **kwargs)
        module_slot.rest()
        num_replayed = self.num_replayed
        with held(_thread, is_inside=True):
            result = super().__call__(*args, **kwargs)
        if self.num_replayed > num_replayed:
            set_decoding(True)
        return result

    def _repeats(self, key: Any) -> bool:
        """True for a kind that has come twice in a row, as tokens do, or twice where others are
        replayed.

        Where a Python number counts positions no kind comes twice: such lengths are learned.
        """
        last, self._last = self._last, key
        is_worth = (
            self._is_generate or key == last or (self.num_replayed > 0 and key in self._seen.rows)
        )
        self._seen.keep(key, True)
        return is_worth

    def _is_recordable(self, apart: Mapping[int, ObjectParts]) -> bool:
        return self._has_buffers or bool(apart)

    def _recorded(self, kind: CallKind, *arguments: Any) -> Any:
        num_whole = len(self._whole)
        result = super()._recorded(kind, *arguments)
        if len(self._whole) > num_whole:  # arguments of this class are not looked at any more
            messages.say(
                f"{self._name} is not replayed: {self.causes[-1]}", "uncompiled", self.explain()
            )
        if len(kind.refused) == self.tries or (kind.entries and not kind.entries[0].replay.writes):
            self._module._compiled_call_impl = None
            _refused.add(self._module)
        return result
