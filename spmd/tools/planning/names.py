"""Names in a recorded step: of modules, of parameters, and of the ops that they recorded."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as hooks

from ...core import DeviceData
from ...core.extend import Node, StateNames, Value, reached, user_lines, walks

_SEQUENCE = (1 << 48) - 1  # the bits of a node's sequence that are autograd's number (see `ir.source`)


class Span(NamedTuple):
    """One call of a module: the ops that it recorded, and autograd's numbers of those with a backward."""

    ops: tuple[int, int]
    numbers: tuple[int, int]
    module: nn.Module


class Calls:
    """The calls of modules while a step is recorded. paths: of the modules, by id; the calls of others have none."""

    def __init__(self, modules: Sequence[nn.Module]):
        self.paths = _paths(modules)
        self.spans: list[Span] = []
        self._open: list[tuple[int, int]] = []

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Records the calls of modules inside the context."""
        before = hooks.register_module_forward_pre_hook(self._begin)
        after = hooks.register_module_forward_hook(self._end, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _begin(self, module: nn.Module, args: Any) -> None:
        self._open.append((walks.next_serial(), torch._C._autograd._get_sequence_nr()))

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        serial, number = self._open.pop()
        now = walks.next_serial(), torch._C._autograd._get_sequence_nr()
        self.spans.append(Span((serial, now[0]), (number, now[1]), module))

    def path_of(self, node: Node) -> str:
        """The innermost module whose call recorded the op, or its forward op for a backward op; "" for none."""
        by_number = node.sequence >= 0
        at = node.sequence & _SEQUENCE if by_number else node.serial
        calls = ((span.numbers if by_number else span.ops, self.paths.get(id(span.module))) for span in self.spans)
        around = [(end - start, path) for (start, end), path in calls if start <= at < end and path is not None]
        return min(around, key=lambda call: call[0])[1] if around else ""


def _paths(modules: Sequence[nn.Module]) -> dict[int, str]:
    """The paths of modules from the outermost ones, without wrappers of one `module`."""
    paths: dict[int, str] = {}
    for root in reached.outermost(modules):
        for name, module in root.named_modules():
            paths.setdefault(id(module), user_lines.plain_name(root, name))
    return paths


# The roles of which a plan has figures; what else a program reads are inputs.
ROLES = {"parameter": "parameters", "gradient": "gradients", "optimizer state": "optimizer state"}


def role_and_name(names: StateNames, device_data: DeviceData) -> tuple[str, str]:
    """The role of an input of a program, and its name if it is a module's parameter or buffer, else ""."""
    named = names.of(device_data.holder() if device_data.holder is not None else None)
    if named is None:
        return "inputs", ""
    return ROLES.get(named.role, "inputs"), named.name if named.role in ("parameter", "buffer") else ""


def path_of(node: Node, calls: Calls, data_names: dict[DeviceData, str]) -> str:
    """The parameter that an op shards, casts or renews, else the module that it belongs to."""
    if node.op.sharding is not None or node.op.name in _SAME:
        held = [name for operand in node.operands if (name := data_names.get(_stored(operand), ""))]
        if held:
            return held[0] if len(held) == 1 else _shared(held)
    return calls.path_of(user_lines.source_of(node))


# The ops of an FSDP unit on a parameter before a layer reads it.
_SAME = frozenset({"spmd.renew", "mark_sharding", "aten._to_copy", "aten.detach", "aten.alias"})


def _stored(value: Value) -> Any:
    """The value before its renewals, annotations and casts."""
    while (maker := walks.origin(value)) is not None and maker.op.name in _SAME:
        value = maker.operands[walks.result_index(value)]
    return value


def _shared(names: Sequence[str]) -> str:
    """The common prefix of several names, and their number."""
    parts = [name.split(".") for name in names]
    common: list[str] = []
    for column in zip(*parts, strict=False):
        if len(set(column)) > 1:
            break
        common.append(column[0])
    return f"{'.'.join([*common, '*'])} ({len(names)})"
