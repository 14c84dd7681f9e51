"""Figures of a step extrapolated from programs with one and two blocks of each kind."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn

from .candidates import SAVED, Kind, Layout, Model, Saved


@dataclass(frozen=True)
class Figures:
    """The seconds of a step, and the peak bytes of a device."""

    seconds: float
    peak: float

    def plus(self, other: "Figures", times: float = 1.0) -> "Figures":
        return Figures(self.seconds + times * other.seconds, self.peak + times * other.peak)


def can_be_shortened(model: Model) -> bool:
    """True if the blocks of each kind are all children of a module list, of which a model may have fewer."""
    containers = [_container(kind, model.flow.model) for kind in model.kinds]
    return bool(containers) and all(
        isinstance(one, nn.ModuleList) and len(one) == len(kind.paths)
        for one, kind in zip(containers, model.kinds, strict=True)
    )


def ops_of_short_programs(model: Model, num_ops: int) -> float:
    """The ops of all programs that an extrapolation compiles. num_ops: those of the whole step."""
    total, blocks = model.flow.cost().ops, [kind.cost.ops for kind in model.kinds]
    rest = total - sum(kind.cost.ops * len(kind.paths) for kind in model.kinds)
    short = (1 + len(blocks)) * (rest + sum(blocks)) + sum(blocks)
    return num_ops * short / max(total, 1)


def short_counts(model: Model) -> list[dict[str, int]]:
    """The numbers of blocks of each short program: one of each kind, then two of one kind."""
    one = {kind.pattern: 1 for kind in model.kinds}
    return [one, *(one | {kind.pattern: 2} for kind in model.kinds)]


@contextmanager
def shortened(model: Model, counts: Mapping[str, int]) -> Iterator[None]:
    """Makes the model have so many blocks of each kind inside the context: the first ones."""
    whole = []
    try:
        for kind in model.kinds:
            container = _container(kind, model.flow.model)
            whole.append((container, container._modules))
            container._modules = dict([*container._modules.items()][: counts[kind.pattern]])
        yield
    finally:
        for container, modules in whole:
            container._modules = modules


def extrapolated(layout: Layout, model: Model, found: Mapping[str, Sequence[Figures]]) -> Figures:
    """The figures of a layout. found: by word of `SAVED`, the figures of the short programs that save it of all
    blocks."""
    slopes = {word: [two.plus(rows[0], -1) for two in rows[1:]] for word, rows in found.items()}
    word = next(iter(found))
    total = found[word][0]
    for slope in slopes[word]:
        total = total.plus(slope, -1)
    saved = layout.saved or tuple(kind.uniform("everything") for kind in model.kinds)
    for number, one in enumerate(saved):
        for name, count in zip(SAVED, one.counts, strict=True):
            if count:
                total = total.plus(slopes[name][number], count)
    return total


def words_of(saved: Sequence[Saved]) -> list[str]:
    """The words of `SAVED` that a layout has."""
    return [word for index, word in enumerate(SAVED) if any(one.counts[index] for one in saved)]


def _container(kind: Kind, model: nn.Module) -> nn.Module:
    return model.get_submodule(kind.paths[0].rpartition(".")[0])
