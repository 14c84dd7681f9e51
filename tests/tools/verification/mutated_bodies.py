"""Bodies of `spmd.shard_map` with one wrong collective, drawn by a seed: does `spmd.verify` find
and name each?

    python tests/tools/verification/mutated_bodies.py --seed 7            # 320 mutants
    python tests/tools/verification/mutated_bodies.py --seed 7 --mutants 20
    python tests/tools/verification/mutated_bodies.py --seed 7 --only 12  # the full text of one

A mutant of a body in `sharded_bodies.py` has one collective dropped, doubled, over other axes, or a
mean in the place of its sum (and the reverse). It is found where verify raises or has a difference,
and named where verify's sentence has the change that gives the body back: the dropped collective
with its axes, the one that is one too many, the right axes, the right reduction. A mutant that is
equal to its body, values and gradients to 1e-12 on the mesh itself, is listed as equivalent and not
counted.
"""

import argparse
import ast
import inspect
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import torch  # noqa: E402

import spmd  # noqa: E402
from spmd.tools.verification.evidence import Verification  # noqa: E402
from tests.tools.verification import sharded_bodies  # noqa: E402
from tests.tools.verification.sharded_bodies import CASES, Case, inputs_of, step_of  # noqa: E402

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute")
SHAPES = ((2, 4), (4, 2))
AXES = ("data", "model")
SWAPPED = {"sum": "mean", "mean": "sum"}


@dataclass(frozen=True)
class Mutant:
    """A change of the `number`-th collective of a body. kind: "dropped", "doubled", "axis" or
    "reduction"; axes: those of the mutant, for "axis"."""

    case: Case
    number: int
    kind: str
    shape: tuple[int, int]
    axes: tuple[str, ...] = ()

    def __str__(self) -> str:
        over = f" over {', '.join(self.axes)}" if self.axes else ""
        call = ast.unparse(calls_of(self.case)[self.number])
        return f"{self.case.name} ({self.shape[0]} x {self.shape[1]}): {self.kind}{over}: {call}"


def function_of(case: Case) -> ast.FunctionDef:
    """The body's syntax, with the lines of its file."""
    lines, first = inspect.getsourcelines(case.body)
    tree = ast.increment_lineno(ast.parse("".join(lines)), first - 1)
    found = tree.body[0]
    assert isinstance(found, ast.FunctionDef)
    return found


def collectives_in(function: ast.AST) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in COLLECTIVES
    ]


def calls_of(case: Case) -> list[ast.Call]:
    return collectives_in(function_of(case))


def axes_of(call: ast.Call) -> tuple[str, ...]:
    found = ast.literal_eval(call.args[-1])
    return (found,) if isinstance(found, str) else tuple(found)


def every_mutant() -> Iterator[Mutant]:
    for case, shape in itertools.product(CASES, SHAPES):
        for number, call in enumerate(calls_of(case)):
            yield Mutant(case, number, "dropped", shape)
            yield Mutant(case, number, "doubled", shape)
            for axes in (("data",), ("model",), AXES):
                if axes != axes_of(call):
                    yield Mutant(case, number, "axis", shape, axes)
            if any(isinstance(one, ast.Constant) and one.value in SWAPPED for one in call.args):
                yield Mutant(case, number, "reduction", shape)


class _Changed(ast.NodeTransformer):
    """Replaces one call."""

    def __init__(self, mutant: Mutant, call: ast.Call):
        self.mutant, self.call = mutant, call

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if node is not self.call:
            return self.generic_visit(node)
        match self.mutant.kind:
            case "dropped":
                return node.args[0]
            case "doubled":
                return ast.copy_location(ast.Call(node.func, [node, *node.args[1:]], []), node)
            case "axis":
                axes: Any = self.mutant.axes[0] if len(self.mutant.axes) == 1 else self.mutant.axes
                expression = ast.parse(repr(axes), mode="eval").body
                args = [*node.args[:-1], ast.copy_location(expression, node)]
            case _:
                args = [
                    ast.copy_location(ast.Constant(SWAPPED[one.value]), one)
                    if isinstance(one, ast.Constant) and one.value in SWAPPED
                    else one
                    for one in node.args
                ]
        return ast.copy_location(ast.Call(node.func, args, []), node)


def body_of(mutant: Mutant) -> Callable[..., Any]:
    """The mutated function; its lines are those of the body in its file."""
    function = function_of(mutant.case)
    changed = _Changed(mutant, collectives_in(function)[mutant.number]).visit(function)
    tree = ast.fix_missing_locations(ast.Module([changed], []))
    names: dict[str, Any] = dict(vars(sharded_bodies))
    exec(compile(tree, sharded_bodies.__file__, "exec"), names)
    found: Callable[..., Any] = names[mutant.case.name]
    return found


def outcome(case: Case, body: Callable[..., Any], mesh: spmd.Mesh, seed: int) -> list[torch.Tensor]:
    """The result and the gradients of a body on a mesh."""
    given = [
        one.detach().to("xla").requires_grad_(one.requires_grad) for one in inputs_of(case, seed)
    ]
    made = step_of(case, body, mesh)(*given)
    return [made.detach().cpu(), *(one.grad.cpu() for one in given if one.grad is not None)]


def is_equivalent(mutant: Mutant, body: Callable[..., Any], seed: int) -> bool:
    """True where the mutant has the values and gradients of the body on the same mesh."""
    mesh = spmd.Mesh(range(8), mutant.shape, AXES)
    try:
        theirs = outcome(mutant.case, body, mesh, seed)
    except (RuntimeError, ValueError, IndexError, AssertionError):
        # shapes that do not fit, results that may differ
        return False
    ours = outcome(mutant.case, mutant.case.body, mesh, seed)
    return len(ours) == len(theirs) and all(
        one.shape == other.shape and (one - other).abs().max() <= 1e-12 * one.abs().max()
        for one, other in zip(ours, theirs, strict=True)
    )


def expected(mutant: Mutant) -> list[str]:
    """Parts of verify's sentence that name the change which gives the body back."""
    call = calls_of(mutant.case)[mutant.number]
    name = f"{call.func.id}("  # type: ignore[attr-defined]
    right = ", ".join(map(repr, axes_of(call)))
    match mutant.kind:
        case "dropped":
            return [name, right, "is missing"]
        case "doubled":
            return [name, right, "is one too many"]
        case "axis":
            return [name, f"over {right} the step is equal"]
    op = next(
        one.value for one in call.args if isinstance(one, ast.Constant) and one.value in SWAPPED
    )
    return [name, f"with {op!r} the step is equal"]


def verdict_of(mutant: Mutant, body: Callable[..., Any], seed: int) -> tuple[bool, str]:
    """Whether verify finds the mutant, and its sentence."""
    try:
        found: Verification = spmd.verify(
            step_of(mutant.case, body),
            *inputs_of(mutant.case, seed),
            meshes=[spmd.Mesh(range(8), mutant.shape, AXES)],
            progress=False,
        )
    except Exception as error:  # a mutant may raise anything, at the body's line or in a check
        notes = " ".join(getattr(error, "__notes__", ()))
        return True, notes or f"{type(error).__name__}: {error}"
    return not found, found.repair


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument(
        "--mutants", type=int, default=320, help="drawn of all; the most there are, if fewer"
    )
    parser.add_argument("--only", type=int, help="the number of one of those drawn")
    given = parser.parse_args()
    spmd.simulate(8)
    every = list(every_mutant())
    drawn = random.Random(given.seed).sample(every, min(given.mutants, len(every)))
    started, counts = time.monotonic(), Counter[str]()
    for number, mutant in enumerate(drawn):
        if given.only not in (None, number):
            continue
        body = body_of(mutant)
        if is_equivalent(mutant, body, given.seed):
            counts["equivalent"] += 1
            print(f"{number:4} equivalent  {mutant}", flush=True)
            continue
        is_found, text = verdict_of(mutant, body, given.seed)
        is_named = is_found and all(part in text for part in expected(mutant))
        counts["found"] += is_found
        counts["named"] += is_named
        counts["counted"] += 1
        if not is_named or given.only is not None:
            print(
                f"{number:4} {'named' if is_named else 'found' if is_found else 'MISSED'}  "
                f"{mutant}\n     {text}",
                flush=True,
            )
    counted = max(counts["counted"], 1)
    print(
        f"{len(drawn)} mutants of {len(CASES)} bodies, seed {given.seed}: {counts['equivalent']} "
        f"equivalent; of {counted} others {counts['found']} found "
        f"({counts['found'] / counted:.1%}), {counts['named']} named "
        f"({counts['named'] / counted:.1%}), {time.monotonic() - started:.0f} s"
    )


if __name__ == "__main__":
    main()
