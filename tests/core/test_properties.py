"""Random programs of ops, views, in-place writes, marks and gradients agree with the CPU on every
mesh.

What they are drawn from stands in `drawing.py`; `tests/sweep/programs.py` runs thousands of them.
"""

import pytest
import torch
from drawing import MESHES, SETS, draw_program
from programs import (
    MeshShape,
    Program,
    Step,
    check_alone,
    check_together,
    is_defined,
    on_cpu,
    shrunk,
)

import spmd

PROGRAMS = 8  # of each set of meshes; they share their barriers


class TestRandomPrograms:
    """The same numbers, gradients and version errors as on the CPU; the partitioner is the
    group's."""

    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize(
        "meshes", SETS, ids=lambda meshes: " and ".join(f"{m.shape} {m.devices}" for m in meshes)
    )
    def test_random(self, meshes: tuple[MeshShape, ...]) -> None:
        first = 1_000_000 + PROGRAMS * SETS.index(meshes)
        programs = [draw_program(seed, meshes=meshes) for seed in range(first, first + PROGRAMS)]
        answers = check_together(programs, [on_cpu(program) or {} for program in programs])
        wrong = [
            f"{answer}\n{program.script()}"
            for program, answer in zip(programs, answers, strict=True)
            if answer
        ]
        assert not wrong, "\n".join(wrong)


def program(*steps: Step) -> Program:
    return Program(steps, (MESHES[2],))


SUM = program(
    Step("a0 = data(1, 8).to(dev).requires_grad_()", "a0"),
    Step("mark(a0, 0, ('x',))", None, ("a0",)),
    Step("a1 = a0.expand(2, 8) * 3", "a1", ("a0",)),
    Step("a1.sum().backward()", None, ("a1",)),
)


class TestPrograms:
    """The comparison, texts that are no program, and the way in which one that disagrees is made
    small."""

    def test_a_program_on_both_devices(self) -> None:
        expected = on_cpu(SUM)
        assert expected is not None and expected["a0.grad"].tolist() == [6.0] * 8
        assert check_alone(SUM) is None

    def test_a_wrong_value_is_found_and_shrunk(self) -> None:
        wrong = Step("a0.data.add_(1 if dev == 'cpu' else 2)", None, ("a0",), ("a0",))
        answer = check_alone(program(*SUM.steps, wrong))
        assert answer is not None and answer.startswith("a0: ")
        smaller = shrunk(
            program(*SUM.steps, wrong), lambda shorter: check_alone(shorter) is not None
        )
        assert [step.text for step in smaller.steps] == [SUM.steps[0].text, wrong.text]
        lines: dict[str, object] = {}
        script = smaller.script().replace("spmd.simulate(8)", "pass")
        exec(script, lines)
        assert lines["expected"][0]["a0"].tolist() != lines["actual"][0]["a0"].tolist()  # type: ignore[index]

    def test_an_error_here_alone_is_found(self) -> None:
        wrong = Step("assert dev == 'cpu', 'only there'")
        assert check_alone(program(*SUM.steps, wrong)) == "AssertionError: only there"

    def test_what_torch_leaves_open_is_no_program(self) -> None:
        names = {
            "a0": (base := torch.zeros(6)),
            "a1": base[1:5],
            "a2": base[:4],
            "a3": base.unfold(0, 2, 1),
        }
        assert not is_defined(Step("a1.copy_(a2)", None, ("a1", "a2"), ("a1",)), names)
        assert not is_defined(Step("a3.add_(1)", None, ("a3",), ("a3",)), names)
        assert is_defined(Step("a3.fill_(1)", None, ("a3",), ("a3",), uniform=True), names)
        assert is_defined(Step("a1.add_(a1)", None, ("a1", "a1"), ("a1",)), names)

    def test_one_seed_is_one_program(self) -> None:
        assert draw_program(7, meshes=MESHES[2:3]) == draw_program(7, meshes=MESHES[2:3])

    def test_meshes_are_made_as_said(self) -> None:
        for shape in MESHES:
            assert isinstance(shape.make(), spmd.Mesh)
            assert str(shape) == f"spmd.Mesh({shape.devices}, {shape.shape}, {shape.axes})"
