"""What was silently wrong elsewhere is equal to one device here:
tests/tools/verification/reports.py on six meshes."""

from typing import Any

import pytest
import torch
from support import ROOT
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path

import fsdp  # noqa: F401  (rules with units)
import spmd
from spmd import Mesh
from tests.tools.verification.reports import AXES, REPORTS, SHAPES, Report

BOUND = 1e-12  # of a difference, relative to the largest element

NAMED = [pytest.param(made, id=made.__name__) for made in REPORTS]
MESHES = [pytest.param(shape, id="x".join(map(str, shape))) for shape in SHAPES]
# A mesh for each report, so that neighbours have different ones.
SOME = [
    pytest.param(made, SHAPES[n % len(SHAPES)], id=made.__name__) for n, made in enumerate(REPORTS)
]


def values_of(report: Report, mesh: Mesh | None) -> dict[str, Tensor]:
    """What a step returns, its gradients, and parameters, buffers and momenta after it; on the CPU
    without a mesh."""
    step, model, batch = report.step, report.model, report.batch
    if mesh is not None:
        report.rules.apply(model, mesh)
        model.to("xla")
        batch = tuple(one.to("xla") for one in batch)
    torch.manual_seed(1)
    found: dict[str, Any] = {
        keystr(path): value for path, value in tree_flatten_with_path(step(*batch))[0]
    }
    found |= {f"gradient {name}": one.grad for name, one in model.named_parameters()}
    found |= {f"after {name}": one for name, one in model.state_dict().items()}
    return {name: value.detach().cpu() for name, value in found.items()}


def drawn(made: Any) -> Report:
    torch.manual_seed(0)
    return made()


def check(made: Any, shape: tuple[int, ...]) -> None:
    report = drawn(made)
    one_device = Mesh([0], (1, 1, 1), AXES) if report.draws else None
    expected = values_of(report, one_device)
    actual = values_of(drawn(made), Mesh(range(8), shape, AXES))
    assert actual.keys() == expected.keys()
    for name, right in expected.items():
        assert actual[name].dtype == right.dtype and right.dtype != torch.float32, name
        off, size = (
            one.double().abs().max() for one in (actual[name].double() - right.double(), right)
        )
        assert off <= BOUND * size, f"{name}: differs by {off:.3g}, largest element {size:.3g}"


@pytest.mark.parametrize(("made", "shape"), SOME)
def test_on_a_mesh(made: Any, shape: tuple[int, ...]) -> None:
    check(made, shape)


def test_a_small_difference_is_seen() -> None:
    """A step that is off by ten times the bound, on the mesh alone, fails."""

    def off_on_the_device() -> Report:
        made = REPORTS[2]()
        return made._replace(
            step=lambda x: made.step(x) * (1 + 10 * BOUND * (x.device.type == "xla"))
        )

    with pytest.raises(AssertionError, match="differs by"):
        check(off_on_the_device, SHAPES[0])


def test_the_page_has_each_report() -> None:
    page = (ROOT / "docs/wrong-numbers.md").read_text()
    assert [name for made in REPORTS if page.count(name := f": `{made.__name__}` |") != 1] == []


@pytest.mark.long
@pytest.mark.parametrize("shape", MESHES)
@pytest.mark.parametrize("made", NAMED)
def test_on_each_mesh(made: Any, shape: tuple[int, ...]) -> None:
    check(made, shape)


@pytest.mark.long
@pytest.mark.parametrize("made", NAMED)
def test_verified(made: Any) -> None:
    """`spmd.verify` agrees, in float64 and in the step's own dtype, under both partitioners."""
    report = drawn(made)
    found = spmd.verify(
        report.step,
        *report.batch,
        meshes=[Mesh(range(8), shape, AXES) for shape in SHAPES],
        rules=[report.rules],
    )
    found.raise_on_difference()
    assert len({row.layout for row in found.rows}) == len(SHAPES)
