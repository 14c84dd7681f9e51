"""Resumable: iterations of any source that can be saved and continued, by the source's own state or
by counting."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

# {"items": taken in this epoch, "state": the source's own, "generators": states at the epoch's
# start}
Position = dict[str, Any]


class Resumable:
    """A source whose iterations have a position after each item.

    Positions are of the source's own state where it has one: `state_dict` of the source (torchdata,
    datasets) or `get_state` of its iterator (grain). Else they count the items, and a resumed
    iteration pulls as many and drops them, after the generators that shuffle (the source's, its
    samplers', else torch's default) have the state again that they had at the start of the epoch.
    """

    def __init__(self, source: Iterable[Any]) -> None:
        self.source: Any = source
        self._has_state = hasattr(source, "state_dict") and hasattr(source, "load_state_dict")
        # or its iterators have a state, which the first one shows
        self._is_counted = not self._has_state
        # The state of a `datasets` stream stays until another is loaded, and of an epoch's end
        # gives nothing more.
        self._is_stream = (
            self._has_state and type(source).__module__.partition(".")[0] == "datasets"
        )

    def iteration(self, position: Position | None) -> "SourcePass":
        """A new iteration, from a position on, else from the start.

        Raises ValueError for one of another source.
        """
        position = position or {"items": 0, "state": None, "generators": []}
        num_items, state, states = position["items"], position["state"], position["generators"]
        if self._has_state:
            if state is not None or self._is_stream:
                self.source.load_state_dict(copy.deepcopy(state))
            return SourcePass(iter(self.source), self.source.state_dict, num_items)
        generators = _generators(self.source)
        if states and len(states) != len(generators):
            raise self._of_another(
                f"one with {len(states)} generators, which has {len(generators)}"
            )
        # none are given at the start
        for generator, its_state in zip(generators, states, strict=False):
            generator.set_state(its_state)
        starts = [generator.get_state() for generator in generators]
        iterator: Any = iter(self.source)
        self._is_counted = not (hasattr(iterator, "get_state") and hasattr(iterator, "set_state"))
        if self._is_counted and state is not None:
            raise self._of_another("one with a state of its own, which has none")
        if self._is_counted:
            return SourcePass(iterator, None, num_items, starts)
        if state is not None:
            iterator.set_state(state)
        return SourcePass(iterator, iterator.get_state, num_items)

    def _of_another(self, difference: str) -> ValueError:
        return ValueError(
            f"load_state_dict: expected the state of this {type(self.source).__name__}, got that "
            f"of {difference}; resume with the same source"
        )

    def between(self) -> Position:
        """The position between two epochs."""
        has_state = self._has_state and not self._is_stream
        return {
            **self.start(),
            "state": copy.deepcopy(self.source.state_dict()) if has_state else None,
        }

    def start(self) -> Position:
        """The position before the first epoch."""
        generators = _generators(self.source) if self._is_counted else []
        return {
            "items": 0,
            "state": None,
            "generators": [generator.get_state() for generator in generators],
        }


class SourcePass:
    """One pass over a source. Any thread may take its items, one at a time."""

    def __init__(
        self,
        iterator: Iterator[Any],
        state: Any,
        num_items: int,
        starts: Sequence[torch.Tensor] = (),
    ) -> None:
        self._iterator = iterator
        self._state = state  # a function; None where items are counted
        self._taken = num_items
        self._starts = list(starts)

    def __iter__(self) -> Iterator[tuple[Any, Position]]:
        """Yields each item and the position after it."""
        for _ in range(self._taken if self._state is None else 0):
            if next(self._iterator, self) is self:
                return
        for item in self._iterator:
            self._taken += 1
            # A copy: the source goes on while the item waits to be used.
            state = None if self._state is None else copy.deepcopy(self._state())
            yield item, {"items": self._taken, "state": state, "generators": self._starts}


def _owners(source: Any, *names: str) -> list[Any]:
    """The parts of a source that may have a generator or an epoch: attributes of these names, and
    its samplers."""
    batch_sampler = getattr(source, "batch_sampler", None)
    return [getattr(source, name, None) for name in names] + [
        batch_sampler,
        getattr(batch_sampler, "sampler", None),
    ]


def _generators(source: Any) -> list[torch.Generator]:
    """The generators that a source without a state shuffles by."""
    generators = [
        getattr(owner, "generator", None) for owner in [source, *_owners(source, "sampler")]
    ]
    distinct = {
        id(generator): generator
        for generator in generators
        if isinstance(generator, torch.Generator)
    }
    if isinstance(generators[0], torch.Generator):
        return [*distinct.values()]
    return [torch.default_generator, *distinct.values()]


def set_epoch(source: Any, epoch: int) -> None:
    """Sets the epoch of a source, or of those of its dataset and samplers that have one."""
    owners = [source] if hasattr(source, "set_epoch") else _owners(source, "dataset", "sampler")
    for owner in {id(candidate): candidate for candidate in owners}.values():
        if hasattr(owner, "set_epoch"):
            owner.set_epoch(epoch)
