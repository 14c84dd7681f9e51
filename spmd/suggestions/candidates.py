"""Candidate layouts of a model on a number of devices: meshes, and rules that follow from the uses of parameters."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from ..mesh.partition_spec import PartitionSpec
from ..rules.patterns import matches
from ..rules.rules import ShardingRules
from .uses import Flow, Use

P = PartitionSpec
DATA, SHARD, TENSOR = "data", "fsdp", "tensor"


class Unfit(Exception):
    """Raised where a model does not go with a layout, with the reason."""


@dataclass(frozen=True)
class Layout:
    """One way to shard a model. checkpointed: the number of blocks, of each two, that are recomputed in backward."""

    data: int
    fsdp: int
    tensor: int
    sequence: bool = False
    reshard: bool = True
    checkpointed: int = 0

    @property
    def axes(self) -> dict[str, int]:
        """Axis -> size, without axes of a single device, except the one that units need."""
        sizes = {DATA: self.data, SHARD: self.fsdp, TENSOR: self.tensor}
        return {name: size for name, size in sizes.items() if size > 1 or name == SHARD}

    @property
    def batch_axes(self) -> tuple[str, ...]:
        return tuple(name for name in self.axes if name != TENSOR)

    @property
    def family(self) -> str:
        """The name of this kind of layout."""
        split = "data" if self.fsdp == 1 else "hybrid" if self.data > 1 else "fsdp"
        if self.tensor == 1:
            return split
        tensor = f"tensor{' + sequence' if self.sequence else ''}"
        return tensor if self.data * self.fsdp == 1 else f"{split} x {tensor}"

    def __str__(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self.axes.items())
        said = [sizes, *(["sequence"] if self.sequence else []), *([] if self.reshard else ["kept unsharded"])]
        return "; ".join([*said, ("", "half checkpointed", "checkpointed")[self.checkpointed]]).removesuffix("; ")

    def needs_no_less_than(self, other: "Layout") -> bool:
        """True if it needs at least the memory of the other layout: it shards and frees no more."""
        is_split_the_same = self.data * self.fsdp == other.data * other.fsdp and self.tensor == other.tensor
        return is_split_the_same and all(
            getattr(self, name) <= getattr(other, name) for name in ("fsdp", "sequence", "reshard", "checkpointed")
        )


@dataclass(frozen=True)
class Model:
    """The properties of a model. blocks: patterns of its repeated modules. rows, length: of its input. state: the total
    bytes of its parameters and the optimizer."""

    flow: Flow
    blocks: tuple[str, ...]
    rows: int
    length: int | None
    numel: int
    state: int

    @property
    def recomputes(self) -> bool:
        """True if the model itself recomputes blocks."""
        return any(_general(path, self.blocks) in self.blocks for path in self.flow.again)


def model_of(model: nn.Module, flow: Flow, state: int) -> Model:
    """The properties of a model after its observed forward pass."""
    shape = flow.shapes.get(("", "input"), (1,))
    numel = sum(parameter.numel() for parameter in model.parameters())
    return Model(flow, blocks_of(model), shape[0], shape[1] if len(shape) > 1 else None, numel, state)


def blocks_of(model: nn.Module) -> tuple[str, ...]:
    """Patterns of the outermost modules with siblings of their class and shapes that are a large part of the model."""
    found: list[str] = []
    least = sum(parameter.numel() for parameter in model.parameters()) / 10

    def visit(path: str, module: nn.Module) -> None:
        groups: dict[object, list[str]] = {}
        for name, child in module.named_children():
            groups.setdefault(_kind(child), []).append(name)
        for kind, names in groups.items():
            numel = sum(one.numel() for name in names for one in module.get_submodule(name).parameters())
            if len(names) > 1 and kind is not None and numel >= least:
                is_all = len(names) == len(list(module.named_children()))
                found.append(f"{path}{'*' if is_all else '{' + ','.join(names) + '}'}")
            else:
                for name in names:
                    visit(f"{path}{name}.", module.get_submodule(name))

    visit("", model)
    return tuple(found)


def _kind(module: nn.Module) -> object:
    """A key, equal for modules of one class with parameters of equal shapes; None for a module without parameters."""
    shapes = tuple((name, tuple(parameter.shape)) for name, parameter in module.named_parameters())
    return (type(module), shapes) if shapes else None


def _general(path: str, blocks: Sequence[str]) -> str:
    """The path with its block replaced by the block's pattern."""
    parts = path.split(".")
    for pattern in blocks:
        depth = pattern.count(".") + 1
        if matches(pattern, ".".join(parts[:depth])):
            return ".".join([pattern, *parts[depth:]])
    return path


def layouts(model: Model, num_devices: int) -> Iterator[Layout]:
    """Yields all candidates, including those that the model does not go with; see `rules_of`."""
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
        raise Unfit(f"a batch of {model.rows} is not divisible by {ways} devices")
    if layout.sequence and model.length is not None and model.length % layout.tensor:
        raise Unfit(f"a sequence of {model.length} is not divisible by {layout.tensor}")
    table = _tensor_rules(layout, model) if layout.tensor > 1 else {}
    if len(model.flow.shapes.get(("", "input"), ())) == 1:
        table[":input"] = P(layout.batch_axes)  # FSDP does not shard vectors
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
    """A pattern of every second module that a pattern matches."""
    parent, dot, last = pattern.rpartition(".")
    if last != "*":
        return f"{parent}{dot}{{{','.join(last.strip('{}').split(',')[::2])}}}"
    return f"{parent}{dot}*[02468]" if parent or not last else "{*[02468],[02468]}"


def _tensor_rules(layout: Layout, model: Model) -> dict[str, PartitionSpec]:
    """The rules of the parameters that the tensor axis shards, and of the activations between them."""
    uses = model.flow.uses
    seconds = [use for use in uses.values() if use.kind == "second"]
    made = {path for use in seconds for path in _splittable(use, uses, layout.tensor)}
    table = _Table(layout, model)
    for use in uses.values():
        ends = _is_end(use, model) and use.size % layout.tensor == 0
        if use.kind == "second" and use.partners & made:
            table.second(use)
        elif use.kind == "lookup" and ends:
            table.lookup(use)
        elif use.kind == "first" and (use.path in made or ends):
            table.first(use, ends=use.path not in made)
    for pattern in model.blocks:
        example = next(path for path, _ in model.flow.shapes if _general(path, model.blocks) == pattern)
        table.stream(pattern, example)
    return table.rules()


class _Table:
    """A builder of rules: of parameters, of activations between blocks, of those that first products read unsharded."""

    def __init__(self, layout: Layout, model: Model):
        self.layout, self.model = layout, model
        self.parameters: dict[str, PartitionSpec] = {}
        self.streams: dict[str, PartitionSpec | None] = {}
        self.unsharded: dict[str, PartitionSpec | None] = {}

    def name(self, path: str) -> str:
        return _general(path, self.model.blocks)

    def second(self, use: Use) -> None:
        self.split(use, use.summed)
        self.stream(self.name(use.module), use.module)

    def lookup(self, use: Use) -> None:
        self.split(use, use.free)
        self.stream(self.name(use.module), use.module)
        self.end(use)

    def first(self, use: Use, *, ends: bool) -> None:
        self.split(use, use.free)
        self.parameters |= {self.name(bias): P(TENSOR) for bias in use.biases}
        key = (use.reads, "output") if use.reads else (use.module, "input")
        shape = self.model.flow.shapes.get(key, ())
        self.unsharded[f"{self.name(key[0])}:{key[1]}"] = _spec(self.layout, shape, None)
        if ends:
            self.end(use)
            shape = self.model.flow.shapes.get((use.module, "output"), ())
            self.streams[f"{self.name(use.module)}:output"] = self.last(shape) if len(shape) > 1 else None

    def split(self, use: Use, dim: int) -> None:
        rank = len(self.model.flow.parameters[use.path])
        self.parameters[self.name(use.path)] = P(*(TENSOR if place == dim else None for place in range(rank)))

    def stream(self, name: str, module: str) -> None:
        """Adds a rule of the activation between blocks: sharded along the sequence if the layout is."""
        along = TENSOR if self.layout.sequence else None
        self.streams[f"{name}:output"] = _spec(self.layout, self.model.flow.shapes.get((module, "output"), ()), along)

    def end(self, use: Use) -> None:
        """Adds a rule of the model's result of a head, or of an embedding table that is the head, too."""
        for shape in self.model.flow.returned:
            if len(shape) > 1 and shape[-1] == use.size:
                self.streams[":output"] = self.last(shape)

    def last(self, shape: tuple[int, ...]) -> PartitionSpec:
        return P(self.layout.batch_axes, *[None] * (len(shape) - 2), TENSOR)

    def rules(self) -> dict[str, PartitionSpec]:
        # Without a split along the sequence these activations are unsharded anyway.
        inputs = {
            name: spec for name, spec in self.unsharded.items() if self.layout.sequence and name not in self.streams
        }
        sites = inputs | self.streams
        return self.parameters | {name: spec for name, spec in sites.items() if spec is not None}


def _splittable(use: Use, uses: dict[str, Use], tensor: int) -> set[str]:
    """The parameters to shard together with a second product. Raises Unfit where the sizes do not divide."""
    partners = [uses[path] for path in use.partners]
    most = max((partner.heads or 0 for partner in partners), default=0)
    if use.length % tensor:
        raise Unfit(f"{use.path}: {use.length} is not divisible by {tensor}")
    if most % tensor:
        raise Unfit(f"{use.path}: {most} heads are not divisible by {tensor}")
    siblings = [
        other for other in uses.values() if other.is_read and other.path not in use.partners and _pairs(other, use)
    ]
    # Fewer heads of keys and values than devices: they stay unsharded, and each device computes the heads it reads.
    return {
        one.path for one in (*partners, *siblings)
        if not one.is_whole and one.size % tensor == 0 and (one.heads is None or one.heads % tensor == 0)
    }  # fmt: skip


def _pairs(other: Use, use: Use) -> bool:
    """True if a product that a second one reads in part (keys, values) belongs to it, as a sibling of its partners."""
    return any(other.module.rpartition(".")[0] == path.rpartition(".")[0].rpartition(".")[0] for path in use.partners)


def _is_end(use: Use, model: Model) -> bool:
    """True for a head or an embedding table worth sharding: a hundredth of the model or more, longer than wide."""
    is_large = 100 * use.size * use.length >= model.numel and use.size > use.length
    return is_large and not use.is_read and not use.is_whole


def _spec(layout: Layout, shape: tuple[int, ...], along: str | None) -> PartitionSpec | None:
    """The spec of an activation [batch, length, width]; one of another rank is sharded along the batch only."""
    if len(shape) < 2 or shape[0] % math.prod(layout.axes[name] for name in layout.batch_axes):
        return None
    return P(layout.batch_axes, along if len(shape) == 3 else None, *[None] * (len(shape) - 2))


# --- estimates before compilation -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expected:
    """Estimated seconds and bytes of one device, to choose the layouts to compile first; state is a lower bound."""

    seconds: float
    state: float
    activations: float


def expected(
    layout: Layout, model: Model, *, peak_flops: float, link_bytes: float, width: int, has_memory: bool = True
) -> Expected:
    """A simple estimate. width: bytes of a number in compute. has_memory: True if the measure of the search includes
    reads and writes of memory, as a TPU's cycles do; operations do not.

    It orders the search and nothing else: its factors are those of Llama-8B on v5p:2x2x2 and 70B on v5p:4x8x8.
    """
    devices = layout.data * layout.fsdp * layout.tensor
    again = layout.checkpointed / 2
    held = model.numel / layout.tensor * width
    # Costs of narrow products, of norms that each device computes, and of weights kept unsharded, which are written
    # into the stack of a scanned loop and read again.
    share = 1 + (0.02 if layout.sequence else 0.05) * math.log2(layout.tensor) + (0 if layout.reshard else 0.12)
    compute = model.flow.flops * (3 + again) / devices / peak_flops * share
    # Every chip writes and reads all weights that it gathers, whatever its part of the batch: twice six passes, as 70B
    # over 256 and over 32 x 8 chips differ. The update reads and writes state. A chip's memory is some 4.5 times as
    # fast as its links.
    passes = 2 * (6 + 2 * again) * held + 28 * model.numel / layout.tensor / layout.fsdp
    # Over all of a torus a TPU's compiler has no reduce-scatter, and from 64 chips on no gather (benchmarks.md).
    is_torus = layout.fsdp == devices
    gathers = (2 if layout.reshard else 1) * (2 if is_torus and devices >= 64 else 1)
    split = held * (gathers + (2 if is_torus else 1)) * (1 - 1 / layout.fsdp)
    copies = 2 * held / layout.fsdp * (1 - 1 / layout.data)
    stream = model.flow.stream * width / (layout.data * layout.fsdp) * (1 - 1 / layout.tensor)
    num_second = sum(use.kind == "second" for use in model.flow.uses.values())
    moved = (split + copies + num_second * (4 + 2 * again) * stream) / link_bytes
    ways = layout.data * layout.fsdp * (layout.tensor if layout.sequence else math.sqrt(layout.tensor))
    # About nine tenths of the results of forward: 31 GiB of Llama-8B's 43, 118 of 70B's 106 with half of the blocks.
    activations = model.flow.bytes * width / 4 * 0.9 * (1 - 0.95 * again) / ways
    return Expected(
        max(compute, moved) + 0.05 * moved + (passes / (4.5 * link_bytes) if has_memory else 0.0),
        model.state / layout.tensor / layout.fsdp,
        activations,
    )
