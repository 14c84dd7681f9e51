"""spmd.verify on bodies of `spmd.shard_map`: correct ones pass; a wrong collective is found, and
the right one named.

`mutated_bodies.py` draws hundreds of wrong ones; here are some of each kind. spmd-types, which
infers types of its own, says of each collective in the correct bodies along which axes its operand
and its result differ between shards.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import spmd_types
import spmd_types.checker
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

import spmd
from spmd import Mesh, P
from spmd.loops.body_calls import BodyCalls, CallSite, noting
from spmd.manual import all_reduce
from tests.tools.verification import sharded_bodies
from tests.tools.verification.mutated_bodies import (
    AXES,
    SHAPES,
    Mutant,
    axes_of,
    body_of,
    calls_of,
    every_mutant,
    expected,
    is_equivalent,
    verdict_of,
)
from tests.tools.verification.sharded_bodies import CASES, Case, inputs_of, step_of

BY_NAME = {case.name: case for case in CASES}
SOME = (
    Mutant(BY_NAME["column_and_row"], 0, "dropped", (2, 4)),
    Mutant(BY_NAME["two_layers"], 0, "dropped", (4, 2)),
    Mutant(BY_NAME["gathered_weights"], 1, "dropped", (2, 4)),
    Mutant(BY_NAME["layer_norm"], 1, "dropped", (2, 4)),
    Mutant(BY_NAME["mean_loss"], 0, "reduction", (4, 2)),
    Mutant(BY_NAME["batch_norm"], 0, "doubled", (2, 4)),
    Mutant(BY_NAME["experts"], 0, "doubled", (2, 4)),
    Mutant(BY_NAME["split_embedding"], 0, "axis", (2, 4), ("data",)),
    Mutant(BY_NAME["ring_attention"], 0, "axis", (2, 4), ("data",)),
    Mutant(BY_NAME["sequence_parallel"], 1, "reduction", (2, 4)),
)


class TestCorrect:
    """No false alarm."""

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    def test_is_equal(self, case: Case) -> None:
        meshes = [Mesh(range(8), SHAPES[0], AXES)]
        found = spmd.verify(step_of(case), *inputs_of(case, 1), meshes=meshes, progress=False)
        assert found and not found.repair, str(found)


class TestMutants:
    """A wrong collective is found and named."""

    @pytest.mark.parametrize("mutant", SOME, ids=lambda mutant: f"{mutant.case.name}-{mutant.kind}")
    def test_is_named(self, mutant: Mutant) -> None:
        is_found, text = verdict_of(mutant, body_of(mutant), 1)
        assert is_found
        assert [part for part in expected(mutant) if part not in text] == [], text
        line = calls_of(mutant.case)[mutant.number].lineno
        if mutant.kind != "dropped":
            assert f"sharded_bodies.py:{line} in {mutant.case.name}" in text

    def test_equivalent(self) -> None:
        """A mean of equal values is these values: nothing to find."""
        mutant = Mutant(BY_NAME["mean_loss"], 0, "doubled", (2, 4))
        assert is_equivalent(mutant, body_of(mutant), 1)
        assert verdict_of(mutant, body_of(mutant), 1) == (False, "")

    def test_there_are_enough(self) -> None:
        assert len(CASES) >= 15 and len(list(every_mutant())) >= 300

    def test_a_result_that_may_differ(self) -> None:
        """out_specs has it the same on all shards: an error wherever the body runs; verify names
        what is missing."""

        def body(x: Any, w: Any) -> Any:
            return x @ w

        mesh = Mesh(range(8), (8,), ("model",))
        product = spmd.shard_map(body, None, (P(None, "model"), P("model")), P())
        with pytest.raises(ValueError, match="may differ") as raised:
            spmd.verify(
                product, torch.randn(4, 16), torch.randn(16, 4), meshes=[mesh], progress=False
            )
        (note,) = raised.value.__notes__
        assert (
            "on model=8 all_reduce(x, 'sum', 'model') of the result of matmul" in note
            and "is missing" in note
        )

    def test_no_single_change(self) -> None:
        """Two wrong collectives: the difference is reported, and no change of one is proposed."""

        def body(x: Any, w: Any) -> Any:
            return all_reduce(x.sum() * w.square().sum(), "mean", "model")

        mesh = Mesh(range(8), (8,), ("model",))
        wrong = spmd.shard_map(body, None, (P("model"), P("model")), P())
        found = spmd.verify(
            wrong, torch.rand(8) + 1, torch.rand(8) + 1, meshes=[mesh], progress=False
        )
        assert not found and "spmd.shard_map" in found.first and found.repair == ""


# --- a second opinion -----------------------------------------------------------------------------

Over = tuple[str, ...]


class Typed:
    """The collectives by spmd-types: notes for each call the axes along which its operand and its
    result vary."""

    def __init__(self, mesh: Any):
        self.mesh = mesh
        self.groups = {axis: mesh.get_group(axis) for axis in AXES}
        self.found: dict[CallSite, tuple[Over, Over]] = {}

    def varies(self, tensor: torch.Tensor) -> Over:
        types = {self.axis(axis): one for axis, one in spmd_types.get_local_type(tensor).items()}
        return tuple(axis for axis in AXES if types.get(axis) in (spmd_types.V, spmd_types.P))

    def axis(self, given: Any) -> str:
        return next(axis for axis in AXES if axis in str(given))

    def typed(self, tensor: torch.Tensor, over: Any) -> torch.Tensor:
        types = {self.groups[axis]: spmd_types.V if axis in over else spmd_types.R for axis in AXES}
        return spmd_types.assert_type(tensor, types)  # type: ignore[no-any-return]

    def emulated(self, tensor: torch.Tensor, over: Any) -> torch.Tensor:
        """A copy that varies over these axes, for a collective that spmd-types has not."""
        with spmd_types.no_typecheck():
            made = tensor.detach().clone()
        return self.typed(made, over)

    def noted(self, name: str, tensor: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
        frame = sys._getframe(2)
        self.found.setdefault(
            CallSite(name, frame.f_code, frame.f_lasti), (self.varies(tensor), self.varies(made))
        )
        return made

    def all_reduce(self, x: Any, op: str, axis: Any) -> Any:
        made, axes = x, (axis,) if isinstance(axis, str) else axis
        for one in axes:
            if op == "max":
                made = self.emulated(made, set(self.varies(made)) - {one})
            else:
                partial = spmd_types.reinterpret(
                    made, self.groups[one], src=spmd_types.V, dst=spmd_types.P
                )
                made = spmd_types.all_reduce(
                    partial, self.groups[one], src=spmd_types.P, dst=spmd_types.R
                )
        return self.noted("all_reduce", x, made)

    def all_gather(self, x: Any, dim: int, axis: str) -> Any:
        made = spmd_types.all_gather(x, self.groups[axis], src=spmd_types.S(dim), dst=spmd_types.R)
        return self.noted("all_gather", x, made)

    def reduce_scatter(self, x: Any, op: str, dim: int, axis: str) -> Any:
        partial = spmd_types.reinterpret(x, self.groups[axis], src=spmd_types.V, dst=spmd_types.P)
        made = spmd_types.reduce_scatter(partial, self.groups[axis], dst=spmd_types.S(dim))
        return self.noted("reduce_scatter", x, made)

    def all_to_all(self, x: Any, split_dim: int, concat_dim: int, axis: str) -> Any:
        source, target = spmd_types.S(concat_dim), spmd_types.S(split_dim)
        return self.noted(
            "all_to_all", x, spmd_types.all_to_all(x, self.groups[axis], src=source, dst=target)
        )

    def collective_permute(self, x: Any, pairs: Any, axis: str) -> Any:
        return self.noted("collective_permute", x, self.emulated(x, {*self.varies(x), axis}))

    def axis_index(self, axis: str) -> Any:
        with spmd_types.no_typecheck():
            made = torch.tensor(0)
        return self.typed(made, {axis})

    def axis_size(self, axis: str) -> int:
        return int(self.mesh.get_group(axis).size())


@pytest.fixture
def typed() -> Iterator[Typed]:
    distributed.init_process_group(backend="fake", rank=0, world_size=8)
    try:
        mesh = init_device_mesh("cpu", SHAPES[0], mesh_dim_names=AXES)
        yield Typed(mesh)
    finally:
        distributed.destroy_process_group()


def names_in(spec: Any) -> set[str]:
    return {
        axis for entry in spec for axis in ((entry,) if isinstance(entry, str) else entry or ())
    }


# spmd-types has no rule for a gradient that is taken inside of the typed program.
TYPED = [case for case in CASES if case.name != "own_gradient_step"]


@pytest.mark.filterwarnings("ignore:.*_tensor. is deprecated:FutureWarning")  # spmd-types calls it
@pytest.mark.parametrize("case", TYPED, ids=lambda case: case.name)
def test_types_agree(case: Case, typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The axes along which values vary are those of spmd-types at every collective."""
    calls = BodyCalls()
    with noting(calls):
        given = [one.detach().to("xla") for one in inputs_of(case, 1)]
        spmd.shard_map(case.body, Mesh(range(8), SHAPES[0], AXES), case.in_specs, case.out_specs)(
            *given
        )
    ours = {
        site: (call.operand.over, call.result.over)
        for site, call in calls.calls.items()
        if call.operand is not None and call.result is not None
    }
    kinds: dict[str, Callable[..., Any]] = {
        name: getattr(typed, name)
        for name in (
            *("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
            "collective_permute",
            "axis_index",
            "axis_size",
        )
    }
    for name, function in kinds.items():
        monkeypatch.setattr(sharded_bodies, name, function)
    sizes = dict(zip(AXES, SHAPES[0], strict=True))
    shards = []
    for one, spec in zip(inputs_of(case, 1), case.in_specs, strict=True):
        shape = list(one.shape)
        for dim, entry in enumerate(spec):
            for axis in names_in((entry,)):
                shape[dim] //= sizes[axis]
        shards.append(one.detach()[tuple(slice(0, length) for length in shape)].clone())
    with spmd_types.set_current_mesh(typed.mesh), spmd_types.checker.typecheck():
        case.body(
            *(
                typed.typed(shard, names_in(spec))
                for shard, spec in zip(shards, case.in_specs, strict=True)
            )
        )
    assert typed.found == ours and ours
    assert axes_of(calls_of(case)[0])
