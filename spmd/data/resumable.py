"""Resumable: iterations of any source that can be saved and continued, by the source's own state or by counting."""

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch

# {"items": taken in this epoch, "state": the source's own, "generators": states at the epoch's start}
Position = dict[str, Any]


class Resumable:
    """A source whose iterations have a position after each item.

    Positions are of the source's own state where it has one: `state_dict` of the source (torchdata, datasets) or
    `get_state` of its iterator (grain). Else they count the items, and a resumed iteration pulls as many and drops
    them, after the generators that shuffle (the source's, its samplers', else torch's default) have the state again
    that they had at the start of the epoch.
    """

    def __init__(self, source: Iterable[Any]) -> None:
        self.source: Any = source
        self._has_state = hasattr(source, "state_dict") and hasattr(source, "load_state_dict")
        # The state of a `datasets` stream stays until another is loaded, and of an epoch's end gives nothing more.
        self._is_stream = self._has_state and type(source).__module__.partition(".")[0] == "datasets"

    def iteration(self, position: Position | None) -> "Iteration":
        """A new iteration, from a position on, else from the start."""
        position = position or {"items": 0, "state": None, "generators": []}
        if self._has_state and (position["state"] is not None or self._is_stream):
            self.source.load_state_dict(copy.deepcopy(position["state"]))
        generators = [] if self._has_state else _generators(self.source)
        for generator, state in zip(generators, position["generators"], strict=False):
            generator.set_state(state)
        starts = [generator.get_state() for generator in generators]
        iterator = iter(self.source)
        if not self._has_state and hasattr(iterator, "get_state") and hasattr(iterator, "set_state"):
            if position["state"] is not None:
                iterator.set_state(position["state"])
            return Iteration(iterator, iterator.get_state, [], position["items"], 0)
        if self._has_state:
            return Iteration(iterator, self.source.state_dict, [], position["items"], 0)
        return Iteration(iterator, None, starts, position["items"], position["items"])

    def between(self) -> Position:
        """The position between two epochs."""
        has_state = self._has_state and not self._is_stream
        generators = [] if self._has_state else [generator.get_state() for generator in _generators(self.source)]
        state = copy.deepcopy(self.source.state_dict()) if has_state else None
        return {"items": 0, "state": state, "generators": generators}

    def start(self) -> Position:
        """The position before the first epoch."""
        generators = [] if self._has_state else [generator.get_state() for generator in _generators(self.source)]
        return {"items": 0, "state": None, "generators": generators}


class Iteration:
    """One pass over a source. Any thread may take its items, one at a time."""

    def __init__(self, iterator: Iterator[Any], state: Any, starts: list[torch.Tensor], taken: int, skip: int) -> None:
        self._iterator = iterator
        self._state = state
        self._starts = starts
        self._taken = taken
        self._skip = skip

    def __iter__(self) -> Iterator[tuple[Any, Position]]:
        """Yields each item and the position after it."""
        while self._skip:
            self._skip -= 1
            if next(self._iterator, self) is self:
                return
        for item in self._iterator:
            self._taken += 1
            # A copy: the source goes on while the item waits to be used.
            state = None if self._state is None else copy.deepcopy(self._state())
            yield item, {"items": self._taken, "state": state, "generators": self._starts}


def _generators(source: Any) -> list[torch.Generator]:
    """The generators that a source without a state shuffles by."""
    batch_sampler = getattr(source, "batch_sampler", None)
    owners = [source, getattr(source, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)]
    found = [getattr(owner, "generator", None) for owner in owners]
    distinct = {id(each): each for each in found if isinstance(each, torch.Generator)}
    if isinstance(found[0], torch.Generator):
        return [*distinct.values()]
    return [torch.default_generator, *distinct.values()]


def set_epoch(source: Any, epoch: int) -> None:
    """Sets the epoch of a source, or of those of its dataset and samplers that have one."""
    batch_sampler = getattr(source, "batch_sampler", None)
    inner = [getattr(source, name, None) for name in ("dataset", "sampler")]
    inner += [batch_sampler, getattr(batch_sampler, "sampler", None)]
    owners: list[Any] = [source] if hasattr(source, "set_epoch") else inner
    for owner in {id(each): each for each in owners}.values():
        if hasattr(owner, "set_epoch"):
            owner.set_epoch(epoch)
