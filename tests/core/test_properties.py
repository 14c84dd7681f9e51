"""Random programs of ops, views, in-place writes and gradients agree on CPU, on one device and sharded over eight."""

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import spmd

ROWS, COLUMNS = 8, 4

# Every step takes the state (a list of tensors of shape (8, 4)) and two small numbers that choose operands and places.
Step = Callable[[list[torch.Tensor], int, int], Any]


def pick(state: list[torch.Tensor], which: int) -> torch.Tensor:
    return state[which % len(state)]


def compute(function: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]) -> Step:
    """A step that appends a new tensor."""

    def step(state: list[torch.Tensor], a: int, b: int) -> None:
        state.append(function(pick(state, a), pick(state, b), b))

    return step


def write(function: Callable[[torch.Tensor, torch.Tensor, int], Any]) -> Step:
    """A step that writes into a tensor made before, in place, through a view or not; leaves are never written."""

    def step(state: list[torch.Tensor], a: int, b: int) -> None:
        target = pick(state, a) if pick(state, a).grad_fn is not None else pick(state, a) * 1
        function(target, pick(state, b).clone(), b)
        state.append(target)

    return step


def row(x: torch.Tensor, b: int) -> torch.Tensor:
    return x[b % ROWS]


STEPS: dict[str, Step] = {
    "add": compute(lambda x, y, b: x + y),
    "sub": compute(lambda x, y, b: x - 0.5 * y),
    "mul": compute(lambda x, y, b: (x * y).tanh()),
    "sin": compute(lambda x, y, b: x.sin()),
    "sigmoid": compute(lambda x, y, b: x.sigmoid() + b),
    "where": compute(lambda x, y, b: torch.where(x > y, x, 2 * y)),
    "softmax": compute(lambda x, y, b: x.softmax(b % 2)),
    "matmul": compute(lambda x, y, b: (x @ y.t() @ x) / 8),
    "sum": compute(lambda x, y, b: x + y.sum(b % 2, keepdim=True) / 4),
    "cumsum": compute(lambda x, y, b: x.cumsum(b % 2) / 4),
    "transpose": compute(lambda x, y, b: x.t().reshape(ROWS, COLUMNS)),
    "flip": compute(lambda x, y, b: x.flip(b % 2)),
    "roll": compute(lambda x, y, b: x.roll(b, b % 2)),
    "cat": compute(lambda x, y, b: torch.cat([x[:4], y[4:]])),
    "stack": compute(lambda x, y, b: torch.stack([x, y]).mean(0)),
    "chunk": compute(lambda x, y, b: torch.cat(x.chunk(2, 1)[::-1], 1)),
    "expand": compute(lambda x, y, b: row(x, b).expand(ROWS, COLUMNS) * y),
    "gather": compute(lambda x, y, b: x[torch.arange(ROWS - 1, -1, -1, device=x.device)]),
    "view as": compute(lambda x, y, b: x.reshape(4, 2, 4).transpose(0, 1).reshape(ROWS, COLUMNS)),
    "max": compute(lambda x, y, b: x - x.amax(b % 2, keepdim=True)),
    "norm": compute(lambda x, y, b: torch.nn.functional.layer_norm(x, (COLUMNS,), eps=0.1)),
    "add_": write(lambda x, y, b: x.add_(y, alpha=0.5)),
    "mul_": write(lambda x, y, b: x.mul_(0.5)),
    "copy_": write(lambda x, y, b: x.copy_(y)),
    "row =": write(lambda x, y, b: row(x, b).copy_(row(y, b + 1))),
    "column =": write(lambda x, y, b: x[:, b % COLUMNS].mul_(2)),
    "slice =": write(lambda x, y, b: x.__setitem__(slice(b % 4, None, 2), float(b))),
    "two views": write(lambda x, y, b: (x[1:].add_(x[:-1].clone()), x.t()[b % COLUMNS].neg_())),
    "diagonal": write(lambda x, y, b: x.diagonal(b % 3).add_(1)),
    "view chain": write(lambda x, y, b: x.view(-1)[8:24].view(4, 4).t()[1:3].mul_(-0.5)),
    "unfold": write(lambda x, y, b: x.view(-1).unfold(0, 4, 8).add_(0.5)),
    "strided": write(lambda x, y, b: x.as_strided((3, 2), (8, 3), b % 4).mul_(0.5)),
    "fill": write(lambda x, y, b: x[b % ROWS :, 1:].fill_(0.25)),
    "index =": write(lambda x, y, b: x.index_put_((torch.tensor([0, 5], device=x.device),), y[:2])),
    "mask =": write(lambda x, y, b: x.masked_fill_(y > 0.3, 0.5)),
    "index add": write(lambda x, y, b: x.index_add_(0, torch.tensor([1, 1, 6], device=x.device), y[:3])),
    "unsqueeze": write(lambda x, y, b: x.unsqueeze(1).squeeze(1).select(1, b % COLUMNS).copy_(y[:, 0])),
}

Program = list[tuple[str, int, int]]

PROGRAMS = st.lists(
    st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=7
)


def run(program: Program, device: str, mesh: spmd.Mesh | None = None) -> list[torch.Tensor]:
    """The final state and the gradients of both inputs."""
    inputs = [torch.linspace(-1, 1, 32).sin().view(ROWS, COLUMNS), torch.linspace(2, -1, 32).cos().view(ROWS, COLUMNS)]
    leaves = [tensor.clone().to(device) for tensor in inputs]
    if mesh is not None:
        for leaf in leaves:
            spmd.mark_sharding(leaf, mesh, (mesh.axis_names[0], None))
    state = [leaf.requires_grad_() for leaf in leaves]
    for name, a, b in program:
        STEPS[name](state, a, b)
    loss = sum((tensor * (1 + 0.1 * i)).sin().mean() for i, tensor in enumerate(state))
    try:
        loss.backward()
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return [torch.tensor(1.0), *(tensor.detach() for tensor in state)]
    return [torch.tensor(0.0), *(tensor.detach() for tensor in state), *(leaf.grad for leaf in leaves)]


def agree(program: Program, mesh: spmd.Mesh) -> None:
    expected = run(program, "cpu")
    whole, cut = run(program, "xla"), run(program, "xla", mesh)
    spmd.sync()
    for name, actual in (("one device", whole), ("eight devices", cut)):
        assert len(actual) == len(expected), f"{name}: autograd's version checks differ from CPU's"
        for i, (one, other) in enumerate(zip(actual, expected, strict=True)):
            torch.testing.assert_close(
                one.cpu(), other, rtol=1e-4, atol=1e-4, msg=lambda m, i=i, n=name: f"{n}, result {i}: {m}"
            )


# Programs that failed once, and those that reach every kind of step.
CORPUS: list[Program] = [
    [("add", 0, 1), ("row =", 2, 3), ("two views", 2, 1), ("matmul", 2, 0)],
    [("mul", 0, 1), ("strided", 2, 3), ("unfold", 2, 0), ("view chain", 2, 1), ("softmax", 2, 1)],
    [("sin", 0, 0), ("index =", 2, 1), ("index add", 2, 1), ("mask =", 2, 0), ("gather", 2, 0)],
    [("transpose", 0, 0), ("column =", 2, 3), ("diagonal", 2, 2), ("fill", 2, 1), ("cat", 2, 1)],
    [("expand", 0, 5), ("copy_", 2, 0), ("slice =", 2, 1), ("unsqueeze", 2, 2), ("norm", 2, 0), ("max", 3, 1)],
    [
        ("sigmoid", 0, 1), ("add_", 2, 2), ("mul_", 2, 0), ("where", 2, 1), ("cumsum", 3, 0), ("roll", 4, 3),
        ("flip", 5, 1),
    ],
]  # fmt: skip


class TestRandomPrograms:
    """The same numbers, gradients and version errors everywhere; the partitioner is the group's."""

    def test_corpus(self, mesh8: spmd.Mesh) -> None:
        for program in CORPUS:
            agree(program, mesh8)

    def test_random(self, mesh8: spmd.Mesh) -> None:
        @settings(
            max_examples=15, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
        )
        @example(CORPUS[0])
        @given(PROGRAMS)
        def check(program: Program) -> None:
            agree(program, mesh8)

        check()
