"""Auto-wrap policies: the modules that become units."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed.fsdp.wrap as torch_wrap
from torch import nn
from torch.distributed.fsdp.wrap import CustomPolicy, ModuleWrapPolicy, _or_policy

import fsdp
import spmd
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
        policy = partial(
            fsdp.lambda_auto_wrap_policy, lambda_fn=lambda module: isinstance(module, nn.Embedding)
        )
        assert names(gpt(), policy) == ["tokens", "positions"]

    def test_any_truth_value(self) -> None:
        policy = partial(
            fsdp.lambda_auto_wrap_policy, lambda_fn=lambda module: list(module.children())
        )
        assert names(nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))), policy) == [
            "1"
        ]


class TestTransformer:
    """transformer_auto_wrap_policy(transformer_layer_cls): the modules of these classes."""

    def test_blocks(self) -> None:
        policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block})
        assert names(gpt(), policy) == ["blocks.0", "blocks.1"]

    def test_nested_classes_children_first(self) -> None:
        policy = partial(
            fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Attention, MLP, Block}
        )
        assert names(gpt(), policy)[:3] == ["blocks.0.attention", "blocks.0.mlp", "blocks.0"]

    def test_subclasses_count(self) -> None:
        class Special(Block):
            pass

        model = nn.ModuleList([Special(GPTConfig(width=16, heads=2))])
        assert names(
            model, partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block})
        ) == ["0"]

    @pytest.mark.parametrize("wrong", [set(), {"Block"}, [nn.Linear(1, 1)]])
    def test_what_is_no_class_is_refused(self, wrong: object) -> None:
        policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls=wrong)
        with pytest.raises(
            TypeError, match="transformer_layer_cls must be a set of module classes"
        ):
            fsdp.plan_units(gpt(), policy)


class TestSizeBased:
    """size_based_auto_wrap_policy(min_num_params, force_leaf_modules, exclude_wrap_modules)."""

    def test_large_modules(self) -> None:
        model = nn.Sequential(nn.Linear(10, 10), nn.Linear(2, 2), nn.Linear(10, 10))
        assert names(model, partial(fsdp.size_based_auto_wrap_policy, min_num_params=100)) == [
            "0",
            "2",
        ]

    def test_what_children_have_taken_does_not_count(self) -> None:
        inner = nn.Sequential(nn.Linear(10, 10), nn.Linear(2, 2))
        assert names(
            nn.Sequential(inner), partial(fsdp.size_based_auto_wrap_policy, min_num_params=100)
        ) == ["0.0"]
        inner = nn.Sequential(nn.Linear(5, 5), nn.Linear(8, 9))
        assert names(
            nn.Sequential(inner), partial(fsdp.size_based_auto_wrap_policy, min_num_params=100)
        ) == ["0"]

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
    """A policy is any callable (module, recurse, nonwrapped_numel) -> bool; torch's own fit, and
    choose the same."""

    def test_asked_before_and_after_the_children(self) -> None:
        calls = []

        def policy(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
            calls.append((type(module).__name__, recurse, nonwrapped_numel))
            return recurse or isinstance(module, nn.Linear)

        model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(4))
        assert [name for name, _ in fsdp.plan_units(model, policy)] == ["0"]
        assert calls == [
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
    def test_torch_s_policies_choose_the_same(
        self, ours: Callable[..., bool], theirs: Callable[..., bool]
    ) -> None:
        assert names(gpt(), ours) == names(gpt(), theirs) != []


class Convs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
        self.head = nn.Linear(8, 4)


def chosen(policy: Any, module: nn.Module | None = None, ignored: Any = ()) -> list[str]:
    return [name for name, _ in fsdp.plan_units(module or Convs(), policy, ignored)]


class TestOrPolicy:
    """or_policy: the modules that any of several policies chooses, ours and torch's."""

    # Python 3.13 warns of a bare partial in a class.
    LINEAR = staticmethod(
        partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={nn.Linear})
    )
    LARGE = staticmethod(partial(fsdp.size_based_auto_wrap_policy, min_num_params=500))

    def test_any(self) -> None:
        assert chosen(partial(fsdp.or_policy, policies=[self.LINEAR, self.LARGE])) == [
            "features.2",
            "head",
        ]
        assert chosen(
            partial(fsdp.or_policy, policies=[{nn.Linear}, ModuleWrapPolicy({nn.ReLU})])
        ) == ["features.1", "head"]

    def test_torchs_own(self) -> None:
        assert chosen(partial(_or_policy, policies=[self.LINEAR, self.LARGE])) == [
            "features.2",
            "head",
        ]

    def test_refused(self) -> None:
        with pytest.raises(
            TypeError, match="inside or_policy each must be a function or a set of classes"
        ):
            chosen(partial(fsdp.or_policy, policies=[CustomPolicy(lambda module: True)]))


class TestTorchsPolicies:
    """ModuleWrapPolicy, CustomPolicy, and a plain set of classes."""

    def test_module_wrap_policy(self) -> None:
        assert chosen(ModuleWrapPolicy({nn.Conv2d})) == ["features.0", "features.2"]

    @pytest.mark.parametrize(
        "classes", [{nn.Conv2d}, [nn.Conv2d], (nn.Conv2d,), frozenset([nn.Conv2d])]
    )
    def test_classes(self, classes: Any) -> None:
        assert chosen(classes) == ["features.0", "features.2"]

    @pytest.mark.parametrize("policy", [3, "Conv2d", nn.Conv2d])
    def test_refused(self, policy: Any) -> None:
        with pytest.raises(
            TypeError, match=r"auto_wrap_policy: expected a (function|set of classes)"
        ):
            chosen(policy)

    def test_custom_policys_keywords(self, mesh8: spmd.Mesh) -> None:
        net = Convs()
        policy = CustomPolicy(
            lambda module: (
                {"reshard_after_forward": False}
                if module is net.head
                else isinstance(module, nn.Conv2d)
            )
        )
        model = fsdp.FullyShardedDataParallel(net, mesh8, auto_wrap_policy=policy)
        units = {unit.name: unit.reshards for unit in fsdp.show(model).units}
        assert units == {"": False, "features.0": True, "features.2": True, "head": False}

    def test_unknown_keywords(self, mesh8: spmd.Mesh) -> None:
        policy = CustomPolicy(
            lambda module: {"reshard": False} if isinstance(module, nn.Linear) else False
        )
        with pytest.raises(
            TypeError,
            match=r"a policy gave head the keyword\(s\) reshard; expected some of min_shard",
        ):
            fsdp.FullyShardedDataParallel(Convs(), mesh8, auto_wrap_policy=policy)


class TestWrapOverrides:
    """_wrap_overrides: a module's own keywords."""

    def test_override(self, mesh8: spmd.Mesh) -> None:
        net = Convs()
        net.head._wrap_overrides = {
            "mp_policy": fsdp.MixedPrecisionPolicy(),
            "min_shard_numel": 10**6,
        }
        bf16 = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        model = fsdp.FullyShardedDataParallel(
            net, mesh8, auto_wrap_policy={nn.Linear, nn.Conv2d}, mp_policy=bf16
        )
        units = {unit.name: unit for unit in fsdp.show(model).units}
        assert units["head"].gathered_bytes == units["head"].kept_bytes == 4 * (8 * 4 + 4)
        assert units["features.0"].gathered_bytes == 2 * (8 * 27 + 8)


class TestFromConfig:
    """policy_from_config: the keys of a Hugging Face configuration."""

    @pytest.mark.parametrize(
        "key", ["transformer_layer_cls_to_wrap", "fsdp_transformer_layer_cls_to_wrap"]
    )
    @pytest.mark.parametrize("names", [["Conv2d", "Linear"], "Conv2d, Linear"])
    def test_classes(self, key: str, names: Any) -> None:
        policy = fsdp.policy_from_config({key: names, "xla": True, "min_num_params": 0})
        assert chosen(policy) == ["features.0", "features.2", "head"]
        net = Convs()
        assert chosen(policy, net, [net.features]) == ["head"]

    @pytest.mark.parametrize("key", ["min_num_params", "fsdp_min_num_params"])
    def test_size(self, key: str) -> None:
        assert chosen(fsdp.policy_from_config({key: 5e2})) == ["features.2"]
        assert chosen(fsdp.policy_from_config({key: 1e7})) == []

    def test_nothing(self) -> None:
        assert fsdp.policy_from_config({"xla": True}) is None

    def test_refused(self) -> None:
        with pytest.raises(
            ValueError,
            match=r"no module of the class\(es\) Block in Convs; its classes are Conv2d, C",
        ):
            chosen(fsdp.policy_from_config({"transformer_layer_cls_to_wrap": ["Block"]}))
        with pytest.raises(
            ValueError, match="expected either transformer_layer_cls_to_wrap or min_num_params"
        ):
            fsdp.policy_from_config(
                {"transformer_layer_cls_to_wrap": ["Conv2d"], "min_num_params": 10}
            )
        with pytest.raises(
            ValueError, match="got the key 'min_num_parms'; did you mean 'min_num_params'"
        ):
            fsdp.policy_from_config({"min_num_parms": 10})
        with pytest.raises(
            ValueError, match="got the key 'fsdp_transformer_layer_cls_wrap'; did you mean 'fsdp_tr"
        ):
            fsdp.policy_from_config({"fsdp_transformer_layer_cls_wrap": "Conv2d"})
        assert (
            fsdp.policy_from_config(
                {"fsdp_offload_params": True, "fsdp_auto_wrap_policy": "NO_WRAP"}
            )
            is None
        )

    def test_classes_that_are_nowhere(self) -> None:
        """Only the root would be a unit; one class of several is enough, as scripts share their
        lists."""
        bound = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={nn.LSTM})
        for policy in ({nn.LSTM}, [nn.LSTM], bound, ModuleWrapPolicy({nn.LSTM})):
            with pytest.raises(
                ValueError,
                match=r"no module of the class\(es\) LSTM in Convs; its classes are Conv2d",
            ):
                chosen(policy)
        assert chosen({nn.LSTM, nn.Conv2d}) == chosen({nn.Conv2d})


class TestRecursion:
    """Policies are called as in PyTorch/XLA's recursive_wrap: with the remainder, without ignored
    parameters."""

    def test_the_remainder_of_what_is_not_ignored(self) -> None:
        net, calls = Convs(), {}

        def policy(module: nn.Module, recurse: bool, unwrapped_params: int) -> bool:
            calls[module, recurse] = unwrapped_params
            return recurse or isinstance(module, nn.Conv2d)

        assert chosen(policy, net, [net.features[0]]) == ["features.2"]
        second, head = 8 * 8 * 9 + 8, 8 * 4 + 4
        assert calls[net, True] == second + head
        assert calls[net.features, True] == second and calls[net.features, False] == 0
        assert (net.features[0], True) not in calls and (net, False) not in calls
