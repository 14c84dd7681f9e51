"""Bounds of the rounding errors of a recorded step: lengths of its reductions, unit roundoffs, and
the tolerance."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ...core import Meta
from ...core.extend import Node, OpSpec, Value, walks

# Standard deviations: the measured error of one order of summation is a sample of those of all
# orders.
SPREAD = 8.0

FORMULA = (
    "2 sqrt(n) u max|v| + 8 (u / s) max|v_s - v_64|: n the roundings on the longest path to the "
    "value, u the largest unit roundoff on it, v_s the value in the sample's dtype, of unit "
    "roundoff s, v_64 the same in float64"
)


class Path(NamedTuple):
    """The worst path to a value: the roundings on it, summands of reductions counted one by one,
    and the largest unit roundoff of a result."""

    length: int
    unit: float

    def then(self, next_path: "Path") -> "Path":
        """This path, then the next: gamma_j + gamma_k + gamma_j gamma_k <= gamma_(j + k), Higham,
        lemma 3.3."""
        return Path(self.length + next_path.length, max(self.unit, next_path.unit))


NO_PATH = Path(0, 0.0)


def unit_of(dtype: torch.dtype) -> float:
    """The unit roundoff of a dtype: half the distance from 1 to the next number; 0 for exact
    dtypes."""
    return torch.finfo(dtype).eps / 2 if dtype.is_floating_point or dtype.is_complex else 0.0


def paths_of(values: Sequence[Value]) -> list[Path]:
    """The worst path from device data to each recorded value."""
    paths = _paths(walks.topological(values)[0])
    return [_worst([value], paths) for value in values]


def _paths(nodes: Sequence[Node]) -> dict[Node, Path]:
    paths: dict[Node, Path] = {}
    for node in nodes:
        paths[node] = _worst(node.operands, paths).then(_within(node))
    return paths


def _worst(values: Sequence[Value], path_of_node: dict[Node, Path]) -> Path:
    paths = [
        path_of_node.get(node, NO_PATH)
        if (node := walks.origin(value))
        else Path(0, unit_of(value.meta.dtype))
        for value in values
    ]
    return Path(
        max((path.length for path in paths), default=0),
        max((path.unit for path in paths), default=0.0),
    )


def _within(node: Node) -> Path:
    """The roundings of one op; of an op with bodies those of its longest body, for each
    iteration."""
    lowering = node.op.lowering
    length = max(
        (_worst(body.roots, _paths(body.nodes)).length for body in lowering.regions), default=0
    )
    if lowering.regions:
        length *= getattr(lowering, "iterations", 1)
    else:
        length = num_roundings(node.op)
    return Path(length, max((unit_of(meta.dtype) for meta in node.op.metas), default=0.0))


def num_roundings(op: OpSpec) -> int:
    """The largest number of roundings behind an element of an op's results: the summands of a
    reduction or a product, 1 for an element-wise op, 0 for one that only moves elements.

    It is read from the shapes: [m, k] x [k, n] has sqrt(mk kn / mn) = k summands, a sum as many as
    there are operands' elements for each result's, and an op that keeps the shape (softmax, a norm)
    those of its last dim.
    """
    kind = _overload(op.name)
    floats = [meta for meta in op.operands if unit_of(meta.dtype)]
    results = [meta for meta in op.metas if unit_of(meta.dtype)]
    if (
        not floats
        or not results
        or (kind is not None and kind.is_view)
        or not op.name.startswith(("aten", "spmd.sum"))
    ):
        return 0
    if kind is not None and torch.Tag.pointwise in kind.tags:
        return 1
    largest, result = max(floats, key=_numel), max(1, min(map(_numel, results)))
    factors = sorted(map(_numel, floats))[-2:]
    product = math.isqrt(factors[0] * factors[1] // result) if len(factors) == 2 else 1
    last = largest.shape[-1] if largest.shape and _numel(largest) <= result else 1
    return max(1, _numel(largest) // result, product, last)


def _numel(meta: Meta) -> int:
    return math.prod(meta.shape)


def _overload(name: str) -> torch._ops.OpOverload | None:
    target: object = torch.ops
    for part in name.split("."):
        target = getattr(target, part, None)
    if isinstance(target, torch._ops.OpOverloadPacket):
        target = getattr(target, "default", None)
    return target if isinstance(target, torch._ops.OpOverload) else None


def tolerance(path: Path, magnitude: float, measured: float, sampled: Path) -> float:
    """The largest difference of two computations of one value that rounding explains.

    A sum in any order is the exact sum of terms x_i (1 + d_i) with |d_i| <= gamma_n = n u / (1 - n
    u) (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, eq. 4.4, lemma 3.1),
    and for roundings of mean zero with |d_i| <= sqrt(n) u up to a small factor (rule of thumb in
    2.8 there; Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019). Both computations may be that far
    off, so the first term is 2 sqrt(n) u max|v|. It holds for sums without cancellation. Where
    terms cancel, the error goes with the sum of their absolute values and with the step's condition
    (section 1.6): the second term measures both, as the distance of the step in a narrow dtype from
    that in float64 at neighbouring inputs, scaled by the ratio of the unit roundoffs, since
    rounding errors are linear in it.

    path, sampled: of the computation and of the measured one. magnitude: max|v|. measured: the
    worst measured distance.
    """
    scale = path.unit / sampled.unit if sampled.unit else 0.0
    return 2 * math.sqrt(max(path.length, 1)) * path.unit * magnitude + SPREAD * scale * measured
