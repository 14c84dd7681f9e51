"""The strategies `xla` (data parallel) and `xla_fsdp` of Lightning Fabric and of Lightning's Trainer."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from ...mesh.partition_spec import PartitionSpec
from ...names.compat.finder import resolve
from ...names.torch_xla.parallel_loader import MpDeviceLoader
from ...names.torch_xla.sharding_spec import ShardingSpec
from ...tensors.annotate import mark_sharding
from ...tensors.runtime import sync
from .accelerate_device import DEVICE
from .lightning_classes import complete, data_parallel_of, fully_sharded_of


def complete_fabric(connector: Any) -> None:
    """Registers the accelerator and the strategies; they are what a Fabric chooses from here on.

    Args:
        connector: `lightning.fabric.connector`.
    """
    registries = connector.ACCELERATOR_REGISTRY, connector.STRATEGY_REGISTRY
    root = connector.__name__.rpartition(".")[0]
    # Fabric looks for its strategies by these names, too.
    connector.XLAStrategy, connector.XLAFSDPStrategy = complete(
        connector, root, registries, connector._Connector, _of_fabric
    )


def _of_fabric(base: Any) -> tuple[Any, Any]:
    class FabricStrategy(data_parallel_of(base)):  # type: ignore[misc]  # a class made for this base
        def process_dataloader(self, dataloader: Iterable[Any]) -> MpDeviceLoader:
            mesh = self._mesh()
            spec = ShardingSpec(mesh, (tuple(self.data_axes or mesh.axis_names),))
            return MpDeviceLoader(dataloader, DEVICE, input_sharding=spec)

        def _convert_stateful_objects_in_state(self, *args: Any, **how: Any) -> Any:
            return _on_cpu(super()._convert_stateful_objects_in_state(*args, **how))

    class FabricFSDPStrategy(fully_sharded_of(FabricStrategy)):  # type: ignore[misc]  # as above
        def setup_module(self, module: Any) -> Any:
            self._shard_units(module)
            return module

    return FabricStrategy, FabricFSDPStrategy


def complete_trainer(connector: Any) -> None:
    """Registers the accelerator and the strategies; they are what a Trainer chooses from here on.

    Args:
        connector: `lightning.pytorch.trainer.connectors.accelerator_connector`.
    """
    registries = connector.AcceleratorRegistry, connector.StrategyRegistry
    root = connector.__name__.partition(".trainer.")[0]
    complete(connector, root, registries, connector._AcceleratorConnector, _of_trainer)
    if hasattr(connector, "_select_auto_accelerator"):
        connector._select_auto_accelerator = lambda: "xla"
    else:  # Lightning 2.4
        connector._AcceleratorConnector._choose_auto_accelerator = staticmethod(lambda: "xla")


def _of_trainer(base: Any) -> tuple[Any, Any]:
    class TrainerStrategy(data_parallel_of(base)):  # type: ignore[misc]  # a class made for this base
        def setup(self, trainer: Any) -> None:
            self._mesh()
            super().setup(trainer)

        def batch_to_device(self, batch: Any, device: Any = None, dataloader_idx: int = 0) -> Any:
            batch = super().batch_to_device(batch, device, dataloader_idx)
            pytree.tree_map_only(Tensor, self._shard, batch)
            return batch

        def _shard(self, tensor: Tensor) -> None:
            if tensor.dim() and tensor.device.type == DEVICE.type and self.mesh is not None and self.mesh.size() > 1:
                axes = tuple(self.data_axes or self.mesh.axis_names)
                mark_sharding(tensor, self.mesh, PartitionSpec(axes, *[None] * (tensor.dim() - 1)))

        def validation_step(self, *args: Any, **how: Any) -> Any:
            return _synced(super().validation_step(*args, **how))

        def test_step(self, *args: Any, **how: Any) -> Any:
            return _synced(super().test_step(*args, **how))

        def predict_step(self, *args: Any, **how: Any) -> Any:
            return _synced(super().predict_step(*args, **how))

        def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
            super().save_checkpoint(_on_cpu(checkpoint), filepath, storage_options)

    class TrainerFSDPStrategy(fully_sharded_of(TrainerStrategy)):  # type: ignore[misc]  # as above
        def teardown(self) -> None:
            # Lightning moves a model to the CPU in the end; one that is sharded may not fit there.
            for plugin in (self.precision_plugin, self.accelerator, self.checkpoint_io):
                plugin.teardown()

        def _setup_model(self, model: Any) -> Any:
            if self._shard_units(model):  # else by an earlier fit or test
                for step in ("training_step", "validation_step", "test_step", "predict_step"):
                    if step in vars(type(model)):
                        resolve("fsdp:register_fsdp_forward_method")(model, step)
            return model

    return TrainerStrategy, TrainerFSDPStrategy


def _on_cpu(state: Any) -> Any:
    """A state without a trace of the device: a machine without this library loads its file."""
    return pytree.tree_map_only(Tensor, Tensor.cpu, state)


def _synced(result: Any) -> Any:
    sync()
    return result
