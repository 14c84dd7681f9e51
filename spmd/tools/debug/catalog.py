"""The catalog of ops and their lowering, for people: a rule, torch's decomposition, special code,
the host, or none."""

import functools
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._ops import OpOverload, OpOverloadPacket

from ...core import resolve
from ...core.extend import calls, copies, rules

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """The lowering of one overload.

    Attributes:
        overload: its name. how: "rule", "special" (code that is more than a rule), "decomposition",
            "derived" (an
        in-place, out= or list form of an op that has one of these), "host" or "none". path: the
        file, relative to the repository where it is ours; "" where there is none. line: in that
        file.
    """

    overload: str
    how: str
    path: str = ""
    line: int = 0

    def __str__(self) -> str:
        where = f"  {self.path}:{self.line}" if self.path else ""
        return f"{self.overload}: {self.how}{where}"


def find(name: str) -> list[CatalogEntry]:
    """Returns the places of an op's overloads: of one (`aten.add.Tensor`) or of all (`aten.add`, or
    `add`).

    Raises LookupError where torch has no such op.
    """
    parts = name.removeprefix("torch.ops.").split(".")
    if parts[0] == "aten" or len(parts) == 1:
        parts = ["aten", *parts[parts[0] == "aten" :]]
    packet = getattr(getattr(torch.ops, parts[0]), parts[1], None) if len(parts) > 1 else None
    if not isinstance(packet, OpOverloadPacket) or (
        len(parts) > 2 and parts[2] not in packet.overloads()
    ):
        raise LookupError(f"torch knows no op {name!r}; write it as aten.gelu or aten.add.Tensor")
    return [
        _place(overload)
        for overload in _overloads(packet)
        if len(parts) < 3 or overload._overloadname == parts[2]
    ]


@functools.cache
def _dispatched() -> frozenset[str]:
    return frozenset(torch._C._dispatch_get_all_op_names())


def _overloads(packet: OpOverloadPacket) -> list[OpOverload]:
    """A packet's overloads without those that only TorchScript calls (`aten.add.str`)."""
    overloads = [getattr(packet, name) for name in packet.overloads()]
    return [overload for overload in overloads if overload.name() in _dispatched()]


def _place(overload: OpOverload) -> CatalogEntry:
    name = str(overload)
    if overload in resolve.SPECIALS:
        how = "host" if resolve.SPECIALS[overload] in copies.HOST_HANDLERS else "special"
        return CatalogEntry(name, how, *_where(resolve.SPECIALS[overload]))
    plan = resolve.new_plan(overload)
    if plan.rule is not None and overload in rules.RULES:
        return CatalogEntry(name, "rule", *_where(plan.rule.function))
    if plan.rule is not None:
        return CatalogEntry(name, "derived", *_where(plan.rule.function))
    if calls.is_foreach(overload) or any(
        argument.is_out for argument in overload._schema.arguments
    ):
        return CatalogEntry(
            name, "none" if plan.handler is None and not calls.is_foreach(overload) else "derived"
        )
    if plan.handler is resolve.no_rule and overload._schema.name in rules.ON_CPU:
        return CatalogEntry(name, "host")
    if overload in decomposition_table:
        return CatalogEntry(name, "decomposition", *_where(decomposition_table[overload]))
    if overload.has_kernel_for_dispatch_key(torch._C.DispatchKey.PrivateUse1):
        return CatalogEntry(name, "special")
    if plan.handler is resolve.no_rule:
        is_composite = overload.has_kernel_for_dispatch_key(
            torch._C.DispatchKey.CompositeExplicitAutograd
        )
        is_factory = not any(
            "Tensor" in str(argument.type) for argument in overload._schema.arguments
        )
        return CatalogEntry(name, "decomposition" if is_composite and is_factory else "none")
    return CatalogEntry(name, "derived" if plan.overload._schema.is_mutable else "decomposition")


def _where(function: Any) -> tuple[str, int]:
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return "", 0
    path = Path(code.co_filename)
    base = ROOT if path.is_relative_to(ROOT / "spmd") else Path(torch.__file__).parents[1]
    shown = path.relative_to(base) if path.is_relative_to(base) else path
    return shown.as_posix(), code.co_firstlineno
