"""Keywords of other FSDPs: their translation, one warning for those without a meaning, an error for
unknown ones."""

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support import check
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, MixedPrecision, ShardingStrategy
from wrapped import FSDP, POLICY, Layer, Net, same_training, spec, train

import fsdp
import spmd
from spmd.core.programs import cache

XLA, SPMD = fsdp.XlaFullyShardedDataParallel, fsdp.SpmdFullyShardedDataParallel


@pytest.fixture
def silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def reshards(model: nn.Module) -> list[bool]:
    return [unit.reshards for unit in fsdp.show(model).units]


class TestShardingStrategy:
    """sharding_strategy."""

    @pytest.mark.parametrize("strategy", [ShardingStrategy.FULL_SHARD, "FULL_SHARD", None])
    def test_full_shard(self, strategy: Any, silent: None, mesh8: spmd.Mesh) -> None:
        model = FSDP(Net(), mesh8, auto_wrap_policy=POLICY, sharding_strategy=strategy)
        assert reshards(model) == [False, True, True] and spec(model.head.weight) == (None, "fsdp")

    def test_shard_grad_op(self, silent: None, mesh8: spmd.Mesh) -> None:
        model = FSDP(
            Net(), mesh8, auto_wrap_policy=POLICY, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP
        )
        assert reshards(model) == [False, False, False] and spec(model.head.weight) == (
            None,
            "fsdp",
        )

    def test_no_shard(self, silent: None, mesh8: spmd.Mesh) -> None:
        model = same_training(Net, mesh8, 16, 16, sharding_strategy=ShardingStrategy.NO_SHARD)
        assert spec(model.head.weight) == (None, None)

    def test_hybrid_shard(self, silent: None, mesh2x4: spmd.Mesh, mesh8: spmd.Mesh) -> None:
        model = same_training(
            Net, mesh2x4, 16, 16, auto_wrap_policy=POLICY, sharding_strategy="HYBRID_SHARD"
        )
        assert spec(model(torch.randn(16, 16).to("xla"))) == (("data", "fsdp"), None)
        with pytest.raises(ValueError, match="expected a mesh of two axes"):
            FSDP(Net(), mesh8, sharding_strategy=ShardingStrategy.HYBRID_SHARD)

    def test_unknown(self, mesh8: spmd.Mesh) -> None:
        with pytest.raises(ValueError, match="expected FULL_SHARD, SHARD_GRAD_OP"):
            FSDP(Net(), mesh8, sharding_strategy="ZERO")


class TestMixedPrecision:
    """mixed_precision: torch's own value."""

    def test_becomes_a_policy(self, silent: None, mesh8: spmd.Mesh) -> None:
        requested = MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16)
        model = FSDP(Net(), mesh8, mixed_precision=requested)
        assert model(torch.randn(16, 16).to("xla")).dtype == model.scale.dtype == torch.bfloat16
        assert model.head.weight.dtype == torch.float32

    def test_beside_a_policy(self, mesh8: spmd.Mesh) -> None:
        with pytest.raises(TypeError, match="got both mixed_precision and mp_policy"):
            FSDP(
                Net(),
                mesh8,
                mixed_precision=MixedPrecision(),
                mp_policy=fsdp.MixedPrecisionPolicy(),
            )


class TestCpuOffload:
    """cpu_offload."""

    def test_becomes_a_policy(self, silent: None, mesh8: spmd.Mesh) -> None:
        model = FSDP(Net(), mesh8, cpu_offload=CPUOffload(offload_params=True))
        assert spmd.get_sharding(model.head.weight).memory == "pinned_host"
        assert (
            spmd.get_sharding(FSDP(Net(), mesh8, cpu_offload=CPUOffload()).head.weight).memory
            == "device"
        )


class TestIgnoredStates:
    """ignored_states: parameters or modules."""

    def test_both(self, silent: None, mesh8: spmd.Mesh) -> None:
        net = Net()
        model = FSDP(
            net, mesh8, auto_wrap_policy=POLICY, ignored_states=[net.head.weight, net.blocks[0]]
        )
        assert spec(net.head.weight) == spec(net.blocks[0].up.weight) == (None, None)
        assert spec(net.blocks[1].up.weight) == ("fsdp", None)
        assert [name for name, _ in model.units] == ["blocks.1"]
        with pytest.raises(TypeError, match="expected parameters or modules alone"):
            FSDP(Net(), mesh8, ignored_states=["head"])


class TestDeviceMesh:
    """device_mesh: a mesh under torch's name."""

    def test_is_the_mesh(self, silent: None, mesh8: spmd.Mesh) -> None:
        assert FSDP(Net(), device_mesh=mesh8).mesh is mesh8


class TestWithoutMeaning:
    """process_group, device_id, sync_module_states, forward_prefetch, backward_prefetch,
    limit_all_gathers, use_orig_params: named in one warning where they have an effect in torch."""

    def test_named_together(self, mesh8: spmd.Mesh) -> None:
        with pytest.warns(UserWarning) as said:
            FSDP(
                Net(),
                mesh8,
                device_id=0,
                sync_module_states=True,
                backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
                forward_prefetch=True,
                use_orig_params=False,
                limit_all_gathers=False,
                process_group=object(),
            )
        (warning,) = said
        names = (
            "device_id sync_module_states backward_prefetch forward_prefetch use_orig_params "
            "limit_all_gathers"
        )
        assert all(name in str(warning.message) for name in [*names.split(), "process_group"])
        assert warning.filename == __file__

    def test_what_is_so_anyway(self, silent: None, mesh8: spmd.Mesh) -> None:
        FSDP(
            Net(),
            mesh8,
            use_orig_params=True,
            limit_all_gathers=True,
            sync_module_states=False,
            device_id=None,
        )

    def test_unknown(self, mesh8: spmd.Mesh) -> None:
        with pytest.raises(
            TypeError, match=r"unexpected keyword argument 'auto_wrap_polcy'; did you mean 'auto_w"
        ):
            FSDP(Net(), mesh8, auto_wrap_polcy=POLICY)
        with pytest.raises(TypeError, match="did you mean 'compute_dtype'"):
            XLA(Net(), mesh=mesh8, compute_dtyp=torch.bfloat16)


class TestParamInitFn:
    """param_init_fn: initialises modules that were on meta."""

    def test_called_for_each_module_on_meta(self, mesh8: spmd.Mesh) -> None:
        with torch.device("meta"):
            net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        seen = []

        def init(module: nn.Module) -> None:
            seen.append(module)
            module.to_empty(device="xla", recurse=False)
            nn.init.constant_(module.weight, 0.5)
            nn.init.zeros_(module.bias)

        model = FSDP(net, mesh8, param_init_fn=init)
        assert seen == [model[0], model[2]] and spec(model[0].weight) == ("fsdp", None)
        check(model(torch.ones(8, 8).to("xla")), torch.full((8, 8), 32.0))


class TestAutoWrapperCallable:
    """auto_wrapper_callable: takes the module and keywords, returns the module that takes its
    place."""

    @pytest.mark.parametrize("wrapper", [FSDP, XLA, SPMD])
    def test_checkpointed_units(self, wrapper: type, mesh8: spmd.Mesh) -> None:
        def checkpointed(module: nn.Module, *args: Any, **how: Any) -> nn.Module:
            return wrapper(fsdp.checkpoint_module(module), *args, **how)

        plain, x = Net(), torch.randn(16, 16)
        model = wrapper(
            copy.deepcopy(plain),
            mesh=mesh8,
            auto_wrap_policy={Layer},
            auto_wrapper_callable=checkpointed,
        )
        assert list(model.state_dict()) == list(plain.state_dict())
        assert [name for name, _ in model.named_parameters()] == [
            name for name, _ in plain.named_parameters()
        ]
        assert reshards(model) == [False, True, True]
        assert train(model, x.to("xla")) == pytest.approx(train(plain, x), rel=1e-5)

    def test_another_module_in_its_place(self, mesh8: spmd.Mesh) -> None:
        plain, x = Net(), torch.randn(16, 16)
        model = FSDP(
            copy.deepcopy(plain),
            mesh8,
            auto_wrap_policy={Layer},
            auto_wrapper_callable=lambda module, **how: spmd.remat(module),
        )
        assert (
            type(model.blocks[0]).__name__ == "CheckpointWrapper"
            and len(fsdp.show(model).units) == 3
        )
        assert list(model.state_dict()) == list(plain.state_dict())
        assert train(model, x.to("xla")) == pytest.approx(train(plain, x), rel=1e-5)

    def test_not_a_module(self, mesh8: spmd.Mesh) -> None:
        with pytest.raises(
            TypeError, match="auto_wrapper_callable must return a module, got NoneType"
        ):
            FSDP(
                Net(),
                mesh8,
                auto_wrap_policy={Layer},
                auto_wrapper_callable=lambda module, **how: None,
            )


class TestActivationCheckpointing:
    """checkpoint_module and torch's apply_activation_checkpointing, before or after wrapping."""

    def temporaries(self, model: nn.Module, width: int) -> int:
        model(torch.randn(512, width).to("xla")).square().mean().backward()
        spmd.sync()
        program = cache.last_program()
        assert program is not None and program.record is not None
        return program.record.temp_bytes

    @pytest.mark.parametrize("how", ["module", "before", "after", "policy"])
    def test_same_numbers(self, how: str, mesh8: spmd.Mesh) -> None:
        plain, x = Net(), torch.randn(16, 16)
        model: nn.Module = copy.deepcopy(plain)
        if how in ("module", "policy"):
            for block in model.blocks:
                fsdp.checkpoint_module(block, policy="dots" if how == "policy" else None)

        def is_layer(module: nn.Module) -> bool:
            return isinstance(module, Layer)

        if how == "before":
            apply_activation_checkpointing(model, check_fn=is_layer)
        model = FSDP(model, mesh8, auto_wrap_policy={Layer})
        if how == "after":
            apply_activation_checkpointing(model, check_fn=is_layer)
        assert list(model.state_dict()) == list(plain.state_dict())
        assert train(model, x.to("xla")) == pytest.approx(train(plain, x), rel=1e-5)

    def test_memory(self, mesh8: spmd.Mesh) -> None:
        """The activations that blocks keep between forward and backward are gone."""
        width, blocks = 64, 6
        kept = self.temporaries(FSDP(Net(width, blocks), mesh8, auto_wrap_policy={Layer}), width)
        net = Net(width, blocks)
        for block in net.blocks:
            fsdp.checkpoint_module(block)
        assert self.temporaries(FSDP(net, mesh8, auto_wrap_policy={Layer}), width) < 0.7 * kept

    def test_refused(self) -> None:
        layer = fsdp.checkpoint_module(nn.Linear(2, 2))
        with pytest.raises(ValueError, match="Linear is checkpointed already"):
            fsdp.checkpoint_module(layer)
        with pytest.raises(TypeError, match=r"expected a torch.nn.Module, got function"):
            fsdp.checkpoint_module(lambda: None)
        assert copy.deepcopy(layer).forward.module is not layer


class TestXla:
    """XlaFullyShardedDataParallel: the keywords of FSDP v1."""

    def test_dtypes(self, silent: None, mesh8: spmd.Mesh) -> None:
        model = XLA(Net(), mesh=mesh8, compute_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
        assert model(torch.randn(16, 16).to("xla")).dtype == model.scale.dtype == torch.bfloat16
        assert isinstance(model, FSDP)

    def test_fp32_reduce_scatter(self, silent: None, mesh8: spmd.Mesh) -> None:
        XLA(Net(), mesh=mesh8, fp32_reduce_scatter=True)
        XLA(Net(), mesh=mesh8, fp32_reduce_scatter=False, compute_dtype=torch.bfloat16)

    def test_shard_param_on_dim_0(self, silent: None, mesh8: spmd.Mesh) -> None:
        assert spec(XLA(Net(), mesh=mesh8, shard_param_on_dim_0=True).head.weight) == ("fsdp", None)
        assert spec(XLA(Net(), mesh=mesh8, shard_param_on_dim_0=False).head.weight) == (
            None,
            "fsdp",
        )

    def test_reshard_after_forward(self, silent: None, mesh8: spmd.Mesh) -> None:
        assert reshards(XLA(Net(), False, mesh=mesh8, auto_wrap_policy=POLICY)) == [
            False,
            False,
            False,
        ]
        assert reshards(XLA(Net(), mesh=mesh8, auto_wrap_policy=POLICY)) == [False, True, True]

    def test_without_meaning(self, mesh8: spmd.Mesh) -> None:
        with pytest.warns(UserWarning) as said:
            XLA(
                Net(),
                mesh=mesh8,
                flatten_parameters=True,
                pin_layout_in_collective_ops=False,
                sharding_rank=0,
                sharding_world_size=8,
                sharding_groups=[[0]],
                reduce_scatter_bucket_size_mb=25,
                coalesce_all_gather_ops=True,
                execute_sharding_on_init=False,
            )
        (warning,) = said
        for name in (
            "flatten_parameters",
            "sharding_groups",
            "reduce_scatter_bucket_size_mb",
            "sharding_rank",
        ):
            assert name in str(warning.message)


class TestSpmd:
    """SpmdFullyShardedDataParallel: the keywords of FSDP v2."""

    def test_all_of_them(self, silent: None, mesh2x4: spmd.Mesh) -> None:
        seen = []
        model = SPMD(
            Net(),
            mesh=mesh2x4,
            shard_output=lambda output, mesh: seen.append(output.shape),
            auto_wrap_policy=POLICY,
            auto_wrapper_callable=None,
            extra_data_axis="data",
        )
        model(torch.randn(16, 16).to("xla"))
        assert seen == [(16, 16), (16, 16), (16, 8)]
