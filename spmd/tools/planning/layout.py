"""The shardings of a model's tensors: a row for each, and findings."""

import math
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...core import DeviceData, Move, XlaTensor, hardware, storage_of
from ...core.extend import reached
from ...mesh.partition_spec import PartitionSpec
from ...rules.patterns import matches
from ...rules.rules import ShardingRules
from ...tensors.annotate import get_sharding
from .figures import shard_bytes


@dataclass(frozen=True, slots=True)
class Row:
    """One parameter or buffer: its path, dtype and shape, the spec that it is stored by, the bytes of one device's
    shard, and the pattern of the rule that matched ("" for none)."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    spec: str
    bytes: int
    rule: str = ""
    is_buffer: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """A note on a rule, a parameter or an activation.

    kind: "idle rule" (matches nothing in the model), "shadowed rule" (earlier rules match all of its paths), "whole" (a
    large parameter that is replicated), "uneven" (a dim that is padded), "unused axis" (a mark over an axis that an op
    cannot use), "exchange" (how keys reach queries over a sharded sequence), "reshard" (a value that the partitioner
    moved without an annotation), "given up" (the same, gathered and cut again). subject: the rule or the path.
    line: the user's line. move: of the last two, as data (`spmd.metrics.Move`).
    """

    kind: str
    subject: str
    text: str
    line: str = ""
    move: Move | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.subject}: {self.text}"


LARGE = 1 << 20  # bytes from which on a replicated parameter is a finding


def roots_of(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """The outermost of these modules that have tensors on xla."""
    return [root for root in reached.outermost(modules) if any(True for _ in tensors_of(root))]


def tensors_of(root: nn.Module) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Yields (path, tensor, is_buffer) of each parameter and buffer on xla; tied ones once."""
    for is_buffer, named in ((False, root.named_parameters()), (True, root.named_buffers())):
        for path, tensor in named:
            if isinstance(tensor, XlaTensor):
                yield path, tensor, is_buffer


def refuse_sharded(root: nn.Module, caller: str, instead: str) -> None:
    """Raises ValueError for a module that is sharded already. instead: the call's own way to give shardings."""
    for path, tensor, _ in tensors_of(root):
        sharding = get_sharding(tensor)
        if sharding is not None:
            raise ValueError(
                f"{caller}: expected a model without shardings, but {path} of the {type(root).__name__} has "
                f"{PartitionSpec(*sharding.partition_spec(tensor.dim()))!r}; call {caller} before FSDP, rules or "
                f"annotations, and {instead}"
            )


def rows_of(roots: Iterable[nn.Module], rules: dict[str, str]) -> tuple[list[Row], list[Finding]]:
    """A row for each tensor, and the findings on single tensors. rules: path -> pattern."""
    rows, findings = [], []
    for root in roots:
        for path, tensor, is_buffer in tensors_of(root):
            assert isinstance(tensor, XlaTensor)
            value: Any = storage_of(tensor).value
            own = value.sharding if type(value) is DeviceData else None
            sharding = own or storage_of(tensor).sharding or hardware.default_sharding()
            rank, shape = tensor.dim(), tuple(tensor.shape)
            spec = PartitionSpec(*sharding.partition_spec(rank))
            size = shard_bytes(value.meta, sharding)
            rows.append(
                Row(
                    path,
                    str(tensor.dtype).removeprefix("torch."),
                    shape,
                    repr(spec),
                    size,
                    rules.get(path, ""),
                    is_buffer,
                )
            )
            ways = math.prod(sharding.mesh_axes().values())
            if size >= LARGE and ways > 1 and not is_buffer and sharding.is_replicated():
                findings.append(Finding("whole", path, f"each of {ways} devices holds all of its {size:,} bytes"))
            for dim, (length, held) in enumerate(zip(shape, sharding.shard_shape(shape), strict=True)):
                parts = math.prod(sharding.mesh_axes()[axis] for axis in _axes(spec[dim]))
                if held * parts != length:
                    text = f"dim {dim} of {length} is padded to {held * parts} for {parts} shards ({spec!r})"
                    findings.append(Finding("uneven", path, text))
    return rows, findings


def _axes(entry: Any) -> tuple[str, ...]:
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


def rules_of_nothing(rules: ShardingRules, roots: Sequence[nn.Module], line: str) -> Iterator[Finding]:
    """Findings on the rules that match nothing, and those whose paths are all matched by earlier rules."""
    paths = [path for root in roots for path, *_ in tensors_of(root)]
    modules = [path for root in roots for path, _ in root.named_modules()]
    # (rule, pattern of paths, the tensors that the rule is for: of parameters, or a part of a module's activations)
    table: list[tuple[str, str, Any]] = [(pattern, pattern, None) for pattern, _ in rules.of_parameters()]
    table += [(rule, site.path, site.part(spec)) for rule, site, spec in rules.of_activations()]
    for rule, pattern, part in table:
        same = [(other, of) for other, of, its in table if its == part]
        mine = [path for path in (paths if part is None else modules) if matches(pattern, path)]
        takers = dict.fromkeys(next(other for other, of in same if matches(of, path)) for path in mine)
        if not mine:
            yield Finding("idle rule", rule, "it matches nothing in the model", line)
        elif rule not in takers:
            text = f"earlier rules match all of its paths: {', '.join(map(repr, takers))}"
            yield Finding("shadowed rule", rule, text, line)


def unused_axes(notes: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Findings on marks over an axis that an op cannot use, and on exchanges. notes: (kind, sentence)."""
    for kind, sentence in dict.fromkeys(notes):
        words, _, op = sentence.partition(" at ")
        yield Finding(kind, op.partition("(")[0], words, op.rpartition("), ")[2])


def reshards(moves: Iterable[Move], sites: Container[str]) -> Iterator[Finding]:
    """Findings on the values that the partitioner moved by itself, most bytes first. sites: modules that have a rule,
    whose gathers are requested."""
    for move in sorted(moves, key=lambda move: -move.bytes):
        if move.kind == "given up" or move.path not in sites or move.collectives != ("all-gather",):
            kind = "reshard" if move.kind == "move" else move.kind
            yield Finding(kind, f"{move.path} {move.op}".strip(), move.text, move.line, move)
