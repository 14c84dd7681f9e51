"""The sensible layouts of a model on so many devices: meshes, and rules that follow from what its parameters are for."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from ..partition_spec import PartitionSpec
from .rules import ShardingRules
from .uses import Flow, Use

P = PartitionSpec
DATA, SHARD, TENSOR = "data", "fsdp", "tensor"


class Unfit(Exception):
    """A model cannot be laid out so; the text says why."""


@dataclass(frozen=True)
class Layout:
    """One way to lay a model out. checkpointed: how many of two neighbouring blocks are computed again in backward."""

    data: int
    fsdp: int
    tensor: int
    sequence: bool = False
    reshard: bool = True
    checkpointed: int = 0

    @property
    def axes(self) -> dict[str, int]:
        """Axis -> size; one of a single device is left out, but for the one that units need."""
        sizes = {DATA: self.data, SHARD: self.fsdp, TENSOR: self.tensor}
        return {name: size for name, size in sizes.items() if size > 1 or name == SHARD}

    @property
    def batch_axes(self) -> tuple[str, ...]:
        return tuple(name for name in self.axes if name != TENSOR)

    @property
    def family(self) -> str:
        """What such a layout is called."""
        split = "data" if self.fsdp == 1 else "hybrid" if self.data > 1 else "fsdp"
        if self.tensor == 1:
            return split
        tensor = f"tensor{' + sequence' if self.sequence else ''}"
        return tensor if self.data * self.fsdp == 1 else f"{split} x {tensor}"

    def __str__(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self.axes.items())
        said = [sizes, *(["sequence"] if self.sequence else []), *([] if self.reshard else ["kept whole"])]
        return "; ".join([*said, ("", "half checkpointed", "checkpointed")[self.checkpointed]]).removesuffix("; ")

    def needs_no_less_than(self, other: "Layout") -> bool:
        """Whether it needs the memory that another one does, and what that frees beside it."""
        frees = dataclasses.replace(self, reshard=other.reshard, checkpointed=other.checkpointed)
        return frees == other and self.reshard <= other.reshard and self.checkpointed <= other.checkpointed


@dataclass(frozen=True)
class Model:
    """What is known of a model. blocks: patterns of its repeated modules. rows, length: of its input. state: the bytes
    that its parameters and the optimizer take in all."""

    flow: Flow
    blocks: tuple[str, ...]
    rows: int
    length: int | None
    numel: int
    state: int

    @property
    def recomputes(self) -> bool:
        """Whether it has checkpoints of its own."""
        return any(_general(path, self.blocks) in self.blocks for path in self.flow.again)


def model_of(model: nn.Module, flow: Flow, state: int) -> Model:
    """What a model is, once it has been watched."""
    shape = flow.shapes.get(("", "input"), (1,))
    numel = sum(parameter.numel() for parameter in model.parameters())
    return Model(flow, blocks_of(model), shape[0], shape[1] if len(shape) > 1 else None, numel, state)


def blocks_of(model: nn.Module) -> tuple[str, ...]:
    """Patterns of the outermost modules that stand beside others of their class and shapes."""
    found: list[str] = []

    def visit(path: str, module: nn.Module) -> None:
        groups: dict[object, list[str]] = {}
        for name, child in module.named_children():
            groups.setdefault(_kind(child), []).append(name)
        for kind, names in groups.items():
            if len(names) > 1 and kind is not None:
                everyone = len(names) == len(list(module.named_children()))
                found.append(f"{path}{'*' if everyone else '{' + ','.join(names) + '}'}")
            else:
                for name in names:
                    visit(f"{path}{name}.", module.get_submodule(name))

    visit("", model)
    return tuple(found)


def _kind(module: nn.Module) -> object:
    """Equal for modules of one class whose parameters are alike; None for one without."""
    shapes = tuple((name, tuple(parameter.shape)) for name, parameter in module.named_parameters())
    return (type(module), shapes) if shapes else None


def _general(path: str, blocks: Sequence[str]) -> str:
    """A path with the pattern of the block that it is in."""
    for pattern in blocks:
        parent, _, last = pattern.rpartition(".")
        depth = len(pattern.split(".")) if parent or "." in pattern else 1
        parts = path.split(".")
        if len(parts) >= depth and ".".join(parts[: depth - 1]) == parent:
            if last == "*" or parts[depth - 1] in last.strip("{}").split(","):
                return ".".join([pattern, *parts[depth:]])
    return path


def layouts(model: Model, num_devices: int) -> Iterator[Layout]:
    """All that could be sensible, whether or not it goes; see `rules_of`."""
    can_split = any(use.kind == "second" for use in model.flow.uses.values())
    checkpoints = (0,) if model.recomputes or not model.blocks else (0, 1, 2)
    for tensor in _divisors(num_devices) if can_split else (1,):
        for data in _divisors(num_devices // tensor):
            fsdp = num_devices // tensor // data
            for sequence in (False, True) if tensor > 1 and model.length is not None else (False,):
                for reshard in (True, False) if fsdp > 1 and model.blocks else (True,):
                    for checkpointed in checkpoints:
                        yield Layout(data, fsdp, tensor, sequence, reshard, checkpointed)


def _divisors(count: int) -> list[int]:
    return [size for size in range(1, count + 1) if count % size == 0]


def rules_of(layout: Layout, model: Model) -> ShardingRules:
    """The rules of a layout. Raises Unfit where the model does not go with it."""
    ways = layout.data * layout.fsdp
    if model.rows % ways:
        raise Unfit(f"a batch of {model.rows} is not divided by {ways} devices")
    if layout.sequence and model.length is not None and model.length % layout.tensor:
        raise Unfit(f"a sequence of {model.length} is not divided by {layout.tensor}")
    table: dict[str, PartitionSpec] = {}
    if layout.tensor > 1:
        table = _tensor_rules(layout, model)
    halves = {0: (), 1: tuple(_half(pattern) for pattern in model.blocks), 2: model.blocks}
    return ShardingRules(
        table,
        units=model.blocks,
        shard_axis=SHARD,
        extra_data_axis=DATA if layout.data > 1 else None,
        reshard_after_forward=layout.reshard,
        checkpoint=halves[layout.checkpointed],
    )


def _half(pattern: str) -> str:
    """Every second of the modules that a pattern is of."""
    parent, dot, last = pattern.rpartition(".")
    if last != "*":
        return f"{parent}{dot}{{{','.join(last.strip('{}').split(',')[::2])}}}"
    return f"{parent}{dot}*[02468]" if parent or not last else "{*[02468],[02468]}"


def _tensor_rules(layout: Layout, model: Model) -> dict[str, PartitionSpec]:
    parameters: dict[str, PartitionSpec] = {}
    streams: dict[str, PartitionSpec] = {}
    wholes: dict[str, PartitionSpec] = {}
    uses = model.flow.uses
    made = set()
    for use in uses.values():
        if use.kind == "second":
            made |= _splittable(use, uses, layout.tensor)
    for use in uses.values():
        is_head = use.kind == "first" and not use.is_read and not use.is_whole and _is_large(use, model)
        is_table = use.kind == "lookup" and _is_large(use, model)
        goes = use.size % layout.tensor == 0
        name = _general(use.path, model.blocks)
        module = _general(use.module, model.blocks)
        rank = len(_shape(model, use.path))
        if use.kind == "second":
            if use.partners & made:
                parameters[name] = _at(use.summed, rank)
                streams[f"{module}:output"] = _stream(layout, model, use.module)
        elif use.path in made or ((is_head or is_table) and goes):
            parameters[name] = _at(use.free, rank)
            parameters |= {_general(bias, model.blocks): P(TENSOR) for bias in use.biases}
            if is_table:
                streams[f"{module}:output"] = _stream(layout, model, use.module)
            else:
                site = f"{_general(use.reads, model.blocks)}:output" if use.reads else f"{module}:input"
                wholes[site] = _spec(layout, model.flow.shapes.get(_key(use), ()), None)
            shown = [shape for shape in model.flow.returned if len(shape) > 1 and shape[-1] == use.size]
            if (is_head or is_table) and shown:
                streams[":output"] = P(layout.batch_axes, *[None] * (len(shown[0]) - 2), TENSOR)
            if is_head:
                streams[f"{module}:output"] = _made(layout, model, use.module)
    for pattern in model.blocks:
        example = next(path for path, side in model.flow.shapes if _general(path, model.blocks) == pattern)
        streams[f"{pattern}:output"] = _stream(layout, model, example)
    kept = {name: spec for name, spec in (wholes if layout.sequence else {}).items() if name not in streams and spec}
    return parameters | kept | {name: spec for name, spec in streams.items() if spec}


def _splittable(use: Use, uses: dict[str, Use], tensor: int) -> set[str]:
    """Those that a second product reads, which are to be split with it. Raises Unfit where that cannot be."""
    partners = [uses[path] for path in use.partners]
    most = max((partner.heads or 0 for partner in partners), default=0)
    if use.length % tensor:
        raise Unfit(f"{use.path}: {use.length} are not divided by {tensor}")
    if most % tensor:
        raise Unfit(f"{use.path}: {most} heads are not divided by {tensor}")
    beside = [other for other in uses.values() if other.is_read and other.path not in use.partners and _pairs(other, use)]
    # Fewer heads of keys and values than devices: they stay whole, and each device computes what it reads.
    return {
        one.path for one in (*partners, *beside)
        if not one.is_whole and one.size % tensor == 0 and (one.heads is None or one.heads % tensor == 0)
    }  # fmt: skip


def _pairs(other: Use, use: Use) -> bool:
    """Whether a product that a second one reads in part (keys, values) belongs to it: it stands beside its partners."""
    return any(other.module.rpartition(".")[0] == path.rpartition(".")[0].rpartition(".")[0] for path in use.partners)


def _is_large(use: Use, model: Model) -> bool:
    """Whether to split a table or a head pays: it is a hundredth of the model, and longer than it is wide."""
    return 100 * use.size * use.length >= model.numel and use.size >= use.length


def _shape(model: Model, path: str) -> tuple[int, ...]:
    return model.flow.parameters[path]


def _key(use: Use) -> tuple[str, str]:
    return (use.reads, "output") if use.reads else (use.module, "input")


def _at(dim: int, rank: int) -> PartitionSpec:
    return P(*(TENSOR if place == dim else None for place in range(rank)))


def _stream(layout: Layout, model: Model, module: str) -> PartitionSpec | None:
    return _spec(layout, model.flow.shapes.get((module, "output"), ()), TENSOR if layout.sequence else None)


def _made(layout: Layout, model: Model, module: str) -> PartitionSpec | None:
    shape = model.flow.shapes.get((module, "output"), ())
    return P(layout.batch_axes, *[None] * (len(shape) - 2), TENSOR) if len(shape) > 1 else None


def _spec(layout: Layout, shape: tuple[int, ...], along: str | None) -> PartitionSpec | None:
    """How an activation [batch, length, width] lies; one of another rank is split along the batch alone."""
    if len(shape) < 2 or shape[0] % math.prod(layout.axes[name] for name in layout.batch_axes):
        return None
    return P(layout.batch_axes, along if len(shape) == 3 else None, *[None] * (len(shape) - 2))


# --- what to expect of one, before a compiler is asked ----------------------------------------------------------------


@dataclass(frozen=True)
class Expected:
    """Seconds and bytes of one device, to choose what to compile first; and the least that its state can take."""

    seconds: float
    state: float
    activations: float


def expected(
    layout: Layout, model: Model, *, peak_flops: float, link_bytes: float, width: int, num_second: int
) -> Expected:
    """What simple sums say. width: bytes of a number in compute."""
    devices = layout.data * layout.fsdp * layout.tensor
    again = layout.checkpointed / 2
    # Narrower products, and what is between them done by each again: some 13 % for two devices (Llama-8B on v5p).
    share = 1 + (0.05 if layout.sequence else 0.13) * math.log2(layout.tensor)
    compute = model.flow.flops * (3 + again) / devices / peak_flops * share
    held = model.numel / layout.tensor
    gathers = (2 if layout.reshard else 1) * held * width * (1 - 1 / layout.fsdp)
    reduced = held * width * (1 - 1 / layout.fsdp) + 2 * held / layout.fsdp * width * (1 - 1 / layout.data)
    stream = model.flow.stream * width / (layout.data * layout.fsdp)
    tensor = num_second * (4 + 2 * again) * stream * (1 - 1 / layout.tensor)
    update = held / layout.fsdp * 28 / (4.5 * link_bytes)  # a chip's memory is some 4.5 times as fast as its links
    moved = (gathers + reduced + tensor) / link_bytes
    split = layout.data * layout.fsdp * (layout.tensor if layout.sequence else math.sqrt(layout.tensor))
    return Expected(
        max(compute, moved) + 0.05 * moved + update,
        model.state / layout.tensor / layout.fsdp,
        model.flow.bytes * width / 4 * 0.5 * (1 - 0.95 * again) / split,
    )
