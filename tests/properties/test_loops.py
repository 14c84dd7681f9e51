"""Any loop against its unrolled form: random bodies, run by Python on the CPU, scanned as layers,
by `spmd.scan`."""

import random
from collections.abc import Callable, Iterator

import pytest
import torch
from support import check
from torch import Tensor

import spmd

LENGTH, WIDTH, BODIES = 5, 8, 3
UNARY: list[Callable[[Tensor], Tensor]] = [
    torch.tanh,
    torch.sin,
    lambda x: x.softmax(-1),
    lambda x: x * 0.5 + 0.1,
    lambda x: x.roll(1, 0),
    torch.sigmoid,
    lambda x: x - x.mean(-1, keepdim=True),
    lambda x: x.view(2, 2, WIDTH).transpose(0, 1).reshape(4, WIDTH),
]
BINARY: list[Callable[[Tensor, Tensor], Tensor]] = [
    torch.add,
    torch.sub,
    torch.mul,
    torch.minimum,
    lambda a, b: torch.where(a > b, a, b * 0.5),
    lambda a, b: torch.cat([a[:2], b[2:]]),
]

Carry = tuple[Tensor, ...]
Rows = tuple[Tensor, Tensor]  # of one iteration: a weight and an input
Body = Callable[[Carry, Rows], tuple[Carry, Tensor]]


@pytest.fixture(autouse=True)
def always() -> Iterator[None]:
    before = spmd.config.scan_layers
    spmd.config.scan_layers = "always"
    yield
    spmd.config.scan_layers = before


def drawn_body(draw: random.Random, shared: Tensor) -> tuple[Body, int]:
    """A body and the length of its carry: some ops, of values of this iteration, of the one before,
    or of none; any of them is carried or a result."""
    num_carried = draw.randint(1, 3)
    num_values = num_carried + 3
    steps: list[tuple[Callable[..., Tensor], tuple[int, ...]]] = []
    for _ in range(draw.randint(3, 9)):
        kind = draw.choice(["unary", "binary", "linear", "shared"])
        operands = tuple(draw.randrange(num_values + len(steps)) for _ in range(2))
        # The weight, (WIDTH, WIDTH), is an operand of products alone; all others are (4, WIDTH).
        operands = tuple(0 if i == num_carried else i for i in operands)
        if kind == "unary":
            steps.append((draw.choice(UNARY), operands[:1]))
        elif kind == "binary":
            steps.append((draw.choice(BINARY), operands))
        elif kind == "linear":
            steps.append((torch.matmul, (operands[0], num_carried)))
        else:
            steps.append((torch.mul, (operands[0], num_carried + 2)))
    made = range(num_values, num_values + len(steps))
    carried = [draw.choice([*made, *range(num_carried)]) for _ in range(num_carried - 1)] + [
        made[-1]
    ]
    result = draw.choice(made)

    def body(carry: Carry, rows: Rows) -> tuple[Carry, Tensor]:
        values = [*carry, *rows, shared.to(carry[0].device)]
        for function, operands in steps:
            values.append(function(*(values[i] for i in operands)))
        return tuple(values[i] * 0.9 for i in carried), values[result]

    return body, num_carried


def plain(body: Body, init: Carry, weights: Tensor, inputs: Tensor) -> tuple[Carry, Tensor]:
    carry, ys = init, []
    for rows in zip(weights.unbind(), inputs.unbind(), strict=True):
        carry, y = body(carry, rows)
        ys.append(y)
    return carry, torch.stack(ys)


def scanned(body: Body, init: Carry, weights: Tensor, inputs: Tensor) -> tuple[Carry, Tensor]:
    return spmd.scan(body, init, (weights, inputs))


def layers(body: Body, init: Carry, weights: Tensor, inputs: Tensor) -> tuple[Carry, Tensor]:
    """Each iteration has a weight of its own, as layers have."""
    own = [weights[i].clone() for i in range(LENGTH)]
    spmd.sync()
    carry, ys = init, []
    for i in range(LENGTH):
        carry, y = body(carry, (own[i], inputs[i]))
        ys.append(y)
    return carry, torch.stack(ys)


@pytest.mark.partitioned("loops")
@pytest.mark.parametrize("is_sharded", [False, True], ids=["one device", "sharded"])
@pytest.mark.parametrize("run", [plain, scanned, layers])
def test_any_loop(
    run: Callable[..., tuple[Carry, Tensor]], is_sharded: bool, mesh2x4: spmd.Mesh
) -> None:
    draw = random.Random(f"{run.__name__} {is_sharded}")
    for _ in range(BODIES):
        shared = torch.rand(4, WIDTH)
        body, num_carried = drawn_body(draw, shared)
        leaves = [
            torch.rand(LENGTH, WIDTH, WIDTH),
            torch.rand(LENGTH, 4, WIDTH),
            *torch.rand(3, 4, WIDTH).unbind(),
        ]
        results = []
        for device in ("cpu", "xla"):
            weights, inputs, *init = [leaf.to(device).requires_grad_() for leaf in leaves]
            if device == "xla" and is_sharded:
                spmd.mark_sharding(weights, mesh2x4, (None, "fsdp", None))
                spmd.mark_sharding(inputs, mesh2x4, (None, "data", draw.choice([None, "fsdp"])))
            carry, ys = (plain if device == "cpu" else run)(
                body, tuple(init[:num_carried]), weights, inputs
            )
            loss = ys.square().mean() + sum(value.sum() for value in carry)
            # A scan returns zeros for an input that no iteration reads, where autograd returns
            # None.
            grads = torch.autograd.grad(
                loss, (weights, inputs, *init[:num_carried]), materialize_grads=True
            )
            results.append([*carry, ys, *grads])
        spmd.sync()
        for one, other in zip(*results, strict=True):
            check(other, one)
