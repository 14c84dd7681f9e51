"""Auto-wrap policies: which modules become units."""

from collections.abc import Callable
from functools import partial

import pytest
import torch.distributed.fsdp.wrap as torch_wrap
from torch import nn

import fsdp
from recipes.gpt import GPT, MLP, Attention, Block, GPTConfig


def gpt() -> GPT:
    return GPT(GPTConfig(layers=2, width=16, heads=2, sequence=8, vocabulary=32))


def names(module: nn.Module, policy: Callable[..., bool]) -> list[str]:
    return [name for name, _ in fsdp.plan_units(module, policy)]


class TestAlways:
    """always_wrap_policy: every module below the root becomes a unit, children before parents."""

    def test_every_module_once(self) -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
        assert names(model, fsdp.always_wrap_policy) == ["0", "1.0", "1.1", "1"]


class TestLambda:
    """lambda_auto_wrap_policy(lambda_fn): the modules for which lambda_fn is true."""

    def test_by_predicate(self) -> None:
        policy = partial(fsdp.lambda_auto_wrap_policy, lambda_fn=lambda module: isinstance(module, nn.Embedding))
        assert names(gpt(), policy) == ["tokens", "positions"]

    def test_any_truth_value(self) -> None:
        policy = partial(fsdp.lambda_auto_wrap_policy, lambda_fn=lambda module: list(module.children()))
        assert names(nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))), policy) == ["1"]


class TestTransformer:
    """transformer_auto_wrap_policy(transformer_layer_cls): the modules of these classes."""

    def test_blocks(self) -> None:
        policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block})
        assert names(gpt(), policy) == ["blocks.0", "blocks.1"]

    def test_nested_classes_children_first(self) -> None:
        policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Attention, MLP, Block})
        assert names(gpt(), policy)[:3] == ["blocks.0.attention", "blocks.0.mlp", "blocks.0"]

    def test_subclasses_count(self) -> None:
        class Special(Block):
            pass

        model = nn.ModuleList([Special(GPTConfig(width=16, heads=2))])
        assert names(model, partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block})) == ["0"]

    @pytest.mark.parametrize("wrong", [set(), {"Block"}, [nn.Linear(1, 1)]])
    def test_what_is_no_class_is_refused(self, wrong: object) -> None:
        policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls=wrong)
        with pytest.raises(TypeError, match="transformer_layer_cls must be a set of module classes"):
            fsdp.plan_units(gpt(), policy)


class TestSizeBased:
    """size_based_auto_wrap_policy(min_num_params, force_leaf_modules, exclude_wrap_modules)."""

    def test_large_modules(self) -> None:
        model = nn.Sequential(nn.Linear(10, 10), nn.Linear(2, 2), nn.Linear(10, 10))
        assert names(model, partial(fsdp.size_based_auto_wrap_policy, min_num_params=100)) == ["0", "2"]

    def test_what_children_have_taken_does_not_count(self) -> None:
        inner = nn.Sequential(nn.Linear(10, 10), nn.Linear(2, 2))
        assert names(nn.Sequential(inner), partial(fsdp.size_based_auto_wrap_policy, min_num_params=100)) == ["0.0"]
        inner = nn.Sequential(nn.Linear(5, 5), nn.Linear(8, 9))
        assert names(nn.Sequential(inner), partial(fsdp.size_based_auto_wrap_policy, min_num_params=100)) == ["0"]

    def test_default_is_a_hundred_million(self) -> None:
        assert names(gpt(), fsdp.size_based_auto_wrap_policy) == []

    def test_leaves_are_not_looked_into(self) -> None:
        model = nn.Sequential(nn.MultiheadAttention(16, 2))
        policy = partial(fsdp.size_based_auto_wrap_policy, min_num_params=100)
        assert names(model, policy) == [], "as in torch, not a unit either"
        assert names(model, partial(policy, force_leaf_modules=set())) == ["0.out_proj", "0"]

    def test_containers_without_forward_are_not_units(self) -> None:
        model = nn.Sequential(nn.ModuleList([nn.Linear(5, 5) for _ in range(10)]))
        policy = partial(fsdp.size_based_auto_wrap_policy, min_num_params=100)
        assert names(model, policy) == []
        assert names(model, partial(policy, exclude_wrap_modules=set())) == ["0"]

    def test_the_sets_can_be_read_on_the_policy(self) -> None:
        assert nn.MultiheadAttention in fsdp.size_based_auto_wrap_policy.FORCE_LEAF_MODULES
        assert nn.ModuleList in fsdp.size_based_auto_wrap_policy.EXCLUDE_WRAP_MODULES


class TestProtocol:
    """A policy is any callable (module, recurse, nonwrapped_numel) -> bool; torch's own fit, and choose the same."""

    def test_asked_before_and_after_the_children(self) -> None:
        asked = []

        def policy(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
            asked.append((type(module).__name__, recurse, nonwrapped_numel))
            return recurse or isinstance(module, nn.Linear)

        model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(4))
        assert [name for name, _ in fsdp.plan_units(model, policy)] == ["0"]
        assert asked == [
            ("Sequential", True, 20),
            ("Linear", True, 12),
            ("Linear", False, 12),
            ("LayerNorm", True, 8),
            ("LayerNorm", False, 8),
        ]

    def test_no_recursion_no_units_below(self) -> None:
        assert fsdp.plan_units(gpt(), lambda module, recurse, nonwrapped_numel: not recurse) == []

    @pytest.mark.parametrize(
        ("ours", "theirs"),
        [
            (
                partial(fsdp.size_based_auto_wrap_policy, min_num_params=700),
                partial(torch_wrap.size_based_auto_wrap_policy, min_num_params=700),
            ),
            (
                partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block}),
                partial(torch_wrap.transformer_auto_wrap_policy, transformer_layer_cls={Block}),
            ),
            (
                partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block}),
                torch_wrap.ModuleWrapPolicy({Block}),
            ),
            (fsdp.always_wrap_policy, torch_wrap.always_wrap_policy),
        ],
    )
    def test_torch_s_policies_choose_the_same(self, ours: Callable[..., bool], theirs: Callable[..., bool]) -> None:
        assert names(gpt(), ours) == names(gpt(), theirs) != []
