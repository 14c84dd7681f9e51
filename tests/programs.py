"""Random programs as data: steps of Python text that run on the CPU and on the device, are
compared, and shrink.

How they are drawn stands in `drawing.py`. A program prints as a script that shows what it found.
"""

import contextlib
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

import spmd


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a program.

    makes: the variable that it binds. reads: all variables that it needs. writes: those whose
    memory it changes. uniform: it writes one number everywhere. pauses: it is a barrier, or reads a
    value.
    """

    text: str
    makes: str | None = None
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    uniform: bool = False
    pauses: bool = False


SYNC = Step("sync()", pauses=True)


@dataclass(frozen=True, slots=True)
class MeshShape:
    """A mesh as data: device ids in its order, its shape, its axes."""

    devices: tuple[int, ...]
    shape: tuple[int, ...]
    axes: tuple[str, ...]

    def __str__(self) -> str:
        return f"spmd.Mesh({self.devices}, {self.shape}, {self.axes})"

    def make(self) -> spmd.Mesh:
        return spmd.Mesh(self.devices, self.shape, self.axes)


# What the steps may call besides torch; `dev` is "cpu" or "xla", and on the CPU an annotation does
# nothing.
PRELUDE = '''
def data(start, *shape, dtype=torch.float64):
    """Small whole numbers, so that no sum of them is rounded."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7 + start) % 11 - 5).reshape(shape).to(dtype)


def mark(tensor, mesh, spec):
    assert len(spec) == tensor.dim()
    return tensor if dev == "cpu" else spmd.mark_sharding(tensor, meshes[mesh], spec)


def unmark(tensor):
    return tensor if dev == "cpu" else spmd.clear_sharding(tensor)


def use(tensor, mesh, spec):
    assert len(spec) == tensor.dim()
    return (
        contextlib.nullcontext()
        if dev == "cpu"
        else spmd.use_sharding([tensor], meshes[mesh], spec)
    )


def sync():
    if dev == "xla":
        spmd.sync()


def see(tensor):
    seen.append(tensor.detach().cpu().clone())
'''

_PRELUDE = compile(PRELUDE, "prelude", "exec")


@dataclass(frozen=True, slots=True)
class Program:
    """Steps over meshes that share their devices. seed: what it was drawn from."""

    steps: tuple[Step, ...]
    meshes: tuple[MeshShape, ...]
    seed: int = 0

    def __str__(self) -> str:
        return "\n".join(step.text for step in self.steps)

    def script(self) -> str:
        """A script that runs the program on both devices and prints what differs."""
        return SCRIPT.format(
            meshes=", ".join(map(str, self.meshes)),
            prelude=textwrap.indent(PRELUDE.strip(), "    "),
            steps=textwrap.indent(str(self), "    "),
            seed=self.seed,
        )


SCRIPT = """\
# program {seed}
import contextlib

import torch

import spmd

spmd.simulate(8)
meshes = [{meshes}]


def program(dev):
    seen = []

{prelude}

{steps}
    names = {{name: value for name, value in locals().items() if isinstance(value, torch.Tensor)}}
    return names, seen


expected, actual = program("cpu"), program("xla")
for name, value in [*expected[0].items(), *enumerate(expected[1])]:
    other = actual[0][name] if name in expected[0] else actual[1][name]
    there = other.detach(), other.detach().clone()
    if not all(torch.equal(value.detach(), one.cpu()) for one in there):
        print(name, "on the CPU:", value, "here:", other, sep="\\n")
"""


class Run:
    """A program on one device, advanced from pause to pause, so that many can share each
    barrier."""

    def __init__(self, program: Program, device: str, meshes: Sequence[spmd.Mesh] = ()):
        self.steps = program.steps
        self.names: dict[str, Any] = {
            "torch": torch,
            "spmd": spmd,
            "contextlib": contextlib,
            "dev": device,
            "meshes": meshes,
            "seen": [],
        }
        exec(_PRELUDE, self.names)
        self._known = set(self.names)
        self.done = 0
        self.copies: dict[str, torch.Tensor] = {}

    def step(self, step: Step) -> None:
        """Runs one step, whether it is of the program or not."""
        exec(compile(step.text, "program", "exec"), self.names)

    def advance(self) -> bool:
        """Records up to the next pause, which `pause` does; False at the end."""
        for step in self.steps[self.done :]:
            if step.pauses:
                return True
            self.step(step)
            self.done += 1
        self.copy()
        return False

    def pause(self) -> None:
        """Does the pause that `advance` came to, just after a barrier."""
        step = self.steps[self.done]
        if step != SYNC:
            self.step(step)
        self.done += 1

    def copy(self) -> None:
        """Reads every view on the device, too: a read on the host takes it out of its base
        there."""
        for name, value in self.results().items():
            if value._is_view():
                self.copies[name] = value.detach().clone()

    def finish(self) -> None:
        """Runs what is left, with each barrier where the program has it."""
        for step in self.steps[self.done :]:
            self.step(step)
        self.done = len(self.steps)
        self.copy()

    def results(self) -> dict[str, torch.Tensor]:
        """Every tensor that the program made and still has, its gradient, and what it read on its
        way."""
        found: dict[str, torch.Tensor] = {}
        for name, value in self.names.items():
            if name not in self._known and isinstance(value, torch.Tensor):
                found[name] = value
                if value.is_leaf and value.grad is not None:
                    found[f"{name}.grad"] = value.grad
        return found | {f"seen[{i}]": value for i, value in enumerate(self.names["seen"])}


# --- memory: what torch leaves undefined ----------------------------------------------------------


def places(tensor: torch.Tensor) -> torch.Tensor:
    """For each element of a CPU tensor, the byte in its storage at which it begins."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    every = torch.arange(size).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return every * tensor.element_size()


def repeats(tensor: torch.Tensor) -> bool:
    """True for a CPU tensor that shows one place in memory as several elements."""
    found = places(tensor).reshape(-1)
    return found.unique().numel() < found.numel()


def shares(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True for two CPU tensors that share memory."""
    if one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return False
    width = min(one.element_size(), other.element_size())

    def filled(tensor: torch.Tensor) -> set[int]:
        begins = places(tensor).reshape(-1).tolist()
        return {begin + more for begin in begins for more in range(0, tensor.element_size(), width)}

    return not filled(one).isdisjoint(filled(other))


def covers(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True for a CPU tensor with every place in memory that another one of its storage and dtype
    has."""
    return set(places(other).reshape(-1).tolist()) <= set(places(one).reshape(-1).tolist())


def _same_layout(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.shape, one.stride(), one.storage_offset(), one.dtype) == (
        other.shape,
        other.stride(),
        other.storage_offset(),
        other.dtype,
    )


def is_defined(step: Step, names: dict[str, Any]) -> bool:
    """True for a step that torch defines: not where memory is written twice, or read while it is
    written."""
    if any(name not in names for name in step.reads):
        return False
    for name in step.writes:
        target = names[name]
        if not step.uniform and repeats(target):
            return False
        for other in step.reads:
            operand = names[other]
            if (
                other == name
                or not isinstance(operand, torch.Tensor)
                or not shares(target, operand)
            ):
                continue
            if not _same_layout(target, operand) or other in step.writes:
                return False
    return True


# No value, nor a sum of products of two, comes near the whole numbers that float32 cannot tell
# apart.
LARGEST = 1 << 10


def is_small(run: Run) -> bool:
    """True while every number is finite and small."""
    return all(
        not value.numel() or bool((value.detach().abs() <= LARGEST).all())
        for value in run.results().values()
        if value.dtype is not torch.bool
    )


# --- comparing ------------------------------------------------------------------------------------


def on_cpu(program: Program) -> dict[str, torch.Tensor] | None:
    """The program's results on the CPU, or None where it does not run there or torch does not say
    what it does."""
    run = Run(program, "cpu")
    for step in program.steps:
        if not is_defined(step, run.names):
            return None
        try:
            run.step(step)
        except Exception:
            return None
    return run.results() if is_small(run) else None


def difference(run: Run, expected: dict[str, torch.Tensor]) -> str | None:
    """The first result of a run on the device that is not the CPU's, in words; None where all
    agree."""
    actual = run.results()
    if actual.keys() != expected.keys():
        return f"results {sorted(actual)}, on the CPU {sorted(expected)}"
    for name, there in expected.items():
        here = actual[name]
        for what in ("shape", "dtype", "requires_grad"):
            if getattr(here, what) != getattr(there, what):
                return f"{name}: {what} {getattr(here, what)}, on the CPU {getattr(there, what)}"
        there = there.detach().resolve_conj().resolve_neg()
        for value in (here, run.copies.get(name, here)):
            if not torch.equal(value.detach().cpu(), there):
                return f"{name}: {value.tolist()}, on the CPU {there.tolist()}"
    return None


def check_together(
    programs: Sequence[Program], expected: Sequence[dict[str, torch.Tensor]]
) -> list[str | None]:
    """Runs programs whose barriers are shared, and says of each what differs. An error in one is an
    answer, too; one in a shared barrier is raised."""
    meshes = [[shape.make() for shape in program.meshes] for program in programs]
    runs = [Run(program, "xla", mine) for program, mine in zip(programs, meshes, strict=True)]
    answers: list[str | None] = [None] * len(runs)
    going = dict(enumerate(runs))

    def each(act: Callable[[Run], bool | None]) -> None:
        for i, run in list(going.items()):
            try:
                if act(run) is False:
                    del going[i]
            except Exception as error:
                answers[i] = f"{type(error).__name__}: {error}"
                del going[i]

    while going:
        each(Run.advance)
        spmd.sync()
        each(Run.pause)
    for i, run in enumerate(runs):
        answers[i] = answers[i] or difference(run, expected[i])
    return answers


def check_alone(program: Program) -> str | None:
    """The differences of a program that runs by itself, with its barriers where it has them; errors
    among them."""
    expected = on_cpu(program)
    if expected is None:
        return None
    run = Run(program, "xla", [shape.make() for shape in program.meshes])
    try:
        run.finish()
        return difference(run, expected)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# --- shrinking ------------------------------------------------------------------------------------


def shrunk(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The program without the steps that it fails without, too."""
    size = len(program.steps) // 2
    while size:
        for shorter in _without(program, size):
            if fails(shorter):
                program = shorter
                break
        else:
            size //= 2
    return program


def _without(program: Program, size: int) -> Iterator[Program]:
    """The program without each run of so many steps, from the end on."""
    for start in reversed(range(0, len(program.steps) - size + 1)):
        yield replace(program, steps=program.steps[:start] + program.steps[start + size :])
