"""Lightning's Trainer: the accelerator `xla` and the strategies `xla` (data parallel) and `xla_fsdp`."""

from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from ...mesh.partition_spec import PartitionSpec
from ...names.compat.finder import resolve
from ...tensors.annotate import mark_sharding
from ...tensors.runtime import sync
from .accelerate_device import DEVICE
from .lightning_classes import accelerator_of, choose_for, data_parallel_of, fully_sharded_of, register


def complete(connector: Any) -> None:
    """Registers the accelerator and the strategies; they are what a Trainer chooses from here on.

    Args:
        connector: `lightning.pytorch.trainer.connectors.accelerator_connector`.
    """
    root = connector.__name__.partition(".trainer.")[0]
    accelerator = accelerator_of(resolve(f"{root}.accelerators:Accelerator"))
    strategies: Any = resolve(f"{root}.strategies")
    shared, fsdp = _strategies(strategies.SingleDeviceStrategy)
    strategies.XLAStrategy, strategies.XLAFSDPStrategy = shared, fsdp
    register(connector, connector.AcceleratorRegistry, connector.StrategyRegistry, accelerator, shared, fsdp)
    choose_for(connector._AcceleratorConnector, accelerator, shared)
    if hasattr(connector, "_select_auto_accelerator"):
        connector._select_auto_accelerator = lambda: "xla"
    else:  # Lightning 2.4
        connector._AcceleratorConnector._choose_auto_accelerator = staticmethod(lambda: "xla")


def _strategies(base: Any) -> tuple[Any, Any]:
    class XLAStrategy(data_parallel_of(base)):  # type: ignore[misc]  # a class made for this base
        def setup(self, trainer: Any) -> None:
            self._mesh_of(trainer._accelerator_connector._devices_flag)
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
            # A file without a trace of the device: a machine without this library loads it.
            super().save_checkpoint(pytree.tree_map_only(Tensor, Tensor.cpu, checkpoint), filepath, storage_options)

    class XLAFSDPStrategy(fully_sharded_of(XLAStrategy)):  # type: ignore[misc]  # a class made for this base
        def teardown(self) -> None:
            # Lightning moves a model to the CPU in the end; one that is sharded may not fit there.
            for plugin in (self.precision_plugin, self.accelerator, self.checkpoint_io):
                plugin.teardown()

        def _setup_model(self, model: Any) -> Any:
            if self._shard_units(model, self.mesh):  # else by an earlier fit or test
                for step in ("training_step", "validation_step", "test_step", "predict_step"):
                    if step in vars(type(model)):
                        resolve("fsdp:register_fsdp_forward_method")(model, step)
            return model

    return XLAStrategy, XLAFSDPStrategy


def _synced(result: Any) -> Any:
    sync()
    return result
