"""Random bad layouts of ten small models: does the annotation that `spmd.plan` proposes remove the
move?

    python tests/tools/planning/bad_layouts.py --seed 1 --draws 100

A draw gives one parameter, input or activation of a model another layout, drawn at random. It is
kept where the partitioner then moves something unrequested, so that all collectives together move
more than in the model's own layout, which needs no such move. It counts where the program with the
proposed annotation has the largest move no more.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # runs without being installed, too

import spmd
from spmd import Mesh, P

Spec = tuple[str | tuple[str, ...] | None, ...]
Mark = Callable[[str, torch.Tensor], torch.Tensor]
MOVES_ABOVE = 2048
AXES = ("data", "model")


class Model(NamedTuple):
    """A model with a layout. parameters, inputs: name -> (shape, spec); of inputs an integer in
    front is the number of classes. activations: name -> spec; shapes are known when it runs."""

    forward: Callable[[dict[str, torch.Tensor], Mark], torch.Tensor]
    parameters: dict[str, tuple[tuple[int, ...], Spec]]
    inputs: dict[str, tuple[tuple[int, ...], Spec]]
    activations: dict[str, Spec]
    num_classes: int = 0

    def layout(self) -> dict[str, Spec]:
        """The layout that needs no move."""
        return {
            name: spec for name, (_, spec) in (self.parameters | self.inputs).items()
        } | self.activations


def mlp(t: dict[str, torch.Tensor], mark: Mark) -> torch.Tensor:
    hidden = mark("hidden", F.gelu(t["x"] @ t["up"]))
    return mark("out", hidden @ t["down"])


def embedding(t: dict[str, torch.Tensor], mark: Mark) -> torch.Tensor:
    found = mark("found", F.embedding(t["tokens"], t["table"]))
    return mark("out", F.layer_norm(found, (64,)) @ t["head"])


def attention(t: dict[str, torch.Tensor], mark: Mark) -> torch.Tensor:
    def heads(name: str) -> torch.Tensor:
        return mark(f"{name}_heads", (t["x"] @ t[name]).view(8, 32, 4, 16).transpose(1, 2))

    mixed = F.scaled_dot_product_attention(heads("query"), heads("key"), heads("value"))
    return mark("out", mixed.transpose(1, 2).reshape(8, 32, 64) @ t["project"])


def convolution(t: dict[str, torch.Tensor], mark: Mark) -> torch.Tensor:
    first = mark("first", F.relu(F.conv2d(t["x"], t["one"], padding=1)))
    return mark("out", F.conv2d(first, t["two"], padding=1))


def normed(t: dict[str, torch.Tensor], mark: Mark) -> torch.Tensor:
    inner = mark("inner", F.layer_norm(t["x"], (64,)) * t["scale"])
    return mark("out", t["x"] + F.silu(inner) * t["gate"])


def experts(t: dict[str, torch.Tensor], mark: Mark) -> torch.Tensor:
    hidden = mark("hidden", F.relu(torch.bmm(t["x"], t["up"])))
    return mark("out", torch.bmm(hidden, t["down"]))


def patches(t: dict[str, torch.Tensor], mark: Mark) -> torch.Tensor:
    cut = t["x"].reshape(16, 4, 4, 8, 4, 8).permute(0, 2, 4, 1, 3, 5).reshape(16, 16, 256)
    return mark("out", mark("cut", cut) @ t["embed"])


def cache(t: dict[str, torch.Tensor], mark: Mark) -> torch.Tensor:
    place = torch.arange(8, 12, device="xla")
    keys = mark("keys", t["kept"].index_copy(2, place, t["new"] * t["scale"]))
    return mark("scores", t["query"] @ keys.transpose(-1, -2))


def classes(t: dict[str, torch.Tensor], mark: Mark) -> torch.Tensor:
    hidden = mark("hidden", torch.tanh(t["x"] @ t["body"]))
    return F.cross_entropy(mark("logits", hidden @ t["head"]), t["labels"], reduction="none")


def sequence(t: dict[str, torch.Tensor], mark: Mark) -> torch.Tensor:
    summed = mark("summed", torch.cumsum(t["x"] * t["decay"], 1))
    shifted = mark("shifted", torch.cat([summed[:, 1:], summed[:, :1]], 1))
    return mark("out", (summed - shifted.flip(1)) @ t["head"])


ROWS, WHOLE = ("data", None), (None, None)
MODELS = {
    "mlp": Model(
        mlp,
        {"up": ((128, 256), (None, "model")), "down": ((256, 128), ("model", None))},
        {"x": ((32, 128), ROWS)},
        {"hidden": ("data", "model"), "out": ROWS},
    ),
    "embedding": Model(
        embedding,
        {"table": ((512, 64), WHOLE), "head": ((64, 128), (None, "model"))},
        {"tokens": ((16, 32), ROWS)},
        {"found": ("data", None, None), "out": ("data", None, "model")},
        num_classes=512,
    ),
    "attention": Model(
        attention,
        dict.fromkeys(("query", "key", "value"), ((64, 64), (None, "model")))
        | {"project": ((64, 64), ("model", None))},
        {"x": ((8, 32, 64), ("data", None, None))},
        {f"{name}_heads": ("data", "model", None, None) for name in ("query", "key", "value")}
        | {"out": ("data", None, None)},
    ),
    "convolution": Model(
        convolution,
        {
            "one": ((16, 8, 3, 3), ("model", None, None, None)),
            "two": ((8, 16, 3, 3), (None, "model", None, None)),
        },
        {"x": ((8, 8, 16, 16), ("data", None, None, None))},
        {"first": ("data", "model", None, None), "out": ("data", None, None, None)},
    ),
    "normed": Model(
        normed,
        {"scale": ((64,), (None,)), "gate": ((64,), (None,))},
        {"x": ((8, 32, 64), ("data", "model", None))},
        {"inner": ("data", "model", None), "out": ("data", "model", None)},
    ),
    "experts": Model(
        experts,
        {"up": ((8, 64, 64), ("model", None, None)), "down": ((8, 64, 64), ("model", None, None))},
        {"x": ((8, 32, 64), ("model", "data", None))},
        {"hidden": ("model", "data", None), "out": ("model", "data", None)},
    ),
    "patches": Model(
        patches,
        {"embed": ((256, 64), (None, "model"))},
        {"x": ((16, 4, 32, 32), ("data", None, None, None))},
        {"cut": ("data", None, None), "out": ("data", None, "model")},
    ),
    "cache": Model(
        cache,
        {"scale": ((32,), (None,))},
        {
            "kept": ((8, 4, 64, 32), ("data", "model", None, None)),
            "new": ((8, 4, 4, 32), ("data", "model", None, None)),
            "query": ((8, 4, 4, 32), ("data", "model", None, None)),
        },
        {"keys": ("data", "model", None, None), "scores": ("data", "model", None, None)},
    ),
    "classes": Model(
        classes,
        {"body": ((64, 128), (None, "model")), "head": ((128, 64), ("model", None))},
        {"x": ((32, 64), ROWS), "labels": ((32,), ("data",))},
        {"hidden": ("data", "model"), "logits": ROWS},
        num_classes=64,
    ),
    "sequence": Model(
        sequence,
        {"decay": ((64,), (None,)), "head": ((64, 64), (None, "model"))},
        {"x": ((16, 32, 64), ("data", None, None))},
        {
            "summed": ("data", None, None),
            "shifted": ("data", None, None),
            "out": ("data", None, "model"),
        },
    ),
}


def planned(model: Model, mesh: Mesh, layout: dict[str, Spec], *, check: bool) -> spmd.Plan:
    """The plan of a training step of a model in a layout, without data."""
    tensors: dict[str, torch.Tensor] = {}
    for name, (shape, _) in (model.parameters | model.inputs).items():
        is_index = name in model.inputs and name in ("tokens", "labels")
        made = torch.zeros(shape, dtype=torch.long) if is_index else torch.ones(shape)
        tensors[name] = spmd.mark_sharding(made.to("xla"), mesh, P(*layout[name]))
    for name in model.parameters:
        tensors[name] = torch.nn.Parameter(tensors[name])
    optimizer = torch.optim.SGD([tensors[name] for name in model.parameters], lr=0.1)

    def mark(name: str, value: torch.Tensor) -> torch.Tensor:
        return spmd.mark_sharding(value, mesh, P(*layout[name]))

    def step() -> torch.Tensor:
        loss = model.forward(tensors, mark).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return spmd.plan(step, check_marks=check)


def moves(plan: spmd.Plan) -> list[spmd.metrics.Move]:
    return [one.move for one in plan.findings if one.move is not None]


def drawn(model: Model, dice: random.Random) -> tuple[str, Spec]:
    """A value of a model, and another layout of it: axes on dims at random."""
    layout = model.layout()
    name = dice.choice([*layout])
    while True:
        places = [dice.randrange(-1, len(layout[name])) for _ in AXES]
        entries = [
            [axis for axis, at in zip(AXES, places, strict=True) if at == dim]
            for dim in range(len(layout[name]))
        ]
        spec = tuple(
            None if not some else some[0] if len(some) == 1 else tuple(some) for some in entries
        )
        if spec != layout[name]:
            return name, spec


class Outcome(NamedTuple):
    """One draw: the value with its bad layout, the largest move, and if the annotation removes
    it."""

    model: str
    value: str
    spec: Spec
    move: spmd.metrics.Move


def outcomes(seed: int, count: int, names: Sequence[str] = ()) -> list[Outcome]:
    """Draws bad layouts of the models in turn until so many move something."""
    dice, mesh = random.Random(seed), Mesh(range(8), (2, 4), AXES)
    found: list[Outcome] = []
    names = names or [*MODELS]
    above = spmd.config.moves_above
    spmd.config.moves_above = MOVES_ABOVE
    try:
        while len(found) < count:
            model = MODELS[name := names[len(found) % len(names)]]
            value, spec = drawn(model, dice)
            layout = model.layout() | {value: spec}
            plan, best = (
                planned(model, mesh, layout, check=False),
                planned(model, mesh, model.layout(), check=False),
            )
            largest = max((move.bytes for move in moves(plan)), default=0)
            if largest and plan.moved_bytes > best.moved_bytes + largest // 2:
                checked = moves(planned(model, mesh, layout, check=True))
                found.append(Outcome(name, value, spec, max(checked, key=lambda move: move.bytes)))
    finally:
        spmd.config.moves_above = above
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--models", nargs="*", default=[], choices=[*MODELS])
    parser.add_argument("--verbose", action="store_true", help="print each draw")
    given = parser.parse_args()
    spmd.simulate(8)
    started = time.perf_counter()
    found = outcomes(given.seed, given.draws, given.models)
    drawn_of, removed = (
        Counter(one.model for one in found),
        Counter(one.model for one in found if one.move.is_checked),
    )
    for one in found if given.verbose else [one for one in found if not one.move.is_checked]:
        became = "removed" if one.move.is_checked else "kept"
        print(f"{became}: {one.model}, {one.value} as {P(*one.spec)!r}\n    {one.move}")
    print(f"{'model':<14}{'draws':>7}{'removed':>9}")
    for name in drawn_of:
        print(f"{name:<14}{drawn_of[name]:>7}{removed[name]:>9}")
    share = removed.total() / drawn_of.total()
    print(
        f"{'all':<14}{drawn_of.total():>7}{removed.total():>9}   {share:.0%}, "
        f"{time.perf_counter() - started:.0f} s"
    )
    sys.exit(share < 0.9)


if __name__ == "__main__":
    main()
