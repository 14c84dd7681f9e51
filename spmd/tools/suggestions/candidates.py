"""Candidate layouts of a model on a number of devices: meshes, and rules that follow from the uses
of parameters."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from ...mesh.partition_spec import PartitionSpec as P
from ...rules.patterns import matches
from ...rules.rules import ShardingRules
from .uses import Use, UseObserver

DATA, SHARD, TENSOR = "data", "fsdp", "tensor"


class Unfit(Exception):
    """Raised where a model does not go with a layout, with the reason."""


# Values of a block's forward that are saved for backward, the most first: by word of `spmd.remat`,
# the words in a layout's name.
OFFLOADED = "offload_dot_with_no_batch_dims"
SAVED = {
    "everything": "",
    "dots": "dots saved",
    OFFLOADED: "dots offloaded",
    "nothing": "checkpointed",
}


@dataclass(frozen=True)
class CandidateLayout:
    """One way to shard a model. saved: a word of `SAVED` for each block; empty: everything of
    all."""

    data: int
    fsdp: int
    tensor: int
    sequence: bool = False
    reshard: bool = True
    saved: tuple[str, ...] = ()

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
        total, counts = len(self.saved), {word: self.saved.count(word) for word in SAVED}
        saved = ", ".join(
            text if counts[word] == total else f"{counts[word]} of {total} {text}"
            for word, text in SAVED.items()
            if text and counts[word]
        )
        parts = (sizes, "sequence" * self.sequence, "kept unsharded" * (not self.reshard), saved)
        return "; ".join(filter(None, parts))

    def needs_no_less_than(self, other: "CandidateLayout") -> bool:
        """True if it needs at least the memory of the other layout: it shards and frees no more."""
        is_split_the_same = (
            self.data * self.fsdp == other.data * other.fsdp and self.tensor == other.tensor
        )
        shards_no_more = all(
            getattr(self, name) <= getattr(other, name) for name in ("fsdp", "sequence", "reshard")
        )
        order = [*SAVED].index
        frees_no_more = all(
            order(word) <= order(two) for word, two in zip(self.saved, other.saved, strict=True)
        )
        return is_split_the_same and shards_no_more and frees_no_more

    def distance(self, other: "CandidateLayout") -> float:
        """The number of steps to another mesh: an axis doubled at the cost of others, or an option
        that both have."""
        axes = max(
            abs(math.log2(getattr(self, name) / getattr(other, name)))
            for name in (DATA, SHARD, TENSOR)
        )
        options = (
            self.reshard != other.reshard,
            self.sequence != other.sequence and self.tensor > 1 < other.tensor,
        )
        return axes + sum(options)


class Model:
    """The properties of a model after its observed forward pass. state: the total bytes of its
    parameters and the optimizer. blocks: the paths of repeated modules, by pattern (see
    `blocks_of`). rows, length: of its input. num_saved: the blocks of which a layout chooses what
    is saved; none of a model that recomputes some by itself."""

    def __init__(self, flow: UseObserver, state: int):
        shape = flow.shapes.get(("", "input"), (1,))
        self.flow, self.state, self.blocks = flow, state, blocks_of(flow.model)
        self.rows, self.length = shape[0], shape[1] if len(shape) > 1 else None
        self.numel = sum(parameter.numel() for parameter in flow.model.parameters())
        paths = [path for paths in self.blocks.values() for path in paths]
        self.num_saved = 0 if flow.recomputed.intersection(paths) else len(paths)

    def general(self, path: str) -> str:
        """The path with its block replaced by the block's pattern."""
        parts = path.split(".")
        for pattern in self.blocks:
            depth = pattern.count(".") + 1
            if matches(pattern, ".".join(parts[:depth])):
                return ".".join([pattern, *parts[depth:]])
        return path


def blocks_of(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Pattern -> paths of the blocks, one for each module that has some: the outermost modules with
    siblings of their class and shapes that are a large part of the model, and all others of these
    classes (the first of a stage, say, that has other shapes). Of a class of torch.nn only those
    with the shapes."""
    blocks = dict[str, tuple[str, ...]]()
    _add_blocks(blocks, _kinds(model), "", model)
    return blocks


def _add_blocks(
    blocks: dict[str, tuple[str, ...]], kinds: set[object], path: str, module: nn.Module
) -> None:
    """Adds the blocks of these kinds below a module, by pattern."""
    children = dict(module.named_children())
    groups: dict[object, list[str]] = {}
    for name, child in children.items():
        if (kind := _kind(child)) in kinds:
            groups.setdefault(kind, []).append(name)
        else:
            _add_blocks(blocks, kinds, f"{path}{name}.", child)
    for names in groups.values():
        pattern = "*" if len(names) == len(children) else "{" + ",".join(names) + "}"
        blocks[path + pattern] = tuple(path + name for name in names)


def _kinds(model: nn.Module) -> set[object]:
    """The kinds of blocks, from the outermost modules inwards; the parts of a block are none."""
    least = sum(parameter.numel() for parameter in model.parameters()) / 50
    kinds: set[object] = set()
    modules = [model]
    while modules:
        groups: dict[object, list[nn.Module]] = {}
        for parent in modules:
            for child in parent.children():
                groups.setdefault((parent, type(child), _shapes(child)), []).append(child)
        for group in groups.values():
            numel = sum(parameter.numel() for child in group for parameter in child.parameters())
            if len(group) > 1 and numel >= max(least, 1):
                kinds.add(_kind(group[0]))
        modules = [
            child for group in groups.values() for child in group if _kind(child) not in kinds
        ]
    return kinds


def _kind(module: nn.Module) -> object:
    """A key, equal for modules that are blocks together."""
    is_of_torch = type(module).__module__.startswith("torch.nn")
    return (type(module), _shapes(module)) if is_of_torch else type(module)


def _shapes(module: nn.Module) -> object:
    return tuple((name, tuple(parameter.shape)) for name, parameter in module.named_parameters())


def placements(model: Model, num_devices: int) -> Iterator[CandidateLayout]:
    """Yields all layouts that save everything, including those that the model does not go with; see
    `rules_of`."""
    can_split = any(use.kind == "second" for use in model.flow.uses.values())
    for tensor in _divisors(num_devices) if can_split else (1,):
        for data in _divisors(num_devices // tensor):
            fsdp = num_devices // tensor // data
            for sequence in (True, False) if tensor > 1 and model.length is not None else (False,):
                for reshard in (True, False) if fsdp > 1 and model.blocks else (True,):
                    yield CandidateLayout(
                        data, fsdp, tensor, sequence, reshard, ("everything",) * model.num_saved
                    )


def gib(count: float) -> str:
    return f"{count / 2**30:,.1f}"


def _divisors(count: int) -> list[int]:
    return [size for size in range(1, count + 1) if count % size == 0]


def rules_of(layout: CandidateLayout, model: Model, memory: int | None = None) -> ShardingRules:
    """The rules of a layout.

    Raises Unfit where the model does not go with it, or its state with a device's memory.
    """
    ways, state = layout.data * layout.fsdp, model.state / layout.tensor / layout.fsdp
    if memory is not None and state > memory:
        raise Unfit(f"does not fit: parameters and optimizer take {gib(state)} GiB of each device")
    if model.rows % ways:
        raise Unfit(f"a batch of {model.rows} is not divisible by {ways} devices")
    if layout.sequence and model.length is not None and model.length % layout.tensor:
        raise Unfit(f"a sequence of {model.length} is not divisible by {layout.tensor}")
    table = _tensor_rules(layout, model) if layout.tensor > 1 else {}
    if len(model.flow.shapes.get(("", "input"), ())) == 1:
        table[":input"] = P(layout.batch_axes)  # FSDP does not shard vectors
    return ShardingRules(
        table,
        units=tuple(model.blocks),
        shard_axis=SHARD,
        extra_data_axis=DATA if layout.data > 1 else None,
        reshard_after_forward=layout.reshard,
        checkpoint=_checkpoint(layout.saved, model),
    )


def _checkpoint(saved: Sequence[str], model: Model) -> dict[str, str]:
    """Pattern of blocks -> what is saved of them."""
    words, table = iter(saved), {}
    for pattern, paths in model.blocks.items() if saved else ():
        groups: dict[str, list[str]] = {}
        for path in paths:
            groups.setdefault(next(words), []).append(path)
        for word, group in groups.items():
            if word != "everything":
                table[pattern if len(group) == len(paths) else _pattern_of(group)] = word
    return table


def _pattern_of(paths: Sequence[str]) -> str:
    """A pattern of some modules of one parent."""
    parent, dot, _ = paths[0].rpartition(".")
    names = [path.rpartition(".")[2] for path in paths]
    first = int(names[0]) if names[0].isdecimal() else 0
    is_range = len(names) > 1 and names == [str(first + offset) for offset in range(len(names))]
    return f"{parent}{dot}{{{f'{names[0]}..{names[-1]}' if is_range else ','.join(names)}}}"


def _tensor_rules(layout: CandidateLayout, model: Model) -> dict[str, P]:
    """The rules of the parameters that the tensor axis shards, and of the activations between them,
    which a layout may split along the sequence; first products then read them unsharded."""
    flow, batch, along = model.flow, layout.batch_axes, TENSOR if layout.sequence else None
    seconds = [use for use in flow.uses.values() if use.kind == "second"]
    firsts = {path for use in seconds for path in _splittable(use, flow.uses, layout.tensor)}
    partners = {path for use in seconds for path in use.partners}
    parameters, read, results = dict[str, P](), dict[str, P](), dict[str, P]()

    def stream(path: str, side: str, along: str | None) -> dict[str, P]:
        """The rule of an activation [batch, length, width]; one of another rank is sharded along
        the batch only."""
        shape = flow.shapes.get((path, side), ())
        if len(shape) < 2 or shape[0] % (layout.data * layout.fsdp):
            return {}
        dims = along if len(shape) == 3 else None, *[None] * (len(shape) - 2)
        return {f"{model.general(path)}:{side}": P(batch, *dims)}

    for use in flow.uses.values():
        is_inner = use.path in firsts or not use.partners.isdisjoint(firsts)
        is_outer = (
            use.kind != "second" and use.path not in partners and use.size % layout.tensor == 0
        )
        is_end = is_outer and _is_end(use, model)
        if not (is_inner or is_end):
            continue
        dim, rank = use.summed if use.kind == "second" else use.free, len(flow.parameters[use.path])
        parameters[model.general(use.path)] = P(
            *(TENSOR if index == dim else None for index in range(rank))
        )
        if use.kind != "first":
            results |= stream(use.module, "output", along)
        else:
            parameters |= {model.general(bias): P(TENSOR) for bias in use.biases}
            # Without a split along the sequence these activations are unsharded anyway.
            read |= (
                stream(use.reads or use.module, "output" if use.reads else "input", None)
                if along
                else {}
            )
        heads = [("", shape) for shape in flow.returned if is_end and shape[-1:] == (use.size,)]
        if is_end and use.kind == "first":
            heads.append((use.module, flow.shapes.get((use.module, "output"), ())))
        # results of a head, or of an embedding table that is the head, too
        for path, shape in heads:
            if len(shape) > 1:
                results[f"{model.general(path)}:output"] = P(
                    batch, *[None] * (len(shape) - 2), TENSOR
                )
    for paths in model.blocks.values():
        results |= stream(paths[0], "output", along)
    return parameters | read | results


def _splittable(use: Use, uses: dict[str, Use], tensor: int) -> set[str]:
    """The parameters to shard together with a second product.

    Raises Unfit where the sizes do not divide.
    """
    partners = [uses[path] for path in use.partners]
    most = max((partner.heads or 0 for partner in partners), default=0)
    if use.length % tensor:
        raise Unfit(f"{use.path}: {use.length} is not divisible by {tensor}")
    if most % tensor:
        raise Unfit(f"{use.path}: {most} heads are not divisible by {tensor}")
    # Fewer heads of keys and values than devices: they stay unsharded, and each device computes the
    # heads it reads.
    return {
        peer.path
        for peer in partners
        if not peer.is_whole
        and peer.size % tensor == 0
        and (peer.heads is None or peer.heads % tensor == 0)
    }


def _is_end(use: Use, model: Model) -> bool:
    """True for a head or an embedding table worth sharding: a hundredth of the model or more,
    longer than wide."""
    return 100 * use.size * use.length >= model.numel and use.size > use.length and not use.is_whole
