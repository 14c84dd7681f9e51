"""The plan: the modules that are units, and the dim along which a parameter is sharded."""

import pytest
from torch import nn

import fsdp
from spmd import P


class TestParameterSpec:
    """parameter_spec(shape, axis, size): the largest dim that divides, the first of equals."""

    @pytest.mark.parametrize(
        ("shape", "spec"),
        [
            ((64, 10), P("fsdp", None)),
            ((10, 64), P(None, "fsdp")),
            ((16, 64), P(None, "fsdp")),
            ((64, 64), P("fsdp", None)),
            ((8,), P("fsdp")),
            ((3, 16, 8, 16), P(None, "fsdp", None, None)),
        ],
    )
    def test_divisible(self, shape: tuple[int, ...], spec: P) -> None:
        assert fsdp.parameter_spec(shape, "fsdp", 8) == spec

    @pytest.mark.parametrize(
        ("shape", "spec"),
        [
            ((10, 7), P("fsdp", None)),  # padded to 16
            ((9, 100), P(None, "fsdp")),
            ((1001, 8), P(None, "fsdp")),  # an even dim before a larger uneven one
        ],
    )
    def test_uneven(self, shape: tuple[int, ...], spec: P) -> None:
        assert fsdp.parameter_spec(shape, "fsdp", 8) == spec

    @pytest.mark.parametrize("shape", [(), (7,), (1,), (0,), (0, 4), (7, 3), (2, 2, 2)])
    def test_too_small_is_whole_everywhere(self, shape: tuple[int, ...]) -> None:
        assert fsdp.parameter_spec(shape, "fsdp", 8) == P(*(None for _ in shape))

    def test_one_device(self) -> None:
        assert fsdp.parameter_spec((64, 64), "fsdp", 1) == P(None, None)

    def test_the_axis_has_any_name(self) -> None:
        assert fsdp.parameter_spec((4, 2), "zero", 4) == P("zero", None)


class TestPlanUnits:
    """plan_units(module, policy, ignored_modules): names and modules below the root, each once,
    children first."""

    def model(self) -> nn.Sequential:
        return nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))

    def test_no_policy_no_units(self) -> None:
        assert fsdp.plan_units(self.model(), None) == []

    def test_the_root_is_not_listed(self) -> None:
        assert fsdp.plan_units(nn.Linear(2, 2), fsdp.always_wrap_policy) == []

    def test_names_are_paths_of_the_modules(self) -> None:
        model = self.model()
        for name, unit in fsdp.plan_units(model, fsdp.always_wrap_policy):
            assert model.get_submodule(name) is unit

    def test_a_shared_module_is_listed_once(self) -> None:
        shared = nn.Linear(2, 2)
        model = nn.ModuleDict({"first": shared, "second": shared, "third": nn.Sequential(shared)})
        assert [name for name, _ in fsdp.plan_units(model, fsdp.always_wrap_policy)] == [
            "first",
            "third",
        ]

    def test_ignored_modules_and_what_is_below_them(self) -> None:
        model = self.model()
        assert [
            name for name, _ in fsdp.plan_units(model, fsdp.always_wrap_policy, [model[1]])
        ] == ["0"]

    def test_nothing_is_changed(self) -> None:
        model = self.model()
        before = {name: dict(vars(module)) for name, module in model.named_modules()}
        fsdp.plan_units(model, fsdp.always_wrap_policy)
        assert {name: dict(vars(module)) for name, module in model.named_modules()} == before
