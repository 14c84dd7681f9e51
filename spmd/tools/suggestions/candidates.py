"""Candidate layouts of a model on a number of devices: meshes, and rules that follow from the uses of parameters."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from torch import nn

from ...mesh.partition_spec import PartitionSpec
from ...rules.patterns import matches
from ...rules.rules import ShardingRules
from .uses import Cost, Flow, Use

P = PartitionSpec
DATA, SHARD, TENSOR = "data", "fsdp", "tensor"
Shapes = tuple[tuple[str, tuple[int, ...]], ...]  # of a module's parameters, with their names


class Unfit(Exception):
    """Raised where a model does not go with a layout, with the reason."""


# What backward may find saved of a block's forward, the most first: words of `spmd.remat`, and in a layout's name.
SAVED = {
    "everything": "",
    "dots": "dots saved",
    "offload_dot_with_no_batch_dims": "dots offloaded",
    "nothing": "checkpointed",
}


class Saved(NamedTuple):
    """The saved values of the blocks of one kind. pattern: of the blocks; counts: for each word of `SAVED`."""

    pattern: str
    counts: tuple[int, ...]

    def __str__(self) -> str:
        total = sum(self.counts)
        said = [
            what if count == total else f"{count} of {total} {what}"
            for count, what in zip(self.counts, SAVED.values(), strict=True)
            if count and what
        ]
        return ", ".join(said)

    def saves_no_less_than(self, other: "Saved") -> bool:
        pairs = zip(accumulate(self.counts), accumulate(other.counts), strict=True)
        return all(one >= two for one, two in pairs)


@dataclass(frozen=True)
class Layout:
    """One way to shard a model. saved: of each kind of blocks; empty: everything of all."""

    data: int
    fsdp: int
    tensor: int
    sequence: bool = False
    reshard: bool = True
    saved: tuple[Saved, ...] = ()

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
        texts = {str(one): None for one in self.saved}
        if len(texts) == 1:
            said += filter(None, texts)
        else:
            said += [f"{one.pattern} {one}" for one in self.saved if str(one)]
        return "; ".join(said)

    @property
    def placement(self) -> "Layout":
        """The layout without what is saved."""
        return replace(self, saved=())

    def needs_no_less_than(self, other: "Layout") -> bool:
        """True if it needs at least the memory of the other layout: it shards and frees no more."""
        is_split_the_same = self.data * self.fsdp == other.data * other.fsdp and self.tensor == other.tensor
        shards_no_more = all(getattr(self, name) <= getattr(other, name) for name in ("fsdp", "sequence", "reshard"))
        if not is_split_the_same or not shards_no_more:
            return False
        return not self.saved or all(map(Saved.saves_no_less_than, self.saved, other.saved))


@dataclass(frozen=True)
class Kind:
    """Blocks of one class in one module. pattern: of their paths; cost: of the forward of one, on average; largest: the
    elements of their largest parameter; inputs: the bytes that one reads."""

    pattern: str
    paths: tuple[str, ...]
    cost: Cost
    largest: int
    inputs: int

    def uniform(self, word: str) -> Saved:
        """The same saved of all."""
        return Saved(self.pattern, tuple(len(self.paths) * (word == one) for one in SAVED))


@dataclass(frozen=True)
class Model:
    """The properties of a model. kinds: of its blocks (repeated modules). rows, length: of its input. state: the total
    bytes of its parameters and the optimizer."""

    flow: Flow
    kinds: tuple[Kind, ...]
    rows: int
    length: int | None
    numel: int
    state: int

    @property
    def blocks(self) -> tuple[str, ...]:
        """The patterns of the blocks."""
        return tuple(kind.pattern for kind in self.kinds)

    @property
    def recomputes(self) -> bool:
        """True if the model itself recomputes blocks."""
        return any(_general(path, self.blocks) in self.blocks for path in self.flow.again)


def model_of(model: nn.Module, flow: Flow, state: int) -> Model:
    """The properties of a model after its observed forward pass."""
    shape = flow.shapes.get(("", "input"), (1,))
    numel = sum(parameter.numel() for parameter in model.parameters())
    kinds = tuple(_kind_of(pattern, model, flow) for pattern in blocks_of(model))
    return Model(flow, kinds, shape[0], shape[1] if len(shape) > 1 else None, numel, state)


def _kind_of(pattern: str, model: nn.Module, flow: Flow) -> Kind:
    paths = tuple(path for path, _ in model.named_modules() if matches(pattern, path))
    costs = [flow.cost(path) for path in paths]
    mean = Cost(*(sum(values) // len(paths) for values in zip(*map(astuple, costs), strict=True)))
    width = next(model.parameters()).dtype.itemsize
    inputs = sum(width * math.prod(flow.shapes.get((path, "input"), ())) for path in paths)
    sizes = (parameter.numel() for path in paths for parameter in model.get_submodule(path).parameters())
    return Kind(pattern, paths, mean, max(sizes, default=0), inputs // len(paths))


def blocks_of(model: nn.Module) -> tuple[str, ...]:
    """Patterns of the blocks, one for each module that has some: the outermost modules with siblings of their class and
    shapes that are a large part of the model, and all others of these classes (the first of a stage, say, that has
    other shapes). Of a class of torch.nn only those with the shapes."""
    least = sum(parameter.numel() for parameter in model.parameters()) / 50
    # Twice: a module that has a block's class and no sibling is entered the first time, and its parts are no blocks.
    kinds = _repeated(model, least, _repeated(model, least, set()))
    found: list[str] = []

    def visit(path: str, module: nn.Module) -> None:
        children = dict(module.named_children())
        groups: dict[object, list[str]] = {}
        for name, child in children.items():
            if (kind := _kind(child)) in kinds:
                groups.setdefault(kind, []).append(name)
            else:
                visit(f"{path}{name}.", child)
        for names in groups.values():
            found.append(f"{path}{'*' if len(names) == len(children) else '{' + ','.join(names) + '}'}")

    visit("", model)
    return tuple(found)


def _repeated(module: nn.Module, least: float, blocks: set[object]) -> set[object]:
    """The kinds of the outermost modules that are repeated, with this number of elements together; those inside of
    `blocks` do not count."""
    groups: dict[tuple[type, Shapes], list[nn.Module]] = {}
    for child in module.children():
        groups.setdefault((type(child), _shapes(child)), []).append(child)
    found: set[object] = set()
    for (_, shapes), group in groups.items():
        numel = sum(parameter.numel() for child in group for parameter in child.parameters())
        if len(group) > 1 and shapes and numel >= least:
            found.add(_kind(group[0]))
        elif _kind(group[0]) not in blocks:
            found = found.union(*(_repeated(child, least, blocks) for child in group))
    return found


def _kind(module: nn.Module) -> object:
    """A key, equal for modules that are blocks together."""
    is_of_torch = type(module).__module__.startswith("torch.nn")
    return (type(module), _shapes(module)) if is_of_torch else type(module)


def _shapes(module: nn.Module) -> Shapes:
    """Name and shape of each parameter."""
    return tuple((name, tuple(parameter.shape)) for name, parameter in module.named_parameters())


def _general(path: str, blocks: Sequence[str]) -> str:
    """The path with its block replaced by the block's pattern."""
    parts = path.split(".")
    for pattern in blocks:
        depth = pattern.count(".") + 1
        if matches(pattern, ".".join(parts[:depth])):
            return ".".join([pattern, *parts[depth:]])
    return path


def layouts(model: Model, num_devices: int) -> Iterator[Layout]:
    """Yields all placements, including those that the model does not go with; see `rules_of`."""
    can_split = any(use.kind == "second" for use in model.flow.uses.values())
    for tensor in _divisors(num_devices) if can_split else (1,):
        for data in _divisors(num_devices // tensor):
            fsdp = num_devices // tensor // data
            for sequence in (False, True) if tensor > 1 and model.length is not None else (False,):
                for reshard in (True, False) if fsdp > 1 and model.blocks else (True,):
                    yield Layout(data, fsdp, tensor, sequence, reshard)


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
    return ShardingRules(
        table,
        units=model.blocks,
        shard_axis=SHARD,
        extra_data_axis=DATA if layout.data > 1 else None,
        reshard_after_forward=layout.reshard,
        checkpoint=_checkpoint(layout.saved, model),
    )


def _checkpoint(saved: Sequence[Saved], model: Model) -> dict[str, str]:
    """Pattern of blocks -> what is saved of them; the last blocks save most, and equal ones follow each other."""
    found = {}
    for one, kind in zip(saved, model.kinds, strict=False):
        left = list(kind.paths)
        for word, count in [*zip(SAVED, one.counts, strict=True)][::-1]:
            paths, left = left[:count], left[count:]
            if paths and word != "everything":
                found[one.pattern if count == len(kind.paths) else _pattern_of(paths)] = word
    return found


def _pattern_of(paths: Sequence[str]) -> str:
    """A pattern of some modules of one parent."""
    parent, dot, _ = paths[0].rpartition(".")
    names = [path.rpartition(".")[2] for path in paths]
    first = int(names[0]) if names[0].isdecimal() else 0
    is_range = len(names) > 1 and names == [str(first + place) for place in range(len(names))]
    return f"{parent}{dot}{{{f'{names[0]}..{names[-1]}' if is_range else ','.join(names)}}}"


def _tensor_rules(layout: Layout, model: Model) -> dict[str, PartitionSpec]:
    """The rules of the parameters that the tensor axis shards, and of the activations between them."""
    uses = model.flow.uses
    seconds = [use for use in uses.values() if use.kind == "second"]
    result = {path for use in seconds for path in _splittable(use, uses, layout.tensor)}
    table = _Table(layout, model)
    for use in uses.values():
        ends = _is_end(use, model) and use.size % layout.tensor == 0
        if use.kind == "second" and use.partners & result:
            table.second(use)
        elif use.kind == "lookup" and ends:
            table.lookup(use)
        elif use.kind == "first" and (use.path in result or ends):
            table.first(use, ends=use.path not in result)
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
