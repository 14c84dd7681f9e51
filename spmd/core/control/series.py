"""The scalar arguments of a body: how each changes from iteration to iteration. Those of random draws do."""

import itertools
from collections.abc import Iterator, Sequence

from ..base.seed import Draw
from ..ir.graph import Node
from ..lower.region import EACH, Step


def by_iteration(
    nodes: Sequence[Node], draws: dict[Draw, list[Draw]], name: str
) -> Iterator[tuple[Step, Sequence[float | int]]]:
    """Yields, for each scalar argument of a body, its step and its number, or its numbers of all iterations."""
    for node in nodes:
        series: dict[int, list[int]] = {}
        for seed, count in node.op.lowering.draws(node.op):
            found = draws.get((int(node.numbers[seed]), int(node.numbers[count])))
            if found is None:
                raise NotImplementedError(
                    f"{name}: the body draws random numbers apart from the stream (torch.random.fork_rng, or a seed of "
                    "its own); draw them outside and pass them in"
                )
            series[seed], series[count] = [draw[0] for draw in found], [draw[1] for draw in found]
        for place, number in enumerate(node.numbers):
            each = series.get(place)
            yield (0, [number]) if each is None else _progression(each)


def _progression(numbers: list[int]) -> tuple[Step, list[int]]:
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 0
    if all(later - earlier == step for earlier, later in itertools.pairwise(numbers)):
        return step, numbers[:1]
    return EACH, numbers
